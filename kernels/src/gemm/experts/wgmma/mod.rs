//! Linear layers of experts on Hopper: what [`few`](super::few) computes, by `wgmma`.
//!
//! Shapes    those of [`experts_few`](super::few::experts_few()); chunks of up to 256 choices, of
//!           packed weights 128.
//! Launch    persistent: at most one block an SM, block `(NUM_THREADS, 1, 1)`. A tile is 128 rows of
//!           an expert's matrix, or 64 of gate and of up, by a chunk.
//! Numerics  MMAs of f16 or bf16 in f32, in the order of k. One rounding at the store; gate and up
//!           are rounded before they are multiplied. Elements in blocks are rounded to f16.
//! Bound     tensor cores; with few choices an expert memory, and of weights in blocks or in E4M3 the
//!           instructions that dequantise.
//! Source    CUTLASS (grouped GEMM, mixed-input GEMM), DeepGEMM ("swap A/B").
//!
//! Operands are swapped: rows of the weight are the 64 rows of an MMA, choices its columns, of which
//! a chunk has as many as it needs. The last warpgroup gathers the rows of x by `cp.async`. Of
//! [`dense`] weights one thread of it loads boxes by TMA; of [`packed`] ones the warps that multiply
//! have 16 rows each in registers. Rows of gate and of up alternate by 16.

pub mod dense;
mod output;
pub mod packed;

use super::chunk::{CHUNK_WORDS, offset};
use crate::activation::GateArg;
use crate::gemm::config::wgmma::BLOCK_K;
use crate::gemm::mainloop::accumulators::MMA_M;
use crate::tile::pipeline::{Pipeline, Stage};
use crate::tile::smem::swizzle;
use cuda_std::cp_async::copy_vec;
use cuda_std::prelude::*;
use output::STAGING_ELEMS;

/// Consumer warpgroups; one more is the producer.
const NUM_CONSUMERS: u32 = 2;

/// Threads of a block.
pub const NUM_THREADS: u32 = (NUM_CONSUMERS + 1) * warp::WARPGROUP_SIZE;

/// Rows of the weight of a tile.
pub const BLOCK_COLUMNS: u32 = NUM_CONSUMERS * MMA_M;

/// Rows of gate, and then of up, that are next to each other in a tile: those of a warp.
pub const GATE_ROWS: u32 = 16;

/// Registers of a thread of the producer and of the consumers.
const PRODUCER_REGISTERS: u32 = 56;
const CONSUMER_REGISTERS: u32 = 224;

/// Elements of a 16-byte vector.
const VEC: u32 = 8;

/// Vectors of a row of a stage.
const ROW_VECS: u32 = BLOCK_K / VEC;

/// Rows of x that the producer's threads copy at once into a stage.
const COPY_ROWS: u32 = warp::WARPGROUP_SIZE / ROW_VECS;

/// Most stages.
const MAX_STAGES: u32 = 8;

/// Bytes of shared memory that stages do not take: the staging, and the barriers.
const OTHER_BYTES: u32 = 2 * NUM_CONSUMERS * STAGING_ELEMS + 8 * Pipeline::num_words(MAX_STAGES);

/// How a launch divides its shared memory.
#[derive(Clone, Copy)]
pub struct Stages {
    /// How many stages.
    pub num: u32,
    /// Rows of x of each: those of the largest chunk.
    pub x_rows: u32,
    /// Rows of the weight of each.
    weight_rows: u32,
}

impl Stages {
    /// Stages of `weight_rows` of the weight, and for chunks of up to `x_rows` rows.
    #[cfg(not(target_arch = "nvptx64"))]
    fn new(weight_rows: u32, x_rows: u32) -> Self {
        use crate::gemm::config::wgmma::MAX_SHARED_BYTES;
        let bytes = 2 * (weight_rows + x_rows) * BLOCK_K;
        let num = ((MAX_SHARED_BYTES - OTHER_BYTES) / bytes).min(MAX_STAGES);
        Stages { num, x_rows, weight_rows }
    }

    /// Bytes of shared memory.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn shared_bytes(self) -> u32 {
        2 * self.staging_at() + OTHER_BYTES
    }

    // Shared memory, in elements of 16 bits: the weight of all stages, x of all stages, the
    // staging, and the barriers.
    fn x_at(self) -> u32 {
        self.num * self.weight_rows * BLOCK_K
    }

    fn staging_at(self) -> u32 {
        self.x_at() + self.num * self.x_rows * BLOCK_K
    }

    fn barriers_at(self) -> u32 {
        self.staging_at() + NUM_CONSUMERS * STAGING_ELEMS
    }
}

