//! `halfwarp profile`: its files, complete and of the same operations.

use crate::support::{EXPERTS, LLAMA, halfwarp, run, stderr, stdout};
use serde_json::Value;
use std::{collections::BTreeSet, fs};

/// On the CPU, in two repetitions.
fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["profile", "-m", LLAMA, "--device", "cpu", "-p", "20", "-r", "2"], more].concat()
}

#[test]
fn profile_writes_every_operation_of_both_steps() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [csv, json, trace, plots] = ["p.csv", "p.json", "trace.json", "plots"].map(path);
    let output = run(&args(&[
        "--dtype",
        "f32",
        "--against",
        "f16",
        "--sequences",
        "2",
        "--csv",
        &csv,
        "--json",
        &json,
        "--chrome-trace",
        &trace,
        "--plot",
        &plots,
    ]));
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for text in ["llama-gqa, f32, CPU", "roofline:", "prefill 20:", "decode 2 @ 20:", "f16 "] {
        assert!(table.contains(text), "no {text} in:\n{table}");
    }

    let profiles: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let profiles = profiles.as_array().unwrap();
    assert_eq!([&profiles[0]["dtype"], &profiles[1]["dtype"]], ["f32", "f16"]);
    let num_ops = |profile: &Value| -> usize {
        let steps = profile["steps"].as_array().unwrap();
        steps.iter().map(|step| step["ops"].as_array().unwrap().len()).sum()
    };
    let csv = fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 1 + num_ops(&profiles[0]) + num_ops(&profiles[1]));
    let layers = profiles[0]["steps"][0]["ops"].as_array().unwrap().iter();
    let layers: BTreeSet<_> = layers.filter_map(|op| op["layer"].as_u64()).collect();
    assert_eq!(layers, (0..layers.len() as u64).collect());
    assert!(layers.len() > 1);

    let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let complete = events.iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(complete, num_ops(&profiles[0]));

    let files: BTreeSet<_> = fs::read_dir(plots)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected = ["bandwidth", "dtypes", "layers", "roofline"].iter().flat_map(|plot| {
        ["decode", "prefill"]
            .iter()
            .flat_map(move |step| ["svg", "png"].map(|format| format!("{plot}-{step}.{format}")))
    });
    assert_eq!(files, expected.collect());
}

/// One token reads the matrices of its three experts of eight, `[64, 64]` in f32; many read all.
#[test]
fn profile_counts_the_experts_that_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("p.json").to_str().unwrap().to_owned();
    let options = ["--device", "cpu", "--dtype", "f32", "-p", "200", "-r", "1", "--json", &json];
    stdout(&[&["profile", "-m", EXPERTS], &options[..]].concat());
    let profiles: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let matrix = 64.0 * 64.0 * 4.0;
    for (step, experts) in [(0, 8.0), (1, 3.0)] {
        let ops = profiles[0]["steps"][step]["ops"].as_array().unwrap();
        let is_up = |op: &&Value| op["op"] == "expert_linear" && op["subject"] == "expert_up";
        let up = ops.iter().find(is_up).unwrap_or_else(|| panic!("no expert_up in {ops:?}"));
        let tokens = if step == 0 { 200.0 } else { 1.0 };
        // The token's row and the numbers of its experts beside the weights.
        let rows = tokens * 4.0 * (64.0 + 3.0);
        let read = up["read_bytes"].as_f64().unwrap();
        assert!((read / (experts * matrix + rows) - 1.0).abs() < 1e-3, "{read} bytes");
        assert_eq!(up["flops"].as_f64().unwrap(), tokens * 3.0 * 2.0 * 64.0 * 64.0);
    }
}

#[test]
fn profile_says_what_it_cannot_do() {
    for (more, part) in [
        (&["-r", "0"][..], "0"),
        (&["--csv", "/nowhere/p.csv"], "/nowhere: no such directory"),
        #[cfg(feature = "emulator")]
        (&["--device", "emulated"], "choose cpu or cuda"),
        (&["--device", "cpu", "--collect", "decode"], "counters on a GPU alone"),
        (&["-p", "100000"], "context"),
    ] {
        let all = [&["profile", "-m", LLAMA], more].concat();
        let output = halfwarp(&all).output().unwrap();
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(part) && error.lines().count() <= 2, "{more:?}: {error}");
    }
}
