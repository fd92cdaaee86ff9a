//! The fusion pass: neighbouring operations of a plan that become one.
//!
//! | first | second | fused, and what is not stored any more |
//! | --- | --- | --- |
//! | norm of f32 rows | linear layer | [`Linear::norm`]: the operand |
//! | norm and router's linear layer | choice of experts | [`Route::router`]: nothing |
//! | linear layer | gate of its two halves | [`Linear::gate`]: gate and up |
//! | gate | linear layer | [`Linear::gate_before`]: the operand |
//! | two linear layers of experts | their gate | [`ExpertLinear::gate`]: gate and up |
//! | linear layer to f32 | residual added to it | [`Linear::residual`]: the output before it |
//! | norm of f32 rows, in place | residual added to them | [`Op::NormAdd`]: the normed rows |
//! | gate of f32 rows by their sigmoids, in place | residual added to them | [`Op::SigmoidGate`]: the gated rows |
//! | sums of experts in f32 | residual added to them | [`ExpertLinear::residual`]: the sums |
//! | all-reduce | residual that the sum is added to, and its norm | [`AllReduce`]: the sum |
//! | RoPE of Q and K | append of K and V | [`RopeAppend`]: the rotated K beside the cache |
//! | RMSNorms of the heads of Q and of K | that | [`RopeAppend::norm`]: the heads before RoPE |
//! | that | attention | [`AppendAttention`]: the rotated Q |
//!
//! [`Numerics::fusion`](super::Numerics::fusion) says which of them a plan may have. A fused plan
//! gives the bits of the one that it was made of, unless a kernel rounds less or adds in another
//! order, and takes no more memory: what is alive during a fused operation is no more than what
//! was during one of its parts.

use super::memory::{Lifetime, lifetimes};
use super::{
    Activation, AllReduce, AppendAttention, Attention, Dtype, ExpertGate, ExpertLinear, Fusion,
    Linear, Norm, Op, Plan, QkNorm, RopeAppend, Route, Router, View,
};

impl Plan {
    /// The same plan with neighbouring operations fused, wherever the plan's numerics allow it, no
    /// other operation reads the value between them and the executor has a kernel: `takes` the
    /// fused operation. Its ids are those of this plan.
    pub fn fused(&self, takes: impl Fn(&Op) -> bool) -> Plan {
        let pass = Pass { plan: self, lifetimes: lifetimes(self) };
        let mut ops: Vec<Op> = Vec::with_capacity(self.ops.len());
        for (index, op) in self.ops.iter().enumerate() {
            if let [.., first, second] = &ops[..]
                && let Some(fused) = pass.triple([first, second], op, index).filter(&takes)
            {
                ops.truncate(ops.len() - 2);
                ops.push(fused);
                continue;
            }
            let pair = ops.last().and_then(|last| pass.pair(last, op, index));
            match (pair.filter(&takes), ops.last_mut()) {
                (Some(pair), Some(last)) => *last = pair,
                _ => ops.push(op.clone()),
            }
            if let [.., q, k, append] = &ops[..]
                && let Some(fused) = pass.qk_norm([q, k], append).filter(&takes)
            {
                ops.truncate(ops.len() - 3);
                ops.push(fused);
            }
        }
        Plan { ops, ..self.clone() }
    }
}

struct Pass<'a> {
    plan: &'a Plan,
    lifetimes: Vec<Option<Lifetime>>,
}

