//! A warp's tile over quants: the transposed products `K Q^T` and `V^T P^T`, so that an MMA has
//! eight query rows, and K and V as fragment A.
//!
//! A lane holds query rows `2 * pair` and `2 * pair + 1` of both accumulators, and keys `group` and
//! `group + 8` of the scores. The scales of K multiply the scores, in f32; what the bias of the
//! numbers of q8_0 and q4_0 adds to a panel is known from Q. The scales of V multiply the
//! probabilities, which are larger by `2^ROOM`: so small scales do not underflow in f16.

use super::super::super::mma::{lane, multiply_words};
use super::super::super::tile::{PANEL_COLUMNS, WarpTile, tile_offset};
use super::format::KvQuants;
use super::{KEYS, TILE_ROWS, panel_bytes, row_bytes, scales_of_pairs, scales_of_rows, vec_of};
use crate::kv_cache::PAGE_SIZE;
use crate::softcap::rough_tanh;
use core::marker::PhantomData;
use cuda_std::matrix::{load_x2, load_x2_trans, load_x4, load_x4_trans, transpose};
use cuda_std::mma::Accumulator;
use cuda_std::prelude::*;
use cuda_std::{F16x2, f16x2};
use half::f16;

/// Panels of all row tiles up to which Q stays in registers.
const MAX_PANELS_IN_REGISTERS: usize = 6;

/// The base of a row without a visible key: below that of any score.
const NO_SCORE: f32 = -1e38;

/// Fragments B of Q of a k-step, of each row tile.
type QWords<const ROW_TILES: usize> = [[u32; 2]; ROW_TILES];

/// Values of query rows `2 * pair` and `2 * pair + 1` of each row tile.
type OfRows<const ROW_TILES: usize> = [[f32; 2]; ROW_TILES];

/// `8 * ROW_TILES` query rows, up to two row tiles, over 16 keys of `K` and `V`.
pub struct QuantisedTile<K, V, const ROW_TILES: usize, const PANELS: usize> {
    /// Multiplies the scores: `softmax_scale * log2(e)`, times the exponent of K.
    scale: f32,
    /// What is subtracted from the scaled scores: the largest so far, less `ROOM`.
    base: OfRows<ROW_TILES>,
    /// Sums of `exp2(scale * score - base)` over this lane's keys so far.
    sum: OfRows<ROW_TILES>,
    q: [[QWords<ROW_TILES>; 2]; PANELS],
    /// What the scores of a panel are too small by.
    k_bias: [OfRows<ROW_TILES>; PANELS],
    /// Outputs, an accumulator for every 16 columns.
    out: [[[Accumulator; 2]; PANELS]; ROW_TILES],
    quants: PhantomData<(K, V)>,
}

/// Reduces `value` by `f` over the eight lanes that share a row.
#[inline(always)]
fn reduce_row(mut value: f32, f: fn(f32, f32) -> f32) -> f32 {
    for bit in 2..5 {
        value = f(value, warp::shuffle_xor(value, 1 << bit));
    }
    value
}

