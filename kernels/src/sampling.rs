//! Argmax: `out[r]` is the smallest index of the largest `x[r, :]`. A row with a NaN or a positive
//! infinity, or of negative infinities alone, has no token: `out[r]` says so instead.
//!
//! Shapes    x `[num_rows, vocab_size]` with a row stride; out `[num_rows]` u32; f32.
//!           Workspace: partial results `[max_rows, grid_dim_y, 2]` u32; counters `[max_rows]`,
//!           zeros before and after.
//! Launch    grid `(max_rows, vocab_size / BLOCK_COLUMNS, 1)`, block `(NUM_THREADS, 1, 1)`; a block
//!           issues all its loads at once; the last block of a row to finish reduces the partials.
//! Numerics  exact, independent of the order.
//! Bound     memory: `4 * num_rows * vocab_size` bytes.

use crate::tile::last_block::is_last;
use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 1024;

/// Warps of a block: one for each lane of the warp that reduces their results.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;
const _: () = assert!(NUM_WARPS == warp::WARP_SIZE);

/// Loads of a thread in flight.
const UNROLL: u32 = 8;

/// Columns of a block.
const BLOCK_COLUMNS: u32 = UNROLL * NUM_THREADS;

/// Flag of an output: the other bits are the index of the first logit that is NaN or infinity.
const NOT_FINITE: u32 = 1 << 31;

/// The output of a row of negative infinities.
const NO_CANDIDATE: u32 = u32::MAX;

/// Key of NaN and infinity: above every finite one, so that they are always found.
const NOT_FINITE_KEY: u32 = u32::MAX;

/// Key of negative infinity: below every finite one.
const NO_CANDIDATE_KEY: u32 = 0;

/// Maps a logit to an integer of the same order; both zeros are equal.
fn order_key(value: f32) -> u32 {
    // The addition turns -0.0 into 0.0.
    let bits = (value + 0.0).to_bits();
    if value.is_nan() || value == f32::INFINITY {
        NOT_FINITE_KEY
    } else if value == f32::NEG_INFINITY {
        NO_CANDIDATE_KEY
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
    const NONE: Best = Best { key: NO_CANDIDATE_KEY, index: u32::MAX };

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

    /// The output for the row that this is the best of.
    fn output(self) -> u32 {
        match self.key {
            NO_CANDIDATE_KEY => NO_CANDIDATE,
            NOT_FINITE_KEY => NOT_FINITE | self.index,
            _ => self.index,
        }
    }
}

/// A block takes `BLOCK_COLUMNS` columns of a row.
///
/// # Safety
/// 1. `num_rows` is one element; `x` holds that many rows of `vocab_size` (not 0) elements at its
///    stride, `out` that many, `partials` as many of `2 * grid_dim_y`; `counters` are as many
///    zeros.
/// 2. The grid covers the columns of a row, and every block has at least one.
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
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` is inside by the check, columns by the loops' bounds. The arrays hold one
    // element a warp; each is written before the barrier and only read after it.
    unsafe {
        if row >= num_rows as usize {
            return;
        }
        let x = x.add(row * x_stride as usize);
        let first = block * BLOCK_COLUMNS + thread::thread_idx_x();
        let mut values = [f32::NEG_INFINITY; UNROLL as usize];
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
            out.set(row, best.output());
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{Argmax, ArgmaxWorkspace, NextToken};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{BLOCK_COLUMNS, NO_CANDIDATE, NOT_FINITE, NUM_THREADS, argmax_f32};
    use crate::Rows;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};

    /// Largest vocabulary: the blocks of a row are the grid's y dimension.
    const MAX_VOCAB_SIZE: usize = Geometry::MAX_GRID[1] * BLOCK_COLUMNS as usize;
    const _: () = assert!(MAX_VOCAB_SIZE < NOT_FINITE as usize);

    /// The result of argmax for a row of logits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NextToken {
        /// The smallest index of the largest logit.
        Token(u32),
        /// The smallest index of a logit that is NaN or positive infinity.
        NotFinite(u32),
        /// Every logit is negative infinity.
        NoCandidate,
    }

    impl NextToken {
        /// Decodes an output of [`Argmax`].
        #[must_use]
        pub fn of_output(output: u32) -> Self {
            match output {
                NO_CANDIDATE => NextToken::NoCandidate,
                _ if output & NOT_FINITE != 0 => NextToken::NotFinite(output & !NOT_FINITE),
                _ => NextToken::Token(output),
            }
        }
    }

    /// Workspace of the launch, which leaves it ready for the next one.
    #[derive(Clone, Copy, Debug)]
    pub struct ArgmaxWorkspace {
        /// Room for [`Argmax::num_partials`], at a multiple of 8 bytes.
        pub partials: DevicePtr<u32>,
        /// [`Argmax::num_counters`] zeros.
        pub counters: DevicePtr<u32>,
    }

    /// Index of the largest element of each row: [`NextToken::of_output`] reads the outputs.
    #[derive(Clone, Copy, Debug)]
    pub struct Argmax {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub vocab_size: usize,
    }

    impl Argmax {
        /// The launch, or `None` if there are no rows. `num_rows` points to the row count on the
        /// device.
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
                argmax_f32::Args {
                    num_rows,
                    vocab_size: self.vocab_size as u32,
                    x: x.ptr,
                    x_stride,
                    partials: workspace.partials,
                    counters: workspace.counters,
                    out,
                }
                .launch(geometry)
            }))
        }

        /// `u32` elements of [`ArgmaxWorkspace::partials`].
        pub fn num_partials(&self) -> usize {
            2 * self.max_rows * self.blocks()
        }

        /// Elements of [`ArgmaxWorkspace::counters`].
        pub fn num_counters(&self) -> usize {
            self.max_rows
        }

        /// Blocks of a row.
        fn blocks(&self) -> usize {
            self.vocab_size.div_ceil(BLOCK_COLUMNS as usize)
        }
    }
}
