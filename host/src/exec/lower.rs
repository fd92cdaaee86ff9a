//! From operations to launches: shared by the executors that run the kernels. With cuBLAS a linear
//! layer is a call of it, with NCCL a sum over ranks.
//!
//! What an operation needs from its kernel's launcher are addresses, strides and upper bounds of
//! rows; grid, block and shared memory are the launcher's own.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use kernels::Rows as Operand;
use kernels::attention::{self, AttentionOperands, AttentionWorkspace, SeqInputs};
use kernels::gate_rows::GateRows;
use kernels::gather_rows::GatherRows;
use kernels::gemm::experts::NormRoute;
use kernels::gemm::{GemmEpilogue, GemmEpilogueOperands, Gpu, OutputOf, SumOrder};
use kernels::rms_norm::RmsNorm;
use kernels::rope::Rope;
use kernels::sampling::{Sample, SampleWorkspace};
use kernels::scale::ScaleRows;
use kernels::softcap::SoftcapRows;

mod append;
mod collective;
mod count;
mod cublas;
mod delta;
mod dequantise;
mod element;
mod embedding;
mod encoder;
mod experts;
mod fuse;
mod libraries;
mod linear;
mod materialized;
mod nccl;
mod step_buffer;

pub use self::collective::{only_16_bits, rank_workspace_bytes};
pub use self::count::LoweredPlan;
use self::dequantise::DensePools;
pub use self::element::check_weights;
use self::element::{DeviceElement, Launched, check_dtype};
pub use self::fuse::fused;
pub use self::libraries::{Libraries, Task, lower_with};
pub use self::nccl::summed_dtype;
pub use self::step_buffer::StepBuffer;
use super::tensor_maps::{Encode, TensorMaps};
use super::{ExecError, Gemm};
use crate::plan::{
    AppendAttention, Attention, Bounds, Dtype, Op, Plan, RopeAppend, Rows, StepLayout, View,
    WeightId,
};
use half::{bf16, f16};

/// The cache of one layer: addresses of its pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPool {
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
}

/// Device addresses of everything that a plan names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// By [`WeightId`].
    pub weights: Vec<u64>,
    /// By [`ConstantId`](crate::plan::ConstantId).
    pub constants: Vec<u64>,
    /// By layer.
    pub kv_pools: Vec<KvPool>,
    /// By layer of the recurrent states: those of convolutions, and those of delta rules.
    pub states: Vec<[u64; 2]>,
    /// By [`TensorId`](crate::plan::TensorId).
    pub tensors: Vec<u64>,
    /// The step buffer, laid out as [`StepBuffer`] says.
    pub step: u64,
    /// The tokens that the last step drew, by logit row.
    pub drawn: u64,
    /// What one operation needs for itself: [`workspace_bytes`] of it.
    pub workspace: u64,
    /// What blocks of one operation count in: [`counter_bytes`] of it, zeros between operations.
    pub counters: u64,
    /// By rank; none where there is one.
    pub ranks: Vec<RankAddresses>,
}

/// What all ranks access of one of them, its own included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankAddresses {
    /// What ranks meet in: [`rank_workspace_bytes`], zeroed before the first step.
    pub workspace: u64,
    /// By [`TensorId`](crate::plan::TensorId).
    pub tensors: Vec<u64>,
}

impl Addresses {
    /// Addresses that no device has, aligned as allocations are: to lower `plan` without one.
    pub fn placeholder(plan: &Plan) -> Self {
        let mut next = 1 << 40;
        let mut address = || {
            next += 1 << 32;
            next
        };
        let pools = 0..plan.kv.layers.len();
        Addresses {
            weights: plan.weights.iter().map(|_| address()).collect(),
            constants: plan.constants.iter().map(|_| address()).collect(),
            kv_pools: pools.map(|_| KvPool { k: address(), v: address() }).collect(),
            states: (0..plan.states.num_layers).map(|_| [address(), address()]).collect(),
            tensors: plan.tensors.iter().map(|_| address()).collect(),
            step: address(),
            drawn: address(),
            workspace: address(),
            counters: address(),
            ranks: match plan.rank.world {
                1 => Vec::new(),
                world => {
                    let tensors = plan.tensors.iter();
                    let mut rank = || RankAddresses {
                        workspace: address(),
                        tensors: tensors.clone().map(|_| address()).collect(),
                    };
                    (0..world).map(|_| rank()).collect()
                }
            },
        }
    }
}

