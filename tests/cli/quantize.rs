//! `halfwarp quantize`: a model that has become a GGUF file says what it said before.

use crate::support::{
    Copy, LLAMA, QWEN3, f32s, generate_json, golden_ids, join, run, stderr, stdout,
};
use halfwarp::weights::gguf::{Metadata, TensorDescription, Value, Writer};
use halfwarp::weights::{Checkpoint, Origin, TensorDtype, TensorEntry};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

fn golden(name: &str) -> String {
    format!("{}/../tests/goldens/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Quantises `model` into `dir`, and returns the file and what was printed.
fn quantized(model: &str, mix: &str, dir: &TempDir) -> (String, String) {
    let out = dir.path().join(format!("{mix}.gguf")).to_str().unwrap().to_owned();
    let printed = stdout(&["quantize", model, &out, "--type", mix]);
    (out, printed)
}

/// Logits of the golden's tokens, on the CPU in f32.
fn logits(model: &str, golden: &str, dir: &TempDir) -> Vec<f32> {
    let out = dir.path().join("logits.safetensors");
    let ids = join(&golden_ids(golden, "input_ids"));
    let args = ["logits", "-m", model, "--device", "cpu", "--dtype", "f32", "--tokens", &ids];
    stdout(&[&args[..], &["-o", out.to_str().unwrap()]].concat());
    let file = fs::read(out).unwrap();
    f32s(SafeTensors::deserialize(&file).unwrap().tensor("logits").unwrap().data())
}

/// What transformers computed for the golden.
fn expected(golden: &str) -> Vec<f32> {
    let file = fs::read(Path::new(golden).join("expected.safetensors")).unwrap();
    f32s(SafeTensors::deserialize(&file).unwrap().tensor("logits").unwrap().data())
}

/// `|got - want| / |want|` over all elements.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let pairs = got.iter().zip(want);
    let off = norm(&mut pairs.map(|(&x, &y)| f64::from(x) - f64::from(y)));
    off / norm(&mut want.iter().map(|&y| f64::from(y)))
}

/// The goldens' weights are f16: as such they lose nothing but in the frequencies of RoPE.
#[test]
fn f16_of_every_family_has_the_goldens_logits_and_tokens() {
    let names = [
        "llama-gqa",
        "llama-bias",
        "llama-linear",
        "llama-llama3",
        "mistral-window",
        "phi3",
        "phi3-longrope-long",
        "phi3-partial-rotary",
        "qwen2",
        "qwen2-yarn",
        "qwen3",
        "granite",
        "smollm3",
        "olmo2",
        "olmo3",
        "ministral3",
        "qwen3-moe",
        "mixtral",
        "gemma2",
        "gemma3",
        "gemma3-images",
        "qwen3.5",
        "qwen3.5-moe",
        "granitemoe",
    ];
    for name in names {
        let dir = tempfile::tempdir().unwrap();
        let golden = golden(name);
        let (file, printed) = quantized(&golden, "f16", &dir);
        assert!(printed.contains("16.") && printed.contains("bits a weight"), "{printed}");
        let error = relative_error(&logits(&file, &golden, &dir), &expected(&golden));
        assert!(error < 2e-5, "{name}: {error}");
        let prompt = join(&golden_ids(&golden, "greedy_prompt"));
        let json = generate_json(&[
            "-m",
            &file,
            "--dtype",
            "f32",
            "--tokens",
            &prompt,
            "-n",
            "40",
            "--temp",
            "0",
            "--ignore-eos",
        ]);
        let tokens: Vec<i64> = serde_json::from_value(json["tokens"].clone()).unwrap();
        assert_eq!(tokens, golden_ids(&golden, "greedy_tokens"), "{name}");
    }
}

/// The oracle is gguf-py, by which `make_gguf.py` has made the same files: every key that it wrote,
/// and every tensor.
#[test]
fn keys_and_tensors_are_those_of_llama_cpps_conversion() {
    let names = [
        "llama-bias",
        "llama-llama3",
        "qwen2-yarn",
        "qwen3",
        "phi3-longrope-long",
        "granite",
        "smollm3",
        "olmo2",
        "olmo3",
        "qwen3-moe",
        "mixtral",
        "gemma2",
        "gemma3",
        "qwen3.5",
        "qwen3.5-moe",
        "granitemoe",
    ];
    for name in names {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = quantized(&golden(name), "f16", &dir);
        let got = Checkpoint::open(file).unwrap();
        let want = Checkpoint::open(golden(&format!("gguf/{name}.gguf"))).unwrap();
        let (Origin::Gguf { metadata: got_keys }, Origin::Gguf { metadata: want_keys }) =
            (got.origin(), want.origin())
        else {
            panic!("both are GGUF")
        };
        for (key, value) in &want_keys.0 {
            assert_eq!(got_keys.get(key), Some(value), "{name} {key}");
        }
        assert_eq!(got.tensors().count(), want.tensors().count());
        for want in want.tensors() {
            let got = got.tensor(want.name).unwrap();
            assert_eq!((got.shape, got.dtype), (want.shape, want.dtype), "{name} {}", want.name);
            if want.name == "rope_freqs.weight" || want.name.ends_with(".ssm_a") {
                // numpy made these.
                assert!(relative_error(&f32s(got.bytes), &f32s(want.bytes)) < 2e-7);
            } else {
                assert!(got.bytes == want.bytes, "{name} {}", want.name);
            }
        }
    }
}

/// The error grows as the bits shrink, and stays what these bits make it.
#[test]
fn each_type_has_its_error_and_its_size() {
    let golden = golden("phi3");
    let want = expected(&golden);
    let bounds = [
        ("f16", 2e-5, 16.1),
        ("q8_0", 0.02, 8.6),
        ("q6_k", 0.04, 8.6),
        ("q5_k_m", 0.10, 7.2),
        ("q4_k_m", 0.15, 6.7),
        ("q4_0", 0.20, 5.6),
    ];
    let mut before = 0.0;
    for (mix, most, bits) in bounds {
        let dir = tempfile::tempdir().unwrap();
        let (file, printed) = quantized(&golden, mix, &dir);
        let error = relative_error(&logits(&file, &golden, &dir), &want);
        assert!(error < most && error > 0.5 * before, "{mix}: {error}, {before} before it");
        before = error;
        let line = printed.lines().last().unwrap();
        let (_, said) = line.rsplit_once("; ").unwrap();
        let said: f64 = said.split_once(' ').unwrap().0.parse().unwrap();
        assert!(said < bits && said > 0.8 * bits, "{line}");
        let file_bytes = fs::metadata(&file).unwrap().len() as f64;
        let mb: f64 = line.split(": ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!((file_bytes / 1e6 - mb).abs() < 0.1, "{line}: {file_bytes} bytes");
    }
}

/// What is in the type already is copied; metadata too.
#[test]
fn a_gguf_file_is_quantised_again() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = quantized(QWEN3, "q8_0", &dir);
    let second = dir.path().join("again.gguf").to_str().unwrap().to_owned();
    let printed = stdout(&["quantize", &first, &second, "--type", "q8_0"]);
    assert!(!printed.contains("already"), "{printed}");
    assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
    let printed = stdout(&["quantize", &first, &second, "--type", "q4_0"]);
    assert!(printed.contains("quantised already"), "{printed}");
}

/// What llama-quantize made of golden models: every byte of their matrices, and what it recorded.
/// Files of mixtures of experts are also from safetensors, where each expert's matrices are tensors
/// of their own.
#[test]
fn a_file_has_the_tensors_of_llama_quantizes() {
    let fixtures = format!("{}/../tests/fixtures", env!("CARGO_MANIFEST_DIR"));
    let json = fs::read(format!("{fixtures}/quantized_model.json")).unwrap();
    let all: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&json).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf").to_str().unwrap().to_owned();
    let sources = |name: &str| {
        let files = [format!("gguf/{name}.gguf"), name.to_owned()].map(|file| golden(&file));
        files.into_iter().take(if name == "qwen3" { 1 } else { 2 })
    };
    let from_each = all.iter().flat_map(|(name, want)| {
        sources(name.split(' ').next().unwrap()).map(move |model| (model, name, want))
    });
    for (model, name, want) in from_each {
        let words: Vec<&str> = name.split(' ').collect();
        let mix = words[1].to_lowercase();
        let mut args = vec!["quantize", &model, &out, "--type", &mix];
        let importance = match words[0] {
            "qwen3" => "importance.dat".to_owned(),
            experts => format!("importance-{experts}.gguf"),
        };
        let matrix = format!("{fixtures}/{importance}");
        if words.len() > 2 {
            args.extend(["--imatrix", &matrix]);
        }
        let printed = stdout(&args);
        let got = Checkpoint::open(&out).unwrap();
        for (tensor, want) in want["tensors"].as_object().unwrap() {
            let entry = got.tensor(tensor).unwrap();
            assert_eq!(entry.dtype.to_string(), want[0].as_str().unwrap(), "{name} {tensor}");
            let hash = Sha256::digest(entry.bytes);
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hash, want[1].as_str().unwrap(), "{name} {tensor}: other bytes");
        }
        let Origin::Gguf { metadata } = got.origin() else { panic!("a GGUF file") };
        let mut recorded = want["recorded"].as_object().unwrap().clone();
        if let Some(file) = recorded.remove("quantize.imatrix.file") {
            assert_eq!(file, *importance);
            let got = format!("{:?}", metadata.get("quantize.imatrix.file").unwrap());
            assert!(got.contains(&importance), "{got}");
            let is_weighted = !matches!(&*mix, "q8_0" | "mxfp4_moe" | "f16");
            // The other of the two is tied to the output there, and in Q8_0.
            let count = if words[0] == "qwen3" { 1 } else { 2 };
            let note = format!("nothing on {count} of the tensors");
            assert_eq!(printed.contains(&note), is_weighted, "{printed}");
        }
        for (key, want) in &recorded {
            let got = metadata.get(key).unwrap();
            let got = got.as_u64().map_or_else(|| format!("{got:?}"), |count| count.to_string());
            assert!(got.contains(want.to_string().trim_matches('"')), "{name} {key}: {got}");
        }
    }
}

