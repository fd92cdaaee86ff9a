//! Attention prefill on Hopper's tensor cores.

use crate::device::{Device, SEEDS, Stored, assert_stored, random_of};
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::sm90::{Arguments, NUM_COUNTERS, TileConfig};
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
    /// Multiplies the queries.
    magnitude: f32,
    num_sms: usize,
    /// Most blocks of keys of an item; 0: all.
    part_blocks: usize,
}

const CASE: Case = Case {
    seqs: &[(3, 3)],
    num_heads: 2,
    num_kv_heads: 1,
    head_dim: 64,
    window: None,
    is_causal: true,
    magnitude: 1.0,
    num_sms: 3,
    part_blocks: 0,
};

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

    /// Index of the first element of a key in a pool.
    fn row(&self, seq: usize, kv_head: usize, key: usize) -> usize {
        let head = self.page(seq, key) * self.num_kv_heads + kv_head;
        (head * PAGE + key % PAGE) * self.head_dim
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

    /// The items in parts, the first parts of all first; and their partial results.
    fn parts(&self, tile: &TileConfig) -> (Vec<PrefillItem>, usize) {
        let items = self.items(tile.block_m);
        if self.part_blocks == 0 || !tile.splits_keys {
            return (items, 0);
        }
        let (mut parts, mut num_slots) = (Vec::new(), 0);
        let part_keys = (self.part_blocks * tile.block_n) as u32;
        for item in items {
            let start = item.first_key / tile.block_n as u32 * tile.block_n as u32;
            let num_splits = (item.end_key - start).div_ceil(part_keys);
            parts.extend((0..num_splits).map(|split| PrefillItem {
                first_key: (start + split * part_keys).max(item.first_key),
                end_key: (start + (split + 1) * part_keys).min(item.end_key),
                part: Part::new(split, num_splits, num_slots),
                ..item
            }));
            num_slots += num_splits;
        }
        parts.sort_by_key(|item| item.part.split());
        (parts, num_slots as usize)
    }

    /// A pool whose positions that no sequence has are NaN.
    fn pool<E: Stored>(&self, salt: u64) -> Vec<f32> {
        let num_pages = self.seqs.len() * self.max_pages();
        let mut pool = random_of::<E>(num_pages * self.num_kv_heads * PAGE * self.head_dim, salt);
        for (seq, &(_, kv_len)) in self.seqs.iter().enumerate() {
            for key in kv_len..self.max_pages() * PAGE {
                for kv_head in 0..self.num_kv_heads {
                    pool[self.row(seq, kv_head, key)..][..self.head_dim].fill(f32::NAN);
                }
            }
        }
        pool
    }

    /// Output and lse, in f64.
    fn oracle(&self, q: &[f32], k_pool: &[f32], v_pool: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        for (seq, &lens) in self.seqs.iter().enumerate() {
            for query in 0..lens.0 {
                for head in 0..self.num_heads {
                    let q = &q[out.len()..][..self.head_dim];
                    let kv_head = head * self.num_kv_heads / self.num_heads;
                    let row = |pool: &[f32], key| -> Vec<f64> {
                        let row = &pool[self.row(seq, kv_head, key)..][..self.head_dim];
                        row.iter().map(|&x| f64::from(x)).collect()
                    };
                    let score = |key| {
                        let k = row(k_pool, key);
                        f64::from(SCALE)
                            * q.iter().zip(k).map(|(&q, k)| f64::from(q) * k).sum::<f64>()
                    };
                    let keys = self.keys(lens, query);
                    let scores: Vec<f64> = keys.clone().map(score).collect();
                    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
                    let mut sums = vec![0.0; self.head_dim];
                    for (key, score) in keys.zip(scores) {
                        let weight = (score - max).exp() / total;
                        let v = row(v_pool, key);
                        sums.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * v);
                    }
                    out.extend(sums);
                    lse.push(max + total.ln());
                }
            }
        }
        (out, lse)
    }

    /// Checks every tile for the heads' width.
    #[track_caller]
    fn check<E: Stored>(&self) {
        let num_tiles = if self.head_dim <= 64 { 2 } else { 1 };
        for tile in TileConfig::for_head_dim(self.head_dim).take(num_tiles) {
            self.check_tile::<E>(tile);
        }
    }

    #[track_caller]
    fn check_tile<E: Stored>(&self, tile: &TileConfig) {
        let width = self.num_heads * self.head_dim;
        let scaled = |q| E::of(q * self.magnitude).value();
        let q =
            random_of::<E>(self.tokens() * width, 1).into_iter().map(scaled).collect::<Vec<_>>();
        let (k_pool, v_pool) = (self.pool::<E>(2), self.pool::<E>(3));
        let (want, want_lse) = self.oracle(&q, &k_pool, &v_pool);
        let (items, num_slots) = self.parts(tile);
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
            let out = device.poisoned::<E>("out", self.tokens() * width);
            let lse = device.poisoned::<f32>("lse", self.tokens() * self.num_heads);
            let zeros = vec![0; NUM_COUNTERS + num_slots * tile.counters_per_slot()];
            let counters = device.u32s("counters", &zeros);
            let partials = device.poisoned("partials", num_slots * tile.partials_per_slot());
            let pools = [
                device.numbers::<E>("k_pool", &k_pool).0,
                device.numbers::<E>("v_pool", &v_pool).0,
            ];
            let q = device.partly_written::<E>("q", &q, max_tokens * width);
            let args = Arguments {
                dtype: E::DTYPE,
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
                q: Rows::new(DevicePtr::new(q.0), width),
                pools: pools.map(DevicePtr::new),
                out: Rows::new(DevicePtr::new(out.0), width),
                lse,
                partials,
            };
            let launch = tile.launch(self.num_sms, &args, &mut |spec| spec.emulated());
            device.run(launch, seed);
            assert_stored::<E>("out", &device.read(out, want.len()), &want, 4e-3);
            for (got, want) in device.read_f32(lse, want_lse.len()).iter().zip(&want_lse) {
                let off = (f64::from(*got) - want).abs();
                assert!(off < 2e-3 * (1.0 + want.abs()), "lse is {got}, not {want}");
            }
            assert_eq!(device.read_u32(counters, zeros.len()), zeros);
        }
    }
}

