//! Prefill in FP8, on Hopper's tensor cores and by clusters: the oracle has the dequantised inputs.

use super::prefill::{CLUSTER, KV_LENS, ROWS_AFTER, cluster_inputs};
use super::{CASE, Case, PAGE, SCALE, Values, words};
use crate::harness::*;
use half::f16;
use kernels::Rows;
use kernels::attention::prefill_cluster::Fp8Operands;
use kernels::attention::sm90::NUM_COUNTERS;
use kernels::attention::sm90::fp8::{Mode, Params, TileConfig, storage_index};
use kernels::gemm::Gpu;
use oracle::{Approx, Attended, e4m3_code, e4m3_value};

/// A case for a kernel: clusters or not.
#[derive(Clone, Copy, Debug)]
struct Fp8 {
    case: Case,
    cluster: bool,
}

/// Quants, as numbers, and the scales of the heads of Q, K and V.
#[derive(Clone)]
struct Quants {
    quants: Values,
    scales: [Vec<f32>; 3],
}

fn codes(values: &[f32]) -> Vec<u8> {
    values.iter().map(|&x| e4m3_code(x)).collect()
}

impl Fp8 {
    /// Random quants of this magnitude, those of V up to 64, with scales that differ.
    fn quants(&self) -> Quants {
        let quants = |len, salt, magnitude: f32| -> Vec<f32> {
            random(len, salt).iter().map(|x| e4m3_value(e4m3_code(x * magnitude))).collect()
        };
        let (case, elems) = (&self.case, self.case.pages().elems());
        let pool = |salt, magnitude| case.pool(&quants(elems, salt, magnitude));
        let q = quants(case.tokens() * case.width(), 1, 64.0 * case.magnitude);
        let pools = [pool(2, 64.0 * case.magnitude), pool(3, 64.0)];
        let scales = [(case.heads[0], 1.0), (case.heads[1], 0.75), (case.heads[1], 1.5)];
        let scale = |first: f32| move |head| first / 64.0 * (1.0 + 0.25 * head as f32);
        let scales = scales.map(|(heads, first)| (0..heads).map(scale(first)).collect());
        Quants { quants: Values { q, pools }, scales }
    }

    fn oracle(&self, Quants { quants, scales }: &Quants, rounding: f64) -> Attended {
        let case = &self.case;
        let [num_heads, num_kv_heads] = case.heads;
        let scaled = |values: &[f32], of: usize, elems: usize, heads: usize| -> Vec<f64> {
            let scale = |at: usize| f64::from(scales[of][at / elems % heads]);
            values.iter().enumerate().map(|(at, &x)| f64::from(x) * scale(at)).collect()
        };
        let page = PAGE * case.head_dim;
        let k = scaled(&quants.pools[0], 1, page, num_kv_heads);
        let v = scaled(&quants.pools[1], 2, page, num_kv_heads);
        let q = scaled(&quants.q, 0, case.head_dim, num_heads);
        let q: Vec<f32> = q.into_iter().map(|x| x as f32).collect();
        case.definition(rounding).attend(&q, &k, &v, &case.pages())
    }

    /// V's pages as the kernels take them: a column after the other, positions permuted.
    fn transposed(&self, pool: &[f32]) -> Vec<f32> {
        let d = self.case.head_dim;
        let mut out = vec![0.0; pool.len()];
        for (i, value) in pool.iter().enumerate() {
            let (page, position, column) = (i / (PAGE * d), i / d % PAGE, i % d);
            out[(page * d + column) * PAGE + storage_index(position as u32) as usize] = *value;
        }
        out
    }

    /// The output, and the logarithms of the sums where the kernel stores them.
    fn run(&self, mode: Mode, Quants { quants, scales }: &Quants, seed: u64) -> [Vec<f32>; 2] {
        let case = &self.case;
        let (mut device, pages, width) = (Device::default(), case.pages(), case.width());
        let [k, v] = &quants.pools;
        let k_pool = device.bytes("k_pool", &codes(k));
        let v_pool = device.bytes("v_pool", &codes(&self.transposed(v)));
        let [q_scale, k_scale, v_scale] =
            [0, 1, 2].map(|of| device.f32s(["q_scale", "k_scale", "v_scale"][of], &scales[of]));
        let rows = [case.tokens(), case.tokens() + ROWS_AFTER];
        let out: Rows<f16> = device.out("out", (width, rows[1]));
        let mut q = codes(&quants.q);
        if self.cluster {
            let q = Rows::new(device.bytes("q", &q), width);
            let operands = Fp8Operands { q, k_pool, v_pool, q_scale, k_scale, v_scale, out };
            let (attention, seqs) = cluster_inputs(case, &mut device, &case.items(64));
            let launch = attention.prefill_cluster_fp8(mode, Gpu::HOPPER, &seqs, &operands);
            device.run_smoothly(launch, seed);
            return [device.read_rows(out, rows, width), Vec::new()];
        }
        let tile = TileConfig::for_head_dim(case.head_dim, mode).expect("a tile of this width");
        let items = case.items(tile.block_m);
        let max_tokens = case.tokens() + 5;
        q.resize(max_tokens * width, 0x7f);
        let num_lse = case.tokens() * case.heads[0];
        let lse = device.poisoned::<f32>("lse", num_lse);
        let counters = device.u32s("counters", &[0; NUM_COUNTERS]);
        let params = Params {
            num_items: device.u32s("num_items", &[items.len() as u32]),
            items: device.u32s("items", &words(&items)),
            max_items: items.len() + 2,
            counters,
            block_table: device.u32s("block_table", &pages.table),
            max_pages_per_seq: pages.max_pages as u32,
            max_tokens,
            num_pages: pages.num_pages(),
            num_heads: case.heads[0] as u32,
            num_kv_heads: case.heads[1] as u32,
            head_dim: case.head_dim as u32,
            softmax_scale: SCALE,
            window: case.window.map_or(u32::MAX, |window| window as u32),
            q_scale,
            k_scale,
            v_scale,
            q: Rows::new(device.bytes("q", &q), width),
            pools: [k_pool, v_pool],
            out,
            lse,
        };
        device.run(tile.launch(3, &params, &mut tensor_map), seed);
        assert_eq!(device.read_u32(counters, NUM_COUNTERS), [0; NUM_COUNTERS]);
        [device.read_rows(out, rows, width), device.read(lse, num_lse)]
    }

