//! Planted faults: for each kind a kernel in a right version and in one with exactly that fault. The
//! emulator finds the fault under every seed, and nothing in the right version.

mod atomics;
mod block_barriers;
mod bulk_stores;
mod clusters;
mod cp_async;
mod launches;
mod mbarriers;
mod memory;
mod pipeline;
mod planted;
mod progress;
mod warps;
mod wgmma;

/// The right version of a kernel; the number of each fault that one can have is in its file.
const NO_FAULT: u32 = 0;
