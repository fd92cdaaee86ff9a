//! The formats of packed weights, as a lane of a warp reads them.
//!
//! A tile is 16 rows by 256 elements along k: its scales, then up to four units of 64 elements
//! along k. Row `r` of a tile is row `r` of A. Elements `4 * pair .. 4 * pair + 4` of the 16 of an
//! MMA step are columns `2 * pair`, `2 * pair + 1`, `2 * pair + 8` and `2 * pair + 9` of A for lane
//! `pair` of a group of four, see [`cuda_std::mma`]; B is permuted alike.
//!
//! A quant is a subnormal f16, `q * 2^-24`: exact, with no bias to subtract. Where two rows share
//! a byte, the lower row's quants are multiplied by 16 ([`Format::LOWER_ROW`]).

use cuda_std::cp_async::copy_vec;
use cuda_std::prelude::*;
use cuda_std::{F16x2, unroll};
use half::f16;

/// Rows of a tile.
pub const TILE_ROWS: u32 = 16;

/// Elements of a tile along k.
pub const TILE_K: u32 = 256;

/// Elements of a unit along k.
pub const UNIT_K: u32 = 64;

/// Units of a tile.
pub const TILE_UNITS: usize = (TILE_K / UNIT_K) as usize;

/// Elements of an MMA along k.
pub const STEP_K: u32 = 16;

/// MMA steps of a unit.
pub const UNIT_STEPS: usize = (UNIT_K / STEP_K) as usize;

/// MMA steps of a tile.
pub const TILE_STEPS: usize = TILE_UNITS * UNIT_STEPS;

/// 1 over what an f16 subnormal counts.
const SUBNORMALS: f32 = (1 << 24) as f32;

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
pub struct Maybe {
    memory: Global<u8>,
    is_there: bool,
}

impl Source for Maybe {
    #[inline(always)]
    unsafe fn words<const N: usize>(self, bytes: u32) -> [u32; N] {
        let words = self.memory.wrapping_add(bytes as usize).cast::<u32>();
        // SAFETY: the caller's promise.
        unsafe { words.stream_vec_if(0, self.is_there) }
    }

    #[inline(always)]
    fn from(self, bytes: u32) -> Self {
        Maybe { memory: self.memory.wrapping_add(bytes as usize), ..self }
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
    /// Consecutive MMA steps whose elements share a scale: 1 or 2.
    const GROUP_STEPS: usize;
    /// What is added to each quant.
    const OFFSET: f32;
    /// Whether groups have a `min`.
    const MINS: Mins;
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

    /// A fragment of A: the lane's quants in step `step` of a unit.
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4];

    /// A fragment of A: the mins of the lane's rows, where they are integers. Columns 0 to 7 are the
    /// groups, columns 8 to 15 again, divided by [`MEAN_REST`].
    #[inline(always)]
    fn min_fragment(_: &Self::Scales) -> [u32; 4] {
        [0; 4]
    }
}

/// What the rest of a mean, beyond f16, is multiplied by before it is rounded to f16.
pub const MEAN_REST: f32 = (1 << 11) as f32;

