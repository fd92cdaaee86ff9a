//! How prefill splits the keys of its tiles.
//!
//! A chunk of a long prompt has few tiles, each against all keys before it: split, they keep all
//! SMs busy. A part costs a partial result, and its share of combining them.

use super::PrefillItem;
use crate::attention::work::Part;
use core::cmp::Reverse;

/// Fewest keys of a part.
const MIN_KEYS: usize = 512;

/// What a part costs beside its keys, as a number of keys.
const OVERHEAD_KEYS: usize = 512;

/// Most partial results of a step; it bounds the workspace.
const MAX_SLOTS: usize = 256;

/// Most parts of a tile, so that their number fits in an item.
const MAX_PARTS: usize = 128;

/// Most partial results of a step, of sequences of up to `max_kv_len` positions.
pub(in crate::attention) fn most_slots(max_kv_len: usize) -> usize {
    if max_kv_len < 2 * MIN_KEYS { 0 } else { MAX_SLOTS }
}

/// What the parts depend on beside the tiles.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct KeySplitting {
    /// Keys of a block, of which a part is several.
    pub block_n: usize,
    /// Blocks of threads that run at once.
    pub num_sms: usize,
}

impl KeySplitting {
    /// The parts of `tiles`, the longest first; the tiles if they are enough.
    pub fn split(&self, tiles: Vec<PrefillItem>) -> Vec<PrefillItem> {
        let part_blocks = self.part_blocks(&tiles);
        if tiles.iter().all(|tile| self.num_blocks(tile) <= part_blocks) {
            return tiles;
        }
        let mut first_slot = 0;
        let mut parts = Vec::new();
        for tile in tiles {
            let num_splits = self.num_blocks(&tile).div_ceil(part_blocks).max(1) as u32;
            if num_splits == 1 {
                parts.push(tile);
                continue;
            }
            parts.extend((0..num_splits).map(|split| {
                let part = Part::new(split, num_splits, first_slot);
                self.part(tile, part, part_blocks)
            }));
            first_slot += num_splits;
        }
        parts.sort_by_key(|part| Reverse(self.num_blocks(part)));
        parts
    }

    /// Blocks of keys of an item; the first begins at a multiple of their size.
    fn num_blocks(&self, item: &PrefillItem) -> usize {
        item.end_key.div_ceil(self.block_n as u32) as usize - item.first_key as usize / self.block_n
    }

    fn part(&self, tile: PrefillItem, part: Part, part_blocks: usize) -> PrefillItem {
        let first_block = tile.first_key as usize / self.block_n;
        let key = |split: u32| {
            let block = first_block + split as usize * part_blocks;
            (block * self.block_n) as u32
        };
        PrefillItem {
            first_key: key(part.split()).max(tile.first_key),
            end_key: key(part.split() + 1).min(tile.end_key),
            part,
            ..tile
        }
    }

    /// Most blocks of a part: with as many parts of the longest tile as end soonest.
    fn part_blocks(&self, tiles: &[PrefillItem]) -> usize {
        let blocks: Vec<usize> = tiles.iter().map(|tile| self.num_blocks(tile)).collect();
        let (longest, total) = (blocks.iter().copied().max().unwrap_or(0), blocks.iter().sum());
        let mut best = (usize::MAX, longest);
        for num_parts in 1..=MAX_PARTS.min(longest * self.block_n / MIN_KEYS).max(1) {
            let part_blocks = longest.div_ceil(num_parts);
            let parts: usize = blocks.iter().map(|blocks| blocks.div_ceil(part_blocks)).sum();
            if num_parts > 1 && parts > MAX_SLOTS {
                break;
            }
            best = best.min((self.time(part_blocks, parts, total), part_blocks));
        }
        best.1
    }

    /// About how long `parts` of up to `part_blocks` take, `total` blocks in all, in keys: as many
    /// at once as there are SMs.
    fn time(&self, part_blocks: usize, parts: usize, total: usize) -> usize {
        let waves = parts.div_ceil(self.num_sms);
        // At most so many waves of parts, and at most the SMs' mean load and one part more, Graham's
        // bound of list scheduling.
        let blocks = (waves * part_blocks).min(total.div_ceil(self.num_sms) + part_blocks);
        blocks * self.block_n + waves * OVERHEAD_KEYS
    }
}
