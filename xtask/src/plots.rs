//! The plots of docs/performance.md, from the rows of benches/record.

mod draw;
mod record;

use crate::process;
use anyhow::Result;
use draw::{Bar, Bars, Lines, Points, Series, figure};
use record::{Pair, Row, geometric_mean, pairs, rows};
use std::fs;

/// What a kernel that only reads reaches on an H200, in GB/s: docs/measurements/summary.md.
const READ_GBS: f64 = 4400.0;

const PEERS: [&str; 3] = ["halfwarp", "cuDNN", "FlashAttention-2"];
const PEER_IMPLS: [&str; 3] = ["halfwarp", "cudnn", "fa2"];

/// Writes the plots.
///
/// # Errors
/// If a record cannot be read, or a file not written.
pub fn run() -> Result<()> {
    let dir = process::repository().join("docs/images/performance");
    fs::create_dir_all(&dir)?;
    for (name, svg) in plots()? {
        let path = dir.join(name);
        fs::write(&path, svg)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// Each plot's file name and SVG.
fn plots() -> Result<[(&'static str, String); 5]> {
    Ok([
        ("peers.svg", peers()?),
        ("attention_prefill.svg", attention_prefill()?),
        ("attention_decode.svg", attention_decode()?),
        ("gemm_one_row.svg", gemm_one_row()?),
        ("gemm_roofline.svg", gemm_roofline()?),
    ])
}

/// How many times as fast as a peer: whole models, and kernels in the geometric mean.
fn peers() -> Result<String> {
    let mut bars = Vec::new();
    for Pair { ours, peer } in pairs(&rows("engines")?, &["op", "model", "batch"], &["llama.cpp"]) {
        let model = ours.text("model");
        let (label, detail, times) = match ours.text("op") {
            "prompt_model" => {
                let (ms, peers_ms) = (ours.number("ms"), peer.number("ms"));
                let label = format!("{model}, prompt of {} tokens", ours.number("prompt"));
                (label, format!("{ms} ms, llama.cpp {peers_ms}"), peers_ms / ms)
            }
            _ => {
                let (rate, peers_rate) = (ours.number("tok_per_s"), peer.number("tok_per_s"));
                let label = match ours.number("batch") {
                    1.0 => format!("{model}, decoding"),
                    seqs => format!("{model}, decoding {seqs} sequences"),
                };
                (
                    label,
                    format!("{} tokens/s, llama.cpp {}", figure(rate), figure(peers_rate)),
                    rate / peers_rate,
                )
            }
        };
        bars.push(Bar { label, values: vec![times], note: format!("{times:.2}x: {detail}") });
    }
    let mut kernels = |file, op, label: &str, keys: &[&str], peers: &[&str], name: &str| {
        let rows: Vec<Row> = rows(file)?.into_iter().filter(|row| row.text("op") == op).collect();
        let pairs = pairs(&rows, keys, peers);
        let times: Vec<f64> =
            pairs.iter().map(|pair| pair.peer.number("us") / pair.ours.number("us")).collect();
        let mean = geometric_mean(&times);
        let (least, most) = times
            .iter()
            .fold((f64::MAX, 0.0f64), |(least, most), &times| (least.min(times), most.max(times)));
        let note = format!("{mean:.2}x {name}, {least:.2}x to {most:.2}x");
        let label = format!("{label}, {} shapes", times.len());
        bars.push(Bar { label, values: vec![mean], note });
        anyhow::Ok(())
    };
    let shape = ["batch", "num_heads", "num_kv_heads", "seq_len", "kv_len", "head_dim", "causal"];
    let faster = "the faster of cuDNN and FlashAttention-2";
    kernels("gemv_f16", "gemm", "GEMM of one row", &["m", "n", "k"], &["cublas"], "cuBLAS")?;
    kernels(
        "attention_f16",
        "attention_prefill",
        "Attention, prompts",
        &shape,
        &["cudnn", "fa2"],
        faster,
    )?;
    kernels(
        "attention_f16",
        "attention_decode",
        "Attention, decoding",
        &shape,
        &["cudnn", "fa2"],
        faster,
    )?;
    let bars = Bars {
        title: "halfwarp beside its peers, f16, NVIDIA H200",
        axis: "speed, in multiples of the peer's; kernels in the geometric mean",
        series: &[],
        rows: bars,
        mark: Some(1.0),
        room: 1.9,
    };
    bars.svg()
}

fn attention_prefill() -> Result<String> {
    let rows = rows("attention_f16")?;
    let panel = |num_heads: f64, head_dim: f64, title: &'static str| {
        let is_shown = |row: &&Row| {
            row.text("op") == "attention_prefill"
                && row.flag("causal")
                && row.number("num_heads") == num_heads
                && row.number("num_kv_heads") == num_heads
                && row.number("head_dim") == head_dim
        };
        let series = PEERS.into_iter().zip(PEER_IMPLS).map(|(name, implementation)| {
            let of_it =
                rows.iter().filter(is_shown).filter(|row| row.text("impl") == implementation);
            let points = of_it.map(|row| {
                let len = row.number("seq_len");
                // Half of the pairs of positions.
                let flops = 2.0 * row.number("batch") * num_heads * head_dim * len * len;
                (len, flops / row.number("us") / 1e6)
            });
            Series { name: name.to_owned(), points: points.collect() }
        });
        Points { title, series: series.collect() }
    };
    let panels = [panel(32.0, 64.0, "32 heads of 64"), panel(16.0, 128.0, "16 heads of 128")];
    let lines = Lines {
        title: "Causal attention of prompts, f16, 16,384 tokens in all",
        axes: ["tokens of a prompt", "TFLOP/s"],
        panels: &panels,
        limit: None,
    };
    lines.svg()
}

fn attention_decode() -> Result<String> {
    let rows = rows("attention_f16")?;
    let mut bars: Vec<Bar> = Vec::new();
    for row in rows.iter().filter(|row| row.text("op") == "attention_decode") {
        let number = |key| row.number(key);
        let positions = number("batch") * number("kv_len");
        let bytes = 4.0 * positions * number("num_kv_heads") * number("head_dim");
        let gbs = bytes / number("us") / 1e3;
        let label = format!(
            "{} x {}, {} / {} heads of {}",
            number("batch"),
            figure(number("kv_len")),
            number("num_heads"),
            number("num_kv_heads"),
            number("head_dim")
        );
        match bars.last_mut().filter(|bar| bar.label == label) {
            Some(bar) => bar.values.push(gbs),
            None => bars.push(Bar { label, values: vec![gbs], note: String::new() }),
        }
    }
    let bars = Bars {
        title: "Attention of one new token, f16: sequences x positions, query / KV heads",
        axis: "GB/s of keys and values; the line is a plain read",
        series: &PEERS,
        rows: bars,
        mark: Some(READ_GBS),
        room: 1.45,
    };
    bars.svg()
}

fn gemm_one_row() -> Result<String> {
    let rows = rows("gemv_f16")?;
    let series = [("halfwarp", "halfwarp"), ("cuBLAS", "cublas")].map(|(name, implementation)| {
        let of_it = rows.iter().filter(|row| row.text("impl") == implementation);
        let points =
            of_it.map(|row| (2.0 * row.number("n") * row.number("k") / 1e6, row.number("gbs")));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: name.to_owned(), points }
    });
    let lines = Lines {
        title: "A linear layer of one token, f16",
        axes: ["MB of weights", "GB/s"],
        panels: &[Points { title: "", series: series.into() }],
        limit: Some((READ_GBS, "a plain read")),
    };
    lines.svg()
}

fn gemm_roofline() -> Result<String> {
    let rows = rows("gemm_f16")?;
    let most_tflops = rows.iter().map(|row| row.number("tflops")).fold(0.0, f64::max);
    let kinds = [(1.0, 1.0), (8.0, 8.0), (32.0, 32.0), (512.0, 512.0), (1000.0, 8192.0)];
    let series = kinds.map(|(least, most)| {
        let is_of = |row: &&Row| (least..=most).contains(&row.number("m"));
        let points = rows
            .iter()
            .filter(is_of)
            .map(|row| (1e3 * row.number("tflops") / row.number("gbs"), row.number("tflops")));
        let name =
            if least == most { format!("m = {least}") } else { format!("m = {least} to {most}") };
        Series { name, points: points.collect() }
    });
    draw::roofline("Linear layers, f16, by rows m", READ_GBS, most_tflops, &series)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who changes a record runs `cargo xtask plots`.
    #[test]
    fn the_plots_are_those_of_the_records() {
        let dir = process::repository().join("docs/images/performance");
        for (name, svg) in plots().unwrap() {
            let committed = fs::read_to_string(dir.join(name)).unwrap_or_default();
            assert!(committed == svg, "{name}: run `cargo xtask plots`");
            assert!(svg.len() < 60_000, "{name}: {} bytes", svg.len());
        }
    }

    #[test]
    fn the_plots_say_what_they_show() {
        for (name, texts) in [
            ("peers.svg", ["2.50x: 1,955 tokens/s, llama.cpp 782", "31 shapes", "cuBLAS"]),
            ("attention_prefill.svg", ["TFLOP/s", "tokens of a prompt", "FlashAttention-2"]),
            ("attention_decode.svg", ["GB/s of keys", "64 x 2,048, 14 / 2 heads", "cuDNN"]),
            ("gemm_one_row.svg", ["MB of weights", "a plain read", "cuBLAS"]),
            ("gemm_roofline.svg", ["m = 512", "operations a byte", "TFLOP/s"]),
        ] {
            let plots = plots().unwrap();
            let svg = &plots.iter().find(|plot| plot.0 == name).unwrap().1;
            for text in texts {
                assert!(svg.contains(text), "{name} has no {text:?}");
            }
        }
    }
}
