//! Operands of `wgmma`: matrix descriptors, and the addresses of elements.

use gpu_types::{E4m3, E5m2};
use half::{bf16, f16};

use crate::device::Element;
use crate::tensor::swizzle;

/// Bytes of a row of a core matrix, which a swizzle moves as one.
const CORE_BYTES: u64 = 16;

/// Rows of a core matrix.
const CORE_ROWS: u64 = 8;

/// Extent of k of one instruction: 32 bytes.
pub(crate) fn k_of(element: Element) -> usize {
    match element {
        Element::F16 | Element::Bf16 => 16,
        Element::E4m3 | Element::E5m2 => 32,
    }
}

/// The value of the first element in `bytes`.
pub(crate) fn decode(element: Element, bytes: &[u8]) -> f32 {
    let pair = || u16::from_le_bytes([bytes[0], bytes[1]]);
    match element {
        Element::F16 => f16::from_bits(pair()).to_f32(),
        Element::Bf16 => bf16::from_bits(pair()).to_f32(),
        Element::E4m3 => E4m3::from_bits(bytes[0]).to_f32(),
        Element::E5m2 => E5m2::from_bits(bytes[0]).to_f32(),
    }
}

/// Rounded to f16, to nearest even.
pub(crate) fn round_to_f16(x: f64) -> f32 {
    // `half` reads the upper 32 bits only: their last bit is made sticky for those below.
    let sticky = u64::from(x.to_bits() as u32 != 0) << 32;
    f16::from_f64(f64::from_bits(x.to_bits() & !0xffff_ffff | sticky)).to_f32()
}

/// Row and column of element `i` of a lane's fragment of A, `k` elements wide: PTX ISA, "Register
/// Fragments for wgmma.mma_async", m64k16 and m64k32, for the lane's warp.
pub(crate) fn fragment_element(lane: usize, i: usize, k: usize) -> (usize, usize) {
    // Adjacent elements in one register.
    let together = k / 8;
    let (register, within) = (i / together, i % together);
    let row = lane / 4 + register % 2 * 8;
    (row, lane % 4 * together + within + register / 2 * (k / 2))
}

/// A matrix `[rows, k]` in shared memory, as a descriptor describes it.
pub(crate) struct Matrix {
    pub element: Element,
    start: u64,
    /// Leading and stride byte offset.
    leading: u64,
    stride: u64,
    /// Bits of the swizzle: rows of `16 << bits` bytes.
    swizzle: u32,
    /// Whether elements of a column are adjacent, not those of a row.
    mn_major: bool,
}

impl Matrix {
    /// Reads a descriptor: PTX ISA, "Matrix Descriptor Format".
    pub fn new(descriptor: u64, element: Element, mn_major: bool) -> Result<Self, String> {
        let field = |at: u32| (descriptor >> at & 0x3fff) << 4;
        if descriptor >> 49 & 7 != 0 {
            return Err("a matrix descriptor with a base offset: align the tile to the period of \
                        its swizzle"
                .to_owned());
        }
        if mn_major && k_of(element) != 16 {
            return Err("only 16-bit elements can be MN-major".to_owned());
        }
        Ok(Matrix {
            element,
            start: field(0),
            leading: field(16),
            stride: field(32),
            swizzle: [0, 3, 2, 1][(descriptor >> 62) as usize],
            mn_major,
        })
    }

    /// Address of an element: PTX ISA, "Strides" and the canonical layouts there.
    pub fn address(&self, row: usize, col: usize) -> u64 {
        let element_bytes = 32 / k_of(self.element) as u64;
        let (row, col) = (row as u64, col as u64);
        let row_bytes = CORE_BYTES << self.swizzle;
        let linear = if self.mn_major {
            let byte = row * element_bytes;
            let (across, along) = if self.swizzle == 0 {
                (self.stride, self.leading)
            } else {
                (self.leading, self.stride)
            };
            byte / row_bytes * across
                + byte % row_bytes
                + col % CORE_ROWS * row_bytes
                + col / CORE_ROWS * along
        } else {
            let byte = col * element_bytes;
            let (core, within) = if self.swizzle == 0 {
                (byte / CORE_BYTES * self.leading, byte % CORE_BYTES)
            } else {
                (0, byte)
            };
            core + within + row % CORE_ROWS * row_bytes + row / CORE_ROWS * self.stride
        };
        swizzle(self.start + linear, self.swizzle)
    }

    /// The contiguous runs of bytes that hold the rows: address and length. For an MN-major matrix
    /// `rows` spans whole groups of eight.
    pub fn runs(&self, rows: std::ops::Range<usize>) -> Vec<(u64, usize)> {
        const LEN: usize = CORE_BYTES as usize;
        let k = k_of(self.element);
        if self.mn_major {
            let groups = rows.step_by(8);
            groups.flat_map(|row| (0..k).map(move |col| (self.address(row, col), LEN))).collect()
        } else {
            let cores = [0, k / 2];
            rows.flat_map(|row| cores.map(|col| (self.address(row, col), LEN))).collect()
        }
    }

    /// Row and column of element `i` of run `run`, where run 0 starts at row 0.
    pub fn element_of_run(&self, run: usize, i: usize) -> (usize, usize) {
        let k = k_of(self.element);
        if self.mn_major { (run / k * 8 + i, run % k) } else { (run / 2, run % 2 * (k / 2) + i) }
    }
}
