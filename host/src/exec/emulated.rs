//! The emulated executor: the launches of the CUDA executor, run on the CPU with every access
//! checked.
//!
//! It says whether kernels are right, where there is no GPU, and is slow. Each weight, table, pool
//! of the cache, activation and step buffer is a buffer of its own, under the name that the plan
//! gives it: a report names it, and an access that leaves it is found, which in an arena would
//! reach its neighbour.

use std::slice;

use cpu_ops::{OutOfMemory, host_memory};
use cuda_std::launch::Launch;
use kernels::gemm::Gpu;
use simt::{Init, Memory, MemoryError};

use super::lower::{self, Addresses, KvPool, RankAddresses, StepBuffer};
use super::prepared::Prepared;
use super::{
    Activations, AfterOp, ExecError, Executor, Gemm, NextToken, PreparedPlan, StepOutput,
    StepQueue, StepTimes, Target, Want, WeightSource, inputs, layout, observe,
};
use crate::plan::{MemoryBudget, MemoryUse, Plan, StepInputs, View, Weight};

/// What the device is called in errors.
const NAME: &str = "emulator";

/// What a step input is that the step does not say: as an index it is out of every bound.
const UNSET: u32 = u32::MAX;

/// Runs plans on the emulator.
pub struct EmulatedExecutor {
    /// Memory of all devices.
    memory: Memory,
    ranks: Vec<Rank>,
    /// The plans of all ranks.
    prepared: Prepared<Vec<EmulatedPlan>>,
    /// What is emulated.
    gpu: Gpu,
    /// Launches that have run. Each one's number is its seed: all run in different orders, and
    /// every time in the same.
    num_launches: u64,
    /// The inputs of the step that runs next, as they were put into the queue.
    queued: Option<StepInputs>,
    /// Tokens that the last step drew.
    num_drawn: usize,
}

/// What a rank keeps from step to step.
struct Rank {
    weights: Vec<u64>,
    constants: Vec<u64>,
    kv_pools: Vec<KvPool>,
    states: Vec<[u64; 2]>,
    /// The tokens that its last step drew.
    drawn: u64,
    /// What it meets the others in; 0 if it is alone.
    workspace: u64,
}

/// A plan, and the addresses of its own buffers.
struct EmulatedPlan {
    plan: Plan,
    step_buffer: StepBuffer,
    addresses: Addresses,
    /// By operation.
    launches: Vec<Vec<Launch>>,
}

/// The activations of a step that runs.
struct StepMemory<'a> {
    memory: &'a Memory,
    prepared: &'a EmulatedPlan,
    inputs: &'a StepInputs,
}

impl StepMemory<'_> {
    fn bytes(&self, view: View) -> Result<Vec<u8>, ExecError> {
        let EmulatedPlan { plan, addresses, .. } = self.prepared;
        let num_rows = self.inputs.num_rows(plan.tensor(view.tensor).rows);
        Ok(read_rows(self.memory, plan, addresses, view, num_rows)?)
    }
}

impl Activations for StepMemory<'_> {
    fn rows(&self, view: View) -> Result<Vec<f32>, ExecError> {
        observe::widen(&self.prepared.plan, view, &self.bytes(view)?)
    }

    fn indices(&self, view: View) -> Result<Vec<u32>, ExecError> {
        observe::indices(&self.prepared.plan, view, &self.bytes(view)?)
    }
}

impl EmulatedExecutor {
    /// Reads the weights of `plan` and makes room for its KV cache, which holds nothing. The
    /// kernels are those for `target`, or for the newest that there is.
    ///
    /// # Errors
    /// As [`EmulatedExecutor::open_ranks`].
    pub fn open(
        target: Option<Target>,
        plan: &Plan,
        weights: &dyn WeightSource,
    ) -> Result<Self, ExecError> {
        Self::open_ranks(target, slice::from_ref(plan), weights)
    }

