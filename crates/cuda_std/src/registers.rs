//! Registers that warpgroups hand to each other (SM 90a). All warps of a warpgroup call these
//! functions, converged.

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"]
    fn setmaxnreg_inc(count: u32);
    #[link_name = "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32"]
    fn setmaxnreg_dec(count: u32);
}

/// What a count of registers has to be.
const fn is_valid(count: u32) -> bool {
    count >= 24 && count <= 256 && count.is_multiple_of(8)
}

instruction! {
    /// Takes registers from the block's pool, up to `COUNT` a thread (a multiple of 8, 24 to 256),
    /// and waits until there are enough.
    "setmaxnreg.inc.sync.aligned.u32" => pub fn increase<const COUNT: u32>() {
        const { assert!(is_valid(COUNT), "a multiple of 8, 24 to 256") };
        setmaxnreg_inc(COUNT)
    } host {
        const { assert!(is_valid(COUNT), "a multiple of 8, 24 to 256") };
        simt::device::set_max_registers(COUNT, true)
    }

    /// Gives registers back to the block's pool, all but `COUNT` a thread (a multiple of 8, 24 to
    /// 256).
    "setmaxnreg.dec.sync.aligned.u32" => pub fn decrease<const COUNT: u32>() {
        const { assert!(is_valid(COUNT), "a multiple of 8, 24 to 256") };
        setmaxnreg_dec(COUNT)
    } host {
        const { assert!(is_valid(COUNT), "a multiple of 8, 24 to 256") };
        simt::device::set_max_registers(COUNT, false)
    }
}
