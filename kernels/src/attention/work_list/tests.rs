//! What the items of random steps cover, and their order.

use super::*;
use crate::gemm::Target;
use std::collections::{HashMap, HashSet};

const GPUS: [Gpu; 2] = [Gpu::HOPPER, Gpu { target: Target::Sm80, ..Gpu::HOPPER }];
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// Four query heads of 64 columns over two KV heads.
const ATTENTION: Attention = Attention {
    max_tokens: 4096,
    max_seqs: 8,
    max_q_len: 4096,
    max_decode_q_len: 1,
    max_kv_len: 1 << 16,
    max_pages_per_seq: 1 << 10,
    num_pages: 1 << 13,
    num_heads: 4,
    num_kv_heads: 2,
    head_dim: 64,
    softmax_scale: 0.125,
    causal: true,
    batch_invariant: false,
    has_sinks: false,
    softcap: None,
    window: None,
};

/// A number under `end`, of a linear congruential generator (Knuth).
fn random(state: &mut u64, end: u32) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) % u64::from(end)) as u32
}

/// Sequences of a step, and the smallest bounds that it fits.
fn random_step(state: &mut u64) -> (Attention, Vec<SeqLens>) {
    let num_seqs = random(state, 6);
    let mut seq = || {
        let q_len = [0, 1, 2, random(state, 64), random(state, 700)][random(state, 5) as usize];
        let past_len = [0, random(state, 64), random(state, 2000)][random(state, 3) as usize];
        SeqLens { q_len, kv_len: past_len + q_len }
    };
    let seqs: Vec<_> = (0..num_seqs).map(|_| seq()).collect();
    let causal = random(state, 4) > 0;
    let group = 1 + random(state, 3) as usize;
    let attention = Attention {
        max_tokens: seqs.iter().map(|seq| seq.q_len as usize).sum(),
        max_seqs: seqs.len(),
        max_q_len: seqs.iter().map(|seq| seq.q_len as usize).max().unwrap_or(0),
        max_decode_q_len: random(state, 2) as usize,
        num_heads: 2 * group,
        head_dim: [64, 96, 128, 256][random(state, 4) as usize],
        causal,
        window: (causal && random(state, 2) == 0).then(|| 1 + random(state, 300) as usize),
        ..ATTENTION
    };
    (attention, seqs)
}

fn items(attention: &Attention, gpu: Gpu, dtype: Dtype, seqs: &[SeqLens]) -> Vec<PrefillItem> {
    let from_words =
        |[a, b, c, d, e, f, g, h]: ItemWords| PrefillItem::from_words([a, b, c, d], [e, f, g, h]);
    attention.prefill_items(gpu, dtype, seqs).into_iter().map(from_words).collect()
}

/// The tiles whose parts `items` are: each part once, their keys one after the other in whole
/// blocks, their slots their own.
fn tiles_of(items: &[PrefillItem], max_slots: usize, block_n: u32) -> Vec<PrefillItem> {
    let mut slots = HashSet::new();
    let mut parts: HashMap<(u32, u32), Vec<PrefillItem>> = HashMap::new();
    for item in items {
        let part = item.part;
        let (split, num_splits, first_slot) = (part.split(), part.num_splits(), part.first_slot());
        if num_splits > 1 {
            assert!(
                slots.insert(first_slot + split) && first_slot + num_splits <= max_slots as u32
            );
        }
        parts.entry((item.first_token, item.head)).or_default().push(*item);
    }
    let whole = |mut parts: Vec<PrefillItem>| {
        parts.sort_by_key(|item| item.part.split());
        for (split, item) in parts.iter().enumerate() {
            let part = Part::new(split as u32, parts.len() as u32, item.part.first_slot());
            let same = PrefillItem { first_key: 0, end_key: 0, ..*item };
            let first = PrefillItem { first_key: 0, end_key: 0, part, ..parts[0] };
            assert_eq!(same, first);
        }
        for pair in parts.windows(2) {
            assert_eq!(pair[0].end_key, pair[1].first_key);
            assert!(pair[0].end_key.is_multiple_of(block_n) && pair[0].num_pages() >= 8);
        }
        let end_key = parts.last().unwrap().end_key;
        PrefillItem { end_key, part: Part::WHOLE, ..parts[0] }
    };
    parts.into_values().map(whole).collect()
}