    /// As [`EmulatedExecutor::open`], with the plans of all ranks: each has a device of its own.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] for weights in blocks that are not tiles, and a number of ranks that no kernel takes;
    /// [`ExecError::Weights`] from `weights`, [`ExecError::OutOfMemory`].
    pub fn open_ranks(
        target: Option<Target>,
        plans: &[Plan],
        weights: &dyn WeightSource,
    ) -> Result<Self, ExecError> {
        let mut memory = Memory::new();
        let ranks = plans.iter().map(|plan| Rank::open(&mut memory, plan, weights));
        let ranks = ranks.collect::<Result<_, _>>()?;
        Ok(EmulatedExecutor {
            memory,
            ranks,
            prepared: Prepared::new(),
            gpu: gpu(target),
            num_launches: 0,
            queued: None,
            num_drawn: 0,
        })
    }

    /// [`memory_budget`](super::memory_budget): every plan has buffers of its own.
    pub(super) fn memory_budget(
        target: Option<Target>,
        largest: &Plan,
        prepared: &[Plan],
    ) -> MemoryBudget {
        let mut budget = MemoryBudget::of_model(largest);
        budget.buffer_bytes += drawn_bytes(largest);
        for plan in prepared {
            let plan = lower::fused(plan, lower::Libraries::default(), gpu(target));
            let tensors = plan.tensors.iter().map(|tensor| plan.tensor_bytes(tensor));
            budget.activation_bytes += tensors.sum::<usize>();
            budget.workspace_bytes +=
                lower::workspace_bytes(&plan, Gemm::Halfwarp) + lower::counter_bytes(&plan);
            budget.buffer_bytes += StepBuffer::new(&plan, gpu(target)).len() * size_of::<u32>();
        }
        budget
    }
}

impl Rank {
    fn open(
        memory: &mut Memory,
        plan: &Plan,
        weights: &dyn WeightSource,
    ) -> Result<Self, ExecError> {
        lower::check_weights(plan, Gemm::Halfwarp)?;
        let weights = plan.weights.iter().map(|weight| upload(memory, weight, weights));
        let weights = weights.collect::<Result<_, _>>()?;
        let tables = plan.constants.iter();
        let constants = tables
            .map(|table| memory.alloc(&table.name, Init::Bytes(bytemuck::cast_slice(&table.data))))
            .collect();
        let mut pool = |name, layer, bytes| alloc(memory, &format!("layers.{layer}.{name}"), bytes);
        let kv_pools = (0..plan.kv.layers.len())
            .map(|layer| {
                let [k_bytes, v_bytes] = plan.kv.pool_bytes(layer);
                let k = pool("k_cache", layer, k_bytes)?;
                Ok(KvPool { k, v: pool("v_cache", layer, v_bytes)? })
            })
            .collect::<Result<_, ExecError>>()?;
        let [conv_bytes, delta_bytes] = plan.states.pool_bytes();
        let mut pool = |name, layer, bytes| alloc(memory, &format!("layers.{layer}.{name}"), bytes);
        let states = (0..plan.states.num_layers)
            .map(|layer| {
                let conv = pool("conv_state", layer, conv_bytes)?;
                Ok([conv, pool("delta_state", layer, delta_bytes)?])
            })
            .collect::<Result<_, ExecError>>()?;
        let workspace = match lower::rank_workspace_bytes(plan)? {
            0 => 0,
            bytes => memory.alloc("workspace of ranks", Init::Bytes(&vec![0; bytes])),
        };
        let drawn = alloc(memory, "drawn tokens", drawn_bytes(plan))?;
        Ok(Rank { weights, constants, kv_pools, states, drawn, workspace })
    }

