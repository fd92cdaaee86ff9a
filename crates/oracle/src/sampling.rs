//! The choice of a token.

/// How a row's token is drawn; a temperature of 0 takes the most probable one.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Divides the logits.
    pub temperature: f32,
    /// Tokens that are kept; 0: all.
    pub top_k: usize,
    /// Mass that is kept of those.
    pub top_p: f32,
    /// Least probability that is kept, relative to the most probable token's.
    pub min_p: f32,
}

/// What comes of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// A token.
    Token(u32),
    /// The first logit that is NaN or positive infinity.
    NotFinite(u32),
    /// Every token is ruled out.
    NoCandidate,
}

/// The choice, by its definition: everything is sorted, and kept or not one by one; then the least
/// of exponential variates over the probabilities wins, `bits` being a token's random bits. And by
/// how much it wins.
pub fn sample(row: &[f32], sampling: &Sampling, bits: impl Fn(u32) -> u32) -> (Choice, f64) {
    if let Some(index) = row.iter().position(|&x| x.is_nan() || x == f32::INFINITY) {
        return (Choice::NotFinite(index as u32), f64::INFINITY);
    }
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // The sum makes 0 of -0.
    let distances = (0..).zip(row).map(|(id, &x)| (max - x + 0.0, id));
    let mut tokens: Vec<(f32, u32)> = distances.collect();
    tokens.retain(|token| token.0 < f32::INFINITY);
    tokens.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let Some(&(_, first)) = tokens.first() else {
        return (Choice::NoCandidate, f64::INFINITY);
    };
    if sampling.temperature == 0.0 {
        return (Choice::Token(first), f64::INFINITY);
    }
    keep(&mut tokens, sampling);
    let mut scores: Vec<(f64, u32)> = tokens
        .iter()
        .map(|&(distance, id)| {
            let uniform = (f64::from(bits(id)) + 0.5) / 2f64.powi(32);
            let exponential = -f64::ln_1p(-uniform);
            (f64::from(distance) / f64::from(sampling.temperature) + exponential.ln(), id)
        })
        .collect();
    scores.sort_by(|a, b| a.0.total_cmp(&b.0));
    let margin = scores.get(1).map_or(f64::INFINITY, |second| second.0 - scores[0].0);
    (Choice::Token(scores[0].1), margin)
}

/// Leaves out what top-k, top-p and min-p leave out of sorted tokens.
fn keep(tokens: &mut Vec<(f32, u32)>, sampling: &Sampling) {
    tokens.truncate(if sampling.top_k == 0 { usize::MAX } else { sampling.top_k });
    let mass = |token: &(f32, u32)| f64::exp(-f64::from(token.0));
    let wanted = f64::from(sampling.top_p) * tokens.iter().map(mass).sum::<f64>();
    let mut before = 0.0;
    tokens.retain(|token| {
        let is_kept = sampling.top_p >= 1.0 || before == 0.0 || before < wanted;
        before += mass(token);
        is_kept
    });
    tokens.retain(|token| mass(token) >= f64::from(sampling.min_p));
}
