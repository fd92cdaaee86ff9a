//! Fusions of a mixture of experts.

use super::*;
use crate::testing::empty;
use crate::{Bounds, Groups, Scores, Weight};
use Dtype::{F16, F32, U32};

/// A layer of 8 experts of 16 columns each, 2 of them for a token. Activations: 0 `hidden`, 1
/// `normed`, 2 `logits`, 3 `experts`, 4 `weights`, 5 `gate`, 6 `up`, 7 `gated`, 8 `down`; weights: 0
/// norm, 1 router, 2 and 3 its bias and that of the scores, 4 gate, 5 up, 6 down. Operations: 0
/// embedding, 1 norm, 2 router, 3 route, 4 gate, 5 up, 6 their gate, 7 down, 8 onto the residual.
fn routed() -> Plan {
    let mut plan = empty(Bounds::one_sequence(4), Decoder::SMALL.plan(4, 1).kv);
    plan.numerics = Precision::F16.into();
    let widths = [(32, F32), (32, F16), (8, F32), (2, U32), (2, F32)].into_iter();
    let of_experts = [(32, F16), (32, F16), (32, F16), (32, F32)];
    plan.tensors = widths.chain(of_experts).map(|(width, dtype)| tensor(width, dtype)).collect();
    let vectors = [(1, 32, F32), (8, 32, F16), (1, 8, F32), (1, 8, F32)].into_iter();
    let of_experts = [(8 * 16, 32, F16), (8 * 16, 32, F16), (8 * 32, 16, F16), (40, 32, F16)];
    let weight = |(rows, cols, dtype)| Weight::whole("w", rows, cols, dtype);
    plan.weights = vectors.chain(of_experts).map(weight).collect();
    let whole = |tensor: usize| view(tensor, 0, plan.tensors[tensor].width);
    let [hidden, normed, logits, experts, weights] = [0, 1, 2, 3, 4].map(whole);
    let [gate, up, gated, down] = [5, 6, 7, 8].map(whole);
    let scores = Scores::Sigmoid { bias: WeightId(3), groups: Some(Groups { count: 4, top_k: 2 }) };
    let router = Linear { bias: Some(WeightId(2)), ..Linear::new(normed, WeightId(1), logits) };
    let layer = |x, weight, weights, out| {
        let (weight, num_experts) = (WeightId(weight), 8);
        let (bias, gate, residual) = (None, None, None);
        Op::ExpertLinear(ExpertLinear {
            x,
            experts,
            weight,
            bias,
            gate,
            num_experts,
            weights,
            residual,
            out,
        })
    };
    let route = Route {
        router: None,
        logits,
        scores,
        normalise: true,
        scale: 2.5,
        shared: None,
        experts,
        weights,
    };
    plan.ops = vec![
        Op::Embedding { table: WeightId(7), out: hidden, scale: 1.0 },
        Op::RmsNorm { x: hidden, weight: WeightId(0), out: normed, eps: 1e-6 },
        Op::Linear(router),
        Op::Route(route),
        layer(normed, 4, None, gate),
        layer(normed, 5, None, up),
        silu_mul(gate, up, gated),
        layer(gated, 6, Some(weights), down),
        Op::Add { x: down, residual: hidden, out: hidden },
    ];
    (plan.output, plan.next_tokens) = (hidden, None);
    assert_eq!(plan.check(), Ok(()));
    plan
}

fn tensor(width: usize, dtype: Dtype) -> Tensor {
    Tensor { name: "t".into(), layer: None, rows: Rows::Tokens, width, dtype }
}

#[test]
fn a_layer_of_experts_is_three_operations() {
    let plan = routed();
    let fused = plan.fused(|_| true);
    assert_eq!(fused.check(), Ok(()));
    let expected = ["embedding", "norm_route", "expert_linear", "expert_linear"];
    assert_eq!(names(&fused), expected);
    assert_eq!(fused.fused(|_| true).ops, fused.ops);
    let Op::Route(route) = fused.ops[1] else { panic!("{:?}", fused.ops[1]) };
    assert!(route.router_ops().eq(plan.ops[1..3].iter().cloned()));
    assert_eq!(Op::Route(Route { router: None, ..route }), plan.ops[3]);
    let (Op::ExpertLinear(gate), Op::ExpertLinear(down)) = (&fused.ops[2], &fused.ops[3]) else {
        panic!("{:?}", fused.ops);
    };
    let of_up = ExpertGate { activation: Activation::Silu, up: WeightId(5), bias: None };
    assert_eq!((gate.gate, gate.out), (Some(of_up), view(7, 0, 32)));
    assert_eq!((down.residual, down.out), (Some(view(0, 0, 32)), view(0, 0, 32)));

    let shape = StepShape { num_tokens: 3, num_logit_rows: 3, ..Default::default() };
    assert_eq!(fused.cost(&shape).flops, plan.cost(&shape).flops);
    let bytes = |plan: &Plan| ArenaLayout::new(plan).bytes();
    assert!(bytes(&fused) <= bytes(&plan), "{} of {} bytes", bytes(&fused), bytes(&plan));
}

