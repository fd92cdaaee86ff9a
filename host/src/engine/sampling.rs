//! How a request wants its next token chosen.

/// How the next token is chosen, in this order (llama.cpp's): repetition penalty, top-k, top-p, min-p, temperature, a
/// draw. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits before the draw; 0 takes the largest logit.
    pub temperature: f32,
    /// Only the `top_k` largest logits; 0 for all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this probability; 1 for all (arXiv:1904.09751).
    pub top_p: f32,
    /// Only tokens at least this probable, as a share of the most probable one's; 0 for all (arXiv:2407.01082).
    pub min_p: f32,
    /// Positive logits of tokens that the prompt or the answer holds are divided by it, negative ones multiplied; 1
    /// for none (arXiv:1909.05858).
    pub repetition_penalty: f32,
    /// The same seed draws the same tokens, whatever else is in the batch.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether every value is one that it can have.
    ///
    /// # Errors
    /// [`SamplingError::Value`] for the first that is not.
    pub fn check(&self) -> Result<(), SamplingError> {
        let &Sampling { temperature, top_p, min_p, repetition_penalty: penalty, .. } = self;
        let is_share = |value: f32| (0.0..=1.0).contains(&value);
        let checks = [
            (
                "temperature",
                temperature,
                temperature.is_finite() && temperature >= 0.0,
                "0 or more",
            ),
            ("top-p", top_p, is_share(top_p), "0 to 1"),
            ("min-p", min_p, is_share(min_p), "0 to 1"),
            ("repetition penalty", penalty, penalty.is_finite() && penalty > 0.0, "above 0"),
        ];
        match checks.into_iter().find(|&(_, _, ok, _)| !ok) {
            Some((name, value, _, range)) => Err(SamplingError::Value { name, value, range }),
            None => Ok(()),
        }
    }
}

/// Why no token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A value of [`Sampling`] is out of its range.
    #[error("{name} {value}: it has to be {range}")]
    Value {
        /// Which.
        name: &'static str,
        /// The value.
        value: f32,
        /// What it can be.
        range: &'static str,
    },
    /// A logit is NaN or positive infinity.
    #[error(
        "the model's logit of token {token} is NaN or inf: its weights or its arithmetic are broken"
    )]
    NotFinite {
        /// The first such token.
        token: u32,
    },
    /// Every logit is negative infinity.
    #[error("the model rules out every token: all logits are -inf")]
    NoCandidate,
}
