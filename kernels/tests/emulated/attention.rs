//! Attention, prefill and decode.

use crate::device::{Device, SEEDS, Stored, assert_stored, random, random_of};
use cuda_std::launch::DevicePtr;
use cuda_std::tensor_map::TensorMapSpec;
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::work::DecodeItem;
use kernels::attention::{
    Append, Attention, AttentionOperands, AttentionWorkspace, ItemWords, SeqInputs, SeqLens,
};
use kernels::gemm::{Gpu, Target};
use kernels::kv_cache::PAGE_SIZE;
use kernels::rope_append::{RopeAppend, RopeAppendOperands};

const PAGE: usize = PAGE_SIZE as usize;

/// A Hopper GPU with the kernels of every GPU.
const SM_80: Gpu = Gpu { target: Target::Sm80, ..Gpu::HOPPER };

/// A step: for each sequence its new tokens, and its positions with them.
struct Step {
    seqs: &'static [(usize, usize)],
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    causal: bool,
}

/// A step's inputs, on the host and on the device.
struct Inputs<E> {
    device: Device,
    attention: Attention,
    q: Vec<f32>,
    k_pool: Vec<f32>,
    v_pool: Vec<f32>,
    max_pages: usize,
    block_table: Vec<u32>,
    seqs: SeqInputs,
    operands: AttentionOperands<E>,
}

impl Step {
    fn tokens(&self) -> usize {
        self.seqs.iter().map(|(q_len, _)| q_len).sum()
    }

    /// Inputs that the step alone decides, where sequences with so many new tokens decode.
    fn inputs<E: Stored>(&self, max_decode_q_len: usize) -> Inputs<E> {
        let &Step { seqs, num_heads, num_kv_heads, head_dim, window, causal } = self;
        let max_kv_len = seqs.iter().map(|(_, kv_len)| *kv_len).max().unwrap_or(0);
        let max_pages = max_kv_len.div_ceil(PAGE);
        let num_pages = seqs.len() * max_pages;
        // Pages lie in descending order.
        let block_table: Vec<u32> = (0..num_pages as u32).rev().collect();
        let page_elems = num_kv_heads * PAGE * head_dim;
        let width = num_heads * head_dim;
        let q = random_of::<E>(self.tokens() * width, 1);
        // Positions that no sequence has are NaN.
        let pool = |salt| {
            let mut pool = random_of::<E>(num_pages * page_elems, salt);
            for (seq, (_, kv_len)) in seqs.iter().enumerate() {
                for position in *kv_len..max_pages * PAGE {
                    let page = block_table[seq * max_pages + position / PAGE] as usize;
                    for head in 0..num_kv_heads {
                        let row = (page * num_kv_heads + head) * PAGE + position % PAGE;
                        pool[row * head_dim..(row + 1) * head_dim].fill(f32::NAN);
                    }
                }
            }
            pool
        };
        let (k_pool, v_pool) = (pool(2), pool(3));
        let mut cu_seqlens_q = vec![0];
        for (q_len, _) in seqs {
            cu_seqlens_q.push(cu_seqlens_q[cu_seqlens_q.len() - 1] + *q_len as u32);
        }
        let mut kv_lens: Vec<u32> = seqs.iter().map(|(_, kv_len)| *kv_len as u32).collect();
        // There is room for one sequence more than there are.
        cu_seqlens_q.push(u32::MAX);
        kv_lens.push(u32::MAX);
        let attention = Attention {
            max_tokens: self.tokens() + 1,
            max_seqs: seqs.len() + 1,
            max_q_len: seqs.iter().map(|(q_len, _)| *q_len).max().unwrap_or(0),
            max_decode_q_len,
            max_kv_len,
            max_pages_per_seq: max_pages,
            num_pages,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: 0.3,
            causal,
            window,
            batch_invariant: false,
        };
        let lens: Vec<_> = seqs
            .iter()
            .map(|&(q_len, kv_len)| SeqLens { q_len: q_len as u32, kv_len: kv_len as u32 })
            .collect();
        let prefill_items = attention.prefill_items(SM_80, E::DTYPE, &lens);
        let decode_items = attention.decode_items(SM_80, E::DTYPE, &lens);
        let mut device = Device::default();
        let counts = [prefill_items.len() as u32, decode_items.len() as u32, 0, 0];
        let mut list = counts.to_vec();
        list.extend(prefill_items.as_flattened());
        list.extend(decode_items.as_flattened());
        // Room for the most items.
        let max_items = attention.max_decode_items(SM_80, E::DTYPE);
        list.resize(list.len() + 8 * (max_items + 1 - decode_items.len()), 0);
        let list = device.u32s("work list", &list);
        let inputs = SeqInputs {
            num_seqs: device.u32s("num_seqs", &[seqs.len() as u32]),
            cu_seqlens_q: device.u32s("cu_seqlens_q", &cu_seqlens_q),
            kv_lens: device.u32s("kv_lens", &kv_lens),
            block_table: device.u32s("block_table", &block_table),
            num_prefill_items: list,
            prefill_items: list.add(counts.len()),
            num_decode_items: list.add(1),
            decode_items: list.add(counts.len() + prefill_items.as_flattened().len()),
        };
        let operands = AttentionOperands {
            q: Rows::new(device.numbers("q", &q), width),
            k_pool: device.numbers("k_pool", &k_pool),
            v_pool: device.numbers("v_pool", &v_pool),
            out: Rows::new(device.poisoned("out", self.tokens() * width), width),
        };
        Inputs {
            device,
            attention,
            q,
            k_pool,
            v_pool,
            max_pages,
            block_table,
            seqs: inputs,
            operands,
        }
    }

