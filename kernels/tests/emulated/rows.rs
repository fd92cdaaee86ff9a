//! The kernels that go by rows: gather_rows, rms_norm, rope, silu_mul, kv_append, argmax.

use crate::device::{Device, SEEDS, assert_close, random};
use kernels::Rows;
use kernels::gather_rows::GatherRows;
use kernels::kv_cache::{KvAppend, PAGE_SIZE};
use kernels::rms_norm::RmsNorm;
use kernels::rope::Rope;
use kernels::sampling::Argmax;
use kernels::silu_mul::SiluMul;

/// As many rows as a launch has room for, and how many there are.
const MAX_ROWS: usize = 4;
const NUM_ROWS: usize = 3;

/// What stands behind the rows of an input: more than any element.
const PAD: f32 = 7.0;

/// `rows` rows of `width` elements at a stride of `width + 3`, and `PAD` between them.
fn padded(rows: usize, width: usize, salt: u64) -> (Vec<f32>, usize) {
    let stride = width + 3;
    let mut values = random(rows * stride, salt);
    values.chunks_mut(stride).for_each(|row| row[width..].fill(PAD));
    (values, stride)
}

/// What rows of an output are, `rest` between them, and behind the first `NUM_ROWS`.
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

#[test]
fn gather_rows_matches_oracle() {
    for (width, seed) in [1, 255, 257].into_iter().flat_map(|w| SEEDS.map(move |seed| (w, seed))) {
        let mut device = Device::default();
        let (x, stride) = padded(9, width, seed + 1);
        let indices = [8, 0, 5];
        let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
        let indices_ptr = device.u32s("indices", &indices);
        let x_rows = Rows::new(device.f32s("x", &x), stride);
        let out = Rows::new(device.poisoned("out", MAX_ROWS * stride), stride);
        let gather = GatherRows { max_rows: MAX_ROWS, width };
        device.run(gather.launch(num_rows, indices_ptr, x_rows, out), seed);
        let want = expected((stride, width), f32::NAN, |row, column| {
            f64::from(x[indices[row] as usize * stride + column])
        });
        assert_close("gather_rows", &device.read_f32(out.ptr, want.len()), &want, 0.0);
    }
}

#[test]
fn rms_norm_matches_oracle() {
    // A warp a group, and a block a group.
    for (num_groups, group_size) in [(1, 1), (3, 33), (2, 64), (1, 1025)] {
        for (seed, in_place) in SEEDS.flat_map(|seed| [(seed, false), (seed, true)]) {
            let mut device = Device::default();
            let width = num_groups * group_size;
            let (x, stride) = padded(MAX_ROWS, width, seed + 1);
            let weight = random(group_size, seed + 2);
            let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
            let weight_ptr = device.f32s("weight", &weight);
            let x_rows = Rows::new(device.f32s("x", &x), stride);
            let (out, rest) = if in_place {
                (x_rows, PAD)
            } else {
                (Rows::new(device.poisoned("out", MAX_ROWS * stride), stride), f32::NAN)
            };
            let norm = RmsNorm { max_rows: MAX_ROWS, num_groups, group_size, eps: 1e-5 };
            device.run(norm.launch(num_rows, x_rows, weight_ptr, out), seed);
            let want = expected((stride, width), rest, |row, column| {
                let group = row * stride + column / group_size * group_size;
                let group = x[group..group + group_size].iter().map(|&x| f64::from(x));
                let mean = group.map(|x| x * x).sum::<f64>() / group_size as f64;
                let scale = 1.0 / (mean + 1e-5).sqrt();
                f64::from(x[row * stride + column]) * scale * f64::from(weight[column % group_size])
            });
            let case = format!("rms_norm of {num_groups} x {group_size}");
            let written = NUM_ROWS * stride;
            let got = device.read_f32(out.ptr, written);
            assert_close(&case, &got, &want[..written], 1e-6);
        }
    }
}

#[test]
fn rope_matches_oracle() {
    for (num_heads, head_dim, rotary_dim) in [(1, 2, 2), (5, 12, 8), (9, 64, 64)] {
        for seed in SEEDS {
            let mut device = Device::default();
            let width = num_heads * head_dim;
            let (x, stride) = padded(MAX_ROWS, width, seed + 1);
            let table = random(11 * rotary_dim, seed + 2);
            let positions = [10, 0, 7];
            let num_tokens = device.u32s("num_tokens", &[NUM_ROWS as u32]);
            let positions_ptr = device.u32s("positions", &positions);
            let table_ptr = device.f32s("table", &table);
            let rows = Rows::new(device.f32s("x", &x), stride);
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
            let got = device.read_f32(rows.ptr, written);
            assert_close("rope", &got, &want[..written], 1e-6);
        }
    }
}

