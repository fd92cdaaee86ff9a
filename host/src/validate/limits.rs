//! What the differences of two settings may be.

use super::{Report, Settings};
use crate::plan::{CacheType, Precision};

/// Bounds of a validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Error of the logits on the text: norm of the difference over the norm of the reference, over
    /// all positions.
    pub logits_error: f64,
    /// Least share of the positions with the same most likely token, of those where the reference
    /// has a clear one: see [`Limits::min_lead`].
    pub min_agreement: f64,
    /// Mean Kullback-Leibler divergence, in nats.
    pub mean_kl: f64,
    /// Change of the perplexity, as a share of the reference's.
    pub perplexity_change: f64,
    /// Error of the residual stream after every layer: norm of the difference over the norm of the
    /// reference.
    pub layer_error: f64,
    /// Difference of a token's probability in the haiku, under teacher forcing.
    pub haiku_probability: f64,
}

impl Default for Limits {
    /// What f16 is held to beside f32.
    fn default() -> Self {
        Limits {
            logits_error: 1e-2,
            min_agreement: 0.99,
            mean_kl: 1e-3,
            perplexity_change: 1e-2,
            layer_error: 1e-2,
            haiku_probability: 1e-2,
        }
    }
}

impl Limits {
    /// Limits of a comparison of `settings`: 8 times as wide where one computes, or keeps keys or
    /// values, in bf16 or in fewer bits: bf16 has 8 significant bits for the 11 of f16. Weights in
    /// E4M3, which has 4, are held to what they do to the text.
    pub fn of(settings: [Settings; 2]) -> Self {
        let limits = Limits::default();
        if settings.iter().any(|settings| settings.fp8) {
            return Limits::FP8;
        }
        if !settings.iter().any(is_coarse) {
            return limits;
        }
        Limits {
            logits_error: 8.0 * limits.logits_error,
            min_agreement: 1.0 - 8.0 * (1.0 - limits.min_agreement),
            mean_kl: 8.0 * limits.mean_kl,
            perplexity_change: 8.0 * limits.perplexity_change,
            layer_error: 8.0 * limits.layer_error,
            haiku_probability: 8.0 * limits.haiku_probability,
        }
    }
}

impl Limits {
    /// Limits for weights in E4M3, and rows that are rounded to it.
    const FP8: Limits = Limits {
        logits_error: 0.15,
        min_agreement: 0.97,
        mean_kl: 2e-2,
        perplexity_change: 1e-2,
        layer_error: 0.15,
        haiku_probability: 0.5,
    };

    /// From which [`lead`](super::logits::Position::lead) on a token is clearly the most likely one:
    /// twice what the bound on the logits lets one of them move. In a model with random weights many
    /// positions have none.
    pub fn min_lead(&self) -> f64 {
        2.0 * self.logits_error
    }
}

/// Whether something is in bf16, or in fewer bits.
fn is_coarse(settings: &Settings) -> bool {
    let Settings { precision, kv, .. } = settings;
    let fine = [CacheType::F32, CacheType::F16];
    let mut cache = [kv.k, kv.v].into_iter().flatten();
    *precision == Precision::BF16 || cache.any(|cache| !fine.contains(&cache))
}

