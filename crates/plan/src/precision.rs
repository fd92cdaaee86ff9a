//! What a model computes in.

use super::Dtype;

/// What a model computes in: the element types of its weights, its KV cache and its activations.
///
/// Accumulators, norms, RoPE and softmax are in f32 whatever this says; norm weights, biases,
/// tables and logits are kept in it. An element is rounded to nearest even where it is stored in 16
/// bits, and nowhere else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Everything in f32.
    #[default]
    F32,
    /// Operands and cache in f16: 11 significant bits, at most 65504.
    F16,
    /// Operands and cache in bf16: 8 significant bits, the range of f32.
    BF16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::F16, Precision::BF16];

    /// The matrices of linear layers, the embedding table, and the activations from a norm to the
    /// end of the linear layers after it: what tensor cores read.
    pub const fn operand(self) -> Dtype {
        match self {
            Precision::F32 => Dtype::F32,
            Precision::F16 => Dtype::F16,
            Precision::BF16 => Dtype::BF16,
        }
    }

    /// The KV cache.
    pub const fn cache(self) -> Dtype {
        self.operand()
    }

    /// The residual stream: a sum over all layers, which f16 does not hold in every model and bf16
    /// does not resolve.
    pub const fn residual(self) -> Dtype {
        Dtype::F32
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::F16 => "f16",
            Precision::BF16 => "bf16",
        })
    }
}
