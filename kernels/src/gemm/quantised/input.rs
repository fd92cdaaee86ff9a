//! The rows of x in shared memory: B of the MMAs, and the sums of groups of their elements.

use super::format::{
    Format, MEAN_REST, Mins, STEP_K, TILE_K, TILE_STEPS, lane_group, lane_pair, quant_scale,
};
use super::norm::Norm;
use super::{NUM_THREADS, NUM_WARPS};
use crate::element::Half;
use crate::rms_norm::{Vector, segment_square_sum};
use cuda_std::prelude::*;
use cuda_std::unroll;
use half::f16;

/// Rows of an MMA tile.
pub const TILE_M: u32 = 8;

/// Elements along k of two MMA steps, whose B a lane loads at once.
const LOAD_K: u32 = 2 * STEP_K;

/// Tiles of rows of x that a warp loads at once, at most, and as many as registers allow.
const MAX_LOADS: usize = 8;
const fn num_loads(tiles_m: usize) -> usize {
    MAX_LOADS / tiles_m
}

/// Elements of a row in shared memory: half a line more than its tiles, so that the two rows that
/// a 16-byte load reads at a time are in different banks.
const fn row_stride(num_tiles: u32) -> u32 {
    num_tiles * TILE_K + LOAD_K
}

/// Groups of a tile whose elements share a scale.
const fn num_groups<F: Format>() -> u32 {
    (TILE_STEPS / F::GROUP_STEPS) as u32
}

/// Bytes of shared memory for `num_tiles` tiles of `max_rows` rows of x and their sums.
pub const fn shared_bytes<F: Format>(tiles_m: usize, max_rows: u32, num_tiles: u32) -> u32 {
    let num_group_sums = num_tiles * num_groups::<F>() * tiles_m as u32 * TILE_M;
    2 * max_rows * row_stride(num_tiles) + 4 * num_group_sums
}

/// Elements of a group whose min is an integer.
pub const GROUP_ELEMS: f32 = 32.0;

/// B of two adjacent MMA steps.
pub type StepPair = [u32; 4];

/// A tile of a row of x: warps take all tiles of all rows in turn.
#[derive(Clone, Copy)]
struct Item {
    row: u32,
    tile: u32,
    num_tiles: u32,
    /// Rows and tiles to the warp's next one.
    step: [u32; 2],
}

impl Item {
    /// The warp's first one, of `num_tiles` tiles a row.
    #[inline(always)]
    fn for_warp(num_tiles: u32) -> Self {
        let (row, tile) = (warp::warp_idx() / num_tiles, warp::warp_idx() % num_tiles);
        Item { row, tile, num_tiles, step: [NUM_WARPS / num_tiles, NUM_WARPS % num_tiles] }
    }

    /// The warp's one that is `count` later, a constant.
    #[inline(always)]
    fn after(mut self, count: usize) -> Self {
        for _ in 0..count {
            self = self.next();
        }
        self
    }

    /// The warp's next one.
    #[inline(always)]
    fn next(self) -> Self {
        let [rows, tiles] = self.step;
        let (row, tile) = (self.row + rows, self.tile + tiles);
        if tile < self.num_tiles {
            Item { row, tile, ..self }
        } else {
            Item { row: row + 1, tile: tile - self.num_tiles, ..self }
        }
    }
}

/// Up to `num_tiles` tiles of the rows of x.
#[derive(Clone, Copy)]
pub struct Input<const TILES_M: usize> {
    x: Global<u16>,
    x_stride: u32,
    max_rows: u32,
    k: u32,
    /// Tiles that there is memory for.
    num_tiles: u32,
    group_sums: Shared<f32>,
    rows: Shared<u16>,
}

impl<const TILES_M: usize> Input<TILES_M> {
    const COLUMNS: u32 = TILES_M as u32 * TILE_M;

