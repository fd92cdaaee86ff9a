//! Stored elements to f32, bit for bit as ggml converts them, and their products with x: one
//! function a format, which unpacks a block to small integers and scales.
//!
//! The functions are straight-line code that the compiler vectorises; `pulp` compiles it for AVX-512,
//! for AVX2, for NEON and for any processor, and chooses when the program runs.
//!
//! Source: the `block_*` structures in ggml's ggml-common.h and `dequantize_row_*` in
//! ggml-quants.c.

mod byte_products;
mod expand;
mod four_bit;
pub mod fp8;
mod iq;
mod k;
mod lanes;
mod legacy;
mod plain;
mod plain_tiles;
mod products;
mod quantize;
mod rows;
mod tiles;

use byte_products::ByteBlocks;
use lanes::{Lanes, Portable};
use plain::Plain;
use std::marker::PhantomData;

use gpu_types::BlockFormat;
use gpu_types::Dtype;

/// The instructions of the processor that the program runs on.
pub use pulp::Arch;

pub use byte_products::{ByteProducts, ByteRows, Halves};
pub use expand::{Expander, expander};
pub use plain::PlainProducts;
pub use plain_tiles::{FillTile, PackedRows, TileColumn, multiply_add};
pub use products::{IntegerRows, Products};
pub use quantize::quantizer;
pub use rows::WeightRows;
pub use tiles::{TILE_COLUMNS, TILE_ROWS, Tile};

/// Codecs of each family of formats.
const CODECS: [&[(BlockFormat, Codec)]; 4] =
    [legacy::CODECS, k::CODECS, four_bit::CODECS, iq::CODECS];

/// Converts whole blocks to as many f32 as they hold, with the instructions of a processor. The
/// scales of E4M3 are not in it.
pub type Decoder = fn(Arch, &[u8], &mut [f32]);

/// A block's elements: `scales[group] * levels[i] + offsets[group]`, of as many groups as there are
/// scales, equal parts of the block that follow each other.
struct Levels<const ELEMS: usize, const GROUPS: usize> {
    levels: [i8; ELEMS],
    scales: [f32; GROUPS],
    /// Zeros in formats without.
    offsets: [f32; GROUPS],
}

/// A format in blocks of `ELEMS` elements, `BYTES` bytes each, with a scale for each of `GROUPS`
/// groups.
trait Blocks<const BYTES: usize, const ELEMS: usize, const GROUPS: usize> {
    /// Whether groups have offsets.
    const HAS_OFFSETS: bool = false;

    /// What a block holds.
    fn unpack(lanes: impl Lanes, block: &[u8; BYTES]) -> Levels<ELEMS, GROUPS>;
}

/// Unpacks whole blocks: levels, and scales and offsets of their groups.
type Unpacker = fn(Arch, &[u8], &mut [i8], &mut [f32], &mut [f32]);

/// Inner products of rows of whole blocks with some rows of x, the first of which is given. Gives how
/// many rows of x, and calls the last argument with the row of x, the row of the weight and their
/// product.
type RowProducts = fn(Arch, &[u8], &IntegerRows, usize, &mut dyn FnMut(usize, usize, f32)) -> usize;

/// A format whose elements are small integers with scales.
#[derive(Clone, Copy)]
pub struct IntegerFormat {
    unpack: Unpacker,
    rows_times_x: RowProducts,
    /// Products with few rows of x, which has its halves so.
    byte_products: Option<(ByteProducts, Halves)>,
    block_bytes: usize,
    block_elems: usize,
    /// Elements that share a scale: 16 or 32.
    group: usize,
    has_offsets: bool,
}

impl IntegerFormat {
    /// Products with few rows of x, where products of bytes are quick; x has its halves so.
    pub fn byte_products(&self, arch: Arch) -> Option<(ByteProducts, Halves)> {
        /// Whether the processor has products of bytes.
        struct Asked<'a>(&'a mut bool);
        impl WithLanes for Asked<'_> {
            fn run(self, lanes: impl Lanes) {
                *self.0 = lanes.has_byte_products();
            }
        }
        let mut has_them = false;
        dispatch(arch, Asked(&mut has_them));
        self.byte_products.filter(|_| has_them)
    }
}

