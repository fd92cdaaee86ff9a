//! Linear layers of a few rows whose weight is in FP8.

use crate::device::{Device, SEEDS, Stored, random};
use cuda_std::E4m3;
use cuda_std::launch::DevicePtr;
use half::f16;
use kernels::Rows;
use kernels::gemm::fp8::dequantise::DequantiseFp8;
use kernels::gemm::fp8::{
    Fp8SmallKernel, LinearFp8Small, LinearFp8SmallOperands, SCALE_BLOCK, WeightScales,
};
use kernels::gemm::kernels::{gemv::gemv_16, small_m::gemm_16_small_m};
use kernels::gemm::{Gpu, Input16, Out16, SumOrder, Target};

const HOPPER: Gpu = Gpu { num_sms: 3, ..Gpu::HOPPER };
const SM80: Gpu = Gpu { target: Target::Sm80, num_sms: 2, overlaps: false };

/// Added to the mean of squares.
const EPS: f32 = 0.25;

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
    num_rows: usize,
    max_rows: usize,
    n: usize,
    k: usize,
    with_bias: bool,
    normed: bool,
    /// Whether blocks have scales.
    blocks: bool,
    out: Out,
    order: SumOrder,
    gpu: Gpu,
    /// The kernel, where it is not the launcher's choice.
    kernel: Option<Fp8SmallKernel>,
}

const CASE: Case = Case {
    num_rows: 3,
    max_rows: 8,
    n: 37,
    k: 400,
    with_bias: true,
    normed: false,
    blocks: false,
    out: Out::Residual,
    order: SumOrder::SmallBatch,
    gpu: HOPPER,
    kernel: None,
};

/// The operands of a case: rows of x are the same for every count of rows.
struct Operands {
    x: Vec<f32>,
    norm_weight: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

impl Case {
    /// Elements between the rows of the operands.
    const PAD: usize = 16;

    fn weight_rows(&self) -> usize {
        if self.out == Out::Gated { 2 * self.n } else { self.n }
    }

    fn k_blocks(&self) -> usize {
        self.k.div_ceil(SCALE_BLOCK as usize)
    }

    /// Weights of every code but NaN, small ones more often; row 1 a hundred times larger than the
    /// others, row 2 of zeros, row 3 of the largest numbers.
    fn operands(&self) -> Operands {
        let &Case { n, k, normed, blocks, .. } = self;
        let rows = self.weight_rows();
        let mut codes: Vec<u8> = random(rows * k, 2)
            .into_iter()
            .map(|x| E4m3::from_f32(if x > 0.9 { 448.0 * (x - 0.9) * 10.0 } else { x }).to_bits())
            .collect();
        let num_scales =
            if blocks { rows.div_ceil(SCALE_BLOCK as usize) * self.k_blocks() } else { rows };
        let mut scales: Vec<f32> =
            random(num_scales, 5).into_iter().map(|x| 0.01 * (x.abs() + 0.1)).collect();
        if rows > 4 {
            codes[2 * k..3 * k].fill(0);
            codes[3 * k..4 * k].fill(0x7e);
            if !blocks {
                scales[1] *= 100.0;
            }
        }
        let x = random(self.num_rows.max(16) * k, 1);
        let x = if normed { x } else { x.into_iter().map(|x| f16::of(x).value()).collect() };
        Operands {
            x,
            norm_weight: random(k, 6),
            codes,
            scales,
            bias: random(rows, 3),
            residual: random(self.num_rows.max(16) * n, 4),
        }
    }

    /// x as the weight is multiplied with it.
    fn normed_x(&self, operands: &Operands) -> Vec<f64> {
        let k = self.k;
        let row = |x: &[f32]| -> Vec<f64> {
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / k as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            let normed = x.iter().zip(&operands.norm_weight);
            let normed = normed.map(|(&x, &weight)| scale * f64::from(x) * f64::from(weight));
            normed.map(|x| f16::from_f64(x).to_f64()).collect()
        };
        operands.x.chunks(k).flat_map(row).collect()
    }

