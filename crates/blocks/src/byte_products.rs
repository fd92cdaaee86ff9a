//! Products of few rows of x with weights in blocks, as products of bytes.
//!
//! As in [`products`](super::products) x has 16 bits and a scale for each 32 columns. Here they are
//! two signed bytes, and levels are unsigned ones of seven bits: one instruction multiplies 64 and
//! adds pairs of products. The bias that makes levels unsigned is subtracted as an offset is, times a
//! sum of x. The bits of a row do not depend on the other rows.

use super::lanes::{Lanes, array_of, map, sum};
use super::{Arch, WithLanes, dispatch};
use std::array;
use std::marker::PhantomData;

/// Columns of x that have a scale.
const X_GROUP: usize = 32;
/// Columns that are multiplied at once.
const STEP: usize = 64;
/// Steps of a panel.
const STEPS: usize = 4;
/// Columns of a panel: sixteen groups of sixteen.
const PANEL: usize = STEP * STEPS;

/// The part of a row of x that is multiplied with a block of 256 levels.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Panel {
    /// Numbers of 16 bits: 256 times the first byte and the second, or words in order.
    steps: [[[i8; STEP]; 2]; STEPS],
    /// Scales of sixteen columns.
    scales: [f32; 16],
    /// Sums of sixteen columns.
    sums: [f32; 16],
}

impl Panel {
    const ZERO: Self = Panel { steps: [[[0; STEP]; 2]; STEPS], scales: [0.0; 16], sums: [0.0; 16] };
}

/// How numbers of 16 bits lie in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Halves {
    /// All upper bytes of 64 columns, then all lower ones.
    Apart,
    /// The bytes of a number follow each other.
    Together,
}

/// Rows of x in 16 bits.
pub struct ByteRows {
    num_rows: usize,
    width: usize,
    halves: Halves,
    /// `[num_rows, panels]`, the last one of a row with zeros.
    panels: Vec<Panel>,
}

impl ByteRows {
    /// Rounds `rows`, which have `width` columns each, a multiple of 32.
    pub fn new<'a>(
        arch: Arch,
        rows: impl ExactSizeIterator<Item = &'a [f32]>,
        width: usize,
        halves: Halves,
    ) -> Self {
        let (num_rows, in_row) = (rows.len(), width.div_ceil(PANEL));
        let panels = vec![Panel::ZERO; num_rows * in_row];
        let mut out = ByteRows { num_rows, width, halves, panels };
        for (x, panels) in rows.zip(out.panels.chunks_exact_mut(in_row)) {
            dispatch(arch, Quantise { x, halves, panels });
        }
        out
    }

    fn row(&self, row: usize) -> &[Panel] {
        let panels = self.width.div_ceil(PANEL);
        &self.panels[row * panels..][..panels]
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    halves: Halves,
    panels: &'a mut [Panel],
}

impl WithLanes for Quantise<'_> {
    #[inline(always)]
    fn run(self, _: impl Lanes) {
        for (x, panel) in self.x.chunks(PANEL).zip(self.panels) {
            for (i, x) in x.as_chunks::<X_GROUP>().0.iter().enumerate() {
                let (scale, numbers) = quantise(x);
                let first = i % 2 * X_GROUP;
                match self.halves {
                    Halves::Apart => {
                        let [high, low] = &mut panel.steps[i / 2];
                        let (high, low) = (&mut high[first..], &mut low[first..]);
                        high[..X_GROUP].copy_from_slice(&array_of::<_, X_GROUP>(|i| {
                            ((numbers[i] + 128) >> 8) as i8
                        }));
                        low[..X_GROUP]
                            .copy_from_slice(&array_of::<_, X_GROUP>(|i| numbers[i] as i8));
                    }
                    Halves::Together => {
                        let words: [i16; X_GROUP] = array_of(|i| numbers[i] as i16);
                        panel.steps[i / 2][i % 2] = pulp::cast(words);
                    }
                }
                for half in 0..2 {
                    panel.scales[2 * i + half] = scale;
                    let sum = sum_ints(array_of(|i| numbers[16 * half + i]));
                    panel.sums[2 * i + half] = sum as f32 * scale;
                }
            }
        }
    }
}

/// Rounds a group; gives its scale too, which is NaN where an element is not finite.
#[inline(always)]
fn quantise(x: &[f32; X_GROUP]) -> (f32, [i32; X_GROUP]) {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// The upper byte is 127, rounded to the nearest.
    const LARGEST: f32 = 32_639.0;
    let magnitude = |x: &f32| x.to_bits() & (u32::MAX >> 1);
    let magnitudes: [u32; X_GROUP] = array_of(|i| magnitude(&x[i]));
    let sixteen: [u32; 16] = array_of(|i| magnitudes[i].max(magnitudes[i + 16]));
    let largest = f32::from_bits(sixteen.into_iter().fold(0, u32::max));
    if !largest.is_finite() {
        return (f32::NAN, [0; X_GROUP]);
    }
    // Of numbers so small that their inverse is infinite nothing is left.
    let inverse = LARGEST / largest;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let numbers = array_of(|i| i32::from((x[i] * inverse + ROUND).to_bits() as i16));
    (largest / LARGEST, numbers)
}

