//! Matrix descriptors: where an operand lies in shared memory, and how.
//!
//! Source: PTX ISA, "Shared Memory Matrix Layout" and "Matrix Descriptor Format" of `wgmma`.

use super::element::Element;
use crate::Shared;
use core::marker::PhantomData;
use half::{bf16, f16};

/// How the 16-byte chunks of an operand's rows are permuted, as TMA's mode of the same name leaves
/// them: bits 4 to 6 of a byte's address (4 and 5 for rows of 64 bytes, 4 for 32) are xored with as
/// many bits from bit 7 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// Not at all: core matrices of 8 rows of 16 bytes.
    None = 0,
    /// Rows of 128 bytes, a pattern of 1024 bytes.
    B128 = 1,
    /// Rows of 64 bytes, a pattern of 512 bytes.
    B64 = 2,
    /// Rows of 32 bytes, a pattern of 256 bytes.
    B32 = 3,
}

impl Swizzle {
    /// Bytes of a row.
    pub const fn row_bytes(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B128 => 128,
            Swizzle::B64 => 64,
            Swizzle::B32 => 32,
        }
    }
}

/// Which dimension of an operand of elements `E` is contiguous in shared memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` operands of `{E}` do not exist",
    note = "operands of 8-bit elements are K-major"
)]
pub trait Major<E>: sealed::Sealed {
    /// `imm-trans-a` and `imm-trans-b` of the instruction.
    const TRANSPOSED: bool;
}

/// The elements of a row of A, or of a column of B, lie together.
pub struct KMajor;

/// The elements of a column of A, or of a row of B, lie together. 16-bit elements alone:
///
/// ```compile_fail,E0277
/// use cuda_std::E4m3;
/// use cuda_std::wgmma::{MatrixDescriptor, MnMajor, Swizzle};
///
/// fn v(tile: cuda_std::Shared<E4m3>) -> MatrixDescriptor<E4m3, MnMajor> {
///     MatrixDescriptor::new(tile, 16, 1024, Swizzle::B128)
/// }
/// ```
pub struct MnMajor;

impl<E> Major<E> for KMajor {
    const TRANSPOSED: bool = false;
}

impl Major<f16> for MnMajor {
    const TRANSPOSED: bool = true;
}

impl Major<bf16> for MnMajor {
    const TRANSPOSED: bool = true;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::KMajor {}
    impl Sealed for super::MnMajor {}
}

/// An operand in shared memory: elements `E`, contiguous along `M` ([`KMajor`] or [`MnMajor`]).
pub struct MatrixDescriptor<E, M> {
    bits: u64,
    marker: PhantomData<(E, M)>,
}

impl<E, M> Clone for MatrixDescriptor<E, M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, M> Copy for MatrixDescriptor<E, M> {}

impl<E: Element, M: Major<E>> MatrixDescriptor<E, M> {
    /// The operand at `tile`, whose swizzle pattern starts at a multiple of its size in shared
    /// memory (1024, 512 or 256 bytes). `leading_bytes` and `stride_bytes` are multiples of 16:
    ///
    /// | | K-major | MN-major |
    /// | --- | --- | --- |
    /// | leading, no swizzle | from 16 bytes of k to the next | from 8 of k to the next 8 |
    /// | leading, swizzle | not read | from the columns of one row to the next |
    /// | stride, no swizzle | from 8 rows to the next 8 | from 16 bytes of columns to the next |
    /// | stride, swizzle | from 8 rows to the next 8 | from 8 of k to the next 8 |
    #[inline(always)]
    pub fn new(tile: Shared<E>, leading_bytes: u32, stride_bytes: u32, swizzle: Swizzle) -> Self {
        let low = encode(tile.element(0)) | encode(leading_bytes) << 16;
        let high = encode(stride_bytes) | (swizzle as u32) << 30;
        MatrixDescriptor { bits: u64::from(high) << 32 | u64::from(low), marker: PhantomData }
    }

    /// The operand that starts `bytes` on, a multiple of 16: the next of k, or the next stage.
    ///
    /// In a K-major tile the next product is 32 bytes on, inside the swizzled row; in an MN-major
    /// one it is as many rows on as the product has k.
    #[inline(always)]
    #[must_use]
    pub fn advance(self, bytes: u32) -> Self {
        // No address of shared memory carries out of the field: 32 bits are enough.
        let low = (self.bits as u32).wrapping_add(bytes >> 4);
        MatrixDescriptor { bits: self.bits >> 32 << 32 | u64::from(low), marker: PhantomData }
    }

    /// The descriptor as the instruction takes it.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.bits
    }
}

impl<E: Element> MatrixDescriptor<E, KMajor> {
    /// A tile of rows of `swizzle.row_bytes()` bytes of k, as TMA leaves a box of that width. The
    /// rows of more k are the next tile.
    #[inline(always)]
    pub fn k_major(tile: Shared<E>, swizzle: Swizzle) -> Self {
        // The leading offset is not read; the ISA page assumes one unit.
        MatrixDescriptor::new(tile, 16, 8 * swizzle.row_bytes(), swizzle)
    }
}

impl<E: Element> MatrixDescriptor<E, MnMajor>
where
    MnMajor: Major<E>,
{
    /// A tile of a row for each k, of `swizzle.row_bytes()` bytes of columns, as TMA leaves a box of
    /// that width: V of attention. The next columns are `leading_bytes` on.
    #[inline(always)]
    pub fn mn_major(tile: Shared<E>, leading_bytes: u32, swizzle: Swizzle) -> Self {
        MatrixDescriptor::new(tile, leading_bytes, 8 * swizzle.row_bytes(), swizzle)
    }
}

/// `matrix-descriptor-encode` of the ISA page: 14 bits, in units of 16 bytes.
#[inline(always)]
fn encode(bytes: u32) -> u32 {
    (bytes & 0x3_ffff) >> 4
}
