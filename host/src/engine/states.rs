//! Recurrent states that are kept at the ends of pages, for sequences that begin alike to begin
//! with them: pages alone are of no use to these.

use super::pool::Pool;
use super::prefix::PageHash;
use crate::plan::PAGE_SIZE;

/// The slots of recurrent states. A kept state is known by the hash of its last page.
#[derive(Debug)]
pub struct StatePool {
    slots: Pool,
    /// Tokens after which it is worth a step of its own to keep another state.
    distance: usize,
}

impl StatePool {
    /// `num_states` free slots.
    pub fn new(num_states: usize, distance: usize) -> Self {
        StatePool { slots: Pool::new(num_states), distance }
    }

    /// Tokens after which it is worth a step of its own to keep another state.
    pub fn distance(&self) -> usize {
        self.distance
    }

    /// The slot of the state that was kept after the page of `hash`.
    pub fn find(&self, hash: &PageHash) -> Option<u32> {
        self.slots.find(hash)
    }

    /// A state that begins with zeros or, if it is given, with the kept one in slot `kept`.
    pub fn begin(&mut self, kept: Option<u32>) -> Option<State> {
        // Before its slot is taken for something else.
        kept.into_iter().for_each(|slot| self.slots.retain(slot));
        let state = self.slots.take().map(|slot| State { slot, source: kept });
        if state.is_none() {
            kept.into_iter().for_each(|slot| self.slots.release(slot));
        }
        state
    }

    /// Gives back the slots of `state`.
    pub fn end(&mut self, mut state: State) {
        self.settle(&mut state);
        self.slots.release(state.slot);
    }

    /// `state` has been read from elsewhere for the last time.
    pub fn settle(&mut self, state: &mut State) {
        state.source.take().into_iter().for_each(|slot| self.slots.release(slot));
    }

    /// Keeps `state`, which is settled, for others to find by `hash`: it goes on in another slot,
    /// if one is free.
    pub fn keep(&mut self, state: &mut State, hash: PageHash) {
        if let Some(next) = self.slots.take() {
            self.slots.publish(hash, state.slot, || None);
            *state = State { slot: next, source: Some(state.slot) };
        }
    }

    /// Lets no sequence find the state of `hash`.
    pub fn forget(&mut self, hash: &PageHash) {
        if let Some(slot) = self.slots.find(hash) {
            self.slots.forget(slot);
        }
    }

    /// Lets no sequence find any state that is kept now.
    pub fn forget_all(&mut self) {
        self.slots.forget_all();
    }

    /// Slots that no sequence holds.
    #[cfg(test)]
    pub fn num_free(&self) -> usize {
        self.slots.num_free()
    }

    /// Whether others can find what is in `slot`.
    #[cfg(test)]
    pub fn knows(&self, slot: u32) -> bool {
        self.slots.knows(slot)
    }
}

/// The recurrent state of a sequence.
#[derive(Debug)]
pub struct State {
    slot: u32,
    /// Where it is before the next step, if elsewhere: a kept state, which the step leaves alone.
    source: Option<u32>,
}

impl State {
    /// The slots that the next step reads it from and writes it to.
    pub fn slots(&self) -> [u32; 2] {
        [self.source.unwrap_or(self.slot), self.slot]
    }
}

/// Which states of a sequence are kept: those at the ends of some pages.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// Positions before which a chunk of the prompt ends for this.
    borders: [usize; 2],
    /// Where the last one was kept, or the sequence began.
    last: usize,
    /// The last one that the sequence came by without a border, which the next one replaces.
    passing: Option<PageHash>,
}

impl Snapshots {
    /// For a sequence of `len` tokens that begins at `start`. Others had its first `known`
    /// tokens: more are likely to come. The last border of the prompt is where the next turn of a
    /// chat begins, or the same prompt again.
    pub fn new(start: usize, known: usize, len: usize, distance: usize) -> Self {
        let of_prompt = len.saturating_sub(1) / PAGE_SIZE * PAGE_SIZE;
        let mut last = start;
        let borders = [known, of_prompt].map(|border| {
            let is_far = border >= last + distance;
            last = if is_far { border } else { last };
            if is_far { border } else { 0 }
        });
        Snapshots { borders, last: start, passing: None }
    }

    /// Where the next chunk of a prompt has to end, of which `num_cached` tokens are done.
    pub fn next_border(&self, num_cached: usize) -> Option<usize> {
        self.borders.into_iter().find(|&border| border > num_cached)
    }

