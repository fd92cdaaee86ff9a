//! The host's description of a tensor map. Host only.

use core::fmt;

use super::EncodedTensorMap;

/// Most dimensions of a tensor.
const MAX_RANK: usize = 5;

/// Most elements of a box in a dimension.
const MAX_BOX_DIM: u32 = 256;

/// Addresses, strides and the innermost rows of a box are multiples of this.
const ALIGN_BYTES: u64 = 16;

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Bytes, 8-bit floats among them.
    U8,
    /// `half::f16`.
    F16,
    /// `half::bf16`.
    Bf16,
    /// `f32`.
    F32,
    /// `u16`.
    U16,
    /// `u32`.
    U32,
    /// `u64`.
    U64,
}

impl Element {
    /// Size of an element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            Element::U8 => 1,
            Element::F16 | Element::Bf16 | Element::U16 => 2,
            Element::F32 | Element::U32 => 4,
            Element::U64 => 8,
        }
    }

    /// The driver's number for it: a `CUtensorMapDataType`.
    pub const fn driver_code(self) -> u32 {
        match self {
            Element::U8 => 0,
            Element::U16 => 1,
            Element::U32 => 2,
            Element::U64 => 4,
            Element::F16 => 6,
            Element::F32 => 7,
            Element::Bf16 => 9,
        }
    }

    /// The emulator's number for it.
    const fn emulator_code(self) -> u8 {
        match self {
            Element::U8 => 0,
            Element::F16 => 1,
            Element::Bf16 => 2,
            Element::F32 => 3,
            Element::U16 => 4,
            Element::U32 => 5,
            Element::U64 => 6,
        }
    }
}

/// How the 16-byte chunks of a box's rows are permuted in shared memory, so that a column of chunks
/// is spread over the banks. Discriminants are those of the driver (`CUtensorMapSwizzle`) and the
/// emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Swizzle {
    /// No swizzle.
    None = 0,
    /// Address bit 4 is xored with bit 7.
    B32 = 1,
    /// Address bits 4 and 5 are xored with bits 7 and 8.
    B64 = 2,
    /// Address bits 4 to 6 are xored with bits 7 to 9.
    B128 = 3,
}

impl Swizzle {
    /// Longest row of a box, in bytes; `None` if there is no limit.
    pub const fn max_row_bytes(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 => Some(128),
        }
    }
}

/// Size of an L2 fetch when a copy misses. Discriminants are the driver's
/// (`CUtensorMapL2promotion`); the emulator has no caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum L2Promotion {
    /// 128 bytes, a cache line.
    #[default]
    B128 = 2,
    /// 256 bytes: for tensors of which several blocks soon read adjacent cache lines.
    B256 = 3,
}

/// A tensor in global memory and the box of it that one copy moves, dimensions innermost first.
/// There is no interleave, element strides are 1, and out-of-bounds elements are read as zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapSpec {
    /// Address of the tensor, a multiple of 16.
    pub address: u64,
    /// Type of its elements.
    pub element: Element,
    /// Elements of the tensor in each dimension: 1 to 5 dimensions, each of 1 to 2^32.
    pub dims: Vec<u64>,
    /// Bytes from an element to the next of dimension 1, 2, ...: multiples of 16 below 2^40, one
    /// fewer than dimensions.
    pub strides_bytes: Vec<u64>,
    /// Elements of the box in each dimension, 1 to 256; the innermost ones are a multiple of 16
    /// bytes, and no more than the swizzle has room for.
    pub box_dims: Vec<u32>,
    /// Swizzle of the box in shared memory.
    pub swizzle: Swizzle,
    /// Size of an L2 fetch.
    pub l2_promotion: L2Promotion,
}

