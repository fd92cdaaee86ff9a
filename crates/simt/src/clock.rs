//! Vector clocks: which accesses of other threads are ordered before a thread's next one.
//!
//! Each *component* of a block counts its own epochs: a thread, or an *agent* that accesses memory
//! for it asynchronously ([`crate::agent`]). A thread's clock holds epoch `e` of another component
//! if something (a barrier, an mbarrier, an atomic operation) orders that component's accesses up
//! to `e` before the thread's next one: the thread *knows* `e`.
//!
//! Threads that have passed the same barrier share one row for their block; a second layer, for the
//! own warp, holds what is newer. So a barrier of `n` threads costs `n`, and one of a warp 32.

use std::collections::BTreeMap;
use std::rc::Rc;

/// Lanes of a warp.
pub(crate) const WARP_SIZE: usize = 32;

/// Epochs by component of one block; those past the end are 0.
type Row = Rc<[u32]>;

/// Epochs of the components of several blocks: the own one, and those that synchronised with it.
#[derive(Clone)]
pub(crate) struct Vector {
    home: u64,
    row: Row,
    others: Option<Rc<BTreeMap<u64, Row>>>,
}

impl Vector {
    /// Empty, for a thread of block `home`.
    pub fn new(home: u64) -> Self {
        Vector { home, row: Rc::new([]), others: None }
    }

    /// The epoch of a component of a block.
    pub fn get(&self, block: u64, component: usize) -> u32 {
        let row = if block == self.home {
            Some(&self.row)
        } else {
            self.others.as_ref().and_then(|others| others.get(&block))
        };
        row.and_then(|row| row.get(component)).copied().unwrap_or(0)
    }

    /// Raises this component of the own block to `epoch`.
    pub fn raise(&mut self, component: usize, epoch: u32) {
        if self.get(self.home, component) >= epoch {
            return;
        }
        let mut row = self.row.to_vec();
        row.resize(row.len().max(component + 1), 0);
        row[component] = epoch;
        self.row = row.into();
    }

    /// The maximum of both.
    pub fn join(&mut self, other: &Vector) {
        if self.home == other.home {
            join_row(&mut self.row, &other.row);
        } else {
            self.join_other(other.home, &other.row);
        }
        let Some(others) = &other.others else { return };
        if self.others.as_ref().is_some_and(|mine| Rc::ptr_eq(mine, others)) {
            return;
        }
        for (&block, row) in others.iter() {
            if block == self.home {
                join_row(&mut self.row, row);
            } else {
                self.join_other(block, row);
            }
        }
    }

    fn join_other(&mut self, block: u64, row: &Row) {
        if row.is_empty() {
            return;
        }
        let others = Rc::make_mut(self.others.get_or_insert_default());
        join_row(others.entry(block).or_insert_with(|| Rc::new([])), row);
    }
}

/// The newer epoch of each component; shares a row where it can.
fn join_row(mine: &mut Row, other: &Row) {
    let is_in = |a: &[u32], b: &[u32]| a.len() <= b.len() && a.iter().zip(b).all(|(a, b)| a <= b);
    if Rc::ptr_eq(mine, other) || is_in(other, mine) {
        return;
    }
    if is_in(mine, other) {
        *mine = other.clone();
        return;
    }
    let (long, short) = if mine.len() < other.len() { (other, &*mine) } else { (&*mine, other) };
    let mut row = long.to_vec();
    row.iter_mut().zip(short.iter()).for_each(|(epoch, &other)| *epoch = other.max(*epoch));
    *mine = row.into();
}

/// A clock, and the part of it that a proxy fence has extended to asynchronous accesses.
#[derive(Clone)]
pub(crate) struct Knowledge {
    pub known: Vector,
    pub fenced: Vector,
}

impl Knowledge {
    /// Empty, for a thread of block `home`.
    pub fn new(home: u64) -> Self {
        Knowledge { known: Vector::new(home), fenced: Vector::new(home) }
    }

    /// Knowledge of component 0 of block `home`, which is in epoch 1.
    pub fn with_first_component(home: u64) -> Self {
        let mut knowledge = Knowledge::new(home);
        knowledge.known.raise(0, 1);
        knowledge
    }

    /// The maximum of both.
    pub fn join(&mut self, other: &Knowledge) {
        self.known.join(&other.known);
        self.fenced.join(&other.fenced);
    }
}