    /// Outputs, and the sums of the magnitudes that are added up for them.
    fn oracle(&self, operands: &Operands) -> Vec<(f64, f64)> {
        let &Case { num_rows, n, k, with_bias, normed, blocks, out, .. } = self;
        let x: Vec<f64> = if normed {
            self.normed_x(operands)
        } else {
            operands.x.iter().map(|&x| x.into()).collect()
        };
        let product = |row: usize, column: usize| {
            let bias = if with_bias { f64::from(operands.bias[column]) } else { 0.0 };
            let terms = (0..k).map(|i| {
                let block = SCALE_BLOCK as usize;
                let at = if blocks { column / block * self.k_blocks() + i / block } else { column };
                let weight = E4m3::from_bits(operands.codes[column * k + i]).to_f32();
                x[row * k + i] * f64::from(weight) * f64::from(operands.scales[at])
            });
            terms.fold((bias, bias.abs()), |(sum, all), term| (sum + term, all + term.abs()))
        };
        let output = |at: usize| {
            let (row, column) = (at / n, at % n);
            let (sum, all) = product(row, column);
            match out {
                Out::Half => (sum, all),
                Out::Residual => {
                    let residual = f64::from(operands.residual[at]);
                    (sum + residual, all + residual.abs())
                }
                Out::Gated => {
                    let (up, all_up) = product(row, n + column);
                    (sum / (1.0 + (-sum).exp()) * up, all * (1.0 + all_up))
                }
            }
        };
        (0..num_rows * n).map(output).collect()
    }

    /// The symbol of the kernel and the outputs, on the emulator.
    fn run(&self, operands: &Operands, seed: u64) -> (&'static str, Vec<f32>) {
        let &Case { num_rows, max_rows, n, k, with_bias, normed, blocks, out, gpu, .. } = self;
        let mut device = Device::default();
        let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
        let stride = k + Self::PAD;
        let mut x = vec![0.0; num_rows * stride];
        for row in 0..num_rows {
            x[row * stride..][..k].copy_from_slice(&operands.x[row * k..][..k]);
        }
        let x = if normed {
            let weight = device.f32s("norm weight", &operands.norm_weight);
            let x = Rows::new(device.partly_written("x", &x, max_rows * stride), stride);
            Input16::Normed { x, weight, eps: EPS }
        } else {
            Input16::Half(Rows::new(device.partly_written("x", &x, max_rows * stride), stride))
        };
        // The code of NaN between the rows.
        let padded = |row: &[u8]| [row, &[0x7f; Self::PAD]].concat();
        let codes: Vec<u8> = operands.codes.chunks(k).flat_map(padded).collect();
        let weight = Rows::new(DevicePtr::new(device.bytes("weight", &codes).0), stride);
        let scales = device.f32s("scales", &operands.scales);
        let scales = if blocks { WeightScales::Blocks(scales) } else { WeightScales::Rows(scales) };
        let bias = with_bias.then(|| device.f32s("bias", &operands.bias));
        let residual = (out == Out::Residual).then(|| {
            let written = &operands.residual[..num_rows * n];
            Rows::new(device.partly_written("residual", written, max_rows * n), n)
        });
        let out = match residual {
            Some(residual) => Out16::F32(residual),
            None => Out16::Half(Rows::new(device.poisoned("out", num_rows * n), n)),
        };
        let layer = self.layer();
        let operands = LinearFp8SmallOperands { x, weight, scales, bias, residual, out };
        let maps = &mut |spec: &cuda_std::tensor_map::TensorMapSpec| {
            spec.check().expect("a tensor map");
            spec.emulated()
        };
        let launch = match self.kernel {
            Some(kernel) => layer.launch_kernel(kernel, gpu, num_rows_ptr, &operands, maps),
            None => layer.launch(gpu, num_rows_ptr, &operands, maps),
        };
        let symbol = launch.as_ref().map_or("", |launch| launch.as_ref().map_or("", |l| l.symbol));
        let report = device.run(launch, seed);
        assert_eq!(report.bank_conflicts, 0, "{symbol} of {self:?}");
        let got = match out {
            Out16::F32(rows) => device.read_f32(rows.ptr, num_rows * n),
            Out16::Half(rows) => device.read(rows.ptr, num_rows * n),
        };
        (symbol, got)
    }

    fn layer(&self) -> LinearFp8Small {
        let &Case { max_rows, n, k, out, order, .. } = self;
        LinearFp8Small { max_rows, n, k, gated: out == Out::Gated, order }
    }

    /// Runs the case, compares, and gives the symbol of the kernel.
    fn check(&self, seed: u64) -> &'static str {
        let operands = self.operands();
        let (symbol, got) = self.run(&operands, seed);
        let want = self.oracle(&operands);
        assert_eq!(got.len(), want.len(), "{symbol} of {self:?}");
        // Gate and up are rounded before they are multiplied.
        let rounding = match self.out {
            Out::Residual => 0.0,
            Out::Half => f16::ROUNDING,
            Out::Gated => 4.0 * f16::ROUNDING,
        };
        // A normed x in f32 can round to another f16.
        let sum = if self.normed { 2e-4 } else { 2e-6 };
        for (at, (&got, &(want, all))) in got.iter().zip(&want).enumerate() {
            let off = (f64::from(got) - want).abs();
            assert!(
                off <= rounding * want.abs() + sum * all + 1e-7,
                "{symbol} of {self:?}, seed {seed}: element {at} is {got}, not {want}"
            );
        }
        symbol
    }
}

