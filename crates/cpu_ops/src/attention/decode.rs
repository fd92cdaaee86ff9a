//! Attention of single tokens: inner products, and keys in parts that are merged (Flash-Decoding).
//!
//! The unit of work is one KV head of one token over one part of its keys. The query heads of the KV
//! head read K and V once: a block of keys is converted to f32 where it stays in the first-level
//! cache. A part ends at a multiple of [`PART_KEYS`], so that the bits of a token depend neither on
//! the number of threads nor on the other tokens of the step.

use super::{Keys, Operation, group, products};
use crate::activations::Rows;
use crate::exp::exp;
use crate::kv::{KvCache, row_elems};
use crate::ops::Capped;
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
/// Least number of units for each thread, where there are heads enough.
const UNITS_PER_THREAD: usize = 2;
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
pub fn attend(operation: Operation, q: &Rows, mut tokens: Vec<Token>, arch: Arch) {
    let Operation { attention, kv, .. } = operation;
    let &Attention { num_heads, head_dim, .. } = attention;
    let (group, width) = (group(attention), row_elems(head_dim));
    let parts = tokens.iter().enumerate();
    let parts: Vec<_> =
        parts.flat_map(|(row, token)| token.parts().map(move |part| (row, part))).collect();
    let heads = heads_of_unit(attention, parts.len());
    let units_of_part = num_heads / heads;
    let (mut outs, mut softmaxes) = Partials::zeroed(attention, parts.len());

    let longest = tokens.iter().map(|token| token.keys.positions.len()).max().unwrap_or(1);
    let unit_work = 2 * longest.min(PART_KEYS) * heads * head_dim;
    let outs_of_units = outs.par_chunks_exact_mut(heads * width);
    let units = outs_of_units.zip(softmaxes.par_chunks_exact_mut(heads)).enumerate();
    units.with_min_len(MIN_TASK_WORK.div_ceil(unit_work)).for_each_init(
        || Scratch::new(attention, heads),
        |scratch, (unit, (out, softmax))| {
            let (row, part) = parts[unit / units_of_part];
            let Token { index, ref keys, .. } = tokens[row];
            let Range { start, end } = keys.positions;
            let positions = start.max(part * PART_KEYS)..end.min((part + 1) * PART_KEYS);
            let first_head = unit % units_of_part * heads;
            let q = &q.row(index)[first_head * head_dim..][..heads * head_dim];
            let kv_heads = first_head / group..(first_head + heads) / group;
            let pages = keys.pages;
            dispatch(
                arch,
                Unit { attention, kv, pages, positions, kv_heads, q, scratch, out, softmax },
            );
        },
    );
    let mut rest = Partials { outs: &outs, softmaxes: &softmaxes };
    let merges = tokens.iter_mut().map(|token| {
        let partials = rest.split_off(token.parts().len() * num_heads, width);
        Merge { operation, partials, out: token.out }
    });
    let merges: Vec<Merge> = merges.collect();
    let merge_work = longest.div_ceil(PART_KEYS) * num_heads * width;
    let merges = merges.into_par_iter().with_min_len(MIN_TASK_WORK.div_ceil(merge_work));
    merges.for_each(|merge| dispatch(arch, merge));
}

/// Query heads of a unit. A part of the cache is read in the order of the memory if they are all,
/// but there should be units enough for the threads.
fn heads_of_unit(attention: &Attention, num_parts: usize) -> usize {
    let wanted = (UNITS_PER_THREAD * rayon::current_num_threads()).div_ceil(num_parts.max(1));
    let divides = |units: &usize| attention.num_kv_heads.is_multiple_of(*units);
    let units = (wanted..attention.num_kv_heads).find(divides);
    attention.num_heads / units.unwrap_or(attention.num_kv_heads)
}

/// Buffers of a task.
struct Scratch {
    /// `[heads, row_elems]`.
    q: Vec<f32>,
    /// S, then P: `[heads, PART_KEYS]`.
    scores: Vec<f32>,
    /// A block of K or of V.
    block: Vec<f32>,
}

impl Scratch {
    fn new(attention: &Attention, heads: usize) -> Self {
        let width = row_elems(attention.head_dim);
        Scratch {
            q: vec![0.0; heads * width],
            scores: vec![0.0; heads * PART_KEYS],
            block: vec![0.0; block_keys(width) * width],
        }
    }
}

/// Keys of a block: a power of two, so that blocks do not straddle pages.
fn block_keys(width: usize) -> usize {
    (BLOCK_ELEMS / width.next_power_of_two()).clamp(4, PAGE_SIZE)
}

/// Largest score of a head in a part, and the sum of the exponentials.
type Softmax = [f32; 2];

/// What parts of the keys come to.
#[derive(Clone, Copy)]
struct Partials<'a> {
    /// O before its division by the sums: `[parts, num_heads, row_elems]`.
    outs: &'a [f32],
    /// `[parts, num_heads]`.
    softmaxes: &'a [Softmax],
}

