//! GEMM of 16-bit floats by `mma.sync`.

use crate::device::{Device, SEEDS, f16_accumulation_bound, random};
use cuda_std::launch::{DevicePtr, LaunchError};
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::config::{MMA_TILES, TileConfig};
use kernels::gemm::kernels::sm80::launch;
use kernels::gemm::{Accumulate, Gpu, Input16, Linear16, Linear16Operands, Out16, Target};
use kernels::tile::element::Operand16;

/// An A100.
const SM80: Gpu = Gpu { target: Target::Sm80, num_sms: 108, overlaps: false };

/// The tiles with f32 accumulators.
fn tiles() -> impl DoubleEndedIterator<Item = &'static TileConfig> {
    MMA_TILES.iter().filter(|tile| tile.accumulate == Accumulate::F32)
}

/// Largest error before the output is rounded, as a part of `sum_k |a * b| + |bias| + |residual|`.
const BOUND: f64 = 1e-5;

/// What the tests need to know of the operands' type.
trait Half: Operand16 + Into<f64> {
    /// From 1 to the next number.
    const UNIT: f64;
    fn bits(self) -> u16;
    fn of_bits(bits: u16) -> Self;
}

macro_rules! half {
    ($($half:ty: $unit:expr),*) => {$(
        impl Half for $half {
            const UNIT: f64 = $unit;

            fn bits(self) -> u16 {
                self.to_bits()
            }

            fn of_bits(bits: u16) -> Self {
                Self::from_bits(bits)
            }
        }
    )*};
}

half!(f16: 1.0 / 1024.0, bf16: 1.0 / 128.0);

/// A linear layer of `num_rows` rows in a launch for `max_rows`.
#[derive(Clone, Copy)]
struct Case {
    num_rows: usize,
    max_rows: usize,
    n: usize,
    k: usize,
    /// Elements that strides of the operands have more than their rows, a multiple of 8.
    pad: usize,
    /// Elements that strides of residual and output have more than their rows.
    out_pad: usize,
    with_bias: bool,
    with_residual: bool,
    /// Whether the output is in f32, and if so in the residual's place.
    to_f32: bool,
}

/// The case of so many rows, columns, and columns of the operands, without any extras.
fn plain(num_rows: usize, n: usize, k: usize) -> Case {
    let (with_bias, with_residual, to_f32) = (false, false, false);
    let max_rows = num_rows;
    Case { num_rows, max_rows, n, k, pad: 0, out_pad: 0, with_bias, with_residual, to_f32 }
}

/// The values of a case; padding between rows is NaN.
struct Inputs<E> {
    x: Vec<E>,
    weight: Vec<E>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

/// Rows of these values, each followed by `pad` NaN.
fn padded(values: &[f32], width: usize, pad: usize) -> Vec<f32> {
    let rows = values.chunks_exact(width);
    rows.flat_map(|row| [row, &vec![f32::NAN; pad]].concat()).collect()
}

impl<E: Half> Inputs<E> {
    fn random(case: &Case, salt: u64) -> Self {
        let &Case { num_rows, n, k, pad, out_pad, .. } = case;
        let halves = |rows, salt| {
            let values = padded(&random(rows * k, salt), k, pad);
            values.into_iter().map(E::from_f32).collect()
        };
        Inputs {
            x: halves(num_rows, salt + 1),
            weight: halves(n, salt + 2),
            bias: random(n, salt + 3),
            residual: padded(&random(num_rows * n, salt + 4), n, out_pad),
        }
    }

