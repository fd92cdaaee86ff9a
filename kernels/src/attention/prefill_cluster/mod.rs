//! Attention prefill for few tiles: the keys of a tile are split over the two blocks of a cluster.
//!
//! Shapes    q, out `[num_tokens, num_heads * 64]` with row strides; pools `[num_pages,
//!           num_kv_heads, PAGE_SIZE, 64]`; all f16 or bf16, 16-byte aligned. In FP8 q and pools
//!           E4M3, the pages of V transposed, out f16; q_scale `[num_heads]`, k_scale and v_scale
//!           `[num_kv_heads]` f32. items `[num_items]` of
//!           [`PrefillItem`](super::work::PrefillItem), of up to 64 queries; block_table
//!           `[num_seqs, max_pages_per_seq]`.
//! Launch    grid `(2 * max_items, 1, 1)` in clusters of two blocks; block `(128, 1, 1)`, in FP8
//!           strict `(256, 1, 1)`.
//! Numerics  f32; softmax in base 2, online from one chunk of 256 keys to the next.
//!           Probabilities are rounded, and so is the part of the output that a block sends. FP8:
//!           `value = scale * quant`; `P V` in f16 (strict) or E4M3 (fast, 2.6 % of each P).
//! Bound     latency: a launch, one round of loads, the MMAs and exponentials of 64 x 256 scores,
//!           one exchange.
//! Source    arXiv:2205.14135; split keys: Flash-Decoding (PyTorch, 2023).
//!
//! A block's warpgroup takes half of the item's pages, in chunks of four, whose loads it issues at
//! once; of a chunk it computes all scores, the maximum of each row, and then the exponentials,
//! while the MMAs of `P V` run. Each block finishes half of the rows: it sends the other half of its
//! output, normalised, with its `lse`, to the other block's shared memory. In FP8 strict a second
//! warpgroup converts V to f16 meanwhile.
//!
//! Measurements: `docs/measurements/attention_cluster.md`.

mod attend;
mod converter;
mod copy;
mod exchange;
mod fp8;
#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
mod operands;
mod softmax;

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Fp8Operands;
#[cfg(not(target_arch = "nvptx64"))]
pub(super) use launcher::dynamic_shared_bytes;

use crate::kv_cache::PAGE_SIZE;
use crate::tile::element::Operand16;
use crate::tile::smem::{PANEL_COLUMNS, tile_bytes_of};
use attend::{Inputs, Start, attend};
use cuda_std::prelude::*;
use exchange::Exchange;
use fp8::{Fast, Strict};
use half::{bf16, f16};
use operands::{Halves, Operands};

/// Queries of an item: the rows of an MMA.
pub const BLOCK_M: u32 = 64;

/// Keys of a chunk: as many as have their scores in registers.
const BLOCK_N: u32 = CHUNK_PAGES * PAGE_SIZE;
const CHUNK_PAGES: u32 = 4;

/// Keys of an MMA of `Q K^T`: half a chunk.
const MMA_N: u32 = BLOCK_N / 2;

/// Columns of a head: one panel of a tile.
const HEAD_DIM: u32 = PANEL_COLUMNS;

/// Registers of the accumulators: of the scores of half a chunk, and of the output.
const SCORE_REGS: usize = MMA_N as usize / 2;
const OUT_REGS: usize = HEAD_DIM as usize / 2;

/// Blocks of a cluster.
const CLUSTER: u32 = 2;

/// Threads that multiply: a warpgroup.
const MULTIPLIERS: u32 = warp::WARPGROUP_SIZE;

/// Named barrier of the threads that multiply.
const MULTIPLIERS_BARRIER: u32 = 1;

/// Offsets in shared memory, in bytes.
const fn k_at<M: Operands>() -> u32 {
    tile_bytes_of::<M::Qk>(BLOCK_M, HEAD_DIM)
}

const fn v_at<M: Operands>() -> u32 {
    k_at::<M>() + tile_bytes_of::<M::Qk>(BLOCK_N, HEAD_DIM)
}

const fn exchange_at<M: Operands>() -> u32 {
    v_at::<M>() + M::V_BYTES
}

/// Shared memory of a block.
const fn shared_bytes<M: Operands>() -> u32 {
    exchange_at::<M>() + Exchange::BYTES
}

/// Waits until at most `pending` groups of copies are pending, in all threads that multiply; the
/// MMAs may then read what the others have copied.
#[inline(always)]
#[track_caller]
fn wait_for_copies(pending: u32) {
    cp_async::wait(pending);
    share_copies();
}

/// Shares what each thread has copied.
#[inline(always)]
#[track_caller]
fn share_copies() {
    fence::proxy_async_shared();
    barrier::sync::<MULTIPLIERS_BARRIER, MULTIPLIERS>();
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
    launch_bounds(MULTIPLIERS, 1),
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
) {
    let inputs = Inputs {
        num_items,
        items,
        block_table,
        max_pages_per_seq,
        q,
        q_stride,
        k_pool,
        v_pool,
        num_kv_heads,
        group_reciprocal,
        softmax_scale,
        window,
        out,
        out_stride,
    };
    // SAFETY: the launch's promise.
    unsafe {
        let start = Start::<Halves<E>>::new(&inputs);
        grid::wait_for_dependencies();
        grid::launch_dependents();
        attend(start, &inputs, |_, _| [1.0; 2]);
    }
}

/// [`attention_prefill_cluster()`] in FP8: a quant times its scale is the value.
///
/// # Safety
/// 1. As there, with `q` and the pools of E4M3, V transposed, and `out` of f16.
/// 2. `q_scale` has a number for each query head, `k_scale` and `v_scale` for each KV head, from 0
///    on.
#[kernel(
    launch_bounds(M::NUM_THREADS, 1),
    target(sm_90a),
    cluster(CLUSTER, 1, 1),
    overlaps,
    instances(
        attention_prefill_cluster_e4m3_strict_d64 = <Strict>,
        attention_prefill_cluster_e4m3_fast_d64 = <Fast>
    )
)]
pub unsafe fn attention_prefill_cluster_fp8<M: Operands>(
    num_items: Global<u32>,
    items: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    q: Global<()>,
    q_stride: u32,
    k_pool: Global<()>,
    v_pool: Global<()>,
    q_scale: Global<f32>,
    k_scale: Global<f32>,
    v_scale: Global<f32>,
    num_kv_heads: u32,
    group_reciprocal: u64,
    softmax_scale: f32,
    window: u32,
    out: GlobalMut<()>,
    out_stride: u32,
) {
    let inputs = Inputs {
        num_items,
        items,
        block_table,
        max_pages_per_seq,
        q,
        q_stride,
        k_pool,
        v_pool,
        num_kv_heads,
        group_reciprocal,
        softmax_scale,
        window,
        out,
        out_stride,
    };
    let scales = |head: u32, kv_head: u32| {
        let (head, kv_head) = (head as usize, kv_head as usize);
        // SAFETY: the heads' scales.
        let (q, k, v) = unsafe { (q_scale.get(head), k_scale.get(kv_head), v_scale.get(kv_head)) };
        // All scores are 0 where a scale is. It must not make a NaN of a masked score.
        let scores = if q * k == 0.0 { f32::MIN_POSITIVE } else { q * k };
        [scores, v]
    };
    // SAFETY: the launch's promise.
    unsafe {
        let start = Start::<M>::new(&inputs);
        grid::wait_for_dependencies();
        grid::launch_dependents();
        attend(start, &inputs, scales);
    }
}
