//! How decode splits the keys of a sequence: the work items of its kernel, and the memory that
//! their partial results need.
//!
//! Splits spread few sequences over many SMs; each costs a partial result, and its block a prologue
//! and an epilogue, about 2 us, in which it loads nothing: so there are as many as keep the SMs busy
//! with all sequences of the step. In a batch-invariant plan they depend on the sequence's own
//! lengths alone. They have equally many pages, all but the last
//! (`docs/measurements/attention_decode.md`).

use super::reach::Reach;
use super::work::DecodeItem;
use super::work_list::{ItemWords, SeqLens};
use crate::kv_cache::PAGE_SIZE;
use core::cmp::Reverse;
use core::ops::Range;

/// Most new tokens of a sequence that decode takes.
pub const MAX_QUERIES: usize = 16;

/// A sequence has at most the square root of so many splits a page: what a split loads and what one
/// block combines then grow alike.
const SQUARED_SPLITS_PER_PAGE: usize = 8;

/// Bytes of a split from which longer ones save nothing.
const MAX_SPLIT_BYTES: usize = 1 << 20;

/// Items of a step that keep every SM busy.
const TARGET_ITEMS: usize = 256;

/// Most items of a sequence that is split, about.
const MAX_ITEMS: usize = 1024;

/// Most rows of partial results of a sequence, about; it bounds the workspace.
const MAX_PARTIALS: usize = 2048;

/// Most splits of a row block: the combine holds their weights in shared memory.
pub(super) const MAX_SPLITS: usize = 256;

/// What the splits of a model's sequences depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splitting {
    pub num_kv_heads: usize,
    /// Query heads of a KV head.
    pub group: usize,
    /// Query rows of a block.
    pub block_rows: usize,
    /// Bytes of the keys and values of a page and KV head.
    pub page_bytes: usize,
    /// Most new tokens of a sequence that decodes.
    pub max_q_len: usize,
    pub causal: bool,
    pub window: Option<usize>,
    /// Whether the splits of a sequence depend on its own length alone.
    pub batch_invariant: bool,
}

/// The splits of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Splits {
    first_page: usize,
    /// Pages of a split.
    pages: usize,
    count: usize,
}

/// Most splits of a sequence on `pages` pages.
fn most_splits(pages: usize) -> usize {
    (SQUARED_SPLITS_PER_PAGE * pages).isqrt().clamp(1, pages.max(1))
}

impl Splitting {
    fn reach(&self) -> Reach {
        Reach { causal: self.causal, window: self.window }
    }

    fn row_blocks(&self, q_len: usize) -> usize {
        (q_len * self.group).div_ceil(self.block_rows)
    }

    /// Row blocks of all KV heads.
    fn blocks(&self, q_len: usize) -> usize {
        self.num_kv_heads * self.row_blocks(q_len)
    }

    /// Pages of a split of a sequence on `pages` pages, in a step whose row blocks read `step_pages`
    /// in all.
    fn split_pages(&self, pages: usize, q_len: usize, step_pages: usize) -> usize {
        let max_pages = (MAX_SPLIT_BYTES / self.page_bytes).max(1);
        let (blocks, rows) = (self.blocks(q_len), self.num_kv_heads * self.group * q_len);
        let most = step_pages
            .max(pages * blocks)
            .div_ceil(TARGET_ITEMS)
            .min(max_pages)
            .max(pages.div_ceil(most_splits(pages)))
            .max((pages * blocks).div_ceil(MAX_ITEMS))
            .max((pages * rows).div_ceil(MAX_PARTIALS))
            .max(pages.div_ceil(MAX_SPLITS));
        pages.div_ceil(pages.div_ceil(most).max(1)).max(1)
    }

    /// The pages that a sequence reads.
    fn pages(&self, seq: &SeqLens) -> Range<usize> {
        let kv_len = seq.kv_len as usize;
        let end_first = self.reach().mask_position(seq.kv_len - seq.q_len, seq.kv_len) as usize + 1;
        let window = self.reach().mask_window();
        let first_key = window.map_or(0, |window| end_first.saturating_sub(window));
        first_key / PAGE_SIZE as usize..kv_len.div_ceil(PAGE_SIZE as usize)
    }

    fn splits(&self, seq: &SeqLens, step_pages: usize) -> Splits {
        let Range { start: first_page, end } = self.pages(seq);
        let pages = self.split_pages(end - first_page, seq.q_len as usize, step_pages);
        Splits { first_page, pages, count: (end - first_page).div_ceil(pages) }
    }