#[test]
fn a_split_model_stays_split() {
    const COUNT: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, no: usize| -> String {
        let file = format!("{name}-{no:05}-of-{COUNT:05}.gguf");
        dir.path().join(file).to_str().unwrap().to_owned()
    };
    let whole = Checkpoint::open(golden("gguf/qwen3.gguf")).unwrap();
    let tensors: Vec<_> = whole.tensors().collect();
    let Origin::Gguf { metadata } = whole.origin() else { panic!("a GGUF file") };
    for (no, tensors) in tensors.chunks(tensors.len().div_ceil(COUNT)).enumerate() {
        let mut metadata = if no == 0 { metadata.clone() } else { Metadata::default() };
        metadata.0.extend([
            ("split.no".to_owned(), Value::U16(no as u16)),
            ("split.count".to_owned(), Value::U16(COUNT as u16)),
        ]);
        let describe = |tensor: &TensorEntry| {
            let TensorDtype::Known(dtype) = *tensor.dtype else { panic!("it is F16 or F32") };
            TensorDescription { name: tensor.name.to_owned(), shape: tensor.shape.to_vec(), dtype }
        };
        let descriptions: Vec<_> = tensors.iter().map(describe).collect();
        let file = fs::File::create(path("in", no + 1)).unwrap();
        let mut writer = Writer::new(file, &metadata, &descriptions).unwrap();
        tensors.iter().for_each(|tensor| writer.tensor(tensor.bytes).unwrap());
        writer.finish().unwrap();
    }

    let one = dir.path().join("one.gguf").to_str().unwrap().to_owned();
    let rule = ["--type", "q4_0", "--tensor-type", "attn_v=Q5_1"];
    stdout(&[&["quantize", &path("in", 2), &one][..], &rule].concat());
    let out = dir.path().join("out.gguf");
    let split = ["quantize", &path("in", 1), out.to_str().unwrap(), "--keep-split"];
    stdout(&[&split[..], &rule].concat());
    assert!(!out.exists());
    let (one, got) = (Checkpoint::open(one).unwrap(), Checkpoint::open(path("out", 3)).unwrap());
    assert_eq!(got.tensors().count(), tensors.len());
    for (number, tensor) in tensors.iter().enumerate() {
        let (one, got) = (one.tensor(tensor.name).unwrap(), got.tensor(tensor.name).unwrap());
        assert!(one.dtype == got.dtype && one.bytes == got.bytes, "{}", tensor.name);
        let is_v = tensor.name.contains("attn_v");
        assert_eq!(got.dtype.to_string() == "Q5_1", is_v, "{}", tensor.name);
        let no = number / tensors.len().div_ceil(COUNT) + 1;
        assert_eq!(got.file, Path::new(&path("out", no)), "{}", tensor.name);
    }
    // Without the option what was split is one file: the metadata does not say otherwise.
    let Origin::Gguf { metadata } = one.origin() else { panic!("a GGUF file") };
    assert!(metadata.0.keys().all(|key| !key.starts_with("split.")));

    let same = run(&["quantize", &path("in", 1), &path("in", 1), "--type", "q8_0"]);
    assert!(stderr(&same).contains("the model that is read"), "{}", stderr(&same));
    let same = run(&[
        "quantize",
        &path("in", 1),
        &dir.path().join("in").display().to_string(),
        "--keep-split",
    ]);
    assert!(stderr(&same).contains("the model that is read"), "{}", stderr(&same));
}

