//! Layers as the host launches them: by weights in E4M3 and in tiles, as they are and by dense
//! copies, and in f32; and what is refused.

use super::weights::{in_blocks_of, pack, tiles};
use super::{Case, EPS, Kernel, Out, SILU, Weight, small::check_fused};
use crate::harness::*;
use cuda_std::launch::DevicePtr;
use gpu_types::{Activation, DRAWN, Dtype};
use half::f16;
use kernels::Rows;
use kernels::gemm::kernels::gemv::gemv_16;
use kernels::gemm::kernels::small_m::gemm_16_small_m;
use kernels::gemm::kernels::streamed::gemm_16_streamed;
use kernels::gemm::layer::{Input, Layer, Operands};
use kernels::gemm::quantised::BlockFormat;
use kernels::gemm::quantised::gather::GatherQuantised;
use kernels::gemm::{Accumulate, Gpu, SumOrder, Target};
use oracle::{Approx, Matrix};
use std::collections::BTreeSet;

const HOPPER: Gpu = Gpu { num_sms: 3, ..Gpu::HOPPER };
const SM80: Gpu = Gpu { target: Target::Sm80, num_sms: 2, overlaps: false };

/// One SM, for which the large tiles are chosen, and as many as there are for small ones.
const GPUS: [Gpu; 3] = [Gpu { num_sms: 1, ..Gpu::HOPPER }, Gpu::HOPPER, SM80];

/// A few rows by tiles.
const TILES: Case = Case {
    rows: [3, 8],
    n: 40,
    k: 512,
    pad: 8,
    out_pad: 8,
    weight: Weight::Tiles(BlockFormat::Q4_K),
    magnitude: 0.001,
    kernel: on(HOPPER),
    ..Case::ONE_ROW
};

/// Between the tiles of 64 and of 128 rows, with a part of a tile of columns.
const PROMPT: Case = Case { rows: [66, 66], n: 24, kernel: on(Gpu::HOPPER), ..TILES };

/// A few rows by a weight in E4M3.
const E4M3: Case =
    Case { n: 37, k: 400, out_pad: 0, weight: Weight::E4m3 { in_blocks: false }, ..TILES };

/// The fastest on a GPU.
const fn on(gpu: Gpu) -> Kernel {
    Kernel::Layer(SumOrder::Fastest, gpu)
}

/// A kind of output, by number.
fn out_of(number: usize) -> (Out, Option<Activation>) {
    [(Out::InPlace, None), (Out::Half, None), (Out::Half, Some(activation(number / 3)))][number % 3]
}

/// One activation after the other.
fn activation(number: usize) -> Activation {
    Activation::FUSED[number % Activation::FUSED.len()]
}

/// [`Case::check`] in f16; the outputs are off by at most a thousandth, taken together.
#[track_caller]
fn check(case: Case, seed: usize) {
    let operands = case.operands::<f16>();
    let got = case.check_with::<f16>(&operands, seed as u64);
    if case.gate.is_none() {
        let square = |terms: &mut dyn Iterator<Item = f64>| terms.map(|x| x * x).sum::<f64>();
        let want = case.oracle::<f16>(&operands);
        let off = square(&mut want.iter().zip(&got).map(|(w, &got)| f64::from(got) - w.value));
        let all = square(&mut want.iter().map(|want| want.value));
        assert!(off <= 1e-6 * all, "{case:?}: a relative error of {}", (off / all).sqrt());
    }
}

