//! Linear layers whose weight stays in blocks, its dense copy, and its rows.

use super::blocks::{elements, in_blocks_of, pack, random_rows};
use super::{Out, SILU, Terms};
use crate::harness::*;
use cuda_std::tensor_map::EncodedTensorMap;
use gpu_types::Activation;
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::quantised::dequantise::Dequantise;
use kernels::gemm::quantised::gather::GatherQuantised;
use kernels::gemm::quantised::prompt::QuantisedPrompt;
use kernels::gemm::quantised::{BlockFormat, QuantisedLinear, QuantisedOperands};
use kernels::gemm::{Gpu, Input16, Out16, SumOrder, Target};
use kernels::rms_norm::RmsNorm;
use oracle::{Accumulator, Approx, Element, Linear, Matrix};

const HOPPER: Gpu = Gpu { num_sms: 3, ..Gpu::HOPPER };
const SM80: Gpu = Gpu { target: Target::Sm80, num_sms: 2, overlaps: false };

/// A linear layer in a launch for more rows.
#[derive(Clone, Copy, Debug)]
struct Case {
    format: BlockFormat,
    /// Rows of x, and of the launch.
    rows: [usize; 2],
    n: usize,
    k: usize,
    bias: bool,
    gate: Option<Activation>,
    out: Out,
    kernel: Kernel,
}

/// The kernels of small batches, and those of prompts.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Small(Gpu),
    Prompt(Gpu, SumOrder),
}

const SMALL: Case = Case {
    format: BlockFormat::Q4_K,
    rows: [3, 8],
    n: 40,
    k: 512,
    bias: true,
    gate: None,
    out: Out::InPlace,
    kernel: Kernel::Small(HOPPER),
};

/// One SM, for which the large tiles are chosen, and as many as there are for small ones.
const GPUS: [Gpu; 3] = [Gpu { num_sms: 1, ..Gpu::HOPPER }, Gpu::HOPPER, SM80];

/// Between the tiles of 64 and of 128 rows, with a part of a tile of columns.
const PROMPT: Case = Case { rows: [66, 66], n: 24, kernel: on(Gpu::HOPPER), ..SMALL };

/// Prompts on a GPU.
const fn on(gpu: Gpu) -> Kernel {
    Kernel::Prompt(gpu, SumOrder::Fastest)
}

/// A kind of output, by number.
fn out_of(number: usize) -> (Out, Option<Activation>) {
    let gate = Some(Activation::ALL[number / 3 % Activation::ALL.len()]);
    [(Out::InPlace, None), (Out::Half, None), (Out::Half, gate)][number % 3]
}

/// The values of a case: rows are the same for every count of them.
struct Operands {
    x: Matrix,
    stored: Vec<u8>,
    bias: Vec<f32>,
    residual: Matrix,
}

impl Case {
    /// Elements that rows of x and of the output have between them.
    const PAD: usize = 8;

    fn weight_rows(&self) -> usize {
        if self.gate.is_some() { 2 * self.n } else { self.n }
    }

    fn operands(&self) -> Operands {
        self.operands_of(|x| x, |factor| 0.001 * factor)
    }

    /// Operands of `x` and `factor` of random numbers.
    fn operands_of(&self, x: impl Fn(f32) -> f32, factor: impl Fn(f32) -> f32) -> Operands {
        let &Case { rows: [rows, _], n, k, .. } = self;
        let mut values = Matrix::random::<f32>(rows, k, 1);
        values.values.iter_mut().for_each(|value| *value = f16::rounded(x(*value as f32)).into());
        Operands {
            x: values,
            stored: random_rows(self.format, [self.weight_rows(), k], 2, factor),
            bias: random(self.weight_rows(), 3),
            residual: Matrix::random::<f32>(rows, n, 4),
        }
    }

