//! Rotary position embedding: frequencies, scaling, and the table that a plan reads.
//!
//! As `modeling_rope_utils.py` of transformers computes it: `inv_freq` in f32, the angle
//! `position * inv_freq` in f32, then cosine, sine and attention factor. Powers, cosines and sines
//! are taken in f64 and rounded once, so that a table is the same on every machine.

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
        /// Frequencies of wavelengths over `original_max_position_embeddings / low_freq_factor` are
        /// low.
        low_freq_factor: f64,
        /// Frequencies of wavelengths under `original_max_position_embeddings / high_freq_factor`
        /// are high.
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
    /// A divisor for each frequency, `[rotary_dim / 2]`, at every context: `rope_freqs.weight` of a
    /// GGUF file.
    Factors(Vec<f32>),
}

/// Q is multiplied by `1 + beta * ln(1 + floor(position / original_max_position_embeddings))` after
/// RoPE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScaling {
    /// How fast the factor grows.
    pub beta: f64,
    /// Positions of a step; within the first one the factor is 1.
    pub original_max_position_embeddings: usize,
}

impl QueryScaling {
    /// The factor at `position`.
    pub fn factor(&self, position: usize) -> f64 {
        let step = position / self.original_max_position_embeddings;
        1.0 + self.beta * (step as f64).ln_1p()
    }
}

