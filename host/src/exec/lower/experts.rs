//! Mixtures of experts.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use kernels::Rows;
use kernels::gemm::experts::{self, ExpertOperands, ExpertOut, Stored};

use super::element::{DeviceElement, Launched};
use super::{Lowering, sum_order};
use crate::exec::ExecError;
use crate::plan::{Dtype, ExpertLinear, Op, Plan, Route, View};

/// `op` as the kernels take it.
pub(super) fn layer(plan: &Plan, op: &ExpertLinear) -> Result<experts::ExpertLinear, ExecError> {
    let unsupported = |why: &str| ExecError::Unsupported {
        op: Op::ExpertLinear(*op).name().to_owned(),
        why: why.to_owned(),
    };
    let (weight, num_experts) = (plan.weight(op.weight), op.num_experts);
    let n = weight.rows / num_experts;
    let formats: Vec<_> = weight.parts.iter().map(|part| weight.tile_format(part)).collect();
    let stored = match formats[0] {
        format if formats.iter().any(|other| *other != format) => {
            return Err(unsupported("experts of one layer in several formats"));
        }
        Some(_) if weight.parts.len() != num_experts && !n.is_multiple_of(TILE_ROWS) => {
            return Err(unsupported("experts in blocks whose rows are no multiple of 16"));
        }
        Some(format) => Stored::Tiles(format),
        None => Stored::Dense,
    };
    Ok(experts::ExpertLinear {
        max_tokens: plan.bounds.max_rows(plan.tensor(op.out.tensor).rows),
        num_experts,
        top_k: op.experts.width,
        n,
        k: weight.cols,
        stored,
        gate: None,
        order: sum_order(plan),
    })
}

/// Rows of a tile of a weight in blocks.
const TILE_ROWS: usize = kernels::gemm::quantised::format::TILE_ROWS as usize;

/// Bytes that `op` needs for itself.
pub(super) fn workspace_bytes(plan: &Plan, op: &ExpertLinear) -> usize {
    let elem_bytes = plan.dtype(op.x).block_bytes();
    layer(plan, op).map_or(0, |layer| layer.workspace_bytes(elem_bytes, op.weights.is_some()))
}

impl Lowering<'_> {
    /// The choice of each token's experts.
    pub(super) fn route(&self, op: &Route) -> Result<Launched, ExecError> {
        let &Route { logits, normalise, experts, weights } = op;
        let route = experts::Route {
            max_tokens: self.max_rows(logits),
            num_experts: logits.width,
            top_k: experts.width,
            normalise,
        };
        let (logits, weights) = (self.view(logits)?, self.view(weights)?);
        Ok(route.launch(self.num_rows(op.logits), logits, self.indices(experts), weights))
    }

    /// The launches of a linear layer of experts, whose rows are multiplied as `E`.
    pub(super) fn expert_linear<E: DeviceElement>(
        &self,
        op: &ExpertLinear,
    ) -> Result<Vec<Launch>, ExecError> {
        let &ExpertLinear { x, experts, weight, weights, out, .. } = op;
        let layer = layer(self.plan, op)?;
        if layer.stored == Stored::Dense {
            self.weight::<E>(weight)?;
        }
        let out = match weights {
            None => ExpertOut::Products(self.view(out)?),
            Some(weights) if self.plan.dtype(out) == Dtype::F32 => {
                ExpertOut::SumsF32(self.view(weights)?, self.view(out)?)
            }
            Some(weights) => ExpertOut::Sums(self.view(weights)?, self.view(out)?),
        };
        let operands = ExpertOperands::<E> {
            num_tokens: self.num_rows(x),
            experts: self.indices(experts),
            x: self.view(x)?,
            x_by_choice: x.width != layer.k,
            weight: DevicePtr::new(self.addresses.weights[weight.0]),
            up: DevicePtr::null(),
            out,
            workspace: self.addresses.workspace,
        };
        layer.launches(&operands).map_err(|why: LaunchError| ExecError::Unsupported {
            op: Op::ExpertLinear(*op).name().to_owned(),
            why: why.to_string(),
        })
    }

    /// The experts of tokens.
    fn indices(&self, view: View) -> Rows<u32> {
        Rows::new(DevicePtr::new(self.address(view)), self.plan.tensor(view.tensor).width)
    }
}
