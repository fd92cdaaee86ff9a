//! A warp's tile on the tensor cores, in f16 or bf16: `mma.m16n8k16` for `Q K^T` and `P V`, softmax
//! in f32 between them; probabilities are rounded to the element type.
//!
//! Fragment layouts are those of [`cuda_std::mma`]: of each 16 x 8 accumulator a lane holds rows
//! `group` and `group + 8`, columns `2 * pair` and `2 * pair + 1`.

use super::head_dims::column_parts;
use super::tile::{PANEL_COLUMNS, WarpTile, WithSink, swizzle, vec_elems};
use crate::element::Half;
use crate::kv_cache::PAGE_SIZE;
use crate::softcap::rough_tanh;
use core::marker::PhantomData;
use cuda_std::matrix::{load_x4, load_x4_at, load_x4_trans_at};
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
use half::f16;

/// Rows of a row tile: those of an MMA.
const TILE_ROWS: u32 = 16;

/// Keys in a tile of K or V: a page.
const BLOCK_N: u32 = PAGE_SIZE;

/// Keys in a tile of heads that warps share: as many as shared memory has room for.
const SHARED_BLOCK_N: u32 = 32;
const _: () = assert!(PAGE_SIZE.is_multiple_of(SHARED_BLOCK_N));

/// Keys, or columns, of an MMA k-step.
const STEP: u32 = 16;

/// k-steps of a panel.
const PANEL_STEPS: usize = (PANEL_COLUMNS / STEP) as usize;

/// A 16 x 16 accumulator: two of 16 x 8.
type Square = [Accumulator; 2];

/// Scores of the rows of a row tile: a 16 x 16 accumulator for every 16 keys.
type RowScores<const KEY_STEPS: usize> = [Square; KEY_STEPS];

/// Unnormalised outputs of the rows of a row tile.
type RowOut<const PANELS: usize> = [[Square; PANEL_STEPS]; PANELS];

/// `16 * ROW_TILES` rows of queries, `16 * KEY_STEPS` keys at once, heads of up to `32 * PANELS`
/// columns. A fragment of K or V is loaded once for all row tiles.
pub struct MmaTile<E, const ROW_TILES: usize, const KEY_STEPS: usize, const PANELS: usize> {
    /// Multiplies the scores: `softmax_scale * log2(e)`.
    scale: f32,
    row_tiles: [RowTile<PANELS>; ROW_TILES],
    elements: PhantomData<E>,
}

/// The softmax state and the output of 16 rows.
#[derive(Clone, Copy)]
struct RowTile<const PANELS: usize> {
    /// Largest score so far, not scaled, of rows `group` and `group + 8`.
    max: [f32; 2],
    /// Sums of `exp2(scale * (score - max))` over this lane's keys so far.
    sum: [f32; 2],
    out: RowOut<PANELS>,
}

/// 16-byte vector `vec_idx` of `row`, in the first panel of a tile.
#[inline(always)]
pub(super) fn vec_at<E>(smem: Shared<E>, row: u32, vec_idx: u32) -> Shared<E> {
    smem.offset(row * PANEL_COLUMNS + (vec_idx ^ swizzle::<E>(row)) * vec_elems::<E>())
}

/// `smem`, a view from [`vec_at`], moved by `step` k-steps, 0 or 1, in the same panel.
#[inline(always)]
fn step_of<E>(smem: Shared<E>, step: usize) -> Shared<E> {
    smem.xor(STEP * step as u32)
}

/// Two MMAs: accumulates A times 16 columns of B. `b` holds the fragments of columns `0 .. 8`, then
/// of `8 .. 16`.
#[inline(always)]
fn multiply<E: Half>(a: FragmentA<E>, b: [u32; 4], [first, second]: &mut Square) {
    let [b0, b1, b2, b3] = b;
    *first = m16n8k16(a, FragmentB::from_words([b0, b1]), *first);
    *second = m16n8k16(a, FragmentB::from_words([b2, b3]), *second);
}

/// An MMA of f16: accumulates fragment A times fragment B.
#[inline(always)]
pub(super) fn multiply_words(a: [u32; 4], b: [u32; 2], accumulator: &mut Accumulator) {
    let (a, b) = (FragmentA::<f16>::from_words(a), FragmentB::from_words(b));
    *accumulator = m16n8k16(a, b, *accumulator);
}

