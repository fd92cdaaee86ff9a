//! Threads as coroutines, run one after the other in an order drawn from a seed.

use crate::clock::Knowledge;
use crate::fault::{Fault, FaultKind};
use crate::grid::{Grid, Grids};
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::machine::{Machine, Report, Step};
use crate::memory::Memory;
use crate::shadow::LAUNCH_BEFORE;
use crate::stack::ShiftedStack;
use crate::stream::Stream;
use crate::watchdog::Pulse;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use gpu_types::Geometry;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, set_hook, take_hook};
use std::ptr;
use std::sync::{Arc, Once};

type Thread = Coroutine<(), (), (), ShiftedStack>;

thread_local! {
    /// The launch that runs on this thread of the host.
    pub(crate) static ACTIVE: RefCell<Option<Machine>> = const { RefCell::new(None) };
    /// What suspends the coroutine that runs.
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
    /// Whether a kernel's code runs.
    static IN_KERNEL: Cell<bool> = const { Cell::new(false) };
    /// The message of a kernel's panic, and where it was.
    static PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
    /// Stacks of threads that have ended.
    static STACKS: RefCell<Vec<ShiftedStack>> = const { RefCell::new(Vec::new()) };
    /// Stacks that were made.
    static NUM_STACKS: Cell<usize> = const { Cell::new(0) };
}

/// A kernel with its arguments, which each thread calls.
pub type Body = Arc<dyn Fn() + Send + Sync>;

/// A launch of a device's stream.
#[derive(Clone)]
pub struct StreamLaunch {
    /// The kernel.
    pub kernel: Kernel,
    /// Grid, block, shared memory.
    pub geometry: Geometry,
    /// The kernel with its arguments.
    pub body: Body,
    /// Whether it may start before the previous launch of its stream has ended, as a launch after
    /// `Memory::overlap_next_launch` may.
    pub overlaps: bool,
}

/// Runs a kernel, one thread of it at a time, in an order drawn from `seed`. `memory` is left as
/// the threads wrote it, also by a launch that fails.
///
/// A loop of the kernel that calls no instruction, and does not end, ends the process after 10
/// seconds, with a report on stderr: the emulator can stop a thread only where it calls one.
///
/// # Errors
/// The first [`Fault`]: of the kernel, or of a launch that no device takes.
pub fn emulate(
    kernel: Kernel,
    geometry: Geometry,
    body: Body,
    memory: &mut Memory,
    seed: u64,
) -> Result<Report, Fault> {
    let overlaps = memory.overlaps_next_launch();
    let launch = StreamLaunch { kernel, geometry, body, overlaps };
    emulate_streams(&[vec![launch]], memory, seed)
}

/// Runs launches of several devices at the same time: `streams[d]` are those of device `d`, one
/// after the other. All devices access all of `memory`, and a device may be several launches ahead
/// of another.
///
/// Atomic operations and fences order accesses of two devices only if their scope is the system.
/// The end of a launch, or the wait for it, is a fence of that scope.
///
/// # Errors
/// As [`emulate`].
pub fn emulate_streams(
    streams: &[Vec<StreamLaunch>],
    memory: &mut Memory,
    seed: u64,
) -> Result<Report, Fault> {
    let (mut grids, mut bodies) = (Grids(Vec::new()), Vec::new());
    let mut ends = Vec::new();
    let mut first_block = 0;
    for (device, launches) in streams.iter().enumerate() {
        for (number, launch) in launches.iter().enumerate() {
            let StreamLaunch { kernel, geometry, body, overlaps } = launch;
            let layout = Layout::new(kernel, *geometry, first_block)
                .map_err(|why| refuse(kernel.symbol, why))?;
            first_block += layout.num_blocks();
            let (kernel, overlaps) = (kernel.symbol, *overlaps);
            grids.0.push(Grid { kernel, layout, device, number, overlaps });
            bodies.push(body.clone());
        }
        ends.push(grids.0.len());
    }
    let Some(first) = grids.0.first() else { return Ok(Report::default()) };
    if ACTIVE.with_borrow(Option::is_some) {
        return Err(refuse(first.kernel, "a kernel cannot launch another one".to_owned()));
    }
    catch_panics();
    let before = memory.start_launch().then(|| Knowledge::with_first_component(LAUNCH_BEFORE));
    let machine = Machine::new((grids, streams.len()), before, std::mem::take(memory), seed);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let streams = starts.zip(&ends).map(|(start, &end)| Stream::new(start..end)).collect();
    let pulse = machine.pulse.clone();
    let mut scheduler = Scheduler {
        bodies,
        streams,
        coroutines: Vec::new(),
        free: Vec::new(),
        has_room: false,
        pulse,
    };
    ACTIVE.set(Some(machine));
    let result = scheduler.run();
    // Unwinds the threads that still wait, outside of the launch: what they drop must call no
    // instruction.
    let machine = ACTIVE.take().expect("a launch is active until it ends");
    drop(scheduler);
    *memory = machine.memory;
    result.map(|()| machine.report)
}

