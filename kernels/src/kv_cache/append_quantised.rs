//! KV cache append to pools of any [`CacheType`], with or without QK-norm and rotary embedding: as
//! [`kv_append`] and [`rope_append`], and before the quantisation the same bits.
//!
//! Shapes    as in those two; pools of pages as [`CacheType`] says.
//! Launch    grid `(max_tokens, heads of a token / NUM_WARPS, 1)`, block `(NUM_THREADS, 1, 1)`; a
//!           warp takes a head of Q, K or V, a lane every 32nd column.
//! Numerics  the K after RoPE is rounded to its type, then quantised in f32.
//! Bound     memory: a load for each column of q, k and v, a store for each quant and scale.
//!
//! [`kv_append`]: crate::kv_cache
//! [`rope_append`]: crate::rope_append

use super::format::{
    BLOCK_COLUMNS, byte_of, inverse, magnitude_key, nibble_shift, page_start, quant, scale,
};
use super::hadamard::rotate_lanes;
use super::{CacheType, PAGE_SIZE};
use crate::element::Number;
use crate::qk_norm::{normed, scale_of};
use crate::rope::rotate;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads and warps of a block.
const NUM_THREADS: u32 = 128;
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Columns of a head at most.
const MAX_HEAD_DIM: u32 = 256;

/// Columns of a lane at most.
const LANE_COLUMNS: usize = (MAX_HEAD_DIM / warp::WARP_SIZE) as usize;

const _: () = assert!(BLOCK_COLUMNS == warp::WARP_SIZE, "a scale is that of a warp's columns");

/// A warp takes a head of `num_heads` of Q, which it rotates in place, or of K or V, which it
/// appends; elements are `T`.
///
/// # Safety
/// 1. `num_tokens` is one element; `slot_mapping`, `k` and `v` hold that many, every slot one of
///    the pools', no two alike; `k_format` and `v_format` are [`CacheType`]s, and the pools of them.
/// 2. Either `num_heads` and `rotary_dim` are 0; or `positions` and `q` hold the tokens too, every
///    position is a row of `table`, and `rotary_dim` is even, at most `head_dim`. Then `q_norm` and
///    `k_norm` hold `head_dim` elements, or are null.
/// 3. `head_dim` is at most 256, and whole blocks of the formats. `q` and the pools overlap nothing
///    else; the pools are 4-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        kv_append_quantised_f32 = <f32>,
        kv_append_quantised_f16 = <f16>,
        kv_append_quantised_bf16 = <bf16>
    )
)]
pub unsafe fn kv_append_quantised<T: Number>(
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
    k_format: u32,
    v_pool: GlobalMut<()>,
    v_format: u32,
    q_norm: Global<f32>,
    k_norm: Global<f32>,
    norm_eps: f32,
) {
    let token = thread::block_idx_x() as usize;
    let head = thread::block_idx_y() * NUM_WARPS + warp::warp_idx();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if token >= num_tokens as usize || head >= num_heads + 2 * num_kv_heads {
        return;
    }
    let start = |stride: u32, head: u32| token * stride as usize + (head * head_dim) as usize;
    // SAFETY: token and head are inside, by the check here.
    unsafe {
        let rotation = |norm_weight| Rotation {
            angles: table.add(positions.get(token) as usize * rotary_dim as usize),
            rotary_dim,
            norm_weight,
            norm_eps,
        };
        if head < num_heads {
            let q = q.cast::<T>().add(start(q_stride, head));
            let row = rotation(q_norm).load(q.as_global(), head_dim);
            // All columns are read before one is written.
            warp::sync_warp();
            row.store_elements(q, head_dim);
            return;
        }
        // Never 0 heads; `max` tells the compiler.
        let kv_head = (head - num_heads) % num_kv_heads.max(1);
        let (row, pool, format) = if head < num_heads + num_kv_heads {
            let k = k.cast::<T>().add(start(k_stride, kv_head));
            let row = if rotary_dim > 0 || !k_norm.is_null() {
                rotation(k_norm).load(k, head_dim)
            } else {
                Row::load(k, head_dim)
            };
            let format = CacheType::from_number(k_format);
            let row = if format.rotates_keys() { row.hadamard(head_dim) } else { row };
            (row, k_pool, format)
        } else {
            let v = v.cast::<T>().add(start(v_stride, kv_head));
            (Row::load(v, head_dim), v_pool, CacheType::from_number(v_format))
        };
        let slot = slot_mapping.get(token);
        let page = page_start(format, slot / PAGE_SIZE, kv_head, num_kv_heads, head_dim);
        row.store(format, pool.cast::<u8>().add(page), slot % PAGE_SIZE, head_dim);
    }
}

