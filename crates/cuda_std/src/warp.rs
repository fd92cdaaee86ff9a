//! Instructions of a warp, called converged: by every lane of the mask, or by the whole warp where
//! there is no mask.
//!
//! The device bodies are LLVM's intrinsics, not `asm!`: LLVM knows that they are convergent, and
//! does not move a call of one into a branch.
//!
//! PTX ISA: [`shfl.sync`],
//! [`bar.warp.sync`],
//! [`vote.sync`],
//! [`match.sync`],
//! [`redux.sync`],
//! [`elect.sync`],
//! [`activemask`].
//!
//! [`shfl.sync`]: https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync
//! [`bar.warp.sync`]: https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar-warp-sync
//! [`vote.sync`]: https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-vote-sync
//! [`match.sync`]: https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-match-sync
//! [`redux.sync`]: https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-redux-sync
//! [`elect.sync`]: https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-elect-sync
//! [`activemask`]: https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-activemask

#[cfg(not(target_arch = "nvptx64"))]
mod emulated;
mod reduce;
mod redux;

use crate::thread::thread_idx_x;
pub use reduce::*;
pub use redux::*;

/// Threads of a warp.
pub const WARP_SIZE: u32 = 32;

/// Threads of a warpgroup: four warps, the first of which is a multiple of four (SM 90).
pub const WARPGROUP_SIZE: u32 = 128;

/// All lanes.
pub const FULL_MASK: u32 = u32::MAX;

/// Clamp of a shuffle over the whole warp: the last lane.
#[cfg(target_arch = "nvptx64")]
const LAST_LANE: u32 = 31;

/// Result of the instructions that give a mask or a value, and a predicate.
#[cfg(target_arch = "nvptx64")]
#[repr(C)]
struct WithPredicate(u32, bool);

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_down(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.vote.all.sync"]
    fn vote_all_sync(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any_sync(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot_sync(mask: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.match.any.sync.i32"]
    fn match_any_sync(mask: u32, value: u32) -> u32;
    #[link_name = "llvm.nvvm.match.all.sync.i32p"]
    fn match_all_sync(mask: u32, value: u32) -> WithPredicate;
    #[link_name = "llvm.nvvm.elect.sync"]
    fn elect_sync(mask: u32) -> WithPredicate;
    #[link_name = "llvm.nvvm.activemask"]
    fn activemask() -> u32;
}

/// Keeps LLVM from moving the convergent `asm!` that follows.
///
/// rustc does not mark `asm!` convergent: between two branches on the same condition, LLVM copies
/// it into both, and each half of the warp runs another copy. In a basic block with a convergent
/// call it does not. ptxas removes this call, as its result is unused.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn stay_converged() {
    // SAFETY: a read of the lanes that run.
    unsafe { activemask() };
}

/// A value that a shuffle moves between lanes: a register of 32 bits.
pub trait Shuffle: Copy {
    /// The register.
    fn to_word(self) -> u32;
    /// The value in a register.
    fn from_word(word: u32) -> Self;
}

impl Shuffle for f32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self.to_bits()
    }

    #[inline(always)]
    fn from_word(word: u32) -> Self {
        f32::from_bits(word)
    }
}

impl Shuffle for u32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self
    }

    #[inline(always)]
    fn from_word(word: u32) -> Self {
        word
    }
}

/// The value of lane `lane_id ^ lane_mask`. CUDA C `__shfl_xor_sync`.
#[doc = ptx!("shfl.sync.bfly.b32")]
#[inline(always)]
#[track_caller]
pub fn shuffle_xor<T: Shuffle>(value: T, lane_mask: u32) -> T {
    shuffle_xor_among(FULL_MASK, value, lane_mask)
}

/// [`shuffle_xor`] of the lanes `mask`, which holds the lane that is read.
#[doc = ptx!("shfl.sync.bfly.b32")]
#[inline(always)]
#[track_caller]
pub fn shuffle_xor_among<T: Shuffle>(mask: u32, value: T, lane_mask: u32) -> T {
    T::from_word(shuffle_xor_word(mask, value.to_word(), lane_mask))
}

/// The value of lane `lane`, modulo 32. CUDA C `__shfl_sync`.
#[doc = ptx!("shfl.sync.idx.b32")]
#[inline(always)]
#[track_caller]
pub fn shuffle_idx<T: Shuffle>(value: T, lane: u32) -> T {
    shuffle_idx_among(FULL_MASK, value, lane)
}

/// [`shuffle_idx`] of the lanes `mask`, which holds the lane that is read.
#[doc = ptx!("shfl.sync.idx.b32")]
#[inline(always)]
#[track_caller]
pub fn shuffle_idx_among<T: Shuffle>(mask: u32, value: T, lane: u32) -> T {
    T::from_word(shuffle_idx_word(mask, value.to_word(), lane))
}

/// The value of lane `lane_id - delta`, or the lane's own if there is none; `delta` is below 32.
/// CUDA C `__shfl_up_sync`.
#[doc = ptx!("shfl.sync.up.b32")]
#[inline(always)]
#[track_caller]
pub fn shuffle_up<T: Shuffle>(value: T, delta: u32) -> T {
    T::from_word(shuffle_up_word(value.to_word(), delta))
}

