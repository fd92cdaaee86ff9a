//! The exchange of a cluster's two blocks. Each finishes one of the two rows that every thread has;
//! threads of the same index have the same rows and columns, so each sends to its counterpart.

use super::softmax::finite;
use super::{CLUSTER, HEAD_DIM, MULTIPLIERS};
use crate::tile::element::Operand16;
use cuda_std::prelude::*;

/// Words of a thread's part of a row: two columns of every eight.
const ROW_WORDS: u32 = HEAD_DIM / 8;

/// Words of a 16-byte access, and the words of all threads in one.
const VEC_WORDS: u32 = 4;
const BLOCK_WORDS: u32 = MULTIPLIERS * VEC_WORDS;

/// Bytes that a block receives: of each thread its part of a row, and the row's `lse`.
const RECEIVED_BYTES: u32 = MULTIPLIERS * 4 * (ROW_WORDS + 1);

/// Where a block receives the other one's half of the output.
#[derive(Clone, Copy)]
pub struct Exchange {
    words: Shared<u32>,
    lse: Shared<f32>,
    barrier: Mbarrier,
}

impl Exchange {
    /// Bytes of shared memory that an exchange takes.
    pub const BYTES: u32 = RECEIVED_BYTES + 8;

    /// The exchange of the block, at `smem`.
    ///
    /// # Safety
    /// 1. `smem` is the block's, 16-byte aligned, and holds [`Exchange::BYTES`].
    /// 2. One thread calls [`Exchange::init`]; a barrier of the cluster separates that from the
    ///    other functions.
    #[inline(always)]
    pub unsafe fn new(smem: Shared<u8>) -> Self {
        let words = smem.cast::<u32>();
        // SAFETY: the caller's promise.
        let barrier = unsafe { Mbarrier::new(smem.offset(RECEIVED_BYTES).cast()) };
        Exchange { words, lse: words.offset(MULTIPLIERS * ROW_WORDS).cast(), barrier }
    }

    /// Initialises the barrier, which expects the other block's half.
    #[inline(always)]
    #[track_caller]
    pub fn init(self) {
        const { assert!(CLUSTER == 2) };
        self.barrier.init(1);
        fence::mbarrier_init();
        self.barrier.arrive_expect_tx(RECEIVED_BYTES);
    }

    /// Sends the thread's part of a row, and the row's `lse`, to block `rank`.
    ///
    /// # Safety
    /// 1. Each thread calls this once, after the cluster's barrier; the other block lives until it
    ///    has received all.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn send(self, rank: u32, words: [u32; ROW_WORDS as usize], lse: f32) {
        let thread = thread::thread_idx_x();
        let to = cluster::map_shared(self.words, rank).offset(thread * VEC_WORDS);
        let to_lse = cluster::map_shared(self.lse, rank);
        let barrier = self.barrier.peer(rank);
        let [a, b, c, d, e, f, g, h] = words;
        // SAFETY: the thread's own words there, which nothing else writes.
        unsafe {
            to.set_async_v4(0, [a, b, c, d], barrier);
            to.set_async_v4(BLOCK_WORDS, [e, f, g, h], barrier);
            to_lse.set_async(thread, lse, barrier);
        }
    }

    /// Waits for the other block's part of the thread's row, and combines it with this block's;
    /// `lse` is that of the row's keys in this block.
    ///
    /// # Safety
    /// 1. The other block's threads call [`Exchange::send`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn combine<E: Operand16>(
        self,
        own: [[f32; 2]; ROW_WORDS as usize],
        lse: f32,
    ) -> [u32; ROW_WORDS as usize] {
        let thread = thread::thread_idx_x();
        self.barrier.wait(0);
        let words = self.words.offset(thread * VEC_WORDS);
        // SAFETY: all has arrived.
        let ([a, b, c, d], [e, f, g, h], other_lse) =
            unsafe { (words.get_vec(0), words.get_vec(BLOCK_WORDS), self.lse.get(thread)) };
        let received = [a, b, c, d, e, f, g, h];
        let max = finite(math::max(lse, other_lse));
        let [weight, other_weight] = [lse, other_lse].map(|lse| math::exp2_approx(lse - max));
        let total = weight + other_weight;
        // A row without a visible key in either block is zeros.
        let scale = if total > 0.0 { math::rcp_approx(total) } else { 0.0 };
        let (weight, other_weight) = (weight * scale, other_weight * scale);
        let mut combined = [0; ROW_WORDS as usize];
        unroll!(pair in 0..8, {
            let other = E::unpack(received[pair]);
            let [lo, hi] =
                [0, 1].map(|i| math::fma(other[i], other_weight, own[pair][i] * weight));
            combined[pair] = E::pack(lo, hi);
        });
        combined
    }
}

/// Transposes the words of the quad, 4 x 4: word `i` of thread `t` becomes word `t` of thread `i`.
/// The warp is converged.
#[inline(always)]
#[track_caller]
pub fn transpose(mut words: [u32; 4]) -> [u32; 4] {
    let lane_id = warp::lane_id();
    // Each step swaps what is off the diagonal, of 2 x 2 words and then of 2 x 2 such blocks.
    let mut swap = |bit: usize, first: usize| {
        let is_upper = lane_id & bit as u32 != 0;
        let sent = if is_upper { words[first] } else { words[first + bit] };
        let received = warp::shuffle_xor(sent, bit as u32);
        if is_upper {
            words[first] = received;
        } else {
            words[first + bit] = received;
        }
    };
    swap(1, 0);
    swap(1, 2);
    swap(2, 0);
    swap(2, 1);
    words
}
