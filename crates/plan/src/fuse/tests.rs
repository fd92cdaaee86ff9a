//! What is fused, and what is not.

mod experts;

use super::*;
use crate::testing::{Decoder, silu_mul};
use crate::{ArenaLayout, CacheType, Cost, Precision, Rows, StepShape, Tensor, TensorId, WeightId};

const SILU: Option<Activation> = Some(Activation::Silu);

fn names(plan: &Plan) -> Vec<&'static str> {
    plan.ops.iter().map(Op::name).collect()
}

/// The names of the operations of a layer.
fn layer(plan: &Plan) -> Vec<&'static str> {
    let names = names(plan).into_iter();
    names.skip(1).take_while(|&name| name != "gather_rows").collect()
}

#[test]
fn a_layer_is_five_operations() {
    for precision in Precision::ALL {
        let plan = Decoder { precision, ..Decoder::SMALL }.plan(4, 1);
        let fused = plan.fused(|_| true);
        assert_eq!(fused.check(), Ok(()), "{precision}");
        let expected = ["norm_linear", "append_attention", "linear", "norm_linear_gate", "linear"];
        assert_eq!(layer(&fused), expected, "{precision}");
        // What the last norm reads ends there.
        let last = ["gather_rows", "rms_norm", "linear", "sample"];
        assert_eq!(names(&fused)[6..], last, "{precision}");
        assert_eq!(names(&fused.fused(|_| true)), names(&fused), "{precision}");
    }
}

#[test]
fn fused_operations_are_their_parts() {
    let plan = Decoder::SMALL.plan(4, 1);
    let fused = plan.fused(|_| true);
    let view = |tensor: usize| {
        let width = plan.tensors[tensor].width;
        View { tensor: TensorId(tensor), start: 0, width }
    };
    let (Op::Linear(qkv), Op::Linear(gate_up)) = (&plan.ops[2], &plan.ops[8]) else { panic!() };
    let norm = |weight| Some(Norm { weight: WeightId(weight), eps: 1e-6 });
    assert_eq!(fused.ops[1], Op::Linear(Linear { x: view(0), norm: norm(1), ..*qkv }));
    let gated = Linear { x: view(0), norm: norm(5), gate: SILU, out: view(6), ..*gate_up };
    assert_eq!(fused.ops[4], Op::Linear(gated));
    let (
        &Op::Rope { table, head_dim, .. },
        &Op::KvAppend { layer, k, v },
        &Op::Attention(attention),
    ) = (&plan.ops[3], &plan.ops[4], &plan.ops[5])
    else {
        panic!()
    };
    let q = view(2).columns(0, 32);
    let append = RopeAppend { layer, norm: None, q, k, v, table, head_dim };
    assert_eq!(fused.ops[2], Op::AppendAttention(AppendAttention { append, attention }));
    let appended = plan.fused(|op| !matches!(op, Op::AppendAttention(_)));
    assert_eq!(appended.ops[2..4], [Op::RopeAppend(append), Op::Attention(attention)]);
}

#[test]
fn nothing_is_fused_that_no_kernel_takes() {
    let plan = Decoder::SMALL.plan(4, 1);
    assert_eq!(plan.fused(|_| false).ops, plan.ops);
    let gate_after = |op: &Op| matches!(op, Op::Linear(Linear { gate: Some(_), .. }));
    let gate_before = |op: &Op| matches!(op, Op::Linear(Linear { gate_before: Some(_), .. }));
    let without_gates = plan.fused(|op| !gate_after(op) && !gate_before(op));
    assert_eq!(layer(&without_gates)[3..5], ["norm_linear", "silu_mul"]);
    let without_norm = plan.fused(|op| !matches!(op, Op::Linear(Linear { norm: Some(_), .. })));
    assert_eq!(layer(&without_norm)[4..6], ["rms_norm", "linear_gate"]);
}

#[test]
fn a_gate_is_fused_with_the_layer_after_it() {
    let plan = Decoder::SMALL.plan(4, 1);
    let fused = plan.fused(|op| !matches!(op, Op::Linear(Linear { gate: Some(_), .. })));
    assert_eq!(fused.check(), Ok(()));
    assert_eq!(layer(&fused)[3..], ["norm_linear", "silu_linear"]);
    let (&Op::Gate { activation, gate, up, .. }, Op::Linear(down)) = (&plan.ops[9], &plan.ops[10])
    else {
        panic!("{:?}", &plan.ops[9..11]);
    };
    assert_eq!(
        fused.ops[5],
        Op::Linear(Linear { x: up, gate_before: Some((activation, gate)), ..*down })
    );
}