impl Pass<'_> {
    /// What `first`, which may be fused already, and `second`, operation `index`, are together.
    /// They are neighbours: nothing between them changes what either of them reads.
    fn pair(&self, first: &Op, second: &Op, index: usize) -> Option<Op> {
        let Fusion { norm_gemm, gemm_swiglu, rope_append, residual, .. } =
            self.plan.numerics.fusion;
        match (first, second) {
            (&Op::RmsNorm { x, weight, out, eps }, Op::Linear(linear))
                if norm_gemm && linear.x == out =>
            {
                self.norm_linear(x, Norm { weight, eps }, linear, index)
            }
            (Op::Linear(linear), &Op::Gate { activation, gate, up, out }) if gemm_swiglu => {
                self.linear_gate(linear, [gate, up], (activation, out), index)
            }
            (&Op::Gate { activation, gate, up, out }, Op::Linear(linear))
                if gemm_swiglu && linear.x == out =>
            {
                self.gate_linear((activation, gate), up, linear, index)
            }
            (Op::Linear(linear), &Op::Add { x, residual: to, out })
                if residual && linear.out == x =>
            {
                self.linear_residual(linear, to, out, index)
            }
            (
                &Op::RmsNorm { x, weight, out: normed, eps },
                &Op::Add { x: term, residual: to, out },
            ) if residual && [normed, term] == [x; 2] && to == out => {
                let fits = self.plan.dtype(x) == Dtype::F32 && self.ends(x, index);
                fits.then_some(Op::NormAdd { x, weight, eps, residual: to })
            }
            (
                &Op::SigmoidGate { gate, x, out: gated, adds: false },
                &Op::Add { x: term, residual: to, out },
            ) if residual && [gated, term] == [x; 2] && to == out => {
                let fits = self.plan.dtype(x) == Dtype::F32
                    && gate.tensor != to.tensor
                    && self.ends(x, index);
                fits.then_some(Op::SigmoidGate { gate, x, out, adds: true })
            }
            (&Op::ExpertLinear(experts), &Op::Add { x, residual: to, out })
                if residual && experts.out == x =>
            {
                let fits = experts.weights.is_some()
                    && self.plan.dtype(x) == Dtype::F32
                    && experts.x.tensor != out.tensor
                    && self.is_passed_on(x, index);
                let fused = ExpertLinear { residual: Some(to), out, ..experts };
                fits.then_some(Op::ExpertLinear(fused))
            }
            (&Op::AllReduce(first), &Op::Add { x, residual: to, out })
                if residual && first.x == x && to == out =>
            {
                let fused = AllReduce { residual: Some(to), ..first };
                self.ends(x, index).then_some(Op::AllReduce(fused))
            }
            (&Op::AllReduce(first), &Op::RmsNorm { x, weight, out, eps })
                if residual && first.residual == Some(x) && first.norm.is_none() =>
            {
                let norm = Some((Norm { weight, eps }, out));
                let is_whole = self.plan.weight(weight).cols == x.width
                    && self.plan.tensor(out.tensor).width == x.width;
                let fits = is_whole && self.is_summed_next(x, index);
                fits.then_some(Op::AllReduce(AllReduce { norm, ..first }))
            }
            (&Op::Rope { x, table, head_dim }, &Op::KvAppend { layer, k, v }) if rope_append => {
                let q = rotated_before(x, k)?;
                let op = RopeAppend { layer, norm: None, q, k, v, table, head_dim };
                self.rope_append(x, op, index)
            }
            (&Op::RopeAppend(append), &Op::Attention(attention)) if rope_append => {
                self.append_attention(append, attention, index)
            }
            _ => None,
        }
    }

    /// The f32 rows that the norm reads have to be alive after it in any case, as the residual
    /// stream is: they take twice the memory of the operand that is not stored.
    fn norm_linear(&self, x: View, norm: Norm, linear: &Linear, index: usize) -> Option<Op> {
        let is_alive = self.lifetimes[x.tensor.0].is_some_and(|life| life.last >= index);
        let fits = self.plan.dtype(x) == Dtype::F32
            && self.plan.weight(norm.weight).cols == x.width
            && x.tensor != linear.out.tensor
            && is_alive
            && self.is_passed_on(linear.x, index);
        fits.then_some(Op::Linear(Linear { x, norm: Some(norm), ..*linear }))
    }

    /// What two operations and `op`, operation `index` after them, are together.
    fn triple(&self, before: [&Op; 2], op: &Op, index: usize) -> Option<Op> {
        match op {
            Op::Route(route) => self.norm_route(before, route, index),
            _ => self.expert_gate(before, op, index),
        }
    }

    /// A norm of f32 rows, which are alive after it in any case, the linear layer of a router and
    /// the choice of experts. Others read the normed rows.
    fn norm_route(&self, before: [&Op; 2], route: &Route, index: usize) -> Option<Op> {
        let (&Op::RmsNorm { x, weight: norm, out: normed, eps }, Op::Linear(linear)) =
            (before[0], before[1])
        else {
            return None;
        };
        let &Linear { weight, bias, .. } = linear;
        let router = Router { x, norm: Norm { weight: norm, eps }, normed, weight, bias };
        let is_alive = self.lifetimes[x.tensor.0].is_some_and(|life| life.last >= index);
        let fused = Route { router: Some(router), ..*route };
        let fits = self.plan.numerics.fusion.norm_gemm
            && fused.router_ops().eq(before.into_iter().cloned())
            && self.plan.dtype(x) == Dtype::F32
            && self.plan.weight(norm).cols == x.width
            && Op::Route(fused).writes().iter().all(|out| out.tensor != x.tensor)
            && is_alive
            && self.is_passed_on(route.logits, index);
        fits.then_some(Op::Route(fused))
    }

    /// The linear layers of the gate and of up of experts, and their gate.
    fn expert_gate(&self, [gate, up]: [&Op; 2], op: &Op, index: usize) -> Option<Op> {
        let (Op::ExpertLinear(gate), Op::ExpertLinear(up), &Op::Gate { activation, out, .. }) =
            (gate, up, op)
        else {
            return None;
        };
        let fits = self.plan.numerics.fusion.gemm_swiglu
            && op.reads() == [gate.out, up.out]
            && [gate, up].iter().all(|linear| linear.gate.is_none() && linear.weights.is_none())
            && (gate.x, gate.experts) == (up.x, up.experts)
            && self.plan.dtype(gate.out) == self.plan.numerics.precision.operand()
            && out.tensor != gate.x.tensor
            && self.is_passed_on(up.out, index)
            && self.lifetimes[gate.out.tensor.0]
                == Some(Lifetime { first: index - 2, last: index });
        let of_up = ExpertGate { activation, up: up.weight, bias: up.bias };
        fits.then_some(Op::ExpertLinear(ExpertLinear { gate: Some(of_up), out, ..*gate }))
    }

    fn linear_gate(
        &self,
        linear: &Linear,
        halves: [View; 2],
        (activation, out): (Activation, View),
        index: usize,
    ) -> Option<Op> {
        let (gate_up, width) = (linear.out, out.width);
        let fits = gate_up.width == 2 * width
            && halves == [gate_up.columns(0, width), gate_up.columns(width, width)]
            && self.plan.dtype(gate_up) == self.plan.numerics.precision.operand()
            && linear.residual.is_none()
            && out.tensor != linear.x.tensor
            && self.is_passed_on(gate_up, index);
        fits.then_some(Op::Linear(Linear { gate: Some(activation), out, ..*linear }))
    }

    fn gate_linear(
        &self,
        (activation, gate): (Activation, View),
        up: View,
        linear: &Linear,
        index: usize,
    ) -> Option<Op> {
        let fits = linear.norm.is_none()
            && linear.gate.is_none()
            && [gate, up].iter().all(|view| view.tensor != linear.out.tensor)
            && self.is_passed_on(linear.x, index);
        let gate_before = Some((activation, gate));
        fits.then_some(Op::Linear(Linear { x: up, gate_before, ..*linear }))
    }

    fn linear_residual(
        &self,
        linear: &Linear,
        residual: View,
        out: View,
        index: usize,
    ) -> Option<Op> {
        let gate_before = linear.gate_before.map(|(_, gate)| gate);
        let fits = linear.gate.is_none()
            && linear.residual.is_none()
            && [Some(linear.x), gate_before].iter().flatten().all(|x| x.tensor != out.tensor)
            && self.is_passed_on(linear.out, index);
        fits.then_some(Op::Linear(Linear { residual: Some(residual), out, ..*linear }))
    }

    /// The columns of K stay unrotated in memory: no operation may read them after the append.
    fn rope_append(&self, rotated: View, op: RopeAppend, index: usize) -> Option<Op> {
        let fits = op.head_dim == self.plan.kv.layers[op.layer].head_dim
            && !op.v.overlaps(rotated)
            && !self.is_read_after(index, op.k);
        fits.then_some(Op::RopeAppend(op))
    }

    /// The norms of the heads that `append` rotates, which are those before it. K stays as it is
    /// in memory: nothing reads it after the append.
    fn qk_norm(&self, norms: [&Op; 2], append: &Op) -> Option<Op> {
        let &Op::RopeAppend(append @ RopeAppend { norm: None, q, k, head_dim, .. }) = append else {
            return None;
        };
        let [
            &Op::RmsNorm { x: of_q, weight: q_weight, out: q_out, eps },
            &Op::RmsNorm { x: of_k, weight: k_weight, out: k_out, eps: k_eps },
        ] = norms
        else {
            return None;
        };
        let fits = self.plan.numerics.fusion.qk_norm
            && [of_q, q_out, of_k, k_out] == [q, q, k, k]
            && [q_weight, k_weight].iter().all(|&id| self.plan.weight(id).cols == head_dim)
            && eps == k_eps;
        let norm = Some(QkNorm { q: q_weight, k: k_weight, eps });
        fits.then_some(Op::RopeAppend(RopeAppend { norm, ..append }))
    }

    /// Q stays unrotated in memory, likewise.
    fn append_attention(
        &self,
        append: RopeAppend,
        attention: Attention,
        index: usize,
    ) -> Option<Op> {
        let fits = append.layer == attention.layer
            && append.q == attention.q
            && self.plan.kv.is_plain()
            && self.plan.dtype(append.q) == self.plan.kv.dtype
            && [append.q, append.k, append.v].iter().all(|x| x.tensor != attention.out.tensor)
            && !self.is_read_after(index, append.q);
        fits.then_some(Op::AppendAttention(AppendAttention { append, attention }))
    }

    /// Whether an operation after operation `index` reads any column of `view`, or an output is in
    /// it.
    fn is_read_after(&self, index: usize, view: View) -> bool {
        let outputs = self.plan.outputs();
        let mut later = self.plan.ops[index + 1..].iter().flat_map(Op::reads).chain(outputs);
        later.any(|read| read.overlaps(view))
    }

    /// Whether what reads `residual` after operation `index`, if anything does, is the addition of
    /// a sum over ranks, which becomes part of that.
    fn is_summed_next(&self, residual: View, index: usize) -> bool {
        let reads = |op: &Op| op.reads().into_iter().any(|read| read.overlaps(residual));
        let ops = &self.plan.ops;
        let Some(next) = (index + 1..ops.len()).find(|&next| reads(&ops[next])) else {
            return !self.is_read_after(index, residual);
        };
        match (&ops[next - 1], &ops[next]) {
            (&Op::AllReduce(sum), &Op::Add { x, residual: to, out }) => {
                sum.x == x && (to, out) == (residual, residual) && self.ends(x, next)
            }
            _ => false,
        }
    }

    /// Whether the operation before operation `index` writes the activation of `view`, this one
    /// reads it, and no other touches it.
    fn is_passed_on(&self, view: View, index: usize) -> bool {
        let passed_on = Lifetime { first: index - 1, last: index };
        self.lifetimes[view.tensor.0] == Some(passed_on)
    }

    /// Whether operation `index` is the last one to touch the activation of `view`.
    fn ends(&self, view: View, index: usize) -> bool {
        self.lifetimes[view.tensor.0].is_some_and(|life| life.last == index)
    }
}

/// The columns of `x` before `k`, where `k` is its last ones and not all.
fn rotated_before(x: View, k: View) -> Option<View> {
    let width = x.width.checked_sub(k.width).filter(|&width| width > 0)?;
    (x.columns(width, k.width) == k).then(|| x.columns(0, width))
}

#[cfg(test)]
mod tests;
