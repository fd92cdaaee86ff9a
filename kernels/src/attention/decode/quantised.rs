//! K and V of 8 and 4 bits, read by decode as they are: a warp's quants become fragments in
//! registers.
//!
//! A warp's keys of a slot are panels of 32 columns, `[PANELS, KEYS, 32]` quants, and after them
//! scales, `[num_scales, KEYS]`. An MMA takes any order of the columns that K and Q agree in, and
//! of the columns of V and the output: words of the format hold even columns, then odd ones, so
//! that bit fields of a word are pairs. Where keys are rotated, Q is rotated in shared memory.

mod copy;
mod format;
mod tile;

use self::copy::copy_keys;
pub use self::format::{Fp8, KvQuants, Q4, Q8};
use self::tile::QuantisedTile;
use super::super::kv_ring::KvSource;
use super::super::tile::{Cache, NUM_THREADS, PANEL_COLUMNS, tile_offset};
use super::problem::{Problem, Smem};
#[cfg(not(target_arch = "nvptx64"))]
use super::shared_bytes_of;
use super::{run, store_first_item};
use crate::attention::head_dims::HEAD_DIMS;
use crate::element::VEC_ELEMS;
use crate::kv_cache::PAGE_SIZE;
use crate::kv_cache::hadamard::rotate_vectors;
use core::f32::consts::LOG2_E;
use core::marker::PhantomData;
use core::ops::Range;
use cuda_std::F16x2;
use cuda_std::matrix::{load_x2, load_x2_trans, load_x4, load_x4_trans};
use cuda_std::prelude::*;
use half::f16;

/// Query rows of a row tile: columns of the accumulators of the output.
pub(in super::super) const TILE_ROWS: u32 = 8;

/// Keys of a warp.
const KEYS: u32 = 16;

/// Bytes of the scales of a warp's keys.
const SCALE_BYTES: u32 = 2 * KEYS;

/// Bytes of a ring, about: as many as leave room for four blocks an SM.
const RING_BYTES: u32 = 48 << 10;

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

/// `8 * ROW_TILES` query rows over K of `K` and V of `V`, heads of up to `32 * PANELS` columns.
struct Quantised<K, V, const ROW_TILES: usize, const PANELS: usize>(PhantomData<(K, V)>);

impl<K: KvQuants, V: KvQuants, const ROW_TILES: usize, const PANELS: usize> KvSource
    for Quantised<K, V, ROW_TILES, PANELS>
{
    type Element = f16;
    type Tile = QuantisedTile<K, V, ROW_TILES, PANELS>;

    const NUM_SLOTS: u32 = match RING_BYTES / (2 * Self::SLOT_ELEMS) {
        0..=5 => 5,
        6 => 6,
        7 => 7,
        _ => 8,
    };
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
        is_v: bool,
        cache: &Cache,
        page: u32,
        first: u32,
        keys: &Range<u32>,
    ) {
        let slot = slot.offset(warp::warp_idx() * Self::WARP_ELEMS).cast();
        let first = first + warp::warp_idx() * KEYS;
        // SAFETY: the caller's promise.
        unsafe {
            if is_v && K::FORMAT as u32 != V::FORMAT as u32 {
                copy_keys::<V, PANELS>(slot, pool.cast(), cache, page, first, keys);
            } else {
                copy_keys::<K, PANELS>(slot, pool.cast(), cache, page, first, keys);
            }
        }
    }

    /// A thread has the vectors that it copied, and four lanes a row of a panel: a block.
    #[inline(always)]
    unsafe fn rotate_q(smem_q: Shared<f16>, rows: u32) {
        if !const { K::FORMAT.rotates_keys() } {
            return;
        }
        let vecs = const { PANEL_COLUMNS / VEC_ELEMS };
        let mut warp_vec = warp::warp_idx() * warp::WARP_SIZE;
        // Whole warps: panels have at least eight rows.
        while warp_vec < vecs * rows * PANELS as u32 {
            let i = warp_vec + warp::lane_id();
            let (panel, row) = (i / vecs / rows, i / vecs % rows);
            let column = panel * PANEL_COLUMNS + i % vecs * VEC_ELEMS;
            let vec = smem_q.offset(tile_offset::<f16>(row, column, rows)).cast::<F16x2>();
            // SAFETY: inside Q; the thread's own until the barrier.
            unsafe {
                let [a, b, c, d] = vec.get_vec(0);
                let halves = [a.lo(), a.hi(), b.lo(), b.hi(), c.lo(), c.hi(), d.lo(), d.hi()];
                let [a, b, c, d, e, f, g, h] = rotate_vectors(halves.map(convert::f16_to_f32));
                let pairs = [(a, b), (c, d), (e, f), (g, h)];
                vec.set_vec(0, pairs.map(|(lo, hi)| convert::f32_to_f16x2(lo, hi)));
            }
            warp_vec += NUM_THREADS;
        }
    }
}