/// A launch that no device takes.
fn refuse(kernel: &str, why: String) -> Fault {
    Fault { kernel: kernel.to_owned(), by: None, kind: FaultKind::Launch(why), pairing: None }
}

/// Calls `f` with the launch that runs.
fn with<R>(f: impl FnOnce(&mut Machine) -> R) -> R {
    ACTIVE.with_borrow_mut(|active| f(active.as_mut().expect("a launch is active until it ends")))
}

struct Scheduler {
    /// By launch.
    bodies: Vec<Body>,
    /// By device.
    streams: Vec<Stream>,
    /// By slot of a resident block, its threads that have not ended.
    coroutines: Vec<Vec<Option<Thread>>>,
    /// Slots that a block has left.
    free: Vec<usize>,
    /// Whether there may be room for blocks, as one has ended or a launch has started.
    has_room: bool,
    pulse: Arc<Pulse>,
}

impl Scheduler {
    fn run(&mut self) -> Result<(), Fault> {
        self.streams_at_start();
        loop {
            self.start_launches();
            if std::mem::take(&mut self.has_room) {
                self.start_clusters()?;
            }
            match with(|machine| machine.pick())? {
                Step::Thread(place, thread) => self.resume(place, thread)?,
                Step::Landed => (),
                Step::Nothing if self.streams.iter().all(Stream::is_done) => return Ok(()),
                Step::Nothing if self.streams.iter().any(Stream::is_late) => self.hurry(),
                Step::Nothing => {
                    return Err(with(|machine| {
                        machine.refuse(FaultKind::Deadlock(machine.waiting()))
                    }));
                }
            }
        }
    }

    /// Each device's first launch starts at a moment of its own.
    fn streams_at_start(&mut self) {
        with(|machine| {
            for (stream, done) in self.streams.iter_mut().zip(&mut machine.done) {
                done.all = stream.is_done();
                if machine.grids.is_group() {
                    stream.draw_delay(&mut machine.rng);
                }
            }
        });
    }

    /// Starts the launches whose time has come.
    fn start_launches(&mut self) {
        if !self.streams.iter().any(Stream::is_late) {
            return;
        }
        if with(|machine| machine.is_idle()) {
            self.hurry();
        }
        for stream in self.streams.iter_mut().filter(|stream| stream.is_late()) {
            if let Some(launch) = stream.next_launch() {
                stream.start(launch, with(|machine| machine.grids.0[launch].layout));
                self.has_room = true;
            }
        }
    }

    /// Starts as many blocks as there is room for.
    fn start_clusters(&mut self) -> Result<(), Fault> {
        for device in 0..self.streams.len() {
            while let Some((launch, layout, cluster)) = self.streams[device].next_cluster() {
                (0..layout.blocks_per_cluster()).try_for_each(|rank| {
                    self.start_block(layout.block_of_cluster(cluster, rank), launch, &layout)
                })?;
            }
        }
        Ok(())
    }

    /// No thread gets on without the launches that are late.
    fn hurry(&mut self) {
        self.streams.iter_mut().for_each(Stream::hurry);
        with(|machine| machine.idle_steps = 0);
    }

