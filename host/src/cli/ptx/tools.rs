//! NVIDIA's tools, where they are installed: nothing is fetched.

use crate::cli::{failure::Failure, terminal};
use machine_code::Tools;
use rayon::prelude::*;

/// What makes the tools known.
pub const ADVICE: &str = "pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm, or set \
    HALFWARP_PTXAS and HALFWARP_NVDISASM";

/// The tools of this machine, if there is an assembler.
///
/// # Errors
/// [`Failure::Input`] if a variable names no program.
pub fn find() -> Result<Option<Tools>, Failure> {
    Ok(Tools::find(model_cache::cache_dir().ok().as_deref())?)
}

/// Applies `work` to each of `items` in parallel and keeps their order, with a progress bar.
///
/// # Errors
/// The first of `work`.
pub fn for_each<I: Sync, T: Send>(
    items: &[I],
    work: impl Fn(&I) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let bar = terminal::kernels_bar(items.len());
    items.par_iter().map(|item| work(item).inspect(|_| bar.inc(1))).collect()
}
