//! Attention prefill on Hopper's tensor cores: softmax attention of each sequence's new tokens
//! against its pages of the cache.
//!
//! Shapes    q, out `[num_tokens, num_heads * head_dim]` with row strides; pools `[num_pages,
//!           num_kv_heads, PAGE_SIZE, head_dim]`; all f16 or bf16; lse `[num_tokens, num_heads]`
//!           f32; block_table `[num_seqs, max_pages_per_seq]`; head_dim at most the tile's WIDTH.
//! Launch    persistent: at most one block an SM, each of which takes the next work item when it
//!           is free; block `(T::NUM_THREADS, 1, 1)`.
//! Numerics  f32 scores, softmax in base 2 and accumulators; weights and output are rounded. Blocks
//!           of keys from last to first, whatever the step.
//! Bound     tensor cores: `4 * head_dim` operations a query, key and head.
//! Source    FlashAttention-3, arXiv:2407.08608; paged cache: arXiv:2309.06180.
//!
//! Warp-specialised: two warps are the producer, which fills rings of K and of V by TMA, a page a
//! box, and loads Q of the next work item during the epilogue of this one. A consumer warpgroup has
//! 64 queries. Its products of a block are in flight during its softmax of the next one, and the
//! warpgroups take turns, so that one's exponentials overlap another's MMAs.
//!
//! The keys of a tile may be split over several items where there are fewer tiles than SMs.
//!
//! Measurements: `docs/measurements/attention_prefill.md`.

mod consumer;
pub mod fp8;
mod items;
mod key_blocks;
#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
mod output;
mod partials;
mod pingpong;
mod producer;
mod ring;
mod rows;
mod stages;
mod tiles;

#[cfg(not(target_arch = "nvptx64"))]
pub(super) use launcher::dynamic_shared_bytes;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{Params, TileConfig};

use crate::tile::element::Operand16;
use consumer::Consumer;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;
use half::{bf16, f16};
use items::WorkQueue;
use key_blocks::Cache;
use output::Output;
use partials::Partials;
use producer::{KProducer, QvProducer};
use stages::Stages;
use tiles::{PrefillTile, TileD64, TileD64M128, TileD96, TileD128, TileD256, TileShape};

/// Registers of a thread of the producer and of the consumers, for two or three consumers: in all
/// as many as the warpgroups start with.
const PRODUCER_REGISTERS: [u32; 2] = [40, 32];
const CONSUMER_REGISTERS: [u32; 2] = [232, 160];

/// Counters of the work queue; those of parts come after them.
pub const NUM_COUNTERS: usize = 2;

/// The work items of a step, among persistent blocks.
///
/// # Safety
/// 1. `num_items` is one element; `items` holds so many, 16-byte aligned, of queries of at most the
///    tile's `BLOCK_M`; every view and map covers what they refer to.
/// 2. `q_map` has boxes of `[BLOCK_M, 1, 64]`, of tokens, heads and columns; `k_map` and `v_map` of
///    `[PAGE_SIZE, 64]`, of the pools' rows and columns; 128-byte swizzle.
/// 3. `head_dim` is at most the tile's `WIDTH` and a multiple of 8; rows of `out` are 16-byte
///    aligned; `lse` may be null; the KV heads divide the query heads.
/// 4. `counters` are two zeros, and one for each slot and warp of the consumers; they are so again
///    afterwards. `partials` holds the results of so many warps, 16-byte aligned.
/// 5. `out` overlaps nothing that is read. `sinks` holds a number for each query head, or is null.
///    Where `softcap` is not 0, scores are `tanh(softcap * score)` before they are scaled.
#[kernel(
    launch_bounds(T::NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(
        attention_prefill_f16_sm90_d64 = <f16, TileD64, 64, 32>,
        attention_prefill_f16_sm90_d64_m128 = <f16, TileD64M128, 64, 32>,
        attention_prefill_f16_sm90_d96 = <f16, TileD96, 64, 48>,
        attention_prefill_f16_sm90_d128 = <f16, TileD128, 64, 64>,
        attention_prefill_f16_sm90_d256 = <f16, TileD256, 32, 128>,
        attention_prefill_bf16_sm90_d64 = <bf16, TileD64, 64, 32>,
        attention_prefill_bf16_sm90_d64_m128 = <bf16, TileD64M128, 64, 32>,
        attention_prefill_bf16_sm90_d96 = <bf16, TileD96, 64, 48>,
        attention_prefill_bf16_sm90_d128 = <bf16, TileD128, 64, 64>,
        attention_prefill_bf16_sm90_d256 = <bf16, TileD256, 32, 128>
    )
)]
#[allow(private_bounds)]
pub unsafe fn attention_prefill_sm90<
    E: Operand16,
    T: PrefillTile,
    const SCORE_REGS: usize,
    const OUT_REGS: usize,
