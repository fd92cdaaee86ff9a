//! K and V of 8 and 4 bits, read by decode as they are: a warp's quants become fragments B in
//! registers. Of K the scales multiply the scores, in f32; of V they multiply the values, which
//! are then f16.
//!
//! A warp's keys of a slot are panels of 32 columns, `[PANELS, KEYS, 32]` quants, and after them
//! scales, `[num_scales, KEYS]`. An MMA takes any order of the columns that K and Q agree in, and of
//! the columns of V and the output: a lane takes eight adjacent columns of a panel of K, and the
//! words of the format hold even columns, then odd ones, so that masks of a word are pairs.

use super::super::kv_ring::KvSource;
use super::super::mma::{MmaTile, lane, multiply_words, vec_at};
use super::super::tile::{Cache, PANEL_COLUMNS, WarpTile};
use crate::kv_cache::{KvFormat, PAGE_SIZE};
use core::marker::PhantomData;
use core::ops::Range;
use cuda_std::matrix::{load_x2_trans, load_x4_trans};
use cuda_std::mma::Accumulator;
use cuda_std::prelude::*;
use cuda_std::{F16x2, f16x2};
use half::f16;

/// Keys of a warp.
const KEYS: u32 = 16;

/// Bytes of the scales of a warp's keys.
const SCALE_BYTES: u32 = 2 * KEYS;

/// Bytes of a slot up to which there are eight of them.
const MAX_SMALL_SLOT_BYTES: u32 = 10 << 10;

/// Quants of a format.
pub trait KvQuants: Copy {
    /// The format.
    #[doc(hidden)]
    const FORMAT: KvFormat;
    /// Bits of a quant.
    #[doc(hidden)]
    const BITS: u32;
    /// What the numbers of [`KvQuants::pair`] are to be multiplied by, beside the scale.
    #[doc(hidden)]
    const FACTOR: f32;

    /// The numbers at bit fields `index` of the two halves of a word.
    #[doc(hidden)]
    fn pair(word: u32, index: u32) -> F16x2;
}

/// q8_0.
#[derive(Clone, Copy)]
pub struct Q8;

/// E4M3.
#[derive(Clone, Copy)]
pub struct Fp8;

/// q4_0.
#[derive(Clone, Copy)]
pub struct Q4;

/// The f16 of 1024 in both halves: its lowest bits count ones.
const MAGIC: u32 = 0x6400_6400;

impl KvQuants for Q8 {
    const FORMAT: KvFormat = KvFormat::Q8_0;
    const BITS: u32 = 8;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn pair(word: u32, index: u32) -> F16x2 {
        let biased = F16x2::from_bits(word >> (8 * index) & 0x00ff_00ff | MAGIC);
        // 1024 + 128.
        f16x2::sub(biased, F16x2::from_bits(0x6480_6480))
    }
}

impl KvQuants for Fp8 {
    const FORMAT: KvFormat = KvFormat::Fp8;
    const BITS: u32 = 8;
    /// The exponents of f16 and of E4M3 are biased by 15 and by 7.
    const FACTOR: f32 = 256.0;

    #[inline(always)]
    fn pair(word: u32, index: u32) -> F16x2 {
        let codes = if index == 0 { word << 8 } else { word };
        F16x2::from_bits(codes & 0x8000_8000 | codes >> 1 & 0x3f80_3f80)
    }
}

impl KvQuants for Q4 {
    const FORMAT: KvFormat = KvFormat::Q4_0;
    const BITS: u32 = 4;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn pair(word: u32, index: u32) -> F16x2 {
        let biased = F16x2::from_bits(word >> (4 * index) & 0x000f_000f | MAGIC);
        // 1024 + 8.
        f16x2::sub(biased, F16x2::from_bits(0x6408_6408))
    }
}

/// Bytes of a row of a panel.
const fn row_bytes<F: KvQuants>() -> u32 {
    PANEL_COLUMNS * F::BITS / 8
}

/// Bytes of a panel of a warp's keys.
const fn panel_bytes<F: KvQuants>() -> u32 {
    KEYS * row_bytes::<F>()
}

/// Scales of a key.
const fn num_scales<F: KvQuants>(panels: usize) -> u32 {
    F::FORMAT.num_scales(PANEL_COLUMNS * panels as u32)
}

/// Bytes of a warp's keys.
const fn warp_bytes<F: KvQuants>(panels: usize) -> u32 {
    panel_bytes::<F>() * panels as u32 + SCALE_BYTES * num_scales::<F>(panels)
}

