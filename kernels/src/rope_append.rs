//! Rotary embedding and KV cache append, [`rope`] and [`kv_append`] fused: Q is rotated in place,
//! the rotated K and V go to the cache. The rotated K is stored nowhere else. Optionally after
//! [`qk_norm`].
//!
//! Shapes    q `[num_tokens, num_heads * head_dim]`, k, v `[num_tokens, num_kv_heads * head_dim]`
//!           with row strides; pools, slot_mapping, positions and table as in those two.
//! Launch    grid `(max_tokens, vectors of a token / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`;
//!           a vector is eight pairs of a head of Q or K, or eight columns that are only copied.
//!           With a norm `Vectors::lanes` neighbouring threads take a head, each two vectors.
//! Numerics  bit-identical to the two, or three: k is of the cache's type or f32, so it is rounded
//!           once after the rotation.
//! Bound     memory: a load and a store for each column of q, k and v.
//!
//! [`rope`]: crate::rope
//! [`kv_append`]: crate::kv_cache
//! [`qk_norm`]: crate::qk_norm

mod normed;

use self::normed::Head;
use crate::element::{Columns, Number, VEC_ELEMS};
use crate::kv_cache::{PAGE_SIZE, row_start};
use crate::rope::rotated;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// A thread takes eight pairs of Q or K, or eight columns of K that are not rotated, or eight of V;
/// from elements `T` to pools of `C`.
///
/// # Safety
/// 1. `num_tokens` is one element; `positions`, `slot_mapping`, `q`, `k` and `v` hold that many;
///    every position is a row of `table`, every slot one of the pools', no two alike; `q`, `k` and
///    `v` hold elements `T`, the pools `C`.
/// 2. `rotary_dim` is even and at most `head_dim`.
/// 3. `q` and the pools overlap nothing else.
/// 4. If `aligned` is not 0, each head is 16-byte aligned in `q`, `k`, `v` and the pools, and so
///    are `table`, `q_norm` and `k_norm`.
/// 5. If `NORMED`, `q_norm` and `k_norm` hold `head_dim` elements, and `Vectors::lanes` are at
///    most a warp's.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        rope_append_f32 = <f32, f32, false>,
        rope_append_f16 = <f16, f16, false>,
        rope_append_bf16 = <bf16, bf16, false>,
        rope_append_f32_f16 = <f32, f16, false>,
        rope_append_f32_bf16 = <f32, bf16, false>,
        norm_rope_append_f32 = <f32, f32, true>,
        norm_rope_append_f16 = <f16, f16, true>,
        norm_rope_append_bf16 = <bf16, bf16, true>,
        norm_rope_append_f32_f16 = <f32, f16, true>,
        norm_rope_append_f32_bf16 = <f32, bf16, true>
    )
)]
pub unsafe fn rope_append<T: Number, C: Number, const NORMED: bool>(
    num_tokens: Global<u32>,
    positions: Global<u32>,
    slot_mapping: Global<u32>,
    table: Global<f32>,
    rotary_dim: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    q: GlobalMut<()>,
    q_stride: u32,
    k: Global<()>,
    k_stride: u32,
    v: Global<()>,
    v_stride: u32,
    k_pool: GlobalMut<()>,
    v_pool: GlobalMut<()>,
    aligned: u32,
    q_norm: Global<f32>,
    k_norm: Global<f32>,
    norm_eps: f32,
) {
    let token = thread::block_idx_x() as usize;
    let vector = thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x();
    let half = rotary_dim / 2;
    let vectors = Vectors::new(rotary_dim, head_dim);
    let num_rotated = (num_heads + num_kv_heads) * vectors.pairs;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: the token is inside by the check here, heads and columns by those below; there
    // is no launch for tokens without vectors.
    unsafe {
        if token >= num_tokens as usize {
            return;
        }
        let start = |stride: u32, head: u32| token * stride as usize + (head * head_dim) as usize;
        let slot = slot_mapping.get(token);
        let slot_start =
            |head| row_start(slot / PAGE_SIZE, slot % PAGE_SIZE, head, num_kv_heads, head_dim);

        if NORMED {
            let lanes = vectors.lanes();
            let (head, lane) = (vector >> lanes.trailing_zeros(), vector & (lanes - 1));
            let (is_q, is_k) = (head < num_heads, head < num_heads + num_kv_heads);
            let (x, stride, first, weight) = match (is_q, is_k) {
                (true, _) => (q.as_global(), q_stride, 0, Some(q_norm)),
                (_, true) => (k, k_stride, num_heads, Some(k_norm)),
                _ => (v, v_stride, num_heads + num_kv_heads, None),
            };
            let exists = head < num_heads + 2 * num_kv_heads;
            let (head, aligned) = (head - first, aligned != 0);
            let row = x.cast::<T>().wrapping_add(start(stride, head));
            let angles = table.add(positions.get(token) as usize * rotary_dim as usize);
            let (columns, values) =
                Head { row, exists, weight, head_dim, rotary_dim, lane, lanes, aligned }
                    .load(angles, norm_eps);
            if is_q {
                normed::store(q.cast::<T>().add(start(q_stride, head)), columns, values);
            } else if exists {
                let pool = if is_k { k_pool } else { v_pool };
                normed::store(pool.cast::<C>().add(slot_start(head)), columns, values);
            }
            return;
        }

        // 1. Pairs of Q, then of K.
        if vector < num_rotated {
            core::hint::assert_unchecked(vectors.pairs > 0);
            let (head, first) = (vector / vectors.pairs, vector % vectors.pairs * VEC_ELEMS);
            let aligned = aligned != 0 && half.is_multiple_of(VEC_ELEMS);
            let columns = Columns::new(first, half, aligned);
            let angles = table.add(positions.get(token) as usize * rotary_dim as usize);
            if head < num_heads {
                let q = q.cast::<T>().add(start(q_stride, head));
                let (a, b) = rotated(columns, half, angles, q.as_global());
                columns.store(q, a);
                columns.store(q.add(half as usize), b);
            } else {
                let head = head - num_heads;
                let k = k.cast::<T>().add(start(k_stride, head));
                let (a, b) = rotated(columns, half, angles, k);
                let to = k_pool.cast::<C>().add(slot_start(head));
                columns.store(to, a);
                columns.store(to.add(half as usize), b);
            }
            return;
        }

        // 2. For each KV head the columns of K that are not rotated, then the columns of V.
        let vector = vector - num_rotated;
        let vectors_per_head = vectors.rest + vectors.head;
        core::hint::assert_unchecked(vectors_per_head > 0);
        let (head, vector) = (vector / vectors_per_head, vector % vectors_per_head);
        if head >= num_kv_heads {
            return;
        }
        if vector < vectors.rest {
            let aligned = aligned != 0 && rotary_dim.is_multiple_of(VEC_ELEMS);
            let columns = Columns::new(rotary_dim + vector * VEC_ELEMS, head_dim, aligned);
            let values = columns.load(k.cast::<T>().add(start(k_stride, head)));
            columns.store(k_pool.cast::<C>().add(slot_start(head)), values);
        } else {
            let first = (vector - vectors.rest) * VEC_ELEMS;
            let columns = Columns::new(first, head_dim, aligned != 0);
            let values = columns.load(v.cast::<T>().add(start(v_stride, head)));
            columns.store(v_pool.cast::<C>().add(slot_start(head)), values);
        }
    }
}

