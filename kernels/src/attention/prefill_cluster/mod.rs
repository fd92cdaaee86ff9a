//! Attention prefill for few tiles: the keys of a tile are split over the two blocks of a cluster.
//!
//! Shapes    q, out `[num_tokens, num_heads * 64]` with row strides; pools `[num_pages,
//!           num_kv_heads, PAGE_SIZE, 64]`; all f16 or bf16, 16-byte aligned; items
//!           `[num_items]` of [`PrefillItem`], of up to 64 queries; block_table `[num_seqs,
//!           max_pages_per_seq]`.
//! Launch    grid `(2 * max_items, 1, 1)` in clusters of two blocks, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32; softmax in base 2, online from one chunk of 256 keys to the next.
//!           Probabilities are rounded, and so is the part of the output that a block sends.
//! Bound     latency: a launch, one round of loads, the MMAs and exponentials of 64 x 256 scores,
//!           one exchange.
//! Source    arXiv:2205.14135; split keys: Flash-Decoding (PyTorch, 2023).
//!
//! A block is one warpgroup. It takes half of the item's pages, in chunks of four, whose loads it
//! issues at once; of a chunk it computes all scores, the maximum of each row, and then the
//! exponentials while the MMAs of `P V` run. Each block finishes half of the rows: it sends the
//! other half of its output, normalised, with its `lse`, to the other block's shared memory.
//!
//! Measurements: `docs/measurements/attention_cluster.md`.

mod copy;
mod exchange;
#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
mod softmax;

#[cfg(not(target_arch = "nvptx64"))]
pub(super) use launcher::dynamic_shared_bytes;

use super::work::PrefillItem;
use crate::kv_cache::PAGE_SIZE;
use crate::tile::element::Operand16;
use crate::tile::smem::{PANEL_COLUMNS, SmemTile, tile_bytes};
use copy::{Cache, PageTable, Queries};
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, FragmentA, InFlight, Major, MnMajor};
use exchange::Exchange;
use half::{bf16, f16};
use softmax::{Mask, Softmax};

/// Queries of an item: the rows of an MMA.
pub const BLOCK_M: u32 = 64;

/// Keys of a chunk: as many as have their scores in registers.
const BLOCK_N: u32 = CHUNK_PAGES * PAGE_SIZE;
const CHUNK_PAGES: u32 = 4;

/// Keys of an MMA of `Q K^T`: half a chunk.
const MMA_N: u32 = BLOCK_N / 2;

/// Columns of a head: one panel of a tile.
const HEAD_DIM: u32 = PANEL_COLUMNS;

/// Elements of a 16-byte access.
const VEC_ELEMS: u32 = 8;

/// Keys of an MMA of `P V`.
const MMA_K: u32 = 16;

/// Registers of the accumulators: of the scores of half a chunk, and of the output.
const SCORE_REGS: usize = MMA_N as usize / 2;
const OUT_REGS: usize = HEAD_DIM as usize / 2;

/// Blocks of a cluster.
const CLUSTER: u32 = 2;

const NUM_THREADS: u32 = warp::WARPGROUP_SIZE;

/// Groups of copies of a chunk: the halves of K, then those of V. Q is in the first one.
const CHUNK_GROUPS: u32 = 4;

/// Offsets in shared memory, in bytes.
const K_AT: u32 = tile_bytes(BLOCK_M, HEAD_DIM);
const V_AT: u32 = K_AT + tile_bytes(BLOCK_N, HEAD_DIM);
const EXCHANGE_AT: u32 = V_AT + tile_bytes(BLOCK_N, HEAD_DIM);

/// Shared memory of a block.
const SHARED_BYTES: u32 = EXCHANGE_AT + Exchange::BYTES;

/// Waits until at most `pending` groups of copies are pending, in all threads; the MMAs may then
/// read what the others have copied.
#[inline(always)]
#[track_caller]
fn wait_for_copies(pending: u32) {
    cp_async::wait(pending);
    fence::proxy_async_shared();
    thread::sync_threads();
}

/// The block's tiles: `BLOCK_M` rows of Q, `BLOCK_N` of K and of V.
#[derive(Clone, Copy)]
struct Tiles<E> {
    q: SmemTile<E>,
    k: SmemTile<E>,
    v: SmemTile<E>,
}