#[test]
fn fusions_of_experts_can_be_off() {
    let without = |fusion: Fusion| {
        let mut plan = routed();
        plan.set_fusion(fusion);
        names(&plan.fused(|_| true))[1..].to_vec()
    };
    let [norm, linear, route] = ["rms_norm", "linear", "route"];
    let [fused, experts, add] = ["norm_route", "expert_linear", "add"];
    let all = Fusion::ALL;
    let expected = [norm, linear, route, experts, experts];
    assert_eq!(without(Fusion { norm_gemm: false, ..all }), expected);
    let expected = [fused, experts, experts, "silu_mul", experts];
    assert_eq!(without(Fusion { gemm_swiglu: false, ..all }), expected);
    let expected = [fused, experts, experts, add];
    assert_eq!(without(Fusion { residual: false, ..all }), expected);
    assert_eq!(names(&routed().fused(|_| false)), names(&routed()));
}

fn experts(plan: &mut Plan, index: usize) -> &mut ExpertLinear {
    let Op::ExpertLinear(experts) = &mut plan.ops[index] else { panic!("operation {index}") };
    experts
}

const OBSTACLES: &[Obstacle] = &[
    // Logits that are read later or are the output; another operation in between.
    ("norm_route", |p| {
        p.ops.push(Op::Add { x: view(2, 0, 8), residual: view(2, 0, 8), out: view(8, 0, 8) });
    }),
    ("norm_route", |p| p.output = view(2, 0, 8)),
    ("norm_route", |p| {
        let reader = reader(p, 0, 0);
        p.ops.insert(3, reader);
    }),
    // A norm of 16 bits, of several groups, of rows that end with it; other rows than the norm's.
    ("norm_route", |p| p.tensors[0].dtype = F16),
    ("norm_route", |p| (p.weights[0].cols, p.weights[0].parts[0].rows) = (16, 16)),
    ("norm_route", |p| {
        p.ops.truncate(8);
        p.output = view(8, 0, 32);
    }),
    ("norm_route", |p| linear(p, 2).x = view(5, 0, 32)),
    // A layer that is more than a linear layer.
    ("norm_route", |p| linear(p, 2).residual = Some(view(4, 0, 2))),
    ("norm_route", |p| linear(p, 2).gate = SILU),
    // Up of other rows, by other experts, already weighted; a gate that others read, or of f32.
    ("gate", |p| experts(p, 5).x = view(8, 0, 32)),
    ("gate", |p| experts(p, 5).experts = view(2, 0, 2)),
    ("gate", |p| experts(p, 5).weights = Some(view(4, 0, 2))),
    ("gate", |p| {
        let reader = reader(p, 5, 0);
        p.ops.push(reader);
    }),
    ("gate", |p| p.tensors[5].dtype = F32),
    ("gate", |p| p.ops[6] = silu_mul(view(6, 0, 32), view(5, 0, 32), view(7, 0, 32))),
    ("gate", |p| p.ops[6] = silu_mul(view(5, 0, 32), view(6, 0, 32), view(1, 0, 32))),
    // Products that are no sums, of 16 bits, or read later; added to what they are of.
    ("residual", |p| experts(p, 7).weights = None),
    ("residual", |p| p.tensors[8].dtype = F16),
    ("residual", |p| {
        let reader = reader(p, 8, 0);
        p.ops.push(reader);
    }),
    ("residual", |p| {
        p.ops[8] = Op::Add { x: view(8, 0, 32), residual: view(0, 0, 32), out: view(7, 0, 32) };
    }),
];

#[test]
fn what_others_read_of_experts_is_stored() {
    for (index, (lost, obstacle)) in OBSTACLES.iter().enumerate() {
        let has = |plan: &Plan| {
            plan.ops.iter().any(|op| match op {
                Op::ExpertLinear(op) if *lost == "gate" => op.gate.is_some(),
                Op::ExpertLinear(op) if *lost == "residual" => op.residual.is_some(),
                op => op.name() == *lost,
            })
        };
        let mut plan = routed();
        assert!(has(&plan.fused(|_| true)));
        obstacle(&mut plan);
        assert!(!has(&plan.fused(|_| true)), "obstacle {index}: {lost}");
    }
}
