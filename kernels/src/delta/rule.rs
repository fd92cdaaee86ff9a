//! The gated delta rule, token after token of a sequence. A head of values has a state `S`; `q` and
//! `k` are those of its head of keys, of length 1, `q` divided by `sqrt(k_dim)`:
//!
//! `S *= e^g; d = sigmoid(b) * (v - S^T k); S += k d^T; out = S^T q`, where `g = rate *
//! softplus(a + bias)`.
//!
//! Shapes    q, k `[num_tokens, num_k_heads * k_dim]`, v, out `[num_tokens, num_heads * v_dim]`,
//!           gates `[num_tokens, 2 * num_heads]` (b, then a) with row strides, f32, f16 or bf16;
//!           rate, bias `[num_heads]` f32; state `[num_slots, num_heads, k_dim, v_dim]` f32.
//! Launch    grid `(max_seqs, num_heads, v_dim / 32)`, block `(NUM_THREADS, 1, 1)`: a warp has 16
//!           columns of a state in its registers for all tokens of a sequence, a lane four of them
//!           and every eighth group of four rows.
//! Numerics  f32 inside. Both products with S are of the S before the token, whose own part is
//!           added: `S'^T q = e^g S^T q + (k . q) d`. One rounding at the store of out.
//! Bound     memory: a read and a write of S for each sequence.
//! Source    arXiv:2412.06464.

use crate::element::Number;
use crate::sigmoid_gate::sigmoid;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Warps of a block.
const NUM_WARPS: u32 = 2;

/// Threads of a block.
const NUM_THREADS: u32 = NUM_WARPS * warp::WARP_SIZE;

/// Columns that a lane has.
const LANE_COLUMNS: u32 = 4;

/// Lanes side by side, which have different columns.
const V_LANES: u32 = 4;

/// Lanes that share columns, with different rows.
const K_LANES: u32 = warp::WARP_SIZE / V_LANES;

/// Columns of a warp.
const WARP_COLUMNS: u32 = LANE_COLUMNS * V_LANES;

/// Neighbouring rows of a lane.
const ROW_GROUP: u32 = 4;

/// Added to the sum of squares of a key and of a query.
pub(super) const NORM_EPS: f32 = 1e-6;

/// Values of a lane's four columns.
type Quad = [f32; LANE_COLUMNS as usize];

/// What a lane loads of a token: its part of q and of k, its columns of v, and the gates.
#[derive(Clone, Copy)]
struct Token {
    q: Quad,
    k: Quad,
    v: Quad,
    b: f32,
    a: f32,
}

/// Where a lane finds its part of every token.
#[derive(Clone, Copy)]
struct Tokens<E> {
    q: Global<E>,
    q_stride: u32,
    k: Global<E>,
    k_stride: u32,
    v: Global<E>,
    v_stride: u32,
    gates: Global<E>,
    gates_stride: u32,
    num_heads: u32,
}

impl<E: Number> Tokens<E> {
    /// The part of row `row`; of `q` and `k` as many elements as a lane of `ROWS` rows has.
    ///
    /// # Safety
    /// 1. `row` is one of the step's.
    #[inline(always)]
    #[track_caller]
    unsafe fn load<const ROWS: usize>(&self, row: u32) -> Token {
        let at = |stride: u32| row as usize * stride as usize;
        // SAFETY: the caller's promise.
        unsafe {
            Token {
                q: lane_part::<E, ROWS>(self.q.add(at(self.q_stride))),
                k: lane_part::<E, ROWS>(self.k.add(at(self.k_stride))),
                v: quad(self.v.add(at(self.v_stride))),
                b: self.gates.get(at(self.gates_stride)).to_f32(),
                a: self.gates.get(at(self.gates_stride) + self.num_heads as usize).to_f32(),
            }
        }
    }
}

/// Four elements.
///
/// # Safety
/// 1. They are inside the view, aligned to their size together.
#[inline(always)]
#[track_caller]
unsafe fn quad<E: Number>(x: Global<E>) -> Quad {
    // SAFETY: the caller's promise.
    let [a, b, c, d]: [E; 4] = unsafe { x.get_vec(0) };
    [a.to_f32(), b.to_f32(), c.to_f32(), d.to_f32()]
}

