//! Names of a family's tensors in a checkpoint, and what each packed weight is made of.

mod delta;
mod encoder;
mod experts;
mod gemma4;

use super::{Config, Family, KvSource, NormPlacement, QkNorm};
use crate::plan::KvHeads;
pub(crate) use delta::DeltaNames;
use delta::{GGUF_DELTA, GGUF_GROUPED_DELTA, HF_DELTA, HF_GROUPED_DELTA};
pub(crate) use encoder::EncoderNames;
use encoder::{GGUF_BERT, GGUF_MODERN_BERT, HF_BERT, HF_MODERN_BERT, HF_ROBERTA};
pub(crate) use experts::{ExpertForm, ExpertNames};
use experts::{
    GEMMA4_EXPERTS, GGUF_EXPERTS, GRANITE_EXPERTS, HF_EXPERTS, MIXTRAL_EXPERTS, OPENAI_EXPERTS,
    QWEN_EXPERTS,
};
pub(crate) use gemma4::Gemma4Names;
use gemma4::{GGUF_GEMMA4, HF_GEMMA4};

/// Names in one kind of checkpoint. Those of a layer come after `layers` and the layer's number;
/// all of them take `.weight` or `.bias`, but where it says otherwise.
#[derive(Debug, PartialEq)]
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
    /// A whole name.
    pub sinks: &'static str,
    pub mlp_norm: &'static str,
    /// Norms after the branches, where there are some before them too.
    pub attention_post_norm: &'static str,
    pub mlp_post_norm: &'static str,
    /// What is added to the weights of norms.
    pub norm_offset: f32,
    /// Gate and up, stacked in this order here or, where it is one name, already in the checkpoint.
    pub gate_up: &'static [&'static str],
    pub down: &'static str,
    /// Names of experts.
    pub experts: ExpertNames,
    /// Names of layers of Gated DeltaNet.
    pub delta: DeltaNames,
    /// Names of what encoders have alone.
    pub encoder: EncoderNames,
    /// Names of what only Gemma 4 has.
    pub gemma4: Gemma4Names,
    /// Whether the rows of Q and K are in the order of interleaved RoPE.
    pub interleaved_rope: bool,
}

