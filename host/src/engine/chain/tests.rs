//! Chains beside llama.cpp's samplers, whose results `tests/fixtures/make_llama_server.py` has written down.

use super::*;
use crate::Model;
use serde_json::Value;
use std::fs;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/llama_server/");

/// Probabilities are f32 there.
const TOLERANCE: f64 = 2e-5;

fn fixture() -> Value {
    serde_json::from_slice(&fs::read(format!("{FIXTURES}samplers.json")).unwrap()).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn logits(case: &Value) -> Vec<f32> {
    case["logits"].as_array().unwrap().iter().map(|logit| number(logit) as f32).collect()
}

/// A step as the script writes it: its name in libllama, and what it is made with.
fn step(step: &Value, model: &Arc<Model>) -> SamplerStep {
    let of = |index: usize| number(&step[index]);
    let count = |index: usize| step[index].as_u64().unwrap() as usize;
    match step[0].as_str().unwrap() {
        "penalties" => SamplerStep::Penalties(Penalties {
            last_n: count(1),
            repetition: of(2),
            frequency: of(3),
            presence: of(4),
        }),
        "dry" => SamplerStep::Dry(Dry {
            multiplier: of(1),
            base: of(2),
            allowed_length: count(3),
            last_n: count(4),
            // Each of the texts is one token of this vocabulary, or a byte.
            breakers: (step[5].as_array().unwrap().iter())
                .flat_map(|text| {
                    let tokenizer = &model.text().unwrap().tokenizer;
                    let text = text.as_str().unwrap();
                    let byte = format!("<0x{:02X}>", text.as_bytes()[0]);
                    [tokenizer.token_to_id(text), tokenizer.token_to_id(&byte)]
                })
                .flatten()
                .map(|id| (id, vec![Vec::new()]))
                .collect(),
        }),
        "top_n_sigma" => SamplerStep::TopNSigma(of(1)),
        "top_k" => SamplerStep::TopK(count(1)),
        "typical" => SamplerStep::Typical(of(1)),
        "top_p" => SamplerStep::TopP(of(1)),
        "min_p" => SamplerStep::MinP(of(1)),
        "xtc" => SamplerStep::Xtc { probability: 1.0, threshold: of(1) },
        "temp_ext" => SamplerStep::Temperature { value: of(1), range: of(2), exponent: of(3) },
        "infill" => SamplerStep::Infill(Arc::clone(model) as _),
        other => panic!("{other}"),
    }
}

#[test]
fn steps_leave_what_llama_cpps_leave() {
    let model = Arc::new(Model::open(format!("{FIXTURES}model.gguf")).unwrap());
    let fixture = fixture();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() > 60, "{}", cases.len());
    for case in cases {
        let steps = case["steps"].as_array().unwrap().iter().map(|it| step(it, &model)).collect();
        let state = ChainState::new(Arc::new(SamplerChain { steps, mirostat: None }));
        let tokens: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        let stop_tokens = model.stop_tokens();
        let before = Before { tokens: &tokens, stop_tokens, seed: 0, position: 0 };
        let candidates = state.candidates(&logits(case), before);
        let p = probabilities(&candidates);
        let mut left: Vec<_> = candidates.iter().map(|it| it.token).zip(p).collect();
        left.sort_by_key(|(token, _)| *token);
        let wanted: Vec<(u32, f64)> =
            serde_json::from_value(case["probabilities"].clone()).unwrap();
        let ids = |list: &[(u32, f64)]| list.iter().map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(ids(&left), ids(&wanted), "{} of {}", case["steps"], case["logits"]);
        for ((token, p), (_, wanted)) in left.into_iter().zip(wanted) {
            assert!((p - wanted).abs() < TOLERANCE, "{}: {token}: {p}, {wanted}", case["steps"]);
        }
    }
}

#[test]
fn mirostat_goes_with_llama_cpps() {
    for run in fixture()["mirostat"].as_array().unwrap() {
        let version = run["version"].as_u64().unwrap() as u8;
        let mirostat = Mirostat { version, tau: number(&run["tau"]), eta: number(&run["eta"]) };
        let chain = SamplerChain { steps: Vec::new(), mirostat: Some(mirostat) };
        let mut state = ChainState::new(Arc::new(chain));
        for row in run["rows"].as_array().unwrap() {
            let logits = logits(row);
            let before = Before { tokens: &[], stop_tokens: &[], seed: 0, position: 0 };
            let mut candidates = state.candidates(&logits, before);
            mirostat.truncate(&mut candidates, state.mu, logits.len());
            let mut left: Vec<u32> = candidates.iter().map(|it| it.token).collect();
            left.sort_unstable();
            let wanted: Vec<u32> = serde_json::from_value(row["left"].clone()).unwrap();
            assert_eq!(left, wanted, "version {version}");
            state.observe(&candidates, row["token"].as_u64().unwrap() as u32);
        }
    }
}

/// Shares of the tokens that seeds draw after `steps`.
fn shares(steps: Vec<SamplerStep>, logits: &[f32]) -> Vec<f64> {
    const DRAWS: u64 = 20_000;
    let chain = Arc::new(SamplerChain { steps, mirostat: None });
    let mut shares = vec![0.0; logits.len()];
    for seed in 0..DRAWS {
        let before = Before { tokens: &[], stop_tokens: &[], seed, position: 3 };
        let token = ChainState::new(Arc::clone(&chain)).sample(logits, before).unwrap();
        shares[token as usize] += 1.0 / DRAWS as f64;
    }
    shares
}

#[test]
fn draws_follow_the_probabilities() {
    let logits = [1.0, -0.5, 2.0, f32::NEG_INFINITY, 0.3];
    let temperature = SamplerStep::Temperature { value: 0.7, range: 0.0, exponent: 1.0 };
    let exp = logits.map(|logit: f32| (f64::from(logit) / 0.7).exp());
    let wanted = exp.map(|p| p / exp.iter().sum::<f64>());
    for (share, wanted) in shares(vec![temperature], &logits).into_iter().zip(wanted) {
        assert!((share - wanted).abs() < 0.016, "{share} for {wanted}");
    }
    // The likeliest token is left out as often as is asked for.
    let xtc = SamplerStep::Xtc { probability: 0.3, threshold: 0.1 };
    let logits = [9.0, 9.0, -20.0];
    let shares = shares(vec![xtc], &logits);
    assert!((shares[0] - 0.35).abs() < 0.016 && (shares[1] - 0.65).abs() < 0.016, "{shares:?}");
}

#[test]
fn broken_logits_are_errors() {
    let mut state = ChainState::new(Arc::default());
    let before = Before { tokens: &[], stop_tokens: &[], seed: 0, position: 0 };
    let mut sample = |logits: &[f32]| state.sample(logits, before);
    assert_eq!(sample(&[0.0, f32::NAN]), Err(SamplingError::NotFinite { token: 1 }));
    assert_eq!(sample(&[f32::NEG_INFINITY; 2]), Err(SamplingError::NoCandidate));
    assert_eq!(sample(&[f32::NEG_INFINITY, -3.0]), Ok(1));
}
