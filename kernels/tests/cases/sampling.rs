//! The choice of tokens, against an oracle that sorts the whole row.

use crate::harness::*;
use cuda_std::launch::LaunchError;
use kernels::Rows;
use kernels::sampling::noise::Noise;
use kernels::sampling::{LogitEdit, NextToken, RowSampling, Sample, SampleWorkspace};
use oracle::Choice;

/// Padding of the rows: more than any logit.
const PAD: f32 = 1e9;

/// The tokens that `launches` choose for rows of logits. One row more has room.
fn sample(rows: &[Vec<f32>], sampling: &[RowSampling], seed: u64) -> Vec<NextToken> {
    sample_edited(rows, sampling, &vec![Vec::new(); rows.len()], seed)
}

/// As [`sample`], after the edits of each row.
fn sample_edited(
    rows: &[Vec<f32>],
    sampling: &[RowSampling],
    edits: &[Vec<LogitEdit>],
    seed: u64,
) -> Vec<NextToken> {
    let (num_rows, vocab_size) = (rows.len(), rows[0].len());
    let stride = vocab_size + 3;
    let mut logits = vec![PAD; num_rows * stride];
    for (padded, row) in logits.chunks_mut(stride).zip(rows) {
        padded[..vocab_size].copy_from_slice(row);
    }
    let mut edits_end = 0;
    let rows_words = sampling.iter().zip(edits).flat_map(|(sampling, edits)| {
        edits_end += edits.len() as u32;
        sampling.words(edits_end)
    });
    let words: Vec<u32> = rows_words.collect();
    let edits: Vec<u32> = edits.iter().flatten().flat_map(LogitEdit::words).collect();
    let mut device = Device::default();
    // The outputs go where the word beside the number of rows says.
    const FIRST: usize = 5;
    let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32, FIRST as u32]);
    let sampling_ptr = device.u32s("sampling", &words);
    let edits = device.u32s("edits", &edits);
    let logits = Rows::new(device.f32s("logits", &logits), stride);
    let drawn = device.poisoned("drawn", num_rows);
    let out = device.poisoned("out", FIRST + num_rows);
    let sample = Sample { max_rows: num_rows + 1, vocab_size };
    let zeros = vec![0; sample.zeroed_bytes()];
    let workspace = SampleWorkspace {
        scratch: device.poisoned("scratch", sample.scratch_bytes()),
        zeroed: device.bytes("zeroed", &zeros),
    };
    let launches =
        sample.launches(num_rows_ptr, sampling_ptr, edits, logits, &workspace, [drawn, out]);
    for launch in launches.expect("a right shape") {
        device.run(Ok(Some(launch)), seed);
    }
    let left = device.read_bytes(workspace.zeroed, zeros.len());
    assert!(left.iter().all(|&byte| byte == 0), "the workspace is not zeros again");
    let outputs = device.read_u32(out.add(FIRST), num_rows).into_iter();
    let outputs: Vec<_> = outputs.map(NextToken::from_output).collect();
    let token = |output: &NextToken| if let NextToken::Token(token) = *output { token } else { 0 };
    let tokens: Vec<_> = outputs.iter().map(token).collect();
    assert_eq!(device.read_u32(drawn, num_rows), tokens);
    outputs
}

/// What the oracle chooses of a row, and by how much.
fn oracle(row: &[f32], way: &RowSampling) -> (NextToken, f64) {
    let &RowSampling { temperature, top_k, top_p, min_p, seed, position } = way;
    let temperature = if way.is_greedy() { 0.0 } else { temperature };
    let sampling = oracle::Sampling { temperature, top_k: top_k as usize, top_p, min_p };
    let noise = Noise::new(seed, position);
    let (choice, margin) = oracle::sample(row, &sampling, |token| noise.bits(token));
    let choice = match choice {
        Choice::Token(token) => NextToken::Token(token),
        Choice::NotFinite(token) => NextToken::NotFinite(token),
        Choice::NoCandidate => NextToken::NoCandidate,
    };
    (choice, margin)
}

