//! Products of many rows of x with weights whose elements stand alone: tiles of the weight in f32,
//! transposed, so that a vector holds a column of sixteen rows.

use super::lanes::{Lanes, array_of, map, prefetch};
use super::plain::Plain;
use super::{Arch, TILE_COLUMNS, TILE_ROWS, WeightRows, WithLanes, dispatch};
use std::array;
use std::marker::PhantomData;

/// Columns of a tile, of which each holds an element of every row.
pub type TileColumn = [f32; TILE_ROWS];

/// Rows of x whose sums are in registers, and of what is left fewer.
const BLOCK: usize = 12;

/// Rows of x as products with tiles read them.
pub struct PackedRows {
    num_rows: usize,
    width: usize,
    /// Panels of [`TILE_COLUMNS`] columns, of blocks of rows, `[columns, rows of the block]`.
    values: Vec<f32>,
}

impl PackedRows {
    /// Packs rows of `width` columns.
    pub fn new<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, width: usize) -> Self {
        let num_rows = rows.len();
        let mut values = vec![0.0; num_rows * width];
        for (row, x) in rows.enumerate() {
            let (first, block) = block_of(row, num_rows);
            for (panel, x) in x.chunks(TILE_COLUMNS).enumerate() {
                let start = panel * TILE_COLUMNS * num_rows + first * x.len() + row - first;
                let values = values[start..].iter_mut().step_by(block);
                values.zip(x).for_each(|(value, &x)| *value = x);
            }
        }
        PackedRows { num_rows, width, values }
    }

    /// The panel whose first column is `column`.
    fn panel(&self, column: usize) -> &[f32] {
        let columns = TILE_COLUMNS.min(self.width - column);
        &self.values[column * self.num_rows..][..columns * self.num_rows]
    }
}

/// Rows of the block that begins when so many are left.
#[inline(always)]
fn block_rows(left: usize) -> usize {
    match left {
        BLOCK.. => BLOCK,
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// The first row of the block that `row` is in, and the block's rows.
fn block_of(row: usize, num_rows: usize) -> (usize, usize) {
    let mut first = row / BLOCK * BLOCK;
    loop {
        let block = block_rows(num_rows - first);
        if row < first + block {
            return (first, block);
        }
        first += block;
    }
}

/// Fills `out` with the columns from the third argument on, of at most [`TILE_ROWS`] rows. Further
/// rows become zeros.
pub type FillTile = fn(Arch, WeightRows, usize, &mut [TileColumn]);

/// [`FillTile`] of elements of `F`.
pub(super) fn fill<F: Plain<BYTES>, const BYTES: usize>(
    arch: Arch,
    weight: WeightRows,
    column: usize,
    out: &mut [TileColumn],
) {
    dispatch(arch, Fill::<F, BYTES> { weight, column, out, of: PhantomData });
}

struct Fill<'a, F, const BYTES: usize> {
    weight: WeightRows<'a>,
    column: usize,
    out: &'a mut [TileColumn],
    of: PhantomData<F>,
}

impl<F: Plain<BYTES>, const BYTES: usize> WithLanes for Fill<'_, F, BYTES> {
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let Fill { weight, column, out, .. } = self;
        let width = weight.width();
        let rows = weight.bytes().as_chunks::<BYTES>().0;
        for first in (0..TILE_ROWS).step_by(16) {
            let present = weight.num_rows().saturating_sub(first).min(16);
            for (i, out) in out.chunks_mut(16).enumerate() {
                let column = column + i * 16;
                let mut tile = [[0; 16]; 16];
                for (row, elements) in tile.iter_mut().enumerate().take(present) {
                    let stored = &rows[(first + row) * width + column..];
                    prefetch(stored.get(TILE_COLUMNS));
                    let stored = &stored[..out.len()];
                    let mut values = match stored.first_chunk() {
                        Some(stored) => F::widen(lanes, stored),
                        None => array_of(|i| stored.get(i).map_or(0.0, F::read)),
                    };
                    if F::HAS_SCALES {
                        let scale = weight.scale(first + row, column);
                        values = map(values, |value| value * scale);
                    }
                    *elements = map(values, f32::to_bits);
                }
                let tile = lanes.transpose(&tile);
                for (out, column) in out.iter_mut().zip(tile) {
                    out.as_chunks_mut().0[first / 16] = map(column, f32::from_bits);
                }
            }
        }
    }
}

