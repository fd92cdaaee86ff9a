//! The matrix product of a tile of the weight with x.

use super::format::{Format, Mins, TILE_STEPS, Tile, UNIT_STEPS, quant_scale};
use super::input::{GROUP_ELEMS, LaneInput};
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
use cuda_std::unroll;
use half::f16;

/// Pairs of MMA steps of a tile.
const PAIRS: usize = TILE_STEPS / 2;

/// A warp's accumulators, rows of the weight by rows of x, divided by [`quant_scale`].
pub type AccTiles<const TILES_M: usize> = [Accumulator; TILES_M];

/// Whether the tiles of rows of x are multiplied one after the other: together they would take more
/// registers than there are.
const fn is_split<F: Format>(tiles_m: usize) -> bool {
    let has_room = match F::MINS {
        Mins::None => false,
        Mins::Floats => F::GROUP_STEPS > 1,
        Mins::Integers => true,
    };
    tiles_m > 1 && !has_room
}

/// Adds the product of a tile of the weight and of x.
///
/// # Safety
/// 1. `x` is the reader of a tile that is copied; the warp is converged.
#[inline(always)]
pub unsafe fn multiply<F: Format, const TILES_M: usize>(
    tile: &Tile<F>,
    x: &LaneInput<TILES_M>,
    acc: &mut AccTiles<TILES_M>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if const { is_split::<F>(TILES_M) } {
            unroll!(unit in 0..4, {
                multiply_rows_in_turn::<F, TILES_M, { 2 * unit }, { 2 * unit + 2 }>(tile, x, acc);
            });
        } else {
            multiply_rows::<F, TILES_M, TILES_M, 0, PAIRS>(tile, x, acc);
        }
    }
}

/// [`multiply`] with one tile of rows of x after the other, in the pairs of MMA steps `FIRST ..
/// END`. Their fragments of A stay in registers.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn multiply_rows_in_turn<
    F: Format,
    const TILES_M: usize,
    const FIRST: usize,
    const END: usize,
>(
    tile: &Tile<F>,
    x: &LaneInput<TILES_M>,
    acc: &mut AccTiles<TILES_M>,
) {
    let mut x = *x;
    // `TILES_M`, but no constant: unrolled, the loop would keep the fragments of all steps.
    for _ in 0..(x.max_rows + TILES_M as u32).min(TILES_M as u32) {
        let mut tile_acc = [acc[0]];
        // SAFETY: the caller's promise.
        unsafe { multiply_rows::<F, TILES_M, 1, FIRST, END>(tile, &x, &mut tile_acc) };
        acc[0] = tile_acc[0];
        acc.rotate_left(1);
        x = x.rotated();
    }
}

/// [`multiply`] with the first `N` tiles of rows of x, in the pairs of MMA steps `FIRST .. END`.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn multiply_rows<
    F: Format,
    const TILES_M: usize,
    const N: usize,
    const FIRST: usize,
    const END: usize,
>(
    tile: &Tile<F>,
    x: &LaneInput<TILES_M>,
    acc: &mut AccTiles<N>,
) {
    let scales = F::unpack(tile.scales);
    let has_row_scales = F::MINS == Mins::Integers;
    let mut k_tile_acc = if has_row_scales { [[0.0; 4]; N] } else { *acc };
    unroll!(pair in 0..PAIRS, {
        if (FIRST..END).contains(&pair) {
            // SAFETY: the caller's promise.
            unsafe {
                multiply_steps::<F, TILES_M, N, { pair as u32 }>(tile, &scales, x, &mut k_tile_acc);
            }
        }
    });
    if !has_row_scales {
        *acc = k_tile_acc;
        return;
    }
    let a = FragmentA::<f16>::from_words(F::min_fragment(&scales));
    // SAFETY: the caller's promise.
    let means = unsafe { x.means::<N>() };
    let mins = means.map(|b| m16n8k16(a, FragmentB::from_words(b), [0.0; 4]));
    for row in 0..2 {
        let [scale, min_scale] = F::row_scale(&scales, row);
        add_scaled(acc, &k_tile_acc, row, scale);
        add_scaled(acc, &mins, row, min_scale * (GROUP_ELEMS / quant_scale::<F>(row)));
    }
}

/// Two adjacent MMA steps: one group or two.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn multiply_steps<F: Format, const TILES_M: usize, const N: usize, const PAIR: u32>(
    tile: &Tile<F>,
    scales: &F::Scales,
    x: &LaneInput<TILES_M>,
    acc: &mut AccTiles<N>,
) {
    // SAFETY: the caller's promise.
    let b = unsafe { x.steps::<PAIR, N>() };
    let mut products = [[0.0; 4]; N];
    for step in 0..2 {
        let at = 2 * PAIR as usize + step;
        let (group, is_first) = (at / F::GROUP_STEPS, at.is_multiple_of(F::GROUP_STEPS));
        let is_last = (at + 1).is_multiple_of(F::GROUP_STEPS);
        if is_first {
            products = [[0.0; 4]; N];
            if F::MINS != Mins::Integers {
                // SAFETY: the caller's promise.
                let group_sums = unsafe { x.group_sums::<N>(group) }.map(in_rows::<F>);
                if F::MINS == Mins::None {
                    products = group_sums;
                } else {
                    for row in 0..2 {
                        let [_, min] = F::group_scale(scales, row, group);
                        add_scaled(acc, &group_sums, row, min);
                    }
                }
            }
        }
        let a = F::fragment(&tile.units[at / UNIT_STEPS], at % UNIT_STEPS);
        let a = FragmentA::<f16>::from_words(a);
        for tile_m in 0..N {
            let b = FragmentB::from_words([b[tile_m][2 * step], b[tile_m][2 * step + 1]]);
            products[tile_m] = m16n8k16(a, b, products[tile_m]);
        }
        if is_last {
            for row in 0..2 {
                let [scale, _] = F::group_scale(scales, row, group);
                add_scaled(acc, &products, row, scale);
            }
        }
    }
}

/// The sums of a group in the lane's two columns, for both of its rows.
#[inline(always)]
fn in_rows<F: Format>([a, b]: [f32; 2]) -> Accumulator {
    [a, b, a * F::LOWER_ROW, b * F::LOWER_ROW]
}

/// Adds `scale * terms` in row `row` of the lane.
#[inline(always)]
fn add_scaled<const N: usize>(acc: &mut AccTiles<N>, terms: &AccTiles<N>, row: usize, scale: f32) {
    for tile_m in 0..N {
        for column in 2 * row..2 * row + 2 {
            let sum = &mut acc[tile_m][column];
            *sum = math::fma(terms[tile_m][column], scale, *sum);
        }
    }
}
