//! The products of a warp: weights from global memory to the tensor cores, with no stop in between.
//!
//! A lane loads 16 bytes of a row of the weight, eight elements along k, and of a row of x as many
//! from the same k on. Its words are those of two `m16n8k16` as they stand: what the fragments call
//! columns `2 * pair` and `2 * pair + 8` are neighbours in memory, in both operands alike, so that
//! the sum runs over the same products. `group` is the row of either.

use super::input::Input;
use crate::tile::element::Operand16;
use cuda_std::mma::{Accumulator, FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;

/// Rows of x, and of the weight, in a tile: the lanes' groups.
pub const TILE: u32 = 8;

/// Elements of a 16-byte load.
pub const LOAD_K: u32 = 8;

/// Words of it.
pub const LOAD_WORDS: usize = 4;

/// Elements of k in a step: the loads of four lanes, side by side in a row.
pub const STEP_K: u32 = 32;

/// Elements of k that a warp takes at once: two steps, the 128 bytes of a cache line.
pub const LINE_K: u32 = 2 * STEP_K;

/// Loads of weights that a lane has under way, [`NUM_LINES`](num_lines) lines of every tile: for
/// eight warps 32 KiB, an SM's part of 4.4 TB/s for 980 ns. ptxas gives them one scoreboard: the
/// first product waits for all, so that a ring of smaller stages would gain nothing.
const LOADS: usize = 8;

/// Steps of a line.
pub const STEPS: usize = (LINE_K / STEP_K) as usize;

/// Most lines of a round.
const MAX_LINES: usize = LOADS / STEPS;

/// Lines of a round.
const fn num_lines(tiles_n: usize) -> usize {
    LOADS / STEPS / tiles_n
}

/// Steps whose x is loaded at once: as many as there are registers for.
const fn x_steps(tiles_m: usize, tiles_n: usize) -> usize {
    if tiles_m <= 4 && tiles_m * tiles_n <= 8 { STEPS } else { 1 }
}

/// Where a warp's line is in k, from its first one on: lines are dealt to the warps in turn.
const fn line_offset(warps: usize, line: usize) -> u32 {
    (line * warps) as u32 * LINE_K
}

/// Eight elements of one row.
pub type Load = [u32; LOAD_WORDS];

/// The weights of a line.
type Line<const TILES_N: usize> = [[Load; TILES_N]; STEPS];

/// The weights of a round: [`num_lines`] of them.
pub type Round<const TILES_N: usize> = [Line<TILES_N>; MAX_LINES];

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
    pub fn is_inside(&self, offset: u32) -> bool {
        self.warp_k + offset < self.k
    }

    /// Goes on by `elems` elements.
    #[inline(always)]
    pub fn advance(&mut self, elems: u32) {
        self.warp_k += elems;
    }

    /// Whether the lane has a load there.
    #[inline(always)]
    pub fn has_load(&self, offset: u32) -> bool {
        self.warp_k + offset < self.lane_end
    }

    /// The element `offset` on from the warp's line.
    #[inline(always)]
    pub fn element(&self, offset: u32) -> u32 {
        self.warp_k + offset
    }

    /// The words of the lane's load, `offset` elements on in `row` of `matrix`; the constant is part
    /// of the instruction.
    #[inline(always)]
    pub fn words(&self, matrix: Global<u16>, row: LaneRow, offset: u32) -> Global<u32> {
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

    /// The lane's loads `rows` rows on.
    #[inline(always)]
    pub fn down(self, rows: u32, stride: u32) -> Self {
        LaneRow(self.0 + rows * (stride / LOAD_K))
    }
}

/// Which row of a tile a group of lanes takes.
#[derive(Clone, Copy)]
pub enum TileOrder {
    /// As they lie: the first group the first one.
    AsStored,
    /// Rows 0, 4, 1, 5, 2, 6, 3, 7. Where 128-byte rows are swizzled, rows four apart have the same
    /// loads in different halves of the banks, and 16-byte loads read two groups at once.
    Swizzled,
}

impl TileOrder {
    /// The row of group `group`.
    #[inline(always)]
    pub fn row_of(self, group: u32) -> u32 {
        match self {
            TileOrder::AsStored => group,
            TileOrder::Swizzled => group / 2 + group % 2 * 4,
        }
    }

    /// The group of row `row`.
    #[inline(always)]
    pub fn group_of(self, row: u32) -> u32 {
        match self {
            TileOrder::AsStored => row,
            TileOrder::Swizzled => row % 4 * 2 + row / 4,
        }
    }
}

/// The lane's group: of four lanes that take a row of a tile.
#[inline(always)]
pub fn lane_group() -> u32 {
    warp::lane_id() / 4
}

/// Which of the four loads of a row is the lane's.
#[inline(always)]
pub fn lane_pair() -> u32 {
    warp::lane_id() % 4
}

/// The weights of a round from the cursor on, zero past the rows' ends.
///
/// # Safety
/// 1. `weights` are a matrix and rows of it, of `k` elements, at multiples of 16 bytes.
#[inline(always)]
pub unsafe fn load_round<const TILES_N: usize, const WARPS: usize>(
    weights: (Global<u16>, &[LaneRow; TILES_N]),
    cursor: Cursor,
) -> Round<TILES_N> {
    let mut round = [[[[0; LOAD_WORDS]; TILES_N]; STEPS]; MAX_LINES];
    unroll!(line in 0..4, {
        if line < num_lines(TILES_N) {
            // SAFETY: the caller's promise.
            round[line] = unsafe { load_line(weights, cursor, line_offset(WARPS, line)) };
        }
    });
    round
}

/// The weights of the line that is `offset` elements on.
///
/// # Safety
/// As [`load_round`].
#[inline(always)]
unsafe fn load_line<const TILES_N: usize>(
    (weight, rows): (Global<u16>, &[LaneRow; TILES_N]),
    cursor: Cursor,
    offset: u32,
) -> Line<TILES_N> {
    let mut line = [[[0; LOAD_WORDS]; TILES_N]; STEPS];
    unroll!(step in 0..4, {
        if step < STEPS {
            let offset = offset + step as u32 * STEP_K;
            unroll!(tile in 0..4, {
                if tile < TILES_N {
                    let words = cursor.words(weight, rows[tile], offset);
                    // SAFETY: inside the row, by the condition.
                    line[step][tile] =
                        unsafe { words.stream_vec_if(0, cursor.has_load(offset)) };
                }
            });
        }
    });
    line
}

/// Adds the products of the line that is `offset` elements on.
#[inline(always)]
fn multiply_line<E: Operand16, X: Input<TILES_M>, const TILES_M: usize, const TILES_N: usize>(
    x: &X,
    cursor: Cursor,
    offset: u32,
    line: &Line<TILES_N>,
    acc: &mut [[Accumulator; TILES_N]; TILES_M],
) {
    let num_loaded = const { x_steps(TILES_M, TILES_N) };
    unroll!(group in 0..4, {
        let first = group * num_loaded;
        let offset = |step| offset + step as u32 * STEP_K;
        if first < STEPS && cursor.is_inside(offset(first)) {
            let mut loads = [[[0; LOAD_WORDS]; TILES_M]; STEPS];
            for step in 0..num_loaded {
                // SAFETY: the first of the steps is inside, and with it the line.
                loads[step] = unsafe { x.load(cursor, offset(first + step)) };
            }
            for step in 0..num_loaded {
                multiply_step::<E, TILES_M, TILES_N>(&loads[step], &line[first + step], acc);
            }
        }
    });
}

/// Adds the products of a step.
#[inline(always)]
pub fn multiply_step<E: Operand16, const TILES_M: usize, const TILES_N: usize>(
    x: &[Load; TILES_M],
    weights: &[Load; TILES_N],
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
                let b = [weights[tile][2 * half], weights[tile][2 * half + 1]];
                let (a, b) = (FragmentA::<E>::from_words(a), FragmentB::from_words(b));
                acc[pair][tile] = m16n8k16(a, b, acc[pair][tile]);
            }
        }
    }
}

/// Adds all products of the warp to `acc`, where `acc[i]` is of rows `16 * i` to `16 * i + 15`; what
/// the array has beyond the rows of x is left alone.
///
/// # Safety
/// As [`load_round`].
#[inline(always)]
pub unsafe fn multiply<
    E: Operand16,
    X: Input<TILES_M>,
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
>(
    x: &X,
    weights: (Global<u16>, &[LaneRow; TILES_N]),
    mut cursor: Cursor,
    mut round: Round<TILES_N>,
    acc: &mut [[Accumulator; TILES_N]; TILES_M],
) {
    while cursor.is_inside(0) {
        let here = cursor;
        cursor.advance(line_offset(WARPS, num_lines(TILES_N)));
        unroll!(line in 0..4, {
            let offset = line_offset(WARPS, line);
            if line < num_lines(TILES_N) {
                multiply_line::<E, X, TILES_M, TILES_N>(x, here, offset, &round[line], acc);
                // SAFETY: the caller's promise.
                round[line] = unsafe { load_line(weights, cursor, offset) };
            }
        });
    }
}
