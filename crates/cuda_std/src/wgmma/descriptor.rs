//! Matrix descriptors: address and layout of an operand in shared memory.
//!
//! Source: PTX ISA, "Shared Memory Matrix Layout" and "Matrix Descriptor Format" of `wgmma`.

use super::element::Element;
use crate::Shared;
use core::marker::PhantomData;
use half::{bf16, f16};

/// How the 16-byte chunks of an operand's rows are permuted, as by TMA's swizzle of the same name:
/// bits 4 to 6 of a byte's address (4 and 5 for rows of 64 bytes, 4 for 32) are xored with as many
/// bits from bit 7 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// No swizzle: core matrices of 8 rows of 16 bytes.
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

/// K-major: the elements of a row of A, or of a column of B, are contiguous.
pub struct KMajor;

/// MN-major: the elements of a column of A, or of a row of B, are contiguous. 16-bit elements only:
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
    /// The operand at `tile`, whose swizzle pattern is aligned to its size (1024, 512 or 256
    /// bytes). `leading_bytes` and `stride_bytes` are multiples of 16:
    ///
    /// | | K-major | MN-major |
    /// | --- | --- | --- |
    /// | leading, no swizzle | from 16 bytes of k to the next | from 8 of k to the next 8 |
    /// | leading, swizzle | ignored | from the columns of one row to the next |
    /// | stride, no swizzle | from 8 rows to the next 8 | from 16 bytes of columns to the next |
    /// | stride, swizzle | from 8 rows to the next 8 | from 8 of k to the next 8 |
    #[inline(always)]
    pub fn new(tile: Shared<E>, leading_bytes: u32, stride_bytes: u32, swizzle: Swizzle) -> Self {
        let low = encode(tile.element(0)) | encode(leading_bytes) << 16;
        let high = encode(stride_bytes) | (swizzle as u32) << 30;
        MatrixDescriptor { bits: u64::from(high) << 32 | u64::from(low), marker: PhantomData }
    }

    /// The operand `bytes` further on, a multiple of 16: the next k step, or the next stage.
    ///
    /// The next k step is 32 bytes further in a K-major tile, inside the swizzled row, and k rows
    /// further in an MN-major tile.
    #[inline(always)]
    #[must_use]
    pub fn advance(self, bytes: u32) -> Self {
        // An address of shared memory does not overflow the field: adding to the low word is
        // enough.
        let low = (self.bits as u32).wrapping_add(bytes >> 4);
        MatrixDescriptor { bits: self.bits >> 32 << 32 | u64::from(low), marker: PhantomData }
    }

    /// The instruction's operand.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.bits
    }
}

impl<E: Element> MatrixDescriptor<E, KMajor> {
    /// A tile whose rows have `swizzle.row_bytes()` bytes of k, as TMA writes a box of that width.
    /// The following k are in the next tile.
    #[inline(always)]
    pub fn k_major(tile: Shared<E>, swizzle: Swizzle) -> Self {
        // The leading offset is ignored; the ISA page assumes 1.
        MatrixDescriptor::new(tile, 16, 8 * swizzle.row_bytes(), swizzle)
    }
}

impl<E: Element> MatrixDescriptor<E, MnMajor>
where
    MnMajor: Major<E>,
{
    /// A tile with one row per k, each of `swizzle.row_bytes()` bytes of columns, as TMA writes a
    /// box of that width: V of attention. The next columns are `leading_bytes` further.
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
