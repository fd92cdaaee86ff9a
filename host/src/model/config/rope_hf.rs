//! The rotary embedding in config.json, in the old spelling (`rope_theta`, `rope_scaling`) and the
//! new one (`rope_parameters`, which may be nested by layer type).

use super::fields::{Fields, POSITIVE};
use super::{ConfigError, Family, MULTIPLIER, QueryScaling, THETA, range};
use crate::model::rope::{Rope, RopeScaling, longrope_attention_factor, yarn_attention_factor};
use std::ops::RangeInclusive;

/// The base of Gemma 3's layers with a window.
pub(super) const GEMMA3_LOCAL_THETA: f64 = 10_000.0;

/// What divides a frequency that is none.
const NO_FREQUENCY: f32 = 1e30;

const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// What the rotary embedding is where config.json says nothing.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    pub theta: f64,
    pub head_dim: usize,
    /// Elements of a head of Gemma 4's layers without a window.
    pub full_head_dim: usize,
}

/// What config.json says of positions.
pub(super) struct Positions {
    pub of_type: RopeOfType,
    pub query_scaling: Option<QueryScaling>,
}

/// The rotary embeddings of layers without a window, and of those with one.
pub(super) struct RopeOfType {
    pub full: Rope,
    pub sliding: Rope,
}

impl RopeOfType {
    fn both(rope: Rope) -> Self {
        RopeOfType { full: rope.clone(), sliding: rope }
    }
}

/// The rotary embeddings that config.json describes.
pub(super) fn rope(
    config: &Fields,
    family: Family,
    default: Defaults,
    max_position_embeddings: usize,
) -> Result<Positions, ConfigError> {
    let parameters = match config.object("rope_scaling")? {
        Some(scaling) if !scaling.is_empty() => Some(scaling),
        _ => config.object("rope_parameters")?,
    };
    let reader = |parameters| Reader {
        config,
        parameters,
        family,
        default,
        max_position_embeddings,
        theta: "rope_theta",
    };
    // Its class has a scaling for want of another; no published model relies on it.
    if matches!(family, Family::Ministral3 | Family::GptOss) && parameters.is_none() {
        return Err(ConfigError::Missing { field: "rope_parameters".into() });
    }
    let query_scaling = reader(parameters).query_scaling()?;
    let parameters_of = |layer_type: &'static str| match parameters {
        Some(parameters) => parameters.object(layer_type),
        None => Ok(None),
    };
    let nested = |layer_type| {
        let nested = parameters_of(layer_type)?;
        nested.map(|nested| reader(Some(nested)).rope()).transpose()
    };
    if matches!(family, Family::Gemma3 | Family::Gemma4) {
        // Each has its own defaults; parameters that are not nested are those of full attention.
        let [full, sliding] = [parameters_of(LAYER_TYPES[0])?, parameters_of(LAYER_TYPES[1])?];
        let local = Defaults { theta: GEMMA3_LOCAL_THETA, ..default };
        let local = Reader { theta: "rope_local_base_freq", default: local, ..reader(sliding) };
        let all = parameters.filter(|_| sliding.is_none());
        let global = Defaults { head_dim: default.full_head_dim, ..default };
        let global = Reader { default: global, ..reader(full.or(all)) };
        let of_type = RopeOfType { full: global.rope()?, sliding: local.rope()? };
        return Ok(Positions { of_type, query_scaling });
    }
    let of_type = match (nested(LAYER_TYPES[0])?, nested(LAYER_TYPES[1])?) {
        (None, None) => {
            let full = reader(parameters).rope()?;
            match family {
                // The scaling is that of full attention.
                Family::Olmo3 => RopeOfType {
                    sliding: Rope { scaling: RopeScaling::None, ..full.clone() },
                    full,
                },
                _ => RopeOfType::both(full),
            }
        }
        (Some(full), Some(sliding)) if family == Family::Olmo3 || full == sliding => {
            RopeOfType { full, sliding }
        }
        (Some(rope), None) | (None, Some(rope)) => RopeOfType::both(rope),
        (Some(_), Some(_)) => {
            let why = "rotary embeddings that differ between layers are not those of this family";
            return Err(ConfigError::invalid(LAYER_TYPES[0], "another than the other", why));
        }
    };
    Ok(Positions { of_type, query_scaling })
}

