//! Which kernel computes a linear layer.
//!
//! Batch invariance: all tiles of a target that do not split k accumulate an output in one order,
//! [`SumOrder::Tiles`], and so does [`Swapped16`]. [`SmallM16`] has an order of its own,
//! [`SumOrder::SmallBatch`], which depends on the weight's shape and the GPU. With a fused RMSNorm or
//! gate a kernel gives the bits of the separate operations. In either order a row's outputs do
//! not depend on the other rows. [`SumOrder::Fastest`] allows split-K, and [`Gemv16`] for one row.
//!
//! Tiles for sm_90a are the fastest measured for the layer's shape on this GPU or, where the shape
//! was not measured, the fastest by a model of their time: `docs/measurements/gemm_sm90.md`.

use super::config::wgmma::*;
use super::config::{MMA_TILES, TileConfig, WGMMA_TILES};
use super::kernels::{sm80, sm90};
use super::{
    Accumulate, Gemv16, Gpu, Input16, Linear16, Linear16Operands, SmallM16, SumOrder, Summation,
    Swapped16, Target,
};
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};

/// Columns from which on swapped operands are faster for any small batch.
/// (Both constants: `docs/measurements/gemm_sm90_swapped.md`.)
const SWAPPED_N: usize = 10_000;

/// Rows beyond which they are faster for fewer columns too.
const SWAPPED_ROWS: usize = 8;

/// Elements of a weight from which on tiles are faster than the small-batch kernel without TMA.
const TILES_ELEMS: usize = 1 << 22;

/// The kernel that computes a layer.
enum Kernel {
    Gemv,
    SmallBatch,
    Swapped,
    Tiles(&'static TileConfig),
}

impl Linear16 {
    /// Whether there is a kernel for the layer with its gate and, if it is `normed`, with a fused
    /// norm: of many rows that kernel, and its bits, with which the layer without a gate is the
    /// fastest.
    pub fn fuses(&self, gpu: Gpu, normed: bool) -> bool {
        match self.kernel(gpu, normed) {
            Kernel::Gemv | Kernel::SmallBatch => SmallM16::fuses(self.max_rows, self.k, normed),
            Kernel::Swapped => self.has_groups(),
            Kernel::Tiles(config) => {
                let is_hopper = gpu.target == Target::Sm90a;
                is_hopper && !normed && self.has_groups() && sm90::takes(config, self)
            }
        }
    }

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns. `maps` encodes tensor maps.
    ///
    /// # Errors
    /// [`LaunchError`] for a k that is no multiple of 8, operands whose rows are not 16-byte
    /// aligned, a residual with 16-bit outputs, f16 accumulators of bf16 operands, sizes beyond a
    /// grid or an `i32`, a norm or a gate where [`Linear16::fuses`] is false, and a gate with f32
    /// outputs.
    pub fn launch<E: Operand16>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        match self.kernel(gpu, matches!(operands.x, Input16::Normed { .. })) {
            Kernel::Gemv => Gemv16(*self).launch(num_rows, operands),
            Kernel::SmallBatch => SmallM16(*self).launch(gpu, num_rows, operands, maps),
            Kernel::Swapped => Swapped16(*self).launch(gpu, num_rows, operands, maps),
            Kernel::Tiles(config) => match gpu.target {
                Target::Sm80 => sm80::launch(config, self, num_rows, operands),
                Target::Sm90a => sm90::launch(config, self, gpu.num_sms, num_rows, operands, maps),
            },
        }
    }

    /// The fastest kernel for the layer: of a gated one for all rows of its weight.
    fn kernel(&self, gpu: Gpu, normed: bool) -> Kernel {
        let order = self.summation.order;
        if order == SumOrder::Fastest && self.max_rows <= 1 {
            return Kernel::Gemv;
        }
        if gpu.target == Target::Sm90a && !normed && self.is_swapped(gpu.num_sms) {
            return Kernel::Swapped;
        }
        let is_small_batch = match order {
            SumOrder::Fastest => self.max_rows <= self.max_small_batch(gpu.target),
            SumOrder::SmallBatch => true,
            SumOrder::Tiles => false,
        };
        if is_small_batch {
            return Kernel::SmallBatch;
        }
        Kernel::Tiles(TileConfig::fastest(self, gpu))
    }

