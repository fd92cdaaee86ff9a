//! From operations to launches: shared by the executors that run the kernels.
//!
//! What an operation needs from its kernel's launcher are addresses, strides and upper bounds of rows; grid, block and
//! shared memory are the launcher's own.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{TensorMapPtr, TensorMapSpec};
use kernels::Rows as Operand;
use kernels::attention::{self, AttentionOperands, SeqInputs};
use kernels::gather_rows::GatherRows;
use kernels::gemm::{Linear, LinearOperands};
use kernels::kv_cache::KvAppend;
use kernels::rms_norm::RmsNorm;
use kernels::rope::Rope;
use kernels::sampling::Argmax;
use kernels::silu_mul::SiluMul;

mod halves;

use super::ExecError;
use super::tensor_maps::TensorMaps;
use crate::plan::{Attention, Dtype, Op, Plan, Rows, StepLayout, View, Weight, WeightId};

/// What code a device runs, beside that of every GPU from `sm_80` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// None.
    Sm80,
    /// That of Hopper: `wgmma`, TMA, clusters.
    Sm90a,
}

impl Target {
    /// The kernels for it, as [`ptx::target`](crate::ptx::target) knows them.
    pub fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
        }
    }
}

/// The cache of one layer: addresses of its pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPool {
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
}

/// Where in device memory everything lies that a plan names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// By [`WeightId`].
    pub weights: Vec<u64>,
    /// By [`ConstantId`](crate::plan::ConstantId).
    pub constants: Vec<u64>,
    /// By layer.
    pub kv_pools: Vec<KvPool>,
    /// By [`TensorId`](crate::plan::TensorId).
    pub tensors: Vec<u64>,
    /// The step buffer, laid out as [`Plan::step_layout`] says.
    pub step: u64,
    /// What one operation needs for itself: [`workspace_bytes`] of it.
    pub workspace: u64,
}

/// The launches of `plan` on a `target`, in order; an operation with nothing to compute has none. The tensor maps that
/// they read get their places from `maps`.
///
/// # Errors
/// [`ExecError::Unsupported`] for an operation of a type or shape that no kernel takes.
pub fn lower(
    plan: &Plan,
    addresses: &Addresses,
    target: Target,
    maps: &mut TensorMaps,
) -> Result<Vec<Launch>, ExecError> {
    let (step, maps) = (plan.step_layout(), &mut |spec: &TensorMapSpec| maps.place(spec));
    let mut lowering = Lowering { plan, addresses, step, target, maps };
    let mut launches = Vec::new();
    for op in &plan.ops {
        launches.extend(lowering.op(op)?);
    }
    Ok(launches)
}

/// Bytes that an operation needs at most for itself, the next one the same: of `plan`, and of every plan of its model
/// with no larger bounds.
pub fn workspace_bytes(plan: &Plan) -> usize {
    let elems = |op: &Op| match op {
        Op::Attention(op) => launcher(plan, op).decode_workspace_elems(),
        _ => 0,
    };
    plan.ops.iter().map(elems).max().unwrap_or(0) * size_of::<f32>()
}

/// Whether every sequence has at most one new token.
fn is_decode(plan: &Plan) -> bool {
    plan.bounds.max_q_len == 1
}

fn launcher(plan: &Plan, op: &Attention) -> attention::Attention {
    attention::Attention {
        max_tokens: plan.bounds.max_tokens,
        max_seqs: plan.bounds.max_seqs,
        max_kv_len: plan.bounds.max_kv_len,
        max_pages_per_seq: plan.bounds.max_pages_per_seq(),
        num_heads: op.num_heads,
        num_kv_heads: op.num_kv_heads,
        head_dim: op.head_dim,
        softmax_scale: op.softmax_scale,
        window: op.window,
    }
}