#[test]
fn silu_mul_matches_oracle() {
    for (width, seed) in [1, 256, 257].into_iter().flat_map(|w| SEEDS.map(move |seed| (w, seed))) {
        let mut device = Device::default();
        let (mut gate, stride) = padded(MAX_ROWS, width, seed + 1);
        gate[0] = -200.0;
        let (up, _) = padded(MAX_ROWS, width, seed + 2);
        let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
        let gate_rows = Rows::new(device.f32s("gate", &gate), stride);
        let up_rows = Rows::new(device.f32s("up", &up), stride);
        let out = Rows::new(device.poisoned("out", MAX_ROWS * stride), stride);
        let silu = SiluMul { max_rows: MAX_ROWS, width };
        device.run(silu.launch(num_rows, gate_rows, up_rows, out), seed);
        let want = expected((stride, width), f32::NAN, |row, column| {
            let at = row * stride + column;
            let (gate, up) = (f64::from(gate[at]), f64::from(up[at]));
            gate / (1.0 + (-gate).exp()) * up
        });
        assert_close("silu_mul", &device.read_f32(out.ptr, want.len()), &want, 1e-6);
    }
}

#[test]
fn kv_append_matches_oracle() {
    for (num_kv_heads, head_dim) in [(1, 3), (3, 96)] {
        for seed in SEEDS {
            let mut device = Device::default();
            let width = num_kv_heads * head_dim;
            let (k, stride) = padded(MAX_ROWS, width, seed + 1);
            let (v, _) = padded(MAX_ROWS, width, seed + 2);
            let slots = [PAGE_SIZE * 2 + 63, 0, PAGE_SIZE];
            let page_elems = PAGE_SIZE as usize * width;
            let num_tokens = device.u32s("num_tokens", &[NUM_ROWS as u32]);
            let slots_ptr = device.u32s("slot_mapping", &slots);
            let k_rows = Rows::new(device.f32s("k", &k), stride);
            let v_rows = Rows::new(device.f32s("v", &v), stride);
            let k_pool = device.poisoned("k_pool", 3 * page_elems);
            let v_pool = device.poisoned("v_pool", 3 * page_elems);
            let append = KvAppend { max_tokens: MAX_ROWS, num_kv_heads, head_dim };
            let launch = append.launch(num_tokens, slots_ptr, k_rows, v_rows, k_pool, v_pool);
            device.run(launch, seed);
            for (pool, x) in [(k_pool, &k), (v_pool, &v)] {
                let mut want = vec![f64::NAN; 3 * page_elems];
                for (token, slot) in slots.into_iter().enumerate() {
                    for column in 0..width {
                        let (page, row) =
                            ((slot / PAGE_SIZE) as usize, (slot % PAGE_SIZE) as usize);
                        let (head, d) = (column / head_dim, column % head_dim);
                        let at = (head * PAGE_SIZE as usize + row) * head_dim + d;
                        want[page * page_elems + at] = f64::from(x[token * stride + column]);
                    }
                }
                assert_close("kv_append", &device.read_f32(pool, want.len()), &want, 0.0);
            }
        }
    }
}

#[test]
fn argmax_matches_oracle() {
    for vocab_size in [1, 31, 1025, 9000] {
        let mut device = Device::default();
        let (mut x, stride) = padded(MAX_ROWS, vocab_size, 1);
        // The first of two equal ones; NaN never; a row of NaN.
        x[stride..stride + vocab_size].iter_mut().skip(1).step_by(2).for_each(|x| *x = 2.0);
        x[stride] = f32::NAN;
        x[2 * stride..2 * stride + vocab_size].fill(f32::NAN);
        let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
        let rows = Rows::new(device.f32s("x", &x), stride);
        let out = device.poisoned("out", NUM_ROWS);
        let argmax = Argmax { max_rows: NUM_ROWS, vocab_size };
        device.run(argmax.launch(num_rows, rows, out), vocab_size as u64);
        let largest = |row: usize| {
            let row = &x[row * stride..row * stride + vocab_size];
            let max = row.iter().copied().fold(f32::NAN, f32::max);
            row.iter().position(|&x| x == max).unwrap_or(0) as u32
        };
        assert_eq!(device.read_u32(out, NUM_ROWS), [0, 1, 2].map(largest), "{vocab_size}");
    }
}
