//! Tiles in shared memory, in the layout that TMA writes and `wgmma` reads with a swizzle.

use super::element::Operand16;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, KMajor, MatrixDescriptor, Swizzle};

/// Columns of a panel: 128 bytes of 16-bit elements, 64 of 8-bit ones, the span of the swizzle.
pub const PANEL_COLUMNS: u32 = 64;

/// Bytes of a row of a panel of 16-bit elements.
const ROW_BYTES: u32 = 128;

/// Rows after which the swizzle repeats; a tile has whole periods.
const SWIZZLE_ROWS: u32 = 8;

/// Rows of 16-bit elements that one MMA reads along k.
const MMA_K: u32 = 16;

/// Bytes of a row that one MMA reads along k.
const MMA_K_BYTES: u32 = 32;

/// A tile `[rows, columns]` of elements `E`: panels of 64 columns one after the other, each `[rows,
/// 64]`, with the swizzle of their rows' length: see [`swizzle`].
///
/// `rows` is a multiple of 8, and a constant once everything is inlined.
#[derive(Clone, Copy)]
pub struct SmemTile<E> {
    start: Shared<E>,
    rows: u32,
}

/// Bytes that span all banks once.
const BANK_ROW_BYTES: u32 = 128;

/// Element offset of 16-byte vector `vec_idx` of a row in a tile `[rows, COLUMNS]` of elements `E`,
/// whose rows have 16 to 128 bytes.
///
/// The index of the vector is XORed with that of the 128 bytes which hold the row: the same vector
/// of eight rows, which `ldmatrix` reads at once, and eight consecutive vectors, which are copied
/// at once, are in different banks. In rows of 128 bytes this is the 128-byte swizzle of TMA.
#[inline(always)]
pub const fn swizzle<E, const COLUMNS: u32>(row: u32, vec_idx: u32) -> u32 {
    let vec_elems = const { 16 / size_of::<E>() as u32 };
    let bank_row = row / const { BANK_ROW_BYTES / (COLUMNS * size_of::<E>() as u32) };
    let num_vecs = const { COLUMNS * size_of::<E>() as u32 / 16 };
    row * COLUMNS + (vec_idx ^ (bank_row % num_vecs)) * vec_elems
}

/// Bytes of a tile of `rows` rows and `columns` columns of 16-bit elements.
pub const fn tile_bytes(rows: u32, columns: u32) -> u32 {
    tile_bytes_of::<half::f16>(rows, columns)
}

/// Bytes of a tile of `rows` rows and `columns` columns of elements `E`.
pub const fn tile_bytes_of<E>(rows: u32, columns: u32) -> u32 {
    columns.div_ceil(PANEL_COLUMNS) * rows * PANEL_COLUMNS * size_of::<E>() as u32
}

impl<E: wgmma::Element> SmemTile<E> {
    /// Bytes of a row of a panel, and their swizzle.
    const ROW_BYTES: u32 = PANEL_COLUMNS * size_of::<E>() as u32;
    const SWIZZLE: Swizzle = match Self::ROW_BYTES {
        128 => Swizzle::B128,
        64 => Swizzle::B64,
        _ => panic!("elements of 8 or 16 bits"),
    };

    /// The tile of `rows` rows at `start`.
    ///
    /// # Safety
    /// 1. `start` is aligned to 1024 bytes, and holds [`tile_bytes_of`] the tile's columns.
    #[inline(always)]
    pub unsafe fn new(start: Shared<E>, rows: u32) -> Self {
        SmemTile { start, rows }
    }

    /// Tile `index` of equal ones of `columns` columns that lie one after the other, this one
    /// first.
    #[inline(always)]
    #[must_use]
    pub fn stage(self, index: u32, columns: u32) -> Self {
        let elems = tile_bytes_of::<E>(self.rows, columns) / size_of::<E>() as u32;
        SmemTile { start: self.start.offset(index * elems), ..self }
    }

    /// Rows `first_row ..` of panel `panel`, where TMA writes a box; a multiple of 8.
    #[inline(always)]
    pub fn panel(self, panel: u32, first_row: u32) -> Shared<E> {
        self.start.offset((panel * self.rows + first_row) * PANEL_COLUMNS)
    }

    /// The 16-byte vector `vec_idx` of `row` of panel `panel`.
    #[inline(always)]
    pub fn vec_at(self, panel: u32, row: u32, vec_idx: u32) -> Shared<E> {
        self.panel(panel, 0).offset(swizzle::<E, PANEL_COLUMNS>(row, vec_idx))
    }

    /// Rows `first_row ..`, a multiple of 8, as an operand whose k are the columns. A step of k is
    /// [`SmemTile::column_step`].
    #[inline(always)]
    pub fn k_major(self, first_row: u32) -> MatrixDescriptor<E, KMajor> {
        MatrixDescriptor::k_major(self.panel(0, first_row), Self::SWIZZLE)
    }

    /// Bytes from column 0 to column `16 * step` of 16-bit elements, `32 * step` of 8-bit ones.
    #[inline(always)]
    pub fn column_step(self, step: u32) -> u32 {
        let steps_per_panel = Self::ROW_BYTES / MMA_K_BYTES;
        let panel = step / steps_per_panel;
        panel * self.rows * Self::ROW_BYTES + step % steps_per_panel * MMA_K_BYTES
    }
}

impl<E: Operand16> SmemTile<E> {
    /// The tile as an operand whose k are the rows. A step of k is [`SmemTile::row_step`].
    #[inline(always)]
    pub fn mn_major(self) -> MatrixDescriptor<E, E::MnMajor> {
        let panel_bytes = self.rows * ROW_BYTES;
        MatrixDescriptor::new(self.start, panel_bytes, SWIZZLE_ROWS * ROW_BYTES, Swizzle::B128)
    }

    /// Bytes from row 0 to row `16 * step`.
    #[inline(always)]
    pub fn row_step(self, step: u32) -> u32 {
        step * MMA_K * ROW_BYTES
    }

    /// Zeroes rows `first_row ..` of the first `columns` columns; all lanes of a warp call this.
    /// The writes are visible to TMA and `wgmma` after a proxy fence and a barrier.
    ///
    /// # Safety
    /// 1. Nothing else reads or writes these rows.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn zero_rows(self, first_row: u32, columns: u32) {
        let vecs_per_row = ROW_BYTES / 16;
        let (first, vec_idx) = (warp::lane_id() / vecs_per_row, warp::lane_id() % vecs_per_row);
        for panel in 0..columns.div_ceil(PANEL_COLUMNS) {
            let mut row = first_row + first;
            while row < self.rows {
                // SAFETY: inside the tile, and the warp's own.
                unsafe { self.vec_at(panel, row, vec_idx).cast::<u32>().set_vec(0, [0; 4]) };
                row += warp::WARP_SIZE / vecs_per_row;
            }
        }
    }
}
