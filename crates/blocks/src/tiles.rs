//! Products of many rows of x with weights in blocks: tiles of the weight are unpacked and
//! transposed, so that a vector holds as many rows of it.
//!
//! The arithmetic is that of [`products`](super::products), but for the order of the sums: the
//! integers of a group are added up in 32 bits before they are scaled.

use super::lanes::{Lanes, array_of, prefetch};
use super::products::PANEL_COLUMNS;
use super::{Arch, IntegerFormat, IntegerRows, WithLanes, dispatch};
use std::array;

/// Rows of the weight in a tile: two vectors.
pub const TILE_ROWS: usize = 32;
/// Most columns of the weight in a tile: with the x of a few rows it stays in the first-level cache.
pub const TILE_COLUMNS: usize = PANEL_COLUMNS;
/// Columns that a step takes.
const STEP: usize = 32;
/// Rows of x whose sums are in registers.
const BLOCK: usize = 6;

/// A number of each row of a tile, as two vectors.
type Column<T> = [[T; 16]; 2];

/// A tile of a weight.
pub struct Tile {
    /// Pairs of levels that follow each other in a row, as [`Lanes::transpose_pairs`] gives them.
    levels: Vec<[Column<u32>; STEP / 2]>,
    /// Scales of groups, and offsets.
    scales: Vec<Column<f32>>,
    offsets: Vec<Column<f32>>,
    format: IntegerFormat,
    columns: usize,
}

impl Tile {
    /// A tile of a weight in `format`, empty.
    pub fn new(format: IntegerFormat) -> Self {
        let zeros = vec![[[0.0; 16]; 2]; TILE_COLUMNS / format.group];
        let levels = vec![[[[0; 16]; 2]; STEP / 2]; TILE_COLUMNS / STEP];
        Tile { levels, scales: zeros.clone(), offsets: zeros, format, columns: 0 }
    }

    /// Takes the columns from `column` on of `rows`, at most [`TILE_ROWS`] whole rows of `width`
    /// columns; other rows of the tile keep what they had.
    pub fn fill(&mut self, arch: Arch, rows: &[u8], width: usize, column: usize) {
        let format = self.format;
        self.columns = TILE_COLUMNS.min(width - column);
        let bytes = |columns: usize| columns / format.block_elems * format.block_bytes;
        let groups = self.columns / format.group;
        let mut levels = [[0; TILE_COLUMNS]; 16];
        let (mut scales, mut offsets) = ([0.0; TILE_COLUMNS / 16], [0.0; TILE_COLUMNS / 16]);
        for (half, rows) in rows.chunks(16 * bytes(width)).enumerate() {
            for (lane, row) in rows.chunks_exact(bytes(width)).enumerate() {
                let (stored, next) = row[bytes(column)..].split_at(bytes(self.columns));
                next.iter().take(stored.len()).step_by(64).for_each(|next| prefetch(Some(next)));
                let levels = &mut levels[lane][..self.columns];
                let (scales, offsets) = (&mut scales[..groups], &mut offsets[..groups]);
                (format.unpack)(arch, stored, levels, scales, offsets);
                for (column, &scale) in self.scales.iter_mut().zip(&*scales) {
                    column[half][lane] = scale;
                }
                for (column, &offset) in self.offsets.iter_mut().zip(&*offsets) {
                    column[half][lane] = offset;
                }
            }
            dispatch(arch, Transpose { levels: &levels, half, out: &mut self.levels });
        }
    }

    /// Adds the products with the columns of `x` from `column` on to `acc`, of as many rows.
    pub fn multiply_add(
        &self,
        arch: Arch,
        x: &IntegerRows,
        column: usize,
        acc: &mut [[f32; TILE_ROWS]],
    ) {
        match (self.format.group, self.format.has_offsets) {
            (16, false) => self.run::<2, false>(arch, x, column, acc),
            (16, true) => self.run::<2, true>(arch, x, column, acc),
            (_, false) => self.run::<1, false>(arch, x, column, acc),
            (_, true) => self.run::<1, true>(arch, x, column, acc),
        }
    }

    fn run<const GROUPS: usize, const OFFSETS: bool>(
        &self,
        arch: Arch,
        x: &IntegerRows,
        column: usize,
        acc: &mut [[f32; TILE_ROWS]],
    ) {
        dispatch(arch, TileTimesX::<GROUPS, OFFSETS> { tile: self, x, column, acc });
    }
}

/// Sixteen rows of levels become a half of a tile.
struct Transpose<'a> {
    levels: &'a [[i8; TILE_COLUMNS]; 16],
    half: usize,
    out: &'a mut [[Column<u32>; STEP / 2]],
}

impl WithLanes for Transpose<'_> {
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        for (step, out) in self.out.iter_mut().enumerate() {
            let mut rows = [[0; 16]; 16];
            for (pairs, levels) in rows.iter_mut().zip(self.levels) {
                *pairs = lanes.widen_pairs(&levels.as_chunks().0[step]);
            }
            for (out, column) in out.iter_mut().zip(lanes.transpose_pairs(&rows)) {
                out[self.half] = column;
            }
        }
    }
}

/// A tile with all rows of x; `GROUPS` groups in 32 columns.
struct TileTimesX<'a, const GROUPS: usize, const OFFSETS: bool> {
    tile: &'a Tile,
    x: &'a IntegerRows,
    column: usize,
    acc: &'a mut [[f32; TILE_ROWS]],
}

