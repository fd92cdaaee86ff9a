//! What the commands print and write.

use crate::support::{
    LLAMA, QWEN3, f32s, generate_json, golden_ids, halfwarp, i32s, join, run, stderr, stdout,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

const SMOLLM2: &str = include_str!("../goldens/smollm2/expected.json");

fn greedy(n: &str) -> Value {
    let prompt = join(&golden_ids(LLAMA, "greedy_prompt"));
    let options = ["--dtype", "f32", "--temp", "0", "--ignore-eos", "-n", n];
    generate_json(&[&["-m", LLAMA, "--tokens", &prompt], &options[..]].concat())
}

#[test]
fn generate_gives_the_goldens_greedy_tokens() {
    let output = greedy("40");
    let tokens: Vec<i64> = serde_json::from_value(output["tokens"].clone()).unwrap();
    assert_eq!(tokens, golden_ids(LLAMA, "greedy_tokens"));
}

#[test]
fn json_holds_the_request_and_the_answer() {
    let output = greedy("5");
    let prompt: Vec<i64> = serde_json::from_value(output["prompt_tokens"].clone()).unwrap();
    assert_eq!(prompt, golden_ids(LLAMA, "greedy_prompt"));
    assert_eq!(output["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(output["text"], Value::Null, "the golden has no tokenizer");
    assert_eq!(output["finish_reason"], "length");
    for name in ["prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"] {
        assert!(output["timings"][name].as_f64().unwrap() > 0.0, "{name}");
    }
    assert_eq!(output["timings"]["prompt_n"], prompt.len());
    assert_eq!(output["timings"]["predicted_n"], 5);
}

#[test]
fn a_limit_of_0_tokens_generates_nothing() {
    assert_eq!(greedy("0")["tokens"].as_array().unwrap().len(), 0);
}

#[test]
fn the_type_is_chosen_by_a_flag() {
    let prompt = join(&golden_ids(QWEN3, "greedy_prompt"));
    let wanted = golden_ids(QWEN3, "greedy_tokens");
    for dtype in ["f32", "f16", "bf16"] {
        let args = ["-m", QWEN3, "--tokens", &prompt, "--temp", "0", "--ignore-eos", "-n", "20"];
        let output = generate_json(&[&args[..], &["--dtype", dtype]].concat());
        let tokens: Vec<i64> = serde_json::from_value(output["tokens"].clone()).unwrap();
        assert_eq!(tokens, wanted[..20], "{dtype}");
    }
}

#[test]
fn text_without_a_tokenizer_is_the_ids() {
    let prompt = join(&golden_ids(LLAMA, "greedy_prompt"));
    let args = ["generate", "--device", "cpu", "--dtype", "f32", "-m", LLAMA, "--tokens", &prompt];
    let output = run(&[&args[..], &["--temp", "0", "--ignore-eos", "-n", "40"]].concat());
    let expected = format!("{}\n", join(&golden_ids(LLAMA, "greedy_tokens")));
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), expected);
    for part in ["tok/s", "memory: ", "budget: ", "KV cache of 512 positions"] {
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[cfg(feature = "emulator")]
#[test]
fn the_emulator_generates_too() {
    let prompt = join(&golden_ids(QWEN3, "greedy_prompt"));
    let device = ["--device", "emulated", "--dtype", "f32"];
    let args = [&["generate", "-m", QWEN3, "--tokens", &prompt], &device[..]].concat();
    let output = run(&[&args[..], &["--temp", "0", "--ignore-eos", "-n", "2"]].concat());
    let expected = format!("{}\n", join(&golden_ids(QWEN3, "greedy_tokens")[..2]));
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), expected);
    assert!(stderr(&output).contains("emulator"), "{}", stderr(&output));
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let tokens = |seed| {
        let sampling = ["--temp", "1", "--ignore-eos", "-n", "20", "--seed", seed];
        generate_json(&[&["-m", LLAMA, "--tokens", "1,2,3"], &sampling[..]].concat())["tokens"]
            .take()
    };
    let first = tokens("1");
    assert_eq!(first, tokens("1"));
    assert_ne!(first, tokens("2"));
}

#[test]
fn logits_are_the_goldens() {
    // The largest error allowed, and the smallest that is plausible for the type.
    for (dtype, max, min) in [("f32", 1e-4, 0.0), ("f16", 1e-2, 1e-4), ("bf16", 6e-2, 2e-3)] {
        let error = logits_error(dtype);
        assert!((min..max).contains(&error), "{dtype}: {error}");
    }
}

/// Norm of the difference over norm, of the golden's logits.
fn logits_error(dtype: &str) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let ids = golden_ids(QWEN3, "input_ids");
    let (out_arg, tokens) = (out.to_str().unwrap(), join(&ids));
    let args = ["logits", "--device", "cpu", "-m", QWEN3, "--tokens", &tokens, "-o", out_arg];
    stdout(&[&args[..], &["--dtype", dtype]].concat());
    let (got, want) =
        (fs::read(&out).unwrap(), fs::read(Path::new(QWEN3).join("expected.safetensors")).unwrap());
    let got = SafeTensors::deserialize(&got).unwrap();
    let want = SafeTensors::deserialize(&want).unwrap();
    let got_ids = got.tensor("input_ids").unwrap();
    assert_eq!(got_ids.dtype(), safetensors::Dtype::I32);
    assert_eq!(i32s(got_ids.data()).map(i64::from).collect::<Vec<_>>(), ids);
    let (got, want) = (got.tensor("logits").unwrap(), want.tensor("logits").unwrap());
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()));
    let (got, want) = (f32s(got.data()), f32s(want.data()));
    let norm = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
    };
    let difference = norm(&mut got.iter().zip(&want).map(|(g, w)| g - w));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    difference / norm(&mut want.iter().copied())
}