/// The launches of `plan` on a `gpu`: of each operation its own, in order; one with nothing to
/// compute has none. Their tensor maps are made by `encode`.
///
/// # Errors
/// [`ExecError::Unsupported`] for an operation of a type or shape that no kernel takes; those of
/// `encode`.
#[cfg(any(feature = "emulator", test))]
pub fn lower(
    plan: &Plan,
    addresses: &Addresses,
    gpu: Gpu,
    encode: Encode,
) -> Result<Vec<Vec<Launch>>, ExecError> {
    let mut lowering = Lowering::new(plan, addresses, gpu, encode);
    let launches = plan.ops.iter().map(|op| lowering.op(op)).collect::<Result<_, _>>()?;
    lowering.maps.finish()?;
    Ok(launches)
}

/// Bytes that an operation needs at most for itself, the next one the same: of `plan` with linear
/// layers by `gemm`, and of every plan of its model with no larger bounds.
pub fn workspace_bytes(plan: &Plan, gemm: Gemm) -> usize {
    let bytes = |op: &Op| match op {
        Op::Attention(_)
        | Op::AppendAttention(_)
        | Op::AttentionScores(_)
        | Op::AttentionValues(_) => dequantise::attention_bytes(plan, op),
        Op::Linear(linear_op) => {
            let own = linear::layer(plan, linear_op).workspace_bytes();
            cublas::product_bytes(plan, op, gemm).max(own)
        }
        Op::ExpertLinear(op) => experts::workspace_bytes(plan, op),
        Op::DeltaRule(op) => delta::workspace_bytes(plan, op),
        Op::Sample { x, .. } => sample(plan, *x).scratch_bytes(),
        _ => 0,
    };
    plan.ops.iter().map(bytes).max().unwrap_or(0)
}

/// Elements of f32 that attention needs for partial results.
fn partials(plan: &Plan, op: &Attention) -> usize {
    let dtype = cache_dtype(plan);
    let of_decoding = decoding(plan, op).num_partials(dtype);
    of_decoding.max(launcher(plan, op).num_prefill_partials(dtype))
}

/// Bytes of counters that an operation needs at most, likewise.
pub fn counter_bytes(plan: &Plan) -> usize {
    let bytes = |op: &Op| match (op.attention(), op) {
        (Some(op), _) => attention_counters(plan, op) * size_of::<u32>(),
        (None, Op::Sample { x, .. }) => sample(plan, *x).zeroed_bytes(),
        (None, Op::Route(_)) => NormRoute::MAX_TOKENS * size_of::<u32>(),
        _ => 0,
    };
    plan.ops.iter().map(bytes).max().unwrap_or(0)
}

/// Counters that attention needs.
fn attention_counters(plan: &Plan, op: &Attention) -> usize {
    let dtype = cache_dtype(plan);
    let of_decoding = decoding(plan, op).num_counters(dtype);
    of_decoding.max(launcher(plan, op).num_prefill_counters(dtype))
}

/// The launcher of `op` in a plan with these bounds in which sequences decode.
fn decoding(plan: &Plan, op: &Attention) -> attention::Attention {
    let bounds = Bounds { mixed: true, ..plan.bounds };
    attention::Attention { max_decode_q_len: bounds.max_decode_q_len(), ..launcher(plan, op) }
}

/// The order in which linear layers accumulate over k: in a batch-invariant plan one for prompts
/// and one for decoding.
fn sum_order(plan: &Plan) -> SumOrder {
    match plan.numerics().batch_invariant {
        false => SumOrder::Fastest,
        true if plan.decodes() => SumOrder::SmallBatch,
        true => SumOrder::Tiles,
    }
}

