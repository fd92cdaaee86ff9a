//! GEMM in f16 and bf16 for few rows (decode): `out[m, n] = sum_k x[m, k] * weight[n, k] (+ bias[n])
//! (+ residual[m, n])`, m at most 64. Up to 8 rows x may be RMSNorm's output, made of the residual
//! stream here (`_norm`), and of two such columns, gate's and up's, comes `silu(gate) * up`
//! (`_norm_silu`).
//!
//! Shapes    x `[m, k]`, weight `[n, k]`, f16 or bf16; bias `[n]`, residual `[m, n]`, f32; out `[m,
//!           n]`, f32 (it may be residual) or the operands' element; row strides; any n, k a
//!           multiple of 8, rows of x and weight at multiples of 16 bytes. Normed: x f32, the
//!           norm's weight `[k]` f32, no residual. Gated: weight `[2 * n, k]` and bias `[2 * n]`,
//!           gate's n rows and then up's, out in the operands' element.
//! Launch    grid `(n / (8 * TILES_N), 1, 1)`, of gated ones twice as many, block `(32 * WARPS, 1,
//!           1)`, the sums of all warps and the normed rows in shared memory.
//! Numerics  f32 accumulators of the tensor core, one rounding at the store. A warp sums every
//!           `WARPS`-th line of 64 products in the order of k, warps are added in fours: the order
//!           depends on n and k alone, so that a row has the same bits in whatever batch (m = 1 is
//!           no kernel of its own: one with FMAs would differ, and be no faster, see below). Fused
//!           kernels have the bits of RmsNorm, this one and SiluMul in turn: what those store is
//!           rounded here too.
//! Bound     memory: the weight is read once, `2 * n * k` bytes, and waits for nothing: the first
//!           loads of a block are under way before it asks for its rows, or for the launch before.
//!
//! This kernel loads the weight into registers; of up to 32 rows on sm_90a it may come by TMA instead
//! ([`gemm_16_streamed()`]).
//!
//! # Why tensor cores for one row
//! At 4.4 TB/s an SM gets 512 bytes, a 16-byte load of a warp, in 26 cycles: 102 issue slots. FMAs
//! need 8 conversions and 8 FMAs for them, and as many for each row more. `mma` takes f16 as it
//! stands: two instructions for up to 16 rows, of which they use 16 of 102 slots of the tensor
//! cores. x is A (16 rows, of which 8 may be idle) and the weight is B, since 8 columns a tile give
//! small matrices twice the blocks that 16 would. Slots in the loop for 512 bytes, all included, as
//! ptxas 13.0 makes it for sm_90a; all eight loads of a lane stand before the first product:
//!
//! | rows, columns of a block | registers | slots | loads of x | mma | warps an SM |
//! | --- | --- | --- | --- | --- | --- |
//! | 8, 8 | 64 | 21.1 | 1 | 2 | 32 |
//! | 8, 32 | 94 | 12.9 | 0.25 | 2 | 16 |
//! | 16, 8 | 84 | 26.0 | 2 | 2 | 16 |
//! | 16, 32 | 106 | 14.4 | 0.5 | 2 | 16 |
//! | 32, 8 | 114 | 41.9 | 4 | 4 | 16 |
//! | 32, 32 | 126 | 23.8 | 1 | 4 | 16 |
//! | 64, 8 | 128 | 77.1 | 8 | 8 | 16 |
//! | 64, 32 | 206 | 45.9 | 2 | 8 | 8 |
//! | 8, 8, normed | 64 | 16.6 | 1, shared | 2 | 32 |
//! | 8, 32, normed | 88 | 12.4 | 0.25, shared | 2 | 16 |
//! | 8, 8 of gate and 8 of up, normed | 64 | 12.9 | 0.5, shared | 2 | 32 |
//!
//! # A norm in front
//! Each block norms all rows, which L1 and L2 have, instead of waiting for a launch that does it.
//! Its weights are under way meanwhile. At one row of 896 columns four warps have a chunk each, and
//! between x and the first product stand eight FMAs, five shuffles, two barriers and `rsqrt`:
//! predicted, not measured, 400 cycles, 0.25 us, where a launch costs over 1 us. With 8 rows a
//! warp of eight has four chunks in turn: predicted 1 us. Blocks after the first ones of an SM hide
//! it behind the loads of others. In the machine code the normed chunk waits for all weights of the
//! first round, since ptxas has them share a scoreboard with those of the norm; those of a launch
//! that starts early have come by then.
//!
//! A normed row takes `2 * k` bytes and up to 192 more: at one row k up to 8,192 leaves an SM the
//! warps of the table, at 8 rows of 3,072 it has three blocks of eight. What takes more than 99 KiB,
//! which every device gives a block, is not fused.
//!
//! # Roofline of one row
//! Where its bits need not be those in a batch it has a kernel of its own, [`gemv_16()`](super::f16_gemv::gemv_16()).
//!
//! On an H200, medians beside cuBLAS in one run, f16, nothing overlapped (`halfwarp bench kernels --op
//! gemm --dtype f16`), in us; the floor is the bytes at 4.4 TB/s. In brackets what is launched, see
//! `SmallM16::launch` for why:
//!
//! | n, k | MB | floor | loaded | by TMA | cuBLAS |
//! | --- | --- | --- | --- | --- | --- |
//! | 896, 896 | 1.6 | 0.4 | (2.5) | 2.6 | 5.5 |
//! | 1152, 896 | 2.1 | 0.5 | (2.7) | 2.7 | 5.7 |
//! | 896, 4864 | 8.7 | 2.0 | (5.7) | 5.2 | 9.2 |
//! | 9728, 896 | 17.4 | 4.0 | (7.1) | 6.5 | 8.7 |
//! | 3072, 3072 | 18.9 | 4.3 | 7.8 | (6.8) | 11.2 |
//! | 4096, 4096 | 33.6 | 7.6 | 11.6 | (10.3) | 14.9 |
//! | 3072, 8192 | 50.3 | 11.4 | 16.7 | (14.6) | 18.1 |
//! | 9216, 3072 | 56.6 | 12.9 | 19.3 | (15.5) | 19.4 |
//! | 12288, 4096 | 100.7 | 22.9 | 27.0 | (25.8) | 27.8 |
//! | 16384, 3072 | 100.7 | 22.9 | (25.5) | 26.2 | 26.1 |
//! | 22016, 4096 | 180.4 | 41.0 | (44.9) | 45.2 | 44.9 |
//! | 151936, 896 | 272.3 | 61.9 | (64.7) | 66.9 | 67.5 |
//!
//! From 16 rows on x counts too: a block reads all of it, through L1 and L2, `m / (8 * TILES_N)`
//! times the bytes of its weights. That is why more rows take 32 columns early, and tiles of
//! `wgmma` where n is large: 32 rows of 151936 x 896 take 73 us by TMA and 70 there.

