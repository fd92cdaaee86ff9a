//! Tiles whose k the blocks of a cluster split.

use super::{Case, Out, SEEDS, Setup, WHOLE, check, check_edges, check_of};
use half::f16;
use kernels::gemm::Linear16;
use kernels::gemm::config::{TileConfig, WGMMA_TILES};
use kernels::gemm::kernels::sm90;

fn config(block: [usize; 2], split_k: usize) -> &'static TileConfig {
    let mut configs = WGMMA_TILES.iter();
    configs.find(|config| config.block == block && config.split_k == split_k).expect("a tile")
}

/// k around the shares of the blocks: some are empty, or one is larger than the others, or stages
/// are reused.
fn check_shares(tile: &TileConfig) {
    for seed in SEEDS {
        for num_k_blocks in [1, tile.split_k - 1, tile.split_k + 1, 9 * tile.split_k - 1] {
            let case = Case {
                num_rows: 65,
                max_rows: 67,
                n: 72,
                k: 64 * num_k_blocks - 8,
                with_bias: true,
                ..WHOLE
            };
            check_of::<f16>(&case, tile, seed);
            check_of::<f16>(&Case { out: Out::InPlace, n: 63, ..case }, tile, seed);
        }
    }
}

#[test]
fn tile_128x128_split_2_matches_oracle() {
    check_edges(config([128, 128], 2));
    check_shares(config([128, 128], 2));
}

#[test]
fn tile_128x128_split_4_matches_oracle() {
    check_edges(config([128, 128], 4));
    check_shares(config([128, 128], 4));
}

#[test]
fn tile_64x128_split_4_matches_oracle() {
    check_edges(config([64, 128], 4));
    check_shares(config([64, 128], 4));
}

#[test]
fn tile_64x128_split_2_matches_oracle() {
    check_edges(config([64, 128], 2));
    check_shares(config([64, 128], 2));
}

/// More clusters than run at once.
#[test]
fn many_split_tiles_match_oracle() {
    let tile = config([64, 128], 4);
    let case = Case { num_rows: 200, max_rows: 400, n: 200, k: 392, num_sms: 1, ..WHOLE };
    for seed in SEEDS {
        check(&Case { out: Out::Residual, out_pad: 3, ..case }, tile, seed);
    }
}

/// In every order of what is concurrent, and whatever the number of rows, an output has the same
/// bits.
#[test]
fn outputs_do_not_depend_on_the_order() {
    for tile in WGMMA_TILES.iter().filter(|tile| tile.split_k > 1) {
        let mut outputs = SEEDS.map(|seed| {
            let num_rows = if seed % 2 == 0 { 70 } else { 128 };
            let case = Case { num_rows, n: 136, k: 600, out: Out::F32, with_bias: true, ..WHOLE };
            let linear = Linear16::new(case.max_rows, case.n, case.k);
            let mut setup = Setup::<f16>::new(&case, 7);
            setup.run(seed, |num_rows, operands, maps| {
                sm90::launch(tile, &linear, 1, num_rows, operands, maps)
            });
            let mut outputs = setup.outputs(&case);
            outputs.truncate(70 * case.n);
            outputs
        });
        let first = outputs.next().expect("a seed");
        assert!(outputs.all(|other| other == first));
    }
}
