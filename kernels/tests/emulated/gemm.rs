//! Linear layers.

use crate::device::{Device, SEEDS, assert_close, random};
use kernels::Rows;
use kernels::gemm::{Gpu, Linear, LinearOperands, SumOrder};

/// A linear layer of `num_rows` rows in a launch for `max_rows`.
struct Case {
    num_rows: usize,
    max_rows: usize,
    n: usize,
    k: usize,
    /// Row strides of the operands, less their widths.
    pad: usize,
    with_bias: bool,
    with_residual: bool,
}

fn check(case: &Case, seed: u64) {
    check_order(SumOrder::Fastest, case, seed);
}

/// Checks the outputs against the oracle, and returns them.
fn check_order(order: SumOrder, case: &Case, seed: u64) -> Vec<f32> {
    let &Case { num_rows, max_rows, n, k, pad, with_bias, with_residual } = case;
    let stride = k + pad;
    let (x, weight) = (random(num_rows * stride, seed + 1), random(n * stride, seed + 2));
    let (bias, residual) = (random(n, seed + 3), random(num_rows * n, seed + 4));
    let mut device = Device::default();
    let rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
    let operands = LinearOperands {
        x: Rows::new(device.f32s("x", &x), stride),
        weight: Rows::new(device.f32s("weight", &weight), stride),
        bias: with_bias.then(|| device.f32s("bias", &bias)),
        residual: with_residual.then(|| Rows::new(device.f32s("residual", &residual), n)),
        out: Rows::new(device.poisoned("out", num_rows * n), n),
    };
    // The output overwrites the residual, as in the decoder.
    let out = operands.residual.unwrap_or(operands.out);
    let operands = LinearOperands { out, ..operands };
    let launch = Linear { max_rows, n, k }.launch(Gpu::HOPPER, order, rows_ptr, &operands);
    let name = launch.as_ref().map_or("", |launch| launch.as_ref().map_or("", |l| l.symbol));
    let name = format!("{name} of {num_rows} x {n} x {k}");
    let report = device.run(launch, seed);
    assert_eq!(report.bank_conflicts, 0, "{name}");
    let want: Vec<f64> = (0..num_rows * n)
        .map(|at| {
            let (row, column) = (at / n, at % n);
            let products = (0..k)
                .map(|i| f64::from(x[row * stride + i]) * f64::from(weight[column * stride + i]));
            let bias = if with_bias { f64::from(bias[column]) } else { 0.0 };
            let residual = if with_residual { f64::from(residual[at]) } else { 0.0 };
            products.sum::<f64>() + bias + residual
        })
        .collect();
    let got = device.read_f32(out.ptr, num_rows * n);
    assert_close(&name, &got, &want, 1e-5);
    got
}

#[test]
fn tiles_match_oracle() {
    let whole = Case {
        num_rows: 64,
        max_rows: 64,
        n: 64,
        k: 64,
        pad: 0,
        with_bias: false,
        with_residual: false,
    };
    check(&whole, 0);
    for seed in SEEDS {
        let ragged = Case { num_rows: 65, max_rows: 130, n: 67, k: 20, pad: 4, ..whole };
        check(&Case { with_bias: true, with_residual: true, ..ragged }, seed);
        check(&Case { num_rows: 17, max_rows: 17, k: 15, with_bias: true, ..ragged }, seed);
        check(
            &Case { num_rows: 3, max_rows: 3, k: 33, pad: 0, with_residual: true, ..ragged },
            seed,
        );
    }
}

#[test]
fn the_large_tile_matches_oracle() {
    // Enough blocks to fill a GPU, of which four have rows.
    let case = Case {
        num_rows: 130,
        max_rows: 128 * 66,
        n: 259,
        k: 20,
        pad: 0,
        with_bias: true,
        with_residual: false,
    };
    check(&case, 1);
}

/// A row has the same bits alone and among 7 or 35: the small-batch kernel takes many rows in
/// groups. Tiles accumulate in another order, whatever the number of rows.
#[test]
fn a_requested_order_of_accumulation_is_kept() {
    let (n, k, pad, with_bias, with_residual) = (9, 260, 4, true, false);
    let case = |rows| Case { num_rows: rows, max_rows: rows, n, k, pad, with_bias, with_residual };
    let bits = |order, rows: usize| -> Vec<u32> {
        check_order(order, &case(rows), 5).into_iter().map(f32::to_bits).collect()
    };
    for order in [SumOrder::SmallBatch, SumOrder::Tiles] {
        let alone = bits(order, 1);
        assert_eq!(bits(order, 35)[..n], alone, "{order:?}");
        assert_eq!(bits(order, 7)[..n], alone, "{order:?}");
    }
    assert_ne!(bits(SumOrder::SmallBatch, 1), bits(SumOrder::Tiles, 1));
}

#[test]
fn small_batches_match_oracle() {
    for (num_rows, max_rows) in [(1, 1), (2, 2), (3, 4), (5, 8), (16, 16)] {
        for (seed, k) in SEEDS.zip([4, 132, 1156]) {
            let n = 9;
            let (with_bias, with_residual) = (seed == 0, seed > 0);
            let pad = 4;
            check(&Case { num_rows, max_rows, n, k, pad, with_bias, with_residual }, seed);
        }
    }
}
