//! The operand of a launcher: a row-major matrix in device memory.

use cuda_std::launch::{DevicePtr, LaunchError, arg_u32};

/// Rows of a row-major matrix: the address of the first row, and the row stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows<T> {
    /// Column 0 of row 0.
    pub ptr: DevicePtr<T>,
    /// Row stride, in elements.
    pub row_stride: usize,
}

impl<T> Rows<T> {
    /// Rows that are `row_stride` elements apart, the first at `ptr`.
    pub const fn new(ptr: DevicePtr<T>, row_stride: usize) -> Self {
        Rows { ptr, row_stride }
    }

    /// As many elements of another type from a row to the next.
    pub const fn cast<U>(&self) -> Rows<U> {
        Rows { ptr: DevicePtr::new(self.ptr.0), row_stride: self.row_stride }
    }

    /// The rows, as the operand of a launcher that is told their type otherwise.
    pub(crate) const fn untyped(&self) -> Rows<()> {
        self.cast()
    }

    /// The address, as the argument of a kernel that is generic over the element type.
    pub(crate) fn untyped_ptr(&self) -> DevicePtr<()> {
        untyped(self.ptr)
    }

    /// The row stride, as a kernel argument.
    pub(crate) fn stride_arg(&self) -> Result<u32, LaunchError> {
        arg_u32("row stride", self.row_stride)
    }

    /// Whether every row is 16-byte aligned.
    pub(crate) fn is_aligned(&self) -> bool {
        is_aligned(self.ptr) && (self.row_stride * size_of::<T>()).is_multiple_of(16)
    }
}

/// The pointer, as the argument of a kernel that is generic over the element type.
pub(crate) fn untyped<T>(ptr: DevicePtr<T>) -> DevicePtr<()> {
    DevicePtr::new(ptr.0)
}

/// Whether `ptr` is 16-byte aligned.
pub(crate) fn is_aligned<T>(ptr: DevicePtr<T>) -> bool {
    ptr.0.is_multiple_of(16)
}
