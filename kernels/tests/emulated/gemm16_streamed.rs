//! Linear layers of small batches whose weights are streamed by TMA: against an oracle, and bit by
//! bit against the kernels without TMA.

use crate::device::{SEEDS, Stored};
use crate::gemm16_sm90::case::{Case, ONE_ROW, Out, Setup, assert_right, tile_columns};
use cuda_std::launch::DevicePtr;
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::SmallM16;
use kernels::gemm::{Gpu, Input16, Linear16, Linear16Operands, Out16, Target};
use kernels::tile::element::Operand16;

/// Columns that make blocks of 16 warps, and of 8.
const COLUMNS: [usize; 2] = [41, 2117];

/// Runs a case, with the weights by TMA or not; the outputs, and the kernel's name.
fn run<E: Operand16 + Stored>(case: &Case, by_tma: bool, seed: u64) -> (Setup<E>, &'static str) {
    let mut setup = Setup::<E>::new(case, 1);
    let linear = SmallM16(Linear16::new(case.max_rows, case.n, case.k));
    // Without overlap x comes before some of the weights.
    let gpu = Gpu { num_sms: case.num_sms, overlaps: seed.is_multiple_of(2), ..Gpu::HOPPER };
    let (name, conflicts) = setup.run(seed, |num_rows, operands, maps| {
        if by_tma {
            linear.launch_streamed(gpu, num_rows, operands, maps)
        } else {
            linear.launch(Gpu { target: Target::Sm80, ..gpu }, num_rows, operands, maps)
        }
    });
    assert_eq!(conflicts, 0, "{name} of {case:?}");
    (setup, name)
}

/// Runs a case by either kernel.
fn check<E: Operand16 + Stored>(case: &Case, seed: u64) {
    let (streamed, name) = run::<E>(case, true, seed);
    assert_right(case, name, &streamed);
    let (loaded, _) = run::<E>(case, false, 0);
    assert_eq!(streamed.outputs(case), loaded.outputs(case), "{case:?}");
}

#[test]
fn every_count_of_rows_matches() {
    for (at, num_rows) in [1_usize, 2, 3, 5, 7, 8, 9, 16, 17, 31, 32].into_iter().enumerate() {
        for n in COLUMNS {
            let max_rows = [num_rows, 32, num_rows.next_multiple_of(8)][at % 3];
            let out = [Out::InPlace, Out::F32, Out::Residual][at % 3];
            let case = Case { num_rows, max_rows, n, k: 72, out, num_sms: 40, ..ONE_ROW };
            check::<f16>(&case, at as u64);
            check::<bf16>(&Case { out: Out::Half, with_bias: at % 2 == 0, ..case }, at as u64);
        }
    }
}

#[test]
fn every_count_of_columns_of_a_tile_matches() {
    // With two multiprocessors tiles of up to 16 columns.
    for n in 1..=33 {
        check::<f16>(&Case { n, num_rows: 3, max_rows: 4, k: 40, ..ONE_ROW }, n as u64);
    }
}

#[test]
fn every_length_of_k_matches() {
    // Around a load, a step, a line, the warps' lines, and all stages of a ring, twice.
    for (at, k) in [8, 24, 32, 40, 64, 72, 1016, 1024, 1032, 2056, 17_416].into_iter().enumerate() {
        check::<f16>(&Case { k, n: 5, num_rows: 2, max_rows: 8, ..ONE_ROW }, at as u64);
    }
}

#[test]
fn every_order_matches() {
    for seed in SEEDS {
        for (max_rows, n) in [(1, 41), (8, 2117), (16, 41), (16, 2117), (32, 41), (32, 2117)] {
            // Of 2,117 columns a block has five tiles of two parts of k, on its third tour of the
            // ring.
            let case = Case { num_rows: max_rows, max_rows, n, k: 584, num_sms: 14, ..ONE_ROW };
            check::<f16>(&case, seed);
        }
    }
}

#[test]
fn every_width_of_tiles_matches() {
    // Several tiles a block, and one alone.
    for (num_sms, tiles) in [(100, "n24"), (34, "n32"), (14, "n40"), (23, "n48")] {
        let case = Case { num_rows: 31, max_rows: 32, n: 2117, k: 136, num_sms, ..ONE_ROW };
        let (_, name) = run::<f16>(&case, true, 1);
        assert_eq!(name, format!("gemm_f16_streamed_m32_{tiles}_w8"));
        for seed in SEEDS {
            check::<f16>(&case, seed);
        }
        check::<bf16>(&Case { out: Out::Residual, with_bias: true, ..case }, 1);
    }
}

