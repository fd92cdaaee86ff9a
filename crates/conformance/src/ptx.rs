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

#[cfg(test)]
mod tests {
    use super::*;

    /// The threads that a barrier waits for must come to one and the same. These kernels branch
    /// before a barrier and, on the same condition, behind it: a compiler that knows nothing of
    /// convergence copies what is between into both sides, which hangs on a GPU.
    #[test]
    fn barriers_are_not_copied_into_the_sides_of_a_branch() {
        for (target, symbol, barrier, written) in [
            ("sm_80", "atomic_add_f32", "bar.sync", 2),
            ("sm_80", "atomic_add_f16x2", "bar.sync", 2),
            ("sm_90a", "atomic_add_f32", "bar.sync", 2),
            ("sm_90a", "atomic_add_f16x2", "bar.sync", 2),
            ("sm_90a", "cluster_copies_u32", "barrier.cluster.wait", 2),
            ("sm_90a", "cluster_tensor_u32", "barrier.cluster.wait", 2),
        ] {
            let text = text(target, symbol).unwrap();
            let found = text.lines().filter(|line| line.trim().starts_with(barrier)).count();
            assert_eq!(found, written, "{barrier} in {symbol} for {target}");
        }
    }
}
