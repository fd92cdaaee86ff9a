//! Which kernel is chosen for a layer, held to recorded times and to the order of accumulation.

use super::SILU;
use super::recorded::{Row, rows as recorded_rows};
use crate::harness::*;
use cuda_std::launch::DevicePtr;
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::{bf16, f16};
use kernels::gemm::config::TileConfig;
use kernels::gemm::{
    Accumulate, Gpu, Input16, Linear, Linear16, Linear16Operands, LinearOperands, MAX_FUSED_ROWS,
    Out16, SmallM16, SumOrder, Summation, Swapped16, Target,
};

/// Operands of a layer `[n, k]`, each at an address of its own.
fn operands(n: usize, k: usize) -> Linear16Operands<f16> {
    let (x, weight, out) =
        (Input16::Half(rows_at(16, k)), rows_at(32, k), Out16::Half(rows_at(48, n)));
    Linear16Operands { x, weight, bias: None, residual: None, out }
}

/// The launch of a layer `[rows, n, k]`.
fn launch(
    gpu: Gpu,
    [rows, n, k]: [usize; 3],
    change: impl Fn(&mut Linear16, &mut Linear16Operands<f16>),
) -> Launched {
    let (mut linear, mut operands) = (Linear16::new(rows, n, k), operands(n, k));
    change(&mut linear, &mut operands);
    linear.launch(gpu, ptr(64), &operands, &mut TensorMapSpec::emulated)
}

/// The symbol of a launch for a summation.
fn symbol_in(gpu: Gpu, shape: [usize; 3], order: SumOrder, accumulate: Accumulate) -> &'static str {
    symbol_of(launch(gpu, shape, |linear, _| linear.summation = Summation { order, accumulate }))
}

/// x in f32, and normed.
fn normed(operands: &mut Linear16Operands<f16>, stride: usize) {
    let (x, weight) = (rows_at(16, stride), DevicePtr::new(80));
    operands.x = Input16::Normed { x, weight, eps: 0.25 };
}

/// Largest regret: how much slower than the fastest of its row a choice may be; and between tables,
/// whose times are from different cards.
const MAX_REGRET: [f64; 2] = [0.01, 0.1];

/// The name of the configuration that is chosen for tiles by `wgmma`, as in the tables.
fn choice([m, n, k]: [usize; 3], order: SumOrder) -> String {
    let summation = Summation { order, ..Summation::default() };
    let linear = Linear16 { summation, ..Linear16::new(m, n, k) };
    let config = TileConfig::fastest(&linear, Gpu::HOPPER);
    let [block_m, block_n] = config.block;
    let pair = if config.cluster == [1, 1] { "" } else { " pair" };
    let split =
        if config.split_k > 1 { format!(" split{}", config.split_k) } else { String::new() };
    format!("{block_m}x{block_n}{pair}{split}")
}

/// A layer whose outputs must not depend on the rows beside them takes the fastest without split-K.
#[test]
fn choices_stay_near_the_fastest_measured_configuration() {
    let rows = recorded_rows(include_str!("../../../../docs/measurements/gemm_sm90.md"));
    assert!(rows.len() > 40, "{} rows are read", rows.len());
    let all = [SumOrder::Fastest, SumOrder::Tiles];
    for (row, order) in rows.iter().flat_map(|row| all.map(|order| (row, order))) {
        let is_allowed = |name: &str| order == SumOrder::Fastest || !name.contains("split");
        let (shape, chosen) = (row.shape, choice(row.shape, order));
        assert!(is_allowed(&chosen), "{chosen} of {shape:?} in the order {order:?}");
        let of_shape: Vec<&Row> = rows.iter().filter(|row| row.shape == shape).collect();
        let times = of_shape.iter().filter_map(|row| row.time(&chosen));
        let least = times.fold(f64::INFINITY, f64::min);
        for other in &of_shape {
            let best = other.best(|name| name != "cuBLAS" && is_allowed(name));
            let (us, regret) = match other.time(&chosen) {
                Some(us) => (us, MAX_REGRET[0]),
                None => (least, MAX_REGRET[1]),
            };
            assert!(us <= best * (1.0 + regret), "{chosen} of {shape:?} takes {us} us, not {best}");
        }
        // A measurement holds for all row counts that have as many tiles.
        let [m, n, k] = shape;
        let whole = m.next_multiple_of(64);
        let choices = [m, whole - 63, whole].map(|m| choice([m, n, k], order));
        assert_eq!(choices, [(); 3].map(|()| choices[2].clone()), "{order:?} of {shape:?}");
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
            let chosen = TileConfig::fastest(&Linear16::new(m, n, k), Gpu { num_sms, ..A100 });
            let of_chosen =
                CLOCKS.into_iter().find(|(block, _)| *block == chosen.block).map(clocks);
            let least = CLOCKS.map(clocks).into_iter().min();
            assert_eq!(of_chosen, least, "{:?} of {m} x {n} x {k} on {num_sms} SMs", chosen.block);
        }
    }
}

