//! Memory: named buffers of bytes, with wide gaps between them.

use crate::fault::Place;
use crate::shadow::Shadow;
use gpu_types::ALIGN_BYTES;
use std::panic::Location;

/// Address of the first buffer.
const FIRST_ADDRESS: u64 = 1 << 32;

/// Unused bytes after each buffer, at least.
const GUARD_BYTES: u64 = 1 << 24;

/// The value of an uninitialised byte: four of them are a NaN.
const POISON: u8 = 0xff;

/// What a new buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init<'a> {
    /// So many uninitialised bytes: to read one before it is written is a fault.
    Poisoned(usize),
    /// These bytes.
    Bytes(&'a [u8]),
}

/// Why the host cannot read or write memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    /// The bytes are not inside of one buffer.
    OutOfBounds {
        /// Address of the first.
        address: u64,
        /// How many they are.
        bytes: usize,
        /// The address in the last buffer before it; `None` if there is none.
        near: Option<Place>,
    },
    /// Nothing has written a byte that is read.
    Unwritten {
        /// The first such byte.
        place: Place,
    },
}

impl std::fmt::Display for MemoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemoryError::OutOfBounds { bytes, near: Some(near), .. } => {
                let Place { name, offset, len } = near;
                write!(f, "{bytes} bytes at `{name}` + {offset}: the buffer has {len}")
            }
            MemoryError::OutOfBounds { address, bytes, near: None } => {
                write!(f, "{bytes} bytes at {address:#x}: no buffer is there")
            }
            MemoryError::Unwritten { place } => {
                write!(f, "the byte at {place} is read, and nothing has written it")
            }
        }
    }
}

impl std::error::Error for MemoryError {}

/// A buffer, or an array of a block's shared memory.
pub(crate) struct Region {
    pub name: String,
    pub start: u64,
    pub bytes: Vec<u8>,
    /// Whether the byte was written.
    pub initialised: Vec<bool>,
    pub shadow: Shadow,
}

impl Region {
    pub fn poisoned(name: String, start: u64, len: usize) -> Self {
        Region {
            name,
            start,
            bytes: vec![POISON; len],
            initialised: vec![false; len],
            shadow: Shadow::default(),
        }
    }

    /// Offset of `len` bytes at `address`, if they are inside.
    pub fn offset(&self, address: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        (offset.checked_add(len)? <= self.bytes.len()).then_some(offset)
    }

