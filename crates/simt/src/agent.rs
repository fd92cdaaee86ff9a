//! Agents: they make the accesses of asynchronous operations. Each is a component of the block's
//! vector clocks.

use std::collections::{HashMap, VecDeque};

use crate::clock::WARP_SIZE;

/// What an agent does, and for which thread, mbarrier or warpgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// The `cp.async` copies of a thread.
    Copies(usize),
    /// The reads of a thread's bulk groups.
    BulkReads(usize),
    /// The writes of a thread's bulk groups.
    BulkWrites(usize),
    /// The copies whose bytes the mbarrier at this address counts; its epochs are the barrier's
    /// phases.
    Bytes(u64),
    /// The `wgmma` operations of a warpgroup.
    Products(usize),
}

/// The agents of a block, numbered after its threads.
pub(crate) struct Agents {
    first: usize,
    numbers: HashMap<Role, usize>,
}

impl Agents {
    pub fn new(num_threads: usize) -> Self {
        // In a warp without threads.
        Agents { first: num_threads.next_multiple_of(WARP_SIZE), numbers: HashMap::new() }
    }

    /// Components of the block's clocks: its threads and their agents.
    pub fn num_components(&self) -> usize {
        self.first + self.numbers.len()
    }

    /// The agent's component of the block's clocks.
    pub fn component(&mut self, role: Role) -> usize {
        let next = self.first + self.numbers.len();
        *self.numbers.entry(role).or_insert(next)
    }
}

/// A thread's groups of asynchronous operations: those that are committed, and the open one. An
/// agent's epoch is the number of a group, from 1.
pub(crate) struct Groups<T> {
    closed: VecDeque<(u32, Vec<T>)>,
    open: Vec<T>,
    epoch: u32,
}

impl<T> Default for Groups<T> {
    fn default() -> Self {
        Groups { closed: VecDeque::new(), open: Vec::new(), epoch: 1 }
    }
}

impl<T> Groups<T> {
    /// The epoch of the open group.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// An operation of the open group.
    pub fn push(&mut self, operation: T) {
        self.open.push(operation);
    }

    /// Closes the open group, even if it is empty.
    pub fn commit(&mut self) {
        self.closed.push_back((self.epoch, std::mem::take(&mut self.open)));
        self.epoch += 1;
    }

    /// Takes all groups but the newest `pending`: the newest epoch among them, and their
    /// operations.
    pub fn wait(&mut self, pending: usize) -> (u32, Vec<T>) {
        let mut done = (0, Vec::new());
        while self.closed.len() > pending {
            let Some((epoch, operations)) = self.closed.pop_front() else { break };
            done.0 = epoch;
            done.1.extend(operations);
        }
        done
    }

    /// Takes all operations; those that follow are of a later epoch.
    pub fn take(&mut self) -> (u32, Vec<T>) {
        let epoch = self.epoch;
        self.epoch += 1;
        let (_, mut operations) = self.wait(0);
        operations.append(&mut self.open);
        (epoch, operations)
    }

    /// The operations of closed groups up to `epoch`, which stay.
    pub fn up_to(&self, epoch: u32) -> impl Iterator<Item = &T> {
        let closed = self.closed.iter().filter(move |(closed, _)| *closed <= epoch);
        closed.flat_map(|(_, operations)| operations)
    }
}
