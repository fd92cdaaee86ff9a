//! Attention prefill: softmax attention of the new tokens of each prompt against its pages of the
//! cache.
//!
//! Shapes    q, out `[num_tokens, num_heads * head_dim]` with row strides; pools `[num_pages,
//!           num_kv_heads, PAGE_SIZE, head_dim]`; all f32, f16 or bf16; items `[num_items]`;
//!           block_table `[num_seqs, max_pages_per_seq]`; head_dim at most `PANELS * 32`, smaller
//!           ones padded with zeros.
//! Launch    grid `(max_items, 1, 1)`, block `(NUM_THREADS, 1, 1)`: a block takes one item, a tile
//!           of queries of one head; each warp takes a quarter of its rows, or of heads of 512 half
//!           of them, for half of the output.
//! Numerics  f32, online softmax in base 2; tiles of keys in order. In 16 bits matrix products are
//!           on the tensor cores; probabilities and output are rounded.
//! Bound     compute: `2 * head_dim` FMAs a query, key and head.
//! Source    arXiv:2205.14135; paged cache: arXiv:2309.06180.

use super::tile::{
    AttentionElement, Cache, NUM_THREADS, NUM_WARPS, PANEL_COLUMNS, Source, WarpTile, WithSink,
    is_aligned,
};
use super::work::PrefillItem;
use crate::attention::head_dims::{HALF_HEAD_DIMS, HEAD_DIMS, column_parts};
use crate::element::Number;
use core::f32::consts::LOG2_E;
use core::ops::Range;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Queries of a block.
pub(super) const fn block_m<E: AttentionElement>(rows: usize, panels: usize) -> u32 {
    // Those of a warp depend neither on the keys nor on the columns.
    NUM_WARPS / column_parts(panels) as u32 * E::Prefill::<1, 1, 1>::ROWS * rows as u32
}

/// Most shared memory of a block on every device of the targets.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// Shared memory of a block: Q, the stages of K and V, and scratch space of the warps.
const fn staged_bytes<E: AttentionElement>(rows: usize, panels: usize, num_stages: u32) -> usize {
    let (block_n, scratch) = (E::Prefill::<1, 1, 1>::BLOCK_N, E::Prefill::<1, 1, 1>::SCRATCH);
    let block_n = block_n / column_parts(panels) as u32;
    let elems = (block_m::<E>(rows, panels) + num_stages * 2 * block_n) * PANEL_COLUMNS;
    elems as usize * panels * size_of::<E>() + 4 * (NUM_WARPS * scratch) as usize
}

/// Pipeline stages of K and V: two where they fit.
const fn num_stages<E: AttentionElement>(rows: usize, panels: usize) -> u32 {
    if staged_bytes::<E>(rows, panels, 2) <= MAX_SHARED_BYTES { 2 } else { 1 }
}

/// Shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const fn shared_bytes<E: AttentionElement>(rows: usize, panels: usize) -> usize {
    staged_bytes::<E>(rows, panels, num_stages::<E>(rows, panels))
}

/// Whether scores can be capped. Prompts in 16 bits on Hopper are for its own kernel; heads of 128
/// columns, compiled for it, would spill.
const fn bends_scores<E>() -> bool {
    size_of::<E>() == 4 || !cfg!(all(target_arch = "nvptx64", target_feature = "sm_90a"))
}

/// Which keys the rows of a warp see.
#[derive(Clone, Copy)]
struct Visible {
    /// Position of the warp's first row.
    first_position: u32,
    /// Position of its last row.
    last_position: u32,
    end_key: u32,
    window: u32,
}

impl Visible {
    /// Whether row `row` of the warp sees `key`.
    #[inline(always)]
    fn contains(&self, row: u32, key: u32) -> bool {
        let position = self.first_position + row;
        key < self.end_key && key <= position && position - key < self.window
    }

    /// Whether a row sees one of the keys.
    #[inline(always)]
    fn is_any(&self, keys: Range<u32>) -> bool {
        keys.start <= self.last_position
            && keys.start < self.end_key
            && self.first_position.saturating_sub(keys.end - 1) < self.window
    }

    /// Whether every row sees all of the keys.
    #[inline(always)]
    fn is_all(&self, keys: Range<u32>) -> bool {
        keys.end <= self.end_key.min(self.first_position + 1)
            && self.last_position - keys.start < self.window
    }
}

/// Rows of a warp and steps of keys in 16 bits, by panels: what registers and shared memory hold.
const fn half_shape(panels: usize) -> [usize; 2] {
    match panels {
        0..=2 => [2, 4],
        3..=4 => [2, 2],
        5..=8 => [1, 4],
        _ => [1, 2],
    }
}

/// A block takes one item.
///
/// # Safety
/// 1. `num_items` is one element; `items` holds that many, 16-byte aligned, each of at most
///    `block_m` queries; `block_table` holds the pages of their sequences, and every view covers
///    what they refer to. `q`, the pools and `out` hold elements `E`.
/// 2. `head_dim` is at most `32 * PANELS`; `num_kv_heads` divides `num_heads`, `window` is not 0,
///    `softmax_scale` is above 0. Where `softcap` is not 0, scores are
///    `tanh(softcap * score)` before they are scaled.
/// 3. If `aligned` is not 0, or `E` has 16 bits, every head is 16-byte aligned in `q`, the pools
///    and `out`.
/// 4. `out` overlaps nothing that is read. `sinks` holds a number for each query head, or is null.
#[kernel(
    launch_bounds(NUM_THREADS, 2),
    overlaps,
    instances(
        E in [f16, bf16],
        P in HEAD_DIMS,
        H in HALF_HEAD_DIMS,
        attention_prefill_f32_d{P} = <f32, 4, 4, P>,
        attention_prefill_{E}_d{H} = <E, { half_shape(H)[0] }, { half_shape(H)[1] }, H>
    )
)]
pub unsafe fn attention_prefill<
    E: AttentionElement,
    const ROWS: usize,
    const KEYS: usize,
    const PANELS: usize,
