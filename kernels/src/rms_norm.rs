//! RMSNorm over groups: `out[t, g, i] = x[t, g, i] * rsqrt(mean_i(x[t, g, i]^2) + eps) * weight[i]`.
//!
//! Shapes    x, out `[num_rows, num_groups * group_size]` with row strides, out may be x; weight `[group_size]`; f32.
//! Launch    grid `(max_rows * num_groups / groups a block, 1, 1)`, block `(NUM_THREADS, 1, 1)`; a warp a group up to
//!           `MAX_WARP_GROUP` elements, else the block a group.
//! Numerics  f32, the sum of squares as a tree over threads.
//! Bound     memory: `8 * num_rows * num_groups * group_size` bytes.
//! Source    arXiv:1910.07467.

use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// Warps of a block.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// The sum of `value` over the block, in every thread.
fn block_reduce_add(value: f32) -> f32 {
    let sum = warp::reduce_add(value);
    // SAFETY: one element a warp, written before the barrier and only read behind it.
    unsafe {
        let partials = shared_array![f32; NUM_WARPS as usize];
        if warp::lane_id() == 0 {
            partials.set(warp::warp_idx(), sum);
        }
        thread::sync_threads();
        (0..NUM_WARPS).fold(0.0, |total, i| total + partials.get(i))
    }
}

/// `PER_WARP`: each warp takes a group; else each block takes one.
///
/// # Safety
/// 1. `num_rows` is one element; `x` and `out` hold that many rows of `num_groups * group_size` elements at their strides;
///    `weight` holds `group_size` elements.
/// 2. `out` is `x`, or they do not overlap.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    instances(rms_norm_f32_warp = <true>, rms_norm_f32_block = <false>)
)]
pub unsafe fn rms_norm_f32<const PER_WARP: bool>(
    num_rows: Global<u32>,
    num_groups: u32,
    group_size: u32,
    eps: f32,
    x: Global<f32>,
    x_stride: u32,
    weight: Global<f32>,
    out: GlobalMut<f32>,
    out_stride: u32,
) {
    let (group, first, step) = if PER_WARP {
        let group = thread::block_idx_x() * NUM_WARPS + warp::warp_idx();
        (group, warp::lane_id(), warp::WARP_SIZE)
    } else {
        (thread::block_idx_x(), thread::thread_idx_x(), NUM_THREADS)
    };
    // SAFETY: `row` and the columns are inside, by the check here and the loops' bounds; no groups make no launch.
    unsafe {
        core::hint::assert_unchecked(num_groups > 0);
        let row = group / num_groups;
        let column = (group % num_groups) * group_size;
        if row >= num_rows.get(0) {
            return;
        }
        let x = x.add(row as usize * x_stride as usize + column as usize);
        let out = out.add(row as usize * out_stride as usize + column as usize);

        let mut sum = 0.0;
        let mut i = first;
        while i < group_size {
            let value = x.get(i as usize);
            sum = math::fma(value, value, sum);
            i += step;
        }
        let sum = if PER_WARP { warp::reduce_add(sum) } else { block_reduce_add(sum) };
        let scale = math::rsqrt_approx(sum / group_size as f32 + eps);

        let mut i = first;
        while i < group_size {
            out.set(i as usize, x.get(i as usize) * scale * weight.get(i as usize));
            i += step;
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::RmsNorm;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::rms_norm_f32::Instance;
    use super::{NUM_THREADS, NUM_WARPS, rms_norm_f32};
    use crate::Rows;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Largest group that a warp takes alone: 32 elements a lane.
    const MAX_WARP_GROUP: usize = 1024;

    /// RMSNorm over groups of columns: one group for a norm of the hidden state, one a head for QK-norm.
    #[derive(Clone, Copy, Debug)]
    pub struct RmsNorm {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Groups of a row.
        pub num_groups: usize,
        /// Columns of a group.
        pub group_size: usize,
        /// Added to the mean of squares.
        pub eps: f32,
    }

    impl RmsNorm {
        /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no columns.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<f32>,
            weight: DevicePtr<f32>,
            out: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let (instance, groups_per_block) = if self.group_size <= MAX_WARP_GROUP {
                (Instance::rms_norm_f32_warp, NUM_WARPS as usize)
            } else {
                (Instance::rms_norm_f32_block, 1)
            };
            let blocks = self.max_rows.saturating_mul(self.num_groups).div_ceil(groups_per_block);
            let (num_groups, group_size) =
                (arg_u32("num_groups", self.num_groups)?, arg_u32("group_size", self.group_size)?);
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, 0)?;
            Ok(geometry.filter(|_| group_size > 0).map(|geometry| {
                rms_norm_f32::launch(
                    instance, geometry, num_rows, num_groups, group_size, self.eps, x.ptr,
                    x_stride, weight, out.ptr, out_stride,
                )
            }))
        }
    }
}