/// One thread's clock.
#[derive(Clone)]
pub(crate) struct Clock {
    /// Shared by the threads that met.
    knowledge: Rc<Knowledge>,
    /// By lane of the own warp; what is newer than in `knowledge.known`.
    warp: Rc<[u32; WARP_SIZE]>,
    /// The thread's own epoch.
    pub own: u32,
}

impl Clock {
    /// The clocks of the threads of block `home` at its start: only what is in `before` is ordered.
    pub fn start(home: u64, num_threads: usize, before: Option<&Knowledge>) -> Vec<Clock> {
        let mut knowledge = Knowledge::new(home);
        before.into_iter().for_each(|before| knowledge.join(before));
        let (knowledge, warp) = (Rc::new(knowledge), Rc::new([0; WARP_SIZE]));
        vec![Clock { knowledge, warp, own: 1 }; num_threads]
    }

    /// What the threads of a block know at its end, when all that its `num_components` have done is
    /// complete.
    pub fn end(clocks: &[Clock], num_components: usize) -> Knowledge {
        let mut all = Knowledge::clone(&joined(clocks, 0..clocks.len()));
        all.known.row = vec![u32::MAX; num_components].into();
        // The end of a launch is a proxy fence, too.
        all.fenced = all.known.clone();
        all
    }

    /// The newest epoch of a component that is ordered before now; `me` is the thread whose clock
    /// this is.
    pub fn knows(&self, me: usize, block: u64, component: usize) -> u32 {
        let known = &self.knowledge.known;
        let epoch = known.get(block, component);
        if block == known.home && component / WARP_SIZE == me / WARP_SIZE {
            epoch.max(self.warp[component % WARP_SIZE])
        } else {
            epoch
        }
    }

    /// As `knows`, for asynchronous accesses.
    pub fn knows_fenced(&self, block: u64, component: usize) -> u32 {
        self.knowledge.fenced.get(block, component)
    }

    /// All that thread `me` knows and has done up to now, for others to acquire.
    pub fn release(&mut self, me: usize) -> Knowledge {
        let knowledge = Knowledge { known: self.flat(me), fenced: self.knowledge.fenced.clone() };
        self.own += 1;
        knowledge
    }

    /// Acquires what others have released.
    pub fn acquire(&mut self, knowledge: &Knowledge) {
        Rc::make_mut(&mut self.knowledge).join(knowledge);
    }

    /// Orders what a component of the own block did up to `epoch` before the thread.
    pub fn learn(&mut self, component: usize, epoch: u32) {
        if self.knowledge.known.get(self.knowledge.known.home, component) < epoch {
            Rc::make_mut(&mut self.knowledge).known.raise(component, epoch);
        }
    }

    /// A proxy fence: what is ordered before the thread is ordered before later asynchronous
    /// accesses too.
    pub fn fence_proxy(&mut self, me: usize) {
        let known = self.flat(me);
        Rc::make_mut(&mut self.knowledge).fenced.join(&known);
        self.own += 1;
    }

    /// The shared row, with the layers of the warp and of the thread itself.
    fn flat(&self, me: usize) -> Vector {
        let known = &self.knowledge.known;
        let first = me / WARP_SIZE * WARP_SIZE;
        let mut row = known.row.to_vec();
        row.resize(row.len().max(first + WARP_SIZE), 0);
        let lanes = row[first..].iter_mut().zip(self.warp.iter());
        lanes.for_each(|(known, &lane)| *known = lane.max(*known));
        row[me] = row[me].max(self.own);
        Vector { home: known.home, row: row.into(), others: known.others.clone() }
    }
}

/// Orders all that the threads `who` (ascending) of a block have done, and `released`, before all
/// that they do later.
pub(crate) fn join_block(clocks: &mut [Clock], who: &[usize], released: Option<&Knowledge>) {
    if who.is_empty() {
        return;
    }
    let mut all = Knowledge::clone(&joined(clocks, who.iter().copied()));
    let mut row = all.known.row.to_vec();
    row.resize(row.len().max(clocks.len().next_multiple_of(WARP_SIZE)), 0);
    for (i, &thread) in who.iter().enumerate() {
        row[thread] = row[thread].max(clocks[thread].own);
        let warp = &clocks[thread].warp;
        if i > 0 && Rc::ptr_eq(warp, &clocks[who[i - 1]].warp) {
            continue;
        }
        let lanes = row[thread / WARP_SIZE * WARP_SIZE..].iter_mut();
        lanes.zip(warp.iter()).for_each(|(known, &lane)| *known = lane.max(*known));
    }
    all.known.row = row.into();
    if let Some(released) = released {
        all.join(released);
    }
    let (all, warp) = (Rc::new(all), Rc::new([0; WARP_SIZE]));
    for &thread in who {
        let own = clocks[thread].own + 1;
        clocks[thread] = Clock { knowledge: all.clone(), warp: warp.clone(), own };
    }
}

