//! Attention prefill: causal softmax attention of each sequence's new tokens against its pages of
//! the cache.
//!
//! Shapes    q, out `[num_tokens, num_heads * head_dim]` with row strides; pools `[num_pages,
//!           num_kv_heads, PAGE_SIZE, head_dim]`; all f32, f16 or bf16; cu_seqlens_q
//!           `[num_seqs + 1]`; kv_lens `[num_seqs]`; block_table `[num_seqs, max_pages_per_seq]`;
//!           head_dim at most `PANELS * 32`, smaller ones padded with zeros.
//! Launch    grid `(tiles of BLOCK_M queries of a sequence, num_heads, 1)`, block `(NUM_THREADS, 1,
//!           1)`; a warp takes 16 queries.
//! Numerics  f32, online softmax in base 2; tiles of keys in order. In 16 bits matrix products are
//!           on the tensor cores; probabilities and output are rounded.
//! Bound     compute: `2 * head_dim` FMAs a query, key and head.
//! Source    arXiv:2205.14135; paged cache: arXiv:2309.06180.

use super::tile::{
    AttentionElement, Cache, NUM_THREADS, NUM_WARPS, PANEL_COLUMNS, Source, WarpTile, is_aligned,
};
use crate::element::Number;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Queries of a block.
pub(super) const BLOCK_M: u32 = 64;

/// Most shared memory of a block on every device of the targets.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// Shared memory of a block: Q, the stages of K and V, and scratch space of the warps.
const fn staged_bytes<E: AttentionElement>(panels: usize, num_stages: u32) -> usize {
    // Neither depends on the columns.
    let (block_n, scratch) = (E::Prefill::<1>::BLOCK_N, E::Prefill::<1>::SCRATCH);
    let elems = (BLOCK_M + num_stages * 2 * block_n) * PANEL_COLUMNS;
    elems as usize * panels * size_of::<E>() + 4 * (NUM_WARPS * scratch) as usize
}

/// Pipeline stages of K and V: two where they fit.
const fn num_stages<E: AttentionElement>(panels: usize) -> u32 {
    if staged_bytes::<E>(panels, 2) <= MAX_SHARED_BYTES { 2 } else { 1 }
}

/// Shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const fn shared_bytes<E: AttentionElement>(panels: usize) -> usize {
    staged_bytes::<E>(panels, num_stages::<E>(panels))
}

/// The work item of a block: a tile of queries of one sequence.
struct QueryTile {
    seq: u32,
    /// Row of its first query in the batch.
    first_token: u32,
    /// Queries in the tile.
    queries: u32,
    /// Position of its first query.
    first_position: u32,
}

impl QueryTile {
    /// Tile number `tile` of all sequences. Of a sequence the last tile, which has most keys, comes
    /// first.
    ///
    /// # Safety
    /// 1. `num_seqs` is one element; `kv_lens` holds that many, `cu_seqlens_q` one more.
    #[inline(always)]
    unsafe fn find(
        mut tile: u32,
        num_seqs: Global<u32>,
        cu_seqlens_q: Global<u32>,
        kv_lens: Global<u32>,
    ) -> Option<Self> {
        // SAFETY: `seq` is under `num_seqs`.
        unsafe {
            let num_seqs = num_seqs.get(0);
            let mut first_token = cu_seqlens_q.get(0);
            let mut seq = 0;
            while seq < num_seqs {
                let end = cu_seqlens_q.get(seq as usize + 1);
                let q_len = end - first_token;
                let tiles = q_len.div_ceil(BLOCK_M);
                if tile < tiles {
                    let first_query = (tiles - 1 - tile) * BLOCK_M;
                    return Some(QueryTile {
                        seq,
                        first_token: first_token + first_query,
                        queries: (q_len - first_query).min(BLOCK_M),
                        first_position: kv_lens.get(seq as usize) - q_len + first_query,
                    });
                }
                tile -= tiles;
                first_token = end;
                seq += 1;
            }
        }
        None
    }
}

