//! Products of few rows of x with weights in blocks, in integers: a weight's levels with x in 16
//! bits, which have a scale for each 32 columns.
//!
//! `sum_k (scale * level[k] + offset) * x[k]`, group by group, is
//! `scale * x_scale * sum_k level[k] * q[k] + offset * sum_k x[k]`. Two products (with NEON four)
//! are added in 32-bit integers, exactly; all else is f32. x loses what is below 2^-16 of the largest
//! in its 32 columns. The bits of a row do not depend on the other rows.

use super::lanes::{Lanes, array_of, map, sum};
use super::{Arch, Blocks, IntegerFormat, Levels, WithLanes, dispatch};
use std::marker::PhantomData;

/// Columns of x that have a scale.
const X_GROUP: usize = 32;
/// Columns of x that lie together, row after row.
pub const PANEL_COLUMNS: usize = 256;
/// Scales of x in a panel of a row.
const PANEL_GROUPS: usize = PANEL_COLUMNS / X_GROUP;
/// Columns of a weight row whose products are added up together.
const RUN_COLUMNS: usize = 4096;
/// Sums of a row that do not wait for each other.
const ACCUMULATORS: usize = 4;

/// Rows of x in 16 bits.
pub struct IntegerRows {
    num_rows: usize,
    width: usize,
    /// Panels of columns, `[num_rows, columns]` each.
    values: Vec<i16>,
    /// `[num_rows, width / 32]`.
    scales: Vec<f32>,
    /// Sums of 32 columns of what `values` stand for, and of 16.
    sums: [Vec<f32>; 2],
}

impl IntegerRows {
    /// Rounds `rows`, which have `width` columns each, a multiple of 32.
    pub fn new<'a>(
        arch: Arch,
        rows: impl ExactSizeIterator<Item = &'a [f32]>,
        width: usize,
    ) -> Self {
        let num_rows = rows.len();
        let groups = num_rows * width / X_GROUP;
        let mut out = IntegerRows {
            num_rows,
            width,
            values: vec![0; num_rows * width],
            scales: vec![0.0; groups],
            sums: [vec![0.0; groups], vec![0.0; 2 * groups]],
        };
        for (row, x) in rows.enumerate() {
            dispatch(arch, Quantise { row, x, out: &mut out });
        }
        out
    }

    /// Row `row` of the panel at `column`.
    #[inline(always)]
    pub(super) fn panel(&self, row: usize, column: usize) -> &[[i16; X_GROUP]] {
        let columns = PANEL_COLUMNS.min(self.width - column);
        let start = column * self.num_rows + row * columns;
        self.values[start..start + columns].as_chunks().0
    }

    /// Scales of row `row`.
    #[inline(always)]
    pub(super) fn scales(&self, row: usize) -> &[f32] {
        let groups = self.width / X_GROUP;
        &self.scales[row * groups..][..groups]
    }

    /// Sums of row `row`, a sum for each `group` columns: 16 or 32.
    #[inline(always)]
    pub(super) fn sums(&self, row: usize, group: usize) -> &[f32] {
        let groups = self.width / group;
        &self.sums[usize::from(group < X_GROUP)][row * groups..][..groups]
    }
}

struct Quantise<'a> {
    row: usize,
    x: &'a [f32],
    out: &'a mut IntegerRows,
}

impl WithLanes for Quantise<'_> {
    #[inline(always)]
    fn run(self, _: impl Lanes) {
        let Quantise { row, x, out } = self;
        let first = row * out.width / X_GROUP;
        for (panel, x) in x.chunks(PANEL_COLUMNS).enumerate() {
            let start = panel * PANEL_COLUMNS * out.num_rows + row * x.len();
            let values = out.values[start..start + x.len()].as_chunks_mut().0;
            for (i, (values, x)) in values.iter_mut().zip(x.as_chunks().0).enumerate() {
                let group = first + panel * PANEL_GROUPS + i;
                let (scale, [low, high]) = quantise(x, values);
                out.scales[group] = scale;
                out.sums[0][group] = low + high;
                out.sums[1][2 * group..][..2].copy_from_slice(&[low, high]);
            }
        }
    }
}

/// Rounds a group; returns its scale and the sums of its halves. The scale is NaN where an element
/// is not finite.
#[inline(always)]
fn quantise(x: &[f32; X_GROUP], values: &mut [i16; X_GROUP]) -> (f32, [f32; 2]) {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LARGEST: f32 = 32_767.0;
    let magnitude = |x: &f32| x.to_bits() & (u32::MAX >> 1);
    let magnitudes: [u32; X_GROUP] = array_of(|i| magnitude(&x[i]));
    let sixteen: [u32; 16] = array_of(|i| magnitudes[i].max(magnitudes[i + 16]));
    let largest = f32::from_bits(sixteen.into_iter().fold(0, u32::max));
    if !largest.is_finite() {
        values.fill(0);
        return (f32::NAN, [f32::NAN; 2]);
    }
    // Of numbers so small that their inverse is infinite nothing is left.
    let inverse = LARGEST / largest;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    *values = array_of(|i| (x[i] * inverse + ROUND).to_bits() as i16);
    let scale = largest / LARGEST;
    let sum =
        |half: usize| -> i32 { values[half * 16..][..16].iter().map(|&x| i32::from(x)).sum() };
    (scale, [0, 1].map(|half| sum(half) as f32 * scale))
}

