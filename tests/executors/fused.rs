//! What executors may fuse: linear layers with a norm before and a gate after, and QK-norm and RoPE
//! at the append.

use halfwarp::exec::{ExecError, Want};
use halfwarp::plan::{
    Activation, Attention, Constant, Dtype, KvHeads, KvLayout, Linear, Op, Plan, Precision, QkNorm,
    RopeAppend, Rows,
};
use libtest_mimic::Completion;
use std::iter;

use crate::harness::{
    HALVES, Matrix, Setup, Step, Weights, bounds, check, one_sequence, smallest_kv, suffix,
};
use crate::{Backend, Outcome, Test, oracle};

/// Rows of x: as many as GPUs have fused kernels for, and one more.
const ROWS: &[usize] = &[1, 2, 3, 7, 8, 9];

/// Columns of x, and of out.
const WIDTHS: &[(usize, usize)] = &[(8, 8), (64, 128), (72, 136), (896, 40)];

/// Wider ones, of 16-bit elements: a GPU's threads copy the first weights of either; of few columns
/// and of many.
const LONG_WIDTHS: &[(usize, usize)] = &[(5176, 40), (3080, 2120)];

/// More rows of 16-bit elements, whose gates GPUs compute in tiles, and with swapped operands.
const MANY: &[(usize, (usize, usize))] = &[(70, (72, 136)), (17, (64, 3760))];

/// Added to the mean of squares, and as large, so that a norm without it fails.
const EPS: f32 = 0.25;

/// A linear layer with a norm in front.
#[derive(Clone, Copy)]
struct Layer {
    precision: Precision,
    rows: usize,
    k: usize,
    n: usize,
    gate: Option<Activation>,
    has_bias: bool,
}

/// Tokens; heads of Q and of K, columns of a head, and those of them that are rotated.
type RopeShape = (usize, (usize, usize, usize, usize));

const ROPE_SHAPES: &[RopeShape] = &[
    (1, (14, 2, 64, 64)),
    (1, (5, 1, 80, 32)),
    (5, (3, 1, 80, 32)),
    (17, (4, 4, 96, 72)),
    (1, (2, 1, 7, 4)),
    (3, (2, 1, 6, 4)),
    (2, (32, 8, 128, 128)),
];

/// Shapes of 16-bit elements, whose heads are aligned.
const HALF_ROPE_SHAPES: &[RopeShape] = &[
    (1, (14, 2, 64, 64)),
    (5, (3, 1, 80, 32)),
    (1, (5, 1, 80, 32)),
    (17, (4, 4, 96, 72)),
    (2, (32, 8, 128, 128)),
];

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add_linear = |layer: Layer| {
        let Layer { precision, rows, k, n, gate, has_bias } = layer;
        let form = gate.map_or(String::new(), |gate| format!("_{}", gate.gate_name()));
        let bias = if has_bias { "_bias" } else { "" };
        let name = format!("norm_linear{form}::matches_oracle_{rows}x{n}x{k}{bias}");
        tests.push(Test::new(name + &suffix(precision), move |backend| {
            linear_matches_oracle(backend, &layer)
        }));
    };
    for precision in Precision::ALL {
        let mut add = |rows, (k, n)| {
            let gates = Activation::FUSED.map(Some).into_iter();
            let gates = gates.flat_map(|gate| [(gate, false), (gate, true)]);
            for (gate, has_bias) in iter::once((None, true)).chain(gates) {
                add_linear(Layer { precision, rows, k, n, gate, has_bias });
            }
        };
        for &rows in ROWS {
            WIDTHS.iter().for_each(|&widths| add(rows, widths));
        }
        if HALVES.contains(&precision) {
            for rows in [1, 2, 8] {
                LONG_WIDTHS.iter().for_each(|&widths| add(rows, widths));
            }
            MANY.iter().for_each(|&(rows, widths)| add(rows, widths));
        }
    }
    let mut add_rope = |precision: Precision, (rows, heads): RopeShape, f32_rows, has_norm| {
        let (num_heads, num_kv_heads, head_dim, rotary_dim) = heads;
        let from = if f32_rows { "_from_f32" } else { "" };
        let norm = if has_norm { "norm_" } else { "" };
        let name = format!(
            "rope_append::is_{norm}rope_and_append_{rows}x{num_heads}x{num_kv_heads}x{head_dim}_rotary_{rotary_dim}{from}{}",
            suffix(precision)
        );
        tests.push(Test::new(name, move |backend| {
            is_rope_and_append(backend, &Rotated { precision, rows, heads, f32_rows, has_norm })
        }));
    };
    for has_norm in [false, true] {
        ROPE_SHAPES.iter().for_each(|&shape| add_rope(Precision::F32, shape, false, has_norm));
        for precision in HALVES {
            let shapes = HALF_ROPE_SHAPES.iter();
            shapes.for_each(|&shape| add_rope(precision, shape, false, has_norm));
            add_rope(precision, HALF_ROPE_SHAPES[1], true, has_norm);
        }
    }
    tests
}

