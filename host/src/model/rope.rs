//! Rotary position embedding: frequencies, scaling, and the table that a plan reads.
//!
//! As `modeling_rope_utils.py` of transformers computes it: `inv_freq` in f32, the angle `position * inv_freq` in f32,
//! then cosine, sine and attention factor. Powers, cosines and sines are taken in f64 and rounded once, so that a
//! table is the same on every machine.

use rayon::prelude::*;
use std::f64::consts::PI;

/// The rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Columns of a head that are rotated: even, the first ones; the rest pass through.
    pub rotary_dim: usize,
    /// How frequencies are changed for contexts longer than those of the training.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for contexts longer than those of the training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, those between interpolated.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Frequencies of wavelengths over `original_max_position_embeddings / low_freq_factor` are low.
        low_freq_factor: f64,
        /// Frequencies of wavelengths under `original_max_position_embeddings / high_freq_factor` are high.
        high_freq_factor: f64,
        /// Context of the training.
        original_max_position_embeddings: usize,
    },
    /// YaRN, arXiv:2309.00071.
    Yarn {
        /// The divisor of interpolated frequencies.
        factor: f64,
        /// Multiplies cosines and sines.
        attention_factor: f64,
        /// Dimensions that turn more often than this over the training's context are kept.
        beta_fast: f64,
        /// Dimensions that turn less often than this over the training's context are interpolated.
        beta_slow: f64,
        /// Whether the bounds of the ramp are rounded to whole dimensions.
        truncate: bool,
        /// Context of the training.
        original_max_position_embeddings: usize,
    },
    /// LongRoPE, arXiv:2402.13753: a divisor for each frequency.
    LongRope {
        /// `[rotary_dim / 2]`, for contexts of at most `original_max_position_embeddings`.
        short_factor: Vec<f32>,
        /// `[rotary_dim / 2]`, for longer contexts.
        long_factor: Vec<f32>,
        /// Multiplies cosines and sines.
        attention_factor: f64,
        /// Context of the training.
        original_max_position_embeddings: usize,
    },
    /// A divisor for each frequency, `[rotary_dim / 2]`, at every context: `rope_freqs.weight` of a GGUF file.
    Factors(Vec<f32>),
}

impl Rope {
    /// The table `[max_kv_len, rotary_dim]`: for each position `rotary_dim / 2` cosines, then as many sines, both times
    /// the attention factor.
    pub fn table(&self, max_kv_len: usize) -> Vec<f32> {
        let inv_freq = self.inv_freq(max_kv_len);
        let scale = self.attention_factor() as f32;
        let half = inv_freq.len();
        let mut table = vec![0.0; max_kv_len * self.rotary_dim];
        table.par_chunks_mut(self.rotary_dim).enumerate().for_each(|(position, row)| {
            let (cos, sin) = row.split_at_mut(half);
            for (i, frequency) in inv_freq.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                cos[i] = angle.cos() as f32 * scale;
                sin[i] = angle.sin() as f32 * scale;
            }
        });
        table
    }

    /// `[rotary_dim / 2]` angles that one position turns by, in radians, for a context of `max_kv_len` positions.
    pub fn inv_freq(&self, max_kv_len: usize) -> Vec<f32> {
        let powers = self.powers();
        let divided = |factors: &[f32]| -> Vec<f32> {
            powers.iter().zip(factors).map(|(power, factor)| 1.0 / (factor * power)).collect()
        };
        let plain = || powers.iter().map(|power| 1.0 / power);
        match &self.scaling {
            RopeScaling::None => plain().collect(),
            RopeScaling::Linear { factor } => plain().map(|f| f / *factor as f32).collect(),
            RopeScaling::Llama3 { .. } => plain().map(|f| self.llama3(f)).collect(),
            RopeScaling::Yarn { .. } => self.yarn(&powers),
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                ..
            } => divided(if max_kv_len > *original_max_position_embeddings {
                long_factor
            } else {
                short_factor
            }),
            RopeScaling::Factors(factors) => divided(factors),
        }
    }

    /// What cosines and sines are multiplied by.
    fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::LongRope { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// `theta ^ (2 i / rotary_dim)`.
    fn powers(&self) -> Vec<f32> {
        let theta = f64::from(self.theta as f32);
        (0..self.rotary_dim)
            .step_by(2)
            .map(|i| theta.powf(f64::from(i as f32 / self.rotary_dim as f32)) as f32)
            .collect()
    }

    fn llama3(&self, frequency: f32) -> f32 {
        let RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings,
        } = self.scaling
        else {
            return frequency;
        };
        let context = original_max_position_embeddings as f64;
        let wavelength = (2.0 * PI) as f32 / frequency;
        if wavelength < (context / high) as f32 {
            frequency
        } else if wavelength > (context / low) as f32 {
            frequency / factor as f32
        } else {
            let smooth = (context as f32 / wavelength - low as f32) / (high - low) as f32;
            (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
        }
    }

    fn yarn(&self, powers: &[f32]) -> Vec<f32> {
        let RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            truncate,
            original_max_position_embeddings,
            ..
        } = self.scaling
        else {
            return powers.to_vec();
        };
        let dim = self.rotary_dim as f64;
        // The dimension that turns `rotations` times over the training's context.
        let correction_dim = |rotations: f64| {
            let context = original_max_position_embeddings as f64;
            dim * (context / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (correction_dim(beta_fast), correction_dim(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let interpolate = |(i, power): (usize, &f32)| {
            let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            1.0 / (factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
        };
        powers.iter().enumerate().map(interpolate).collect()
    }
}

/// YaRN's attention factor where a configuration gives none.
pub(super) fn yarn_attention_factor(factor: f64, mscale: f64, mscale_all_dim: f64) -> f64 {
    let scaled = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    if mscale != 0.0 && mscale_all_dim != 0.0 {
        scaled(mscale) / scaled(mscale_all_dim)
    } else {
        scaled(1.0)
    }
}

/// LongRoPE's attention factor where a configuration gives none.
pub(super) fn longrope_attention_factor(
    factor: f64,
    original_max_position_embeddings: usize,
) -> f64 {
    if factor <= 1.0 {
        return 1.0;
    }
    (1.0 + factor.ln() / (original_max_position_embeddings as f64).ln()).sqrt()
}
