//! The products of a warp: weights from global memory to the tensor cores, with no stop in between.
//!
//! A lane loads 16 bytes of a row of the weight, eight elements along k, and of a row of x as many
//! from the same k on. Its words are those of two `m16n8k16` as they stand: what the fragments call
//! columns `2 * pair` and `2 * pair + 8` are neighbours in memory, in both operands alike, so that
//! the sum runs over the same products. `group` is the row of either.

use crate::tile::element::Operand16;
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;

/// Rows of x, and of the weight, in a tile: the lanes' groups.
pub const TILE: u32 = 8;

/// Elements of a 16-byte load.
pub const LOAD_K: u32 = 8;

/// Words of it.
const LOAD_WORDS: usize = 4;

/// Elements of k in a step: the loads of four lanes, side by side in a row.
const STEP_K: u32 = 32;

/// Elements of k that a warp takes at once: two steps, the 128 bytes of a cache line.
const LINE_K: u32 = 2 * STEP_K;

/// Loads of a lane in a stage. Two stages are under way: as many bytes as `2 * STAGE_LOADS * 16` a
/// lane, 32 KiB for eight warps, which is what an SM's part of 4.4 TB/s needs at 900 ns.
const STAGE_LOADS: usize = 4;

/// Steps of a stage, each a load of every tile.
const fn stage_steps(tiles_n: usize) -> usize {
    STAGE_LOADS / tiles_n
}

/// Steps whose x is loaded at once: the two of a line, if there are registers.
const fn x_steps(tiles_m: usize, tiles_n: usize) -> usize {
    if tiles_m <= 4 && stage_steps(tiles_n) >= 2 { 2 } else { 1 }
}

/// Where a warp's step is in k, from its first one on. Its lines alternate with the other warps'.
const fn step_offset(warps: usize, step: usize) -> u32 {
    (step / 2 * warps) as u32 * LINE_K + (step % 2) as u32 * STEP_K
}

/// The weights of a stage.
type Stage = [[u32; LOAD_WORDS]; STAGE_LOADS];

/// A lane's place along k.
#[derive(Clone, Copy)]
pub struct Cursor {
    /// First element of the warp's next line.
    warp_k: u32,
    /// Elements of k.
    k: u32,
    /// Where `warp_k` has to stay below, for the lane's load to be inside its row.
    lane_end: u32,
}

impl Cursor {
    /// The start of the lane's part of `k`.
    #[inline(always)]
    pub fn new(k: u32) -> Self {
        let lane_end = k.saturating_sub(lane_pair() * LOAD_K);
        Cursor { warp_k: warp::warp_idx() * LINE_K, k, lane_end }
    }

    /// Whether the warp has products `offset` elements on.
    #[inline(always)]
    fn is_inside(&self, offset: u32) -> bool {
        self.warp_k + offset < self.k
    }

    /// Whether the lane has a load there.
    #[inline(always)]
    fn has_load(&self, offset: u32) -> bool {
        self.warp_k + offset < self.lane_end
    }

    /// The words of the lane's load, `offset` elements on in `row` of `matrix`; the constant is part
    /// of the instruction.
    #[inline(always)]
    fn words(&self, matrix: Global<u16>, row: LaneRow, offset: u32) -> Global<u32> {
        let load = (row.0 + self.warp_k / LOAD_K) as usize;
        matrix.cast().wrapping_add(load * LOAD_WORDS).wrapping_add((offset / 2) as usize)
    }
}

/// Where a lane's loads of a row start, in loads from the start of the matrix: half the registers of
/// an address.
#[derive(Clone, Copy)]
pub struct LaneRow(u32);

impl LaneRow {
    /// The lane's loads of `row`, where rows are `stride` elements apart.
    #[inline(always)]
    pub fn new(row: u32, stride: u32) -> Self {
        LaneRow(row * (stride / LOAD_K) + lane_pair())
    }
}

/// The row of a tile that the lane loads.
#[inline(always)]
pub fn lane_group() -> u32 {
    warp::lane_id() / 4
}

/// Which of the four loads of a row is the lane's.
#[inline(always)]
pub fn lane_pair() -> u32 {
    warp::lane_id() % 4
}

/// The weights of stage `STAGE` from the cursor on, zero past the rows' ends.
///
/// # Safety
/// 1. `rows` are rows of `weight`, of `k` elements, at multiples of 16 bytes.
#[inline(always)]
pub unsafe fn load_stage<const TILES_N: usize, const WARPS: usize, const STAGE: usize>(
    (weight, rows): (Global<u16>, &[LaneRow; TILES_N]),
    cursor: Cursor,
) -> Stage {
    let mut stage = [[0; LOAD_WORDS]; STAGE_LOADS];
    unroll!(load in 0..4, {
        let offset = step_offset(WARPS, STAGE * stage_steps(TILES_N) + load / TILES_N);
        let words = cursor.words(weight, rows[load % TILES_N], offset);
        // SAFETY: inside the row, by the condition.
        stage[load] = unsafe { words.stream_vec_l2_256b_if(0, cursor.has_load(offset)) };
    });
    stage
}

