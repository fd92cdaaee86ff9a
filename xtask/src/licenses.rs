//! `cargo xtask licenses`: the packages that a build uses, where they come from and what their licences allow.
//!
//! It reads Cargo.lock and the manifests that cargo has already downloaded: no network is used.

use crate::process;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use spdx::{Expression, ParseMode};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Licences under which a program with this code can be passed on without its own source.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The only place that packages come from, besides this repository.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A package of the workspace's lock file.
struct Package {
    id: String,
    name: String,
    version: String,
    license: String,
    /// `None`: a package of this repository.
    source: Option<String>,
    dir: PathBuf,
}

/// Fails on a package from elsewhere than crates.io, or under a licence that is not allowed.
pub fn check() -> Result<()> {
    let metadata = metadata(&[])?;
    let packages = packages(&metadata)?;
    let faults: Vec<String> = packages.iter().filter_map(fault).collect();
    if !faults.is_empty() {
        bail!("{}", faults.join("\n  "));
    }
    eprintln!("{} packages: all from crates.io or here, under licences allowed", packages.len());
    Ok(())
}

/// What is wrong with a package, if anything.
fn fault(package: &Package) -> Option<String> {
    let Package { name, version, license, source, .. } = package;
    if let Some(source) = source.as_deref().filter(|source| *source != CRATES_IO) {
        return Some(format!("{name} {version} comes from {source}, not from crates.io"));
    }
    match is_allowed(license) {
        Ok(true) => None,
        Ok(false) => Some(format!("{name} {version} is under {license:?}, which is not allowed")),
        Err(why) => Some(format!("{name} {version} states the licence {license:?}: {why}")),
    }
}

/// Whether the allowed licences satisfy an SPDX expression; `MIT/Apache-2.0` of older packages too.
fn is_allowed(license: &str) -> Result<bool, spdx::ParseError> {
    let expression = Expression::parse_mode(license, ParseMode::LAX)?;
    Ok(expression
        .evaluate(|required| required.license.id().is_some_and(|id| ALLOWED.contains(&id.name))))
}

/// The licence texts of the packages that the binary for `target` is made of.
pub fn texts(target: &str) -> Result<String> {
    let metadata = metadata(&["--filter-platform", target])?;
    let shipped = shipped(&metadata)?;
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages(&metadata)?.iter().filter(|package| shipped.contains(&package.id)) {
        if package.source.is_none() {
            continue;
        }
        let Package { name, version, license, dir, .. } = package;
        let found = license_files(dir)?;
        let title = format!("{name} {version} ({license})");
        if found.is_empty() {
            by_text
                .entry(format!("The package has no licence file: see {license}."))
                .or_default()
                .push(title);
            continue;
        }
        for text in found {
            by_text.entry(text).or_default().push(title.clone());
        }
    }
    let mut sections: Vec<_> = by_text.into_iter().map(|(text, titles)| (titles, text)).collect();
    sections.sort();
    let mut all = String::from(
        "halfwarp contains the packages below, and Rust's standard library (MIT OR Apache-2.0).\n",
    );
    for (titles, text) in sections {
        write!(all, "\n{}\n{}\n\n{}\n", "-".repeat(80), titles.join("\n"), text.trim())?;
    }
    Ok(all)
}

/// The licence and notice files in a package's directory, sorted by name.
fn license_files(dir: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_license = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|stem| name.starts_with(stem));
        if is_license && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: &PathBuf| Ok(String::from_utf8_lossy(&fs::read(path)?).replace("\r\n", "\n"));
    paths.iter().map(read).collect()
}

/// The ids of what the library and the binary `halfwarp` link: its normal dependencies, and theirs.
fn shipped(metadata: &Value) -> Result<BTreeSet<String>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("cargo metadata without nodes")?;
    let node_of: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let root = packages(metadata)?.into_iter().find(|package| package.name == "halfwarp");
    let mut todo = vec![root.context("no package halfwarp")?.id];
    let mut shipped = BTreeSet::new();
    while let Some(id) = todo.pop() {
        let deps = node_of.get(&*id).and_then(|node| node["deps"].as_array());
        if !shipped.insert(id) {
            continue;
        }
        for dep in deps.into_iter().flatten() {
            let kinds = dep["dep_kinds"].as_array().into_iter().flatten();
            if kinds.into_iter().any(|kind| kind["kind"].is_null()) {
                todo.extend(dep["pkg"].as_str().map(str::to_owned));
            }
        }
    }
    Ok(shipped)
}

fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let package = |package: &Value| {
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        Some(Package {
            id: text("id")?,
            name: text("name")?,
            version: text("version")?,
            license: text("license").unwrap_or_default(),
            source: text("source"),
            dir: Path::new(package["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    };
    let packages: Option<Vec<_>> = packages.iter().map(package).collect();
    let mut packages = packages.context("cargo metadata with an incomplete package")?;
    ensure!(!packages.is_empty(), "cargo metadata lists no packages");
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(packages)
}

fn metadata(args: &[&str]) -> Result<Value> {
    let mut cargo = process::cargo()?;
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline"]).args(args);
    Ok(serde_json::from_str(&process::capture(&mut cargo)?.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_expressions() {
        for allowed in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert_eq!(is_allowed(allowed), Ok(true), "{allowed}");
        }
        for refused in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "MPL-2.0", "SSPL-1.0"] {
            assert_eq!(is_allowed(refused), Ok(false), "{refused}");
        }
        assert!(is_allowed("").is_err() && is_allowed("ask me").is_err());
    }

    #[test]
    fn a_package_from_elsewhere_is_a_fault() {
        let package = |source: Option<&str>, license: &str| Package {
            id: String::new(),
            name: "a".to_owned(),
            version: "1.0.0".to_owned(),
            license: license.to_owned(),
            source: source.map(str::to_owned),
            dir: PathBuf::new(),
        };
        assert_eq!(fault(&package(None, "MIT")), None);
        assert_eq!(fault(&package(Some(CRATES_IO), "MIT")), None);
        let git = fault(&package(Some("git+https://example.org/a"), "MIT")).unwrap();
        assert!(git.contains("example.org"), "{git}");
        let copyleft = fault(&package(Some(CRATES_IO), "GPL-3.0-only")).unwrap();
        assert!(copyleft.contains("not allowed"), "{copyleft}");
    }
}
