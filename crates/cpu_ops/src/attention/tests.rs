use super::*;
use crate::testing::{assert_close, random};
use crate::vectors::archs;
use plan::{CacheType, Dtype, KvHeads, KvLayout, KvStorage, PAGE_SIZE, TensorId, View, WeightId};

/// Sequences of one step: new tokens, and positions that are in the cache before them.
type Sequences = &'static [(usize, usize)];

#[derive(Debug)]
struct Case {
    sequences: Sequences,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    causal: bool,
    window: Option<usize>,
    sinks: bool,
    softcap: Option<f32>,
}

impl Case {
    /// A score of each head: some larger than all of the keys', some smaller.
    fn sinks(&self) -> Option<Vec<f32>> {
        self.sinks.then(|| random(9, self.num_heads).iter().map(|x| 4.0 * x).collect())
    }
}

/// softmax(q k^T * scale) v over the visible keys, in f64; `k`, `v` are `[kv_len, num_kv_heads * head_dim]`.
fn oracle(case: &Case, q: &[f32], k: &[f32], v: &[f32], position: usize) -> Vec<f64> {
    let (d, width) = (case.head_dim, case.num_kv_heads * case.head_dim);
    let visible: Vec<usize> = (0..k.len() / width)
        .filter(|&j| !case.causal || j <= position)
        .filter(|&j| case.window.is_none_or(|window| j + window > position))
        .collect();
    let head = |h: usize| {
        let column = h / (case.num_heads / case.num_kv_heads) * d;
        let score = |&j: &usize| -> f64 {
            let dot = |i: usize| q[h * d + i] as f64 * k[j * width + column + i] as f64;
            let score = (0..d).map(dot).sum::<f64>() / (d as f64).sqrt();
            let bent = |cap: f64| cap * (score / cap).tanh();
            case.softcap.map_or(score, |cap| bent(cap.into()))
        };
        let p: Vec<f64> = visible.iter().map(|j| score(j).exp()).collect();
        let sink = case.sinks().map_or(0.0, |sinks| f64::from(sinks[h]).exp());
        let sum = p.iter().sum::<f64>() + sink;
        let value = |i: usize| -> f64 {
            let terms = visible.iter().zip(&p);
            terms.map(|(&j, p)| p * v[j * width + column + i] as f64).sum::<f64>() / sum
        };
        (0..d).map(value).collect::<Vec<_>>()
    };
    (0..case.num_heads).flat_map(head).collect()
}

/// Pages of a cache, of which 7 has no divisor.
const NUM_PAGES: usize = 40;

/// A cache that holds keys and values of `cache_type` in layer 1 of 2.
fn cache(case: &Case, cache_type: CacheType) -> KvCache {
    KvCache::new(KvLayout {
        layers: vec![KvHeads { num_kv_heads: case.num_kv_heads, head_dim: case.head_dim }; 2],
        num_pages: NUM_PAGES,
        windows: None,
        dtype: Dtype::F32,
        storage: cache_type.into(),
    })
    .unwrap()
}

/// The operation of `case`.
fn operation(case: &Case) -> Attention {
    let &Case { num_heads, num_kv_heads, head_dim, causal, window, softcap, .. } = case;
    let view = View { tensor: TensorId(0), start: 0, width: num_heads * head_dim };
    let softmax_scale = 1.0 / (head_dim as f32).sqrt();
    let (q, out) = (view, view);
    Attention {
        layer: 1,
        q,
        out,
        num_heads,
        num_kv_heads,
        head_dim,
        softmax_scale,
        softcap,
        causal,
        window,
        sinks: case.sinks.then_some(WeightId(0)),
    }
}

/// The step of `case`, with its cache, its Q and what the oracle says.
fn step(case: &Case, cache_type: CacheType) -> (StepInputs, KvCache, Vec<f32>, Vec<f64>) {
    let kv_width = case.num_kv_heads * case.head_dim;
    let mut kv = cache(case, cache_type);
    let mut inputs = StepInputs::new();
    let (mut q, mut wanted) = (Vec::new(), Vec::new());
    // In no order.
    let mut free_pages: Vec<u32> =
        (0..NUM_PAGES as u32).map(|page| page * 7 % NUM_PAGES as u32).collect();
    for (seed, &(q_len, past_len)) in case.sequences.iter().enumerate() {
        let kv_len = past_len + q_len;
        let pages = free_pages.split_off(free_pages.len() - kv_len.div_ceil(PAGE_SIZE));
        let mut appended = StepInputs::new();
        appended.push_sequence(&vec![0; kv_len], 0, &pages, 0..0);
        let k = random(seed as u64, kv_len * kv_width);
        let v = random(seed as u64 + 100, kv_len * kv_width);
        let rows = (Rows::dense(&k, kv_width), Rows::dense(&v, kv_width));
        kv.append(1, &appended.slot_mapping, &rows.0, &rows.1);
        inputs.push_sequence(&vec![0; q_len], past_len, &pages, 0..0);
        for token in 0..q_len {
            let row = random((seed * 1000 + token) as u64, case.num_heads * case.head_dim);
            wanted.extend(oracle(case, &row, &k, &v, past_len + token));
            q.extend(row);
        }
    }
    (inputs, kv, q, wanted)
}