/// What the decoder makes: a residual is an operation of its own.
fn unfused() -> Plan {
    let mut plan = Decoder::SMALL.plan(4, 1);
    plan.unfuse_residuals();
    assert_eq!(plan.check(), Ok(()));
    plan
}

#[test]
fn each_fusion_can_be_off() {
    let without = |fusion: Fusion| {
        let mut plan = unfused();
        plan.set_fusion(fusion);
        layer(&plan.fused(|_| true))
    };
    let all = Fusion::ALL;
    assert_eq!(without(Fusion::NONE), layer(&unfused()));
    let [norm, linear, gated, add] = ["rms_norm", "linear", "norm_linear_gate", "add"];
    let expected = ["norm_linear", "append_attention", linear, gated, linear];
    assert_eq!(without(all), expected);
    let expected = [norm, linear, "append_attention", linear, norm, "linear_gate", linear];
    assert_eq!(without(Fusion { norm_gemm: false, ..all }), expected);
    let expected = ["norm_linear", "append_attention", linear, "norm_linear", "silu_mul", linear];
    assert_eq!(without(Fusion { gemm_swiglu: false, ..all }), expected);
    let expected = ["norm_linear", "rope", "kv_append", "attention", linear, gated, linear];
    assert_eq!(without(Fusion { rope_append: false, ..all }), expected);
    let expected = ["norm_linear", "append_attention", linear, add, gated, linear, add];
    assert_eq!(without(Fusion { residual: false, ..all }), expected);
    let mut plan = qk_normed();
    plan.set_fusion(Fusion { qk_norm: false, ..all });
    let expected = ["norm_linear", norm, norm, "append_attention", linear, gated, linear];
    assert_eq!(layer(&plan.fused(|_| true)), expected);
}

/// Operations 3 and 4 are the norms of Q's and of K's heads.
fn qk_normed() -> Plan {
    Decoder { qk_norm: true, ..Decoder::SMALL }.plan(4, 1)
}

#[test]
fn norms_of_heads_are_part_of_the_append() {
    let plan = qk_normed();
    let fused = plan.fused(|_| true);
    assert_eq!(fused.check(), Ok(()));
    assert_eq!(layer(&fused)[..3], ["norm_linear", "norm_append_attention", "linear"]);
    let shape = StepShape { num_tokens: 3, num_logit_rows: 2, ..Default::default() };
    assert_eq!(fused.cost(&shape).flops, plan.cost(&shape).flops);
    let appended = plan.fused(|op| op.attention().is_none());
    let norm = Some(QkNorm { q: WeightId(4), k: WeightId(5), eps: 1e-6 });
    assert_eq!(appended.ops[2].rope_append().map(|append| append.norm), Some(norm));
    assert_eq!(layer(&appended)[1..3], ["norm_rope_append", "attention"]);
    let without = plan.fused(|op| op.rope_append().is_none_or(|append| append.norm.is_none()));
    assert_eq!(layer(&without)[1..4], ["rms_norm", "rms_norm", "append_attention"]);
}

#[test]
fn other_norms_before_rope_stay() {
    fn norm(op: &mut Op) -> (&mut View, &mut WeightId, &mut View, &mut f32) {
        let Op::RmsNorm { x, weight, out, eps } = op else { panic!("{op:?}") };
        (x, weight, out, eps)
    }
    let obstacles: [fn(&mut Plan); 7] = [
        // Over all heads; of other columns; to elsewhere; another constant.
        |p| (p.weights[4].cols, p.weights[4].parts[0].rows) = (32, 32),
        |p| (p.weights[5].cols, p.weights[5].parts[0].rows) = (16, 16),
        |p| (*norm(&mut p.ops[3]).0, *norm(&mut p.ops[3]).2) = (view(2, 0, 24), view(2, 0, 24)),
        |p| *norm(&mut p.ops[4]).2 = view(1, 0, 16),
        |p| *norm(&mut p.ops[4]).3 = 1e-5,
        // One alone; another operation in between.
        |p| _ = p.ops.remove(3),
        |p| {
            let reader = reader(p, 0, 0);
            p.ops.insert(5, reader);
        },
    ];
    for (index, obstacle) in obstacles.into_iter().enumerate() {
        let mut plan = qk_normed();
        obstacle(&mut plan);
        let name = layer(&plan.fused(|_| true)).into_iter().find(|name| name.contains("append"));
        assert_eq!(name, Some("append_attention"), "obstacle {index}");
    }
}

