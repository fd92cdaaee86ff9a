//! Attention of many query rows: FlashAttention's tiling (arXiv:2205.14135) with matrix products on the CPU.
//!
//! A query tile packs the query heads of one KV head, `[tokens * group, head_dim]`, in panels of rows. The key loop
//! takes a page at a time: `S^T = K Q^T`, mask, online softmax, `O += P V`. S is transposed, so that a vector holds a
//! key's scores of as many rows: no operation goes across lanes. The bits of a row depend on its own position alone:
//! keys come in whole pages, and a key that a row does not see contributes an exact zero.

use super::products::{self, Strided};
use super::{Keys, Operation, group, positions_seen};
use crate::activations::Rows;
use crate::exp::exp;
use crate::kv::{KvCache, row_elems};
use crate::ops::Capped;
use crate::vectors::{Vectors, WithVectors, dispatch};
use plan::{Attention, PAGE_SIZE};
use pulp::Arch;
use std::ops::Range;

/// Rows of a query tile: enough that the conversion of K and V is a small part of it.
const TILE_ROWS: usize = 128;
/// Rows of a panel, whose Q stays in the first-level cache during the products with a page.
const PANEL_ROWS: usize = 64;
/// Rows of a panel come in multiples of this: whole vectors.
const ROW_BLOCK: usize = 16;

/// Tokens of a query tile.
pub fn tile_tokens(attention: &Attention) -> usize {
    (TILE_ROWS / group(attention)).max(1)
}

/// The tokens of a query tile, and where their keys are.
pub struct QueryTile<'a> {
    /// Rows of the step's Q.
    pub tokens: Range<usize>,
    /// Keys of the first token.
    pub first: Keys<'a>,
    /// Position of the first token, of `kv_len` of the sequence.
    pub position: usize,
    pub kv_len: usize,
}

impl QueryTile<'_> {
    /// Positions of the keys that the `token`-th token of the tile sees.
    fn visible(&self, attention: &Attention, token: usize) -> Range<usize> {
        positions_seen(attention, self.position + token, self.kv_len)
    }
}

/// `softmax(q K^T * softmax_scale) V` of the query heads of `kv_head`: `[tokens, group * head_dim]`.
pub fn attend(
    operation: Operation,
    tile: &QueryTile,
    kv_head: usize,
    q: &Rows,
    arch: Arch,
) -> Vec<f32> {
    let attention = operation.attention;
    let num_rows = tile.tokens.len() * group(attention);
    let mut out = vec![0.0; num_rows * attention.head_dim];
    dispatch(arch, TileWork { operation, tile, kv_head, q, out: &mut out });
    out
}

/// [`attend`], compiled for vector registers.
struct TileWork<'a> {
    operation: Operation<'a>,
    tile: &'a QueryTile<'a>,
    kv_head: usize,
    q: &'a Rows<'a>,
    out: &'a mut [f32],
}

impl WithVectors for TileWork<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let TileWork { operation, tile, kv_head, q, out } = self;
        let Operation { attention, kv, .. } = operation;
        let &Attention { layer, head_dim, .. } = attention;
        let width = row_elems(head_dim);
        let mut buffer = vec![0.0; PAGE_SIZE * width];
        let mut panels: Vec<Panel> = (0..out.len() / head_dim)
            .step_by(PANEL_ROWS)
            .map(|first| Panel::new(first..(first + PANEL_ROWS).min(out.len() / head_dim), width))
            .collect();
        for panel in &mut panels {
            panel.gather_q(attention, kv, tile, kv_head, q);
            panel.begin_softmax(operation, kv_head);
        }

        let last = tile.visible(attention, tile.tokens.len() - 1);
        for page_idx in tile.first.positions.start / PAGE_SIZE..last.end.div_ceil(PAGE_SIZE) {
            let first_key = page_idx * PAGE_SIZE;
            let num_keys = PAGE_SIZE.min(last.end - first_key);
            let page = tile.first.pages[page_idx];
            let k = kv.keys(layer, page, kv_head, 0..num_keys, &mut buffer);
            for panel in &mut panels {
                panel.scores(simd, k);
                panel.cap(simd, attention, num_keys);
                panel.mask(attention, tile, first_key..first_key + num_keys);
                panel.softmax(simd, num_keys);
            }
            let v = kv.values(layer, page, kv_head, 0..num_keys, &mut buffer);
            for panel in &mut panels {
                panel.accumulate(simd, v);
            }
        }
        for (panel, out) in panels.iter().zip(out.chunks_mut(PANEL_ROWS * head_dim)) {
            panel.finish(out, head_dim);
        }
    }
}

/// Rows of a query tile, and their accumulators.
struct Panel {
    /// Rows of the tile.
    rows: Range<usize>,
    /// Columns of the transposed matrices: at least as many as rows.
    columns: usize,
    /// Elements of a row of K, of V and of O.
    width: usize,
    /// Q, scaled: `[width, columns]`.
    q: Vec<f32>,
    /// S, then P, of one page: `[PAGE_SIZE, columns]`.
    scores: Vec<f32>,
    /// O before its division by the row sum: `[rows, width]`.
    out: Vec<f32>,
    row_max: [f32; PANEL_ROWS],
    row_sum: [f32; PANEL_ROWS],
}

