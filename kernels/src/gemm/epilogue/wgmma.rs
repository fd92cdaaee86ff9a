//! The epilogue of the `wgmma` mainloop.
//!
//! A warp owns 16 rows of each MMA of its warpgroup. It stores them on its own, in subtiles of up
//! to 64 columns: no warp waits for another.

mod direct;
pub mod gated;
pub mod split_k;
mod staged;

use super::Epilogue;
use crate::element::Number;
use crate::gemm::config::wgmma::ROW_BYTES;
use cuda_std::prelude::*;

/// Columns of a subtile: 128 bytes of 16-bit elements.
pub const SUBTILE_COLUMNS: u32 = 64;

/// Rows of a subtile.
pub const SUBTILE_ROWS: u32 = 16;

/// Elements of a subtile.
const SUBTILE_ELEMS: u32 = SUBTILE_ROWS * SUBTILE_COLUMNS;

/// Staging of a warp in shared memory: two subtiles of 16-bit elements.
pub const STAGING_BYTES: u32 = 2 * SUBTILE_ROWS * ROW_BYTES;

/// 16-bit elements of a 16-byte access.
const VEC_ELEMS: u32 = 8;

/// A thread's values of a subtile.
pub const SUBTILE_REGS: usize = 32;

/// What the epilogue of a block applies, and the output as a tensor map.
#[derive(Clone, Copy)]
pub struct Output<O> {
    /// Bias, residual and output.
    pub epilogue: Epilogue<GlobalMut<O>>,
    /// The output as a tensor map with boxes of a subtile; unused if rows are not 16-byte aligned.
    pub out_map: TensorMap,
}

/// The output of one warp.
pub struct WarpOutput<O> {
    output: Output<O>,
    /// Two buffers of a subtile.
    staging: Shared<O>,
    /// Index of the next buffer.
    buffer: u32,
}

impl<O> WarpOutput<O> {
    /// The output of a warp that has `STAGING_BYTES` at `staging`, a multiple of 1024.
    #[inline(always)]
    pub fn new(output: Output<O>, staging: Shared<O>) -> Self {
        WarpOutput { output, staging, buffer: 0 }
    }

    /// Waits until TMA has read the warp's staging, which it must before the block ends.
    #[inline(always)]
    #[track_caller]
    pub fn finish(&self) {
        bulk::wait_group_read::<0>();
    }
}

impl<O: Number> Epilogue<GlobalMut<O>> {
    /// Whether rows start and end at multiples of 16 bytes.
    #[inline(always)]
    fn is_aligned(&self) -> bool {
        let strides = (self.out.row_stride | self.n) * size_of::<O>() as u32;
        (self.out.ptr.address() as u32 | strides).is_multiple_of(16)
    }

    /// The bias of the thread's columns of a subtile, as [`load_pairs`].
    ///
    /// # Safety
    /// 1. `bias` is as the kernel requires, and `n > 0`.
    #[inline(always)]
    #[track_caller]
    unsafe fn bias_of_pairs(&self, column: u32) -> [[f32; 2]; 8] {
        // SAFETY: the caller's promise.
        unsafe { load_pairs(self.bias, column, self.n, 0.0) }
    }
}

/// The elements of the thread's columns of a subtile: `column`, `column + 1`, and the same in every
/// further group of eight. Columns past the last one get its element; all get `otherwise` if
/// `elements` are null.
///
/// # Safety
/// 1. `elements` are null, or `n > 0`.
#[inline(always)]
#[track_caller]
pub unsafe fn load_pairs(
    elements: Global<f32>,
    column: u32,
    n: u32,
    otherwise: f32,
) -> [[f32; 2]; 8] {
    let mut pairs = [[otherwise; 2]; 8];
    if !elements.is_null() {
        let at = |i: u32| (column + i).min(n - 1) as usize;
        unroll!(j in 0..8, {
            let first = VEC_ELEMS * j as u32;
            // SAFETY: the columns are inside.
            pairs[j] = unsafe { [elements.get(at(first)), elements.get(at(first + 1))] };
        });
    }
    pairs
}

/// What a thread's accumulators of a subtile are multiplied by.
pub trait SubtileScale {
    /// Accumulator `at`, which is `value`, times its scale, plus `bias`.
    fn apply(&self, at: usize, value: f32, bias: f32) -> f32;
}

/// Accumulators that are outputs.
pub struct Unscaled;

impl SubtileScale for Unscaled {
    #[inline(always)]
    fn apply(&self, _at: usize, value: f32, bias: f32) -> f32 {
        value + bias
    }
}

/// The element type of an output: f32, or the operands' type.
pub trait OutElement: Number {
    /// Prefetches the tensor map that stores need.
    fn prefetch(output: &Output<Self>);

    /// Stores a subtile of `columns` columns, a multiple of eight, whose first row and column are
    /// `origin`. `values` are the thread's accumulators, which `scale` makes outputs of.
    ///
    /// # Safety
    /// 1. The whole warp calls this, converged.
    /// 2. The output is as the kernel requires.
    unsafe fn store_subtile(
        to: &mut WarpOutput<Self>,
        origin: [u32; 2],
        columns: u32,
        values: &[f32; SUBTILE_REGS],
        scale: &impl SubtileScale,
    );
}
