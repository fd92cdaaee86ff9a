//! What launchers take: rows of a matrix in device memory.

use cuda_std::launch::{DevicePtr, LaunchError, arg_u32};

/// Rows of a row-major matrix: where the first one starts, and how far the next one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows<T> {
    /// Column 0 of row 0.
    pub ptr: DevicePtr<T>,
    /// Elements from a row to the next.
    pub row_stride: usize,
}

impl<T> Rows<T> {
    /// Rows that are `row_stride` elements apart, the first at `ptr`.
    pub const fn new(ptr: DevicePtr<T>, row_stride: usize) -> Self {
        Rows { ptr, row_stride }
    }

    /// Where the rows start, as the argument of a kernel whose instances tell the elements apart.
    pub(crate) fn untyped_ptr(&self) -> DevicePtr<()> {
        untyped(self.ptr)
    }

    /// The stride as a kernel's argument.
    pub(crate) fn stride_arg(&self) -> Result<u32, LaunchError> {
        arg_u32("row stride", self.row_stride)
    }

    /// Whether each row starts at a multiple of 16 bytes.
    pub(crate) fn is_aligned(&self) -> bool {
        is_aligned(self.ptr) && (self.row_stride * size_of::<T>()).is_multiple_of(16)
    }
}

/// The pointer, as the argument of a kernel whose instances tell the elements apart.
pub(crate) fn untyped<T>(ptr: DevicePtr<T>) -> DevicePtr<()> {
    DevicePtr::new(ptr.0)
}

/// Whether vectors of 16 bytes can be loaded from `ptr` on.
pub(crate) fn is_aligned<T>(ptr: DevicePtr<T>) -> bool {
    ptr.0.is_multiple_of(16)
}
