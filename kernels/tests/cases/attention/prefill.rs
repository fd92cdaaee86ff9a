//! Prefill in the operands' type: by `mma.sync`, on Hopper's tensor cores, and with the keys of a
//! tile split over a cluster.

use super::{CASE, Case, HEAD_DIMS, PAGE, SCALE, SINKS, SOFTCAP, Step, rounding, words};
use crate::harness::*;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::sm90::{NUM_COUNTERS, Params, TileConfig};
use kernels::attention::work::{Part, PrefillItem};
use kernels::attention::{Attention, AttentionOperands, AttentionWorkspace, SeqInputs};
use kernels::element::Dtype;
use kernels::gemm::{Gpu, Target};

/// Compares the outputs of the kernel of every GPU with the oracle, and returns them.
#[track_caller]
fn check<E: HostElement>(case: Case, seed: u64) -> Vec<f32> {
    let values = case.values::<E>();
    let got = run::<E>(case, &values.q, seed);
    case.assert_attends::<E>("prefill", &got, case.oracle(&values, rounding::<E>()).out);
    got
}

/// The outputs of these queries.
fn run<E: HostElement>(case: Case, q: &[f32], seed: u64) -> Vec<f32> {
    let mut device = Device::default();
    let values = super::Values { q: q.to_vec(), ..case.values::<E>() };
    let Step { attention, seqs, operands } = case.step::<E>(&mut device, &values, 0);
    let (workspace, maps) = (AttentionWorkspace::NONE, &mut tensor_map);
    device.run_smoothly(attention.prefill(SM_80, &seqs, &operands, &workspace, maps), seed);
    case.read(&device, operands.out)
}

#[test]
fn prefill_matches_oracle() {
    let seqs: &[_] = &[(3, 3), (1, 70), (65, 67)];
    let step = Case { seqs, heads: [4, 2], head_dim: 24, ..CASE };
    // Less than a tile of queries, a tile and more; keys up to the end of a page, and beyond.
    let full: &[_] = &[(3, 3), (2, 128), (70, 70), (131, 200)];
    let full = Case { seqs: full, head_dim: 16, causal: false, ..CASE };
    for seed in simt::seeds() {
        check::<f32>(Case { head_dim: 20, ..step }, seed);
        check::<f32>(Case { head_dim: 7, window: Some(33), ..step }, seed);
        check::<f16>(step, seed);
        check::<bf16>(Case { head_dim: 8, window: Some(33), ..step }, seed);
        check::<f32>(full, seed);
        check::<f16>(full, seed);
        for window in [1, 5, 33, 65, 129, 200] {
            check::<f32>(Case { window: Some(window), ..full }, seed);
            check::<f16>(Case { window: Some(window), head_dim: 32, ..full }, seed);
        }
        check::<bf16>(Case { head_dim: 72, ..full }, seed);
        check::<f32>(Case { head_dim: 20, sinks: SINKS, ..step }, seed);
        check::<f16>(Case { window: Some(33), sinks: SINKS, ..step }, seed);
        check::<f32>(Case { head_dim: 20, softcap: SOFTCAP, sinks: SINKS, ..step }, seed);
        check::<bf16>(Case { window: Some(33), softcap: SOFTCAP, ..step }, seed);
    }
    // The first query sees all of a block of keys, or all but its last.
    for seqs in [&[(65, 128)], &[(66, 128)]] {
        check::<f16>(Case { seqs, ..step }, 0);
        check::<f32>(Case { seqs, ..step }, 0);
    }
    // Tiles of 128 queries and 64 keys, one less, one more, and keys that came before.
    for seqs in [&[(63, 64), (64, 130)], &[(127, 127), (128, 192)], &[(129, 129), (130, 260)]] {
        check::<f16>(Case { seqs, ..step }, 0);
        check::<f16>(Case { seqs, head_dim: 72, window: Some(65), ..step }, 0);
    }
    check::<f16>(Case { window: Some(1), ..step }, 0);
    for head_dim in HEAD_DIMS {
        check::<f32>(Case { seqs: &[(5, 37)], head_dim, ..CASE }, head_dim as u64);
        let step = Case { seqs: &[(17, 81)], heads: [7, 1], head_dim, ..CASE };
        check::<f16>(step, head_dim as u64);
        check::<bf16>(step, head_dim as u64);
    }
    // Two warps share rows: tiles of 32 queries, one less, one more, and of 32 keys.
    for seqs in [&[(17, 81)], &[(31, 33)], &[(33, 65)], &[(64, 64)]] {
        let step = Case { seqs, heads: [4, 2], head_dim: 512, ..CASE };
        check::<f16>(step, 1);
        check::<bf16>(Case { head_dim: 264, window: Some(33), ..step }, 2);
    }
    // The order of what is concurrent changes no bit.
    let step = Case { seqs: &[(1, 150), (1, 65)], heads: [7, 1], ..CASE };
    assert_eq!(bits(&check::<f16>(step, 1)), bits(&check::<f16>(step, 2)));
}

