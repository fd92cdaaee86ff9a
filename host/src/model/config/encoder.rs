//! Encoders: BERT, RoBERTa, XLM-RoBERTa and ModernBERT. Their tokens see each other, before and
//! after.

use super::fields::{Fields, POSITIVE};
use super::gguf::{self, Tensors};
use super::hf_layers::index_of;
use super::{Config, ConfigError, Family, LayerConfig, NormPlacement, THETA, range};
use crate::model::names::Names;
use crate::model::rope::{Rope, RopeScaling};
use gpu_types::Activation;

/// What an encoder has that decoders do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    /// Whether a norm is of the sum of the residual stream and a branch, which it becomes; else it
    /// is before the branch, but before the first one.
    pub norm_of_sum: bool,
    /// Whether norms have a bias.
    pub norm_bias: bool,
    /// Whether the MLP is gated.
    pub is_gated: bool,
    /// Positions that are learned; else Q and K are rotated.
    pub positions: Option<LearnedPositions>,
}

/// Positions and types of tokens, of which rows of tables are added to the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedPositions {
    /// Row of the first position.
    pub first: usize,
    /// Types: of a pair of texts the second one has another than the first.
    pub num_types: usize,
}

impl Config {
    /// The encoder that config.json describes.
    pub(super) fn encoder_from_hf(fields: &Fields, family: Family) -> Result<Self, ConfigError> {
        let num_heads = fields.required_count("num_attention_heads", range::NUM_HEADS)?;
        let hidden_size = fields.required_count("hidden_size", range::HIDDEN_SIZE)?;
        let head_dim = fields.divide(hidden_size, "num_attention_heads", num_heads)?;
        let is_modern = family == Family::ModernBert;
        let (field, eps) = match is_modern {
            true => ("hidden_activation", ("norm_eps", 1e-5)),
            false => ("hidden_act", ("layer_norm_eps", 1e-12)),
        };
        if fields.text(field)?.is_some_and(|name| name != "gelu") {
            return Err(fields.invalid(field, "encoders are supported with gelu"));
        }
        if fields.flag("is_decoder", false)? {
            return Err(fields.invalid("is_decoder", "encoders of this family are supported alone"));
        }
        let num_layers = fields.required_count("num_hidden_layers", range::NUM_LAYERS)?;
        let table = fields.required_count("max_position_embeddings", range::POSITIONS)?;
        let positions = positions(fields, family)?;
        let first = positions.map_or(0, |positions| positions.first);
        let max_position_embeddings = table.checked_sub(first).filter(|left| *left > 0);
        let too_few = || {
            fields.invalid("max_position_embeddings", format!("more than {first}: the first ones"))
        };
        let (layers, ropes) = match is_modern {
            true => modern_layers(fields, num_layers, head_dim)?,
            false => (vec![LayerConfig::default(); num_layers], Vec::new()),
        };
        let bias = |field| if is_modern { fields.flag(field, false) } else { Ok(true) };
        Sizes {
            vocab_size: fields.required_count("vocab_size", range::VOCAB_SIZE)?,
            hidden_size,
            intermediate_size: fields
                .required_count("intermediate_size", range::INTERMEDIATE_SIZE)?,
            num_heads,
            head_dim,
            max_position_embeddings: max_position_embeddings.ok_or_else(too_few)?,
            eps: fields.number(eps.0, POSITIVE)?.unwrap_or(eps.1) as f32,
            qkv_bias: bias("attention_bias")?,
            mlp_bias: bias("mlp_bias")?,
            encoder: Encoder {
                norm_of_sum: !is_modern,
                norm_bias: bias("norm_bias")?,
                is_gated: is_modern,
                positions,
            },
            layers,
            ropes,
        }
        .config(family)
    }
}

/// The sizes of an encoder.
pub(super) struct Sizes {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_heads: usize,
    pub head_dim: usize,
    pub max_position_embeddings: usize,
    pub eps: f32,
    pub qkv_bias: bool,
    pub mlp_bias: bool,
    pub encoder: Encoder,
    pub layers: Vec<LayerConfig>,
    pub ropes: Vec<Rope>,
}

