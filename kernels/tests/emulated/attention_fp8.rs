//! Attention prefill in FP8 on Hopper's tensor cores.

use crate::device::{Device, SEEDS, assert_stored, random_of};
use cuda_std::E4m3;
use cuda_std::launch::DevicePtr;
use half::f16;
use kernels::Rows;
use kernels::attention::sm90::NUM_COUNTERS;
use kernels::attention::sm90::fp8::{Arguments, Mode, TileConfig, storage_index};
use kernels::attention::work::{Part, PrefillItem};
use kernels::kv_cache::PAGE_SIZE;

const PAGE: usize = PAGE_SIZE as usize;
const SCALE: f32 = 0.3;

/// A step.
#[derive(Clone, Copy)]
struct Case {
    /// For each sequence its new tokens, and its positions with them.
    seqs: &'static [(usize, usize)],
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    is_causal: bool,
    num_sms: usize,
}

const CASE: Case = Case {
    seqs: &[(3, 3)],
    num_heads: 2,
    num_kv_heads: 1,
    head_dim: 128,
    window: None,
    is_causal: true,
    num_sms: 3,
};

/// The operands of a step: quants, as numbers, and scales.
#[derive(Clone)]
struct Operands {
    /// `[tokens, num_heads, head_dim]`.
    q: Vec<f32>,
    /// For each sequence `[kv_len, num_kv_heads, head_dim]`.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    q_scale: Vec<f32>,
    k_scale: Vec<f32>,
    v_scale: Vec<f32>,
}

fn rounded(values: Vec<f32>, factor: f32) -> Vec<f32> {
    values.into_iter().map(|x| E4m3::from_f32(x * factor).to_f32()).collect()
}

impl Case {
    fn tokens(&self) -> usize {
        self.seqs.iter().map(|(q_len, _)| q_len).sum()
    }

    fn max_pages(&self) -> usize {
        self.seqs.iter().map(|(_, kv_len)| kv_len.div_ceil(PAGE)).max().unwrap_or(0)
    }

    /// Pages lie in descending order.
    fn page(&self, seq: usize, key: usize) -> usize {
        self.seqs.len() * self.max_pages() - 1 - (seq * self.max_pages() + key / PAGE)
    }

    /// The keys that a query sees.
    fn keys(&self, (q_len, kv_len): (usize, usize), query: usize) -> std::ops::Range<usize> {
        let position = if self.is_causal { kv_len - q_len + query } else { kv_len - 1 };
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first..position + 1
    }

    fn items(&self, block_m: usize) -> Vec<PrefillItem> {
        let mut items = Vec::new();
        let mut first_token = 0;
        for (seq, &(q_len, kv_len)) in self.seqs.iter().enumerate() {
            for first_query in (0..q_len).step_by(block_m) {
                let queries = block_m.min(q_len - first_query);
                let first = self.keys((q_len, kv_len), first_query);
                let last = self.keys((q_len, kv_len), first_query + queries - 1);
                items.extend((0..self.num_heads).map(|head| PrefillItem {
                    seq: seq as u32,
                    head: head as u32,
                    first_token: (first_token + first_query) as u32,
                    queries: queries as u32,
                    first_position: (first.end - 1) as u32,
                    first_key: (first.start / PAGE * PAGE) as u32,
                    end_key: last.end as u32,
                    part: Part::WHOLE,
                }));
            }
            first_token += q_len;
        }
        items
    }

    fn operands(&self) -> Operands {
        let numbers = |len: usize, salt: u64| rounded(random_of::<f32>(len, salt), 64.0);
        let cache = |salt: u64| {
            let seqs = self.seqs.iter().enumerate();
            let width = self.num_kv_heads * self.head_dim;
            seqs.map(|(seq, &(_, kv_len))| numbers(kv_len * width, salt + seq as u64)).collect()
        };
        let scales = |count: usize, first: f32| -> Vec<f32> {
            (0..count).map(|head| first / 64.0 * (1.0 + 0.25 * head as f32)).collect()
        };
        Operands {
            q: numbers(self.tokens() * self.num_heads * self.head_dim, 1),
            k: cache(100),
            v: cache(200),
            q_scale: scales(self.num_heads, 1.0),
            k_scale: scales(self.num_kv_heads, 0.75),
            v_scale: scales(self.num_kv_heads, 1.5),
        }
    }