#[test]
fn ptx_list_names_what_ptx_show_shows() {
    let list = stdout(&["ptx", "list"]);
    let mut lines = list.lines();
    assert!(lines.next().unwrap().starts_with("KERNEL"));
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        for target in words.last().unwrap().split(',') {
            let ptx = stdout(&["ptx", "show", words[0], "--target", target]);
            assert!(ptx.contains(&format!(".target {target}\n")), "{ptx}");
            assert!(ptx.contains(&format!(".entry {}(", words[0])), "{ptx}");
        }
    }
}

#[test]
fn doctor_reports_the_machine_and_fails_without_a_model() {
    let cache = tempfile::tempdir().unwrap();
    let mut doctor = halfwarp(&["doctor"]);
    for name in ["HALFWARP_CACHE", "HF_HUB_CACHE"] {
        doctor.env(name, cache.path());
    }
    let output = doctor.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "no model is there to run");
    assert!(stderr(&output).contains("-m PATH"), "{}", stderr(&output));
    let report = String::from_utf8(output.stdout).unwrap();
    for what in ["driver", "CPU", "sm_90a", "cache", "halfwarp fetch"] {
        assert!(report.contains(what), "wanted {what:?} in: {report}");
    }
    assert!(stdout(&["doctor"]).contains("smollm2-135m-instruct fetched"));
}

#[test]
fn a_closed_stdout_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let args = ["generate", "--device", "cpu", "-m", LLAMA, "--tokens", "1", "-n", "50"];
    let output = halfwarp(&args).stdout(writer).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_the_machines_fault() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let args = ["generate", "--device", "cpu", "-m", LLAMA, "--tokens", "1", "-n", "50"];
    let output = halfwarp(&args).stdout(Stdio::from(full)).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("stdout"), "{}", stderr(&output));
}

