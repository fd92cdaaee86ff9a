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
    ///
    /// Right behind [`wait_for_dependencies`], no more than one launch starts ahead. Measured on an
    /// H200, decoding Qwen2.5-0.5B (random weights, f16 and f32, 512 tokens behind 64): 1,185 and 851
    /// tokens a second; in front of it 1,170 and 838; nowhere 1,147 and 850; without overlap 1,057
    /// and 806.
    ///
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
