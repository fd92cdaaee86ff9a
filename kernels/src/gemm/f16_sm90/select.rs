//! Which tile configuration computes a linear layer: the fastest one measured for its shape on this
//! GPU, or, where the shape was not measured, the fastest one by a model of its time.
//!
//! Configurations that do not split k accumulate each output in the same order, so a choice among
//! them changes no bit. Split-K is left out unless the layer allows any order.
//!
//! Measurements, and how the model's constants were fitted: `docs/measurements/gemm_sm90.md`.

use super::gemm_f16_sm90::Instance::{self, *};
use super::{BLOCK_K, ROW_BYTES, TILE_CONFIGS, TileConfig};
use crate::gemm::linear16::{Linear16, SumOrder, Summation};

/// FMAs a clock and SM that a ring of stages reaches, of the tensor cores' 2048.
const FMAS_PER_CLOCK: usize = 1800;

/// Bytes a clock and SM from L2 when every SM reads.
const L2_BYTES_PER_CLOCK: usize = 64;

/// Outputs stored in a clock while nothing is multiplied.
const OUTPUTS_PER_CLOCK: usize = 7;

/// Clocks before the first and after the last MMA of a tile.
const TILE_CLOCKS: usize = 2500;

/// Bytes a clock that a block receives from the shared memory of the cluster's other blocks.
const CLUSTER_BYTES_PER_CLOCK: usize = 8;

/// Clocks of the two cluster barriers of split-K, and of the way through shared memory.
const SPLIT_CLOCKS: usize = 4000;

/// The least `BLOCK_M`. A measurement holds for all row counts with as many blocks of these rows:
/// every configuration has as many tiles for them.
const ROW_BLOCK: usize = 64;

/// The fastest configurations by shape `[m, n, k]`, the fastest first, on a GPU of 132 SMs (H100
/// and H200 SXM), each by its instance for f16. The last one of a shape does not split k.
const MEASURED_132_SMS: [([usize; 3], &[Instance]); 31] = [
    ([32, 896, 4864], &[gemm_f16_sm90_64x128_split4, gemm_f16_sm90_64x64]),
    ([32, 1152, 896], &[gemm_f16_sm90_64x64]),
    ([32, 3072, 3072], &[gemm_f16_sm90_64x128_split4, gemm_f16_sm90_64x64]),
    ([32, 3072, 8192], &[gemm_f16_sm90_64x128_split4, gemm_f16_sm90_64x64]),
    ([32, 4096, 4096], &[gemm_f16_sm90_64x128_split2, gemm_f16_sm90_64x64]),
    ([32, 4096, 11008], &[gemm_f16_sm90_64x128_split2, gemm_f16_sm90_64x64]),
    ([32, 9216, 3072], &[gemm_f16_sm90_64x128]),
    ([32, 9728, 896], &[gemm_f16_sm90_64x128]),
    ([32, 12288, 4096], &[gemm_f16_sm90_64x192]),
    ([32, 16384, 3072], &[gemm_f16_sm90_64x128]),
    ([32, 22016, 4096], &[gemm_f16_sm90_64x192]),
    ([32, 32000, 4096], &[gemm_f16_sm90_64x256]),
    ([32, 32064, 3072], &[gemm_f16_sm90_64x256]),
    ([32, 151_936, 896], &[gemm_f16_sm90_64x192]),
    ([512, 896, 896], &[gemm_f16_sm90_64x64]),
    ([512, 896, 4864], &[gemm_f16_sm90_64x64]),
    ([512, 1152, 896], &[gemm_f16_sm90_64x72]),
    ([512, 3072, 3072], &[gemm_f16_sm90_64x192]),
    ([512, 3072, 8192], &[gemm_f16_sm90_64x192]),
    ([512, 9216, 3072], &[gemm_f16_sm90_128x144]),
    ([512, 9728, 896], &[gemm_f16_sm90_128x192]),
    ([512, 16384, 3072], &[gemm_f16_sm90_128x256_pair]),
    ([512, 22016, 4096], &[gemm_f16_sm90_128x144]),
    ([1000, 1000, 1000], &[gemm_f16_sm90_64x128_pair]),
    ([2048, 896, 896], &[gemm_f16_sm90_128x128]),
    ([2048, 896, 4864], &[gemm_f16_sm90_128x128]),
    ([2048, 1152, 896], &[gemm_f16_sm90_128x144]),
    ([2048, 3072, 3072], &[gemm_f16_sm90_128x192]),
    ([2048, 9728, 896], &[gemm_f16_sm90_128x256_pair]),
    ([4096, 4096, 4096], &[gemm_f16_sm90_256x128_pair]),
    ([8192, 8192, 8192], &[gemm_f16_sm90_256x128_pair]),
];

