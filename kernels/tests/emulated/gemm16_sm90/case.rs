//! A linear layer of 16-bit operands: its operands on the emulator, and what comes out.

use crate::device::{Stored, emulate_overlapping, f16_accumulation_bound, random};
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::f16;
use kernels::Rows;
use kernels::gemm::{Accumulate, Input16, Linear16Operands, Out16};
use kernels::tile::element::Operand16;
use simt::{Init, Memory};

/// The bytes of rows past the last one, and of outputs before a launch.
const STALE: u8 = 0xff;

/// A linear layer in a launch for `max_rows`.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub num_rows: usize,
    pub max_rows: usize,
    pub n: usize,
    pub k: usize,
    /// Row strides of the operands, less their widths; a multiple of 8.
    pub pad: usize,
    /// The same of outputs and residual.
    pub out_pad: usize,
    pub with_bias: bool,
    pub out: Out,
    pub num_sms: usize,
    /// The accumulators of the kernel under test.
    pub accumulate: Accumulate,
}

/// A layer of one row with bias, residual and padded strides.
pub const ONE_ROW: Case = Case {
    num_rows: 1,
    max_rows: 1,
    n: 17,
    k: 104,
    pad: 8,
    out_pad: 3,
    with_bias: true,
    out: Out::InPlace,
    num_sms: 2,
    accumulate: Accumulate::F32,
};

/// What the outputs are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Out {
    Half,
    F32,
    /// f32 with a residual.
    Residual,
    /// f32 that overwrites the residual.
    InPlace,
}

/// Elements of an operand, their bytes, and their values in f64.
struct Matrix {
    bytes: Vec<u8>,
    values: Vec<f64>,
}