/// Other tiles, and other keys that are masked or skipped, give a query the same bits.
#[test]
fn prefill_does_not_depend_on_how_a_prompt_is_cut() {
    fn last_rows<E: HostElement>(
        seqs: &'static [(usize, usize)],
        window: Option<usize>,
    ) -> Vec<u32> {
        let case = Case { seqs, heads: [1, 1], window, ..CASE };
        // The queries are numbered from the sequence's end.
        let q = random_of::<E>(200 * 64, 7);
        let out = run::<E>(case, &q[(200 - case.tokens()) * 64..], 3);
        bits(&out[out.len() - 57 * 64..])
    }
    for window in [None, Some(40)] {
        for last_rows in [last_rows::<f32>, last_rows::<f16>] {
            let whole = last_rows(&[(200, 200)], window);
            assert_eq!(last_rows(&[(57, 200)], window), whole);
            assert_eq!(last_rows(&[(131, 200)], window), whole);
        }
    }
}

/// The work items of a tile in parts of `part_blocks` blocks of keys, the first parts of all first;
/// and the slots of their partial results. 0 blocks: whole items.
fn parts(case: &Case, tile: &TileConfig, part_blocks: usize) -> (Vec<PrefillItem>, usize) {
    let items = case.items(tile.block_m);
    if part_blocks == 0 || !tile.splits_keys {
        return (items, 0);
    }
    let (mut parts, mut num_slots) = (Vec::new(), 0);
    let part_keys = (part_blocks * tile.block_n) as u32;
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

/// Checks every tile for the heads' width under all seeds.
#[track_caller]
fn check_sm90<E: HostElement>(case: Case, part_blocks: usize) {
    let num_tiles = if case.head_dim <= 64 { 2 } else { 1 };
    let (values, pages, width) = (case.values::<E>(), case.pages(), case.width());
    let want = case.oracle(&values, rounding::<E>());
    for tile in TileConfig::for_head_dim(case.head_dim).take(num_tiles) {
        let (items, num_slots) = parts(&case, tile, part_blocks);
        for seed in simt::seeds() {
            let mut device = Device::default();
            // Rows past the last token are not written.
            let max_tokens = case.tokens() + 5;
            let out = device.out::<E>("out", (width, case.tokens() + 1));
            let lse = device.poisoned::<f32>("lse", want.lse.len());
            let zeros = vec![0; NUM_COUNTERS + num_slots * tile.counters_per_slot()];
            let counters = device.u32s("counters", &zeros);
            let [k_pool, v_pool] =
                [0, 1].map(|of| device.numbers::<E>(["k_pool", "v_pool"][of], &values.pools[of]).0);
            let q = device.partly_written::<E>("q", &values.q, max_tokens * width);
            let params = Params {
                dtype: E::DTYPE,
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
                softmax_scale: case.softcap.unwrap_or(SCALE),
                softcap: case.softcap.map_or(0.0, |cap| SCALE / cap),
                window: case.mask_window(),
                q: rows_at(q.0, width),
                pools: [DevicePtr::new(k_pool), DevicePtr::new(v_pool)],
                out: rows_at(out.ptr.0, width),
                lse,
                sinks: case.sinks(&mut device),
                partials: device.poisoned("partials", num_slots * tile.partials_per_slot()),
            };
            device.run(tile.launch(3, &params, &mut tensor_map), seed);
            let got = case.read(&device, out);
            case.assert_attends::<E>(&format!("sm90, seed {seed}"), &got, want.out.clone());
            assert_right("lse", &device.read(lse, want.lse.len()), &want.lse);
            assert_eq!(device.read_u32(counters, zeros.len()), zeros);
        }
    }
}

#[test]
fn sm90_prefill_matches_oracle() {
    for seqs in [&[(1, 1)][..], &[(1, 64)], &[(2, 65), (5, 70)], &[(63, 63), (1, 130)]] {
        check_sm90::<f16>(Case { seqs, ..CASE }, 0);
    }
    for seqs in [&[(193, 193)][..], &[(20, 300)], &[(192, 256)], &[(7, 513), (65, 129)]] {
        check_sm90::<f16>(Case { seqs, ..CASE }, 0);
        check_sm90::<bf16>(Case { seqs, heads: [1, 1], ..CASE }, 0);
    }
    check_sm90::<f16>(Case { seqs: &[(67, 67)], heads: [7, 1], ..CASE }, 0);
    check_sm90::<f16>(Case { seqs: &[(10, 67)], heads: [8, 2], head_dim: 128, ..CASE }, 0);
    check_sm90::<f16>(Case { seqs: &[(30, 200)], magnitude: 6e4, ..CASE }, 0);
}

#[test]
fn sm90_prefill_of_every_width_matches_oracle() {
    for head_dim in [8, 80, 96, 128, 200, 256] {
        let seqs = &[(130, 200), (3, 257)];
        check_sm90::<f16>(Case { seqs, head_dim, heads: [1, 1], ..CASE }, 0);
    }
}

#[test]
fn sm90_prefill_with_other_masks_matches_oracle() {
    for head_dim in [64, 128] {
        let seqs = &[(70, 200), (3, 3)];
        check_sm90::<f16>(Case { seqs, head_dim, causal: false, ..CASE }, 0);
    }
    for window in [1, 65, 129, 200] {
        let seqs = &[(150, 290), (9, 9), (257, 257)];
        let both = Case { seqs, causal: false, window: Some(window), ..CASE };
        check_sm90::<f16>(both, 0);
        check_sm90::<bf16>(Case { head_dim: 32, ..both }, 0);
    }
    for window in [1, 5, 64, 100, 200] {
        check_sm90::<f16>(Case { seqs: &[(150, 290), (9, 9)], window: Some(window), ..CASE }, 0);
    }
}

#[test]
fn sm90_prefill_with_sinks_matches_oracle() {
    let step = Case { seqs: &[(70, 200), (3, 3)], heads: [4, 2], sinks: SINKS, ..CASE };
    check_sm90::<f16>(step, 0);
    check_sm90::<bf16>(Case { head_dim: 128, window: Some(33), ..step }, 0);
    check_sm90::<f16>(Case { seqs: &[(20, 300)], ..step }, 1);
}

#[test]
fn sm90_prefill_with_a_cap_matches_oracle() {
    let step = Case { seqs: &[(70, 200), (3, 3)], softcap: SOFTCAP, ..CASE };
    check_sm90::<f16>(step, 0);
    check_sm90::<bf16>(Case { head_dim: 256, window: Some(33), sinks: SINKS, ..step }, 0);
    check_sm90::<f16>(Case { seqs: &[(20, 300)], ..step }, 1);
}

/// Some rows see no key of some parts.
#[test]
fn sm90_prefill_of_keys_in_parts_matches_oracle() {
    for seqs in [&[(20, 300)][..], &[(150, 520)], &[(7, 513), (65, 129)]] {
        check_sm90::<f16>(Case { seqs, ..CASE }, 1);
    }
    check_sm90::<bf16>(Case { seqs: &[(129, 700)], heads: [1, 1], ..CASE }, 2);
    check_sm90::<f16>(Case { seqs: &[(150, 450)], window: Some(100), ..CASE }, 1);
    check_sm90::<f16>(Case { seqs: &[(3, 400)], causal: false, ..CASE }, 1);
    for head_dim in [80, 128, 256] {
        check_sm90::<f16>(Case { seqs: &[(30, 300)], head_dim, heads: [1, 1], ..CASE }, 1);
    }
}

/// Rows of the output that nothing may write, of a prefill by clusters.
pub const ROWS_AFTER: usize = 64;

/// A case of one head by clusters.
pub const CLUSTER: Case = Case { seqs: &[(64, 64)], heads: [1, 1], ..CASE };

/// The problem and the step inputs of a prefill of `items` by clusters.
pub fn cluster_inputs(
    case: &Case,
    device: &mut Device,
    items: &[PrefillItem],
) -> (Attention, SeqInputs) {
    let max_q_len = case.tokens() + 1;
    let attention = Attention { max_q_len, ..case.attention(0) };
    let max_items = attention.max_prefill_items(Gpu::HOPPER, Dtype::F16);
    assert!(max_items > items.len());
    let words = words(items);
    let prefill_items = device.poisoned("work list", max_items * 8);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    device.write(prefill_items, &bytes);
    let none = DevicePtr::null();
    let seqs = SeqInputs {
        num_seqs: none,
        cu_seqlens_q: none,
        kv_lens: none,
        block_table: device.u32s("block_table", &case.pages().table),
        num_prefill_items: device.u32s("work list", &[items.len() as u32]),
        prefill_items,
        num_decode_items: none,
        decode_items: none,
    };
    (attention, seqs)
}

/// The output of items by clusters.
fn run_cluster<E: HostElement>(case: &Case, items: &[PrefillItem], seed: u64) -> Vec<f32> {
    let (mut device, values) = (Device::default(), case.values::<E>());
    let (attention, seqs) = cluster_inputs(case, &mut device, items);
    let (width, rows) = (case.width(), [case.tokens(), case.tokens() + ROWS_AFTER]);
    let operands = AttentionOperands::<E> {
        q: Rows::new(device.numbers("q", &values.q), width),
        k_pool: device.numbers("k_pool", &values.pools[0]),
        v_pool: device.numbers("v_pool", &values.pools[1]),
        out: device.out("out", (width, rows[1])),
        sinks: DevicePtr::null(),
    };
    let no_map = &mut |_: &_| panic!("the kernel has no tensor map");
    let launch =
        attention.prefill(Gpu::HOPPER, &seqs, &operands, &AttentionWorkspace::NONE, no_map);
    let symbol = device.run_smoothly(launch, seed);
    assert!(symbol.starts_with("attention_prefill_cluster_"), "{symbol}");
    device.read_rows(operands.out, rows, width)
}

/// Probabilities are rounded, so is the part of the output that a block sends, and the output.
#[track_caller]
fn check_cluster<E: HostElement>(case: Case, seed: u64) -> Vec<f32> {
    let want = case.oracle(&case.values::<E>(), 2.0 * E::ROUNDING);
    let got = run_cluster::<E>(&case, &case.items(64), seed);
    case.assert_attends::<E>(&format!("cluster, seed {seed}"), &got, want.out);
    got
}

/// Around a page, half a chunk, a chunk, and one chunk of each block.
pub const KV_LENS: [&[(usize, usize)]; 13] = [
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

#[test]
fn cluster_prefill_matches_oracle() {
    for (seed, (seqs, causal)) in
        (0..).zip(KV_LENS.into_iter().flat_map(|seqs| [(seqs, true), (seqs, false)]))
    {
        check_cluster::<f16>(Case { seqs, causal, ..CLUSTER }, seed);
        check_cluster::<bf16>(Case { seqs, causal, ..CLUSTER }, seed);
    }
    for (seed, seqs) in
        (0..).zip([&[(1, 200)], &[(7, 65)], &[(63, 63)], &[(65, 66)], &[(130, 300)]])
    {
        check_cluster::<f16>(Case { seqs, ..CLUSTER }, seed);
        check_cluster::<f16>(Case { seqs, causal: false, ..CLUSTER }, seed);
    }
    for window in [1, 33, 64, 65, 300] {
        for seqs in [&[(64, 700)], &[(70, 70)]] {
            check_cluster::<f16>(Case { seqs, window: Some(window), ..CLUSTER }, 3);
            let both = Case { causal: false, window: Some(window), ..CLUSTER };
            check_cluster::<f16>(Case { seqs, ..both }, 3);
        }
    }
    for seed in simt::seeds() {
        let case = Case { seqs: &[(3, 3), (0, 64), (65, 67), (1, 130)], heads: [4, 2], ..CLUSTER };
        check_cluster::<f16>(case, seed);
        check_cluster::<bf16>(Case { window: Some(33), heads: [4, 1], ..case }, seed);
    }
    check_cluster::<f16>(Case { seqs: &[(16, 90)], heads: [7, 1], ..CLUSTER }, 1);
    // The lanes of a warp have the first sequence's first 32 pages.
    check_cluster::<f16>(Case { seqs: &[(2, 2200), (3, 100)], ..CLUSTER }, 1);
    for (seqs, causal) in [(&[(64, 512)], true), (&[(64, 600)], false)] {
        let case = Case { seqs, causal, magnitude: 2304.0, ..CLUSTER };
        check_cluster::<f16>(case, 1);
        check_cluster::<bf16>(case, 2);
    }
    let case = Case { seqs: &[(70, 600)], heads: [2, 2], ..CLUSTER };
    assert_eq!(bits(&check_cluster::<f16>(case, 1)), bits(&check_cluster::<f16>(case, 2)));
    assert!(run_cluster::<f16>(&CLUSTER, &[], 1).iter().all(|value| value.is_nan()));
}

#[test]
fn rows_without_a_visible_key_are_zeros() {
    let case = Case { seqs: &[(64, 600)], window: Some(10), ..CLUSTER };
    // Rows see the ten keys before their position, of which there are only those before key 200:
    // the first three rows see some.
    let item =
        PrefillItem { first_position: 206, first_key: 64, end_key: 200, ..case.items(64)[0] };
    let got = run_cluster::<f16>(&case, &[item], 1);
    for (row, values) in got.chunks(case.head_dim).enumerate() {
        let is_zero = values.iter().all(|value| *value == 0.0);
        assert_eq!(is_zero, row >= 3, "row {row}");
        assert!(values.iter().all(|value| value.is_finite()), "row {row}");
    }
}

/// One prompt of 512 tokens, 8 heads of 64: 128 blocks.
#[test]
fn few_tiles_are_split() {
    let mission = Attention {
        max_tokens: 512,
        max_seqs: 1,
        max_q_len: 512,
        max_kv_len: 512,
        max_pages_per_seq: 512 / PAGE,
        num_pages: 512 / PAGE,
        num_heads: 8,
        num_kv_heads: 8,
        ..CASE.attention(0)
    };
    let splits = |attention: Attention| attention.splits_prefill(Gpu::HOPPER, Dtype::F16);
    assert!(splits(mission));
    assert!(splits(Attention { max_kv_len: 4096, causal: false, ..mission }));
    assert!(!splits(Attention { num_heads: 9, ..mission }));
    assert!(!splits(Attention { max_tokens: 576, ..mission }));
    assert!(!splits(Attention { max_seqs: 3, ..mission }));
    assert!(!splits(Attention { head_dim: 128, ..mission }));
    assert!(!splits(Attention { softmax_scale: -1.0, ..mission }));
    assert!(!splits(Attention { batch_invariant: true, ..mission }));
    assert!(!splits(Attention { has_sinks: true, ..mission }));
    assert!(!splits(Attention { softcap: Some(50.0), ..mission }));
    assert!(!mission.splits_prefill(Gpu::HOPPER, Dtype::F32));
    assert!(!mission.splits_prefill(Gpu { target: Target::Sm80, ..Gpu::HOPPER }, Dtype::F16));
}
