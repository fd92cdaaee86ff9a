//! Which kernels a command is about.

use crate::cli::failure::Failure;
use glob::Pattern;
use halfwarp::ptx::{Kernel, KernelSet, TARGETS};

/// Kernels by name and family.
#[derive(clap::Args)]
pub struct Selection {
    /// Kernels: a part of the name, or a pattern such as 'gemv_*' [default: all]
    kernels: Vec<String>,
    /// Only kernels of this family, as `halfwarp ptx list` names it
    #[arg(long)]
    family: Option<String>,
}

impl Selection {
    /// The selected kernels of `targets`, which is every kernel without a name or family.
    ///
    /// # Errors
    /// [`Failure::Input`] for a pattern that is none, and for one or a family that no kernel has.
    pub fn of<'a>(
        &self,
        targets: &[&'a KernelSet],
    ) -> Result<Vec<(&'a KernelSet, &'a Kernel)>, Failure> {
        let names =
            self.kernels.iter().map(|name| Name::parse(name)).collect::<Result<Vec<_>, _>>()?;
        let all = || {
            targets.iter().flat_map(|target| target.kernels.iter().map(|kernel| (*target, kernel)))
        };
        let is_of_family =
            |kernel: &Kernel| self.family.as_deref().is_none_or(|of| of == kernel.family);
        if let Some(family) = &self.family
            && !all().any(|(_, kernel)| is_of_family(kernel))
        {
            return Err(none(&format!("no family {family}")));
        }
        for (name, text) in names.iter().zip(&self.kernels) {
            if !all().any(|(_, kernel)| is_of_family(kernel) && name.matches(kernel.symbol)) {
                return Err(none(&format!("no kernel matches {text}")));
            }
        }
        let is_named = |kernel: &Kernel| {
            names.is_empty() || names.iter().any(|name| name.matches(kernel.symbol))
        };
        Ok(all().filter(|(_, kernel)| is_of_family(kernel) && is_named(kernel)).collect())
    }
}

fn none(what: &str) -> Failure {
    Failure::Input(format!("{what}\nhalfwarp ptx list names them all"))
}

/// The target of this name.
///
/// # Errors
/// [`Failure::Input`] if this program was not built for it.
pub fn target(name: &str) -> Result<&'static KernelSet, Failure> {
    halfwarp::ptx::target(name).ok_or_else(|| {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        Failure::Input(format!("no target {name}\nthe targets are: {}", known.join(", ")))
    })
}

/// A pattern for whole names, or a part of them.
enum Name<'a> {
    Whole(Pattern),
    Part(&'a str),
}

impl<'a> Name<'a> {
    fn parse(text: &'a str) -> Result<Self, Failure> {
        if !text.contains(['*', '?', '[']) {
            return Ok(Name::Part(text));
        }
        let fault = |error| {
            Failure::Input(format!("{text} is no pattern: {error}\n* is any text, ? a character"))
        };
        Pattern::new(text).map(Name::Whole).map_err(fault)
    }

    fn matches(&self, symbol: &str) -> bool {
        match self {
            Name::Whole(pattern) => pattern.matches(symbol),
            Name::Part(part) => symbol.contains(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(kernels: &[&str], family: Option<&str>) -> Result<Vec<&'static str>, Failure> {
        let kernels = kernels.iter().map(|name| (*name).to_owned()).collect();
        let selection = Selection { kernels, family: family.map(str::to_owned) };
        let found = selection.of(&[target("sm_80").unwrap()])?;
        Ok(found.into_iter().map(|(_, kernel)| kernel.symbol).collect())
    }

    #[test]
    fn kernels_are_selected_by_part_pattern_and_family() {
        let all = symbols(&[], None).unwrap();
        assert_eq!(all.len(), target("sm_80").unwrap().kernels.len());
        assert_eq!(symbols(&["sample_maximum"], None).unwrap(), ["sample_maximum_f32"]);
        assert_eq!(symbols(&["gemv_f1?"], None).unwrap(), ["gemv_f16"]);
        assert_eq!(symbols(&["max"], Some("sampling")).unwrap(), ["sample_maximum_f32"]);
        let both = symbols(&["gemv_*16", "sample_maximum", "sample_maximum_f32"], None).unwrap();
        assert_eq!(both, ["gemv_bf16", "gemv_f16", "sample_maximum_f32"]);
    }

    #[test]
    fn what_selects_nothing_is_named() {
        for (kernels, family, want) in [
            (&["sample_maximum", "nonsense"][..], None, "no kernel matches nonsense"),
            (&["sample_maximum"], Some("gemm"), "no kernel matches sample_maximum"),
            (&[], Some("gem"), "no family gem"),
            (&["a***"], None, "a*** is no pattern"),
        ] {
            let failure = symbols(kernels, family).unwrap_err();
            let Failure::Input(message) = failure else { panic!("{failure:?}") };
            assert!(message.starts_with(want), "{message}");
        }
    }
}