    /// Softmax of the scaled scores of the positions that each token sees, times their values.
    fn oracle<E>(&self, inputs: &Inputs<E>) -> Vec<f64> {
        let &Step { num_heads, num_kv_heads, head_dim, window, causal, .. } = self;
        let mut out = Vec::new();
        for (seq, &(q_len, kv_len)) in self.seqs.iter().enumerate() {
            for position in kv_len - q_len..kv_len {
                for head in 0..num_heads {
                    let q = &inputs.q[out.len()..out.len() + head_dim];
                    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
                    let row = |pool: &[f32], key: usize| -> Vec<f64> {
                        let page = inputs.block_table[seq * inputs.max_pages + key / PAGE] as usize;
                        let head = page * num_kv_heads + head / (num_heads / num_kv_heads);
                        let row = (head * PAGE + key % PAGE) * head_dim;
                        pool[row..row + head_dim].iter().map(|&x| f64::from(x)).collect()
                    };
                    let score = |key| -> f64 {
                        let k = row(&inputs.k_pool, key);
                        0.3 * q.iter().zip(k).map(|(&q, k)| f64::from(q) * k).sum::<f64>()
                    };
                    let end = if causal { position + 1 } else { kv_len };
                    let weights: Vec<_> = (first..end).map(|key| score(key).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    let mut sums = vec![0.0; head_dim];
                    for (key, weight) in (first..).zip(weights) {
                        let v = row(&inputs.v_pool, key);
                        sums.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight / total * v);
                    }
                    out.extend(sums);
                }
            }
        }
        out
    }
}

/// The products and sums are f32's; in 16 bits each probability is rounded, and so is the output.
fn assert_attends<E: Stored>(case: &str, got: &[f32], want: &[f64]) {
    assert_stored::<E>(case, got, want, 1e-5 + E::ROUNDING);
}

fn check_prefill<E: Stored>(step: &Step, seed: u64) -> Vec<f32> {
    let mut inputs = step.inputs::<E>(0);
    let want = step.oracle(&inputs);
    let maps = &mut |spec: &TensorMapSpec| spec.emulated();
    let (workspace, operands) = (AttentionWorkspace::NONE, &inputs.operands);
    let launch = inputs.attention.prefill(SM_80, &inputs.seqs, operands, &workspace, maps);
    let report = inputs.device.run(launch, seed);
    let case = format!("prefill, head_dim {}", step.head_dim);
    assert_eq!(report.bank_conflicts, 0, "{case}");
    let got = inputs.device.read(inputs.operands.out.ptr, want.len());
    assert_attends::<E>(&case, &got, &want);
    got
}

fn check_decode<E: Stored>(step: &Step, seed: u64) -> Vec<f32> {
    decode::<E>(step, seed, 1, None, u32::MAX)
}

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