impl Layer {
    /// The operations one after the other, of these rows, with others in between or not; and the
    /// rows that come out.
    fn plan(&self, x_rows: &Matrix, apart: bool, batch_invariant: bool) -> (Plan, Weights) {
        let &Layer { precision, rows, k, n, gate, has_bias } = self;
        let mut setup = Setup::new(precision);
        setup.numerics.batch_invariant = batch_invariant;
        let x = setup.f32_input("x", x_rows);
        let [norm, bias] = self.vectors();
        let norm = setup.vector("norm", &norm);
        let weight = setup.matrix("weight", &self.weight());
        let bias = has_bias.then(|| setup.vector("bias", &bias));
        let operand = setup.activation("operand", k);
        let linear_out = setup.activation("linear", self.weight().rows);
        setup.plan.op(Op::RmsNorm { x, weight: norm, out: operand, eps: EPS });
        let apart_from = |setup: &mut Setup, name: &str| {
            if apart {
                setup.f32_input(name, x_rows);
            }
        };
        apart_from(&mut setup, "between norm and layer");
        setup.plan.op(Op::Linear(Linear { bias, ..Linear::new(operand, weight, linear_out) }));
        apart_from(&mut setup, "between layer and gate");
        let out = if gate.is_some() { setup.activation("out", n) } else { linear_out };
        if let Some(activation) = gate {
            let (gate, up) = (linear_out.columns(0, n), linear_out.columns(n, n));
            setup.plan.op(Op::Gate { activation, gate, up, out });
        }
        // As of the residual stream, the rows before the norm are read again.
        let again = setup.plan.activation("x again", Rows::Logits, k, Dtype::F32);
        setup.plan.op(Op::GatherRows { x, out: again });
        let bounds = bounds(rows, 0);
        setup.finish(bounds, smallest_kv(&bounds), out)
    }

    fn weight(&self) -> Matrix {
        let rows = if self.gate.is_some() { 2 * self.n } else { self.n };
        Matrix::random(3, rows, self.k).rounded(self.precision)
    }

    /// The norm's weight, and the bias.
    fn vectors(&self) -> [Matrix; 2] {
        [Matrix::random(2, 1, self.k), Matrix::random(4, 1, self.weight().rows)]
    }
}

/// Within the roundings in between; and, where rounding is the same, the bits of the operations
/// that no executor can fuse.
fn linear_matches_oracle(backend: Backend, layer: &Layer) -> Outcome {
    let &Layer { precision, rows, k, n, gate, has_bias } = layer;
    let x_rows = Matrix::random(1, rows, k);
    let stored = |values: Vec<oracle::Approx>| -> Vec<oracle::Approx> {
        values.into_iter().map(|value| value.stored(precision)).collect()
    };
    let [norm, bias] = layer.vectors();
    let operand = stored(oracle::rms_norm(&x_rows, &norm.data, EPS));
    let bias = has_bias.then_some(&bias.data[..]);
    let mut expected = stored(oracle::linear_of(&operand, k, &layer.weight(), bias));
    if let Some(activation) = gate {
        expected = stored(oracle::gated(activation, &expected, n, precision));
    }
    let (plan, weights) = layer.plan(&x_rows, false, false);
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    if let ignored @ Completion::Ignored { .. } = check(backend, &[plan], &weights, &[step])? {
        return Ok(ignored);
    }
    // One row has a kernel of its own, which rounds less, unless it is to have the bits that it has
    // among others.
    let bits = |apart| logits(backend, &layer.plan(&x_rows, apart, rows == 1), rows).map_err(text);
    match bits(false)? == bits(true)? {
        true => Ok(Completion::Completed),
        false => Err("other bits than the operations apart".to_owned()),
    }
}

