//! Devices that share a model: what they add, and what becomes of the others when one of them hangs.
//!
//! The GPUs' contexts are of no use after that, so each of those tests is a process of its own: this binary, which is told so by
//! a variable of the environment.

use std::process::Command;

use cuda_loader::nccl::Nccl;
use halfwarp::exec::cuda::{self, CudaRanks};
use halfwarp::exec::{
    Collectives, Device, ExecError, Executor, GpuOptions, Want, default_cubin_dir, open_ranks,
};
use halfwarp::plan::{AllReduce, Op, Plan, PlanBuilder, Precision, Rank};
use libtest_mimic::{Completion, Failed, Trial};

use crate::harness::{
    Matrix, Outcome, Setup, Weights, bounds, one_sequence, smallest_kv, without_sampling,
};

/// Names the test that the process is.
const VARIABLE: &str = "HALFWARP_TEST_RANKS";

const TESTS: [(&str, Collectives, usize); 3] = [
    ("one_shot", Collectives::Halfwarp, 4),
    ("two_shot", Collectives::Halfwarp, 4096),
    ("nccl", Collectives::Nccl, 4),
];

/// Columns of what is added.
const WIDTH: usize = 64;

pub fn trials() -> Vec<Trial> {
    let mut trials = hanging();
    // Rows of one shot, and of two: those of a rank are not as many as those of the other.
    for num_rows in [5, 2101] {
        let devices = [
            ("cuda", Device::Cuda(0), &[2, 4, 8][..]),
            #[cfg(feature = "emulator")]
            ("emulated", Device::Emulated, &[2]),
        ];
        for (name, device, worlds) in devices {
            for &world in worlds {
                let name = format!("{name}::ranks::added_and_normed::{num_rows}_rows_tp{world}");
                trials.push(Trial::ignorable_test(name, move || {
                    Ok(added_and_normed(device, world, num_rows)?)
                }));
            }
        }
    }
    trials
}

/// Sums over ranks that are added to a residual, two of which are normed, are those of the CPU.
fn added_and_normed(device: Device, world: usize, num_rows: usize) -> Outcome {
    if device != Device::Emulated && cuda::devices().map_or(0, |devices| devices.len()) < world {
        return Ok(Completion::ignored_with("there are not so many GPUs"));
    }
    let mut all = Weights::default();
    let mut plans = Vec::new();
    for rank in Rank::all(world) {
        let (plan, weights) = chain(rank, num_rows);
        plans.push(plan);
        all.extend(weights);
    }
    let options = GpuOptions { cubin_dir: default_cubin_dir(), ..GpuOptions::default() };
    let [expected, got] = [Device::Cpu, device].map(|device| -> Result<Vec<f32>, ExecError> {
        let mut ranks = open_ranks(device, &options, &plans, &all)?;
        let prepared = ranks.prepare_ranks(&plans)?;
        Ok(ranks.run(prepared, &one_sequence(num_rows, 0), Want::Logits)?.logits)
    });
    let (expected, got) = (expected.map_err(|e| e.to_string())?, got.map_err(|e| e.to_string())?);
    let norm = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
    };
    for (row, (got, expected)) in got.chunks(WIDTH).zip(expected.chunks(WIDTH)).enumerate() {
        let difference = norm(&mut got.iter().zip(expected).map(|(got, expected)| got - expected));
        let error = difference / norm(&mut expected.iter().copied());
        if error.is_nan() || error > 2e-3 {
            return Err(format!("row {row}: relative error {error:e}"));
        }
    }
    Ok(Completion::Completed)
}

/// A layer's sums: each is added to the residual, whose norm is the next one's summand, of the last its rows come out.
fn chain(rank: Rank, num_rows: usize) -> (Plan, Weights) {
    let mut setup = Setup { plan: PlanBuilder::of_rank(rank), ..Setup::new(Precision::F16) };
    let residual = setup.f32_input("residual", &Matrix::random(7, num_rows, WIDTH));
    let of_rank = Matrix::random(rank.index as u64, num_rows, WIDTH);
    let mut x = setup.input(&format!("x of rank {}", rank.index), &of_rank.rounded(Precision::F16));
    for layer in 0..3 {
        setup.plan.op(Op::AllReduce(AllReduce::new(x)));
        setup.plan.op(Op::Add { x, residual, out: residual });
        if layer < 2 {
            let weight = Matrix::random(9, 1, WIDTH);
            let weight = setup.vector(&format!("norm {layer}"), &weight);
            let out = setup.activation(&format!("normed {layer}"), WIDTH);
            setup.plan.op(Op::RmsNorm { x: residual, weight, out, eps: 1e-3 });
            x = out;
        }
    }
    let bounds = bounds(num_rows, 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), residual);
    (without_sampling(&plan), weights)
}

fn hanging() -> Vec<Trial> {
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
