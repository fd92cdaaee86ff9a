//! The CUDA executor: a plan's operations as launches of kernels written in Rust, replayed as one
//! graph a step.

mod budget;
mod collectives;
mod cubin_cache;
mod cublas;
mod device;
mod graph;
mod kernel_bench;
mod memory;
mod modules;
mod observe;
mod ranks;
mod tensor_maps;
mod upload;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytemuck::{cast_slice, cast_slice_mut};
use cuda_loader::OverlappingLauncher;
use cuda_loader::cublas::Cublas;
use cuda_loader::nccl::Communicator;
use cust::context::Context;
use cust::event::{Event, EventFlags};
use cust::memory::LockedBuffer;
use cust::stream::Stream;
use kernels::gemm::Gpu;

use self::budget::Meter;
use self::cubin_cache::CubinCache;
use self::device::{failed, make_current, wait_for};
use self::graph::{Graph, Node};
use self::memory::{DeviceMemory, Sizes, pinned};
use self::modules::Modules;
use super::lower::StepBuffer;
use super::lower::{self, Addresses, Libraries, RankAddresses, Task};
use super::prepared::Prepared;
use super::{
    AfterOp, ExecError, Executor, GpuOptions, NextToken, NoQueue, PreparedPlan, StepOutput,
    StepQueue, StepTimes, Target, Want, WeightSource, alone, inputs,
};
use crate::plan::{ArenaLayout, MemoryUse, Plan, StepInputs, StepLayout, View};

pub(super) use self::budget::memory_budget;

pub use self::budget::free_memory;
pub use self::cublas::cublas_version;
pub use self::device::{Capability, DeviceInfo, Version, devices, driver_version, first_device};
pub use self::kernel_bench::{KernelAttributes, KernelBench};
pub use self::ranks::CudaRanks;

/// Runs plans on a CUDA device.
///
/// Fields are dropped in this order: graphs before the modules and the memory that they refer to,
/// the stream last.
pub struct CudaExecutor {
    prepared: Prepared<CudaPlan>,
    libraries: Libraries,
    /// The rank's, if NCCL adds over ranks.
    communicator: Option<Arc<Communicator>>,
    /// The handle, if cuBLAS computes linear layers.
    cublas: Option<Cublas>,
    modules: Modules,
    memory: DeviceMemory,
    /// Steps take turns: one is read while the next one runs.
    turns: [Turn; 2],
    /// Whose turn it is.
    turn: usize,
    /// The step after the one that is waited for, if it was started.
    queued: Option<Result<Started, ExecError>>,
    /// Logits on their way back; grows from one row to the most that a step wanted.
    logits: LockedBuffer<f32>,
    /// The token of each logit row, which its kernel writes here itself: a few words are no copy's
    /// worth. Each turn has a half. Graphs hold its address: it stays where it is.
    next_tokens: LockedBuffer<u32>,
    /// All work of the executor is on it.
    stream: Arc<Stream>,
    device: DeviceInfo,
    gpu: Gpu,
    /// How kernels are launched that overlap; `None` where device or driver cannot do it.
    overlapping: Option<OverlappingLauncher>,
    context: &'static Context,
    meter: Meter,
}

/// What host and device exchange in a step.
struct Turn {
    /// The inputs on their way to the device.
    step_inputs: LockedBuffer<u32>,
    /// The step has ended.
    end: Event,
}

impl Turn {
    fn new(step_len: usize) -> Result<Self, ExecError> {
        let end = Event::new(EventFlags::DISABLE_TIMING).map_err(failed("making an event"))?;
        Ok(Turn { step_inputs: pinned(step_len)?, end })
    }
}

/// A plan, and its launches as a graph.
struct CudaPlan {
    plan: Plan,
    /// What the graph was captured from, by operation.
    tasks: Vec<Vec<Task>>,
    step_buffer: StepBuffer,
    arena_layout: ArenaLayout,
    graph: Graph,
}

impl CudaExecutor {
    /// Opens the device `cuda:<ordinal>` and copies the weights of `plan` to it; `plan` has the
    /// largest bounds.
    ///
    /// # Errors
    /// - [`ExecError::Gemm`] if `gemm` is cuBLAS, and it is not there;
    /// - [`ExecError::NoDevice`] without a driver or such a device, or if it is too old for the
    ///   kernels;
    /// - [`ExecError::OutOfMemory`] if it has not enough free memory;
    /// - [`ExecError::Unsupported`] for weights in blocks that are not tiles, or that cuBLAS is to
    ///   multiply;
    /// - [`ExecError::Weights`] from `weights`;
    /// - [`ExecError::Driver`].
    pub fn open(
        ordinal: usize,
        options: &GpuOptions,
        plan: &Plan,
        weights: &dyn WeightSource,
    ) -> Result<Self, ExecError> {
        Self::open_rank(ordinal, options.gemm.into(), options, plan, weights)
    }