    fn decodes(&self, seq: &SeqLens) -> bool {
        (1..=self.max_q_len).contains(&(seq.q_len as usize))
    }

    /// Pages that the row blocks of all decoding sequences read; 0 where that must not matter.
    fn step_pages(&self, seqs: &[SeqLens]) -> usize {
        if self.batch_invariant {
            return 0;
        }
        let decoding = seqs.iter().filter(|seq| self.decodes(seq));
        decoding.map(|seq| self.pages(seq).len() * self.blocks(seq.q_len as usize)).sum()
    }

    /// The items of the decoding sequences among those of a step, the longest first.
    pub fn items(&self, seqs: &[SeqLens]) -> Vec<ItemWords> {
        let mut items = Vec::new();
        let (mut first_token, mut first_partial) = (0, 0);
        let step_pages = self.step_pages(seqs);
        for (seq, lens) in seqs.iter().enumerate() {
            if self.decodes(lens) {
                let splits = self.splits(lens, step_pages);
                self.push_items(
                    &mut items,
                    seq as u32,
                    lens,
                    splits,
                    first_token,
                    &mut first_partial,
                );
            }
            first_token += lens.q_len;
        }
        items.sort_by_key(|item| Reverse(item.end_key - item.first_key));
        items.iter().map(DecodeItem::words).collect()
    }

    /// Adds the items of sequence `seq`; `first_partial` is the first free row of partial results.
    fn push_items(
        &self,
        items: &mut Vec<DecodeItem>,
        seq: u32,
        &SeqLens { q_len, kv_len }: &SeqLens,
        Splits { first_page, pages, count }: Splits,
        first_token: u32,
        first_partial: &mut u32,
    ) {
        let (num_rows, row_blocks) = (q_len as usize * self.group, self.row_blocks(q_len as usize));
        let first_position = self.reach().mask_position(kv_len - q_len, kv_len);
        for (kv_head, row_block) in
            (0..self.num_kv_heads).flat_map(|head| (0..row_blocks).map(move |block| (head, block)))
        {
            for split in 0..count {
                let key = |split: usize| ((first_page + split * pages) * PAGE_SIZE as usize) as u32;
                items.push(DecodeItem {
                    seq,
                    kv_head: kv_head as u32,
                    first_token,
                    queries: q_len,
                    row_block: row_block as u32,
                    first_position,
                    first_key: key(split),
                    end_key: key(split + 1).min(kv_len),
                    split: split as u32,
                    num_splits: count as u32,
                    first_partial: *first_partial,
                });
            }
            if count > 1 {
                let rows = self.block_rows.min(num_rows - row_block * self.block_rows);
                *first_partial += (count * rows) as u32;
            }
        }
    }

    /// Most splits of a row block of a sequence of `q_len` new tokens, on up to `num_pages`.
    fn max_splits(&self, q_len: usize, num_pages: usize) -> usize {
        let (blocks, rows) = (self.blocks(q_len), self.num_kv_heads * self.group * q_len);
        let splits_of = |bytes: usize| num_pages.div_ceil((bytes / self.page_bytes).max(1));
        // Splits that share the target's items, or longest ones.
        let shared = TARGET_ITEMS.div_ceil(blocks);
        let longest = splits_of(MAX_SPLIT_BYTES).min(MAX_ITEMS.div_ceil(blocks));
        most_splits(num_pages)
            .min(shared.max(longest))
            .min(MAX_PARTIALS.div_ceil(rows))
            .min(MAX_SPLITS)
            .min(num_pages)
    }

    /// Most items of a sequence of up to `max_q_len` new tokens, on up to `num_pages`.
    pub fn max_items(&self, max_q_len: usize, num_pages: usize) -> usize {
        let items = |q_len| self.blocks(q_len) * self.max_splits(q_len, num_pages);
        (1..=max_q_len).map(items).max().unwrap_or(0)
    }