/// The value of lane `lane_id + delta`, or the lane's own if there is none; `delta` is below 32.
/// CUDA C `__shfl_down_sync`.
#[doc = ptx!("shfl.sync.down.b32")]
#[inline(always)]
#[track_caller]
pub fn shuffle_down<T: Shuffle>(value: T, delta: u32) -> T {
    T::from_word(shuffle_down_word(value.to_word(), delta))
}

instruction! {
    "shfl.sync.bfly.b32" => fn shuffle_xor_word(mask: u32, value: u32, lane_mask: u32) -> u32 {
        shfl_bfly(mask, value, lane_mask, LAST_LANE)
    } host {
        emulated::shuffle("shfl.sync.bfly.b32", mask, value, (lane_id() ^ lane_mask) % WARP_SIZE)
    }

    "shfl.sync.idx.b32" => fn shuffle_idx_word(mask: u32, value: u32, lane: u32) -> u32 {
        shfl_idx(mask, value, lane, LAST_LANE)
    } host {
        emulated::shuffle("shfl.sync.idx.b32", mask, value, lane % WARP_SIZE)
    }

    "shfl.sync.up.b32" => fn shuffle_up_word(value: u32, delta: u32) -> u32 {
        shfl_up(FULL_MASK, value, delta, 0)
    } host {
        let from = lane_id().checked_sub(delta % WARP_SIZE).unwrap_or(lane_id());
        emulated::shuffle("shfl.sync.up.b32", FULL_MASK, value, from)
    }

    "shfl.sync.down.b32" => fn shuffle_down_word(value: u32, delta: u32) -> u32 {
        shfl_down(FULL_MASK, value, delta, LAST_LANE)
    } host {
        let from = lane_id() + delta % WARP_SIZE;
        let from = if from < WARP_SIZE { from } else { lane_id() };
        emulated::shuffle("shfl.sync.down.b32", FULL_MASK, value, from)
    }

    /// Waits for all lanes, and orders their memory accesses. CUDA C `__syncwarp`.
    "bar.warp.sync" => pub fn sync_warp() {
        bar_warp_sync(FULL_MASK)
    } host {
        simt::device::sync_warp(FULL_MASK)
    }

    /// [`sync_warp`] of the lanes in `mask`, which contains the calling lane.
    "bar.warp.sync" => pub fn sync_lanes(mask: u32) {
        bar_warp_sync(mask)
    } host {
        emulated::check_membership("bar.warp.sync", mask);
        simt::device::sync_warp(mask)
    }

    /// Whether `predicate` holds in all lanes of `mask`. CUDA C `__all_sync`.
    "vote.sync.all.pred" => pub fn vote_all(mask: u32, predicate: bool) -> bool {
        vote_all_sync(mask, predicate)
    } host {
        emulated::ballot("vote.sync.all.pred", mask, predicate) == mask
    }

    /// Whether `predicate` holds in any lane of `mask`. CUDA C `__any_sync`.
    "vote.sync.any.pred" => pub fn vote_any(mask: u32, predicate: bool) -> bool {
        vote_any_sync(mask, predicate)
    } host {
        emulated::ballot("vote.sync.any.pred", mask, predicate) != 0
    }

    /// The lanes of `mask` in which `predicate` holds. CUDA C `__ballot_sync`.
    "vote.sync.ballot.b32" => pub fn ballot(mask: u32, predicate: bool) -> u32 {
        vote_ballot_sync(mask, predicate)
    } host {
        emulated::ballot("vote.sync.ballot.b32", mask, predicate)
    }

    /// The lanes of `mask` whose `value` equals the calling lane's. CUDA C `__match_any_sync`.
    "match.any.sync.b32" => pub fn match_any(mask: u32, value: u32) -> u32 {
        match_any_sync(mask, value)
    } host {
        emulated::match_any("match.any.sync.b32", mask, value)
    }

    /// Whether `value` is the same in all lanes of `mask`. CUDA C `__match_all_sync`.
    "match.all.sync.b32" => pub fn match_all(mask: u32, value: u32) -> bool {
        match_all_sync(mask, value).1
    } host {
        emulated::match_any("match.all.sync.b32", mask, value) == mask
    }

    /// True in one lane of `mask`, always the same one for the same mask (SM 90).
    "elect.sync" => pub fn elect(mask: u32) -> bool {
        elect_sync(mask).1
    } host {
        emulated::ballot("elect.sync", mask, true);
        lane_id() == mask.trailing_zeros()
    }

    /// Lanes that execute this instruction together with the calling one. CUDA C `__activemask`.
    ///
    /// Only the calling lane is certain to be among them, and is the only one on the emulator: of
    /// the lanes that took the same branch some may have run ahead.
    "activemask.b32" => pub fn active_mask() -> u32 {
        activemask()
    } host {
        1 << lane_id()
    }
}

/// Index of the warpgroup in its one-dimensional block. It is shuffled from lane 0, so that ptxas
/// can see that it is uniform in the warp; else it serialises `wgmma` (warning C7518).
#[inline(always)]
#[track_caller]
pub fn warpgroup_idx() -> u32 {
    shuffle_idx(thread_idx_x() / WARPGROUP_SIZE, 0)
}

/// Index of the thread in its warp, of a one-dimensional block.
#[inline(always)]
#[track_caller]
pub fn lane_id() -> u32 {
    thread_idx_x() % WARP_SIZE
}

/// Index of the warp in its one-dimensional block.
#[inline(always)]
#[track_caller]
pub fn warp_idx() -> u32 {
    thread_idx_x() / WARP_SIZE
}
