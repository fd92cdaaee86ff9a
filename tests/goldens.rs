//! The whole pipeline against transformers in float32, on every executor, in every precision, and
//! on CUDA with linear layers by cuBLAS too.

mod support;

use cuda_loader::nccl::Nccl;
use halfwarp::Model;
use halfwarp::engine::{Engine, EngineOptions, FinishReason, Generation, PrecisionChoice, Request};
use halfwarp::exec::{Collectives, Device, Gemm, cuda};
use halfwarp::plan::Precision;
use halfwarp::text::{Message, Text};
use libtest_mimic::{Arguments, Completion, Trial};
use serde::Deserialize;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use support::expected;

/// Largest error of the logits: norm of the difference over norm. The worst golden is at 3.6e-3 in
/// f16 and at 3.2e-2 in bf16; accumulated in f16 at 3.3e-2.
fn max_error(on: On) -> f64 {
    match (on.gemm, on.precision) {
        (Gemm::CublasF16, _) => 4e-2,
        (_, Precision::F32) => 1e-4,
        (_, Precision::F16) => 1e-2,
        (_, Precision::BF16) => 6e-2,
    }
}

/// Most likely tokens of the novel that are those of f32: 0.999 are in f16, 0.989 in bf16.
fn min_agreement(on: On) -> f64 {
    match (on.gemm, on.precision) {
        (Gemm::CublasF16, _) => 0.97,
        (_, Precision::F32) => 0.998,
        (_, Precision::F16) => 0.99,
        (_, Precision::BF16) => 0.97,
    }
}

/// Logits closer than this may change places.
const MIN_MARGIN: f32 = 1e-3;
const MAX_NLL_ERROR: f64 = 1e-3;
/// Greedy tokens that the emulator is asked for, of 40: of the prompt, and of two steps after it.
const EMULATED_TOKENS: usize = 3;
/// Tokens of the novel that the CPU is asked for in 16 bits.
const NOVEL_TOKENS: usize = 300;

