//! What the items of a launch share, and what a block fills before its main loop: Q, and K and V
//! of a new token.

use super::super::combine::VEC_ELEMS;
use super::super::kv_ring::{KvRing, KvSource};
use super::super::new_token::{NewRow, NewToken, NormWeights, Pair};
use super::super::tile::{
    AttentionElement, Cache, NUM_THREADS, NUM_WARPS, PANEL_COLUMNS, Source, WarpTile, tile_offset,
    vec_elems,
};
use super::super::work::DecodeItem;
use super::kv_elems;
use crate::kv_cache::{PAGE_SIZE, row_start};
use crate::qk_norm::Weights;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;

/// The query rows of an item.
#[derive(Clone, Copy)]
pub struct QueryRows {
    /// Rows of the item.
    pub rows: u32,
    /// Index of its first row among those of the KV head.
    pub first_row: u32,
    /// First query head of the KV head, and how many there are.
    pub first_head: u32,
    pub group: u32,
}

impl QueryRows {
    #[inline(always)]
    pub fn of(item: &DecodeItem, group: u32, block_rows: u32) -> Self {
        let first_row = item.row_block * block_rows;
        let rows = (item.queries * group - first_row).min(block_rows);
        QueryRows { rows, first_row, first_head: item.kv_head * group, group }
    }

    /// The query of `row`, counted from the sequence's first.
    #[inline(always)]
    pub fn query(&self, row: u32) -> u32 {
        (self.first_row + row) / self.group
    }

    /// The query head of `row`.
    #[inline(always)]
    pub fn head(&self, row: u32) -> u32 {
        self.first_head + (self.first_row + row) % self.group
    }
}

/// What the items of a launch share.
#[derive(Clone, Copy)]
pub struct Problem<E> {
    pub block_table: Global<u32>,
    pub max_pages_per_seq: u32,
    /// The new tokens, where they are not appended yet.
    pub new: Option<NewTokens<E>>,
    pub q: Global<E>,
    pub q_stride: u32,
    /// Pools of K and of V.
    pub pools: [GlobalMut<E>; 2],
    pub num_kv_heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    pub head_dim: u32,
    pub aligned: bool,
    /// Factor of the scores: `softmax_scale * log2(e)`.
    pub scale: f32,
    pub window: u32,
    pub partial_out: GlobalMut<f32>,
    pub partial_stats: GlobalMut<f32>,
    pub counters: GlobalMut<u32>,
    pub out: GlobalMut<E>,
    pub out_stride: u32,
    /// A score of each query head that has no value; or null.
    pub sinks: Global<f32>,
    /// Scores are `tanh(softcap * score)` before they are scaled; 0 where they are not bent.
    pub softcap: f32,
}

impl<E> Problem<E> {
    /// The score without a value of a split's query head, in base 2: the first split has it.
    ///
    /// # Safety
    /// 1. There is one for each query head, or none.
    #[inline(always)]
    pub unsafe fn sink(&self, split: u32, head: u32) -> f32 {
        if split > 0 || self.sinks.is_null() {
            return f32::NEG_INFINITY;
        }
        // SAFETY: the caller's promise.
        unsafe { self.sinks.get(head as usize) * LOG2_E }
    }
}

/// The rows of new tokens that are not appended yet.
#[derive(Clone, Copy)]
pub struct NewTokens<E> {
    pub positions: Global<u32>,
    pub slot_mapping: Global<u32>,
    pub table: Global<f32>,
    pub rotary_dim: u32,
    /// The norm of Q and K before the rotation.
    pub norm: Weights,
    pub k: Global<E>,
    pub k_stride: u32,
    pub v: Global<E>,
    pub v_stride: u32,
}

/// What a thread needs for a new token of what no launch of the step writes.
pub struct TokenInputs {
    /// The token's slot in the cache.
    slot: u32,
    pair: Pair,
    norm: Option<NormWeights>,
}

/// The block's shared memory.
#[derive(Clone, Copy)]
pub struct Smem<E> {
    pub q: Shared<E>,
    /// The ring of K and V, and after the main loop the partial results.
    pub kv: Shared<E>,
    /// The warp's own.
    pub scratch: Shared<f32>,
    /// This item and the next one.
    pub items: Shared<u32>,
}

impl<E: AttentionElement> Smem<E> {
    /// The parts of the block's dynamic shared memory.
    ///
    /// # Safety
    /// 1. The launch gives `shared_bytes`.
    #[inline(always)]
    pub unsafe fn new<S: KvSource<Element = E>>() -> Self {
        // SAFETY: the caller's promise.
        let q = unsafe { dynamic_shared_mem::<E>() };
        let kv = q.offset(S::Tile::ROWS * S::Tile::WIDTH);
        let scratch: Shared<f32> = kv.offset(kv_elems::<S>()).cast();
        let items = scratch.offset(NUM_WARPS * S::Tile::SCRATCH).cast();
        Smem { q, kv, scratch: scratch.offset(warp::warp_idx() * S::Tile::SCRATCH), items }
    }
}

impl<E: AttentionElement> Problem<E> {
    /// Whether Q, K and V of the new tokens are still on their way.
    #[inline(always)]
    pub fn appends(&self) -> bool {
        self.new.is_some()
    }