/// Rows of Q, K and V, their heads as [`RopeShape`] has them.
struct Rotated {
    precision: Precision,
    rows: usize,
    heads: (usize, usize, usize, usize),
    /// Whether they are of f32, and rounded by the append.
    f32_rows: bool,
    /// Whether heads are normalised before.
    has_norm: bool,
}

impl Rotated {
    /// A plan that rotates and appends, in one operation or in two, and what comes out: Q, or
    /// attention.
    fn plan(&self, fused: bool, attends: bool) -> (Plan, Weights) {
        let (num_heads, num_kv_heads, head_dim, rotary_dim) = self.heads;
        let (q_width, kv_width) = (num_heads * head_dim, num_kv_heads * head_dim);
        let input = Matrix::random(1, self.rows, q_width + 2 * kv_width).rounded(self.precision);
        let bounds = bounds(self.rows, 1);
        let table = Matrix::random(2, bounds.max_kv_len, rotary_dim);
        let mut setup = Setup::new(self.precision);
        let rows = setup.f32_input("rows", &input);
        let operand = setup.narrow("operand", rows);
        let qkv = if self.f32_rows { rows } else { operand };
        let (q, k) = (qkv.columns(0, q_width), qkv.columns(q_width, kv_width));
        let v = qkv.columns(q_width + kv_width, kv_width);
        let table = setup.plan.constant(Constant {
            name: "rope".to_owned(),
            rows: table.rows,
            cols: table.cols,
            data: table.data.into(),
        });
        let norm = self.has_norm.then(|| {
            let mut weight = |name, seed| setup.vector(name, &Matrix::random(seed, 1, head_dim));
            QkNorm { q: weight("q_norm", 3), k: weight("k_norm", 4), eps: EPS }
        });
        if fused {
            let op = RopeAppend { layer: 0, norm, q, k, v, table, head_dim };
            setup.plan.op(Op::RopeAppend(op));
        } else {
            if let Some(QkNorm { q: of_q, k: of_k, eps }) = norm {
                setup.plan.op(Op::RmsNorm { x: q, weight: of_q, out: q, eps });
                setup.plan.op(Op::RmsNorm { x: k, weight: of_k, out: k, eps });
            }
            // With an operation in between, so that no executor fuses them.
            let x = qkv.columns(0, q_width + kv_width);
            setup.plan.op(Op::Rope { x, table, head_dim });
            setup.f32_input("between", &input);
            setup.plan.op(Op::KvAppend { layer: 0, k, v });
        }
        let out = setup.activation("out", q_width);
        setup.plan.op(Op::Attention(Attention {
            layer: 0,
            // Rotated, unless K is still f32: then it is K and V that count.
            q: operand.columns(0, q_width),
            out,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: 1.0,
            causal: true,
            window: None,
            sinks: None,
            softcap: None,
        }));
        let dtype = self.precision.cache();
        let kv = KvLayout {
            layers: vec![KvHeads { num_kv_heads, head_dim }],
            dtype,
            ..smallest_kv(&bounds)
        };
        setup.finish(bounds, kv, if attends { out } else { q })
    }
}

/// The rotated Q, and what attention makes of the cache, are those of the two operations, bit by
/// bit.
fn is_rope_and_append(backend: Backend, case: &Rotated) -> Outcome {
    if backend.leaves_out_bf16 && case.precision == Precision::BF16 {
        return Ok(Completion::ignored_with("as in f16, which runs"));
    }
    for attends in [false, true] {
        let run = |fused| logits(backend, &case.plan(fused, attends), case.rows);
        let (fused, parts) = (run(true), run(false));
        let (fused, parts) = (fused.map_err(text)?, parts.map_err(text)?);
        if fused.is_empty() || fused != parts {
            let what = if attends { "attention" } else { "Q" };
            return Err(format!("{what} is not that of RoPE, then append"));
        }
    }
    Ok(Completion::Completed)
}

/// The bits of the logits of a step of one sequence, at positions from 0 on.
fn logits(
    backend: Backend,
    (plan, weights): &(Plan, Weights),
    rows: usize,
) -> Result<Vec<u32>, ExecError> {
    let mut executor = (backend.open)(plan, weights)?;
    let prepared = executor.prepare(plan)?;
    let output = executor.run(prepared, &one_sequence(rows, 0), Want::Logits)?;
    Ok(output.logits.into_iter().map(f32::to_bits).collect())
}

fn text(error: ExecError) -> String {
    error.to_string()
}
