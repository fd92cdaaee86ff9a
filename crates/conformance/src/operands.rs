//! Where the operands of `wgmma` lie in shared memory: the PTX ISA's "Shared Memory Matrix Layout",
//! as tiles that TMA leaves.

use conformance_kernels::wgmma::Layout;
use cuda_std::wgmma::Swizzle;

use crate::products::Operand;

/// Products of k that a tile has at most.
const MAX_STEPS: usize = 4;

/// An operand's place in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Whether elements of a column of A, or a row of B, lie side by side.
    pub mn_major: bool,
    /// How chunks of 16 bytes are exchanged.
    pub swizzle: Swizzle,
}

impl Place {
    /// Products that one tile holds: a K-major row is as wide as the swizzle's.
    pub fn num_steps(self) -> usize {
        match (self.mn_major, self.swizzle) {
            (false, Swizzle::B32 | Swizzle::B64) => self.swizzle.row_bytes() as usize / 32,
            _ => MAX_STEPS,
        }
    }

    /// What a kernel is told of an operand of `mn` rows or columns, and of `k` elements.
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

    /// The byte of element `(mn, k)` of elements of `size` bytes, `num_mn` and `num_k` in all.
    fn byte(self, (mn, k): (usize, usize), size: usize, (num_mn, num_k): (usize, usize)) -> usize {
        let row_bytes = self.swizzle.row_bytes() as usize;
        // Along the dimension that is contiguous, and across.
        let (along, across, num_across) =
            if self.mn_major { (mn * size, k, num_k) } else { (k * size, mn, num_mn) };
        if self.swizzle == Swizzle::None {
            // Cores of 8 rows of 16 bytes, those of one k behind each other.
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

    /// Writes an operand of elements of `size` bytes at `start` of `image`, which grows.
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

/// Of lines of 128 bytes, in eight chunks of 16, the chunks are exchanged: of 128 bytes by the
/// line's number modulo 8, of 64 bytes those of a half by it modulo 4, of 32 bytes those of a pair.
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

/// A's registers of all products, `[step, 128, 4]`: the figures "Register fragment layout for
/// matrix A".
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
