//! From the compiler's PTX to kernels: launch bounds written, one text for each entry.
//!
//! The driver compiles a text whole: with several entries in one text, a model would wait for
//! kernels that it never launches.
//!
//! `#[kernel]` leaves a line for every entry in the PTX:
//!
//! ```text
//! // halfwarp.kernel symbol=rms_norm_f32 family=rms_norm maxntid=256 minctapersm=1
//! // halfwarp.kernel symbol=gemm_f16_256x128 family=gemm maxntid=384 minctapersm=1 cluster=2,1,1
//! ```
//!
//! rustc has no launch bounds and no clusters, so they are written here. Without `.maxntid`, ptxas
//! assumes a block of 1,024 threads, which limits registers, and ignores `setmaxnreg`.

mod items;

use std::collections::{BTreeMap, HashMap, HashSet};

use items::{Item, ItemKind};

/// First word of such a line, a *fact*.
const FACT: &str = "halfwarp.kernel ";

/// A kernel: its launch bounds, and a PTX text of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The PTX entry.
    pub symbol: String,
    /// The file or directory under `src` that it is declared in, such as `gemm`.
    pub family: String,
    /// Most threads of a block (`.maxntid`).
    pub max_threads: u32,
    /// Minimum of resident blocks of an SM (`.minnctapersm`).
    pub min_blocks: u32,
    /// Blocks of a cluster in x, y, z (`.reqnctapercluster`), if the kernel is launched in
    /// clusters.
    pub cluster: Option<[u32; 3]>,
    /// The complete text: header, the entry, and what it refers to.
    pub text: String,
}

/// Why PTX cannot be split into kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// A fact that cannot be parsed.
    #[error(
        "kernel fact `{0}`: expected symbol=, family=, maxntid= and minctapersm=, and cluster=x,y,z \
         if any"
    )]
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
    /// Shared memory of both kinds in one kernel.
    #[error(
        "the kernel `{0}` has shared arrays and dynamic shared memory: a driver that links PTX \
         places the latter after the former without its alignment; make a part of the dynamic \
         memory the array"
    )]
    SharedMemory(String),
    /// Text that is no PTX.
    #[error("PTX, near `{0}`: a declaration without its end")]
    Text(String),
}

/// A parsed fact.
struct Fact<'a> {
    family: &'a str,
    max_threads: u32,
    min_blocks: u32,
    cluster: Option<[u32; 3]>,
}

/// Splits the PTX of a device crate into one text for each kernel, with launch bounds and clusters
/// written; by symbol.
///
/// # Errors
/// [`PtxError`], where the text and the facts in it do not agree.
pub fn split(text: &str) -> Result<Vec<Kernel>, PtxError> {
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
    // A declaration and its definition have the same name.
    let mut by_name: HashMap<&str, Vec<&Item<'_>>> = HashMap::new();
    for item in &items {
        by_name.entry(item.name).or_default().push(item);
    }
    let kernel = |(symbol, fact): (&str, Fact<'_>)| {
        let reached = closure(&by_name, symbol);
        let reached = || items.iter().filter(|item| reached.contains(item.name));
        let shared = |directive: &str| reached().any(|item| item.text.starts_with(directive));
        if shared(".extern .shared") && shared(".shared") {
            return Err(PtxError::SharedMemory(symbol.to_owned()));
        }
        Ok(Kernel {
            symbol: symbol.to_owned(),
            family: fact.family.to_owned(),
            max_threads: fact.max_threads,
            min_blocks: fact.min_blocks,
            cluster: fact.cluster,
            text: kernel_text(&header, reached(), &fact),
        })
    };
    facts.into_iter().map(kernel).collect()
}

fn read_facts(text: &str) -> Result<BTreeMap<&str, Fact<'_>>, PtxError> {
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

fn read_fact(fields: &str) -> Option<(&str, Fact<'_>)> {
    let fields: HashMap<&str, &str> =
        fields.split_whitespace().map(|field| field.split_once('=')).collect::<Option<_>>()?;
    let cluster = match fields.get("cluster") {
        Some(shape) => Some(read_cluster(shape)?),
        None => None,
    };
    // A cluster of one block is none: the GPU can schedule blocks independently.
    let cluster = cluster.filter(|&shape| shape != [1, 1, 1]);
    let fact = Fact {
        family: fields.get("family")?,
        max_threads: fields.get("maxntid")?.parse().ok()?,
        min_blocks: fields.get("minctapersm")?.parse().ok()?,
        cluster,
    };
    Some((fields.get("symbol")?, fact))
}

/// `2,1,1`.
fn read_cluster(shape: &str) -> Option<[u32; 3]> {
    let blocks = shape.split(',').map(|blocks| blocks.parse().ok());
    blocks.collect::<Option<Vec<u32>>>()?.try_into().ok()
}

/// `items`, one of them an entry, as a text with the entry's launch bounds.
fn kernel_text<'a>(
    header: &str,
    items: impl Iterator<Item = &'a Item<'a>>,
    fact: &Fact<'_>,
) -> String {
    let mut text = String::new();
    for item in items {
        text.push('\n');
        match item.kind {
            ItemKind::Entry => {
                let (signature, body) = item.text.split_at(item.body_start);
                text.push_str(&align_tensor_maps(signature.trim_end()));
                text.push_str(&format!("\n.maxntid {}, 1, 1\n", fact.max_threads));
                text.push_str(&format!(".minnctapersm {}\n", fact.min_blocks));
                if let Some([x, y, z]) = fact.cluster {
                    text.push_str(&format!(".explicitcluster\n.reqnctapercluster {x}, {y}, {z}\n"));
                }
                text.push_str(&without_function_number(body));
            }
            ItemKind::Other => text.push_str(item.text),
        }
        text.push('\n');
    }
    header_of(header, &text) + &text
}

/// Instructions that are newer than the compiler's version of PTX, and theirs. Only drivers that
/// know that version compile a kernel that has them.
const NEWER: [(&str, &str); 1] = [("st.async.", "8.1")];

/// The body of a function, whose labels have the function's number in the compiler's output: it would
/// make other text of the same code when a kernel is added.
fn without_function_number(body: &str) -> String {
    const LABEL: &str = "$L__BB";
    let Some(first) = body.find(LABEL) else { return body.to_owned() };
    let number = &body[first + LABEL.len()..];
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    body.replace(&body[first..first + LABEL.len() + digits], LABEL)
}

/// `header` with the version of PTX that `text` needs.
fn header_of(header: &str, text: &str) -> String {
    match NEWER.iter().find(|(instruction, _)| text.contains(instruction)) {
        Some((_, version)) => header.replace(".version 8.0", &format!(".version {version}")),
        None => header.to_owned(),
    }
}

/// `signature` with its tensor maps, the only parameters of 128 bytes, aligned to 64 bytes. TMA
/// requires that, and rustc aligns no parameter to more than 16.
fn align_tensor_maps(signature: &str) -> String {
    let mut lines = signature.lines().map(|line| match line.contains("[128]") {
        true => line.replace(".align 16 ", ".align 64 "),
        false => line.to_owned(),
    });
    let first = lines.next().unwrap_or_default();
    lines.fold(first, |text, line| text + "\n" + &line)
}

/// The names that `symbol` refers to, itself included.
fn closure<'a>(by_name: &HashMap<&'a str, Vec<&Item<'a>>>, symbol: &'a str) -> HashSet<&'a str> {
    let mut reached = HashSet::from([symbol]);
    let mut open = vec![symbol];
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