    /// The addresses of what `plan` names, with activations of its own.
    fn addresses(
        &self,
        memory: &mut Memory,
        plan: &Plan,
        step_buffer: &StepBuffer,
    ) -> Result<Addresses, ExecError> {
        let zeros = vec![0; lower::counter_bytes(plan)];
        let counters = memory.alloc("counters", Init::Bytes(&zeros));
        let mut alloc = |name: &str, bytes| alloc(memory, name, bytes);
        let tensors =
            plan.tensors.iter().map(|tensor| alloc(&tensor.name, plan.tensor_bytes(tensor)));
        Ok(Addresses {
            weights: self.weights.clone(),
            constants: self.constants.clone(),
            kv_pools: self.kv_pools.clone(),
            states: self.states.clone(),
            tensors: tensors.collect::<Result<_, _>>()?,
            step: alloc("step inputs", step_buffer.len() * size_of::<u32>())?,
            drawn: self.drawn,
            workspace: alloc("workspace", lower::workspace_bytes(plan, Gemm::Halfwarp))?,
            counters,
            ranks: Vec::new(),
        })
    }
}

impl Executor for EmulatedExecutor {
    fn describe(&self) -> String {
        format!("emulator ({} kernels on the CPU)", self.gpu.target.name())
    }

    fn prepare_ranks(&mut self, plans: &[Plan]) -> Result<PreparedPlan, ExecError> {
        let gpu = self.gpu;
        let mut prepared = Vec::new();
        for (plan, rank) in plans.iter().zip(&self.ranks) {
            let plan = lower::fused(plan, lower::Libraries::default(), gpu);
            let step_buffer = StepBuffer::new(&plan, gpu);
            let addresses = rank.addresses(&mut self.memory, &plan, &step_buffer)?;
            prepared.push(EmulatedPlan { plan, step_buffer, addresses, launches: Vec::new() });
        }
        if plans.len() > 1 {
            let of_rank = |(prepared, rank): (&EmulatedPlan, &Rank)| RankAddresses {
                workspace: rank.workspace,
                tensors: prepared.addresses.tensors.clone(),
            };
            let ranks: Vec<_> = prepared.iter().zip(&self.ranks).map(of_rank).collect();
            prepared.iter_mut().for_each(|plan| plan.addresses.ranks.clone_from(&ranks));
        }
        for EmulatedPlan { plan, addresses, launches, .. } in &mut prepared {
            *launches = lower::lower(plan, addresses, gpu, |spec| Ok(spec.emulated()))?;
        }
        Ok(self.prepared.push(prepared))
    }

    fn run_while(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
        meanwhile: &mut dyn FnMut(&mut dyn StepQueue),
    ) -> Result<StepOutput, ExecError> {
        let queued = self.queued.take();
        meanwhile(&mut self.queued);
        let ran = self.run_ops(plan, queued.as_ref().unwrap_or(inputs), &mut |_, _| Ok(()));
        if ran.is_err() {
            // Nothing comes after a step that failed.
            self.queued = None;
        }
        ran?;
        let EmulatedPlan { plan, addresses, .. } = &self.prepared.get(plan)?[0];
        let num_rows = inputs.logit_rows.len();
        self.num_drawn = num_rows;
        let rows = |view| read_rows(&self.memory, plan, addresses, view, num_rows);
        let words = |bytes: Vec<u8>| bytemuck::pod_collect_to_vec::<u8, u32>(&bytes);
        let mut output = StepOutput::default();
        if want.has_next_tokens() {
            let outputs = plan.next_tokens.map(rows).transpose()?.map(words).unwrap_or_default();
            output.next_tokens = outputs.into_iter().map(NextToken::from_output).collect();
        }
        let wanted = want.logit_rows(num_rows);
        if !wanted.is_empty() {
            let logits: Vec<f32> = bytemuck::pod_collect_to_vec(&rows(plan.output)?);
            let wanted = wanted.into_iter().flatten();
            let width = plan.output.width;
            output.logits =
                wanted.flat_map(|row| &logits[row * width..][..width]).copied().collect();
        }
        Ok(output)
    }

    fn plan(&self, plan: PreparedPlan) -> Result<&Plan, ExecError> {
        Ok(&self.prepared.get(plan)?[0].plan)
    }