/// The probabilities of 16 keys, rounded, as a fragment A.
#[inline(always)]
fn pack<E: Half>([left, right]: Square) -> [u32; 4] {
    [[left[0], left[1]], [left[2], left[3]], [right[0], right[1]], [right[2], right[3]]]
        .map(|[a, b]| E::pack(a, b))
}

/// Fragments A of 16 columns of Q, of each row tile; `q` is a view from [`vec_at`].
///
/// # Safety
/// As [`WarpTile::scores`].
#[inline(always)]
unsafe fn fragments_a<E: Half, const ROW_TILES: usize>(q: Shared<E>) -> [FragmentA<E>; ROW_TILES] {
    core::array::from_fn(|row_tile| {
        let q = q.offset(TILE_ROWS * PANEL_COLUMNS * row_tile as u32);
        // SAFETY: the fragment is inside the tile.
        FragmentA::from_words(unsafe { load_x4(q) })
    })
}

/// Offset of the keys of k-step `step` in panel `panel` of a tile of `block_n` keys of K or V.
const fn start_of(block_n: u32, panel: usize, step: usize) -> u32 {
    (block_n * panel as u32 + STEP * step as u32) * PANEL_COLUMNS
}

/// Reduces `value` by `f` over the four lanes that share a row.
#[inline(always)]
fn reduce_row(mut value: f32, f: fn(f32, f32) -> f32) -> f32 {
    for bit in 0..2 {
        value = f(value, warp::shuffle_xor(value, 1 << bit));
    }
    value
}

/// `groupID` and `threadID_in_group` of the lane, called `group` and `pair` here.
#[inline(always)]
pub(super) fn lane() -> (u32, u32) {
    let lane_id = warp::lane_id();
    (lane_id / 4, lane_id % 4)
}

impl<const PANELS: usize> RowTile<PANELS> {
    /// Panels of the output that this warp computes: the first ones of `out`, and no register is
    /// for the others.
    const OUT_PANELS: usize = PANELS / column_parts(PANELS);

    /// The first of them in a row of the output.
    #[inline(always)]
    fn first_panel() -> u32 {
        match column_parts(PANELS) {
            1 => 0,
            parts => warp::warp_idx() % parts as u32 * Self::OUT_PANELS as u32,
        }
    }

    /// Online softmax of row `group + 8 * row`: rescales its state to the new maximum and replaces
    /// the scores by `exp2(scale * (score - max))`.
    #[inline(always)]
    fn update<const KEY_STEPS: usize>(
        &mut self,
        row: usize,
        scale: f32,
        scores: &mut RowScores<KEY_STEPS>,
    ) {
        let mut max = f32::NEG_INFINITY;
        for score in scores.as_flattened() {
            max = math::max(max, math::max(score[2 * row], score[2 * row + 1]));
        }
        let max = math::max(self.max[row], reduce_row(max, math::max));
        // The maximum of a row with masked keys alone is minus infinity; any finite one gives
        // probabilities of 0.
        let finite_max = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let scaled_max = finite_max * scale;
        let probability = |score: f32| math::exp2_approx(math::fma(score, scale, -scaled_max));
        // Exactly 1 if the maximum stays: keys that are all masked change no bit.
        let correction = math::exp2_approx((self.max[row] - finite_max) * scale);
        self.max[row] = max;
        self.sum[row] *= correction;
        for score in scores.as_flattened_mut() {
            for column in 0..2 {
                let probability = probability(score[2 * row + column]);
                score[2 * row + column] = probability;
                self.sum[row] += probability;
            }
        }
        self.scale_row(row, correction);
    }

    #[inline(always)]
    fn scale_row(&mut self, row: usize, factor: f32) {
        unroll!(panel in 0..Self::OUT_PANELS, {
            for values in self.out[panel].as_flattened_mut() {
                values[2 * row] *= factor;
                values[2 * row + 1] *= factor;
            }
        });
    }

    #[inline(always)]
    fn normalize(&mut self) {
        unroll!(row in 0..2, {
            let total = reduce_row(self.sum[row], |a, b| a + b);
            self.scale_row(row, if total > 0.0 { math::rcp_approx(total) } else { 0.0 });
        });
    }

