//! Attention decode in f32: the one new token of each sequence against its pages of the cache, split over the keys.
//!
//! Shapes    q, out `[num_seqs, num_heads * head_dim]` with row strides; the cache as in prefill; partial results
//!           `[max_seqs, num_heads, num_splits, head_dim]` and `[max_seqs, num_heads, num_splits, 2]`.
//! Launch    splits: grid `(num_splits, num_kv_heads * groups of 4 * ROWS heads, max_seqs)`, block `(NUM_THREADS, 1, 1)`: the
//!           query heads of a KV head are the rows of a tile, so that K and V are read once for all of them; each warp
//!           takes eight keys of every 32. Then the combination: grid `(num_heads, max_seqs, 1)`.
//! Numerics  f32, online softmax in base 2. Splits start at multiples of `split_len` keys, which depends on the plan's bounds
//!           alone, so that a sequence's result does not depend on the batch.
//! Bound     memory: `8 * head_dim` bytes a key and KV head.
//! Source    flash-decoding (T. Dao et al., 2023).

use super::tile::{
    BLOCK_N, CHUNK, Cache, LANES_M, LANES_N, Lane, NUM_THREADS, NUM_WARPS, P_ELEMS, Softmax,
    Source, scores,
};
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;

/// Stages of K and V.
const NUM_STAGES: u32 = 2;

/// Shared memory of a block: Q, the stages of K and V, and the probabilities of each warp.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const fn shared_bytes(rows: usize, chunks: usize) -> usize {
    let tile_rows = LANES_M as usize * rows + (NUM_STAGES * 2 * BLOCK_N) as usize;
    4 * (tile_rows * chunks * CHUNK as usize + (NUM_WARPS * P_ELEMS) as usize)
}

// The warps' partial results and their statistics take the place of the stages.
const _: () = assert!(NUM_WARPS * 16 * (CHUNK + 2) <= NUM_STAGES * 2 * BLOCK_N * CHUNK);

