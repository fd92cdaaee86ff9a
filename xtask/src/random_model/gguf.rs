//! GGUF files of random blocks: levels from a random generator, scales that make the weights'
//! standard deviation about [`STD`](super::STD). Nothing goes through f32, so that 4 GB take
//! seconds.
//!
//! Types as llama.cpp's Q4_K_M mix chooses them, which `halfwarp quantize` writes too.

use super::{BLOCK_BYTES, Block, Fill};
use gpu_types::{BlockFacts, BlockFormat};
use half::f16;

/// A model whose GGUF file is imitated.
pub struct Model {
    /// Name of the model on the command line.
    pub name: &'static str,
    architecture: &'static str,
    hidden_size: usize,
    intermediate_size: usize,
    num_layers: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    context: usize,
    rope_theta: f32,
    rms_norm_eps: f32,
    sliding_window: Option<usize>,
    /// Whether Q, K and V are one tensor, and gate and up another.
    fused: bool,
    /// Whether Q, K and V have a bias.
    qkv_bias: bool,
    /// Whether the embedding is the output projection too.
    tied: bool,
}

/// The models that can be imitated.
pub const MODELS: &[Model] = &[
    Model {
        name: "llama-2-7b-q4_k",
        architecture: "llama",
        hidden_size: 4096,
        intermediate_size: 11008,
        num_layers: 32,
        num_heads: 32,
        num_kv_heads: 32,
        head_dim: 128,
        vocab_size: 32000,
        // The model's own is 4096: long contexts are measured in this shape, too.
        context: 131_072,
        rope_theta: 1e4,
        rms_norm_eps: 1e-5,
        sliding_window: None,
        fused: false,
        qkv_bias: false,
        tied: false,
    },
    Model {
        name: "llama-3-70b-q4_k",
        architecture: "llama",
        hidden_size: 8192,
        intermediate_size: 28672,
        num_layers: 80,
        num_heads: 64,
        num_kv_heads: 8,
        head_dim: 128,
        vocab_size: 128_256,
        context: 16_384,
        rope_theta: 5e5,
        rms_norm_eps: 1e-5,
        sliding_window: None,
        fused: false,
        qkv_bias: false,
        tied: false,
    },
    Model {
        name: "qwen2.5-0.5b-q4_k_m",
        architecture: "qwen2",
        hidden_size: 896,
        intermediate_size: 4864,
        num_layers: 24,
        num_heads: 14,
        num_kv_heads: 2,
        head_dim: 64,
        vocab_size: 151_936,
        context: 32_768,
        rope_theta: 1e6,
        rms_norm_eps: 1e-6,
        sliding_window: None,
        fused: false,
        qkv_bias: true,
        tied: true,
    },
    Model {
        name: "phi-3-mini-q4_k_m",
        architecture: "phi3",
        hidden_size: 3072,
        intermediate_size: 8192,
        num_layers: 32,
        num_heads: 32,
        num_kv_heads: 32,
        head_dim: 96,
        vocab_size: 32_064,
        context: 4096,
        rope_theta: 1e4,
        rms_norm_eps: 1e-5,
        sliding_window: Some(2047),
        fused: true,
        qkv_bias: false,
        tied: false,
    },
];

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Ones: the weight of a norm.
    Norm,
    /// A bias in f32.
    Bias,
    Q5_0,
    Q8_0,
    Q4K,
    Q6K,
}

impl Format {
    /// ggml's number of the type, elements and bytes of a block.
    fn layout(self) -> (u32, usize, usize) {
        let format = match self {
            Format::Norm | Format::Bias => return (0, 1, 4),
            Format::Q5_0 => BlockFormat::Q5_0,
            Format::Q8_0 => BlockFormat::Q8_0,
            Format::Q4K => BlockFormat::Q4_K,
            Format::Q6K => BlockFormat::Q6_K,
        };
        let &BlockFacts { ggml_id, elems, bytes, .. } = format.facts();
        (ggml_id, elems, bytes)
    }

