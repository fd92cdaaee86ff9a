//! `griddepcontrol`: a launch that overlaps with none.

use cuda_std::prelude::*;

/// Threads of a block.
pub const NUM_THREADS: u32 = 64;

/// `out[i] = x[i] + 1`, between a wait for launches that this one depends on and the start of one
/// that depends on it, of which there are none: both return.
///
/// # Safety
/// 1. `x` and `out` hold an element a thread.
#[kernel(launch_bounds(NUM_THREADS), target(sm_90a))]
pub unsafe fn griddepcontrol_u32(x: Global<u32>, out: GlobalMut<u32>) {
    let i = thread::index_1d() as usize;
    grid::wait_for_dependencies();
    // SAFETY: an element a thread.
    unsafe { out.set(i, x.get(i) + 1) };
    grid::launch_dependents();
}
