//! Attention prefill in f32: causal softmax attention of each sequence's new tokens against its pages of the cache.
//!
//! Shapes    q, out `[num_tokens, num_heads * head_dim]` with row strides; pools
//!           `[num_pages, num_kv_heads, PAGE_SIZE, head_dim]`; cu_seqlens_q `[num_seqs + 1]`; kv_lens `[num_seqs]`;
//!           block_table `[num_seqs, max_pages_per_seq]`; head_dim at most `CHUNKS * 32`, smaller ones padded with zeros.
//! Launch    grid `(tiles of BLOCK_M queries of a sequence, num_heads, 1)`, block `(NUM_THREADS, 1, 1)`; a warp takes 16
//!           queries.
//! Numerics  f32, online softmax in base 2; keys are visited in order, in tiles of 32.
//! Bound     FMA: `2 * head_dim` a query, key and head.
//! Source    arXiv:2205.14135; paged cache: arXiv:2309.06180.

use super::tile::{
    BLOCK_N, CHUNK, Cache, LANES_M, LANES_N, Lane, MAX_WARP_ROWS, NUM_THREADS, NUM_WARPS, P_ELEMS,
    Softmax, Source, scores,
};
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;

/// Queries of a block, and of a lane.
pub(super) const BLOCK_M: u32 = NUM_WARPS * MAX_WARP_ROWS;
const ROWS: usize = (MAX_WARP_ROWS / LANES_M) as usize;

/// Keys of a lane.
const KEYS: usize = (BLOCK_N / LANES_N) as usize;

/// Shared memory of a block: Q, K, V, and the probabilities of each warp.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const fn shared_bytes(chunks: usize) -> usize {
    let rows = (BLOCK_M + 2 * BLOCK_N) as usize;
    4 * (rows * chunks * CHUNK as usize + (NUM_WARPS * P_ELEMS) as usize)
}

/// The tile of queries that a block computes.
struct QueryTile {
    seq: u32,
    /// Row of the batch of its first query.
    first_token: u32,
    /// Queries of it that exist.
    queries: u32,
    /// Position of its first query.
    first_position: u32,
}