impl Rope {
    /// The table `[max_kv_len, rotary_dim]`: for each position `rotary_dim / 2` cosines, then as
    /// many sines, both times the attention factor and that of `scaling`.
    pub fn table(&self, max_kv_len: usize, scaling: Option<&QueryScaling>) -> Vec<f32> {
        let inv_freq = self.inv_freq(max_kv_len);
        let scale = self.attention_factor() as f32;
        let half = inv_freq.len();
        let mut table = vec![0.0; max_kv_len * self.rotary_dim];
        table.par_chunks_mut(self.rotary_dim).enumerate().for_each(|(position, row)| {
            let (cos, sin) = row.split_at_mut(half);
            let scale = scale * scaling.map_or(1.0, |scaling| scaling.factor(position) as f32);
            for (i, frequency) in inv_freq.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                cos[i] = angle.cos() as f32 * scale;
                sin[i] = angle.sin() as f32 * scale;
            }
        });
        table
    }

    /// `[rotary_dim / 2]` angles that one position turns by, in radians, for a context of
    /// `max_kv_len` positions.
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
pub(crate) fn yarn_attention_factor(factor: f64, mscale: f64, mscale_all_dim: f64) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares frequencies with those of transformers 5.17 (`ROPE_INIT_FUNCTIONS`), given by
    /// index.
    fn assert_frequencies(rope: &Rope, max_kv_len: usize, expected: &[(usize, f32)]) {
        let got = rope.inv_freq(max_kv_len);
        assert_eq!(got.len(), rope.rotary_dim / 2);
        for &(i, want) in expected {
            let error = (got[i] - want).abs() / want;
            assert!(error < 5e-7, "{:?}: [{i}] is {}, not {want}", rope.scaling, got[i]);
        }
    }

    #[test]
    fn frequencies_match_transformers() {
        let linear =
            Rope { theta: 1e4, rotary_dim: 64, scaling: RopeScaling::Linear { factor: 4.0 } };
        let expected = [(0, 0.25), (1, 0.18747355), (16, 0.0025), (31, 3.3338037e-5)];
        assert_frequencies(&linear, 1, &expected);

        let scaling = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let llama_3_2_1b = Rope { theta: 5e5, rotary_dim: 64, scaling };
        let expected = [(1, 0.6636013), (14, 0.003211446), (15, 0.001290548), (16, 0.0004295567)];
        assert_frequencies(&llama_3_2_1b, 1, &expected);
        let expected = [(17, 9.708286e-5), (18, 1.9461639e-5), (31, 9.4183065e-8)];
        assert_frequencies(&llama_3_2_1b, 1, &expected);
    }

    #[test]
    fn yarn_matches_transformers() {
        let yarn = |factor, beta_fast, beta_slow, truncate| Rope {
            theta: 1e6,
            rotary_dim: 128,
            scaling: RopeScaling::Yarn {
                factor,
                attention_factor: 1.0,
                beta_fast,
                beta_slow,
                truncate,
                original_max_position_embeddings: 32768,
            },
        };
        let expected = [(22, 0.008659643), (24, 0.0053753215), (36, 0.00017984115)];
        assert_frequencies(&yarn(4.0, 32.0, 1.0, true), 1, &expected);
        let expected = [(40, 4.4456985e-5), (41, 3.5825316e-5), (63, 3.1023444e-7)];
        assert_frequencies(&yarn(4.0, 32.0, 1.0, true), 1, &expected);
        let expected = [(24, 0.0056234132), (26, 0.0036517414), (36, 2.9317995e-5)];
        assert_frequencies(&yarn(40.0, 16.0, 2.0, false), 1, &expected);
        assert!((yarn_attention_factor(4.0, 0.0, 0.0) - 1.138629436111989).abs() < 1e-12);
        assert!((yarn_attention_factor(40.0, 1.0, 0.707) - 1.0857263992561355).abs() < 1e-12);
    }

    #[test]
    fn longrope_chooses_its_factors_by_the_context() {
        let scaling = RopeScaling::LongRope {
            short_factor: (0..48).map(|i| 1.0 + 0.02 * i as f32).collect(),
            long_factor: (0..48).map(|i| 1.0 + 1.25 * i as f32).collect(),
            attention_factor: longrope_attention_factor(32.0, 4096),
            original_max_position_embeddings: 4096,
        };
        let phi3_128k = Rope { theta: 1e4, rotary_dim: 96, scaling };
        let expected = [(1, 0.8092198), (24, 0.006756757), (47, 6.244987e-5)];
        assert_frequencies(&phi3_128k, 4096, &expected);
        let expected = [(1, 0.3668463), (24, 0.00032258066), (47, 2.0276611e-6)];
        assert_frequencies(&phi3_128k, 4097, &expected);
        // Angle 0: the cosine is the attention factor itself.
        assert!((phi3_128k.table(1, None)[0] - 1.190238).abs() < 1e-6);
        assert_eq!(phi3_128k.table(1, None)[48], 0.0);
    }

    #[test]
    fn the_table_matches_transformers() {
        let rope = Rope { theta: 1e4, rotary_dim: 64, scaling: RopeScaling::None };
        let table = rope.table(2048, None);
        assert_eq!(table.len(), 2048 * 64);
        for (position, i, cos, sin) in [
            (0, 9, 1.0, 0.0),
            (1, 0, 0.54030234, 0.84147096),
            (7, 5, -0.08904715, 0.9960274),
            (2047, 0, 0.24971525, -0.9683193),
            (2047, 31, 0.96297395, 0.26959443),
        ] {
            let row: &[f32] = &table[position * 64..][..64];
            assert!((row[i] - cos).abs() < 2e-7, "cos[{position}, {i}] is {}", row[i]);
            assert!((row[32 + i] - sin).abs() < 2e-7, "sin[{position}, {i}] is {}", row[32 + i]);
        }
        // 2047 * inv_freq[5] is 485.4 radians, of which an f32 holds 3e-5.
        assert!((table[2047 * 64 + 5] - -0.04408674).abs() < 1e-4);
    }

    #[test]
    fn factors_divide_frequencies() {
        let plain = Rope { theta: 1e4, rotary_dim: 4, scaling: RopeScaling::None };
        let scaling = RopeScaling::Factors(vec![1.0, 8.0]);
        let [first, second] = plain.inv_freq(1)[..] else { panic!() };
        assert_eq!(Rope { scaling, ..plain }.inv_freq(1), [first, second / 8.0]);
    }
}
