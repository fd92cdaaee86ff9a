//! Launches that overlap: one may start before the one before it has ended (SM 90; elsewhere none does,
//! and both functions are nothing).

// Both may access any memory as LLVM sees them, so that loads and stores stay on their sides.
#[cfg(all(target_arch = "nvptx64", target_feature = "sm_90a"))]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.griddepcontrol.wait"]
    fn griddepcontrol_wait();
    #[link_name = "llvm.nvvm.griddepcontrol.launch.dependents"]
    fn griddepcontrol_launch_dependents();
}

instruction! {
    /// Lets the next launch start, once every block has said so or has ended. It says nothing of what
    /// the block has written: the next launch waits for the end of this one.
    /// CUDA C `cudaTriggerProgrammaticLaunchCompletion`.
    "griddepcontrol.launch_dependents" => pub fn launch_dependents() {
        #[cfg(target_feature = "sm_90a")]
        griddepcontrol_launch_dependents()
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
        griddepcontrol_wait()
    } host {
        simt::device::wait_for_dependencies()
    }
}