/// A block takes one tile of queries of one head.
///
/// # Safety
/// 1. The step inputs are those of one step, and every view covers what they refer to; `q`, the
///    pools and `out` hold elements `E`.
/// 2. `head_dim` is at most `32 * PANELS`; `num_kv_heads` divides `num_heads`, `window` is not 0.
/// 3. If `aligned` is not 0, or `E` has 16 bits, every head is 16-byte aligned in `q`, the pools
///    and `out`.
/// 4. `out` overlaps nothing that is read.
#[kernel(
    launch_bounds(NUM_THREADS, 2),
    overlaps,
    instances(
        attention_prefill_f32_d64 = <f32, 2>,
        attention_prefill_f32_d96 = <f32, 3>,
        attention_prefill_f32_d128 = <f32, 4>,
        attention_prefill_f32_d256 = <f32, 8>,
        attention_prefill_f16_d64 = <f16, 2>,
        attention_prefill_f16_d96 = <f16, 3>,
        attention_prefill_f16_d128 = <f16, 4>,
        attention_prefill_f16_d256 = <f16, 8>,
        attention_prefill_bf16_d64 = <bf16, 2>,
        attention_prefill_bf16_d96 = <bf16, 3>,
        attention_prefill_bf16_d128 = <bf16, 4>,
        attention_prefill_bf16_d256 = <bf16, 8>
    )
)]
pub unsafe fn attention_prefill<E: AttentionElement, const PANELS: usize>(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    q: Global<()>,
    q_stride: u32,
    k_pool: Global<()>,
    v_pool: Global<()>,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    aligned: u32,
    softmax_scale: f32,
    window: u32,
    out: GlobalMut<()>,
    out_stride: u32,
) {
    type Tile<E, const PANELS: usize> = <E as AttentionElement>::Prefill<PANELS>;
    let block_n = const {
        assert!(Tile::<E, PANELS>::ROWS * NUM_WARPS == BLOCK_M);
        assert!(Tile::<E, PANELS>::KEYS == Tile::<E, PANELS>::BLOCK_N);
        Tile::<E, PANELS>::BLOCK_N
    };
    let width = const { Tile::<E, PANELS>::WIDTH };
    let num_stages = const { num_stages::<E>(PANELS) };

    // 1. The work item.
    // SAFETY: step inputs of one step, which no launch of it writes.
    let found = unsafe { QueryTile::find(thread::block_idx_x(), num_seqs, cu_seqlens_q, kv_lens) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let Some(QueryTile { seq, first_token, queries, first_position }) = found else { return };
    let head = thread::block_idx_y();
    let aligned = is_aligned::<E>(aligned);
    // SAFETY: launches have KV heads, and a multiple of query heads.
    unsafe { core::hint::assert_unchecked(num_kv_heads > 0 && num_heads >= num_kv_heads) };
    let kv_head = head / (num_heads / num_kv_heads);
    let cache = Cache { num_kv_heads, kv_head, head_dim, aligned };
    // SAFETY: the sequence's row of the table.
    let pages = unsafe { block_table.add(seq as usize * max_pages_per_seq as usize) };
    let end_key = first_position + queries;
    let first_key = (first_position + 1).saturating_sub(window) / block_n * block_n;

    let warp_idx = warp::warp_idx();
    let warp_row = warp_idx * Tile::<E, PANELS>::ROWS;
    let mut tile = Tile::<E, PANELS>::new();
    // SAFETY: the launch gives `shared_bytes`; each tile is waited for, and a barrier passed,
    // before it is read, and a barrier is passed after its last read, before it is overwritten.
    unsafe {
        let smem_q = dynamic_shared_mem::<E>();
        let smem_kv = smem_q.offset(BLOCK_M * width);
        let tile_elems = block_n * width;
        let scratch = smem_kv.offset(num_stages * 2 * tile_elems).cast();
        let scratch = scratch.offset(warp_idx * Tile::<E, PANELS>::SCRATCH);
        let (k_pool, v_pool) = (k_pool.cast::<E>(), v_pool.cast::<E>());
        let copy_stage = |stage_idx: u32, key: u32| {
            let smem_k = smem_kv.offset(stage_idx * 2 * tile_elems);
            let copy = |pool: Global<E>, smem: Shared<E>| {
                Source::cache(pool, pages, key, end_key, &cache).copy_to(smem, block_n, width);
            };
            copy(k_pool, smem_k);
            copy(v_pool, smem_k.offset(tile_elems));
            cp_async::commit();
        };

        // 2. Q and the first tile of K and V are one group of copies.
        let from = first_token as usize * q_stride as usize + (head * head_dim) as usize;
        let gmem = q.cast::<E>().add(from);
        Source { gmem, row_stride: q_stride, rows: queries, head_dim, aligned }
            .copy_to(smem_q, BLOCK_M, width);
        copy_stage(0, first_key);

        // 3. Main loop over tiles of keys. With two stages the next tile is loaded during the MMAs
        //    of this one.
        let smem_q = smem_q.offset(warp_row * PANEL_COLUMNS);
        let (mut stage_idx, mut key) = (0, first_key);
        while key < end_key {
            cp_async::wait(0);
            thread::sync_threads();
            let has_next = key + block_n < end_key;
            if num_stages == 2 && has_next {
                copy_stage(stage_idx ^ 1, key + block_n);
            }
            let smem_k = smem_kv.offset(stage_idx * 2 * tile_elems);
            let mut scores = tile.scores(head_dim, smem_q, BLOCK_M, smem_k);
            tile.mask(&mut scores, softmax_scale * LOG2_E, |row, tile_key| {
                let (position, key) = (first_position + warp_row + row, key + tile_key);
                key <= position && position - key < window
            });
            let probabilities = tile.update(&scores, scratch);
            tile.accumulate(probabilities, scratch, smem_k.offset(tile_elems));
            if num_stages == 1 && has_next {
                thread::sync_threads();
                copy_stage(0, key + block_n);
            }
            stage_idx ^= num_stages - 1;
            key += block_n;
        }

        // 4. Output.
        let out = out.cast::<E>().add((head * head_dim) as usize);
        tile.normalize();
        tile.for_each_pair(|row, column, pair| {
            if warp_row + row < queries {
                let token = (first_token + warp_row + row) as usize;
                let row = out.add(token * out_stride as usize);
                store_pair(row, column, head_dim, aligned, pair);
            }
        });
    }
}

/// Stores columns `column`, an even number, and `column + 1` of a row, up to `head_dim`.
///
/// # Safety
/// 1. `row` holds `head_dim` elements, 16-byte aligned if `aligned`; no other thread writes those.
#[inline(always)]
unsafe fn store_pair<E: Number>(
    row: GlobalMut<E>,
    column: u32,
    head_dim: u32,
    aligned: bool,
    pair: [f32; 2],
) {
    let pair = pair.map(E::from_f32);
    // SAFETY: columns under `head_dim` are in the row.
    unsafe {
        if aligned && column < head_dim {
            row.set_vec(column as usize, pair);
        } else {
            for (column, value) in (column..head_dim).zip(pair) {
                row.set(column as usize, value);
            }
        }
    }
}
