//! Linear layers of small batches with a fused norm, a gate, or both: bit by bit against the
//! separate kernels, and against an oracle.

use crate::device::{Device, SEEDS, Stored, assert_close, random};
use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::element::NarrowedFrom;
use kernels::gemm::Gemv16;
use kernels::gemm::SmallM16;
use kernels::gemm::kernels::small_m::gemm_16_small_m::Instance;
use kernels::gemm::{
    Gpu, Input16, Linear16, Linear16Operands, MAX_FUSED_ROWS, Out16, SumOrder, Summation, Target,
};
use kernels::rms_norm::RmsNorm;
use kernels::silu_mul::SiluMul;
use kernels::tile::element::Operand16;

/// Added to the mean of squares, which is 1/3: a scale without it is a third too large.
const EPS: f32 = 0.25;

/// An element of operands.
trait Half: Operand16 + Stored + NarrowedFrom<f32> {}

impl<E: Operand16 + Stored + NarrowedFrom<f32>> Half for E {}

/// A fused layer of `num_rows` rows in a launch for `max_rows`.
#[derive(Clone, Copy, Debug)]
struct Case {
    num_rows: usize,
    max_rows: usize,
    n: usize,
    k: usize,
    /// Whether the norm is fused, too; else only the gate is.
    normed: bool,
    gated: bool,
    with_bias: bool,
    to_f32: bool,
    /// What the weight's elements, from -1 to 1, are multiplied by.
    magnitude: f32,
    kernel: Kernel,
}

/// The kernel of a case.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    /// The launcher's choice among the instances without TMA.
    Chosen,
    /// An instance without TMA.
    Loading(Instance),
    /// The kernel that streams weights by TMA, on so many SMs.
    Streamed(usize),
    /// GEMV, for one row.
    Gemv,
}

/// A GPU without TMA.
const SM80: Gpu = Gpu { target: Target::Sm80, num_sms: 108, overlaps: false };

const NORMED: Case = Case {
    num_rows: 1,
    max_rows: 1,
    n: 17,
    k: 104,
    normed: true,
    gated: false,
    with_bias: true,
    to_f32: false,
    magnitude: 1.0,
    kernel: Kernel::Chosen,
};

const GATED: Case = Case { gated: true, n: 13, magnitude: 0.25, ..NORMED };

const GATED_ALONE: Case = Case { normed: false, ..GATED };

impl Case {
    fn weight_rows(&self) -> usize {
        if self.gated { 2 * self.n } else { self.n }
    }

    /// Elements from a row of x to the next.
    fn x_stride(&self) -> usize {
        self.k + 4
    }

    /// Elements from a row of the weight to the next.
    fn weight_stride(&self) -> usize {
        self.k + 8
    }
}

