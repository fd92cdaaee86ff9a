//! How a request wants its next token chosen.

/// How the next token is chosen, in this order (llama.cpp's): logit bias, penalties, top-k, top-p, min-p, temperature,
/// a draw. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits before the draw; 0, or less than
    /// [`MIN_TEMPERATURE`](crate::exec::RowSampling::MIN_TEMPERATURE), takes the largest logit.
    pub temperature: f32,
    /// Only the `top_k` largest logits; 0 for all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this probability; 1 for all (arXiv:1904.09751).
    pub top_p: f32,
    /// Only tokens at least this probable, as a share of the most probable one's; 0 for all (arXiv:2407.01082).
    pub min_p: f32,
    /// Positive logits of tokens in the prompt or the answer are divided by it, negative ones multiplied; 1 for none
    /// (arXiv:1909.05858).
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each token that was generated before, -2 to 2; 0 for none. As in the OpenAI API and
    /// vLLM, the prompt does not count; llama.cpp counts it.
    pub presence_penalty: f32,
    /// Subtracted from the logit of each token once for every time that it was generated, -2 to 2; 0 for none. The
    /// prompt does not count, see [`Sampling::presence_penalty`].
    pub frequency_penalty: f32,
    /// Added to the logits of these token ids: -100 to 100, or negative infinity, which rules the token out. A token
    /// that is listed twice gets both.
    pub logit_bias: Vec<(u32, f32)>,
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
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// llama.cpp's defaults, for what neither a user nor the model says.
    pub const LLAMA_CPP: Self = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logit_bias: Vec::new(),
        seed: 0,
    };

    /// Whether a model of `vocab_size` tokens can be sampled so.
    ///
    /// # Errors
    /// [`SamplingError::Value`] for the first value out of its range, [`SamplingError::BiasedToken`] for a bias of a
    /// token that the model does not have.
    pub fn check(&self, vocab_size: usize) -> Result<(), SamplingError> {
        check_temperature(self.temperature)?;
        check_share("top-p", self.top_p)?;
        check_share("min-p", self.min_p)?;
        check_repetition_penalty(self.repetition_penalty)?;
        let within_2 = |name, value: f32| in_range(name, value, value.abs() <= 2.0, "-2 to 2");
        within_2("presence penalty", self.presence_penalty)?;
        within_2("frequency penalty", self.frequency_penalty)?;
        for &(token, bias) in &self.logit_bias {
            let ok = bias.abs() <= 100.0 || bias == f32::NEG_INFINITY;
            in_range("logit bias", bias, ok, "-100 to 100, or -inf")?;
            if token as usize >= vocab_size {
                return Err(SamplingError::BiasedToken { token, vocab_size });
            }
        }
        Ok(())
    }
}

/// Whether `value` can be a temperature.
pub(crate) fn check_temperature(value: f32) -> Result<(), SamplingError> {
    in_range("temperature", value, value.is_finite() && value >= 0.0, "0 or more")
}

/// Whether `value` can be a probability.
pub(crate) fn check_share(name: &'static str, value: f32) -> Result<(), SamplingError> {
    in_range(name, value, (0.0..=1.0).contains(&value), "0 to 1")
}

/// Whether `value` can be a repetition penalty.
pub(crate) fn check_repetition_penalty(value: f32) -> Result<(), SamplingError> {
    in_range("repetition penalty", value, value.is_finite() && value > 0.0, "above 0")
}

fn in_range(
    name: &'static str,
    value: f32,
    ok: bool,
    range: &'static str,
) -> Result<(), SamplingError> {
    if ok { Ok(()) } else { Err(SamplingError::Value { name, value, range }) }
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
    /// [`Sampling::logit_bias`] names a token that the model does not have.
    #[error("logit bias of token {token}: the vocabulary has {vocab_size}, 0 to {}", vocab_size - 1)]
    BiasedToken {
        /// The token.
        token: u32,
        /// Ids that the model has.
        vocab_size: usize,
    },
    /// A logit is NaN or positive infinity.
    #[error(
        "the model's logit of token {token} is NaN or inf: its weights or its arithmetic are broken"
    )]
    NotFinite {
        /// The first such token.
        token: u32,
    },
    /// The request's [`Constraint`](super::Constraint) can't tell which tokens may come next.
    #[error("the grammar of the answer can't go on: it is too large or too ambiguous")]
    Constraint,
    /// Every logit is negative infinity.
    #[error("the model or the logit bias rules out every token: all logits are -inf")]
    NoCandidate,
}