fn sample(plan: &Plan, x: View) -> Sample {
    let max_rows = plan.bounds.max_rows(plan.tensor(x.tensor).rows);
    Sample { max_rows, vocab_size: x.width }
}

/// The launcher of `op`, which is the same for the layers that differ in nothing else.
pub(super) fn launcher(plan: &Plan, op: &Attention) -> attention::Attention {
    attention::Attention {
        max_tokens: plan.bounds.max_tokens,
        max_seqs: plan.bounds.max_seqs,
        max_q_len: plan.bounds.max_q_len,
        max_decode_q_len: plan.bounds.max_decode_q_len(),
        max_kv_len: plan.bounds.max_kv_len,
        max_pages_per_seq: plan.bounds.max_pages_per_seq(),
        num_pages: plan.kv.pool_pages(op.layer),
        num_heads: op.num_heads,
        num_kv_heads: op.num_kv_heads,
        head_dim: op.head_dim,
        softmax_scale: op.softmax_scale,
        softcap: op.softcap,
        causal: op.causal,
        window: op.window,
        batch_invariant: plan.numerics().batch_invariant,
        has_sinks: op.sinks.is_some(),
    }
}

/// The element type of the cache, and of attention's operands.
pub(super) fn cache_dtype(plan: &Plan) -> Dtype {
    match plan.kv.dtype {
        half @ (Dtype::F16 | Dtype::BF16) => half,
        _ => Dtype::F32,
    }
}

/// The types of all that `op` reads and writes.
fn dtypes(plan: &Plan, op: &Op) -> Vec<Dtype> {
    let views = op.reads().into_iter().chain(op.writes()).map(|view| plan.dtype(view));
    let parts = op.weights().into_iter().flat_map(|id| &plan.weight(id).parts);
    let weights = parts.map(|part| part.storage);
    let cache = match op {
        Op::Attention(_) => Some(plan.kv.dtype),
        _ => op.appends_to().map(|_| plan.kv.dtype),
    };
    views.chain(weights).chain(cache).collect()
}

struct Lowering<'a> {
    plan: &'a Plan,
    addresses: &'a Addresses,
    step: StepLayout,
    step_buffer: StepBuffer,
    gpu: Gpu,
    maps: TensorMaps,
    /// What the operation before has grouped in the workspace: choices of experts, and by how many.
    grouping: Option<(View, usize)>,
}

impl<'a> Lowering<'a> {
    fn new(plan: &'a Plan, addresses: &'a Addresses, gpu: Gpu, encode: Encode) -> Self {
        let (step_buffer, maps) = (StepBuffer::new(plan, gpu), TensorMaps::new(encode));
        Lowering {
            plan,
            addresses,
            step: step_buffer.inputs,
            step_buffer,
            gpu,
            maps,
            grouping: None,
        }
    }

    /// By the type of its operands: the 16-bit one if there is one.
    fn op(&mut self, op: &Op) -> Result<Vec<Launch>, ExecError> {
        if !matches!(op, Op::ExpertLinear(_)) {
            self.grouping = None;
        }
        if let Op::Embedding { table, out, scale } = *op
            && self.plan.weight(table).has_tiles()
        {
            return self.tiled_embedding(op, table, out, scale);
        }
        let mut dtypes = dtypes(self.plan, op).into_iter();
        match dtypes.find(|dtype| matches!(dtype, Dtype::F16 | Dtype::BF16)) {
            Some(Dtype::F16) => self.op_of::<f16>(op),
            Some(_) => self.op_of::<bf16>(op),
            None => self.op_of::<f32>(op),
        }
    }

