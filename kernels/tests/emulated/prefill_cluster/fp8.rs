//! The same in FP8: the oracle has the dequantised inputs.

use super::{Case, HEAD_DIM, PAGE, ROWS_AFTER, SMALL, Values, step};
use crate::device::{Device, SEEDS, assert_stored, random};
use cuda_std::E4m3;
use cuda_std::launch::DevicePtr;
use half::f16;
use kernels::Rows;
use kernels::attention::prefill_cluster::Fp8Operands;
use kernels::attention::sm90::fp8::{Mode, storage_index};
use kernels::gemm::Gpu;

const MODES: [Mode; 2] = [Mode::Strict, Mode::Fast];

/// Scale of a head, by its index.
type Scale = fn(usize) -> f32;

fn unequal(head: usize) -> f32 {
    0.5 + 0.25 * head as f32
}

/// Quants, and the scales of Q, K and V.
struct Quantised {
    quants: Values,
    scales: [Scale; 3],
}

impl Quantised {
    /// Quants of numbers between -1 and 1 times the magnitude.
    fn new(case: &Case, scales: [Scale; 3]) -> Self {
        let quants = |len, salt, magnitude: f32| {
            random(len, salt).iter().map(|x| E4m3::from_f32(x * magnitude).to_f32()).collect()
        };
        Quantised { quants: Values::new(case, quants), scales }
    }

    /// The values.
    fn values(&self, case: &Case) -> Values {
        let Quantised { quants: Values { q, pools, max_pages, block_table }, scales } = self;
        let scaled = |x: &[f32], tensor: usize, head_elems: usize, heads: usize| -> Vec<f32> {
            let scale = |i: usize| scales[tensor](i / head_elems % heads);
            x.iter().enumerate().map(|(i, x)| x * scale(i)).collect()
        };
        let pool = |i: usize| scaled(&pools[i], 1 + i, PAGE * HEAD_DIM, case.num_kv_heads);
        Values {
            q: scaled(q, 0, HEAD_DIM, case.num_heads),
            pools: [pool(0), pool(1)],
            max_pages: *max_pages,
            block_table: block_table.clone(),
        }
    }

    /// Runs the case; returns the output, with the rows after it.
    fn run(&self, case: &Case, mode: Mode, seed: u64) -> Vec<f32> {
        let mut device = Device::default();
        let Values { q, pools: [k, v], block_table, .. } = &self.quants;
        let mut codes = |name, x: &[f32]| {
            let codes: Vec<u8> = x.iter().map(|x| E4m3::from_f32(*x).to_bits()).collect();
            DevicePtr::new(device.bytes(name, &codes).0)
        };
        let width = case.num_heads * HEAD_DIM;
        let q = Rows::new(codes("q", q), width);
        let (k_pool, v_pool) = (codes("k_pool", k), codes("v_pool", &transposed(v)));
        let mut scales = |tensor: usize, heads| {
            let scales: Vec<f32> = (0..heads).map(self.scales[tensor]).collect();
            device.f32s("scales", &scales)
        };
        let [q_scale, k_scale, v_scale] =
            [(0, case.num_heads), (1, case.num_kv_heads), (2, case.num_kv_heads)]
                .map(|(tensor, heads)| scales(tensor, heads));
        let elems = (case.tokens() + ROWS_AFTER) * width;
        let out = Rows::new(device.poisoned::<f16>("out", elems), width);
        let operands = Fp8Operands { q, k_pool, v_pool, q_scale, k_scale, v_scale, out };
        let attention = case.attention();
        let table = device.u32s("block_table", block_table);
        let seqs = step(&mut device, &attention, table, &case.items());
        let launch = attention.prefill_cluster_fp8(mode, Gpu::HOPPER, &seqs, &operands);
        let report = device.run(launch, seed);
        assert_eq!(report.bank_conflicts, 0);
        device.read(out.ptr, elems)
    }
}

/// Pages `[PAGE, HEAD_DIM]` as the kernel takes those of V.
fn transposed(pool: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; pool.len()];
    for (i, value) in pool.iter().enumerate() {
        let (page, position, column) = (i / (PAGE * HEAD_DIM), i / HEAD_DIM % PAGE, i % HEAD_DIM);
        let at = storage_index(position as u32) as usize;
        out[(page * HEAD_DIM + column) * PAGE + at] = *value;
    }
    out
}

/// Runs a case, and compares it with the oracle: strict as in f16, and by the largest error that is
/// allowed; fast by the norm.
fn check(case: &Case, mode: Mode, quantised: &Quantised, seed: u64) -> Vec<f32> {
    let want = quantised.values(case).oracle(case);
    let got = quantised.run(case, mode, seed);
    let (got, after) = got.split_at(want.len());
    let Case { seqs, causal, window, .. } = case;
    let name = format!("{mode:?}, {seqs:?}, causal {causal}, window {window:?}, seed {seed}");
    match mode {
        Mode::Strict => {
            assert_stored::<f16>(&name, got, &want, 1e-5 + 2.0 / 2048.0);
            for (got, want) in got.iter().zip(&want) {
                let off = (f64::from(*got) - want).abs();
                let is_close = off <= 5e-3 * want.abs().max(1.0);
                assert!(is_close || got.is_nan() && want.is_nan(), "{name}: {got}, not {want}");
            }
        }
        Mode::Fast => {
            let (mut difference, mut norm) = (0.0, 0.0);
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.is_nan(), want.is_nan(), "{name}: {got}, not {want}");
                if !want.is_nan() {
                    difference += (f64::from(*got) - want).powi(2);
                    norm += want * want;
                }
            }
            let error = f64::sqrt(difference / norm);
            assert!(error <= 0.04 || difference == 0.0, "{name}: an error of {error}");
        }
    }
    assert!(after.iter().all(|x| x.is_nan()), "{name}: rows that do not exist are written");
    got.to_vec()
}

