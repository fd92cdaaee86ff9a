//! RMSNorm over groups: `out[t, g, i] = x[t, g, i] * weight[i] * rsqrt(mean_i(x[t, g, i]^2) +
//! eps)`, or what is there plus that.
//!
//! Shapes    x, out `[num_rows, num_groups * group_size]` with row strides, out may be x; weight
//!           `[group_size]` f32; x and out are f32 or of 16 bits, out no wider.
//! Launch    grid `(max_rows * num_groups / groups a block, 1, 1)`, block `(NUM_THREADS, 1, 1)`;
//!           one warp a group of up to `MAX_WARP_GROUP` elements, else one block a group.
//! Numerics  f32 inside. Squares are summed as a tree within a segment of 256 columns, and segments
//!           in order, whichever warp computes them; one rounding at the store.
//! Bound     memory: an element of x and one of out for each column.
//! Source    arXiv:1910.07467.

use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// Warps of a block.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// The columns that a thread loads at once.
pub(crate) type Vector = [f32; VEC_ELEMS as usize];

/// Columns of a segment, which one load of a warp covers.
pub(crate) const SEGMENT_ELEMS: u32 = warp::WARP_SIZE * VEC_ELEMS;

/// Segments that a warp loads at once: of a group of its own, and of one that it shares.
const BATCH: usize = 4;
const SHARED_BATCH: usize = 2;

/// Segments of a group, rounded up to a multiple of four; those past its end add zeros.
pub(crate) const fn num_segments(group_size: u32) -> u32 {
    group_size.div_ceil(4 * SEGMENT_ELEMS) * 4
}

/// The sum of squares of a lane's columns.
#[inline(always)]
pub(crate) fn lane_square_sum(values: &Vector) -> f32 {
    let mut sum = 0.0;
    for &value in values {
        sum = math::fma(value, value, sum);
    }
    sum
}

/// The sum of squares of a segment, in every lane of the warp that holds its `values`.
#[inline(always)]
pub(crate) fn segment_square_sum(values: &Vector) -> f32 {
    warp::reduce_add(lane_square_sum(values))
}

/// [`segment_square_sum`] of several segments; 0 for those past the end of the group.
#[inline(always)]
fn batch_square_sums<const N: usize>(values: &[Vector; N], group_size: u32) -> [f32; N] {
    if group_size <= SEGMENT_ELEMS {
        let first = segment_square_sum(&values[0]);
        return core::array::from_fn(|i| if i == 0 { first } else { 0.0 });
    }
    // The shuffles of the segments interleave.
    values.each_ref().map(lane_square_sum).map(warp::reduce_add)
}

/// The sum of squares of a group: its `num_segments` segments, added in order.
///
/// # Safety
/// 1. `square_sums` holds those of [`num_segments`] segments, 16-byte aligned.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn sum_segments(square_sums: Shared<f32>, num_segments: u32) -> f32 {
    let mut total = 0.0;
    let mut segment = 0;
    while segment < num_segments {
        // SAFETY: the caller's promise.
        let segment_sums: [f32; 4] = unsafe { square_sums.get_vec(segment) };
        total = segment_sums.iter().fold(total, |total, sum| total + sum);
        segment += 4;
    }
    total
}

/// The scale of a group, `rsqrt(mean + eps)`, from its sum of squares and the `reciprocal` of its
/// size.
#[inline(always)]
pub(crate) fn scale(sum: f32, reciprocal: f32, eps: f32) -> f32 {
    math::rsqrt_approx(math::fma(sum, reciprocal, eps))
}

/// Elements times their weights.
#[inline(always)]
pub(crate) fn weighted(mut values: Vector, weights: Vector) -> Vector {
    for i in 0..VEC_ELEMS as usize {
        values[i] *= weights[i];
    }
    values
}

/// Weighted elements times the scale of their group.
#[inline(always)]
pub(crate) fn scaled(weighted: Vector, scale: f32) -> Vector {
    weighted.map(|value| value * scale)
}

