//! All-reduce: each of `WORLD` ranks gets the sum of the ranks' tensors.
//!
//! Two algorithms, chosen by size ([`AllReduce::algorithm`]): [`one_shot`] for decoding, where
//! latency counts, and [`two_shot`] for prompts, where the bandwidth of NVLink does. [`norm`] and
//! [`two_shot_norm`] are these with the residual addition and the RMSNorm that follow,
//! [`two_shot_add`] has the addition alone.
//!
//! Numerics  f32, summed in the order of the ranks from rank 0 on, one rounding: both algorithms,
//!           every rank and every run give the same bits.
//! Workspace each rank has a [`Workspace`], which all devices can access; it is zeroed once, before
//!           the first launch of any rank. All ranks launch the same calls in the same order.
//! Epochs    what a call waits for is marked by its number, the *epoch*. Block `b` of every kernel
//!           counts its own calls, in the workspace: nothing on the host changes from call to call,
//!           so a launch can be replayed as part of a graph. Each block is a channel of its own,
//!           which meets the same block of the other ranks alone.
//! Residency a block waits for blocks of the same index. Devices start blocks in the order of their
//!           indices, so those that wait never keep all of those that they wait for from starting.
//! Failure   a rank that dies or hangs ends the launches of the others with an error
//!           ([`cuda_std::peer::SpinLimit`]).
//! PDL       epochs and workspace are accessed only after `wait_for_dependencies`, when all earlier
//!           launches of the stream have ended: calls of one rank do not overlap there, and a call's
//!           first store to a peer says that the rank's previous call has ended. What may start
//!           early is the next launch, once all blocks of this one have started: it takes no room
//!           from a block that another rank waits for.

mod channel;
pub mod gather;
#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
pub mod norm;
#[cfg(not(target_arch = "nvptx64"))]
mod norm_launcher;
pub mod one_shot;
mod rank_barrier;
pub mod two_shot;
pub mod two_shot_add;
pub mod two_shot_norm;
#[cfg(not(target_arch = "nvptx64"))]
mod workspace;

#[cfg(not(target_arch = "nvptx64"))]
pub use gather::AllGather;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{Algorithm, AllReduce, Ranks, one_shot_max_bytes};
#[cfg(not(target_arch = "nvptx64"))]
pub use norm_launcher::{AllReduceAdd, AllReduceNorm, NormOperands};
#[cfg(not(target_arch = "nvptx64"))]
pub use workspace::Workspace;

/// Most ranks.
pub const MAX_WORLD: usize = 8;

/// The epoch after `epoch`. It is never 0, which a zeroed workspace holds, and even and odd epochs
/// alternate.
#[inline(always)]
pub(crate) const fn next_epoch(epoch: u32) -> u32 {
    if epoch == u32::MAX { 2 } else { epoch + 1 }
}

#[cfg(test)]
mod tests {
    use super::next_epoch;

    #[test]
    fn epochs_alternate_and_are_never_0() {
        for epoch in [0, 1, 2, u32::MAX - 1, u32::MAX] {
            assert_ne!(next_epoch(epoch), 0);
            assert_ne!(next_epoch(epoch) % 2, epoch % 2);
        }
    }
}
