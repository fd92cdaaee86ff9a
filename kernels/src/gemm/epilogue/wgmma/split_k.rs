//! The epilogue of split-K: the blocks of a cluster reduce their partial sums through distributed
//! shared memory.
//!
//! Each block of the cluster owns a share of the subtiles. A warp sends its partial sums of a
//! subtile to the shared memory of the owner, by a bulk copy that completes on an mbarrier there:
//! no memory fence is needed, and no load waits for another block. In the owner the warp of the
//! same index adds up the partial sums in the order of block ranks, and stores the result. So the
//! order of accumulation is fixed, and there are no atomics.

use super::{OutElement, SUBTILE_COLUMNS, SUBTILE_ELEMS, SUBTILE_REGS, Unscaled, WarpOutput};
use crate::gemm::config::wgmma::WgmmaTile;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::mainloop::accumulators::Accumulators;
use cuda_std::prelude::*;

/// f32 values of a 16-byte access.
const VEC_ELEMS: usize = 4;

/// Values that a warp writes by one access of each lane.
const WARP_VEC_ELEMS: u32 = warp::WARP_SIZE * VEC_ELEMS as u32;

/// Bytes of the partial sums of a subtile.
const SUBTILE_BYTES: u32 = SUBTILE_ELEMS * 4;

/// A block's side of the exchange of partial sums.
#[derive(Clone, Copy)]
pub struct Exchange {
    /// Where subtiles are sent from: the stages of the mainloop, once they are read.
    sent: Shared<f32>,
    /// Partial sums of all blocks for the subtiles that this block owns.
    received: Shared<f32>,
    /// For each consumer warp one that completes when its subtile is received, then for each one
    /// that completes when what it sent is read.
    barriers: Mbarrier,
}

impl Exchange {
    /// The exchange of the block whose shared memory starts at `smem`.
    ///
    /// # Safety
    /// 1. `smem` is the block's, `T::SHARED_BYTES`.
    /// 2. One thread calls [`Exchange::init`]; a cluster barrier separates that from
    ///    [`Exchange::store`].
    #[inline(always)]
    pub unsafe fn new<T: WgmmaTile>(smem: Shared<u8>) -> Self {
        // SAFETY: the caller's promise.
        let barriers = unsafe { Mbarrier::new(smem.offset(T::PARTIALS_BARRIERS_AT).cast()) };
        Exchange { sent: smem.cast(), received: smem.offset(T::STAGING_AT).cast(), barriers }
    }

    /// Initialises the barriers; [`fence::mbarrier_init`] follows.
    #[inline(always)]
    #[track_caller]
    pub fn init<T: WgmmaTile>(self) {
        for warp_idx in 0..T::NUM_CONSUMERS * 4 {
            self.barriers.offset(warp_idx).init(1);
            self.barriers.offset(T::NUM_CONSUMERS * 4 + warp_idx).init(T::Acc::NUM_SUBTILES);
        }
    }

    /// Makes the warp's barrier expect the other blocks' partial sums of its subtile, in the tile
    /// whose first row and column are `origin`.
    #[inline(always)]
    #[track_caller]
    pub fn expect<T: WgmmaTile, O>(self, origin: [u32; 2], output: &WarpOutput<O>) {
        let at = origin_of::<T>(origin, owned_subtile::<T>());
        if warp::lane_id() == 0 && owned_exists::<T, _>(at, &output.output.epilogue) {
            let barrier = self.barriers.offset(warp::warp_idx());
            barrier.arrive_expect_tx((T::SPLIT_K - 1) * SUBTILE_BYTES);
        }
    }

    /// Reduces and stores the cluster's tile whose first row and column are `origin`. `acc` are the
    /// warpgroup's partial sums over the block's share of k.
    ///
    /// # Safety
    /// 1. All consumers of the cluster's blocks call [`Exchange::expect`] and then this, each with
    ///    its warp's `output`, for one tile.
    /// 2. Each consumer has waited for all stages, and none is filled again.
    #[inline(always)]
    pub unsafe fn store<T: WgmmaTile, O: OutElement>(
        self,
        acc: T::Acc,
        origin: [u32; 2],
        output: &mut WarpOutput<O>,
    ) {
        let (rank, warp_idx) = (cluster::block_rank(), warp::warp_idx());
        let barrier = self.barriers.offset(warp_idx);
        let read_barrier = barrier.offset(T::NUM_CONSUMERS * 4);
        // After this barrier all stages are read: their memory holds the partial sums to send.
        if T::NUM_CONSUMERS == 2 {
            barrier::sync::<1, { 2 * warp::WARPGROUP_SIZE }>();
        } else {
            barrier::sync::<1, { warp::WARPGROUP_SIZE }>();
        }
        acc.for_each_subtile(|subtile, values| {
            let subtile_idx = warp_idx * T::Acc::NUM_SUBTILES + subtile;
            let to = owner::<T>(subtile_idx);
            let exists = exists(origin_of::<T>(origin, subtile_idx), &output.output.epilogue);
            if warp::lane_id() == 0 && !(exists && to != rank) {
                read_barrier.arrive();
            }
            if exists {
                let received = self.partials::<T>(subtile_idx).offset(rank * SUBTILE_ELEMS);
                let sent = self.sent.offset(subtile_idx * SUBTILE_ELEMS);
                // SAFETY: a warp writes its own subtiles, and a block its own partial sums of each.
                // The owner does not end before it has received all of them, and this block not
                // before they are read.
                unsafe {
                    if to == rank {
                        store_partials(received, &values);
                    } else {
                        store_partials(sent, &values);
                        fence::proxy_async_shared();
                        warp::sync_warp();
                        if warp::lane_id() == 0 {
                            let received = cluster::map_shared(received, to);
                            bulk::copy_to_peer(received, sent, SUBTILE_BYTES, barrier.peer(to));
                        }
                    }
                }
            }
        });
        let subtile_idx = owned_subtile::<T>();
        let at = origin_of::<T>(origin, subtile_idx);
        let exists = owned_exists::<T, _>(at, &output.output.epilogue);
        if exists {
            barrier.wait(0);
            let partials = self.partials::<T>(subtile_idx);
            // SAFETY: the other blocks' partial sums have arrived, and the thread wrote its own.
            let values = unsafe { reduce::<T>(partials) };
            let lane_id = warp::lane_id();
            if lane_id < T::SPLIT_K && lane_id != rank {
                read_barrier.peer(lane_id).arrive();
            }
            // The partial sums are read: their memory stages the output.
            output.staging = partials.cast();
            // SAFETY: the caller's promise.
            unsafe { O::store_subtile(output, at, SUBTILE_COLUMNS, &values, &Unscaled) };
        }
        // A block must not end while its partial sums are still copied.
        read_barrier.wait(0);
    }