    #[inline(always)]
    fn for_each_pair(&self, first_row: u32, f: &mut impl FnMut(u32, u32, [f32; 2])) {
        let (group, pair) = lane();
        unroll!(panel in 0..Self::OUT_PANELS, {
            for (tile, &[a, b, c, d]) in self.out[panel].as_flattened().iter().enumerate() {
                let column = PANEL_COLUMNS * panel as u32 + 8 * tile as u32 + 2 * pair;
                let column = match const { column_parts(PANELS) } {
                    1 => column,
                    _ => column + PANEL_COLUMNS * Self::first_panel(),
                };
                f(first_row + group, column, [a, b]);
                f(first_row + group + 8, column, [c, d]);
            }
        });
    }
}

impl<E: Half, const ROW_TILES: usize, const KEY_STEPS: usize, const PANELS: usize> WithSink
    for MmaTile<E, ROW_TILES, KEY_STEPS, PANELS>
{
    #[inline(always)]
    fn add_sink(&mut self, sink: f32) {
        let (_, pair) = lane();
        // One lane of a row has its weight.
        let weight = if pair == 0 && sink > f32::NEG_INFINITY { 1.0 } else { 0.0 };
        for row_tile in 0..ROW_TILES {
            self.row_tiles[row_tile].max = [sink; 2];
            self.row_tiles[row_tile].sum = [weight; 2];
        }
    }
}

