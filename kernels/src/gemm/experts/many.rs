//! Linear layers of experts, many rows of x an expert (prompts): what [`few`](super::few) computes.
//!
//! Shapes    those of [`experts_few`](super::few::experts_few()).
//! Launch    grid `(columns * chunks, 1, 1)`, block `(NUM_THREADS, 1, 1)`. A block computes 256 rows
//!           of an expert's dense matrix, 128 in blocks, half of them of gate and half of up, for a chunk of up to 64 choices of it.
//! Numerics  MMAs of f16 or bf16 in f32, in the order of k. One rounding at the store; gate and up
//!           are rounded before they are multiplied. Elements in blocks are rounded to f16.
//! Bound     tensor cores, and the instructions that dequantise; with few choices memory.
//!
//! A warp has a row of tiles of the weight or two, 16 rows of A each, in registers, and loads their units
//! from global memory two ahead. The rows of x are gathered into shared memory, a unit of 64 columns a stage.

use super::chunk::shared_words as chunk_words;
use super::chunk::{Choices, Chunk, Grouped, NO_CHOICE, NUM_THREADS, NUM_WARPS, offset};
use super::e4m3::E4m3Rows;
use super::weight::{
    Dense, Fragments, ScalesAt, TileRow, WarpUnits, Weight, first_columns, multiply,
};
use crate::activation::GateArg;
use crate::element::Half;
use crate::gemm::quantised::format::{BLOCKS, TILE_ROWS, UNIT_K, lane_group, lane_pair};
use cuda_std::cp_async::copy_vec;
use cuda_std::mma::Accumulator;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Choices of a chunk.
pub const CHUNK_ROWS: u32 = 64;

/// Rows of the weight of a block whose warps have `tiles` rows of tiles each.
pub const fn block_columns(tiles: usize) -> u32 {
    NUM_WARPS * tiles as u32 * TILE_ROWS
}

/// Units of a row of tiles on their way.
const RING: usize = 2;

/// Rows of x of an MMA.
const MMA_ROWS: u32 = 8;

/// MMAs of a warp and step.
const NUM_MMAS: usize = (CHUNK_ROWS / MMA_ROWS) as usize;

/// Stages of x.
const NUM_STAGES: u32 = 4;

/// Elements of a 16-byte copy.
const VEC: u32 = 8;

/// Vectors of a row of a stage.
const ROW_VECS: u32 = UNIT_K / VEC;

/// Copies of a thread into a stage, and the rows between them.
const NUM_COPIES: usize = (CHUNK_ROWS * ROW_VECS / NUM_THREADS) as usize;
const COPY_ROWS: u32 = CHUNK_ROWS / NUM_COPIES as u32;

/// Elements between two rows of the staging of the epilogue: lanes write to different banks.
const fn staging_stride(tiles: usize) -> u32 {
    block_columns(tiles) + 4
}

/// Outputs that a thread stores at once.
const OUT_VEC: u32 = 4;

/// Words of shared memory of a block: the chunk, and stages, whose place the staging takes.
pub const fn shared_words(tiles: usize) -> u32 {
    let stages = NUM_STAGES * CHUNK_ROWS * UNIT_K / 2;
    let staging = CHUNK_ROWS * staging_stride(tiles);
    chunk_words(CHUNK_ROWS) + if stages > staging { stages } else { staging }
}

/// Element offset of 16-byte vector `vec` of a row in a stage: what the lanes load at once is in
/// different banks, 32 bytes of four rows or 64 bytes of two.
#[inline(always)]
fn swizzle<W: Weight>(row: u32, vec: u32) -> u32 {
    let flip = if W::RUN == 8 { row % 2 * 4 } else { row % 4 * 2 };
    row * UNIT_K + (vec ^ flip) * VEC
}

/// The rows of x of a chunk.
struct Rows {
    x: Global<u16>,
    /// Where the rows start that the thread copies.
    from: [usize; NUM_COPIES],
    exists: [bool; NUM_COPIES],
    k: u32,
    smem: Shared<u16>,
}

impl Rows {
    /// Issues the thread's copies of unit `unit`; zeros where there is no choice, and from `k` on.
    ///
    /// # Safety
    /// 1. No thread reads the unit's stage until the copies are waited for.
    #[inline(always)]
    unsafe fn copy<W: Weight>(&self, unit: u32) {
        let (row, vec) = (thread::thread_idx_x() / ROW_VECS, thread::thread_idx_x() % ROW_VECS);
        let column = unit * UNIT_K + vec * VEC;
        let stage = self.smem.offset(unit % NUM_STAGES * CHUNK_ROWS * UNIT_K);
        for i in 0..NUM_COPIES {
            let to = swizzle::<W>(i as u32 * COPY_ROWS + row, vec);
            let from = self.from[i] + column as usize;
            let exists = self.exists[i] && column < self.k;
            // SAFETY: inside, by the condition.
            unsafe { copy_vec::<{ VEC as usize }, u16>(stage, to, self.x, from, exists) };
        }
        cp_async::commit();
    }

