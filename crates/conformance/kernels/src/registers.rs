//! A thread's indices: `%tid`, `%ntid`, `%ctaid` and `%nctaid`.

use cuda_std::prelude::*;

/// Words that a thread writes.
pub const NUM_VALUES: u32 = 7;

/// Each thread writes its registers, in the order of blocks and threads: `out` is
/// `[num_blocks, num_threads, NUM_VALUES]`.
///
/// # Safety
/// 1. `out` holds `NUM_VALUES` words per thread of the grid.
#[kernel(launch_bounds(64))]
pub unsafe fn registers_u32(out: GlobalMut<u32>) {
    let values: [u32; NUM_VALUES as usize] = [
        thread::thread_idx_x(),
        thread::block_dim_x(),
        thread::block_idx_x(),
        thread::block_idx_y(),
        thread::block_idx_z(),
        thread::grid_dim_x(),
        thread::grid_dim_y(),
    ];
    let block = (thread::block_idx_z() * thread::grid_dim_y() + thread::block_idx_y())
        * thread::grid_dim_x()
        + thread::block_idx_x();
    let start = (block * thread::block_dim_x() + thread::thread_idx_x()) * NUM_VALUES;
    for (i, value) in values.into_iter().enumerate() {
        // SAFETY: the thread's own words.
        unsafe { out.set(start as usize + i, value) };
    }
}
