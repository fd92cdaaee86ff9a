//! Linear layers of 16-bit operands, by every tile of the kernels for sm_90a.

pub mod case;
mod select;
mod split_k;

use crate::device::{SEEDS, Stored};
use case::{Case, Out, Setup, assert_right};
use cuda_std::launch::{DevicePtr, LaunchError};
use cuda_std::tensor_map::EncodedTensorMap;
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::config::{TileConfig, WGMMA_TILES};
use kernels::gemm::kernels::sm90;
use kernels::gemm::{
    Accumulate, Gpu, Input16, Linear16, Linear16Operands, Out16, Summation, Target,
};
use kernels::tile::element::Operand16;

/// A layer of whole tiles, a block each.
const WHOLE: Case = Case {
    num_rows: 128,
    max_rows: 128,
    n: 128,
    k: 128,
    pad: 0,
    out_pad: 0,
    with_bias: false,
    out: Out::Half,
    num_sms: 132,
    accumulate: Accumulate::F32,
};

fn config(block: [usize; 2], cluster: [usize; 2]) -> &'static TileConfig {
    let mut configs = WGMMA_TILES.iter().filter(|config| is_in_order(config));
    configs.find(|config| config.block == block && config.cluster == cluster).expect("a tile")
}

/// Whether an output is accumulated in f32 in the order of k.
fn is_in_order(config: &TileConfig) -> bool {
    config.split_k == 1 && config.accumulate == Accumulate::F32
}

fn in_f16(block: [usize; 2]) -> &'static TileConfig {
    let mut configs = WGMMA_TILES.iter();
    let is_it =
        |config: &&TileConfig| config.block == block && config.accumulate == Accumulate::F16;
    configs.find(is_it).expect("a tile")
}

fn check_of<E: Operand16 + Stored>(case: &Case, tile: &TileConfig, seed: u64) {
    let mut setup = Setup::<E>::new(case, seed);
    let linear = Linear16::new(case.max_rows, case.n, case.k);
    let (name, _) = setup.run(seed, |num_rows, operands, maps| {
        sm90::launch(tile, &linear, case.num_sms, num_rows, operands, maps)
    });
    assert_right(&Case { accumulate: tile.accumulate, ..*case }, name, &setup);
}

/// Runs a case by a tile, for f16 and, with f32 accumulators, under one seed of five for bf16: the
/// instances differ in the element type only, and in nothing that is concurrent.
fn check(case: &Case, tile: &TileConfig, seed: u64) {
    check_of::<f16>(case, tile, seed);
    if tile.accumulate == Accumulate::F32 && seed.is_multiple_of(5) {
        check_of::<bf16>(case, tile, seed);
    }
}

/// Runs shapes around the edges of a tile, every kind of output among them.
fn check_edges(tile: &TileConfig) {
    let [block_m, block_n] = tile.block;
    for seed in SEEDS {
        let one = Case { num_rows: block_m, max_rows: block_m, n: block_n, k: 64, ..WHOLE };
        check(&one, tile, seed);
        // One more of everything, and 8 columns of k in a second stage.
        let more = Case {
            num_rows: block_m + 1,
            max_rows: block_m + 9,
            n: block_n + 1,
            k: 72,
            pad: 8,
            out_pad: 3,
            with_bias: true,
            ..WHOLE
        };
        check(&more, tile, seed);
        check(&Case { out: Out::Residual, ..more }, tile, seed);
        // One less, in place; 16-bit outputs whose rows are aligned.
        let less = Case {
            num_rows: block_m - 1,
            max_rows: block_m,
            n: block_n - 8,
            k: 56,
            with_bias: seed == 1,
            ..WHOLE
        };
        check(&less, tile, seed);
        check(&Case { out: Out::InPlace, ..less }, tile, seed);
        check(&Case { num_rows: 17, n: block_n - 1, out: Out::F32, ..less }, tile, seed);
        check(&Case { num_rows: 1, n: 8, k: 8, ..less }, tile, seed);
    }
}

#[test]
fn tile_128x256_matches_oracle() {
    check_edges(config([128, 256], [1, 1]));
}

#[test]
fn tile_64x256_matches_oracle() {
    check_edges(config([64, 256], [1, 1]));
}

#[test]
fn tile_128x144_matches_oracle() {
    check_edges(config([128, 144], [1, 1]));
}

#[test]
fn tile_64x72_matches_oracle() {
    check_edges(config([64, 72], [1, 1]));
}

#[test]
fn tile_64x192_matches_oracle() {
    check_edges(config([64, 192], [1, 1]));
}