impl Names {
    /// The names that the Hugging Face checkpoint of a model of `config` uses, which has the
    /// tensors that `has` says. Saved from the decoder alone, as for embeddings, they are bare:
    /// without `model.`.
    pub fn hugging_face(config: &Config, has: impl Fn(&str) -> bool) -> &'static Names {
        let tables: &'static [Names] = match config.family {
            Family::Phi3 => &HF_PHI3,
            Family::Mixtral => &HF_MIXTRAL,
            Family::Olmo2 | Family::Olmo3 => &HF_OLMO,
            Family::Mistral | Family::Ministral3 => &HF_MISTRAL,
            Family::Qwen3Moe | Family::Glm4Moe => &HF_MOE,
            Family::GptOss => &HF_GPT_OSS,
            Family::GraniteMoe => &HF_GRANITE_MOE,
            Family::Gemma2 | Family::Gemma3 => &HF_GEMMA,
            Family::Bert => &HF_BERT,
            Family::Roberta => &HF_ROBERTA,
            Family::ModernBert => &HF_MODERN_BERT,
            Family::Gemma4 => &HF_GEMMA_4,
            Family::Qwen3Next => &HF_QWEN3_NEXT,
            Family::Qwen35 | Family::Qwen35Moe => &HF_QWEN35,
            _ => &HF_LLAMA,
        };
        let fits = |table: &&Names| has(&format!("{}.weight", table.embedding));
        let has_experts = |table: &&Names| {
            let layers = config.layers.iter().enumerate().filter(|(_, layer)| layer.has_experts);
            let first =
                layers.map(|(layer, _)| table.in_layer(layer, &table.experts.first())).next();
            first.is_none_or(|first| has(&first))
        };
        let table = tables.iter().find(|table| fits(table) && has_experts(table));
        table.or_else(|| tables.iter().find(fits)).unwrap_or(&tables[0])
    }

    /// The names that the GGUF file of a model of `family` uses, which has the tensors that `has`
    /// says.
    pub fn gguf_of(family: Family, has: impl Fn(&str) -> bool) -> &'static Names {
        let joined = &GGUF_GEMMA4_JOINED;
        let first = joined.in_layer(0, &joined.experts.first());
        if family == Family::Gemma4 && has(&first) { joined } else { Self::gguf(family) }
    }

    /// The names that GGUF files of `family` use.
    pub fn gguf(family: Family) -> &'static Names {
        match family {
            Family::Llama
            | Family::Mistral
            | Family::Mixtral
            | Family::Granite
            | Family::GraniteMoe
            | Family::SmolLm3
            | Family::Ministral3 => &GGUF_LLAMA,
            Family::GptOss | Family::Glm4Moe => &GGUF_POST_NORM,
            // As of Gemma.
            Family::Qwen35 | Family::Qwen35Moe => &GGUF_POST_NORM,
            Family::Qwen3Next => &GGUF_QWEN3_NEXT,
            // Nothing is added to the weights of Gemma 4's.
            Family::Gemma4 => &GGUF,
            // Conversion has added 1 to the weights of Gemma's norms.
            Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe | Family::Gemma2 | Family::Gemma3 => {
                &GGUF
            }
            Family::Bert | Family::Roberta => &GGUF_BERT,
            Family::ModernBert => &GGUF_MODERN_BERT,
            Family::Phi3 => &GGUF_PHI3,
            Family::Olmo2 | Family::Olmo3 => &GGUF_OLMO,
        }
    }

    /// Every tensor of a model with its shape, outermost dimension first; in the same order by all
    /// tables.
    pub fn tensors(&self, config: &Config) -> Vec<(String, Vec<usize>)> {
        if let Some(encoder) = config.encoder {
            return self.encoder_tensors(config, encoder);
        }
        let Config { vocab_size, hidden_size: hidden, .. } = *config;
        let mut tensors = vec![(format!("{}.weight", self.embedding), vec![vocab_size, hidden])];
        let of_model = self.gemma4.of_model(config).into_iter();
        tensors.extend(of_model.map(|(name, shape)| (self.of_model(&name), shape)));
        for layer in 0..config.num_layers() {
            let heads = config.heads(layer);
            let KvHeads { head_dim, .. } = heads;
            let (q_width, kv_width) = (config.num_heads * head_dim, heads.width());
            let (kv, intermediate_size) =
                (config.layers[layer].kv, config.intermediate_size_of(layer));
            // Q, and of K and V those that are the layer's own.
            let num_projected = match kv {
                KvSource::Own => 3,
                KvSource::Joint => 2,
                KvSource::Layer(_) => 1,
            };
            let mut push = |stem: &str, shape: &[usize], has_bias: bool| {
                let name = self.in_layer(layer, stem);
                tensors.push((format!("{name}.weight"), shape.to_vec()));
                if has_bias {
                    tensors.push((format!("{name}.bias"), vec![shape[0]]));
                }
            };
            push(self.attention_norm, &[hidden], false);
            if config.norms == NormPlacement::Around {
                push(self.attention_post_norm, &[hidden], false);
                push(self.mlp_post_norm, &[hidden], false);
            }
            let delta = config.delta.filter(|_| config.layers[layer].is_delta);
            if let (Some(over), None) = (config.qk_norm, delta) {
                let widths = match over {
                    QkNorm::PerHead => [head_dim; 2],
                    QkNorm::AllHeads => [q_width, kv_width],
                };
                push(self.q_norm, &widths[..1], false);
                if num_projected > 1 {
                    push(self.k_norm, &widths[1..], false);
                }
            }
            if delta.is_none() {
                let q_rows = if config.attention_gate { 2 * q_width } else { q_width };
                let rows = [q_rows, kv_width, kv_width];
                for (stem, rows) in stacked(self.qkv, &rows[..num_projected]) {
                    push(stem, &[rows, hidden], config.qkv_bias);
                }
                push(self.attention_out, &[hidden, q_width], config.attention_out_bias);
            }
            push(self.mlp_norm, &[hidden], false);
            if let Some(delta) = delta {
                let own = self.delta.tensors(&delta, hidden).into_iter();
                tensors.extend(own.map(|(name, shape)| (self.in_layer(layer, &name), shape)));
            }
            let mut push = |stem: &str, shape: &[usize], has_bias: bool| {
                let name = self.in_layer(layer, stem);
                tensors.push((format!("{name}.weight"), shape.to_vec()));
                if has_bias {
                    tensors.push((format!("{name}.bias"), vec![shape[0]]));
                }
            };
            let has_experts = config.layers[layer].has_experts;
            let experts = config.experts.filter(|_| has_experts);
            if experts.is_none_or(|experts| experts.beside_mlp) {
                for (stem, rows) in stacked(self.gate_up, &[intermediate_size; 2]) {
                    push(stem, &[rows, hidden], config.mlp_bias);
                }
                push(self.down, &[hidden, intermediate_size], config.mlp_bias);
            }
            let of_experts = experts.map(|experts| self.experts.tensors(&experts, hidden));
            let own = self.gemma4.of_layer(config, has_experts);
            let own = of_experts.into_iter().flatten().chain(own);
            tensors.extend(own.map(|(name, shape)| (self.in_layer(layer, &name), shape)));
            if config.has_sinks {
                tensors.push((self.in_layer(layer, self.sinks), vec![config.num_heads]));
            }
        }
        tensors.push((format!("{}.weight", self.final_norm), vec![hidden]));
        if !config.tie_word_embeddings {
            tensors.push((format!("{}.weight", self.lm_head), vec![vocab_size, hidden]));
        }
        tensors
    }

    /// The full name of `stem`, which is one of the model's that layers come after.
    pub fn of_model(&self, stem: &str) -> String {
        let prefix = self.layers.trim_end_matches("layers.").trim_end_matches("blk.");
        format!("{prefix}{stem}")
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
    sinks: "self_attn.sinks",
    mlp_norm: "post_attention_layernorm",
    attention_post_norm: "post_attention_layernorm",
    mlp_post_norm: "post_feedforward_layernorm",
    norm_offset: 0.0,
    gate_up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    experts: HF_EXPERTS,
    delta: HF_DELTA,
    encoder: EncoderNames::NONE,
    gemma4: HF_GEMMA4,
    interleaved_rope: false,
};

