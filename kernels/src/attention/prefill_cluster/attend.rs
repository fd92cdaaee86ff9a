//! What a block does with its item.

use super::copy::{self, Cache, PageTable, Queries};
use super::exchange::{self, Exchange};
use super::operands::Operands;
use super::softmax::{self, Mask, Softmax};
use super::{
    BLOCK_M, BLOCK_N, CLUSTER, HEAD_DIM, MMA_N, MULTIPLIERS, MULTIPLIERS_BARRIER, OUT_REGS,
    PAGE_SIZE, SCORE_REGS, exchange_at, k_at, v_at, wait_for_copies,
};
use crate::attention::work::PrefillItem;
use crate::element::Half;
use crate::tile::smem::SmemTile;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, InFlight};

/// The block's tiles: `BLOCK_M` rows of Q, `BLOCK_N` of K, and V of as many keys.
struct Tiles<M: Operands> {
    q: SmemTile<M::Qk>,
    k: SmemTile<M::Qk>,
    v: Shared<u8>,
}

impl<M: Operands> Tiles<M> {
    /// The tiles at the start of `smem`.
    ///
    /// # Safety
    /// 1. `smem` is the block's dynamic shared memory, of `shared_bytes`.
    #[inline(always)]
    unsafe fn new(smem: Shared<u8>) -> Self {
        let at = |bytes: u32| smem.offset(bytes).cast();
        // SAFETY: the caller's promise; each tile is a multiple of 1024 bytes.
        unsafe {
            Tiles {
                q: SmemTile::new(at(0), BLOCK_M),
                k: SmemTile::new(at(k_at::<M>()), BLOCK_N),
                v: smem.offset(v_at::<M>()),
            }
        }
    }

    /// Issues `Q K^T` for half `half` of the chunk's keys.
    ///
    /// # Safety
    /// 1. Q and these keys are copied, and nothing overwrites them until the MMAs are waited for.
    #[inline(always)]
    #[track_caller]
    unsafe fn start_scores(&self, half: u32) -> InFlight<SCORE_REGS> {
        let (q, k) = (self.q.k_major(0), self.k.k_major(half * MMA_N));
        let mut scores = Accumulator::zero().start();
        unroll!(step in 0..4, {
            if step < const { HEAD_DIM as usize * size_of::<M::Qk>() / 32 } {
                let at = self.q.column_step(step as u32);
                // SAFETY: the caller's promise.
                unsafe { scores.mma(q.advance(at), k.advance(at), step != 0) };
            }
        });
        wgmma::commit();
        scores
    }

    /// Computes the probabilities of half `half` of the chunk's keys, and issues `P V` for them: of
    /// 32 keys while the next ones' are computed. The MMAs read the fragments that it returns.
    ///
    /// # Safety
    /// 1. Copies of V are issued for the chunk that begins with `key`, then those of two more
    ///    groups at most, and nothing overwrites V until the MMAs are waited for.
    #[inline(always)]
    #[track_caller]
    unsafe fn add_values(
        &self,
        (cache, key): (&Cache, u32),
        scores: &[f32; SCORE_REGS],
        half: u32,
        softmax: &mut Softmax,
        out: &mut InFlight<OUT_REGS>,
    ) -> [M::Fragments; 4] {
        let mut add_32_keys = |step: usize| {
            let first = softmax.probabilities(scores, 16 * step);
            let second = softmax.probabilities(scores, 16 * step + 8);
            let fragments = M::pack([first, second]);
            if step == 0 {
                // SAFETY: the caller's promise.
                unsafe { M::wait_for_values(cache, key, self.v, half) };
            }
            wgmma::fence();
            let step = half * MMA_N / 32 + step as u32;
            // SAFETY: the caller's promise; the half is there.
            unsafe { M::multiply(out, &fragments, self.v, step) };
            wgmma::commit();
            fragments
        };
        // Not a loop: registers cannot be indexed.
        [add_32_keys(0), add_32_keys(1), add_32_keys(2), add_32_keys(3)]
    }
}

