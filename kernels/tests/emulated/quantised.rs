//! Linear layers whose weight stays quantised, and its dense copy.

mod blocks;
mod prompt;

use crate::device::{Device, SEEDS, Stored, random};
use blocks::{elements, in_blocks_of, pack, random_rows};
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::quantised::dequantise::Dequantise;
use kernels::gemm::quantised::gather::GatherQuantised;
use kernels::gemm::quantised::{BlockFormat, QuantisedLinear, QuantisedOperands};
use kernels::gemm::{Gpu, Input16, Out16, Target};
use kernels::rms_norm::RmsNorm;

const HOPPER: Gpu = Gpu { num_sms: 3, ..Gpu::HOPPER };
const SM80: Gpu = Gpu { target: Target::Sm80, num_sms: 2, overlaps: false };

/// Whether the outputs are in f32 with a residual, in f16, or gated.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Out {
    Residual,
    Half,
    Gated,
}

/// A layer of `num_rows` rows in a launch for `max_rows`.
#[derive(Clone, Copy, Debug)]
struct Case {
    format: BlockFormat,
    num_rows: usize,
    max_rows: usize,
    n: usize,
    k: usize,
    with_bias: bool,
    out: Out,
    gpu: Gpu,
}

const CASE: Case = Case {
    format: BlockFormat::Q4_K,
    num_rows: 3,
    max_rows: 8,
    n: 40,
    k: 512,
    with_bias: true,
    out: Out::Residual,
    gpu: HOPPER,
};

/// The operands of a case: rows of x are the same for every count of rows.
struct Operands {
    x: Vec<f16>,
    stored: Vec<u8>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

impl Case {
    /// Elements that rows of x and of the output have between them.
    const PAD: usize = 8;

    fn weight_rows(&self) -> usize {
        if self.out == Out::Gated { 2 * self.n } else { self.n }
    }

    fn operands(&self) -> Operands {
        self.operands_of(f16::from_f32, |factor| 0.001 * factor)
    }

    fn operands_of(&self, x: impl Fn(f32) -> f16, factor: impl Fn(f32) -> f32) -> Operands {
        let &Case { n, k, .. } = self;
        Operands {
            x: random(self.num_rows.max(16) * k, 1).into_iter().map(x).collect(),
            stored: random_rows(self.format, [self.weight_rows(), k], 2, factor),
            bias: random(self.weight_rows(), 3),
            residual: random(self.num_rows.max(16) * n, 4),
        }
    }

    fn oracle(&self, operands: &Operands) -> Vec<f64> {
        let &Case { num_rows, n, k, with_bias, out, .. } = self;
        let weight = elements(self.format, &operands.stored);
        let product = |row: usize, column: usize| {
            let bias = if with_bias { f64::from(operands.bias[column]) } else { 0.0 };
            let terms = (0..k).map(|i| operands.x[row * k + i].to_f64() * weight[column * k + i]);
            terms.sum::<f64>() + bias
        };
        let output = |at: usize| {
            let (row, column) = (at / n, at % n);
            match out {
                Out::Residual => product(row, column) + f64::from(operands.residual[at]),
                Out::Half => product(row, column),
                Out::Gated => {
                    let [gate, up] = [column, n + column].map(|column| product(row, column));
                    gate / (1.0 + (-gate).exp()) * up
                }
            }
        };
        (0..num_rows * n).map(output).collect()
    }

    /// The outputs, on the emulator.
    fn run(&self, operands: &Operands, seed: u64) -> Vec<f32> {
        let &Case { format, max_rows, n, k, gpu, .. } = self;
        let linear = QuantisedLinear { max_rows, n, k, format, gated: self.out == Out::Gated };
        self.run_with(operands, seed, |num_rows, operands| linear.launch(gpu, num_rows, operands))
    }

