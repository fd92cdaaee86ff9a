//! The kernels that go by rows: gather, norm, rotation, gate, epilogue, quantisation.

use crate::harness::*;
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, LaunchError};
use gpu_types::{Activation, DRAWN};
use half::{bf16, f16};
use kernels::Rows;
use kernels::element::{NarrowedFrom, Number};
use kernels::gate_rows::GateRows;
use kernels::gather_rows::GatherRows;
use kernels::gemm::{GemmEpilogue, GemmEpilogueOperands, OutputOf};
use kernels::place_columns::PlaceColumns;
use kernels::quantise_rows::{QuantiseRows, RowInput};
use kernels::rms_norm::RmsNorm;
use kernels::rope::Rope;
use kernels::scale::ScaleRows;
use kernels::softcap::SoftcapRows;
use oracle::{Approx, Element, Matrix, SUM_ROUNDING, e4m3_code, e4m3_value, gated, rms_norm, rope};

/// How many rows there are, and as many as a launch has room for.
const ROWS: [usize; 2] = [3, 4];
const NUM_ROWS: usize = ROWS[0];
const MAX_ROWS: usize = ROWS[1];

/// Added to the mean of squares, which is 1/3: a norm without it is far off.
const EPS: f32 = 0.25;

/// A check of a shape under a seed.
type Check<Shape> = fn(Shape, u64);

/// Runs all checks of all shapes under all seeds.
fn for_all<Shape: Copy>(shapes: &[Shape], checks: &[Check<Shape>]) {
    for (shape, check) in shapes.iter().flat_map(|shape| checks.iter().map(move |c| (shape, c))) {
        simt::seeds().for_each(|seed| check(*shape, seed));
    }
}

/// Elements from a row of `width` to the next, and the rows: a multiple of eight if `width` is one,
/// so that both vectors and single elements are loaded.
fn place(width: usize) -> (usize, usize) {
    (if width.is_multiple_of(8) { width + 8 } else { width + 3 }, MAX_ROWS)
}

fn count(device: &mut Device, name: &str, rows: usize) -> DevicePtr<u32> {
    device.u32s(name, &[rows as u32])
}

fn floats(row: &[f64]) -> Vec<f32> {
    row.iter().map(|&x| x as f32).collect()
}

#[test]
fn gather_rows_matches_oracle() {
    fn check<T: HostElement>((width, scale): (usize, f32), seed: u64) {
        let mut device = Device::default();
        let x = Matrix::random::<T>(9, width, seed);
        let num_rows = count(&mut device, "num_rows", NUM_ROWS);
        let indices = device.u32s("indices", &[8, DRAWN | 2, 5]);
        let drawn = device.u32s("drawn", &[1, 3, 0]);
        let x_rows = device.matrix::<T>("x", &x, (place(width).0, 9));
        let out = device.out::<f32>("out", place(width));
        let gather = GatherRows { max_rows: MAX_ROWS, width, scale };
        device.run(gather.launch(num_rows, indices, Some(drawn), x_rows, out), seed);
        let rows = [8, 0, 5].into_iter().flat_map(|row| floats(x.row(row)));
        let want: Vec<f32> = rows.map(|x| x * scale).collect();
        assert_eq!(device.read_rows(out, ROWS, width), want, "{width} columns");
    }
    let shapes = [(1, 1.0), (16, 12.0), (1023, 1.0), (1024, 0.1), (1025, 1.0)];
    for_all(&shapes, &[check::<f32>, check::<f16>, check::<bf16>]);
}