    /// The ring over the item's tiles `[last_tile, num_tiles]`, in `smem`.
    ///
    /// # Safety
    /// As [`attend`].
    #[inline(always)]
    pub unsafe fn ring<S: KvSource<Element = E>>(
        &self,
        item: &DecodeItem,
        smem: Shared<E>,
        tiles: [u32; 2],
    ) -> KvRing<S> {
        let &Problem { num_kv_heads, head_dim, aligned, .. } = self;
        let cache = Cache { num_kv_heads, kv_head: item.kv_head, head_dim, aligned };
        // The new token's position is not in the cache yet.
        let end_cached =
            if self.appends() { item.end_key.min(item.first_position) } else { item.end_key };
        let first_visible = (item.first_position + 1).saturating_sub(self.window);
        let pools = self.pools.map(GlobalMut::as_global);
        // SAFETY: the caller's promise.
        unsafe {
            let table = self.block_table.add(item.seq as usize * self.max_pages_per_seq as usize);
            KvRing::new(smem, pools, table, cache, tiles, first_visible..end_cached)
        }
    }

    /// Column 0 of `row` in `q`.
    #[inline(always)]
    pub fn q_row(&self, item: &DecodeItem, rows: &QueryRows, row: u32) -> Global<E> {
        let token = (item.first_token + rows.query(row)) as usize;
        let head = (rows.head(row) * self.head_dim) as usize;
        self.q.wrapping_add(token * self.q_stride as usize + head)
    }

    /// Issues the copies of Q; rows that do not exist are zeros.
    ///
    /// # Safety
    /// As [`attend`].
    #[inline(always)]
    pub unsafe fn copy_q(
        &self,
        item: &DecodeItem,
        rows: &QueryRows,
        smem_q: Shared<E>,
        block_rows: u32,
        width: u32,
    ) {
        let vecs = const { PANEL_COLUMNS / vec_elems::<E>() };
        let mut i = thread::thread_idx_x();
        while i < block_rows * width / vec_elems::<E>() {
            // A panel's rows first, as the tile has them.
            let (panel, row) = (i / vecs / block_rows, i / vecs % block_rows);
            let column = panel * PANEL_COLUMNS + i % vecs * vec_elems::<E>();
            let columns = if row < rows.rows { self.head_dim } else { 0 };
            let gmem = self.q_row(item, rows, row);
            let &Problem { head_dim, aligned, .. } = self;
            // SAFETY: nothing is read where nothing exists.
            unsafe {
                Source { gmem, row_stride: 0, rows: 1, head_dim, aligned }.copy_vec(
                    smem_q.offset(tile_offset::<E>(row, column, block_rows)),
                    column as usize,
                    columns.saturating_sub(column),
                );
            }
            i += NUM_THREADS;
        }
    }

    /// Issues the loads of what no launch of the step writes, for [`Problem::store_new_token`].
    ///
    /// # Safety
    /// As [`attend`].
    #[inline(always)]
    pub unsafe fn load_inputs(&self, item: &DecodeItem) -> Option<TokenInputs> {
        let new = self.new?;
        let token = item.first_token as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let (position, slot) = (new.positions.get(token), new.slot_mapping.get(token));
            let angles = new.table.add(position as usize * new.rotary_dim as usize);
            let pair = Pair::new(angles, new.rotary_dim, self.head_dim);
            let norm = NormWeights::load(&new.norm, &pair);
            Some(TokenInputs { slot, pair, norm })
        }
    }

    /// Stores the rotated Q, and if the item has the new token's key, K and V, to the tiles and,
    /// in the first row block, to the cache.
    ///
    /// # Safety
    /// As [`attend`]; the first two slots of the ring are copied.
    #[inline(always)]
    pub unsafe fn store_new_token(
        &self,
        item: &DecodeItem,
        rows: &QueryRows,
        inputs: &TokenInputs,
        smem: &Smem<E>,
        [block_n, block_rows, width]: [u32; 3],
        last_tile: u32,
    ) {
        let Some(NewTokens { k, k_stride, v, v_stride, .. }) = self.new else { return };
        let &TokenInputs { slot, ref pair, norm } = inputs;
        let token = item.first_token as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let new_row = |from: Global<E>, stride: u32, pool: GlobalMut<E>, tile: Shared<E>| {
                let (page, row) = (slot / PAGE_SIZE, slot % PAGE_SIZE);
                let to = row_start(page, row, item.kv_head, self.num_kv_heads, self.head_dim);
                let from = from.add(token * stride as usize);
                NewRow {
                    from: from.add((item.kv_head * self.head_dim) as usize),
                    tile,
                    cache: (item.row_block == 0).then(|| pool.add(to)),
                }
            };
            let [k_pool, v_pool] = self.pools;
            let smem_v = smem.kv.offset(block_n * width);
            let kv = (item.end_key == item.first_position + 1).then(|| {
                [new_row(k, k_stride, k_pool, smem.kv), new_row(v, v_stride, v_pool, smem_v)]
            });
            let q = self.q_row(item, rows, 0);
            let key_row = item.first_position - last_tile;
            let (heads, smem_q) = (rows.rows, smem.q);
            NewToken { q, norm, heads, smem_q, block_rows, kv, key_row, block_n }.store(pair);
        }
    }
}

/// Sets the `elems` elements of Q to zeros.
///
/// # Safety
/// 1. `smem_q` holds them, 16-byte aligned; no other thread accesses them before a barrier.
#[inline(always)]
pub unsafe fn zero_q<E: AttentionElement>(smem_q: Shared<E>, elems: u32) {
    let smem_q = smem_q.cast::<f32>();
    let mut i = thread::thread_idx_x() * VEC_ELEMS;
    while i < elems * size_of::<E>() as u32 / 4 {
        // SAFETY: inside, by the condition.
        unsafe { smem_q.set_vec(i, [0.0; VEC_ELEMS as usize]) };
        i += NUM_THREADS * VEC_ELEMS;
    }
}
