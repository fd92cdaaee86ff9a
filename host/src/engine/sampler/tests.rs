use super::*;
use crate::engine::edits::Edits;

const NEG_INF: f32 = f32::NEG_INFINITY;

/// The next token after `prompt` and `generated`.
fn sample(
    sampling: &Sampling,
    logits: &[f32],
    prompt: &[u32],
    generated: &[u32],
) -> Result<u32, SamplingError> {
    let mut edits = Edits::new(sampling, prompt);
    generated.iter().for_each(|&token| edits.push(token));
    super::sample(sampling, logits.into(), edits.as_slice(), generated.len())
}

/// The probability of each token, step by step as the documentation of [`Sampling`] says, in f64.
fn oracle(sampling: &Sampling, logits: &[f32], prompt: &[u32], generated: &[u32]) -> Vec<f64> {
    let mut logits: Vec<f64> = logits.iter().map(|&logit| logit as f64).collect();
    for (token, logit) in (0..).zip(&mut logits) {
        let biases = sampling.logit_bias.iter().filter(|bias| bias.0 == token);
        *logit += biases.map(|bias| bias.1 as f64).sum::<f64>();
        if prompt.contains(&token) || generated.contains(&token) {
            let penalty = sampling.repetition_penalty as f64;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        let count = generated.iter().filter(|&&other| other == token).count();
        *logit -= count as f64 * sampling.frequency_penalty as f64;
        *logit -= if count > 0 { sampling.presence_penalty as f64 } else { 0.0 };
    }
    let softmax = |kept: &[usize], temperature: f64| -> Vec<f64> {
        let exp: Vec<f64> = kept.iter().map(|&t| (logits[t] / temperature).exp()).collect();
        exp.iter().map(|e| e / exp.iter().sum::<f64>()).collect()
    };
    let mut kept: Vec<usize> = (0..logits.len()).collect();
    kept.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    if sampling.top_k > 0 {
        kept.truncate(sampling.top_k);
    }
    let p = softmax(&kept, 1.0);
    let reached = |n: usize| p[..n].iter().sum::<f64>() >= sampling.top_p as f64;
    kept.truncate((1..kept.len()).find(|&n| reached(n)).unwrap_or(kept.len()));
    let p = softmax(&kept, 1.0);
    let above = p.iter().take_while(|&&p_t| p_t >= sampling.min_p as f64 * p[0]).count();
    kept.truncate(above);
    let mut probabilities = vec![0.0; logits.len()];
    for (&token, p) in kept.iter().zip(softmax(&kept, sampling.temperature as f64)) {
        probabilities[token] = p;
    }
    probabilities
}

#[test]
fn draws_follow_the_oracle() {
    let logits = [1.0, -0.5, 2.0, 0.3, NEG_INF, 1.9, -3.0, 0.9];
    let plain = || Sampling { temperature: 1.0, ..Default::default() };
    let cases = [
        plain(),
        Sampling { temperature: 0.4, ..plain() },
        Sampling { temperature: 2.5, ..plain() },
        Sampling { top_k: 3, ..plain() },
        Sampling { top_k: 1, ..plain() },
        Sampling { top_k: 100, ..plain() },
        Sampling { top_p: 0.7, ..plain() },
        Sampling { top_p: 0.0, ..plain() },
        Sampling { min_p: 0.3, ..plain() },
        Sampling { min_p: 1.0, ..plain() },
        Sampling { repetition_penalty: 1.8, ..plain() },
        Sampling { presence_penalty: 1.5, ..plain() },
        Sampling { presence_penalty: -1.0, ..plain() },
        Sampling { frequency_penalty: 0.6, ..plain() },
        Sampling { frequency_penalty: -0.6, ..plain() },
        Sampling { logit_bias: vec![(6, 4.0), (2, NEG_INF), (0, -1.0), (0, -0.5)], ..plain() },
        Sampling {
            temperature: 0.8,
            top_k: 5,
            top_p: 0.95,
            min_p: 0.1,
            repetition_penalty: 1.1,
            presence_penalty: 0.4,
            frequency_penalty: 0.3,
            logit_bias: vec![(2, -0.5), (6, 3.0), (4, 100.0)],
            seed: 3,
        },
    ];
    const DRAWS: usize = 20_000;
    let (prompt, generated) = ([2, 7, 2], [6, 2, 6, 0]);
    for sampling in cases {
        let mut counts = [0usize; 8];
        for seed in 0..DRAWS as u64 {
            let sampling = Sampling { seed, ..sampling.clone() };
            counts[sample(&sampling, &logits, &prompt, &generated).unwrap() as usize] += 1;
        }
        let wanted = oracle(&sampling, &logits, &prompt, &generated);
        for (token, (&count, p)) in counts.iter().zip(wanted).enumerate() {
            let sigma = (p * (1.0 - p) / DRAWS as f64).sqrt();
            let share = count as f64 / DRAWS as f64;
            let is_close = (share - p).abs() <= 4.5 * sigma;
            assert!(is_close, "{sampling:?}: token {token} drawn {share}, probability {p}");
        }
    }
}

/// The draws of one seed are spread like the first draws of many.
#[test]
fn positions_are_independent() {
    let logits = [0.0, 1.0f32.ln(), 2.0f32.ln()];
    let mut counts = [0usize; 3];
    let sampling = Sampling { temperature: 1.0, seed: 5, ..Default::default() };
    for len in 0..4000 {
        counts[sample(&sampling, &logits, &[], &vec![0; len]).unwrap() as usize] += 1;
    }
    for (count, wanted) in counts.into_iter().zip([1000, 1000, 2000]) {
        assert!(count.abs_diff(wanted) < 150, "{counts:?}");
    }
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let logits: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin()).collect();
    let draw = |seed| {
        let sampling =
            Sampling { temperature: 1.0, top_k: 50, top_p: 0.9, seed, ..Default::default() };
        (0..50)
            .map(|len| sample(&sampling, &logits, &[], &vec![0; len]).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn penalties_and_biases_change_the_choice() {
    let penalised = Sampling { repetition_penalty: 2.0, ..Default::default() };
    let after = |logits: &[f32], prompt: &[u32]| sample(&penalised, logits, prompt, &[]);
    assert_eq!(after(&[2.0, 3.0], &[1, 1]), Ok(0), "3 / 2 < 2, however often");
    assert_eq!(after(&[-2.5, -2.0], &[1]), Ok(0), "-2 * 2 < -2.5");
    assert_eq!(after(&[NEG_INF, -2.0], &[0, 1]), Ok(1));
    for changed in [
        Sampling { presence_penalty: 1.5, ..Default::default() },
        Sampling { frequency_penalty: 1.5, ..Default::default() },
        Sampling { logit_bias: vec![(1, -1.5)], ..Default::default() },
    ] {
        assert_eq!(sample(&changed, &[2.0, 3.0], &[], &[1]), Ok(0));
    }
    let sampling = Sampling { repetition_penalty: 1e-30, ..Default::default() };
    assert_eq!(sample(&sampling, &[1e30, 1.0], &[0], &[]), Ok(0), "no inf");
    let ruled_out = Sampling { logit_bias: vec![(1, NEG_INF)], ..Default::default() };
    let broken = sample(&ruled_out, &[0.0, f32::INFINITY], &[], &[]);
    assert_eq!(broken, Err(SamplingError::NotFinite { token: 1 }), "whatever the bias");
}

#[test]
fn values_out_of_range_are_named() {
    let good = Sampling::default;
    assert_eq!(good().check(8), Ok(()));
    let ends = Sampling {
        presence_penalty: -2.0,
        frequency_penalty: 2.0,
        logit_bias: vec![(0, -100.0), (7, 100.0), (7, NEG_INF)],
        ..good()
    };
    assert_eq!(ends.check(8), Ok(()));
    let bad = [
        ("temperature", Sampling { temperature: -0.1, ..good() }),
        ("temperature", Sampling { temperature: f32::NAN, ..good() }),
        ("temperature", Sampling { temperature: f32::INFINITY, ..good() }),
        ("top-p", Sampling { top_p: -0.1, ..good() }),
        ("top-p", Sampling { top_p: 1.1, ..good() }),
        ("min-p", Sampling { min_p: -0.1, ..good() }),
        ("min-p", Sampling { min_p: f32::NAN, ..good() }),
        ("repetition penalty", Sampling { repetition_penalty: 0.0, ..good() }),
        ("presence penalty", Sampling { presence_penalty: 2.1, ..good() }),
        ("presence penalty", Sampling { presence_penalty: f32::NAN, ..good() }),
        ("frequency penalty", Sampling { frequency_penalty: -2.1, ..good() }),
        ("frequency penalty", Sampling { frequency_penalty: NEG_INF, ..good() }),
        ("logit bias -101", Sampling { logit_bias: vec![(0, 1.0), (1, -101.0)], ..good() }),
        ("logit bias inf", Sampling { logit_bias: vec![(1, f32::INFINITY)], ..good() }),
        ("logit bias NaN", Sampling { logit_bias: vec![(1, f32::NAN)], ..good() }),
        ("logit bias of token 8", Sampling { logit_bias: vec![(8, 1.0)], ..good() }),
    ];
    for (name, sampling) in bad {
        let message = sampling.check(8).unwrap_err().to_string();
        assert!(message.starts_with(name), "{message}");
    }
}
