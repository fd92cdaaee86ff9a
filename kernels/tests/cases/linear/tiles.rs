//! Tiles by `mma.sync` and by `wgmma`, also of rows in E4M3, and small batches with swapped
//! operands.

use super::small::check_fused;
use super::{Case, Kernel, Out, Weight, weights};
use crate::harness::*;
use gpu_types::Activation;
use half::{bf16, f16};
use kernels::gemm::config::{MMA_TILES, TileConfig, WGMMA_TILES};
use kernels::gemm::kernels::sm90;
use kernels::gemm::{
    Accumulate, Fp8Accumulate, Gpu, Linear16, LinearFp8, LinearFp8Operands, Out16, SumOrder,
    WeightScales,
};

/// A bare layer, tile by tile.
const PLAIN: Case = Case {
    rows: [128, 128],
    n: 128,
    k: 128,
    pad: 0,
    out_pad: 0,
    bias: false,
    out: Out::Half,
    ..Case::ONE_ROW
};

fn is_f32(tile: &&TileConfig) -> bool {
    tile.accumulate == Accumulate::F32
}

/// Whether an output is accumulated in f32 in the order of k.
fn is_in_order(tile: &&TileConfig) -> bool {
    tile.split_k == 1 && is_f32(tile)
}

/// Runs a case for f16 and, with f32 accumulators, under one seed of five for bf16: the instances
/// differ in the element type only, and in nothing that is concurrent.
#[track_caller]
fn check(tile: &TileConfig, case: Case, seed: u64) {
    case.check::<f16>(seed);
    if is_f32(&tile) && seed.is_multiple_of(5) {
        case.check::<bf16>(seed);
    }
}

/// Every kind of output around the edges of a tile: one whole, one more of everything with 8
/// columns of k in a second stage, one less, and a bit of one.
fn edges([block_m, block_n]: [usize; 2]) -> [Case; 8] {
    let one = Case { rows: [block_m; 2], n: block_n, k: 64, ..PLAIN };
    let rows = [block_m + 1, block_m + 9];
    let more = Case { rows, n: block_n + 1, k: 72, pad: 8, out_pad: 3, bias: true, ..PLAIN };
    let less = Case { rows: [block_m - 1, block_m], n: block_n - 8, k: 56, ..PLAIN };
    [
        one,
        Case { out: Out::F32, ..one },
        more,
        Case { out: Out::Residual, ..more },
        Case { bias: true, ..less },
        Case { out: Out::InPlace, ..less },
        Case { rows: [17, block_m], n: block_n - 1, out: Out::F32, ..less },
        Case { rows: [1, block_m], n: 8, k: 8, bias: true, ..less },
    ]
}

#[test]
fn sm80_tiles_match_oracle() {
    for tile in &MMA_TILES {
        let kernel = Kernel::Sm80(tile);
        let check = |case: Case, seed| {
            let case = Case { kernel, ..case };
            case.check::<f16>(seed);
            if is_f32(&tile) {
                case.check::<bf16>(seed);
            }
        };
        let [block_m, block_n] = tile.block;
        (0..).zip(edges(tile.block)).for_each(|(seed, case)| check(case, seed % 5));
        // Every kind of operand and output; rows of the output that no vector can be written to.
        for flags in 0..8 {
            let [bias, residual, to_f32] = [1, 2, 4].map(|flag| flags & flag != 0);
            let out = match (residual, to_f32) {
                (true, _) => Out::InPlace,
                (false, true) => Out::F32,
                (false, false) => Out::Half,
            };
            let case = Case { rows: [5, 5], n: 36, k: 40, bias, out, ..PLAIN };
            for (n, out_pad) in [(36, 0), (36, 4), (36, 1), (35, 0)] {
                check(Case { n, out_pad, ..case }, flags);
            }
        }
        // Every depth of the pipeline.
        for k in [8, 16, 24, 32, 56, 64, 96, 128, 136, 192, 256, 264, 320] {
            check(Case { rows: [3, 3], n: 8, k, pad: 16, out: Out::F32, ..PLAIN }, k as u64);
        }
        // Ten rows of tiles make two groups in the order of the tiles; of the last row one.
        for (seed, num_rows) in (0..).zip([0, 1, block_m, 2 * block_m + 1]) {
            let rows = [num_rows, 10 * block_m - 5];
            check(Case { rows, n: block_n + 8, k: 16, ..PLAIN }, seed);
        }
        let rows = [block_m + 3; 2];
        let case = Case { rows, n: 70, k: 200, bias: true, out: Out::F32, kernel, ..PLAIN };
        case.check_order::<f16>();
    }
    let kernel = Kernel::Sm80(&MMA_TILES[MMA_TILES.len() - 1]);
    let [block_m, block_n] = MMA_TILES[MMA_TILES.len() - 1].block;
    let rows = [10 * block_m; 2];
    let case = Case { rows, n: 2 * block_n + 4, k: 8, bias: true, kernel, ..PLAIN };
    case.check::<f16>(1);
}

