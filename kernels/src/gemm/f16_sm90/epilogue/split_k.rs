//! Outputs that the blocks of a cluster have each summed over their share of k.
//!
//! A block lays its sums down in its own shared memory, strip by strip. The strips are dealt out
//! among the blocks of the cluster: each adds up its own from the shared memory of all, in the
//! order of the blocks, and stores them. So an output has one order of summation, and needs no
//! atomics.

use super::{OutElement, STRIP_ELEMS, STRIP_REGS, WarpOutput};
use crate::gemm::f16_sm90::accumulators::Accumulators;
use crate::gemm::f16_sm90::tiles::Tile;
use cuda_std::prelude::*;

/// Sums that one access moves: those of a thread that follow each other.
const VECTOR: usize = 4;

/// Sums of a warp that are written at once.
const WARP_VECTOR: u32 = warp::WARP_SIZE * VECTOR as u32;

/// Stores the cluster's tile, whose first row and column these are: `acc` are the warpgroup's sums
/// over the block's share of k.
///
/// # Safety
/// 1. All consumers of the cluster's blocks call this, each with its warp's `output`, for one tile.
/// 2. `smem` has room for the sums of a block, is used for nothing else, and is accessed by nobody
///    else from here on.
#[inline(always)]
pub unsafe fn store<T: Tile, O: OutElement>(
    acc: T::Acc,
    smem: Shared<f32>,
    [row, column]: [u32; 2],
    output: &mut WarpOutput<O>,
) {
    let warp_idx = warp::warp_idx();
    let warp_strips = smem.offset(warp_idx * T::Acc::STRIPS * STRIP_ELEMS);
    // SAFETY: a warp has strips of its own.
    acc.for_each_strip(|strip, sums| unsafe {
        lay_down(warp_strips.offset(strip * STRIP_ELEMS), &sums);
    });
    cluster::sync();
    let strip_idx = cluster::block_rank() + warp_idx * T::SPLIT_K;
    let [strip_row, strip_column] = T::strip_origin(strip_idx);
    let place = [row + strip_row, column + strip_column];
    let exists = strip_idx < T::NUM_CONSUMERS * 4 * T::Acc::STRIPS
        && place[0] < output.output.num_rows
        && place[1] < output.output.n;
    let mut sums = [0.0; STRIP_REGS];
    if exists {
        // SAFETY: all blocks have written the strip, and none ends before the barrier below.
        sums = unsafe { sum::<T>(smem.offset(strip_idx * STRIP_ELEMS)) };
    }
    // A block must not end while others read its sums. What they store then holds up no one.
    cluster::arrive();
    if exists {
        // SAFETY: the caller's promise.
        unsafe { O::store_strip(output, place, &sums) };
    }
    cluster::wait();
}

/// The sums of a strip over all blocks of the cluster: the thread's part.
///
/// # Safety
/// 1. The strip is at `smem` in every block; all have written theirs, and none has ended.
#[inline(always)]
unsafe fn sum<T: Tile>(smem: Shared<f32>) -> [f32; STRIP_REGS] {
    let mut sums = [0.0; STRIP_REGS];
    for rank in 0..T::SPLIT_K {
        let strip = cluster::map_shared(smem, rank).offset(warp::lane_id() * VECTOR as u32);
        unroll!(i in 0..8, {
            // SAFETY: the caller's promise.
            let values = unsafe { strip.get_v4(i as u32 * WARP_VECTOR) };
            for j in 0..VECTOR {
                sums[i * VECTOR + j] += values[j];
            }
        });
    }
    sums
}

/// Writes a thread's part of a strip to `smem`.
///
/// # Safety
/// 1. The whole warp calls this; `smem` is the strip's, and nobody else accesses it.
#[inline(always)]
unsafe fn lay_down(smem: Shared<f32>, sums: &[f32; STRIP_REGS]) {
    let smem = smem.offset(warp::lane_id() * VECTOR as u32);
    unroll!(i in 0..8, {
        let at = i * VECTOR;
        let values = [sums[at], sums[at + 1], sums[at + 2], sums[at + 3]];
        // SAFETY: the caller's promise.
        unsafe { smem.set_vec(i as u32 * WARP_VECTOR, values) };
    });
}