/// A type whose elements stand alone.
#[derive(Clone, Copy)]
pub struct PlainFormat {
    /// Products with few rows of x.
    pub products: PlainProducts,
    /// Fills tiles for products with many.
    pub fill_tile: FillTile,
}

/// How products with a weight are computed.
#[derive(Clone, Copy)]
pub enum Kernels {
    /// In f32.
    Plain(PlainFormat),
    /// In integers, of a format in blocks.
    Integers(IntegerFormat),
}

/// What is computed with stored elements.
#[derive(Clone, Copy)]
pub struct Codec {
    /// Conversion of the elements to f32.
    pub decode: Decoder,
    /// Products.
    pub kernels: Kernels,
}

impl Codec {
    /// That of `dtype`, if it is one that weights are stored in.
    pub fn of(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::F32 => Codec::of_plain::<plain::F32, _>(),
            Dtype::F16 => Codec::of_plain::<plain::F16, _>(),
            Dtype::BF16 => Codec::of_plain::<plain::BF16, _>(),
            Dtype::F8_E4M3 | Dtype::F8_E4M3_BLOCKS => Codec::of_plain::<plain::E4M3, _>(),
            Dtype::Blocks(format) => {
                let mut codecs = CODECS.iter().copied().flatten();
                codecs.find(|(of, _)| *of == format).expect("every format has one").1
            }
            Dtype::U32 => return None,
        })
    }

    const fn of_plain<F: Plain<BYTES>, const BYTES: usize>() -> Self {
        let products = plain::products::<F, _>;
        let kernels = PlainFormat { products, fill_tile: plain_tiles::fill::<F, _> };
        Codec { decode: decode_plain::<F, _>, kernels: Kernels::Plain(kernels) }
    }

    const fn of_blocks<
        F: Blocks<BYTES, ELEMS, GROUPS>,
        const BYTES: usize,
        const ELEMS: usize,
        const GROUPS: usize,
    >() -> Self {
        let integers = IntegerFormat {
            unpack: unpack::<F, _, _, _>,
            rows_times_x: products::rows_times_x::<F, _, _, _>,
            byte_products: None,
            block_bytes: BYTES,
            block_elems: ELEMS,
            group: ELEMS / GROUPS,
            has_offsets: F::HAS_OFFSETS,
        };
        Codec { decode: decode::<F, _, _, _>, kernels: Kernels::Integers(integers) }
    }

    /// This one, with products of bytes.
    const fn with_bytes<F: ByteBlocks<BYTES, BLOCKS>, const BYTES: usize, const BLOCKS: usize>(
        mut self,
    ) -> Self {
        if let Kernels::Integers(format) = &mut self.kernels {
            let halves = if F::WORDS { Halves::Together } else { Halves::Apart };
            format.byte_products = Some((byte_products::products::<F, _, _>, halves));
        }
        self
    }
}

/// The conversion of `dtype` to f32, if it is one that weights are stored in.
pub fn decoder(dtype: Dtype) -> Option<Decoder> {
    Codec::of(dtype).map(|codec| codec.decode)
}

/// Work on blocks, compiled for the instructions of every processor.
trait WithLanes {
    fn run(self, lanes: impl Lanes);
}

#[cfg(target_arch = "x86_64")]
pulp::simd_type! {
    /// V4 with dot products of integers: the compiler makes them of a product and a sum.
    struct V4Vnni {
        avx512f: "avx512f",
        avx512bw: "avx512bw",
        avx512cd: "avx512cd",
        avx512dq: "avx512dq",
        avx512vl: "avx512vl",
        avx512vnni: "avx512vnni",
        bmi1: "bmi1",
        bmi2: "bmi2",
        fma: "fma",
        lzcnt: "lzcnt",
        popcnt: "popcnt",
    }
}

#[inline(always)]
fn dispatch(arch: Arch, work: impl WithLanes) {
    match arch {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => match V4Vnni::try_new() {
            Some(vnni) => vnni.vectorize(
                #[inline(always)]
                || work.run(simd),
            ),
            None => simd.vectorize(
                #[inline(always)]
                || work.run(simd),
            ),
        },
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => simd.vectorize(
            #[inline(always)]
            || work.run(simd),
        ),
        // Every 64-bit Arm that the standard library runs on has it: nothing to switch on.
        #[cfg(target_arch = "aarch64")]
        Arch::Neon(simd) => work.run(simd),
        _ => work.run(Portable),
    }
}