/// 1024 + 1/2 is 1024 in f16, however often.
#[test]
fn f16_accumulators_round() {
    let kernels = [MMA_TILES.iter().find(|tile| !is_f32(tile)), MMA_TILES.iter().find(is_f32)];
    let outputs = kernels.map(|tile| {
        let kernel = Kernel::Sm80(tile.expect("a tile"));
        let case = Case { rows: [1, 1], n: 1, out: Out::F32, kernel, ..PLAIN };
        let mut operands = case.operands::<f16>();
        operands.x.values.fill(1.0);
        operands.weight.values.fill(0.5 / 16.0);
        operands.weight.values[..16].fill(64.0);
        case.run::<f16>(&operands, 0).1
    });
    assert_eq!(outputs, [[1024.0], [1027.5]]);
    // A long k, so that the rounding shows.
    for tile in MMA_TILES.iter().filter(|tile| !is_f32(tile)) {
        let kernel = Kernel::Sm80(tile);
        for (seed, out) in
            simt::seeds().zip([Out::InPlace, Out::Half, Out::F32].into_iter().cycle())
        {
            let case =
                Case { k: 1000, n: 129, pad: 8, out_pad: 3, bias: true, out, kernel, ..PLAIN };
            case.check::<f16>(seed);
        }
    }
    for tile in WGMMA_TILES.iter().filter(|tile| !is_f32(tile)) {
        Case { k: 1000, out: Out::F32, kernel: Kernel::Sm90(tile, 132), ..PLAIN }.check::<f16>(1);
    }
}

#[test]
fn nan_and_infinity_are_where_the_oracle_has_them() {
    for tile in MMA_TILES.iter().filter(is_f32) {
        let kernel = Kernel::Sm80(tile);
        let case = Case { rows: [20, 20], n: 40, k: 48, bias: true, kernel, ..PLAIN };
        let mut operands = case.operands::<f16>();
        (operands.x.values[3 * 48 + 47], operands.x.values[9 * 48]) = (f64::INFINITY, f64::NAN);
        operands.weight.values[5 * 48 + 47] = 0.0;
        operands.weight.values[6 * 48 + 8] = f64::NEG_INFINITY;
        operands.weight.values[39 * 48 + 1] = f64::NAN;
        operands.bias[8] = f32::INFINITY;
        operands.residual.values[19 * 40 + 2] = f64::NAN;
        // Beyond the largest f16, though not f32.
        operands.bias[30] = 70_000.0;
        let (_, got) = case.run::<f16>(&operands, 0);
        let of_row = |row: usize| got[row * 40 + 30] == f32::INFINITY;
        assert!((0..20).filter(|row| *row != 3 && *row != 9).all(of_row));
        for out in [Out::Half, Out::InPlace] {
            let case = Case { out, ..case };
            assert_right(
                "not finite",
                &case.run::<f16>(&operands, 0).1,
                &case.oracle::<f16>(&operands),
            );
        }
    }
}

/// Checks the edges of every tile in `tiles`, a part of them so that tests run beside each other.
fn check_sm90_edges(part: usize) {
    for tile in WGMMA_TILES.iter().skip(part).step_by(4) {
        for seed in simt::seeds() {
            for case in edges(tile.block) {
                check(tile, Case { kernel: Kernel::Sm90(tile, 132), ..case }, seed);
            }
        }
    }
}

#[test]
fn sm90_tiles_match_oracle_0() {
    check_sm90_edges(0);
}

#[test]
fn sm90_tiles_match_oracle_1() {
    check_sm90_edges(1);
}

