//! `mma.sync.m16n8k16`, and m16n8k32 of 8-bit elements: one MMA per warp.

use cuda_std::mma::{self, Accumulator, FragmentA, FragmentB, Multiplicand, Multiplicand8};
use cuda_std::{E4m3, E5m2, prelude::*, warp::WARP_SIZE};
use half::{bf16, f16};

/// Rows of A, C and D.
pub const M: u32 = 16;

/// Columns of B, C and D.
pub const N: u32 = 8;

/// Columns of A, rows of B.
pub const K: u32 = 16;

/// Columns of A, rows of B, of 8-bit elements.
pub const K_OF_8_BITS: u32 = 32;

/// Words of a row of A, and of a column of B.
const K_WORDS: u32 = K / 2;

/// The fragments of the block's A, by rows, and B, by columns.
///
/// # Safety
/// 1. Per block, `a` holds `M * K` elements and `b` `K * N`, two to a word; or `M * K_OF_8_BITS`
///    and `K_OF_8_BITS * N`, four to a word.
#[inline(always)]
#[track_caller]
unsafe fn fragments<T>(a: Global<u32>, b: Global<u32>) -> (FragmentA<T>, FragmentB<T>) {
    let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
    let (tile, column) = (thread::block_idx_x() * M, thread::block_idx_x() * N + group);
    // SAFETY: the caller's promise.
    unsafe {
        let a = |row, word: u32| a.get(((tile + group + row) * K_WORDS + pair + word) as usize);
        let b = |word: u32| b.get((column * K_WORDS + pair + word) as usize);
        let words = [a(0, 0), a(8, 0), a(0, 4), a(8, 4)];
        (FragmentA::from_words(words), FragmentB::from_words([b(0), b(4)]))
    }
}

/// `A * B + C` accumulated in f32, one tile per block: `a` is `[num_tiles, M, K]`, `b`
/// `[num_tiles, N, K]`, `c` `[num_tiles, M, N]`; `out` is `[num_tiles, M, num_columns]`, the first
/// columns.
///
/// # Safety
/// 1. One warp per block; the views have these lengths, and `num_columns` is at most `N`.
#[kernel(launch_bounds(WARP_SIZE), instances(mma_f32_f16 = <f16>, mma_f32_bf16 = <bf16>))]
pub unsafe fn mma_f32<T: Multiplicand>(
    num_columns: u32,
    a: Global<u32>,
    b: Global<u32>,
    c: Global<f32>,
    out: GlobalMut<f32>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = fragments::<T>(a, b);
        add_products(num_columns, c, out, |c| mma::m16n8k16(a, b, c));
    }
}

/// [`mma_f32()`] of 8-bit elements: `a` is `[num_tiles, M, K_OF_8_BITS]`, `b` `[num_tiles, N,
/// K_OF_8_BITS]`.
///
/// # Safety
/// 1. One warp per block; the views have these lengths, and `num_columns` is at most `N`.
#[kernel(
    launch_bounds(WARP_SIZE),
    target(sm_90a),
    instances(mma_fp8_e4m3 = <E4m3>, mma_fp8_e5m2 = <E5m2>)
)]
pub unsafe fn mma_fp8<T: Multiplicand8>(
    num_columns: u32,
    a: Global<u32>,
    b: Global<u32>,
    c: Global<f32>,
    out: GlobalMut<f32>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = fragments::<T>(a, b);
        add_products(num_columns, c, out, |c| mma::m16n8k32(a, b, c));
    }
}

/// Writes `multiply` of the block's tile of C.
///
/// # Safety
/// 1. Per block, `c` holds `M * N` elements and `out` `M * num_columns`.
#[inline(always)]
#[track_caller]
unsafe fn add_products(
    num_columns: u32,
    c: Global<f32>,
    out: GlobalMut<f32>,
    multiply: impl FnOnce(Accumulator) -> Accumulator,
) {
    let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
    let row = thread::block_idx_x() * M + group;
    // SAFETY: the elements of the block's tile that are in the lane's fragments.
    unsafe {
        let c = |row: u32| c.get_vec::<2>((row * N + 2 * pair) as usize);
        let ([c0, c1], [c2, c3]) = (c(row), c(row + 8));
        let [d0, d1, d2, d3] = multiply([c0, c1, c2, c3]);
        let elements = [(row, 0, d0), (row, 1, d1), (row + 8, 0, d2), (row + 8, 1, d3)];
        for (row, odd, value) in elements {
            let column = 2 * pair + odd;
            if column < num_columns {
                out.set((row * num_columns + column) as usize, value);
            }
        }
    }
}

/// [`mma_f32()`] of f16, accumulated in f16, all columns; `c` and `out` have two elements per word.
///
/// # Safety
/// 1. One warp per block; the views have these lengths.
#[kernel(launch_bounds(WARP_SIZE))]
pub unsafe fn mma_f16(a: Global<u32>, b: Global<u32>, c: Global<u32>, out: GlobalMut<u32>) {
    let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
    let row = thread::block_idx_x() * M + group;
    let at = |row: u32| (row * (N / 2) + pair) as usize;
    // SAFETY: the elements of the block's tile that are in the lane's fragments.
    unsafe {
        let (a, b) = fragments(a, b);
        let [d0, d1] = mma::m16n8k16_f16(a, b, [c.get(at(row)), c.get(at(row + 8))]);
        out.set(at(row), d0);
        out.set(at(row + 8), d1);
    }
}
