//! Products of few rows of x with weights in blocks, in integers: a weight's levels with x in 16
//! bits, which have a scale for each 32 columns.
//!
//! `sum_k (scale * level[k] + offset) * x[k]`, group by group, is
//! `scale * x_scale * sum_k level[k] * q[k] + offset * sum_k x[k]`. Two products are added in
//! 32-bit integers, exactly; all else is f32. x loses what is below 2^-16 of the largest in its 32
//! columns. The bits of a row do not depend on the other rows.

use super::lanes::{Lanes, array_of, sum};
use super::{Arch, Blocks, IntegerFormat, WithLanes, dispatch};
use std::marker::PhantomData;

/// Columns of x that have a scale.
const X_GROUP: usize = 32;
/// Columns of x that lie together, row after row.
pub const PANEL_COLUMNS: usize = 256;
/// Scales of x in a panel of a row.
const PANEL_GROUPS: usize = PANEL_COLUMNS / X_GROUP;
/// Columns of a weight row that are unpacked together: they stay in the first-level cache.
const RUN_COLUMNS: usize = 4096;
/// Sums of a row that do not wait for each other.
const ACCUMULATORS: usize = 4;
/// Most rows of x that a weight is unpacked for once.
const MAX_ROWS: usize = 8;

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

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Columns of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Columns of the panel at `column`.
    #[inline(always)]
    fn panel_columns(&self, column: usize) -> usize {
        PANEL_COLUMNS.min(self.width - column)
    }

    /// Row `row` of the panel at `column`.
    #[inline(always)]
    pub(super) fn panel(&self, row: usize, column: usize) -> &[[i16; X_GROUP]] {
        let columns = self.panel_columns(column);
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
    let largest = f32::from_bits(x.iter().map(magnitude).fold(0, u32::max));
    if !largest.is_finite() {
        values.fill(0);
        return (f32::NAN, [f32::NAN; 2]);
    }
    // Of numbers so small that their inverse is infinite nothing is left.
    let inverse = LARGEST / largest;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let mut sums = [0i32; 2];
    for (i, (value, x)) in values.iter_mut().zip(x).enumerate() {
        *value = (x * inverse + ROUND).to_bits() as i16;
        sums[i / 16] += i32::from(*value);
    }
    let scale = largest / LARGEST;
    (scale, sums.map(|sum| sum as f32 * scale))
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
        if self.x.num_rows == 1 {
            let row_bytes = self.x.width / self.format.block_elems * self.format.block_bytes;
            let mut products = vec![0.0; self.weight.len() / row_bytes];
            (self.format.row_times_x)(arch, self.weight, self.x, &mut products);
            return products.iter().enumerate().for_each(|(n, &product)| out(0, n, product));
        }
        let mut first = 0;
        while first < self.x.num_rows {
            let rows = match self.x.num_rows - first {
                left @ (1 | 2) => left,
                3 => 2,
                left if left < MAX_ROWS => 4,
                _ => MAX_ROWS,
            };
            match rows {
                1 => self.rows::<1>(arch, first, &mut out),
                2 => self.rows::<2>(arch, first, &mut out),
                4 => self.rows::<4>(arch, first, &mut out),
                _ => self.rows::<MAX_ROWS>(arch, first, &mut out),
            }
            first += rows;
        }
    }

    /// `T` rows of x from `first` on.
    fn rows<const T: usize>(&self, arch: Arch, first: usize, out: Out) {
        match (self.format.group, self.format.has_offsets) {
            (16, false) => rows_times_x::<T, 2, false>(self, arch, first, out),
            (16, true) => rows_times_x::<T, 2, true>(self, arch, first, out),
            (_, false) => rows_times_x::<T, 1, false>(self, arch, first, out),
            (_, true) => rows_times_x::<T, 1, true>(self, arch, first, out),
        }
    }
}

/// Takes the row of x, the row of the weight and their product.
type Out<'a> = &'a mut dyn FnMut(usize, usize, f32);

