//! RoPE and the gate of SwiGLU.

use halfwarp::plan::{Constant, Op};

use crate::harness::{Matrix, Setup, Step, bounds, check, one_sequence, smallest_kv};
use crate::{Outcome, Subject, Test, oracle};

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

/// Tokens, and columns.
const SILU_SHAPES: &[(usize, usize)] =
    &[(1, 1), (1, 1536), (3, 255), (4, 256), (5, 257), (65, 33), (2, 4864), (7, 8192)];

pub fn tests() -> Vec<Test> {
    let rope = ROPE_SHAPES.iter().map(|&(rows, num_heads, head_dim, rotary_dim)| {
        Test::new(
            format!("rope::matches_oracle_{rows}x{num_heads}x{head_dim}_rotary_{rotary_dim}"),
            move |subject| rope_matches_oracle(subject, rows, num_heads, head_dim, rotary_dim),
        )
    });
    let silu = SILU_SHAPES.iter().map(|&(rows, width)| {
        Test::new(format!("silu_mul::matches_oracle_{rows}x{width}"), move |subject| {
            silu_mul_matches_oracle(subject, rows, width)
        })
    });
    rope.chain(silu).collect()
}

fn rope_matches_oracle(
    subject: Subject,
    rows: usize,
    num_heads: usize,
    head_dim: usize,
    rotary_dim: usize,
) -> Outcome {
    let past_len = 11;
    let width = num_heads * head_dim;
    // The columns of V behind Q and K stay as they are.
    let input = Matrix::random(1, rows, width + head_dim);
    let mut bounds = bounds(rows, rows % 2 * 3);
    bounds.max_kv_len = past_len + bounds.max_tokens;
    let table = Matrix::random(2, bounds.max_kv_len, rotary_dim);
    let mut setup = Setup::default();
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
        expected.extend_from_slice(rotated);
        expected.extend(input.row(row)[width..].iter().map(|&x| oracle::Approx::exactly(x)));
    }
    check(subject, &[plan], &weights, &[Step { plan: 0, inputs, expected }])
}

fn silu_mul_matches_oracle(subject: Subject, rows: usize, width: usize) -> Outcome {
    let mut input = Matrix::random(1, rows, 2 * width);
    // Gates up to 10, and some at which the exponential overflows.
    input.data.iter_mut().for_each(|x| *x *= 10.0);
    input.data.iter_mut().step_by(97).for_each(|x| *x *= 20.0);
    let mut setup = Setup::default();
    let x = setup.input("input", &input);
    let (gate, up) = (x.columns(0, width), x.columns(width, width));
    let out = setup.activation("out", width);
    setup.plan.op(Op::SiluMul { gate, up, out });
    let bounds = bounds(rows, rows % 2 * 3);
    let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
    let expected = oracle::silu_mul(&input.columns(0..width), &input.columns(width..2 * width));
    let step = Step { plan: 0, inputs: one_sequence(rows, 0), expected };
    check(subject, &[plan], &weights, &[step])
}
