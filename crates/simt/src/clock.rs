//! What a thread knows of the others: vector clocks.
//!
//! A thread counts its own epochs. It knows another thread's epoch `e` if something (a barrier, a
//! warp's synchronisation) orders what that thread did up to `e` before what it does itself now.
//! Knowledge of the block is shared by all threads that passed the same barrier, and that of the
//! own warp lies on top, so that a barrier of `n` threads costs `n` and one of a warp 32.

use std::rc::Rc;

/// Lanes of a warp.
pub(crate) const WARP_SIZE: usize = 32;

/// One thread's knowledge.
#[derive(Clone)]
pub(crate) struct Clock {
    /// By thread of the block.
    block: Rc<[u32]>,
    /// By lane of the own warp; what is newer than in `block`.
    warp: Rc<[u32; WARP_SIZE]>,
    /// The thread's own epoch.
    pub own: u32,
}

impl Clock {
    /// The clocks of a block's threads at its start: nobody knows of anybody.
    pub fn start(num_threads: usize) -> Vec<Clock> {
        let block: Rc<[u32]> = vec![0; num_threads].into();
        let warp = Rc::new([0; WARP_SIZE]);
        vec![Clock { block, warp, own: 1 }; num_threads]
    }

    /// The newest epoch of thread `other` of the block that is ordered before now; `me` is the
    /// thread whose clock this is.
    pub fn knows(&self, me: usize, other: usize) -> u32 {
        let known = self.block[other];
        if me / WARP_SIZE == other / WARP_SIZE {
            known.max(self.warp[other % WARP_SIZE])
        } else {
            known
        }
    }
}

/// Orders all that the threads `who` (ascending) did before all that they do from now on.
pub(crate) fn join_block(clocks: &mut [Clock], who: &[usize]) {
    let mut known = known_by_all(clocks, who);
    for (i, &thread) in who.iter().enumerate() {
        known[thread] = known[thread].max(clocks[thread].own);
        let warp = &clocks[thread].warp;
        if i > 0 && Rc::ptr_eq(warp, &clocks[who[i - 1]].warp) {
            continue;
        }
        let lanes = known[thread / WARP_SIZE * WARP_SIZE..].iter_mut();
        lanes.zip(warp.iter()).for_each(|(known, &lane)| *known = lane.max(*known));
    }
    let block: Rc<[u32]> = known.into();
    let warp = Rc::new([0; WARP_SIZE]);
    for &thread in who {
        let own = clocks[thread].own + 1;
        clocks[thread] = Clock { block: block.clone(), warp: warp.clone(), own };
    }
}

/// As [`join_block`], for threads of one warp.
pub(crate) fn join_warp(clocks: &mut [Clock], who: &[usize]) {
    let block = &clocks[who[0]].block;
    let block = if who.iter().all(|&thread| Rc::ptr_eq(block, &clocks[thread].block)) {
        block.clone()
    } else {
        known_by_all(clocks, who).into()
    };
    let mut warp = [0; WARP_SIZE];
    for &thread in who {
        let clock = &clocks[thread];
        warp.iter_mut().zip(clock.warp.iter()).for_each(|(known, &lane)| *known = lane.max(*known));
        warp[thread % WARP_SIZE] = warp[thread % WARP_SIZE].max(clock.own);
    }
    let warp = Rc::new(warp);
    for &thread in who {
        let own = clocks[thread].own + 1;
        clocks[thread] = Clock { block: block.clone(), warp: warp.clone(), own };
    }
}

/// The union of what the threads know of the block.
fn known_by_all(clocks: &[Clock], who: &[usize]) -> Vec<u32> {
    let mut known = clocks[who[0]].block.to_vec();
    for pair in who.windows(2) {
        let block = &clocks[pair[1]].block;
        if !Rc::ptr_eq(block, &clocks[pair[0]].block) {
            known
                .iter_mut()
                .zip(block.iter())
                .for_each(|(known, &epoch)| *known = epoch.max(*known));
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_block_pass_on_what_they_know() {
        let mut clocks = Clock::start(96);
        let epoch = clocks[0].own;
        // 0 to 32, to 33, to 64, to 65, and to 1; each time by two threads alone.
        join_block(&mut clocks, &[0, 32]);
        join_warp(&mut clocks, &[32, 33]);
        join_block(&mut clocks, &[33, 64]);
        join_warp(&mut clocks, &[64, 65]);
        join_block(&mut clocks, &[1, 64]);
        for thread in [1, 32, 33, 64, 65] {
            assert_eq!(clocks[thread].knows(thread, 0), epoch, "thread {thread}");
        }
        assert_eq!(clocks[34].knows(34, 0), 0);
        // And what 0 does after that, nobody knows.
        assert!(clocks[0].own > epoch);
        // What 32 did before it met 33 is known to 65, what it has done since is not.
        assert_eq!(clocks[65].knows(65, 32), clocks[32].own - 1);
    }
}
