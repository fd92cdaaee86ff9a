//! Which tiles compute a linear layer, and their launch.
//!
//! Every configuration on an H200, f16, in us (the fastest of each row in brackets), and cuBLAS in
//! the same minutes; pairs load for each other. The clocks below are fitted to all of these.
//!
//! | m, n, k | 128x256 pair | 256x128 pair | 128x256 | 256x128 | 128x128 | 128x192 | 64x128 | 64x128 pair | 64x64 | 128x128 split2 | 128x128 split4 | cuBLAS |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | 1000, 1000, 1000 | 14.2 | 14.1 | 14.0 | 13.9 | 9.6 | 11.6 | 11.2 | (8.7) | 14.3 | 11.0 | 21.6 | 7.4 |
//! | 512, 1152, 896 | 12.4 | 12.4 | 12.1 | 12.1 | 7.4 | 9.7 | (5.6) | 5.8 | 6.7 | 7.5 | 13.5 | 5.1 |
//! | 512, 896, 4864 | 47.5 | 47.5 | 47.1 | 47.2 | 25.0 | 36.1 | 16.1 | 16.6 | (12.9) | 16.4 | 13.7 | 11.3 |
//! | 512, 9216, 3072 | 65.8 | 66.5 | 65.7 | 66.1 | 54.9 | (51.4) | 62.4 | 62.3 | 69.1 | 65.9 | 99.3 | 46.6 |
//! | 512, 3072, 3072 | 32.3 | 32.3 | 31.9 | 31.9 | (18.5) | 25.0 | 22.0 | 22.7 | 23.7 | 26.8 | 38.9 | 15.8 |
//! | 512, 3072, 8192 | 77.5 | 77.5 | 77.3 | 77.6 | (43.6) | 59.5 | 53.4 | 58.1 | 61.9 | 57.5 | 68.9 | 38.7 |
//! | 512, 9728, 896 | 23.6 | 23.5 | 23.6 | 23.8 | 18.9 | (18.7) | 19.3 | 19.7 | 24.8 | 35.5 | 68.4 | 16.6 |
//! | 2048, 1152, 896 | 13.2 | 13.1 | 12.9 | 12.8 | 13.4 | (10.7) | 12.4 | 12.8 | 13.9 | 20.2 | 33.7 | 9.1 |
//! | 2048, 3072, 3072 | 65.6 | 67.3 | 65.4 | 66.1 | 58.2 | (55.5) | 67.3 | 69.5 | 92.1 | 79.4 | 126 | 55.6 |
//! | 8192, 8192, 8192 | 1685 | (1660) | 1682 | 1696 | 1751 | 1701 | 2386 | 2123 | 3356 | 2087 | 2501 | 1642 |
//! | 2048, 896, 896 | 13.2 | 13.3 | 12.9 | 12.9 | (8.5) | 10.5 | 9.5 | 9.9 | 11.8 | 14.6 | 27.5 | 7.8 |
//! | 2048, 9728, 896 | (57.8) | 58.6 | 58.8 | 59.6 | 60.3 | 61.0 | 74.2 | 74.1 | 91.4 | 120 | 254 | 59.5 |
//! | 512, 16384, 3072 | (76.7) | 85.0 | 78.5 | 82.3 | 88.0 | 86.3 | 103 | 106 | 125 | 114 | 169 | 82.0 |
//! | 4096, 4096, 4096 | 207 | (194) | 206 | 216 | 224 | 220 | 252 | 252 | 331 | 262 | 377 | 199 |
//!
//! | m, n, k | 64x256 | 64x192 | 64x128 | 64x128 pair | 64x64 | 64x128 split2 | 64x128 split4 | cuBLAS |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | 1000, 1000, 1000 | 11.2 | 11.6 | 11.1 | (8.7) | 14.3 | 15.7 | 27.3 | 7.1 |
//! | 512, 1152, 896 | 7.8 | 6.6 | (5.5) | 5.8 | 6.6 | 10.3 | 15.0 | 5.1 |
//! | 512, 896, 4864 | 27.1 | 19.9 | 16.1 | 16.5 | (12.9) | 14.7 | 19.4 | 11.3 |
//! | 512, 3072, 3072 | 19.7 | (16.2) | 21.8 | 22.4 | 23.6 | 30.0 | 48.6 | 15.9 |
//! | 512, 3072, 8192 | 48.2 | (41.1) | 56.3 | 58.2 | 61.9 | 66.0 | 88.2 | 39.4 |
//! | 512, 9728, 896 | 20.3 | 20.9 | (19.3) | 19.9 | 24.8 | 50.0 | 94.4 | 16.6 |
//! | 2048, 1152, 896 | 14.1 | (11.8) | 12.4 | 12.7 | 13.9 | 25.1 | 46.5 | 9.0 |
//! | 2048, 896, 4864 | 40.3 | 45.6 | (35.2) | 36.9 | 51.9 | 48.0 | 69.2 | 25.4 |
//! | 512, 9216, 3072 | 58.1 | (51.3) | 59.8 | 61.8 | 71.1 | 83.9 | 133 | 48.0 |
//! | 32, 896, 4864 | 27.5 | 20.4 | 16.8 | 17.1 | 12.9 | 12.3 | (8.7) | 9.1 |
//! | 32, 1152, 896 | 9.2 | 8.2 | 7.2 | 7.3 | (6.3) | 7.4 | 7.1 | 6.0 |
//! | 32, 3072, 3072 | 20.6 | 16.3 | 13.7 | 13.4 | 11.9 | 11.9 | (11.1) | 11.7 |
//! | 32, 3072, 8192 | 45.9 | 34.6 | 28.4 | 28.7 | 24.8 | 22.5 | (18.2) | 18.9 |
//! | 32, 4096, 4096 | 25.8 | 21.5 | 17.9 | 19.1 | 15.7 | (15.0) | 18.4 | 14.4 |
//! | 32, 4096, 11008 | 60.9 | 49.0 | 40.4 | 42.7 | 34.8 | (31.8) | 32.7 | 28.9 |
//! | 32, 9216, 3072 | 24.0 | 19.4 | (17.8) | 27.6 | 25.0 | 22.4 | 26.5 | 16.5 |
//! | 32, 9728, 896 | 11.4 | 9.9 | (9.3) | 12.6 | 11.2 | 13.9 | 17.6 | 8.9 |
//! | 32, 12288, 4096 | 31.4 | (28.1) | 28.6 | 41.1 | 40.3 | 33.3 | 38.2 | 28.3 |
//! | 32, 16384, 3072 | 28.5 | 28.5 | (27.1) | 34.6 | 35.5 | 30.7 | 40.8 | 26.2 |
//! | 32, 22016, 4096 | 46.8 | (46.8) | 54.4 | 61.4 | 64.3 | 53.4 | 63.1 | 45.2 |
//! | 32, 32000, 4096 | (64.5) | 80.8 | 66.7 | 92.4 | 92.2 | 73.7 | 88.4 | 64.8 |
//! | 32, 32064, 3072 | (50.1) | 58.9 | 51.3 | 66.4 | 70.4 | 57.7 | 73.1 | 49.5 |
//! | 32, 151936, 896 | 71.0 | (68.8) | 69.1 | 78.4 | 93.1 | 103 | 190 | 71.1 |
//!
//! Tiles of a width that is no multiple of 64, with L2 promoted as [`promoted`] does; another card, the
//! peers' figures of another run. What a multiprocessor receives bounds all of one wave: of 512 x 1152
//! outputs 64x72 leave each 136 rows of a stage, 64x128 192, in pairs as many, since both blocks
//! receive what one loads.
//!
//! | m, n, k | 128x144 | 64x72 | 64x192 | 128x192 | 64x128 | 128x256 pair | cuBLAS |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | 512, 1152, 896 | 8.2 | (5.0) | 6.6 | 9.7 | 5.5 | 12.3 | 5.0 |
//! | 2048, 1152, 896 | (9.3) | 14.3 | 11.8 | 10.7 | 12.4 | 13.1 | 9.2 |
//! | 512, 896, 896 | 8.2 | (4.9) | 6.5 | 9.7 | 5.5 | 12.3 | 4.8 |
//! | 512, 896, 4864 | 28.2 | (13.8) | 20.2 | 36.2 | 16.4 | 47.6 | 12.0 |
//! | 2048, 896, 896 | (9.1) | 14.0 | 11.8 | 10.4 | 9.4 | 13.1 | 7.7 |
//! | 512, 9216, 3072 | (50.8) | 71.1 | 53.3 | 55.7 | 64.4 | 67.2 | 50.6 |
//! | 512, 4096, 4096 | (29.0) | 43.9 | 37.0 | 33.9 | 33.8 | 41.6 | 30.7 |
//! | 512, 22016, 4096 | (154) | 229 | 158 | 158 | 182 | 158 | 156 |
//! | 2048, 3072, 3072 | 64.3 | 94.0 | 62.8 | (57.3) | 73.9 | 68.2 | 65.0 |
//! | 32, 9216, 3072 | 28.3 | 18.8 | 19.1 | 25.7 | (17.6) | 32.7 | 16.9 |

