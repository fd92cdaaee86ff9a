//! Reports of recorded figures beside texts that were written by hand.

use crate::engine::FinishReason;
use crate::plan::{Dtype, Precision};
use crate::validate::haiku::{Haiku, HaikuTest, prompt};
use crate::validate::layers::{Difference, Magnitude, OutputName};
use crate::validate::logits::{LogitComparison, Position};
use crate::validate::{Conditions, Limits, Plot, Report, Run, Settings, Sizes, Text};

fn run(first_token_ms: [f64; 3], tokens_per_s: [f64; 3], mib: usize) -> Run {
    Run {
        first_token_ms: first_token_ms.to_vec(),
        tokens_per_s: tokens_per_s.to_vec(),
        planned_bytes: vec![
            ("weights", mib << 20),
            ("KV cache", mib << 18),
            ("activations", 2 << 20),
            ("buffers", 1 << 19),
            ("graphs", 0),
            ("CUDA context", 16 << 20),
        ],
        measured_bytes: (2 * mib + 16) << 20,
        context_bytes: 16 << 20,
    }
}

fn values(layer: usize, name: &str, max_abs: f64, error: f64) -> Difference {
    let is_residual = name == "down";
    let dtype = if is_residual { Dtype::F32 } else { Dtype::F16 };
    let place = OutputName { layer: Some(layer), name: name.to_owned(), is_residual };
    let magnitude = Magnitude { max_abs, rms: max_abs / 10.0, ..Magnitude::default() };
    Difference {
        place,
        dtypes: [Dtype::F32, dtype],
        reference: magnitude,
        candidate: magnitude,
        error,
        max_difference: error * max_abs,
    }
}

/// What passes.
fn report() -> Report {
    let haiku = |text: &str| Haiku {
        tokens: vec![1, 2, 3],
        text: text.to_owned(),
        end: Ok(FinishReason::StopToken),
        repeated: text.to_owned(),
    };
    let first = Position {
        squared_reference: 4.0,
        agrees: true,
        lead: 1.0,
        nll: Some([1.0, 1.0]),
        ..Position::default()
    };
    let second = Position {
        squared_difference: 4e-6,
        max_abs: 2e-3,
        max_relative: 1e-3,
        max_probability: 5e-4,
        kl: 2e-6,
        nll: Some([1.0, 1.001]),
        ..first
    };
    let positions = vec![first, second];
    let forced = LogitComparison { positions: vec![second] };
    Report {
        settings: [Precision::F32, Precision::F16].map(Settings::from),
        device: "NVIDIA H200 (sm_90a)".to_owned(),
        sizes: Sizes { prompt: 512, new: 128, repetitions: 3, text: 2, observed: 4, haiku: 8 },
        text: Text::Alice,
        runs: [
            run([52.0, 50.0, 51.0], [30.0, 31.0, 32.0], 512),
            run([34.0, 33.5, 36.0], [60.0, 64.0, 62.0], 256),
        ],
        logits: LogitComparison { positions },
        layers: vec![
            values(0, "gate_up", 10.0, 5e-4),
            values(0, "down", 20.0, 1e-4),
            values(1, "qkv", 5.0, 1e-3),
            values(1, "gate_up", 655.04, 5e-4),
            values(1, "down", 40.0, 2e-4),
        ],
        haiku: Ok(HaikuTest {
            word: "moon",
            seed: 7,
            prompt: prompt("moon"),
            haikus: [haiku("The moon is at rest.\nAn owl"), haiku("Silence | again")],
            forced,
        }),
        limits: Limits::default(),
    }
}

fn conditions() -> Conditions {
    Conditions {
        command: "halfwarp validate --seed 7".to_owned(),
        model: "small".to_owned(),
        version: "0.1.0, commit abc1234".to_owned(),
        driver: Some("570.1, CUDA 12.8".to_owned()),
        clocks: None,
        date: "2026-01-02 03:04:05 UTC".to_owned(),
    }
}

/// As [`report`], with an overflow in layer 1.
fn overflowing() -> Report {
    let mut report = report();
    let gate_up = &mut report.layers[3];
    gate_up.reference.max_abs = 70000.0;
    gate_up.candidate.num_inf = 3;
    gate_up.error = f64::INFINITY;
    report.layers[4].error = 0.5;
    report
}

#[test]
fn the_report_is_as_written_by_hand() {
    let plots = [Plot { title: "Errors".to_owned(), file: "errors.svg".to_owned() }];
    let markdown = report().markdown(&conditions(), &plots);
    assert_eq!(markdown, include_str!("expected.md"), "got:\n{markdown}");
}

