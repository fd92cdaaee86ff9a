//! A naive interpreter of plans in f32; rows are rounded to E4M3 where it is told so.

use cuda_std::E4m3;
use halfwarp::Model;
use halfwarp::plan::{
    Activation, AppendAttention, Attention, CausalConv, ConstantId, ExpertGate, ExpertLinear,
    Groups, Linear, Norm, Op, Plan, QkNorm, RopeAppend, Route, Scores, View, Weight, WeightId,
    WeightSource,
};
use std::collections::BTreeMap;

/// Weights whose rows are rounded to E4M3, by the index of the token.
pub type Rounded<'a> = &'a dyn Fn(usize) -> &'a [WeightId];

/// Runs a plan for one sequence from its first position, with no paging and no batching.
pub struct Interpreter<'a> {
    plan: &'a Plan,
    weights: Vec<Vec<f32>>,
    tokens: &'a [u32],
    tensors: Vec<Vec<f32>>,
    /// K and V of each layer, `[tokens, num_kv_heads * head_dim]`.
    cache: BTreeMap<usize, (Vec<f32>, Vec<f32>)>,
    rounded: Rounded<'a>,
}

impl<'a> Interpreter<'a> {
    /// Logits of every token, `[tokens, vocab_size]`.
    pub fn logits(
        model: &Model,
        plan: &'a Plan,
        tokens: &'a [u32],
        rounded: Rounded<'a>,
    ) -> Vec<f32> {
        let read = |weight| {
            let mut bytes = vec![0; Weight::bytes(weight)];
            model.checkpoint().read(weight, &mut bytes).unwrap();
            bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let weights = plan.weights.iter().map(read).collect();
        // What was never written poisons what is computed from it.
        let tensors = plan.tensors.iter().map(|t| vec![f32::NAN; tokens.len() * t.width]).collect();
        let cache = BTreeMap::new();
        let mut run = Interpreter { plan, weights, tokens, tensors, cache, rounded };
        plan.ops.iter().for_each(|op| run.op(op));
        run.read(plan.output)
    }

    fn read(&self, view: View) -> Vec<f32> {
        let width = self.plan.tensor(view.tensor).width;
        let rows = self.tensors[view.tensor.0].chunks(width);
        rows.flat_map(|row| row[view.start..][..view.width].to_vec()).collect()
    }

    fn write(&mut self, view: View, data: &[f32]) {
        let width = self.plan.tensor(view.tensor).width;
        let rows = self.tensors[view.tensor.0].chunks_mut(width).zip(data.chunks(view.width));
        rows.for_each(|(row, data)| row[view.start..][..view.width].copy_from_slice(data));
    }

    fn weight(&self, id: WeightId) -> &[f32] {
        &self.weights[id.0]
    }

    fn op(&mut self, op: &Op) {
        match *op {
            Op::Embedding { table, out, scale } => {
                let table = self.weight(table);
                let row = |&token: &u32| &table[token as usize * out.width..][..out.width];
                let data = self.tokens.iter().flat_map(row).map(|x| scale * x);
                let data: Vec<f32> = data.collect();
                self.write(out, &data);
            }
            Op::RmsNorm { x, weight, out, eps } => {
                let data = norm(self.read(x), self.weight(weight), eps);
                self.write(out, &data);
            }
            Op::NormAdd { x, weight, eps, residual } => {
                let normed = norm(self.read(x), self.weight(weight), eps).into_iter();
                let sums = normed.zip(self.read(residual)).map(|(x, residual)| x + residual);
                self.write(residual, &sums.collect::<Vec<f32>>());
            }
            Op::Linear(linear) => {
                let data = self.linear(&linear);
                self.write(linear.out, &data);
            }
            Op::Route(route) => {
                route.router_ops().for_each(|op| self.op(&op));
                self.route(&route);
            }
            Op::ExpertLinear(op) => {
                let mut data = self.expert_linear(&op);
                if let Some(residual) = op.residual {
                    let terms = self.read(residual).into_iter();
                    data.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
                }
                self.write(op.out, &data);
            }
            Op::Rope { x, table, head_dim } => {
                let data = self.rotated(x, table, head_dim);
                self.write(x, &data);
            }
            Op::KvAppend { layer, k, v } => {
                let kv = (self.read(k), self.read(v));
                self.cache.insert(layer, kv);
            }
            Op::RopeAppend(RopeAppend { layer, norm, q, k, v, table, head_dim }) => {
                if let Some(QkNorm { q: of_q, k: of_k, eps }) = norm {
                    self.op(&Op::RmsNorm { x: q, weight: of_q, out: q, eps });
                    self.op(&Op::RmsNorm { x: k, weight: of_k, out: k, eps });
                }
                let kv = (self.rotated(k, table, head_dim), self.read(v));
                self.cache.insert(layer, kv);
                let data = self.rotated(q, table, head_dim);
                self.write(q, &data);
            }
            Op::Attention(attention) => {
                let data = self.attention(&attention);
                self.write(attention.out, &data);
            }
            // In one step, which leaves no scores.
            Op::AttentionScores(_) | Op::AttentionSoftmax(_) => {}
            Op::AttentionValues(op) => self.op(&Op::Attention(op.attention)),
            Op::AppendAttention(AppendAttention { append, attention }) => {
                self.op(&Op::RopeAppend(append));
                self.op(&Op::Attention(attention));
            }
            Op::Gate { activation, gate, up, out } => {
                let data = gated(activation, &self.read(gate), &self.read(up));
                self.write(out, &data);
            }
            Op::Add { x, residual, out } => {
                let terms = self.read(x).into_iter().zip(self.read(residual));
                let data: Vec<f32> = terms.map(|(x, residual)| x + residual).collect();
                self.write(out, &data);
            }
            Op::GatherRows { x, out } | Op::Cast { x, out } => {
                let data = self.read(x);
                self.write(out, &data);
            }
            Op::Softcap { x, cap } => {
                let data = self.read(x).into_iter().map(|x| cap * (x / cap).tanh());
                self.write(x, &data.collect::<Vec<f32>>());
            }
            Op::Scale { x, factors, indices } => {
                let indices = indices.map(|indices| self.read(indices));
                let index = |i: usize| indices.as_ref().map_or(0, |indices| indices[i] as usize);
                let data = self.read(x).into_iter().enumerate();
                let data = data.map(|(i, x)| x * self.weight(factors)[index(i)]);
                self.write(x, &data.collect::<Vec<f32>>());
            }
            Op::AllReduce(_) | Op::AllGather { .. } => panic!("{op:?} of one device"),
            Op::SigmoidGate { gate, x, out, adds } => {
                let (gates, shared) = (self.read(gate), x.width / gate.width);
                let gate = |i: usize| 1.0 / (1.0 + (-gates[i / shared]).exp());
                let terms = if adds { self.read(out) } else { vec![0.0; self.read(x).len()] };
                let data = self.read(x).into_iter().zip(terms).enumerate();
                let data = data.map(|(i, (x, term))| x * gate(i) + term);
                self.write(out, &data.collect::<Vec<f32>>());
            }
            Op::CausalConv(CausalConv { x, weight, out, .. }) => {
                let taps = self.plan.weight(weight).cols;
                let data = oracle::causal_conv(&self.read(x), self.weight(weight), taps);
                self.write(out, &data.into_iter().map(|x| x as f32).collect::<Vec<f32>>());
            }
            Op::DeltaRule(op) => {
                let states = self.plan.states;
                let [q, k, v, gates] = [op.q, op.k, op.v, op.gates].map(|view| self.read(view));
                let (rate, bias) = (self.weight(op.rate), self.weight(op.bias));
                let heads = [states.num_heads, op.num_k_heads, states.k_dim, states.v_dim];
                let (q, k, v, gates) = (&q[..], &k[..], &v[..], &gates[..]);
                let is_tiled = op.is_tiled;
                let of = oracle::Gated { q, k, v, gates, rate, bias, heads, is_tiled };
                let (data, _) = oracle::delta_rule(&of);
                self.write(op.out, &data.into_iter().map(|x| x as f32).collect::<Vec<f32>>());
            }
            Op::LayerNorm(_) | Op::AddTable { .. } | Op::Gelu { .. } | Op::MeanRows { .. } => {
                panic!("{op:?} of a decoder")
            }
            Op::Sample { .. } => {}
        }
    }

    /// Indices of experts are kept as numbers.
    fn route(&mut self, op: &Route) {
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        for logits in self.read(op.logits).chunks(op.logits.width) {
            let (logits, gate) = logits.split_at(op.num_experts());
            let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
            let (scores, biased): (Vec<f32>, Vec<f32>) = match op.scores {
                Scores::Softmax => {
                    (logits.iter().map(|logit| logit.exp() / total).collect(), logits.to_vec())
                }
                Scores::Sigmoid { bias, groups } => {
                    let score = |logit: &f32| 1.0 / (1.0 + (-logit).exp());
                    let scores: Vec<f32> = logits.iter().map(score).collect();
                    let terms = scores.iter().zip(self.weight(bias));
                    let biased: Vec<f32> = terms.map(|(score, bias)| score + bias).collect();
                    (scores, groups.map_or(biased.clone(), |groups| of_groups(groups, &biased)))
                }
            };
            let chosen = largest(&biased, op.top_k());
            let sum: f32 = chosen.iter().map(|&expert| scores[expert]).sum();
            let factor = if op.normalise { op.scale / sum } else { op.scale };
            weights.extend(chosen.iter().map(|&expert| scores[expert] * factor));
            experts.extend(chosen.into_iter().map(|expert| expert as f32));
            if op.shared.is_some() {
                weights.push(gate.first().map_or(1.0, |gate| 1.0 / (1.0 + (-gate).exp())));
                experts.push(op.num_experts() as f32);
            }
        }
        self.write(op.experts, &experts);
        self.write(op.weights, &weights);
    }

    fn expert_linear(&self, op: &ExpertLinear) -> Vec<f32> {
        let Weight { rows, cols, .. } = *self.plan.weight(op.weight);
        let (top_k, n) = (op.experts.width, rows / op.num_experts);
        if let Some(ExpertGate { activation, up, bias }) = op.gate {
            let [gate, up] = [(op.weight, op.bias), (up, bias)].map(|(weight, bias)| {
                self.expert_linear(&ExpertLinear { weight, bias, gate: None, ..*op })
            });
            return gated(activation, &gate, &up);
        }
        let (experts, x) = (self.read(op.experts), self.read(op.x));
        let matrices = self.weight(op.weight);
        let bias = op.bias.map(|bias| self.weight(bias));
        let products = |token: usize, i: usize| -> Vec<f32> {
            let x = &x[token * op.x.width..][..op.x.width];
            let x = if op.x.width == cols { x } else { &x[i * cols..][..cols] };
            let expert = experts[token * top_k + i] as usize;
            let matrix = &matrices[expert * n * cols..][..n * cols];
            let dot = |w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>();
            let rows = matrix.chunks(cols).enumerate();
            rows.map(|(row, w)| dot(w) + bias.map_or(0.0, |bias| bias[expert * n + row])).collect()
        };
        let weights = op.weights.map(|weights| self.read(weights));
        let mut data = Vec::new();
        for token in 0..experts.len() / top_k {
            let all = (0..top_k).map(|i| products(token, i));
            let Some(weights) = &weights else {
                data.extend(all.flatten());
                continue;
            };
            let mut sums = vec![0.0; n];
            for (product, weight) in all.zip(&weights[token * top_k..]) {
                sums.iter_mut().zip(product).for_each(|(sum, product)| *sum += weight * product);
            }
            data.extend(sums);
        }
        data
    }

    fn linear(&self, op: &Linear) -> Vec<f32> {
        let mut x = self.read(op.x);
        if let Some(Norm { weight, eps }) = op.norm {
            x = norm(x, self.weight(weight), eps);
        }
        if let Some((activation, gate)) = op.gate_before {
            x = gated(activation, &self.read(gate), &x);
        }
        for (token, row) in x.chunks_mut(op.x.width).enumerate() {
            if (self.rounded)(token).contains(&op.weight) {
                round_to_e4m3(row);
            }
        }
        let weight = self.weight(op.weight);
        let product = |row: &[f32]| -> Vec<f32> {
            let dot = |w: &[f32]| row.iter().zip(w).map(|(x, w)| x * w).sum();
            weight.chunks(op.x.width).map(dot).collect()
        };
        let mut data: Vec<f32> = x.chunks(op.x.width).flat_map(product).collect();
        if let Some(bias) = op.bias {
            let bias = self.weight(bias).iter().cycle();
            data.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        if let Some(activation) = op.gate {
            let row = |row: &[f32]| gated(activation, &row[..op.out.width], &row[op.out.width..]);
            data = data.chunks(2 * op.out.width).flat_map(row).collect();
        }
        if let Some(residual) = op.residual {
            let residual = self.read(residual);
            data.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
        }
        data
    }

    fn rotated(&self, x: View, table: ConstantId, head_dim: usize) -> Vec<f32> {
        let table = self.plan.constant(table);
        let half = table.cols / 2;
        let mut data = self.read(x);
        for (position, row) in data.chunks_mut(x.width).enumerate() {
            let (cos, sin) = table.data[position * table.cols..][..table.cols].split_at(half);
            for head in row.chunks_mut(head_dim) {
                for i in 0..half {
                    let (a, b) = (head[i], head[i + half]);
                    head[i] = a * cos[i] - b * sin[i];
                    head[i + half] = b * cos[i] + a * sin[i];
                }
            }
        }
        data
    }

    fn attention(&self, op: &Attention) -> Vec<f32> {
        assert!(op.causal, "every decoder is");
        let (q, (k, v)) = (self.read(op.q), &self.cache[&op.layer]);
        let (d, group) = (op.head_dim, op.num_heads / op.num_kv_heads);
        let mut out = vec![0.0; q.len()];
        for (t, out) in out.chunks_mut(op.num_heads * d).enumerate() {
            let first = op.window.map_or(0, |window| (t + 1).saturating_sub(window));
            for (head, out) in out.chunks_mut(d).enumerate() {
                let q = &q[(t * op.num_heads + head) * d..][..d];
                let row = |j: usize| (j * op.num_kv_heads + head / group) * d;
                let score = |j: usize| -> f32 {
                    let dot: f32 = q.iter().zip(&k[row(j)..]).map(|(q, k)| q * k).sum();
                    let score = dot * op.softmax_scale;
                    op.softcap.map_or(score, |cap| cap * (score / cap).tanh())
                };
                let scores: Vec<f32> = (first..=t).map(score).collect();
                let sink = op.sinks.map(|sinks| self.weight(sinks)[head]);
                let all = || scores.iter().copied().chain(sink);
                let max = all().fold(f32::MIN, f32::max);
                let sum: f32 = all().map(|s| (s - max).exp()).sum();
                for (j, score) in (first..=t).zip(&scores) {
                    let p = (score - max).exp() / sum;
                    out.iter_mut().zip(&v[row(j)..]).for_each(|(o, v)| *o += p * v);
                }
            }
        }
        out
    }
}

/// With a scale of the row.
fn round_to_e4m3(row: &mut [f32]) {
    let max = row.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    if max > 0.0 {
        let round = |x: f32| max / 448.0 * E4m3::from_f32(x * (448.0 / max)).to_f32();
        row.iter_mut().for_each(|x| *x = round(*x));
    }
}

fn norm(x: Vec<f32>, weight: &[f32], eps: f32) -> Vec<f32> {
    let group = |group: &[f32]| -> Vec<f32> {
        let mean = group.iter().map(|x| x * x).sum::<f32>() / group.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        group.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
    };
    x.chunks(weight.len()).flat_map(group).collect()
}

fn gated(activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let activate = |x: f32| oracle::activate(activation, x.into()) as f32;
    let factor = |x: f32| oracle::factor(activation, x.into()) as f32;
    gate.iter().zip(up).map(|(g, u)| activate(*g) * factor(*u)).collect()
}

/// Where the `count` largest of `values` are, the largest first.
fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..values.len()).collect();
    let mut chosen = Vec::new();
    for _ in 0..count {
        let mut best = 0;
        for i in 0..left.len() {
            if values[left[i]] > values[left[best]] {
                best = i;
            }
        }
        chosen.push(left.remove(best));
    }
    chosen
}

/// `scores`, but minus infinity outside of the groups with the largest sums of their two best.
fn of_groups(groups: Groups, scores: &[f32]) -> Vec<f32> {
    let of_group = scores.len() / groups.count;
    let sum = |group: &[f32]| largest(group, 2).iter().map(|&i| group[i]).sum();
    let sums: Vec<f32> = scores.chunks(of_group).map(sum).collect();
    let kept = largest(&sums, groups.top_k);
    let score = |i: usize| if kept.contains(&(i / of_group)) { scores[i] } else { f32::MIN };
    (0..scores.len()).map(score).collect()
}
