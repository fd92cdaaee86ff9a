//! Plans against transformers: every golden, through a naive interpreter of plans in f32.

#[path = "model/experts.rs"]
mod experts;
#[path = "model/gemma.rs"]
mod gemma;
#[path = "model/gemma4.rs"]
mod gemma4;
#[path = "model/interpreter.rs"]
mod interpreter;

use halfwarp::exec::cpu::CpuExecutor;
use halfwarp::exec::{Device, Executor, GpuOptions, Want, memory_budget};
use halfwarp::plan::{
    Accumulate, AttentionForm, Bounds, Dtype, Fusion, Numerics, Op, Plan, PlanError, PlanOutput,
    Precision, Rank, Rows, StepInputs, View, Weight, WeightSource, WeightStorage,
};
use halfwarp::{
    Config, Decoder, KvSource, LayerConfig, Model, ModelError, NormPlacement, OpenError, QkNorm,
};
use interpreter::Interpreter;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// `|got - want| / |want|`.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = &mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - f64::from(*w));
    norm(difference) / norm(&mut want.iter().map(|w| f64::from(*w)))
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens")
}

/// Every golden's model, in each of its formats, and what is expected of it.
fn golden_models() -> Vec<(PathBuf, PathBuf)> {
    let in_dir = |dir: PathBuf| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let expected = |name: &OsStr| goldens().join(name).join("expected.safetensors");
    let dirs = in_dir(goldens()).filter(|dir| dir.join("config.json").exists());
    let files = in_dir(goldens().join("gguf"));
    dirs.map(|dir| (expected(dir.file_name().unwrap()), dir))
        .chain(files.map(|file| (expected(file.file_stem().unwrap()), file)))
        .map(|(expected, model)| (model, expected))
        .collect()
}

#[test]
fn logits_match_transformers() {
    let models = golden_models();
    assert!(models.len() >= 55, "goldens are missing: {models:?}");
    for (path, expected) in models {
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{error}"));
        check_logits(&model, &expected, |_| ());
        check_logits(&model, &expected, |plan| *plan = plan.fused(|_| true));
        assert_eq!(model.stop_tokens(), [2]);
    }
}

/// The logits that were given came from a model that was cast by `.half().float()`. That rounds the
/// frequencies of RoPE to f16 together with the weights, which no checkpoint says: transformers
/// loading these directories in float32 is 4.7e-4 to 8.3e-4 away from them.
#[test]
fn given_logits_match_with_rounded_frequencies() {
    for name in ["llama-gqa", "phi3", "qwen2"] {
        let model = Model::open(goldens().join(name)).unwrap();
        let given = goldens().join(name).join("given.safetensors");
        check_logits(&model, &given, |plan| round_frequencies(&model, plan));
    }
}

/// Compares the logits of `model`'s plan, once `change` was made to it, with those in the file
/// `expected`.
fn check_logits(model: &Model, expected: &Path, change: impl Fn(&mut Plan)) {
    let error = logits_error(model, expected, change);
    println!("{}: {error:.2e}", expected.display());
    assert!(error < 1e-5, "{}: relative error {error:.2e}", expected.display());
}

/// The relative error of the logits of `model`'s plan, once `change` was made to it.
fn logits_error(model: &Model, expected: &Path, change: impl Fn(&mut Plan)) -> f64 {
    let file = std::fs::read(expected).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let words = |name| -> Vec<[u8; 4]> {
        let data = tensors.tensor(name).unwrap().data();
        data.chunks(4).map(|bytes| bytes.try_into().unwrap()).collect()
    };
    let tokens: Vec<u32> = words("input_ids").into_iter().map(u32::from_le_bytes).collect();
    let want: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    let mut plan = model.plan(&Numerics::default(), bounds(tokens.len()), 2).unwrap();
    change(&mut plan);
    relative_error(&Interpreter::logits(model, &plan, &tokens, &|_| &[]), &want)
}