#[test]
fn tile_128x256_pair_matches_oracle() {
    check_edges(config([128, 256], [2, 1]));
}

#[test]
fn tile_256x128_matches_oracle() {
    check_edges(config([256, 128], [1, 1]));
}

#[test]
fn tile_256x128_pair_matches_oracle() {
    check_edges(config([256, 128], [1, 2]));
}

#[test]
fn tile_128x192_matches_oracle() {
    check_edges(config([128, 192], [1, 1]));
}

#[test]
fn tile_128x128_matches_oracle() {
    check_edges(config([128, 128], [1, 1]));
}

#[test]
fn tile_64x128_matches_oracle() {
    check_edges(config([64, 128], [1, 1]));
}

#[test]
fn tile_64x128_pair_matches_oracle() {
    check_edges(config([64, 128], [2, 1]));
}

#[test]
fn tile_64x64_matches_oracle() {
    check_edges(config([64, 64], [1, 1]));
}

#[test]
fn tiles_in_f16_match_oracle() {
    for block in [[128, 256], [128, 128]] {
        check_edges(in_f16(block));
        // A long k, so that the rounding of the accumulators shows.
        check_of::<f16>(&Case { k: 1000, out: Out::F32, ..WHOLE }, in_f16(block), 1);
    }
}

/// bf16 has no f16 accumulators, and small batches have f32 accumulators.
#[test]
fn f16_accumulators_are_those_of_f16_tiles() {
    let summation = Summation { accumulate: Accumulate::F16, ..Summation::default() };
    let symbol = |target, max_rows| {
        let linear = Linear16 { summation, ..Linear16::new(max_rows, 128, 128) };
        let case = Case { num_rows: max_rows, max_rows, k: 128, ..WHOLE };
        let gpu = Gpu { target, ..Gpu::HOPPER };
        let mut setup = Setup::<f16>::new(&case, 1);
        let launch =
            setup.run(1, |num_rows, operands, maps| linear.launch(gpu, num_rows, operands, maps));
        launch.0
    };
    for target in [Target::Sm90a, Target::Sm80] {
        assert!(symbol(target, 65).contains("_in_f16"), "{}", symbol(target, 65));
        assert!(!symbol(target, 64).contains("_in_f16"), "{}", symbol(target, 64));
    }
    for target in [Target::Sm90a, Target::Sm80] {
        for max_rows in [64, 65] {
            let linear = Linear16 { summation, ..Linear16::new(max_rows, 128, 128) };
            let rows = Rows::<bf16>::new(DevicePtr::new(0x1000), 128);
            let out = Out16::Half(rows);
            let operands = Linear16Operands {
                x: Input16::Half(rows),
                weight: rows,
                bias: None,
                residual: None,
                out,
            };
            let gpu = Gpu { target, ..Gpu::HOPPER };
            let launch = linear
                .launch(gpu, DevicePtr::new(0x100), &operands, &mut |_| EncodedTensorMap::NONE);
            assert!(matches!(launch, Err(LaunchError::Shape { what: "accumulator bits", .. })));
        }
    }
}

/// Blocks with several tiles each: stages and staging are reused, and the last tiles are ragged.
#[test]
fn persistent_blocks_match_oracle() {
    for tile in &WGMMA_TILES {
        let [block_m, block_n] = tile.block;
        let [cluster_m, cluster_n] = tile.cluster;
        for seed in SEEDS {
            let case = Case {
                num_rows: 2 * cluster_m * block_m + 5,
                max_rows: 3 * cluster_m * block_m,
                n: cluster_n * block_n + 8,
                k: [200, 64, 72][seed as usize % 3],
                with_bias: true,
                out: [Out::Half, Out::Half, Out::InPlace][seed as usize % 3],
                num_sms: 2 * cluster_m * cluster_n,
                ..WHOLE
            };
            check_of::<f16>(&case, tile, seed);
        }
    }
}

/// A producer warpgroup, stages that are reused, two consumer warpgroups, tiles of 128 x 128.
#[test]
fn issue_3_warp_specialised_tiles_match_oracle_in_every_order() {
    let case = Case { k: 640, num_sms: 1, ..WHOLE };
    for seed in 0..8 {
        check_of::<f16>(&case, config([128, 128], [1, 1]), seed);
    }
}

/// What the emulator has to do in less than two seconds: a block of 128 x 128 x 256.
#[test]
fn issue_3_a_block_of_128x128x256_matches_oracle() {
    check_of::<f16>(&Case { k: 256, num_sms: 1, ..WHOLE }, config([128, 128], [1, 1]), 0);
}

