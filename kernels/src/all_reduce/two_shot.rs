//! Two-shot all-reduce, in place: each rank adds its part of the tensors, and stores the sum in all
//! of them.
//!
//! Shapes    x `[num_rows, width]` of 16 bits, contiguous, on each rank; all of them are accessed.
//! Launch    grid `(vectors of a part / NUM_THREADS, at most MAX_BLOCKS, 1, 1)`, block
//!           `(NUM_THREADS, 1, 1)`.
//! Numerics  see [`super`].
//! Bound     NVLink: `(WORLD - 1) / WORLD * 2 * num_rows * width` bytes are read from peers, and as
//!           many are stored there.
//! Source    reduce-scatter and all-gather in one pass. A rank pulls the vectors of its part, as
//!           only it knows when it needs them, and pushes each sum at once: nothing is staged, and
//!           ranks meet only twice, before the first load and after the last store. Both directions
//!           of NVLink are busy all the time. A push into a staging buffer would need a third
//!           barrier and another pass over memory.

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::channel::sum_vectors;
use crate::all_reduce::rank_barrier::RankBarriers;
use crate::element::{Half, VEC_ELEMS};
use cuda_std::{prelude::*, unroll};
use half::{bf16, f16};

/// Threads of a block.
pub(crate) const NUM_THREADS: u32 = 256;

/// Vectors that a thread loads at once, those of all ranks together.
const LOADS: usize = 8;

/// A part of the tensors a rank.
///
/// # Safety
/// 1. `num_rows` is one element, the same on all ranks; the first `WORLD` of the `x`, those of the
///    ranks, hold that many rows of `width` elements, less than 2^32 in all, 16-byte aligned.
/// 2. `rank` is under `WORLD`. `epochs` and the first `WORLD` of the `flags` are those of the ranks'
///    workspaces.
/// 3. All ranks make the same launches that use these workspaces, in the same order; nothing else
///    accesses the `x` between the launches before this one and those after it.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        all_reduce_two_shot_{E}_w2 = <E, 2>,
        all_reduce_two_shot_{E}_w4 = <E, 4>,
        all_reduce_two_shot_{E}_w8 = <E, 8>
    )
)]
pub unsafe fn all_reduce_two_shot<E: Half, const WORLD: usize>(
    rank: u32,
    num_rows: Global<u32>,
    width: u32,
    epochs: GlobalMut<u32>,
    x: [GlobalMut<E>; MAX_WORLD],
    flags: [GlobalMut<u32>; MAX_WORLD],
) {
    let x: [GlobalMut<E>; WORLD] = core::array::from_fn(|p| x[p]);
    let (block, thread) = (thread::block_idx_x(), thread::thread_idx_x());
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let len = num_rows * width;
    let part = len.div_ceil(VEC_ELEMS).div_ceil(WORLD as u32);
    // The same on all ranks, so that blocks without work are in no epoch of any.
    if block * NUM_THREADS >= part {
        return;
    }
    // SAFETY: `block` is under the number of blocks; all ranks have as many with work.
    let barriers = unsafe { RankBarriers::<WORLD>::begin(rank, epochs, &flags) };

    // The rank's vectors; one of the ranks has the last vector, of which there may be a part only.
    let (start, end) = (part * rank, part * (rank + 1));
    let num_whole = len / VEC_ELEMS;
    let end_whole = end.min(num_whole);
    let step = thread::grid_dim_x() * NUM_THREADS;
    let mut first = start + block * NUM_THREADS + thread;
    while first < end_whole {
        let vector_of = |i: usize| first + (i / WORLD) as u32 * step;
        let mut loaded = [[0; 4]; LOADS];
        unroll!(i in 0..LOADS, {
            let (x, vector) = (x[i % WORLD].as_global().cast::<u32>(), vector_of(i));
            // SAFETY: the vector is one of the rank's, which alone accesses it now.
            loaded[i] = unsafe { x.get_vec_if(4 * vector as usize, vector < end_whole) };
        });
        unroll!(i in 0..LOADS, {
            let vector = vector_of(i);
            if i.is_multiple_of(WORLD) && vector < end_whole {
                let sum = sum_vectors::<E, WORLD>(core::array::from_fn(|p| loaded[i + p]));
                unroll!(p in 0..WORLD, {
                    // SAFETY: as above.
                    unsafe { E::store_vector(x[p], (vector * VEC_ELEMS) as usize, sum) };
                });
            }
        });
        first += (LOADS / WORLD) as u32 * step;
    }
    // The elements after the last whole vector, one a thread.
    let element = num_whole * VEC_ELEMS + thread;
    if (start..end).contains(&num_whole) && block == 0 && element < len {
        let mut sum = 0.0;
        unroll!(p in 0..WORLD, {
            // SAFETY: the element is one of the rank's, as above.
            let value = unsafe { x[p].get(element as usize) }.to_f32();
            sum = if p == 0 { value } else { sum + value };
        });
        unroll!(p in 0..WORLD, {
            // SAFETY: as above.
            unsafe { x[p].set(element as usize, E::from_f32(sum)) };
        });
    }

    // SAFETY: as above.
    unsafe { barriers.end() };
}