/// Refused in a line or two that say `expected`, with exit code 2, and nothing left behind.
fn refuses(input: &str, output: &Path, mix: &str, expected: &str) {
    refuses_options(input, output, &["--type", mix], expected);
}

fn refuses_options(input: &str, output: &Path, options: &[&str], expected: &str) {
    let existed = output.exists();
    let result = run(&[&["quantize", input, output.to_str().unwrap()], options].concat());
    let error = stderr(&result);
    assert_eq!(result.status.code(), Some(2), "{error}");
    assert!(error.contains(expected), "wanted {expected:?} in: {error}");
    assert!((1..=2).contains(&error.lines().count()), "{error}");
    assert_eq!(output.exists(), existed);
    let Some(Ok(files)) = output.parent().map(fs::read_dir) else { return };
    for file in files {
        let name = file.unwrap().file_name();
        assert!(!name.to_string_lossy().contains(".partial"), "{name:?} is left");
    }
}

/// Weights that come quantised: dequantised, then in the blocks of GGUF.
#[test]
fn a_model_that_came_quantised_is_quantised() {
    let ids = "1,2,3,4,5,6,7,8";
    let logits = |model: &str, dir: &TempDir| {
        let out = dir.path().join("logits.safetensors");
        let args = ["logits", "-m", model, "--device", "cpu", "--dtype", "f32", "--tokens", ids];
        stdout(&[&args[..], &["-o", out.to_str().unwrap()]].concat());
        let file = fs::read(out).unwrap();
        f32s(SafeTensors::deserialize(&file).unwrap().tensor("logits").unwrap().data())
    };
    for name in ["fp8-block", "awq", "gptq"] {
        let dir = tempfile::tempdir().unwrap();
        let model = format!("{}/../tests/fixtures/packed/{name}", env!("CARGO_MANIFEST_DIR"));
        let (file, printed) = quantized(&model, "q8_0", &dir);
        assert!(printed.contains("7 tensors were quantised already"), "{printed}");
        let error = relative_error(&logits(&file, &dir), &logits(&model, &dir));
        assert!(error > 1e-5 && error < 0.05, "{name}: {error}");
        let has_bias = |tensor: TensorEntry| tensor.name.ends_with(".bias");
        assert!(!Checkpoint::open(file).unwrap().tensors().any(has_bias), "{name}");
    }
}

