//! Logits of two settings on the same tokens: how far apart they are, and what that does to the
//! next token.

use rayon::prelude::*;

/// The logits of both settings at one position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Position {
    /// Sum of `(candidate - reference)^2`.
    pub squared_difference: f64,
    /// Sum of `reference^2`.
    pub squared_reference: f64,
    /// Largest `|candidate - reference|`.
    pub max_abs: f64,
    /// Largest `|candidate - reference| / max(1, |reference|)`.
    pub max_relative: f64,
    /// Largest difference of a token's probability.
    pub max_probability: f64,
    /// Kullback-Leibler divergence of the candidate's next token from the reference's, in nats.
    pub kl: f64,
    /// Whether the most likely token is the same.
    pub agrees: bool,
    /// How far the reference's two largest logits are apart, over the root of the mean square of
    /// all of them: small where chance decides.
    pub lead: f64,
    /// Negative log-likelihood of the token that follows in the text, of reference and candidate,
    /// in nats; none after the last token.
    pub nll: Option<[f64; 2]>,
}

impl Position {
    /// Compares a row of logits, `[vocab_size]`; `next` is the token that follows. A row that is
    /// not finite is infinitely far from any other.
    pub fn new(reference: &[f32], candidate: &[f32], next: Option<u32>) -> Self {
        let pairs = || reference.iter().zip(candidate).map(|(&r, &c)| (f64::from(r), f64::from(c)));
        let squared_reference = pairs().map(|(r, _)| r * r).sum();
        if pairs().any(|(r, c)| !(r.is_finite() && c.is_finite())) {
            return Position {
                squared_difference: f64::INFINITY,
                squared_reference,
                max_abs: f64::INFINITY,
                max_relative: f64::INFINITY,
                max_probability: 1.0,
                kl: f64::INFINITY,
                agrees: false,
                lead: f64::INFINITY,
                nll: next.map(|next| [reference, candidate].map(|row| finite_nll(row, next))),
            };
        }
        let mut position = Position {
            squared_reference,
            agrees: most_likely(reference) == most_likely(candidate),
            lead: lead(reference),
            nll: next.map(|next| [reference, candidate].map(|row| nll(row, next))),
            ..Position::default()
        };
        let [log_sum_r, log_sum_c] = [reference, candidate].map(log_sum_exp);
        for (r, c) in pairs() {
            let difference = (c - r).abs();
            position.squared_difference += difference * difference;
            position.max_abs = position.max_abs.max(difference);
            position.max_relative = position.max_relative.max(difference / r.abs().max(1.0));
            let (log_p, log_q) = (r - log_sum_r, c - log_sum_c);
            let (p, q) = (log_p.exp(), log_q.exp());
            position.max_probability = position.max_probability.max((q - p).abs());
            position.kl += p * (log_p - log_q);
        }
        // Rounding can leave a sum of zeros below zero.
        position.kl = position.kl.max(0.0);
        position
    }

    /// Norm of the difference over the norm of the reference.
    pub fn error(&self) -> f64 {
        ratio_of_norms(self.squared_difference, self.squared_reference)
    }
}

/// The logits of both settings at every position of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitComparison {
    /// In the order of the text.
    pub positions: Vec<Position>,
}

impl LogitComparison {
    /// Adds the rows of a part of the text, `[num_rows, vocab_size]`; `next[i]` follows row `i`, if
    /// it is there.
    pub fn push(&mut self, reference: &[f32], candidate: &[f32], vocab_size: usize, next: &[u32]) {
        let rows =
            reference.par_chunks_exact(vocab_size).zip(candidate.par_chunks_exact(vocab_size));
        let rows = rows.enumerate().map(|(row, (reference, candidate))| {
            Position::new(reference, candidate, next.get(row).copied())
        });
        self.positions.par_extend(rows);
    }

    /// Norm of the difference over the norm of the reference, over all positions.
    pub fn error(&self) -> f64 {
        let sum = |part: fn(&Position) -> f64| self.positions.iter().map(part).sum();
        ratio_of_norms(sum(|at| at.squared_difference), sum(|at| at.squared_reference))
    }

    /// The largest of `part` over all positions, and where it is; the first position if all are
    /// zero.
    pub fn worst(&self, part: impl Fn(&Position) -> f64) -> (usize, f64) {
        let parts = self.positions.iter().map(part).enumerate();
        parts.fold((0, 0.0), |worst, at| if at.1 > worst.1 { at } else { worst })
    }

    /// Share of positions whose most likely token is the same.
    pub fn agreement(&self) -> f64 {
        let same = self.positions.iter().filter(|at| at.agrees).count();
        same as f64 / self.positions.len().max(1) as f64
    }

    /// The same of the positions where the reference's lead is above `min_lead`; 1 if there are
    /// none.
    pub fn clear_agreement(&self, min_lead: f64) -> f64 {
        let clear = || self.positions.iter().filter(|at| at.lead > min_lead);
        let same = clear().filter(|at| at.agrees).count();
        match clear().count() {
            0 => 1.0,
            count => same as f64 / count as f64,
        }
    }

    /// Mean divergence, in nats.
    pub fn mean_kl(&self) -> f64 {
        self.positions.iter().map(|at| at.kl).sum::<f64>() / self.positions.len().max(1) as f64
    }

    /// Perplexity of reference and candidate; `None` where no token follows.
    pub fn perplexity(&self) -> Option<[f64; 2]> {
        let nlls: Vec<_> = self.positions.iter().filter_map(|at| at.nll).collect();
        let mean =
            |which: usize| nlls.iter().map(|nll| nll[which]).sum::<f64>() / nlls.len() as f64;
        (!nlls.is_empty()).then(|| [mean(0).exp(), mean(1).exp()])
    }
}