/// Every kernel, with every set of instructions.
fn check(case: &Case, cache_type: CacheType, tolerance: f64) {
    let (inputs, kv, q, wanted) = step(case, cache_type);
    let op = operation(case);
    let mut out = vec![f32::NAN; q.len()];
    for arch in archs() {
        for kernel in [Kernel::Fastest, Kernel::Decode, Kernel::Prefill] {
            out.fill(f32::NAN);
            let (q, rows) = (Rows::dense(&q, op.q.width), RowsMut::dense(&mut out, op.q.width));
            let sinks = case.sinks();
            let operation = Operation { attention: &op, kv: &kv, sinks: sinks.as_deref() };
            attention_on(arch, operation, &inputs, &q, rows, kernel);
            let case = format!("{case:?}, {cache_type}, {kernel:?}, {arch:?}");
            assert_close(&out, &wanted, tolerance, &case);
        }
    }
}

/// The three operations with scores and probabilities in memory.
fn check_materialized(case: &Case) {
    let (inputs, kv, q, wanted) = step(case, CacheType::F32);
    let (op, sinks) = (operation(case), case.sinks());
    let columns = *inputs.kv_lens.iter().max().unwrap() as usize;
    let width = case.num_heads * columns;
    let mut scores = vec![f32::NAN; q.len() / op.q.width * width];
    let mut probabilities = scores.clone();
    let mut out = vec![f32::NAN; q.len()];
    let q = Rows::dense(&q, op.q.width);
    materialized::scores(&op, &inputs, &kv, &q, RowsMut::dense(&mut scores, width));
    let operation = Operation { attention: &op, kv: &kv, sinks: sinks.as_deref() };
    let rows = RowsMut::dense(&mut probabilities, width);
    materialized::softmax(operation, &inputs, &Rows::dense(&scores, width), rows);
    let rows = RowsMut::dense(&mut out, op.q.width);
    materialized::values(&op, &inputs, &kv, &Rows::dense(&probabilities, width), rows);
    assert_close(&out, &wanted, 1e-5, &format!("{case:?}, materialized"));
}

/// Lengths around a page; a prompt, a chunk of one and decoding side by side; groups of 1, 3 and 7 heads. The rest
/// of the cache is NaN.
#[test]
fn attention_matches_oracle() {
    let sequences: [Sequences; 7] = [
        &[(1, 0)],
        &[(63, 0)],
        &[(65, 0)],
        &[(1, 63), (1, 64)],
        &[(1, 127)],
        &[(30, 100), (1, 5), (70, 0), (1, 200)],
        &[(3, 62), (64, 64)],
    ];
    for (num_heads, num_kv_heads, head_dim) in [(2, 2, 96), (9, 3, 64), (7, 1, 20)] {
        for sequences in sequences {
            let masks = [None, Some(1), Some(64), Some(100)].map(|window| (true, window, false));
            let others = [(false, None, false), (true, None, true), (true, Some(64), true)];
            let masks = masks.into_iter().chain(others).map(|mask| (mask, None));
            let capped = ((true, Some(64), true), Some(0.5));
            for ((causal, window, sinks), softcap) in masks.chain([capped]) {
                let case = Case {
                    sequences,
                    num_heads,
                    num_kv_heads,
                    head_dim,
                    causal,
                    window,
                    sinks,
                    softcap,
                };
                check(&case, CacheType::F32, 1e-5);
                check_materialized(&case);
            }
        }
    }
}

/// Lengths around a part of the keys and around a block of them, windows that begin inside; a group of 1, of 3 and of 7
/// heads; rows of whole vectors and not.
#[test]
fn attention_at_depth_matches_oracle() {
    let shapes = [(2, 2, 128), (3, 1, 80), (7, 1, 64), (6, 2, 96), (7, 1, 256), (2, 1, 20)];
    for (num_heads, num_kv_heads, head_dim) in shapes {
        let forms = [(None, false, None), (Some(600), false, Some(0.5)), (None, true, None)];
        for (window, sinks, softcap) in forms {
            let sequences = &[(1, 1099), (1, 255), (1, 256)];
            let causal = true;
            let case = Case {
                sequences,
                num_heads,
                num_kv_heads,
                head_dim,
                causal,
                window,
                sinks,
                softcap,
            };
            check(&case, CacheType::F32, 1e-5);
        }
    }
}

