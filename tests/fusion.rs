//! Plans of one model that compute it in other operations: fused and unfused, attention in one
//! operation and in three. Tiny models of every family, in f16 on the emulated kernels and in f32
//! on the CPU, against transformers' logits in float32.

mod support;

use halfwarp::Model;
use halfwarp::engine::{Engine, EngineOptions};
use halfwarp::exec::Device;
use halfwarp::plan::{AttentionForm, Fusion, Precision};
use safetensors::{SafeTensors, tensor::TensorView};
use std::sync::Arc;
use support::{data_dir, expected};

/// Tokens of a step: one, and as many as norms and gates are fused for on a GPU.
const ROWS: [usize; 2] = [1, 8];

/// The largest `|got - wanted| / max(1, |wanted|)`; infinite for a NaN.
fn largest_error(got: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(got.len(), wanted.len());
    let error = |(got, wanted): (&f32, &f32)| (got - wanted).abs() / wanted.abs().max(1.0);
    let no_nan = |error: f32| if error.is_nan() { f32::INFINITY } else { error };
    got.iter().zip(wanted).map(error).map(no_nan).fold(0.0, f32::max)
}

/// `norm(got - wanted) / norm(wanted)`.
fn relative_error(got: &[f32], wanted: &[f32]) -> f32 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
    let mut differences = got.iter().zip(wanted).map(|(got, wanted)| got - wanted);
    norm(&mut differences) / norm(&mut wanted.iter().copied())
}

/// A golden, and what transformers computes of it.
struct Golden {
    name: &'static str,
    model: Arc<Model>,
    input_ids: Vec<u32>,
    logits: Vec<f32>,
}

impl Golden {
    fn open(name: &'static str) -> Self {
        let dir = data_dir().join("goldens").join(name);
        Golden {
            name,
            model: Arc::new(Model::open(&dir).unwrap()),
            input_ids: expected(&dir, "input_ids", u32::from_le_bytes),
            logits: expected(&dir, "logits", f32::from_le_bytes),
        }
    }

    /// Logits with each of `options` are within `bound`: of transformers' by their norms, of the
    /// first ones one by one.
    fn check(&self, options: &[EngineOptions], bound: f32) {
        let open = |options: &EngineOptions| Engine::new(Arc::clone(&self.model), options.clone());
        let mut engines: Vec<_> = options.iter().map(|options| open(options).unwrap()).collect();
        for rows in ROWS {
            let of = |engine: &mut Engine| engine.logits(&self.input_ids[..rows]).unwrap();
            let all: Vec<Vec<f32>> = engines.iter_mut().map(of).collect();
            for (got, EngineOptions { fusion, attention, .. }) in all.iter().zip(options) {
                let case = format!("{}, {rows} rows, {fusion}, {attention:?}", self.name);
                let error = relative_error(got, &self.logits[..got.len()]);
                assert!(error <= bound, "{case}: {error} from transformers");
                let error = largest_error(got, &all[0]);
                assert!(error <= bound, "{case}: {error} from the first");
            }
        }
    }
}

/// On the emulator in f16.
fn emulated(fusion: Fusion) -> EngineOptions {
    let precision = Precision::F16.into();
    EngineOptions { device: Device::Emulated, precision, fusion, ..Default::default() }
}

/// On the CPU in f32.
fn on_the_cpu(fusion: Fusion) -> EngineOptions {
    let precision = Precision::F32.into();
    EngineOptions { device: Device::Cpu, precision, fusion, ..Default::default() }
}

/// As `options`, with attention in three operations.
fn materialized(options: EngineOptions) -> EngineOptions {
    EngineOptions { attention: AttentionForm::Materialized, ..options }
}

/// Everything fused, nothing, and attention in three operations.
fn family(name: &'static str) {
    let of = |options: fn(Fusion) -> EngineOptions| {
        [options(Fusion::ALL), options(Fusion::NONE), materialized(options(Fusion::ALL))]
    };
    Golden::open(name).check(&of(on_the_cpu), 1e-4);
    Golden::open(name).check(&of(emulated), 1e-2);
}

/// The one fusion on, and it alone off.
fn by_itself(name: &str, golden: &'static str) {
    let others = Fusion::NAMES.into_iter().filter(|&other| other != name);
    let all_but: Fusion = others.collect::<Vec<_>>().join(",").parse().unwrap();
    let fusions = [name.parse().unwrap(), all_but];
    let golden = Golden::open(golden);
    golden.check(&fusions.map(on_the_cpu), 1e-4);
    golden.check(&fusions.map(emulated), 1e-2);
}

#[test]
fn llama_fused_and_unfused() {
    family("llama-gqa");
}

