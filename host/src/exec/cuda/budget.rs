//! What a model takes on a CUDA device: counted before it is opened, and measured after.
//!
//! Allocations of ours are known to the byte, but for the units in which the driver takes memory
//! from the device. What the driver takes for machine code and graphs is its own affair, and
//! estimated by a constant each.

use std::collections::BTreeSet;

use kernels::gemm::Gpu;
use rayon::prelude::*;

use super::collectives::libraries;
use super::device::{self, devices};
use super::memory::{Sizes, free_bytes};
use crate::exec::lower::{self, Addresses, Libraries, Task};
use crate::exec::{ExecError, Gemm, GpuOptions, MemoryInfo};
use crate::plan::{MemoryBudget, MemoryUse, Plan};

/// The driver takes memory for an allocation of at least half of this many bytes in such units;
/// smaller ones share one.
const UNIT_BYTES: usize = 2 << 20;

/// Device memory for a loaded kernel: an estimate, of machine code, its constants and what the
/// driver keeps beside them. `halfwarp generate` prints what was measured.
const MODULE_BYTES: usize = 128 << 10;

/// Device memory for a kernel of a graph: an estimate, from what an H200's driver 580 took for the
/// graphs of three models, 0.1 to 2.8 KiB (`docs/measurements/summary.md`).
const GRAPH_NODE_BYTES: usize = 2 << 10;

/// Device memory for the kernels of cuBLAS, beside its workspace: an estimate.
const CUBLAS_BYTES: usize = 64 << 20;

/// Device memory for buffers and kernels of NCCL: an estimate.
const NCCL_BYTES: usize = 512 << 20;

/// The memory of the device `cuda:<ordinal>`.
///
/// # Errors
/// [`ExecError::NoDevice`] if it is not there, or too old for the kernels; [`ExecError::Driver`].
pub fn free_memory(ordinal: usize) -> Result<MemoryInfo, ExecError> {
    let devices = devices()?;
    let (device, ..) = device::choose(&devices, ordinal, None)?;
    let opened = device::open(device)?;
    Ok(MemoryInfo {
        device: device.name.clone(),
        total_bytes: device.memory_bytes,
        free_bytes: free_bytes()?,
        context_bytes: opened.context_bytes,
    })
}

/// [`memory_budget`](crate::exec::memory_budget) of the first of the devices `cuda:<ordinal>`, one
/// for each rank.
pub fn memory_budget(
    ordinals: &[usize],
    options: &GpuOptions,
    largest: &Plan,
    prepared: &[Plan],
) -> Result<MemoryBudget, ExecError> {
    let libraries = libraries(options, ordinals, largest)?;
    let devices = devices()?;
    let ordinal = ordinals.first().copied().unwrap_or_default();
    let (device, _, gpu) = device::choose(&devices, ordinal, options.target)?;
    let context_bytes = device::open(device)?.context_bytes;
    Ok(MemoryBudget { context_bytes, ..budget(gpu, libraries, largest, prepared)? })
}

/// The budget on a `gpu`, its context left out, where libraries do a part of the work.
fn budget(
    gpu: Gpu,
    libraries: Libraries,
    largest: &Plan,
    prepared: &[Plan],
) -> Result<MemoryBudget, ExecError> {
    let sizes = Sizes::new(largest, gpu, libraries)?;
    let of_model = MemoryBudget::of_model(largest);
    // Weights and tables are one allocation.
    let table_bytes = of_model.buffer_bytes;
    let code = Code::new(gpu, libraries, prepared);
    let cublas_bytes = if libraries.gemm == Gemm::Halfwarp { 0 } else { CUBLAS_BYTES };
    let nccl_bytes = if libraries.nccl { NCCL_BYTES } else { 0 };
    let workspaces =
        [sizes.workspace_bytes, sizes.counter_bytes, sizes.cublas_bytes, sizes.rank_bytes];
    Ok(MemoryBudget {
        weight_bytes: whole_units(sizes.parameters.bytes) - table_bytes,
        kv_bytes: whole_units(sizes.kv_bytes),
        state_bytes: whole_units(sizes.state_bytes),
        activation_bytes: whole_units(sizes.arena_bytes),
        workspace_bytes: workspaces.map(whole_units).iter().sum(),
        buffer_bytes: table_bytes + whole_units(sizes.step_bytes) + whole_units(sizes.drawn_bytes),
        module_bytes: code.num_kernels * MODULE_BYTES + cublas_bytes + nccl_bytes,
        graph_bytes: code.num_nodes * GRAPH_NODE_BYTES,
        ..of_model
    })
}

/// What the driver takes for an allocation.
fn whole_units(bytes: usize) -> usize {
    if 2 * bytes < UNIT_BYTES { bytes } else { bytes.next_multiple_of(UNIT_BYTES) }
}

/// What plans launch.
struct Code {
    /// Kernels, each of a module of its own.
    num_kernels: usize,
    /// Kernels of all graphs.
    num_nodes: usize,
}