    /// The first `max_rows` rows of `x`, and shared memory for `num_tiles` of their tiles.
    ///
    /// # Safety
    /// 1. `x` holds `max_rows` rows of `k` elements, 16-byte aligned; `k` is a multiple of 32.
    /// 2. `smem` holds [`shared_bytes`].
    #[inline(always)]
    pub unsafe fn new<F: Format>(
        (x, x_stride): (Global<u16>, u32),
        max_rows: u32,
        k: u32,
        num_tiles: u32,
        smem: Shared<f32>,
    ) -> Self {
        let num_group_sums = num_tiles * num_groups::<F>() * Self::COLUMNS;
        let rows = smem.offset(num_group_sums).cast();
        Input { x, x_stride, max_rows, k, num_tiles, group_sums: smem, rows }
    }

    /// Zeros the sums of columns that are no rows of x: an MMA reads all of its columns.
    #[inline(always)]
    pub fn clear_group_sums<F: Format>(&self) {
        let mut at = thread::thread_idx_x();
        while at < self.num_tiles * num_groups::<F>() * Self::COLUMNS {
            let column = match F::MINS {
                Mins::Integers => at / num_groups::<F>(),
                _ => at,
            };
            if column % Self::COLUMNS >= self.max_rows {
                // SAFETY: inside, by the condition; no other thread accesses the element.
                unsafe { self.group_sums.set(at, 0.0) };
            }
            at += NUM_THREADS;
        }
    }

    /// Copies tiles `first .. first + num_tiles` along k; zeros from `k` on. Rows may be unwritten
    /// from the row count on. A barrier must follow.
    ///
    /// # Safety
    /// 1. `num_tiles` is at most that of [`Input::new`]; no thread reads the previous ones.
    #[inline(always)]
    pub unsafe fn copy<E: Half, F: Format>(&self, first: u32, num_tiles: u32) {
        let num_loads = const { num_loads(TILES_M) };
        let mut item = Item::for_warp(num_tiles);
        while item.row < self.max_rows {
            let mut loads = [[0_u32; 4]; MAX_LOADS];
            unroll!(i in 0..MAX_LOADS, {
                if i < num_loads {
                    let Item { row, tile, .. } = item.after(i);
                    let k = (first + tile) * TILE_K + warp::lane_id() * 8;
                    let at = row as usize * self.x_stride as usize + k as usize;
                    let words = self.x.wrapping_add(at).cast::<u32>();
                    let is_inside = row < self.max_rows && k < self.k;
                    // SAFETY: inside the row, by the condition.
                    loads[i] = unsafe { words.speculate_vec_if(0, is_inside) };
                }
            });
            unroll!(i in 0..MAX_LOADS, {
                let Item { row, tile, .. } = item.after(i);
                if i < num_loads && row < self.max_rows {
                    // SAFETY: the caller's promise.
                    unsafe { self.store::<E, F>(row, tile, loads[i]) };
                }
            });
            item = item.after(num_loads);
        }
    }

    /// The lane's norm weights of the warp's first tile.
    ///
    /// # Safety
    /// As [`Norm::weights`].
    #[inline(always)]
    pub unsafe fn first_norm_weights(&self, norm: &Norm) -> Vector {
        // SAFETY: the caller's promise.
        unsafe { norm.weights(Item::for_warp(self.num_tiles).tile) }
    }

