//! Programmatic dependent launch: a launch may start before the previous one has ended (SM 90; on
//! other targets both functions do nothing).
//!
//! PTX ISA: [`griddepcontrol`](https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol).

// For LLVM both may access any memory, so it moves no load or store across them.
#[cfg(all(target_arch = "nvptx64", target_feature = "sm_90a"))]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.griddepcontrol.wait"]
    fn griddepcontrol_wait();
    #[link_name = "llvm.nvvm.griddepcontrol.launch.dependents"]
    fn griddepcontrol_launch_dependents();
}

instruction! {
    /// Lets the next launch start, once every block has called this or has ended. It publishes no
    /// writes: the next launch waits for the end of this one.
    ///
    /// Call it right after [`wait_for_dependencies`]: then at most one launch starts ahead, which
    /// is fastest (docs/measurements/overlap.md).
    ///
    /// CUDA C `cudaTriggerProgrammaticLaunchCompletion`.
    "griddepcontrol.launch_dependents" => pub fn launch_dependents() {
        #[cfg(target_feature = "sm_90a")]
        griddepcontrol_launch_dependents()
    } host {
        simt::device::launch_dependents()
    }

    /// Waits until the previous launch has ended and its writes are visible.
    ///
    /// A launch ends when its blocks have, even if earlier launches still run. So some thread of
    /// every block has to wait. CUDA C `cudaGridDependencySynchronize`.
    "griddepcontrol.wait" => pub fn wait_for_dependencies() {
        #[cfg(target_feature = "sm_90a")]
        griddepcontrol_wait()
    } host {
        simt::device::wait_for_dependencies()
    }
}