/// The largest error of random values is about that of an element: half a step of its type.
#[test]
fn every_type_of_cache_matches_oracle() {
    let tolerances = [
        (CacheType::F16, 1e-3),
        (CacheType::BF16, 8e-3),
        (CacheType::Q8_0, 8e-3),
        (CacheType::Fp8, 5e-2),
        (CacheType::Q4_0, 0.12),
    ];
    for (cache_type, tolerance) in tolerances {
        for (num_heads, num_kv_heads, head_dim) in [(7, 1, 64), (2, 2, 128)] {
            let (causal, window, sinks) = (true, None, false);
            let sequences = &[(1, 300), (5, 66)];
            let softcap = None;
            let case = Case {
                sequences,
                num_heads,
                num_kv_heads,
                head_dim,
                causal,
                window,
                sinks,
                softcap,
            };
            check(&case, cache_type, tolerance);
        }
    }
    let plain = [(CacheType::F16, 1e-3), (CacheType::BF16, 8e-3), (CacheType::Fp8, 5e-2)];
    for (cache_type, tolerance) in plain {
        let (num_heads, num_kv_heads, head_dim) = (3, 1, 23);
        let (sequences, causal, window, sinks) = (&[(1, 70), (4, 0)], true, None, false);
        let softcap = None;
        let case =
            Case { sequences, num_heads, num_kv_heads, head_dim, causal, window, sinks, softcap };
        check(&case, cache_type, tolerance);
    }
}

/// A token's bits depend neither on the step's other tokens nor on the number of threads, by which the work is cut.
#[test]
fn a_token_has_the_same_bits_beside_others() {
    let (num_heads, num_kv_heads, head_dim) = (12, 4, 48);
    let (sequences, causal, sinks) = (&[(1, 1000), (1, 40), (2, 300), (1, 511)], true, false);
    for window in [None, Some(450)] {
        let softcap = None;
        let case =
            Case { sequences, num_heads, num_kv_heads, head_dim, causal, window, sinks, softcap };
        let (inputs, kv, q, _) = step(&case, CacheType::F16);
        let op = operation(&case);
        let width = op.q.width;
        let run = |inputs: &StepInputs, q: &[f32], threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![f32::NAN; q.len()];
            let (q, rows) = (Rows::dense(q, width), RowsMut::dense(&mut out, width));
            let operation = Operation { attention: &op, kv: &kv, sinks: None };
            pool.install(|| attention(operation, inputs, &q, rows, Kernel::Decode));
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let wanted = run(&inputs, &q, 1);
        for threads in [2, 5, 16] {
            assert_eq!(run(&inputs, &q, threads), wanted, "{threads} threads, {window:?}");
        }
        for (seq, &(q_len, past_len)) in case.sequences.iter().enumerate() {
            let mut alone = StepInputs::new();
            alone.push_sequence(&vec![0; q_len], past_len, &inputs.block_tables[seq], 0..0);
            let first = inputs.cu_seqlens_q[seq] as usize * width;
            let tokens = first..first + q_len * width;
            assert_eq!(run(&alone, &q[tokens.clone()], 3), wanted[tokens], "{seq}, {window:?}");
        }
    }
}

/// A prompt's rows have the same bits in one step and cut into steps of any length.
#[test]
fn a_prompt_has_the_same_bits_however_it_is_cut() {
    const LEN: usize = 300;
    let (num_heads, num_kv_heads, head_dim) = (6, 2, 32);
    let (width, kv_width) = (num_heads * head_dim, num_kv_heads * head_dim);
    let layout = KvLayout {
        layers: vec![KvHeads { num_kv_heads, head_dim }],
        num_pages: 5,
        windows: None,
        dtype: Dtype::F16,
        storage: KvStorage::default(),
    };
    let pages = [3, 0, 4, 1, 2];
    let mut kv = KvCache::new(layout).unwrap();
    let mut whole = StepInputs::new();
    whole.push_sequence(&[0; LEN], 0, &pages, 0..0);
    let (k, v) = (random(1, LEN * kv_width), random(2, LEN * kv_width));
    let rows = (Rows::dense(&k, kv_width), Rows::dense(&v, kv_width));
    kv.append(0, &whole.slot_mapping, &rows.0, &rows.1);
    let q = random(3, LEN * width);
    for window in [None, Some(70)] {
        let view = View { tensor: TensorId(0), start: 0, width };
        let op = Attention {
            layer: 0,
            q: view,
            out: view,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: 0.2,
            causal: true,
            window,
            softcap: Some(0.7),
            sinks: Some(WeightId(0)),
        };
        let sinks = random(4, num_heads);
        let operation = Operation { attention: &op, kv: &kv, sinks: Some(&sinks) };
        let run = |lengths: &[usize]| {
            let (mut out, mut past_len) = (Vec::new(), 0);
            for &len in lengths {
                let mut inputs = StepInputs::new();
                inputs.push_sequence(&vec![0; len], past_len, &pages, 0..0);
                let mut part = vec![f32::NAN; len * width];
                let q = Rows::dense(&q[past_len * width..][..len * width], width);
                let rows = RowsMut::dense(&mut part, width);
                attention(operation, &inputs, &q, rows, Kernel::Prefill);
                out.extend(part.iter().map(|value| value.to_bits()));
                past_len += len;
            }
            out
        };
        let wanted = run(&[LEN]);
        for lengths in [&[1, 63, 64, 172][..], &[299, 1], &[5, 100, 1, 1, 193]] {
            assert_eq!(run(lengths), wanted, "{lengths:?}, window {window:?}");
        }
    }
}
