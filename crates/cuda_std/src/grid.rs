//! Launches that overlap: one may start before the one before it has ended (SM 90; elsewhere none does,
//! and both functions are nothing).

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

// LLVM's intrinsics of the two touch no memory as it sees them: it could move a load in front of the
// wait. An `asm!` that may access memory keeps loads and stores on their sides.
instruction! {
    /// Lets the next launch start, once every block has said so or has ended. It says nothing of what
    /// the block has written: the next launch waits for the end of this one.
    /// CUDA C `cudaTriggerProgrammaticLaunchCompletion`.
    "griddepcontrol.launch_dependents" => pub fn launch_dependents() {
        #[cfg(target_feature = "sm_90a")]
        asm!("griddepcontrol.launch_dependents;", options(nostack, preserves_flags));
    } host {
        simt::device::launch_dependents()
    }

    /// Waits until the launch before has ended, and its writes are seen.
    ///
    /// A launch ends when its blocks have, not when the launches before it have. So that it ends
    /// behind all of them, some thread of every block waits.
    /// CUDA C `cudaGridDependencySynchronize`.
    "griddepcontrol.wait" => pub fn wait_for_dependencies() {
        #[cfg(target_feature = "sm_90a")]
        asm!("griddepcontrol.wait;", options(nostack, preserves_flags));
    } host {
        simt::device::wait_for_dependencies()
    }
}