#[test]
fn place_columns_matches_oracle() {
    fn check([width, first_column, out_width]: [usize; 3], seed: u64) {
        let mut device = Device::default();
        let x = random(NUM_ROWS * width, seed);
        let num_rows = count(&mut device, "num_rows", NUM_ROWS);
        let x_ptr = device.f32s("x", &x);
        let out = device.out("out", (out_width, MAX_ROWS));
        let place = PlaceColumns { max_rows: MAX_ROWS, width, first_column, out_width };
        device.run(place.launch(num_rows, x_ptr, out.ptr), seed);
        let mut want = vec![0.0; NUM_ROWS * out_width];
        for (row, want) in want.chunks_mut(out_width).enumerate() {
            want[first_column..][..width].copy_from_slice(&x[row * width..][..width]);
        }
        assert_eq!(device.read_rows(out, ROWS, out_width), want, "{width} from {first_column} on");
    }
    for_all(&[[300, 0, 300], [16, 16, 48], [257, 3, 600], [0, 5, 9]], &[check]);
}

#[test]
fn rms_norm_matches_oracle() {
    fn check<X: HostElement, Y: HostElement + NarrowedFrom<X>, const IN_PLACE: bool>(
        (num_groups, group_size): (usize, usize),
        seed: u64,
    ) {
        let mut device = Device::default();
        let width = num_groups * group_size;
        let x = Matrix::random::<X>(NUM_ROWS, width, seed);
        let weight = random(group_size, seed + 100);
        let num_rows = count(&mut device, "num_rows", NUM_ROWS);
        let weight_ptr = device.f32s("weight", &weight);
        let x_rows = device.matrix::<X>("x", &x, place(width));
        let out = match IN_PLACE {
            true => rows_at(x_rows.ptr.0, x_rows.row_stride),
            false => device.out::<Y>("out", place(width)),
        };
        let norm = RmsNorm { max_rows: MAX_ROWS, num_groups, group_size, eps: EPS };
        device.run(norm.launch(num_rows, x_rows, weight_ptr, out), seed);
        let x = floats(&x.values);
        let want = x.chunks(group_size).flat_map(|group| rms_norm(group, &weight, EPS)).collect();
        let case = format!("rms_norm of {num_groups} x {group_size}");
        assert_right(&case, &device.read_rows(out, ROWS, width), &stored::<Y>(want));
    }
    // A warp a group, and a block a group; the second of two loads by vectors and not.
    let shapes = [(1, 1), (3, 33), (2, 64), (14, 24), (1, 896), (1, 1025), (1, 2056)];
    let checks = [
        check::<f32, f32, false>,
        check::<f32, f16, false>,
        check::<f32, bf16, false>,
        check::<f16, f16, false>,
        check::<f32, f32, true>,
        check::<f16, f16, true>,
        check::<bf16, bf16, true>,
    ];
    for_all(&shapes, &checks);
}

#[test]
fn rms_norm_is_added_to_what_is_there() {
    fn check(group_size: usize, seed: u64) {
        let mut device = Device::default();
        let x = Matrix::random::<f32>(NUM_ROWS, group_size, seed);
        let residual = Matrix::random::<f32>(NUM_ROWS, group_size, seed + 1);
        let weight = random(group_size, seed + 100);
        let num_rows = count(&mut device, "num_rows", NUM_ROWS);
        let weight_ptr = device.f32s("weight", &weight);
        let x_rows = device.matrix::<f32>("x", &x, place(group_size));
        let out = device.matrix::<f32>("residual", &residual, place(group_size));
        let norm = RmsNorm { max_rows: MAX_ROWS, num_groups: 1, group_size, eps: EPS };
        device.run(norm.launch_add(num_rows, x_rows, weight_ptr, out), seed);
        let x = floats(&x.values);
        let normed = x.chunks(group_size).flat_map(|group| rms_norm(group, &weight, EPS));
        let want: Vec<_> =
            normed.zip(&residual.values).map(|(normed, &term)| normed.plus(term)).collect();
        let got = device.read_rows(out, ROWS, group_size);
        assert_right(&format!("{group_size} columns"), &got, &want);
    }
    for_all(&[33, 896, 2056], &[check]);
}

