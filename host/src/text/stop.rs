//! Where a text ends: the tokens that a checkpoint names, and the one that its chat template
//! puts after an answer.

use std::path::Path;

use serde::Deserialize;

use super::error::TextError;
use super::template::{ChatTemplate, Message};
use super::{Tokenizer, gguf, hf};
use crate::weights::gguf::Metadata;

/// `eos_token_id` of `generation_config.json`, else of `config.json`.
pub(super) fn from_dir(dir: &Path) -> Result<Vec<u32>, TextError> {
    for name in ["generation_config.json", "config.json"] {
        let config: Config = hf::read_json(&dir.join(name))?.unwrap_or_default();
        match config.eos_token_id {
            Some(EosTokenId::One(id)) => return Ok(vec![id]),
            Some(EosTokenId::Several(ids)) => return Ok(ids),
            None => {}
        }
    }
    Ok(Vec::new())
}

/// The end-of-sequence, end-of-turn and end-of-message tokens of a GGUF file.
pub(super) fn from_gguf(metadata: &Metadata) -> Result<Vec<u32>, TextError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let id = gguf::special_id(metadata, name)?;
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}

/// The special token that `template` puts after an answer, found by rendering one.
pub(super) fn end_of_turn(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    const ANSWER: &str = "halfwarp-answer";
    let messages = [Message::new("user", "halfwarp-question"), Message::new("assistant", ANSWER)];
    let rendered = template.render(&messages, false).ok()?;
    let (_, after) = rendered.rsplit_once(ANSWER)?;
    let id = *tokenizer.encode(after.trim_start(), false).ok()?.first()?;
    tokenizer.is_special(&tokenizer.id_to_token(id)?).then_some(id)
}

#[derive(Default, Deserialize)]
struct Config {
    eos_token_id: Option<EosTokenId>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EosTokenId {
    One(u32),
    Several(Vec<u32>),
}
