//! Names of the tensors of Gated DeltaNet.

use crate::model::DeltaNet;

/// Names of such a layer in one kind of checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaNames {
    /// Queries, keys and values stacked, then the gate of the output; where it is one name, all
    /// four by head of keys. They take `.weight`.
    pub qkvz: &'static [&'static str],
    /// What becomes beta and what becomes the decay; where it is one name, both by head of keys.
    /// They take `.weight`.
    pub ba: &'static [&'static str],
    /// The convolution; it takes `.weight`.
    pub conv: &'static str,
    /// The whole name of what the decay's rate comes from.
    pub rate: &'static str,
    /// Whether that is the logarithm of the rate without its sign, and the convolution has a
    /// dimension of one element in the middle: as transformers saves them.
    pub is_as_trained: bool,
    /// The whole name of the bias of the decay.
    pub bias: &'static str,
    /// The norm of the output; it takes `.weight`.
    pub norm: &'static str,
    /// The projection of the output; it takes `.weight`.
    pub out: &'static str,
}

impl DeltaNames {
    /// Every tensor of a layer with its shape, outermost dimension first.
    pub fn tensors(&self, delta: &DeltaNet, hidden: usize) -> Vec<(String, Vec<usize>)> {
        let (channels, v_width, heads) = (delta.channels(), delta.v_width(), delta.num_v_heads);
        let mut tensors = Vec::new();
        let mut push = |name: String, shape: &[usize]| tensors.push((name, shape.to_vec()));
        for (stem, rows) in super::stacked(self.qkvz, &[channels, v_width]) {
            push(format!("{stem}.weight"), &[rows, hidden]);
        }
        for (stem, rows) in super::stacked(self.ba, &[heads, heads]) {
            push(format!("{stem}.weight"), &[rows, hidden]);
        }
        let conv: &[usize] = match self.is_as_trained {
            true => &[channels, 1, delta.conv_kernel],
            false => &[channels, delta.conv_kernel],
        };
        push(format!("{}.weight", self.conv), conv);
        push(self.rate.to_owned(), &[heads]);
        push(self.bias.to_owned(), &[heads]);
        push(format!("{}.weight", self.norm), &[delta.v_head_dim]);
        push(format!("{}.weight", self.out), &[hidden, v_width]);
        tensors
    }
}

/// A tensor each.
pub(super) const HF_DELTA: DeltaNames = DeltaNames {
    qkvz: &["linear_attn.in_proj_qkv", "linear_attn.in_proj_z"],
    ba: &["linear_attn.in_proj_b", "linear_attn.in_proj_a"],
    conv: "linear_attn.conv1d",
    rate: "linear_attn.A_log",
    is_as_trained: true,
    bias: "linear_attn.dt_bias",
    norm: "linear_attn.norm",
    out: "linear_attn.out_proj",
};

/// By head of keys.
pub(super) const HF_GROUPED_DELTA: DeltaNames =
    DeltaNames { qkvz: &["linear_attn.in_proj_qkvz"], ba: &["linear_attn.in_proj_ba"], ..HF_DELTA };

pub(super) const GGUF_DELTA: DeltaNames = DeltaNames {
    qkvz: &["attn_qkv", "attn_gate"],
    ba: &["ssm_beta", "ssm_alpha"],
    conv: "ssm_conv1d",
    rate: "ssm_a",
    is_as_trained: false,
    bias: "ssm_dt.bias",
    norm: "ssm_norm",
    out: "ssm_out",
};

/// Beta and decay by head of keys.
pub(super) const GGUF_GROUPED_DELTA: DeltaNames = DeltaNames { ba: &["ssm_ba"], ..GGUF_DELTA };