struct Reader<'a> {
    config: &'a Fields<'a>,
    parameters: Option<Fields<'a>>,
    family: Family,
    default: Defaults,
    max_position_embeddings: usize,
    /// What the base of the frequencies is called at the top of the configuration.
    theta: &'static str,
}

impl Reader<'_> {
    fn rope(&self) -> Result<Rope, ConfigError> {
        let inner = self.parameters.map(|p| p.number("rope_theta", THETA)).transpose()?.flatten();
        let top = self.config.number(self.theta, THETA)?;
        let theta = inner.or(top).unwrap_or(self.default.theta);
        let scaling = self.scaling()?;
        let default = match self.family {
            Family::Glm4Moe => 0.5,
            family if family.has_delta() => 0.25,
            _ => 1.0,
        };
        let part = self.either("partial_rotary_factor", 0.0..=1.0)?.unwrap_or(default);
        // Unscaled frequencies are a matter of each family in transformers, and these alone read it
        // for them.
        let reads =
            matches!(self.family, Family::Phi3 | Family::Glm4Moe) || self.family.has_delta();
        // Proportional frequencies have read it.
        let is_read =
            !matches!(scaling, RopeScaling::Factors(_)) && (reads || scaling != RopeScaling::None);
        let head_dim = self.default.head_dim;
        let rotary_dim = if is_read { (head_dim as f64 * part) as usize } else { head_dim };
        Ok(Rope { theta, rotary_dim, scaling })
    }

    fn query_scaling(&self) -> Result<Option<QueryScaling>, ConfigError> {
        let (Family::Ministral3, Some(p)) = (self.family, &self.parameters) else {
            return Ok(None);
        };
        let beta = p.number("llama_4_scaling_beta", 0.0..=*MULTIPLIER.end())?;
        let Some(beta) = beta.filter(|beta| *beta > 0.0) else { return Ok(None) };
        let original_max_position_embeddings = self.original_max_position_embeddings(p)?;
        Ok(Some(QueryScaling { beta, original_max_position_embeddings }))
    }

    /// A number among the parameters or, failing that, at the top of the configuration.
    fn either(&self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ConfigError> {
        let inner = self.parameters.map(|p| p.number(field, range.clone())).transpose()?.flatten();
        if inner.is_some() { Ok(inner) } else { self.config.number(field, range) }
    }

    fn scaling(&self) -> Result<RopeScaling, ConfigError> {
        let is_global = self.family == Family::Gemma4 && self.theta == "rope_theta";
        let p = match self.parameters {
            Some(p) => p,
            // What its class has.
            None if is_global => return Ok(self.proportional(0.25, 1.0)),
            None => return Ok(RopeScaling::None),
        };
        let key = if p.has("rope_type") { "rope_type" } else { "type" };
        let mut kind = p.text(key)?.unwrap_or_else(|| "default".into());
        // Phi-3's first releases called LongRoPE `su`, some of them `yarn`.
        if self.family == Family::Phi3 && (kind == "su" || kind == "yarn") {
            kind = "longrope".into();
        }
        match kind.as_str() {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: p.required_number("factor", POSITIVE)? }),
            "llama3" => self.llama3(&p),
            "yarn" => self.yarn(&p),
            "longrope" => self.longrope(&p),
            "proportional" if self.family == Family::Gemma4 => {
                let part = p.number("partial_rotary_factor", 0.0..=1.0)?.unwrap_or(1.0);
                Ok(self.proportional(part, p.number("factor", POSITIVE)?.unwrap_or(1.0)))
            }
            _ => Err(p.invalid(key, "known are default, linear, llama3, yarn and longrope")),
        }
    }

    /// Frequencies of whole heads, of which the first `part` are as they are but for a divisor, and
    /// the others as good as zeros: as GGUF has them.
    fn proportional(&self, part: f64, divisor: f64) -> RopeScaling {
        let head_dim = self.default.head_dim;
        let rotated = (part * head_dim as f64 / 2.0) as usize;
        let factor = |i: usize| if i < rotated { divisor as f32 } else { NO_FREQUENCY };
        RopeScaling::Factors((0..head_dim / 2).map(factor).collect())
    }

    fn llama3(&self, p: &Fields) -> Result<RopeScaling, ConfigError> {
        let low_freq_factor = p.required_number("low_freq_factor", POSITIVE)?;
        let high_freq_factor = p.required_number("high_freq_factor", POSITIVE)?;
        if high_freq_factor <= low_freq_factor {
            return Err(p.invalid("high_freq_factor", "it must be above low_freq_factor"));
        }
        Ok(RopeScaling::Llama3 {
            factor: p.required_number("factor", POSITIVE)?,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: self.original_max_position_embeddings(p)?,
        })
    }

    fn yarn(&self, p: &Fields) -> Result<RopeScaling, ConfigError> {
        let original_max_position_embeddings = self.original_max_position_embeddings(p)?;
        let factor = match p.number("factor", POSITIVE)? {
            Some(factor) => factor,
            None => self.extension(original_max_position_embeddings),
        };
        let any = f64::from(f32::MIN)..=f64::from(f32::MAX);
        let mscale = p.number("mscale", any.clone())?.unwrap_or(0.0);
        let mscale_all_dim = p.number("mscale_all_dim", any)?.unwrap_or(0.0);
        let attention_factor = p
            .number("attention_factor", POSITIVE)?
            .unwrap_or_else(|| yarn_attention_factor(factor, mscale, mscale_all_dim));
        Ok(RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast: p.number("beta_fast", POSITIVE)?.unwrap_or(32.0),
            beta_slow: p.number("beta_slow", POSITIVE)?.unwrap_or(1.0),
            truncate: p.flag("truncate", true)?,
            original_max_position_embeddings,
        })
    }

    fn longrope(&self, p: &Fields) -> Result<RopeScaling, ConfigError> {
        let original_max_position_embeddings = self.original_max_position_embeddings(p)?;
        let attention_factor = match p.number("attention_factor", POSITIVE)? {
            Some(attention_factor) => attention_factor,
            None => {
                let factor = p.number("factor", POSITIVE)?;
                longrope_attention_factor(
                    factor.unwrap_or_else(|| self.extension(original_max_position_embeddings)),
                    original_max_position_embeddings,
                )
            }
        };
        Ok(RopeScaling::LongRope {
            short_factor: p.required_numbers("short_factor")?,
            long_factor: p.required_numbers("long_factor")?,
            attention_factor,
            original_max_position_embeddings,
        })
    }

    /// The context of the training. At the top of the configuration it overrules the parameters;
    /// Phi-3's class has a default for it there.
    fn original_max_position_embeddings(&self, p: &Fields) -> Result<usize, ConfigError> {
        const FIELD: &str = "original_max_position_embeddings";
        let range = 2..=*range::POSITIONS.end();
        let top = self.config.count(FIELD, range.clone())?;
        let default = (self.family == Family::Phi3).then_some(4096);
        Ok(match top.or(default) {
            Some(original) => original,
            None => p.count(FIELD, range)?.unwrap_or(self.max_position_embeddings),
        })
    }

    /// By how much the context was extended.
    fn extension(&self, original_max_position_embeddings: usize) -> f64 {
        self.max_position_embeddings as f64 / original_max_position_embeddings as f64
    }
}