#[test]
fn sm90_tiles_match_oracle_2() {
    check_sm90_edges(2);
}

#[test]
fn sm90_tiles_match_oracle_3() {
    check_sm90_edges(3);
}

/// Blocks with several tiles each: stages and staging are reused, and the last tiles are ragged.
/// A launch without rows stores nothing.
#[test]
fn sm90_blocks_with_several_tiles_match_oracle() {
    for tile in &WGMMA_TILES {
        let ([block_m, block_n], [cluster_m, cluster_n]) = (tile.block, tile.cluster);
        for seed in simt::seeds() {
            let at = seed as usize % 3;
            let case = Case {
                rows: [2 * cluster_m * block_m + 5, 3 * cluster_m * block_m],
                n: cluster_n * block_n + 8,
                k: [200, 64, 72][at],
                bias: true,
                out: [Out::Half, Out::Half, Out::InPlace][at],
                kernel: Kernel::Sm90(tile, 2 * cluster_m * cluster_n),
                ..PLAIN
            };
            case.check::<f16>(seed);
        }
        let none = Case { rows: [0, 128], bias: true, kernel: Kernel::Sm90(tile, 132), ..PLAIN };
        none.check::<f16>(1);
        Case { out: Out::F32, ..none }.check::<f16>(1);
    }
}

/// k around the shares of a cluster's blocks: some are empty, or one is larger than the others, or
/// stages are reused. Whatever the order and the number of rows, an output has the same bits.
#[test]
fn sm90_tiles_that_split_k_match_oracle() {
    for tile in WGMMA_TILES.iter().filter(|tile| tile.split_k > 1) {
        let kernel = Kernel::Sm90(tile, 132);
        for seed in simt::seeds() {
            for blocks in [1, tile.split_k - 1, tile.split_k + 1, 9 * tile.split_k - 1] {
                let k = 64 * blocks - 8;
                let case = Case { rows: [65, 67], n: 72, k, bias: true, kernel, ..PLAIN };
                case.check::<f16>(seed);
                Case { out: Out::InPlace, n: 63, ..case }.check::<f16>(seed);
            }
            // More clusters than run at once.
            let (n, k, kernel) = (200, 392, Kernel::Sm90(tile, 1));
            let many =
                Case { rows: [200, 400], n, k, out: Out::Residual, out_pad: 3, kernel, ..PLAIN };
            if tile.block == [64, 128] && tile.split_k == 4 {
                check(tile, many, seed);
            }
        }
        let case = Case { n: 136, k: 600, out: Out::F32, bias: true, kernel, ..PLAIN };
        let all = case.operands::<f16>();
        assert_same_bits(&format!("{case:?}"), |seed| {
            let rows = [if seed % 2 == 0 { 70 } else { 128 }, 128];
            Case { rows, ..case }.run::<f16>(&all, seed).1[..70 * case.n].to_vec()
        });
    }
}

/// A producer warpgroup, stages that are reused, two consumer warpgroups, tiles of 128 x 128; and
/// what the emulator has to do in less than two seconds.
#[test]
fn issue_3_warp_specialised_tiles_match_oracle_in_every_order() {
    let mut tiles = WGMMA_TILES.iter().filter(is_in_order);
    let tile = tiles.find(|tile| tile.block == [128, 128] && tile.cluster == [1, 1]).unwrap();
    let case = Case { k: 640, kernel: Kernel::Sm90(tile, 1), ..PLAIN };
    (0..8).for_each(|seed| drop(case.check::<f16>(seed)));
    Case { k: 256, ..case }.check::<f16>(0);
}

/// An output is the same, to the bit, whatever the tile and the number of rows, if k is not split.
#[test]
fn outputs_do_not_depend_on_the_tile() {
    let case = Case { k: 200, n: 136, out: Out::Residual, bias: true, ..PLAIN };
    let operands = case.operands::<f16>();
    let mut outputs = WGMMA_TILES.iter().filter(is_in_order).map(|tile| {
        bits(&Case { kernel: Kernel::Sm90(tile, 2), ..case }.run::<f16>(&operands, 2).1)
    });
    let first = outputs.next().expect("a tile");
    assert!(outputs.all(|other| other == first));
}