/// Index of a 16-byte vector of `key` in its row of a panel: the two of 8 bits are swizzled, so
/// that eight rows at one vector fill the banks once.
#[inline(always)]
fn vec_of<F: KvQuants>(key: u32, vec_idx: u32) -> u32 {
    if F::BITS == 8 { vec_idx ^ (key / 4 % 2) } else { vec_idx }
}

/// 16 query rows over K of `K` and V of `V`, heads of up to `32 * PANELS` columns.
pub struct Quantised<K, V, const PANELS: usize>(PhantomData<(K, V)>);

impl<K: KvQuants, V: KvQuants, const PANELS: usize> KvSource for Quantised<K, V, PANELS> {
    type Element = f16;
    type Tile = QuantisedTile<K, V, PANELS>;

    const NUM_SLOTS: u32 = if 2 * Self::SLOT_ELEMS <= MAX_SMALL_SLOT_BYTES { 8 } else { 5 };
    const SLOT_ELEMS: u32 = PAGE_SIZE / KEYS * Self::WARP_ELEMS;
    const WARP_ELEMS: u32 = {
        let (k, v) = (warp_bytes::<K>(PANELS), warp_bytes::<V>(PANELS));
        (if k > v { k } else { v }) / 2
    };
    const APPENDS: bool = false;

    #[inline(always)]
    unsafe fn copy_tile(
        slot: Shared<f16>,
        pool: Global<f16>,
        of_v: bool,
        cache: &Cache,
        page: u32,
        first: u32,
        keys: &Range<u32>,
    ) {
        let slot = slot.offset(warp::warp_idx() * Self::WARP_ELEMS).cast();
        let first = first + warp::warp_idx() * KEYS;
        // SAFETY: the caller's promise.
        unsafe {
            if of_v {
                copy_keys::<V, PANELS>(slot, pool.cast(), cache, page, first, keys);
            } else {
                copy_keys::<K, PANELS>(slot, pool.cast(), cache, page, first, keys);
            }
        }
    }
}

/// Issues the copies of the warp's keys, from `first` on.
///
/// # Safety
/// As [`KvSource::copy_tile`]; `slot` is the warp's part.
#[inline(always)]
unsafe fn copy_keys<F: KvQuants, const PANELS: usize>(
    slot: Shared<u8>,
    pool: Global<u8>,
    cache: &Cache,
    page: u32,
    first: u32,
    keys: &Range<u32>,
) {
    let &Cache { num_kv_heads, kv_head, head_dim, .. } = cache;
    let start = F::FORMAT.page_start(page, kv_head, num_kv_heads, head_dim);
    let (lane_id, page_row) = (warp::lane_id(), first % PAGE_SIZE);
    // 1. Quants: of 8 bits a panel a pass, of 4 bits two.
    let row_vecs = const { row_bytes::<F>() / 16 };
    let pass_panels = const { 32 / (KEYS * (row_bytes::<F>() / 16)) };
    let (row, vec_idx) = (lane_id / row_vecs % KEYS, lane_id % row_vecs);
    let lane_panel = lane_id / row_vecs / KEYS;
    let exists = keys.start <= first + row && first + row < keys.end;
    let gmem_row = start + ((page_row + row) * F::FORMAT.quant_bytes(head_dim)) as usize;
    let smem_row = row * row_bytes::<F>() + 16 * vec_of::<F>(row, vec_idx);
    let vec_columns = const { 128 / F::BITS };
    unroll!(pass in 0..PANELS, {
        let panel = pass as u32 * pass_panels + lane_panel;
        let column = panel * PANEL_COLUMNS + vec_idx * vec_columns;
        if panel < PANELS as u32 {
            let from = gmem_row + (column * F::BITS / 8) as usize;
            let to = panel * panel_bytes::<F>() + smem_row;
            // SAFETY: nothing is read where nothing exists; the vector is inside the slot.
            unsafe {
                let (to, from) = (slot.offset(to), pool.wrapping_add(from));
                cp_async::copy_vec::<16, u8>(to, 0, from, 0, exists && column < head_dim);
            }
        }
    });
    // 2. Scales, eight a vector; those past the last key are zeros.
    let (index, half) = (lane_id / 2, lane_id % 2);
    if index < const { num_scales::<F>(PANELS) } {
        let key = first + 8 * half;
        let left = if index < F::FORMAT.num_scales(head_dim) {
            keys.end.saturating_sub(key).min(8)
        } else {
            0
        };
        let scales = start + (PAGE_SIZE * F::FORMAT.quant_bytes(head_dim)) as usize;
        let from = scales + 2 * (index * PAGE_SIZE + page_row + 8 * half) as usize;
        let to = const { panel_bytes::<F>() * PANELS as u32 } + index * SCALE_BYTES + 16 * half;
        // SAFETY: as above.
        unsafe {
            cp_async::copy_start(slot.offset(to), 0, pool.wrapping_add(from), 0, 2 * left);
        }
    }
}