>(
    num_items: Global<u32>,
    items: Global<u32>,
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
    sinks: Global<f32>,
    softcap: f32,
) {
    type Tile<E, const ROWS: usize, const KEYS: usize, const PANELS: usize> =
        <E as AttentionElement>::Prefill<ROWS, KEYS, PANELS>;
    let parts = const { Tile::<E, ROWS, KEYS, PANELS>::COLUMN_PARTS };
    let (block_m, block_n, width) = const {
        let (rows, parts) = (Tile::<E, ROWS, KEYS, PANELS>::ROWS, column_parts(PANELS) as u32);
        assert!(rows * NUM_WARPS == block_m::<E>(ROWS, PANELS) * parts);
        assert!(parts == Tile::<E, ROWS, KEYS, PANELS>::COLUMN_PARTS);
        let block_n = Tile::<E, ROWS, KEYS, PANELS>::BLOCK_N;
        assert!(block_n.is_multiple_of(Tile::<E, ROWS, KEYS, PANELS>::KEYS));
        (block_m::<E>(ROWS, PANELS), block_n, Tile::<E, ROWS, KEYS, PANELS>::WIDTH)
    };
    let (warp_rows, warp_keys) =
        const { (Tile::<E, ROWS, KEYS, PANELS>::ROWS, Tile::<E, ROWS, KEYS, PANELS>::KEYS) };
    let num_stages = const { num_stages::<E>(ROWS, PANELS) };

    // 1. The work item.
    let index = thread::block_idx_x();
    // SAFETY: step inputs of one step, which no launch of it writes.
    let item = unsafe { (index < num_items.get(0)).then(|| PrefillItem::load(items, index)) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let Some(item) = item else { return };
    let PrefillItem { seq, head, first_token, queries, first_position, first_key, end_key, .. } =
        item;
    let aligned = is_aligned::<E>(aligned);
    // SAFETY: launches have KV heads, and a multiple of query heads.
    unsafe { core::hint::assert_unchecked(num_kv_heads > 0 && num_heads >= num_kv_heads) };
    let kv_head = head / (num_heads / num_kv_heads);
    let cache = Cache { num_kv_heads, kv_head, head_dim, aligned };
    // SAFETY: the sequence's row of the table.
    let pages = unsafe { block_table.add(seq as usize * max_pages_per_seq as usize) };

    let warp_idx = warp::warp_idx();
    let warp_row = warp_idx / parts * warp_rows;
    let visible = Visible {
        first_position: first_position + warp_row,
        last_position: first_position + warp_row + warp_rows - 1,
        end_key,
        window,
    };
    let has_rows = warp_row < queries;
    let mut tile = Tile::<E, ROWS, KEYS, PANELS>::new(softmax_scale * LOG2_E);
    let sink = match sinks.is_null() {
        true => f32::NEG_INFINITY,
        // SAFETY: there is one for each query head.
        false => unsafe { sinks.get(head as usize) / softmax_scale },
    };
    tile.add_sink(sink);
    // SAFETY: the launch gives `shared_bytes`; each tile is waited for, and a barrier passed,
    // before it is read, and a barrier is passed after its last read, before it is overwritten.
    unsafe {
        let smem_q = dynamic_shared_mem::<E>();
        let smem_kv = smem_q.offset(block_m * width);
        let tile_elems = block_n * width;
        let scratch = smem_kv.offset(num_stages * 2 * tile_elems).cast();
        let scratch = scratch.offset(warp_idx * Tile::<E, ROWS, KEYS, PANELS>::SCRATCH);
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
            .copy_to(smem_q, block_m, width);
        copy_stage(0, first_key);

        // 3. Main loop over tiles of keys. With two stages the next tile is loaded during the MMAs
        //    of this one. Only keys across the diagonal, the window's edge or the end are masked;
        //    those that no row of the warp sees are skipped.
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
            let mut tile_key = 0;
            while has_rows && tile_key < block_n {
                let first = key + tile_key;
                if visible.is_any(first..first + warp_keys) {
                    let smem_k = smem_k.offset(tile_key * PANEL_COLUMNS);
                    let mut scores = tile.scores(head_dim, smem_q, block_m, smem_k);
                    if const { bends_scores::<E>() } && softcap > 0.0 {
                        tile.cap(&mut scores, softcap);
                    }
                    if !visible.is_all(first..first + warp_keys) {
                        tile.mask(&mut scores, |row, key| visible.contains(row, first + key));
                    }
                    let probabilities = tile.update(&scores, scratch);
                    tile.accumulate(probabilities, scratch, smem_k.offset(tile_elems));
                }
                tile_key += warp_keys;
            }
            if num_stages == 1 && has_next {
                thread::sync_threads();
                copy_stage(0, key + block_n);
            }
            stage_idx ^= num_stages - 1;
            key += block_n;
        }

        // 4. Output. The item is loaded again: its registers are the accumulators' until here.
        let PrefillItem { head, first_token, queries, .. } = PrefillItem::load(items, index);
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
