//! The tile configurations of the GEMM for sm_90a, and their launch.
//!
//! Measured times of every configuration: `docs/measurements/gemm_sm90.md`.

use super::gemm_f16_sm90::{self, Instance};
use super::{
    BLOCK_K, SUBTILE_COLUMNS, SUBTILE_ROWS, Tile64x64, Tile64x72, Tile64x128, Tile64x128Pair,
    Tile64x128Split2, Tile64x128Split4, Tile64x192, Tile64x256, Tile128x128, Tile128x128F16,
    Tile128x128Split2, Tile128x128Split4, Tile128x144, Tile128x192, Tile128x256, Tile128x256F16,
    Tile128x256Pair, Tile256x128, Tile256x128Pair, WgmmaTile,
};
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::linear16::{Accumulate, Linear16, Linear16Operands, Out16, tensor_map};
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, L2Promotion, TensorMapSpec};

/// All tile configurations. Of those to which the model gives equal times the first is chosen.
pub const TILE_CONFIGS: [TileConfig; 19] = {
    use Instance::*;
    [
        TileConfig::of::<Tile128x256Pair>(
            [gemm_f16_sm90_128x256_pair, gemm_f16_sm90_128x256_pair_f32],
            Some([gemm_bf16_sm90_128x256_pair, gemm_bf16_sm90_128x256_pair_f32]),
        ),
        TileConfig::of::<Tile256x128Pair>(
            [gemm_f16_sm90_256x128_pair, gemm_f16_sm90_256x128_pair_f32],
            Some([gemm_bf16_sm90_256x128_pair, gemm_bf16_sm90_256x128_pair_f32]),
        ),
        TileConfig::of::<Tile128x256>(
            [gemm_f16_sm90_128x256, gemm_f16_sm90_128x256_f32],
            Some([gemm_bf16_sm90_128x256, gemm_bf16_sm90_128x256_f32]),
        ),
        TileConfig::of::<Tile256x128>(
            [gemm_f16_sm90_256x128, gemm_f16_sm90_256x128_f32],
            Some([gemm_bf16_sm90_256x128, gemm_bf16_sm90_256x128_f32]),
        ),
        TileConfig::of::<Tile128x128>(
            [gemm_f16_sm90_128x128, gemm_f16_sm90_128x128_f32],
            Some([gemm_bf16_sm90_128x128, gemm_bf16_sm90_128x128_f32]),
        ),
        TileConfig::of::<Tile128x192>(
            [gemm_f16_sm90_128x192, gemm_f16_sm90_128x192_f32],
            Some([gemm_bf16_sm90_128x192, gemm_bf16_sm90_128x192_f32]),
        ),
        TileConfig::of::<Tile128x144>(
            [gemm_f16_sm90_128x144, gemm_f16_sm90_128x144_f32],
            Some([gemm_bf16_sm90_128x144, gemm_bf16_sm90_128x144_f32]),
        ),
        TileConfig::of::<Tile64x256>(
            [gemm_f16_sm90_64x256, gemm_f16_sm90_64x256_f32],
            Some([gemm_bf16_sm90_64x256, gemm_bf16_sm90_64x256_f32]),
        ),
        TileConfig::of::<Tile64x192>(
            [gemm_f16_sm90_64x192, gemm_f16_sm90_64x192_f32],
            Some([gemm_bf16_sm90_64x192, gemm_bf16_sm90_64x192_f32]),
        ),
        TileConfig::of::<Tile64x128>(
            [gemm_f16_sm90_64x128, gemm_f16_sm90_64x128_f32],
            Some([gemm_bf16_sm90_64x128, gemm_bf16_sm90_64x128_f32]),
        ),
        TileConfig::of::<Tile64x128Pair>(
            [gemm_f16_sm90_64x128_pair, gemm_f16_sm90_64x128_pair_f32],
            Some([gemm_bf16_sm90_64x128_pair, gemm_bf16_sm90_64x128_pair_f32]),
        ),
        TileConfig::of::<Tile64x72>(
            [gemm_f16_sm90_64x72, gemm_f16_sm90_64x72_f32],
            Some([gemm_bf16_sm90_64x72, gemm_bf16_sm90_64x72_f32]),
        ),
        TileConfig::of::<Tile64x64>(
            [gemm_f16_sm90_64x64, gemm_f16_sm90_64x64_f32],
            Some([gemm_bf16_sm90_64x64, gemm_bf16_sm90_64x64_f32]),
        ),
        TileConfig::of::<Tile128x128Split2>(
            [gemm_f16_sm90_128x128_split2, gemm_f16_sm90_128x128_split2_f32],
            Some([gemm_bf16_sm90_128x128_split2, gemm_bf16_sm90_128x128_split2_f32]),
        ),
        TileConfig::of::<Tile128x128Split4>(
            [gemm_f16_sm90_128x128_split4, gemm_f16_sm90_128x128_split4_f32],
            Some([gemm_bf16_sm90_128x128_split4, gemm_bf16_sm90_128x128_split4_f32]),
        ),
        TileConfig::of::<Tile64x128Split2>(
            [gemm_f16_sm90_64x128_split2, gemm_f16_sm90_64x128_split2_f32],
            Some([gemm_bf16_sm90_64x128_split2, gemm_bf16_sm90_64x128_split2_f32]),
        ),
        TileConfig::of::<Tile64x128Split4>(
            [gemm_f16_sm90_64x128_split4, gemm_f16_sm90_64x128_split4_f32],
            Some([gemm_bf16_sm90_64x128_split4, gemm_bf16_sm90_64x128_split4_f32]),
        ),
        TileConfig::of::<Tile128x256F16>(
            [gemm_f16_sm90_128x256_in_f16, gemm_f16_sm90_128x256_in_f16_f32],
            None,
        ),
        TileConfig::of::<Tile128x128F16>(
            [gemm_f16_sm90_128x128_in_f16, gemm_f16_sm90_128x128_in_f16_f32],
            None,
        ),
    ]
};

