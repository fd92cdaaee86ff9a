//! Linear layers of experts, few rows of x an expert (decode): `out[t, i, n] = sum_k x[t, i, k] *
//! weight[experts[t, i], n, k] (+ bias)`, or `activation(gate) * up` of two weights.
//!
//! Shapes    experts `[num_tokens, top_k]` u32; x `[num_tokens, k]`, or a row for each choice, out
//!           `[num_tokens, top_k, n]`, with strides, rows of x 16-byte aligned; weight and up
//!           `[num_experts, n, k]`, dense with k a multiple of 8, or in tiles, each expert's from a
//!           row of tiles on.
//! Launch    grid `(columns * chunks, 1, 1)`, block `(NUM_THREADS, 1, 1)`. A block computes a few
//!           rows of tiles of an expert for a chunk of up to eight choices of it; its warps split k.
//! Numerics  MMAs of f16 or bf16 in f32; a warp takes every `2^k_warps_log2`-th tile of 256 columns, in
//!           dense weights of 64, and warps are added in order: the order depends on n and k alone. One rounding at the
//!           store; gate and up are rounded before they are multiplied. Quants are exact in f16, and
//!           scaled in f32, after the products of a group.
//! Bound     memory: a chosen expert's matrices are read once for eight choices.

use super::chunk::shared_words as chunk_words;
use super::chunk::{Choices, Chunk, Grouped, NO_CHOICE, NUM_THREADS, NUM_WARPS, offset};
use super::e4m3::E4m3Rows;
use super::weight::{Dense, HalfOfX, ScalesAt, TileRow, WarpUnits, Weight, first_columns};
use crate::activation::GateArg;
use crate::element::Number;
use crate::gemm::quantised::format::{BLOCKS, TILE_ROWS, UNIT_K, lane_group, lane_pair};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Choices of a chunk: columns of an MMA.
pub const CHUNK_ROWS: u32 = 8;

/// Elements from a row of partial sums to the next: lanes write to different banks.
const PARTIALS_STRIDE: u32 = TILE_ROWS + 4;

/// Partial sums of a warp.
const WARP_PARTIALS: u32 = CHUNK_ROWS * PARTIALS_STRIDE;

/// Words of shared memory of a block.
pub const SHARED_WORDS: u32 = chunk_words(CHUNK_ROWS) + NUM_WARPS * WARP_PARTIALS;

/// Loads half `half` of a unit of a lane's row of x; zeros from column `end` of the unit on.
///
/// # Safety
/// 1. `unit` is the unit in the row, where it has columns, 16-byte aligned; `end` is a multiple of
///    8, in blocks of 32.
#[inline(always)]
pub(super) unsafe fn load_half<W: Weight>(unit: Global<u16>, half: usize, end: u32) -> HalfOfX {
    let columns = first_columns::<W>(half);
    let words = columns.map(|column| unit.wrapping_add(column as usize).cast::<u32>());
    // SAFETY: inside the row, by the conditions.
    unsafe {
        if W::RUN == 8 {
            let [a, b, c, d] = words[0].get_vec_if(0, columns[0] < end);
            [[a, b], [c, d]]
        } else {
            let is_inside = half as u32 * (UNIT_K / 2) < end;
            words.map(|words| words.get_vec_if(0, is_inside))
        }
    }
}

