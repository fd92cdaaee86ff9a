//! GPUs that share a model, one of which does not come to a meeting.
//!
//! The GPUs' contexts are of no use after that, so each test is a process of its own: this binary, which is told so by a variable
//! of the environment.

use std::process::Command;

use cuda_loader::nccl::Nccl;
use halfwarp::exec::cuda::{self, CudaRanks};
use halfwarp::exec::{Collectives, ExecError, Executor, GpuOptions, Want, default_cubin_dir};
use halfwarp::plan::{AllReduce, Op, Plan, PlanBuilder, Precision, Rank};
use libtest_mimic::{Completion, Failed, Trial};

use crate::harness::{Matrix, Setup, Weights, bounds, one_sequence, smallest_kv};

/// Names the test that the process is.
const VARIABLE: &str = "HALFWARP_TEST_RANKS";

const TESTS: [(&str, Collectives, usize); 3] = [
    ("one_shot", Collectives::Halfwarp, 4),
    ("two_shot", Collectives::Halfwarp, 4096),
    ("nccl", Collectives::Nccl, 4),
];

pub fn trials() -> Vec<Trial> {
    let trial = |(name, collectives, _): (&'static str, Collectives, usize)| {
        Trial::ignorable_test(
            format!("cuda::ranks::a_rank_that_hangs_ends_the_others::{name}"),
            move || {
                if cuda::devices().map_or(0, |devices| devices.len()) < 2 {
                    return Ok(Completion::ignored_with("there are no two GPUs"));
                }
                if collectives == Collectives::Nccl && Nccl::open().is_err() {
                    return Ok(Completion::ignored_with(
                        "there is no NCCL that leaves NVLink multicast off",
                    ));
                }
                let this =
                    std::env::current_exe().map_err(|error| Failed::from(error.to_string()))?;
                let child = Command::new(this).env(VARIABLE, name).output();
                let child = child.map_err(|error| Failed::from(error.to_string()))?;
                let said = String::from_utf8_lossy(&child.stdout);
                let expected = "one of the GPUs that share the model has failed, or hangs";
                match child.status.success() && said.matches(expected).count() == 2 {
                    true => Ok(Completion::Completed),
                    false => Err(format!(
                        "{}: {said}{}",
                        child.status,
                        String::from_utf8_lossy(&child.stderr)
                    )
                    .into()),
                }
            },
        )
    };
    TESTS.into_iter().map(trial).collect()
}

/// Runs the test that the environment names, in place of this program's tests: `false` if it names none.
pub fn is_child() -> bool {
    let Ok(name) = std::env::var(VARIABLE) else { return false };
    let test = TESTS.into_iter().find(|(test, ..)| *test == name);
    let (_, collectives, num_rows) = test.expect("a test");
    let (mut plans, weights): (Vec<Plan>, Vec<Weights>) =
        Rank::all(2).map(|rank| plan(rank, num_rows)).unzip();
    let options =
        GpuOptions { collectives, cubin_dir: default_cubin_dir(), ..GpuOptions::default() };
    let mut ranks = CudaRanks::open(&[0, 1], &options, &plans, &weights[0]).expect("two GPUs");
    let inputs = one_sequence(num_rows, 0);
    let mut run = |plans: &[Plan]| -> Result<(), ExecError> {
        let prepared = ranks.prepare_ranks(plans)?;
        ranks.run(prepared, &inputs, Want::Logits).map(|_| ())
    };
    run(&plans).expect("ranks that all come");
    let is_sum = |op: &Op| matches!(op, Op::AllReduce(_));
    let last = plans[1].ops.iter().rposition(is_sum).expect("a sum");
    plans[1].ops.remove(last);
    println!("{}", run(&plans).expect_err("rank 1 does not come"));
    println!("{}", run(&plans).expect_err("nothing runs after that"));
    true
}

/// Two sums of the same rows.
fn plan(rank: Rank, num_rows: usize) -> (Plan, Weights) {
    let mut setup = Setup { plan: PlanBuilder::of_rank(rank), ..Setup::new(Precision::F16) };
    let x = setup.input("x", &Matrix::random(1, num_rows, 64));
    setup.plan.op(Op::AllReduce(AllReduce::new(x)));
    setup.plan.op(Op::AllReduce(AllReduce::new(x)));
    let bounds = bounds(num_rows, 0);
    setup.finish(bounds, smallest_kv(&bounds), x)
}
