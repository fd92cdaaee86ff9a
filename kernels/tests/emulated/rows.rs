//! The kernels that go by rows: gather_rows, rms_norm, rope, silu_mul.

use crate::device::{Device, SEEDS, Stored, assert_close, assert_stored, random, random_of};
use half::{bf16, f16};
use kernels::Rows;
use kernels::element::NarrowedFrom;
use kernels::gather_rows::GatherRows;
use kernels::place_columns::PlaceColumns;
use kernels::rms_norm::RmsNorm;
use kernels::rope::Rope;
use kernels::silu_mul::SiluMul;

/// As many rows as a launch has room for, and how many there are.
const MAX_ROWS: usize = 4;
const NUM_ROWS: usize = 3;

/// Added to the mean of squares, which is 1/3: a norm without it is far off.
const EPS: f32 = 0.25;

/// Padding of the rows of an input: more than any element.
const PAD: f32 = 7.0;

/// Elements from a row of `width` to the next: a multiple of eight if `width` is one, so that both
/// vectors and single elements are loaded.
fn stride(width: usize) -> usize {
    if width.is_multiple_of(8) { width + 8 } else { width + 3 }
}

/// `rows` rows of `width` elements `T` at their stride, and `PAD` between them.
fn padded<T: Stored>(rows: usize, width: usize, salt: u64) -> (Vec<f32>, usize) {
    let stride = stride(width);
    let mut values = random_of::<T>(rows * stride, salt);
    values.chunks_mut(stride).for_each(|row| row[width..].fill(PAD));
    (values, stride)
}

/// The memory of an output: `rest` between rows, and after the first `NUM_ROWS`.
fn expected(
    (stride, width): (usize, usize),
    rest: f32,
    value: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let mut all = vec![f64::from(rest); MAX_ROWS * stride];
    for row in 0..NUM_ROWS {
        for column in 0..width {
            all[row * stride + column] = value(row, column);
        }
    }
    all
}

fn check_gather_rows<T: Stored>(width: usize, seed: u64) {
    let mut device = Device::default();
    let (x, stride) = padded::<T>(9, width, seed + 1);
    let indices = [8, 0, 5];
    let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
    let indices_ptr = device.u32s("indices", &indices);
    let x_rows = Rows::new(device.numbers::<T>("x", &x), stride);
    let out = Rows::new(device.poisoned("out", MAX_ROWS * stride), stride);
    let gather = GatherRows { max_rows: MAX_ROWS, width };
    device.run(gather.launch(num_rows, indices_ptr, x_rows, out), seed);
    let want = expected((stride, width), f32::NAN, |row, column| {
        f64::from(x[indices[row] as usize * stride + column])
    });
    assert_close("gather_rows", &device.read_f32(out.ptr, want.len()), &want, 0.0);
}

#[test]
fn gather_rows_matches_oracle() {
    for width in [1, 16, 1023, 1024, 1025] {
        for seed in SEEDS {
            check_gather_rows::<f32>(width, seed);
            check_gather_rows::<f16>(width, seed);
            check_gather_rows::<bf16>(width, seed);
        }
    }
}

#[test]
fn place_columns_matches_oracle() {
    for (width, first_column, out_width) in [(300, 0, 300), (16, 16, 48), (257, 3, 600), (0, 5, 9)]
    {
        for seed in SEEDS {
            let mut device = Device::default();
            let x = random(NUM_ROWS * width, seed);
            let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
            let x_ptr = device.f32s("x", &x);
            let out = device.poisoned("out", MAX_ROWS * out_width);
            let place = PlaceColumns { max_rows: MAX_ROWS, width, first_column, out_width };
            device.run(place.launch(num_rows, x_ptr, out), seed);
            let mut want = vec![0.0; NUM_ROWS * out_width];
            for (row, want) in want.chunks_mut(out_width).enumerate() {
                want[first_column..first_column + width]
                    .copy_from_slice(&x[row * width..][..width]);
            }
            let written = device.read_f32(out, want.len());
            assert_eq!(written, want, "{width} columns from {first_column} on, seed {seed}");
        }
    }
}

/// RMSNorm of `x`, which `out` is or is not.
fn check_rms_norm<X: Stored, Y: Stored + NarrowedFrom<X>>(
    (num_groups, group_size): (usize, usize),
    seed: u64,
    out: impl FnOnce(&mut Device, Rows<X>) -> (Rows<Y>, f32),
) {
    let mut device = Device::default();
    let width = num_groups * group_size;
    let (x, stride) = padded::<X>(MAX_ROWS, width, seed + 1);
    let weight = random(group_size, seed + 2);
    let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
    let weight_ptr = device.f32s("weight", &weight);
    let x_rows = Rows::new(device.numbers::<X>("x", &x), stride);
    let (out, rest) = out(&mut device, x_rows);
    let norm = RmsNorm { max_rows: MAX_ROWS, num_groups, group_size, eps: EPS };
    device.run(norm.launch(num_rows, x_rows, weight_ptr, out), seed);
    let want = expected((stride, width), rest, |row, column| {
        let group = row * stride + column / group_size * group_size;
        let group = x[group..group + group_size].iter().map(|&x| f64::from(x));
        let mean = group.map(|x| x * x).sum::<f64>() / group_size as f64;
        let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
        f64::from(x[row * stride + column]) * scale * f64::from(weight[column % group_size])
    });
    let case = format!("rms_norm of {num_groups} x {group_size}");
    let written = NUM_ROWS * stride;
    let got = device.read(out.ptr, written);
    assert_stored::<Y>(&case, &got, &want[..written], 1e-6);
}