/// The rotation of a position, after the norm of a head; its weight is null without.
struct Rotation {
    angles: Global<f32>,
    rotary_dim: u32,
    norm_weight: Global<f32>,
    norm_eps: f32,
}

impl Rotation {
    /// Column `column` of a head before the rotation, whose norm has this scale.
    ///
    /// # Safety
    /// 1. The head, and the norm's weight if there is one, hold the column.
    #[inline(always)]
    unsafe fn get<T: Number>(&self, head: Global<T>, column: u32, scale: f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let value = head.get(column as usize).to_f32();
            match self.norm_weight.is_null() {
                true => value,
                false => normed::<T>(value, self.norm_weight.get(column as usize), scale),
            }
        }
    }

    /// The rotated head, rounded to its type.
    ///
    /// # Safety
    /// 1. `head` holds `head_dim` elements, at least `rotary_dim`, which are even and `angles`', and
    ///    so does the norm's weight, if there is one. The whole warp calls this.
    #[inline(always)]
    unsafe fn load<T: Number>(&self, head: Global<T>, head_dim: u32) -> Row {
        let half = self.rotary_dim / 2;
        let scale = match self.norm_weight.is_null() {
            true => 1.0,
            // SAFETY: the caller's promise.
            false => unsafe { scale_of(head, head_dim, self.norm_eps) },
        };
        Row::of(head_dim, |column| {
            // SAFETY: the caller's promise.
            unsafe {
                if column >= self.rotary_dim {
                    return self.get(head, column, scale);
                }
                let first = if column < half { column } else { column - half };
                let pair = [first, first + half].map(|at| self.get(head, at, scale));
                let angle = [first, first + half].map(|at| self.angles.get(at as usize));
                let [a, b] = rotate(pair, angle);
                T::from_f32(if column < half { a } else { b }).to_f32()
            }
        })
    }
}

/// A head: the lane's columns of every 32.
struct Row([f32; LANE_COLUMNS]);

impl Row {
    /// The columns that there are, and zeros.
    #[inline(always)]
    fn of(head_dim: u32, get: impl Fn(u32) -> f32) -> Self {
        let mut values = [0.0; LANE_COLUMNS];
        unroll!(i in 0..LANE_COLUMNS, {
            let column = warp::WARP_SIZE * i as u32 + warp::lane_id();
            if column < head_dim {
                values[i] = get(column);
            }
        });
        Row(values)
    }

    /// # Safety
    /// 1. `head` holds `head_dim` elements.
    #[inline(always)]
    unsafe fn load<T: Number>(head: Global<T>, head_dim: u32) -> Self {
        // SAFETY: the caller's promise.
        Row::of(head_dim, |column| unsafe { head.get(column as usize) }.to_f32())
    }

    /// Rotates each block of the row; the whole warp calls this.
    #[inline(always)]
    fn hadamard(mut self, head_dim: u32) -> Self {
        unroll!(i in 0..LANE_COLUMNS, {
            if BLOCK_COLUMNS * (i as u32) < head_dim {
                self.0[i] = rotate_lanes(self.0[i]);
            }
        });
        self
    }

    /// Calls `f` with the columns of the lane that there are, and their values.
    #[inline(always)]
    fn for_each(&self, head_dim: u32, f: impl Fn(u32, f32)) {
        unroll!(i in 0..LANE_COLUMNS, {
            let column = warp::WARP_SIZE * i as u32 + warp::lane_id();
            if column < head_dim {
                f(column, self.0[i]);
            }
        });
    }

    /// # Safety
    /// 1. `out` holds `head_dim` elements, which no other warp accesses.
    #[inline(always)]
    unsafe fn store_elements<T: Number>(&self, out: GlobalMut<T>, head_dim: u32) {
        // SAFETY: the caller's promise.
        self.for_each(head_dim, |column, value| unsafe {
            out.set(column as usize, T::from_f32(value));
        });
    }

