//! `halfwarp random-model`: checkpoints that load, and whose weights have the right spread.

use crate::support::{generate_json, run, stderr, stdout};
use halfwarp::Checkpoint;
use safetensors::SafeTensors;
use std::fs;

/// Mean and standard deviation.
fn spread(values: &[f32]) -> [f64; 2] {
    let len = values.len() as f64;
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / len;
    let variance = values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / len;
    [mean, variance.sqrt()]
}

#[test]
fn a_model_of_each_kind_loads_and_has_the_right_spread() {
    for (mix, file, down, norm) in [
        (None, "model.safetensors", "model.layers.1.mlp.down_proj", "model.norm"),
        (Some("q4_k_m"), "model.gguf", "blk.1.ffn_down", "output_norm"),
        (Some("q8_0"), "model.gguf", "blk.1.ffn_down", "output_norm"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("model");
        let words = ["random-model", "tiny", out.to_str().unwrap()];
        let options = mix.map_or(vec![], |mix| vec!["--type", mix]);
        stdout(&[&words, &options[..]].concat());
        let bytes = fs::read(out.join(file)).unwrap();
        let path = if mix.is_some() { out.join(file) } else { out.clone() };
        let checkpoint = Checkpoint::open(&path).unwrap();
        let read = |stem: &str| checkpoint.read_f32(&format!("{stem}.weight")).unwrap();
        let [mean, deviation] = spread(&read(down));
        assert!(mean.abs() < 5e-4 && (deviation - 0.02).abs() < 1e-3, "{mean}, {deviation}");
        assert!(read(norm).iter().all(|&value| value == 1.0));
        let json = generate_json(&["-m", path.to_str().unwrap(), "--tokens", "1,2,3", "-n", "4"]);
        assert!((1..=4).contains(&json["tokens"].as_array().unwrap().len()), "{json}");
        if mix.is_none() {
            assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), 26);
        }
        // The same on every machine.
        stdout(&[&words, &options[..]].concat());
        assert!(fs::read(out.join(file)).unwrap() == bytes);
    }
}

#[test]
fn an_unknown_name_is_refused() {
    let result = run(&["random-model", "gpt-2", "out"]);
    let error = stderr(&result);
    assert_eq!(result.status.code(), Some(2), "{error}");
    assert!(error.contains("llama-2-7b") && error.lines().count() <= 2, "{error}");
}
