//! A warp's tile on the tensor cores, of f16 or bf16: `mma.m16n8k16` for `Q K^T` and `P V`, f32
//! between them; the probabilities are rounded to the elements' type.
//!
//! Lanes hold what [`cuda_std::mma`] says: of each 16 x 8 scores or outputs rows `group` and
//! `group + 8`, columns `2 * pair` and the next.

use super::tile::{CHUNK, WarpTile, fragment, swizzle};
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

/// Keys, or columns, of one step of a product.
const STEP: u32 = 16;

/// Steps in the columns of a piece.
const CHUNK_STEPS: usize = (CHUNK / STEP) as usize;

/// 16 rows against 16 columns: two accumulators.
type Square = [Accumulator; 2];

/// 16 rows of queries, `16 * KEY_STEPS` keys at once, heads of up to `32 * CHUNKS` columns.
pub struct MmaTile<E, const KEY_STEPS: usize, const CHUNKS: usize> {
    /// Largest score so far, times `log2(e)`, of rows `group` and `group + 8`.
    max: [f32; 2],
    /// Sums of `exp2(score - max)` over the keys that this lane has seen.
    sum: [f32; 2],
    out: [[Square; CHUNK_STEPS]; CHUNKS],
    elements: PhantomData<E>,
}

/// The fragment `fragment_idx` of `row` of a tile.
#[inline(always)]
fn at<E>(smem: Shared<E>, row: u32, fragment_idx: u32) -> Shared<E> {
    smem.offset(row * CHUNK + (fragment_idx ^ swizzle::<E>(row)) * fragment::<E>())
}

/// The view at the next 16 columns of every two: `at` of a fragment two on.
#[inline(always)]
fn step_of<E>(smem: Shared<E>, step: usize) -> Shared<E> {
    smem.xor(STEP * step as u32)
}

/// Adds the products of fragments A and B to 16 columns of a result: `b` are the fragments of its
/// columns `0 .. 8`, then `8 .. 16`.
#[inline(always)]
fn multiply<E: Half>(a: FragmentA<E>, b: [u32; 4], [first, second]: &mut Square) {
    let [b0, b1, b2, b3] = b;
    *first = m16n8k16(a, FragmentB::from_words([b0, b1]), *first);
    *second = m16n8k16(a, FragmentB::from_words([b2, b3]), *second);
}

/// First element of the keys of a step in a piece of K or V.
const fn start_of(chunk: usize, step: usize) -> u32 {
    (BLOCK_N * chunk as u32 + STEP * step as u32) * CHUNK
}

/// `f` of `value` over the four lanes that share a row.
#[inline(always)]
fn reduce_row(mut value: f32, f: fn(f32, f32) -> f32) -> f32 {
    for bit in 0..2 {
        value = f(value, warp::shuffle_xor(value, 1 << bit));
    }
    value
}

/// The lane's group and pair.
#[inline(always)]
fn lane() -> (u32, u32) {
    let lane_id = warp::lane_id();
    (lane_id / 4, lane_id % 4)
}

impl<E: Half, const KEY_STEPS: usize, const CHUNKS: usize> MmaTile<E, KEY_STEPS, CHUNKS> {
    /// Takes in the scores of row `group + 8 * row`; gives `exp2(score - max)` in their place.
    #[inline(always)]
    fn update_row(&mut self, row: usize, scores: &mut [Square; KEY_STEPS]) {
        let mut max = f32::NEG_INFINITY;
        for score in scores.as_flattened() {
            max = math::max(max, math::max(score[2 * row], score[2 * row + 1]));
        }
        let max = math::max(self.max[row], reduce_row(max, math::max));
        // A row that has seen masked keys alone has no largest score: any finite number makes its
        // terms 0.
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
        unroll!(chunk in 0..CHUNKS, {
            for values in self.out[chunk].as_flattened_mut() {
                values[2 * row] *= factor;
                values[2 * row + 1] *= factor;
            }
        });
    }
}

impl<E: Half, const KEY_STEPS: usize, const CHUNKS: usize> WarpTile
    for MmaTile<E, KEY_STEPS, CHUNKS>
{
    type Element = E;
    /// Of 16 keys, keys `0 .. 8` and `8 .. 16`.
    type Scores = [Square; KEY_STEPS];
    /// Fragments A of 16 keys each.
    type Probabilities = [[u32; 4]; KEY_STEPS];

    const ROWS: u32 = ROWS;
    const KEYS: u32 = STEP * KEY_STEPS as u32;
    const BLOCK_N: u32 = BLOCK_N;
    const WIDTH: u32 = CHUNK * CHUNKS as u32;
    const SCRATCH: u32 = 0;

    #[inline(always)]
    fn new() -> Self {
        MmaTile {
            max: [f32::NEG_INFINITY; 2],
            sum: [0.0; 2],
            out: [[[[0.0; 4]; 2]; CHUNK_STEPS]; CHUNKS],
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
        // Matrices of Q: rows, then columns; of K: columns, then keys.
        let q = at(smem_q, lane_id % 16, lane_id / 16);
        let k = at(smem_k, lane_id % 8 + lane_id / 16 * 8, lane_id / 8 % 2);
        let mut scores = [[[0.0; 4]; 2]; KEY_STEPS];
        unroll!(chunk in 0..CHUNKS, {
            let q = q.offset(q_rows * CHUNK * chunk as u32);
            for half in 0..CHUNK_STEPS {
                let (q, k) = (step_of(q, half), step_of(k, half));
                // SAFETY: the fragments are inside the tiles.
                let a = unsafe { FragmentA::<E>::from_words(load_x4(q)) };
                unroll!(step in 0..4, {
                    if step < KEY_STEPS {
                        // SAFETY: as above.
                        let b = unsafe { load_x4_at::<{ start_of(chunk, step) }, E>(k) };
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
        // Matrices of V: keys, then columns.
        let v = at(smem_v, lane_id % 16, lane_id / 16);
        unroll!(chunk in 0..CHUNKS, {
            unroll!(step in 0..4, {
                if step < KEY_STEPS {
                    let a = FragmentA::<E>::from_words(probabilities[step]);
                    for half in 0..CHUNK_STEPS {
                        let v = step_of(v, half);
                        // SAFETY: the fragments are inside the tile.
                        let b = unsafe { load_x4_trans_at::<{ start_of(chunk, step) }, E>(v) };
                        multiply(a, b, &mut self.out[chunk][half]);
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
        unroll!(chunk in 0..CHUNKS, {
            for (tile, &[a, b, c, d]) in self.out[chunk].as_flattened().iter().enumerate() {
                let column = CHUNK * chunk as u32 + 8 * tile as u32 + 2 * pair;
                f(group, column, [a, b]);
                f(group + 8, column, [c, d]);
            }
        });
    }
}