    /// Strict: each number. Fast: the norm, and no number far off. Returns the output.
    #[track_caller]
    fn compare(&self, mode: Mode, quants: &Quants, seed: u64) -> Vec<f32> {
        let [got, got_lse] = self.run(mode, quants, seed);
        let name = format!("{mode:?}, seed {seed}, {self:?}");
        let Attended { out: want, lse } = self.oracle(quants, 2e-3);
        let largest = quants.quants.pools[1].iter().fold(0.0, |most, x| f32::max(most, x.abs()));
        let largest =
            f64::from(quants.scales[2].iter().fold(0.0, |most, x| f32::max(most, *x)) * largest);
        match mode {
            Mode::Strict => assert_right(&name, &got, &stored::<f16>(want)),
            Mode::Fast => {
                let far = |want: &Approx| Approx { bound: 0.0625 * largest, ..*want };
                assert_right(&name, &got, &want.iter().map(far).collect::<Vec<_>>());
                let pairs = got.iter().zip(&want).filter(|(got, _)| !got.is_nan());
                let (off, all) = pairs.fold((0.0, 0.0), |(off, all), (&got, want)| {
                    (off + (f64::from(got) - want.value).powi(2), all + want.value.powi(2))
                });
                let error = (off / f64::max(all, 1e-30)).sqrt();
                assert!(error < 0.04, "{name}: {error}");
            }
        }
        // The sum of rounded weights is theirs.
        let rounding = if mode == Mode::Fast { 0.06 } else { 0.0 };
        let lse = lse.into_iter().map(|lse| Approx { bound: lse.bound + rounding, ..lse });
        let lse: Vec<Approx> = lse.take(got_lse.len()).collect();
        assert_right(&format!("lse, {name}"), &got_lse, &lse);
        got
    }

    #[track_caller]
    fn check_quants(&self, quants: &Quants, seed: u64) {
        for mode in [Mode::Fast, Mode::Strict] {
            self.compare(mode, quants, seed);
        }
    }

    /// Under all seeds.
    #[track_caller]
    fn check(&self) {
        let quants = self.quants();
        simt::seeds().for_each(|seed| self.check_quants(&quants, seed));
    }
}

/// Heads of 128 columns on tensor cores.
const WIDE: Case = Case { head_dim: 128, ..CASE };

fn sm90(case: Case) -> Fp8 {
    Fp8 { case, cluster: false }
}

fn cluster(case: Case) -> Fp8 {
    Fp8 { case, cluster: true }
}

#[test]
fn sm90_prefill_in_8_bits_matches_oracle() {
    for seqs in [&[(1, 1)][..], &[(1, 64)], &[(2, 65), (5, 70)], &[(63, 63), (0, 5), (1, 130)]] {
        sm90(Case { seqs, ..WIDE }).check();
    }
    for seqs in [&[(129, 193)][..], &[(20, 300)], &[(128, 256)], &[(7, 513), (65, 129)]] {
        sm90(Case { seqs, heads: [1, 1], ..WIDE }).check();
    }
    sm90(Case { seqs: &[(70, 200), (3, 3)], causal: false, ..WIDE }).check();
    sm90(Case { seqs: &[(67, 67)], heads: [7, 1], ..WIDE }).check();
    sm90(Case { seqs: &[(10, 67)], heads: [8, 2], ..WIDE }).check();
}

#[test]
fn sm90_prefill_in_8_bits_of_windows_matches_oracle() {
    for window in [1, 5, 64, 100, 200] {
        let seqs = &[(100, 290), (9, 9)];
        sm90(Case { seqs, window: Some(window), heads: [1, 1], ..WIDE }).check();
    }
}

