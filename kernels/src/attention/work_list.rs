//! The work lists of a step, which the host writes beside the step's inputs.
//!
//! A sequence with at most [`Attention::max_decode_q_len`] new tokens decodes, any other one is a
//! prompt. Items of prompts come the longest first, so that blocks end together; the heads of a
//! query tile are adjacent, so that those of one KV head read K and V while they are in L2.

mod key_splitting;

pub(super) use key_splitting::{KeySplitting, most_slots};

use super::launcher::Attention;
use super::work::{ITEM_WORDS, Part, PrefillItem};
use crate::element::Dtype;
use crate::gemm::Gpu;
use crate::kv_cache::PAGE_SIZE;
use core::cmp::Reverse;
use core::ops::Range;

/// K and V that the items in flight share, at most: two thirds of the L2 of an H200.
const L2_BYTES: usize = 32 << 20;

/// An item, as the kernels read it.
pub type ItemWords = [u32; ITEM_WORDS as usize];

/// A sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqLens {
    /// New tokens.
    pub q_len: u32,
    /// Cached positions, those of the new tokens included.
    pub kv_len: u32,
}

/// A sequence of a step that is a prompt.
#[derive(Clone, Copy)]
struct Prompt {
    seq: u32,
    /// Row of its first query.
    first_token: u32,
    lens: SeqLens,
}

impl Attention {
    /// Upper bound of [`Attention::prefill_items`].
    pub fn max_prefill_items(&self, gpu: Gpu, dtype: Dtype) -> usize {
        let tiles = self.max_items_of(self.block_m(gpu, dtype));
        if tiles == 0 || self.key_splitting(gpu, dtype).is_none() {
            return tiles;
        }
        tiles.max(self.num_slots())
    }

    /// Upper bound of the tiles of `block_m` queries: the last one of each sequence may be partial.
    pub(super) fn max_items_of(&self, block_m: usize) -> usize {
        let seqs = self.max_tokens.min(self.max_seqs);
        if seqs == 0 || self.max_q_len <= self.max_decode_q_len {
            return 0;
        }
        ((self.max_tokens - seqs) / block_m + seqs) * self.num_heads
    }

    /// The items of a step's prompts. What the blocks in flight read of K and V fits in L2: if all
    /// of it does not, the list is cut into sections of KV heads, each with the longest first.
    /// Where there are fewer tiles than SMs, their keys are split.
    pub fn prefill_items(&self, gpu: Gpu, dtype: Dtype, seqs: &[SeqLens]) -> Vec<ItemWords> {
        let tiles = self.tiles(self.block_m(gpu, dtype) as u32, dtype.block_bytes(), seqs);
        let items = match self.key_splitting(gpu, dtype) {
            Some(splitting) => splitting.split(tiles),
            None => tiles,
        };
        items.iter().map(PrefillItem::words).collect()
    }

    /// The items of tiles of `block_m` queries, against all keys that they see, of a cache of
    /// elements of `element_bytes`.
    pub(super) fn tiles(
        &self,
        block_m: u32,
        element_bytes: usize,
        seqs: &[SeqLens],
    ) -> Vec<PrefillItem> {
        let group = (self.num_heads / self.num_kv_heads) as u32;
        let mut items = Vec::new();
        for section in self.sections(element_bytes, &self.prompts(seqs)) {
            let tiles = |(prompt, kv_heads): (Prompt, Range<u32>)| {
                let heads = kv_heads.start * group..kv_heads.end * group;
                self.query_tiles(prompt, block_m).map(move |tile| (tile, heads.clone()))
            };
            let mut tiles: Vec<_> = section.into_iter().flat_map(tiles).collect();
            tiles.sort_by_key(|(tile, _)| Reverse(tile.num_pages()));
            let heads_of = |(tile, heads): (PrefillItem, Range<u32>)| {
                heads.map(move |head| PrefillItem { head, ..tile })
            };
            items.extend(tiles.into_iter().flat_map(heads_of));
        }
        items
    }

    /// The prompts of a step, the one with most positions first.
    fn prompts(&self, seqs: &[SeqLens]) -> Vec<Prompt> {
        let mut end_token = 0;
        let place = |(seq, &lens): (usize, &SeqLens)| {
            let first_token = end_token;
            end_token += lens.q_len;
            Prompt { seq: seq as u32, first_token, lens }
        };
        let mut prompts: Vec<_> = seqs.iter().enumerate().map(place).collect();
        prompts.retain(|prompt| prompt.lens.q_len as usize > self.max_decode_q_len);
        prompts.sort_by_key(|prompt| Reverse(prompt.lens.kv_len));
        prompts
    }

    /// Cuts the KV heads of all `prompts` into sections of at most [`L2_BYTES`] of K and V, or of
    /// one KV head.
    fn sections(&self, element_bytes: usize, prompts: &[Prompt]) -> Vec<Vec<(Prompt, Range<u32>)>> {
        let (mut sections, mut section, mut bytes_left) = (Vec::new(), Vec::new(), L2_BYTES);
        for &prompt in prompts {
            let SeqLens { q_len, kv_len } = prompt.lens;
            let window = self.reach().mask_window();
            let seen = window.map_or(kv_len as usize, |w| w.saturating_add(q_len as usize));
            let positions = seen.min(kv_len as usize);
            let head_bytes = 2 * positions * self.head_dim * element_bytes;
            let mut heads = 0..self.num_kv_heads as u32;
            while !heads.is_empty() {
                let fit = (bytes_left / head_bytes.max(1)).min(heads.len());
                if fit == 0 {
                    sections.push(core::mem::take(&mut section));
                    bytes_left = L2_BYTES.max(head_bytes);
                    continue;
                }
                let next = heads.start + fit as u32;
                section.push((prompt, heads.start..next));
                bytes_left -= fit * head_bytes;
                heads.start = next;
            }
        }
        sections.push(section);
        sections
    }

    /// The query tiles of a prompt, with a head of 0.
    fn query_tiles(&self, prompt: Prompt, block_m: u32) -> impl Iterator<Item = PrefillItem> {
        let (reach, window) = (self.reach(), self.reach().mask_window());
        let Prompt { seq, first_token, lens: SeqLens { q_len, kv_len } } = prompt;
        (0..q_len).step_by(block_m as usize).map(move |first_query| {
            let queries = block_m.min(q_len - first_query);
            let first_position = reach.mask_position(kv_len - q_len + first_query, kv_len);
            let end_key = (first_position + queries).min(kv_len);
            let hidden =
                window.map_or(0, |window| (first_position as usize + 1).saturating_sub(window));
            PrefillItem {
                seq,
                head: 0,
                first_token: first_token + first_query,
                queries,
                first_position,
                first_key: hidden as u32 / PAGE_SIZE * PAGE_SIZE,
                end_key,
                part: Part::WHOLE,
            }
        })
    }
}

#[cfg(test)]
mod tests;
