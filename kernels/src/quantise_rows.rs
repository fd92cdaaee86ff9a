//! Rows in E4M3 with a scale each, what tensor cores multiply with weights in E4M3:
//! `scale[t] = max_i |y[t, i]| / 448`, `out[t, i] = y[t, i] / scale[t]`. `y` is x; of `_norm`
//! instances RMSNorm of x; of gated ones `activation(gate) * up`.
//!
//! Shapes    x, gate, up `[num_rows, width]` f16 with row strides, x of a norm f32; weight of a norm
//!           `[width]` f32; out `[max_rows, width]` E4M3, scale `[max_rows]` f32; width a multiple
//!           of 8, rows 16-byte aligned.
//! Launch    grid `(max_rows, 1, 1)`, block `(NUM_THREADS, 1, 1)`; shared memory for a row.
//! Numerics  `y` is rounded to f16, as RmsNorm and GateRows store it; then once to E4M3, to nearest
//!           even. A row of zeros has the scale 0. NaN stays; a row with an infinity has no finite
//!           value.
//! Bound     memory: an element of x, or of gate and up, and one of out for each column.
//! Source    arXiv:2209.05433 (E4M3).

use crate::activation::{GATES, Gate, NoGate};
use crate::element::{Half, Number, VEC_ELEMS};
use crate::rms_norm::{
    SEGMENT_ELEMS, Vector, num_segments, scale, scaled, segment_square_sum, sum_segments, weighted,
};
use cuda_std::E4m3;
use cuda_std::prelude::*;
use half::f16;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// Warps of a block.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Eight columns, from `column` on, of the row at `x`: normed, by `scale` and the weight `other`; as
/// the gate of the row `other`; or as they are.
///
/// # Safety
/// 1. The columns are inside, and 16-byte aligned.
#[inline(always)]
unsafe fn load<const NORMED: bool, A: Gate>(
    x: Global<()>,
    other: Global<()>,
    column: usize,
    scale: f32,
) -> Vector {
    // SAFETY: the caller's promise.
    unsafe {
        if NORMED {
            let x = f32::load_vector(x.cast(), column);
            return scaled(weighted(x, f32::load_vector(other.cast(), column)), scale);
        }
        let mut values = f16::load_vector(x.cast(), column);
        if A::PARTS == 2 {
            let up = f16::load_vector(other.cast(), column);
            for i in 0..VEC_ELEMS as usize {
                values[i] = A::apply::<f16>(values[i], up[i]);
            }
        }
        values
    }
}

/// Shared memory of a block: the row in f16, sums of squares of its segments, a maximum a warp.
const fn shared_bytes(width: u32, normed: bool) -> u32 {
    width * 2 + 4 * (NUM_WARPS + if normed { num_segments(width) } else { 0 })
}

/// The scale of the norm of the row at `x`, to the bits of RmsNorm.
///
/// # Safety
/// 1. The row holds `width` elements, 16-byte aligned; `square_sums` holds those of its segments.
#[inline(always)]
unsafe fn norm_scale(x: Global<f32>, width: u32, eps: f32, square_sums: Shared<f32>) -> f32 {
    let mut segment = warp::warp_idx();
    while segment < num_segments(width) {
        let column = segment * SEGMENT_ELEMS + warp::lane_id() * VEC_ELEMS;
        let mut values = [0.0; VEC_ELEMS as usize];
        // SAFETY: inside, by the check; each segment is one warp's.
        unsafe {
            if column < width {
                values = f32::load_vector(x, column as usize);
            }
            let square_sum = segment_square_sum(&values);
            if warp::lane_id() == 0 {
                square_sums.set(segment, square_sum);
            }
        }
        segment += NUM_WARPS;
    }
    thread::sync_threads();
    // SAFETY: all are written, and the row is a multiple of 16 bytes.
    let sum = unsafe { sum_segments(square_sums, num_segments(width)) };
    scale(sum, 1.0 / width as f32, eps)
}

