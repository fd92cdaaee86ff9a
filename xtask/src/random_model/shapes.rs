//! Names and shapes of the tensors of real checkpoints.

/// A checkpoint to imitate: its `config.json`, and the sizes in it that determine the tensors.
pub struct Shapes {
    /// Name of the checkpoint on the command line.
    pub name: &'static str,
    /// The real `config.json`, except for the weights' type and the context of Llama's, which are measured in longer ones.
    pub config: &'static str,
    hidden_size: usize,
    intermediate_size: usize,
    num_layers: usize,
    q_dim: usize,
    kv_dim: usize,
    vocab_size: usize,
    /// Whether projections are fused, as Phi-3's `qkv_proj` and `gate_up_proj`; otherwise there are five.
    fused: bool,
    /// Whether Q, K and V have a bias, as in Qwen2.
    qkv_bias: bool,
    /// Whether there is no `lm_head` and the embedding is used for it.
    tied: bool,
}

/// The checkpoints that can be imitated, and one that is as small as a step of the CPU is fast: for what is around a model.
pub const MODELS: &[Shapes] = &[
    Shapes {
        name: "tiny",
        config: include_str!("tiny.json"),
        hidden_size: 128,
        intermediate_size: 256,
        num_layers: 2,
        q_dim: 2 * 64,
        kv_dim: 64,
        vocab_size: 1105,
        fused: false,
        qkv_bias: true,
        tied: true,
    },
    Shapes {
        name: "qwen2.5-0.5b",
        config: include_str!("qwen2.5-0.5b.json"),
        hidden_size: 896,
        intermediate_size: 4864,
        num_layers: 24,
        q_dim: 14 * 64,
        kv_dim: 2 * 64,
        vocab_size: 151936,
        fused: false,
        qkv_bias: true,
        tied: true,
    },
    Shapes {
        name: "qwen2.5-7b",
        config: include_str!("qwen2.5-7b.json"),
        hidden_size: 3584,
        intermediate_size: 18944,
        num_layers: 28,
        q_dim: 28 * 128,
        kv_dim: 4 * 128,
        vocab_size: 152064,
        fused: false,
        qkv_bias: true,
        tied: false,
    },
    Shapes {
        name: "phi-3-mini",
        config: include_str!("phi-3-mini.json"),
        hidden_size: 3072,
        intermediate_size: 8192,
        num_layers: 32,
        q_dim: 32 * 96,
        kv_dim: 32 * 96,
        vocab_size: 32064,
        fused: true,
        qkv_bias: false,
        tied: false,
    },
    Shapes {
        name: "llama-2-7b",
        config: include_str!("llama-2-7b.json"),
        hidden_size: 4096,
        intermediate_size: 11008,
        num_layers: 32,
        q_dim: 32 * 128,
        kv_dim: 32 * 128,
        vocab_size: 32000,
        fused: false,
        qkv_bias: false,
        tied: false,
    },
    Shapes {
        name: "llama-3-70b",
        config: include_str!("llama-3-70b.json"),
        hidden_size: 8192,
        intermediate_size: 28672,
        num_layers: 80,
        q_dim: 64 * 128,
        kv_dim: 8 * 128,
        vocab_size: 128_256,
        fused: false,
        qkv_bias: false,
        tied: false,
    },
];

impl Shapes {
    /// Every tensor of the checkpoint with its shape, outermost dimension first.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let hidden = self.hidden_size;
        let mut tensors =
            vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden])];
        for layer in 0..self.num_layers {
            let mut push = |name: &str, shape: &[usize]| {
                tensors.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
            };
            push("input_layernorm.weight", &[hidden]);
            push("post_attention_layernorm.weight", &[hidden]);
            push("self_attn.o_proj.weight", &[hidden, self.q_dim]);
            push("mlp.down_proj.weight", &[hidden, self.intermediate_size]);
            if self.fused {
                push("self_attn.qkv_proj.weight", &[self.q_dim + 2 * self.kv_dim, hidden]);
                push("mlp.gate_up_proj.weight", &[2 * self.intermediate_size, hidden]);
                continue;
            }
            for (name, rows) in [("q", self.q_dim), ("k", self.kv_dim), ("v", self.kv_dim)] {
                push(&format!("self_attn.{name}_proj.weight"), &[rows, hidden]);
                if self.qkv_bias {
                    push(&format!("self_attn.{name}_proj.bias"), &[rows]);
                }
            }
            push("mlp.gate_proj.weight", &[self.intermediate_size, hidden]);
            push("mlp.up_proj.weight", &[self.intermediate_size, hidden]);
        }
        tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
        if !self.tied {
            tensors.push(("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]));
        }
        tensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameter counts are those of the real checkpoints' `model.safetensors.index.json` / model card.
    #[test]
    fn shapes_have_the_real_number_of_parameters() {
        let count = |shapes: &Shapes| -> usize {
            shapes.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
        };
        assert_eq!(count(&MODELS[1]), 494_032_768);
        assert_eq!(count(&MODELS[2]), 7_615_616_512);
        assert_eq!(count(&MODELS[3]), 3_821_079_552);
        assert_eq!(count(&MODELS[4]), 6_738_415_616);
        assert_eq!(count(&MODELS[5]), 70_553_706_496);
    }
}
