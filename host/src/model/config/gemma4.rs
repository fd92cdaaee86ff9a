//! What Gemma 4 has of its own: layers of two kinds of attention with heads of their own, layers
//! that read the keys and values of earlier ones, inputs of each layer, and experts beside the MLP.

use super::fields::Fields;
use super::gguf::Tensors;
use super::{ConfigError, Experts, Family, KvSource, LayerConfig, range};
use crate::model::names::Names;
use crate::plan::KvHeads;

/// The vocabulary of the inputs of layers, and their width, which transformers' class has.
const HF_INPUTS: PerLayerInputs = PerLayerInputs { vocab_size: 262_144, width: 256 };

/// Elements of a head of layers without a window, which transformers' class has.
const HF_GLOBAL_HEAD_DIM: usize = 512;

/// A further embedding of each token for every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInputs {
    /// Rows of its table.
    pub vocab_size: usize,
    /// Elements of a layer.
    pub width: usize,
}

/// Completes `layers` of which windows are known: the last one has none, and those without have
/// heads of their own.
pub(super) fn hf_layers(
    fields: &Fields,
    family: Family,
    layers: &mut [LayerConfig],
    local: KvHeads,
    intermediate_size: usize,
) -> Result<(), ConfigError> {
    if family != Family::Gemma4 {
        return Ok(());
    }
    let joins = fields.flag("attention_k_eq_v", false)?;
    for (index, layer) in layers.iter_mut().enumerate() {
        if layer.window.is_none() {
            layer.heads = Some(hf_global_heads(fields, index, local, joins)?);
            layer.kv = if joins { KvSource::Joint } else { KvSource::Own };
        }
    }
    const SHARED: &str = "num_kv_shared_layers";
    let num_shared = fields.count(SHARED, 0..=*range::NUM_LAYERS.end())?.unwrap_or(0);
    share(fields, SHARED, layers, num_shared)?;
    if fields.flag("use_double_wide_mlp", false)? {
        if !range::INTERMEDIATE_SIZE.contains(&(2 * intermediate_size)) {
            return Err(fields.invalid("intermediate_size", "twice of it is too large to be true"));
        }
        let sharing = layers.iter_mut().filter(|layer| matches!(layer.kv, KvSource::Layer(_)));
        sharing.for_each(|layer| layer.intermediate_size = Some(2 * intermediate_size));
    }
    Ok(())
}

/// The heads of layer `index`, which has no window: as published models say, or as transformers
/// saves them, by layer.
fn hf_global_heads(
    fields: &Fields,
    index: usize,
    local: KvHeads,
    joins: bool,
) -> Result<KvHeads, ConfigError> {
    if let Some(layers) = fields.object("per_layer_config")? {
        let layer = layers.object_at(&index.to_string())?;
        let count = |field, range| match &layer {
            Some(layer) => layer.count(field, range),
            None => Ok(None),
        };
        return Ok(KvHeads {
            num_kv_heads: count("num_key_value_heads", range::NUM_HEADS)?
                .unwrap_or(local.num_kv_heads),
            head_dim: count("head_dim", range::HEAD_DIM)?.unwrap_or(local.head_dim),
        });
    }
    let num_kv_heads = fields.count("num_global_key_value_heads", range::NUM_HEADS)?;
    let head_dim = fields.count("global_head_dim", range::HEAD_DIM)?;
    Ok(KvHeads {
        num_kv_heads: num_kv_heads.filter(|_| joins).unwrap_or(local.num_kv_heads),
        head_dim: head_dim.unwrap_or(HF_GLOBAL_HEAD_DIM),
    })
}

/// Elements of a head of the last layer, which has no window; `head_dim` in another family.
pub(super) fn hf_global_head_dim(
    fields: &Fields,
    family: Family,
    head_dim: usize,
) -> Result<usize, ConfigError> {
    if family != Family::Gemma4 {
        return Ok(head_dim);
    }
    let last = fields.required_count("num_hidden_layers", range::NUM_LAYERS)? - 1;
    let local = KvHeads { num_kv_heads: 1, head_dim };
    Ok(hf_global_heads(fields, last, local, true)?.head_dim)
}

/// The last `num_shared` layers read keys and values of the last one before them of their kind.
fn share(
    fields: &Fields,
    field: &str,
    layers: &mut [LayerConfig],
    num_shared: usize,
) -> Result<(), ConfigError> {
    let Some(first) = layers.len().checked_sub(num_shared).filter(|first| *first > 0) else {
        return Err(fields.invalid(field, format!("there are {} layers in all", layers.len())));
    };
    let (own, shared) = layers.split_at_mut(first);
    for layer in shared {
        let is_alike = |other: &LayerConfig| other.window == layer.window;
        let source = own.iter().rposition(is_alike).ok_or_else(|| {
            fields.invalid(field, "the layers before those have none of each kind to read from")
        })?;
        layer.kv = KvSource::Layer(source);
        layer.heads = own[source].heads;
    }
    Ok(())
}