/// The sum of sixteen numbers, by halves.
#[inline(always)]
fn sum_ints(values: [i32; 16]) -> i32 {
    let eight: [i32; 8] = array_of(|i| values[i] + values[i + 8]);
    let four: [i32; 4] = array_of(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// A format whose levels become unsigned by a bias, below 128. `BLOCKS` blocks have 256 elements.
pub(super) trait ByteBlocks<const BYTES: usize, const BLOCKS: usize> {
    /// What is added to levels.
    const BIAS: u8 = 0;
    /// What sums of x times [`scales`](Self::scales)' second numbers are multiplied by: with a bias
    /// these are the scales.
    const OFFSETS: f32 = -(Self::BIAS as f32);

    /// Whether levels are signed bytes, and multiplied as words. Groups then have 32 elements.
    const WORDS: bool = false;

    /// Levels of 64 elements, with the bias.
    fn levels(lanes: impl Lanes, blocks: [&[u8; BYTES]; BLOCKS], step: usize) -> [u8; STEP];

    /// Scales of groups of sixteen elements, and offsets.
    fn scales(lanes: impl Lanes, blocks: [&[u8; BYTES]; BLOCKS]) -> [[f32; 16]; 2];
}

/// Inner products of rows of whole blocks with all rows of x: adds them to the rows of the last
/// argument, or stores them.
pub type ByteProducts = fn(Arch, &[u8], &ByteRows, bool, &mut [&mut [f32]]);

/// [`ByteProducts`] of blocks of `F`.
pub(super) fn products<F: ByteBlocks<BYTES, BLOCKS>, const BYTES: usize, const BLOCKS: usize>(
    arch: Arch,
    stored: &[u8],
    x: &ByteRows,
    accumulate: bool,
    out: &mut [&mut [f32]],
) {
    let halves = if F::WORDS { Halves::Together } else { Halves::Apart };
    assert!(x.halves == halves, "x is laid out for another format");
    let (blocks, format) = (stored.as_chunks().0, PhantomData::<F>);
    let mut first = 0;
    while first < x.num_rows {
        let out = &mut out[first..];
        first += match out.len() {
            1 => Rows::<F, 1, _, _> { blocks, x, first, accumulate, out, format }.compute(arch),
            2 | 3 => Rows::<F, 2, _, _> { blocks, x, first, accumulate, out, format }.compute(arch),
            _ => Rows::<F, 4, _, _> { blocks, x, first, accumulate, out, format }.compute(arch),
        };
    }
}

/// `T` rows of x from `first` on, and the rows of their products.
struct Rows<'a, 'b, F, const T: usize, const BYTES: usize, const BLOCKS: usize> {
    blocks: &'a [[u8; BYTES]],
    x: &'a ByteRows,
    first: usize,
    accumulate: bool,
    out: &'a mut [&'b mut [f32]],
    format: PhantomData<F>,
}

impl<F: ByteBlocks<BYTES, BLOCKS>, const T: usize, const BYTES: usize, const BLOCKS: usize>
    Rows<'_, '_, F, T, BYTES, BLOCKS>
{
    fn compute(self, arch: Arch) -> usize {
        dispatch(arch, self);
        T
    }
}

impl<F: ByteBlocks<BYTES, BLOCKS>, const T: usize, const BYTES: usize, const BLOCKS: usize>
    WithLanes for Rows<'_, '_, F, T, BYTES, BLOCKS>
{
    /// The bits of a row of x do not depend on `T`.
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let x: [&[Panel]; T] = array_of(|t| self.x.row(self.first + t));
        let row_blocks = self.x.width * BLOCKS / PANEL;
        for (n, row) in self.blocks.chunks_exact(row_blocks).enumerate() {
            let mut acc =
                Accumulators { products: [[lanes.zero(); 2]; T], offsets: [lanes.zero(); T] };
            let (whole, rest) = row.as_chunks::<BLOCKS>();
            for (i, blocks) in whole.iter().enumerate() {
                let blocks = array::from_fn(
                    #[inline(always)]
                    |block| &blocks[block],
                );
                let x = array::from_fn(
                    #[inline(always)]
                    |t| &x[t][i],
                );
                acc.add::<F, _, _>(lanes, blocks, x, STEPS);
            }
            // Columns after the last block are zeros in x.
            if let Some(last) = rest.len().checked_sub(1) {
                let blocks = array::from_fn(|block| &rest[block.min(last)]);
                let x = array::from_fn(|t| &x[t][whole.len()]);
                acc.add::<F, _, _>(lanes, blocks, x, (rest.len() * PANEL / BLOCKS).div_ceil(STEP));
            }
            for t in 0..T {
                let product = acc.total::<F, _, _>(lanes, t);
                let out = &mut self.out[t][n];
                *out = if self.accumulate { *out + product } else { product };
            }
        }
    }
}

