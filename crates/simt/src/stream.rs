//! The launches of a device, one after the other.

use std::ops::Range;
use std::rc::Rc;

use crate::clock::{Clock, Knowledge};
use crate::fault::Fault;
use crate::layout::Layout;
use crate::machine::Machine;
use crate::rng::Rng;

/// Most threads of a device that are resident at a time; a block is resident as a whole.
const MAX_RESIDENT_THREADS: usize = 2048;

/// For how many steps of the threads a launch may be late. One of these is drawn, so that devices
/// start together, or one of them is ahead by part of a launch or by several.
const DELAYS: [u32; 4] = [0, 0, 500, 20_000];

/// A device's stream.
pub(crate) struct Stream {
    /// Launches that have not started, by their numbers among all launches.
    pending: Range<usize>,
    /// Steps until the next one starts.
    delay: u32,
    running: Option<Running>,
}

/// A launch that has started.
struct Running {
    launch: usize,
    layout: Layout,
    next_cluster: u64,
    /// Blocks that have started and have not ended.
    resident: usize,
}

impl Stream {
    pub fn new(launches: Range<usize>) -> Self {
        Stream { pending: launches, delay: 0, running: None }
    }

    /// Whether the stream waits to start a launch.
    pub fn is_late(&self) -> bool {
        self.running.is_none() && !self.pending.is_empty()
    }

    /// Whether all launches have ended.
    pub fn is_done(&self) -> bool {
        self.running.is_none() && self.pending.is_empty()
    }

    /// Draws when the next launch starts.
    pub fn draw_delay(&mut self, rng: &mut Rng) {
        self.delay = DELAYS[rng.below(DELAYS.len())];
    }

    /// The next launch starts now.
    pub fn hurry(&mut self) {
        self.delay = 0;
    }

    /// A step passes; the launch that starts now, if any.
    pub fn next_launch(&mut self) -> Option<usize> {
        if self.delay > 0 {
            self.delay -= 1;
            return None;
        }
        self.pending.next()
    }

    /// Starts the launch of this number.
    pub fn start(&mut self, launch: usize, layout: Layout) {
        let next_cluster = layout.first_block;
        self.running = Some(Running { launch, layout, next_cluster, resident: 0 });
    }

    /// The launch and the cluster that become resident now, if there is room; for one cluster there
    /// always is.
    pub fn next_cluster(&mut self) -> Option<(usize, Layout, u64)> {
        let running = self.running.as_mut()?;
        let Running { launch, layout, next_cluster, resident } = running;
        let blocks = *resident + layout.blocks_per_cluster();
        let has_room =
            *resident == 0 || blocks * layout.threads_per_block() <= MAX_RESIDENT_THREADS;
        if !has_room || *next_cluster == layout.first_block + layout.num_clusters() {
            return None;
        }
        *resident = blocks;
        *next_cluster += 1;
        Some((*launch, *layout, *next_cluster - 1))
    }

    /// A block has ended; whether the launch has.
    pub fn end_block(&mut self) -> bool {
        let Some(Running { layout, next_cluster, resident, .. }) = &mut self.running else {
            return false;
        };
        *resident -= 1;
        let ended = *resident == 0 && *next_cluster == layout.first_block + layout.num_clusters();
        if ended {
            self.running = None;
        }
        ended
    }
}

/// What a device's stream has done.
#[derive(Clone)]
pub(crate) struct Done {
    /// All of its launches that have ended; `None` if there were none.
    pub launches: Option<Rc<Knowledge>>,
    /// All but the last one, if it waited for them before it let the next launch start.
    pub launches_before_last: Option<Rc<Knowledge>>,
    /// All of them, and the blocks that have ended of the one that runs.
    blocks: Option<Knowledge>,
    /// Whether a block of the one that runs has let the next launch start before it had waited.
    triggered_early: bool,
    /// Whether it has nothing left to do.
    pub all: bool,
}

impl Done {
    /// Nothing yet but what precedes all streams.
    pub fn after(before: Option<Knowledge>) -> Self {
        Done {
            launches: before.clone().map(Rc::new),
            launches_before_last: None,
            blocks: before,
            triggered_early: false,
            all: false,
        }
    }
}

impl Machine {
    /// Keeps what a block has done for later launches of its stream.
    pub fn end_block(&mut self, place: usize) {
        let block = &self.blocks[place];
        let end = Clock::end(&self.clocks[place], block.agents.num_components());
        let done = &mut self.done[self.grids.of(block.index).device];
        done.blocks.get_or_insert_with(|| Knowledge::new(block.index)).join(&end);
    }

    /// A launch of the device has ended: so have its copies.
    pub fn end_launch(&mut self, device: usize) -> Result<(), Fault> {
        while !self.flights.is_empty() {
            self.land_any()?;
        }
        let done = &mut self.done[device];
        let ended = done.launches.take().filter(|_| !done.triggered_early);
        done.launches_before_last = ended;
        done.triggered_early = false;
        done.launches = done.blocks.clone().map(Rc::new);
        Ok(())
    }

    /// `griddepcontrol.launch_dependents`.
    pub fn let_next_launch_start(&mut self) {
        let block = self.block();
        let (index, is_early) = (block.index, block.overlaps && !block.waited_for_launches);
        if is_early {
            let device = self.grids.of(index).device;
            self.done[device].triggered_early = true;
            self.memory.triggered_early = true;
        }
    }

    /// `griddepcontrol.wait`: what earlier launches have done is ordered before the thread.
    pub fn wait_for_launches(&mut self) {
        if !self.block().overlaps {
            return;
        }
        let thread = self.current.1;
        self.block().waited_for_launches = true;
        if let Some(before) = self.block().before.clone() {
            self.clock().acquire(&before);
            self.block().threads[thread].fences.start_after(&before);
        }
    }
}