/// By the kernels that are chosen, among them a small-batch kernel.
#[test]
fn chosen_kernels_match_oracle() {
    for (rows, n, k) in [(33, 1152, 896), (129, 1160, 64)] {
        let kernel = Kernel::Layer(SumOrder::Fastest, Gpu::HOPPER);
        Case { rows: [rows; 2], n, k, bias: true, kernel, ..PLAIN }.check::<bf16>(1);
    }
}

/// Tiles that have gates: around their edges, and several of them a block.
#[test]
fn sm90_tiles_with_gates_match_the_separate_kernels() {
    for gate in Activation::FUSED.map(Some) {
        let linear = Linear16 { gate, ..Linear16::new(1, 8, 8) };
        let tiles = WGMMA_TILES.iter().filter(|tile| sm90::takes(tile, &linear));
        for (seed, tile) in (0..).zip(tiles) {
            let ([block_m, block_n], [cluster_m, cluster_n]) = (tile.block, tile.cluster);
            let (n, rows, kernel) = (block_n / 2, [block_m; 2], Kernel::Sm90(tile, 132));
            let one = Case { rows, n, k: 64, gate, kernel, ..PLAIN };
            let rows = [block_m + 1, block_m + 9];
            let more = Case { rows, n: n + 8, k: 72, pad: 8, out_pad: 3, bias: true, ..one };
            let less = Case { rows: [block_m - 1, block_m], n: n - 8, k: 56, bias: true, ..one };
            let rows = [2 * cluster_m * block_m + 5, 3 * cluster_m * block_m];
            let kernel = Kernel::Sm90(tile, 2 * cluster_m * cluster_n);
            let several = Case { rows, n: cluster_n * n + 8, k: 200, kernel, ..more };
            for case in [one, more, less, Case { rows: [17, block_m], n: 8, k: 8, ..less }] {
                check_fused::<f16>(case, seed);
            }
            check_fused::<f16>(several, seed);
            check_fused::<bf16>(Case { out_pad: 0, ..several }, seed);
        }
    }
}

/// A layer of one tile of 64 columns a block, with swapped operands.
const SWAPPED: Case =
    Case { rows: [8, 8], n: 128, k: 136, kernel: Kernel::Swapped(2), ..Case::ONE_ROW };

/// Runs a case with swapped operands, and the same bits by tiles.
#[track_caller]
fn check_swapped<E: super::Half>(case: Case, seed: u64) {
    let swapped = case.check::<E>(seed);
    let mut tiles = WGMMA_TILES.iter().filter(is_in_order);
    let tile = tiles.find(|tile| tile.block == [64, 64]).expect("a tile");
    let tiled = Case { kernel: Kernel::Sm90(tile, 2), ..case };
    assert_eq!(bits(&swapped), bits(&tiled.run::<E>(&case.operands::<E>(), 0).1), "{case:?}");
}

#[test]
fn swapped_operands_match_oracle_and_tiles() {
    for (at, rows) in [0_usize, 1, 2, 7, 8, 9, 16, 17, 31, 32].into_iter().enumerate() {
        let max_rows = [rows, 32, rows.next_multiple_of(8)][at % 3].max(8);
        let out = [Out::InPlace, Out::F32, Out::Residual][at % 3];
        let case = Case { rows: [rows, max_rows], out, ..SWAPPED };
        check_swapped::<f16>(case, at as u64);
        // Outputs one by one, and in words.
        for out_pad in [3, 4] {
            let case = Case { out: Out::Half, bias: at % 2 == 0, out_pad, ..case };
            check_swapped::<bf16>(case, at as u64);
        }
    }
    // Of 64 to 128 columns on two multiprocessors, the last one whole and not; and several tiles a
    // block.
    for n in [1, 63, 64, 65, 129, 144, 145, 199, 200, 255, 256, 257, 274, 391, 600] {
        let case = Case { n, rows: [31, 32], ..SWAPPED };
        check_swapped::<f16>(case, n as u64);
        check_swapped::<f16>(Case { out: Out::Half, out_pad: n % 2, ..case }, n as u64);
    }
    // Around an MMA, a stage, and all stages twice.
    for (at, k) in [8, 16, 24, 64, 72, 512, 520, 1096].into_iter().enumerate() {
        check_swapped::<f16>(Case { k, n: 300, ..SWAPPED }, at as u64);
    }
    // A block has three tiles of ten blocks of k.
    for (seed, rows) in simt::seeds().flat_map(|seed| [8, 16, 32].map(|rows| (seed, rows))) {
        let case = Case { rows: [rows; 2], n: 600, k: 584, ..SWAPPED };
        check_swapped::<f16>(case, seed);
        check_swapped::<bf16>(Case { out: Out::Half, ..case }, seed);
    }
}

