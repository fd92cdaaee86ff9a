//! Attention decode with split KV: up to 16 new tokens of each sequence against its pages of the
//! cache. For single tokens optionally fused with QK-norm, rotary embedding of Q and K and the append
//! of K and V.
//!
//! Shapes    q, out `[num_tokens, num_heads * head_dim]` with row strides; the cache as in prefill;
//!           k, v `[num_tokens, num_kv_heads * head_dim]`; all f32, f16 or bf16; table as in rope;
//!           of an f16 q the cache may be of 8 and 4 bits too, where nothing is appended;
//!           work items as in [`DecodeItem`]. Workspace: partial results `[rows, width]` and
//!           `[rows, 2]` f32; counters `[rows]`, zeros before and after.
//! Launch    persistent, grid `(most items, or what is resident, 1, 1)`, block `(NUM_THREADS, 1,
//!           1)`. An item is a split of a sequence's keys for the query rows of a KV head: its
//!           query heads, and new tokens, share one read of K and V. Each warp takes a quarter of
//!           a page's keys, with a ring of copies of its own; of heads of 512 two warps share keys,
//!           of half a page at once, each for half of the output. The last block of a row block to
//!           finish combines the splits, in order.
//! Numerics  as prefill; one rounding, at the store. Splits are combined in order; in a
//!           batch-invariant plan they depend on the sequence's own lengths alone, and so do its
//!           results. A split starts with its last tile, fused or not. Fused, Q, K and V have the
//!           bits of rope_append.
//! Bound     memory: `2 * head_dim` elements a key and KV head; 128 to 168 KiB in flight an SM.
//!           Fused, the previous launch writes nothing to the cache, so a block fills its ring
//!           before it waits for that launch.
//! Source    flash-decoding (T. Dao et al., 2023).

mod problem;
pub mod quantised;
mod results;

use self::problem::{NewTokens, Problem, QueryRows, Smem, zero_q};
use self::results::{WarpResults, for_each_vec};
use super::combine::{SplitResults, store_out};
#[cfg(not(target_arch = "nvptx64"))]
use super::head_dims::column_parts;
#[cfg(not(target_arch = "nvptx64"))]
use super::kv_ring::num_slots;
use super::kv_ring::{Dense, KvSource};
use super::tile::{
    AttentionElement, NUM_THREADS, NUM_WARPS, PANEL_COLUMNS, ROW_UNIT, WarpTile, is_aligned,
};
use super::work::{DecodeItem, ITEM_WORDS};
use crate::attention::head_dims::{HALF_HEAD_DIMS, HEAD_DIMS};
use crate::qk_norm::Weights;
use crate::tile::last_block::is_last;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Elements of the ring of K and V, whose memory partial results take after the main loop.
const fn kv_elems<S: KvSource>() -> u32 {
    let (rows, width) = (S::Tile::ROWS, S::Tile::WIDTH);
    let (of_warps, of_splits) =
        (NUM_WARPS / S::Tile::COLUMN_PARTS * rows * (width + 2), SplitResults::shared_elems(rows));
    let words = if of_warps > of_splits { of_warps } else { of_splits };
    let (of_results, of_ring) =
        (words * 4 / size_of::<S::Element>() as u32, S::NUM_SLOTS * S::SLOT_ELEMS);
    if of_results > of_ring { of_results } else { of_ring }
}

/// Shared memory of a block: Q, the ring of K and V, scratch space of the warps, and two items.
#[cfg(not(target_arch = "nvptx64"))]
const fn shared_bytes_of<S: KvSource>() -> usize {
    let elems = S::Tile::ROWS * S::Tile::WIDTH + kv_elems::<S>();
    let words = NUM_WARPS * S::Tile::SCRATCH + 2 * ITEM_WORDS;
    elems as usize * size_of::<S::Element>() + 4 * words as usize
}

