//! Launches that overlap: a kernel may start before the one that it depends on has ended (SM 90).

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.griddepcontrol.wait"]
    fn griddepcontrol_wait();
    #[link_name = "llvm.nvvm.griddepcontrol.launch.dependents"]
    fn griddepcontrol_launch_dependents();
}

instruction! {
    /// Waits until the launches that this one depends on have ended, and their writes are seen.
    /// CUDA C `cudaGridDependencySynchronize`.
    "griddepcontrol.wait" => pub fn wait_for_dependencies() {
        griddepcontrol_wait()
    } host {
        simt::device::wait_for_dependencies()
    }

    /// Lets the launch that depends on this one start, once every block has said so or has ended.
    /// CUDA C `cudaTriggerProgrammaticLaunchCompletion`.
    "griddepcontrol.launch_dependents" => pub fn launch_dependents() {
        griddepcontrol_launch_dependents()
    } host {
        simt::device::launch_dependents()
    }
}