/// `NUM_WARPS >> k_warps_log2` rows of tiles a block, of gate and of up in turn where there are both.
/// `RING` units of a warp are on their way.
///
/// # Safety
/// 1. `num_tokens` is one element; `experts` holds that many rows of `top_k` experts of the weight;
///    `x` a row of `k` elements for each choice, 16-byte aligned, and `out` one of `n`, at their
///    strides, those of tokens and of choices; elements are `W::E`.
/// 2. `weight`, and `up` with a gate, are as `W` says; their biases are null, or hold `n` elements an
///    expert. `out` overlaps nothing that is read.
/// 3. `chunks` and `order` are what [`group_experts`](super::group::group_experts()) wrote for chunks
///    of [`CHUNK_ROWS`]; without them there are at most `NUM_THREADS` choices.
/// 4. `2^k_warps_log2` is at most `NUM_WARPS`, half of it with a gate; `columns` are the blocks of a
///    chunk.
#[kernel(
    launch_bounds(NUM_THREADS, W::FEW_BLOCKS),
    overlaps,
    instances(
        F in BLOCKS,
        E in [f16, bf16],
        experts_{E}_few = <Dense<E>, { <Dense<E> as Weight>::RING }>,
        experts_e4m3_few = <E4m3Rows, { <E4m3Rows as Weight>::RING }>,
        experts_{F}_few = <F, { <F as Weight>::RING }>
    )
)]
pub unsafe fn experts_few<W: Weight, const RING: usize>(
    num_tokens: Global<u32>,
    top_k: u32,
    experts: Global<u32>,
    experts_stride: u32,
    chunks: Global<u32>,
    order: Global<u32>,
    columns: u32,
    n: u32,
    k: u32,
    k_warps_log2: u32,
    gate: u32,
    x: Global<u16>,
    x_stride: u32,
    x_choice_stride: u32,
    weight: Global<u8>,
    up: Global<u8>,
    scales_at: u32,
    scale_stride: u32,
    bias: Global<f32>,
    up_bias: Global<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    out_choice_stride: u32,
) {
    // Never 0; `max` tells the compiler.
    let columns = columns.max(1);
    let (block, chunk_idx) = (thread::block_idx_x() % columns, thread::block_idx_x() / columns);
    let gate = GateArg(gate);
    let scales = ScalesAt { at: scales_at, stride: scale_stride };
    let k_warps = 1 << k_warps_log2;
    // SAFETY: the launch gives `SHARED_WORDS`; what the choices say is checked by the router.
    unsafe {
        let num_tokens = num_tokens.get(0);
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let smem = dynamic_shared_mem::<u32>();
        let choices = Choices { num_tokens, top_k, experts, stride: experts_stride };
        let grouped = Grouped { chunks, order };
        let Some(chunk) = Chunk::find(&choices, grouped, chunk_idx, CHUNK_ROWS, smem) else {
            return;
        };

        // 1. The warp's part of k of its row of tiles.
        let (group, k_warp) = (warp::warp_idx() >> k_warps_log2, warp::warp_idx() % k_warps);
        let parts_log2 = gate.num_parts() - 1;
        let block_tiles = (NUM_WARPS >> k_warps_log2) >> parts_log2;
        let row = block * block_tiles + (group >> parts_log2);
        let weight = if group & parts_log2 == 1 { up } else { weight };
        let mut acc = [0.0; 4];
        if row * TILE_ROWS < n {
            let at = TileRow { weight, n, k, expert: chunk.expert, row, scales };
            let mut units = WarpUnits::<W, RING>::new(at, k_warp, k_warps);
            // A row without a choice has the first one's: its results are not stored.
            let choice =
                chunk.rows.get(if lane_group() < chunk.num_rows { lane_group() } else { 0 });
            let x = x.add(offset(choice, top_k, [x_stride, x_choice_stride]));
            // The warps share the rows: each brings its part into L1.
            let mut at = (warp::warp_idx() * 4 + lane_pair()) * UNIT_K;
            while at < k {
                x.prefetch(at as usize);
                at += NUM_WARPS * 4 * UNIT_K;
            }
            while units.first_column(0) < k {
                unroll!(i in 0..4, {
                    let x = x.wrapping_add(units.first_column(0) as usize + units.columns_to(i));
                    let end = k.saturating_sub(units.first_column(i));
                    let unit = units.take(i);
                    unroll!(half in 0..2, {
                        let x = load_half::<W>(x, half, end);
                        acc = units.add_products(&unit, i, half, &x, acc);
                    });
                });
                units.finish();
            }
        }

        // 2. The sums over the warps.
        let partials = smem.offset(chunk_words(CHUNK_ROWS)).cast::<f32>();
        let own = partials.offset(warp::warp_idx() * WARP_PARTIALS);
        for i in 0..4 {
            let (row, column) = (2 * lane_pair() + i % 2, lane_group() + i / 2 * 8);
            let sum = acc[i as usize] * W::sum_scale(i as usize / 2);
            own.set(row * PARTIALS_STRIDE + column, sum);
        }
        thread::sync_threads();
        let mut item = thread::thread_idx_x();
        while item < block_tiles * CHUNK_ROWS * TILE_ROWS {
            let (in_tile, row) = (item % TILE_ROWS, item / TILE_ROWS % CHUNK_ROWS);
            let tile = item / (TILE_ROWS * CHUNK_ROWS);
            let column = (block * block_tiles + tile) * TILE_ROWS + in_tile;
            item += NUM_THREADS;
            let choice = chunk.rows.get(row);
            if choice == NO_CHOICE || column >= n {
                continue;
            }
            let sum = |part: u32| {
                let first = ((tile << parts_log2) + part) << k_warps_log2;
                let mut sum = 0.0;
                for k_warp in 0..k_warps {
                    let at = (first + k_warp) * WARP_PARTIALS + row * PARTIALS_STRIDE + in_tile;
                    sum += partials.get(at);
                }
                sum
            };
            let term = |bias: Global<f32>| {
                if bias.is_null() {
                    return 0.0;
                }
                // Not `chunk.expert`: the main loop has no register for it.
                bias.get(choices.expert(choice) as usize * n as usize + column as usize)
            };
            let mut value = sum(0) + term(bias);
            if parts_log2 == 1 {
                // As the separate operations round.
                let [gate_value, up] =
                    [value, sum(1) + term(up_bias)].map(|value| W::E::from_f32(value).to_f32());
                value = gate.apply::<W::E>(gate_value, up);
            }
            let at = offset(choice, top_k, [out_stride, out_choice_stride]) + column as usize;
            out.cast::<W::E>().set(at, W::E::from_f32(value));
        }
    }
}
