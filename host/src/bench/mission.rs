//! The mission: attention of 1 x 8 x 512 x 64 in f16 or in FP8, verified and timed.
//!
//! The kernel is launched as a plan launches it, on a paged cache and a work list, through its
//! launcher. All outputs are verified against f64 before anything is timed: in FP8 on the
//! dequantised inputs, and the kernel in f16 is verified and timed beside. The calls follow each
//! other in one CUDA graph, over as many copies of the inputs as the peers are given, without
//! overlap; a time is what a call adds to a graph, and the median of several. Beside it stands the
//! time of an empty kernel of the same grid: after large kernels a process starts every kernel
//! later.

mod inputs;

use std::path::PathBuf;

use cuda_std::launch::{Launch, LaunchError};
use kernels::empty;
use serde::Serialize;

use crate::exec::ExecError;
use crate::exec::cuda::{KernelAttributes, KernelBench};
use inputs::{Call, Inputs, OUT_BYTES};

/// Copies of the inputs, as many as the peers are given; calls of a round, and measurements.
const COPIES: usize = 16;
const CALLS: usize = 4 * COPIES;
const REPLAYS: usize = 100;
const REPEATS: usize = 15;

/// The type of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Operands {
    /// f16
    F16,
    /// E4M3 with a scale for each head and an output in f16, strict and fast, beside f16
    Fp8,
}

impl Operands {
    /// What is measured.
    fn kernels(self) -> &'static [Kernel] {
        match self {
            Operands::F16 => &[Kernel::F16],
            Operands::Fp8 => &[Kernel::Fp8Strict, Kernel::Fp8Fast, Kernel::F16],
        }
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    F16,
    /// Probabilities and V in f16.
    Fp8Strict,
    /// Probabilities and V in E4M3.
    Fp8Fast,
}

impl Kernel {
    /// The largest error of an output that is accepted: absolute in f16; in FP8 by the reference,
    /// if that is above 1.
    fn max_error(self) -> f64 {
        match self {
            Kernel::F16 => 2e-3,
            Kernel::Fp8Strict => 5e-3,
            Kernel::Fp8Fast => f64::MAX,
        }
    }

    /// The largest norm of the differences that is accepted, over the norm of the reference.
    fn error(self) -> f64 {
        match self {
            Kernel::Fp8Fast => 0.03,
            Kernel::F16 | Kernel::Fp8Strict => f64::INFINITY,
        }
    }
}

/// What was measured; times are `None` on the emulator.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Whether the attention is causal.
    pub causal: bool,
    /// The kernel.
    pub kernel: &'static str,
    /// Largest difference of an output from the reference in f64; in FP8 over the reference, where
    /// that is above 1.
    pub max_error: f64,
    /// Norm of the differences over the norm of the reference.
    pub error: f64,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// What was measured on a GPU.
    #[serde(flatten)]
    pub on_gpu: Option<OnGpu>,
    /// The device.
    pub gpu: String,
}

/// What only a GPU can say.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OnGpu {
    /// Microseconds of a call: the median.
    pub us: f64,
    /// The least.
    pub min_us: f64,
    /// Microseconds of an empty kernel of the same grid and clusters.
    pub empty_us: f64,
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread, spilled registers included, in bytes.
    pub local_bytes: u32,
}

/// Why there is no row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MissionError {
    /// The kernel cannot be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The kernel does not take the shape.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The output is wrong: nothing is timed.
    #[error(
        "{kernel}, causal {causal}: the outputs are off by {max_error:e} at most and {error:e} by the \
         norm, expected {expected}"
    )]
    Wrong {
        /// The kernel.
        kernel: &'static str,
        /// Whether the attention is causal.
        causal: bool,
        /// As in [`Row`].
        max_error: f64,
        /// As in [`Row`].
        error: f64,
        /// What is accepted.
        expected: String,
    },
}

/// Verifies the kernels of a type on the device `cuda:<ordinal>`, then times them.
///
/// # Errors
/// [`MissionError`].
pub fn measure(
    ordinal: usize,
    operands: Operands,
    causal: bool,
    cubin_dir: Option<PathBuf>,
) -> Result<Vec<Row>, MissionError> {
    let mut bench = KernelBench::open(ordinal, cubin_dir)?;
    let mut verified = Vec::new();
    for &kernel in operands.kernels() {
        let inputs = Inputs::new(kernel, causal);
        verified.push(verify_on(&mut bench, &inputs)?);
    }
    let timed = verified.into_iter().map(|(row, calls)| time(&mut bench, row, &calls));
    timed.collect()
}

