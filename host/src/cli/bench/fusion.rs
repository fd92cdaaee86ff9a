//! `halfwarp bench fusion`.

use super::kernels::failure;
use crate::cli::{choices, failure::Failure, terminal};
use clap::builder::TypedValueParser;
use halfwarp::bench::fusion::{self, Config, Form, ModelShape, Part, Row};
use halfwarp::exec::{cuda, default_cubin_dir};
use halfwarp::{Device, Precision, Target};
use std::num::NonZeroUsize;

/// Most rows of a step.
const MAX_ROWS: usize = 4096;

/// Arguments of `halfwarp bench fusion`.
#[derive(clap::Args)]
pub struct FusionArgs {
    /// The model whose layer is computed, with random weights [default: both]
    #[arg(long, value_parser = model_shape(), value_name = "MODEL")]
    model_shape: Option<ModelShape>,
    /// Rows of a step: up to 64 sequences that decode after 511 positions, or one prompt
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,32,512")]
    rows: Vec<NonZeroUsize>,
    /// Type of the operands
    #[arg(long, value_parser = choices::precision(), default_value = "f16")]
    dtype: Precision,
    /// Where to run: auto, cuda, cuda:N; on the cpu launches and bytes are counted, and nothing is
    /// timed
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Target of the kernels [default: the newest that the GPU runs, without one sm_90a]
    #[arg(long, value_parser = choices::target())]
    target: Option<Target>,
    /// Print one JSON object per line
    #[arg(long)]
    jsonl: bool,
}

/// A model's sizes.
fn model_shape() -> impl TypedValueParser<Value = ModelShape> {
    choices::one_of([("qwen2.5-0.5b", "", ModelShape::QWEN), ("phi-3-mini", "", ModelShape::PHI3)])
}

/// Compares the forms of every part and prints a row for each.
pub fn run(args: &FusionArgs) -> Result<(), Failure> {
    if let Some(rows) = args.rows.iter().find(|rows| rows.get() > MAX_ROWS) {
        return Err(Failure::Input(format!("--rows {rows}: at most {MAX_ROWS}")));
    }
    let gpu = match args.device {
        Device::Auto => cuda::first_device(),
        device @ (Device::Cuda(_) | Device::CudaSet(_)) => device.cuda_ordinal(),
        Device::Cpu => None,
        _ => {
            let message = "--device emulated has no clock: cpu counts launches and bytes";
            return Err(Failure::Input(message.to_owned()));
        }
    };
    let shapes = match args.model_shape {
        Some(shape) => vec![shape],
        None => vec![ModelShape::QWEN, ModelShape::PHI3],
    };
    if gpu.is_none() {
        terminal::note("without a GPU launches and bytes are counted, and nothing is timed");
    }
    if !args.jsonl {
        terminal::print(&head())?;
    }
    for shape in shapes {
        for part in Part::ALL {
            for rows in &args.rows {
                let rows = args.measure(gpu, part, shape, rows.get())?;
                rows.iter().try_for_each(|row| print(args, row, &rows[0]))?;
            }
        }
    }
    Ok(())
}

impl FusionArgs {
    fn measure(
        &self,
        gpu: Option<usize>,
        part: Part,
        shape: ModelShape,
        rows: usize,
    ) -> Result<Vec<Row>, Failure> {
        let (precision, target) = (self.dtype, self.target);
        let measured = match gpu {
            Some(gpu) => {
                let config = Config { gpu, target, precision, cubin_dir: default_cubin_dir() };
                fusion::measure(&config, part, shape, rows)
            }
            None => fusion::count(part, shape, rows, precision, target.unwrap_or(Target::Sm90a)),
        };
        measured.map_err(failure)
    }
}

fn head() -> String {
    let [model, part, rows, form, launches] = ["model", "part", "rows", "form", "launches"];
    let [read, written, weights, saved] = ["read kB", "written kB", "weights", "fused saves"];
    format!(
        "{model:<12} {part:<11} {rows:>4} {form:<12} {launches:>8} {read:>10} {written:>10} {weights:>7} \
         {saved:>11} {:>9} {:>7}\n",
        "us", "speedup"
    )
}

/// A row; the last columns are what the fused form saves of its bytes, and its speedup over it.
fn print(args: &FusionArgs, row: &Row, fused: &Row) -> Result<(), Failure> {
    if args.jsonl {
        return terminal::print(&(serde_json::json!(row).to_string() + "\n"));
    }
    let bytes = |row: &Row| (row.read_bytes + row.written_bytes) as f64;
    let is_fused = row.form == Form::Fused;
    let saved = match row.launches == fused.launches {
        _ if is_fused => String::new(),
        true => "no kernel".to_owned(),
        false => format!("{:.2} %", 100.0 * (1.0 - bytes(fused) / bytes(row))),
    };
    let speedup = match (is_fused, row.us, fused.us) {
        (false, Some(us), Some(fused)) => format!("{:.2}x", us / fused),
        _ => String::new(),
    };
    let us = row.us.map_or(String::new(), |us| format!("{us:.2}"));
    let part = match row.op {
        Part::NormGemm => "norm_gemm",
        Part::GemmSwiglu => "gemm_swiglu",
        Part::Attention => "attention",
        Part::Layer => "layer",
    };
    let form = match row.form {
        Form::Fused => "fused",
        Form::Unfused => "unfused",
        Form::Materialized => "materialized",
    };
    let [read, written] = [row.read_bytes, row.written_bytes].map(|bytes| bytes as f64 / 1e3);
    let weights = 100.0 * row.weight_bytes as f64 / bytes(row);
    terminal::print(&format!(
        "{:<12} {part:<11} {:>4} {form:<12} {:>8} {read:>10.1} {written:>10.1} {weights:>5.1} % \
         {saved:>11} {us:>9} {speedup:>7}\n",
        row.model, row.m, row.launches
    ))
}
