//! Layouts of the operands of `wgmma` in shared memory: the PTX ISA's "Shared Memory Matrix
//! Layout", as tiles that TMA writes.

use conformance_kernels::wgmma::Layout;
use cuda_std::wgmma::Swizzle;

use crate::mma_reference::Operand;

/// Most MMAs along k in a tile.
const MAX_STEPS: usize = 4;

/// An operand's layout in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct OperandLayout {
    /// Whether elements of a column of A, or a row of B, are contiguous.
    pub mn_major: bool,
    /// The permutation of 16-byte chunks.
    pub swizzle: Swizzle,
}

impl OperandLayout {
    /// MMAs along k in one tile: a K-major row has the swizzle's width.
    pub fn num_steps(self) -> usize {
        match (self.mn_major, self.swizzle) {
            (false, Swizzle::B32 | Swizzle::B64) => self.swizzle.row_bytes() as usize / 32,
            _ => MAX_STEPS,
        }
    }

    /// The kernel's argument for an operand of `mn` rows or columns and `k` elements.
    pub fn layout(self, mn: usize, k: usize) -> Layout {
        let row_bytes = self.swizzle.row_bytes();
        let chunks_of_mn = 16 * mn as u32;
        let (leading_bytes, stride_bytes, advance_bytes) = match (self.mn_major, self.swizzle) {
            (_, Swizzle::None) => (chunks_of_mn, 128, 2 * chunks_of_mn),
            (false, _) => (16, 8 * row_bytes, 32),
            (true, _) => (row_bytes * k as u32, 8 * row_bytes, 16 * row_bytes),
        };
        Layout { swizzle: self.swizzle, leading_bytes, stride_bytes, advance_bytes }
    }

    /// Byte offset of element `(mn, k)` of an operand of `num_mn` by `num_k` elements of `size`
    /// bytes.
    fn byte(self, (mn, k): (usize, usize), size: usize, (num_mn, num_k): (usize, usize)) -> usize {
        let row_bytes = self.swizzle.row_bytes() as usize;
        // Along the contiguous dimension, and across it.
        let (along, across, num_across) =
            if self.mn_major { (mn * size, k, num_k) } else { (k * size, mn, num_mn) };
        if self.swizzle == Swizzle::None {
            // Core matrices of 8 rows of 16 bytes; those of one k are consecutive.
            let core = if self.mn_major {
                across / 8 * (num_mn / 8) + along / 16
            } else {
                along / 16 * (num_mn / 8) + across / 8
            };
            return core * 128 + across % 8 * 16 + along % 16;
        }
        let linear = (along / row_bytes * num_across + across) * row_bytes + along % row_bytes;
        swizzled(linear, self.swizzle)
    }

    /// Writes an operand of elements of `size` bytes at `start` of `image`, which is extended.
    pub fn write(self, operand: &Operand, size: usize, start: usize, image: &mut Vec<u8>) {
        let all = (operand.codes.len(), operand.codes[0].len());
        for (mn, codes) in operand.codes.iter().enumerate() {
            for (k, code) in codes.iter().enumerate() {
                let at = start + self.byte((mn, k), size, all);
                image.resize(image.len().max(at + size), 0);
                image[at..at + size].copy_from_slice(&code.to_le_bytes()[..size]);
            }
        }
    }
}

/// Permutes the eight 16-byte chunks of each 128 bytes, by the index of the 128 bytes: for rows of
/// 128 bytes xored with it modulo 8, for 64 bytes modulo 4 within a half, for 32 bytes within a
/// pair.
pub fn swizzled(byte: usize, swizzle: Swizzle) -> usize {
    let (line, chunk) = (byte / 128, byte / 16 % 8);
    let chunk = match swizzle {
        Swizzle::None => chunk,
        Swizzle::B32 => chunk ^ (line % 2),
        Swizzle::B64 => chunk ^ (line % 4),
        Swizzle::B128 => chunk ^ (line % 8),
    };
    line * 128 + chunk * 16 + byte % 16
}

/// A's registers of all MMAs, `[step, 128, 4]`: the figures "Register fragment layout for matrix
/// A".
pub fn fragments(a: &Operand, size: usize) -> Vec<u32> {
    let packed = 4 / size;
    let k = 32 / size;
    let mut words = Vec::new();
    for step in 0..a.codes[0].len() / k {
        for (thread, i) in (0..128).flat_map(|thread| (0..4).map(move |i| (thread, i))) {
            let row = thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
            let first = step * k + thread % 4 * packed + i / 2 * (k / 2);
            let codes = a.codes[row][first..first + packed].iter();
            words.push(codes.rev().fold(0, |word, &code| word << (8 * size) | u32::from(code)));
        }
    }
    words
}