    /// [`Case::run`] by another launch.
    fn run_with(
        &self,
        operands: &Operands,
        seed: u64,
        launch: impl FnOnce(DevicePtr<u32>, &QuantisedOperands) -> Result<Option<Launch>, LaunchError>,
    ) -> Vec<f32> {
        let &Case { format, num_rows, max_rows, n, k, with_bias, out, .. } = self;
        let mut device = Device::default();
        let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
        let stride = k + Self::PAD;
        let mut x = vec![0.0; num_rows * stride];
        for row in 0..num_rows {
            for i in 0..k {
                x[row * stride + i] = operands.x[row * k + i].to_f32();
            }
        }
        let x = Rows::new(device.partly_written("x", &x, max_rows * stride), stride);
        let parts = operands.stored.chunks(operands.stored.len() / self.weight_rows() * n);
        let packed: Vec<u8> = parts.flat_map(|part| pack(format, [n, k], part)).collect();
        let weight = device.bytes("weight", &packed);
        let bias = with_bias.then(|| device.f32s("bias", &operands.bias));
        let out_stride = n + Self::PAD;
        let mut residual = None;
        let out = match out {
            Out::Residual => {
                let rows = operands.residual[..num_rows * n].chunks(n);
                let values: Vec<f32> =
                    rows.flat_map(|row| [row, &[f32::NAN; Self::PAD]].concat()).collect();
                let rows = Rows::new(device.f32s("residual", &values), out_stride);
                residual = Some(rows);
                Out16::F32(rows)
            }
            _ => Out16::Half(Rows::new(device.poisoned("out", num_rows * out_stride), out_stride)),
        };
        let x = Input16::Half(x);
        let operands = QuantisedOperands { x, weight, bias, residual, out };
        device.run(launch(num_rows_ptr, &operands), seed);
        let all = match out {
            Out16::F32(rows) => device.read_f32(rows.ptr, num_rows * out_stride),
            Out16::Half(rows) => device.read(rows.ptr, num_rows * out_stride),
        };
        assert!(all.chunks(out_stride).all(|row| row[n..].iter().all(|pad| pad.is_nan())));
        all.chunks(out_stride).flat_map(|row| row[..n].to_vec()).collect()
    }

    fn check(&self, seed: u64) {
        self.check_with(&self.operands(), seed);
    }

    /// An element may be off by a share of the largest one of its row.
    fn check_with(&self, operands: &Operands, seed: u64) {
        let bound = match self.out {
            Out::Residual => 2e-5,
            Out::Half => 1e-3,
            // Gate, up and their product are rounded.
            Out::Gated => 3e-3,
        };
        self.check_outputs(&self.run(operands, seed), operands, bound);
    }

