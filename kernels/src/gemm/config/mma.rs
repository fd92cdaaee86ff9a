//! Tile configurations of the `mma.sync` mainloop.

use crate::gemm::operand::CopiedTile;
use crate::tile::smem;
use core::marker::PhantomData;
use cuda_std::warp::WARP_SIZE;

/// Rows, columns and k of a step of a warp: one `ldmatrix.x4` loads 16 x 16 elements.
pub const STEP: u32 = 16;

/// A tile configuration of the `mma.sync` mainloop; a warp has `M x N` MMA tiles of 16 x 16
/// outputs.
///
/// Warps have 64 x 64 outputs in the large tiles: smaller ones are bound by reads of shared memory.
pub trait MmaTile<const M: usize, const N: usize> {
    /// Warps of a block along m.
    const WARPS_M: u32;
    /// Warps of a block along n.
    const WARPS_N: u32;
    /// Columns of A and B in a stage, 32 or 64.
    const BLOCK_K: u32;
    /// Stages of A and B in shared memory.
    const NUM_STAGES: u32;
    /// Blocks an SM that the registers are limited for.
    const MIN_BLOCKS: u32;

    /// Rows of A of a warp.
    const WARP_M: u32 = M as u32 * STEP;
    /// Rows of B of a warp.
    const WARP_N: u32 = N as u32 * STEP;
    /// Rows of A in a block.
    const BLOCK_M: u32 = Self::WARPS_M * Self::WARP_M;
    /// Rows of B in a block.
    const BLOCK_N: u32 = Self::WARPS_N * Self::WARP_N;
    /// Steps of a stage.
    const NUM_STEPS: usize = (Self::BLOCK_K / STEP) as usize;
    /// Warps of a block.
    const NUM_WARPS: u32 = Self::WARPS_M * Self::WARPS_N;
    /// Threads of a block.
    const NUM_THREADS: u32 = Self::NUM_WARPS * WARP_SIZE;
    /// Shared memory of a block.
    const SHARED_BYTES: u32 =
        Self::NUM_STAGES * (Self::BLOCK_M + Self::BLOCK_N) * Self::BLOCK_K * 2;
}

/// The copies of a tile's stages.
pub struct Copies<const M: usize, const N: usize, T>(PhantomData<T>);

impl<const M: usize, const N: usize, T: MmaTile<M, N>> CopiedTile for Copies<M, N, T> {
    const BLOCK_K: u32 = T::BLOCK_K;
    const NUM_THREADS: u32 = T::NUM_THREADS;
    const COPY_ELEMS: u32 = 8;

    #[inline(always)]
    fn swizzle(row: u32, vec_idx: u32) -> u32 {
        const { assert!(T::BLOCK_K == 32 || T::BLOCK_K == 64) };
        if T::BLOCK_K == 32 {
            smem::swizzle::<u16, 32>(row, vec_idx)
        } else {
            smem::swizzle::<u16, 64>(row, vec_idx)
        }
    }
}

/// For outputs of enough tiles to fill the GPU.
pub struct Tile128x256;

impl MmaTile<4, 4> for Tile128x256 {
    const WARPS_M: u32 = 2;
    const WARPS_N: u32 = 4;
    const BLOCK_K: u32 = 32;
    const NUM_STAGES: u32 = 4;
    const MIN_BLOCKS: u32 = 1;
}

/// Half of [`Tile128x256`], two blocks an SM. Rejected variants: `docs/measurements/gemm_sm80.md`.
pub struct Tile128x128;

impl MmaTile<4, 4> for Tile128x128 {
    const WARPS_M: u32 = 2;
    const WARPS_N: u32 = 2;
    const BLOCK_K: u32 = 32;
    const NUM_STAGES: u32 = 4;
    const MIN_BLOCKS: u32 = 2;
}

/// For outputs of few tiles.
pub struct Tile64x64;

impl MmaTile<2, 2> for Tile64x64 {
    const WARPS_M: u32 = 2;
    const WARPS_N: u32 = 2;
    const BLOCK_K: u32 = 64;
    const NUM_STAGES: u32 = 4;
    const MIN_BLOCKS: u32 = 3;
}

// The shared memory that a block may have on every device from sm_80 on.
const _: () = assert!(Tile128x256::SHARED_BYTES <= 99 * 1024);
const _: () = assert!(Tile128x128::SHARED_BYTES <= 99 * 1024);
const _: () = assert!(Tile64x64::SHARED_BYTES <= 99 * 1024);