    /// Whether [`Swapped16`] takes the layer: a small batch, and enough columns for every SM.
    fn is_swapped(&self, num_sms: usize) -> bool {
        let Summation { accumulate, order } = self.summation;
        let is_many = self.max_rows > SWAPPED_ROWS;
        let is_allowed = match order {
            // Fewer rows with a gate are another kernel's.
            SumOrder::Fastest => is_many || self.gate.is_none() && self.n >= SWAPPED_N,
            SumOrder::SmallBatch => false,
            SumOrder::Tiles => accumulate == Accumulate::F32,
        };
        is_allowed && Swapped16(*self).fills(num_sms)
    }

    /// Most rows for which the small-batch kernels are the fastest. More than 32 they compute
    /// without TMA.
    fn max_small_batch(&self, target: Target) -> usize {
        match target {
            Target::Sm90a if self.weight_rows().saturating_mul(self.k) >= TILES_ELEMS => {
                SmallM16::MAX_STREAMED_ROWS
            }
            _ => SmallM16::MAX_ROWS,
        }
    }
}

/// Clocks of an SM for 16 columns of k of each of [`MMA_TILES`]: at 4096 cubed on an H200. Of equally
/// good tiles the first is taken.
const MMA_CLOCKS: [usize; MMA_TILES.len()] = [530, 301, 110, 301];

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
/// and H200 SXM). The last one of a shape does not split k.
const MEASURED_132_SMS: [([usize; 3], &[TileConfig]); 31] = [
    ([32, 896, 4864], &[TileConfig::wgmma::<Tile64x128Split4>(), TileConfig::wgmma::<Tile64x64>()]),
    ([32, 1152, 896], &[TileConfig::wgmma::<Tile64x64>()]),
    (
        [32, 3072, 3072],
        &[TileConfig::wgmma::<Tile64x128Split4>(), TileConfig::wgmma::<Tile64x64>()],
    ),
    (
        [32, 3072, 8192],
        &[TileConfig::wgmma::<Tile64x128Split4>(), TileConfig::wgmma::<Tile64x64>()],
    ),
    (
        [32, 4096, 4096],
        &[TileConfig::wgmma::<Tile64x128Split2>(), TileConfig::wgmma::<Tile64x64>()],
    ),
    (
        [32, 4096, 11008],
        &[TileConfig::wgmma::<Tile64x128Split2>(), TileConfig::wgmma::<Tile64x64>()],
    ),
    ([32, 9216, 3072], &[TileConfig::wgmma::<Tile64x128>()]),
    ([32, 9728, 896], &[TileConfig::wgmma::<Tile64x128>()]),
    ([32, 12288, 4096], &[TileConfig::wgmma::<Tile64x192>()]),
    ([32, 16384, 3072], &[TileConfig::wgmma::<Tile64x128>()]),
    ([32, 22016, 4096], &[TileConfig::wgmma::<Tile64x192>()]),
    ([32, 32000, 4096], &[TileConfig::wgmma::<Tile64x256>()]),
    ([32, 32064, 3072], &[TileConfig::wgmma::<Tile64x256>()]),
    ([32, 151_936, 896], &[TileConfig::wgmma::<Tile64x192>()]),
    ([512, 896, 896], &[TileConfig::wgmma::<Tile64x64>()]),
    ([512, 896, 4864], &[TileConfig::wgmma::<Tile64x64>()]),
    ([512, 1152, 896], &[TileConfig::wgmma::<Tile64x72>()]),
    ([512, 3072, 3072], &[TileConfig::wgmma::<Tile64x192>()]),
    ([512, 3072, 8192], &[TileConfig::wgmma::<Tile64x192>()]),
    ([512, 9216, 3072], &[TileConfig::wgmma::<Tile128x144>()]),
    ([512, 9728, 896], &[TileConfig::wgmma::<Tile128x192>()]),
    ([512, 16384, 3072], &[TileConfig::wgmma::<Tile128x256Pair>()]),
    ([512, 22016, 4096], &[TileConfig::wgmma::<Tile128x144>()]),
    ([1000, 1000, 1000], &[TileConfig::wgmma::<Tile64x128Pair>()]),
    ([2048, 896, 896], &[TileConfig::wgmma::<Tile128x128>()]),
    ([2048, 896, 4864], &[TileConfig::wgmma::<Tile128x128>()]),
    ([2048, 1152, 896], &[TileConfig::wgmma::<Tile128x144>()]),
    ([2048, 3072, 3072], &[TileConfig::wgmma::<Tile128x192>()]),
    ([2048, 9728, 896], &[TileConfig::wgmma::<Tile128x256Pair>()]),
    ([4096, 4096, 4096], &[TileConfig::wgmma::<Tile256x128Pair>()]),
    ([8192, 8192, 8192], &[TileConfig::wgmma::<Tile256x128Pair>()]),
];