/// The elements of a key of `8 * ROWS` that a lane loads: four, or one and zeros.
///
/// # Safety
/// As [`quad`].
#[inline(always)]
#[track_caller]
unsafe fn lane_part<E: Number, const ROWS: usize>(x: Global<E>) -> Quad {
    // SAFETY: the caller's promise.
    unsafe {
        match ROWS {
            16 => quad(x),
            _ => [x.get(0).to_f32(), 0.0, 0.0, 0.0],
        }
    }
}

/// The inner product of what two lanes' parts are of, in all lanes.
#[inline(always)]
fn inner(a: Quad, b: Quad) -> f32 {
    let mut sum = 0.0;
    for i in 0..4 {
        sum = math::fma(a[i], b[i], sum);
    }
    warp::reduce_add(sum)
}

/// `ln(1 + e^x)`.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    /// Below it `1 + e` loses digits that count: the sum of its logarithms over many tokens is a
    /// decay.
    const SMALL: f32 = 0.0625;
    let e = math::exp2_approx(-x.abs() * LOG2_E);
    let series = [-0.25, 1.0 / 3.0, -0.5, 1.0].iter().fold(0.2, |sum, &c| math::fma(sum, e, c)) * e;
    let log = if e < SMALL { series } else { math::log2_approx(1.0 + e) * LN_2 };
    math::max(x, 0.0) + log
}

/// The sum over the lanes that share columns, in all of them.
#[inline(always)]
fn sum_rows(mut values: [f32; 8]) -> [f32; 8] {
    unroll!(step in 0..3, {
        // The shuffles of the columns interleave.
        for i in 0..8 {
            values[i] += warp::shuffle_xor(values[i], V_LANES << step);
        }
    });
    values
}

/// The row of the state that a lane's row `row` is, from its first one on.
#[inline(always)]
const fn state_row(row: usize) -> usize {
    const GROUP: usize = ROW_GROUP as usize;
    row / GROUP * K_LANES as usize * GROUP + row % GROUP
}

