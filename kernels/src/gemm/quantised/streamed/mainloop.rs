//! The matrix product of a tile of the weight in shared memory with x in registers.

use super::super::format::{FactoredFormat, MEAN_REST, UNIT_STEPS, quant_scale};
use super::super::mainloop::Sums;
use super::input::InputTile;
use cuda_std::mma::{FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
use cuda_std::unroll;
use half::f16;

/// The product of a tile of the weight and of x, added to what `acc` loads: late, for there are no
/// registers for it before.
///
/// # Safety
/// 1. `tile` is a tile; the warp is converged.
#[inline(always)]
pub unsafe fn multiply<F: FactoredFormat, const TILES_M: usize, const ONE_ROW: bool>(
    tile: Shared<u8>,
    x: &InputTile<TILES_M>,
    acc: impl FnOnce() -> Sums<TILES_M>,
) -> Sums<TILES_M> {
    // SAFETY: the caller's promise.
    let scales = F::unpack(unsafe { F::load_scales(tile) });
    let mut sums = [[0.0; 4]; TILES_M];
    // Of one row: products of even steps, and of odd ones.
    let mut products = [[0.0; 4]; 2];
    unroll!(unit in 0..4, {
        // SAFETY: the caller's promise.
        let quants = unsafe {
            F::load_unit(tile.offset(F::SCALE_BYTES + unit as u32 * F::UNIT_BYTES))
        };
        if ONE_ROW {
            unroll!(step in 0..4, {
                let a = FragmentA::<f16>::from_words(F::fragment(&quants, step));
                let b = FragmentB::from_words(x.step::<{ 4 * unit + step }>(0));
                products[step % 2] = m16n8k16(a, b, products[step % 2]);
            });
        } else {
            multiply_steps::<F, TILES_M, { 4 * unit }, { 4 * unit + 1 }>(
                &quants, &scales, x, &mut sums,
            );
            multiply_steps::<F, TILES_M, { 4 * unit + 2 }, { 4 * unit + 3 }>(
                &quants, &scales, x, &mut sums,
            );
        }
    });
    if ONE_ROW {
        sums[0] = scaled_columns::<F>(products, &scales);
    }
    let a = FragmentA::<f16>::from_words(F::mean_fragment(&scales));
    let mut acc = acc();
    for tile_m in 0..TILES_M {
        let [means, rests] = x.means[tile_m].map(FragmentB::from_words);
        let terms = m16n8k16(a, rests, [0.0; 4]).map(|rest| rest * (1.0 / MEAN_REST));
        let terms = m16n8k16(a, means, terms);
        for row in 0..2 {
            let [scale, mean_scale] = F::row_factors(&scales, row);
            for i in 2 * row..2 * row + 2 {
                let sum = math::fma(sums[tile_m][i], scale * quant_scale::<F>(row), acc[tile_m][i]);
                acc[tile_m][i] = math::fma(terms[i], mean_scale, sum);
            }
        }
    }
    acc
}

/// Products of groups in columns of their own, of even steps and of odd ones, times their scales.
#[inline(always)]
fn scaled_columns<F: FactoredFormat>(products: [[f32; 4]; 2], scales: &F::Scales) -> [f32; 4] {
    let [even, odd] = products;
    let mut sums = [0.0; 4];
    for row in 0..2 {
        let even_scales = F::column_scales(scales, row, 0);
        let odd_scales = F::column_scales(scales, row, 1);
        for column in 0..2 {
            let i = 2 * row + column;
            sums[i] = if F::GROUP_STEPS == 2 {
                (even[i] + odd[i]) * even_scales[column]
            } else {
                math::fma(even[i], even_scales[column], odd[i] * odd_scales[column])
            };
        }
    }
    sums
}

/// The sums of a row over the columns of its groups, in column 0.
#[inline(always)]
pub fn sum_columns([a, b, c, d]: [f32; 4]) -> [f32; 4] {
    let [upper, lower] = [a + b, c + d].map(|sum| {
        let sum = sum + warp::shuffle_xor(sum, 1);
        sum + warp::shuffle_xor(sum, 2)
    });
    [upper, 0.0, lower, 0.0]
}

/// MMA steps `FIRST` and `FIRST + 1` of a tile: one group or two.
#[inline(always)]
fn multiply_steps<
    F: FactoredFormat,
    const TILES_M: usize,
    const FIRST: usize,
    const SECOND: usize,
>(
    quants: &F::Unit,
    scales: &F::Scales,
    x: &InputTile<TILES_M>,
    sums: &mut Sums<TILES_M>,
) {
    let mut b = [[[0; 2]; 2]; TILES_M];
    for tile_m in 0..TILES_M {
        b[tile_m] = [x.step::<FIRST>(tile_m), x.step::<SECOND>(tile_m)];
    }
    let mut products = [[0.0; 4]; TILES_M];
    for step in 0..2 {
        if step == 0 || F::GROUP_STEPS == 1 {
            products = [[0.0; 4]; TILES_M];
        }
        let a = FragmentA::<f16>::from_words(F::fragment(quants, FIRST % UNIT_STEPS + step));
        for tile_m in 0..TILES_M {
            let b = FragmentB::from_words(b[tile_m][step]);
            products[tile_m] = m16n8k16(a, b, products[tile_m]);
        }
        if step == 1 || F::GROUP_STEPS == 1 {
            for row in 0..2 {
                let scale = F::scale_in_row(scales, row, (FIRST + step) / F::GROUP_STEPS);
                for tile_m in 0..TILES_M {
                    for i in 2 * row..2 * row + 2 {
                        let sum = &mut sums[tile_m][i];
                        *sum = math::fma(products[tile_m][i], scale, *sum);
                    }
                }
            }
        }
    }
}