    fn check_outputs(&self, got: &[f32], operands: &Operands, bound: f64) {
        let want = self.oracle(operands);
        assert_eq!(got.len(), want.len());
        for (got, want) in got.chunks(self.n).zip(want.chunks(self.n)) {
            let largest = want.iter().fold(0.0, |largest, want| f64::max(largest, want.abs()));
            for (column, (&got, &want)) in got.iter().zip(want).enumerate() {
                let off = (f64::from(got) - want).abs();
                assert!(off <= bound * largest, "{self:?}: column {column} is {got}, not {want}");
            }
        }
    }
}

#[test]
fn every_format_and_count_of_rows_matches_oracle() {
    for (seed, format) in BlockFormat::tiled().enumerate() {
        for (at, num_rows) in [1_usize, 2, 3, 8, 15, 16].into_iter().enumerate() {
            let max_rows = [num_rows, num_rows.next_multiple_of(8)][(seed + at) % 2];
            let out = [Out::Residual, Out::Half, Out::Gated][(seed + at) % 3];
            let gpu = [HOPPER, SM80][at % 2];
            let n = [17, 40, 16][at % 3];
            let with_bias = at % 2 == 0;
            let case = Case { format, num_rows, max_rows, n, with_bias, out, gpu, ..CASE };
            case.check(seed as u64);
        }
    }
}

#[test]
fn every_length_of_k_matches_oracle() {
    // Around a group, a unit, a tile and the tiles of four warps.
    let lengths = [32, 64, 96, 256, 288, 352, 896, 1024, 1056];
    for (seed, (k, format)) in lengths.into_iter().zip(in_blocks_of(32).cycle()).enumerate() {
        Case { format, k, n: 24, ..CASE }.check(seed as u64);
    }
    let lengths = [256, 1280, 2304, 4096];
    for (seed, (format, k)) in in_blocks_of(256).zip(lengths.into_iter().cycle()).enumerate() {
        Case { format, k, n: 18, ..CASE }.check(seed as u64);
    }
}

#[test]
fn x_that_does_not_fit_into_shared_memory_is_copied_in_chunks() {
    let case = Case { num_rows: 15, max_rows: 16, n: 70, k: 4096, gpu: SM80, ..CASE };
    case.check(1);
    Case { format: BlockFormat::Q5_0, n: 33, k: 2912, ..case }.check(2);
}

#[test]
fn rows_of_tiles_beyond_shared_memory_are_computed_in_batches() {
    let case = Case { format: BlockFormat::Q6_K, num_rows: 15, max_rows: 16, n: 250, ..CASE };
    case.check(1);
    // More than one tile along k a warp.
    Case { n: 140, k: 4352, ..case }.check(2);
    Case { n: 118, k: 2304, out: Out::Gated, ..case }.check(3);
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for format in [BlockFormat::Q2_K, BlockFormat::Q4_K, BlockFormat::Q6_K, BlockFormat::Q5_0] {
        let alone = Case { format, num_rows: 1, max_rows: 1, k: 1280, ..CASE };
        let operands = alone.operands();
        let bits = |case: &Case| -> Vec<u32> {
            case.run(&operands, 3)[..case.n].iter().map(|value| value.to_bits()).collect()
        };
        let want = bits(&alone);
        for (num_rows, max_rows) in [(1, 8), (3, 3), (8, 8), (9, 16), (16, 16)] {
            assert_eq!(bits(&Case { num_rows, max_rows, ..alone }), want, "{num_rows} {format:?}");
        }
    }
}

#[test]
fn the_order_of_threads_changes_no_bit() {
    let case = Case { num_rows: 5, k: 1280, ..CASE };
    let operands = case.operands();
    let runs: Vec<Vec<f32>> = SEEDS.map(|seed| case.run(&operands, seed)).collect();
    assert!(runs.iter().all(|run| *run == runs[0]));
}

#[test]
fn no_rows_are_computed_without_rows() {
    let case = Case { num_rows: 0, ..CASE };
    assert!(case.run(&case.operands(), 0).is_empty());
}

#[test]
fn large_and_small_numbers_match_oracle() {
    for (seed, format) in BlockFormat::tiled().enumerate() {
        let case = Case { format, with_bias: false, ..CASE };
        // Activations near the end of f16, whose sums are beyond it.
        let large = |x: f32| f16::from_f32(60_000.0 * (0.9 + 0.1 * x.abs()));
        case.check_with(&case.operands_of(large, |factor| factor), seed as u64);
        // Subnormal ones, and factors that are.
        let case = Case { out: Out::Half, ..case };
        let factor = |factor: f32| 1e-5 * factor;
        case.check_with(&case.operands_of(|x| f16::from_f32(1000.0 * x), factor), seed as u64);
        let small = |x: f32| f16::from_f32(1e-4 * x);
        case.check_with(&case.operands_of(small, |factor| 100.0 * factor), seed as u64);
        // Blocks of zeros.
        let zeros = case.operands_of(f16::from_f32, |_| 0.0);
        assert!(case.run(&zeros, 0).iter().all(|&out| out == 0.0));
    }
}

/// Rows of x from the row count on are unwritten.
#[test]
fn a_fused_norm_has_the_bits_of_the_separate_one() {
    for (seed, format) in BlockFormat::tiled().enumerate() {
        for (gpu, num_rows, k) in [(HOPPER, 1, 352_usize), (SM80, 3, 896), (HOPPER, 7, 2208)] {
            let k = k.next_multiple_of(format.block_elems());
            let (max_rows, n, stride) = (num_rows + 1, 40, k + 4);
            let linear = QuantisedLinear { max_rows, n, k, format, gated: false };
            assert!(linear.fuses_norm());
            let mut device = Device::default();
            let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
            let x = device.partly_written("x", &random(num_rows * stride, 1), max_rows * stride);
            let (x, eps) = (Rows::<f32>::new(x, stride), 1e-5);
            let norm_weight = device.f32s("norm weight", &random(k, 2));
            let normed = Rows::new(device.poisoned::<f16>("normed", max_rows * k), k);
            let norm = RmsNorm { max_rows, num_groups: 1, group_size: k, eps };
            device.run(norm.launch(num_rows_ptr, x, norm_weight, normed), 1);
            let stored = random_rows(format, [n, k], 3, |factor| 0.01 * factor);
            let weight = device.bytes("weight", &pack(format, [n, k], &stored));
            let mut run = |x, name: &str| {
                let out = Rows::new(device.poisoned::<f32>(name, num_rows * n), n);
                let (bias, residual, out_f32) = (None, None, Out16::F32(out));
                let operands = QuantisedOperands { x, weight, bias, residual, out: out_f32 };
                device.run(linear.launch(gpu, num_rows_ptr, &operands), seed as u64);
                device.read_f32(out.ptr, num_rows * n)
            };
            let separate = run(Input16::Half(normed), "separate");
            let fused = run(Input16::Normed { x, weight: norm_weight, eps }, "fused");
            assert!(separate.iter().all(|out| out.is_finite()));
            assert_eq!(separate, fused, "{format:?}: {num_rows} rows of {k}");
        }
    }
}

#[test]
fn a_dense_copy_has_the_rounded_elements() {
    fn check<E: Stored + kernels::element::Half>(format: BlockFormat, n: usize, k: usize) {
        let stored = random_rows(format, [n, k], 7, |factor| 0.1 * factor);
        let mut device = Device::default();
        let weight = device.bytes("weight", &pack(format, [n, k], &stored));
        let stride = k + 4;
        let out = Rows::new(device.poisoned::<E>("out", n * stride), stride);
        device.run(Dequantise { n, k, format }.launch(weight, out), 1);
        let got = device.read(out.ptr, n * stride);
        for (row, (got, want)) in
            got.chunks(stride).zip(elements(format, &stored).chunks(k)).enumerate()
        {
            for (column, (&got, &want)) in got.iter().zip(want).enumerate() {
                let off = (f64::from(got) - want).abs();
                let bound = E::ROUNDING * want.abs() + 1e-5;
                assert!(off <= bound, "{format:?}: [{row}, {column}] is {got}, not {want}");
            }
            assert!(got[k..].iter().all(|pad| pad.is_nan()));
        }
    }
    for format in BlockFormat::tiled() {
        let k = if format.block_elems() == 32 { 352 } else { 512 };
        check::<f16>(format, 17, k);
        check::<bf16>(format, 32, 2304);
    }
}

#[test]
fn gathered_rows_are_those_of_the_weight() {
    let indices = [39_u32, 0, 7, 8, 15, 16, 39, 24];
    for format in BlockFormat::tiled() {
        let (n, k) = (40, if format.block_elems() == 32 { 2400 } else { 512 });
        let stored = random_rows(format, [n, k], 7, |factor| 0.1 * factor);
        let mut device = Device::default();
        let weight = device.bytes("weight", &pack(format, [n, k], &stored));
        let (max_rows, stride) = (indices.len(), k + 4);
        let (num_rows, ids) = (device.u32s("num_rows", &[6]), device.u32s("ids", &indices));
        let out = Rows::new(device.poisoned::<f32>("out", max_rows * stride), stride);
        device
            .run(GatherQuantised { max_rows, n, k, format }.launch(num_rows, ids, weight, out), 1);
        let got = device.read(out.ptr, max_rows * stride);
        let elements = elements(format, &stored);
        for (row, (&index, got)) in indices.iter().zip(got.chunks(stride)).enumerate() {
            let want = &elements[index as usize * k..][..k];
            for (column, (&got, &want)) in got.iter().zip(want).enumerate() {
                let at = format!("{format:?}: [{row}, {column}]");
                if row < 6 {
                    let off = (f64::from(got) - want).abs();
                    assert!(off <= 1e-5 * want.abs().max(1.0), "{at} is {got}, not {want}");
                } else {
                    assert!(got.is_nan(), "{at} was written");
                }
            }
            assert!(got[k..].iter().all(|pad| pad.is_nan()));
        }
    }
}

#[test]
fn packed_weights_have_the_bytes_of_the_file() {
    for format in BlockFormat::tiled() {
        let file = |n: usize, k: usize| n * k / format.block_elems() * format.block_bytes();
        assert_eq!(format.packed_bytes(4096, 4096), Some(file(4096, 4096)), "{format:?}");
        assert_eq!(format.packed_bytes(17, 512), Some(file(32, 512)), "{format:?}");
        assert_eq!(format.packed_bytes(usize::MAX, usize::MAX / 2), None);
    }
    // Half of the scales of a last tile are padding.
    assert_eq!(BlockFormat::Q5_0.packed_bytes(16, 896), Some(16 * 28 * 22 + 128));
}

#[test]
fn rejects_what_no_kernel_takes() {
    let error = |linear: QuantisedLinear, weight: u64, x_stride: usize, out| {
        let (x, weight) = (Rows::new(DevicePtr::new(16), x_stride), DevicePtr::new(weight));
        let residual = Some(Rows::new(DevicePtr::new(48), 64)).filter(|_| !linear.gated);
        let x = Input16::Half(x);
        let operands = QuantisedOperands { x, weight, bias: None, residual, out };
        let launch = linear.launch(Gpu::HOPPER, DevicePtr::new(64), &operands);
        launch.map(|_| ()).unwrap_err().to_string()
    };
    let linear =
        QuantisedLinear { max_rows: 1, n: 64, k: 512, format: BlockFormat::Q4_K, gated: false };
    let f32s = Out16::F32(Rows::new(DevicePtr::new(48), 64));
    let halves = Out16::Half(Rows::new(DevicePtr::new(48), 64));
    let more_rows = QuantisedLinear { max_rows: 17, ..linear };
    assert_eq!(
        error(more_rows, 32, 512, f32s),
        "rows is 17: expected at most 16 with a quantised weight"
    );
    let k = |k, format| error(QuantisedLinear { k, format, ..linear }, 32, 2048, f32s);
    assert_eq!(k(896, BlockFormat::Q6_K), "k is 896: expected a multiple of 256");
    assert_eq!(k(48, BlockFormat::Q8_0), "k is 48: expected a multiple of 32");
    assert_eq!(k(0, BlockFormat::Q8_0), "k is 0: expected at least one block");
    assert_eq!(error(linear, 40, 512, f32s), "address is 40: expected a multiple of 16");
    assert_eq!(
        error(linear, 32, 516, f32s),
        "row stride is 516: expected rows of x that are 16-byte aligned"
    );
    assert_eq!(error(linear, 32, 512, halves), "output bits is 16: expected 32 with a residual");
    let gated = QuantisedLinear { gated: true, ..linear };
    assert_eq!(error(gated, 32, 512, f32s), "output bits is 32: expected 16 with a gate");
}
