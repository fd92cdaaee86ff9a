//! Every bad input is refused in one or two lines: exit code 2 for what the user gave, 1 for what the machine lacks.

use crate::support::{Copy, LLAMA, halfwarp, run, stderr};
use serde_json::json;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Checks that the user is told `expected` in one or two lines, and that nothing else is printed.
fn assert_refused(output: &Output, expected: &str) {
    assert!(!expected.is_empty(), "an expectation that every message meets");
    assert_ends(output, 2, &[expected]);
}

/// Checks the exit code, and that one or two lines hold one of `expected`.
fn assert_ends(output: &Output, code: i32, expected: &[&str]) {
    let error = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!((1..=2).contains(&error.lines().count()), "{error}");
    let is_said = expected.iter().any(|&part| error.contains(part));
    assert!(is_said, "wanted one of {expected:?} in: {error}");
    assert!(!error.contains("panicked"), "{error}");
    assert!(output.stdout.is_empty(), "{:?}", output.stdout);
}

fn refuses(args: &[&str], expected: &str) {
    assert_refused(&run(args), expected);
}

/// Checks that the machine is found to have no driver, or no such GPU.
fn misses_gpu_99(args: &[&str]) {
    assert_ends(&run(args), 1, &["no NVIDIA driver", "no device cuda:99"]);
}

fn generate_refuses(model: &str, expected: &str) {
    refuses(
        &["generate", "--device", "cpu", "-m", model, "--tokens", "1,2,3", "-n", "1"],
        expected,
    );
}

#[test]
fn rejects_wrong_arguments() {
    refuses(&["generate", "--stop", "", "-p", "a"], "--stop");
    refuses(&["generate", "-n", "-3", "-p", "a"], "-1 for no limit");
    refuses(&["generate", "-t", "x", "-p", "a"], "--threads");
    refuses(&["generate", "--logit-bias", "1", "-p", "a"], "42=-1.5");
    refuses(&["generate", "-f", "a", "-p", "b"], "cannot be used with");
    refuses(&["generate", "-m", LLAMA, "--tokens", "1,x"], "--tokens");
    refuses(&["generate", "-m", LLAMA, "--tokens", "-1"], "-1");
    refuses(&["generate", "-m", LLAMA, "-p", "a", "--tokens", "1"], "cannot be used with");
    refuses(&["generate", "-m", LLAMA, "-p", "a", "--system", "b"], "--chat");
    for share in ["0", "-0.1", "1.01", "NaN"] {
        let share = format!("--gpu-memory-utilization={share}");
        refuses(&["generate", "-m", LLAMA, "--tokens", "1", &share], "above 0, and at most 1");
    }
    refuses(&["generate", "--gpu-memory-utilization", "90%"], "90%");
    refuses(&["generate", "--cache-type-k", "q5_0"], "q8_0");
    refuses(&["generate", "--kv-cache-dtype", "fp8", "--cache-type-k", "f16"], "cannot be used");
    refuses(&["validate", "--candidate", "f16+kv=q5_0"], "kv=TYPE");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/qwen2-yarn");
    let small_heads = ["generate", "--device", "cpu", "-m", model, "--tokens", "1"];
    for (option, kept) in [("k", "the K cache in q8_0"), ("v", "the V cache in q8_0")] {
        let option = format!("--cache-type-{option}");
        let args = [&small_heads[..], &[&option, "q8_0"]].concat();
        refuses(&args, kept);
        refuses(&args, &format!("{option} fp8"));
    }
    refuses(&["generate", "--nonsense"], "--nonsense");
    refuses(&["nonsense"], "nonsense");
    refuses(&["bench", "kernels"], "--op");
    refuses(&["bench", "kernels", "--op", "gemm", "--shape", "1,0,3"], "three numbers above 0");
    refuses(&["bench", "kernels", "--op", "gemm", "--shape", "1,2"], "three numbers above 0");
}

