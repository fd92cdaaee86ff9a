//! Gather of rows of a packed weight, as [`gather_rows`](crate::gather_rows) gathers those of a dense
//! one: `out[r, :] = scale * weight[indices[r], :]`. It is the embedding, of the table that a linear
//! layer may share.
//!
//! Shapes    weight `[*, k]` in tiles, see [`format`](super::format); indices `[num_rows]`, some of
//!           which may be [`DRAWN`](gpu_types::DRAWN) tokens; out `[num_rows, k]` f32, with a row
//!           stride; rows of out 16-byte aligned.
//! Launch    grid `(max_rows, tiles along k / 8, 1)`, block `(256, 1, 1)`; a warp reads a tile, and
//!           stores one of its rows.
//! Numerics  f32, as [`dequantise`](mod@super::dequantise) computes them, then times the scale.
//! Bound     memory: a row of tiles is read, 16 rows of the weight, and a row of out written.

use super::dequantise::elements;
use super::format::{BLOCKS, Format, STEP_K, TILE_K, TILE_ROWS, TILE_STEPS, Tiles, UNIT_STEPS};
use super::format::{lane_group, lane_pair};
use crate::gather_rows::index_of;
use cuda_std::prelude::*;
use cuda_std::unroll;

/// Warps of a block.
const NUM_WARPS: u32 = 8;

/// A row of a tile a warp.
///
/// # Safety
/// 1. `num_rows` is one element; `indices` holds that many, and `out` as many rows at their stride,
///    16-byte aligned.
/// 2. `weight` holds the tiles of a weight `[n, k]` of the format `F`; every index is below `n`,
///    or a drawn one whose place in `drawn` holds a number below `n`.
/// 3. `out` overlaps nothing that is read.
#[kernel(
    launch_bounds(NUM_WARPS * warp::WARP_SIZE, 1),
    overlaps,
    instances(F in BLOCKS, gather_{F} = <F>)
)]
pub unsafe fn gather_quantised<F: Format>(
    num_rows: Global<u32>,
    indices: Global<u32>,
    drawn: Global<u32>,
    k: u32,
    weight: Global<u8>,
    out: GlobalMut<f32>,
    out_stride: u32,
    scale: f32,
) {
    let row = thread::block_idx_x();
    let tile_idx = thread::block_idx_y() * NUM_WARPS + warp::warp_idx();
    let tiles = Tiles::new::<F>(weight, k);
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if row >= num_rows || tile_idx >= tiles.num_tiles {
        return;
    }
    // SAFETY: row, index and columns are inside, by the condition and the checks.
    unsafe {
        let index = index_of(indices, drawn, row);
        let tile = tiles.tile::<F>(index / TILE_ROWS, tile_idx, true).load::<F>();
        let in_tile = index % TILE_ROWS;
        let scales = F::unpack(tile.scales);
        let out = out.add(row as usize * out_stride as usize);
        unroll!(step in 0..TILE_STEPS, {
            let words = F::fragment(&tile.units[step / UNIT_STEPS], step % UNIT_STEPS);
            let column = tile_idx * TILE_K + step as u32 * STEP_K + 4 * lane_pair();
            for half in 0..2 {
                let quants = [words[half], words[2 + half]];
                let values = elements::<F>(quants, &scales, half, step / F::GROUP_STEPS);
                if lane_group() + 8 * half as u32 == in_tile && column < k {
                    out.set_vec(column as usize, values.map(|value| value * scale));
                }
            }
        });
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::GatherQuantised;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::gather_quantised::Instance;
    use super::{NUM_WARPS, TILE_K, gather_quantised};
    use crate::Rows;
    use crate::gemm::quantised::BlockFormat;
    use crate::gemm::quantised::packed::{check, instance_of};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
    use cuda_std::warp::WARP_SIZE;

    /// Gather of rows of a packed weight by index.
    #[derive(Clone, Copy, Debug)]
    pub struct GatherQuantised {
        /// Upper bound of the rows gathered.
        pub max_rows: usize,
        /// Rows of the weight.
        pub n: usize,
        /// Columns of a row.
        pub k: usize,
        /// Multiplies every element.
        pub scale: f32,
        /// How the weight is packed.
        pub format: BlockFormat,
    }

    impl GatherQuantised {
        /// The launch, or `None` if there is nothing to gather. `num_rows` points to the row count
        /// on the device, `drawn` to the tokens that indices may stand for, if any does.
        ///
        /// # Errors
        /// [`LaunchError`] for a k that is no multiple of the format's blocks, rows of `out` that
        /// are not 16-byte aligned, and sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            indices: DevicePtr<u32>,
            drawn: Option<DevicePtr<u32>>,
            weight: DevicePtr<u8>,
            out: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let &GatherQuantised { max_rows, n, k, scale, format } = self;
            check(format, n, k, weight)?;
            if !out.is_aligned() {
                let (what, value) = ("row stride", out.row_stride);
                let expected = "rows of out that are 16-byte aligned";
                return Err(LaunchError::Shape { what, value, expected });
            }
            let num_tiles = k.div_ceil(TILE_K as usize);
            let grid = [max_rows, num_tiles.div_ceil(NUM_WARPS as usize), 1];
            let geometry = Geometry::new(grid, (NUM_WARPS * WARP_SIZE) as usize, 0)?;
            let (k, out_stride) = (arg_u32("k", k)?, out.stride_arg()?);
            let args = gather_quantised::Args {
                num_rows,
                indices,
                drawn: drawn.unwrap_or(DevicePtr::null()),
                k,
                weight,
                out: out.ptr,
                out_stride,
                scale,
            };
            let instance = instance_of(format, Instance::ALL, Instance::f, |_| true)?;
            Ok(geometry.map(|geometry| args.launch(instance, geometry)))
        }
    }
}
