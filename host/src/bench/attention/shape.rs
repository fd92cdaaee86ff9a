//! The sizes of attention, and what it computes and moves.

use std::fmt;

use serde::Serialize;

use super::super::kernels::BenchError;
use crate::plan::{Dtype, PAGE_SIZE};

/// Attention of sequences of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Query heads.
    pub num_heads: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// What is new of a sequence.
    #[serde(flatten)]
    pub step: Step,
}

/// What is new of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Step {
    /// All of its tokens.
    Prefill {
        /// Tokens.
        seq_len: usize,
        /// Whether a token sees no position after its own.
        causal: bool,
    },
    /// The last of its tokens.
    Decode {
        /// Positions, that of the new token included.
        kv_len: usize,
    },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Shape { batch, num_heads, num_kv_heads, head_dim, step } = self;
        write!(f, "{batch},{num_heads},{num_kv_heads},{},{head_dim}", self.kv_len())?;
        match step {
            Step::Prefill { causal: true, .. } => write!(f, ",causal"),
            Step::Prefill { causal: false, .. } => write!(f, ",full"),
            Step::Decode { .. } => Ok(()),
        }
    }
}

impl Shape {
    /// Whether there is such attention, and few enough elements that they can be counted.
    ///
    /// # Errors
    /// [`BenchError::Shape`].
    pub fn check(&self) -> Result<(), BenchError> {
        const MAX_ELEMS: usize = 1 << 40;
        let sizes = [self.batch, self.kv_len(), self.num_heads, self.head_dim];
        let num_elems = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let why = if sizes.contains(&0) || self.num_kv_heads == 0 {
            "a size is 0"
        } else if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            "the KV heads do not divide the query heads"
        } else if num_elems.is_none_or(|num_elems| num_elems > MAX_ELEMS) {
            "more than 2^40 elements"
        } else {
            return Ok(());
        };
        Err(BenchError::Shape { shape: self.to_string(), why })
    }

    /// `attention_prefill` or `attention_decode`.
    pub fn op(&self) -> &'static str {
        match self.step {
            Step::Prefill { .. } => "attention_prefill",
            Step::Decode { .. } => "attention_decode",
        }
    }

    /// Positions of a sequence.
    pub fn kv_len(&self) -> usize {
        match self.step {
            Step::Prefill { seq_len, .. } => seq_len,
            Step::Decode { kv_len } => kv_len,
        }
    }

    /// New tokens of a sequence.
    pub(super) fn q_len(&self) -> usize {
        match self.step {
            Step::Prefill { seq_len, .. } => seq_len,
            Step::Decode { .. } => 1,
        }
    }

    /// Positions of a sequence before its new tokens.
    pub(super) fn past_len(&self) -> usize {
        self.kv_len() - self.q_len()
    }

    pub(super) fn is_causal(&self) -> bool {
        !matches!(self.step, Step::Prefill { causal: false, .. })
    }

    pub(super) fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    pub(super) fn kv_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    pub(super) fn pages_per_seq(&self) -> usize {
        self.kv_len().div_ceil(PAGE_SIZE)
    }

    /// Multiply-adds count two; of causal attention those of half of the pairs.
    pub fn flops(&self) -> f64 {
        let pairs = self.batch as f64 * self.q_len() as f64 * self.kv_len() as f64;
        let share = match self.step {
            Step::Prefill { causal: true, .. } => 0.5,
            _ => 1.0,
        };
        4.0 * share * pairs * self.q_width() as f64
    }

    /// Bytes of K and V, and of a prompt's Q and output: a decode step's are next to nothing.
    pub fn bytes(&self, dtype: Dtype) -> usize {
        let q_and_out = match self.step {
            Step::Prefill { .. } => 2 * self.q_width(),
            Step::Decode { .. } => 0,
        };
        dtype.block_bytes() * self.batch * self.kv_len() * (q_and_out + 2 * self.kv_width())
    }
}

/// The mission shape; prompts of 512 to 16,384 tokens with heads of 64 and 128 columns, 16,384
/// tokens in all; Qwen2.5-0.5B, Phi-3 Mini and Llama-3 8B.
pub fn prefill_shapes() -> Vec<Shape> {
    const NUM_TOKENS: usize = 16384;
    const WIDTH: usize = 2048;
    let shape = |batch, num_heads, num_kv_heads, seq_len, head_dim, causal| Shape {
        batch,
        num_heads,
        num_kv_heads,
        head_dim,
        step: Step::Prefill { seq_len, causal },
    };
    let mut shapes = vec![shape(1, 8, 8, 512, 64, false), shape(1, 8, 8, 512, 64, true)];
    for head_dim in [64, 128] {
        for seq_len in [512, 1024, 2048, 4096, 8192, 16384] {
            let (batch, num_heads) = (NUM_TOKENS / seq_len, WIDTH / head_dim);
            let masks = [true, false];
            shapes.extend(
                masks.map(|causal| shape(batch, num_heads, num_heads, seq_len, head_dim, causal)),
            );
        }
    }
    let models = [
        (14, 2, 512, 64),
        (14, 2, 4096, 64),
        (32, 32, 512, 96),
        (32, 32, 4096, 96),
        (32, 8, 8192, 128),
    ];
    shapes.extend(models.map(|(num_heads, num_kv_heads, seq_len, head_dim)| {
        shape(1, num_heads, num_kv_heads, seq_len, head_dim, true)
    }));
    shapes
}

/// One sequence and many, of Qwen2.5-0.5B, Phi-3 Mini, Llama-2 7B and Llama-3 8B.
pub fn decode_shapes() -> Vec<Shape> {
    let shapes = [
        (1, 14, 2, 512, 64),
        (1, 14, 2, 8192, 64),
        (1, 14, 2, 32768, 64),
        (1, 32, 32, 512, 96),
        (1, 32, 32, 8192, 96),
        (1, 32, 32, 8192, 128),
        (1, 32, 32, 65536, 128),
        (1, 32, 8, 32768, 128),
        (16, 32, 8, 8192, 128),
        (64, 14, 2, 2048, 64),
    ];
    let shape = |(batch, num_heads, num_kv_heads, kv_len, head_dim)| Shape {
        batch,
        num_heads,
        num_kv_heads,
        head_dim,
        step: Step::Decode { kv_len },
    };
    shapes.map(shape).to_vec()
}
