//! What an executor refuses, before it touches memory that is not the step's.

use halfwarp::exec::cuda::CudaExecutor;
use halfwarp::exec::{ExecError, GpuOptions, StepOutput, Want};
use halfwarp::plan::{Plan, StepInputs};
use libtest_mimic::Completion;

use crate::harness::{Matrix, Setup, Weights, bounds, one_sequence, smallest_kv};
use crate::{Backend, Outcome, Test};

/// A change that makes the inputs of a step wrong, and its name.
type Fault = (&'static str, fn(&mut StepInputs));

const FAULTS: &[Fault] = &[
    ("a_token_beyond_the_vocabulary", |inputs| inputs.token_ids[1] = 6),
    ("a_slot_beyond_the_cache", |inputs| inputs.slot_mapping[0] = 64),
    ("a_page_beyond_the_cache", |inputs| inputs.block_tables[0][0] = 1),
    ("a_logit_row_beyond_the_tokens", |inputs| inputs.logit_rows[0] = 4),
    ("more_tokens_than_planned", |inputs| *inputs = one_sequence(5, 0)),
    ("a_context_beyond_the_plan", |inputs| *inputs = one_sequence(4, 61)),
    ("a_block_table_that_is_too_short", |inputs| inputs.block_tables[0].clear()),
    ("lengths_that_disagree", |inputs| inputs.cu_seqlens_q[1] = 3),
];

pub fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = FAULTS
        .iter()
        .map(|&(name, fault)| {
            Test::new(format!("run::rejects_{name}"), move |backend| rejects(backend, fault))
        })
        .collect();
    tests.push(Test::new("run::rejects_a_plan_of_another_executor", |backend| {
        let (plan, weights) = plan();
        let open = || (backend.open)(&plan, &weights).map_err(|error| error.to_string());
        let (mut executor, mut other) = (open()?, open()?);
        // Both have a first plan.
        executor.prepare(&plan).map_err(|error| error.to_string())?;
        let theirs = other.prepare(&plan).map_err(|error| error.to_string())?;
        is_refused(executor.run(theirs, &one_sequence(4, 0), Want::Logits))
    }));
    tests
}

/// The executor refuses the faulty step, and runs a right one after it.
fn rejects(backend: Backend, fault: fn(&mut StepInputs)) -> Outcome {
    let (plan, weights) = plan();
    let mut executor = (backend.open)(&plan, &weights).map_err(|error| error.to_string())?;
    let prepared = executor.prepare(&plan).map_err(|error| error.to_string())?;
    let mut faulty = one_sequence(4, 0);
    fault(&mut faulty);
    is_refused(executor.run(prepared, &faulty, Want::Logits))?;
    match executor.run(prepared, &one_sequence(4, 0), Want::Logits) {
        Ok(output) if output.logits == input().data => Ok(Completion::Completed),
        Ok(_) => Err("a right step gives wrong logits".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn is_refused(step: Result<StepOutput, ExecError>) -> Outcome {
    match step {
        Err(ExecError::Step(_)) => Ok(Completion::Completed),
        Err(other) => Err(format!("expected an error of the step, got: {other}")),
        Ok(_) => Err("the step ran".to_owned()),
    }
}

fn input() -> Matrix {
    Matrix::random(1, 4, 8)
}

/// A plan whose logits are the rows of [`input`].
fn plan() -> (Plan, Weights) {
    let mut setup = Setup::default();
    let out = setup.input("input", &input());
    let bounds = bounds(4, 0);
    setup.finish(bounds, smallest_kv(&bounds), out)
}

/// Without a device, or without one of that number, opening it is an error that says so.
pub fn a_device_that_is_not_there() -> Result<(), String> {
    let input = Matrix::random(1, 1, 1);
    let mut setup = Setup::default();
    let out = setup.input("input", &input);
    let bounds = bounds(1, 0);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    match CudaExecutor::open(1_000_000, &GpuOptions::default(), &plan, &weights) {
        Err(ExecError::NoDevice(why)) if !why.is_empty() => Ok(()),
        Err(other) => Err(format!("expected no device, got: {other}")),
        Ok(_) => Err("opened".to_owned()),
    }
}
