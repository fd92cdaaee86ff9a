//! GEMM of 16-bit operands on Hopper's tensor cores:
//! `out[m, n] = sum_k a[m, k] * b[n, k] (+ bias[n]) (+ residual[m, n])`. Gated instances store
//! `activation(gate) * up` of a stacked weight.
//!
//! Shapes    a `[m, k]`, b `[n, k]`, f16 or bf16, both K-major, rows 16-byte aligned; bias `[n]`
//!           f32; residual `[m, n]` f32, for f32 outputs only; out `[m, n]`, f32 or the operands'
//!           type; any m and n. Gate: b `[2 * n, k]` and bias `[2 * n]`, first gate, then up; n a
//!           multiple of 8, 16-bit outputs, no residual, no split-K.
//! Launch    persistent: at most one block an SM, in whole clusters; with split-K one cluster a
//!           tile. Block `(T::NUM_THREADS, 1, 1)`.
//! Numerics  f32 accumulators, MMAs of k = 16 in the order of k whatever the tile; with split-K
//!           the partial sums are added in the order of k. Or f16 accumulators of f16 operands,
//!           rounded after each MMA. One rounding at the store; a gate has the bits of this kernel
//!           and GateRows in turn: what the former stores is rounded here too.
//! Bound     tensor cores: `m * n * k` FMAs, 2,048 a clock and SM.
//! Source    DeepGEMM (`sm90_bf16_gemm`); CUTLASS (persistent cooperative kernel).
//!
//! Warp-specialised: one thread of the last warpgroup is the producer, which fills the stages by
//! TMA; the other warpgroups are the consumers, which run the MMAs and the epilogue while the
//! producer already fills stages for the next tile. The blocks of a cluster either multicast the
//! operand that they share, or split the k of one tile and reduce their partial sums through
//! distributed shared memory. With a gate a stage of B has rows of gate and of up in turn, so that a
//! thread has both accumulators of an output.
//!
//! Measurements: `docs/measurements/gemm_sm90.md`.

#[cfg(not(target_arch = "nvptx64"))]
pub(super) mod launcher;
pub mod persistent;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{launch, takes};

use crate::activation::{GATES, Gate, NoGate};
use crate::gemm::config::wgmma::*;
use crate::gemm::epilogue::Matrix;
use crate::gemm::epilogue::wgmma::{OutElement, SubtileScale, Unscaled};
use crate::gemm::mainloop::accumulators::Multiply;
use crate::gemm::mainloop::wgmma::Mainloop;
use crate::tile::element::Operand16;
use crate::tile::pipeline::Stage;
use cuda_std::prelude::*;
use half::{bf16, f16};
use persistent::{Accumulation, Layer};

/// All of k in the tensor cores' accumulators, which are the outputs.
#[derive(Clone, Copy)]
struct InTensorCores;

impl<E: Operand16, T: WgmmaTile<Acc: Multiply<E>>> Accumulation<E, T> for InTensorCores {
    type Scales = ();

    #[inline(always)]
    #[track_caller]
    unsafe fn accumulate(
        self,
        mainloop: Mainloop<E>,
        stage: Stage,
        _num_rows: u32,
        _tile: [u32; 2],
    ) -> (T::Acc, Stage, ()) {
        // SAFETY: the caller's promise.
        let (acc, stage) = unsafe { mainloop.multiply_tile::<T>(stage, T::warpgroup_origin()) };
        (acc, stage, ())
    }

    #[inline(always)]
    fn subtile_scale((): &(), _subtile: u32) -> impl SubtileScale {
        Unscaled
    }
}

