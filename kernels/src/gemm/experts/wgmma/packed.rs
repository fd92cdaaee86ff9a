//! Weights in blocks and in E4M3: dequantised into registers, operand A of the MMAs.
//!
//! A warp has a row of tiles, 16 rows of the MMA. It loads units from global memory ahead, the first
//! of a tile before it stores the one before, and dequantises half a unit while the tensor cores
//! multiply the half before.

use super::super::e4m3::E4m3Rows;
use super::super::weight::{ROUND, ScalesAt, TileRow, WarpUnits, Weight};
use super::{
    CONSUMER_REGISTERS, COPY_ROWS, Layer, NUM_CONSUMERS, NUM_THREADS, PRODUCER_REGISTERS, Stages,
    Tile,
};
use crate::activation::GateArg;
use crate::gemm::config::wgmma::ROW_BYTES;
use crate::gemm::quantised::format::{BLOCKS, TILE_K, TILE_ROWS, UNIT_K};
use crate::gemm::quantised::prompt::fragment::InOrder;
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, FragmentA, MatrixDescriptor, Swizzle};
use half::f16;

/// Most choices of a chunk.
pub const MAX_CHUNK_ROWS: u32 = 128;

/// Copies of a thread of the producer into a stage.
const COPIES: usize = (MAX_CHUNK_ROWS / COPY_ROWS) as usize;

/// Units of a warp on their way.
const RING: usize = ROUND;

/// Bytes of an MMA's k.
const MMA_K_BYTES: u32 = 32;

/// Stages for chunks of up to `x_rows` rows.
#[cfg(not(target_arch = "nvptx64"))]
pub fn stages(x_rows: u32) -> Stages {
    Stages::new(0, x_rows)
}

/// Choices that are multiplied for `num_rows` of them: columns of the MMAs.
#[inline(always)]
pub fn mma_rows(num_rows: u32) -> u32 {
    match num_rows {
        0..=32 => 32,
        33..=64 => 64,
        65..=96 => 96,
        _ => 128,
    }
}

/// The matrices of all experts.
#[derive(Clone, Copy)]
struct Matrices {
    weight: Global<u8>,
    up: Global<u8>,
    scales: ScalesAt,
}

impl Layer<f16> {
    /// The first units of the warp's row of tiles in a tile.
    ///
    /// # Safety
    /// 1. As the kernel requires.
    #[inline(always)]
    unsafe fn units<W: Weight>(&self, tile: &Tile, matrices: &Matrices) -> WarpUnits<W, RING> {
        let parts_log2 = self.gate.num_parts() - 1;
        let warp = warp::warp_idx();
        let weight = if warp & parts_log2 == 1 { matrices.up } else { matrices.weight };
        let row = tile.column / TILE_ROWS + (warp >> parts_log2);
        let Tile { expert, .. } = *tile;
        let at = TileRow { weight, n: self.n, k: self.k, expert, row, scales: matrices.scales };
        // SAFETY: the caller's promise.
        unsafe { WarpUnits::new(at, 0, 1) }
    }

    /// A warpgroup's part of a tile whose first stage is `slot`; moves that on to the next tile's,
    /// and `units` to those of the tile `next`.
    ///
    /// # Safety
    /// 1. As the kernel requires; all consumers call this for the producer's tiles; `units` are the
    ///    tile's.
    #[inline(always)]
    unsafe fn compute_packed<W: Weight<E = f16, Unit: InOrder>, const REGS: usize>(
        &self,
        [tile, next]: [&Tile; 2],
        matrices: &Matrices,
        units: &mut WarpUnits<W, RING>,
        slot: &mut Stage,
    ) {
        let x = self.smem.offset(self.stages.x_at()).cast::<f16>();
        let x = MatrixDescriptor::k_major(x, Swizzle::B128);
        let mut acc = Accumulator::<REGS>::zero().start();
        let (mut previous, mut previous_slot) = (None, None);
        let mut k = 0;
        while k < self.k {
            unroll!(i in 0..4, {
                // SAFETY: the caller's promise.
                let unit = unsafe { units.take(i) }.in_order();
                let x = x.advance(slot.stage_idx * self.stages.x_rows * ROW_BYTES);
                unroll!(half in 0..2, {
                    let fragments = units.fragments(&unit, i, half).map(FragmentA::<f16>::new);
                    if half == 0 {
                        self.pipeline.wait_full(*slot);
                        // x was written by threads.
                        fence::proxy_async_shared();
                    }
                    wgmma::fence();
                    for step in 0..2 {
                        let x = x.advance((2 * half + step) as u32 * MMA_K_BYTES);
                        // SAFETY: the stage is full until it is released; the fragments live until
                        // the wait for their group.
                        unsafe { acc.mma_rs(&fragments[step], x, true) };
                    }
                    wgmma::commit();
                    wgmma::wait_group::<1>();
                    if half == 0
                        && let Some(slot) = previous_slot
                    {
                        self.release(slot);
                    }
                    previous = Some(fragments);
                });
                previous_slot = Some(*slot);
                *slot = self.pipeline.next(*slot);
            });
            units.finish();
            k += UNIT_K * ROUND as u32;
        }
        // SAFETY: the caller's promise.
        unsafe {
            *units = self.units(next, matrices);
            let acc = [acc.wait::<0>()];
            // They lived until the wait.
            let _last = previous;
            if let Some(slot) = previous_slot {
                self.release(slot);
            }
            self.store(tile, &acc);
        }
    }
}

