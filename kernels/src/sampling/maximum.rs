//! The first launch: logits are edited, and the largest one of each block's columns is found.

use super::best::{Best, BlockBests};
use super::edit::RowEdits;
use super::row::Row;
use super::{NUM_THREADS, NUM_WARPS};
use cuda_std::prelude::*;

/// A block takes `BLOCK_COLUMNS` columns of a row.
///
/// # Safety
/// 1. `num_rows` is one element; `sampling` holds that many rows of `ROW_SAMPLING_LEN`, `edits` at a
///    multiple of 16 bytes their edits, of which no token of a row has two; `logits` holds as many rows
///    of `vocab_size` (not 0) elements at its stride, `maxima` of `2 * grid_dim_y`.
/// 2. The grid covers the columns of a row, and every block has at least one.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn sample_maximum_f32(
    num_rows: Global<u32>,
    sampling: Global<u32>,
    edits: Global<u32>,
    vocab_size: u32,
    logits: GlobalMut<f32>,
    stride: u32,
    maxima: GlobalMut<u32>,
) {
    let row = thread::block_idx_x() as usize;
    let (block, num_blocks) = (thread::block_idx_y(), thread::grid_dim_y());
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` is inside by the check.
    unsafe {
        if row >= num_rows as usize {
            return;
        }
        let logits = logits.add(row * stride as usize);
        RowEdits::load(sampling, edits, row).apply(logits, vocab_size, block);
        let row_of = Row { logits: logits.as_global(), vocab_size };
        let best = Best::from_values(row_of.load(block), block);
        let best = best.reduce_block(shared_array![u32; 2 * NUM_WARPS as usize]);
        if thread::thread_idx_x() == 0 {
            let partials = maxima.add(2 * row * num_blocks as usize);
            BlockBests { partials, num_blocks }.set(block, best);
        }
    }
}