/// Launches a kernel on copies of the inputs, and verifies all outputs; the row of the last one.
fn verify_on(bench: &mut KernelBench, inputs: &Inputs) -> Result<(Row, Vec<Call>), MissionError> {
    let gpu = bench.gpu();
    let mut calls = Vec::new();
    for _ in 0..COPIES {
        let mut alloc = |_: &'static str, content: &[u8], bytes| bench.alloc(content, bytes);
        calls.push(inputs.call(gpu, &mut alloc, KernelBench::encode)?);
    }
    let launches: Vec<Launch> = calls.iter().map(|call| call.launch.clone()).collect();
    // SAFETY: the launches were made of buffers of the bench.
    unsafe { bench.time_us(&launches, 1, 1) }?;
    let mut row = None;
    for call in &calls {
        let mut bytes = vec![0; OUT_BYTES];
        bench.read(call.out, &mut bytes)?;
        row = Some(inputs.verify(&call.launch, &bytes, bench.name())?);
    }
    Ok((row.expect("at least one copy"), calls))
}

/// Times the calls of a kernel, and an empty one.
fn time(bench: &mut KernelBench, row: Row, calls: &[Call]) -> Result<Row, MissionError> {
    let launches = |count: usize| -> Vec<Launch> {
        calls.iter().cycle().take(count).map(|call| call.launch.clone()).collect()
    };
    let blocks = calls[0].launch.geometry.grid[0] as usize;
    let empty = empty::launch(blocks)?.expect("a grid of blocks");
    // SAFETY: the launches were made of buffers of the bench; the empty kernel accesses nothing.
    let (attention, nothing) = unsafe {
        let mut per_call = |launches: &dyn Fn(usize) -> Vec<Launch>| {
            // Clocks and caches warm up.
            bench.time_us(&launches(CALLS), REPLAYS, 1)?;
            let two = bench.time_us(&launches(2 * CALLS), REPLAYS, REPEATS)?;
            let one = bench.time_us(&launches(CALLS), REPLAYS, REPEATS)?;
            let us = |i: usize| (two[i] - one[i]) / CALLS as f64;
            Ok::<_, ExecError>([us(REPEATS / 2), us(0)])
        };
        (per_call(&launches)?, per_call(&|count| vec![empty.clone(); count])?)
    };
    let KernelAttributes { registers, local_bytes } = bench.attributes(&calls[0].launch)?;
    let ([us, min_us], [empty_us, _]) = (attention, nothing);
    let on_gpu = OnGpu { us, min_us, empty_us, registers, local_bytes };
    Ok(Row { on_gpu: Some(on_gpu), ..row })
}

/// Verifies the kernels of a type for an H200 on the emulator.
///
/// # Errors
/// [`MissionError`].
#[cfg(feature = "emulator")]
pub fn verify(operands: Operands, causal: bool) -> Result<Vec<Row>, MissionError> {
    use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
    use kernels::gemm::Gpu;
    use simt::{Init, Memory};
    let encode: fn(&TensorMapSpec) -> Result<EncodedTensorMap, ExecError> =
        |_| unreachable!("on an H200 the kernels have no tensor map");
    let verify = |&kernel: &Kernel| {
        let mut memory = Memory::new();
        let inputs = Inputs::new(kernel, causal);
        let mut alloc = |name: &'static str, content: &[u8], bytes: usize| {
            if content.is_empty() {
                return Ok(memory.alloc(name, Init::Poisoned(bytes)));
            }
            Ok(memory.alloc(name, Init::Bytes(content)))
        };
        let Call { launch, out } = inputs.call(Gpu::HOPPER, &mut alloc, encode)?;
        launch.emulate(&mut memory, 0).map_err(ExecError::from)?;
        let mut bytes = vec![0; OUT_BYTES];
        memory.read_or_poison(out, &mut bytes).expect("the output's length");
        inputs.verify(&launch, &bytes, "emulator")
    };
    operands.kernels().iter().map(verify).collect()
}