/// The layer, as all threads know it.
#[derive(Clone, Copy)]
struct Layer<E> {
    top_k: u32,
    /// See [`Grouped`](super::chunk::Grouped).
    chunks: Global<u32>,
    order: Global<u32>,
    /// Tiles of a chunk.
    columns: u32,
    n: u32,
    k: u32,
    gate: GateArg,
    /// Whether rows of up come before those of the gate.
    up_is_first: bool,
    x: Global<u16>,
    x_strides: [u32; 2],
    biases: [Global<f32>; 2],
    out: GlobalMut<E>,
    out_strides: [u32; 2],
    smem: Shared<u16>,
    stages: Stages,
    pipeline: Pipeline,
}

/// A tile.
#[derive(Clone, Copy)]
struct Tile {
    expert: u32,
    /// The first choice in the order, and their number.
    first: u32,
    num_rows: u32,
    /// The first column of the output.
    column: u32,
}

impl<E> Layer<E> {
    /// Tile `index` of `num_tiles`; past the last one, nothing.
    ///
    /// # Safety
    /// 1. The chunks are written.
    #[inline(always)]
    unsafe fn tile(&self, index: u32, num_tiles: u32) -> Tile {
        // Never 0; `max` tells the compiler.
        let columns = self.columns.max(1);
        let (chunk, column) = (index / columns, index % columns);
        let chunk = self.chunks.wrapping_add(((chunk + 1) * CHUNK_WORDS) as usize);
        let column = column * self.tile_columns();
        // SAFETY: there is a chunk, by the condition.
        let [expert, first, num_rows, _] = unsafe { chunk.get_vec_if(0, index < num_tiles) };
        Tile { expert, first, num_rows, column }
    }

    /// Columns of the output of a tile.
    #[inline(always)]
    fn tile_columns(&self) -> u32 {
        BLOCK_COLUMNS >> (self.gate.num_parts() - 1)
    }

    /// The pipeline's barriers are initialised, by one thread: a full stage has been written by the
    /// producer's threads, and by TMA if `by_tma`.
    #[inline(always)]
    fn init_pipeline(&self, by_tma: bool) {
        let arrivals = u32::from(by_tma) + warp::WARPGROUP_SIZE;
        self.pipeline.init_for(arrivals, NUM_CONSUMERS * 4);
    }

    /// The producer: the rows of x for the block's tiles, in stages up to column `k_end`. Of chunks
    /// of up to `COPIES` times [`COPY_ROWS`] it copies `mma_rows`. One thread calls `load_weight`
    /// with a tile, its column, and the stage.
    ///
    /// # Safety
    /// 1. As the kernel requires; all threads of a warpgroup call this.
    #[inline(always)]
    unsafe fn load<const COPIES: usize>(
        &self,
        num_tiles: u32,
        k_end: u32,
        mma_rows: impl Fn(u32) -> u32,
        load_weight: impl Fn(&Tile, u32, Stage),
    ) {
        let thread = thread::thread_idx_x() % warp::WARPGROUP_SIZE;
        let (row, vec) = (thread / ROW_VECS, thread % ROW_VECS);
        let mut slot = Stage::FIRST;
        let mut index = thread::block_idx_x();
        while index < num_tiles {
            // SAFETY: the caller's promise; the tile and the choices exist.
            unsafe {
                let tile = self.tile(index, num_tiles);
                let mma_rows = mma_rows(tile.num_rows);
                let mut from = [0; COPIES];
                for i in 0..COPIES {
                    // Rows without a choice have the last one's: their results are not stored.
                    let row = (i as u32 * COPY_ROWS + row).min(tile.num_rows - 1);
                    let choice = self.order.get((tile.first + row) as usize);
                    from[i] = offset(choice, self.top_k, self.x_strides) as u32;
                }
                let mut k = 0;
                while k < k_end {
                    self.pipeline.wait_empty(slot);
                    if thread == 0 {
                        load_weight(&tile, k, slot);
                    }
                    let stage = self.stages.x_at() + slot.stage_idx * self.stages.x_rows * BLOCK_K;
                    let stage = self.smem.offset(stage);
                    let column = k + vec * VEC;
                    for i in 0..COPIES {
                        let first = i as u32 * COPY_ROWS;
                        if first < mma_rows {
                            let to = swizzle::<u16, BLOCK_K>(first + row, vec);
                            let at = from[i] as usize + column as usize;
                            let exists = column < self.k;
                            copy_vec::<{ VEC as usize }, u16>(stage, to, self.x, at, exists);
                        }
                    }
                    self.pipeline.full_barrier(slot).arrive_cp_async_noinc();
                    slot = self.pipeline.next(slot);
                    k += BLOCK_K;
                }
            }
            index += thread::grid_dim_x();
        }
        // The stages are shared memory of the block until they are written.
        cp_async::wait(0);
    }

    /// Arrives, for the warp, on the stage's empty barrier.
    #[inline(always)]
    fn release(&self, slot: Stage) {
        if warp::lane_id() == 0 {
            self.pipeline.empty_barrier(slot).arrive();
        }
    }
}
