//! The FMA mainloop of small batches, for f32: a warp accumulates some columns of every row.

use cuda_std::prelude::*;

/// Elements of a row that one load of a warp covers: 16 bytes a lane.
pub const WARP_ELEMS: u32 = 4 * warp::WARP_SIZE;

/// Accumulates `STEPS` loads of each row of b, the lane's first at element `first`.
///
/// # Safety
/// 1. `first + STEPS * WARP_ELEMS` is at most the length of the rows, for this lane.
#[inline(always)]
pub unsafe fn accumulate<const ROWS: usize, const COLUMNS: usize, const STEPS: usize>(
    a: &[Global<f32>; ROWS],
    b: &[Global<f32>; COLUMNS],
    first: u32,
    acc: &mut [[f32; COLUMNS]; ROWS],
) {
    let mut weights = [[[0.0; 4]; COLUMNS]; STEPS];
    // SAFETY: the caller's promise.
    unsafe {
        for step in 0..STEPS {
            for column in 0..COLUMNS {
                let at = (first + step as u32 * WARP_ELEMS) as usize;
                weights[step][column] = b[column].stream_vec(at);
            }
        }
        unroll!(step in 0..STEPS, {
            accumulate_step(a, &weights[step], (first + step as u32 * WARP_ELEMS) as usize, acc);
        });
    }
}

/// Accumulates elements `at .. at + 4` of each row of a times `weights`.
///
/// # Safety
/// 1. `at + 4` is at most the length of the rows.
#[inline(always)]
unsafe fn accumulate_step<const ROWS: usize, const COLUMNS: usize>(
    a: &[Global<f32>; ROWS],
    weights: &[[f32; 4]; COLUMNS],
    at: usize,
    acc: &mut [[f32; COLUMNS]; ROWS],
) {
    unroll!(row in 0..ROWS, {
        // SAFETY: the caller's promise.
        let x = unsafe { a[row].get_vec::<4>(at) };
        for column in 0..COLUMNS {
            for k in 0..4 {
                acc[row][column] = math::fma(x[k], weights[column][k], acc[row][column]);
            }
        }
    });
}
