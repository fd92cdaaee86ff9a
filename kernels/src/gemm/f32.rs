//! GEMM in f32 on the FMA units: `out[m, n] = sum_k a[m, k] * b[n, k] (+ bias[n]) (+ residual[m,
//! n])`.
//!
//! Shapes    a `[m, k]`, b `[n, k]`, residual and out `[m, n]` with row strides, bias `[n]`; out
//!           may be residual; f32; any sizes. A and B are both K-major, like activations and
//!           weights.
//! Launch    grid `(m / BLOCK_M, n / BLOCK_N, 1)`, block `(NUM_THREADS, 1, 1)`; `NUM_STAGES`
//!           pipeline stages of A and B.
//! Numerics  f32; each output is one chain of FMAs in the order of k, for every tile.
//! Bound     compute: `m * n * k` FMAs.
//! Source    S. Gray, maxas SGEMM (lane pattern); CUTLASS (stages).
//!
//! Tiles stay K-major in shared memory, filled by `cp.async`: transposing them would cost registers
//! and four stores a load. Threads read vectors of four elements along k, which `swizzle` spreads
//! over the banks. Rejected tiles: `docs/measurements/gemm_f32.md`.

use cuda_std::prelude::*;

/// Columns of A and B in a stage.
const BLOCK_K: u32 = 16;

/// Elements of a 16-byte vector along k.
const VEC_ELEMS: u32 = 4;
const VECS_PER_ROW: u32 = BLOCK_K / VEC_ELEMS;

/// Lanes of a warp along m, and along n.
const LANES_M: u32 = 8;
const LANES_N: u32 = 4;

/// Outputs of a thread along m. A warp has 64 rows.
const THREAD_M: usize = 8;

/// A tile configuration of GEMM in f32.
pub trait F32Tile {
    /// Warps of a block along m.
    const WARPS_M: u32;
    /// Warps of a block along n.
    const WARPS_N: u32;
    /// Outputs of a thread along n: rows of `Acc`.
    const THREAD_N: usize;
    /// Stages of A and B in shared memory.
    const NUM_STAGES: u32;
    /// Elements of one asynchronous copy: 4 where rows are 16-byte aligned and k is a multiple of
    /// 4, else 1.
    const COPY_ELEMS: u32;
    /// Blocks that should fit on an SM.
    const MIN_BLOCKS: u32;
    /// A thread's outputs, `[THREAD_N, THREAD_M]`.
    type Acc: Default + AsRef<[[f32; THREAD_M]]> + AsMut<[[f32; THREAD_M]]>;

    /// Rows of A in a block.
    const BLOCK_M: u32 = Self::WARPS_M * LANES_M * THREAD_M as u32;
    /// Rows of B in a block.
    const BLOCK_N: u32 = Self::WARPS_N * LANES_N * Self::THREAD_N as u32;
    /// Threads of a block.
    const NUM_THREADS: u32 = Self::WARPS_M * Self::WARPS_N * warp::WARP_SIZE;
    /// Asynchronous copies of a row of a stage.
    const COPIES_PER_ROW: u32 = BLOCK_K / Self::COPY_ELEMS;
    /// Rows that the block's threads copy at once.
    const ROWS_PER_COPY: u32 = Self::NUM_THREADS / Self::COPIES_PER_ROW;
    /// Shared memory of a block.
    const SHARED_BYTES: u32 = Self::NUM_STAGES * (Self::BLOCK_M + Self::BLOCK_N) * BLOCK_K * 4;
}

/// The tile for outputs that fill the GPU.
pub struct Tile128x256;

impl F32Tile for Tile128x256 {
    const WARPS_M: u32 = 2;
    const WARPS_N: u32 = 4;
    const THREAD_N: usize = 16;
    const NUM_STAGES: u32 = 2;
    const COPY_ELEMS: u32 = VEC_ELEMS;
    const MIN_BLOCKS: u32 = 1;
    type Acc = [[f32; THREAD_M]; 16];
}