#[test]
fn swapped_operands_with_a_gate_match_the_separate_kernels() {
    for (at, rows) in [0_usize, 1, 9, 16, 17, 31, 32].into_iter().enumerate() {
        let gate = Some(Activation::FUSED[at % 2]);
        let case = Case { rows: [rows, rows.max(9)], gate, out: Out::Half, ..SWAPPED };
        // Outputs one by one, and in words.
        for (n, out_pad) in [(8, 3), (64, 4), (200, 0)] {
            let case = Case { n, out_pad, bias: at % 2 == 0, ..case };
            check_fused::<f16>(case, at as u64);
            check_fused::<bf16>(Case { gate: Some(Activation::FUSED[1 - at % 2]), ..case }, 1);
        }
    }
    // Of 64 to 128 rows of the weight on two multiprocessors, and several tiles a block.
    let base = Case { rows: [31, 32], gate: super::SILU, out: Out::Half, ..SWAPPED };
    for n in [56, 72, 96, 128, 136, 304] {
        check_fused::<f16>(Case { n, ..base }, n as u64);
    }
    // Around an MMA, a stage, and all stages twice.
    for (at, k) in [8, 24, 64, 72, 520, 1096].into_iter().enumerate() {
        check_fused::<f16>(Case { k, n: 152, ..base }, at as u64);
    }
    for seed in simt::seeds() {
        check_fused::<bf16>(Case { rows: [16; 2], n: 304, k: 584, ..base }, seed);
    }
}

/// Rows in E4M3: shapes around the edges of a tile, with every kind of output, each in an order of
/// its own; blocks with several tiles each; no rows; scales of blocks.
#[test]
fn tiles_of_rows_in_e4m3_match_oracle() {
    let rows_have_scales = Weight::E4m3 { in_blocks: false };
    let blocks_have_scales = Weight::E4m3 { in_blocks: true };
    let of = |accumulate| LinearFp8::tiles(accumulate).iter().map(move |tile| (accumulate, tile));
    let tiles = [Fp8Accumulate::TwoLevel, Fp8Accumulate::Fast].into_iter().flat_map(of);
    for (number, (accumulate, tile)) in tiles.enumerate() {
        let ([block_m, block_n], [cluster_m, cluster_n]) = (tile.block, tile.cluster);
        let kernel = Kernel::Fp8(accumulate, tile, 132);
        let whole = Case { weight: rows_have_scales, kernel, ..PLAIN };
        let (bias, out) = (true, Out::Residual);
        let more = [block_m + 1, block_m + 9];
        let less = Case { rows: [block_m - 1, block_m], n: block_n - 8, k: 112, bias, ..whole };
        let several = Case {
            rows: [cluster_m * block_m + 5, 2 * cluster_m * block_m],
            n: cluster_n * block_n + 8,
            k: [400, 656, 144][number % 3],
            bias,
            kernel: Kernel::Fp8(accumulate, tile, cluster_m * cluster_n),
            ..whole
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
            case.check::<f16>(seed);
        }
        let case = Case { rows: [30, 32], n: 72, k: 160, ..whole };
        let mut operands = case.operands::<f16>();
        operands.x_codes.bytes[159] = weights::NAN;
        operands.x.values[159] = f64::NAN;
        case.check_with::<f16>(&operands, 1);
        if accumulate == Fp8Accumulate::Fast {
            continue;
        }
        let several = Case { weight: blocks_have_scales, ..several };
        several.check::<f16>(1);
        // At the edges of blocks and of tiles.
        for (n, k) in [(block_n + 130, 400), (2 * block_n, 128), (block_n - 1, 272), (129, 16)] {
            let out = if n.is_multiple_of(2) { Out::Half } else { Out::Residual };
            let case = Case { rows: [block_m; 2], n, k, bias: false, out, kernel, ..several };
            case.check::<f16>(n as u64);
        }
    }
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