use super::gemm_f16_sm90::{self, Instance};
use super::{
    BLOCK_K, ROW_BYTES, STRIP_COLUMNS, STRIP_ROWS, Tile, Tile64x64, Tile64x72, Tile64x128,
    Tile64x128Pair, Tile64x128Split2, Tile64x128Split4, Tile64x192, Tile64x256, Tile128x128,
    Tile128x128F16, Tile128x128Split2, Tile128x128Split4, Tile128x144, Tile128x192, Tile128x256,
    Tile128x256F16, Tile128x256Pair, Tile256x128, Tile256x128Pair,
};
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::linear16::{
    Accumulate, Linear16, Linear16Operands, Out16, SumOrder, Summation, tensor_map,
};
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, L2Promotion, TensorMapSpec};

/// FMAs a clock of a multiprocessor's tensor cores: of their 2048, what a ring of stages leaves.
const FMAS_PER_CLOCK: usize = 1800;

/// What a multiprocessor gets from L2 when all of them read: of an H200, from what tiles of 64x64
/// and 64x128 take of a stage at 4096 cubed.
const L2_BYTES_PER_CLOCK: usize = 64;

/// Outputs that a tile stores in a clock while nothing is multiplied.
const OUTPUTS_PER_CLOCK: usize = 7;

/// Clocks until a tile's first products, and behind its last ones.
const TILE_CLOCKS: usize = 2500;