/// The configurations measured as the fastest for a layer, the fastest first; none if its shape was
/// not measured on a GPU of so many SMs.
fn measured(linear: &Linear16, num_sms: usize) -> &'static [TileConfig] {
    if num_sms != 132 {
        return &[];
    }
    let (&Linear16 { max_rows, k, .. }, n) = (linear, linear.weight_rows());
    let tiled = |[m, n, k]: [usize; 3]| [m.div_ceil(ROW_BLOCK), n, k];
    let mut shapes = MEASURED_132_SMS.iter();
    let found = shapes.find(|(shape, _)| tiled(*shape) == tiled([max_rows, n, k]));
    found.map_or(&[], |(_, fastest)| fastest)
}

impl TileConfig {
    /// The tiles for a layer on `gpu`, of those that accumulate as the layer asks.
    #[must_use]
    pub fn fastest(linear: &Linear16, gpu: Gpu) -> &'static TileConfig {
        match gpu.target {
            Target::Sm80 => Self::fastest_mma(linear, gpu.num_sms),
            Target::Sm90a => Self::fastest_wgmma(linear, gpu.num_sms),
        }
    }

    /// The configuration under which the busiest of `num_sms` SMs ends first.
    fn fastest_mma(linear: &Linear16, num_sms: usize) -> &'static TileConfig {
        let tiles = MMA_TILES.iter().zip(MMA_CLOCKS);
        let allowed = tiles.filter(|(config, _)| config.accumulate == linear.summation.accumulate);
        let clocks = |(config, clocks): &(&TileConfig, usize)| {
            let [tiles_m, tiles_n] = config.clusters([linear.max_rows, linear.weight_rows()]);
            tiles_m.saturating_mul(tiles_n).div_ceil(num_sms).saturating_mul(*clocks)
        };
        let (fastest, _) = allowed.min_by_key(clocks).expect("tiles of both accumulators");
        fastest
    }

    fn fastest_wgmma(linear: &Linear16, num_sms: usize) -> &'static TileConfig {
        let Summation { accumulate, order } = linear.summation;
        let is_allowed = |config: &&TileConfig| {
            config.accumulate == accumulate && (config.split_k == 1 || order == SumOrder::Fastest)
        };
        let allowed = || WGMMA_TILES.iter().filter(is_allowed);
        let mut measured = measured(linear, num_sms).iter();
        measured
            .find_map(|fastest| allowed().find(|config| *config == fastest))
            .or_else(|| allowed().min_by_key(|config| config.clocks(linear, num_sms)))
            .expect("configurations for f32 and for f16 accumulators")
    }

    /// Clusters that run at the same time, at least one.
    pub(in crate::gemm) fn workers(&self, num_sms: usize) -> usize {
        (num_sms / self.blocks_per_cluster()).max(1)
    }

    /// Blocks of a cluster.
    pub(super) fn blocks_per_cluster(&self) -> usize {
        self.cluster[0] * self.cluster[1] * self.split_k
    }

    /// Clocks that `num_sms` SMs should take for a layer.
    fn clocks(&self, linear: &Linear16, num_sms: usize) -> usize {
        let [clusters_m, clusters_n] = self.clusters([linear.max_rows, linear.weight_rows()]);
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
