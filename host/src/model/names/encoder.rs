//! Names of what encoders have that decoders do not, and tables of encoders' names.

use super::{GGUF, HF, Names, stacked};
use crate::model::{Config, Encoder, LearnedPositions};

/// Names of an encoder's tensors, each of which takes `.weight` or `.bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncoderNames {
    /// The norm of the embedding.
    pub embedding_norm: &'static str,
    /// Learned positions, and the types of tokens.
    pub positions: &'static str,
    pub token_types: &'static str,
    /// What a classifier has before its last linear layer: a linear layer, and a norm of its
    /// output, where the family has one.
    pub classifier_dense: &'static str,
    pub classifier_norm: &'static str,
    /// The last linear layer of a classifier.
    pub classifier: &'static str,
}

impl EncoderNames {
    /// Decoders have none of them.
    pub const NONE: Self = EncoderNames {
        embedding_norm: "",
        positions: "",
        token_types: "",
        classifier_dense: "",
        classifier_norm: "",
        classifier: "",
    };
}

/// Saved with a head, and alone.
pub(super) const HF_BERT: [Names; 2] = [
    Names {
        embedding: "bert.embeddings.word_embeddings",
        layers: "bert.encoder.layer.",
        encoder: EncoderNames {
            embedding_norm: "bert.embeddings.LayerNorm",
            positions: "bert.embeddings.position_embeddings",
            token_types: "bert.embeddings.token_type_embeddings",
            classifier_dense: "bert.pooler.dense",
            ..BERT_ALONE
        },
        ..HF_BERT_ALONE
    },
    HF_BERT_ALONE,
];

/// Saved with a head, and alone.
pub(super) const HF_ROBERTA: [Names; 2] = [
    Names {
        embedding: "roberta.embeddings.word_embeddings",
        layers: "roberta.encoder.layer.",
        encoder: EncoderNames {
            embedding_norm: "roberta.embeddings.LayerNorm",
            positions: "roberta.embeddings.position_embeddings",
            token_types: "roberta.embeddings.token_type_embeddings",
            classifier_dense: "classifier.dense",
            classifier_norm: "",
            classifier: "classifier.out_proj",
        },
        ..HF_BERT_ALONE
    },
    Names {
        encoder: EncoderNames { classifier: "classifier.out_proj", ..BERT_ALONE },
        ..HF_BERT_ALONE
    },
];

/// Saved with a head, and alone.
pub(super) const HF_MODERN_BERT: [Names; 2] = [
    Names {
        embedding: "model.embeddings.tok_embeddings",
        final_norm: "model.final_norm",
        layers: "model.layers.",
        encoder: EncoderNames { embedding_norm: "model.embeddings.norm", ..MODERN_BERT_ALONE },
        ..HF_MODERN_BERT_ALONE
    },
    HF_MODERN_BERT_ALONE,
];

const BERT_ALONE: EncoderNames = EncoderNames {
    embedding_norm: "embeddings.LayerNorm",
    positions: "embeddings.position_embeddings",
    token_types: "embeddings.token_type_embeddings",
    classifier_dense: "pooler.dense",
    classifier_norm: "",
    classifier: "classifier",
};

const HF_BERT_ALONE: Names = Names {
    embedding: "embeddings.word_embeddings",
    layers: "encoder.layer.",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    attention_out: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    gate_up: &["intermediate.dense"],
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
    encoder: BERT_ALONE,
    ..HF
};

const MODERN_BERT_ALONE: EncoderNames = EncoderNames {
    embedding_norm: "embeddings.norm",
    classifier_dense: "head.dense",
    classifier_norm: "head.norm",
    classifier: "classifier",
    ..EncoderNames::NONE
};

const HF_MODERN_BERT_ALONE: Names = Names {
    embedding: "embeddings.tok_embeddings",
    final_norm: "final_norm",
    layers: "layers.",
    qkv: &["attn.Wqkv"],
    attention_out: "attn.Wo",
    attention_norm: "attn_norm",
    gate_up: &["mlp.Wi"],
    down: "mlp.Wo",
    mlp_norm: "mlp_norm",
    encoder: MODERN_BERT_ALONE,
    ..HF
};

pub(super) const GGUF_BERT: Names = Names {
    attention_norm: "attn_output_norm",
    mlp_norm: "layer_output_norm",
    gate_up: &["ffn_up"],
    encoder: GGUF_ENCODER,
    ..GGUF
};

/// A file of an older conversion has Q, K and V apart.
pub(super) const GGUF_MODERN_BERT: Names =
    Names { qkv: &["attn_qkv"], gate_up: &["ffn_up"], encoder: GGUF_ENCODER, ..GGUF };

const GGUF_ENCODER: EncoderNames = EncoderNames {
    embedding_norm: "token_embd_norm",
    positions: "position_embd",
    token_types: "token_types",
    classifier_dense: "cls",
    classifier_norm: "cls.norm",
    classifier: "cls.output",
};

impl Names {
    /// Every tensor of an encoder without a head, with its shape, outermost dimension first.
    pub(super) fn encoder_tensors(
        &self,
        config: &Config,
        encoder: Encoder,
    ) -> Vec<(String, Vec<usize>)> {
        let &Config { vocab_size, hidden_size: hidden, intermediate_size, .. } = config;
        let Encoder { norm_of_sum, norm_bias, is_gated, positions } = encoder;
        let mut tensors = Vec::new();
        let mut push = |name: String, shape: &[usize], has_bias: bool| {
            tensors.push((format!("{name}.weight"), shape.to_vec()));
            if has_bias {
                tensors.push((format!("{name}.bias"), vec![shape[0]]));
            }
        };
        push(self.embedding.to_owned(), &[vocab_size, hidden], false);
        if let Some(LearnedPositions { first, num_types }) = positions {
            let rows = first + config.max_position_embeddings;
            push(self.encoder.positions.to_owned(), &[rows, hidden], false);
            push(self.encoder.token_types.to_owned(), &[num_types, hidden], false);
        }
        push(self.encoder.embedding_norm.to_owned(), &[hidden], norm_bias);
        let up_rows = if is_gated { 2 * intermediate_size } else { intermediate_size };
        for layer in 0..config.num_layers() {
            let name = |stem: &str| self.in_layer(layer, stem);
            for (stem, rows) in stacked(self.qkv, &[hidden; 3]) {
                push(name(stem), &[rows, hidden], config.qkv_bias);
            }
            push(name(self.attention_out), &[hidden, hidden], config.attention_out_bias);
            push(name(self.gate_up[0]), &[up_rows, hidden], config.mlp_bias);
            push(name(self.down), &[hidden, intermediate_size], config.mlp_bias);
            if norm_of_sum || layer > 0 {
                push(name(self.attention_norm), &[hidden], norm_bias);
            }
            push(name(self.mlp_norm), &[hidden], norm_bias);
        }
        if !norm_of_sum {
            push(self.final_norm.to_owned(), &[hidden], norm_bias);
        }
        tensors
    }
}
