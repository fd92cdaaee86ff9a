//! Rows of x behind an RMSNorm: each block norms them all, into its shared memory.
//!
//! The warps take turns, a chunk of 256 columns of a row each. The first turn is laid out for one
//! row, of which a warp rarely has more than a chunk: the norm's weights are on their way before the
//! launch before has ended, and x stays in registers while all warps' sums of squares meet. Of further
//! turns x comes from L1 the second time. Registers are what 32 warps an SM leave beside the weights
//! of a round: of the norm's eight weights of a lane only the first one is kept.

use super::input::{self, SharedRows, row_stride};
use super::mainloop::{LINE_K, TILE};
use crate::element::{Half, VECTOR};
use crate::rms_norm::{CHUNK, Vector, chunk_sum, group_sum, num_chunks, scale, scaled, weighted};
use cuda_std::prelude::*;

/// The logarithm of a row's turns: one for each chunk, and idle ones that make a power of two.
const fn row_shift(k: u32) -> u32 {
    num_chunks(k).next_power_of_two().trailing_zeros()
}

/// Floats in front of the rows: the sums of squares of all turns.
const fn num_sums(k: u32) -> u32 {
    TILE << row_shift(k)
}

/// Shared memory of a block's rows.
pub const fn shared_bytes(max_rows: usize, k: u32) -> usize {
    let sums = num_sums(k) as usize * size_of::<f32>();
    sums + input::shared_bytes(max_rows, k)
}

/// A turn of a warp: a chunk of a row.
#[derive(Clone, Copy)]
struct Turn(u32);

/// How a layer's norm is computed.
#[derive(Clone, Copy)]
pub struct Shape {
    pub k: u32,
    /// Of k.
    pub reciprocal: f32,
    pub eps: f32,
}

impl Shape {
    #[inline(always)]
    fn row(&self, turn: Turn) -> u32 {
        turn.0 >> row_shift(self.k)
    }

    #[inline(always)]
    fn chunk(&self, turn: Turn) -> u32 {
        turn.0 & ((1 << row_shift(self.k)) - 1)
    }

    /// The lane's first column.
    #[inline(always)]
    fn column(&self, turn: Turn) -> u32 {
        self.chunk(turn) * CHUNK + warp::lane_id() * VECTOR
    }

    /// The lane's columns of a turn in its `row`, zeros past the end.
    ///
    /// # Safety
    /// 1. `row` holds `k` elements, at a multiple of 16 bytes.
    #[inline(always)]
    unsafe fn load(&self, row: Global<f32>, turn: Turn, is_there: bool) -> Vector {
        let column = self.column(turn);
        let (row, is_inside) = (row.wrapping_add(column as usize), is_there && column < self.k);
        // SAFETY: inside by the condition, since k is a multiple of eight.
        let ([a, b, c, d], [e, f, g, h]) =
            unsafe { (row.get_vec_if(0, is_inside), row.get_vec_if(4, is_inside)) };
        [a, b, c, d, e, f, g, h]
    }
}

/// The norm of a block's rows, of a layer whose `WARPS` share k.
pub struct Norm<const WARPS: usize> {
    weight: Global<f32>,
    shape: Shape,
    /// The first weight of the lane in the warp's first turn: with it, L1 has all eight.
    first_weight: f32,
}

impl<const WARPS: usize> Norm<WARPS> {
    /// What no launch before this one has to be waited for.
    ///
    /// # Safety
    /// 1. `weight` holds `k` elements, at a multiple of 16 bytes; `k` is a multiple of 8, not 0.
    #[inline(always)]
    pub unsafe fn new(weight: Global<f32>, shape: Shape) -> Self {
        let column = shape.column(Turn(warp::warp_idx())) as usize;
        let is_inside = column < shape.k as usize;
        // SAFETY: inside, by the condition.
        let first_weight = if is_inside { unsafe { weight.get(column) } } else { 0.0 };
        Norm { weight, shape, first_weight }
    }

    /// The first `num_rows` rows of `x`, normed and rounded to `E`; those past the last one are the
    /// last one.
    ///
    /// # Safety
    /// 1. `x` holds `num_rows` rows, at multiples of 16 bytes; `num_rows` is 1 to [`TILE`].
    /// 2. `smem` are the block's own [`shared_bytes`] of at least as many rows, at a multiple of 16
    ///    bytes. All its threads call this, once.
    #[inline(always)]
    pub unsafe fn rows<E: Half, const TILES_M: usize>(
        &self,
        (x, stride): (Global<f32>, u32),
        num_rows: u32,
        smem: Shared<f32>,
    ) -> SharedRows<TILES_M> {
        let shape = &self.shape;
        let rows = smem.offset(num_sums(shape.k)).cast::<u16>();
        let end = num_rows << row_shift(shape.k);
        let turn = |round| Turn(round * WARPS as u32 + warp::warp_idx());
        // SAFETY: turns of rows under `num_rows` alone; each is one warp's, and what others wrote
        // is read behind a barrier.
        unsafe {
            let load_x = |turn: Turn| {
                let row = x.wrapping_add(shape.row(turn) as usize * stride as usize);
                shape.load(row, turn, turn.0 < end)
            };
            // All warps have as many rounds: where a branch depended on the warp, ptxas would take
            // shuffles for divergent. The first comes last: its chunk stays in registers.
            let num_rounds = end.div_ceil(WARPS as u32);
            let mut round = num_rounds;
            let mut values;
            loop {
                round -= 1;
                values = load_x(turn(round));
                self.add_up(turn(round), &values, smem);
                if round == 0 {
                    break;
                }
            }
            thread::sync_threads();

            let mut weights = shape.load(self.weight, turn(0), true);
            weights[0] = self.first_weight;
            self.store::<E>(turn(0), weighted(values, weights), end, smem, rows);
            round = 1;
            while round < num_rounds {
                let weights = shape.load(self.weight, turn(round), true);
                let values = weighted(load_x(turn(round)), weights);
                self.store::<E>(turn(round), values, end, smem, rows);
                round += 1;
            }
            thread::sync_threads();
        }
        SharedRows::new(rows, shape.k, num_rows)
    }

    /// Writes the sum of squares of a turn's chunk.
    ///
    /// # Safety
    /// 1. `smem` has room for it, which no other warp accesses.
    #[inline(always)]
    unsafe fn add_up(&self, turn: Turn, values: &Vector, smem: Shared<f32>) {
        let sum = chunk_sum(values);
        if warp::lane_id() == 0 {
            // SAFETY: the caller's promise.
            unsafe { smem.set(turn.0, sum) };
        }
    }

    /// Writes the weighted chunk of a turn, normed, and zeros up to the end of k's last line.
    ///
    /// # Safety
    /// 1. `smem` holds the sums of the row's chunks, `rows` has room, which no other warp accesses.
    #[inline(always)]
    unsafe fn store<E: Half>(
        &self,
        turn: Turn,
        weighted: Vector,
        end: u32,
        smem: Shared<f32>,
        rows: Shared<u16>,
    ) {
        let Shape { k, reciprocal, eps } = self.shape;
        let (row, column) = (self.shape.row(turn), self.shape.column(turn));
        if turn.0 >= end || column >= k.next_multiple_of(LINE_K) {
            return;
        }
        // SAFETY: the caller's promise; the column is inside.
        unsafe {
            let sum = group_sum(smem.offset(row << row_shift(k)), num_chunks(k));
            let [a, b, c, d, e, f, g, h] = scaled(weighted, scale(sum, reciprocal, eps));
            let words = [E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)];
            rows.offset(row * row_stride(k) + column).cast::<u32>().set_vec(0, words);
        }
    }
}
