//! Small batches: streamed weights, weights by registers, GEMV; with a fused norm, a gate, or both.

use super::{Case, EPS, Half, Kernel, Operands, Out, SILU};
use crate::harness::*;
use core::any::TypeId;
use core::iter;
use gpu_types::Activation;
use half::{bf16, f16};
use kernels::Rows;
use kernels::activation::gate_of;
use kernels::gate_rows::GateRows;
use kernels::gemm::kernels::small_m::gemm_16_small_m::Instance;
use kernels::rms_norm::RmsNorm;
use oracle::Matrix;

/// SMs, and columns that make blocks of 16 warps on them, and of 8 with several tiles.
const COLUMNS: [(usize, usize); 2] = [(40, 41), (10, 533)];

const ONE_ROW: Case = Case::ONE_ROW;

/// A layer with a norm, with a gate after it, and with a gate alone.
const NORMED: Case = Case { normed: true, out: Out::Half, out_pad: 0, ..ONE_ROW };
const GATED: Case = Case { gate: SILU, n: 13, magnitude: 0.25, ..NORMED };
const GATED_ALONE: Case = Case { normed: false, ..GATED };

/// These by every gate.
fn gated() -> impl Iterator<Item = Case> {
    let with = |gate| [GATED, GATED_ALONE].map(|case| Case { gate: Some(gate), ..case });
    Activation::FUSED.into_iter().flat_map(with)
}

/// The instances of `E`.
fn instances<E: Half>() -> impl Iterator<Item = Instance> {
    let is_of = |instance: &Instance| [instance.e(), instance.w()] == [TypeId::of::<E>(); 2];
    Instance::ALL.iter().copied().filter(is_of)
}

fn is_fused(instance: &Instance) -> bool {
    instance.normed() || gate_of(instance.a()).is_some()
}

/// Runs a case by a streamed kernel, and without TMA: the same bits.
#[track_caller]
fn check_streamed<E: Half>(case: Case, seed: u64) {
    let got = case.check::<E>(seed);
    let Kernel::Streamed(num_sms) = case.kernel else { panic!("not streamed") };
    let loaded = Case { kernel: Kernel::SmallM(num_sms), ..case };
    assert_eq!(bits(&got), bits(&loaded.run::<E>(&case.operands::<E>(), 0).1), "{case:?}");
}

#[test]
fn streamed_weights_match_oracle() {
    for (at, rows) in [0, 1_usize, 2, 3, 5, 7, 8, 9, 16, 17, 31, 32].into_iter().enumerate() {
        for (num_sms, n) in COLUMNS {
            let max_rows = [rows.max(8), 32, rows.next_multiple_of(8)][at % 3];
            let out = [Out::InPlace, Out::F32, Out::Residual][at % 3];
            let kernel = Kernel::Streamed(num_sms);
            let case = Case { rows: [rows, max_rows], n, k: 72, out, kernel, ..ONE_ROW };
            check_streamed::<f16>(case, at as u64);
            let case = Case { out: Out::Half, bias: at % 2 == 0, ..case };
            check_streamed::<bf16>(case, at as u64);
        }
    }
    // Every count of columns of a tile: with two multiprocessors tiles of up to 16 columns.
    let kernel = Kernel::Streamed(2);
    for n in 1..=33 {
        check_streamed::<f16>(Case { n, rows: [3, 4], k: 40, kernel, ..ONE_ROW }, n as u64);
    }
    // Around a load, a step, a line, the warps' lines, and all stages of a ring, twice.
    for (at, k) in [8, 24, 32, 40, 64, 72, 1016, 1024, 1032, 2056, 17_416].into_iter().enumerate() {
        check_streamed::<f16>(Case { k, n: 5, rows: [2, 8], kernel, ..ONE_ROW }, at as u64);
    }
}

#[test]
fn streamed_weights_match_oracle_in_every_order() {
    for seed in simt::seeds() {
        for (rows, n) in [(1, 41), (8, 605), (16, 41), (16, 605), (32, 41), (32, 605)] {
            // Of 605 columns a block has five tiles of two parts of k, on its third tour of the
            // ring.
            let kernel = Kernel::Streamed(4);
            check_streamed::<f16>(Case { rows: [rows; 2], n, k: 584, kernel, ..ONE_ROW }, seed);
        }
    }
}

