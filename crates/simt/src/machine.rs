//! The state of a launch that runs, and what each instruction does to it.

use crate::block::{Block, Copy, Point, Words};
use crate::clock::WARP_SIZE;
use crate::fault::{Fault, FaultKind, MemoryAccess, Party, Waiting};
use crate::geometry::Geometry;
use crate::memory::{Memory, Region};
use crate::rng::Rng;
use crate::shadow::{Conflict, Observer};
use std::panic::Location;

type At = &'static Location<'static>;

/// Which memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The device's memory.
    Global,
    /// The block's shared memory.
    Shared,
    /// The shared memory of the cluster's blocks: an address of `map_shared`, or of the own block.
    Cluster,
}

/// Bytes to be accessed.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub space: Space,
    pub address: u64,
    pub len: usize,
    /// What the address must be a multiple of.
    pub align: usize,
    pub writes: bool,
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Threads that ran.
    pub threads: u64,
    /// Loads and stores of global and of shared memory; an asynchronous copy is one.
    pub accesses: u64,
    /// Passes over the banks of shared memory that loads and stores of a warp take beyond the
    /// fewest that their words need.
    pub bank_conflicts: u64,
}

/// A launch that runs.
pub(crate) struct Machine {
    kernel: &'static str,
    pub geometry: Geometry,
    pub memory: Memory,
    /// Resident blocks.
    pub blocks: Vec<Block>,
    /// Threads that can go on: block, as an index of `blocks`, and thread.
    pub runnable: Vec<(usize, usize)>,
    /// The thread that runs.
    pub current: (usize, usize),
    pub rng: Rng,
    pub report: Report,
}

/// Bytes that are accessed: where they are, and who accesses them.
struct Target<'a> {
    region: &'a mut Region,
    offset: usize,
    observer: Observer<'a>,
    geometry: Geometry,
    span: Span,
}

impl Target<'_> {
    fn access(&self) -> Box<MemoryAccess> {
        let Span { address, len, writes, .. } = self.span;
        let buffer = Some(self.region.place(address));
        Box::new(MemoryAccess { writes, bytes: len, buffer, address })
    }

    /// Checks the access against those before, and notes it.
    fn note(&mut self, pending: bool) -> Result<(), FaultKind> {
        let (shadow, len) = (&mut self.region.shadow, self.span.len);
        let noted = if self.span.writes {
            shadow.write(self.offset, len, &self.observer, pending)
        } else {
            shadow.read(self.offset, len, &self.observer, pending)
        };
        noted.map_err(|Conflict { earlier, earlier_writes }| {
            let other = Box::new(self.geometry.party(earlier.thread, earlier.location));
            let access = self.access();
            if earlier.is_pending() {
                FaultKind::AsyncCopy { access, copy: other, copy_writes: earlier_writes }
            } else {
                FaultKind::Race { access, other, other_writes: earlier_writes }
            }
        })?;
        let bytes = self.offset..self.offset + len;
        if !self.span.writes && self.region.initialised[bytes].contains(&false) {
            return Err(FaultKind::Uninitialised(self.access()));
        }
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        &self.region.bytes[self.offset..self.offset + self.span.len]
    }
}

impl Machine {
    pub fn new(kernel: &'static str, geometry: Geometry, memory: Memory, seed: u64) -> Self {
        Machine {
            kernel,
            geometry,
            memory,
            blocks: Vec::new(),
            runnable: Vec::new(),
            current: (0, 0),
            rng: Rng::new(seed),
            report: Report::default(),
        }
    }

    /// The fault of the thread that runs.
    pub fn fault(&self, kind: FaultKind, location: String) -> Fault {
        let (block, thread) = self.current;
        let by = Party {
            block: self.geometry.block_idx(self.blocks[block].index),
            thread: self.geometry.thread_idx(thread),
            location,
        };
        Fault { kernel: self.kernel.to_owned(), by: Some(by), kind }
    }

    /// The fault of nobody alone.
    pub fn refuse(&self, kind: FaultKind) -> Fault {
        Fault { kernel: self.kernel.to_owned(), by: None, kind }
    }