/// Decoding of sequences with up to `max_q_len` new tokens, in splits of `split_pages` or the
/// launcher's, by at most `max_blocks`.
fn decode<E: Stored>(
    step: &Step,
    seed: u64,
    max_q_len: usize,
    split_pages: Option<u32>,
    max_blocks: u32,
) -> Vec<f32> {
    let mut inputs = step.inputs::<E>(max_q_len);
    let want = step.oracle(&inputs);
    let mut seqs = inputs.seqs;
    let [mut num_items] = inputs.device.read_u32(seqs.num_decode_items, 1)[..] else {
        unreachable!("one element")
    };
    let mut attention = inputs.attention;
    if let Some(split_pages) = split_pages {
        let words = inputs.device.read_u32(seqs.decode_items, 8 * num_items as usize);
        let (items, _) = words.as_chunks::<8>();
        let mut items = split_items(&whole_items(items), split_pages);
        num_items = items.len() as u32;
        items.push([0; 8]);
        seqs.num_decode_items = inputs.device.u32s("work list", &[num_items]);
        seqs.decode_items = inputs.device.u32s("work list", items.as_flattened());
        // Room for them: rows of the block table for sequences that the launcher splits as well.
        (attention.max_kv_len, attention.max_pages_per_seq) = (1 << 18, 1 << 12);
        let mut table = Vec::new();
        for pages in inputs.block_table.chunks(inputs.max_pages) {
            table.extend(pages);
            table.resize(table.len().next_multiple_of(1 << 12), 0);
        }
        seqs.block_table = inputs.device.u32s("block_table", &table);
    }
    let counters = vec![0; attention.num_counters(E::DTYPE)];
    let workspace = AttentionWorkspace {
        partials: inputs.device.poisoned("partials", attention.num_partials(E::DTYPE)),
        counters: inputs.device.u32s("counters", &counters),
    };
    let launch = attention.decode(SM_80, &seqs, &inputs.operands, None, &workspace);
    let mut launch = launch.expect("a right shape").expect("something to do");
    // One block has nothing to do.
    launch.geometry.grid[0] = max_blocks.min(num_items + 1);
    inputs.device.run(Ok(Some(launch)), seed);
    assert_eq!(inputs.device.read_u32(workspace.counters, counters.len()), counters);
    let got = inputs.device.read(inputs.operands.out.ptr, want.len());
    let case = format!("decode {:?}, head_dim {}", step.seqs, step.head_dim);
    assert_attends::<E>(&case, &got, &want);
    got
}

const HEAD_DIMS: [usize; 4] = [64, 96, 128, 256];

#[test]
fn prefill_matches_oracle() {
    let seqs: &[_] = &[(3, 3), (1, 70), (65, 67)];
    for seed in SEEDS {
        let step =
            Step { seqs, num_heads: 4, num_kv_heads: 2, head_dim: 20, window: None, causal: true };
        check_prefill::<f32>(&step, seed);
        check_prefill::<f32>(&Step { head_dim: 7, window: Some(33), ..step }, seed);
    }
    for head_dim in HEAD_DIMS {
        let seqs = &[(5, 37)];
        let step =
            Step { seqs, num_heads: 2, num_kv_heads: 1, head_dim, window: None, causal: true };
        check_prefill::<f32>(&step, head_dim as u64);
    }
}

#[test]
fn prefill_without_a_causal_mask_matches_oracle() {
    // Less than a tile of queries, a tile and more; keys up to the end of a page, and beyond.
    let seqs: &[_] = &[(3, 3), (2, 128), (70, 70), (131, 200)];
    let step =
        Step { seqs, num_heads: 2, num_kv_heads: 1, head_dim: 16, window: None, causal: false };
    for seed in SEEDS {
        check_prefill::<f32>(&step, seed);
        check_prefill::<f16>(&step, seed);
        check_prefill::<bf16>(&Step { head_dim: 72, ..step }, seed);
    }
}