/// Several tiles a block, and one alone.
#[test]
fn every_width_of_streamed_tiles_matches_oracle() {
    for (num_sms, n, tiles) in [(25, 529, "n24"), (8, 499, "n32"), (4, 605, "n40"), (6, 553, "n48")]
    {
        let kernel = Kernel::Streamed(num_sms);
        let case = Case { rows: [31, 32], n, k: 136, kernel, ..ONE_ROW };
        let (name, _) = case.run::<f16>(&case.operands::<f16>(), 1);
        assert_eq!(name, format!("gemm_f16_streamed_m32_{tiles}_w8"));
        simt::seeds().for_each(|seed| check_streamed::<f16>(case, seed));
        check_streamed::<bf16>(Case { out: Out::Residual, ..case }, 1);
    }
}

/// A layer by registers.
const SMALL: Case = Case { out_pad: 0, kernel: Kernel::SmallM(108), ..ONE_ROW };

#[test]
fn small_batches_match_oracle() {
    let counts = [1_usize, 2, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129];
    for (at, rows) in counts.into_iter().enumerate() {
        let max_rows = [rows, rows.max(64) + 1, rows.next_multiple_of(8)][at % 3];
        let out = if at % 3 == 0 { Out::InPlace } else { Out::F32 };
        let case = Case { rows: [rows, max_rows], bias: at % 2 == 0, out, ..SMALL };
        case.check::<f16>(at as u64);
        Case { out: Out::Half, ..case }.check::<bf16>(at as u64);
    }
    for (seed, n) in [1, 8, 15, 17, 151].into_iter().enumerate() {
        Case { n, rows: [3, 8], k: 32, ..SMALL }.check::<f16>(seed as u64);
        Case { n, rows: [9, 16], k: 40, ..SMALL }.check::<bf16>(seed as u64);
    }
    // Around a load, a step, a line, the block's lines of a round, and a second and third round.
    let lengths = [8, 24, 32, 40, 64, 72, 1016, 1024, 1032, 4096, 4104, 8488];
    for (seed, k) in lengths.into_iter().enumerate() {
        Case { k, n: 9, rows: [2, 8], ..SMALL }.check::<f16>(seed as u64);
    }
    Case { rows: [5, 8], n: 24, k: 2056, ..SMALL }.check_order::<bf16>();
}

#[test]
fn every_instance_of_small_batches_matches_oracle() {
    fn check_all<E: Half>() {
        for (seed, instance) in instances::<E>().filter(|i| !is_fused(i)).enumerate() {
            let max_rows = 8 * instance.tiles_m();
            let kernel = Kernel::Instance(instance);
            let out = if seed % 2 == 0 { Out::InPlace } else { Out::Half };
            for (rows, n, k) in [(max_rows, 33, 1096), (max_rows - 3, 65, 136)] {
                let case = Case { rows: [rows, max_rows], n, k, out, kernel, ..SMALL };
                case.check::<E>(seed as u64);
            }
        }
    }
    check_all::<f16>();
    check_all::<bf16>();
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let alone = Case { n: 41, k: 1192, ..SMALL };
    let of_all = Case { rows: [64, 64], ..alone }.operands::<f16>();
    for warps in [8, 16] {
        let mut want = None;
        for instance in instances::<f16>().filter(|i| i.warps() == warps && !is_fused(i)) {
            for rows in [1, 8 * instance.tiles_m()] {
                let rows = [rows, 8 * instance.tiles_m()];
                let case = Case { rows, kernel: Kernel::Instance(instance), ..alone };
                let got = bits(&case.run::<f16>(&of_all, 5).1[..case.n]);
                assert_eq!(want.get_or_insert_with(|| got.clone()), &got, "{case:?}");
            }
        }
    }
    for base in iter::once(NORMED).chain(gated()) {
        let case = Case { rows: [8, 8], k: 1192, kernel: Kernel::SmallM(108), ..base };
        let operands = case.operands::<f16>();
        let of_all = case.run::<f16>(&operands, 1).1;
        let alone = Case { rows: [1, 1], ..case }.run::<f16>(&operands, 2).1;
        assert_eq!(bits(&alone), bits(&of_all[..case.n]));
    }
}

/// A batch-invariant step has as many rows as there are sequences.
#[test]
fn a_row_has_the_same_bits_in_every_block_of_rows() {
    for n in [41, 151] {
        let block = Case { rows: [64, 64], n, ..SMALL };
        let case = Case { rows: [131, 256], ..block };
        let mut operands = block.operands::<f16>();
        let want = block.run::<f16>(&operands, 1).1;
        for matrix in [&mut operands.x, &mut operands.residual] {
            matrix.values = matrix.values.repeat(3);
            matrix.values.truncate(131 * matrix.cols);
            matrix.rows = 131;
        }
        for (at, got) in case.run::<f16>(&operands, 2).1.chunks(want.len()).enumerate() {
            assert_eq!(bits(got), bits(&want[..got.len()]), "block {at} of {n} columns");
        }
    }
}

