//! Work items of attention, which the host writes into the step inputs, the longest first.
//!
//! An item holds everything about its part of the step, so that a block reads 32 bytes and no
//! array of the sequences.

use crate::kv_cache::PAGE_SIZE;
use cuda_std::prelude::*;

/// Words of an item, of either kind.
pub const ITEM_WORDS: u32 = 8;

/// A tile of queries of one head, against a range of the sequence's keys, or part of it.
///
/// Query `i` sees keys `position + i - window < key <= position + i`, where `position` is
/// `first_position`. Attention that is not causal has items whose `first_position` is the
/// sequence's last or, with a window to both sides, that of the last key in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillItem {
    /// The sequence: a row of the block table.
    pub seq: u32,
    /// The query head.
    pub head: u32,
    /// Row of the first query in `q` and `out`.
    pub first_token: u32,
    /// Queries, at most the kernel's `BLOCK_M`.
    pub queries: u32,
    /// Position of the first query, as the mask takes it.
    pub first_position: u32,
    /// First key that a query sees, rounded down to a page.
    pub first_key: u32,
    /// End of the keys that a query sees.
    pub end_key: u32,
    /// Which part of the queries' keys these are.
    pub part: Part,
}

/// A part of the keys of a tile of queries, whose partial results are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part(u32);

impl Part {
    /// All keys.
    pub const WHOLE: Part = Part(1 << 8);

    /// Part `split` of `num_splits`, under 2^8, whose partial results start at slot `first_slot`,
    /// under 2^16.
    pub fn new(split: u32, num_splits: u32, first_slot: u32) -> Self {
        Part(pack(split | num_splits << 8, first_slot))
    }

    /// Index of the part.
    #[inline(always)]
    pub fn split(self) -> u32 {
        self.0 & 0xff
    }

    /// Parts.
    #[inline(always)]
    pub fn num_splits(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    /// Slot of the first part's partial results.
    #[inline(always)]
    pub fn first_slot(self) -> u32 {
        self.0 >> 16
    }
}

impl PrefillItem {
    /// Item `index` of `items`.
    ///
    /// # Safety
    /// 1. `items` holds it, and is 16-byte aligned.
    #[inline(always)]
    pub unsafe fn load(items: Global<u32>, index: u32) -> Self {
        let at = index as usize * ITEM_WORDS as usize;
        // SAFETY: the caller's promise.
        unsafe { Self::from_words(items.get_vec(at), items.get_vec(at + 4)) }
    }

    /// [`PrefillItem::load`] before it is known whether there is such an item: what is not one has
    /// unspecified words.
    ///
    /// # Safety
    /// 1. `items` has room for it, and is 16-byte aligned.
    #[inline(always)]
    pub unsafe fn speculate(items: Global<u32>, index: u32) -> Self {
        let at = index as usize * ITEM_WORDS as usize;
        // SAFETY: the caller's promise.
        unsafe {
            Self::from_words(items.speculate_vec_if(at, true), items.speculate_vec_if(at + 4, true))
        }
    }

    /// The item of [`PrefillItem::words`], in halves.
    #[inline(always)]
    pub(super) fn from_words(low: [u32; 4], high: [u32; 4]) -> Self {
        let ([seq, head, first_token, queries], [first_position, first_key, end_key, part]) =
            (low, high);
        let part = Part(part);
        PrefillItem { seq, head, first_token, queries, first_position, first_key, end_key, part }
    }

    /// The item in the layout of the list.
    #[inline(always)]
    pub fn words(&self) -> [u32; ITEM_WORDS as usize] {
        let &PrefillItem { seq, head, first_token, queries, .. } = self;
        let &PrefillItem { first_position, first_key, end_key, part, .. } = self;
        [seq, head, first_token, queries, first_position, first_key, end_key, part.0]
    }

    /// Pages of keys.
    pub fn num_pages(&self) -> u32 {
        self.end_key.div_ceil(PAGE_SIZE) - self.first_key / PAGE_SIZE
    }
}

/// Query rows of a KV head, against one split of the sequence's keys.
///
/// With a group of `num_heads / num_kv_heads` query heads, row `r` is query `r / group` of head
/// `kv_head * group + r % group`. A row block takes `BLOCK_ROWS` rows, the kernel's, or what is
/// left of them. Query `i` sees keys as in [`PrefillItem`], those before `end_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeItem {
    /// The sequence: a row of the block table.
    pub seq: u32,
    /// The KV head.
    pub kv_head: u32,
    /// Row of the sequence's first query in `q` and `out`.
    pub first_token: u32,
    /// Queries of the sequence.
    pub queries: u32,
    /// Index of the block of query rows.
    pub row_block: u32,
    /// Position of the first query.
    pub first_position: u32,
    /// First key of the split, the start of a page.
    pub first_key: u32,
    /// End of the split's keys.
    pub end_key: u32,
    /// Index of the split.
    pub split: u32,
    /// Splits of the row block.
    pub num_splits: u32,
    /// Where the row block's partial results start in the workspace, in rows, if it has several
    /// splits; also the index of its counter.
    pub first_partial: u32,
}

/// Two numbers under 2^16 in a word.
fn pack(low: u32, high: u32) -> u32 {
    low | high << 16
}

/// The numbers of [`pack`].
#[inline(always)]
fn unpack(word: u32) -> [u32; 2] {
    [word & 0xffff, word >> 16]
}

impl DecodeItem {
    /// The item in shared memory.
    ///
    /// # Safety
    /// 1. `words` holds its words, is 16-byte aligned, and no thread writes it.
    #[inline(always)]
    pub unsafe fn load(words: Shared<u32>) -> Self {
        // SAFETY: the caller's promise.
        let [low, high]: [[u32; 4]; 2] = unsafe { [words.get_vec(0), words.get_vec(4)] };
        let ([head, first_token, rows, first_position], [first_key, end_key, splits, partial]) =
            (low, high);
        let ([seq, kv_head], [queries, row_block]) = (unpack(head), unpack(rows));
        let [split, num_splits] = unpack(splits);
        DecodeItem {
            seq,
            kv_head,
            first_token,
            queries,
            row_block,
            first_position,
            first_key,
            end_key,
            split,
            num_splits,
            first_partial: partial,
        }
    }

    /// The item in the layout of [`DecodeItem::load`].
    pub fn words(&self) -> [u32; ITEM_WORDS as usize] {
        let &DecodeItem { first_token, first_position, first_key, end_key, .. } = self;
        let head = pack(self.seq, self.kv_head);
        let rows = pack(self.queries, self.row_block);
        let splits = pack(self.split, self.num_splits);
        [head, first_token, rows, first_position, first_key, end_key, splits, self.first_partial]
    }
}