#[test]
fn rejects_benches_of_models_that_cannot_be() {
    let with = |extra: &[&str], expected: &str| {
        refuses(&[&["bench", "-m", LLAMA, "--device", "cpu"], extra].concat(), expected);
    };
    with(&["-p", "0", "-n", "0"], "there is nothing to time");
    with(&["-n", "1,x"], "--n-gen");
    with(&["--pg", "512"], "such as 512,128");
    with(&["--pg", "0,128"], "such as 512,128");
    with(&["-d", "-1"], "-1");
    with(&["-r", "0"], "--repetitions");
    with(&["--sequences", "0"], "--sequences");
    with(&["-o", "xml"], "md, csv, json, jsonl");
    with(&["-c", "511", "-p", "512"], "pp512 needs 512 positions");
    // The first test would fit.
    with(&["-p", "1,9999999999"], "pp9999999999 needs a context of 9999999999 positions");
    with(&["-d", "65"], "expected a multiple of 64");
    with(&["-d", "18446744073709551552"], "18446744073709551615 positions");
    with(&["-n", "1", "--sequences", "18446744073709551615"], "18446744073709551615");
    with(&["kernels", "--op", "gemm"], "cannot be used with");
    let long = |extra: &[&str], expected: &str| {
        let args = ["bench", "long-context", "-m", LLAMA, "--device", "cpu"];
        refuses(&[&args[..], extra].concat(), expected);
    };
    long(&["-c", "513"], "llama-gqa allows at most 512");
    long(&["-c", "20", "-n", "7"], "need at least 22");
    long(&["-n", "0"], "--n-gen");
    with(&["--baseline", "nowhere"], "--baseline nowhere: ");
}

#[test]
fn rejects_benches_of_kernels_that_cannot_be() {
    let with = |op: &str, extra: &[&str], expected: &str| {
        refuses(&[&["bench", "kernels", "--op", op], extra].concat(), expected);
    };
    let (prefill, decode) = ("attention_prefill", "attention_decode");
    with("attention", &[], "gemm, attention_prefill, attention_decode");
    with("gemm,", &[], "--op");
    with(prefill, &["--shape", "1,8,8,512"], "such as 1,14,2,4096,64,causal");
    with(prefill, &["--shape", "1,8,0,512,64"], "five numbers above 0");
    with(prefill, &["--shape", "1,8,8,512,64,half"], "causal or full");
    with(decode, &["--shape", "1,8,8,512,64,full"], "such as 1,14,2,8192,64");
    with(decode, &["--shape", "1,7,2,512,64"], "the KV heads do not divide");
    with(decode, &["--shape", "1048576,8,8,1048576,64"], "more than 2^40");
    with(prefill, &["--shape", "18446744073709551615,8,8,512,64"], "more than 2^40");
    with("gemm,attention_decode", &["--shape", "1,2,3"], "--op has several");
    with(decode, &["--gemm", "cublas"], "--op gemm alone");
    with(prefill, &["--dtype", "f16", "--accumulate", "f16"], "--op gemm alone");
    for op in [prefill, decode, "gemm,attention_prefill,attention_decode"] {
        misses_gpu_99(&["bench", "kernels", "--op", op, "--dtype", "f16", "--gpu", "99"]);
    }
    misses_gpu_99(&[
        "bench",
        "kernels",
        "--op",
        prefill,
        "--gpu",
        "99",
        "--shape",
        "1,1,1,1,8,full",
    ]);
}

/// Read before the GPU is looked for.
#[test]
fn rejects_a_baseline_that_holds_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    let file = path.to_str().unwrap();
    let bench = ["bench", "kernels", "--op", "gemm", "--gpu", "99", "--baseline", file];
    refuses(&bench, "No such file");
    for (text, expected) in [("", "no row"), ("{}", "line 1: a row has"), ("[1", "line 1: EOF")] {
        fs::write(&path, text).unwrap();
        refuses(&bench, expected);
    }
    fs::write(&path, r#"{"op": "gemm", "m": 1, "us": 2.0, "min_us": 1.9}"#).unwrap();
    misses_gpu_99(&bench);
    for recorded in ["gemm_f16", "gemm_f32"] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/record/nvidia-h200");
        misses_gpu_99(&[&bench[..7], &[&format!("{folder}/{recorded}.jsonl")]].concat());
    }
}