/// A tile configuration, as far as a launch depends on it.
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
    num_threads: usize,
    shared_bytes: usize,
    /// The instances for f16 operands: with 16-bit outputs, with f32 outputs.
    pub(super) of_f16: [Instance; 2],
    /// The same for bf16 operands, which have f32 accumulators only.
    of_bf16: Option<[Instance; 2]>,
}

/// The map with 256-byte L2 promotion where row strides are multiples of 256 bytes: 5 % faster at
/// 32 rows of 12288 x 4096, and slower where they are not.
fn promoted(spec: TensorMapSpec) -> TensorMapSpec {
    let is_multiple = spec.strides_bytes.iter().all(|stride| stride.is_multiple_of(256));
    let l2_promotion = if is_multiple { L2Promotion::B256 } else { L2Promotion::B128 };
    TensorMapSpec { l2_promotion, ..spec }
}

impl TileConfig {
    const fn of<T: WgmmaTile>(of_f16: [Instance; 2], of_bf16: Option<[Instance; 2]>) -> Self {
        TileConfig {
            block: [T::BLOCK_M as usize, T::BLOCK_N as usize],
            cluster: [T::CLUSTER_M as usize, T::CLUSTER_N as usize],
            split_k: T::SPLIT_K as usize,
            num_threads: T::NUM_THREADS as usize,
            accumulate: if of_bf16.is_some() { Accumulate::F32 } else { Accumulate::F16 },
            shared_bytes: T::SHARED_BYTES as usize,
            of_f16,
            of_bf16,
        }
    }

    /// Clusters along m and n.
    pub(super) fn clusters(&self, linear: &Linear16) -> [usize; 2] {
        let [rows, columns] = [0, 1].map(|axis| self.block[axis] * self.cluster[axis]);
        [linear.max_rows.div_ceil(rows), linear.n.div_ceil(columns)]
    }

