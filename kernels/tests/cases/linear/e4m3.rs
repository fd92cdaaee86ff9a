//! Linear layers whose weight is in E4M3: of small batches in f16, and of rows in E4M3.

use super::{EPS, Out, SILU, Terms, normed};
use crate::harness::*;
use cuda_std::E4m3;
use cuda_std::launch::DevicePtr;
use gpu_types::Activation;
use half::f16;
use kernels::Rows;
use kernels::activation::gate_of;
use kernels::gemm::config::TileConfig;
use kernels::gemm::fp8::dequantise::DequantiseFp8;
use kernels::gemm::fp8::{
    Fp8SmallKernel, LinearFp8Small, LinearFp8SmallOperands, SCALE_BLOCK, WeightScales,
};
use kernels::gemm::kernels::{gemv::gemv_16, small_m::gemm_16_small_m};
use kernels::gemm::{
    Fp8Accumulate, Gpu, Input16, LinearFp8, LinearFp8Operands, Out16, SumOrder, Target,
};
use oracle::{Accumulator, Approx, E4M3_MAX, Element, Linear, Matrix, e4m3_code, e4m3_value};

const BLOCK: usize = SCALE_BLOCK as usize;

/// The code of NaN: between rows, and past the last one.
const NAN: u8 = 0x7f;

const HOPPER: Gpu = Gpu { num_sms: 3, ..Gpu::HOPPER };
const SM80: Gpu = Gpu { target: Target::Sm80, num_sms: 2, overlaps: false };

/// A linear layer in a launch for more rows.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Rows of x, and of the launch.
    rows: [usize; 2],
    n: usize,
    k: usize,
    /// Row strides of the operands, less their widths: a multiple of 16; the same of the outputs.
    pad: usize,
    out_pad: usize,
    bias: bool,
    normed: bool,
    gate: Option<Activation>,
    out: Out,
    /// Whether a weight scale is of a block.
    blocks: bool,
    values: Values,
    kernel: Kernel,
}

/// What rows in E4M3 are.
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

#[derive(Clone, Copy, Debug)]
enum Kernel {
    /// For rows in f16: the launcher's choice on a GPU.
    Small(SumOrder, Gpu),
    /// A kernel of those.
    Of(Fp8SmallKernel),
    /// For rows in E4M3, on so many SMs.
    Tile(Fp8Accumulate, &'static TileConfig, usize),
}

const SMALL: Case = Case {
    rows: [3, 8],
    n: 37,
    k: 400,
    pad: 16,
    out_pad: 0,
    bias: true,
    normed: false,
    gate: None,
    out: Out::InPlace,
    blocks: false,
    values: Values::Random,
    kernel: Kernel::Small(SumOrder::SmallBatch, HOPPER),
};

/// A layer of one row by GEMV.
const ONE_ROW: Case =
    Case { rows: [1, 1], kernel: Kernel::Small(SumOrder::Fastest, HOPPER), ..SMALL };

/// Codes of rows, and their scales.
struct Codes {
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Codes {
    /// Rows that are quantised by their largest element.
    fn quantised(case: &Case, rows: usize, salt: u64, of_x: bool) -> Self {
        let (mut values, k) = (random(rows * case.k, salt), case.k);
        let mut scales = Vec::new();
        for (row, values) in values.chunks_mut(k).enumerate() {
            match case.values {
                Values::Outlier => values[k / 3] *= 100.0,
                Values::Saturated => values.iter_mut().for_each(|value| *value = value.signum()),
                Values::ZeroRows if of_x && row.is_multiple_of(3) => values.fill(0.0),
                _ => {}
            }
            let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
            scales.push(largest / E4M3_MAX);
            values.iter_mut().for_each(|value| *value *= E4M3_MAX / largest.max(1e-30));
        }
        let mut codes: Vec<u8> = values.into_iter().map(e4m3_code).collect();
        if of_x && case.values == Values::Nan {
            codes[k - 1] = NAN;
        }
        Codes { codes, scales }
    }

    /// Weights of every code but NaN, small ones more often; row 1 a hundred times larger than the
    /// others, row 2 of zeros, row 3 of the largest numbers.
    fn of_every_code(case: &Case) -> Self {
        let (rows, k) = (case.weight_rows(), case.k);
        let value = |x: f32| if x > 0.9 { E4M3_MAX * (x - 0.9) * 10.0 } else { x };
        let mut codes: Vec<u8> =
            random(rows * k, 2).into_iter().map(|x| e4m3_code(value(x))).collect();
        let mut scales: Vec<f32> =
            random(case.num_scales(), 5).into_iter().map(|x| 0.01 * (x.abs() + 0.1)).collect();
        if rows > 4 {
            codes[2 * k..3 * k].fill(0);
            codes[3 * k..4 * k].fill(0x7e);
            if !case.blocks {
                scales[1] *= 100.0;
            }
        }
        Codes { codes, scales }
    }

    /// The codes at a stride, up to `max_rows` rows, with NaN between and after them.
    fn padded(&self, k: usize, stride: usize, max_rows: usize) -> Vec<u8> {
        let padded = |row: &[u8]| [row, &vec![NAN; stride - k]].concat();
        let mut bytes: Vec<u8> = self.codes.chunks(k).flat_map(padded).collect();
        bytes.resize(max_rows * stride, NAN);
        bytes
    }

    /// The numbers, of which `scale(row, column)` is the scale.
    fn matrix(&self, k: usize, scale: impl Fn(usize, usize) -> f32) -> Matrix {
        Matrix::new(self.codes.len() / k, k, |row, column| {
            f64::from(e4m3_value(self.codes[row * k + column])) * f64::from(scale(row, column))
        })
    }
}

/// The values of a case: rows are the same for every count of them.
struct Operands {
    /// In f16, or f32 before a norm.
    x: Matrix,
    x_codes: Codes,
    norm_weight: Vec<f32>,
    weight: Codes,
    bias: Vec<f32>,
    residual: Matrix,
}

impl Case {
    fn weight_rows(&self) -> usize {
        if self.gate.is_some() { 2 * self.n } else { self.n }
    }

