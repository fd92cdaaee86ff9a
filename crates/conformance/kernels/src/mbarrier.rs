//! `mbarrier`: a circular buffer of stages between two producer and two consumer warps.

use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::warp::WARP_SIZE;

/// Producer warps, and consumer warps.
pub const NUM_PRODUCERS: u32 = 2;

/// Threads of the block.
pub const NUM_THREADS: u32 = 2 * NUM_PRODUCERS * WARP_SIZE;

/// Words of a stage: one per lane and producer.
pub const STAGE: u32 = NUM_PRODUCERS * WARP_SIZE;

/// Stages of the circular buffer.
const NUM_STAGES: u32 = 3;

/// In each round both producers fill their half of a stage; consumer `c` reads lane `i ^ 1` of
/// producer `1 - c` and adds the round: `x` and `out` are `[num_rounds, NUM_PRODUCERS, 32]`.
///
/// # Safety
/// 1. One block; the views have these lengths.
#[kernel(launch_bounds(NUM_THREADS), target(sm_90a))]
pub unsafe fn mbarrier_ring_u32(num_rounds: u32, x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: a stage is written between its barriers "empty" and "full", and read between "full"
    // and "empty".
    unsafe {
        let full = Mbarrier::new(shared_array![u64; NUM_STAGES as usize]);
        let empty = Mbarrier::new(shared_array![u64; NUM_STAGES as usize]);
        let smem = shared_array![u32; (NUM_STAGES * STAGE) as usize];
        if thread::thread_idx_x() == 0 {
            let mut stage = 0;
            while stage < NUM_STAGES {
                full.offset(stage).init(NUM_PRODUCERS * WARP_SIZE);
                // One lane of each consumer arrives, twice.
                empty.offset(stage).init(2 * NUM_PRODUCERS);
                stage += 1;
            }
        }
        thread::sync_threads();
        let (warp_idx, lane) = (warp::warp_idx(), warp::lane_id());
        let mut round = 0;
        while round < num_rounds {
            let (stage, parity) = (round % NUM_STAGES, round / NUM_STAGES % 2);
            let (full, empty) = (full.offset(stage), empty.offset(stage));
            let buffer = smem.offset(stage * STAGE);
            let start = (round * STAGE) as usize;
            if warp_idx < NUM_PRODUCERS {
                let i = warp_idx * WARP_SIZE + lane;
                empty.wait(parity ^ 1);
                buffer.set(i, x.get(start + i as usize));
                full.arrive();
            } else {
                let consumer = warp_idx - NUM_PRODUCERS;
                let from = (NUM_PRODUCERS - 1 - consumer) * WARP_SIZE + (lane ^ 1);
                while !full.try_wait(parity) {}
                let word = buffer.get(from);
                warp::sync_warp();
                if lane == 0 {
                    empty.arrive_count(2);
                }
                let i = consumer * WARP_SIZE + lane;
                out.set(start + i as usize, word.wrapping_add(round));
            }
            round += 1;
        }
    }
}

/// Words of [`mbarrier_phases()`].
pub const NUM_PHASE_WORDS: usize = 2 * 6 + 4;

/// One thread writes `test_wait` of both parities before each of six steps of arrivals on a barrier
/// of three arrivals; then a number that replaces the barrier in its memory; then `test_wait` of
/// parity 0 before each of three arrivals on a new barrier there, of two arrivals.
///
/// # Safety
/// 1. One thread; `out` is `[NUM_PHASE_WORDS]`.
#[kernel(launch_bounds(1), target(sm_90a))]
pub unsafe fn mbarrier_phases(out: GlobalMut<u32>) {
    // SAFETY: only this thread uses the barrier; two words per step, and four.
    unsafe {
        let words = shared_array![u64; 1];
        let barrier = Mbarrier::new(words);
        barrier.init(3);
        let mut step = 0;
        while step < 6 {
            out.set(2 * step, u32::from(barrier.test_wait(0)));
            out.set(2 * step + 1, u32::from(barrier.test_wait(1)));
            match step {
                0 => barrier.arrive(),
                1 => barrier.arrive_count(2),
                2 => barrier.arrive_count(3),
                3 => barrier.arrive_count(2),
                _ => barrier.arrive(),
            }
            step += 1;
        }
        barrier.inval();
        words.set(0, 5);
        out.set(2 * step, words.get(0) as u32);
        barrier.init(2);
        let mut arrivals = 0;
        while arrivals < 3 {
            out.set(2 * step + 1 + arrivals, u32::from(barrier.test_wait(0)));
            barrier.arrive();
            arrivals += 1;
        }
        barrier.inval();
    }
}

/// Words of [`mbarrier_bytes()`].
pub const NUM_WORDS: u32 = 16;

/// One thread loads `x` and writes `test_wait` while its bytes are expected, or if `EARLY` after
/// the copy has started and before the thread arrives; then `x`: `x` is `[NUM_WORDS]`, `out`
/// `[1 + NUM_WORDS]`.
///
/// # Safety
/// 1. One thread; the views have these lengths.
#[kernel(
    launch_bounds(1),
    target(sm_90a),
    instances(mbarrier_bytes_late = <false>, mbarrier_bytes_early = <true>)
)]
pub unsafe fn mbarrier_bytes<const EARLY: bool>(x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: the words are read once they have arrived.
    unsafe {
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        let smem = shared_array![u32; NUM_WORDS as usize];
        barrier.init(1);
        fence::mbarrier_init();
        if EARLY {
            bulk::load(smem, x, 4 * NUM_WORDS, barrier, CacheHint::EvictFirst);
            barrier.expect_tx(4 * NUM_WORDS);
            out.set(0, u32::from(barrier.test_wait(0)));
            barrier.arrive();
        } else {
            barrier.arrive_expect_tx(4 * NUM_WORDS);
            out.set(0, u32::from(barrier.test_wait(0)));
            bulk::load(smem, x, 4 * NUM_WORDS, barrier, CacheHint::EvictFirst);
        }
        barrier.wait(0);
        let mut i = 0;
        while i < NUM_WORDS {
            out.set(1 + i as usize, smem.get(i));
            i += 1;
        }
    }
}
