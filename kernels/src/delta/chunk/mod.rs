//! The gated delta rule of prompts, chunk after chunk of 64 tokens, on the tensor cores.
//!
//! With `G` the sum of the gates' logarithms from the start of a chunk on, and keys and queries of
//! length 1, a chunk's output and the state after it are
//!
//! - `D = T (v - e^G (k S))`, where `T = (I + M)^-1 diag(beta)` and `M[i, j] = beta[i] (k[i] .
//!   k[j]) e^(G[i] - G[j])` below the diagonal;
//! - `out = e^G (q S) + P D`, where `P[i, j] = (q[i] . k[j]) e^(G[i] - G[j])` up to the diagonal;
//! - `S' = e^(G of the last) S + k^T (e^(G of the last - G) D)`.
//!
//! [`prepare`] makes `T` and `P` of all chunks at once, [`scan`] goes through them
//! in order. Chunks begin at the first token of a sequence in the step.
//!
//! Source    arXiv:2412.06464, section 3.3.

pub mod prepare;
pub mod scan;
mod tile;

#[cfg(not(target_arch = "nvptx64"))]
pub(super) use launcher::Chunks;

use cuda_std::prelude::*;

/// Tokens of a chunk.
const CHUNK: u32 = 64;

/// Sequences with so many new tokens go chunk by chunk, shorter ones token by token.
pub const MIN_TOKENS: u32 = 16;

/// Steps of 16 tokens, the side of an MMA, in a chunk.
const CHUNK_STEPS: usize = 4;

/// Numbers that a token has for the scan beside its rows of `T` and `P`: `e^G` over the length of
/// its key and over that of its query times `sqrt(k_dim)`, `e^(G of the last - G)` over the length
/// of its key, and `e^(G of the last)`.
const NUM_FACTORS: u32 = 4;

/// What both kernels pass on, of every head and row of the step: `T` and `P` `[num_heads, num_rows,
/// CHUNK]`, factors `[num_heads, num_rows, NUM_FACTORS]`.
#[derive(Clone, Copy)]
struct Prepared<E> {
    inverse: GlobalMut<E>,
    scores: GlobalMut<E>,
    factors: GlobalMut<f32>,
    num_rows: u32,
}

impl<E> Prepared<E> {
    /// The part from row `row` of head `head` on.
    ///
    /// # Safety
    /// 1. There are such.
    #[inline(always)]
    unsafe fn at(self, head: u32, row: u32) -> Self {
        let at = head as usize * self.num_rows as usize + row as usize;
        // SAFETY: the caller's promise.
        unsafe {
            Prepared {
                inverse: self.inverse.add(at * CHUNK as usize),
                scores: self.scores.add(at * CHUNK as usize),
                factors: self.factors.add(at * NUM_FACTORS as usize),
                ..self
            }
        }
    }
}

