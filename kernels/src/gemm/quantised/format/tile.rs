//! The tiles of a weight, and where they are.

use super::{Format, OptionalGlobal, TILE_K, TILE_UNITS, UNIT_K};
use cuda_std::cp_async::copy_vec;
use cuda_std::prelude::*;
use cuda_std::unroll;

/// A lane's part of a tile.
pub struct Tile<F: Format> {
    /// Scales of the tile, as loaded.
    pub scales: F::Loaded,
    /// Quants of the tile, by unit.
    pub units: [F::Unit; TILE_UNITS],
}

impl<F: Format> Clone for Tile<F> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Format> Copy for Tile<F> {}

impl<F: Format> Tile<F> {
    /// Bytes of a whole tile.
    pub const BYTES: u32 = F::SCALE_BYTES + TILE_UNITS as u32 * F::UNIT_BYTES;

    /// Loads a tile of four units from shared memory.
    ///
    /// # Safety
    /// 1. `tile` is a tile.
    #[inline(always)]
    pub unsafe fn load(tile: Shared<u8>) -> Self {
        let mut loaded = Tile::zeros();
        // SAFETY: the caller's promise.
        unsafe {
            loaded.scales = F::load_scales(tile);
            unroll!(unit in 0..4, {
                let at = F::SCALE_BYTES + unit as u32 * F::UNIT_BYTES;
                loaded.units[unit] = F::load_unit(tile.offset(at));
            });
        }
        loaded
    }

    /// No tile: zeros.
    #[inline(always)]
    pub fn zeros() -> Self {
        Tile { scales: F::Loaded::default(), units: [F::Unit::default(); TILE_UNITS] }
    }
}

/// Where a tile is.
#[derive(Clone, Copy)]
pub struct TilePtr {
    tile: Global<u8>,
    /// Units of the tile, 0 if there is no tile.
    num_units: u32,
}

impl TilePtr {
    /// Issues the lane's copies of the tile to `stage`; zeros from its last unit on.
    ///
    /// # Safety
    /// 1. `stage` holds a tile of four units, that no lane reads or writes until the copies are
    ///    waited for.
    /// 2. As [`TilePtr::load_scales`].
    #[inline(always)]
    pub unsafe fn copy<F: Format>(&self, stage: Shared<u8>) {
        let bytes = match self.num_units {
            0 => 0,
            units => F::SCALE_BYTES + units * F::UNIT_BYTES,
        };
        unroll!(i in 0..16, {
            if i as u32 * 512 < Tile::<F>::BYTES {
                let at = (i as u32 * warp::WARP_SIZE + warp::lane_id()) * 16;
                if at < Tile::<F>::BYTES {
                    // SAFETY: inside both, by the conditions.
                    unsafe { copy_vec::<16, u8>(stage, at, self.tile, at as usize, at < bytes) };
                }
            }
        });
    }

    /// Issues the loads of the lane's scales; zeros if there is no tile.
    ///
    /// # Safety
    /// 1. There are the units that the weight's [`Tiles`] say.
    #[inline(always)]
    pub unsafe fn load_scales<F: Format>(&self) -> F::Loaded {
        // SAFETY: there is a tile, by the condition.
        unsafe { F::load_scales(OptionalGlobal { memory: self.tile, exists: self.num_units > 0 }) }
    }

    /// Issues the loads of the lane's quants of unit `unit`; zeros if there is none.
    ///
    /// # Safety
    /// As [`TilePtr::load_scales`].
    #[inline(always)]
    pub unsafe fn load_unit<F: Format>(&self, unit: usize) -> F::Unit {
        let at = F::SCALE_BYTES + unit as u32 * F::UNIT_BYTES;
        let memory = self.tile.wrapping_add(at as usize);
        let exists = (unit as u32) < self.num_units;
        // SAFETY: inside the tile, by the condition.
        unsafe { F::load_unit(OptionalGlobal { memory, exists }) }
    }

    /// Issues the loads of the whole tile.
    ///
    /// # Safety
    /// As [`TilePtr::load_scales`].
    #[inline(always)]
    pub unsafe fn load<F: Format>(&self) -> Tile<F> {
        let mut tile = Tile::zeros();
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(unit in 0..4, {
                tile.units[unit] = self.load_unit::<F>(unit);
            });
            tile.scales = self.load_scales::<F>();
        }
        tile
    }
}

/// Where the tiles of a weight `[n, k]` are.
#[derive(Clone, Copy)]
pub struct Tiles {
    weight: Global<u8>,
    /// Units along k.
    num_units: u32,
    /// Tiles along k.
    pub num_tiles: u32,
    /// Bytes of a row of tiles.
    pub row_bytes: u32,
}

impl Tiles {
    /// The tiles of a weight with `k` columns.
    #[inline(always)]
    pub fn new<F: Format>(weight: Global<u8>, k: u32) -> Self {
        let (num_units, num_tiles) = (k.div_ceil(UNIT_K), k.div_ceil(TILE_K));
        let row_bytes = num_tiles * F::SCALE_BYTES + num_units * F::UNIT_BYTES;
        Tiles { weight, num_units, num_tiles, row_bytes }
    }

    /// The tiles from row `rows` on.
    #[inline(always)]
    #[must_use]
    pub fn below(self, rows: u32) -> Self {
        let at = rows as usize * self.row_bytes as usize;
        Tiles { weight: self.weight.wrapping_add(at), ..self }
    }

    /// Tile `tile` in row `row` of tiles; none unless `condition` holds.
    #[inline(always)]
    pub fn tile<F: Format>(&self, row: u32, tile: u32, condition: bool) -> TilePtr {
        let at = row as usize * self.row_bytes as usize + (tile * Tile::<F>::BYTES) as usize;
        let rest = self.num_units.saturating_sub(tile * TILE_UNITS as u32);
        let num_units = if condition { rest.min(TILE_UNITS as u32) } else { 0 };
        TilePtr { tile: self.weight.wrapping_add(at), num_units }
    }

    /// Whether all tiles have four units.
    #[inline(always)]
    pub fn are_whole(&self) -> bool {
        self.num_units.is_multiple_of(TILE_UNITS as u32)
    }

    /// Where tile `tile` in row `row` of tiles is.
    #[inline(always)]
    pub fn at<F: Format>(&self, row: u32, tile: u32) -> Global<u8> {
        let at = row as usize * self.row_bytes as usize + (tile * Tile::<F>::BYTES) as usize;
        self.weight.wrapping_add(at)
    }

    /// Bytes of tile `tile` along k.
    #[inline(always)]
    pub fn bytes_of<F: Format>(&self, tile: u32) -> u32 {
        let units = (self.num_units - tile * TILE_UNITS as u32).min(TILE_UNITS as u32);
        F::SCALE_BYTES + units * F::UNIT_BYTES
    }
}