/// Scales `index` of two adjacent keys from `key` on.
///
/// # Safety
/// 1. `smem` is the warp's part of a slot of `F`, copied.
#[inline(always)]
unsafe fn scales<F: KvQuants, const PANELS: usize>(
    smem: Shared<f16>,
    index: u32,
    key: u32,
) -> F16x2 {
    let start = const { panel_bytes::<F>() * PANELS as u32 / 2 };
    // SAFETY: the caller's promise.
    unsafe { smem.offset(start + index * KEYS + key).cast::<F16x2>().get(0) }
}

/// The tile of [`Quantised`]: an [`MmaTile`] with operands of its own.
pub struct QuantisedTile<K, V, const PANELS: usize> {
    tile: MmaTile<f16, 1, 1, PANELS>,
    quants: PhantomData<(K, V)>,
}

impl<K: KvQuants, V: KvQuants, const PANELS: usize> QuantisedTile<K, V, PANELS> {
    /// Multiplies the accumulators of 16 keys by the keys' scales `index`.
    ///
    /// # Safety
    /// As [`scales`].
    #[inline(always)]
    unsafe fn add_scaled(
        sums: &mut [Accumulator; 2],
        products: &[Accumulator; 2],
        smem_k: Shared<f16>,
        index: u32,
    ) {
        let (_, pair) = lane();
        unroll!(keys in 0..2, {
            // SAFETY: the caller's promise.
            let scales = unsafe { scales::<K, PANELS>(smem_k, index, 8 * keys as u32 + 2 * pair) };
            let scales = [scales.lo(), scales.hi()].map(|s| convert::f16_to_f32(s) * K::FACTOR);
            unroll!(i in 0..4, {
                sums[keys][i] = math::fma(products[keys][i], scales[i % 2], sums[keys][i]);
            });
        });
    }
}

impl<K: KvQuants, V: KvQuants, const PANELS: usize> WarpTile for QuantisedTile<K, V, PANELS> {
    type Element = f16;
    type Scores = <MmaTile<f16, 1, 1, PANELS> as WarpTile>::Scores;
    type Probabilities = <MmaTile<f16, 1, 1, PANELS> as WarpTile>::Probabilities;

    const ROWS: u32 = MmaTile::<f16, 1, 1, PANELS>::ROWS;
    const KEYS: u32 = KEYS;
    const BLOCK_N: u32 = PAGE_SIZE;
    const WIDTH: u32 = PANEL_COLUMNS * PANELS as u32;
    const SCRATCH: u32 = 0;

    #[inline(always)]
    fn new(scale: f32) -> Self {
        QuantisedTile { tile: MmaTile::new(scale), quants: PhantomData }
    }

    #[inline(always)]
    unsafe fn scores(
        &self,
        _head_dim: u32,
        smem_q: Shared<f16>,
        q_rows: u32,
        smem_k: Shared<f16>,
    ) -> Self::Scores {
        let (group, pair) = lane();
        let mut sums = [[0.0; 4]; 2];
        let mut products = [[0.0; 4]; 2];
        // SAFETY: vectors of Q and words of K are inside their tiles.
        unsafe {
            unroll!(panel in 0..PANELS, {
                // Eight columns of two rows of Q: the words of two k-steps.
                let q = smem_q.offset(q_rows * PANEL_COLUMNS * panel as u32);
                let row = |row| vec_at(q, row, pair).cast::<u32>().get_vec::<4>(0);
                let (upper, lower) = (row(group), row(group + 8));
                unroll!(keys in 0..2, {
                    let key = 8 * keys as u32 + group;
                    let words = row_words::<K>(smem_k, panel as u32, key, pair);
                    unroll!(step in 0..2, {
                        let [first, second] = step_of::<K>(words, step);
                        multiply_words(
                            [upper[2 * step], lower[2 * step], upper[2 * step + 1], lower[2 * step + 1]],
                            [first.to_bits(), second.to_bits()],
                            &mut products[keys],
                        );
                    });
                });
                if num_scales::<K>(PANELS) > 1 {
                    Self::add_scaled(&mut sums, &products, smem_k, panel as u32);
                    products = [[0.0; 4]; 2];
                }
            });
            if num_scales::<K>(PANELS) == 1 {
                Self::add_scaled(&mut sums, &products, smem_k, 0);
            }
        }
        [[sums]]
    }

    #[inline(always)]
    fn mask(&self, scores: &mut Self::Scores, visible: impl Fn(u32, u32) -> bool) {
        self.tile.mask(scores, visible);
    }