/// [`shared_bytes_of`] elements `E`, for `4 * rows` query rows.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const fn shared_bytes<E: AttentionElement>(rows: usize, panels: usize) -> usize {
    // Neither depends on rows or columns.
    let (block_n, scratch) = (E::Decode::<1, 1>::BLOCK_N, E::Decode::<1, 1>::SCRATCH);
    let slot_rows = num_slots(panels) * block_n / column_parts(panels) as u32;
    let tile_rows = ROW_UNIT as usize * rows + slot_rows as usize;
    let elems = tile_rows * panels * PANEL_COLUMNS as usize;
    elems * size_of::<E>() + 4 * (NUM_WARPS * scratch + 2 * ITEM_WORDS) as usize
}

/// Blocks that should be resident on an SM. In f32 a tile takes more registers.
pub(super) const fn blocks_per_sm<E: AttentionElement>(panels: usize) -> u32 {
    if panels <= 3 && size_of::<E>() == 2 { 3 } else { 2 }
}

/// Persistent blocks take one item after the other: a split of a sequence's keys, for up to
/// `4 * ROWS` query rows of a KV head.
///
/// # Safety
/// 1. `num_items` is one element, and `items` holds that many, 16-byte aligned, of a model of these
///    heads. The step inputs are those of one step, and every view covers what they and the items
///    refer to. `q` and the pools hold elements `E`.
/// 2. `head_dim` is at most `32 * PANELS`; `num_kv_heads` divides `num_heads`; `window` is not 0.
/// 3. If `aligned` is not 0, or `E` has 16 bits, every head is 16-byte aligned in `q`, the pools
///    and `out`.
/// 4. `counters` are zeros, and `partial_out` is 16-byte aligned.
/// 5. Either `table` is null and the cache holds the tokens' K and V; or items have one query,
///    `table` holds a row of `rotary_dim` elements (even, at most `head_dim`) for every position,
///    `k` and `v` hold the tokens' rows, each slot is that of the sequence's last position, and the
///    previous launch writes nothing to the cache. Then `q_norm` and `k_norm` hold `head_dim`
///    elements, or are null; with them rows of 16-bit `k` are 16-byte aligned.
/// 6. `sinks` holds a number for each query head, or is null. Where `softcap` is not 0, scores
///    are `tanh(softcap * score)` before they are scaled.
#[kernel(
    launch_bounds(NUM_THREADS, blocks_per_sm::<E>(PANELS)),
    overlaps,
    instances(
        R in [1 as "4", 2 as "8", 4 as "16"],
        P in HEAD_DIMS,
        H in HALF_HEAD_DIMS,
        E in [f16, bf16],
        attention_decode_f32_r{R}_d{P} = <f32, R, P>,
        except(attention_decode_f32_r16_d256),
        attention_decode_{E}_r16_d{H} = <E, 4, H>
    )
)]
pub unsafe fn attention_decode<E: AttentionElement, const ROWS: usize, const PANELS: usize>(
    num_items: Global<u32>,
    items: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    positions: Global<u32>,
    slot_mapping: Global<u32>,
    table: Global<f32>,
    rotary_dim: u32,
    q: Global<()>,
    q_stride: u32,
    k: Global<()>,
    k_stride: u32,
    v: Global<()>,
    v_stride: u32,
    k_pool: GlobalMut<()>,
    v_pool: GlobalMut<()>,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    aligned: u32,
    softmax_scale: f32,
    window: u32,
    partial_out: GlobalMut<f32>,
    partial_stats: GlobalMut<f32>,
    counters: GlobalMut<u32>,
    out: GlobalMut<()>,
    out_stride: u32,
    sinks: Global<f32>,
    softcap: f32,
    q_norm: Global<f32>,
    k_norm: Global<f32>,
    norm_eps: f32,
) {
    // SAFETY: launches have KV heads, and a multiple of query heads.
    unsafe { core::hint::assert_unchecked(num_kv_heads > 0 && num_heads >= num_kv_heads) };
    let group = num_heads / num_kv_heads;
    let problem = Problem::<E> {
        block_table,
        max_pages_per_seq,
        new: (!table.is_null()).then(|| NewTokens {
            positions,
            slot_mapping,
            table,
            rotary_dim,
            norm: Weights { q: q_norm, k: k_norm, eps: norm_eps },
            k: k.cast(),
            k_stride,
            v: v.cast(),
            v_stride,
        }),
        q: q.cast(),
        q_stride,
        pools: [k_pool.cast(), v_pool.cast()],
        num_kv_heads,
        group,
        head_dim,
        aligned: is_aligned::<E>(aligned),
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
    // SAFETY: step inputs, which no launch of the step writes; the list has room for an item of
    // every block. Threads wait for an item's copies, and pass a barrier, before they read it.
    unsafe {
        let smem = Smem::<E>::new::<Dense<E, ROWS, PANELS>>();
        let first = thread::block_idx_x();
        let num_items = store_first_item(num_items, items, first, smem.items);
        if table.is_null() || first >= num_items {
            grid::wait_for_dependencies();
            grid::launch_dependents();
        }
        run::<Dense<E, ROWS, PANELS>>(&problem, &smem, num_items, items);
    }
}

/// Takes one item after the other, the first of which is in shared memory.
///
/// # Safety
/// As [`attention_decode`], of which `problem` has the arguments.
#[inline(always)]
unsafe fn run<S: KvSource>(
    problem: &Problem<S::Element>,
    smem: &Smem<S::Element>,
    num_items: u32,
    items: Global<u32>,
) {
    let mut index = thread::block_idx_x();
    let mut slot = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while index < num_items {
            index += thread::grid_dim_x();
            let item = smem.items.offset(slot);
            slot ^= ITEM_WORDS;
            // In the group of the first copies of K.
            copy_item(items, index, smem.items.offset(slot), index < num_items);
            attend::<S>(problem, smem, item);
            // The next item's copies overwrite what this one's threads read.
            thread::sync_threads();
        }
    }
}

