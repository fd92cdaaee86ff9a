//! Attention of many query rows: FlashAttention's tiling (arXiv:2205.14135) with matrix products on the CPU.
//!
//! A query tile packs the query heads of one KV head, `[tokens * group, head_dim]`. The key loop takes a page at a
//! time: `S = Q K^T`, mask, online softmax, `O += P V`. The bits of a row depend on its own position alone: keys come
//! in whole pages, and a key that a row does not see contributes an exact zero.

use super::Keys;
use crate::activations::Rows;
use crate::exp::exp;
use crate::kv::KvCache;
use nalgebra::{DMatrixView, DMatrixViewMut};
use plan::{Attention, PAGE_SIZE};
use std::borrow::Cow;
use std::ops::Range;

/// Rows of a query tile: enough that packing K and V for the matrix product is a small part of it.
const TILE_ROWS: usize = 128;
/// Least number of rows that a matrix product takes: below, nalgebra 0.35 reads strided views out of bounds.
const MIN_ROWS: usize = 8;
/// Least `head_dim` of this path, for the same reason.
pub const MIN_HEAD_DIM: usize = 8;

/// Tokens of a query tile.
pub fn tile_tokens(attention: &Attention) -> usize {
    (TILE_ROWS / group(attention)).max(1)
}

/// Query heads that share a KV head.
fn group(attention: &Attention) -> usize {
    attention.num_heads / attention.num_kv_heads
}

/// The tokens of a query tile, and where their keys are.
pub struct QueryTile<'a> {
    /// Rows of the step's Q.
    pub tokens: Range<usize>,
    /// Keys of the first token; in causal attention each further token sees one more.
    pub first: Keys<'a>,
}

impl QueryTile<'_> {
    /// Positions of the keys that the `token`-th token of the tile sees.
    fn visible(&self, attention: &Attention, token: usize) -> Range<usize> {
        let end = self.first.positions.end + if attention.causal { token } else { 0 };
        attention.window.map_or(0, |window| end.saturating_sub(window))..end
    }
}

/// `softmax(q K^T * softmax_scale) V` of the query heads of `kv_head`: `[tokens, group * head_dim]`.
pub fn attend(
    attention: &Attention,
    kv: &KvCache,
    tile: &QueryTile,
    kv_head: usize,
    q: &Rows,
) -> Vec<f32> {
    let (group, head_dim) = (group(attention), attention.head_dim);
    let num_rows = tile.tokens.len() * group;
    let mut state = TileState::new(num_rows, head_dim);
    let scaled_q = gather_q(attention, tile, kv_head, q, state.padded_rows);

    let last = tile.visible(attention, tile.tokens.len() - 1);
    for page_idx in tile.first.positions.start / PAGE_SIZE..last.end.div_ceil(PAGE_SIZE) {
        let first_key = page_idx * PAGE_SIZE;
        let num_keys = PAGE_SIZE.min(last.end - first_key);
        let (layer, page) = (attention.layer, tile.first.pages[page_idx]);
        let k = whole_page(kv.keys(layer, page, kv_head, 0..num_keys), head_dim);
        let v = whole_page(kv.values(layer, page, kv_head, 0..num_keys), head_dim);
        state.scores(&scaled_q, &k);
        for row in 0..num_rows {
            let Range { start, end } = tile.visible(attention, row / group);
            let within =
                |position: usize| position.clamp(first_key, first_key + PAGE_SIZE) - first_key;
            state.softmax(row, within(start)..within(end));
        }
        state.accumulate(&v);
    }
    state.finish(num_rows)
}

/// Q of the tile, times the softmax scale: `[padded_rows, head_dim]`, zeros after the last row.
fn gather_q(
    attention: &Attention,
    tile: &QueryTile,
    kv_head: usize,
    q: &Rows,
    padded_rows: usize,
) -> Vec<f32> {
    let width = group(attention) * attention.head_dim;
    let mut scaled = Vec::with_capacity(padded_rows * attention.head_dim);
    for token in tile.tokens.clone() {
        let heads = &q.row(token)[kv_head * width..][..width];
        scaled.extend(heads.iter().map(|q| q * attention.softmax_scale));
    }
    scaled.resize(padded_rows * attention.head_dim, 0.0);
    scaled
}

