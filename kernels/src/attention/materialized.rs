//! Attention in three kernels that store the score matrix, to compare with the fused ones:
//! `scores[t, h, j] = softmax_scale * q[t, h] . k[j]`, `probabilities[t, h] = softmax(scores[t,
//! h])`, `out[t, h] = sum_j probabilities[t, h, j] * v[j]`, over the keys j that token t sees.
//!
//! Shapes    q, out `[num_tokens, num_heads * head_dim]` with row strides; scores f32 and
//!           probabilities `[num_tokens, num_heads, max_pages_per_seq * PAGE_SIZE]`, of which keys
//!           that a token does not see are neither written nor read; pools as in
//!           [`kv_cache`](crate::kv_cache); q, probabilities, pools and out of one type.
//! Launch    scores: grid `(max_tokens, num_kv_heads, max_pages_per_seq)`; softmax, values: grid
//!           `(max_tokens, num_heads, 1)`; block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32 inside; probabilities and out are rounded once. A token's bits depend on its keys
//!           alone.
//! Bound     memory: each score is written and read, and each probability.
//! Source    arXiv:1706.03762.
//!
//! A group of lanes shares a key: each loads `VEC_ELEMS` of its columns.

use crate::element::{Columns, Number, VEC_ELEMS};
use crate::kv_cache::{PAGE_SIZE, row_start};
use crate::softcap::tanh;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads and warps of a block.
const NUM_THREADS: u32 = 128;
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Most columns of a head.
const MAX_HEAD_DIM: u32 = warp::WARP_SIZE * VEC_ELEMS;

/// Least lanes of a key: the keys of a page are whole rounds of the block.
const MIN_KEY_LANES: u32 = NUM_THREADS / PAGE_SIZE;

/// The columns that a lane holds.
type Vector = [f32; VEC_ELEMS as usize];

/// A thread's share of a key: `columns` of the keys `first_key + i * num_keys`.
#[derive(Clone, Copy)]
struct KeyLane {
    /// Lanes of a key, a power of two.
    key_lanes: u32,
    /// Which of them this is.
    lane: u32,
    /// The first of the block's keys that this lane takes.
    first_key: u32,
    /// Keys that the block takes at once.
    num_keys: u32,
    columns: Columns,
}

impl KeyLane {
    #[inline(always)]
    fn new(key_lanes: u32, head_dim: u32, aligned: u32) -> Self {
        let thread = thread::thread_idx_x();
        let (lane, log2) = (thread & (key_lanes - 1), key_lanes.trailing_zeros());
        KeyLane {
            key_lanes,
            lane,
            first_key: thread >> log2,
            num_keys: NUM_THREADS >> log2,
            columns: Columns::new(lane * VEC_ELEMS, head_dim, aligned != 0),
        }
    }

    /// The sum of `value` over the lanes of a key.
    #[inline(always)]
    fn sum(&self, mut value: f32) -> f32 {
        let mut distance = self.key_lanes / 2;
        while distance > 0 {
            value += warp::shuffle_xor(value, distance);
            distance /= 2;
        }
        value
    }
}

/// A token of the step, and the keys that it sees: `first_key .. end_key`.
#[derive(Clone, Copy)]
struct Token {
    seq: u32,
    first_key: u32,
    end_key: u32,
}

impl Token {
    /// Token `token`; without a window that is `u32::MAX`.
    ///
    /// # Safety
    /// 1. `token` is one of the step's, whose inputs are `seq_ids`, `cu_seqlens_q` and `kv_lens`.
    #[inline(always)]
    unsafe fn new(
        token: u32,
        seq_ids: Global<u32>,
        cu_seqlens_q: Global<u32>,
        kv_lens: Global<u32>,
        causal: u32,
        window: u32,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let seq = seq_ids.get(token as usize);
            let kv_len = kv_lens.get(seq as usize);
            let after_own = kv_len - (cu_seqlens_q.get(seq as usize + 1) - 1 - token);
            let end_key = match causal {
                0 => after_own.saturating_add(window - 1).min(kv_len),
                _ => after_own,
            };
            Token { seq, first_key: after_own.saturating_sub(window), end_key }
        }
    }
}

/// Index of the first score of `head` of `token`.
#[inline(always)]
fn score_row(token: u32, head: u32, num_heads: u32, max_pages_per_seq: u32) -> usize {
    let row = token as usize * num_heads as usize + head as usize;
    row * max_pages_per_seq as usize * PAGE_SIZE as usize
}