/// Replaces the table of RoPE by one of frequencies rounded to f16.
fn round_frequencies(model: &Model, plan: &mut Plan) {
    let table = &mut plan.constants[0];
    let frequencies = model.config().ropes[0].inv_freq(table.rows);
    let angle = |position: usize, f: &f32| position as f32 * half::f16::from_f32(*f).to_f32();
    let row = |position: usize| {
        let angles = frequencies.iter().map(move |f| angle(position, f));
        angles.clone().map(f32::cos).chain(angles.map(f32::sin)).collect::<Vec<f32>>()
    };
    table.data = (0..table.rows).flat_map(row).collect();
}

/// One sequence of `len` new tokens, all of whose logits are wanted.
fn bounds(len: usize) -> Bounds {
    Bounds::one_sequence(len)
}

/// Scores and probabilities of 32 tokens and four pages of keys, where attention stores them.
#[test]
fn stored_scores_are_in_the_budget() {
    for golden in ["llama-gqa", "phi3-partial-rotary", "qwen2-window"] {
        let model = Model::open(goldens().join(golden)).unwrap();
        let bounds = Bounds { max_seqs: 3, max_kv_len: 200, ..bounds(32) };
        let activation_bytes = |attention| {
            let numerics = Numerics { attention, ..Numerics::default() };
            let plan = model.plan(&numerics, bounds, 12).unwrap();
            let options = GpuOptions::default();
            let plans = std::slice::from_ref(&plan);
            memory_budget(Device::Cpu, &options, &plan, plans).unwrap().activation_bytes
        };
        let bytes = 32 * model.config().num_heads * 256 * 8;
        assert!(activation_bytes(AttentionForm::Materialized) >= bytes, "{golden}");
        assert!(activation_bytes(AttentionForm::Flash) < bytes, "{golden}");
    }
}

/// What linear layers and attention read; the residual stream, logits, norms' weights and biases
/// stay in f32.
#[test]
fn a_precision_is_in_the_plan() {
    let operands =
        ["attention_norm", "qkv", "attention", "mlp_norm", "gate_up", "gated", "final_norm"];
    for golden in ["qwen2", "qwen3", "phi3", "llama-bias"] {
        let model = Model::open(goldens().join(golden)).unwrap();
        for precision in Precision::ALL {
            let plan = model.plan(&precision.into(), bounds(8), 1).unwrap();
            assert_eq!(plan.kv.dtype, precision.cache());
            for tensor in &plan.tensors {
                let wanted = match tensor.name.rsplit('.').next().unwrap() {
                    "next_tokens" => Dtype::U32,
                    name if operands.contains(&name) => precision.operand(),
                    "hidden" | "attention_out" | "down" | "last_hidden" | "logits" => Dtype::F32,
                    name => panic!("{name}"),
                };
                assert_eq!(tensor.dtype, wanted, "{golden}, {}", tensor.name);
            }
            for weight in &plan.weights {
                let wanted = if weight.rows == 1 { Dtype::F32 } else { precision.operand() };
                assert_eq!(weight.storage(), Some(wanted), "{golden}, {}", weight.name);
            }
        }
    }
}

