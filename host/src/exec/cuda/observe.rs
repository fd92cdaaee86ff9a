//! A step's time and values: its graph between two events, and operation by operation, with an
//! event or a look at the values between them. Without the graph kernels do not overlap.
//!
//! The host takes longer to start a small kernel than the device to run it. So the device is given
//! the step's graph first, often enough that all that is timed is queued before it begins: the
//! times are the device's alone.

use std::time::Duration;

use cuda_loader::cublas::Cublas;
use cuda_loader::nccl::Communicator;
use cust::event::{Event, EventFlags};
use cust::stream::Stream;
use cust::sys;

use super::device::{check, failed, make_current, wait_for};
use super::graph::Node;
use super::lower::Task;
use super::memory::Block;
use super::modules::Modules;
use super::{CudaExecutor, CudaPlan, nodes};
use crate::exec::{
    Activations, AfterOp, ExecError, PreparedPlan, StepTimes, inputs, observe::indices,
    observe::widen,
};
use crate::plan::{StepInputs, View};

/// Microseconds in which the host surely queues a kernel and an event.
const QUEUE_US: f64 = 20.0;

impl CudaExecutor {
    /// Replays the graph of `plan` `replays` times, one after the other, on the step inputs of the
    /// last [`run`](crate::exec::Executor::run) of it, and returns the time of one replay in
    /// microseconds.
    ///
    /// # Errors
    /// [`ExecError::Step`] for a plan that was not prepared, [`ExecError::Driver`].
    pub fn time_us(&mut self, plan: PreparedPlan, replays: usize) -> Result<f64, ExecError> {
        let CudaPlan { graph, .. } = self.prepared.get(plan)?;
        make_current(self.context)?;
        let stream = &*self.stream;
        let replay = || (0..replays).try_for_each(|_| graph.launch(stream));
        Ok(Events::new(2, self.limit())?.time_us(stream, || Ok(()), replay)? / replays as f64)
    }

    /// [`Executor::run_ops`](crate::exec::Executor::run_ops).
    pub(super) fn run_ops_uncaptured(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        after: &mut AfterOp<'_>,
    ) -> Result<(), ExecError> {
        self.write_step(plan, inputs)?;
        let prepared = self.prepared.get(plan)?;
        let (arena, stream, limit) = (&self.memory.arena, &*self.stream, self.limit());
        let handles = (self.cublas.as_ref(), self.communicator.as_deref());
        for (op, tasks) in prepared.tasks.iter().enumerate() {
            let nodes = nodes(&mut self.modules, handles, tasks.iter())?;
            // What was started is waited for in any case.
            let started = start(&nodes, stream);
            wait_for(stream, limit, "running an operation")?;
            started?;
            after(op, &StepMemory { arena, prepared, inputs, stream })?;
        }
        Ok(())
    }

    /// Runs a step operation by operation, and then as a graph, whose microseconds it returns: kernels are loaded, and the clocks
    /// are up.
    pub(super) fn warm_up(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
    ) -> Result<f64, ExecError> {
        self.write_step(plan, inputs)?;
        let limit = self.limit();
        let CudaPlan { tasks, graph, .. } = self.prepared.get(plan)?;
        let handles = (self.cublas.as_ref(), self.communicator.as_deref());
        let ops = nodes_by_op(&mut self.modules, handles, tasks)?;
        let stream = &*self.stream;
        let events = Events::new(2, limit)?;
        let replay = || graph.launch(stream);
        events.time_us(
            stream,
            || Ok(()),
            || ops.iter().try_for_each(|nodes| start(nodes, stream)),
        )?;
        events.time_us(stream, replay, replay)
    }