    /// Who waits for what.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.blocks.iter().flat_map(|block| block.waiting(&self.geometry)).collect()
    }

    pub fn block(&mut self) -> &mut Block {
        &mut self.blocks[self.current.0]
    }

    /// Checks where the bytes are, and that they can be accessed as one.
    fn target(&mut self, span: Span, location: At) -> Result<Target<'_>, FaultKind> {
        let Span { space, address, len, align, writes } = span;
        let (geometry, (block, thread)) = (self.geometry, self.current);
        let Block { index, clocks, shared, .. } = &mut self.blocks[block];
        let regions = match space {
            Space::Global => &mut self.memory.regions,
            Space::Shared | Space::Cluster => shared,
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
        let block_start = *index * clocks.len() as u64;
        let observer = Observer { block_start, thread, clocks, location };
        Ok(Target { region, offset, observer, geometry, span })
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
        self.count(span, location);
        let mut target = self.target(span, location)?;
        target.note(false)?;
        out.copy_from_slice(target.bytes());
        Ok(())
    }

    /// Writes `bytes`.
    pub fn store(&mut self, span: Span, bytes: &[u8], location: At) -> Result<(), FaultKind> {
        self.count(span, location);
        let mut target = self.target(span, location)?;
        target.note(false)?;
        target.region.fill(target.offset, bytes);
        Ok(())
    }

    /// Starts an asynchronous copy of `src_len` bytes, filled up with zeros to `dst_len`.
    ///
    /// The bytes are moved now or when the copy is waited for, as the seed says. That no thread can
    /// tell is the rest: until then `dst` cannot be accessed and `src` cannot be written.
    pub fn copy_async(
        &mut self,
        (dst, dst_len): (u64, usize),
        (src, src_len): (u64, usize),
        location: At,
    ) -> Result<(), FaultKind> {
        self.report.accesses += 1;
        if src_len > 0 {
            self.target(source(src, src_len), location)?.note(true)?;
        }
        let mut target = self.target(destination(dst, dst_len), location)?;
        target.note(true)?;
        let offset = target.offset;
        target.region.initialised[offset..offset + dst_len].fill(true);
        let mut copy = Copy { dst, dst_len, src, src_len, moved: false, location };
        if self.rng.flip() {
            self.move_bytes(&copy)?;
            copy.moved = true;
        }
        let thread = self.current.1;
        self.block().threads[thread].open_group.push(copy);
        Ok(())
    }

    /// Waits until at most `pending` groups of the thread's copies are under way.
    pub fn wait_groups(&mut self, pending: usize) -> Result<(), FaultKind> {
        let thread = self.current.1;
        while self.block().threads[thread].groups.len() > pending {
            let group = self.block().threads[thread].groups.pop_front();
            self.complete(group.unwrap_or_default())?;
        }
        Ok(())
    }

    /// The thread that runs ends, and with it its copies.
    pub fn end_thread(&mut self) -> Result<(), FaultKind> {
        self.wait_groups(0)?;
        let (block, thread) = self.current;
        let open_group = std::mem::take(&mut self.block().threads[thread].open_group);
        self.complete(open_group)?;
        let released = self.block().end_thread(thread);
        if self.block().is_done() {
            self.report.bank_conflicts += self.block().remaining_conflicts();
        }
        self.runnable.extend(released.into_iter().map(|thread| (block, thread)));
        Ok(())
    }

    fn complete(&mut self, copies: Vec<Copy>) -> Result<(), FaultKind> {
        for copy in copies {
            if !copy.moved {
                self.move_bytes(&copy)?;
            }
            for span in [destination(copy.dst, copy.dst_len), source(copy.src, copy.src_len)] {
                if span.len > 0 {
                    let Target { region, offset, observer, .. } =
                        self.target(span, copy.location)?;
                    region.shadow.complete(offset, span.len, span.writes, &observer);
                }
            }
        }
        Ok(())
    }

    fn move_bytes(&mut self, copy: &Copy) -> Result<(), FaultKind> {
        let mut bytes = vec![0; copy.dst_len];
        if copy.src_len > 0 {
            let target = self.target(source(copy.src, copy.src_len), copy.location)?;
            bytes[..copy.src_len].copy_from_slice(target.bytes());
        }
        let target = self.target(destination(copy.dst, copy.dst_len), copy.location)?;
        target.region.fill(target.offset, &bytes);
        Ok(())
    }

    /// The thread reaches a point where others have to arrive; `None` if it has to wait for them.
    pub fn meet(
        &mut self,
        point: Point,
        words: Words,
        location: At,
        finish: impl FnOnce(&mut [Words; WARP_SIZE]),
    ) -> Option<Words> {
        let (block, thread) = self.current;
        let released = self.block().meet(thread, point, words, location, finish)?;
        self.runnable.extend(released.into_iter().map(|thread| (block, thread)));
        Some(self.result())
    }

    /// What the last collective gave to the thread that runs.
    pub fn result(&mut self) -> Words {
        let thread = self.current.1;
        self.block().threads[thread].result
    }
}

fn source(address: u64, len: usize) -> Span {
    Span { space: Space::Global, address, len, align: len.max(1), writes: false }
}

fn destination(address: u64, len: usize) -> Span {
    Span { space: Space::Shared, address, len, align: len, writes: true }
}
