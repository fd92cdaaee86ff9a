//! The epilogue of linear layers whose GEMM a library computes.

use crate::device::{Device, SEEDS, Stored, assert_stored, random, random_of};
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::{GemmEpilogue, GemmEpilogueOperands, OutputOf};

/// Rows that a launch has room for.
const MAX_ROWS: usize = 4;

/// A multiple of eight columns, and one less and more; a block's columns likewise.
const WIDTHS: [usize; 7] = [1, 7, 8, 24, 1023, 1024, 1025];

/// What the outputs overwrite.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Own,
    OfProduct,
    OfResidual,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    num_rows: usize,
    width: usize,
    /// Row strides, less the width.
    pad: usize,
    with_bias: bool,
    with_residual: bool,
    place: Place,
}

/// Runs `case` with a matrix product of type `P` and outputs of type `E`; compares all of the
/// memory of the outputs.
fn check<P: Stored, E: Stored + OutputOf<P>>(case: Case, seed: u64) {
    let Case { num_rows, width, pad, with_bias, with_residual, place } = case;
    let stride = width + pad;
    let product = random_of::<P>(MAX_ROWS * stride, seed + 1);
    let bias = random(width, seed + 2);
    let residual: Vec<f32> =
        random(MAX_ROWS * stride, seed + 3).into_iter().map(|x| x * 100.0).collect();
    let mut device = Device::default();
    let rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
    let product_ptr = device.numbers::<P>("product", &product);
    let bias_ptr = with_bias.then(|| device.f32s("bias", &bias));
    let residual_ptr = with_residual.then(|| device.f32s("residual", &residual));
    let (out, before) = match (place, residual_ptr) {
        (Place::OfProduct, _) => (DevicePtr::new(product_ptr.0), product.clone()),
        (Place::OfResidual, Some(residual_ptr)) => {
            (DevicePtr::new(residual_ptr.0), residual.clone())
        }
        _ => (device.poisoned::<E>("out", MAX_ROWS * stride), vec![f32::NAN; MAX_ROWS * stride]),
    };
    let operands = GemmEpilogueOperands::<P, E> {
        product: Rows::new(product_ptr, stride),
        bias: bias_ptr,
        residual: residual_ptr.map(|ptr| Rows::new(ptr, stride)),
        out: Rows::new(out, stride),
    };
    device.run(GemmEpilogue { max_rows: MAX_ROWS, width }.launch(rows_ptr, &operands), seed);
    let want: Vec<f64> = (0..MAX_ROWS * stride)
        .map(|at| {
            let (row, column) = (at / stride, at % stride);
            if row >= num_rows || column >= width {
                return f64::from(before[at]);
            }
            let bias = if with_bias { f64::from(bias[column]) } else { 0.0 };
            let residual = if with_residual { f64::from(residual[at]) } else { 0.0 };
            f64::from(product[at]) + bias + residual
        })
        .collect();
    assert_stored::<E>(&format!("{case:?}"), &device.read(out, want.len()), &want, 2e-7);
}

/// Every form of a matrix product `P` and outputs `E`, the bare conversion too.
fn check_all<P: Stored, E: Stored + OutputOf<P>>(places: &[Place]) {
    for width in WIDTHS {
        for (pad, with_bias, with_residual) in
            [(0, true, true), (8, true, false), (3, false, true), (5, false, false)]
        {
            for &place in places {
                if place == Place::OfResidual && !with_residual {
                    continue;
                }
                let case = Case { num_rows: 3, width, pad, with_bias, with_residual, place };
                SEEDS.for_each(|seed| check::<P, E>(case, seed));
            }
        }
    }
}

#[test]
fn products_in_f32_match_oracle() {
    check_all::<f32, f32>(&[Place::Own, Place::OfProduct, Place::OfResidual]);
    check_all::<f32, f16>(&[Place::Own]);
    check_all::<f32, bf16>(&[Place::Own]);
}

#[test]
fn products_in_f16_match_oracle() {
    check_all::<f16, f32>(&[Place::Own, Place::OfResidual]);
    check_all::<f16, f16>(&[Place::Own, Place::OfProduct]);
}

#[test]
fn no_rows_write_nothing() {
    let case = Case {
        num_rows: 0,
        width: 16,
        pad: 0,
        with_bias: true,
        with_residual: false,
        place: Place::Own,
    };
    check::<f16, f32>(case, 0);
    check::<f32, bf16>(Case { num_rows: MAX_ROWS, ..case }, 0);
}

/// The sum is rounded, not its terms: terms beyond f16, and half a unit off in it.
#[test]
fn a_sum_is_rounded_once() {
    let mut device = Device::default();
    let num_rows = device.u32s("num_rows", &[1]);
    let product = [70_000.0, 2049.0, -70_000.0, f32::NAN, f32::INFINITY];
    let bias = [-60_000.0, 0.25, -1.0, 1.0, 1.0];
    let operands = GemmEpilogueOperands::<f32, f16> {
        product: Rows::new(device.f32s("product", &product), 5),
        bias: Some(device.f32s("bias", &bias)),
        residual: None,
        out: Rows::new(device.poisoned("out", 5), 5),
    };
    device.run(GemmEpilogue { max_rows: 1, width: 5 }.launch(num_rows, &operands), 0);
    let got = device.read(operands.out.ptr, 5);
    assert_eq!(got[..3], [10_000.0, 2050.0, f32::NEG_INFINITY]);
    assert!(got[3].is_nan() && got[4] == f32::INFINITY);
}
