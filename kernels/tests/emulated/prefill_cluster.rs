//! Attention prefill with the keys of a tile split over a cluster.

use crate::device::{Device, SEEDS, Stored, assert_stored, random_of};
use cuda_std::launch::DevicePtr;
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::work::{Part, PrefillItem};
use kernels::attention::{Attention, AttentionOperands, AttentionWorkspace, SeqInputs};
use kernels::element::Dtype;
use kernels::gemm::{Gpu, Target};
use kernels::kv_cache::PAGE_SIZE;
use std::ops::Range;

mod fp8;

const HEAD_DIM: usize = 64;
const PAGE: usize = PAGE_SIZE as usize;
const BLOCK_M: usize = 64;

/// New tokens and positions of each sequence, and what they attend to.
#[derive(Clone, Copy)]
struct Case {
    seqs: &'static [(usize, usize)],
    num_heads: usize,
    num_kv_heads: usize,
    causal: bool,
    window: Option<usize>,
    /// Queries and keys are this times numbers from -1 to 1.
    magnitude: f32,
}

const SMALL: Case = Case {
    seqs: &[(64, 64)],
    num_heads: 1,
    num_kv_heads: 1,
    causal: true,
    window: None,
    magnitude: 1.0,
};

/// A tile of queries, and the keys that the query at a position of the sequence sees.
struct Tile {
    seq: usize,
    first_token: usize,
    first_query: usize,
    queries: usize,
}

impl Case {
    fn max_kv_len(&self) -> usize {
        self.seqs.iter().map(|(_, kv_len)| *kv_len).max().unwrap_or(0)
    }

    fn attention(&self) -> Attention {
        let max_pages = self.max_kv_len().div_ceil(PAGE);
        Attention {
            max_tokens: self.tokens() + 1,
            max_seqs: self.seqs.len() + 1,
            max_q_len: self.tokens() + 1,
            max_kv_len: self.max_kv_len(),
            max_pages_per_seq: max_pages,
            num_pages: self.seqs.len() * max_pages,
            num_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            softmax_scale: 0.3,
            causal: self.causal,
            window: self.window,
            ..MISSION
        }
    }

    fn tokens(&self) -> usize {
        self.seqs.iter().map(|(q_len, _)| q_len).sum()
    }

    fn tiles(&self) -> Vec<Tile> {
        let mut first_token = 0;
        let mut tiles = Vec::new();
        for (seq, &(q_len, _)) in self.seqs.iter().enumerate() {
            for first_query in (0..q_len).step_by(BLOCK_M) {
                let queries = BLOCK_M.min(q_len - first_query);
                tiles.push(Tile { seq, first_token, first_query, queries });
            }
            first_token += q_len;
        }
        tiles
    }

