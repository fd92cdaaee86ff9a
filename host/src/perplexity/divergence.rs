//! How far a model's predictions are from those of another, saved before: llama.cpp's statistics.

use super::saved::{SavedRow, SavedRows};
use rayon::prelude::*;
use std::fmt::{self, Write};

/// Log-probabilities of the other model below which a token has no part in the divergence.
const MIN_LOG_PROB: f32 = -16.0;
/// Positions from which on an error or a covariance is estimated.
const MIN_COUNT: usize = 10;

/// A value with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Standard error; 0 where there is too little to tell.
    pub error: f64,
}

/// What is compared at a position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Position {
    /// Negative log-likelihood of the token that follows, in nats.
    nll: f64,
    /// The other model's.
    nll_base: f64,
    /// Kullback-Leibler divergence from the other model, in nats.
    kld: f64,
    /// How much more likely the token that follows is.
    p_diff: f64,
    /// Whether the most likely token is the same.
    same_top: bool,
}

impl Position {
    fn new(logits: &[f32], base: SavedRow<'_>, target: usize) -> Self {
        let (mut max, mut top) = (f32::NEG_INFINITY, 0);
        for (token, &logit) in logits.iter().enumerate() {
            if logit > max {
                (max, top) = (logit, token);
            }
        }
        let max = f64::from(max);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
        let log_sum = max + sum.ln();
        let (mut kld, mut top_base) = (0.0, 0);
        let mut max_base = base.log_prob(0);
        for (token, &logit) in logits.iter().enumerate() {
            let log_p = base.log_prob(token);
            if log_p > max_base {
                (max_base, top_base) = (log_p, token);
            }
            if log_p > MIN_LOG_PROB {
                let log_p = f64::from(log_p);
                kld += log_p.exp() * (log_p - (f64::from(logit) - log_sum));
            }
        }
        let nll = log_sum - f64::from(logits[target]);
        let nll_base = -f64::from(base.log_prob(target));
        let p_diff = (-nll).exp() - (-nll_base).exp();
        Position { nll, nll_base, kld, p_diff, same_top: top == top_base }
    }
}

/// The positions of a text, compared with what another model predicted there.
#[derive(Clone, Debug, Default)]
pub struct Divergence {
    positions: Vec<Position>,
    sums: Sums,
}

/// Sums over positions.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    nll: [f64; 2],
    nll_base: [f64; 2],
    nll_product: f64,
    kld: [f64; 2],
    p_diff: [f64; 2],
    p_diff_squared: [f64; 2],
    same_top: usize,
}

/// Adds `value` and its square.
fn add([sum, squares]: &mut [f64; 2], value: f64) {
    *sum += value;
    *squares += value * value;
}

impl Divergence {
    /// Adds positions: their logits, `[num_rows, vocab_size]`, what was saved of them, and the tokens that follow.
    pub fn push(&mut self, logits: &[f32], base: &SavedRows, targets: &[u32]) {
        let vocab_size = logits.len() / targets.len().max(1);
        let rows = logits.par_chunks(vocab_size.max(1)).zip(base.par_iter()).zip(targets);
        let first = self.positions.len();
        self.positions.par_extend(
            rows.map(|((logits, base), &target)| Position::new(logits, base, target as usize)),
        );
        for at in &self.positions[first..] {
            add(&mut self.sums.nll, at.nll);
            add(&mut self.sums.nll_base, at.nll_base);
            self.sums.nll_product += at.nll * at.nll_base;
            add(&mut self.sums.kld, at.kld);
            add(&mut self.sums.p_diff, at.p_diff);
            add(&mut self.sums.p_diff_squared, at.p_diff * at.p_diff);
            self.sums.same_top += usize::from(at.same_top);
        }
    }

    /// Positions.
    pub fn count(&self) -> usize {
        self.positions.len()
    }