    /// An operation whose operands are of type `E`.
    fn op_of<E: DeviceElement + OutputOf<f32>>(&mut self, op: &Op) -> Result<Vec<Launch>, ExecError>
    where
        f32: OutputOf<E>,
    {
        let unsupported = |why: LaunchError| ExecError::Unsupported {
            op: op.name().to_owned(),
            why: why.to_string(),
        };
        let launched = match *op {
            Op::Embedding { table, out, scale } => {
                let width = self.plan.weight(table).cols;
                let rows = Operand::new(self.weight::<E>(table)?, width);
                GatherRows { max_rows: self.max_rows(out), width, scale }.launch(
                    self.num_rows(out),
                    self.input(self.step.token_ids),
                    self.drawn(),
                    rows,
                    self.view(out)?,
                )
            }
            Op::Cast { x, out } if self.plan.dtype(out) == Dtype::F32 => {
                self.stored_sum::<E, f32>(x, None, out)?
            }
            Op::Cast { x, out } => self.stored_sum::<f32, E>(x, None, out)?,
            Op::NormAdd { x, weight, eps, residual } => {
                let (norm, weight) = (self.norm(x, weight, eps), self.weight(weight)?);
                norm.launch_add(self.num_rows(x), self.view(x)?, weight, self.view(residual)?)
            }
            Op::RmsNorm { x, weight, out, eps } => {
                let norm = self.norm(x, weight, eps);
                let (num_rows, weight) = (self.num_rows(x), self.weight(weight)?);
                match [x, out].map(|view| self.plan.dtype(view)) {
                    [Dtype::F32, Dtype::F32] => {
                        norm.launch(num_rows, self.view::<f32>(x)?, weight, self.view::<f32>(out)?)
                    }
                    [Dtype::F32, _] => {
                        norm.launch(num_rows, self.view::<f32>(x)?, weight, self.view::<E>(out)?)
                    }
                    _ => norm.launch(num_rows, self.view::<E>(x)?, weight, self.view::<E>(out)?),
                }
            }
            Op::LayerNorm(ref norm) => self.layer_norm::<E>(norm)?,
            Op::AddTable { x, table } => self.add_table(x, table)?,
            Op::Gelu { x, up, out } => self.gelu::<E>(x, up, out)?,
            Op::MeanRows { x, out } => self.mean_rows(x, out)?,
            Op::Linear(ref linear) => return self.linear(linear),
            Op::Route(ref route) => self.route::<E>(route)?,
            Op::ExpertLinear(ref linear) => return self.expert_linear::<E>(linear),
            Op::Rope { x, table, head_dim } => {
                let rotary_dim = self.plan.constant(table).cols;
                let num_heads = x.width / head_dim;
                Rope { max_tokens: self.max_rows(x), num_heads, head_dim, rotary_dim }.launch(
                    self.num_rows(x),
                    self.input(self.step.positions),
                    DevicePtr::new(self.addresses.constants[table.0]),
                    self.view::<E>(x)?,
                )
            }
            Op::KvAppend { layer, k, v } => self.kv_append::<E>(layer, k, v)?,
            Op::RopeAppend(ref op) if self.plan.dtype(op.k) == Dtype::F32 => {
                self.rope_append::<f32, E>(op)?
            }
            Op::RopeAppend(ref op) => self.rope_append::<E, E>(op)?,
            Op::AttentionScores(ref stored) => {
                let DensePools { pools, launches } = self.dense_pools(op, &stored.attention, 1)?;
                let scores = self.attention_scores::<E>(stored, pools)?.map_err(unsupported)?;
                return Ok(launches.into_iter().chain(scores).collect());
            }
            Op::AttentionSoftmax(ref op) => self.attention_softmax::<E>(op)?,
            Op::AttentionValues(ref stored) => {
                let DensePools { pools, launches } = self.dense_pools(op, &stored.attention, 1)?;
                let values = self.attention_values::<E>(stored, pools)?.map_err(unsupported)?;
                return Ok(launches.into_iter().chain(values).collect());
            }
            Op::Gate { activation, gate, up, out } => {
                let max_rows = self.max_rows(out);
                GateRows { activation, max_rows, width: out.width }.launch::<E>(
                    self.num_rows(out),
                    self.view(gate)?,
                    self.view(up)?,
                    self.view(out)?,
                )
            }
            Op::Add { x, residual, out } => self.stored_sum::<E, f32>(x, Some(residual), out)?,
            Op::GatherRows { x, out } => {
                let (max_rows, width) = (self.max_rows(out), out.width);
                GatherRows { max_rows, width, scale: 1.0 }.launch::<E>(
                    self.num_rows(out),
                    self.input(self.step.logit_rows),
                    None,
                    self.view(x)?,
                    self.view(out)?,
                )
            }
            Op::Softcap { x, cap } => {
                let (max_rows, width) = (self.max_rows(x), x.width);
                SoftcapRows { max_rows, width, cap }.launch(self.num_rows(x), self.view(x)?)
            }
            Op::SigmoidGate { gate, x, out, adds } => {
                self.sigmoid_gate::<E>([gate, x], out, adds)?
            }
            Op::Scale { x, factors, indices } => {
                let (max_rows, width) = (self.max_rows(x), x.width);
                let (rows, factors) = (self.view(x)?, self.weight(factors)?);
                let indices = indices.map(|indices| self.indices(indices));
                ScaleRows { max_rows, width }.launch(self.num_rows(x), rows, indices, factors)
            }
            Op::CausalConv(ref conv) => return self.causal_conv::<E>(conv)?.map_err(unsupported),
            Op::DeltaRule(ref rule) => return self.delta_rule::<E>(rule)?.map_err(unsupported),
            Op::AllReduce(ref op) => return E::all_reduce(self, op),
            Op::AllGather { x, first_column, out } => self.all_gather(x, first_column, out)?,
            Op::Sample { x, out } => {
                let logits = self.view(x)?;
                let workspace = SampleWorkspace {
                    scratch: DevicePtr::new(self.addresses.workspace),
                    zeroed: DevicePtr::new(self.addresses.counters),
                };
                let (rows, sampling) = (self.num_rows(x), self.input(self.step.sampling));
                let edits = self.input(self.step_buffer.edits);
                let (sample, drawn) = (sample(self.plan, x), DevicePtr::new(self.addresses.drawn));
                let out = DevicePtr::new(self.address(out));
                let launches =
                    sample.launches(rows, sampling, edits, logits, &workspace, [drawn, out]);
                return launches.map_err(unsupported);
            }
            Op::Attention(ref attention) => {
                let max_decode_q_len = self.plan.bounds.max_decode_q_len();
                let is_direct = !self.plan.kv.is_plain() && self.decodes_quantised(attention);
                let min_q_len = if is_direct { max_decode_q_len + 1 } else { 1 };
                let DensePools { pools, mut launches } =
                    self.dense_pools(op, attention, min_q_len)?;
                let prefill = self.prefill_attention::<E>(attention, pools)?;
                launches.extend(prefill.map_err(unsupported)?);
                if max_decode_q_len > 0 {
                    let decode = match is_direct {
                        true => self.decode_quantised(attention)?,
                        false => self.decode_attention::<E>(attention, pools, None)?,
                    };
                    launches.extend(decode.map_err(unsupported)?);
                }
                return Ok(launches);
            }
            Op::AppendAttention(AppendAttention { ref append, ref attention }) => {
                if !self.plan.decodes() {
                    let why = "prompts; it is for plans that decode".to_owned();
                    return Err(ExecError::Unsupported { op: op.name().to_owned(), why });
                }
                let pools = self.pools(attention.layer)?;
                self.decode_attention::<E>(attention, pools, Some(append))?
            }
        };
        Ok(launched.map_err(unsupported)?.into_iter().collect())
    }

