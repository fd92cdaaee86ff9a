//! The tiles: their shape, and where its parts are in shared memory.

use super::super::items::{NUM_SLOTS, SLOT_BYTES};
use super::super::tiles::{MAX_SHARED_BYTES, TileShape};
use super::softmax::Exponentials;
use super::weights::Weight;
use crate::kv_cache::PAGE_SIZE;
use crate::tile::pipeline::Pipeline;
use cuda_std::E4m3;
use cuda_std::wgmma::Swizzle;
use half::f16;

/// Bytes of k that one MMA reads of a row: 32 of E4M3, 16 of f16.
pub(super) const STEP_BYTES: u32 = 32;

/// Keys whose weights and values, in 8 bits, the tensor cores add up.
const FLUSH_KEYS: u32 = 1024;

/// Bytes of an operand B of ones, 8 columns of a k-step: times the weights, it gives their sums.
pub(super) const ONES_BYTES: u32 = 8 * STEP_BYTES;

/// A tile of operands in E4M3.
pub(super) trait Fp8Tile: TileShape {
    /// Element of the weights and of V, as they are multiplied.
    type Weight: Weight;
    /// Stages of Q.
    const Q_STAGES: u32;
    /// Stages of K, and of V as it is multiplied.
    const STAGES: u32;
    /// Every so many weights one is computed by a polynomial; 0: none.
    const POLYNOMIAL_EVERY: usize = 0;
    /// Whether P V so far is rescaled only if a maximum of the warp has grown.
    const SKIPS: bool = true;
    /// Whether warpgroups take turns.
    const TURNS: bool = false;
    /// Whether warpgroups take turns to compute exponentials.
    const EXP_TURNS: bool = true;
    /// Eighths of the exponentials after which a turn ends.
    const TURN_EIGHTHS: usize = 8;

    /// Whether V is converted.
    const IS_CONVERTED: bool = size_of::<Self::Weight>() != 1;
    /// Whether the tensor cores add the weights, which so are rounded as those that V is multiplied
    /// by.
    const ADDS_ROUNDED: bool = !Self::IS_CONVERTED;
    /// Stages of V before its conversion.
    const STAGING_STAGES: u32 = if Self::IS_CONVERTED { 2 } else { 0 };

    /// Columns of a panel of Q or K, which lie one after the other.
    const PANEL: u32 = if Self::WIDTH <= 64 { 64 } else { 128 };
    const NUM_PANELS: u32 = Self::WIDTH.div_ceil(Self::PANEL);
    /// Swizzle of the rows of a panel.
    const SWIZZLE: Swizzle = if Self::PANEL == 64 { Swizzle::B64 } else { Swizzle::B128 };

    /// Bytes of Q, of a block of K, and of a block of V in E4M3 and as it is multiplied.
    const Q_BYTES: u32 = Self::NUM_PANELS * Self::PANEL * Self::BLOCK_M;
    const K_BYTES: u32 = Self::NUM_PANELS * Self::PANEL * Self::BLOCK_N;
    const V8_BYTES: u32 = Self::WIDTH * Self::BLOCK_N;
    const V_BYTES: u32 = Self::V8_BYTES * size_of::<Self::Weight>() as u32;
    /// Bytes of a page of V as it is multiplied: its columns are rows.
    const V_PAGE_BYTES: u32 = Self::V_BYTES / Self::BLOCK_PAGES;

    /// Blocks of keys after which P V is moved to shared memory, as tensor cores keep few bits of
    /// 8-bit products beside a large accumulator; 0: never.
    const FLUSH_BLOCKS: u32 = if Self::IS_CONVERTED { 0 } else { FLUSH_KEYS / Self::BLOCK_N };
    /// Bytes of P V there.
    const TOTAL_BYTES: u32 =
        if Self::FLUSH_BLOCKS > 0 { 4 * Self::BLOCK_M * Self::WIDTH } else { 0 };

    /// Offsets in shared memory: stages of Q, of K, of V, ones, P V, work items, barriers.
    const K_AT: u32 = Self::Q_STAGES * Self::Q_BYTES;
    const V_AT: u32 = Self::K_AT + Self::STAGES * Self::K_BYTES;
    const STAGING_AT: u32 = Self::V_AT + Self::STAGES * Self::V_BYTES;
    const ONES_AT: u32 = Self::STAGING_AT + Self::STAGING_STAGES * Self::V8_BYTES;
    const TOTAL_AT: u32 = Self::ONES_AT + ONES_BYTES;
    const ITEMS_AT: u32 = Self::TOTAL_AT + Self::TOTAL_BYTES;
    const ITEM_BARRIERS_AT: u32 = Self::ITEMS_AT + SLOT_BYTES;
    const Q_BARRIERS_AT: u32 = Self::ITEM_BARRIERS_AT + 8 * Pipeline::num_words(NUM_SLOTS);
    const K_BARRIERS_AT: u32 = Self::Q_BARRIERS_AT + 8 * Pipeline::num_words(Self::Q_STAGES);
    const V_BARRIERS_AT: u32 = Self::K_BARRIERS_AT + 8 * Pipeline::num_words(Self::STAGES);
    const STAGING_BARRIERS_AT: u32 = Self::V_BARRIERS_AT + 8 * Pipeline::num_words(Self::STAGES);
    const TAIL_BARRIER_AT: u32 =
        Self::STAGING_BARRIERS_AT + 8 * Pipeline::num_words(Self::STAGING_STAGES);
    /// Shared memory of a block.
    const SHARED_BYTES: u32 = Self::TAIL_BARRIER_AT + 8;