#[test]
fn rope_matches_oracle() {
    fn check<E: HostElement>((num_heads, head_dim, rotary_dim): (usize, usize, usize), seed: u64) {
        let mut device = Device::default();
        let width = num_heads * head_dim;
        let x = Matrix::random::<E>(NUM_ROWS, width, seed);
        let (table, positions) = (random(11 * rotary_dim, seed + 100), [10, 0, 7]);
        let num_tokens = count(&mut device, "num_tokens", NUM_ROWS);
        let positions_ptr = device.u32s("positions", &positions);
        let table_ptr = device.f32s("table", &table);
        let rows = device.matrix::<E>("x", &x, place(width));
        let launcher = Rope { max_tokens: MAX_ROWS, num_heads, head_dim, rotary_dim };
        device.run(launcher.launch(num_tokens, positions_ptr, table_ptr, rows), seed);
        let heads = floats(&x.values);
        let want = heads.chunks(head_dim).enumerate().flat_map(|(at, head)| {
            let position = positions[at / num_heads] as usize;
            rope(head, &table[position * rotary_dim..][..rotary_dim])
        });
        let got = device.read_rows(rows, ROWS, width);
        assert_right(
            &format!("rope of {rotary_dim} of {head_dim}"),
            &got,
            &stored::<E>(want.collect()),
        );
    }
    let shapes = [(1, 2, 2), (5, 12, 8), (9, 64, 64), (16, 96, 96), (7, 32, 24), (2, 128, 32)];
    for_all(&shapes, &[check::<f32>, check::<f16>, check::<bf16>]);
}

/// Gates and factors at the ends of the numbers: what overflows is clamped in f16.
const EDGES: [(f32, f32); 6] = [
    (-200.0, 1.0),
    (2048.0, 64.0),
    (2048.0, -64.0),
    (f32::NAN, 1.0),
    (1.0, f32::NAN),
    (1023.5, 64.0),
];

#[test]
fn gates_match_oracle() {
    fn check<E: HostElement>((activation, width): (Activation, usize), seed: u64) {
        let mut device = Device::default();
        let [mut gate, mut up] =
            [0, 100].map(|salt| Matrix::random::<E>(NUM_ROWS, width, seed + salt));
        for (i, edge) in EDGES.into_iter().enumerate().take(width) {
            (gate.values[i], up.values[i]) = (edge.0.into(), edge.1.into());
        }
        let num_rows = count(&mut device, "num_rows", NUM_ROWS);
        let gate_rows = device.matrix::<E>("gate", &gate, place(width));
        let up_rows = device.matrix::<E>("up", &up, place(width));
        let out = device.out::<E>("out", place(width));
        let launcher = GateRows { activation, max_rows: MAX_ROWS, width };
        device.run(launcher.launch(num_rows, gate_rows, up_rows, out), seed);
        let want = gated_values::<E>(activation, &gate, &up);
        let got = device.read_rows(out, ROWS, width);
        assert_right(&format!("{activation:?} of {width}"), &got, &stored::<E>(want));
        let clamped = &got[1..width.min(3)];
        let is_clamped = E::MAX < 1e6 && activation == Activation::Silu;
        assert!(!is_clamped || clamped.iter().all(|value| value.abs() == 65_504.0), "{clamped:?}");
    }
    let widths = [1, 7, 16, 1023, 1024, 1025];
    let shapes = Activation::ALL.map(|activation| widths.map(|width| (activation, width)));
    for_all(shapes.as_flattened(), &[check::<f32>, check::<f16>, check::<bf16>]);
}