#[test]
fn rejects_sampling_values_out_of_range() {
    let with = |flag: &str, value: &str, expected: &str| {
        refuses(&["generate", "-m", LLAMA, "--tokens", "1", &format!("{flag}={value}")], expected);
    };
    with("--temp", "-1", "temperature");
    with("--temp", "NaN", "temperature");
    with("--top-p", "1.5", "top-p");
    with("--min-p", "2", "min-p");
    with("--repeat-penalty", "0", "repetition penalty");
    with("--presence-penalty", "3", "presence penalty");
    with("--frequency-penalty", "-3", "frequency penalty");
    with("--logit-bias", "1=200", "200");
    with("--logit-bias", "256=1", "256");
}

#[test]
fn rejects_a_device_that_is_not_there() {
    let on = |device| ["generate", "-m", LLAMA, "--tokens", "1", "--device", device];
    refuses(&on("gpu"), "auto, cpu, cuda, cuda:N, cuda:N,M,... or emulated");
    misses_gpu_99(&on("cuda:99"));
}

#[test]
fn rejects_types_that_nothing_computes_in() {
    let with =
        |dtype| ["generate", "--device", "cpu", "-m", LLAMA, "--tokens", "1", "--dtype", dtype];
    refuses(&with("f8"), "auto, f32, f16, bf16");
    refuses(&with("F16"), "'F16'");
}

/// cuBLAS is refused by name where it cannot be: nothing else takes its place.
#[test]
fn rejects_cublas_where_it_cannot_be() {
    let with = |extra: &[&str], expected: &str| {
        refuses(
            &[&["generate", "-m", LLAMA, "--tokens", "1", "-n", "1"], extra].concat(),
            expected,
        );
    };
    with(&["--device", "cpu", "--gemm", "cublas"], "needs an NVIDIA GPU, and this runs on the CPU");
    with(&["--device", "cpu", "--gemm", "cublas-f16"], "--device cuda, or leave --gemm out");
    with(&["--device", "emulated", "--gemm", "cublas"], "runs on the emulator");
    misses_gpu_99(&[
        "generate", "-m", LLAMA, "--tokens", "1", "--device", "cuda:99", "--gemm", "cublas",
    ]);
    with(&["--device", "cpu", "--gemm", "mkl"], "halfwarp, cublas, cublas-f16");
    // What is wrong with the request is said before the device is looked for.
    let f32 = ["--device", "cuda:99", "--gemm", "cublas-f16", "--dtype", "f32"];
    with(&f32, "operands in F16 alone, and these are in F32");
    let bf16 = ["--device", "cuda:99", "--gemm", "cublas-f16", "--dtype", "bf16"];
    with(&bf16, "use --dtype f16, or --gemm cublas");
    refuses(
        &["bench", "kernels", "--op", "gemm", "--dtype", "bf16", "--gemm", "cublas-f16"],
        "use --dtype f16",
    );
    misses_gpu_99(&["bench", "kernels", "--op", "gemm", "--gemm", "cublas", "--gpu", "99"]);
    for command in ["chat", "logits", "perplexity"] {
        let output = run(&[command, "--help"]);
        assert!(String::from_utf8(output.stdout).unwrap().contains("--gemm"), "{command}");
    }
}

