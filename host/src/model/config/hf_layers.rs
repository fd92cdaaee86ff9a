//! What config.json says of each layer: its sliding window and its rotary embedding.

use super::fields::Fields;
use super::hf::size;
use super::rope_hf::RopeOfType;
use super::{ConfigError, Family, LayerConfig, delta, hf_experts, range};
use crate::model::rope::Rope;

/// Every layer, and the rotary embeddings that they use.
pub(super) fn layers(
    fields: &Fields,
    family: Family,
    default_window: Option<usize>,
    of_type: &RopeOfType,
) -> Result<(Vec<LayerConfig>, Vec<Rope>), ConfigError> {
    let num_layers = size(fields, family, "num_hidden_layers", range::NUM_LAYERS)?;
    let rotates = rotates(fields, family, num_layers)?;
    let windows = windows(fields, family, default_window, &rotates)?;
    let experts = hf_experts::layers(fields, family, num_layers)?;
    let delta = delta::hf_layers(fields, family, num_layers)?;
    let mut ropes = Vec::new();
    let mut layer = |index: usize| {
        let (window, is_delta) = (windows[index], delta[index]);
        let rope = if window.is_some() { &of_type.sliding } else { &of_type.full };
        let rope = (rotates[index] && !is_delta).then(|| index_of(&mut ropes, rope));
        let has_experts = experts[index];
        LayerConfig { window, rope, has_experts, is_delta, ..LayerConfig::default() }
    };
    let layers = (0..num_layers).map(&mut layer).collect();
    Ok((layers, ropes))
}

/// Where `rope` is among `ropes`, to which it is added if it is new.
pub(super) fn index_of(ropes: &mut Vec<Rope>, rope: &Rope) -> usize {
    ropes.iter().position(|known| known == rope).unwrap_or_else(|| {
        ropes.push(rope.clone());
        ropes.len() - 1
    })
}

/// Whether each layer rotates Q and K.
fn rotates(fields: &Fields, family: Family, num_layers: usize) -> Result<Vec<bool>, ConfigError> {
    const FIELD: &str = "no_rope_layers";
    if family != Family::SmolLm3 {
        return Ok(vec![true; num_layers]);
    }
    // Despite its name, 1 stands for a layer that rotates. The list may be longer than needed.
    match fields.flags(FIELD)? {
        Some(mut flags) if flags.len() >= num_layers => {
            flags.truncate(num_layers);
            Ok(flags)
        }
        Some(_) => Err(fields.invalid(FIELD, format!("{num_layers} layers are needed"))),
        None => {
            let interval = fields.count("no_rope_layer_interval", 1..=usize::MAX)?.unwrap_or(4);
            Ok(every_but_last_of(interval, num_layers))
        }
    }
}

/// All layers but the last of every `period`.
pub(super) fn every_but_last_of(period: usize, num_layers: usize) -> Vec<bool> {
    (1..=num_layers).map(|layer| !layer.is_multiple_of(period)).collect()
}

/// The sliding window of each layer.
fn windows(
    fields: &Fields,
    family: Family,
    default: Option<usize>,
    rotates: &[bool],
) -> Result<Vec<Option<usize>>, ConfigError> {
    let num_layers = rotates.len();
    let in_use = match family {
        Family::Llama
        | Family::Granite
        | Family::GraniteMoe
        | Family::Glm4Moe
        | Family::Olmo2
        | Family::Bert
        | Family::Roberta
        | Family::ModernBert
        | Family::Qwen3Next
        | Family::Qwen35
        | Family::Qwen35Moe => false,
        Family::Mistral
        | Family::Mixtral
        | Family::Phi3
        | Family::Olmo3
        | Family::Ministral3
        | Family::GptOss
        | Family::Gemma2
        | Family::Gemma3
        | Family::Gemma4 => true,
        Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe | Family::SmolLm3 => {
            fields.flag("use_sliding_window", false)?
        }
    };
    // Left out, it is the class's default; null stands for no window.
    let window = match fields.has("sliding_window") {
        _ if !in_use => None,
        true => fields.count("sliding_window", range::POSITIONS)?,
        false => default,
    };
    // With this field transformers takes Mistral for Ministral, whose layers differ; the others do
    // not read it.
    let layer_types = match family {
        Family::Mistral
        | Family::Qwen2
        | Family::Qwen3
        | Family::SmolLm3
        | Family::Olmo3
        | Family::GptOss
        | Family::Gemma2
        | Family::Gemma3
        | Family::Gemma4 => fields.texts("layer_types")?,
        _ => None,
    };
    let Some(layer_types) = layer_types else {
        let slides = match family {
            Family::Qwen2 | Family::Qwen3 => {
                let first = fields.count("max_window_layers", 0..=usize::MAX)?.unwrap_or(28);
                (0..num_layers).map(|layer| layer >= first).collect()
            }
            Family::SmolLm3 => rotates.iter().map(|rotates| !rotates).collect(),
            Family::Olmo3 => every_but_last_of(4, num_layers),
            Family::GptOss | Family::Gemma2 => every_but_last_of(2, num_layers),
            Family::Gemma3 => {
                let period = fields.count("sliding_window_pattern", 1..=usize::MAX)?;
                every_but_last_of(period.unwrap_or(6), num_layers)
            }
            Family::Gemma4 => every_but_last_of(6, num_layers),
            _ => vec![true; num_layers],
        };
        let windows = slides.into_iter().map(|slides| window.filter(|_| slides)).collect();
        return Ok(ended(family, windows));
    };
    if layer_types.len() != num_layers {
        return Err(fields.invalid("layer_types", format!("{num_layers} layers are needed")));
    }
    let of_type = |layer_type: &String| match (layer_type.as_str(), window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => {
            Err(fields.invalid("layer_types", "a sliding layer needs `sliding_window`, in use"))
        }
        _ => Err(fields.invalid("layer_types", "full_attention and sliding_attention are known")),
    };
    let windows = layer_types.iter().map(of_type).collect::<Result<_, _>>()?;
    Ok(ended(family, windows))
}

/// `windows`, of which the last layer of Gemma 4 has none whatever config.json says.
fn ended(family: Family, mut windows: Vec<Option<usize>>) -> Vec<Option<usize>> {
    if let (Family::Gemma4, Some(last)) = (family, windows.last_mut()) {
        *last = None;
    }
    windows
}
