//! Rows in E4M3 with a scale each, of rows as they are, of a norm and of a gate.

use crate::device::{Device, SEEDS, Stored, random};
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, LaunchError};
use half::f16;
use kernels::Rows;
use kernels::quantise_rows::{QuantiseRows, RowInput};

/// As many rows as a launch has room for, and how many there are.
const MAX_ROWS: usize = 5;
const NUM_ROWS: usize = 4;

const EPS: f32 = 0.25;

/// Columns from a row to the next beyond its width.
const PAD: usize = 8;

/// Below a vector for each lane, around a block's vectors and a norm's segments.
const WIDTHS: [usize; 7] = [8, 16, 896, 2040, 2048, 2056, 4864];

/// `NUM_ROWS` rows at their stride: one of zeros, one with an outlier, others random.
fn rows(width: usize, salt: u64) -> Vec<f32> {
    let stride = width + PAD;
    let mut values = random(NUM_ROWS * stride, salt);
    values[stride..][..width].fill(0.0);
    values[2 * stride + width / 2] = 100.0;
    values
}

/// A launch's output: elements and scales.
fn run(device: &mut Device, width: usize, input: &RowInput, seed: u64) -> (Vec<E4m3>, Vec<f32>) {
    let num_rows = device.u32s("num_rows", &[NUM_ROWS as u32]);
    let out = device.poisoned::<E4m3>("out", MAX_ROWS * width);
    let scales = device.poisoned::<f32>("scales", MAX_ROWS);
    let quantise = QuantiseRows { max_rows: MAX_ROWS, width };
    device.run(quantise.launch(num_rows, input, out, scales), seed);
    let words = device.read_u32(DevicePtr::new(out.0), NUM_ROWS * width / 4);
    let codes = words.into_iter().flat_map(u32::to_le_bytes).map(E4m3::from_bits).collect();
    let scales = device.read_f32(scales, MAX_ROWS);
    assert!(scales[NUM_ROWS].is_nan(), "a row that is not there is not written");
    (codes, scales)
}

/// Whether `codes` times `scales` are the rows `want`, which a kernel computes within `bound`.
fn assert_rounded(case: &str, (codes, scales): &(Vec<E4m3>, Vec<f32>), want: &[f64], bound: f64) {
    let width = want.len() / NUM_ROWS;
    for (row, want) in want.chunks(width).enumerate() {
        let max = want.iter().fold(0.0f64, |max, value| max.max(value.abs()));
        let scale = f64::from(scales[row]);
        assert!((scale - max / 448.0).abs() <= bound * max, "{case}, row {row}: scale {scale}");
        for (column, &want) in want.iter().enumerate() {
            let got = scale * f64::from(codes[row * width + column].to_f32());
            // Half of the last place of a normal number, and of a subnormal one.
            let off = want.abs() / 16.0 + scale / 1024.0 + 2.0 * bound * (want.abs() + max / 64.0);
            let case = format!("{case}, row {row}, column {column}");
            assert!((got - want).abs() <= off, "{case}: {got}, not {want}");
        }
    }
}

#[test]
fn stored_rows_are_the_type_s_reference_bit_for_bit() {
    for width in WIDTHS {
        let x = rows(width, 1);
        for seed in SEEDS {
            let mut device = Device::default();
            let input = RowInput::Stored(Rows::new(device.numbers("x", &x), width + PAD));
            let (codes, scales) = run(&mut device, width, &input, seed);
            for row in 0..NUM_ROWS {
                let x = x[row * (width + PAD)..][..width].iter();
                let x: Vec<f32> = x.map(|&x| f16::from_f32(x).to_f32()).collect();
                let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                assert_eq!(scales[row], max / 448.0, "{width} columns, row {row}");
                let inverse = if max == 0.0 { 0.0 } else { 448.0 / max };
                let want: Vec<E4m3> = x.iter().map(|x| E4m3::from_f32(x * inverse)).collect();
                assert_eq!(codes[row * width..][..width], want, "{width} columns, row {row}");
            }
        }
    }
}