/// Why a tensor map cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorMapError {
    /// The number of dimensions.
    Rank(usize),
    /// The number of strides.
    NumStrides {
        /// Strides of the specification.
        given: usize,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// The number of dimensions of the box.
    BoxRank {
        /// Dimensions of the box.
        given: usize,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// The address of the tensor.
    Address(u64),
    /// The size of a dimension.
    Dim {
        /// The dimension.
        axis: usize,
        /// Elements of the dimension.
        elems: u64,
    },
    /// The stride of a dimension.
    Stride {
        /// The dimension.
        axis: usize,
        /// Stride of the dimension.
        bytes: u64,
    },
    /// The size of the box in a dimension.
    BoxDim {
        /// The dimension.
        axis: usize,
        /// Elements of the box in the dimension.
        elems: u32,
    },
    /// The innermost dimension of the box.
    BoxRow {
        /// Size of the dimension.
        bytes: u64,
        /// Swizzle of the box.
        swizzle: Swizzle,
    },
}

impl fmt::Display for TensorMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TensorMapError::Rank(rank) => {
                write!(f, "a tensor of {rank} dimensions: expected 1 to {MAX_RANK}")
            }
            TensorMapError::NumStrides { given, rank } => {
                let expected = rank - 1;
                write!(f, "{given} strides for {rank} dimensions: expected {expected}")
            }
            TensorMapError::BoxRank { given, rank } => {
                write!(f, "a box of {given} dimensions: expected {rank}, as the tensor has")
            }
            TensorMapError::Address(address) => {
                write!(f, "a tensor at {address:#x}: expected a multiple of {ALIGN_BYTES}")
            }
            TensorMapError::Dim { axis, elems } => {
                write!(f, "dimension {axis} has {elems} elements: expected 1 to 2^32")
            }
            TensorMapError::Stride { axis, bytes } => write!(
                f,
                "dimension {axis} has a stride of {bytes} bytes: expected a multiple of \
                 {ALIGN_BYTES} below 2^40"
            ),
            TensorMapError::BoxDim { axis, elems } => write!(
                f,
                "the box has {elems} elements in dimension {axis}: expected 1 to {MAX_BOX_DIM}"
            ),
            TensorMapError::BoxRow { bytes, swizzle } => {
                write!(
                    f,
                    "the box has rows of {bytes} bytes: expected a multiple of {ALIGN_BYTES}"
                )?;
                match swizzle.max_row_bytes() {
                    Some(most) => write!(f, ", at most {most} as its swizzle is {swizzle:?}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl core::error::Error for TensorMapError {}

impl TensorMapSpec {
    /// Checks the limits of the driver's `cuTensorMapEncodeTiled`.
    ///
    /// # Errors
    /// The first [`TensorMapError`], which names the field, its value and the expected values.
    pub fn check(&self) -> Result<(), TensorMapError> {
        let rank = self.dims.len();
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(TensorMapError::Rank(rank));
        }
        if self.strides_bytes.len() != rank - 1 {
            return Err(TensorMapError::NumStrides { given: self.strides_bytes.len(), rank });
        }
        if self.box_dims.len() != rank {
            return Err(TensorMapError::BoxRank { given: self.box_dims.len(), rank });
        }
        if !self.address.is_multiple_of(ALIGN_BYTES) {
            return Err(TensorMapError::Address(self.address));
        }
        for (axis, &elems) in self.dims.iter().enumerate() {
            if !(1..=1 << 32).contains(&elems) {
                return Err(TensorMapError::Dim { axis, elems });
            }
        }
        for (outer, &bytes) in self.strides_bytes.iter().enumerate() {
            if !bytes.is_multiple_of(ALIGN_BYTES) || bytes >= 1 << 40 {
                return Err(TensorMapError::Stride { axis: outer + 1, bytes });
            }
        }
        self.check_box()
    }

    fn check_box(&self) -> Result<(), TensorMapError> {
        for (axis, &elems) in self.box_dims.iter().enumerate() {
            if !(1..=MAX_BOX_DIM).contains(&elems) {
                return Err(TensorMapError::BoxDim { axis, elems });
            }
        }
        let bytes = u64::from(self.box_dims[0]) * self.element.size_bytes();
        let fits = self.swizzle.max_row_bytes().is_none_or(|most| bytes <= most);
        if !bytes.is_multiple_of(ALIGN_BYTES) || !fits {
            return Err(TensorMapError::BoxRow { bytes, swizzle: self.swizzle });
        }
        Ok(())
    }

    /// Bytes of a box, which the mbarrier of a load expects.
    pub fn box_bytes(&self) -> u64 {
        self.box_dims.iter().map(|&elems| u64::from(elems)).product::<u64>()
            * self.element.size_bytes()
    }

    /// The map in the emulator's encoding, in place of the driver's opaque one.
    ///
    /// # Panics
    /// If [`TensorMapSpec::check`] rejects the number of dimensions.
    pub fn emulated(&self) -> EncodedTensorMap {
        let mut map = [0; 128];
        map[0..8].copy_from_slice(b"simt-map");
        map[8..16].copy_from_slice(&self.address.to_le_bytes());
        map[16] = self.element.emulator_code();
        map[17] = self.dims.len() as u8;
        map[18] = self.swizzle as u8;
        for axis in 0..MAX_RANK {
            let dim = self.dims.get(axis).copied().unwrap_or(1);
            let box_dim = self.box_dims.get(axis).copied().unwrap_or(1);
            map[24 + 8 * axis..][..8].copy_from_slice(&dim.to_le_bytes());
            map[96 + 4 * axis..][..4].copy_from_slice(&box_dim.to_le_bytes());
        }
        for (outer, stride) in self.strides_bytes.iter().enumerate() {
            map[64 + 8 * outer..][..8].copy_from_slice(&stride.to_le_bytes());
        }
        EncodedTensorMap(map)
    }
}
