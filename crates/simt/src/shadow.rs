//! Shadow memory: the last accesses of each cell, by which races are found.
//!
//! FastTrack (C. Flanagan, S. Freund, PLDI 2009): a cell holds its last write, and one read of each
//! thread since then. Two accesses, at least one of them a write, that no clock orders are a race,
//! in whatever order the threads happened to run.

use crate::clock::Clock;
use crate::device::Scope;
use crate::fault::Unordered;
use crate::grid::Grids;
use std::panic::Location;

/// Bytes of memory that a page of cells covers.
const PAGE_BYTES: usize = 1024;

/// How memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A load or a store.
    Plain,
    /// An atomic operation of so many bytes: it does not race with other ones of the same bytes, if
    /// the scope of each includes the other's thread.
    Atomic { scope: Scope, bytes: u8 },
    /// An atomic read that has received a message: to reuse its memory, it must be ordered before.
    Received,
    /// An asynchronous copy of the generic proxy (`cp.async`).
    Copy,
    /// The asynchronous proxy: bulk copies, TMA and `wgmma`.
    Proxy,
}

/// One access.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    /// The component that makes it, a thread or an agent, and its block.
    block: u32,
    component: u32,
    epoch: u32,
    /// The thread that makes it, or started the operation that does: its block, and its index
    /// there.
    issuer: (u32, u16),
    mode: Mode,
    pub location: &'static Location<'static>,
}

/// The size of atomic operations that are so of each of their elements.
pub(crate) const OF_ELEMENTS: u8 = 0;

/// The block number of accesses by earlier launches that may still run.
pub(crate) const LAUNCH_BEFORE: u64 = u32::MAX as u64;

/// The same of accesses that are assumed, until the next launch starts.
const ASSUMED: u32 = u32::MAX - 1;

impl Access {
    /// Whether an earlier launch made it.
    pub fn is_of_launch_before(&self) -> bool {
        u64::from(self.block) == LAUNCH_BEFORE
    }

    /// One at `location`, by an earlier launch.
    fn before(location: &'static Location<'static>) -> Self {
        let (block, mode) = (LAUNCH_BEFORE as u32, Mode::Plain);
        Access { block, component: 0, epoch: 1, issuer: (0, 0), mode, location }
    }

    /// The same access, as one of an earlier launch.
    fn in_earlier_launch(self) -> Self {
        Access { issuer: self.issuer, ..Access::before(self.location) }
    }

    /// The thread that makes it, or started the operation that does: its block, and its index
    /// there.
    pub fn issuer(&self) -> (u64, usize) {
        (self.issuer.0.into(), self.issuer.1.into())
    }

    /// What makes it: a component of a block, in one of its epochs.
    pub fn agent(&self) -> Agent {
        let (block, component) = (self.block.into(), self.component as usize);
        Agent { block, component, epoch: self.epoch }
    }

    fn is_atomic(&self) -> bool {
        matches!(self.mode, Mode::Atomic { .. })
    }

    /// Whether it may stand for `earlier` as a read of the same cell.
    fn replaces(&self, earlier: &Access, observer: &Observer<'_>) -> bool {
        (!self.is_atomic() || earlier.is_atomic()) && observer.is_after(earlier)
    }

    /// Whether it is asynchronous.
    pub fn is_asynchronous(&self) -> bool {
        matches!(self.mode, Mode::Copy | Mode::Proxy)
    }
}

/// What accesses memory now, and the clock that says which accesses are ordered before.
#[derive(Clone, Copy)]
pub(crate) struct Observer<'a> {
    /// The thread that makes the access, or started the operation that does: its block, and its
    /// index there.
    pub block: u64,
    pub thread: usize,
    pub grids: &'a Grids,
    /// The thread's.
    pub clock: &'a Clock,
    /// What makes the access, if it is not the thread itself.
    pub agent: Option<Agent>,
    pub mode: Mode,
    pub location: &'static Location<'static>,
}