/// `T` rows of x from `first` on; `GROUPS` groups in 32 columns.
fn rows_times_x<const T: usize, const GROUPS: usize, const OFFSETS: bool>(
    products: &Products,
    arch: Arch,
    first: usize,
    out: Out,
) {
    let Products { format, weight, x } = *products;
    let (width, group) = (x.width, X_GROUP / GROUPS);
    let row_bytes = width / format.block_elems * format.block_bytes;
    let mut levels = [0; RUN_COLUMNS];
    let (mut scales, mut offsets) = ([0.0; RUN_COLUMNS / 16], [0.0; RUN_COLUMNS / 16]);
    for (n, row) in weight.chunks_exact(row_bytes).enumerate() {
        let mut sums = [0.0; T];
        for start in (0..width).step_by(RUN_COLUMNS) {
            let len = RUN_COLUMNS.min(width - start);
            let bytes = |columns: usize| columns / format.block_elems * format.block_bytes;
            let stored = &row[bytes(start)..][..bytes(len)];
            let (scales, offsets) = (&mut scales[..len / group], &mut offsets[..len / group]);
            (format.unpack)(arch, stored, &mut levels[..len], scales, offsets);
            let levels = levels[..len].as_chunks().0;
            let (scales, offsets) = (scales.as_chunks::<GROUPS>().0, &*offsets);
            let run = RunTimesX::<T, GROUPS, OFFSETS> {
                x,
                first,
                start,
                levels,
                scales,
                offsets,
                sums: &mut sums,
            };
            dispatch(arch, run);
        }
        sums.iter().enumerate().for_each(|(t, &sum)| out(first + t, n, sum));
    }
}

/// A run of columns of a weight row with `T` rows of x.
struct RunTimesX<'a, const T: usize, const GROUPS: usize, const OFFSETS: bool> {
    x: &'a IntegerRows,
    /// The first row of x.
    first: usize,
    /// The first column.
    start: usize,
    levels: &'a [[i8; 32]],
    scales: &'a [[f32; GROUPS]],
    offsets: &'a [f32],
    sums: &'a mut [f32; T],
}

