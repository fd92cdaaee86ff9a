//! Every public function that executes PTX names its instruction, with a link to the ISA's section.
//!
//! Functions declared by `instruction!` get the link from it. This reads the source for the others:
//! public functions whose body has `asm!`, or calls a private function or a macro that has it.

use std::collections::BTreeSet;
use std::path::Path;

/// A function or a macro of the source.
struct Item {
    /// File and line.
    place: String,
    name: String,
    is_public: bool,
    is_macro: bool,
    /// Whether `instruction!` declares it.
    is_instruction: bool,
    /// Whether its documentation has the line of `ptx!`.
    has_link: bool,
    body: String,
}

/// The start of a body that executes PTX. An `asm!` of a comment alone keeps values in registers.
fn has_asm(body: &str) -> bool {
    body.match_indices("asm!(").any(|(at, _)| !body[at..].starts_with("asm!(\"//"))
}

/// The name after `keyword`, if `line` declares such an item.
fn declared<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let qualifiers = line[..line.find(keyword)?].split("=>").last()?;
    let is_qualifier = |word: &str| {
        matches!(word, "unsafe" | "const" | "extern" | "\"C\"") || word.starts_with("pub")
    };
    qualifiers.split_whitespace().all(is_qualifier).then_some(())?;
    let name = &line[line.find(keyword)? + keyword.len()..];
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    Some(&name[..name.find(|c| !is_name(c))?])
}

fn items(path: &Path, source: &str) -> Vec<Item> {
    let lines: Vec<&str> = source.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let item = |at: usize| {
        let line = lines[at].trim_start();
        let is_macro = line.starts_with("macro_rules! ");
        let name = declared(line, if is_macro { "macro_rules! " } else { "fn " })?;
        let end = (at..lines.len()).find(|&end| {
            let line = lines[end].trim_start();
            indent(lines[end]) == indent(lines[at])
                && (line.starts_with('}') || line.ends_with(';') || line.ends_with("}"))
        })?;
        let is_doc = |line: &&&str| line.trim_start().starts_with(['/', '#', ')', '"']);
        let docs: String = lines[..at].iter().rev().take_while(is_doc).copied().collect();
        let is_instruction = line.contains("=>") || at > 0 && lines[at - 1].ends_with("=>");
        Some(Item {
            place: format!("{}:{}", path.display(), at + 1),
            name: name.to_string(),
            is_public: line.contains("pub ") || line.contains("=> pub "),
            is_macro,
            is_instruction,
            has_link: docs.contains("ptx!(") || docs.contains("PTX [`"),
            body: lines[at..=end].join("\n"),
        })
    };
    (0..lines.len()).filter_map(item).collect()
}

/// Whether `body` calls one of `names`: as a function, with constants, or as a macro.
fn calls(body: &str, names: &BTreeSet<String>) -> bool {
    let body = body.split_once('{').map_or("", |(_, body)| body);
    let is_other = |before: &str| {
        before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            || before.ends_with("emulated::")
    };
    names.iter().any(|name| {
        body.match_indices(name.as_str()).any(|(at, _)| {
            let next = &body[at + name.len()..];
            !is_other(&body[..at]) && (next.starts_with('(') || next.starts_with("::<"))
        })
    })
}

/// The names in lines `name = "mnemonic", ..`, which macros give to the functions that they
/// declare.
fn declared_by_macros(source: &str) -> impl Iterator<Item = String> {
    let names = source.lines().filter_map(|line| line.trim_start().split_once(" = \""));
    let is_name = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    names.map(|(name, _)| name).filter(is_name).map(str::to_string)
}

/// Names of the private functions and of the macros (`name!`) that execute PTX, `declared` among
/// them.
fn instructions(items: &[Item], declared: &BTreeSet<String>) -> BTreeSet<String> {
    let mut names = declared.clone();
    loop {
        let executes = |item: &&Item| {
            let is_private = !item.is_public;
            is_private && (item.is_instruction || has_asm(&item.body) || calls(&item.body, &names))
        };
        let called = |item: &Item| item.name.clone() + if item.is_macro { "!" } else { "" };
        let found = items.iter().filter(executes).map(called);
        let found: BTreeSet<String> = found.chain(declared.iter().cloned()).collect();
        if found == names {
            return names;
        }
        names = found;
    }
}

fn read(folder: &Path, sources: &mut Vec<(std::path::PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, sources);
        } else {
            sources.push((path.clone(), std::fs::read_to_string(path).unwrap()));
        }
    }
}

fn sources() -> Vec<(std::path::PathBuf, String)> {
    let mut sources = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    sources
}

#[test]
fn every_public_instruction_links_to_the_isa() {
    let sources = sources();
    let items: Vec<Item> = sources.iter().flat_map(|(path, source)| items(path, source)).collect();
    let declared = sources.iter().flat_map(|(_, source)| declared_by_macros(source)).collect();
    let names = instructions(&items, &declared);
    let is_unlinked = |item: &&Item| {
        let executes = has_asm(&item.body) || calls(&item.body, &names);
        item.is_public && !item.is_macro && !item.is_instruction && executes && !item.has_link
    };
    let unlinked: Vec<String> = items
        .iter()
        .filter(is_unlinked)
        .map(|item| {
            format!("{}: `{}` executes PTX: document it with `ptx!`", item.place, item.name)
        })
        .collect();
    assert!(unlinked.is_empty(), "\n{}", unlinked.join("\n"));
    // The scan must recognise `asm!`, private instructions, macros, declared functions, and traits.
    for name in ["lop3", "copy_vec", "get_vec", "fetch_add_x2", "stream_vec", "tensor_load"] {
        let executes = |item: &Item| has_asm(&item.body) || calls(&item.body, &names);
        let found = |item: &Item| item.name == name && item.is_public && executes(item);
        assert!(items.iter().any(found), "`{name}` is not recognised");
    }
}

#[test]
fn every_row_of_the_isa_is_used() {
    let sources = sources();
    let (table, others): (Vec<_>, Vec<_>) =
        sources.iter().partition(|(path, _)| path.ends_with("isa.rs"));
    let rows = &table[0].1[table[0].1.find("sections! {").unwrap()..];
    let quoted = rows.split('"').skip(1).step_by(2);
    // Sections have hyphens; requirements start with a capital or are "every SM".
    let mnemonics = quoted.filter(|text| !text.contains('-') && !text.contains("SM"));
    let is_used = |mnemonic: &str| {
        let literal = format!("\"{mnemonic}\"");
        others.iter().any(|(_, source)| source.contains(&literal))
    };
    let unused: Vec<&str> = mnemonics.filter(|mnemonic| !is_used(mnemonic)).collect();
    assert!(unused.is_empty(), "no function has the mnemonics {unused:?}");
}