/// Inner products of rows of a weight in blocks with rows of x.
pub struct Products<'a> {
    /// How the weight is stored.
    pub format: IntegerFormat,
    /// Whole rows of the weight.
    pub weight: &'a [u8],
    /// Rows of x, as wide as the weight's.
    pub x: &'a IntegerRows,
}

impl Products<'_> {
    /// Calls `out` with the row of x, the row of the weight and their product.
    pub fn compute(&self, arch: Arch, mut out: impl FnMut(usize, usize, f32)) {
        let mut first = 0;
        while first < self.x.num_rows {
            first += (self.format.rows_times_x)(arch, self.weight, self.x, first, &mut out);
        }
    }
}

/// The sum of `acc`, and of the products of offsets with sums of x.
#[inline(always)]
fn total<L: Lanes>(lanes: L, acc: [L::F32s; ACCUMULATORS], offsets: &[f32], x_sums: &[f32]) -> f32 {
    let [mut first, others @ ..] = acc;
    let ((offsets, last), (x_sums, last_sums)) = (offsets.as_chunks(), x_sums.as_chunks());
    for (offsets, x_sums) in offsets.iter().zip(x_sums) {
        first = lanes.multiply_add(offsets, x_sums, first);
    }
    let rest: f32 = last.iter().zip(last_sums).map(|(a, b)| a * b).sum();
    let mut values = lanes.values(first);
    for acc in others {
        values.iter_mut().zip(lanes.values(acc)).for_each(|(sum, value)| *sum += value);
    }
    rest + sum(values)
}

/// Some rows of x, from the first of them on, with rows of a weight in blocks of `F`; gives how many
/// rows of x.
pub(super) fn rows_times_x<
    F: Blocks<BYTES, ELEMS, GROUPS>,
    const BYTES: usize,
    const ELEMS: usize,
    const GROUPS: usize,
>(
    arch: Arch,
    stored: &[u8],
    x: &IntegerRows,
    first: usize,
    out: &mut dyn FnMut(usize, usize, f32),
) -> usize {
    let (blocks, format) = (stored.as_chunks().0, PhantomData::<F>);
    match x.num_rows - first {
        1 => Rows::<F, 1, _, ELEMS, GROUPS> { blocks, x, first, format }.compute(arch, out),
        2 | 3 => Rows::<F, 2, _, ELEMS, GROUPS> { blocks, x, first, format }.compute(arch, out),
        _ => Rows::<F, 4, _, ELEMS, GROUPS> { blocks, x, first, format }.compute(arch, out),
    }
}

/// `T` rows of x from `first` on.
struct Rows<'a, F, const T: usize, const BYTES: usize, const ELEMS: usize, const GROUPS: usize> {
    blocks: &'a [[u8; BYTES]],
    x: &'a IntegerRows,
    first: usize,
    format: PhantomData<F>,
}

impl<
    F: Blocks<BYTES, ELEMS, GROUPS>,
    const T: usize,
    const BYTES: usize,
    const ELEMS: usize,
    const GROUPS: usize,
> Rows<'_, F, T, BYTES, ELEMS, GROUPS>
{
    fn compute(self, arch: Arch, out: &mut dyn FnMut(usize, usize, f32)) -> usize {
        let first = self.first;
        let mut products = vec![[0.0; T]; self.blocks.len() / (self.x.width / ELEMS)];
        dispatch(arch, RowsTimesX { rows: self, products: &mut products });
        for (n, products) in products.iter().enumerate() {
            products.iter().enumerate().for_each(|(t, &product)| out(first + t, n, product));
        }
        T
    }
}

/// Levels stay in registers. The bits of a row of x do not depend on `T`.
struct RowsTimesX<
    'a,
    F,
    const T: usize,
    const BYTES: usize,
    const ELEMS: usize,
    const GROUPS: usize,
> {
    rows: Rows<'a, F, T, BYTES, ELEMS, GROUPS>,
    products: &'a mut [[f32; T]],
}

impl<
    F: Blocks<BYTES, ELEMS, GROUPS>,
    const T: usize,
    const BYTES: usize,
    const ELEMS: usize,
    const GROUPS: usize,