/// The tiles of the output, scheduled among persistent blocks.
///
/// # Safety
/// 1. `num_rows` is one element, at most `max_rows`, written by no launch that this one overlaps.
///    `out` and `residual` hold that many rows of `n` columns at their strides, `bias` holds an
///    element for each row of the weight; `bias` and `residual` may be null.
/// 2. `a`, of `max_rows` rows, and `b` are tensor maps of the operands, `k > 0` columns, 128-byte
///    swizzle, with boxes of `BLOCK_K` columns and `T::BLOCK_M / T::CLUSTER_N` or `T::BLOCK_N /
///    T::CLUSTER_M` rows; with a gate, rows of `b` are
///    [`GATE_ROWS`](crate::tile::box_copy::GATE_ROWS) of gate and of up in turn, `n` is a multiple of
///    them, and `residual` is null. `out_map` is the tensor map of 16-bit outputs,
///    128-byte swizzle, with boxes of 64 columns and 16 rows, if their rows are 16-byte aligned.
/// 3. With split-K a cluster has at most one tile.
/// 4. `out` is `residual`, or overlaps nothing that is read.
#[kernel(
    launch_bounds(T::NUM_THREADS, 1),
    target(sm_90a),
    cluster(T::CLUSTER, 1, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        O in [E as "", f32 as "_f32"],
        A in GATES,
        gemm_{E}_sm90_128x256{O} = <E, O, Tile128x256, NoGate>,
        gemm_{E}_sm90_128x256_pair{O} = <E, O, Tile128x256Pair, NoGate>,
        gemm_{E}_sm90_256x128{O} = <E, O, Tile256x128, NoGate>,
        gemm_{E}_sm90_256x128_pair{O} = <E, O, Tile256x128Pair, NoGate>,
        gemm_{E}_sm90_128x192{O} = <E, O, Tile128x192, NoGate>,
        gemm_{E}_sm90_128x144{O} = <E, O, Tile128x144, NoGate>,
        gemm_{E}_sm90_128x128{O} = <E, O, Tile128x128, NoGate>,
        gemm_{E}_sm90_64x128{O} = <E, O, Tile64x128, NoGate>,
        gemm_{E}_sm90_64x128_pair{O} = <E, O, Tile64x128Pair, NoGate>,
        gemm_{E}_sm90_64x72{O} = <E, O, Tile64x72, NoGate>,
        gemm_{E}_sm90_64x64{O} = <E, O, Tile64x64, NoGate>,
        gemm_{E}_sm90_128x128_split2{O} = <E, O, Tile128x128Split2, NoGate>,
        gemm_{E}_sm90_128x128_split4{O} = <E, O, Tile128x128Split4, NoGate>,
        gemm_{E}_sm90_64x128_split2{O} = <E, O, Tile64x128Split2, NoGate>,
        gemm_{E}_sm90_64x128_split4{O} = <E, O, Tile64x128Split4, NoGate>,
        gemm_{E}_sm90_64x256{O} = <E, O, Tile64x256, NoGate>,
        gemm_{E}_sm90_64x192{O} = <E, O, Tile64x192, NoGate>,
        gemm_{E}_sm90_128x256_pair_{A} = <E, E, Tile128x256Pair, A>,
        gemm_{E}_sm90_128x256_{A} = <E, E, Tile128x256, A>,
        gemm_{E}_sm90_128x192_{A} = <E, E, Tile128x192, A>,
        gemm_{E}_sm90_128x144_{A} = <E, E, Tile128x144, A>,
        gemm_{E}_sm90_128x128_{A} = <E, E, Tile128x128, A>,
        gemm_{E}_sm90_64x256_{A} = <E, E, Tile64x256, A>,
        gemm_{E}_sm90_64x192_{A} = <E, E, Tile64x192, A>,
        gemm_{E}_sm90_64x128_{A} = <E, E, Tile64x128, A>,
        gemm_{E}_sm90_64x64_{A} = <E, E, Tile64x64, A>,
        gemm_f16_sm90_128x256_in_f16 = <f16, f16, Tile128x256F16, NoGate>,
        gemm_f16_sm90_128x256_in_f16_f32 = <f16, f32, Tile128x256F16, NoGate>,
        gemm_f16_sm90_128x128_in_f16 = <f16, f16, Tile128x128F16, NoGate>,
        gemm_f16_sm90_128x128_in_f16_f32 = <f16, f32, Tile128x128F16, NoGate>
    )
)]
pub unsafe fn gemm_f16_sm90<
    E: Operand16,
    O: OutElement,
    T: WgmmaTile<Acc: Multiply<E>>,
    A: Gate,
>(
    num_rows: Global<u32>,
    max_rows: u32,
    n: u32,
    k: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<O>,
    out_stride: u32,
    // Last, so that the other parameters share few lines of the constant cache.
    a: TensorMap,
    b: TensorMap,
    out_map: TensorMap,
) {
    let residual = Matrix { ptr: residual, row_stride: residual_stride };
    let out = Matrix { ptr: out, row_stride: out_stride };
    let n = n * A::PARTS as u32;
    let layer = Layer { num_rows, max_rows, n, k, bias, residual, out, a, b, out_map };
    // SAFETY: the caller's promise.
    let block = unsafe { persistent::prepare::<E, O, T>(layer) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: as above.
    unsafe { block.compute::<_, A>(InTensorCores) }
}