/// Adds the products of stage `STAGE` of the weights.
///
/// # Safety
/// 1. `rows` are rows of `x`, of `k` elements, at multiples of 16 bytes.
#[inline(always)]
pub unsafe fn multiply_stage<
    E: Operand16,
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
    const STAGE: usize,
>(
    x: (Global<u16>, &[LaneRow; TILES_M]),
    cursor: Cursor,
    stage: &Stage,
    acc: &mut [[Accumulator; TILES_N]; TILES_M],
) {
    let num_steps = const { x_steps(TILES_M, TILES_N) };
    unroll!(group in 0..4, {
        let first = group * num_steps;
        let offset = |step| step_offset(WARPS, STAGE * stage_steps(TILES_N) + first + step);
        if first < stage_steps(TILES_N) && cursor.is_inside(offset(0)) {
            let mut words = [[[0; LOAD_WORDS]; TILES_M]; 2];
            for step in 0..num_steps {
                // SAFETY: the caller's promise.
                words[step] = unsafe { load_x(x, cursor, offset(step)) };
            }
            for step in 0..num_steps {
                let weights = (first + step) * TILES_N;
                multiply_step::<E, TILES_M, TILES_N>(&words[step], stage, weights, acc);
            }
        }
    });
}

/// The lane's words of each row of x, `offset` elements from the cursor on, zero past the rows' end.
///
/// # Safety
/// As [`multiply_stage`].
#[inline(always)]
unsafe fn load_x<const TILES_M: usize>(
    (x, rows): (Global<u16>, &[LaneRow; TILES_M]),
    cursor: Cursor,
    offset: u32,
) -> [[u32; LOAD_WORDS]; TILES_M] {
    let mut words = [[0; LOAD_WORDS]; TILES_M];
    unroll!(tile in 0..TILES_M, {
        // SAFETY: inside the row, by the condition.
        words[tile] =
            unsafe { cursor.words(x, rows[tile], offset).get_vec_if(0, cursor.has_load(offset)) };
    });
    words
}

/// Adds the products of a step, whose weights are `stage[first..]`.
#[inline(always)]
fn multiply_step<E: Operand16, const TILES_M: usize, const TILES_N: usize>(
    x: &[[u32; LOAD_WORDS]; TILES_M],
    stage: &Stage,
    first: usize,
    acc: &mut [[Accumulator; TILES_N]; TILES_M],
) {
    for half in 0..2 {
        for pair in 0..TILES_M.div_ceil(2) {
            let lower = x[2 * pair];
            let upper = if 2 * pair + 1 < TILES_M {
                x[2 * pair + 1]
            } else {
                // Rows that nobody stores: what stands in these registers anyway.
                [lower[1], lower[3], lower[1], lower[3]]
            };
            let a = [lower[2 * half], upper[2 * half], lower[2 * half + 1], upper[2 * half + 1]];
            for tile in 0..TILES_N {
                let weights = stage[first + tile];
                let b = [weights[2 * half], weights[2 * half + 1]];
                let (a, b) = (FragmentA::<E>::from_words(a), FragmentB::from_words(b));
                acc[pair][tile] = m16n8k16(a, b, acc[pair][tile]);
            }
        }
    }
}

/// Adds all products of the warp to `acc`, where `acc[i]` is of rows `16 * i` to `16 * i + 15`, and
/// what the array has beyond that is left alone.
///
/// # Safety
/// As [`load_stage`] of `weights`, and [`multiply_stage`] of `x`.
#[inline(always)]
pub unsafe fn multiply<
    E: Operand16,
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
>(
    x: (Global<u16>, &[LaneRow; TILES_M]),
    weights: (Global<u16>, &[LaneRow; TILES_N]),
    mut cursor: Cursor,
    mut stages: [Stage; 2],
    acc: &mut [[Accumulator; TILES_N]; TILES_M],
) {
    // SAFETY: the caller's promise.
    unsafe {
        while cursor.is_inside(0) {
            let here = cursor;
            cursor.warp_k += step_offset(WARPS, 2 * stage_steps(TILES_N));
            multiply_stage::<E, TILES_M, TILES_N, WARPS, 0>(x, here, &stages[0], acc);
            stages[0] = load_stage::<TILES_N, WARPS, 0>(weights, cursor);
            multiply_stage::<E, TILES_M, TILES_N, WARPS, 1>(x, here, &stages[1], acc);
            stages[1] = load_stage::<TILES_N, WARPS, 1>(weights, cursor);
        }
    }
}