    /// An output in f64, and the most that it may be off before it is rounded.
    fn oracle(&self, case: &Case, accumulate: Accumulate, [row, column]: [usize; 2]) -> (f64, f64) {
        let stride = case.k + case.pad;
        let products = (0..case.k).map(|i| {
            let (a, b) = (self.x[row * stride + i], self.weight[column * stride + i]);
            a.into() * b.into()
        });
        let products: Vec<f64> = products.collect();
        let rounding = match accumulate {
            Accumulate::F32 => 0.0,
            Accumulate::F16 => f16_accumulation_bound(&products),
        };
        let residual = self.residual[row * (case.n + case.out_pad) + column];
        let bias = case.with_bias.then(|| f64::from(self.bias[column]));
        let residual = case.with_residual.then(|| f64::from(residual));
        let summands = products.into_iter().chain(bias).chain(residual);
        summands
            .fold((0.0, rounding), |(sum, bound), value| (sum + value, bound + BOUND * value.abs()))
    }
}

/// Two 16-bit numbers a word.
fn words<E: Half>(values: &[E]) -> Vec<u32> {
    let (pairs, _) = values.as_chunks::<2>();
    pairs.iter().map(|[a, b]| u32::from(a.bits()) | u32::from(b.bits()) << 16).collect()
}

/// Runs a case in a configuration; returns the symbol and the outputs with their padding.
fn run<E: Half>(
    config: &TileConfig,
    case: &Case,
    inputs: &Inputs<E>,
    seed: u64,
) -> (&'static str, Vec<f32>) {
    let &Case { num_rows, max_rows, n, k, pad, out_pad, .. } = case;
    let mut device = Device::default();
    let rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
    let out_stride = n + out_pad;
    let len = num_rows * out_stride;
    let residual = Rows::new(device.f32s("residual", &inputs.residual), out_stride);
    let residual = case.with_residual.then_some(residual);
    let out: Out16<E> = if case.to_f32 {
        Out16::F32(residual.unwrap_or(Rows::new(device.poisoned("out", len), out_stride)))
    } else {
        let ptr = device.poisoned::<u32>("out", len.div_ceil(2)).0;
        Out16::Half(Rows::new(DevicePtr::new(ptr), out_stride))
    };
    let mut halves = |name, values: &[E]| {
        Rows::new(DevicePtr::new(device.u32s(name, &words(values)).0), k + pad)
    };
    let (x, weight) = (halves("x", &inputs.x), halves("weight", &inputs.weight));
    let bias = case.with_bias.then(|| device.f32s("bias", &inputs.bias));
    let operands = Linear16Operands { x: Input16::Half(x), weight, bias, residual, out };
    let launch = launch(config, &Linear16::new(max_rows, n, k), rows_ptr, &operands);
    let symbol = launch.as_ref().map_or("", |launch| launch.as_ref().map_or("", |l| l.symbol));
    let report = device.run(launch, seed);
    assert_eq!(report.bank_conflicts, 0, "{symbol} of {num_rows} x {n} x {k}");
    let got = match out {
        Out16::F32(rows) => device.read_f32(rows.ptr, len),
        Out16::Half(rows) => {
            let words = device.read_u32(DevicePtr::new(rows.ptr.0), len.div_ceil(2));
            let bits = words.into_iter().flat_map(|word| [word as u16, (word >> 16) as u16]);
            bits.take(len).map(|bits| E::of_bits(bits).into() as f32).collect()
        }
    };
    (symbol, got)
}

/// Runs a case and compares it with the oracle.
fn check<E: Half>(config: &TileConfig, case: &Case, seed: u64) {
    check_inputs(config, case, &Inputs::<E>::random(case, seed), seed);
}

/// As [`check`], of these inputs.
fn check_inputs<E: Half>(config: &TileConfig, case: &Case, inputs: &Inputs<E>, seed: u64) {
    let (symbol, got) = run(config, case, inputs, seed);
    let &Case { num_rows, n, k, out_pad, .. } = case;
    let mut told_from_zero = 0;
    for (at, &got) in got.iter().enumerate() {
        let (row, column) = (at / (n + out_pad), at % (n + out_pad));
        let place = format!("{symbol} of {num_rows} x {n} x {k}, seed {seed}: [{row}, {column}]");
        if column >= n {
            assert!(got.is_nan(), "{place} is between rows, and {got}");
            continue;
        }
        let (want, bound) = inputs.oracle(case, config.accumulate, [row, column]);
        let unit = if case.to_f32 { 0.0 } else { E::UNIT };
        let error = (f64::from(got) - want).abs();
        let bound = bound + unit / 2.0 * want.abs();
        let close = error <= bound;
        told_from_zero += usize::from(want.abs() > bound);
        let same = f64::from(got) == want || got.is_nan() && want.is_nan();
        assert!(same || want.is_finite() && close, "{place} is {got}, not {want}");
    }
    // The bounds are of use: a kernel that writes zeros passes at few outputs.
    let num_outputs = num_rows * n;
    assert!(told_from_zero >= num_outputs * 4 / 5, "{symbol}: {told_from_zero} of {num_outputs}");
}

#[test]
fn tiles_match_oracle_at_their_edges() {
    for config in tiles() {
        let (m, n) = (config.block[0], config.block[1]);
        check::<f16>(config, &plain(m, n, 64), 0);
        check::<bf16>(config, &Case { to_f32: true, ..plain(m, n, 64) }, 1);
        for (num_rows, n, k, seed) in [(m - 1, n - 1, 72, 0), (m + 1, n + 1, 8, 1)] {
            let case = Case { pad: 8, with_bias: true, ..plain(num_rows, n, k) };
            check::<f16>(config, &Case { with_residual: true, to_f32: true, ..case }, seed);
            check::<bf16>(config, &Case { out_pad: 3, ..case }, seed);
        }
    }
}

#[test]
fn f16_accumulators_match_oracle() {
    let config = &MMA_TILES[3];
    let (m, n) = (config.block[0], config.block[1]);
    for seed in SEEDS {
        check::<f16>(config, &plain(m, n, 64), seed);
        let case = Case { pad: 8, with_bias: true, ..plain(m + 1, n + 1, 1000) };
        check::<f16>(config, &Case { with_residual: true, to_f32: true, ..case }, seed);
        check::<f16>(config, &Case { out_pad: 3, ..case }, seed);
    }
    // 1024 + 1/2 is 1024 in f16, however often.
    let case = Case { to_f32: true, ..plain(1, 1, 128) };
    let mut inputs = Inputs::<f16>::random(&case, 0);
    inputs.x.fill(f16::ONE);
    inputs.weight.fill(f16::from_f32(0.5 / 16.0));
    inputs.weight[..16].fill(f16::from_f32(64.0));
    assert_eq!(run(config, &case, &inputs, 0).1, [1024.0]);
    assert_eq!(run(&MMA_TILES[1], &case, &inputs, 0).1, [1027.5]);
}

#[test]
fn operands_and_outputs_of_every_kind_match_oracle() {
    for config in tiles() {
        for flags in 0..8 {
            let [with_bias, with_residual, to_f32] = [1, 2, 4].map(|flag| flags & flag != 0);
            let case = Case { with_bias, with_residual, to_f32, ..plain(5, 36, 40) };
            check::<f16>(config, &case, flags);
            check::<bf16>(config, &Case { out_pad: 4, ..case }, flags);
            // Rows of the output that no vector can be written to.
            check::<f16>(config, &Case { out_pad: 1, ..case }, flags);
            check::<bf16>(config, &Case { n: 35, ..case }, flags);
        }
    }
}

#[test]
fn every_depth_of_the_pipeline_matches_oracle() {
    for config in tiles() {
        for k in [8, 16, 24, 32, 56, 64, 96, 128, 136, 192, 256, 264, 320] {
            check::<f16>(config, &Case { pad: 16, to_f32: true, ..plain(3, 8, k) }, k as u64);
        }
    }
}

#[test]
fn fewer_rows_than_the_launch_is_for_match_oracle() {
    for config in tiles() {
        for seed in SEEDS {
            // Ten rows of tiles make two groups in the order of the tiles; of the last row one.
            for num_rows in [1, config.block[0], 2 * config.block[0] + 1] {
                let max_rows = 10 * config.block[0] - 5;
                let case = Case { max_rows, ..plain(num_rows, config.block[1] + 8, 16) };
                check::<bf16>(config, &case, seed);
            }
        }
    }
}

#[test]
fn more_rows_of_tiles_than_a_group_match_oracle() {
    let config = tiles().next_back().expect("a smallest tile");
    let case = Case { with_bias: true, ..plain(10 * config.block[0], 2 * config.block[1] + 4, 8) };
    check::<f16>(config, &case, 1);
}

#[test]
fn no_rows_write_nothing() {
    for config in tiles() {
        let case = Case { max_rows: 70, ..plain(0, 64, 64) };
        let (_, got) = run(config, &case, &Inputs::<f16>::random(&case, 0), 0);
        assert!(got.is_empty());
    }
}

#[test]
fn nan_and_infinity_are_where_the_oracle_has_them() {
    for config in tiles() {
        let case = Case { with_bias: true, with_residual: true, ..plain(20, 40, 48) };
        let mut inputs = Inputs::<f16>::random(&case, 7);
        inputs.x[3 * 48 + 47] = f16::INFINITY;
        inputs.x[9 * 48] = f16::NAN;
        inputs.weight[5 * 48 + 47] = f16::ZERO;
        inputs.weight[6 * 48 + 8] = f16::NEG_INFINITY;
        inputs.weight[39 * 48 + 1] = f16::NAN;
        inputs.bias[8] = f32::INFINITY;
        inputs.residual[19 * 40 + 2] = f32::NAN;
        // Beyond the largest f16, though not f32.
        inputs.bias[30] = 70_000.0;
        let (_, rounded) = run(config, &case, &inputs, 0);
        assert!(
            (0..20)
                .filter(|row| *row != 3 && *row != 9)
                .all(|row| rounded[row * 40 + 30] == f32::INFINITY)
        );
        check_inputs(config, &Case { to_f32: true, ..case }, &inputs, 0);
    }
}

#[test]
fn the_order_of_threads_changes_no_bit() {
    for config in tiles() {
        let case = Case { with_bias: true, to_f32: true, ..plain(config.block[0] + 3, 70, 200) };
        let inputs = Inputs::<bf16>::random(&case, 3);
        let bits = |seed| -> Vec<u32> {
            run(config, &case, &inputs, seed).1.into_iter().map(f32::to_bits).collect()
        };
        let first = bits(0);
        assert!(SEEDS.skip(1).all(|seed| bits(seed) == first), "{:?}", config.block);
    }
}

/// Clocks of an SM for 16 columns of k of a tile, as `docs/measurements/gemm_sm80.md` records them.
const CLOCKS: [([usize; 2], usize); 3] = [([128, 256], 530), ([128, 128], 301), ([64, 64], 110)];

/// On GPUs from 28 SMs (GeForce RTX 3060) to 132 (H200) no other tile would be done earlier, where
/// the SMs take tiles in turn.
#[test]
fn the_chosen_tile_is_done_first_on_every_gpu() {
    for num_sms in [28, 46, 82, 108, 128, 132] {
        for [m, n, k] in [
            [65_usize, 896, 896],
            [512, 896, 896],
            [512, 896, 4864],
            [512, 3072, 8192],
            [512, 9728, 896],
            [512, 16_384, 3072],
            [2048, 2048, 2048],
            [8192, 8192, 8192],
        ] {
            let clocks = |([block_m, block_n], clocks): ([usize; 2], usize)| {
                (m.div_ceil(block_m) * n.div_ceil(block_n)).div_ceil(num_sms) * clocks
            };
            let chosen = TileConfig::fastest(&Linear16::new(m, n, k), Gpu { num_sms, ..SM80 });
            let of_chosen = CLOCKS.iter().find(|(b, _)| *b == chosen.block);
            let least = CLOCKS.map(clocks).into_iter().min();
            assert_eq!(
                of_chosen.copied().map(clocks),
                least,
                "{:?} of {m} x {n} x {k} on {num_sms} SMs",
                chosen.block
            );
        }
    }
}

#[test]
fn a_launch_covers_its_tiles_or_is_refused() {
    let rows = |address, stride| Rows::<f16>::new(DevicePtr::new(address), stride);
    let launch = |max_rows, n, k, x, weight| {
        let out = Out16::Half(rows(0x3000, n));
        let operands =
            Linear16Operands { x: Input16::Half(x), weight, bias: None, residual: None, out };
        let linear = Linear16::new(max_rows, n, k);
        let config = TileConfig::fastest(&linear, SM80);
        launch(config, &linear, DevicePtr::new(0x9000), &operands)
    };
    let (x, weight) = (rows(0x1000, 64), rows(0x2000, 64));
    let right = launch(65, 130, 64, x, weight).unwrap().unwrap();
    assert_eq!((right.symbol, right.geometry.grid), ("gemm_sm80_f16_f16_64x64", [6, 1, 1]));
    assert_eq!(launch(0, 130, 64, x, weight), Ok(None));
    assert_eq!(launch(65, 0, 64, x, weight), Ok(None));
    for (k, x, field) in [
        (60, x, "k"),
        (1 << 31, x, "k"),
        (64, rows(0x1000, 68), "row stride"),
        (64, rows(0x1008, 64), "address of an operand"),
    ] {
        let refused = launch(65, 130, k, x, weight);
        assert!(
            matches!(refused, Err(LaunchError::Shape { what, .. }) if what == field),
            "{field}"
        );
    }
    let many = launch(usize::MAX, usize::MAX, 64, x, weight);
    assert!(many.is_err());
}
