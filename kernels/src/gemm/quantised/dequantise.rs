//! A packed weight as a dense one: `out[n, k]`, for GEMMs of more rows than
//! [`gemm_f16_quantised`](super::gemm_f16_quantised()) takes.
//!
//! Shapes    weight `[n, k]` in tiles, see [`format`](super::format); out `[n, k]`, f16, with
//!           a row stride; rows of out 8-byte aligned.
//! Launch    grid `(row tiles, tiles along k / 8, 1)`, block `(256, 1, 1)`; a warp takes a tile.
//! Numerics  f32, one rounding at the store.
//! Bound     memory: the weight is read, and out written once.

use super::format::{BLOCKS, Format, STEP_K, TILE_K, TILE_ROWS, TILE_STEPS, Tiles, UNIT_STEPS};
use super::format::{lane_group, lane_pair, quant_scale};
use crate::element::Half;
use cuda_std::prelude::*;
use cuda_std::unroll;
use half::f16;

/// Warps of a block.
const NUM_WARPS: u32 = 8;

/// A tile a warp.
///
/// # Safety
/// 1. `weight` holds the tiles of a weight `[n, k]` of the format `F`, and `out` its rows at their
///    stride, 8-byte aligned. `out` is no part of `weight`.
#[kernel(
    launch_bounds(NUM_WARPS * warp::WARP_SIZE, 1),
    overlaps,
    instances(F in BLOCKS, dequantise_{F}_f16 = <F>)
)]
pub unsafe fn dequantise<F: Format>(
    n: u32,
    k: u32,
    weight: Global<u8>,
    out: GlobalMut<u16>,
    out_stride: u32,
) {
    let tiles = Tiles::new::<F>(weight, k);
    let tile_idx = thread::block_idx_y() * NUM_WARPS + warp::warp_idx();
    let first_row = thread::block_idx_x() * TILE_ROWS + lane_group();
    // SAFETY: inside the weight, by the condition; row and column are inside, by the checks.
    unsafe {
        let is_inside = tile_idx < tiles.num_tiles;
        let tile = tiles.tile::<F>(thread::block_idx_x(), tile_idx, is_inside).load::<F>();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let scales = F::unpack(tile.scales);
        unroll!(step in 0..TILE_STEPS, {
            let words = F::fragment(&tile.units[step / UNIT_STEPS], step % UNIT_STEPS);
            let column = tile_idx * TILE_K + step as u32 * STEP_K + 4 * lane_pair();
            for row in 0..2 {
                let quants = [words[row], words[2 + row]];
                let values = elements::<F>(quants, &scales, row, step / F::GROUP_STEPS);
                let row = first_row + 8 * row as u32;
                if is_inside && row < n && column < k {
                    let at = row as usize * out_stride as usize + column as usize;
                    let [a, b, c, d] = values;
                    out.add(at).cast::<u32>().set_vec(0, [f16::pack(a, b), f16::pack(c, d)]);
                }
            }
        });
    }
}

/// Four elements of a row of a tile.
#[inline(always)]
pub(super) fn elements<F: Format>(
    quants: [u32; 2],
    scales: &F::Scales,
    row: usize,
    group: usize,
) -> [f32; 4] {
    let ([scale, min], [row_scale, min_scale]) =
        (F::group_scale(scales, row, group), F::row_scale(scales, row));
    let (scale, min) = (scale * row_scale, min * min_scale);
    let element = |quant: f32| {
        let quant = math::fma(quant, quant_scale::<F>(row), F::OFFSET);
        math::fma(quant, scale, min)
    };
    let [[a, b], [c, d]] = quants.map(|pair| f16::unpack(pair).map(element));
    [a, b, c, d]
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Dequantise;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::dequantise::Instance;
    use super::{NUM_WARPS, TILE_K, TILE_ROWS, dequantise};
    use crate::Rows;
    use crate::gemm::quantised::BlockFormat;
    use crate::gemm::quantised::packed::{check, instance_of};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
    use cuda_std::warp::WARP_SIZE;
    use half::f16;

    /// A dense copy of a packed weight.
    #[derive(Clone, Copy, Debug)]
    pub struct Dequantise {
        /// Rows of the weight.
        pub n: usize,
        /// Columns.
        pub k: usize,
        /// How the weight is packed.
        pub format: BlockFormat,
    }

    impl Dequantise {
        /// The launch, or `None` if the weight is empty.
        ///
        /// # Errors
        /// [`LaunchError`] for a k that is no multiple of the format's blocks, a row stride or an
        /// address of `out` that is not a multiple of 8 bytes, and sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            weight: DevicePtr<u8>,
            out: Rows<f16>,
        ) -> Result<Option<Launch>, LaunchError> {
            let &Dequantise { n, k, format } = self;
            check(format, n, k, weight)?;
            for (what, value) in
                [("row stride", out.row_stride), ("address", out.ptr.0 as usize / 2)]
            {
                if !value.is_multiple_of(4) {
                    let expected = "a multiple of 8 bytes";
                    return Err(LaunchError::Shape { what, value, expected });
                }
            }
            let num_tiles = k.div_ceil(TILE_K as usize);
            let grid = [n.div_ceil(TILE_ROWS as usize), num_tiles.div_ceil(NUM_WARPS as usize), 1];
            let geometry = Geometry::new(grid, (NUM_WARPS * WARP_SIZE) as usize, 0)?;
            let (n, k, out_stride) = (arg_u32("n", n)?, arg_u32("k", k)?, out.stride_arg()?);
            let args =
                dequantise::Args { n, k, weight, out: DevicePtr::new(out.ptr.0), out_stride };
            let instance = instance_of(format, Instance::ALL, Instance::f, |_| true)?;
            Ok(geometry.map(|geometry| args.launch(instance, geometry)))
        }
    }
}