fn main() {
    let model = || support::smollm2().ok_or("SmolLM2 is not in the model cache");
    let mut trials =
        vec![trial("smollm2::token_ids".into(), model, |path| smollm2_token_ids(&path))];
    for (name, device, present) in support::devices() {
        for on in forms(device) {
            let On { precision, gemm, in_blocks, world, collectives, .. } = on;
            let name = match (precision, gemm) {
                _ if collectives == Collectives::Nccl => {
                    format!("{name}_{precision}_tp{world}_nccl")
                }
                _ if world > 1 => format!("{name}_{precision}_tp{world}"),
                _ if in_blocks => format!("{name}_blocks"),
                (Precision::F32, Gemm::Halfwarp) => name.to_owned(),
                (_, Gemm::Halfwarp) => format!("{name}_{precision}"),
                _ => format!("{name}_{precision}_{gemm}").replace('-', "_"),
            };
            let there = move || match precision {
                _ if !present => Err("there is no such device"),
                _ if gemm != Gemm::Halfwarp && cuda::cublas_version().is_err() => {
                    Err("there is no cuBLAS")
                }
                _ if num_gpus(device).is_some_and(|there| there < world) => {
                    Err("there are not so many GPUs")
                }
                _ if collectives == Collectives::Nccl && Nccl::open().is_err() => {
                    Err("there is no NCCL that leaves NVLink multicast off")
                }
                Precision::BF16 if device == Device::Emulated => Err("as in f16, which runs"),
                _ => Ok(on),
            };
            // Their weights are not in blocks.
            for dir in golden_dirs().into_iter().filter(|_| !in_blocks) {
                let golden = format!("{name}::{}", dir.file_name().unwrap().to_string_lossy());
                for what in ["logits", "greedy"] {
                    let test = if what == "logits" { golden_logits } else { golden_greedy };
                    let (model, dir) = (dir.clone(), dir.clone());
                    let needed = move || there().and_then(|on| is_shared(&model, what, on));
                    trials
                        .push(trial(format!("{golden}::{what}"), needed, move |on| test(&dir, on)));
                }
            }
            let both = move || match there()? {
                On { world: 2.., .. } => Err("9 heads: no two devices can share it"),
                On { device: Device::Emulated, .. } => Err("SmolLM2 is too large for the emulator"),
                on => Ok((model()?, on)),
            };
            let mut add = |what: &str, test: fn(&Path, On)| {
                let name = format!("{name}::smollm2::{what}");
                trials.push(trial(name, both, move |(path, on)| test(&path, on)));
            };
            if precision == Precision::F32 && gemm == Gemm::Halfwarp {
                add("logits", smollm2_logits);
                add("chats", smollm2_chats);
            }
            if on != REFERENCE {
                add("novel", smollm2_novel);
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// What runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct On {
    device: Device,
    precision: Precision,
    gemm: Gemm,
    /// Whether weights that the checkpoint has in blocks stay so: `precision` is what is chosen
    /// then.
    in_blocks: bool,
    /// Devices that share the model.
    world: usize,
    /// Whose kernels add over them.
    collectives: Collectives,
}

/// How many GPUs there are, where `device` is one.
fn num_gpus(device: Device) -> Option<usize> {
    device.cuda_ordinal().map(|_| cuda::devices().map_or(0, |devices| devices.len()))
}

/// `on`, if so many devices can share the model of `dir`, and `what` of it shows what others do
/// not.
fn is_shared(dir: &Path, what: &str, on: On) -> Result<On, &'static str> {
    // Tied and not, with biases and without, of fused tensors, with QK-norm over a head and over
    // all; KV heads that ranks share; experts, sinks; norms around the branches, caps.
    const SHARED: [&str; 8] =
        ["llama-gqa", "qwen3", "phi3", "qwen2", "olmo3", "qwen3-moe", "gpt-oss", "gemma2"];
    const IN_F32: [&str; 9] = [
        "llama-gqa",
        "mistral-window",
        "qwen3",
        "qwen3-moe",
        "gpt-oss",
        "gemma2",
        "qwen3-next",
        "gemma4-e",
        "gemma4-moe",
    ];
    let emulated = match (on.precision, on.world) {
        (Precision::F32, 1) => Some(&IN_F32[..]),
        (_, 1) => None,
        (_, 2) if what == "logits" => Some(&SHARED[..]),
        _ => Some(&SHARED[..1]),
    };
    let is_one = |names: &[&str]| names.iter().any(|name| dir.ends_with(name));
    let is_left_out = on.device == Device::Emulated && !emulated.is_none_or(is_one);
    if is_left_out && !support::runs_all() {
        return Err("as another one, which runs");
    }
    let model = Model::open(dir).unwrap_or_else(|error| panic!("{error}"));
    let config = model.config();
    let divides = (0..config.num_layers()).all(|layer| {
        let kv_heads = config.heads(layer).num_kv_heads;
        kv_heads.is_multiple_of(on.world) || on.world.is_multiple_of(kv_heads)
    });
    // Blocks of 16 columns are divided.
    let has_columns = |size: usize| size.div_ceil(16) >= on.world;
    let divides = divides && config.experts.is_none_or(|of| has_columns(of.intermediate_size));
    let divides =
        divides && config.delta.is_none_or(|delta| delta.num_v_heads.is_multiple_of(on.world));
    match config.num_heads.is_multiple_of(on.world) && divides {
        true => Ok(on),
        false => Err("so many devices cannot share its heads"),
    }
}

/// The precisions of a device, and who computes linear layers there.
fn forms(device: Device) -> Vec<On> {
    let on = On { device, ..REFERENCE };
    let mut gemms = vec![Gemm::Halfwarp];
    if let Device::Cuda(_) = device {
        gemms.extend([Gemm::Cublas, Gemm::CublasF16]);
    }
    let all = gemms
        .into_iter()
        .flat_map(|gemm| Precision::ALL.map(|precision| On { precision, gemm, ..on }));
    let in_f16 = On { precision: Precision::F16, ..on };
    let blocks = (device != Device::Cpu).then_some(On { in_blocks: true, ..in_f16 });
    all.chain(blocks)
        .chain(shared(device))
        .filter(|on| on.gemm.compute_type(on.precision.operand()).is_ok())
        .collect()
}

/// Several devices that share a model. On GPUs the kernels that add take 16 bits.
fn shared(device: Device) -> impl Iterator<Item = On> {
    use Collectives::{Auto, Nccl};
    use Precision::{BF16, F16, F32};
    let of = match device {
        Device::Cpu => vec![(F32, 2, Auto), (F32, 4, Auto), (F32, 8, Auto), (F16, 2, Auto)],
        // The kernels and the plans are what differs, and each of these is a form of them.
        Device::Emulated => vec![(F16, 2, Auto), (F16, 4, Auto)],
        _ => vec![
            (F16, 2, Auto),
            (BF16, 2, Auto),
            (F16, 4, Auto),
            (F16, 8, Auto),
            (F16, 2, Nccl),
            (BF16, 2, Nccl),
            (F32, 2, Nccl),
        ],
    };
    let on = On { device, ..REFERENCE };
    of.into_iter().map(move |(precision, world, collectives)| On {
        precision,
        world,
        collectives,
        ..on
    })
}

/// What others are compared with where transformers has not been asked.
const REFERENCE: On = On {
    device: Device::Cpu,
    precision: Precision::F32,
    gemm: Gemm::Halfwarp,
    in_blocks: false,
    world: 1,
    collectives: Collectives::Auto,
};

/// A test that `needs` something of this machine: ignored, with the reason, where that is missing.
fn trial<T>(
    name: String,
    needs: impl FnOnce() -> Result<T, &'static str> + Send + 'static,
    test: impl FnOnce(T) + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, || match needs() {
        Ok(needed) => {
            test(needed);
            Ok(Completion::Completed)
        }
        Err(lacking) => Ok(Completion::ignored_with(lacking)),
    })
}

/// Every folder of goldens that holds a model.
fn golden_dirs() -> Vec<PathBuf> {
    let goldens = support::data_dir().join("goldens");
    let entries = std::fs::read_dir(&goldens)
        .unwrap_or_else(|error| panic!("{}: {error}", goldens.display()));
    let dirs = entries.map(|entry| entry.unwrap().path());
    let mut dirs: Vec<_> = dirs.filter(|dir| dir.join("expected.safetensors").is_file()).collect();
    dirs.sort();
    assert!(!dirs.is_empty(), "no goldens in {}", goldens.display());
    dirs
}

fn engine(path: &Path, on: On) -> Engine {
    let On { device, precision, gemm, in_blocks, world, collectives } = on;
    let model = Model::open(path).unwrap_or_else(|error| panic!("{error}"));
    let precision = if in_blocks { PrecisionChoice::Auto } else { precision.into() };
    let tensor_parallel_size = NonZeroUsize::new(world).expect("a device");
    let options = EngineOptions {
        device,
        tensor_parallel_size,
        precision,
        gemm,
        collectives,
        ..Default::default()
    };
    Engine::new(Arc::new(model), options).unwrap_or_else(|error| panic!("{error}"))
}

fn generate(engine: &mut Engine, request: Request) -> Generation {
    engine
        .generate(request, |_| ControlFlow::Continue(()))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn golden_logits(dir: &Path, on: On) {
    let input_ids = expected(dir, "input_ids", u32::from_le_bytes);
    let got = engine(dir, on).logits(&input_ids).unwrap();
    let wanted = expected(dir, "logits", f32::from_le_bytes);
    let error = relative_error(&got, &wanted);
    assert!(error < max_error(on), "relative error of the logits {error:.2e}");
    if on.device != Device::Emulated {
        let again = engine(dir, on).logits(&input_ids).unwrap();
        assert!(bits(&again) == bits(&got), "other bits in the second run");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// `norm(got - wanted) / norm(wanted)`; NaN where a value is.
fn relative_error(got: &[f32], wanted: &[f32]) -> f64 {
    assert_eq!(got.len(), wanted.len());
    let square = |x: f64| x * x;
    let pairs = got.iter().zip(wanted);
    let difference: f64 = pairs.map(|(&got, &wanted)| square(got as f64 - wanted as f64)).sum();
    let norm: f64 = wanted.iter().map(|&wanted| square(wanted as f64)).sum();
    (difference / norm).sqrt()
}

fn golden_greedy(dir: &Path, on: On) {
    let prompt = expected(dir, "greedy_prompt", u32::from_le_bytes);
    let mut wanted = expected(dir, "greedy_tokens", u32::from_le_bytes);
    if on.device == Device::Emulated && !support::runs_all() {
        wanted.truncate(EMULATED_TOKENS);
    }
    let request = Request {
        prompt: prompt.clone(),
        max_new_tokens: Some(wanted.len()),
        ..Default::default()
    };
    let generation = generate(&mut engine(dir, on), request);
    assert_eq!(generation.finish_reason, FinishReason::Length);
    let differs = generation.tokens.iter().zip(&wanted).position(|(got, wanted)| got != wanted);
    match differs {
        None => assert_eq!(generation.tokens.len(), wanted.len()),
        Some(index) if on.precision != Precision::F32 => {
            // Behind a token that may differ, everything may.
            let known = [&prompt[..], &wanted[..index]].concat();
            let logits = engine(dir, REFERENCE).logits(&known).unwrap();
            let row = &logits[logits.len() / known.len() * (known.len() - 1)..];
            let margin = row[wanted[index] as usize] - row[generation.tokens[index] as usize];
            let noise = 2.0 * max_error(on) * root_mean_square(row);
            assert!(f64::from(margin) < noise, "token {index}: margin {margin}, noise {noise}");
        }
        Some(_) => assert_eq!(generation.tokens, wanted),
    }
}

fn root_mean_square(row: &[f32]) -> f64 {
    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
    (squares / row.len() as f64).sqrt()
}

#[derive(Deserialize)]
struct SmolLm2 {
    texts: Vec<ExpectedText>,
    chats: Vec<ExpectedChat>,
}

#[derive(Deserialize)]
struct ExpectedText {
    text: String,
    tokens: Vec<u32>,
    top5_tokens: Vec<[u32; 5]>,
    top5_logits: Vec<[f32; 5]>,
    mean_nll: f64,
}

#[derive(Deserialize)]
struct ExpectedChat {
    prompt: String,
    rendered: String,
    prompt_tokens: Vec<u32>,
    greedy_tokens: Vec<u32>,
    greedy_text: String,
    min_margin: f32,
}

fn smollm2_expected() -> SmolLm2 {
    let path = support::data_dir().join("goldens/smollm2/expected.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn text(model: &Model) -> &Text {
    model.text().expect("the GGUF has a tokenizer")
}

fn smollm2_token_ids(path: &Path) {
    let model = Model::open(path).unwrap_or_else(|error| panic!("{error}"));
    let Text { tokenizer, chat_template, .. } = text(&model);
    let expected = smollm2_expected();
    for ExpectedText { text, tokens, .. } in expected.texts {
        assert_eq!(tokenizer.encode(&text, true).unwrap(), tokens, "{text:?}");
        assert_eq!(tokenizer.decode(&tokens, false), text);
    }
    let template = chat_template.as_ref().expect("the GGUF has a chat template");
    for chat in expected.chats {
        let rendered = template.render(&[Message::new("user", &chat.prompt)], true).unwrap();
        assert_eq!(rendered, chat.rendered);
        assert_eq!(tokenizer.encode(&rendered, false).unwrap(), chat.prompt_tokens);
        assert_eq!(tokenizer.decode(&chat.greedy_tokens, false), chat.greedy_text);
    }
}

fn smollm2_logits(path: &Path, on: On) {
    let mut engine = engine(path, on);
    let vocab_size = engine.model().config().vocab_size;
    for expected in smollm2_expected().texts {
        let logits = engine.logits(&expected.tokens).unwrap();
        let rows: Vec<&[f32]> = logits.chunks_exact(vocab_size).collect();
        assert_eq!(rows.len(), expected.tokens.len());
        let tops = expected.top5_tokens.iter().zip(&expected.top5_logits);
        for (position, (row, (tokens, logits))) in rows.iter().zip(tops).enumerate() {
            let top = most_likely(row);
            let is_tie = logits[0] - logits[1] < MIN_MARGIN && top == tokens[1];
            assert!(top == tokens[0] || is_tie, "position {position}: {top}, not {}", tokens[0]);
        }
        let nll = mean_nll(&rows, &expected.tokens);
        let error = (nll - expected.mean_nll).abs();
        assert!(error < MAX_NLL_ERROR, "mean NLL {nll}, not {}", expected.mean_nll);
    }
}

fn most_likely(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32
}

/// The first chapter of a novel, or its start: what is most likely next is what it is in f32.
fn smollm2_novel(path: &Path, on: On) {
    static WANTED: [OnceLock<Vec<f32>>; 2] = [const { OnceLock::new() }; 2];
    let mut engine = engine(path, on);
    let novel = std::fs::read_to_string(support::data_dir().join("fixtures/novel.txt")).unwrap();
    let mut tokens = text(engine.model()).tokenizer.encode(&novel, true).unwrap();
    assert!(tokens.len() >= 1000, "{} tokens", tokens.len());
    let vocab_size = engine.model().config().vocab_size;
    let is_part = on.device == Device::Cpu && !support::runs_all();
    if is_part {
        tokens.truncate(NOVEL_TOKENS);
    }
    let got = engine.logits(&tokens).unwrap();
    let wanted = WANTED[usize::from(is_part)]
        .get_or_init(|| self::engine(path, REFERENCE).logits(&tokens).unwrap());
    let error = relative_error(&got, wanted);
    assert!(error < max_error(on), "relative error of the logits {error:.2e}");
    let rows = got.chunks_exact(vocab_size).zip(wanted.chunks_exact(vocab_size));
    let same = rows.filter(|(got, wanted)| most_likely(got) == most_likely(wanted)).count();
    let agreement = same as f64 / tokens.len() as f64;
    assert!(agreement >= min_agreement(on), "{same} of {} tokens agree", tokens.len());
}

/// Mean of `-log softmax(rows[t])[tokens[t + 1]]`.
fn mean_nll(rows: &[&[f32]], tokens: &[u32]) -> f64 {
    let nll = |(row, &token): (&&[f32], &u32)| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let sum: f64 = row.iter().map(|&logit| (logit as f64 - max).exp()).sum();
        max + sum.ln() - row[token as usize] as f64
    };
    rows.iter().zip(&tokens[1..]).map(nll).sum::<f64>() / (tokens.len() - 1) as f64
}

fn smollm2_chats(path: &Path, on: On) {
    let mut engine = engine(path, on);
    for chat in smollm2_expected().chats {
        let request = Request {
            prompt: chat.prompt_tokens,
            max_new_tokens: Some(48),
            stop_tokens: engine.model().stop_tokens().to_vec(),
            ..Default::default()
        };
        let generation = generate(&mut engine, request);
        // Behind a token that may differ, everything may.
        if chat.min_margin >= MIN_MARGIN {
            assert_eq!(generation.tokens, chat.greedy_tokens, "{:?}", chat.prompt);
        }
        let stopped = generation.finish_reason == FinishReason::StopToken;
        assert_eq!(stopped, generation.tokens.len() < 48, "{generation:?}");
    }
}
