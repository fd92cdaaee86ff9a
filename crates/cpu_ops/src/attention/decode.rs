//! Attention of single tokens: inner products, and keys in parts that are merged (Flash-Decoding).
//!
//! The unit of work is one KV head of one token over one part of its keys. The query heads of the KV
//! head read K and V once: a block of keys is converted to f32 where it stays in the first-level
//! cache. A part ends at a multiple of [`PART_KEYS`], so that the bits of a token depend neither on
//! the number of threads nor on the other tokens of the step.

use super::{Keys, group, products};
use crate::activations::Rows;
use crate::exp::exp;
use crate::kv::{KvCache, row_elems};
use crate::vectors::{Vectors, WithVectors, dispatch};
use plan::{Attention, PAGE_SIZE};
use products::Strided;
use pulp::Arch;
use rayon::prelude::*;
use std::ops::Range;

/// Positions of a part of the keys.
const PART_KEYS: usize = 256;
/// Elements of a block of keys or values: with the queries and the output they fit in the
/// first-level cache.
const BLOCK_ELEMS: usize = 4096;
/// Least number of multiply-adds in a parallel task: some microseconds of work.
const MIN_TASK_WORK: usize = 1 << 17;

/// A token, its keys and its output.
pub struct Token<'a> {
    /// Row of the step's Q.
    pub index: usize,
    pub keys: Keys<'a>,
    /// `[num_heads * head_dim]`.
    pub out: &'a mut [f32],
}

impl Token<'_> {
    fn parts(&self) -> Range<usize> {
        let Range { start, end } = self.keys.positions;
        start / PART_KEYS..end.div_ceil(PART_KEYS)
    }
}

/// `out = softmax(q K^T * softmax_scale) V` of each token.
pub fn attend(attention: &Attention, kv: &KvCache, q: &Rows, mut tokens: Vec<Token>, arch: Arch) {
    let num_kv_heads = attention.num_kv_heads;
    let mut units = Vec::new();
    for (row, token) in tokens.iter().enumerate() {
        for kv_head in 0..num_kv_heads {
            units.extend(token.parts().map(|part| (row, kv_head, part)));
        }
    }
    let partial_elems = Partial::elems(attention);
    let mut partials = vec![0.0; units.len() * partial_elems];
    let longest = tokens.iter().map(|token| token.keys.positions.len()).max().unwrap_or(1);
    let unit_work =
        2 * longest.min(PART_KEYS) * attention.num_heads / num_kv_heads * attention.head_dim;
    let units = partials.par_chunks_exact_mut(partial_elems).zip(&units);
    units.with_min_len(MIN_TASK_WORK.div_ceil(unit_work)).for_each_init(
        || Scratch::new(attention),
        |scratch, (partial, &(row, kv_head, part))| {
            let Token { index, ref keys, .. } = tokens[row];
            let Range { start, end } = keys.positions;
            let positions = start.max(part * PART_KEYS)..end.min((part + 1) * PART_KEYS);
            let partial = Partial::new(attention, partial);
            let q = q.row(index);
            let pages = keys.pages;
            dispatch(arch, Part { attention, kv, pages, positions, kv_head, q, scratch, partial });
        },
    );
    let mut rest = &mut partials[..];
    for token in &mut tokens {
        let len = num_kv_heads * token.parts().len() * partial_elems;
        let (partials, others) = rest.split_at_mut(len);
        rest = others;
        dispatch(arch, Merge { attention, partials, out: token.out });
    }
}

/// Buffers of a task.
struct Scratch {
    /// `[group, row_elems]`.
    q: Vec<f32>,
    /// S, then P: `[group, PART_KEYS]`.
    scores: Vec<f32>,
    /// A block of K or of V.
    block: Vec<f32>,
}

impl Scratch {
    fn new(attention: &Attention) -> Self {
        let (group, width) = (group(attention), row_elems(attention.head_dim));
        Scratch {
            q: vec![0.0; group * width],
            scores: vec![0.0; group * PART_KEYS],
            block: vec![0.0; block_keys(width) * width],
        }
    }
}

/// Keys of a block: a power of two, so that blocks do not straddle pages.
fn block_keys(width: usize) -> usize {
    (BLOCK_ELEMS / width.next_power_of_two()).clamp(4, PAGE_SIZE)
}

/// What a part of the keys comes to, for the query heads of a KV head.
struct Partial<'a> {
    /// O before its division by the sums: `[group, row_elems]`.
    out: &'a mut [f32],
    /// Largest score of each head, and the sum of the exponentials: `[group, 2]`.
    softmax: &'a mut [[f32; 2]],
}

impl<'a> Partial<'a> {
    fn elems(attention: &Attention) -> usize {
        group(attention) * (row_elems(attention.head_dim) + 2)
    }

