//! `halfwarp plot`: the plots of docs/performance.md, from the rows of a directory of `benches/record`.

use super::chart::{Bars, Chart, Series};
use super::{failure::Failure, output_file, terminal};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// What a kernel that only reads reaches on an H200, in GB/s: docs/measurements/summary.md.
const READ_GBS: f64 = 4400.0;

/// Names of our kernels and their peers', and what rows call them.
const PEERS: [(&str, &str); 3] =
    [("halfwarp", "halfwarp"), ("cuDNN", "cudnn"), ("FlashAttention-2", "fa2")];

/// Arguments of `halfwarp plot`.
#[derive(clap::Args)]
pub struct PlotArgs {
    /// Directory of a GPU in benches/record
    #[arg(value_hint = clap::ValueHint::DirPath)]
    record: PathBuf,
    /// Directory to write the plots to
    #[arg(value_hint = clap::ValueHint::DirPath)]
    out: PathBuf,
}

/// Writes the plots.
pub fn run(args: &PlotArgs) -> Result<(), Failure> {
    for (name, chart) in charts(&args.record)? {
        let (path, svg) = (args.out.join(name), chart.svg()?);
        output_file::check(&path)?;
        output_file::write_whole(&path, |partial| fs::write(partial, svg))?;
        terminal::note(format_args!("wrote {}", path.display()));
    }
    Ok(())
}

