//! What biases and penalties make of the logits of a sequence.

use super::Sampling;
use crate::exec::LogitEdit;
use std::collections::HashMap;

/// The edits of a sequence's next row, one for each token that a bias or a penalty concerns. They grow with the answer.
#[derive(Debug)]
pub struct Edits {
    edits: Vec<LogitEdit>,
    by_token: HashMap<u32, TokenEdit>,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
}

/// The edit of a token, by its index.
#[derive(Clone, Copy, Debug)]
struct TokenEdit {
    index: usize,
    /// Whether the token was generated before.
    is_generated: bool,
}

impl Edits {
    /// Edits of the first row after `prompt`.
    pub fn new(sampling: &Sampling, prompt: &[u32]) -> Self {
        let &Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = sampling;
        let (edits, by_token) = (Vec::new(), HashMap::new());
        let mut edits =
            Edits { edits, by_token, repetition_penalty, presence_penalty, frequency_penalty };
        for &(token, bias) in &sampling.logit_bias {
            edits.of(token).0.bias += bias;
        }
        if repetition_penalty != 1.0 {
            prompt.iter().for_each(|&token| edits.of(token).0.divisor = repetition_penalty);
        }
        edits
    }

    /// Edits of the next row, none of a token twice.
    pub fn as_slice(&self) -> &[LogitEdit] {
        &self.edits
    }

    /// Whether there are none, and will be none.
    pub fn are_none(&self) -> bool {
        self.edits.is_empty() && !self.has_penalties()
    }

    fn has_penalties(&self) -> bool {
        let Edits { repetition_penalty, presence_penalty, frequency_penalty, .. } = *self;
        [repetition_penalty, presence_penalty, frequency_penalty] != [1.0, 0.0, 0.0]
    }

    /// The sequence goes on with `token`.
    pub fn push(&mut self, token: u32) {
        let Edits { repetition_penalty, presence_penalty, frequency_penalty, .. } = *self;
        if !self.has_penalties() {
            return;
        }
        let (edit, is_generated) = self.of(token);
        edit.divisor = repetition_penalty;
        edit.penalty += frequency_penalty;
        if !std::mem::replace(is_generated, true) {
            edit.penalty += presence_penalty;
        }
    }

    /// The edit of `token`, and whether it was generated before.
    fn of(&mut self, token: u32) -> (&mut LogitEdit, &mut bool) {
        let index = self.edits.len();
        let found = self.by_token.entry(token).or_insert(TokenEdit { index, is_generated: false });
        if found.index == index {
            self.edits.push(LogitEdit { token, bias: 0.0, divisor: 1.0, penalty: 0.0 });
        }
        (&mut self.edits[found.index], &mut found.is_generated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_edit() {
        let sampling = Sampling {
            repetition_penalty: 1.5,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(3, 1.0), (7, -2.0), (3, 0.5)],
            ..Sampling::default()
        };
        let mut edits = Edits::new(&sampling, &[7, 7, 9]);
        let edit = |token, bias, divisor, penalty| LogitEdit { token, bias, divisor, penalty };
        let after_prompt =
            [edit(3, 1.5, 1.0, 0.0), edit(7, -2.0, 1.5, 0.0), edit(9, 0.0, 1.5, 0.0)];
        assert_eq!(edits.as_slice(), after_prompt);
        [9, 2, 9].into_iter().for_each(|token| edits.push(token));
        let wanted =
            [after_prompt[0], after_prompt[1], edit(9, 0.0, 1.5, 1.0), edit(2, 0.0, 1.5, 0.75)];
        assert_eq!(edits.as_slice(), wanted);
    }

    #[test]
    fn without_a_bias_or_a_penalty_there_is_none() {
        let mut edits = Edits::new(&Sampling::default(), &[1, 2]);
        edits.push(3);
        assert_eq!(edits.as_slice(), []);
        // The prompt counts for the repetition penalty alone.
        let presence = Sampling { presence_penalty: 1.0, ..Sampling::default() };
        assert_eq!(Edits::new(&presence, &[1, 2]).as_slice(), []);
    }
}