    #[inline(always)]
    unsafe fn update(
        &mut self,
        scores: &Self::Scores,
        scratch: Shared<f32>,
    ) -> Self::Probabilities {
        // SAFETY: the caller's promise.
        unsafe { self.tile.update(scores, scratch) }
    }

    #[inline(always)]
    unsafe fn accumulate(
        &mut self,
        probabilities: Self::Probabilities,
        _scratch: Shared<f32>,
        smem_v: Shared<f16>,
    ) {
        let [[a]] = probabilities;
        let (_, pair) = lane();
        let lane_id = warp::lane_id();
        let key = lane_id % KEYS;
        let mut factors = [F16x2::from_bits(0); 2];
        // SAFETY: matrices and scales are inside the warp's part of the slot.
        unsafe {
            unroll!(panel in 0..PANELS, {
                if panel == 0 || num_scales::<V>(PANELS) > 1 {
                    unroll!(half in 0..2, {
                        let first = 8 * half as u32 + 2 * pair;
                        let scales = scales::<V, PANELS>(smem_v, panel as u32, first);
                        factors[half] = scaled::<V>(scales);
                    });
                }
                let rows = smem_v.offset(panel as u32 * const { panel_bytes::<V>() / 2 });
                let rows = rows.offset(key * const { row_bytes::<V>() / 2 });
                // Words of the keys 0 to 7 and 8 to 15, of each half of the panel.
                let words = if V::BITS == 8 {
                    load_x4_trans(rows.offset(8 * vec_of::<V>(key, lane_id / KEYS)))
                } else {
                    let [low, high] = load_x2_trans(rows);
                    [low, high, 0, 0]
                };
                unroll!(tile in 0..4, {
                    let (half, index) = if V::BITS == 8 { (tile / 2, tile % 2) } else { (0, tile) };
                    let b0 = f16x2::mul(V::pair(words[2 * half], index as u32), factors[0]);
                    let b1 = f16x2::mul(V::pair(words[2 * half + 1], index as u32), factors[1]);
                    let out = self.tile.out_mut(panel, tile);
                    multiply_words(a, [b0.to_bits(), b1.to_bits()], out);
                });
            });
        }
    }

    #[inline(always)]
    fn normalize(&mut self) {
        self.tile.normalize();
    }

    #[inline(always)]
    fn for_each_row(&self, f: impl FnMut(u32, f32, f32)) {
        self.tile.for_each_row(f);
    }

    /// Accumulator `tile` of a panel holds every other of pairs of columns.
    #[inline(always)]
    fn for_each_pair(&self, mut f: impl FnMut(u32, u32, [f32; 2])) {
        let (group, pair) = lane();
        unroll!(panel in 0..PANELS, {
            unroll!(tile in 0..4, {
                let column = if V::BITS == 8 {
                    16 * (tile as u32 / 2) + 4 * pair + 2 * (tile as u32 % 2)
                } else {
                    8 * pair + 2 * tile as u32
                };
                let column = PANEL_COLUMNS * panel as u32 + column;
                let [a, b, c, d] = self.tile.out(panel, tile);
                f(group, column, [a, b]);
                f(group + 8, column, [c, d]);
            });
        });
    }
}

/// The scales of numbers as [`KvQuants::pair`] gives them.
#[inline(always)]
fn scaled<F: KvQuants>(scales: F16x2) -> F16x2 {
    if F::FACTOR == 1.0 {
        return scales;
    }
    f16x2::mul(scales, F16x2::splat(convert::f32_to_f16(F::FACTOR)))
}

/// The words of the lane's eight columns of a key; the second one of 8 bits alone.
///
/// # Safety
/// 1. `smem` is the warp's part of a slot of `F`, copied.
#[inline(always)]
unsafe fn row_words<F: KvQuants>(smem: Shared<f16>, panel: u32, key: u32, pair: u32) -> [u32; 2] {
    let row = smem.cast::<u8>().offset(panel * panel_bytes::<F>() + key * row_bytes::<F>());
    // SAFETY: the caller's promise.
    unsafe {
        if F::BITS == 8 {
            row.offset(16 * vec_of::<F>(key, pair / 2) + 8 * (pair % 2)).cast::<u32>().get_vec(0)
        } else {
            [row.offset(4 * pair).cast::<u32>().get(0), 0]
        }
    }
}

/// The numbers of columns 0 to 3, or 4 to 7, of [`row_words`]: two words of a fragment B.
#[inline(always)]
fn step_of<F: KvQuants>(words: [u32; 2], step: usize) -> [F16x2; 2] {
    let (word, first) = if F::BITS == 8 { (words[step], 0) } else { (words[0], 2 * step as u32) };
    [F::pair(word, first), F::pair(word, first + 1)]
}
