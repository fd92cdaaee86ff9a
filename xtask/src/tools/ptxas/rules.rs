//! What the checks depend on besides the kernels: if it changes, every kernel is assembled again.

use super::tools;
use crate::process;
use crate::tools::programs::sha256;
use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The source of the rules.
const SOURCE: &str = "crates/machine_code/src";

/// What of it are no rules. The lock has the instructions that a kernel is expected to have in the kernel's own line.
const NO_RULES: [&str; 6] = [
    "convergence/tests.rs",
    "expected/table.rs",
    "find.rs",
    "mix.rs",
    "occupancy.rs",
    "shared_memory.rs",
];

/// The tools' releases, and a hash of the rules.
///
/// # Errors
/// If the source cannot be read.
pub fn checks() -> Result<String> {
    let source = process::repository().join(SOURCE);
    let rules = sha256(rules(&source)?.as_bytes());
    let (ptxas, nvdisasm) = (tools::PTXAS.version, tools::NVDISASM.version);
    Ok(format!("checks ptxas={ptxas} nvdisasm={nvdisasm} rules={rules}"))
}

/// The code of the rules in `source`, with the names of their files.
fn rules(source: &Path) -> Result<String> {
    let mut files = Vec::new();
    list(source, &mut files)?;
    let mut text = String::new();
    for path in files {
        let name = path.strip_prefix(source).expect("a file below").to_string_lossy().into_owned();
        if !NO_RULES.contains(&&*name) && !name.starts_with("mix/") {
            let code = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            text += &format!("{name}\n{}", code_alone(&code));
        }
    }
    Ok(text)
}

/// The files below `dir`, by name.
fn list(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// `text` without lines of comments, and without the unit tests at its end.
fn code_alone(text: &str) -> String {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
    let code = lines.filter(|line| !line.is_empty() && !line.trim_start().starts_with("//"));
    code.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_tests_are_no_rules() {
        let text = "//! Docs.\n\nfn f() {\n    // why\n    g(\"// not\");\n}\n\n#[cfg(test)]\nmod tests {}\n";
        assert_eq!(code_alone(text), "fn f() {\n    g(\"// not\");\n}\n");
    }

    #[test]
    fn the_rules_are_those_of_the_repository() {
        let source = process::repository().join(SOURCE);
        let rules = rules(&source).unwrap();
        for file in ["expected.rs", "report.rs", "convergence/uniform.rs", "planted/spill.ptx"] {
            assert!(rules.lines().any(|line| line == file), "{file}");
        }
        for file in NO_RULES {
            assert!(source.join(file).is_file(), "{file}");
            assert!(!rules.lines().any(|line| line == file), "{file}");
        }
    }

    #[test]
    fn a_rule_that_changes_changes_the_hash() {
        let dir = tempfile::tempdir().unwrap();
        let rules_of = |report: &str| {
            fs::write(dir.path().join("report.rs"), report).unwrap();
            fs::write(dir.path().join("find.rs"), report).unwrap();
            rules(dir.path()).unwrap()
        };
        let before = rules_of("fn fault() -> bool {\n    true\n}\n");
        assert_eq!(before, "report.rs\nfn fault() -> bool {\n    true\n}\n");
        assert_ne!(before, rules_of("fn fault() -> bool {\n    false\n}\n"));
    }
}