#[test]
fn sm90_prefill_in_8_bits_of_every_width_matches_oracle() {
    for head_dim in [16, 64, 80, 96, 144, 256] {
        let seqs = &[(130, 200), (3, 257)];
        sm90(Case { seqs, head_dim, heads: [1, 1], ..WIDE }).check();
    }
    // More keys than the tensor cores add up.
    for head_dim in [64, 128, 256] {
        sm90(Case { seqs: &[(3, 2300)], head_dim, heads: [1, 1], ..WIDE }).check();
    }
}

#[test]
fn cluster_prefill_in_8_bits_matches_oracle() {
    let check = |case: Case, seed| cluster(case).check_quants(&cluster(case).quants(), seed);
    for (seed, (seqs, causal)) in
        (0..).zip(KV_LENS.into_iter().flat_map(|seqs| [(seqs, true), (seqs, false)]))
    {
        check(Case { seqs, causal, ..CLUSTER }, seed);
    }
    for (seed, seqs) in (0..).zip([&[(1, 200)], &[(7, 65)], &[(65, 66)], &[(130, 300)]]) {
        check(Case { seqs, ..CLUSTER }, seed);
        check(Case { seqs, causal: false, ..CLUSTER }, seed);
        check(Case { seqs, window: Some(33), ..CLUSTER }, seed);
    }
    for seed in simt::seeds() {
        let case = Case { seqs: &[(3, 3), (0, 64), (65, 67), (1, 130)], heads: [4, 2], ..CLUSTER };
        check(case, seed);
        check(Case { window: Some(33), heads: [4, 1], ..case }, seed);
    }
    check(Case { seqs: &[(16, 90)], heads: [7, 1], ..CLUSTER }, 1);
    check(Case { seqs: &[(2, 2200), (3, 100)], ..CLUSTER }, 1);
    let case = cluster(Case { seqs: &[(70, 600)], heads: [2, 2], ..CLUSTER });
    for mode in [Mode::Strict, Mode::Fast] {
        let of = |seed| bits(&case.compare(mode, &case.quants(), seed));
        assert_eq!(of(1), of(2));
    }
}

/// By both kernels: a channel of Q and K, and some of V, a hundred times the others'; numbers
/// beyond the largest, scores of more than a million; zeros, and scales of 0.
#[test]
fn unusual_quants_match_oracle() {
    for case in
        [sm90(Case { seqs: &[(70, 130)], ..WIDE }), cluster(Case { seqs: &[(70, 300)], ..CLUSTER })]
    {
        let d = case.case.head_dim;
        let all = case.quants();
        let change = |change: &dyn Fn(usize, &mut f32)| {
            let mut changed = all.clone();
            let Values { q, pools: [k, v] } = &mut changed.quants;
            for values in [q, k, v] {
                values.iter_mut().enumerate().for_each(|(at, x)| change(at, x));
            }
            changed
        };
        let small = |x: f32| e4m3_value(e4m3_code(x / 100.0));
        case.check_quants(&change(&|at, x| *x = if at % 8 == 5 { *x } else { small(*x) }), 1);
        let mut saturated = change(&|at, x| {
            *x = if at.is_multiple_of(3) && !x.is_nan() { 448f32.copysign(*x) } else { *x };
        });
        case.check_quants(&saturated, 2);
        saturated.scales[0].fill(0.5);
        saturated.scales[1].fill(0.5);
        case.check_quants(&saturated, 3);
        let zero = |at: usize, x: &mut f32| {
            *x = if at % (9 * d) < 3 * d && !x.is_nan() { 0.0 } else { *x }
        };
        let zeros = change(&zero);
        case.check_quants(&zeros, 1);
        for of in 0..3 {
            let mut zeros = zeros.clone();
            zeros.scales[of][0] = 0.0;
            case.check_quants(&zeros, 2);
        }
    }
}

/// A NaN of Q is in its row, one of K in the rows that see the key, one of V in its column.
#[test]
fn nans_are_where_they_belong() {
    for case in [
        sm90(Case { seqs: &[(64, 300)], heads: [1, 1], ..WIDE }),
        cluster(Case { seqs: &[(64, 300)], ..CLUSTER }),
    ] {
        let (d, key) = (case.case.head_dim, case.case.pages().row(0, 0, 270));
        for mode in [Mode::Strict, Mode::Fast] {
            let mut nans = case.quants();
            nans.quants.q[5 * d] = f32::NAN;
            nans.quants.pools[0][key + 3] = f32::NAN;
            for (row, values) in case.compare(mode, &nans, 1).chunks(d).enumerate() {
                // Query 34 is at position 270.
                assert_eq!(values[0].is_nan(), row == 5 || row >= 34, "row {row}");
            }
            let full = Fp8 { case: Case { causal: false, ..case.case }, ..case };
            let mut nans = full.quants();
            nans.quants.pools[1][key + 3] = f32::NAN;
            let got = full.compare(mode, &nans, 1);
            let columns = got.iter().enumerate().filter(|(_, value)| value.is_nan());
            assert!(columns.clone().all(|(i, _)| i % d == 3) && columns.count() == 64);
        }
    }
}
