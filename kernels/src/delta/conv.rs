//! Causal convolution of each channel over the tokens of a sequence, then silu:
//! `out[t, c] = silu(sum_j weight[c, j] * x[t - 3 + j, c])`.
//!
//! Shapes    x, out `[num_tokens, channels]` with row strides, f32, f16 or bf16; weight `[channels,
//!           4]` f32; state `[num_slots, 3, channels]` f32, the last inputs of a sequence, oldest
//!           first.
//! Launch    tokens: grid `(max_tokens / TOKENS, channels / 8 / NUM_THREADS, 1)`, the inputs before
//!           a token stay in registers for the next; states, and tokens of a step that decodes:
//!           grid `(max_seqs, ..)`; block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32 inside, taps in order; exponential and reciprocal are approximate, within 3 ulp
//!           together; one rounding at the store.
//! Bound     memory: a load and a store for each column; of decoding the state too, read and
//!           written.
//! Source    arXiv:2412.06464.
//!
//! Prompts are two launches: other blocks read the state that a sequence's last tokens replace.

use crate::activation::{Gate, Silu};
use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 64;

/// Tokens of a thread in a prompt.
const TOKENS: u32 = 8;

/// Tokens whose inputs are loaded at once.
const BATCH: usize = 4;

/// Inputs of an output.
const TAPS: usize = 4;

/// Inputs that are kept.
const CONV_LEN: u32 = TAPS as u32 - 1;

/// Eight channels.
type Vector = [f32; VEC_ELEMS as usize];

/// A sequence, and where it is in the step.
#[derive(Clone, Copy)]
struct Seq {
    /// The first row, and the number of rows.
    first: u32,
    len: u32,
    /// Slots that its state is read from and written to.
    slots: [u32; 2],
    /// Whether what comes before the step are zeros.
    is_new: bool,
}

/// Sequence `seq` of the step.
///
/// # Safety
/// 1. The arrays are those of a step with more than `seq` sequences.
#[inline(always)]
unsafe fn seq(
    seq: u32,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    slots: Global<u32>,
) -> Seq {
    let at = seq as usize;
    // SAFETY: the caller's promise.
    unsafe {
        let (first, end) = (cu_seqlens_q.get(at), cu_seqlens_q.get(at + 1));
        let len = end - first;
        Seq { first, len, slots: slots.get_vec(2 * at), is_new: kv_lens.get(at) == len }
    }
}

/// The inputs of some channels.
#[derive(Clone, Copy)]
struct Inputs<E> {
    x: Global<E>,
    x_stride: u32,
    state: Global<f32>,
    channels: u32,
    columns: Columns,
}

impl<E: Number> Inputs<E> {
    /// Input `at` of a sequence, counted from the first one that its state keeps.
    ///
    /// # Safety
    /// 1. `at` is below the sequence's length plus `CONV_LEN`; `x` and `state` are those of the
    ///    step.
    #[inline(always)]
    #[track_caller]
    unsafe fn get(&self, seq: Seq, at: u32) -> Vector {
        // SAFETY: the caller's promise.
        unsafe {
            if at >= CONV_LEN {
                let row = (seq.first + at - CONV_LEN) as usize;
                return self.columns.load(self.x.add(row * self.x_stride as usize));
            }
            if seq.is_new {
                return [0.0; VEC_ELEMS as usize];
            }
            let row = (seq.slots[0] * CONV_LEN + at) as usize;
            self.columns.load(self.state.add(row * self.channels as usize))
        }
    }
}

/// The weights of eight channels.
type Weights = [[f32; TAPS]; VEC_ELEMS as usize];

/// The weights of eight channels from channel `first` on; zeros past the last one.
///
/// # Safety
/// 1. `weight` holds four elements of each of `channels`, 16-byte aligned.
#[inline(always)]
#[track_caller]
unsafe fn weights_of(weight: Global<f32>, first: u32, channels: u32) -> Weights {
    let mut weights = [[0.0; TAPS]; VEC_ELEMS as usize];
    unroll!(i in 0..VEC_ELEMS as usize, {
        if first + (i as u32) < channels {
            // SAFETY: the channel is below `channels`.
            weights[i] = unsafe { weight.get_vec((first as usize + i) * TAPS) };
        }
    });
    weights
}