    /// Keys that query `query` of a sequence sees.
    fn keys(&self, seq: usize, query: usize) -> Range<usize> {
        let (q_len, kv_len) = self.seqs[seq];
        if !self.causal {
            return 0..kv_len;
        }
        let end = kv_len - q_len + query + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    fn items(&self) -> Vec<PrefillItem> {
        let tiles = self.tiles();
        let item = |tile: &Tile, head: usize| {
            let &Tile { seq, first_token, first_query, queries } = tile;
            let (q_len, kv_len) = self.seqs[seq];
            let last_query = first_query + queries - 1;
            let (first, last) = (self.keys(seq, first_query), self.keys(seq, last_query));
            let position = if self.causal { kv_len - q_len + first_query } else { kv_len - 1 };
            PrefillItem {
                seq: seq as u32,
                head: head as u32,
                first_token: (first_token + first_query) as u32,
                queries: queries as u32,
                first_position: position as u32,
                first_key: (first.start / PAGE * PAGE) as u32,
                end_key: last.end as u32,
                part: Part::WHOLE,
            }
        };
        tiles
            .iter()
            .flat_map(|tile| (0..self.num_heads).map(move |head| item(tile, head)))
            .collect()
    }
}

/// A case's queries, and its pools of keys and values, row-major.
struct Values {
    q: Vec<f32>,
    pools: [Vec<f32>; 2],
    max_pages: usize,
    block_table: Vec<u32>,
}

/// A case's inputs, on the host and on the device.
struct Inputs<E> {
    device: Device,
    attention: Attention,
    values: Values,
    table: DevicePtr<u32>,
    operands: AttentionOperands<E>,
}

fn no_map(_: &TensorMapSpec) -> EncodedTensorMap {
    panic!("the kernel has no tensor map")
}

/// Rows of the output that nothing may write.
const ROWS_AFTER: usize = 64;

/// The inputs of a step of `items`. There is room for more items than there are.
fn step(
    device: &mut Device,
    attention: &Attention,
    table: DevicePtr<u32>,
    items: &[PrefillItem],
) -> SeqInputs {
    let words: Vec<u32> = items.iter().flat_map(PrefillItem::words).collect();
    let max_items = attention.max_prefill_items(Gpu::HOPPER, Dtype::F16);
    assert!(max_items > items.len());
    let prefill_items = device.poisoned("work list", max_items * 8);
    device.write_u32(prefill_items, &words);
    let none = DevicePtr::null();
    SeqInputs {
        num_seqs: none,
        cu_seqlens_q: none,
        kv_lens: none,
        block_table: table,
        num_prefill_items: device.u32s("work list", &[items.len() as u32]),
        prefill_items,
        num_decode_items: none,
        decode_items: none,
    }
}

impl Values {
    /// Values of `random(len, salt, magnitude)`. Positions that no sequence has are NaN.
    fn new(case: &Case, random: impl Fn(usize, u64, f32) -> Vec<f32>) -> Self {
        let &Case { seqs, num_heads, num_kv_heads, magnitude, .. } = case;
        let max_pages = case.max_kv_len().div_ceil(PAGE);
        let num_pages = seqs.len() * max_pages;
        // Pages lie in descending order.
        let block_table: Vec<u32> = (0..num_pages as u32).rev().collect();
        let pool = |salt, magnitude| {
            let mut pool = random(num_pages * num_kv_heads * PAGE * HEAD_DIM, salt, magnitude);
            for (seq, (_, kv_len)) in seqs.iter().enumerate() {
                for position in *kv_len..max_pages * PAGE {
                    let page = block_table[seq * max_pages + position / PAGE] as usize;
                    for head in 0..num_kv_heads {
                        let row = (page * num_kv_heads + head) * PAGE + position % PAGE;
                        pool[row * HEAD_DIM..(row + 1) * HEAD_DIM].fill(f32::NAN);
                    }
                }
            }
            pool
        };
        let q = random(case.tokens() * num_heads * HEAD_DIM, 1, magnitude);
        Values { q, pools: [pool(2, magnitude), pool(3, 1.0)], max_pages, block_table }
    }

    /// Where row `key` of a pool is, for a head of a sequence.
    fn row(&self, case: &Case, (seq, head, key): (usize, usize, usize)) -> Range<usize> {
        let page = self.block_table[seq * self.max_pages + key / PAGE] as usize;
        let kv_head = head / (case.num_heads / case.num_kv_heads);
        let row = (page * case.num_kv_heads + kv_head) * PAGE + key % PAGE;
        row * HEAD_DIM..(row + 1) * HEAD_DIM
    }