#[test]
fn every_format_and_count_of_rows_matches_oracle() {
    for (seed, format) in BlockFormat::tiled().enumerate() {
        let weight = Weight::Tiles(format);
        for (at, rows) in [0, 1_usize, 2, 3, 8, 15, 16].into_iter().enumerate() {
            let rows = [rows, [rows.max(1), rows.next_multiple_of(8).max(8)][(seed + at) % 2]];
            let (out, gate) = out_of(seed + at);
            let kernel = on([HOPPER, SM80][at % 2]);
            let (n, bias) = ([17, 40, 16][at % 3], at % 2 == 0);
            check(Case { weight, rows, n, bias, out, gate, kernel, ..TILES }, seed);
        }
        for (at, rows) in [0, 17, 64, 129].into_iter().enumerate() {
            let (out, gate) = out_of(seed / 3 + at);
            let (kernel, bias) = (on(GPUS[(seed + at) % 3]), at % 2 == 1);
            let rows = [rows, rows.max(17) + 3 * (seed % 2)];
            let n = [24, 130, 20, 72][at];
            check(Case { weight, rows, n, bias, out, gate, kernel, ..PROMPT }, seed);
        }
        // By a dense copy.
        let kernel = Kernel::Layer(SumOrder::Tiles, GPUS[seed % 3]);
        check(Case { weight, n: 41, kernel, out: out_of(seed % 2).0, ..PROMPT }, seed);
    }
    // Outputs that are not aligned.
    for (out, gate) in [0, 1, 2].map(out_of) {
        check(Case { n: 33, rows: [18, 66], out, gate, ..PROMPT }, 3);
    }
    check(Case { n: 33, rows: [70, 80], out: Out::Residual, ..PROMPT }, 3);
}

#[test]
fn every_length_of_k_matches_oracle() {
    // Around a group, a unit, a tile and the tiles of four warps.
    let lengths = [32, 64, 96, 256, 288, 352, 896, 1024, 1056, 1312];
    for (seed, (k, format)) in lengths.into_iter().zip(in_blocks_of(32).cycle()).enumerate() {
        let weight = Weight::Tiles(format);
        check(Case { weight, k, n: 24, ..TILES }, seed);
        for gpu in GPUS {
            check(Case { weight, k, kernel: on(gpu), ..PROMPT }, seed);
        }
    }
    let [few, many] = [[256, 1280, 2304, 4096].as_slice(), &[256, 1280, 10_240]];
    for (seed, format) in in_blocks_of(256).enumerate() {
        let weight = Weight::Tiles(format);
        check(Case { weight, k: few[seed % few.len()], n: 18, ..TILES }, seed);
        check(Case { weight, k: many[seed % many.len()], rows: [17, 66], ..PROMPT }, seed);
    }
}

#[test]
fn what_does_not_fit_into_shared_memory_is_computed_in_parts() {
    // x in chunks.
    let case = Case { rows: [15, 16], n: 70, k: 4096, kernel: on(SM80), ..TILES };
    check(case, 1);
    check(Case { weight: Weight::Tiles(BlockFormat::Q5_0), n: 33, k: 2912, ..case }, 2);
    // Rows of tiles in batches.
    let weight = Weight::Tiles(BlockFormat::Q6_K);
    let case = Case { weight, rows: [15, 16], n: 250, ..TILES };
    check(case, 1);
    // More than one tile along k a warp.
    check(Case { n: 140, k: 4352, ..case }, 2);
    check(Case { n: 118, k: 2304, out: Out::Half, gate: SILU, ..case }, 3);
}