impl<K: KvQuants, V: KvQuants, const ROW_TILES: usize, const PANELS: usize>
    QuantisedTile<K, V, ROW_TILES, PANELS>
{
    const Q_IN_REGISTERS: bool = ROW_TILES * PANELS <= MAX_PANELS_IN_REGISTERS;

    /// Whether the bias of the numbers of K is known from Q; else none have one.
    const HAS_BIAS: bool = K::K_BIAS != 0 && Self::Q_IN_REGISTERS;

    /// As [`KvQuants::K_EXPONENT`], of [`QuantisedTile::unpack_k`].
    const EXPONENT: u32 =
        if Self::HAS_BIAS || K::K_BIAS == 0 { K::K_EXPONENT } else { K::V_EXPONENT };

    /// The numbers `2 * pair` and `2 * pair + 1` of a word of K.
    #[inline(always)]
    fn unpack_k(word: u32, pair: u32) -> u32 {
        if Self::HAS_BIAS || K::K_BIAS == 0 {
            K::unpack_k(word, pair)
        } else {
            K::unpack_v(word, pair)
        }
    }

    /// The words of Q of a k-step: the columns that the lane's words of K have.
    ///
    /// # Safety
    /// As [`WarpTile::scores`].
    #[inline(always)]
    unsafe fn load_q_words(
        smem_q: Shared<f16>,
        q_rows: u32,
        panel: usize,
        step: u32,
    ) -> QWords<ROW_TILES> {
        let (group, pair) = lane();
        let column = if K::BITS == 8 { 16 * step + 4 * pair } else { 8 * pair + 4 * step };
        let column = PANEL_COLUMNS * panel as u32 + column;
        core::array::from_fn(|row_tile| {
            let row = group + TILE_ROWS * row_tile as u32;
            let words = smem_q.offset(tile_offset::<f16>(row, column, q_rows)).cast::<u32>();
            // SAFETY: the caller's promise.
            let [a, b]: [u32; 2] = unsafe { words.get_vec(0) };
            match K::INTERLEAVED {
                true => [math::byte_perm(a, b, 0x5410), math::byte_perm(a, b, 0x7632)],
                false => [a, b],
            }
        })
    }

    /// The scores, scaled, less the base: exponents of the probabilities.
    #[inline(always)]
    fn exponents(&self, scores: &[Accumulator; ROW_TILES]) -> [Accumulator; ROW_TILES] {
        core::array::from_fn(|row_tile| {
            let base = self.base[row_tile];
            core::array::from_fn(|i| math::fma(scores[row_tile][i], self.scale, -base[i % 2]))
        })
    }

    /// Raises the bases to what the scores of a tile need, and rescales the state.
    #[inline(always)]
    fn grow(&mut self, scores: &[Accumulator; ROW_TILES]) {
        unroll!(row_tile in 0..2, {
            if row_tile < ROW_TILES {
                let [a, b, c, d] = scores[row_tile];
                let maxima = [math::max(a, c), math::max(b, d)].map(|m| reduce_row(m, math::max));
                let last = self.base[row_tile];
                let base = [0, 1].map(|row| {
                    let exponent = math::fma(maxima[row], self.scale, -last[row]);
                    let grows = exponent > V::ROOM as f32;
                    if grows { maxima[row] * self.scale - V::ROOM as f32 } else { last[row] }
                });
                // Exactly 1 if the base stays: other rows change no bit.
                let factors = [0, 1].map(|row| math::exp2_approx(last[row] - base[row]));
                self.base[row_tile] = base;
                self.sum[row_tile] = [0, 1].map(|row| self.sum[row_tile][row] * factors[row]);
                self.scale_rows(row_tile, factors);
            }
        });
    }

    /// Multiplies the outputs of a row tile by the rows' factors.
    #[inline(always)]
    fn scale_rows(&mut self, row_tile: usize, factors: [f32; 2]) {
        unroll!(panel in 0..PANELS, {
            unroll!(tile in 0..2, {
                let [a, b, c, d] = self.out[row_tile][panel][tile];
                let [even, odd] = factors;
                self.out[row_tile][panel][tile] = [a * even, b * odd, c * even, d * odd];
            });
        });
    }

    /// The first of the lane's columns of MMA `tile` of a panel, and of the pair it is in; the
    /// others are two columns after it.
    #[inline(always)]
    fn pair_column(panel: usize, tile: usize) -> u32 {
        let (group, _) = lane();
        let columns = if V::BITS == 8 {
            16 * tile as u32 + group / 2 * 4
        } else {
            group / 2 * 8 + 4 * tile as u32
        };
        PANEL_COLUMNS * panel as u32 + columns
    }
}