/// The sequence, among those that have [`MIN_TOKENS`], that part `index` is of, and the part's
/// index in it, where a sequence of some length has `count` parts. The whole warp calls this.
///
/// # Safety
/// 1. `cu_seqlens_q` is of a step of `num_seqs` sequences.
#[inline(always)]
unsafe fn find(
    num_seqs: u32,
    cu_seqlens_q: Global<u32>,
    index: u32,
    count: impl Fn(u32) -> u32,
) -> Option<[u32; 2]> {
    let lane = warp::lane_id();
    let (mut first_seq, mut before) = (0, 0);
    while first_seq < num_seqs {
        let seq = first_seq + lane;
        let mut end = 0;
        if seq < num_seqs {
            let at = seq as usize;
            // SAFETY: the sequence is one of the step's.
            let len = unsafe { cu_seqlens_q.get(at + 1) - cu_seqlens_q.get(at) };
            end = if len < MIN_TOKENS { 0 } else { count(len) };
        }
        unroll!(step in 0..5, {
            let other = warp::shuffle_up(end, 1 << step);
            end += if lane < 1 << step { 0 } else { other };
        });
        let after = warp::ballot(warp::FULL_MASK, before + end > index);
        if after != 0 {
            let found = after.trailing_zeros();
            // The parts of the sequences before it.
            let start = warp::shuffle_idx(end, found.saturating_sub(1));
            let start = if found == 0 { 0 } else { start };
            return Some([first_seq + found, index - before - start]);
        }
        before += warp::shuffle_idx(end, warp::WARP_SIZE - 1);
        first_seq += warp::WARP_SIZE;
    }
    None
}

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{CHUNK, MIN_TOKENS, NUM_FACTORS, prepare, scan};
    use crate::delta::StateSeqs;
    use crate::delta::rule::{DeltaOperands, DeltaRule};
    use crate::element::Number;
    use core::any::TypeId;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// The launches of the chunked form.
    pub(in crate::delta) struct Chunks<'a> {
        pub rule: &'a DeltaRule,
        /// Upper bound of the rows.
        pub max_tokens: usize,
    }

    impl Chunks<'_> {
        /// Whether values of `v_dim` elements are whole blocks.
        pub fn takes(v_dim: usize) -> bool {
            v_dim.is_multiple_of(scan::BLOCK_COLUMNS as usize)
        }

        /// Bytes of what the first launch leaves for the second.
        pub fn workspace_bytes(&self) -> usize {
            let row_bytes = 2 * CHUNK as usize * 2 + NUM_FACTORS as usize * size_of::<f32>();
            self.rule.num_heads * self.max_tokens * row_bytes
        }

        /// Sequences that may have [`MIN_TOKENS`].
        fn max_seqs(&self) -> usize {
            self.rule.max_seqs.min(self.max_tokens / MIN_TOKENS as usize)
        }

        /// Both launches, of elements of 16 bits, for [`StateSeqs`] that have [`MIN_TOKENS`];
        /// `workspace` holds [`Chunks::workspace_bytes`].
        pub fn launches<E: Number>(
            &self,
            seqs: &StateSeqs,
            operands: &DeltaOperands<E>,
            workspace: DevicePtr<()>,
        ) -> Result<Vec<Launch>, LaunchError> {
            let &DeltaOperands { q, k, v, gates, rate, bias, state, out } = operands;
            let &StateSeqs { num_seqs, cu_seqlens_q, kv_lens, slots } = seqs;
            let DeltaRule { num_heads, num_k_heads, k_dim, v_dim, .. } = *self.rule;
            let head_elems = num_heads * self.max_tokens * CHUNK as usize;
            let inverse = workspace;
            let scores = DevicePtr::new(workspace.0 + 2 * head_elems as u64);
            let factors = DevicePtr::new(workspace.0 + 4 * head_elems as u64);
            let num_rows = arg_u32("max_tokens", self.max_tokens)?;
            let is_tiled = self.rule.is_tiled.into();
            let (num_heads_arg, num_k_heads_arg) =
                (arg_u32("num_heads", num_heads)?, arg_u32("num_k_heads", num_k_heads)?);

            let chunks = self.max_tokens / CHUNK as usize + self.max_seqs();
            let grid = [num_k_heads, chunks, 2];
            let bytes = prepare::shared_bytes(k_dim);
            let geometry = Geometry::new(grid, prepare::NUM_THREADS as usize, bytes)?;
            let args = prepare::delta_chunk_prepare::Args {
                num_seqs,
                cu_seqlens_q,
                num_heads: num_heads_arg,
                num_k_heads: num_k_heads_arg,
                is_tiled,
                q: q.untyped_ptr(),
                q_stride: q.stride_arg()?,
                k: k.untyped_ptr(),
                k_stride: k.stride_arg()?,
                gates: gates.untyped_ptr(),
                gates_stride: gates.stride_arg()?,
                rate,
                bias,
                inverse,
                scores,
                factors,
                num_rows,
            };
            use prepare::delta_chunk_prepare::Instance as Prepare;
            let is_it = |i: Prepare| i.e() == TypeId::of::<E>() && 16 * i.steps() == k_dim;
            let instance = Prepare::find(is_it).expect("instances of all keys in 16 bits");
            let first = geometry.map(|geometry| args.launch(instance, geometry));

            let slices = v_dim / scan::BLOCK_COLUMNS as usize;
            let grid = [slices, num_heads, self.max_seqs()];
            let bytes = scan::shared_bytes(k_dim);
            let geometry = Geometry::new(grid, scan::NUM_THREADS as usize, bytes)?;
            let args = scan::delta_chunk_scan::Args {
                num_seqs,
                cu_seqlens_q,
                kv_lens,
                slots,
                num_heads: num_heads_arg,
                num_k_heads: num_k_heads_arg,
                is_tiled,
                v_dim: arg_u32("v_dim", v_dim)?,
                q: q.untyped_ptr(),
                q_stride: q.stride_arg()?,
                k: k.untyped_ptr(),
                k_stride: k.stride_arg()?,
                v: v.untyped_ptr(),
                v_stride: v.stride_arg()?,
                inverse,
                scores,
                factors,
                num_rows,
                state,
                out: out.untyped_ptr(),
                out_stride: out.stride_arg()?,
            };
            use scan::delta_chunk_scan::Instance as Scan;
            let is_it = |i: Scan| i.e() == TypeId::of::<E>() && 16 * i.steps() == k_dim;
            let instance = Scan::find(is_it).expect("instances of all keys in 16 bits");
            let second = geometry.map(|geometry| args.launch(instance, geometry));
            Ok(first.into_iter().chain(second).collect())
        }
    }
}