/// Equal numbers, what is not finite among numbers and alone, and tokens that are ruled out.
fn spoil(case: usize, row: &mut [f32]) {
    let last = row.len() - 1;
    match case {
        0 => row.iter_mut().skip(1).step_by(2).for_each(|x| *x = 2.0),
        1 => row[last] = f32::NAN,
        2 => row[last / 2..].fill(f32::INFINITY),
        3 => (row[last / 2], row[last]) = (f32::INFINITY, f32::NAN),
        4 => row.fill(f32::NAN),
        5 => row.fill(f32::NEG_INFINITY),
        6 => {
            row.fill(f32::NEG_INFINITY);
            row[last] = f32::MIN;
        }
        7 => {
            row.fill(-1.0);
            (row[last / 2], row[last]) = (-0.0, 0.0);
        }
        _ => row[last] = f32::MAX,
    }
}

#[test]
fn greedy_rows_take_the_first_of_the_largest() {
    const CASES: usize = 9;
    for vocab_size in [1, 1025, 8193] {
        for case in (0..CASES).step_by(3) {
            let rows: Vec<Vec<f32>> = (0..3)
                .map(|row| {
                    let mut logits = random(vocab_size, row);
                    spoil(case + row as usize, &mut logits);
                    logits
                })
                .collect();
            let wanted: Vec<_> =
                rows.iter().map(|row| oracle(row, &RowSampling::GREEDY).0).collect();
            let got = sample(&rows, &[RowSampling::GREEDY; 3], vocab_size as u64);
            assert_eq!(got, wanted, "{vocab_size}, case {case}, greedy");
            // What has no token is said in any case.
            let sampled = RowSampling { temperature: 1e-5, top_k: 1, ..RowSampling::GREEDY };
            let got = sample(&rows, &[sampled; 3], vocab_size as u64);
            assert_eq!(got, wanted, "{vocab_size}, case {case}, of the first token alone");
        }
    }
}

/// Checks rows of `logits(row)`, each sampled in every way of `ways`.
fn check(vocab_size: usize, logits: impl Fn(u64) -> Vec<f32>, ways: &[RowSampling]) {
    let rows: Vec<Vec<f32>> = (0..ways.len() as u64).map(logits).collect();
    assert_eq!(rows[0].len(), vocab_size);
    let got = sample(&rows, ways, vocab_size as u64);
    for ((row, way), got) in rows.iter().zip(ways).zip(got) {
        let (want, margin) = oracle(row, way);
        assert!(got == want || margin < 1e-5, "{way:?} of {vocab_size}: {got:?}, not {want:?}");
    }
}

/// Ways to sample, each with the rest as they are in `base`.
fn ways() -> Vec<RowSampling> {
    let base = RowSampling { temperature: 1.0, seed: 0x1234_5678_9abc, ..RowSampling::GREEDY };
    let truncations = [
        (0, 1.0, 0.0),
        (1, 1.0, 0.0),
        (2, 1.0, 0.0),
        (40, 1.0, 0.0),
        (5000, 1.0, 0.0),
        (0, 0.0, 0.0),
        (0, 0.3, 0.0),
        (0, 0.999, 0.0),
        (3, 0.5, 0.0),
        (40, 0.95, 0.0),
        (6000, 0.7, 0.0),
        (100_000, 0.4, 0.0),
        (0, 1.0, 0.2),
        (20, 0.8, 0.1),
        (0, 1.0, 1.0),
    ];
    let temperatures = [0.7, 1.0, 5.0, 1e-4].into_iter().cycle();
    (0..)
        .zip(truncations.into_iter().zip(temperatures))
        .map(|(position, ((top_k, top_p, min_p), temperature))| RowSampling {
            temperature,
            top_k,
            top_p,
            min_p,
            position,
            ..base
        })
        .collect()
}

#[test]
fn sampling_matches_oracle() {
    for vocab_size in [31, 8193] {
        for scale in [1.0, 8.0] {
            let logits = |row| {
                let logits = random(vocab_size, 7 * row + vocab_size as u64);
                logits.into_iter().map(|x| scale * x - 3.0).collect()
            };
            check(vocab_size, logits, &ways());
        }
    }
}

