//! The copies of a warp's keys to its part of a slot: lanes read whole lines, where rows have them.

use super::super::super::tile::{Cache, PANEL_COLUMNS};
use super::format::KvQuants;
use super::{KEYS, SCALE_BYTES, num_scales, panel_bytes, row_bytes, vec_of};
use crate::kv_cache::PAGE_SIZE;
use crate::kv_cache::format::page_start;
use core::ops::Range;
use cuda_std::prelude::*;

/// Panels of a row that the lanes of a copy read next to each other: whole lines, where rows have
/// them.
const fn lane_panels<F: KvQuants>(panels: usize) -> u32 {
    if panels.is_multiple_of(4) {
        4
    } else if F::BITS == 4 || panels == 2 {
        2
    } else {
        1
    }
}

/// Rows that the lanes of a copy read.
const fn pass_rows<F: KvQuants>(panels: usize) -> u32 {
    warp::WARP_SIZE / (row_bytes::<F>() / 16 * lane_panels::<F>(panels))
}

/// Copies that read the same rows.
const fn panel_passes<F: KvQuants>(panels: usize) -> u32 {
    (panels as u32).div_ceil(lane_panels::<F>(panels))
}

/// Copies of a lane for the quants of a warp's keys.
const fn num_copies<F: KvQuants>(panels: usize) -> usize {
    (KEYS / pass_rows::<F>(panels) * panel_passes::<F>(panels)) as usize
}

/// Issues the copies of the warp's keys, from `first` on.
///
/// # Safety
/// As [`KvSource::copy_tile`]; `slot` is the warp's part.
#[inline(always)]
pub unsafe fn copy_keys<F: KvQuants, const PANELS: usize>(
    slot: Shared<u8>,
    pool: Global<u8>,
    cache: &Cache,
    page: u32,
    first: u32,
    keys: &Range<u32>,
) {
    let &Cache { num_kv_heads, kv_head, head_dim, .. } = cache;
    let start = page_start(F::FORMAT, page, kv_head, num_kv_heads, head_dim);
    let (page, page_row) = (pool.wrapping_add(start), first % PAGE_SIZE);
    let quant_bytes = F::FORMAT.quant_bytes(head_dim);
    let scales = page.wrapping_add((PAGE_SIZE * quant_bytes + 2 * page_row) as usize);
    let rows = page.wrapping_add((page_row * quant_bytes) as usize);
    let width = PANEL_COLUMNS * PANELS as u32;
    // SAFETY: the caller's promise. All but the tiles at the ends of a range are whole: without
    // conditions, and with offsets that are constants.
    unsafe {
        if keys.start <= first && first + KEYS <= keys.end && head_dim == width {
            copy_quants::<F, PANELS>(slot, rows, width, 0..KEYS);
            copy_scales::<F, PANELS>(slot, scales, width, KEYS);
        } else {
            let left = keys.end.saturating_sub(first);
            let exist = keys.start.saturating_sub(first)..left.min(KEYS);
            copy_quants::<F, PANELS>(slot, rows, head_dim, exist);
            copy_scales::<F, PANELS>(slot, scales, head_dim, left);
        }
    }
}

/// Issues the copies of the quants of a warp's keys, of which those in `exist` exist.
///
/// # Safety
/// As [`copy_keys`]; `rows` starts with the first key.
#[inline(always)]
unsafe fn copy_quants<F: KvQuants, const PANELS: usize>(
    slot: Shared<u8>,
    rows: Global<u8>,
    head_dim: u32,
    exist: Range<u32>,
) {
    let row_vecs = const { row_bytes::<F>() / 16 };
    let lane_panels = const { lane_panels::<F>(PANELS) };
    let pass_rows = const { pass_rows::<F>(PANELS) };
    let panel_passes = const { panel_passes::<F>(PANELS) };
    let lane_id = warp::lane_id();
    let (vec_idx, lane_row) = (lane_id % row_vecs, lane_id / row_vecs % pass_rows);
    let lane_panel = lane_id / row_vecs / pass_rows;
    let quant_bytes = F::FORMAT.quant_bytes(head_dim);
    unroll!(pass in 0..num_copies::<F>(PANELS), {
        let row = pass as u32 / panel_passes * pass_rows + lane_row;
        let panel = pass as u32 % panel_passes * lane_panels + lane_panel;
        let column = panel * PANEL_COLUMNS + vec_idx * const { 128 / F::BITS };
        if (PANELS as u32).is_multiple_of(lane_panels) || panel < PANELS as u32 {
            let from = (row * quant_bytes + column * F::BITS / 8) as usize;
            let to = panel * panel_bytes::<F>() + row * row_bytes::<F>();
            let to = to + 16 * vec_of::<F>(row, vec_idx);
            let exists = exist.contains(&row) && column < head_dim;
            // SAFETY: nothing is read where nothing exists; the vector is inside the slot.
            unsafe {
                let (to, from) = (slot.offset(to), rows.wrapping_add(from));
                cp_async::copy_vec_of_line::<16, u8>(to, 0, from, 0, exists);
            }
        }
    });
}

/// Issues the copies of the scales of a warp's keys, eight a vector; those past the `left` keys
/// are zeros.
///
/// # Safety
/// As [`copy_keys`]; `scales` starts with the first scale of the first key.
#[inline(always)]
unsafe fn copy_scales<F: KvQuants, const PANELS: usize>(
    slot: Shared<u8>,
    scales: Global<u8>,
    head_dim: u32,
    left: u32,
) {
    let (index, half) = (warp::lane_id() / 2, warp::lane_id() % 2);
    if index < const { num_scales::<F>(PANELS) } {
        let exist = index < F::FORMAT.num_scales(head_dim);
        let left = if exist { left.saturating_sub(8 * half).min(8) } else { 0 };
        let from = 2 * (index * PAGE_SIZE + 8 * half) as usize;
        let to = const { panel_bytes::<F>() * PANELS as u32 } + index * SCALE_BYTES + 16 * half;
        // SAFETY: the caller's promise.
        unsafe {
            cp_async::copy_start(slot.offset(to), 0, scales.wrapping_add(from), 0, 2 * left);
        }
    }
}
