//! Attention in three operations: a page of keys at a time, for each token and head.

use super::{Keys, Operation, visible_keys};
use crate::activations::{Rows, RowsMut};
use crate::dot::dot;
use crate::kv::{KvCache, row_elems};
use plan::{Attention, PAGE_SIZE, StepInputs};
use std::ops::Range;

/// The keys that each token of a step sees.
fn keys_of_tokens<'a>(
    attention: &Attention,
    kv: &KvCache,
    inputs: &'a StepInputs,
) -> Vec<Keys<'a>> {
    let seqs = inputs.cu_seqlens_q.windows(2).enumerate();
    let tokens = seqs.flat_map(|(seq, ends)| (ends[0]..ends[1]).map(move |token| (seq, token)));
    let keys = |(seq, token)| visible_keys(attention, kv, inputs, seq, token as usize);
    tokens.map(keys).collect()
}

/// Calls `f` with the index of each page and the positions of `keys` in it.
fn for_each_page(keys: &Keys, mut f: impl FnMut(u32, Range<usize>)) {
    let Range { start, end } = keys.positions;
    for page_idx in start / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
        let first = page_idx * PAGE_SIZE;
        f(keys.pages[page_idx], start.max(first)..end.min(first + PAGE_SIZE));
    }
}

/// `softmax_scale * q . k`, capped, of the keys that a token sees.
pub fn scores(attention: &Attention, inputs: &StepInputs, kv: &KvCache, q: &Rows, scores: RowsMut) {
    let keys = keys_of_tokens(attention, kv, inputs);
    let &Attention { layer, num_heads, num_kv_heads, head_dim, softmax_scale, softcap, .. } =
        attention;
    let (columns, stride) = (scores.width() / num_heads, row_elems(head_dim));
    scores.for_each(|t, row| {
        let mut buffer = vec![0.0; PAGE_SIZE * stride];
        for (head, scores) in row.chunks_exact_mut(columns).enumerate() {
            let mut q = q.row(t)[head * head_dim..][..head_dim].to_vec();
            kv.rotate_as_keys(&mut q);
            let kv_head = head * num_kv_heads / num_heads;
            for_each_page(&keys[t], |page, keys| {
                let rows = keys.start % PAGE_SIZE..keys.start % PAGE_SIZE + keys.len();
                let k = kv.keys(layer, page, kv_head, rows, &mut buffer);
                for (score, k) in scores[keys].iter_mut().zip(k.chunks_exact(stride)) {
                    let scaled = dot(&q, &k[..head_dim]) * softmax_scale;
                    *score = softcap.map_or(scaled, |cap| cap * (scaled / cap).tanh());
                }
            });
        }
    });
}

/// The softmax of the scores of the keys that a token sees.
pub fn softmax(operation: Operation, inputs: &StepInputs, scores: &Rows, out: RowsMut) {
    let attention = operation.attention;
    let keys = keys_of_tokens(attention, operation.kv, inputs);
    let columns = out.width() / attention.num_heads;
    out.for_each(|t, row| {
        let scores = scores.row(t).chunks_exact(columns);
        for (head, (out, scores)) in row.chunks_exact_mut(columns).zip(scores).enumerate() {
            let [sink, sum_of_sink] = operation.softmax_of_sink(head);
            let (out, scores) =
                (&mut out[keys[t].positions.clone()], &scores[keys[t].positions.clone()]);
            let max = scores.iter().copied().fold(sink, f32::max);
            out.iter_mut().zip(scores).for_each(|(out, score)| *out = (score - max).exp());
            let sum = out.iter().sum::<f32>() + sum_of_sink * (sink - max).exp();
            out.iter_mut().for_each(|out| *out /= sum);
        }
    });
}

/// The values of the keys that a token sees, weighted with its probabilities.
pub fn values(
    attention: &Attention,
    inputs: &StepInputs,
    kv: &KvCache,
    probabilities: &Rows,
    out: RowsMut,
) {
    let keys = keys_of_tokens(attention, kv, inputs);
    let &Attention { layer, num_heads, num_kv_heads, head_dim, .. } = attention;
    let (columns, stride) = (probabilities.width() / num_heads, row_elems(head_dim));
    out.for_each(|t, row| {
        let mut buffer = vec![0.0; PAGE_SIZE * stride];
        for (head, out) in row.chunks_exact_mut(head_dim).enumerate() {
            let probabilities = &probabilities.row(t)[head * columns..][..columns];
            let kv_head = head * num_kv_heads / num_heads;
            out.fill(0.0);
            for_each_page(&keys[t], |page, keys| {
                let rows = keys.start % PAGE_SIZE..keys.start % PAGE_SIZE + keys.len();
                let v = kv.values(layer, page, kv_head, rows, &mut buffer);
                for (p, v) in probabilities[keys].iter().zip(v.chunks_exact(stride)) {
                    out.iter_mut().zip(v).for_each(|(out, v)| *out += p * v);
                }
            });
        }
    });
}
