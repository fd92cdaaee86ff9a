//! Directions of import: no circle among the modules at the top of a crate, or of a folder that is as large as a crate.
//!
//! What a module names in `use` lines counts, that of its tests does not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::process;

/// Folders whose modules have one direction of import, each with the path of its module.
const FOLDERS: [(&str, &[&str]); 9] = [
    ("crates/cuda_builder/src", &[]),
    ("crates/cuda_loader/src", &[]),
    ("crates/hub/src", &[]),
    ("crates/machine_code/src", &[]),
    ("crates/model_cache/src", &[]),
    ("host/src", &[]),
    ("host/src/cli", &["cli"]),
    ("host/src/exec", &["exec"]),
    ("kernels/src", &[]),
];

/// By module: the modules beside it that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_module_imports_what_imports_it() {
    for (folder, module) in FOLDERS {
        let imports = imports(&process::repository().join(folder), module).unwrap();
        assert!(imports.len() > 2, "{folder}: {imports:?}");
        assert_eq!(circle(&imports), None, "{folder}");
    }
}

#[test]
fn a_circle_is_found() {
    let imports = |lines: &[(&str, &str)]| -> Imports {
        lines.iter().map(|(from, to)| (from.to_string(), names(to))).collect()
    };
    assert_eq!(circle(&imports(&[("a", "b"), ("b", "c"), ("c", "")])), None);
    let found = circle(&imports(&[("a", "b"), ("b", "c d"), ("c", ""), ("d", "b")]));
    assert_eq!(found.unwrap(), ["b", "d", "b"]);
}

#[test]
fn imports_are_read_in_every_form() {
    let source = "use crate::{exec::{a, b}, plan};\nuse super::engine::X;\npub(crate) use super::{\n    text, weights::{\
                  self, Y},\n};\nuse std::fs;\n#[cfg(test)]\nmod tests {\n    use crate::server;\n}\n";
    assert_eq!(targets(source, &[], 1), names("exec plan engine text weights"));
    // In a file two folders down `super` is another module, and `super::super` the top.
    assert_eq!(targets("use super::a;\nuse super::super::b::c;\n", &[], 2), names("b"));
    assert_eq!(targets("use crate::exec::cpu;\nuse crate::plan;\n", &["exec"], 1), names("cpu"));
}

fn names(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The imports among the modules of `folder`, whose own module is `module`.
fn imports(folder: &Path, module: &[&str]) -> io::Result<Imports> {
    let mut found = Imports::new();
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((dir, depth)) = folders.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                folders.push((path, depth + 1));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let is_top = depth == 0 && ["lib", "main", "mod"].contains(&&*name);
                if !is_top && name != "tests" {
                    let own = own_module(folder, &path);
                    let depth = if name == "mod" { depth } else { depth + 1 };
                    let source = fs::read_to_string(&path)?;
                    found.entry(own).or_default().extend(targets(&source, module, depth));
                }
            }
        }
    }
    let modules: BTreeSet<String> = found.keys().cloned().collect();
    for (own, targets) in &mut found {
        targets.retain(|target| target != own && modules.contains(target));
    }
    Ok(found)
}

/// The module of `folder` that holds the file.
fn own_module(folder: &Path, path: &Path) -> String {
    let relative: PathBuf = path.strip_prefix(folder).unwrap_or(path).with_extension("");
    let first = relative.iter().next().unwrap_or_default();
    first.to_string_lossy().into_owned()
}

/// What `use` lines of a file name beside its module, which is `depth` below `module`.
fn targets(source: &str, module: &[&str], depth: usize) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = source.lines().map(|line| line.split("//").next().unwrap_or_default());
    let source = lines.collect::<Vec<_>>().join(" ");
    let top: Vec<&str> = [&["crate"][..], module].concat();
    let mut found = BTreeSet::new();
    for statement in source.split(';') {
        let Some((_, tree)) = statement.rsplit_once("use ") else { continue };
        for path in paths(tree) {
            let steps: Vec<&str> = path.split("::").map(str::trim).collect();
            let supers = steps.iter().take_while(|step| **step == "super").count();
            if supers == depth && supers > 0 {
                found.extend(steps.get(supers).map(|step| step.to_string()));
            } else if steps.starts_with(&top) {
                found.extend(steps.get(top.len()).map(|step| step.to_string()));
            }
        }
    }
    found
}

/// The paths of a `use` tree, without braces.
fn paths(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![tree.trim().to_owned()] };
    let (prefix, mut depth, mut start) = (tree[..open].trim(), 0, open + 1);
    let mut found = Vec::new();
    for (at, character) in tree.char_indices().skip(open) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 1 && character == ',' || depth == 0 {
            let inner = paths(&tree[start..at]).into_iter().filter(|path| !path.is_empty());
            found.extend(inner.map(|path| format!("{prefix}{path}")));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// A circle, from a module back to it.
fn circle(imports: &Imports) -> Option<Vec<String>> {
    fn walk(imports: &Imports, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
        let last = path.last().expect("a path has a start").clone();
        for next in imports.get(&last).into_iter().flatten() {
            if let Some(start) = path.iter().position(|name| name == next) {
                path.drain(..start);
                path.push(next.clone());
                return true;
            }
            if !done.contains(next) {
                path.push(next.clone());
                if walk(imports, path, done) {
                    return true;
                }
                path.pop();
            }
        }
        done.insert(last);
        false
    }
    let mut done = BTreeSet::new();
    imports.keys().find_map(|start| {
        let mut path = vec![start.clone()];
        (!done.contains(start) && walk(imports, &mut path, &mut done)).then_some(path)
    })
}
