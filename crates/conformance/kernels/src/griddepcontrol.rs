//! `griddepcontrol` in a launch without dependencies and dependents.

use cuda_std::prelude::*;

/// Threads of a block.
pub const NUM_THREADS: u32 = 64;

/// `out[i] = x[i] + 1`, between `griddepcontrol.wait` and `griddepcontrol.launch_dependents`, both
/// of which return since there is no other launch.
///
/// # Safety
/// 1. `x` and `out` hold one element per thread.
#[kernel(launch_bounds(NUM_THREADS), target(sm_90a))]
pub unsafe fn griddepcontrol_u32(x: Global<u32>, out: GlobalMut<u32>) {
    let i = thread::index_1d() as usize;
    grid::wait_for_dependencies();
    // SAFETY: one element per thread.
    unsafe { out.set(i, x.get(i) + 1) };
    grid::launch_dependents();
}
