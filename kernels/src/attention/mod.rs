//! Causal attention over the paged cache.
//!
//! Token `t` of sequence `s` is at position `p = kv_lens[s] - q_len[s] + (t - cu_seqlens_q[s])`
//! and attends to positions `0 ..= p`, with a window `w` to `p - w < j <= p`.

mod combine;
pub mod decode;
mod fma;
mod mma;
mod new_token;
pub mod prefill;
mod tile;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{Append, Attention, AttentionOperands, DecodeWorkspace, SeqInputs};
pub use tile::AttentionElement;
