//! RMSNorm over groups: `out[t, g, i] = x[t, g, i] * rsqrt(mean_i(x[t, g, i]^2) + eps) *
//! weight[i]`.
//!
//! Shapes    x, out `[num_rows, num_groups * group_size]` with row strides, out may be x; weight
//!           `[group_size]` f32; x and out are f32 or of 16 bits, out no wider.
//! Launch    grid `(max_rows * num_groups / groups a block, 1, 1)`, block `(NUM_THREADS, 1, 1)`; a
//!           warp a group up to `MAX_WARP_GROUP` elements, else the block a group.
//! Numerics  f32 inside, the sum of squares as a tree over threads; one rounding at the store.
//! Bound     memory: an element of x and one of out for each column.
//! Source    arXiv:1910.07467.

use crate::element::{Columns, Number, VECTOR};
use cuda_std::prelude::*;
use half::{bf16, f16};

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

/// From elements `X` to `Y`. `PER_WARP`: each warp takes a group; else each block takes one.
///
/// # Safety
/// 1. `num_rows` is one element; `x` and `out` hold that many rows of `num_groups * group_size`
///    elements `X` and `Y` at their strides; `weight` holds `group_size` elements.
/// 2. `out` is `x`, or they do not overlap.
/// 3. If `aligned` is not 0, each group is 16-byte aligned in `x` and in `out`, and so is `weight`.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        rms_norm_f32_warp = <f32, f32, true>,
        rms_norm_f32_block = <f32, f32, false>,
        rms_norm_f16_warp = <f16, f16, true>,
        rms_norm_f16_block = <f16, f16, false>,
        rms_norm_bf16_warp = <bf16, bf16, true>,
        rms_norm_bf16_block = <bf16, bf16, false>,
        rms_norm_f32_f16_warp = <f32, f16, true>,
        rms_norm_f32_f16_block = <f32, f16, false>,
        rms_norm_f32_bf16_warp = <f32, bf16, true>,
        rms_norm_f32_bf16_block = <f32, bf16, false>
    )
)]
pub unsafe fn rms_norm<X: Number, Y: Number, const PER_WARP: bool>(
    num_rows: Global<u32>,
    num_groups: u32,
    group_size: u32,
    eps: f32,
    x: Global<()>,
    x_stride: u32,
    weight: Global<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    aligned: u32,
) {
    let (group, first, step) = if PER_WARP {
        let group = thread::block_idx_x() * NUM_WARPS + warp::warp_idx();
        (group, warp::lane_id() * VECTOR, warp::WARP_SIZE * VECTOR)
    } else {
        (thread::block_idx_x(), thread::thread_idx_x() * VECTOR, NUM_THREADS * VECTOR)
    };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` and the columns are inside, by the check here and the loops' bounds; no groups
    // make no launch.
    unsafe {
        core::hint::assert_unchecked(num_groups > 0);
        let row = group / num_groups;
        let column = (group % num_groups) * group_size;
        if row >= num_rows.get(0) {
            return;
        }
        let x = x.cast::<X>().add(row as usize * x_stride as usize + column as usize);
        let out = out.cast::<Y>().add(row as usize * out_stride as usize + column as usize);
        let columns = |first| Columns::new(first, group_size, aligned != 0);

        let mut sum = 0.0;
        let mut i = first;
        while i < group_size {
            let values = columns(i).load(x);
            for j in 0..VECTOR as usize {
                sum = math::fma(values[j], values[j], sum);
            }
            i += step;
        }
        let sum = if PER_WARP { warp::reduce_add(sum) } else { block_reduce_add(sum) };
        let scale = math::rsqrt_approx(sum / group_size as f32 + eps);

        let mut i = first;
        while i < group_size {
            let (mut values, weights) = (columns(i).load(x), columns(i).load(weight));
            for j in 0..VECTOR as usize {
                values[j] = values[j] * scale * weights[j];
            }
            columns(i).store(out, values);
            i += step;
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::RmsNorm;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::rms_norm::Instance;
    use super::{NUM_THREADS, NUM_WARPS, rms_norm};
    use crate::Rows;
    use crate::element::{Dtype, NarrowedFrom, Narrowing, Number, VECTOR};
    use crate::operand::is_aligned;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Largest group that a warp takes alone: 32 elements a lane.
    const MAX_WARP_GROUP: usize = 1024;

    /// RMSNorm over groups of columns: one group for a norm of the hidden state, one a head for
    /// QK-norm.
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
        /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows
        /// or no columns. `out` may be `x`.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch<X: Number, Y: NarrowedFrom<X>>(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<X>,
            weight: DevicePtr<f32>,
            out: Rows<Y>,
        ) -> Result<Option<Launch>, LaunchError> {
            let per_warp = self.group_size <= MAX_WARP_GROUP;
            let groups_per_block = if per_warp { NUM_WARPS as usize } else { 1 };
            let blocks = self.max_rows.saturating_mul(self.num_groups).div_ceil(groups_per_block);
            let (num_groups, group_size) =
                (arg_u32("num_groups", self.num_groups)?, arg_u32("group_size", self.group_size)?);
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let aligned = (num_groups == 1 || group_size.is_multiple_of(VECTOR))
                && x.is_aligned()
                && out.is_aligned()
                && is_aligned(weight);
            let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, 0)?;
            Ok(geometry.filter(|_| group_size > 0).map(|geometry| {
                rms_norm::launch(
                    instance(Y::NARROWING, per_warp),
                    geometry,
                    num_rows,
                    num_groups,
                    group_size,
                    self.eps,
                    x.untyped_ptr(),
                    x_stride,
                    weight,
                    out.untyped_ptr(),
                    out_stride,
                    aligned.into(),
                )
            }))
        }
    }

    fn instance(narrowing: Narrowing, per_warp: bool) -> Instance {
        let [warp, block] = match narrowing {
            Narrowing::None(Dtype::F32) => {
                [Instance::rms_norm_f32_warp, Instance::rms_norm_f32_block]
            }
            Narrowing::None(Dtype::F16) => {
                [Instance::rms_norm_f16_warp, Instance::rms_norm_f16_block]
            }
            Narrowing::None(Dtype::Bf16) => {
                [Instance::rms_norm_bf16_warp, Instance::rms_norm_bf16_block]
            }
            Narrowing::F32ToF16 => {
                [Instance::rms_norm_f32_f16_warp, Instance::rms_norm_f32_f16_block]
            }
            Narrowing::F32ToBf16 => {
                [Instance::rms_norm_f32_bf16_warp, Instance::rms_norm_f32_bf16_block]
            }
        };
        if per_warp { warp } else { block }
    }
}