    /// [`Executor::time_ops`](crate::exec::Executor::time_ops) after [`CudaExecutor::warm_up`], which took `replay_us`.
    pub(super) fn time_ops_by_events(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        repeats: usize,
        replay_us: f64,
    ) -> Result<StepTimes, ExecError> {
        self.write_step(plan, inputs)?;
        let limit = self.limit();
        let CudaPlan { tasks, graph, .. } = self.prepared.get(plan)?;
        let handles = (self.cublas.as_ref(), self.communicator.as_deref());
        let ops = nodes_by_op(&mut self.modules, handles, tasks)?;
        let stream = &*self.stream;
        // One more event than marks the operations: nothing is between the last two.
        let events = Events::new(ops.len() + 2, limit)?;
        let run = || ops.iter().try_for_each(|nodes| start(nodes, stream));
        let replay = || graph.launch(stream);
        let num_launches: usize = ops.iter().map(Vec::len).sum();
        let queue_us = QUEUE_US * (num_launches + ops.len()) as f64;
        let num_replays = (queue_us / replay_us.max(1.0)).ceil() as usize;
        let keep_busy = || (0..num_replays).try_for_each(|_| replay());
        let mut times = StepTimes { ops_us: vec![Vec::new(); ops.len()], ..Default::default() };
        let (mut graph_us, mut event_us) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            graph_us.push(events.time_us(stream, keep_busy, replay)?);
            times.step_us.push(events.time_us(stream, keep_busy, run)?);
            let mut ops_us = events.times_us(stream, keep_busy, &ops)?;
            event_us.extend(ops_us.pop());
            for (us, list) in ops_us.into_iter().zip(&mut times.ops_us) {
                list.push(us);
            }
        }
        event_us.sort_by(f64::total_cmp);
        let event_us = event_us.get(event_us.len() / 2).copied().unwrap_or(0.0);
        for us in times.ops_us.iter_mut().flatten() {
            *us = (*us - event_us).max(0.0);
        }
        times.event_us = Some(event_us);
        times.graph_us = Some(graph_us);
        times.num_launches = Some(num_launches);
        Ok(times)
    }

    /// [`Executor::collect_ops`](crate::exec::Executor::collect_ops).
    pub(super) fn collect_ops_uncaptured(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
    ) -> Result<Vec<usize>, ExecError> {
        make_current(self.context)?;
        // SAFETY: a context is current.
        check("cuProfilerStart", unsafe { sys::cuProfilerStart() })?;
        let ran = self.run_ops_uncaptured(plan, inputs, &mut |_, _| Ok(()));
        // SAFETY: as above.
        check("cuProfilerStop", unsafe { sys::cuProfilerStop() })?;
        ran?;
        Ok(self.prepared.get(plan)?.tasks.iter().map(Vec::len).collect())
    }

    /// Copies the step's inputs to the device, and waits for that.
    fn write_step(&mut self, plan: PreparedPlan, inputs: &StepInputs) -> Result<(), ExecError> {
        let CudaPlan { plan, step_buffer, .. } = self.prepared.get(plan)?;
        inputs::check(plan, inputs, 0)?;
        make_current(self.context)?;
        let step_inputs = &mut self.turns[0].step_inputs[..step_buffer.len()];
        let written = step_buffer.write(plan, inputs, step_inputs);
        let bytes = bytemuck::cast_slice(&step_inputs[..written]);
        // SAFETY: the copy is waited for.
        let copied = unsafe { self.memory.step.write_async(0, bytes, &self.stream) };
        self.stream.synchronize().map_err(failed("copying a step's inputs"))?;
        copied
    }
}

/// Starts `nodes`, each after the one before has ended.
fn start(nodes: &[Node<'_>], stream: &Stream) -> Result<(), ExecError> {
    // SAFETY: modules and memory live in the executor, which waits for its stream before it gives
    // any of them back.
    nodes.iter().try_for_each(|node| unsafe { node.start(stream, None) })
}

/// The nodes of each operation.
fn nodes_by_op<'a>(
    modules: &mut Modules,
    handles: (Option<&'a Cublas>, Option<&'a Communicator>),
    tasks: &'a [Vec<Task>],
) -> Result<Vec<Vec<Node<'a>>>, ExecError> {
    tasks.iter().map(|tasks| nodes(modules, handles, tasks.iter())).collect()
}

