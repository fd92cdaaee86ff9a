//! A step looked at from inside: its operations in order, their values, and as many times as asked
//! for.

use halfwarp::exec::{ExecError, Executor, PreparedPlan, StepTimes, Want};
use halfwarp::plan::{Plan, Precision};
use libtest_mimic::Completion;

use crate::harness::{Matrix, Setup, bounds, one_sequence, smallest_kv, suffix};
use crate::{Backend, Outcome, Test};

pub fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = Precision::ALL
        .into_iter()
        .map(|precision| {
            let name = format!("run_ops::shows_the_values_of_each{}", suffix(precision));
            Test::new(name, move |backend| shows_values(backend, precision))
        })
        .collect();
    tests.push(Test::new("run_ops::ends_at_the_first_error", ends_at_an_error));
    tests.push(Test::new("time_ops::times_each_operation", times_operations));
    tests
}

const ROWS: usize = 4;
const WIDTH: usize = 8;

fn input(precision: Precision) -> Matrix {
    Matrix::random(1, ROWS, WIDTH).rounded(precision)
}

/// A plan whose logits are the rows of [`input`], by way of an activation of the operand's type.
fn prepared(
    backend: Backend,
    precision: Precision,
) -> Result<(Box<dyn Executor>, PreparedPlan), ExecError> {
    let mut setup = Setup::new(precision);
    let out = setup.input("input", &input(precision));
    let bounds = bounds(ROWS, 0);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let mut executor = (backend.open)(&plan, &weights)?;
    let prepared = executor.prepare(&plan)?;
    Ok((executor, prepared))
}

fn shows_values(backend: Backend, precision: Precision) -> Outcome {
    let input = input(precision);
    let observe = || -> Result<_, ExecError> {
        let (mut executor, prepared) = prepared(backend, precision)?;
        let plan: Plan = executor.plan(prepared)?.clone();
        let mut seen = Vec::new();
        executor.run_ops(prepared, &one_sequence(ROWS, 0), &mut |index, activations| {
            // Of each output the whole, and columns of it.
            for view in plan.ops[index].writes() {
                if Some(view) == plan.next_tokens {
                    seen.push((index, Vec::new(), Vec::new()));
                    continue;
                }
                let columns = activations.rows(view.columns(2, 3))?;
                seen.push((index, activations.rows(view)?, columns));
            }
            Ok(())
        })?;
        Ok((plan, seen))
    };
    let (plan, seen) = observe().map_err(|error| error.to_string())?;
    let order: Vec<_> = seen.iter().map(|(index, ..)| *index).collect();
    if order != (0..plan.ops.len()).collect::<Vec<_>>() {
        return Err(format!("operations in the order {order:?}, of {}", plan.ops.len()));
    }
    let columns = input.columns(2..5).data;
    for (index, rows, some) in &seen {
        let is_sampling = rows.is_empty();
        if !is_sampling && (rows, some) != (&input.data, &columns) {
            return Err(format!("{}: {rows:?}, {some:?}", plan.ops[*index].name()));
        }
    }
    Ok(Completion::Completed)
}

fn ends_at_an_error(backend: Backend) -> Outcome {
    let (mut executor, prepared) =
        prepared(backend, Precision::F32).map_err(|error| error.to_string())?;
    let inputs = one_sequence(ROWS, 0);
    let mut calls = 0;
    let ended = executor.run_ops(prepared, &inputs, &mut |_, _| {
        calls += 1;
        if calls < 2 { Ok(()) } else { Err(ExecError::Step("enough".to_owned())) }
    });
    match ended {
        Err(ExecError::Step(why)) if why == "enough" && calls == 2 => {}
        other => return Err(format!("{calls} calls, {other:?}")),
    }
    match executor.run(prepared, &inputs, Want::Logits) {
        Ok(output) if output.logits == input(Precision::F32).data => Ok(Completion::Completed),
        other => Err(format!("the step after it: {other:?}")),
    }
}

fn times_operations(backend: Backend) -> Outcome {
    const REPEATS: usize = 3;
    let (mut executor, prepared) =
        prepared(backend, Precision::F32).map_err(|error| error.to_string())?;
    let num_ops = executor.plan(prepared).map_err(|error| error.to_string())?.ops.len();
    let times = executor.time_ops(prepared, &one_sequence(ROWS, 0), REPEATS);
    let StepTimes { ops_us, step_us, graph_us, event_us, num_launches } = match times {
        Ok(times) => times,
        Err(ExecError::NoClock) if backend.name == "emulated" => return Ok(Completion::Completed),
        Err(error) => return Err(error.to_string()),
    };
    let lists: Vec<_> = ops_us.iter().chain([&step_us]).chain(&graph_us).collect();
    let has_graph = backend.name.starts_with("cu");
    let is_right = ops_us.len() == num_ops
        && graph_us.is_some() == has_graph
        && event_us.is_some() == has_graph
        && num_launches.is_some() == has_graph
        && lists.iter().all(|list| list.len() == REPEATS && list.iter().all(|us| *us >= 0.0));
    if is_right { Ok(Completion::Completed) } else { Err(format!("{lists:?}")) }
}