#[test]
fn softcaps_match_oracle() {
    for (width, cap) in [(1, 30.0), (7, 0.5), (1023, 30.0), (1024, 1e4), (1025, 2.0)] {
        for seed in simt::seeds().take(2) {
            let mut device = Device::default();
            let mut x = Matrix::random::<f32>(NUM_ROWS, width, seed);
            // From far below the cap to far above it.
            x.values.iter_mut().enumerate().for_each(|(i, x)| *x *= 10f64.powi(i as i32 % 9 - 5));
            x.values.iter_mut().for_each(|x| *x = f64::from(*x as f32));
            let num_rows = count(&mut device, "num_rows", NUM_ROWS);
            let rows = device.matrix::<f32>("x", &x, place(width));
            let launcher = SoftcapRows { max_rows: MAX_ROWS, width, cap };
            device.run(launcher.launch(num_rows, rows), seed);
            let cap = f64::from(cap);
            let want = x.values.iter().map(|x| cap * (x / cap).tanh());
            let want = want.map(|x| Approx::new(x, 1e-5 * x.abs())).collect();
            let got = device.read_rows(rows, ROWS, width);
            assert_right(&format!("cap {cap} of {width}"), &got, &stored::<f32>(want));
        }
    }
}

/// One factor of all elements, and one for each element's index.
#[test]
fn scaled_rows_match_oracle() {
    const FACTORS: [f32; 3] = [0.75, -3.0, 1e-3];
    for width in [1, 7, 8, 1023, 1024, 1025] {
        for (seed, is_indexed) in
            simt::seeds().take(2).flat_map(|seed| [(seed, false), (seed, true)])
        {
            let mut device = Device::default();
            let x = Matrix::random::<f32>(NUM_ROWS, width, seed);
            let num_rows = count(&mut device, "num_rows", NUM_ROWS);
            let rows = device.matrix::<f32>("x", &x, place(width));
            let factors = device.numbers("scales", &FACTORS);
            let all: Vec<u32> = (0..MAX_ROWS * width).map(|i| (i * 7 % 5 % 3) as u32).collect();
            let indices = is_indexed.then(|| Rows::new(device.u32s("indices", &all), width));
            let launcher = ScaleRows { max_rows: MAX_ROWS, width };
            device.run(launcher.launch(num_rows, rows, indices, factors), seed);
            let factor = |i: usize| FACTORS[if is_indexed { all[i] as usize } else { 0 }];
            let want = x.values.iter().enumerate();
            let want = want.map(|(i, x)| Approx::exact(f64::from(*x as f32 * factor(i))));
            let got = device.read_rows(rows, ROWS, width);
            assert_right(&format!("{width} columns"), &got, &stored::<f32>(want.collect()));
        }
    }
}

fn gated_values<E: Element>(activation: Activation, gate: &Matrix, up: &Matrix) -> Vec<Approx> {
    let pairs = gate.values.iter().zip(&up.values);
    let exact = pairs.map(|(&gate, &up)| [gate, up].map(Approx::exact));
    exact.map(|[gate, up]| gated::<E>(activation, gate, up)).collect()
}

/// Where an epilogue writes its outputs: memory of their own, or over an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Out {
    Separate,
    Product,
    Residual,
}

/// The epilogue of linear layers whose GEMM a library computes: rows, columns, row strides less
/// that, bias and residual, and what the outputs overwrite.
#[derive(Clone, Copy, Debug)]
struct Epilogue {
    rows: usize,
    width: usize,
    pad: usize,
    bias: bool,
    residual: bool,
    out: Out,
}

