//! Layouts of operands in shared memory: an independent version of the PTX ISA's "Shared Memory
//! Matrix Layout".

use cuda_std::wgmma::Swizzle;

/// MMAs along k in a tile.
pub const STEPS: usize = 4;
/// The offset of coordinate `i` in a CuTe layout of one mode, as the ISA page writes them.
fn cute<const MODES: usize>(i: usize, shape: [usize; MODES], stride: [usize; MODES]) -> usize {
    let mut rest = i;
    let digits = shape.map(|extent| {
        let digit = rest % extent;
        rest /= extent;
        digit
    });
    assert_eq!(rest, 0, "coordinate {i} is outside of {shape:?}");
    digits.iter().zip(stride).map(|(digit, stride)| digit * stride).sum()
}

/// `Swizzle<B, 4, 3>` of CuTe: `B` bits of a byte's address from bit 4 on are xored with those from
/// bit 7 on.
pub fn swizzled(address: usize, swizzle: Swizzle) -> usize {
    let bits = swizzle_bits(swizzle);
    address ^ (address >> 7 & ((1 << bits) - 1)) << 4
}

fn swizzle_bits(swizzle: Swizzle) -> u32 {
    match swizzle {
        Swizzle::None => 0,
        Swizzle::B32 => 1,
        Swizzle::B64 => 2,
        Swizzle::B128 => 3,
    }
}

/// An operand's layout, as in its descriptor, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub mn_major: bool,
    pub swizzle: Swizzle,
    pub leading: usize,
    pub stride: usize,
}

/// More than any operand has.
const MANY: usize = 1 << 10;

impl Place {
    /// Byte offset of element `(mn, k)` before the swizzle, for elements of `size` bytes: the table
    /// "Canonical Layouts".
    pub fn canonical(&self, mn: usize, k: usize, size: usize) -> usize {
        let t = 16 / size;
        let (lbo, sbo) = (self.leading / size, self.stride / size);
        let chunks = 1 << swizzle_bits(self.swizzle);
        let elements = match (self.mn_major, self.swizzle) {
            (true, Swizzle::None) => {
                cute(mn, [t, 1, MANY], [1, t, sbo]) + cute(k, [8, MANY], [t, lbo])
            }
            (true, _) => {
                cute(mn, [t, chunks, MANY], [1, t, lbo]) + cute(k, [8, MANY], [chunks * t, sbo])
            }
            (false, Swizzle::None) => cute(mn, [8, MANY], [t, sbo]) + cute(k, [t, 2], [1, lbo]),
            (false, _) => cute(mn, [8, MANY], [chunks * t, sbo]) + cute(k, [t, 2], [1, t]),
        };
        elements * size
    }

    /// A dense tile of `[mn, STEPS * k]` elements of `size` bytes.
    pub fn dense(mn_major: bool, swizzle: Swizzle, mn: usize, k: usize, size: usize) -> Place {
        let row_bytes = 16 << swizzle_bits(swizzle);
        let (leading, stride) = match (mn_major, swizzle) {
            (true, Swizzle::None) => (8 * mn * size, 128),
            (true, _) => (row_bytes * STEPS * k, row_bytes * 8),
            (false, Swizzle::None) => (16 * mn, 128),
            (false, _) => (16, row_bytes * 8),
        };
        Place { mn_major, swizzle, leading, stride }
    }

    /// Byte offset of MMA `step` of `k` in such a tile; the rows of a K-major swizzle have the
    /// width of their pattern, and further k are in the next tile.
    pub fn start(&self, step: usize, mn: usize, k: usize) -> usize {
        let row_bytes = 16 << swizzle_bits(self.swizzle);
        match (self.mn_major, self.swizzle) {
            (_, Swizzle::None) => step * 2 * self.leading,
            (true, _) => step * k / 8 * self.stride,
            (false, _) => step * 32 / row_bytes * row_bytes * mn + step * 32 % row_bytes,
        }
    }
}

#[test]
fn canonical_layouts_are_the_isa_pages_examples() {
    let place = |mn_major, swizzle, leading, stride| Place { mn_major, swizzle, leading, stride };
    // tf32: each "exact layout", with the offsets of its table.
    let k_none = place(false, Swizzle::None, 64 * 4, 32 * 4);
    let k_32 = place(false, Swizzle::B32, 16, 64 * 4);
    for (mn, k) in (0..16).flat_map(|mn| (0..8).map(move |k| (mn, k))) {
        let exact = cute(mn, [8, 2], [4, 32]) + cute(k, [4, 4], [1, 64]);
        assert_eq!(k_none.canonical(mn, k, 4), exact * 4);
        let exact = cute(mn, [8, 2], [8, 64]) + cute(k, [4, 4], [1, 4]);
        assert_eq!(k_32.canonical(mn, k, 4), exact * 4);
    }
    // bf16.
    let mn_none = place(true, Swizzle::None, 128 * 2, 64 * 2);
    let mn_32 = place(true, Swizzle::B32, 128 * 2, 256 * 2);
    let mn_64 = place(true, Swizzle::B64, 256 * 2, 512 * 2);
    for (mn, k) in (0..64).flat_map(|mn| (0..16).map(move |k| (mn, k))) {
        let exact = cute(mn % 16, [8, 1, 2], [1, 8, 64]) + cute(k, [8, 2], [8, 128]);
        assert_eq!(mn_none.canonical(mn % 16, k, 2), exact * 2);
        let exact = cute(mn % 32, [8, 2, 2], [1, 8, 128]) + cute(k, [8, 2], [16, 256]);
        assert_eq!(mn_32.canonical(mn % 32, k, 2), exact * 2);
        let exact = cute(mn, [8, 4, 2], [1, 8, 256]) + cute(k, [8, 2], [32, 512]);
        assert_eq!(mn_64.canonical(mn, k, 2), exact * 2);
    }
}

#[test]
fn swizzles_are_the_isa_pages_figures() {
    // Row 3, k = 17 of f16: chunk 2 of the row is stored as chunk 2 ^ 3.
    assert_eq!(swizzled(3 * 128 + 34, Swizzle::B128), 3 * 128 + 16 + 2);
    // Row 3 of 64 bytes is in the second 128 bytes: chunk 2 of the row is stored as chunk 3.
    assert_eq!(swizzled(3 * 64 + 34, Swizzle::B64), 3 * 64 + 48 + 2);
    // Row 5 of 32 bytes is in the second 128 bytes: chunk 1 is stored as chunk 0.
    assert_eq!(swizzled(5 * 32 + 18, Swizzle::B32), 5 * 32 + 2);
    assert_eq!(swizzled(5 * 32 + 18, Swizzle::None), 5 * 32 + 18);
}
