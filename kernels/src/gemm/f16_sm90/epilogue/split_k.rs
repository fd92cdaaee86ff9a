//! Outputs that the blocks of a cluster have each summed over their share of k.
//!
//! The strips are dealt out among the blocks of the cluster. A warp sends its sums of a strip to
//! the shared memory of the block that the strip is dealt to, by a copy that tells a barrier there:
//! no memory is fenced, and no load waits for another block's answer. The warp of the same number
//! adds up what all have sent, in the order of the blocks, and stores it. So an output has one order
//! of summation, and needs no atomics.

use super::{OutElement, Output, STRIP_COLUMNS, STRIP_ELEMS, STRIP_REGS, WarpOutput};
use crate::gemm::f16_sm90::accumulators::Accumulators;
use crate::gemm::f16_sm90::tiles::Tile;
use cuda_std::prelude::*;

/// Sums that one access moves: those of a thread that follow each other.
const VECTOR: usize = 4;

/// Sums of a warp that are written at once.
const WARP_VECTOR: u32 = warp::WARP_SIZE * VECTOR as u32;

/// Bytes of a strip's sums.
const STRIP_BYTES: u32 = STRIP_ELEMS * 4;

/// The block's side of the exchange.
#[derive(Clone, Copy)]
pub struct Exchange {
    /// Where strips are copied from: the stages, once they are read.
    sent: Shared<f32>,
    /// Strips of all blocks, for those that are dealt to this one.
    received: Shared<f32>,
    /// One a consumer warp, for the parts of its strip; then one each for those that it has sent.
    barriers: Mbarrier,
}

impl Exchange {
    /// That of the block whose shared memory starts at `smem`.
    ///
    /// # Safety
    /// 1. `smem` is the block's, `T::SHARED_BYTES`.
    /// 2. One thread calls [`Exchange::init`]; a barrier of the cluster follows before
    ///    [`Exchange::store`].
    #[inline(always)]
    pub unsafe fn new<T: Tile>(smem: Shared<u8>) -> Self {
        // SAFETY: the caller's promise.
        let barriers = unsafe { Mbarrier::new(smem.offset(T::PARTS_BARRIERS_AT).cast()) };
        Exchange { sent: smem.cast(), received: smem.offset(T::STAGING_AT).cast(), barriers }
    }

    /// Makes the barriers; [`fence::mbarrier_init`] comes behind.
    #[inline(always)]
    #[track_caller]
    pub fn init<T: Tile>(self) {
        for warp_idx in 0..T::NUM_CONSUMERS * 4 {
            self.barriers.offset(warp_idx).init(1);
            self.barriers.offset(T::NUM_CONSUMERS * 4 + warp_idx).init(T::Acc::STRIPS);
        }
    }

    /// Has the warp's barrier expect the other blocks' parts of its strip in the tile whose first
    /// row and column are `origin`.
    #[inline(always)]
    #[track_caller]
    pub fn expect<T: Tile, O>(self, origin: [u32; 2], output: &WarpOutput<O>) {
        let place = place::<T>(origin, dealt_strip::<T>());
        if warp::lane_id() == 0 && dealt_exists::<T, O>(place, &output.output) {
            let barrier = self.barriers.offset(warp::warp_idx());
            barrier.arrive_expect_tx((T::SPLIT_K - 1) * STRIP_BYTES);
        }
    }

    /// Stores the cluster's tile whose first row and column are `origin`: `acc` are the warpgroup's
    /// sums over the block's share of k.
    ///
    /// # Safety
    /// 1. All consumers of the cluster's blocks call this and [`Exchange::expect`] before, each
    ///    with its warp's `output`, for one tile.
    /// 2. All stages that were filled have been waited for by each consumer, and none is filled
    ///    again.
    #[inline(always)]
    pub unsafe fn store<T: Tile, O: OutElement>(
        self,
        acc: T::Acc,
        origin: [u32; 2],
        output: &mut WarpOutput<O>,
    ) {
        let (rank, warp_idx) = (cluster::block_rank(), warp::warp_idx());
        let barrier = self.barriers.offset(warp_idx);
        let read_barrier = barrier.offset(T::NUM_CONSUMERS * 4);
        // The stages are read: the sums are laid down there.
        if T::NUM_CONSUMERS == 2 {
            barrier::sync::<1, { 2 * warp::WARPGROUP_SIZE }>();
        } else {
            barrier::sync::<1, { warp::WARPGROUP_SIZE }>();
        }
        acc.for_each_strip(|strip, sums| {
            let strip_idx = warp_idx * T::Acc::STRIPS + strip;
            let to = dealt_to::<T>(strip_idx);
            let exists = exists(place::<T>(origin, strip_idx), &output.output);
            if warp::lane_id() == 0 && !(exists && to != rank) {
                read_barrier.arrive();
            }
            if exists {
                let received = self.parts::<T>(strip_idx).offset(rank * STRIP_ELEMS);
                let sent = self.sent.offset(strip_idx * STRIP_ELEMS);
                // SAFETY: a warp has strips of its own, and a block its part of each; the other
                // block does not end before it has all parts, and this one not before theirs are
                // read.
                unsafe {
                    if to == rank {
                        lay_down(received, &sums);
                    } else {
                        lay_down(sent, &sums);
                        fence::proxy_async_shared();
                        warp::sync_warp();
                        if warp::lane_id() == 0 {
                            let received = cluster::map_shared(received, to);
                            bulk::copy_to_peer(received, sent, STRIP_BYTES, barrier.peer(to));
                        }
                    }
                }
            }
        });
        let strip_idx = dealt_strip::<T>();
        let place = place::<T>(origin, strip_idx);
        let exists = dealt_exists::<T, O>(place, &output.output);
        if exists {
            barrier.wait(0);
            let parts = self.parts::<T>(strip_idx);
            // SAFETY: the other blocks' parts have come, and the thread has written its own.
            let sums = unsafe { sum::<T>(parts) };
            let lane_id = warp::lane_id();
            if lane_id < T::SPLIT_K && lane_id != rank {
                read_barrier.peer(lane_id).arrive();
            }
            // The strip goes to memory by way of where its parts were.
            output.staging = parts.cast();
            // SAFETY: the caller's promise.
            unsafe { O::store_strip(output, place, STRIP_COLUMNS, &sums) };
        }
        // A block must not end while its parts are still copied.
        read_barrier.wait(0);
    }

