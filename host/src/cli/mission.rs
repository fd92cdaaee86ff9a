//! `halfwarp bench mission`.

use super::{failure::Failure, terminal};
use halfwarp::bench::mission::{self, MissionError, OnGpu, Operands, Row};
use halfwarp::exec::{cuda, default_cubin_dir};

/// Arguments of `halfwarp bench mission`.
#[derive(clap::Args)]
pub struct MissionArgs {
    /// Type of the operands
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    dtype: Operands,
    /// Number of the GPU [default: the first]
    #[arg(long, value_name = "N")]
    gpu: Option<usize>,
    /// Print one JSON object per line
    #[arg(long)]
    jsonl: bool,
}

/// Verifies and times the kernels, full and causal; without a GPU they are verified on
/// the emulator.
pub fn run(args: &MissionArgs) -> Result<(), Failure> {
    let gpu = args.gpu.or_else(cuda::first_device);
    if !args.jsonl {
        terminal::print(&heading(args.dtype))?;
    }
    for causal in [false, true] {
        let rows = match gpu {
            Some(gpu) => mission::measure(gpu, args.dtype, causal, default_cubin_dir()),
            None => verify(args.dtype, causal),
        };
        for row in rows.map_err(failure)? {
            let line = if args.jsonl { serde_json::json!(row).to_string() } else { line(&row) };
            terminal::print(&(line + "\n"))?;
        }
    }
    if gpu.is_none() && !args.jsonl {
        terminal::print("no GPU: verified on the emulator; no time was taken\n")?;
    }
    Ok(())
}

#[cfg(feature = "emulator")]
fn verify(dtype: Operands, causal: bool) -> Result<Vec<Row>, MissionError> {
    mission::verify(dtype, causal)
}

#[cfg(not(feature = "emulator"))]
fn verify(_dtype: Operands, _causal: bool) -> Result<Vec<Row>, MissionError> {
    let why = "there is no GPU, and no emulator in this build: cargo xtask mission".to_owned();
    Err(halfwarp::ExecError::NoDevice(why).into())
}

fn failure(error: MissionError) -> Failure {
    match error {
        MissionError::Exec(error) => error.into(),
        other => Failure::Environment(other.to_string()),
    }
}

fn heading(dtype: Operands) -> String {
    let dtype = match dtype {
        Operands::F16 => "f16",
        Operands::Fp8 => "fp8",
    };
    format!(
        "attention 1 x 8 x 512 x 64, {dtype}\n{:<7} {:>9} {:>8} {:>8} {:>8} {:>9} {:>6} {:>6} {:>6}  {}\n",
        "",
        "max error",
        "error",
        "us",
        "least",
        "empty",
        "regs",
        "shared",
        "spills",
        "kernel, device"
    )
}

fn line(row: &Row) -> String {
    let Row { causal, kernel, max_error, error, shared_bytes, on_gpu, gpu } = row;
    let mask = if *causal { "causal" } else { "full" };
    let measured = match on_gpu {
        Some(OnGpu { us, min_us, empty_us, registers, local_bytes }) => [
            format!("{us:.2}"),
            format!("{min_us:.2}"),
            format!("{empty_us:.2}"),
            registers.to_string(),
            local_bytes.to_string(),
        ],
        None => [(); 5].map(|()| "-".to_owned()),
    };
    let [us, least, empty, registers, spills] = measured;
    format!(
        "{mask:<7} {max_error:>9.1e} {error:>8.1e} {us:>8} {least:>8} {empty:>9} {registers:>6} \
         {shared_bytes:>6} {spills:>6}  {kernel}, {gpu}"
    )
}
