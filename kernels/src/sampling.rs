//! Argmax: `out[r]` is the smallest index of the largest `x[r, :]`; NaN is smaller than everything.
//!
//! Shapes    x `[num_rows, vocab_size]` with a row stride; out `[num_rows]` u32; f32.
//!           partial results `[max_rows, grid_dim_y, 2]` u32; counters `[max_rows]`, zeros before
//!           and after.
//! Launch    grid `(max_rows, vocab_size / BLOCK_COLUMNS, 1)`, block `(NUM_THREADS, 1, 1)`: a block
//!           has all its loads in flight at once; a row's last block finds the best of all.
//! Numerics  exact, the same whatever the order.
//! Bound     memory: `4 * num_rows * vocab_size` bytes.

use crate::tile::last_block::is_last;
use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 1024;

/// Warps of a block: as many as a warp has lanes, so that one warp reduces their results.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;
const _: () = assert!(NUM_WARPS == warp::WARP_SIZE);

/// Loads of a thread in flight.
const UNROLL: u32 = 8;

/// Columns of a block.
const BLOCK_COLUMNS: u32 = UNROLL * NUM_THREADS;

/// A number that orders as the logits do: 0 for NaN, and from there up; equal for both zeros.
fn order_key(value: f32) -> u32 {
    // The sum turns -0.0 into 0.0.
    let bits = (value + 0.0).to_bits();
    if value.is_nan() {
        0
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// The best logit so far.
#[derive(Clone, Copy)]
struct Best {
    key: u32,
    index: u32,
}

impl Best {
    /// Worse than every logit.
    const NONE: Best = Best { key: 0, index: u32::MAX };

    /// The better of two: the larger key, then the smaller index.
    fn or(self, other: Best) -> Best {
        let other_wins =
            other.key > self.key || (other.key == self.key && other.index < self.index);
        if other_wins { other } else { self }
    }

    /// The best of the warp's lanes, in every lane.
    fn reduce_warp(mut self) -> Best {
        let mut lane_mask = warp::WARP_SIZE / 2;
        while lane_mask > 0 {
            self = self.or(Best {
                key: warp::shuffle_xor(self.key, lane_mask),
                index: warp::shuffle_xor(self.index, lane_mask),
            });
            lane_mask /= 2;
        }
        self
    }
}

/// `BLOCK_COLUMNS` of a row a block.
///
/// # Safety
/// 1. `num_rows` is one element; `x` holds that many rows of `vocab_size` (not 0) elements at its
///    stride, `out` that many, `partials` as many of `2 * grid_dim_y`; `counters` are as many zeros.
/// 2. The grid has the columns of a row, and no block without any.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn argmax_f32(
    num_rows: Global<u32>,
    vocab_size: u32,
    x: Global<f32>,
    x_stride: u32,
    partials: GlobalMut<u32>,
    counters: GlobalMut<u32>,
    out: GlobalMut<u32>,
) {
    let row = thread::block_idx_x() as usize;
    let (block, num_blocks) = (thread::block_idx_y(), thread::grid_dim_y());
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` is inside by the check, columns by the loops' bounds. The arrays hold one
    // element a warp; each is written before the barrier and only read behind it.
    unsafe {
        if row >= num_rows.get(0) as usize {
            return;
        }
        let x = x.add(row * x_stride as usize);
        let first = block * BLOCK_COLUMNS + thread::thread_idx_x();
        let mut values = [f32::NAN; UNROLL as usize];
        unroll!(step in 0..UNROLL as usize, {
            let column = first + step as u32 * NUM_THREADS;
            if column < vocab_size {
                values[step] = x.get(column as usize);
            }
        });
        let mut best = Best::NONE;
        unroll!(step in 0..UNROLL as usize, {
            let index = first + step as u32 * NUM_THREADS;
            best = best.or(Best { key: order_key(values[step]), index });
        });

        let keys = shared_array![u32; NUM_WARPS as usize];
        let indices = shared_array![u32; NUM_WARPS as usize];
        let flag = shared_array![u32; 1];
        best = best.reduce_warp();
        if warp::lane_id() == 0 {
            keys.set(warp::warp_idx(), best.key);
            indices.set(warp::warp_idx(), best.index);
        }
        thread::sync_threads();
        let lane_id = warp::lane_id();
        let partials = partials.add(2 * row * num_blocks as usize);
        if warp::warp_idx() == 0 {
            best = Best { key: keys.get(lane_id), index: indices.get(lane_id) }.reduce_warp();
            if lane_id == 0 {
                partials.set_vec(2 * block as usize, [best.key, best.index]);
            }
        }
        if !is_last(counters, row, num_blocks, flag) || warp::warp_idx() > 0 {
            return;
        }
        let mut best = Best::NONE;
        let mut i = lane_id;
        while i < num_blocks {
            let [key, index] = partials.get_vec(2 * i as usize);
            best = best.or(Best { key, index });
            i += warp::WARP_SIZE;
        }
        best = best.reduce_warp();
        if lane_id == 0 {
            out.set(row, best.index);
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{Argmax, ArgmaxWorkspace};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{BLOCK_COLUMNS, NUM_THREADS, argmax_f32};
    use crate::Rows;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};

    /// Largest vocabulary: blocks of a row are a grid's y.
    const MAX_VOCAB_SIZE: usize = Geometry::MAX_GRID[1] * BLOCK_COLUMNS as usize;

    /// What the launch needs for itself, and leaves to the next one as it was.
    #[derive(Clone, Copy, Debug)]
    pub struct ArgmaxWorkspace {
        /// Room for [`Argmax::num_partials`], at a multiple of 8 bytes.
        pub partials: DevicePtr<u32>,
        /// [`Argmax::num_counters`] zeros.
        pub counters: DevicePtr<u32>,
    }

    /// Index of the largest element of each row.
    #[derive(Clone, Copy, Debug)]
    pub struct Argmax {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub vocab_size: usize,
    }

    impl Argmax {
        /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows.
        ///
        /// # Errors
        /// [`LaunchError`] for an empty row, and for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<f32>,
            workspace: &ArgmaxWorkspace,
            out: DevicePtr<u32>,
        ) -> Result<Option<Launch>, LaunchError> {
            if self.vocab_size == 0 || self.vocab_size > MAX_VOCAB_SIZE {
                return Err(LaunchError::Shape {
                    what: "vocab_size",
                    value: self.vocab_size,
                    expected: "from 1 to 536862720",
                });
            }
            let x_stride = x.stride_arg()?;
            let grid = [self.max_rows, self.blocks(), 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            Ok(geometry.map(|geometry| {
                argmax_f32::launch(
                    geometry,
                    num_rows,
                    self.vocab_size as u32,
                    x.ptr,
                    x_stride,
                    workspace.partials,
                    workspace.counters,
                    out,
                )
            }))
        }

        /// Elements of partial results.
        pub fn num_partials(&self) -> usize {
            2 * self.max_rows * self.blocks()
        }

        /// Counters.
        pub fn num_counters(&self) -> usize {
            self.max_rows
        }

        /// Blocks of a row.
        fn blocks(&self) -> usize {
            self.vocab_size.div_ceil(BLOCK_COLUMNS as usize)
        }
    }
}
