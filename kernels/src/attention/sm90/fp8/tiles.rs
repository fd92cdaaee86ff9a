//! The tiles: their shape, and where its parts are in shared memory.

use super::super::items::{NUM_SLOTS, SLOT_BYTES};
use super::super::tiles::{MAX_SHARED_BYTES, TileShape};
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

    /// Whether V is converted.
    const IS_CONVERTED: bool = size_of::<Self::Weight>() != 1;
    /// Stages of V before its conversion.
    const STAGING_STAGES: u32 = if Self::IS_CONVERTED { 2 } else { 0 };

    /// Registers of a thread of the producer, more where it converts V and the consumers have few
    /// columns, and of the two consumers.
    const PRODUCER_REGISTERS: u32 = if Self::IS_CONVERTED && Self::WIDTH <= 128 { 72 } else { 56 };
    const CONSUMER_REGISTERS: u32 =
        if Self::IS_CONVERTED && Self::WIDTH <= 128 { 216 } else { 224 };

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
        assert!(Self::CONSUMERS == 2, "others have no registers set");
        assert!(Self::SHARED_BYTES <= MAX_SHARED_BYTES);
        assert!(Self::V_PAGE_BYTES.is_multiple_of(1024) && PAGE_SIZE == 64);
    };
}

/// Declares tiles: consumers, stages of Q, stages of K and V, keys of a block, columns, element of
/// the weights.
macro_rules! tiles {
    ($(
        $(#[$meta:meta])*
        $name:ident: $consumers:literal, $q_stages:literal, $stages:literal, $n:literal, $width:literal,
        $weight:ty;
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
        }
    )*};
}

tiles! {
    /// Heads of up to 64 columns.
    FastD64: 2, 2, 4, 128, 64, E4m3;
    StrictD64: 2, 2, 4, 128, 64, f16;
    /// Heads of up to 96 columns.
    FastD96: 2, 2, 4, 128, 96, E4m3;
    StrictD96: 2, 2, 2, 128, 96, f16;
    /// Heads of up to 128 columns.
    FastD128: 2, 2, 4, 128, 128, E4m3;
    StrictD128: 2, 2, 2, 128, 128, f16;
    /// Heads of up to 256 columns.
    FastD256: 2, 1, 2, 64, 256, E4m3;
    StrictD256: 2, 1, 2, 64, 256, f16;
}