    /// A pool whose other positions are NaN.
    fn pool(&self, seqs: &[Vec<f32>], is_transposed: bool) -> Vec<u8> {
        let (d, heads) = (self.head_dim, self.num_kv_heads);
        let num_pages = self.seqs.len() * self.max_pages();
        let mut pool = vec![0x7f; num_pages * heads * PAGE * d];
        for (seq, values) in seqs.iter().enumerate() {
            for (i, &value) in values.iter().enumerate() {
                let (column, head, key) = (i % d, i / d % heads, i / d / heads);
                let page = (self.page(seq, key) * heads + head) * PAGE * d;
                let at = if is_transposed {
                    column * PAGE + storage_index((key % PAGE) as u32) as usize
                } else {
                    key % PAGE * d + column
                };
                pool[page + at] = E4m3::from_f32(value).to_bits();
            }
        }
        pool
    }

    /// Output and lse, in f64.
    fn oracle(&self, operands: &Operands) -> (Vec<f64>, Vec<f64>) {
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        for (seq, &lens) in self.seqs.iter().enumerate() {
            for query in 0..lens.0 {
                for head in 0..self.num_heads {
                    let q = &operands.q[out.len()..][..self.head_dim];
                    let kv_head = head * self.num_kv_heads / self.num_heads;
                    let row = |values: &[Vec<f32>], key: usize| {
                        let start = (key * self.num_kv_heads + kv_head) * self.head_dim;
                        values[seq][start..][..self.head_dim].to_vec()
                    };
                    let scale = f64::from(SCALE)
                        * f64::from(operands.q_scale[head])
                        * f64::from(operands.k_scale[kv_head]);
                    let score = |key| {
                        let pairs = q.iter().zip(row(&operands.k, key));
                        scale * pairs.map(|(&q, k)| f64::from(q) * f64::from(k)).sum::<f64>()
                    };
                    let keys = self.keys(lens, query);
                    let scores: Vec<f64> = keys.clone().map(score).collect();
                    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
                    let mut sums = vec![0.0; self.head_dim];
                    for (key, score) in keys.zip(scores) {
                        let weight = (score - max).exp() / total;
                        let v = row(&operands.v, key);
                        let v_scale = f64::from(operands.v_scale[kv_head]);
                        let add =
                            |(sum, v): (&mut f64, f32)| *sum += weight * f64::from(v) * v_scale;
                        sums.iter_mut().zip(v).for_each(add);
                    }
                    out.extend(sums);
                    lse.push(max + total.ln());
                }
            }
        }
        (out, lse)
    }

    /// Checks both modes.
    #[track_caller]
    fn check(&self) {
        self.check_operands(&self.operands());
    }

    #[track_caller]
    fn check_operands(&self, operands: &Operands) {
        for mode in [Mode::Fast, Mode::Strict] {
            let tile = TileConfig::for_head_dim(self.head_dim, mode).expect("a tile of this width");
            self.check_tile(tile, operands);
        }
    }

