//! The choice of tokens.

use halfwarp::exec::{ExecError, LogitEdit, NextToken, RowSampling, StepOutput, Want};
use halfwarp::plan::{DRAWN, StepInputs};
use kernels::sampling::noise::Noise;
use libtest_mimic::Completion;

use crate::harness::{Matrix, Setup, bounds, one_sequence, smallest_kv};
use crate::{Backend, Outcome, Test};

/// Columns of a row of logits.
const VOCAB_SIZES: &[usize] = &[1, 2, 31, 32, 33, 1023, 1024, 1025, 8193, 49_152, 151_936];

/// Columns of a row of logits that is sampled.
const SAMPLED_VOCAB_SIZES: &[usize] = &[2, 33, 1025, 8193, 49_152];

pub fn tests() -> Vec<Test> {
    let greedy = VOCAB_SIZES.iter().map(|&vocab_size| {
        Test::new(format!("sample::greedy_matches_oracle_{vocab_size}"), move |backend| {
            greedy_matches_oracle(backend, vocab_size)
        })
    });
    let sampled = SAMPLED_VOCAB_SIZES.iter().map(|&vocab_size| {
        Test::new(format!("sample::matches_oracle_{vocab_size}"), move |backend| {
            matches_oracle(backend, vocab_size)
        })
    });
    let named = Test::new("sample::brings_the_logits_of_named_rows", brings_named_rows);
    let edited = Test::new("sample::edits_logits_before_the_choice", edits_logits);
    let queued = Test::new("sample::steps_in_the_queue_take_drawn_tokens", queued_steps);
    greedy.chain(sampled).chain([named, edited, queued]).collect()
}

/// A step that is put into the queue while another runs takes the tokens that this one draws, of
/// whatever rows; the step after it those that it draws itself.
fn queued_steps(backend: Backend) -> Outcome {
    const NUM_TOKENS: usize = 40;
    // Token t is followed by another of 1 to 40.
    let follower = |token: u32| (token * 7 + 2) % NUM_TOKENS as u32 + 1;
    let mut logits = Matrix::random(2, NUM_TOKENS, NUM_TOKENS + 1);
    for (token, row) in (1..).zip(logits.data.chunks_mut(NUM_TOKENS + 1)) {
        row[follower(token) as usize] = 9.0;
    }
    let mut setup = Setup::default();
    let out = setup.input("input", &logits);
    let bounds = bounds(5, 1);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    // Each row's token, or the row of the step before that draws it.
    let steps: [&[Result<u32, u32>]; 4] = [
        &[Ok(1), Ok(8), Ok(30)],
        &[Err(2), Ok(5), Err(0), Err(1), Err(0)],
        &[Err(4)],
        &[Ok(11), Err(0)],
    ];
    let step = |tokens: &[Result<u32, u32>]| {
        let mut inputs = one_sequence(tokens.len(), 0);
        inputs.token_ids =
            tokens.iter().map(|token| token.unwrap_or_else(|row| DRAWN | row)).collect();
        inputs
    };
    let run = || -> Result<Vec<Vec<u32>>, ExecError> {
        let mut executor = (backend.open)(&plan, &weights)?;
        let plan = executor.prepare(&plan)?;
        let (mut all, mut before) = (Vec::new(), Vec::new());
        for index in 0..steps.len() {
            let mut inputs = step(steps[index]);
            inputs.put_drawn(|row| before.get(row).copied());
            let next = steps.get(index + 1).map(|tokens| step(tokens));
            let output = executor.run_while(plan, &inputs, Want::NextTokens, &mut |queue| {
                next.iter().for_each(|next| queue.push(plan, next, Want::NextTokens));
            })?;
            before = output.next_tokens.iter().filter_map(|drawn| drawn.token()).collect();
            all.push(before.clone());
        }
        Ok(all)
    };
    let (mut expected, mut before) = (Vec::new(), Vec::<u32>::new());
    for tokens in steps {
        let token = |token: &Result<u32, u32>| token.unwrap_or_else(|row| before[row as usize]);
        before = tokens.iter().map(|it| follower(token(it))).collect();
        expected.push(before.clone());
    }
    match run().map_err(|error| error.to_string())? {
        got if got == expected => Ok(Completion::Completed),
        got => Err(format!("{got:?}, expected {expected:?}")),
    }
}

/// What a step of the rows of `logits` brings back.
fn run(
    backend: Backend,
    logits: &Matrix,
    sampling: &[RowSampling],
    want: Want<'_>,
) -> Result<StepOutput, String> {
    let mut inputs = one_sequence(sampling.len(), 0);
    inputs.sampling = sampling.to_vec();
    run_inputs(backend, logits, &inputs, want)
}

/// As [`run`], of a step of one sequence.
fn run_inputs(
    backend: Backend,
    logits: &Matrix,
    inputs: &StepInputs,
    want: Want<'_>,
) -> Result<StepOutput, String> {
    let mut setup = Setup::default();
    let out = setup.input("input", logits);
    let bounds = bounds(inputs.num_tokens(), 1);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let run = || -> Result<StepOutput, ExecError> {
        let mut executor = (backend.open)(&plan, &weights)?;
        let prepared = executor.prepare(&plan)?;
        // The second step finds what the first has left.
        executor.run(prepared, inputs, want)?;
        executor.run(prepared, inputs, want)
    };
    run().map_err(|error| error.to_string())
}

fn next_tokens(
    backend: Backend,
    logits: &Matrix,
    sampling: &[RowSampling],
) -> Result<Vec<NextToken>, String> {
    Ok(run(backend, logits, sampling, Want::NextTokens)?.next_tokens)
}

