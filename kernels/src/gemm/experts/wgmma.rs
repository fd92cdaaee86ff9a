//! Linear layers of experts on Hopper, dense weights: what [`few`](super::few) computes, by `wgmma`.
//!
//! Shapes    those of [`experts_few`](super::few::experts_few()), with a gate n a multiple of 8; chunks
//!           of up to 256 choices.
//! Launch    persistent: at most one block an SM, block `(NUM_THREADS, 1, 1)`. A tile is 128 rows of
//!           an expert's matrix, or 64 of gate and of up, by a chunk.
//! Numerics  MMAs of f16 or bf16 in f32, in the order of k. One rounding at the store; gate and up
//!           are rounded before they are multiplied.
//! Bound     tensor cores; with few choices an expert memory.
//! Source    CUTLASS (grouped GEMM), DeepGEMM ("swap A/B").
//!
//! Operands are swapped: rows of the weight are the 64 rows of an MMA, choices its columns, of which
//! a chunk has as many as it needs. Rows of gate and of up alternate by eight, so that a thread has
//! the products of both. One thread of the last warpgroup loads the weight by TMA; all of it gather
//! the rows of x by `cp.async`.

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
pub const MAX_CHUNK_ROWS: u32 = 256;

/// Consumer warpgroups; one more is the producer.
const NUM_CONSUMERS: u32 = 2;

/// Threads of a block.
pub const NUM_THREADS: u32 = (NUM_CONSUMERS + 1) * warp::WARPGROUP_SIZE;

/// Rows of the weight of a tile.
pub const BLOCK_COLUMNS: u32 = NUM_CONSUMERS * MMA_M;

/// Rows of gate, and then of up, that are next to each other in a tile.
pub const GATE_ROWS: u32 = 8;

/// Registers of a thread of the producer and of the consumers.
const PRODUCER_REGISTERS: u32 = 56;
const CONSUMER_REGISTERS: u32 = 224;

/// Elements of a 16-byte vector.
const VEC: u32 = 8;

/// Vectors of a row of a stage.
const ROW_VECS: u32 = BLOCK_K / VEC;

/// Copies of a thread of the producer into a stage, and the rows between them.
const NUM_COPIES: usize = (MAX_CHUNK_ROWS / COPY_ROWS) as usize;
const COPY_ROWS: u32 = warp::WARPGROUP_SIZE / ROW_VECS;

/// Elements between choices in the staging of `columns` columns: rows that are stored at once are in
/// different banks.
const fn staging_stride(columns: u32) -> u32 {
    columns + VEC
}

/// Elements of the staging of a warpgroup, 64 choices.
const STAGING_ELEMS: u32 = SUBTILE_COLUMNS * staging_stride(MMA_M);

/// Most stages.
const MAX_STAGES: u32 = 8;

/// Elements of the weight in a stage.
const WEIGHT_ELEMS: u32 = BLOCK_COLUMNS * BLOCK_K;

/// Bytes of shared memory that stages do not take: the staging, and the barriers.
const OTHER_BYTES: u32 = 2 * NUM_CONSUMERS * STAGING_ELEMS + 8 * Pipeline::num_words(MAX_STAGES);

/// How a launch divides its shared memory.
#[derive(Clone, Copy)]
pub struct Stages {
    /// How many stages.
    pub num: u32,
    /// Rows of x of each: those of the largest chunk.
    pub x_rows: u32,
}