const HF_BARE: Names =
    Names { embedding: "embed_tokens", final_norm: "norm", layers: "layers.", ..HF };

const HF_LLAMA: [Names; 2] = [HF, HF_BARE];

/// The experts as published, and as transformers 5 has them in memory.
const HF_MOE: [Names; 4] = [
    HF,
    HF_BARE,
    with_experts(HF, HF_EXPERTS.gate_then_up()),
    with_experts(HF_BARE, HF_EXPERTS.gate_then_up()),
];

const HF_MIXTRAL: [Names; 4] = [
    with_experts(HF, MIXTRAL_EXPERTS),
    with_experts(HF_BARE, MIXTRAL_EXPERTS),
    with_experts(HF, HF_EXPERTS.gate_then_up()),
    with_experts(HF_BARE, HF_EXPERTS.gate_then_up()),
];

/// In 16 bits, and in MXFP4.
const HF_GPT_OSS: [Names; 4] = [
    with_experts(HF, OPENAI_EXPERTS[0]),
    with_experts(HF_BARE, OPENAI_EXPERTS[0]),
    with_experts(HF, OPENAI_EXPERTS[1]),
    with_experts(HF_BARE, OPENAI_EXPERTS[1]),
];

const HF_GRANITE_MOE: [Names; 4] = [
    with_experts(HF, GRANITE_EXPERTS[0]),
    with_experts(HF_BARE, GRANITE_EXPERTS[0]),
    with_experts(HF, GRANITE_EXPERTS[1]),
    with_experts(HF_BARE, GRANITE_EXPERTS[1]),
];

const fn with_experts(names: Names, experts: ExpertNames) -> Names {
    Names { experts, ..names }
}

const HF_PHI3: [Names; 2] = [phi3(HF), phi3(HF_BARE)];

const HF_OLMO: [Names; 2] = [olmo(HF), olmo(HF_BARE)];

/// The language model of one that takes images is called as it was before transformers 5, and as
/// since.
const HF_MISTRAL: [Names; 4] = [HF, HF_BARE, HF_LANGUAGE_MODEL, HF_MODEL_LANGUAGE_MODEL];

/// As before transformers 5.
const HF_LANGUAGE_MODEL: Names = Names {
    embedding: "language_model.model.embed_tokens",
    final_norm: "language_model.model.norm",
    lm_head: "language_model.lm_head",
    layers: "language_model.model.layers.",
    ..HF
};