#[test]
fn bad_input_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = |name: &str| -> PathBuf { dir.path().join(name) };
    refuses(LLAMA, &out("x.gguf"), "q9_9", "q4_k_m");
    refuses(LLAMA, &out("missing/x.gguf"), "q8_0", "no such directory");
    refuses(LLAMA, dir.path(), "q8_0", "not a regular file");
    refuses("no-such-model", &out("x.gguf"), "q8_0", "no such file");
    refuses(&golden("qwen2-window"), &out("x.gguf"), "q8_0", "sliding windows that differ");

    let out_file = out("x.gguf");
    let refuses_to = |options: &[&str], expected: &str| {
        refuses_options(LLAMA, &out_file, options, expected);
    };
    refuses_to(&["--tensor-type", "attn_v=q9_9"], "no type `q9_9`");
    refuses_to(&["--tensor-type", "attn_v"], "NAME=TYPE");
    refuses_to(&["--keep-split"], "only a GGUF model stays split");
    let text = format!("{}/../tests/fixtures/novel.txt", env!("CARGO_MANIFEST_DIR"));
    refuses_to(&["--imatrix", &text], "not an importance matrix");
    refuses_to(&["--imatrix", "no-such-file"], "no-such-file");
    let matrix = format!("{}/../tests/fixtures/importance.dat", env!("CARGO_MANIFEST_DIR"));
    refuses_to(&["--imatrix", &matrix], "that of another model");

    let file = out("whole.gguf");
    let path = file.to_str().unwrap();
    stdout(&["quantize", LLAMA, path, "--type", "q8_0"]);
    refuses(path, &file, "q4_0", "the model that is read");
    let bytes = fs::read(&file).unwrap();
    fs::write(out("cut.gguf"), &bytes[..bytes.len() - 1000]).unwrap();
    refuses(out("cut.gguf").to_str().unwrap(), &out("x.gguf"), "q4_0", "truncated");
}

#[test]
fn a_weight_without_a_place_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let nan = Copy::new().weights(|mut bytes| {
        // The last element of the file.
        let end = bytes.len();
        bytes[end - 2..].copy_from_slice(&0x7E00u16.to_le_bytes());
        bytes
    });
    refuses(nan.path(), &dir.path().join("x.gguf"), "q8_0", "holds NaN, which");
}