/// The kernel's signal for a file over the limit would end the process, and leave a part of the
/// file.
#[test]
#[cfg(target_os = "linux")]
fn a_limit_on_file_sizes_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let tokens = join(&[1; 100]);
    let args = ["logits", "--device", "cpu", "-m", LLAMA, "--tokens", &tokens, "-o"];
    let output = limited("ulimit -f 8", &args).arg(&out).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", output.status);
    assert!(stderr(&output).contains("File too large"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The first limit holds the program and not the model's file beside it, the others the file and not the weights as f32.
/// Between them are limits at which the smallest allocation ends the process.
#[test]
#[cfg(target_os = "linux")]
fn a_limit_on_memory_is_the_machines_fault() {
    for kib in ["120000", "450000", "700000"] {
        let args = ["generate", "--device", "cpu", "--dtype", "f32", "-p", "Hello", "-n", "1"];
        let output = limited(&format!("ulimit -v {kib}"), &args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{kib}: {}", stderr(&output));
        let is_said = ["memory", "GiB"].iter().any(|part| stderr(&output).contains(part));
        assert!(is_said, "{kib}: {}", stderr(&output));
        assert!(stderr(&output).lines().count() <= 2, "{kib}: {}", stderr(&output));
    }
}

/// The binary, run by a shell after `limit`.
#[cfg(target_os = "linux")]
fn limited(limit: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_halfwarp")).args(args);
    command
}

#[test]
#[cfg(target_os = "linux")]
fn a_closed_stderr_does_not_fail_a_command() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let args = ["generate", "--device", "cpu", "-m", LLAMA, "--tokens", "1", "-n", "1"];
    let output = halfwarp(&args).stderr(Stdio::from(full)).output().unwrap();
    assert!(output.status.success(), "{}", output.status);
}

#[test]
fn the_default_model_answers_as_the_golden() {
    let expected: Value = serde_json::from_str(SMOLLM2).unwrap();
    let chat = &expected["chats"][1];
    let prompt = chat["prompt"].as_str().unwrap();
    let args = ["--chat", "-p", prompt, "--dtype", "f32", "--temp", "0", "-n", "48"];
    let output = generate_json(&args);
    assert_eq!(output["prompt_tokens"], chat["prompt_tokens"]);
    assert_eq!(output["tokens"], chat["greedy_tokens"]);
    assert_eq!(output["text"], "The capital of France is Paris.");
    assert_eq!(output["finish_reason"], "stop");
}

#[test]
fn the_default_model_tokenizes_and_predicts_as_the_golden() {
    let expected: Value = serde_json::from_str(SMOLLM2).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    for text in expected["texts"].as_array().unwrap() {
        let ids: Vec<i64> = serde_json::from_value(text["tokens"].clone()).unwrap();
        let prompt = text["text"].as_str().unwrap();
        assert_eq!(stdout(&["tokenize", "-p", prompt]), format!("{}\n", join(&ids)));
        // The newline at the end of a file is left out.
        fs::write(&file, format!("{prompt}\n")).unwrap();
        let file = file.to_str().unwrap();
        // A window as long as the model's context.
        let args = ["perplexity", "--device", "cpu", "--dtype", "f32", "-f", file, "-c", "0"];
        let report = stdout(&[&args[..], &["--all-positions"]].concat());
        let nll: f64 = report.split_whitespace().nth(2).unwrap().parse().unwrap();
        let golden = text["mean_nll"].as_f64().unwrap();
        assert!((nll - golden).abs() < 1e-3, "{nll}, golden {golden}");
    }
}

#[test]
fn perplexity_in_16_bits_is_close_to_the_goldens() {
    let expected: Value = serde_json::from_str(SMOLLM2).unwrap();
    let text = &expected["texts"][2];
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, text["text"].as_str().unwrap()).unwrap();
    for (dtype, max) in [("f16", 1e-2), ("bf16", 5e-2)] {
        let file = file.to_str().unwrap();
        let args = ["perplexity", "--device", "cpu", "--dtype", dtype, "-f", file];
        let report = stdout(&[&args[..], &["--all-positions"]].concat());
        let nll: f64 = report.split_whitespace().nth(2).unwrap().parse().unwrap();
        let golden = text["mean_nll"].as_f64().unwrap();
        assert!((nll - golden).abs() < max, "{dtype}: {nll}, golden {golden}");
    }
}

#[test]
fn an_answer_has_the_form_that_was_asked_for() {
    let schema = r#"{"type": "object", "properties": {"sky": {"enum": ["blue", "red"]}}, "required": ["sky"], "additionalProperties": false}"#;
    for seed in ["1", "2", "3"] {
        let args =
            ["--chat", "-p", "What colour is the sky? Answer in JSON.", "-s", seed, "-j", schema];
        let answer = stdout(&[&["generate", "--device", "cpu"], &args[..]].concat());
        let value: Value = serde_json::from_str(&answer).expect(&answer);
        assert!(value == json!({"sky": "blue"}) || value == json!({"sky": "red"}), "{answer}");
    }
    let args =
        ["generate", "--device", "cpu", "-p", "7 * 6 =", "--regex", " [0-9]{2}", "--temp", "0"];
    let answer = stdout(&args);
    assert!(answer.trim().parse::<u32>().is_ok_and(|answer| answer < 100), "{answer}");
    for (args, why) in [
        (["-j", "{"], "the JSON schema: EOF"),
        (["--regex", "("], "the regular expression: "),
        (["-j", "{}"], "no tokenizer"),
    ] {
        let model =
            if why == "no tokenizer" { &["-m", LLAMA, "--tokens", "1"][..] } else { &["-p", "x"] };
        let output = run(&[&["generate", "--device", "cpu"], model, &args[..]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}
