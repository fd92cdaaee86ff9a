//! The choice of a token's experts.

use super::{Approx, Matrix};
use crate::harness::*;
use kernels::Rows;
use kernels::gemm::experts::{Route, RouteOperands, SharedExpert};

#[test]
fn route_matches_oracle() {
    fn check([num_experts, top_k, normalise]: [usize; 3], seed: u64) {
        let (mut device, tokens) = (Device::default(), 5);
        let mut logits = Matrix::random::<f32>(tokens, num_experts, seed);
        logits.values.iter_mut().for_each(|logit| *logit *= 4.0);
        // Of equal ones the first, zeros of both signs too; no number comes last.
        let row = &mut logits.values[..num_experts];
        row[..2.min(num_experts)].fill(0.0);
        row[num_experts - 1] = -0.0;
        if num_experts > 3 {
            logits.values[num_experts + 2] = f64::NEG_INFINITY;
        }
        let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
        let at = device.matrix::<f32>("logits", &logits, (num_experts + 3, tokens + 1));
        let experts = device.out::<u32>("experts", (top_k + 1, tokens + 1));
        let weights = device.out::<f32>("weights", (top_k, tokens + 1));
        let normalise = normalise == 1;
        let route = Route { max_tokens: tokens + 1, num_experts, top_k, normalise, ..SOFTMAX };
        let operands = RouteOperands { num_tokens, logits: at, bias: None, experts, weights };
        device.run(route.launch(&operands), seed);
        let got = device.read_rows(weights, [tokens, tokens + 1], top_k);
        let chosen = device.read_u32(experts.ptr, tokens * (top_k + 1));
        for token in 0..tokens {
            let row = logits.row(token);
            let mut order: Vec<usize> = (0..num_experts).collect();
            order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap());
            let chosen = &chosen[token * (top_k + 1)..][..top_k];
            let chosen: Vec<usize> = chosen.iter().map(|&expert| expert as usize).collect();
            assert_eq!(chosen, order[..top_k], "token {token} of {num_experts}");
            let exp = |&expert: &usize| row[expert].exp();
            let of = if normalise { &order[..top_k] } else { &order };
            let total: f64 = of.iter().map(exp).sum();
            let want = |expert| Approx::f32(exp(expert) / total);
            let want: Vec<Approx> = order[..top_k].iter().map(want).collect();
            assert_right("weights", &got[token * top_k..][..top_k], &want);
        }
    }
    let shapes =
        [[1, 1, 0], [8, 2, 1], [32, 4, 0], [33, 33, 1], [128, 8, 1], [200, 8, 0], [512, 10, 1]];
    for shape in shapes {
        simt::seeds().for_each(|seed| check(shape, seed));
    }
}

pub const SOFTMAX: Route = Route {
    max_tokens: 1,
    num_experts: 1,
    top_k: 1,
    normalise: false,
    scale: 1.0,
    groups: None,
    shared: None,
};

/// Sigmoids: the bias chooses, and does not weigh; experts of some groups alone.
#[test]
fn sigmoid_routes_match_oracle() {
    fn check([num_experts, top_k, groups, top_groups]: [usize; 4], seed: u64) {
        let (mut device, tokens) = (Device::default(), 6);
        let logits = Matrix::random::<f32>(tokens, num_experts, seed);
        let bias = random(num_experts, seed + 7);
        let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
        let at = device.matrix::<f32>("logits", &logits, (num_experts, tokens));
        let bias_at = device.f32s("bias", &bias);
        let experts = device.out::<u32>("experts", (top_k, tokens));
        let weights = device.out::<f32>("weights", (top_k, tokens));
        let groups_of = (groups > 1).then_some([groups, top_groups]);
        let route = Route {
            max_tokens: tokens,
            num_experts,
            top_k,
            normalise: true,
            scale: 2.5,
            groups: groups_of,
            shared: None,
        };
        let bias_at = Some(bias_at);
        let operands = RouteOperands { num_tokens, logits: at, bias: bias_at, experts, weights };
        device.run(route.launch(&operands), seed);
        let got = device.read_rows(weights, [tokens; 2], top_k);
        let chosen = device.read_u32(experts.ptr, tokens * top_k);
        for token in 0..tokens {
            let score = |expert: usize| 1.0 / (1.0 + (-logits.row(token)[expert]).exp());
            let biased = |expert: usize| score(expert) + f64::from(bias[expert]);
            let descending = |mut of: Vec<usize>, key: &dyn Fn(usize) -> f64| {
                of.sort_by(|&a, &b| key(b).partial_cmp(&key(a)).unwrap());
                of
            };
            let size = num_experts / groups;
            let best_two = |group: usize| -> f64 {
                let of_group = descending((group * size..(group + 1) * size).collect(), &biased);
                of_group.into_iter().take(2).map(biased).sum()
            };
            let kept = descending((0..groups).collect(), &best_two);
            let is_kept = |expert: &usize| kept[..top_groups].contains(&(expert / size));
            let order = descending((0..num_experts).filter(is_kept).collect(), &biased);
            let chosen = &chosen[token * top_k..][..top_k];
            let chosen: Vec<usize> = chosen.iter().map(|&expert| expert as usize).collect();
            assert_eq!(chosen, order[..top_k], "token {token} of {num_experts}");
            let total: f64 = chosen.iter().map(|&expert| score(expert)).sum();
            let want = chosen.iter().map(|&expert| Approx::f32(2.5 * score(expert) / total));
            assert_right("weights", &got[token * top_k..][..top_k], &want.collect::<Vec<_>>());
        }
    }
    for shape in [[8, 2, 1, 1], [128, 8, 1, 1], [256, 8, 8, 4], [12, 3, 6, 2], [64, 8, 32, 5]] {
        simt::seeds().for_each(|seed| check(shape, seed));
    }
}

