//! Threads as coroutines, run one after the other in an order drawn from a seed.

use crate::fault::{Fault, FaultKind};
use crate::geometry::{Geometry, Kernel};
use crate::layout::Layout;
use crate::machine::{Machine, Report, Step};
use crate::memory::Memory;
use crate::stack::ShiftedStack;
use crate::watchdog::Pulse;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, set_hook, take_hook};
use std::ptr;
use std::sync::{Arc, Once};

/// Most threads that are resident at a time; a block is resident as a whole.
const MAX_RESIDENT_THREADS: usize = 2048;

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
    let refuse = |why| Fault {
        kernel: kernel.symbol.to_owned(),
        by: None,
        kind: FaultKind::Launch(why),
        pairing: None,
    };
    let layout = Layout::new(&kernel, geometry).map_err(refuse)?;
    if ACTIVE.with_borrow(Option::is_some) {
        return Err(refuse("a kernel cannot launch another one".to_owned()));
    }
    catch_panics();
    let overlaps = memory.start_launch();
    let mut machine = Machine::new(kernel.symbol, layout, std::mem::take(memory), seed);
    machine.overlaps = overlaps;
    let pulse = machine.pulse.clone();
    let mut scheduler =
        Scheduler { body, coroutines: Vec::new(), free: Vec::new(), next_cluster: 0, pulse };
    ACTIVE.set(Some(machine));
    let result = scheduler.run();
    // Unwinds the threads that still wait, outside of the launch: what they drop must call no
    // instruction.
    let machine = ACTIVE.take().expect("a launch is active until it ends");
    drop(scheduler);
    *memory = machine.memory;
    result.map(|()| machine.report)
}

/// Calls `f` with the launch that runs.
fn with<R>(f: impl FnOnce(&mut Machine) -> R) -> R {
    ACTIVE.with_borrow_mut(|active| f(active.as_mut().expect("a launch is active until it ends")))
}

struct Scheduler {
    body: Body,
    /// By slot of a resident block, its threads that have not ended.
    coroutines: Vec<Vec<Option<Thread>>>,
    /// Slots that a block has left.
    free: Vec<usize>,
    next_cluster: u64,
    pulse: Arc<Pulse>,
}

impl Scheduler {
    fn run(&mut self) -> Result<(), Fault> {
        let layout = with(|machine| machine.layout);
        loop {
            while self.next_cluster < layout.num_clusters() && self.has_room(&layout) {
                self.start_cluster(&layout)?;
            }
            match with(|machine| machine.pick())? {
                Step::Thread(place, thread) => self.resume(place, thread)?,
                Step::Landed => (),
                Step::Nothing if self.free.len() == self.coroutines.len() => return Ok(()),
                Step::Nothing => {
                    return Err(with(|machine| {
                        machine.refuse(FaultKind::Deadlock(machine.waiting()))
                    }));
                }
            }
        }
    }

    /// Whether another cluster can become resident; one always can.
    fn has_room(&self, layout: &Layout) -> bool {
        let resident = self.coroutines.len() - self.free.len();
        let blocks = resident + layout.blocks_per_cluster();
        resident == 0 || blocks * layout.threads_per_block() <= MAX_RESIDENT_THREADS
    }

    fn start_cluster(&mut self, layout: &Layout) -> Result<(), Fault> {
        let cluster = self.next_cluster;
        self.next_cluster += 1;
        (0..layout.blocks_per_cluster())
            .try_for_each(|rank| self.start_block(layout.block_of_cluster(cluster, rank), layout))
    }

    fn start_block(&mut self, index: u64, layout: &Layout) -> Result<(), Fault> {
        let threads = layout.threads_per_block();
        let coroutines: io::Result<Vec<_>> =
            (0..threads).map(|_| new_thread(self.body.clone()).map(Some)).collect();
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
                with(|machine| {
                    machine
                        .end_thread()
                        .map_err(|kind| machine.fault(kind, "its end".to_owned()))?;
                    if machine.block().is_done() {
                        self.free.push(block);
                    }
                    Ok(())
                })
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