    /// The launcher of a norm of `x`.
    fn norm(&self, x: View, weight: WeightId, eps: f32) -> RmsNorm {
        let group_size = self.plan.weight(weight).cols;
        let num_groups = x.width / group_size;
        RmsNorm { max_rows: self.max_rows(x), num_groups, group_size, eps }
    }

    /// `out = x (+ residual)`.
    fn stored_sum<X: DeviceElement, Y: DeviceElement + OutputOf<X>>(
        &self,
        x: View,
        residual: Option<View>,
        out: View,
    ) -> Result<Launched, ExecError> {
        let operands = GemmEpilogueOperands::<X, Y> {
            product: self.view(x)?,
            bias: None,
            residual: residual.map(|residual| self.view(residual)).transpose()?,
            out: self.view(out)?,
        };
        let epilogue = GemmEpilogue { max_rows: self.max_rows(out), width: out.width };
        Ok(epilogue.launch(self.num_rows(out), &operands))
    }

    fn prefill_attention<E: DeviceElement>(
        &mut self,
        op: &Attention,
        pools: [DevicePtr<E>; 2],
    ) -> Result<Launched, ExecError> {
        let operands = self.attention_operands::<E>(op, pools)?;
        let (launcher, workspace) = (launcher(self.plan, op), self.attention_workspace());
        let (seqs, maps) = (self.seqs(op.layer, &launcher), &mut self.maps);
        let encode = &mut |spec: &_| maps.encode(spec);
        Ok(launcher.prefill(self.gpu, &seqs, &operands, &workspace, encode))
    }

