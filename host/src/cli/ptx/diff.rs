//! `halfwarp ptx diff`.

use super::tools;
use crate::cli::{failure::Failure, terminal};
use halfwarp::ptx::TARGETS;
use machine_code::{Assembled, Class, Mix};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::OsStr,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// PTX by target and kernel.
type Build = BTreeMap<(String, String), Text>;

/// The text of a file, or one inside this program.
type Text = Cow<'static, str>;

/// Prints what differs between the builds: exit code 1 if something does.
///
/// # Errors
/// [`Failure::Found`] if they differ, [`Failure::Input`] for a directory that is no build.
pub fn run(old: &Path, new: Option<&Path>) -> Result<(), Failure> {
    let old = read(old)?;
    let new = new.map_or_else(|| Ok(this_program()), read)?;
    let removed: Vec<_> = old.keys().filter(|name| !new.contains_key(*name)).collect();
    let added: Vec<_> = new.keys().filter(|name| !old.contains_key(*name)).collect();
    let both = old.iter().filter_map(|(name, old)| Some((name, old, new.get(name)?)));
    let changed: Vec<_> = both.filter(|(_, old, new)| !is_same(old, new)).collect();
    let differences = differences(&changed)?;

    let mut report = String::new();
    let mut line = |change: &str, (target, symbol): &(String, String), what: &str| {
        writeln!(report, "{change:<8} {target} {symbol}{what}").expect("a String");
    };
    removed.iter().for_each(|name| line("removed", name, ""));
    added.iter().for_each(|name| line("added", name, ""));
    for ((name, ..), difference) in changed.iter().zip(&differences) {
        line("changed", name, &format!(": {difference}"));
    }
    let is_same = report.is_empty();
    let num_kernels = old.len() + added.len();
    let [removed, added, changed] = [removed.len(), added.len(), changed.len()];
    report +=
        &format!("{num_kernels} kernels: {removed} removed, {added} added, {changed} changed\n");
    terminal::print(&report)?;
    if is_same { Ok(()) } else { Err(Failure::Found) }
}

/// What differs in each of `changed`, with the tools if they are there.
fn differences(changed: &[(&(String, String), &Text, &Text)]) -> Result<Vec<String>, Failure> {
    let tools = if changed.is_empty() { None } else { tools::find()? };
    tools::for_each(changed, |((target, symbol), old, new)| {
        let assemble = |ptx: &str| {
            let assembled = tools.as_ref().map(|tools| tools.assemble(ptx, target)).transpose();
            assembled.map_err(|error| Failure::Input(format!("{target}/{symbol}.ptx: {error}")))
        };
        Ok(difference([old, new], [assemble(old)?, assemble(new)?]))
    })
}

fn this_program() -> Build {
    let kernels = TARGETS.iter().flat_map(|target| {
        let name = |symbol: &str| (target.name.to_owned(), symbol.to_owned());
        target.kernels.iter().map(move |kernel| (name(kernel.symbol), kernel.text().into()))
    });
    kernels.collect()
}

/// The files `TARGET/KERNEL.ptx` in `dir`.
fn read(dir: &Path) -> Result<Build, Failure> {
    let mut build = Build::new();
    let is_target = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sm_") && path.is_dir()
    };
    for target in entries(dir)?.into_iter().filter(is_target) {
        for path in entries(&target)? {
            if path.extension() != Some(OsStr::new("ptx")) {
                continue;
            }
            let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into();
            let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
            build.insert((name(&target), name(&path)), text.into());
        }
    }
    if build.is_empty() {
        let why = format!("{} holds no TARGET/KERNEL.ptx", dir.display());
        return Err(Failure::Input(format!("{why}\nhalfwarp ptx dump DIR writes such files")));
    }
    Ok(build)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(dir).map_err(|error| unreadable(dir, &error))?;
    entries.map(|entry| Ok(entry.map_err(|error| unreadable(dir, &error))?.path())).collect()
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Input(format!("cannot read {}: {error}", path.display()))
}