/// What a block gets out of the shared memory of its cluster's others: fitted, where
/// arXiv:2402.13499 measured 14 on an H100.
const CLUSTER_BYTES_PER_CLOCK: usize = 8;

/// What a split costs besides: two barriers of the cluster, and the sums' way through shared
/// memory.
const SPLIT_CLOCKS: usize = 4000;

/// All tile configurations; of those that should take as long the first one is chosen.
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

/// The map of an operand whose lines all blocks of a row or column of tiles read: where lines lie in
/// pairs they come to L2 as such. On an H200 32 rows of 12288 x 4096 take 28.7 us so, and 30.2 line by
/// line; 1000 cubed, whose rows are no whole lines, 9.0 and 8.4.
fn promoted(spec: TensorMapSpec) -> TensorMapSpec {
    let are_pairs = spec.strides_bytes.iter().all(|stride| stride.is_multiple_of(256));
    let l2_promotion = if are_pairs { L2Promotion::B256 } else { L2Promotion::B128 };
    TensorMapSpec { l2_promotion, ..spec }
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
        configs.min_by_key(|config| config.clocks(linear, num_sms)).expect("there are some")
    }

    /// Clocks that `num_sms` multiprocessors take for a layer.
    fn clocks(&self, linear: &Linear16, num_sms: usize) -> usize {
        let [clusters_m, clusters_n] = self.clusters(linear);
        let waves = clusters_m.saturating_mul(clusters_n).div_ceil(self.workers(num_sms));
        let k_blocks = linear.k.div_ceil(BLOCK_K as usize).div_ceil(self.split_k);
        let outputs = self.block.iter().product::<usize>() / OUTPUTS_PER_CLOCK;
        let products = k_blocks.saturating_mul(self.stage_clocks(linear.k));
        let tile = products.saturating_add(TILE_CLOCKS + self.split_clocks() + outputs);
        waves.saturating_mul(tile)
    }

    /// Clocks of a tile's `BLOCK_K` columns of `k`.
    fn stage_clocks(&self, k: usize) -> usize {
        let [block_m, block_n] = self.block;
        let [cluster_m, cluster_n] = self.cluster;
        let products = block_m * block_n * BLOCK_K as usize / FMAS_PER_CLOCK;
        // Blocks that load for each other are no faster where rows are whole lines (64x128 in pairs 0.2
        // to 2 us slower); where a box's row is in two of them its loads cost twice.
        let num_rows = if k.is_multiple_of(BLOCK_K as usize) {
            block_m + block_n
        } else {
            2 * (block_m / cluster_n + block_n / cluster_m)
        };
        products.max(num_rows * ROW_BYTES as usize / L2_BYTES_PER_CLOCK)
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
        let a = tensor_map(&x, [max_rows, k], [block_m / cluster_n, BLOCK_K as usize]);
        let b = tensor_map(weight, [n, k], [block_n / cluster_m, BLOCK_K as usize]);
        let [a, b] = [a, b].map(|spec| maps(&promoted(spec)));
        let (is_f32, out_ptr, out_stride, out_map) = match out {
            Out16::F32(out) => (1, out.ptr.0, out.stride_arg()?, EncodedTensorMap::NONE),
            Out16::Half(out) => {
                let strip = [STRIP_ROWS as usize, STRIP_COLUMNS as usize];
                let is_aligned = out.is_aligned() && n.is_multiple_of(8);
                let map = if is_aligned {
                    maps(&tensor_map(out, [max_rows, n], strip))
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