impl<E: Operand16> Tiles<E> {
    /// The tiles at the start of `smem`.
    ///
    /// # Safety
    /// 1. `smem` is the block's dynamic shared memory, of `SHARED_BYTES`.
    #[inline(always)]
    unsafe fn new(smem: Shared<u8>) -> Self {
        let at = |bytes: u32| smem.offset(bytes).cast();
        // SAFETY: the caller's promise; each tile is a multiple of 1024 bytes.
        unsafe {
            Tiles {
                q: SmemTile::new(at(0), BLOCK_M),
                k: SmemTile::new(at(K_AT), BLOCK_N),
                v: SmemTile::new(at(V_AT), BLOCK_N),
            }
        }
    }

    /// Issues `Q K^T` for half `half` of the chunk's keys.
    ///
    /// # Safety
    /// 1. Q and these keys are copied, and nothing overwrites them until the MMAs are waited for.
    #[inline(always)]
    #[track_caller]
    unsafe fn start_scores(self, half: u32) -> InFlight<SCORE_REGS> {
        let (q, k) = (self.q.k_major(0), self.k.k_major(half * MMA_N));
        let mut scores = Accumulator::zero().start();
        unroll!(step in 0..4, {
            let at = self.q.column_step(step as u32);
            // SAFETY: the caller's promise.
            unsafe { scores.mma(q.advance(at), k.advance(at), step != 0) };
        });
        wgmma::commit();
        scores
    }

    /// Computes the probabilities of half `half` of the chunk's keys, and issues `P V` for them: of
    /// 32 keys while the next ones' are computed. The MMAs read the fragments that it returns.
    ///
    /// # Safety
    /// 1. Only the copies of V of later halves, and those of two more groups, are pending, and
    ///    nothing overwrites V until the MMAs are waited for.
    #[inline(always)]
    #[track_caller]
    unsafe fn add_values(
        self,
        scores: &[f32; SCORE_REGS],
        half: u32,
        softmax: &mut Softmax,
        out: &mut InFlight<OUT_REGS>,
    ) -> [[FragmentA<E>; 2]; 4]
    where
        MnMajor: Major<E>,
    {
        let first_step = half * MMA_N / MMA_K;
        let mut add_32_keys = |step: usize| {
            let first = softmax.probabilities::<E>(scores, 16 * step);
            let second = softmax.probabilities::<E>(scores, 16 * step + 8);
            let pair = [FragmentA::new(first), FragmentA::new(second)];
            if step == 0 {
                // Pending may be V's second half, or the next chunk's K.
                wait_for_copies(1 + half);
            }
            let v = self.v.mn_major();
            let [first, second] =
                [0, 1].map(|i| v.advance(self.v.row_step(first_step + 2 * step as u32 + i)));
            wgmma::fence();
            // SAFETY: the caller's promise; the half is copied.
            unsafe {
                out.mma_rs(&pair[0], first, true);
                out.mma_rs(&pair[1], second, true);
            }
            wgmma::commit();
            pair
        };
        // Not a loop: registers cannot be indexed.
        [add_32_keys(0), add_32_keys(1), add_32_keys(2), add_32_keys(3)]
    }
}