/// Layers of one row by GEMV.
const ONE_ROW: Case = Case { num_rows: 1, max_rows: 1, order: SumOrder::Fastest, ..CASE };

/// Lengths of k around a load, a line, what a warp has in flight, and splits of k.
const LENGTHS: [usize; 12] = [16, 48, 112, 128, 144, 496, 512, 528, 896, 1024, 2064, 4112];

#[test]
fn every_count_of_rows_matches_oracle() {
    for (at, num_rows) in [1_usize, 2, 7, 8, 9, 16].into_iter().enumerate() {
        let max_rows = [num_rows, num_rows.next_multiple_of(8), 16][at % 3];
        for gpu in [HOPPER, SM80] {
            let (with_bias, blocks) = (at % 2 == 0, at % 3 == 1);
            let out = [Out::Residual, Out::Half][at % 2];
            Case { num_rows, max_rows, with_bias, blocks, out, gpu, ..CASE }.check(at as u64);
        }
    }
}

#[test]
fn no_rows_write_nothing() {
    for gpu in [HOPPER, SM80] {
        for order in [SumOrder::Fastest, SumOrder::SmallBatch] {
            let case = Case { num_rows: 0, max_rows: 1, order, gpu, ..CASE };
            assert!(case.run(&case.operands(), 1).1.is_empty());
        }
    }
}

#[test]
fn one_row_matches_oracle() {
    for (seed, k) in LENGTHS.into_iter().chain([8192, 11_008]).enumerate() {
        let (blocks, out) = (seed % 2 == 1, [Out::Residual, Out::Half][seed / 2 % 2]);
        let symbol = Case { k, n: 5, blocks, out, ..ONE_ROW }.check(seed as u64);
        assert!(symbol.starts_with("gemv_f16_e4m3"), "{symbol}");
    }
    for n in 1..=9 {
        Case { n, k: 48, ..ONE_ROW }.check(n as u64);
    }
    Case { n: 261, k: 272, blocks: true, ..ONE_ROW }.check(1);
}

#[test]
fn fused_layers_match_oracle() {
    let kinds = [(true, Out::Half), (false, Out::Gated), (true, Out::Gated)];
    for (seed, (normed, out)) in kinds.into_iter().cycle().take(18).enumerate() {
        for base in [ONE_ROW, CASE, Case { gpu: SM80, ..CASE }] {
            let (n, k) = [(24, 896), (37, 48), (128, 400)][seed / 3 % 3];
            let blocks = n == 128;
            Case { n, k, normed, out, blocks, with_bias: seed % 2 == 0, ..base }.check(seed as u64);
        }
    }
}

/// Every kernel that takes the weight in E4M3 and fuses nothing.
fn plain_kernels() -> impl Iterator<Item = (Fp8SmallKernel, usize)> {
    let is_plain = |symbol: &str| {
        symbol.contains("e4m3") && !symbol.contains("norm") && !symbol.contains("silu")
    };
    let gemv = gemv_16::Instance::ALL.iter().filter(move |x| is_plain(x.symbol()));
    let small = gemm_16_small_m::Instance::ALL.iter().filter(move |x| is_plain(x.symbol()));
    gemv.map(|&instance| (Fp8SmallKernel::Gemv(instance), 1))
        .chain(small.map(|&x| (Fp8SmallKernel::Registers(x), 8 * x.tiles_m())))
        .chain([(Fp8SmallKernel::Streamed, 8), (Fp8SmallKernel::Streamed, 16)])
}

#[test]
fn every_kernel_matches_oracle() {
    for (seed, (kernel, max_rows)) in plain_kernels().enumerate() {
        for (at, k) in [48, 1040, 2064].into_iter().enumerate() {
            let (blocks, kernel) = (at == 1, Some(kernel));
            Case { num_rows: max_rows, max_rows, n: 133, k, blocks, kernel, ..CASE }
                .check(seed as u64);
        }
    }
}