/// Rows of equal logits, and of a few that are: more tokens are as probable as the last kept one
/// than a list has room for.
#[test]
fn ties_are_broken_by_the_id() {
    let few =
        |len: usize, row: u64| (0..len as u64).map(|id| ((id * 7 + row) % 3) as f32).collect();
    check(100, |row| few(100, row), &ways());
    let base = RowSampling { temperature: 0.7, ..RowSampling::GREEDY };
    let both = RowSampling { top_k: 4200, top_p: 0.6, ..base };
    check(5000, |_| vec![-2.5; 5000], &[RowSampling { top_p: 0.3, ..base }, both]);
    check(13_000, |row| few(13_000, row), &[RowSampling { top_k: 40, ..base }]);
}

/// Tokens that are ruled out are never chosen.
#[test]
fn tokens_of_negative_infinity_are_not_drawn() {
    let vocab_size = 5000;
    let logits = |row: u64| {
        let mut logits = vec![f32::NEG_INFINITY; vocab_size];
        logits.iter_mut().skip(row as usize).step_by(500).for_each(|x| *x = row as f32);
        logits
    };
    check(vocab_size, logits, &ways());
}

/// Many draws of one row by the oracle, which the kernels match: as often as its probabilities say.
#[test]
fn tokens_are_drawn_as_often_as_they_are_probable() {
    const NUM_DRAWS: u32 = 4000;
    let logits = [1.0, 0.0, 3.0, 2.5, f32::NEG_INFINITY, 2.0, -4.0];
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    for (way, kept) in [
        (RowSampling { temperature: 0.8, ..RowSampling::GREEDY }, 6),
        (RowSampling { temperature: 1.5, top_k: 3, ..RowSampling::GREEDY }, 3),
        // 0.47, 0.28, 0.17: the third reaches 0.9.
        (RowSampling { temperature: 1.0, top_p: 0.9, ..RowSampling::GREEDY }, 3),
        // exp(-2) and more.
        (RowSampling { temperature: 1.0, min_p: 0.1, ..RowSampling::GREEDY }, 4),
    ] {
        let mut counts = vec![0; logits.len()];
        for position in 0..NUM_DRAWS {
            let (NextToken::Token(token), _) = oracle(&logits, &RowSampling { position, ..way })
            else {
                panic!("no token")
            };
            counts[token as usize] += 1;
        }
        let weight = |&token: &usize| f64::exp(f64::from(logits[token] / way.temperature));
        let total: f64 = order[..kept].iter().map(weight).sum();
        let chi_squared = order[..kept].iter().map(|token| {
            let wanted = f64::from(NUM_DRAWS) * weight(token) / total;
            (f64::from(counts[*token]) - wanted).powi(2) / wanted
        });
        let chi_squared: f64 = chi_squared.sum();
        assert!(order[kept..].iter().all(|&token| counts[token] == 0), "{way:?}: {counts:?}");
        // Five degrees of freedom exceed it once in 7,000.
        assert!(chi_squared < 25.0, "{way:?}: {counts:?}, chi squared {chi_squared}");
    }
}

/// A row has its token whatever else is in the batch.
#[test]
fn a_row_does_not_depend_on_the_others() {
    let logits: Vec<Vec<f32>> = ways().iter().zip(0..).map(|(_, row)| random(9001, row)).collect();
    let together = sample(&logits, &ways(), 3);
    for (row, way) in ways().into_iter().enumerate().step_by(5) {
        assert_eq!(sample(&logits[row..=row], &[way], 4), together[row..=row], "row {row}");
    }
}

