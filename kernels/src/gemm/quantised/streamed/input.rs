//! A tile of x along k: B of the MMAs, and the means of its groups. The first eight rows are in
//! registers; there are none for more, whose rows stay in shared memory.
//!
//! A warp copies rows to memory of its own. Eight rows are copied there, too, where there are no
//! more: a lane's loads from global memory would be of 8 bytes.

use super::super::NUM_WARPS;
use super::super::format::{Format, MEAN_REST, STEP_K, TILE_K, TILE_STEPS};
use super::super::format::{lane_group, lane_pair};
use super::super::input::TILE_M;
use super::super::norm::Norm;
use super::late_lane_id;
use crate::rms_norm::{Vector, segment_square_sum};
use cuda_std::mma::{FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
use cuda_std::unroll;
use half::f16;

/// Elements between rows in shared memory: a tile and 32 bytes, so that the lanes of half a warp
/// read different banks.
const ROW_STRIDE: u32 = TILE_K + STEP_K;

/// Rows in shared memory.
const fn shared_rows(tiles_m: usize, max_rows: u32) -> u32 {
    max_rows - (tiles_m as u32 - 1) * TILE_M
}

/// Bytes of shared memory of a block.
pub const fn shared_bytes(tiles_m: usize, max_rows: u32) -> u32 {
    2 * NUM_WARPS * shared_rows(tiles_m, max_rows) * ROW_STRIDE
}

/// Most segments of a row that is normed: a warp has one tile.
const MAX_SEGMENTS: u32 = NUM_WARPS;

/// Most rows that are normed.
const MAX_NORMED_ROWS: u32 = TILE_M;

/// Most elements of a row that is normed.
pub const MAX_NORMED_K: u32 = MAX_SEGMENTS * TILE_K;

/// Bytes of the sums of squares of rows that are normed.
pub const SQUARE_SUMS_BYTES: u32 = MAX_NORMED_ROWS * MAX_SEGMENTS * size_of::<f32>() as u32;

/// Fragments of B of a tile of eight rows.
type Steps = [[u32; 2]; TILE_STEPS];

/// x, as a lane reads it.
#[derive(Clone, Copy)]
pub struct Input<const TILES_M: usize> {
    x: Global<u16>,
    x_stride: u32,
    num_rows: Global<u32>,
    max_rows: u32,
    k: u32,
    /// The warp's rows in shared memory.
    smem: Shared<u16>,
}

/// A lane's part of a tile of x along k.
#[derive(Clone, Copy)]
pub struct InputTile<const TILES_M: usize> {
    /// B of each MMA step, of the first eight rows.
    steps: Steps,
    /// The lane's row of those in shared memory, at its first element.
    row: Shared<u16>,
    /// B of the means of the groups, rounded, and of the rests, multiplied by [`MEAN_REST`].
    pub means: [[[u32; 2]; 2]; TILES_M],
}

impl<const TILES_M: usize> InputTile<TILES_M> {
    /// B of MMA step `STEP`, of the rows of tile `tile_m`.
    #[inline(always)]
    pub fn step<const STEP: usize>(&self, tile_m: usize) -> [u32; 2] {
        if tile_m == 0 {
            return self.steps[STEP];
        }
        // SAFETY: the warp's tile, which `Input::load` has copied.
        unsafe { self.row.cast::<u32>().get_vec(STEP as u32 * STEP_K / 2) }
    }
}

impl<const TILES_M: usize> Input<TILES_M> {
    /// `max_rows` rows of `x`, of which `num_rows` are written.
    ///
    /// # Safety
    /// 1. `x` holds `max_rows` rows of `k` elements, 16-byte aligned; `k` is a multiple of 32.
    /// 2. `smem` holds [`shared_bytes`] that nothing else uses, 16-byte aligned.
    #[inline(always)]
    pub unsafe fn new(
        (x, x_stride): (Global<u16>, u32),
        (num_rows, max_rows): (Global<u32>, u32),
        k: u32,
        smem: Shared<u16>,
    ) -> Self {
        const { assert!(TILES_M == 1 || TILES_M == 2) };
        let rows = shared_rows(TILES_M, max_rows);
        let smem = smem.offset(warp::warp_idx() * rows * ROW_STRIDE);
        Input { x, x_stride, num_rows, max_rows, k, smem }
    }

    /// No tile.
    #[inline(always)]
    pub fn none(&self) -> InputTile<TILES_M> {
        let row = lane_group().min(shared_rows(TILES_M, self.max_rows) - 1);
        let row = self.smem.offset(row * ROW_STRIDE + 4 * lane_pair());
        InputTile { steps: [[0; 2]; TILE_STEPS], row, means: [[[0; 2]; 2]; TILES_M] }
    }

    /// [`Input::copy`] after another tile.
    ///
    /// # Safety
    /// 1. As there; the lanes have issued their loads of the tile before.
    #[inline(always)]
    pub unsafe fn copy_next(&self, tile: u32) {
        warp::sync_warp();
        // SAFETY: the caller's promise. The count is in L1: the main loop has no register for it.
        unsafe { self.copy(tile, self.num_rows.get(0)) };
    }

    /// Issues the copies of the rows in shared memory of tile `tile` along k; zeros from `k` on,
    /// and in rows from `num_rows` on.
    ///
    /// # Safety
    /// 1. As [`Input::new`]; no lane reads the tile before any more.
    #[inline(always)]
    pub unsafe fn copy(&self, tile: u32, num_rows: u32) {
        let lane = warp::lane_id();
        let at = tile * TILE_K + 8 * lane;
        let mut row = self.max_rows - shared_rows(TILES_M, self.max_rows);
        let mut to = self.smem.offset(8 * lane);
        while row < self.max_rows {
            let from = row as usize * self.x_stride as usize + at as usize;
            let is_inside = row < num_rows && at < self.k;
            // SAFETY: inside both, by the conditions.
            unsafe { cp_async::copy_vec::<8, u16>(to, 0, self.x, from, is_inside) };
            row += 1;
            to = to.offset(ROW_STRIDE);
        }
        cp_async::commit();
    }

    /// As [`Input::copy`] of the warp's only tile, of x in f32 that is normed.
    ///
    /// # Safety
    /// 1. As [`Input::copy`], with rows of f32 of at most [`MAX_NORMED_K`] elements; `weights` are
    ///    those of the tile. All threads of the block call this.
    /// 2. `square_sums` holds [`SQUARE_SUMS_BYTES`] that nothing else uses, 16-byte aligned.
    #[inline(always)]
    pub unsafe fn copy_normed(
        &self,
        norm: &Norm,
        weights: Vector,
        tile: u32,
        num_rows: u32,
        square_sums: Shared<f32>,
    ) {
        let segments = norm.num_segments();
        let load_x = |row: u32| {
            let at = row as usize * self.x_stride as usize;
            // SAFETY: inside the rows, by the condition.
            unsafe { norm.load(self.x.cast::<f32>().wrapping_add(at), tile, row < num_rows) }
        };
        // SAFETY: the caller's promise. Each tile is one warp's, of those that split k alike the
        // first one's; what other warps write is read after the barrier.
        unsafe {
            let mut row = 0;
            let mut values = load_x(0);
            loop {
                let sum = segment_square_sum(&values);
                if warp::warp_idx() < segments && warp::lane_id() == 0 {
                    square_sums.set(row * segments + warp::warp_idx(), sum);
                }
                row += 1;
                if row == self.max_rows {
                    break;
                }
                values = load_x(row);
            }
            thread::sync_threads();
            row = 0;
            if self.max_rows > 1 {
                values = load_x(0);
            }
            let mut to = self.smem.offset(8 * warp::lane_id()).cast::<u32>();
            loop {
                let words = norm.apply(values, weights, square_sums.offset(row * segments));
                to.set_vec(0, words);
                row += 1;
                if row == self.max_rows {
                    break;
                }
                to = to.offset(ROW_STRIDE / 2);
                values = load_x(row);
            }
        }
    }

    /// Tile `tile` along k, whose copies are issued, into `to`.
    ///
    /// # Safety
    /// As [`Input::new`]; the warp is converged.
    #[inline(always)]
    pub unsafe fn load<F: Format>(&self, tile: u32, to: &mut InputTile<TILES_M>) {
        // SAFETY: the caller's promise.
        unsafe {
            if TILES_M > 1 {
                to.steps = self.load_rows(tile);
            }
            cp_async::wait(0);
            warp::sync_warp();
            let mut copied = [[0; 2]; TILE_STEPS];
            unroll!(step in 0..TILE_STEPS, {
                copied[step] = to.row.cast::<u32>().get_vec(step as u32 * STEP_K / 2);
            });
            if TILES_M > 1 {
                to.means = means::<F, TILES_M>(&to.steps, &copied);
            } else {
                to.steps = copied;
                to.means = means::<F, TILES_M>(&copied, &[[0; 2]; TILE_STEPS]);
            }
        }
    }

    /// The first eight rows, from global memory.
    ///
    /// # Safety
    /// As [`Input::new`].
    #[inline(always)]
    unsafe fn load_rows(&self, tile: u32) -> Steps {
        // In 32 bits: registers are scarce.
        let at = lane_group() * self.x_stride + 4 * lane_pair() + tile * TILE_K;
        let x = self.x.wrapping_add(at as usize).cast::<u32>();
        let rest = self.k.saturating_sub(tile * TILE_K);
        let mut steps = [[0; 2]; TILE_STEPS];
        unroll!(step in 0..TILE_STEPS, {
            let is_inside = (step as u32 * STEP_K) < rest;
            // SAFETY: inside the row, by the condition.
            steps[step] = unsafe { x.speculate_vec_if(step * STEP_K as usize / 2, is_inside) };
        });
        steps
    }
}

/// The means of the groups of x as fragments of B, rows of B being groups.
///
/// An MMA adds them: x is A, whose fragments have the layout of those of B, and B has ones in the
/// column of a group, so that the sums are where a B has them.
#[inline(always)]
fn means<F: Format, const TILES_M: usize>(
    upper: &Steps,
    lower: &Steps,
) -> [[[u32; 2]; 2]; TILES_M] {
    const ONES: u32 = 0x3c00_3c00;
    const TURNS: usize = 4;
    let late_group = late_lane_id() / 4;
    // In turn, so that an MMA need not wait for the one before.
    let mut turns = [[0.0; 4]; TURNS];
    unroll!(step in 0..TILE_STEPS, {
        let group = step / F::GROUP_STEPS;
        let ones = if late_group == group as u32 % 8 { ONES } else { 0 };
        let (upper, lower) = (upper[step], lower[step]);
        let a = FragmentA::<f16>::from_words([upper[0], lower[0], upper[1], lower[1]]);
        let turn = group / 8 * 2 + step % 2;
        turns[turn] = m16n8k16(a, FragmentB::from_words([ones; 2]), turns[turn]);
    });
    // Groups 0 to 7, and 8 to 15.
    let mut group_sums = [[0.0; 4]; 2];
    for half in 0..2 {
        for i in 0..4 {
            group_sums[half][i] = turns[2 * half][i] + turns[2 * half + 1][i];
        }
    }
    let mut means = [[[0; 2]; 2]; TILES_M];
    unroll!(i in 0..4, {
        let (tile_m, half) = (i / 2, i % 2);
        if tile_m < TILES_M && half * 8 * F::GROUP_STEPS < TILE_STEPS {
            let mean = [group_sums[half][2 * tile_m], group_sums[half][2 * tile_m + 1]]
                .map(|sum| sum * (1.0 / (F::GROUP_STEPS as u32 * STEP_K) as f32));
            let rounded = convert::f32_to_f16x2(mean[0], mean[1]);
            let [lo, hi] = [rounded.lo(), rounded.hi()].map(convert::f16_to_f32);
            let rest = [mean[0] - lo, mean[1] - hi].map(|rest| rest * MEAN_REST);
            means[tile_m][0][half] = rounded.to_bits();
            means[tile_m][1][half] = convert::f32_to_f16x2(rest[0], rest[1]).to_bits();
        }
    });
    means
}
