//! `kernels.lock`: for every kernel and target the hash of its PTX, and what the assembler made of it when the checks passed.

use super::built::Kernel;
use anyhow::{Context, Result, bail, ensure};
use machine_code::{Assembled, Class};
use std::{collections::BTreeMap, fmt, fs, io, path::Path};

/// First lines of the file.
const ABOUT: &str = "\
# What NVIDIA's assembler makes of every kernel. `cargo xtask ptxas` assembles what differs from this
# file, `cargo xtask ptxas --bless` writes it. A kernel is here if it passed every check: no spills, no
# stack, no local memory, no performance warning. A line: target, symbol, SHA-256 of the PTX; registers
# of a thread, bytes of static shared memory; instructions by class (one in a loop counts once); those
# that the kernel was written for (crates/machine_code/src/expected/table.rs).
";

/// A kernel for a target, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// As in PTX.
    pub target: String,
    /// The PTX entry.
    pub symbol: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.symbol, self.target)
    }
}

/// What is recorded of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// SHA-256 of the PTX, in hex.
    pub hash: String,
    /// Registers, shared memory and numbers of instructions, each with its name.
    pub counts: Vec<(String, u32)>,
}

impl Entry {
    /// What is recorded of `kernel`, which has no faults.
    ///
    /// # Errors
    /// If the tools named no registers or wrote no machine code.
    pub fn new(kernel: &Kernel, assembled: &Assembled) -> Result<Self> {
        let resources = assembled.resources().context("ptxas names no registers")?;
        let mix = assembled.mix().context("nvdisasm wrote nothing")?;
        let mut counts = vec![
            ("registers".to_owned(), resources.registers),
            ("shared".to_owned(), resources.static_shared_bytes),
        ];
        let classes = Class::ALL.map(|class| (class.name().to_owned(), mix.count(class)));
        counts.extend(classes.into_iter().filter(|(_, count)| *count > 0));
        let code = assembled.code.as_deref().unwrap_or_default();
        let expected = machine_code::expected_instructions(&kernel.key.symbol, code);
        counts.extend(expected.into_iter().map(|(name, count)| (name.to_owned(), count)));
        Ok(Entry { hash: kernel.hash.clone(), counts })
    }

    /// Whether `kernel` has the PTX of this entry, and its checks looked for the same instructions.
    fn is_of(&self, kernel: &Kernel) -> bool {
        // Classes and resources are written in small letters.
        let is_mnemonic = |name: &&str| name.starts_with(|first: char| first.is_ascii_uppercase());
        let names = self.counts.iter().map(|(name, _)| &**name).filter(is_mnemonic);
        self.hash == kernel.hash && names.eq(machine_code::expected_mnemonics(&kernel.key.symbol))
    }
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// The tools and the rules of the checks.
    pub checks: String,
    /// What passed them.
    pub entries: BTreeMap<Key, Entry>,
}

impl Lock {
    /// The file at `path`; empty if there is none.
    ///
    /// # Errors
    /// If it cannot be read, or is not as it was written.
    pub fn read(path: &Path) -> Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| {
                let path = path.display();
                format!("`cargo xtask ptxas --all --bless` writes {path} anew, which is not whole")
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Lock::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let Some(rest) = text.strip_prefix(ABOUT) else {
            bail!("not the first lines of a lock file");
        };
        let mut lines = rest.lines().zip(ABOUT.lines().count() + 1..);
        let (checks, _) = lines.next().context("no line with the tools and rules")?;
        let mut lock = Lock { checks: checks.to_owned(), entries: BTreeMap::new() };
        for (line, number) in lines {
            let (key, entry) =
                parse_entry(line).with_context(|| format!("line {number}: {line}"))?;
            let is_last = lock.entries.last_key_value().is_none_or(|(last, _)| *last < key);
            ensure!(is_last, "line {number}: {key} is there twice, or not in its place");
            lock.entries.insert(key, entry);
        }
        ensure!(lock.to_string() == text, "not as `cargo xtask ptxas --bless` writes it");
        Ok(lock)
    }

    /// Whether `kernel` passed `checks` as it is.
    pub fn holds(&self, kernel: &Kernel, checks: &str) -> bool {
        self.checks == checks
            && self.entries.get(&kernel.key).is_some_and(|entry| entry.is_of(kernel))
    }

    /// What `new` has that this has not, a line each. Other PTX alone is none: its text depends on where the source of
    /// Rust's library lies.
    pub fn differences(&self, new: &Lock) -> Vec<String> {
        let mut lines = Vec::new();
        if self.checks != new.checks {
            lines.push(format!("{} -> {}", self.checks, new.checks));
        }
        for (key, entry) in &new.entries {
            match self.entries.get(key) {
                None => lines.push(format!("{key}: new, {}", changes(&[], &entry.counts))),
                Some(old) if old.counts == entry.counts => {}
                Some(old) => lines.push(format!("{key}: {}", changes(&old.counts, &entry.counts))),
            }
        }
        let gone = self.entries.keys().filter(|key| !new.entries.contains_key(key));
        lines.extend(gone.map(|key| format!("{key}: no such kernel any more")));
        lines
    }

    /// How many kernels of `new` have other PTX than here.
    pub fn num_other_ptx(&self, new: &Lock) -> usize {
        let hash = |lock: &Lock, key| lock.entries.get(key).map(|entry| entry.hash.clone());
        new.entries.keys().filter(|key| hash(self, key) != hash(new, key)).count()
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{ABOUT}{}", self.checks)?;
        for (Key { target, symbol }, Entry { hash, counts }) in &self.entries {
            write!(f, "{target} {symbol} {hash}")?;
            counts.iter().try_for_each(|(name, count)| write!(f, " {name}={count}"))?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// `sm_90a gemv_f16 <hash> registers=40 shared=0 global_load=24 LDG.E.NA=16`.
fn parse_entry(line: &str) -> Result<(Key, Entry)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [target, symbol, hash, counts @ ..] = &words[..] else { bail!("not a kernel's line") };
    ensure!(target.starts_with("sm_") && !symbol.is_empty(), "not a kernel's line");
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    ensure!(hash.len() == 64 && hash.bytes().all(is_hex), "not a SHA-256: {hash}");
    let count = |word: &&str| {
        let (name, count) = word.split_once('=')?;
        Some((name.to_owned(), count.parse().ok()?)).filter(|_| !name.is_empty())
    };
    let counts: Option<Vec<(String, u32)>> = counts.iter().map(count).collect();
    let counts = counts.context("not a name with its number")?;
    let first = counts.iter().map(|(name, _)| &**name).take(2);
    ensure!(first.eq(["registers", "shared"]), "no registers, or no shared memory");
    let key = Key { target: (*target).to_owned(), symbol: (*symbol).to_owned() };
    Ok((key, Entry { hash: (*hash).to_owned(), counts }))
}

/// The counts of `new` that differ from those of `old`, and those that are gone.
fn changes(old: &[(String, u32)], new: &[(String, u32)]) -> String {
    let find = |counts: &[(String, u32)], name: &str| {
        counts.iter().find(|(other, _)| other == name).map(|(_, count)| *count)
    };
    let changed = new.iter().filter_map(|(name, count)| match find(old, name) {
        None => Some(format!("{name} {count}")),
        Some(before) if before == *count => None,
        Some(before) => Some(format!("{name} {before} -> {count}")),
    });
    let gone = old.iter().filter(|(name, _)| find(new, name).is_none());
    let gone = gone.map(|(name, count)| format!("{name} {count} -> none"));
    changed.chain(gone).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
