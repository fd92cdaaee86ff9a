//! Stored elements to f32, bit for bit as ggml converts them: one function a format, over a block.
//!
//! The functions are straight-line code that the compiler vectorises; `pulp` compiles it for AVX-512,
//! for AVX2 and for any processor, and chooses when the program runs.
//!
//! Source: the `block_*` structures in ggml's ggml-common.h and `dequantize_row_*` in
//! ggml-quants.c.

mod expand;
mod four_bit;
pub mod fp8;
mod iq;
mod k;
mod lanes;
mod legacy;
mod plain;
mod quantize;

use lanes::{Lanes, Portable};
use std::marker::PhantomData;

use gpu_types::BlockFormat;
use gpu_types::Dtype;

/// The instructions of the processor that the program runs on.
pub use pulp::Arch;

pub use expand::{Expander, expander};
pub use quantize::quantizer;

/// Codecs of each family of formats.
const CODECS: [&[(BlockFormat, Codec)]; 4] =
    [legacy::CODECS, k::CODECS, four_bit::CODECS, iq::CODECS];

/// Converts whole blocks to as many f32 as they hold, with the instructions of a processor. The
/// scales of E4M3 are not in it.
pub type Decoder = fn(Arch, &[u8], &mut [f32]);

/// A format in blocks of `ELEMS` elements, `BYTES` bytes each.
trait Blocks<const BYTES: usize, const ELEMS: usize> {
    /// Converts a block.
    fn decode(lanes: impl Lanes, block: &[u8; BYTES], out: &mut [f32; ELEMS]);
}

/// Inner products of rows of whole blocks, one after the other, and of a vector.
pub type BlockProducts = fn(Arch, &[u8], &[f32], &mut [f32]);

/// What is computed with stored elements.
#[derive(Clone, Copy)]
pub struct Codec {
    /// Conversion of the elements to f32.
    pub decode: Decoder,
    /// Inner products, of a format in blocks: nothing but a block is converted at a time.
    pub products: Option<BlockProducts>,
}

impl Codec {
    /// That of `dtype`, if it is one that weights are stored in.
    pub fn of(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::F32 => Codec::of_blocks::<plain::F32, _, _>(),
            Dtype::F16 => Codec::of_blocks::<plain::F16, _, _>(),
            Dtype::BF16 => Codec::of_blocks::<plain::BF16, _, _>(),
            Dtype::F8_E4M3 | Dtype::F8_E4M3_BLOCKS => Codec::of_blocks::<plain::E4M3, _, _>(),
            Dtype::Blocks(format) => {
                let mut codecs = CODECS.iter().copied().flatten();
                codecs.find(|(of, _)| *of == format).expect("every format has one").1
            }
            Dtype::U32 => return None,
        })
    }

    const fn of_blocks<F: Blocks<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize>() -> Self {
        let is_plain = ELEMS == 1;
        let products: BlockProducts = products::<F, _, _>;
        Codec { decode: decode::<F, _, _>, products: if is_plain { None } else { Some(products) } }
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

#[inline(always)]
fn dispatch(arch: Arch, work: impl WithLanes) {
    match arch {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => simd.vectorize(
            #[inline(always)]
            || work.run(simd),
        ),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => simd.vectorize(
            #[inline(always)]
            || work.run(simd),
        ),
        _ => work.run(Portable),
    }
}

/// Converts `stored`, blocks of `F`.
fn decode<F: Blocks<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize>(
    arch: Arch,
    stored: &[u8],
    out: &mut [f32],
) {
    let (blocks, outs) = (stored.as_chunks().0, out.as_chunks_mut().0);
    dispatch(arch, Decode::<F, _, _> { blocks, outs, format: PhantomData });
}

struct Decode<'a, F, const BYTES: usize, const ELEMS: usize> {
    blocks: &'a [[u8; BYTES]],
    outs: &'a mut [[f32; ELEMS]],
    format: PhantomData<F>,
}

impl<F: Blocks<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize> WithLanes
    for Decode<'_, F, BYTES, ELEMS>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        for (block, out) in self.blocks.iter().zip(self.outs) {
            F::decode(lanes, block, out);
        }
    }
}

/// `out[row]` is the product of `x` and of row `row` of `stored`, blocks of `F`.
fn products<F: Blocks<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize>(
    arch: Arch,
    stored: &[u8],
    x: &[f32],
    out: &mut [f32],
) {
    let (blocks, x) = (stored.as_chunks().0, x.as_chunks().0);
    dispatch(arch, RowsTimesX::<F, _, _> { blocks, x, out, format: PhantomData });
}

struct RowsTimesX<'a, F, const BYTES: usize, const ELEMS: usize> {
    blocks: &'a [[u8; BYTES]],
    x: &'a [[f32; ELEMS]],
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: Blocks<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize> WithLanes
    for RowsTimesX<'_, F, BYTES, ELEMS>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        for (row, out) in self.blocks.chunks_exact(self.x.len()).zip(self.out) {
            let mut sums = [lanes.zero(); 2];
            for (block, x) in row.iter().zip(self.x) {
                let mut weights = [0.0; ELEMS];
                F::decode(lanes, block, &mut weights);
                let (weights, x) = (weights.as_chunks().0, x.as_chunks().0);
                for (i, (weights, x)) in weights.iter().zip(x).enumerate() {
                    sums[i % 2] = lanes.multiply_add(weights, x, sums[i % 2]);
                }
            }
            let [even, odd] = sums.map(|sums| lanes.values(sums));
            *out = even.iter().zip(odd).map(|(even, odd)| even + odd).sum();
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
fn half_to_f32(bits: u16) -> f32 {
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

/// The first and the second half of 32 elements.
#[inline(always)]
fn halves(elems: &mut [f32; 32]) -> [&mut [f32; 16]; 2] {
    let (first, second) = elems.split_first_chunk_mut().expect("16 of 32");
    [first, second.first_chunk_mut().expect("the other 16")]
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
    #[cfg(target_arch = "x86_64")]
    fn every_instruction_set_gives_the_same_bits() {
        use pulp::x86::{V3, V4};
        let mut archs = vec![Arch::new()];
        archs.extend(V3::try_new().map(Arch::V3));
        archs.extend(V4::try_new().map(Arch::V4));
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
            assert!(archs.iter().all(|&arch| decode(arch) == wanted), "{dtype}");
        }
    }
}
