//! Linear layers of experts on Hopper, dense weights: what [`few`](super::few) computes, by `wgmma`.
//!
//! Shapes    those of [`experts_few`](super::few::experts_few()); chunks of up to 128 choices.
//! Launch    persistent: at most one block an SM, block `(NUM_THREADS, 1, 1)`. A tile is 256 rows of
//!           an expert's matrix, or 128 of gate and of up, by a chunk.
//! Numerics  MMAs of f16 or bf16 in f32, in the order of k. One rounding at the store; gate and up
//!           are rounded before they are multiplied.
//! Bound     tensor cores; with few choices an expert memory.
//! Source    CUTLASS (grouped GEMM), DeepGEMM ("swap A/B").
//!
//! Operands are swapped: rows of the weight are the 64 rows of an MMA, choices its columns, of which
//! a chunk has as many as it needs. A warpgroup has two MMAs that read the same x: gate and up, whose
//! products a thread then has both of. One thread of the last warpgroup loads the weight by TMA; all
//! of it gather the rows of x by `cp.async`.

use super::chunk::{CHUNK_WORDS, offset};
use crate::activation::GateArg;
use crate::gemm::config::wgmma::{BLOCK_K, ROW_BYTES};
use crate::gemm::epilogue::wgmma::{SUBTILE_COLUMNS, SUBTILE_REGS};
use crate::gemm::mainloop::accumulators::{MMA_M, Multiply};
use crate::tile::element::Operand16;
use crate::tile::pipeline::{Pipeline, Stage};
use crate::tile::smem::swizzle;
use cuda_std::bulk::CacheHint;
use cuda_std::cp_async::copy_vec;
use cuda_std::matrix;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, MatrixDescriptor, Swizzle};
use half::{bf16, f16};

/// Most choices of a chunk.
pub const CHUNK_ROWS: u32 = 128;

/// Consumer warpgroups; one more is the producer.
const NUM_CONSUMERS: u32 = 2;

/// Threads of a block.
pub const NUM_THREADS: u32 = (NUM_CONSUMERS + 1) * warp::WARPGROUP_SIZE;

/// MMAs of a warpgroup along the rows of the weight.
const NUM_MMAS: u32 = 2;

/// Rows of the weight of a warpgroup.
const WARPGROUP_COLUMNS: u32 = NUM_MMAS * MMA_M;

/// Rows of the weight of a block.
pub const BLOCK_COLUMNS: u32 = NUM_CONSUMERS * WARPGROUP_COLUMNS;

/// Rows of a box of the weight, of 64 columns.
pub const BOX_ROWS: u32 = MMA_M;

/// Registers of a thread of the producer and of the consumers.
const PRODUCER_REGISTERS: u32 = 56;
const CONSUMER_REGISTERS: u32 = 224;

const NUM_STAGES: u32 = 4;

/// Elements of a 16-byte vector.
const VEC: u32 = 8;

/// Vectors of a row of a stage.
const ROW_VECS: u32 = BLOCK_K / VEC;

/// Copies of a thread of the producer into a stage, and the rows between them.
const NUM_COPIES: usize = (CHUNK_ROWS / COPY_ROWS) as usize;
const COPY_ROWS: u32 = warp::WARPGROUP_SIZE / ROW_VECS;

/// Elements between choices in the staging of a warpgroup, of 64 choices: rows that are stored at
/// once are in different banks.
const STAGING_STRIDE: u32 = MMA_M + VEC;
const STAGING_ELEMS: u32 = SUBTILE_COLUMNS * STAGING_STRIDE;

/// Rows that a thread stores of 64 choices, and how far they are apart.
const NUM_STORES: usize = (SUBTILE_COLUMNS / STORE_ROWS) as usize;
const STORE_ROWS: u32 = warp::WARPGROUP_SIZE / (MMA_M / VEC);

// Shared memory, in elements of 16 bits: the weight of all stages, x of all stages, the staging.
const X_AT: u32 = NUM_STAGES * BLOCK_COLUMNS * BLOCK_K;
const STAGING_AT: u32 = X_AT + NUM_STAGES * CHUNK_ROWS * BLOCK_K;
const BARRIERS_AT: u32 = STAGING_AT + NUM_CONSUMERS * STAGING_ELEMS;

/// Bytes of shared memory of a block.
pub const SHARED_BYTES: u32 = 2 * BARRIERS_AT + 8 * Pipeline::num_words(NUM_STAGES);

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
    x: Global<u16>,
    x_strides: [u32; 2],
    biases: [Global<f32>; 2],
    out: GlobalMut<E>,
    out_strides: [u32; 2],
    smem: Shared<u16>,
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

