//! Which kernel computes a linear layer of 16-bit operands, and its launch.
//!
//! Only n and k decide in which order an output is summed over k: a row's outputs are the same
//! whatever the number of rows beside it, and whatever the tile.

use super::f16_sm80;
use super::f16_sm90::gemm_f16_sm90::{self, Instance};
use super::f16_sm90::{
    BLOCK_K, STRIP_COLUMNS, STRIP_ROWS, Tile, Tile64x64, Tile64x128, Tile128x128, Tile128x256,
    Tile128x256Pair, Tile256x128, Tile256x128Pair,
};
use super::f16_small_m::SmallM16;
use crate::Rows;
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{Element, Swizzle, TensorMapPtr, TensorMapSpec};

/// The kernels that a device can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Compute capability 8.0 and newer.
    Sm80,
    /// Compute capability 9.0.
    Sm90a,
}

impl Target {
    /// Its name in PTX.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
        }
    }
}

/// What a launch is to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The kernels that it can run.
    pub target: Target,
    /// Its multiprocessors.
    pub num_sms: usize,
}

impl Gpu {
    /// An H100 or H200.
    pub const HOPPER: Gpu = Gpu { target: Target::Sm90a, num_sms: 132 };
}

/// A linear layer of 16-bit operands, summed in f32.
#[derive(Clone, Copy, Debug)]
pub struct Linear16 {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
}

/// The operands of a linear layer, with memory for `max_rows` rows.
#[derive(Clone, Copy, Debug)]
pub struct Linear16Operands<E> {
    /// `[max_rows, k]`.
    pub x: Rows<E>,
    /// `[n, k]`.
    pub weight: Rows<E>,
    /// `[n]`.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_rows, n]`, of f32 outputs alone.
    pub residual: Option<Rows<f32>>,
    /// `[max_rows, n]`.
    pub out: Out16<E>,
}

/// Outputs of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Out16<E> {
    /// Rounded to the operands' type.
    Half(Rows<E>),
    /// As they are summed; may be the residual.
    F32(Rows<f32>),
}

/// A tile configuration of the kernels for sm_90a, as far as a launch depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileConfig {
    /// Rows and columns of a block's outputs.
    pub block: [usize; 2],
    /// Blocks of a cluster along rows and columns.
    pub cluster: [usize; 2],
    num_threads: usize,
    shared_bytes: usize,
    /// By operands (f16, bf16) and outputs (16 bits, f32).
    instances: [[Instance; 2]; 2],
}

impl TileConfig {
    const fn of<T: Tile>(instances: [[Instance; 2]; 2]) -> Self {
        TileConfig {
            block: [T::BLOCK_M as usize, T::BLOCK_N as usize],
            cluster: [T::CLUSTER_M as usize, T::CLUSTER_N as usize],
            num_threads: T::NUM_THREADS as usize,
            shared_bytes: T::SHARED_BYTES as usize,
            instances,
        }
    }

    /// Rows and columns of tiles that a cluster computes at once.
    fn clusters(&self, linear: &Linear16) -> [usize; 2] {
        let [rows, columns] = [0, 1].map(|axis| self.block[axis] * self.cluster[axis]);
        [linear.max_rows.div_ceil(rows), linear.n.div_ceil(columns)]
    }

    fn blocks_per_cluster(&self) -> usize {
        self.cluster[0] * self.cluster[1]
    }

    /// Clocks that `num_sms` multiprocessors take for a layer's blocks, each `BLOCK_K` columns.
    fn clocks(&self, linear: &Linear16, num_sms: usize) -> usize {
        let [block_m, block_n] = self.block;
        let [cluster_m, cluster_n] = self.cluster;
        let products = block_m * block_n * BLOCK_K as usize / FMAS_PER_CLOCK;
        let loads =
            (block_m / cluster_n + block_n / cluster_m) * 2 * BLOCK_K as usize / L2_BYTES_PER_CLOCK;
        let [clusters_m, clusters_n] = self.clusters(linear);
        let workers = (num_sms / self.blocks_per_cluster()).max(1);
        (clusters_m * clusters_n).div_ceil(workers) * products.max(loads)
    }
}

/// FMAs of a multiprocessor's tensor cores.
const FMAS_PER_CLOCK: usize = 2048;

/// What a multiprocessor gets from L2 when all of them read: a guess, to be measured.
const L2_BYTES_PER_CLOCK: usize = 48;

/// All tile configurations; of those that should take as long the first one is chosen.
pub const TILE_CONFIGS: [TileConfig; 7] = {
    use Instance::*;
    [
        TileConfig::of::<Tile128x256Pair>([
            [gemm_f16_sm90_128x256_pair, gemm_f16_sm90_128x256_pair_f32],
            [gemm_bf16_sm90_128x256_pair, gemm_bf16_sm90_128x256_pair_f32],
        ]),
        TileConfig::of::<Tile256x128Pair>([
            [gemm_f16_sm90_256x128_pair, gemm_f16_sm90_256x128_pair_f32],
            [gemm_bf16_sm90_256x128_pair, gemm_bf16_sm90_256x128_pair_f32],
        ]),
        TileConfig::of::<Tile128x256>([
            [gemm_f16_sm90_128x256, gemm_f16_sm90_128x256_f32],
            [gemm_bf16_sm90_128x256, gemm_bf16_sm90_128x256_f32],
        ]),
        TileConfig::of::<Tile256x128>([
            [gemm_f16_sm90_256x128, gemm_f16_sm90_256x128_f32],
            [gemm_bf16_sm90_256x128, gemm_bf16_sm90_256x128_f32],
        ]),
        TileConfig::of::<Tile128x128>([
            [gemm_f16_sm90_128x128, gemm_f16_sm90_128x128_f32],
            [gemm_bf16_sm90_128x128, gemm_bf16_sm90_128x128_f32],
        ]),
        TileConfig::of::<Tile64x128>([
            [gemm_f16_sm90_64x128, gemm_f16_sm90_64x128_f32],
            [gemm_bf16_sm90_64x128, gemm_bf16_sm90_64x128_f32],
        ]),
        TileConfig::of::<Tile64x64>([
            [gemm_f16_sm90_64x64, gemm_f16_sm90_64x64_f32],
            [gemm_bf16_sm90_64x64, gemm_bf16_sm90_64x64_f32],
        ]),
    ]
};