#[test]
fn a_residual_is_that_of_its_linear_layer() {
    assert_eq!(unfused().fused(|_| true).ops, Decoder::SMALL.plan(4, 1).fused(|_| true).ops);
}

/// What is fused no more, and what was done to the plan.
type Obstacle = (&'static str, fn(&mut Plan));

/// An operation that reads 16 columns of an activation.
fn reader(plan: &mut Plan, tensor: usize, start: usize) -> Op {
    let dtype = plan.tensors[tensor].dtype;
    plan.tensors.push(Tensor {
        name: "read".into(),
        layer: None,
        rows: Rows::Tokens,
        width: 16,
        dtype,
    });
    let view = |tensor, start| View { tensor: TensorId(tensor), start, width: 16 };
    let (x, out) = (view(tensor, start), view(plan.tensors.len() - 1, 0));
    silu_mul(x, x, out)
}

fn linear(plan: &mut Plan, index: usize) -> &mut Linear {
    let Op::Linear(linear) = &mut plan.ops[index] else { panic!("operation {index}") };
    linear
}

fn attention(plan: &mut Plan) -> &mut Attention {
    let Op::Attention(attention) = &mut plan.ops[5] else { panic!() };
    attention
}

fn view(tensor: usize, start: usize, width: usize) -> View {
    View { tensor: TensorId(tensor), start, width }
}

const OBSTACLES: &[Obstacle] = &[
    // A second reader, after or before; an output; another operation in between.
    ("norm_linear", |p| {
        let reader = reader(p, 1, 0);
        p.ops.insert(5, reader);
    }),
    ("norm_linear", |p| {
        let reader = reader(p, 1, 0);
        p.ops.insert(2, reader);
    }),
    ("norm_linear", |p| p.output = view(1, 0, 32)),
    ("norm_linear", |p| {
        let reader = reader(p, 0, 0);
        p.ops.insert(2, reader);
    }),
    // Other columns than the norm's; several groups; a norm of 16 bits.
    ("norm_linear", |p| {
        p.tensors[1].width = 64;
        linear(p, 2).x.start = 32;
    }),
    ("norm_linear", |p| (p.weights[1].cols, p.weights[1].parts[0].rows) = (16, 16)),
    ("norm_linear", |p| p.tensors[0].dtype = Dtype::F16),
    // What the norm reads is written by the linear layer.
    ("norm_linear", |p| linear(p, 2).out = view(0, 0, 32)),
    ("norm_linear_gate", |p| {
        let reader = reader(p, 5, 16);
        p.ops.insert(10, reader);
    }),
    ("norm_linear_gate", |p| p.next_tokens = Some(view(5, 0, 1))),
    ("norm_linear_gate", |p| {
        let (gate, up) = (view(5, 16, 16), view(5, 0, 16));
        p.ops[9] = silu_mul(gate, up, view(6, 0, 16));
    }),
    ("norm_linear_gate", |p| p.tensors[5].dtype = Dtype::F32),
    ("norm_linear_gate", |p| (p.tensors[5].width, linear(p, 8).out.width) = (40, 40)),
    ("norm_linear_gate", |p| linear(p, 8).residual = Some(view(2, 0, 32))),
    ("linear_gate", |p| {
        let (gate, up) = (view(5, 0, 16), view(5, 16, 16));
        p.ops[9] = silu_mul(gate, up, view(4, 0, 16));
    }),
    // Columns of K that are read later; another place of K; V among the rotated; heads of another
    // size.
    ("rope_append", |p| {
        let reader = reader(p, 2, 32);
        p.ops.insert(6, reader);
    }),
    ("rope_append", |p| p.output = view(2, 40, 8)),
    ("rope_append", |p| {
        p.ops[4] = Op::KvAppend { layer: 0, k: view(2, 48, 16), v: view(1, 0, 16) };
    }),
    ("rope_append", |p| {
        p.ops[4] = Op::KvAppend { layer: 0, k: view(2, 32, 16), v: view(2, 16, 16) };
    }),
    ("rope_append", |p| p.kv.layers[0].head_dim = 4),
    ("rope_append", |p| {
        let reader = reader(p, 0, 0);
        p.ops.insert(4, reader);
    }),
    // Q that is read later; attention of another layer, to other columns, from f32; over what it
    // reads.
    ("append_attention", |p| {
        let reader = reader(p, 2, 0);
        p.ops.insert(6, reader);
    }),
    ("append_attention", |p| p.output = view(2, 8, 8)),
    ("append_attention", |p| attention(p).layer = 1),
    ("append_attention", |p| attention(p).q = view(1, 0, 32)),
    ("append_attention", |p| p.kv.dtype = Dtype::BF16),
    // A cache that is quantised.
    ("append_attention", |p| p.kv.storage = CacheType::Fp8.into()),
    ("append_attention", |p| attention(p).out = view(2, 0, 32)),
];

#[test]
fn what_others_read_is_stored() {
    for (index, (lost, obstacle)) in OBSTACLES.iter().enumerate() {
        let mut plan = Decoder::SMALL.plan(4, 1);
        obstacle(&mut plan);
        let fused = plan.fused(|op| *lost == "append_attention" || op.name() != "append_attention");
        assert!(!names(&fused).contains(lost), "obstacle {index}: {lost}");
    }
}

#[test]
fn a_residual_of_what_others_read_is_added_by_itself() {
    // Operations 6 and 7 are the projection and its addition, to activation 0 from the first new
    // one.
    let obstacles: [fn(&mut Plan); 5] = [
        |p| {
            let x = linear(p, 6).out;
            p.ops.insert(8, Op::Add { x, residual: view(0, 0, 32), out: view(0, 0, 32) });
        },
        |p| p.output = linear(p, 6).out,
        |p| linear(p, 6).residual = Some(view(0, 0, 32)),
        |p| linear(p, 6).gate = SILU,
        |p| linear(p, 6).x = view(0, 0, 32),
    ];
    let num_adds =
        |plan: Plan| names(&plan.fused(|_| true)).into_iter().filter(|&name| name == "add").count();
    assert_eq!(num_adds(unfused()), 0);
    for (index, obstacle) in obstacles.into_iter().enumerate() {
        let mut plan = unfused();
        obstacle(&mut plan);
        assert_ne!(num_adds(plan), 0, "obstacle {index}");
    }
}

/// What is inserted after the projection of attention, operation 6, changes its output in place
/// before it is added to the residual.
#[test]
fn what_norms_or_gates_a_branch_adds_it_too() {
    let with = |op: fn(View) -> Op, obstacle: fn(&mut Plan, View)| {
        let mut plan = unfused();
        let x = linear(&mut plan, 6).out;
        plan.ops.insert(7, op(x));
        obstacle(&mut plan, x);
        assert_eq!(plan.check(), Ok(()));
        let fused = plan.fused(|_| true);
        assert_eq!(fused.check(), Ok(()));
        let shape = StepShape { num_tokens: 3, num_logit_rows: 2, ..Default::default() };
        assert_eq!(fused.cost(&shape).flops, plan.cost(&shape).flops);
        names(&fused)
    };
    let norm: fn(View) -> Op = |x| Op::RmsNorm { x, weight: WeightId(1), out: x, eps: 1e-6 };
    let gate: fn(View) -> Op = |x| {
        let gate = view(0, 0, 1);
        Op::SigmoidGate { gate, x, out: x, adds: false }
    };
    let has = |names: &[&str], wanted: &[&str]| names.windows(wanted.len()).any(|at| at == wanted);
    assert!(has(&with(norm, |_, _| ()), &["norm_add"]));
    // Others read the normed rows; they are elsewhere.
    let read: fn(&mut Plan, View) = |p, x| {
        p.ops.insert(9, Op::RmsNorm { x, weight: WeightId(1), out: x, eps: 1e-6 });
    };
    assert!(has(&with(norm, read), &["rms_norm", "add"]));
    // The residual is the gate.
    assert!(has(&with(gate, |_, _| ()), &["sigmoid_gate", "add"]));
    let apart: fn(&mut Plan, View) = |p, _| {
        let own = view(p.tensors.len(), 0, 1);
        p.tensors.push(Tensor { width: 1, ..p.tensors[0].clone() });
        let Op::SigmoidGate { gate, .. } = &mut p.ops[7] else { panic!("{:?}", p.ops[7]) };
        *gate = own;
        p.ops.insert(1, Op::Add { x: view(0, 0, 1), residual: view(0, 1, 1), out: own });
    };
    assert!(has(&with(gate, apart), &["sigmoid_gate_add"]));
}

/// The linear layers of [`unfused`] that are added to the residual are a rank's summands, in the
/// type of the operands.
fn summed() -> Plan {
    let mut plan = unfused();
    for index in [11, 6] {
        let x = linear(&mut plan, index).out;
        plan.tensors[x.tensor.0].dtype = plan.numerics.precision.operand();
        plan.ops.insert(index + 1, Op::AllReduce(AllReduce::new(x)));
    }
    plan
}

/// Sums over ranks in `plan`, when they and what follows them are fused.
fn sums(plan: &Plan) -> Vec<&'static str> {
    let fused = plan.fused(|op| !matches!(op, Op::Linear(_)));
    assert_eq!(fused.check(), Ok(()));
    names(&fused).into_iter().filter(|name| name.starts_with("all_reduce")).collect()
}