    /// Most rows of partial results of such a sequence.
    pub fn max_partials(&self, max_q_len: usize, num_pages: usize) -> usize {
        let rows = |q_len| match self.max_splits(q_len, num_pages) {
            0 | 1 => 0,
            splits => self.num_kv_heads * self.group * q_len * splits,
        };
        (1..=max_q_len).map(rows).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Splitting {
        Splitting {
            num_kv_heads,
            group: num_heads / num_kv_heads,
            block_rows: 16,
            page_bytes: 4 * 64 * head_dim,
            max_q_len: MAX_QUERIES,
            causal: true,
            window: None,
            batch_invariant: false,
        }
    }

    fn counts(splitting: Splitting, kv_len: u32) -> [usize; 2] {
        let Splits { pages, count, .. } = splitting.splits(&SeqLens { q_len: 1, kv_len }, 0);
        [pages, count]
    }

    #[test]
    fn a_sequence_alone_fills_the_gpu() {
        assert_eq!(counts(of(14, 2, 64), 512), [1, 8]);
        assert_eq!(counts(of(14, 2, 64), 8192), [4, 32]);
        assert_eq!(counts(of(14, 2, 64), 32_768), [8, 64]);
        assert_eq!(counts(of(32, 32, 96), 512), [1, 8]);
        assert_eq!(counts(of(32, 32, 128), 8192), [16, 8]);
        assert_eq!(counts(of(32, 32, 128), 65_536), [32, 32]);
        assert_eq!(counts(of(32, 8, 128), 32_768), [16, 32]);
    }

    /// In a batch the SMs are busy with fewer splits of each, unless they must not depend on it.
    #[test]
    fn a_batch_is_split_less() {
        let seqs = [SeqLens { q_len: 1, kv_len: 2048 }; 64];
        let longest = |batch_invariant| {
            let items = Splitting { batch_invariant, ..of(14, 2, 64) }.items(&seqs);
            (items.len(), items[0][5] - items[0][4])
        };
        assert_eq!(longest(false), (256, 16 * 64));
        assert_eq!(longest(true), (2048, 2 * 64));
    }

    /// Every key that is visible to a query is in one split, and nothing exceeds the bounds.
    #[test]
    fn splits_cover_the_keys_within_the_bounds() {
        for (num_heads, num_kv_heads, head_dim) in
            [(14, 2, 64), (32, 32, 128), (71, 1, 64), (8, 8, 256), (9, 3, 32)]
        {
            for window in [None, Some(1), Some(700)] {
                let splitting = Splitting { window, ..of(num_heads, num_kv_heads, head_dim) };
                for kv_len in [2, 63, 64, 65, 1000, 4096, 20_001, 65_536, 1 << 20, 1 << 26] {
                    for q_len in [1, 2, 16].into_iter().filter(|q_len| *q_len < kv_len) {
                        check(&splitting, SeqLens { q_len, kv_len });
                    }
                }
            }
        }
    }

    fn check(splitting: &Splitting, seq: SeqLens) {
        let Splits { first_page, pages, count } = splitting.splits(&seq, 0);
        let (q_len, kv_len) = (seq.q_len as usize, seq.kv_len as usize);
        let first_visible = splitting.window.map_or(0, |w| (kv_len - q_len + 1).saturating_sub(w));
        assert_eq!(first_page, first_visible / 64);
        assert!((first_page + count * pages) * 64 >= kv_len);
        assert!((first_page + (count - 1) * pages) * 64 < kv_len);
        let (blocks, num_pages) = (splitting.blocks(q_len), kv_len.div_ceil(64));
        assert!(count <= MAX_SPLITS, "{splitting:?} {seq:?}: {count}");
        assert!(count * blocks <= splitting.max_items(16, num_pages), "{splitting:?} {seq:?}");
        let rows = if count == 1 { 0 } else { count * splitting.num_kv_heads * splitting.group };
        assert!(rows * q_len <= splitting.max_partials(16, num_pages), "{splitting:?} {seq:?}");
    }

    #[test]
    fn items_are_the_decoding_sequences_longest_first() {
        let seqs = [(1, 70), (3, 3), (1, 8192), (16, 600), (17, 600)];
        let seqs = seqs.map(|(q_len, kv_len)| SeqLens { q_len, kv_len });
        let items = of(14, 2, 64).items(&seqs);
        let seq = |item: &[u32; 8]| item[0] & 0xffff;
        // 16 queries of 7 heads are seven row blocks.
        let count = |wanted| items.iter().filter(|item| seq(item) == wanted).count();
        assert_eq!([0, 1, 2, 3, 4].map(count), [2, 4, 64, 70, 0]);
        let keys: Vec<u32> = items.iter().map(|item| item[5] - item[4]).collect();
        assert!(keys.is_sorted_by(|a, b| a >= b));
        // Rows of partial results do not overlap: 32 splits of 7 heads, for each KV head.
        let mut partials: Vec<u32> =
            items.iter().filter(|item| seq(item) == 2).map(|item| item[7]).collect();
        partials.dedup();
        partials.sort_unstable();
        partials.dedup();
        assert_eq!(partials, [0, 32 * 7]);
        // The first tokens follow from all sequences.
        assert!(items.iter().all(|item| seq(item) != 3 || item[1] == 5));
    }
}