#[test]
fn llama_with_biases_fused_and_unfused() {
    family("llama-bias");
}

#[test]
fn mistral_fused_and_unfused() {
    family("mistral-window");
}

#[test]
fn phi3_fused_and_unfused() {
    family("phi3");
}

#[test]
fn qwen2_fused_and_unfused() {
    family("qwen2");
}

#[test]
fn qwen3_fused_and_unfused() {
    family("qwen3");
}

/// Half of a head is rotated.
#[test]
fn glm4_moe_fused_and_unfused() {
    family("glm4-moe");
}

/// Norms after the branches, two rotary embeddings.
#[test]
fn olmo3_fused_and_unfused() {
    family("olmo3");
}

/// Norms around the branches, a gate of GELU, caps of scores and logits.
#[test]
fn gemma2_fused_and_unfused() {
    family("gemma2");
}

/// QK-norm, and heads of 256.
#[test]
fn gemma3_fused_and_unfused() {
    family("gemma3-images");
}

/// Q and K are rotated by tables of their own.
#[test]
fn ministral3_fused_and_unfused() {
    family("ministral3");
}

#[test]
fn norm_and_gemm_by_itself() {
    by_itself("norm_gemm", "llama-bias");
}

#[test]
fn gemm_and_swiglu_by_itself() {
    by_itself("gemm_swiglu", "llama-bias");
}

#[test]
fn rope_and_append_by_itself() {
    by_itself("rope_append", "llama-bias");
}

#[test]
fn residual_by_itself() {
    by_itself("residual", "llama-bias");
}

#[test]
fn shared_expert_by_itself() {
    by_itself("shared_expert", "qwen3.5-moe");
}

/// Experts with a tensor each, and a shared one without a gate, which is as large: of two, half.
#[test]
fn a_shared_expert_without_a_gate() {
    let golden = data_dir().join("goldens/glm4-moe");
    let dir = tempfile::tempdir().unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden.join("config.json")).unwrap()).unwrap();
    config["n_shared_experts"] = 1.into();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let halved = |(name, tensor): (&str, TensorView)| {
        let (mut shape, data) = (tensor.shape().to_vec(), tensor.data());
        if !name.contains("shared_experts") {
            return (name.to_owned(), tensor.dtype(), shape, data.to_vec());
        }
        let is_down = name.contains("down_proj");
        let run = if is_down { data.len() / shape[0] } else { data.len() };
        shape[usize::from(is_down)] /= 2;
        let halves = data.chunks_exact(run).flat_map(|run| &run[..run.len() / 2]);
        (name.to_owned(), tensor.dtype(), shape, halves.copied().collect::<Vec<u8>>())
    };
    let halved: Vec<_> = tensors.iter().map(halved).collect();
    let views = halved.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();

    let model = Arc::new(Model::open(dir.path()).unwrap());
    let mut apart = Engine::new(Arc::clone(&model), on_the_cpu(Fusion::NONE)).unwrap();
    let input_ids: Vec<u32> = (1..9).collect();
    let logits = apart.logits(&input_ids).unwrap();
    let golden = Golden { name: "one shared expert", model, input_ids, logits };
    golden.check(&[on_the_cpu(Fusion::ALL)], 1e-5);
    golden.check(&[emulated(Fusion::NONE), emulated(Fusion::ALL)], 1e-2);
}

#[test]
fn qk_norm_by_itself() {
    by_itself("qk_norm", "qwen3");
}

/// All of a golden's tokens, beyond a window and with other bits than the others' in the cache.
#[test]
fn materialized_attention_of_a_whole_prompt() {
    for name in ["mistral-window", "llama-group7"] {
        let golden = Golden::open(name);
        for (options, bound) in [(on_the_cpu(Fusion::ALL), 1e-4), (emulated(Fusion::ALL), 1e-2)] {
            let mut engine = Engine::new(Arc::clone(&golden.model), materialized(options)).unwrap();
            let error = relative_error(&engine.logits(&golden.input_ids).unwrap(), &golden.logits);
            assert!(error <= bound, "{name}: {error}");
        }
    }
}

/// What the scores take is in the budget, and too much of it is refused before anything is loaded.
#[test]
fn scores_that_do_not_fit_are_refused() {
    let model = Arc::new(Model::open(data_dir().join("goldens/llama-gqa")).unwrap());
    let options =
        EngineOptions { max_tokens: Some(1 << 30), max_seqs: 1 << 22, ..on_the_cpu(Fusion::ALL) };
    let error = Engine::new(model, materialized(options)).err().unwrap().to_string();
    assert!(error.starts_with("the model needs ") && error.contains("activations"), "{error}");
}
