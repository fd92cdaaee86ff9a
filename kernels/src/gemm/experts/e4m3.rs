//! Rows of E4M3, with a scale in f32 of each row, or of each block of 128 by 128.

use super::weight::{Fragments, HALVES, HalfOfX, TileRow, Weight, multiply};
use crate::element::Half;
use crate::gemm::quantised::format::{
    TILE_K, TILE_ROWS, TILE_UNITS, UNIT_K, lane_group, lane_pair,
};
use crate::gemm::quantised::prompt::fragment::InOrder;
use crate::tile::weight::{SCALE_BLOCK, WeightElement};
use cuda_std::E4m3;
use cuda_std::mma::Accumulator;
use cuda_std::prelude::*;
use half::f16;

/// Scales of a row in a tile.
const TILE_SCALES: usize = (TILE_K / SCALE_BLOCK) as usize;

/// Rows of E4M3 as [`Weight`].
pub struct E4m3Rows;

/// A lane's two rows.
#[derive(Clone, Copy)]
pub struct LaneRows {
    /// The first elements of both.
    rows: [Global<u8>; 2],
    /// The first scales of both.
    scales: [Global<f32>; 2],
    /// Whether a scale is that of a whole row.
    is_of_row: bool,
    /// Columns.
    k: u32,
}

impl Weight for E4m3Rows {
    type E = f16;
    type Row = LaneRows;
    /// The scales of both rows.
    type Loaded = [[f32; TILE_SCALES]; 2];
    /// Halves of the unit, of both rows.
    type Unit = [[[u32; 2]; HALVES]; 2];
    const RUN: u32 = 8;
    const TILE_UNITS: usize = TILE_UNITS;
    const FEW_BLOCKS: u32 = 2;
    const RING: usize = 4;
    const SUM_BLOCKS: u32 = 1;
    const SUM_RING: usize = 2;

    #[inline(always)]
    fn row(TileRow { weight, n, k, expert, row, scales }: TileRow) -> LaneRows {
        let rows = [0, 8].map(|below| {
            // Rows past the last load the last one; their results are not stored.
            let row = (row * TILE_ROWS + lane_group() + below).min(n - 1);
            expert as usize * n as usize + row as usize
        });
        let first_scale = weight.wrapping_add(scales.at as usize * 16).cast::<f32>();
        LaneRows {
            rows: rows.map(|row| {
                weight.wrapping_add(row * k as usize + (lane_pair() * Self::RUN) as usize)
            }),
            scales: rows.map(|row| {
                first_scale.wrapping_add(match scales.stride {
                    0 => row,
                    stride => row / SCALE_BLOCK as usize * stride as usize,
                })
            }),
            is_of_row: scales.stride == 0,
            k,
        }
    }

    #[inline(always)]
    unsafe fn load_scales(row: &LaneRows, tile: u32) -> Self::Loaded {
        let mut loaded = [[0.0; TILE_SCALES]; 2];
        unroll!(i in 0..2, {
            let k = tile * TILE_K + i as u32 * SCALE_BLOCK;
            let at = if row.is_of_row { 0 } else { k / SCALE_BLOCK };
            for below in 0..2 {
                // SAFETY: inside the row's scales, by the condition.
                [loaded[below][i]] = unsafe { row.scales[below].get_vec_if(at as usize, k < row.k) };
            }
        });
        loaded
    }

    #[inline(always)]
    unsafe fn load_unit(row: &LaneRows, tile: u32, unit: usize) -> Self::Unit {
        let mut loads = [[[0; 2]; HALVES]; 2];
        unroll!(half in 0..2, {
            let k = tile * TILE_K + unit as u32 * UNIT_K + half as u32 * (UNIT_K / 2);
            for below in 0..2 {
                let words = row.rows[below].wrapping_add(k as usize).cast::<u32>();
                let exists = k + lane_pair() * Self::RUN < row.k;
                // SAFETY: inside the row, by the condition.
                loads[below][half] = unsafe { words.stream_vec_if(0, exists) };
            }
        });
        loads
    }

    #[inline(always)]
    fn fragments(
        unit: &Self::Unit,
        scales: &Self::Loaded,
        [unit_idx, half]: [usize; 2],
    ) -> Fragments {
        let mut fragments = raw_fragments(unit, half);
        for step in 0..fragments.len() {
            for word in 0..4 {
                let scale = scales[word % 2][unit_idx / 2] * Self::sum_scale(word % 2);
                let [lo, hi] = f16::unpack(fragments[step][word]);
                fragments[step][word] = f16::pack(lo * scale, hi * scale);
            }
        }
        fragments
    }

    #[inline(always)]
    fn add_products(
        unit: &Self::Unit,
        scales: &Self::Loaded,
        [unit_idx, half]: [usize; 2],
        x: &HalfOfX,
        mut acc: Accumulator,
    ) -> Accumulator {
        let products = multiply::<f16>(&raw_fragments(unit, half), x, [0.0; 4]);
        for i in 0..4 {
            acc[i] = math::fma(products[i], scales[i / 2][unit_idx / 2], acc[i]);
        }
        acc
    }

    #[inline(always)]
    fn sum_scale(_: usize) -> f32 {
        <E4m3 as WeightElement<f16>>::FACTOR
    }
}

/// The fragments of half a unit, divided by [`Weight::sum_scale`] and without scales.
#[inline(always)]
fn raw_fragments(unit: &<E4m3Rows as Weight>::Unit, half: usize) -> Fragments {
    let [upper, lower] = [0, 1].map(|row| {
        let [a, b] = unit[row][half];
        [0, 1].map(|quad| E4m3::operands(&[a, b, 0, 0], quad))
    });
    [0, 1].map(|step| [upper[step][0], lower[step][0], upper[step][1], lower[step][1]])
}

/// A lane has 8 elements along k of each row and half; in order, it has pairs of all four lanes.
impl InOrder for [[[u32; 2]; HALVES]; 2] {
    #[inline(always)]
    fn in_order(self) -> Self {
        self.map(|row| row.map(transpose_pairs))
    }
}

/// Lane `i` of a group of four has row `i` of a matrix of four by four pairs of bytes; it gets
/// column `i`.
#[inline(always)]
fn transpose_pairs([first, second]: [u32; 2]) -> [u32; 2] {
    const LOW: u32 = 0x5410;
    const HIGH: u32 = 0x7632;
    // Columns 0 and 1 to lanes 0 and 1, columns 2 and 3 to lanes 2 and 3.
    let is_upper = lane_pair() >= 2;
    let other = warp::shuffle_xor(if is_upper { first } else { second }, 2);
    let (upper, lower) = if is_upper { (other, second) } else { (first, other) };
    // Of two columns and the rows of this lane and of the one two after it, one column.
    let is_odd = lane_pair() % 2 == 1;
    let [keep, give] = if is_odd { [HIGH, LOW] } else { [LOW, HIGH] };
    let own = math::byte_perm(upper, lower, keep);
    let other = warp::shuffle_xor(math::byte_perm(upper, lower, give), 1);
    let [even, odd] = if is_odd { [other, own] } else { [own, other] };
    [LOW, HIGH].map(|rows| math::byte_perm(even, odd, rows))
}