    fn oracle(&self, operands: &Operands) -> Vec<Approx> {
        let values = elements(self.format, &operands.stored);
        let linear = Linear {
            x: &operands.x,
            weight: &Matrix { rows: self.weight_rows(), cols: self.k, values },
            bias: self.bias.then_some(&operands.bias),
            residual: (self.out == Out::InPlace).then_some(&operands.residual),
            accumulator: Accumulator::F32,
            // Those of prompts round elements to f16.
            product_rounding: match self.kernel {
                Kernel::Small(_) => 4e-6,
                Kernel::Prompt(..) => f16::ROUNDING,
            },
        };
        let outputs = linear.gated_outputs::<f16>(self.gate);
        if self.out == Out::Half { stored::<f16>(outputs) } else { outputs }
    }

    fn prompt(&self) -> QuantisedPrompt {
        let &Case { rows: [_, max_rows], n, k, format, gate, .. } = self;
        QuantisedPrompt { max_rows, n, k, format, gate, order: SumOrder::Fastest }
    }

    /// The outputs.
    fn run(&self, operands: &Operands, seed: u64) -> Vec<f32> {
        let &Case { format, rows: [num_rows, max_rows], n, k, gate, .. } = self;
        let mut device = Device::default();
        let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
        let x = operands.x.first(num_rows);
        let x = Input16::Half(device.matrix("x", &x, (k + Self::PAD, max_rows)));
        let parts = operands.stored.chunks(operands.stored.len() / self.weight_rows() * n);
        let packed: Vec<u8> = parts.flat_map(|part| pack(format, [n, k], part)).collect();
        let weight = device.bytes("weight", &packed);
        let bias = self.bias.then_some(&operands.bias[..]);
        let at = (self.rows, n + Self::PAD);
        let terms = Terms::<f16>::new(&mut device, self.out, at, bias, &operands.residual);
        let Terms { bias, residual, out } = terms;
        let operands = QuantisedOperands { x, weight, bias, residual, out };
        let launch = match self.kernel {
            Kernel::Small(gpu) => {
                let linear = QuantisedLinear { max_rows, n, k, format, gate };
                linear.launch(gpu, num_rows_ptr, &operands)
            }
            Kernel::Prompt(gpu, order) => {
                let prompt = QuantisedPrompt { order, ..self.prompt() };
                prompt.launch(gpu, num_rows_ptr, &operands, &mut tensor_map)
            }
        };
        device.run(launch, seed);
        terms.read(&device, self.rows, n)
    }

    #[track_caller]
    fn check(&self, seed: u64) {
        self.check_with(&self.operands(), seed);
    }

    #[track_caller]
    fn check_with(&self, operands: &Operands, seed: u64) {
        let (got, want) = (self.run(operands, seed), self.oracle(operands));
        assert_right(&format!("{self:?}, seed {seed}"), &got, &want);
        if self.gate.is_none() {
            let square = |terms: &mut dyn Iterator<Item = f64>| terms.map(|x| x * x).sum::<f64>();
            let off = square(&mut want.iter().zip(&got).map(|(w, &got)| f64::from(got) - w.value));
            let all = square(&mut want.iter().map(|want| want.value));
            assert!(off <= 1e-6 * all, "{self:?}: a relative error of {}", (off / all).sqrt());
        }
    }
}

#[test]
fn every_format_and_count_of_rows_matches_oracle() {
    for (seed, format) in BlockFormat::tiled().enumerate() {
        for (at, rows) in [0, 1_usize, 2, 3, 8, 15, 16].into_iter().enumerate() {
            let rows = [rows, [rows.max(1), rows.next_multiple_of(8).max(8)][(seed + at) % 2]];
            let (out, gate) = out_of(seed + at);
            let kernel = Kernel::Small([HOPPER, SM80][at % 2]);
            let (n, bias) = ([17, 40, 16][at % 3], at % 2 == 0);
            Case { format, rows, n, bias, out, gate, kernel, ..SMALL }.check(seed as u64);
        }
        for (at, rows) in [0, 17, 64, 129].into_iter().enumerate() {
            let (out, gate) = out_of(seed / 3 + at);
            let (kernel, bias) = (on(GPUS[(seed + at) % 3]), at % 2 == 1);
            let rows = [rows, rows.max(17) + 3 * (seed % 2)];
            let n = [24, 130, 20, 72][at];
            Case { format, rows, n, bias, out, gate, kernel, ..PROMPT }.check(seed as u64);
        }
    }
    // Outputs that are not aligned.
    for (out, gate) in (0..3 * Activation::ALL.len()).map(out_of) {
        Case { n: 33, rows: [18, 66], out, gate, ..PROMPT }.check(3);
    }
}

