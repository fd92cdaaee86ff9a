//! mbarriers: counts of arrivals and bytes, and what a phase orders.

use crate::access::{By, Span};
use crate::agent::Role;
use crate::clock::Knowledge;
use crate::device::Scope;
use crate::fault::FaultKind;
use crate::machine::{At, Machine, Space};
use crate::point::Point;
use crate::shadow::{Agent, Mode};

/// Bytes of an mbarrier.
const BYTES: usize = 8;

/// Most arrivals and most bytes that a phase can wait for.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// The opaque content of an mbarrier in shared memory.
const CONTENT: [u8; BYTES] = *b"mbarrier";

/// One mbarrier.
pub(crate) struct Mbarrier {
    /// Arrivals of a phase.
    count: u32,
    /// Arrivals that the phase still waits for.
    pending: u32,
    /// Bytes that it still waits for.
    bytes: i64,
    /// Completed phases.
    phase: u32,
    /// The agent of the copies that signal it.
    agent: usize,
    /// The clocks of all arrivals so far, and of those up to the last completed phase.
    gathered: Knowledge,
    completed: Knowledge,
    /// Threads that wait: slot of the block, and thread.
    waiting: Vec<(usize, usize)>,
}

impl Mbarrier {
    pub fn describe(&self) -> String {
        let Mbarrier { count, pending, bytes, phase, .. } = self;
        format!(
            "it is in phase {phase} (parity {}), with {pending} of {count} arrivals and {bytes} \
             bytes missing",
            phase % 2
        )
    }

    fn has_ended(&self, parity: u32) -> bool {
        self.phase % 2 != parity % 2
    }
}

/// An mbarrier: the slot of its block, and its address there.
pub(crate) type Id = (usize, u64);

impl Machine {
    /// A new mbarrier of the own block.
    pub fn mbarrier_init(
        &mut self,
        address: u32,
        count: u32,
        location: At,
    ) -> Result<(), FaultKind> {
        if !(1..=MAX_COUNT).contains(&count) {
            let why = format!("an mbarrier of {count} arrivals: 1 to {MAX_COUNT} are possible");
            return Err(FaultKind::Invalid(why));
        }
        let address = u64::from(address);
        let span = Span::write(Space::Shared, address, BYTES, BYTES);
        let mut target = self.target(span, By::thread(location))?;
        target.note()?;
        target.fill(&CONTENT);
        let (place, block) = (self.current.0, self.block());
        let (home, agent) = (block.index, block.agents.component(Role::Bytes(address)));
        let epochs = block.mbarriers.get(&address).map_or(0, |old| old.phase + old.phase % 2 + 2);
        if block.mbarriers.get(&address).is_some_and(|old| !old.waiting.is_empty()) {
            let why = "an mbarrier is initialised again while threads wait at it";
            return Err(FaultKind::Invalid(why.to_owned()));
        }
        let new = Mbarrier {
            count,
            pending: count,
            bytes: 0,
            // A new one starts with parity 0; the agent's epochs continue.
            phase: epochs,
            agent,
            gathered: Knowledge::new(home),
            completed: Knowledge::new(home),
            waiting: Vec::new(),
        };
        self.blocks[place].mbarriers.insert(address, new);
        Ok(())
    }

    /// Removes the mbarrier at `address` of the own block.
    pub fn mbarrier_inval(&mut self, address: u32, location: At) -> Result<(), FaultKind> {
        let id = self.mbarrier(Space::Shared, address, location)?;
        let span = Span::write(Space::Shared, id.1, BYTES, BYTES);
        self.target(span, By::thread(location))?.note()?;
        // Its number of phases is kept for the next one at this address.
        self.get(id).count = 0;
        Ok(())
    }

    /// The mbarrier at `address`, whose initialisation must be ordered before the thread.
    pub fn mbarrier(&mut self, space: Space, address: u32, location: At) -> Result<Id, FaultKind> {
        let by =
            By { agent: None, mode: Mode::Atomic { scope: Scope::Cluster, bytes: 8 }, location };
        self.mbarrier_for(space, address, by)
    }

    /// As [`Machine::mbarrier`], for an asynchronous copy that signals it.
    pub fn mbarrier_for(&mut self, space: Space, address: u32, by: By) -> Result<Id, FaultKind> {
        let address = u64::from(address);
        let mut target = self.target(Span::read(space, address, BYTES, BYTES), by)?;
        target.note()?;
        let is_one = target.bytes() == CONTENT;
        let id = self.locate(space, address)?;
        let known = self.blocks[id.0].mbarriers.get(&id.1);
        if is_one && known.is_some_and(|mbarrier| mbarrier.count > 0) {
            return Ok(id);
        }
        let at = self.blocks[id.0].shared.describe(id.1);
        Err(FaultKind::Invalid(format!("there is no mbarrier at {at}: mbarrier.init makes one")))
    }