impl Sizes {
    /// The configuration of these sizes.
    pub fn config(self, family: Family) -> Result<Config, ConfigError> {
        let config = Config {
            family,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            experts: None,
            // Of gates of decoders: encoders have GELU by the error function.
            activation: Activation::GeluTanh,
            num_heads: self.num_heads,
            num_kv_heads: self.num_heads,
            head_dim: self.head_dim,
            max_position_embeddings: self.max_position_embeddings,
            rms_norm_eps: self.eps,
            tie_word_embeddings: true,
            qkv_bias: self.qkv_bias,
            attention_out_bias: self.qkv_bias,
            mlp_bias: self.mlp_bias,
            qk_norm: None,
            norms_values: false,
            scales_layers: false,
            per_layer_inputs: None,
            norms: NormPlacement::Before,
            embedding_multiplier: 1.0,
            rounds_embedding_multiplier: false,
            residual_multiplier: 1.0,
            has_sinks: false,
            softmax_scale: (self.head_dim as f64).powf(-0.5),
            attention_softcap: None,
            logits_scaling: 1.0,
            logits_softcap: None,
            query_scaling: None,
            attention_gate: false,
            delta: None,
            is_causal: false,
            encoder: Some(self.encoder),
            layers: self.layers,
            ropes: self.ropes,
        };
        config.checked()
    }
}

fn positions(fields: &Fields, family: Family) -> Result<Option<LearnedPositions>, ConfigError> {
    const KIND: &str = "position_embedding_type";
    if family == Family::ModernBert {
        return Ok(None);
    }
    if fields.text(KIND)?.is_some_and(|kind| kind != "absolute") {
        return Err(fields.invalid(KIND, "positions have to be absolute"));
    }
    let first = match family {
        // Positions are counted from the id of the padding on.
        Family::Roberta => fields.count("pad_token_id", 0..=MAX_PADDING)?.unwrap_or(1) + 1,
        _ => 0,
    };
    let num_types = fields.count("type_vocab_size", 0..=MAX_TYPES)?.unwrap_or(2);
    Ok(Some(LearnedPositions { first, num_types }))
}

/// Largest id of the padding that positions are counted from: RoBERTa has 1.
const MAX_PADDING: usize = 1 << 10;

/// Most types of tokens; known are 1, 2 and 4.
pub(super) const MAX_TYPES: usize = 16;

/// The layers of ModernBERT: those with a window, to both sides, have a rotary embedding of their
/// own.
fn modern_layers(
    fields: &Fields,
    num_layers: usize,
    head_dim: usize,
) -> Result<(Vec<LayerConfig>, Vec<Rope>), ConfigError> {
    const TYPES: &str = "layer_types";
    let period = fields.count("global_attn_every_n_layers", 1..=usize::MAX)?.unwrap_or(3);
    let slides: Vec<bool> = match fields.texts(TYPES)? {
        None => (0..num_layers).map(|layer| !layer.is_multiple_of(period)).collect(),
        Some(types) if types.len() != num_layers => {
            return Err(fields.invalid(TYPES, format!("{num_layers} layers are needed")));
        }
        Some(types) => {
            let slides = types.iter().map(|of| match of.as_str() {
                "full_attention" => Ok(false),
                "sliding_attention" => Ok(true),
                _ => Err(fields.invalid(TYPES, "full_attention and sliding_attention are known")),
            });
            slides.collect::<Result<_, _>>()?
        }
    };
    let all = fields.count("local_attention", range::POSITIONS)?.unwrap_or(128);
    let parameters = fields.object("rope_parameters")?;
    let rope = |of_type: &'static str, older: &str, default: f64| {
        let own = parameters.map_or(Ok(None), |parameters| parameters.object(of_type))?;
        let kind = own.map_or(Ok(None), |own| own.text("rope_type"))?;
        if let (Some(own), Some(kind)) = (own, kind)
            && kind != "default"
        {
            return Err(own.invalid("rope_type", "encoders are supported without a scaling"));
        }
        let theta = own.map_or(Ok(None), |own| own.number("rope_theta", THETA))?;
        let theta = theta.or(fields.number(older, THETA)?).unwrap_or(default);
        Ok(Rope { theta, rotary_dim: head_dim, scaling: RopeScaling::None })
    };
    let full = rope("full_attention", "global_rope_theta", 160_000.0)?;
    let sliding = rope("sliding_attention", "local_rope_theta", 10_000.0)?;
    Ok(layers_with(&slides, all / 2 + 1, [&full, &sliding]))
}