    fn run_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        after: &mut AfterOp<'_>,
    ) -> Result<(), ExecError> {
        let ranks = self.prepared.get(plan)?;
        let (first, memory) = (&ranks[0], &mut self.memory);
        inputs::check(&first.plan, inputs, self.num_drawn)?;
        ranks.iter().for_each(|rank| start_step(memory, rank, inputs));
        let overlaps = self.gpu.target == Target::Sm90a;
        // As in the graph of the CUDA executor: a rank's first launch waits for the step's inputs.
        let mut are_started = vec![false; ranks.len()];
        for op in 0..first.plan.ops.len() {
            for (rank, streams) in at_once(ranks, op).into_iter().enumerate() {
                let overlaps = |launch: &Launch| launch.overlaps && overlaps;
                match &streams[..] {
                    [launches] => {
                        for launch in launches {
                            if overlaps(launch) && are_started[rank] {
                                memory.overlap_next_launch();
                            }
                            launch.emulate(memory, self.num_launches)?;
                            self.num_launches += 1;
                            are_started[rank] = true;
                        }
                    }
                    streams => {
                        if streams.iter().flatten().all(overlaps) {
                            memory.overlap_next_launch();
                        }
                        Launch::emulate_streams(streams, memory, self.num_launches)?;
                        self.num_launches += 1;
                    }
                }
            }
            after(op, &StepMemory { memory, prepared: first, inputs })?;
        }
        Ok(())
    }

    fn time_ops(
        &mut self,
        _: PreparedPlan,
        _: &StepInputs,
        _: usize,
    ) -> Result<StepTimes, ExecError> {
        Err(ExecError::NoClock)
    }

    fn memory_use(&self) -> Result<MemoryUse, ExecError> {
        Ok(MemoryUse { buffer_bytes: self.memory.allocated_bytes(), ..MemoryUse::default() })
    }
}

/// The step runs when it is its turn.
impl StepQueue for Option<StepInputs> {
    fn push(&mut self, _: PreparedPlan, inputs: &StepInputs, _: Want<'_>) {
        *self = Some(inputs.clone());
    }
}

/// The launches of operation `op`, in groups that run one after the other: those of a collective
/// operation run at the same time, one stream a rank.
fn at_once(ranks: &[EmulatedPlan], op: usize) -> Vec<Vec<Vec<Launch>>> {
    let launches = ranks.iter().map(|rank| rank.launches[op].clone());
    match ranks[0].plan.ops[op].is_collective() {
        true => vec![launches.collect()],
        false => launches.map(|launches| vec![launches]).collect(),
    }
}

/// What is emulated: the kernels for `target`, or for the newest that there is.
fn gpu(target: Option<Target>) -> Gpu {
    let hopper = Gpu::HOPPER;
    Gpu { target: target.unwrap_or(hopper.target), ..hopper }
}

/// Reads a weight into a buffer of its own.
fn upload(
    memory: &mut Memory,
    weight: &Weight,
    source: &dyn WeightSource,
) -> Result<u64, ExecError> {
    // Words, so that the source may write elements and not bytes.
    let num_words = weight.bytes().div_ceil(size_of::<u32>());
    let mut words = host_memory::zeroed::<u32>(&weight.name, num_words).map_err(out_of_memory)?;
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..weight.bytes()];
    layout::read(NAME, weight, source, bytes)?;
    check_room(&weight.name, bytes.len())?;
    Ok(memory.alloc(&weight.name, Init::Bytes(bytes)))
}

/// Bytes of the tokens that a step of `plan` draws.
fn drawn_bytes(plan: &Plan) -> usize {
    plan.bounds.max_logit_rows * size_of::<u32>()
}

/// A buffer of `bytes` that nothing has written.
fn alloc(memory: &mut Memory, name: &str, bytes: usize) -> Result<u64, ExecError> {
    check_room(name, bytes)?;
    Ok(memory.alloc(name, Init::Poisoned(bytes)))
}

/// Whether there is memory for a buffer of `bytes`: the emulator keeps a flag beside each byte.
fn check_room(name: &str, bytes: usize) -> Result<(), ExecError> {
    host_memory::zeroed::<[u8; 2]>(name, bytes).map(drop).map_err(out_of_memory)
}

