//! `halfwarp perplexity` and `halfwarp imatrix` beside llama.cpp's tools, on a tiny model of its own: `tests/fixtures/llama_cpp`.

use crate::support::{run, stderr, stdout};
use halfwarp::imatrix::Imatrix;
use halfwarp::quantize::ImportanceMatrix;
use std::fs;
use std::path::Path;

/// A model, and what the names of llama.cpp's files about it begin with.
const MODELS: [(&str, &str); 2] = [("model.gguf", ""), ("experts.gguf", "experts-")];

/// A file of the fixture.
fn fixture(name: &str) -> String {
    format!("{}/../tests/fixtures/llama_cpp/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// `halfwarp COMMAND` in f32, with `args`.
fn in_f32<'a>(command: &'a str, model: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&[command, "--device", "cpu", "--dtype", "f32", "-m", model], args].concat()
}

/// The text in windows of 32 tokens.
fn of_text<'a>(command: &'a str, model: &'a str, text: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [in_f32(command, model, &["-f", text, "-c", "32"]), args.to_vec()].concat()
}

/// The numbers of a line, or more.
fn numbers(text: &str) -> Vec<f64> {
    let words = text.split(|char: char| !(char.is_ascii_digit() || "+-.".contains(char)));
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Both print the same words, and numbers that differ by `tolerance`, in proportion to those above 1.
fn assert_close(got: &str, want: &str, tolerance: f64) {
    let words = |text: &str| -> String { text.chars().filter(|c| c.is_alphabetic()).collect() };
    assert_eq!(words(got), words(want), "{got}");
    let (of_got, of_want) = (numbers(got), numbers(want));
    assert_eq!(of_got.len(), of_want.len(), "{got}, not {want}");
    for (x, y) in of_got.iter().zip(&of_want) {
        assert!((x - y).abs() <= tolerance * y.abs().max(1.0), "{got}, not {want}");
    }
}

/// The BOS token at the beginning of each window, its second half alone, and whole windows alone.
#[test]
fn perplexity_is_llama_perplexitys() {
    for (model, expected) in MODELS {
        let (model, text) = (fixture(model), fixture("text.txt"));
        let got = stdout(&of_text("perplexity", &model, &text, &[]));
        let (mean, estimate) = got.trim_end().split_once('\n').unwrap();
        // 30 windows of 32 tokens, of which 15 are scored.
        assert!(mean.ends_with("over 450 tokens"), "{mean}");
        let want = fs::read_to_string(fixture(&format!("{expected}perplexity.txt"))).unwrap();
        assert_close(estimate, want.trim_end(), 2e-6);
    }
}

#[test]
fn divergence_is_llama_perplexitys() {
    let (other, base) = (fixture("other.gguf"), fixture("base.kld"));
    let args = ["--kl-divergence", "--kl-divergence-base", &base];
    let got = stdout(&in_f32("perplexity", &other, &args));
    let lines = |text: &str| -> Vec<String> {
        let is_value = |line: &&str| !line.starts_with("==") && !line.is_empty();
        text.lines().filter(is_value).map(str::to_owned).collect()
    };
    let want = fs::read_to_string(fixture("divergence.txt")).unwrap();
    let (got, want) = (lines(&got), lines(&want));
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        // One is the difference, 54, of perplexities of 900, each within 2e-6.
        assert_close(got, want, 1e-5);
    }
}

/// As llama.cpp's file, but that the last digits of logits move a code of 65535 by some.
#[test]
fn saved_logits_are_llama_perplexitys() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("base.kld");
    let (model, text) = (fixture("model.gguf"), fixture("text.txt"));
    let base = ["--chunks", "14", "--kl-divergence-base", out.to_str().unwrap()];
    stdout(&of_text("perplexity", &model, &text, &base));
    let [got, want] = [&fs::read(&out).unwrap(), &fs::read(fixture("base.kld")).unwrap()];
    assert_eq!(got.len(), want.len());
    let (header, row) = (8 + 3 * 4 + 14 * 32 * 4, 2 * (4 + 260));
    assert_eq!(got[..header], want[..header]);
    let u16s = |row: &[u8]| -> Vec<i32> {
        row.chunks(2).map(|pair| u16::from_le_bytes(pair.try_into().unwrap()).into()).collect()
    };
    for (got, want) in got[header..].chunks(row).zip(want[header..].chunks(row)) {
        let scales = |row: &[u8]| -> Vec<f32> {
            row[..8].chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
        };
        for (x, y) in scales(got).into_iter().zip(scales(want)) {
            assert!((x - y).abs() <= 1e-5 * y.abs(), "{x}, not {y}");
        }
        for (x, y) in u16s(&got[8..]).into_iter().zip(u16s(&want[8..])) {
            assert!((x - y).abs() <= 2, "{x}, not {y}");
        }
    }
}