impl<K: KvQuants, V: KvQuants, const ROW_TILES: usize, const PANELS: usize> WarpTile
    for QuantisedTile<K, V, ROW_TILES, PANELS>
{
    type Element = f16;
    /// An accumulator of 16 keys for each row tile.
    type Scores = [Accumulator; ROW_TILES];
    /// Fragments B of each row tile.
    type Probabilities = [[F16x2; 2]; ROW_TILES];

    const ROWS: u32 = TILE_ROWS * ROW_TILES as u32;
    const KEYS: u32 = KEYS;
    const BLOCK_N: u32 = PAGE_SIZE;
    const WIDTH: u32 = PANEL_COLUMNS * PANELS as u32;
    const SCRATCH: u32 = 0;

    #[inline(always)]
    fn new(scale: f32) -> Self {
        const { assert!(ROW_TILES == 1 || ROW_TILES == 2) };
        QuantisedTile {
            scale: scale * (1u32 << Self::EXPONENT) as f32,
            base: [[NO_SCORE; 2]; ROW_TILES],
            sum: [[0.0; 2]; ROW_TILES],
            q: [[[[0; 2]; ROW_TILES]; 2]; PANELS],
            k_bias: [[[0.0; 2]; ROW_TILES]; PANELS],
            out: [[[[0.0; 4]; 2]; PANELS]; ROW_TILES],
            quants: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn take_queries(&mut self, smem_q: Shared<f16>, q_rows: u32) {
        if !Self::Q_IN_REGISTERS {
            return;
        }
        let bias = [u32::from(K::K_BIAS) * 0x1_0001; 4];
        unroll!(panel in 0..PANELS, {
            let mut acc = [[0.0; 4]; ROW_TILES];
            unroll!(step in 0..2, {
                // SAFETY: the caller's promise.
                let q = unsafe { Self::load_q_words(smem_q, q_rows, panel, step as u32) };
                self.q[panel][step] = q;
                unroll!(row_tile in 0..2, {
                    if row_tile < ROW_TILES && Self::HAS_BIAS {
                        multiply_words(bias, q[row_tile], &mut acc[row_tile]);
                    }
                });
            });
            self.k_bias[panel] = acc.map(|[a, b, ..]| [a, b]);
        });
    }

    #[inline(always)]
    unsafe fn scores(
        &self,
        _head_dim: u32,
        smem_q: Shared<f16>,
        q_rows: u32,
        smem_k: Shared<f16>,
    ) -> Self::Scores {
        let lane_id = warp::lane_id();
        let key = lane_id % KEYS;
        let mut scores = [[0.0; 4]; ROW_TILES];
        let mut products = [[0.0; 4]; ROW_TILES];
        // SAFETY: Q, words of K and scales are inside their tiles.
        unsafe {
            let scales = scales_of_rows::<K, PANELS>(smem_k);
            unroll!(panel in 0..PANELS, {
                if K::FORMAT.has_block_scales() && panel != 0 {
                    products = [[0.0; 4]; ROW_TILES];
                }
                let rows = smem_k.offset(panel as u32 * const { panel_bytes::<K>() / 2 });
                let rows = rows.offset(key * const { row_bytes::<K>() / 2 });
                // Words of the keys 0 to 7 and 8 to 15, of each half of the panel.
                let words = if K::BITS == 8 {
                    load_x4(rows.offset(8 * vec_of::<K>(key, lane_id / KEYS)))
                } else {
                    let [low, high] = load_x2(rows);
                    [low, high, low, high]
                };
                unroll!(step in 0..2, {
                    let first = if K::BITS == 8 { 0 } else { 2 * step as u32 };
                    let [low, high] = [words[2 * step], words[2 * step + 1]];
                    let a = [
                        Self::unpack_k(low, first),
                        Self::unpack_k(high, first),
                        Self::unpack_k(low, first + 1),
                        Self::unpack_k(high, first + 1),
                    ];
                    let q = match Self::Q_IN_REGISTERS {
                        true => self.q[panel][step],
                        false => Self::load_q_words(smem_q, q_rows, panel, step as u32),
                    };
                    unroll!(row_tile in 0..2, {
                        if row_tile < ROW_TILES {
                            multiply_words(a, q[row_tile], &mut products[row_tile]);
                        }
                    });
                });
                if K::FORMAT.has_block_scales() || panel == PANELS - 1 {
                    unroll!(row_tile in 0..2, {
                        if row_tile < ROW_TILES {
                            let bias = self.k_bias[panel][row_tile];
                            unroll!(i in 0..4, {
                                let product = match Self::HAS_BIAS {
                                    true => products[row_tile][i] + bias[i % 2],
                                    false => products[row_tile][i],
                                };
                                let score = scores[row_tile][i];
                                let scale = scales[panel][i / 2];
                                scores[row_tile][i] = math::fma(product, scale, score);
                            });
                        }
                    });
                }
            });
        }
        scores
    }

    #[inline(always)]
    fn cap(&self, scores: &mut Self::Scores, softcap: f32) {
        let unit = const { (1u32 << Self::EXPONENT) as f32 };
        for score in scores.as_flattened_mut() {
            *score = rough_tanh(*score * (softcap * unit)) / unit;
        }
    }

    #[inline(always)]
    fn mask(&self, scores: &mut Self::Scores, visible: impl Fn(u32, u32) -> bool) {
        let (group, pair) = lane();
        for (row_tile, scores) in scores.iter_mut().enumerate() {
            for (i, score) in scores.iter_mut().enumerate() {
                let row = TILE_ROWS * row_tile as u32 + 2 * pair + i as u32 % 2;
                if !visible(row, group + 8 * (i as u32 / 2)) {
                    *score = f32::NEG_INFINITY;
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
        let mut exponents = self.exponents(scores);
        let grows = exponents
            .as_flattened()
            .iter()
            .fold(false, |grows, exponent| grows | (*exponent > V::ROOM as f32));
        // After some keys of a long sequence it seldom does.
        if warp::vote_any(warp::FULL_MASK, grows) {
            self.grow(scores);
            exponents = self.exponents(scores);
        }
        core::array::from_fn(|row_tile| {
            let p = exponents[row_tile].map(math::exp2_approx);
            self.sum[row_tile][0] += p[0] + p[2];
            self.sum[row_tile][1] += p[1] + p[3];
            let of_keys = |a, b| transpose(convert::f32_to_f16x2(a, b).to_bits());
            [of_keys(p[0], p[1]), of_keys(p[2], p[3])].map(F16x2::from_bits)
        })
    }

    #[inline(always)]
    unsafe fn accumulate(
        &mut self,
        probabilities: Self::Probabilities,
        _scratch: Shared<f32>,
        smem_v: Shared<f16>,
    ) {
        let lane_id = warp::lane_id();
        let key = lane_id % KEYS;
        let mut scaled = [[0; 2]; ROW_TILES];
        // SAFETY: matrices and scales are inside the warp's part of the slot.
        unsafe {
            let scales = scales_of_pairs::<V, PANELS>(smem_v);
            unroll!(panel in 0..PANELS, {
                if V::FORMAT.has_block_scales() || panel == 0 {
                    unroll!(row_tile in 0..2, {
                        if row_tile < ROW_TILES {
                            unroll!(keys in 0..2, {
                                let p = probabilities[row_tile][keys];
                                let scales = scales[panel][keys];
                                scaled[row_tile][keys] = f16x2::mul(p, scales).to_bits();
                            });
                        }
                    });
                }
                let rows = smem_v.offset(panel as u32 * const { panel_bytes::<V>() / 2 });
                let rows = rows.offset(key * const { row_bytes::<V>() / 2 });
                // Words of the keys 0 to 7 and 8 to 15, of each half of the panel.
                let words = if V::BITS == 8 {
                    load_x4_trans(rows.offset(8 * vec_of::<V>(key, lane_id / KEYS)))
                } else {
                    let [low, high] = load_x2_trans(rows);
                    [low, high, low, high]
                };
                unroll!(tile in 0..2, {
                    let first = if V::BITS == 8 { 0 } else { 2 * tile as u32 };
                    let [low, high] = [words[2 * tile], words[2 * tile + 1]];
                    let a = [
                        V::unpack_v(low, first),
                        V::unpack_v(low, first + 1),
                        V::unpack_v(high, first),
                        V::unpack_v(high, first + 1),
                    ];
                    unroll!(row_tile in 0..2, {
                        if row_tile < ROW_TILES {
                            let out = &mut self.out[row_tile][panel][tile];
                            multiply_words(a, scaled[row_tile], out);
                        }
                    });
                });
            });
        }
    }

    #[inline(always)]
    fn normalize(&mut self) {
        unroll!(row_tile in 0..2, {
            if row_tile < ROW_TILES {
                let factors = self.sum[row_tile].map(|sum| {
                    let total = reduce_row(sum, |a, b| a + b);
                    if total > 0.0 { math::rcp_approx(total) } else { 0.0 }
                });
                self.scale_rows(row_tile, factors);
            }
        });
    }

    #[inline(always)]
    fn for_each_row(&self, mut f: impl FnMut(u32, f32, f32)) {
        let (group, pair) = lane();
        unroll!(row_tile in 0..2, {
            if row_tile < ROW_TILES {
                for row in 0..2 {
                    let total = reduce_row(self.sum[row_tile][row], |a, b| a + b);
                    let base = self.base[row_tile][row];
                    let max = if base == NO_SCORE { f32::NEG_INFINITY } else { base };
                    if group == 0 {
                        f(TILE_ROWS * row_tile as u32 + 2 * pair + row as u32, max, total);
                    }
                }
            }
        });
    }

    /// Lanes of adjacent columns exchange a row.
    #[inline(always)]
    fn for_each_pair(&self, mut f: impl FnMut(u32, u32, [f32; 2])) {
        let (group, pair) = lane();
        let is_odd = group % 2 == 1;
        let factor = (1u32 << V::V_EXPONENT) as f32;
        unroll!(row_tile in 0..2, {
            if row_tile < ROW_TILES {
                let row = TILE_ROWS * row_tile as u32 + 2 * pair + group % 2;
                unroll!(panel in 0..PANELS, {
                    unroll!(tile in 0..2, {
                        let values = self.out[row_tile][panel][tile].map(|value| value * factor);
                        unroll!(half in 0..2, {
                            let [even, odd] = [values[2 * half], values[2 * half + 1]];
                            let other = warp::shuffle_xor(if is_odd { even } else { odd }, 4);
                            let column = Self::pair_column(panel, tile) + 2 * half as u32;
                            f(row, column, if is_odd { [other, odd] } else { [even, other] });
                        });
                    });
                });
            }
        });
    }
}
