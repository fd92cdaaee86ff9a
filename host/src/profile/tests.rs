//! Profiles of recorded times.

use super::*;
use crate::exec::StepTimes;
use crate::plan::testing::Decoder;
use crate::plan::{SeqShape, StepShape};

const SIZE: StepSize = StepSize { num_seqs: 2, cached_tokens: 7, new_tokens: 1 };

/// A decode step of two sequences: operation `i` took `10 i` us in the median.
fn recorded() -> TimedStep {
    let mut plan = Decoder::SMALL.plan(2, 1);
    for tensor in &mut plan.tensors[1..7] {
        tensor.layer = Some(0);
    }
    let ops_us = (0..plan.ops.len()).map(|i| {
        let us = 10.0 * i as f64;
        vec![us + 4.0, us - 2.0, us, us + 2.0, us - 4.0]
    });
    let times = StepTimes {
        ops_us: ops_us.collect(),
        step_us: vec![1000.0, 900.0, 950.0, 940.0, 960.0],
        graph_us: Some(vec![700.0, 710.0, 690.0, 720.0, 680.0]),
        event_us: Some(0.5),
        num_launches: Some(16),
    };
    let shape = StepShape {
        num_tokens: 2,
        num_logit_rows: 2,
        seqs: vec![SeqShape { q_len: 1, kv_len: 8 }; 2],
    };
    TimedStep { plan, shape, times }
}

#[test]
fn each_operation_has_its_median_its_spread_and_its_cost() {
    let step = StepProfile::of(SIZE, &recorded());
    assert_eq!((step.name.as_str(), step.repeats), ("decode 2 @ 7", 5));
    assert_eq!((step.step_us, step.graph_us), (950.0, Some(700.0)));
    assert_eq!(step.num_launches, Some(16));
    assert_eq!(step.sum_us(), (0..15).map(|i| 10.0 * f64::from(i)).sum::<f64>());
    // `qkv`: x [2, 32] f16 by [64, 32] f16, and a bias of 64 f32.
    let expected = OpProfile {
        index: 2,
        op: "linear",
        subject: "qkv".to_owned(),
        layer: Some(0),
        us: 20.0,
        spread_us: 4.0,
        read_bytes: 2 * 32 * 2 + 64 * 32 * 2 + 64 * 4,
        written_bytes: 2 * 64 * 2,
        flops: 2 * 2 * 64 * 32,
        counted: None,
    };
    assert_eq!(step.ops[2], expected);
    let is_near = |got: f64, wanted: f64| (got / wanted - 1.0).abs() < 1e-12;
    assert!(is_near(expected.gb_per_s(), expected.bytes() as f64 / 20e-6 / 1e9));
    assert!(is_near(expected.tflop_per_s(), expected.flops as f64 / 20e-6 / 1e12));
    // The same length of prompts.
    let prompts = StepSize { num_seqs: 2, cached_tokens: 0, new_tokens: 16 };
    assert_eq!(StepProfile::of(prompts, &recorded()).name, "prefill 2 x 16");
}

#[test]
fn sums_hold_every_operation_once() {
    let mut step = StepProfile::of(SIZE, &recorded());
    // A second layer, of the same operations in twice the time.
    let mut second: Vec<OpProfile> = step.ops[1..11].to_vec();
    for op in &mut second {
        op.layer = Some(1);
        op.us *= 2.0;
    }
    step.ops.splice(11..11, second);
    let by_op = step.by_op();
    let down = by_op.iter().find(|sum| sum.subject == "down").unwrap();
    assert_eq!((down.op, down.count, down.us), ("linear", 2, 100.0 + 200.0));
    assert_eq!(down.bytes, 2 * step.ops[10].bytes());
    assert!(by_op.is_sorted_by(|a, b| a.us >= b.us));
    let total: f64 = by_op.iter().map(|sum| sum.us).sum();
    assert_eq!((total, by_op.iter().map(|sum| sum.count).sum()), (step.sum_us(), step.ops.len()));

    let in_layer: f64 = (1..=10).map(|i| 10.0 * f64::from(i)).sum();
    let outside: f64 = (11..=14).map(|i| 10.0 * f64::from(i)).sum();
    let expected = [(Some(0), in_layer), (Some(1), 2.0 * in_layer), (None, outside)];
    let by_layer: Vec<_> = step.by_layer().iter().map(|sum| (sum.layer, sum.us)).collect();
    assert_eq!(by_layer, expected);
}

#[test]
fn a_trace_has_an_event_for_each_operation_end_to_end() {
    let step = StepProfile::of(SIZE, &recorded());
    let trace = chrome_trace("a device", std::slice::from_ref(&step));
    let events = trace["traceEvents"].as_array().unwrap();
    let complete: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(complete.len(), step.ops.len());
    let mut end = 0.0;
    for (event, op) in complete.iter().zip(&step.ops) {
        assert_eq!(event["ts"].as_f64(), Some(end));
        assert_eq!(event["dur"].as_f64(), Some(op.us));
        assert_eq!(event["name"], format!("{} {}", op.op, op.subject));
        end += op.us;
    }
    assert_eq!(end, step.sum_us());
}

#[test]
fn quantiles_are_between_values() {
    assert_eq!(quantile(&[], 0.5), 0.0);
    assert_eq!(quantile(&[3.0], 0.75), 3.0);
    assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), 2.5);
    assert_eq!(quantile(&[5.0, 1.0, 2.0, 3.0, 4.0], 0.25), 2.0);
}
