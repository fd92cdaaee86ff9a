//! E4M3 for FP8 attention: Q, K and V of each new token divided by their head's scale, Q as rows,
//! K and V into pages; and the scales.
//!
//! Shapes    q `[num_tokens, num_heads * head_dim]`, k and v `[num_tokens, num_kv_heads *
//!           head_dim]`, with row strides, f32, f16 or bf16; slot_mapping `[num_tokens]`; scales
//!           `[num_heads]` and `[num_kv_heads]` f32; the E4M3 outputs as [`crate::attention::sm90::fp8`]
//!           reads them: V transposed, its positions permuted.
//! Launch    append: grid `(max_tokens / BLOCK_TOKENS, num_heads + 2 * num_kv_heads, 1)`; scales:
//!           grid `(max_tokens / BLOCK_TOKENS, num_heads, 1)`; block `(NUM_THREADS, 1, 1)`.
//! Numerics  `x * (1 / scale)`, rounded to nearest even, saturated to 448; NaN stays. A scale of 0
//!           makes zeros. A head's scale is its largest magnitude over 448.
//! Bound     memory: each element once, and a byte for it.

use super::{PAGE_SIZE, row_start};
use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::E4m3;
use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// Tokens of a block: a lane has one of V, whose column is contiguous over positions.
const BLOCK_TOKENS: u32 = warp::WARP_SIZE;

/// Where position `position` of a page is in a row of V: of each 16, thread `t` of a quad has scores
/// `2t, 2t + 1, 2t + 8, 2t + 9`, which as four 8-bit elements are adjacent in its fragment of A.
#[inline(always)]
pub const fn storage_index(position: u32) -> u32 {
    let (group, index) = (position & !15, position & 15);
    group | (index & 7) >> 1 << 2 | index >> 3 << 1 | index & 1
}

/// A head of Q, K or V of `BLOCK_TOKENS` tokens a block.
///
/// # Safety
/// 1. `num_tokens` is one element; `slot_mapping`, `q`, `k`, `v` and `q_out` hold that many; every
///    slot is one of the pools', no two alike; `q`, `k` and `v` hold elements `T`.
/// 2. `head_dim` is a multiple of 8; each head is 16-byte aligned in `q`, `k` and `v`, 8-byte
///    aligned in `q_out` and `k_pool`.
/// 3. The outputs overlap nothing that is read.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(
        kv_append_e4m3_f32 = <f32>,
        kv_append_e4m3_f16 = <f16>,
        kv_append_e4m3_bf16 = <bf16>
    )
)]
pub unsafe fn kv_append_fp8<T: Number>(
    num_tokens: Global<u32>,
    slot_mapping: Global<u32>,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    q: Global<()>,
    q_stride: u32,
    k: Global<()>,
    k_stride: u32,
    v: Global<()>,
    v_stride: u32,
    q_scale: Global<f32>,
    k_scale: Global<f32>,
    v_scale: Global<f32>,
    q_out: GlobalMut<E4m3>,
    q_out_stride: u32,
    k_pool: GlobalMut<E4m3>,
    v_pool: GlobalMut<E4m3>,
) {
    let first_token = thread::block_idx_x() * BLOCK_TOKENS;
    let head = thread::block_idx_y();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if first_token >= num_tokens {
        return;
    }
    let vecs = head_dim / VEC_ELEMS;
    // SAFETY: there is no launch with a `head_dim` of 0; tokens, heads and columns are inside, by
    // the checks here.
    unsafe {
        core::hint::assert_unchecked(vecs > 0 && num_kv_heads > 0);
        let load = |x: Global<()>, stride: u32, token: u32, head: u32, vec: u32, inverse: f32| {
            let at = token as usize * stride as usize + head as usize * head_dim as usize;
            let columns = Columns::new(vec * VEC_ELEMS, head_dim, true);
            quantise(columns.load(x.cast::<T>().add(at)), inverse)
        };
        let mut index = thread::thread_idx_x();
        if head < num_heads + num_kv_heads {
            let is_q = head < num_heads;
            let kv_head = head.wrapping_sub(num_heads);
            let inverse = inverse(if is_q {
                q_scale.get(head as usize)
            } else {
                k_scale.get(kv_head as usize)
            });
            while index < BLOCK_TOKENS * vecs {
                let (token, vec) = (first_token + index / vecs, index % vecs);
                if token < num_tokens {
                    let (to, words) = if is_q {
                        let to = token as usize * q_out_stride as usize;
                        let to = q_out.add(to + head as usize * head_dim as usize);
                        (to, load(q, q_stride, token, head, vec, inverse))
                    } else {
                        let slot = slot_mapping.get(token as usize);
                        let (page, row) = (slot / PAGE_SIZE, slot % PAGE_SIZE);
                        let to = row_start(page, row, kv_head, num_kv_heads, head_dim);
                        (k_pool.add(to), load(k, k_stride, token, kv_head, vec, inverse))
                    };
                    to.cast::<u32>().set_vec(vec as usize * 2, words);
                }
                index += NUM_THREADS;
            }
            return;
        }
        let kv_head = head - num_heads - num_kv_heads;
        let inverse = inverse(v_scale.get(kv_head as usize));
        let token = first_token + index % BLOCK_TOKENS;
        if token >= num_tokens {
            return;
        }
        let slot = slot_mapping.get(token as usize);
        let page = row_start(slot / PAGE_SIZE, 0, kv_head, num_kv_heads, head_dim);
        let to = v_pool.add(page + storage_index(slot % PAGE_SIZE) as usize).cast::<u8>();
        let mut vec = index / BLOCK_TOKENS;
        while vec < vecs {
            let words = load(v, v_stride, token, kv_head, vec, inverse);
            unroll!(i in 0..8, {
                let column = (vec * VEC_ELEMS) as usize + i;
                to.set(column * PAGE_SIZE as usize, (words[i / 4] >> (i % 4 * 8)) as u8);
            });
            vec += NUM_THREADS / BLOCK_TOKENS;
        }
    }
}

