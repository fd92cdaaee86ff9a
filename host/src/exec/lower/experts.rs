//! Mixtures of experts.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use kernels::Rows;
use kernels::gemm::experts::{
    self, ExpertOperands, ExpertOut, NormRoute, NormRouteOperands, RouteOperands, Stored,
};

use super::element::{DeviceElement, Launched};
use super::linear::is_aligned;
use super::{Lowering, sum_order};
use crate::exec::ExecError;
use crate::plan::{Dtype, ExpertLinear, Op, Plan, Route, Router, Scores, View, WeightId};

/// Rows of a tile of a weight in blocks.
const TILE_ROWS: usize = kernels::gemm::quantised::format::TILE_ROWS as usize;

fn unsupported(op: &ExpertLinear, why: impl Into<String>) -> ExecError {
    ExecError::Unsupported { op: Op::ExpertLinear(*op).name().to_owned(), why: why.into() }
}

/// How the matrices of all experts are stored.
fn stored(plan: &Plan, op: &ExpertLinear, weight: WeightId) -> Result<Stored, ExecError> {
    let weight = plan.weight(weight);
    if let Some(storage) = weight.storage().filter(|storage| storage.is_fp8()) {
        return Ok(Stored::E4m3 { in_blocks: storage == Dtype::F8_E4M3_BLOCKS });
    }
    let formats: Vec<_> = weight.parts.iter().map(|part| weight.tile_format(part)).collect();
    let is_apart = weight.parts.len() == op.num_experts;
    let rows = weight.rows / op.num_experts;
    match formats[0] {
        format if formats.iter().any(|other| *other != format) => {
            Err(unsupported(op, "experts of one layer in several formats"))
        }
        Some(_) if !is_apart && !rows.is_multiple_of(TILE_ROWS) => {
            Err(unsupported(op, "experts in blocks whose rows are no multiple of 16"))
        }
        Some(format) => Ok(Stored::Tiles(format)),
        None => Ok(Stored::Dense),
    }
}

/// `op` as the kernels take it.
fn layer(plan: &Plan, op: &ExpertLinear) -> Result<experts::ExpertLinear, ExecError> {
    let (weight, num_experts) = (plan.weight(op.weight), op.num_experts);
    Ok(experts::ExpertLinear {
        max_tokens: plan.bounds.max_rows(plan.tensor(op.out.tensor).rows),
        num_experts,
        top_k: op.experts.width,
        n: weight.rows / num_experts,
        k: weight.cols,
        stored: stored(plan, op, op.weight)?,
        gate: op.gate.map(|gate| gate.activation),
        order: sum_order(plan),
    })
}

/// Bytes that `op` needs for itself.
pub(super) fn workspace_bytes(plan: &Plan, op: &ExpertLinear) -> usize {
    let elem_bytes = plan.dtype(op.x).block_bytes();
    layer(plan, op).map_or(0, |layer| layer.workspace_bytes(elem_bytes, op.weights.is_some()))
}

/// Whether a launch computes the gate after `op` too: of 16 bits, with gate and up stored alike.
pub(super) fn fuses(plan: &Plan, op: &ExpertLinear) -> bool {
    let is_alike = |up| match (stored(plan, op, op.weight), stored(plan, op, up)) {
        (Ok(gate), Ok(up)) => gate == up,
        _ => false,
    };
    plan.dtype(op.x).is_half() && op.gate.is_none_or(|gate| is_alike(gate.up))
}

/// `op` as the kernels take it.
fn choice(plan: &Plan, op: &Route) -> experts::Route {
    let &Route { logits, scores, normalise, scale, shared, .. } = op;
    let groups = match scores {
        Scores::Softmax => None,
        Scores::Sigmoid { groups, .. } => groups,
    };
    experts::Route {
        max_tokens: plan.bounds.max_rows(plan.tensor(logits.tensor).rows),
        num_experts: op.num_experts(),
        top_k: op.top_k(),
        normalise,
        scale,
        shared,
        groups: groups.map(|groups| [groups.count, groups.top_k]),
    }
}

