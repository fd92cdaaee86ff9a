//! The golden models, element by element, against offsets and conversions done by hand.

use crate::files::tests_dir;
use halfwarp::weights::{Checkpoint, Origin};
use serde_json::Value;

/// An f16 as the IEEE formula says.
fn f16_value(bits: u16) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    assert_ne!(exponent, 31, "the goldens are finite");
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    (if bits >> 15 == 1 { -magnitude } else { magnitude }) as f32
}

/// Every tensor of `model` is what its shards hold; their number.
fn compare(model: &str, shards: &[&str]) -> usize {
    let dir = tests_dir().join("goldens").join(model);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let Origin::HuggingFace { config, .. } = checkpoint.origin() else { panic!("not HF") };
    assert!(config["model_type"].is_string());
    let mut tensors = 0;
    for shard in shards {
        let file = std::fs::read(dir.join(shard)).unwrap();
        let data_start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&file[8..data_start]).unwrap();
        for (name, entry) in header.as_object().unwrap() {
            if name == "__metadata__" {
                continue;
            }
            assert_eq!(entry["dtype"], "F16");
            let offset =
                |i: usize| data_start + entry["data_offsets"][i].as_u64().unwrap() as usize;
            let halves = file[offset(0)..offset(1)].as_chunks().0;
            let expected: Vec<f32> =
                halves.iter().map(|bytes| f16_value(u16::from_le_bytes(*bytes))).collect();
            assert!(checkpoint.read_f32(name).unwrap() == expected, "{model}: {name}");
            let shape = checkpoint.tensor(name).unwrap().shape;
            assert_eq!(serde_json::to_value(shape).unwrap(), entry["shape"], "{model}: {name}");
            tensors += 1;
        }
    }
    assert_eq!(checkpoint.tensors().count(), tensors);
    tensors
}

#[test]
fn single_file_is_element_exact() {
    assert!(compare("llama-gqa", &["model.safetensors"]) > 10);
}

#[test]
fn shards_are_element_exact() {
    let shard = |i, n| format!("model-{i:05}-of-{n:05}.safetensors");
    compare("qwen2", &[&shard(1, 2), &shard(2, 2)]);
    compare("phi3", &[&shard(1, 4), &shard(2, 4), &shard(3, 4), &shard(4, 4)]);
}
