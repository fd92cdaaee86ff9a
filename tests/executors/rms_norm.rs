//! RMSNorm over one group a row, and over heads.

use halfwarp::plan::{Op, Precision};

use crate::harness::{
    HALVES, Matrix, Setup, Step, bounds, check, one_sequence, smallest_kv, suffix,
};
use crate::{Backend, Outcome, Test, oracle};

/// Rows, groups, columns of a group.
const SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 1, 576),
    (3, 1, 7),
    (5, 1, 896),
    (2, 1, 1023),
    (2, 1, 1024),
    (2, 1, 1025),
    (9, 1, 3072),
    (4, 14, 64),
    (7, 3, 33),
    (2, 40, 128),
    (65, 2, 256),
];

/// Shapes of 16-bit elements, whose rows are aligned.
const HALF_SHAPES: &[(usize, usize, usize)] =
    &[(1, 1, 8), (1, 1, 576), (5, 1, 896), (2, 1, 1032), (9, 1, 3072), (4, 14, 64), (65, 2, 256)];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Apart,
    InPlace,
    /// Norm of the residual stream.
    FromF32,
    /// Norm of the residual stream in place: the hidden states that embeddings are made of.
    F32InPlace,
}

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |precision: Precision, shape: (usize, usize, usize), form: Form| {
        let (rows, groups, width) = shape;
        let place = match form {
            Form::Apart => "apart",
            Form::InPlace => "in_place",
            Form::FromF32 => "from_f32",
            Form::F32InPlace => "f32_in_place",
        };
        let name = format!("{rows}x{groups}x{width}_{place}{}", suffix(precision));
        tests.push(Test::new(format!("rms_norm::matches_oracle_{name}"), move |backend| {
            matches_oracle(backend, precision, shape, form)
        }));
    };
    for &shape in SHAPES {
        add(Precision::F32, shape, Form::InPlace);
        add(Precision::F32, shape, Form::Apart);
    }
    for precision in HALVES {
        for &shape in HALF_SHAPES {
            for form in [Form::Apart, Form::InPlace, Form::FromF32, Form::F32InPlace] {
                add(precision, shape, form);
            }
        }
    }
    tests
}

fn matches_oracle(
    backend: Backend,
    precision: Precision,
    (rows, groups, width): (usize, usize, usize),
    form: Form,
) -> Outcome {
    // As large as the mean of squares, so that a norm without it fails.
    let eps = 0.25;
    // Columns in front, so that the view starts inside its rows.
    let margin = if precision == Precision::F32 { 3 } else { 8 };
    let mut input = Matrix::random(1, rows, margin + groups * width);
    let is_f32 = matches!(form, Form::FromF32 | Form::F32InPlace);
    if is_f32 {
        // In the first column more than f16 holds, as it comes in real models.
        input.data.iter_mut().skip(margin).step_by(margin + groups * width).for_each(|x| *x *= 1e6);
    } else {
        input = input.rounded(precision);
    }
    let weight = Matrix::random(2, 1, width);
    let mut setup = Setup::new(precision);
    let x = match is_f32 {
        true => setup.f32_input("input", &input),
        false => setup.input("input", &input),
    };
    let x = x.columns(margin, groups * width);
    let out = match form {
        Form::InPlace | Form::F32InPlace => x,
        Form::Apart | Form::FromF32 => setup.activation("out", groups * width),
    };
    let weight_id = setup.vector("weight", &weight);
    setup.plan.op(Op::RmsNorm { x, weight: weight_id, out, eps });
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let expected = oracle::rms_norm(&input.columns(margin..input.cols), &weight.data, eps);
    let stored = if form == Form::F32InPlace { Precision::F32 } else { precision };
    let expected = expected.into_iter().map(|value| value.stored(stored)).collect();
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(backend, &[plan], &weights, &[step])
}
