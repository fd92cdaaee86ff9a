//! The launches that run together: one, or those of several devices' streams.

use std::panic::Location;

use crate::device::Scope;
use crate::fault::{InStream, Party};
use crate::layout::Layout;

/// A launch.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub kernel: &'static str,
    pub layout: Layout,
    /// The device that it runs on, and its number in that device's stream.
    pub device: usize,
    pub number: usize,
    /// Whether earlier launches of the stream may still run.
    pub overlaps: bool,
}

/// All of them. Their blocks are numbered consecutively.
pub(crate) struct Grids(pub Vec<Grid>);

impl Grids {
    /// The launch that a block belongs to.
    pub fn of(&self, block: u64) -> &Grid {
        match self.0.as_slice() {
            [only] => only,
            grids => &grids[grids.partition_point(|grid| grid.layout.first_block <= block) - 1],
        }
    }

    /// Whether there may be several devices.
    pub fn is_group(&self) -> bool {
        self.0.len() > 1
    }

    /// Whether two blocks are of different launches of one device.
    pub fn are_of_one_stream(&self, a: u64, b: u64) -> bool {
        let (a, b) = (self.of(a), self.of(b));
        a.device == b.device && a.number != b.number
    }

    /// A thread, by the numbers of its block and of itself, at a line of its kernel.
    pub fn party(&self, (block, thread): (u64, usize), location: &Location<'_>) -> Party {
        self.party_at((block, thread), location.to_string())
    }

    /// As [`Grids::party`], at a place that has no line.
    pub fn party_at(&self, (block, thread): (u64, usize), location: String) -> Party {
        let Grid { layout, device, number, .. } = *self.of(block);
        Party {
            launch: self
                .is_group()
                .then_some(InStream { device: device as u16, number: number as u16 }),
            block: layout.block_idx(block),
            thread: layout.thread_idx(thread),
            location,
        }
    }
}

impl Scope {
    /// Whether it includes threads of both blocks.
    pub(crate) fn includes(self, grids: &Grids, a: u64, b: u64) -> bool {
        a == b
            || match self {
                Scope::Block => false,
                Scope::Cluster => {
                    grids.of(a).layout.cluster_of(a) == grids.of(b).layout.cluster_of(b)
                }
                Scope::Gpu => grids.of(a).device == grids.of(b).device,
                Scope::System => true,
            }
    }
}