/// A launch without rows stores nothing.
#[test]
fn no_rows_store_nothing() {
    for tile in &WGMMA_TILES {
        check_of::<f16>(&Case { num_rows: 0, with_bias: true, ..WHOLE }, tile, 1);
        check_of::<f16>(&Case { num_rows: 0, out: Out::F32, ..WHOLE }, tile, 1);
    }
}

/// An output is the same, to the bit, whatever the tile and the number of rows, if k is not split.
#[test]
fn outputs_do_not_depend_on_the_tile() {
    let case = Case { k: 200, n: 136, out: Out::Residual, with_bias: true, ..WHOLE };
    let linear = Linear16::new(case.max_rows, case.n, case.k);
    let tiles = WGMMA_TILES.iter().filter(|tile| is_in_order(tile));
    let outputs = tiles.map(|tile| {
        let mut setup = Setup::<f16>::new(&case, 7);
        setup.run(2, |num_rows, operands, maps| {
            sm90::launch(tile, &linear, 2, num_rows, operands, maps)
        });
        setup.outputs(&case)
    });
    let outputs: Vec<_> = outputs.collect();
    assert!(outputs.iter().all(|other| *other == outputs[0]));
}

/// By the kernels that are chosen, among them a small-batch kernel.
#[test]
fn chosen_kernels_match_oracle() {
    for (num_rows, n, k) in [(33, 1152, 896), (129, 1160, 64)] {
        let case = Case { num_rows, max_rows: num_rows, n, k, with_bias: true, ..WHOLE };
        let linear = Linear16::new(num_rows, n, k);
        let mut setup = Setup::<bf16>::new(&case, 3);
        let (name, _) = setup.run(1, |num_rows, operands, maps| {
            linear.launch(Gpu::HOPPER, num_rows, operands, maps)
        });
        assert_right(&case, name, &setup);
    }
}

/// What no kernel computes is refused.
#[test]
fn rejects_what_it_cannot_compute() {
    let linear = |max_rows, n, k| Linear16::new(max_rows, n, k);
    let rows = |address, row_stride| Rows::<f16>::new(DevicePtr::new(address), row_stride);
    let f32_rows = Rows::new(DevicePtr::new(0x1000), 128);
    let operands = Linear16Operands {
        x: Input16::Half(rows(0x1000, 128)),
        weight: rows(0x2000, 128),
        bias: None,
        residual: None,
        out: Out16::Half(rows(0x3000, 128)),
    };
    let launch = |gpu, linear: Linear16, operands| {
        linear.launch(gpu, DevicePtr::new(0x100), &operands, &mut |_| EncodedTensorMap::NONE)
    };
    let refused = |linear, operands| match launch(Gpu::HOPPER, linear, operands) {
        Err(LaunchError::Shape { what, value, .. }) => (what, value),
        other => panic!("{other:?}"),
    };
    let right = linear(64, 128, 128);
    assert!(launch(Gpu::HOPPER, right, operands).is_ok_and(|launch| launch.is_some()));
    assert_eq!(launch(Gpu::HOPPER, linear(0, 128, 128), operands), Ok(None));
    assert_eq!(launch(Gpu::HOPPER, linear(64, 0, 128), operands), Ok(None));
    assert_eq!(refused(linear(64, 128, 100), operands), ("k", 100));
    assert_eq!(refused(linear(64, 128, 0), operands), ("k", 0));
    assert_eq!(refused(linear(1 << 31, 8, 8), operands), ("rows", 1 << 31));
    assert_eq!(refused(linear(1 << 30, 1 << 30, 8), operands).0, "tiles");
    let half = |address, row_stride| Input16::Half(rows(address, row_stride));
    let with = |x, out| Linear16Operands { x, out, ..operands };
    let (x, out) = (operands.x, operands.out);
    assert_eq!(refused(right, with(half(0x1000, 132), out)), ("row stride", 132));
    assert_eq!(refused(right, with(half(0x1008, 128), out)), ("address", 0x1008));
    let far = Out16::Half(rows(0x3000, 1 << 30));
    assert_eq!(refused(right, with(x, far)), ("row stride", 1 << 30));
    let residual = Linear16Operands { residual: Some(f32_rows), ..operands };
    assert_eq!(refused(right, residual).0, "output bits");
    let sm80 = Gpu { target: Target::Sm80, num_sms: 108, overlaps: false };
    assert!(launch(sm80, right, operands).is_ok_and(|launch| launch.is_some()));
    assert!(launch(sm80, linear(64, 128, 100), operands).is_err());
}