/// The logits of a prompt and of a token after it, on the CPU.
fn cpu_logits(model: &Model, plan: &Plan) -> Vec<u32> {
    let mut executor = CpuExecutor::open(plan, model.checkpoint()).unwrap();
    let prepared = executor.prepare(plan).unwrap();
    let mut logits = Vec::new();
    for (tokens, past_len) in [(&[5, 9, 2, 11, 7][..], 0), (&[3], 5)] {
        let mut inputs = StepInputs::new();
        inputs.push_sequence(tokens, past_len, &[1], 0..tokens.len());
        logits.extend(executor.run(prepared, &inputs, Want::Logits).unwrap().logits);
    }
    logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_fused_plan_gives_the_same_bits() {
    for (path, _) in golden_models() {
        let model = Model::open(&path).unwrap();
        for precision in Precision::ALL {
            let Ok(plan) = model.plan(&precision.into(), Bounds { max_kv_len: 64, ..bounds(8) }, 2)
            else {
                continue;
            };
            let fused = plan.fused(|_| true);
            assert_eq!(fused.check(), Ok(()));
            let Config {
                ref layers, norms, query_scaling, experts, qk_norm, per_layer_inputs, ..
            } = *model.config();
            // One that is as large as the others is one of them.
            let shared = experts.and_then(|experts| {
                experts.shared_intermediate_size.filter(|size| *size != experts.intermediate_size)
            });
            let of_layer = |layer: &LayerConfig| {
                let of_heads = if qk_norm == Some(QkNorm::PerHead) { 2 } else { 0 };
                let is_own = !matches!(layer.kv, KvSource::Layer(_));
                let is_rotated = layer.rope.is_some() && query_scaling.is_none() && is_own;
                let of_rope = if is_rotated { 2 + of_heads } else { 0 };
                // What the gate of a delta rule's output and its projection become.
                let of_delta = usize::from(layer.is_delta);
                // Of attention: its norm, and its residual.
                let of_norms = match norms {
                    NormPlacement::Before | NormPlacement::Around => 2,
                    NormPlacement::After => 1,
                };
                // The gate; the norm and the router, and the residual.
                let of_experts = if norms == NormPlacement::Before { 2 + 2 + 1 } else { 2 };
                let of_mlp = match layer.has_experts {
                    false => 1 + of_norms,
                    true if shared.is_some() => of_experts + 1 + 1,
                    true => of_experts,
                };
                // Its own gate and norm, the norm of the router, which is not the experts', and two
                // that are added.
                let of_beside = match experts.is_some_and(|experts| experts.beside_mlp) {
                    true => 1 + 1 + 1 + 2,
                    false => 0,
                };
                // The gate of a layer's input and its projection, and the norm that is added.
                let of_input = if per_layer_inputs.is_some() { 2 } else { 0 };
                of_rope + of_delta + of_norms + of_mlp + of_beside + of_input
            };
            // The norm of what all layers' inputs are projected from is added too.
            let of_inputs = usize::from(per_layer_inputs.is_some());
            let expected = of_inputs + layers.iter().map(of_layer).sum::<usize>();
            let fewer = plan.ops.len() - fused.ops.len();
            let what = "the gate; two norms and two residuals; QK-norm, RoPE and append; of experts theirs and the shared one's";
            assert_eq!(fewer, expected, "{}: {what}", path.display());
            let same = cpu_logits(&model, &fused) == cpu_logits(&model, &plan);
            assert!(same, "{} in {precision}", path.display());
        }
    }
}

/// Every block format, in stacks of several: the CPU's logits of a prompt and of a token after it
/// are those of the numbers in the blocks, which a naive interpreter takes as f32.
#[test]
fn a_model_in_blocks_computes_what_its_numbers_do() {
    let (model, plan) = matches_interpreter("quantized.gguf");
    let bytes =
        |name: &str| plan.weights.iter().find(|weight| weight.name == name).expect(name).bytes();
    assert_eq!(bytes("embedding"), 100 * 210);
    assert_eq!(bytes("layers.0.qkv"), (128 + 64) * 144 + 64 * 210, "Q4_K and Q6_K");
    assert_eq!(bytes("layers.0.gate_up"), 96 * 84 + 96 * 110, "Q2_K and Q3_K");
    assert_eq!(bytes("layers.1.qkv"), 128 * 176 + 64 * 8 * 34 + 64 * 256 * 2, "Q5_K, Q8_0, F16");
    assert_eq!(bytes("layers.1.down"), 256 * 3 * 24, "Q5_1");
    let numerics = as_stored();
    assert_eq!(model.weight_bytes(&numerics).unwrap(), plan.weight_bytes());
    assert_eq!(model.weight_dtype(&numerics).unwrap(), Some(Dtype::Q4_K), "of most elements");
}

/// The same in IQ and ternary formats; the plan of a GPU counts what they become.
#[test]
fn a_model_in_iq_blocks_computes_what_its_numbers_do() {
    let (model, plan) = matches_interpreter("iq.gguf");
    let bytes = |plan: &Plan, name: &str| {
        plan.weights.iter().find(|weight| weight.name == name).expect(name).bytes()
    };
    assert_eq!(bytes(&plan, "embedding"), 100 * 8 * 18, "IQ4_NL");
    assert_eq!(bytes(&plan, "layers.0.qkv"), 128 * 66 + 64 * 74 + 64 * 54, "IQ2 and TQ1_0");
    assert_eq!(bytes(&plan, "layers.0.down"), 256 * 2 * 18, "IQ4_NL");
    let numerics = Numerics { weights: WeightStorage::Tiles, ..Numerics::from(Precision::F16) };
    let tiles = model.plan(&numerics, bounds(4), 1).unwrap();
    assert_eq!(bytes(&tiles, "embedding"), 112 * 8 * 34, "Q8_0, in whole tiles of 16 rows");
    assert_eq!(bytes(&tiles, "layers.0.qkv"), (128 + 64) * 8 * 34 + 64 * 210, "Q8_0 and Q6_K");
    assert_eq!(bytes(&tiles, "layers.0.gate_up"), 2 * 64 * 210, "Q6_K");
    assert_eq!(bytes(&tiles, "layers.1.gate_up"), 64 * 136 + 64 * 8 * 34, "IQ4_XS and Q8_0");
    assert_eq!(model.weight_bytes(&numerics).unwrap(), tiles.weight_bytes());
}

fn as_stored() -> Numerics {
    Numerics { weights: WeightStorage::AsStored, ..Numerics::default() }
}

/// A fixture's logits on the CPU, of a prompt and of a token after it, are the interpreter's. Its
/// weights are kept as they are stored in the plan.
fn matches_interpreter(fixture: &str) -> (Model, Plan) {
    let model = Model::open(goldens().join("../fixtures").join(fixture)).unwrap();
    let tokens: Vec<u32> = (0..31).map(|i| i * 37 % 100).collect();
    let bounds = Bounds { max_kv_len: 64, ..bounds(tokens.len()) };
    let dense = model.plan(&Numerics::default(), bounds, 1).unwrap();
    let wanted = Interpreter::logits(&model, &dense, &tokens, &|_| &[]);
    let plan = model.plan(&as_stored(), bounds, 1).unwrap();
    let mut executor = CpuExecutor::open(&plan, model.checkpoint()).unwrap();
    let prepared = executor.prepare(&plan).unwrap();
    let (prompt, next) = tokens.split_at(30);
    let mut got = Vec::new();
    for (tokens, past_len) in [(prompt, 0), (next, prompt.len())] {
        let mut inputs = StepInputs::new();
        inputs.push_sequence(tokens, past_len, &[0], 0..tokens.len());
        got.extend(executor.run(prepared, &inputs, Want::Logits).unwrap().logits);
    }
    let error = relative_error(&got, &wanted);
    // x has 16 bits in products with blocks.
    assert!(error < 3e-4, "{fixture}: relative error {error:.2e}");
    (model, plan)
}

/// One table for the first operation and the last linear layer.
#[test]
fn a_tied_embedding_is_kept_once() {
    let quantized = Model::open(goldens().join("../fixtures/quantized.gguf")).unwrap();
    for model in [quantized, Model::open(goldens().join("qwen3")).unwrap()] {
        assert!(model.config().tie_word_embeddings);
        for weights in [WeightStorage::Dense, WeightStorage::AsStored] {
            let numerics = Numerics { weights, ..Numerics::default() };
            let plan = model.plan(&numerics, bounds(4), 1).unwrap();
            let (Op::Embedding { table, .. }, Some(Op::Linear(head))) =
                (&plan.ops[0], plan.ops.iter().rfind(|op| matches!(op, Op::Linear(_))))
            else {
                panic!("{:?}", plan.ops)
            };
            assert_eq!(*table, head.weight);
            let parts = plan.weights.iter().flat_map(|weight| &weight.parts);
            let mut sources: Vec<&str> = parts.map(|part| &*part.source).collect();
            sources.sort_unstable();
            let all = sources.len();
            sources.dedup();
            assert_eq!(sources.len(), all, "a tensor is kept twice");
        }
    }
}

#[test]
fn sixteen_bits_are_exactly_half_of_the_cache() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    let memory = |precision: Precision| {
        let bounds = Bounds { max_seqs: 3, ..bounds(500) };
        let plan = model.plan(&precision.into(), bounds, 24).unwrap();
        let prepared = std::slice::from_ref(&plan);
        memory_budget(Device::Cpu, &GpuOptions::default(), &plan, prepared).unwrap()
    };
    let full = memory(Precision::F32);
    assert_eq!(full.kv_bytes, 2 * 2 * 24 * 64 * (2 * 64) * 4, "2 layers of 2 heads of 64");
    for precision in [Precision::F16, Precision::BF16] {
        let half = memory(precision);
        assert_eq!(2 * half.kv_bytes, full.kv_bytes);
        assert!(half.weight_bytes * 2 < full.weight_bytes * 101 / 100, "vectors are few");
        assert!(half.activation_bytes < full.activation_bytes);
    }
}