/// Converts `stored`, elements of `F`.
fn decode_plain<F: Plain<BYTES>, const BYTES: usize>(arch: Arch, stored: &[u8], out: &mut [f32]) {
    struct Work<'a, F, const BYTES: usize>(&'a [[u8; BYTES]], &'a mut [f32], PhantomData<F>);
    impl<F: Plain<BYTES>, const BYTES: usize> WithLanes for Work<'_, F, BYTES> {
        #[inline(always)]
        fn run(self, lanes: impl Lanes) {
            let ((stored, stored_tail), (out, out_tail)) =
                (self.0.as_chunks(), self.1.as_chunks_mut());
            for (stored, out) in stored.iter().zip(out) {
                *out = F::widen(lanes, stored);
            }
            let tail = out_tail.iter_mut().zip(stored_tail);
            tail.for_each(|(out, stored)| *out = F::read(stored));
        }
    }
    dispatch(arch, Work::<F, _>(stored.as_chunks().0, out, PhantomData));
}

/// Converts `stored`, blocks of `F`.
fn decode<
    F: Blocks<BYTES, ELEMS, GROUPS>,
    const BYTES: usize,
    const ELEMS: usize,
    const GROUPS: usize,
>(
    arch: Arch,
    stored: &[u8],
    out: &mut [f32],
) {
    let (blocks, outs) = (stored.as_chunks().0, out.as_chunks_mut().0);
    dispatch(arch, Decode::<F, _, _, GROUPS> { blocks, outs, format: PhantomData });
}

struct Decode<'a, F, const BYTES: usize, const ELEMS: usize, const GROUPS: usize> {
    blocks: &'a [[u8; BYTES]],
    outs: &'a mut [[f32; ELEMS]],
    format: PhantomData<F>,
}

impl<F: Blocks<BYTES, ELEMS, GROUPS>, const BYTES: usize, const ELEMS: usize, const GROUPS: usize>
    WithLanes for Decode<'_, F, BYTES, ELEMS, GROUPS>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        for (block, out) in self.blocks.iter().zip(self.outs) {
            let unpacked = F::unpack(lanes, block);
            let sixteens =
                out.as_chunks_mut::<16>().0.iter_mut().zip(unpacked.levels.as_chunks().0);
            for (i, (out, levels)) in sixteens.enumerate() {
                let group = i * GROUPS * 16 / ELEMS;
                let (scale, offset) = (unpacked.scales[group], unpacked.offsets[group]);
                lanes.widen(levels, out);
                out.iter_mut().for_each(|out| *out *= scale);
                if F::HAS_OFFSETS {
                    out.iter_mut().for_each(|out| *out += offset);
                }
            }
        }
    }
}

/// [`Unpacker`] of blocks of `F`.
fn unpack<
    F: Blocks<BYTES, ELEMS, GROUPS>,
    const BYTES: usize,
    const ELEMS: usize,
    const GROUPS: usize,
>(
    arch: Arch,
    stored: &[u8],
    levels: &mut [i8],
    scales: &mut [f32],
    offsets: &mut [f32],
) {
    let blocks = stored.as_chunks().0;
    let (levels, scales) = (levels.as_chunks_mut().0, scales.as_chunks_mut().0);
    let offsets = offsets.as_chunks_mut().0;
    let format = PhantomData::<F>;
    dispatch(arch, Unpack::<F, _, ELEMS, GROUPS> { blocks, levels, scales, offsets, format });
}

struct Unpack<'a, F, const BYTES: usize, const ELEMS: usize, const GROUPS: usize> {
    blocks: &'a [[u8; BYTES]],
    levels: &'a mut [[i8; ELEMS]],
    scales: &'a mut [[f32; GROUPS]],
    offsets: &'a mut [[f32; GROUPS]],
    format: PhantomData<F>,
}