    /// As [`Input::copy`] of all tiles, of x in f32 that is normed.
    ///
    /// # Safety
    /// 1. As [`Input::copy`], with memory for all tiles of x, whose elements are f32; `weights` are
    ///    [`Input::first_norm_weights`]. All threads of the block call this.
    /// 2. `square_sums` holds a float for each segment of each row, 16-byte aligned, which nothing
    ///    else uses until a barrier.
    #[inline(always)]
    pub unsafe fn copy_normed<F: Format>(
        &self,
        norm: &Norm,
        mut weights: Vector,
        num_rows: u32,
        square_sums: Shared<f32>,
    ) {
        let segments = norm.num_segments();
        let first = Item::for_warp(self.num_tiles);
        let num_rounds = (self.max_rows * self.num_tiles).div_ceil(NUM_WARPS);
        // SAFETY: the caller's promise; each tile is one warp's, and what other warps write is read
        // after the barrier.
        unsafe {
            let load_x = |Item { row, tile, .. }: Item| {
                let x = self.x.cast::<f32>();
                let row_at = x.wrapping_add(row as usize * self.x_stride as usize);
                norm.load(row_at, tile, row < num_rows)
            };
            // Segments after the last tile add zeros.
            let mut segment = self.num_tiles;
            while segment < segments {
                if thread::thread_idx_x() < self.max_rows {
                    square_sums.set(thread::thread_idx_x() * segments + segment, 0.0);
                }
                segment += 1;
            }
            let mut item = first;
            let mut values = load_x(first);
            let mut round = 0;
            loop {
                let sum = segment_square_sum(&values);
                if item.row < self.max_rows && warp::lane_id() == 0 {
                    square_sums.set(item.row * segments + item.tile, sum);
                }
                round += 1;
                if round == num_rounds {
                    break;
                }
                item = item.next();
                values = load_x(item);
            }
            thread::sync_threads();
            if num_rounds > 1 {
                values = load_x(first);
            }
            item = first;
            round = 0;
            loop {
                if item.row < self.max_rows {
                    let square_sums = square_sums.offset(item.row * segments);
                    let words = norm.apply(values, weights, square_sums);
                    self.store::<f16, F>(item.row, item.tile, words);
                }
                round += 1;
                if round == num_rounds {
                    break;
                }
                item = item.next();
                values = load_x(item);
                weights = norm.weights(item.tile);
            }
        }
    }

    /// Stores a lane's eight elements of a tile of `row`, and the sums of its groups.
    ///
    /// # Safety
    /// As [`Input::copy`].
    #[inline(always)]
    unsafe fn store<E: Half, F: Format>(&self, row: u32, tile: u32, words: [u32; 4]) {
        let lane = warp::lane_id();
        // Of 32 elements, four lanes' load, a lane of an MMA has elements `4 * pair ..` of the
        // first step and of the second.
        let (load, step, pair) = (lane / 4, lane / 2 % 2, lane % 2 * 2);
        let at = row * row_stride(self.num_tiles) + tile * TILE_K + load * LOAD_K;
        let half = self.rows.offset(at + 8 * pair + 4 * step).cast::<u32>();
        let [a, b, c, d] = words;
        // SAFETY: inside the tile; no other thread accesses these elements or this sum.
        unsafe {
            half.set_vec(0, [a, b]);
            half.set_vec(4, [c, d]);
        }
        let [a, b, c, d] = words.map(|pair| E::unpack(pair)).map(|[lo, hi]| lo + hi);
        let mut sum = (a + b) + (c + d);
        sum += warp::shuffle_xor(sum, 1);
        if F::GROUP_STEPS == 2 {
            sum += warp::shuffle_xor(sum, 2);
        }
        let lanes = 2 * F::GROUP_STEPS as u32;
        if lane.is_multiple_of(lanes) {
            // SAFETY: as above.
            unsafe { self.store_sum::<F>(tile, lane / lanes, row, sum) };
        }
    }

