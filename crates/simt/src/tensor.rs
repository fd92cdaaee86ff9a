//! Tensor maps, and the addresses of the elements of a TMA box.

use crate::device::Reduce;
use crate::flight::Piece;
use half::{bf16, f16};

/// Bytes that a swizzle moves as one.
const CHUNK: u64 = 16;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    U8,
    F16,
    Bf16,
    F32,
    U16,
    U32,
    U64,
}

impl Element {
    fn bytes(self) -> usize {
        match self {
            Element::U8 => 1,
            Element::F16 | Element::Bf16 | Element::U16 => 2,
            Element::F32 | Element::U32 => 4,
            Element::U64 => 8,
        }
    }

    /// `old` and `new`, combined element by element.
    pub fn reduce(self, reduce: Reduce, old: &[u8], new: &[u8]) -> Vec<u8> {
        let pairs = old.chunks_exact(self.bytes()).zip(new.chunks_exact(self.bytes()));
        pairs.flat_map(|(old, new)| self.reduce_one(reduce, old, new)).collect()
    }

    fn reduce_one(self, reduce: Reduce, old: &[u8], new: &[u8]) -> Vec<u8> {
        let float = |old: f32, new: f32| match reduce {
            Reduce::Add => old + new,
            Reduce::Min => old.min(new),
            Reduce::Max => old.max(new),
        };
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        let (old, new) = (word(old), word(new));
        let bits = match self {
            Element::F32 => {
                float(f32::from_bits(old as u32), f32::from_bits(new as u32)).to_bits().into()
            }
            // f32 has enough bits that rounding the sum twice equals rounding it once.
            Element::F16 => {
                let [old, new] = [old, new].map(|bits| f16::from_bits(bits as u16).to_f32());
                f16::from_f32(float(old, new)).to_bits().into()
            }
            Element::Bf16 => {
                let [old, new] = [old, new].map(|bits| bf16::from_bits(bits as u16).to_f32());
                bf16::from_f32(float(old, new)).to_bits().into()
            }
            Element::U8 | Element::U16 | Element::U32 | Element::U64 => match reduce {
                Reduce::Add => old.wrapping_add(new),
                Reduce::Min => old.min(new),
                Reduce::Max => old.max(new),
            },
        };
        u64::to_le_bytes(bits)[..self.bytes()].to_vec()
    }
}

/// A tensor in global memory, and the shape of the box that is copied; innermost dimension first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    pub address: u64,
    pub element: Element,
    dims: Vec<u64>,
    /// Stride of each dimension; the innermost one's is the size of an element.
    strides_bytes: Vec<u64>,
    box_dims: Vec<u64>,
    /// How many address bits the swizzle XORs into the chunk index: 0 to 3.
    swizzle: u32,
}

impl TensorMap {
    /// Bytes of a map.
    pub const BYTES: usize = 128;