    /// As [`CudaExecutor::open`], as a rank of the world of `plan`: its communicator is still to
    /// come.
    fn open_rank(
        ordinal: usize,
        libraries: Libraries,
        options: &GpuOptions,
        plan: &Plan,
        weights: &dyn WeightSource,
    ) -> Result<Self, ExecError> {
        let &GpuOptions { gemm, target, ref cubin_dir, .. } = options;
        lower::check_weights(plan, gemm)?;
        let devices = devices()?;
        let (device, kernels, gpu) = device::choose(&devices, ordinal, target)?;
        let device = device.clone();
        let device::Opened { context, context_bytes } = device::open(&device)?;
        let mut meter = Meter::start(context_bytes)?;
        let stream = device::open_stream(ordinal)?;
        let sizes = Sizes::new(plan, gpu, libraries)?;
        let mut memory = DeviceMemory::allocate(&device, sizes, &stream)?;
        meter.allocated()?;
        // SAFETY: stream and workspace are dropped after the handle.
        let open_cublas =
            || unsafe { cublas::open(gemm, &stream, memory.cublas_workspace.address()) };
        let cublas = meter.loading(open_cublas)?;
        upload::parameters(plan, weights, &mut memory, &stream)?;
        let overlapping = device::overlapping_launcher(gpu)?;
        let cache = CubinCache::new(cubin_dir.clone(), device::driver_name()?, device.capability);
        let step_len = memory.step.bytes() / size_of::<u32>();
        Ok(CudaExecutor {
            prepared: Prepared::new(),
            libraries,
            communicator: None,
            cublas,
            modules: Modules::new(kernels, cache, device.sm_shared_bytes),
            turns: [Turn::new(step_len)?, Turn::new(step_len)?],
            turn: 0,
            queued: None,
            logits: pinned(plan.output.width)?,
            // An encoder draws none.
            next_tokens: pinned(2 * next_tokens_len(plan).max(1))?,
            memory,
            stream,
            device,
            gpu: Gpu { overlaps: overlapping.is_some(), ..gpu },
            overlapping,
            context,
            meter,
        })
    }

    /// What its kernels are compiled for.
    #[must_use]
    pub fn target(&self) -> Target {
        self.gpu.target
    }

    /// The same device, on which each kernel of the plans prepared from now on starts when the one
    /// before it has ended.
    #[must_use]
    pub fn without_overlap(mut self) -> Self {
        self.overlapping = None;
        self.gpu.overlaps = false;
        self
    }
}

/// A plan with a place for everything that it names.
struct Placed {
    plan: Plan,
    step_buffer: StepBuffer,
    arena_layout: ArenaLayout,
    addresses: Addresses,
}

/// What is captured.
struct Lowered {
    placed: Placed,
    /// By operation.
    tasks: Vec<Vec<Task>>,
}

/// A step that runs.
struct Started {
    turn: usize,
    num_rows: usize,
    num_logits: usize,
    has_next_tokens: bool,
}

impl CudaExecutor {
    /// `plan` with its fused operations, in the executor's memory.
    fn place(&self, plan: &Plan) -> Result<Placed, ExecError> {
        make_current(self.context)?;
        let plan = lower::fused(plan, self.libraries, self.gpu);
        let step_buffer = StepBuffer::new(&plan, self.gpu);
        let arena_layout = ArenaLayout::new(&plan);
        let fits = arena_layout.bytes() <= self.memory.arena.bytes()
            && step_buffer.len() * size_of::<u32>() <= self.memory.step.bytes()
            && lower::workspace_bytes(&plan, self.libraries.gemm) <= self.memory.workspace.bytes()
            && lower::counter_bytes(&plan) <= self.memory.counters.bytes()
            && 2 * next_tokens_len(&plan) <= self.next_tokens.len();
        if !fits || plan.outputs().any(|output| !is_whole(&plan, &output)) {
            return Err(ExecError::Unsupported {
                op: format!("a plan of {:?}", plan.bounds),
                why: "bounds beyond those that the device was opened with, or outputs with gaps"
                    .to_owned(),
            });
        }
        let mut addresses = self.memory.addresses(&plan, &arena_layout);
        // Pinned memory has one address for host and device.
        if let Some(next_tokens) = plan.next_tokens {
            addresses.tensors[next_tokens.tensor.0] = self.next_tokens.as_ptr() as u64;
        }
        Ok(Placed { plan, step_buffer, arena_layout, addresses })
    }