/// Partial sums of a row of the weight with `T` rows of x.
struct Accumulators<L: Lanes, const T: usize> {
    products: [[L::F32s; 2]; T],
    /// Offsets, or what is a bias at the end.
    offsets: [L::F32s; T],
}

impl<L: Lanes, const T: usize> Accumulators<L, T> {
    /// Adds the products of the first steps of a panel. Loops over indices keep sums in registers.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    fn add<F: ByteBlocks<BYTES, BLOCKS>, const BYTES: usize, const BLOCKS: usize>(
        &mut self,
        lanes: L,
        blocks: [&[u8; BYTES]; BLOCKS],
        x: [&Panel; T],
        steps: usize,
    ) {
        const GROUPS: [[u32; 16]; STEPS] = {
            let mut groups = [[0; 16]; STEPS];
            let mut i = 0;
            while i < 64 {
                groups[i / 16][i % 16] = (i / 4) as u32;
                i += 1;
            }
            groups
        };
        let [own, offsets] = F::scales(lanes, blocks);
        let mut scales = [[0.0; 16]; T];
        for t in 0..T {
            scales[t] = lanes.multiply(&own, &x[t].scales);
            if F::OFFSETS != 0.0 {
                self.offsets[t] = lanes.multiply_add(&offsets, &x[t].sums, self.offsets[t]);
            }
        }
        for step in 0..steps {
            let levels = F::levels(lanes, blocks, step);
            for t in 0..T {
                if F::WORDS {
                    let halves = levels.as_chunks().0;
                    for half in 0..2 {
                        let levels = map(halves[half], u8::cast_signed);
                        let ints =
                            lanes.multiply_words(&levels, &pulp::cast(x[t].steps[step][half]));
                        let scales = lanes.permute(&scales[t], &[(4 * step + 2 * half) as u32; 16]);
                        let acc = &mut self.products[t][half];
                        *acc = lanes.multiply_add_ints(ints, &scales, *acc);
                    }
                    continue;
                }
                let ints = lanes.multiply_bytes(&levels, &x[t].steps[step]);
                let scales = lanes.permute(&scales[t], &GROUPS[step]);
                let acc = &mut self.products[t][step % 2];
                *acc = lanes.multiply_add_ints(ints, &scales, *acc);
            }
        }
    }

    /// The product of row `t` of x.
    #[inline(always)]
    fn total<F: ByteBlocks<BYTES, BLOCKS>, const BYTES: usize, const BLOCKS: usize>(
        &self,
        lanes: L,
        t: usize,
    ) -> f32 {
        let [mut first, second] = self.products[t];
        if F::OFFSETS != 0.0 {
            let offsets = lanes.values(self.offsets[t]);
            first = lanes.multiply_add(&offsets, &[F::OFFSETS; 16], first);
        }
        let (first, second) = (lanes.values(first), lanes.values(second));
        sum(array_of(|i| first[i] + second[i]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Codec, IntegerFormat, IntegerRows, Kernels, Products};
    use super::*;
    use gpu_types::{BlockFormat, Dtype};

    fn archs() -> Vec<Arch> {
        let archs = [
            Some(Arch::Scalar),
            #[cfg(target_arch = "x86_64")]
            pulp::x86::V3::try_new().map(Arch::V3),
            #[cfg(target_arch = "x86_64")]
            pulp::x86::V4::try_new().map(Arch::V4),
            #[cfg(target_arch = "aarch64")]
            pulp::aarch64::Neon::try_new().map(Arch::Neon),
        ];
        archs.into_iter().flatten().collect()
    }

    /// Numbers in no order (Fibonacci hashing), from -1 to 1.
    fn random(seed: u32, len: usize) -> Vec<f32> {
        let number = |i: u32| (i + seed).wrapping_mul(2_654_435_769).cast_signed() as f32;
        (0..len as u32).map(|i| number(i + 1) / 2f32.powi(31)).collect()
    }

    /// Rows of blocks: bytes in no order, and all ones, so that levels and scales are at their
    /// limits. Scales in f16 are ones.
    fn stored(format: BlockFormat, width: usize) -> Vec<u8> {
        let dtype = Dtype::Blocks(format);
        let row = width / dtype.block_elems() * dtype.block_bytes();
        let mut bytes: Vec<u8> =
            random(7, 3 * row).iter().map(|x| (x * 1e6) as i32 as u8).collect();
        bytes[row..2 * row].fill(0xFF);
        bytes[2 * row..].fill(0);
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            for &field in format.facts().f16_scales {
                block[field..field + 2].copy_from_slice(&0x3C00u16.to_le_bytes());
            }
        }
        bytes
    }

    /// Rows of x: even ones, one with a large number in each 256, the largest of both signs.
    fn rows_of_x(width: usize) -> Vec<Vec<f32>> {
        let mut outliers = random(3, width);
        outliers.iter_mut().step_by(256).for_each(|x| *x = 3e4);
        let signs = random(4, width).into_iter().map(|x| 1e30f32.copysign(x)).collect();
        let tiny = random(9, width).into_iter().map(|x| x * 1e-30).collect();
        vec![random(2, width), outliers, vec![-5.0; width], signs, vec![0.0; width], tiny]
    }

    /// Products of all rows with all of x, as bytes if the processor has such.
    fn products(arch: Arch, format: IntegerFormat, stored: &[u8], x: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (width, rows) = (x[0].len(), || x.iter().map(Vec::as_slice));
        let mut out = vec![vec![f32::NAN; 3]; x.len()];
        match format.byte_products(arch) {
            Some((products, halves)) => {
                let x = ByteRows::new(arch, rows(), width, halves);
                let mut out: Vec<_> = out.iter_mut().map(Vec::as_mut_slice).collect();
                products(arch, stored, &x, false, &mut out);
            }
            None => {
                let x = &IntegerRows::new(arch, rows(), width);
                let products = Products { format, weight: stored, x };
                products.compute(arch, |t, n, product| out[t][n] = product);
            }
        }
        out
    }

    /// The error is at most that of rounding each element of x, to 2^-16 of the largest of 32, and a
    /// little of the sum's; the bits of a row are the same alone and beside others.
    #[test]
    fn every_instruction_set_is_within_the_rounding_of_x() {
        // Of two formats not every bit pattern is a finite scale.
        let not_f16 = [BlockFormat::MXFP4, BlockFormat::IQ1_M];
        for format in BlockFormat::ALL.into_iter().filter(|format| !not_f16.contains(format)) {
            let codec = Codec::of(Dtype::Blocks(format)).unwrap();
            let Kernels::Integers(integers) = codec.kernels else { panic!("{format:?}") };
            let widths = [32, 64, 96, 256, 288, 576, 1280];
            let blocks = Dtype::Blocks(format).block_elems();
            for width in widths.into_iter().filter(|width| width % blocks == 0) {
                let (stored, x) = (stored(format, width), rows_of_x(width));
                let mut elements = vec![0.0; 3 * width];
                (codec.decode)(Arch::Scalar, &stored, &mut elements);
                for arch in archs() {
                    let got = products(arch, integers, &stored, &x);
                    for (t, x) in x.iter().enumerate() {
                        for (n, row) in elements.chunks_exact(width).enumerate() {
                            let (wanted, bound) = product_and_bound(row, x);
                            let off = (f64::from(got[t][n]) - wanted).abs();
                            let case = format!("{format:?}, width {width}, row {n}, x {t}");
                            assert!(off <= bound, "{off:e} > {bound:e}: {case}, {arch:?}");
                        }
                        let alone = products(arch, integers, &stored, std::slice::from_ref(x));
                        assert_eq!(alone[0], got[t], "{format:?}, {arch:?}");
                    }
                }
            }
        }
    }

    fn product_and_bound(weight: &[f32], x: &[f32]) -> (f64, f64) {
        let (mut product, mut bound) = (0.0, 0.0);
        for (weight, x) in weight.chunks(X_GROUP).zip(x.chunks(X_GROUP)) {
            let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            for (&weight, &x) in weight.iter().zip(x) {
                let (weight, x) = (f64::from(weight), f64::from(x));
                product += weight * x;
                bound += weight.abs() * f64::from(largest) / 65_000.0;
            }
        }
        (product, bound + 1e-40)
    }

    #[test]
    fn numbers_that_are_not_finite_stay_so() {
        let format = BlockFormat::Q4_K;
        let Kernels::Integers(integers) = Codec::of(Dtype::Blocks(format)).unwrap().kernels else {
            panic!("{format:?}")
        };
        let stored = stored(format, 256);
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut x = vec![vec![1.0; 256]; 2];
            x[1][200] = wrong;
            for arch in archs() {
                let got = products(arch, integers, &stored, &x);
                assert!(got[0].iter().all(|product| product.is_finite()), "{got:?}");
                assert!(got[1].iter().all(|product| product.is_nan()), "{got:?}");
            }
        }
    }
}