#[test]
fn rms_norm_matches_oracle() {
    fn poisoned<X, Y>(device: &mut Device, x: Rows<X>) -> (Rows<Y>, f32) {
        (Rows::new(device.poisoned("out", MAX_ROWS * x.row_stride), x.row_stride), f32::NAN)
    }
    fn in_place<X>(_: &mut Device, x: Rows<X>) -> (Rows<X>, f32) {
        (x, PAD)
    }
    // A warp a group, and a block a group; the second of two loads by vectors and not.
    let shapes = [(1, 1), (3, 33), (2, 64), (14, 24), (1, 896), (1, 1025), (1, 2056)];
    for (shape, seed) in shapes.into_iter().flat_map(|s| SEEDS.map(move |seed| (s, seed))) {
        check_rms_norm::<f32, f32>(shape, seed, poisoned);
        check_rms_norm::<f32, f16>(shape, seed, poisoned);
        check_rms_norm::<f32, bf16>(shape, seed, poisoned);
        check_rms_norm::<f16, f16>(shape, seed, poisoned);
        check_rms_norm::<f32, f32>(shape, seed, in_place);
        check_rms_norm::<f16, f16>(shape, seed, in_place);
        check_rms_norm::<bf16, bf16>(shape, seed, in_place);
    }
}

fn check_rope<E: Stored>((num_heads, head_dim, rotary_dim): (usize, usize, usize), seed: u64) {
    let mut device = Device::default();
    let width = num_heads * head_dim;
    let (x, stride) = padded::<E>(MAX_ROWS, width, seed + 1);
    let table = random(11 * rotary_dim, seed + 2);
    let positions = [10, 0, 7];
    let num_tokens = device.u32s("num_tokens", &[NUM_ROWS as u32]);
    let positions_ptr = device.u32s("positions", &positions);
    let table_ptr = device.f32s("table", &table);
    let rows = Rows::new(device.numbers::<E>("x", &x), stride);
    let rope = Rope { max_tokens: MAX_ROWS, num_heads, head_dim, rotary_dim };
    device.run(rope.launch(num_tokens, positions_ptr, table_ptr, rows), seed);
    let half = rotary_dim / 2;
    let want = expected((stride, width), PAD, |row, column| {
        let (at, i) = (row * stride + column, column % head_dim);
        let x_at = |at: usize| f64::from(x[at]);
        if i >= rotary_dim {
            return x_at(at);
        }
        let angle = positions[row] as usize * rotary_dim + i % half;
        let (cos, sin) = (f64::from(table[angle]), f64::from(table[angle + half]));
        if i < half {
            x_at(at) * cos - x_at(at + half) * sin
        } else {
            x_at(at) * cos + x_at(at - half) * sin
        }
    });
    let written = NUM_ROWS * stride;
    let got = device.read(rows.ptr, written);
    let case = format!("rope of {rotary_dim} of {head_dim}");
    assert_stored::<E>(&case, &got, &want[..written], 1e-6);
}

#[test]
fn rope_matches_oracle() {
    for shape in [(1, 2, 2), (5, 12, 8), (9, 64, 64), (16, 96, 96), (7, 32, 24), (2, 128, 32)] {
        for seed in SEEDS {
            check_rope::<f32>(shape, seed);
            check_rope::<f16>(shape, seed);
            check_rope::<bf16>(shape, seed);
        }
    }
}

/// SwiGLU of rows whose first gates are `edges`, beside the products that are wanted of them.
fn check_silu_mul<E: Stored>(width: usize, seed: u64, edges: &[(f32, f32, f64)]) {
    let mut device = Device::default();
    let (mut gate, stride) = padded::<E>(MAX_ROWS, width, seed + 1);
    let (mut up, _) = padded::<E>(MAX_ROWS, width, seed + 2);
    for (i, (edge_gate, edge_up, _)) in edges.iter().enumerate().take(width) {
        (gate[i], up[i]) = (*edge_gate, *edge_up);
    }
    let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
    let gate_rows = Rows::new(device.numbers::<E>("gate", &gate), stride);
    let up_rows = Rows::new(device.numbers::<E>("up", &up), stride);
    let out = Rows::new(device.poisoned("out", MAX_ROWS * stride), stride);
    let silu = SiluMul { max_rows: MAX_ROWS, width };
    device.run(silu.launch(num_rows, gate_rows, up_rows, out), seed);
    let want = expected((stride, width), f32::NAN, |row, column| {
        if let (0, Some((_, _, want))) = (row, edges.get(column)) {
            return *want;
        }
        let at = row * stride + column;
        let (gate, up) = (f64::from(gate[at]), f64::from(up[at]));
        gate / (1.0 + (-gate).exp()) * up
    });
    let got = device.read(out.ptr, want.len());
    assert_stored::<E>("silu_mul", &got, &want, 1e-6);
}

#[test]
fn silu_mul_matches_oracle() {
    const NAN: f64 = f64::NAN;
    let far = (-200.0, 1.0, 0.0);
    for width in [1, 7, 16, 1023, 1024, 1025] {
        for seed in SEEDS {
            check_silu_mul::<f32>(width, seed, &[far]);
            check_silu_mul::<bf16>(width, seed, &[far, (2048.0, 64.0, 131_072.0)]);
            let clamped = [
                far,
                (2048.0, 64.0, 65_504.0),
                (2048.0, -64.0, -65_504.0),
                (f32::NAN, 1.0, NAN),
                (1.0, f32::NAN, NAN),
                (1023.5, 64.0, 65_504.0),
            ];
            check_silu_mul::<f16>(width, seed, &clamped);
        }
    }
}