#[test]
fn few_queries_and_keys() {
    for seqs in [&[(1, 1)][..], &[(1, 64)], &[(2, 65), (5, 70)], &[(63, 63), (1, 130)]] {
        Case { seqs, ..CASE }.check::<f16>();
    }
}

#[test]
fn tiles_and_blocks_of_keys() {
    for seqs in [&[(193, 193)][..], &[(20, 300)], &[(192, 256)], &[(7, 513), (65, 129)]] {
        Case { seqs, ..CASE }.check::<f16>();
        Case { seqs, num_heads: 1, ..CASE }.check::<bf16>();
    }
}

#[test]
fn every_width_of_head() {
    for head_dim in [8, 80, 96, 128, 200, 256] {
        Case { seqs: &[(130, 200), (3, 257)], head_dim, num_heads: 1, ..CASE }.check::<f16>();
    }
}

#[test]
fn full_attention() {
    for head_dim in [64, 128] {
        Case { seqs: &[(70, 200), (3, 3)], head_dim, is_causal: false, ..CASE }.check::<f16>();
    }
}

#[test]
fn windows() {
    for window in [1, 5, 64, 100, 200] {
        Case { seqs: &[(150, 290), (9, 9)], window: Some(window), ..CASE }.check::<f16>();
    }
}

/// Some rows see no key of some parts.
#[test]
fn keys_in_parts() {
    let case = Case { part_blocks: 1, ..CASE };
    for seqs in [&[(20, 300)][..], &[(150, 520)], &[(7, 513), (65, 129)]] {
        Case { seqs, ..case }.check::<f16>();
    }
    Case { seqs: &[(129, 700)], part_blocks: 2, num_heads: 1, ..case }.check::<bf16>();
    Case { seqs: &[(150, 450)], window: Some(100), ..case }.check::<f16>();
    Case { seqs: &[(3, 400)], is_causal: false, ..case }.check::<f16>();
    for head_dim in [80, 128, 256] {
        Case { seqs: &[(30, 300)], head_dim, num_heads: 1, ..case }.check::<f16>();
    }
}

#[test]
fn groups_of_query_heads() {
    Case { seqs: &[(67, 67)], num_heads: 7, ..CASE }.check::<f16>();
    Case { seqs: &[(10, 67)], num_heads: 8, num_kv_heads: 2, head_dim: 128, ..CASE }.check::<f16>();
}

#[test]
fn large_scores() {
    Case { seqs: &[(30, 200)], magnitude: 6e4, ..CASE }.check::<f16>();
}
