//! The sum of a token's experts in one launch: `out[n] = sum_i weights[i] * (sum_k x[i, k] *
//! weight[experts[i], n, k] (+ bias[experts[i], n])) (+ residual[n])`.
//!
//! Shapes    of one token, or none: experts u32 and weights f32 `[top_k]`, at most 32; x `[top_k, k]`,
//!           16-byte aligned rows; weight `[num_experts, n, k]` as in [`few`](super::few); bias
//!           `[num_experts, n]`; residual and out `[n]` f32.
//! Launch    grid `(n / TILE_ROWS, 1, 1)`, block `(NUM_THREADS, 1, 1)`. A block has a row of tiles of
//!           all chosen experts, whose tiles its warps share evenly, one choice after the other.
//! Numerics  products as in [`few`](super::few); a tile's are weighted, and added in f32 in order,
//!           then those of the warps, biases and residual. Nothing is rounded.
//! Bound     memory: a chosen expert's matrix is read once. What was chosen before the previous
//!           launch is known, so the first tiles are loaded before the wait for it.

use super::e4m3::E4m3Rows;
use super::few::load_half;
use super::weight::{Dense, ROUND, ScalesAt, TileRow, Weight};
use crate::gemm::quantised::format::{BLOCKS, TILE_K, TILE_ROWS, UNIT_K, lane_group, lane_pair};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Warps of a block.
const NUM_WARPS: u32 = 12;

/// Threads of a block.
pub const NUM_THREADS: u32 = NUM_WARPS * warp::WARP_SIZE;

/// Most choices of the token: a lane knows one.
pub const MAX_CHOICES: u32 = warp::WARP_SIZE;

/// A tile of 256 columns of a choice.
struct Place<W: Weight> {
    row: W::Row,
    choice: u32,
    /// Along k; all tiles of a choice stand for none.
    tile: u32,
}

impl<W: Weight> Clone for Place<W> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Weight> Copy for Place<W> {}

impl<W: Weight> Place<W> {
    /// Issues the loads of unit `unit` of the tile; zeros if there is none.
    ///
    /// # Safety
    /// 1. The weight is as [`TileRow`] says.
    #[inline(always)]
    unsafe fn load_unit(&self, unit: usize) -> W::Unit {
        let first = self.tile * (ROUND / W::TILE_UNITS) as u32;
        let tile = first + (unit / W::TILE_UNITS) as u32;
        // SAFETY: the caller's promise.
        unsafe { W::load_unit(&self.row, tile, unit % W::TILE_UNITS) }
    }

    /// Issues the loads of its scales.
    ///
    /// # Safety
    /// As [`Place::load_unit`].
    #[inline(always)]
    unsafe fn load_scales(&self) -> W::Loaded {
        // SAFETY: the caller's promise.
        unsafe { W::load_scales(&self.row, self.tile) }
    }
}

