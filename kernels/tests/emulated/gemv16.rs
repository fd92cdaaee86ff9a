//! Linear layers of one row in f16 and bf16. Those with a fused norm are in `gemm16_fused`.

use crate::device::{SEEDS, Stored};
use crate::gemm16_sm90::case::{Case, ONE_ROW, Out, Setup, assert_right};
use cuda_std::launch::{DevicePtr, LaunchError};
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::Gemv16;
use kernels::gemm::{Gpu, Input16, Linear16, Linear16Operands, Out16, SumOrder, Summation};
use kernels::tile::element::Operand16;

/// Runs a case.
fn run<E: Operand16 + Stored>(case: &Case, seed: u64) -> (Setup<E>, &'static str) {
    let mut setup = Setup::<E>::new(case, 1);
    let linear = Gemv16(Linear16::new(case.max_rows, case.n, case.k));
    let (name, conflicts) =
        setup.run(seed, |num_rows, operands, _| linear.launch(num_rows, operands));
    assert_eq!(conflicts, 0, "{name} of {case:?}");
    (setup, name)
}

fn check<E: Operand16 + Stored>(case: &Case, seed: u64) {
    let (setup, name) = run::<E>(case, seed);
    assert_right(case, name, &setup);
}

#[test]
fn every_length_of_k_matches() {
    // Around a load, the k of a load of a warp, what a warp has in flight, splits of k over every
    // number of warps, and several rounds of them.
    let lengths =
        [8, 248, 256, 264, 1024, 1032, 2048, 2056, 3080, 4104, 5120, 5128, 8192, 11_008, 17_416];
    for (at, (k, seed)) in lengths.into_iter().zip(SEEDS.cycle()).enumerate() {
        let out = [Out::InPlace, Out::F32, Out::Residual, Out::Half][at % 4];
        let case = Case { k, n: 5, out, with_bias: at % 3 > 0, ..ONE_ROW };
        check::<f16>(&case, seed);
        check::<bf16>(&case, seed);
    }
}

#[test]
fn every_count_of_columns_of_a_block_matches() {
    for (n, seed) in (1..=9).zip(SEEDS.cycle()) {
        for k in [40, 1600] {
            check::<f16>(&Case { n, k, ..ONE_ROW }, seed);
        }
    }
}

#[test]
fn every_order_matches() {
    for seed in SEEDS {
        check::<f16>(&Case { n: 37, k: 4864, ..ONE_ROW }, seed);
        check::<bf16>(&Case { n: 133, k: 896, out: Out::Half, ..ONE_ROW }, seed);
    }
}

#[test]
fn no_rows_write_nothing() {
    for out in [Out::Half, Out::Residual] {
        let case = Case { num_rows: 0, out, ..ONE_ROW };
        let (setup, _) = run::<f16>(&case, 1);
        assert!(setup.outputs(&case).iter().all(Option::is_none));
    }
}

/// The symbol of a layer's launch, or why there is none.
fn launch(
    max_rows: usize,
    order: SumOrder,
    change: impl FnOnce(&mut Linear16, &mut Linear16Operands<f16>),
) -> Result<&'static str, LaunchError> {
    let rows = |address| Rows::new(DevicePtr::new(address), 896);
    let (x, weight, out) = (Input16::Half(rows(16)), rows(32), Out16::Half(rows(48)));
    let mut operands = Linear16Operands { x, weight, bias: None, residual: None, out };
    let summation = Summation { order, ..Summation::default() };
    let mut linear = Linear16 { summation, ..Linear16::new(max_rows, 896, 896) };
    change(&mut linear, &mut operands);
    let maps = &mut TensorMapSpec::emulated;
    let launch = linear.launch(Gpu::HOPPER, DevicePtr::new(64), &operands, maps);
    launch.map(|launch| launch.map_or("", |launch| launch.symbol))
}

#[test]
fn one_row_takes_gemv_where_any_order_is_allowed() {
    let symbol = |max_rows, order| launch(max_rows, order, |_, _| ()).expect("a right shape");
    let is_gemv = |max_rows, order| symbol(max_rows, order).starts_with("gemv");
    assert!(is_gemv(1, SumOrder::Fastest));
    assert_eq!(symbol(0, SumOrder::Fastest), "");
    assert!(!is_gemv(2, SumOrder::Fastest));
    // Rows that have the same bits in any batch do not.
    assert!(!is_gemv(1, SumOrder::SmallBatch) && !is_gemv(1, SumOrder::Tiles));
    let normed = |gated| {
        launch(1, SumOrder::Fastest, |linear, operands| {
            let x = Rows::new(DevicePtr::new(16), 896);
            operands.x = Input16::Normed { x, weight: DevicePtr::new(80), eps: 0.0 };
            linear.gated = gated;
        })
    };
    assert_eq!(normed(false).unwrap(), "gemv_f16_norm");
    assert_eq!(normed(true).unwrap(), "gemv_f16_norm_silu");
    let gated = launch(1, SumOrder::Fastest, |linear, _| linear.gated = true);
    assert_eq!(gated.unwrap(), "gemv_f16_silu");
}

#[test]
fn rejects_what_it_does_not_compute() {
    type Change = fn(&mut Linear16, &mut Linear16Operands<f16>);
    let error = |change: Change| launch(1, SumOrder::Fastest, change).unwrap_err().to_string();
    assert_eq!(error(|linear, _| linear.k = 900), "k is 900: expected a multiple of 8");
    assert_eq!(error(|linear, _| linear.k = 0), "k is 0: expected a multiple of 8");
    assert_eq!(
        error(|_, operands| operands.weight.row_stride = 900),
        "row stride is 900: expected a multiple of 8"
    );
    let two = Gemv16(Linear16::new(2, 8, 8));
    let rows = |address| Rows::new(DevicePtr::<f16>::new(address), 8);
    let (x, weight, out) = (Input16::Half(rows(16)), rows(32), Out16::Half(rows(48)));
    let operands = Linear16Operands { x, weight, bias: None, residual: None, out };
    let error = two.launch(DevicePtr::new(64), &operands).unwrap_err().to_string();
    assert_eq!(error, "rows is 2: expected at most 1");
}
