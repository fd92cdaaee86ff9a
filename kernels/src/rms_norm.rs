//! RMSNorm over groups: `out[t, g, i] = x[t, g, i] * weight[i] * rsqrt(mean_i(x[t, g, i]^2) +
//! eps)`.
//!
//! Shapes    x, out `[num_rows, num_groups * group_size]` with row strides, out may be x; weight
//!           `[group_size]` f32; x and out are f32 or of 16 bits, out no wider.
//! Launch    grid `(max_rows * num_groups / groups a block, 1, 1)`, block `(NUM_THREADS, 1, 1)`; a
//!           warp a group up to `MAX_WARP_GROUP` elements, else the block a group.
//! Numerics  f32 inside; squares are summed as a tree over the lanes that hold a chunk of 256
//!           columns, and chunks in their order, whoever holds them; one rounding at the store.
//! Bound     memory: an element of x and one of out for each column.
//! Source    arXiv:1910.07467.

use crate::element::{Columns, Number, VECTOR};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// Warps of a block.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Columns of a thread.
pub(crate) type Vector = [f32; VECTOR as usize];

/// Columns of a chunk: eight a lane.
pub(crate) const CHUNK: u32 = warp::WARP_SIZE * VECTOR;

/// Chunks that a warp loads at once.
const BATCH: usize = 4;

/// Chunks of a group, a multiple of four: those past its end add zeros.
pub(crate) const fn num_chunks(group_size: u32) -> u32 {
    group_size.div_ceil(4 * CHUNK) * 4
}

/// The lane's part of a chunk's sum of squares.
#[inline(always)]
fn lane_sum(values: &Vector) -> f32 {
    let mut sum = 0.0;
    for &value in values {
        sum = math::fma(value, value, sum);
    }
    sum
}

/// The sum of squares of a chunk, in every lane of the warp that has its `values`.
#[inline(always)]
pub(crate) fn chunk_sum(values: &Vector) -> f32 {
    warp::reduce_add(lane_sum(values))
}

/// As [`chunk_sum`], of chunks of a group; those past its end have the sum 0.
#[inline(always)]
fn batch_sums(values: &[Vector; BATCH], group_size: u32) -> [f32; BATCH] {
    if group_size <= CHUNK {
        return [chunk_sum(&values[0]), 0.0, 0.0, 0.0];
    }
    // The shuffles of all of them side by side.
    let lane_sums = [0, 1, 2, 3].map(|i| lane_sum(&values[i]));
    lane_sums.map(warp::reduce_add)
}

/// The sum of squares of a group: that of its `num_chunks` chunks, in their order.
///
/// # Safety
/// 1. `chunk_sums` holds them, as [`num_chunks`] counts them, at a multiple of 16 bytes.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn group_sum(chunk_sums: Shared<f32>, num_chunks: u32) -> f32 {
    let mut total = 0.0;
    let mut chunk = 0;
    while chunk < num_chunks {
        // SAFETY: the caller's promise.
        let sums: [f32; 4] = unsafe { chunk_sums.get_vec(chunk) };
        total = sums.iter().fold(total, |total, sum| total + sum);
        chunk += 4;
    }
    total
}

/// What weighted elements of a group are multiplied by, of its sum of squares and the `reciprocal`
/// of its size.
#[inline(always)]
pub(crate) fn scale(sum: f32, reciprocal: f32, eps: f32) -> f32 {
    math::rsqrt_approx(math::fma(sum, reciprocal, eps))
}

/// Elements of a group by their weights.
#[inline(always)]
pub(crate) fn weighted(mut values: Vector, weights: Vector) -> Vector {
    for i in 0..VECTOR as usize {
        values[i] *= weights[i];
    }
    values
}

/// Weighted elements of a group by its scale.
#[inline(always)]
pub(crate) fn scaled(weighted: Vector, scale: f32) -> Vector {
    weighted.map(|value| value * scale)
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
    let (group, first_chunk, step) = if PER_WARP {
        (thread::block_idx_x() * NUM_WARPS + warp::warp_idx(), 0, 1)
    } else {
        (thread::block_idx_x(), warp::warp_idx(), NUM_WARPS)
    };
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` and the columns are inside, by the check here and the loops' bounds; no groups
    // make no launch.
    unsafe {
        core::hint::assert_unchecked(num_groups > 0);
        let row = group / num_groups;
        let column = (group % num_groups) * group_size;
        if row >= num_rows {
            return;
        }
        let x = x.cast::<X>().add(row as usize * x_stride as usize + column as usize);
        let out = out.cast::<Y>().add(row as usize * out_stride as usize + column as usize);
        let columns = |chunk| {
            let first = chunk * CHUNK + warp::lane_id() * VECTOR;
            Columns::new(first, group_size, aligned != 0)
        };

        let num_chunks = num_chunks(group_size);
        let chunk_sums = dynamic_shared_mem::<f32>();
        let mut sum = 0.0;
        let mut chunk = first_chunk;
        while chunk < num_chunks {
            let mut values = [[0.0; VECTOR as usize]; BATCH];
            unroll!(i in 0..4, {
                values[i] = columns(chunk + i as u32 * step).load(x);
            });
            let sums = batch_sums(&values, group_size);
            if PER_WARP {
                sum = sums.iter().fold(sum, |sum, chunk_sum| sum + chunk_sum);
            } else if warp::lane_id() == 0 {
                for i in 0..BATCH {
                    let chunk = chunk + i as u32 * step;
                    if chunk < num_chunks {
                        chunk_sums.set(chunk, sums[i]);
                    }
                }
            }
            chunk += BATCH as u32 * step;
        }
        if !PER_WARP {
            thread::sync_threads();
            sum = group_sum(chunk_sums, num_chunks);
        }
        let scale = scale(sum, 1.0 / group_size as f32, eps);

        let mut chunk = first_chunk;
        while chunk * CHUNK < group_size {
            let (values, weights) = (columns(chunk).load(x), columns(chunk).load(weight));
            columns(chunk).store(out, scaled(weighted(values, weights), scale));
            chunk += step;
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::RmsNorm;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::rms_norm::Instance;
    use super::{BATCH, CHUNK, NUM_THREADS, NUM_WARPS, num_chunks, rms_norm};
    use crate::Rows;
    use crate::element::{Dtype, NarrowedFrom, Narrowing, Number, VECTOR};
    use crate::operand::is_aligned;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Largest group that a warp takes alone: one batch.
    const MAX_WARP_GROUP: usize = BATCH * CHUNK as usize;

    /// Largest group: the sums of its chunks take the shared memory that any block has.
    const MAX_GROUP: usize = (48 << 10) / size_of::<f32>() * CHUNK as usize;

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
        /// [`LaunchError`] for sizes beyond a grid or a `u32`, and groups of over 3 Mi columns.
        pub fn launch<X: Number, Y: NarrowedFrom<X>>(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<X>,
            weight: DevicePtr<f32>,
            out: Rows<Y>,
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
            let aligned = (num_groups == 1 || group_size.is_multiple_of(VECTOR))
                && x.is_aligned()
                && out.is_aligned()
                && is_aligned(weight);
            let shared_bytes =
                if per_warp { 0 } else { num_chunks(group_size) as usize * size_of::<f32>() };
            let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, shared_bytes)?;
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