    #[track_caller]
    fn check_tile(&self, tile: &TileConfig, operands: &Operands) {
        let width = self.num_heads * self.head_dim;
        let (want, want_lse) = self.oracle(operands);
        let pools = [self.pool(&operands.k, false), self.pool(&operands.v, true)];
        let items = self.items(tile.block_m);
        let words: Vec<u32> = items.iter().flat_map(PrefillItem::words).collect();
        let max_pages = self.max_pages();
        let table: Vec<u32> = (0..self.seqs.len())
            .flat_map(|seq| (0..max_pages).map(move |page| (seq, page)))
            .map(|(seq, page)| self.page(seq, page * PAGE) as u32)
            .collect();
        for seed in SEEDS {
            let mut device = Device::default();
            // Rows past the last token are not written.
            let max_tokens = self.tokens() + 5;
            let out = device.poisoned::<f16>("out", self.tokens() * width);
            let lse = device.poisoned::<f32>("lse", self.tokens() * self.num_heads);
            let counters = device.u32s("counters", &[0; NUM_COUNTERS]);
            let mut q: Vec<u8> = operands.q.iter().map(|&q| E4m3::from_f32(q).to_bits()).collect();
            q.resize(max_tokens * width, 0x7f);
            let args = Arguments {
                num_items: device.u32s("num_items", &[items.len() as u32]),
                items: device.u32s("items", &words),
                max_items: items.len() + 2,
                counters,
                block_table: device.u32s("block_table", &table),
                max_pages_per_seq: max_pages as u32,
                max_tokens,
                num_pages: self.seqs.len() * max_pages,
                num_heads: self.num_heads as u32,
                num_kv_heads: self.num_kv_heads as u32,
                head_dim: self.head_dim as u32,
                softmax_scale: SCALE,
                window: self.window.map_or(u32::MAX, |window| window as u32),
                q_scale: device.f32s("q_scale", &operands.q_scale),
                k_scale: device.f32s("k_scale", &operands.k_scale),
                v_scale: device.f32s("v_scale", &operands.v_scale),
                q: Rows::new(DevicePtr::new(device.bytes("q", &q).0), width),
                pools: [
                    DevicePtr::new(device.bytes("k_pool", &pools[0]).0),
                    DevicePtr::new(device.bytes("v_pool", &pools[1]).0),
                ],
                out: Rows::new(out, width),
                lse,
            };
            let launch = tile.launch(self.num_sms, &args, &mut |spec| spec.emulated());
            device.run(launch, seed);
            self.compare(tile.mode, operands, &device.read(out, want.len()), &want);
            for (got, want) in device.read_f32(lse, want_lse.len()).iter().zip(&want_lse) {
                let off = (f64::from(*got) - want).abs();
                let are_nan = got.is_nan() && want.is_nan();
                // The sum of rounded weights is theirs.
                let rounding = if tile.mode == Mode::Fast { 0.06 } else { 0.0 };
                let bound = rounding + 2e-3 * (1.0 + want.abs());
                assert!(are_nan || off < bound, "lse is {got}, not {want}");
            }
            assert_eq!(device.read_u32(counters, NUM_COUNTERS), [0; NUM_COUNTERS]);
        }
    }

    /// Strict: each number. Fast: the norm.
    #[track_caller]
    fn compare(&self, mode: Mode, operands: &Operands, got: &[f32], want: &[f64]) {
        match mode {
            Mode::Strict => assert_stored::<f16>("out", got, want, 4e-3),
            Mode::Fast => {
                let is_nan = |x: f64| x.is_nan();
                let values = operands.v.concat().into_iter().fold(0.0, f32::max);
                let largest =
                    f64::from(values * operands.v_scale.iter().copied().fold(0.0, f32::max));
                let [mut off, mut norm] = [0.0; 2];
                for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
                    let got = f64::from(got);
                    assert_eq!(is_nan(got), is_nan(want), "out {i} is {got}, not {want}");
                    if !is_nan(want) {
                        off += (got - want).powi(2);
                        norm += want.powi(2);
                        assert!(
                            (got - want).abs() <= 0.0625 * largest,
                            "{mode:?}: out {i} is {got}, not {want}"
                        );
                    }
                }
                let error = (off / norm.max(1e-30)).sqrt();
                assert!(error < 0.03, "a relative norm of {error}");
            }
        }
    }
}