impl<const T: usize, const GROUPS: usize, const OFFSETS: bool> WithLanes
    for RunTimesX<'_, T, GROUPS, OFFSETS>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let RunTimesX { x, first, start, levels, scales, offsets, sums } = self;
        let mut acc = [[lanes.zero(); ACCUMULATORS]; T];
        let panels = levels.chunks(PANEL_GROUPS).zip(scales.chunks(PANEL_GROUPS));
        for (panel, (levels, scales)) in panels.enumerate() {
            let column = start + panel * PANEL_COLUMNS;
            let values: [&[[i16; 32]]; T] = array_of(|t| x.panel(first + t, column));
            let x_scales: [&[f32]; T] =
                array_of(|t| &x.scales(first + t)[column / X_GROUP..][..levels.len()]);
            if levels.len() == PANEL_GROUPS {
                groups::<_, T, GROUPS, PANEL_GROUPS>(
                    lanes, 0, levels, scales, values, x_scales, &mut acc,
                );
                continue;
            }
            for i in 0..levels.len() {
                let (levels, scales) = (&levels[i..], &scales[i..]);
                let values: [&[[i16; 32]]; T] = array_of(|t| &values[t][i..]);
                let x_scales: [&[f32]; T] = array_of(|t| &x_scales[t][i..]);
                groups::<_, T, GROUPS, 1>(lanes, i, levels, scales, values, x_scales, &mut acc);
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            let group = X_GROUP / GROUPS;
            let x_sums = &x.sums(first + t, group)[start / group..][..offsets.len()];
            let offsets = if OFFSETS { offsets } else { &[] };
            sums[t] += total(lanes, acc, offsets, x_sums);
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

/// One row of x with rows of a weight in blocks of `F`, whose levels stay in registers. The bits
/// are those of [`Products`] by any number of rows.
pub(super) struct RowTimesX<'a, F, const BYTES: usize, const ELEMS: usize, const GROUPS: usize> {
    pub blocks: &'a [[u8; BYTES]],
    pub x: &'a IntegerRows,
    pub out: &'a mut [f32],
    pub format: PhantomData<F>,
}

impl<F: Blocks<BYTES, ELEMS, GROUPS>, const BYTES: usize, const ELEMS: usize, const GROUPS: usize>
    WithLanes for RowTimesX<'_, F, BYTES, ELEMS, GROUPS>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let RowTimesX { blocks, x, out, .. } = self;
        let (values, scales) = (x.values.as_chunks::<X_GROUP>().0, &x.scales[..]);
        let (group, groups) = (ELEMS / GROUPS, ELEMS / X_GROUP);
        let x_sums = x.sums(0, group);
        let mut offsets = [0.0; RUN_COLUMNS / 16];
        for (row, out) in blocks.chunks_exact(x.width / ELEMS).zip(out) {
            *out = 0.0;
            for (run, blocks) in row.chunks(RUN_COLUMNS / ELEMS).enumerate() {
                let first = run * RUN_COLUMNS / X_GROUP;
                let mut acc = [lanes.zero(); ACCUMULATORS];
                let mut step = 0;
                // As many blocks together as there are sums, so that these have registers.
                for blocks in blocks.chunks(ACCUMULATORS) {
                    for (block, bytes) in blocks.iter().enumerate() {
                        let unpacked = F::unpack(lanes, bytes);
                        let levels = unpacked.levels.as_chunks().0;
                        for (i, levels) in levels.iter().enumerate() {
                            let at = first + step + i;
                            let part = |half: usize| (i * X_GROUP + half * 16) / group;
                            let scale = [0, 1].map(|half| unpacked.scales[part(half)] * scales[at]);
                            let acc = &mut acc[(block * groups + i) % ACCUMULATORS];
                            *acc = lanes.multiply_add_pairs(levels, &values[at], scale, *acc);
                        }
                        if F::HAS_OFFSETS {
                            offsets[step * X_GROUP / group..][..GROUPS]
                                .copy_from_slice(&unpacked.offsets);
                        }
                        step += groups;
                    }
                }
                let columns = blocks.len() * ELEMS;
                let offsets =
                    if F::HAS_OFFSETS { &offsets[..columns / group] } else { &offsets[..0] };
                *out += total(
                    lanes,
                    acc,
                    offsets,
                    &x_sums[first * X_GROUP / group..][..columns / group],
                );
            }
        }
    }
}

/// Adds the products of `N` groups of 32 columns, the `first` of their panel and those after it.
#[inline(always)]
fn groups<L: Lanes, const T: usize, const GROUPS: usize, const N: usize>(
    lanes: L,
    first: usize,
    levels: &[[i8; X_GROUP]],
    scales: &[[f32; GROUPS]],
    values: [&[[i16; X_GROUP]]; T],
    x_scales: [&[f32]; T],
    acc: &mut [[L::F32s; ACCUMULATORS]; T],
) {
    let levels: &[[i8; X_GROUP]; N] = levels.first_chunk().expect("N groups");
    let scales: &[[f32; GROUPS]; N] = scales.first_chunk().expect("N groups");
    for t in 0..T {
        let values: &[[i16; X_GROUP]; N] = values[t].first_chunk().expect("N groups");
        let x_scales: &[f32; N] = x_scales[t].first_chunk().expect("N groups");
        let mut row = acc[t];
        for i in 0..N {
            let scale = [scales[i][0] * x_scales[i], scales[i][GROUPS - 1] * x_scales[i]];
            let acc = &mut row[(first + i) % ACCUMULATORS];
            *acc = lanes.multiply_add_pairs(&levels[i], &values[i], scale, *acc);
        }
        acc[t] = row;
    }
}