    fn k_blocks(&self) -> usize {
        self.k.div_ceil(BLOCK)
    }

    fn num_scales(&self) -> usize {
        let rows = self.weight_rows();
        if self.blocks { rows.div_ceil(BLOCK) * self.k_blocks() } else { rows }
    }

    /// The index of the scale of an element of the weight.
    fn scale_at(&self, row: usize, column: usize) -> usize {
        if self.blocks { row / BLOCK * self.k_blocks() + column / BLOCK } else { row }
    }

    fn is_tile(&self) -> bool {
        matches!(self.kernel, Kernel::Tile(..))
    }

    fn operands(&self) -> Operands {
        let &Case { rows: [rows, _], n, k, .. } = self;
        let weight = if self.is_tile() {
            let weight = Codes::quantised(self, n, 3, false);
            let scales = if self.blocks { random(self.num_scales(), 4) } else { weight.scales };
            Codes { scales, ..weight }
        } else {
            Codes::of_every_code(self)
        };
        Operands {
            x: if self.normed {
                Matrix::random::<f32>(rows, k, 1)
            } else {
                Matrix::random::<f16>(rows, k, 1)
            },
            x_codes: Codes::quantised(self, if self.is_tile() { rows } else { 0 }, 2, true),
            norm_weight: random(k, 6),
            weight,
            bias: random(self.weight_rows(), 3),
            residual: Matrix::random::<f32>(rows, n, 4),
        }
    }

    fn oracle(&self, operands: &Operands) -> Vec<Approx> {
        let Operands { x_codes, weight, .. } = operands;
        let x = match (self.is_tile(), self.normed) {
            (true, _) => x_codes.matrix(self.k, |row, _| x_codes.scales[row]),
            (_, true) => normed::<f16>(&operands.x, &operands.norm_weight, true),
            _ => operands.x.clone(),
        };
        let scale = |row, column| weight.scales[self.scale_at(row, column)];
        let has_residual = matches!(self.out, Out::Residual | Out::InPlace);
        let linear = Linear {
            x: &x,
            weight: &weight.matrix(self.k, scale),
            bias: self.bias.then_some(&operands.bias),
            residual: has_residual.then_some(&operands.residual),
            accumulator: Accumulator::F32,
            // A normed x in f32 can round to another f16.
            product_rounding: if self.normed { f16::ROUNDING / 2.0 } else { 1e-6 },
        };
        let outputs = linear.gated_outputs::<f16>(self.gate);
        if self.out == Out::Half { stored::<f16>(outputs) } else { outputs }
    }