    /// Publishes the thread's new mbarriers to asynchronous copies, and to threads that pass the
    /// cluster's next barrier. Here this orders all that the thread did before, which is more than
    /// the ISA promises.
    pub fn fence_mbarrier_init(&mut self) {
        let (place, thread) = self.current;
        let clock = self.clock();
        clock.fence_proxy(thread);
        let knowledge = clock.release(thread);
        self.blocks[place].threads[thread].made_mbarriers = Some(knowledge);
    }

    fn get(&mut self, (place, address): Id) -> &mut Mbarrier {
        self.blocks[place].mbarriers.get_mut(&address).expect("`mbarrier` has found it")
    }

    /// The agent of the copies that signal it, in the current phase.
    pub fn bytes_agent(&mut self, id: Id) -> Agent {
        let block = self.blocks[id.0].index;
        let mbarrier = self.get(id);
        Agent { block, component: mbarrier.agent, epoch: mbarrier.phase + 1 }
    }

    /// The phase waits for `bytes` more.
    pub fn mbarrier_expect(&mut self, id: Id, bytes: u32) -> Result<(), FaultKind> {
        self.add_bytes(id, i64::from(bytes))
    }

    fn add_bytes(&mut self, id: Id, bytes: i64) -> Result<(), FaultKind> {
        let mbarrier = self.get(id);
        mbarrier.bytes += bytes;
        if mbarrier.bytes.unsigned_abs() > u64::from(MAX_COUNT) {
            let why = format!("an mbarrier counts at most {MAX_COUNT} bytes: {}", mbarrier.bytes);
            return Err(FaultKind::Invalid(why));
        }
        Ok(())
    }

    /// `count` arrivals with the clock `knowledge`; gives their phase.
    pub fn mbarrier_arrive(
        &mut self,
        id: Id,
        count: u32,
        knowledge: &Knowledge,
    ) -> Result<u64, FaultKind> {
        let &mut Mbarrier { phase, pending, count: all, .. } = self.get(id);
        if count == 0 || count > pending {
            let at = self.blocks[id.0].shared.describe(id.1);
            return Err(FaultKind::Invalid(format!(
                "{count} arrivals at the mbarrier at {at}, whose phase expects {pending} more of \
                 {all}"
            )));
        }
        let mbarrier = self.get(id);
        mbarrier.pending -= count;
        mbarrier.gathered.join(knowledge);
        self.complete_phase(id)?;
        Ok(phase.into())
    }

    /// One more arrival is expected in this phase.
    pub fn mbarrier_expect_arrival(&mut self, id: Id) {
        self.get(id).pending += 1;
    }

    /// `bytes` have arrived, by a copy with the clock `knowledge`.
    pub fn mbarrier_receive(
        &mut self,
        id: Id,
        bytes: u32,
        knowledge: &Knowledge,
    ) -> Result<(), FaultKind> {
        self.add_bytes(id, -i64::from(bytes))?;
        self.get(id).gathered.join(knowledge);
        self.complete_phase(id)
    }

    /// Completes the phase if nothing is missing.
    fn complete_phase(&mut self, id: Id) -> Result<(), FaultKind> {
        let mbarrier = self.get(id);
        if mbarrier.pending > 0 || mbarrier.bytes != 0 {
            return Ok(());
        }
        mbarrier.phase += 1;
        mbarrier.pending = mbarrier.count;
        let (agent, phase) = (mbarrier.agent, mbarrier.phase);
        mbarrier.gathered.known.raise(agent, phase);
        mbarrier.completed = mbarrier.gathered.clone();
        let waiting = std::mem::take(&mut mbarrier.waiting);
        self.idle_steps = 0;
        for (place, thread) in waiting {
            self.wake(place, [thread]);
        }
        self.check_flights_of(id)
    }

    /// Whether the phase of this parity is complete; if so, the thread acquires what was released
    /// there. If not, and it `waits`, it has to be suspended.
    pub fn mbarrier_test(
        &mut self,
        id: Id,
        parity: u32,
        waits: bool,
        location: At,
    ) -> Result<bool, FaultKind> {
        let current = self.current;
        let mbarrier = self.get(id);
        if mbarrier.has_ended(parity) {
            let completed = mbarrier.completed.clone();
            self.clock().acquire(&completed);
            return Ok(true);
        }
        let (place, address) = id;
        let point = Point::Mbarrier { place, address, parity };
        if waits {
            mbarrier.waiting.push(current);
            self.wait(point, location);
        } else {
            self.let_others_run(Some((point, location)));
        }
        Ok(false)
    }
}
