//! `halfwarp bench kernels`.

use super::baseline;
use crate::cli::{choices, failure::Failure, terminal};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use halfwarp::bench::{
    attention, attention_fp8, fp8, fp8_small, gemm,
    kernels::{BenchError, Row},
    quantised,
    record::Record,
};
use halfwarp::exec::{ExecError, cuda, default_cubin_dir};
use halfwarp::plan::Precision;
use halfwarp::{Accumulate, EngineError, Gemm, Target};
use kernels::attention::sm90::fp8::Mode;
use kernels::gemm::Fp8Accumulate;
use kernels::gemm::quantised::{BlockFormat, QuantisedLinear};
use serde::Serialize;
use std::{fmt::Display, path::PathBuf};

/// Arguments of `halfwarp bench kernels`.
#[derive(clap::Args)]
pub struct KernelsArgs {
    /// The operation, or several with commas between them
    #[arg(long = "op", value_enum, value_name = "OP", value_delimiter = ',', required = true)]
    ops: Vec<Op>,
    /// Type of the operands
    #[arg(long, value_enum, default_value = "f32")]
    dtype: OperandType,
    /// Linear layers whose weight stays in this format, by up to 16 rows in f16
    #[arg(long, value_name = "FORMAT", value_parser = formats(), conflicts_with_all = ["dtype", "gemm", "accumulate", "target"])]
    weights: Option<WeightFormat>,
    /// Which GEMM kernels to time
    #[arg(long, value_parser = choices::gemm(), default_value = "halfwarp")]
    gemm: Gemm,
    /// Accumulators of GEMMs with more than 16 rows
    #[arg(long, value_enum, default_value_t = Accumulators::F32)]
    accumulate: Accumulators,
    /// Target of the kernels [default: the newest that the GPU runs]
    #[arg(long, value_parser = choices::target())]
    target: Option<Target>,
    /// Only this shape, repeat it for more [default: shapes of real models]: M,N,K of C[M, N] = A[M, K] * B[N, K]^T;
    /// BATCH,HEADS,KV_HEADS,LEN,HEAD_DIM of attention, of prefill with ,full for full attention
    #[arg(long = "shape", value_name = "SIZES")]
    shapes: Vec<String>,
    /// Number of the GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,
    /// Print one JSON object per line
    #[arg(long)]
    jsonl: bool,
    /// Rows that an earlier --jsonl wrote: print each shape's time over theirs, and exit with 1 if one is slower by
    /// more than 2 % and twice the standard deviation of the difference
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    baseline: Option<PathBuf>,
}

/// Operations that can be timed.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Op {
    /// Linear layers
    Gemm,
    /// Attention of whole prompts
    AttentionPrefill,
    /// Attention of one new token a sequence
    AttentionDecode,
}

/// Types of operands of kernels.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum OperandType {
    F32,
    F16,
    Bf16,
    /// Linear layers of more than 16 rows, a scale a row of each operand; attention of prompts, a scale a head
    E4m3,
}

impl OperandType {
    /// The precision of a plan, if it has one.
    fn precision(self) -> Option<Precision> {
        match self {
            OperandType::F32 => Some(Precision::F32),
            OperandType::F16 => Some(Precision::F16),
            OperandType::Bf16 => Some(Precision::BF16),
            OperandType::E4m3 => None,
        }
    }
}

/// How outputs are accumulated.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Accumulators {
    /// In f32; of e4m3 every 128 columns of k in the tensor cores, which keep about 14 bits
    F32,
    /// In f16, of f16
    F16,
    /// All of k in the tensor cores, of e4m3, and attention's weights in e4m3: faster, less exact
    Fast,
}

/// A format of `--weights`.
#[derive(Clone, Copy)]
enum WeightFormat {
    Blocks(BlockFormat),
    E4m3,
}

impl WeightFormat {
    fn name(self) -> &'static str {
        match self {
            WeightFormat::Blocks(format) => format.name(),
            WeightFormat::E4m3 => "f8_e4m3",
        }
    }
}

