//! Attention over the paged cache.

mod decode;
pub mod materialized;
mod prefill;
mod products;

use super::activations::{Rows, RowsMut};
use super::kv::KvCache;
use plan::{Attention, StepInputs};
use prefill::QueryTile;
use pulp::Arch;
use rayon::prelude::*;
use std::ops::Range;

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

/// An operation, and what it reads beside Q.
#[derive(Clone, Copy)]
pub struct Operation<'a> {
    /// The operation.
    pub attention: &'a Attention,
    /// The cache, with the new tokens' keys and values.
    pub kv: &'a KvCache,
    /// [`Attention::sinks`].
    pub sinks: Option<&'a [f32]>,
}

impl Operation<'_> {
    /// What the softmax of `head` has beside its keys: the largest score and the sum of
    /// exponentials.
    fn softmax_of_sink(&self, head: usize) -> [f32; 2] {
        self.sinks.map_or([f32::NEG_INFINITY, 0.0], |sinks| [sinks[head], 1.0])
    }
}

/// Computes `operation`, in parallel over tokens and heads.
pub fn attention(
    operation: Operation,
    inputs: &StepInputs,
    q: &Rows,
    out: RowsMut,
    kernel: Kernel,
) {
    attention_on(Arch::new(), operation, inputs, q, out, kernel);
}

/// [`attention`] with the instructions of `arch`.
fn attention_on(
    arch: Arch,
    operation: Operation,
    inputs: &StepInputs,
    q: &Rows,
    mut out: RowsMut,
    kernel: Kernel,
) {
    let attention = operation.attention;
    let (mut data, stride) = out.strided();
    let (mut tiles, mut singles) = (Vec::new(), Vec::new());
    for seq in 0..inputs.kv_lens.len() {
        let [first, end] = [seq, seq + 1].map(|seq| inputs.cu_seqlens_q[seq] as usize);
        let is_prefill = match kernel {
            Kernel::Fastest => end - first >= MIN_PREFILL_TOKENS,
            Kernel::Decode => false,
            Kernel::Prefill => true,
        };
        let tile_tokens = if is_prefill { prefill::tile_tokens(attention) } else { 1 };
        for token in (first..end).step_by(tile_tokens) {
            let tokens = token..end.min(token + tile_tokens);
            let (rows, rest) = data.split_at_mut((tokens.len() * stride).min(data.len()));
            data = rest;
            let keys = visible_keys(attention, operation.kv, inputs, seq, token);
            if is_prefill {
                let kv_len = inputs.kv_lens[seq] as usize;
                let position = kv_len - (end - token);
                tiles.push((QueryTile { tokens, first: keys, position, kv_len }, rows));
            } else {
                let out = &mut rows[..attention.num_heads * attention.head_dim];
                singles.push(decode::Token { index: token, keys, out });
            }
        }
    }
    tiles.into_par_iter().for_each(|(tile, rows)| {
        prefill_tile(operation, &tile, q, rows, stride, arch);
    });
    decode::attend(operation, q, singles, arch);
}

/// Query heads that share a KV head.
fn group(attention: &Attention) -> usize {
    attention.num_heads / attention.num_kv_heads
}

/// The keys that a token sees.
struct Keys<'a> {
    /// Never empty: a token sees itself.
    positions: Range<usize>,
    pages: &'a [u32],
}

fn visible_keys<'a>(
    attention: &Attention,
    kv: &KvCache,
    inputs: &'a StepInputs,
    seq: usize,
    token: usize,
) -> Keys<'a> {
    let later_tokens = inputs.cu_seqlens_q[seq + 1] as usize - 1 - token;
    let kv_len = inputs.kv_lens[seq] as usize;
    let positions = positions_seen(attention, kv_len - 1 - later_tokens, kv_len);
    Keys { positions, pages: &inputs.tables(kv.has_window(attention.layer))[seq] }
}

/// The positions that the token at `position` of `kv_len` sees.
fn positions_seen(attention: &Attention, position: usize, kv_len: usize) -> Range<usize> {
    let start = attention.window.map_or(0, |window| (position + 1).saturating_sub(window));
    match attention.causal {
        true => start..position + 1,
        false => start..attention.window.map_or(kv_len, |window| kv_len.min(position + window)),
    }
}

/// All heads of a query tile. `rows` begins with the first token's output; the tokens' are `stride` apart.
fn prefill_tile(
    operation: Operation,
    tile: &QueryTile,
    q: &Rows,
    rows: &mut [f32],
    stride: usize,
    arch: Arch,
) {
    let attention = operation.attention;
    let kv_heads = 0..attention.num_kv_heads;
    let heads: Vec<Vec<f32>> = kv_heads
        .into_par_iter()
        .map(|kv_head| prefill::attend(operation, tile, kv_head, q, arch))
        .collect();
    let width = group(attention) * attention.head_dim;
    for (token, row) in rows.chunks_mut(stride).enumerate() {
        for (out, head) in row.chunks_exact_mut(width).zip(&heads) {
            out.copy_from_slice(&head[token * width..][..width]);
        }
    }
}

#[cfg(test)]
mod tests;