/// What a kernel reads and writes, but for scales.
pub struct Inputs {
    pub num_items: Global<u32>,
    pub items: Global<u32>,
    pub block_table: Global<u32>,
    pub max_pages_per_seq: u32,
    pub q: Global<()>,
    pub q_stride: u32,
    pub k_pool: Global<()>,
    pub v_pool: Global<()>,
    pub num_kv_heads: u32,
    pub group_reciprocal: u64,
    pub softmax_scale: f32,
    pub window: u32,
    pub out: GlobalMut<()>,
    pub out_stride: u32,
}

/// What a block begins with.
pub struct Start<M: Operands> {
    /// The block's rank in the cluster, and the index of its item.
    rank: u32,
    index: u32,
    num_items: u32,
    item: PrefillItem,
    table: PageTable,
    tiles: Tiles<M>,
    exchange: Exchange,
}

impl<M: Operands> Start<M> {
    /// Loads the work item, and initialises the exchange's barrier meanwhile.
    ///
    /// # Safety
    /// 1. As [`attention_prefill_cluster`](super::attention_prefill_cluster).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn new(inputs: &Inputs) -> Self {
        let (rank, index) = (cluster::block_rank(), thread::block_idx_x() / CLUSTER);
        // SAFETY: step inputs of one step, which no launch of it writes; items past the valid ones
        // are not used. The launch gives `shared_bytes`; the cluster's barrier follows.
        unsafe {
            let num_items = inputs.num_items.get(0);
            let item = PrefillItem::speculate(inputs.items, index);
            let table = PageTable::speculate(inputs.block_table, inputs.max_pages_per_seq);
            let smem = dynamic_shared_mem::<u8>();
            let exchange = Exchange::new(smem.offset(exchange_at::<M>()));
            if thread::thread_idx_x() == 0 {
                exchange.init();
            }
            // Relaxed: the other block needs to see the barrier only, which the fence of `init`
            // orders. A release would wait for all loads.
            cluster::arrive_relaxed();
            Start { rank, index, num_items, item, table, tiles: Tiles::new(smem), exchange }
        }
    }
}