impl QueryTile {
    /// The tile with number `tile` of all sequences', the last tile of a sequence, which has most keys, first.
    ///
    /// # Safety
    /// 1. `num_seqs` is one element; `cu_seqlens_q` and `kv_lens` hold that many, and one more.
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

/// One tile of queries of one head a block.
///
/// # Safety
/// 1. The step inputs are those of one step, and every view holds what they ask for.
/// 2. `head_dim` is at most `32 * CHUNKS`; `num_kv_heads` divides `num_heads`, `window` is not 0.
/// 3. If `aligned` is not 0, `head_dim` and `q_stride` are multiples of 4 and the views 16-byte aligned.
/// 4. `out` overlaps nothing that is read.
#[kernel(
    launch_bounds(NUM_THREADS, 2),
    instances(
        attention_prefill_f32_d64 = <2>,
        attention_prefill_f32_d96 = <3>,
        attention_prefill_f32_d128 = <4>,
        attention_prefill_f32_d256 = <8>
    )
)]
pub unsafe fn attention_prefill_f32<const CHUNKS: usize>(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    q: Global<f32>,
    q_stride: u32,
    k_pool: Global<f32>,
    v_pool: Global<f32>,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    aligned: u32,
    softmax_scale: f32,
    window: u32,
    out: GlobalMut<f32>,
    out_stride: u32,
) {
    // 1. What this block computes.
    // SAFETY: step inputs of one step.
    let found = unsafe { QueryTile::find(thread::block_idx_x(), num_seqs, cu_seqlens_q, kv_lens) };
    let Some(QueryTile { seq, first_token, queries, first_position }) = found else { return };
    let head = thread::block_idx_y();
    let aligned = aligned != 0;
    // SAFETY: launches have KV heads, and a multiple of query heads.
    unsafe { core::hint::assert_unchecked(num_kv_heads > 0 && num_heads >= num_kv_heads) };
    let kv_head = head / (num_heads / num_kv_heads);
    let cache = Cache { num_kv_heads, kv_head, head_dim, aligned };
    // SAFETY: the sequence's row of the table.
    let pages = unsafe { block_table.add(seq as usize * max_pages_per_seq as usize) };
    let end_key = first_position + queries;
    let first_key = (first_position + 1).saturating_sub(window) / BLOCK_N * BLOCK_N;

    let (lane, warp_idx) = (Lane::of_this_thread(), warp::warp_idx());
    let warp_row = warp_idx * MAX_WARP_ROWS;
    let mut softmax = Softmax::<ROWS, CHUNKS>::new();
    // SAFETY: the launch gives `shared_bytes`; each tile is waited for, and a barrier passed, before it is read, and a
    // barrier is passed after its last read, before it is overwritten.
    unsafe {
        let smem_q = dynamic_shared_mem::<f32>();
        let smem_k = smem_q.offset(BLOCK_M * CHUNK * CHUNKS as u32);
        let smem_v = smem_k.offset(BLOCK_N * CHUNK * CHUNKS as u32);
        let smem_p = smem_v.offset(BLOCK_N * CHUNK * CHUNKS as u32).offset(warp_idx * P_ELEMS);
        let copy = |pool: Global<f32>, key: u32, smem: Shared<f32>| {
            Source::cache(pool, pages, key, end_key, &cache).copy_to::<CHUNKS>(smem, BLOCK_N);
            cp_async::commit();
        };

        // 2. Q and the first K are one group, the first V the next.
        let from = first_token as usize * q_stride as usize + (head * head_dim) as usize;
        let gmem = q.add(from);
        Source { gmem, row_stride: q_stride, rows: queries, head_dim, aligned }
            .copy_to::<CHUNKS>(smem_q, BLOCK_M);
        copy(k_pool, first_key, smem_k);
        copy(v_pool, first_key, smem_v);

        // 3. Keys. The next K arrives during the softmax and P V, the next V during Q K^T.
        let mut key = first_key;
        while key < end_key {
            cp_async::wait(1);
            thread::sync_threads();
            let mut scores = scores::<ROWS, KEYS>(
                head_dim,
                smem_q.offset(warp_row * CHUNK),
                BLOCK_M,
                smem_k,
                lane,
            );
            thread::sync_threads();
            copy(k_pool, key + BLOCK_N, smem_k);
            for i in 0..ROWS {
                let position = first_position + warp_row + lane.m + LANES_M * i as u32;
                for j in 0..KEYS {
                    let key = key + lane.n + LANES_N * j as u32;
                    let visible = key <= position && position - key < window;
                    let score = scores[i][j] * (softmax_scale * LOG2_E);
                    scores[i][j] = if visible { score } else { f32::NEG_INFINITY };
                }
            }
            softmax.update::<KEYS>(&scores, smem_p, lane);
            cp_async::wait(1);
            thread::sync_threads();
            softmax.accumulate::<KEYS>(smem_p, smem_v, lane);
            thread::sync_threads();
            copy(v_pool, key + BLOCK_N, smem_v);
            key += BLOCK_N;
        }

        // 4. Output.
        unroll!(i in 0..ROWS, {
            let row = warp_row + lane.m + LANES_M * i as u32;
            let total = softmax.total(i);
            let scale = if total > 0.0 { math::rcp_approx(total) } else { 0.0 };
            let to = (first_token + row) as usize * out_stride as usize + (head * head_dim) as usize;
            for (chunk, values) in softmax.out[i].iter().enumerate() {
                for (d, value) in values.iter().enumerate() {
                    let column = CHUNK * chunk as u32 + 4 * lane.n + d as u32;
                    if row < queries && column < head_dim {
                        out.set(to + column as usize, value * scale);
                    }
                }
            }
        });
    }
}
