//! Which kernel computes a linear layer in f32, and its launch.

use super::f32::{F32Tile as Tile, Tile64x64, Tile64x64Unaligned, Tile128x256, gemm_f32};
use super::f32_small_m::{NUM_THREADS, NUM_WARPS, gemm_f32_small_m};
use super::linear16::{Gpu, SumOrder};
use crate::Rows;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};

/// Largest k and largest row stride of an operand: offsets inside a tile stay in a `u32`.
const MAX_K: usize = i32::MAX as usize;

/// A linear layer in f32.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
}

/// The operands of a linear layer.
#[derive(Clone, Copy, Debug)]
pub struct LinearOperands {
    /// `[rows, k]`.
    pub x: Rows<f32>,
    /// `[n, k]`.
    pub weight: Rows<f32>,
    /// `[n]`.
    pub bias: Option<DevicePtr<f32>>,
    /// `[rows, n]`.
    pub residual: Option<Rows<f32>>,
    /// `[rows, n]`; may be the residual.
    pub out: Rows<f32>,
}

/// The kernel that is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    SmallM(gemm_f32_small_m::Instance),
    Tiled(gemm_f32::Instance),
}

impl Linear {
    /// The launch on `gpu`, with `num_rows` the device's count of rows, or `None` if there are no
    /// rows or no columns.
    ///
    /// Up to 16 rows take the small-batch kernel, unless `order` is that of the tiles. More take
    /// tiles: the large one where there is one of them for every SM.
    ///
    /// # Errors
    /// [`LaunchError`] for sizes beyond a grid or a `u32`.
    pub fn launch(
        &self,
        gpu: Gpu,
        order: SumOrder,
        num_rows: DevicePtr<u32>,
        operands: &LinearOperands,
    ) -> Result<Option<Launch>, LaunchError> {
        let LinearOperands { x, weight, bias, residual, out } = operands;
        for (what, value) in [
            ("k", self.k),
            ("n", self.n),
            ("row stride", x.row_stride),
            ("row stride", weight.row_stride),
        ] {
            if value > MAX_K {
                return Err(LaunchError::Shape { what, value, expected: "at most 2147483647" });
            }
        }
        let (n, k) = (self.n as u32, self.k as u32);
        let (x_stride, weight_stride) = (x.stride_arg()?, weight.stride_arg()?);
        let bias = bias.unwrap_or(DevicePtr::null());
        let residual = residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        let (residual_stride, out_stride) = (residual.stride_arg()?, out.stride_arg()?);
        let choice = self.choose(gpu.num_sms, order, operands);
        let Some(geometry) = self.geometry(choice)? else { return Ok(None) };
        Ok(Some(match choice {
            Choice::SmallM(instance) => gemm_f32_small_m::launch(
                instance,
                geometry,
                num_rows,
                n,
                k,
                x.ptr,
                x_stride,
                weight.ptr,
                weight_stride,
                bias,
                residual.ptr,
                residual_stride,
                out.ptr,
                out_stride,
            ),
            Choice::Tiled(instance) => gemm_f32::launch(
                instance,
                geometry,
                num_rows,
                n,
                k,
                x.ptr,
                x_stride,
                weight.ptr,
                weight_stride,
                bias,
                residual.ptr,
                residual_stride,
                out.ptr,
                out_stride,
            ),
        }))
    }

    fn choose(&self, num_sms: usize, order: SumOrder, operands: &LinearOperands) -> Choice {
        use gemm_f32::Instance;
        use gemm_f32_small_m::Instance as SmallM;
        let LinearOperands { x, weight, .. } = operands;
        if !self.k.is_multiple_of(4) || !x.is_aligned() || !weight.is_aligned() {
            return Choice::Tiled(Instance::gemm_f32_64x64_unaligned);
        }
        let small_m = SmallM::ALL.iter().find(|small_m| self.max_rows <= small_m.rows());
        match (order, small_m) {
            (SumOrder::Tiles, _) | (SumOrder::Fastest, None) => {}
            (_, Some(&instance)) => return Choice::SmallM(instance),
            (SumOrder::SmallBatch, None) => return Choice::SmallM(SmallM::gemm_f32_small_m16),
        }
        let [blocks_m, blocks_n] = self.blocks::<Tile128x256>();
        Choice::Tiled(if blocks_m.saturating_mul(blocks_n) >= num_sms {
            Instance::gemm_f32_128x256
        } else {
            Instance::gemm_f32_64x64
        })
    }

    /// Blocks of a tile in m and n.
    fn blocks<T: Tile>(&self) -> [usize; 2] {
        [self.max_rows.div_ceil(T::BLOCK_M as usize), self.n.div_ceil(T::BLOCK_N as usize)]
    }

    fn geometry(&self, choice: Choice) -> Result<Option<Geometry>, LaunchError> {
        use gemm_f32::Instance as Tiled;
        match choice {
            Choice::SmallM(instance) => {
                let blocks_n = self.n.div_ceil(NUM_WARPS as usize * instance.columns());
                let blocks_m = self.max_rows.div_ceil(instance.rows());
                Geometry::new([blocks_n, blocks_m, 1], NUM_THREADS as usize, 0)
            }
            Choice::Tiled(Tiled::gemm_f32_128x256) => self.tiled_geometry::<Tile128x256>(),
            Choice::Tiled(Tiled::gemm_f32_64x64) => self.tiled_geometry::<Tile64x64>(),
            Choice::Tiled(Tiled::gemm_f32_64x64_unaligned) => {
                self.tiled_geometry::<Tile64x64Unaligned>()
            }
        }
    }

    fn tiled_geometry<T: Tile>(&self) -> Result<Option<Geometry>, LaunchError> {
        let [blocks_m, blocks_n] = self.blocks::<T>();
        Geometry::new([blocks_m, blocks_n, 1], T::NUM_THREADS as usize, T::SHARED_BYTES as usize)
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of the kernels for f32.
pub(super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    use gemm_f32::Instance::*;
    let instance = *gemm_f32::Instance::ALL.iter().find(|instance| instance.symbol() == symbol)?;
    Some(match instance {
        gemm_f32_128x256 => Tile128x256::SHARED_BYTES as usize,
        gemm_f32_64x64 => Tile64x64::SHARED_BYTES as usize,
        gemm_f32_64x64_unaligned => Tile64x64Unaligned::SHARED_BYTES as usize,
    })
}
