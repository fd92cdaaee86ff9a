//! One suite for all executors: every operation in small plans against an f64 oracle, under the
//! names `<executor>::<operation>::<case>`; `cublas` is CUDA with linear layers by cuBLAS,
//! `cuda_sm_80` CUDA with the kernels for sm_80. Without a device, each CUDA test is reported as
//! ignored, by name, and so is what is too large for the emulator, or in a precision that an
//! executor does not have.

mod attention;
mod attention_shapes;
mod delta;
mod elementwise;
mod fused;
mod harness;
mod linear;
mod observe;
mod oracle;
mod ranks;
mod rejects;
mod rms_norm;
mod rows;
mod sample;
#[cfg(feature = "emulator")]
#[path = "../support/mod.rs"]
mod support;

use halfwarp::exec::cpu::CpuExecutor;
use halfwarp::exec::cuda::{self, CudaExecutor};
#[cfg(feature = "emulator")]
use halfwarp::exec::emulated::EmulatedExecutor;
use halfwarp::exec::{ExecError, Executor, Gemm, GpuOptions, Target, default_cubin_dir};
use halfwarp::plan::{Plan, WeightSource};
use harness::{Backend, Outcome};
use libtest_mimic::{Arguments, Failed, Trial};

/// Operations for which the emulator needs a good part of a second: cases with more are left out,
/// which show no kernel that others do not, and the larger ones of the tests of `kernels` do; and
/// as many if `cargo xtask emulate` asks for all.
#[cfg(feature = "emulator")]
const MAX_EMULATED_FLOPS: [usize; 2] = [300_000, 1_000_000];

/// Operations that the emulator does twice, to see that both times have the same bits.
#[cfg(feature = "emulator")]
const MAX_REPEATED_FLOPS: usize = 30_000;

/// A test of any executor, by name.
pub struct Test {
    name: String,
    run: Box<dyn Fn(Backend) -> Outcome + Send + Sync>,
}

impl Test {
    fn new(
        name: impl Into<String>,
        run: impl Fn(Backend) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Test { name: name.into(), run: Box::new(run) }
    }
}

fn all_tests() -> Vec<Test> {
    [
        rows::tests(),
        rms_norm::tests(),
        linear::tests(),
        observe::tests(),
        elementwise::tests(),
        fused::tests(),
        attention::tests(),
        attention_shapes::tests(),
        delta::tests(),
        rejects::tests(),
        sample::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn open_cpu(plan: &Plan, weights: &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError> {
    Ok(Box::new(CpuExecutor::open(plan, weights)?))
}

fn gpu_options(gemm: Gemm, target: Option<Target>) -> GpuOptions {
    GpuOptions { gemm, target, cubin_dir: default_cubin_dir(), ..GpuOptions::default() }
}

fn open_cuda(plan: &Plan, weights: &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError> {
    let ordinal = cuda::first_device().unwrap_or(0);
    Ok(Box::new(CudaExecutor::open(ordinal, &gpu_options(Gemm::Halfwarp, None), plan, weights)?))
}

fn open_sm_80(plan: &Plan, weights: &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError> {
    let ordinal = cuda::first_device().unwrap_or(0);
    Ok(Box::new(CudaExecutor::open(
        ordinal,
        &gpu_options(Gemm::Halfwarp, Some(Target::Sm80)),
        plan,
        weights,
    )?))
}

fn open_cublas(plan: &Plan, weights: &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError> {
    let ordinal = cuda::first_device().unwrap_or(0);
    Ok(Box::new(CudaExecutor::open(ordinal, &gpu_options(Gemm::Cublas, None), plan, weights)?))
}

#[cfg(feature = "emulator")]
fn open_emulated(plan: &Plan, weights: &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError> {
    Ok(Box::new(EmulatedExecutor::open(None, plan, weights)?))
}

fn main() {
    if ranks::is_child() {
        return;
    }
    let arguments = Arguments::from_args();
    // Asked once, which also keeps the device's context from one test to the next.
    let has_cuda = cuda::first_device().is_some_and(|ordinal| cuda::free_memory(ordinal).is_ok());
    let cpu = Backend {
        name: "cpu",
        open: open_cpu,
        is_there: true,
        leaves_out_bf16: false,
        max_flops: usize::MAX,
        max_repeated_flops: usize::MAX,
    };
    let cuda = Backend { name: "cuda", open: open_cuda, is_there: has_cuda, ..cpu };
    let sm_80 = Backend { name: "cuda_sm_80", open: open_sm_80, ..cuda };
    let has_cublas = has_cuda && cuda::cublas_version().is_ok();
    let cublas = Backend { name: "cublas", open: open_cublas, is_there: has_cublas, ..cpu };
    #[cfg(feature = "emulator")]
    let emulated = {
        let (max_flops, max_repeated_flops) = match support::runs_all() {
            true => (MAX_EMULATED_FLOPS[1], usize::MAX),
            false => (MAX_EMULATED_FLOPS[0], MAX_REPEATED_FLOPS),
        };
        let (name, open) = ("emulated", open_emulated);
        Backend { name, open, leaves_out_bf16: true, max_flops, max_repeated_flops, ..cpu }
    };
    let mut trials = vec![Trial::test("cuda::open::rejects_a_device_that_is_not_there", || {
        rejects::a_device_that_is_not_there().map_err(Failed::from)
    })];
    trials.extend(ranks::trials());
    let suites = [
        (cpu, all_tests()),
        (cuda, all_tests()),
        (sm_80, all_tests()),
        #[cfg(feature = "emulator")]
        (emulated, all_tests()),
        (cublas, linear::tests()),
    ];
    for (backend, tests) in suites {
        for Test { name, run } in tests {
            let name = format!("{}::{name}", backend.name);
            let trial = Trial::ignorable_test(name, move || run(backend).map_err(Failed::from));
            trials.push(trial.with_ignored_flag(!backend.is_there));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