#[test]
fn a_sum_over_ranks_is_added_and_normed() {
    assert_eq!(summed().check(), Ok(()));
    assert_eq!(sums(&summed()), ["all_reduce_norm", "all_reduce_add"]);
    // The sum is read later; it is added to another row; what is normed is not the residual.
    let mut read = summed();
    let x = linear(&mut read, 6).out;
    read.ops.insert(9, Op::RmsNorm { x, weight: WeightId(1), out: x, eps: 1e-6 });
    assert_eq!(sums(&read), ["all_reduce", "all_reduce_add"]);
    let mut apart = summed();
    apart.numerics.fusion.residual = false;
    assert_eq!(sums(&apart), ["all_reduce", "all_reduce"]);
    let mut other = summed();
    let Op::RmsNorm { x, .. } = &mut other.ops[9] else { panic!("{:?}", other.ops[9]) };
    *x = view(2, 0, 32);
    assert_eq!(sums(&other), ["all_reduce_add", "all_reduce_add"]);
}

/// After a sum with a norm a rank may have some rows of the residual alone.
#[test]
fn a_residual_that_others_read_is_whole() {
    let residual = view(0, 0, 32);
    // It is read before the next sum; what is added to it next is no sum.
    let mut read = summed();
    let (x, to) = (residual, view(2, 0, 32));
    read.ops.insert(11, Op::RmsNorm { x, weight: WeightId(1), out: to, eps: 1e-6 });
    assert_eq!(sums(&read), ["all_reduce_add", "all_reduce_add"]);
    let mut alone = summed();
    alone.ops.remove(13);
    assert_eq!(sums(&alone), ["all_reduce_add"]);

    let mut fused = summed().fused(|op| !matches!(op, Op::Linear(_)));
    let is_last = |op: &Op| op.name() == "all_reduce_add";
    let last = fused.ops.iter().position(is_last).expect("the sum after down");
    let Op::AllReduce(sum) = &mut fused.ops[last] else { unreachable!("by its name") };
    sum.residual = None;
    let error = fused.check().unwrap_err().to_string();
    assert!(error.contains("is read, of which a rank may have some rows alone"), "{error}");
}

