//! Which tiles compute a layer: the fastest by a model of their time. Its constants were measured on
//! an H200: `docs/measurements/gemm_fp8.md`.

use super::LinearFp8;
use crate::gemm::config::TileConfig;
use crate::gemm::config::wgmma::ROW_BYTES;

/// FMAs of a tensor core in a clock, by 128 columns of k: outputs of a stage.
const OUTPUTS_PER_CLOCK: usize = 4096 / 128;

/// Bytes a clock and SM from L2 when every SM reads.
const L2_BYTES_PER_CLOCK: usize = 72;

/// Outputs that are scaled and stored in a clock.
const STORED_PER_CLOCK: usize = 13;

/// Clocks of a tile but for its stages and its outputs.
const TILE_CLOCKS: usize = 1300;

impl LinearFp8 {
    /// The tiles with which the busiest of `num_sms` SMs ends first.
    #[must_use]
    pub fn fastest(&self, num_sms: usize) -> &'static TileConfig {
        let tiles = Self::tiles(self.accumulate).iter();
        tiles.min_by_key(|config| self.clocks(config, num_sms)).expect("a tile")
    }

    /// Clocks that the layer should take.
    fn clocks(&self, config: &TileConfig, num_sms: usize) -> usize {
        let [clusters_m, clusters_n] = config.clusters([self.max_rows, self.n]);
        let waves = clusters_m.saturating_mul(clusters_n).div_ceil(config.workers(num_sms));
        let [block_m, block_n] = config.block;
        let outputs = block_m * block_n;
        let loads = (block_m + block_n) * ROW_BYTES as usize / L2_BYTES_PER_CLOCK;
        let stages = self.k.div_ceil(ROW_BYTES as usize);
        let mainloop = stages.saturating_mul(loads.max(outputs / OUTPUTS_PER_CLOCK));
        let tile = mainloop.saturating_add(TILE_CLOCKS + outputs / STORED_PER_CLOCK);
        waves.saturating_mul(tile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::Fp8Accumulate;

    /// The tiles that were the fastest of all on an H200.
    #[test]
    fn measured_shapes_get_their_fastest_tiles() {
        let block = |accumulate, [max_rows, n, k]: [usize; 3]| {
            LinearFp8 { max_rows, n, k, accumulate }.fastest(132).block
        };
        for (shape, two_level, fast) in [
            ([4096, 4096, 4096], [128, 128], [128, 256]),
            ([2048, 3072, 8192], [128, 192], [128, 192]),
            ([512, 3072, 8192], [128, 128], [64, 192]),
            ([512, 896, 4864], [64, 64], [64, 64]),
        ] {
            assert_eq!(block(Fp8Accumulate::TwoLevel, shape), two_level, "{shape:?}");
            assert_eq!(block(Fp8Accumulate::Fast, shape), fast, "{shape:?}");
        }
    }
}
