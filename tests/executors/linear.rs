//! Linear layers: every size of batch around the tiles, real and odd widths, bias and residual.

use halfwarp::exec::{ExecError, Want};
use halfwarp::plan::{Accumulate, Dtype, Linear, Op, Precision, Rows};
use libtest_mimic::Completion;

use crate::harness::{
    HALVES, Matrix, Setup, Step, bounds, check, finish_with_logits, one_sequence, smallest_kv,
    suffix,
};
use crate::{Backend, Outcome, Test, oracle};

/// Rows of x: a decode step, a few sequences, and one less and more than each tile.
const ROWS: &[usize] = &[1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200];

/// Columns of x, and of out: SmolLM2 and Qwen2.5's, and around the tiles.
const WIDTHS: &[(usize, usize)] =
    &[(1, 1), (7, 5), (15, 63), (16, 64), (17, 65), (64, 127), (100, 128), (576, 129), (896, 320)];

/// Widths of 16-bit elements, whose rows are aligned; but for the logits, whose rows are not.
const HALF_WIDTHS: &[(usize, usize)] = &[(8, 8), (64, 128), (72, 136), (576, 192), (896, 320)];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Plain,
    Bias,
    Residual,
    BiasAndResidualInPlace,
    /// Over the rows of the logits.
    LogitRows,
}

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |precision: Precision, m: usize, (k, n): (usize, usize), form: Form| {
        let name = format!("linear::matches_oracle_{m}x{n}x{k}_{form:?}").to_lowercase();
        tests.push(Test::new(name + &suffix(precision), move |backend| {
            matches_oracle(backend, precision, m, k, n, form)
        }));
    };
    for &m in ROWS {
        for &widths in WIDTHS {
            add(Precision::F32, m, widths, Form::Plain);
        }
    }
    // Enough blocks of the largest tile to fill a GPU.
    add(Precision::F32, 300, (68, 11_264), Form::Plain);
    for m in [1, 7, 65, 129] {
        for widths in [(33, 70), (576, 192)] {
            for form in [Form::Bias, Form::Residual, Form::BiasAndResidualInPlace, Form::LogitRows]
            {
                add(Precision::F32, m, widths, form);
            }
        }
    }
    for precision in HALVES {
        for &m in ROWS {
            for &widths in HALF_WIDTHS {
                add(precision, m, widths, Form::Plain);
            }
        }
        for m in [1, 7, 65, 129] {
            for widths in [(72, 136), (576, 192)] {
                add(precision, m, widths, Form::Bias);
                add(precision, m, widths, Form::Residual);
                add(precision, m, widths, Form::BiasAndResidualInPlace);
            }
            add(precision, m, (64, 131), Form::LogitRows);
        }
        // Few rows, and columns enough for every multiprocessor.
        for m in [17, 32] {
            for form in [Form::Plain, Form::Bias, Form::Residual, Form::BiasAndResidualInPlace] {
                add(precision, m, (72, 8456), form);
            }
            add(precision, m, (72, 8457), Form::LogitRows);
        }
        // And enough for two tiles of each.
        for (m, k) in [(5, 1032), (8, 72), (32, 72)] {
            add(precision, m, (k, 16_984), Form::Plain);
            add(precision, m, (k, 16_984), Form::Bias);
        }
    }
    for (m, n, k) in [(64, 24, 72), (65, 24, 72), (129, 24, 72), (65, 24, 896)] {
        let name = format!("linear::accumulates_in_f16_{m}x{n}x{k}");
        tests.push(Test::new(name, move |backend| accumulates_in_f16(backend, m, k, n)));
    }
    tests
}

/// Most rows of the small-batch kernels, which accumulate in f32 whatever the plan says.
const MAX_ROWS_IN_F32: usize = 64;