/// A row of tiles of all experts of the token.
///
/// # Safety
/// 1. `num_tokens` is one element, 0 or 1; with a token `experts` holds `top_k` experts of the
///    weight, and `weights` as many numbers, which launches before the previous one wrote.
/// 2. `x` holds `top_k` rows of `k` elements `W::E`, 16-byte aligned; `weight` is as `W` says; `bias`
///    is null, or holds `n` elements an expert.
/// 3. `out` holds `n` elements, and so does `residual`, or it is null. `out` is `residual`, or
///    overlaps nothing that is read.
#[kernel(
    launch_bounds(NUM_THREADS, W::SUM_BLOCKS),
    overlaps,
    instances(
        F in BLOCKS,
        E in [f16, bf16],
        experts_{E}_sum = <Dense<E>, { <Dense<E> as Weight>::SUM_RING }>,
        experts_e4m3_sum = <E4m3Rows, { <E4m3Rows as Weight>::SUM_RING }>,
        experts_{F}_sum = <F, { <F as Weight>::SUM_RING }>
    )
)]
pub unsafe fn experts_sum<W: Weight, const RING: usize>(
    num_tokens: Global<u32>,
    top_k: u32,
    experts: Global<u32>,
    weights: Global<f32>,
    n: u32,
    k: u32,
    x: Global<u16>,
    weight: Global<u8>,
    scales_at: u32,
    scale_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    out: GlobalMut<f32>,
) {
    let lane = warp::lane_id();
    // Never 0; `max` tells the compiler.
    let tiles = k.div_ceil(TILE_K).max(1);
    let scales_of_weight = ScalesAt { at: scales_at, stride: scale_stride };
    // SAFETY: choices, tiles and columns are inside by the conditions; the barrier is between the
    // warps' sums and their readers.
    unsafe {
        // 1. Before the previous launch has ended: the choices, and the warp's first tile.
        let num_choices = num_tokens.get(0) * top_k;
        let [next, end] =
            [0, 1].map(|i| (warp::warp_idx() + i) * (num_choices * tiles) / NUM_WARPS);
        let [own_expert] = experts.get_vec_if(lane as usize, lane < num_choices);
        let [own_weight] = weights.get_vec_if(lane as usize, lane < num_choices);
        let place = |choice: u32, tile: u32| {
            let expert = warp::shuffle_idx(own_expert, choice);
            let row = thread::block_idx_x();
            let row = W::row(TileRow { weight, n, k, expert, row, scales: scales_of_weight });
            Place::<W> { row, choice, tile }
        };
        let first_tile = if next < end { next % tiles } else { tiles };
        let mut at = place(next / tiles, first_tile);
        let mut scales = at.load_scales();
        let mut units = [at.load_unit(0); RING];
        unroll!(i in 0..4, {
            if (1..RING).contains(&i) {
                units[i] = at.load_unit(i);
            }
        });
        grid::wait_for_dependencies();
        grid::launch_dependents();

        // 2. The warp's part of x comes into L1.
        let mut first = next * TILE_K;
        while first < end * TILE_K {
            let column = first + lane * UNIT_K;
            let (choice, in_row) = (column / (tiles * TILE_K), column % (tiles * TILE_K));
            if column < end * TILE_K && in_row < k {
                x.prefetch((choice * k + in_row) as usize);
            }
            first += warp::WARP_SIZE * UNIT_K;
        }

        // 3. Its products.
        let mut total = [0.0; 4];
        let mut left = end - next;
        while left > 0 {
            left -= 1;
            let is_last_of_choice = at.tile + 1 == tiles;
            let ahead_tile = if is_last_of_choice { 0 } else { at.tile + 1 };
            let ahead_tile = if left > 0 { ahead_tile } else { tiles };
            let ahead = place(at.choice + u32::from(is_last_of_choice), ahead_tile);
            let next_scales = ahead.load_scales();
            let first = at.tile * TILE_K;
            let row = x.wrapping_add((at.choice * k + first) as usize);
            let mut acc = [0.0; 4];
            unroll!(i in 0..4, {
                let unit = units[i % RING];
                let from = if i + RING < ROUND { &at } else { &ahead };
                units[i % RING] = from.load_unit((i + RING) % ROUND);
                let x = row.wrapping_add(i * UNIT_K as usize);
                let columns = k.saturating_sub(first + i as u32 * UNIT_K);
                unroll!(half in 0..2, {
                    let x = load_half::<W>(x, half, columns);
                    acc = W::add_products(&unit, &scales, [i % W::TILE_UNITS, half], &x, acc);
                });
            });
            let weight = warp::shuffle_idx(own_weight, at.choice);
            for i in 0..4 {
                total[i] = math::fma(weight, acc[i], total[i]);
            }
            (at, scales) = (ahead, next_scales);
        }

        // 4. The sums over the warps. All columns of the MMAs are alike.
        let partials = shared_array![f32; (NUM_WARPS * TILE_ROWS) as usize];
        if lane_pair() == 0 {
            unroll!(half in 0..2, {
                let row = lane_group() + 8 * half as u32;
                let sum = total[2 * half] * W::sum_scale(half);
                partials.set(warp::warp_idx() * TILE_ROWS + row, sum);
            });
        }
        thread::sync_threads();
        let column = thread::block_idx_x() * TILE_ROWS + thread::thread_idx_x();
        // Loaded again: the main loop has no register for it.
        if num_tokens.get(0) == 0 || thread::thread_idx_x() >= TILE_ROWS || column >= n {
            return;
        }
        let mut sum = 0.0;
        for warp_idx in 0..NUM_WARPS {
            sum += partials.get(warp_idx * TILE_ROWS + thread::thread_idx_x());
        }
        if !bias.is_null() {
            for choice in 0..top_k as usize {
                let at = experts.get(choice) as usize * n as usize + column as usize;
                sum = math::fma(weights.get(choice), bias.get(at), sum);
            }
        }
        if !residual.is_null() {
            sum += residual.get(column as usize);
        }
        out.set(column as usize, sum);
    }
}
