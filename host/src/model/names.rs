//! Names of a family's tensors in a checkpoint, and what each packed weight is made of.

use super::{Config, Experts, Family, QkNorm};

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
    /// Names of experts.
    pub experts: ExpertNames,
    /// Whether the rows of Q and K are in the order of interleaved RoPE.
    pub interleaved_rope: bool,
}

/// Names of a layer's experts in one kind of checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    /// The matrix whose products say where a token goes.
    pub router: &'static str,
    /// The prefix of an expert's number, after which its own names come; none where the matrices of
    /// all experts are one tensor of three dimensions.
    pub each: Option<&'static str>,
    /// Gate and up.
    pub gate_up: [&'static str; 2],
    pub down: &'static str,
}

impl ExpertNames {
    /// Stems of the tensors that hold `stem` of `num_experts` experts.
    pub fn stems(&self, stem: &'static str, num_experts: usize) -> Vec<String> {
        match self.each {
            Some(each) => (0..num_experts).map(|expert| format!("{each}{expert}.{stem}")).collect(),
            None => vec![stem.to_owned()],
        }
    }
}

impl Names {
    /// The names that the Hugging Face checkpoint of a model of `family` uses, which has the tensors that `has` says.
    /// Saved from the decoder alone, as for embeddings, they are bare: without `model.`.
    pub fn hugging_face(family: Family, has: impl Fn(&str) -> bool) -> &'static Names {
        let tables: &'static [Names] = match family {
            Family::Phi3 => &HF_PHI3,
            Family::Mixtral => &HF_MIXTRAL,
            Family::Olmo2 | Family::Olmo3 => &HF_OLMO,
            Family::Mistral | Family::Ministral3 => &HF_MISTRAL,
            _ => &HF_LLAMA,
        };
        let fits = |table: &&Names| has(&format!("{}.weight", table.embedding));
        tables.iter().find(fits).unwrap_or(&tables[0])
    }

    /// The names that GGUF files of `family` use.
    pub fn gguf(family: Family) -> &'static Names {
        match family {
            Family::Llama
            | Family::Mistral
            | Family::Mixtral
            | Family::Granite
            | Family::SmolLm3
            | Family::Ministral3 => &GGUF_LLAMA,
            Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe => &GGUF,
            Family::Phi3 => &GGUF_PHI3,
            Family::Olmo2 | Family::Olmo3 => &GGUF_OLMO,
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
            if let Some(over) = config.qk_norm {
                let widths = match over {
                    QkNorm::PerHead => [head_dim; 2],
                    QkNorm::AllHeads => [q_width, kv_width],
                };
                push(self.q_norm, &widths[..1], false);
                push(self.k_norm, &widths[1..], false);
            }
            for (stem, rows) in stacked(self.qkv, &[q_width, kv_width, kv_width]) {
                push(stem, &[rows, hidden], config.qkv_bias);
            }
            push(self.attention_out, &[hidden, q_width], config.attention_out_bias);
            push(self.mlp_norm, &[hidden], false);
            let Some(Experts { num_experts, .. }) = config.experts else {
                for (stem, rows) in stacked(self.gate_up, &[intermediate_size; 2]) {
                    push(stem, &[rows, hidden], config.mlp_bias);
                }
                push(self.down, &[hidden, intermediate_size], config.mlp_bias);
                continue;
            };
            let ExpertNames { router, each, gate_up: [gate, up], down } = self.experts;
            push(router, &[num_experts, hidden], false);
            let shapes = [
                (gate, [intermediate_size, hidden]),
                (up, [intermediate_size, hidden]),
                (down, [hidden, intermediate_size]),
            ];
            for (stem, [rows, cols]) in shapes {
                let all = [num_experts, rows, cols];
                let shape = if each.is_some() { &all[1..] } else { &all };
                for stem in self.experts.stems(stem, num_experts) {
                    push(&stem, shape, false);
                }
            }
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
    experts: ExpertNames {
        router: "mlp.gate",
        each: Some("mlp.experts."),
        gate_up: ["gate_proj", "up_proj"],
        down: "down_proj",
    },
    interleaved_rope: false,
};

const HF_BARE: Names =
    Names { embedding: "embed_tokens", final_norm: "norm", layers: "layers.", ..HF };

const HF_LLAMA: [Names; 2] = [HF, HF_BARE];

const HF_MIXTRAL: [Names; 2] = [mixtral(HF), mixtral(HF_BARE)];

const fn mixtral(names: Names) -> Names {
    let experts = ExpertNames {
        router: "block_sparse_moe.gate",
        each: Some("block_sparse_moe.experts."),
        gate_up: ["w1", "w3"],
        down: "w2",
    };
    Names { experts, ..names }
}

const HF_PHI3: [Names; 2] = [phi3(HF), phi3(HF_BARE)];

const HF_OLMO: [Names; 2] = [olmo(HF), olmo(HF_BARE)];

/// The language model of one that takes images is called as it was before transformers 5, and as since.
const HF_MISTRAL: [Names; 4] = [
    HF,
    HF_BARE,
    Names {
        embedding: "language_model.model.embed_tokens",
        final_norm: "language_model.model.norm",
        lm_head: "language_model.lm_head",
        layers: "language_model.model.layers.",
        ..HF
    },
    Names {
        embedding: "model.language_model.embed_tokens",
        final_norm: "model.language_model.norm",
        layers: "model.language_model.layers.",
        ..HF
    },
];

const fn phi3(names: Names) -> Names {
    Names { qkv: &["self_attn.qkv_proj"], gate_up: &["mlp.gate_up_proj"], ..names }
}

/// The norms are after the branches.
const fn olmo(names: Names) -> Names {
    Names {
        attention_norm: "post_attention_layernorm",
        mlp_norm: "post_feedforward_layernorm",
        ..names
    }
}

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
    experts: ExpertNames {
        router: "ffn_gate_inp",
        each: None,
        gate_up: ["ffn_gate_exps", "ffn_up_exps"],
        down: "ffn_down_exps",
    },
    interleaved_rope: false,
};

const GGUF_LLAMA: Names = Names { interleaved_rope: true, ..GGUF };

const GGUF_OLMO: Names =
    Names { attention_norm: "post_attention_norm", mlp_norm: "post_ffw_norm", ..GGUF };

/// `ffn_up` holds the gate's rows, then those of up.
const GGUF_PHI3: Names = Names { qkv: &["attn_qkv"], gate_up: &["ffn_up"], ..GGUF };
