//! Heads that are normalised before the rotation: neighbouring lanes of a warp take one.

use crate::element::{Columns, Number, VEC_ELEMS};
use crate::qk_norm::{normed, scales};
use crate::rms_norm::{Vector, lane_square_sum};
use crate::rope::rotate;
use cuda_std::prelude::*;

/// A head of Q, K or V, of which a lane takes two vectors.
pub struct Head<T> {
    pub row: Global<T>,
    /// Whether there is one; of others nothing is loaded.
    pub exists: bool,
    /// The norm's, of Q or K; V is as it is.
    pub weight: Option<Global<f32>>,
    pub head_dim: u32,
    pub rotary_dim: u32,
    /// The lane, of the head's `lanes`.
    pub lane: u32,
    pub lanes: u32,
    pub aligned: bool,
}

impl<T: Number> Head<T> {
    /// The lane's columns and what is stored there. All lanes have loaded before any returns.
    ///
    /// # Safety
    /// 1. The whole warp calls this, `lanes` neighbours with one head, a power of two that is
    ///    [`Vectors::lanes`](super::Vectors::lanes).
    /// 2. If the head exists, `row` and `weight` hold `head_dim` elements, `angles`
    ///    `rotary_dim`, all 16-byte aligned if `aligned`; no other warp writes `row`.
    #[inline(always)]
    pub unsafe fn load(&self, angles: Global<f32>, eps: f32) -> ([Columns; 2], [Vector; 2]) {
        let &Head { row, exists, weight, head_dim, rotary_dim, lane, lanes, aligned } = self;
        let half = rotary_dim / 2;

        // 1. The sum, of vectors as rms_norm's lanes have them: its first step is within a lane.
        let step = (head_dim.div_ceil(VEC_ELEMS).next_power_of_two() / 2).max(1);
        let width = if exists && lane < step { head_dim } else { 0 };
        let mut columns = [
            Columns::new(lane * VEC_ELEMS, width, aligned),
            Columns::new((lane + step) * VEC_ELEMS, width, aligned),
        ];
        // SAFETY: the caller's promise.
        unsafe {
            let mut values = [columns[0].load(row), columns[1].load(row)];
            let square_sum = lane_square_sum(&values[0]) + lane_square_sum(&values[1]);
            let [scale] = scales([square_sum], lanes, head_dim, eps);
            warp::sync_warp();
            let Some(weight) = weight.filter(|_| exists) else {
                return (columns, values);
            };

            // 2. Pairs, which are those vectors if all columns are rotated; a vector of the rest.
            let pairs = half.div_ceil(VEC_ELEMS);
            let is_rotated = lane < pairs;
            if half != step * VEC_ELEMS {
                let aligned = aligned && half.is_multiple_of(VEC_ELEMS);
                let [first, second, end] = if is_rotated {
                    [lane * VEC_ELEMS, half + lane * VEC_ELEMS, half]
                } else {
                    [rotary_dim + (lane - pairs) * VEC_ELEMS, rotary_dim, head_dim]
                };
                columns =
                    [Columns::new(first, end, aligned), Columns::new(second, rotary_dim, aligned)];
                values = [columns[0].load(row), columns[1].load(row)];
            }
            unroll!(i in 0..2, {
                let weights = columns[i].load(weight);
                for column in 0..VEC_ELEMS as usize {
                    values[i][column] = normed::<T>(values[i][column], weights[column], scale);
                }
            });
            if is_rotated {
                let (cos, sin) = (columns[0].load(angles), columns[1].load(angles));
                for i in 0..VEC_ELEMS as usize {
                    [values[0][i], values[1][i]] =
                        rotate([values[0][i], values[1][i]], [cos[i], sin[i]]);
                }
            }
            (columns, values)
        }
    }
}

/// Stores both vectors.
///
/// # Safety
/// As [`Columns::store`].
#[inline(always)]
pub unsafe fn store<C: Number>(row: GlobalMut<C>, columns: [Columns; 2], values: [Vector; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        columns[0].store(row, values[0]);
        columns[1].store(row, values[1]);
    }
}