/// Stores item `index`, if there is one, to `slot`; returns the number of items.
///
/// # Safety
/// 1. `items` has room for the item, and `slot` for its words, 16-byte aligned. All threads of the
///    block call this, and none uses `slot`.
#[inline(always)]
unsafe fn store_first_item(
    num_items: Global<u32>,
    items: Global<u32>,
    index: u32,
    slot: Shared<u32>,
) -> u32 {
    let part = thread::thread_idx_x() * 4;
    let from = (index * ITEM_WORDS + part) as usize;
    // SAFETY: the caller's promise; both loads are in flight at once.
    unsafe {
        let words: [u32; 4] = items.speculate_vec_if(from, part < ITEM_WORDS);
        let num_items = num_items.get(0);
        if part < ITEM_WORDS && index < num_items {
            slot.set_vec(part, words);
        }
        thread::sync_threads();
        num_items
    }
}

/// Issues the copies of item `index` to `slot`, if it exists.
///
/// # Safety
/// As [`store_first_item`].
#[inline(always)]
unsafe fn copy_item(items: Global<u32>, index: u32, slot: Shared<u32>, exists: bool) {
    let part = thread::thread_idx_x() * 4;
    if part < ITEM_WORDS {
        let from = (index * ITEM_WORDS + part) as usize;
        // SAFETY: the caller's promise.
        unsafe { cp_async::copy_vec::<4, u32>(slot, part, items, from, exists) };
    }
}

