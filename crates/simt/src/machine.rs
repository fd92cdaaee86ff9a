//! The state of a launch that runs.

use crate::atomic::Variables;
use crate::block::{Block, Words, order_warp};
use crate::clock::{Clock, Knowledge, WARP_SIZE};
use crate::cluster::ClusterBarrier;
use crate::fault::{Fault, FaultKind, Pairing, Waiting};
use crate::flight::Flight;
use crate::fragment_a::FragmentsA;
use crate::grid::Grids;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::point::Point;
use crate::product::Fragments;
use crate::ready::Ready;
use crate::rng::Rng;
use crate::stream::Done;
use crate::watchdog::{self, Pulse};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

pub(crate) type At = &'static Location<'static>;

/// Which memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The device's memory.
    Global,
    /// The block's shared memory.
    Shared,
    /// The shared memory of the cluster's blocks: an address of `map_shared`, or of the own block.
    Cluster,
}

/// Counters of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Threads that ran.
    pub threads: u64,
    /// Loads and stores of global and of shared memory; an asynchronous copy is one.
    pub accesses: u64,
    /// Passes over the banks of shared memory beyond the first, summed over loads and stores. A
    /// pass serves all lanes of a warp, 16 lanes with 8 bytes each, or 8 lanes with 16 bytes each.
    pub bank_conflicts: u64,
}

/// What happens next.
pub(crate) enum Step {
    /// A thread runs: the slot of its block, and its index there.
    Thread(usize, usize),
    /// A copy has completed.
    Landed,
    /// No thread can run.
    Nothing,
}

/// How often each thread may find that it still has to wait before the launch is a livelock.
const IDLE_STEPS_PER_THREAD: usize = 1000;

/// Instructions that a thread may execute before it waits for others or ends: about a second.
const MAX_STEPS: u32 = 1 << 24;

/// How often each resident thread may go on, on average, while nothing writes memory and no thread
/// ends.
const TURNS_PER_THREAD: u64 = 1 << 16;

/// Steps between two signs of life to the watchdog, a power of two.
const STEPS_PER_BEAT: u32 = 1 << 16;

/// How often in a row a thread makes the same load before it is taken to wait for a change.
const SAME_LOADS: u32 = 256;

/// Part of the names of instructions that a warp executes converged.
const ALIGNED: &[u8; 8] = b".aligned";

/// At each step a copy completes with a probability of one in so many.
const LANDS_ONCE_IN: usize = 64;

/// Launches that run.
pub(crate) struct Machine {
    pub grids: Arc<Grids>,
    /// That of the thread that runs.
    pub layout: Layout,
    /// By device.
    pub done: Vec<Done>,
    pub memory: Memory,
    /// Resident blocks, by slot.
    pub blocks: Vec<Block>,
    /// The clocks of their threads.
    pub clocks: Vec<Vec<Clock>>,
    /// By cluster, once a thread has reached its barrier.
    pub cluster_barriers: HashMap<u64, ClusterBarrier>,
    /// Bulk copies in flight.
    pub flights: Vec<Flight>,
    pub num_flights: u64,
    /// What atomic operations have released, by address.
    pub variables: Variables,
    /// Accumulators that a `wgmma` in flight may write.
    pub fragments: Fragments,
    /// Operands A of `wgmma` in registers.
    pub fragments_a: FragmentsA,
    ready: Ready,
    /// The thread that runs.
    pub current: (usize, usize),
    pub rng: Rng,
    pub report: Report,
    /// Consecutive turns of threads that only found that they still have to wait.
    pub idle_steps: usize,
    /// Instructions of the thread that runs since it went on.
    steps: u32,
    /// How often a thread has gone on since one wrote memory or ended.
    turns: u64,
    /// [`TURNS_PER_THREAD`] of each resident thread.
    max_turns: u64,
    /// Signs of life to the watchdog.
    pub pulse: Arc<Pulse>,
    /// The last load, and how often it was made in a row.
    last_load: Option<(u64, At)>,
    same_loads: u32,
}

