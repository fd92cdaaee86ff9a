//! Tile configurations of the FMA mainloop, for f32.

use crate::gemm::operand::CopiedTile;
use crate::tile::smem;
use core::marker::PhantomData;
use cuda_std::warp::WARP_SIZE;

/// Columns of A and B in a stage.
pub(in crate::gemm) const BLOCK_K: u32 = 16;

/// Elements of a 16-byte vector along k.
pub(in crate::gemm) const VEC_ELEMS: u32 = 4;
pub(in crate::gemm) const VECS_PER_ROW: u32 = BLOCK_K / VEC_ELEMS;

/// Lanes of a warp along m, and along n.
pub(in crate::gemm) const LANES_M: u32 = 8;
pub(in crate::gemm) const LANES_N: u32 = 4;

/// Outputs of a thread along m. A warp has 64 rows.
pub(in crate::gemm) const THREAD_M: usize = 8;

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
    const NUM_THREADS: u32 = Self::WARPS_M * Self::WARPS_N * WARP_SIZE;
    /// Shared memory of a block.
    const SHARED_BYTES: u32 = Self::NUM_STAGES * (Self::BLOCK_M + Self::BLOCK_N) * BLOCK_K * 4;
}

/// The copies of a tile's stages.
pub struct Copies<T>(PhantomData<T>);

impl<T: F32Tile> CopiedTile for Copies<T> {
    const BLOCK_K: u32 = BLOCK_K;
    const NUM_THREADS: u32 = T::NUM_THREADS;
    const COPY_ELEMS: u32 = T::COPY_ELEMS;

    #[inline(always)]
    fn swizzle(row: u32, vec_idx: u32) -> u32 {
        smem::swizzle::<f32, BLOCK_K>(row, vec_idx)
    }
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
