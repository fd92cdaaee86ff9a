//! Attention over a paged cache.

use crate::{Approx, SUM_ROUNDING};
use std::ops::Range;

/// Where the keys of sequences are in a pool `[pages, num_kv_heads, page_size, head_dim]`.
#[derive(Clone, Debug)]
pub struct Pages {
    /// Keys of a page.
    pub page_size: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Width of the table.
    pub max_pages: usize,
    /// `[sequences, max_pages]`.
    pub table: Vec<u32>,
}

impl Pages {
    /// Pages for these positions, in descending order.
    pub fn descending(
        kv_lens: &[usize],
        page_size: usize,
        num_kv_heads: usize,
        head_dim: usize,
    ) -> Self {
        let max_pages = kv_lens.iter().max().unwrap_or(&0).div_ceil(page_size);
        let table = (0..(kv_lens.len() * max_pages) as u32).rev().collect();
        Pages { page_size, num_kv_heads, head_dim, max_pages, table }
    }

    /// Pages of the pool.
    pub fn num_pages(&self) -> usize {
        self.table.len()
    }

    /// Elements of the pool.
    pub fn elems(&self) -> usize {
        self.num_pages() * self.num_kv_heads * self.page_size * self.head_dim
    }

    /// The slot of a position.
    pub fn slot(&self, seq: usize, position: usize) -> usize {
        let page = self.table[seq * self.max_pages + position / self.page_size];
        page as usize * self.page_size + position % self.page_size
    }

    /// Where the row of a head of a slot starts.
    pub fn row_of_slot(&self, slot: usize, kv_head: usize) -> usize {
        let head = slot / self.page_size * self.num_kv_heads + kv_head;
        (head * self.page_size + slot % self.page_size) * self.head_dim
    }

    /// Where the row of a head of a position starts.
    pub fn row(&self, seq: usize, kv_head: usize, position: usize) -> usize {
        self.row_of_slot(self.slot(seq, position), kv_head)
    }
}

/// Softmax of the scaled scores of the keys that a query sees, times their values.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// New tokens of each sequence, and its positions with them.
    pub seqs: &'a [(usize, usize)],
    /// Query heads.
    pub num_heads: usize,
    /// Whether a token sees those before it and itself alone.
    pub causal: bool,
    /// Positions that a token sees, itself among them; so many to each side if not causal.
    pub window: Option<usize>,
    /// Multiplies the scores.
    pub scale: f32,
    /// Bends the scaled scores `s` to `softcap * tanh(s / softcap)`.
    pub softcap: Option<f32>,
    /// Largest relative error of a probability.
    pub rounding: f64,
    /// A score of each query head that has no value, in turn; none if empty.
    pub sinks: &'a [f32],
}

/// What attention gives, before it is stored.
pub struct Attended {
    /// `[tokens, num_heads, head_dim]`.
    pub out: Vec<Approx>,
    /// `[tokens, num_heads]`: the logarithms of the sums of the exponentials of the scores.
    pub lse: Vec<Approx>,
}

impl Attention<'_> {
    /// The keys that a query of a sequence sees.
    pub fn keys(&self, seq: usize, query: usize) -> Range<usize> {
        let (q_len, kv_len) = self.seqs[seq];
        let after_own = kv_len - q_len + query + 1;
        let start = self.window.map_or(0, |window| after_own.saturating_sub(window));
        match self.causal {
            true => start..after_own,
            false => start..self.window.map_or(kv_len, |window| kv_len.min(after_own + window - 1)),
        }
    }

    /// The outputs of all tokens: `q` is `[tokens, num_heads, head_dim]`, `k` and `v` are pools.
    pub fn attend(&self, q: &[f32], k: &[f64], v: &[f64], pages: &Pages) -> Attended {
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        let queries = |seq: usize| (0..self.seqs[seq].0).map(move |query| (seq, query));
        for (seq, query) in (0..self.seqs.len()).flat_map(queries) {
            for head in 0..self.num_heads {
                let q = &q[out.len()..][..pages.head_dim];
                let kv_head = head / (self.num_heads / pages.num_kv_heads);
                let row = |key| pages.row(seq, kv_head, key);
                let sink = match self.sinks {
                    [] => f64::NEG_INFINITY,
                    sinks => sinks[head % sinks.len()].into(),
                };
                lse.push(self.head(q, k, v, sink, (self.keys(seq, query), row, &mut out)));
            }
        }
        Attended { out, lse }
    }

    /// Appends the output of a head; its `lse`.
    fn head(
        &self,
        q: &[f32],
        k: &[f64],
        v: &[f64],
        sink: f64,
        (keys, row, out): (Range<usize>, impl Fn(usize) -> usize, &mut Vec<Approx>),
    ) -> Approx {
        let scale = f64::from(self.scale);
        // Scores, and how far off the worst of them may be.
        let mut off: f64 = 0.0;
        let scores: Vec<f64> = keys
            .clone()
            .map(|key| {
                let k = &k[row(key)..][..q.len()];
                let terms = q.iter().zip(k).map(|(&q, k)| scale * f64::from(q) * k);
                let (sum, all) = terms.fold((0.0, 0.0), |(s, a), x| (s + x, a + f64::abs(x)));
                off = off.max(SUM_ROUNDING * (1.0 + all));
                let Some(cap) = self.softcap.map(f64::from) else { return sum };
                let capped = cap * (sum / cap).tanh();
                off = off.max(SUM_ROUNDING * (1.0 + all) + 1e-5 * capped.abs());
                capped
            })
            .collect();
        let max = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let total: f64 = weights.iter().sum::<f64>() + (sink - max).exp();
        let weights: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        for column in 0..q.len() {
            let values = || keys.clone().map(|key| v[row(key) + column]).zip(&weights);
            let sum: f64 = values().map(|(v, weight)| weight * v).sum();
            let magnitude: f64 = values().map(|(v, weight)| f64::abs(weight * v)).sum();
            let spread: f64 = values().map(|(v, weight)| weight * f64::abs(v - sum)).sum();
            let bound = (self.rounding + 1e-5) * (magnitude + sum.abs()) + 2.0 * off * spread;
            out.push(Approx::new(sum, bound));
        }
        Approx::new(max + total.ln(), self.rounding + 1e-5 * (1.0 + max.abs()) + 2.0 * off)
    }
}