/// Whether operands are swapped follows the recorded times, but for 2 %.
#[test]
fn the_choice_to_swap_is_near_the_fastest_measured_kernel() {
    let page = include_str!("../../../../docs/measurements/gemm_sm90_swapped.md");
    let rows = recorded_rows(page);
    assert!(rows.len() >= 20, "{} rows are read", rows.len());
    for row in rows.iter().filter(|row| row.times.len() == 2) {
        let symbol = symbol_of(launch(Gpu::HOPPER, row.shape, |_, _| ()));
        let kernel = ["streamed", "swapped"].into_iter().find(|kernel| symbol.contains(kernel));
        let us = kernel.and_then(|kernel| row.time(kernel)).unwrap_or(f64::INFINITY);
        let best = row.best(|_| true);
        assert!(us <= 1.02 * best, "{symbol} of {:?} takes {us} us, not {best}", row.shape);
    }
}

/// The order of accumulation and the type of accumulators decide before speed does. Small batches
/// have f32 accumulators, and so has bf16.
#[test]
fn a_requested_summation_is_kept() {
    use Accumulate::{F16, F32};
    use SumOrder::{Fastest, SmallBatch, Tiles};
    let symbol = |m, order, accumulate| symbol_in(Gpu::HOPPER, [m, 9728, 896], order, accumulate);
    assert!(symbol(32, Tiles, F32).contains("_swapped_"));
    assert!(symbol(32, Tiles, F16).contains("_in_f16"));
    assert!(symbol(32, SmallBatch, F32).contains("_streamed_"));
    // More rows than there are instances for.
    assert!(!symbol(33, Fastest, F32).contains("_swapped_"));
    for target in [Target::Sm90a, Target::Sm80] {
        let gpu = Gpu { target, ..Gpu::HOPPER };
        for (rows, in_f16) in [(65, true), (64, false)] {
            let symbol = symbol_in(gpu, [rows, 128, 128], Fastest, F16);
            assert_eq!(symbol.contains("_in_f16"), in_f16, "{symbol}");
            let summation = Summation { accumulate: F16, ..Summation::default() };
            let linear = Linear16 { summation, ..Linear16::new(rows, 128, 128) };
            let rows = rows_at::<bf16>(0x1000, 128);
            let (x, out) = (Input16::Half(rows), Out16::Half(rows));
            let operands = Linear16Operands { x, weight: rows, bias: None, residual: None, out };
            let launch = linear.launch(gpu, ptr(1), &operands, &mut TensorMapSpec::emulated);
            assert_eq!(refused(launch).0, "accumulator bits");
        }
    }
    // One row takes GEMV where any order is allowed.
    let symbol = |rows, order| symbol_in(Gpu::HOPPER, [rows, 896, 896], order, F32);
    assert!(symbol(1, Fastest).starts_with("gemv") && !symbol(2, Fastest).starts_with("gemv"));
    assert!(!symbol(1, SmallBatch).starts_with("gemv") && !symbol(1, Tiles).starts_with("gemv"));
    assert_eq!(symbol(0, Fastest), "");
    for (is_normed, gate, name) in
        [(true, None, "_norm"), (true, SILU, "_norm_silu"), (false, SILU, "_silu")]
    {
        let launch = launch(Gpu::HOPPER, [1, 896, 896], |linear, operands| {
            linear.gate = gate;
            if is_normed {
                normed(operands, 896);
            }
        });
        assert_eq!(symbol_of(launch), format!("gemv_f16{name}"));
    }
}