#[test]
fn prefill_in_16_bits_matches_oracle() {
    let seqs: &[_] = &[(3, 3), (1, 70), (65, 67)];
    let step =
        Step { seqs, num_heads: 4, num_kv_heads: 2, head_dim: 24, window: None, causal: true };
    for seed in SEEDS {
        check_prefill::<f16>(&step, seed);
        check_prefill::<bf16>(&Step { head_dim: 8, window: Some(33), ..step }, seed);
    }
    // The first query sees all of a block of keys, or all but its last.
    for seqs in [&[(65, 128)], &[(66, 128)]] {
        check_prefill::<f16>(&Step { seqs, ..step }, 0);
        check_prefill::<f32>(&Step { seqs, ..step }, 0);
    }
    // Tiles of 128 queries and 64 keys, one less, one more, and keys that came before.
    for seqs in [&[(63, 64), (64, 130)], &[(127, 127), (128, 192)], &[(129, 129), (130, 260)]] {
        check_prefill::<f16>(&Step { seqs, ..step }, 0);
        check_prefill::<f16>(&Step { seqs, head_dim: 72, window: Some(65), ..step }, 0);
    }
    check_prefill::<f16>(&Step { window: Some(1), ..step }, 0);
    for head_dim in HEAD_DIMS {
        let seqs = &[(17, 81)];
        let step =
            Step { seqs, num_heads: 7, num_kv_heads: 1, head_dim, window: None, causal: true };
        check_prefill::<f16>(&step, head_dim as u64);
        check_prefill::<bf16>(&step, head_dim as u64);
    }
}

#[test]
fn decode_matches_oracle() {
    for seed in SEEDS {
        let seqs: &[_] = &[(1, 1), (0, 64), (1, 300)];
        let step =
            Step { seqs, num_heads: 6, num_kv_heads: 2, head_dim: 20, window: None, causal: true };
        check_decode::<f32>(&step, seed);
        check_decode::<f32>(&Step { head_dim: 7, window: Some(33), ..step }, seed);
    }
    // Every instance: 4, 8 and 16 rows of heads.
    for (num_heads, head_dim) in [3, 7, 16].into_iter().flat_map(|h| HEAD_DIMS.map(|d| (h, d))) {
        let seqs = &[(1, 35)];
        check_decode::<f32>(
            &Step { seqs, num_heads, num_kv_heads: 1, head_dim, window: None, causal: true },
            1,
        );
    }
}

#[test]
fn decode_has_splits_of_many_tiles() {
    let seqs = &[(1, 300), (1, 64)];
    let step =
        Step { seqs, num_heads: 3, num_kv_heads: 1, head_dim: 8, window: None, causal: true };
    for (seed, split_pages) in [(0, 1), (1, 2), (2, 3)] {
        decode::<f16>(&step, seed, 1, Some(split_pages), u32::MAX);
        decode::<f32>(&step, seed, 1, Some(split_pages), u32::MAX);
    }
    // More tiles than slots; more pages than lanes; more splits than are combined at once.
    let long = Step { seqs: &[(1, 2300)], ..step };
    decode::<f16>(&long, 0, 1, None, u32::MAX);
    decode::<f32>(&long, 1, 1, None, u32::MAX);
    decode::<bf16>(&long, 2, 1, Some(1), u32::MAX);
}

/// A model whose sequences the launcher splits: the list, the bounds and the workspace fit.
#[test]
fn decode_splits_long_sequences() {
    let seqs = &[(1, 1100), (1, 70), (1, 1300)];
    let step =
        Step { seqs, num_heads: 4, num_kv_heads: 2, head_dim: 128, window: None, causal: true };
    check_decode::<f16>(&step, 0);
    check_decode::<f32>(&Step { window: Some(500), ..step }, 1);
}

#[test]
fn decode_blocks_take_several_items() {
    let seqs = &[(1, 300), (1, 64), (1, 1), (1, 65)];
    let step =
        Step { seqs, num_heads: 6, num_kv_heads: 2, head_dim: 64, window: None, causal: true };
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let all = bits(decode::<f16>(&step, 0, 1, Some(2), u32::MAX));
    for (seed, max_blocks) in [(1, 1), (2, 3)] {
        assert_eq!(bits(decode::<f16>(&step, seed, 1, Some(2), max_blocks)), all);
    }
    let step = Step { head_dim: 20, ..step };
    decode::<f32>(&step, 0, 1, Some(2), 3);
}

#[test]
fn decode_takes_several_queries_of_a_sequence() {
    for seed in SEEDS {
        // Queries on both sides of a page's end, to some of which the last split shows nothing.
        let seqs: &[_] = &[(2, 65), (16, 130), (3, 300), (1, 1), (5, 5)];
        let step =
            Step { seqs, num_heads: 6, num_kv_heads: 2, head_dim: 24, window: None, causal: true };
        decode::<f16>(&step, seed, 16, Some(1), u32::MAX);
        decode::<f16>(&Step { window: Some(33), ..step }, seed, 16, None, u32::MAX);
        decode::<bf16>(&Step { window: Some(1), num_heads: 14, ..step }, seed, 16, None, 5);
        decode::<bf16>(&Step { causal: false, ..step }, seed, 16, Some(2), u32::MAX);
        decode::<f32>(&step, seed, 16, Some(2), u32::MAX);
    }
}