/// Every `grid`-th tile, from the block's index on.
///
/// # Safety
/// 1. Those of [`experts_few`](super::super::few::experts_few()), of x, the weights, out and biases;
///    `chunks` and `order` are what [`group_experts`](super::super::group::group_experts()) wrote for
///    chunks of `x_rows`, what [`mma_rows`] gives for the largest; `columns` are the tiles of a
///    chunk. Elements of x are below 2^32.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(F in BLOCKS, experts_e4m3_wgmma = <E4m3Rows>, experts_{F}_wgmma = <F>)
)]
pub unsafe fn experts_packed_wgmma<W: Weight<E = f16, Unit: InOrder>>(
    top_k: u32,
    chunks: Global<u32>,
    order: Global<u32>,
    columns: u32,
    num_stages: u32,
    x_rows: u32,
    n: u32,
    k: u32,
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
    // SAFETY: the launch gives shared memory for the stages; one thread initialises the barriers, and
    // all wait for it. Consumers and the producer run through the same tiles and stages.
    unsafe {
        let smem = dynamic_shared_mem::<u16>();
        let stages = Stages { num: num_stages, x_rows, weight_rows: 0 };
        let pipeline = Pipeline::new(smem.offset(stages.barriers_at()).cast(), num_stages);
        let layer = Layer {
            top_k,
            chunks,
            order,
            columns,
            n,
            k,
            gate: GateArg(gate),
            up_is_first: false,
            x,
            x_strides: [x_stride, x_choice_stride],
            biases: [bias, up_bias],
            out: out.cast::<f16>(),
            out_strides: [out_stride, out_choice_stride],
            smem,
            stages,
            pipeline,
        };
        let matrices =
            Matrices { weight, up, scales: ScalesAt { at: scales_at, stride: scale_stride } };
        if thread::thread_idx_x() == 0 {
            layer.init_pipeline(false);
        }
        thread::sync_threads();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let num_tiles = chunks.get(0) * columns;
        if warp::warpgroup_idx() == NUM_CONSUMERS {
            registers::decrease::<PRODUCER_REGISTERS>();
            layer.load::<COPIES>(num_tiles, k.next_multiple_of(TILE_K), mma_rows, |_, _, _| {});
        } else {
            registers::increase::<CONSUMER_REGISTERS>();
            let mut slot = Stage::FIRST;
            let mut index = thread::block_idx_x();
            let mut next = layer.tile(index, num_tiles);
            let mut units = layer.units::<W>(&next, &matrices);
            while index < num_tiles {
                let tile = next;
                index += thread::grid_dim_x();
                next = layer.tile(index, num_tiles);
                let (tiles, units, slot) = ([&tile, &next], &mut units, &mut slot);
                match mma_rows(tile.num_rows) {
                    32 => layer.compute_packed::<W, 16>(tiles, &matrices, units, slot),
                    64 => layer.compute_packed::<W, 32>(tiles, &matrices, units, slot),
                    96 => layer.compute_packed::<W, 48>(tiles, &matrices, units, slot),
                    _ => layer.compute_packed::<W, 64>(tiles, &matrices, units, slot),
                }
            }
        }
    }
}
