//! The matrices of experts as a warp multiplies them: rows of tiles of 16 rows by 256 columns, A of
//! the MMAs in registers. Dense rows are 16-byte loads, with k permuted alike in B.

use crate::element::Half;
use crate::gemm::quantised::format::{
    Format, Mins, STEP_K, TILE_ROWS, TILE_UNITS, Tiles, UNIT_K, UNIT_STEPS, lane_group, lane_pair,
    quant_scale,
};
use crate::gemm::quantised::prompt::fragment::fragment;
use core::marker::PhantomData;
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
use gpu_types::BlockFormat;
use half::f16;

/// Halves of a unit of 64 columns: two steps of an MMA each.
pub const HALVES: usize = 2;

/// Steps of a half.
const HALF_STEPS: usize = UNIT_STEPS / HALVES;

/// A lane's elements of a row of x in half a unit: two words a step.
pub type HalfOfX = [[u32; 2]; HALF_STEPS];

/// A lane's fragments of A in half a unit.
pub type Fragments = [[u32; 4]; HALF_STEPS];

/// A row of tiles of a matrix `[n, k]` of an expert.
#[derive(Clone, Copy)]
pub struct TileRow {
    /// The matrices of all experts.
    pub weight: Global<u8>,
    /// Rows of a matrix.
    pub n: u32,
    /// Columns.
    pub k: u32,
    /// The expert.
    pub expert: u32,
    /// The row of tiles; one past the last is none.
    pub row: u32,
    /// Where the scales are that are not among the elements.
    pub scales: ScalesAt,
}

/// Where the scales of E4M3 are: after the matrices of all experts.
#[derive(Clone, Copy)]
pub struct ScalesAt {
    /// From the first element on, in units of 16 bytes.
    pub at: u32,
    /// Scales from a row of blocks of 128 rows to the next; 0 where each row of a matrix has one.
    pub stride: u32,
}

/// How the matrices of experts are stored.
pub trait Weight: 'static {
    /// The operands' type.
    type E: Half;
    /// Where a lane's part of a row of tiles is.
    type Row: Copy;
    /// Scales as loaded.
    type Loaded: Copy;
    /// Elements of a unit as loaded.
    type Unit: Copy;
    /// Neighbouring elements of x that a lane multiplies, 4 or 8.
    const RUN: u32;
    /// Units of a tile: 1 or 4.
    const TILE_UNITS: usize;

    /// Blocks of [`few`](super::few) for whose registers an SM has room.
    const FEW_BLOCKS: u32;

    /// Units of a warp of [`few`](super::few) on their way.
    const RING: usize;

    /// Blocks of [`sum`](super::sum) for whose registers an SM has room.
    const SUM_BLOCKS: u32;

    /// Units of a warp of [`sum`](super::sum) on their way.
    const SUM_RING: usize;

    /// The lane's part of a row of tiles.
    fn row(at: TileRow) -> Self::Row;

    /// Issues the loads of the scales of tile `tile` along k; none past the last.
    ///
    /// # Safety
    /// 1. The weight is as [`TileRow`] says.
    unsafe fn load_scales(row: &Self::Row, tile: u32) -> Self::Loaded;

    /// Issues the loads of unit `unit` of that tile; zeros past the last.
    ///
    /// # Safety
    /// As [`Weight::load_scales`].
    unsafe fn load_unit(row: &Self::Row, tile: u32, unit: usize) -> Self::Unit;

    /// The fragments of half a unit: half `at[1]` of unit `at[0]` of a tile.
    fn fragments(unit: &Self::Unit, scales: &Self::Loaded, at: [usize; 2]) -> Fragments;

    /// The products of half a unit with eight rows of x, divided by [`Weight::sum_scale`], added to
    /// `acc`: without dequantising what is in blocks.
    fn add_products(
        unit: &Self::Unit,
        scales: &Self::Loaded,
        at: [usize; 2],
        x: &HalfOfX,
        acc: Accumulator,
    ) -> Accumulator;

    /// What the sums of the lane's upper (0) or lower (1) row are multiplied by.
    fn sum_scale(row: usize) -> f32;
}

