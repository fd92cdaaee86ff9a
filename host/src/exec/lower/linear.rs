//! Linear layers: what the plan says of one, as the kernels' [`Layer`], and its operands.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use half::{bf16, f16};
use kernels::gemm::layer::{Input, Layer, Operands, Part, Weight as LayerWeight};
use kernels::gemm::{Gpu, Summation, fp8::LinearFp8Small};

use super::element::DeviceElement;
use super::{Lowering, dtypes, sum_order};
use crate::exec::ExecError;
use crate::plan::{Activation, Dtype, FP8_SMALL_BATCH, Linear, Norm, Op, Plan, View, Weight};

const _: () = assert!(FP8_SMALL_BATCH == LinearFp8Small::MAX_ROWS);

/// Elements of f32 that are loaded together: rows start at multiples of them.
const F32_VECTOR: usize = 4;

/// `op` as the kernels take it.
pub(super) fn layer(plan: &Plan, op: &Linear) -> Layer {
    let weight = plan.weight(op.weight);
    let accumulate = plan.numerics().accumulate;
    let stored = match weight.storage() {
        _ if weight.has_tiles() => LayerWeight::Tiles(parts(weight)),
        Some(storage) if storage.is_fp8() => LayerWeight::E4m3 {
            in_blocks: storage == Dtype::F8_E4M3_BLOCKS,
            rounds_rows: plan.rounds_rows(op),
        },
        _ => LayerWeight::Dense,
    };
    Layer {
        max_rows: plan.bounds.max_rows(plan.tensor(op.x.tensor).rows),
        n: op.out.width,
        k: weight.cols,
        operand: match stored {
            LayerWeight::Dense => operand(plan, op),
            LayerWeight::E4m3 { .. } | LayerWeight::Tiles(_) => Dtype::F16,
        },
        input: match (op.norm, op.gate_before) {
            (Some(_), _) => Input::Normed,
            (None, Some((activation, _))) => Input::Gated(activation),
            (None, None) => Input::Stored,
        },
        weight: stored,
        gate: op.gate,
        summation: Summation { accumulate, order: sum_order(plan) },
    }
}

/// The type of a layer's operands: the one of 16 bits if there is one.
fn operand(plan: &Plan, op: &Linear) -> Dtype {
    let mut dtypes = dtypes(plan, &Op::Linear(*op)).into_iter();
    dtypes.find(|dtype| dtype.is_half()).unwrap_or(Dtype::F32)
}

/// The parts of a weight of which some are in tiles.
pub(super) fn parts(weight: &Weight) -> Vec<Part> {
    let parts = weight.parts.iter();
    parts.map(|part| Part { rows: part.rows, format: weight.tile_format(part) }).collect()
}

/// Whether rows of f32 are 16-byte aligned.
pub(super) fn is_aligned(plan: &Plan, x: View) -> bool {
    [x.start, plan.tensor(x.tensor).width].iter().all(|n| n.is_multiple_of(F32_VECTOR))
}

/// Whether the launches of `op` on `gpu` compute the norm or the gate before it and the gate after it.
pub(super) fn fuses(plan: &Plan, op: &Linear, gpu: Gpu) -> bool {
    let weight = plan.weight(op.weight);
    let is_fp8 = weight.storage().is_some_and(Dtype::is_fp8);
    let gates = op.gate.into_iter().chain(op.gate_before.map(|(activation, _)| activation));
    let has_gates = gates.into_iter().all(|gate| Activation::FUSED.contains(&gate));
    is_aligned(plan, op.x)
        && has_gates
        && (is_fp8 || op.residual.is_none())
        && layer(plan, op).fuses(gpu)
}

impl Lowering<'_> {
    /// The launches of a linear layer.
    pub(super) fn linear(&mut self, op: &Linear) -> Result<Vec<Launch>, ExecError> {
        let layer = layer(self.plan, op);
        let operands = match layer.operand {
            Dtype::F16 => self.operands::<f16>(op, &layer)?,
            Dtype::BF16 => self.operands::<bf16>(op, &layer)?,
            _ => self.operands::<f32>(op, &layer)?,
        };
        let (gpu, maps) = (self.gpu, &mut self.maps);
        let launches = layer.launches(gpu, &operands, &mut |spec| maps.encode(spec));
        launches.map_err(|why: LaunchError| ExecError::Unsupported {
            op: Op::Linear(*op).name().to_owned(),
            why: why.to_string(),
        })
    }

    /// The operands of a layer whose rows are multiplied as `E`.
    fn operands<E: DeviceElement>(
        &self,
        op: &Linear,
        layer: &Layer,
    ) -> Result<Operands, ExecError> {
        let &Linear { x, norm, gate_before, weight: id, bias, residual, out, .. } = op;
        let weight = self.plan.weight(id);
        let address = self.addresses.weights[id.0];
        if layer.weight == LayerWeight::Dense {
            self.weight::<E>(id)?;
        }
        let rows = |view: View| self.view::<E>(view).map(|rows| rows.cast());
        let out_is_f32 = self.plan.dtype(out) == Dtype::F32;
        Ok(Operands {
            num_rows: self.num_rows(x),
            x: if norm.is_some() { self.view::<f32>(x)?.cast() } else { rows(x)? },
            norm: match norm {
                Some(Norm { weight, eps }) => Some((self.weight(weight)?, eps)),
                None => None,
            },
            gate: gate_before.map(|(_, gate)| rows(gate)).transpose()?,
            weight: address,
            scales: DevicePtr::new(address + weight.scales_at() as u64),
            bias: bias.map(|bias| self.weight(bias)).transpose()?,
            residual: residual.map(|residual| self.view(residual)).transpose()?,
            out: if out_is_f32 { self.view::<f32>(out)?.cast::<()>() } else { rows(out)? },
            out_is_f32,
            workspace: self.addresses.workspace,
        })
    }
}
