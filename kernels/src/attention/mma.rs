//! A warp's tile on the tensor cores, in f16 or bf16: `mma.m16n8k16` for `Q K^T` and `P V`, softmax
//! in f32 between them; probabilities are rounded to the element type.
//!
//! Fragment layouts are those of [`cuda_std::mma`]: of each 16 x 8 accumulator a lane holds rows
//! `group` and `group + 8`, columns `2 * pair` and `2 * pair + 1`.

use super::tile::{PANEL_COLUMNS, WarpTile, swizzle, vec_elems};
use crate::element::Half;
use crate::kv_cache::PAGE_SIZE;
use core::marker::PhantomData;
use cuda_std::matrix::{load_x4, load_x4_at, load_x4_trans_at};
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;

/// Rows of a warp.
const ROWS: u32 = 16;

/// Keys in a tile of K or V: a page.
const BLOCK_N: u32 = PAGE_SIZE;

/// Keys, or columns, of an MMA k-step.
const STEP: u32 = 16;

/// k-steps of a panel.
const PANEL_STEPS: usize = (PANEL_COLUMNS / STEP) as usize;

/// A 16 x 16 accumulator: two of 16 x 8.
type Square = [Accumulator; 2];

/// 16 rows of queries, `16 * KEY_STEPS` keys at once, heads of up to `32 * PANELS` columns.
pub struct MmaTile<E, const KEY_STEPS: usize, const PANELS: usize> {
    /// Largest score so far, times `log2(e)`, of rows `group` and `group + 8`.
    max: [f32; 2],
    /// Sums of `exp2(score - max)` over this lane's keys so far.
    sum: [f32; 2],
    out: [[Square; PANEL_STEPS]; PANELS],
    elements: PhantomData<E>,
}