#[test]
fn an_overflow_is_named_by_its_layer() {
    assert_eq!(report().breaches(), []);
    let report = overflowing();
    let breaches: Vec<String> = report.breaches().iter().map(ToString::to_string).collect();
    let want = [
        "layer 1, gate_up: inf in f16, where f32 has values up to 70000",
        "layer 1, down: relative error of the residual stream 5.0e-1, above 1e-2",
    ];
    assert_eq!(breaches, want);
    let markdown = report.markdown(&conditions(), &[]);
    assert!(
        markdown.contains("\n**Failed**: 2 bounds are broken.\n\n- layer 1, gate_up: inf in f16")
    );
    assert!(markdown.contains("| gate_up: **inf** |"), "{markdown}");
    assert!(report.summary().contains("FAILED      layer 1, gate_up: inf in f16"));
}

/// Where the reference overflows too, and where a value is clamped, no bound is broken.
#[test]
fn not_every_large_value_breaks_a_bound() {
    let mut both = overflowing();
    both.layers[3].reference.num_inf = 3;
    both.layers[4].error = 0.0;
    assert_eq!(both.breaches(), []);
    let mut clamped = report();
    clamped.layers[3].candidate.num_clamped = 1;
    assert_eq!(clamped.breaches(), []);
    let findings = clamped.findings();
    assert_eq!(findings[0], "layer 1, gate_up: clamped in f16, the first place of 1");
}

#[test]
fn each_bound_can_be_broken() {
    let breach = |spoil: fn(&mut Report)| {
        let mut report = report();
        spoil(&mut report);
        let [breach] = &report.breaches()[..] else { panic!("{:?}", report.breaches()) };
        breach.to_string()
    };
    let error = breach(|report| report.logits.positions[1].squared_difference = 0.04);
    assert!(
        error.starts_with("logits: relative error 7.1e-2, above 1e-2; the worst position is 1")
    );
    let agreement = breach(|report| report.logits.positions[1].agrees = false);
    assert!(
        agreement.contains("agrees at 50.0 % of the positions with a clear one, under"),
        "{agreement}"
    );
    let kl = breach(|report| report.logits.positions[1].kl = 0.02);
    assert_eq!(kl, "logits: mean KL divergence 1.0e-2 nats, above 1e-3");
    let perplexity = breach(|report| report.logits.positions[1].nll = Some([1.0, 1.04]));
    assert_eq!(perplexity, "logits: perplexity off by 2.0 %, above 1 %");
    let layer = breach(|report| report.layers[1].error = 0.02);
    assert!(layer.starts_with("layer 0, down: relative error"), "{layer}");
    let haiku = breach(|report| report.haiku.as_mut().unwrap().prompt.clear());
    assert!(haiku.starts_with("haiku: the tokens of the prompt do not spell \"moon\""), "{haiku}");
    let nan = breach(|report| report.logits.positions[1].kl = f64::NAN);
    assert!(nan.contains("KL divergence NaN"), "{nan}");
}

#[test]
fn a_setting_without_times_is_named() {
    let mut untimed = report();
    untimed.runs[1].first_token_ms.clear();
    untimed.runs[1].tokens_per_s.clear();
    let markdown = untimed.markdown(&conditions(), &[]);
    assert!(markdown.contains("\nTimes: none of f16: its logits choose no token.\n"), "{markdown}");
    assert!(markdown.contains("| first token | 51.0 ms (50.0 to 52.0) | - |  |"), "{markdown}");
}

#[test]
fn every_figure_is_in_the_table() {
    let csv = overflowing().csv();
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!(rows[0], "section,setting,layer,place,figure,value,unit");
    assert!(rows.iter().all(|row| row.split(',').count() == 7), "{csv}");
    for row in [
        "speed,f32,,1,first_token,50,ms",
        "speed,f16,,2,throughput,62,tokens/s",
        "memory,f16,,plan,weights,268435456,bytes",
        "memory,f32,,measured,total,1090519040,bytes",
        "logits,f16 beside f32,,position 1,kl,0.000002,nats",
        "layers,f16,1,gate_up,num_inf,3,",
        "layers,f16 beside f32,1,gate_up,relative_error,inf,",
        "layers,f32,0,down,max_abs,20,",
        "haiku,f16,,moon,uses_word,0,",
    ] {
        assert!(rows.contains(&row), "{row} is not in\n{csv}");
    }
}
