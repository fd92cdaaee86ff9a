//! Tile configurations, and how tiles lie in shared memory.

use cuda_std::warp::WARP_SIZE;

/// Rows, columns and depth of a step of a warp: one `ldmatrix.x4` is 16 x 16 elements.
pub const STEP: u32 = 16;

/// Elements of 16 bytes: of a row of a matrix of `ldmatrix`, and of an asynchronous copy.
pub const CHUNK: u32 = 8;

/// Elements that fill the 32 banks once.
const LINE: u32 = 64;

/// A tile configuration; a warp has `M x N` tiles of 16 x 16 outputs.
///
/// A warp reads its operands from shared memory, 128 bytes a cycle of an SM: of 64 x 64 outputs each
/// element read feeds 32 products, of 64 x 32 a third less. With eight such warps a tile of 128 x
/// 128 would keep shared memory as busy as the tensor cores of an A100, and busier than a Hopper's.
pub trait Tile<const M: usize, const N: usize> {
    /// The name in symbols.
    const NAME: &str;
    /// Warps of a block along m.
    const WARPS_M: u32;
    /// Warps of a block along n.
    const WARPS_N: u32;
    /// Columns of A and B in a stage, 32 or 64.
    const BLOCK_K: u32;
    /// Stages of A and B in shared memory.
    const NUM_STAGES: u32;
    /// Blocks that should fit on an SM.
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

/// The tile for outputs that fill the GPU.
pub struct Tile128x256;

impl Tile<4, 4> for Tile128x256 {
    const NAME: &str = "128x256";
    const WARPS_M: u32 = 2;
    const WARPS_N: u32 = 4;
    const BLOCK_K: u32 = 32;
    const NUM_STAGES: u32 = 4;
    const MIN_BLOCKS: u32 = 1;
}

/// Half the large tile, two blocks an SM. Rejected, on an H200 at 512 x 3072 x 8192, where an SM has
/// one tile: eight warps of 64 x 32 outputs (95 us for 90), and tiles of 128x96 (85 us; but 2048 x
/// 3072 x 8192 in 265 us for 250).
pub struct Tile128x128;

impl Tile<4, 4> for Tile128x128 {
    const NAME: &str = "128x128";
    const WARPS_M: u32 = 2;
    const WARPS_N: u32 = 2;
    const BLOCK_K: u32 = 32;
    const NUM_STAGES: u32 = 4;
    const MIN_BLOCKS: u32 = 2;
}

/// The tile for outputs of few tiles.
pub struct Tile64x64;

impl Tile<2, 2> for Tile64x64 {
    const NAME: &str = "64x64";
    const WARPS_M: u32 = 2;
    const WARPS_N: u32 = 2;
    const BLOCK_K: u32 = 64;
    const NUM_STAGES: u32 = 4;
    const MIN_BLOCKS: u32 = 3;
}

// What a block may have on every device from SM 80 on.
const _: () = assert!(Tile128x256::SHARED_BYTES <= 99 * 1024);
const _: () = assert!(Tile128x128::SHARED_BYTES <= 99 * 1024);
const _: () = assert!(Tile64x64::SHARED_BYTES <= 99 * 1024);

/// Where chunk `chunk` of row `row` lies in a tile `[rows, block_k]`, in elements.
///
/// A chunk's place in its row is XORed with the index of the 128 bytes that the row lies in: eight
/// rows at the same chunk, which `ldmatrix` reads at once, and eight chunks in the order of a copy
/// are in different banks.
#[inline(always)]
pub const fn swizzle(row: u32, chunk: u32, block_k: u32) -> u32 {
    let line = row * block_k / LINE;
    row * block_k + (chunk ^ (line % (block_k / CHUNK))) * CHUNK
}