#[test]
fn normed_rows_match_the_oracle() {
    for width in WIDTHS {
        let (x, weight) = (rows(width, 2), random(width, 3));
        let mut want = Vec::new();
        for row in x.chunks(width + PAD).map(|row| &row[..width]) {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let scale = (squares / width as f64 + f64::from(EPS)).sqrt().recip();
            let normed = row.iter().zip(&weight);
            want.extend(normed.map(|(&x, &weight)| f64::from(x) * f64::from(weight) * scale));
        }
        for seed in SEEDS {
            let mut device = Device::default();
            let x = Rows::new(device.f32s("x", &x), width + PAD);
            let weight = device.f32s("norm weight", &weight);
            let input = RowInput::Normed { x, weight, eps: EPS };
            let got = run(&mut device, width, &input, seed);
            assert_rounded(&format!("{width} columns"), &got, &want, f16::ROUNDING);
        }
    }
}

#[test]
fn gated_rows_match_the_oracle() {
    for width in WIDTHS {
        let [gate, up] = [rows(width, 4), rows(width, 5)]
            .map(|rows| rows.into_iter().map(|x| f16::from_f32(3.0 * x).to_f32()).collect());
        let (gate, up): (Vec<f32>, Vec<f32>) = (gate, up);
        let mut want = Vec::new();
        for (gate, up) in gate.chunks(width + PAD).zip(up.chunks(width + PAD)) {
            let pairs = gate[..width].iter().zip(up).map(|(&g, &u)| (f64::from(g), f64::from(u)));
            let value = |(gate, up): (f64, f64)| gate / (1.0 + (-gate).exp()) * up;
            want.extend(pairs.map(value).map(|value| value.clamp(-65504.0, 65504.0)));
        }
        for seed in SEEDS {
            let mut device = Device::default();
            let gate = Rows::new(device.numbers("gate", &gate), width + PAD);
            let up = Rows::new(device.numbers("up", &up), width + PAD);
            let got = run(&mut device, width, &RowInput::Gated { gate, up }, seed);
            assert_rounded(&format!("{width} columns"), &got, &want, f16::ROUNDING);
        }
    }
}

#[test]
fn what_is_not_finite_makes_no_number() {
    let width = 64;
    let mut x = vec![1.0; NUM_ROWS * (width + PAD)];
    x[5] = f32::NAN;
    x[width + PAD] = f32::INFINITY;
    let mut device = Device::default();
    let input = RowInput::Stored(Rows::new(device.numbers("x", &x), width + PAD));
    let (codes, scales) = run(&mut device, width, &input, 0);
    let values = |row: usize| {
        codes[row * width..][..width].iter().map(|code| scales[row] * code.to_f32()).collect()
    };
    let [nan, infinite, finite] = [0, 1, 2].map(|row| -> Vec<f32> { values(row) });
    assert!(nan[5].is_nan() && (nan[4] - 1.0).abs() < 1e-6, "{nan:?}");
    assert!(infinite.iter().all(|value| value.is_nan()), "{infinite:?}");
    assert!(finite.iter().all(|value| (value - 1.0).abs() < 1e-6), "{finite:?}");
}

#[test]
fn rejects_rows_that_no_vector_loads() {
    let ptr = DevicePtr::new(1 << 20);
    let launch = |width, stride, address| {
        let input = RowInput::Stored(Rows::new(DevicePtr::new(address), stride));
        let quantise = QuantiseRows { max_rows: 3, width };
        quantise.launch(ptr, &input, DevicePtr::new(1 << 20), DevicePtr::new(1 << 20))
    };
    for (width, stride, address) in
        [(12, 16, 1 << 20), (112_648, 112_648, 1 << 20), (16, 20, 1 << 20), (16, 16, 8)]
    {
        let refused = launch(width, stride, address);
        assert!(matches!(refused, Err(LaunchError::Shape { .. })), "{width}, {stride}, {address}");
    }
    assert!(launch(16, 16, 1 << 20).unwrap().is_some());
    assert!(launch(0, 16, 1 << 20).unwrap().is_none());
}
