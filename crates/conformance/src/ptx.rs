//! The kernels inside this program, as PTX.

/// Target, symbol and text of every kernel.
static KERNELS: &[(&str, &str, &str)] = &include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// The text of the kernel `symbol` for `target`.
pub(crate) fn text(target: &str, symbol: &str) -> Option<&'static str> {
    let kernel = KERNELS.iter().find(|kernel| (kernel.0, kernel.1) == (target, symbol))?;
    Some(kernel.2)
}

/// Whether the kernel `symbol` was compiled for any target.
pub fn has_kernel(symbol: &str) -> bool {
    KERNELS.iter().any(|kernel| kernel.1 == symbol)
}