/// A component that is not a thread, in one of its epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agent {
    /// Block of the component, which may differ from the thread's.
    pub block: u64,
    pub component: usize,
    pub epoch: u32,
}

/// Whether an earlier access is ordered before the current one.
enum Order {
    Before,
    /// It is, except that a proxy fence is missing.
    BeforeInItsProxy,
    Unordered,
}

impl Observer<'_> {
    fn access(&self) -> Access {
        let own = Agent { block: self.block, component: self.thread, epoch: self.clock.own };
        let Agent { block, component, epoch } = self.agent.unwrap_or(own);
        // Grids of more than 2^32 blocks are too large to emulate.
        Access {
            block: block as u32,
            component: component as u32,
            epoch,
            issuer: (self.block as u32, self.thread as u16),
            mode: self.mode,
            location: self.location,
        }
    }

    /// Whether `earlier` is ordered before the current access.
    fn order(&self, earlier: &Access, earlier_writes: bool) -> Order {
        let (block, component) = (u64::from(earlier.block), earlier.component as usize);
        let is_own = block == self.block && component == self.thread;
        if !is_own && self.clock.knows(self.thread, block, component) < earlier.epoch {
            return Order::Unordered;
        }
        let is_generic = !earlier.is_asynchronous() && !earlier.is_of_launch_before();
        let crosses = self.mode == Mode::Proxy && is_generic && earlier_writes;
        if crosses && self.clock.knows_fenced(block, component) < earlier.epoch {
            return Order::BeforeInItsProxy;
        }
        Order::Before
    }

    /// Whether `earlier`, a read, is ordered before the current access.
    fn is_after(&self, earlier: &Access) -> bool {
        matches!(self.order(earlier, false), Order::Before)
    }

    /// Why both are not atomic with respect to each other; `None` if they are.
    fn not_atomic_with(&self, earlier: &Access) -> Option<Unordered> {
        match (self.mode, earlier.mode) {
            (
                Mode::Atomic { scope, bytes },
                Mode::Atomic { scope: its_scope, bytes: its_bytes },
            ) => {
                let (own, other) = (self.block, earlier.block.into());
                if !scope.includes(self.grids, own, other)
                    || !its_scope.includes(self.grids, own, other)
                {
                    Some(Unordered::NarrowScope)
                } else {
                    let differ = ![bytes, its_bytes].contains(&OF_ELEMENTS) && bytes != its_bytes;
                    differ.then_some(Unordered::Sizes)
                }
            }
            (_, Mode::Received) => Some(Unordered::Reused),
            _ => Some(Unordered::Plain),
        }
    }

    /// Finds what is wrong with an access after `earlier`.
    fn check(&self, earlier: &Access, earlier_writes: bool) -> Result<(), Conflict> {
        let Some(why) = self.not_atomic_with(earlier) else { return Ok(()) };
        let unfenced = match self.order(earlier, earlier_writes) {
            Order::Before => return Ok(()),
            Order::BeforeInItsProxy => true,
            Order::Unordered => false,
        };
        Err(Conflict { earlier: *earlier, earlier_writes, unfenced, why })
    }
}

/// An earlier access that is not ordered before the current one.
pub(crate) struct Conflict {
    pub earlier: Access,
    pub earlier_writes: bool,
    /// Whether only a proxy fence is missing.
    pub unfenced: bool,
    /// Why it is a race, if it is one.
    pub why: Unordered,
}

/// The reads of a cell (or its atomic writes) since its last write. A read that is ordered before a
/// later one may be dropped, as whatever is ordered after the later one is ordered after it too. But
/// an atomic one replaces atomic ones only: with atomic writes it needs no order.
#[derive(Clone, Default)]
enum Reads {
    #[default]
    None,
    One(Access),
    Many(Vec<Access>),
}