/// File name and chart of each plot.
fn charts(record: &Path) -> Result<[(&'static str, Chart); 6], Failure> {
    let rows = |name| rows(record, name);
    let (attention, gemv) = (rows("attention_f16")?, rows("gemv_f16")?);
    Ok([
        ("peers.svg", peers(&rows("engines")?, &gemv, &attention)),
        ("attention_prefill_d64.svg", attention_prefill(&attention, 32.0, 64.0)),
        ("attention_prefill_d128.svg", attention_prefill(&attention, 16.0, 128.0)),
        ("attention_decode.svg", attention_decode(&attention)),
        ("gemm_one_row.svg", gemm_one_row(&gemv)),
        ("gemm_roofline.svg", gemm_roofline(&rows("gemm_f16")?)),
    ])
}

/// How many times as fast as a peer: whole models, and kernels in the geometric mean.
fn peers(engines: &[Value], gemv: &[Value], attention: &[Value]) -> Chart {
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for [ours, peer] in pairs(engines, &["op", "model", "batch"], &["llama.cpp"]) {
        let (what, key, unit) = match (text(ours, "op"), number(ours, "batch")) {
            ("prompt_model", _) => {
                (format!("prompt of {} tokens", number(ours, "prompt")), "ms", "ms")
            }
            (_, 1.0) => ("decoding".to_owned(), "tok_per_s", "tokens/s"),
            (_, seqs) => (format!("decoding {seqs} sequences"), "tok_per_s", "tokens/s"),
        };
        let (own, other) = (number(ours, key), number(peer, key));
        let times = if key == "ms" { other / own } else { own / other };
        rows.push((format!("{}, {what}", text(ours, "model")), vec![times]));
        notes.push(format!("{times:.2}x: {own} {unit}, llama.cpp {other}"));
    }
    let shape =
        ["op", "batch", "num_heads", "num_kv_heads", "seq_len", "kv_len", "head_dim", "causal"];
    let attention = (attention, &shape[..], &["cudnn", "fa2"][..]);
    let gemv = (gemv, &["op", "m", "n", "k"][..], &["cublas"][..]);
    let faster = "the faster of cuDNN and FlashAttention-2";
    for (op, what, peer, (records, keys, peers)) in [
        ("gemm", "GEMM of one row", "cuBLAS", gemv),
        ("attention_prefill", "Attention, prompts", faster, attention),
        ("attention_decode", "Attention, decoding", faster, attention),
    ] {
        let pairs = pairs(records, keys, peers).into_iter();
        let pairs = pairs.filter(|[ours, _]| text(ours, "op") == op);
        let times: Vec<f64> =
            pairs.map(|[ours, peer]| number(peer, "us") / number(ours, "us")).collect();
        let mean = geometric_mean(&times);
        let least = times.iter().copied().fold(f64::MAX, f64::min);
        let most = times.iter().copied().fold(0.0, f64::max);
        rows.push((format!("{what}, {} shapes", times.len()), vec![mean]));
        notes.push(format!("{mean:.2}x {peer}, {least:.2}x to {most:.2}x"));
    }
    Chart::Bars(Bars {
        title: "halfwarp beside its peers, f16, NVIDIA H200".to_owned(),
        axis: "speed, in multiples of the peer's; kernels in the geometric mean".to_owned(),
        rows,
        notes,
        mark: Some(1.0),
        ..Bars::default()
    })
}

fn attention_prefill(rows: &[Value], num_heads: f64, head_dim: f64) -> Chart {
    let is_shown = |row: &&Value| {
        let sizes = ["num_heads", "num_kv_heads", "head_dim"].map(|key| number(row, key));
        text(row, "op") == "attention_prefill"
            && row["causal"] == true
            && sizes == [num_heads, num_heads, head_dim]
    };
    let series = PEERS.map(|(name, of)| {
        let rows = rows.iter().filter(is_shown).filter(|row| text(row, "impl") == of);
        let points = rows.map(|row| {
            let len = number(row, "seq_len");
            // Half of the pairs of positions.
            let flops = 2.0 * number(row, "batch") * num_heads * head_dim * len * len;
            (len, flops / number(row, "us") / 1e6)
        });
        Series { name: name.to_owned(), points: points.collect() }
    });
    Chart::Lines {
        title: format!("Causal attention of 16,384 tokens, f16, {num_heads} heads of {head_dim}"),
        axes: ["tokens of a prompt", "TFLOP/s"].map(str::to_owned),
        log: [true, false],
        series: series.into(),
    }
}

fn attention_decode(rows: &[Value]) -> Chart {
    let mut bars: Vec<(String, Vec<f64>)> = Vec::new();
    for row in rows.iter().filter(|row| text(row, "op") == "attention_decode") {
        let keys = ["batch", "kv_len", "num_heads", "num_kv_heads", "head_dim"];
        let [batch, kv_len, num_heads, num_kv_heads, head_dim] = keys.map(|key| number(row, key));
        let gbs = 4.0 * batch * kv_len * num_kv_heads * head_dim / number(row, "us") / 1e3;
        let label = format!("{batch} x {kv_len}, {num_heads} / {num_kv_heads} heads of {head_dim}");
        match bars.last_mut().filter(|(last, _)| *last == label) {
            Some((_, values)) => values.push(gbs),
            None => bars.push((label, vec![gbs])),
        }
    }
    Chart::Bars(Bars {
        title: "Attention of one new token, f16: sequences x positions, query / KV heads".into(),
        axis: "GB/s of keys and values; the line is a plain read".to_owned(),
        series: PEERS.map(|(name, _)| name.to_owned()).into(),
        rows: bars,
        mark: Some(READ_GBS),
        ..Bars::default()
    })
}

fn gemm_one_row(rows: &[Value]) -> Chart {
    let mut series =
        Vec::from([("halfwarp", "halfwarp"), ("cuBLAS", "cublas")].map(|(name, of)| {
            let rows = rows.iter().filter(|row| text(row, "impl") == of);
            let megabytes = |row| 2.0 * number(row, "n") * number(row, "k") / 1e6;
            let mut points: Vec<_> = rows.map(|row| (megabytes(row), number(row, "gbs"))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: name.to_owned(), points }
        }));
    let read = series[0].points.iter().map(|&(megabytes, _)| (megabytes, READ_GBS)).collect();
    series.push(Series { name: "a plain read".to_owned(), points: read });
    Chart::Lines {
        title: "A linear layer of one token, f16".to_owned(),
        axes: ["MB of weights", "GB/s"].map(str::to_owned),
        log: [true, false],
        series,
    }
}

fn gemm_roofline(rows: &[Value]) -> Chart {
    let most_tflops = rows.iter().map(|row| number(row, "tflops")).fold(1.0, f64::max);
    let kinds = [(1.0, 1.0), (8.0, 8.0), (32.0, 32.0), (512.0, 512.0), (1000.0, 8192.0)];
    let series = kinds.map(|(least, most)| {
        let rows = rows.iter().filter(|row| (least..=most).contains(&number(row, "m")));
        let points = rows.map(|row| {
            let tflops = number(row, "tflops");
            (1e3 * tflops / number(row, "gbs"), 1e12 * tflops)
        });
        let to = if least == most { String::new() } else { format!(" to {most}") };
        Series { name: format!("m = {least}{to}"), points: points.collect() }
    });
    Chart::Roofline {
        title: "Linear layers, f16, by rows m".to_owned(),
        bytes_per_s: 1e9 * READ_GBS,
        flops_per_s: 1e12 * most_tflops,
        series: series.into(),
    }
}

/// The rows of one file.
fn rows(record: &Path, name: &str) -> Result<Vec<Value>, Failure> {
    let path = record.join(format!("{name}.jsonl"));
    let fault =
        |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(&path).map_err(|error| fault(&error))?;
    let rows = text.lines().map(|line| serde_json::from_str(line).map_err(|error| fault(&error)));
    rows.collect()
}

/// The number at `key`; NaN if there is none, which no chart shows.
fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or(f64::NAN)
}