    /// Stores the sum of a group: what its initial accumulators are, or its mean in two halves, to
    /// be multiplied by integers.
    ///
    /// # Safety
    /// As [`Input::copy`].
    #[inline(always)]
    unsafe fn store_sum<F: Format>(&self, tile: u32, group: u32, row: u32, sum: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            if F::MINS == Mins::Integers {
                let mean = sum * (1.0 / GROUP_ELEMS);
                let half = convert::f32_to_f16(mean);
                let rest = (mean - convert::f16_to_f32(half)) * MEAN_REST;
                let at = (tile * Self::COLUMNS + row) * num_groups::<F>() + group / 2 * 2;
                let halves = self.group_sums.offset(at).cast::<f16>().offset(group % 2);
                halves.set(0, half);
                halves.set(2, convert::f32_to_f16(rest));
            } else {
                let factor = match F::MINS {
                    Mins::None => F::OFFSET / quant_scale::<F>(0),
                    _ => 1.0 / quant_scale::<F>(0),
                };
                let at = (tile * num_groups::<F>() + group) * Self::COLUMNS + row;
                self.group_sums.set(at, factor * sum);
            }
        }
    }

    /// The lane's reader of the rows.
    #[inline(always)]
    pub fn lane(&self) -> LaneInput<TILES_M> {
        let mut rows = [self.rows; TILES_M];
        for tile in 0..TILES_M {
            // Columns without a row have the last one's: their results are not stored.
            let row = (tile as u32 * TILE_M + lane_group()).min(self.max_rows - 1);
            rows[tile] = self.rows.offset(row * row_stride(self.num_tiles) + lane_pair() * 8);
        }
        let means = self.group_sums.offset(lane_group() * 8 + 2 * lane_pair());
        let group_sums = self.group_sums.offset(2 * lane_pair());
        LaneInput { rows, group_sums, means, max_rows: self.max_rows }
    }
}

/// A lane's part of B and of the sums.
#[derive(Clone, Copy)]
pub struct LaneInput<const TILES_M: usize> {
    rows: [Shared<u16>; TILES_M],
    group_sums: Shared<f32>,
    /// Where groups have integer mins, instead of `group_sums`.
    means: Shared<f32>,
    /// Upper bound of the rows.
    pub max_rows: u32,
}

impl<const TILES_M: usize> LaneInput<TILES_M> {
    /// The reader of the tile `tile` after the first.
    #[inline(always)]
    pub fn tile<F: Format>(&self, tile: u32) -> Self {
        let offset = tile * num_groups::<F>() * TILES_M as u32 * TILE_M;
        LaneInput {
            rows: self.rows.map(|row| row.offset(tile * TILE_K)),
            group_sums: self.group_sums.offset(offset),
            means: self.means.offset(offset),
            ..*self
        }
    }

    /// The reader whose first tile of rows is the second of this one, and whose last is the first.
    #[inline(always)]
    #[must_use]
    pub fn rotated(mut self) -> Self {
        self.rows.rotate_left(1);
        self.group_sums = self.group_sums.offset(TILE_M);
        self.means = self.means.offset(TILE_M * 8);
        self
    }

    /// B of steps `2 * PAIR` and `2 * PAIR + 1`, for the first `N` tiles of rows.
    ///
    /// # Safety
    /// 1. The tile is copied.
    #[inline(always)]
    pub unsafe fn steps<const PAIR: u32, const N: usize>(&self) -> [StepPair; N] {
        let mut loads = [[0; 4]; N];
        for tile in 0..N {
            // SAFETY: the caller's promise.
            loads[tile] = unsafe { self.rows[tile].cast::<u32>().get_vec(PAIR * LOAD_K / 2) };
        }
        loads
    }

    /// The sums of group `group` in the lane's columns of the accumulators, for the first `N`
    /// tiles of rows.
    ///
    /// # Safety
    /// 1. The tile is copied.
    #[inline(always)]
    pub unsafe fn group_sums<const N: usize>(&self, group: usize) -> [[f32; 2]; N] {
        let mut group_sums = [[0.0; 2]; N];
        for tile in 0..N {
            let at = (group * TILES_M + tile) as u32 * TILE_M;
            // SAFETY: the caller's promise.
            group_sums[tile] = unsafe { self.group_sums.get_vec(at) };
        }
        group_sums
    }

    /// A fragment of B: the means of the groups, and their rests, for the first `N` tiles of
    /// rows.
    ///
    /// # Safety
    /// 1. The tile is copied, for a format of integer mins.
    #[inline(always)]
    pub unsafe fn means<const N: usize>(&self) -> [[u32; 2]; N] {
        let mut means = [[0; 2]; N];
        for tile in 0..N {
            let at = tile as u32 * TILE_M * 8;
            // SAFETY: the caller's promise.
            means[tile] = unsafe { self.means.cast::<u32>().get_vec(at) };
        }
        means
    }
}
