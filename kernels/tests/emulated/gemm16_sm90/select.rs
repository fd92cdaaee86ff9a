//! The choice of tiles for sm_90a, held to the recorded times of every configuration.

use crate::recorded::{Row, rows};
use kernels::gemm::config::TileConfig;
use kernels::gemm::{Gpu, Linear16, SumOrder, Summation};

const PAGE: &str = include_str!("../../../../docs/measurements/gemm_sm90.md");

/// Largest regret: how much slower than the fastest of its row a choice may be.
const MAX_REGRET: f64 = 0.01;

/// Times of different tables are from different cards.
const MAX_BETWEEN_CARDS: f64 = 0.1;

/// The name of a configuration in the tables.
fn name(config: &TileConfig) -> String {
    let [block_m, block_n] = config.block;
    let mut name = format!("{block_m}x{block_n}");
    if config.cluster != [1, 1] {
        name += " pair";
    }
    if config.split_k > 1 {
        name += &format!(" split{}", config.split_k);
    }
    name
}

/// The name of the choice for `[m, n, k]`.
fn choice([m, n, k]: [usize; 3], order: SumOrder) -> String {
    let summation = Summation { order, ..Summation::default() };
    name(TileConfig::fastest(&Linear16 { summation, ..Linear16::new(m, n, k) }, Gpu::HOPPER))
}

/// Holds the choices of an order, which may take the configurations that `is_allowed`.
fn check(order: SumOrder, is_allowed: fn(&str) -> bool) {
    let rows = rows(PAGE);
    assert!(rows.len() > 40, "{} rows are read", rows.len());
    for row in &rows {
        let (shape, chosen) = (row.shape, choice(row.shape, order));
        assert!(is_allowed(&chosen), "{chosen} of {shape:?} in the order {order:?}");
        let of_shape: Vec<&Row> = rows.iter().filter(|row| row.shape == shape).collect();
        let times: Vec<f64> = of_shape.iter().filter_map(|row| row.time(&chosen)).collect();
        let us = times.iter().copied().fold(f64::INFINITY, f64::min);
        let is_cublas = |name: &str| name == "cuBLAS";
        for other in &of_shape {
            let best = other.best(|name| !is_cublas(name) && is_allowed(name));
            let (us, regret) = match other.time(&chosen) {
                Some(us) => (us, MAX_REGRET),
                None => (us, MAX_BETWEEN_CARDS),
            };
            assert!(us <= best * (1.0 + regret), "{chosen} of {shape:?} takes {us} us, not {best}");
        }
    }
}

#[test]
fn choices_stay_near_the_fastest_measured_configuration() {
    check(SumOrder::Fastest, |_| true);
}

/// A layer whose outputs must not depend on the rows beside them takes the fastest without split-K.
#[test]
fn choices_in_the_order_of_tiles_are_the_fastest_without_a_split() {
    check(SumOrder::Tiles, |name| !name.contains("split"));
}

/// A measurement holds for all row counts that have as many tiles.
#[test]
fn a_partly_filled_tile_of_rows_changes_no_choice() {
    for row in rows(PAGE) {
        let [m, n, k] = row.shape;
        for order in [SumOrder::Fastest, SumOrder::Tiles] {
            let full = choice([m.next_multiple_of(64), n, k], order);
            let least = m.next_multiple_of(64) - 63;
            for m in [m, least] {
                assert_eq!(choice([m, n, k], order), full, "{order:?} of {m} x {n} x {k}");
            }
        }
    }
}