impl Tile {
    /// Choices that are multiplied: columns of the MMAs.
    #[inline(always)]
    fn mma_rows(&self) -> u32 {
        match self.num_rows {
            ..=16 => 16,
            ..=32 => 32,
            ..=64 => 64,
            ..=96 => 96,
            _ => 128,
        }
    }
}

impl<E: Operand16> Layer<E> {
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
        let column = column * (BLOCK_COLUMNS >> (self.gate.num_parts() - 1));
        // SAFETY: there is a chunk, by the condition.
        let [expert, first, num_rows, _] = unsafe { chunk.get_vec_if(0, index < num_tiles) };
        Tile { expert, first, num_rows, column }
    }

    /// The producer: loads the stages of the block's tiles.
    ///
    /// # Safety
    /// 1. As the kernel requires; all threads of a warpgroup call this.
    #[inline(always)]
    unsafe fn load(&self, num_tiles: u32, weight: TensorMap, up: TensorMap) {
        let thread = thread::thread_idx_x() % warp::WARPGROUP_SIZE;
        let (row, vec) = (thread / ROW_VECS, thread % ROW_VECS);
        let has_gate = self.gate.num_parts() == 2;
        let mut slot = Stage::FIRST;
        let mut index = thread::block_idx_x();
        while index < num_tiles {
            // SAFETY: the caller's promise; the tile and the choices exist.
            unsafe {
                let tile = self.tile(index, num_tiles);
                let mut from = [self.x; NUM_COPIES];
                for i in 0..NUM_COPIES {
                    // Rows without a choice have the last one's: their results are not stored.
                    let row = (i as u32 * COPY_ROWS + row).min(tile.num_rows - 1);
                    let choice = self.order.get((tile.first + row) as usize);
                    from[i] = self.x.wrapping_add(offset(choice, self.top_k, self.x_strides));
                }
                let mma_rows = tile.mma_rows();
                let mut k = 0;
                while k < self.k {
                    self.pipeline.wait_empty(slot);
                    let full_barrier = self.pipeline.full_barrier(slot);
                    if thread == 0 {
                        full_barrier.arrive_expect_tx(BLOCK_COLUMNS * ROW_BYTES);
                        for i in 0..BLOCK_COLUMNS / BOX_ROWS {
                            let (map, below) = match has_gate {
                                true if i % 2 == 1 => (up, i / 2),
                                true => (weight, i / 2),
                                false => (weight, i),
                            };
                            let row = tile.expert * self.n + tile.column + below * BOX_ROWS;
                            let to = (slot.stage_idx * BLOCK_COLUMNS + i * BOX_ROWS) * BLOCK_K;
                            let to = self.smem.offset(to).cast::<E>();
                            let origin = [k as i32, row as i32];
                            let hint = CacheHint::EvictNormal;
                            bulk::tensor_load(to, map, origin, full_barrier, hint);
                        }
                    }
                    let stage = self.smem.offset(X_AT + slot.stage_idx * CHUNK_ROWS * BLOCK_K);
                    let column = k + vec * VEC;
                    for i in 0..NUM_COPIES {
                        let first = i as u32 * COPY_ROWS;
                        if first < mma_rows {
                            let to = swizzle::<u16, BLOCK_K>(first + row, vec);
                            let exists = column < self.k;
                            copy_vec::<{ VEC as usize }, u16>(
                                stage,
                                to,
                                from[i],
                                column as usize,
                                exists,
                            );
                        }
                    }
                    full_barrier.arrive_cp_async_noinc();
                    slot = self.pipeline.next(slot);
                    k += BLOCK_K;
                }
            }
            index += thread::grid_dim_x();
        }
        // The stages are shared memory of the block until they are written.
        cp_async::wait(0);
    }

    /// A warpgroup's part of a tile whose first stage is `slot`; returns the stage after it.
    ///
    /// # Safety
    /// 1. As the kernel requires; all consumers call this for the producer's tiles.
    #[inline(always)]
    unsafe fn compute<A: Multiply<E>>(&self, tile: &Tile, mut slot: Stage) -> Stage {
        let warpgroup = warp::warpgroup_idx();
        let weight = MatrixDescriptor::k_major(self.smem.cast::<E>(), Swizzle::B128)
            .advance(warpgroup * WARPGROUP_COLUMNS * ROW_BYTES);
        let x = MatrixDescriptor::k_major(self.smem.offset(X_AT).cast::<E>(), Swizzle::B128);
        let mut acc = A::start();
        let mut previous = slot;
        let mut k = 0;
        while k < self.k {
            self.pipeline.wait_full(slot);
            // x was written by threads.
            fence::proxy_async_shared();
            wgmma::fence();
            let weight = weight.advance(slot.stage_idx * BLOCK_COLUMNS * ROW_BYTES);
            let x = x.advance(slot.stage_idx * CHUNK_ROWS * ROW_BYTES);
            // SAFETY: the stage is full, and stays so until it is released.
            unsafe { A::multiply(&mut acc, weight, x) };
            wgmma::commit();
            // The MMAs of this stage are in flight while those of the previous one are waited for.
            wgmma::wait_group::<1>();
            if k > 0 {
                self.release(previous);
            }
            previous = slot;
            slot = self.pipeline.next(slot);
            k += BLOCK_K;
        }
        let acc = A::wait(acc);
        self.release(previous);
        // SAFETY: the caller's promise.
        unsafe { self.store(tile, &acc) };
        slot
    }

    /// Arrives, for the warp, on the stage's empty barrier.
    #[inline(always)]
    fn release(&self, slot: Stage) {
        if warp::lane_id() == 0 {
            self.pipeline.empty_barrier(slot).arrive();
        }
    }

    /// Stores a warpgroup's accumulators.
    ///
    /// # Safety
    /// As [`Layer::compute`].
    #[inline(always)]
    unsafe fn store<A: Multiply<E>>(&self, tile: &Tile, acc: &A) {
        let parts = self.gate.num_parts();
        let column = tile.column + warp::warpgroup_idx() * (WARPGROUP_COLUMNS >> (parts - 1));
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(subtile in 0..2, {
                if (subtile as u32) < A::SUBTILES_N {
                    let upper = self.with_bias(tile, 0, column, acc.subtile(subtile as u32));
                    let second = acc.subtile(subtile as u32 + A::SUBTILES_N);
                    let first_row = subtile as u32 * SUBTILE_COLUMNS;
                    if parts == 2 {
                        let up = self.with_bias(tile, 1, column, second);
                        let mut values = [0.0; SUBTILE_REGS];
                        for i in 0..SUBTILE_REGS {
                            // As the separate operations round.
                            let [gate, up] =
                                [upper[i], up[i]].map(|value| E::from_f32(value).to_f32());
                            values[i] = self.gate.apply::<E>(gate, up);
                        }
                        self.store_subtile::<A>(tile, [first_row, column], &values);
                    } else {
                        self.store_subtile::<A>(tile, [first_row, column], &upper);
                        let column = column + MMA_M;
                        let lower = self.with_bias(tile, 0, column, second);
                        self.store_subtile::<A>(tile, [first_row, column], &lower);
                    }
                }
            });
        }
    }

    /// Values of a subtile whose first column is `column`, with the bias of a part.
    ///
    /// # Safety
    /// As [`Layer::compute`].
    #[inline(always)]
    unsafe fn with_bias(
        &self,
        tile: &Tile,
        part: usize,
        column: u32,
        mut values: [f32; SUBTILE_REGS],
    ) -> [f32; SUBTILE_REGS] {
        if !self.biases[part].is_null() {
            let column = column + warp::warp_idx() % 4 * 16 + warp::lane_id() / 4;
            let mut terms = [0.0; 2];
            for i in 0..2 {
                let column = column + 8 * i as u32;
                if column < self.n {
                    let at = tile.expert as usize * self.n as usize + column as usize;
                    // SAFETY: the column is inside.
                    terms[i] = unsafe { self.biases[part].get(at) };
                }
            }
            for i in 0..SUBTILE_REGS {
                values[i] += terms[i / 2 % 2];
            }
        }
        values
    }

    /// Stores 64 columns from `origin[1]` on of the choices from `origin[0]` on.
    ///
    /// # Safety
    /// As [`Layer::compute`].
    #[inline(always)]
    unsafe fn store_subtile<A: Multiply<E>>(
        &self,
        tile: &Tile,
        [first_row, first_column]: [u32; 2],
        values: &[f32; SUBTILE_REGS],
    ) {
        let (thread, lane) = (thread::thread_idx_x() % warp::WARPGROUP_SIZE, warp::lane_id());
        let staging = STAGING_AT + warp::warpgroup_idx() * STAGING_ELEMS;
        let staging = self.smem.offset(staging);
        let vectors = self.out_strides[0] | self.out_strides[1] | self.n;
        let is_vector = vectors.is_multiple_of(VEC) && self.out.address().is_multiple_of(16);
        // SAFETY: the caller's promise; the barriers separate the writes from the reads.
        unsafe {
            // 1. Transposed: a row of the staging is a choice.
            sync_warpgroup();
            let (matrix, row) = (lane / 8, lane % 8);
            let column = warp::warp_idx() % 4 * 16 + matrix % 2 * 8;
            let to = staging.offset((matrix / 2 * 8 + row) * STAGING_STRIDE + column);
            unroll!(rows in 0..4, {
                if 16 * (rows as u32) < A::COLUMNS {
                    let words = [0, 2, 4, 6].map(|i| {
                        let i = 8 * rows + i;
                        E::pack(values[i], values[i + 1])
                    });
                    matrix::store_x4_trans(to.offset(rows as u32 * 16 * STAGING_STRIDE), words);
                }
            });
            sync_warpgroup();

            // 2. Eight columns a thread and row.
            let (row, vec) = (thread / (MMA_M / VEC), thread % (MMA_M / VEC));
            let column = first_column + vec * VEC;
            for i in 0..NUM_STORES {
                let row = i as u32 * STORE_ROWS + row;
                let in_chunk = first_row + row;
                if in_chunk >= tile.num_rows || column >= self.n {
                    continue;
                }
                let choice = self.order.get((tile.first + in_chunk) as usize);
                let at = offset(choice, self.top_k, self.out_strides) + column as usize;
                let staged = staging.offset(row * STAGING_STRIDE + vec * VEC);
                if is_vector {
                    let words: [u32; 4] = staged.cast::<u32>().get_vec(0);
                    self.out.cast::<u32>().set_vec(at / 2, words);
                } else {
                    for i in 0..VEC.min(self.n - column) {
                        let elem = staged.cast::<E>().get(i);
                        self.out.set(at + i as usize, elem);
                    }
                }
            }
        }
    }
}

