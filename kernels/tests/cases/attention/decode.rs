//! Decoding: dense, of new tokens that it appends, and of a cache of quants.

use super::{CASE, Case, HEAD_DIMS, PAGE, SINKS, SOFTCAP, Step, rounding};
use crate::cases::cache::norm_heads;
use crate::cases::cache::quants::append_and_read;
use crate::harness::*;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::work::DecodeItem;
use kernels::attention::{Append, Attention, AttentionOperands, AttentionWorkspace, ItemWords};
use kernels::element::Dtype;
use kernels::kv_cache::dequantise::PageInputs;
use kernels::kv_cache::{CacheType, PAGE_SIZE};
use kernels::qk_norm::QkNorm;
use kernels::rope_append::{RopeAppend, RopeAppendOperands};

/// The row blocks of the items' sequences, each whole.
fn whole_items(items: &[ItemWords]) -> Vec<ItemWords> {
    let mut whole: Vec<ItemWords> = Vec::new();
    for item in items {
        // Sequence and KV head, rows and row block.
        match whole.iter_mut().find(|one| (one[0], one[2]) == (item[0], item[2])) {
            Some(one) => (one[4], one[5]) = (one[4].min(item[4]), one[5].max(item[5])),
            None => whole.push(*item),
        }
    }
    whole
}

/// The items, which are row blocks of sequences that are not split, in splits of `split_pages`.
fn split_items(items: &[ItemWords], split_pages: u32) -> Vec<ItemWords> {
    let split_len = split_pages * PAGE_SIZE;
    let mut split_items = Vec::new();
    let mut first_partial = 0;
    for &[head, first_token, rows, first_position, first_key, end_key, ..] in items {
        let num_splits = (end_key - first_key).div_ceil(split_len);
        let item = |split: u32| DecodeItem {
            seq: head & 0xffff,
            kv_head: head >> 16,
            first_token,
            queries: rows & 0xffff,
            row_block: rows >> 16,
            first_position,
            first_key: first_key + split * split_len,
            end_key: end_key.min(first_key + (split + 1) * split_len),
            split,
            num_splits,
            first_partial,
        };
        split_items.extend((0..num_splits).map(|split| item(split).words()));
        first_partial += 16 * num_splits;
    }
    split_items
}

fn workspace(device: &mut Device, attention: &Attention, dtype: Dtype) -> AttentionWorkspace {
    AttentionWorkspace {
        partials: device.poisoned("partials", attention.num_partials(dtype)),
        counters: device.u32s("counters", &vec![0; attention.num_counters(dtype)]),
    }
}

/// How a step is decoded: the most new tokens of a sequence, the pages of a split or the
/// launcher's, and the most blocks.
type Way = (usize, Option<u32>, u32);

const ALONE: Way = (1, None, u32::MAX);

/// Compares the outputs with the oracle, and returns them.
#[track_caller]
fn check<E: HostElement>(
    case: Case,
    (max_q_len, split_pages, max_blocks): Way,
    seed: u64,
) -> Vec<f32> {
    let (mut device, values, pages) = (Device::default(), case.values::<E>(), case.pages());
    let Step { mut attention, mut seqs, operands } =
        case.step::<E>(&mut device, &values, max_q_len);
    let mut num_items = device.read_u32(seqs.num_decode_items, 1)[0];
    if let Some(split_pages) = split_pages {
        let words = device.read_u32(seqs.decode_items, 8 * num_items as usize);
        let mut items = split_items(&whole_items(words.as_chunks::<8>().0), split_pages);
        num_items = items.len() as u32;
        items.push([0; 8]);
        seqs.num_decode_items = device.u32s("work list", &[num_items]);
        seqs.decode_items = device.u32s("work list", items.as_flattened());
        // Room for them: rows of the block table for sequences that the launcher splits as well.
        (attention.max_kv_len, attention.max_pages_per_seq) = (1 << 18, 1 << 12);
        let mut table = Vec::new();
        for pages in pages.table.chunks(pages.max_pages) {
            table.extend(pages);
            table.resize(table.len().next_multiple_of(1 << 12), 0);
        }
        seqs.block_table = device.u32s("block_table", &table);
    }
    let workspace = workspace(&mut device, &attention, E::DTYPE);
    let mut launch = made(attention.decode(SM_80, &seqs, &operands, None, &workspace));
    // One block has nothing to do.
    launch.geometry.grid[0] = max_blocks.min(num_items + 1);
    device.run(Ok(Some(launch)), seed);
    let counters = device.read_u32(workspace.counters, attention.num_counters(E::DTYPE));
    assert!(counters.iter().all(|&count| count == 0), "counters are left");
    let got = case.read(&device, operands.out);
    case.assert_attends::<E>("decode", &got, case.oracle(&values, rounding::<E>()).out);
    got
}

