//! Attention over the paged cache.
//!
//! Token `t` of sequence `s` is at position `p = kv_lens[s] - q_len[s] + (t - cu_seqlens_q[s])`. It
//! attends to positions `0 ..= p`, with a window `w` to `p - w < j <= p`; if attention is not causal
//! to all of the sequence's positions, with a window `w` to `p - w < j < p + w`.

mod combine;
pub mod decode;
mod fma;
mod head_dims;
mod kv_ring;
pub mod materialized;
mod mma;
mod new_token;
pub mod prefill;
pub mod prefill_cluster;
pub mod sm90;
mod tile;
pub mod work;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
mod reach;
#[cfg(not(target_arch = "nvptx64"))]
mod splits;
#[cfg(not(target_arch = "nvptx64"))]
mod work_list;
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use launcher::dynamic_shared_bytes;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{
    Append, Attention, AttentionFp8, AttentionFp8Operands, AttentionOperands, AttentionWorkspace,
    SeqInputs,
};
pub use tile::AttentionElement;
#[cfg(not(target_arch = "nvptx64"))]
pub use work_list::{ItemWords, SeqLens};
