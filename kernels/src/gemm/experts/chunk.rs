//! A block's work: an expert, and up to so many of the choices that tokens have made of it.
//!
//! A choice is a token's `i`-th expert; its index is `token * top_k + i`. Where a launch has few of
//! them, each block finds its chunk by itself. Where there are more, a launch before has written
//! them by expert ([`group_experts`](super::group::group_experts())).

use cuda_std::prelude::*;

/// Threads of a block, and most choices that a block looks through by itself.
pub const NUM_THREADS: u32 = 256;

/// Warps of a block.
pub const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Words of a chunk in [`Grouped::chunks`]: expert, index of its first choice in the order, their
/// number, and nothing.
pub const CHUNK_WORDS: u32 = 4;

/// Stands for a row of a chunk without a choice.
pub const NO_CHOICE: u32 = u32::MAX;

/// Words of shared memory for [`Chunk::find`], before the rows of the chunk.
const SCRATCH_WORDS: u32 = NUM_THREADS + 2 * NUM_WARPS + 16;

/// Words of shared memory of chunks of `max_rows` rows.
pub const fn shared_words(max_rows: u32) -> u32 {
    SCRATCH_WORDS + max_rows
}

/// The experts that tokens have chosen.
#[derive(Clone, Copy)]
pub struct Choices {
    /// Tokens.
    pub num_tokens: u32,
    /// Choices of a token.
    pub top_k: u32,
    /// `[num_tokens, top_k]`.
    pub experts: Global<u32>,
    /// Row stride of `experts`.
    pub stride: u32,
}

/// What a launch before has written of them.
#[derive(Clone, Copy)]
pub struct Grouped {
    /// The number of chunks, three words of nothing, and the chunks; null where blocks find theirs.
    pub chunks: Global<u32>,
    /// The choices by expert, in order of the tokens.
    pub order: Global<u32>,
}

impl Choices {
    /// How many there are.
    #[inline(always)]
    pub fn num(&self) -> u32 {
        self.num_tokens * self.top_k
    }

    /// The expert of a choice.
    ///
    /// # Safety
    /// 1. `experts` is as long as said; the choice exists.
    #[inline(always)]
    pub unsafe fn expert(&self, choice: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.experts.get(offset(choice, self.top_k, [self.stride, 1])) }
    }
}

/// Index of a choice's first element in a matrix whose rows are `strides[0]` elements apart for
/// tokens, and `strides[1]` for the choices of one.
#[inline(always)]
pub fn offset(choice: u32, top_k: u32, strides: [u32; 2]) -> usize {
    // Never 0; `max` tells the compiler.
    let top_k = top_k.max(1);
    (choice / top_k) as usize * strides[0] as usize
        + (choice % top_k) as usize * strides[1] as usize
}

/// An expert and the choices of it that a block computes.
#[derive(Clone, Copy)]
pub struct Chunk {
    /// The expert.
    pub expert: u32,
    /// How many choices.
    pub num_rows: u32,
    /// The choices; [`NO_CHOICE`] after the last one.
    pub rows: Shared<u32>,
}

impl Chunk {
    /// Chunk `index` of up to `max_rows` rows; `None` if there are fewer. All threads of the block
    /// call this, and may read the rows.
    ///
    /// # Safety
    /// 1. The choices are written; there are chunks, or no more choices than threads.
    /// 2. `smem` holds [`shared_words`], which nothing else accesses.
    #[inline(always)]
    pub unsafe fn find(
        choices: &Choices,
        grouped: Grouped,
        index: u32,
        max_rows: u32,
        smem: Shared<u32>,
    ) -> Option<Chunk> {
        let Grouped { chunks, order } = grouped;
        let rows = smem.offset(SCRATCH_WORDS);
        // SAFETY: the caller's promise.
        unsafe {
            if chunks.is_null() && choices.num_tokens != 1 {
                return Self::search(choices, index, max_rows, smem);
            }
            if chunks.is_null() {
                // The experts of a token differ.
                if index >= choices.top_k {
                    return None;
                }
                let expert = choices.expert(index);
                let row = thread::thread_idx_x();
                if row < max_rows {
                    rows.set(row, if row == 0 { index } else { NO_CHOICE });
                }
                thread::sync_threads();
                return Some(Chunk { expert, num_rows: 1, rows });
            }
            if index >= chunks.get(0) {
                return None;
            }
            let chunk = chunks.wrapping_add(((index + 1) * CHUNK_WORDS) as usize);
            let [expert, first, num_rows, _] = chunk.get_vec(0);
            let row = thread::thread_idx_x();
            if row < max_rows {
                let exists = row < num_rows;
                let at = (first + if exists { row } else { 0 }) as usize;
                rows.set(row, if exists { order.get(at) } else { NO_CHOICE });
            }
            thread::sync_threads();
            Some(Chunk { expert, num_rows, rows })
        }
    }