/// The tile for smaller outputs: eight times as many blocks.
pub struct Tile64x64;

impl F32Tile for Tile64x64 {
    const WARPS_M: u32 = 1;
    const WARPS_N: u32 = 4;
    const THREAD_N: usize = 4;
    const NUM_STAGES: u32 = 4;
    const COPY_ELEMS: u32 = VEC_ELEMS;
    const MIN_BLOCKS: u32 = 4;
    type Acc = [[f32; THREAD_M]; 4];
}

/// `Tile64x64` for unaligned rows, copied element by element.
pub struct Tile64x64Unaligned;

impl F32Tile for Tile64x64Unaligned {
    const WARPS_M: u32 = Tile64x64::WARPS_M;
    const WARPS_N: u32 = Tile64x64::WARPS_N;
    const THREAD_N: usize = Tile64x64::THREAD_N;
    const NUM_STAGES: u32 = Tile64x64::NUM_STAGES;
    const COPY_ELEMS: u32 = 1;
    const MIN_BLOCKS: u32 = Tile64x64::MIN_BLOCKS;
    type Acc = <Tile64x64 as F32Tile>::Acc;
}

// The shared memory of a block that needs no attribute set by the driver.
const _: () = assert!(Tile128x256::SHARED_BYTES <= 48 * 1024);
const _: () = assert!(Tile64x64::SHARED_BYTES <= 48 * 1024);
// All rows that one thread copies have the same swizzle.
const _: () = assert!(Tile64x64Unaligned::ROWS_PER_COPY.is_multiple_of(8));

/// Offset of vector `vec_idx` of row `row` in a tile `[rows, BLOCK_K]`. Eight consecutive rows fill
/// the 32 banks once.
#[inline(always)]
fn swizzle(row: u32, vec_idx: u32) -> u32 {
    row * BLOCK_K + (vec_idx ^ ((row >> 1) % VECS_PER_ROW)) * VEC_ELEMS
}

/// A thread's copies of A or B: the same columns of every `ROWS_PER_COPY`-th row.
#[derive(Clone, Copy)]
struct Copier {
    /// The thread's first element of the block's tile, at k = 0.
    gmem: Global<f32>,
    row_stride: u32,
    /// Rows from the thread's first one to the end; further rows are zeros.
    rows: u32,
    /// Columns from the thread's first one to the end.
    k: u32,
    /// Offset of its first element in a stage.
    to: u32,
}

impl Copier {
    /// The thread's copies of rows `first_row ..` of a matrix of `rows` rows and `k` columns.
    ///
    /// # Safety
    /// 1. `gmem` holds that many rows at `row_stride`; 16-byte aligned if `T::COPY_ELEMS` is 4.
    #[inline(always)]
    unsafe fn new<T: F32Tile>(
        gmem: Global<f32>,
        row_stride: u32,
        first_row: u32,
        rows: u32,
        k: u32,
    ) -> Self {
        let thread = thread::thread_idx_x();
        let (row, column) =
            (thread / T::COPIES_PER_ROW, thread % T::COPIES_PER_ROW * T::COPY_ELEMS);
        let first_row = first_row + row;
        Copier {
            gmem: gmem.wrapping_add(first_row as usize * row_stride as usize + column as usize),
            row_stride,
            rows: rows.saturating_sub(first_row),
            k: k.saturating_sub(column),
            to: swizzle(row, column / VEC_ELEMS) + column % VEC_ELEMS,
        }
    }

