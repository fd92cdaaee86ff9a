//! Planted faults: for each kind a correct kernel, and one with exactly that fault. The emulator
//! finds the fault under every seed, and none in the correct kernel.

mod atomics;
mod block_barriers;
mod bulk_stores;
mod clusters;
mod cp_async;
mod devices;
mod launches;
mod mbarriers;
mod memory;
mod pipeline;
mod planted;
mod progress;
mod tensors;
mod warps;
mod wgmma;

/// The correct version of a kernel; the numbers of its faults are in its file.
const NO_FAULT: u32 = 0;