    /// Writes `bytes` at `offset`.
    pub fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.initialised[offset..offset + bytes.len()].fill(true);
    }

    /// Makes these bytes uninitialised.
    pub fn poison(&mut self, at: std::ops::Range<usize>) {
        self.bytes[at.clone()].fill(POISON);
        self.initialised[at].fill(false);
    }

    pub fn place(&self, address: u64) -> Place {
        Place { name: self.name.clone(), offset: address - self.start, len: self.bytes.len() }
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// Regions in the order of their addresses.
#[derive(Default)]
pub(crate) struct Regions(Vec<Region>);

impl Regions {
    /// The region of an access at `address`: the last one that starts at or before it.
    pub fn at(&self, address: u64) -> Option<&Region> {
        self.0.get(self.index(address)?)
    }

    /// As [`Regions::at`], mutable.
    pub fn at_mut(&mut self, address: u64) -> Option<&mut Region> {
        let index = self.index(address)?;
        self.0.get_mut(index)
    }

    /// Where an address is, for a report.
    pub fn describe(&self, address: u64) -> String {
        let region = self.at(address);
        region.map_or_else(|| format!("{address:#x}"), |region| region.place(address).to_string())
    }

    fn index(&self, address: u64) -> Option<usize> {
        self.0.partition_point(|region| region.start <= address).checked_sub(1)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.0.iter()
    }

    /// Adds a region after all others.
    pub fn push(&mut self, region: Region) {
        self.0.push(region);
    }

    /// The end of the last one.
    pub fn end(&self) -> Option<u64> {
        self.0.last().map(Region::end)
    }
}

/// A device's global memory.
#[derive(Default)]
pub struct Memory {
    pub(crate) regions: Regions,
    /// Whether the next launch may start before the last one has ended.
    overlaps: bool,
    /// Whether a block has let the next launch start before it had waited for earlier ones.
    pub(crate) triggered_early: bool,
}

impl Memory {
    /// Without buffers.
    pub fn new() -> Self {
        Memory::default()
    }

    /// Allocates a buffer, named so in reports; gives its address, a multiple of 256.
    pub fn alloc(&mut self, name: impl Into<String>, init: Init<'_>) -> u64 {
        let start = self
            .regions
            .end()
            .map_or(FIRST_ADDRESS, |end| (end + GUARD_BYTES).next_multiple_of(ALIGN_BYTES as u64));
        let len = match init {
            Init::Poisoned(len) => len,
            Init::Bytes(bytes) => bytes.len(),
        };
        let mut region = Region::poisoned(name.into(), start, len);
        if let Init::Bytes(bytes) = init {
            region.bytes.copy_from_slice(bytes);
            region.initialised.fill(true);
        }
        self.regions.push(region);
        start
    }

    /// Bytes of all buffers.
    pub fn allocated_bytes(&self) -> usize {
        self.regions.iter().map(|region| region.bytes.len()).sum()
    }

    /// The bytes at `address`.
    ///
    /// # Errors
    /// - [`MemoryError::OutOfBounds`] if they are not inside of one buffer;
    /// - [`MemoryError::Unwritten`] if nothing has written one of them: neither the host nor a
    ///   kernel.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let (region, offset) = self.find(address, bytes.len())?;
        let written = &region.initialised[offset..offset + bytes.len()];
        if let Some(first) = written.iter().position(|written| !written) {
            return Err(MemoryError::Unwritten { place: region.place(address + first as u64) });
        }
        bytes.copy_from_slice(&region.bytes[offset..offset + bytes.len()]);
        Ok(())
    }

    /// The bytes at `address`, as [`Memory::read`], but 0xff where nothing has written one: for a
    /// look at what a kernel leaves alone.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if they are not inside of one buffer.
    pub fn read_or_poison(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let (region, offset) = self.find(address, bytes.len())?;
        bytes.copy_from_slice(&region.bytes[offset..offset + bytes.len()]);
        Ok(())
    }

    /// The buffer that `len` bytes at `address` are in, and where they start there.
    fn find(&self, address: u64, len: usize) -> Result<(&Region, usize), MemoryError> {
        let error = |near| MemoryError::OutOfBounds { address, bytes: len, near };
        let region = self.regions.at(address).ok_or_else(|| error(None))?;
        let offset = region.offset(address, len);
        Ok((region, offset.ok_or_else(|| error(Some(region.place(address))))?))
    }

    /// Writes `bytes` at `address`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if they are not inside of one buffer.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let error = |near| MemoryError::OutOfBounds { address, bytes: bytes.len(), near };
        let region = self.regions.at_mut(address).ok_or_else(|| error(None))?;
        let offset = region
            .offset(address, bytes.len())
            .ok_or_else(|| error(Some(region.place(address))))?;
        region.fill(offset, bytes);
        Ok(())
    }

    /// Makes all bytes of the buffer at `address` uninitialised, as in a new one.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if no buffer is there.
    pub fn poison(&mut self, address: u64) -> Result<(), MemoryError> {
        let region = self.regions.at_mut(address);
        let region = region.ok_or(MemoryError::OutOfBounds { address, bytes: 0, near: None })?;
        region.poison(0..region.bytes.len());
        Ok(())
    }

    /// The next launch may start before earlier ones have ended (programmatic dependent launch).
    /// Accesses of theirs are ordered before a thread of it only once that thread has executed
    /// `griddepcontrol.wait`, or has synchronised with one that has. Some thread of each block
    /// must: else the launch could end before earlier ones.
    ///
    /// All accesses of the launches before the previous one are ordered before it, as the previous
    /// one let it start (`griddepcontrol.launch_dependents`) when it had waited for them; unless a
    /// block of it did so before it had waited.
    pub fn overlap_next_launch(&mut self) {
        self.overlaps = true;
    }

    /// As if an earlier launch had written the buffer at `address`, at the caller's line: to test a
    /// single launch that overlaps with others.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if no buffer is there.
    #[track_caller]
    pub fn assume_written(&mut self, address: u64) -> Result<(), MemoryError> {
        let region = self.regions.at_mut(address);
        let region = region.ok_or(MemoryError::OutOfBounds { address, bytes: 0, near: None })?;
        region.shadow.assume_written(region.bytes.len(), Location::caller());
        Ok(())
    }

    /// Whether the next launch may start before earlier ones have ended.
    pub(crate) fn overlaps_next_launch(&self) -> bool {
        self.overlaps
    }

    /// Starts a launch. If it does not overlap with earlier ones, their accesses are ordered before
    /// it and are forgotten. Gives whether it overlaps.
    pub(crate) fn start_launch(&mut self) -> bool {
        let overlaps = std::mem::take(&mut self.overlaps);
        let triggered_early = std::mem::take(&mut self.triggered_early);
        let regions = self.regions.0.iter_mut();
        if overlaps {
            regions.for_each(|region| region.shadow.seal(triggered_early));
        } else {
            regions.for_each(|region| region.shadow.clear());
        }
        overlaps
    }
}