#[test]
fn gemv_matches_oracle() {
    // Around a load, the k of a load of a warp, what a warp has in flight, splits of k over every
    // number of warps, and several rounds of them.
    let lengths =
        [8, 248, 256, 264, 1024, 1032, 2048, 2056, 3080, 4104, 5120, 5128, 8192, 11_008, 17_416];
    for (at, (k, seed)) in lengths.into_iter().zip(simt::seeds().cycle()).enumerate() {
        let out = [Out::InPlace, Out::F32, Out::Residual, Out::Half][at % 4];
        let case = Case { k, n: 5, out, bias: at % 3 > 0, ..ONE_ROW };
        case.check::<f16>(seed);
        case.check::<bf16>(seed);
    }
    for (n, seed) in (1..=9).zip(simt::seeds().cycle()) {
        for k in [40, 1600] {
            Case { n, k, ..ONE_ROW }.check::<f16>(seed);
        }
    }
    for seed in simt::seeds() {
        Case { n: 37, k: 4864, ..ONE_ROW }.check::<f16>(seed);
        Case { n: 133, k: 896, out: Out::Half, ..ONE_ROW }.check::<bf16>(seed);
    }
}

#[test]
fn fused_gemv_matches_oracle() {
    fn check_all<E: Half>() {
        // Around a load, the k of a load of a warp, what two and four warps have in flight, and
        // rounds of the warps that split k.
        let lengths = [8, 248, 264, 512, 520, 1024, 1032, 2056, 2560, 5128];
        for (at, (k, seed)) in lengths.into_iter().zip(simt::seeds().cycle()).enumerate() {
            let bias = at % 2 == 0;
            // Columns of part of a block, and of several blocks.
            let out = if at % 3 == 0 { Out::F32 } else { Out::Half };
            Case { k, bias, n: [1, 7, 9, 37][at % 4], out, ..NORMED }.check::<E>(seed);
            for base in gated() {
                Case { k, bias, n: [19, 1, 4, 5][at % 4], ..base }.check::<E>(seed);
            }
        }
        // Many columns, of which fewer warps split k.
        Case { n: 4101, k: 776, ..NORMED }.check::<E>(0);
        Case { n: 2051, k: 1064, ..GATED }.check::<E>(0);
    }
    check_all::<f16>();
    check_all::<bf16>();
}

#[test]
fn no_rows_write_nothing() {
    for base in [ONE_ROW, Case { out: Out::Half, ..ONE_ROW }, NORMED, GATED, GATED_ALONE] {
        for (kernel, max_rows) in
            [(Kernel::SmallM(108), 8), (Kernel::Streamed(2), 8), (Kernel::Gemv, 1)]
        {
            let case = Case { rows: [0, max_rows], kernel, ..base };
            assert!(case.run::<f16>(&case.operands::<f16>(), 0).1.is_empty());
        }
    }
}

/// The outputs of norm, linear layer and gate one by one.
fn separate<E: Half>(case: &Case, operands: &Operands) -> Vec<f32> {
    let &Case { rows: [num_rows, max_rows], n, k, .. } = case;
    let mut device = Device::default();
    let num_rows_ptr = device.u32s("num_rows", &[num_rows as u32]);
    let plain = |fused: Instance| {
        let mut plain = instances::<E>().filter(|instance| !is_fused(instance));
        plain.find(|instance| instance.warps() == fused.warps()).expect("as many warps")
    };
    let kernel = match case.kernel {
        Kernel::Instance(fused) => Kernel::Instance(plain(fused)),
        // How many warps share k depends on the SMs.
        Kernel::Streamed(num_sms) => Kernel::SmallM(num_sms),
        kernel => kernel,
    };
    let mut x = operands.x.clone();
    if case.normed {
        let rows = device.matrix::<f32>("x", &x, (k + 4, max_rows));
        let out: Rows<E> = device.out("normed", (k, max_rows));
        let norm = RmsNorm { max_rows, num_groups: 1, group_size: k, eps: EPS };
        let weight = device.f32s("norm weight", &operands.norm_weight);
        device.run(norm.launch(num_rows_ptr, rows, weight, out), 0);
        let normed = device.read_rows(out, case.rows, k);
        x.values = normed.into_iter().map(f64::from).collect();
    }
    let columns = case.weight_rows();
    let layer = Case { n: columns, gate: None, normed: false, kernel, ..*case };
    let residual = Matrix::random::<f32>(num_rows, columns, 5);
    let of_layer = Operands { x, residual, ..operands.clone() };
    let products = layer.run::<E>(&of_layer, 0).1;
    let Some(activation) = case.gate else { return products };
    let all = device.numbers::<E>("products", &products);
    let (gate, up) = (Rows::new(all, columns), Rows::new(all.add(n), columns));
    let out = device.out("out", (n, max_rows));
    let gate_rows = GateRows { activation, max_rows, width: n };
    device.run(gate_rows.launch(num_rows_ptr, gate, up, out), 0);
    device.read_rows(out, case.rows, n)
}