#[test]
fn decode_matches_oracle() {
    let all: &[_] = &[(1, 1), (0, 64), (1, 300), (1, 64), (1, 129)];
    let base = Case { heads: [6, 2], head_dim: 24, ..CASE };
    for seed in simt::seeds() {
        let step = Case { seqs: &[(1, 1), (0, 64), (1, 300)], head_dim: 20, ..base };
        check::<f32>(step, ALONE, seed);
        check::<f32>(Case { head_dim: 7, window: Some(33), ..step }, ALONE, seed);
        let step = Case { seqs: all, ..base };
        check::<f16>(step, ALONE, seed);
        check::<bf16>(Case { head_dim: 8, window: Some(33), ..step }, ALONE, seed);
        check::<f16>(Case { head_dim: 16, window: Some(1), ..step }, ALONE, seed);
        check::<f16>(Case { sinks: SINKS, ..step }, ALONE, seed);
        check::<f32>(Case { sinks: SINKS, window: Some(33), ..step }, ALONE, seed);
        check::<f32>(Case { softcap: SOFTCAP, ..step }, ALONE, seed);
        check::<bf16>(Case { softcap: SOFTCAP, sinks: SINKS, ..step }, ALONE, seed);
    }
    // Every instance: 4, 8 and 16 rows of heads; a head of its own, a group of 7, and one of two
    // blocks.
    for head_dim in HEAD_DIMS {
        for num_heads in [3, 7, 16] {
            let case = Case { seqs: &[(1, 35)], heads: [num_heads, 1], head_dim, ..CASE };
            check::<f32>(case, ALONE, 1);
        }
        for num_heads in [1, 7, 19] {
            let case = Case { seqs: &[(1, 135)], heads: [num_heads, 1], head_dim, ..CASE };
            check::<f16>(case, ALONE, 1);
            check::<bf16>(case, ALONE, 1);
        }
    }
}

/// Two warps share keys, of half a page at once: fewer keys than that, one more, and a page and one
/// more; in splits too.
#[test]
fn decode_of_wide_heads_matches_oracle() {
    let seqs: &[_] = &[(1, 1), (1, 32), (0, 64), (1, 33), (1, 65), (1, 300)];
    for seed in simt::seeds().take(2) {
        for num_heads in [8, 19] {
            let case = Case { seqs, heads: [num_heads, 1], head_dim: 512, ..CASE };
            check::<f16>(case, ALONE, seed);
            check::<bf16>(Case { head_dim: 264, window: Some(33), ..case }, ALONE, seed);
        }
        let case = Case { seqs, heads: [4, 2], head_dim: 512, sinks: SINKS, ..CASE };
        check::<bf16>(case, (1, Some(2), u32::MAX), seed);
    }
}

#[test]
fn splits_of_decode_match_oracle() {
    let step = Case { seqs: &[(1, 300), (1, 64)], heads: [3, 1], head_dim: 8, ..CASE };
    for (seed, split_pages) in [(0, 1), (1, 2), (2, 3)] {
        check::<f16>(step, (1, Some(split_pages), u32::MAX), seed);
        check::<f32>(step, (1, Some(split_pages), u32::MAX), seed);
        let with_sinks = Case { sinks: SINKS, heads: [4, 1], ..step };
        check::<bf16>(with_sinks, (1, Some(split_pages), u32::MAX), seed);
    }
    // More tiles than slots; more pages than lanes; more splits than are combined at once.
    let long = Case { seqs: &[(1, 2300)], ..step };
    check::<f16>(long, ALONE, 0);
    check::<f32>(long, ALONE, 1);
    check::<bf16>(long, (1, Some(1), u32::MAX), 2);
    // A model whose sequences the launcher splits: the list, the bounds and the workspace fit.
    let seqs = &[(1, 1100), (1, 70), (1, 1300)];
    let step = Case { seqs, heads: [4, 2], head_dim: 128, ..CASE };
    check::<f16>(step, ALONE, 0);
    check::<f32>(Case { window: Some(500), ..step }, ALONE, 1);
}

