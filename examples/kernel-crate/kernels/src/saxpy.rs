//! SAXPY: `y[i] = a * x[i] + y[i]`.
//!
//! Shapes    x, y `[len]`; f32.
//! Launch    grid `(ceil(len / NUM_THREADS), 1, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  one FMA an element: rounded once.
//! Bound     memory: `12 * len` bytes.

use cuda_std::prelude::*;

/// Threads of a block.
pub const NUM_THREADS: u32 = 256;

/// One thread an element.
///
/// # Safety
/// 1. `x` and `y` hold `len` elements each, and do not overlap.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn saxpy_f32(len: u32, a: f32, x: Global<f32>, y: GlobalMut<f32>) {
    let i = thread::index_1d();
    if i < len {
        let i = i as usize;
        // SAFETY: `i` is below `len`, and no other thread accesses element `i`.
        unsafe { y.set(i, math::fma(a, x.get(i), y.get(i))) };
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::*;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// The launch for vectors of `len` elements; `None` if there are none.
    ///
    /// # Errors
    /// [`LaunchError`] if `len` is 2^32 or more.
    pub fn launch(
        len: usize,
        a: f32,
        x: DevicePtr<f32>,
        y: DevicePtr<f32>,
    ) -> Result<Option<Launch>, LaunchError> {
        let len_arg = arg_u32("len", len)?;
        let blocks = len.div_ceil(NUM_THREADS as usize);
        let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, 0)?;
        Ok(geometry.map(|geometry| saxpy_f32::Args { len: len_arg, a, x, y }.launch(geometry)))
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::launch;
