//! From the compiler's PTX to modules: launch bounds written, one module for each family of kernels.
//!
//! `#[kernel]` leaves a line for every entry in the PTX:
//!
//! ```text
//! // halfwarp.kernel symbol=rms_norm_f32 module=rms_norm maxntid=256 minctapersm=1
//! ```
//!
//! rustc has no launch bounds, so they are written here; without `.maxntid`, ptxas gives each thread the registers of a
//! block of 1,024 and ignores `setmaxnreg`.

mod items;

use std::collections::{BTreeMap, HashMap, HashSet};

use items::{Item, ItemKind};

/// The word that a fact line starts with.
const FACT: &str = "halfwarp.kernel ";

/// PTX of one family of kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxModule {
    /// The family, such as `gemm`.
    pub name: String,
    /// The text, complete: header, entries, and what they refer to.
    pub ptx: String,
    /// Its entries, in the order of the text.
    pub kernels: Vec<Kernel>,
}

/// An entry and its launch bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The PTX entry.
    pub symbol: String,
    /// Most threads of a block (`.maxntid`).
    pub max_threads: u32,
    /// Least resident blocks of an SM (`.minnctapersm`).
    pub min_blocks: u32,
}

/// How PTX and facts can disagree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// A fact line that does not read as one.
    #[error("kernel fact `{0}`: expected symbol=, module=, maxntid= and minctapersm=")]
    Fact(String),
    /// Two kernels of one name.
    #[error("two kernels are named `{0}`")]
    Duplicate(String),
    /// An entry that `#[kernel]` did not make.
    #[error("the entry `{0}` has no launch bounds: write it with #[kernel(launch_bounds(..))]")]
    NoBounds(String),
    /// A fact whose entry the compiler dropped.
    #[error("the kernel `{0}` has no entry in the PTX")]
    NoEntry(String),
    /// Text that is no PTX.
    #[error("PTX, near `{0}`: a declaration without its end")]
    Text(String),
}

/// A fact line: a kernel, and the family that it belongs to.
struct Fact {
    kernel: Kernel,
    module: String,
}

/// Splits the PTX of a device crate into one module for each family, with launch bounds written.
///
/// # Errors
/// [`PtxError`], where the text and the facts in it do not agree.
pub fn split(text: &str) -> Result<Vec<PtxModule>, PtxError> {
    let facts = read_facts(text)?;
    let (header, items) = items::parse(text)?;
    let entries = || items.iter().filter(|item| item.kind == ItemKind::Entry);
    if let Some(entry) = entries().find(|entry| !facts.contains_key(entry.name)) {
        return Err(PtxError::NoBounds(entry.name.to_owned()));
    }
    let found: HashSet<&str> = entries().map(|entry| entry.name).collect();
    if let Some(symbol) = facts.keys().find(|symbol| !found.contains(**symbol)) {
        return Err(PtxError::NoEntry((*symbol).to_owned()));
    }
    let mut families: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in entries() {
        families.entry(&facts[entry.name].module).or_default().push(entry.name);
    }
    Ok(families
        .into_iter()
        .map(|(name, symbols)| PtxModule {
            name: name.to_owned(),
            ptx: module_text(&header, &items, &symbols, &facts),
            kernels: symbols.iter().map(|symbol| facts[symbol].kernel.clone()).collect(),
        })
        .collect())
}

fn read_facts(text: &str) -> Result<BTreeMap<&str, Fact>, PtxError> {
    let mut facts = BTreeMap::new();
    for line in text.lines() {
        let Some(fields) = line.trim().strip_prefix("//").map(str::trim) else { continue };
        let Some(fields) = fields.strip_prefix(FACT) else { continue };
        let (symbol, fact) =
            read_fact(fields).ok_or_else(|| PtxError::Fact(fields.trim().to_owned()))?;
        if facts.insert(symbol, fact).is_some() {
            return Err(PtxError::Duplicate(symbol.to_owned()));
        }
    }
    Ok(facts)
}

fn read_fact(fields: &str) -> Option<(&str, Fact)> {
    let fields: HashMap<&str, &str> =
        fields.split_whitespace().map(|field| field.split_once('=')).collect::<Option<_>>()?;
    let symbol = *fields.get("symbol")?;
    let kernel = Kernel {
        symbol: symbol.to_owned(),
        max_threads: fields.get("maxntid")?.parse().ok()?,
        min_blocks: fields.get("minctapersm")?.parse().ok()?,
    };
    Some((symbol, Fact { kernel, module: (*fields.get("module")?).to_owned() }))
}

/// The text of one module: everything that `symbols` reach, in the order of the whole.
fn module_text(
    header: &str,
    items: &[Item<'_>],
    symbols: &[&str],
    facts: &BTreeMap<&str, Fact>,
) -> String {
    let reached = closure(items, symbols);
    let mut text = header.to_owned();
    for item in items.iter().filter(|item| reached.contains(item.name)) {
        text.push('\n');
        match facts.get(item.name).filter(|_| item.kind == ItemKind::Entry) {
            Some(fact) => {
                let (signature, body) = item.text.split_at(item.body_start);
                text.push_str(signature.trim_end());
                text.push_str(&format!("\n.maxntid {}, 1, 1\n", fact.kernel.max_threads));
                text.push_str(&format!(".minnctapersm {}\n", fact.kernel.min_blocks));
                text.push_str(body);
            }
            None => text.push_str(item.text),
        }
        text.push('\n');
    }
    text
}

/// The names that `symbols` refer to, themselves included. A name can stand for a declaration and its definition.
fn closure<'a>(items: &[Item<'a>], symbols: &[&'a str]) -> HashSet<&'a str> {
    let mut by_name: HashMap<&str, Vec<&Item<'a>>> = HashMap::new();
    for item in items {
        by_name.entry(item.name).or_default().push(item);
    }
    let mut reached: HashSet<&str> = symbols.iter().copied().collect();
    let mut open: Vec<&str> = symbols.to_vec();
    while let Some(name) = open.pop() {
        for word in by_name[name].iter().flat_map(|item| items::words(item.text)) {
            if by_name.contains_key(word) && reached.insert(word) {
                open.push(word);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests;