    /// Adds the products of half `half` of unit `unit` with each of the warp's rows of tiles.
    ///
    /// # Safety
    /// 1. The unit is copied; the warp is converged.
    #[inline(always)]
    unsafe fn multiply<W: Weight, const TILES: usize>(
        &self,
        unit: u32,
        half: usize,
        fragments: &[Fragments; TILES],
        acc: &mut [[Accumulator; NUM_MMAS]; TILES],
    ) {
        let stage = self.smem.offset(unit % NUM_STAGES * CHUNK_ROWS * UNIT_K);
        // Rows of other MMAs are a multiple of eight apart, and share their swizzle.
        let first = first_columns::<W>(half).map(|column| {
            let at = swizzle::<W>(lane_group(), column / VEC) + column % VEC;
            stage.offset(at).cast::<u32>()
        });
        for mma in 0..NUM_MMAS {
            let below = mma as u32 * MMA_ROWS * UNIT_K / 2;
            // SAFETY: the caller's promise.
            let x = unsafe {
                if W::RUN == 8 {
                    let [a, b, c, d] = first[0].get_vec(below);
                    [[a, b], [c, d]]
                } else {
                    first.map(|words| words.get_vec(below))
                }
            };
            for tile in 0..TILES {
                acc[tile][mma] = multiply::<W::E>(&fragments[tile], &x, acc[tile][mma]);
            }
        }
    }
}

/// Where the outputs of a block go.
struct Output {
    n: u32,
    /// The block's first column.
    first_column: u32,
    gate: GateArg,
    /// Biases of the weight and of up.
    biases: [Global<f32>; 2],
    top_k: u32,
    strides: [u32; 2],
    out: GlobalMut<()>,
}

impl Output {
    /// Adds the bias of a part, if there is one, to columns from `column` on.
    ///
    /// # Safety
    /// As [`Output::store`].
    #[inline(always)]
    unsafe fn add_bias(
        &self,
        part: usize,
        expert: u32,
        column: u32,
        values: &mut [f32; OUT_VEC as usize],
    ) {
        if !self.biases[part].is_null() {
            let at = expert as usize * self.n as usize + column as usize;
            for i in 0..OUT_VEC as usize {
                if column + (i as u32) < self.n {
                    // SAFETY: the column is inside.
                    values[i] += unsafe { self.biases[part].get(at + i) };
                }
            }
        }
    }

    /// Stores what all warps have staged.
    ///
    /// # Safety
    /// 1. The staging is written; the operands are as the kernel requires.
    #[inline(always)]
    unsafe fn store<E: Half, const TILES: usize>(&self, staging: Shared<f32>, chunk: &Chunk) {
        let parts_log2 = self.gate.num_parts() - 1;
        let vecs_log2 = (block_columns(TILES) / OUT_VEC).ilog2() - parts_log2;
        let strides = self.strides[0] | self.strides[1] | self.n;
        let is_vector = strides.is_multiple_of(OUT_VEC) && self.out.address().is_multiple_of(8);
        let out = self.out.cast::<E>();
        let mut item = thread::thread_idx_x();
        while item < chunk.num_rows << vecs_log2 {
            let (row, vec) = (item >> vecs_log2, item & ((1 << vecs_log2) - 1));
            item += NUM_THREADS;
            let column = self.first_column + vec * OUT_VEC;
            if column >= self.n {
                continue;
            }
            // Tiles of gate and up are in turn.
            let (tile, in_tile) = (vec * OUT_VEC / TILE_ROWS, vec * OUT_VEC % TILE_ROWS);
            let staged = staging
                .offset(row * staging_stride(TILES) + (tile << parts_log2) * TILE_ROWS + in_tile);
            // SAFETY: the caller's promise; row and column are inside.
            unsafe {
                let choice = chunk.rows.get(row);
                let mut values: [f32; OUT_VEC as usize] = staged.get_vec(0);
                self.add_bias(0, chunk.expert, column, &mut values);
                if parts_log2 == 1 {
                    let mut up: [f32; OUT_VEC as usize] = staged.offset(TILE_ROWS).get_vec(0);
                    self.add_bias(1, chunk.expert, column, &mut up);
                    for i in 0..OUT_VEC as usize {
                        // As the separate operations round.
                        let [gate, up] =
                            [values[i], up[i]].map(|value| E::from_f32(value).to_f32());
                        values[i] = self.gate.apply::<E>(gate, up);
                    }
                }
                let at = offset(choice, self.top_k, self.strides) + column as usize;
                if is_vector {
                    let [a, b, c, d] = values;
                    out.cast::<u32>().set_vec(at / 2, [E::pack(a, b), E::pack(c, d)]);
                } else {
                    for i in 0..OUT_VEC as usize {
                        if column + (i as u32) < self.n {
                            out.set(at + i, E::from_f32(values[i]));
                        }
                    }
                }
            }
        }
    }
}