    /// What a plan launches, its kernels loaded.
    fn lower(&mut self, placed: Placed) -> Result<Lowered, ExecError> {
        make_current(self.context)?;
        let Placed { ref plan, ref addresses, .. } = placed;
        let (libraries, gpu) = (self.libraries, self.gpu);
        let tasks = lower::lower_with(libraries, plan, addresses, gpu, tensor_maps::encode)?;
        self.meter.loading(|| self.modules.load(self.context, tasks.iter().flatten()))?;
        Ok(Lowered { placed, tasks })
    }

    /// Makes a graph of a plan, and keeps it.
    fn capture(&mut self, lowered: Lowered) -> Result<PreparedPlan, ExecError> {
        make_current(self.context)?;
        let Lowered { placed: Placed { plan, step_buffer, arena_layout, .. }, tasks } = lowered;
        let handles = (self.cublas.as_ref(), self.communicator.as_deref());
        let nodes = nodes(&mut self.modules, handles, tasks.iter().flatten())?;
        // SAFETY: modules and memory live as long as this executor, and are dropped after its
        // graphs.
        let graph = unsafe { Graph::capture(&self.stream, &nodes, self.overlapping) }?;
        Ok(self.prepared.push(CudaPlan { plan, tasks, step_buffer, arena_layout, graph }))
    }

    /// Starts a step, unless it is the one in the queue. [`CudaExecutor::finish`] has to come,
    /// whatever this returns: until then the device may use the executor's buffers.
    fn begin(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
    ) -> Result<Started, ExecError> {
        self.queued.take().unwrap_or_else(|| self.start(plan, inputs, want, 0))
    }

    /// Starts the step after `running`, which draws the tokens that this one's may stand for.
    fn queue(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
        running: &Started,
    ) {
        self.queued = Some(self.start(plan, inputs, want, running.num_rows));
    }

    /// Starts a step, behind another one if that draws tokens of it.
    fn start(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
        num_drawn: usize,
    ) -> Result<Started, ExecError> {
        let CudaPlan { plan, step_buffer, arena_layout, graph, .. } = self.prepared.get(plan)?;
        inputs::check(plan, inputs, num_drawn)?;
        make_current(self.context)?;
        let turn = self.turn;
        self.turn = 1 - turn;
        let Turn { step_inputs, end } = &mut self.turns[turn];

        let num_rows = inputs.logit_rows.len();
        let (rows, width) = (want.logit_rows(num_rows), plan.output.width);
        let num_logits = rows.iter().map(|rows| rows.len() * width).sum();
        if num_logits > self.logits.len() {
            self.logits = pinned(num_logits)?;
        }

        let step_inputs = &mut step_inputs[..step_buffer.len()];
        let written = step_buffer.write(plan, inputs, step_inputs);
        step_inputs[StepLayout::FIRST_OUTPUT] = (turn * self.next_tokens.len() / 2) as u32;
        let step_inputs = cast_slice(&step_inputs[..written]);
        let mut logits = &mut self.logits[..num_logits];
        let stream: &Stream = &self.stream;
        // SAFETY: the buffers are pinned, and untouched until the step's end is waited for in `finish`:
        // those of the turn are not the running step's, and one of them alone has logits.
        unsafe { self.memory.step.write_async(0, step_inputs, stream) }?;
        graph.launch(stream)?;
        for rows in rows.into_iter().filter(|rows| !rows.is_empty()) {
            let first = rows.start * width * size_of::<f32>();
            let offset = arena_layout.offset(plan.output.tensor) + first;
            let part = logits.split_off_mut(..rows.len() * width).unwrap_or_default();
            // SAFETY: as above.
            unsafe { self.memory.arena.read_async(offset, cast_slice_mut(part), stream) }?;
        }
        end.record(stream).map_err(failed("running a step"))?;
        let has_next_tokens = want.has_next_tokens() && plan.next_tokens.is_some();
        Ok(Started { turn, num_rows, num_logits, has_next_tokens })
    }

    /// Waits for what was started.
    fn finish(&mut self, started: Result<Started, ExecError>) -> Result<StepOutput, ExecError> {
        make_current(self.context)?;
        let waited = match &started {
            Ok(started) => wait_for(&self.turns[started.turn].end, self.limit(), "running a step"),
            Err(_) => Ok(()),
        };
        let started = match waited.and(started) {
            Ok(started) => started,
            Err(error) => {
                self.drain()?;
                return Err(error);
            }
        };
        let Started { turn, num_rows, num_logits, has_next_tokens } = started;
        let mut output = StepOutput::default();
        if has_next_tokens {
            let outputs = self.next_tokens[turn * self.next_tokens.len() / 2..][..num_rows].iter();
            output.next_tokens = outputs.copied().map(NextToken::from_output).collect();
        }
        output.logits = self.logits[..num_logits].to_vec();
        Ok(output)
    }

    /// Waits for all that was started, the step in the queue too, of which nobody wants to know.
    fn drain(&mut self) -> Result<(), ExecError> {
        self.queued = None;
        wait_for(&*self.stream, self.limit(), "running a step")
    }
}

