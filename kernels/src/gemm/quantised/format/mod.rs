//! The formats of packed weights, as a lane of a warp reads them.
//!
//! A tile is 16 rows by 256 elements along k: its scales, then up to four units of 64 elements
//! along k. Row `r` of a tile is row `r` of A. Elements `4 * pair .. 4 * pair + 4` of the 16 of an
//! MMA step are columns `2 * pair`, `2 * pair + 1`, `2 * pair + 8` and `2 * pair + 9` of A for lane
//! `pair` of a group of four, see [`cuda_std::mma`]; B is permuted alike.
//!
//! A quant is an f16 that is `q * 2^-24` ([`Format::ONE`]), mostly a subnormal one: exact, with no
//! bias to subtract. Where two rows share a byte, the lower row's quants are multiplied by 16
//! ([`Format::LOWER_ROW`]).

mod blocks_of_32;
mod k_blocks;
mod levels;
mod nibbles;
#[cfg(not(target_arch = "nvptx64"))]
mod stored;
mod tile;
mod two_bits;

pub use blocks_of_32::{Affine, Q80, Symmetric};
pub use k_blocks::{Q6K, SixBit};
pub use levels::{IQ4XS, MXFP4};
pub(super) use nibbles::{Nibbles, TwoBits};
pub use tile::{Tile, TilePtr, Tiles};
pub use two_bits::{Q2K, Q3K};

use cuda_std::prelude::*;
use gpu_types::BlockFormat;
pub use gpu_types::{TILE_K, TILE_ROWS, UNIT_K};

cuda_std::instance_set! {
    /// The formats that kernels multiply.
    pub(crate) BLOCKS = [
        crate::gemm::quantised::format::Symmetric<0> as "q4_0",
        crate::gemm::quantised::format::Affine<0> as "q4_1",
        crate::gemm::quantised::format::Symmetric<1> as "q5_0",
        crate::gemm::quantised::format::Affine<1> as "q5_1",
        crate::gemm::quantised::format::Q80 as "q8_0",
        crate::gemm::quantised::format::Q2K as "q2_k",
        crate::gemm::quantised::format::Q3K as "q3_k",
        crate::gemm::quantised::format::SixBit<0> as "q4_k",
        crate::gemm::quantised::format::SixBit<1> as "q5_k",
        crate::gemm::quantised::format::Q6K as "q6_k",
        crate::gemm::quantised::format::IQ4XS as "iq4_xs",
        crate::gemm::quantised::format::MXFP4 as "mxfp4",
    ];
}

/// Units of a tile.
pub const TILE_UNITS: usize = (TILE_K / UNIT_K) as usize;

/// Elements of an MMA along k.
pub const STEP_K: u32 = 16;

/// MMA steps of a unit.
pub const UNIT_STEPS: usize = (UNIT_K / STEP_K) as usize;

/// MMA steps of a tile.
pub const TILE_STEPS: usize = TILE_UNITS * UNIT_STEPS;

/// The smallest f16.
pub const SUBNORMAL: f32 = 1.0 / (1 << 24) as f32;

/// A lane's part of a 16-byte row of scales, for both of its rows.
pub type ScaleRows<const WORDS: usize> = [[u32; WORDS]; 2];

/// Memory that tiles are loaded from.
pub trait Source: Copy {
    /// Loads `N` words, `bytes` after its start.
    ///
    /// # Safety
    /// 1. The words are inside the memory, and aligned to their size together.
    unsafe fn words<const N: usize>(self, bytes: u32) -> [u32; N];

    /// The memory from `bytes` on.
    #[must_use]
    fn from(self, bytes: u32) -> Self;
}

impl Source for Shared<u8> {
    #[inline(always)]
    unsafe fn words<const N: usize>(self, bytes: u32) -> [u32; N] {
        // SAFETY: the caller's promise.
        unsafe { self.offset(bytes).cast::<u32>().get_vec(0) }
    }

    #[inline(always)]
    fn from(self, bytes: u32) -> Self {
        self.offset(bytes)
    }
}

/// Global memory that may be absent: all words of it are zeros.
#[derive(Clone, Copy)]
pub struct OptionalGlobal {
    memory: Global<u8>,
    exists: bool,
}

impl Source for OptionalGlobal {
    #[inline(always)]
    unsafe fn words<const N: usize>(self, bytes: u32) -> [u32; N] {
        let words = self.memory.wrapping_add(bytes as usize).cast::<u32>();
        // SAFETY: the caller's promise.
        unsafe { words.stream_vec_if(0, self.exists) }
    }

    #[inline(always)]
    fn from(self, bytes: u32) -> Self {
        OptionalGlobal { memory: self.memory.wrapping_add(bytes as usize), ..self }
    }
}

/// The minima of a format's groups.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mins {
    /// There are none.
    None,
    /// Floats.
    Floats,
    /// Integers of six bits, as the scales are, times factors of the row.
    Integers,
}

