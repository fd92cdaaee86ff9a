//! The shape of a launch, and where its threads stand in it.

use crate::fault::Party;
use std::panic::Location;

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Largest grid in x, y, z; every CUDA device has these limits.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// Largest block in x, y, z, and in all.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_THREADS: u64 = 1024;

/// Most shared memory of a block: an H200's.
pub(crate) const MAX_SHARED_BYTES: u32 = 227 * 1024;

impl Geometry {
    /// Why a device would refuse the launch.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Geometry { grid, block, shared_bytes } = *self;
        for (what, shape, limits) in [("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)] {
            if shape.contains(&0) || shape.iter().zip(&limits).any(|(size, limit)| size > limit) {
                return Err(format!("a {what} of {shape:?}: from 1 to {limits:?} are possible"));
            }
        }
        if self.threads_per_block() as u64 > MAX_THREADS {
            return Err(format!(
                "a block of {block:?} threads: at most {MAX_THREADS} are possible"
            ));
        }
        if shared_bytes > MAX_SHARED_BYTES {
            return Err(format!(
                "{shared_bytes} bytes of shared memory: a block has at most {MAX_SHARED_BYTES}"
            ));
        }
        Ok(())
    }

    /// Threads of a block.
    pub(crate) fn threads_per_block(&self) -> usize {
        self.block.iter().map(|&size| size as usize).product()
    }

    /// Blocks of the grid.
    pub(crate) fn num_blocks(&self) -> u64 {
        self.grid.iter().map(|&size| u64::from(size)).product()
    }

    /// Index in the grid of the block that is counted `block`th.
    pub(crate) fn block_idx(&self, block: u64) -> [u32; 3] {
        unravel(block, self.grid)
    }

    /// Index in its block of the thread that is counted `thread`th there.
    pub(crate) fn thread_idx(&self, thread: usize) -> [u32; 3] {
        unravel(thread as u64, self.block)
    }

    /// The thread counted `thread`th through the grid.
    pub(crate) fn party(&self, thread: u64, location: &Location<'_>) -> Party {
        let threads = self.threads_per_block() as u64;
        Party {
            block: self.block_idx(thread / threads),
            thread: self.thread_idx((thread % threads) as usize),
            location: location.to_string(),
        }
    }
}

/// The coordinates of the element counted `index`th, x first.
fn unravel(index: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x), u64::from(y));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}
