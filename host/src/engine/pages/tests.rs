use super::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// A hash that stands for the number `content`.
fn hash(content: u32) -> PageHash {
    PageHash::root(None).child(&[content], 1)
}

fn table(allocator: &mut PageAllocator, num_pages: usize) -> PageTable {
    let mut table = PageTable::default();
    assert!(table.grow(allocator, num_pages * PAGE_SIZE));
    table
}

fn publish(allocator: &mut PageAllocator, table: &PageTable, first_content: u32) {
    for (content, index) in (first_content..).zip(0..table.pages().len()) {
        allocator.publish(hash(content), table, index, || None);
    }
}

#[test]
fn a_table_grows_by_whole_pages_or_not_at_all() {
    let mut allocator = PageAllocator::new(3);
    let mut table = PageTable::default();
    for (len, pages) in [(0, 0), (1, 1), (PAGE_SIZE, 1), (PAGE_SIZE + 1, 2), (5, 2)] {
        assert!(table.grow(&mut allocator, len));
        assert_eq!(table.pages().len(), pages, "{len} positions");
    }
    assert!(!table.grow(&mut allocator, 4 * PAGE_SIZE));
    assert_eq!((table.pages().len(), allocator.num_free()), (2, 1));
    for (len, pages) in [(PAGE_SIZE + 1, 2), (PAGE_SIZE, 1), (1000, 1), (0, 0)] {
        table.truncate(&mut allocator, len);
        assert_eq!(table.pages().len(), pages, "{len} positions");
    }
    assert_eq!(allocator.num_free(), 3);
}

#[test]
fn a_shared_page_is_free_when_the_last_gives_it_back() {
    let mut allocator = PageAllocator::new(4);
    let mut first = table(&mut allocator, 3);
    publish(&mut allocator, &first, 0);
    let mut second = PageTable::default();
    let found = allocator.begin(&[0, 1, 9].map(hash));
    assert_eq!((found.num_known, found.pages.len(), found.state), (2, 2, None));
    assert!(second.grow_from(&mut allocator, &found, 2 * PAGE_SIZE));
    assert_eq!(second.pages(), &first.pages()[..2]);
    first.truncate(&mut allocator, 0);
    assert_eq!(allocator.num_free(), 2);
    second.truncate(&mut allocator, 0);
    assert_eq!(allocator.num_free(), 4);
    assert_eq!(allocator.begin(&[0, 1].map(hash)).pages, found.pages);
}

#[test]
fn the_pages_idle_longest_are_forgotten_first_and_of_a_sequence_the_last() {
    let mut allocator = PageAllocator::new(6);
    let [mut first, mut second] = [0, 10].map(|content| {
        let table = table(&mut allocator, 2);
        publish(&mut allocator, &table, content);
        table
    });
    first.truncate(&mut allocator, 0);
    second.truncate(&mut allocator, 0);
    let known = |allocator: &PageAllocator| {
        let is_known = |content: &u32| allocator.pages.find(&hash(*content)).is_some();
        [0, 1, 10, 11].into_iter().filter(is_known).collect::<Vec<_>>()
    };
    let mut others = Vec::new();
    for left in [&[0, 1, 10, 11][..], &[0, 1, 10, 11], &[0, 10, 11], &[10, 11], &[10], &[]] {
        others.push(table(&mut allocator, 1));
        assert_eq!(known(&allocator), left);
    }
    assert!(!PageTable::default().grow(&mut allocator, 1));
    others.iter_mut().for_each(|table| table.truncate(&mut allocator, 0));
    assert_eq!((allocator.num_free(), allocator.pages.num_idle()), (6, 0));
}

/// A page that is found is used again: it is idle for less long than the others, and not taken for
/// what comes after it.
#[test]
fn a_found_page_is_not_taken_for_other_tokens() {
    let mut allocator = PageAllocator::new(2);
    let mut first = table(&mut allocator, 2);
    publish(&mut allocator, &first, 0);
    first.truncate(&mut allocator, 0);
    let found = allocator.pages.find(&hash(1)).unwrap();
    let beginning = Beginning { pages: vec![found], ..Beginning::default() };
    let mut second = PageTable::default();
    assert!(!second.grow_from(&mut allocator, &beginning, 3 * PAGE_SIZE));
    assert_eq!((second.pages().len(), allocator.num_free()), (0, 2));
    assert!(second.grow_from(&mut allocator, &beginning, 2 * PAGE_SIZE));
    assert_eq!(second.pages()[0], found);
    assert_ne!(second.pages()[1], found);
    assert_eq!(
        (allocator.pages.find(&hash(0)), allocator.pages.find(&hash(1))),
        (None, Some(found))
    );
}

#[test]
fn forgotten_pages_stay_with_those_that_hold_them() {
    let mut allocator = PageAllocator::new(4);
    let [mut held, mut idle] = [0, 10].map(|content| {
        let table = table(&mut allocator, 1);
        publish(&mut allocator, &table, content);
        table
    });
    idle.truncate(&mut allocator, 0);
    allocator.forget_all();
    assert_eq!([0, 10].map(|content| allocator.pages.find(&hash(content))), [None, None]);
    assert_eq!((allocator.num_free(), allocator.pages.num_idle()), (3, 0));
    publish(&mut allocator, &held, 0);
    held.forget(&mut allocator, &[]);
    assert_eq!((allocator.pages.find(&hash(0)), allocator.num_free()), (None, 4));
}