/// What the quants of row `row` (0 or 1) of a lane are multiplied by to be integers.
#[inline(always)]
pub fn quant_scale<F: Format>(row: usize) -> f32 {
    if row == 0 { SUBNORMALS } else { SUBNORMALS / F::LOWER_ROW }
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

/// Loads 16 bytes of each of the lane's rows; rows have `row_bytes`, and the bytes start at
/// `first`.
///
/// # Safety
/// As [`Format::load_scales`].
#[inline(always)]
unsafe fn load_rows(tile: impl Source, row_bytes: u32, first: u32) -> ScaleRows<4> {
    let tile = tile.from(lane_group() * row_bytes);
    // SAFETY: the caller's promise.
    unsafe { [tile.words(first), tile.words(8 * row_bytes + first)] }
}

/// Quants of four bits and `HIGH_BITS` more (0, 1 or 2), of which a byte of the low ones has two
/// rows: a lane's unit.
#[derive(Clone, Copy, Default)]
pub struct Nibbles<const HIGH_BITS: usize> {
    /// A word a step: columns 0, 8, 1, 9 of the lane's from the lowest byte on; the upper row in
    /// the lower nibbles.
    low: [u32; UNIT_STEPS],
    /// The high bits of `4 / HIGH_BITS` steps a word. In each half of a word bits `HIGH_BITS *
    /// step` on are those of the lower row's second column, those 4, 8 and 12 further on are of
    /// the upper row's first, the lower row's first and the upper row's second.
    high: [u32; 2],
}

impl<const HIGH_BITS: usize> Nibbles<HIGH_BITS> {
    /// Bytes of a unit.
    const BYTES: u32 = 512 + 128 * HIGH_BITS as u32;

    /// As [`Format::load_unit`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn load(unit: impl Source) -> Self {
        let lane = warp::lane_id();
        let high = unit.from(4 * HIGH_BITS as u32 * lane);
        // SAFETY: the caller's promise.
        unsafe {
            let low = unit.from(16 * lane).words(0);
            let high = match HIGH_BITS {
                0 => [0; 2],
                1 => {
                    let [word] = high.words(512);
                    [word, 0]
                }
                _ => high.words(512),
            };
            Nibbles { low, high }
        }
    }

    /// As [`Format::fragment`].
    #[inline(always)]
    fn fragment(&self, step: usize) -> [u32; 4] {
        let low = self.low[step];
        let mut words = [
            low & 0x000f_000f,
            low & 0x00f0_00f0,
            (low >> 8) & 0x000f_000f,
            (low >> 8) & 0x00f0_00f0,
        ];
        if HIGH_BITS > 0 {
            let (word, shift) = (step * HIGH_BITS / 4, step * HIGH_BITS % 4);
            let mask = ((1 << HIGH_BITS) - 1) * 0x0001_0001;
            // Bytes of each half swapped, the second columns' bits are where the first's are.
            let first = self.high[word] >> shift;
            let second = math::byte_perm(self.high[word], 0, 0x2301) >> shift;
            words[0] |= first & (mask << 4);
            words[1] |= first & (mask << 8);
            words[2] |= second & (mask << 4);
            words[3] |= second & (mask << 8);
        }
        words
    }
}

/// The byte `byte` of four, as a float; `BIAS` is subtracted.
#[inline(always)]
fn byte_to_f32<const BIAS: u32>(bytes: u32, byte: usize) -> f32 {
    /// 2^23: its last bit counts 1.
    const ONES: u32 = 0x4b00_0000;
    let bits = math::byte_perm(bytes, ONES, 0x7440 | byte as u32);
    f32::from_bits(bits) - (f32::from_bits(ONES) + BIAS as f32)
}

/// The f16 `half` of a word, as a float.
#[inline(always)]
fn half_to_f32(word: u32, half: usize) -> f32 {
    let pair = F16x2::from_bits(word);
    convert::f16_to_f32(if half == 0 { pair.lo() } else { pair.hi() })
}

/// The scales and minima of Q4_K and Q5_K: six bits each.
#[derive(Clone, Copy)]
pub struct SixBitScales {
    /// Of both rows: bytes of groups 0 to 3, and 4 to 7.
    scales: ScaleRows<2>,
    mins: ScaleRows<2>,
    /// `d` and `dmin`.
    factors: [u32; 2],
}

/// A block of 256 elements in Q4_K (0 high bits) or Q5_K (1): `d * scale * q - dmin * min`, groups
/// of 32.
pub struct SixBit<const HIGH_BITS: usize>;

