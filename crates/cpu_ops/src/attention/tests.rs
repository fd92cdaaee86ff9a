use super::*;
use crate::testing::{assert_close, random};
use plan::{Dtype, KvLayout, KvStorage, PAGE_SIZE, TensorId, View};

/// Sequences of one step: new tokens, and positions that are in the cache before them.
type Sequences = &'static [(usize, usize)];

struct Case {
    sequences: Sequences,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    causal: bool,
    window: Option<usize>,
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
            (0..d).map(dot).sum::<f64>() / (d as f64).sqrt()
        };
        let p: Vec<f64> = visible.iter().map(|j| score(j).exp()).collect();
        let sum: f64 = p.iter().sum();
        let value = |i: usize| -> f64 {
            let terms = visible.iter().zip(&p);
            terms.map(|(&j, p)| p * v[j * width + column + i] as f64).sum::<f64>() / sum
        };
        (0..d).map(value).collect::<Vec<_>>()
    };
    (0..case.num_heads).flat_map(head).collect()
}

fn check(case: &Case) {
    let &Case { num_heads, num_kv_heads, head_dim, causal, window, .. } = case;
    let kv_width = num_kv_heads * head_dim;
    let layout = KvLayout {
        num_layers: 2,
        num_kv_heads,
        head_dim,
        num_pages: 24,
        dtype: Dtype::F32,
        storage: KvStorage::default(),
    };
    let mut kv = KvCache::new(layout).unwrap();
    let mut inputs = StepInputs::new();
    let (mut q, mut wanted) = (Vec::new(), Vec::new());
    let mut free_pages: Vec<u32> = (0..24).map(|page| page * 7 % 24).collect();
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
            let row = random((seed * 1000 + token) as u64, num_heads * head_dim);
            wanted.extend(oracle(case, &row, &k, &v, past_len + token));
            q.extend(row);
        }
    }
    let width = num_heads * head_dim;
    let view = View { tensor: TensorId(0), start: 0, width };
    let softmax_scale = 1.0 / (head_dim as f32).sqrt();
    let op = Attention {
        layer: 1,
        q: view,
        out: view,
        num_heads,
        num_kv_heads,
        head_dim,
        softmax_scale,
        causal,
        window,
    };
    let mut out = vec![f32::NAN; q.len()];
    for kernel in [Kernel::Fastest, Kernel::Decode, Kernel::Prefill] {
        out.fill(f32::NAN);
        let (q, rows) = (Rows::dense(&q, width), RowsMut::dense(&mut out, width));
        attention(&op, &inputs, &kv, &q, rows, kernel);
        let mask = if causal { "causal" } else { "full" };
        let case = format!("{:?}, {mask}, window {window:?}, {kernel:?}", case.sequences);
        assert_close(&out, &wanted, 1e-5, &case);
    }
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
            let masks = [None, Some(1), Some(64), Some(100)].map(|window| (true, window));
            for (causal, window) in masks.into_iter().chain([(false, None)]) {
                check(&Case { sequences, num_heads, num_kv_heads, head_dim, causal, window });
            }
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
        num_layers: 1,
        num_kv_heads,
        head_dim,
        num_pages: 5,
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
        };
        let run = |lengths: &[usize]| {
            let (mut out, mut past_len) = (Vec::new(), 0);
            for &len in lengths {
                let mut inputs = StepInputs::new();
                inputs.push_sequence(&vec![0; len], past_len, &pages, 0..0);
                let mut part = vec![f32::NAN; len * width];
                let q = Rows::dense(&q[past_len * width..][..len * width], width);
                let rows = RowsMut::dense(&mut part, width);
                attention(&op, &inputs, &kv, &q, rows, Kernel::Prefill);
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