/// Whether the texts are the same but for comments and spaces.
fn is_same(old: &str, new: &str) -> bool {
    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.lines().flat_map(|line| line.split("//").next().unwrap_or_default().split_whitespace())
    }
    words(old).eq(words(new))
}

/// Registers, spills and instructions of a kernel before and after, as far as they differ.
fn difference(ptx: [&str; 2], assembled: [Option<Assembled>; 2]) -> String {
    let [old, new] = &assembled;
    let mut parts = Vec::new();
    if let (Some(old), Some(new)) = (old, new) {
        if old.code.is_some() && old.code == new.code {
            return "the same machine code".to_owned();
        }
        let [old, new] = [old, new].map(|assembled| assembled.resources().unwrap_or_default());
        let mut part = |what: &str, old: u32, new: u32| {
            if old != new {
                parts.push(format!("{what} {old} -> {new}"));
            }
        };
        part("registers", old.registers, new.registers);
        part("stack bytes", old.stack_bytes, new.stack_bytes);
        part("spill stores", old.spill_store_bytes, new.spill_store_bytes);
        part("spill loads", old.spill_load_bytes, new.spill_load_bytes);
        part("static shared bytes", old.static_shared_bytes, new.static_shared_bytes);
    }
    let of_code = [old, new].map(|assembled| assembled.as_ref().and_then(Assembled::mix));
    let (of, [old, new]) = match of_code {
        [Some(old), Some(new)] => ("machine code", [old, new]),
        _ => ("PTX", ptx.map(Mix::from_ptx)),
    };
    parts.push(instructions(of, old, new));
    parts.join(", ")
}

fn instructions(of: &str, old: Mix, new: Mix) -> String {
    let change = |class: Class| {
        let change = i64::from(new.count(class)) - i64::from(old.count(class));
        (change != 0).then(|| format!("{} {change:+}", class.name()))
    };
    let changes: Vec<_> = Class::ALL.into_iter().filter_map(change).collect();
    let totals = format!("{of} instructions {} -> {}", old.total(), new.total());
    if changes.is_empty() {
        format!("{totals}, as many of each class")
    } else {
        format!("{totals} ({})", changes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".entry k() {\n\tadd.s32 \t%r1, %r2, %r3; // sum\n\tret;\n}\n";

    #[test]
    fn comments_and_spaces_are_no_difference() {
        assert!(is_same(PTX, ".entry k() { add.s32 %r1, %r2, %r3;\n// other\n\tret;\n}"));
        assert!(!is_same(PTX, &PTX.replace("%r3", "%r4")));
        assert!(!is_same(PTX, &PTX.replace("// sum", "sum")));
    }

    #[test]
    fn without_tools_the_instructions_of_the_ptx_are_compared() {
        let new = PTX.replace("add.s32", "fma.rn.f32 %f1, %f2, %f3, %f4; add.f32");
        let found = difference([PTX, &new], [None, None]);
        assert_eq!(found, "PTX instructions 2 -> 3 (f32 +2, integer -1)");
        let renamed = PTX.replace("%r3", "%r4");
        let found = difference([PTX, &renamed], [None, None]);
        assert_eq!(found, "PTX instructions 2 -> 2, as many of each class");
    }

    #[test]
    fn with_tools_resources_and_machine_code_are_compared() {
        let assembled = |registers: u32, spills: u32, mnemonic: &str| Assembled {
            report: format!(
                "    0 bytes stack frame, {spills} bytes spill stores, {spills} bytes spill loads\n\
                 ptxas info    : Used {registers} registers\n"
            ),
            code: Some(format!("/*0000*/ {mnemonic} R1 ;\n/*0010*/ EXIT ;\n")),
        };
        let of = |old, new| difference([PTX, PTX], [Some(old), Some(new)]);
        assert_eq!(
            of(assembled(32, 0, "FADD"), assembled(40, 8, "IADD3")),
            "registers 32 -> 40, spill stores 0 -> 8, spill loads 0 -> 8, \
             machine code instructions 2 -> 2 (f32 -1, integer +1)"
        );
        assert_eq!(of(assembled(32, 0, "FADD"), assembled(32, 0, "FADD")), "the same machine code");
    }
}