/// 16-byte vector `vec_idx` of `row`, in the first panel of a tile.
#[inline(always)]
fn vec_at<E>(smem: Shared<E>, row: u32, vec_idx: u32) -> Shared<E> {
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

/// Offset of the keys of k-step `step` in panel `panel` of K or V.
const fn start_of(panel: usize, step: usize) -> u32 {
    (BLOCK_N * panel as u32 + STEP * step as u32) * PANEL_COLUMNS
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
fn lane() -> (u32, u32) {
    let lane_id = warp::lane_id();
    (lane_id / 4, lane_id % 4)
}

impl<E: Half, const KEY_STEPS: usize, const PANELS: usize> MmaTile<E, KEY_STEPS, PANELS> {
    /// Online softmax of row `group + 8 * row`: rescales its state to the new maximum and replaces
    /// the scores by `exp2(score - max)`.
    #[inline(always)]
    fn update_row(&mut self, row: usize, scores: &mut [Square; KEY_STEPS]) {
        let mut max = f32::NEG_INFINITY;
        for score in scores.as_flattened() {
            max = math::max(max, math::max(score[2 * row], score[2 * row + 1]));
        }
        let max = math::max(self.max[row], reduce_row(max, math::max));
        // The maximum of a row with masked keys alone is minus infinity; any finite one gives
        // probabilities of 0.
        let finite_max = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let correction = math::exp2_approx(self.max[row] - finite_max);
        self.max[row] = max;
        self.sum[row] *= correction;
        for score in scores.as_flattened_mut() {
            for column in 0..2 {
                let probability = math::exp2_approx(score[2 * row + column] - finite_max);
                score[2 * row + column] = probability;
                self.sum[row] += probability;
            }
        }
        self.scale_row(row, correction);
    }

    #[inline(always)]
    fn scale_row(&mut self, row: usize, factor: f32) {
        unroll!(panel in 0..PANELS, {
            for values in self.out[panel].as_flattened_mut() {
                values[2 * row] *= factor;
                values[2 * row + 1] *= factor;
            }
        });
    }
}

impl<E: Half, const KEY_STEPS: usize, const PANELS: usize> WarpTile
    for MmaTile<E, KEY_STEPS, PANELS>
{
    type Element = E;
    /// A 16 x 16 accumulator for every 16 keys.
    type Scores = [Square; KEY_STEPS];
    /// A fragment A for every 16 keys.
    type Probabilities = [[u32; 4]; KEY_STEPS];

    const ROWS: u32 = ROWS;
    const KEYS: u32 = STEP * KEY_STEPS as u32;
    const BLOCK_N: u32 = BLOCK_N;
    const WIDTH: u32 = PANEL_COLUMNS * PANELS as u32;
    const SCRATCH: u32 = 0;

    #[inline(always)]
    fn new() -> Self {
        MmaTile {
            max: [f32::NEG_INFINITY; 2],
            sum: [0.0; 2],
            out: [[[[0.0; 4]; 2]; PANEL_STEPS]; PANELS],
            elements: PhantomData,
        }
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
        let mut scores = [[[0.0; 4]; 2]; KEY_STEPS];
        unroll!(panel in 0..PANELS, {
            let q = q.offset(q_rows * PANEL_COLUMNS * panel as u32);
            for half in 0..PANEL_STEPS {
                let (q, k) = (step_of(q, half), step_of(k, half));
                // SAFETY: the fragments are inside the tiles.
                let a = unsafe { FragmentA::<E>::from_words(load_x4(q)) };
                unroll!(step in 0..4, {
                    if step < KEY_STEPS {
                        // SAFETY: as above.
                        let b = unsafe { load_x4_at::<{ start_of(panel, step) }, E>(k) };
                        multiply(a, b, &mut scores[step]);
                    }
                });
            }
        });
        scores
    }

    #[inline(always)]
    fn mask(&self, scores: &mut Self::Scores, scale: f32, visible: impl Fn(u32, u32) -> bool) {
        let (group, pair) = lane();
        for (tile, scores) in scores.as_flattened_mut().iter_mut().enumerate() {
            for (i, score) in scores.iter_mut().enumerate() {
                let (row, key) = (group + 8 * (i as u32 / 2), 2 * pair + i as u32 % 2);
                let is_visible = visible(row, 8 * tile as u32 + key);
                *score = if is_visible { *score * scale } else { f32::NEG_INFINITY };
            }
        }
    }

    #[inline(always)]
    unsafe fn update(
        &mut self,
        scores: &Self::Scores,
        _scratch: Shared<f32>,
    ) -> Self::Probabilities {
        let mut probabilities = *scores;
        self.update_row(0, &mut probabilities);
        self.update_row(1, &mut probabilities);
        let pack = |pair: &[f32]| E::pack(pair[0], pair[1]);
        probabilities.map(|[a, b]| [pack(&a[..2]), pack(&a[2..]), pack(&b[..2]), pack(&b[2..])])
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
        unroll!(panel in 0..PANELS, {
            unroll!(step in 0..4, {
                if step < KEY_STEPS {
                    let a = FragmentA::<E>::from_words(probabilities[step]);
                    for half in 0..PANEL_STEPS {
                        let v = step_of(v, half);
                        // SAFETY: the fragments are inside the tile.
                        let b = unsafe { load_x4_trans_at::<{ start_of(panel, step) }, E>(v) };
                        multiply(a, b, &mut self.out[panel][half]);
                    }
                }
            });
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
    fn for_each_row(&self, mut f: impl FnMut(u32, f32, f32)) {
        let (group, pair) = lane();
        for row in 0..2 {
            let total = reduce_row(self.sum[row], |a, b| a + b);
            if pair == 0 {
                f(group + 8 * row as u32, self.max[row], total);
            }
        }
    }

    #[inline(always)]
    fn for_each_pair(&self, mut f: impl FnMut(u32, u32, [f32; 2])) {
        let (group, pair) = lane();
        unroll!(panel in 0..PANELS, {
            for (tile, &[a, b, c, d]) in self.out[panel].as_flattened().iter().enumerate() {
                let column = PANEL_COLUMNS * panel as u32 + 8 * tile as u32 + 2 * pair;
                f(group, column, [a, b]);
                f(group + 8, column, [c, d]);
            }
        });
    }
}
