//! Named barriers: 16 a block, for a part of its warps. All threads of a warp call these functions,
//! converged.
//!
//! Barrier 0 is that of [`thread::sync_threads`](crate::thread::sync_threads). The number is a
//! constant: one in a register has ptxas reserve all 16.

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn barrier_sync(id: u32, num_threads: u32);
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    fn barrier_arrive(id: u32, num_threads: u32);
}

/// Barriers of a block.
const NUM_BARRIERS: u32 = 16;

/// What the operands of a barrier have to be.
const fn check(id: u32, num_threads: u32) {
    assert!(id < NUM_BARRIERS, "a block has 16 barriers");
    assert!(
        num_threads > 0
            && num_threads <= 1024
            && num_threads.is_multiple_of(crate::warp::WARP_SIZE),
        "whole warps, at most 1024 threads"
    );
}

instruction! {
    /// Waits until `NUM_THREADS` threads (whole warps, this one among them) have come to barrier
    /// `ID`, and makes what they wrote to shared and global memory visible to each other.
    "bar.sync ID, NUM_THREADS" => pub fn sync<const ID: u32, const NUM_THREADS: u32>() {
        const { check(ID, NUM_THREADS) };
        barrier_sync(ID, NUM_THREADS)
    } host {
        const { check(ID, NUM_THREADS) };
        simt::device::bar_sync(ID, Some(NUM_THREADS))
    }

    /// Comes to barrier `ID` of `NUM_THREADS` threads, and goes on: what the thread wrote is visible
    /// to those that wait at it in [`sync`].
    "bar.arrive ID, NUM_THREADS" => pub fn arrive<const ID: u32, const NUM_THREADS: u32>() {
        const { check(ID, NUM_THREADS) };
        barrier_arrive(ID, NUM_THREADS)
    } host {
        const { check(ID, NUM_THREADS) };
        simt::device::bar_arrive(ID, NUM_THREADS)
    }
}
