//! `halfwarp bench` of a model: its rows, and their comparison. Times are never looked at.

use crate::support::{Copy, LLAMA, run, stderr, stdout};
use serde_json::{Value, json};
use std::{fs, process::Output};

/// On the CPU, with the model that has no tokenizer.
fn bench(args: &[&str]) -> Output {
    run(&[&["bench", "-m", LLAMA, "--device", "cpu"], args].concat())
}

fn rows(args: &[&str]) -> Vec<Value> {
    let output = bench(&[args, &["-o", "jsonl"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_combination_is_a_row() {
    for more in [&[][..], &["--batch-invariant"]] {
        let tests =
            ["-p", "3,70", "-n", "4", "--pg", "5,2", "-d", "0,64", "--sequences", "1,3", "-r", "2"];
        let rows = rows(&[&tests, more].concat());
        let name =
            |row: &Value| (row["test"].as_str().unwrap().to_owned(), row["sequences"].clone());
        let names: Vec<_> = rows.iter().map(name).collect();
        let mut wanted = Vec::new();
        for sequences in [1, 3] {
            for depth in ["", " @ d64"] {
                for test in ["pp3", "pp70", "tg4", "pp5+tg2"] {
                    wanted.push((format!("{test}{depth}"), json!(sequences)));
                }
            }
        }
        assert_eq!(names, wanted);
        let last = &rows[15];
        let counts = ["n_prompt", "n_gen", "n_depth", "repetitions"].map(|key| last[key].as_u64());
        assert_eq!(counts, [5, 2, 64, 2].map(Some));
        assert_eq!(last["samples_us"].as_array().unwrap().len(), 2);
        assert_eq!((&last["model"], &last["dtype"]), (&json!("llama-gqa"), &json!("f32")));
        assert_eq!(
            (&last["gpu"], &last["batch_invariant"]),
            (&Value::Null, &json!(!more.is_empty()))
        );
        assert!(last["device"].as_str().unwrap().starts_with("CPU, "), "{last}");
    }
}

/// By a count of the elements of the checkpoint.
#[test]
fn weights_are_counted() {
    let file = fs::read(format!("{LLAMA}/model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let tensors = tensors.tensors();
    let count: usize = tensors.iter().map(|(_, t)| t.shape().iter().product::<usize>()).sum();
    let row = |dtype| rows(&["-n", "1", "-r", "1", "--dtype", dtype]).remove(0);
    let (f32, f16) = (row("f32"), row("f16"));
    assert_eq!([&f32["n_params"], &f16["n_params"]], [count; 2]);
    assert_eq!(f32["model_size_bytes"], 4 * count);
    // All but the norms, which are small.
    let bytes = f16["model_size_bytes"].as_u64().unwrap() as usize;
    assert!((2 * count..2 * count + count / 10).contains(&bytes), "{bytes}");
}

#[test]
fn without_tests_there_are_two() {
    let model = Copy::new().config(|config| {
        config.insert("max_position_embeddings".into(), json!(512));
    });
    let table = stdout(&["bench", "-m", model.path(), "--device", "cpu", "-r", "1"]);
    let tests: Vec<_> = table.lines().filter_map(|line| line.split('|').nth(6)).collect();
    assert_eq!(
        tests.iter().map(|test| test.trim()).collect::<Vec<_>>(),
        ["test", "----:", "pp512", "tg128"]
    );
    assert!(table.contains("\n\nbuild: "), "{table}");
}

#[test]
fn a_baseline_finds_what_is_slower() {
    // One repetition has no deviation.
    const TESTS: [&str; 6] = ["-p", "8", "-n", "2", "-r", "1"];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    let beside = |change: fn(&mut Value)| {
        let mut rows = rows(&TESTS);
        rows.iter_mut().for_each(change);
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(&path, lines).unwrap();
        let output = bench(&[&TESTS[..], &["--baseline", path.to_str().unwrap()]].concat());
        assert!(String::from_utf8_lossy(&output.stdout).contains("tg2"), "{}", stderr(&output));
        (output.status.code(), stderr(&output))
    };
    let (code, said) = beside(|row| row["avg_us"] = json!(1e-9));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.ends_with("2 of 2 rows are slower\n"), "{said}");
    let (code, said) = beside(|row| row["avg_us"] = json!(1e12));
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = beside(|row| row["dtype"] = json!("f16"));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("pp8 sequences=1: not compared, the baseline's has dtype \"f16\""),
        "{said}"
    );
}

/// The positions that are filled and those before each token are known from the context.
#[test]
fn a_long_context_is_filled_and_counted() {
    let of = |args: &[&str]| {
        let bench = ["bench", "long-context", "-m", LLAMA, "--device", "cpu"];
        let output = run(&[&bench[..], args].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let args = ["-c", "200", "-n", "6", "--chunk", "16", "--kv-cache-dtype", "f16"];
    let json: Value = serde_json::from_str(&of(&[&args[..], &["-o", "json"]].concat())).unwrap();
    // Prompts of 91 and 191 tokens, before ten that are generated; a page of the first stays in the cache.
    assert_eq!([&json["context"], &json["filled"]], [200, 91 + 191 - 64]);
    let decode = |i: usize| ["depth", "tokens"].map(|key| json["decode"][i][key].as_u64());
    assert_eq!([decode(0), decode(1)], [[94, 6], [194, 6]].map(|pair| pair.map(Some)));
    assert_eq!([&json["kv"], &json["dtype"]], ["f16", "f32"]);
    let last = &json["decode"][1];
    let [us, rate] = ["us", "tokens_per_second"].map(|key| last[key].as_f64().unwrap());
    assert!((us * rate - 1e6).abs() < 1.0, "{last}");
    let parts = json["memory"].as_array().unwrap();
    let bytes: u64 = parts.iter().map(|part| part["bytes"].as_u64().unwrap()).sum();
    assert_eq!(json["counted_bytes"], bytes);
    // K and V of four pages of 64 positions in f16, by the model's configuration.
    let config = fs::read(format!("{LLAMA}/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let size = |key: &str| config[key].as_u64().unwrap();
    let row = size("num_key_value_heads") * size("head_dim");
    let kv = parts.iter().find(|part| part["part"] == "KV cache").unwrap();
    assert_eq!(kv["bytes"], 2 * 2 * 256 * row * size("num_hidden_layers"));

    let table = of(&args);
    let rows = ["| filling 218 positions |", "| decoding at 194 |", "| KV cache |"];
    assert!(rows.iter().all(|row| table.contains(row)), "{table}");
}

#[test]
fn the_mission_has_two_types() {
    let output = run(&["bench", "mission", "--dtype", "q8"]);
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    assert!(error.contains("'q8'") && error.contains("[possible values: f16, fp8]"), "{error}");
}