    /// The mean of summed values.
    fn mean(&self, [sum, squares]: [f64; 2]) -> Estimate {
        let count = self.count() as f64;
        let value = sum / count;
        let variance = squares / count - value * value;
        let is_known = variance > 0.0 && self.count() > MIN_COUNT;
        let error = if is_known { (variance / (count - 1.0)).sqrt() } else { 0.0 };
        Estimate { value, error }
    }

    /// Covariance of the mean log-likelihoods of both models.
    fn covariance(&self) -> f64 {
        if self.count() < MIN_COUNT {
            return 0.0;
        }
        let count = self.count() as f64;
        let Sums { nll: [nll, _], nll_base: [base, _], nll_product, .. } = self.sums;
        (nll_product / count - (nll / count) * (base / count)) / (count - 1.0)
    }

    /// Perplexity of this model.
    pub fn perplexity(&self) -> Estimate {
        self.mean(self.sums.nll).exp()
    }

    /// Perplexity of the other model.
    pub fn base_perplexity(&self) -> Estimate {
        self.mean(self.sums.nll_base).exp()
    }

    /// Logarithm of the quotient of both perplexities.
    pub fn log_ratio(&self) -> Estimate {
        let (nll, base) = (self.mean(self.sums.nll), self.mean(self.sums.nll_base));
        let variance = nll.error.powi(2) + base.error.powi(2) - 2.0 * self.covariance();
        Estimate { value: nll.value - base.value, error: variance.max(0.0).sqrt() }
    }

    /// Mean Kullback-Leibler divergence from the other model, in nats.
    pub fn kl_divergence(&self) -> Estimate {
        self.mean(self.sums.kld)
    }

    /// Root of the mean square of what the probability of the text's tokens changes by.
    pub fn rms_p_diff(&self) -> Estimate {
        let square = self.mean(self.sums.p_diff_squared);
        let value = square.value.sqrt();
        let error = if value > 0.0 { 0.5 / value * square.error } else { 0.0 };
        Estimate { value, error }
    }

    /// Share of positions whose most likely token is the same.
    pub fn same_top(&self) -> Estimate {
        let value = self.sums.same_top as f64 / self.count() as f64;
        let others = self.count().saturating_sub(1).max(1) as f64;
        Estimate { value, error: (value * (1.0 - value) / others).sqrt() }
    }

    /// The statistics so far, in a line under [`Divergence::HEADING`].
    pub fn line(&self, window: usize) -> String {
        format!(
            "{window:4}    {:9.4}    {:10.5}    {:10.5}    {:6.3} %    {:6.3} %",
            self.perplexity(),
            self.log_ratio(),
            self.kl_divergence(),
            self.rms_p_diff().percent(),
            self.same_top().percent()
        )
    }

    /// What stands over the lines of [`Divergence::line`].
    pub const HEADING: &str = "chunk             PPL               ln(PPL(Q)/PPL(base))          \
                               KL Divergence              Δp RMS            Same top p";

    /// All statistics, as llama.cpp prints them.
    pub fn report(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write_perplexity(&mut text);
        let _ = self.write_divergence(&mut text);
        let _ = self.write_probabilities(&mut text);
        text
    }

    fn write_perplexity(&self, out: &mut String) -> fmt::Result {
        let (q, base, log_ratio) = (self.perplexity(), self.base_perplexity(), self.log_ratio());
        let errors = self.mean(self.sums.nll).error * self.mean(self.sums.nll_base).error;
        let correlation = if errors > 0.0 { self.covariance() / errors } else { 0.0 };
        let covariance = q.value * base.value * self.covariance();
        let variance = q.error.powi(2) + base.error.powi(2) - 2.0 * covariance;
        let difference = Estimate { value: q.value - base.value, error: variance.max(0.0).sqrt() };
        writeln!(out, "====== Perplexity statistics ======")?;
        writeln!(out, "Mean PPL(Q)                   : {q:10.6}")?;
        writeln!(out, "Mean PPL(base)                : {base:10.6}")?;
        writeln!(out, "Cor(ln(PPL(Q)), ln(PPL(base))): {:6.2}%", 100.0 * correlation)?;
        writeln!(out, "Mean ln(PPL(Q)/PPL(base))     : {log_ratio:10.6}")?;
        writeln!(out, "Mean PPL(Q)/PPL(base)         : {:10.6}", log_ratio.exp())?;
        writeln!(out, "Mean PPL(Q)-PPL(base)         : {difference:10.6}")
    }