#[test]
fn rejects_accumulators_in_f16_where_they_cannot_be() {
    let generate = ["generate", "-m", LLAMA, "--tokens", "1", "-n", "1", "--accumulate", "f16"];
    let with = |extra: &[&str], expected: &str| refuses(&[&generate, extra].concat(), expected);
    with(&["--device", "emulated", "--dtype", "f32"], "need operands in F16, these are in F32");
    with(&["--device", "cuda:99", "--dtype", "bf16"], "use --dtype f16, or leave --accumulate out");
    with(&["--device", "cpu", "--dtype", "f16"], "--device cuda or emulated, or leave --acc");
    with(&["--device", "cuda:99", "--gemm", "cublas", "--dtype", "f16"], "use --gemm cublas-f16");
    let bench = ["bench", "kernels", "--op", "gemm", "--accumulate"];
    refuses(&[&bench[..], &["f16", "--dtype", "bf16"]].concat(), "these are in BF16");
    refuses(&[&bench[..], &["bf16"]].concat(), "f32, f16");
}

#[test]
fn rejects_a_target_where_it_cannot_be() {
    let generate = ["generate", "-m", LLAMA, "--tokens", "1", "-n", "1"];
    let with = |extra: &[&str], expected: &str| refuses(&[&generate, extra].concat(), expected);
    with(&["--device", "cpu", "--target", "sm_80"], "is for GPU kernels, and this runs on the CPU");
    with(&["--device", "cpu", "--target", "sm_80"], "or leave --target out");
    with(&["--target", "sm_70"], "sm_80, sm_90a");
    let bench = ["bench", "kernels", "--op", "gemm", "--gpu", "99"];
    let with = |extra: &[&str], expected: &str| refuses(&[&bench, extra].concat(), expected);
    misses_gpu_99(&[&bench[..], &["--target", "sm_80"]].concat());
    with(&["--target", "sm_80", "--gemm", "cublas"], "leave --target or --gemm out");
    with(&["--target", "90"], "sm_80, sm_90a");
}

