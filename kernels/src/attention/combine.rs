//! Split-KV: how the keys of a sequence are split, and how partial results are combined.

use super::tile::AttentionElement;
use core::ops::Range;
use cuda_std::prelude::*;

/// Fewest keys of a split: with fewer, combining costs more than splitting saves. Not measured.
pub(super) const MIN_SPLIT_LEN: u32 = 64;

/// Columns that a thread combines at once: 16 bytes of f32.
pub(super) const VEC_ELEMS: u32 = 4;

/// The splits of a sequence's keys: runs of tiles of equal length. They depend on this sequence
/// alone.
pub(super) struct Splits {
    /// Most splits.
    pub max: u32,
    /// Start of the first tile with a visible key.
    first_key: u32,
    end_key: u32,
    /// Keys of a split.
    split_len: u32,
    /// Splits that have keys.
    pub count: u32,
}

impl Splits {
    /// Splits the visible keys of a sequence into at most `max` runs of tiles of `block_n`.
    #[inline(always)]
    pub fn new(visible: Range<u32>, block_n: u32, max: u32) -> Self {
        let first_tile = visible.start / block_n;
        let num_tiles = visible.end.div_ceil(block_n) - first_tile;
        let tiles = num_tiles.div_ceil(max.max(1)).max(MIN_SPLIT_LEN / block_n).max(1);
        Splits {
            max,
            first_key: first_tile * block_n,
            end_key: visible.end,
            split_len: tiles * block_n,
            count: num_tiles.div_ceil(tiles),
        }
    }

    /// The keys of `split`, which start at a tile; empty past the last split.
    #[inline(always)]
    pub fn keys(&self, split: u32) -> Range<u32> {
        let key = |split: u32| self.first_key + split * self.split_len;
        key(split)..key(split + 1).min(self.end_key)
    }
}

/// The partial result of attention over some of the keys, in [`VEC_ELEMS`] columns: `values / sum`
/// is the output.
#[derive(Clone, Copy)]
pub(super) struct PartialOut {
    /// The largest score, times `log2(e)`.
    pub max: f32,
    /// The sum of `exp2(score - max)`.
    pub sum: f32,
    /// The sum of `exp2(score - max) * v`.
    pub values: [f32; VEC_ELEMS as usize],
}

impl PartialOut {
    /// Stores the output from `column` on, up to `head_dim`.
    ///
    /// # Safety
    /// 1. `out` holds `head_dim` elements.
    #[inline(always)]
    pub unsafe fn store<E: AttentionElement>(self, out: GlobalMut<E>, column: u32, head_dim: u32) {
        let scale = if self.sum > 0.0 { math::rcp_approx(self.sum) } else { 0.0 };
        for i in 0..VEC_ELEMS {
            if column + i < head_dim {
                let value = self.values[i as usize] * scale;
                // SAFETY: inside, by the check.
                unsafe { out.set((column + i) as usize, E::from_f32(value)) };
            }
        }
    }
}

/// Combines partial results `partials`, in order. `partial` loads one, `max_score` only its largest
/// score. At least one has seen a key.
#[inline(always)]
pub(super) fn combine(
    partials: Range<u32>,
    max_score: impl Fn(u32) -> f32,
    partial: impl Fn(u32) -> PartialOut,
) -> PartialOut {
    let mut max = f32::NEG_INFINITY;
    for i in partials.clone() {
        max = math::max(max, max_score(i));
    }
    let (mut sum, mut values) = (0.0, [0.0; VEC_ELEMS as usize]);
    for i in partials {
        let partial = partial(i);
        let weight = math::exp2_approx(partial.max - max);
        sum = math::fma(weight, partial.sum, sum);
        unroll!(column in 0..VEC_ELEMS as usize, {
            values[column] = math::fma(weight, partial.values[column], values[column]);
        });
    }
    PartialOut { max, sum, values }
}