    /// [`Chunk::find`] among choices of which each thread has one. Chunks are in the order of their
    /// first choices.
    ///
    /// # Safety
    /// As [`Chunk::find`].
    #[inline(always)]
    unsafe fn search(
        choices: &Choices,
        index: u32,
        max_rows: u32,
        smem: Shared<u32>,
    ) -> Option<Chunk> {
        let (choice, lane) = (thread::thread_idx_x(), warp::lane_id());
        let (experts, rows) = (smem, smem.offset(SCRATCH_WORDS));
        let (firsts, members) = (smem.offset(NUM_THREADS), smem.offset(NUM_THREADS + NUM_WARPS));
        let found = smem.offset(NUM_THREADS + 2 * NUM_WARPS);
        // SAFETY: each thread writes its own; all is read after a barrier.
        unsafe {
            let exists = choice < choices.num();
            let expert = if exists { choices.expert(choice) } else { NO_CHOICE };
            experts.set(choice, expert);
            if choice < max_rows {
                rows.set(choice, NO_CHOICE);
            }
            if choice == 0 {
                found.set_vec(0, [NO_CHOICE; 2]);
            }
            thread::sync_threads();

            // 1. A choice's rank among those of its expert: every `max_rows`-th begins a chunk.
            let mut rank = 0;
            let mut quad = 0;
            while 4 * quad < choices.num() {
                let others: [u32; 4] = experts.get_vec(4 * quad);
                for i in 0..4 {
                    let is_before = 4 * quad + (i as u32) < choice;
                    rank += u32::from(is_before && others[i] == expert);
                }
                quad += 1;
            }
            let is_first = exists && rank.is_multiple_of(max_rows);
            let firsts_of_warp = warp::ballot(warp::FULL_MASK, is_first);
            if lane == 0 {
                firsts.set(warp::warp_idx(), firsts_of_warp.count_ones());
            }
            thread::sync_threads();

            // 2. The chunk whose first choice has as many first ones before it.
            let mut before = (firsts_of_warp & ((1 << lane) - 1)).count_ones();
            for warp_idx in 0..NUM_WARPS {
                let of_warp = firsts.get(warp_idx);
                before += if warp_idx < warp::warp_idx() { of_warp } else { 0 };
            }
            if is_first && before == index {
                found.set_vec(0, [expert, rank]);
            }
            thread::sync_threads();
            let [found_expert, first] = found.get_vec(0);

            // 3. Its choices.
            let is_member = exists && expert == found_expert && rank.wrapping_sub(first) < max_rows;
            if is_member {
                rows.set(rank - first, choice);
            }
            let members_of_warp = warp::ballot(warp::FULL_MASK, is_member);
            if lane == 0 {
                members.set(warp::warp_idx(), members_of_warp.count_ones());
            }
            thread::sync_threads();
            let mut num_rows = 0;
            for warp_idx in 0..NUM_WARPS {
                num_rows += members.get(warp_idx);
            }
            (found_expert != NO_CHOICE).then_some(Chunk { expert: found_expert, num_rows, rows })
        }
    }
}
