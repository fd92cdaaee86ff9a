//! The GPU kernels inside this program, as PTX.
//!
//! ```
//! for target in halfwarp::ptx::TARGETS {
//!     for kernel in target.kernels {
//!         println!("{}: {} of {}", target.name, kernel.symbol, kernel.family);
//!     }
//! }
//! ```

/// The kernels that were compiled for one device target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The target, as in PTX: `sm_90a`.
    pub name: &'static str,
    /// The kernels, by symbol.
    pub kernels: &'static [Kernel],
}

/// One kernel, with the launch bounds that it was compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The PTX entry.
    pub symbol: &'static str,
    /// The file or directory of kernels that it is in, such as `gemm`.
    pub family: &'static str,
    /// Most threads of a block.
    pub max_threads: u32,
    /// Least resident blocks of a multiprocessor.
    pub min_blocks: u32,
    /// Blocks of a cluster in x, y, z, if it is launched in clusters.
    pub cluster: Option<[u32; 3]>,
    /// Its PTX, complete: no other kernel is in it.
    pub text: &'static str,
}

/// The targets that this program was built for.
pub static TARGETS: &[Target] = &include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// The kernel of this symbol.
    pub fn kernel(&self, symbol: &str) -> Option<&'static Kernel> {
        self.kernels.iter().find(|kernel| kernel.symbol == symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_target_holds_the_kernels_of_the_older() {
        let (older, newer) = (target("sm_80").unwrap(), target("sm_90a").unwrap());
        assert!(!older.kernels.is_empty());
        for kernel in older.kernels {
            // How many blocks share an SM may differ, as registers do.
            let facts = |k: &Kernel| (k.family, k.max_threads, k.cluster);
            assert_eq!(newer.kernel(kernel.symbol).map(facts), Some(facts(kernel)));
        }
    }

    #[test]
    fn every_kernel_is_a_text_with_its_entry_alone() {
        for target in TARGETS {
            for kernel in target.kernels {
                let entry = format!(".visible .entry {}(", kernel.symbol);
                let bounds = format!(
                    ".maxntid {}, 1, 1\n.minnctapersm {}\n",
                    kernel.max_threads, kernel.min_blocks
                );
                for part in [&format!(".target {}\n", target.name), &entry, &bounds] {
                    assert!(
                        kernel.text.contains(part),
                        "{} {}: {part}",
                        target.name,
                        kernel.symbol
                    );
                }
                assert_eq!(kernel.text.matches(".entry").count(), 1, "{}", kernel.symbol);
            }
        }
    }

    #[test]
    fn a_kernel_is_found_by_its_whole_symbol() {
        let target = target("sm_80").unwrap();
        assert_eq!(target.kernel("sample_maximum_f32").unwrap().family, "sampling");
        for symbol in ["sample_maximum", "sampling", ""] {
            assert!(target.kernel(symbol).is_none(), "{symbol}");
        }
    }
}