fn norm_route(plan: &Plan, op: &Route, router: &Router) -> NormRoute {
    NormRoute { route: choice(plan, op), k: router.x.width, eps: router.norm.eps }
}

/// Whether a launch computes the router before `op` too: of 16 bits, whose weight is dense. The
/// order in which it adds is not that of the layer by itself.
pub(super) fn fuses_router(plan: &Plan, op: &Route) -> bool {
    op.router.is_none_or(|router| {
        let operand = plan.dtype(router.normed);
        operand.is_half()
            && is_aligned(plan, router.x)
            && plan.weight(router.weight).storage() == Some(operand)
            && !plan.numerics().batch_invariant
            && norm_route(plan, op, &router).is_supported()
    })
}

impl Lowering<'_> {
    /// The choice of each token's experts, of logits or of rows that are normed as `E`.
    pub(super) fn route<E: DeviceElement>(&self, op: &Route) -> Result<Launched, ExecError> {
        let &Route { router, logits, scores, experts, weights, .. } = op;
        let bias = match scores {
            Scores::Softmax => None,
            Scores::Sigmoid { bias, .. } => Some(self.weight(bias)?),
        };
        let operands = RouteOperands {
            num_tokens: self.num_rows(logits),
            logits: self.view(logits)?,
            bias,
            experts: self.indices(experts),
            weights: self.view(weights)?,
        };
        let Some(router) = router else {
            return Ok(choice(self.plan, op).launch(&operands));
        };
        let layer = norm_route(self.plan, op, &router);
        Ok(layer.launch(&NormRouteOperands::<E> {
            x: self.view(router.x)?,
            norm_weight: self.weight(router.norm.weight)?,
            normed: self.view(router.normed)?,
            weight: self.weight(router.weight)?,
            bias: router.bias.map(|bias| self.weight(bias)).transpose()?,
            counters: DevicePtr::new(self.addresses.counters),
            route: operands,
        }))
    }

    /// The launches of a linear layer of experts, whose rows are multiplied as `E`.
    pub(super) fn expert_linear<E: DeviceElement>(
        &mut self,
        op: &ExpertLinear,
    ) -> Result<Vec<Launch>, ExecError> {
        let &ExpertLinear { x, experts, weight, bias, gate, weights, residual, out, .. } = op;
        let layer = layer(self.plan, op)?;
        let grouping = layer.grouping::<E>(self.gpu).map(|rows| (experts, rows));
        let is_grouped = grouping.is_some() && grouping == self.grouping;
        self.grouping = grouping;
        let matrix = |id: WeightId| {
            if layer.stored == Stored::Dense {
                self.weight::<E>(id)?;
            }
            Ok::<_, ExecError>(DevicePtr::new(self.addresses.weights[id.0]))
        };
        let vector = |id: Option<WeightId>| id.map_or(Ok(DevicePtr::null()), |id| self.weight(id));
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
            weight: matrix(weight)?,
            up: gate.map_or(Ok(DevicePtr::null()), |gate| matrix(gate.up))?,
            bias: [vector(bias)?, vector(gate.and_then(|gate| gate.bias))?],
            residual: residual.map(|residual| self.view(residual)).transpose()?,
            out,
            workspace: self.addresses.workspace,
            is_grouped,
        };
        let (gpu, maps) = (self.gpu, &mut self.maps);
        let launches = layer.launches(gpu, &operands, &mut |spec| maps.encode(spec));
        launches.map_err(|why: LaunchError| unsupported(op, why.to_string()))
    }

    /// The experts of tokens.
    pub(super) fn indices(&self, view: View) -> Rows<u32> {
        Rows::new(DevicePtr::new(self.address(view)), self.plan.tensor(view.tensor).width)
    }
}