/// `log(sum(exp(row))) - row[target]`: the negative log-likelihood of a token, in nats.
///
/// # Panics
/// If `row` has no column `target`.
pub fn nll(row: &[f32], target: u32) -> f64 {
    log_sum_exp(row) - f64::from(row[target as usize])
}

/// [`nll`], infinite for a row that is not finite.
fn finite_nll(row: &[f32], target: u32) -> f64 {
    if row.iter().all(|logit| logit.is_finite()) { nll(row, target) } else { f64::INFINITY }
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + row.iter().map(|&logit| (f64::from(logit) - max).exp()).sum::<f64>().ln()
}

/// The first of the largest.
fn most_likely(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, at| if row[at] > row[best] { at } else { best })
}

/// See [`Position::lead`]; infinite for a single logit.
fn lead(row: &[f32]) -> f64 {
    let best = most_likely(row);
    let others = row.iter().enumerate().filter(|&(at, _)| at != best);
    let second = others.map(|(_, &logit)| logit).fold(f32::NEG_INFINITY, f32::max);
    let mean_square = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
    let apart = f64::from(row[best]) - f64::from(second);
    if apart == 0.0 { 0.0 } else { apart / mean_square.sqrt() }
}

/// The root of a quotient; nothing differs by nothing from nothing.
pub(super) fn ratio_of_norms(squared_difference: f64, squared_reference: f64) -> f64 {
    if squared_difference == 0.0 { 0.0 } else { (squared_difference / squared_reference).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-12 * want.abs().max(1.0), "{got}, not {want}");
    }

    #[test]
    fn nll_is_minus_the_log_of_the_softmax() {
        let row = [1.0, 2.0, 3.0f32];
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        for (target, &logit) in row.iter().enumerate() {
            let oracle = -(f64::from(logit).exp() / sum).ln();
            assert!((nll(&row, target as u32) - oracle).abs() < 1e-12);
        }
        assert!(nll(&[1e4, 0.0], 0) < 1e-12, "large logits do not overflow");
    }

    /// Probabilities are 1/2, 1/2 and 3/4, 1/4.
    #[test]
    fn a_position_by_hand() {
        let ln3 = 3f32.ln();
        let at = Position::new(&[0.0, 0.0], &[ln3, 0.0], Some(1));
        let ln3 = f64::from(ln3);
        close(at.squared_difference, ln3 * ln3);
        assert_eq!(at.squared_reference, 0.0);
        close(at.max_abs, ln3);
        close(at.max_relative, ln3);
        assert!((at.max_probability - 0.25).abs() < 1e-7);
        // 1/2 ln(2/3) + 1/2 ln 2.
        assert!((at.kl - 0.5 * (4.0f64 / 3.0).ln()).abs() < 1e-7, "{}", at.kl);
        assert!(at.agrees, "of equal logits the first is the most likely");
        let [reference, candidate] = at.nll.unwrap();
        close(reference, 2f64.ln());
        assert!((candidate - 4f64.ln()).abs() < 1e-7);
        assert!(!Position::new(&[0.0, 0.0], &[0.0, ln3 as f32], None).agrees);
    }

    #[test]
    fn differences_are_relative_to_one_at_least() {
        let at = Position::new(&[4.0, 0.5], &[5.0, 0.75], None);
        assert_eq!((at.max_abs, at.max_relative), (1.0, 0.25));
        close(at.error(), (1.0625f64 / 16.25).sqrt());
    }

    #[test]
    fn a_text_by_hand() {
        let mut text = LogitComparison::default();
        text.push(&[3.0, 4.0, 0.0, 0.0], &[3.0, 4.5, 0.0, 0.0], 2, &[0]);
        assert_eq!(text.positions.len(), 2);
        close(text.error(), 0.1);
        assert_eq!(text.worst(|at| at.max_abs), (0, 0.5));
        assert_eq!(text.agreement(), 1.0);
        assert_eq!(text.clear_agreement(0.1), 1.0);
        close(text.mean_kl(), text.positions[0].kl / 2.0);
        // One token follows: 0, after the first position.
        let [reference, candidate] = text.perplexity().unwrap();
        close(reference, 1.0 + 1f64.exp());
        close(candidate, 1.0 + 1.5f64.exp());
        assert_eq!(LogitComparison::default().perplexity(), None);
    }

    /// Logits 3 and 4 are apart by 1 over a root mean square of 3.54; two zeros are not.
    #[test]
    fn where_the_reference_is_undecided_agreement_says_nothing() {
        let mut text = LogitComparison::default();
        text.push(&[3.0, 4.0, 0.0, 0.0], &[3.0, 4.5, 0.0, 0.1], 2, &[]);
        close(text.positions[0].lead, 1.0 / 12.5f64.sqrt());
        assert_eq!(text.positions[1].lead, 0.0);
        assert_eq!((text.agreement(), text.clear_agreement(0.0)), (0.5, 1.0));
        assert_eq!(text.clear_agreement(0.3), 1.0, "there is none");
        text.push(&[0.0, 1.0], &[1.0, 0.0], 2, &[]);
        assert_eq!(text.clear_agreement(0.1), 0.5);
        assert_eq!(lead(&[1.0]), f64::INFINITY);
    }

    #[test]
    fn what_is_not_finite_is_infinitely_wrong() {
        for bad in [f32::NAN, f32::INFINITY] {
            let at = Position::new(&[1.0, 0.0], &[1.0, bad], Some(0));
            assert_eq!((at.error(), at.kl, at.agrees), (f64::INFINITY, f64::INFINITY, false));
            let [reference, candidate] = at.nll.unwrap();
            assert!(reference.is_finite() && candidate == f64::INFINITY);
        }
    }
}