    /// Softmax of the scaled scores of the keys that each query sees, times their values.
    fn oracle(&self, case: &Case) -> Vec<f64> {
        let mut out: Vec<f64> = Vec::new();
        let queries = |seq: usize| (0..case.seqs[seq].0).map(move |query| (seq, query));
        for (seq, query) in (0..case.seqs.len()).flat_map(queries) {
            for head in 0..case.num_heads {
                let q = &self.q[out.len()..out.len() + HEAD_DIM];
                let keys = case.keys(seq, query);
                let dot = |k: &[f32]| -> f64 {
                    q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
                };
                let scores: Vec<f64> = keys
                    .clone()
                    .map(|key| {
                        f64::from(0.3f32) * dot(&self.pools[0][self.row(case, (seq, head, key))])
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = [0.0; HEAD_DIM];
                for (key, weight) in keys.zip(weights) {
                    let v = &self.pools[1][self.row(case, (seq, head, key))];
                    let products = v.iter().map(|&v| weight / total * f64::from(v));
                    sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
                }
                out.extend(sums);
            }
        }
        out
    }
}

fn inputs<E: Stored>(case: &Case) -> Inputs<E> {
    let random = |len, salt, magnitude: f32| -> Vec<f32> {
        random_of::<E>(len, salt).iter().map(|x| E::of(x * magnitude).value()).collect()
    };
    let values = Values::new(case, random);
    let width = case.num_heads * HEAD_DIM;
    let mut device = Device::default();
    let table = device.u32s("block_table", &values.block_table);
    let operands = AttentionOperands {
        q: Rows::new(device.numbers("q", &values.q), width),
        k_pool: device.numbers("k_pool", &values.pools[0]),
        v_pool: device.numbers("v_pool", &values.pools[1]),
        out: Rows::new(device.poisoned("out", (case.tokens() + ROWS_AFTER) * width), width),
    };
    Inputs { device, attention: case.attention(), values, table, operands }
}

impl<E: Stored> Inputs<E> {
    /// Runs the items; returns the output, with the rows after it.
    fn run(&mut self, case: &Case, items: &[PrefillItem], seed: u64) -> Vec<f32> {
        let seqs = step(&mut self.device, &self.attention, self.table, items);
        let launch = self.attention.prefill(
            Gpu::HOPPER,
            &seqs,
            &self.operands,
            &AttentionWorkspace::NONE,
            &mut no_map,
        );
        let symbol = launch.as_ref().map(|launch| launch.as_ref().map(|launch| launch.symbol));
        assert!(symbol.unwrap().unwrap().starts_with("attention_prefill_cluster_"));
        let report = self.device.run(launch, seed);
        assert_eq!(report.bank_conflicts, 0);
        let elems = (case.tokens() + ROWS_AFTER) * case.num_heads * HEAD_DIM;
        self.device.read(self.operands.out.ptr, elems)
    }
}

/// Probabilities are rounded, so is the part of the output that a block sends, and the output.
fn check<E: Stored>(case: &Case, seed: u64) -> Vec<f32> {
    let mut inputs = inputs::<E>(case);
    let want = inputs.values.oracle(case);
    let got = inputs.run(case, &case.items(), seed);
    let (got, after) = got.split_at(want.len());
    let Case { seqs, causal, window, .. } = case;
    let name = format!("{seqs:?}, causal {causal}, window {window:?}, seed {seed}");
    assert_stored::<E>(&name, got, &want, 1e-5 + 2.0 * E::ROUNDING);
    assert!(after.iter().all(|x| x.is_nan()), "{name}: rows that do not exist are written");
    got.to_vec()
}

/// Around a page, half a chunk, a chunk, and one chunk of each block.
const KV_LENS: [&[(usize, usize)]; 11] = [
    &[(1, 1)],
    &[(1, 63)],
    &[(64, 64)],
    &[(64, 65)],
    &[(64, 128)],
    &[(64, 255)],
    &[(64, 256)],
    &[(64, 257)],
    &[(64, 512)],
    &[(64, 513)],
    &[(64, 700)],
];

#[test]
fn kv_lens_match_oracle() {
    for (seed, seqs) in (0..).zip(KV_LENS) {
        for causal in [true, false] {
            check::<f16>(&Case { seqs, causal, ..SMALL }, seed);
            check::<bf16>(&Case { seqs, causal, ..SMALL }, seed);
        }
    }
}

#[test]
fn q_lens_match_oracle() {
    for (seed, q_len) in
        (0..).zip([&[(1, 200)], &[(7, 65)], &[(63, 63)], &[(65, 66)], &[(130, 300)]])
    {
        check::<f16>(&Case { seqs: q_len, ..SMALL }, seed);
        check::<f16>(&Case { seqs: q_len, causal: false, ..SMALL }, seed);
    }
}

#[test]
fn windows_match_oracle() {
    for window in [1, 33, 64, 65, 300] {
        check::<f16>(&Case { seqs: &[(64, 700)], window: Some(window), ..SMALL }, 3);
        check::<f16>(&Case { seqs: &[(70, 70)], window: Some(window), ..SMALL }, 4);
    }
}

#[test]
fn sequences_and_groups_match_oracle() {
    for seed in SEEDS {
        let seqs = &[(3, 3), (0, 64), (65, 67), (1, 130)];
        let case = Case { seqs, num_heads: 4, num_kv_heads: 2, ..SMALL };
        check::<f16>(&case, seed);
        check::<bf16>(&Case { window: Some(33), num_kv_heads: 1, ..case }, seed);
    }
    check::<f16>(&Case { seqs: &[(16, 90)], num_heads: 7, ..SMALL }, 1);
}

/// The lanes of a warp have the first sequence's first 32 pages.
#[test]
fn sequences_of_many_pages_match_oracle() {
    check::<f16>(&Case { seqs: &[(2, 2200), (3, 100)], ..SMALL }, 1);
}

/// Scores of up to 60,000 before they are scaled.
#[test]
fn large_scores_match_oracle() {
    for (seqs, causal) in [(&[(64, 512)], true), (&[(64, 600)], false)] {
        let case = Case { seqs, causal, magnitude: 48.0, ..SMALL };
        check::<f16>(&case, 1);
        check::<bf16>(&case, 2);
    }
}

#[test]
fn rows_without_a_visible_key_are_zeros() {
    let case = Case { seqs: &[(64, 600)], window: Some(10), ..SMALL };
    let mut inputs = inputs::<f16>(&case);
    // Rows see the ten keys before their position, of which there are only those before key 200:
    // the first three rows see some.
    let item = PrefillItem { first_position: 206, first_key: 64, end_key: 200, ..case.items()[0] };
    let got = inputs.run(&case, &[item], 1);
    for (row, values) in got.chunks(HEAD_DIM).enumerate().take(64) {
        let is_zero = values.iter().all(|value| *value == 0.0);
        assert_eq!(is_zero, row >= 3, "row {row}");
        assert!(values.iter().all(|value| value.is_finite()), "row {row}");
    }
}

#[test]
fn nothing_is_written_without_items() {
    let mut inputs = inputs::<f16>(&SMALL);
    assert!(inputs.run(&SMALL, &[], 1).iter().all(|value| value.is_nan()));
}

#[test]
fn the_order_of_blocks_changes_no_bit() {
    let case = Case { seqs: &[(70, 600)], num_heads: 2, ..SMALL };
    let bits = |seed| check::<f16>(&case, seed).into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(1), bits(2));
}

/// One prompt of 512 tokens, 8 heads of 64: 128 blocks.
const MISSION: Attention = Attention {
    max_tokens: 512,
    max_seqs: 1,
    max_q_len: 512,
    max_decode_q_len: 0,
    max_kv_len: 512,
    max_pages_per_seq: 8,
    num_pages: 8,
    num_heads: 8,
    num_kv_heads: 8,
    head_dim: HEAD_DIM,
    softmax_scale: 0.125,
    causal: true,
    window: None,
    batch_invariant: false,
};

#[test]
fn few_tiles_are_split() {
    let splits = |attention: Attention| attention.splits_prefill(Gpu::HOPPER, Dtype::F16);
    assert!(splits(MISSION));
    assert!(splits(Attention { max_kv_len: 4096, causal: false, ..MISSION }));
    assert!(!splits(Attention { num_heads: 9, ..MISSION }));
    assert!(!splits(Attention { max_tokens: 576, ..MISSION }));
    assert!(!splits(Attention { max_seqs: 3, ..MISSION }));
    assert!(!splits(Attention { head_dim: 128, ..MISSION }));
    assert!(!splits(Attention { softmax_scale: -1.0, ..MISSION }));
    assert!(!splits(Attention { batch_invariant: true, ..MISSION }));
    assert!(!MISSION.splits_prefill(Gpu::HOPPER, Dtype::F32));
    let ampere = Gpu { target: Target::Sm80, ..Gpu::HOPPER };
    assert!(!MISSION.splits_prefill(ampere, Dtype::F16));
}