/// Layers of which some slide a window, and the rotary embeddings of the others and of these.
pub(super) fn layers_with(
    slides: &[bool],
    window: usize,
    [full, sliding]: [&Rope; 2],
) -> (Vec<LayerConfig>, Vec<Rope>) {
    let mut ropes = Vec::new();
    let layer = |&slides: &bool| {
        let rope = Some(index_of(&mut ropes, if slides { sliding } else { full }));
        LayerConfig { window: slides.then_some(window), rope, ..LayerConfig::default() }
    };
    (slides.iter().map(layer).collect(), ropes)
}

impl Config {
    /// The encoder that GGUF metadata and the tensors beside them describe.
    pub(super) fn encoder_from_gguf(
        fields: &Fields,
        family: Family,
        tensors: &impl Tensors,
    ) -> Result<Self, ConfigError> {
        let names = Names::gguf(family);
        let is_modern = family == Family::ModernBert;
        let num_heads = fields.required_count("attention.head_count", range::NUM_HEADS)?;
        let hidden_size = fields.required_count("embedding_length", range::HIDDEN_SIZE)?;
        let head_dim = fields.divide(hidden_size, "attention.head_count", num_heads)?;
        let num_layers = fields.required_count("block_count", range::NUM_LAYERS)?;
        let context = fields.required_count("context_length", range::POSITIONS)?;
        let rows = |name: &str| tensors.shape(&format!("{name}.weight")).map(|shape| shape[0]);
        let has_bias =
            |stem: &str| tensors.shape(&format!("{}.bias", names.in_layer(0, stem))).is_some();
        let positions = (!is_modern).then(|| LearnedPositions {
            // Conversion has cut those before.
            first: 0,
            num_types: rows(names.encoder.token_types).unwrap_or(0).min(MAX_TYPES),
        });
        let (layers, ropes) = match is_modern {
            true => gguf_modern_layers(fields, num_layers, head_dim)?,
            false => (vec![LayerConfig::default(); num_layers], Vec::new()),
        };
        Sizes {
            vocab_size: gguf::vocab_size(names, tensors)?,
            hidden_size,
            intermediate_size: fields
                .required_count("feed_forward_length", range::INTERMEDIATE_SIZE)?,
            num_heads,
            head_dim,
            // The table has all positions that there are.
            max_position_embeddings: match positions {
                Some(_) => rows(names.encoder.positions)
                    .filter(|rows| range::POSITIONS.contains(rows))
                    .unwrap_or(context),
                None => context,
            },
            eps: fields.required_number("attention.layer_norm_epsilon", POSITIVE)? as f32,
            qkv_bias: has_bias(names.qkv[0]),
            mlp_bias: has_bias(names.down),
            encoder: Encoder {
                norm_of_sum: !is_modern,
                norm_bias: has_bias(names.mlp_norm),
                is_gated: is_modern,
                positions,
            },
            layers,
            ropes,
        }
        .config(family)
    }
}

/// The layers of ModernBERT: the key of the window has both sides together, as config.json has.
fn gguf_modern_layers(
    fields: &Fields,
    num_layers: usize,
    head_dim: usize,
) -> Result<(Vec<LayerConfig>, Vec<Rope>), ConfigError> {
    let all = fields.count("attention.sliding_window", range::POSITIONS)?.unwrap_or(128);
    let period = fields.count("attention.sliding_window_pattern", 1..=usize::MAX)?.unwrap_or(3);
    let slides: Vec<bool> = (0..num_layers).map(|layer| !layer.is_multiple_of(period)).collect();
    let rope = |key, default| -> Result<Rope, ConfigError> {
        let theta = fields.number(key, THETA)?.unwrap_or(default);
        Ok(Rope { theta, rotary_dim: head_dim, scaling: RopeScaling::None })
    };
    let full = rope("rope.freq_base", 160_000.0)?;
    let sliding = rope("rope.freq_base_swa", 10_000.0)?;
    Ok(layers_with(&slides, all / 2 + 1, [&full, &sliding]))
}
