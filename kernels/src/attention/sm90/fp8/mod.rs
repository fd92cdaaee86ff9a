//! Attention prefill in FP8 on Hopper's tensor cores: softmax attention of each sequence's new
//! tokens against its pages of a cache in E4M3.
//!
//! Shapes    q `[num_tokens, num_heads * head_dim]` E4M3 with a row stride; pools E4M3: K
//!           `[num_pages, num_kv_heads, PAGE_SIZE, head_dim]`, V transposed, `[num_pages,
//!           num_kv_heads, head_dim, PAGE_SIZE]` with positions in the order of
//!           [`storage_index`]; out `[num_tokens, num_heads * head_dim]` f16; q_scale
//!           `[num_heads]`, k_scale and v_scale `[num_kv_heads]` f32; the rest as in [`super`].
//! Launch    as [`super`].
//! Numerics  `value = scale * quant`. Q K^T: exact products, accumulated by the tensor cores in
//!           about 14 bits; softmax in f32. Strict: weights and V in f16, accumulated in f32. Fast:
//!           weights in E4M3, times 2^8, a relative error of 2.6 % of each.
//! Bound     tensor cores: `4 * head_dim` operations a query, key and head, at twice the rate of
//!           f16 but for P V of the strict mode; at up to 128 columns of the fast mode the
//!           exponentials too, 16 a clock.
//! Source    FlashAttention-3, arXiv:2407.08608, section 3.3.
//!
//! The pipelines, ping-pong and work items are those of [`super`]. `wgmma` reads 8-bit operands K-major
//! alone, so V lies transposed, and its positions are permuted so that a thread's scores, packed,
//! are its fragment of the weights. Strict converts tiles of V to f16, two warps of the producer.
//!
//! Measurements: `docs/measurements/attention_fp8.md`.

mod consumer;
mod convert;
#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
mod producer;
mod softmax;
mod stages;
mod tiles;
mod weights;

#[cfg(not(target_arch = "nvptx64"))]
pub(in super::super) use launcher::dynamic_shared_bytes;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{Mode, Params, TileConfig};

pub use crate::kv_cache::append_fp8::storage_index;

use super::items::WorkQueue;
use super::key_blocks::Cache;
use super::output::Output;
use super::pingpong;
use super::tiles::TileShape;
use crate::tile::element::Operand16;
use consumer::{Consumer, Scales};
use convert::Converter;
use cuda_std::prelude::*;
use half::f16;
use producer::{KProducer, QvProducer};
use stages::Stages;
use tiles::{
    FastD64, FastD96, FastD128, FastD256, Fp8Tile, StrictD64, StrictD96, StrictD128, StrictD256,
};
use weights::Weight;

/// The work items of a step, among persistent blocks.
///
/// # Safety
/// 1. `num_items` is one element; `items` holds so many, 16-byte aligned, of queries of at most the
///    tile's `BLOCK_M`; every view and map covers what they refer to.
/// 2. `q_map` has boxes of `[BLOCK_M, 1, PANEL]`, of tokens, heads and columns; `k_map` of
///    `[PAGE_SIZE, PANEL]`, of the pool's rows and columns; `v_map` of `[1, WIDTH, PAGE_SIZE]`, of
///    pages of a KV head, columns and positions; swizzles of the boxes' rows.
/// 3. `head_dim` is at most the tile's `WIDTH` and a multiple of 16; rows of `out` are 16-byte
///    aligned; `lse` may be null; the KV heads divide the query heads.
/// 4. Scales are not negative. `counters` are two zeros, and are so again afterwards.
/// 5. `out` overlaps nothing that is read.
#[kernel(
    launch_bounds(T::NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(
        attention_prefill_e4m3_fast_d64 = <f16, FastD64, 64, 32>,
        attention_prefill_e4m3_strict_d64 = <f16, StrictD64, 64, 32>,
        attention_prefill_e4m3_fast_d96 = <f16, FastD96, 64, 48>,
        attention_prefill_e4m3_strict_d96 = <f16, StrictD96, 64, 48>,
        attention_prefill_e4m3_fast_d256 = <f16, FastD256, 32, 128>,
        attention_prefill_e4m3_strict_d256 = <f16, StrictD256, 32, 128>,
        attention_prefill_e4m3_fast_d128 = <f16, FastD128, 64, 64>,
        attention_prefill_e4m3_strict_d128 = <f16, StrictD128, 64, 64>
    )
)]
#[allow(private_bounds)]
pub unsafe fn attention_prefill_fp8<
    O: Operand16,
    T: Fp8Tile,
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
    q_scale: Global<f32>,
    k_scale: Global<f32>,
    v_scale: Global<f32>,
    out: GlobalMut<u32>,
    out_stride: u32,
    lse: GlobalMut<f32>,
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
        (num_items.get(0), Stages::new::<T>(smem))
    };
    if T::Weight::ADDS_ROUNDED {
        stages.write_ones();
    }
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
        // 2. The producer: two warps, and two more that convert V.
        if T::PRODUCER_REGISTERS == 72 {
            registers::decrease::<72>();
        } else {
            registers::decrease::<56>();
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
                warp if T::IS_CONVERTED => Converter { stages, warp: warp - 2 }.run::<T>(),
                _ => {}
            }
        }
    } else {
        // 3. The consumers.
        if T::CONSUMER_REGISTERS == 216 {
            registers::increase::<216>();
        } else {
            registers::increase::<224>();
        }
        if warpgroup == T::CONSUMERS - 1 {
            pingpong::start();
        }
        let output = Output { out, row_stride: out_stride, head_dim, lse, num_heads };
        let scales =
            Scales { q: q_scale, k: k_scale, v: v_scale, softmax_scale, num_heads, num_kv_heads };
        let consumer = Consumer::<SCORE_REGS, OUT_REGS>::new(stages, warpgroup, window, scales);
        // SAFETY: the output holds the rows of every item.
        unsafe { consumer.run::<O, T>(&output) };
    }
}
