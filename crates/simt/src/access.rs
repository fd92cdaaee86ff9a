//! Memory accesses and their checks.

use crate::clock::Clock;
use crate::fault::{FaultKind, MemoryAccess, Party, Unordered};
use crate::grid::Grids;
use crate::machine::{At, Machine, Space};
use crate::memory::Region;
use crate::shadow::{Agent, Conflict, Mode, Observer};

/// The bytes of an access.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub space: Space,
    pub address: u64,
    pub len: usize,
    /// The alignment that the address needs.
    pub align: usize,
    pub writes: bool,
}

impl Span {
    pub fn read(space: Space, address: u64, len: usize, align: usize) -> Self {
        Span { space, address, len, align, writes: false }
    }

    pub fn write(space: Space, address: u64, len: usize, align: usize) -> Self {
        Span { space, address, len, align, writes: true }
    }
}

/// What makes an access on behalf of the thread that runs.
#[derive(Clone, Copy)]
pub(crate) struct By {
    pub agent: Option<Agent>,
    pub mode: Mode,
    pub location: At,
}

impl By {
    /// The thread itself.
    pub fn thread(location: At) -> Self {
        By { agent: None, mode: Mode::Plain, location }
    }
}

/// Bytes that are accessed: where they are, and what accesses them.
pub(crate) struct Target<'a> {
    pub region: &'a mut Region,
    pub offset: usize,
    observer: Observer<'a>,
    grids: &'a Grids,
    /// Whether a thread of its block has met a release, and one of the scopes was too narrow.
    narrow: bool,
    span: Span,
}

impl Target<'_> {
    fn access(&self) -> Box<MemoryAccess> {
        let Span { address, len, writes, .. } = self.span;
        let buffer = Some(self.region.place(address));
        Box::new(MemoryAccess { writes, bytes: len, buffer, address })
    }

    /// Checks the access against earlier ones, and notes it.
    pub fn note(&mut self) -> Result<(), FaultKind> {
        let (shadow, len) = (&mut self.region.shadow, self.span.len);
        let noted = if self.span.writes {
            shadow.write(self.offset, len, &self.observer)
        } else {
            shadow.read(self.offset, len, &self.observer)
        };
        noted.map_err(|conflict| self.fault(&conflict))
    }

    /// Notes that an atomic read, which was noted before, has received a message.
    pub fn note_reception(&mut self) {
        self.region.shadow.receive(self.offset, self.span.len, &self.observer);
    }

    /// Checks that every byte was written.
    pub fn check_initialised(&self) -> Result<(), FaultKind> {
        let bytes = self.offset..self.offset + self.span.len;
        if self.region.initialised[bytes].contains(&false) {
            return Err(FaultKind::Uninitialised(self.access()));
        }
        Ok(())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.region.bytes[self.offset..self.offset + self.span.len]
    }

    pub fn fill(&mut self, bytes: &[u8]) {
        self.region.fill(self.offset, bytes);
    }

    /// Makes the bytes uninitialised.
    pub fn poison(&mut self) {
        self.region.poison(self.offset..self.offset + self.span.len);
    }

    fn fault(&self, conflict: &Conflict) -> FaultKind {
        let &Conflict { earlier, earlier_writes, unfenced, why } = conflict;
        let access = self.access();
        if earlier.is_of_launch_before() {
            let location = earlier.location.to_string().into();
            return FaultKind::Dependency { access, location, writes: earlier_writes };
        }
        let other: Box<Party> = Box::new(self.grids.party(earlier.issuer(), earlier.location));
        if unfenced {
            FaultKind::Unfenced { access, other }
        } else if earlier.is_asynchronous() {
            FaultKind::NotWaitedFor { access, started: other, writes: earlier_writes }
        } else {
            let (own, its) = (self.observer.block, earlier.issuer().0);
            let why = match why {
                Unordered::Plain if self.grids.are_of_one_stream(own, its) => Unordered::Launches,
                Unordered::Plain if self.narrow => Unordered::NarrowRelease,
                why => why,
            };
            FaultKind::Race { access, other, other_writes: earlier_writes, why }
        }
    }
}

impl Machine {
    /// The slot of the block that a shared address is in, and the address there.
    pub fn locate(&self, space: Space, address: u64) -> Result<(usize, u64), FaultKind> {
        match space {
            Space::Cluster => self.locate_in_cluster(address),
            Space::Global | Space::Shared => Ok((self.current.0, address)),
        }
    }