/// Raises each head's scale to that of its tokens: a head of `BLOCK_TOKENS` tokens a block.
///
/// # Safety
/// 1. `num_tokens` is one element; `x` holds that many rows of `num_heads * head_dim` elements `T`;
///    `scale` `num_heads`, from 0 on.
/// 2. `head_dim` is a multiple of 8; each head is 16-byte aligned in `x`.
/// 3. `scale` overlaps nothing that is read.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(head_scales_f32 = <f32>, head_scales_f16 = <f16>, head_scales_bf16 = <bf16>)
)]
pub unsafe fn head_scales<T: Number>(
    num_tokens: Global<u32>,
    head_dim: u32,
    x: Global<()>,
    x_stride: u32,
    scale: GlobalMut<f32>,
) {
    let first_token = thread::block_idx_x() * BLOCK_TOKENS;
    let head = thread::block_idx_y() as usize;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let vecs = head_dim / VEC_ELEMS;
    let mut max = 0.0;
    // SAFETY: tokens and columns are inside, by the checks here. Numbers from 0 on are ordered as
    // their bits.
    unsafe {
        core::hint::assert_unchecked(vecs > 0);
        let mut index = thread::thread_idx_x();
        while index < BLOCK_TOKENS * vecs {
            let (token, vec) = (first_token + index / vecs, index % vecs);
            if token < num_tokens {
                let row = x.cast::<T>().add(token as usize * x_stride as usize);
                let columns = Columns::new(vec * VEC_ELEMS, head_dim, true);
                let values = columns.load(row.add(head * head_dim as usize));
                unroll!(i in 0..8, {
                    max = math::max(max, values[i].abs());
                });
            }
            index += NUM_THREADS;
        }
        unroll!(bit in 0..5, {
            max = math::max(max, warp::shuffle_xor(max, 1 << bit));
        });
        if warp::lane_id() == 0 {
            let bits = (max * (1.0 / E4m3::MAX)).to_bits();
            scale.cast::<u32>().fetch_max(head, bits, Order::Relaxed, Scope::Gpu);
        }
    }
}

/// What multiplies the elements of a head.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale }
}

