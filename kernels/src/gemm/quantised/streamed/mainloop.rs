//! The matrix product of a tile of the weight in shared memory with x in registers.

use super::super::format::{FactoredFormat, MEAN_REST, UNIT_STEPS, quant_scale};
use super::super::mainloop::AccTiles;
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
pub unsafe fn multiply<F: FactoredFormat, const TILES_M: usize>(
    tile: Shared<u8>,
    x: &InputTile<TILES_M>,
    acc: impl FnOnce() -> AccTiles<TILES_M>,
) -> AccTiles<TILES_M> {
    // SAFETY: the caller's promise.
    let scales = F::unpack(unsafe { F::load_scales(tile) });
    let mut k_tile_acc = [[0.0; 4]; TILES_M];
    unroll!(unit in 0..4, {
        // SAFETY: the caller's promise.
        unsafe {
            let quants = F::load_unit(tile.offset(F::SCALE_BYTES + unit as u32 * F::UNIT_BYTES));
            multiply_steps::<F, TILES_M, { 4 * unit }, { 4 * unit + 1 }>(
                &quants, &scales, x, &mut k_tile_acc,
            );
            multiply_steps::<F, TILES_M, { 4 * unit + 2 }, { 4 * unit + 3 }>(
                &quants, &scales, x, &mut k_tile_acc,
            );
        }
    });
    let a = FragmentA::<f16>::from_words(F::mean_fragment(&scales));
    let mut acc = acc();
    for tile_m in 0..TILES_M {
        let [means, rests] = x.means[tile_m].map(FragmentB::from_words);
        let terms = m16n8k16(a, rests, [0.0; 4]).map(|rest| rest * (1.0 / MEAN_REST));
        let terms = m16n8k16(a, means, terms);
        for row in 0..2 {
            let [scale, mean_scale] = F::row_factors(&scales, row);
            for i in 2 * row..2 * row + 2 {
                let sum =
                    math::fma(k_tile_acc[tile_m][i], scale * quant_scale::<F>(row), acc[tile_m][i]);
                acc[tile_m][i] = math::fma(terms[i], mean_scale, sum);
            }
        }
    }
    acc
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
    k_tile_acc: &mut AccTiles<TILES_M>,
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
                        let sum = &mut k_tile_acc[tile_m][i];
                        *sum = math::fma(products[tile_m][i], scale, *sum);
                    }
                }
            }
        }
    }
}
