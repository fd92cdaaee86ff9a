//! `ldmatrix` and `stmatrix`: 8 x 8 matrices between shared memory and a warp's registers;
//! `movmatrix`.

use cuda_std::prelude::*;
use cuda_std::{matrix, warp::WARP_SIZE};

/// Words of a row of a matrix: 8 elements of 16 bits.
const ROW_WORDS: u32 = 4;

/// Rows of four matrices.
pub const NUM_ROWS: u32 = 32;

/// Words of a lane: one, two and four matrices, then one, two and four transposed matrices.
pub const NUM_WORDS: u32 = 14;

/// Words of a lane that are loaded, and one that is transposed in registers.
pub const NUM_LOADED_WORDS: u32 = NUM_WORDS + 1;

/// Rows that all forms of `stmatrix` write.
pub const NUM_STORED_ROWS: u32 = 2 * (8 + 16 + 32);

/// Each lane passes the address of row `rows[lane]` and writes the result of every form, and the
/// first matrix transposed: `x` is `[NUM_ROWS, 8]` of 16 bits, `rows` `[32]`, `out` `[32,
/// NUM_LOADED_WORDS]`.
///
/// # Safety
/// 1. One warp; the views have these lengths, and rows below `NUM_ROWS`.
#[kernel(launch_bounds(WARP_SIZE))]
pub unsafe fn matrix_load(x: Global<u32>, rows: Global<u32>, out: GlobalMut<u32>) {
    let lane = warp::lane_id();
    // SAFETY: initialised rows of shared memory; `NUM_LOADED_WORDS` words per lane.
    unsafe {
        let smem = shared_array![u32; (NUM_ROWS * ROW_WORDS) as usize];
        smem.set_vec(lane * ROW_WORDS, x.get_vec::<4>((lane * ROW_WORDS) as usize));
        warp::sync_warp();
        let row = smem.offset(rows.get(lane as usize) * ROW_WORDS);
        let [a] = matrix::load_x1(row);
        let [b, c] = matrix::load_x2(row);
        let [d, e, f, g] = matrix::load_x4(row);
        let [h] = matrix::load_x1_trans(row);
        let [i, j] = matrix::load_x2_trans(row);
        let [k, l, m, n] = matrix::load_x4_trans(row);
        let words = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, matrix::transpose(a)];
        for (at, word) in words.into_iter().enumerate() {
            out.set((lane * NUM_LOADED_WORDS) as usize + at, word);
        }
    }
}

/// The row, of `count`, whose address lane `lane` passes.
#[inline(always)]
pub const fn stored_row(lane: u32, count: u32) -> u32 {
    (5 * lane + 3) % count
}

/// Each lane passes its words to every form; the forms write consecutive rows: `x` is `[32,
/// NUM_WORDS]`, `out` `[NUM_STORED_ROWS, 8]` of 16 bits.
///
/// # Safety
/// 1. One warp; the views have these lengths.
#[kernel(launch_bounds(WARP_SIZE), target(sm_90a))]
pub unsafe fn matrix_store(x: Global<u32>, out: GlobalMut<u32>) {
    let lane = warp::lane_id();
    let word = |at: u32| {
        // SAFETY: `NUM_WORDS` words per lane.
        unsafe { x.get((lane * NUM_WORDS + at) as usize) }
    };
    // SAFETY: each form writes its own rows.
    unsafe {
        let smem = shared_array![u32; (NUM_STORED_ROWS * ROW_WORDS) as usize];
        let row = |first: u32, count| smem.offset((first + stored_row(lane, count)) * ROW_WORDS);
        matrix::store_x1(row(0, 8), [word(0)]);
        matrix::store_x2(row(8, 16), [word(1), word(2)]);
        matrix::store_x4(row(24, 32), [word(3), word(4), word(5), word(6)]);
        matrix::store_x1_trans(row(56, 8), [word(7)]);
        matrix::store_x2_trans(row(64, 16), [word(8), word(9)]);
        matrix::store_x4_trans(row(80, 32), [word(10), word(11), word(12), word(13)]);
        warp::sync_warp();
        let mut i = lane;
        while i < NUM_STORED_ROWS * ROW_WORDS {
            out.set(i as usize, smem.get(i));
            i += WARP_SIZE;
        }
    }
}
