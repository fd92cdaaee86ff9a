//! That a plan which does not fit is refused, with what is wrong.

use super::super::testing::{Decoder, silu_mul};
use super::super::{
    Accumulate, Bounds, CacheType, Constant, ConstantId, Dtype, KvHeads, KvLayout, KvStorage,
    LayerNorm, Numerics, PlanBuilder, Precision, TensorId, WeightPart, WeightStorage,
};
use super::*;
use Dtype::{BF16, F16, F32, U32};

const BOUNDS: Bounds = Bounds { max_logit_rows: 1, max_kv_len: 8, ..Bounds::one_sequence(4) };

fn weight(b: &mut PlanBuilder, rows: usize, cols: usize, storage: Dtype) -> WeightId {
    b.weight(Weight::whole("w", rows, cols, storage))
}

/// Every operation once, over 2 query heads and one KV head of 4 columns.
fn plan() -> Plan {
    let mut b = PlanBuilder::new();
    let kv = KvLayout {
        layers: vec![KvHeads { num_kv_heads: 1, head_dim: 4 }],
        num_pages: 1,
        windows: None,
        dtype: F32,
        storage: KvStorage::default(),
    };
    let data = vec![0.0; 32].into();
    let table = b.constant(Constant { name: "rope".into(), rows: 8, cols: 4, data });
    let x = b.activation("x", Rows::Tokens, 8, F32);
    let qkv = b.activation("qkv", Rows::Tokens, 16, F32);
    let last = b.activation("last", Rows::Logits, 8, F32);
    let logits = b.activation("logits", Rows::Logits, 10, F32);
    let next_tokens = b.activation("next_tokens", Rows::Logits, 1, U32);
    let (embedding, norm) = (weight(&mut b, 10, 8, F32), weight(&mut b, 1, 8, F32));
    let (projection, bias) = (weight(&mut b, 16, 8, F32), weight(&mut b, 1, 16, F32));
    let (q, k, v) = (qkv.columns(0, 8), qkv.columns(8, 4), qkv.columns(12, 4));
    b.op(Op::Embedding { table: embedding, out: x, scale: 1.0 });
    b.op(Op::RmsNorm { x, weight: norm, out: x, eps: 1e-5 });
    b.op(Op::Linear(Linear { bias: Some(bias), ..Linear::new(x, projection, qkv) }));
    b.op(Op::Rope { x: qkv.columns(0, 12), table, head_dim: 4 });
    b.op(Op::KvAppend { layer: 0, k, v });
    b.op(Op::Attention(Attention {
        layer: 0,
        q,
        out: x,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 4,
        softmax_scale: 0.5,
        causal: true,
        window: None,
        sinks: None,
        softcap: None,
    }));
    b.op(silu_mul(q, qkv.columns(8, 8), x));
    b.op(Op::GatherRows { x, out: last });
    b.op(Op::Linear(Linear::new(last, embedding, logits)));
    b.op(Op::Sample { x: logits, out: next_tokens });
    b.finish(&Numerics::default(), BOUNDS, kv, logits, next_tokens).unwrap()
}

/// Eight columns of an activation of [`plan`].
fn view(tensor: usize, start: usize) -> View {
    View { tensor: TensorId(tensor), start, width: 8 }
}