/// `rows` rows at a stride, of which the first `num_rows` exist.
fn operand<E: Operand16 + Stored>(
    rows: usize,
    num_rows: usize,
    stride: usize,
    salt: u64,
) -> Matrix {
    let elements = random(rows * stride, salt).into_iter().map(E::of);
    let values: Vec<f64> = elements.map(|element| f64::from(element.value())).collect();
    let mut bytes: Vec<u8> = values.iter().flat_map(|&value| E::of(value as f32).bytes()).collect();
    bytes[2 * num_rows * stride..].fill(STALE);
    Matrix { bytes, values }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Operands of a case in the emulator's memory, and what its outputs should be.
pub struct Setup<E> {
    memory: Memory,
    /// The buffers that a launch before may have written.
    activations: Vec<u64>,
    num_rows: DevicePtr<u32>,
    operands: Linear16Operands<E>,
    /// By row and column.
    want: Vec<Want>,
}

/// What an output should be.
struct Want {
    value: f64,
    /// Largest error before the output is rounded, by the type of the accumulator.
    bound_f32: f64,
    bound_f16: f64,
}

impl Want {
    fn bound(&self, accumulate: Accumulate) -> f64 {
        match accumulate {
            Accumulate::F32 => self.bound_f32,
            Accumulate::F16 => self.bound_f16 + self.bound_f32,
        }
    }
}

impl<E: Operand16 + Stored> Setup<E> {
    pub fn new(case: &Case, salt: u64) -> Self {
        let &Case { num_rows, max_rows, n, k, pad, out_pad, with_bias, out, .. } = case;
        let (stride, out_stride) = (k + pad, n + out_pad);
        let x = operand::<E>(max_rows, num_rows, stride, salt + 1);
        let weight = operand::<E>(n, n, stride, salt + 2);
        // One more than that of the output, so that at most one of them is even.
        let residual_stride = if out == Out::Residual { out_stride + 1 } else { out_stride };
        let (bias, residual) = (random(n, salt + 3), random(max_rows * residual_stride, salt + 4));
        let with_residual = matches!(out, Out::Residual | Out::InPlace);
        let want = (0..num_rows * n).map(|at| {
            let (row, column) = (at / n, at % n);
            let a = &x.values[row * stride..][..k];
            let b = &weight.values[column * stride..][..k];
            let bias = if with_bias { f64::from(bias[column]) } else { 0.0 };
            let at = row * residual_stride + column;
            let residual = if with_residual { f64::from(residual[at]) } else { 0.0 };
            let products: Vec<f64> = a.iter().zip(b).map(|(a, b)| a * b).collect();
            let magnitude: f64 = products.iter().map(|product| product.abs()).sum();
            Want {
                value: products.iter().sum::<f64>() + bias + residual,
                bound_f32: 1e-6 * (magnitude + bias.abs() + residual.abs()),
                bound_f16: f16_accumulation_bound(&products),
            }
        });
        let want = want.collect();
        let mut memory = Memory::new();
        let mut rows = |name: &str, bytes: &[u8]| memory.alloc(name, Init::Bytes(bytes));
        let x = Rows::new(DevicePtr::new(rows("x", &x.bytes)), stride);
        let weight = Rows::new(DevicePtr::new(rows("weight", &weight.bytes)), stride);
        let bias = with_bias.then(|| DevicePtr::new(rows("bias", &f32s(&bias))));
        let out_bytes = max_rows * out_stride * if out == Out::Half { 2 } else { 4 };
        let out_ptr = rows("out", &vec![STALE; out_bytes]);
        let num_rows = DevicePtr::new(rows("num_rows", &(num_rows as u32).to_le_bytes()));
        // Rows of the residual past the last one are unwritten.
        let residual = with_residual.then(|| {
            let address = memory.alloc("residual", Init::Poisoned(size_of_val(&residual[..])));
            let written = f32s(&residual[..case.num_rows * residual_stride]);
            memory.write(address, &written).expect("the residual");
            Rows::new(DevicePtr::new(address), residual_stride)
        });
        let out = match (out, residual) {
            (Out::Half, _) => Out16::Half(Rows::new(DevicePtr::new(out_ptr), out_stride)),
            (Out::InPlace, Some(residual)) => Out16::F32(residual),
            _ => Out16::F32(Rows::new(DevicePtr::new(out_ptr), out_stride)),
        };
        // No launch writes the number of rows.
        let activations = [x.ptr.0, out_ptr].into_iter();
        let activations = activations.chain(residual.map(|residual| residual.ptr.0)).collect();
        let operands = Linear16Operands { x: Input16::Half(x), weight, bias, residual, out };
        Setup { memory, activations, num_rows, operands, want }
    }

    /// Runs the launch that `launch` makes; gives its symbol, and its bank conflicts.
    pub fn run(
        &mut self,
        seed: u64,
        launch: impl FnOnce(
            DevicePtr<u32>,
            &Linear16Operands<E>,
            &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
        ) -> Result<Option<Launch>, LaunchError>,
    ) -> (&'static str, u64) {
        let mut maps = |spec: &TensorMapSpec| {
            spec.check().expect("a tensor map");
            spec.emulated()
        };
        let launch = launch(self.num_rows, &self.operands, &mut maps);
        let launch = launch.expect("a right shape").expect("something to do");
        let report = emulate_overlapping(&launch, &mut self.memory, &self.activations, seed)
            .unwrap_or_else(|fault| panic!("{}, seed {seed}: {fault}", launch.symbol));
        (launch.symbol, report.bank_conflicts)
    }

    /// The outputs of all rows, `None` for those that nothing has written.
    pub fn outputs(&self, case: &Case) -> Vec<Option<f64>> {
        let (address, stride, size) = match self.operands.out {
            Out16::Half(out) => (out.ptr.0, out.row_stride, 2),
            Out16::F32(out) => (out.ptr.0, out.row_stride, 4),
        };
        let mut bytes = vec![0; case.max_rows * stride * size];
        self.memory.read_or_poison(address, &mut bytes).expect("the output");
        let element = |bytes: &[u8]| match *bytes {
            [STALE, ..] if bytes.iter().all(|&byte| byte == STALE) => None,
            [lo, hi] => Some(E::of_bytes(&[lo, hi]).value().into()),
            _ => Some(f32::from_le_bytes(bytes.try_into().expect("four bytes")).into()),
        };
        bytes.chunks(size).map(element).collect()
    }
}

/// Fails where an output is wrong, or one is written that does not exist.
pub fn assert_right<E: Operand16 + Stored>(case: &Case, name: &str, setup: &Setup<E>) {
    let stride = case.n + case.out_pad;
    // Half a unit in the last place of the stored output: 11 or 8 bits.
    let unit = match case.out {
        Out::Half if E::of(1.001).value() == 1.0 => 2f64.powi(-8),
        Out::Half => 2f64.powi(-11),
        _ => 0.0,
    };
    let mut told_from_zero = 0;
    for (at, got) in setup.outputs(case).into_iter().enumerate() {
        let (row, column) = (at / stride, at % stride);
        if row >= case.num_rows || column >= case.n {
            let is_left = case.out == Out::InPlace || got.is_none();
            assert!(is_left, "{name} of {case:?} has written [{row}, {column}]");
            continue;
        }
        let want = &setup.want[row * case.n + column];
        let bound = want.bound(case.accumulate) + unit * want.value.abs() + 1e-7;
        let want = want.value;
        let is_close = got.is_some_and(|got| (got - want).abs() <= bound);
        assert!(is_close, "{name} of {case:?}: [{row}, {column}] is {got:?}, not {want}");
        told_from_zero += usize::from(want.abs() > bound);
    }
    // The bounds are of use: a kernel that writes zeros passes at few outputs.
    let num_outputs = case.num_rows * case.n;
    assert!(told_from_zero >= num_outputs * 9 / 10, "{told_from_zero} of {num_outputs}, {case:?}");
}

/// Columns of a tile in the launch of a layer of `n` columns: rows of the weight in a TMA box.
pub fn tile_columns(
    n: usize,
    launch: impl FnOnce(
        &Linear16Operands<f16>,
        &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError>,
) -> u32 {
    let rows = |address, stride| Rows::new(DevicePtr::<f16>::new(address), stride);
    let (x, weight, out) = (Input16::Half(rows(16, 64)), rows(32, 64), Out16::Half(rows(48, n)));
    let operands = Linear16Operands { x, weight, bias: None, residual: None, out };
    let mut columns = 0;
    let launch = launch(&operands, &mut |spec: &TensorMapSpec| {
        if spec.dims[1] == n as u64 {
            columns = spec.box_dims[1];
        }
        spec.emulated()
    });
    launch.expect("a right shape").expect("something to do");
    columns
}