    /// Checks bounds and alignment of an access.
    pub fn target(&mut self, span: Span, by: By) -> Result<Target<'_>, FaultKind> {
        let (place, address) = self.locate(span.space, span.address)?;
        self.target_in(place, Span { address, ..span }, by)
    }

    /// As [`Machine::target`]; shared memory is that of the block in slot `holder`.
    pub fn target_in(
        &mut self,
        holder: usize,
        span: Span,
        by: By,
    ) -> Result<Target<'_>, FaultKind> {
        let Span { space, address, len, align, writes } = span;
        let (grids, (place, thread)) = (&*self.grids, self.current);
        let block = self.blocks[place].index;
        let narrow = self.blocks[place].met_narrow_scope;
        let clock: &Clock = &self.clocks[place][thread];
        let regions = match space {
            Space::Global => &mut self.memory.regions,
            Space::Shared | Space::Cluster => &mut self.blocks[holder].shared,
        };
        let access = |buffer| Box::new(MemoryAccess { writes, bytes: len, buffer, address });
        let Some(region) = regions.at_mut(address) else {
            return Err(FaultKind::OutOfBounds(access(None)));
        };
        let Some(offset) = region.offset(address, len) else {
            return Err(FaultKind::OutOfBounds(access(Some(region.place(address)))));
        };
        if !address.is_multiple_of(align as u64) {
            let access = access(Some(region.place(address)));
            return Err(FaultKind::Misaligned { access, align });
        }
        let By { agent, mode, location } = by;
        let observer = Observer { block, thread, grids, clock, agent, mode, location };
        Ok(Target { region, offset, observer, grids, narrow, span })
    }

    /// The region that `address` is in, which an earlier access has found.
    pub fn region(
        &mut self,
        place: usize,
        space: Space,
        address: u64,
    ) -> Result<&mut Region, FaultKind> {
        let regions = match space {
            Space::Global => &mut self.memory.regions,
            Space::Shared | Space::Cluster => &mut self.blocks[place].shared,
        };
        let gone = || FaultKind::Invalid(format!("the memory at {address:#x} no longer exists"));
        regions.at_mut(address).ok_or_else(gone)
    }

    /// A block must not end while asynchronous operations, or other threads of its cluster, access
    /// its shared memory.
    pub fn check_end_of_block(&self, place: usize) -> Result<(), FaultKind> {
        let (block, clocks) = (&self.blocks[place], &self.clocks[place]);
        let mut known = None;
        for region in block.shared.iter() {
            for (offset, access, writes) in region.shadow.accesses() {
                let agent = access.agent();
                let Agent { block: home, component, epoch } = agent;
                let is_own = home == block.index && component < clocks.len();
                // One access of many words is checked once.
                if is_own || known == Some(agent) {
                    continue;
                }
                let knows =
                    |(thread, clock): (_, &Clock)| clock.knows(thread, home, component) >= epoch;
                if !clocks.iter().enumerate().any(knows) {
                    let place = Box::new(region.place(region.start + offset as u64));
                    let other = self.grids.party(access.issuer(), access.location);
                    let other = Box::new(other);
                    return Err(FaultKind::EndsEarly { place, other, writes });
                }
                known = Some(agent);
            }
        }
        Ok(())
    }

    fn count(&mut self, span: Span, location: At) {
        self.report.accesses += 1;
        if span.space == Space::Shared {
            let thread = self.current.1;
            let bytes = (span.address, span.len);
            self.report.bank_conflicts += self.block().count_conflicts(thread, location, bytes);
        }
    }

    /// Reads `out.len()` bytes.
    pub fn load(&mut self, span: Span, out: &mut [u8], location: At) -> Result<(), FaultKind> {
        let target = self.read(span, location)?;
        target.check_initialised()?;
        out.copy_from_slice(target.bytes());
        Ok(())
    }

    /// Reads `out.len()` bytes, written or not.
    pub fn speculate(&mut self, span: Span, out: &mut [u8], location: At) -> Result<(), FaultKind> {
        out.copy_from_slice(self.read(span, location)?.bytes());
        Ok(())
    }

    fn read(&mut self, span: Span, location: At) -> Result<Target<'_>, FaultKind> {
        self.count(span, location);
        let mut target = self.target(span, By::thread(location))?;
        target.note()?;
        Ok(target)
    }

    /// Writes `bytes`.
    pub fn store(&mut self, span: Span, bytes: &[u8], location: At) -> Result<(), FaultKind> {
        self.count(span, location);
        self.progress();
        let mut target = self.target(span, By::thread(location))?;
        target.note()?;
        target.fill(bytes);
        Ok(())
    }
}
