//! Attention over the paged cache, with an online softmax: a page of keys at a time.

pub mod materialized;
mod prefill;

use super::activations::{Rows, RowsMut};
use super::dot::dot;
use super::kv::KvCache;
use plan::{Attention, PAGE_SIZE, StepInputs};
use prefill::QueryTile;
use rayon::prelude::*;
use std::ops::Range;

/// Least number of multiply-adds in a parallel task.
const MIN_TASK_WORK: usize = 1 << 14;
/// Least number of new tokens in a sequence for which matrix products are used.
const MIN_PREFILL_TOKENS: usize = 4;

/// The kernel that computes attention.
#[derive(Clone, Copy, Debug)]
pub enum Kernel {
    /// By the number of a sequence's new tokens.
    Fastest,
    /// Inner products, one query at a time.
    Decode,
    /// Matrix products over query tiles, whatever the number of tokens: the bits of a prompt do not depend on how it is
    /// cut into steps.
    Prefill,
}

/// Computes `attention`, in parallel over tokens and heads.
pub fn attention(
    attention: &Attention,
    inputs: &StepInputs,
    kv: &KvCache,
    q: &Rows,
    mut out: RowsMut,
    kernel: Kernel,
) {
    let (mut data, stride) = out.strided();
    let mut tasks = Vec::new();
    for seq in 0..inputs.kv_lens.len() {
        let [first, end] = [seq, seq + 1].map(|seq| inputs.cu_seqlens_q[seq] as usize);
        let is_prefill = attention.head_dim >= prefill::MIN_HEAD_DIM
            && match kernel {
                Kernel::Fastest => end - first >= MIN_PREFILL_TOKENS,
                Kernel::Decode => false,
                Kernel::Prefill => true,
            };
        let tile_tokens = if is_prefill { prefill::tile_tokens(attention) } else { 1 };
        for token in (first..end).step_by(tile_tokens) {
            let tokens = token..end.min(token + tile_tokens);
            let (rows, rest) = data.split_at_mut((tokens.len() * stride).min(data.len()));
            data = rest;
            tasks.push((is_prefill, seq, tokens, rows));
        }
    }
    tasks.into_par_iter().for_each(|(is_prefill, seq, tokens, rows)| {
        let keys = visible_keys(attention, inputs, seq, tokens.start);
        if is_prefill {
            let tile = QueryTile { tokens, first: keys };
            prefill_tile(attention, kv, &tile, q, rows, stride);
        } else {
            decode_row(attention, kv, &keys, q.row(tokens.start), rows);
        }
    });
}

/// The keys that a token sees.
struct Keys<'a> {
    /// Never empty: a token sees itself.
    positions: Range<usize>,
    pages: &'a [u32],
}

fn visible_keys<'a>(
    attention: &Attention,
    inputs: &'a StepInputs,
    seq: usize,
    token: usize,
) -> Keys<'a> {
    let later_tokens = inputs.cu_seqlens_q[seq + 1] as usize - 1 - token;
    let hidden = if attention.causal { later_tokens } else { 0 };
    let end = inputs.kv_lens[seq] as usize - hidden;
    let start = attention.window.map_or(0, |window| end.saturating_sub(window));
    Keys { positions: start..end, pages: &inputs.block_tables[seq] }
}

/// All heads of a query tile. `rows` begins with the first token's output; the tokens' are `stride` apart.
fn prefill_tile(
    attention: &Attention,
    kv: &KvCache,
    tile: &QueryTile,
    q: &Rows,
    rows: &mut [f32],
    stride: usize,
) {
    let kv_heads = 0..attention.num_kv_heads;
    let heads: Vec<Vec<f32>> = kv_heads
        .into_par_iter()
        .map(|kv_head| prefill::attend(attention, kv, tile, kv_head, q))
        .collect();
    let width = attention.num_heads / attention.num_kv_heads * attention.head_dim;
    for (token, row) in rows.chunks_mut(stride).enumerate() {
        for (out, head) in row.chunks_exact_mut(width).zip(&heads) {
            out.copy_from_slice(&head[token * width..][..width]);
        }
    }
}

/// All heads of one token.
fn decode_row(attention: &Attention, kv: &KvCache, keys: &Keys, q: &[f32], row: &mut [f32]) {
    let head_dim = attention.head_dim;
    let min_heads = MIN_TASK_WORK.div_ceil(2 * head_dim * keys.positions.len());
    let heads = row[..attention.num_heads * head_dim].par_chunks_exact_mut(head_dim);
    heads.with_min_len(min_heads).enumerate().for_each(|(head, out)| {
        attend(attention, kv, keys, head, &q[head * head_dim..][..head_dim], out);
    });
}

/// One query of one head: `out = softmax(q K^T * softmax_scale) V`.
fn attend(
    attention: &Attention,
    kv: &KvCache,
    keys: &Keys,
    head: usize,
    q: &[f32],
    out: &mut [f32],
) {
    let head_dim = attention.head_dim;
    let kv_head = head * attention.num_kv_heads / attention.num_heads;
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
    out.fill(0.0);
    let Range { start, end } = keys.positions;
    for page_idx in start / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
        let first = page_idx * PAGE_SIZE;
        let rows = start.max(first) - first..end.min(first + PAGE_SIZE) - first;
        let mut scores = [0.0; PAGE_SIZE];
        let scores = &mut scores[..rows.len()];
        let (layer, page) = (attention.layer, keys.pages[page_idx]);
        let k = kv.keys(layer, page, kv_head, rows.clone());
        let v = kv.values(layer, page, kv_head, rows);

        for (score, k) in scores.iter_mut().zip(k.chunks_exact(head_dim)) {
            *score = dot(q, k) * attention.softmax_scale;
        }
        let new_max = scores.iter().copied().fold(max, f32::max);
        let rescale = (max - new_max).exp();
        max = new_max;
        sum *= rescale;
        out.iter_mut().for_each(|out| *out *= rescale);
        for (score, v) in scores.iter().zip(v.chunks_exact(head_dim)) {
            let p = (score - max).exp();
            sum += p;
            out.iter_mut().zip(v).for_each(|(out, v)| *out += p * v);
        }
    }
    out.iter_mut().for_each(|out| *out /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};
    use plan::{Dtype, KvLayout, KvStorage, TensorId, View};

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
}