/// The operands of a case, the rows of x the same for every count of rows.
struct Operands {
    x: Vec<f32>,
    norm_weight: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Operands {
    fn new<E: Half>(case: &Case) -> Self {
        let mut x = random(case.num_rows * case.x_stride(), 1);
        // Padding that would show in a sum.
        x.chunks_mut(case.x_stride()).for_each(|row| row[case.k..].fill(f32::INFINITY));
        let weight = random(case.weight_rows() * case.weight_stride(), 3);
        Operands {
            x,
            norm_weight: random(case.k, 2).into_iter().map(|value| 1.0 + value / 2.0).collect(),
            weight: weight.into_iter().map(|w| E::of(case.magnitude * w).value()).collect(),
            bias: random(case.weight_rows(), 4),
        }
    }

    fn normed<E: Half>(&self, case: &Case) -> Vec<f64> {
        let row = |row: usize| &self.x[row * case.x_stride()..][..case.k];
        let normed = |row: &[f32]| -> Vec<f64> {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let scale = 1.0 / (squares / case.k as f64 + f64::from(EPS)).sqrt();
            let weighted = row.iter().zip(&self.norm_weight);
            let weighted = weighted.map(|(&x, &w)| f64::from(x) * scale * f64::from(w));
            let rounded = |value: f64| f64::from(E::of(value as f32).value());
            let is_rounded = !case.normed || !matches!(case.kernel, Kernel::Gemv);
            weighted.map(|value| if is_rounded { rounded(value) } else { value }).collect()
        };
        (0..case.num_rows).flat_map(|at| normed(row(at))).collect()
    }

    fn oracle<E: Half>(&self, case: &Case) -> Vec<f64> {
        let normed = self.normed::<E>(case);
        let sum = |row: usize, column: usize| {
            let weight = &self.weight[column * case.weight_stride()..][..case.k];
            let x = &normed[row * case.k..][..case.k];
            let sum: f64 = x.iter().zip(weight).map(|(x, &w)| x * f64::from(w)).sum();
            sum + if case.with_bias { f64::from(self.bias[column]) } else { 0.0 }
        };
        let output = |at: usize| {
            let (row, column) = (at / case.n, at % case.n);
            if !case.gated {
                return sum(row, column);
            }
            let (gate, up) = (sum(row, column), sum(row, case.n + column));
            gate / (1.0 + (-gate).exp()) * up
        };
        (0..case.num_rows * case.n).map(output).collect()
    }
}

/// A case's operands on the emulator.
struct Setup {
    device: Device,
    num_rows: DevicePtr<u32>,
    x: Rows<f32>,
    norm_weight: DevicePtr<f32>,
    bias: Option<DevicePtr<f32>>,
}

impl Setup {
    fn new(case: &Case, operands: &Operands) -> Self {
        let mut device = Device::default();
        let num_rows = device.u32s("num_rows", &[case.num_rows as u32]);
        let stride = case.x_stride();
        let written = &operands.x[..case.num_rows * stride];
        let x = Rows::new(device.partly_written("x", written, case.max_rows * stride), stride);
        let norm_weight = device.f32s("norm weight", &operands.norm_weight);
        let bias = case.with_bias.then(|| device.f32s("bias", &operands.bias));
        Setup { device, num_rows, x, norm_weight, bias }
    }

    fn weight<E: Half>(&mut self, case: &Case, operands: &Operands) -> Rows<E> {
        let weight = self.device.numbers("weight", &operands.weight);
        Rows::new(weight, case.weight_stride())
    }

    fn out<E: Half>(&mut self, case: &Case, n: usize) -> Out16<E> {
        let len = case.num_rows * n;
        if case.to_f32 {
            Out16::F32(Rows::new(self.device.poisoned("out", len), n))
        } else {
            Out16::Half(Rows::new(self.device.poisoned("out", len), n))
        }
    }

    /// The normed rows.
    fn norm<E: Half>(&mut self, case: &Case) -> Rows<E> {
        let &Case { max_rows, k, .. } = case;
        let normed = Rows::new(self.device.poisoned::<E>("normed", max_rows * k), k);
        let norm = RmsNorm { max_rows, num_groups: 1, group_size: k, eps: EPS };
        self.run(norm.launch(self.num_rows, self.x, self.norm_weight, normed), 0);
        normed
    }

    /// Runs a launch, which has no bank conflicts.
    fn run(&mut self, launch: Result<Option<Launch>, LaunchError>, seed: u64) {
        let symbol = launch.as_ref().map_or("", |launch| launch.as_ref().map_or("", |l| l.symbol));
        let report = self.device.run(launch, seed);
        assert_eq!(report.bank_conflicts, 0, "{symbol}");
    }

