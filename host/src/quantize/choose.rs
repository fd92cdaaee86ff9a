//! Which tensor is stored in which type.
//!
//! Source: `tensor_allows_quantization`, `llama_tensor_get_type_impl`, `tensor_type_fallback` and
//! `tensor_requires_imatrix` in llama.cpp's llama-quant.cpp.

use super::{Mix, QuantizeError, TensorType};
use crate::model::{Config, Family};
use crate::plan::Dtype;
use crate::weights::gguf::Metadata;

/// A tensor whose type is chosen.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub name: &'a str,
    pub shape: &'a [usize],
    /// Type in the file, if the tensor may stay in it.
    pub stored: Option<Dtype>,
}

impl<'a> From<&'a (String, Vec<usize>)> for Candidate<'a> {
    fn from((name, shape): &'a (String, Vec<usize>)) -> Self {
        Candidate { name, shape, stored: None }
    }
}

/// What the types depend on besides names and shapes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub num_layers: usize,
    pub num_experts: u64,
    /// Query heads that share a KV head.
    pub queries_per_kv_head: usize,
    /// Whether it is what llama.cpp takes for a model of 70 billion parameters.
    pub is_70b: bool,
    pub has_importance: bool,
}

impl Facts {
    pub fn new(config: &Config, metadata: &Metadata, has_importance: bool) -> Self {
        let Config { num_heads, num_kv_heads, .. } = *config;
        let experts = metadata.0.iter().find(|(key, _)| key.ends_with(".expert_count"));
        let named = experts.and_then(|(_, count)| count.as_u64());
        let num_experts = config.experts.map_or(0, |experts| experts.num_experts as u64);
        let is_70b = match config.family {
            Family::Llama | Family::Mistral => num_heads != num_kv_heads,
            Family::Qwen2 => true,
            _ => false,
        };
        Facts {
            num_layers: config.num_layers(),
            num_experts: named.unwrap_or(num_experts),
            queries_per_kv_head: num_heads / num_kv_heads,
            is_70b: is_70b && config.num_layers() == 80,
            has_importance,
        }
    }
}

/// The type of each of `tensors`, in the order of layers.
///
/// # Errors
/// [`QuantizeError::NeedsImportance`] for a type that is of no use without an importance matrix,
/// [`QuantizeError::Pattern`] for a pattern that takes too long.
pub(super) fn dtypes(
    tensors: &[Candidate<'_>],
    mix: Mix,
    overrides: &[TensorType],
    facts: Facts,
) -> Result<Vec<Dtype>, QuantizeError> {
    let count = |wanted: fn(Role) -> bool| {
        tensors.iter().filter(|tensor| wanted(Role::of(tensor.name))).count()
    };
    let mut chooser = Chooser {
        mix,
        facts,
        tied: count(|role| role == Role::Output) == 0,
        num_v: count(|role| role == Role::V),
        v: 0,
        down: 0,
    };
    let choose = |tensor: &Candidate<'_>| {
        if !is_matrix(tensor) {
            return Ok(tensor.stored.unwrap_or(Dtype::F32));
        }
        let base = mix.base();
        if base.block_elems() == 1 {
            return Ok(base);
        }
        let named = overrides.iter().find_map(|rule| match rule.matches(tensor.name) {
            Ok(matches) => matches.then_some(Ok(rule.dtype)),
            Err(error) => Some(Err(error)),
        });
        let wanted = match named {
            Some(dtype) => dtype?,
            None => chooser.preferred(tensor),
        };
        let dtype = fallback(wanted, row_elems(tensor));
        if needs_importance(mix, tensor.name, dtype) && !facts.has_importance {
            return Err(QuantizeError::NeedsImportance { tensor: tensor.name.to_owned(), dtype });
        }
        Ok(dtype)
    };
    tensors.iter().map(choose).collect()
}

/// Whether tensor `name` is of no use as `dtype` without an importance matrix.
pub(super) fn needs_importance(mix: Mix, name: &str, dtype: Dtype) -> bool {
    let is_embedding = matches!(Role::of(name), Role::Output | Role::Embedding);
    (mix, dtype) == (Mix::Q2_K_S, Dtype::Q2_K) && !is_embedding
}

/// Parts of the names of matrices that are small, or that models do not bear in fewer bits.
const EXCLUDED: [&str; 14] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "attn_rel_b.weight",
    ".position_embd",
    ".rel_pos",
    ".patch_embd",
];

/// Whether llama.cpp stores a tensor in another type than f32.
fn is_matrix(tensor: &Candidate<'_>) -> bool {
    // Dimensions of one element, outermost, do not count in GGUF.
    let dims = tensor.shape.iter().skip_while(|dim| **dim == 1).count();
    let name = tensor.name;
    dims >= 2 && name.ends_with("weight") && !EXCLUDED.iter().any(|part| name.contains(part))
}

fn row_elems(tensor: &Candidate<'_>) -> usize {
    tensor.shape.last().copied().unwrap_or(1)
}

/// What a matrix is for, as far as its type depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Output,
    Embedding,
    /// V, alone or with others.
    V,
    K,
    AttentionOutput,
    Down,
    Other,
}

impl Role {
    fn of(name: &str) -> Self {
        const PARTS: [(&str, Role); 8] = [
            ("attn_qkv.weight", Role::V),
            ("attn_kv_b.weight", Role::V),
            ("attn_v.weight", Role::V),
            ("attn_k.weight", Role::K),
            ("attn_output.weight", Role::AttentionOutput),
            ("ffn_up", Role::Other),
            ("ffn_gate", Role::Other),
            ("ffn_down", Role::Down),
        ];
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embedding,
            _ => {
                let known = PARTS.iter().find(|(part, _)| name.contains(part));
                known.map_or(Role::Other, |(_, role)| *role)
            }
        }
    }
}

