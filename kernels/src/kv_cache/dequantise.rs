//! The pages that a step reads, from a pool of any [`CacheType`] to a pool of attention's operands.
//!
//! Shapes    pool of pages as [`CacheType`] says; out `[num_pages, num_kv_heads, PAGE_SIZE,
//!           head_dim]`; block_table `[num_seqs, max_pages_per_seq]`.
//! Launch    grid `(max_seqs * max_pages_per_seq, num_kv_heads, 1)`, block `(NUM_THREADS, 1, 1)`; a
//!           block takes a page of a head, none where the table has [`NO_PAGE`]. A page that
//!           sequences share is written by each, alike.
//! Numerics  scale times quant in f32, rotated back where keys are rotated, one rounding at the
//!           store.
//! Bound     memory: a load for each quant, a store for each element.

use super::format::{load, page_start};
use super::hadamard::rotate_vectors;
use super::{CacheType, NO_PAGE, PAGE_SIZE, row_start};
use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// Eight elements `E` of a row a thread and pass, as far as their sequence has positions; of
/// sequences with at least `min_q_len` new tokens.
///
/// # Safety
/// 1. `num_seqs` is one element; `cu_seqlens_q`, `kv_lens` and `block_table` hold that many; the
///    pages of the sequences' positions are in both pools, and written in `pool`, which is of
///    `format`.
/// 2. `out` overlaps nothing else. If `aligned` is not 0, rows of elements of both pools are
///    16-byte aligned. Heads are whole blocks of the format.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        kv_dequantise_f32 = <f32>,
        kv_dequantise_f16 = <f16>,
        kv_dequantise_bf16 = <bf16>
    )
)]
pub unsafe fn kv_dequantise<E: Number>(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    min_q_len: u32,
    kv_lens: Global<u32>,
    block_table: Global<u32>,
    max_pages_per_seq: u32,
    num_kv_heads: u32,
    head_dim: u32,
    pool: Global<()>,
    format: u32,
    is_rotated: u32,
    out: GlobalMut<()>,
    aligned: u32,
) {
    let (index, kv_head) = (thread::block_idx_x(), thread::block_idx_y());
    // SAFETY: launches have pages and columns. Step inputs are written by no launch of the step;
    // sequence, page and row are inside, by the checks here.
    unsafe {
        core::hint::assert_unchecked(max_pages_per_seq > 0 && head_dim > 0);
        let (seq, page_idx) = (index / max_pages_per_seq, index % max_pages_per_seq);
        let is_read = seq < num_seqs.get(0) && {
            let [first, end] = [seq, seq + 1].map(|seq| cu_seqlens_q.get(seq as usize));
            end - first >= min_q_len
        };
        let kv_len = if is_read { kv_lens.get(seq as usize) } else { 0 };
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let rows = kv_len.saturating_sub(page_idx * PAGE_SIZE).min(PAGE_SIZE);
        if rows == 0 {
            return;
        }
        let page = block_table.get(index as usize);
        if page == NO_PAGE {
            return;
        }
        let format = CacheType::from_number(format);
        let start = page_start(format, page, kv_head, num_kv_heads, head_dim);
        let from = pool.cast::<u8>().add(start);
        let to = out.cast::<E>().add(row_start(page, 0, kv_head, num_kv_heads, head_dim));
        let vectors = head_dim.div_ceil(VEC_ELEMS);
        let mut warp_vector = warp::warp_idx() * warp::WARP_SIZE;
        // A warp's lanes stay together, as they exchange columns.
        while warp_vector < rows * vectors {
            let vector = warp_vector + warp::lane_id();
            let exists = vector < rows * vectors;
            let read = if exists { vector } else { 0 };
            let (row, first) = (read / vectors, read % vectors * VEC_ELEMS);
            let columns = Columns::new(first, head_dim, aligned != 0);
            let mut values = load(format, from, row, head_dim, first, columns);
            if is_rotated != 0 {
                values = rotate_vectors(values);
            }
            if exists {
                columns.store(to.add((row * head_dim) as usize), values);
            }
            warp_vector += NUM_THREADS;
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{KvDequantise, PageInputs};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::super::append_quantised::check_head_dim;
    use super::kv_dequantise::Instance;
    use super::{CacheType, NUM_THREADS, VEC_ELEMS, kv_dequantise};
    use crate::element::Number;
    use crate::operand::{is_aligned, untyped};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// The step inputs that say which pages are read.
    #[derive(Clone, Copy, Debug)]
    pub struct PageInputs {
        /// One element: sequences in the step.
        pub num_seqs: DevicePtr<u32>,
        /// `[num_seqs + 1]`.
        pub cu_seqlens_q: DevicePtr<u32>,
        /// `[num_seqs]`.
        pub kv_lens: DevicePtr<u32>,
        /// `[num_seqs, max_pages_per_seq]`.
        pub block_table: DevicePtr<u32>,
    }

    /// Dequantises the pages of a step's sequences, of keys or of values.
    #[derive(Clone, Copy, Debug)]
    pub struct KvDequantise {
        /// Upper bound of the sequences.
        pub max_seqs: usize,
        /// Width of the block table.
        pub max_pages_per_seq: usize,
        /// KV heads of the layer.
        pub num_kv_heads: usize,
        /// Elements of a head.
        pub head_dim: usize,
        /// How they are stored.
        pub format: CacheType,
        /// Whether they are keys.
        pub is_keys: bool,
        /// New tokens of a sequence from which its pages are read.
        pub min_q_len: usize,
    }

    impl KvDequantise {
        /// The launch, or `None` if there is nothing to read: from `pool` to `out`.
        ///
        /// # Errors
        /// [`LaunchError`] for heads that are no whole blocks, and for sizes beyond a grid or a
        /// `u32`.
        pub fn launch<E: Number>(
            &self,
            inputs: &PageInputs,
            pool: DevicePtr<()>,
            out: DevicePtr<E>,
        ) -> Result<Option<Launch>, LaunchError> {
            check_head_dim(self.head_dim, &[self.format])?;
            arg_u32("row width", self.num_kv_heads.saturating_mul(self.head_dim))?;
            let max_pages_per_seq = arg_u32("max_pages_per_seq", self.max_pages_per_seq)?;
            let min_q_len = arg_u32("min_q_len", self.min_q_len)?;
            let num_pages = self.max_seqs.saturating_mul(self.max_pages_per_seq);
            let grid = [num_pages, self.num_kv_heads, 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            let aligned = self.head_dim.is_multiple_of(VEC_ELEMS as usize)
                && is_aligned(pool)
                && is_aligned(out);
            let instance = E::choose([
                Instance::kv_dequantise_f32,
                Instance::kv_dequantise_f16,
                Instance::kv_dequantise_bf16,
            ]);
            Ok(geometry.map(|geometry| {
                kv_dequantise::Args {
                    num_seqs: inputs.num_seqs,
                    cu_seqlens_q: inputs.cu_seqlens_q,
                    min_q_len,
                    kv_lens: inputs.kv_lens,
                    block_table: inputs.block_table,
                    max_pages_per_seq,
                    num_kv_heads: self.num_kv_heads as u32,
                    head_dim: self.head_dim as u32,
                    pool,
                    format: self.format as u32,
                    is_rotated: (self.is_keys && self.format.rotates_keys()).into(),
                    out: untyped(out),
                    aligned: aligned.into(),
                }
                .launch(instance, geometry)
            }))
        }
    }
}