struct Lowering<'a> {
    plan: &'a Plan,
    addresses: &'a Addresses,
    step: StepLayout,
    #[expect(dead_code, reason = "for the kernels of 16-bit operands")]
    target: Target,
    #[expect(dead_code, reason = "for the kernels of 16-bit operands")]
    maps: &'a mut dyn FnMut(&TensorMapSpec) -> TensorMapPtr,
}

impl Lowering<'_> {
    fn op(&mut self, op: &Op) -> Result<Vec<Launch>, ExecError> {
        match self.dtypes(op).into_iter().find(|dtype| matches!(dtype, Dtype::F16 | Dtype::BF16)) {
            Some(dtype) => self.halves_op(op, dtype),
            None => self.f32_op(op),
        }
    }

    /// The types of all that `op` reads and writes.
    fn dtypes(&self, op: &Op) -> Vec<Dtype> {
        let views = op.reads().into_iter().chain(op.writes()).map(|view| self.plan.dtype(view));
        let weights = op.weights().into_iter().map(|id| self.plan.weight(id).storage);
        let cache = match op {
            Op::KvAppend { .. } | Op::Attention(_) => Some(self.plan.kv.dtype),
            _ => None,
        };
        views.chain(weights).chain(cache).collect()
    }

    fn f32_op(&self, op: &Op) -> Result<Vec<Launch>, ExecError> {
        let unsupported = |why: LaunchError| ExecError::Unsupported {
            op: op.name().to_owned(),
            why: why.to_string(),
        };
        let launch = match *op {
            Op::Embedding { table, out } => {
                let width = self.plan.weight(table).cols;
                let rows = Operand::new(self.weight(table)?, width);
                GatherRows { max_rows: self.max_rows(out), width }.launch(
                    self.num_rows(out),
                    self.input(self.step.token_ids),
                    rows,
                    self.view(out)?,
                )
            }
            Op::RmsNorm { x, weight, out, eps } => {
                let group_size = self.plan.weight(weight).cols;
                let num_groups = x.width / group_size;
                RmsNorm { max_rows: self.max_rows(x), num_groups, group_size, eps }.launch(
                    self.num_rows(x),
                    self.view(x)?,
                    self.weight(weight)?,
                    self.view(out)?,
                )
            }
            Op::Linear { x, weight, bias, residual, out } => {
                let Weight { rows: n, cols: k, .. } = *self.plan.weight(weight);
                let operands = LinearOperands {
                    x: self.view(x)?,
                    weight: Operand::new(self.weight(weight)?, k),
                    bias: bias.map(|bias| self.weight(bias)).transpose()?,
                    residual: residual.map(|residual| self.view(residual)).transpose()?,
                    out: self.view(out)?,
                };
                Linear { max_rows: self.max_rows(x), n, k }.launch(self.num_rows(x), &operands)
            }
            Op::Rope { x, table, head_dim } => {
                let rotary_dim = self.plan.constant(table).cols;
                let num_heads = x.width / head_dim;
                Rope { max_tokens: self.max_rows(x), num_heads, head_dim, rotary_dim }.launch(
                    self.num_rows(x),
                    self.input(self.step.positions),
                    DevicePtr::new(self.addresses.constants[table.0]),
                    self.view(x)?,
                )
            }
            Op::KvAppend { layer, k, v } => {
                let kv = &self.plan.kv;
                self.f32("the KV cache", kv.dtype)?;
                let pool = self.addresses.kv_pools[layer];
                let append = KvAppend {
                    max_tokens: self.max_rows(k),
                    num_kv_heads: kv.num_kv_heads,
                    head_dim: kv.head_dim,
                };
                append.launch(
                    self.num_rows(k),
                    self.input(self.step.slot_mapping),
                    self.view(k)?,
                    self.view(v)?,
                    DevicePtr::new(pool.k),
                    DevicePtr::new(pool.v),
                )
            }
            Op::SiluMul { gate, up, out } => {
                SiluMul { max_rows: self.max_rows(out), width: out.width }.launch(
                    self.num_rows(out),
                    self.view(gate)?,
                    self.view(up)?,
                    self.view(out)?,
                )
            }
            Op::GatherRows { x, out } => {
                GatherRows { max_rows: self.max_rows(out), width: out.width }.launch(
                    self.num_rows(out),
                    self.input(self.step.logit_rows),
                    self.view(x)?,
                    self.view(out)?,
                )
            }
            Op::Argmax { x, out } => Argmax { max_rows: self.max_rows(x), vocab_size: x.width }
                .launch(self.num_rows(x), self.view(x)?, DevicePtr::new(self.address(out))),
            Op::Attention(ref attention) => {
                let (seqs, operands) = (self.seqs(), self.attention_operands(attention)?);
                let launcher = launcher(self.plan, attention);
                if is_decode(self.plan) {
                    let workspace = DevicePtr::new(self.addresses.workspace);
                    let launches = launcher.decode(&seqs, &operands, workspace);
                    return Ok(launches.map_err(unsupported)?.into_iter().flatten().collect());
                }
                launcher.prefill(&seqs, &operands)
            }
        };
        Ok(launch.map_err(unsupported)?.into_iter().collect())
    }

    fn seqs(&self) -> SeqInputs {
        SeqInputs {
            num_seqs: self.input(StepLayout::NUM_SEQS),
            cu_seqlens_q: self.input(self.step.cu_seqlens_q),
            kv_lens: self.input(self.step.kv_lens),
            block_table: self.input(self.step.block_table),
        }
    }

    fn attention_operands(&self, op: &Attention) -> Result<AttentionOperands, ExecError> {
        self.f32("the KV cache", self.plan.kv.dtype)?;
        let pool = self.addresses.kv_pools[op.layer];
        Ok(AttentionOperands {
            q: self.view(op.q)?,
            k_pool: DevicePtr::new(pool.k),
            v_pool: DevicePtr::new(pool.v),
            out: self.view(op.out)?,
        })
    }

    /// Rows that the activation behind `view` has at most.
    fn max_rows(&self, view: View) -> usize {
        match self.plan.tensor(view.tensor).rows {
            Rows::Tokens => self.plan.bounds.max_tokens,
            Rows::Logits => self.plan.bounds.max_logit_rows,
        }
    }

    /// Where the device finds how many rows the activation behind `view` has in this step.
    fn num_rows(&self, view: View) -> DevicePtr<u32> {
        self.input(match self.plan.tensor(view.tensor).rows {
            Rows::Tokens => StepLayout::NUM_TOKENS,
            Rows::Logits => StepLayout::NUM_LOGIT_ROWS,
        })
    }

    /// Element `index` of the step buffer.
    fn input(&self, index: usize) -> DevicePtr<u32> {
        DevicePtr::new(self.addresses.step).add(index)
    }

    /// Address of the first column of `view`, all of whose elements take four bytes.
    fn address(&self, view: View) -> u64 {
        self.addresses.tensors[view.tensor.0] + (view.start * size_of::<f32>()) as u64
    }

    fn view(&self, view: View) -> Result<Operand<f32>, ExecError> {
        let tensor = self.plan.tensor(view.tensor);
        self.f32(&tensor.name, tensor.dtype)?;
        Ok(Operand::new(DevicePtr::new(self.address(view)), tensor.width))
    }

    fn weight(&self, id: WeightId) -> Result<DevicePtr<f32>, ExecError> {
        let weight = self.plan.weight(id);
        self.f32(&weight.name, weight.storage)?;
        Ok(DevicePtr::new(self.addresses.weights[id.0]))
    }

    fn f32(&self, what: &str, dtype: Dtype) -> Result<(), ExecError> {
        match dtype {
            Dtype::F32 => Ok(()),
            other => Err(ExecError::Unsupported {
                op: what.to_owned(),
                why: format!("{other} storage; the kernels take F32"),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