    fn write_divergence(&self, out: &mut String) -> fmt::Result {
        let values = Sorted::new(self.positions.iter().map(|at| at.kld));
        writeln!(out, "\n====== KL divergence statistics ======")?;
        writeln!(out, "Mean    KLD: {:10.6}", self.kl_divergence())?;
        for (name, fraction) in [
            ("Maximum", 1.0),
            ("99.9%  ", 0.999),
            ("99.0%  ", 0.99),
            ("95.0%  ", 0.95),
            ("90.0%  ", 0.9),
            ("Median ", 0.5),
            ("10.0%  ", 0.1),
            (" 5.0%  ", 0.05),
            (" 1.0%  ", 0.01),
            (" 0.1%  ", 0.001),
            ("Minimum", 0.0),
        ] {
            writeln!(out, "{name} KLD: {:10.6}", values.percentile(fraction))?;
        }
        Ok(())
    }

    fn write_probabilities(&self, out: &mut String) -> fmt::Result {
        let values = Sorted::new(self.positions.iter().map(|at| at.p_diff));
        writeln!(out, "\n====== Token probability statistics ======")?;
        let mean = self.mean(self.sums.p_diff).percent();
        writeln!(out, "Mean    Δp: {:6.3} ± {:5.3} %", mean.value, mean.error)?;
        for (name, fraction) in [
            ("Maximum", 1.0),
            ("99.9%  ", 0.999),
            ("99.0%  ", 0.99),
            ("95.0%  ", 0.95),
            ("90.0%  ", 0.9),
            ("75.0%  ", 0.75),
            ("Median ", 0.5),
            ("25.0%  ", 0.25),
            ("10.0%  ", 0.1),
            (" 5.0%  ", 0.05),
            (" 1.0%  ", 0.01),
            (" 0.1%  ", 0.001),
            ("Minimum", 0.0),
        ] {
            writeln!(out, "{name} Δp: {:6.3}%", 100.0 * values.percentile(fraction))?;
        }
        let (rms, top) = (self.rms_p_diff().percent(), self.same_top().percent());
        writeln!(out, "RMS Δp    : {:6.3} ± {:5.3} %", rms.value, rms.error)?;
        writeln!(out, "Same top p: {:6.3} ± {:5.3} %", top.value, top.error)
    }
}

impl Estimate {
    /// The exponential.
    fn exp(self) -> Self {
        let value = self.value.exp();
        Estimate { value, error: value * self.error }
    }

    /// A hundred times as much.
    fn percent(self) -> Self {
        Estimate { value: 100.0 * self.value, error: 100.0 * self.error }
    }
}

/// Both numbers, in the width and precision that is asked for.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.value, f)?;
        f.write_str(" ± ")?;
        fmt::Display::fmt(&self.error, f)
    }
}

/// Values in ascending order.
struct Sorted(Vec<f64>);

impl Sorted {
    fn new(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Sorted(values)
    }

    /// The value that `fraction` of all are below, between the two nearest in proportion.
    fn percentile(&self, fraction: f64) -> f64 {
        let at = fraction * self.0.len().saturating_sub(1) as f64;
        let value = |at: usize| self.0.get(at).or(self.0.last()).copied().unwrap_or(f64::NAN);
        let (below, part) = (at as usize, at.fract());
        if part == 0.0 {
            value(below)
        } else {
            (1.0 - part) * value(below) + part * value(below + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_values() {
        let sorted = Sorted::new([3.0, 1.0, 2.0, 10.0].into_iter());
        let got = [0.0, 0.5, 1.0, 0.9].map(|fraction| sorted.percentile(fraction));
        assert_eq!(got[..3], [1.0, 2.5, 10.0]);
        assert!((got[3] - 7.9).abs() < 1e-12);
    }
}