    /// Keeps the `state` of a sequence after `num_cached` tokens, which `hashes` are of, if that is
    /// worth it.
    pub fn update(
        &mut self,
        states: &mut StatePool,
        state: &mut State,
        num_cached: usize,
        hashes: &[PageHash],
    ) {
        if num_cached <= self.last {
            return;
        }
        states.settle(state);
        let is_border = self.borders.contains(&num_cached);
        let is_far = num_cached >= self.last + states.distance;
        if !num_cached.is_multiple_of(PAGE_SIZE) || !(is_border || is_far) {
            return;
        }
        let Some(&hash) = hashes.get(num_cached / PAGE_SIZE - 1) else { return };
        self.last = num_cached;
        if states.slots.find(&hash).is_some() {
            return;
        }
        if !is_border {
            self.passing.replace(hash).iter().for_each(|hash| states.forget(hash));
        }
        states.keep(state, hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash that stands for the number `content`.
    fn hash(content: u32) -> PageHash {
        PageHash::root(None).child(&[content], 1)
    }

    #[test]
    fn a_kept_state_goes_on_in_another_slot() {
        let mut states = StatePool::new(3, 1);
        let mut state = states.begin(None).unwrap();
        assert_eq!(state.slots(), [0, 0]);
        states.keep(&mut state, hash(7));
        assert_eq!(state.slots(), [0, 1]);
        assert_eq!([6, 7, 8].map(|content| states.find(&hash(content))), [None, Some(0), None]);
        states.settle(&mut state);
        assert_eq!((state.slots(), states.num_free()), ([1, 1], 2));
        let other = states.begin(Some(0)).unwrap();
        assert_eq!((other.slots(), states.num_free()), ([0, 2], 0));
        assert!(states.begin(None).is_none());
        states.end(other);
        states.end(state);
        assert_eq!((states.num_free(), states.knows(0)), (3, true));
    }

    /// What a sequence is still to read is not given to another, whoever else ends.
    #[test]
    fn a_state_that_is_read_stays() {
        let mut states = StatePool::new(3, 1);
        let mut state = states.begin(None).unwrap();
        states.keep(&mut state, hash(1));
        states.end(state);
        let readers = [(); 2].map(|()| states.begin(Some(0)).unwrap());
        assert_eq!(readers.each_ref().map(State::slots), [[0, 1], [0, 2]]);
        states.forget(&hash(1));
        assert_eq!(states.find(&hash(1)), None);
        let [first, second] = readers;
        states.end(first);
        assert_eq!(states.begin(None).unwrap().slots(), [1, 1], "not 0, which the second reads");
        assert!(states.begin(None).is_none());
        states.end(second);
        assert_eq!(states.num_free(), 2);
    }

    #[test]
    fn the_state_that_was_used_longest_ago_is_given_up_first() {
        let mut states = StatePool::new(3, 1);
        let mut state = states.begin(None).unwrap();
        for content in [1, 2] {
            states.keep(&mut state, hash(content));
            states.settle(&mut state);
        }
        let again = states.begin(states.find(&hash(1)));
        assert!(again.is_some(), "in the slot of the second, which nobody reads");
        assert_eq!([1, 2].map(|content| states.find(&hash(content)).is_some()), [true, false]);
    }

    #[test]
    fn borders_are_far_from_each_other() {
        let borders = |start: usize, known: usize, len: usize, distance: usize| {
            let snapshots = Snapshots::new(start, known, len, distance);
            let next = |at: &usize| snapshots.next_border(*at);
            std::iter::successors(next(&start), next).collect::<Vec<_>>()
        };
        assert_eq!(borders(0, 0, 1000, 256), [960]);
        assert_eq!(borders(0, 0, 961, 256), [960]);
        assert_eq!(borders(0, 0, 960, 256), [896], "a token is left to compute");
        assert!(borders(0, 0, 256, 256).is_empty());
        assert_eq!(borders(0, 0, 257, 256), [256]);
        assert_eq!(borders(0, 640, 1000, 256), [640, 960]);
        assert_eq!(borders(0, 768, 1000, 256), [768]);
        assert_eq!(borders(640, 768, 1000, 256), [960]);
        assert!(borders(64, 0, 0, 64).is_empty());
    }

    #[test]
    fn while_a_sequence_grows_its_last_state_is_kept_beside_those_at_borders() {
        let hashes: Vec<PageHash> = (0..10).map(hash).collect();
        let mut states = StatePool::new(10, 2 * PAGE_SIZE);
        let mut state = states.begin(None).unwrap();
        let mut snapshots = Snapshots::new(0, 0, 3 * PAGE_SIZE + 1, states.distance());
        let mut kept = Vec::new();
        for num_cached in 1..=9 * PAGE_SIZE + 1 {
            let num_hashes = num_cached / PAGE_SIZE;
            snapshots.update(&mut states, &mut state, num_cached, &hashes[..num_hashes]);
            let found = hashes.iter().map(|hash| states.slots.find(hash).is_some());
            let found: Vec<usize> = found.enumerate().filter(|f| f.1).map(|f| f.0 + 1).collect();
            if kept.last() != Some(&found) {
                kept.push(found);
            }
        }
        assert_eq!(kept, [&[][..], &[2], &[2, 3], &[3, 5], &[3, 7], &[3, 9]]);
        states.end(state);
        assert_eq!(states.num_free(), 10);
    }
}