impl Reads {
    fn add(&mut self, access: Access, observer: &Observer<'_>) {
        match self {
            Reads::None => *self = Reads::One(access),
            Reads::One(earlier) if access.replaces(earlier, observer) => *earlier = access,
            Reads::One(earlier) => *self = Reads::Many(vec![*earlier, access]),
            Reads::Many(all) => {
                if all.len() == all.capacity() {
                    all.retain(|earlier| !access.replaces(earlier, observer));
                    // At least half of the buffer is free after this: the cost of a read is
                    // amortised.
                    all.reserve(all.len().max(4));
                }
                all.push(access);
            }
        }
    }

    /// Clears the reads, but keeps their buffer: a cell that many threads read once is likely to be
    /// so again.
    fn clear(&mut self) {
        match self {
            Reads::Many(all) => all.clear(),
            _ => *self = Reads::None,
        }
    }

    fn all(&self) -> &[Access] {
        match self {
            Reads::None => &[],
            Reads::One(access) => std::slice::from_ref(access),
            Reads::Many(all) => all,
        }
    }
}

#[derive(Clone, Default)]
struct Cell {
    write: Option<Access>,
    reads: Reads,
    /// The atomic writes since the last plain one.
    atomics: Reads,
}

impl Cell {
    fn read(&mut self, access: Access, observer: &Observer<'_>) -> Result<(), Conflict> {
        self.check_writes(observer)?;
        self.reads.add(access, observer);
        Ok(())
    }

    fn write(&mut self, access: Access, observer: &Observer<'_>) -> Result<(), Conflict> {
        self.check_writes(observer)?;
        for earlier in self.reads.all() {
            observer.check(earlier, false)?;
        }
        if access.is_atomic() {
            self.atomics.add(access, observer);
        } else {
            self.write = Some(access);
            self.reads.clear();
            self.atomics.clear();
        }
        Ok(())
    }

    /// All accesses become accesses of an earlier launch. Those that were so already are forgotten,
    /// unless `keeps_older`.
    fn seal(&mut self, keeps_older: bool) {
        let is_kept = |access: &&Access| keeps_older || !access.is_of_launch_before();
        let written = self.write.iter().chain(self.atomics.all()).find(is_kept).copied();
        let read = self.reads.all().iter().find(is_kept).copied();
        self.write = written.map(Access::in_earlier_launch);
        self.atomics = Reads::None;
        self.reads = read.map_or(Reads::None, |read| Reads::One(read.in_earlier_launch()));
    }

    fn check_writes(&self, observer: &Observer<'_>) -> Result<(), Conflict> {
        self.write
            .iter()
            .chain(self.atomics.all())
            .try_for_each(|earlier| observer.check(earlier, true))
    }
}

/// The cells of `PAGE_BYTES` bytes: as large as possible while every access covers whole cells.
struct Page {
    cells: Vec<Cell>,
    /// Base-2 logarithm of a cell's size in bytes.
    log_bytes_per_cell: u32,
}

impl Page {
    fn new(log_bytes_per_cell: u32) -> Self {
        Page { cells: vec![Cell::default(); PAGE_BYTES >> log_bytes_per_cell], log_bytes_per_cell }
    }

    /// Divides every cell into smaller ones, each with a copy of its accesses.
    fn refine(&mut self, log_bytes_per_cell: u32) {
        let parts = 1 << (self.log_bytes_per_cell - log_bytes_per_cell);
        let cells = std::mem::take(&mut self.cells).into_iter();
        self.cells = cells.flat_map(|cell| std::iter::repeat_n(cell, parts)).collect();
        self.log_bytes_per_cell = log_bytes_per_cell;
    }

    /// The cells of the bytes from `start` to `end`.
    fn cells(&mut self, start: usize, end: usize) -> &mut [Cell] {
        let log_align = (start | end).trailing_zeros();
        if log_align < self.log_bytes_per_cell {
            self.refine(log_align);
        }
        &mut self.cells[start >> self.log_bytes_per_cell..end >> self.log_bytes_per_cell]
    }
}