/// One split of the keys of one sequence, for up to `4 * ROWS` of a KV head's query heads, a block.
///
/// # Safety
/// 1. The step inputs are those of one step with at most one new token a sequence, and every view holds what they ask for.
/// 2. `head_dim` is at most `32 * CHUNKS`; `num_kv_heads` divides `num_heads`; `window` is not 0, `split_len` a multiple of
///    32, and `grid_dim_x` splits are enough for every sequence.
/// 3. If `aligned` is not 0, `head_dim` and `q_stride` are multiples of 4 and the views 16-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 2),
    instances(
        attention_decode_f32_r4_d64 = <1, 2>,
        attention_decode_f32_r4_d96 = <1, 3>,
        attention_decode_f32_r4_d128 = <1, 4>,
        attention_decode_f32_r4_d256 = <1, 8>,
        attention_decode_f32_r8_d64 = <2, 2>,
        attention_decode_f32_r8_d96 = <2, 3>,
        attention_decode_f32_r8_d128 = <2, 4>,
        attention_decode_f32_r8_d256 = <2, 8>,
        attention_decode_f32_r16_d64 = <4, 2>,
        attention_decode_f32_r16_d96 = <4, 3>,
        attention_decode_f32_r16_d128 = <4, 4>,
        attention_decode_f32_r16_d256 = <4, 8>
    )
)]
pub unsafe fn attention_decode_f32<const ROWS: usize, const CHUNKS: usize>(
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
    split_len: u32,
    partial_out: GlobalMut<f32>,
    partial_stats: GlobalMut<f32>,
) {
    let block_rows = const { LANES_M * ROWS as u32 };
    let (split, seq) = (thread::block_idx_x(), thread::block_idx_z());

    // 1. What this block computes: keys `first_key .. end_key`, query heads `first_head .. first_head + heads`.
    // SAFETY: step inputs of one step; launches have KV heads, and a multiple of query heads.
    let (token, kv_len) = unsafe {
        core::hint::assert_unchecked(num_kv_heads > 0 && num_heads >= num_kv_heads);
        if seq >= num_seqs.get(0) {
            return;
        }
        let token = cu_seqlens_q.get(seq as usize);
        if cu_seqlens_q.get(seq as usize + 1) == token {
            return;
        }
        (token, kv_lens.get(seq as usize))
    };
    let group = num_heads / num_kv_heads;
    let blocks_per_group = group.div_ceil(block_rows);
    let (kv_head, group_block) =
        (thread::block_idx_y() / blocks_per_group, thread::block_idx_y() % blocks_per_group);
    let first_head = kv_head * group + group_block * block_rows;
    let heads = (group - group_block * block_rows).min(block_rows);
    let first_visible = kv_len.saturating_sub(window);
    let end_key = (split * split_len).saturating_add(split_len).min(kv_len);
    let first_key = (split * split_len).max(first_visible / BLOCK_N * BLOCK_N);
    if first_key >= end_key {
        return;
    }

    let aligned = aligned != 0;
    let cache = Cache { num_kv_heads, kv_head, head_dim, aligned };
    let (lane, warp_idx) = (Lane::of_this_thread(), warp::warp_idx());
    let warp_key = warp_idx * LANES_N;
    let mut softmax = Softmax::<ROWS, CHUNKS>::new();
    // SAFETY: the launch gives `shared_bytes`; each tile is waited for, and a barrier passed, before it is read; a stage is
    // overwritten one barrier after its last read.
    unsafe {
        let pages = block_table.add(seq as usize * max_pages_per_seq as usize);
        let smem_q = dynamic_shared_mem::<f32>();
        let smem_kv = smem_q.offset(block_rows * CHUNK * CHUNKS as u32);
        let tile_elems = BLOCK_N * CHUNK * CHUNKS as u32;
        let smem_p = smem_kv.offset(NUM_STAGES * 2 * tile_elems).offset(warp_idx * P_ELEMS);
        let copy_stage = |stage_idx: u32, key: u32| {
            let smem_k = smem_kv.offset(stage_idx * 2 * tile_elems);
            Source::cache(k_pool, pages, key, end_key, &cache).copy_to::<CHUNKS>(smem_k, BLOCK_N);
            Source::cache(v_pool, pages, key, end_key, &cache)
                .copy_to::<CHUNKS>(smem_k.offset(tile_elems), BLOCK_N);
            cp_async::commit();
        };

        // 2. Q and the first K and V are one group.
        let gmem = q.add(token as usize * q_stride as usize + (first_head * head_dim) as usize);
        Source { gmem, row_stride: head_dim, rows: heads, head_dim, aligned }
            .copy_to::<CHUNKS>(smem_q, block_rows);
        copy_stage(0, first_key);

        // 3. Keys.
        let mut stage_idx = 0;
        let mut key = first_key;
        while key < end_key {
            cp_async::wait(0);
            thread::sync_threads();
            copy_stage(stage_idx ^ 1, key + BLOCK_N);
            let smem_k = smem_kv.offset(stage_idx * 2 * tile_elems + warp_key * CHUNK);
            let mut scores = scores::<ROWS, 1>(head_dim, smem_q, block_rows, smem_k, lane);
            let lane_key = key + warp_key + lane.n;
            for score in &mut scores {
                let visible = first_visible <= lane_key && lane_key < end_key;
                let scaled = score[0] * (softmax_scale * LOG2_E);
                score[0] = if visible { scaled } else { f32::NEG_INFINITY };
            }
            softmax.update::<1>(&scores, smem_p, lane);
            softmax.accumulate::<1>(smem_p, smem_k.offset(tile_elems), lane);
            stage_idx ^= 1;
            key += BLOCK_N;
        }

        // 4. The warps' results go to shared memory: outputs `[NUM_WARPS, block_rows, CHUNKS * CHUNK]`, then maxima and
        // sums `[NUM_WARPS, block_rows]` each.
        cp_async::wait(0);
        thread::sync_threads();
        let width = CHUNK * CHUNKS as u32;
        let smem_out = smem_kv;
        let smem_max = smem_out.offset(NUM_WARPS * block_rows * width);
        let smem_sum = smem_max.offset(NUM_WARPS * block_rows);
        unroll!(i in 0..ROWS, {
            let row = warp_idx * block_rows + lane.m + LANES_M * i as u32;
            let total = softmax.total(i);
            if lane.n == 0 {
                smem_max.set(row, softmax.max[i]);
                smem_sum.set(row, total);
            }
            for (chunk, values) in softmax.out[i].iter().enumerate() {
                for (d, value) in values.iter().enumerate() {
                    let column = CHUNK * chunk as u32 + 4 * lane.n + d as u32;
                    smem_out.set(row * width + column, *value);
                }
            }
        });
        thread::sync_threads();

        // 5. Their combination is the split's.
        let mut i = thread::thread_idx_x();
        while i < heads * width {
            let (row, column) = (i / width, i % width);
            let mut max = f32::NEG_INFINITY;
            for warp in 0..NUM_WARPS {
                max = math::max(max, smem_max.get(warp * block_rows + row));
            }
            let (mut sum, mut value) = (0.0, 0.0);
            for warp in 0..NUM_WARPS {
                let row = warp * block_rows + row;
                // A split has a visible key, so that `max` is finite.
                let weight = math::exp2_approx(smem_max.get(row) - max);
                sum = math::fma(weight, smem_sum.get(row), sum);
                value = math::fma(weight, smem_out.get(row * width + column), value);
            }
            let head = seq as usize * num_heads as usize + (first_head + row) as usize;
            let to = head * thread::grid_dim_x() as usize + split as usize;
            if column < head_dim {
                partial_out.set(to * head_dim as usize + column as usize, value);
            }
            if column == 0 {
                partial_stats.set(to * 2, max);
                partial_stats.set(to * 2 + 1, sum);
            }
            i += NUM_THREADS;
        }
    }
}

