//! Who accessed a word of memory last: how races are found.
//!
//! FastTrack (C. Flanagan, S. Freund, PLDI 2009): a word remembers its last write, and the reads
//! since then, one a thread. An access that finds an earlier one of another thread, one of the two
//! a write, with nothing that orders them, is a race: it is found whatever the order in which the
//! threads happened to run.

use crate::clock::Clock;
use std::panic::Location;

/// The epoch of an asynchronous copy's accesses until the copy is waited for: ordered before
/// nothing.
const PENDING: u32 = u32::MAX;

/// Bytes of memory that a page of cells covers.
const PAGE_BYTES: usize = 1024;

/// One access.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    /// The thread, counted through the grid.
    pub thread: u64,
    /// The thread's epoch.
    epoch: u32,
    pub location: &'static Location<'static>,
}

impl Access {
    /// Whether it is one of an asynchronous copy that is not waited for.
    pub fn is_pending(&self) -> bool {
        self.epoch == PENDING
    }
}

/// The accessing thread, and what it knows.
#[derive(Clone, Copy)]
pub(crate) struct Observer<'a> {
    /// The block's first thread, counted through the grid.
    pub block_start: u64,
    /// The thread's index in its block.
    pub thread: usize,
    pub clocks: &'a [Clock],
    pub location: &'static Location<'static>,
}

impl Observer<'_> {
    fn access(&self, pending: bool) -> Access {
        Access {
            thread: self.block_start + self.thread as u64,
            epoch: if pending { PENDING } else { self.clocks[self.thread].own },
            location: self.location,
        }
    }

    /// Whether `earlier` is ordered before what the thread does now.
    fn is_after(&self, earlier: &Access) -> bool {
        if earlier.is_pending() {
            return false;
        }
        let Some(other) = earlier.thread.checked_sub(self.block_start) else { return false };
        let other = other as usize;
        other == self.thread
            || other < self.clocks.len()
                && self.clocks[self.thread].knows(self.thread, other) >= earlier.epoch
    }
}

/// What an access found: an earlier one that nothing orders before it.
pub(crate) struct Conflict {
    pub earlier: Access,
    pub earlier_writes: bool,
}

/// The reads of a word since its last write; those that are ordered before a later one may be
/// missing, as what comes after the later one comes after them too.
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
            Reads::One(earlier) if observer.is_after(earlier) => *earlier = access,
            Reads::One(earlier) => *self = Reads::Many(vec![*earlier, access]),
            Reads::Many(all) => {
                if all.len() == all.capacity() {
                    all.retain(|earlier| !observer.is_after(earlier));
                    // At least half of the room is free then: a read costs the same, however many
                    // there are.
                    all.reserve(all.len().max(4));
                }
                all.push(access);
            }
        }
    }

    /// Forgets all; keeps the room for many, which a word that many read once will need again.
    fn clear(&mut self) {
        match self {
            Reads::Many(all) => all.clear(),
            _ => *self = Reads::None,
        }
    }

    fn all(&mut self) -> &mut [Access] {
        match self {
            Reads::None => &mut [],
            Reads::One(access) => std::slice::from_mut(access),
            Reads::Many(all) => all,
        }
    }
}

#[derive(Clone, Default)]
struct Cell {
    write: Option<Access>,
    reads: Reads,
}

/// Cells of `PAGE_BYTES` bytes: one a word, or one a byte once an access is not of whole words.
struct Page {
    cells: Vec<Cell>,
    bytes_per_cell: usize,
}

impl Page {
    fn new() -> Self {
        Page { cells: vec![Cell::default(); PAGE_BYTES / 4], bytes_per_cell: 4 }
    }

    fn refine(&mut self) {
        let cells = std::mem::take(&mut self.cells);
        self.cells = cells.into_iter().flat_map(|cell| std::iter::repeat_n(cell, 4)).collect();
        self.bytes_per_cell = 1;
    }
}

/// The cells of a region of memory; those of a page are made when it is first accessed.
#[derive(Default)]
pub(crate) struct Shadow {
    pages: Vec<Option<Box<Page>>>,
}

impl Shadow {
    /// Forgets all accesses.
    pub fn clear(&mut self) {
        self.pages.clear();
    }

    /// Notes a read of `len` bytes at `start`; `pending` if an asynchronous copy makes it.
    pub fn read(
        &mut self,
        start: usize,
        len: usize,
        observer: &Observer<'_>,
        pending: bool,
    ) -> Result<(), Conflict> {
        let access = observer.access(pending);
        self.each_cell(start, len, |cell| {
            if let Some(earlier) = cell.write.filter(|earlier| !observer.is_after(earlier)) {
                return Err(Conflict { earlier, earlier_writes: true });
            }
            cell.reads.add(access, observer);
            Ok(())
        })
    }

    /// Notes a write of `len` bytes at `start`; `pending` if an asynchronous copy makes it.
    pub fn write(
        &mut self,
        start: usize,
        len: usize,
        observer: &Observer<'_>,
        pending: bool,
    ) -> Result<(), Conflict> {
        let access = observer.access(pending);
        self.each_cell(start, len, |cell| {
            if let Some(earlier) = cell.write.filter(|earlier| !observer.is_after(earlier)) {
                return Err(Conflict { earlier, earlier_writes: true });
            }
            let unordered = |earlier: &&mut Access| !observer.is_after(earlier);
            if let Some(&mut earlier) = cell.reads.all().iter_mut().find(unordered) {
                return Err(Conflict { earlier, earlier_writes: false });
            }
            cell.write = Some(access);
            cell.reads.clear();
            Ok(())
        })
    }

    /// The thread has waited for one of its asynchronous copies that reads or writes here: from now
    /// on its access is one of this epoch.
    pub fn complete(&mut self, start: usize, len: usize, writes: bool, observer: &Observer<'_>) {
        let done = observer.access(false);
        let is_it = |access: &&mut Access| access.thread == done.thread && access.is_pending();
        let _: Result<(), Conflict> = self.each_cell(start, len, |cell| {
            let accesses = if writes { cell.write.as_mut_slice() } else { cell.reads.all() };
            if let Some(access) = accesses.iter_mut().find(is_it) {
                access.epoch = done.epoch;
            }
            Ok(())
        });
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
            let page_end = end.min(page_start + PAGE_BYTES);
            let page = self.pages[at / PAGE_BYTES].get_or_insert_with(|| Box::new(Page::new()));
            if page.bytes_per_cell > 1 && !(at.is_multiple_of(4) && page_end.is_multiple_of(4)) {
                page.refine();
            }
            let cells = (at - page_start) / page.bytes_per_cell
                ..(page_end - page_start) / page.bytes_per_cell;
            page.cells[cells].iter_mut().try_for_each(&mut f)?;
            at = page_end;
        }
        Ok(())
    }
}