#[test]
fn few_queries_and_keys() {
    for seqs in [&[(1, 1)][..], &[(1, 64)], &[(2, 65), (5, 70)], &[(63, 63), (0, 5), (1, 130)]] {
        Case { seqs, ..CASE }.check();
    }
}

#[test]
fn tiles_and_blocks_of_keys() {
    for seqs in [&[(129, 193)][..], &[(20, 300)], &[(128, 256)], &[(7, 513), (65, 129)]] {
        Case { seqs, num_heads: 1, ..CASE }.check();
    }
}

#[test]
fn full_attention() {
    Case { seqs: &[(70, 200), (3, 3)], is_causal: false, ..CASE }.check();
}

#[test]
fn windows() {
    for window in [1, 5, 64, 100, 200] {
        Case { seqs: &[(100, 290), (9, 9)], window: Some(window), num_heads: 1, ..CASE }.check();
    }
}

#[test]
fn groups_of_query_heads() {
    Case { seqs: &[(67, 67)], num_heads: 7, ..CASE }.check();
    Case { seqs: &[(10, 67)], num_heads: 8, num_kv_heads: 2, ..CASE }.check();
}

#[test]
fn every_width_of_head() {
    for head_dim in [16, 64, 80, 96, 144, 256] {
        Case { seqs: &[(130, 200), (3, 257)], head_dim, num_heads: 1, ..CASE }.check();
    }
}

/// A channel of Q and K, and some of V, a hundred times the others'.
#[test]
fn outliers() {
    let case = Case { seqs: &[(40, 200)], ..CASE };
    let mut operands = case.operands();
    let shrink = |values: &mut [f32], every: usize| {
        for (i, value) in values.iter_mut().enumerate() {
            if i % every != 5 {
                *value = E4m3::from_f32(*value / 100.0).to_f32();
            }
        }
    };
    shrink(&mut operands.q, case.head_dim);
    shrink(&mut operands.k[0], case.head_dim);
    shrink(&mut operands.v[0], 8);
    case.check_operands(&operands);
}

/// Zeros are numbers like others, and so is a scale of 0.
#[test]
fn rows_of_zeros() {
    let case = Case { seqs: &[(70, 130)], ..CASE };
    let mut operands = case.operands();
    operands.q[..3 * case.head_dim].fill(0.0);
    operands.k[0][case.head_dim..9 * case.head_dim].fill(0.0);
    operands.v[0][..5 * case.head_dim].fill(0.0);
    case.check_operands(&operands);
    operands.q_scale[0] = 0.0;
    operands.v_scale[0] = 0.0;
    case.check_operands(&operands);
}

/// The largest numbers: scores of more than a million.
#[test]
fn saturated_numbers() {
    let case = Case { seqs: &[(70, 130)], ..CASE };
    let mut operands = case.operands();
    let saturate = |values: &mut [f32]| {
        values.iter_mut().step_by(3).for_each(|value| *value = 448f32.copysign(*value));
    };
    saturate(&mut operands.q);
    saturate(&mut operands.k[0]);
    saturate(&mut operands.v[0]);
    case.check_operands(&operands);
    operands.q_scale.fill(0.5);
    operands.k_scale.fill(0.5);
    case.check_operands(&operands);
}

/// A NaN of a query is in its row alone; one of a key or a value in the rows that see it.
#[test]
fn nans() {
    let case = Case { seqs: &[(70, 130)], ..CASE };
    let mut operands = case.operands();
    operands.q[5 * case.num_heads * case.head_dim + 1] = f32::NAN;
    case.check_operands(&operands);
    operands.k[0][120 * case.head_dim + 9] = f32::NAN;
    case.check_operands(&operands);
}

/// More keys than the tensor cores add up.
#[test]
fn many_keys() {
    for head_dim in [64, 128, 256] {
        Case { seqs: &[(3, 2300)], head_dim, num_heads: 1, ..CASE }.check();
    }
}
