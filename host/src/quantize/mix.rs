//! Which tensor is stored in which type: llama.cpp's mixes.
//!
//! Source: `llama_tensor_get_type_impl` and `tensor_type_fallback` in llama.cpp's llama-quant.cpp.

use crate::plan::Dtype;

/// Types for the tensors of a model, by llama.cpp's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum Mix {
    /// Q4_K; Q6_K for the output and, in half of the layers, V and down.
    Q4_K_M,
    /// Q5_K; Q6_K for the output and, in half of the layers, V and down.
    Q5_K_M,
    /// Q6_K.
    Q6_K,
    /// Q8_0.
    Q8_0,
    /// Q4_0; Q6_K for the output.
    Q4_0,
    /// F16.
    F16,
}

/// What the type of a tensor depends on besides its name and shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub num_layers: usize,
    /// Whether the embedding is the output projection too.
    pub tied: bool,
}

impl Mix {
    /// The number of the mix in `general.file_type`.
    pub(super) fn file_type(self) -> u32 {
        match self {
            Mix::F16 => 1,
            Mix::Q4_0 => 2,
            Mix::Q8_0 => 7,
            Mix::Q4_K_M => 15,
            Mix::Q5_K_M => 17,
            Mix::Q6_K => 18,
        }
    }

    /// The type of tensor `name`.
    pub(super) fn dtype(self, name: &str, shape: &[usize], context: Context) -> Dtype {
        let is_matrix = shape.len() >= 2 && name.ends_with(".weight") && !name.contains("_norm");
        match shape.last() {
            Some(&row_elems) if is_matrix => {
                fallback(self.preferred(name, row_elems, context), row_elems)
            }
            _ => Dtype::F32,
        }
    }

    /// The type where rows are as long as it needs.
    fn preferred(self, name: &str, row_elems: usize, context: Context) -> Dtype {
        let base = match self {
            Mix::Q4_K_M => Dtype::Q4_K,
            Mix::Q5_K_M => Dtype::Q5_K,
            Mix::Q6_K => Dtype::Q6_K,
            Mix::Q8_0 => Dtype::Q8_0,
            Mix::Q4_0 => Dtype::Q4_0,
            Mix::F16 => return Dtype::F16,
        };
        if name == "output.weight" || (name == "token_embd.weight" && context.tied) {
            let fits = row_elems.is_multiple_of(base.block_elems());
            return if fits && base != Dtype::Q8_0 { Dtype::Q6_K } else { Dtype::Q8_0 };
        }
        let sensitive = ["attn_v.weight", "attn_qkv.weight", "ffn_down.weight"];
        if matches!(self, Mix::Q4_K_M | Mix::Q5_K_M)
            && sensitive.iter().any(|stem| name.ends_with(stem))
            && layer(name).is_some_and(|layer| use_more_bits(layer, context.num_layers))
        {
            return Dtype::Q6_K;
        }
        base
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
        Dtype::Q4_K => Dtype::Q5_0,
        Dtype::Q5_K => Dtype::Q5_1,
        Dtype::Q6_K => Dtype::Q8_0,
        _ => Dtype::F16,
    };
    if fits(shorter) { shorter } else { Dtype::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types of Llama-2-7B's tensors in published Q4_K_M files.
    #[test]
    fn q4_k_m_of_llama_2_7b() {
        let context = Context { num_layers: 32, tied: false };
        let dtype = |name: &str, shape: &[usize]| Mix::Q4_K_M.dtype(name, shape, context);
        assert_eq!(dtype("token_embd.weight", &[32000, 4096]), Dtype::Q4_K);
        assert_eq!(dtype("output.weight", &[32000, 4096]), Dtype::Q6_K);
        assert_eq!(dtype("output_norm.weight", &[4096]), Dtype::F32);
        let more = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31];
        for layer in 0..32 {
            let of_layer = if more.contains(&layer) { Dtype::Q6_K } else { Dtype::Q4_K };
            assert_eq!(dtype(&format!("blk.{layer}.attn_v.weight"), &[4096, 4096]), of_layer);
            assert_eq!(dtype(&format!("blk.{layer}.ffn_down.weight"), &[4096, 11008]), of_layer);
            assert_eq!(dtype(&format!("blk.{layer}.attn_q.weight"), &[4096, 4096]), Dtype::Q4_K);
        }
    }

    /// Rows of 896, as in Qwen2.5-0.5B's published files: its rows of 4864 are blocks of 256.
    #[test]
    fn rows_that_are_no_blocks_fall_back() {
        let context = Context { num_layers: 24, tied: true };
        let of = |mix: Mix, name: &str, row: usize| mix.dtype(name, &[128, row], context);
        assert_eq!(of(Mix::Q4_K_M, "token_embd.weight", 896), Dtype::Q8_0);
        assert_eq!(of(Mix::Q4_K_M, "blk.4.attn_q.weight", 896), Dtype::Q5_0);
        assert_eq!(of(Mix::Q4_K_M, "blk.0.attn_v.weight", 896), Dtype::Q8_0);
        assert_eq!(of(Mix::Q4_K_M, "blk.0.ffn_down.weight", 4864), Dtype::Q6_K);
        assert_eq!(of(Mix::Q4_K_M, "blk.4.ffn_down.weight", 4864), Dtype::Q4_K);
        assert_eq!(of(Mix::Q5_K_M, "blk.4.attn_q.weight", 896), Dtype::Q5_1);
        assert_eq!(of(Mix::Q6_K, "blk.4.attn_q.weight", 896), Dtype::Q8_0);
        assert_eq!(of(Mix::Q4_0, "token_embd.weight", 896), Dtype::Q8_0);
        assert_eq!(of(Mix::Q4_0, "token_embd.weight", 1024), Dtype::Q6_K);
        assert_eq!(of(Mix::Q8_0, "token_embd.weight", 896), Dtype::Q8_0);
        assert_eq!(of(Mix::Q8_0, "blk.4.attn_q.weight", 40), Dtype::F16);
        assert_eq!(of(Mix::Q4_K_M, "blk.4.attn_q.weight", 40), Dtype::F16);
        assert_eq!(Mix::F16.dtype("blk.4.attn_q.bias", &[896], context), Dtype::F32);
    }
}
