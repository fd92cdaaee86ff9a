//! Mixtures of experts: how checkpoints hold them, and what does not fit.

use super::{as_stored, bounds, changed, check_logits, error_with, goldens, relative_error};
use halfwarp::exec::cpu::CpuExecutor;
use halfwarp::exec::{Executor, Want};
use halfwarp::plan::{Dtype, StepInputs};
use halfwarp::quantize::{Mix, random_checkpoint};
use halfwarp::{Decoder, Model};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::fs::File;

/// MXFP4 from safetensors and from GGUF, kept as it is: what transformers dequantises it to.
#[test]
fn experts_in_mxfp4_compute_what_their_numbers_do() {
    let dir = goldens().join("gpt-oss-mxfp4");
    let file = std::fs::read(dir.join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let words = |name| tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    let tokens: Vec<u32> = words("input_ids").into_iter().map(u32::from_le_bytes).collect();
    let wanted: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    for path in [dir.clone(), goldens().join("gguf/gpt-oss-mxfp4.gguf")] {
        let model = Model::open(&path).unwrap();
        let plan = model.plan(&as_stored(), bounds(tokens.len()), 2).unwrap();
        for name in ["expert_gate", "expert_up", "expert_down"] {
            let name = format!("layers.1.{name}");
            let weight = plan.weights.iter().find(|weight| weight.name == name).unwrap();
            assert_eq!(weight.storage(), Some(Dtype::MXFP4), "{name}");
            assert_eq!(weight.bytes(), 4 * 64 * 2 * 17, "{name}");
        }
        let mut executor = CpuExecutor::open(&plan, model.checkpoint()).unwrap();
        let prepared = executor.prepare(&plan).unwrap();
        let mut inputs = StepInputs::new();
        inputs.push_sequence(&tokens, 0, &[1, 0], 0..tokens.len());
        let got = executor.run(prepared, &inputs, Want::Logits).unwrap().logits;
        let error = relative_error(&got, &wanted);
        assert!(error < 3e-4, "{}: relative error {error:.2e}", path.display());
    }
}

/// As transformers 5 has the experts of Mixtral in memory.
#[test]
fn experts_of_mixtral_may_be_fused() {
    let dir = changed("mixtral", "architectures", serde_json::Value::Null);
    let path = dir.path().join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let mut stacks: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut others = Vec::new();
    for (name, tensor) in tensors.iter() {
        match name.split_once(".block_sparse_moe.experts.") {
            Some(_) => {}
            None => others.push((name.replace("block_sparse_moe.gate", "mlp.gate"), tensor)),
        }
    }
    for layer in 0..2 {
        for expert in 0..4 {
            for (stem, stack) in
                [("w1", "gate_up_proj"), ("w3", "gate_up_proj"), ("w2", "down_proj")]
            {
                let name =
                    format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{stem}.weight");
                let stack = format!("model.layers.{layer}.mlp.experts.{stack}");
                let bytes = tensors.tensor(&name).unwrap().data();
                stacks.entry(stack).or_default().extend(bytes);
            }
        }
    }
    let view = |(name, bytes): (&String, &'_ Vec<u8>)| {
        let [rows, cols] = if name.ends_with("down_proj") { [64, 96] } else { [192, 64] };
        (name.clone(), vec![4, rows, cols], bytes.clone())
    };
    let stacks: Vec<_> = stacks.iter().map(view).collect();
    let views = stacks.iter().map(|(name, shape, bytes)| {
        let dtype = safetensors::Dtype::F16;
        (name.clone(), TensorView::new(dtype, shape.clone(), bytes).unwrap())
    });
    let all: Vec<_> = others.into_iter().chain(views).collect();
    std::fs::remove_file(&path).unwrap();
    safetensors::serialize_to_file(all, None, &path).unwrap();
    let model = Model::open(dir.path()).unwrap();
    check_logits(&model, &goldens().join("mixtral/expected.safetensors"), |_| ());
}

/// Experts whose tensors are of other shapes, or not there.
#[test]
fn rejects_experts_that_the_configuration_does_not_fit() {
    for (name, field, value, expected) in [
        ("gpt-oss", "num_local_experts", 5, "mlp.router.weight` has shape [4, 64]"),
        ("gpt-oss", "intermediate_size", 32, "mlp.experts.gate_up_proj` has shape [4, 64, 128]"),
        ("gpt-oss-mxfp4", "intermediate_size", 32, "gate_up_proj.weight` has shape [4, 128, 64]"),
        ("glm4-moe", "n_shared_experts", 1, "mlp.shared_experts.gate_proj.weight` has shape"),
        ("glm4-moe", "first_k_dense_replace", 0, "`model.layers.0.mlp.gate.weight` is missing"),
        ("glm4-moe", "n_routed_experts", 12, "mlp.gate.weight` has shape [8, 64]"),
        ("granitemoe", "intermediate_size", 32, "input_linear.weight` has shape [4, 128, 64]"),
        ("qwen3-moe-fused", "moe_intermediate_size", 16, "gate_up_proj` has shape [6, 64, 64]"),
        ("qwen3-moe-fused", "mlp_only_layers", 0, "`mlp_only_layers` is 0"),
    ] {
        let error = error_with(name, field, value.into());
        assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    }
}

/// Every tensor that a family's experts need, by the names of each kind of file.
#[test]
fn random_models_have_the_tensors_of_their_family() {
    for name in ["gpt-oss", "glm4-moe", "granitemoe", "qwen3-moe", "mixtral"] {
        let golden = Decoder::open(goldens().join(name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(goldens().join(name).join("config.json"), dir.path().join("config.json"))
            .unwrap();
        let file = File::create(dir.path().join("model.safetensors")).unwrap();
        random_checkpoint(golden.config(), name, None, file).unwrap();
        assert_eq!(Decoder::open(dir.path()).unwrap().config(), golden.config(), "{name}");

        let path = dir.path().join("model.gguf");
        let mix = Some(Mix::MXFP4_MOE);
        random_checkpoint(golden.config(), name, mix, File::create(&path).unwrap()).unwrap();
        let gguf = Decoder::open(&path).unwrap();
        let (config, wanted) = (gguf.config(), golden.config());
        assert_eq!((config.experts, config.activation), (wanted.experts, wanted.activation));
        assert_eq!(
            (&config.layers, config.has_sinks),
            (&wanted.layers, wanted.has_sinks),
            "{name}"
        );
        let plan = gguf.plan(&as_stored(), bounds(4), 1).unwrap();
        let of_experts = |weight: &&halfwarp::plan::Weight| weight.name.contains("1.expert_up");
        let up = plan.weights.iter().find(of_experts).unwrap();
        assert_eq!(up.storage(), Some(Dtype::MXFP4), "{name}");
    }
}