/// An intermediate size of 92: rows of 184 bytes.
#[test]
fn rows_that_cannot_be_aligned_are_an_error() {
    let dir = changed("llama-bias", "intermediate_size", 92.into());
    let path = dir.path().join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let cut = |(name, tensor): (String, TensorView)| {
        let shape: Vec<usize> =
            tensor.shape().iter().map(|&n| if n == 96 { 92 } else { n }).collect();
        let row_bytes = |shape: &[usize]| 2 * shape[shape.len() - 1];
        let (stored, kept) = (row_bytes(tensor.shape()), row_bytes(&shape));
        let rows = tensor.data().chunks(stored).flat_map(|row| row[..kept].to_vec());
        let len = 2 * shape.iter().product::<usize>();
        (name, tensor.dtype(), shape, rows.take(len).collect::<Vec<u8>>())
    };
    let cut: Vec<_> = tensors.tensors().into_iter().map(cut).collect();
    let views = cut.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::remove_file(&path).unwrap();
    safetensors::serialize_to_file(views, None, &path).unwrap();
    let model = Model::open(dir.path()).unwrap();
    assert!(model.plan(&Numerics::default(), bounds(4), 1).is_ok());
    for precision in [Precision::F16, Precision::BF16] {
        let error = model.plan(&precision.into(), bounds(4), 1).unwrap_err().to_string();
        let expected =
            format!("intermediate size of 92: in {precision} it has to be a multiple of 8");
        assert!(error.contains(&expected) && error.contains("run in f32"), "{error}");
    }
}