/// The formats of `--weights`.
fn formats() -> impl TypedValueParser<Value = WeightFormat> {
    let all = || {
        let formats = BlockFormat::tiled().map(WeightFormat::Blocks);
        formats.chain([WeightFormat::E4m3])
    };
    let format = move |name: String| all().find(|format| format.name() == name);
    PossibleValuesParser::new(all().map(WeightFormat::name))
        .map(move |name| format(name).expect("one of the possible values"))
}

/// What is timed, and at which shapes.
enum Bench {
    Gemm(gemm::Config, Vec<gemm::Shape>),
    Fp8(fp8::Config, Vec<gemm::Shape>),
    Fp8Small(fp8_small::Config, Vec<gemm::Shape>),
    Quantised(quantised::Config, Vec<gemm::Shape>),
    Attention(attention::Config, Vec<attention::Shape>),
    AttentionFp8(attention_fp8::Config, Vec<attention::Shape>),
}

/// Times the kernels and prints a row for each shape.
pub fn run(args: &KernelsArgs) -> Result<(), Failure> {
    args.check()?;
    let baseline = args.baseline.as_deref().map(baseline::read).transpose()?;
    let benches =
        args.ops.iter().map(|&op| args.bench(op)).collect::<Result<Vec<Bench>, Failure>>()?;
    cuda::free_memory(args.gpu)?;
    let (mut num_left_out, mut records) = (0, Vec::new());
    for bench in benches {
        num_left_out += match bench {
            Bench::Gemm(config, shapes) => {
                time(args, &mut records, &GEMM, &shapes, |shape| gemm::measure(&config, shape))?
            }
            Bench::Fp8(config, shapes) => {
                time(args, &mut records, &GEMM, &shapes, |shape| fp8::measure(&config, shape))?
            }
            Bench::Fp8Small(config, shapes) => {
                let of = |shape| fp8_small::measure(&config, shape);
                time(args, &mut records, &GEMM, &shapes, of)?
            }
            Bench::Quantised(config, shapes) => {
                let mut measure = |path, shapes: &[gemm::Shape]| {
                    let config = quantised::Config { path, ..config.clone() };
                    let of = |shape| quantised::measure(&config, shape);
                    time(args, &mut records, &GEMM, shapes, of)
                };
                let num_left_out = measure(quantised::Path::Fused, &shapes)?;
                let is_prompt = |shape: &gemm::Shape| shape.m > QuantisedLinear::MAX_ROWS;
                let prompts: Vec<_> = shapes.into_iter().filter(is_prompt).collect();
                if prompts.is_empty() {
                    num_left_out
                } else {
                    terminal::note("by a dense copy of the weight and a GEMM:");
                    num_left_out + measure(quantised::Path::DenseCopy, &prompts)?
                }
            }
            Bench::Attention(config, shapes) => {
                time(args, &mut records, &ATTENTION, &shapes, |shape| {
                    attention::measure(&config, shape)
                })?
            }
            Bench::AttentionFp8(config, shapes) => {
                time(args, &mut records, &ATTENTION, &shapes, |shape| {
                    attention_fp8::measure(&config, shape)
                })?
            }
        };
    }
    if let Some(baseline) = baseline {
        baseline::report(&records, &baseline)?;
    }
    match num_left_out {
        0 => Ok(()),
        n => Err(Failure::Input(format!("no kernel takes {n} of the shapes"))),
    }
}

impl KernelsArgs {
    /// Whether every option has an operation that it is for.
    fn check(&self) -> Result<(), Failure> {
        let gemm = self.gemm;
        let of_gemm = gemm != Gemm::Halfwarp || self.accumulate != Accumulators::F32;
        let is_fp8_attention =
            self.dtype == OperandType::E4m3 && self.ops == [Op::AttentionPrefill];
        if of_gemm && !is_fp8_attention && !self.ops.contains(&Op::Gemm) {
            let message = "--gemm and --accumulate are for --op gemm alone";
            return Err(Failure::Input(message.to_owned()));
        }
        if self.weights.is_some() && self.ops != [Op::Gemm] {
            return Err(Failure::Input("--weights is for --op gemm alone".to_owned()));
        }
        if self.dtype == OperandType::E4m3 {
            let is_known = self.ops == [Op::Gemm] || is_fp8_attention;
            if !is_known || gemm != Gemm::Halfwarp || self.target.is_some() {
                let message = "--dtype e4m3 is for --op gemm or attention_prefill, without --gemm and --target";
                return Err(Failure::Input(message.to_owned()));
            }
            if self.accumulate == Accumulators::F16 {
                return Err(Failure::Input("--accumulate f16 is for --dtype f16".to_owned()));
            }
        } else if self.accumulate == Accumulators::Fast {
            return Err(Failure::Input("--accumulate fast is for --dtype e4m3".to_owned()));
        }
        if self.ops.len() > 1 && !self.shapes.is_empty() {
            let message = "--shape is for one operation, and --op has several";
            return Err(Failure::Input(message.to_owned()));
        }
        Ok(())
    }