    /// Issues the copies of `block_rows` rows and columns `first_k .. first_k + BLOCK_K` to the
    /// stage at `smem`.
    ///
    /// # Safety
    /// 1. `smem` holds `block_rows * BLOCK_K` elements that no thread reads until the copies are
    ///    waited for.
    #[inline(always)]
    unsafe fn copy_tile<T: F32Tile>(self, smem: Shared<f32>, block_rows: u32, first_k: u32) {
        let smem = smem.offset(self.to);
        for i in 0..block_rows / T::ROWS_PER_COPY {
            let row = i * T::ROWS_PER_COPY;
            let from = row as usize * self.row_stride as usize + first_k as usize;
            let exists = row < self.rows && first_k < self.k;
            // Rows a multiple of eight apart have the same swizzle.
            let to = row * BLOCK_K;
            // SAFETY: only elements that exist are read; `to` is inside the stage.
            unsafe {
                if T::COPY_ELEMS == VEC_ELEMS {
                    cp_async::copy_vec::<4, _>(smem, to, self.gmem, from, exists);
                } else {
                    cp_async::copy(smem, to, self.gmem, from, exists);
                }
            }
        }
    }
}

/// A thread's outputs in its block's tile: rows `m + LANES_M * i`, columns `n + LANES_N * j`.
#[derive(Clone, Copy)]
struct ThreadTile {
    m: u32,
    n: u32,
}

impl ThreadTile {
    /// Pairs of lanes share a row of A, lanes two apart a row of B, so that a 16-byte load of a
    /// half-warp is one pass over the banks.
    #[inline(always)]
    fn of_this_thread<T: F32Tile>() -> Self {
        let (lane_id, warp_idx) = (warp::lane_id(), warp::warp_idx());
        let lane_m = (lane_id >> 1) % LANES_M;
        let lane_n = (lane_id & 1) | (lane_id >> 4) << 1;
        let (warp_m, warp_n) = (warp_idx % T::WARPS_M, warp_idx / T::WARPS_M);
        ThreadTile {
            m: warp_m * LANES_M * THREAD_M as u32 + lane_m,
            n: warp_n * LANES_N * T::THREAD_N as u32 + lane_n,
        }
    }

    /// Accumulates four columns of A and B, vector `vec_idx`; `smem_a` and `smem_b` start at vector
    /// 0 of the thread's first row.
    ///
    /// # Safety
    /// 1. The views are in tiles whose copies have completed, and that no thread writes.
    #[inline(always)]
    unsafe fn multiply<T: F32Tile>(
        smem_a: Shared<f32>,
        smem_b: Shared<f32>,
        vec_idx: u32,
        acc: &mut T::Acc,
    ) {
        let acc = acc.as_mut();
        let smem_a = smem_a.xor(vec_idx * VEC_ELEMS);
        // Rows four apart differ in the upper bit of their swizzle.
        let smem_b = [smem_b.xor(vec_idx * VEC_ELEMS), smem_b.xor((vec_idx ^ 2) * VEC_ELEMS)];
        let mut a = [[0.0; VEC_ELEMS as usize]; THREAD_M];
        // SAFETY: the rows are inside the block's tiles.
        unsafe {
            unroll!(i in 0..THREAD_M, {
                a[i] = smem_a.get_vec_at::<{ LANES_M * BLOCK_K * i as u32 }, 4>();
            });
            unroll!(j in 0..T::THREAD_N, {
                let b = smem_b[j % 2].get_vec_at::<{ LANES_N * BLOCK_K * j as u32 }, 4>();
                for k in 0..VEC_ELEMS as usize {
                    for i in 0..THREAD_M {
                        acc[j][i] = math::fma(a[i][k], b[k], acc[j][i]);
                    }
                }
            });
        }
    }
}