/// The outputs of eight channels, of `inputs`, the oldest first.
#[inline(always)]
fn convolved(inputs: [Vector; TAPS], weights: &Weights) -> Vector {
    let mut out = [0.0; VEC_ELEMS as usize];
    unroll!(i in 0..VEC_ELEMS as usize, {
        let mut sum = 0.0;
        for tap in 0..TAPS {
            sum = math::fma(weights[i][tap], inputs[tap][i], sum);
        }
        out[i] = Silu::activate(sum);
    });
    out
}

/// The outputs of every token.
///
/// # Safety
/// 1. `num_tokens` is one element; `seq_ids`, `cu_seqlens_q`, `kv_lens` and `slots` are those of a
///    step of so many tokens.
/// 2. `x` and `out` hold that many rows of `channels` elements `E` at their strides and do not
///    overlap; `weight` holds four elements for each channel, `state` three rows for each slot,
///    16-byte aligned.
/// 3. If `aligned` is not 0, rows of `x`, `out` and `state` are 16-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(E in [f32, f16, bf16], causal_conv_{E} = <E>)
)]
pub unsafe fn causal_conv<E: Number>(
    num_tokens: Global<u32>,
    seq_ids: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    slots: Global<u32>,
    channels: u32,
    x: Global<()>,
    x_stride: u32,
    weight: Global<f32>,
    state: Global<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    aligned: u32,
) {
    let first_token = thread::block_idx_x() * TOKENS;
    let first = (thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x()) * VEC_ELEMS;
    // SAFETY: step inputs, which no launch of the step writes.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if first_token >= num_tokens || first >= channels {
        return;
    }
    // SAFETY: tokens and channels are inside, by the checks here.
    unsafe {
        let columns = Columns::new(first, channels, aligned != 0);
        let inputs = Inputs { x: x.cast::<E>(), x_stride, state, channels, columns };
        let weights = weights_of(weight, first, channels);
        let mut before = [[0.0; VEC_ELEMS as usize]; TAPS - 1];
        let mut seq_id = u32::MAX;
        let mut token = first_token;
        while token < (first_token + TOKENS).min(num_tokens) {
            let mut own = [[0.0; VEC_ELEMS as usize]; BATCH];
            unroll!(i in 0..4, {
                if token + (i as u32) < num_tokens {
                    let row = (token + i as u32) as usize;
                    own[i] = columns.load(inputs.x.add(row * x_stride as usize));
                }
            });
            unroll!(i in 0..4, {
                let token = token + i as u32;
                if token < num_tokens {
                    let id = seq_ids.get(token as usize);
                    if id != seq_id {
                        seq_id = id;
                        let seq = seq(id, cu_seqlens_q, kv_lens, slots);
                        unroll!(tap in 0..3, {
                            before[tap] = inputs.get(seq, token - seq.first + tap as u32);
                        });
                    }
                    let row = out.cast::<E>().add(token as usize * out_stride as usize);
                    let taps = [before[0], before[1], before[2], own[i]];
                    columns.store(row, convolved(taps, &weights));
                    before = [before[1], before[2], own[i]];
                }
            });
            token += BATCH as u32;
        }
    }
}