    /// The kernel's symbol and the outputs.
    fn run(&self, operands: &Operands, seed: u64) -> (&'static str, Vec<f32>) {
        let &Case { rows: [num_rows, max_rows], n, k, pad, out_pad, .. } = self;
        let (mut device, stride) = (Device::default(), k + pad);
        let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
        let codes = operands.weight.padded(k, stride, self.weight_rows());
        let weight = Rows::<E4m3>::new(device.bytes("weight", &codes), stride);
        let scales = device.f32s("scales", &operands.weight.scales);
        let scales = match self.blocks {
            true => WeightScales::Blocks(scales),
            false => WeightScales::Rows(scales),
        };
        let bias = self.bias.then_some(&operands.bias[..]);
        let (residual, at) = (&operands.residual, (self.rows, n + out_pad));
        let terms = Terms::<f16>::new(&mut device, self.out, at, bias, residual);
        let Terms { bias, residual, out } = terms;
        if let Kernel::Tile(accumulate, tile, num_sms) = self.kernel {
            let codes = operands.x_codes.padded(k, stride, max_rows);
            let mut x_scales = operands.x_codes.scales.clone();
            x_scales.resize(max_rows, f32::NAN);
            let operands = LinearFp8Operands {
                x: Rows::new(device.bytes("x", &codes), stride),
                x_scales: device.f32s("x_scales", &x_scales),
                weight,
                weight_scales: scales,
                bias,
                residual,
                out,
            };
            let linear = LinearFp8 { max_rows, n, k, accumulate };
            let maps = &mut tensor_map;
            let launch = made(linear.launch_in(tile, num_sms, num_rows_ptr, &operands, maps));
            let symbol = symbol(&launch);
            device.run(Ok(Some(launch)), seed);
            return (symbol, terms.read(&device, self.rows, n));
        }
        let rows = operands.x.first(num_rows);
        let x = if self.normed {
            let weight = device.f32s("norm weight", &operands.norm_weight);
            Input16::Normed { x: device.matrix("x", &rows, (stride, max_rows)), weight, eps: EPS }
        } else {
            Input16::Half(device.matrix("x", &rows, (stride, max_rows)))
        };
        let operands = LinearFp8SmallOperands { x, weight, scales, bias, residual, out };
        let (order, maps) = (SumOrder::SmallBatch, &mut tensor_map);
        let layer = LinearFp8Small { max_rows, n, k, gate: self.gate, order };
        let launch = match self.kernel {
            Kernel::Of(kernel) => {
                layer.launch_kernel(kernel, HOPPER, num_rows_ptr, &operands, maps)
            }
            Kernel::Small(order, gpu) => {
                LinearFp8Small { order, ..layer }.launch(gpu, num_rows_ptr, &operands, maps)
            }
            Kernel::Tile(..) => unreachable!("it has run"),
        };
        let symbol = device.run_smoothly(launch, seed);
        (symbol, terms.read(&device, self.rows, n))
    }