impl<F: Format + 'static> Weight for F {
    type E = f16;
    /// Tiles from the row on; none where there is no row.
    type Row = Tiles;
    type Loaded = F::Loaded;
    type Unit = F::Unit;
    const RUN: u32 = 4;
    const TILE_UNITS: usize = TILE_UNITS;
    const FEW_BLOCKS: u32 = match F::FORMAT {
        BlockFormat::Q2_K | BlockFormat::Q4_K | BlockFormat::MXFP4 => 3,
        _ => 2,
    };
    const RING: usize = match F::FORMAT {
        BlockFormat::Q4_K => 2,
        _ => 4,
    };
    const SUM_BLOCKS: u32 = match F::FORMAT {
        BlockFormat::Q2_K => 2,
        // On sm_80 it takes a few registers more.
        BlockFormat::MXFP4 if cfg!(target_feature = "sm_90a") => 2,
        _ => 1,
    };
    const SUM_RING: usize = match F::FORMAT {
        BlockFormat::MXFP4 => 2,
        _ => 4,
    };

    #[inline(always)]
    fn row(TileRow { weight, n, k, expert, row, .. }: TileRow) -> Tiles {
        let row_tiles = n.div_ceil(TILE_ROWS);
        if row < row_tiles {
            Tiles::new::<F>(weight, k).below(expert * row_tiles + row)
        } else {
            Tiles::new::<F>(weight, 0)
        }
    }

    #[inline(always)]
    unsafe fn load_scales(row: &Tiles, tile: u32) -> F::Loaded {
        // SAFETY: the caller's promise.
        unsafe { row.tile::<F>(0, tile, true).load_scales::<F>() }
    }

    #[inline(always)]
    unsafe fn load_unit(row: &Tiles, tile: u32, unit: usize) -> F::Unit {
        // SAFETY: the caller's promise.
        unsafe { row.tile::<F>(0, tile, true).load_unit::<F>(unit) }
    }

    #[inline(always)]
    fn fragments(unit: &F::Unit, scales: &F::Loaded, [unit_idx, half]: [usize; 2]) -> Fragments {
        let scales = F::unpack(*scales);
        [0, 1].map(|step| fragment::<F>(unit, &scales, unit_idx, HALF_STEPS * half + step))
    }

    #[inline(always)]
    fn add_products(
        unit: &F::Unit,
        scales: &F::Loaded,
        [unit_idx, half]: [usize; 2],
        x: &HalfOfX,
        mut acc: Accumulator,
    ) -> Accumulator {
        let scales = F::unpack(*scales);
        let [mut products, mut sums] = [[0.0; 4]; 2];
        for i in 0..HALF_STEPS {
            let step = HALF_STEPS * half + i;
            let b = FragmentB::<f16>::from_words(x[i]);
            if step.is_multiple_of(F::GROUP_STEPS) {
                [products, sums] = [[0.0; 4]; 2];
            }
            if F::OFFSET != 0.0 {
                let offsets = const { all_quants::<F>(F::OFFSET) };
                products = m16n8k16(FragmentA::from_words(offsets), b, products);
            }
            if F::MINS != Mins::None {
                let ones = const { all_quants::<F>(1.0) };
                sums = m16n8k16(FragmentA::from_words(ones), b, sums);
            }
            products = m16n8k16(FragmentA::from_words(F::fragment(unit, step)), b, products);
            if !(step + 1).is_multiple_of(F::GROUP_STEPS) {
                continue;
            }
            for row in 0..2 {
                let group = (unit_idx * UNIT_STEPS + step) / F::GROUP_STEPS;
                let ([scale, min], [row_scale, row_min]) =
                    (F::group_scale(&scales, row, group), F::row_scale(&scales, row));
                for at in 2 * row..2 * row + 2 {
                    acc[at] = math::fma(products[at], scale * row_scale, acc[at]);
                    if F::MINS != Mins::None {
                        acc[at] = math::fma(sums[at], min * row_min, acc[at]);
                    }
                }
            }
        }
        acc
    }

    #[inline(always)]
    fn sum_scale(row: usize) -> f32 {
        quant_scale::<F>(row)
    }
}