impl<F: Blocks<BYTES, ELEMS, GROUPS>, const BYTES: usize, const ELEMS: usize, const GROUPS: usize>
    WithLanes for Unpack<'_, F, BYTES, ELEMS, GROUPS>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let outs = self.levels.iter_mut().zip(self.scales).zip(self.offsets);
        for (block, ((levels, scales), offsets)) in self.blocks.iter().zip(outs) {
            let unpacked = F::unpack(lanes, block);
            (*levels, *scales) = (unpacked.levels, unpacked.scales);
            if F::HAS_OFFSETS {
                *offsets = unpacked.offsets;
            }
        }
    }
}

/// The first scale of `stored`, whole blocks of `dtype`, that is NaN or infinite, and its block.
pub fn wrong_scale(dtype: Dtype, stored: &[u8]) -> Option<(usize, f32)> {
    let Dtype::Blocks(format) = dtype else {
        return None;
    };
    let fields = format.facts().f16_scales;
    let mut blocks = stored.chunks_exact(dtype.block_bytes()).enumerate();
    let is_wrong = |scale: &f32| !scale.is_finite();
    if format == BlockFormat::IQ1_M {
        let mut scales = blocks.map(|(index, block)| (index, half_to_f32(iq::IQ1M::d(block))));
        return scales.find(|(_, scale)| is_wrong(scale));
    }
    blocks.find_map(|(index, block)| {
        let mut scales = fields.iter().map(|&field| half_at(Portable, block, field));
        scales.find(is_wrong).map(|scale| (index, scale))
    })
}

/// The number of an f16, without a branch, so that the compiler vectorises it.
#[inline(always)]
pub fn half_to_f32(bits: u16) -> f32 {
    const SUBNORMAL: u32 = 113 << 23;
    let (sign, magnitude) = (u32::from(bits >> 15) << 31, u32::from(bits & 0x7FFF) << 13);
    let magnitude = match bits & 0x7C00 {
        // Added to the smallest normal number, and that subtracted again.
        0 => (f32::from_bits(magnitude + SUBNORMAL) - f32::from_bits(SUBNORMAL)).to_bits(),
        // Infinities and NaN.
        0x7C00 => magnitude + (224 << 23),
        _ => magnitude + (112 << 23),
    };
    f32::from_bits(sign | magnitude)
}

/// The `N` bytes of a block from `start` on.
#[inline(always)]
fn field<const N: usize>(block: &[u8], start: usize) -> &[u8; N] {
    block[start..].first_chunk().expect("a field is inside its block")
}

/// The f16 of a block at `start`, as f32.
#[inline(always)]
fn half_at(lanes: impl Lanes, block: &[u8], start: usize) -> f32 {
    lanes.half_to_f32(u16::from_le_bytes(*field(block, start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_is_its_number() {
        for bits in 0..=u16::MAX {
            let wanted = f16::from_bits(bits).to_f32();
            let got = half_to_f32(bits);
            let same = got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan());
            assert!(same, "{bits:#06x}: {got:e}, not {wanted:e}");
        }
    }

    /// Instruction sets of this processor alone.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let archs = [
            Some(Arch::new()),
            #[cfg(target_arch = "x86_64")]
            pulp::x86::V3::try_new().map(Arch::V3),
            #[cfg(target_arch = "x86_64")]
            pulp::x86::V4::try_new().map(Arch::V4),
            #[cfg(target_arch = "aarch64")]
            pulp::aarch64::Neon::try_new().map(Arch::Neon),
        ];
        let plain = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8_E4M3];
        for dtype in plain.into_iter().chain(BlockFormat::ALL.map(Dtype::Blocks)) {
            // Bytes in no order (Fibonacci hashing); of f32 and the scales every exponent.
            let bytes: Vec<u8> = (0..7 * 256 * 4u32)
                .map(|i| ((i + 1).wrapping_mul(2_654_435_769) >> 24) as u8)
                .collect();
            let blocks = bytes.len() / (7 * dtype.block_bytes()) * 7;
            let stored = &bytes[..blocks * dtype.block_bytes()];
            let decode = |arch| {
                let mut out = vec![0.0f32; blocks * dtype.block_elems()];
                decoder(dtype).unwrap()(arch, stored, &mut out);
                let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
                out.into_iter().map(bits).collect::<Vec<_>>()
            };
            let wanted = decode(Arch::Scalar);
            assert!(archs.iter().flatten().all(|&arch| decode(arch) == wanted), "{dtype}");
        }
    }
}