/// It comes after the chosen ones, whose weights it does not change.
#[test]
fn a_shared_expert_is_everybodys() {
    fn check([num_experts, top_k]: [usize; 2], sigmoid: bool, shared: SharedExpert, seed: u64) {
        let (mut device, tokens) = (Device::default(), 5);
        let num_logits = num_experts + usize::from(shared == SharedExpert::Gated);
        let logits = Matrix::random::<f32>(tokens, num_logits, seed);
        let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
        let at = device.matrix::<f32>("logits", &logits, (num_logits, tokens));
        let bias = device.f32s("bias", &random(num_experts, seed + 1));
        let mut run = |width: usize, shared| {
            let operands = RouteOperands {
                num_tokens,
                logits: at,
                bias: sigmoid.then_some(bias),
                experts: device.out::<u32>("experts", (width, tokens)),
                weights: device.out::<f32>("weights", (width, tokens)),
            };
            let (max_tokens, normalise, scale) = (tokens, true, 2.5);
            let groups = None;
            let route = Route { max_tokens, num_experts, top_k, normalise, scale, groups, shared };
            device.run(route.launch(&operands), seed);
            let experts = device.read_u32(operands.experts.ptr, tokens * width);
            (experts, device.read_rows(operands.weights, [tokens; 2], width))
        };
        let (experts, weights) = run(top_k + 1, Some(shared));
        let (chosen, chosen_weights) = run(top_k, None);
        for token in 0..tokens {
            let (own, apart) = (token * (top_k + 1), token * top_k);
            assert_eq!(experts[own..][..top_k], chosen[apart..][..top_k]);
            assert_eq!(bits(&weights[own..][..top_k]), bits(&chosen_weights[apart..][..top_k]));
            assert_eq!(experts[own + top_k], num_experts as u32);
            let gate = match shared {
                SharedExpert::Whole => 1.0,
                SharedExpert::Gated => 1.0 / (1.0 + (-logits.row(token)[num_experts]).exp()),
            };
            assert_right("gate", &weights[own + top_k..][..1], &[Approx::f32(gate)]);
        }
    }
    for shape in [[1, 1], [8, 2], [40, 33], [256, 8], [512, 10]] {
        for seed in simt::seeds() {
            check(shape, false, SharedExpert::Gated, seed);
            check(shape, true, SharedExpert::Whole, seed);
        }
    }
}

/// A logit that is NaN comes last, and is chosen where there is no other.
#[test]
fn what_is_no_number_is_routed_last() {
    let mut device = Device::default();
    let num_tokens = device.u32s("num_tokens", &[1]);
    let logits = device.f32s("logits", &[f32::NAN, 1.0, f32::NEG_INFINITY, f32::NAN, 2.0]);
    let experts = device.out::<u32>("experts", (5, 1));
    let weights = device.out::<f32>("weights", (5, 1));
    let route = Route { num_experts: 5, top_k: 5, ..SOFTMAX };
    let logits = Rows::new(logits, 5);
    let operands = RouteOperands { num_tokens, logits, bias: None, experts, weights };
    device.run(route.launch(&operands), 1);
    assert_eq!(device.read_u32(experts.ptr, 5), [4, 1, 2, 0, 3]);
}
