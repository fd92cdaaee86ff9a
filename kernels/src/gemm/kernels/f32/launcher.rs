//! Which kernel computes a linear layer in f32, and its launch.

use super::gemm_f32;
use crate::gemm::config::{FMA_TILES, TileConfig};
use crate::gemm::kernels::f32_small_m::{NUM_THREADS, NUM_WARPS, gemm_f32_small_m};
use crate::gemm::problem::{BiasAndResidual, refuse};
use crate::gemm::{Gpu, Linear, LinearOperands, SumOrder};
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};

/// Largest k and largest row stride of an operand: offsets inside a tile stay in a `u32`.
const MAX_K: usize = i32::MAX as usize;

/// The kernel that is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    SmallM(gemm_f32_small_m::Instance),
    Tiled(TileConfig),
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
                return refuse(what, value, "at most 2147483647");
            }
        }
        let (n, k) = (self.n as u32, self.k as u32);
        let (a_stride, b_stride, out_stride) =
            (x.stride_arg()?, weight.stride_arg()?, out.stride_arg()?);
        let BiasAndResidual { bias, residual, residual_stride } =
            BiasAndResidual::new(*bias, *residual)?;
        let (m, a, b, out) = (num_rows, x.ptr, weight.ptr, out.ptr);
        let choice = self.choose(gpu.num_sms, order, operands);
        let Some(geometry) = self.geometry(choice)? else { return Ok(None) };
        Ok(Some(match choice {
            Choice::SmallM(instance) => gemm_f32_small_m::Args {
                m,
                n,
                k,
                a,
                a_stride,
                b,
                b_stride,
                bias,
                residual,
                residual_stride,
                out,
                out_stride,
            }
            .launch(instance, geometry),
            Choice::Tiled(config) => {
                let instance = gemm_f32::Instance::find(|instance| instance.t() == config.tile);
                gemm_f32::Args {
                    m,
                    n,
                    k,
                    a,
                    a_stride,
                    b,
                    b_stride,
                    bias,
                    residual,
                    residual_stride,
                    out,
                    out_stride,
                }
                .launch(instance.expect("an instance of every tile"), geometry)
            }
        }))
    }

    fn choose(&self, num_sms: usize, order: SumOrder, operands: &LinearOperands) -> Choice {
        use gemm_f32_small_m::Instance as SmallM;
        let [large, small, unaligned] = FMA_TILES;
        let LinearOperands { x, weight, .. } = operands;
        if !self.k.is_multiple_of(4) || !x.is_aligned() || !weight.is_aligned() {
            return Choice::Tiled(unaligned);
        }
        let small_m = SmallM::find(|small_m| self.max_rows <= small_m.rows());
        match (order, small_m) {
            (SumOrder::Tiles, _) | (SumOrder::Fastest, None) => {}
            (_, Some(instance)) => return Choice::SmallM(instance),
            (SumOrder::SmallBatch, None) => return Choice::SmallM(SmallM::gemm_f32_small_m16),
        }
        let [tiles_m, tiles_n] = large.clusters([self.max_rows, self.n]);
        let fills = tiles_m.saturating_mul(tiles_n) >= num_sms;
        Choice::Tiled(if fills { large } else { small })
    }

    fn geometry(&self, choice: Choice) -> Result<Option<Geometry>, LaunchError> {
        match choice {
            Choice::SmallM(instance) => {
                let blocks_n = self.n.div_ceil(NUM_WARPS as usize * instance.columns());
                let blocks_m = self.max_rows.div_ceil(instance.rows());
                Geometry::new([blocks_n, blocks_m, 1], NUM_THREADS as usize, 0)
            }
            Choice::Tiled(config) => {
                let [tiles_m, tiles_n] = config.clusters([self.max_rows, self.n]);
                Geometry::new([tiles_m, tiles_n, 1], config.num_threads, config.shared_bytes)
            }
        }
    }
}
