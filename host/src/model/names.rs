//! Names of a family's tensors in a checkpoint, and what each packed weight is made of.

use super::{Config, Family};

/// Names in one kind of checkpoint. Those of a layer come after `layers` and the layer's number;
/// all of them take `.weight` or `.bias`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub embedding: &'static str,
    pub final_norm: &'static str,
    pub lm_head: &'static str,
    /// The prefix of a layer's number.
    pub layers: &'static str,
    pub attention_norm: &'static str,
    /// Q, K and V, stacked in this order here or, where it is one name, already in the checkpoint.
    pub qkv: &'static [&'static str],
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub attention_out: &'static str,
    pub mlp_norm: &'static str,
    /// Gate and up, stacked in this order here or, where it is one name, already in the checkpoint.
    pub gate_up: &'static [&'static str],
    pub down: &'static str,
    /// Whether the rows of Q and K are in the order of interleaved RoPE.
    pub interleaved_rope: bool,
}

impl Names {
    /// The names that the Hugging Face checkpoint of a model of `family` uses. Saved from the decoder alone, as for
    /// embeddings, they are bare: without `model.`.
    pub fn hugging_face(family: Family, is_bare: bool) -> &'static Names {
        match (family, is_bare) {
            (Family::Phi3, false) => &HF_PHI3,
            (Family::Phi3, true) => &HF_PHI3_BARE,
            (_, false) => &HF,
            (_, true) => &HF_BARE,
        }
    }

    /// The names that GGUF files of `family` use.
    pub fn gguf(family: Family) -> &'static Names {
        match family {
            Family::Llama | Family::Mistral => &GGUF_LLAMA,
            Family::Qwen2 | Family::Qwen3 => &GGUF,
            Family::Phi3 => &GGUF_PHI3,
        }
    }

    /// Every tensor of a model with its shape, outermost dimension first; in the same order by all tables.
    pub fn tensors(&self, config: &Config) -> Vec<(String, Vec<usize>)> {
        let Config { vocab_size, hidden_size: hidden, intermediate_size, head_dim, .. } = *config;
        let (q_width, kv_width) = (config.num_heads * head_dim, config.num_kv_heads * head_dim);
        let mut tensors = vec![(format!("{}.weight", self.embedding), vec![vocab_size, hidden])];
        for layer in 0..config.num_layers() {
            let mut push = |stem: &str, shape: &[usize], has_bias: bool| {
                let name = self.in_layer(layer, stem);
                tensors.push((format!("{name}.weight"), shape.to_vec()));
                if has_bias {
                    tensors.push((format!("{name}.bias"), vec![shape[0]]));
                }
            };
            push(self.attention_norm, &[hidden], false);
            if config.qk_norm {
                push(self.q_norm, &[head_dim], false);
                push(self.k_norm, &[head_dim], false);
            }
            for (stem, rows) in stacked(self.qkv, &[q_width, kv_width, kv_width]) {
                push(stem, &[rows, hidden], config.qkv_bias);
            }
            push(self.attention_out, &[hidden, q_width], config.attention_out_bias);
            push(self.mlp_norm, &[hidden], false);
            for (stem, rows) in stacked(self.gate_up, &[intermediate_size; 2]) {
                push(stem, &[rows, hidden], config.mlp_bias);
            }
            push(self.down, &[hidden, intermediate_size], config.mlp_bias);
        }
        tensors.push((format!("{}.weight", self.final_norm), vec![hidden]));
        if !config.tie_word_embeddings {
            tensors.push((format!("{}.weight", self.lm_head), vec![vocab_size, hidden]));
        }
        tensors
    }

    /// The full name of `stem` in `layer`, less `.weight` or `.bias`.
    pub fn in_layer(&self, layer: usize, stem: &str) -> String {
        format!("{}{layer}.{stem}", self.layers)
    }
}

/// The rows of each name, which is one for all `rows` where they are stacked already.
fn stacked(names: &[&'static str], rows: &[usize]) -> Vec<(&'static str, usize)> {
    match names {
        [one] => vec![(*one, rows.iter().sum())],
        _ => names.iter().copied().zip(rows.iter().copied()).collect(),
    }
}

const HF: Names = Names {
    embedding: "model.embed_tokens",
    final_norm: "model.norm",
    lm_head: "lm_head",
    layers: "model.layers.",
    attention_norm: "input_layernorm",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    attention_out: "self_attn.o_proj",
    mlp_norm: "post_attention_layernorm",
    gate_up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    interleaved_rope: false,
};

const HF_BARE: Names =
    Names { embedding: "embed_tokens", final_norm: "norm", layers: "layers.", ..HF };

const HF_PHI3: Names = Names { qkv: &["self_attn.qkv_proj"], gate_up: &["mlp.gate_up_proj"], ..HF };

const HF_PHI3_BARE: Names = Names { qkv: HF_PHI3.qkv, gate_up: HF_PHI3.gate_up, ..HF_BARE };

const GGUF: Names = Names {
    embedding: "token_embd",
    final_norm: "output_norm",
    lm_head: "output",
    layers: "blk.",
    attention_norm: "attn_norm",
    qkv: &["attn_q", "attn_k", "attn_v"],
    q_norm: "attn_q_norm",
    k_norm: "attn_k_norm",
    attention_out: "attn_output",
    mlp_norm: "ffn_norm",
    gate_up: &["ffn_gate", "ffn_up"],
    down: "ffn_down",
    interleaved_rope: false,
};

const GGUF_LLAMA: Names = Names { interleaved_rope: true, ..GGUF };

/// `ffn_up` holds the gate's rows, then those of up.
const GGUF_PHI3: Names = Names { qkv: &["attn_qkv"], gate_up: &["ffn_up"], ..GGUF };
