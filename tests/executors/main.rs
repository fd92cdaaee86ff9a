//! One suite for all executors: every operation in small plans against an f64 oracle, under the names
//! `<executor>::<operation>::<case>`. Without a device, each CUDA test is reported as ignored, by name.

mod attention;
mod elementwise;
mod harness;
mod linear;
mod oracle;
mod rejects;
mod rms_norm;
mod rows;

use halfwarp::exec::cpu::CpuExecutor;
use halfwarp::exec::cuda::{self, CudaExecutor};
use halfwarp::exec::emulated::EmulatedExecutor;
use halfwarp::exec::{ExecError, Executor, WeightSource};
use halfwarp::plan::Plan;
use libtest_mimic::{Arguments, Failed, Trial};

/// How an executor is opened.
type Open = fn(&Plan, &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError>;

/// A test of any executor, by name.
pub struct Test {
    name: String,
    run: Box<dyn Fn(Open) -> Result<(), String> + Send + Sync>,
}

impl Test {
    fn new(
        name: impl Into<String>,
        run: impl Fn(Open) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Test { name: name.into(), run: Box::new(run) }
    }
}

fn all_tests() -> Vec<Test> {
    [
        rows::tests(),
        rms_norm::tests(),
        linear::tests(),
        elementwise::tests(),
        attention::tests(),
        rejects::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn open_cpu(plan: &Plan, weights: &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError> {
    Ok(Box::new(CpuExecutor::open(plan, weights)?))
}

fn open_cuda(plan: &Plan, weights: &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError> {
    Ok(Box::new(CudaExecutor::open(cuda::first_device().unwrap_or(0), plan, weights)?))
}

fn open_emulated(plan: &Plan, weights: &dyn WeightSource) -> Result<Box<dyn Executor>, ExecError> {
    Ok(Box::new(EmulatedExecutor::open(plan, weights)?))
}

fn main() {
    let arguments = Arguments::from_args();
    // Asked once, which also keeps the device's context from one test to the next.
    let has_cuda = cuda::first_device().is_some_and(|ordinal| cuda::free_memory(ordinal).is_ok());
    let executors: [(&str, Open, bool); 3] =
        [("cpu", open_cpu, true), ("cuda", open_cuda, has_cuda), ("emulated", open_emulated, true)];
    let mut trials = vec![Trial::test("cuda::open::rejects_a_device_that_is_not_there", || {
        rejects::a_device_that_is_not_there().map_err(Failed::from)
    })];
    for (executor, open, is_there) in executors {
        for Test { name, run } in all_tests() {
            let trial =
                Trial::test(format!("{executor}::{name}"), move || run(open).map_err(Failed::from));
            trials.push(trial.with_ignored_flag(!is_there));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