mod epilogue;
mod input;
mod mainloop;
mod normed;
mod ring;
mod streamed;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::SmallM16;
pub use streamed::gemm_16_streamed;

use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use epilogue::{Destination, MAX_OUTPUTS, Outputs, max_columns, num_sums};
use half::{bf16, f16};
use input::GlobalRows;
use mainloop::{Cursor, LaneRow, TileOrder, load_round, multiply};
use normed::{Norm, Shape};

/// Warps that an SM should hold: what their accumulators and rows of x leave room for.
const fn warps_per_sm(tiles_m: usize, tiles_n: usize) -> usize {
    match (tiles_m, tiles_n) {
        (1, 1 | 2) => 32,
        (8, 2..) => 8,
        _ => 16,
    }
}

/// Blocks that should fit on an SM.
const fn min_blocks(tiles_m: usize, tiles_n: usize, warps: usize) -> u32 {
    let blocks = warps_per_sm(tiles_m, tiles_n) / warps;
    if blocks == 0 { 1 } else { blocks as u32 }
}

/// `8 * TILES_N` columns of up to `8 * TILES_M` rows a block, whose `WARPS` share k.
///
/// # Safety
/// 1. `num_rows` is one element, at most `max_rows`, which is at most `8 * TILES_M` and not 0; `x` holds
///    `max_rows` rows, the output `num_rows`, `weight` holds `n`, at their strides; `bias` and `residual`
///    are null or hold as much as the output asks for. The output is `out_f32`, or `out` if that is null.
/// 2. The output is `residual`, or overlaps nothing that is read.
/// 3. Rows of `x` and `weight` start at multiples of 16 bytes, and `k` is a multiple of 8.
#[kernel(
    launch_bounds(WARPS as u32 * warp::WARP_SIZE, min_blocks(TILES_M, TILES_N, WARPS)),
    overlaps,
    instances(
        gemm_f16_small_m8_n8_w16 = <f16, 1, 1, 16, false, false>,
        gemm_f16_small_m8_n8_w8 = <f16, 1, 1, 8, false, false>,
        gemm_f16_small_m8_n32_w8 = <f16, 1, 4, 8, false, false>,
        gemm_f16_small_m8_n8_w16_norm = <f16, 1, 1, 16, true, false>,
        gemm_f16_small_m8_n8_w8_norm = <f16, 1, 1, 8, true, false>,
        gemm_f16_small_m8_n32_w8_norm = <f16, 1, 4, 8, true, false>,
        gemm_f16_small_m8_n8_w16_norm_silu = <f16, 1, 2, 16, true, true>,
        gemm_f16_small_m8_n8_w8_norm_silu = <f16, 1, 2, 8, true, true>,
        gemm_f16_small_m16_n8_w16 = <f16, 2, 1, 16, false, false>,
        gemm_f16_small_m16_n32_w8 = <f16, 2, 4, 8, false, false>,
        gemm_f16_small_m32_n8_w16 = <f16, 4, 1, 16, false, false>,
        gemm_f16_small_m32_n32_w8 = <f16, 4, 4, 8, false, false>,
        gemm_f16_small_m64_n8_w16 = <f16, 8, 1, 16, false, false>,
        gemm_f16_small_m64_n32_w8 = <f16, 8, 4, 8, false, false>,
        gemm_bf16_small_m8_n8_w16 = <bf16, 1, 1, 16, false, false>,
        gemm_bf16_small_m8_n8_w8 = <bf16, 1, 1, 8, false, false>,
        gemm_bf16_small_m8_n32_w8 = <bf16, 1, 4, 8, false, false>,
        gemm_bf16_small_m8_n8_w16_norm = <bf16, 1, 1, 16, true, false>,
        gemm_bf16_small_m8_n8_w8_norm = <bf16, 1, 1, 8, true, false>,
        gemm_bf16_small_m8_n32_w8_norm = <bf16, 1, 4, 8, true, false>,
        gemm_bf16_small_m8_n8_w16_norm_silu = <bf16, 1, 2, 16, true, true>,
        gemm_bf16_small_m8_n8_w8_norm_silu = <bf16, 1, 2, 8, true, true>,
        gemm_bf16_small_m16_n8_w16 = <bf16, 2, 1, 16, false, false>,
        gemm_bf16_small_m16_n32_w8 = <bf16, 2, 4, 8, false, false>,
        gemm_bf16_small_m32_n8_w16 = <bf16, 4, 1, 16, false, false>,
        gemm_bf16_small_m32_n32_w8 = <bf16, 4, 4, 8, false, false>,
        gemm_bf16_small_m64_n8_w16 = <bf16, 8, 1, 16, false, false>,
        gemm_bf16_small_m64_n32_w8 = <bf16, 8, 4, 8, false, false>
    )
)]
pub unsafe fn gemm_16_small_m<
    E: Operand16,
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
    const NORMED: bool,
    const GATED: bool,