#[test]
fn decode_in_16_bits_matches_oracle() {
    for seed in SEEDS {
        let seqs: &[_] = &[(1, 1), (0, 64), (1, 300), (1, 64), (1, 129)];
        let step =
            Step { seqs, num_heads: 6, num_kv_heads: 2, head_dim: 24, window: None, causal: true };
        check_decode::<f16>(&step, seed);
        check_decode::<bf16>(&Step { head_dim: 8, window: Some(33), ..step }, seed);
        check_decode::<f16>(&Step { head_dim: 16, window: Some(1), ..step }, seed);
    }
    // A head of its own, a group of 7, and one of two blocks.
    for (num_heads, head_dim) in [1, 7, 19].into_iter().flat_map(|h| HEAD_DIMS.map(|d| (h, d))) {
        let seqs = &[(1, 135)];
        let step = Step { seqs, num_heads, num_kv_heads: 1, head_dim, window: None, causal: true };
        check_decode::<f16>(&step, 1);
        check_decode::<bf16>(&step, 1);
    }
}

/// What decoding leaves behind: its output, and both pools.
type Outcome = (Vec<f32>, [Vec<f32>; 2]);

/// Decoding of tokens whose K and V are still on their way: in one launch, or appended by one
/// before.
fn decode_new<E: Stored>(step: &Step, rotary_dim: usize, fused: bool, seed: u64) -> Outcome {
    let &Step { seqs, num_heads, num_kv_heads, head_dim, .. } = step;
    let mut inputs = step.inputs::<E>(1);
    let (tokens, max_pages) = (step.tokens(), inputs.max_pages);
    let last: Vec<_> = seqs.iter().enumerate().filter(|(_, (q_len, _))| *q_len == 1).collect();
    let positions: Vec<u32> = last.iter().map(|(_, (_, kv_len))| *kv_len as u32 - 1).collect();
    let slots: Vec<u32> = last
        .iter()
        .map(|(seq, (_, kv_len))| {
            let page = inputs.block_table[seq * max_pages + (kv_len - 1) / PAGE];
            page * PAGE_SIZE + (kv_len - 1) as u32 % PAGE_SIZE
        })
        .collect();
    let width = (num_heads + 2 * num_kv_heads) * head_dim;
    let device = &mut inputs.device;
    let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
    let positions = device.u32s("positions", &positions);
    let slot_mapping = device.u32s("slot_mapping", &slots);
    let table = device.f32s("table", &random(inputs.attention.max_kv_len * rotary_dim, 5));
    let qkv: DevicePtr<E> = device.numbers("qkv", &random_of::<E>(tokens * width, 6));
    let rows = |column: usize| Rows::new(qkv.add(column), width);
    let q = rows(0);
    let (k, v) = (rows(num_heads * head_dim), rows((num_heads + num_kv_heads) * head_dim));
    // The pools are the launch's own, if nobody has appended to them.
    let names = if fused { ["own k_pool", "own v_pool"] } else { ["k_pool", "v_pool"] };
    let pools = [(names[0], &inputs.k_pool), (names[1], &inputs.v_pool)];
    let [k_pool, v_pool] = pools.map(|(name, pool)| device.numbers::<E>(name, pool));
    let operands = AttentionOperands { q, k_pool, v_pool, ..inputs.operands };
    let append = Append { positions, slot_mapping, table, rotary_dim, k, v };
    if !fused {
        let max_tokens = tokens + 1;
        let launcher = RopeAppend { max_tokens, num_heads, num_kv_heads, head_dim, rotary_dim };
        let operands =
            RopeAppendOperands { positions, slot_mapping, table, q, k, v, k_pool, v_pool };
        device.run(launcher.launch(num_tokens, &operands), seed);
    }
    let attention = inputs.attention;
    let workspace = AttentionWorkspace {
        partials: device.poisoned("partials", attention.num_partials(E::DTYPE)),
        counters: device.u32s("counters", &vec![0; attention.num_counters(E::DTYPE)]),
    };
    let append = fused.then_some(&append);
    device.run(attention.decode(SM_80, &inputs.seqs, &operands, append, &workspace), seed);
    let out = device.read(inputs.operands.out.ptr, tokens * num_heads * head_dim);
    let pools = [(k_pool, &inputs.k_pool), (v_pool, &inputs.v_pool)];
    (out, pools.map(|(pool, before)| device.read(pool, before.len())))
}