    /// Reads the emulator's encoding.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, String> {
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if &bytes[..8] != b"simt-map" {
            return Err("the parameter is no encoded tensor map".to_owned());
        }
        let element = match bytes[16] {
            0 => Element::U8,
            1 => Element::F16,
            2 => Element::Bf16,
            3 => Element::F32,
            4 => Element::U16,
            5 => Element::U32,
            6 => Element::U64,
            code => return Err(format!("a tensor map with the unknown element type {code}")),
        };
        let rank = usize::from(bytes[17]);
        if !(1..=5).contains(&rank) {
            return Err(format!("a tensor map of {rank} dimensions: 1 to 5 are possible"));
        }
        let strides = (0..rank - 1).map(|axis| u64_at(64 + 8 * axis));
        Ok(TensorMap {
            address: u64_at(8),
            element,
            dims: (0..rank).map(|axis| u64_at(24 + 8 * axis)).collect(),
            strides_bytes: [element.bytes() as u64].into_iter().chain(strides).collect(),
            box_dims: (0..rank).map(|axis| u32_at(96 + 4 * axis).into()).collect(),
            swizzle: u32::from(bytes[18]).min(3),
        })
    }

    /// Bytes of the box.
    pub fn box_bytes(&self) -> u32 {
        (self.box_dims.iter().product::<u64>() * self.element.bytes() as u64) as u32
    }

    /// Why the box cannot be stored or added. The ISA does not say so, but an H200 refuses negative
    /// coordinates in a store, and writes units of 16 bytes, also past the end of a row.
    pub fn check_store(&self, coords: &[i32]) -> Result<(), String> {
        if let Some(at) = coords.iter().find(|&&at| at < 0) {
            return Err(format!("a tensor store at coordinate {at}: expected 0 or more"));
        }
        let (len, first) = (self.dims[0], coords[0] as u64);
        let ends_inside = first < len && len < first + self.box_dims[0];
        let row_bytes = len * self.element.bytes() as u64;
        if ends_inside && !row_bytes.is_multiple_of(CHUNK) {
            return Err(format!(
                "a tensor store past the end of rows of {row_bytes} bytes: it writes units of \
                 {CHUNK} bytes, expected a row length that is a multiple"
            ));
        }
        Ok(())
    }

    /// Why the box cannot be copied to or from `shared`. On an H200 a row that does not start at a
    /// multiple of 16 bytes is an illegal instruction.
    pub fn check(&self, coords: &[i32], shared: u64) -> Result<(), String> {
        let rank = self.dims.len();
        if coords.len() != rank {
            return Err(format!(
                "{} coordinates for a tensor map of {rank} dimensions",
                coords.len()
            ));
        }
        const ALIGN: u64 = 128;
        if !shared.is_multiple_of(ALIGN) {
            return Err(format!(
                "a tensor copy with the shared address {shared:#x}: expected a multiple of {ALIGN}"
            ));
        }
        let first_byte = i64::from(coords[0]) * self.element.bytes() as i64;
        if first_byte % 16 != 0 {
            return Err(format!(
                "a tensor copy from coordinate {}, byte {first_byte} of a row: expected a multiple \
                 of 16",
                coords[0]
            ));
        }
        Ok(())
    }

    /// From the tensor to `shared`, with zeros for elements outside of the tensor.
    pub fn load(&self, coords: &[i32], shared: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.each_chunk(coords, shared, |global, shared, len| {
            pieces.push(Piece { src: global, dst: shared, len });
        });
        pieces
    }

    /// From `shared` to the tensor, without elements outside of it.
    pub fn store(&self, coords: &[i32], shared: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.each_chunk(coords, shared, |global, shared, len| {
            pieces.extend(global.map(|dst| Piece { src: Some(shared), dst, len }));
        });
        pieces
    }

    /// Calls `f` for each run of bytes that is contiguous in the tensor and in shared memory: its
    /// address in the tensor (`None` outside), its address in shared memory, its length.
    fn each_chunk(&self, coords: &[i32], shared: u64, mut f: impl FnMut(Option<u64>, u64, usize)) {
        let size = self.element.bytes() as u64;
        let inner = self.box_dims[0] * size;
        let rows: u64 = self.box_dims[1..].iter().product();
        for row in 0..rows {
            let row_address = self.row_address(coords, row);
            // The bytes of the row that are inside of the tensor.
            let first = i64::from(coords[0]);
            let inside = |element: i64| (element - first).clamp(0, self.box_dims[0] as i64) as u64;
            let (start, end) = match row_address {
                Some(_) => (inside(0) * size, inside(self.dims[0] as i64) * size),
                None => (0, 0),
            };
            let mut at = 0;
            while at < inner {
                let linear = shared + row * inner + at;
                let mut next = inner.min(at + CHUNK - linear % CHUNK);
                let border = [start, end].into_iter().find(|&border| at < border && border < next);
                next = border.unwrap_or(next);
                let is_inside = (start..end).contains(&at);
                let global = row_address
                    .filter(|_| is_inside)
                    .map(|address| address.wrapping_add_signed(first * size as i64) + at);
                f(global, self.swizzled(linear), (next - at) as usize);
                at = next;
            }
        }
    }

    /// Where the row of the box starts in the tensor's memory, with 0 as the innermost coordinate;
    /// `None` if it is outside.
    fn row_address(&self, coords: &[i32], row: u64) -> Option<u64> {
        let mut rest = row;
        let mut address = self.address;
        for (axis, &coord) in coords.iter().enumerate().skip(1) {
            let at = i64::from(coord) + (rest % self.box_dims[axis]) as i64;
            rest /= self.box_dims[axis];
            let at = u64::try_from(at).ok().filter(|&at| at < self.dims[axis])?;
            address += at * self.strides_bytes[axis];
        }
        Some(address)
    }

    fn swizzled(&self, address: u64) -> u64 {
        swizzle(address, self.swizzle)
    }
}

/// `address` with a swizzle of `bits` bits (rows of `16 << bits` bytes): bits 4 and up are XORed
/// with bits 7 and up.
pub(crate) fn swizzle(address: u64, bits: u32) -> u64 {
    address ^ (address >> 3 & ((1 << bits) - 1) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(dims: &[u64], strides_bytes: &[u64], box_dims: &[u64], swizzle: u32) -> TensorMap {
        TensorMap {
            address: 1 << 20,
            element: Element::F16,
            dims: dims.to_vec(),
            strides_bytes: [&[2], strides_bytes].concat(),
            box_dims: box_dims.to_vec(),
            swizzle,
        }
    }

    #[test]
    fn a_box_over_the_edge_is_filled_with_zeros() {
        let map = map(&[10, 3], &[32], &[8, 2], 0);
        let piece =
            |src: Option<u64>, dst, len| Piece { src: src.map(|s| s + (1 << 20)), dst, len };
        // Elements 6 to 14 of rows 2 and 3: 4 are inside, of the first row.
        let expected =
            [piece(Some(2 * 32 + 12), 1024, 8), piece(None, 1032, 8), piece(None, 1040, 16)];
        assert_eq!(map.load(&[6, 2], 1024), expected);
        assert_eq!(
            map.store(&[6, 2], 1024),
            [Piece { src: Some(1024), dst: (1 << 20) + 76, len: 8 }]
        );
        // Two elements before the start.
        let expected = [piece(None, 1024, 4), piece(Some(0), 1028, 12), piece(None, 1040, 4)];
        assert_eq!(map.load(&[-2, 0], 1024)[..2], expected[..2]);
        assert_eq!(map.load(&[-2, -1], 1024)[0], piece(None, 1024, 16));
    }

    #[test]
    fn chunks_of_a_row_change_places() {
        // Row r of 128 bytes: chunk c is at c ^ (r % 8).
        for (row, chunk) in [(0, 3), (1, 0), (5, 7), (9, 2)] {
            let address = 2048 + row * 128 + chunk * 16;
            assert_eq!(swizzle(address, 3), 2048 + row * 128 + (chunk ^ (row % 8)) * 16);
        }
        // Rows of 64 bytes change every second row, those of 32 every fourth.
        assert_eq!(swizzle(64 * 3 + 16, 2), 64 * 3);
        assert_eq!(swizzle(32 * 5, 1), 32 * 5 + 16);
    }
}
