//! `halfwarp bench all-reduce`.

use super::kernels::failure;
use crate::cli::{choices, failure::Failure, terminal};
use halfwarp::{Collectives, bench::all_reduce};
use std::num::NonZeroUsize;

/// Arguments of `halfwarp bench all-reduce`.
#[derive(clap::Args)]
pub struct AllReduceArgs {
    /// GPUs, the first ones of this machine
    #[arg(long, visible_alias = "tp", value_name = "N", default_value = "2")]
    tensor_parallel_size: NonZeroUsize,
    /// Bytes of the message, in f16: multiples of 16
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        default_value = "1792,6144,8192,28672,65536,262144,1048576,3145728,16777216"
    )]
    bytes: Vec<usize>,
    /// Whose kernels
    #[arg(long, value_parser = choices::collectives(), default_value = "halfwarp")]
    collectives: Collectives,
    /// Print one JSON object per line
    #[arg(long)]
    jsonl: bool,
}

/// Verifies and times an all-reduce of each size.
pub fn run(args: &AllReduceArgs) -> Result<(), Failure> {
    if let Some(bytes) = args.bytes.iter().find(|&&bytes| bytes == 0 || !bytes.is_multiple_of(16)) {
        return Err(Failure::Input(format!("--bytes {bytes}: a multiple of 16, above 0")));
    }
    for &bytes in &args.bytes {
        let world = args.tensor_parallel_size.get();
        let row = all_reduce::measure(world, bytes, args.collectives).map_err(failure)?;
        terminal::print(&match args.jsonl {
            true => serde_json::json!(row).to_string() + "\n",
            false => format!("{bytes:>10} bytes {:>9.2} us  {}\n", row.us, row.gpu),
        })?;
    }
    Ok(())
}
