//! QK-norm: RMSNorm of each head of Q and K, as part of the kernels that rotate them. The bits are
//! those of [`rms_norm`] of groups of `head_dim` columns: lanes sum the squares of the same
//! columns, and in the same order; heads are rounded before the rotation.
//!
//! [`rms_norm`]: crate::rms_norm

use crate::element::{Columns, Number, VEC_ELEMS};
use crate::rms_norm::{SEGMENT_ELEMS, Vector, lane_square_sum, scale};
use cuda_std::prelude::*;

/// Most columns of a head, which a warp sums at once.
pub const MAX_HEAD_DIM: usize = SEGMENT_ELEMS as usize;

/// The weights of a norm of Q and of K, and what is added to the mean of squares; null without.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub q: Global<f32>,
    pub k: Global<f32>,
    pub eps: f32,
}

/// Vector `index` of the columns of `head`; zeros past its end.
///
/// # Safety
/// 1. `head` holds `head_dim` elements, which no other thread writes.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn load_vector<T: Number>(head: Global<T>, index: u32, head_dim: u32) -> Vector {
    let is_aligned = (head.address() as u32).is_multiple_of(16);
    // SAFETY: the caller's promise.
    unsafe { Columns::new(index * VEC_ELEMS, head_dim, is_aligned).load(head) }
}

/// The scales of heads of `head_dim` columns, in all of the `lanes` neighbouring lanes (a power of
/// two) that have the square sums of their vectors, or zeros. The whole warp calls this.
#[inline(always)]
pub(crate) fn scales<const N: usize>(
    mut square_sums: [f32; N],
    lanes: u32,
    head_dim: u32,
    eps: f32,
) -> [f32; N] {
    let mut lane_mask = lanes / 2;
    while lane_mask > 0 {
        // The shuffles of the heads interleave.
        for i in 0..N {
            square_sums[i] += warp::shuffle_xor(square_sums[i], lane_mask);
        }
        lane_mask /= 2;
    }
    let reciprocal = 1.0 / head_dim as f32;
    square_sums.map(|sum| scale(sum, reciprocal, eps))
}

/// The scale of `head`, which the whole warp has.
///
/// # Safety
/// As [`load_vector`].
#[inline(always)]
pub(crate) unsafe fn scale_of<T: Number>(head: Global<T>, head_dim: u32, eps: f32) -> f32 {
    // SAFETY: the caller's promise.
    let vector = unsafe { load_vector(head, warp::lane_id(), head_dim) };
    scales([lane_square_sum(&vector)], warp::WARP_SIZE, head_dim, eps)[0]
}

/// An element after the norm, rounded to `T` as if it were stored.
#[inline(always)]
pub(crate) fn normed<T: Number>(value: f32, weight: f32, scale: f32) -> f32 {
    T::from_f32(value * weight * scale).to_f32()
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::QkNorm;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use cuda_std::launch::DevicePtr;

    /// The operands of a norm of the heads of Q and K.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct QkNorm {
        /// `[head_dim]`.
        pub q: DevicePtr<f32>,
        /// `[head_dim]`.
        pub k: DevicePtr<f32>,
        /// Added to the mean of squares.
        pub eps: f32,
    }

    impl QkNorm {
        /// No norm: null pointers.
        pub const NONE: Self = QkNorm { q: DevicePtr::null(), k: DevicePtr::null(), eps: 0.0 };

        /// Whether there is none.
        pub fn is_none(&self) -> bool {
            self.q.0 == 0
        }
    }
}