impl<const HIGH_BITS: usize> Format for SixBit<HIGH_BITS> {
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = 0.0;
    const MINS: Mins = Mins::Integers;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 16 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<HIGH_BITS>::BYTES;
    type Loaded = ScaleRows<4>;
    type Scales = SixBitScales;
    type Unit = Nibbles<HIGH_BITS>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> ScaleRows<4> {
        // SAFETY: the caller's promise.
        unsafe { load_rows(tile, 16, 0) }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack(loaded: ScaleRows<4>) -> SixBitScales {
        // Groups 4 to 7 have their upper two bits in the bytes of groups 0 to 3.
        let upper = |word: u32| (word >> 2) & 0x3030_3030;
        let scales = loaded.map(|[_, scales, _, rest]| {
            [scales & 0x3f3f_3f3f, (rest & 0x0f0f_0f0f) | upper(scales)]
        });
        let mins = loaded.map(|[_, _, mins, rest]| {
            [mins & 0x3f3f_3f3f, ((rest >> 4) & 0x0f0f_0f0f) | upper(mins)]
        });
        SixBitScales { scales, mins, factors: loaded.map(|[factors, ..]| factors) }
    }

    #[inline(always)]
    fn group_scale(scales: &SixBitScales, row: usize, group: usize) -> [f32; 2] {
        [&scales.scales, &scales.mins].map(|of| byte_to_f32::<0>(of[row][group / 4], group % 4))
    }

    #[inline(always)]
    fn row_scale(scales: &SixBitScales, row: usize) -> [f32; 2] {
        [half_to_f32(scales.factors[row], 0), -half_to_f32(scales.factors[row], 1)]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }

    #[inline(always)]
    fn min_fragment(scales: &SixBitScales) -> [u32; 4] {
        /// 1024 in f16: its last bit counts 1.
        const ONES: u32 = 0x6400_6400;
        const ONE_BY_REST: f16 = f16::from_bits(0x1000);
        let pair = 2 * lane_pair();
        let mins = |[low, high]: [u32; 2]| {
            let bytes = math::byte_perm(low, high, pair | (pair + 1) << 4);
            let halves = F16x2::from_bits(math::byte_perm(bytes, ONES, 0x7150));
            f16x2::sub(halves, F16x2::from_bits(ONES))
        };
        let [upper, lower] = scales.mins.map(mins);
        let rest = |mins| f16x2::mul(mins, F16x2::splat(ONE_BY_REST));
        [upper, lower, rest(upper), rest(lower)].map(F16x2::to_bits)
    }
}

/// A block of 256 elements in Q6_K: `d * scale * (q - 32)`, groups of 16.
pub struct Q6K;

impl Format for Q6K {
    const GROUP_STEPS: usize = 1;
    const OFFSET: f32 = -32.0;
    const MINS: Mins = Mins::None;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 18 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<2>::BYTES;
    /// Signed bytes of both rows; then `d` of both.
    type Loaded = (ScaleRows<4>, u32);
    /// As loaded, 128 added to each byte.
    type Scales = (ScaleRows<4>, u32);
    type Unit = Nibbles<2>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> Self::Loaded {
        // SAFETY: the caller's promise.
        unsafe {
            let [factors] = tile.from(4 * lane_group()).words(16 * TILE_ROWS);
            (load_rows(tile, 16, 0), factors)
        }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack((scales, factors): Self::Loaded) -> Self::Scales {
        (scales.map(|row| row.map(|word| word ^ 0x8080_8080)), factors)
    }

    #[inline(always)]
    fn group_scale((scales, factors): &Self::Scales, row: usize, group: usize) -> [f32; 2] {
        let scale = byte_to_f32::<128>(scales[row][group / 4], group % 4);
        [scale * half_to_f32(*factors, row), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }
}

/// Blocks of 32 elements in Q4_0 (0 high bits) or Q5_0 (1): `d * (q - 8)`, or `d * (q - 16)`.
pub struct Symmetric<const HIGH_BITS: usize>;

impl<const HIGH_BITS: usize> Format for Symmetric<HIGH_BITS> {
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = -((8 << HIGH_BITS) as f32);
    const MINS: Mins = Mins::None;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 16 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<HIGH_BITS>::BYTES;
    type Loaded = ScaleRows<4>;
    type Scales = ScaleRows<4>;
    type Unit = Nibbles<HIGH_BITS>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> ScaleRows<4> {
        // SAFETY: the caller's promise.
        unsafe { load_rows(tile, 16, 0) }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack(loaded: ScaleRows<4>) -> ScaleRows<4> {
        loaded
    }

    #[inline(always)]
    fn group_scale(scales: &ScaleRows<4>, row: usize, group: usize) -> [f32; 2] {
        [half_to_f32(scales[row][group / 2], group % 2), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }
}

/// Blocks of 32 elements in Q4_1 (0 high bits) or Q5_1 (1): `d * q + m`.
pub struct Affine<const HIGH_BITS: usize>;

impl<const HIGH_BITS: usize> Format for Affine<HIGH_BITS> {
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = 0.0;
    const MINS: Mins = Mins::Floats;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 32 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<HIGH_BITS>::BYTES;
    /// `d` and `m` of groups 0 to 3, and 4 to 7.
    type Loaded = [ScaleRows<4>; 2];
    type Scales = [ScaleRows<4>; 2];
    type Unit = Nibbles<HIGH_BITS>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> Self::Loaded {
        // SAFETY: the caller's promise.
        [0, 16].map(|first| unsafe { load_rows(tile, 32, first) })
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack(loaded: Self::Loaded) -> Self::Scales {
        loaded
    }

    #[inline(always)]
    fn group_scale(scales: &Self::Scales, row: usize, group: usize) -> [f32; 2] {
        let word = scales[group / 4][row][group % 4];
        [half_to_f32(word, 0), half_to_f32(word, 1)]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }
}

/// Blocks of 32 elements in Q8_0: `d * (q - 128)`, the bytes' signs flipped.
pub struct Q80;

impl Format for Q80 {
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = -128.0;
    const MINS: Mins = Mins::None;
    const LOWER_ROW: f32 = 1.0;
    const SCALE_BYTES: u32 = 16 * TILE_ROWS;
    const UNIT_BYTES: u32 = UNIT_K * TILE_ROWS;
    type Loaded = ScaleRows<4>;
    type Scales = ScaleRows<4>;
    /// Steps 0 and 1, then 2 and 3: a word a row, columns 0, 8, 1, 9 from the lowest byte on.
    type Unit = [[u32; 4]; 2];

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> ScaleRows<4> {
        // SAFETY: the caller's promise.
        unsafe { load_rows(tile, 16, 0) }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        let unit = unit.from(16 * warp::lane_id());
        // SAFETY: the caller's promise.
        unsafe { [unit.words(0), unit.words(512)] }
    }

    #[inline(always)]
    fn unpack(loaded: ScaleRows<4>) -> ScaleRows<4> {
        loaded
    }

    #[inline(always)]
    fn group_scale(scales: &ScaleRows<4>, row: usize, group: usize) -> [f32; 2] {
        [half_to_f32(scales[row][group / 2], group % 2), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        let [upper, lower] = [0, 1].map(|row| unit[step / 2][step % 2 * 2 + row]);
        let bytes = |word: u32| word & 0x00ff_00ff;
        [bytes(upper), bytes(lower), bytes(upper >> 8), bytes(lower >> 8)]
    }
}

/// A lane's part of a tile.
pub struct Tile<F: Format> {
    /// Its scales, as loaded.
    pub scales: F::Loaded,
    /// Its quants.
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
        unsafe { F::load_scales(Maybe { memory: self.tile, is_there: self.num_units > 0 }) }
    }

    /// Issues the loads of the lane's quants of unit `unit`; zeros if there is none.
    ///
    /// # Safety
    /// As [`TilePtr::load_scales`].
    #[inline(always)]
    pub unsafe fn load_unit<F: Format>(&self, unit: usize) -> F::Unit {
        let at = F::SCALE_BYTES + unit as u32 * F::UNIT_BYTES;
        let memory = self.tile.wrapping_add(at as usize);
        let is_there = (unit as u32) < self.num_units;
        // SAFETY: inside the tile, by the condition.
        unsafe { F::load_unit(Maybe { memory, is_there }) }
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
}