/// [`shared_bytes_of`] quants, for `8 * row_tiles` query rows.
#[cfg(not(target_arch = "nvptx64"))]
pub(in super::super) const fn shared_bytes<K: KvQuants, V: KvQuants>(
    row_tiles: usize,
    panels: usize,
) -> usize {
    match (row_tiles, panels) {
        (1, 2) => shared_bytes_of::<Quantised<K, V, 1, 2>>(),
        (1, 3) => shared_bytes_of::<Quantised<K, V, 1, 3>>(),
        (1, 4) => shared_bytes_of::<Quantised<K, V, 1, 4>>(),
        (1, _) => shared_bytes_of::<Quantised<K, V, 1, 8>>(),
        (_, 2) => shared_bytes_of::<Quantised<K, V, 2, 2>>(),
        (_, 3) => shared_bytes_of::<Quantised<K, V, 2, 3>>(),
        (_, _) => shared_bytes_of::<Quantised<K, V, 2, 4>>(),
    }
}

/// Blocks that should be resident on an SM. Compiled for `sm_80`, heads of 128 columns would spill
/// with the registers of four.
pub(in super::super) const fn blocks_per_sm(row_tiles: usize, panels: usize) -> u32 {
    const IS_SM_80: bool = cfg!(all(target_arch = "nvptx64", not(target_feature = "sm_90a")));
    match (row_tiles, panels) {
        (1, 0..=3) => 4,
        (1, 4) if !IS_SM_80 => 4,
        (1, 4) | (_, 0..=2) => 3,
        _ => 2,
    }
}

/// As [`attention_decode`] with K and V in the cache, of quants of `K` and of `V` with their
/// scales, which are read as they are.
///
/// # Safety
/// 1. As [`attention_decode`], 1, 2, 4 and 6; the pools are of the formats. Every head of `q` and
///    `out` is 16-byte aligned, and so are the pools.
/// 2. `head_dim` is a multiple of 16, and whole blocks of the formats.
///
/// [`attention_decode`]: fn@super::attention_decode
#[kernel(
    launch_bounds(NUM_THREADS, blocks_per_sm(ROW_TILES, PANELS)),
    overlaps,
    instances(
        K in [Q8 as "q8_0", Fp8 as "fp8", Q4 as "q4_0"],
        T in [1 as "8", 2 as "16"],
        P in HEAD_DIMS,
        attention_decode_{K}_{K}_r{T}_d{P} = <K, K, T, P>,
        attention_decode_q8_0_q4_0_r{T}_d{P} = <Q8, Q4, T, P>,
        except(
            attention_decode_q8_0_q8_0_r16_d256,
            attention_decode_fp8_fp8_r16_d256,
            attention_decode_q4_0_q4_0_r16_d256,
            attention_decode_q8_0_q4_0_r16_d256
        )
    )
)]
pub unsafe fn attention_decode_quantised<
    K: KvQuants,
    V: KvQuants,
    const ROW_TILES: usize,
    const PANELS: usize,
>(
    num_items: Global<u32>,
    items: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    q: Global<()>,
    q_stride: u32,
    k_pool: GlobalMut<()>,
    v_pool: GlobalMut<()>,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    softmax_scale: f32,
    window: u32,
    partial_out: GlobalMut<f32>,
    partial_stats: GlobalMut<f32>,
    counters: GlobalMut<u32>,
    out: GlobalMut<()>,
    out_stride: u32,
    sinks: Global<f32>,
    softcap: f32,
) {
    // SAFETY: launches have KV heads, and a multiple of query heads.
    unsafe { core::hint::assert_unchecked(num_kv_heads > 0 && num_heads >= num_kv_heads) };
    let problem = Problem::<f16> {
        block_table,
        max_pages_per_seq,
        new: None,
        q: q.cast(),
        q_stride,
        pools: [k_pool.cast(), v_pool.cast()],
        num_kv_heads,
        group: num_heads / num_kv_heads,
        head_dim,
        aligned: true,
        scale: softmax_scale * LOG2_E,
        window,
        partial_out,
        partial_stats,
        counters,
        out: out.cast(),
        out_stride,
        sinks,
        softcap,
    };
    // SAFETY: as in `attention_decode`.
    unsafe {
        let smem = Smem::<f16>::new::<Quantised<K, V, ROW_TILES, PANELS>>();
        let num_items = store_first_item(num_items, items, thread::block_idx_x(), smem.items);
        grid::wait_for_dependencies();
        grid::launch_dependents();
        run::<Quantised<K, V, ROW_TILES, PANELS>>(&problem, &smem, num_items, items);
    }
}

