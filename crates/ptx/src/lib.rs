//! The GPU kernels inside this program, as PTX: compressed, a kernel at a time, until one is asked for.
//!
//! ```
//! for target in ptx::TARGETS {
//!     for kernel in target.kernels {
//!         println!("{}: {} of {}", target.name, kernel.symbol, kernel.family);
//!     }
//! }
//! ```

use miniz_oxide::inflate::decompress_to_vec_with_limit;

/// The kernels that were compiled for one device target.
#[derive(Clone, Copy, Debug)]
pub struct KernelSet {
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
    /// Where its compressed text is in [`TEXTS`]: from, to.
    place: (usize, usize),
    /// Bytes of its text.
    len: usize,
}

/// The texts, each compressed by itself.
static TEXTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/texts.deflate"));

/// The targets that this program was built for.
pub static TARGETS: &[KernelSet] = &include!(concat!(env!("OUT_DIR"), "/table.rs"));

/// The target of this name.
pub fn target(name: &str) -> Option<&'static KernelSet> {
    TARGETS.iter().find(|target| target.name == name)
}

impl KernelSet {
    /// The kernel of this symbol.
    pub fn kernel(&self, symbol: &str) -> Option<&'static Kernel> {
        self.kernels.iter().find(|kernel| kernel.symbol == symbol)
    }
}

impl Kernel {
    /// Complete PTX of the kernel: no other kernel is in it.
    ///
    /// # Panics
    /// If this program is damaged.
    pub fn text(&self) -> String {
        let (start, end) = self.place;
        let text = decompress_to_vec_with_limit(&TEXTS[start..end], self.len);
        let text = text.ok().and_then(|text| String::from_utf8(text).ok());
        text.filter(|text| text.len() == self.len).expect("this program's PTX is whole")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_target_holds_the_kernels_of_the_older_that_it_does_not_replace() {
        let (older, newer) = (target("sm_80").unwrap(), target("sm_90a").unwrap());
        let is_replaced =
            |symbol: &str| symbol.starts_with("gemm_sm80_") || symbol.contains("_prompt_mma_");
        assert!(older.kernels.iter().any(|kernel| is_replaced(kernel.symbol)));
        for kernel in older.kernels {
            if is_replaced(kernel.symbol) {
                assert!(newer.kernel(kernel.symbol).is_none(), "{}", kernel.symbol);
                continue;
            }
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
                let text = kernel.text();
                for part in [&format!(".target {}\n", target.name), &entry, &bounds] {
                    assert!(text.contains(part), "{} {}: {part}", target.name, kernel.symbol);
                }
                assert_eq!(text.matches(".entry").count(), 1, "{}", kernel.symbol);
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
