//! Pages in the order in which they were used last.

/// A list of pages, linked by their numbers: every operation takes constant time.
#[derive(Debug)]
pub struct PageList {
    /// The page after each page, and after the head, which is the number of pages, the first one.
    next: Vec<u32>,
    /// The page before each page, likewise.
    prev: Vec<u32>,
    len: usize,
}

impl PageList {
    /// An empty list of the pages `0..num_pages`.
    pub fn new(num_pages: usize) -> Self {
        let head = num_pages as u32;
        PageList { next: vec![head; num_pages + 1], prev: vec![head; num_pages + 1], len: 0 }
    }

    fn head(&self) -> u32 {
        (self.next.len() - 1) as u32
    }

    /// Pages in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends a page that is not in the list.
    pub fn push_back(&mut self, page: u32) {
        let head = self.head();
        let last = self.prev[head as usize];
        self.link(last, page);
        self.link(page, head);
        self.len += 1;
    }

    /// Removes a page that is in the list.
    pub fn remove(&mut self, page: u32) {
        self.link(self.prev[page as usize], self.next[page as usize]);
        self.len -= 1;
    }

    /// Removes the first page.
    pub fn pop_front(&mut self) -> Option<u32> {
        let first = self.next[self.head() as usize];
        (self.len > 0).then(|| {
            self.remove(first);
            first
        })
    }

    fn link(&mut self, page: u32, next: u32) {
        self.next[page as usize] = next;
        self.prev[next as usize] = page;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::VecDeque;

    #[test]
    fn it_is_a_queue_from_which_any_page_can_go() {
        const NUM_PAGES: usize = 10;
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (mut list, mut oracle) = (PageList::new(NUM_PAGES), VecDeque::new());
        for _ in 0..1000 {
            let page = rng.random_range(0..NUM_PAGES as u32);
            match oracle.iter().position(|&other| other == page) {
                _ if rng.random_bool(0.2) => assert_eq!(list.pop_front(), oracle.pop_front()),
                Some(index) => {
                    list.remove(page);
                    oracle.remove(index);
                }
                None => {
                    list.push_back(page);
                    oracle.push_back(page);
                }
            }
            assert_eq!(list.len(), oracle.len());
        }
        let all: Vec<u32> = std::iter::from_fn(|| list.pop_front()).collect();
        assert_eq!(oracle, all);
        assert_eq!(PageList::new(0).pop_front(), None);
    }
}