#[test]
fn every_length_of_k_matches_oracle() {
    // Around a group, a unit, a tile and the tiles of four warps.
    let lengths = [32, 64, 96, 256, 288, 352, 896, 1024, 1056, 1312];
    for (seed, (k, format)) in (0..).zip(lengths.into_iter().zip(in_blocks_of(32).cycle())) {
        Case { format, k, n: 24, ..SMALL }.check(seed);
        for gpu in GPUS {
            Case { format, k, kernel: on(gpu), ..PROMPT }.check(seed);
        }
    }
    let lengths = [256, 1280, 2304, 4096];
    for (seed, (format, k)) in (0..).zip(in_blocks_of(256).zip(lengths.into_iter().cycle())) {
        Case { format, k, n: 18, ..SMALL }.check(seed);
    }
    for (seed, (format, k)) in
        (0..).zip(in_blocks_of(256).zip([256, 1280, 10_240].into_iter().cycle()))
    {
        Case { format, k, rows: [17, 66], ..PROMPT }.check(seed);
    }
}

#[test]
fn what_does_not_fit_into_shared_memory_is_computed_in_parts() {
    // x in chunks.
    let case = Case { rows: [15, 16], n: 70, k: 4096, kernel: Kernel::Small(SM80), ..SMALL };
    case.check(1);
    Case { format: BlockFormat::Q5_0, n: 33, k: 2912, ..case }.check(2);
    // Rows of tiles in batches.
    let case = Case { format: BlockFormat::Q6_K, rows: [15, 16], n: 250, ..SMALL };
    case.check(1);
    // More than one tile along k a warp.
    Case { n: 140, k: 4352, ..case }.check(2);
    Case { n: 118, k: 2304, out: Out::Half, gate: SILU, ..case }.check(3);
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_every_order() {
    for format in [BlockFormat::Q2_K, BlockFormat::Q4_K, BlockFormat::Q6_K, BlockFormat::Q5_0] {
        let all = Case { format, rows: [16, 16], k: 1280, ..SMALL };
        let operands = all.operands();
        let of = |rows| bits(&Case { rows, ..all }.run(&operands, 3)[..all.n]);
        let want = of([1, 1]);
        for rows in [[1, 8], [3, 3], [8, 8], [9, 16], [16, 16]] {
            assert_eq!(of(rows), want, "{rows:?} {format:?}");
        }
    }
    let prompts =
        GPUS.map(|gpu| Case { rows: [18, 70], n: 132, k: 1280, kernel: on(gpu), ..PROMPT });
    for case in prompts.into_iter().chain([Case { rows: [5, 8], k: 1280, ..SMALL }]) {
        let operands = case.operands();
        assert_same_bits(&format!("{case:?}"), |seed| case.run(&operands, seed));
    }
    // Without such an order the number of rows chooses between the instances of prompts.
    for (gpu, order) in GPUS
        .into_iter()
        .flat_map(|gpu| [SumOrder::Tiles, SumOrder::SmallBatch].map(|order| (gpu, order)))
    {
        let all = Case { k: 1024, kernel: Kernel::Prompt(gpu, order), ..PROMPT };
        let operands = all.operands();
        let [few, many] = [3, 66].map(|rows| Case { rows: [rows; 2], ..all }.run(&operands, 1));
        assert!(many.starts_with(&few), "{order:?} on {gpu:?}");
    }
}

#[test]
fn large_and_small_numbers_match_oracle() {
    for (seed, format) in (0..).zip(BlockFormat::tiled()) {
        let case = Case { format, bias: false, ..SMALL };
        // Activations near the end of f16, whose sums are beyond it.
        let large = |x: f32| 60_000.0 * (0.9 + 0.1 * x.abs());
        case.check_with(&case.operands_of(large, |factor| factor), seed);
        // Subnormal ones, and factors that are.
        let case = Case { out: Out::Half, ..case };
        case.check_with(&case.operands_of(|x| 1000.0 * x, |factor| 1e-5 * factor), seed);
        case.check_with(&case.operands_of(|x| 1e-4 * x, |factor| 100.0 * factor), seed);
        // Blocks of zeros.
        let zeros = case.operands_of(|x| x, |_| 0.0);
        assert!(case.run(&zeros, 0).iter().all(|&out| out == 0.0));
    }
}

/// Products that round nowhere but in the weight: each output is an element of it, rounded to f16
/// as a dense copy has it.
#[test]
fn elements_of_prompts_are_those_of_a_dense_copy() {
    for format in BlockFormat::tiled() {
        let (bias, out) = (false, Out::Half);
        let case = Case { format, rows: [256, 256], k: 256, n: 16, bias, out, ..PROMPT };
        let mut operands = case.operands();
        operands.x = Matrix::new(256, 256, |row, column| f64::from(u8::from(row == column)));
        let got = case.run(&operands, 1);
        let weight = elements(format, &operands.stored);
        let want = (0..got.len()).map(|at| Approx::new(weight[at % 16 * 256 + at / 16], 1e-6));
        assert_right(&format!("{format:?}"), &got, &stored::<f16>(want.collect()));
    }
}

#[test]
fn a_fused_norm_has_the_bits_of_the_separate_one() {
    for (seed, format) in (0..).zip(BlockFormat::tiled()) {
        for (gpu, num_rows, k) in [(HOPPER, 1, 352_usize), (SM80, 3, 896), (HOPPER, 7, 2208)] {
            let k = k.next_multiple_of(format.block_elems());
            // Rows of x from the row count on are unwritten.
            let (max_rows, n, eps) = (num_rows + 1, 40, 1e-5);
            let linear = QuantisedLinear { max_rows, n, k, format, gate: None };
            assert!(linear.fuses_norm());
            let mut device = Device::default();
            let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
            let x = Matrix::random::<f32>(num_rows, k, 1);
            let x: Rows<f32> = device.matrix("x", &x, (k + 4, max_rows));
            let norm_weight = device.f32s("norm weight", &random(k, 2));
            let normed = device.out("normed", (k, max_rows));
            let norm = RmsNorm { max_rows, num_groups: 1, group_size: k, eps };
            device.run(norm.launch(num_rows_ptr, x, norm_weight, normed), 1);
            let stored = random_rows(format, [n, k], 3, |factor| 0.01 * factor);
            let weight = device.bytes("weight", &pack(format, [n, k], &stored));
            let mut run = |x| {
                let out: Rows<f32> = device.out("out", (n, max_rows));
                let (bias, residual, out_f32) = (None, None, Out16::F32(out));
                let operands = QuantisedOperands { x, weight, bias, residual, out: out_f32 };
                device.run(linear.launch(gpu, num_rows_ptr, &operands), seed);
                device.read_rows(out, [num_rows, max_rows], n)
            };
            let separate = run(Input16::Half(normed));
            let fused = run(Input16::Normed { x, weight: norm_weight, eps });
            assert!(separate.iter().all(|out| out.is_finite()));
            assert_eq!(separate, fused, "{format:?}: {num_rows} rows of {k}");
        }
    }
}

#[test]
fn dense_copies_and_gathered_rows_have_the_elements() {
    fn check<E: Stored + kernels::element::Half>(format: BlockFormat, n: usize, k: usize) {
        let blocks = random_rows(format, [n, k], 7, |factor| 0.1 * factor);
        let mut device = Device::default();
        let weight = device.bytes("weight", &pack(format, [n, k], &blocks));
        let out: Rows<E> = device.out("out", (k + 4, n));
        device.run(Dequantise { n, k, format }.launch(weight, out), 1);
        let want = elements(format, &blocks).into_iter().map(|x| Approx::new(x, 1e-5));
        let case = format!("{format:?} {n} x {k}");
        assert_right(&case, &device.read_rows(out, [n, n], k), &stored::<E>(want.collect()));
    }
    for format in BlockFormat::tiled() {
        let is_small = format.block_elems() == 32;
        check::<f16>(format, 17, if is_small { 352 } else { 512 });
        check::<bf16>(format, 32, 2304);
        let (n, k) = (40, if is_small { 2400 } else { 512 });
        let blocks = random_rows(format, [n, k], 7, |factor| 0.1 * factor);
        let mut device = Device::default();
        let weight = device.bytes("weight", &pack(format, [n, k], &blocks));
        let indices = [39_u32, 0, 7, 8, 15, 16, 39, 24];
        let (num_rows, ids) = (device.u32s("num_rows", &[6]), device.u32s("ids", &indices));
        let out: Rows<f32> = device.out("out", (k + 4, 8));
        let gather = GatherQuantised { max_rows: 8, n, k, format };
        device.run(gather.launch(num_rows, ids, weight, out), 1);
        let elements = elements(format, &blocks);
        let want = indices[..6].iter().flat_map(|&index| &elements[index as usize * k..][..k]);
        let want: Vec<_> = want.map(|&x| Approx::new(x, 1e-5 * x.abs().max(1.0))).collect();
        assert_right(&format!("{format:?}"), &device.read_rows(out, [6, 8], k), &want);
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
fn layers_of_blocks_reject_what_no_kernel_takes() {
    let small = |linear: QuantisedLinear, weight: u64, x_stride: usize, out| {
        let residual = Some(rows_at(48, 64)).filter(|_| linear.gate.is_none());
        let (x, weight) = (Input16::Half(rows_at(16, x_stride)), rows_at::<u8>(weight, 0).ptr);
        let operands = QuantisedOperands { x, weight, bias: None, residual, out };
        error(linear.launch(Gpu::HOPPER, ptr(64), &operands))
    };
    let right = QuantisedLinear { max_rows: 1, n: 64, k: 512, format: SMALL.format, gate: None };
    let (f32s, halves) = (Out16::F32(rows_at(48, 64)), Out16::Half(rows_at(48, 64)));
    let rows = small(QuantisedLinear { max_rows: 17, ..right }, 32, 512, f32s);
    assert_eq!(rows, "rows is 17: expected at most 16 with a quantised weight");
    let k = |k, format| small(QuantisedLinear { k, format, ..right }, 32, 2048, f32s);
    assert_eq!(k(896, BlockFormat::Q6_K), "k is 896: expected a multiple of 256");
    assert_eq!(k(48, BlockFormat::Q8_0), "k is 48: expected a multiple of 32");
    assert_eq!(k(0, BlockFormat::Q8_0), "k is 0: expected at least one block");
    assert_eq!(small(right, 40, 512, f32s), "address is 40: expected a multiple of 16");
    let stride = "row stride is 516: expected rows of x that are 16-byte aligned";
    assert_eq!(small(right, 32, 516, f32s), stride);
    let bits = "output bits is 16: expected 32 with a residual";
    assert_eq!(small(right, 32, 512, halves), bits);
    let gated = QuantisedLinear { gate: SILU, ..right };
    let bits = "output bits is 32: expected 16 with a gate";
    assert_eq!(small(gated, 32, 512, f32s), bits);

    let prompt = |prompt: QuantisedPrompt| {
        let (x, weight) = (Input16::Half(rows_at(16, 512)), rows_at::<u8>(32, 0).ptr);
        let operands = QuantisedOperands { x, weight, bias: None, residual: None, out: f32s };
        error(prompt.launch(SM80, ptr(64), &operands, &mut |_: &_| EncodedTensorMap::NONE))
    };
    assert_eq!(prompt(QuantisedPrompt { gate: SILU, ..PROMPT.prompt() }), bits);
    let short = prompt(QuantisedPrompt { k: 896, ..PROMPT.prompt() });
    assert_eq!(short, "k is 896: expected a multiple of 256");
}