#[test]
fn blocks_of_decode_take_several_items_and_queries() {
    let seqs = &[(1, 300), (1, 64), (1, 1), (1, 65)];
    let step = Case { seqs, heads: [6, 2], ..CASE };
    let all = bits(&check::<f16>(step, (1, Some(2), u32::MAX), 0));
    for (seed, max_blocks) in [(1, 1), (2, 3)] {
        assert_eq!(bits(&check::<f16>(step, (1, Some(2), max_blocks), seed)), all);
    }
    check::<f32>(Case { head_dim: 20, ..step }, (1, Some(2), 3), 0);
    for seed in simt::seeds() {
        // Queries on both sides of a page's end, to some of which the last split shows nothing.
        let seqs: &[_] = &[(2, 65), (16, 130), (3, 300), (1, 1), (5, 5)];
        let step = Case { seqs, head_dim: 24, ..step };
        check::<f16>(step, (16, Some(1), u32::MAX), seed);
        check::<f16>(Case { window: Some(33), ..step }, (16, None, u32::MAX), seed);
        check::<bf16>(Case { window: Some(1), heads: [14, 2], ..step }, (16, None, 5), seed);
        check::<bf16>(Case { causal: false, ..step }, (16, Some(2), u32::MAX), seed);
        check::<f32>(step, (16, Some(2), u32::MAX), seed);
        let both = Case { causal: false, window: Some(33), ..step };
        check::<f16>(both, (16, Some(2), u32::MAX), seed);
    }
    // The order of what is concurrent changes no bit.
    let step = Case { seqs: &[(1, 150), (1, 65)], heads: [7, 1], ..CASE };
    assert_eq!(bits(&check::<f16>(step, ALONE, 1)), bits(&check::<f16>(step, ALONE, 2)));
}

/// Decoding of tokens whose K and V are still on their way: in one launch, or appended by one
/// before. What is left: the output, and both pools.
fn decode_new<E: HostElement>(
    case: Case,
    (rotary_dim, has_norm): (usize, bool),
    fused: bool,
    seed: u64,
) -> [Vec<f32>; 3] {
    let Case { seqs, heads: [num_heads, num_kv_heads], head_dim, .. } = case;
    let (mut device, values, pages) = (Device::default(), case.values::<E>(), case.pages());
    let step = case.step::<E>(&mut device, &values, 1);
    let tokens = case.tokens();
    let last = seqs.iter().enumerate().filter(|(_, (q_len, _))| *q_len == 1);
    let last: Vec<_> = last.map(|(seq, (_, kv_len))| (seq, kv_len - 1)).collect();
    let slots: Vec<u32> = last.iter().map(|&(seq, at)| pages.slot(seq, at) as u32).collect();
    let positions: Vec<u32> = last.iter().map(|&(_, at)| at as u32).collect();
    let width = (num_heads + 2 * num_kv_heads) * head_dim;
    let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
    let positions = device.u32s("positions", &positions);
    let slot_mapping = device.u32s("slot_mapping", &slots);
    let table = device.f32s("table", &random(step.attention.max_kv_len * rotary_dim, 5));
    let qkv: DevicePtr<E> = device.numbers("qkv", &random_of::<E>(tokens * width, 6));
    let [q, k, v] = [0, num_heads, num_heads + num_kv_heads]
        .map(|head| Rows::new(qkv.add(head * head_dim), width));
    // The pools are the launch's own, if nobody has appended to them.
    let names = if fused { ["own k_pool", "own v_pool"] } else { ["k_pool", "v_pool"] };
    let [k_pool, v_pool] = [0, 1].map(|of| device.numbers::<E>(names[of], &values.pools[of]));
    let operands = AttentionOperands { q, k_pool, v_pool, ..step.operands };
    let [q_norm, k_norm] = [7, 8].map(|salt| device.f32s("norm weight", &random(head_dim, salt)));
    let norm = if has_norm { QkNorm { q: q_norm, k: k_norm, eps: 0.1 } } else { QkNorm::NONE };
    let append = Append { positions, slot_mapping, table, rotary_dim, norm, k, v };
    if !fused {
        if has_norm {
            norm_heads(
                &mut device,
                num_tokens,
                (tokens, head_dim),
                norm,
                [(q, num_heads), (k, num_kv_heads)],
                seed,
            );
        }
        let max_tokens = tokens + 1;
        let launcher = RopeAppend { max_tokens, num_heads, num_kv_heads, head_dim, rotary_dim };
        let norm = QkNorm::NONE;
        let operands =
            RopeAppendOperands { positions, slot_mapping, table, norm, q, k, v, k_pool, v_pool };
        device.run(launcher.launch(num_tokens, &operands), seed);
    }
    let workspace = workspace(&mut device, &step.attention, E::DTYPE);
    let append = fused.then_some(&append);
    device.run(step.attention.decode(SM_80, &step.seqs, &operands, append, &workspace), seed);
    let out = case.read(&device, operands.out);
    assert!(out.iter().all(|x| x.is_finite()), "{case:?}");
    let [keys, values] = [k_pool, v_pool].map(|pool| device.read(pool, pages.elems()));
    [out, keys, values]
}

