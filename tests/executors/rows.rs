//! Embedding, rows by index, argmax.

use halfwarp::exec::{ExecError, NextToken, Want};
use halfwarp::plan::{Precision, StepInputs};
use libtest_mimic::Completion;

use crate::harness::{
    HALVES, Matrix, Setup, Step, bounds, check, one_sequence, smallest_kv, suffix,
};
use crate::oracle::Approx;
use crate::{Outcome, Subject, Test};

/// Tokens, and columns.
const ROW_SHAPES: &[(usize, usize)] =
    &[(1, 1), (1, 576), (3, 7), (17, 896), (64, 255), (65, 256), (5, 257), (2, 3072)];

/// Those of 16-bit elements, whose rows are aligned.
const HALF_ROW_SHAPES: &[(usize, usize)] = &[(1, 8), (1, 576), (17, 896), (65, 264), (2, 3072)];

/// Columns of a row of logits.
const VOCAB_SIZES: &[usize] = &[1, 2, 31, 32, 33, 1023, 1024, 1025, 8193, 49_152, 151_936];

pub fn tests() -> Vec<Test> {
    let f32_rows = ROW_SHAPES.iter().map(|&shape| (Precision::F32, shape));
    let half_rows = HALVES
        .into_iter()
        .flat_map(|precision| HALF_ROW_SHAPES.iter().map(move |&shape| (precision, shape)));
    let rows = f32_rows.chain(half_rows).map(|(precision, (rows, width))| {
        let name = format!("embedding::brings_every_row_{rows}x{width}{}", suffix(precision));
        Test::new(name, move |subject| brings_every_row(subject, precision, rows, width))
    });
    let argmax = VOCAB_SIZES.iter().map(|&vocab_size| {
        Test::new(format!("argmax::matches_oracle_{vocab_size}"), move |subject| {
            argmax_matches_oracle(subject, vocab_size)
        })
    });
    let picked = Test::new("gather_rows::brings_the_rows_that_are_wanted", brings_wanted_rows);
    rows.chain(argmax).chain([picked]).collect()
}

/// From a table of the operand's type, and through an activation of it.
fn brings_every_row(subject: Subject, precision: Precision, rows: usize, width: usize) -> Outcome {
    let input = Matrix::random(1, rows, width).rounded(precision);
    let mut setup = Setup::new(precision);
    let wide = setup.embedding("input", &input, precision.operand());
    let out = setup.narrow("input as operand", wide);
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let expected = input.data.iter().map(|&x| Approx::exactly(x)).collect();
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(subject, &[plan], &weights, &[step])
}

/// Two sequences, of which the first wants one row and the second two.
fn brings_wanted_rows(subject: Subject) -> Outcome {
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
    check(subject, &[plan], &weights, &[Step { plan: 0, inputs, expected }])
}

fn argmax_matches_oracle(subject: Subject, vocab_size: usize) -> Outcome {
    let mut input = Matrix::random(1, 8, vocab_size);
    let middle = vocab_size / 2;
    let row = |index: usize| index * vocab_size..(index + 1) * vocab_size;
    // Row 1: the largest three times. Row 2: NaN all over. Row 3: no token but one. Row 4: all
    // equal. Row 5: an infinity at the end, NaN before it. Row 6: an infinity. Row 7: no token.
    for index in [vocab_size - 1, middle, vocab_size - 1 - vocab_size / 3] {
        input.data[row(1)][index] = 2.0;
    }
    input.data[row(2)].fill(f32::NAN);
    input.data[row(3)].fill(f32::NEG_INFINITY);
    input.data[row(3)][middle] = f32::MIN;
    input.data[row(4)].fill(-0.5);
    input.data[row(5)][middle] = f32::NAN;
    input.data[row(5)][vocab_size - 1] = f32::INFINITY;
    input.data[row(6)][middle] = f32::INFINITY;
    input.data[row(7)].fill(f32::NEG_INFINITY);

    let mut setup = Setup::default();
    let out = setup.input("input", &input);
    let bounds = bounds(8, 1);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let run = || -> Result<Vec<NextToken>, ExecError> {
        let mut executor = (subject.open)(&plan, &weights)?;
        let prepared = executor.prepare(&plan)?;
        Ok(executor.run(prepared, &one_sequence(8, 0), Want::NextTokens)?.next_tokens)
    };
    let got = run().map_err(|error| error.to_string())?;
    let expected: Vec<NextToken> = (0..8).map(|row| naive_argmax(input.row(row))).collect();
    if got != expected {
        return Err(format!("got {got:?}, expected {expected:?}"));
    }
    Ok(Completion::Completed)
}

/// The smallest index of the largest element, unless one is broken or none can be chosen.
fn naive_argmax(row: &[f32]) -> NextToken {
    if let Some(index) = row.iter().position(|&x| x.is_nan() || x == f32::INFINITY) {
        return NextToken::NotFinite(index as u32);
    }
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    match row.iter().position(|&x| x == max && x > f32::NEG_INFINITY) {
        Some(index) => NextToken::Token(index as u32),
        None => NextToken::NoCandidate,
    }
}
