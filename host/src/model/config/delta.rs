//! Layers of Gated DeltaNet: what config.json and GGUF metadata say of them.

use super::fields::Fields;
use super::hf_layers::every_but_last_of;
use super::{ConfigError, Family, must, range};
use std::ops::RangeInclusive;

/// Taps of a convolution.
const TAPS: RangeInclusive<usize> = 2..=16;

/// The layers without keys and values: linear attention by the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of keys, and of queries.
    pub num_k_heads: usize,
    /// Heads of values; a multiple of `num_k_heads`.
    pub num_v_heads: usize,
    /// Elements of a key.
    pub k_head_dim: usize,
    /// Elements of a value.
    pub v_head_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel: usize,
    /// Whether the heads of values that share a head of keys are `num_k_heads` apart; else they are
    /// neighbours.
    pub is_tiled: bool,
}

impl DeltaNet {
    /// Columns of the queries, and of the keys.
    pub fn k_width(&self) -> usize {
        self.num_k_heads * self.k_head_dim
    }

    /// Columns of the values.
    pub fn v_width(&self) -> usize {
        self.num_v_heads * self.v_head_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.k_width() + self.v_width()
    }

    fn checked(self) -> Result<Option<Self>, ConfigError> {
        let DeltaNet { num_k_heads, num_v_heads, .. } = self;
        must(
            num_v_heads.is_multiple_of(num_k_heads),
            "linear_num_value_heads",
            num_v_heads.to_string(),
            &format!("it must be a multiple of the {num_k_heads} heads of keys"),
        )?;
        Ok(Some(self))
    }
}

/// What config.json says of a family that has such layers.
pub(super) fn from_hf(fields: &Fields, family: Family) -> Result<Option<DeltaNet>, ConfigError> {
    if !family.has_delta() {
        return Ok(None);
    }
    let count = |field, range, default| {
        fields.count(field, range).map(|count: Option<usize>| count.unwrap_or(default))
    };
    let delta = DeltaNet {
        num_k_heads: count("linear_num_key_heads", range::NUM_HEADS, 16)?,
        num_v_heads: count("linear_num_value_heads", range::NUM_HEADS, 32)?,
        k_head_dim: count("linear_key_head_dim", range::HEAD_DIM, 128)?,
        v_head_dim: count("linear_value_head_dim", range::HEAD_DIM, 128)?,
        conv_kernel: count("linear_conv_kernel_dim", TAPS, 4)?,
        is_tiled: false,
    };
    delta.checked()
}

/// Which layers are such, in config.json.
pub(super) fn hf_layers(
    fields: &Fields,
    family: Family,
    num_layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    const TYPES: &str = "layer_types";
    if !family.has_delta() {
        return Ok(vec![false; num_layers]);
    }
    let Some(types) = fields.texts(TYPES)? else {
        let interval = fields.count("full_attention_interval", 1..=usize::MAX)?.unwrap_or(4);
        return Ok(every_but_last_of(interval, num_layers));
    };
    if types.len() != num_layers {
        return Err(fields.invalid(TYPES, format!("{num_layers} layers are needed")));
    }
    let is_delta = |layer_type: &String| match layer_type.as_str() {
        "linear_attention" => Ok(true),
        "full_attention" => Ok(false),
        _ => Err(fields.invalid(TYPES, "linear_attention and full_attention are known")),
    };
    types.iter().map(is_delta).collect()
}

/// What GGUF metadata say of a family that has such layers. Conversion has tiled the heads of
/// values of the newer ones.
pub(super) fn from_gguf(fields: &Fields, family: Family) -> Result<Option<DeltaNet>, ConfigError> {
    const INNER: &str = "ssm.inner_size";
    if !family.has_delta() {
        return Ok(None);
    }
    let num_v_heads = fields.required_count("ssm.time_step_rank", range::NUM_HEADS)?;
    let inner = fields.required_count(INNER, 1..=1 << 20)?;
    if !inner.is_multiple_of(num_v_heads) || !range::HEAD_DIM.contains(&(inner / num_v_heads)) {
        let expected = format!("{num_v_heads} heads of values have 2 to 256 elements each");
        return Err(fields.invalid(INNER, expected));
    }
    let delta = DeltaNet {
        num_k_heads: fields.required_count("ssm.group_count", range::NUM_HEADS)?,
        num_v_heads,
        k_head_dim: fields.required_count("ssm.state_size", range::HEAD_DIM)?,
        v_head_dim: inner / num_v_heads,
        conv_kernel: fields.required_count("ssm.conv_kernel", TAPS)?,
        is_tiled: family != Family::Qwen3Next,
    };
    delta.checked()
}

/// Which layers are such, in GGUF metadata: a list, or the period of those that are not.
pub(super) fn gguf_layers(
    fields: &Fields,
    family: Family,
    num_layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    const LIST: &str = "attention.recurrent_layers";
    if !family.has_delta() {
        return Ok(vec![false; num_layers]);
    }
    match fields.flags(LIST)? {
        // Layers that predict further tokens are in the list too.
        Some(mut flags) if flags.len() >= num_layers => {
            flags.truncate(num_layers);
            Ok(flags)
        }
        Some(_) => Err(fields.invalid(LIST, format!("{num_layers} layers are needed"))),
        None => {
            let interval = fields.count("full_attention_interval", 1..=usize::MAX)?.unwrap_or(4);
            Ok(every_but_last_of(interval, num_layers))
        }
    }
}