impl Code {
    fn new(gpu: Gpu, libraries: Libraries, plans: &[Plan]) -> Self {
        let tasks = plans.par_iter().map(|plan| {
            let plan = lower::fused(plan, libraries, gpu);
            let encode = |spec: &cuda_std::tensor_map::TensorMapSpec| Ok(spec.emulated());
            // What cannot be lowered is refused when it is prepared.
            let addresses = Addresses::placeholder(&plan);
            lower::lower_with(libraries, &plan, &addresses, gpu, encode).unwrap_or_default()
        });
        let tasks: Vec<Task> = tasks.flatten().flatten().collect();
        let symbols = tasks.iter().filter_map(|task| match task {
            Task::Launch(launch) => Some(launch.symbol),
            Task::Gemm(_) | Task::AllReduce(_) => None,
        });
        Code { num_kernels: symbols.collect::<BTreeSet<_>>().len(), num_nodes: tasks.len() }
    }
}

/// Measures what an executor takes, by what is free before and after. Other processes of the
/// device disturb it.
pub struct Meter {
    context_bytes: usize,
    free_at_start: usize,
    buffer_bytes: usize,
    module_bytes: usize,
}

impl Meter {
    /// Before anything is allocated in the current context, which takes `context_bytes`.
    pub fn start(context_bytes: usize) -> Result<Self, ExecError> {
        let free_at_start = free_bytes()?;
        Ok(Meter { context_bytes, free_at_start, buffer_bytes: 0, module_bytes: 0 })
    }

    /// Counts all that was taken so far as the executor's own allocations.
    pub fn allocated(&mut self) -> Result<(), ExecError> {
        self.buffer_bytes = self.taken_bytes()?;
        Ok(())
    }

    /// Counts what `load` takes as machine code.
    pub fn loading<T>(
        &mut self,
        load: impl FnOnce() -> Result<T, ExecError>,
    ) -> Result<T, ExecError> {
        let before = self.taken_bytes()?;
        let loaded = load()?;
        self.module_bytes += self.taken_bytes()?.saturating_sub(before);
        Ok(loaded)
    }

    /// What was taken until now; what is neither allocated nor machine code is of the graphs.
    pub fn memory_use(&self) -> Result<MemoryUse, ExecError> {
        let &Meter { context_bytes, buffer_bytes, module_bytes, .. } = self;
        let graph_bytes = self.taken_bytes()?.saturating_sub(buffer_bytes + module_bytes);
        Ok(MemoryUse { buffer_bytes, module_bytes, graph_bytes, context_bytes })
    }

    fn taken_bytes(&self) -> Result<usize, ExecError> {
        Ok(self.free_at_start.saturating_sub(free_bytes()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::plan::testing::Decoder;
    use crate::plan::{ArenaLayout, Bounds, CacheSize, PlanOutput, Precision, Rank};

    #[test]
    fn large_allocations_are_whole_units() {
        let mib = 1 << 20;
        for (bytes, taken) in
            [(0, 0), (mib - 1, mib - 1), (mib, 2 * mib), (2 * mib, 2 * mib), (5 * mib, 6 * mib)]
        {
            assert_eq!(whole_units(bytes), taken);
        }
    }

    /// Activations of a fused plan can take more room than those of the plan as it was: where a rank's
    /// half of the MLP is narrower than its norm, which an all-reduce stores.
    #[test]
    fn there_is_room_for_a_fused_plan() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-bias");
        let model = Model::open(golden).unwrap();
        let bounds = Bounds {
            max_tokens: 512,
            max_seqs: 1,
            max_q_len: 512,
            max_logit_rows: 1,
            max_kv_len: 512,
            mixed: false,
        };
        for rank in Rank::all(2) {
            let cache = CacheSize { num_pages: 8, num_window_pages: 8, num_states: 1 };
            let output = PlanOutput::Logits;
            let plan = model.plan_of(rank, output, &Precision::F16.into(), bounds, cache).unwrap();
            let libraries = Libraries::default();
            let fused = lower::fused(&plan, libraries, Gpu::HOPPER);
            let [before, after] = [&plan, &fused].map(|plan| ArenaLayout::new(plan).bytes());
            assert!(after > before, "{after}, {before}: not such a plan");
            assert!(Sizes::new(&plan, Gpu::HOPPER, libraries).unwrap().arena_bytes >= after);
        }
    }

    #[test]
    fn kernels_are_counted_once_and_nodes_in_each_graph() {
        let decoder = Decoder::REAL[0];
        let plans = [decoder.plan(1, 1), decoder.plan(512, 512)];
        let of = |plans: &[Plan]| Code::new(Gpu::HOPPER, Libraries::default(), plans);
        let [decode, prompt] = [0, 1].map(|at| of(&plans[at..][..1]));
        let both = of(&plans);
        assert!(decode.num_nodes >= 7 && prompt.num_nodes >= 7, "{}", decode.num_nodes);
        assert_eq!(both.num_nodes, decode.num_nodes + prompt.num_nodes);
        assert!(both.num_kernels > decode.num_kernels.max(prompt.num_kernels));
        // Both begin with the gather of embeddings.
        assert!(both.num_kernels < decode.num_kernels + prompt.num_kernels);
        assert!(decode.num_kernels <= decode.num_nodes);

        let gpu = |plans: &[Plan]| budget(Gpu::HOPPER, Libraries::default(), &plans[1], plans);
        let MemoryBudget { module_bytes, graph_bytes, activation_bytes, .. } = gpu(&plans).unwrap();
        assert_eq!(module_bytes, both.num_kernels * MODULE_BYTES);
        assert_eq!(graph_bytes, both.num_nodes * GRAPH_NODE_BYTES);
        assert_eq!(activation_bytes, whole_units(ArenaLayout::new(&plans[1]).bytes()));
    }
}