/// A bound that is broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Breach {
    /// Where it is.
    pub place: String,
    /// What it is, and what would be right.
    pub what: String,
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl Report {
    /// The bounds that are broken: the first place of overflow first.
    pub fn breaches(&self) -> Vec<Breach> {
        let mut breaches: Vec<Breach> = self.overflow().into_iter().collect();
        breaches.extend(self.lossy_layer());
        breaches.extend(self.logit_breaches());
        if let Ok(test) = &self.haiku {
            let checks = test.checks(&self.names(), self.limits.haiku_probability).into_iter();
            let faults = checks.filter_map(|check| Some((check.what, check.fault?)));
            breaches.extend(faults.map(|(check, fault)| Breach {
                place: "haiku".to_owned(),
                what: format!("{fault} ({check})"),
            }));
        }
        breaches
    }

    /// The first operation whose values the candidate's type does not hold. A value that is clamped
    /// costs precision only: it is no breach.
    fn overflow(&self) -> Option<Breach> {
        let first = self
            .layers
            .iter()
            .find(|values| values.reference.is_finite() && !values.candidate.is_finite())?;
        let largest = first.reference.max_abs;
        let [reference, candidate] = self.names();
        let what = first.overflow().unwrap_or("nan");
        Some(Breach {
            place: first.place.to_string(),
            what: format!("{what} in {candidate}, where {reference} has values up to {largest:.0}"),
        })
    }

    /// The first layer after which the residual stream is off by more than its bound, though all
    /// values are finite.
    fn lossy_layer(&self) -> Option<Breach> {
        let limit = self.limits.layer_error;
        let residual = self.layers.iter().filter(|values| values.place.is_residual);
        let mut lossy = residual.filter(|values| values.error.is_finite() && values.error > limit);
        let first = lossy.next()?;
        Some(Breach {
            place: first.place.to_string(),
            what: format!(
                "relative error of the residual stream {:.1e}, above {limit:.0e}",
                first.error
            ),
        })
    }

    fn logit_breaches(&self) -> Vec<Breach> {
        let (limits, logits) = (&self.limits, &self.logits);
        let error = logits.error();
        let agreement = logits.clear_agreement(limits.min_lead());
        let kl = logits.mean_kl();
        let change = self.perplexity_change().unwrap_or(0.0);
        let (at, worst) = logits.worst(|position| position.error());
        let position = format!("the worst position is {at}, with a relative error of {worst:.1e}");
        let figures = [
            (
                exceeds(error, limits.logits_error),
                format!(
                    "relative error {error:.1e}, above {:.0e}; {position}",
                    limits.logits_error
                ),
            ),
            (
                agreement < limits.min_agreement,
                format!(
                    "the most likely token agrees at {:.1} % of the positions with a clear one, under {:.1} %",
                    100.0 * agreement,
                    100.0 * limits.min_agreement
                ),
            ),
            (
                exceeds(kl, limits.mean_kl),
                format!("mean KL divergence {kl:.1e} nats, above {:.0e}", limits.mean_kl),
            ),
            (
                exceeds(change, limits.perplexity_change),
                format!(
                    "perplexity off by {:.1} %, above {:.0} %",
                    100.0 * change,
                    100.0 * limits.perplexity_change
                ),
            ),
        ];
        let broken = figures.into_iter().filter(|(is_broken, _)| *is_broken);
        broken.map(|(_, what)| Breach { place: "logits".to_owned(), what }).collect()
    }

    /// The change of the perplexity, as a share of the reference's; none where no text was
    /// predicted.
    pub fn perplexity_change(&self) -> Option<f64> {
        let [reference, candidate] = self.logits.perplexity()?;
        Some((candidate / reference - 1.0).abs())
    }
}

/// Whether `value` is above `limit`; what is not a number is.
fn exceeds(value: f64, limit: f64) -> bool {
    value.is_nan() || value > limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_bits_have_wider_bounds() {
        let limits = |reference, candidate| Limits::of([reference, candidate].map(Settings::from));
        assert_eq!(limits(Precision::F32, Precision::F16), Limits::default());
        let wide = limits(Precision::F32, Precision::BF16);
        assert_eq!((wide.logits_error, wide.haiku_probability), (0.08, 0.08));
        assert!((wide.min_agreement - 0.92).abs() < 1e-12);
        assert_eq!(limits(Precision::BF16, Precision::F16), wide);
        let usual = Settings::from(Precision::F16);
        let with_cache = |cache: CacheType| {
            Limits::of([usual, Settings { kv: cache.into(), ..usual }]).logits_error
        };
        assert_eq!(with_cache(CacheType::Q8_0), 0.08);
        assert_eq!(with_cache(CacheType::F32), 0.01);
    }
}