    /// Runs the case, compares, and gives the symbol of the kernel.
    #[track_caller]
    fn check(&self, seed: u64) -> &'static str {
        let operands = self.operands();
        let (symbol, got) = self.run(&operands, seed);
        assert_right(&format!("{symbol}, seed {seed}, of {self:?}"), &got, &self.oracle(&operands));
        symbol
    }
}

/// Lengths of k around a load, a line, what a warp has in flight, and splits of k.
const LENGTHS: [usize; 12] = [16, 48, 112, 128, 144, 496, 512, 528, 896, 1024, 2064, 4112];

const STREAMED: Kernel = Kernel::Of(Fp8SmallKernel::Streamed);

#[test]
fn small_batches_match_oracle() {
    for (at, rows) in [0, 1_usize, 2, 7, 8, 9, 16].into_iter().enumerate() {
        let max_rows = [rows.max(1), rows.next_multiple_of(8), 16][at % 3];
        for gpu in [HOPPER, SM80] {
            let (bias, blocks) = (at % 2 == 0, at % 3 == 1);
            let out = [Out::InPlace, Out::Half][at % 2];
            let kernel = Kernel::Small(SumOrder::SmallBatch, gpu);
            let case = Case { rows: [rows, max_rows.max(1)], bias, blocks, out, kernel, ..SMALL };
            case.check(at as u64);
        }
    }
    for (seed, k) in LENGTHS.into_iter().enumerate() {
        for kernel in [SMALL.kernel, STREAMED] {
            let (blocks, rows) = (seed % 2 == 0, [1 + seed % 8, 8]);
            Case { k, n: 9, rows, blocks, kernel, ..SMALL }.check(seed as u64);
        }
    }
}

#[test]
fn one_row_matches_oracle() {
    for (seed, k) in LENGTHS.into_iter().chain([8192, 11_008]).enumerate() {
        let (blocks, out) = (seed % 2 == 1, [Out::InPlace, Out::Half][seed / 2 % 2]);
        let symbol = Case { k, n: 5, blocks, out, ..ONE_ROW }.check(seed as u64);
        assert!(symbol.starts_with("gemv_f16_e4m3"), "{symbol}");
    }
    for n in 1..=9 {
        Case { n, k: 48, ..ONE_ROW }.check(n as u64);
    }
    Case { n: 261, k: 272, blocks: true, ..ONE_ROW }.check(1);
    for gpu in [HOPPER, SM80] {
        let kernel = Kernel::Small(SumOrder::Fastest, gpu);
        Case { rows: [0, 1], kernel, ..SMALL }.check(1);
    }
}

#[test]
fn fused_layers_match_oracle() {
    let on_sm80 = Case { kernel: Kernel::Small(SumOrder::SmallBatch, SM80), ..SMALL };
    let kinds = [(true, false), (false, true), (true, true)];
    for (seed, (normed, gated)) in kinds.into_iter().cycle().take(18).enumerate() {
        let gate = gated.then(|| Activation::ALL[seed / 3 % Activation::ALL.len()]);
        for base in [ONE_ROW, SMALL, on_sm80] {
            let (n, k) = [(24, 896), (37, 48), (128, 400)][seed / 3 % 3];
            let (blocks, bias, out) = (n == 128, seed % 2 == 0, Out::Half);
            Case { n, k, normed, gate, out, blocks, bias, ..base }.check(seed as u64);
        }
    }
}

/// Every kernel that takes the weight in E4M3 and fuses nothing, and its most rows.
fn plain_kernels() -> impl Iterator<Item = (Fp8SmallKernel, usize)> {
    let is_plain = |symbol: &str, gate| {
        symbol.contains("e4m3") && !symbol.contains("norm") && gate_of(gate).is_none()
    };
    let gemv = gemv_16::Instance::ALL.iter().filter(move |x| is_plain(x.symbol(), x.a()));
    let small = gemm_16_small_m::Instance::ALL.iter().filter(move |x| is_plain(x.symbol(), x.a()));
    gemv.map(|&instance| (Fp8SmallKernel::Gemv(instance), 1))
        .chain(small.map(|&x| (Fp8SmallKernel::Registers(x), 8 * x.tiles_m())))
        .chain([(Fp8SmallKernel::Streamed, 8), (Fp8SmallKernel::Streamed, 16)])
}

#[test]
fn every_kernel_of_small_batches_matches_oracle() {
    for (seed, (kernel, rows)) in plain_kernels().enumerate() {
        for (k, blocks) in [(48, false), (1040, true), (2064, false)] {
            let kernel = Kernel::Of(kernel);
            Case { rows: [rows; 2], n: 133, k, blocks, kernel, ..SMALL }.check(seed as u64);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_every_order() {
    for blocks in [false, true] {
        let all = Case { rows: [16, 16], n: 41, k: 1200, blocks, ..SMALL };
        let operands = all.operands();
        let mut want = None;
        for (kernel, most) in plain_kernels().filter(|(_, most)| *most > 1) {
            for rows in [1, most] {
                let case = Case { rows: [rows, most], kernel: Kernel::Of(kernel), ..all };
                let (symbol, got) = case.run(&operands, 5);
                let got = bits(&got[..case.n]);
                assert_eq!(want.get_or_insert_with(|| got.clone()), &got, "{symbol}");
            }
        }
    }
    for base in [ONE_ROW, SMALL, Case { kernel: STREAMED, ..SMALL }] {
        let case = Case { n: 24, k: 2064, ..base };
        let operands = case.operands();
        assert_same_bits(&format!("{case:?}"), |seed| case.run(&operands, seed).1);
    }
}

#[test]
fn the_dense_copy_is_exact() {
    for (seed, (n, k, blocks)) in
        (0..).zip([(1, 16, false), (5, 48, false), (133, 272, true), (37, 896, true)])
    {
        let case = Case { n, k, blocks, ..SMALL };
        let Codes { codes, scales } = Codes::of_every_code(&case);
        let mut device = Device::default();
        let weight = Rows::new(device.bytes("weight", &codes), k);
        let scales_ptr = device.f32s("scales", &scales);
        let weight_scales = match blocks {
            true => WeightScales::Blocks(scales_ptr),
            false => WeightScales::Rows(scales_ptr),
        };
        let copy: Rows<f16> = device.out("copy", (k + 8, n));
        device.run(DequantiseFp8 { n, k }.launch(weight, weight_scales, copy), seed);
        let at = |at: usize| scales[case.scale_at(at / k, at % k)];
        let want =
            codes.iter().enumerate().map(|(i, &code)| f16::rounded(at(i) * e4m3_value(code)));
        assert_eq!(device.read_rows(copy, [n, n], k), want.collect::<Vec<_>>(), "{case:?}");
    }
}

/// A layer of whole tiles of rows in E4M3.
const WHOLE: Case =
    Case { rows: [128, 128], n: 128, k: 256, pad: 0, bias: false, out: Out::Half, ..SMALL };

/// Each accumulation, with each of its tiles.
fn tiles() -> impl Iterator<Item = (Fp8Accumulate, &'static TileConfig)> {
    let of = |accumulate| LinearFp8::tiles(accumulate).iter().map(move |tile| (accumulate, tile));
    [Fp8Accumulate::TwoLevel, Fp8Accumulate::Fast].into_iter().flat_map(of)
}

/// Shapes around the edges of a tile, with every kind of output, each in an order of its own;
/// blocks with several tiles each; no rows.
#[test]
fn tiles_match_oracle() {
    for (number, (accumulate, tile)) in tiles().enumerate() {
        let ([block_m, block_n], [cluster_m, cluster_n]) = (tile.block, tile.cluster);
        let kernel = Kernel::Tile(accumulate, tile, 132);
        let whole = Case { kernel, ..WHOLE };
        let (bias, out) = (true, Out::Residual);
        let more = [block_m + 1, block_m + 9];
        let less = Case { rows: [block_m - 1, block_m], n: block_n - 8, k: 112, bias, ..whole };
        let several = Case {
            rows: [cluster_m * block_m + 5, 2 * cluster_m * block_m],
            n: cluster_n * block_n + 8,
            k: [400, 656, 144][number % 3],
            bias,
            blocks: number == 1 && accumulate == Fp8Accumulate::TwoLevel,
            kernel: Kernel::Tile(accumulate, tile, cluster_m * cluster_n),
            ..WHOLE
        };
        let cases = [
            Case { rows: [block_m; 2], n: block_n, k: 128, ..whole },
            Case { rows: more, n: block_n + 1, k: 144, pad: 16, out_pad: 3, bias, out, ..whole },
            less,
            Case { rows: [17, block_m], n: block_n - 1, out: Out::F32, ..less },
            Case { rows: [1, block_m], n: 8, k: 16, ..less },
            several,
            Case { rows: [0, 128], bias, ..whole },
            Case { rows: [0, 128], out: Out::F32, ..whole },
        ];
        for (seed, case) in (0..).zip(cases) {
            case.check(seed);
        }
        for values in [Values::Outlier, Values::ZeroRows, Values::Saturated, Values::Nan] {
            let case = Case { rows: [30, 32], n: 72, k: 160, values, ..whole };
            case.check(1);
            Case { out: Out::F32, bias, ..case }.check(2);
        }
    }
    // Scales of blocks of weights, at the edges of blocks and of tiles.
    for tile in LinearFp8::tiles(Fp8Accumulate::TwoLevel) {
        let ([block_m, block_n], accumulate) = (tile.block, Fp8Accumulate::TwoLevel);
        for (n, k) in [(block_n + 130, 400), (2 * block_n, 128), (block_n - 1, 272), (129, 16)] {
            let out = if n.is_multiple_of(2) { Out::Half } else { Out::Residual };
            let kernel = Kernel::Tile(accumulate, tile, 132);
            Case { rows: [block_m; 2], n, k, out, blocks: true, kernel, ..WHOLE }.check(n as u64);
        }
    }
}

#[test]
fn small_batches_reject_what_they_do_not_compute() {
    let reject = |change: fn(&mut LinearFp8Small, &mut LinearFp8SmallOperands)| {
        let order = SumOrder::Fastest;
        let mut layer = LinearFp8Small { max_rows: 1, n: 896, k: 896, gate: None, order };
        let mut operands = LinearFp8SmallOperands {
            x: Input16::Half(rows_at(16, 896)),
            weight: rows_at(32, 896),
            scales: WeightScales::Blocks(DevicePtr::new(48)),
            bias: None,
            residual: None,
            out: Out16::Half(rows_at(64, 896)),
        };
        change(&mut layer, &mut operands);
        error(layer.launch(SM80, ptr(80), &operands, &mut |_: &_| unreachable!()))
    };
    assert_eq!(reject(|layer, _| layer.k = 888), "k is 888: expected a multiple of 16");
    let stride = reject(|_, operands| operands.weight.row_stride = 904);
    assert_eq!(stride, "row stride is 904: expected a multiple of 16");
    let rows = reject(|layer, _| layer.max_rows = 17);
    assert_eq!(rows, "rows is 17: expected at most 16 with a weight in FP8");
    let n = reject(|layer, _| (layer.gate, layer.n) = (SILU, 100));
    assert_eq!(n, "n is 100: expected a multiple of 128 with scales of blocks and a gate");
    assert!(reject(|layer, _| layer.order = SumOrder::Tiles).starts_with("orders is 1"));
    assert!(reject(|layer, _| (layer.max_rows, layer.gate) = (9, SILU)).contains("at most 8"));
}

#[test]
fn layers_of_rows_in_e4m3_reject_what_no_kernel_computes() {
    let right = LinearFp8 { max_rows: 64, n: 128, k: 256, accumulate: Fp8Accumulate::TwoLevel };
    let operands = LinearFp8Operands::<f16> {
        x: rows(256),
        x_scales: ptr(2),
        weight: rows(256),
        weight_scales: WeightScales::Blocks(ptr(3)),
        bias: None,
        residual: None,
        out: Out16::Half(rows(128)),
    };
    let launch = |gpu: Gpu, linear: LinearFp8, operands: LinearFp8Operands<f16>| {
        linear.launch(gpu, ptr(9), &operands, &mut tensor_map)
    };
    let on_hopper = |linear, operands| launch(Gpu::HOPPER, linear, operands);
    let of_layer = |linear| refused(on_hopper(linear, operands));
    let of_operands = |operands| refused(on_hopper(right, operands));
    made(on_hopper(right, operands));
    assert!(is_nothing(on_hopper(LinearFp8 { max_rows: 0, ..right }, operands)));
    assert!(is_nothing(on_hopper(LinearFp8 { n: 0, ..right }, operands)));
    assert_eq!(refused(launch(A100, right, operands)).0, "compute capability");
    for k in [0, 8, 264] {
        assert_eq!(of_layer(LinearFp8 { k, ..right }), ("k", k));
    }
    assert_eq!(of_layer(LinearFp8 { max_rows: 1 << 31, ..right }), ("rows", 1 << 31));
    assert_eq!(of_layer(LinearFp8 { max_rows: 1 << 30, n: 1 << 30, ..right }).0, "tiles");
    let x = rows(264);
    assert_eq!(of_operands(LinearFp8Operands { x, ..operands }), ("row stride", 264));
    let weight = rows_at(0x1008, 256);
    assert_eq!(of_operands(LinearFp8Operands { weight, ..operands }), ("address", 0x1008));
    let residual = Some(rows(128));
    assert_eq!(of_operands(LinearFp8Operands { residual, ..operands }), ("output bits", 16));
    let out = Out16::F32(rows(1 << 30));
    assert_eq!(of_operands(LinearFp8Operands { out, ..operands }), ("row stride", 1 << 30));
    let fast = LinearFp8 { accumulate: Fp8Accumulate::Fast, ..right };
    assert_eq!(of_layer(fast).0, "rows of a weight scale");
    let of_rows = LinearFp8Operands { weight_scales: WeightScales::Rows(ptr(3)), ..operands };
    made(on_hopper(fast, of_rows));
}
