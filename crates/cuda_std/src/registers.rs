//! Reallocation of registers between warpgroups (SM 90a). All warps of a warpgroup call these
//! functions, converged.

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"]
    fn setmaxnreg_inc(count: u32);
    #[link_name = "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32"]
    fn setmaxnreg_dec(count: u32);
}

/// Whether the instruction takes this count.
const fn is_valid(count: u32) -> bool {
    count >= 24 && count <= 256 && count.is_multiple_of(8)
}

instruction! {
    /// Raises the thread's registers to `COUNT` (a multiple of 8, 24 to 256), and waits until the
    /// block's pool has enough. CUDA C `cuda::ptx::setmaxnreg_inc`.
    "setmaxnreg.inc.sync.aligned.u32" => pub fn increase<const COUNT: u32>() {
        const { assert!(is_valid(COUNT), "a multiple of 8, 24 to 256") };
        setmaxnreg_inc(COUNT)
    } host {
        const { assert!(is_valid(COUNT), "a multiple of 8, 24 to 256") };
        simt::device::set_max_registers(COUNT, true)
    }

    /// Lowers the thread's registers to `COUNT` (a multiple of 8, 24 to 256), and returns the rest
    /// to the block's pool. CUDA C `cuda::ptx::setmaxnreg_dec`.
    "setmaxnreg.dec.sync.aligned.u32" => pub fn decrease<const COUNT: u32>() {
        const { assert!(is_valid(COUNT), "a multiple of 8, 24 to 256") };
        setmaxnreg_dec(COUNT)
    } host {
        const { assert!(is_valid(COUNT), "a multiple of 8, 24 to 256") };
        simt::device::set_max_registers(COUNT, false)
    }
}
