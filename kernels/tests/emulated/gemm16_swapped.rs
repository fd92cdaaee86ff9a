//! Linear layers of few rows and many columns in f16 and bf16, operands swapped: against an oracle, and
//! bit by bit against tiles.

use crate::device::{SEEDS, Stored};
use crate::gemm16_sm90::case::{Case, ONE_ROW, Out, Setup, assert_right, tile_columns};
use cuda_std::launch::DevicePtr;
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::f16_sm90::TILE_CONFIGS;
use kernels::gemm::f16_sm90::swapped::Swapped16;
use kernels::gemm::{
    Accumulate, Gpu, Input16, Linear16, Linear16Operands, Out16, SumOrder, Summation,
};
use kernels::tile::element::Operand16;

fn run<E: Operand16 + Stored>(case: &Case, seed: u64) -> (Setup<E>, &'static str) {
    let mut setup = Setup::<E>::new(case, 1);
    let linear = Swapped16(Linear16::new(case.max_rows, case.n, case.k));
    // Where launches overlap, weights are under way before x may be.
    let gpu = Gpu { num_sms: case.num_sms, overlaps: seed.is_multiple_of(2), ..Gpu::HOPPER };
    let (name, conflicts) =
        setup.run(seed, |num_rows, operands, maps| linear.launch(gpu, num_rows, operands, maps));
    assert_eq!(conflicts, 0, "{name} of {case:?}");
    (setup, name)
}

/// Runs a case, and the same by tiles.
fn check<E: Operand16 + Stored>(case: &Case, seed: u64) {
    let (swapped, name) = run::<E>(case, seed);
    assert_right(case, name, &swapped);
    let mut tiled = Setup::<E>::new(case, 1);
    let tile = TILE_CONFIGS.iter().find(|tile| {
        tile.block == [64, 64] && tile.split_k == 1 && tile.accumulate == Accumulate::F32
    });
    let linear = Linear16::new(case.max_rows, case.n, case.k);
    tiled.run(0, |num_rows, operands, maps| {
        tile.expect("a tile").launch(&linear, case.num_sms, num_rows, operands, maps)
    });
    assert_eq!(swapped.outputs(case), tiled.outputs(case), "{case:?}");
}

/// A layer of one tile of 64 columns a block.
const LAYER: Case = Case { num_rows: 8, max_rows: 8, n: 128, k: 136, ..ONE_ROW };

#[test]
fn every_count_of_rows_matches() {
    for (at, num_rows) in [1_usize, 2, 7, 8, 9, 16, 17, 31, 32].into_iter().enumerate() {
        let max_rows = [num_rows, 32, num_rows.next_multiple_of(8)][at % 3];
        let out = [Out::InPlace, Out::F32, Out::Residual][at % 3];
        let case = Case { num_rows, max_rows, out, ..LAYER };
        check::<f16>(&case, at as u64);
        // Outputs one by one, and in words.
        for out_pad in [3, 4] {
            let case = Case { out: Out::Half, with_bias: at % 2 == 0, out_pad, ..case };
            check::<bf16>(&case, at as u64);
        }
    }
}

#[test]
fn every_width_of_tiles_matches() {
    // Of 64 to 128 columns on two multiprocessors, the last one whole and not; and several tiles a block.
    for n in [1, 63, 64, 65, 129, 144, 145, 199, 200, 255, 256, 257, 274, 391, 600] {
        let case = Case { n, num_rows: 31, max_rows: 32, ..LAYER };
        check::<f16>(&case, n as u64);
        check::<f16>(&Case { out: Out::Half, out_pad: n % 2, ..case }, n as u64);
    }
}

#[test]
fn every_length_of_k_matches() {
    // Around a product, a stage, and all stages of a ring, twice.
    for (at, k) in [8, 16, 24, 64, 72, 512, 520, 1096].into_iter().enumerate() {
        check::<f16>(&Case { k, n: 300, ..LAYER }, at as u64);
    }
}

#[test]
fn every_order_matches() {
    for seed in SEEDS {
        for max_rows in [8, 16, 32] {
            // A block has three tiles of ten lines.
            let case = Case { num_rows: max_rows, max_rows, n: 600, k: 584, ..LAYER };
            check::<f16>(&case, seed);
            check::<bf16>(&Case { out: Out::Half, ..case }, seed);
        }
    }
}

#[test]
fn no_rows_write_nothing() {
    let case = Case { num_rows: 0, max_rows: 8, out: Out::Half, ..LAYER };
    let (setup, _) = run::<f16>(&case, 1);
    assert!(setup.outputs(&case).iter().all(Option::is_none));
}

#[test]
fn few_rows_of_many_columns_are_swapped() {
    let symbol = |max_rows, n, order, accumulate| {
        let rows = |address, stride| Rows::new(DevicePtr::<f16>::new(address), stride);
        let (x, out) = (Input16::Half(rows(16, 896)), Out16::Half(rows(48, n)));
        let weight = rows(32, 896);
        let operands = Linear16Operands { x, weight, bias: None, residual: None, out };
        let summation = Summation { order, accumulate };
        let linear = Linear16 { summation, ..Linear16::new(max_rows, n, 896) };
        let num_rows = DevicePtr::new(64);
        let launch = linear.launch(Gpu::HOPPER, num_rows, &operands, &mut TensorMapSpec::emulated);
        launch.expect("a right shape").map_or("", |launch| launch.symbol)
    };
    let fastest = |max_rows, n| symbol(max_rows, n, SumOrder::Fastest, Accumulate::F32);
    assert_eq!(fastest(32, 7392), "gemm_f16_streamed_m32_n32_w8");
    assert_eq!(fastest(32, 7393), "gemm_f16_swapped_m32");
    assert_eq!(fastest(17, 9728), "gemm_f16_swapped_m32");
    assert_eq!(fastest(9, 9728), "gemm_f16_swapped_m16");
    assert_eq!(fastest(8, 9999), "gemm_f16_streamed_m8_n32_w8");
    assert_eq!(fastest(8, 10_000), "gemm_f16_swapped_m8");
    assert_eq!(fastest(16, 151_936), "gemm_f16_swapped_m16");
    assert_eq!(fastest(2, 151_936), "gemm_f16_swapped_m8");
    assert_eq!(fastest(1, 151_936), "gemv_f16");
    assert!(fastest(33, 9728).starts_with("gemm_f16_sm90_"));
    // An order that is asked for, and sums in f16, which kernels for few rows need not have.
    let tiles = |accumulate| symbol(32, 9728, SumOrder::Tiles, accumulate);
    assert_eq!(tiles(Accumulate::F32), "gemm_f16_swapped_m32");
    assert!(tiles(Accumulate::F16).contains("_in_f16"));
    let symbol = symbol(32, 9728, SumOrder::FewRows, Accumulate::F32);
    assert_eq!(symbol, "gemm_f16_streamed_m32_n40_w8");
}

#[test]
fn tiles_share_the_columns_evenly() {
    let columns = |n| {
        let linear = Swapped16(Linear16::new(32, n, 64));
        let num_rows = DevicePtr::new(64);
        tile_columns(n, |operands, maps| linear.launch(Gpu::HOPPER, num_rows, operands, maps))
    };
    // One tile a block, in whole patterns of the swizzle; several, to the word.
    assert_eq!([9728, 12_288, 16_384].map(columns), [80, 96, 128]);
    assert_eq!([22_016, 32_064, 151_936].map(columns), [84, 122, 128]);
}