#[test]
fn the_default_gemm_runs_on_every_device() {
    let args = ["generate", "--device", "cpu", "-m", LLAMA, "--tokens", "1", "-n", "1"];
    let output = run(&[&args[..], &["--gemm", "halfwarp"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
}

/// 2^17 in the first weight of a layer that is stored in bf16: beyond f16, where a run in bf16 has room.
#[test]
fn rejects_weights_that_the_type_cannot_hold() {
    const DOWN: &str = "model.layers.0.mlp.down_proj.weight";
    let mut start = 0;
    let spoilt = Copy::new().header(|header| {
        header[DOWN]["dtype"] = json!("BF16");
        start = header[DOWN]["data_offsets"][0].as_u64().unwrap() as usize;
    });
    let spoilt = spoilt.weights(|mut bytes| {
        let header_len = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        bytes[8 + header_len + start..][..2].copy_from_slice(&0x4800u16.to_le_bytes());
        bytes
    });
    let with = |dtype| {
        let args = ["generate", "--device", "cpu", "-m", spoilt.path(), "--tokens", "1", "-n", "1"];
        run(&[&args[..], &["--dtype", dtype]].concat())
    };
    let refused = with("f16");
    for part in [DOWN, "131072", "F16", "--dtype bf16"] {
        assert_refused(&refused, part);
    }
    for dtype in ["bf16", "f32"] {
        let output = with(dtype);
        assert!(output.status.success(), "{dtype}: {}", stderr(&output));
    }
}

#[test]
fn rejects_prompts_that_the_model_cannot_take() {
    let with = |extra: &[&str], expected: &str| {
        refuses(&[&["generate", "--device", "cpu", "-m", LLAMA], extra].concat(), expected);
    };
    with(&["-p", "text"], "--tokens");
    with(&["--tokens", "1", "--stop", "a"], "no tokenizer");
    with(&["--chat", "-p", "text"], "tokenizer");
    with(&["--tokens", "1,2,256"], "256");
    with(&["--tokens", "1,2,3,4,5", "-c", "4"], "context");
    with(&["--tokens", "1", "-c", "100000"], "100000");
}

#[test]
fn rejects_models_that_are_not_there() {
    generate_refuses("/no/such/model", "/no/such/model");
    generate_refuses("no-such-name", "smollm2-135m-instruct");
    let empty = tempfile::tempdir().unwrap();
    generate_refuses(empty.path().to_str().unwrap(), "model.safetensors");
    let fetch = halfwarp(&["generate", "-p", "text"]).env("HALFWARP_CACHE", empty.path()).output();
    assert_refused(&fetch.unwrap(), "halfwarp fetch");
    let output = halfwarp(&["fetch", "no-such-name"]).env("HALFWARP_CACHE", empty.path()).output();
    assert_refused(&output.unwrap(), "smollm2-135m-instruct");
}

#[test]
#[cfg(unix)]
fn a_model_that_cannot_be_reached_is_not_called_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop");
    std::os::unix::fs::symlink(&path, &path).unwrap();
    generate_refuses(path.to_str().unwrap(), "Too many levels of symbolic links");
}

#[test]
fn rejects_a_spoilt_configuration() {
    let spoilt = Copy::new().config(|config| drop(config.remove("hidden_size")));
    generate_refuses(spoilt.path(), "hidden_size");
    let spoilt =
        Copy::new().config(|config| drop(config.insert("model_type".into(), json!("mamba"))));
    generate_refuses(spoilt.path(), "mamba");
    let spoilt = Copy::new();
    fs::write(spoilt.file("config.json"), "{").unwrap();
    generate_refuses(spoilt.path(), "config.json");
}

#[test]
fn rejects_spoilt_safetensors() {
    let spoilt = Copy::new().weights(|bytes| bytes[..bytes.len() / 2].to_vec());
    generate_refuses(spoilt.path(), "model.safetensors");
    let spoilt = Copy::new().weights(|bytes| bytes[..4].to_vec());
    generate_refuses(spoilt.path(), "model.safetensors");
    let spoilt = Copy::new().weights(|mut bytes| {
        bytes[..8].copy_from_slice(&(1u64 << 60).to_le_bytes());
        bytes
    });
    generate_refuses(spoilt.path(), "model.safetensors");
}

#[test]
fn rejects_hostile_headers() {
    const NORM: &str = "model.norm.weight";
    let with = |key: &str, value: serde_json::Value, expected: &str| {
        let spoilt = Copy::new().header(|header| header[NORM][key] = value);
        generate_refuses(spoilt.path(), expected);
    };
    with("data_offsets", json!([0, 256]), "the data before it ends at 256");
    with("data_offsets", json!([u64::MAX - 255, u64::MAX]), "has its data at 18446744073709551360");
    with("shape", json!([1u64 << 60, 1u64 << 60]), "`model.norm.weight` has shape");
    with("dtype", json!("I8"), "is stored as I8");
    with("dtype", json!("X9"), "is stored as X9");
    let missing = Copy::new().header(|header| {
        let norm = header.remove(NORM).unwrap();
        header.insert("renamed".into(), norm);
    });
    generate_refuses(missing.path(), NORM);
    let reshaped = Copy::new().header(|header| header[NORM]["shape"] = json!([2, 64]));
    generate_refuses(reshaped.path(), NORM);
}

#[test]
fn rejects_spoilt_gguf() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let with = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        generate_refuses(path.to_str().unwrap(), "model.gguf");
    };
    let header = |tensors: u64, values: u64| {
        [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &values.to_le_bytes()].concat()
    };
    with(b"");
    with(b"no model at all, but a text of some length");
    with(&header(1 << 60, 0));
    with(&header(0, 1 << 60));
    with(&header(0, 0));
}

#[test]
fn logits_and_perplexity_name_the_file_that_is_wrong() {
    let missing = "/no/such/directory/out.safetensors";
    refuses(&["logits", "-m", LLAMA, "--tokens", "1", "-o", missing], "/no/such/directory");
    let dir = Path::new(LLAMA).to_str().unwrap();
    refuses(&["logits", "-m", LLAMA, "--tokens", "1", "-o", dir], "not a regular file");
    refuses(&["perplexity", "-m", LLAMA, "-f", "/no/such/text"], "/no/such/text");
}

