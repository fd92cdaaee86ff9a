//! The launch of a token's products and their sum.

use super::{ExpertLinear, ExpertOperands};
use crate::Rows;
use crate::element::Number;
use crate::gemm::SumOrder;
use crate::gemm::experts::sum;
use crate::gemm::quantised::format::TILE_ROWS;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use gpu_types::Dtype;

impl ExpertLinear {
    /// Whether a launch computes the sum of a token's products too.
    pub(super) fn sums_at_once<E: Number>(&self, operands: &ExpertOperands<E>) -> bool {
        let is_one = self.max_tokens == 1 && self.top_k <= sum::MAX_CHOICES as usize;
        let is_fast = self.order == SumOrder::Fastest && E::DTYPE != Dtype::F32;
        is_one && is_fast && self.gate.is_none() && operands.x_by_choice
    }

    /// The sum of the products of a token, by [`sum`].
    pub(super) fn launch_sum<E: Number>(
        &self,
        operands: &ExpertOperands<E>,
        weights: Rows<f32>,
        out: Rows<f32>,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        arg_u32("elements of x", self.top_k.saturating_mul(self.k))?;
        let [scales_at, scale_stride] = self.scales()?;
        let args = sum::experts_sum::Args {
            num_tokens: operands.num_tokens,
            top_k: self.top_k as u32,
            experts: operands.experts.ptr,
            weights: weights.ptr,
            n: arg_u32("n", self.n)?,
            k: arg_u32("k", self.k)?,
            x: DevicePtr::new(operands.x.ptr.0),
            weight: operands.weight,
            scales_at,
            scale_stride,
            bias: operands.bias[0],
            residual: operands.residual.map_or(DevicePtr::null(), |residual| residual.ptr),
            out: out.ptr,
        };
        let weight_type = self.weight_type::<E>()?;
        let is_it = |i: sum::experts_sum::Instance| i.w() == weight_type;
        let instance = sum::experts_sum::Instance::find(is_it).expect("all weights");
        let grid = [self.n.div_ceil(TILE_ROWS as usize), 1, 1];
        let geometry = Geometry::new(grid, sum::NUM_THREADS as usize, 0)?;
        Ok(geometry.map(|geometry| args.launch(instance, geometry)))
    }
}