/// By every kernel for small batches, the streamed ones on Hopper, and by dense copies.
#[test]
fn layers_in_e4m3_match_oracle() {
    let mut symbols = BTreeSet::new();
    let mut check = |case: Case, seed: usize| {
        let operands = case.operands::<f16>();
        let (symbol, got) = case.run::<f16>(&operands, seed as u64);
        case.compare::<f16>(&operands, symbol, &got);
        symbols.insert(symbol);
    };
    let weights = [false, true].map(|in_blocks| Weight::E4m3 { in_blocks });
    for (at, rows) in [0, 1_usize, 2, 7, 8, 9, 16].into_iter().enumerate() {
        let max_rows = [rows, rows.next_multiple_of(8), 16][at % 3].max(1);
        for (gpu, n) in [HOPPER, SM80].into_iter().flat_map(|gpu| [(gpu, 37), (gpu, 24)]) {
            let (bias, weight, kernel) = (at % 2 == 0, weights[at % 2], on(gpu));
            let out = [Out::InPlace, Out::Half][at % 2];
            check(Case { rows: [rows, max_rows], n, bias, weight, out, kernel, ..E4M3 }, at);
        }
        let kernel = Kernel::Layer([SumOrder::SmallBatch, SumOrder::Tiles][at % 2], GPUS[at % 3]);
        check(Case { rows: [rows, 20], n: 133, weight: weights[1], kernel, ..E4M3 }, at);
    }
    // 16 rows are streamed where a block has few tiles.
    for (seed, k) in [48, 1040, 2064].into_iter().enumerate() {
        let (rows, weight, kernel) = ([16 - seed, 16], weights[seed % 2], on(Gpu::HOPPER));
        check(Case { rows, n: 133, k, weight, kernel, ..E4M3 }, seed);
    }
    // Around a load, a line, what a warp has in flight, and splits of k.
    let lengths = [16, 48, 112, 128, 144, 496, 512, 528, 896, 1024, 2064, 4112, 8192, 11_008];
    for (seed, k) in lengths.into_iter().enumerate() {
        let weight = weights[seed % 2];
        for kernel in [HOPPER, SM80].map(on).into_iter().take(if k > 8000 { 0 } else { 2 }) {
            check(Case { k, n: 9, rows: [1 + seed % 8, 8], weight, kernel, ..E4M3 }, seed);
        }
        let out = [Out::InPlace, Out::Half][seed / 2 % 2];
        check(Case { k, n: 5, rows: [1, 1], weight, out, ..E4M3 }, seed);
    }
    for n in 1..=9 {
        check(Case { n, k: 48, rows: [1, 1], ..E4M3 }, n);
    }
    check(Case { n: 261, k: 272, rows: [1, 1], weight: weights[1], ..E4M3 }, 1);
    // With a fused norm, a gate, or both.
    let kinds = [(true, false), (false, true), (true, true)];
    for (seed, (normed, is_gated)) in kinds.into_iter().cycle().take(18).enumerate() {
        let gate = is_gated.then(|| activation(seed / 3));
        for (gpu, rows) in [(HOPPER, [1, 1]), (HOPPER, [3, 8]), (SM80, [3, 8])] {
            let (n, k) = [(24, 896), (37, 48), (128, 400)][seed / 3 % 3];
            let (weight, bias) = (weights[usize::from(n == 128)], seed % 2 == 0);
            let (out, kernel) = (Out::Half, on(gpu));
            check(Case { rows, n, k, normed, gate, out, weight, bias, kernel, ..E4M3 }, seed);
        }
    }
    let small = gemv_16::Instance::ALL.iter().map(|x| x.symbol());
    let small = small.chain(gemm_16_small_m::Instance::ALL.iter().map(|x| x.symbol()));
    let small = small.chain(gemm_16_streamed::Instance::ALL.iter().map(|x| x.symbol()));
    let missing: Vec<_> = small.filter(|x| x.contains("e4m3") && !symbols.contains(x)).collect();
    assert!(missing.is_empty(), "{missing:?} did not run");
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_every_order() {
    use BlockFormat::{Q2_K, Q4_K, Q5_0, Q6_K};
    let in_tiles = [Q2_K, Q4_K, Q6_K, Q5_0].map(|format| Case {
        weight: Weight::Tiles(format),
        k: 1280,
        ..TILES
    });
    let same = |case: Case, counts: &[[usize; 2]]| {
        let operands = Case { rows: [70, 70], ..case }.operands::<f16>();
        let mut of = counts
            .iter()
            .map(|&rows| bits(&Case { rows, ..case }.run::<f16>(&operands, 3).1[..case.n]));
        let first = of.next().expect("a count");
        assert!(of.all(|other| other == first), "{case:?}");
    };
    for case in in_tiles {
        same(case, &[[1, 1], [1, 8], [3, 3], [8, 8], [9, 16], [16, 16]]);
    }
    let in_e4m3 = [false, true].map(|in_blocks| Case {
        weight: Weight::E4m3 { in_blocks },
        n: 41,
        k: 1200,
        ..E4M3
    });
    for (case, gpu) in in_e4m3.into_iter().flat_map(|case| [(case, HOPPER), (case, SM80)]) {
        same(Case { kernel: on(gpu), ..case }, &[[2, 2], [1, 8], [9, 16], [16, 16]]);
    }
    // Without such an order the number of rows chooses between kernels.
    let cases = [in_tiles[1], in_e4m3[1]];
    for (case, gpu) in cases.into_iter().flat_map(|case| GPUS.map(|gpu| (case, gpu))) {
        for order in [SumOrder::Tiles, SumOrder::SmallBatch] {
            let kernel = Kernel::Layer(order, gpu);
            same(Case { k: 1024, n: 24, kernel, ..case }, &[[3, 3], [66, 66]]);
        }
    }
    let few = [TILES, E4M3, Case { rows: [1, 1], ..E4M3 }];
    let prompts = GPUS.map(|gpu| Case { rows: [18, 70], n: 132, kernel: on(gpu), ..PROMPT });
    for case in few.into_iter().chain(prompts) {
        let case = Case { k: 1280, ..case };
        let operands = case.operands::<f16>();
        assert_same_bits(&format!("{case:?}"), |seed| case.run::<f16>(&operands, seed).1);
    }
}

#[test]
fn large_and_small_numbers_match_oracle() {
    for (seed, format) in BlockFormat::tiled().enumerate() {
        let case = Case { weight: Weight::Tiles(format), bias: false, ..TILES };
        let check = |out, magnitude, x: fn(f64) -> f64| {
            let case = Case { out, magnitude, ..case };
            let mut operands = case.operands::<f16>();
            let values = operands.x.values.iter_mut();
            values.for_each(|value| *value = f16::from_f64(x(*value)).into());
            case.check_with::<f16>(&operands, seed as u64)
        };
        // Activations near the end of f16, whose sums are beyond it.
        check(Out::InPlace, 1.0, |x| 60_000.0 * (0.9 + 0.1 * x.abs()));
        // Subnormal ones, and factors that are.
        check(Out::Half, 1e-5, |x| 1000.0 * x);
        check(Out::Half, 100.0, |x| 1e-4 * x);
        // Blocks of zeros.
        let zeros = Case { out: Out::Half, magnitude: 0.0, ..case };
        let got = zeros.run::<f16>(&zeros.operands::<f16>(), 0).1;
        assert!(got.iter().all(|&out| out == 0.0));
    }
}

/// Products that round nowhere but in the weight: each output is an element of it, rounded to f16
/// as a dense copy has it; of Q4_K and Q5_K the min too, which is at most about as large as the
/// elements of a row.
#[test]
fn elements_of_prompts_are_those_of_the_weight() {
    let in_tiles = BlockFormat::tiled().map(|format| (Weight::Tiles(format), 16));
    let in_e4m3 = [false, true].map(|in_blocks| (Weight::E4m3 { in_blocks }, 133));
    for (weight, n) in in_tiles.chain(in_e4m3) {
        for (gpu, order) in [(Gpu::HOPPER, SumOrder::Fastest), (SM80, SumOrder::Tiles)] {
            let (rows, kernel) = ([256, 256], Kernel::Layer(order, gpu));
            let (bias, out) = (false, Out::Half);
            let case = Case { weight, rows, k: 256, n, bias, out, kernel, ..PROMPT };
            let mut operands = case.operands::<f16>();
            operands.x = Matrix::new(256, 256, |row, column| f64::from(u8::from(row == column)));
            let got = case.run::<f16>(&operands, 1).1;
            let is_rounded =
                [BlockFormat::Q4_K, BlockFormat::Q5_K].map(Weight::Tiles).contains(&weight);
            let want = (0..got.len()).map(|at| {
                let row = operands.weight.row(at % n);
                let largest = row.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
                let of_min = if is_rounded { largest / 2048.0 } else { 0.0 };
                let element = row[at / n];
                Approx::new(element, 1e-6 * element.abs().max(1.0) + of_min)
            });
            assert_right(&format!("{case:?}"), &got, &stored::<f16>(want.collect()));
        }
    }
}

#[test]
fn a_fused_norm_has_the_bits_of_the_separate_one() {
    for (seed, format) in BlockFormat::tiled().enumerate() {
        for (gpu, rows, k) in [(HOPPER, 1, 352_usize), (SM80, 3, 896), (HOPPER, 7, 2208)] {
            // Rows of x from the row count on are unwritten.
            let (rows, k) = ([rows, rows + 1], k.next_multiple_of(format.block_elems()));
            let (weight, kernel) = (Weight::Tiles(format), on(gpu));
            let (normed, bias, out, magnitude) = (true, false, Out::F32, 0.01);
            let case =
                Case { rows, k, weight, kernel, normed, bias, out, magnitude, pad: 0, ..TILES };
            assert!(case.layer::<f16>(SumOrder::Fastest).fuses(gpu));
            check_fused::<f16>(case, seed as u64);
        }
    }
}

#[test]
fn gathered_rows_have_the_elements() {
    for format in BlockFormat::tiled() {
        let (n, k) = (40, if format.block_elems() == 32 { 2400 } else { 512 });
        let (elements, codes) = tiles(format, [n, k], |factor| 0.1 * factor);
        let mut device = Device::default();
        let weight = device.bytes("weight", &pack(format, [n, k], &codes.bytes));
        let indices = [39_u32, 0, 7, 8, 15, 16, 39, 24];
        let (num_rows, ids) = (device.u32s("num_rows", &[6]), [39, 0, DRAWN | 1, 8, 15, 16]);
        let (ids, drawn) = (device.u32s("ids", &ids), device.u32s("drawn", &[30, 7]));
        let out: Rows<f32> = device.out("out", (k + 4, 8));
        let scale = 0.3;
        let gather = GatherQuantised { max_rows: 8, n, k, scale, format };
        device.run(gather.launch(num_rows, ids, Some(drawn), weight, out), 1);
        let want = indices[..6].iter().flat_map(|&index| elements.row(index as usize));
        let want = want.map(|&x| f64::from(scale) * x);
        let want: Vec<_> = want.map(|x| Approx::new(x, 1e-5 * x.abs().max(1.0))).collect();
        assert_right(&format!("{format:?}"), &device.read_rows(out, [6, 8], k), &want);
    }
}

#[test]
fn packed_weights_have_the_bytes_of_the_file() {
    for format in BlockFormat::tiled() {
        let file = |n: usize, k: usize| n * k / format.block_elems() * format.block_bytes();
        assert_eq!(format.packed_bytes(4096, 4096), Some(file(4096, 4096)), "{format:?}");
        assert_eq!(format.packed_bytes(17, 512), Some(file(32, 512)), "{format:?}");
        assert_eq!(format.packed_bytes(usize::MAX, usize::MAX / 2), None);
    }
    // Half of the scales of a last tile are padding.
    assert_eq!(BlockFormat::Q5_0.packed_bytes(16, 896), Some(16 * 28 * 22 + 128));
}

/// A layer in f32.
const F32: Case =
    Case { n: 9, k: 260, pad: 4, out_pad: 0, kernel: on(Gpu::HOPPER), ..Case::ONE_ROW };

#[track_caller]
fn check_f32(case: Case, seed: u64) -> Vec<f32> {
    let operands = case.operands::<f32>();
    let (symbol, got) = case.run_f32(&operands, seed);
    case.compare::<f32>(&operands, &format!("{symbol}, seed {seed},"), &got);
    got
}

#[test]
fn layers_in_f32_match_oracle() {
    let plain = Case { bias: false, out: Out::F32, ..F32 };
    check_f32(Case { rows: [64, 64], n: 64, k: 64, pad: 0, ..plain }, 0);
    for seed in simt::seeds() {
        let out = [Out::Residual, Out::InPlace][seed as usize % 2];
        check_f32(Case { rows: [65, 130], n: 67, k: 20, out, ..F32 }, seed);
        check_f32(Case { rows: [17, 17], n: 67, k: 15, bias: true, ..plain }, seed);
        check_f32(Case { rows: [3, 3], n: 67, k: 33, pad: 0, bias: false, ..F32 }, seed);
    }
    // The large tile: enough blocks to fill a GPU, of which four have rows.
    check_f32(Case { rows: [130, 128 * 66], n: 259, k: 20, pad: 0, bias: true, ..plain }, 1);
    for rows in [[1, 1], [2, 2], [3, 4], [5, 8], [16, 16]] {
        for (seed, k) in simt::seeds().zip([4, 132, 1156]) {
            let out = if seed > 0 { Out::InPlace } else { Out::F32 };
            check_f32(Case { rows, k, bias: seed == 0, out, ..F32 }, seed);
        }
    }
}

/// A row has the same bits alone and among 7 or 35: the small-batch kernel takes many rows in
/// groups. Tiles accumulate in another order, whatever the number of rows.
#[test]
fn a_requested_order_of_accumulation_is_kept_in_f32() {
    let of = |order, rows| {
        let kernel = Kernel::Layer(order, Gpu::HOPPER);
        bits(&check_f32(Case { rows: [rows; 2], out: Out::F32, kernel, ..F32 }, 5)[..9])
    };
    for order in [SumOrder::SmallBatch, SumOrder::Tiles] {
        assert_eq!(
            [7, 35].map(|rows| of(order, rows)),
            [(); 2].map(|()| of(order, 1)),
            "{order:?}"
        );
    }
    assert_ne!(of(SumOrder::SmallBatch, 1), of(SumOrder::Tiles, 1));
}

/// A refusal: how a right layer of 64 columns, in a launch for so many rows, and its operands are
/// changed, and what is said.
type Refusal = (usize, fn(&mut Layer, &mut Operands), &'static str);

/// Operands of [`refuse`], each at an address of its own.
fn operands(k: usize) -> Operands {
    Operands {
        num_rows: ptr(64),
        x: rows_at(16, k),
        norm: None,
        gate: None,
        weight: 32,
        scales: ptr(80),
        bias: None,
        residual: None,
        out: rows_at(48, 128),
        out_is_f32: false,
        workspace: 0x1000,
    }
}

#[track_caller]
fn refuse(case: Case, refusals: &[Refusal]) {
    let Kernel::Layer(order, gpu) = case.kernel else { panic!("not a layer") };
    for &(max_rows, change, want) in refusals {
        let case = Case { rows: [0, max_rows], n: 128, k: 512, ..case };
        let (mut layer, mut operands) = (case.layer::<f16>(order), operands(512));
        let launches = layer.launches(gpu, &operands, &mut tensor_map);
        assert!(launches.is_ok_and(|launches| !launches.is_empty()), "{case:?}");
        for nothing in [Case { n: 0, ..case }, Case { rows: [0, 0], ..case }] {
            let launches = nothing.layer::<f16>(order).launches(gpu, &operands, &mut tensor_map);
            assert_eq!(launches.map(|launches| launches.len()), Ok(0), "{nothing:?}");
        }
        change(&mut layer, &mut operands);
        let got = layer.launches(gpu, &operands, &mut tensor_map).map(|_| ());
        assert_eq!(got.unwrap_err().to_string(), want, "{case:?}");
    }
}

/// x in f32, and normed.
fn normed(layer: &mut Layer, operands: &mut Operands) {
    layer.input = Input::Normed;
    operands.norm = Some((DevicePtr::new(80), EPS));
}

fn in_f32(_: &mut Layer, at: &mut Operands) {
    (at.out_is_f32, at.residual) = (true, Some(rows(128)));
}

#[test]
fn what_no_kernel_computes_is_refused() {
    let refusals: &[Refusal] = &[
        (64, |layer, _| layer.k = 100, "k is 100: expected a multiple of 8"),
        (64, |layer, _| layer.k = 0, "k is 0: expected a multiple of 8"),
        (1, |layer, _| layer.k = 900, "k is 900: expected a multiple of 8"),
        (
            64,
            |layer, _| layer.max_rows = 1 << 31,
            "rows is 2147483648: expected at most 2147483135",
        ),
        (64, |_, at| at.x.row_stride = 516, "row stride is 516: expected a multiple of 8"),
        (64, |_, at| at.x.ptr.0 = 24, "address is 24: expected a multiple of 16"),
        (1, |_, at| at.weight = 40, "address is 40: expected a multiple of 16"),
        (
            64,
            |_, at| at.out.row_stride = 1 << 30,
            "row stride is 1073741824: expected at most 1073741823",
        ),
        (
            64,
            |_, at| at.residual = Some(rows(128)),
            "output bits is 16: expected 32 where a residual is added",
        ),
        (
            65,
            |layer, _| {
                layer.operand = Dtype::BF16;
                layer.summation.accumulate = Accumulate::F16;
            },
            "accumulator bits is 16: expected 32 for bf16 operands",
        ),
    ];
    let fused: &[Refusal] = &[
        (9, normed, "rows is 9: expected at most 8 with a norm or a gate, 16 with a weight in FP8"),
        (65, normed, "rows is 65: expected at most 8 for a layer with a fused norm or gate"),
        (
            8,
            |layer, at| {
                normed(layer, at);
                (layer.k, at.x.row_stride) = (8192, 8192);
            },
            "k is 8192: expected columns whose normed rows fit into shared memory",
        ),
        (
            8,
            |layer, at| {
                normed(layer, at);
                in_f32(layer, at);
            },
            "residuals is 1: expected none for a layer with a fused norm or gate",
        ),
        (
            8,
            |layer, at| {
                normed(layer, at);
                at.x.row_stride = 514;
            },
            "row stride is 514: expected a multiple of 4",
        ),
        (
            8,
            |layer, at| {
                normed(layer, at);
                at.norm = Some((DevicePtr::new(84), EPS));
            },
            "address is 84: expected a multiple of 16",
        ),
        (
            8,
            |layer, at| (layer.gate, at.out_is_f32) = (SILU, true),
            "output bits is 32: expected 16 for a gated layer",
        ),
        (
            8,
            |layer, _| layer.input = Input::Gated(Activation::Silu),
            "gates before the layer is 1: expected none where rows are not rounded",
        ),
    ];
    for gpu in [Gpu::HOPPER, A100] {
        refuse(Case { kernel: on(gpu), ..Case::ONE_ROW }, refusals);
        refuse(Case { kernel: on(gpu), ..Case::ONE_ROW }, fused);
    }
    refuse(
        Case { kernel: on(A100), ..Case::ONE_ROW },
        &[(
            2,
            |layer, at| {
                (layer.n, layer.k) = (17, (1 << 30) - 8);
                at.x.row_stride = layer.k;
            },
            "row stride of the weight is 1073741816: expected a matrix of at most 32 GiB",
        )],
    );
    refuse(
        Case { weight: Weight::E4m3 { in_blocks: true }, ..E4M3 },
        &[
            (1, |layer, _| layer.k = 888, "k is 888: expected a multiple of 16"),
            (
                1,
                |layer, _| (layer.gate, layer.n) = (SILU, 100),
                "n is 100: expected a multiple of 128 with scales of blocks and a gate",
            ),
            (
                9,
                |layer, _| layer.gate = SILU,
                "rows is 9: expected at most 8 with a norm or a gate, 16 with a weight in FP8",
            ),
            (
                17,
                |layer, _| layer.gate = SILU,
                "gates is 1: expected none for so many rows by a weight in FP8",
            ),
        ],
    );
    let residual = "output bits is 16: expected 32 with a residual";
    let gate = "output bits is 32: expected 16 with a gate";
    let q6_k = Weight::Tiles(BlockFormat::Q6_K);
    for rows in [16, 17] {
        refuse(
            Case { weight: q6_k, ..TILES },
            &[
                (rows, |layer, _| layer.k = 896, "k is 896: expected a multiple of 256"),
                (rows, |layer, _| layer.k = 0, "k is 0: expected at least one block"),
                (rows, |_, at| at.weight = 40, "address is 40: expected a multiple of 16"),
                (
                    rows,
                    |_, at| at.x.row_stride = 516,
                    "row stride is 516: expected rows of x that are 16-byte aligned",
                ),
                (rows, |_, at| at.residual = Some(rows_at(48, 128)), residual),
                (rows, |layer, at| (layer.gate, at.out_is_f32) = (SILU, true), gate),
            ],
        );
    }
}
