//! Clusters: blocks that run at the same time and access each other's shared memory (SM 90).

mod peer_shared;

pub use peer_shared::{PeerShared, Word, map_shared};

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.ctaid.x"]
    fn cluster_ctaid_x() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.ctaid.y"]
    fn cluster_ctaid_y() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.ctaid.z"]
    fn cluster_ctaid_z() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.nctaid.x"]
    fn cluster_nctaid_x() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.nctaid.y"]
    fn cluster_nctaid_y() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.nctaid.z"]
    fn cluster_nctaid_z() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.ctarank"]
    fn cluster_ctarank() -> u32;
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.aligned"]
    fn barrier_arrive();
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned"]
    fn barrier_arrive_relaxed();
    #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
    fn barrier_wait();
}

instruction! {
    /// Index of the block in its cluster, x. CUDA C `cluster.block_index().x`.
    "mov.u32 %cluster_ctaid.x" => pub fn block_idx_x() -> u32 {
        cluster_ctaid_x()
    } host {
        simt::device::cluster_block_idx()[0]
    }

    /// Index of the block in its cluster, y. CUDA C `cluster.block_index().y`.
    "mov.u32 %cluster_ctaid.y" => pub fn block_idx_y() -> u32 {
        cluster_ctaid_y()
    } host {
        simt::device::cluster_block_idx()[1]
    }

    /// Index of the block in its cluster, z. CUDA C `cluster.block_index().z`.
    "mov.u32 %cluster_ctaid.z" => pub fn block_idx_z() -> u32 {
        cluster_ctaid_z()
    } host {
        simt::device::cluster_block_idx()[2]
    }

    /// Number of blocks of the cluster, x. CUDA C `cluster.dim_blocks().x`.
    "mov.u32 %cluster_nctaid.x" => pub fn dim_x() -> u32 {
        cluster_nctaid_x()
    } host {
        simt::device::cluster_dim()[0]
    }

    /// Number of blocks of the cluster, y. CUDA C `cluster.dim_blocks().y`.
    "mov.u32 %cluster_nctaid.y" => pub fn dim_y() -> u32 {
        cluster_nctaid_y()
    } host {
        simt::device::cluster_dim()[1]
    }

    /// Number of blocks of the cluster, z. CUDA C `cluster.dim_blocks().z`.
    "mov.u32 %cluster_nctaid.z" => pub fn dim_z() -> u32 {
        cluster_nctaid_z()
    } host {
        simt::device::cluster_dim()[2]
    }

    /// Rank of the block in its cluster. CUDA C `cluster.block_rank()`.
    "mov.u32 %cluster_ctarank" => pub fn block_rank() -> u32 {
        cluster_ctarank()
    } host {
        simt::device::cluster_rank()
    }

    /// Arrives on the cluster's barrier without waiting. The thread's earlier writes are visible to
    /// threads after their [`wait`]. CUDA C `cluster.barrier_arrive()`.
    "barrier.cluster.arrive.release.aligned" => pub fn arrive() {
        barrier_arrive()
    } host {
        simt::device::cluster_arrive(true)
    }

    /// [`arrive`] without ordering memory accesses. CUDA C `cuda::ptx::barrier_cluster_arrive`.
    "barrier.cluster.arrive.relaxed.aligned" => pub fn arrive_relaxed() {
        barrier_arrive_relaxed()
    } host {
        simt::device::cluster_arrive(false)
    }

    /// Waits until all threads of the cluster have arrived on its barrier; each calls [`arrive`] or
    /// [`arrive_relaxed`] first. CUDA C `cluster.barrier_wait()`.
    "barrier.cluster.wait.acquire.aligned" => pub fn wait() {
        barrier_wait()
    } host {
        simt::device::cluster_wait()
    }

    "mapa.shared::cluster.u32" => pub(crate) fn mapa(address: u32, rank: u32) -> u32 {
        let mapped;
        asm!("mapa.shared::cluster.u32 {}, {}, {};", out(reg32) mapped, in(reg32) address,
            in(reg32) rank, options(pure, nomem, nostack, preserves_flags));
        mapped
    } host {
        simt::device::map_shared(address, rank)
    }
}

/// Waits for all threads of the cluster, whose writes are then visible to each other: [`arrive`]
/// and [`wait`]. CUDA C `cluster.sync()`.
#[inline(always)]
#[track_caller]
pub fn sync() {
    arrive();
    wait();
}