/// As [`join_block`], for threads of one warp.
pub(crate) fn join_warp(clocks: &mut [Clock], who: impl Iterator<Item = usize> + Clone) {
    let knowledge = joined(clocks, who.clone());
    let mut warp = [0; WARP_SIZE];
    for thread in who.clone() {
        let clock = &clocks[thread];
        warp.iter_mut().zip(clock.warp.iter()).for_each(|(known, &lane)| *known = lane.max(*known));
        warp[thread % WARP_SIZE] = warp[thread % WARP_SIZE].max(clock.own);
    }
    let warp = Rc::new(warp);
    for thread in who {
        let own = clocks[thread].own + 1;
        clocks[thread] = Clock { knowledge: knowledge.clone(), warp: warp.clone(), own };
    }
}

/// The maximum of the threads' clocks, without their warps' layers.
fn joined(clocks: &[Clock], mut who: impl Iterator<Item = usize>) -> Rc<Knowledge> {
    let first = who.next().expect("threads that meet");
    let mut all = clocks[first].knowledge.clone();
    let mut last = &clocks[first].knowledge;
    for thread in who {
        let knowledge = &clocks[thread].knowledge;
        if !Rc::ptr_eq(knowledge, last) {
            Rc::make_mut(&mut all).join(knowledge);
            last = knowledge;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_block_pass_on_what_they_know() {
        let mut clocks = Clock::start(0, 96, None);
        let epoch = clocks[0].own;
        // 0 to 32, to 33, to 64, to 65, and to 1; each time by two threads alone.
        join_block(&mut clocks, &[0, 32], None);
        join_warp(&mut clocks, [32, 33].into_iter());
        join_block(&mut clocks, &[33, 64], None);
        join_warp(&mut clocks, [64, 65].into_iter());
        join_block(&mut clocks, &[1, 64], None);
        for thread in [1, 32, 33, 64, 65] {
            assert_eq!(clocks[thread].knows(thread, 0, 0), epoch, "thread {thread}");
        }
        assert_eq!(clocks[34].knows(34, 0, 0), 0);
        // What 0 does after that is not ordered.
        assert!(clocks[0].own > epoch);
        // What 32 did before it met 33 is known to 65, what it has done since is not.
        assert_eq!(clocks[65].knows(65, 0, 32), clocks[32].own - 1);
    }

    #[test]
    fn what_is_released_in_one_block_is_acquired_in_another() {
        let (mut first, mut second) = (Clock::start(0, 32, None), Clock::start(1, 32, None));
        join_warp(&mut first, [3, 4].into_iter());
        let (own, met) = (first[4].own, first[3].own - 1);
        let released = first[4].release(4);
        second[7].acquire(&released);
        assert_eq!(second[7].knows(7, 0, 4), own);
        assert_eq!(second[7].knows(7, 0, 3), met);
        assert_eq!(second[7].knows_fenced(0, 4), 0);
        assert!(first[4].own > own);
        // And back again, through a third block.
        let mut third = Clock::start(2, 32, None);
        third[0].acquire(&second[7].release(7));
        first[9].acquire(&third[0].release(0));
        assert_eq!(first[9].knows(9, 0, 4), own);
        assert_eq!(first[9].knows(9, 1, 7), 1);
    }

    #[test]
    fn a_proxy_fence_passes_on_what_was_known_then() {
        let mut clocks = Clock::start(0, 64, None);
        let epoch = clocks[0].own;
        join_block(&mut clocks, &[0, 40], None);
        assert_eq!(clocks[40].knows_fenced(0, 0), 0);
        clocks[40].fence_proxy(40);
        assert_eq!(clocks[40].knows_fenced(0, 0), epoch);
        let own = clocks[40].own;
        assert_eq!(clocks[40].knows_fenced(0, 40), own - 1);
        join_block(&mut clocks, &[40, 50], None);
        assert_eq!(clocks[50].knows_fenced(0, 40), own - 1);
    }
}
