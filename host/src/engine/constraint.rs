//! What a request's tokens have to obey, such as a grammar.

use super::SamplingError;
use std::fmt;
use std::sync::Arc;

/// A rule that says, token by token, which may come next. [`Request::constraint`](super::Request::constraint) has one.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// The rule before the first token.
    fn begin(&self) -> Box<dyn ConstraintState>;
}

/// A [`Constraint`] in the middle of a generation.
pub trait ConstraintState: fmt::Debug + Send {
    /// The tokens that may come next: token `t` is bit `t % 32` of element `t / 32`; those past the last element may
    /// not.
    ///
    /// # Errors
    /// [`SamplingError::Constraint`] where the rule can't tell.
    fn allowed(&mut self) -> Result<Vec<u32>, SamplingError>;

    /// Goes on with `token`, which is one of the allowed ones.
    ///
    /// # Errors
    /// As [`ConstraintState::allowed`].
    fn accept(&mut self, token: u32) -> Result<(), SamplingError>;

    /// Whether any token may come next: then the device draws it, and [`ConstraintState::allowed`] is not asked.
    fn is_free(&self) -> bool {
        false
    }
}

/// A constraint of a sequence, and the tokens that it allows next once they are known.
#[derive(Debug)]
pub struct Constrained {
    state: Box<dyn ConstraintState>,
    allowed: Option<Result<Vec<u32>, SamplingError>>,
}

impl Constrained {
    /// Before the first token.
    pub fn new(constraint: &Arc<dyn Constraint>) -> Self {
        Constrained { state: constraint.begin(), allowed: None }
    }

    /// Finds out which tokens may come next: while the device computes their logits.
    pub fn prepare(&mut self) {
        if self.allowed.is_none() && !self.is_free() {
            self.allowed = Some(self.state.allowed());
        }
    }

    /// `logits` with negative infinity for every token that may not come next.
    pub fn mask(&mut self, logits: &[f32]) -> Result<Vec<f32>, SamplingError> {
        self.prepare();
        let allowed = self.allowed.take().unwrap_or(Err(SamplingError::Constraint))?;
        let mut masked = vec![f32::NEG_INFINITY; logits.len()];
        let chunks = masked.chunks_mut(32).zip(logits.chunks(32)).zip(allowed);
        for ((masked, logits), word) in chunks.filter(|&(_, word)| word != 0) {
            for (bit, (masked, &logit)) in masked.iter_mut().zip(logits).enumerate() {
                if word >> bit & 1 != 0 {
                    *masked = logit;
                }
            }
        }
        Ok(masked)
    }

    /// See [`ConstraintState::is_free`].
    pub fn is_free(&self) -> bool {
        self.state.is_free()
    }

    /// Goes on with `token`.
    pub fn accept(&mut self, token: u32) -> Result<(), SamplingError> {
        self.state.accept(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiples of a number, each larger than the one before.
    #[derive(Clone, Debug)]
    struct Multiples(u32, u32);

    impl Constraint for Multiples {
        fn begin(&self) -> Box<dyn ConstraintState> {
            Box::new(self.clone())
        }
    }

    impl ConstraintState for Multiples {
        fn allowed(&mut self) -> Result<Vec<u32>, SamplingError> {
            let mut words = vec![0; 2];
            let tokens = (self.1..64).filter(|token| token % self.0 == 0);
            tokens.for_each(|token| words[token as usize / 32] |= 1 << (token % 32));
            Ok(words)
        }

        fn accept(&mut self, token: u32) -> Result<(), SamplingError> {
            self.1 = token + 1;
            Ok(())
        }
    }

    #[test]
    fn a_mask_leaves_the_allowed_logits_alone() {
        let constraint: Arc<dyn Constraint> = Arc::new(Multiples(7, 0));
        let mut constrained = Constrained::new(&constraint);
        // More tokens than the rule knows.
        let logits: Vec<f32> = (0..100).map(|token| token as f32 - 50.0).collect();
        for first in [0, 36] {
            constrained.prepare();
            let masked = constrained.mask(&logits).unwrap();
            for (token, (&masked, &logit)) in masked.iter().zip(&logits).enumerate() {
                let is_allowed = token % 7 == 0 && (first..64).contains(&token);
                assert_eq!(masked, if is_allowed { logit } else { f32::NEG_INFINITY }, "{token}");
            }
            constrained.accept(35).unwrap();
        }
    }
}