/// 128 or 256 rows of an expert's matrix by up to 64 choices of it a block.
///
/// # Safety
/// 1. Those of [`experts_few`](super::few::experts_few()), but for `k_warps_log2`; `chunks` are of
///    [`CHUNK_ROWS`].
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        F in BLOCKS,
        E in [f16, bf16],
        experts_{E}_many = <Dense<E>, 2>,
        experts_e4m3_many = <E4m3Rows, 1>,
        experts_{F}_many = <F, 1>
    )
)]
pub unsafe fn experts_many<W: Weight, const TILES: usize>(
    num_tokens: Global<u32>,
    top_k: u32,
    experts: Global<u32>,
    experts_stride: u32,
    chunks: Global<u32>,
    order: Global<u32>,
    columns: u32,
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
    // Never 0; `max` tells the compiler.
    let columns = columns.max(1);
    let (block, chunk_idx) = (thread::block_idx_x() % columns, thread::block_idx_x() / columns);
    let gate = GateArg(gate);
    let scales = ScalesAt { at: scales_at, stride: scale_stride };
    // SAFETY: the launch gives `SHARED_WORDS`; a stage is overwritten after the barrier that follows
    // its last load.
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

        // 1. The first tile, and the first units of x.
        let parts_log2 = gate.num_parts() - 1;
        let row_of = |tile: usize| {
            let tile_row = (block * NUM_WARPS + warp::warp_idx()) * TILES as u32 + tile as u32;
            let weight = if tile_row & parts_log2 == 1 { up } else { weight };
            let row = tile_row >> parts_log2;
            TileRow { weight, n, k, expert: chunk.expert, row, scales }
        };
        let mut units = [WarpUnits::<W, RING>::new(row_of(0), 0, 1); TILES];
        for tile in 1..TILES {
            units[tile] = WarpUnits::new(row_of(tile), 0, 1);
        }
        let stages = smem.offset(chunk_words(CHUNK_ROWS)).cast::<u16>();
        let mut rows =
            Rows { x, from: [0; NUM_COPIES], exists: [false; NUM_COPIES], k, smem: stages };
        for i in 0..NUM_COPIES {
            let row = i as u32 * COPY_ROWS + thread::thread_idx_x() / ROW_VECS;
            let choice = chunk.rows.get(row);
            rows.exists[i] = choice != NO_CHOICE;
            if rows.exists[i] {
                rows.from[i] = offset(choice, top_k, [x_stride, x_choice_stride]);
            }
        }
        for unit in 0..NUM_STAGES - 1 {
            rows.copy::<W>(unit);
        }

        // 2. Main loop.
        let mut acc = [[[0.0; 4]; NUM_MMAS]; TILES];
        let mut unit_idx = 0;
        while unit_idx * UNIT_K < k {
            unroll!(i in 0..4, {
                cp_async::wait(NUM_STAGES - 2);
                thread::sync_threads();
                rows.copy::<W>(unit_idx + NUM_STAGES - 1);
                let mut loaded = [units[0].take(i); TILES];
                for tile in 1..TILES {
                    loaded[tile] = units[tile].take(i);
                }
                unroll!(half in 0..2, {
                    let mut fragments = [units[0].fragments(&loaded[0], i, half); TILES];
                    for tile in 1..TILES {
                        fragments[tile] = units[tile].fragments(&loaded[tile], i, half);
                    }
                    rows.multiply::<W, TILES>(unit_idx, half, &fragments, &mut acc);
                });
                unit_idx += 1;
            });
            for tile in 0..TILES {
                units[tile].finish();
            }
        }

        // 3. Epilogue: its staging takes the place of the stages.
        cp_async::wait(0);
        thread::sync_threads();
        let staging = stages.cast::<f32>();
        for tile in 0..TILES {
            let tile_idx = warp::warp_idx() * TILES as u32 + tile as u32;
            let column = tile_idx * TILE_ROWS + lane_group();
            for mma in 0..NUM_MMAS {
                for i in 0..4 {
                    let row = mma as u32 * MMA_ROWS + 2 * lane_pair() + i % 2;
                    let at = row * staging_stride(TILES) + column + i / 2 * 8;
                    staging.set(at, acc[tile][mma][i as usize]);
                }
            }
        }
        thread::sync_threads();
        let first_column = block * (block_columns(TILES) >> parts_log2);
        let strides = [out_stride, out_choice_stride];
        let biases = [bias, up_bias];
        let output = Output { n, first_column, gate, biases, top_k, strides, out };
        output.store::<W::E, TILES>(staging, &chunk);
    }
}