/// A page's rows, with zeros where it is not filled yet: there the pool holds anything, and `0 * NaN` is NaN.
fn whole_page(rows: Cow<[f32]>, head_dim: usize) -> Cow<[f32]> {
    if rows.len() == PAGE_SIZE * head_dim {
        return rows;
    }
    let mut page = rows.into_owned();
    page.resize(PAGE_SIZE * head_dim, 0.0);
    page.into()
}

/// The accumulators of a query tile.
struct TileState {
    head_dim: usize,
    padded_rows: usize,
    /// S, then P, of one page: `[padded_rows, PAGE_SIZE]`.
    scores: Vec<f32>,
    /// O before its division by the row sum: `[padded_rows, head_dim]`.
    out: Vec<f32>,
    row_max: Vec<f32>,
    row_sum: Vec<f32>,
}

impl TileState {
    fn new(num_rows: usize, head_dim: usize) -> Self {
        let padded_rows = num_rows.max(MIN_ROWS);
        TileState {
            head_dim,
            padded_rows,
            scores: vec![0.0; padded_rows * PAGE_SIZE],
            out: vec![0.0; padded_rows * head_dim],
            row_max: vec![f32::NEG_INFINITY; num_rows],
            row_sum: vec![0.0; num_rows],
        }
    }

    /// `S = Q K^T`. nalgebra is column-major: a row-major matrix is its transpose there, `S^T = K Q^T`.
    fn scores(&mut self, q: &[f32], k: &[f32]) {
        let (rows, d) = (self.padded_rows, self.head_dim);
        let k = DMatrixView::from_slice_with_strides(k, PAGE_SIZE, d, d, 1);
        let q = DMatrixView::from_slice(q, d, rows);
        DMatrixViewMut::from_slice(&mut self.scores, PAGE_SIZE, rows).gemm(1.0, &k, &q, 0.0);
    }

    /// One row's step of the online softmax, over the keys `visible` of the page: S becomes P.
    fn softmax(&mut self, row: usize, visible: Range<usize>) {
        let scores = &mut self.scores[row * PAGE_SIZE..][..PAGE_SIZE];
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        let max = scores.iter().copied().fold(self.row_max[row], f32::max);
        if visible.is_empty() || max == f32::NEG_INFINITY {
            scores.fill(0.0);
            return;
        }
        let rescale = exp(self.row_max[row] - max);
        self.row_max[row] = max;
        scores.iter_mut().for_each(|score| *score = exp(*score - max));
        self.row_sum[row] = self.row_sum[row] * rescale + sum(scores);
        if rescale != 1.0 {
            let out = &mut self.out[row * self.head_dim..][..self.head_dim];
            out.iter_mut().for_each(|out| *out *= rescale);
        }
    }

    /// `O += P V`, as `O^T += V^T P^T`.
    fn accumulate(&mut self, v: &[f32]) {
        let (rows, d) = (self.padded_rows, self.head_dim);
        let v = DMatrixView::from_slice(v, d, PAGE_SIZE);
        let p = DMatrixView::from_slice(&self.scores, PAGE_SIZE, rows);
        DMatrixViewMut::from_slice(&mut self.out, d, rows).gemm(1.0, &v, &p, 1.0);
    }

    fn finish(mut self, num_rows: usize) -> Vec<f32> {
        self.out.truncate(num_rows * self.head_dim);
        for (row, sum) in self.out.chunks_exact_mut(self.head_dim).zip(&self.row_sum) {
            row.iter_mut().for_each(|out| *out /= sum);
        }
        self.out
    }
}

/// The sum of a page's probabilities, in the vector lanes' order.
fn sum(values: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0.0; LANES];
    for values in values.as_chunks::<LANES>().0 {
        lanes.iter_mut().zip(values).for_each(|(lane, value)| *lane += value);
    }
    lanes.iter().sum()
}