/// Where the scales of a warp's keys start.
#[inline(always)]
fn scales_of<F: KvQuants, const PANELS: usize>(smem: Shared<f16>) -> Shared<f16> {
    smem.offset(const { panel_bytes::<F>() * PANELS as u32 / 2 })
}

/// The scales of keys `group` and `group + 8`, by panel.
///
/// # Safety
/// 1. `smem` is the warp's part of a slot of `F`, copied; the lanes are converged.
#[inline(always)]
unsafe fn scales_of_rows<F: KvQuants, const PANELS: usize>(
    smem: Shared<f16>,
) -> [[f32; 2]; PANELS] {
    let lane_id = warp::lane_id();
    let mut scales = [[0.0; 2]; PANELS];
    let last = num_scales::<F>(PANELS) - 1;
    // Of a transposed matrix a lane gets two rows: these alternate.
    let half = scales_of::<F, PANELS>(smem).offset(lane_id / 8 % 2 * 8);
    let of_two = |first: u32| half.offset((first + lane_id % 2).min(last) * KEYS);
    let f32_of =
        |words: [u32; 2]| words.map(|word| convert::f16_to_f32(F16x2::from_bits(word).lo()));
    let hi_of =
        |words: [u32; 2]| words.map(|word| convert::f16_to_f32(F16x2::from_bits(word).hi()));
    // SAFETY: the caller's promise.
    unsafe {
        if last == 0 {
            return [f32_of(load_x2_trans(half)); PANELS];
        }
        unroll!(four in 0..PANELS / 4, {
            let [a, b, c, d] = load_x4_trans(of_two(4 * four as u32 + lane_id / 16 * 2));
            scales[4 * four] = f32_of([a, b]);
            scales[4 * four + 1] = hi_of([a, b]);
            scales[4 * four + 2] = f32_of([c, d]);
            scales[4 * four + 3] = hi_of([c, d]);
        });
        if PANELS < 4 {
            let [a, b, c, d] = load_x4_trans(of_two(lane_id / 16 * 2));
            scales[0] = f32_of([a, b]);
            scales[1] = hi_of([a, b]);
            if PANELS == 3 {
                scales[2] = f32_of([c, d]);
            }
        }
    }
    scales
}

/// The scales of keys `2 * pair` and `2 * pair + 1`, and of those eight keys on, by panel.
///
/// # Safety
/// As [`scales_of_rows`].
#[inline(always)]
unsafe fn scales_of_pairs<F: KvQuants, const PANELS: usize>(
    smem: Shared<f16>,
) -> [[F16x2; 2]; PANELS] {
    let lane_id = warp::lane_id();
    // All rows of a matrix are the same one.
    let half = scales_of::<F, PANELS>(smem).offset(lane_id / 8 % 2 * 8);
    let mut scales = [[F16x2::from_bits(0); 2]; PANELS];
    // SAFETY: the caller's promise.
    unsafe {
        if num_scales::<F>(PANELS) == 1 {
            return [load_x2(half).map(F16x2::from_bits); PANELS];
        }
        let of_panel = half.offset(lane_id / 16 * KEYS);
        unroll!(pair in 0..PANELS / 2, {
            let words = load_x4(of_panel.offset(2 * pair as u32 * KEYS)).map(F16x2::from_bits);
            scales[2 * pair] = [words[0], words[1]];
            scales[2 * pair + 1] = [words[2], words[3]];
        });
        if PANELS % 2 == 1 {
            let words = load_x2(half.offset((PANELS as u32 - 1) * KEYS));
            scales[PANELS - 1] = words.map(F16x2::from_bits);
        }
    }
    scales
}