    fn decode_attention<E: DeviceElement>(
        &self,
        op: &Attention,
        pools: [DevicePtr<E>; 2],
        append: Option<&RopeAppend>,
    ) -> Result<Launched, ExecError> {
        let operands = self.attention_operands::<E>(op, pools)?;
        let append = append.map(|append| self.append::<E>(append)).transpose()?;
        let workspace = self.attention_workspace();
        let launcher = launcher(self.plan, op);
        let seqs = self.seqs(op.layer, &launcher);
        Ok(launcher.decode(self.gpu, &seqs, &operands, append.as_ref(), &workspace))
    }

    fn attention_workspace(&self) -> AttentionWorkspace {
        AttentionWorkspace {
            partials: DevicePtr::new(self.addresses.workspace),
            counters: DevicePtr::new(self.addresses.counters),
        }
    }

    fn seqs(&self, layer: usize, attention: &attention::Attention) -> SeqInputs {
        let work_list = self.step_buffer.work_list(attention);
        SeqInputs {
            num_seqs: self.input(StepLayout::NUM_SEQS),
            cu_seqlens_q: self.input(self.step.cu_seqlens_q),
            kv_lens: self.input(self.step.kv_lens),
            block_table: self.block_table(layer),
            num_prefill_items: self.input(work_list.num_prefill_items()),
            prefill_items: self.input(work_list.prefill_items()),
            num_decode_items: self.input(work_list.num_decode_items()),
            decode_items: self.input(work_list.decode_items()),
        }
    }

    fn attention_operands<E: DeviceElement>(
        &self,
        op: &Attention,
        [k_pool, v_pool]: [DevicePtr<E>; 2],
    ) -> Result<AttentionOperands<E>, ExecError> {
        let (q, out, sinks) = (self.view(op.q)?, self.view(op.out)?, self.sinks(op)?);
        Ok(AttentionOperands { q, k_pool, v_pool, out, sinks })
    }

    /// The scores of query heads that have no value; null without.
    fn sinks(&self, op: &Attention) -> Result<DevicePtr<f32>, ExecError> {
        op.sinks.map_or(Ok(DevicePtr::null()), |sinks| self.weight(sinks))
    }

    /// Most rows of `view`'s activation.
    fn max_rows(&self, view: View) -> usize {
        self.plan.bounds.max_rows(self.plan.tensor(view.tensor).rows)
    }

    /// The step input that holds the number of rows of `view`'s activation.
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

    /// Address of the first column of `view`.
    fn address(&self, view: View) -> u64 {
        let element_bytes = self.plan.dtype(view).block_bytes();
        self.addresses.tensors[view.tensor.0] + (view.start * element_bytes) as u64
    }

    fn view<T: DeviceElement>(&self, view: View) -> Result<Operand<T>, ExecError> {
        let tensor = self.plan.tensor(view.tensor);
        check_dtype::<T>(&tensor.name, tensor.dtype)?;
        Ok(Operand::new(DevicePtr::new(self.address(view)), tensor.width))
    }

    fn weight<T: DeviceElement>(&self, id: WeightId) -> Result<DevicePtr<T>, ExecError> {
        let weight = self.plan.weight(id);
        weight.parts.iter().try_for_each(|part| check_dtype::<T>(&part.source, part.storage))?;
        Ok(DevicePtr::new(self.addresses.weights[id.0]))
    }
}

#[cfg(test)]
mod snapshot;
#[cfg(test)]
mod tests;
