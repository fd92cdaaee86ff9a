//! Which tiles compute a linear layer, and their launch.
//!
//! Configurations on an H200, f16, in us (the fastest of each row in brackets), and cuBLAS in the
//! same minutes. That was before tensor maps were parameters and the first tile was loaded without
//! the number of rows; 128x192 and pairs of 64x128 are not measured:
//!
//! | m, n, k | 128x256 pair | 128x256 | 256x128 | 128x128 | 64x128 | 64x64 | split | cuBLAS |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | 8192, 8192, 8192 | 2114 | (1656) | 1673 | 1883 | 3194 | 3727 | 1828 | 1620 |
//! | 4096, 4096, 4096 | 254 | 212 | (203) | 208 | 319 | 403 | 234 | 211 |
//! | 2048, 2048, 2048 | 33.4 | (25.3) | 25.6 | 26.0 | 34.2 | 42.0 | 34.4 | 28.3 |
//! | 1000, 1000, 1000 | 21.4 | 14.3 | 14.3 | (10.7) | 12.0 | 14.7 | 11.7 | 7.3 |
//! | 512, 1152, 896 | 16.0 | 12.4 | 12.4 | 7.9 | (6.2) | 7.4 | 8.1 | 4.9 |
//! | 512, 896, 4864 | 69.5 | 47.8 | 47.9 | 25.4 | 17.5 | 15.1 | (14.2) | 12.0 |
//! | 512, 9216, 3072 | 94.2 | 66.6 | 66.4 | (56.7) | 73.7 | 83.9 | 66.3 | 50.5 |
//! | 512, 16384, 3072 | 100 | 84.2 | (82.5) | 86.4 | 122 | 151 | 96.0 | 83.8 |
//! | 2048, 1152, 896 | 16.4 | 13.1 | 13.1 | 13.2 | (12.4) | 13.6 | 21.0 | 9.1 |
//! | 2048, 3072, 3072 | 92.7 | 65.8 | 68.8 | (56.6) | 81.5 | 94.8 | 67.2 | 64.9 |
//! | 2048, 9728, 896 | 71.6 | (59.3) | 60.6 | 61.8 | 76.6 | 92.7 | 105 | 72.5 |

use super::gemm_f16_sm90::{self, Instance};
use super::{
    BLOCK_K, STRIP_COLUMNS, STRIP_ROWS, Tile, Tile64x64, Tile64x128, Tile64x128Pair,
    Tile64x128Split2, Tile64x128Split4, Tile64x192, Tile64x256, Tile128x128, Tile128x128F16, Tile128x128Split2, Tile128x128Split4, Tile128x192,
    Tile128x256, Tile128x256F16, Tile128x256Pair, Tile256x128, Tile256x128Pair,
};
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::linear16::{Accumulate, Linear16, Linear16Operands, Out16, SumOrder, Summation};
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, Swizzle, TensorMapSpec};

/// FMAs of a multiprocessor's tensor cores.
const FMAS_PER_CLOCK: usize = 2048;

/// What a multiprocessor gets from L2 when all of them read: of an H200, from what tiles of 64x64
/// and 64x128 take of a stage at 4096 cubed.
const L2_BYTES_PER_CLOCK: usize = 62;

/// Outputs that a tile stores in a clock while nothing is multiplied: from what is left of the time
/// of 2048 x 9728 x 896 behind its stages.
const OUTPUTS_PER_CLOCK: usize = 10;

/// Per cent of a stage's clocks where a cluster's blocks load for each other: 8192 cubed took 2.11
/// ms by pairs of 128x256 and 1.66 ms by 128x256 alone (cuBLAS: 1.62 ms), other shapes likewise.
/// That was with an arrival at the other block's barriers that fenced all memory; without, it is to
/// be measured.
const MULTICAST_PERCENT: usize = 128;

/// What a block gets out of the shared memory of its cluster's others (arXiv:2402.13499: 3.3 TB/s
/// on an H100): a guess for this pattern, to be measured.
const CLUSTER_BYTES_PER_CLOCK: usize = 14;

/// What a split costs besides: two barriers of the cluster, and the sums' way through shared
/// memory. A guess, to be measured.
const SPLIT_CLOCKS: usize = 1500;

/// How much faster a configuration should be than one before it in the list to be chosen: less is
/// nothing that the clocks below can tell.
const TELLING_PERCENT: usize = 3;

/// All tile configurations; of those that should take about as long the first one is chosen.
pub const TILE_CONFIGS: [TileConfig; 17] = {
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
    /// Blocks of a cluster that share a tile's k.
    pub split_k: usize,
    /// What products are summed in.
    pub accumulate: Accumulate,
    num_threads: usize,
    shared_bytes: usize,
    /// Of f16 operands, by outputs: 16 bits, f32.
    of_f16: [Instance; 2],
    /// The same of bf16 operands, which are summed in f32 alone.
    of_bf16: Option<[Instance; 2]>,
}