/// Waits for the threads of the consumer's warpgroup.
#[inline(always)]
fn sync_warpgroup() {
    if warp::warpgroup_idx() == 0 {
        barrier::sync::<1, { warp::WARPGROUP_SIZE }>();
    } else {
        barrier::sync::<2, { warp::WARPGROUP_SIZE }>();
    }
}

/// Every `grid`-th tile, from the block's index on.
///
/// # Safety
/// 1. Those of [`experts_few`](super::few::experts_few()), of x, out and biases; `chunks` and `order`
///    are what [`group_experts`](super::group::group_experts()) wrote for chunks of [`CHUNK_ROWS`];
///    `columns` are the tiles of a chunk.
/// 2. `weight_map` is the tensor map of the matrices of all experts, one on the other, in boxes of
///    [`BOX_ROWS`] rows and 64 columns with 128-byte swizzle; `up_map` that of up, with a gate.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(E in [f16, bf16], experts_{E}_wgmma = <E>)
)]
pub unsafe fn experts_wgmma<E: Operand16>(
    top_k: u32,
    chunks: Global<u32>,
    order: Global<u32>,
    columns: u32,
    n: u32,
    k: u32,
    gate: u32,
    x: Global<u16>,
    x_stride: u32,
    x_choice_stride: u32,
    bias: Global<f32>,
    up_bias: Global<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    out_choice_stride: u32,
    // Last, so that the other parameters share few lines of the constant cache.
    weight_map: TensorMap,
    up_map: TensorMap,
) {
    // SAFETY: the launch gives `SHARED_BYTES`; one thread initialises the barriers, and all wait for
    // it. Consumers and the producer run through the same tiles and stages.
    unsafe {
        let smem = dynamic_shared_mem::<u16>();
        let pipeline = Pipeline::new(smem.offset(BARRIERS_AT).cast(), NUM_STAGES);
        let layer = Layer {
            top_k,
            chunks,
            order,
            columns,
            n,
            k,
            gate: GateArg(gate),
            x,
            x_strides: [x_stride, x_choice_stride],
            biases: [bias, up_bias],
            out: out.cast::<E>(),
            out_strides: [out_stride, out_choice_stride],
            smem,
            pipeline,
        };
        if thread::thread_idx_x() == 0 {
            pipeline.init_for(1 + warp::WARPGROUP_SIZE, NUM_CONSUMERS * 4);
            weight_map.prefetch();
        }
        thread::sync_threads();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let num_tiles = chunks.get(0) * columns;
        if warp::warpgroup_idx() == NUM_CONSUMERS {
            registers::decrease::<PRODUCER_REGISTERS>();
            layer.load(num_tiles, weight_map, up_map);
        } else {
            registers::increase::<CONSUMER_REGISTERS>();
            let mut slot = Stage::FIRST;
            let mut index = thread::block_idx_x();
            let mut next = layer.tile(index, num_tiles);
            while index < num_tiles {
                let tile = next;
                index += thread::grid_dim_x();
                next = layer.tile(index, num_tiles);
                slot = match tile.mma_rows() {
                    16 => layer.compute::<[Accumulator<8>; 2]>(&tile, slot),
                    32 => layer.compute::<[Accumulator<16>; 2]>(&tile, slot),
                    64 => layer.compute::<[Accumulator<32>; 2]>(&tile, slot),
                    96 => layer.compute::<[Accumulator<48>; 2]>(&tile, slot),
                    _ => layer.compute::<[Accumulator<64>; 2]>(&tile, slot),
                };
            }
        }
    }
}