    fn start_block(&mut self, index: u64, launch: usize, layout: &Layout) -> Result<(), Fault> {
        let (threads, body) = (layout.threads_per_block(), &self.bodies[launch]);
        let coroutines: io::Result<Vec<_>> =
            (0..threads).map(|_| new_thread(body.clone()).map(Some)).collect();
        let coroutines = coroutines.map_err(|error| {
            let why = format!("no stack for a thread: {error}");
            with(|machine| machine.refuse(FaultKind::Launch(why)))
        })?;
        let place = self.free.pop().unwrap_or(self.coroutines.len());
        if place == self.coroutines.len() {
            self.coroutines.push(coroutines);
        } else {
            self.coroutines[place] = coroutines;
        }
        with(|machine| machine.start_block(place, index));
        Ok(())
    }

    /// The block in slot `place` has ended.
    fn end_block(&mut self, place: usize) -> Result<(), Fault> {
        self.free.push(place);
        self.has_room = true;
        with(|machine| {
            let device = machine.grids.of(machine.blocks[place].index).device;
            let stream = &mut self.streams[device];
            if !stream.end_block() || !machine.grids.is_group() {
                return Ok(());
            }
            machine.end_launch(device)?;
            machine.done[device].all = stream.is_done();
            stream.draw_delay(&mut machine.rng);
            Ok(())
        })
    }

    /// Runs a thread until it waits or ends.
    fn resume(&mut self, block: usize, thread: usize) -> Result<(), Fault> {
        let coroutine = &mut self.coroutines[block][thread];
        let running = coroutine.as_mut().expect("a thread that can go on has not ended");
        IN_KERNEL.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| running.resume(())));
        self.pulse.leave();
        IN_KERNEL.set(false);
        match result {
            Ok(CoroutineResult::Yield(())) => Ok(()),
            Ok(CoroutineResult::Return(())) => {
                let stack = coroutine.take().map(Coroutine::into_stack);
                STACKS.with_borrow_mut(|stacks| stacks.extend(stack));
                let is_last = with(|machine| {
                    machine
                        .end_thread()
                        .map_err(|kind| machine.fault(kind, "its end".to_owned()))?;
                    Ok(machine.block().is_done())
                })?;
                if is_last { self.end_block(block) } else { Ok(()) }
            }
            Err(payload) => Err(with(|machine| fault_of(machine, payload))),
        }
    }
}

/// The fault that has unwound a thread: a failed check, or a panic.
fn fault_of(machine: &Machine, payload: Box<dyn Any + Send>) -> Fault {
    match payload.downcast::<Fault>() {
        Ok(fault) => *fault,
        Err(_) => {
            let (message, location) = PANIC.take().unwrap_or_default();
            machine.fault(FaultKind::Panic(message), location)
        }
    }
}

fn new_thread(body: Body) -> io::Result<Thread> {
    let stack = STACKS.with_borrow_mut(Vec::pop);
    let stack =
        stack.map_or_else(|| ShiftedStack::new(NUM_STACKS.replace(NUM_STACKS.get() + 1)), Ok)?;
    Ok(Coroutine::with_stack(stack, move |yielder, ()| {
        YIELDER.set(yielder);
        body();
    }))
}

/// Lets other threads run, until the thread is chosen again.
pub(crate) fn suspend() {
    let yielder = YIELDER.get();
    // SAFETY: instructions are called by a kernel's thread, while a launch is active: the pointer
    // is that of the coroutine that runs, set when it started and after each time that it waited,
    // and a coroutine outlives the code that runs on it.
    unsafe { &*yielder }.suspend(());
    YIELDER.set(yielder);
}

/// From now on a panic of a kernel is not printed but becomes a [`Fault`]. Other panics are printed
/// as before.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if IN_KERNEL.get() {
                let message = info.payload_as_str().unwrap_or("a panic without a message");
                let location = info.location().map(Location::to_string).unwrap_or_default();
                PANIC.set(Some((message.to_owned(), location)));
            } else {
                previous(info);
            }
        }));
    });
}