    /// Makes blocks of `random` bytes, which hold a whole number of them.
    pub fn shape(self, random: &mut [u8]) {
        let half = |value: f32| f16::from_f32(value).to_le_bytes();
        for block in random.chunks_exact_mut(self.layout().2) {
            match self {
                Format::Norm => block.copy_from_slice(&1f32.to_le_bytes()),
                Format::Bias => {
                    let level = f32::from(i16::from_le_bytes([block[0], block[1]]));
                    block.copy_from_slice(&(level * 1e-6).to_le_bytes());
                }
                // Levels -16 to 15, whose deviation is 9.2.
                Format::Q5_0 => block[..2].copy_from_slice(&half(super::STD / 9.2)),
                // Levels -128 to 127, whose deviation is 74.
                Format::Q8_0 => block[..2].copy_from_slice(&half(super::STD / 74.0)),
                Format::Q4K => shape_q4_k(block),
                Format::Q6K => {
                    // Scales of 64 to 127, levels whose deviation is 18.5.
                    block[192..208].iter_mut().for_each(|scale| *scale = *scale & 63 | 64);
                    block[208..].copy_from_slice(&half(super::STD / (95.5 * 18.5)));
                }
            }
        }
    }
}

/// Six-bit scales of 32 to 63; minima that are the same and make the mean zero: levels 0 to 15,
/// whose mean is 7.5 and whose deviation is 4.6.
fn shape_q4_k(block: &mut [u8]) {
    let d = super::STD / (47.5 * 4.6);
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(7.5 * d).to_le_bytes());
    for group in 0..4 {
        let (low, high) = (block[4 + group] & 63 | 32, block[12 + group] & 31 | 32);
        block[4 + group] = low | high >> 4 << 6;
        block[8 + group] = low | high >> 4 << 6;
        block[12 + group] = high & 15 | high << 4;
    }
}

/// A tensor of the file.
struct Tensor {
    name: String,
    /// Outermost first.
    shape: Vec<usize>,
    format: Format,
}

impl Tensor {
    fn bytes(&self) -> usize {
        let (_, block_elems, block_bytes) = self.format.layout();
        self.shape.iter().product::<usize>() / block_elems * block_bytes
    }
}

const ALIGNMENT: usize = 32;

/// The header of the file, and the blocks that come after it.
pub fn parts(model: &Model) -> (Vec<u8>, Vec<Block>) {
    let tensors = model.tensors();
    let header = header(model, &tensors);
    let mut blocks = Vec::new();
    let mut end = header.len();
    for tensor in &tensors {
        let block_bytes = tensor.format.layout().2;
        let tensor_end = end + tensor.bytes();
        while end < tensor_end {
            let bytes = (BLOCK_BYTES / block_bytes * block_bytes).min(tensor_end - end);
            blocks.push(Block { file_offset: end as u64, bytes, fill: Fill::Gguf(tensor.format) });
            end += bytes;
        }
        end = end.next_multiple_of(ALIGNMENT);
    }
    (header, blocks)
}

