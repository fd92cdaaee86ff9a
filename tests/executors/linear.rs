//! Linear layers: every size of batch around the tiles, real and odd widths, bias and residual.

use halfwarp::plan::{Dtype, Op, Rows};

use crate::harness::{
    Matrix, Setup, Step, bounds, check, finish_with_logits, one_sequence, smallest_kv,
};
use crate::{Outcome, Subject, Test, oracle};

/// Rows of x: a decode step, a few sequences, and one less and more than each tile.
const ROWS: &[usize] = &[1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200];

/// Columns of x, and of out: SmolLM2 and Qwen2.5's, and around the tiles.
const WIDTHS: &[(usize, usize)] =
    &[(1, 1), (7, 5), (15, 63), (16, 64), (17, 65), (64, 127), (100, 128), (576, 129), (896, 320)];

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
    let mut add = |m: usize, (k, n): (usize, usize), form: Form| {
        let name = format!("linear::matches_oracle_{m}x{n}x{k}_{form:?}").to_lowercase();
        tests.push(Test::new(name, move |subject| matches_oracle(subject, m, k, n, form)));
    };
    for &m in ROWS {
        for &widths in WIDTHS {
            add(m, widths, Form::Plain);
        }
    }
    // Enough blocks of the largest tile to fill a GPU.
    add(300, (68, 11_264), Form::Plain);
    for m in [1, 7, 65, 129] {
        for widths in [(33, 70), (576, 192)] {
            add(m, widths, Form::Bias);
            add(m, widths, Form::Residual);
            add(m, widths, Form::BiasAndResidualInPlace);
            add(m, widths, Form::LogitRows);
        }
    }
    tests
}

fn matches_oracle(subject: Subject, m: usize, k: usize, n: usize, form: Form) -> Outcome {
    let has_bias = matches!(form, Form::Bias | Form::BiasAndResidualInPlace);
    let has_residual = matches!(form, Form::Residual | Form::BiasAndResidualInPlace);
    let (weight, bias) = (Matrix::random(1, n, k), Matrix::random(2, 1, n));
    // Columns in front: with four of them rows stay aligned for vector loads, as the real ones are; with one they don't.
    let margin = if form == Form::Plain { 4 } else { 1 };
    let x_rows = Matrix::random(3, m, margin + k);
    let residual_rows = Matrix::random(4, m, margin + n);
    let mut setup = Setup::default();
    let x = setup.input("x", &x_rows).columns(margin, k);
    let residual = setup.input("residual", &residual_rows).columns(margin, n);
    let weight_id = setup.weight("weight", &weight);
    let bias_id = has_bias.then(|| setup.weight("bias", &bias));
    let out = match form {
        Form::BiasAndResidualInPlace => residual,
        Form::LogitRows => setup.plan.activation("out", Rows::Logits, n, Dtype::F32),
        _ => setup.activation("out", n),
    };
    let x = if form == Form::LogitRows {
        let last = setup.plan.activation("last", Rows::Logits, k, Dtype::F32);
        setup.plan.op(Op::GatherRows { x, out: last });
        last
    } else {
        x
    };
    let residual = has_residual.then_some(residual);
    setup.plan.op(Op::Linear { x, weight: weight_id, bias: bias_id, residual, out });
    let bounds = bounds(m, m % 2 * 3);
    let kv = smallest_kv(&bounds);
    let (plan, weights) = match form {
        Form::LogitRows => (finish_with_logits(setup.plan, bounds, kv, out), setup.weights),
        _ => setup.finish(bounds, kv, out),
    };
    let expected = oracle::linear(
        &x_rows.columns(margin..margin + k),
        &weight,
        has_bias.then_some(&bias.data[..]),
        has_residual.then(|| residual_rows.columns(margin..margin + n)).as_ref(),
    );
    let step = Step { plan: 0, inputs: one_sequence(m, 0), expected };
    check(subject, &[plan], &weights, &[step])
}