    /// Stores row `row` of a page of a head.
    ///
    /// # Safety
    /// 1. The whole warp calls this. `page` holds a page of `format`; no other warp accesses the row.
    #[inline(always)]
    unsafe fn store(&self, format: CacheType, page: GlobalMut<u8>, row: u32, head_dim: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            let quants = page.add((row * format.quant_bytes(head_dim)) as usize);
            match format {
                CacheType::F32 => self.store_elements(quants.cast::<f32>(), head_dim),
                CacheType::F16 => self.store_elements(quants.cast::<f16>(), head_dim),
                CacheType::BF16 => self.store_elements(quants.cast::<bf16>(), head_dim),
                CacheType::Q8_0 | CacheType::Q4_0 => {
                    unroll!(i in 0..LANE_COLUMNS, {
                        if BLOCK_COLUMNS * (i as u32) < head_dim {
                            let key = warp::reduce_max(magnitude_key(self.0[i]));
                            let scale = scale(format, key);
                            store_scale(format, page, [i as u32, row], head_dim, scale);
                            let quant = quant(format, self.0[i] * inverse(scale));
                            store_quant(format, quants, [i as u32, head_dim], quant);
                        }
                    });
                }
                CacheType::Fp8 => {
                    let mut key = 0;
                    unroll!(i in 0..LANE_COLUMNS, {
                        key = key.max(magnitude_key(self.0[i]));
                    });
                    let scale = scale(format, warp::reduce_max(key));
                    store_scale(format, page, [0, row], head_dim, scale);
                    let inverse = inverse(scale);
                    self.for_each(head_dim, |column, value| {
                        let byte = byte_of(column, head_dim) as usize;
                        quants.set(byte, quant(format, value * inverse) as u8);
                    });
                }
            }
        }
    }
}

/// Stores scale `index` of row `row`, in one lane.
///
/// # Safety
/// As [`Row::store`].
#[inline(always)]
unsafe fn store_scale(
    format: CacheType,
    page: GlobalMut<u8>,
    [index, row]: [u32; 2],
    head_dim: u32,
    scale: f16,
) {
    if warp::lane_id() == 0 {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = page.add((PAGE_SIZE * format.quant_bytes(head_dim)) as usize);
            scales.cast::<f16>().set((index * PAGE_SIZE + row) as usize, scale);
        }
    }
}

