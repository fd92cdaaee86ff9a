//! KV cache append: K and V of each new token go to its slot of a layer's paged pools.
//!
//! Shapes    k, v `[num_tokens, num_kv_heads * head_dim]` with row strides; pools `[num_pages,
//!           num_kv_heads, PAGE_SIZE, head_dim]`; slot_mapping `[num_tokens]`; the pools are of the
//!           type of k and v, or f16 or bf16 of f32.
//! Launch    grid `(max_tokens, num_kv_heads * head_dim / 8 / NUM_THREADS, 1)`, block
//!           `(NUM_THREADS, 1, 1)`.
//! Numerics  exact, or one rounding to nearest even where the pools are narrower.
//! Bound     memory: two elements of k and v, and two of the pools, for each column.

pub mod append_fp8;
pub mod append_quantised;
pub mod dequantise;
pub(crate) mod format;
pub(crate) mod hadamard;

use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
pub use gpu_types::{CacheType, NO_PAGE, PAGE_SIZE};
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// Index in a pool of the first element of `kv_head` at position `row` of `page`.
#[inline(always)]
pub(crate) fn row_start(
    page: u32,
    row: u32,
    kv_head: u32,
    num_kv_heads: u32,
    head_dim: u32,
) -> usize {
    let page_row = (page as usize * num_kv_heads as usize + kv_head as usize) * PAGE_SIZE as usize;
    (page_row + row as usize) * head_dim as usize
}

/// Eight elements of K and eight of V a thread, from `T` to `C`.
///
/// # Safety
/// 1. `num_tokens` is one element; `slot_mapping`, `k` and `v` hold that many; every slot is one of
///    the pools', no two alike; `k` and `v` hold elements `T`, the pools `C`.
/// 2. The pools overlap nothing that is read.
/// 3. If `aligned` is not 0, each head is 16-byte aligned in `k` and `v`, and in the pools.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        kv_append_f32 = <f32, f32>,
        kv_append_f16 = <f16, f16>,
        kv_append_bf16 = <bf16, bf16>,
        kv_append_f32_f16 = <f32, f16>,
        kv_append_f32_bf16 = <f32, bf16>
    )
)]
pub unsafe fn kv_append<T: Number, C: Number>(
    num_tokens: Global<u32>,
    slot_mapping: Global<u32>,
    num_kv_heads: u32,
    head_dim: u32,
    k: Global<()>,
    k_stride: u32,
    v: Global<()>,
    v_stride: u32,
    k_pool: GlobalMut<()>,
    v_pool: GlobalMut<()>,
    aligned: u32,
) {
    let token = thread::block_idx_x();
    let vector = thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: token, head and columns are inside, by the check here; there is no launch
    // with a `head_dim` of 0.
    unsafe {
        core::hint::assert_unchecked(head_dim > 0);
        let vectors = head_dim.div_ceil(VEC_ELEMS);
        let head = vector / vectors;
        if token >= num_tokens || head >= num_kv_heads {
            return;
        }
        let columns = Columns::new(vector % vectors * VEC_ELEMS, head_dim, aligned != 0);
        let slot = slot_mapping.get(token as usize);
        let to = row_start(slot / PAGE_SIZE, slot % PAGE_SIZE, head, num_kv_heads, head_dim);
        let from =
            |stride: u32| token as usize * stride as usize + head as usize * head_dim as usize;
        let k = columns.load(k.cast::<T>().add(from(k_stride)));
        let v = columns.load(v.cast::<T>().add(from(v_stride)));
        columns.store(k_pool.cast::<C>().add(to), k);
        columns.store(v_pool.cast::<C>().add(to), v);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::KvAppend;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::kv_append::Instance;
    use super::{NUM_THREADS, kv_append};
    use crate::Rows;
    use crate::element::{NarrowedFrom, Narrowing, Number, VEC_ELEMS};
    use crate::operand::{is_aligned, untyped};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Append of new tokens to a layer of the cache.
    #[derive(Clone, Copy, Debug)]
    pub struct KvAppend {
        /// Upper bound of the tokens.
        pub max_tokens: usize,
        /// KV heads of the layer.
        pub num_kv_heads: usize,
        /// Elements of a head.
        pub head_dim: usize,
    }

    impl KvAppend {
        /// The launch, or `None` if there is nothing to append. `num_tokens` points to the token
        /// count on the device; the pools are those of the layer.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch<C: Number>(
            &self,
            num_tokens: DevicePtr<u32>,
            slot_mapping: DevicePtr<u32>,
            k: Rows<C>,
            v: Rows<C>,
            k_pool: DevicePtr<C>,
            v_pool: DevicePtr<C>,
        ) -> Result<Option<Launch>, LaunchError> {
            self.convert(num_tokens, slot_mapping, [k, v], [k_pool, v_pool])
        }

        /// [`KvAppend::launch`] of K and V in f32.
        ///
        /// # Errors
        /// As [`KvAppend::launch`].
        pub fn launch_from_f32<C: Number>(
            &self,
            num_tokens: DevicePtr<u32>,
            slot_mapping: DevicePtr<u32>,
            k: Rows<f32>,
            v: Rows<f32>,
            k_pool: DevicePtr<C>,
            v_pool: DevicePtr<C>,
        ) -> Result<Option<Launch>, LaunchError> {
            self.convert(num_tokens, slot_mapping, [k, v], [k_pool, v_pool])
        }

        fn convert<T: Number, C: NarrowedFrom<T>>(
            &self,
            num_tokens: DevicePtr<u32>,
            slot_mapping: DevicePtr<u32>,
            [k, v]: [Rows<T>; 2],
            [k_pool, v_pool]: [DevicePtr<C>; 2],
        ) -> Result<Option<Launch>, LaunchError> {
            let width = self.num_kv_heads.saturating_mul(self.head_dim);
            arg_u32("row width", width)?;
            let (k_stride, v_stride) = (k.stride_arg()?, v.stride_arg()?);
            let vectors = self.num_kv_heads * self.head_dim.div_ceil(VEC_ELEMS as usize);
            let grid = [self.max_tokens, vectors.div_ceil(NUM_THREADS as usize), 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            let aligned = self.head_dim.is_multiple_of(VEC_ELEMS as usize)
                && k.is_aligned()
                && v.is_aligned()
                && is_aligned(k_pool)
                && is_aligned(v_pool);
            let instance = match C::NARROWING {
                Narrowing::F32 => Instance::kv_append_f32,
                Narrowing::F16 => Instance::kv_append_f16,
                Narrowing::BF16 => Instance::kv_append_bf16,
                Narrowing::F32ToF16 => Instance::kv_append_f32_f16,
                Narrowing::F32ToBF16 => Instance::kv_append_f32_bf16,
            };
            Ok(geometry.map(|geometry| {
                kv_append::Args {
                    num_tokens,
                    slot_mapping,
                    num_kv_heads: self.num_kv_heads as u32,
                    head_dim: self.head_dim as u32,
                    k: k.untyped_ptr(),
                    k_stride,
                    v: v.untyped_ptr(),
                    v_stride,
                    k_pool: untyped(k_pool),
                    v_pool: untyped(v_pool),
                    aligned: aligned.into(),
                }
                .launch(instance, geometry)
            }))
        }
    }
}