/// The text at `key`, or nothing.
fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_default()
}

/// Each row of halfwarp beside the fastest of `peers` that has the same `keys`; one without a peer is left out.
fn pairs<'a>(rows: &'a [Value], keys: &[&str], peers: &[&str]) -> Vec<[&'a Value; 2]> {
    let ours = rows.iter().filter(|row| text(row, "impl") == "halfwarp");
    let pairs = ours.filter_map(|ours| {
        let is_peer = |row: &&Value| {
            peers.contains(&text(row, "impl")) && keys.iter().all(|&key| row[key] == ours[key])
        };
        let time = |row: &Value| number(row, "us");
        let fastest = rows.iter().filter(is_peer).min_by(|a, b| time(a).total_cmp(&time(b)))?;
        Some([ours, fastest])
    });
    pairs.collect()
}

/// The geometric mean of positive numbers.
fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RECORD: &str = "../benches/record/nvidia-h200";
    const PLOTS: &str = "../docs/images/performance";

    #[test]
    fn the_plots_are_those_of_the_records() {
        for ((name, chart), texts) in charts(RECORD.as_ref()).unwrap().into_iter().zip([
            ["2.50x: 1955 tokens/s, llama.cpp 782", "31 shapes", "cuBLAS"],
            ["TFLOP/s", "tokens of a prompt", "FlashAttention-2"],
            ["TFLOP/s", "16 heads of 128", "FlashAttention-2"],
            ["GB/s of keys", "64 x 2048, 14 / 2 heads", "cuDNN"],
            ["MB of weights", "a plain read", "cuBLAS"],
            ["m = 512", "operations a byte", "685T"],
        ]) {
            let svg = chart.svg().unwrap();
            let committed = fs::read_to_string(Path::new(PLOTS).join(name)).unwrap_or_default();
            assert!(committed == svg, "{name}: run the command of docs/performance.md");
            assert!(svg.len() < 60_000, "{name}: {} bytes", svg.len());
            for text in texts {
                assert!(svg.contains(text), "{name} has no {text:?}");
            }
        }
    }

    #[test]
    fn a_row_is_beside_the_fastest_peer_of_its_shape() {
        let row = |name: &str, n: u32, us: f64| json!({"impl": name, "n": n, "us": us});
        let rows = [
            row("halfwarp", 1, 2.0),
            row("a", 1, 5.0),
            row("b", 1, 4.0),
            row("c", 1, 1.0),
            row("a", 2, 3.0),
            row("halfwarp", 3, 1.0),
        ];
        assert_eq!(pairs(&rows, &["n"], &["a", "b"]), [[&rows[0], &rows[2]]]);
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
    }
}