impl Model {
    fn tensors(&self) -> Vec<Tensor> {
        let (hidden, inter) = (self.hidden_size, self.intermediate_size);
        let (q, kv) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let mut tensors = Vec::new();
        let mut push = |name: String, shape: &[usize], format: Format| {
            tensors.push(Tensor { name, shape: shape.to_vec(), format });
        };
        // The output, or the embedding in its place, has more bits.
        let embedding = if self.tied { Format::Q6K } else { Format::Q4K };
        push("token_embd.weight".into(), &[self.vocab_size, hidden], fitting(embedding, hidden));
        for layer in 0..self.num_layers {
            let mut norm =
                |stem: &str| push(format!("blk.{layer}.{stem}.weight"), &[hidden], Format::Norm);
            norm("attn_norm");
            norm("ffn_norm");
            let more =
                if use_more_bits(layer, self.num_layers) { Format::Q6K } else { Format::Q4K };
            let mut matrix = |stem: &str, rows: usize, cols: usize, format: Format| {
                push(format!("blk.{layer}.{stem}.weight"), &[rows, cols], fitting(format, cols));
            };
            matrix("attn_output", hidden, q, Format::Q4K);
            matrix("ffn_down", hidden, inter, more);
            if self.fused {
                matrix("attn_qkv", q + 2 * kv, hidden, more);
                matrix("ffn_up", 2 * inter, hidden, Format::Q4K);
                continue;
            }
            matrix("ffn_gate", inter, hidden, Format::Q4K);
            matrix("ffn_up", inter, hidden, Format::Q4K);
            for (stem, rows, format) in
                [("attn_q", q, Format::Q4K), ("attn_k", kv, Format::Q4K), ("attn_v", kv, more)]
            {
                matrix(stem, rows, hidden, format);
            }
            if self.qkv_bias {
                for (stem, rows) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                    push(format!("blk.{layer}.{stem}.bias"), &[rows], Format::Bias);
                }
            }
        }
        push("output_norm.weight".into(), &[hidden], Format::Norm);
        if !self.tied {
            push("output.weight".into(), &[self.vocab_size, hidden], fitting(Format::Q6K, hidden));
        }
        tensors
    }
}

/// llama.cpp's: the first and the last eighth of the layers, and every third between.
fn use_more_bits(layer: usize, num_layers: usize) -> bool {
    let eighth = num_layers / 8;
    layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2
}

/// `format`, or the one of shorter blocks that llama.cpp takes for rows that are no multiple of
/// 256.
fn fitting(format: Format, row_elems: usize) -> Format {
    match format {
        Format::Q4K if !row_elems.is_multiple_of(256) => Format::Q5_0,
        Format::Q6K if !row_elems.is_multiple_of(256) => Format::Q8_0,
        _ => format,
    }
}