/// The keys that a query sees, by the definition.
fn seen(attention: &Attention, lens: SeqLens, query: u32) -> Range<u32> {
    let position = lens.kv_len - lens.q_len + query;
    let end = if attention.causal { position + 1 } else { lens.kv_len };
    let window = attention.window.map_or(u32::MAX, |window| window as u32);
    end.saturating_sub(window)..end
}

/// An item's keys are those that its queries see, from the start of their first page on.
fn assert_keys(attention: &Attention, item: &PrefillItem, lens: SeqLens, first_query: u32) {
    let queries = first_query..first_query + item.queries;
    let ranges: Vec<_> = queries.map(|query| seen(attention, lens, query)).collect();
    let start = ranges.iter().map(|keys| keys.start).min().unwrap();
    let end = ranges.iter().map(|keys| keys.end).max().unwrap();
    assert_eq!((item.first_key, item.end_key), (start - start % PAGE_SIZE, end), "{item:?}");
    // What the kernel masks by: `position + i - window < key <= position + i`.
    for (i, keys) in ranges.into_iter().enumerate() {
        let last = (item.first_position + i as u32).min(item.end_key - 1);
        assert_eq!(last + 1, keys.end, "{item:?}");
        let window = attention.window.map_or(u32::MAX, |window| window as u32);
        assert_eq!((last + 1).saturating_sub(window), keys.start, "{item:?}");
    }
}

#[test]
fn each_query_of_each_head_is_in_one_item_with_the_keys_that_it_sees() {
    let mut state = 19;
    for case in 0..600 {
        let (attention, seqs) = random_step(&mut state);
        let (gpu, dtype) = (GPUS[case % 2], DTYPES[case % 3]);
        let items = items(&attention, gpu, dtype, &seqs);
        assert!(items.len() <= attention.max_prefill_items(gpu, dtype), "{attention:?} {seqs:?}");
        let block_n = if attention.head_dim > 128 { 64 } else { 128 };
        let items = tiles_of(&items, attention.num_slots(), block_n);
        let mut times = HashMap::new();
        for item in &items {
            let seq = item.seq as usize;
            let seq_token: u32 = seqs[..seq].iter().map(|seq| seq.q_len).sum();
            assert!((1..=attention.block_m(gpu, dtype)).contains(&(item.queries as usize)));
            assert_keys(&attention, item, seqs[seq], item.first_token - seq_token);
            for token in item.first_token..item.first_token + item.queries {
                *times.entry((token, item.head)).or_insert(0) += 1;
            }
        }
        let mut token = 0;
        for seq in &seqs {
            for _ in 0..seq.q_len {
                let expected = u32::from(seq.q_len as usize > attention.max_decode_q_len);
                for head in 0..attention.num_heads as u32 {
                    let got = times.get(&(token, head)).copied().unwrap_or(0);
                    assert_eq!(got, expected, "token {token}, head {head}: {seqs:?}");
                }
                token += 1;
            }
        }
    }
}

#[test]
fn the_longest_items_come_first_and_the_heads_of_a_tile_together() {
    let mut state = 7;
    for case in 0..200 {
        let (attention, seqs) = random_step(&mut state);
        let (gpu, dtype) = (GPUS[case % 2], DTYPES[case % 3]);
        let parts = items(&attention, gpu, dtype, &seqs);
        assert!(parts.is_sorted_by_key(|item| Reverse(item.num_pages().div_ceil(2))), "{parts:?}");
        let block_m = attention.block_m(gpu, dtype) as u32;
        let items = attention.tiles(block_m, dtype.block_bytes(), &seqs);
        assert!(items.is_sorted_by_key(|item| Reverse(item.num_pages())), "{items:?}");
        for tile in items.chunks(attention.num_heads) {
            assert!(tile.iter().all(|item| item.first_token == tile[0].first_token));
            assert!(tile.iter().map(|item| item.head).eq(0..attention.num_heads as u32));
        }
    }
}

