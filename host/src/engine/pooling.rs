//! Embeddings of prompts: their hidden states pooled to one vector of unit length.

pub use crate::model::Pooling;

/// The hidden states of a prompt so far.
#[derive(Debug)]
pub struct Pooled {
    pooling: Pooling,
    /// In f64, so that it hardly matters in which chunks the prompt comes.
    sum: Vec<f64>,
}

impl Pooled {
    pub fn new(pooling: Pooling) -> Self {
        Pooled { pooling, sum: Vec::new() }
    }

    /// Whether all tokens count.
    pub fn takes_all(&self) -> bool {
        self.pooling == Pooling::Mean
    }

    /// Takes the hidden states of further tokens, `[rows, width]`: of all, or of the last.
    pub fn push(&mut self, hidden: &[f32], width: usize) {
        self.sum.resize(width, 0.0);
        for row in hidden.chunks_exact(width) {
            self.sum.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
        }
    }

    /// The vector, of length 1; of length 0 if that of the hidden states is. Scores are as they
    /// are.
    pub fn embedding(&self) -> Vec<f32> {
        if self.pooling == Pooling::Score {
            return self.sum.iter().map(|&value| value as f32).collect();
        }
        let length = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        let scale = if length > 0.0 { length.recip() } else { 0.0 };
        self.sum.iter().map(|value| (value * scale) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_has_the_direction_of_the_mean() {
        let mut mean = Pooled::new(Pooling::Mean);
        mean.push(&[1.0, 5.0, 3.0, 5.0], 2);
        mean.push(&[5.0, 2.0], 2);
        let [x, y] = mean.embedding()[..] else { panic!("two columns") };
        // (9, 12) / 3 has length 5.
        assert!((x - 0.6).abs() < 1e-6 && (y - 0.8).abs() < 1e-6, "{x} {y}");
        let mut nothing = Pooled::new(Pooling::Last);
        nothing.push(&[0.0, 0.0], 2);
        assert_eq!(nothing.embedding(), [0.0, 0.0]);
    }
}
