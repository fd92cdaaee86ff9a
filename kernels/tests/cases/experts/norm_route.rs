//! Norm, router and choice in one launch: as the norm and the choice by themselves, and logits as
//! in f64.

use super::route::SOFTMAX;
use super::{Accumulator, Linear, Matrix, Number};
use crate::harness::*;
use half::{bf16, f16};
use kernels::gemm::experts::{NormRoute, NormRouteOperands, Route, RouteOperands, SharedExpert};
use kernels::rms_norm::RmsNorm;

/// As large as the mean of squares, so that a norm without it fails.
const EPS: f32 = 0.25;

#[derive(Clone, Copy, Debug)]
struct Case {
    tokens: usize,
    k: usize,
    bias: bool,
    /// Whether scores are sigmoids, with a bias.
    sigmoid: bool,
    route: Route,
}

const CASE: Case = Case {
    tokens: 3,
    k: 72,
    bias: false,
    sigmoid: false,
    route: Route { max_tokens: 4, num_experts: 6, top_k: 2, ..SOFTMAX },
};

impl Case {
    /// The logits.
    fn run<E: HostElement + Number>(&self, seed: u64) -> Vec<f32> {
        let &Case { tokens, k, bias, sigmoid, route } = self;
        let Route { max_tokens, num_experts, top_k, .. } = route;
        let rows = [tokens, max_tokens];
        let x = Matrix::random::<f32>(tokens, k, 1);
        let width = top_k + usize::from(route.shared.is_some());
        let num_logits = num_experts + usize::from(route.shared == Some(SharedExpert::Gated));
        let weight = Matrix::random::<E>(num_logits, k, 2);
        let [norm_weight, biases] = [(k, 3), (num_logits, 4)].map(|(len, salt)| random(len, salt));

        let mut device = Device::default();
        let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
        let counters = device.u32s("counters", &[0; NormRoute::MAX_TOKENS]);
        let x_at = device.matrix::<f32>("x", &x, (k + 4, max_tokens));
        let norm_at = device.f32s("norm weight", &norm_weight);
        let bias_at = device.f32s("bias", &biases);
        let score_bias = device.f32s("bias", &random(num_experts, 5));
        let logits = device.out::<f32>("logits", (num_logits + 3, max_tokens));
        let [normed, normed_apart] =
            ["normed", "apart"].map(|name| device.out::<E>(name, (k + 8, max_tokens)));
        let [choice, choice_apart] = ["experts", "apart"].map(|name| RouteOperands {
            num_tokens,
            logits,
            bias: sigmoid.then_some(score_bias),
            experts: device.out::<u32>(name, (width + 1, max_tokens)),
            weights: device.out::<f32>("weights", (width + 2, max_tokens)),
        });
        let operands = NormRouteOperands {
            x: x_at,
            norm_weight: norm_at,
            normed,
            weight: device.matrix::<E>("weight", &weight, (k, num_logits)).ptr,
            bias: bias.then_some(bias_at),
            counters,
            route: choice,
        };
        device.run(NormRoute { route, k, eps: EPS }.launch(&operands), seed);
        let norm = RmsNorm { max_rows: max_tokens, num_groups: 1, group_size: k, eps: EPS };
        device.run(norm.launch(num_tokens, x_at, norm_at, normed_apart), seed);
        device.run(route.launch(&choice_apart), seed);

        let case = format!("{self:?}, seed {seed}");
        let normed = device.read_rows(normed, rows, k);
        assert_eq!(bits(&normed), bits(&device.read_rows(normed_apart, rows, k)), "{case}");
        let normed = normed.into_iter().map(f64::from).collect();
        let linear = Linear {
            x: &Matrix { rows: tokens, cols: k, values: normed },
            weight: &weight,
            bias: bias.then_some(&biases[..]),
            residual: None,
            accumulator: Accumulator::F32,
            product_rounding: 0.0,
        };
        let (logits, want) = (device.read_rows(logits, rows, num_logits), linear.outputs());
        assert_right(&case, &logits, &want);
        assert_telling(&case, &want);
        let choice = |operands: RouteOperands| {
            let experts = device.read_u32(operands.experts.ptr, max_tokens * (width + 1));
            (experts, bits(&device.read_rows(operands.weights, rows, width)))
        };
        assert_eq!(choice(choice_apart), choice(operands.route), "{case}");
        assert_eq!(device.read_u32(counters, NormRoute::MAX_TOKENS), [0; 8], "{case}");
        logits
    }
}

#[test]
fn a_router_is_its_parts() {
    let of = |num_experts, top_k| Route { num_experts, top_k, ..CASE.route };
    let sigmoids = Case { sigmoid: true, ..CASE };
    let groups = Some([8, 4]);
    for case in [
        CASE,
        Case { tokens: 0, ..CASE },
        Case { k: 8, route: of(1, 1), ..CASE },
        Case { tokens: 4, k: 264, bias: true, route: of(33, 33), ..CASE },
        Case { tokens: 8, route: Route { max_tokens: 8, normalise: true, ..of(128, 8) }, ..CASE },
        Case { k: 24, route: of(512, 10), ..CASE },
        Case { k: 2880, bias: true, route: Route { normalise: true, ..of(5, 4) }, ..CASE },
        Case { tokens: 1, k: 8192, route: of(4, 2), ..CASE },
        Case { k: 1032, route: of(9, 3), ..sigmoids },
        Case { route: Route { shared: Some(SharedExpert::Gated), ..of(256, 8) }, ..CASE },
        Case { bias: true, route: Route { shared: Some(SharedExpert::Gated), ..of(6, 3) }, ..CASE },
        Case { route: Route { shared: Some(SharedExpert::Whole), ..of(7, 2) }, ..sigmoids },
        Case { k: 40, route: Route { groups, scale: 2.5, ..of(256, 8) }, ..sigmoids },
    ] {
        for seed in simt::seeds() {
            case.run::<f16>(seed);
            case.run::<bf16>(seed);
        }
    }
}

#[test]
fn logits_of_a_token_do_not_depend_on_the_others() {
    let logits = |tokens| {
        let route = Route { max_tokens: tokens, ..CASE.route };
        Case { tokens, k: 2056, route, ..CASE }.run::<bf16>(1)
    };
    let (alone, among) = (logits(1), logits(8));
    assert_eq!(bits(&alone), bits(&among[..alone.len()]));
}

#[test]
fn wrong_routers_are_refused() {
    let launched = |max_tokens, k, stride| {
        let route = Route { max_tokens, ..CASE.route };
        NormRoute { route, k, eps: EPS }.launch(&NormRouteOperands::<f16> {
            x: rows(stride),
            norm_weight: ptr(1),
            normed: rows(stride),
            weight: ptr(1),
            bias: None,
            counters: ptr(1),
            route: RouteOperands {
                num_tokens: ptr(1),
                logits: rows(6),
                bias: None,
                experts: rows(2),
                weights: rows(2),
            },
        })
    };
    assert_eq!(of(launched(8, 2048, 2048)), ("norm_route_f16_e128", [2, 8, 1], 128, 0));
    assert!(is_nothing(launched(0, 2048, 2048)));
    assert_eq!(refused(launched(9, 64, 64)), ("tokens", 9));
    assert_eq!(refused(launched(1, 8200, 8200)), ("k", 8200));
    assert_eq!(refused(launched(1, 60, 64)), ("k", 60));
    assert_eq!(refused(launched(1, 64, 68)), ("row stride", 68));
}