    /// Where the parts of a strip are received, in the order of the blocks.
    #[inline(always)]
    fn parts<T: Tile>(self, strip_idx: u32) -> Shared<f32> {
        self.received.offset(strip_idx / T::SPLIT_K * T::SPLIT_K * STRIP_ELEMS)
    }
}

/// The block that a strip is dealt to: of as many neighbours as there are blocks each has one. The
/// next ones are shifted, so that those of few rows do not all come to the same blocks.
#[inline(always)]
fn dealt_to<T: Tile>(strip_idx: u32) -> u32 {
    (strip_idx + strip_idx / T::SPLIT_K * (T::SPLIT_K / 2)) % T::SPLIT_K
}

/// The strip that the warp adds up: one of those that it has a part of, or one that it has not, if
/// none is dealt to its block.
#[inline(always)]
fn dealt_strip<T: Tile>() -> u32 {
    let first = warp::warp_idx() * T::Acc::STRIPS;
    // The first one's block is so many before this one.
    first + (cluster::block_rank() + T::SPLIT_K - dealt_to::<T>(first)) % T::SPLIT_K
}

/// First row and column of a strip in the tile at `origin`.
#[inline(always)]
fn place<T: Tile>([row, column]: [u32; 2], strip_idx: u32) -> [u32; 2] {
    let [strip_row, strip_column] = T::strip_origin(strip_idx);
    [row + strip_row, column + strip_column]
}

/// Whether a strip at this place has outputs.
#[inline(always)]
fn exists<O>([row, column]: [u32; 2], output: &Output<O>) -> bool {
    row < output.num_rows && column < output.n
}

/// Whether the strip that the warp adds up is there, and has outputs at this place.
#[inline(always)]
fn dealt_exists<T: Tile, O>(place: [u32; 2], output: &Output<O>) -> bool {
    let is_dealt = dealt_strip::<T>() / T::Acc::STRIPS == warp::warp_idx();
    is_dealt && exists(place, output)
}

/// The sums of a strip over all blocks of the cluster, whose parts are at `parts`: the thread's.
///
/// # Safety
/// 1. All parts are written, and seen by the thread.
#[inline(always)]
unsafe fn sum<T: Tile>(parts: Shared<f32>) -> [f32; STRIP_REGS] {
    let mut sums = [0.0; STRIP_REGS];
    for rank in 0..T::SPLIT_K {
        let part = parts.offset(rank * STRIP_ELEMS + warp::lane_id() * VECTOR as u32);
        unroll!(i in 0..8, {
            // SAFETY: the caller's promise.
            let values: [f32; VECTOR] = unsafe { part.get_vec(i as u32 * WARP_VECTOR) };
            for j in 0..VECTOR {
                sums[i * VECTOR + j] += values[j];
            }
        });
    }
    sums
}

/// Writes a thread's part of a strip to `smem`.
///
/// # Safety
/// 1. The whole warp calls this; `smem` is the strip's, and nobody else accesses it.
#[inline(always)]
unsafe fn lay_down(smem: Shared<f32>, sums: &[f32; STRIP_REGS]) {
    let smem = smem.offset(warp::lane_id() * VECTOR as u32);
    unroll!(i in 0..8, {
        let at = i * VECTOR;
        let values = [sums[at], sums[at + 1], sums[at + 2], sums[at + 3]];
        // SAFETY: the caller's promise.
        unsafe { smem.set_vec(i as u32 * WARP_VECTOR, values) };
    });
}
