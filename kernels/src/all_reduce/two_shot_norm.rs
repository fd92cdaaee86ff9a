//! Two-shot all-reduce, residual addition, and RMSNorm, of which each rank does all for a part of
//! the rows: `residual += sum of x`, `out = rms_norm(residual)`.
//!
//! Shapes    x, out `[num_rows, hidden_size]` of 16 bits, residual f32 likewise, contiguous; weight
//!           `[hidden_size]` f32; hidden_size is a multiple of 8. The x and the out of all ranks are
//!           accessed.
//! Launch    grid `(rows of a rank, at most MAX_BLOCKS, 1, 1)`, block of up to `MAX_THREADS`: a block
//!           has rows, a thread up to `VECTORS` of the vectors of each.
//! Numerics  as [`norm`](super::norm).
//! Bound     NVLink, as [`two_shot`](super::two_shot).
//! Source    that kernel, with the addition and the norm between the two shots: a rank computes them
//!           for its rows alone, and keeps the residual of no others, until
//!           [`two_shot_add`](super::two_shot_add). Sequence parallelism (arXiv:2205.05198) divides
//!           them likewise.

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::channel::sum_vectors;
use crate::all_reduce::norm::{MAX_HIDDEN_SIZE, MAX_SEGMENTS, load_f32, row_scale};
use crate::all_reduce::rank_barrier::RankBarriers;
use crate::element::{Half, Number, VEC_ELEMS};
use crate::rms_norm::{scaled, weighted};
use core::ops::Range;
use cuda_std::{prelude::*, unroll};
use half::{bf16, f16};

/// Threads of a block, at most.
pub(crate) const MAX_THREADS: u32 = 1024;

/// Vectors of a row that a thread has, at most.
pub(crate) const VECTORS: usize = 2;

const _: () = assert!(MAX_HIDDEN_SIZE == VECTORS * (MAX_THREADS * VEC_ELEMS) as usize);

/// The rows of rank `rank`: an equal part of `num_rows` for each of `world`, in order; the last ones
/// may have fewer.
#[inline(always)]
pub(super) fn rows_of(rank: u32, num_rows: u32, world: u32) -> Range<u32> {
    let part = num_rows.div_ceil(world);
    (part * rank).min(num_rows)..(part * (rank + 1)).min(num_rows)
}

/// Block `b` has rows `b, b + blocks, ..` of the rank's.
///
/// # Safety
/// 1. `num_rows` is one element, the same on all ranks; `residual`, and the first `WORLD` of the `x`
///    and of the `out`, hold that many rows of `hidden_size` elements, less than 2^32 in all,
///    `weight` holds one, all 16-byte aligned. The `out` are the `x`, or overlap nothing.
/// 2. `hidden_size` is a multiple of 8, and at most 8 `VECTORS` times the threads of a block, which
///    are a multiple of 64.
/// 3. `rank` is under `WORLD`. `epochs` and the first `WORLD` of the `flags` are those of the ranks'
///    workspaces.
/// 4. All ranks make the same launches that use these workspaces, in the same order; nothing else
///    accesses the `x` and the `out` between the launches before this one and those after it.
#[kernel(
    launch_bounds(MAX_THREADS, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        all_reduce_two_shot_norm_{E}_w2 = <E, 2>,
        all_reduce_two_shot_norm_{E}_w4 = <E, 4>,
        all_reduce_two_shot_norm_{E}_w8 = <E, 8>
    )
)]
pub unsafe fn all_reduce_two_shot_norm<E: Half, const WORLD: usize>(
    rank: u32,
    num_rows: Global<u32>,
    hidden_size: u32,
    eps: f32,
    x: [GlobalMut<E>; MAX_WORLD],
    residual: GlobalMut<f32>,
    weight: Global<f32>,
    out: [GlobalMut<E>; MAX_WORLD],
    epochs: GlobalMut<u32>,
    flags: [GlobalMut<u32>; MAX_WORLD],
) {
    let (block, thread) = (thread::block_idx_x(), thread::thread_idx_x());
    let num_threads = thread::block_dim_x();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // The same on all ranks, so that blocks without work are in no epoch of any.
    if block >= num_rows.div_ceil(WORLD as u32) {
        return;
    }
    // SAFETY: `block` is under the number of blocks; all ranks have as many with work.
    let barriers = unsafe { RankBarriers::<WORLD>::begin(rank, epochs, &flags) };

    let vector_of = |i: usize| i as u32 * num_threads + thread;
    let is_inside = |i: usize| vector_of(i) < hidden_size / VEC_ELEMS;
    let at = |i: usize| (vector_of(i) * VEC_ELEMS) as usize;
    // SAFETY: uninitialised elements are written before they are read.
    let square_sums = unsafe { shared_array![f32; MAX_SEGMENTS] };
    let rows = rows_of(rank, num_rows, WORLD as u32);
    let mut row = rows.start + block;
    while row < rows.end {
        let first = row as usize * hidden_size as usize;
        // SAFETY: the row is one of the rank's, which alone accesses it now on all ranks; vectors are
        // inside by the checks.
        unsafe {
            // 1. Add the ranks' rows to the residual, which stays here.
            let residual = residual.add(first);
            let mut values = [[0.0; VEC_ELEMS as usize]; VECTORS];
            unroll!(i in 0..VECTORS, {
                values[i] = load_f32(residual.as_global(), at(i), is_inside(i));
                let vectors = core::array::from_fn(|p| {
                    let x = x[p].as_global().cast::<u32>();
                    x.get_vec_if((first + at(i)) / 2, is_inside(i))
                });
                let sum = sum_vectors::<E, WORLD>(vectors);
                unroll!(element in 0..8, {
                    values[i][element] += E::from_f32(sum[element]).to_f32();
                });
            });
            let mut weights = [[0.0; VEC_ELEMS as usize]; VECTORS];
            unroll!(i in 0..VECTORS, {
                if is_inside(i) {
                    f32::store_vector(residual, at(i), values[i]);
                }
                weights[i] = load_f32(weight, at(i), is_inside(i));
            });

            // 2. The norm. All threads have read the sums of the row before.
            thread::sync_threads();
            let scale = row_scale(square_sums, &values, hidden_size, eps);

            // 3. To all ranks.
            unroll!(i in 0..VECTORS, {
                if is_inside(i) {
                    let normed = scaled(weighted(values[i], weights[i]), scale);
                    unroll!(p in 0..WORLD, {
                        E::store_vector(out[p], first + at(i), normed);
                    });
                }
            });
        }
        row += thread::grid_dim_x();
    }

    // SAFETY: as above.
    unsafe { barriers.end() };
}
