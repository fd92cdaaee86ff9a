//! Attention decode with split KV: the one new token of each sequence against its pages of the
//! cache. Optionally fused with rotary embedding of the token's Q and K and the append of K and V.
//!
//! Shapes    q, out `[num_seqs, num_heads * head_dim]` with row strides; the cache as in prefill;
//!           k, v `[num_seqs, num_kv_heads * head_dim]`; all f32, f16 or bf16; table as in rope.
//!           Workspace: partial results `[max_seqs, num_heads, max_splits, width]` and `[max_seqs,
//!           num_heads, max_splits, 2]` f32; counters `[max_seqs, grid_dim_y]`, zeros before and
//!           after.
//! Launch    grid `(max_splits, num_kv_heads * groups of 4 * ROWS heads, max_seqs)`, block
//!           `(NUM_THREADS, 1, 1)`. The query heads of a KV head are the rows of a tile, so K and V
//!           are read once for all of them; each warp takes a quarter of a tile's keys. The last
//!           block of a sequence and head group to finish combines the splits, in order.
//! Numerics  as prefill; one rounding, at the store. The splits depend on the sequence's own length
//!           alone, so its result does not depend on the batch. A split starts with its last tile,
//!           fused or not. Fused, Q, K and V have the bits of rope_append.
//! Bound     memory: `2 * head_dim` elements a key and KV head. Fused, the previous launch writes
//!           nothing to the cache, so a block loads its first tile before it waits for that launch.
//! Source    flash-decoding (T. Dao et al., 2023).

use super::combine::{PartialOut, Splits, VEC_ELEMS, combine};
use super::new_token::{NewRow, NewToken, Pair};
use super::tile::{
    AttentionElement, Cache, NUM_THREADS, NUM_WARPS, PANEL_COLUMNS, ROW_UNIT, Source, WarpTile,
    is_aligned,
};
use crate::kv_cache::{PAGE_SIZE, row_start};
use crate::tile::last_block::is_last;
use core::f32::consts::LOG2_E;
use core::ops::Range;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Pipeline stages of K and V.
const NUM_STAGES: u32 = 2;

/// Shared memory of a block: Q, the stages of K and V, and scratch space of the warps.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const fn shared_bytes<E: AttentionElement>(rows: usize, panels: usize) -> usize {
    // Neither depends on rows or columns.
    let (block_n, scratch) = (E::Decode::<1, 1>::BLOCK_N, E::Decode::<1, 1>::SCRATCH);
    let tile_rows = ROW_UNIT as usize * rows + (NUM_STAGES * 2 * block_n) as usize;
    let elems = tile_rows * panels * PANEL_COLUMNS as usize;
    elems * size_of::<E>() + 4 * (NUM_WARPS * scratch) as usize
}