    fn blocks_per_cluster(&self) -> usize {
        self.cluster[0] * self.cluster[1] * self.split_k
    }

    /// Clusters that run at the same time, at least one.
    pub(super) fn workers(&self, num_sms: usize) -> usize {
        (num_sms / self.blocks_per_cluster()).max(1)
    }

    /// The launch in this configuration, whatever [`Summation`](crate::gemm::Summation) the layer
    /// asks for; `num_rows` and `maps` as in [`Linear16::launch`].
    ///
    /// # Errors
    /// As [`Linear16::launch`], and for bf16 operands in a configuration with f16 accumulators.
    pub fn launch<E: Operand16>(
        &self,
        linear: &Linear16,
        num_sms: usize,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        linear.check(operands)?;
        let of_outputs = if E::DTYPE == Dtype::Bf16 { self.of_bf16 } else { Some(self.of_f16) };
        let of_outputs = of_outputs.ok_or(Linear16::F16_ACCUMULATORS_OF_BF16)?;
        let Some(geometry) = self.geometry(linear, num_sms)? else { return Ok(None) };
        let &Linear16 { max_rows, n, k, .. } = linear;
        let x = linear.plain_input(operands)?;
        let Linear16Operands { weight, bias, residual, out, .. } = operands;
        let [block_m, block_n] = self.block;
        let [cluster_m, cluster_n] = self.cluster;
        let a = tensor_map(&x, [max_rows, k], [block_m / cluster_n, BLOCK_K as usize]);
        let b = tensor_map(weight, [n, k], [block_n / cluster_m, BLOCK_K as usize]);
        let [a, b] = [a, b].map(|spec| maps(&promoted(spec)));
        let (is_f32, out_ptr, out_stride, out_map) = match out {
            Out16::F32(out) => (1, out.ptr.0, out.stride_arg()?, EncodedTensorMap::NONE),
            Out16::Half(out) => {
                let subtile = [SUBTILE_ROWS as usize, SUBTILE_COLUMNS as usize];
                let is_aligned = out.is_aligned() && n.is_multiple_of(8);
                let map = if is_aligned {
                    maps(&tensor_map(out, [max_rows, n], subtile))
                } else {
                    EncodedTensorMap::NONE
                };
                (0, out.ptr.0, out.stride_arg()?, map)
            }
        };
        let residual = residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        Ok(Some(gemm_f16_sm90::launch(
            of_outputs[is_f32],
            geometry,
            num_rows,
            max_rows as u32,
            n as u32,
            k as u32,
            bias.unwrap_or(DevicePtr::null()),
            residual.ptr,
            residual.stride_arg()?,
            DevicePtr::new(out_ptr),
            out_stride,
            a,
            b,
            out_map,
        )))
    }

    /// One cluster a tile; without split-K at most as many clusters as run at the same time.
    fn geometry(&self, linear: &Linear16, num_sms: usize) -> Result<Option<Geometry>, LaunchError> {
        let [clusters_m, clusters_n] = self.clusters(linear);
        let num_clusters = clusters_m.saturating_mul(clusters_n);
        if num_clusters > Geometry::MAX_GRID[0] {
            let (value, expected) = (num_clusters, "at most 2147483647");
            return Err(LaunchError::Shape { what: "tiles", value, expected });
        }
        let num_clusters =
            if self.split_k == 1 { num_clusters.min(self.workers(num_sms)) } else { num_clusters };
        let grid = [num_clusters * self.blocks_per_cluster(), 1, 1];
        Geometry::new(grid, self.num_threads, self.shared_bytes)
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of this kernel.
pub(in super::super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    let is_of = |tile: &&TileConfig| {
        let mut instances = tile.of_f16.iter().chain(tile.of_bf16.iter().flatten());
        instances.any(|instance| instance.symbol() == symbol)
    };
    TILE_CONFIGS.iter().find(is_of).map(|tile| tile.shared_bytes)
}
