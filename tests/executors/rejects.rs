//! What an executor refuses, before it touches memory that is not the step's.

use halfwarp::exec::cuda::CudaExecutor;
use halfwarp::exec::{ExecError, Gemm, PreparedPlan, Want};
use halfwarp::plan::StepInputs;
use libtest_mimic::Completion;

use crate::harness::{Matrix, Setup, bounds, one_sequence, smallest_kv};
use crate::{Outcome, Subject, Test};

/// A change that makes the inputs of a step wrong, and its name.
type Fault = (&'static str, fn(&mut StepInputs));

const FAULTS: &[Fault] = &[
    ("a_token_beyond_the_vocabulary", |inputs| inputs.token_ids[1] = 6),
    ("a_slot_beyond_the_cache", |inputs| inputs.slot_mapping[0] = 64),
    ("a_page_beyond_the_cache", |inputs| inputs.block_tables[0][0] = 1),
    ("a_logit_row_beyond_the_tokens", |inputs| inputs.logit_rows[0] = 4),
    ("more_tokens_than_planned", |inputs| *inputs = one_sequence(5, 0)),
    ("a_context_beyond_the_plan", |inputs| *inputs = one_sequence(4, 61)),
    ("lengths_that_disagree", |inputs| inputs.cu_seqlens_q[1] = 3),
];

pub fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = FAULTS
        .iter()
        .map(|&(name, fault)| {
            Test::new(format!("run::rejects_{name}"), move |subject| rejects(subject, 0, fault))
        })
        .collect();
    tests.push(Test::new("run::rejects_a_plan_that_was_not_prepared", |subject| {
        rejects(subject, 1, |_| {})
    }));
    tests
}

/// The executor refuses the faulty step, and runs a right one after it.
fn rejects(subject: Subject, plan_index: usize, fault: fn(&mut StepInputs)) -> Outcome {
    let input = Matrix::random(1, 4, 8);
    let mut setup = Setup::default();
    let out = setup.input("input", &input);
    let bounds = bounds(4, 0);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let mut executor = (subject.open)(&plan, &weights).map_err(|error| error.to_string())?;
    let prepared = executor.prepare(&plan).map_err(|error| error.to_string())?;
    let mut faulty = one_sequence(4, 0);
    fault(&mut faulty);
    match executor.run(PreparedPlan(plan_index), &faulty, Want::Logits) {
        Err(ExecError::Step(_)) => {}
        Err(other) => return Err(format!("expected an error of the step, got: {other}")),
        Ok(_) => return Err("the step ran".to_owned()),
    }
    match executor.run(prepared, &one_sequence(4, 0), Want::Logits) {
        Ok(output) if output.logits == input.data => Ok(Completion::Completed),
        Ok(_) => Err("a right step gives wrong logits".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Without a device, or without one of that number, opening it is an error that says so.
pub fn a_device_that_is_not_there() -> Result<(), String> {
    let input = Matrix::random(1, 1, 1);
    let mut setup = Setup::default();
    let out = setup.input("input", &input);
    let bounds = bounds(1, 0);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    match CudaExecutor::open(1_000_000, Gemm::default(), None, &plan, &weights) {
        Err(ExecError::NoDevice(why)) if !why.is_empty() => Ok(()),
        Err(other) => Err(format!("expected no device, got: {other}")),
        Ok(_) => Err("opened".to_owned()),
    }
}