impl Machine {
    /// Launches of so many devices; `before` holds what earlier ones have done.
    pub fn new(
        (grids, num_devices): (Grids, usize),
        before: Option<Knowledge>,
        memory: Memory,
        seed: u64,
    ) -> Self {
        let grids = Arc::new(grids);
        let done = Done::after(before);
        Machine {
            layout: grids.0[0].layout,
            pulse: watchdog::watch(grids.clone()),
            grids,
            done: vec![done; num_devices],
            memory,
            blocks: Vec::new(),
            clocks: Vec::new(),
            cluster_barriers: HashMap::new(),
            flights: Vec::new(),
            num_flights: 0,
            variables: Variables::default(),
            fragments: Fragments::default(),
            fragments_a: FragmentsA::default(),
            ready: Ready::default(),
            current: (0, 0),
            rng: Rng::new(seed),
            report: Report::default(),
            idle_steps: 0,
            steps: 0,
            turns: 0,
            max_turns: 0,
            last_load: None,
            same_loads: 0,
        }
    }

    /// A block becomes resident in slot `place`.
    pub fn start_block(&mut self, place: usize, index: u64) {
        let grid = self.grids.of(index);
        let threads = grid.layout.threads_per_block();
        let done = &self.done[grid.device];
        let before = done.launches.clone();
        // What overlaps does not know the previous launch before it has waited.
        let known = if grid.overlaps { &done.launches_before_last } else { &done.launches };
        let known = known.clone();
        let known = known.as_deref();
        let clocks = Clock::start(index, threads, known);
        let mut block = Block::new(index, &grid.layout, before.clone(), grid.overlaps);
        if let Some(known) = known {
            block.threads.iter_mut().for_each(|thread| thread.fences.start_after(known));
        }
        if place == self.blocks.len() {
            self.blocks.push(block);
            self.clocks.push(clocks);
        } else {
            self.blocks[place] = block;
            self.clocks[place] = clocks;
        }
        (0..threads).for_each(|thread| self.ready.push(place, thread));
        self.report.threads += threads as u64;
        self.turns = 0;
        let threads: usize = self.blocks.iter().map(|block| block.threads.len()).sum();
        self.max_turns = TURNS_PER_THREAD * threads as u64;
    }

    /// Memory changes, or a thread ends: the launch gets somewhere.
    pub fn progress(&mut self) {
        (self.idle_steps, self.turns) = (0, 0);
    }

