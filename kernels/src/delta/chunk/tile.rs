//! Tiles of a chunk's rows in shared memory, and the fragments of MMAs that they hold.

use super::CHUNK;
use crate::element::Half;
use crate::tile::smem::swizzle;
use core::marker::PhantomData;
use cuda_std::Element;
use cuda_std::matrix::{load_x4, load_x4_trans};
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;

/// Elements of a 16-byte vector.
pub(super) const VEC_ELEMS: u32 = 8;

/// Rows or columns of an MMA: 16.
pub(super) const STEP: u32 = 16;

/// Most columns of a panel.
const PANEL_COLUMNS: u32 = 64;

/// A 16 x 16 accumulator: two of 16 x 8.
pub(super) type Square = [Accumulator; 2];

/// A tile `[CHUNK, 16 * STEPS]`: panels of up to 64 columns one after the other, swizzled. It
/// starts at a multiple of 128 bytes.
#[derive(Clone, Copy)]
pub(super) struct Tile<E, const STEPS: usize> {
    start: Shared<E>,
}

impl<E: Element, const STEPS: usize> Tile<E, STEPS> {
    const COLUMNS: u32 = STEP * STEPS as u32;
    const ROW: u32 = if Self::COLUMNS < PANEL_COLUMNS { Self::COLUMNS } else { PANEL_COLUMNS };

    /// Elements of a tile.
    pub const ELEMS: u32 = CHUNK * Self::COLUMNS;

    #[inline(always)]
    pub fn new(start: Shared<E>) -> Self {
        Tile { start }
    }

    /// Vector `vec_idx` of a row.
    #[inline(always)]
    pub fn vec_at(self, row: u32, vec_idx: u32) -> Shared<E> {
        let vecs = const { Self::ROW / VEC_ELEMS };
        let place = match STEPS {
            2 => swizzle::<E, 32>(row, vec_idx % vecs),
            _ => swizzle::<E, 64>(row, vec_idx % vecs),
        };
        self.start.offset(vec_idx / vecs * (CHUNK * Self::ROW) + place)
    }

    /// Issues the thread's copies of `num_rows` rows of `x`, which lie `stride` elements apart; the
    /// rows after them become zeros. Of a `TRIANGLE`, squares above the diagonal are left out.
    ///
    /// # Safety
    /// 1. The rows are inside the view and 16-byte aligned; nobody accesses the tile until the
    ///    copies are waited for.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy<const THREADS: u32, const TRIANGLE: bool>(
        self,
        x: Global<E>,
        stride: u32,
        num_rows: u32,
    ) {
        let row_vecs = const { Self::ROW / VEC_ELEMS };
        let rows = const { THREADS / (Self::ROW / VEC_ELEMS) };
        let thread = thread::thread_idx_x();
        let (vec_idx, first) = (thread % row_vecs, thread / row_vecs);
        // The swizzle repeats after eight rows, of which a pass has a multiple.
        let to = self.vec_at(first, vec_idx);
        let mut from = first as usize * stride as usize + (vec_idx * VEC_ELEMS) as usize;
        for pass in 0..CHUNK / rows {
            let row = first + pass * rows;
            for panel in 0..Self::COLUMNS / Self::ROW {
                if !TRIANGLE || vec_idx / 2 <= row / STEP {
                    let to_index = (panel * CHUNK + pass * rows) * Self::ROW;
                    let from = from + (panel * Self::ROW) as usize;
                    let is_there = row < num_rows;
                    // SAFETY: the caller's promise.
                    unsafe {
                        cp_async::copy_vec::<{ VEC_ELEMS as usize }, E>(
                            to, to_index, x, from, is_there,
                        );
                    }
                }
            }
            from += rows as usize * stride as usize;
        }
    }

    /// Where the lane has the first pair of an accumulator of the tile's first columns and of rows
    /// `row ..`, a multiple of 8; other columns are at this address xor their number.
    #[inline(always)]
    pub fn accumulator_at(self, row: u32) -> Shared<E> {
        let [group, pair] = lane_place();
        self.vec_at(row + group, 0).offset(2 * pair)
    }

    /// Where the lane finds the fragments of squares of 16 rows and 16 columns.
    #[inline(always)]
    pub fn fragments(self) -> Fragments<E, STEPS> {
        let lane = warp::lane_id();
        Fragments {
            by_rows: self.vec_at(lane % 16, lane / 16).cast(),
            by_columns: self.vec_at(lane % 8 + lane / 16 * 8, lane / 8 % 2).cast(),
            elements: PhantomData,
        }
    }
}

/// Where a lane finds the fragments of a tile.
#[derive(Clone, Copy)]
pub(super) struct Fragments<E, const STEPS: usize> {
    by_rows: Shared<u16>,
    by_columns: Shared<u16>,
    elements: PhantomData<E>,
}

impl<E: Element, const STEPS: usize> Fragments<E, STEPS> {
    #[inline(always)]
    fn square(start: Shared<u16>, row: usize, column: usize) -> Shared<u16> {
        let row_steps = const { Tile::<E, STEPS>::ROW / STEP } as usize;
        let panel = (column / row_steps) as u32 * CHUNK * Tile::<E, STEPS>::ROW;
        let rows = STEP * row as u32 * Tile::<E, STEPS>::ROW;
        start.xor(STEP * (column % row_steps) as u32).offset(panel + rows)
    }

    /// Square `[row, column]` as a fragment A.
    ///
    /// # Safety
    /// 1. The tile is written, and nobody writes it. The whole warp calls this.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn a(self, row: usize, column: usize) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe { load_x4(Self::square(self.by_rows, row, column)) }
    }

    /// Square `[row, column]` as two fragments B whose k are its columns.
    ///
    /// # Safety
    /// As [`Fragments::a`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn b(self, row: usize, column: usize) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe { load_x4(Self::square(self.by_columns, row, column)) }
    }

    /// Square `[row, column]` as two fragments B whose k are its rows.
    ///
    /// # Safety
    /// As [`Fragments::a`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn b_of_rows(self, row: usize, column: usize) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe { load_x4_trans(Self::square(self.by_rows, row, column)) }
    }
}

/// Two MMAs: adds fragment A times two fragments B.
#[inline(always)]
pub(super) fn multiply<E: Half>(a: [u32; 4], [b0, b1, b2, b3]: [u32; 4], to: &mut Square) {
    let a = FragmentA::<E>::from_words(a);
    to[0] = m16n8k16(a, FragmentB::from_words([b0, b1]), to[0]);
    to[1] = m16n8k16(a, FragmentB::from_words([b2, b3]), to[1]);
}

/// A square, rounded, as a fragment A.
#[inline(always)]
pub(super) fn pack<E: Half>([left, right]: Square) -> [u32; 4] {
    [[left[0], left[1]], [left[2], left[3]], [right[0], right[1]], [right[2], right[3]]]
        .map(|[a, b]| E::pack(a, b))
}

/// Row group and column pair of the lane in an accumulator: it has rows `group` and `group + 8`,
/// columns `2 * pair` and `2 * pair + 1`.
#[inline(always)]
pub(super) fn lane_place() -> [u32; 2] {
    [warp::lane_id() / 4, warp::lane_id() % 4]
}