#[test]
fn the_final_norm_runs_on_gathered_rows_only() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    let plan = model.plan(&Numerics::default(), bounds(8), 1).unwrap();
    let of_logits = |view: View| plan.tensor(view.tensor).rows == Rows::Logits;
    let after = plan.ops.iter().skip_while(|op| !matches!(op, Op::GatherRows { .. })).skip(1);
    let reads: Vec<View> = after.flat_map(|op| op.reads()).collect();
    assert!(reads.len() == 3 && reads.into_iter().all(of_logits));
}

#[test]
fn plans_of_one_context_share_their_table() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    let table = |max_tokens| {
        let bounds = Bounds { max_tokens, max_q_len: max_tokens, ..bounds(64) };
        model.plan(&Numerics::default(), bounds, 1).unwrap().constants[0].data.clone()
    };
    assert!(Arc::ptr_eq(&table(64), &table(1)));
    assert_eq!(model.plan(&Numerics::default(), bounds(65), 2).unwrap().constants[0].rows, 65);
}

/// Each row of a divided matrix, and each of its columns, is one rank's; what is not divided is
/// everybody's.
#[test]
fn ranks_divide_the_weights() {
    for (path, _) in golden_models() {
        let model = Model::open(&path).unwrap();
        let plan_of =
            |rank| model.plan_of(rank, PlanOutput::Logits, &Numerics::default(), bounds(4), 1);
        let Ok(plans) = Rank::all(2).map(plan_of).collect::<Result<Vec<_>, _>>() else { continue };
        let whole = model.plan(&Numerics::default(), bounds(4), 1).unwrap();
        // Both ranks have a copy of one KV head, or project all heads that are normalised together.
        let config = model.config();
        let has_one = |layer| config.heads(layer).num_kv_heads < 2;
        let has_copies =
            (0..config.num_layers()).any(has_one) || config.qk_norm == Some(QkNorm::AllHeads);
        // Heads of values that lie apart from those of the same key.
        let has_keys_twice = model.config().delta.is_some_and(|delta| delta.is_tiled);
        let is_copied = |name: &str| {
            has_copies && name.contains("qkv")
                || has_keys_twice && (name.contains("qkvz") || name.contains("conv"))
        };
        for weight in whole.weights.iter().filter(|weight| !is_copied(&weight.name)) {
            let of_ranks: Vec<_> = plans
                .iter()
                .filter_map(|plan| plan.weights.iter().find(|other| other.name == weight.name))
                .collect();
            let elems: usize = of_ranks.iter().map(|weight| weight.rows * weight.cols).sum();
            let is_divided = of_ranks.iter().any(|of_rank| of_rank.bytes() < weight.bytes());
            let copies = if is_divided { 1 } else { of_ranks.len() };
            let wanted = copies * weight.rows * weight.cols;
            assert_eq!(elems, wanted, "{}: {}", path.display(), weight.name);
            let slice = |weight: &Weight, values: &mut Vec<f32>| {
                let mut bytes = vec![0; weight.bytes()];
                model.checkpoint().read(weight, &mut bytes).unwrap();
                values.extend(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes));
            };
            let (mut got, mut want) = (Vec::new(), Vec::new());
            of_ranks.iter().for_each(|weight| slice(weight, &mut got));
            (0..copies).for_each(|_| slice(weight, &mut want));
            got.sort_by(f32::total_cmp);
            want.sort_by(f32::total_cmp);
            assert!(got == want, "{}: {}", path.display(), weight.name);
        }
    }
}