/// With accumulators in f16 the output is near that with accumulators in f32; where the option has
/// no effect, it is the same.
fn accumulates_in_f16(backend: Backend, m: usize, k: usize, n: usize) -> Outcome {
    let run = |accumulate| -> Result<Vec<f32>, ExecError> {
        let mut setup = Setup::new(Precision::F16);
        setup.numerics.accumulate = accumulate;
        let x = setup.input("x", &Matrix::random(1, m, k).rounded(Precision::F16));
        let weight = setup.matrix("weight", &Matrix::random(2, n, k).rounded(Precision::F16));
        let out = setup.activation("out", n);
        setup.plan.op(Op::Linear(Linear::new(x, weight, out)));
        let bounds = bounds(m, 0);
        let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
        let mut executor = (backend.open)(&plan, &weights)?;
        let prepared = executor.prepare(&plan)?;
        Ok(executor.run(prepared, &one_sequence(m, 0), Want::Logits)?.logits)
    };
    let [in_f32, in_f16] = [Accumulate::F32, Accumulate::F16].map(run);
    let text = |error: ExecError| error.to_string();
    let error = relative_error(&in_f16.map_err(text)?, &in_f32.map_err(text)?);
    let is_in_f16 =
        ["cuda", "cuda_sm_80", "emulated"].contains(&backend.name) && m > MAX_ROWS_IN_F32;
    // An accumulator is rounded to 11 bits after every MMA of 16 columns, and the output once.
    let bound = 1e-3 * (2.0 + k as f64 / 16.0).sqrt();
    if (error > 0.0) != is_in_f16 || error.is_nan() || error > bound {
        return Err(format!("relative error {error:e}, at most {bound:e}; in f16: {is_in_f16}"));
    }
    Ok(Completion::Completed)
}

/// `norm(got - wanted) / norm(wanted)`.
fn relative_error(got: &[f32], wanted: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let pairs = got.iter().zip(wanted);
    norm(&mut pairs.map(|(&got, &wanted)| f64::from(got) - f64::from(wanted)))
        / norm(&mut wanted.iter().map(|&wanted| f64::from(wanted)))
}

fn matches_oracle(
    backend: Backend,
    precision: Precision,
    m: usize,
    k: usize,
    n: usize,
    form: Form,
) -> Outcome {
    let has_bias = matches!(form, Form::Bias | Form::BiasAndResidualInPlace);
    let has_residual = matches!(form, Form::Residual | Form::BiasAndResidualInPlace);
    let (weight, bias) = (Matrix::random(1, n, k).rounded(precision), Matrix::random(2, 1, n));
    // Columns in front: with four of them rows of f32 stay aligned for vector loads, as the real
    // ones are; with one they don't.
    let margin = match precision {
        Precision::F32 if form == Form::Plain => 4,
        Precision::F32 => 1,
        Precision::F16 | Precision::BF16 => 8,
    };
    let x_rows = Matrix::random(3, m, margin + k).rounded(precision);
    let mut residual_rows = Matrix::random(4, m, margin + n);
    // In the first column more than f16 holds, as it comes in real models.
    residual_rows.data.iter_mut().skip(margin).step_by(margin + n).for_each(|x| *x *= 1e6);
    let mut setup = Setup::new(precision);
    let x = if form == Form::LogitRows {
        let x = setup.f32_input("x", &x_rows).columns(margin, k);
        let last = setup.plan.activation("last", Rows::Logits, k, Dtype::F32);
        setup.plan.op(Op::GatherRows { x, out: last });
        setup.narrow("last as operand", last)
    } else {
        setup.input("x", &x_rows).columns(margin, k)
    };
    let weight_id = setup.matrix("weight", &weight);
    let bias_id = has_bias.then(|| setup.vector("bias", &bias));
    let residual =
        has_residual.then(|| setup.f32_input("residual", &residual_rows).columns(margin, n));
    let mut f32_out = |rows| setup.plan.activation("out", rows, n, Dtype::F32);
    let out = match (form, residual) {
        (Form::LogitRows, _) => f32_out(Rows::Logits),
        (Form::BiasAndResidualInPlace, Some(residual)) => residual,
        (_, Some(_)) => f32_out(Rows::Tokens),
        (_, None) => setup.activation("out", n),
    };
    let linear = Linear { bias: bias_id, residual, ..Linear::new(x, weight_id, out) };
    setup.plan.op(Op::Linear(linear));
    let bounds = bounds(m, m % 2 * 3);
    let kv = smallest_kv(&bounds);
    let (plan, weights) = match form {
        Form::LogitRows => {
            (finish_with_logits(setup.plan, &setup.numerics, bounds, kv, out), setup.weights)
        }
        _ => setup.finish(bounds, kv, out),
    };
    let mut expected = oracle::linear(
        &x_rows.columns(margin..margin + k),
        &weight,
        has_bias.then_some(&bias.data[..]),
        has_residual.then(|| residual_rows.columns(margin..margin + n)).as_ref(),
    );
    if plan.dtype(out) != Dtype::F32 {
        expected.iter_mut().for_each(|value| *value = value.stored(precision));
    }
    let step = Step { plan: 0, inputs: one_sequence(m, 0), expected };
    check(backend, &[plan], &weights, &[step])
}