    fn read<E: Half>(&self, case: &Case, out: Out16<E>) -> Vec<f32> {
        let len = case.num_rows * case.n;
        match out {
            Out16::F32(rows) => self.device.read_f32(rows.ptr, len),
            Out16::Half(rows) => self.device.read(rows.ptr, len),
        }
    }
}

/// The outputs of the fused kernel.
fn fused<E: Half>(case: &Case, operands: &Operands, seed: u64) -> Vec<f32> {
    let &Case { max_rows, n, k, gated, .. } = case;
    let mut setup = Setup::new(case, operands);
    let weight = setup.weight::<E>(case, operands);
    let x = match case.normed {
        true => Input16::Normed { x: setup.x, weight: setup.norm_weight, eps: EPS },
        false => Input16::Half(setup.norm::<E>(case)),
    };
    let (bias, out) = (setup.bias, setup.out::<E>(case, n));
    let operands = Linear16Operands { x, weight, bias, residual: None, out };
    let linear = Linear16 { gated, ..Linear16::new(max_rows, n, k) };
    let small_m = SmallM16(linear);
    let (num_rows, maps) = (setup.num_rows, &mut TensorMapSpec::emulated);
    let launch = match case.kernel {
        Kernel::Chosen => small_m.launch(SM80, num_rows, &operands, maps),
        Kernel::Loading(instance) => small_m.launch_instance(instance, num_rows, &operands),
        Kernel::Streamed(num_sms) => {
            let gpu = Gpu { num_sms, ..Gpu::HOPPER };
            small_m.launch_streamed(gpu, num_rows, &operands, maps)
        }
        Kernel::Gemv => Gemv16(linear).launch(num_rows, &operands),
    };
    setup.run(launch, seed);
    setup.read(case, out)
}

/// The outputs of the kernels one by one.
fn separate<E: Half>(case: &Case, operands: &Operands) -> Vec<f32> {
    let &Case { num_rows, max_rows, n, k, gated, .. } = case;
    let mut setup = Setup::new(case, operands);
    let (rows, weight) = (setup.num_rows, setup.weight::<E>(case, operands));
    let normed = setup.norm::<E>(case);

    let columns = case.weight_rows();
    let (x, bias, out) = (Input16::Half(normed), setup.bias, setup.out::<E>(case, columns));
    let operands = Linear16Operands { x, weight, bias, residual: None, out };
    let linear = SmallM16(Linear16::new(max_rows, columns, k));
    let launch = match case.kernel {
        Kernel::Loading(instance) => {
            linear.launch_instance(plain_instance::<E>(instance), rows, &operands)
        }
        // How many warps share k depends on the SMs.
        Kernel::Streamed(num_sms) => {
            linear.launch(Gpu { num_sms, ..SM80 }, rows, &operands, &mut |_| unreachable!())
        }
        _ => linear.launch(SM80, rows, &operands, &mut |_| unreachable!()),
    };
    setup.run(launch, 0);
    let Out16::Half(gate) = out else { return setup.read(case, out) };
    if !gated {
        return setup.read(case, out);
    }
    let up = Rows::new(gate.ptr.add(n), gate.row_stride);
    let out = Rows::new(setup.device.poisoned("out", num_rows * n), n);
    setup.run(SiluMul { max_rows, width: n }.launch(rows, gate, up, out), 0);
    setup.read(case, Out16::Half(out))
}

/// An instance without fusion in which as many warps share k as in `fused`.
fn plain_instance<E: Half>(fused: Instance) -> Instance {
    let mut plain = instances::<E>().filter(|instance| !instance.normed() && !instance.gated());
    plain.find(|instance| instance.warps() == fused.warps()).expect("an instance of as many warps")
}

/// The instances of `E`.
fn instances<E: Half>() -> impl Iterator<Item = Instance> {
    let element = TypeId::of::<E>();
    let instances = Instance::ALL.iter().copied();
    instances.filter(move |instance| instance.e() == element && instance.w() == element)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Compares a case with the separate kernels and with the oracle.
fn check<E: Half>(case: &Case, seed: u64) {
    let operands = Operands::new::<E>(case);
    let got = fused::<E>(case, &operands, seed);
    if !matches!(case.kernel, Kernel::Gemv) {
        assert_eq!(bits(&got), bits(&separate::<E>(case, &operands)), "{case:?}");
    }
    // GEMV rounds nothing before the store.
    let is_exact = matches!(case.kernel, Kernel::Gemv) && case.to_f32;
    let bound = if is_exact { 1e-5 } else { 8.0 * E::ROUNDING };
    assert_close(&format!("{case:?}"), &got, &operands.oracle::<E>(case), bound);
}

#[test]
fn norms_match_around_warps_and_lines() {
    // A load, a line, a chunk, what four warps have, and a second round of warps.
    for (at, k) in [8, 64, 72, 256, 264, 1016, 1024, 1032, 2056].into_iter().enumerate() {
        let num_rows = [1, 8, 3][at % 3];
        let case = Case { k, num_rows, max_rows: 8, to_f32: at % 2 == 0, ..NORMED };
        check::<f16>(&case, at as u64);
        check::<bf16>(&Case { with_bias: false, ..case }, at as u64);
    }
}

#[test]
fn gates_match_around_tiles() {
    for (at, n) in [1, 7, 8, 9, 16, 17].into_iter().enumerate() {
        let num_rows = [1, 8, 7][at % 3];
        let case = Case { n, num_rows, max_rows: 8, k: 136, with_bias: at % 2 == 0, ..GATED };
        for normed in [true, false] {
            check::<f16>(&Case { normed, ..case }, at as u64);
            check::<bf16>(&Case { normed, k: 1032, ..case }, at as u64);
        }
    }
}

#[test]
fn every_instance_matches_in_every_order() {
    fn check_all<E: Half>() {
        let is_fused = |instance: &Instance| instance.normed() || instance.gated();
        for instance in instances::<E>().filter(is_fused) {
            let (normed, gated) = (instance.normed(), instance.gated());
            let (n, kernel) = (33, Kernel::Loading(instance));
            let base = if gated { GATED } else { NORMED };
            for seed in SEEDS {
                let case = Case { num_rows: 7, max_rows: 8, n, k: 1032, normed, kernel, ..base };
                check::<E>(&case, seed);
                check::<E>(&Case { num_rows: 1, max_rows: 1, k: 896, ..case }, seed);
            }
        }
    }
    check_all::<f16>();
    check_all::<bf16>();
}

#[test]
fn streamed_weights_give_the_same_bits() {
    fn check_all<E: Half>() {
        for (at, seed) in SEEDS.enumerate() {
            let num_rows = [1, 7, 8][at % 3];
            let base = Case { num_rows, max_rows: 8, with_bias: at % 2 == 0, ..NORMED };
            // A tile a block, by 16 warps and by 8; and several of them, which 8 have.
            for num_sms in [132, 2] {
                let base = Case { kernel: Kernel::Streamed(num_sms), ..base };
                check::<E>(&Case { n: 41, k: 1192, ..base }, seed);
                check::<E>(&Case { n: 2117, k: 72, ..base }, seed);
                let base = Case { gated: true, magnitude: 0.25, ..base };
                check::<E>(&Case { n: 41, k: 1192, ..base }, seed);
                check::<E>(&Case { n: 1061, k: 72, ..base }, seed);
                check::<E>(&Case { n: 41, k: 1192, normed: false, ..base }, seed);
                check::<E>(&Case { n: 1061, k: 72, normed: false, ..base }, seed);
            }
        }
    }
    check_all::<f16>();
    check_all::<bf16>();
}

#[test]
fn streamed_weights_whose_first_boxes_lanes_copy_give_the_same_bits() {
    // Six lines of k a warp.
    let base = Case { num_rows: 3, max_rows: 4, n: 19, k: 5128, ..NORMED };
    let gated = Case { gated: true, magnitude: 0.25, ..base };
    for (case, num_sms) in [(base, 132), (base, 2), (gated, 132), (gated, 2)] {
        check::<f16>(&Case { kernel: Kernel::Streamed(num_sms), ..case }, num_sms as u64);
    }
}

#[test]
fn gemv_matches_the_oracle() {
    fn check_all<E: Half>() {
        // Around a load, the k of a load of a warp, what two and four warps have in flight, and
        // rounds of the warps that split k.
        let lengths = [8, 248, 264, 512, 520, 1024, 1032, 2056, 2560, 5128];
        for (at, (k, seed)) in lengths.into_iter().zip(SEEDS.cycle()).enumerate() {
            let with_bias = at % 2 == 0;
            let base = Case { k, with_bias, kernel: Kernel::Gemv, ..NORMED };
            // Columns of part of a block, and of several blocks.
            check::<E>(&Case { n: [1, 7, 9, 37][at % 4], to_f32: at % 3 == 0, ..base }, seed);
            let base = Case { gated: true, magnitude: 0.25, ..base };
            check::<E>(&Case { n: [19, 1, 4, 5][at % 4], ..base }, seed);
            check::<E>(&Case { n: [19, 1, 4, 5][at % 4], normed: false, ..base }, seed);
        }
        // Many columns, of which fewer warps split k.
        check::<E>(&Case { n: 4101, k: 776, kernel: Kernel::Gemv, ..NORMED }, 0);
        check::<E>(&Case { n: 2051, k: 1064, kernel: Kernel::Gemv, ..GATED }, 0);
    }
    check_all::<f16>();
    check_all::<bf16>();
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for base in [NORMED, GATED, GATED_ALONE] {
        let case = Case { num_rows: 8, max_rows: 8, k: 1192, ..base };
        let operands = Operands::new::<f16>(&case);
        let of_all = fused::<f16>(&case, &operands, 1);
        let alone = fused::<f16>(&Case { num_rows: 1, max_rows: 1, ..case }, &operands, 2);
        assert_eq!(bits(&alone), bits(&of_all[..case.n]));
    }
}

#[test]
fn no_rows_write_nothing() {
    let kernels = [(Kernel::Chosen, 8), (Kernel::Streamed(2), 8), (Kernel::Gemv, 1)];
    let cases = [NORMED, GATED, GATED_ALONE].map(|base| kernels.map(|kernel| (base, kernel)));
    for (base, (kernel, max_rows)) in cases.into_iter().flatten() {
        let rows = Operands::new::<f16>(&Case { num_rows: 1, ..base });
        let case = Case { num_rows: 0, max_rows, kernel, ..base };
        assert!(fused::<f16>(&case, &rows, 0).is_empty());
    }
}

#[test]
fn a_product_that_overflows_is_clamped_in_f16() {
    let case = Case { num_rows: 2, max_rows: 2, n: 24, k: 512, magnitude: 40.0, ..GATED };
    let operands = Operands::new::<f16>(&case);
    let got = fused::<f16>(&case, &operands, 0);
    assert!(got.iter().any(|value| value.abs() == 65_504.0), "{got:?}");
    assert!(got.iter().all(|value| value.is_finite()), "{got:?}");
    assert_eq!(bits(&got), bits(&separate::<f16>(&case, &operands)));
    // In bf16 nothing overflows; gate and up that are infinite in f16 do as they do in SiluMul.
    check::<bf16>(&case, 0);
    let infinite = Case { magnitude: 40_000.0, ..case };
    let operands = Operands::new::<f16>(&infinite);
    let got = fused::<f16>(&infinite, &operands, 0);
    assert_eq!(bits(&got), bits(&separate::<f16>(&infinite, &operands)));
}

/// The symbol of a launch, or why there is none.
fn launch(
    gpu: Gpu,
    (max_rows, n, k, gated): (usize, usize, usize, bool),
    change: impl FnOnce(&mut Linear16Operands<f16>),
) -> Result<&'static str, String> {
    let x = Rows::new(DevicePtr::new(16), k);
    let (weight, half) = (Rows::new(DevicePtr::new(32), k), Rows::new(DevicePtr::new(48), n));
    let x = Input16::Normed { x, weight: DevicePtr::new(80), eps: EPS };
    let out = Out16::Half(half);
    let mut operands = Linear16Operands { x, weight, bias: None, residual: None, out };
    change(&mut operands);
    // In any order one row has a kernel of its own.
    let order = if max_rows == 1 { SumOrder::SmallBatch } else { SumOrder::Fastest };
    let summation = Summation { order, ..Summation::default() };
    let linear = Linear16 { gated, summation, ..Linear16::new(max_rows, n, k) };
    let launch = linear.launch(gpu, DevicePtr::new(64), &operands, &mut TensorMapSpec::emulated);
    launch.map(|launch| launch.map_or("", |launch| launch.symbol)).map_err(|e| e.to_string())
}

/// What is fused, and the warps that share k, which decide the order of accumulation: these depend
/// on the weight and the GPU, never on the rows of x.
#[test]
fn a_fused_layer_is_accumulated_as_its_weight_is() {
    for (gpu, num_sms) in [(SM80, 28), (SM80, 108), (Gpu::HOPPER, 78), (Gpu::HOPPER, 132)] {
        let gpu = Gpu { num_sms, ..gpu };
        for (n, gated) in [40, 223, 225, 1056, 1057, 2112, 2113, 22_016]
            .into_iter()
            .flat_map(|n| [(n, false), (n, true)])
        {
            let weight_rows = if gated { 2 * n } else { n };
            let warps = if weight_rows <= 16 * num_sms { "_w16_" } else { "_w8_" };
            for max_rows in [1, 2, 8] {
                let symbol = launch(gpu, (max_rows, n, 896, gated), |_| ()).expect("a right shape");
                assert!(symbol.contains(warps), "{symbol} of {n} columns on {num_sms} SMs");
                assert!(symbol.contains("_norm") && symbol.contains("_silu") == gated, "{symbol}");
            }
            assert_eq!(launch(gpu, (0, n, 896, gated), |_| ()), Ok(""));
        }
        assert_eq!(launch(gpu, (1, 0, 896, true), |_| ()), Ok(""));
    }
}

#[test]
fn rejects_what_is_not_fused() {
    let shape = (8, 64, 896, false);
    let gated = (8, 64, 896, true);
    let error = |shape, change: fn(&mut Linear16Operands<f16>)| {
        launch(Gpu::HOPPER, shape, change).unwrap_err()
    };
    for (rows, fused) in [
        (9, "rows is 9: expected at most 8 with a norm or a gate, 16 with a weight in FP8"),
        (65, "rows is 65: expected at most 8 for a layer with a fused norm or gate"),
    ] {
        assert_eq!(error((rows, 64, 896, false), |_| ()), fused);
        assert_eq!(launch(SM80, (rows, 64, 896, true), |_| ()), Err(fused.to_owned()));
    }
    assert_eq!(
        error((8, 64, 8192, false), |_| ()),
        "k is 8192: expected columns whose normed rows fit into shared memory"
    );
    assert_eq!(
        error(gated, |operands| operands.out = Out16::F32(Rows::new(DevicePtr::new(96), 64))),
        "output bits is 32: expected 16 for a gated layer"
    );
    let residual = |operands: &mut Linear16Operands<f16>| {
        let rows = Rows::new(DevicePtr::new(96), 64);
        (operands.out, operands.residual) = (Out16::F32(rows), Some(rows));
    };
    assert_eq!(
        error(shape, residual),
        "residuals is 1: expected none for a layer with a fused norm or gate"
    );
    let odd = |operands: &mut Linear16Operands<f16>| {
        let x = Rows::new(DevicePtr::new(16), 898);
        operands.x = Input16::Normed { x, weight: DevicePtr::new(80), eps: EPS };
    };
    assert_eq!(error(shape, odd), "row stride is 898: expected a multiple of 4");
    let unaligned = |operands: &mut Linear16Operands<f16>| {
        let x = Rows::new(DevicePtr::new(16), 896);
        operands.x = Input16::Normed { x, weight: DevicePtr::new(84), eps: EPS };
    };
    assert_eq!(error(shape, unaligned), "address is 84: expected a multiple of 16");
}

#[test]
fn what_fuses_is_what_shared_memory_holds() {
    let fuses = |max_rows, k| Linear16::fuses(max_rows, k, true);
    assert!(fuses(MAX_FUSED_ROWS, 896) && fuses(MAX_FUSED_ROWS, 5120) && fuses(5, 8192));
    assert!(!fuses(MAX_FUSED_ROWS + 1, 896) && !fuses(6, 8192) && !fuses(1, 0));
    assert!(fuses(1, 32_768) && !fuses(1, 65_536) && !fuses(1, usize::MAX));
    // A gate needs none.
    let gates = |max_rows, k| Linear16::fuses(max_rows, k, false);
    assert!(gates(MAX_FUSED_ROWS, 65_536) && !gates(MAX_FUSED_ROWS + 1, 896) && !gates(1, 0));
}
