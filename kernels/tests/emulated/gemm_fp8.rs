//! Linear layers of 8-bit floats, by every tile of their kernels.

use crate::device::{Stored, emulate_overlapping, random};
use cuda_std::E4m3;
use cuda_std::launch::DevicePtr;
use cuda_std::tensor_map::TensorMapSpec;
use half::f16;
use kernels::Rows;
use kernels::gemm::config::TileConfig;
use kernels::gemm::{Fp8Accumulate, LinearFp8, LinearFp8Operands, Out16, WeightScales};
use simt::{Init, Memory};

/// Rows and columns of a block of weights with one scale.
const SCALE_BLOCK: usize = 128;

/// The code of NaN: in operands past the last row, and in outputs before a launch.
const STALE: u8 = 0xff;

/// A linear layer in a launch for `max_rows`.
#[derive(Clone, Copy, Debug)]
struct Case {
    num_rows: usize,
    max_rows: usize,
    n: usize,
    k: usize,
    /// Row strides of the operands, less their widths: a multiple of 16.
    pad: usize,
    /// The same of the outputs.
    out_pad: usize,
    with_bias: bool,
    out: Out,
    /// Whether a weight scale is of a block.
    blocks: bool,
    values: Values,
    num_sms: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Out {
    Half,
    F32,
    /// f32 with a residual.
    Residual,
}

/// What the operands are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    Random,
    /// A column of k is 100 times as large.
    Outlier,
    /// Every third row of x is zeros, with a scale of zero.
    ZeroRows,
    /// The largest codes of both signs.
    Saturated,
    /// One element of row 0 of x is NaN.
    Nan,
}

const WHOLE: Case = Case {
    num_rows: 128,
    max_rows: 128,
    n: 128,
    k: 256,
    pad: 0,
    out_pad: 0,
    with_bias: false,
    out: Out::Half,
    blocks: false,
    values: Values::Random,
    num_sms: 132,
};