/// How many warps share k decides the order of accumulation: it depends on the weight and the GPU,
/// never on the rows of x. So streaming weights by TMA changes no bit.
#[test]
fn the_warps_that_share_k_depend_on_the_weight_and_the_gpu() {
    let columns = [8, 448, 449, 896, 1152, 1728, 1729, 2112, 2113, 4096, 12_288, 151_936];
    for (num_sms, n) in [28, 108, 132].into_iter().flat_map(|sms| columns.map(|n| (sms, n))) {
        let (threads, warps) = if n <= 16 * num_sms { (512, "_w16") } else { (256, "_w8") };
        for rows in [1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 1024] {
            let linear = SmallM16(Linear16::new(rows, n, 896));
            let launch = |target| {
                let (gpu, maps) = (Gpu { target, num_sms, ..A100 }, &mut TensorMapSpec::emulated);
                of(linear.launch(gpu, ptr(64), &operands(n, 896), maps))
            };
            let (symbol, _, of_block, _) = launch(Target::Sm80);
            assert_eq!(of_block, threads, "{symbol} of {n} columns on {num_sms} SMs");
            let (symbol, ..) = launch(Target::Sm90a);
            assert!(rows > 64 || symbol.ends_with(warps), "{symbol} of {n} columns");
        }
    }
    // So do fused layers, and their norm and gate.
    for (gpu, num_sms) in [(A100, 28), (A100, 108), (Gpu::HOPPER, 78), (Gpu::HOPPER, 132)] {
        let gpu = Gpu { num_sms, ..gpu };
        let columns = [40, 223, 225, 1056, 1057, 2112, 2113, 22_016];
        for (n, gate) in columns.into_iter().flat_map(|n| [(n, None), (n, SILU)]) {
            let weight_rows = if gate.is_some() { 2 * n } else { n };
            let warps = if weight_rows <= 16 * num_sms { "_w16_" } else { "_w8_" };
            // In any order one row has a kernel of its own.
            let order = |rows| if rows == 1 { SumOrder::SmallBatch } else { SumOrder::Fastest };
            let symbol = |rows, n| {
                symbol_of(launch(gpu, [rows, n, 896], |linear, operands| {
                    (linear.gate, linear.summation.order) = (gate, order(rows));
                    normed(operands, 896);
                }))
            };
            for rows in [1, 2, 8] {
                let symbol = symbol(rows, n);
                assert!(symbol.contains(warps), "{symbol} of {n} columns on {num_sms} SMs");
                assert!(
                    symbol.contains("_norm") && symbol.contains("_silu") == gate.is_some(),
                    "{symbol}"
                );
            }
            assert_eq!([symbol(0, n), symbol(1, 0)], [""; 2]);
        }
    }
    let small = |gpu, rows, n| {
        let linear = SmallM16(Linear16::new(rows, n, 896));
        linear.launch(gpu, ptr(64), &operands(n, 896), &mut TensorMapSpec::emulated)
    };
    for gpu in [A100, Gpu::HOPPER] {
        assert!(is_nothing(small(gpu, 0, 896)) && is_nothing(small(gpu, 4, 0)));
    }
}

/// As measured on an H200, in us: tiles of up to 24, 32, 40 and 48 columns for 32 rows, and blocks
/// of 8 and of 32 columns for one row without TMA.
#[test]
fn widths_of_tiles_are_near_the_fastest_measured() {
    let is_near = |symbol: &str, names: &[&str], times: &[f64]| {
        let width = names.iter().position(|name| symbol.contains(name));
        let us = times[width.unwrap_or_else(|| panic!("{symbol}"))];
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(us <= 1.02 * best, "{symbol} takes {us} us, not {best}");
    };
    let symbol = |target, [rows, n, k]: [usize; 3]| {
        let (linear, gpu) = (SmallM16(Linear16::new(rows, n, k)), Gpu { target, ..Gpu::HOPPER });
        symbol_of(linear.launch(gpu, ptr(64), &operands(n, k), &mut TensorMapSpec::emulated))
    };
    for (n, k, times) in [
        (3072, 3072, [7.0, 7.2, 7.5, 7.8]),
        (4096, 4096, [12.2, 10.7, 11.1, 11.4]),
        (9728, 896, [8.7, 8.6, 7.9, 8.2]),
        (9216, 3072, [16.8, 17.4, 16.4, 16.9]),
        (12_288, 4096, [27.9, 27.5, 27.5, 26.9]),
        (16_384, 3072, [28.4, 26.4, 26.5, 27.0]),
        (22_016, 4096, [46.9, 49.7, 48.3, 46.3]),
    ] {
        is_near(symbol(Target::Sm90a, [32, n, k]), &["_n24_", "_n32_", "_n40_", "_n48_"], &times);
    }
    for (n, times) in
        [(9216, [17.4, 18.3]), (9728, [7.3, 6.8]), (12_288, [29.5, 27.3]), (32_064, [51.6, 46.4])]
    {
        is_near(symbol(Target::Sm80, [1, n, 896]), &["_n8_", "_n32_"], &times);
    }
}

