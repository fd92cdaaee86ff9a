//! Rotary embedding in place, halves form: for `i < rotary_dim / 2`, with `c, s` the cosine and
//! sine of the position, `(x[i], x[i + rotary_dim / 2]) = (x[i] * c - x[i + rotary_dim / 2] * s,
//! x[i + rotary_dim / 2] * c + x[i] * s)`.
//!
//! Shapes    x `[num_tokens, num_heads * head_dim]` with a row stride, f32, f16 or bf16; positions
//!           `[num_tokens]`; table `[max_positions, rotary_dim]` f32: the cosines of a position,
//!           then its sines.
//! Launch    grid `(max_tokens, num_heads * pairs of a head / 8 / NUM_THREADS, 1)`, block
//!           `(NUM_THREADS, 1, 1)`.
//! Numerics  f32 inside, one rounding at the store; the table includes attention scaling.
//! Bound     memory: a load and a store for each rotated column.
//! Source    arXiv:2104.09864; transformers `rotate_half`.

use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// A thread takes eight pairs of elements `E`.
///
/// # Safety
/// 1. `num_tokens` is one element; `positions` and `x` hold that many; every position is a row of
///    `table`.
/// 2. `rotary_dim` is even and from 2 to `head_dim`.
/// 3. If `aligned` is not 0, both halves of each head, of the cosines and of the sines are 16-byte
///    aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(rope_f32 = <f32>, rope_f16 = <f16>, rope_bf16 = <bf16>)
)]
pub unsafe fn rope<E: Number>(
    num_tokens: Global<u32>,
    positions: Global<u32>,
    table: Global<f32>,
    rotary_dim: u32,
    num_heads: u32,
    head_dim: u32,
    x: GlobalMut<()>,
    x_stride: u32,
    aligned: u32,
) {
    let token = thread::block_idx_x();
    let vector = thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x();
    let half = rotary_dim / 2;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `half` is not 0, and token, head and pairs are inside, by the check here.
    unsafe {
        let vectors = half.div_ceil(VEC_ELEMS);
        core::hint::assert_unchecked(vectors > 0);
        let head = vector / vectors;
        if token >= num_tokens || head >= num_heads {
            return;
        }
        let columns = Columns::new(vector % vectors * VEC_ELEMS, half, aligned != 0);
        let angles = table.add(positions.get(token as usize) as usize * rotary_dim as usize);
        let first = token as usize * x_stride as usize + (head * head_dim) as usize;
        let first = x.cast::<E>().add(first);
        let second = first.add(half as usize);
        let (a, b) = rotated(columns, half, angles, first.as_global());
        columns.store(first, a);
        columns.store(second, b);
    }
}

/// A pair, rotated by the angle with this cosine and sine.
#[inline(always)]
pub(crate) fn rotate([a, b]: [f32; 2], [cos, sin]: [f32; 2]) -> [f32; 2] {
    [math::fma(a, cos, -(b * sin)), math::fma(b, cos, a * sin)]
}

/// The pairs `columns` of a head, rotated by the angles of a position: their first and their second
/// elements.
///
/// # Safety
/// 1. `head` and `angles` hold `2 * half` elements; both halves of each are aligned if `columns`
///    is.
/// 2. No other thread writes the pairs at the same time.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn rotated<E: Number>(
    columns: Columns,
    half: u32,
    angles: Global<f32>,
    head: Global<E>,
) -> ([f32; VEC_ELEMS as usize], [f32; VEC_ELEMS as usize]) {
    // SAFETY: the caller's promise.
    unsafe {
        let (cos, sin) = (columns.load(angles), columns.load(angles.add(half as usize)));
        let mut a = columns.load(head);
        let mut b = columns.load(head.add(half as usize));
        for i in 0..VEC_ELEMS as usize {
            [a[i], b[i]] = rotate([a[i], b[i]], [cos[i], sin[i]]);
        }
        (a, b)
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Rope;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::rope::Instance;
    use super::{NUM_THREADS, rope};
    use crate::Rows;
    use crate::element::{Number, VEC_ELEMS};
    use crate::operand::is_aligned;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Rotary embedding of the first `rotary_dim` columns of each head.
    #[derive(Clone, Copy, Debug)]
    pub struct Rope {
        /// Upper bound of the tokens.
        pub max_tokens: usize,
        /// Heads, those of Q and K together.
        pub num_heads: usize,
        /// Columns of a head.
        pub head_dim: usize,
        /// Columns that are rotated: the width of the table.
        pub rotary_dim: usize,
    }

    impl Rope {
        /// The launch, or `None` if there is nothing to rotate. `num_tokens` points to the token
        /// count on the device.
        ///
        /// # Errors
        /// [`LaunchError`] for a `rotary_dim` that is odd or beyond `head_dim`, and for sizes
        /// beyond a grid or a `u32`.
        pub fn launch<E: Number>(
            &self,
            num_tokens: DevicePtr<u32>,
            positions: DevicePtr<u32>,
            table: DevicePtr<f32>,
            x: Rows<E>,
        ) -> Result<Option<Launch>, LaunchError> {
            if self.rotary_dim > self.head_dim || !self.rotary_dim.is_multiple_of(2) {
                return Err(LaunchError::Shape {
                    what: "rotary_dim",
                    value: self.rotary_dim,
                    expected: "an even number, at most head_dim",
                });
            }
            arg_u32("row width", self.num_heads.saturating_mul(self.head_dim))?;
            let half = self.rotary_dim / 2;
            let vectors = self.num_heads * half.div_ceil(VEC_ELEMS as usize);
            let grid = [self.max_tokens, vectors.div_ceil(NUM_THREADS as usize), 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            let x_stride = x.stride_arg()?;
            let aligned =
                [half, self.head_dim].iter().all(|n| n.is_multiple_of(VEC_ELEMS as usize))
                    && x.is_aligned()
                    && is_aligned(table);
            let instance = E::choose([Instance::rope_f32, Instance::rope_f16, Instance::rope_bf16]);
            Ok(geometry.map(|geometry| {
                rope::Args {
                    num_tokens,
                    positions,
                    table,
                    rotary_dim: self.rotary_dim as u32,
                    num_heads: self.num_heads as u32,
                    head_dim: self.head_dim as u32,
                    x: x.untyped_ptr(),
                    x_stride,
                    aligned: aligned.into(),
                }
                .launch(instance, geometry)
            }))
        }
    }
}