    fn bench(&self, op: Op) -> Result<Bench, Failure> {
        let (gpu, target) = (self.gpu, self.target);
        let cubin_dir = default_cubin_dir();
        match self.weights {
            Some(WeightFormat::Blocks(format)) => {
                let config =
                    quantised::Config { gpu, format, path: quantised::Path::Fused, cubin_dir };
                return Ok(Bench::Quantised(config, self.shapes(gemm_shape, quantised::shapes)?));
            }
            Some(WeightFormat::E4m3) => {
                let config = fp8_small::Config { gpu, block_scales: false, cubin_dir };
                return Ok(Bench::Fp8Small(config, self.shapes(gemm_shape, fp8_small::shapes)?));
            }
            None => {}
        }
        if self.dtype == OperandType::E4m3 && op == Op::AttentionPrefill {
            let is_fast = self.accumulate == Accumulators::Fast;
            let mode = if is_fast { Mode::Fast } else { Mode::Strict };
            let shapes = self.shapes(prefill_shape, attention::prefill_shapes)?;
            shapes.iter().try_for_each(attention::Shape::check).map_err(failure)?;
            let config = attention_fp8::Config { gpu, mode, cubin_dir };
            return Ok(Bench::AttentionFp8(config, shapes));
        }
        let Some(precision) = self.dtype.precision() else {
            let accumulate = match self.accumulate {
                Accumulators::Fast => Fp8Accumulate::Fast,
                _ => Fp8Accumulate::TwoLevel,
            };
            let config = fp8::Config { gpu, accumulate, cubin_dir };
            return Ok(Bench::Fp8(config, self.shapes(gemm_shape, fp8::shapes)?));
        };
        if op == Op::Gemm {
            let accumulate = match self.accumulate {
                Accumulators::F16 => Accumulate::F16,
                _ => Accumulate::F32,
            };
            let config =
                gemm::Config { gpu, gemm: self.gemm, accumulate, target, precision, cubin_dir };
            config.check().map_err(failure)?;
            return Ok(Bench::Gemm(config, self.shapes(gemm_shape, gemm::shapes)?));
        }
        let config = attention::Config { gpu, target, precision, cubin_dir };
        let shapes = match op {
            Op::AttentionDecode => self.shapes(decode_shape, attention::decode_shapes)?,
            _ => self.shapes(prefill_shape, attention::prefill_shapes)?,
        };
        shapes.iter().try_for_each(attention::Shape::check).map_err(failure)?;
        Ok(Bench::Attention(config, shapes))
    }

    /// The shapes that are given, or the usual ones.
    fn shapes<S>(
        &self,
        parse: fn(&str) -> Result<S, &'static str>,
        usual: fn() -> Vec<S>,
    ) -> Result<Vec<S>, Failure> {
        if self.shapes.is_empty() {
            return Ok(usual());
        }
        let parse = |text: &String| {
            parse(text)
                .map_err(|expected| Failure::Input(format!("--shape {text}: expected {expected}")))
        };
        self.shapes.iter().map(parse).collect()
    }
}

/// The numbers of a list, if there are `N` above 0.
fn sizes<const N: usize>(text: &str) -> Option<[usize; N]> {
    let sizes: Option<Vec<usize>> = text.split(',').map(|size| size.parse().ok()).collect();
    sizes?.try_into().ok().filter(|sizes: &[usize; N]| !sizes.contains(&0))
}

fn gemm_shape(text: &str) -> Result<gemm::Shape, &'static str> {
    let [m, n, k] = sizes(text).ok_or("three numbers above 0, such as 512,9728,896")?;
    Ok(gemm::Shape { m, n, k })
}

