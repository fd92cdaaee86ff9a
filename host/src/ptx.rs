//! The GPU kernels inside this program, as PTX.
//!
//! ```
//! for target in halfwarp::ptx::TARGETS {
//!     for (module, kernel) in target.kernels() {
//!         println!("{}: {} in {}", target.name, kernel.symbol, module.name);
//!     }
//! }
//! ```

/// All kernels, compiled for one device target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The target, as in PTX: `sm_90a`.
    pub name: &'static str,
    /// One module for each family of kernels, by name.
    pub modules: &'static [Module],
}

/// One family of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The family, such as `gemm`.
    pub name: &'static str,
    /// Its PTX, complete.
    pub text: &'static str,
    /// Its kernels.
    pub kernels: &'static [Kernel],
}

/// One kernel, with the launch bounds that it was compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The PTX entry.
    pub symbol: &'static str,
    /// Most threads of a block.
    pub max_threads: u32,
    /// Least resident blocks of a multiprocessor.
    pub min_blocks: u32,
}

/// The targets that this program was built for.
pub static TARGETS: &[Target] = &include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// The module of this family.
    pub fn module(&self, name: &str) -> Option<&'static Module> {
        self.modules.iter().find(|module| module.name == name)
    }

    /// Every kernel, with its module.
    pub fn kernels(&self) -> impl Iterator<Item = (&'static Module, &'static Kernel)> {
        self.modules.iter().flat_map(|module| module.kernels.iter().map(move |k| (module, k)))
    }
}

impl Module {
    /// The PTX of one entry: parameters, launch bounds and body.
    pub fn entry(&self, symbol: &str) -> Option<&'static str> {
        let (start, _) =
            self.text.match_indices(".visible .entry ").find(|(start, directive)| {
                self.text[start + directive.len()..]
                    .strip_prefix(symbol)
                    .is_some_and(|rest| rest.starts_with('('))
            })?;
        let text = &self.text[start..];
        Some(text.split_inclusive("\n}").next().unwrap_or(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_targets_hold_the_same_kernels() {
        let symbols = |name| -> Vec<&str> {
            target(name).unwrap().kernels().map(|(_, kernel)| kernel.symbol).collect()
        };
        assert!(!symbols("sm_80").is_empty());
        assert_eq!(symbols("sm_80"), symbols("sm_90a"));
    }

    #[test]
    fn every_kernel_has_its_entry_and_launch_bounds() {
        for (module, kernel) in TARGETS.iter().flat_map(Target::kernels) {
            let entry = module.entry(kernel.symbol).unwrap_or_else(|| panic!("{}", kernel.symbol));
            let bounds = format!(".maxntid {}, 1, 1", kernel.max_threads);
            assert!(entry.contains(&bounds), "{}: {bounds}", kernel.symbol);
            assert!(entry.ends_with("\n}"), "{}", kernel.symbol);
            assert_eq!(entry.matches(".entry").count(), 1, "{}", kernel.symbol);
        }
    }

    #[test]
    fn every_module_is_for_its_target() {
        for target in TARGETS {
            for module in target.modules {
                let directive = format!(".target {}\n", target.name);
                assert!(module.text.contains(&directive), "{} {}", target.name, module.name);
            }
        }
    }

    #[test]
    fn an_unknown_entry_is_none() {
        let module = target("sm_80").unwrap().modules[0];
        assert!(module.entry("no_such_kernel").is_none());
        assert!(module.entry("").is_none());
    }
}
