//! The PTX of the kernels, embedded in this program.

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

    /// All threads of a barrier must execute the same instruction. These kernels branch before a
    /// barrier and, on the same condition, after it: a compiler that does not treat the barrier as
    /// convergent duplicates it into both branches, which hangs on a GPU.
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
