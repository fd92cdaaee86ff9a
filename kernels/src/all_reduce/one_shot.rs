//! One-shot all-reduce: each rank stores its tensor in every peer's workspace, and adds what it gets.
//!
//! Shapes    x, out `[num_rows, width]` of 16 bits, contiguous; out may be x.
//! Launch    grid `(max_rows * width / 8 / NUM_THREADS, 1, 1)`, block `(NUM_THREADS, 1, 1)`; a
//!           thread has a vector of 16 bytes.
//! Numerics  see [`super`].
//! Bound     latency: a store to a peer, and the loads of its flag. Flags double the bytes: `4 *
//!           num_rows * width` are sent to each peer.
//! Source    NCCL's LL protocol: data and flag in one store, so that there is neither a fence nor
//!           a second message. Stores do not wait for a round trip, as loads from a peer would.

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::channel::Channel;
use crate::element::{Columns, Half, VEC_ELEMS};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block, and vectors of a channel.
pub(crate) const NUM_THREADS: u32 = 128;

/// Elements of a block.
pub(crate) const BLOCK_ELEMS: u32 = NUM_THREADS * VEC_ELEMS;

/// A vector a thread.
///
/// # Safety
/// 1. `num_rows` is one element, the same on all ranks; `x` and `out` hold that many rows of
///    `width` elements, less than 2^32 in all, 16-byte aligned; `out` is `x` or does not overlap it.
/// 2. `rank` is under `WORLD`. `epochs` and the first `WORLD` of the `lines` are those of the ranks'
///    workspaces, for as many channels as there are blocks.
/// 3. All ranks make the same launches that use these workspaces, in the same order.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        all_reduce_one_shot_{E}_w2 = <E, 2>,
        all_reduce_one_shot_{E}_w4 = <E, 4>,
        all_reduce_one_shot_{E}_w8 = <E, 8>
    )
)]
pub unsafe fn all_reduce_one_shot<E: Half, const WORLD: usize>(
    rank: u32,
    num_rows: Global<u32>,
    width: u32,
    x: Global<E>,
    out: GlobalMut<E>,
    epochs: GlobalMut<u32>,
    lines: [GlobalMut<u64>; MAX_WORLD],
) {
    let lines = core::array::from_fn(|p| lines[p]);
    let (block, thread) = (thread::block_idx_x(), thread::thread_idx_x());
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let len = num_rows * width;
    // The same on all ranks, so that blocks without work are in no epoch of any.
    if block * BLOCK_ELEMS >= len {
        return;
    }
    // SAFETY: the block has a channel, the thread one of its vectors; columns are inside by their
    // bound, and all ranks have as many.
    unsafe {
        // Both loads are in flight at the same time.
        let epoch = epochs.get(block as usize);
        let columns = Columns::new(block * BLOCK_ELEMS + thread * VEC_ELEMS, len, true);
        let own = columns.load_pairs(x);
        let channel = Channel::<WORLD>::after(epoch, (block, rank), lines, NUM_THREADS as usize);
        if !columns.is_empty() {
            channel.send(thread as usize, own);
        }
        // All threads have read the epoch.
        thread::sync_threads();
        if thread == 0 {
            epochs.set(block as usize, channel.epoch());
        }
        if !columns.is_empty() {
            let sum = channel.receive_sum::<E, WORLD>(thread as usize, own);
            columns.store(out, sum);
        }
    }
}