>(
    num_rows: Global<u32>,
    max_rows: u32,
    n: u32,
    k: u32,
    x: Global<()>,
    x_stride: u32,
    norm_weight: Global<f32>,
    k_reciprocal: f32,
    eps: f32,
    weight: Global<u16>,
    weight_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<u16>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
) {
    const { assert!(!NORMED || TILES_M == 1, "a block has shared memory for one tile's rows") };
    let block_n = thread::block_idx_x() * max_columns(TILES_N, GATED);
    let orders = [TileOrder::AsStored; 2];
    let outputs = Outputs::<TILES_M, TILES_N, WARPS, GATED>::new(block_n, n, n, orders);
    let cursor = Cursor::new(k);
    // SAFETY: rows past the last one are the last one, whose results nobody stores. The normed rows
    // have their shared memory behind that of the sums.
    unsafe {
        // 1. What no launch before this one writes.
        let mut weight_rows = [LaneRow::new(0, 0); TILES_N];
        for tile in 0..TILES_N {
            weight_rows[tile] = outputs.weight_row(tile, weight_stride);
        }
        let weights = (weight, &weight_rows);
        let round = load_round::<TILES_N, WARPS>(weights, cursor);
        let mut sums_bias = [0.0; 2];
        if !GATED {
            sums_bias = outputs.bias(bias);
        }
        let shape = Shape { k, reciprocal: k_reciprocal, eps };
        let norm = NORMED.then(|| Norm::<WARPS>::new(norm_weight, shape));
        let num_rows = num_rows.get(0);

        // 2. What they may.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let mut added = [0.0; MAX_OUTPUTS];
        if !NORMED {
            added = outputs.residual(num_rows, residual, residual_stride);
        }

        // 3. Products, and their sum over the warps.
        let mut acc = [[[0.0; 4]; TILES_N]; TILES_M];
        if let Some(norm) = norm {
            if num_rows == 0 {
                return;
            }
            let smem = dynamic_shared_mem::<f32>();
            let smem = smem.offset(num_sums(TILES_M, TILES_N, GATED, WARPS));
            let x = norm.rows::<E, TILES_M>((x.cast(), x_stride), num_rows, smem);
            multiply::<E, _, TILES_M, TILES_N, WARPS>(&x, weights, cursor, round, &mut acc);
        } else {
            let x = GlobalRows::<TILES_M>::new(x.cast(), x_stride, max_rows);
            multiply::<E, _, TILES_M, TILES_N, WARPS>(&x, weights, cursor, round, &mut acc);
        }
        if GATED {
            // Few models have one: it is not worth registers.
            sums_bias = outputs.bias(bias);
        }
        let out = Destination { half: out.cast::<E>(), single: out_f32, stride: out_stride };
        outputs.store(dynamic_shared_mem(), num_rows, &acc, sums_bias, &added, &out);
    }
}
