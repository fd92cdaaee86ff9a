//! Products of many rows of x with weights whose elements stand alone: tiles of the weight in f32,
//! transposed, so that a vector holds a column of sixteen rows.

use super::lanes::{Lanes, array_of, map};
use super::plain::Plain;
use super::{Arch, TILE_COLUMNS, TILE_ROWS, WeightRows, WithLanes, dispatch};
use std::array;
use std::marker::PhantomData;

/// Columns of a tile, of which each holds an element of every row.
pub type TileColumn = [f32; TILE_ROWS];

/// Rows of x, of which a panel's columns lie together, row after row.
pub struct Panels {
    num_rows: usize,
    width: usize,
    values: Vec<f32>,
}

impl Panels {
    /// Copies rows of `width` columns.
    pub fn new<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, width: usize) -> Self {
        let num_rows = rows.len();
        let mut values = vec![0.0; num_rows * width];
        for (row, x) in rows.enumerate() {
            for (panel, x) in x.chunks(TILE_COLUMNS).enumerate() {
                let start = panel * TILE_COLUMNS * num_rows + row * x.len();
                values[start..start + x.len()].copy_from_slice(x);
            }
        }
        Panels { num_rows, width, values }
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// The panel whose first column is `column`: its columns, and its rows one after the other.
    pub fn panel(&self, column: usize) -> (usize, &[f32]) {
        let columns = TILE_COLUMNS.min(self.width - column);
        (columns, &self.values[column * self.num_rows..][..columns * self.num_rows])
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
                    let stored = &rows[(first + row) * width + column..][..out.len()];
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

/// `acc[t][n] += sum_k x[t * stride + k] * columns[k][n]`, `k` in order: a row's bits do not depend
/// on the others.
pub fn multiply_add(
    arch: Arch,
    x: &[f32],
    stride: usize,
    columns: &[TileColumn],
    acc: &mut [[f32; TILE_ROWS]],
) {
    dispatch(arch, MultiplyAdd { x, stride, columns, acc });
}

struct MultiplyAdd<'a> {
    x: &'a [f32],
    stride: usize,
    columns: &'a [TileColumn],
    acc: &'a mut [[f32; TILE_ROWS]],
}

impl WithLanes for MultiplyAdd<'_> {
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        if lanes.has_32_registers() {
            self.by_blocks::<_, 12>(lanes);
        } else {
            self.by_blocks::<_, 3>(lanes);
        }
    }
}

impl MultiplyAdd<'_> {
    /// `B` rows of x at a time, whose sums are in registers.
    #[inline(always)]
    fn by_blocks<L: Lanes, const B: usize>(mut self, lanes: L) {
        let mut first = 0;
        while first < self.acc.len() {
            first += match self.acc.len() - first {
                rest if rest >= B => self.block::<L, B>(lanes, first),
                rest if B > 6 && rest >= 6 => self.block::<L, 6>(lanes, first),
                2.. => self.block::<L, 2>(lanes, first),
                _ => self.block::<L, 1>(lanes, first),
            };
        }
    }

    /// Rows `first..first + B` of x; gives `B`.
    #[inline(always)]
    fn block<L: Lanes, const B: usize>(&mut self, lanes: L, first: usize) -> usize {
        let columns = self.columns;
        let x: [&[f32]; B] = array_of(|b| &self.x[(first + b) * self.stride..][..columns.len()]);
        let acc: &mut [_; B] = self.acc[first..].first_chunk_mut().expect("B rows");
        let mut sums: [[L::F32s; 2]; B] = array::from_fn(|b| {
            let [low, high] = halves(&acc[b]);
            [lanes.load(low), lanes.load(high)]
        });
        for (k, column) in columns.iter().enumerate() {
            let [low, high] = halves(column);
            for b in 0..B {
                let x = [x[b][k]; 16];
                let [low_sum, high_sum] = sums[b];
                sums[b] =
                    [lanes.multiply_add(low, &x, low_sum), lanes.multiply_add(high, &x, high_sum)];
            }
        }
        for (acc, [low, high]) in acc.iter_mut().zip(sums) {
            let halves = acc.as_chunks_mut().0;
            (halves[0], halves[1]) = (lanes.values(low), lanes.values(high));
        }
        B
    }
}

/// The rows of a column by sixteens.
#[inline(always)]
fn halves(column: &TileColumn) -> [&[f32; 16]; 2] {
    let halves = column.as_chunks().0;
    [&halves[0], &halves[1]]
}
