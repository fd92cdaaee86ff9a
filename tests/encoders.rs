//! Encoders against transformers in float32, on every executor, in every precision.

mod support;

use halfwarp::Model;
use halfwarp::engine::{Engine, EngineError, EngineOptions, EventKind, Pooling, Request};
use halfwarp::exec::Device;
use halfwarp::plan::Precision;
use libtest_mimic::{Arguments, Completion, Trial};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::expected;

fn main() {
    let mut trials = Vec::new();
    for (name, device, present) in support::devices() {
        for precision in Precision::ALL {
            // bf16 is emulated as f16 is.
            let is_run = device != Device::Emulated || precision != Precision::BF16;
            let name = format!("{name}::matches_transformers_{precision}");
            trials.push(Trial::ignorable_test(name, move || match (present, is_run) {
                (false, _) => Ok(Completion::ignored_with("there is no such device")),
                (true, false) => Ok(Completion::ignored_with("as in f16, which runs")),
                (true, true) => {
                    matches_transformers(device, precision);
                    Ok(Completion::Completed)
                }
            }));
        }
    }
    let others: [(&str, fn()); 5] = [
        ("a_text_is_in_one_step", a_text_is_in_one_step),
        ("encoders_make_what_they_are_made_for", encoders_make_what_they_are_made_for),
        ("texts_share_no_beginning", texts_share_no_beginning),
        ("gguf_files_match_transformers", gguf_files_match_transformers),
        ("files_of_modules_are_checked", files_of_modules_are_checked),
    ];
    trials.extend(others.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Largest error of the outputs: norm of the difference over norm.
fn max_error(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 1e-4,
        Precision::F16 => 1e-2,
        Precision::BF16 => 6e-2,
    }
}

/// Goldens, with the form of what they give.
const GOLDENS: [(&str, Pooling); 7] = [
    ("bert", Pooling::Mean),
    ("bert-cross", Pooling::Score),
    ("xlm-roberta", Pooling::First),
    ("xlm-roberta-cross", Pooling::Score),
    ("modernbert", Pooling::Mean),
    ("modernbert-cross", Pooling::Score),
    ("embedding-gemma", Pooling::Mean),
];

/// A golden's texts, and what is expected of them.
struct Golden {
    model: Arc<Model>,
    requests: Vec<Request>,
    outputs: Vec<Vec<f32>>,
}

fn dir(name: &str) -> PathBuf {
    support::data_dir().join("goldens/encoders").join(name)
}

impl Golden {
    fn open(name: &str) -> Self {
        let dir = dir(name);
        let model = Model::open(&dir).unwrap_or_else(|error| panic!("{error}"));
        Golden::of(model, &dir)
    }

    /// What is expected in `dir` of a model that is it in some form.
    fn of(model: Model, dir: &Path) -> Self {
        let [lengths, ids, seconds] =
            ["lengths", "input_ids", "seconds"].map(|name| expected(dir, name, u32::from_le_bytes));
        let mut ids = &ids[..];
        let pooling = model.pooling();
        let request = |(length, second): (&u32, &u32)| {
            let prompt = ids.split_off(..*length as usize).unwrap().to_vec();
            let second_text = (second < length).then_some(*second as usize);
            Request { prompt, pooling: Some(pooling), second_text, ..Request::default() }
        };
        let requests = lengths.iter().zip(&seconds).map(request).collect();
        let outputs = expected(dir, "outputs", f32::from_le_bytes);
        let width = outputs.len() / lengths.len();
        let outputs = outputs.chunks(width).map(<[f32]>::to_vec).collect();
        Golden { model: Arc::new(model), requests, outputs }
    }

    fn engine(&self, options: EngineOptions) -> Engine {
        Engine::new(Arc::clone(&self.model), options).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn options(device: Device, precision: Precision, max_seqs: usize) -> EngineOptions {
    EngineOptions { device, precision: precision.into(), max_seqs, ..Default::default() }
}

/// What comes of `requests`, and how many steps it took.
fn run(engine: &mut Engine, requests: &[Request]) -> (Vec<Vec<f32>>, usize) {
    let ids = requests.iter().map(|request| engine.add_request(request.clone()).unwrap());
    let ids: Vec<_> = ids.collect();
    let (mut found, mut num_steps) = (BTreeMap::new(), 0);
    while engine.has_work() {
        num_steps += 1;
        for event in engine.step().unwrap() {
            if let EventKind::Embedding(output) = event.kind {
                assert!(found.insert(event.request, output).is_none(), "one of each");
            }
        }
    }
    assert_eq!(engine.stats().num_used_pages, 0, "texts that are done hold no pages");
    (ids.iter().map(|id| found.remove(id).unwrap()).collect(), num_steps)
}

fn relative_error(got: &[Vec<f32>], wanted: &[Vec<f32>]) -> f64 {
    let square = |x: f64| x * x;
    let pairs = || got.iter().flatten().zip(wanted.iter().flatten());
    let difference: f64 = pairs().map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let norm: f64 = pairs().map(|(_, &b)| square(f64::from(b))).sum();
    (difference / norm).sqrt()
}

fn matches_transformers(device: Device, precision: Precision) {
    for (name, pooling) in GOLDENS {
        let golden = Golden::open(name);
        assert_eq!(golden.model.pooling(), pooling, "{name}");
        let mut engine = golden.engine(options(device, precision, 8));
        let (together, num_steps) = run(&mut engine, &golden.requests);
        assert_eq!(num_steps, 1, "{name}: all texts are one step");
        let error = relative_error(&together, &golden.outputs);
        println!("{name} in {precision}: {error:.1e}");
        assert!(error < max_error(precision), "{name} in {precision}: {error:.2e}");
        // The emulator takes its time, and has the kernels of the batch.
        let alone = if device == Device::Emulated { 3..5 } else { 0..golden.requests.len() };
        for index in alone {
            let (own, _) = run(&mut engine, &golden.requests[index..=index]);
            // Beside outputs of all texts: a logit may be almost 0.
            let mut all = together.clone();
            all[index] = own[0].clone();
            let error = relative_error(&all, &together) * (together.len() as f64).sqrt();
            let bound = if precision == Precision::F32 { 1e-5 } else { max_error(precision) };
            assert!(error < bound, "{name}, text {index} alone: {error:.2e}");
        }
    }
}

/// A step has room for 100 tokens: texts wait for the next one, and none is cut.
fn a_text_is_in_one_step() {
    for name in ["bert", "modernbert", "embedding-gemma"] {
        let golden = Golden::open(name);
        let small =
            EngineOptions { max_tokens: Some(100), ..options(Device::Cpu, Precision::F32, 4) };
        let mut engine = golden.engine(small);
        assert_eq!(engine.context(), 100, "{name}");
        // In this order 100 tokens are a step, 65 another, and 64 with 33 and two more a third.
        let order = [6, 5, 4, 3, 1, 0, 2];
        let requests = order.map(|index| golden.requests[index].clone());
        let (got, num_steps) = run(&mut engine, &requests);
        let wanted = order.map(|index| golden.outputs[index].clone());
        let error = relative_error(&got, &wanted);
        assert!(error < 1e-4, "{name}: {error:.2e}");
        assert!((3..=4).contains(&num_steps), "{name}: {num_steps} steps");
        let long = Request { prompt: vec![5; 101], ..requests[0].clone() };
        let error = engine.add_request(long).unwrap_err();
        assert!(matches!(error, EngineError::PromptTooLong { prompt_len: 101, context: 100 }));
    }
}

fn encoders_make_what_they_are_made_for() {
    let golden = Golden::open("bert-cross");
    let mut engine = golden.engine(options(Device::Cpu, Precision::F32, 1));
    assert_eq!(engine.context(), 128);
    let request = |pooling| Request { pooling, ..golden.requests[2].clone() };
    let error = engine.add_request(request(None)).unwrap_err();
    assert!(matches!(error, EngineError::NoGeneration), "{error}");
    let error = engine.add_request(request(Some(Pooling::Mean))).unwrap_err();
    assert_eq!(error.to_string(), "this model pools by `score`: `mean` is not possible");
    assert!(matches!(engine.logits(&[5, 6]).unwrap_err(), EngineError::NoGeneration));
    // The second text has another type: without it the score is another.
    let one_text = Request { second_text: None, ..golden.requests[5].clone() };
    let (got, _) = run(&mut engine, &[one_text, golden.requests[5].clone()]);
    assert!((got[0][0] - got[1][0]).abs() > 1e-2, "{got:?}");
    assert!((got[1][0] - golden.outputs[5][0]).abs() < 1e-4, "{got:?}");
}

/// As of another text with the same beginning: what a token sees after it is another.
fn texts_share_no_beginning() {
    let golden = Golden::open("bert");
    let mut engine = golden.engine(options(Device::Cpu, Precision::F32, 1));
    let long = golden.requests[6].clone();
    let prompt = [&long.prompt[..70], &[7, 8, 9][..]].concat();
    let other = Request { prompt, ..long.clone() };
    let (fresh, _) = run(&mut engine, std::slice::from_ref(&other));
    let (_, _) = run(&mut engine, std::slice::from_ref(&long));
    let (again, _) = run(&mut engine, &[other]);
    assert_eq!(again, fresh);
}

fn gguf_files_match_transformers() {
    for name in ["bert", "xlm-roberta-cross", "modernbert", "embedding-gemma"] {
        let path = dir(&format!("{name}.gguf"));
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let golden = Golden::of(model, &dir(name));
        let mut engine = golden.engine(options(Device::Cpu, Precision::F32, 8));
        let (got, _) = run(&mut engine, &golden.requests);
        let error = relative_error(&got, &golden.outputs);
        assert!(error < 1e-4, "{name}: {error:.2e}");
    }
}

/// What is wrong with a file is said of that file, and no path leads out of the directory.
fn files_of_modules_are_checked() {
    let copy = |name: &str| {
        let temp = tempfile::tempdir().unwrap();
        for entry in walkdir(&dir(name)) {
            let to = temp.path().join(entry.strip_prefix(dir(name)).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(entry, to).unwrap();
        }
        temp
    };
    let modules = |kind: &str, path: &str| {
        format!(
            r#"[{{"path": "", "type": "Transformer"}}, {{"path": "{path}", "type": "{kind}"}}]"#
        )
    };
    for (file, content, why) in [
        ("modules.json", "{".to_owned(), "modules.json"),
        ("modules.json", modules("a.Pooling", "../bert"), "the path of a module"),
        ("modules.json", modules("a.Pooling", ".."), "the path of a module"),
        ("modules.json", modules("a.LSTM", "1_Pooling"), "Pooling, Dense and Normalize"),
        ("modules.json", modules("a.Dense", "9_Dense"), "9_Dense"),
        ("1_Pooling/config.json", r#"{"pooling_mode_max_tokens": true}"#.to_owned(), "mean, cls"),
        (
            "1_Pooling/config.json",
            r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}"#.to_owned(),
            "mean, cls",
        ),
    ] {
        let temp = copy("bert");
        std::fs::write(temp.path().join(file), content).unwrap();
        let error = Model::open(temp.path()).unwrap_err().to_string();
        assert!(error.contains(why) && error.lines().count() <= 2, "{error}");
    }
    for (field, value, why) in [
        ("hidden_act", "\"relu\"", "gelu"),
        ("is_decoder", "true", "encoders"),
        ("max_position_embeddings", "129", "[128, 64]"),
        ("type_vocab_size", "3", "[2, 64]"),
        ("num_attention_heads", "5", "divide"),
    ] {
        let temp = copy("bert");
        let path = temp.path().join("config.json");
        let mut json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json[field] = serde_json::from_str(value).unwrap();
        std::fs::write(&path, json.to_string()).unwrap();
        let error = Model::open(temp.path()).unwrap_err().to_string();
        assert!(error.contains(why) && error.lines().count() <= 2, "{field}: {error}");
    }
}

/// All files of a directory and those in it.
fn walkdir(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}