/// The queue of an executor, after the step that runs on it.
struct Behind<'a>(&'a mut CudaExecutor, &'a Started);

impl StepQueue for Behind<'_> {
    fn push(&mut self, plan: PreparedPlan, inputs: &StepInputs, want: Want<'_>) {
        let Behind(executor, running) = self;
        executor.queue(plan, inputs, want, running);
    }
}

impl CudaExecutor {
    /// How long a stream is waited for: with NCCL not for ever, as it waits for another rank that
    /// long. Kernels of ours have a limit of their own.
    fn limit(&self) -> Option<Duration> {
        self.communicator.as_ref().map(|_| collectives::LIMIT)
    }

    /// Waits for the stream, and destroys the graphs. No plan is prepared any more, and the
    /// communicator is let go.
    fn end_graphs(&mut self) {
        // What follows is freed in this thread; where this fails, so does freeing, and the process
        // ends with it.
        let _ = make_current(self.context);
        let _ = self.stream.synchronize();
        self.prepared.clear();
        self.communicator = None;
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        let _setup = self.cublas.as_ref().map(|_| cublas::setup());
        self.end_graphs();
        self.cublas = None;
    }
}

impl Executor for CudaExecutor {
    fn describe(&self) -> String {
        let Self { device, gpu, libraries: Libraries { gemm, .. }, .. } = self;
        let library = match (&self.cublas, cublas_version()) {
            (Some(_), Ok(version)) => format!(", {gemm} {version}"),
            _ => String::new(),
        };
        format!("{} ({}{library})", device.name, gpu.target.name())
    }

    /// Kernels are compiled or read from disk, and a graph is made of them.
    fn prepares_ahead(&self) -> bool {
        true
    }

    fn prepare_ranks(&mut self, plans: &[Plan]) -> Result<PreparedPlan, ExecError> {
        let placed = self.place(alone(plans)?)?;
        let lowered = self.lower(placed)?;
        self.capture(lowered)
    }

    /// Four calls of the driver beside that for the context: the inputs' copy, the graph, its end and
    /// the wait for it; each run of rows of logits is copied in another. Memory is page-locked for more than a
    /// row of them alone.
    fn run_while(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
        meanwhile: &mut dyn FnMut(&mut dyn StepQueue),
    ) -> Result<StepOutput, ExecError> {
        let started = self.begin(plan, inputs, want);
        let beside = || match &started {
            Ok(running) if running.num_logits == 0 => meanwhile(&mut Behind(self, running)),
            _ => meanwhile(&mut NoQueue),
        };
        // A panic comes after the wait too.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(beside)) {
            let _ = self.drain();
            resume_unwind(panic);
        }
        self.finish(started)
    }

    fn plan(&self, plan: PreparedPlan) -> Result<&Plan, ExecError> {
        Ok(&self.prepared.get(plan)?.plan)
    }

    fn run_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        after: &mut AfterOp<'_>,
    ) -> Result<(), ExecError> {
        self.run_ops_uncaptured(plan, inputs, after)
    }

    fn time_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<StepTimes, ExecError> {
        let replay_us = self.warm_up(plan, inputs)?;
        self.time_ops_by_events(plan, inputs, repeats, replay_us)
    }

    fn collect_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
    ) -> Result<Vec<usize>, ExecError> {
        self.collect_ops_uncaptured(plan, inputs)
    }

    fn memory_use(&self) -> Result<MemoryUse, ExecError> {
        make_current(self.context)?;
        self.meter.memory_use()
    }
}

/// `tasks` as what a stream starts. Their kernels are loaded.
fn nodes<'a>(
    modules: &mut Modules,
    (cublas, communicator): (Option<&'a Cublas>, Option<&'a Communicator>),
    tasks: impl Iterator<Item = &'a Task>,
) -> Result<Vec<Node<'a>>, ExecError> {
    let node = |task: &Task| match task {
        Task::Launch(launch) => Ok(Node::Launch(modules.function(launch)?, launch.clone())),
        Task::Gemm(gemm) => Ok(Node::Gemm(cublas.expect("opened for its matrix products"), *gemm)),
        Task::AllReduce(sum) => {
            Ok(Node::AllReduce(communicator.expect("connected for its sums"), *sum))
        }
    };
    tasks.map(node).collect()
}

/// Elements of [`Plan::next_tokens`].
fn next_tokens_len(plan: &Plan) -> usize {
    plan.next_tokens.map_or(0, |view| plan.bounds.max_rows(plan.tensor(view.tensor).rows))
}

/// Whether `view` is all columns of its activation, so that there are no gaps between its rows.
fn is_whole(plan: &Plan, view: &View) -> bool {
    view.start == 0 && view.width == plan.tensor(view.tensor).width
}
