//! Linear layers of a few rows in f16 by a weight in FP8, which stays as it is.

use super::{SCALE_BLOCK, WeightScales};
use crate::Rows;
use crate::gemm::kernels::gemv::Gemv16;
use crate::gemm::kernels::small_m::SmallM16;
use crate::gemm::problem::{ScaleParams, refuse};
use crate::gemm::{Gpu, Input16, Linear16, Linear16Operands, Out16, Target};
use crate::tile::weight::WeightElement;
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use gpu_types::Activation;
use half::f16;

/// A weight of at least this many rows, each shorter than [`SHORT_K`], is loaded into registers: a
/// streamed block would have many short tiles (`docs/measurements/gemm_fp8_small_m.md`).
const MANY_ROWS: usize = 32_000;
const SHORT_K: usize = 2048;

/// A linear layer of up to [`LinearFp8Small::MAX_ROWS`] rows in f16 with a weight in E4M3.
///
/// The order of accumulation depends on the weight's shape and the GPU alone, but for layers of one
/// row.
#[derive(Clone, Copy, Debug)]
pub struct LinearFp8Small {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight, or half of them in a gated layer.
    pub n: usize,
    /// Columns of the input and of the weight, a multiple of 16.
    pub k: usize,
    /// The activation, if the output is `activation(gate) * up`, as
    /// [`GateRows`](crate::gate_rows::GateRows) computes it; the first `n` rows of the weight are
    /// those of the gate, the last `n` those of up.
    pub gate: Option<Activation>,
}

/// The operands of [`LinearFp8Small`], with memory for `max_rows` rows.
#[derive(Clone, Copy, Debug)]
pub struct LinearFp8SmallOperands {
    /// `[max_rows, k]`; normed where [`LinearFp8Small::fuses`].
    pub x: Input16<f16>,
    /// `[n, k]`; `[2 * n, k]` if gated. No element is NaN: `sm_80` computes with 480 in its place.
    pub weight: Rows<E4m3>,
    /// Scales of `weight`.
    pub scales: WeightScales,
    /// `[n]`; `[2 * n]` if gated.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_rows, n]`, for f32 outputs only.
    pub residual: Option<Rows<f32>>,
    /// `[max_rows, n]`; f16 if gated.
    pub out: Out16<f16>,
}

impl LinearFp8Small {
    /// Most rows.
    pub const MAX_ROWS: usize = 16;

    /// Whether a gate, a norm or both should be fused with the layer. A norm of one row should not:
    /// its launch takes less time than GEMV with x in f32
    /// (`docs/measurements/gemm_fp8_small_m.md`).
    pub const fn fuses(max_rows: usize, k: usize, normed: bool) -> bool {
        !(normed && max_rows <= 1)
            && SmallM16::fuses_loads(max_rows, k, normed, <E4m3 as WeightElement<f16>>::VECS)
    }

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns. `maps` encodes tensor maps.
    ///
    /// # Errors
    /// [`LaunchError`] for more than [`LinearFp8Small::MAX_ROWS`] rows, a k that is no multiple of
    /// 16, operands whose rows are not 16-byte aligned, scales of blocks of a gated layer whose n
    /// is no multiple of [`SCALE_BLOCK`], a residual with f16 outputs, a gate with f32 outputs, a
    /// norm or a gate where [`LinearFp8Small::fuses`] is false, and sizes beyond a grid or an
    /// `i32`.
    pub fn launch(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &LinearFp8SmallOperands,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        if self.max_rows > Self::MAX_ROWS {
            return refuse("rows", self.max_rows, "at most 16 with a weight in FP8");
        }
        let scales = self.scales(operands)?;
        let (linear, operands) = (self.linear(), &operands.linear());
        linear.check(operands)?;
        if self.max_rows <= 1 && matches!(operands.x, Input16::Half(_)) {
            let gemv = Gemv16(linear);
            return gemv.launch_scaled(gemv.choose(operands), num_rows, operands, scales);
        }
        let small = SmallM16(linear);
        let is_streamed = gpu.target == Target::Sm90a
            && small.is_streamed()
            && !(self.k < SHORT_K && self.n >= MANY_ROWS)
            && small.holds_rows(gpu.num_sms, operands);
        if is_streamed {
            return small.launch_streamed_scaled(gpu, num_rows, operands, scales, maps);
        }
        let instance = small.choose(gpu.num_sms, operands)?;
        small.launch_scaled(instance, num_rows, operands, scales)
    }

    fn linear(&self) -> Linear16 {
        let &LinearFp8Small { max_rows, n, k, gate, .. } = self;
        Linear16 { gate, ..Linear16::new(max_rows, n, k) }
    }

    /// The kernel arguments of the scales.
    fn scales(&self, operands: &LinearFp8SmallOperands) -> Result<ScaleParams, LaunchError> {
        let has_blocks = matches!(operands.scales, WeightScales::Blocks(_));
        if has_blocks && self.gate.is_some() && !self.n.is_multiple_of(SCALE_BLOCK as usize) {
            return refuse("n", self.n, "a multiple of 128 with scales of blocks and a gate");
        }
        operands.scales.args(self.k)
    }
}

impl LinearFp8SmallOperands {
    /// Without the scales.
    fn linear(&self) -> Linear16Operands<f16, E4m3> {
        let &LinearFp8SmallOperands { x, weight, bias, residual, out, .. } = self;
        Linear16Operands { x, weight, bias, residual, out }
    }
}