impl Epilogue {
    fn check<P: HostElement, E: HostElement + OutputOf<P>>(self, seed: u64) {
        let Epilogue { rows, width, pad, out, .. } = self;
        let at = (width + pad, MAX_ROWS);
        let product = Matrix::random::<P>(rows, width, seed);
        let bias = self.bias.then(|| random(width, seed + 100));
        let mut residual = Matrix::random::<f32>(rows, width, seed + 200);
        residual.values.iter_mut().for_each(|x| *x *= 64.0);
        let mut device = Device::default();
        let num_rows = count(&mut device, "num_rows", rows);
        let product_rows = device.matrix::<P>("product", &product, at);
        let bias_ptr = bias.as_ref().map(|bias| device.f32s("bias", bias));
        let residual_rows = self.residual.then(|| device.matrix::<f32>("residual", &residual, at));
        let out: Rows<E> = match (out, residual_rows) {
            (Out::Product, _) => rows_at(product_rows.ptr.0, at.0),
            (Out::Residual, Some(residual)) => rows_at(residual.ptr.0, at.0),
            _ => device.out("out", at),
        };
        let operands = GemmEpilogueOperands::<P, E> {
            product: product_rows,
            bias: bias_ptr,
            residual: residual_rows,
            out,
        };
        device.run(GemmEpilogue { max_rows: MAX_ROWS, width }.launch(num_rows, &operands), seed);
        let want = product.values.iter().enumerate().map(|(at, &product)| {
            let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[at % width]));
            let residual = if self.residual { residual.values[at] } else { 0.0 };
            Approx::new(product + bias + residual, 2e-7 * (1.0 + residual.abs()))
        });
        let got = device.read_rows(out, [rows, MAX_ROWS], width);
        assert_right(&format!("{self:?}"), &got, &stored::<E>(want.collect()));
    }

    /// Every form, the bare conversion too, of a multiple of eight columns, one less and one more;
    /// a block's columns likewise.
    fn check_all<P: HostElement, E: HostElement + OutputOf<P>>(outs: &[Out]) {
        let forms = [(0, true, true), (8, true, false), (3, false, true), (5, false, false)];
        let widths = [1, 7, 8, 24, 1023, 1024, 1025];
        for (width, (pad, bias, residual)) in
            widths.into_iter().flat_map(|width| forms.map(|form| (width, form)))
        {
            for &out in outs.iter().filter(|out| residual || **out != Out::Residual) {
                let case = Epilogue { rows: NUM_ROWS, width, pad, bias, residual, out };
                simt::seeds().for_each(|seed| case.check::<P, E>(seed));
            }
        }
    }
}

#[test]
fn epilogues_match_oracle() {
    Epilogue::check_all::<f32, f32>(&[Out::Separate, Out::Product, Out::Residual]);
    Epilogue::check_all::<f32, f16>(&[Out::Separate]);
    Epilogue::check_all::<f32, bf16>(&[Out::Separate]);
    Epilogue::check_all::<f16, f32>(&[Out::Separate, Out::Residual]);
    Epilogue::check_all::<f16, f16>(&[Out::Separate, Out::Product]);
    Epilogue::check_all::<bf16, f32>(&[Out::Separate]);
    let (bias, residual, out) = (true, false, Out::Separate);
    let none = Epilogue { rows: 0, width: 16, pad: 0, bias, residual, out };
    none.check::<f16, f32>(0);
    Epilogue { rows: MAX_ROWS, ..none }.check::<f32, bf16>(0);
}

/// The sum is rounded, not its terms: terms beyond f16, and half a unit off in it.
#[test]
fn an_epilogue_rounds_once() {
    let mut device = Device::default();
    let num_rows = count(&mut device, "num_rows", 1);
    let product = [70_000.0, 2049.0, -70_000.0, f32::NAN, f32::INFINITY];
    let bias = [-60_000.0, 0.25, -1.0, 1.0, 1.0];
    let operands = GemmEpilogueOperands::<f32, f16> {
        product: Rows::new(device.f32s("product", &product), 5),
        bias: Some(device.f32s("bias", &bias)),
        residual: None,
        out: device.out("out", (5, 1)),
    };
    device.run(GemmEpilogue { max_rows: 1, width: 5 }.launch(num_rows, &operands), 0);
    let got = device.read(operands.out.ptr, 5);
    let want = [10_000.0, 2050.0, f32::NEG_INFINITY, f32::NAN, f32::INFINITY];
    assert_eq!(bits(&got), bits(&want));
}

/// Below a vector for each lane, around a block's vectors and a norm's segments.
const QUANTISED_WIDTHS: [usize; 7] = [8, 16, 896, 2040, 2048, 2056, 4864];