/// The new state of every sequence and, if `decodes` is not 0, the output of its only token.
///
/// # Safety
/// 1. `num_seqs` is one element; `cu_seqlens_q`, `kv_lens` and `slots` are those of a step of so
///    many sequences, none of which reads a slot that another writes.
/// 2. As [`causal_conv`](causal_conv()); no other kernel reads or writes the state at the same
///    time. If `decodes` is not 0, each sequence has one token.
/// 3. As [`causal_conv`](causal_conv()).
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(E in [f32, f16, bf16], causal_conv_state_{E} = <E>)
)]
pub unsafe fn causal_conv_state<E: Number>(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    slots: Global<u32>,
    channels: u32,
    x: Global<()>,
    x_stride: u32,
    weight: Global<f32>,
    state: GlobalMut<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    decodes: u32,
    aligned: u32,
) {
    let index = thread::block_idx_x();
    let first = (thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x()) * VEC_ELEMS;
    // SAFETY: step inputs, which no launch of the step writes.
    let num_seqs = unsafe { num_seqs.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if index >= num_seqs || first >= channels {
        return;
    }
    // SAFETY: `index` and the channels are inside, by the check here. A thread writes what it alone
    // has read.
    unsafe {
        let seq = seq(index, cu_seqlens_q, kv_lens, slots);
        if seq.len == 0 {
            return;
        }
        let columns = Columns::new(first, channels, aligned != 0);
        let old = state.as_global();
        let inputs = Inputs { x: x.cast::<E>(), x_stride, state: old, channels, columns };
        let mut last = [[0.0; VEC_ELEMS as usize]; TAPS];
        if decodes != 0 {
            // Of the output alone.
            last[0] = inputs.get(seq, seq.len - 1);
        }
        unroll!(row in 0..3, {
            last[row + 1] = inputs.get(seq, seq.len + row as u32);
        });
        unroll!(row in 0..3, {
            let row_idx = (seq.slots[1] * CONV_LEN + row as u32) as usize;
            columns.store(state.add(row_idx * channels as usize), last[row + 1]);
        });
        if decodes != 0 {
            let row = out.cast::<E>().add(seq.first as usize * out_stride as usize);
            columns.store(row, convolved(last, &weights_of(weight, first, channels)));
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::CausalConv;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, TAPS, TOKENS, causal_conv, causal_conv_state};
    use crate::Rows;
    use crate::delta::StateSeqs;
    use crate::element::{Number, VEC_ELEMS};
    use crate::operand::is_aligned;
    use core::any::TypeId;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// A causal convolution over the tokens of each sequence.
    #[derive(Clone, Copy, Debug)]
    pub struct CausalConv {
        /// Upper bound of the tokens.
        pub max_tokens: usize,
        /// Upper bound of the sequences.
        pub max_seqs: usize,
        /// Whether every sequence has one token.
        pub decodes: bool,
        /// Channels.
        pub channels: usize,
        /// Inputs of an output.
        pub taps: usize,
    }

    /// What a convolution reads and writes.
    #[derive(Clone, Copy, Debug)]
    pub struct ConvOperands<E> {
        /// The inputs.
        pub x: Rows<E>,
        /// `[channels, taps]`.
        pub weight: DevicePtr<f32>,
        /// `[num_slots, taps - 1, channels]`.
        pub state: DevicePtr<f32>,
        /// As `x`.
        pub out: Rows<E>,
    }

    impl CausalConv {
        /// The launches, in order; none if there is nothing to compute. `num_tokens` points to the
        /// token count, and `seq_ids` to the sequence of each token.
        ///
        /// # Errors
        /// [`LaunchError`] for other than four taps, and sizes beyond a grid or a `u32`.
        pub fn launches<E: Number>(
            &self,
            num_tokens: DevicePtr<u32>,
            seq_ids: DevicePtr<u32>,
            seqs: &StateSeqs,
            operands: &ConvOperands<E>,
        ) -> Result<Vec<Launch>, LaunchError> {
            if self.taps != TAPS {
                return Err(LaunchError::Shape { what: "taps", value: self.taps, expected: "4" });
            }
            let &ConvOperands { x, weight, state, out } = operands;
            let &StateSeqs { num_seqs, cu_seqlens_q, kv_lens, slots } = seqs;
            let channels = arg_u32("channels", self.channels)?;
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let aligned = self.channels.is_multiple_of(VEC_ELEMS as usize)
                && x.is_aligned()
                && out.is_aligned()
                && is_aligned(state);
            let aligned = aligned.into();
            let blocks = self.channels.div_ceil((VEC_ELEMS * NUM_THREADS) as usize);
            let geometry = |rows: usize| Geometry::new([rows, blocks, 1], NUM_THREADS as usize, 0);
            let (x, untyped_out) = (x.untyped_ptr(), out.untyped_ptr());
            let mut launches = Vec::new();
            if !self.decodes
                && let Some(geometry) = geometry(self.max_tokens.div_ceil(TOKENS as usize))?
            {
                use causal_conv::Instance;
                let instance = Instance::find(|i: Instance| i.e() == TypeId::of::<E>());
                let args = causal_conv::Args {
                    num_tokens,
                    seq_ids,
                    cu_seqlens_q,
                    kv_lens,
                    slots,
                    channels,
                    x,
                    x_stride,
                    weight,
                    state,
                    out: untyped_out,
                    out_stride,
                    aligned,
                };
                launches.push(args.launch(instance.expect("instances of all types"), geometry));
            }
            if let Some(geometry) = geometry(self.max_seqs)? {
                use causal_conv_state::Instance;
                let instance = Instance::find(|i: Instance| i.e() == TypeId::of::<E>());
                let args = causal_conv_state::Args {
                    num_seqs,
                    cu_seqlens_q,
                    kv_lens,
                    slots,
                    channels,
                    x,
                    x_stride,
                    weight,
                    state,
                    out: untyped_out,
                    out_stride,
                    decodes: self.decodes.into(),
                    aligned,
                };
                launches.push(args.launch(instance.expect("instances of all types"), geometry));
            }
            Ok(launches)
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::ConvOperands;