#[test]
fn every_length_of_k_matches_oracle() {
    for (seed, k) in LENGTHS.into_iter().enumerate() {
        for kernel in [None, Some(Fp8SmallKernel::Streamed)] {
            let (blocks, num_rows) = (seed % 2 == 0, 1 + seed % 8);
            Case { k, n: 9, num_rows, blocks, kernel, ..CASE }.check(seed as u64);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for blocks in [false, true] {
        let alone = Case { num_rows: 1, n: 41, k: 1200, blocks, ..CASE };
        let operands = alone.operands();
        let mut want = None;
        for (kernel, most) in plain_kernels().filter(|(_, most)| *most > 1) {
            for num_rows in [1, most] {
                let case = Case { num_rows, max_rows: most, kernel: Some(kernel), ..alone };
                let (symbol, got) = case.run(&operands, 5);
                let bits: Vec<u32> = got[..case.n].iter().map(|value| value.to_bits()).collect();
                assert_eq!(want.get_or_insert_with(|| bits.clone()), &bits, "{symbol}");
            }
        }
    }
}

#[test]
fn the_order_of_threads_changes_no_bit() {
    for base in [ONE_ROW, CASE, Case { kernel: Some(Fp8SmallKernel::Streamed), ..CASE }] {
        let case = Case { n: 24, k: 2064, ..base };
        let operands = case.operands();
        let runs: Vec<_> = SEEDS.map(|seed| case.run(&operands, seed).1).collect();
        assert!(runs.iter().all(|run| *run == runs[0]));
    }
}

#[test]
fn the_dense_copy_is_exact() {
    for (seed, (n, k, blocks)) in
        [(1, 16, false), (5, 48, false), (133, 272, true), (37, 896, true)].into_iter().enumerate()
    {
        let case = Case { n, k, blocks, ..CASE };
        let operands = case.operands();
        let mut device = Device::default();
        let weight = Rows::new(DevicePtr::new(device.bytes("weight", &operands.codes).0), k);
        let scales = device.f32s("scales", &operands.scales);
        let scales = if blocks { WeightScales::Blocks(scales) } else { WeightScales::Rows(scales) };
        let stride = k + 8;
        let copy = Rows::new(device.poisoned("copy", n * stride - 8), stride);
        device.run(DequantiseFp8 { n, k }.launch(weight, scales, copy), seed as u64);
        let block = SCALE_BLOCK as usize;
        for row in 0..n {
            let got: Vec<f32> =
                device.read(DevicePtr::<f16>::new(copy.ptr.0 + 2 * (row * stride) as u64), k);
            for (column, got) in got.into_iter().enumerate() {
                let at = if blocks { row / block * case.k_blocks() + column / block } else { row };
                let weight = E4m3::from_bits(operands.codes[row * k + column]).to_f32();
                let want = f16::of(operands.scales[at] * weight).value();
                assert_eq!(got, want, "row {row}, column {column} of {case:?}");
            }
        }
    }
}

/// Why there is no launch of a layer that `change` has changed.
fn error(change: impl FnOnce(&mut LinearFp8Small, &mut LinearFp8SmallOperands)) -> String {
    let rows = |address| Rows::new(DevicePtr::<f16>::new(address), 896);
    let mut layer =
        LinearFp8Small { max_rows: 1, n: 896, k: 896, gated: false, order: SumOrder::Fastest };
    let mut operands = LinearFp8SmallOperands {
        x: Input16::Half(rows(16)),
        weight: Rows::new(DevicePtr::new(32), 896),
        scales: WeightScales::Blocks(DevicePtr::new(48)),
        bias: None,
        residual: None,
        out: Out16::Half(rows(64)),
    };
    change(&mut layer, &mut operands);
    let launch = layer.launch(SM80, DevicePtr::new(80), &operands, &mut |_| unreachable!());
    launch.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn rejects_what_it_does_not_compute() {
    assert_eq!(error(|layer, _| layer.k = 888), "k is 888: expected a multiple of 16");
    assert_eq!(
        error(|_, operands| operands.weight.row_stride = 904),
        "row stride is 904: expected a multiple of 16"
    );
    assert_eq!(
        error(|layer, _| layer.max_rows = 17),
        "rows is 17: expected at most 16 with a weight in FP8"
    );
    assert_eq!(
        error(|layer, _| (layer.gated, layer.n) = (true, 100)),
        "n is 100: expected a multiple of 128 with scales of blocks and a gate"
    );
    assert!(error(|layer, _| layer.order = SumOrder::Tiles).starts_with("orders is 1"));
    assert!(error(|layer, _| (layer.max_rows, layer.gated) = (9, true)).contains("at most 8"));
}