/// Adds the products of a tile, `columns` of the weight from `column` on, with those columns of all
/// rows of x to `acc`: `acc[t][n] += sum_k x[t][column + k] * columns[k][n]`. `k` is in order, so
/// that the bits of a row do not depend on the others.
pub fn multiply_add(
    arch: Arch,
    x: &PackedRows,
    column: usize,
    columns: &[TileColumn],
    acc: &mut [[f32; TILE_ROWS]],
) {
    dispatch(arch, MultiplyAdd { x: x.panel(column), columns, acc });
}

struct MultiplyAdd<'a> {
    x: &'a [f32],
    columns: &'a [TileColumn],
    acc: &'a mut [[f32; TILE_ROWS]],
}

impl WithLanes for MultiplyAdd<'_> {
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let MultiplyAdd { mut x, columns, mut acc } = self;
        while !acc.is_empty() {
            let rows = block_rows(acc.len());
            let (block, rest) = acc.split_at_mut(rows);
            let (x_block, x_rest) = x.split_at(rows * columns.len());
            match rows {
                BLOCK => block_product::<_, BLOCK>(lanes, x_block, columns, block),
                8 => block_product::<_, 8>(lanes, x_block, columns, block),
                4 => block_product::<_, 4>(lanes, x_block, columns, block),
                2 => block_product::<_, 2>(lanes, x_block, columns, block),
                _ => block_product::<_, 1>(lanes, x_block, columns, block),
            }
            (acc, x) = (rest, x_rest);
        }
    }
}

/// A block of `B` rows of x.
#[inline(always)]
fn block_product<L: Lanes, const B: usize>(
    lanes: L,
    x: &[f32],
    columns: &[TileColumn],
    acc: &mut [[f32; TILE_ROWS]],
) {
    let x: &[[f32; B]] = x.as_chunks().0;
    if lanes.has_32_registers() {
        part_product::<L, B, B>(lanes, x, 0, columns, acc);
    } else {
        for (i, acc) in acc.chunks_mut(2).enumerate() {
            match acc.len() {
                2 => part_product::<L, B, 2>(lanes, x, 2 * i, columns, acc),
                _ => part_product::<L, B, 1>(lanes, x, 2 * i, columns, acc),
            }
        }
    }
}

/// The `P` rows of a block from `first` on, whose sums are in registers.
#[inline(always)]
fn part_product<L: Lanes, const B: usize, const P: usize>(
    lanes: L,
    x: &[[f32; B]],
    first: usize,
    columns: &[TileColumn],
    acc: &mut [[f32; TILE_ROWS]],
) {
    let acc: &mut [_; P] = acc.first_chunk_mut().expect("P rows");
    let mut sums: [[L::F32s; 2]; P] = array::from_fn(|row| {
        let [low, high] = halves(&acc[row]);
        [lanes.load(low), lanes.load(high)]
    });
    for (x, column) in x.iter().zip(columns) {
        let [low, high] = halves(column);
        for row in 0..P {
            let x = [x[first + row]; 16];
            let [low_sum, high_sum] = sums[row];
            sums[row] =
                [lanes.multiply_add(low, &x, low_sum), lanes.multiply_add(high, &x, high_sum)];
        }
    }
    // By an index: an iterator would keep the sums in memory, in the loop above too.
    for row in 0..P {
        let halves = acc[row].as_chunks_mut().0;
        (halves[0], halves[1]) = (lanes.values(sums[row][0]), lanes.values(sums[row][1]));
    }
}

/// The rows of a column by sixteens.
#[inline(always)]
fn halves(column: &TileColumn) -> [&[f32; 16]; 2] {
    let halves = column.as_chunks().0;
    [&halves[0], &halves[1]]
}