/// Vectors of a head; a thread takes one.
struct Vectors {
    /// Vectors of pairs that are rotated.
    pairs: u32,
    /// Vectors of columns that are not rotated.
    rest: u32,
    /// Vectors of all columns.
    head: u32,
}

impl Vectors {
    #[inline(always)]
    fn new(rotary_dim: u32, head_dim: u32) -> Self {
        Vectors {
            pairs: (rotary_dim / 2).div_ceil(VEC_ELEMS),
            rest: (head_dim - rotary_dim).div_ceil(VEC_ELEMS),
            head: head_dim.div_ceil(VEC_ELEMS),
        }
    }

    /// Threads of a head that is normalised: a power of two.
    #[inline(always)]
    fn lanes(&self) -> u32 {
        (self.pairs + self.rest).next_power_of_two()
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{RopeAppend, RopeAppendOperands};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::rope_append::Instance;
    use super::{NUM_THREADS, Vectors, rope_append};
    use crate::Rows;
    use crate::element::{NarrowedFrom, Narrowing, Number, VEC_ELEMS};
    use crate::operand::{is_aligned, untyped};
    use crate::qk_norm::{MAX_HEAD_DIM, QkNorm};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
    use cuda_std::warp::WARP_SIZE;

    /// Rotary embedding of the first `rotary_dim` columns of each head of Q and K, and append of K
    /// and V to a layer of the cache.
    #[derive(Clone, Copy, Debug)]
    pub struct RopeAppend {
        /// Upper bound of the tokens.
        pub max_tokens: usize,
        /// Heads of Q.
        pub num_heads: usize,
        /// Heads of K and of V.
        pub num_kv_heads: usize,
        /// Columns of a head.
        pub head_dim: usize,
        /// Columns that are rotated: the width of the table.
        pub rotary_dim: usize,
    }

    /// The operands of [`RopeAppend`].
    #[derive(Clone, Copy, Debug)]
    pub struct RopeAppendOperands<T, C> {
        /// `[num_tokens]`: the row of `table` of each token.
        pub positions: DevicePtr<u32>,
        /// `[num_tokens]`: the slot of each token in the pools.
        pub slot_mapping: DevicePtr<u32>,
        /// `[max_positions, rotary_dim]`: cosines, then sines.
        pub table: DevicePtr<f32>,
        /// The norm of Q and K before the rotation.
        pub norm: QkNorm,
        /// `[max_tokens, num_heads * head_dim]`, rotated in place.
        pub q: Rows<T>,
        /// `[max_tokens, num_kv_heads * head_dim]`.
        pub k: Rows<T>,
        /// `[max_tokens, num_kv_heads * head_dim]`.
        pub v: Rows<T>,
        /// Keys of the layer.
        pub k_pool: DevicePtr<C>,
        /// Values of the layer.
        pub v_pool: DevicePtr<C>,
    }

    impl RopeAppend {
        /// The launch, or `None` if there are no tokens or no columns. `num_tokens` points to the
        /// token count on the device.
        ///
        /// # Errors
        /// [`LaunchError`] for a `rotary_dim` that is odd or beyond `head_dim`, for sizes beyond a
        /// grid or a `u32`, and for a norm of heads that [`RopeAppend::normalises`] not.
        pub fn launch<T: Number, C: NarrowedFrom<T>>(
            &self,
            num_tokens: DevicePtr<u32>,
            operands: &RopeAppendOperands<T, C>,
        ) -> Result<Option<Launch>, LaunchError> {
            let RopeAppendOperands { q, k, v, k_pool, v_pool, table, norm, .. } = *operands;
            let is_normed = !norm.is_none();
            let geometry = self.geometry(is_normed)?;
            let [q_stride, k_stride, v_stride] =
                [q.stride_arg()?, k.stride_arg()?, v.stride_arg()?];
            let aligned = self.head_dim.is_multiple_of(VEC_ELEMS as usize)
                && [q, k, v].iter().all(Rows::is_aligned)
                && [k_pool, v_pool].into_iter().all(is_aligned)
                && [table, norm.q, norm.k].into_iter().all(is_aligned);
            let instance = match (C::NARROWING, is_normed) {
                (Narrowing::F32, false) => Instance::rope_append_f32,
                (Narrowing::F16, false) => Instance::rope_append_f16,
                (Narrowing::BF16, false) => Instance::rope_append_bf16,
                (Narrowing::F32ToF16, false) => Instance::rope_append_f32_f16,
                (Narrowing::F32ToBF16, false) => Instance::rope_append_f32_bf16,
                (Narrowing::F32, true) => Instance::norm_rope_append_f32,
                (Narrowing::F16, true) => Instance::norm_rope_append_f16,
                (Narrowing::BF16, true) => Instance::norm_rope_append_bf16,
                (Narrowing::F32ToF16, true) => Instance::norm_rope_append_f32_f16,
                (Narrowing::F32ToBF16, true) => Instance::norm_rope_append_f32_bf16,
            };
            Ok(geometry.map(|geometry| {
                rope_append::Args {
                    num_tokens,
                    positions: operands.positions,
                    slot_mapping: operands.slot_mapping,
                    table,
                    rotary_dim: self.rotary_dim as u32,
                    num_heads: self.num_heads as u32,
                    num_kv_heads: self.num_kv_heads as u32,
                    head_dim: self.head_dim as u32,
                    q: q.untyped_ptr(),
                    q_stride,
                    k: k.untyped_ptr(),
                    k_stride,
                    v: v.untyped_ptr(),
                    v_stride,
                    k_pool: untyped(k_pool),
                    v_pool: untyped(v_pool),
                    aligned: aligned.into(),
                    q_norm: norm.q,
                    k_norm: norm.k,
                    norm_eps: norm.eps,
                }
                .launch(instance, geometry)
            }))
        }

        /// Whether a warp has room for a head that is normalised.
        pub fn normalises(&self) -> bool {
            let &RopeAppend { head_dim, rotary_dim, .. } = self;
            head_dim <= MAX_HEAD_DIM
                && rotary_dim <= head_dim
                && Vectors::new(rotary_dim as u32, head_dim as u32).lanes() <= WARP_SIZE
        }

        fn geometry(&self, is_normed: bool) -> Result<Option<Geometry>, LaunchError> {
            let &RopeAppend { max_tokens, num_heads, num_kv_heads, head_dim, rotary_dim } = self;
            if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
                return Err(LaunchError::Shape {
                    what: "rotary_dim",
                    value: rotary_dim,
                    expected: "an even number, at most head_dim",
                });
            }
            if is_normed && !self.normalises() {
                let expected = "at most 256 to be normalised, as vectors of pairs and of the rest \
                                for the lanes of a warp";
                return Err(LaunchError::Shape { what: "head_dim", value: head_dim, expected });
            }
            // The columns of a token, an upper bound of its vectors.
            let num_all_heads = num_heads.saturating_add(num_kv_heads.saturating_mul(2));
            arg_u32("row width", num_all_heads.max(1).saturating_mul(head_dim))?;
            let vectors = Vectors::new(rotary_dim as u32, head_dim as u32);
            let Vectors { pairs, rest, head } = vectors;
            let [pairs, rest, head] = [pairs, rest, head].map(|vectors| vectors as usize);
            let vectors = match is_normed && head_dim > 0 {
                true => num_all_heads * vectors.lanes() as usize,
                false => (num_heads + num_kv_heads) * pairs + num_kv_heads * (rest + head),
            };
            let grid = [max_tokens, vectors.div_ceil(NUM_THREADS as usize), 1];
            Geometry::new(grid, NUM_THREADS as usize, 0)
        }
    }
}
