//! A thread's indices, and the barrier of its block.
//!
//! PTX ISA: [special registers](https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers),
//! [`bar.sync`](https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar).

#[cfg(target_arch = "nvptx64")]
use core::arch::nvptx;

// Not `nvptx::_syncthreads`: that uses an intrinsic's old name. Until LLVM upgrades it, it is an
// ordinary function to LLVM, which may copy it into both sides of a branch.
#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn barrier_sync_all(id: u32);
}

instruction! {
    /// Index of the thread in its block, x. CUDA C `threadIdx.x`.
    "mov.u32 %tid.x" => pub fn thread_idx_x() -> u32 {
        nvptx::_thread_idx_x() as u32
    } host {
        simt::device::thread_idx()[0]
    }

    /// Index of the thread in its block, y. CUDA C `threadIdx.y`.
    "mov.u32 %tid.y" => pub fn thread_idx_y() -> u32 {
        nvptx::_thread_idx_y() as u32
    } host {
        simt::device::thread_idx()[1]
    }

    /// Index of the thread in its block, z. CUDA C `threadIdx.z`.
    "mov.u32 %tid.z" => pub fn thread_idx_z() -> u32 {
        nvptx::_thread_idx_z() as u32
    } host {
        simt::device::thread_idx()[2]
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

    /// Threads of a block, y. CUDA C `blockDim.y`.
    "mov.u32 %ntid.y" => pub fn block_dim_y() -> u32 {
        nvptx::_block_dim_y() as u32
    } host {
        simt::device::block_dim()[1]
    }

    /// Threads of a block, z. CUDA C `blockDim.z`.
    "mov.u32 %ntid.z" => pub fn block_dim_z() -> u32 {
        nvptx::_block_dim_z() as u32
    } host {
        simt::device::block_dim()[2]
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

    /// Blocks of the grid, z. CUDA C `gridDim.z`.
    "mov.u32 %nctaid.z" => pub fn grid_dim_z() -> u32 {
        nvptx::_grid_dim_z() as u32
    } host {
        simt::device::grid_dim()[2]
    }

    /// Waits for all threads of the block, and makes their writes to shared and global memory
    /// visible to each other. Every thread of the block that has not exited calls it. CUDA C
    /// `__syncthreads`.
    "bar.sync 0" => pub fn sync_threads() {
        barrier_sync_all(0)
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
