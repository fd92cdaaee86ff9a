//! RMSNorm over one group a row, and over heads.

use halfwarp::plan::Op;

use crate::harness::{Matrix, Setup, Step, bounds, check, one_sequence, smallest_kv};
use crate::{Outcome, Subject, Test, oracle};

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

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for &(rows, groups, width) in SHAPES {
        for in_place in [false, true] {
            let place = if in_place { "in_place" } else { "apart" };
            tests.push(Test::new(
                format!("rms_norm::matches_oracle_{rows}x{groups}x{width}_{place}"),
                move |subject| matches_oracle(subject, rows, groups, width, in_place),
            ));
        }
    }
    tests
}

fn matches_oracle(
    subject: Subject,
    rows: usize,
    groups: usize,
    width: usize,
    in_place: bool,
) -> Outcome {
    let eps = 1e-5;
    // Three columns in front, so that the view starts inside its rows.
    let input = Matrix::random(1, rows, 3 + groups * width);
    let weight = Matrix::random(2, 1, width);
    let mut setup = Setup::default();
    let x = setup.input("input", &input).columns(3, groups * width);
    let out = if in_place { x } else { setup.activation("out", groups * width) };
    let weight_id = setup.weight("weight", &weight);
    setup.plan.op(Op::RmsNorm { x, weight: weight_id, out, eps });
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let expected = oracle::rms_norm(&input.columns(3..3 + groups * width), &weight.data, eps);
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(subject, &[plan], &weights, &[step])
}
