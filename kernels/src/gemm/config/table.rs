//! All tile configurations, as far as launches depend on them.

use super::fma::{self, F32Tile, Tile64x64Unaligned};
use super::mma::{self, MmaTile};
use super::wgmma::*;
use crate::gemm::Accumulate;
use crate::gemm::kernels::{
    f32::gemm_f32, fp8::gemm_e4m3_sm90, sm80::gemm_sm80, sm90::gemm_f16_sm90,
};
use crate::gemm::mainloop::accumulators::Accumulators;
use core::any::TypeId;
use half::f16;

/// A tile configuration. Instances of a kernel are found by it and by their element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileConfig {
    /// Rows and columns of a block's outputs.
    pub block: [usize; 2],
    /// Blocks of a cluster along rows and columns.
    pub cluster: [usize; 2],
    /// Blocks of a cluster that split the k of a tile.
    pub split_k: usize,
    /// The type of the accumulators.
    pub accumulate: Accumulate,
    pub(in crate::gemm) num_threads: usize,
    pub(in crate::gemm) shared_bytes: usize,
    /// The type of the configuration.
    pub(in crate::gemm) tile: TypeId,
}

/// The tiles of the FMA mainloop: the large one, the small one, that for unaligned rows.
pub const FMA_TILES: [TileConfig; 3] = [
    TileConfig::fma::<fma::Tile128x256>(),
    TileConfig::fma::<fma::Tile64x64>(),
    TileConfig::fma::<Tile64x64Unaligned>(),
];

/// The tiles of the `mma.sync` mainloop; the last one has f16 accumulators, for f16 operands only.
pub const MMA_TILES: [TileConfig; 4] = [
    TileConfig::mma::<4, 4, mma::Tile128x256>(Accumulate::F32),
    TileConfig::mma::<4, 4, mma::Tile128x128>(Accumulate::F32),
    TileConfig::mma::<2, 2, mma::Tile64x64>(Accumulate::F32),
    TileConfig::mma::<4, 4, mma::Tile128x128>(Accumulate::F16),
];

/// The tiles of the `wgmma` mainloop. Of those to which the model gives equal times the first is
/// chosen.
pub const WGMMA_TILES: [TileConfig; 19] = [
    TileConfig::wgmma::<Tile128x256Pair>(),
    TileConfig::wgmma::<Tile256x128Pair>(),
    TileConfig::wgmma::<Tile128x256>(),
    TileConfig::wgmma::<Tile256x128>(),
    TileConfig::wgmma::<Tile128x128>(),
    TileConfig::wgmma::<Tile128x192>(),
    TileConfig::wgmma::<Tile128x144>(),
    TileConfig::wgmma::<Tile64x256>(),
    TileConfig::wgmma::<Tile64x192>(),
    TileConfig::wgmma::<Tile64x128>(),
    TileConfig::wgmma::<Tile64x128Pair>(),
    TileConfig::wgmma::<Tile64x72>(),
    TileConfig::wgmma::<Tile64x64>(),
    TileConfig::wgmma::<Tile128x128Split2>(),
    TileConfig::wgmma::<Tile128x128Split4>(),
    TileConfig::wgmma::<Tile64x128Split2>(),
    TileConfig::wgmma::<Tile64x128Split4>(),
    TileConfig::wgmma::<Tile128x256F16>(),
    TileConfig::wgmma::<Tile128x128F16>(),
];

/// The tiles of the `wgmma` mainloop for 8-bit floats whose products are accumulated in two levels.
/// As of the others, of those to which the model gives equal times the first is chosen.
pub const FP8_TWO_LEVEL_TILES: [TileConfig; 4] = [
    TileConfig::wgmma::<Tile128x192Pair>(),
    TileConfig::wgmma::<Tile128x128Pair>(),
    TileConfig::wgmma::<Tile64x128>(),
    TileConfig::wgmma::<Tile64x64>(),
];

/// The same where all of k is accumulated in the tensor cores.
pub const FP8_FAST_TILES: [TileConfig; 6] = [
    TileConfig::wgmma::<Tile128x256Pair>(),
    TileConfig::wgmma::<Tile128x192Pair>(),
    TileConfig::wgmma::<Tile128x128Pair>(),
    TileConfig::wgmma::<Tile64x192>(),
    TileConfig::wgmma::<Tile64x128>(),
    TileConfig::wgmma::<Tile64x64>(),
];

impl TileConfig {
    const fn fma<T: F32Tile + 'static>() -> Self {
        TileConfig {
            block: [T::BLOCK_M as usize, T::BLOCK_N as usize],
            cluster: [1, 1],
            split_k: 1,
            accumulate: Accumulate::F32,
            num_threads: T::NUM_THREADS as usize,
            shared_bytes: T::SHARED_BYTES as usize,
            tile: TypeId::of::<T>(),
        }
    }

    const fn mma<const M: usize, const N: usize, T: MmaTile<M, N> + 'static>(
        accumulate: Accumulate,
    ) -> Self {
        TileConfig {
            block: [T::BLOCK_M as usize, T::BLOCK_N as usize],
            cluster: [1, 1],
            split_k: 1,
            accumulate,
            num_threads: T::NUM_THREADS as usize,
            shared_bytes: T::SHARED_BYTES as usize,
            tile: TypeId::of::<T>(),
        }
    }

    pub(in crate::gemm) const fn wgmma<T: WgmmaTile + 'static>() -> Self {
        let in_f16 = size_of::<<T::Acc as Accumulators>::Element>() == size_of::<f16>();
        TileConfig {
            block: [T::BLOCK_M as usize, T::BLOCK_N as usize],
            cluster: [T::CLUSTER_M as usize, T::CLUSTER_N as usize],
            split_k: T::SPLIT_K as usize,
            accumulate: if in_f16 { Accumulate::F16 } else { Accumulate::F32 },
            num_threads: T::NUM_THREADS as usize,
            shared_bytes: T::SHARED_BYTES as usize,
            tile: TypeId::of::<T>(),
        }
    }

    /// The type of the accumulators.
    pub(in crate::gemm) fn accumulator(&self) -> TypeId {
        match self.accumulate {
            Accumulate::F32 => TypeId::of::<f32>(),
            Accumulate::F16 => TypeId::of::<f16>(),
        }
    }

    /// Clusters along m and n for that many rows and columns.
    pub(in crate::gemm) fn clusters(&self, outputs: [usize; 2]) -> [usize; 2] {
        [0, 1].map(|axis| outputs[axis].div_ceil(self.block[axis] * self.cluster[axis]))
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of linear layers.
pub(crate) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    let fma = gemm_f32::Instance::ALL.iter().map(|instance| (instance.symbol(), instance.t()));
    let mma = gemm_sm80::Instance::ALL.iter().map(|instance| (instance.symbol(), instance.t()));
    let wgmma =
        gemm_f16_sm90::Instance::ALL.iter().map(|instance| (instance.symbol(), instance.t()));
    let fp8 =
        gemm_e4m3_sm90::Instance::ALL.iter().map(|instance| (instance.symbol(), instance.t()));
    let mut symbols = fma.chain(mma).chain(wgmma).chain(fp8);
    let (_, tile) = symbols.find(|(other, _)| *other == symbol)?;
    let wgmma = WGMMA_TILES.iter().chain(&FP8_FAST_TILES);
    let mut configs = FMA_TILES.iter().chain(&MMA_TILES).chain(wgmma);
    configs.find(|config| config.tile == tile).map(|config| config.shared_bytes)
}