/// The append has the bits of rms_norm and rope_append, which have oracles of their own.
#[test]
fn decode_appends_as_rope_append_does() {
    fn check<E: HostElement>(case: Case, rotary_dim: usize, seed: u64) {
        for has_norm in [false, true] {
            let rows = (rotary_dim, has_norm);
            let of = |fused| decode_new::<E>(case, rows, fused, seed).map(|values| bits(&values));
            assert_eq!(of(true), of(false), "{case:?}, {rotary_dim} rotated, norm: {has_norm}");
        }
    }
    for seed in simt::seeds() {
        // First tokens; one that starts a page, and one that ends one; many splits.
        let seqs: &[_] = &[(1, 1), (0, 64), (1, 300), (1, 64), (1, 129)];
        let step = Case { seqs, heads: [6, 2], head_dim: 24, ..CASE };
        check::<f16>(step, 24, seed);
        check::<bf16>(Case { head_dim: 16, window: Some(33), ..step }, 10, seed);
        check::<f32>(Case { head_dim: 7, window: Some(1), ..step }, 4, seed);
    }
    // Widths of every instance; a group of two blocks, of which one appends.
    for (num_heads, head_dim) in [1, 19].into_iter().flat_map(|h| HEAD_DIMS.map(|d| (h, d))) {
        let step = Case { seqs: &[(1, 70)], heads: [num_heads, 1], head_dim, ..CASE };
        check::<f16>(step, head_dim, 1);
        check::<f32>(step, head_dim / 2, 1);
    }
}

/// Decodes a cache of quants as it is, against the oracle of its dense copy.
fn check_quantised(case: Case, formats: [CacheType; 2], seed: u64) {
    let Case { heads: [_, num_kv_heads], head_dim, seqs, .. } = case;
    let (mut device, pages) = (Device::default(), case.pages());
    let kv_width = num_kv_heads * head_dim;
    let positions = |seq: usize| (0..seqs[seq].1).map(move |position| (seq, position));
    let slots = (0..seqs.len()).flat_map(positions).map(|(seq, at)| pages.slot(seq, at) as u32);
    let slots: Vec<u32> = slots.collect();
    let rows = [1, 2].map(|salt| {
        let rows = random_of::<f16>(slots.len() * kv_width, salt);
        Rows::<f16>::new(device.numbers("rows", &rows), kv_width)
    });
    let mut values = case.values::<f16>();
    let Step { attention, seqs, operands } = case.step::<f16>(&mut device, &values, 1);
    let inputs = PageInputs {
        num_seqs: seqs.num_seqs,
        cu_seqlens_q: seqs.cu_seqlens_q,
        kv_lens: seqs.kv_lens,
        block_table: seqs.block_table,
    };
    let slots = (&slots[..], None);
    let (pools, dense) =
        append_and_read::<f16, f16>(&mut device, formats, &pages, slots, rows, &inputs, seed);
    values.pools = dense;
    let workspace = workspace(&mut device, &attention, Dtype::F16);
    let [k_pool, v_pool] = pools.map(|pool| DevicePtr::new(pool.0));
    let operands = AttentionOperands { k_pool, v_pool, ..operands };
    device.run(attention.decode_quantised(SM_80, &seqs, &operands, formats, &workspace), seed);
    // The dense copy is rounded.
    let want = case.oracle(&values, 3e-3).out;
    case.assert_attends::<f16>(&format!("{formats:?}"), &case.read(&device, operands.out), want);
}

