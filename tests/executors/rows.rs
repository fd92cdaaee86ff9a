//! Embedding, rows by index.

use halfwarp::plan::{Precision, StepInputs};

use crate::harness::{
    HALVES, Matrix, Setup, Step, bounds, check, one_sequence, smallest_kv, suffix,
};
use crate::oracle::Approx;
use crate::{Backend, Outcome, Test};

/// Tokens, and columns.
const ROW_SHAPES: &[(usize, usize)] =
    &[(1, 1), (1, 576), (3, 7), (17, 896), (64, 255), (65, 256), (5, 257), (2, 3072)];

/// Shapes of 16-bit elements, whose rows are aligned.
const HALF_ROW_SHAPES: &[(usize, usize)] = &[(1, 8), (1, 576), (17, 896), (65, 264), (2, 3072)];

pub fn tests() -> Vec<Test> {
    let f32_rows = ROW_SHAPES.iter().map(|&shape| (Precision::F32, shape));
    let half_rows = HALVES
        .into_iter()
        .flat_map(|precision| HALF_ROW_SHAPES.iter().map(move |&shape| (precision, shape)));
    let rows = f32_rows.chain(half_rows).map(|(precision, (rows, width))| {
        let name = format!("embedding::brings_every_row_{rows}x{width}{}", suffix(precision));
        Test::new(name, move |backend| brings_every_row(backend, precision, rows, width))
    });
    let picked = Test::new("gather_rows::brings_the_rows_that_are_wanted", brings_wanted_rows);
    rows.chain([picked]).collect()
}

/// From a table of the operand's type, and through an activation of it.
fn brings_every_row(backend: Backend, precision: Precision, rows: usize, width: usize) -> Outcome {
    let input = Matrix::random(1, rows, width).rounded(precision);
    let mut setup = Setup::new(precision);
    let wide = setup.embedding("input", &input, precision.operand());
    let out = setup.narrow("input as operand", wide);
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let expected = input.data.iter().map(|&x| Approx::exactly(x)).collect();
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(backend, &[plan], &weights, &[step])
}

/// Two sequences, of which the first wants one row and the second two.
fn brings_wanted_rows(backend: Backend) -> Outcome {
    let input = Matrix::random(1, 5, 70);
    let mut setup = Setup::default();
    let out = setup.input("input", &input);
    let mut bounds = bounds(5, 2);
    bounds.max_seqs = 3;
    let mut kv = smallest_kv(&bounds);
    kv.num_pages = 2;
    let (plan, weights) = setup.finish(bounds, kv, out);
    let mut inputs = StepInputs::new();
    inputs.push_sequence(&[5, 1], 0, &[1], 1..2);
    inputs.push_sequence(&[3, 4, 2], 0, &[0], 1..3);
    let wanted = [1, 4, 2].map(|token: usize| input.row(token - 1));
    let expected = wanted.concat().into_iter().map(Approx::exactly).collect();
    check(backend, &[plan], &weights, &[Step { plan: 0, inputs, expected }])
}