impl<E: Half, const ROW_TILES: usize, const KEY_STEPS: usize, const PANELS: usize> WarpTile
    for MmaTile<E, ROW_TILES, KEY_STEPS, PANELS>
{
    type Element = E;
    type Scores = [RowScores<KEY_STEPS>; ROW_TILES];
    /// A fragment A for every 16 keys of a row tile.
    type Probabilities = [[[u32; 4]; KEY_STEPS]; ROW_TILES];

    const ROWS: u32 = TILE_ROWS * ROW_TILES as u32;
    const KEYS: u32 = STEP * KEY_STEPS as u32;
    const BLOCK_N: u32 = if column_parts(PANELS) == 1 { BLOCK_N } else { SHARED_BLOCK_N };
    const WIDTH: u32 = PANEL_COLUMNS * PANELS as u32;
    const SCRATCH: u32 = 0;
    const COLUMN_PARTS: u32 = column_parts(PANELS) as u32;

    #[inline(always)]
    fn new(scale: f32) -> Self {
        let row_tile = RowTile {
            max: [f32::NEG_INFINITY; 2],
            sum: [0.0; 2],
            out: [[[[0.0; 4]; 2]; PANEL_STEPS]; PANELS],
        };
        MmaTile { scale, row_tiles: [row_tile; ROW_TILES], elements: PhantomData }
    }

    #[inline(always)]
    unsafe fn scores(
        &self,
        _head_dim: u32,
        smem_q: Shared<E>,
        q_rows: u32,
        smem_k: Shared<E>,
    ) -> Self::Scores {
        let lane_id = warp::lane_id();
        // Order of the four 8 x 8 matrices: of Q rows, then columns; of K columns, then keys.
        let q = vec_at(smem_q, lane_id % 16, lane_id / 16);
        let k = vec_at(smem_k, lane_id % 8 + lane_id / 16 * 8, lane_id / 8 % 2);
        let mut scores = [[[[0.0; 4]; 2]; KEY_STEPS]; ROW_TILES];
        unroll!(panel in 0..PANELS, {
            for half in 0..PANEL_STEPS {
                let (q, k) = (step_of(q, half), step_of(k, half));
                let q = q.offset(q_rows * PANEL_COLUMNS * panel as u32);
                // SAFETY: as promised.
                let a = unsafe { fragments_a::<E, ROW_TILES>(q) };
                unroll!(step in 0..4, {
                    if step < KEY_STEPS {
                        // SAFETY: the fragment is inside the tile.
                        let b = unsafe {
                            match const { column_parts(PANELS) } {
                                1 => load_x4_at::<{ start_of(BLOCK_N, panel, step) }, E>(k),
                                _ => load_x4_at::<{ start_of(SHARED_BLOCK_N, panel, step) }, E>(k),
                            }
                        };
                        for row_tile in 0..ROW_TILES {
                            multiply(a[row_tile], b, &mut scores[row_tile][step]);
                        }
                    }
                });
            }
        });
        scores
    }

    #[inline(always)]
    fn cap(&self, scores: &mut Self::Scores, softcap: f32) {
        unroll!(row_tile in 0..ROW_TILES, {
            unroll!(step in 0..4, {
                if step < KEY_STEPS {
                    for score in scores[row_tile][step].as_flattened_mut() {
                        *score = rough_tanh(*score * softcap);
                    }
                }
            });
        });
    }

    #[inline(always)]
    fn mask(&self, scores: &mut Self::Scores, visible: impl Fn(u32, u32) -> bool) {
        let (group, pair) = lane();
        for (row_tile, scores) in scores.iter_mut().enumerate() {
            let first_row = TILE_ROWS * row_tile as u32 + group;
            for (tile, scores) in scores.as_flattened_mut().iter_mut().enumerate() {
                for (i, score) in scores.iter_mut().enumerate() {
                    let (row, key) = (first_row + 8 * (i as u32 / 2), 2 * pair + i as u32 % 2);
                    if !visible(row, 8 * tile as u32 + key) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn update(
        &mut self,
        scores: &Self::Scores,
        _scratch: Shared<f32>,
    ) -> Self::Probabilities {
        let mut probabilities = [[[0; 4]; KEY_STEPS]; ROW_TILES];
        unroll!(row_tile in 0..ROW_TILES, {
            let mut scores = scores[row_tile];
            self.row_tiles[row_tile].update(0, self.scale, &mut scores);
            self.row_tiles[row_tile].update(1, self.scale, &mut scores);
            probabilities[row_tile] = scores.map(pack::<E>);
        });
        probabilities
    }

    #[inline(always)]
    unsafe fn accumulate(
        &mut self,
        probabilities: Self::Probabilities,
        _scratch: Shared<f32>,
        smem_v: Shared<E>,
    ) {
        let lane_id = warp::lane_id();
        // Order of the four 8 x 8 matrices of V: keys, then columns.
        let v = vec_at(smem_v, lane_id % 16, lane_id / 16);
        let v = match const { column_parts(PANELS) } {
            1 => v,
            _ => v.offset(SHARED_BLOCK_N * PANEL_COLUMNS * RowTile::<PANELS>::first_panel()),
        };
        unroll!(panel in 0..RowTile::<PANELS>::OUT_PANELS, {
            unroll!(step in 0..4, {
                if step < KEY_STEPS {
                    for half in 0..PANEL_STEPS {
                        let v = step_of(v, half);
                        // SAFETY: the fragments are inside the tile.
                        let b = unsafe {
                            match const { column_parts(PANELS) } {
                                1 => load_x4_trans_at::<{ start_of(BLOCK_N, panel, step) }, E>(v),
                                _ => load_x4_trans_at::<
                                    { start_of(SHARED_BLOCK_N, panel, step) },
                                    E,
                                >(v),
                            }
                        };
                        for row_tile in 0..ROW_TILES {
                            let a = FragmentA::<E>::from_words(probabilities[row_tile][step]);
                            multiply(a, b, &mut self.row_tiles[row_tile].out[panel][half]);
                        }
                    }
                }
            });
        });
    }

    #[inline(always)]
    fn normalize(&mut self) {
        unroll!(row_tile in 0..ROW_TILES, {
            self.row_tiles[row_tile].normalize();
        });
    }

    #[inline(always)]
    fn for_each_row(&self, mut f: impl FnMut(u32, f32, f32)) {
        let (group, pair) = lane();
        unroll!(row_tile in 0..ROW_TILES, {
            let RowTile { max, sum, .. } = &self.row_tiles[row_tile];
            for row in 0..2 {
                let total = reduce_row(sum[row], |a, b| a + b);
                // One of the warps that share them.
                if pair == 0 && RowTile::<PANELS>::first_panel() == 0 {
                    let first_row = TILE_ROWS * row_tile as u32 + group;
                    f(first_row + 8 * row as u32, max[row] * self.scale, total);
                }
            }
        });
    }

    #[inline(always)]
    fn for_each_pair(&self, mut f: impl FnMut(u32, u32, [f32; 2])) {
        unroll!(row_tile in 0..ROW_TILES, {
            self.row_tiles[row_tile].for_each_pair(TILE_ROWS * row_tile as u32, &mut f);
        });
    }
}
