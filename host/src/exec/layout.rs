//! Weights in the order in which a plan keeps them: a source gives rows, GPU kernels read tiles.

use super::ExecError;
use crate::plan::{Weight, WeightLayout, WeightSource};
use cpu_ops::host_memory;
use gpu_types::{BlockFormat, TILE_ROWS};
use kernels::gemm::quantised;
use rayon::prelude::*;

/// Reads `weight` from `source` to `out`, which is `weight.bytes()` long, in the weight's layout.
/// Memory for its rows is taken on the host, which errors call `device`.
///
/// # Errors
/// [`ExecError::OutOfMemory`]; [`ExecError::Weights`] from `source`.
pub fn read(
    device: &str,
    weight: &Weight,
    source: &dyn WeightSource,
    out: &mut [u8],
) -> Result<(), ExecError> {
    if !weight.has_tiles() {
        return Ok(source.read(weight, out)?);
    }
    let stored = Weight { layout: WeightLayout::Rows, ..weight.clone() };
    // Words, so that the source may write elements and not bytes.
    let num_words = stored.bytes().div_ceil(size_of::<u32>());
    let mut words = host_memory::zeroed::<u32>(&weight.name, num_words)
        .map_err(|error| ExecError::out_of_memory(device, error))?;
    let rows = &mut bytemuck::cast_slice_mut(&mut words)[..stored.bytes()];
    source.read(&stored, rows)?;
    let (mut rows, mut rest) = (&*rows, out);
    for part in &weight.parts {
        let (part_rows, after) = rows.split_at(stored.part_bytes(part));
        let (out, rest_after) = rest.split_at_mut(weight.part_bytes(part));
        (rows, rest) = (after, rest_after);
        match weight.tile_format(part) {
            Some(format) => pack(format, weight.cols, part_rows, out),
            None => out.copy_from_slice(part_rows),
        }
    }
    Ok(())
}

/// Packs `rows` of `cols` elements into tiles.
fn pack(format: BlockFormat, cols: usize, rows: &[u8], out: &mut [u8]) {
    let tile_bytes = format.row_tile_bytes(cols).expect("the bytes of all tiles are known");
    let row_bytes = cols / format.block_elems() * format.block_bytes();
    let tiles = out.par_chunks_exact_mut(tile_bytes);
    let rows = rows.par_chunks(TILE_ROWS as usize * row_bytes);
    tiles.zip(rows).for_each(|(tile, rows)| quantised::pack(format, cols, rows, tile));
}
