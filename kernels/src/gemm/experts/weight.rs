//! The matrices of experts as a warp multiplies them: rows of tiles of 16 rows by 256 columns, A of
//! the MMAs in registers. Dense rows are 16-byte loads, with k permuted alike in B.

use crate::element::Half;
use crate::gemm::quantised::format::{
    Format, STEP_K, TILE_ROWS, TILE_UNITS, TilePtr, Tiles, UNIT_K, UNIT_STEPS, lane_group,
    lane_pair,
};
use crate::gemm::quantised::prompt::fragment::fragment;
use core::marker::PhantomData;
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
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

    /// The fragments of half a unit.
    fn fragments(unit: &Self::Unit, scales: &Self::Loaded, at: [usize; 2]) -> Fragments;
}

/// A lane's part of a row of tiles in a format.
#[derive(Clone, Copy)]
pub struct FormatRow {
    tiles: Tiles,
    row: u32,
    exists: bool,
}

impl FormatRow {
    #[inline(always)]
    fn tile<F: Format>(&self, tile: u32) -> TilePtr {
        self.tiles.tile::<F>(self.row, tile, self.exists && tile < self.tiles.num_tiles)
    }
}

impl<F: Format + 'static> Weight for F {
    type E = f16;
    type Row = FormatRow;
    type Loaded = F::Loaded;
    type Unit = F::Unit;
    const RUN: u32 = 4;
    const TILE_UNITS: usize = TILE_UNITS;

    #[inline(always)]
    fn row(TileRow { weight, n, k, expert, row }: TileRow) -> FormatRow {
        let row_tiles = n.div_ceil(TILE_ROWS);
        let tiles = Tiles::new::<F>(weight, k).below(expert * row_tiles);
        FormatRow { tiles, row, exists: row < row_tiles }
    }

    #[inline(always)]
    unsafe fn load_scales(row: &FormatRow, tile: u32) -> F::Loaded {
        // SAFETY: the caller's promise.
        unsafe { row.tile::<F>(tile).load_scales::<F>() }
    }

    #[inline(always)]
    unsafe fn load_unit(row: &FormatRow, tile: u32, unit: usize) -> F::Unit {
        // SAFETY: the caller's promise.
        unsafe { row.tile::<F>(tile).load_unit::<F>(unit) }
    }

    #[inline(always)]
    fn fragments(unit: &F::Unit, scales: &F::Loaded, [unit_idx, half]: [usize; 2]) -> Fragments {
        let scales = F::unpack(*scales);
        [0, 1].map(|step| fragment::<F>(unit, &scales, unit_idx, HALF_STEPS * half + step))
    }
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

    #[inline(always)]
    fn row(TileRow { weight, n, k, expert, row }: TileRow) -> DenseRow {
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

    /// Issues the loads of the next round's scales.
    ///
    /// # Safety
    /// As [`WarpUnits::new`].
    #[inline(always)]
    pub unsafe fn start(&mut self) {
        if W::TILE_UNITS > 1 {
            // SAFETY: the caller's promise.
            self.next_scales = unsafe { W::load_scales(&self.row, self.tile + self.step) };
        }
    }

    /// Unit `i` of the round; issues the loads of the one that is `RING` after it.
    ///
    /// # Safety
    /// As [`WarpUnits::new`].
    #[inline(always)]
    pub unsafe fn take(&mut self, i: usize) -> W::Unit {
        let unit = self.units[i % RING];
        let (tiles, in_tile) = Self::place(i + RING);
        // SAFETY: the caller's promise.
        self.units[i % RING] =
            unsafe { W::load_unit(&self.row, self.tile + tiles * self.step, in_tile) };
        unit
    }

    /// The fragments of half `half` of `unit`, which is unit `i` of the round.
    #[inline(always)]
    pub fn fragments(&self, unit: &W::Unit, i: usize, half: usize) -> Fragments {
        W::fragments(unit, &self.scales, [i % W::TILE_UNITS, half])
    }

    /// The first column of unit `i` of the round.
    #[inline(always)]
    pub fn first_column(&self, i: usize) -> u32 {
        let (tiles, unit) = Self::place(i);
        ((self.tile + tiles * self.step) * W::TILE_UNITS as u32 + unit as u32) * UNIT_K
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