fn check_unequal(case: &Case, seed: u64) {
    for mode in MODES {
        check(case, mode, &Quantised::new(case, [unequal; 3]), seed);
    }
}

/// Around 16 keys, a page, half a chunk, a chunk, and one chunk of each block.
#[test]
fn kv_lens_match_oracle() {
    let kv_lens: [&[(usize, usize)]; 13] = [
        &[(1, 1)],
        &[(1, 15)],
        &[(1, 63)],
        &[(64, 64)],
        &[(64, 65)],
        &[(64, 128)],
        &[(64, 137)],
        &[(64, 255)],
        &[(64, 256)],
        &[(64, 257)],
        &[(64, 512)],
        &[(64, 513)],
        &[(64, 700)],
    ];
    for (seed, seqs) in (0..).zip(kv_lens) {
        for causal in [true, false] {
            check_unequal(&Case { seqs, causal, ..SMALL }, seed);
        }
    }
}

#[test]
fn q_lens_and_windows_match_oracle() {
    for (seed, seqs) in (0..).zip([&[(1, 200)], &[(7, 65)], &[(65, 66)], &[(130, 300)]]) {
        check_unequal(&Case { seqs, ..SMALL }, seed);
        check_unequal(&Case { seqs, causal: false, ..SMALL }, seed);
        check_unequal(&Case { seqs, window: Some(33), ..SMALL }, seed);
    }
}

#[test]
fn sequences_and_groups_match_oracle() {
    for seed in SEEDS {
        let seqs = &[(3, 3), (0, 64), (65, 67), (1, 130)];
        let case = Case { seqs, num_heads: 4, num_kv_heads: 2, ..SMALL };
        check_unequal(&case, seed);
        check_unequal(&Case { window: Some(33), num_kv_heads: 1, ..case }, seed);
    }
    check_unequal(&Case { seqs: &[(16, 90)], num_heads: 7, ..SMALL }, 1);
    check_unequal(&Case { seqs: &[(2, 2200), (3, 100)], ..SMALL }, 1);
}

/// Q and K of up to 448: what is beyond is saturated; and a few outliers among small numbers.
#[test]
fn saturated_and_outlying_quants_match_oracle() {
    let tiny = |_| 1.0 / 1024.0;
    let case = Case { seqs: &[(70, 300)], magnitude: 600.0, ..SMALL };
    for mode in MODES {
        check(&case, mode, &Quantised::new(&case, [tiny, tiny, unequal]), 1);
        let case = Case { magnitude: 1.0, ..case };
        let mut outlying = Quantised::new(&case, [unequal, |_| 0.03, |_| 1.0 / 448.0]);
        let Values { q, pools: [k, v], .. } = &mut outlying.quants;
        for x in [q, k, v] {
            for value in x.iter_mut().step_by(611).filter(|value| !value.is_nan()) {
                *value = 448.0f32.copysign(*value);
            }
        }
        check(&case, mode, &outlying, 2);
    }
}

/// Rows of zeros, and heads whose scales are 0.
#[test]
fn zeros_match_oracle() {
    let case = Case { seqs: &[(64, 200)], num_heads: 2, num_kv_heads: 2, ..SMALL };
    let first_is_zero: Scale = |head| head as f32;
    let one: Scale = |_| 1.0;
    for mode in MODES {
        for tensor in 0..3 {
            let mut scales = [one; 3];
            scales[tensor] = first_is_zero;
            let mut zeros = Quantised::new(&case, scales);
            zeros.quants.q[5 * HEAD_DIM..9 * HEAD_DIM].fill(0.0);
            zeros.quants.pools[0][7 * HEAD_DIM..12 * HEAD_DIM].fill(0.0);
            check(&case, mode, &zeros, 1);
        }
    }
}

/// A NaN of Q is in its row, one of K in the rows that see the key, one of V in its column.
#[test]
fn nans_are_where_they_belong() {
    let case = Case { seqs: &[(64, 300)], ..SMALL };
    for mode in MODES {
        let mut nans = Quantised::new(&case, [unequal; 3]);
        nans.quants.q[5 * HEAD_DIM] = f32::NAN;
        let key = nans.quants.row(&case, (0, 0, 270));
        nans.quants.pools[0][key.start + 3] = f32::NAN;
        let got = check(&case, mode, &nans, 1);
        for (row, values) in got.chunks(HEAD_DIM).enumerate() {
            // Query 34 is at position 270.
            assert_eq!(values[0].is_nan(), row == 5 || row >= 34, "row {row}");
        }
        let full = Case { causal: false, ..case };
        let mut nans = Quantised::new(&full, [unequal; 3]);
        let key = nans.quants.row(&full, (0, 0, 270));
        nans.quants.pools[1][key.start + 3] = f32::NAN;
        let got = check(&full, mode, &nans, 1);
        let columns = got.iter().enumerate().filter(|(_, value)| value.is_nan());
        assert!(columns.clone().all(|(i, _)| i % HEAD_DIM == 3) && columns.count() == 64);
    }
}

#[test]
fn the_order_of_blocks_changes_no_bit() {
    let case = Case { seqs: &[(70, 600)], num_heads: 2, ..SMALL };
    for mode in MODES {
        let quantised = Quantised::new(&case, [unequal; 3]);
        let bits = |seed| -> Vec<u32> {
            check(&case, mode, &quantised, seed).into_iter().map(f32::to_bits).collect()
        };
        assert_eq!(bits(1), bits(2));
    }
}