/// Attention of an item.
///
/// # Safety
/// As [`attention_decode`], of which `problem` has the arguments and `slot` holds an item. All
/// threads of the block call this, and no other thread uses its shared memory.
#[inline(always)]
unsafe fn attend<S: KvSource>(
    problem: &Problem<S::Element>,
    smem: &Smem<S::Element>,
    slot: Shared<u32>,
) {
    let (block_n, block_rows, width) = const {
        // Where `shared_bytes` counts, the ring holds the partial results.
        assert!(!S::APPENDS || kv_elems::<S>() == S::NUM_SLOTS * S::SLOT_ELEMS);
        (S::Tile::BLOCK_N, S::Tile::ROWS, S::Tile::WIDTH)
    };
    let appends = S::APPENDS && problem.appends();
    // SAFETY: the caller's promise. It is read again where it is used again, so that it takes no
    // registers in the main loop.
    let load_item = || unsafe {
        let item = DecodeItem::load(slot);
        (item, QueryRows::of(&item, problem.group, block_rows))
    };
    let (item, rows) = load_item();
    let mut tile = S::Tile::new(problem.scale);
    // SAFETY: the launch gives `shared_bytes`; each tile is waited for before it is read, Q and new
    // tokens at a barrier; barriers separate the uses of the ring's memory.
    unsafe {
        // 1. Fill the ring, from the last tile on, and Q.
        let last_tile = (item.end_key - 1) / block_n * block_n;
        let mut tiles_left = (last_tile - item.first_key) / block_n + 1;
        let mut ring = problem.ring::<S>(&item, smem.kv, [last_tile, tiles_left]);
        let num_slots = S::NUM_SLOTS;
        if appends {
            zero_q(smem.q, block_rows * width);
        } else {
            problem.copy_q(&item, &rows, smem.q, block_rows, width);
        }
        for _ in 1..num_slots {
            ring.copy();
        }
        if appends {
            let inputs = problem.load_inputs(&item);
            grid::wait_for_dependencies();
            grid::launch_dependents();
            // The tiles of K and V that the new rows are in.
            cp_async::wait(num_slots - 3);
            thread::sync_threads();
            if let Some(inputs) = inputs {
                let sizes = [block_n, block_rows, width];
                problem.store_new_token(&item, &rows, &inputs, smem, sizes, last_tile);
            }
        } else {
            cp_async::wait(num_slots - 2);
            S::rotate_q(smem.q, block_rows);
        }
        thread::sync_threads();

        // 2. Main loop over the warp's keys of each tile.
        tile.take_queries(smem.q, block_rows);
        let warp_key = warp::warp_idx() / S::Tile::COLUMN_PARTS * S::Tile::KEYS;
        let last_position = item.first_position + item.queries - 1;
        let visible_to_all = (last_position + 1).saturating_sub(problem.window)
            ..(item.first_position + 1).min(item.end_key);
        let mut tile_key = last_tile;
        while tiles_left > 0 {
            tiles_left -= 1;
            let mut scores = tile.scores(problem.head_dim, smem.q, block_rows, ring.wait());
            if problem.softcap > 0.0 {
                tile.cap(&mut scores, problem.softcap);
            }
            if tile_key < visible_to_all.start || visible_to_all.end < tile_key + block_n {
                let (item, rows) = load_item();
                tile.mask(&mut scores, |row, key| {
                    let (position, key) =
                        (item.first_position + rows.query(row), tile_key + warp_key + key);
                    key < item.end_key && key <= position && position - key < problem.window
                });
            }
            let probabilities = tile.update(&scores, smem.scratch);
            tile.accumulate(probabilities, smem.scratch, ring.wait());
            tile_key = tile_key.wrapping_sub(block_n);
        }

        // 3. The warps' results go to shared memory.
        cp_async::wait(0);
        thread::sync_threads();
        let (item, rows) = load_item();
        let results = WarpResults::new::<S::Tile>(smem.kv.cast(), block_rows, width);
        results.store(&tile);
        thread::sync_threads();

        // 4. They are combined: the split's partial result, or the output if it is the only split.
        let store = |row: u32, column: u32, values| {
            let token = (item.first_token + rows.query(row)) as usize;
            let to = token * problem.out_stride as usize;
            let to = problem.out.add(to + (rows.head(row) * problem.head_dim) as usize);
            store_out(to, column, problem.head_dim, problem.aligned, values);
        };
        if item.num_splits == 1 {
            for_each_vec(rows.rows, width, |row, column| {
                let sink = problem.sink(item.split, rows.head(row));
                store(row, column, results.combine(row, column, sink).normalized());
            });
            return;
        }
        let splits = SplitResults {
            out: problem.partial_out.add(item.first_partial as usize * width as usize),
            stats: problem.partial_stats.add(item.first_partial as usize * 2),
            rows: rows.rows,
            width,
            num_splits: item.num_splits,
        };
        for_each_vec(rows.rows, width, |row, column| {
            let sink = problem.sink(item.split, rows.head(row));
            splits.store(item.split, row, column, results.combine(row, column, sink));
        });

        // 5. The last block to get here combines the splits.
        let counter = item.first_partial as usize;
        if is_last(problem.counters, counter, item.num_splits, smem.q.cast()) {
            splits.combine(smem.kv.cast(), store);
        }
    }
}