/// Four rows: one of zeros, one with an outlier, others random.
fn rows_to_quantise<T: Element>(width: usize, salt: u64) -> Matrix {
    let mut rows = Matrix::random::<T>(4, width, salt);
    rows.values[width..][..width].fill(0.0);
    rows.values[2 * width + width / 2] = 100.0;
    rows
}

/// The codes of four rows, and their scales.
fn quantise(device: &mut Device, width: usize, input: &RowInput, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let num_rows = count(device, "num_rows", 4);
    let out = device.poisoned::<E4m3>("out", 5 * width);
    let scales = device.out::<f32>("scales", (1, 5));
    let quantise = QuantiseRows { max_rows: 5, width };
    device.run(quantise.launch(num_rows, input, out, scales.ptr), seed);
    (device.read_bytes(out, 4 * width), device.read_rows(scales, [4, 5], 1))
}

/// Whether `codes` times `scales` are the rows `want`, which a kernel computes within `bound`.
fn assert_quantised(case: &str, (codes, scales): (Vec<u8>, Vec<f32>), want: &[Approx], bound: f64) {
    let width = want.len() / scales.len();
    let mut rows = Vec::new();
    for (row, want) in want.chunks(width).enumerate() {
        let max = want.iter().fold(0.0f64, |max, want| max.max(want.value.abs()));
        let scale = f64::from(scales[row]);
        // Of the largest element once more, which is rounded to f16.
        assert!((scale - max / 448.0).abs() <= bound * max / 400.0, "{case}, row {row}: {scale}");
        // Half of the last place of a normal number, and of a subnormal one.
        rows.extend(want.iter().map(|&Approx { value, .. }| {
            let off =
                value.abs() / 16.0 + scale / 1024.0 + 2.0 * bound * (value.abs() + max / 64.0);
            Approx::new(value, off)
        }));
    }
    let values = codes.iter().enumerate().map(|(at, &code)| scales[at / width] * e4m3_value(code));
    assert_right(case, &values.collect::<Vec<_>>(), &rows);
}

#[test]
fn quantised_rows_match_oracle() {
    for (width, seed) in
        QUANTISED_WIDTHS.into_iter().flat_map(|w| simt::seeds().map(move |s| (w, s)))
    {
        let place = (width + 8, 5);
        let case = format!("{width} columns, seed {seed}");
        // 1. As they are: bit for bit.
        let x = rows_to_quantise::<f16>(width, 1);
        let mut device = Device::default();
        let input = RowInput::Stored(device.matrix("x", &x, place));
        let (codes, scales) = quantise(&mut device, width, &input, seed);
        for (row, &scale) in scales.iter().enumerate() {
            let x = floats(x.row(row));
            let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            assert_eq!(scale, max / 448.0, "{case}, row {row}");
            let inverse = if max == 0.0 { 0.0 } else { 448.0 / max };
            let want: Vec<u8> = x.iter().map(|x| e4m3_code(x * inverse)).collect();
            assert_eq!(codes[row * width..][..width], want, "{case}, row {row}");
        }
        // 2. Of a norm.
        let (x, weight) = (rows_to_quantise::<f32>(width, 2), random(width, 3));
        let mut device = Device::default();
        let rows = device.matrix("x", &x, place);
        let weight_ptr = device.f32s("norm weight", &weight);
        let input = RowInput::Normed { x: rows, weight: weight_ptr, eps: EPS };
        let got = quantise(&mut device, width, &input, seed);
        let want = (0..4).flat_map(|row| rms_norm(&floats(x.row(row)), &weight, EPS));
        assert_quantised(&format!("norm, {case}"), got, &want.collect::<Vec<_>>(), f16::ROUNDING);
        // 3. Of a gate.
        let [gate, up] = [4, 5].map(|salt| rows_to_quantise::<f16>(width, salt));
        for activation in Activation::FUSED {
            let mut device = Device::default();
            let (gate_rows, up_rows) =
                (device.matrix("gate", &gate, place), device.matrix("up", &up, place));
            let input = RowInput::Gated { activation, gate: gate_rows, up: up_rows };
            let got = quantise(&mut device, width, &input, seed);
            let want = gated_values::<f16>(activation, &gate, &up);
            assert_quantised(&format!("{activation:?}, {case}"), got, &want, f16::ROUNDING);
        }
    }
}