    /// Where the partial sums of a subtile are received, in the order of block ranks.
    #[inline(always)]
    fn partials<T: WgmmaTile>(self, subtile_idx: u32) -> Shared<f32> {
        self.received.offset(subtile_idx / T::SPLIT_K * T::SPLIT_K * SUBTILE_ELEMS)
    }
}

/// Rank of the block that owns a subtile: `SPLIT_K` neighbouring subtiles have as many owners. The
/// next ones are rotated, so that in small batches the subtiles with rows have different owners.
#[inline(always)]
fn owner<T: WgmmaTile>(subtile_idx: u32) -> u32 {
    (subtile_idx + subtile_idx / T::SPLIT_K * (T::SPLIT_K / 2)) % T::SPLIT_K
}

/// The subtile that the warp reduces, if the block owns one of the warp's; otherwise the index of a
/// subtile that is not the warp's.
#[inline(always)]
fn owned_subtile<T: WgmmaTile>() -> u32 {
    let first = warp::warp_idx() * T::Acc::NUM_SUBTILES;
    // The rank of this block minus that of the first subtile's owner.
    first + (cluster::block_rank() + T::SPLIT_K - owner::<T>(first)) % T::SPLIT_K
}

/// First row and column of a subtile of the tile at `origin`.
#[inline(always)]
fn origin_of<T: WgmmaTile>([row, column]: [u32; 2], subtile_idx: u32) -> [u32; 2] {
    let [subtile_row, subtile_column] = T::subtile_origin(subtile_idx);
    [row + subtile_row, column + subtile_column]
}

/// Whether a subtile at this row and column has outputs.
#[inline(always)]
fn exists<O>([row, column]: [u32; 2], epilogue: &Epilogue<O>) -> bool {
    row < epilogue.num_rows && column < epilogue.n
}

/// Whether there is a subtile that the warp reduces, and it has outputs at this row and column.
#[inline(always)]
fn owned_exists<T: WgmmaTile, O>(at: [u32; 2], epilogue: &Epilogue<O>) -> bool {
    let is_own = owned_subtile::<T>() / T::Acc::NUM_SUBTILES == warp::warp_idx();
    is_own && exists(at, epilogue)
}

/// The thread's values of a subtile, summed over all blocks of the cluster.
///
/// # Safety
/// 1. All partial sums at `partials` are written, and visible to the thread.
#[inline(always)]
unsafe fn reduce<T: WgmmaTile>(partials: Shared<f32>) -> [f32; SUBTILE_REGS] {
    let mut values = [0.0; SUBTILE_REGS];
    for rank in 0..T::SPLIT_K {
        let partial = partials.offset(rank * SUBTILE_ELEMS + warp::lane_id() * VEC_ELEMS as u32);
        unroll!(i in 0..8, {
            // SAFETY: the caller's promise.
            let loaded: [f32; VEC_ELEMS] = unsafe { partial.get_vec(i as u32 * WARP_VEC_ELEMS) };
            for j in 0..VEC_ELEMS {
                values[i * VEC_ELEMS + j] += loaded[j];
            }
        });
    }
    values
}

/// Writes the thread's values of a subtile to `smem`.
///
/// # Safety
/// 1. The whole warp calls this; `smem` holds the subtile, and nothing else accesses it.
#[inline(always)]
unsafe fn store_partials(smem: Shared<f32>, values: &[f32; SUBTILE_REGS]) {
    let smem = smem.offset(warp::lane_id() * VEC_ELEMS as u32);
    unroll!(i in 0..8, {
        let at = i * VEC_ELEMS;
        let values = [values[at], values[at + 1], values[at + 2], values[at + 3]];
        // SAFETY: the caller's promise.
        unsafe { smem.set_vec(i as u32 * WARP_VEC_ELEMS, values) };
    });
}