/// As since.
const HF_MODEL_LANGUAGE_MODEL: Names = Names {
    embedding: "model.language_model.embed_tokens",
    final_norm: "model.language_model.norm",
    layers: "model.language_model.layers.",
    ..HF
};

const HF_GEMMA: [Names; 4] =
    [gemma(HF), gemma(HF_BARE), gemma(HF_LANGUAGE_MODEL), gemma(HF_MODEL_LANGUAGE_MODEL)];

/// As published, and saved from the language model alone.
const HF_GEMMA_4: [Names; 4] =
    [gemma4(HF_MODEL_LANGUAGE_MODEL), gemma4(HF), gemma4(HF_BARE), gemma4(HF_LANGUAGE_MODEL)];

const HF_QWEN3_NEXT: [Names; 4] = [
    qwen3_next(HF, QWEN_EXPERTS),
    qwen3_next(HF_BARE, QWEN_EXPERTS),
    qwen3_next(HF, QWEN_EXPERTS.gate_then_up()),
    qwen3_next(HF_BARE, QWEN_EXPERTS.gate_then_up()),
];

/// As published, and saved from the language model alone; experts in one tensor, and in one each.
const HF_QWEN35: [Names; 6] = [
    qwen35(HF_MODEL_LANGUAGE_MODEL, QWEN_EXPERTS.gate_then_up()),
    qwen35(HF, QWEN_EXPERTS.gate_then_up()),
    qwen35(HF_BARE, QWEN_EXPERTS.gate_then_up()),
    qwen35(HF_MODEL_LANGUAGE_MODEL, QWEN_EXPERTS),
    qwen35(HF, QWEN_EXPERTS),
    qwen35(HF_BARE, QWEN_EXPERTS),
];

const fn qwen3_next(names: Names, experts: ExpertNames) -> Names {
    Names { delta: HF_GROUPED_DELTA, ..qwen35(names, experts) }
}

/// The weights of norms are stored less 1, but in layers of Gated DeltaNet.
const fn qwen35(names: Names, experts: ExpertNames) -> Names {
    Names { norm_offset: 1.0, experts, ..names }
}

const fn phi3(names: Names) -> Names {
    Names { qkv: &["self_attn.qkv_proj"], gate_up: &["mlp.gate_up_proj"], ..names }
}

/// Norms are around the branches, and their weights are stored less 1.
const fn gemma(names: Names) -> Names {
    Names { mlp_norm: "pre_feedforward_layernorm", norm_offset: 1.0, ..names }
}

/// As [`gemma`], but for the weights of norms.
const fn gemma4(names: Names) -> Names {
    Names { norm_offset: 0.0, experts: GEMMA4_EXPERTS, ..gemma(names) }
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
    sinks: "attn_sinks.weight",
    mlp_norm: "ffn_norm",
    attention_post_norm: "post_attention_norm",
    mlp_post_norm: "post_ffw_norm",
    norm_offset: 0.0,
    gate_up: &["ffn_gate", "ffn_up"],
    down: "ffn_down",
    experts: GGUF_EXPERTS,
    delta: GGUF_DELTA,
    encoder: EncoderNames::NONE,
    gemma4: GGUF_GEMMA4,
    interleaved_rope: false,
};

/// Gate and up of experts are one tensor.
const GGUF_GEMMA4_JOINED: Names = Names {
    experts: ExpertNames {
        form: ExpertForm::GateThenUp,
        gate_up: ["ffn_gate_up_exps"; 2],
        ..GGUF_EXPERTS
    },
    ..GGUF
};

const GGUF_LLAMA: Names = Names { interleaved_rope: true, ..GGUF };

const GGUF_OLMO: Names =
    Names { attention_norm: "post_attention_norm", mlp_norm: "post_ffw_norm", ..GGUF };

/// `ffn_up` holds the gate's rows, then those of up.
const GGUF_PHI3: Names = Names { qkv: &["attn_qkv"], gate_up: &["ffn_up"], ..GGUF };

/// The norm of the MLP is called by what it comes after.
const GGUF_POST_NORM: Names = Names { mlp_norm: "post_attention_norm", ..GGUF };

const GGUF_QWEN3_NEXT: Names = Names { delta: GGUF_GROUPED_DELTA, ..GGUF_POST_NORM };