/// Eight quants.
#[inline(always)]
fn quantise(values: [f32; VEC_ELEMS as usize], inverse: f32) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = values.map(|value| value * inverse);
    [[a, b, c, d], [e, f, g, h]].map(convert::f32_to_e4m3x4)
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{AppendFp8, AppendFp8Operands, HeadScales};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{BLOCK_TOKENS, NUM_THREADS, head_scales, kv_append_fp8};
    use crate::Rows;
    use crate::element::{Number, VEC_ELEMS};
    use cuda_std::E4m3;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Append of new tokens to a layer of a cache for FP8 attention, and their Q.
    #[derive(Clone, Copy, Debug)]
    pub struct AppendFp8 {
        /// Upper bound of the tokens.
        pub max_tokens: usize,
        /// Query heads; 0: K and V alone.
        pub num_heads: usize,
        /// KV heads.
        pub num_kv_heads: usize,
        /// Columns of a head, a multiple of 8.
        pub head_dim: usize,
    }

    /// The operands of [`AppendFp8`].
    #[derive(Clone, Copy, Debug)]
    pub struct AppendFp8Operands<T> {
        /// `[num_tokens]`.
        pub slot_mapping: DevicePtr<u32>,
        /// `[num_tokens, num_heads * head_dim]`.
        pub q: Rows<T>,
        /// `[num_tokens, num_kv_heads * head_dim]`.
        pub k: Rows<T>,
        /// `[num_tokens, num_kv_heads * head_dim]`.
        pub v: Rows<T>,
        /// `[num_heads]`.
        pub q_scale: DevicePtr<f32>,
        /// `[num_kv_heads]`.
        pub k_scale: DevicePtr<f32>,
        /// `[num_kv_heads]`.
        pub v_scale: DevicePtr<f32>,
        /// `[num_tokens, num_heads * head_dim]`.
        pub q_out: Rows<E4m3>,
        /// The layer's pool of keys.
        pub k_pool: DevicePtr<E4m3>,
        /// The layer's pool of values.
        pub v_pool: DevicePtr<E4m3>,
    }

    /// The scales of the heads of Q, K or V.
    #[derive(Clone, Copy, Debug)]
    pub struct HeadScales {
        /// Upper bound of the tokens.
        pub max_tokens: usize,
        /// Heads of a row.
        pub num_heads: usize,
        /// Columns of a head, a multiple of 8.
        pub head_dim: usize,
    }

    fn check<T>(head_dim: usize, rows: &[Rows<T>]) -> Result<u32, LaunchError> {
        let is_vectors = head_dim.is_multiple_of(VEC_ELEMS as usize);
        if !is_vectors || head_dim == 0 || !rows.iter().all(Rows::is_aligned) {
            let expected = "a multiple of 8, in rows aligned to 16 bytes";
            return Err(LaunchError::Shape { what: "head_dim", value: head_dim, expected });
        }
        arg_u32("head_dim", head_dim)
    }

    impl AppendFp8 {
        /// The launch, or `None` if there is nothing to append. `num_tokens` points to the token
        /// count on the device; the pools are those of the layer.
        ///
        /// # Errors
        /// [`LaunchError`] for a `head_dim` or rows that are not whole vectors, and for sizes
        /// beyond a grid or a `u32`.
        pub fn launch<T: Number>(
            &self,
            num_tokens: DevicePtr<u32>,
            operands: &AppendFp8Operands<T>,
        ) -> Result<Option<Launch>, LaunchError> {
            let &AppendFp8Operands { slot_mapping, q, k, v, q_out, .. } = operands;
            let &AppendFp8Operands { q_scale, k_scale, v_scale, k_pool, v_pool, .. } = operands;
            let head_dim = check(self.head_dim, &[q, k, v])?;
            check(self.head_dim, &[q_out])?;
            let tokens = self.max_tokens.div_ceil(BLOCK_TOKENS as usize);
            let heads = self.num_heads + 2 * self.num_kv_heads;
            let geometry = Geometry::new([tokens, heads, 1], NUM_THREADS as usize, 0)?;
            let instance = T::choose([
                kv_append_fp8::Instance::kv_append_e4m3_f32,
                kv_append_fp8::Instance::kv_append_e4m3_f16,
                kv_append_fp8::Instance::kv_append_e4m3_bf16,
            ]);
            let args = kv_append_fp8::Args {
                num_tokens,
                slot_mapping,
                num_heads: arg_u32("num_heads", self.num_heads)?,
                num_kv_heads: arg_u32("num_kv_heads", self.num_kv_heads)?,
                head_dim,
                q: q.untyped_ptr(),
                q_stride: q.stride_arg()?,
                k: k.untyped_ptr(),
                k_stride: k.stride_arg()?,
                v: v.untyped_ptr(),
                v_stride: v.stride_arg()?,
                q_scale,
                k_scale,
                v_scale,
                q_out: q_out.ptr,
                q_out_stride: q_out.stride_arg()?,
                k_pool,
                v_pool,
            };
            Ok(geometry.map(|geometry| args.launch(instance, geometry)))
        }
    }

    impl HeadScales {
        /// The launch, or `None` if there is nothing to look at. `scale` is `[num_heads]`, zeros or
        /// earlier scales, which are raised.
        ///
        /// # Errors
        /// As [`AppendFp8::launch`].
        pub fn launch<T: Number>(
            &self,
            num_tokens: DevicePtr<u32>,
            x: Rows<T>,
            scale: DevicePtr<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let head_dim = check(self.head_dim, &[x])?;
            let tokens = self.max_tokens.div_ceil(BLOCK_TOKENS as usize);
            let geometry = Geometry::new([tokens, self.num_heads, 1], NUM_THREADS as usize, 0)?;
            let instance = T::choose([
                head_scales::Instance::head_scales_f32,
                head_scales::Instance::head_scales_f16,
                head_scales::Instance::head_scales_bf16,
            ]);
            let x_stride = x.stride_arg()?;
            let x = x.untyped_ptr();
            Ok(geometry.map(|geometry| {
                head_scales::Args { num_tokens, head_dim, x, x_stride, scale }
                    .launch(instance, geometry)
            }))
        }
    }
}
