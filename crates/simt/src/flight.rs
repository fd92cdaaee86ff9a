//! Bulk copies and asynchronous stores: what they access, and when they complete.
//!
//! All accesses of a copy are noted when it starts, as those of its agent: so an access to its
//! bytes without a wait is found whatever the order. It completes later, at a moment drawn from the
//! seed; until then its destination is poisoned.

use crate::access::{By, Span};
use crate::agent::Role;
use crate::clock::Knowledge;
use crate::device::Reduce;
use crate::fault::{Fault, FaultKind};
use crate::machine::{At, Machine, Space};
use crate::mbarrier::Id;
use crate::shadow::{Agent, Mode};
use crate::tensor::Element;

/// Bytes of a copy that are contiguous in source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Source of the bytes; `None` for zeros, or for [`Order::values`].
    pub src: Option<u64>,
    pub dst: u64,
    pub len: usize,
}

/// What a copy does.
pub(crate) struct Order {
    pub src: Space,
    /// The slot of the block that the destination is in, and its window; or global memory.
    pub dst: (usize, Space),
    pub pieces: Vec<Piece>,
    /// The bytes of a store from registers, which is one piece.
    pub values: Option<Vec<u8>>,
    /// How it is combined with the destination's value.
    pub reduce: Option<(Reduce, Element)>,
}

/// A copy in flight.
pub(crate) struct Flight {
    number: u64,
    /// The thread that started it: the slot of its block, its index there, and the source line.
    by: ((usize, usize), At),
    /// The slot of the block that its bytes come from.
    src: (Space, usize),
    order: Order,
    /// The mbarrier that it signals, and the bytes that it adds there.
    signals: Option<(Id, u32)>,
    knowledge: Knowledge,
}

impl Machine {
    /// The agent of the open bulk group of the thread that runs.
    pub fn bulk_agent(&mut self, role: fn(usize) -> Role, mode: Mode, location: At) -> By {
        let thread = self.current.1;
        let block = self.block();
        let component = block.agents.component(role(thread));
        let epoch = block.threads[thread].bulk.epoch();
        By { agent: Some(Agent { block: block.index, component, epoch }), mode, location }
    }

    /// Starts a copy with the accesses of `reader` and `writer`; gives its number.
    pub fn start_flight(
        &mut self,
        order: Order,
        (reader, writer): (By, By),
        signals: Option<(Id, u32)>,
    ) -> Result<u64, FaultKind> {
        self.report.accesses += 1;
        self.progress();
        let current = self.current;
        for &Piece { src, dst, len } in &order.pieces {
            if let Some(src) = src {
                self.target(Span::read(order.src, src, len, 1), reader)?.note()?;
            }
            let (place, space) = order.dst;
            let mut target = self.target_in(place, Span::write(space, dst, len, 1), writer)?;
            target.note()?;
            if order.reduce.is_none() {
                target.poison();
            }
        }
        let knowledge = self.clock().release(current.1);
        self.num_flights += 1;
        let number = self.num_flights;
        let src = (order.src, current.0);
        let by = (current, writer.location);
        self.flights.push(Flight { number, by, src, order, signals, knowledge });
        Ok(number)
    }

    /// Completes the copy of this number, if it is in flight.
    pub fn land(&mut self, number: u64) -> Result<(), FaultKind> {
        let index = self.flights.iter().position(|flight| flight.number == number);
        index.map_or(Ok(()), |index| self.land_at(index))
    }

    /// Completes one of the copies in flight, drawn from the seed.
    pub fn land_any(&mut self) -> Result<(), Fault> {
        let index = self.rng.below(self.flights.len());
        let (_, location) = self.flights[index].by;
        let landed = self.land_at(index);
        landed.map_err(|kind| self.fault(kind, format!("{location}, when its copy completes")))
    }