#[test]
fn what_ranks_cannot_share_is_an_error() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    let error = |world| {
        let rank = Rank { index: 0, world };
        let plan = model.plan_of(rank, PlanOutput::Logits, &Numerics::default(), bounds(4), 1);
        plan.unwrap_err().to_string()
    };
    assert_eq!(error(3), "3 devices cannot share 4 query heads");
    assert!(error(64).starts_with("64 devices cannot share "), "{}", error(64));
}

#[test]
fn a_context_beyond_the_model_is_an_error() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    for len in [0, 513, usize::MAX] {
        let error = model.plan(&Numerics::default(), bounds(len), 1).unwrap_err().to_string();
        let expected = format!("a context of {len} positions: this model takes 1 to 512");
        assert_eq!(error, expected);
    }
}

/// Golden `name` with `field` of its config.json set to `value`.
fn changed(name: &str, field: &str, value: serde_json::Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in goldens().join(name).read_dir().unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    std::fs::write(path, config.to_string()).unwrap();
    dir
}

/// What is wrong with golden `name` after `field` of its config.json was set to `value`.
fn error_with(name: &str, field: &str, value: serde_json::Value) -> String {
    Model::open(changed(name, field, value).path()).unwrap_err().to_string()
}

/// transformers 5.17 warns and computes the same logits.
#[test]
fn an_output_projection_of_its_own_is_not_tied() {
    let golden = goldens().join("llama-bias");
    assert!(!Model::open(&golden).unwrap().config().tie_word_embeddings);
    let dir = changed("llama-bias", "tie_word_embeddings", true.into());
    let model = Model::open(dir.path()).unwrap();
    check_logits(&model, &golden.join("expected.safetensors"), |_| ());
}

/// As Qwen3's embedding models are saved; transformers 5.17 loads them for generation all the same.
#[test]
fn names_may_lack_the_prefix_of_the_model() {
    for name in ["llama-bias", "phi3-partial-rotary"] {
        let dir = changed(name, "architectures", serde_json::Value::Null);
        let path = dir.path().join("model.safetensors");
        let file = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let bare = tensors.iter().map(|(name, tensor)| (name.trim_start_matches("model."), tensor));
        std::fs::remove_file(&path).unwrap();
        safetensors::serialize_to_file(bare, None, &path).unwrap();
        let model = Model::open(dir.path()).unwrap();
        check_logits(&model, &goldens().join(name).join("expected.safetensors"), |_| ());
    }
}