impl TileConfig {
    const fn of<T: Tile>(of_f16: [Instance; 2], of_bf16: Option<[Instance; 2]>) -> Self {
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

    /// Rows and columns of tiles that a cluster computes at once.
    fn clusters(&self, linear: &Linear16) -> [usize; 2] {
        let [rows, columns] = [0, 1].map(|axis| self.block[axis] * self.cluster[axis]);
        [linear.max_rows.div_ceil(rows), linear.n.div_ceil(columns)]
    }

    fn blocks_per_cluster(&self) -> usize {
        self.cluster[0] * self.cluster[1] * self.split_k
    }

    /// Clusters that run at once, at least one.
    fn workers(&self, num_sms: usize) -> usize {
        (num_sms / self.blocks_per_cluster()).max(1)
    }

    /// The configuration that should be the fastest, of those that sum as the layer asks for.
    #[must_use]
    pub fn fastest(linear: &Linear16, num_sms: usize) -> &'static TileConfig {
        let Summation { accumulate, order } = linear.summation;
        let sums_so = |config: &&TileConfig| {
            config.accumulate == accumulate && (config.split_k == 1 || order == SumOrder::Fastest)
        };
        let configs = TILE_CONFIGS.iter().filter(sums_so);
        let timed = configs.map(|config| (config.clocks(linear, num_sms), config));
        let faster = |best: (usize, _), other: (usize, _)| {
            let is_faster = other.0 < best.0 / 100 * (100 - TELLING_PERCENT);
            if is_faster { other } else { best }
        };
        timed.reduce(faster).expect("there are some").1
    }

    /// Clocks that `num_sms` multiprocessors take for a layer.
    fn clocks(&self, linear: &Linear16, num_sms: usize) -> usize {
        let [clusters_m, clusters_n] = self.clusters(linear);
        let waves = clusters_m.saturating_mul(clusters_n).div_ceil(self.workers(num_sms));
        let k_blocks = linear.k.div_ceil(BLOCK_K as usize).div_ceil(self.split_k);
        let outputs = self.block.iter().product::<usize>() / OUTPUTS_PER_CLOCK;
        let tile = k_blocks.saturating_mul(self.stage_clocks()) + self.split_clocks() + outputs;
        waves.saturating_mul(tile)
    }

    /// Clocks of a tile's `BLOCK_K` columns.
    fn stage_clocks(&self) -> usize {
        let [block_m, block_n] = self.block;
        let [cluster_m, cluster_n] = self.cluster;
        let products = block_m * block_n * BLOCK_K as usize / FMAS_PER_CLOCK;
        let loads =
            (block_m / cluster_n + block_n / cluster_m) * 2 * BLOCK_K as usize / L2_BYTES_PER_CLOCK;
        match cluster_m * cluster_n {
            1 => products.max(loads),
            _ => products.max(loads) * MULTICAST_PERCENT / 100,
        }
    }

    /// Clocks until a cluster's blocks have added up their sums.
    fn split_clocks(&self) -> usize {
        if self.split_k == 1 {
            return 0;
        }
        let [block_m, block_n] = self.block;
        let others = block_m * block_n * size_of::<f32>() * (self.split_k - 1) / self.split_k;
        SPLIT_CLOCKS + others / CLUSTER_BYTES_PER_CLOCK
    }

    /// The launch by this configuration: as [`Linear16::launch`] on sm_90a, whatever the layer asks
    /// of its sums.
    ///
    /// # Errors
    /// As there, and for bf16 operands where sums are f16.
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
        let of_outputs = of_outputs.ok_or(Linear16::F16_SUMS_OF_BF16)?;
        let Some(geometry) = self.geometry(linear, num_sms)? else { return Ok(None) };
        let &Linear16 { max_rows, n, k, .. } = linear;
        let x = linear.plain_input(operands)?;
        let Linear16Operands { weight, bias, residual, out, .. } = operands;
        let [block_m, block_n] = self.block;
        let [cluster_m, cluster_n] = self.cluster;
        let a = maps(&map(&x, [max_rows, k], [block_m / cluster_n, BLOCK_K as usize]));
        let b = maps(&map(weight, [n, k], [block_n / cluster_m, BLOCK_K as usize]));
        let (is_f32, out_ptr, out_stride, out_map) = match out {
            Out16::F32(out) => (1, out.ptr.0, out.stride_arg()?, EncodedTensorMap::NONE),
            Out16::Half(out) => {
                let strip = [STRIP_ROWS as usize, STRIP_COLUMNS as usize];
                let is_aligned = out.is_aligned() && n.is_multiple_of(8);
                let map = if is_aligned {
                    maps(&map(out, [max_rows, n], strip))
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
            a,
            b,
            bias.unwrap_or(DevicePtr::null()),
            residual.ptr,
            residual.stride_arg()?,
            DevicePtr::new(out_ptr),
            out_stride,
            out_map,
        )))
    }

    /// A cluster for every tile; where k is not split, as long as there are multiprocessors.
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

/// The map of a matrix of `[rows, columns]` in boxes of `[rows, columns]`.
fn map<E: Operand16>(matrix: &Rows<E>, sizes: [usize; 2], box_sizes: [usize; 2]) -> TensorMapSpec {
    let [rows, columns] = sizes.map(|size| size as u64);
    let [box_rows, box_columns] = box_sizes.map(|size| size as u32);
    TensorMapSpec {
        address: matrix.ptr.0,
        element: E::TENSOR_MAP,
        dims: vec![columns, rows],
        strides_bytes: vec![(matrix.row_stride * size_of::<E>()) as u64],
        box_dims: vec![box_columns, box_rows],
        swizzle: Swizzle::B128,
    }
}