#[test]
fn what_is_not_stored_costs_no_bytes() {
    let plan = Decoder::SMALL.plan(4, 1);
    let shape = StepShape { num_tokens: 3, num_logit_rows: 2, ..Default::default() };
    let Cost { read_bytes, written_bytes, flops } = plan.fused(|_| true).cost(&shape);
    // The two norms' rows, gate and up, and the rotated Q and K: each written and read once.
    let bytes = 3 * (32 + 32 + 32 + 32 + 16) * 2;
    let cost = Cost { read_bytes: read_bytes + bytes, written_bytes: written_bytes + bytes, flops };
    assert_eq!(cost, plan.cost(&shape));
}

#[test]
fn a_fused_plan_takes_no_more_memory() {
    let precisions = Precision::ALL.into_iter();
    let decoders = precisions.flat_map(|precision| {
        [Decoder::SMALL, Decoder::REAL[0], Decoder::REAL[1]]
            .map(|decoder| Decoder { precision, ..decoder })
    });
    for decoder in decoders {
        for (max_tokens, max_q_len) in [(1, 1), (2, 1), (8, 1), (8, 8), (32, 1), (512, 512)] {
            let plan = decoder.plan(max_tokens, max_q_len);
            let bytes = |plan: &Plan| ArenaLayout::new(plan).bytes();
            let (fused, unfused) = (bytes(&plan.fused(|_| true)), bytes(&plan));
            assert!(fused <= unfused, "{decoder:?}, {max_tokens} tokens: {fused}, {unfused} bytes");
        }
    }
}