impl Panel {
    fn new(rows: Range<usize>, width: usize) -> Self {
        let columns = rows.len().next_multiple_of(ROW_BLOCK);
        Panel {
            columns,
            width,
            q: vec![0.0; width * columns],
            scores: vec![0.0; PAGE_SIZE * columns],
            out: vec![0.0; rows.len() * width],
            row_max: [f32::NEG_INFINITY; PANEL_ROWS],
            row_sum: [0.0; PANEL_ROWS],
            rows,
        }
    }

    /// Takes Q of its rows, times the softmax scale.
    fn gather_q(
        &mut self,
        attention: &Attention,
        kv: &KvCache,
        tile: &QueryTile,
        kv_head: usize,
        q: &Rows,
    ) {
        let (group, head_dim) = (group(attention), attention.head_dim);
        let mut scaled = vec![0.0; head_dim];
        for (column, row) in self.rows.clone().enumerate() {
            let head = kv_head * group + row % group;
            let q = &q.row(tile.tokens.start + row / group)[head * head_dim..][..head_dim];
            for (scaled, q) in scaled.iter_mut().zip(q) {
                *scaled = q * attention.softmax_scale;
            }
            kv.rotate_as_keys(&mut scaled);
            for (q, scaled) in self.q.chunks_exact_mut(self.columns).zip(&scaled) {
                q[column] = *scaled;
            }
        }
    }

    /// Each row's softmax begins with the sink of its head.
    fn begin_softmax(&mut self, operation: Operation, kv_head: usize) {
        let group = group(operation.attention);
        for (column, row) in self.rows.clone().enumerate() {
            let of_sink = operation.softmax_of_sink(kv_head * group + row % group);
            [self.row_max[column], self.row_sum[column]] = of_sink;
        }
    }

    /// `S^T = K Q^T`.
    #[inline(always)]
    fn scores<V: Vectors>(&mut self, simd: V, k: &[f32]) {
        let scores = &mut self.scores[..k.len() / self.width * self.columns];
        scores.fill(0.0);
        let k = Strided { data: k, strides: [self.width, 1] };
        products::multiply_add(simd, k, &self.q, self.columns, scores);
    }

    /// Caps the scores of a page.
    #[inline(always)]
    fn cap<V: Vectors>(&mut self, simd: V, attention: &Attention, num_keys: usize) {
        if let Some(cap) = attention.softcap {
            Capped { scores: &mut self.scores[..num_keys * self.columns], cap }.run(simd);
        }
    }

    /// Makes the scores of keys that a row does not see minus infinity.
    fn mask(&mut self, attention: &Attention, tile: &QueryTile, keys: Range<usize>) {
        let group = group(attention);
        for (column, row) in self.rows.clone().enumerate() {
            let Range { start, end } = tile.visible(attention, row / group);
            let within = |position: usize| position.clamp(keys.start, keys.end) - keys.start;
            for key in (0..within(start)).chain(within(end)..keys.len()) {
                self.scores[key * self.columns + column] = f32::NEG_INFINITY;
            }
        }
    }

    /// A step of the online softmax, over the keys of a page: S becomes P.
    #[inline(always)]
    fn softmax<V: Vectors>(&mut self, simd: V, num_keys: usize) {
        let scores = &mut self.scores[..num_keys * self.columns];
        let mut max = self.row_max;
        for scores in scores.chunks_exact(self.columns) {
            for (max, &score) in max.iter_mut().zip(scores) {
                *max = if score > *max { score } else { *max };
            }
        }
        let mut rescale = [0.0; PANEL_ROWS];
        for row in 0..PANEL_ROWS {
            rescale[row] = exp(simd, self.row_max[row] - max[row]);
            self.row_max[row] = max[row];
            if max[row] == f32::NEG_INFINITY {
                // No key was visible so far.
                (max[row], rescale[row]) = (0.0, 1.0);
            }
            self.row_sum[row] *= rescale[row];
        }
        let (max, sums) = (&max[..self.columns], &mut self.row_sum[..self.columns]);
        for scores in scores.chunks_exact_mut(self.columns) {
            for ((score, max), sum) in scores.iter_mut().zip(max).zip(&mut *sums) {
                *score = exp(simd, *score - max);
                *sum += *score;
            }
        }
        for (out, rescale) in self.out.chunks_exact_mut(self.width).zip(rescale) {
            if rescale != 1.0 {
                out.iter_mut().for_each(|out| *out *= rescale);
            }
        }
    }

    /// `O += P V`.
    #[inline(always)]
    fn accumulate<V: Vectors>(&mut self, simd: V, v: &[f32]) {
        let p = Strided { data: &self.scores, strides: [1, self.columns] };
        products::multiply_add(simd, p, v, self.width, &mut self.out);
    }

    fn finish(&self, out: &mut [f32], head_dim: usize) {
        let rows = self.out.chunks_exact(self.width).zip(&self.row_sum);
        for (out, (row, sum)) in out.chunks_exact_mut(head_dim).zip(rows) {
            out.iter_mut().zip(row).for_each(|(out, value)| *out = value / sum);
        }
    }
}