/// A block takes one split of a sequence's keys, for up to `4 * ROWS` query heads of a KV head.
///
/// # Safety
/// 1. The step inputs are those of one step with at most one new token a sequence, and hold
///    `grid_dim_z` sequences; every view covers what they refer to. `q` and the pools hold elements
///    `E`.
/// 2. `head_dim` is at most `32 * PANELS`; `num_kv_heads` divides `num_heads`; `window` is not 0.
/// 3. If `aligned` is not 0, or `E` has 16 bits, every head is 16-byte aligned in `q` and the
///    pools.
/// 4. `counters` are zeros, and `partial_out` is 16-byte aligned.
/// 5. Either `table` is null and the cache holds the tokens' K and V, or `table` holds a row of
///    `rotary_dim` elements (even, at most `head_dim`) for every position, `k` and `v` hold the
///    tokens' rows, each slot is that of the sequence's last position, and the previous launch
///    writes nothing to the cache.
#[kernel(
    launch_bounds(NUM_THREADS, 2),
    overlaps,
    instances(
        attention_decode_f32_r4_d64 = <f32, 1, 2>,
        attention_decode_f32_r4_d96 = <f32, 1, 3>,
        attention_decode_f32_r4_d128 = <f32, 1, 4>,
        attention_decode_f32_r4_d256 = <f32, 1, 8>,
        attention_decode_f32_r8_d64 = <f32, 2, 2>,
        attention_decode_f32_r8_d96 = <f32, 2, 3>,
        attention_decode_f32_r8_d128 = <f32, 2, 4>,
        attention_decode_f32_r8_d256 = <f32, 2, 8>,
        attention_decode_f32_r16_d64 = <f32, 4, 2>,
        attention_decode_f32_r16_d96 = <f32, 4, 3>,
        attention_decode_f32_r16_d128 = <f32, 4, 4>,
        attention_decode_f32_r16_d256 = <f32, 4, 8>,
        attention_decode_f16_r16_d64 = <f16, 4, 2>,
        attention_decode_f16_r16_d96 = <f16, 4, 3>,
        attention_decode_f16_r16_d128 = <f16, 4, 4>,
        attention_decode_f16_r16_d256 = <f16, 4, 8>,
        attention_decode_bf16_r16_d64 = <bf16, 4, 2>,
        attention_decode_bf16_r16_d96 = <bf16, 4, 3>,
        attention_decode_bf16_r16_d128 = <bf16, 4, 4>,
        attention_decode_bf16_r16_d256 = <bf16, 4, 8>
    )
)]
pub unsafe fn attention_decode<E: AttentionElement, const ROWS: usize, const PANELS: usize>(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
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
) {
    type Tile<E, const ROWS: usize, const PANELS: usize> =
        <E as AttentionElement>::Decode<ROWS, PANELS>;
    let (block_rows, width) = const {
        // The warps' results and statistics reuse the memory of the stages.
        let results =
            NUM_WARPS * Tile::<E, ROWS, PANELS>::ROWS * (PANEL_COLUMNS * PANELS as u32 + 2) * 4;
        let stage_rows = NUM_STAGES * 2 * Tile::<E, ROWS, PANELS>::BLOCK_N;
        let stages = stage_rows * PANEL_COLUMNS * PANELS as u32 * size_of::<E>() as u32;
        assert!(results <= stages);
        assert!(Tile::<E, ROWS, PANELS>::ROWS == ROW_UNIT * ROWS as u32);
        assert!(Tile::<E, ROWS, PANELS>::KEYS * NUM_WARPS == Tile::<E, ROWS, PANELS>::BLOCK_N);
        (Tile::<E, ROWS, PANELS>::ROWS, Tile::<E, ROWS, PANELS>::WIDTH)
    };
    let block_n = const { Tile::<E, ROWS, PANELS>::BLOCK_N };
    let (split, seq) = (thread::block_idx_x(), thread::block_idx_z());
    let appends = !table.is_null();
    if !appends {
        grid::wait_for_dependencies();
        grid::launch_dependents();
    }

    // 1. The block's work item: keys `first_key .. end_key`, query heads `first_head ..
    //    first_head + heads`. SAFETY: step inputs of one step; launches have KV heads, and a
    //    multiple of query heads.
    let (token, kv_len) = unsafe {
        core::hint::assert_unchecked(num_kv_heads > 0 && num_heads >= num_kv_heads);
        // All loads at once: the inputs hold every sequence of the grid, even those that do not
        // exist.
        let [token, next_token] = [seq, seq + 1].map(|seq| cu_seqlens_q.get(seq as usize));
        let (num_seqs, kv_len) = (num_seqs.get(0), kv_lens.get(seq as usize));
        let is_there = seq < num_seqs && token != next_token;
        (token, if is_there { kv_len } else { 0 })
    };
    let group = num_heads / num_kv_heads;
    let blocks_per_group = group.div_ceil(block_rows);
    let (kv_head, group_block) =
        (thread::block_idx_y() / blocks_per_group, thread::block_idx_y() % blocks_per_group);
    let first_head = kv_head * group + group_block * block_rows;
    let heads = (group - group_block * block_rows).min(block_rows);
    let first_visible = kv_len.saturating_sub(window);
    let splits = Splits::new(first_visible..kv_len, block_n, thread::grid_dim_x());
    let Range { start: first_key, end: end_key } = splits.keys(split);
    if first_key >= end_key {
        grid::wait_for_dependencies();
        grid::launch_dependents();
        return;
    }

    let aligned = is_aligned::<E>(aligned);
    let cache = Cache { num_kv_heads, kv_head, head_dim, aligned };
    let warp_idx = warp::warp_idx();
    let warp_key = warp_idx * Tile::<E, ROWS, PANELS>::KEYS;
    let mut tile = Tile::<E, ROWS, PANELS>::new();
    // SAFETY: the launch gives `shared_bytes`; each tile is waited for, and a barrier passed,
    // before it is read; a stage is overwritten one barrier after its last read.
    unsafe {
        let pages = block_table.add(seq as usize * max_pages_per_seq as usize);
        let (k_pool, v_pool) = (k_pool.cast::<E>(), v_pool.cast::<E>());
        let smem_q = dynamic_shared_mem::<E>();
        let smem_kv = smem_q.offset(block_rows * width);
        let tile_elems = block_n * width;
        let scratch = smem_kv.offset(NUM_STAGES * 2 * tile_elems).cast();
        let scratch = scratch.offset(warp_idx * Tile::<E, ROWS, PANELS>::SCRATCH);
        let end_cached = end_key.min(if appends { kv_len - 1 } else { kv_len });
        let copy_stage = |stage_idx: u32, key: u32| {
            let smem_k = smem_kv.offset(stage_idx * 2 * tile_elems);
            let copy = |pool: GlobalMut<E>, smem: Shared<E>| {
                Source::cache(pool.as_global(), pages, key, end_cached, &cache)
                    .copy_to(smem, block_n, width);
            };
            copy(k_pool, smem_k);
            copy(v_pool, smem_k.offset(tile_elems));
            cp_async::commit();
        };

        // 2. Q and the first tile of K and V are one group of copies. With `appends` the
        //    new token's rows are zeros at first and stored below.
        let mut tiles_left = (end_key - first_key).div_ceil(block_n);
        let mut key = first_key + (tiles_left - 1) * block_n;
        let gmem = q.cast::<E>().add(token as usize * q_stride as usize);
        let gmem = gmem.add((first_head * head_dim) as usize);
        let rows = if appends { 0 } else { heads };
        Source { gmem, row_stride: head_dim, rows, head_dim, aligned }
            .copy_to(smem_q, block_rows, width);
        copy_stage(0, key);
        if appends {
            let (position, slot) =
                (positions.get(token as usize), slot_mapping.get(token as usize));
            let angles = table.add(position as usize * rotary_dim as usize);
            let pair = Pair::new(angles, rotary_dim, head_dim);
            grid::wait_for_dependencies();
            grid::launch_dependents();
            let new_row = |rows: Global<()>, stride: u32, pool: GlobalMut<E>, tile: Shared<E>| {
                let from = rows.cast::<E>().add(token as usize * stride as usize);
                let page_row = (slot / PAGE_SIZE, slot % PAGE_SIZE);
                let to = row_start(page_row.0, page_row.1, kv_head, num_kv_heads, head_dim);
                NewRow {
                    from: from.add((kv_head * head_dim) as usize),
                    tile,
                    cache: (group_block == 0).then(|| pool.add(to)),
                }
            };
            let smem_v = smem_kv.offset(tile_elems);
            let kv = (end_key == kv_len).then(|| {
                [new_row(k, k_stride, k_pool, smem_kv), new_row(v, v_stride, v_pool, smem_v)]
            });
            let key_row = kv_len - 1 - key;
            let new = NewToken { q: gmem, heads, smem_q, block_rows, kv, key_row, block_n };
            cp_async::wait(0);
            thread::sync_threads();
            new.store(&pair);
        }

        // 3. Main loop over tiles of keys, from last to first.
        let mut stage_idx = 0;
        while tiles_left > 0 {
            tiles_left -= 1;
            cp_async::wait(0);
            thread::sync_threads();
            if tiles_left > 0 {
                copy_stage(stage_idx ^ 1, key - block_n);
            }
            let smem_k = smem_kv.offset(stage_idx * 2 * tile_elems + warp_key * PANEL_COLUMNS);
            let mut scores = tile.scores(head_dim, smem_q, block_rows, smem_k);
            tile.mask(&mut scores, softmax_scale * LOG2_E, |_, warp_tile_key| {
                let key = key + warp_key + warp_tile_key;
                first_visible <= key && key < end_key
            });
            let probabilities = tile.update(&scores, scratch);
            tile.accumulate(probabilities, scratch, smem_k.offset(tile_elems));
            stage_idx ^= 1;
            key = key.wrapping_sub(block_n);
        }

        // 4. The warps' results go to shared memory: outputs `[NUM_WARPS, block_rows, width]`, then
        //    maxima and sums `[NUM_WARPS, block_rows]` each.
        cp_async::wait(0);
        thread::sync_threads();
        let smem_out = smem_kv.cast::<f32>();
        let smem_max = smem_out.offset(NUM_WARPS * block_rows * width);
        let smem_sum = smem_max.offset(NUM_WARPS * block_rows);
        let first_row = warp_idx * block_rows;
        tile.for_each_row(|row, max, total| {
            smem_max.set(first_row + row, max);
            smem_sum.set(first_row + row, total);
        });
        tile.for_each_pair(|row, column, pair| {
            smem_out.set_vec((first_row + row) * width + column, pair);
        });
        thread::sync_threads();

        // 5. The warps' results are combined: the split's partial result, or the output if it is
        //    the only split.
        let is_only = splits.count == 1;
        let first_partial =
            (seq as usize * num_heads as usize + first_head as usize) * splits.max as usize;
        let out = out.cast::<E>().add(token as usize * out_stride as usize);
        let store = |row: u32, column: u32, part: PartialOut| {
            let to = ((first_head + row) * head_dim) as usize;
            part.store(out.add(to), column, head_dim);
        };
        for_each_vec(heads, width, |row, column| {
            let row_of = |warp: u32| warp * block_rows + row;
            let max_score = |warp| smem_max.get(row_of(warp));
            let part = combine(0..NUM_WARPS, max_score, |warp| {
                let values = smem_out.get_vec(row_of(warp) * width + column);
                PartialOut { max: max_score(warp), sum: smem_sum.get(row_of(warp)), values }
            });
            if is_only {
                store(row, column, part);
                return;
            }
            let to = first_partial + row as usize * splits.max as usize + split as usize;
            partial_out.set_vec(to * width as usize + column as usize, part.values);
            if column == 0 {
                partial_stats.set_vec(to * 2, [part.max, part.sum]);
            }
        });
        if is_only {
            return;
        }

        // 6. The last block to get here combines the splits.
        let counter = seq as usize * thread::grid_dim_y() as usize + thread::block_idx_y() as usize;
        if !is_last(counters, counter, splits.count, smem_q.cast()) {
            return;
        }
        for_each_vec(heads, width, |row, column| {
            let from = first_partial + row as usize * splits.max as usize;
            let max_score = |split| partial_stats.get((from + split as usize) * 2);
            let part = combine(0..splits.count, max_score, |split| {
                let from = from + split as usize;
                let [max, sum] = partial_stats.get_vec(from * 2);
                let values = partial_out.get_vec(from * width as usize + column as usize);
                PartialOut { max, sum, values }
            });
            store(row, column, part);
        });
    }
}

/// Calls `f` with row and first column of each of this thread's vectors of `rows` rows of `width`
/// columns.
#[inline(always)]
fn for_each_vec(rows: u32, width: u32, f: impl Fn(u32, u32)) {
    let mut i = thread::thread_idx_x() * VEC_ELEMS;
    while i < rows * width {
        f(i / width, i % width);
        i += NUM_THREADS * VEC_ELEMS;
    }
}