/// A format of packed weights: an element is `scale * (q + OFFSET)`, plus `min` where the format
/// has one.
pub trait Format {
    /// The block format that this type implements.
    const FORMAT: BlockFormat;
    /// Consecutive MMA steps whose elements share a scale: 1 or 2.
    const GROUP_STEPS: usize;
    /// What is added to each quant.
    const OFFSET: f32;
    /// Whether groups have a `min`.
    const MINS: Mins;
    /// Whether scales of groups are f16, or, of integers, those of rows; and mins that are floats.
    const HAS_HALF_SCALES: bool = true;
    /// What a quant of 1 is in a fragment.
    const ONE: f32 = SUBNORMAL;
    /// What quants of rows 8 to 15 are multiplied by.
    const LOWER_ROW: f32;
    /// Bytes of a tile before its units.
    const SCALE_BYTES: u32;
    /// Bytes of a unit.
    const UNIT_BYTES: u32;
    /// A lane's scales as loaded.
    type Loaded: Copy + Default;
    /// A lane's scales, unpacked.
    type Scales: Copy;
    /// A lane's quants of a unit.
    type Unit: Copy + Default;

    /// Issues the loads of the lane's scales.
    ///
    /// # Safety
    /// 1. `tile` is a tile.
    unsafe fn load_scales(tile: impl Source) -> Self::Loaded;

    /// Issues the loads of the lane's quants of a unit.
    ///
    /// # Safety
    /// 1. `unit` is a unit.
    unsafe fn load_unit(unit: impl Source) -> Self::Unit;

    /// The scales that were loaded.
    fn unpack(loaded: Self::Loaded) -> Self::Scales;

    /// Scale and min of group `group` in the lane's upper (0) or lower (1) row; integers, where
    /// they are to be multiplied by [`Format::row_scale`].
    fn group_scale(scales: &Self::Scales, row: usize, group: usize) -> [f32; 2];

    /// What integer scales and mins of a row are multiplied by.
    #[inline(always)]
    fn row_scale(_: &Self::Scales, _: usize) -> [f32; 2] {
        [1.0; 2]
    }

    /// The quants of a block as a file has it, in the order of its elements, each with
    /// [`Format::OFFSET`] taken off, or the indices of its levels.
    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]);

    /// A fragment of A: the lane's quants in step `step` of a unit.
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4];

    /// A fragment of A: the mins of the lane's rows, where they are integers. Columns 0 to 7 are
    /// the groups, columns 8 to 15 again, divided by [`MEAN_REST`].
    #[inline(always)]
    fn min_fragment(_: &Self::Scales) -> [u32; 4] {
        [0; 4]
    }
}

/// A format whose rows have a factor in each tile beside integer scales of the groups: an element
/// is `factor * scale * q`, and an offset or a min is a multiple of the mean of a group of x.
pub trait FactoredFormat: Format {
    /// The integer scale of group `group`.
    fn scale_in_row(scales: &Self::Scales, row: usize, group: usize) -> f32;

    /// A fragment of A: what the means of the groups of x are multiplied by for the lane's rows,
    /// columns being groups. Where there are eight groups, columns 8 to 15 are zeros.
    fn mean_fragment(scales: &Self::Scales) -> [u32; 4];

    /// What the sums of a row are multiplied by: those with [`FactoredFormat::scale_in_row`], and
    /// those with [`FactoredFormat::mean_fragment`].
    fn row_factors(scales: &Self::Scales, row: usize) -> [f32; 2];
}

/// What the rest of a mean, beyond f16, is multiplied by before it is rounded to f16.
pub const MEAN_REST: f32 = (1 << 11) as f32;

/// Elements of a group.
const fn group_elems<F: Format>() -> f32 {
    (F::GROUP_STEPS as u32 * STEP_K) as f32
}

/// What the quants of row `row` (0 or 1) of a lane are multiplied by to be integers.
#[inline(always)]
pub fn quant_scale<F: Format>(row: usize) -> f32 {
    if row == 0 { 1.0 / F::ONE } else { 1.0 / (F::ONE * F::LOWER_ROW) }
}

/// The lane's group of four, its first row in a tile.
#[inline(always)]
pub fn lane_group() -> u32 {
    warp::lane_id() / 4
}

/// The lane's place in its group of four.
#[inline(always)]
pub fn lane_pair() -> u32 {
    warp::lane_id() % 4
}

/// Loads words of each of the lane's rows; rows have `row_bytes`, and the words start at `first`.
///
/// # Safety
/// As [`Format::load_scales`].
#[inline(always)]
unsafe fn load_rows<const WORDS: usize>(
    tile: impl Source,
    row_bytes: u32,
    first: u32,
) -> ScaleRows<WORDS> {
    let tile = tile.from(lane_group() * row_bytes);
    // SAFETY: the caller's promise.
    unsafe { [tile.words(first), tile.words(8 * row_bytes + first)] }
}
