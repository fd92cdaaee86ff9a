//! Models that are split over several GGUF files, as llama-gguf-split writes them.
//!
//! `NAME-00001-of-00003.gguf`: each has `split.no` (from zero), `split.count` and
//! `split.tensors.count` (of all files), and its own tensors; the first has all other metadata.
//!
//! Source: `llama_split_path` of llama.cpp, `tools/gguf-split`.

use std::path::{Path, PathBuf};

use super::{GgufError, Metadata};
use crate::weights::shown;

/// The file name of a part, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartName<'a> {
    /// What all parts have before their numbers.
    pub model: &'a str,
    /// From one.
    pub number: usize,
    /// How many parts there are.
    pub count: usize,
}

impl<'a> PartName<'a> {
    /// Reads `NAME-00001-of-00003.gguf`.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (model, number) = rest.rsplit_once('-')?;
        let number_of = |text: &str| {
            let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        let part = Self { model, number: number_of(number)?, count: number_of(count)? };
        (1..=part.count).contains(&part.number).then_some(part)
    }
}

/// How many files the model of `metadata` is split over, if over several.
pub(crate) fn count(metadata: &Metadata) -> Option<u64> {
    metadata.get_u64("split.count").filter(|&count| count > 1)
}

/// The files of the model that `path`, with `metadata`, is one of, in their order.
pub(crate) fn paths(path: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>, GgufError> {
    let (count, no) = (count(metadata), metadata.get_u64("split.no"));
    let (Some(count), Some(no)) = (count, no) else {
        return Err(GgufError::Split("'split.no' is missing".to_owned()));
    };
    let name = path.file_name().and_then(|name| name.to_str()).and_then(PartName::parse);
    match name {
        Some(PartName { model, number, count: named })
            if (number as u64, named as u64) == (no.saturating_add(1), count) =>
        {
            let file =
                |number| path.with_file_name(format!("{model}-{number:05}-of-{named:05}.gguf"));
            Ok((1..=named).map(file).collect())
        }
        _ => Err(GgufError::Split(format!(
            "its name should end in -{:05}-of-{count:05}.gguf, as the others' names do",
            no.saturating_add(1)
        ))),
    }
}

/// Checks that `metadata` is of part `index`, from zero, of `count`.
pub(crate) fn check_part(metadata: &Metadata, index: usize, count: usize) -> Result<(), GgufError> {
    for (key, wanted) in [("split.no", index), ("split.count", count)] {
        let stated = metadata.get_u64(key);
        if stated != Some(wanted as u64) {
            let stated = stated.map_or("missing".to_owned(), |stated| stated.to_string());
            return Err(GgufError::Split(format!("'{key}' should be {wanted}, it is {stated}")));
        }
    }
    Ok(())
}

/// A tensor that an earlier part has, too.
pub(crate) fn twice(tensor: &str) -> GgufError {
    GgufError::Split(format!("tensor {} is in an earlier one, too", shown(tensor)))
}

/// Checks that all files together have the tensors that the first one counts, and takes out what
/// is said of the split.
pub(crate) fn finish(metadata: &mut Metadata, num_tensors: usize) -> Result<(), GgufError> {
    let stated = metadata.get_u64("split.tensors.count");
    metadata.0.retain(|key, _| !key.starts_with("split."));
    match stated {
        Some(stated) if stated != num_tensors as u64 => Err(GgufError::Split(format!(
            "all files have {num_tensors} tensors, where 'split.tensors.count' is {stated}"
        ))),
        _ => Ok(()),
    }
}
