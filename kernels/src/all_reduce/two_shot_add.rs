//! Two-shot all-reduce and residual addition: `residual += sum of x`, of which each rank has its rows,
//! and then all ranks have all.
//!
//! Shapes    x `[num_rows, width]` of 16 bits, residual f32 likewise, contiguous, on each rank; all of
//!           them are accessed; width is a multiple of 8.
//! Launch    grid `(vectors of a rank / NUM_THREADS, at most MAX_BLOCKS, 1, 1)`, block
//!           `(NUM_THREADS, 1, 1)`.
//! Numerics  as [`norm`](super::norm).
//! Bound     NVLink: of `num_rows * width` elements, `(WORLD - 1) / WORLD` are read from peers, and as
//!           many stored there in f32.
//! Source    [`two_shot`](super::two_shot), with the addition between the two shots: it ends a chain
//!           of [`two_shot_norm`](super::two_shot_norm), which leaves a rank its own rows.

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::channel::{select, sum_vectors};
use crate::all_reduce::rank_barrier::RankBarriers;
use crate::all_reduce::two_shot::NUM_THREADS;
use crate::all_reduce::two_shot_norm::rows_of;
use crate::element::{Half, Number, VEC_ELEMS};
use cuda_std::{prelude::*, unroll};
use half::{bf16, f16};

/// The vectors of a rank's rows, one after the other.
///
/// # Safety
/// 1. `num_rows` is one element, the same on all ranks; the first `WORLD` of the `x` and of the
///    `residual` hold that many rows of `width` elements, less than 2^32 in all, 16-byte aligned;
///    `width` is a multiple of 8.
/// 2. `rank` is under `WORLD`. `epochs` and the first `WORLD` of the `flags` are those of the ranks'
///    workspaces.
/// 3. All ranks make the same launches that use these workspaces, in the same order; nothing else
///    accesses the tensors between the launches before this one and those after it.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        all_reduce_two_shot_add_{E}_w2 = <E, 2>,
        all_reduce_two_shot_add_{E}_w4 = <E, 4>,
        all_reduce_two_shot_add_{E}_w8 = <E, 8>
    )
)]
pub unsafe fn all_reduce_two_shot_add<E: Half, const WORLD: usize>(
    rank: u32,
    num_rows: Global<u32>,
    width: u32,
    x: [GlobalMut<E>; MAX_WORLD],
    residual: [GlobalMut<f32>; MAX_WORLD],
    epochs: GlobalMut<u32>,
    flags: [GlobalMut<u32>; MAX_WORLD],
) {
    let (block, thread) = (thread::block_idx_x(), thread::thread_idx_x());
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let row_vectors = width / VEC_ELEMS;
    // The same on all ranks, so that blocks without work are in no epoch of any.
    if block * NUM_THREADS >= num_rows.div_ceil(WORLD as u32) * row_vectors {
        return;
    }
    // SAFETY: `block` is under the number of blocks; all ranks have as many with work.
    let barriers = unsafe { RankBarriers::<WORLD>::begin(rank, epochs, &flags) };

    let rows = rows_of(rank, num_rows, WORLD as u32);
    let (mut vector, end) =
        (rows.start * row_vectors + block * NUM_THREADS + thread, rows.end * row_vectors);
    while vector < end {
        let first = (vector * VEC_ELEMS) as usize;
        // SAFETY: the vector is one of the rank's, which alone accesses it now on all ranks.
        unsafe {
            let vectors =
                core::array::from_fn(|p| x[p].as_global().cast::<u32>().get_vec(first / 2));
            let mut values = f32::load_vector(select(&residual, rank as usize).as_global(), first);
            let sum = sum_vectors::<E, WORLD>(vectors);
            unroll!(element in 0..8, {
                values[element] += E::from_f32(sum[element]).to_f32();
            });
            unroll!(p in 0..WORLD, {
                f32::store_vector(residual[p], first, values);
            });
        }
        vector += thread::grid_dim_x() * NUM_THREADS;
    }

    // SAFETY: as above.
    unsafe { barriers.end() };
}
