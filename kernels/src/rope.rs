//! Rotary embedding in place, halves form: for `i < rotary_dim / 2`, with `c, s` the cosine and
//! sine of the position, `(x[i], x[i + rotary_dim / 2]) = (x[i] * c - x[i + rotary_dim / 2] * s,
//! x[i + rotary_dim / 2] * c + x[i] * s)`.
//!
//! Shapes    x `[num_tokens, num_heads * head_dim]` with a row stride; positions `[num_tokens]`;
//!           table `[max_positions, rotary_dim]`: the cosines of a position, then its sines; f32.
//! Launch    grid `(max_tokens, num_heads * rotary_dim / 2 / NUM_THREADS, 1)`, block `(NUM_THREADS,
//!           1, 1)`.
//! Numerics  f32; attention scaling is in the table.
//! Bound     memory: `8 * num_tokens * num_heads * rotary_dim` bytes.
//! Source    arXiv:2104.09864; transformers `rotate_half`.

use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// One pair of elements a thread.
///
/// # Safety
/// 1. `num_tokens` is one element; `positions` and `x` hold that many; every position is a row of
///    `table`.
/// 2. `rotary_dim` is even and from 2 to `head_dim`.
#[kernel(launch_bounds(NUM_THREADS, 1))]
pub unsafe fn rope_f32(
    num_tokens: Global<u32>,
    positions: Global<u32>,
    table: Global<f32>,
    rotary_dim: u32,
    num_heads: u32,
    head_dim: u32,
    x: GlobalMut<f32>,
    x_stride: u32,
) {
    let token = thread::block_idx_x();
    let pair = thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x();
    let half = rotary_dim / 2;
    // SAFETY: `half` is not 0, and token, head and pair are inside, by the check here.
    unsafe {
        core::hint::assert_unchecked(half > 0);
        let (head, i) = (pair / half, (pair % half) as usize);
        if token >= num_tokens.get(0) || head >= num_heads {
            return;
        }
        let half = half as usize;
        let angles = table.add(positions.get(token as usize) as usize * rotary_dim as usize);
        let (cos, sin) = (angles.get(i), angles.get(i + half));
        let x = x.add(token as usize * x_stride as usize + (head * head_dim) as usize);
        let (a, b) = (x.get(i), x.get(i + half));
        x.set(i, math::fma(a, cos, -(b * sin)));
        x.set(i + half, math::fma(b, cos, a * sin));
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Rope;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, rope_f32};
    use crate::Rows;
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
        /// The launch, with `num_tokens` the device's count of tokens, or `None` if there is
        /// nothing to rotate.
        ///
        /// # Errors
        /// [`LaunchError`] for a `rotary_dim` that is odd or beyond `head_dim`, and for sizes
        /// beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_tokens: DevicePtr<u32>,
            positions: DevicePtr<u32>,
            table: DevicePtr<f32>,
            x: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            if self.rotary_dim > self.head_dim || !self.rotary_dim.is_multiple_of(2) {
                return Err(LaunchError::Shape {
                    what: "rotary_dim",
                    value: self.rotary_dim,
                    expected: "an even number, at most head_dim",
                });
            }
            arg_u32("row width", self.num_heads.saturating_mul(self.head_dim))?;
            let pairs = self.num_heads * (self.rotary_dim / 2);
            let grid = [self.max_tokens, pairs.div_ceil(NUM_THREADS as usize), 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            let x_stride = x.stride_arg()?;
            Ok(geometry.map(|geometry| {
                rope_f32::launch(
                    geometry,
                    num_tokens,
                    positions,
                    table,
                    self.rotary_dim as u32,
                    self.num_heads as u32,
                    self.head_dim as u32,
                    x.ptr,
                    x_stride,
                )
            }))
        }
    }
}
