//! A thread's indices: `%tid`, `%ntid`, `%ctaid` and `%nctaid`; its lane, warp and warpgroup.

use cuda_std::prelude::*;

/// Words that a thread writes.
pub const NUM_VALUES: u32 = 16;

/// Most threads of a block.
pub const MAX_THREADS: u32 = 384;

/// Each thread writes its registers, in the order of blocks and threads: `out` is
/// `[num_blocks, num_threads, NUM_VALUES]`. The lane, the warp and the warpgroup are those of x.
///
/// # Safety
/// 1. `out` holds `NUM_VALUES` words per thread of the grid; a row of threads is whole warps.
#[kernel(launch_bounds(MAX_THREADS))]
pub unsafe fn registers_u32(out: GlobalMut<u32>) {
    let values: [u32; NUM_VALUES as usize] = [
        thread::thread_idx_x(),
        thread::thread_idx_y(),
        thread::thread_idx_z(),
        thread::block_dim_x(),
        thread::block_dim_y(),
        thread::block_dim_z(),
        thread::block_idx_x(),
        thread::block_idx_y(),
        thread::block_idx_z(),
        thread::grid_dim_x(),
        thread::grid_dim_y(),
        thread::grid_dim_z(),
        thread::index_1d(),
        warp::lane_id(),
        warp::warp_idx(),
        warp::warpgroup_idx(),
    ];
    let block = (thread::block_idx_z() * thread::grid_dim_y() + thread::block_idx_y())
        * thread::grid_dim_x()
        + thread::block_idx_x();
    let row = (block * thread::block_dim_z() + thread::thread_idx_z()) * thread::block_dim_y()
        + thread::thread_idx_y();
    let start = (row * thread::block_dim_x() + thread::thread_idx_x()) * NUM_VALUES;
    for (i, value) in values.into_iter().enumerate() {
        // SAFETY: the thread's own words.
        unsafe { out.set(start as usize + i, value) };
    }
}
