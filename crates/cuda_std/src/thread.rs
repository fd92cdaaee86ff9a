//! Where a thread stands in the grid, and the barrier of its block.

#[cfg(target_arch = "nvptx64")]
use core::arch::nvptx;

instruction! {
    /// Index of the thread in its block, x. CUDA C `threadIdx.x`.
    "mov.u32 %tid.x" => pub fn thread_idx_x() -> u32 {
        nvptx::_thread_idx_x() as u32
    } host {
        simt::device::thread_idx()[0]
    }

    /// Index of the block in the grid, x. CUDA C `blockIdx.x`.
    "mov.u32 %ctaid.x" => pub fn block_idx_x() -> u32 {
        nvptx::_block_idx_x() as u32
    } host {
        simt::device::block_idx()[0]
    }

    /// Index of the block in the grid, y. CUDA C `blockIdx.y`.
    "mov.u32 %ctaid.y" => pub fn block_idx_y() -> u32 {
        nvptx::_block_idx_y() as u32
    } host {
        simt::device::block_idx()[1]
    }

    /// Index of the block in the grid, z. CUDA C `blockIdx.z`.
    "mov.u32 %ctaid.z" => pub fn block_idx_z() -> u32 {
        nvptx::_block_idx_z() as u32
    } host {
        simt::device::block_idx()[2]
    }

    /// Threads of a block, x. CUDA C `blockDim.x`.
    "mov.u32 %ntid.x" => pub fn block_dim_x() -> u32 {
        nvptx::_block_dim_x() as u32
    } host {
        simt::device::block_dim()[0]
    }

    /// Blocks of the grid, x. CUDA C `gridDim.x`.
    "mov.u32 %nctaid.x" => pub fn grid_dim_x() -> u32 {
        nvptx::_grid_dim_x() as u32
    } host {
        simt::device::grid_dim()[0]
    }

    /// Blocks of the grid, y. CUDA C `gridDim.y`.
    "mov.u32 %nctaid.y" => pub fn grid_dim_y() -> u32 {
        nvptx::_grid_dim_y() as u32
    } host {
        simt::device::grid_dim()[1]
    }

    /// Waits for all threads of the block, and makes their writes to shared and global memory
    /// visible to each other. Every thread of the block that has not exited calls it. CUDA C
    /// `__syncthreads`.
    "bar.sync 0" => pub fn sync_threads() {
        nvptx::_syncthreads()
    } host {
        simt::device::bar_sync(0, None)
    }
}

/// Index of the thread in a one-dimensional grid: `block_idx_x * block_dim_x + thread_idx_x`.
#[inline(always)]
#[track_caller]
pub fn index_1d() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}
