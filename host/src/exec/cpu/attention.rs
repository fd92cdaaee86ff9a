//! Causal attention over the paged cache, with an online softmax: a page of keys at a time.

use super::activations::{Rows, RowsMut};
use super::dot::dot;
use super::kv::KvCache;
use crate::plan::{Attention, PAGE_SIZE, StepInputs};
use rayon::prelude::*;
use std::ops::Range;

/// Multiply-adds of one task, below which it does not pay to fork.
const MIN_TASK_WORK: usize = 1 << 14;

/// Computes `attention`, in parallel over tokens and heads.
pub fn attention(
    attention: &Attention,
    inputs: &StepInputs,
    kv: &KvCache,
    q: Rows,
    mut out: RowsMut,
) {
    let head_dim = attention.head_dim;
    let columns = attention.num_heads * head_dim;
    let (data, stride) = out.strided();
    data.par_chunks_mut(stride).enumerate().for_each(|(token, row)| {
        let keys = visible_keys(attention, inputs, token);
        let min_heads = MIN_TASK_WORK.div_ceil(2 * head_dim * keys.positions.len());
        let heads = row[..columns].par_chunks_exact_mut(head_dim).with_min_len(min_heads);
        heads.enumerate().for_each(|(head, out)| {
            let q = &q.row(token)[head * head_dim..][..head_dim];
            attend(attention, kv, &keys, head, q, out);
        });
    });
}

/// The keys that a token sees.
struct Keys<'a> {
    /// Never empty: a token sees itself.
    positions: Range<usize>,
    pages: &'a [u32],
}

fn visible_keys<'a>(attention: &Attention, inputs: &'a StepInputs, token: usize) -> Keys<'a> {
    let seq = inputs.cu_seqlens_q.partition_point(|&first| first as usize <= token) - 1;
    let left = inputs.cu_seqlens_q[seq + 1] as usize - token;
    let end = inputs.kv_lens[seq] as usize + 1 - left;
    let start = attention.window.map_or(0, |window| end.saturating_sub(window));
    Keys { positions: start..end, pages: &inputs.block_tables[seq] }
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
        let columns = rows.start * head_dim..rows.end * head_dim;
        let (k, v) = kv.page(attention.layer, keys.pages[page_idx], kv_head);

        let mut scores = [0.0; PAGE_SIZE];
        let scores = &mut scores[..rows.len()];
        for (score, k) in scores.iter_mut().zip(k[columns.clone()].chunks_exact(head_dim)) {
            *score = dot(q, k) * attention.softmax_scale;
        }
        let new_max = scores.iter().copied().fold(max, f32::max);
        let rescale = (max - new_max).exp();
        max = new_max;
        sum *= rescale;
        out.iter_mut().for_each(|out| *out *= rescale);
        for (score, v) in scores.iter().zip(v[columns].chunks_exact(head_dim)) {
            let p = (score - max).exp();
            sum += p;
            out.iter_mut().zip(v).for_each(|(out, v)| *out += p * v);
        }
    }
    out.iter_mut().for_each(|out| *out /= sum);
}