/// A block computes one tile of the output.
///
/// # Safety
/// 1. `m` is one element; `a`, `out` and `residual` hold that many rows, `b` holds `n`, at their
///    strides; `bias` holds `n` elements; `bias` and `residual` may be null.
/// 2. `out` is `residual`, or overlaps nothing that is read.
/// 3. Unless the tile is unaligned, rows of `a` and `b` are 16-byte aligned, and `k` is a multiple
///    of 4.
#[kernel(
    launch_bounds(T::NUM_THREADS, T::MIN_BLOCKS),
    overlaps,
    instances(
        gemm_f32_128x256 = <Tile128x256>,
        gemm_f32_64x64 = <Tile64x64>,
        gemm_f32_64x64_unaligned = <Tile64x64Unaligned>
    )
)]
pub unsafe fn gemm_f32<T: F32Tile>(
    m: Global<u32>,
    n: u32,
    k: u32,
    a: Global<f32>,
    a_stride: u32,
    b: Global<f32>,
    b_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<f32>,
    out_stride: u32,
) {
    // SAFETY: one element, a step input: no launch of the step writes it.
    let m = unsafe { m.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let (block_m, block_n) =
        (thread::block_idx_x() * T::BLOCK_M, thread::block_idx_y() * T::BLOCK_N);
    if block_m >= m {
        return;
    }
    // SAFETY: `a` holds `m` rows and `b` holds `n`, aligned as the tile requires.
    let (a, b) = unsafe {
        (Copier::new::<T>(a, a_stride, block_m, m, k), Copier::new::<T>(b, b_stride, block_n, n, k))
    };
    let tile = ThreadTile::of_this_thread::<T>();
    let mut acc = T::Acc::default();

    // 1. Main loop. A stage is overwritten one barrier after its last read. SAFETY: the launch
    //    gives `SHARED_BYTES`; copies are waited for, and the barrier passed, before a stage is
    //    read.
    unsafe {
        let smem_a = dynamic_shared_mem::<f32>();
        let smem_b = smem_a.offset(T::NUM_STAGES * T::BLOCK_M * BLOCK_K);
        let copy_stage = |stage_idx: u32, first_k: u32| {
            let smem_a = smem_a.offset(stage_idx * T::BLOCK_M * BLOCK_K);
            let smem_b = smem_b.offset(stage_idx * T::BLOCK_N * BLOCK_K);
            a.copy_tile::<T>(smem_a, T::BLOCK_M, first_k);
            b.copy_tile::<T>(smem_b, T::BLOCK_N, first_k);
            cp_async::commit();
        };
        for stage_idx in 0..T::NUM_STAGES - 1 {
            copy_stage(stage_idx, stage_idx * BLOCK_K);
        }
        let vecs_a = smem_a.offset(swizzle(tile.m, 0));
        let vecs_b = smem_b.offset(swizzle(tile.n, 0));
        let mut stage_idx = 0;
        let mut first_k = 0;
        while first_k < k {
            cp_async::wait(T::NUM_STAGES - 2);
            thread::sync_threads();
            let free_stage = if stage_idx == 0 { T::NUM_STAGES } else { stage_idx } - 1;
            copy_stage(free_stage, first_k + (T::NUM_STAGES - 1) * BLOCK_K);
            let vecs_a = vecs_a.offset(stage_idx * T::BLOCK_M * BLOCK_K);
            let vecs_b = vecs_b.offset(stage_idx * T::BLOCK_N * BLOCK_K);
            unroll!(vec_idx in 0..VECS_PER_ROW as usize, {
                ThreadTile::multiply::<T>(vecs_a, vecs_b, vec_idx as u32, &mut acc);
            });
            stage_idx = if stage_idx == T::NUM_STAGES - 1 { 0 } else { stage_idx + 1 };
            first_k += BLOCK_K;
        }
    }

    // 2. Epilogue.
    let acc = acc.as_ref();
    unroll!(j in 0..T::THREAD_N, {
        let column = block_n + tile.n + LANES_N * j as u32;
        for i in 0..THREAD_M {
            let row = block_m + tile.m + LANES_M * i as u32;
            if row < m && column < n {
                let at = |stride: u32| row as usize * stride as usize + column as usize;
                let mut value = acc[j][i];
                // SAFETY: row and column are inside, by the check.
                unsafe {
                    if !bias.is_null() {
                        value += bias.get(column as usize);
                    }
                    if !residual.is_null() {
                        value += residual.get(at(residual_stride));
                    }
                    out.set(at(out_stride), value);
                }
            }
        }
    });
}
