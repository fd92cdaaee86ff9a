//! All-gather of columns: each of `WORLD` ranks gets the columns of all, side by side. It is what
//! becomes of logits, whose tokens the ranks divide.
//!
//! Shapes    x `[num_rows, width]` f32, the rank's own columns; out `[num_rows, out_width]` f32, of
//!           which those from `first_column` on are the rank's. Contiguous; the out of all ranks are
//!           accessed.
//! Launch    grid `(vectors of a rank / NUM_THREADS, at most MAX_BLOCKS, 1, 1)`, block
//!           `(NUM_THREADS, 1, 1)`.
//! Numerics  exact.
//! Bound     NVLink: `4 * num_rows * width` bytes are stored to each peer.
//! Source    a push between two barriers, as in [`two_shot`](super::two_shot): ranks wait before the
//!           first store, as what is overwritten may still be read, and after the last one.

use crate::all_reduce::MAX_WORLD;
use crate::all_reduce::rank_barrier::RankBarriers;
use crate::all_reduce::two_shot::NUM_THREADS;
use crate::element::{Columns, VEC_ELEMS};
use cuda_std::{prelude::*, unroll};

/// The rank's columns to all ranks.
///
/// # Safety
/// 1. `num_rows` and `out_width` are the same on all ranks; `x` and the first `WORLD` of the `out`
///    hold as many rows, of `width` and of `out_width` elements; `first_column + width <= out_width`.
///    `num_rows * out_width` is less than 2^32.
/// 2. If `aligned` is not 0, rows of x and out and the first column are 16-byte aligned.
/// 3. `rank` is under `WORLD`. `epochs` and the first `WORLD` of the `flags` are those of the ranks'
///    workspaces.
/// 4. All ranks make the same launches that use these workspaces, in the same order; nothing else
///    accesses the `out` between the launches before this one and those after it.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(all_gather_w2 = <2>, all_gather_w4 = <4>, all_gather_w8 = <8>)
)]
pub unsafe fn all_gather<const WORLD: usize>(
    rank: u32,
    num_rows: Global<u32>,
    x: Global<f32>,
    width: u32,
    out_width: u32,
    first_column: u32,
    aligned: u32,
    epochs: GlobalMut<u32>,
    out: [GlobalMut<f32>; MAX_WORLD],
    flags: [GlobalMut<u32>; MAX_WORLD],
) {
    let (block, thread) = (thread::block_idx_x(), thread::thread_idx_x());
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // The same on all ranks, so that blocks without work are in no epoch of any.
    let most_vectors = num_rows * out_width.div_ceil(WORLD as u32).div_ceil(VEC_ELEMS);
    if block * NUM_THREADS >= most_vectors {
        return;
    }
    // SAFETY: `block` is under the number of blocks; all ranks have as many with work.
    let barriers = unsafe { RankBarriers::<WORLD>::begin(rank, epochs, &flags) };
    // Not 0, so that no division panics.
    let row_vectors = width.div_ceil(VEC_ELEMS).max(1);
    let mut vector = block * NUM_THREADS + thread;
    while vector < num_rows * row_vectors {
        let (row, first) = (vector / row_vectors, vector % row_vectors * VEC_ELEMS);
        let columns = Columns::new(first, width, aligned != 0);
        let to = (row * out_width + first_column) as usize;
        // SAFETY: row and columns are inside; they are the rank's.
        unsafe {
            let values = columns.load(x.add((row * width) as usize));
            unroll!(p in 0..WORLD, {
                columns.store(out[p].add(to), values);
            });
        }
        vector += thread::grid_dim_x() * NUM_THREADS;
    }
    // SAFETY: as above.
    unsafe { barriers.end() };
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::AllGather;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::NUM_THREADS;
    use super::all_gather::{Args, Instance};
    use crate::Rows;
    use crate::all_reduce::launcher::{Ranks, padded};
    use crate::all_reduce::rank_barrier::MAX_BLOCKS;
    use crate::element::VEC_ELEMS;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// The columns of all ranks side by side.
    #[derive(Clone, Copy, Debug)]
    pub struct AllGather {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// The rank's columns.
        pub width: usize,
        /// Columns of all ranks together.
        pub out_width: usize,
        /// The first of the rank's columns among them.
        pub first_column: usize,
    }

    impl AllGather {
        /// The launch of this rank; `None` for empty tensors. `out` are the tensors of all ranks,
        /// where this rank's device accesses them, all of them contiguous; `num_rows` points to the
        /// row count on the device.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a `u32`, columns that are not those of `out`, and another
        /// number of tensors than ranks.
        pub fn launch(
            &self,
            ranks: &Ranks,
            num_rows: DevicePtr<u32>,
            x: DevicePtr<f32>,
            out: &[DevicePtr<f32>],
        ) -> Result<Option<Launch>, LaunchError> {
            let &AllGather { max_rows, width, out_width, first_column } = self;
            let world = ranks.world();
            let shape = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
            if out.len() != world {
                return shape("tensors", out.len(), "one for each rank");
            }
            if first_column.saturating_add(width) > out_width {
                return shape("first column", first_column, "one whose columns are inside");
            }
            // All elements have an index.
            arg_u32("elements", max_rows.saturating_mul(out_width))?;
            let row_vectors = out_width.div_ceil(world).div_ceil(VEC_ELEMS as usize);
            let blocks = (max_rows * row_vectors).div_ceil(NUM_THREADS as usize);
            let blocks = blocks.min(MAX_BLOCKS as usize);
            let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, 0)?;
            let own = Rows::new(x, width);
            let columns = out.iter().map(|out| Rows::new(out.add(first_column), out_width));
            let aligned = own.is_aligned() && columns.into_iter().all(|rows| rows.is_aligned());
            let is_right = |instance: Instance| instance.world() == world;
            let instance = Instance::find(is_right).expect("every world has an instance");
            Ok(geometry.map(|geometry| {
                Args {
                    rank: ranks.rank() as u32,
                    num_rows,
                    x,
                    width: width as u32,
                    out_width: out_width as u32,
                    first_column: first_column as u32,
                    aligned: aligned.into(),
                    epochs: ranks.block_epochs(),
                    out: padded(out),
                    flags: ranks.flags(),
                }
                .launch(instance, geometry)
            }))
        }
    }
}
