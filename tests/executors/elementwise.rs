//! RoPE, gates, and the addition of a residual.

use halfwarp::plan::{Activation, Constant, Op, Precision};

use crate::harness::{
    HALVES, Matrix, Setup, Step, bounds, check, one_sequence, smallest_kv, suffix,
};
use crate::{Backend, Outcome, Test, oracle};

/// Tokens, heads, columns of a head, and those of them that are rotated.
const ROPE_SHAPES: &[(usize, usize, usize, usize)] = &[
    (1, 1, 2, 2),
    (3, 12, 64, 64),
    (17, 16, 64, 64),
    (5, 3, 80, 32),
    (2, 40, 128, 128),
    (9, 2, 96, 96),
    (4, 3, 6, 2),
    (65, 1, 256, 64),
];

/// Shapes of 16-bit elements, whose heads are aligned.
const HALF_ROPE_SHAPES: &[(usize, usize, usize, usize)] = &[
    (1, 1, 8, 2),
    (3, 12, 64, 64),
    (17, 16, 64, 64),
    (5, 3, 80, 32),
    (2, 40, 128, 128),
    (9, 2, 96, 96),
    (65, 1, 256, 64),
];

/// Tokens, and columns.
const GATE_SHAPES: &[(usize, usize)] =
    &[(1, 1), (1, 1536), (3, 255), (4, 256), (5, 257), (65, 33), (2, 4864), (7, 8192)];

/// Shapes of 16-bit elements, whose rows are aligned.
const HALF_GATE_SHAPES: &[(usize, usize)] =
    &[(1, 8), (1, 1536), (3, 264), (65, 40), (2, 4864), (7, 8192)];

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add_rope = |precision: Precision, shape: (usize, usize, usize, usize)| {
        let (rows, num_heads, head_dim, rotary_dim) = shape;
        let name =
            format!("{rows}x{num_heads}x{head_dim}_rotary_{rotary_dim}{}", suffix(precision));
        tests.push(Test::new(format!("rope::matches_oracle_{name}"), move |backend| {
            rope_matches_oracle(backend, precision, shape)
        }));
    };
    ROPE_SHAPES.iter().for_each(|&shape| add_rope(Precision::F32, shape));
    for precision in HALVES {
        HALF_ROPE_SHAPES.iter().for_each(|&shape| add_rope(precision, shape));
    }
    let mut add_gates = |precision: Precision, (rows, width): (usize, usize)| {
        for activation in Activation::ALL {
            let op = activation.gate_name();
            let name = format!("{op}::matches_oracle_{rows}x{width}{}", suffix(precision));
            tests.push(Test::new(name, move |backend| {
                gate_matches_oracle(backend, activation, precision, (rows, width))
            }));
        }
    };
    GATE_SHAPES.iter().for_each(|&shape| add_gates(Precision::F32, shape));
    for precision in HALVES {
        HALF_GATE_SHAPES.iter().for_each(|&shape| add_gates(precision, shape));
    }
    for &(rows, width) in GATE_SHAPES {
        for in_place in [false, true] {
            let place = if in_place { "_in_place" } else { "" };
            let name = format!("add::is_the_sum_{rows}x{width}{place}");
            tests.push(Test::new(name, move |backend| is_the_sum(backend, rows, width, in_place)));
        }
    }
    for (rows, width) in [(1, 5), (9, 1030)] {
        let name = format!("scale::is_scaled_{rows}x{width}");
        tests.push(Test::new(name, move |backend| is_scaled(backend, rows, width)));
        let name = format!("softcap::matches_oracle_{rows}x{width}");
        tests.push(Test::new(name, move |backend| softcap_matches_oracle(backend, rows, width)));
    }
    tests
}

/// Logits from far below the cap to far above it.
fn softcap_matches_oracle(backend: Backend, rows: usize, width: usize) -> Outcome {
    const CAP: f32 = 30.0;
    let mut input = Matrix::random(1, rows, width);
    input.data.iter_mut().enumerate().for_each(|(i, x)| *x *= 10f32.powi(i as i32 % 7 - 3));
    let mut setup = Setup::new(Precision::F32);
    let x = setup.f32_input("x", &input);
    setup.plan.op(Op::Softcap { x, cap: CAP });
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), x);
    let cap = f64::from(CAP);
    let capped = input.data.iter().map(|&x| cap * (f64::from(x) / cap).tanh());
    let expected = capped.map(|x| oracle::Approx::new(x, 64.0, x.abs())).collect();
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(backend, &[plan], &weights, &[step])
}