#[test]
fn what_is_not_finite_makes_no_number() {
    let mut x = Matrix::new(4, 64, |_, _| 1.0);
    (x.values[5], x.values[64]) = (f64::NAN, f64::INFINITY);
    let mut device = Device::default();
    let input = RowInput::Stored(device.matrix("x", &x, (72, 5)));
    let (codes, scales) = quantise(&mut device, 64, &input, 0);
    let values = |row: usize| -> Vec<f32> {
        codes[row * 64..][..64].iter().map(|&code| scales[row] * e4m3_value(code)).collect()
    };
    let [nan, infinite, finite] = [0, 1, 2].map(values);
    assert!(nan[5].is_nan() && (f64::from(nan[4]) - 1.0).abs() < SUM_ROUNDING, "{nan:?}");
    assert!(infinite.iter().all(|value| value.is_nan()), "{infinite:?}");
    assert!(finite.iter().all(|value| (value - 1.0).abs() < 1e-6), "{finite:?}");
}

#[test]
fn launches_cover_rows_and_columns() {
    let gather = |max_rows, width| {
        let gather = GatherRows { max_rows, width, scale: 1.0 };
        gather.launch(ptr(9), ptr(8), None, rows::<f32>(width), rows(width))
    };
    assert_eq!(of(gather(5, 1025)), ("gather_rows_f32", [5, 2, 1], 128, 0));
    assert!(is_nothing(gather(0, 1025)) && is_nothing(gather(5, 0)));
    let error = gather(1, 65_536 * 1024);
    let limit = LaunchError::Grid { axis: "y", blocks: 65_536, limit: 65_535 };
    assert_eq!(error, Err(limit));

    let norm = |max_rows, num_groups, group_size| {
        let norm = RmsNorm { max_rows, num_groups, group_size, eps: 1e-6 };
        norm.launch(ptr(9), rows::<f32>(4096), ptr(2), rows::<f32>(4096))
    };
    assert_eq!(of(norm(3, 7, 128)), ("rms_norm_f32_warp", [3, 1, 1], 256, 0));
    assert_eq!(of(norm(3, 1, 1025)), ("rms_norm_f32_block", [3, 1, 1], 256, 32));
    assert!([norm(0, 7, 128), norm(3, 0, 128), norm(3, 7, 0)].into_iter().all(is_nothing));
    assert_eq!(refused(norm(1, 1, (3 << 20) + 1)).0, "group_size");
    let error = norm(usize::MAX, 2, 2048);
    assert!(matches!(error, Err(LaunchError::Grid { axis: "x", blocks: usize::MAX, .. })));

    let rope = |max_tokens, rotary_dim| {
        let rope = Rope { max_tokens, num_heads: 9, head_dim: 96, rotary_dim };
        rope.launch(ptr(9), ptr(8), ptr(2), rows::<f32>(9 * 96))
    };
    assert_eq!(of(rope(7, 96)), ("rope_f32", [7, 1, 1], 128, 0));
    assert!(is_nothing(rope(0, 96)) && is_nothing(rope(7, 0)));
    assert_eq!([98, 95].map(|wrong| refused(rope(7, wrong)).0), ["rotary_dim"; 2]);

    let silu = |max_rows, width, gate| {
        let silu = GateRows { activation: Activation::Silu, max_rows, width };
        silu.launch(ptr(9), rows::<f32>(gate), rows(width), rows(width))
    };
    assert_eq!(of(silu(5, 4864, 4864)), ("silu_mul_f32", [5, 5, 1], 128, 0));
    assert!(is_nothing(silu(0, 4864, 4864)));
    assert_eq!(refused(silu(5, 8, 1 << 32)).0, "row stride");

    let quantise = |width, stride, address| {
        let input = RowInput::Stored(rows_at(address, stride));
        QuantiseRows { max_rows: 3, width }.launch(ptr(9), &input, ptr(8), ptr(7))
    };
    for (width, stride, address) in
        [(12, 16, 4096), (112_648, 112_648, 4096), (16, 20, 4096), (16, 16, 8)]
    {
        refused(quantise(width, stride, address));
    }
    assert_eq!(of(quantise(16, 16, 4096)).0, "quantise_rows_f16");
    assert!(is_nothing(quantise(0, 16, 4096)));
}