/// Keys of `8 * ROWS` elements.
///
/// # Safety
/// 1. `num_seqs` is one element; `cu_seqlens_q`, `kv_lens` and `slots` are those of a step of so
///    many sequences, none of which reads a slot that another writes.
/// 2. `q`, `k`, `v`, `gates` and `out` hold the step's rows of the header's shapes at their
///    strides, with `v_dim` a multiple of 16 and `num_heads` one of `num_k_heads`; rows are 8-byte
///    aligned, those of f32 16-byte. `rate`, `bias` and `state` are of the header's shapes, `state`
///    16-byte aligned.
/// 3. `out` overlaps nothing; no other kernel reads or writes the states at the same time, and the
///    launch right before wrote none of them.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        delta_rule_f32_d32 = <f32, 4>,
        delta_rule_f32_d128 = <f32, 16>,
        delta_rule_f16_d32 = <f16, 4>,
        delta_rule_f16_d128 = <f16, 16>,
        delta_rule_bf16_d32 = <bf16, 4>,
        delta_rule_bf16_d128 = <bf16, 16>
    )
)]
pub unsafe fn delta_rule<E: Number, const ROWS: usize>(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    slots: Global<u32>,
    max_len: u32,
    num_heads: u32,
    num_k_heads: u32,
    is_tiled: u32,
    v_dim: u32,
    q: Global<()>,
    q_stride: u32,
    k: Global<()>,
    k_stride: u32,
    v: Global<()>,
    v_stride: u32,
    gates: Global<()>,
    gates_stride: u32,
    rate: Global<f32>,
    bias: Global<f32>,
    state: GlobalMut<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
) {
    let (seq, head) = (thread::block_idx_x(), thread::block_idx_y());
    let (lane_id, warp_idx) = (warp::lane_id(), warp::warp_idx());
    let first_column = (thread::block_idx_z() * NUM_WARPS + warp_idx) * WARP_COLUMNS;
    let column = first_column + lane_id % V_LANES * LANE_COLUMNS;
    let k_lane = lane_id / V_LANES;
    let k_dim = 8 * ROWS as u32;
    let at = seq as usize;
    // SAFETY: sequence, head and columns are inside, by the checks here. Step inputs and weights
    // are written by no launch of the step, the states by none that may still run. A warp is here
    // as a whole.
    unsafe {
        // 1. The sequence, and the lane's part of its state.
        let (mut first, mut end) = (0, 0);
        if seq < num_seqs.get(0) && first_column < v_dim {
            (first, end) = (cu_seqlens_q.get(at), cu_seqlens_q.get(at + 1));
        }
        if first == end || end - first > max_len {
            grid::wait_for_dependencies();
            return;
        }
        let [old, new] = slots.get_vec(2 * at).map(|slot: u32| {
            let slot_head = slot as usize * num_heads as usize + head as usize;
            let first_row = slot_head * k_dim as usize + (k_lane * ROW_GROUP) as usize;
            state.add(first_row * v_dim as usize + column as usize)
        });
        let mut s = [[0.0; LANE_COLUMNS as usize]; ROWS];
        if kv_lens.get(at) != end - first {
            unroll!(row in 0..ROWS, {
                s[row] = old.get_vec(state_row(row) * v_dim as usize);
            });
        }
        let (rate, bias) = (rate.get(head as usize) * LOG2_E, bias.get(head as usize));
        grid::wait_for_dependencies();
        grid::launch_dependents();

        // 2. Where its tokens are.
        // No division by zero, and no branch for one.
        core::hint::assert_unchecked(num_k_heads > 0 && num_heads >= num_k_heads);
        let k_head = match is_tiled {
            0 => head / (num_heads / num_k_heads),
            _ => head % num_k_heads,
        };
        let lane_elems = ROWS as u32 / ROW_GROUP;
        let key = (k_head * k_dim + lane_id * lane_elems) as usize;
        let value = (head * v_dim + column) as usize;
        let tokens = Tokens {
            q: q.cast::<E>().add(key),
            q_stride,
            k: k.cast::<E>().add(key),
            k_stride,
            v: v.cast::<E>().add(value),
            v_stride,
            gates: gates.cast::<E>().add(head as usize),
            gates_stride,
            num_heads,
        };
        let out = out.cast::<E>().add(value);
        let of_q = math::rsqrt_approx(k_dim as f32);

        // 3. Token after token; the next one is on its way. What lanes exchange is in one of two
        //    buffers: who writes to one has seen all lanes past its last reads.
        let shared = shared_array![f32; (NUM_WARPS * 4) as usize * MAX_K_DIM];
        let shared = shared.offset(warp_idx * 4 * MAX_K_DIM as u32);
        let mut next = tokens.load::<ROWS>(first);
        let mut row = first;
        while row < end {
            let token = next;
            if row + 1 < end {
                next = tokens.load::<ROWS>(row + 1);
            }
            let unit = |square: f32| math::rsqrt_approx(square + NORM_EPS);
            let of_k = unit(inner(token.k, token.k));
            let of_q = unit(inner(token.q, token.q)) * of_q;
            let k_q = inner(token.k, token.q) * of_k * of_q;
            let keys = shared.offset(row % 2 * 2 * MAX_K_DIM as u32);
            let queries = keys.offset(MAX_K_DIM as u32);
            let (k, q) = (token.k.map(|k| k * of_k), token.q.map(|q| q * of_q));
            if ROWS == 16 {
                keys.set_vec(lane_id * 4, k);
                queries.set_vec(lane_id * 4, q);
            } else {
                keys.set(lane_id, k[0]);
                queries.set(lane_id, q[0]);
            }
            warp::sync_warp();

            let mut products = [0.0; 8];
            let mut lane_keys = [[0.0; ROW_GROUP as usize]; 4];
            unroll!(group in 0..4, {
                if group < ROWS / 4 {
                    let at = group as u32 * K_LANES * ROW_GROUP + k_lane * ROW_GROUP;
                    lane_keys[group] = keys.get_vec(at);
                    let lane_queries: [f32; ROW_GROUP as usize] = queries.get_vec(at);
                    for i in 0..ROW_GROUP as usize {
                        let s = s[group * 4 + i];
                        for c in 0..LANE_COLUMNS as usize {
                            products[c] = math::fma(s[c], lane_keys[group][i], products[c]);
                            products[4 + c] = math::fma(s[c], lane_queries[i], products[4 + c]);
                        }
                    }
                }
            });
            let products = sum_rows(products);
            let decay = math::exp2_approx(rate * softplus(token.a + bias));
            let beta = sigmoid(token.b);
            let (mut delta, mut values) = ([0.0; 4], [0.0; 4]);
            for c in 0..LANE_COLUMNS as usize {
                delta[c] = beta * math::fma(-decay, products[c], token.v[c]);
                values[c] = math::fma(k_q, delta[c], decay * products[4 + c]);
            }
            unroll!(group in 0..4, {
                if group < ROWS / 4 {
                    for i in 0..ROW_GROUP as usize {
                        for c in 0..LANE_COLUMNS as usize {
                            let s = &mut s[group * 4 + i][c];
                            *s = math::fma(lane_keys[group][i], delta[c], decay * *s);
                        }
                    }
                }
            });
            if k_lane == 0 {
                let out = out.add(row as usize * out_stride as usize);
                out.set_vec(0, values.map(E::from_f32));
            }
            row += 1;
        }

        // 4. The state after them.
        unroll!(row in 0..ROWS, {
            new.set_vec(state_row(row) * v_dim as usize, s[row]);
        });
    }
}

