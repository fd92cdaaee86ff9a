//! `cp.async`: copies of a thread from global to shared memory, in groups or ended by an mbarrier.

use crate::access::{By, Span};
use crate::agent::Role;
use crate::fault::FaultKind;
use crate::machine::{At, Machine, Space};
use crate::shadow::{Agent, Mode};

/// A copy that a thread has started.
pub(crate) struct Copy {
    dst: u64,
    dst_len: usize,
    src: u64,
    src_len: usize,
    /// Whether the bytes are moved already.
    moved: bool,
    location: At,
}

impl Copy {
    /// Aligned as a whole copy is, however much of it is read.
    fn source(&self) -> Span {
        Span::read(Space::Global, self.src, self.src_len, self.dst_len)
    }

    fn destination(&self) -> Span {
        Span::write(Space::Shared, self.dst, self.dst_len, self.dst_len)
    }
}

impl Machine {
    /// Starts an asynchronous copy of `src_len` bytes, zero-filled to `dst_len`.
    ///
    /// The seed decides whether the bytes are moved now or at the wait. No thread can see the
    /// difference, as until then an access to `dst` or a write to `src` is a fault.
    pub fn copy_async(
        &mut self,
        (dst, dst_len): (u64, usize),
        (src, src_len): (u64, usize),
        location: At,
    ) -> Result<(), FaultKind> {
        self.report.accesses += 1;
        self.progress();
        let mut copy = Copy { dst, dst_len, src, src_len, moved: false, location };
        let by = self.copies_agent(location);
        if src_len > 0 {
            let mut source = self.target(copy.source(), by)?;
            source.note()?;
            source.check_initialised()?;
        }
        self.target(copy.destination(), by)?.note()?;
        if self.rng.flip() {
            self.move_copy(&copy, by)?;
            copy.moved = true;
        }
        let thread = self.current.1;
        self.block().threads[thread].copies.push(copy);
        Ok(())
    }

    fn copies_agent(&mut self, location: At) -> By {
        let thread = self.current.1;
        let block = self.block();
        let component = block.agents.component(Role::Copies(thread));
        let epoch = block.threads[thread].copies.epoch();
        let agent = Some(Agent { block: block.index, component, epoch });
        By { agent, mode: Mode::Copy, location }
    }

    /// Closes the group of the thread's copies.
    pub fn commit_copies(&mut self) {
        let thread = self.current.1;
        self.block().threads[thread].copies.commit();
    }

    /// Waits until at most `pending` groups of the thread's copies are pending.
    pub fn wait_copies(&mut self, pending: usize) -> Result<(), FaultKind> {
        let thread = self.current.1;
        let done = self.block().threads[thread].copies.wait(pending);
        self.complete_copies(done)
    }

    /// All copies that the thread has started are done.
    pub fn end_copies(&mut self) -> Result<(), FaultKind> {
        let thread = self.current.1;
        let done = self.block().threads[thread].copies.take();
        self.complete_copies(done)
    }

    fn complete_copies(&mut self, (epoch, copies): (u32, Vec<Copy>)) -> Result<(), FaultKind> {
        if epoch == 0 || copies.is_empty() {
            return Ok(());
        }
        for copy in copies.iter().filter(|copy| !copy.moved) {
            let by = self.copies_agent(copy.location);
            self.move_copy(copy, by)?;
        }
        let thread = self.current.1;
        let component = self.block().agents.component(Role::Copies(thread));
        self.clock().learn(component, epoch);
        Ok(())
    }

    fn move_copy(&mut self, copy: &Copy, by: By) -> Result<(), FaultKind> {
        let mut bytes = vec![0; copy.dst_len];
        if copy.src_len > 0 {
            let target = self.target(copy.source(), by)?;
            bytes[..copy.src_len].copy_from_slice(target.bytes());
        }
        self.target(copy.destination(), by)?.fill(&bytes);
        Ok(())
    }
}