/// The choice of types, tensor by tensor.
struct Chooser {
    mix: Mix,
    facts: Facts,
    /// Whether the embedding is the output projection too.
    tied: bool,
    num_v: usize,
    /// How many tensors of the role there were.
    v: usize,
    down: usize,
}

impl Chooser {
    /// The type where rows are as long as it needs.
    fn preferred(&mut self, tensor: &Candidate<'_>) -> Dtype {
        let base = self.mix.base();
        match Role::of(tensor.name) {
            Role::Output => self.output(row_elems(tensor)),
            Role::Embedding if self.tied => self.output(row_elems(tensor)),
            _ if self.mix == Mix::MXFP4_MOE => match tensor.shape {
                [experts, _, _] if *experts > 1 => Dtype::MXFP4,
                _ => Dtype::Q8_0,
            },
            Role::V => self.value(),
            Role::K if self.facts.num_experts == 8 => Dtype::Q8_0,
            Role::Down => self.down(tensor.name),
            Role::AttentionOutput => self.attention_output(),
            _ => base,
        }
    }

    fn output(&self, row_elems: usize) -> Dtype {
        let base = self.mix.base();
        let fits = row_elems.is_multiple_of(base.block_elems());
        let is_eight_bits = matches!(self.mix, Mix::MXFP4_MOE | Mix::Q8_0);
        if fits && !is_eight_bits { Dtype::Q6_K } else { Dtype::Q8_0 }
    }

    fn value(&mut self) -> Dtype {
        let index = self.v;
        self.v += 1;
        let is_shared = self.facts.queries_per_kv_head >= 4;
        let dtype = match self.mix {
            Mix::Q2_K if !is_shared => Dtype::Q3_K,
            Mix::Q2_K | Mix::Q2_K_S if is_shared => Dtype::Q4_K,
            Mix::Q3_K_M if index >= 2 => Dtype::Q4_K,
            Mix::Q3_K_M | Mix::Q3_K_L => Dtype::Q5_K,
            Mix::IQ4_NL | Mix::IQ4_XS if is_shared => Dtype::Q5_K,
            Mix::Q4_K_M | Mix::Q5_K_M if use_more_bits(index, self.num_v) => Dtype::Q6_K,
            Mix::Q4_K_S if index < 4 => Dtype::Q5_K,
            _ => self.mix.base(),
        };
        match dtype {
            _ if self.facts.num_experts == 8 => Dtype::Q8_0,
            Dtype::Q3_K | Dtype::Q4_K if self.facts.is_70b => Dtype::Q5_K,
            _ => dtype,
        }
    }

    fn down(&mut self, name: &str) -> Dtype {
        let Facts { num_layers, num_experts, has_importance, .. } = self.facts;
        // A layer of experts may have several.
        let of_name = layer(name).filter(|_| num_experts > 1);
        let layer = of_name.unwrap_or(self.down);
        self.down += 1;
        let is_early = layer < num_layers / 8;
        match self.mix {
            Mix::Q2_K => Dtype::Q3_K,
            Mix::Q2_K_S if is_early => Dtype::Q4_K,
            Mix::Q3_K_M if layer >= num_layers / 16 => Dtype::Q4_K,
            Mix::Q3_K_M | Mix::Q3_K_L => Dtype::Q5_K,
            Mix::Q4_K_M | Mix::Q5_K_M if use_more_bits(layer, num_layers) => Dtype::Q6_K,
            Mix::IQ4_NL | Mix::IQ4_XS if is_early && !has_importance => Dtype::Q5_K,
            Mix::Q4_K_S if is_early => Dtype::Q5_K,
            Mix::Q4_0 if is_early && has_importance => Dtype::Q4_1,
            Mix::Q5_0 if is_early && has_importance => Dtype::Q5_1,
            _ => self.mix.base(),
        }
    }

    fn attention_output(&self) -> Dtype {
        let base = self.mix.base();
        if self.facts.num_experts == 8 {
            let is_small = matches!(self.mix, Mix::Q2_K | Mix::Q3_K_S | Mix::Q3_K_M)
                || matches!(self.mix, Mix::IQ4_NL | Mix::IQ4_XS | Mix::Q4_K_S | Mix::Q4_K_M);
            return if is_small { Dtype::Q5_K } else { base };
        }
        match self.mix {
            Mix::Q2_K => Dtype::Q3_K,
            Mix::Q3_K_M => Dtype::Q4_K,
            Mix::Q3_K_L => Dtype::Q5_K,
            _ => base,
        }
    }
}

/// The first and the last eighth of the layers, and every third between.
fn use_more_bits(layer: usize, num_layers: usize) -> bool {
    let eighth = num_layers / 8;
    layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2
}

/// The layer that tensor `name` belongs to.
pub(super) fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// A type for rows of any length.
fn fallback(dtype: Dtype, row_elems: usize) -> Dtype {
    let fits = |dtype: Dtype| row_elems.is_multiple_of(dtype.block_elems());
    let shorter = match dtype {
        _ if fits(dtype) => return dtype,
        Dtype::IQ4_XS => Dtype::IQ4_NL,
        Dtype::Q2_K | Dtype::Q3_K => Dtype::Q4_0,
        Dtype::Q4_K => Dtype::Q5_0,
        Dtype::Q5_K => Dtype::Q5_1,
        Dtype::Q6_K => Dtype::Q8_0,
        _ => Dtype::F16,
    };
    if fits(shorter) { shorter } else { Dtype::F16 }
}