>(
    num_items: Global<u32>,
    items: Global<u32>,
    counters: GlobalMut<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    softmax_scale: f32,
    window: u32,
    out: GlobalMut<u32>,
    out_stride: u32,
    lse: GlobalMut<f32>,
    partials: GlobalMut<f32>,
    sinks: Global<f32>,
    softcap: f32,
    // Last, so that the other parameters share few lines of the constant cache.
    q_map: TensorMap,
    k_map: TensorMap,
    v_map: TensorMap,
) {
    const { T::IS_VALID };
    const { assert!(T::BLOCK_N == 2 * SCORE_REGS as u32 && T::WIDTH == 2 * OUT_REGS as u32) };
    // 1. Barriers, while the previous launch still runs. SAFETY: the launch gives `SHARED_BYTES`;
    //    one thread initialises the barriers, and all wait for it; `num_items` is a step input,
    //    which no launch writes.
    let (num_items, stages) = unsafe {
        let smem = dynamic_shared_mem::<u8>();
        let stages = Stages::<E>::new::<T>(smem);
        (num_items.get(0), stages)
    };
    if thread::thread_idx_x() == 0 {
        stages.init::<T>();
        q_map.prefetch();
        k_map.prefetch();
        v_map.prefetch();
    }
    thread::sync_threads();
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let warpgroup = warp::warpgroup_idx();

    if warpgroup == T::CONSUMERS {
        // 2. The producer: two warps.
        if T::CONSUMERS == 2 {
            registers::decrease::<{ PRODUCER_REGISTERS[0] }>();
        } else {
            registers::decrease::<{ PRODUCER_REGISTERS[1] }>();
        }
        // SAFETY: launches have KV heads, and a multiple of query heads.
        unsafe { core::hint::assert_unchecked(num_kv_heads > 0 && num_heads >= num_kv_heads) };
        let group = num_heads / num_kv_heads;
        let cache = Cache { block_table, max_pages_per_seq, num_kv_heads, group };
        // SAFETY: the list has `num_items` items; maps and table cover them.
        unsafe {
            match warp::warp_idx() % 4 {
                0 => {
                    let queue = WorkQueue::new(items, num_items, counters);
                    KProducer { stages, k: k_map, cache }.run::<T>(queue);
                }
                1 => QvProducer { stages, q: q_map, v: v_map, cache, tail_phase: 0 }.run::<T>(),
                _ => {}
            }
        }
    } else {
        // 3. The consumers.
        if T::CONSUMERS == 2 {
            registers::increase::<{ CONSUMER_REGISTERS[0] }>();
        } else {
            registers::increase::<{ CONSUMER_REGISTERS[1] }>();
        }
        if warpgroup == T::CONSUMERS - 1 {
            pingpong::start();
        }
        let output = Output { out, row_stride: out_stride, head_dim, lse, num_heads };
        let consumer = Consumer::<E, SCORE_REGS> {
            stages,
            warpgroup,
            window,
            scale: softmax_scale * LOG2_E,
            sinks,
            softcap,
            scores: Accumulator::zero(),
        };
        // SAFETY: the output holds the rows of every item, and results and counters their parts.
        unsafe {
            let counters = counters.add(NUM_COUNTERS);
            let num_warps = T::CONSUMERS * 4;
            let partials = Partials { results: partials, counters, num_warps };
            consumer.run::<T, OUT_REGS>(&output, &partials);
        }
    }
}