/// Four f16, times `inverse`, in E4M3.
#[inline(always)]
fn e4m3x4(low: u32, high: u32, inverse: f32) -> u32 {
    let [a, b] = f16::unpack(low);
    let [c, d] = f16::unpack(high);
    let low = convert::f32_to_e4m3x2(a * inverse, b * inverse).to_bits();
    let high = convert::f32_to_e4m3x2(c * inverse, d * inverse).to_bits();
    u32::from(low) | u32::from(high) << 16
}

/// A row a block.
///
/// # Safety
/// 1. `num_rows` is one element; `x` and, of two operands, `other` hold that many rows of `width`
///    elements at their strides, the weight of a norm one; `out` holds `max_rows` rows, and
///    `scales` as many elements.
/// 2. `width` is a multiple of 8, and all rows are 16-byte aligned, those of `out` 8-byte.
#[kernel(
    launch_bounds(NUM_THREADS, 4),
    target(sm_90a),
    overlaps,
    instances(
        A in GATES,
        quantise_rows_f16 = <false, NoGate>,
        quantise_rows_f16_norm = <true, NoGate>,
        quantise_rows_f16_{A} = <false, A>
    )
)]
pub unsafe fn quantise_rows<const NORMED: bool, A: Gate>(
    num_rows: Global<u32>,
    width: u32,
    eps: f32,
    x: Global<()>,
    x_stride_bytes: u32,
    other: Global<()>,
    other_stride_bytes: u32,
    out: GlobalMut<E4m3>,
    scales: GlobalMut<f32>,
) {
    let row = thread::block_idx_x() as usize;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if row >= num_rows as usize {
        return;
    }
    // SAFETY: the row is inside by the check, columns by the loops' bounds; a thread reads what it
    // has written, or what was written before a barrier.
    unsafe {
        let start = |rows: Global<()>, stride_bytes: u32| {
            rows.cast::<u8>().add(row * stride_bytes as usize).cast::<()>()
        };
        let (x, other) = (start(x, x_stride_bytes), start(other, other_stride_bytes));
        let values = dynamic_shared_mem::<u32>();
        let maxima = values.offset(width / 2).cast::<f32>();
        let norm_scale = match NORMED {
            true => norm_scale(x.cast(), width, eps, maxima.offset(NUM_WARPS)),
            false => 1.0,
        };

        // 1. The row, and its largest magnitude.
        let first = thread::thread_idx_x() * VEC_ELEMS;
        let mut max = 0.0;
        let mut column = first;
        while column < width {
            let [a, b, c, d, e, f, g, h] = load::<NORMED, A>(x, other, column as usize, norm_scale);
            let pairs = [(a, b), (c, d), (e, f), (g, h)].map(|(lo, hi)| f16::pack(lo, hi));
            unroll!(i in 0..4, {
                let [lo, hi] = f16::unpack(pairs[i] & 0x7FFF_7FFF);
                max = math::max(max, math::max(lo, hi));
            });
            values.set_vec(column / 2, pairs);
            column += NUM_THREADS * VEC_ELEMS;
        }
        let max = warp::reduce_max(max);
        if warp::lane_id() == 0 {
            maxima.set(warp::warp_idx(), max);
        }
        thread::sync_threads();
        let mut max = 0.0;
        unroll!(other in 0..NUM_WARPS as usize, {
            max = math::max(max, maxima.get(other as u32));
        });
        if thread::thread_idx_x() == 0 {
            scales.set(row, max / E4m3::MAX);
        }

        // 2. Its elements in E4M3.
        let inverse = if max > 0.0 { E4m3::MAX / max } else { 0.0 };
        let out = out.add(row * width as usize).cast::<u32>();
        let mut column = first;
        while column < width {
            let [a, b, c, d]: [u32; 4] = values.get_vec(column / 2);
            let words = [e4m3x4(a, b, inverse), e4m3x4(c, d, inverse)];
            out.set_vec(column as usize / 4, words);
            column += NUM_THREADS * VEC_ELEMS;
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{QuantiseRows, RowInput};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::quantise_rows::{self, Instance};
    use super::{NUM_THREADS, shared_bytes};
    use crate::Rows;
    use crate::activation::gate_of;
    use crate::element::VEC_ELEMS;
    use crate::operand::{is_aligned, untyped};
    use cuda_std::E4m3;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
    use gpu_types::Activation;
    use half::f16;

    /// Shared memory that a block may have on sm_90.
    const MAX_SHARED_BYTES: u32 = 227 << 10;

    /// Most columns: a row, and the sums of a norm, are in shared memory.
    const MAX_WIDTH: u32 = 112_640;

    const _: () = assert!(shared_bytes(MAX_WIDTH, true) <= MAX_SHARED_BYTES);

    /// Rows in E4M3 with a scale each.
    #[derive(Clone, Copy, Debug)]
    pub struct QuantiseRows {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    /// What the rows are made of.
    #[derive(Clone, Copy, Debug)]
    pub enum RowInput {
        /// Rows of f16.
        Stored(Rows<f16>),
        /// RMSNorm of rows of f32.
        Normed {
            /// `[max_rows, width]`.
            x: Rows<f32>,
            /// `[width]`.
            weight: DevicePtr<f32>,
            /// Added to the mean of squares.
            eps: f32,
        },
        /// `activation(gate) * up`.
        Gated {
            /// What `gate` goes through.
            activation: Activation,
            /// `[max_rows, width]`.
            gate: Rows<f16>,
            /// `[max_rows, width]`.
            up: Rows<f16>,
        },
    }

    impl QuantiseRows {
        /// The launch, or `None` if there is nothing to compute. `num_rows` points to the row count
        /// on the device; `out` is `[max_rows, width]`, dense, `scales` `[max_rows]`.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`, a width that is no multiple of 8 or
        /// over 112,640, and rows that are not 16-byte aligned.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            input: &RowInput,
            out: DevicePtr<E4m3>,
            scales: DevicePtr<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = arg_u32("width", self.width)?;
            if width > MAX_WIDTH || !width.is_multiple_of(VEC_ELEMS) {
                let (value, expected) = (self.width, "a multiple of 8, at most 112640");
                return Err(LaunchError::Shape { what: "width", value, expected });
            }
            let null = DevicePtr::<()>::null();
            let bytes =
                |stride: usize, elem_bytes: usize| arg_u32("row stride", stride * elem_bytes);
            let (normed, activation, eps, x, other, strides, aligned) = match *input {
                RowInput::Stored(x) => {
                    let strides = [bytes(x.row_stride, 2)?, 0];
                    (false, None, 0.0, x.untyped_ptr(), null, strides, x.is_aligned())
                }
                RowInput::Normed { x, weight, eps } => {
                    let aligned = x.is_aligned() && is_aligned(weight);
                    let strides = [bytes(x.row_stride, 4)?, 0];
                    (true, None, eps, x.untyped_ptr(), untyped(weight), strides, aligned)
                }
                RowInput::Gated { activation, gate, up } => {
                    let aligned = gate.is_aligned() && up.is_aligned();
                    let strides = [bytes(gate.row_stride, 2)?, bytes(up.row_stride, 2)?];
                    let (x, up) = (gate.untyped_ptr(), up.untyped_ptr());
                    (false, Some(activation), 0.0, x, up, strides, aligned)
                }
            };
            let is_it = |i: Instance| i.normed() == normed && gate_of(i.a()) == activation;
            let instance = Instance::find(is_it).expect("instances of all inputs");
            if !aligned || !is_aligned(out) {
                let expected = "rows at multiples of 16 bytes";
                return Err(LaunchError::Shape { what: "alignment", value: 1, expected });
            }
            let shared_bytes = shared_bytes(width, normed) as usize;
            let geometry =
                Geometry::new([self.max_rows, 1, 1], NUM_THREADS as usize, shared_bytes)?;
            Ok(geometry.filter(|_| width > 0).map(|geometry| {
                quantise_rows::Args {
                    num_rows,
                    width,
                    eps,
                    x,
                    x_stride_bytes: strides[0],
                    other,
                    other_stride_bytes: strides[1],
                    out,
                    scales,
                }
                .launch(instance, geometry)
            }))
        }
    }
}
