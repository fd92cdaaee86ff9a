//! The licence texts of the packages that the binary is made of, for its archive; `deny.toml` says which are allowed.

use crate::process;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

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

/// The licence texts of the packages that the binary for `target` is made of.
pub fn texts(target: &str) -> Result<String> {
    let metadata = metadata(target)?;
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

/// What cargo knows of the packages that builds for `target` use: those that it has downloaded to build here.
fn metadata(target: &str) -> Result<Value> {
    let mut cargo = process::cargo()?;
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline"]);
    cargo.args(["--filter-platform", target]);
    Ok(serde_json::from_str(&process::capture(&mut cargo)?.stdout)?)
}
