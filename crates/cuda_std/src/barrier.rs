//! Named barriers: 16 per block, each for a subset of its warps. All threads of a warp call these
//! functions, converged.
//!
//! Barrier 0 is the one of [`thread::sync_threads`](crate::thread::sync_threads). The number is a
//! constant: for a number in a register ptxas reserves all 16.

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn barrier_sync(id: u32, num_threads: u32);
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    fn barrier_arrive(id: u32, num_threads: u32);
}

/// Named barriers of a block.
const NUM_BARRIERS: u32 = 16;

/// Checks the operands of a barrier.
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
    /// Waits until `NUM_THREADS` threads (whole warps, this one included) have arrived on barrier
    /// `ID`. Their writes to shared and global memory are then visible to each other.
    "bar.sync ID, NUM_THREADS" => pub fn sync<const ID: u32, const NUM_THREADS: u32>() {
        const { check(ID, NUM_THREADS) };
        barrier_sync(ID, NUM_THREADS)
    } host {
        const { check(ID, NUM_THREADS) };
        simt::device::bar_sync(ID, Some(NUM_THREADS))
    }

    /// Arrives on barrier `ID` of `NUM_THREADS` threads without waiting. The thread's writes are
    /// visible to the threads that wait on it in [`sync`].
    "bar.arrive ID, NUM_THREADS" => pub fn arrive<const ID: u32, const NUM_THREADS: u32>() {
        const { check(ID, NUM_THREADS) };
        barrier_arrive(ID, NUM_THREADS)
    } host {
        const { check(ID, NUM_THREADS) };
        simt::device::bar_arrive(ID, NUM_THREADS)
    }
}