    /// What every tile must satisfy; the kernel evaluates it.
    const IS_VALID: () = {
        let () = Self::IS_SHAPE;
        assert!(Self::SHARED_BYTES <= MAX_SHARED_BYTES);
        assert!(Self::V_PAGE_BYTES.is_multiple_of(1024) && PAGE_SIZE == 64);
    };
}

/// Constants with other values than the trait's.
macro_rules! fp8_consts {
    ($($const:ident = $value:expr),*) => { $(fp8_consts!(@ $const $value);)* };
    (@ EXP_TURNS $value:expr) => { const EXP_TURNS: bool = $value; };
    (@ TURN_EIGHTHS $value:expr) => { const TURN_EIGHTHS: usize = $value; };
    (@ TURNS $value:expr) => { const TURNS: bool = $value; };
    (@ SKIPS $value:expr) => { const SKIPS: bool = $value; };
    (@ POLYNOMIAL_EVERY $value:expr) => { const POLYNOMIAL_EVERY: usize = $value; };
}

/// Declares tiles: consumers, stages of Q, stages of K and V, keys of a block, columns, element of
/// the weights.
macro_rules! tiles {
    ($(
        $(#[$meta:meta])*
        $name:ident: $consumers:literal, $q_stages:literal, $stages:literal, $n:literal, $width:literal,
        $weight:ty $(, $const:ident = $value:expr)*;
    )*) => {$(
        $(#[$meta])*
        pub struct $name;

        impl TileShape for $name {
            const CONSUMERS: u32 = $consumers;
            const BLOCK_N: u32 = $n;
            const WIDTH: u32 = $width;
        }

        impl Fp8Tile for $name {
            type Weight = $weight;
            const Q_STAGES: u32 = $q_stages;
            const STAGES: u32 = $stages;
            fp8_consts!($($const = $value),*);
        }
    )*};
}

tiles! {
    /// Heads of up to 64 columns.
    FastD64: 3, 2, 4, 128, 64, E4m3;
    StrictD64: 2, 2, 4, 128, 64, f16;
    /// Heads of up to 96 columns.
    FastD96: 2, 2, 4, 128, 96, E4m3;
    StrictD96: 2, 2, 2, 128, 96, f16;
    /// Heads of up to 128 columns.
    FastD128: 2, 2, 4, 128, 128, E4m3;
    FastD128NoSkip: 2, 2, 4, 128, 128, E4m3, SKIPS = false;
    FastD128P8: 2, 2, 4, 128, 128, E4m3, TURN_EIGHTHS = 4;
    FastD128P4: 2, 2, 4, 128, 128, E4m3, TURN_EIGHTHS = 6;
    FastD128N128: 2, 2, 2, 192, 128, E4m3, TURN_EIGHTHS = 4;
    FastD128N128P8: 2, 2, 4, 128, 128, E4m3, POLYNOMIAL_EVERY = 16;
    FastD128NoTurns: 2, 2, 4, 128, 128, E4m3, TURN_EIGHTHS = 2;
    FastD128Fresh: 2, 2, 2, 192, 128, E4m3;
    StrictD128: 2, 2, 2, 128, 128, f16;
    StrictD128NoTurns: 2, 2, 2, 128, 128, f16, TURN_EIGHTHS = 4;
    StrictD128P8: 2, 2, 2, 128, 128, f16, TURN_EIGHTHS = 6;
    /// Heads of up to 256 columns.
    FastD256: 2, 1, 2, 64, 256, E4m3;
    StrictD256: 2, 2, 2, 64, 256, f16;
}

impl<T: Fp8Tile> Exponentials for OfTile<T> {
    const SHIFT: f32 = T::Weight::SHIFT;
    const POLYNOMIAL_EVERY: usize = T::POLYNOMIAL_EVERY;
    const IS_COARSE: bool = T::Weight::IS_COARSE;
    const ADDS_WEIGHTS: bool = !T::ADDS_ROUNDED;
}

/// The exponentials of a tile.
pub(super) struct OfTile<T>(core::marker::PhantomData<T>);
