//! KV cache append: K and V of each new token go to its slot of a layer's paged pools.
//!
//! Shapes    k, v `[num_tokens, num_kv_heads * head_dim]` with row strides; pools
//!           `[num_pages, num_kv_heads, PAGE_SIZE, head_dim]`; slot_mapping `[num_tokens]`; f32.
//! Launch    grid `(max_tokens, num_kv_heads * head_dim / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  exact.
//! Bound     memory: `16 * num_tokens * num_kv_heads * head_dim` bytes.

use cuda_std::prelude::*;

/// Positions in a page of the cache.
pub const PAGE_SIZE: u32 = 64;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// First element, in a pool, of the row of `kv_head` at position `row` of `page`.
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

/// One element of K and one of V a thread.
///
/// # Safety
/// 1. `num_tokens` is one element; `slot_mapping`, `k` and `v` hold that many; every slot is one of the pools', no two alike.
/// 2. The pools overlap nothing that is read.
#[kernel(launch_bounds(NUM_THREADS, 1))]
pub unsafe fn kv_append_f32(
    num_tokens: Global<u32>,
    slot_mapping: Global<u32>,
    num_kv_heads: u32,
    head_dim: u32,
    k: Global<f32>,
    k_stride: u32,
    v: Global<f32>,
    v_stride: u32,
    k_pool: GlobalMut<f32>,
    v_pool: GlobalMut<f32>,
) {
    let token = thread::block_idx_x();
    let column = thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x();
    // SAFETY: token and column are inside, by the check here; a `head_dim` of 0 makes no launch.
    unsafe {
        if token >= num_tokens.get(0) || column >= num_kv_heads * head_dim {
            return;
        }
        core::hint::assert_unchecked(head_dim > 0);
        let slot = slot_mapping.get(token as usize);
        let row = row_start(
            slot / PAGE_SIZE,
            slot % PAGE_SIZE,
            column / head_dim,
            num_kv_heads,
            head_dim,
        );
        let to = row + (column % head_dim) as usize;
        k_pool.set(to, k.get(token as usize * k_stride as usize + column as usize));
        v_pool.set(to, v.get(token as usize * v_stride as usize + column as usize));
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::KvAppend;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, kv_append_f32};
    use crate::Rows;
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
        /// The launch, with `num_tokens` the device's count of tokens and the pools those of the layer, or `None` if
        /// there is nothing to append.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_tokens: DevicePtr<u32>,
            slot_mapping: DevicePtr<u32>,
            k: Rows<f32>,
            v: Rows<f32>,
            k_pool: DevicePtr<f32>,
            v_pool: DevicePtr<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = self.num_kv_heads.saturating_mul(self.head_dim);
            arg_u32("row width", width)?;
            let (k_stride, v_stride) = (k.stride_arg()?, v.stride_arg()?);
            let grid = [self.max_tokens, width.div_ceil(NUM_THREADS as usize), 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            Ok(geometry.map(|geometry| {
                kv_append_f32::launch(
                    geometry,
                    num_tokens,
                    slot_mapping,
                    self.num_kv_heads as u32,
                    self.head_dim as u32,
                    k.ptr,
                    k_stride,
                    v.ptr,
                    v_stride,
                    k_pool,
                    v_pool,
                )
            }))
        }
    }
}
