//! The kernel for every GPU: `mma.sync`, x by `cp.async`.

use super::epilogue::{Output, stage, staging_bytes};
use super::fragment::fragment;
use super::{MMA_THREADS, ROW_BYTES, WarpTiles, columns_of, num_rows_of, tile_of};
use crate::activation::GateArg;
use crate::gemm::quantised::format::{
    BLOCKS, Format, TILE_UNITS, Tile, Tiles, UNIT_K, lane_group, lane_pair,
};
use cuda_std::cp_async::copy_vec;
use cuda_std::mma::{self, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;
use half::f16;

/// Accumulators of a thread.
pub const REGS: usize = 32;

/// Rows of x of a block.
pub const BLOCK_ROWS: u32 = num_rows_of(REGS);

/// Rows of x of an MMA.
const MMA_ROWS: u32 = 8;

/// MMAs of a warp and step.
const NUM_MMAS: usize = (BLOCK_ROWS / MMA_ROWS) as usize;

/// Stages of x.
const NUM_STAGES: u32 = 4;

/// Elements of a 16-byte copy.
const VEC: u32 = 8;

/// Copies of a thread into a stage, and the rows between them.
const NUM_COPIES: u32 = BLOCK_ROWS * UNIT_K / VEC / MMA_THREADS;
const COPY_ROWS: u32 = BLOCK_ROWS / NUM_COPIES;

/// Bytes of shared memory: stages, whose place the staging of the epilogue takes.
pub const SHARED_BYTES: u32 = {
    let stages = NUM_STAGES * BLOCK_ROWS * ROW_BYTES;
    let staging = staging_bytes(REGS);
    if stages > staging { stages } else { staging }
};

/// Element offset of 16-byte vector `vec` of a row in a stage: the 32 bytes of four rows that 16
/// lanes load at once are in different banks.
#[inline(always)]
fn swizzle(row: u32, vec: u32) -> u32 {
    row * UNIT_K + (vec ^ (row % 4 * 2)) * VEC
}

/// Blocks an SM that the registers are limited for: formats of many quants and scales, or of
/// groups of 16 with an offset, would spill.
const fn min_blocks<F: Format>() -> u32 {
    let is_large = Tile::<F>::BYTES > 3000;
    let has_offsets = F::GROUP_STEPS == 1 && F::OFFSET != 0.0;
    if is_large || has_offsets { 1 } else { 2 }
}

/// The rows of x that a block copies.
#[derive(Clone, Copy)]
struct Rows {
    x: Global<u16>,
    stride: u32,
    first: u32,
    num_rows: u32,
    k: u32,
    smem: Shared<u16>,
}

impl Rows {
    /// Issues the thread's copies of unit `unit`; zeros past the last row and column.
    ///
    /// # Safety
    /// 1. No thread reads the unit's stage until the copies are waited for.
    #[inline(always)]
    unsafe fn copy(&self, unit: u32) {
        let vecs = UNIT_K / VEC;
        let (row, vec) = (thread::thread_idx_x() / vecs, thread::thread_idx_x() % vecs);
        let column = unit * UNIT_K + vec * VEC;
        let stage = self.smem.offset(unit % NUM_STAGES * BLOCK_ROWS * UNIT_K);
        for i in 0..NUM_COPIES {
            let in_block = i * COPY_ROWS + row;
            let from_row = self.first + in_block;
            let from = from_row as usize * self.stride as usize + column as usize;
            let exists = from_row < self.num_rows && column < self.k;
            let to = swizzle(in_block, vec);
            // SAFETY: inside, by the condition.
            unsafe { copy_vec::<{ VEC as usize }, u16>(stage, to, self.x, from, exists) };
        }
        cp_async::commit();
    }

    /// Adds the products of unit `unit` and of the fragments of A, by step.
    ///
    /// # Safety
    /// 1. The unit is copied; the warp is converged.
    #[inline(always)]
    unsafe fn multiply(
        &self,
        unit: u32,
        weights: impl Fn(usize) -> [u32; 4],
        acc: &mut [mma::Accumulator; NUM_MMAS],
    ) {
        let stage = self.smem.offset(unit % NUM_STAGES * BLOCK_ROWS * UNIT_K);
        unroll!(step in 0..4, {
            let a = FragmentA::<f16>::from_words(weights(step));
            let vec = 2 * step as u32 + lane_pair() / 2;
            let at = swizzle(lane_group(), vec) + lane_pair() % 2 * 4;
            let rows = stage.offset(at).cast::<u32>();
            for mma in 0..NUM_MMAS {
                // Four elements along k: k is permuted in A, too. SAFETY: the caller's promise.
                let b = unsafe { rows.get_vec(mma as u32 * MMA_ROWS * UNIT_K / 2) };
                acc[mma] = m16n8k16(a, FragmentB::from_words(b), acc[mma]);
            }
        });
    }
}

/// 128 rows of the weight by 64 rows of x a block.
///
/// # Safety
/// 1. Those of [`gemm_f16_prompt`](super::wgmma::gemm_f16_prompt()), but for its tensor map; rows of
///    x are 16-byte aligned.
#[kernel(
    launch_bounds(MMA_THREADS, min_blocks::<F>()),
    target(sm_80),
    overlaps,
    instances(F in BLOCKS, gemm_f16_prompt_mma_{F} = <F>)
)]
pub unsafe fn gemm_f16_prompt_mma<F: Format>(
    num_rows: Global<u32>,
    n: u32,
    k: u32,
    row_tiles: u32,
    gate: u32,
    x: Global<u16>,
    x_stride: u32,
    weight: Global<u8>,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<f16>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
) {
    let [column_tile, row_tile] = tile_of(thread::block_idx_x(), row_tiles);
    let first_row = row_tile * BLOCK_ROWS;
    // SAFETY: one element, that no launch writes.
    let num_rows = unsafe { num_rows.get(0) };
    if first_row >= num_rows {
        // Not before the launches that this one overlaps: see `grid::wait_for_dependencies`.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        return;
    }
    let tiles = Tiles::new::<F>(weight, k);
    let gate = GateArg(gate);
    let warp_tiles = WarpTiles::new(tiles, column_tile, gate.num_parts(), n, tiles.num_tiles);
    // SAFETY: tiles exist, or are zeros; the launch gives `SHARED_BYTES`; a stage is overwritten
    // after the barrier that follows its last load.
    unsafe {
        // 1. The first tile, before the previous launch has ended; x after it.
        let mut loaded = warp_tiles.tile::<F>(0).load::<F>();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let smem = dynamic_shared_mem::<u16>();
        let x = Rows { x, stride: x_stride, first: first_row, num_rows, k, smem };
        for unit in 0..NUM_STAGES - 1 {
            x.copy(unit);
        }

        // 2. Main loop.
        let mut acc = [[0.0; 4]; NUM_MMAS];
        for tile in 0..tiles.num_tiles {
            let next = warp_tiles.tile::<F>(tile + 1);
            let scales = F::unpack(loaded.scales);
            loaded.scales = next.load_scales::<F>();
            unroll!(unit in 0..4, {
                let quants = loaded.units[unit];
                loaded.units[unit] = next.load_unit::<F>(unit);
                let at = tile * TILE_UNITS as u32 + unit as u32;
                cp_async::wait(NUM_STAGES - 2);
                thread::sync_threads();
                x.copy(at + NUM_STAGES - 1);
                x.multiply(at, |step| fragment::<F>(&quants, &scales, unit, step), &mut acc);
            });
        }

        // 3. Epilogue: its staging takes the place of the stages.
        cp_async::wait(0);
        thread::sync_threads();
        let mut values = [0.0; REGS];
        for i in 0..REGS {
            values[i] = acc[i / 4][i % 4];
        }
        let staging = smem.cast();
        stage(staging, Accumulator::from_values(values));
        thread::sync_threads();
        let output = Output {
            num_rows: num_rows - first_row,
            first_row,
            n,
            first_column: column_tile * columns_of(gate.num_parts()),
            gate,
            bias,
            residual,
            residual_stride,
            half: out,
            f32: out_f32,
            stride: out_stride,
        };
        output.store::<REGS, 1>(staging);
    }
}