#[test]
fn no_rows_write_nothing() {
    for n in COLUMNS {
        let case = Case { num_rows: 0, max_rows: 8, n, out: Out::Half, ..ONE_ROW };
        let (setup, _) = run::<f16>(&case, true, 1);
        assert!(setup.outputs(&case).iter().all(Option::is_none));
    }
}

/// The symbol of the launch that is chosen on an H200 for `k` columns of x.
fn symbol(max_rows: usize, n: usize, k: usize) -> &'static str {
    let rows = |address| Rows::new(DevicePtr::<f16>::new(address), k);
    let out = Out16::Half(rows(48));
    let (x, weight) = (rows(16), rows(32));
    let operands =
        Linear16Operands { x: Input16::Half(x), weight, bias: None, residual: None, out };
    let linear = SmallM16(Linear16::new(max_rows, n, k));
    let num_rows = DevicePtr::new(64);
    let launch = linear.launch(Gpu::HOPPER, num_rows, &operands, &mut TensorMapSpec::emulated);
    launch.expect("a right shape").map_or("", |launch| launch.symbol)
}

/// Streaming weights by TMA changes no bit, because as many warps share k.
#[test]
fn the_warps_that_share_k_do_not_depend_on_the_rows() {
    for n in [896, 1152, 2112, 2113, 4096, 12_288, 151_936] {
        let warps = if n <= 16 * 132 { "_w16" } else { "_w8" };
        for max_rows in [1, 2, 8, 9, 16, 17, 32, 33, 64] {
            let symbol = symbol(max_rows, n, 896);
            assert!(symbol.ends_with(warps), "{symbol} of {n} columns");
        }
    }
    assert_eq!(symbol(0, 896, 896), "");
    assert_eq!(symbol(4, 0, 896), "");
}

/// Of 32 rows on an H200, in us by tiles of up to 24, 32, 40 and 48 columns.
#[test]
fn widths_of_tiles_are_near_the_fastest_measured() {
    for (n, k, times) in [
        (3072, 3072, [7.0, 7.2, 7.5, 7.8]),
        (4096, 4096, [12.2, 10.7, 11.1, 11.4]),
        (9728, 896, [8.7, 8.6, 7.9, 8.2]),
        (9216, 3072, [16.8, 17.4, 16.4, 16.9]),
        (12_288, 4096, [27.9, 27.5, 27.5, 26.9]),
        (16_384, 3072, [28.4, 26.4, 26.5, 27.0]),
        (22_016, 4096, [46.9, 49.7, 48.3, 46.3]),
    ] {
        let symbol = symbol(32, n, k);
        let width = ["_n24_", "_n32_", "_n40_", "_n48_"].iter().position(|n| symbol.contains(n));
        let us = times[width.unwrap_or_else(|| panic!("{symbol} of {n} x {k}"))];
        let best = times.into_iter().fold(f64::INFINITY, f64::min);
        assert!(us <= 1.02 * best, "{symbol} of {n} x {k} takes {us} us, not {best}");
    }
}

/// Where a block has several tiles of a small batch they are narrow: measured on an H200, in us by
/// their columns.
#[test]
fn several_tiles_of_a_block_are_narrow() {
    let columns = |max_rows, n| {
        let linear = SmallM16(Linear16::new(max_rows, n, 64));
        let (gpu, num_rows) = (Gpu::HOPPER, DevicePtr::new(64));
        tile_columns(n, |operands, maps| linear.launch_streamed(gpu, num_rows, operands, maps))
    };
    for (n, [fast, slow]) in [
        (12_288, [(24, 24.9), (32, 25.8)]),
        (32_000, [(27, 61.2), (31, 62.0)]),
        (9216, [(24, 14.7), (18, 15.1)]),
    ] {
        let columns = columns(8, n);
        let chosen = [fast, slow].into_iter().find(|(of, _)| *of == columns);
        let (_, us) =
            chosen.unwrap_or_else(|| panic!("{columns} columns of {n} were not measured"));
        let (_, best): (u32, f64) = fast;
        assert!(us <= 1.02 * best, "tiles of {columns} columns of {n} take {us} us, not {best}");
    }
}
