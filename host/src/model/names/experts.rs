//! Names of a layer's experts, and how their matrices are stored.

use crate::model::{ExpertScores, Experts};
use crate::plan::{PartTransform, WeightSlice};
use std::ops::Range;

/// Names of a layer's experts in one kind of checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    /// The matrix whose products say where a token goes; it takes `.weight` or `.bias`.
    pub router: &'static str,
    /// The whole name of the bias that experts are chosen with.
    pub score_bias: &'static str,
    /// How the matrices of experts are stored.
    pub form: ExpertForm,
    /// Gate and up, the same where they are in one tensor.
    pub gate_up: [&'static str; 2],
    pub down: &'static str,
    /// What the names of these three end in, as matrices and as biases.
    pub suffixes: [&'static str; 2],
    /// Gate and up of the shared expert; they take `.weight`.
    pub shared_gate_up: [&'static str; 2],
    pub shared_down: &'static str,
    /// The gate of what it makes of a token; it takes `.weight`.
    pub shared_gate: &'static str,
}

/// How the matrices of a layer's experts are stored. `E` are the experts, `n` the rows of an
/// expert's gate and of its up, `k` their columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertForm {
    /// A tensor each, whose name comes after this prefix and the expert's number.
    Each(&'static str),
    /// Gate, up and down are a tensor each: `[E, n, k]`, `[E, n, k]` and `[E, k, n]`.
    Stacks,
    /// `[E, 2 n, k]`, an expert's gate, then its up; and `[E, k, n]`.
    GateThenUp,
    /// `[E, 2 n, k]`, the rows of gate and up by turns; and `[E, k, n]`.
    Alternating,
    /// `[E, k, 2 n]`, the columns of gate and up by turns; and `[E, n, k]`.
    Transposed,
}

impl ExpertNames {
    /// Names of the tensors that hold matrix or bias `stem` of `num_experts` experts.
    pub fn tensor_names(&self, stem: &str, suffix: &str, num_experts: usize) -> Vec<String> {
        match self.form {
            ExpertForm::Each(each) => {
                (0..num_experts).map(|expert| format!("{each}{expert}.{stem}{suffix}")).collect()
            }
            _ => vec![format!("{stem}{suffix}")],
        }
    }

    /// The name of a tensor that every layer of experts has in this form.
    pub fn first(&self) -> String {
        let mut names = self.tensor_names(self.gate_up[0], self.suffixes[0], 1);
        names.pop().expect("an expert")
    }

    /// Names of the matrices of the first expert.
    pub fn matrices(&self) -> Vec<String> {
        let stems = [self.gate_up[0], self.gate_up[1], self.down];
        stems.iter().flat_map(|stem| self.tensor_names(stem, self.suffixes[0], 1)).collect()
    }

    /// Every tensor of a layer's experts with its shape, outermost dimension first.
    pub fn tensors(&self, experts: &Experts, hidden: usize) -> Vec<(String, Vec<usize>)> {
        let Experts { num_experts, intermediate_size: n, bias, .. } = *experts;
        let mut tensors = vec![(format!("{}.weight", self.router), vec![num_experts, hidden])];
        if bias {
            tensors.push((format!("{}.bias", self.router), vec![num_experts]));
        }
        if matches!(experts.scores, ExpertScores::Sigmoid { .. }) {
            tensors.push((self.score_bias.to_owned(), vec![num_experts]));
        }
        let [gate, up] = self.gate_up;
        let down = (self.down, hidden, n);
        let matrices = match gate == up {
            true => vec![(gate, 2 * n, hidden), down],
            false => vec![(gate, n, hidden), (up, n, hidden), down],
        };
        for (stem, rows, cols) in matrices {
            let matrix = match self.form {
                ExpertForm::Each(_) => vec![rows, cols],
                ExpertForm::Transposed => vec![num_experts, cols, rows],
                _ => vec![num_experts, rows, cols],
            };
            let biases = match self.form {
                ExpertForm::Each(_) => vec![rows],
                _ => vec![num_experts, rows],
            };
            for (suffix, shape) in self.suffixes.into_iter().zip([matrix, biases]) {
                if bias || suffix == self.suffixes[0] {
                    let names = self.tensor_names(stem, suffix, num_experts);
                    tensors.extend(names.into_iter().map(|name| (name, shape.clone())));
                }
            }
        }
        if let Some(n) = experts.shared_intermediate_size {
            let gate_up = self.shared_gate_up.map(|stem| (stem, vec![n, hidden]));
            let shared = gate_up.into_iter().chain([(self.shared_down, vec![hidden, n])]);
            tensors.extend(shared.map(|(stem, shape)| (format!("{stem}.weight"), shape)));
            if experts.shared_gate {
                tensors.push((format!("{}.weight", self.shared_gate), vec![1, hidden]));
            }
        }
        tensors
    }

    /// The names where gate and up are one tensor, as transformers 5 has them.
    pub const fn gate_then_up(self) -> Self {
        ExpertNames {
            form: ExpertForm::GateThenUp,
            gate_up: ["mlp.experts.gate_up_proj"; 2],
            down: "mlp.experts.down_proj",
            suffixes: ["", "_bias"],
            ..self
        }
    }
}

impl ExpertForm {
    /// Where `rows` of the `n` rows that expert `expert` of `num_experts` has of gate, or of up,
    /// are in a tensor with those of all experts.
    pub fn rows(
        self,
        rows: &Range<usize>,
        n: usize,
        is_up: bool,
        [expert, num_experts]: [usize; 2],
    ) -> (WeightSlice, PartTransform) {
        let (first, of_expert, transform) = match self {
            ExpertForm::Each(_) | ExpertForm::Stacks => (rows.start, n, PartTransform::None),
            ExpertForm::GateThenUp => {
                (usize::from(is_up) * n + rows.start, 2 * n, PartTransform::None)
            }
            ExpertForm::Alternating | ExpertForm::Transposed => {
                (2 * rows.start + usize::from(is_up), 2 * n, PartTransform::EverySecond)
            }
        };
        let first = expert * of_expert + first;
        (WeightSlice::Rows { first, of: num_experts * of_expert }, transform)
    }
}

pub(super) const HF_EXPERTS: ExpertNames = ExpertNames {
    router: "mlp.gate",
    score_bias: "mlp.gate.e_score_correction_bias",
    form: ExpertForm::Each("mlp.experts."),
    gate_up: ["gate_proj", "up_proj"],
    down: "down_proj",
    suffixes: [".weight", ".bias"],
    shared_gate_up: ["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"],
    shared_down: "mlp.shared_experts.down_proj",
    shared_gate: "mlp.shared_expert_gate",
};

pub(super) const QWEN_EXPERTS: ExpertNames = ExpertNames {
    shared_gate_up: ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"],
    shared_down: "mlp.shared_expert.down_proj",
    ..HF_EXPERTS
};

pub(super) const GEMMA4_EXPERTS: ExpertNames = ExpertNames {
    router: "router.proj",
    form: ExpertForm::GateThenUp,
    gate_up: ["experts.gate_up_proj"; 2],
    down: "experts.down_proj",
    suffixes: ["", "_bias"],
    ..HF_EXPERTS
};

pub(super) const MIXTRAL_EXPERTS: ExpertNames = ExpertNames {
    router: "block_sparse_moe.gate",
    form: ExpertForm::Each("block_sparse_moe.experts."),
    gate_up: ["w1", "w3"],
    down: "w2",
    ..HF_EXPERTS
};

/// In 16 bits, and in MXFP4: tensors in MXFP4 are listed as others are, with `.weight`.
pub(super) const OPENAI_EXPERTS: [ExpertNames; 2] = [
    ExpertNames { router: "mlp.router", form: ExpertForm::Transposed, ..HF_EXPERTS.gate_then_up() },
    ExpertNames {
        router: "mlp.router",
        form: ExpertForm::Alternating,
        suffixes: [".weight", "_bias"],
        ..HF_EXPERTS.gate_then_up()
    },
];

/// As published, and as transformers 5 has them in memory.
pub(super) const GRANITE_EXPERTS: [ExpertNames; 2] = [
    ExpertNames {
        router: "block_sparse_moe.router.layer",
        form: ExpertForm::GateThenUp,
        gate_up: ["block_sparse_moe.input_linear"; 2],
        down: "block_sparse_moe.output_linear",
        ..HF_EXPERTS
    },
    ExpertNames {
        router: "block_sparse_moe.router",
        form: ExpertForm::GateThenUp,
        gate_up: ["block_sparse_moe.experts.gate_up_proj"; 2],
        down: "block_sparse_moe.experts.down_proj",
        suffixes: ["", "_bias"],
        ..HF_EXPERTS
    },
];

pub(super) const GGUF_EXPERTS: ExpertNames = ExpertNames {
    router: "ffn_gate_inp",
    score_bias: "exp_probs_b.bias",
    form: ExpertForm::Stacks,
    gate_up: ["ffn_gate_exps", "ffn_up_exps"],
    down: "ffn_down_exps",
    suffixes: [".weight", ".bias"],
    shared_gate_up: ["ffn_gate_shexp", "ffn_up_shexp"],
    shared_down: "ffn_down_shexp",
    shared_gate: "ffn_gate_inp_shexp",
};