fn prefill_shape(text: &str) -> Result<attention::Shape, &'static str> {
    let (sizes, causal) = match text.rsplit_once(',') {
        Some((sizes, "causal")) => (sizes, true),
        Some((sizes, "full")) => (sizes, false),
        _ => (text, true),
    };
    let expected = "five numbers above 0 and perhaps causal or full, such as 1,14,2,4096,64,causal";
    attention_shape(sizes, |seq_len| attention::Step::Prefill { seq_len, causal }).ok_or(expected)
}

fn decode_shape(text: &str) -> Result<attention::Shape, &'static str> {
    let expected = "five numbers above 0, such as 1,14,2,8192,64";
    attention_shape(text, |kv_len| attention::Step::Decode { kv_len }).ok_or(expected)
}

fn attention_shape(
    text: &str,
    step: impl Fn(usize) -> attention::Step,
) -> Option<attention::Shape> {
    let [batch, num_heads, num_kv_heads, len, head_dim] = sizes(text)?;
    Some(attention::Shape { batch, num_heads, num_kv_heads, head_dim, step: step(len) })
}

/// How shapes are printed: the head of their columns, and the columns of one.
struct Columns<S> {
    head: fn() -> String,
    of: fn(&S) -> String,
}

const GEMM: Columns<gemm::Shape> = Columns {
    head: || format!("{:>6} {:>7} {:>6}", "M", "N", "K"),
    of: |gemm::Shape { m, n, k }| format!("{m:>6} {n:>7} {k:>6}"),
};

const ATTENTION: Columns<attention::Shape> = Columns {
    head: || {
        let [batch, heads, kv_heads, len, head_dim] =
            ["batch", "heads", "KV heads", "length", "head_dim"];
        format!("{batch:>5} {heads:>5} {kv_heads:>8} {len:>6} {head_dim:>8} {:>6}", "mask")
    },
    of: |shape| {
        let &attention::Shape { batch, num_heads, num_kv_heads, head_dim, step } = shape;
        let mask = match step {
            attention::Step::Prefill { causal: true, .. } => "causal",
            attention::Step::Prefill { causal: false, .. } => "full",
            attention::Step::Decode { .. } => "decode",
        };
        let len = shape.kv_len();
        format!("{batch:>5} {num_heads:>5} {num_kv_heads:>8} {len:>6} {head_dim:>8} {mask:>6}")
    },
};

/// Times every shape, prints its row at once and adds it to `records`; returns how many there is no kernel for.
fn time<S: Copy + Display + Serialize>(
    args: &KernelsArgs,
    records: &mut Vec<Record>,
    columns: &Columns<S>,
    shapes: &[S],
    measure: impl Fn(S) -> Result<Row<S>, BenchError>,
) -> Result<usize, Failure> {
    if !args.jsonl {
        let [us, tflops, gbs, error] = ["us", "TFLOP/s", "GB/s", "error"];
        let head = (columns.head)();
        terminal::print(&format!("{head} {us:>10} {tflops:>8} {gbs:>7} {error:>9}\n"))?;
    }
    let mut num_left_out = 0;
    for &shape in shapes {
        let row = match measure(shape) {
            Err(BenchError::Exec(error @ ExecError::Unsupported { .. })) => {
                terminal::note(format_args!("{shape} is left out: {error}"));
                num_left_out += 1;
                continue;
            }
            row => row.map_err(failure)?,
        };
        records.extend(Record::of(&row));
        let line = if args.jsonl {
            serde_json::json!(row).to_string()
        } else {
            let (shape, Row { us, tflops, gbs, error, .. }) = ((columns.of)(&shape), row);
            format!("{shape} {us:>10.2} {tflops:>8.1} {gbs:>7.0} {error:>9.1e}")
        };
        terminal::print(&(line + "\n"))?;
    }
    Ok(num_left_out)
}

/// How a bench failed, for the command line.
pub fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Exec(error) => error.into(),
        BenchError::Plan(error) => EngineError::Model(error.into()).into(),
        BenchError::Shape { .. } => Failure::Input(error.to_string()),
        wrong => Failure::Environment(wrong.to_string()),
    }
}