impl<'a> Partials<'a> {
    fn zeroed(attention: &Attention, num_parts: usize) -> (Vec<f32>, Vec<Softmax>) {
        let heads = num_parts * attention.num_heads;
        (vec![0.0; heads * row_elems(attention.head_dim)], vec![[0.0; 2]; heads])
    }

    /// Takes the first `heads` away from these.
    fn split_off(&mut self, heads: usize, width: usize) -> Partials<'a> {
        let (outs, other_outs) = self.outs.split_at(heads * width);
        let (softmaxes, other_softmaxes) = self.softmaxes.split_at(heads);
        *self = Partials { outs: other_outs, softmaxes: other_softmaxes };
        Partials { outs, softmaxes }
    }
}

/// Part of the keys of a token, and some KV heads.
struct Unit<'a> {
    attention: &'a Attention,
    kv: &'a KvCache,
    pages: &'a [u32],
    /// Not empty.
    positions: Range<usize>,
    kv_heads: Range<usize>,
    /// `[heads * head_dim]`, of the query heads of the KV heads.
    q: &'a [f32],
    scratch: &'a mut Scratch,
    /// Zeros.
    out: &'a mut [f32],
    softmax: &'a mut [Softmax],
}

impl WithVectors for Unit<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let Unit { attention, kv, pages, positions, kv_heads, q, scratch, out, softmax } = self;
        let &Attention { layer, head_dim, softmax_scale, softcap, .. } = attention;
        let (group, width) = (group(attention), row_elems(head_dim));
        let Scratch { q: scaled_q, scores, block } = scratch;
        for (scaled, q) in scaled_q.chunks_exact_mut(width).zip(q.chunks_exact(head_dim)) {
            let scaled = &mut scaled[..head_dim];
            scaled.iter_mut().zip(q).for_each(|(scaled, q)| *scaled = q * softmax_scale);
            kv.rotate_as_keys(scaled);
        }

        for positions_of_page in blocks(&positions, PAGE_SIZE) {
            let page = pages[positions_of_page.start / PAGE_SIZE];
            let q = scaled_q.chunks_exact(group * width);
            let heads = kv_heads.clone().zip(q).zip(scores.chunks_exact_mut(group * PART_KEYS));
            for ((kv_head, q), scores) in heads {
                for keys in blocks(&positions_of_page, block_keys(width)) {
                    let out = &mut scores[keys.start - positions.start..];
                    let rows = rows_of_page(&keys);
                    let k = kv.keys(layer, page, kv_head, rows, block);
                    products::inner_products(simd, q, k, width, out, PART_KEYS);
                }
            }
        }
        for (scores, softmax) in scores.chunks_exact_mut(PART_KEYS).zip(softmax) {
            let len = positions.len().next_multiple_of(LANES);
            if let Some(cap) = softcap {
                Capped { scores: &mut scores[..positions.len()], cap }.run(simd);
            }
            scores[positions.len()..len].fill(f32::NEG_INFINITY);
            *softmax = exponentials(simd, scores[..len].as_chunks_mut().0);
        }
        for positions_of_page in blocks(&positions, PAGE_SIZE) {
            let page = pages[positions_of_page.start / PAGE_SIZE];
            let out = out.chunks_exact_mut(group * width);
            let heads = kv_heads.clone().zip(out).zip(scores.chunks_exact(group * PART_KEYS));
            for ((kv_head, out), scores) in heads {
                for keys in blocks(&positions_of_page, block_keys(width)) {
                    let data = &scores[keys.start - positions.start..];
                    let p = Strided { data, strides: [PART_KEYS, 1] };
                    let rows = rows_of_page(&keys);
                    let v = kv.values(layer, page, kv_head, rows, block);
                    products::multiply_add(simd, p, v, width, out);
                }
            }
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
    operation: Operation<'a>,
    partials: Partials<'a>,
    /// `[num_heads * head_dim]`.
    out: &'a mut [f32],
}

impl WithVectors for Merge<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let Merge { operation, partials: Partials { outs, softmaxes }, out } = self;
        let &Attention { num_heads, head_dim, .. } = operation.attention;
        let width = row_elems(head_dim);
        for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let softmaxes = || softmaxes[head..].iter().step_by(num_heads);
            let [sink, sum] = operation.softmax_of_sink(head);
            let max = softmaxes().fold(sink, |max, &[of_part, _]| max.max(of_part));
            let outs = outs[head * width..].chunks(num_heads * width);
            let mut total = sum * exp(simd, sink - max);
            out.fill(0.0);
            for (values, &[max_of_part, sum]) in outs.zip(softmaxes()) {
                let weight = exp(simd, max_of_part - max);
                total += sum * weight;
                out.iter_mut().zip(values).for_each(|(out, value)| *out += value * weight);
            }
            out.iter_mut().for_each(|out| *out /= total);
        }
    }
}