/// A metadata value.
enum Value {
    Count(usize),
    Number(f32),
    Text(&'static str),
}

/// Magic, version 3, counts, metadata, descriptions, padding.
/// Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
fn header(model: &Model, tensors: &[Tensor]) -> Vec<u8> {
    let pairs = metadata(model);
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    let put_string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    for (key, value) in &pairs {
        put_string(&mut out, key);
        match value {
            Value::Count(count) => {
                out.extend(4u32.to_le_bytes());
                out.extend((*count as u32).to_le_bytes());
            }
            Value::Number(number) => {
                out.extend(6u32.to_le_bytes());
                out.extend(number.to_le_bytes());
            }
            Value::Text(text) => {
                out.extend(8u32.to_le_bytes());
                put_string(&mut out, text);
            }
        }
    }
    let mut offset = 0;
    for tensor in tensors {
        put_string(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|&dim| out.extend((dim as u64).to_le_bytes()));
        out.extend(tensor.format.layout().0.to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset += tensor.bytes().next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}

fn metadata(model: &Model) -> Vec<(String, Value)> {
    let mut pairs = vec![
        ("general.architecture".to_owned(), Value::Text(model.architecture)),
        ("general.name".to_owned(), Value::Text(model.name)),
        ("general.file_type".to_owned(), Value::Count(15)),
        ("general.quantization_version".to_owned(), Value::Count(2)),
        ("tokenizer.ggml.model".to_owned(), Value::Text("no_vocab")),
    ];
    let counts = [
        ("vocab_size", Some(model.vocab_size)),
        ("context_length", Some(model.context)),
        ("embedding_length", Some(model.hidden_size)),
        ("feed_forward_length", Some(model.intermediate_size)),
        ("block_count", Some(model.num_layers)),
        ("attention.head_count", Some(model.num_heads)),
        ("attention.head_count_kv", Some(model.num_kv_heads)),
        ("attention.key_length", Some(model.head_dim)),
        ("attention.value_length", Some(model.head_dim)),
        ("rope.dimension_count", Some(model.head_dim)),
        ("attention.sliding_window", model.sliding_window),
    ];
    let key = |key: &str| format!("{}.{key}", model.architecture);
    pairs.extend(
        counts.iter().filter_map(|(name, count)| Some((key(name), Value::Count((*count)?)))),
    );
    pairs.push((key("rope.freq_base"), Value::Number(model.rope_theta)));
    pairs.push((key("attention.layer_norm_rms_epsilon"), Value::Number(model.rms_norm_eps)));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_model::{SplitMix64, fill_bytes};

    /// The sizes of published files, less about as many bytes of tokenizer as their vocabularies
    /// have.
    #[test]
    fn files_are_as_large_as_the_real_ones() {
        let bytes = |model: &Model| {
            let (header, blocks) = parts(model);
            header.len() + blocks.iter().map(|block| block.bytes).sum::<usize>()
        };
        let llama = bytes(&MODELS[0]);
        assert!((4_079_000_000..4_081_004_224).contains(&llama), "{llama}");
        let qwen = bytes(&MODELS[2]);
        assert!((390_000_000..397_808_192).contains(&qwen), "{qwen}");
    }

    /// Decoded as ggml does it, in f64.
    fn decode(format: Format, block: &[u8]) -> Vec<f64> {
        let half = |at: usize| f64::from(f16::from_le_bytes([block[at], block[at + 1]]));
        match format {
            Format::Q5_0 => (0..32)
                .map(|i| {
                    let nibble = block[6 + i % 16] >> (4 * (i / 16)) & 15;
                    let high = block[2 + i / 8] >> (i % 8) & 1;
                    half(0) * (f64::from(nibble | high << 4) - 16.0)
                })
                .collect(),
            Format::Q8_0 => block[2..].iter().map(|&q| half(0) * f64::from(q as i8)).collect(),
            Format::Q4K => (0..256)
                .map(|i| {
                    let (group, packed) = (i / 32, &block[4..16]);
                    let (scale, min) = match group {
                        0..4 => (packed[group] & 63, packed[group + 4] & 63),
                        _ => (
                            packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
                            packed[group + 4] >> 4 | packed[group] >> 6 << 4,
                        ),
                    };
                    let q = block[16 + group / 2 * 32 + i % 32] >> (4 * (group % 2)) & 15;
                    half(0) * f64::from(scale) * f64::from(q) - half(2) * f64::from(min)
                })
                .collect(),
            Format::Q6K => (0..256)
                .map(|i| {
                    let (part, at) = (i / 128, i % 128);
                    let low = block[part * 64 + at % 64] >> (4 * (at / 64)) & 15;
                    let high = block[128 + part * 32 + at % 32] >> (2 * (at / 32)) & 3;
                    let scale = f64::from(block[192 + i / 16] as i8);
                    half(208) * scale * (f64::from(low | high << 4) - 32.0)
                })
                .collect(),
            Format::Norm | Format::Bias => {
                vec![f32::from_le_bytes(block.try_into().unwrap()).into()]
            }
        }
    }

    #[test]
    fn weights_have_the_right_spread() {
        for format in [Format::Q5_0, Format::Q8_0, Format::Q4K, Format::Q6K, Format::Bias] {
            let block_bytes = format.layout().2;
            let mut bytes = vec![0; 4000 * block_bytes];
            fill_bytes(&mut bytes, &mut SplitMix64(3));
            format.shape(&mut bytes);
            let values: Vec<f64> =
                bytes.chunks(block_bytes).flat_map(|block| decode(format, block)).collect();
            let len = values.len() as f64;
            let mean = values.iter().sum::<f64>() / len;
            let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / len).sqrt();
            assert!(mean.abs() < 1.5e-3 && (std - 0.02).abs() < 2e-3, "{format:?}: {mean}, {std}");
        }
        let mut norm = [7; 8];
        Format::Norm.shape(&mut norm);
        assert_eq!(norm, [1f32.to_le_bytes(); 2].concat()[..]);
    }
}
