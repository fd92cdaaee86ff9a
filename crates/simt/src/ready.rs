//! The threads that can go on, and which of them does.

use crate::clock::WARP_SIZE;
use crate::rng::Rng;

/// Warps of a block, at most.
const MAX_WARPS: usize = 1024 / WARP_SIZE;

/// One time in so many another warp goes on, though threads of this one could.
const TURNS_ONCE_IN: usize = 256;

/// The threads that can go on, by warps. One warp goes on for a while: what its threads need is in
/// the host's caches then, and warps get further apart than if all took turns.
#[derive(Default)]
pub(crate) struct Ready {
    /// By place of the block and warp, the lanes.
    lanes: Vec<u32>,
    /// Where a warp is in `warps`, if it is.
    positions: Vec<usize>,
    /// The warps that have such lanes, as indices of the others.
    warps: Vec<usize>,
    num_threads: usize,
    /// The one that went on last.
    current: usize,
    /// Whether it has asked that others go on.
    yields: bool,
}

impl Ready {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.num_threads
    }

    /// A thread of the block at `place` can go on.
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

    /// The thread that went on last can do so again, but others should now.
    pub fn push_behind(&mut self, place: usize, thread: usize) {
        self.push(place, thread);
        self.yields = true;
    }

    /// Takes the place of a block and a thread there, of which there is one at least.
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
            ready.push_behind(place, thread);
        }
        assert!(runs.iter().all(|&runs| runs > 400), "{runs:?}");
    }
}
