//! Sum of each block's elements: `out[b] = sum of x[i]`, i in `[256 * b, 256 * (b + 1))`.
//!
//! Shapes    x `[len]`; out `[ceil(len / NUM_THREADS)]`; f32.
//! Launch    grid `(ceil(len / NUM_THREADS), 1, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32, added as a tree: over the lanes of a warp, then over the warps.
//! Bound     memory: `4 * len` bytes.

use cuda_std::prelude::*;

/// Threads of a block, and elements that it adds.
pub const NUM_THREADS: u32 = 256;

const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

// The first warp adds one partial sum a lane.
const _: () = assert!(NUM_WARPS <= warp::WARP_SIZE);

/// One thread an element.
///
/// # Safety
/// 1. `x` holds `len` elements, `out` one element a block.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn block_sum_f32(len: u32, x: Global<f32>, out: GlobalMut<f32>) {
    let (i, lane_id, warp_idx) = (thread::index_1d(), warp::lane_id(), warp::warp_idx());
    // SAFETY: `i` is below `len` where `x` is read; `partial` has an element for each warp.
    unsafe {
        let partial = shared_array![f32; NUM_WARPS as usize];
        // A thread past the end adds zero: every lane takes part in a reduction.
        let value = if i < len { x.get(i as usize) } else { 0.0 };
        let warp_sum = warp::reduce_add(value);
        if lane_id == 0 {
            partial.set(warp_idx, warp_sum);
        }
        thread::sync_threads();
        if warp_idx == 0 {
            let warp_sum = if lane_id < NUM_WARPS { partial.get(lane_id) } else { 0.0 };
            let block_sum = warp::reduce_add(warp_sum);
            if lane_id == 0 {
                out.set(thread::block_idx_x() as usize, block_sum);
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::*;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Blocks for `len` elements: as many sums are written.
    pub const fn num_blocks(len: usize) -> usize {
        len.div_ceil(NUM_THREADS as usize)
    }

    /// The launch for `len` elements; `None` if there are none.
    ///
    /// # Errors
    /// [`LaunchError`] if `len` is 2^32 or more.
    pub fn launch(
        len: usize,
        x: DevicePtr<f32>,
        out: DevicePtr<f32>,
    ) -> Result<Option<Launch>, LaunchError> {
        let len_arg = arg_u32("len", len)?;
        let geometry = Geometry::new([num_blocks(len), 1, 1], NUM_THREADS as usize, 0)?;
        Ok(geometry.map(|geometry| block_sum_f32::Args { len: len_arg, x, out }.launch(geometry)))
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{launch, num_blocks};