/// From elements `X` to `Y`. If `PER_WARP`, each warp takes a group; else each block takes one. A warp
/// keeps its first `N` segments in registers.
///
/// # Safety
/// 1. `num_rows` is one element; `x` and `out` hold that many rows of `num_groups * group_size`
///    elements `X` and `Y` at their strides; `weight` holds `group_size` elements.
/// 2. `out` is `x`, or they do not overlap. If `adds` is not 0, `out` holds numbers.
/// 3. If `aligned` is not 0, each group is 16-byte aligned in `x` and in `out`, and so is `weight`.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        rms_norm_f32_warp = <f32, f32, true, BATCH>,
        rms_norm_f32_block = <f32, f32, false, SHARED_BATCH>,
        rms_norm_f16_warp = <f16, f16, true, BATCH>,
        rms_norm_f16_block = <f16, f16, false, SHARED_BATCH>,
        rms_norm_bf16_warp = <bf16, bf16, true, BATCH>,
        rms_norm_bf16_block = <bf16, bf16, false, SHARED_BATCH>,
        rms_norm_f32_f16_warp = <f32, f16, true, BATCH>,
        rms_norm_f32_f16_block = <f32, f16, false, SHARED_BATCH>,
        rms_norm_f32_bf16_warp = <f32, bf16, true, BATCH>,
        rms_norm_f32_bf16_block = <f32, bf16, false, SHARED_BATCH>
    )
)]
pub unsafe fn rms_norm<X: Number, Y: Number, const PER_WARP: bool, const N: usize>(
    num_rows: Global<u32>,
    num_groups: u32,
    group_size: u32,
    eps: f32,
    x: Global<()>,
    x_stride: u32,
    weight: Global<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    adds: u32,
    aligned: u32,
) {
    let (group, first_segment, step) = if PER_WARP {
        (thread::block_idx_x() * NUM_WARPS + warp::warp_idx(), 0, 1)
    } else {
        (thread::block_idx_x(), warp::warp_idx(), NUM_WARPS)
    };
    let columns = |segment: u32| {
        let first = segment * SEGMENT_ELEMS + warp::lane_id() * VEC_ELEMS;
        Columns::new(first, group_size, aligned != 0)
    };
    // SAFETY: step inputs and weights: no launch of the step writes them.
    let (num_rows, weights) = unsafe {
        (num_rows.get(0), load_batch::<N>(|i| columns(first_segment + i * step).load(weight)))
    };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` and the columns are inside, by the check here and the loops' bounds; there
    // is no launch without groups.
    unsafe {
        core::hint::assert_unchecked(num_groups > 0);
        let row = group / num_groups;
        let column = (group % num_groups) * group_size;
        if row >= num_rows {
            return;
        }
        let x = x.cast::<X>().add(row as usize * x_stride as usize + column as usize);
        let out = out.cast::<Y>().add(row as usize * out_stride as usize + column as usize);
        let num_segments = num_segments(group_size);
        let square_sums = dynamic_shared_mem::<f32>();
        // The first batch stays in registers; a larger group has others.
        let first_batch = load_batch::<N>(|i| columns(first_segment + i * step).load(x));
        let mut sum = 0.0;
        let mut add = |values: &[Vector; N], first: u32| {
            let segment_sums = batch_square_sums(values, group_size);
            if PER_WARP {
                sum = segment_sums.iter().fold(sum, |sum, square_sum| sum + square_sum);
            } else if warp::lane_id() == 0 {
                for i in 0..N {
                    let segment = first + i as u32 * step;
                    if segment < num_segments {
                        square_sums.set(segment, segment_sums[i]);
                    }
                }
            }
        };
        add(&first_batch, first_segment);
        let second_batch = first_segment + N as u32 * step;
        let mut segment = second_batch;
        while segment < num_segments {
            add(&load_batch::<N>(|i| columns(segment + i * step).load(x)), segment);
            segment += N as u32 * step;
        }
        if !PER_WARP {
            thread::sync_threads();
            sum = sum_segments(square_sums, num_segments);
        }
        let scale = scale(sum, 1.0 / group_size as f32, eps);

        let store = |segment: u32, values: Vector, weights: Vector| {
            let mut values = scaled(weighted(values, weights), scale);
            if adds != 0 {
                let terms = columns(segment).load(out.as_global());
                for i in 0..VEC_ELEMS as usize {
                    values[i] += terms[i];
                }
            }
            columns(segment).store(out, values);
        };
        unroll!(i in 0..4, {
            if i < N {
                store(first_segment + i as u32 * step, first_batch[i], weights[i]);
            }
        });
        let mut segment = second_batch;
        while segment * SEGMENT_ELEMS < group_size {
            store(segment, columns(segment).load(x), columns(segment).load(weight));
            segment += step;
        }
    }
}

/// The vectors of a batch, whose loads are in flight together.
#[inline(always)]
fn load_batch<const N: usize>(load: impl Fn(u32) -> Vector) -> [Vector; N] {
    let mut values = [[0.0; VEC_ELEMS as usize]; N];
    unroll!(i in 0..4, {
        if i < N {
            values[i] = load(i as u32);
        }
    });
    values
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::RmsNorm;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::rms_norm::Instance;
    use super::{BATCH, NUM_THREADS, NUM_WARPS, SEGMENT_ELEMS, num_segments, rms_norm};
    use crate::Rows;
    use crate::element::{NarrowedFrom, Narrowing, Number, VEC_ELEMS};
    use crate::operand::is_aligned;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Largest group of one warp: one batch.
    const MAX_WARP_GROUP: usize = BATCH * SEGMENT_ELEMS as usize;

    /// Largest group: the sums of squares of its segments must fit in 48 KiB of shared memory.
    const MAX_GROUP: usize = (48 << 10) / size_of::<f32>() * SEGMENT_ELEMS as usize;

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
        /// The launch, or `None` if there are no rows or no columns. `num_rows` points to the row
        /// count on the device; `out` may be `x`.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`, and groups of over 3 Mi columns.
        pub fn launch<X: Number, Y: NarrowedFrom<X>>(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<X>,
            weight: DevicePtr<f32>,
            out: Rows<Y>,
        ) -> Result<Option<Launch>, LaunchError> {
            self.launch_to(num_rows, x, weight, out, false)
        }

        /// [`RmsNorm::launch`] whose results are added to what `out` holds; `out` is not `x`.
        ///
        /// # Errors
        /// As [`RmsNorm::launch`].
        pub fn launch_add(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<f32>,
            weight: DevicePtr<f32>,
            out: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            self.launch_to(num_rows, x, weight, out, true)
        }

        fn launch_to<X: Number, Y: NarrowedFrom<X>>(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<X>,
            weight: DevicePtr<f32>,
            out: Rows<Y>,
            adds: bool,
        ) -> Result<Option<Launch>, LaunchError> {
            if self.group_size > MAX_GROUP {
                let (value, expected) = (self.group_size, "at most 3145728");
                return Err(LaunchError::Shape { what: "group_size", value, expected });
            }
            let per_warp = self.group_size <= MAX_WARP_GROUP;
            let groups_per_block = if per_warp { NUM_WARPS as usize } else { 1 };
            let blocks = self.max_rows.saturating_mul(self.num_groups).div_ceil(groups_per_block);
            let (num_groups, group_size) =
                (arg_u32("num_groups", self.num_groups)?, arg_u32("group_size", self.group_size)?);
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let aligned = (num_groups == 1 || group_size.is_multiple_of(VEC_ELEMS))
                && x.is_aligned()
                && out.is_aligned()
                && is_aligned(weight);
            let shared_bytes =
                if per_warp { 0 } else { num_segments(group_size) as usize * size_of::<f32>() };
            let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, shared_bytes)?;
            Ok(geometry.filter(|_| group_size > 0).map(|geometry| {
                rms_norm::Args {
                    num_rows,
                    num_groups,
                    group_size,
                    eps: self.eps,
                    x: x.untyped_ptr(),
                    x_stride,
                    weight,
                    out: out.untyped_ptr(),
                    out_stride,
                    adds: adds.into(),
                    aligned: aligned.into(),
                }
                .launch(instance(Y::NARROWING, per_warp), geometry)
            }))
        }
    }

    fn instance(narrowing: Narrowing, per_warp: bool) -> Instance {
        let [warp, block] = match narrowing {
            Narrowing::F32 => [Instance::rms_norm_f32_warp, Instance::rms_norm_f32_block],
            Narrowing::F16 => [Instance::rms_norm_f16_warp, Instance::rms_norm_f16_block],
            Narrowing::BF16 => [Instance::rms_norm_bf16_warp, Instance::rms_norm_bf16_block],
            Narrowing::F32ToF16 => {
                [Instance::rms_norm_f32_f16_warp, Instance::rms_norm_f32_f16_block]
            }
            Narrowing::F32ToBF16 => {
                [Instance::rms_norm_f32_bf16_warp, Instance::rms_norm_f32_bf16_block]
            }
        };
        if per_warp { warp } else { block }
    }
}