    fn new(attention: &Attention, elems: &'a mut [f32]) -> Self {
        let len = group(attention) * row_elems(attention.head_dim);
        let (out, softmax) = elems.split_at_mut(len);
        Partial { out, softmax: softmax.as_chunks_mut().0 }
    }
}

/// Part of the keys of a token, and one KV head.
struct Part<'a> {
    attention: &'a Attention,
    kv: &'a KvCache,
    pages: &'a [u32],
    /// Not empty.
    positions: Range<usize>,
    kv_head: usize,
    /// `[num_heads * head_dim]`.
    q: &'a [f32],
    scratch: &'a mut Scratch,
    /// Zeros.
    partial: Partial<'a>,
}

impl WithVectors for Part<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let Part { attention, kv, pages, positions, kv_head, q, scratch, partial } = self;
        let &Attention { layer, head_dim, softmax_scale, .. } = attention;
        let (group, width) = (group(attention), row_elems(head_dim));
        let Scratch { q: scaled_q, scores, block } = scratch;
        let heads = q[kv_head * group * head_dim..].chunks_exact(head_dim);
        for (scaled, q) in scaled_q.chunks_exact_mut(width).zip(heads) {
            let scaled = &mut scaled[..head_dim];
            scaled.iter_mut().zip(q).for_each(|(scaled, q)| *scaled = q * softmax_scale);
            kv.rotate_as_keys(scaled);
        }

        for keys in blocks(&positions, block_keys(width)) {
            let (page, rows) = (pages[keys.start / PAGE_SIZE], rows_of_page(&keys));
            let k = kv.keys(layer, page, kv_head, rows, block);
            let out = &mut scores[keys.start - positions.start..];
            products::inner_products(simd, scaled_q, k, width, out, PART_KEYS);
        }
        for (scores, softmax) in scores.chunks_exact_mut(PART_KEYS).zip(&mut *partial.softmax) {
            let len = positions.len().next_multiple_of(LANES);
            scores[positions.len()..len].fill(f32::NEG_INFINITY);
            *softmax = exponentials(simd, scores[..len].as_chunks_mut().0);
        }
        for keys in blocks(&positions, block_keys(width)) {
            let (page, rows) = (pages[keys.start / PAGE_SIZE], rows_of_page(&keys));
            let v = kv.values(layer, page, kv_head, rows, block);
            let data = &scores[keys.start - positions.start..];
            let p = Strided { data, strides: [PART_KEYS, 1] };
            products::multiply_add(simd, p, v, width, partial.out);
        }
    }
}

/// `positions`, cut at multiples of `len`.
fn blocks(positions: &Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = *positions;
    (start / len..end.div_ceil(len))
        .map(move |block| start.max(block * len)..end.min((block + 1) * len))
}

/// The rows of their page that `positions` are.
fn rows_of_page(positions: &Range<usize>) -> Range<usize> {
    let start = positions.start % PAGE_SIZE;
    start..start + positions.len()
}

const LANES: usize = 16;

/// Replaces scores by `exp(score - max)`; returns the maximum and their sum.
#[inline(always)]
fn exponentials<V: Vectors>(simd: V, scores: &mut [[f32; LANES]]) -> [f32; 2] {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for scores in &*scores {
        for i in 0..LANES {
            lanes[i] = if scores[i] > lanes[i] { scores[i] } else { lanes[i] };
        }
    }
    let max = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    for scores in scores {
        for i in 0..LANES {
            scores[i] = exp(simd, scores[i] - max);
            sums[i] += scores[i];
        }
    }
    [max, sums.iter().sum()]
}

/// The parts of one token.
struct Merge<'a> {
    attention: &'a Attention,
    /// `[num_kv_heads, parts]` of them.
    partials: &'a mut [f32],
    out: &'a mut [f32],
}

impl WithVectors for Merge<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let Merge { attention, partials, out } = self;
        let (head_dim, group) = (attention.head_dim, group(attention));
        let partial_elems = Partial::elems(attention);
        let parts = partials.len() / attention.num_kv_heads;
        let heads = out.chunks_exact_mut(group * head_dim).zip(partials.chunks_exact_mut(parts));
        for (out, partials) in heads {
            for (h, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let mut max = f32::NEG_INFINITY;
                for partial in partials.chunks_exact_mut(partial_elems) {
                    max = max.max(Partial::new(attention, partial).softmax[h][0]);
                }
                out.fill(0.0);
                let mut total = 0.0;
                for partial in partials.chunks_exact_mut(partial_elems) {
                    let Partial { out: values, softmax } = Partial::new(attention, partial);
                    let [part_max, sum] = softmax[h];
                    let weight = exp(simd, part_max - max);
                    total += sum * weight;
                    let values = &values[h * row_elems(head_dim)..];
                    out.iter_mut().zip(values).for_each(|(out, value)| *out += value * weight);
                }
                out.iter_mut().for_each(|out| *out /= total);
            }
        }
    }
}