/// What the error has to say, and how the plan is spoiled.
type Fault = (&'static str, fn(&mut Plan));

#[test]
fn rejects_what_does_not_fit() {
    assert_eq!(plan().check(), Ok(()));
    let faults: &[Fault] = &[
        ("no part of an activation", |p| p.tensors[1].width = 15),
        ("read before it is written", |p| _ = p.ops.remove(0)),
        ("never written", |p| _ = p.ops.pop()),
        ("read while it is written", |p| {
            let (gate, up) = (view(1, 0), view(1, 8));
            p.ops[6] = silu_mul(gate, up, gate);
        }),
        ("read while it is written", |p| {
            p.ops[1] =
                Op::RmsNorm { x: view(1, 0), weight: WeightId(1), out: view(1, 8), eps: 0.0 };
            p.ops.swap(1, 2);
        }),
        ("weight `w`", |p| p.weights[2].parts[0].rows = 15),
        ("columns: 8 where 7", |p| p.weights[0].cols = 7),
        ("columns left over", |p| (p.weights[1].cols, p.weights[1].parts[0].rows) = (7, 7)),
        ("rows of a vector", |p| p.weights[1].rows = 8),
        ("biases", |p| (p.weights[3].cols, p.weights[3].parts[0].rows) = (15, 15)),
        ("columns of out", |p| (p.weights[2].rows, p.weights[2].parts[0].rows) = (15, 15)),
        ("positions of the table", |p| p.bounds.max_kv_len = 9),
        ("elements of the table", |p| p.constants[ConstantId(0).0].rows = 9),
        ("no layer 0", |p| p.kv.layers.clear()),
        ("columns: 4 where 8", |p| p.kv.layers[0].num_kv_heads = 2),
        ("never appended", |p| _ = p.ops.remove(4)),
        ("rows: Logits where Tokens", |p| p.tensors[0].rows = Rows::Logits),
        ("query heads left over", |p| {
            // One query head over two KV heads, in as many columns as before.
            p.kv.layers[0].num_kv_heads = 2;
            (p.kv.layers[0].head_dim, p.tensors[1].width) = (2, 16);
            p.ops.remove(3);
            let Op::Attention(op) = &mut p.ops[4] else { panic!("{:?}", p.ops[4]) };
            (op.num_heads, op.num_kv_heads, op.head_dim) = (1, 2, 2);
            (op.q.width, op.out.width) = (2, 2);
        }),
        ("a window of no position", |p| attention(p).window = Some(0)),
        ("a softmax scale of 0", |p| attention(p).softmax_scale = 0.0),
        ("a softmax scale of NaN", |p| attention(p).softmax_scale = f32::NAN),
        ("sinks: 8 where 2", |p| attention(p).sinks = Some(WeightId(1))),
        ("rows of a vector", |p| attention(p).sinks = Some(WeightId(0))),
        ("a scale of inf", |p| {
            let Op::Embedding { scale, .. } = &mut p.ops[0] else { unreachable!() };
            *scale = f32::INFINITY;
        }),
        ("columns: 8 where 16", |p| {
            let out = View { tensor: TensorId(1), start: 0, width: 16 };
            p.ops.insert(1, Op::Cast { x: view(0, 0), out });
        }),
        ("out", |p| p.ops.insert(1, Op::Cast { x: view(0, 0), out: view(1, 0) })),
        ("is scaled or added to, which f32 vectors alone can be", |p| {
            p.weights[0].parts[0].transform = PartTransform::Scale(2.0);
        }),
        ("is scaled or added to, which f32 vectors alone can be", |p| {
            p.weights[0].parts[0].transform = PartTransform::Add(1.0);
        }),
        ("is scaled or added to, which f32 vectors alone can be", |p| {
            p.weights[0].parts[0].transform = PartTransform::Constant(1.0);
        }),
        ("rows of a vector", |p| {
            p.ops.insert(1, Op::Scale { x: view(0, 0), factors: WeightId(0), indices: None });
        }),
        ("the indices is", |p| {
            let indices = Some(view(0, 0));
            p.ops.insert(1, Op::Scale { x: view(0, 0), factors: WeightId(1), indices });
        }),
        ("a cap of 0", |p| attention(p).softcap = Some(0.0)),
        ("a cap of inf", |p| attention(p).softcap = Some(f32::INFINITY)),
        ("a cap of -1", |p| p.ops.insert(1, Op::Softcap { x: view(0, 0), cap: -1.0 })),
    ];
    reject(plan, faults);
}

/// The attention of [`plan`].
fn attention(plan: &mut Plan) -> &mut Attention {
    match &mut plan.ops[5] {
        Op::Attention(op) => op,
        other => panic!("{other:?}"),
    }
}

/// Each fault is an error that says what is expected of it.
fn reject(plan: impl Fn() -> Plan, faults: &[Fault]) {
    for (expected, fault) in faults {
        let mut plan = plan();
        fault(&mut plan);
        let error = plan.check().expect_err(expected).to_string();
        assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    }
}

/// Every operation as the decoder uses it: activations 0 (`hidden`), 5 (`last`) and 7 (`logits`) in
/// f32, 8 (`next`) in u32, the others in the operand's type. Operations: 0 embedding, 1 norm, 2
/// linear, 3 rope, 4 append, 5 attention, 6 linear onto the residual, 7 gate, 8 gather, 9 norm, 10
/// linear, 11 sample. Weights: 0 table, 1 norm, 2 qkv, 3 its bias, 4 projection.
fn mixed(precision: Precision) -> Plan {
    let mut b = PlanBuilder::new();
    let (operand, dtype) = (precision.operand(), precision.cache());
    let kv = KvLayout {
        layers: vec![KvHeads { num_kv_heads: 1, head_dim: 8 }],
        num_pages: 1,
        windows: None,
        dtype,
        storage: KvStorage::default(),
    };
    let data = vec![0.0; 64].into();
    let table = b.constant(Constant { name: "rope".into(), rows: 8, cols: 8, data });
    let mut tokens = |name, width, dtype| b.activation(name, Rows::Tokens, width, dtype);
    let hidden = tokens("hidden", 16, F32);
    let x = tokens("x", 16, operand);
    let qkv = tokens("qkv", 32, operand);
    let attended = tokens("attended", 16, operand);
    let gated = tokens("gated", 16, operand);
    let last = b.activation("last", Rows::Logits, 16, F32);
    let normed = b.activation("normed", Rows::Logits, 16, operand);
    let logits = b.activation("logits", Rows::Logits, 10, F32);
    let next_tokens = b.activation("next", Rows::Logits, 1, U32);
    let (embedding, norm) = (weight(&mut b, 10, 16, operand), weight(&mut b, 1, 16, F32));
    let (qkv_weight, bias) = (weight(&mut b, 32, 16, operand), weight(&mut b, 1, 32, F32));
    let projection = weight(&mut b, 16, 16, operand);
    let (q, k, v) = (qkv.columns(0, 16), qkv.columns(16, 8), qkv.columns(24, 8));
    b.op(Op::Embedding { table: embedding, out: hidden, scale: 1.0 });
    b.op(Op::RmsNorm { x: hidden, weight: norm, out: x, eps: 1e-5 });
    b.op(Op::Linear(Linear { bias: Some(bias), ..Linear::new(x, qkv_weight, qkv) }));
    b.op(Op::Rope { x: qkv.columns(0, 24), table, head_dim: 8 });
    b.op(Op::KvAppend { layer: 0, k, v });
    b.op(Op::Attention(Attention {
        layer: 0,
        q,
        out: attended,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 8,
        softmax_scale: 0.5,
        causal: true,
        window: None,
        sinks: None,
        softcap: None,
    }));
    let residual = Some(hidden);
    b.op(Op::Linear(Linear { residual, ..Linear::new(attended, projection, hidden) }));
    b.op(silu_mul(q, qkv.columns(16, 16), gated));
    b.op(Op::GatherRows { x: hidden, out: last });
    b.op(Op::RmsNorm { x: last, weight: norm, out: normed, eps: 1e-5 });
    b.op(Op::Linear(Linear::new(normed, embedding, logits)));
    b.op(Op::Sample { x: logits, out: next_tokens });
    b.finish(&precision.into(), BOUNDS, kv, logits, next_tokens).unwrap()
}

#[test]
fn rejects_element_types_that_do_not_fit() {
    let faults: &[Fault] = &[
        ("the plan: the KV cache is Q8_0, expected F32 or F16 or BF16", |p| {
            p.kv.dtype = Dtype::Q8_0;
        }),
        ("the K cache in q8_0 stores blocks of 32 elements: heads of 8 are no whole number", |p| {
            p.kv.storage = CacheType::Q8_0.into();
        }),
        ("the V cache in q4_0 stores blocks of 32 elements: heads of 8 are no whole number", |p| {
            p.kv.storage.v = Some(CacheType::Q4_0);
        }),
        ("the plan: the output is F16, expected F32", |p| {
            (p.tensors[7].dtype, p.tensors[7].width) = (F16, 16);
        }),
        ("the plan: next_tokens is F32, expected U32", |p| p.tensors[8].dtype = F32),
        ("operation 0, embedding: the table is U32", |p| p.weights[0].parts[0].storage = U32),
        ("operation 0, embedding: out is F16, expected F32", |p| p.tensors[0].dtype = F16),
        ("operation 1, rms_norm: the weight is F16, expected F32", |p| {
            p.weights[1].parts[0].storage = F16;
        }),
        ("operation 1, rms_norm: out is U32", |p| p.tensors[1].dtype = U32),
        ("operation 2, linear: x is BF16, expected F16", |p| p.tensors[1].dtype = BF16),
        ("operation 2, linear: the weight is F32, expected F16", |p| {
            p.weights[2].parts[0].storage = F32
        }),
        ("operation 2, linear: the bias is BF16, expected F32", |p| {
            p.weights[3].parts[0].storage = BF16
        }),
        ("operation 2, linear: out is BF16, expected F16 or F32", |p| p.tensors[2].dtype = BF16),
        ("operation 4, kv_append: k is F16, expected BF16 or F32", |p| p.kv.dtype = BF16),
        ("operation 5, attention: out is F32, expected F16", |p| p.tensors[3].dtype = F32),
        ("operation 6, linear: the residual is F16, expected F32", |p| {
            let Op::Linear(linear) = &mut p.ops[6] else { unreachable!() };
            linear.residual = Some(View { width: 16, ..view(1, 0) });
        }),
        ("operation 7, silu_mul: out is F32, expected F16", |p| p.tensors[4].dtype = F32),
        ("operation 8, gather_rows: out is BF16, expected F32", |p| p.tensors[5].dtype = BF16),
        ("operation 12, silu_mul: the gate is U32, expected F32 or F16 or BF16", |p| {
            let (gate, out) = (p.next_tokens.unwrap(), View { width: 1, ..view(5, 0) });
            p.ops.push(silu_mul(gate, gate, out));
        }),
    ];
    reject(|| mixed(Precision::F16), faults);
}

#[test]
fn accumulators_in_f16_are_of_operands_in_f16() {
    let in_f16 = |precision| {
        let mut plan = mixed(precision);
        plan.numerics.accumulate = Accumulate::F16;
        plan.check()
    };
    assert_eq!(in_f16(Precision::F16), Ok(()));
    for precision in [Precision::F32, Precision::BF16] {
        let operand = precision.operand();
        assert_eq!(in_f16(precision), Err(PlanError::Accumulate { operand }));
    }
}

#[test]
fn operands_are_of_the_precision_of_the_numerics() {
    let mut plan = mixed(Precision::F16);
    plan.numerics.precision = Precision::BF16;
    let error = plan.check().unwrap_err().to_string();
    assert_eq!(error, "operation 2, linear: x is F16, expected BF16");
}

/// Weights 0, the table, and 2, a linear layer's.
#[test]
fn a_matrix_may_be_stored_smaller_than_its_operands_where_the_numerics_say_so() {
    let plan = |precision, weights, storage| {
        let mut plan = mixed(precision);
        plan.numerics.weights = weights;
        for index in [0, 2] {
            plan.weights[index].parts[0].storage = storage;
        }
        plan.check()
    };
    let as_stored = WeightStorage::AsStored;
    for storage in [F16, BF16] {
        assert_eq!(plan(Precision::F32, as_stored, storage), Ok(()));
        let error = plan(Precision::F32, WeightStorage::Dense, storage).unwrap_err().to_string();
        let expected = format!("operation 2, linear: the weight is {storage}, expected F32");
        assert_eq!(error, expected);
    }
    assert!(plan(Precision::BF16, as_stored, F16).is_err(), "16 bits are no fewer");
    // Rows of 16 elements are no block.
    let error = plan(Precision::F32, as_stored, Dtype::Q8_0).unwrap_err().to_string();
    assert_eq!(error, "`w`: rows of 16 elements of Q8_0, expected a multiple of 32");
}

#[test]
fn blocks_are_of_matrices_of_numerics_that_keep_them() {
    let plan = |weights| {
        let decoder = Decoder { hidden_size: 64, ..Decoder::SMALL };
        let mut plan = decoder.plan(4, 1);
        plan.numerics.weights = weights;
        plan
    };
    let matrix = |plan: &Plan| {
        let is_matrix = |weight: &Weight| weight.rows > 1 && weight.cols == 64;
        plan.weights.iter().rposition(is_matrix).unwrap()
    };
    for (weights, fits) in [(WeightStorage::AsStored, true), (WeightStorage::Dense, false)] {
        let mut plan = plan(weights);
        let index = matrix(&plan);
        plan.weights[index].parts[0].storage = Dtype::Q4_0;
        let error = plan.check().map_err(|error| error.to_string());
        assert_eq!(error.is_ok(), fits, "{error:?}");
    }
    let mut vector = plan(WeightStorage::AsStored);
    vector.weights[1].parts[0].storage = Dtype::Q4_0;
    let error = vector.check().unwrap_err().to_string();
    assert!(error.contains("is Q4_0, expected F32"), "{error}");
}

/// As Q4_K_M stores Q, K and V.
#[test]
fn the_bytes_of_a_stack_are_those_of_its_parts() {
    let mut stack = Weight::whole("qkv", 10, 512, Dtype::F32);
    assert_eq!((stack.bytes(), stack.storage()), (10 * 512 * 4, Some(F32)));
    let part = |rows, storage| WeightPart::new("part", rows, storage);
    stack.parts = vec![part(6, Dtype::Q4_K), part(2, Dtype::Q4_K), part(2, Dtype::Q6_K)];
    assert_eq!((stack.bytes(), stack.storage()), (8 * 2 * 144 + 2 * 2 * 210, None));
    let mut bias = Weight::whole("bias", 1, 10, F32);
    bias.parts = vec![part(6, F32), part(4, F32)];
    assert_eq!(bias.bytes(), 40);
}

#[test]
fn every_precision_fits() {
    for precision in Precision::ALL {
        assert_eq!(mixed(precision).check(), Ok(()), "{precision}");
    }
    // A cache in 16 bits takes keys and values that are not rounded yet.
    let mut narrowed = mixed(Precision::F32);
    narrowed.kv.dtype = F16;
    narrowed.ops.truncate(5);
    narrowed.ops.extend(mixed(Precision::F32).ops.drain(8..));
    assert_eq!(narrowed.check(), Ok(()));
}

#[test]
fn rejects_rows_of_16_bit_elements_that_are_not_aligned() {
    let faults: &[Fault] = &[
        ("`the KV cache`: heads of 4 elements of F16, expected a multiple of 8", |p| {
            p.kv.layers[0] = KvHeads { num_kv_heads: 2, head_dim: 4 };
            p.ops.remove(5);
            p.ops.remove(5);
        }),
        ("`gated`: rows of 20 elements", |p| p.tensors[4].width = 20),
        ("`w`: rows of 12 elements", |p| {
            p.weights[4].cols = 12;
            p.ops.remove(6);
        }),
        ("`qkv`: columns before a view of 4 elements", |p| {
            p.ops[7] = silu_mul(view(2, 4), view(2, 8), view(4, 0));
        }),
    ];
    reject(|| mixed(Precision::F16), faults);
}

/// As [`Decoder::SMALL`] has them, fused: operations 1 norm and qkv, 2 RoPE, append and attention,
/// 4 norm, gate and up, and gate.
#[test]
fn rejects_fused_operations_that_do_not_fit() {
    fn linear(plan: &mut Plan, index: usize) -> &mut Linear {
        let Op::Linear(linear) = &mut plan.ops[index] else { unreachable!() };
        linear
    }
    fn attention(plan: &mut Plan) -> &mut AppendAttention {
        let Op::AppendAttention(op) = &mut plan.ops[2] else { unreachable!() };
        op
    }
    let faults: &[Fault] = &[
        ("columns of the norm: 16 where 32", |p| {
            (p.weights[1].cols, p.weights[1].parts[0].rows) = (16, 16);
        }),
        ("columns of out: 16 where 32", |p| linear(p, 4).out.width = 8),
        ("a residual after a gate", |p| {
            linear(p, 4).residual = Some(View { width: 16, ..view(0, 0) });
        }),
        ("`hidden` is read while it is written", |p| {
            let hidden = linear(p, 1).x;
            (linear(p, 1).residual, linear(p, 1).out) = (Some(hidden), hidden);
        }),
        ("what is attended", |p| attention(p).append.q.start = 16),
        ("what is attended", |p| attention(p).attention.q.start = 8),
        ("`qkv` is read while it is written", |p| attention(p).attention.out.tensor = TensorId(2)),
        ("columns of a head: 8 where 4", |p| {
            p.kv.layers[0] = KvHeads { num_kv_heads: 4, head_dim: 4 }
        }),
        ("operation 4, norm_linear_gate: x is F16, expected F32", |p| {
            linear(p, 4).x.tensor = TensorId(3);
        }),
        ("operation 4, norm_linear_gate: the norm is F16", |p| p.weights[5].parts[0].storage = F16),
        ("operation 4, norm_linear_gate: out is F32, expected F16", |p| {
            p.tensors[6].dtype = F32;
        }),
        ("operation 2, append_attention: k is F16, expected BF16", |p| p.kv.dtype = BF16),
    ];
    reject(|| Decoder::SMALL.plan(4, 1).fused(|_| true), faults);
}

/// Routing of 8 experts of 4 columns each over `x` of 8, then their linear layer. Weights: 0 its
/// matrix, 1 its bias, 2 the bias of the scores. The operations after the embedding are 1 and 2.
fn routed() -> Plan {
    let mut b = PlanBuilder::new();
    let kv = KvLayout { layers: Vec::new(), ..plan().kv };
    let x = b.activation("x", Rows::Tokens, 8, F32);
    let experts = b.activation("experts", Rows::Tokens, 2, U32);
    let weights = b.activation("weights", Rows::Tokens, 2, F32);
    let out = b.activation("out", Rows::Tokens, 4, F32);
    let matrix = weight(&mut b, 32, 8, F32);
    let [bias, of_scores] = [32, 8].map(|len| weight(&mut b, 1, len, F32));
    let table = weight(&mut b, 10, 8, F32);
    b.op(Op::Embedding { table, out: x, scale: 1.0 });
    let groups = Some(Groups { count: 4, top_k: 2 });
    b.op(Op::Route(Route {
        router: None,
        logits: x,
        scores: Scores::Sigmoid { bias: of_scores, groups },
        normalise: true,
        scale: 2.5,
        shared: None,
        experts,
        weights,
    }));
    b.op(Op::ExpertLinear(ExpertLinear {
        x,
        experts,
        weight: matrix,
        bias: Some(bias),
        gate: None,
        num_experts: 8,
        weights: Some(weights),
        residual: None,
        out,
    }));
    b.finish(&Numerics::default(), BOUNDS, kv, out, None).unwrap()
}

#[test]
fn rejects_experts_that_do_not_fit() {
    fn route(plan: &mut Plan) -> &mut Route {
        let Op::Route(route) = &mut plan.ops[1] else { unreachable!() };
        route
    }
    fn groups(plan: &mut Plan, count: usize, top_k: usize) {
        let bias = WeightId(2);
        route(plan).scores = Scores::Sigmoid { bias, groups: Some(Groups { count, top_k }) };
    }
    let faults: &[Fault] = &[
        ("9 of 8 experts", |p| {
            (p.tensors[1].width, p.tensors[2].width) = (9, 9);
            (route(p).experts.width, route(p).weights.width) = (9, 9);
        }),
        ("biases: 9 where 8", |p| (p.weights[2].cols, p.weights[2].parts[0].rows) = (9, 9)),
        ("the bias is F16, expected F32", |p| p.weights[2].parts[0].storage = F16),
        ("9 of 8 experts", |p| {
            (p.tensors[1].width, p.tensors[2].width) = (10, 10);
            (route(p).experts.width, route(p).weights.width) = (10, 10);
            route(p).shared = Some(crate::SharedExpert::Whole);
        }),
        ("biases: 8 where 7", |p| route(p).shared = Some(crate::SharedExpert::Gated)),
        ("1 experts of 8 logits", |p| {
            (p.tensors[1].width, p.tensors[2].width) = (1, 1);
            (route(p).experts.width, route(p).weights.width) = (1, 1);
            route(p).shared = Some(crate::SharedExpert::Whole);
        }),
        ("weights scaled by 0", |p| route(p).scale = 0.0),
        ("weights scaled by inf", |p| route(p).scale = f32::INFINITY),
        ("0 groups of 8 experts", |p| groups(p, 0, 0)),
        ("3 groups of 8 experts", |p| groups(p, 3, 2)),
        ("8 groups of 8 experts", |p| groups(p, 8, 2)),
        ("2 experts of 5 groups of 4", |p| groups(p, 4, 5)),
        ("2 experts of 0 groups of 4", |p| groups(p, 4, 0)),
        ("biases: 31 where 32", |p| (p.weights[1].cols, p.weights[1].parts[0].rows) = (31, 31)),
        ("the bias is F16, expected F32", |p| p.weights[1].parts[0].storage = F16),
    ];
    reject(routed, faults);
}

/// Learned positions, a norm that is kept, a gated GELU, a mean. Weights: 0 and 1 those of the
/// norm.
fn encoder() -> Plan {
    let mut b = PlanBuilder::new();
    let kv = KvLayout { layers: Vec::new(), ..plan().kv };
    let hidden = b.activation("hidden", Rows::Tokens, 8, F32);
    let normed = b.activation("normed", Rows::Tokens, 8, F32);
    let gated = b.activation("gated", Rows::Tokens, 8, F32);
    let pooled = b.activation("pooled", Rows::Logits, 8, F32);
    let [norm, bias] = [(); 2].map(|_| weight(&mut b, 1, 8, F32));
    let table = weight(&mut b, 10, 8, F32);
    let data = vec![0.0; 16].into();
    let positions = b.constant(Constant { name: "positions".into(), rows: 2, cols: 8, data });
    b.op(Op::Embedding { table, out: hidden, scale: 1.0 });
    b.op(Op::AddTable { x: hidden, table: positions });
    let (x, out, keeps) = (hidden, normed, true);
    let norm = LayerNorm { x, weight: norm, bias: Some(bias), eps: 1e-5, out, keeps };
    b.op(Op::LayerNorm(norm));
    b.op(Op::Gelu { x: normed, up: Some(hidden), out: gated });
    b.op(Op::MeanRows { x: gated, out: pooled });
    b.finish(&Numerics::default(), BOUNDS, kv, pooled, None).unwrap()
}

#[test]
fn rejects_what_does_not_fit_in_an_encoder() {
    fn norm(plan: &mut Plan) -> &mut LayerNorm {
        let Op::LayerNorm(norm) = &mut plan.ops[2] else { unreachable!() };
        norm
    }
    let faults: &[Fault] = &[
        ("columns of the table: 7 where 8", |p| {
            (p.constants[0].cols, p.constants[0].data) = (7, vec![0.0; 14].into());
        }),
        ("a torn table", |p| p.constants[0].rows = 3),
        ("columns: 7 where 8", |p| (p.weights[1].cols, p.weights[1].parts[0].rows) = (7, 7)),
        ("an output that is kept twice", |p| norm(p).out = norm(p).x),
        ("the bias is F16, expected F32", |p| p.weights[1].parts[0].storage = F16),
        ("`normed` is read while it is written", |p| {
            let Op::Gelu { x, out, .. } = &mut p.ops[3] else { unreachable!() };
            (x.width, *out) = (4, View { start: 4, width: 4, ..*x });
        }),
        ("rows: Tokens where Logits", |p| p.tensors[3].rows = Rows::Tokens),
        ("the output is F16, expected F32", |p| p.tensors[3].dtype = F16),
        ("out is F16, expected F32", |p| p.tensors[2].dtype = F16),
    ];
    reject(encoder, faults);
}