/// A cluster takes one item.
///
/// # Safety
/// 1. The step inputs are those of one step, and every view covers what they refer to; `q`, the
///    pools and `out` hold elements `E`, and every head is 16-byte aligned in them. There is room
///    for `gridDim.x / 2` items, of which `num_items` are valid; the block table has a row.
/// 2. `group_reciprocal` is 2^32 divided by the query heads of a KV head, rounded up; heads and the
///    heads of a group are fewer than 2^16. `window` is not 0, `softmax_scale` is above 0.
/// 3. `out` overlaps nothing that is read.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    cluster(CLUSTER, 1, 1),
    overlaps,
    instances(
        attention_prefill_cluster_f16_d64 = <f16>,
        attention_prefill_cluster_bf16_d64 = <bf16>
    )
)]
pub unsafe fn attention_prefill_cluster<E: Operand16>(
    num_items: Global<u32>,
    items: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    q: Global<()>,
    q_stride: u32,
    k_pool: Global<()>,
    v_pool: Global<()>,
    num_kv_heads: u32,
    group_reciprocal: u64,
    softmax_scale: f32,
    window: u32,
    out: GlobalMut<()>,
    out_stride: u32,
) where
    MnMajor: Major<E>,
{
    // 1. The work item, and the exchange's barrier while it is loaded.
    let (rank, index) = (cluster::block_rank(), thread::block_idx_x() / CLUSTER);
    // SAFETY: step inputs of one step, which no launch of it writes; items past the valid ones are
    // not used. The launch gives `SHARED_BYTES`.
    let (num_items, item, table, smem) = unsafe {
        let (num_items, item) = (num_items.get(0), PrefillItem::speculate(items, index));
        let table = PageTable::speculate(block_table, max_pages_per_seq);
        (num_items, item, table, dynamic_shared_mem::<u8>())
    };
    // SAFETY: as above; the cluster's barrier follows.
    let (tiles, exchange) = unsafe { (Tiles::new(smem), Exchange::new(smem.offset(EXCHANGE_AT))) };
    if thread::thread_idx_x() == 0 {
        exchange.init();
    }
    // Relaxed: the other block needs to see the barrier only, which the fence of `init` orders. A
    // release would wait for all loads.
    cluster::arrive_relaxed();
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if index >= num_items {
        cluster::wait();
        return;
    }

    // 2. The block's half of the keys, and the copies of its first chunk.
    let kv_head = ((u64::from(item.head) * group_reciprocal) >> 32) as u32;
    let half_keys = item.num_pages().div_ceil(CLUSTER) * PAGE_SIZE;
    let first_key = item.first_key + rank * half_keys;
    let end_key = item.end_key.min(first_key + half_keys);
    let cache = Cache { kv_head, num_kv_heads, table: table.of_seq(item.seq), end_key };
    let (k_pool, v_pool) = (k_pool.cast::<E>(), v_pool.cast::<E>());
    // SAFETY: the views cover what the item refers to; the tiles are read after a wait, and are
    // overwritten when all warps have read them.
    unsafe {
        let queries = Queries { gmem: q.cast::<E>(), row_stride: q_stride, rank };
        queries.copy_to(tiles.q, &item);
        let pages = cache.pages(first_key);
        cache.copy_chunk(k_pool, &pages, first_key, tiles.k);
        cache.copy_chunk(v_pool, &pages, first_key, tiles.v);
    }

    // 3. Main loop over chunks. Copies of the next one are issued when this one's tile is read.
    let mut softmax = Softmax::new(softmax_scale * LOG2_E);
    let (mut acc, mut key) = (Accumulator::<OUT_REGS>::zero(), first_key);
    loop {
        let has_next = key + BLOCK_N < end_key;
        let mask = Mask::new(&item, window, rank, key, end_key);
        // SAFETY: each tile is waited for before it is read. All threads have waited for the MMAs
        // that read a tile before it is overwritten.
        unsafe {
            wait_for_copies(CHUNK_GROUPS - 1);
            let first = tiles.start_scores(0);
            wait_for_copies(CHUNK_GROUPS - 2);
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
            let _first = tiles.add_values(&first, 0, &mut softmax, &mut out);
            // A barrier after the waits for the scores is passed: K is read.
            if has_next {
                cache.copy_chunk(k_pool, &cache.pages(key + BLOCK_N), key + BLOCK_N, tiles.k);
            } else {
                cp_async::commit();
                cp_async::commit();
            }
            let _second = tiles.add_values(&second, 1, &mut softmax, &mut out);
            // The rows' sums, while the last MMAs run.
            softmax.sum_rows();
            acc = out.wait::<0>();
            if !has_next {
                break;
            }
            key += BLOCK_N;
            thread::sync_threads();
            cache.copy_chunk(v_pool, &cache.pages(key), key, tiles.v);
        }
    }

    // 4. The exchange: this block finishes the first of the thread's two rows, and the other block
    //    the second one.
    cluster::wait();
    let (scale, lse) = softmax.finish();
    let values = acc.values();
    let row = |half: usize, pair: usize| {
        let at = 4 * pair + 2 * half;
        [values[at] * scale[half], values[at + 1] * scale[half]]
    };
    let packed = |half: usize| {
        [0, 1, 2, 3, 4, 5, 6, 7].map(|pair| {
            let [lo, hi] = row(half, pair);
            E::pack(lo, hi)
        })
    };
    // SAFETY: the barrier of the cluster is passed; a row that exists is the item's.
    unsafe {
        exchange.send(rank ^ 1, packed(1), lse[1]);
        let own = [0, 1, 2, 3, 4, 5, 6, 7].map(|pair| row(0, pair));
        let [a, b, c, d, e, f, g, h] = exchange.combine::<E>(own, lse[0]);
        // Of every eight columns the thread has two: the quad's threads swap them for eight in a
        // row, twice.
        let vecs = [[a, b, c, d], [e, f, g, h]].map(exchange::transpose);
        let query = copy::query_of_row(softmax::row(0), rank);
        if query < item.queries {
            let at = (item.first_token + query) as usize * out_stride as usize;
            let column = item.head * HEAD_DIM + warp::lane_id() % 4 * VEC_ELEMS;
            let row = out.cast::<E>().add(at + column as usize).cast::<u32>();
            row.set_vec(0, vecs[0]);
            row.set_vec(HEAD_DIM as usize / 4, vecs[1]);
        }
    }
}