#[test]
fn the_types_of_the_rows_name_the_kernel() {
    fn norm<X: Number, Y: NarrowedFrom<X>>(group_size: usize) -> &'static str {
        let norm = RmsNorm { max_rows: 1, num_groups: 1, group_size, eps: 1e-6 };
        of(norm.launch(ptr(9), rows::<X>(4096), ptr(2), rows::<Y>(4096))).0
    }
    fn others<E: Number>() -> [&'static str; 3] {
        let gather = GatherRows { max_rows: 1, width: 64, scale: 1.0 };
        let rope = Rope { max_tokens: 1, num_heads: 1, head_dim: 64, rotary_dim: 64 };
        let silu = GateRows { activation: Activation::Silu, max_rows: 1, width: 64 };
        [
            of(gather.launch(ptr(9), ptr(8), None, rows::<E>(64), rows(64))).0,
            of(rope.launch(ptr(9), ptr(8), ptr(2), rows::<E>(64))).0,
            of(silu.launch(ptr(9), rows::<E>(64), rows(64), rows(64))).0,
        ]
    }
    assert_eq!(others::<f16>(), ["gather_rows_f16_f32", "rope_f16", "silu_mul_f16"]);
    assert_eq!(others::<bf16>(), ["gather_rows_bf16_f32", "rope_bf16", "silu_mul_bf16"]);
    assert_eq!(norm::<f32, f16>(896), "rms_norm_f32_f16_warp");
    assert_eq!(norm::<f32, bf16>(3072), "rms_norm_f32_bf16_block");
    assert_eq!(norm::<f16, f16>(128), "rms_norm_f16_warp");
    assert_eq!(norm::<bf16, bf16>(2048), "rms_norm_bf16_block");
}

#[test]
fn the_epilogue_of_a_library_covers_its_columns() {
    fn launch<P: Number, E: OutputOf<P>>([max_rows, width, row_stride]: [usize; 3]) -> Launched {
        let (product, out) = (rows(row_stride), rows(row_stride));
        let operands = GemmEpilogueOperands::<P, E> { product, bias: None, residual: None, out };
        GemmEpilogue { max_rows, width }.launch(ptr(9), &operands)
    }
    let wide = [5, 1025, 1025];
    assert_eq!(of(launch::<f32, f32>(wide)), ("gemm_epilogue_f32", [5, 2, 1], 128, 0));
    let launches =
        [launch::<f32, f16>, launch::<f32, bf16>, launch::<f16, f32>, launch::<f16, f16>];
    let names = ["_f32_f16", "_f32_bf16", "_f16_f32", "_f16"].map(|t| format!("gemm_epilogue{t}"));
    assert_eq!(launches.map(|launch| of(launch(wide)).0), names);
    assert!(is_nothing(launch::<f32, f32>([0, 8, 8])) && is_nothing(launch::<f32, f32>([5, 0, 8])));
    assert_eq!(refused(launch::<f16, f32>([1, 8, 1 << 32])).0, "row stride");
    assert_eq!(refused(launch::<f16, f32>([1, 1 << 32, 8])).0, "width");
    let error = launch::<f16, f32>([1, 65_536 * 1024, 8]);
    assert!(matches!(error, Err(LaunchError::Grid { axis: "y", .. })));
}
