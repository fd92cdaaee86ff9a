//! Atomic operations and fences, and what they order.

use std::collections::HashMap;

use crate::access::{By, Span};
use crate::clock::Knowledge;
use crate::device::{Order, Scope};
use crate::fault::FaultKind;
use crate::machine::{At, Machine, Space};
use crate::shadow::Mode;

/// What was released, by address: of global memory, or of the shared memory of a block.
pub(crate) type Variables = HashMap<(Option<u64>, u64), Vec<Released>>;

/// What the threads of a block have released to a scope.
pub(crate) struct Released {
    block: u64,
    scope: Scope,
    knowledge: Knowledge,
}

/// What a thread's next relaxed atomic write releases, and what its next fence acquires.
#[derive(Default)]
pub(crate) struct Fences {
    /// The thread's clock at its last fence, which relaxed atomic writes release; and the fence's
    /// scope.
    released: Option<(Scope, Knowledge)>,
    /// What relaxed atomic reads have seen, which a fence acquires.
    observed: Option<Knowledge>,
}

impl Fences {
    /// The fence that is where an earlier launch of the stream ends, or the wait for that: relaxed
    /// atomic writes release what `before` holds.
    pub fn start_after(&mut self, before: &Knowledge) {
        self.released = Some((Scope::System, before.clone()));
    }

    /// The fence that is at the launch's end.
    pub fn end(&mut self) -> Option<Knowledge> {
        self.observed.take()
    }
}

impl Machine {
    /// An atomic operation; gives the old value.
    pub fn atomic(
        &mut self,
        (space, address): (Space, u64),
        len: usize,
        (order, scope): (Order, Scope),
        update: impl FnOnce(u64) -> Option<u64>,
        location: At,
    ) -> Result<u64, FaultKind> {
        let (old, by) = self.read_atomic((space, address), len, scope, location)?;
        let new = update(old);
        if let Some(new) = new {
            let mut target = self.target(Span::write(space, address, len, len), by)?;
            target.note()?;
            target.fill(&new.to_le_bytes()[..len]);
            if new != old {
                self.progress();
            }
        }
        let variable = self.variable((space, address))?;
        self.read_variable(variable, (order, scope));
        if new.is_some() {
            self.write_variable(variable, (order, scope));
        }
        Ok(old)
    }

    /// A relaxed load of system scope: the value if it is the wanted one. Only then does it count as
    /// seen what was released there.
    pub fn poll(
        &mut self,
        (space, address): (Space, u64),
        len: usize,
        is_wanted: impl FnOnce(u64) -> bool,
        location: At,
    ) -> Result<Option<u64>, FaultKind> {
        let (value, _) = self.read_atomic((space, address), len, Scope::System, location)?;
        if !is_wanted(value) {
            return Ok(None);
        }
        let variable = self.variable((space, address))?;
        self.read_variable(variable, (Order::Relaxed, Scope::System));
        Ok(Some(value))
    }

    fn read_atomic(
        &mut self,
        (space, address): (Space, u64),
        len: usize,
        scope: Scope,
        location: At,
    ) -> Result<(u64, By), FaultKind> {
        self.report.accesses += 1;
        let mode = Mode::Atomic { scope, bytes: len as u8 };
        let by = By { agent: None, mode, location };
        let mut target = self.target(Span::read(space, address, len, len), by)?;
        target.note()?;
        target.check_initialised()?;
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(target.bytes());
        Ok((u64::from_le_bytes(bytes), by))
    }

    /// The key of what is released at an address.
    fn variable(&self, (space, address): (Space, u64)) -> Result<(Option<u64>, u64), FaultKind> {
        let (place, local) = self.locate(space, address)?;
        Ok(((space != Space::Global).then(|| self.blocks[place].index), local))
    }

    /// Notes that an atomic read of the thread has received a message.
    pub fn receive(
        &mut self,
        (space, address): (Space, u64),
        len: usize,
        location: At,
    ) -> Result<(), FaultKind> {
        let by = By { agent: None, mode: Mode::Received, location };
        self.target(Span::read(space, address, len, len), by)?.note_reception();
        Ok(())
    }

    fn read_variable(&mut self, variable: (Option<u64>, u64), (order, scope): (Order, Scope)) {
        let (place, thread) = self.current;
        let own = self.blocks[place].index;
        for Released { block, scope: its, knowledge } in
            self.variables.get(&variable).into_iter().flatten()
        {
            let synchronises =
                its.includes(&self.grids, *block, own) && scope.includes(&self.grids, own, *block);
            if !synchronises {
                self.blocks[place].met_narrow_scope = true;
                continue;
            }
            if matches!(order, Order::Acquire | Order::AcqRel) {
                self.clocks[place][thread].acquire(knowledge);
            } else {
                let observed = &mut self.blocks[place].threads[thread].fences.observed;
                observed.get_or_insert_with(|| Knowledge::new(own)).join(knowledge);
            }
        }
    }

    fn write_variable(&mut self, variable: (Option<u64>, u64), (order, scope): (Order, Scope)) {
        let (place, thread) = self.current;
        let block = self.blocks[place].index;
        let released = if matches!(order, Order::Release | Order::AcqRel) {
            Some((scope, self.clock().release(thread)))
        } else {
            self.blocks[place].threads[thread].fences.released.clone()
        };
        let Some((scope, knowledge)) = released else { return };
        let all = self.variables.entry(variable).or_default();
        match all.iter_mut().find(|released| (released.block, released.scope) == (block, scope)) {
            Some(released) => released.knowledge.join(&knowledge),
            None => all.push(Released { block, scope, knowledge }),
        }
    }

    /// `fence.acq_rel`.
    pub fn fence(&mut self, scope: Scope) {
        let (place, thread) = self.current;
        if let Some(observed) = self.blocks[place].threads[thread].fences.observed.take() {
            self.clock().acquire(&observed);
        }
        let known = self.clock().release(thread);
        self.blocks[place].threads[thread].fences.released = Some((scope, known));
    }
}
