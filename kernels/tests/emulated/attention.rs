//! Attention, prefill and decode.

use crate::device::{Device, SEEDS, Stored, assert_stored, random, random_of};
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::{Append, Attention, AttentionOperands, DecodeWorkspace, SeqInputs};
use kernels::kv_cache::PAGE_SIZE;
use kernels::rope_append::{RopeAppend, RopeAppendOperands};

const PAGE: usize = PAGE_SIZE as usize;

/// A step: for each sequence its new tokens, and its positions with them.
struct Step {
    seqs: &'static [(usize, usize)],
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
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

    /// Inputs that the step alone decides.
    fn inputs<E: Stored>(&self) -> Inputs<E> {
        let &Step { seqs, num_heads, num_kv_heads, head_dim, window } = self;
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
        let mut device = Device::default();
        let inputs = SeqInputs {
            num_seqs: device.u32s("num_seqs", &[seqs.len() as u32]),
            cu_seqlens_q: device.u32s("cu_seqlens_q", &cu_seqlens_q),
            kv_lens: device.u32s("kv_lens", &kv_lens),
            block_table: device.u32s("block_table", &block_table),
        };
        let operands = AttentionOperands {
            q: Rows::new(device.numbers("q", &q), width),
            k_pool: device.numbers("k_pool", &k_pool),
            v_pool: device.numbers("v_pool", &v_pool),
            out: Rows::new(device.poisoned("out", self.tokens() * width), width),
        };
        let attention = Attention {
            max_tokens: self.tokens() + 1,
            max_seqs: seqs.len() + 1,
            max_kv_len,
            max_pages_per_seq: max_pages,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: 0.3,
            window,
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
        let &Step { num_heads, num_kv_heads, head_dim, window, .. } = self;
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
                    let weights: Vec<_> = (first..=position).map(|key| score(key).exp()).collect();
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
    let mut inputs = step.inputs::<E>();
    let want = step.oracle(&inputs);
    let launch = inputs.attention.prefill(&inputs.seqs, &inputs.operands);
    let report = inputs.device.run(launch, seed);
    let case = format!("prefill, head_dim {}", step.head_dim);
    assert_eq!(report.bank_conflicts, 0, "{case}");
    let got = inputs.device.read(inputs.operands.out.ptr, want.len());
    assert_attends::<E>(&case, &got, &want);
    got
}

fn check_decode<E: Stored>(step: &Step, seed: u64) -> Vec<f32> {
    check_splits::<E>(step, seed, u32::MAX)
}

/// Decoding in at most `max_splits`: fewer than a model of so few heads has.
fn check_splits<E: Stored>(step: &Step, seed: u64, max_splits: u32) -> Vec<f32> {
    let mut inputs = step.inputs::<E>();
    let want = step.oracle(&inputs);
    let attention = inputs.attention;
    let counters = vec![0; attention.num_counters::<E>()];
    let workspace = DecodeWorkspace {
        partials: inputs.device.poisoned("partials", attention.num_partials::<E>()),
        counters: inputs.device.u32s("counters", &counters),
    };
    let launch = attention.decode(&inputs.seqs, &inputs.operands, None, &workspace);
    let mut launch = launch.expect("a right shape").expect("something to do");
    launch.geometry.grid[0] = launch.geometry.grid[0].min(max_splits);
    inputs.device.run(Ok(Some(launch)), seed);
    assert_eq!(inputs.device.read_u32(workspace.counters, counters.len()), counters);
    let got = inputs.device.read(inputs.operands.out.ptr, want.len());
    assert_attends::<E>(&format!("decode, head_dim {}", step.head_dim), &got, &want);
    got
}

const HEAD_DIMS: [usize; 4] = [64, 96, 128, 256];

#[test]
fn prefill_matches_oracle() {
    let seqs: &[_] = &[(3, 3), (1, 70), (65, 67)];
    for seed in SEEDS {
        let step = Step { seqs, num_heads: 4, num_kv_heads: 2, head_dim: 20, window: None };
        check_prefill::<f32>(&step, seed);
        check_prefill::<f32>(&Step { head_dim: 7, window: Some(33), ..step }, seed);
    }
    for head_dim in HEAD_DIMS {
        let seqs = &[(5, 37)];
        let step = Step { seqs, num_heads: 2, num_kv_heads: 1, head_dim, window: None };
        check_prefill::<f32>(&step, head_dim as u64);
    }
}

#[test]
fn prefill_in_16_bits_matches_oracle() {
    let seqs: &[_] = &[(3, 3), (1, 70), (65, 67)];
    let step = Step { seqs, num_heads: 4, num_kv_heads: 2, head_dim: 24, window: None };
    for seed in SEEDS {
        check_prefill::<f16>(&step, seed);
        check_prefill::<bf16>(&Step { head_dim: 8, window: Some(33), ..step }, seed);
    }
    // Tiles of 64 queries and 64 keys, one less, and keys that came before.
    check_prefill::<f16>(&Step { seqs: &[(63, 64), (64, 130)], ..step }, 0);
    check_prefill::<f16>(&Step { window: Some(1), ..step }, 0);
    for head_dim in HEAD_DIMS {
        let seqs = &[(17, 81)];
        let step = Step { seqs, num_heads: 7, num_kv_heads: 1, head_dim, window: None };
        check_prefill::<f16>(&step, head_dim as u64);
        check_prefill::<bf16>(&step, head_dim as u64);
    }
}

#[test]
fn decode_matches_oracle() {
    for seed in SEEDS {
        let seqs: &[_] = &[(1, 1), (0, 64), (1, 300)];
        let step = Step { seqs, num_heads: 6, num_kv_heads: 2, head_dim: 20, window: None };
        check_decode::<f32>(&step, seed);
        check_decode::<f32>(&Step { head_dim: 7, window: Some(33), ..step }, seed);
    }
    // Every instance: 4, 8 and 16 rows of heads.
    for (num_heads, head_dim) in [3, 7, 16].into_iter().flat_map(|h| HEAD_DIMS.map(|d| (h, d))) {
        let seqs = &[(1, 35)];
        check_decode::<f32>(&Step { seqs, num_heads, num_kv_heads: 1, head_dim, window: None }, 1);
    }
}

#[test]
fn decode_has_splits_of_many_tiles() {
    let seqs = &[(1, 300), (1, 64)];
    let step = Step { seqs, num_heads: 3, num_kv_heads: 1, head_dim: 8, window: None };
    for (seed, max_splits) in [(0, 1), (1, 2), (2, 3)] {
        check_splits::<f16>(&step, seed, max_splits);
        check_splits::<f32>(&Step { window: Some(200), ..step }, seed, max_splits);
    }
}

#[test]
fn decode_in_16_bits_matches_oracle() {
    for seed in SEEDS {
        let seqs: &[_] = &[(1, 1), (0, 64), (1, 300), (1, 64), (1, 129)];
        let step = Step { seqs, num_heads: 6, num_kv_heads: 2, head_dim: 24, window: None };
        check_decode::<f16>(&step, seed);
        check_decode::<bf16>(&Step { head_dim: 8, window: Some(33), ..step }, seed);
        check_decode::<f16>(&Step { head_dim: 16, window: Some(1), ..step }, seed);
    }
    // A head of its own, a group of 7, and one of two blocks.
    for (num_heads, head_dim) in [1, 7, 19].into_iter().flat_map(|h| HEAD_DIMS.map(|d| (h, d))) {
        let seqs = &[(1, 135)];
        let step = Step { seqs, num_heads, num_kv_heads: 1, head_dim, window: None };
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
    let mut inputs = step.inputs::<E>();
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
    let workspace = DecodeWorkspace {
        partials: device.poisoned("partials", attention.num_partials::<E>()),
        counters: device.u32s("counters", &vec![0; attention.num_counters::<E>()]),
    };
    let append = fused.then_some(&append);
    device.run(attention.decode(&inputs.seqs, &operands, append, &workspace), seed);
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
        let step = Step { seqs, num_heads: 6, num_kv_heads: 2, head_dim: 24, window: None };
        assert_appends::<f16>(&step, 24, seed);
        assert_appends::<bf16>(&Step { head_dim: 16, window: Some(33), ..step }, 10, seed);
        assert_appends::<f32>(&Step { head_dim: 7, window: Some(1), ..step }, 4, seed);
    }
    // Widths of every instance; a group of two blocks, of which one appends.
    for (num_heads, head_dim) in [1, 19].into_iter().flat_map(|h| HEAD_DIMS.map(|d| (h, d))) {
        let seqs = &[(1, 70)];
        let step = Step { seqs, num_heads, num_kv_heads: 1, head_dim, window: None };
        assert_appends::<f16>(&step, head_dim, 1);
        assert_appends::<f32>(&step, head_dim / 2, 1);
    }
}

#[test]
fn attention_is_deterministic() {
    let seqs = &[(1, 150), (1, 65)];
    let step = Step { seqs, num_heads: 7, num_kv_heads: 1, head_dim: 64, window: None };
    // The order of what is concurrent is another one.
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for check in [check_prefill::<f16>, check_decode::<f16>] {
        assert_eq!(bits(check(&step, 1)), bits(check(&step, 2)));
    }
}
