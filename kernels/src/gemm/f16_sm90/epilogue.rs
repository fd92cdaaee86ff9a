//! From the sums in registers to memory: bias, residual, rounding.
//!
//! A warp has 16 rows of each product of its warpgroup, and stores them by itself in strips of 64
//! columns, or what is left of them: no warp waits for another.

mod direct;
pub(super) mod split_k;
mod staged;

use super::tiles::ROW_BYTES;
use cuda_std::Element;
use cuda_std::prelude::*;

/// Columns of a strip: rows of 128 bytes of 16-bit elements.
pub(super) const STRIP_COLUMNS: u32 = 64;

/// Rows of a strip.
pub(super) const STRIP_ROWS: u32 = 16;

/// Elements in shared memory for one strip.
const STRIP_ELEMS: u32 = STRIP_ROWS * STRIP_COLUMNS;

/// Shared memory of a warp.
pub(super) const STAGING_BYTES: u32 = 2 * STRIP_ROWS * ROW_BYTES;

/// Elements of 16 bits that one access moves.
const CHUNK: u32 = 8;

/// A thread's sums of a strip.
pub(super) const STRIP_REGS: usize = 32;

/// A matrix of the output's rows and columns in global memory.
#[derive(Clone, Copy)]
pub struct Matrix<P> {
    /// Its first element.
    pub ptr: P,
    /// Elements from a row to the next.
    pub row_stride: u32,
}

impl<P> Matrix<P> {
    #[inline(always)]
    fn at(&self, row: u32, column: u32) -> usize {
        row as usize * self.row_stride as usize + column as usize
    }
}

/// What the kernel's outputs are made of and where they go.
#[derive(Clone, Copy)]
pub struct Output<O> {
    /// Rows that exist.
    pub num_rows: u32,
    /// Columns.
    pub n: u32,
    /// `[n]`, or null.
    pub bias: Global<f32>,
    /// `[num_rows, n]`, or null.
    pub residual: Matrix<Global<f32>>,
    /// `[num_rows, n]`.
    pub out: Matrix<GlobalMut<O>>,
    /// The same in boxes of a strip; not used if its rows start at no multiple of 16 bytes.
    pub out_map: TensorMap,
}

/// Where a warp stores.
pub struct WarpOutput<O> {
    output: Output<O>,
    /// Room for two strips.
    staging: Shared<O>,
    /// Which one is next.
    buffer: u32,
}

impl<O> WarpOutput<O> {
    /// The output of a warp that has `STAGING_BYTES` at `staging`, a multiple of 1024.
    #[inline(always)]
    pub(super) fn new(output: Output<O>, staging: Shared<O>) -> Self {
        WarpOutput { output, staging, buffer: 0 }
    }

    /// Waits until the warp's shared memory is read: before its block ends.
    #[inline(always)]
    #[track_caller]
    pub(super) fn finish(&self) {
        bulk::wait_group_read::<0>();
    }
}

impl<O> Output<O> {
    /// Whether rows and columns are made of 16 bytes.
    #[inline(always)]
    fn is_aligned(&self) -> bool {
        let strides = (self.out.row_stride | self.n) * size_of::<O>() as u32;
        (self.out.ptr.address() as u32 | strides).is_multiple_of(16)
    }

    /// The bias of the thread's columns of a strip: `column` and the one behind it, and those of
    /// every eight columns on. Columns that do not exist have that of the last one.
    ///
    /// # Safety
    /// 1. `bias` is what the kernel asks for, and `n > 0`.
    #[inline(always)]
    #[track_caller]
    unsafe fn bias(&self, column: u32) -> [[f32; 2]; 8] {
        let mut bias = [[0.0; 2]; 8];
        if !self.bias.is_null() {
            let at = |i: u32| (column + i).min(self.n - 1) as usize;
            unroll!(j in 0..8, {
                let first = CHUNK * j as u32;
                // SAFETY: the columns are inside.
                bias[j] = unsafe { [self.bias.get(at(first)), self.bias.get(at(first + 1))] };
            });
        }
        bias
    }
}

/// What outputs can be: f32, or the operands' type.
pub trait OutElement: Element {
    /// Has come what stores of the output need, so that the first one need not wait for it.
    fn prefetch(output: &Output<Self>);

    /// Stores a strip whose first row and column are these, and that has `columns`, a multiple of
    /// eight: `sums` are the thread's part of it.
    ///
    /// # Safety
    /// 1. The whole warp calls this, converged.
    /// 2. The output is what the kernel asks for.
    unsafe fn store_strip(
        to: &mut WarpOutput<Self>,
        place: [u32; 2],
        columns: u32,
        sums: &[f32; STRIP_REGS],
    );
}