/// Codes `[rows, stride]`, and the scales of their rows.
struct Quantised {
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Quantised {
    fn new(case: &Case, rows: usize, salt: u64) -> Self {
        let (k, stride) = (case.k, case.k + case.pad);
        let mut values = random(rows * stride, salt);
        let mut scales = Vec::new();
        for (row, values) in values.chunks_mut(stride).enumerate() {
            let is_zero = case.values == Values::ZeroRows && salt.is_multiple_of(2);
            for (column, value) in values.iter_mut().enumerate() {
                match case.values {
                    Values::Outlier if column == k / 3 => *value *= 100.0,
                    Values::Saturated => *value = value.signum(),
                    _ if is_zero && row.is_multiple_of(3) => *value = 0.0,
                    _ => {}
                }
            }
            let largest = values[..k].iter().fold(0f32, |most, value| most.max(value.abs()));
            scales.push(largest / 448.0);
            values.iter_mut().for_each(|value| *value *= 448.0 / largest.max(1e-30));
        }
        let codes = values.iter().map(|&value| E4m3::from_f32(value).to_bits()).collect();
        Quantised { codes, scales }
    }

    fn value(&self, stride: usize, row: usize, column: usize) -> f64 {
        f64::from(E4m3::from_bits(self.codes[row * stride + column]).to_f32())
    }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Runs a case by a tile, and fails where an output is wrong, or one is written that does not exist.
fn check(case: &Case, accumulate: Fp8Accumulate, tile: &TileConfig, seed: u64) {
    let &Case { num_rows, max_rows, n, k, pad, out_pad, .. } = case;
    let (stride, out_stride) = (k + pad, n + out_pad);
    // Even salts are of x.
    let (mut x, weight) = (Quantised::new(case, max_rows, 2), Quantised::new(case, n, 3));
    x.codes[num_rows * stride..].fill(STALE);
    x.scales[num_rows..].fill(f32::NAN);
    if case.values == Values::Nan {
        x.codes[k - 1] = 0x7f;
    }
    let [blocks_n, blocks_k] = [n, k].map(|size| size.div_ceil(SCALE_BLOCK));
    let block_scales: Vec<f32> = random(blocks_n * blocks_k, 4);
    let (bias, residual) = (random(n, 5), random(max_rows * out_stride, 6));

    let want = |row: usize, column: usize| -> (f64, f64) {
        let (mut value, mut magnitude) = (0.0, 0.0);
        for at in 0..k {
            let scale = match case.blocks {
                true => block_scales[column / SCALE_BLOCK * blocks_k + at / SCALE_BLOCK],
                false => weight.scales[column],
            };
            let scale = f64::from(x.scales[row]) * f64::from(scale);
            let product = scale * x.value(stride, row, at) * weight.value(stride, column, at);
            value += product;
            magnitude += product.abs();
        }
        let bias = if case.with_bias { f64::from(bias[column]) } else { 0.0 };
        let at = row * out_stride + column;
        let residual = if case.out == Out::Residual { f64::from(residual[at]) } else { 0.0 };
        (value + bias + residual, magnitude + bias.abs() + residual.abs())
    };

    let mut memory = Memory::new();
    let mut alloc = |name: &str, bytes: &[u8]| memory.alloc(name, Init::Bytes(bytes));
    let rows = |address| Rows::<E4m3>::new(DevicePtr::new(address), stride);
    let (x_rows, weight_rows) = (rows(alloc("x", &x.codes)), rows(alloc("weight", &weight.codes)));
    let x_scales = DevicePtr::new(alloc("x_scales", &f32s(&x.scales)));
    let weight_scales = match case.blocks {
        true => WeightScales::Blocks(DevicePtr::new(alloc("scales", &f32s(&block_scales)))),
        false => WeightScales::Rows(DevicePtr::new(alloc("scales", &f32s(&weight.scales)))),
    };
    let bias = case.with_bias.then(|| DevicePtr::new(alloc("bias", &f32s(&bias))));
    let residual = (case.out == Out::Residual)
        .then(|| Rows::new(DevicePtr::new(alloc("residual", &f32s(&residual))), out_stride));
    let size = if case.out == Out::Half { 2 } else { 4 };
    let out_address = alloc("out", &vec![STALE; max_rows * out_stride * size]);
    let num_rows_ptr = DevicePtr::new(alloc("num_rows", &(num_rows as u32).to_le_bytes()));
    let out = match case.out {
        Out::Half => Out16::<f16>::Half(Rows::new(DevicePtr::new(out_address), out_stride)),
        _ => Out16::F32(Rows::new(DevicePtr::new(out_address), out_stride)),
    };
    let activations: Vec<u64> = [x_rows.ptr.0, x_scales.0, out_address]
        .into_iter()
        .chain(residual.map(|residual| residual.ptr.0))
        .collect();
    let operands = LinearFp8Operands {
        x: x_rows,
        x_scales,
        weight: weight_rows,
        weight_scales,
        bias,
        residual,
        out,
    };
    let mut maps = |spec: &TensorMapSpec| {
        spec.check().expect("a tensor map");
        spec.emulated()
    };
    let linear = LinearFp8 { max_rows, n, k, accumulate };
    let launch = linear.launch_in(tile, case.num_sms, num_rows_ptr, &operands, &mut maps);
    let launch = launch.expect("a right shape").expect("something to do");
    emulate_overlapping(&launch, &mut memory, &activations, seed)
        .unwrap_or_else(|fault| panic!("{}, seed {seed}, {case:?}: {fault}", launch.symbol));

    let mut bytes = vec![0; max_rows * out_stride * size];
    memory.read_or_poison(out_address, &mut bytes).expect("the output");
    for (at, bytes) in bytes.chunks(size).enumerate() {
        let (row, column) = (at / out_stride, at % out_stride);
        let at = format!("{} of {case:?}: [{row}, {column}]", launch.symbol);
        if row >= num_rows || column >= n {
            assert!(bytes.iter().all(|&byte| byte == STALE), "{at} is written");
            continue;
        }
        let got = match *bytes {
            [lo, hi] => f64::from(f16::from_le_bytes([lo, hi])),
            _ => f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes"))),
        };
        let (want, magnitude) = want(row, column);
        let rounding = if size == 2 { <f16 as Stored>::ROUNDING * want.abs() } else { 0.0 };
        let is_right = (got - want).abs() <= 1e-6 * magnitude + rounding + 1e-7;
        assert!(is_right || got.is_nan() && want.is_nan(), "{at} is {got}, not {want}");
    }
}

/// Each accumulation, with each of its tiles.
fn tiles() -> impl Iterator<Item = (Fp8Accumulate, &'static TileConfig)> {
    [Fp8Accumulate::TwoLevel, Fp8Accumulate::Fast].into_iter().flat_map(|accumulate| {
        LinearFp8::tiles(accumulate).iter().map(move |tile| (accumulate, tile))
    })
}

/// Shapes around the edges of a tile, with every kind of output, each in an order of its own.
#[test]
fn tiles_match_oracle() {
    for (accumulate, tile) in tiles() {
        let [block_m, block_n] = tile.block;
        let one = Case { num_rows: block_m, max_rows: block_m, n: block_n, k: 128, ..WHOLE };
        check(&one, accumulate, tile, 0);
        let more = Case {
            num_rows: block_m + 1,
            max_rows: block_m + 9,
            n: block_n + 1,
            k: 144,
            pad: 16,
            out_pad: 3,
            with_bias: true,
            out: Out::Residual,
            ..WHOLE
        };
        check(&more, accumulate, tile, 1);
        let less = Case {
            num_rows: block_m - 1,
            max_rows: block_m,
            n: block_n - 8,
            k: 112,
            with_bias: true,
            ..WHOLE
        };
        check(&less, accumulate, tile, 2);
        check(&Case { num_rows: 17, n: block_n - 1, out: Out::F32, ..less }, accumulate, tile, 3);
        check(&Case { num_rows: 1, n: 8, k: 16, ..less }, accumulate, tile, 4);
    }
}

/// Scales of blocks of weights, at the edges of blocks and of tiles.
#[test]
fn scales_of_blocks_match_oracle() {
    for tile in LinearFp8::tiles(Fp8Accumulate::TwoLevel) {
        let [block_m, block_n] = tile.block;
        let case = Case { num_rows: block_m, max_rows: block_m, blocks: true, ..WHOLE };
        for (n, k) in [(block_n + 130, 400), (2 * block_n, 128), (block_n - 1, 272), (129, 16)] {
            let out = if n.is_multiple_of(2) { Out::Half } else { Out::Residual };
            check(&Case { n, k, out, ..case }, Fp8Accumulate::TwoLevel, tile, n as u64);
        }
    }
}

#[test]
fn unusual_values_match_oracle() {
    for (accumulate, tile) in tiles() {
        for values in [Values::Outlier, Values::ZeroRows, Values::Saturated, Values::Nan] {
            let case = Case { num_rows: 30, max_rows: 32, n: 72, k: 160, values, ..WHOLE };
            check(&case, accumulate, tile, 1);
            let out = Out::F32;
            check(&Case { out, with_bias: true, ..case }, accumulate, tile, 2);
        }
    }
}

/// Blocks with several tiles each: stages and staging are reused, and the last tiles are ragged.
#[test]
fn persistent_blocks_match_oracle() {
    for (seed, (accumulate, tile)) in tiles().enumerate() {
        let [block_m, block_n] = tile.block;
        let [cluster_m, cluster_n] = tile.cluster;
        let case = Case {
            num_rows: cluster_m * block_m + 5,
            max_rows: 2 * cluster_m * block_m,
            n: cluster_n * block_n + 8,
            k: [400, 656, 144][seed % 3],
            with_bias: true,
            blocks: seed == 1 && accumulate == Fp8Accumulate::TwoLevel,
            num_sms: cluster_m * cluster_n,
            ..WHOLE
        };
        check(&case, accumulate, tile, seed as u64);
    }
}

/// A launch without rows stores nothing.
#[test]
fn no_rows_store_nothing() {
    for (accumulate, tile) in tiles() {
        check(&Case { num_rows: 0, with_bias: true, ..WHOLE }, accumulate, tile, 1);
        check(&Case { num_rows: 0, out: Out::F32, ..WHOLE }, accumulate, tile, 1);
    }
}