/// The items between two that are followed by a longer one share their keys and values in L2.
#[test]
fn more_keys_than_fit_in_l2_are_cut_by_kv_head() {
    // 16 MiB of K and V a KV head: two of eight fit.
    let lens = |kv_len| SeqLens { q_len: 2048, kv_len };
    let attention =
        Attention { num_heads: 16, num_kv_heads: 8, head_dim: 128, max_seqs: 2, ..ATTENTION };
    let kv_head = |item: &PrefillItem| (item.seq, item.head / 2);
    let sections = |seqs: &[SeqLens]| -> Vec<Vec<(u32, u32)>> {
        let items = items(&attention, Gpu::HOPPER, Dtype::F16, seqs);
        let sections = items.chunk_by(|a, b| a.num_pages() >= b.num_pages());
        let heads = |section: &[PrefillItem]| {
            let mut heads: Vec<_> = section.iter().map(kv_head).collect();
            heads.sort_unstable();
            heads.dedup();
            heads
        };
        sections.map(heads).collect()
    };
    let one = sections(&[lens(1 << 15)]);
    assert_eq!(one, [0, 2, 4, 6].map(|head| vec![(0, head), (0, head + 1)]));
    // A sequence of its own is larger than the cache, and goes by one KV head.
    assert_eq!(sections(&[lens(1 << 17)]).len(), 8);
    // The longer one first; what is left of a section is for the next.
    let two = sections(&[lens(1 << 13), lens(3 << 14)]);
    assert_eq!(two[0], [(1, 0)]);
    assert_eq!(two.concat().len(), 16);
    assert!(two.last().unwrap().iter().copied().eq((2..8).map(|head| (0, head))));
}

/// Chunks of a long prompt fill the SMs; what is short, or many tiles anyway, or must not depend
/// on the batch is whole.
#[test]
fn few_tiles_with_many_keys_are_split() {
    let attention = Attention { num_heads: 14, max_seqs: 256, ..ATTENTION };
    let count = |attention: &Attention, q_len, kv_len| {
        let items = items(attention, Gpu::HOPPER, Dtype::F16, &[SeqLens { q_len, kv_len }]);
        (items.len(), items.iter().map(|item| item.end_key - item.first_key).max().unwrap())
    };
    assert_eq!(count(&attention, 256, 30_000), (28 * 9, 27 * 128));
    assert_eq!(count(&attention, 64, 4096), (14 * 8, 512));
    assert_eq!(count(&attention, 512, 512), (56, 512));
    assert_eq!(count(&attention, 4096, 4096), (448, 4096));
    let invariant = Attention { batch_invariant: true, ..attention };
    assert_eq!(count(&invariant, 256, 30_000), (28, 30_000));
    assert_eq!(invariant.num_prefill_partials(Dtype::F16), 0);
}

#[test]
fn nothing_to_prefill_is_no_item() {
    let none = |attention: Attention| attention.max_prefill_items(Gpu::HOPPER, Dtype::F16) == 0;
    assert!(none(Attention { max_tokens: 0, ..ATTENTION }));
    assert!(none(Attention { max_seqs: 0, ..ATTENTION }));
    assert!(none(Attention { max_q_len: 1, ..ATTENTION }));
    assert!(!none(Attention { max_q_len: 1, max_decode_q_len: 0, ..ATTENTION }));
    let decoding = [SeqLens { q_len: 1, kv_len: 900 }, SeqLens { q_len: 0, kv_len: 5 }];
    assert_eq!(items(&ATTENTION, Gpu::HOPPER, Dtype::F16, &decoding), []);
}