    fn land_at(&mut self, index: usize) -> Result<(), FaultKind> {
        let Flight { by: (thread, _), src, order, signals, knowledge, .. } =
            self.flights.swap_remove(index);
        // Faults are attributed to the thread that started the copy.
        let running = std::mem::replace(&mut self.current, thread);
        for piece in &order.pieces {
            self.move_piece(src, &order, piece)?;
        }
        if let Some((id, bytes)) = signals {
            self.mbarrier_receive(id, bytes, &knowledge)?;
        }
        self.current = running;
        Ok(())
    }

    fn move_piece(
        &mut self,
        (space, from): (Space, usize),
        order: &Order,
        piece: &Piece,
    ) -> Result<(), FaultKind> {
        let &Piece { src, dst, len } = piece;
        let (bytes, initialised) = match src {
            None => {
                let bytes = order.values.clone().unwrap_or_else(|| vec![0; len]);
                (bytes, vec![true; len])
            }
            Some(src) => self.peek((from, space), src, len)?,
        };
        let (place, space) = order.dst;
        let mut bytes = bytes;
        if let Some((reduce, element)) = order.reduce {
            let (old, was_initialised) = self.peek((place, space), dst, len)?;
            if was_initialised.contains(&false) {
                let why = "a reduction to uninitialised memory";
                return Err(FaultKind::Invalid(why.to_owned()));
            }
            bytes = element.reduce(reduce, &old, &bytes);
        }
        let region = self.region(place, space, dst)?;
        let at = (dst - region.start) as usize..(dst - region.start) as usize + len;
        region.bytes[at.clone()].copy_from_slice(&bytes);
        region.initialised[at].copy_from_slice(&initialised);
        Ok(())
    }

    /// The bytes there, and which of them are initialised.
    fn peek(
        &mut self,
        (place, space): (usize, Space),
        address: u64,
        len: usize,
    ) -> Result<(Vec<u8>, Vec<bool>), FaultKind> {
        let region = self.region(place, space, address)?;
        let at = (address - region.start) as usize..(address - region.start) as usize + len;
        Ok((region.bytes[at.clone()].to_vec(), region.initialised[at].to_vec()))
    }

    /// Waits until at most `pending` of the thread's bulk groups are pending, or until the others
    /// have read their sources.
    pub fn wait_bulk(&mut self, pending: usize, read_only: bool) -> Result<(), FaultKind> {
        let thread = self.current.1;
        let block = self.block();
        let reads = block.agents.component(Role::BulkReads(thread));
        let writes = block.agents.component(Role::BulkWrites(thread));
        let bulk = &mut block.threads[thread].bulk;
        if read_only {
            let done = (bulk.epoch() - 1).saturating_sub(pending as u32);
            let flights: Vec<u64> = bulk.up_to(done).copied().collect();
            flights.into_iter().try_for_each(|flight| self.land(flight))?;
            self.clock().learn(reads, done);
            return Ok(());
        }
        let (epoch, flights) = bulk.wait(pending);
        for flight in flights {
            self.land(flight)?;
        }
        self.clock().learn(reads, epoch);
        self.clock().learn(writes, epoch);
        Ok(())
    }

    /// A phase of an mbarrier must not end before the copies that signal it have completed.
    pub fn check_flights_of(&self, id: Id) -> Result<(), FaultKind> {
        let of_it = |flight: &&Flight| flight.signals.is_some_and(|(signalled, _)| signalled == id);
        match self.flights.iter().find(of_it) {
            None => Ok(()),
            Some(flight) => Err(FaultKind::Invalid(format!(
                "a phase of the mbarrier at {} ends while a copy that signals it is in flight, \
                 whose bytes it does not expect (mbarrier.expect_tx); {} started it",
                self.blocks[id.0].shared.describe(id.1),
                self.party_of(flight)
            ))),
        }
    }

    fn party_of(&self, flight: &Flight) -> String {
        let ((place, thread), location) = flight.by;
        let index = self.blocks[place].index;
        self.grids.party((index, thread), location).to_string()
    }
}