> WithLanes for RowsTimesX<'_, F, T, BYTES, ELEMS, GROUPS>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let RowsTimesX { rows: Rows { blocks, x, first, .. }, products } = self;
        let group = ELEMS / GROUPS;
        let x_scales: [&[f32]; T] = array_of(|t| x.scales(first + t));
        let x_sums: [&[f32]; T] = array_of(|t| x.sums(first + t, group));
        let mut offsets = [0.0; RUN_COLUMNS / 16];
        for (row, products) in blocks.chunks_exact(x.width / ELEMS).zip(products) {
            *products = [0.0; T];
            for (run, blocks) in row.chunks(RUN_COLUMNS / ELEMS).enumerate() {
                let mut acc = [[lanes.zero(); ACCUMULATORS]; T];
                let first_column = run * RUN_COLUMNS;
                let panels =
                    x.values[first_column * x.num_rows..].chunks(PANEL_COLUMNS * x.num_rows);
                let panels = blocks.chunks(PANEL_COLUMNS / ELEMS).zip(panels);
                for (panel, (blocks, values)) in panels.enumerate() {
                    let column = first_column + panel * PANEL_COLUMNS;
                    let columns = blocks.len() * ELEMS;
                    let values: [&[[i16; X_GROUP]]; T] =
                        array_of(|t| values[(first + t) * columns..][..columns].as_chunks().0);
                    let x_scales: [&[f32]; T] =
                        map(x_scales, |all| &all[column / X_GROUP..][..columns / X_GROUP]);
                    let at = (column - first_column) / group;
                    let offsets = &mut offsets[at..][..blocks.len() * GROUPS];
                    // As many blocks together as there are sums, so that these have registers.
                    let (fours, rest) = blocks.as_chunks::<ACCUMULATORS>();
                    let offsets = offsets.as_chunks_mut::<GROUPS>().0;
                    for (four, blocks) in fours.iter().enumerate() {
                        for (i, bytes) in blocks.iter().enumerate() {
                            let block = four * ACCUMULATORS + i;
                            let unpacked = F::unpack(lanes, bytes);
                            block_times_x(lanes, &unpacked, block, i, values, x_scales, &mut acc);
                            if F::HAS_OFFSETS {
                                offsets[block] = unpacked.offsets;
                            }
                        }
                    }
                    for (i, bytes) in rest.iter().enumerate() {
                        let block = fours.len() * ACCUMULATORS + i;
                        let unpacked = F::unpack(lanes, bytes);
                        block_times_x(lanes, &unpacked, block, i, values, x_scales, &mut acc);
                        if F::HAS_OFFSETS {
                            offsets[block] = unpacked.offsets;
                        }
                    }
                }
                let groups = blocks.len() * GROUPS;
                let offsets = if F::HAS_OFFSETS { &offsets[..groups] } else { &offsets[..0] };
                for t in 0..T {
                    let x_sums = &x_sums[t][first_column / group..][..groups];
                    products[t] += total(lanes, acc[t], offsets, x_sums);
                }
            }
        }
    }
}

/// Adds the products of the `block`-th block of a panel; `i` is a number known to the compiler that
/// is the same but for a multiple of the accumulators.
#[inline(always)]
fn block_times_x<L: Lanes, const T: usize, const ELEMS: usize, const GROUPS: usize>(
    lanes: L,
    unpacked: &Levels<ELEMS, GROUPS>,
    block: usize,
    i: usize,
    values: [&[[i16; X_GROUP]]; T],
    x_scales: [&[f32]; T],
    acc: &mut [[L::F32s; ACCUMULATORS]; T],
) {
    let (group, groups) = (ELEMS / GROUPS, ELEMS / X_GROUP);
    let values: [&[[i16; X_GROUP]]; T] = map(values, |all| &all[block * groups..][..groups]);
    let x_scales: [&[f32]; T] = map(x_scales, |all| &all[block * groups..][..groups]);
    // Of each group; with few groups the compiler does as well.
    let mut scales = [[0.0; 16]; T];
    for t in 0..T {
        let x_scale = |part: usize| x_scales[t][part % GROUPS * group / X_GROUP];
        let own: [f32; 16] = array_of(|part| unpacked.scales[part % GROUPS]);
        let x: [f32; 16] = array_of(x_scale);
        scales[t] = if GROUPS < 8 { array_of(|i| own[i] * x[i]) } else { lanes.multiply(&own, &x) };
    }
    for (j, levels) in unpacked.levels.as_chunks().0.iter().enumerate() {
        for t in 0..T {
            let scales = [0, 1].map(|half| scales[t][(j * X_GROUP + half * 16) / group]);
            let acc = &mut acc[t][(i * groups + j) % ACCUMULATORS];
            *acc = lanes.multiply_add_pairs(levels, &values[t][j], scales, *acc);
        }
    }
}