/// A fragment of which each element is the quant `quant`.
const fn all_quants<F: Format>(quant: f32) -> [u32; 4] {
    let upper = f16::from_f32_const(quant * F::ONE).to_bits() as u32 * 0x0001_0001;
    let lower = f16::from_f32_const(quant * F::ONE * F::LOWER_ROW).to_bits() as u32 * 0x0001_0001;
    [upper, lower, upper, lower]
}

/// Rows of the operands' type.
pub struct Dense<E>(PhantomData<E>);

/// A lane's two rows of dense ones.
#[derive(Clone, Copy)]
pub struct DenseRow {
    /// The first elements of both.
    rows: [Global<u32>; 2],
    /// Columns from these on.
    k: u32,
}

impl<E: Half + 'static> Weight for Dense<E> {
    type E = E;
    type Row = DenseRow;
    type Loaded = ();
    /// Halves of the unit, of both rows.
    type Unit = [[[u32; 4]; 2]; 2];
    const RUN: u32 = 8;
    const TILE_UNITS: usize = 1;
    const FEW_BLOCKS: u32 = 3;
    const RING: usize = 2;
    const SUM_BLOCKS: u32 = 1;
    const SUM_RING: usize = 2;

    #[inline(always)]
    fn row(TileRow { weight, n, k, expert, row, .. }: TileRow) -> DenseRow {
        let lane_k = lane_pair() * Self::RUN;
        let rows = [0, 8].map(|below| {
            // Rows past the last load the last one; their results are not stored.
            let row = (row * TILE_ROWS + lane_group() + below).min(n - 1);
            let row = expert as usize * n as usize + row as usize;
            weight.cast::<u16>().wrapping_add(row * k as usize + lane_k as usize).cast()
        });
        DenseRow { rows, k: k.saturating_sub(lane_k) }
    }

    #[inline(always)]
    unsafe fn load_scales(_: &DenseRow, _: u32) {}

    #[inline(always)]
    unsafe fn load_unit(row: &DenseRow, tile: u32, _: usize) -> Self::Unit {
        let mut loads = [[[0; 4]; 2]; 2];
        unroll!(half in 0..2, {
            let k = tile * UNIT_K + half as u32 * UNIT_K / 2;
            for below in 0..2 {
                let words = row.rows[below].wrapping_add(k as usize / 2);
                // SAFETY: inside the row, by the condition.
                loads[below][half] = unsafe { words.stream_vec_if(0, k < row.k) };
            }
        });
        loads
    }

    #[inline(always)]
    fn fragments(unit: &Self::Unit, (): &(), [_, half]: [usize; 2]) -> Fragments {
        let [upper, lower] = [unit[0][half], unit[1][half]];
        [0, 2].map(|word| [upper[word], lower[word], upper[word + 1], lower[word + 1]])
    }

    #[inline(always)]
    fn add_products(
        unit: &Self::Unit,
        scales: &(),
        at: [usize; 2],
        x: &HalfOfX,
        acc: Accumulator,
    ) -> Accumulator {
        multiply::<E>(&Self::fragments(unit, scales, at), x, acc)
    }

    #[inline(always)]
    fn sum_scale(_: usize) -> f32 {
        1.0
    }
}

/// Units that a warp multiplies in a round: of one tile, or each of a tile of its own.
pub const ROUND: usize = 4;

/// The warp's units along k, of every `step`-th tile: `RING` of them are on their way.
pub struct WarpUnits<W: Weight, const RING: usize> {
    row: W::Row,
    step: u32,
    /// The first tile of the round.
    tile: u32,
    scales: W::Loaded,
    next_scales: W::Loaded,
    units: [W::Unit; RING],
}

impl<W: Weight, const RING: usize> Clone for WarpUnits<W, RING> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Weight, const RING: usize> Copy for WarpUnits<W, RING> {}

