//! The kernels that packages embed: the files that `cuda_builder` writes in their build scripts.

use crate::process;
use anyhow::{Context, Result, ensure};
use cuda_builder::Arch;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The packages that embed kernels.
const PACKAGES: [&str; 2] = ["halfwarp", "conformance"];

/// A kernel for a target.
pub struct Kernel {
    /// The PTX entry.
    pub symbol: String,
    /// The target, as in PTX.
    pub target: &'static str,
    /// The file with its PTX.
    pub path: PathBuf,
}

/// Builds the packages; returns their kernels for every target, sorted by package, target and symbol.
pub fn kernels() -> Result<Vec<Kernel>> {
    let mut cargo = process::cargo()?;
    cargo.args(["build", "--quiet", "--lib", "--message-format=json-render-diagnostics"]);
    cargo.args(PACKAGES.map(|package| format!("--package={package}")));
    let messages = process::capture(&mut cargo)?.stdout;
    let mut kernels = Vec::new();
    for package in PACKAGES {
        let out_dir = out_dir(&messages, package)
            .with_context(|| format!("cargo reports no output directory of {package}"))?;
        for target in Arch::ALL.map(Arch::target) {
            let paths = sorted_files(&out_dir.join(target))?;
            ensure!(!paths.is_empty(), "{package} has no kernel for {target}");
            kernels.extend(paths.into_iter().map(|path| {
                let symbol = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                Kernel { symbol, target, path }
            }));
        }
    }
    Ok(kernels)
}

fn sorted_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    Ok(paths)
}

/// The output directory of the build script of `package`, from cargo's messages, one line of JSON each.
fn out_dir(messages: &str, package: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| line.parse::<serde_json::Value>().ok());
    messages
        .filter(|message| message["reason"] == "build-script-executed")
        .find(|message| message["package_id"].as_str().and_then(name) == Some(package))
        .and_then(|message| Some(message["out_dir"].as_str()?.into()))
}

/// The package in an identifier: `path+file:///w/host#halfwarp@0.1.0`, or `path+file:///w/conformance#0.1.0` if
/// package and directory have the same name.
fn name(package_id: &str) -> Option<&str> {
    let (url, version) = package_id.rsplit_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name),
        None => url.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_directory_is_that_of_the_package() {
        let message = |reason, id, dir| {
            format!("{{\"reason\":\"{reason}\",\"package_id\":\"{id}\",\"out_dir\":\"{dir}\"}}\n")
        };
        let messages = [
            message("compiler-artifact", "path+file:///w/host#halfwarp@0.1.0", "/wrong"),
            message("build-script-executed", "path+file:///w/host#halfwarp@0.1.0", "/h"),
            message("build-script-executed", "path+file:///w/conformance/kernels#k@0.1.0", "/k"),
            message("build-script-executed", "path+file:///w/conformance#0.1.0", "/c d"),
        ]
        .concat();
        let out_dir = |package| out_dir(&messages, package);
        assert_eq!(out_dir("halfwarp"), Some("/h".into()));
        assert_eq!(out_dir("conformance"), Some("/c d".into()));
        assert_eq!(out_dir("kernels"), None);
    }
}
