//! The Hadamard rotation of a block of 32 columns: `y[i] = sum_j (-1)^popcount(i & j) x[j] /
//! sqrt(32)`, its own inverse.
//!
//! It spreads an outlier over its block, whose 4-bit quants then keep more of the other columns.
//! Scores stay what they are when Q is rotated as K is.

use super::format::BLOCK_COLUMNS;
use crate::element::VEC_ELEMS;
use core::f32::consts::FRAC_1_SQRT_2;
use cuda_std::prelude::*;

const _: () = assert!(BLOCK_COLUMNS == warp::WARP_SIZE && BLOCK_COLUMNS == 4 * VEC_ELEMS);

/// `1 / sqrt(32)`.
const SCALE: f32 = FRAC_1_SQRT_2 / 4.0;

/// Adds the column whose lane differs in `bit`, or is subtracted from it.
#[inline(always)]
fn combine_lanes(value: f32, bit: u32) -> f32 {
    let other = warp::shuffle_xor(value, bit);
    if warp::lane_id() & bit == 0 { value + other } else { other - value }
}

/// The rotated block, a column a lane; the whole warp calls this.
#[inline(always)]
pub(super) fn rotate_lanes(mut value: f32) -> f32 {
    unroll!(bit in 0..5, {
        value = combine_lanes(value, 1 << bit);
    });
    value * SCALE
}

/// The rotated block, of which four adjacent lanes have eight columns each, in order; the whole
/// warp calls this.
#[inline(always)]
pub(crate) fn rotate_vectors(mut values: [f32; VEC_ELEMS as usize]) -> [f32; VEC_ELEMS as usize] {
    unroll!(bit in 0..3, {
        values = core::array::from_fn(|i| {
            let (low, high) = (values[i & !(1 << bit)], values[i | 1 << bit]);
            if i >> bit & 1 == 0 { low + high } else { low - high }
        });
    });
    values.map(|value| combine_lanes(combine_lanes(value, 1), 2) * SCALE)
}