/// Random growth, truncation, publishing and sharing, compared with a count of the holders of each
/// page, and with what each page is known for.
#[test]
fn no_page_is_lost_or_given_twice() {
    const NUM_PAGES: usize = 20;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut allocator = PageAllocator::new(NUM_PAGES);
    let mut tables: Vec<PageTable> = (0..5).map(|_| PageTable::default()).collect();
    // Hashes, the one published last at the end; many are of pages that were forgotten since.
    let mut published: VecDeque<PageHash> = VecDeque::new();
    let mut num_found = 0;
    for step in 0..5000 {
        let table = &mut tables[rng.random_range(0..5)];
        let len = rng.random_range(0..10 * PAGE_SIZE);
        match rng.random_range(0..5) {
            0 => {
                let missing = len.div_ceil(PAGE_SIZE).saturating_sub(table.pages.len());
                let fits = missing <= allocator.num_free();
                assert_eq!(table.grow(&mut allocator, len), fits);
            }
            1 => table.truncate(&mut allocator, len),
            2 if rng.random_bool(0.1) => table.forget(&mut allocator, &[]),
            2 if rng.random_bool(0.05) => allocator.forget_all(),
            2 | 3 => {
                if let Some(last) = table.pages().len().checked_sub(1) {
                    published.push_back(hash(step));
                    allocator.publish(hash(step), table, last, || None);
                }
            }
            _ => {
                let recent = published.iter().rev().take(8);
                let found: Vec<u32> =
                    recent.filter_map(|hash| allocator.pages.find(hash)).collect();
                num_found += found.len();
                table.truncate(&mut allocator, 0);
                let found = Beginning { pages: found, ..Beginning::default() };
                let _ = table.grow_from(&mut allocator, &found, len);
            }
        }
        let mut holders = [0; NUM_PAGES];
        tables.iter().flat_map(|t| t.pages()).for_each(|&page| holders[page as usize] += 1);
        let held = (0..NUM_PAGES as u32).map(|page| allocator.pages.num_holders(page));
        assert_eq!(held.collect::<Vec<_>>(), holders);
        assert_eq!(allocator.num_free(), holders.iter().filter(|&&count| count == 0).count());
        let is_idle = |page: &u32| holders[*page as usize] == 0 && allocator.pages.knows(*page);
        let num_idle = (0..NUM_PAGES as u32).filter(is_idle).count();
        assert_eq!(allocator.pages.num_idle(), num_idle);
    }
    assert!(num_found > 1000, "{num_found} pages were found");
}

/// A sequence has a state from its first page to its last; where all are taken no other begins.
#[test]
fn a_state_comes_with_the_first_page_and_goes_with_the_last() {
    let mut allocator = PageAllocator::new(8).with_states(StatePool::new(2, PAGE_SIZE));
    let mut tables = [1, 2].map(|num_pages| table(&mut allocator, num_pages));
    assert_eq!(tables.each_ref().map(PageTable::state), [Some([0; 2]), Some([1; 2])]);
    let mut third = PageTable::default();
    assert!(!third.grow(&mut allocator, 1), "there is no state");
    assert_eq!((third.pages().len(), third.state(), allocator.num_free()), (0, None, 5));
    assert!(tables[1].grow(&mut allocator, 3 * PAGE_SIZE));
    tables[1].truncate(&mut allocator, 1);
    assert_eq!(tables[1].state(), Some([1; 2]));
    tables[0].truncate(&mut allocator, 0);
    assert_eq!(tables[0].state(), None);
    assert!(third.grow(&mut allocator, 1));
    assert_eq!(third.state(), Some([0; 2]), "that of the first");
    tables[1].forget(&mut allocator, &[]);
    assert_eq!((tables[1].state(), allocator.num_free()), (None, 7));
    assert_eq!(table(&mut PageAllocator::new(1), 1).state(), None, "of a model without states");
}

/// Pages are of no use beyond the last state that is kept.
#[test]
fn a_sequence_begins_where_a_state_is_kept() {
    let mut allocator = PageAllocator::new(8).with_states(StatePool::new(3, PAGE_SIZE));
    let hashes = [0, 1, 2].map(hash);
    let mut first = table(&mut allocator, 3);
    publish(&mut allocator, &first, 0);
    let found = allocator.begin(&hashes);
    assert_eq!((found.num_known, found.pages.len(), found.state), (3, 0, None));
    let mut snapshots = Snapshots::new(0, 0, 2 * PAGE_SIZE + 1, PAGE_SIZE);
    first.keep_state(&mut allocator, &mut snapshots, 2 * PAGE_SIZE, &hashes[..2]);
    assert_eq!(first.state(), Some([0, 1]));
    let found = allocator.begin(&hashes);
    assert_eq!((found.num_known, &found.pages[..], found.state), (3, &first.pages()[..2], Some(0)));
    let mut second = PageTable::default();
    assert!(second.grow_from(&mut allocator, &found, 3 * PAGE_SIZE));
    assert_eq!(second.state(), Some([0, 2]));
    // A failed sequence takes what it has kept along, but not from under another.
    first.forget(&mut allocator, &hashes);
    assert_eq!((second.state(), allocator.begin(&hashes).num_known), (Some([0, 2]), 0));
    second.truncate(&mut allocator, 0);
    assert_eq!((allocator.num_free(), allocator.states().unwrap().num_free()), (8, 3));
}
