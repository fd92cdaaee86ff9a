//! The whole pipeline against transformers in float32, on every executor.

mod support;

use halfwarp::engine::{Engine, EngineOptions, FinishReason, Generation, Request};
use halfwarp::exec::Device;
use halfwarp::model::Model;
use halfwarp::text::{Message, Text};
use libtest_mimic::{Arguments, Completion, Trial};
use serde::Deserialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::expected;

/// Norm of the difference over norm.
const MAX_LOGITS_ERROR: f64 = 1e-4;
/// Logits closer than this may change places.
const MIN_MARGIN: f32 = 1e-3;
const MAX_NLL_ERROR: f64 = 1e-3;
/// Greedy tokens that the emulator is asked for, of 40: one takes it up to half a second.
const EMULATED_TOKENS: usize = 12;

fn main() {
    let model = || support::smollm2().ok_or("SmolLM2 is not in the model cache");
    let mut trials =
        vec![trial("smollm2::token_ids".into(), model, |path| smollm2_token_ids(&path))];
    for (name, device, present) in support::devices() {
        let device = move || if present { Ok(device) } else { Err("there is no such device") };
        for dir in golden_dirs() {
            let golden = format!("{name}::{}", dir.file_name().unwrap().to_string_lossy());
            let path = dir.clone();
            trials.push(trial(format!("{golden}::logits"), device, move |device| {
                golden_logits(&dir, device)
            }));
            trials.push(trial(format!("{golden}::greedy"), device, move |device| {
                golden_greedy(&path, device)
            }));
        }
        let both = move || match device()? {
            Device::Emulated => Err("SmolLM2 is too large for the emulator"),
            device => Ok((model()?, device)),
        };
        trials.push(trial(format!("{name}::smollm2::logits"), both, |(path, device)| {
            smollm2_logits(&path, device)
        }));
        trials.push(trial(format!("{name}::smollm2::chats"), both, |(path, device)| {
            smollm2_chats(&path, device)
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

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

fn engine(path: &Path, device: Device) -> Engine {
    let model = Model::open(path).unwrap_or_else(|error| panic!("{error}"));
    let options = EngineOptions { device, ..Default::default() };
    Engine::new(Arc::new(model), options).unwrap_or_else(|error| panic!("{error}"))
}

fn generate(engine: &mut Engine, request: Request) -> Generation {
    engine
        .generate(request, |_| ControlFlow::Continue(()))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn golden_logits(dir: &Path, device: Device) {
    let got = engine(dir, device).logits(&expected(dir, "input_ids", u32::from_le_bytes)).unwrap();
    let wanted = expected(dir, "logits", f32::from_le_bytes);
    let error = relative_error(&got, &wanted);
    assert!(error < MAX_LOGITS_ERROR, "relative error of the logits {error:.2e}");
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

fn golden_greedy(dir: &Path, device: Device) {
    let mut wanted = expected(dir, "greedy_tokens", u32::from_le_bytes);
    if device == Device::Emulated {
        wanted.truncate(EMULATED_TOKENS);
    }
    let request = Request {
        prompt: expected(dir, "greedy_prompt", u32::from_le_bytes),
        max_new_tokens: Some(wanted.len()),
        ..Default::default()
    };
    let generation = generate(&mut engine(dir, device), request);
    assert_eq!(generation.tokens, wanted);
    assert_eq!(generation.finish_reason, FinishReason::Length);
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

fn smollm2_logits(path: &Path, device: Device) {
    let mut engine = engine(path, device);
    let vocab_size = engine.model().config().vocab_size;
    for expected in smollm2_expected().texts {
        let logits = engine.logits(&expected.tokens).unwrap();
        let rows: Vec<&[f32]> = logits.chunks_exact(vocab_size).collect();
        assert_eq!(rows.len(), expected.tokens.len());
        let tops = expected.top5_tokens.iter().zip(&expected.top5_logits);
        for (position, (row, (tokens, logits))) in rows.iter().zip(tops).enumerate() {
            let top = (0..vocab_size).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
            let is_tie = logits[0] - logits[1] < MIN_MARGIN && top == tokens[1];
            assert!(top == tokens[0] || is_tie, "position {position}: {top}, not {}", tokens[0]);
        }
        let nll = mean_nll(&rows, &expected.tokens);
        let error = (nll - expected.mean_nll).abs();
        assert!(error < MAX_NLL_ERROR, "mean NLL {nll}, not {}", expected.mean_nll);
    }
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

fn smollm2_chats(path: &Path, device: Device) {
    let mut engine = engine(path, device);
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
