//! One-shot all-reduce, residual addition, and RMSNorm: `residual += sum of x`, `out =
//! rms_norm(residual)`.
//!
//! Shapes    x, out `[num_rows, hidden_size]` of 16 bits, residual f32 likewise, contiguous; weight
//!           `[hidden_size]` f32; out may be x; hidden_size is a multiple of 8.
//! Launch    grid `(max_rows, 1, 1)`, block of up to `MAX_THREADS`: a block has a row, a thread up to
//!           `VECTORS` of its vectors.
//! Numerics  see [`super`]; the sum is rounded before it is added to the residual, in f32, so that
//!           the bits are those of the three operations apart. The norm's are those of
//!           [`rms_norm`](crate::rms_norm).
//! Bound     latency, as [`one_shot`](super::one_shot).

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::channel::Channel;
use crate::element::{Half, Number, VEC_ELEMS};
use crate::rms_norm::{
    SEGMENT_ELEMS, Vector, scale, scaled, segment_square_sum, sum_segments, weighted,
};
use cuda_std::{prelude::*, unroll};
use half::{bf16, f16};

/// Threads of a block, at most.
pub(crate) const MAX_THREADS: u32 = 512;

/// Segments of a row, at most.
pub(super) const MAX_SEGMENTS: usize = 64;

/// Largest row.
pub(crate) const MAX_HIDDEN_SIZE: usize = MAX_SEGMENTS * SEGMENT_ELEMS as usize;

const _: () = assert!(MAX_HIDDEN_SIZE == 4 * (MAX_THREADS * VEC_ELEMS) as usize);

/// Elements `index .. index + 8` if `condition` holds, else zeros, without a branch.
///
/// # Safety
/// 1. If it holds, the elements are inside the view, 16-byte aligned, and no other thread writes
///    them.
#[inline(always)]
#[track_caller]
pub(super) unsafe fn load_f32(view: Global<f32>, index: usize, condition: bool) -> Vector {
    // SAFETY: the caller's promise.
    let ([a, b, c, d], [e, f, g, h]) =
        unsafe { (view.get_vec_if(index, condition), view.get_vec_if(index + 4, condition)) };
    [a, b, c, d, e, f, g, h]
}

/// The scale of the block's row, in all of its threads. A warp's vectors are a segment: thread `t` has
/// vectors `t, t + threads, ..`, and zeros past the row's end.
///
/// # Safety
/// 1. All threads of the block call this, whose warps times `VECTORS` are a multiple of 4;
///    `square_sums`, the same for all, has as many elements, which nothing else accesses.
#[inline(always)]
#[track_caller]
pub(super) unsafe fn row_scale<const VECTORS: usize>(
    square_sums: Shared<f32>,
    values: &[Vector; VECTORS],
    hidden_size: u32,
    eps: f32,
) -> f32 {
    let num_warps = thread::block_dim_x() / warp::WARP_SIZE;
    // All shuffles come before the first branch: after one, the compiler may give each side its own.
    let mut segment_sums = [0.0; VECTORS];
    unroll!(i in 0..VECTORS, {
        segment_sums[i] = segment_square_sum(&values[i]);
    });
    // SAFETY: the caller's promise.
    unsafe {
        if warp::lane_id() == 0 {
            unroll!(i in 0..VECTORS, {
                square_sums.set(i as u32 * num_warps + warp::warp_idx(), segment_sums[i]);
            });
        }
        thread::sync_threads();
        let sum = sum_segments(square_sums, VECTORS as u32 * num_warps);
        scale(sum, 1.0 / hidden_size as f32, eps)
    }
}

