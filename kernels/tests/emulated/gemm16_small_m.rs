//! Linear layers of small batches in f16 and bf16, by the kernels without TMA.

use crate::device::{Device, SEEDS, Stored, assert_close, random};
use core::any::TypeId;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::element::Dtype;
use kernels::gemm::SmallM16;
use kernels::gemm::kernels::small_m::gemm_16_small_m::Instance;
use kernels::gemm::{Gpu, Input16, Linear16, Linear16Operands, Out16, Target};
use kernels::tile::element::Operand16;

/// An element of operands.
trait Half: Operand16 + Stored {}

impl<E: Operand16 + Stored> Half for E {}

/// A GPU whose weights are loaded without TMA.
const SM80: Gpu = Gpu { target: Target::Sm80, num_sms: 108, overlaps: false };

/// The name in symbols.
fn name_of<E: Half>() -> &'static str {
    if E::DTYPE == Dtype::BF16 { "bf16" } else { "f16" }
}

/// A linear layer of `num_rows` rows in a launch for `max_rows`.
#[derive(Clone, Copy, Debug)]
struct Case {
    num_rows: usize,
    max_rows: usize,
    n: usize,
    k: usize,
    /// Elements that strides of the operands have more than their rows.
    pad: usize,
    with_bias: bool,
    with_residual: bool,
    to_f32: bool,
    /// The instance, where it is not the launcher's choice.
    instance: Option<Instance>,
}

const CASE: Case = Case {
    num_rows: 1,
    max_rows: 1,
    n: 17,
    k: 104,
    pad: 8,
    with_bias: true,
    with_residual: true,
    to_f32: true,
    instance: None,
};

/// The operands of a case, the rows of x the same for every count of rows.
struct Operands<E> {
    x: Vec<E>,
    weight: Vec<E>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

impl<E: Half> Operands<E> {
    fn new(case: &Case) -> Self {
        let stride = case.k + case.pad;
        let halves = |len, salt| random(len, salt).into_iter().map(E::of).collect();
        Operands {
            x: halves(case.num_rows * stride, 1),
            weight: halves(case.n * stride, 2),
            bias: random(case.n, 3),
            residual: random(case.num_rows * case.n, 4),
        }
    }