/// The inputs of each layer that config.json, of a model called `model_type`, describes.
pub(super) fn hf_inputs(
    fields: &Fields,
    family: Family,
    model_type: &str,
) -> Result<Option<PerLayerInputs>, ConfigError> {
    const WIDTH: &str = "hidden_size_per_layer_input";
    if family != Family::Gemma4 {
        return Ok(None);
    }
    // The class of the models that are called so has none, and reads no field.
    let default = if model_type == "gemma4_unified_text" { 0 } else { HF_INPUTS.width };
    let width = match fields.has(WIDTH) {
        true => fields.count(WIDTH, 0..=*range::HIDDEN_SIZE.end())?.unwrap_or(0),
        false => default,
    };
    let vocab_size = fields.count("vocab_size_per_layer_input", range::VOCAB_SIZE)?;
    let inputs = PerLayerInputs { width, vocab_size: vocab_size.unwrap_or(HF_INPUTS.vocab_size) };
    Ok(Some(inputs).filter(|inputs| inputs.width > 0))
}

/// The experts that config.json describes, which are beside the MLP of every layer.
pub(super) fn hf_experts(fields: &Fields) -> Result<Option<Experts>, ConfigError> {
    if !fields.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let experts = Experts::new(
        fields.required_count("num_experts", range::NUM_EXPERTS)?,
        fields.required_count("top_k_experts", range::NUM_EXPERTS)?,
        fields.required_count("moe_intermediate_size", range::INTERMEDIATE_SIZE)?,
    );
    Ok(Some(Experts { beside_mlp: true, ..experts }))
}

/// What of a GGUF file's metadata is a number, or one of each layer.
pub(super) fn counts_of_layers(
    fields: &Fields,
    key: &str,
    range: std::ops::RangeInclusive<usize>,
    num_layers: usize,
) -> Result<Vec<usize>, ConfigError> {
    if let Ok(count) = fields.required_count(key, range.clone()) {
        return Ok(vec![count; num_layers]);
    }
    match fields.counts(key) {
        Ok(Some(counts))
            if counts.len() == num_layers && counts.iter().all(|n| range.contains(n)) =>
        {
            Ok(counts)
        }
        Ok(None) => Err(ConfigError::Missing { field: key.to_owned() }),
        _ => Err(fields.invalid(
            key,
            format!(
                "a whole number from {} to {}, or one of each of {num_layers} layers",
                range.start(),
                range.end()
            ),
        )),
    }
}

/// Completes `layers` of a GGUF file as [`hf_layers`] does: `global` heads are those of layers
/// without a window, which join keys and values where the file has no projection of values.
pub(super) fn gguf_layers(
    fields: &Fields,
    tensors: &impl Tensors,
    layers: &mut [LayerConfig],
    intermediate_size: usize,
) -> Result<(), ConfigError> {
    let num_layers = layers.len();
    let global_dim = fields.required_count("attention.key_length", range::HEAD_DIM)?;
    let num_kv_heads =
        counts_of_layers(fields, "attention.head_count_kv", range::NUM_HEADS, num_layers)?;
    let sizes =
        counts_of_layers(fields, "feed_forward_length", range::INTERMEDIATE_SIZE, num_layers)?;
    let names = Names::gguf(Family::Gemma4);
    for (index, layer) in layers.iter_mut().enumerate() {
        if layer.window.is_none() {
            layer.heads = Some(KvHeads { num_kv_heads: num_kv_heads[index], head_dim: global_dim });
            let values = format!("{}.weight", names.in_layer(index, names.qkv[2]));
            if tensors.shape(&values).is_none() {
                layer.kv = KvSource::Joint;
            }
        }
        layer.intermediate_size = Some(sizes[index]).filter(|size| *size != intermediate_size);
    }
    const SHARED: &str = "attention.shared_kv_layers";
    let num_shared = fields.count(SHARED, 0..=*range::NUM_LAYERS.end())?.unwrap_or(0);
    share(fields, SHARED, layers, num_shared)
}

/// The inputs of each layer of a GGUF file.
pub(super) fn gguf_inputs(
    fields: &Fields,
    tensors: &impl Tensors,
) -> Result<Option<PerLayerInputs>, ConfigError> {
    const KEY: &str = "embedding_length_per_layer_input";
    let width = fields.count(KEY, 0..=*range::HIDDEN_SIZE.end())?.unwrap_or(0);
    if width == 0 {
        return Ok(None);
    }
    let names = Names::gguf(Family::Gemma4);
    let name = format!("{}.weight", names.of_model(names.gemma4.inputs));
    match tensors.shape(&name) {
        Some(&[rows, _]) if range::VOCAB_SIZE.contains(&rows) => {
            Ok(Some(PerLayerInputs { vocab_size: rows, width }))
        }
        Some(shape) => {
            let expected = "it must have a row for each token";
            Err(ConfigError::invalid(name, format!("of shape {shape:?}"), expected))
        }
        None => Err(ConfigError::Missing { field: name }),
    }
}
