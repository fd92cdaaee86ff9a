//! Linear layers of small batches and many columns, with swapped operands: against an oracle, and
//! bit by bit against tiles.

use crate::device::{SEEDS, Stored};
use crate::gemm16_sm90::case::{Case, ONE_ROW, Out, Setup, assert_right, tile_columns};
use crate::recorded;
use cuda_std::launch::DevicePtr;
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::config::WGMMA_TILES;
use kernels::gemm::kernels::sm90;
use kernels::gemm::{
    Accumulate, Gpu, Input16, Linear16, Linear16Operands, Out16, SumOrder, Summation, Swapped16,
};
use kernels::tile::element::Operand16;

fn run<E: Operand16 + Stored>(case: &Case, seed: u64) -> (Setup<E>, &'static str) {
    let mut setup = Setup::<E>::new(case, 1);
    let linear = Swapped16(Linear16::new(case.max_rows, case.n, case.k));
    // Where launches overlap, loads of weights are issued before those of x.
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
    let tile = WGMMA_TILES.iter().find(|tile| {
        tile.block == [64, 64] && tile.split_k == 1 && tile.accumulate == Accumulate::F32
    });
    let linear = Linear16::new(case.max_rows, case.n, case.k);
    tiled.run(0, |num_rows, operands, maps| {
        sm90::launch(tile.expect("a tile"), &linear, case.num_sms, num_rows, operands, maps)
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
    // Of 64 to 128 columns on two multiprocessors, the last one whole and not; and several tiles a
    // block.
    for n in [1, 63, 64, 65, 129, 144, 145, 199, 200, 255, 256, 257, 274, 391, 600] {
        let case = Case { n, num_rows: 31, max_rows: 32, ..LAYER };
        check::<f16>(&case, n as u64);
        check::<f16>(&Case { out: Out::Half, out_pad: n % 2, ..case }, n as u64);
    }
}

#[test]
fn every_length_of_k_matches() {
    // Around an MMA, a stage, and all stages twice.
    for (at, k) in [8, 16, 24, 64, 72, 512, 520, 1096].into_iter().enumerate() {
        check::<f16>(&Case { k, n: 300, ..LAYER }, at as u64);
    }
}

#[test]
fn every_order_matches() {
    for seed in SEEDS {
        for max_rows in [8, 16, 32] {
            // A block has three tiles of ten blocks of k.
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

/// The symbol of the launch that is chosen for a layer `[m, n, k]`.
fn symbol([max_rows, n, k]: [usize; 3], summation: Summation) -> &'static str {
    let rows = |address, stride| Rows::new(DevicePtr::<f16>::new(address), stride);
    let (x, out) = (Input16::Half(rows(16, k)), Out16::Half(rows(48, n)));
    let operands = Linear16Operands { x, weight: rows(32, k), bias: None, residual: None, out };
    let linear = Linear16 { summation, ..Linear16::new(max_rows, n, k) };
    let num_rows = DevicePtr::new(64);
    let launch = linear.launch(Gpu::HOPPER, num_rows, &operands, &mut TensorMapSpec::emulated);
    launch.expect("a right shape").map_or("", |launch| launch.symbol)
}

/// Whether operands are swapped follows the recorded times, but for 2 %.
#[test]
fn the_choice_to_swap_is_near_the_fastest_measured_kernel() {
    let rows = recorded::rows(include_str!("../../../docs/measurements/gemm_sm90_swapped.md"));
    assert!(rows.len() >= 20, "{} rows are read", rows.len());
    for row in rows.iter().filter(|row| row.times.len() == 2) {
        let symbol = symbol(row.shape, Summation::default());
        let kernel = ["streamed", "swapped"].into_iter().find(|kernel| symbol.contains(kernel));
        let us = kernel.and_then(|kernel| row.time(kernel)).unwrap_or(f64::INFINITY);
        let best = row.best(|_| true);
        assert!(us <= 1.02 * best, "{symbol} of {:?} takes {us} us, not {best}", row.shape);
    }
}

/// The order of accumulation and the type of accumulators decide before speed does.
#[test]
fn a_requested_summation_is_kept_where_operands_may_be_swapped() {
    let symbol = |m, order, accumulate| symbol([m, 9728, 896], Summation { order, accumulate });
    assert!(symbol(32, SumOrder::Tiles, Accumulate::F32).contains("_swapped_"));
    assert!(symbol(32, SumOrder::Tiles, Accumulate::F16).contains("_in_f16"));
    assert!(symbol(32, SumOrder::SmallBatch, Accumulate::F32).contains("_streamed_"));
    // More rows than there are instances for.
    assert!(!symbol(33, SumOrder::Fastest, Accumulate::F32).contains("_swapped_"));
}

#[test]
fn tiles_share_the_columns_evenly() {
    let num_sms = Gpu::HOPPER.num_sms;
    let columns = |n| {
        let linear = Swapped16(Linear16::new(32, n, 64));
        let num_rows = DevicePtr::new(64);
        tile_columns(n, |operands, maps| linear.launch(Gpu::HOPPER, num_rows, operands, maps))
    };
    for n in (7393..152_000).step_by(371) {
        let columns = columns(n) as usize;
        assert!((64..=128).contains(&columns), "{columns} of {n}");
        let tiles_per_sm = n.div_ceil(columns).div_ceil(num_sms);
        // An SM has at most the swizzle's 8 rows more than an even share, one of several tiles 2.
        let share = n.div_ceil(num_sms).next_multiple_of(if tiles_per_sm > 1 { 2 } else { 8 });
        let most = share.max(64) + 2 * tiles_per_sm;
        assert!(columns * tiles_per_sm <= most, "{tiles_per_sm} x {columns} columns of {n}");
    }
}