/// Largest size: a coordinate of a box is an `i32`, and the last box may end past the tensor.
const MAX_SIZE: usize = i32::MAX as usize - 512;

/// Largest row stride: its bytes stay in a `u32`.
const MAX_STRIDE: usize = (1 << 30) - 1;

impl Linear16 {
    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns. `maps` keeps a tensor map on the device, and tells where.
    ///
    /// # Errors
    /// [`LaunchError`] for a k that is no multiple of 8, operands whose rows do not start at
    /// multiples of 16 bytes, a residual of 16-bit outputs, sizes beyond a grid or an `i32`, and a
    /// device that has no kernel.
    pub fn launch<E: Operand16>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> TensorMapPtr,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        if self.max_rows <= SmallM16::MAX_ROWS {
            return SmallM16(*self).launch(num_rows, operands);
        }
        match gpu.target {
            Target::Sm80 => f16_sm80::launch(self, num_rows, operands),
            Target::Sm90a => {
                let config = self.choose(gpu.num_sms);
                self.launch_tiles(config, gpu.num_sms, num_rows, operands, maps)
            }
        }
    }

    /// Whether a kernel can compute this.
    fn check<E: Operand16>(&self, operands: &Linear16Operands<E>) -> Result<(), LaunchError> {
        let Linear16Operands { x, weight, residual, out, .. } = operands;
        let error = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
        for (what, value) in [("rows", self.max_rows), ("n", self.n), ("k", self.k)] {
            if value > MAX_SIZE {
                return error(what, value, "at most 2147483135");
            }
        }
        if self.k == 0 || !self.k.is_multiple_of(8) {
            return error("k", self.k, "a multiple of 8");
        }
        for rows in [x, weight] {
            if !rows.row_stride.is_multiple_of(8) {
                return error("row stride", rows.row_stride, "a multiple of 8");
            }
            if !rows.ptr.0.is_multiple_of(16) {
                return error("address", rows.ptr.0 as usize, "a multiple of 16");
            }
        }
        let out_stride = match out {
            Out16::Half(_) if residual.is_some() => {
                return error("output bits", 16, "32 where a residual is added");
            }
            Out16::Half(out) => out.row_stride,
            Out16::F32(out) => out.row_stride,
        };
        let residual_stride = residual.map_or(0, |residual| residual.row_stride);
        for stride in [x.row_stride, weight.row_stride, out_stride, residual_stride] {
            if stride > MAX_STRIDE {
                return error("row stride", stride, "at most 1073741823");
            }
        }
        Ok(())
    }

    /// The configuration that should be the fastest.
    #[must_use]
    pub fn choose(&self, num_sms: usize) -> &'static TileConfig {
        let configs = TILE_CONFIGS.iter();
        configs.min_by_key(|config| config.clocks(self, num_sms)).expect("there are some")
    }

    /// [`Linear16::launch`] on sm_90a, by a tile configuration of the caller's choice.
    ///
    /// # Errors
    /// As there.
    pub fn launch_tiles<E: Operand16>(
        &self,
        config: &TileConfig,
        num_sms: usize,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> TensorMapPtr,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        let [clusters_m, clusters_n] = config.clusters(self);
        let num_clusters = clusters_m.saturating_mul(clusters_n);
        if num_clusters > Geometry::MAX_GRID[0] {
            let (value, expected) = (num_clusters, "at most 2147483647");
            return Err(LaunchError::Shape { what: "tiles", value, expected });
        }
        let blocks_per_cluster = config.blocks_per_cluster();
        let num_clusters = num_clusters.min((num_sms / blocks_per_cluster).max(1));
        let grid = [num_clusters * blocks_per_cluster, 1, 1];
        let geometry = Geometry::new(grid, config.num_threads, config.shared_bytes)?;
        let Some(geometry) = geometry else { return Ok(None) };

        let Linear16Operands { x, weight, bias, residual, out } = operands;
        let [block_m, block_n] = config.block;
        let [cluster_m, cluster_n] = config.cluster;
        let k = BLOCK_K as usize;
        let a = maps(&map(x, [self.max_rows, self.k], [block_m / cluster_n, k]));
        let b = maps(&map(weight, [self.n, self.k], [block_n / cluster_m, k]));
        let (is_f32, out_ptr, out_stride, out_map) = match out {
            Out16::F32(out) => (1, out.ptr.0, out.stride_arg()?, TensorMapPtr(0)),
            Out16::Half(out) => {
                let is_aligned = out.is_aligned() && self.n.is_multiple_of(8);
                let sizes = [self.max_rows, self.n];
                let strip = [STRIP_ROWS as usize, STRIP_COLUMNS as usize];
                let map = if is_aligned { maps(&map(out, sizes, strip)) } else { TensorMapPtr(0) };
                (0, out.ptr.0, out.stride_arg()?, map)
            }
        };
        let is_bf16 = usize::from(E::TENSOR_MAP == Element::Bf16);
        let residual = residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        Ok(Some(gemm_f16_sm90::launch(
            config.instances[is_bf16][is_f32],
            geometry,
            num_rows,
            self.n as u32,
            self.k as u32,
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