/// Stores the lanes' quants of block `block` of a row.
///
/// # Safety
/// As [`Row::store`].
#[inline(always)]
unsafe fn store_quant(
    format: CacheType,
    quants: GlobalMut<u8>,
    [block, head_dim]: [u32; 2],
    quant: u32,
) {
    let lane_id = warp::lane_id();
    // SAFETY: the caller's promise.
    unsafe {
        if format == CacheType::Q8_0 {
            let byte = byte_of(BLOCK_COLUMNS * block + lane_id, head_dim);
            quants.set(byte as usize, quant as u8);
            return;
        }
        let mut word = quant << nibble_shift(lane_id);
        for bit in 0..3 {
            word |= warp::shuffle_xor(word, 1 << bit);
        }
        if lane_id.is_multiple_of(8) {
            let index = (BLOCK_COLUMNS * block + lane_id) / 8;
            quants.cast::<u32>().set(index as usize, word);
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{KvAppendQuantised, Rotated};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::kv_append_quantised::Instance;
    use super::{CacheType, MAX_HEAD_DIM, NUM_THREADS, NUM_WARPS, kv_append_quantised};
    use crate::Rows;
    use crate::element::Number;
    use crate::qk_norm::QkNorm;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Append of new tokens to a layer of the cache, quantised.
    #[derive(Clone, Copy, Debug)]
    pub struct KvAppendQuantised {
        /// Upper bound of the tokens.
        pub max_tokens: usize,
        /// KV heads of the layer.
        pub num_kv_heads: usize,
        /// Elements of a head.
        pub head_dim: usize,
        /// How keys and values are stored.
        pub formats: [CacheType; 2],
    }

    /// Rotary embedding of Q and K before the append.
    #[derive(Clone, Copy, Debug)]
    pub struct Rotated<T> {
        /// `[num_tokens]`: the row of `table` of each token.
        pub positions: DevicePtr<u32>,
        /// `[max_positions, rotary_dim]`: cosines, then sines.
        pub table: DevicePtr<f32>,
        /// Columns of a head that are rotated: even.
        pub rotary_dim: usize,
        /// The norm of Q and K before the rotation.
        pub norm: QkNorm,
        /// Heads of Q.
        pub num_heads: usize,
        /// `[max_tokens, num_heads * head_dim]`, rotated in place.
        pub q: Rows<T>,
    }

    impl KvAppendQuantised {
        /// The launch, or `None` if there is nothing to append. `num_tokens` points to the token
        /// count on the device; the pools are those of the layer.
        ///
        /// # Errors
        /// [`LaunchError`] for heads that are no whole blocks, or of more than 256 columns; for a
        /// `rotary_dim` that is odd or beyond them; for sizes beyond a grid or a `u32`.
        pub fn launch<T: Number>(
            &self,
            num_tokens: DevicePtr<u32>,
            slot_mapping: DevicePtr<u32>,
            rotated: Option<&Rotated<T>>,
            [k, v]: [Rows<T>; 2],
            [k_pool, v_pool]: [DevicePtr<()>; 2],
        ) -> Result<Option<Launch>, LaunchError> {
            check_head_dim(self.head_dim, &self.formats)?;
            let none = Rotated {
                positions: DevicePtr::null(),
                table: DevicePtr::null(),
                rotary_dim: 0,
                norm: QkNorm::NONE,
                num_heads: 0,
                q: Rows::new(DevicePtr::null(), 0),
            };
            let Rotated { positions, table, rotary_dim, norm, num_heads, q } =
                *rotated.unwrap_or(&none);
            if rotary_dim > self.head_dim || !rotary_dim.is_multiple_of(2) {
                return Err(LaunchError::Shape {
                    what: "rotary_dim",
                    value: rotary_dim,
                    expected: "an even number, at most head_dim",
                });
            }
            let heads = num_heads.saturating_add(self.num_kv_heads.saturating_mul(2));
            arg_u32("row width", heads.saturating_mul(self.head_dim))?;
            let [q_stride, k_stride, v_stride] =
                [q.stride_arg()?, k.stride_arg()?, v.stride_arg()?];
            let grid = [self.max_tokens, heads.div_ceil(NUM_WARPS as usize), 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            let instance = T::choose([
                Instance::kv_append_quantised_f32,
                Instance::kv_append_quantised_f16,
                Instance::kv_append_quantised_bf16,
            ]);
            let [k_format, v_format] = self.formats.map(|format| format as u32);
            Ok(geometry.map(|geometry| {
                kv_append_quantised::Args {
                    num_tokens,
                    positions,
                    slot_mapping,
                    table,
                    rotary_dim: rotary_dim as u32,
                    num_heads: num_heads as u32,
                    num_kv_heads: self.num_kv_heads as u32,
                    head_dim: self.head_dim as u32,
                    q: q.untyped_ptr(),
                    q_stride,
                    k: k.untyped_ptr(),
                    k_stride,
                    v: v.untyped_ptr(),
                    v_stride,
                    k_pool,
                    k_format,
                    v_pool,
                    v_format,
                    q_norm: norm.q,
                    k_norm: norm.k,
                    norm_eps: norm.eps,
                }
                .launch(instance, geometry)
            }))
        }
    }

    /// Whether heads are whole blocks, and no longer than a warp's.
    pub(in crate::kv_cache) fn check_head_dim(
        head_dim: usize,
        formats: &[CacheType],
    ) -> Result<(), LaunchError> {
        let is_split = |format: &CacheType| !head_dim.is_multiple_of(format.block_elems() as usize);
        let is_split = formats.iter().any(is_split);
        if is_split || head_dim > MAX_HEAD_DIM as usize {
            let expected = "at most 256, and a multiple of 32 in q8_0 and q4_0; a cache that is not \
                            quantised takes others";
            return Err(LaunchError::Shape { what: "head_dim", value: head_dim, expected });
        }
        Ok(())
    }
}
#[cfg(not(target_arch = "nvptx64"))]
pub(super) use launcher::check_head_dim;