/// As Ministral 3 is published: the language model of one that takes images, called as before
/// transformers 5 and as since.
#[test]
fn a_language_model_may_be_part_of_one_that_takes_images() {
    let renamed: [fn(&str) -> String; 2] = [
        |name| format!("language_model.{name}"),
        |name| name.replace("model.", "model.language_model."),
    ];
    for renamed in renamed {
        let dir = changed("ministral3", "text_config", serde_json::Value::Null);
        let config = dir.path().join("config.json");
        let text: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
        let whole = serde_json::json!({ "model_type": "mistral3", "text_config": text });
        std::fs::write(config, whole.to_string()).unwrap();
        let path = dir.path().join("model.safetensors");
        let file = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let tensors = tensors.iter().map(|(name, tensor)| (renamed(name), tensor));
        std::fs::remove_file(&path).unwrap();
        safetensors::serialize_to_file(tensors, None, &path).unwrap();
        let model = Model::open(dir.path()).unwrap();
        check_logits(&model, &goldens().join("ministral3/expected.safetensors"), |_| ());
    }
}

/// One table in contexts within the first step of Q's scaling, of Q and K each beyond it.
#[test]
fn queries_have_a_table_where_they_are_scaled() {
    let model = Model::open(goldens().join("ministral3")).unwrap();
    let of_context = |len: usize| {
        let plan = model.plan(&Numerics::default(), bounds(len), 8).unwrap();
        let ropes = plan.ops.iter().filter(|op| matches!(op, Op::Rope { .. })).count();
        (plan.constants.len(), ropes)
    };
    assert_eq!([16, 17].map(of_context), [(1, 2), (2, 4)]);
}

#[test]
fn rejects_a_checkpoint_that_its_configuration_does_not_fit() {
    for (name, field, value, expected) in [
        ("llama-gqa", "vocab_size", 255, "`model.embed_tokens.weight` has shape [256, 128]"),
        ("llama-gqa", "intermediate_size", 353, "makes it [353, 128]"),
        ("llama-gqa", "num_hidden_layers", 3, "`model.layers.2.input_layernorm.weight` is missing"),
        ("llama-gqa", "head_dim", 32, "`model.layers.0.self_attn.q_proj.weight` has shape"),
        ("phi3", "num_key_value_heads", 1, "`model.layers.0.self_attn.qkv_proj.weight` has shape"),
        ("llama-gqa", "max_position_embeddings", 0, "`max_position_embeddings` is 0"),
    ] {
        let error = error_with(name, field, value.into());
        assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    }
    for (name, field, missing) in [
        ("llama-gqa", "attention_bias", "`model.layers.0.self_attn.q_proj.bias`"),
        ("llama-gqa", "mlp_bias", "`model.layers.0.mlp.gate_proj.bias`"),
    ] {
        let error = error_with(name, field, true.into());
        assert!(error.contains(missing), "`{error}` does not say `{missing}`");
    }
    let untied = error_with("qwen3", "tie_word_embeddings", false.into());
    assert!(untied.contains("`lm_head.weight` is missing"), "{untied}");
}

#[test]
fn a_plan_keeps_its_numerics_and_they_are_checked() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    let f16 = Numerics {
        accumulate: Accumulate::F16,
        batch_invariant: true,
        fusion: Fusion::NONE,
        ..Precision::F16.into()
    };
    assert_eq!(*model.plan(&f16, bounds(4), 1).unwrap().numerics(), f16);
    for precision in [Precision::F32, Precision::BF16] {
        let numerics = Numerics { precision, ..f16 };
        let refused = |error| matches!(error, ModelError::Plan(PlanError::Accumulate { .. }));
        assert!(model.plan(&numerics, bounds(4), 1).is_err_and(refused), "{precision}");
    }
}

#[test]
fn a_decoder_knows_no_tokenizer() {
    let dir = changed("llama-gqa", "vocab_size", 256.into());
    std::fs::write(dir.path().join("tokenizer.json"), "no tokenizer").unwrap();
    assert!(matches!(Model::open(dir.path()), Err(OpenError::Text(_))));
    assert!(Decoder::open(dir.path()).is_ok());
}