/// The configurations measured as the fastest for a layer, the fastest first; none if its shape was
/// not measured on a GPU of so many SMs.
fn measured(linear: &Linear16, num_sms: usize) -> &'static [Instance] {
    if num_sms != 132 {
        return &[];
    }
    let &Linear16 { max_rows, n, k, .. } = linear;
    let tiled = |[m, n, k]: [usize; 3]| [m.div_ceil(ROW_BLOCK), n, k];
    let mut shapes = MEASURED_132_SMS.iter();
    let found = shapes.find(|(shape, _)| tiled(*shape) == tiled([max_rows, n, k]));
    found.map_or(&[], |(_, fastest)| fastest)
}

impl TileConfig {
    /// The configuration for a layer on `num_sms` SMs, of those that accumulate as the layer asks.
    #[must_use]
    pub fn fastest(linear: &Linear16, num_sms: usize) -> &'static TileConfig {
        let Summation { accumulate, order } = linear.summation;
        let is_allowed = |config: &&TileConfig| {
            config.accumulate == accumulate && (config.split_k == 1 || order == SumOrder::Fastest)
        };
        let allowed = || TILE_CONFIGS.iter().filter(is_allowed);
        let mut measured = measured(linear, num_sms).iter();
        measured
            .find_map(|&of_f16| allowed().find(|config| config.of_f16[0] == of_f16))
            .or_else(|| allowed().min_by_key(|config| config.clocks(linear, num_sms)))
            .expect("configurations for f32 and for f16 accumulators")
    }

    /// Clocks that `num_sms` SMs should take for a layer.
    fn clocks(&self, linear: &Linear16, num_sms: usize) -> usize {
        let [clusters_m, clusters_n] = self.clusters(linear);
        let waves = clusters_m.saturating_mul(clusters_n).div_ceil(self.workers(num_sms));
        let k_blocks = linear.k.div_ceil(BLOCK_K as usize).div_ceil(self.split_k);
        let outputs = self.block.iter().product::<usize>() / OUTPUTS_PER_CLOCK;
        let mainloop = k_blocks.saturating_mul(self.stage_clocks(linear.k));
        let tile = mainloop.saturating_add(TILE_CLOCKS + self.split_clocks() + outputs);
        waves.saturating_mul(tile)
    }

    /// Clocks of a tile's `BLOCK_K` columns of `k`.
    fn stage_clocks(&self, k: usize) -> usize {
        let [block_m, block_n] = self.block;
        let [cluster_m, cluster_n] = self.cluster;
        let mma = block_m * block_n * BLOCK_K as usize / FMAS_PER_CLOCK;
        // Multicast saves time only where rows are not made of whole 128-byte lines.
        let num_rows = if k.is_multiple_of(BLOCK_K as usize) {
            block_m + block_n
        } else {
            2 * (block_m / cluster_n + block_n / cluster_m)
        };
        mma.max(num_rows * ROW_BYTES as usize / L2_BYTES_PER_CLOCK)
    }

    /// Clocks until a cluster's blocks have added up their partial sums.
    fn split_clocks(&self) -> usize {
        if self.split_k == 1 {
            return 0;
        }
        let [block_m, block_n] = self.block;
        let others = block_m * block_n * size_of::<f32>() * (self.split_k - 1) / self.split_k;
        SPLIT_CLOCKS + others / CLUSTER_BYTES_PER_CLOCK
    }
}