    /// The thread that runs calls an instruction; whether it is time for
    /// [`Machine::check_steps`].
    #[inline]
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        self.steps.is_multiple_of(STEPS_PER_BEAT)
    }

    /// A sign of life to the watchdog, and a fault for a thread in an endless loop.
    #[cold]
    pub fn check_steps(&self) -> Result<(), FaultKind> {
        self.pulse.beat();
        if self.steps < MAX_STEPS {
            return Ok(());
        }
        Err(FaultKind::Endless(if self.meets_endlessly() {
            format!("{TURNS_PER_THREAD} waits of each thread, and no write to memory meanwhile")
        } else {
            format!("{MAX_STEPS} instructions, and no wait for another thread meanwhile")
        }))
    }

    /// Whether threads have waited for each other for too long without a change of memory.
    fn meets_endlessly(&self) -> bool {
        self.turns > self.max_turns && self.flights.is_empty()
    }

    /// Whether threads have done nothing but poll for a long time.
    pub fn is_idle(&self) -> bool {
        let limit = IDLE_STEPS_PER_THREAD * (self.ready.len() + 1);
        self.idle_steps > limit && self.flights.is_empty()
    }

    /// What happens next, drawn from the seed: a thread runs, or a copy completes.
    pub fn pick(&mut self) -> Result<Step, Fault> {
        let runnable = self.ready.len();
        if self.is_idle() {
            return Err(self.refuse(FaultKind::Livelock(self.waiting())));
        }
        let lands =
            !self.flights.is_empty() && (runnable == 0 || self.rng.below(LANDS_ONCE_IN) == 0);
        if lands {
            self.land_any()?;
            return Ok(Step::Landed);
        }
        if runnable == 0 {
            return Ok(Step::Nothing);
        }
        self.current = self.ready.take(&mut self.rng);
        let (place, thread) = self.current;
        let block = &mut self.blocks[place];
        block.threads[thread].waits = None;
        if self.grids.is_group() {
            self.layout = self.grids.of(block.index).layout;
        }
        self.pulse.enter(block.index, thread);
        self.turns += 1;
        // The next instruction of an endless loop is a fault, which names its line.
        self.steps = if self.meets_endlessly() { MAX_STEPS - 1 } else { 0 };
        Ok(Step::Thread(place, thread))
    }

    /// The fault of the thread that runs.
    pub fn fault(&self, kind: FaultKind, location: String) -> Fault {
        let (place, thread) = self.current;
        let block = &self.blocks[place];
        let kernel = self.grids.of(block.index).kernel.to_owned();
        let by = self.grids.party_at((block.index, thread), location);
        Fault { kernel, by: Some(by), kind, pairing: self.pairing(block) }
    }

    /// A fault of no single thread.
    pub fn refuse(&self, kind: FaultKind) -> Fault {
        let pairing = self.blocks.iter().find_map(|block| self.pairing(block));
        Fault { kernel: self.grids.0[0].kernel.to_owned(), by: None, kind, pairing }
    }

    /// The first collective of a block whose lanes came from different lines.
    fn pairing(&self, block: &Block) -> Option<Box<Pairing>> {
        let (instruction, lanes) = block.pairing?;
        let [first, other] =
            lanes.map(|(thread, location)| self.grids.party((block.index, thread), location));
        Some(Box::new(Pairing { instruction: instruction.to_owned(), first, other }))
    }

    /// Which threads wait where, and for what.
    pub fn waiting(&self) -> Vec<Waiting> {
        let done = self.done.iter().enumerate().filter(|(_, done)| done.all);
        let done: Vec<String> = done.map(|(device, _)| device.to_string()).collect();
        let done = if done.is_empty() {
            String::new()
        } else {
            format!("; nothing is left to run on device {}", done.join(", "))
        };
        let of = |block: &Block| {
            block.waiting(&self.grids, |point| match point {
                Point::Mbarrier { place, .. } => self.blocks[place].describe(point),
                Point::Change { place, address } => {
                    let shared = place.map(|place| &self.blocks[place].shared);
                    let at = shared.unwrap_or(&self.memory.regions).describe(address);
                    format!("polls {at}, which no thread changes{done}")
                }
                _ => block.describe(point),
            })
        };
        self.blocks.iter().flat_map(of).collect()
    }

    /// The block of the thread that runs.
    pub fn block(&mut self) -> &mut Block {
        &mut self.blocks[self.current.0]
    }

    /// The clock of the thread that runs.
    pub fn clock(&mut self) -> &mut Clock {
        let (place, thread) = self.current;
        &mut self.clocks[place][thread]
    }

    /// The slot of a resident block that has not ended.
    pub fn place_of(&self, index: u64) -> Option<usize> {
        self.blocks.iter().position(|block| block.index == index && !block.is_done())
    }

    /// The thread that runs waits at `point`, until it is woken.
    pub fn wait(&mut self, point: Point, location: At) {
        let thread = self.current.1;
        self.block().threads[thread].waits = Some((point, location));
    }

    /// Threads of a block can go on.
    pub fn wake(&mut self, place: usize, threads: impl IntoIterator<Item = usize>) {
        self.idle_steps = 0;
        for thread in threads {
            self.blocks[place].threads[thread].waits = None;
            self.ready.push(place, thread);
        }
    }

    /// The thread lets others run, though it could go on; `waits` is the change that it polls for,
    /// if any.
    pub fn let_others_run(&mut self, waits: Option<(Point, At)>) {
        let (place, thread) = self.current;
        self.idle_steps += usize::from(waits.is_some());
        self.blocks[place].threads[thread].waits = waits;
        self.ready.push_yielding(place, thread);
    }

    /// A change of the memory at an address.
    pub fn change_at(&self, space: Space, address: u64) -> Result<Point, FaultKind> {
        let (place, address) = self.locate(space, address)?;
        Ok(Point::Change { place: (space != Space::Global).then_some(place), address })
    }

    /// Notes a load; whether the thread has repeated it so often that it must be polling: other
    /// threads have to run then.
    pub fn spins(
        &mut self,
        (space, address): (Space, u64),
        location: At,
    ) -> Result<bool, FaultKind> {
        let same = self.last_load == Some((address, location));
        self.last_load = Some((address, location));
        self.same_loads = if same { self.same_loads + 1 } else { 0 };
        let spins = self.same_loads == SAME_LOADS;
        if spins {
            self.same_loads = 0;
            let change = self.change_at(space, address)?;
            self.let_others_run(Some((change, location)));
        }
        Ok(spins)
    }

    /// The thread reaches a collective of its warp; `None` if it has to wait for other lanes.
    pub fn meet_warp(
        &mut self,
        (instruction, mask): (&'static str, u32),
        words: Words,
        location: At,
        finish: impl FnOnce(&mut [Words; WARP_SIZE]),
    ) -> Result<Option<Words>, FaultKind> {
        let (place, thread) = self.current;
        if mask >> (thread % WARP_SIZE) & 1 == 0 {
            return Err(FaultKind::Invalid(format!(
                "{instruction} with the mask {mask:#010x}, which does not contain the calling \
                 lane {}",
                thread % WARP_SIZE
            )));
        }
        let point = Point::Warp { warp: thread / WARP_SIZE, instruction, mask };
        // This runs for every lane of every collective; `str::contains` takes longer to start.
        if instruction
            .as_bytes()
            .windows(ALIGNED.len())
            .any(|part| part.first_chunk() == Some(ALIGNED))
        {
            self.check_converged(point, instruction, location)?;
        }
        let wanted = (point, mask.count_ones() as usize);
        let met = self.blocks[place].meet(thread, wanted, words, location);
        let Some(mut collective) = met else { return Ok(None) };
        finish(&mut collective.values);
        self.blocks[place].note_pairing(instruction, &collective);
        let arrived = collective.arrived;
        let block = &mut self.blocks[place];
        for thread in arrived.iter() {
            block.threads[thread].result = collective.values[thread % WARP_SIZE];
        }
        block.end_collective(collective);
        order_warp(instruction, arrived, &mut self.clocks[place]);
        self.wake(place, arrived.iter().filter(|&other| other != thread));
        Ok(Some(self.result()))
    }

    /// The result of the last collective for the thread that runs.
    pub fn result(&mut self) -> Words {
        let thread = self.current.1;
        self.block().threads[thread].result
    }

    /// The thread that runs ends, which completes its copies.
    pub fn end_thread(&mut self) -> Result<(), FaultKind> {
        let (place, thread) = self.current;
        self.end_copies()?;
        self.progress();
        if self.grids.is_group()
            && let Some(observed) = self.blocks[place].threads[thread].fences.end()
        {
            self.clock().acquire(&observed);
        }
        let released = self.blocks[place].end_thread(thread, &mut self.clocks[place]);
        self.wake(place, released);
        self.end_of_cluster_thread();
        if self.block().is_done() {
            self.check_end_of_block(place)?;
            if self.block().overlaps && !self.block().waited_for_launches {
                return Err(FaultKind::NeverWaits);
            }
            self.report.bank_conflicts += self.block().remaining_conflicts();
            if self.grids.is_group() {
                self.end_block(place);
            }
        }
        Ok(())
    }
}
