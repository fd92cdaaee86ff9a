//! The threads that can run, and the choice among them.

use crate::clock::WARP_SIZE;
use crate::rng::Rng;

/// Warps of a block, at most.
const MAX_WARPS: usize = 1024 / WARP_SIZE;

/// One time in so many another warp runs, though threads of the current one could.
const TURNS_ONCE_IN: usize = 256;

/// The threads that can run, by warp. One warp runs for a while: that uses the host's caches
/// better, and lets warps get further apart than if they took turns.
#[derive(Default)]
pub(crate) struct Ready {
    /// By slot of the block and warp, the lanes.
    lanes: Vec<u32>,
    /// The position of a warp in `warps`, if it is there.
    positions: Vec<usize>,
    /// The warps with lanes that can run, as indices of the other two.
    warps: Vec<usize>,
    num_threads: usize,
    /// The warp that ran last.
    current: usize,
    /// Whether it yields to other warps.
    yields: bool,
}

impl Ready {
    /// Threads that can run.
    pub fn len(&self) -> usize {
        self.num_threads
    }

    /// A thread of the block in slot `place` can run.
    pub fn push(&mut self, place: usize, thread: usize) {
        let warp = place * MAX_WARPS + thread / WARP_SIZE;
        if self.lanes.len() <= warp {
            self.lanes.resize(warp + 1, 0);
            self.positions.resize(warp + 1, 0);
        }
        if self.lanes[warp] == 0 {
            self.positions[warp] = self.warps.len();
            self.warps.push(warp);
        }
        self.lanes[warp] |= 1 << (thread % WARP_SIZE);
        self.num_threads += 1;
    }

    /// The thread that ran last can run again, but yields to other warps.
    pub fn push_yielding(&mut self, place: usize, thread: usize) {
        self.push(place, thread);
        self.yields = true;
    }

    /// Takes a thread, of which there must be one: the slot of its block, and its index there.
    pub fn take(&mut self, rng: &mut Rng) -> (usize, usize) {
        let stays = !std::mem::take(&mut self.yields)
            && self.lanes.get(self.current).is_some_and(|&lanes| lanes != 0)
            && rng.below(TURNS_ONCE_IN) != 0;
        if !stays {
            self.current = self.warps[rng.below(self.warps.len())];
        }
        let warp = self.current;
        let lane = nth_lane(self.lanes[warp], rng.below(self.lanes[warp].count_ones() as usize));
        self.lanes[warp] &= !(1 << lane);
        self.num_threads -= 1;
        if self.lanes[warp] == 0 {
            let position = self.positions[warp];
            self.warps.swap_remove(position);
            if let Some(&moved) = self.warps.get(position) {
                self.positions[moved] = position;
            }
        }
        (warp / MAX_WARPS, warp % MAX_WARPS * WARP_SIZE + lane)
    }
}

/// The place of the `n`-th bit that is set.
fn nth_lane(mut lanes: u32, n: usize) -> usize {
    for _ in 0..n {
        lanes &= lanes - 1;
    }
    lanes.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_taken_once() {
        for seed in 0..20 {
            let (mut ready, mut rng) = (Ready::default(), Rng::new(seed));
            let mut threads: Vec<_> =
                (0..3).flat_map(|place| (0..100).map(move |thread| (place, thread))).collect();
            threads.iter().for_each(|&(place, thread)| ready.push(place, thread));
            let mut taken: Vec<_> = (0..ready.len()).map(|_| ready.take(&mut rng)).collect();
            assert_ne!(taken, threads);
            taken.sort_unstable();
            threads.sort_unstable();
            assert_eq!(taken, threads);
            assert_eq!(ready.len(), 0);
        }
    }

    #[test]
    fn a_thread_that_lets_others_run_does() {
        let (mut ready, mut rng) = (Ready::default(), Rng::new(0));
        ready.push(0, 0);
        ready.push(0, 32);
        let mut runs = [0; 2];
        for _ in 0..1000 {
            let (place, thread) = ready.take(&mut rng);
            runs[thread / WARP_SIZE] += 1;
            ready.push_yielding(place, thread);
        }
        assert!(runs.iter().all(|&runs| runs > 400), "{runs:?}");
    }
}
