//! Which files of a repository are a model.

use crate::{FileName, HubError, RepoId};

/// What is taken of a repository of GGUF files where nothing is asked for.
const DEFAULT_QUANT: &str = "Q4_K_M";

/// The weights of a model in one file.
pub(crate) const SINGLE: &str = "model.safetensors";

/// The index of weights in several files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// One GGUF file, or all its parts in their order.
    Gguf(Vec<FileName>),
    /// Configuration, tokenizer and the like, and [`SINGLE`] or [`INDEX`].
    Safetensors { text: Vec<FileName>, weights: FileName },
}

/// The files that `wanted` means: a quantisation, the name of a GGUF file, or what there is.
pub(crate) fn choose(
    repo: &RepoId,
    files: &[FileName],
    wanted: Option<&str>,
) -> Result<Choice, HubError> {
    if wanted.is_none() {
        let at_root = |name: &str| files.iter().find(|file| file.as_str() == name);
        let weights = at_root(SINGLE).or_else(|| at_root(INDEX));
        if let (Some(_), Some(weights)) = (at_root("config.json"), weights) {
            let text = files.iter().filter(|file| is_text(file)).cloned().collect();
            return Ok(Choice::Safetensors { text, weights: weights.clone() });
        }
    }
    choose_gguf(repo, files, wanted).map(Choice::Gguf)
}

/// The GGUF file that is meant, with all its parts.
pub(crate) fn choose_gguf(
    repo: &RepoId,
    files: &[FileName],
    wanted: Option<&str>,
) -> Result<Vec<FileName>, HubError> {
    let all: Vec<_> = files.iter().filter(|file| is_gguf(file.as_str())).collect();
    let models: Vec<_> = all.iter().copied().filter(|file| is_model(file)).collect();
    let matching = match wanted {
        Some(name) if is_gguf(name) => {
            let exact = all.iter().find(|file| file.as_str() == name);
            exact.map_or_else(
                || all.iter().copied().filter(|file| file.base() == name).collect(),
                |&file| vec![file],
            )
        }
        Some(quant) => files_with_quant(&models, quant),
        None => match &files_with_quant(&models, DEFAULT_QUANT)[..] {
            [] => models.clone(),
            default => default.to_vec(),
        },
    };
    let names = |files: &[&FileName]| {
        let mut names: Vec<_> = files.iter().map(|file| file.as_str().to_owned()).collect();
        names.sort();
        names
    };
    let repo = repo.clone();
    match &matching[..] {
        [] => Err(match wanted {
            Some(wanted) => {
                HubError::NoMatch { repo, wanted: wanted.to_owned(), files: names(&all) }
            }
            None => HubError::NoModel { repo, files: names(&files.iter().collect::<Vec<_>>()) },
        }),
        [first, rest @ ..]
            if Part::of(first).is_some_and(|part| rest.iter().all(|file| part.has(file))) =>
        {
            parts(&repo, files, first)
        }
        [file] => Ok(vec![(*file).clone()]),
        _ => Err(HubError::Ambiguous { repo, files: names(&matching) }),
    }
}

pub(crate) fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name.as_bytes()[name.len() - 5..].eq_ignore_ascii_case(b".gguf")
}

/// Whether a GGUF file is a language model, and not its projector of images or what it was quantised with.
pub(crate) fn is_model(file: &FileName) -> bool {
    let base = file.base().to_ascii_lowercase();
    !base.contains("mmproj") && !base.contains("imatrix")
}

/// The files whose path has `quant` as a word: `Q4_K` is no word of `Q4_K_M`.
fn files_with_quant<'a>(files: &[&'a FileName], quant: &str) -> Vec<&'a FileName> {
    let quant = quant.to_ascii_lowercase();
    let is_inside = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let has_word = |file: &&&FileName| {
        let name = file.as_str().to_ascii_lowercase();
        name.match_indices(&quant[..]).any(|(at, _)| {
            let (before, after) = (&name.as_bytes()[..at], &name.as_bytes()[at + quant.len()..]);
            !before.last().is_some_and(is_inside) && !after.first().is_some_and(is_inside)
        })
    };
    files.iter().filter(has_word).copied().collect()
}