impl<const GROUPS: usize, const OFFSETS: bool> WithLanes for TileTimesX<'_, GROUPS, OFFSETS> {
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let TileTimesX { tile, x, column, acc } = self;
        let mut first = 0;
        while first < acc.len() {
            let acc = &mut acc[first..];
            first += match acc.len() {
                BLOCK.. => Self::block::<_, BLOCK>(lanes, tile, x, column, first, acc),
                3.. => Self::block::<_, 3>(lanes, tile, x, column, first, acc),
                2 => Self::block::<_, 2>(lanes, tile, x, column, first, acc),
                _ => Self::block::<_, 1>(lanes, tile, x, column, first, acc),
            };
        }
    }
}

impl<const GROUPS: usize, const OFFSETS: bool> TileTimesX<'_, GROUPS, OFFSETS> {
    /// The first `B` rows of `acc`, which are those of x from `first` on; gives `B`.
    #[inline(always)]
    fn block<L: Lanes, const B: usize>(
        lanes: L,
        tile: &Tile,
        x: &IntegerRows,
        column: usize,
        first: usize,
        acc: &mut [[f32; TILE_ROWS]],
    ) -> usize {
        let acc = acc.first_chunk_mut().expect("B rows");
        block_times_tile::<_, B, GROUPS, OFFSETS>(lanes, tile, x, column, first, acc);
        B
    }
}

/// `B` rows of x from `first` on.
#[inline(always)]
fn block_times_tile<L: Lanes, const B: usize, const GROUPS: usize, const OFFSETS: bool>(
    lanes: L,
    tile: &Tile,
    x: &IntegerRows,
    column: usize,
    first: usize,
    acc: &mut [[f32; TILE_ROWS]; B],
) {
    let steps = tile.columns / STEP;
    let values: [&[[i16; STEP]]; B] = array_of(|b| &x.panel(first + b, column)[..steps]);
    let x_scales: [&[f32]; B] = array_of(|b| &x.scales(first + b)[column / STEP..][..steps]);
    let group = STEP / GROUPS;
    let x_sums: [&[f32]; B] =
        array_of(|b| &x.sums(first + b, group)[column / group..][..steps * GROUPS]);
    let mut sums: [[L::F32s; 2]; B] = array::from_fn(|b| {
        let halves = acc[b].as_chunks::<16>().0;
        array::from_fn(|half| lanes.load(&halves[half]))
    });
    let groups =
        tile.scales.as_chunks::<GROUPS>().0.iter().zip(tile.offsets.as_chunks::<GROUPS>().0);
    for (step, (levels, (scales, offsets))) in tile.levels[..steps].iter().zip(groups).enumerate() {
        let operands = Operands {
            levels,
            scales,
            x: array::from_fn(|b| &values[b][step]),
            x_scales: array_of(|b| x_scales[b][step]),
        };
        for part in 0..GROUPS {
            // The sums of both halves only where these have registers.
            if lanes.has_32_registers() {
                operands.add::<_, 2>(lanes, part, 0, &mut sums);
            } else {
                operands.add::<_, 1>(lanes, part, 0, &mut sums);
                operands.add::<_, 1>(lanes, part, 1, &mut sums);
            }
            if OFFSETS {
                for b in 0..B {
                    let x_sum = [x_sums[b][step * GROUPS + part]; 16];
                    for (sum, offsets) in sums[b].iter_mut().zip(&offsets[part]) {
                        *sum = lanes.multiply_add(offsets, &x_sum, *sum);
                    }
                }
            }
        }
    }
    for (acc, sums) in acc.iter_mut().zip(sums) {
        for (acc, sums) in acc.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
            *acc = lanes.values(sums);
        }
    }
}

/// The columns of a step: of a tile and of `B` rows of x, in `GROUPS` groups.
struct Operands<'a, const B: usize, const GROUPS: usize> {
    levels: &'a [Column<u32>; STEP / 2],
    scales: &'a [Column<f32>; GROUPS],
    x: [&'a [i16; STEP]; B],
    x_scales: [f32; B],
}

impl<const B: usize, const GROUPS: usize> Operands<'_, B, GROUPS> {
    /// Adds the products of group `part` with `H` halves of the tile's rows, from `first` on, to
    /// `sums`.
    #[inline(always)]
    fn add<L: Lanes, const H: usize>(
        &self,
        lanes: L,
        part: usize,
        first: usize,
        sums: &mut [[L::F32s; 2]; B],
    ) {
        let pairs = STEP / 2 / GROUPS;
        let mut ints = [[lanes.zero_i32s(); H]; B];
        for pair in part * pairs..(part + 1) * pairs {
            for (ints, x) in ints.iter_mut().zip(&self.x) {
                let x = [x[2 * pair], x[2 * pair + 1]];
                let [low, high] = x.map(|x| u32::from(x.cast_unsigned()));
                for (acc, levels) in ints.iter_mut().zip(&self.levels[pair][first..]) {
                    *acc = lanes.multiply_add_halves(levels, low | high << 16, *acc);
                }
            }
        }
        for b in 0..B {
            for half in 0..H {
                let (sum, scales) = (&mut sums[b][first + half], &self.scales[part][first + half]);
                *sum = lanes.scale_add(ints[b][half], scales, self.x_scales[b], *sum);
            }
        }
    }
}
