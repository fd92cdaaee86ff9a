//! How attention over many keys is split, and its parts are put together again.

use super::tile::AttentionElement;
use core::ops::Range;
use cuda_std::prelude::*;

/// Fewest keys of a split: under that the combination costs more than the split saves. A guess.
pub(super) const MIN_SPLIT_LEN: u32 = 64;

/// Columns that a thread combines at once: 16 bytes of f32.
pub(super) const FRAGMENT: u32 = 4;

/// The tiles of a sequence's keys in runs of the same length: they follow from the sequence alone.
pub(super) struct Splits {
    /// Most splits.
    pub max: u32,
    /// Where the first tile with a visible key starts.
    first_key: u32,
    end_key: u32,
    /// Keys of a split.
    split_len: u32,
    /// Splits that have keys.
    pub count: u32,
}

impl Splits {
    /// The visible keys of a sequence, at most `max` splits of tiles of `block_n`.
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

    /// The keys of `split`, from the start of a tile on; none past the last split.
    #[inline(always)]
    pub fn keys(&self, split: u32) -> Range<u32> {
        let key = |split: u32| self.first_key + split * self.split_len;
        key(split)..key(split + 1).min(self.end_key)
    }
}

/// What attention to some of the keys gives, in [`FRAGMENT`] columns: `values / sum` is the result.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// The largest score, in powers of two.
    pub max: f32,
    /// The sum of the scores' exponentials over that of `max`.
    pub sum: f32,
    /// Values, weighted by the same.
    pub values: [f32; FRAGMENT as usize],
}

impl Part {
    /// Writes the result to the columns from `column` on, of those that a head has.
    ///
    /// # Safety
    /// 1. `out` holds `head_dim` elements.
    #[inline(always)]
    pub unsafe fn store<E: AttentionElement>(self, out: GlobalMut<E>, column: u32, head_dim: u32) {
        let scale = if self.sum > 0.0 { math::rcp_approx(self.sum) } else { 0.0 };
        for i in 0..FRAGMENT {
            if column + i < head_dim {
                let value = self.values[i as usize] * scale;
                // SAFETY: inside, by the check.
                unsafe { out.set((column + i) as usize, E::from_f32(value)) };
            }
        }
    }
}

/// All `parts`, which `part` gives, in their order; `max_of` gives the largest score of one. One of
/// them at least has seen a key.
#[inline(always)]
pub(super) fn combine(
    parts: Range<u32>,
    max_of: impl Fn(u32) -> f32,
    part: impl Fn(u32) -> Part,
) -> Part {
    let mut max = f32::NEG_INFINITY;
    for i in parts.clone() {
        max = math::max(max, max_of(i));
    }
    let (mut sum, mut values) = (0.0, [0.0; FRAGMENT as usize]);
    for i in parts {
        let part = part(i);
        let weight = math::exp2_approx(part.max - max);
        sum = math::fma(weight, part.sum, sum);
        unroll!(column in 0..FRAGMENT as usize, {
            values[column] = math::fma(weight, part.values[column], values[column]);
        });
    }
    Part { max, sum, values }
}