fn out_of_memory(error: OutOfMemory) -> ExecError {
    ExecError::out_of_memory(NAME, error)
}

/// Poisons the activations of the last step, and writes the inputs of this one.
fn start_step(memory: &mut Memory, prepared: &EmulatedPlan, inputs: &StepInputs) {
    let EmulatedPlan { plan, step_buffer, addresses, .. } = prepared;
    for &buffer in addresses.tensors.iter().chain([&addresses.workspace]) {
        memory.poison(buffer).expect("a buffer that was allocated");
    }
    let mut step = vec![UNSET; step_buffer.len()];
    step_buffer.write(plan, inputs, &mut step);
    let written = memory.write(addresses.step, bytemuck::cast_slice(&step));
    written.expect("a buffer of the layout's length");
}

/// The first `num_rows` rows of `view`.
fn read_rows(
    memory: &Memory,
    plan: &Plan,
    addresses: &Addresses,
    view: View,
    num_rows: usize,
) -> Result<Vec<u8>, MemoryError> {
    let element_bytes = plan.dtype(view).block_bytes();
    let row_width = plan.tensor(view.tensor).width;
    let row_bytes = view.width * element_bytes;
    let mut rows = vec![0; num_rows * row_bytes];
    for (row, out) in rows.chunks_exact_mut(row_bytes).enumerate() {
        let start = (row * row_width + view.start) * element_bytes;
        let address = addresses.tensors[view.tensor.0] + start as u64;
        memory.read(address, out)?;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::testing::plan;
    use crate::plan::ReadWeightError;
    use simt::{Fault, FaultKind};

    /// Every element is 1.
    struct Ones;

    impl WeightSource for Ones {
        fn read(&self, _: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
            bytemuck::cast_slice_mut(out).fill(1.0f32);
            Ok(())
        }
    }

    fn inputs() -> StepInputs {
        let mut inputs = StepInputs::new();
        inputs.push_sequence(&[7, 3], 0, &[1], 0..2);
        inputs
    }

    #[test]
    fn a_cache_that_no_memory_holds_is_an_error() {
        let mut plan = plan();
        plan.kv.num_pages = 1 << 40;
        let error = EmulatedExecutor::open(None, &plan, &Ones).err().unwrap();
        assert!(
            matches!(&error, ExecError::OutOfMemory { what, .. } if what == "layers.0.k_cache")
        );
        assert!(error.to_string().starts_with("out of memory on emulator: "), "{error}");
    }

    #[test]
    fn a_fault_names_the_activation() {
        let mut plan = plan();
        plan.ops.remove(0);
        let mut executor = EmulatedExecutor::open(None, &plan, &Ones).unwrap();
        let prepared = executor.prepare(&plan).unwrap();
        let error = executor.run(prepared, &inputs(), Want::Logits).err();
        let Some(ExecError::Fault(Fault { kind: FaultKind::Uninitialised(access), .. })) = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(access.buffer.as_ref().unwrap().name, "x");
    }

    #[test]
    fn a_step_finds_nothing_of_the_last_one() {
        let plan = plan();
        let mut executor = EmulatedExecutor::open(None, &plan, &Ones).unwrap();
        let handle = executor.prepare(&plan).unwrap();
        executor.run(handle, &inputs(), Want::Nothing).unwrap();
        let EmulatedExecutor { memory, prepared, .. } = &mut executor;
        let prepared = &prepared.get(handle).unwrap()[0];
        let EmulatedPlan { plan, addresses, .. } = prepared;
        let rows = |memory: &Memory| read_rows(memory, plan, addresses, plan.output, 1);
        assert_eq!(rows(memory).unwrap().len(), 4 * size_of::<f32>());
        start_step(memory, prepared, &inputs());
        let error = rows(memory).unwrap_err();
        assert!(matches!(error, MemoryError::Unwritten { .. }), "{error}");
    }
}