/// A token's scores of a page of keys, for all query heads of one KV head.
///
/// # Safety
/// 1. `num_tokens` is one element; `seq_ids`, `cu_seqlens_q`, `kv_lens` and `block_table` are those
///    of a step of so many tokens. `q` holds that many rows at its stride, `scores` that many.
/// 2. The pool holds the pages of the step's sequences, with all keys that their tokens see.
/// 3. `scores` overlaps nothing that is read.
/// 4. `key_lanes` is a power of two from `MIN_KEY_LANES` to 32, and times 8 at least `head_dim`. If
///    `aligned` is not 0, each head is 16-byte aligned in `q` and in the pool.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        attention_scores_f32 = <f32>,
        attention_scores_f16 = <f16>,
        attention_scores_bf16 = <bf16>
    )
)]
pub unsafe fn attention_scores<E: Number>(
    num_tokens: Global<u32>,
    seq_ids: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    q: Global<()>,
    q_stride: u32,
    k_pool: Global<()>,
    scores: GlobalMut<f32>,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    key_lanes: u32,
    softmax_scale: f32,
    causal: u32,
    window: u32,
    aligned: u32,
    softcap: f32,
) {
    let (token_idx, kv_head) = (thread::block_idx_x(), thread::block_idx_y());
    let page_idx = thread::block_idx_z();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: tokens, heads and keys are inside, by the checks here; there is no launch without a
    // KV head.
    unsafe {
        core::hint::assert_unchecked(num_kv_heads > 0);
        if token_idx >= num_tokens {
            return;
        }
        let token = Token::new(token_idx, seq_ids, cu_seqlens_q, kv_lens, causal, window);
        let page_start = page_idx * PAGE_SIZE;
        if page_start >= token.end_key || page_start + PAGE_SIZE <= token.first_key {
            return;
        }
        let page = token.seq as usize * max_pages_per_seq as usize + page_idx as usize;
        let page = block_table.get(page);
        let lane = KeyLane::new(key_lanes, head_dim, aligned);
        let group = num_heads / num_kv_heads;
        let q = q.cast::<E>().add(token_idx as usize * q_stride as usize);
        let k_pool = k_pool.cast::<E>();

        // One condition for all threads: they meet in the sums.
        let mut first_row = 0;
        while first_row < PAGE_SIZE {
            let row = first_row + lane.first_key;
            let key = page_start + row;
            let is_visible = key >= token.first_key && key < token.end_key;
            let mut k: Vector = [0.0; VEC_ELEMS as usize];
            if is_visible {
                let start = row_start(page, row, kv_head, num_kv_heads, head_dim);
                k = lane.columns.load(k_pool.add(start));
            }
            for head in kv_head * group..(kv_head + 1) * group {
                let q: Vector = lane.columns.load(q.add(head as usize * head_dim as usize));
                let mut dot = 0.0;
                for i in 0..VEC_ELEMS as usize {
                    dot = math::fma(q[i], k[i], dot);
                }
                let dot = lane.sum(dot);
                if lane.lane == 0 && is_visible {
                    let row = score_row(token_idx, head, num_heads, max_pages_per_seq);
                    let score = if softcap > 0.0 { tanh(dot * softcap) } else { dot };
                    scores.set(row + key as usize, softmax_scale * score);
                }
            }
            first_row += lane.num_keys;
        }
    }
}

/// The softmax of a head's scores of one token.
///
/// # Safety
/// 1. The step inputs are as in [`attention_scores()`]; `scores` and `probabilities` hold
///    `num_tokens` rows of `num_heads` heads, and the scores are written of the keys that a token
///    sees.
/// 2. `probabilities` overlaps nothing that is read. `sinks` holds a number for each query head, or is
///    null.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        attention_softmax_f32 = <f32>,
        attention_softmax_f16 = <f16>,
        attention_softmax_bf16 = <bf16>
    )
)]
pub unsafe fn attention_softmax<E: Number>(
    num_tokens: Global<u32>,
    seq_ids: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    max_pages_per_seq: u32,
    scores: Global<f32>,
    probabilities: GlobalMut<()>,
    num_heads: u32,
    causal: u32,
    window: u32,
    sinks: Global<f32>,
) {
    let (token_idx, head) = (thread::block_idx_x(), thread::block_idx_y());
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: keys are inside, by the loops' bounds; the barriers are reached by all threads.
    unsafe {
        if token_idx >= num_tokens {
            return;
        }
        let token = Token::new(token_idx, seq_ids, cu_seqlens_q, kv_lens, causal, window);
        let row = score_row(token_idx, head, num_heads, max_pages_per_seq);
        let (scores, probabilities) = (scores.add(row), probabilities.cast::<E>().add(row));
        let first_key = token.first_key + thread::thread_idx_x();

        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
        let mut key = first_key;
        while key < token.end_key {
            let score = scores.get(key as usize) * LOG2_E;
            let new_max = math::max(max, score);
            sum = sum * math::exp2_approx(max - new_max) + math::exp2_approx(score - new_max);
            max = new_max;
            key += NUM_THREADS;
        }
        let block_max = block_reduce(max, math::max);
        // A thread without a key has a sum of 0.
        let rescale = if max == block_max { 1.0 } else { math::exp2_approx(max - block_max) };
        let mut total = block_reduce(sum * rescale, |a, b| a + b);
        if !sinks.is_null() {
            total += math::exp2_approx(sinks.get(head as usize) * LOG2_E - block_max);
        }
        let reciprocal = 1.0 / total;

        let mut key = first_key;
        while key < token.end_key {
            let score = scores.get(key as usize) * LOG2_E;
            let probability = math::exp2_approx(score - block_max) * reciprocal;
            probabilities.set(key as usize, E::from_f32(probability));
            key += NUM_THREADS;
        }
    }
}

