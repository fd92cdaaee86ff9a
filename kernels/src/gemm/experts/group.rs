//! The choices of tokens by expert, and the chunks of a grouped linear layer: an expert and up to
//! `chunk_rows` of the choices of it.
//!
//! Shapes    experts `[num_tokens, top_k]` with a row stride; out: chunks, see
//!           [`Grouped::chunks`](super::chunk::Grouped), and order `[num_tokens * top_k]`.
//! Launch    grid `(num_experts, 1, 1)`, block `(NUM_THREADS, 1, 1)`: a block an expert.
//! Numerics  integers; an expert's choices are in the order of the tokens.
//! Bound     L2: each block reads all choices twice.

use super::chunk::{CHUNK_WORDS, Choices};
use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;

/// Threads of a block.
pub const NUM_THREADS: u32 = 512;

const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Most experts: a shared one beside those that are chosen.
pub const MAX_EXPERTS: u32 = NUM_THREADS + 1;

/// Writes the chunks of expert `block_idx`.
///
/// # Safety
/// 1. `num_tokens` is one element; `experts` holds that many rows of `top_k` numbers below
///    `grid_dim`, at most [`MAX_EXPERTS`].
/// 2. `chunks` holds [`CHUNK_WORDS`] words for each chunk that there may be, and as many more;
///    `order` a word a choice. They overlap nothing.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn group_experts(
    num_tokens: Global<u32>,
    top_k: u32,
    experts: Global<u32>,
    experts_stride: u32,
    chunk_rows: u32,
    chunks: GlobalMut<u32>,
    order: GlobalMut<u32>,
) {
    let (own, num_experts) = (thread::block_idx_x(), thread::grid_dim_x());
    let (thread, lane, warp_idx) = (thread::thread_idx_x(), warp::lane_id(), warp::warp_idx());
    let counts = shared_array![u32; MAX_EXPERTS as usize];
    let of_warps = shared_array![u32; NUM_WARPS as usize];
    let starts = shared_array![u32; 4];
    // SAFETY: one element, a step input; shared memory is read after barriers; a choice and a chunk
    // are written by one thread.
    unsafe {
        let num_tokens = num_tokens.get(0);
        counts.set(thread, 0);
        if thread == 0 {
            counts.set(NUM_THREADS, 0);
        }
        grid::wait_for_dependencies();
        grid::launch_dependents();
        thread::sync_threads();

        // 1. How many choices each expert has, and this one in each warp's share of them.
        let choices = Choices { num_tokens, top_k, experts, stride: experts_stride };
        let share = choices.num().div_ceil(NUM_THREADS) * warp::WARP_SIZE;
        let (begin, end) = (warp_idx * share, ((warp_idx + 1) * share).min(choices.num()));
        let mut of_warp = 0;
        let mut first = begin;
        while first < end {
            let choice = first + lane;
            let expert = if choice < end { choices.expert(choice) } else { MAX_EXPERTS };
            if expert < MAX_EXPERTS {
                counts.fetch_add(expert, 1, Order::Relaxed, Scope::Block);
            }
            of_warp += warp::ballot(warp::FULL_MASK, expert == own).count_ones();
            first += warp::WARP_SIZE;
        }
        if lane == 0 {
            of_warps.set(warp_idx, of_warp);
        }
        thread::sync_threads();

        // 2. Where the expert's choices and chunks begin, and how many chunks there are.
        if warp_idx == 0 {
            let [mut choices_before, mut chunks_before, mut num_chunks] = [0; 3];
            let mut expert = lane;
            while expert < num_experts {
                let count = counts.get(expert);
                let chunks = count.div_ceil(chunk_rows.max(1));
                num_chunks += chunks;
                choices_before += if expert < own { count } else { 0 };
                chunks_before += if expert < own { chunks } else { 0 };
                expert += warp::WARP_SIZE;
            }
            let sums = [choices_before, chunks_before, num_chunks]
                .map(|sum| warp::redux_add(warp::FULL_MASK, sum));
            if lane == 0 {
                starts.set_vec(0, [sums[0], sums[1], sums[2], 0]);
            }
        }
        thread::sync_threads();
        let [choices_before, chunks_before, num_chunks, _] = starts.get_vec(0);
        if own == 0 && thread == 0 {
            chunks.set(0, num_chunks);
        }
        let count = counts.get(own);
        // Alike: a chunk of few choices takes as long as others to load the matrix. Never 0; `max`
        // tells the compiler.
        let own_chunks = count.div_ceil(chunk_rows.max(1)).max(1);
        let each = count.div_ceil(own_chunks).next_multiple_of(8).min(chunk_rows);
        let mut chunk = thread;
        while chunk * each < count {
            let first = chunk * each;
            let at = ((chunks_before + chunk + 1) * CHUNK_WORDS) as usize;
            let rows = each.min(count - first);
            chunks.set_vec(at, [own, choices_before + first, rows, 0]);
            chunk += NUM_THREADS;
        }

        // 3. The expert's choices.
        let mut to = choices_before;
        for other in 0..NUM_WARPS {
            let of_warp = of_warps.get(other);
            to += if other < warp_idx { of_warp } else { 0 };
        }
        let mut first = begin;
        while first < end {
            let choice = first + lane;
            let is_own = choice < end && choices.expert(choice) == own;
            let of_lanes = warp::ballot(warp::FULL_MASK, is_own);
            if is_own {
                let before = (of_lanes & ((1 << lane) - 1)).count_ones();
                order.set((to + before) as usize, choice);
            }
            to += of_lanes.count_ones();
            first += warp::WARP_SIZE;
        }
    }
}