/// The splits of one head of one sequence a block, combined in their order.
///
/// # Safety
/// 1. [`attention_decode_f32`] ran before with the same step inputs, `num_heads` as this grid's x, and splits.
#[kernel(launch_bounds(NUM_THREADS, 1))]
pub unsafe fn attention_combine_f32(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    head_dim: u32,
    window: u32,
    split_len: u32,
    num_splits: u32,
    partial_out: Global<f32>,
    partial_stats: Global<f32>,
    out: GlobalMut<f32>,
    out_stride: u32,
) {
    let (head, seq) = (thread::block_idx_x(), thread::block_idx_y());
    // SAFETY: splits from the first to the last with a visible key were written.
    unsafe {
        core::hint::assert_unchecked(split_len > 0);
        if seq >= num_seqs.get(0) {
            return;
        }
        let token = cu_seqlens_q.get(seq as usize);
        if cu_seqlens_q.get(seq as usize + 1) == token {
            return;
        }
        let kv_len = kv_lens.get(seq as usize);
        let first = kv_len.saturating_sub(window) / split_len;
        let end = kv_len.div_ceil(split_len);
        let row =
            (seq as usize * thread::grid_dim_x() as usize + head as usize) * num_splits as usize;

        let mut max = f32::NEG_INFINITY;
        for split in first..end {
            max = math::max(max, partial_stats.get((row + split as usize) * 2));
        }
        let mut column = thread::thread_idx_x();
        while column < head_dim {
            let (mut sum, mut value) = (0.0, 0.0);
            for split in first..end {
                let from = row + split as usize;
                let weight = math::exp2_approx(partial_stats.get(from * 2) - max);
                sum = math::fma(weight, partial_stats.get(from * 2 + 1), sum);
                let partial = partial_out.get(from * head_dim as usize + column as usize);
                value = math::fma(weight, partial, value);
            }
            let scale = if sum > 0.0 { math::rcp_approx(sum) } else { 0.0 };
            let to = token as usize * out_stride as usize + (head * head_dim + column) as usize;
            out.set(to, value * scale);
            column += NUM_THREADS;
        }
    }
}