    fn oracle(&self, case: &Case) -> Vec<f64> {
        let &Case { num_rows, n, k, pad, with_bias, with_residual, .. } = case;
        let stride = k + pad;
        let output = |at: usize| {
            let (row, column) = (at / n, at % n);
            let product = |i: usize| {
                f64::from(self.x[row * stride + i].value())
                    * f64::from(self.weight[column * stride + i].value())
            };
            let bias = if with_bias { f64::from(self.bias[column]) } else { 0.0 };
            let residual = if with_residual { f64::from(self.residual[at]) } else { 0.0 };
            (0..k).map(product).sum::<f64>() + bias + residual
        };
        (0..num_rows * n).map(output).collect()
    }
}

/// Runs the case; the outputs as floats.
fn run<E: Half>(case: &Case, operands: &Operands<E>, seed: u64) -> Vec<f32> {
    let &Case { num_rows, max_rows, n, k, pad, with_bias, with_residual, to_f32, .. } = case;
    let mut device = Device::default();
    let halves = |device: &mut Device, name, values: &[E], [written, rows]: [usize; 2]| {
        let stride = k + pad;
        let values = values[..written * stride].iter().map(|value| value.value());
        let values: Vec<f32> = values.collect();
        Rows::new(device.partly_written::<E>(name, &values, rows * stride), stride)
    };
    let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
    let x = halves(&mut device, "x", &operands.x, [num_rows, max_rows]);
    let weight = halves(&mut device, "weight", &operands.weight, [n, n]);
    let bias = with_bias.then(|| device.f32s("bias", &operands.bias));
    let residual = with_residual.then(|| device.f32s("residual", &operands.residual));
    let out = if to_f32 {
        // The output overwrites the residual, as in the decoder.
        let out = residual.unwrap_or_else(|| device.poisoned("out", num_rows * n));
        Out16::F32(Rows::new(out, n))
    } else {
        Out16::Half(Rows::new(device.poisoned("out", num_rows * n), n))
    };
    let residual = residual.map(|residual| Rows::new(residual, n));
    let linear = SmallM16(Linear16::new(max_rows, n, k));
    let operands = Linear16Operands { x: Input16::Half(x), weight, bias, residual, out };
    let launch = match case.instance {
        Some(instance) => linear.launch_instance(instance, num_rows_ptr, &operands),
        None => linear.launch(SM80, num_rows_ptr, &operands, &mut |_| unreachable!()),
    };
    let report = device.run(launch, seed);
    assert_eq!(report.bank_conflicts, 0, "{case:?}");
    match out {
        Out16::F32(rows) => device.read_f32(rows.ptr, num_rows * n),
        Out16::Half(rows) => device.read(rows.ptr, num_rows * n),
    }
}

fn check<E: Half>(case: &Case, seed: u64) {
    let operands = Operands::<E>::new(case);
    let got = run(case, &operands, seed);
    let bound = if case.to_f32 { 1e-5 } else { E::ROUNDING };
    assert_close(&format!("{} of {case:?}", name_of::<E>()), &got, &operands.oracle(case), bound);
}

/// The instances of `E` with nothing fused to them.
fn instances<E: Half>() -> impl Iterator<Item = Instance> {
    let of_element = |instance: &Instance| {
        instance.e() == TypeId::of::<E>() && instance.w() == TypeId::of::<E>()
    };
    let is_plain = |instance: &Instance| !instance.normed() && !instance.gated();
    Instance::ALL.iter().copied().filter(of_element).filter(is_plain)
}

#[test]
fn every_count_of_rows_matches_oracle() {
    let counts = [1_usize, 2, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129];
    for (at, num_rows) in counts.into_iter().enumerate() {
        let max_rows = [num_rows, num_rows.max(64) + 1, num_rows.next_multiple_of(8)][at % 3];
        let (with_bias, with_residual) = (at % 2 == 0, at % 3 == 0);
        let case = Case { num_rows, max_rows, with_bias, with_residual, ..CASE };
        check::<f16>(&case, at as u64);
        check::<bf16>(&Case { to_f32: false, with_residual: false, ..case }, at as u64);
    }
}

#[test]
fn odd_columns_match_oracle() {
    for (seed, n) in [1, 8, 15, 17, 151].into_iter().enumerate() {
        check::<f16>(&Case { n, num_rows: 3, max_rows: 8, k: 32, ..CASE }, seed as u64);
        check::<bf16>(&Case { n, num_rows: 9, max_rows: 16, k: 40, ..CASE }, seed as u64);
    }
}

#[test]
fn every_length_of_k_matches_oracle() {
    // Around a load, a step, a line, the block's lines of a round, and a second and third round.
    for (seed, k) in
        [8, 24, 32, 40, 64, 72, 1016, 1024, 1032, 4096, 4104, 8488].into_iter().enumerate()
    {
        check::<f16>(&Case { k, n: 9, num_rows: 2, max_rows: 8, ..CASE }, seed as u64);
    }
}

#[test]
fn every_instance_matches_oracle() {
    fn check_all<E: Half>() {
        for (seed, instance) in instances::<E>().enumerate() {
            let max_rows = 8 * instance.tiles_m();
            let instance = Some(instance);
            let to_f32 = seed % 2 == 0;
            for (num_rows, n, k) in [(max_rows, 33, 1096), (max_rows - 3, 65, 136)] {
                let with_residual = to_f32;
                let case =
                    Case { num_rows, max_rows, n, k, with_residual, to_f32, instance, ..CASE };
                check::<E>(&case, seed as u64);
            }
        }
    }
    check_all::<f16>();
    check_all::<bf16>();
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let alone = Case { n: 41, k: 1192, ..CASE };
    let of_all = Operands::<f16>::new(&Case { num_rows: 64, max_rows: 64, ..alone });
    for warps in [8, 16] {
        let mut want = None;
        for instance in instances::<f16>().filter(|instance| instance.warps() == warps) {
            for num_rows in [1, 8 * instance.tiles_m()] {
                let (max_rows, instance) = (8 * instance.tiles_m(), Some(instance));
                let case = Case { num_rows, max_rows, instance, ..alone };
                let bits: Vec<u32> =
                    run(&case, &of_all, 5)[..case.n].iter().map(|value| value.to_bits()).collect();
                assert_eq!(want.get_or_insert_with(|| bits.clone()), &bits, "{case:?}");
            }
        }
    }
}

/// A batch-invariant step has as many rows as there are sequences.
#[test]
fn a_row_has_the_same_bits_in_every_block_of_rows() {
    const BLOCK_M: usize = 64;
    for n in [41, 151] {
        let block = Case { num_rows: BLOCK_M, max_rows: BLOCK_M, n, ..CASE };
        let case = Case { num_rows: 2 * BLOCK_M + 3, max_rows: 4 * BLOCK_M, ..block };
        let mut operands = Operands::<f16>::new(&block);
        let want = run(&block, &operands, 1);
        operands.x = operands.x.repeat(3);
        operands.residual = operands.residual.repeat(3);
        operands.x.truncate(case.num_rows * (case.k + case.pad));
        operands.residual.truncate(case.num_rows * case.n);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let got = run(&case, &operands, 2);
        for (at, got) in got.chunks(want.len()).enumerate() {
            assert_eq!(bits(got), bits(&want[..got.len()]), "block {at} of {n} columns");
        }
    }
}

#[test]
fn the_order_of_threads_changes_no_bit() {
    let case = Case { num_rows: 5, max_rows: 8, n: 24, k: 2056, ..CASE };
    let operands = Operands::<bf16>::new(&case);
    let runs: Vec<Vec<f32>> = SEEDS.map(|seed| run(&case, &operands, seed)).collect();
    assert!(runs.iter().all(|run| *run == runs[0]));
}

/// The symbol and the threads of a block of the launch on `num_sms` SMs, or why there is none.
fn launch(num_sms: usize, max_rows: usize, n: usize) -> Result<(&'static str, u32), String> {
    let rows = |address| Rows::new(DevicePtr::<f16>::new(address), 896);
    let out = Out16::Half(rows(48));
    let (x, weight) = (rows(16), rows(32));
    let operands =
        Linear16Operands { x: Input16::Half(x), weight, bias: None, residual: None, out };
    let linear = SmallM16(Linear16::new(max_rows, n, 896));
    let gpu = Gpu { num_sms, ..SM80 };
    let launch = linear.launch(gpu, DevicePtr::new(64), &operands, &mut |_| unreachable!());
    let launch = launch.map_err(|error| error.to_string())?;
    Ok(launch.map_or(("", 0), |launch| (launch.symbol, launch.geometry.block[0])))
}

/// How many warps share k decides the order of accumulation: it depends on the weight and the GPU,
/// never on the rows of x.
#[test]
fn the_warps_that_share_k_depend_on_the_weight_and_the_gpu() {
    for num_sms in [28, 108, 132] {
        for n in [8, 448, 449, 896, 1728, 1729, 2112, 2113, 151_936] {
            let num_threads = if n <= 16 * num_sms { 512 } else { 256 };
            for max_rows in [1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 1024] {
                let (symbol, threads) = launch(num_sms, max_rows, n).expect("a right shape");
                assert_eq!(threads, num_threads, "{symbol} of {n} columns on {num_sms} SMs");
            }
        }
    }
    assert_eq!(launch(108, 0, 896), Ok(("", 0)));
    assert_eq!(launch(108, 4, 0), Ok(("", 0)));
}

/// Columns of a block for one row, as measured on an H200 in us by 8 and by 32 columns.
#[test]
fn the_columns_of_a_block_are_near_the_fastest_measured() {
    for (n, by_8, by_32) in
        [(9216, 17.4, 18.3), (9728, 7.3, 6.8), (12_288, 29.5, 27.3), (32_064, 51.6, 46.4)]
    {
        let (symbol, _) = launch(132, 1, n).expect("a right shape");
        let us: f64 = if symbol.contains("_n32_") { by_32 } else { by_8 };
        assert!(us <= 1.02 * f64::min(by_8, by_32), "{symbol} of {n} columns takes {us} us");
    }
}

#[test]
fn rejects_rows_that_cannot_be_loaded() {
    let error = |n, k, stride, address| {
        let rows = |address| Rows::new(DevicePtr::<bf16>::new(address), stride);
        let out = Out16::F32(Rows::new(DevicePtr::new(48), n));
        let (x, weight) = (rows(16), rows(address));
        let operands =
            Linear16Operands { x: Input16::Half(x), weight, bias: None, residual: None, out };
        let linear = SmallM16(Linear16::new(1, n, k));
        let launch = linear.launch(SM80, DevicePtr::new(64), &operands, &mut |_| unreachable!());
        launch.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(error(8, 12, 16, 32), "k is 12: expected a multiple of 8");
    assert_eq!(error(8, 8, 12, 32), "row stride is 12: expected a multiple of 8");
    assert_eq!(error(8, 8, 16, 40), "address is 40: expected a multiple of 16");
    let stride = (1 << 30) - 8;
    assert_eq!(
        error(17, 8, stride, 32),
        "row stride of the weight is 1073741816: expected a matrix of at most 32 GiB"
    );
}