/// The largest key.
const MAX_K_DIM: usize = 128;

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{DeltaOperands, DeltaRule};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::delta_rule::{self, Instance};
    use super::{NUM_THREADS, NUM_WARPS, WARP_COLUMNS};
    use crate::Rows;
    use crate::delta::StateSeqs;
    use crate::delta::chunk::{Chunks, MIN_TOKENS};
    use crate::element::{Dtype, Number};
    use core::any::TypeId;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// The gated delta rule.
    #[derive(Clone, Copy, Debug)]
    pub struct DeltaRule {
        /// Upper bound of the rows in steps that may go by [chunks](crate::delta::chunk), which
        /// takes elements of 16 bits; `None` of those that go token by token.
        pub chunked: Option<usize>,
        /// Upper bound of the sequences.
        pub max_seqs: usize,
        /// Heads of values.
        pub num_heads: usize,
        /// Heads of keys, which divide those of values.
        pub num_k_heads: usize,
        /// Whether heads that share a key are `num_k_heads` apart; else they are neighbours.
        pub is_tiled: bool,
        /// Elements of a key: 32 or 128.
        pub k_dim: usize,
        /// Elements of a value: a multiple of 16.
        pub v_dim: usize,
    }

    /// What the delta rule reads and writes.
    #[derive(Clone, Copy, Debug)]
    pub struct DeltaOperands<E> {
        /// Queries.
        pub q: Rows<E>,
        /// Keys.
        pub k: Rows<E>,
        /// Values.
        pub v: Rows<E>,
        /// b of each head, then a of each.
        pub gates: Rows<E>,
        /// `[num_heads]`: not above 0.
        pub rate: DevicePtr<f32>,
        /// `[num_heads]`: added to a.
        pub bias: DevicePtr<f32>,
        /// `[num_slots, num_heads, k_dim, v_dim]`.
        pub state: DevicePtr<f32>,
        /// The outputs.
        pub out: Rows<E>,
    }

    impl DeltaRule {
        /// The chunked form of elements `E`, if sequences may have it.
        fn chunks(&self, dtype: Dtype) -> Option<Chunks<'_>> {
            let is_for_it = dtype != Dtype::F32 && Chunks::takes(self.v_dim);
            let max_tokens = self.chunked.filter(|_| is_for_it)?;
            (max_tokens >= MIN_TOKENS as usize).then_some(Chunks { rule: self, max_tokens })
        }

        /// Bytes of workspace, of elements of `dtype`.
        pub fn workspace_bytes(&self, dtype: Dtype) -> usize {
            self.chunks(dtype).map_or(0, |chunks| chunks.workspace_bytes())
        }

        /// The launches, in order; none if there is nothing to compute. `workspace` holds
        /// [`DeltaRule::workspace_bytes`].
        ///
        /// # Errors
        /// [`LaunchError`] for heads of other sizes, operands that are not aligned, and sizes beyond a
        /// grid or a `u32`.
        pub fn launches<E: Number>(
            &self,
            seqs: &StateSeqs,
            operands: &DeltaOperands<E>,
            workspace: DevicePtr<()>,
        ) -> Result<Vec<Launch>, LaunchError> {
            self.check(operands)?;
            let chunks = self.chunks(E::DTYPE);
            let max_len = chunks.as_ref().map_or(u32::MAX, |_| MIN_TOKENS - 1);
            let mut launches = match chunks {
                Some(chunks) => chunks.launches(seqs, operands, workspace)?,
                None => Vec::new(),
            };
            launches.extend(self.by_token(seqs, operands, max_len)?);
            Ok(launches)
        }

        fn check<E: Number>(&self, operands: &DeltaOperands<E>) -> Result<(), LaunchError> {
            let &DeltaOperands { q, k, v, out, .. } = operands;
            let shape = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
            if self.num_k_heads == 0 || !self.num_heads.is_multiple_of(self.num_k_heads) {
                return shape("num_k_heads", self.num_k_heads, "a divisor of num_heads");
            }
            if !matches!(self.k_dim, 32 | 128) {
                return shape("k_dim", self.k_dim, "32 or 128");
            }
            if !self.v_dim.is_multiple_of(WARP_COLUMNS as usize) {
                return shape("v_dim", self.v_dim, "a multiple of 16");
            }
            for (what, rows) in [("q", q), ("k", k), ("v", v), ("out", out)] {
                if !rows.is_aligned() {
                    return shape(what, rows.row_stride, "rows at multiples of 16 bytes");
                }
            }
            Ok(())
        }

        /// The launch for sequences of up to `max_len` tokens in the step.
        fn by_token<E: Number>(
            &self,
            seqs: &StateSeqs,
            operands: &DeltaOperands<E>,
            max_len: u32,
        ) -> Result<Option<Launch>, LaunchError> {
            let &DeltaOperands { q, k, v, gates, rate, bias, state, out } = operands;
            let &StateSeqs { num_seqs, cu_seqlens_q, kv_lens, slots } = seqs;
            let DeltaRule { k_dim, v_dim, num_heads, .. } = *self;
            let is_it = |i: Instance| i.e() == TypeId::of::<E>() && 8 * i.rows() == k_dim;
            let instance = Instance::find(is_it).expect("instances of all keys");
            let slices = v_dim.div_ceil((NUM_WARPS * WARP_COLUMNS) as usize);
            let grid = [self.max_seqs, num_heads, slices];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            let args = delta_rule::Args {
                num_seqs,
                cu_seqlens_q,
                kv_lens,
                slots,
                max_len,
                num_heads: arg_u32("num_heads", num_heads)?,
                num_k_heads: arg_u32("num_k_heads", self.num_k_heads)?,
                is_tiled: self.is_tiled.into(),
                v_dim: arg_u32("v_dim", v_dim)?,
                q: q.untyped_ptr(),
                q_stride: q.stride_arg()?,
                k: k.untyped_ptr(),
                k_stride: k.stride_arg()?,
                v: v.untyped_ptr(),
                v_stride: v.stride_arg()?,
                gates: gates.untyped_ptr(),
                gates_stride: gates.stride_arg()?,
                rate,
                bias,
                state,
                out: out.untyped_ptr(),
                out_stride: out.stride_arg()?,
            };
            Ok(geometry.map(|geometry| args.launch(instance, geometry)))
        }
    }
}