impl Stages {
    /// Stages for chunks of up to `x_rows` rows.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn new(x_rows: u32) -> Self {
        use crate::gemm::config::wgmma::MAX_SHARED_BYTES;
        let bytes = 2 * (WEIGHT_ELEMS + x_rows * BLOCK_K);
        Stages { num: ((MAX_SHARED_BYTES - OTHER_BYTES) / bytes).min(MAX_STAGES), x_rows }
    }

    /// Bytes of shared memory.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn shared_bytes(self) -> u32 {
        2 * self.staging_at() + OTHER_BYTES
    }

    // Shared memory, in elements of 16 bits: the weight of all stages, x of all stages, the staging,
    // and the barriers.
    fn x_at(self) -> u32 {
        self.num * WEIGHT_ELEMS
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

/// Choices that are multiplied for `num_rows` of them: columns of the MMAs.
#[inline(always)]
pub fn mma_rows(num_rows: u32) -> u32 {
    match num_rows {
        0..=16 => 16,
        17..=32 => 32,
        33..=64 => 64,
        65..=96 => 96,
        97..=128 => 128,
        129..=144 => 144,
        145..=192 => 192,
        _ => 256,
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

    /// The producer: loads the stages of the block's tiles.
    ///
    /// # Safety
    /// 1. As the kernel requires; all threads of a warpgroup call this.
    #[inline(always)]
    unsafe fn load(&self, num_tiles: u32, weight: TensorMap) {
        let thread = thread::thread_idx_x() % warp::WARPGROUP_SIZE;
        let (row, vec) = (thread / ROW_VECS, thread % ROW_VECS);
        let has_gate = self.gate.num_parts() == 2;
        let mut slot = Stage::FIRST;
        let mut index = thread::block_idx_x();
        while index < num_tiles {
            // SAFETY: the caller's promise; the tile and the choices exist.
            unsafe {
                let tile = self.tile(index, num_tiles);
                let mma_rows = mma_rows(tile.num_rows);
                let mut from = [0; NUM_COPIES];
                for i in 0..NUM_COPIES {
                    // Rows without a choice have the last one's: their results are not stored.
                    let row = (i as u32 * COPY_ROWS + row).min(tile.num_rows - 1);
                    let choice = self.order.get((tile.first + row) as usize);
                    from[i] = offset(choice, self.top_k, self.x_strides) as u32;
                }
                let first_row = tile.expert * self.n + tile.column;
                let mut k = 0;
                while k < self.k {
                    self.pipeline.wait_empty(slot);
                    let full_barrier = self.pipeline.full_barrier(slot);
                    if thread == 0 {
                        full_barrier.arrive_expect_tx(BLOCK_COLUMNS * ROW_BYTES);
                        let to = self.smem.offset(slot.stage_idx * WEIGHT_ELEMS).cast::<E>();
                        let hint = CacheHint::EvictNormal;
                        if has_gate {
                            let origin = [k as i32, 0, 0, (first_row / GATE_ROWS) as i32];
                            bulk::tensor_load(to, weight, origin, full_barrier, hint);
                        } else {
                            let origin = [k as i32, first_row as i32];
                            bulk::tensor_load(to, weight, origin, full_barrier, hint);
                        }
                    }
                    let stage = self.stages.x_at() + slot.stage_idx * self.stages.x_rows * BLOCK_K;
                    let stage = self.smem.offset(stage);
                    let column = k + vec * VEC;
                    for i in 0..NUM_COPIES {
                        let first = i as u32 * COPY_ROWS;
                        if first < mma_rows {
                            let to = swizzle::<u16, BLOCK_K>(first + row, vec);
                            let at = from[i] as usize + column as usize;
                            let exists = column < self.k;
                            copy_vec::<{ VEC as usize }, u16>(stage, to, self.x, at, exists);
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
            .advance(warpgroup * MMA_M * ROW_BYTES);
        let x = self.smem.offset(self.stages.x_at()).cast::<E>();
        let x = MatrixDescriptor::k_major(x, Swizzle::B128);
        let mut acc = A::start();
        let mut previous = slot;
        let mut k = 0;
        while k < self.k {
            self.pipeline.wait_full(slot);
            // x was written by threads.
            fence::proxy_async_shared();
            wgmma::fence();
            let weight = weight.advance(slot.stage_idx * BLOCK_COLUMNS * ROW_BYTES);
            let x = x.advance(slot.stage_idx * self.stages.x_rows * ROW_BYTES);
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
        let has_gate = self.gate.num_parts() == 2;
        let columns = self.tile_columns() / NUM_CONSUMERS;
        let first_column = tile.column + warp::warpgroup_idx() * columns;
        // SAFETY: the caller's promise.
        unsafe {
            let terms = self.bias_terms(tile, first_column);
            unroll!(subtile in 0..4, {
                if (subtile as u32) < A::SUBTILES_N {
                    let mut values = acc.subtile(subtile as u32);
                    for i in 0..SUBTILE_REGS {
                        values[i] += terms[i / 2 % 2];
                    }
                    let first_row = subtile as u32 * SUBTILE_COLUMNS;
                    let origin = [first_row, first_column];
                    // All threads have read what was staged before.
                    sync_warpgroup();
                    if has_gate {
                        self.stage_gated::<A>(&values);
                        sync_warpgroup();
                        self.store_staged::<{ MMA_M / 2 }>(tile, origin);
                    } else {
                        self.stage::<A>(&values);
                        sync_warpgroup();
                        self.store_staged::<MMA_M>(tile, origin);
                    }
                }
            });
        }
    }

    /// The biases of the thread's upper and lower row of an MMA.
    ///
    /// # Safety
    /// As [`Layer::compute`].
    #[inline(always)]
    unsafe fn bias_terms(&self, tile: &Tile, first_column: u32) -> [f32; 2] {
        let (warp, row) = (warp::warp_idx() % 4, warp::lane_id() / 4);
        let has_gate = self.gate.num_parts() == 2;
        let mut terms = [0.0; 2];
        for half in 0..2 {
            let is_up = has_gate && (half == 1) != self.up_is_first;
            let bias = if is_up { self.biases[1] } else { self.biases[0] };
            let column = match has_gate {
                true => warp * GATE_ROWS + row,
                false => warp * 16 + half as u32 * 8 + row,
            };
            let column = first_column + column;
            if !bias.is_null() && column < self.n {
                let at = tile.expert as usize * self.n as usize + column as usize;
                // SAFETY: the column is inside.
                terms[half] = unsafe { bias.get(at) };
            }
        }
        terms
    }

    /// The warpgroup's staging.
    #[inline(always)]
    fn staging(&self) -> Shared<u16> {
        self.smem.offset(self.stages.staging_at() + warp::warpgroup_idx() * STAGING_ELEMS)
    }

    /// Stages 64 columns of 64 choices, transposed: a row is a choice.
    ///
    /// # Safety
    /// 1. No thread reads the staging; the warp is converged.
    #[inline(always)]
    unsafe fn stage<A: Multiply<E>>(&self, values: &[f32; SUBTILE_REGS]) {
        const STRIDE: u32 = staging_stride(MMA_M);
        let (matrix, row) = (warp::lane_id() / 8, warp::lane_id() % 8);
        let column = warp::warp_idx() % 4 * 16 + matrix % 2 * 8;
        let to = self.staging().offset((matrix / 2 * 8 + row) * STRIDE + column);
        unroll!(rows in 0..4, {
            if 16 * (rows as u32) < A::COLUMNS {
                let words = [0, 2, 4, 6].map(|i| {
                    let i = 8 * rows + i;
                    E::pack(values[i], values[i + 1])
                });
                // SAFETY: inside the staging.
                unsafe { matrix::store_x4_trans(to.offset(rows as u32 * 16 * STRIDE), words) };
            }
        });
    }

    /// Stages 32 columns of 64 choices, gated.
    ///
    /// # Safety
    /// As [`Layer::stage`].
    #[inline(always)]
    unsafe fn stage_gated<A: Multiply<E>>(&self, values: &[f32; SUBTILE_REGS]) {
        const STRIDE: u32 = staging_stride(MMA_M / 2);
        let column = warp::warp_idx() % 4 * GATE_ROWS;
        let to = self.staging().offset(warp::lane_id() * STRIDE + column);
        unroll!(rows in 0..2, {
            if 32 * (rows as u32) < A::COLUMNS {
                let first = 16 * rows;
                let words = [
                    self.gated_pair(values, first),
                    self.gated_pair(values, first + 4),
                    self.gated_pair(values, first + 8),
                    self.gated_pair(values, first + 12),
                ];
                // SAFETY: inside the staging, which has room for columns past the last one.
                unsafe { matrix::store_x4_trans(to.offset(rows as u32 * 32 * STRIDE), words) };
            }
        });
    }

    /// Values `i` and `i + 1`, of a row of an MMA, with those eight rows below, gated.
    #[inline(always)]
    fn gated_pair(&self, values: &[f32; SUBTILE_REGS], i: usize) -> u32 {
        let first = self.gated(values[i], values[i + 2]);
        E::pack(first, self.gated(values[i + 1], values[i + 3]))
    }

    #[inline(always)]
    fn gated(&self, upper: f32, lower: f32) -> f32 {
        let (gate, up) = if self.up_is_first { (lower, upper) } else { (upper, lower) };
        // As the separate operations round.
        self.gate.apply::<E>(E::from_f32(gate).to_f32(), E::from_f32(up).to_f32())
    }

    /// Stores what the warpgroup has staged: `COLUMNS` columns from `first_column` on of the choices
    /// from `first_row` on, eight columns a thread and row.
    ///
    /// # Safety
    /// 1. As [`Layer::compute`]; the staging is written.
    #[inline(always)]
    unsafe fn store_staged<const COLUMNS: u32>(
        &self,
        tile: &Tile,
        [first_row, first_column]: [u32; 2],
    ) {
        let vecs = const { COLUMNS / VEC };
        let rows = warp::WARPGROUP_SIZE / vecs;
        let thread = thread::thread_idx_x() % warp::WARPGROUP_SIZE;
        let vectors = self.out_strides[0] | self.out_strides[1] | self.n;
        let is_vector = vectors.is_multiple_of(VEC) && self.out.address().is_multiple_of(16);
        let column = first_column + thread % vecs * VEC;
        // Found by the whole warp.
        let staging = self.staging();
        for i in 0..SUBTILE_COLUMNS / rows {
            let row = i * rows + thread / vecs;
            let in_chunk = first_row + row;
            if in_chunk >= tile.num_rows || column >= self.n {
                continue;
            }
            // SAFETY: the caller's promise; row and column are inside.
            unsafe {
                let choice = self.order.get((tile.first + in_chunk) as usize);
                let at = offset(choice, self.top_k, self.out_strides) + column as usize;
                let at_staged = row * staging_stride(COLUMNS) + thread % vecs * VEC;
                let staged = staging.offset(at_staged);
                if is_vector {
                    let words: [u32; 4] = staged.cast::<u32>().get_vec(0);
                    self.out.cast::<u32>().set_vec(at / 2, words);
                } else {
                    for i in 0..VEC.min(self.n - column) {
                        self.out.set(at + i as usize, staged.cast::<E>().get(i));
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
///    are what [`group_experts`](super::group::group_experts()) wrote for chunks of `x_rows`, what
///    [`mma_rows`] gives for the largest; `columns` are the tiles of a chunk. Elements of x are
///    below 2^32.
/// 2. `weight` is the tensor map of the matrices of all experts, one on the other, in boxes of
///    [`BLOCK_COLUMNS`] rows and 64 columns with 128-byte swizzle; with a gate, of half as many rows
///    of gate and of up, [`GATE_ROWS`] of each in turn, those of up first if `up_is_first` is not 0.
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
    num_stages: u32,
    x_rows: u32,
    n: u32,
    k: u32,
    gate: u32,
    up_is_first: u32,
    x: Global<u16>,
    x_stride: u32,
    x_choice_stride: u32,
    bias: Global<f32>,
    up_bias: Global<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    out_choice_stride: u32,
    // Last, so that the other parameters share few lines of the constant cache.
    weight: TensorMap,
) {
    // SAFETY: the launch gives shared memory for the stages; one thread initialises the barriers, and
    // all wait for it. Consumers and the producer run through the same tiles and stages.
    unsafe {
        let smem = dynamic_shared_mem::<u16>();
        let stages = Stages { num: num_stages, x_rows };
        let pipeline = Pipeline::new(smem.offset(stages.barriers_at()).cast(), num_stages);
        let layer = Layer {
            top_k,
            chunks,
            order,
            columns,
            n,
            k,
            gate: GateArg(gate),
            up_is_first: up_is_first != 0,
            x,
            x_strides: [x_stride, x_choice_stride],
            biases: [bias, up_bias],
            out: out.cast::<E>(),
            out_strides: [out_stride, out_choice_stride],
            smem,
            stages,
            pipeline,
        };
        if thread::thread_idx_x() == 0 {
            pipeline.init_for(1 + warp::WARPGROUP_SIZE, NUM_CONSUMERS * 4);
            weight.prefetch();
        }
        thread::sync_threads();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let num_tiles = chunks.get(0) * columns;
        if warp::warpgroup_idx() == NUM_CONSUMERS {
            registers::decrease::<PRODUCER_REGISTERS>();
            layer.load(num_tiles, weight);
        } else {
            registers::increase::<CONSUMER_REGISTERS>();
            let mut slot = Stage::FIRST;
            let mut index = thread::block_idx_x();
            let mut next = layer.tile(index, num_tiles);
            while index < num_tiles {
                let tile = next;
                index += thread::grid_dim_x();
                next = layer.tile(index, num_tiles);
                slot = match mma_rows(tile.num_rows) {
                    16 => layer.compute::<[Accumulator<8>; 1]>(&tile, slot),
                    32 => layer.compute::<[Accumulator<16>; 1]>(&tile, slot),
                    64 => layer.compute::<[Accumulator<32>; 1]>(&tile, slot),
                    96 => layer.compute::<[Accumulator<48>; 1]>(&tile, slot),
                    128 => layer.compute::<[Accumulator<64>; 1]>(&tile, slot),
                    144 => layer.compute::<[Accumulator<72>; 1]>(&tile, slot),
                    192 => layer.compute::<[Accumulator<96>; 1]>(&tile, slot),
                    _ => layer.compute::<[Accumulator<128>; 1]>(&tile, slot),
                };
            }
        }
    }
}