#[test]
#[cfg(unix)]
fn logits_replace_no_pipe() {
    use std::os::unix::fs::FileTypeExt;
    let dir = tempfile::tempdir().unwrap();
    let pipe = make_pipe(dir.path().join("out"));
    let out = pipe.to_str().unwrap();
    refuses(&["logits", "--device", "cpu", "-m", LLAMA, "--tokens", "1", "-o", out], "regular");
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo(), "the pipe is gone");
}

#[test]
#[cfg(unix)]
fn waits_for_no_pipe_in_the_place_of_a_file() {
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        let spoilt = Copy::new();
        // Not there, or not needed any more.
        let _ = fs::remove_file(spoilt.file(name));
        make_pipe(spoilt.file(name));
        generate_refuses(spoilt.path(), name);
    }
}

#[cfg(unix)]
fn make_pipe(path: PathBuf) -> PathBuf {
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// What is wrong with a request is said before the device is looked for and the weights are loaded.
#[test]
fn checks_a_request_before_the_device_is_opened() {
    let with = |command: &str, extra: &[&str], expected: &str| {
        refuses(&[&[command, "--device", "cuda:99", "-m", LLAMA], extra].concat(), expected);
    };
    with("generate", &["--tokens", "1,2,256"], "256");
    with("generate", &["--tokens", "1,2,3", "-c", "2"], "context");
    with("generate", &["--tokens", "1", "--temp=-1"], "temperature");
    with("logits", &["--tokens", "1,2,256", "-o", "out.safetensors"], "256");
}

#[test]
#[cfg(unix)]
fn a_models_path_need_not_be_utf_8() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let missing = OsStr::from_bytes(b"/no/such/\xFF");
    let output = halfwarp(&["generate", "--tokens", "1", "-m"]).arg(missing).output().unwrap();
    assert_refused(&output, "no such file or directory");
}

#[test]
fn chat_refuses_what_is_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lines");
    fs::write(&file, b"\xFF\n").unwrap();
    let output = halfwarp(&["chat", "--device", "cpu"]).stdin(File::open(file).unwrap()).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("UTF-8"), "{}", stderr(&output));
}

#[test]
fn ptx_names_what_there_is() {
    refuses(&["ptx", "show", "no_such_kernel"], "halfwarp ptx list");
    refuses(&["ptx", "show", "sample_maximum_f32", "--target", "sm_35"], "sm_90a");
    refuses(&["ptx", "stats", "sample_maximum_f32", "--target", "sm_35"], "sm_90a");
    refuses(&["ptx", "stats", "no_such_kernel"], "halfwarp ptx list");
    refuses(&["ptx", "stats", "gemv_[f16"], "gemv_[f16 is no pattern");
    refuses(&["ptx", "stats", "sample_maximum", "--csv", "--jsonl"], "cannot be used with");
    refuses(&["ptx", "check", "--family", "gem"], "halfwarp ptx list");
    let output = halfwarp(&["ptx", "check"]).env("HALFWARP_PTXAS", "/nonexistent").output();
    assert_refused(&output.unwrap(), "HALFWARP_PTXAS=/nonexistent: no such file");
}

#[test]
fn ptx_diff_and_dump_want_directories_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    refuses(&["ptx", "diff", path], "halfwarp ptx dump DIR");
    refuses(&["ptx", "diff", "/nonexistent"], "cannot read /nonexistent");
    refuses(&["ptx", "diff"], "<OLD>");
    let target = dir.path().join("sm_80");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("k.ptx"), "no PTX").unwrap();
    refuses(&["ptx", "diff", path, "/nonexistent"], "cannot read /nonexistent");
    refuses(&["ptx", "dump", path], "sm_80 is not empty");
    fs::write(target.join("k.ptx"), b"\xFF").unwrap();
    refuses(&["ptx", "diff", path], "k.ptx");
}