/// The cells of a region of memory; those of a page are made when it is first accessed.
#[derive(Default)]
pub(crate) struct Shadow {
    pages: Vec<Option<Box<Page>>>,
}

impl Shadow {
    /// All noted accesses: offset, access, and whether it is a write.
    pub fn accesses(&self) -> impl Iterator<Item = (usize, &Access, bool)> {
        let pages = self.pages.iter().enumerate();
        let pages = pages.filter_map(|(number, page)| Some((number * PAGE_BYTES, page.as_ref()?)));
        pages.flat_map(|(start, page)| {
            let cells = page.cells.iter().enumerate();
            cells.flat_map(move |(number, cell)| {
                let writes =
                    cell.write.iter().chain(cell.atomics.all()).map(|access| (access, true));
                let reads = cell.reads.all().iter().map(|access| (access, false));
                let at = start + (number << page.log_bytes_per_cell);
                writes.chain(reads).map(move |(access, writes)| (at, access, writes))
            })
        })
    }

    /// Forgets all accesses.
    pub fn clear(&mut self) {
        self.pages.clear();
    }

    /// All accesses become accesses of an earlier launch. Those that were so already are forgotten,
    /// unless `keeps_older`.
    pub fn seal(&mut self, keeps_older: bool) {
        let cells = self.pages.iter_mut().flatten().flat_map(|page| &mut page.cells);
        cells.for_each(|cell| cell.seal(keeps_older));
    }

    /// Notes a write of all `len` bytes by an earlier launch.
    pub fn assume_written(&mut self, len: usize, location: &'static Location<'static>) {
        let write = Some(Access { block: ASSUMED, ..Access::before(location) });
        let page = || {
            let mut page = Page::new(PAGE_BYTES.trailing_zeros());
            page.cells.iter_mut().for_each(|cell| cell.write = write);
            Some(Box::new(page))
        };
        self.pages = std::iter::repeat_with(page).take(len.div_ceil(PAGE_BYTES)).collect();
    }

    /// Notes a read of `len` bytes at `start`.
    pub fn read(
        &mut self,
        start: usize,
        len: usize,
        observer: &Observer<'_>,
    ) -> Result<(), Conflict> {
        let access = observer.access();
        self.each_cell(start, len, |cell| cell.read(access, observer))
    }

    /// Notes that an atomic read of `len` bytes at `start`, noted before, has received a message.
    pub fn receive(&mut self, start: usize, len: usize, observer: &Observer<'_>) {
        let access = observer.access();
        let noted = self.each_cell(start, len, |cell| {
            cell.reads.add(access, observer);
            Ok(())
        });
        debug_assert!(noted.is_ok());
    }

    /// Notes a write of `len` bytes at `start`.
    pub fn write(
        &mut self,
        start: usize,
        len: usize,
        observer: &Observer<'_>,
    ) -> Result<(), Conflict> {
        let access = observer.access();
        self.each_cell(start, len, |cell| cell.write(access, observer))
    }

    /// Calls `f` with every cell of the bytes.
    fn each_cell(
        &mut self,
        start: usize,
        len: usize,
        mut f: impl FnMut(&mut Cell) -> Result<(), Conflict>,
    ) -> Result<(), Conflict> {
        let end = start + len;
        if self.pages.len() * PAGE_BYTES < end {
            self.pages.resize_with(end.div_ceil(PAGE_BYTES), || None);
        }
        let mut at = start;
        while at < end {
            let page_start = at / PAGE_BYTES * PAGE_BYTES;
            let (first, last) = (at - page_start, PAGE_BYTES.min(end - page_start));
            let page = self.pages[at / PAGE_BYTES].get_or_insert_with(|| {
                Box::new(Page::new((PAGE_BYTES | first | last).trailing_zeros()))
            });
            page.cells(first, last).iter_mut().try_for_each(&mut f)?;
            at = page_start + last;
        }
        Ok(())
    }
}