/// Marks on a stream, which is waited for no longer than the limit, if there is one.
struct Events {
    events: Vec<Event>,
    limit: Option<Duration>,
}

impl Events {
    fn new(len: usize, limit: Option<Duration>) -> Result<Self, ExecError> {
        let event = |_| Event::new(EventFlags::DEFAULT).map_err(failed("making an event"));
        Ok(Events { events: (0..len).map(event).collect::<Result<_, _>>()?, limit })
    }

    /// Microseconds of what `run` starts; `keep_busy` is started first.
    fn time_us(
        &self,
        stream: &Stream,
        keep_busy: impl FnOnce() -> Result<(), ExecError>,
        run: impl FnOnce() -> Result<(), ExecError>,
    ) -> Result<f64, ExecError> {
        let [first, .., last] = &self.events[..] else { return Ok(0.0) };
        let start = || {
            keep_busy()?;
            record(first, stream)?;
            run()?;
            record(last, stream)
        };
        // What was started is waited for in any case.
        let started = start();
        wait_for(stream, self.limit, "running a step")?;
        started?;
        between(first, last)
    }

    /// Microseconds of each of `ops`, run one after the other, and then of nothing; `keep_busy` is
    /// started first. There are two events more than operations.
    fn times_us(
        &self,
        stream: &Stream,
        keep_busy: impl FnOnce() -> Result<(), ExecError>,
        ops: &[Vec<Node<'_>>],
    ) -> Result<Vec<f64>, ExecError> {
        let events = &self.events;
        let start_all = || {
            keep_busy()?;
            record(&events[0], stream)?;
            let ops = ops.iter().map(Vec::as_slice).chain([&[][..]]);
            ops.zip(&events[1..]).try_for_each(|(nodes, event)| {
                start(nodes, stream)?;
                record(event, stream)
            })
        };
        // As in `time_us`.
        let started = start_all();
        wait_for(stream, self.limit, "running a step")?;
        started?;
        events.windows(2).map(|pair| between(&pair[0], &pair[1])).collect()
    }
}

fn record(event: &Event, stream: &Stream) -> Result<(), ExecError> {
    event.record(stream).map_err(failed("timing"))
}

fn between(start: &Event, stop: &Event) -> Result<f64, ExecError> {
    let ms = stop.elapsed_time_f32(start).map_err(failed("timing"))?;
    Ok(f64::from(ms) * 1e3)
}

/// The activations of a step that has stopped between two operations.
struct StepMemory<'a> {
    arena: &'a Block,
    prepared: &'a CudaPlan,
    inputs: &'a StepInputs,
    stream: &'a Stream,
}

impl StepMemory<'_> {
    /// The rows of `view`, dense.
    fn bytes(&self, view: View) -> Result<Vec<u8>, ExecError> {
        let CudaPlan { plan, arena_layout, .. } = self.prepared;
        let tensor = plan.tensor(view.tensor);
        let num_rows = self.inputs.num_rows(tensor.rows);
        let element_bytes = tensor.dtype.block_bytes();
        let mut bytes = vec![0; num_rows * tensor.width * element_bytes];
        let offset = arena_layout.offset(view.tensor);
        // SAFETY: the copy is waited for.
        let copied = unsafe { self.arena.read_async(offset, &mut bytes, self.stream) };
        self.stream.synchronize().map_err(failed("copying an activation"))?;
        copied?;
        let columns = view.start * element_bytes..(view.start + view.width) * element_bytes;
        let rows = bytes.chunks_exact(tensor.width * element_bytes);
        Ok(rows.flat_map(|row| &row[columns.clone()]).copied().collect())
    }
}

impl Activations for StepMemory<'_> {
    fn rows(&self, view: View) -> Result<Vec<f32>, ExecError> {
        widen(&self.prepared.plan, view, &self.bytes(view)?)
    }

    fn indices(&self, view: View) -> Result<Vec<u32>, ExecError> {
        indices(&self.prepared.plan, view, &self.bytes(view)?)
    }
}