/// `value` of all threads of the block, combined.
///
/// # Safety
/// 1. All threads of the block call this.
#[inline(always)]
unsafe fn block_reduce(mut value: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    for bit in 0..warp::WARP_SIZE.ilog2() {
        value = combine(value, warp::shuffle_xor(value, 1 << bit));
    }
    // SAFETY: the barriers separate the writes from the reads, and these from those of the next
    // call.
    unsafe {
        let warps = shared_array![f32; NUM_WARPS as usize];
        if warp::lane_id() == 0 {
            warps.set(warp::warp_idx(), value);
        }
        thread::sync_threads();
        let mut total = warps.get(0);
        for warp_idx in 1..NUM_WARPS {
            total = combine(total, warps.get(warp_idx));
        }
        thread::sync_threads();
        total
    }
}

/// A head's output of one token.
///
/// # Safety
/// 1. The step inputs, the pool and `key_lanes` are as in [`attention_scores()`]; `probabilities`
///    are written of the keys that a token sees; `out` holds `num_tokens` rows at its stride.
/// 2. `out` overlaps nothing that is read.
/// 3. If `aligned` is not 0, each head is 16-byte aligned in `out` and in the pool.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        attention_values_f32 = <f32>,
        attention_values_f16 = <f16>,
        attention_values_bf16 = <bf16>
    )
)]
pub unsafe fn attention_values<E: Number>(
    num_tokens: Global<u32>,
    seq_ids: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    probabilities: Global<()>,
    v_pool: Global<()>,
    out: GlobalMut<()>,
    out_stride: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    key_lanes: u32,
    causal: u32,
    window: u32,
    aligned: u32,
) {
    let (token_idx, head) = (thread::block_idx_x(), thread::block_idx_y());
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: keys are inside, by the loop's bounds; partial sums are read after the barrier; there
    // is no launch without a head.
    unsafe {
        core::hint::assert_unchecked(num_heads > 0);
        if token_idx >= num_tokens {
            return;
        }
        let token = Token::new(token_idx, seq_ids, cu_seqlens_q, kv_lens, causal, window);
        let lane = KeyLane::new(key_lanes, head_dim, aligned);
        let kv_head = head * num_kv_heads / num_heads;
        let row = score_row(token_idx, head, num_heads, max_pages_per_seq);
        let probabilities = probabilities.cast::<E>().add(row);
        let pages = block_table.add(token.seq as usize * max_pages_per_seq as usize);
        let v_pool = v_pool.cast::<E>();

        // 1. A lane's keys, in order.
        let mut acc: Vector = [0.0; VEC_ELEMS as usize];
        let mut key = token.first_key + lane.first_key;
        while key < token.end_key {
            let page = pages.get((key / PAGE_SIZE) as usize);
            let start = row_start(page, key % PAGE_SIZE, kv_head, num_kv_heads, head_dim);
            let v: Vector = lane.columns.load(v_pool.add(start));
            let probability = probabilities.get(key as usize).to_f32();
            for i in 0..VEC_ELEMS as usize {
                acc[i] = math::fma(probability, v[i], acc[i]);
            }
            key += lane.num_keys;
        }

        // 2. The lanes that hold the same columns, in order.
        let partials = shared_array![f32; (NUM_THREADS * VEC_ELEMS) as usize];
        for i in 0..VEC_ELEMS {
            partials.set(i * NUM_THREADS + thread::thread_idx_x(), acc[i as usize]);
        }
        thread::sync_threads();
        if lane.first_key > 0 {
            return;
        }
        for other in 1..lane.num_keys {
            for i in 0..VEC_ELEMS {
                acc[i as usize] += partials.get(i * NUM_THREADS + other * key_lanes + lane.lane);
            }
        }
        let start = token_idx as usize * out_stride as usize + head as usize * head_dim as usize;
        lane.columns.store(out.cast::<E>().add(start), acc);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{MaterializedAttention, TokenInputs};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
