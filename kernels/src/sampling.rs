//! Argmax: `out[r]` is the smallest index of the largest `x[r, :]`; NaN is smaller than everything.
//!
//! Shapes    x `[num_rows, vocab_size]` with a row stride; out `[num_rows]` u32; f32.
//! Launch    grid `(max_rows, 1, 1)`, block `(NUM_THREADS, 1, 1)`: a row of 152k logits is 149
//!           loads a thread, several in flight; more blocks a row would need a second pass.
//! Numerics  exact, the same whatever the order.
//! Bound     memory: `4 * num_rows * vocab_size` bytes, from one SM a row.

use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 1024;

/// Warps of a block: as many as a warp has lanes, so that one warp reduces their results.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;
const _: () = assert!(NUM_WARPS == warp::WARP_SIZE);

/// Loads of a thread in flight.
const UNROLL: u32 = 8;

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

/// One row a block.
///
/// # Safety
/// 1. `num_rows` is one element; `x` holds that many rows of `vocab_size` (not 0) elements at its
///    stride, `out` that many.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn argmax_f32(
    num_rows: Global<u32>,
    vocab_size: u32,
    x: Global<f32>,
    x_stride: u32,
    out: GlobalMut<u32>,
) {
    let row = thread::block_idx_x() as usize;
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` is inside by the check, columns by the loops' bounds. The arrays hold one
    // element a warp; each is written before the barrier and only read behind it.
    unsafe {
        if row >= num_rows.get(0) as usize {
            return;
        }
        let x = x.add(row * x_stride as usize);
        let mut best = Best { key: 0, index: u32::MAX };
        let mut i = thread::thread_idx_x();
        while i < vocab_size {
            let mut values = [f32::NAN; UNROLL as usize];
            for (step, value) in values.iter_mut().enumerate() {
                let column = i + step as u32 * NUM_THREADS;
                if column < vocab_size {
                    *value = x.get(column as usize);
                }
            }
            for (step, &value) in values.iter().enumerate() {
                let index = i + step as u32 * NUM_THREADS;
                best = best.or(Best { key: order_key(value), index });
            }
            i += UNROLL * NUM_THREADS;
        }

        let keys = shared_array![u32; NUM_WARPS as usize];
        let indices = shared_array![u32; NUM_WARPS as usize];
        best = best.reduce_warp();
        if warp::lane_id() == 0 {
            keys.set(warp::warp_idx(), best.key);
            indices.set(warp::warp_idx(), best.index);
        }
        thread::sync_threads();
        if warp::warp_idx() == 0 {
            let lane_id = warp::lane_id();
            best = Best { key: keys.get(lane_id), index: indices.get(lane_id) }.reduce_warp();
            if lane_id == 0 {
                out.set(row, best.index);
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Argmax;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, UNROLL, argmax_f32};
    use crate::Rows;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};

    /// Largest vocabulary: the last round of loads stays inside a `u32`.
    const MAX_VOCAB_SIZE: usize = u32::MAX as usize - (UNROLL * NUM_THREADS) as usize;

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
            out: DevicePtr<u32>,
        ) -> Result<Option<Launch>, LaunchError> {
            if self.vocab_size == 0 || self.vocab_size > MAX_VOCAB_SIZE {
                return Err(LaunchError::Shape {
                    what: "vocab_size",
                    value: self.vocab_size,
                    expected: "from 1 to 4294959103",
                });
            }
            let x_stride = x.stride_arg()?;
            let geometry = Geometry::new([self.max_rows, 1, 1], NUM_THREADS as usize, 0)?;
            Ok(geometry.map(|geometry| {
                argmax_f32::launch(geometry, num_rows, self.vocab_size as u32, x.ptr, x_stride, out)
            }))
        }
    }
}