fn greedy_matches_oracle(backend: Backend, vocab_size: usize) -> Outcome {
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

    let got = next_tokens(backend, &input, &[RowSampling::GREEDY; 8])?;
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

/// Ways to sample a row each.
fn ways() -> Vec<RowSampling> {
    let base = RowSampling { temperature: 0.8, seed: 0x1234_5678_9abc, ..RowSampling::GREEDY };
    vec![
        base,
        RowSampling { top_k: 40, position: 1, ..base },
        RowSampling { top_p: 0.9, position: 2, ..base },
        RowSampling { min_p: 0.05, position: 3, ..base },
        RowSampling { temperature: 1.5, top_k: 20, top_p: 0.7, min_p: 0.01, position: 4, ..base },
        RowSampling::GREEDY,
        RowSampling { temperature: 3.0, top_k: 1, ..base },
        RowSampling { top_p: 0.999, seed: 7, position: 100_000, ..base },
    ]
}

fn matches_oracle(backend: Backend, vocab_size: usize) -> Outcome {
    let mut logits = Matrix::random(vocab_size as u64, 8, vocab_size);
    logits.data.iter_mut().for_each(|logit| *logit *= 6.0);
    let got = next_tokens(backend, &logits, &ways())?;
    for (row, (way, got)) in ways().iter().zip(got).enumerate() {
        let (expected, margin) = oracle(logits.row(row), way);
        if got != NextToken::Token(expected) && margin > 1e-5 {
            return Err(format!("{way:?}: got {got:?}, expected {expected}"));
        }
    }
    Ok(Completion::Completed)
}

/// The token by its definition, with all tokens sorted; and by how much it has won.
fn oracle(row: &[f32], way: &RowSampling) -> (u32, f64) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut tokens: Vec<(f32, u32)> = (0..).zip(row).map(|(id, &x)| (max - x, id)).collect();
    tokens.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    if way.is_greedy() {
        return (tokens[0].1, f64::INFINITY);
    }
    tokens.truncate(if way.top_k == 0 { row.len() } else { way.top_k as usize });
    let mass = |token: &(f32, u32)| f64::exp(-f64::from(token.0));
    let wanted = f64::from(way.top_p) * tokens.iter().map(mass).sum::<f64>();
    let mut before = 0.0;
    tokens.retain(|token| {
        let is_kept = way.top_p >= 1.0 || before < wanted;
        before += mass(token);
        is_kept
    });
    tokens.retain(|token| mass(token) >= f64::from(way.min_p));
    let noise = Noise::new(way.seed, way.position);
    let score = |&(distance, id): &(f32, u32)| {
        let uniform = (f64::from(noise.bits(id)) + 0.5) / 2f64.powi(32);
        (f64::from(distance) / f64::from(way.temperature) + (-f64::ln_1p(-uniform)).ln(), id)
    };
    let mut scores: Vec<(f64, u32)> = tokens.iter().map(score).collect();
    scores.sort_by(|a, b| a.0.total_cmp(&b.0));
    (scores[0].1, scores.get(1).map_or(f64::INFINITY, |second| second.0 - scores[0].0))
}

/// The tokens of all rows, and the logits of some that lie side by side and apart.
fn brings_named_rows(backend: Backend) -> Outcome {
    let logits = Matrix::random(3, 8, 70);
    for rows in [vec![], vec![0], vec![7], vec![1, 2, 5], (0..8).collect()] {
        let output = run(backend, &logits, &ways(), Want::LogitsOf(&rows))?;
        let wanted: Vec<f32> = rows.iter().flat_map(|&row| logits.row(row)).copied().collect();
        if output.logits != wanted {
            return Err(format!("other logits of {rows:?}"));
        }
        if output.next_tokens != next_tokens(backend, &logits, &ways())? {
            return Err(format!("other tokens beside the logits of {rows:?}"));
        }
    }
    Ok(Completion::Completed)
}

/// Rows with many edits, with few and with none, against rows that were so before.
fn edits_logits(backend: Backend) -> Outcome {
    const VOCAB_SIZE: usize = 9000;
    let logits = Matrix::random(4, 8, VOCAB_SIZE);
    let mut inputs = one_sequence(8, 0);
    inputs.sampling = ways();
    let mut changed = logits.clone();
    for (row, step) in [2, 9, 5000, VOCAB_SIZE, 1024, 70, 8192, 50].into_iter().enumerate() {
        let edited = (0..VOCAB_SIZE).step_by(step).filter(|_| row != 3);
        for token in edited {
            let bias = if token.is_multiple_of(3) { 0.75 } else { 0.0 };
            let (divisor, penalty) = (1.0 + (token % 4) as f32 * 0.25, (token % 7) as f32 * 0.125);
            inputs.edits.push(LogitEdit { token: token as u32, bias, divisor, penalty });
            let logit = &mut changed.data[row * VOCAB_SIZE + token];
            *logit += bias;
            *logit = if *logit > 0.0 { *logit / divisor } else { *logit * divisor };
            *logit -= penalty;
        }
        inputs.edit_ends[row] = inputs.edits.len();
    }
    let got = run_inputs(backend, &logits, &inputs, Want::NextTokens)?.next_tokens;
    if got != next_tokens(backend, &changed, &ways())? {
        return Err(format!("other tokens: {got:?}"));
    }
    // More edits than there is room for.
    while inputs.edits.len() < 20_000 {
        inputs.edits.push(LogitEdit { token: 0, bias: 0.0, divisor: 1.0, penalty: 0.0 });
    }
    inputs.edit_ends[7] = inputs.edits.len();
    match run_inputs(backend, &logits, &inputs, Want::NextTokens) {
        Err(error) if error.contains("beyond") => Ok(Completion::Completed),
        other => Err(format!("{other:?}")),
    }
}