/// By one factor, or by that of each element's index, to the bit.
fn is_scaled(backend: Backend, rows: usize, width: usize) -> Outcome {
    let factors = [0.75, -3.0, 1e-3];
    let input = Matrix::random(1, rows, width);
    let mut setup = Setup::new(Precision::F32);
    let x = setup.f32_input("x", &input);
    let factors_of = setup.vector("factors", &Matrix { rows: 1, cols: 3, data: factors.to_vec() });
    setup.plan.op(Op::Scale { x, factors: factors_of, indices: None });
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), x);
    let expected = input.data.iter().map(|x| oracle::Approx::exactly(x * factors[0])).collect();
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(backend, &[plan], &weights, &[step])
}

/// In f32, as the residual stream is, and to the bit.
fn is_the_sum(backend: Backend, rows: usize, width: usize, in_place: bool) -> Outcome {
    let inputs = [1, 2].map(|seed| Matrix::random(seed, rows, width));
    let mut setup = Setup::new(Precision::F32);
    let x = setup.f32_input("x", &inputs[0]);
    let residual = setup.f32_input("residual", &inputs[1]);
    let out = if in_place { residual } else { setup.activation("out", width) };
    setup.plan.op(Op::Add { x, residual, out });
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let pairs = inputs[0].data.iter().zip(&inputs[1].data);
    let expected = pairs.map(|(x, residual)| oracle::Approx::exactly(x + residual)).collect();
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(backend, &[plan], &weights, &[step])
}

fn rope_matches_oracle(
    backend: Backend,
    precision: Precision,
    (rows, num_heads, head_dim, rotary_dim): (usize, usize, usize, usize),
) -> Outcome {
    let past_len = 11;
    let width = num_heads * head_dim;
    // The columns of V after Q and K stay as they are.
    let input = Matrix::random(1, rows, width + head_dim).rounded(precision);
    let mut bounds = bounds(rows, rows % 2 * 3);
    bounds.max_kv_len = past_len + bounds.max_tokens;
    let table = Matrix::random(2, bounds.max_kv_len, rotary_dim);
    let mut setup = Setup::new(precision);
    let out = setup.input("input", &input);
    let constant = setup.plan.constant(Constant {
        name: "rope".to_owned(),
        rows: table.rows,
        cols: table.cols,
        data: table.data.clone().into(),
    });
    setup.plan.op(Op::Rope { x: out.columns(0, width), table: constant, head_dim });
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let inputs = one_sequence(rows, past_len);
    let rotated = oracle::rope(&input.columns(0..width), &inputs.positions, &table, head_dim);
    let mut expected = Vec::new();
    for (row, rotated) in rotated.chunks(width).enumerate() {
        expected.extend(rotated.iter().map(|value| value.stored(precision)));
        expected.extend(input.row(row)[width..].iter().map(|&x| oracle::Approx::exactly(x)));
    }
    check(backend, &[plan], &weights, &[Step { plan: 0, inputs, expected }])
}

fn gate_matches_oracle(
    backend: Backend,
    activation: Activation,
    precision: Precision,
    (rows, width): (usize, usize),
) -> Outcome {
    let mut input = Matrix::random(1, rows, 2 * width);
    // Gates up to 10, and some at which the exponential overflows; a few products that are beyond
    // f16.
    input.data.iter_mut().for_each(|x| *x *= 10.0);
    input.data.iter_mut().step_by(97).for_each(|x| *x *= 20.0);
    for row in input.data.chunks_mut(2 * width).step_by(2) {
        (row[0], row[width]) = (300.0, -400.0);
    }
    let input = input.rounded(precision);
    let mut setup = Setup::new(precision);
    let x = setup.input("input", &input);
    let (gate, up) = (x.columns(0, width), x.columns(width, width));
    let out = setup.activation("out", width);
    setup.plan.op(Op::Gate { activation, gate, up, out });
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let (gate, up) = (input.columns(0..width), input.columns(width..2 * width));
    let expected = oracle::gate(activation, &gate, &up, precision);
    let expected = expected.into_iter().map(|value| value.stored(precision)).collect();
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(backend, &[plan], &weights, &[step])
}