/// A file of a GGUF file in several: `MODEL-00001-of-00002.gguf`, as llama-gguf-split names them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    model: &'a str,
    /// From one.
    number: usize,
    count: usize,
}

impl<'a> Part<'a> {
    /// What `file` is a part of, if it is one of several.
    pub(crate) fn of(file: &'a FileName) -> Option<Self> {
        let stem = &file.as_str()[..file.as_str().len() - ".gguf".len()];
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (model, number) = rest.rsplit_once('-')?;
        let number_of = |text: &str| {
            let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        let part = Self { model, number: number_of(number)?, count: number_of(count)? };
        (part.count > 1 && (1..=part.count).contains(&part.number)).then_some(part)
    }

    /// Whether `file` is another part of the same.
    fn has(&self, file: &FileName) -> bool {
        Part::of(file).is_some_and(|part| (part.model, part.count) == (self.model, self.count))
    }
}

/// All parts that `first` is one of, in their order; `first` alone if it is whole.
pub(crate) fn parts(
    repo: &RepoId,
    files: &[FileName],
    first: &FileName,
) -> Result<Vec<FileName>, HubError> {
    let Some(Part { model, count, .. }) = Part::of(first) else { return Ok(vec![first.clone()]) };
    let mut parts = Vec::new();
    for number in 1..=count {
        let wanted = Part { model, number, count };
        let found = files.iter().filter(|file| is_gguf(file.as_str()));
        let found = found.into_iter().find(|&file| Part::of(file) == Some(wanted));
        parts.push(found.cloned().ok_or_else(|| HubError::Part {
            repo: repo.clone(),
            file: first.as_str().to_owned(),
            count,
            missing: format!("{model}-{number:05}-of-{count:05}.gguf"),
        })?);
    }
    Ok(parts)
}

/// Whether `file` is a whole GGUF file, or the first of its parts.
pub(crate) fn is_first(file: &FileName) -> bool {
    Part::of(file).is_none_or(|part| part.number == 1)
}

/// Whether a file is configuration, tokenizer or chat template: at the root, but for templates by name.
fn is_text(file: &FileName) -> bool {
    const NAMES: &[&str] = &[
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "quantize_config.json",
        "quant_config.json",
        "hf_quant_config.json",
    ];
    let name = file.as_str();
    let is_tokenizer = name.starts_with("tokenizer") && has_extension(name, &["json", "model"]);
    let is_template = name.starts_with("chat_template") && has_extension(name, &["json", "jinja"]);
    let is_named = name
        .strip_prefix("additional_chat_templates/")
        .is_some_and(|name| !name.contains('/') && has_extension(name, &["jinja"]));
    is_named || file.is_at_root() && (NAMES.contains(&name) || is_tokenizer || is_template)
}

fn has_extension(name: &str, extensions: &[&str]) -> bool {
    name.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> RepoId {
        "org/model".parse().unwrap()
    }

    fn files(names: &[&str]) -> Vec<FileName> {
        names.iter().map(|name| FileName::new(&repo(), name).unwrap()).collect()
    }

    fn gguf(names: &[&str], wanted: Option<&str>) -> Result<String, HubError> {
        match choose(&repo(), &files(names), wanted)? {
            Choice::Gguf(files) => Ok(files[0].as_str().to_owned()),
            other => panic!("{other:?}"),
        }
    }

    const QUANTS: &[&str] = &[
        "README.txt",
        "Model-Q4_K_S.gguf",
        "Model-Q4_K_M.gguf",
        "Model-IQ4_XS.gguf",
        "Model-Q8_0.gguf",
        "Model-Q4_0_4_4.gguf",
        "mmproj-Model-Q8_0.gguf",
        "big/Model-bf16-00001-of-00002.gguf",
        "big/Model-bf16-00002-of-00002.gguf",
    ];

    #[test]
    fn a_quantisation_is_a_word_of_a_file_name_in_any_case() {
        for (wanted, file) in [
            ("q4_k_m", "Model-Q4_K_M.gguf"),
            ("Q8_0", "Model-Q8_0.gguf"),
            ("iq4_xs", "Model-IQ4_XS.gguf"),
            ("Model-Q4_K_S.gguf", "Model-Q4_K_S.gguf"),
            ("mmproj-Model-Q8_0.gguf", "mmproj-Model-Q8_0.gguf"),
        ] {
            assert_eq!(gguf(QUANTS, Some(wanted)).unwrap(), file);
        }
        for wanted in ["Q4_K", "XS", "Q4_0", "q5_k_m", "model-q4_k_s.gguf"] {
            let none = gguf(QUANTS, Some(wanted)).unwrap_err();
            assert!(matches!(none, HubError::NoMatch { .. }), "{wanted}: {none:?}");
            assert!(none.to_string().contains("Model-IQ4_XS.gguf"), "{none}");
        }
    }

    #[test]
    fn what_is_not_asked_for_is_q4_k_m_or_the_only_one() {
        assert_eq!(gguf(QUANTS, None).unwrap(), "Model-Q4_K_M.gguf");
        assert_eq!(gguf(&["a.q8_0.gguf", "mmproj-a.gguf"], None).unwrap(), "a.q8_0.gguf");
        let several = gguf(&["b.Q8_0.gguf", "a.Q5_0.gguf"], None).unwrap_err();
        let message = several.to_string();
        assert!(matches!(several, HubError::Ambiguous { .. }), "{message}");
        assert!(message.contains("a.Q5_0.gguf, b.Q8_0.gguf"), "{message}");
        let two = gguf(&["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], Some("Q4_K_M")).unwrap_err();
        assert!(matches!(two, HubError::Ambiguous { .. }), "{two}");
        let none = gguf(&["config.json", "pytorch_model.json"], None).unwrap_err();
        assert!(matches!(none, HubError::NoModel { .. }), "{none}");
    }

    #[test]
    fn files_in_parts_are_all_taken() {
        let big = ["big/Model-bf16-00001-of-00002.gguf", "big/Model-bf16-00002-of-00002.gguf"];
        for wanted in ["bf16", big[0], big[1], "Model-bf16-00002-of-00002.gguf"] {
            let choice = choose(&repo(), &files(QUANTS), Some(wanted)).unwrap();
            assert_eq!(choice, Choice::Gguf(files(&big)), "{wanted}");
        }
        assert_eq!(gguf(&["a-00001-of-00001.gguf"], None).unwrap(), "a-00001-of-00001.gguf");
        let two = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b-00001-of-00002.gguf"];
        assert!(matches!(gguf(&two, None), Err(HubError::Ambiguous { .. })));
        let missing = gguf(&["a-00001-of-00003.gguf", "a-00003-of-00003.gguf"], None).unwrap_err();
        assert!(missing.to_string().contains("a-00002-of-00003.gguf is not there"), "{missing}");
    }

    #[test]
    fn safetensors_come_with_configuration_and_tokenizer_and_nothing_else() {
        let names = files(&[
            "config.json",
            "generation_config.json",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
            "tokenizer.json",
            "tokenizer_config.json",
            "training_args.json",
            "onnx/config.json",
            "onnx/additional_chat_templates/tool_use.jinja",
            "tokenizer/tokenizer.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "consolidated.safetensors",
            "a.Q4_K_M.gguf",
        ]);
        let Ok(Choice::Safetensors { text, weights }) = choose(&repo(), &names, None) else {
            panic!("a model in safetensors")
        };
        assert_eq!(weights.as_str(), INDEX);
        assert_eq!(text, names[..6]);
        let quant = choose(&repo(), &names, Some("q4_k_m")).unwrap();
        assert_eq!(quant, Choice::Gguf(vec![names[13].clone()]));
    }
}