/// Compares a fused case with the oracle, and bit by bit with the separate kernels.
#[track_caller]
pub fn check_fused<E: Half>(case: Case, seed: u64) -> Vec<f32> {
    let operands = case.operands::<E>();
    let got = case.check_with::<E>(&operands, seed);
    assert_eq!(bits(&got), bits(&separate::<E>(&case, &operands)), "{case:?}");
    got
}

#[test]
fn fused_norms_and_gates_match_the_separate_kernels() {
    let kernel = Kernel::SmallM(108);
    // A load, a line, a chunk, what four warps have, and a second round of warps.
    for (at, k) in [8, 64, 72, 256, 264, 1016, 1024, 1032, 2056].into_iter().enumerate() {
        let out = if at % 2 == 0 { Out::F32 } else { Out::Half };
        let case = Case { k, rows: [[1, 8, 3][at % 3], 8], out, kernel, ..NORMED };
        check_fused::<f16>(case, at as u64);
        check_fused::<bf16>(Case { bias: false, ..case }, at as u64);
    }
    for (at, n) in [1, 7, 8, 9, 16, 17].into_iter().enumerate() {
        for base in gated() {
            let bias = at % 2 == 0;
            let case = Case { n, rows: [[1, 8, 7][at % 3], 8], k: 136, bias, kernel, ..base };
            check_fused::<f16>(case, at as u64);
            check_fused::<bf16>(Case { k: 1032, ..case }, at as u64);
        }
    }
}

#[test]
fn every_fused_instance_matches_in_every_order() {
    fn check_all<E: Half>() {
        for instance in instances::<E>().filter(is_fused) {
            let (normed, gate) = (instance.normed(), gate_of(instance.a()));
            let base = Case { normed, gate, ..if gate.is_some() { GATED } else { NORMED } };
            for seed in simt::seeds() {
                let kernel = Kernel::Instance(instance);
                let case = Case { rows: [7, 8], n: 33, k: 1032, kernel, ..base };
                check_fused::<E>(case, seed);
                check_fused::<E>(Case { rows: [1, 1], k: 896, ..case }, seed);
            }
        }
    }
    check_all::<f16>();
    check_all::<bf16>();
}

#[test]
fn streamed_fused_layers_match_the_separate_kernels() {
    fn check_all<E: Half>() {
        for (at, seed) in simt::seeds().enumerate() {
            let (rows, bias) = ([[1, 7, 8][at % 3], 8], at % 2 == 0);
            // A tile a block, by 16 warps and by 8; and several of them, which 8 have.
            for kernel in [20, 2].map(Kernel::Streamed) {
                for (base, n) in iter::once((NORMED, 325)).chain(gated().map(|base| (base, 163))) {
                    let case = Case { rows, bias, kernel, ..base };
                    check_fused::<E>(Case { n: 41, k: 1192, ..case }, seed);
                    check_fused::<E>(Case { n, k: 72, ..case }, seed);
                }
            }
        }
    }
    check_all::<f16>();
    check_all::<bf16>();
    // Six lines of k a warp: lanes copy the first boxes.
    for kernel in [132, 2].map(Kernel::Streamed) {
        for base in [NORMED, GATED] {
            check_fused::<f16>(Case { rows: [3, 4], n: 19, k: 5128, kernel, ..base }, 1);
        }
    }
}

#[test]
fn a_product_that_overflows_is_clamped_in_f16() {
    let kernel = Kernel::SmallM(108);
    let case = Case { rows: [2, 2], n: 24, k: 512, magnitude: 40.0, kernel, ..GATED };
    let operands = case.operands::<f16>();
    let got = case.run::<f16>(&operands, 0).1;
    assert!(got.iter().any(|value| value.abs() == 65_504.0), "{got:?}");
    assert!(got.iter().all(|value| value.is_finite()), "{got:?}");
    assert_eq!(bits(&got), bits(&separate::<f16>(&case, &operands)));
    // In bf16 nothing overflows; gate and up that are infinite in f16 do as they do in GateRows.
    check_fused::<bf16>(case, 0);
    let infinite = Case { magnitude: 40_000.0, ..case };
    let operands = infinite.operands::<f16>();
    let got = infinite.run::<f16>(&operands, 0).1;
    assert_eq!(bits(&got), bits(&separate::<f16>(&infinite, &operands)));
}