impl<W: Weight, const RING: usize> WarpUnits<W, RING> {
    /// Issues the loads of the first units, of tile `first` and those after it.
    ///
    /// # Safety
    /// 1. The weight is as [`TileRow`] says.
    #[inline(always)]
    pub unsafe fn new(at: TileRow, first: u32, step: u32) -> Self {
        const { assert!(ROUND.is_multiple_of(RING)) };
        let row = W::row(at);
        // SAFETY: the caller's promise.
        unsafe {
            let scales = W::load_scales(&row, first);
            let mut units = [W::load_unit(&row, first, 0); RING];
            unroll!(i in 0..4, {
                if (1..RING).contains(&i) {
                    let (tiles, unit) = Self::place(i);
                    units[i] = W::load_unit(&row, first + tiles * step, unit);
                }
            });
            WarpUnits { row, step, tile: first, scales, next_scales: scales, units }
        }
    }

    /// How many tiles after the round's first unit `i` is, and its place there.
    #[inline(always)]
    const fn place(i: usize) -> (u32, usize) {
        ((i / W::TILE_UNITS) as u32, i % W::TILE_UNITS)
    }

    /// Unit `i` of the round; issues the loads of the one that is `RING` after it.
    ///
    /// # Safety
    /// As [`WarpUnits::new`].
    #[inline(always)]
    pub unsafe fn take(&mut self, i: usize) -> W::Unit {
        let unit = self.units[i % RING];
        let (tiles, in_tile) = Self::place(i + RING);
        let tile = self.tile + tiles * self.step;
        // SAFETY: the caller's promise.
        unsafe {
            if W::TILE_UNITS > 1 && in_tile == 0 {
                self.next_scales = W::load_scales(&self.row, tile);
            }
            self.units[i % RING] = W::load_unit(&self.row, tile, in_tile);
        }
        unit
    }

    /// The fragments of half `half` of `unit`, which is unit `i` of the round.
    #[inline(always)]
    pub fn fragments(&self, unit: &W::Unit, i: usize, half: usize) -> Fragments {
        W::fragments(unit, &self.scales, [i % W::TILE_UNITS, half])
    }

    /// As [`Weight::add_products`], of half `half` of `unit`, which is unit `i` of the round.
    #[inline(always)]
    pub fn add_products(
        &self,
        unit: &W::Unit,
        i: usize,
        half: usize,
        x: &HalfOfX,
        acc: Accumulator,
    ) -> Accumulator {
        W::add_products(unit, &self.scales, [i % W::TILE_UNITS, half], x, acc)
    }

    /// The first column of unit `i` of the round.
    #[inline(always)]
    pub fn first_column(&self, i: usize) -> u32 {
        self.tile * (W::TILE_UNITS as u32 * UNIT_K) + self.columns_to(i) as u32
    }

    /// Columns from the first unit of the round to unit `i`.
    #[inline(always)]
    pub fn columns_to(&self, i: usize) -> usize {
        let (tiles, unit) = Self::place(i);
        ((tiles * self.step) as usize * W::TILE_UNITS + unit) * UNIT_K as usize
    }

    /// Ends the round.
    #[inline(always)]
    pub fn finish(&mut self) {
        self.tile += self.step * (ROUND / W::TILE_UNITS) as u32;
        self.scales = self.next_scales;
    }
}

/// The columns of a lane's first element of x in the steps of half a unit.
#[inline(always)]
pub fn first_columns<W: Weight>(half: usize) -> [u32; HALF_STEPS] {
    let first = half as u32 * (UNIT_K / HALVES as u32);
    let step = if W::RUN == 8 { 4 } else { STEP_K };
    [0, 1].map(|i| first + lane_pair() * W::RUN + i * step)
}

/// The products of half a unit with eight rows of x.
#[inline(always)]
pub fn multiply<E: Half>(fragments: &Fragments, x: &HalfOfX, mut acc: Accumulator) -> Accumulator {
    for step in 0..HALF_STEPS {
        let a = FragmentA::<E>::from_words(fragments[step]);
        acc = m16n8k16(a, FragmentB::from_words(x[step]), acc);
    }
    acc
}