fn assert_appends<E: Stored>(step: &Step, rotary_dim: usize, seed: u64) {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let [fused, apart] = [true, false].map(|fused| decode_new::<E>(step, rotary_dim, fused, seed));
    let case = format!("head_dim {}, rotary_dim {rotary_dim}", step.head_dim);
    assert_eq!(bits(&fused.0), bits(&apart.0), "{case}: out");
    assert!(fused.0.iter().all(|x| x.is_finite()), "{case}: out");
    for (fused, apart) in fused.1.iter().zip(&apart.1) {
        assert_eq!(bits(fused), bits(apart), "{case}: pool");
    }
}

#[test]
fn decode_appends_as_rope_append_does() {
    for seed in SEEDS {
        // First tokens; one that starts a page, and one that ends one; many splits.
        let seqs: &[_] = &[(1, 1), (0, 64), (1, 300), (1, 64), (1, 129)];
        let step =
            Step { seqs, num_heads: 6, num_kv_heads: 2, head_dim: 24, window: None, causal: true };
        assert_appends::<f16>(&step, 24, seed);
        assert_appends::<bf16>(&Step { head_dim: 16, window: Some(33), ..step }, 10, seed);
        assert_appends::<f32>(&Step { head_dim: 7, window: Some(1), ..step }, 4, seed);
    }
    // Widths of every instance; a group of two blocks, of which one appends.
    for (num_heads, head_dim) in [1, 19].into_iter().flat_map(|h| HEAD_DIMS.map(|d| (h, d))) {
        let seqs = &[(1, 70)];
        let step = Step { seqs, num_heads, num_kv_heads: 1, head_dim, window: None, causal: true };
        assert_appends::<f16>(&step, head_dim, 1);
        assert_appends::<f32>(&step, head_dim / 2, 1);
    }
}

#[test]
fn attention_is_deterministic() {
    let seqs = &[(1, 150), (1, 65)];
    let step =
        Step { seqs, num_heads: 7, num_kv_heads: 1, head_dim: 64, window: None, causal: true };
    // The order of what is concurrent is another one.
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for check in [check_prefill::<f16>, check_decode::<f16>] {
        assert_eq!(bits(check(&step, 1)), bits(check(&step, 2)));
    }
}

/// Other tiles, and other keys that are masked or skipped, give a query the same bits.
#[test]
fn prefill_does_not_depend_on_how_a_prompt_is_cut() {
    fn last_rows<E: Stored>(seqs: &'static [(usize, usize)], window: Option<usize>) -> Vec<u32> {
        let step = Step { seqs, num_heads: 1, num_kv_heads: 1, head_dim: 64, window, causal: true };
        let mut inputs = step.inputs::<E>(0);
        // The queries are numbered from the sequence's end.
        let q = random_of::<E>(200 * 64, 7);
        let from_end: Vec<f32> = q[(200 - step.tokens()) * 64..].to_vec();
        inputs.operands.q.ptr = inputs.device.numbers("q of the end", &from_end);
        let maps = &mut |spec: &TensorMapSpec| spec.emulated();
        let launch = inputs.attention.prefill(
            SM_80,
            &inputs.seqs,
            &inputs.operands,
            &AttentionWorkspace::NONE,
            maps,
        );
        inputs.device.run(launch, 3);
        let out = inputs.device.read(inputs.operands.out.ptr, step.tokens() * 64);
        out[out.len() - 57 * 64..].iter().map(|value| value.to_bits()).collect()
    }
    for window in [None, Some(40)] {
        let whole = last_rows::<f32>(&[(200, 200)], window);
        assert_eq!(last_rows::<f32>(&[(57, 200)], window), whole);
        assert_eq!(last_rows::<f32>(&[(131, 200)], window), whole);
        let whole = last_rows::<f16>(&[(200, 200)], window);
        assert_eq!(last_rows::<f16>(&[(57, 200)], window), whole);
        assert_eq!(last_rows::<f16>(&[(131, 200)], window), whole);
    }
}