/// Columns of a tile in a launch of a layer of `n` columns: rows of the weight in a TMA box.
fn tile_columns(
    n: usize,
    launch: impl FnOnce(
        &Linear16Operands<f16>,
        &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Launched,
) -> usize {
    let mut columns = 0;
    made(launch(&operands(n, 64), &mut |spec: &TensorMapSpec| {
        if spec.dims[1] == n as u64 {
            columns = spec.box_dims[1];
        }
        spec.emulated()
    }));
    columns as usize
}

#[test]
fn tiles_share_the_columns() {
    // Where a block has several tiles of a small batch they are narrow: measured on an H200, in us
    // by their columns.
    for (n, [fast, slow]) in [
        (12_288, [(24, 24.9), (32, 25.8)]),
        (32_000, [(27, 61.2), (31, 62.0)]),
        (9216, [(24, 14.7), (18, 15.1)]),
    ] {
        let linear = SmallM16(Linear16::new(8, n, 64));
        let columns = tile_columns(n, |operands, maps| {
            linear.launch_streamed(Gpu::HOPPER, ptr(64), operands, maps)
        });
        let chosen = [fast, slow].into_iter().find(|(of, _)| *of == columns);
        let (_, us) = chosen.unwrap_or_else(|| panic!("{columns} of {n} were not measured"));
        assert!(us <= 1.02 * fast.1, "tiles of {columns} columns of {n} take {us} us");
    }
    // With swapped operands evenly.
    let num_sms = Gpu::HOPPER.num_sms;
    for n in (7393..152_000_usize).step_by(371) {
        let linear = Swapped16(Linear16::new(32, n, 64));
        let columns =
            tile_columns(n, |operands, maps| linear.launch(Gpu::HOPPER, ptr(64), operands, maps));
        assert!((64..=128).contains(&columns), "{columns} of {n}");
        let tiles_per_sm = n.div_ceil(columns).div_ceil(num_sms);
        // An SM has at most the swizzle's 8 rows more than an even share, one of several tiles 2.
        let share = n.div_ceil(num_sms).next_multiple_of(if tiles_per_sm > 1 { 2 } else { 8 });
        let most = share.max(64) + 2 * tiles_per_sm;
        assert!(columns * tiles_per_sm <= most, "{tiles_per_sm} x {columns} columns of {n}");
    }
}

#[test]
fn few_rows_are_fused_with_a_norm_or_a_gate() {
    let fuses = |max_rows, k| Linear16::new(max_rows, 896, k).fuses(Gpu::HOPPER, true);
    assert!(fuses(MAX_FUSED_ROWS, 896) && fuses(MAX_FUSED_ROWS, 5120) && fuses(5, 8192));
    assert!(!fuses(MAX_FUSED_ROWS + 1, 896) && !fuses(6, 8192) && !fuses(1, 0));
    assert!(fuses(1, 32_768) && !fuses(1, 65_536) && !fuses(1, usize::MAX));
    // A gate needs none.
    let gates = |max_rows, k| gated([max_rows, 896, k]).fuses(A100, false);
    assert!(gates(MAX_FUSED_ROWS, 65_536) && !gates(MAX_FUSED_ROWS + 1, 896) && !gates(1, 0));
}

/// A layer with a gate.
fn gated([max_rows, n, k]: [usize; 3]) -> Linear16 {
    Linear16 { gate: SILU, ..Linear16::new(max_rows, n, k) }
}

/// By the kernel that computes gate and up alone.
#[test]
fn many_rows_are_fused_with_a_gate() {
    // Qwen2.5-0.5B, Phi-3 Mini, Llama 2 7B, Qwen3-8B, Llama 3 8B.
    for (n, k) in [(4864, 896), (8192, 3072), (11_008, 4096), (12_288, 4096), (14_336, 4096)] {
        for rows in [9, 16, 32, 33, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192] {
            let symbol = |n, gate| {
                symbol_of(launch(Gpu::HOPPER, [rows, n, k], |linear, _| linear.gate = gate))
            };
            assert!(gated([rows, n, k]).fuses(Gpu::HOPPER, false), "{rows} x {n} x {k}");
            assert_eq!(symbol(n, SILU), symbol(2 * n, None).to_owned() + "_silu");
        }
    }
    let is_fused = |change: fn(&mut Linear16)| {
        let mut linear = gated([512, 12_288, 4096]);
        change(&mut linear);
        linear.fuses(Gpu::HOPPER, false)
    };
    assert!(is_fused(|_| ()) && is_fused(|linear| linear.summation.order = SumOrder::Tiles));
    assert!(!is_fused(|linear| linear.summation.order = SumOrder::SmallBatch));
    assert!(!is_fused(|linear| linear.summation.accumulate = Accumulate::F16));
    // Eight rows of gate and of up are loaded in turn; small weights have kernels of their own.
    assert!(!is_fused(|linear| linear.n = 12_292));
    assert!(!is_fused(|linear| (linear.max_rows, linear.n, linear.k) = (64, 512, 512)));
    assert!(!gated([512, 12_288, 4096]).fuses(A100, false));
    let refusal = refused(launch(Gpu::HOPPER, [512, 12_292, 4096], |linear, _| linear.gate = SILU));
    assert_eq!(refusal.0, "n");
}

fn linear_f32([max_rows, n, k]: [usize; 3], x: kernels::Rows<f32>, num_sms: usize) -> Launched {
    let operands = LinearOperands { x, weight: rows(k), bias: None, residual: None, out: rows(n) };
    let gpu = Gpu { num_sms, ..Gpu::HOPPER };
    Linear { max_rows, n, k }.launch(gpu, SumOrder::Fastest, ptr(9), &operands)
}

#[test]
fn layers_in_f32_choose_by_shape() {
    let of_shape = |[m, n, k]: [usize; 3]| of(linear_f32([m, n, k], rows(k), 132));
    assert_eq!(of_shape([1, 897, 896]), ("gemm_f32_small_m1", [225, 1, 1], 128, 0));
    assert_eq!(of_shape([3, 896, 896]), ("gemm_f32_small_m4", [112, 1, 1], 128, 0));
    assert_eq!(of_shape([16, 17, 896]), ("gemm_f32_small_m16", [2, 1, 1], 128, 0));
    assert_eq!(of_shape([17, 65, 64]), ("gemm_f32_64x64", [1, 2, 1], 128, 32_768));
    let unaligned = ("gemm_f32_64x64_unaligned", [1, 1, 1], 128, 32_768);
    assert_eq!(of_shape([1, 64, 63]), unaligned);
    for x in [rows_at(0x1004, 64), rows(65)] {
        assert_eq!(of(linear_f32([1, 64, 64], x, 132)), unaligned);
    }
    for [m, n, k] in [[0, 64, 64], [0, 64, 63], [1, 0, 64], [32, 0, 64]] {
        assert!(is_nothing(linear_f32([m, n, k], rows(k), 132)), "{m} {n} {k}");
    }
    assert_eq!(refused(linear_f32([1, 64, 1 << 31], rows(64), 132)).0, "k");
    // Operands that are absent are null.
    let launch = made(linear_f32([1, 64, 64], rows(64), 132));
    assert_eq!(launch.args[launch.arg_offsets[7] as usize..][..16], [0; 16]);
    // The large tile is taken where each SM of the GPU gets one of them, whatever GPU it is.
    let shapes = [(17, 64), (300, 896), (512, 4096), (1024, 1024), (1100, 3072), (4096, 4096)];
    for (num_sms, (m, n)) in
        [1, 28, 82, 108, 132, 170].into_iter().flat_map(|sms| shapes.map(|shape| (sms, shape)))
    {
        let tiles = |[block_m, block_n]: [usize; 2]| {
            [m, n, 1]
                .map(|size: usize| size)
                .iter()
                .zip([block_m, block_n, 1])
                .map(|(size, block)| size.div_ceil(block) as u32)
                .collect::<Vec<_>>()
        };
        let (large, small) = (tiles([128, 256]), tiles([64, 64]));
        let want = if large[0] * large[1] >= num_sms as u32 { large } else { small };
        let (_, grid, ..) = of(linear_f32([m, n, 64], rows(64), num_sms));
        assert_eq!(grid[..], want, "{m} x {n} on {num_sms} SMs");
    }
}