#[test]
fn importance_matrices_are_llama_imatrixs() {
    let dir = tempfile::tempdir().unwrap();
    let text = fixture("text.txt");
    let formats = ["gguf", "dat"].into_iter();
    for ((model, expected), format) in formats.flat_map(|format| MODELS.map(|of| (of, format))) {
        let out = dir.path().join(format);
        let args = ["--output-format", format, "-o", out.to_str().unwrap()];
        stdout(&of_text("imatrix", &fixture(model), &text, &args));
        let want = fixture(&format!("{expected}imatrix.{format}"));
        let want = Imatrix::read(Path::new(&want)).unwrap();
        let got = Imatrix::read(&out).unwrap();
        assert_eq!((got.chunk_size, got.num_chunks), (want.chunk_size, want.num_chunks));
        let num_matrices = if expected.is_empty() { 7 } else { 8 };
        assert_eq!(got.entries.len(), 2 * num_matrices, "every matrix of both layers");
        for ((name, got), (wanted, want)) in got.entries.iter().zip(&want.entries) {
            assert_eq!((name, &got.counts), (wanted, &want.counts));
            assert_eq!(got.sums.len(), want.sums.len(), "{name}");
            for (x, y) in got.sums.iter().zip(&want.sums) {
                assert!((x - y).abs() <= 2e-5 * y, "{name}: {x}, not {y}");
            }
        }
        if let Some(up) = got.entries.get("blk.0.ffn_up_exps.weight").filter(|_| format == "gguf") {
            assert_eq!(up.counts.len(), 7);
            assert!(up.counts.contains(&0), "no token goes to one of them: {:?}", up.counts);
        }
    }
}

#[test]
fn importance_matrices_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("sum.gguf");
    let [gguf, dat] = [fixture("imatrix.gguf"), fixture("imatrix.dat")];
    let args = ["imatrix", "-c", "32", "--in-file", &gguf, "--in-file", &dat, "-o"];
    stdout(&[&args[..], &[out.to_str().unwrap()]].concat());
    let sum = Imatrix::read(&out).unwrap();
    assert_eq!((sum.num_chunks, sum.datasets), (Some(60), vec!["text.txt".to_owned(); 2]));
    let one = ImportanceMatrix::read(Path::new(&gguf)).unwrap();
    let both = ImportanceMatrix::read(&out).unwrap();
    for (name, means) in &one.entries {
        for (x, y) in both.get(name).unwrap().iter().zip(means) {
            assert!((x - y).abs() <= 1e-5 * y, "{name}: {x}, not {y}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let [model, text, base] = ["model.gguf", "text.txt", "base.kld"].map(fixture);
    let refuses = |args: &[&str], why: &str| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    };
    let of = |args: &[&'static str]| in_f32("perplexity", &model, &[&["-f", &text], args].concat());
    // As in llama.cpp, two windows are the least.
    refuses(&of(&["-c", "256", "--chunks", "0"]), "--chunks 0");
    refuses(&of(&["-c", "2"]), "a window needs 3 tokens");
    refuses(&in_f32("perplexity", &model, &[]), "--file");
    let compare = ["--kl-divergence", "--kl-divergence-base", &base];
    let wrong_length = [&compare[..], &["-c", "64"]].concat();
    refuses(&in_f32("perplexity", &model, &wrong_length), "windows of 32 tokens");
    let no_base = ["--kl-divergence", "--kl-divergence-base", &text];
    refuses(&in_f32("perplexity", &model, &no_base), "does not begin with \"_logits_\"");
    let dir = tempfile::tempdir().unwrap();
    let short = dir.path().join("short.txt");
    fs::write(&short, "Alice").unwrap();
    let short = short.to_str().unwrap();
    let too_short = "tokens, and windows of 32 need 64\ntake a longer one, or -c 4 at most";
    refuses(&of_text("perplexity", &model, short, &[]), too_short);
    let out = dir.path().join("imatrix.gguf");
    let to = ["-o", out.to_str().unwrap()];
    refuses(&of_text("imatrix", &model, short, &to), too_short);
    refuses(&[&["imatrix", "--in-file", &text], &to[..]].concat(), "not an importance matrix");
    assert!(!out.exists());
}