#[test]
fn decode_reads_quants_as_they_are() {
    use CacheType::{Fp8, Q4_0, Q8_0};
    let step = |seqs, heads, head_dim| Case { seqs, heads, head_dim, ..CASE };
    for formats in [[Q8_0, Q8_0], [Fp8, Fp8], [Q4_0, Q4_0], [Q8_0, Q4_0]] {
        for seed in simt::seeds().take(2) {
            check_quantised(step(&[(1, 70), (1, 5), (1, 130)], [4, 2], 64), formats, seed);
        }
        for (num_heads, head_dim) in [(1, 32), (12, 64), (7, 96), (2, 128), (9, 128), (1, 256)] {
            check_quantised(step(&[(1, 65)], [num_heads, 1], head_dim), formats, 1);
        }
        for window in [1, 5, 64, 100] {
            let step = step(&[(1, 130), (1, 64)], [2, 1], 64);
            check_quantised(Case { window: Some(window), ..step }, formats, 3);
        }
    }
    check_quantised(step(&[(1, 20)], [2, 2], 80), [Fp8, Fp8], 2);
    let with_sinks = Case { sinks: SINKS, ..step(&[(1, 130), (1, 5)], [8, 2], 64) };
    check_quantised(with_sinks, [Q8_0, Q8_0], 3);
    for formats in [[Q8_0, Q8_0], [Fp8, Fp8], [Q4_0, Q4_0]] {
        let step = step(&[(1, 130), (1, 5)], [3, 1], 64);
        check_quantised(Case { softcap: SOFTCAP, ..step }, formats, 3);
    }
}

/// What a step's scores are before and after the softmax: in three kernels.
#[test]
fn materialized_attention_matches_oracle() {
    use kernels::attention::materialized::{MaterializedAttention, TokenInputs};
    fn check<E: HostElement>(case: Case, seed: u64) {
        let (mut device, values, pages) = (Device::default(), case.values::<E>(), case.pages());
        let Step { seqs, operands, attention } = case.step::<E>(&mut device, &values, 1);
        let (tokens, max_tokens) = (case.tokens(), case.tokens() + 1);
        let of_seq = |(seq, &(q_len, _)): (usize, &(usize, usize))| vec![seq as u32; q_len];
        let seq_ids: Vec<u32> = case.seqs.iter().enumerate().flat_map(of_seq).collect();
        let inputs = TokenInputs {
            num_tokens: device.u32s("num_tokens", &[tokens as u32]),
            seq_ids: device.u32s("positions", &seq_ids),
            cu_seqlens_q: seqs.cu_seqlens_q,
            kv_lens: seqs.kv_lens,
            block_table: seqs.block_table,
        };
        let materialized = MaterializedAttention {
            max_tokens,
            max_pages_per_seq: pages.max_pages,
            num_heads: attention.num_heads,
            num_kv_heads: attention.num_kv_heads,
            head_dim: case.head_dim,
            softmax_scale: attention.softmax_scale,
            softcap: attention.softcap,
            causal: case.causal,
            window: case.window,
        };
        let elems = max_tokens * case.heads[0] * pages.max_pages * PAGE;
        let scores = device.poisoned("scores", elems);
        let probabilities = device.poisoned::<E>("probabilities", elems);
        let AttentionOperands { q, k_pool, v_pool, out, sinks } = operands;
        device.run(materialized.scores(&inputs, q, k_pool, scores), seed);
        device.run(materialized.softmax(&inputs, scores, probabilities, sinks), seed);
        device.run(materialized.values(&inputs, probabilities, v_pool, out), seed);
        let want = case.oracle(&values, rounding::<E>()).out;
        case.assert_attends::<E>("materialized", &case.read(&device, out), want);
    }
    for seed in simt::seeds().take(2) {
        let step = Case { seqs: &[(3, 3), (1, 130), (9, 70)], heads: [4, 2], head_dim: 24, ..CASE };
        check::<f32>(step, seed);
        check::<f16>(Case { window: Some(33), ..step }, seed);
        check::<f32>(Case { sinks: SINKS, window: Some(9), ..step }, seed);
        check::<bf16>(Case { causal: false, head_dim: 80, ..step }, seed);
        check::<f32>(Case { head_dim: 7, heads: [3, 1], ..step }, seed);
        check::<f32>(Case { softcap: SOFTCAP, sinks: SINKS, ..step }, seed);
        check::<f16>(Case { head_dim: 256, heads: [1, 1], ..step }, seed);
    }
}
