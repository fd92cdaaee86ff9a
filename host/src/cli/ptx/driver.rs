//! Registers and local memory of kernels as the driver of a GPU compiles them.

use crate::cli::{failure::Failure, terminal};
use cuda_std::launch::{Geometry, Launch};
use halfwarp::exec::cuda::{self, DeviceInfo, KernelAttributes, KernelBench};
use halfwarp::exec::default_cubin_dir;
use halfwarp::ptx::Kernel;

/// A GPU, and what its driver says of each kernel.
pub struct Compiled {
    /// The GPU's name.
    pub gpu: String,
    /// By kernel, in the order that was asked for.
    pub attributes: Vec<KernelAttributes>,
}

/// What the driver of the first GPU that runs `target` says of `kernels`; `None` without such a
/// GPU.
///
/// # Errors
/// Errors of the driver.
pub fn compile(target: &str, kernels: &[&'static Kernel]) -> Result<Option<Compiled>, Failure> {
    let runs_it = |gpu: &&DeviceInfo| gpu.target.is_some_and(|of| of.name == target);
    // No driver and no GPU are the usual reason to be here.
    let gpus = cuda::devices().unwrap_or_default();
    let Some(gpu) = gpus.iter().find(runs_it) else { return Ok(None) };
    let mut bench = KernelBench::open(gpu.ordinal, default_cubin_dir())?;
    let bar = terminal::kernels_bar(kernels.len());
    let attributes = kernels.iter().map(|kernel| {
        let attributes = bench.attributes(&launch(kernel))?;
        bar.inc(1);
        Ok(attributes)
    });
    let attributes = attributes.collect::<Result<_, Failure>>()?;
    Ok(Some(Compiled { gpu: gpu.name.clone(), attributes }))
}

/// A launch that names the kernel, and is never run.
fn launch(kernel: &'static Kernel) -> Launch {
    Launch {
        symbol: kernel.symbol,
        geometry: Geometry { grid: [1; 3], block: [kernel.max_threads, 1, 1], shared_bytes: 0 },
        max_threads: kernel.max_threads,
        cluster: kernel.cluster.unwrap_or([1; 3]),
        overlaps: false,
        args: Vec::new(),
        arg_offsets: Vec::new(),
        body: cuda_std::launch_body!(|_| ()),
    }
}