/// A row a block. A thread waits for the vectors of `GROUP` ranks at a time, as many as there are
/// registers for.
///
/// # Safety
/// 1. `num_rows` is one element, the same on all ranks; `x`, `residual` and `out` hold that many
///    rows of `hidden_size` elements, `weight` holds one, all 16-byte aligned; `out` is `x` or
///    overlaps nothing.
/// 2. `hidden_size` is a multiple of 8, and at most 8 `VECTORS` times the threads of a block.
/// 3. `rank` is under `WORLD`. `epochs` and the first `WORLD` of the `lines` are those of the ranks'
///    workspaces, for as many channels as there are blocks, of `hidden_size / 8` vectors.
/// 4. All ranks make the same launches that use these workspaces, in the same order.
#[kernel(
    launch_bounds(MAX_THREADS, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        all_reduce_norm_{E}_w2_v1 = <E, 2, 1, 2>,
        all_reduce_norm_{E}_w2_v2 = <E, 2, 2, 2>,
        all_reduce_norm_{E}_w2_v4 = <E, 2, 4, 2>,
        all_reduce_norm_{E}_w4_v1 = <E, 4, 1, 4>,
        all_reduce_norm_{E}_w4_v2 = <E, 4, 2, 4>,
        all_reduce_norm_{E}_w4_v4 = <E, 4, 4, 4>,
        all_reduce_norm_{E}_w8_v1 = <E, 8, 1, 8>,
        all_reduce_norm_{E}_w8_v2 = <E, 8, 2, 4>,
        all_reduce_norm_{E}_w8_v4 = <E, 8, 4, 4>
    )
)]
pub unsafe fn all_reduce_norm<
    E: Half,
    const WORLD: usize,
    const VECTORS: usize,
    const GROUP: usize,
>(
    rank: u32,
    num_rows: Global<u32>,
    hidden_size: u32,
    eps: f32,
    x: Global<E>,
    residual: GlobalMut<f32>,
    weight: Global<f32>,
    out: GlobalMut<E>,
    epochs: GlobalMut<u32>,
    lines: [GlobalMut<u64>; MAX_WORLD],
) {
    let lines = core::array::from_fn(|p| lines[p]);
    let (row, thread) = (thread::block_idx_x(), thread::thread_idx_x());
    let num_threads = thread::block_dim_x();
    let num_vectors = hidden_size / VEC_ELEMS;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if row >= num_rows {
        return;
    }
    let vector_of = |i: usize| (i as u32 * num_threads + thread) as usize;
    let is_inside = |i: usize| vector_of(i) < num_vectors as usize;
    let at = |i: usize| vector_of(i) * VEC_ELEMS as usize;
    // SAFETY: the block has a channel for its row; vectors are inside the row by the checks.
    unsafe {
        let first = row as usize * hidden_size as usize;
        let (x, residual, out) = (x.add(first), residual.add(first), out.add(first));

        // 1. Send the row. No load waits for another one.
        let epoch = epochs.get(row as usize);
        let load_x = |i: usize| x.cast::<u32>().get_vec_if(at(i) / 2, is_inside(i));
        let mut own = [[0; 4]; VECTORS];
        unroll!(i in 0..VECTORS, {
            own[i] = load_x(i);
        });
        let channel = Channel::<WORLD>::after(epoch, (row, rank), lines, num_vectors as usize);
        unroll!(i in 0..VECTORS, {
            if is_inside(i) {
                channel.send(vector_of(i), own[i]);
            }
        });

        // 2. Add the ranks' rows to the residual. What else is needed is loaded while they are on
        // their way, as far as there are registers.
        let is_early = const { VECTORS * WORLD <= 8 };
        let mut values = [[0.0; VEC_ELEMS as usize]; VECTORS];
        let mut weights = [[0.0; VEC_ELEMS as usize]; VECTORS];
        unroll!(i in 0..VECTORS, {
            values[i] = load_f32(residual.as_global(), at(i), is_inside(i));
            if is_early {
                weights[i] = load_f32(weight, at(i), is_inside(i));
            }
            if is_inside(i) {
                let own = if is_early { own[i] } else { load_x(i) };
                let sum = channel.receive_sum::<E, GROUP>(vector_of(i), own);
                unroll!(element in 0..8, {
                    values[i][element] += E::from_f32(sum[element]).to_f32();
                });
                f32::store_vector(residual, at(i), values[i]);
            }
        });

        // 3. The norm.
        if !is_early {
            unroll!(i in 0..VECTORS, {
                weights[i] = load_f32(weight, at(i), is_inside(i));
            });
        }
        let square_sums = shared_array![f32; MAX_SEGMENTS];
        let scale = row_scale(square_sums, &values, hidden_size, eps);
        // All threads have read the epoch before they met for the scale.
        if thread == 0 {
            epochs.set(row as usize, channel.epoch());
        }
        unroll!(i in 0..VECTORS, {
            if is_inside(i) {
                E::store_vector(out, at(i), scaled(weighted(values[i], weights[i]), scale));
            }
        });
    }
}