/// Edits in every block and at its borders, of some rows alone; more than a block has threads.
#[test]
fn edited_rows_are_sampled_as_if_they_had_been_so() {
    let vocab_size = 8192 + 1025;
    let rows: Vec<Vec<f32>> = (0..4).map(|row| random(vocab_size, row)).collect();
    let edit = |token: usize| LogitEdit {
        token: token as u32,
        bias: if token.is_multiple_of(3) { 1.5 } else { 0.0 },
        divisor: if token.is_multiple_of(2) { 1.3 } else { 1.0 },
        penalty: (token % 5) as f32 * 0.2,
    };
    let many = (0..vocab_size).step_by(4).chain([8191, vocab_size - 2]).map(edit).collect();
    let edits = [vec![edit(9), edit(8193)], Vec::new(), many, vec![edit(0)]];
    let wanted: Vec<Vec<f32>> = rows
        .iter()
        .zip(&edits)
        .map(|(row, edits)| {
            let mut row = row.clone();
            for LogitEdit { token, bias, divisor, penalty } in edits {
                let logit = &mut row[*token as usize];
                *logit += bias;
                *logit = if *logit > 0.0 { *logit / divisor } else { *logit * divisor };
                *logit -= penalty;
            }
            row
        })
        .collect();
    let base = RowSampling { temperature: 0.8, seed: 11, ..RowSampling::GREEDY };
    for way in [RowSampling::GREEDY, base, RowSampling { top_k: 9, top_p: 0.8, ..base }] {
        let got = sample_edited(&rows, &[way; 4], &edits, 3);
        assert_eq!(got, sample(&wanted, &[way; 4], 4), "{way:?}");
    }
    // Among negative logits a repetition penalty lowers the largest one.
    let negative: Vec<f32> = rows[0].iter().map(|x| x.abs() - 3.0).collect();
    let token = oracle(&negative, &RowSampling::GREEDY).0;
    let NextToken::Token(first) = token else { panic!("{token:?}") };
    let edit = LogitEdit { token: first, bias: 0.0, divisor: 1.3, penalty: 0.0 };
    let mut want = negative.clone();
    want[first as usize] *= 1.3;
    let got = sample_edited(&[negative], &[RowSampling::GREEDY], &[vec![edit]], 6);
    assert_eq!(got, [oracle(&want, &RowSampling::GREEDY).0]);
    assert_ne!(got, [token]);
    // What is not finite stays so.
    let mut broken = rows.clone();
    (broken[0][9], broken[3][0]) = (f32::INFINITY, f32::NAN);
    let got = sample_edited(&broken, &[base; 4], &edits, 5);
    assert_eq!((got[0], got[3]), (NextToken::NotFinite(9), NextToken::NotFinite(0)));
}

#[test]
fn a_row_has_blocks() {
    let sample = |max_rows, vocab_size| {
        let workspace = SampleWorkspace { scratch: ptr(16), zeroed: ptr(32) };
        let sample = Sample { max_rows, vocab_size };
        let logits = rows(vocab_size);
        let launches =
            sample.launches(ptr(9), ptr(8), ptr(7), logits, &workspace, [ptr(3), ptr(2)]);
        launches.map(|launches| launches.into_iter().map(|launch| of(Ok(Some(launch)))).collect())
    };
    let launches: Vec<_> = sample(3, 151_936).unwrap();
    let names = ["sample_maximum_f32", "sample_histogram_f32", "sample_draw_f32"];
    assert_eq!(launches, names.map(|name| (name, [3, 19, 1], 1024, 0)));
    assert_eq!(sample(3, 8192).unwrap()[2].1, [3, 1, 1]);
    let of_3 = Sample { max_rows: 3, vocab_size: 151_936 };
    // A list of 4,096 places, eight words and 19 blocks' two bests twice; 2,048 bins of a mass and
    // a count, each array to a multiple of 16.
    assert_eq!(of_3.scratch_bytes(), 3 * (4096 * 8 + 32) + 2 * 464);
    assert_eq!(of_3.zeroed_bytes(), 3 * 2048 * 12 + 2 * 16);
    assert_eq!(sample(0, 151_936), Ok(Vec::new()));
    assert!(matches!(sample(3, 0), Err(LaunchError::Shape { what: "vocab_size", .. })));
}