/// A cluster takes one item. `scales(head, kv_head)` loads what scores and values are multiplied
/// by.
///
/// # Safety
/// 1. As [`attention_prefill_cluster`](super::attention_prefill_cluster), with Q and K of elements
///    `M::Qk`, V of `M::V` and the output of `M::Out`; the launches that write them have ended.
#[inline(always)]
#[track_caller]
pub unsafe fn attend<M: Operands>(
    start: Start<M>,
    inputs: &Inputs,
    scales: impl FnOnce(u32, u32) -> [f32; 2],
) {
    let Start { rank, index, num_items, item, table, tiles, exchange } = start;
    let &Inputs { q, q_stride, k_pool, v_pool, num_kv_heads, group_reciprocal, .. } = inputs;
    let &Inputs { softmax_scale, window, out, out_stride, .. } = inputs;
    if index >= num_items {
        cluster::wait();
        return;
    }

    // 1. The block's half of the keys, and the copies of its first chunk.
    let kv_head = ((u64::from(item.head) * group_reciprocal) >> 32) as u32;
    let half_keys = item.num_pages().div_ceil(CLUSTER) * PAGE_SIZE;
    let first_key = item.first_key + rank * half_keys;
    let end_key = item.end_key.min(first_key + half_keys);
    let cache = Cache { kv_head, num_kv_heads, table: table.seq_pages(item.seq), end_key };
    let (k_pool, v_pool) = (k_pool.cast::<M::Qk>(), v_pool.cast::<M::V>());
    if M::NUM_THREADS > MULTIPLIERS && thread::thread_idx_x() >= MULTIPLIERS {
        // SAFETY: the views cover what the item refers to.
        unsafe { M::prepare_values(&cache, v_pool, first_key, tiles.v) };
        cluster::wait();
        return;
    }
    // SAFETY: the views cover what the item refers to; the tiles are read after a wait, and are
    // overwritten when all warps have read them.
    unsafe {
        let queries = Queries { gmem: q.cast::<M::Qk>(), row_stride: q_stride, rank };
        queries.copy_to(tiles.q, &item);
        let pages = cache.pages(first_key);
        cache.copy_chunk(k_pool, &pages, first_key, tiles.k);
        M::copy_values(&cache, v_pool, &pages, first_key, tiles.v);
    }
    let [score_scale, value_scale] = scales(item.head, kv_head);

    // 2. Main loop over chunks. Copies of the next one are issued when this one's tile is read.
    let mut softmax = Softmax::new(softmax_scale * LOG2_E * score_scale, M::SHIFT);
    let (mut acc, mut key) = (Accumulator::<OUT_REGS>::zero(), first_key);
    loop {
        let has_next = key + BLOCK_N < end_key;
        let mask = Mask::new(&item, window, rank, key, end_key);
        // SAFETY: each tile is waited for before it is read. All threads have waited for the MMAs
        // that read a tile before it is overwritten.
        unsafe {
            wait_for_copies(M::V_GROUPS + 1);
            let first = tiles.start_scores(0);
            wait_for_copies(M::V_GROUPS);
            let second = tiles.start_scores(1);
            // The maximum of the first half, while the second one is computed.
            let mut first = first.wait::<1>();
            mask.apply(&mut first, 0);
            let first_max = Softmax::max_of(&mut first);
            let mut second = second.wait::<0>();
            mask.apply(&mut second, MMA_N);
            let correction = softmax.raise_max(first_max, Softmax::max_of(&mut second));
            if key > first_key {
                acc.scale_rows(correction);
            }

            let mut out = acc.start();
            let (first, second) = (first.values(), second.values());
            // Fragments live until the MMAs that read them are waited for.
            let _first = tiles.add_values((&cache, key), &first, 0, &mut softmax, &mut out);
            // A barrier after the waits for the scores is passed: K is read.
            if has_next {
                cache.copy_chunk(k_pool, &cache.pages(key + BLOCK_N), key + BLOCK_N, tiles.k);
            } else {
                cp_async::commit();
                cp_async::commit();
            }
            let _second = tiles.add_values((&cache, key), &second, 1, &mut softmax, &mut out);
            // The rows' sums, while the last MMAs run.
            softmax.sum_rows();
            acc = out.wait::<0>();
            if !has_next {
                break;
            }
            key += BLOCK_N;
            barrier::sync::<MULTIPLIERS_BARRIER, MULTIPLIERS>();
            M::copy_values(&cache, v_pool, &cache.pages(key), key, tiles.v);
        }
    }

    // 3. The exchange: this block finishes the first of the thread's two rows, and the other block
    //    the second one.
    cluster::wait();
    let (scale, lse) = softmax.finish();
    let scale = scale.map(|scale| scale * value_scale);
    let values = acc.values();
    let row = |half: usize, pair: usize| {
        let at = 4 * pair + 2 * half;
        [values[at] * scale[half], values[at + 1] * scale[half]]
    };
    let packed = |half: usize| {
        [0, 1, 2, 3, 4, 5, 6, 7].map(|pair| {
            let [lo, hi] = row(half, pair);
            M::Out::pack(lo, hi)
        })
    };
    // SAFETY: the barrier of the cluster is passed; a row that exists is the item's.
    unsafe {
        exchange.send(rank ^ 1, packed(1), lse[1]);
        let own = [0, 1, 2, 3, 4, 5, 6, 7].map(|pair| row(0, pair));
        let [a, b, c, d, e, f, g, h] = exchange.combine::<M::Out>(own, lse[0]);
        // Of every eight columns the thread has two: the quad's threads swap them for eight in a
        // row, twice.
        let vecs = [[a, b, c, d], [e, f, g, h]].map(exchange::transpose);
        let query = copy::query_of_row(softmax::row(0), rank);
        if query < item.queries {
            let at = (item.first_token + query) as usize * out_stride as usize;
            let column = item.head * HEAD_DIM + warp::lane_id() % 4 * 8;
            let row = out.cast::<M::Out>().add(at + column as usize).cast::<u32>();
            row.set_vec(0, vecs[0]);
            row.set_vec(HEAD_DIM as usize / 4, vecs[1]);
        }
    }
}
