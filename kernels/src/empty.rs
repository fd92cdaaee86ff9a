//! A kernel that does nothing, in clusters of two blocks of 128 threads: what a launch of them
//! costs, beside which the times of the fastest kernels are read.

use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// Does nothing.
///
/// # Safety
/// There is nothing to promise.
#[kernel(launch_bounds(NUM_THREADS, 1), target(sm_90a), cluster(2, 1, 1))]
pub unsafe fn empty_cluster() {}

/// The launch of `blocks` blocks, or `None` of none.
///
/// # Errors
/// [`LaunchError`](cuda_std::launch::LaunchError) for an odd number of blocks, or more than a grid
/// has.
#[cfg(not(target_arch = "nvptx64"))]
pub fn launch(
    blocks: usize,
) -> Result<Option<cuda_std::launch::Launch>, cuda_std::launch::LaunchError> {
    use cuda_std::launch::{Geometry, LaunchError};
    if !blocks.is_multiple_of(2) {
        let expected = "an even number";
        return Err(LaunchError::Shape { what: "blocks", value: blocks, expected });
    }
    let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, 0)?;
    Ok(geometry.map(|geometry| empty_cluster::Args {}.launch(geometry)))
}
