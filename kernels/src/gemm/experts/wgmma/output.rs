//! What a tile stores: its accumulators, transposed, gated where there is a gate.

use super::super::chunk::offset;
use super::{GATE_ROWS, Layer, NUM_CONSUMERS, Tile, VEC};
use crate::gemm::epilogue::wgmma::{SUBTILE_COLUMNS, SUBTILE_REGS};
use crate::gemm::mainloop::accumulators::{Accumulators, MMA_M};
use crate::tile::element::Operand16;
use cuda_std::matrix;
use cuda_std::prelude::*;

/// Elements between choices in the staging: rows that are stored at once are in different banks.
const STAGING_STRIDE: u32 = MMA_M + VEC;

/// Elements of the staging of a warpgroup, 64 choices.
pub const STAGING_ELEMS: u32 = SUBTILE_COLUMNS * STAGING_STRIDE;

impl<E: Operand16> Layer<E> {
    /// Stores a warpgroup's accumulators.
    ///
    /// # Safety
    /// 1. As the kernel requires; all consumers call this.
    #[inline(always)]
    pub(super) unsafe fn store<A: Accumulators>(&self, tile: &Tile, acc: &A) {
        let columns = self.tile_columns() / NUM_CONSUMERS;
        let first_column = tile.column + warp::warpgroup_idx() * columns;
        // SAFETY: the caller's promise.
        unsafe {
            let terms = self.bias_terms(tile, first_column);
            unroll!(subtile in 0..4, {
                if (subtile as u32) < A::SUBTILES_N {
                    let mut values = acc.subtile(subtile as u32);
                    for i in 0..SUBTILE_REGS {
                        values[i] += terms[i / 2 % 2];
                    }
                    let first_row = subtile as u32 * SUBTILE_COLUMNS;
                    let origin = [first_row, first_column];
                    // All threads have read what was staged before.
                    sync_warpgroup();
                    self.stage::<A>(&values);
                    sync_warpgroup();
                    if self.gate.num_parts() == 2 {
                        self.store_staged::<{ MMA_M / 2 }>(tile, origin);
                    } else {
                        self.store_staged::<MMA_M>(tile, origin);
                    }
                }
            });
        }
    }

    /// The biases of the thread's upper and lower row of an MMA.
    ///
    /// # Safety
    /// As [`Layer::store`].
    #[inline(always)]
    unsafe fn bias_terms(&self, tile: &Tile, first_column: u32) -> [f32; 2] {
        let parts_log2 = self.gate.num_parts() - 1;
        let warp = warp::warp_idx() % 4;
        let is_up = parts_log2 == 1 && (warp % 2 == 1) != self.up_is_first;
        let bias = if is_up { self.biases[1] } else { self.biases[0] };
        let first = first_column + (warp >> parts_log2) * GATE_ROWS + warp::lane_id() / 4;
        let mut terms = [0.0; 2];
        for half in 0..2 {
            let column = first + half as u32 * 8;
            if !bias.is_null() && column < self.n {
                let at = tile.expert as usize * self.n as usize + column as usize;
                // SAFETY: the column is inside.
                terms[half] = unsafe { bias.get(at) };
            }
        }
        terms
    }

    /// The warpgroup's staging.
    #[inline(always)]
    fn staging(&self) -> Shared<u16> {
        self.smem.offset(self.stages.staging_at() + warp::warpgroup_idx() * STAGING_ELEMS)
    }

    /// Stages 64 columns of 64 choices, transposed: a row is a choice.
    ///
    /// # Safety
    /// 1. No thread reads the staging; the warp is converged.
    #[inline(always)]
    unsafe fn stage<A: Accumulators>(&self, values: &[f32; SUBTILE_REGS]) {
        let (matrix, row) = (warp::lane_id() / 8, warp::lane_id() % 8);
        let column = warp::warp_idx() % 4 * 16 + matrix % 2 * 8;
        let to = self.staging().offset((matrix / 2 * 8 + row) * STAGING_STRIDE + column);
        unroll!(rows in 0..4, {
            if 16 * (rows as u32) < A::COLUMNS {
                let words = [0, 2, 4, 6].map(|i| {
                    let i = 8 * rows + i;
                    E::pack(values[i], values[i + 1])
                });
                let to = to.offset(rows as u32 * 16 * STAGING_STRIDE);
                // SAFETY: inside the staging.
                unsafe { matrix::store_x4_trans(to, words) };
            }
        });
    }

    /// Stores what the warpgroup has staged: `COLUMNS` columns from `first_column` on of the
    /// choices from `first_row` on, eight columns a thread and row. Half of 64 columns are those of
    /// gate and up, multiplied.
    ///
    /// # Safety
    /// 1. As [`Layer::store`]; the staging is written.
    #[inline(always)]
    unsafe fn store_staged<const COLUMNS: u32>(
        &self,
        tile: &Tile,
        [first_row, first_column]: [u32; 2],
    ) {
        let vecs = const { COLUMNS / VEC };
        let rows = warp::WARPGROUP_SIZE / vecs;
        let thread = thread::thread_idx_x() % warp::WARPGROUP_SIZE;
        let vectors = self.out_strides[0] | self.out_strides[1] | self.n;
        let is_vector = vectors.is_multiple_of(VEC) && self.out.address().is_multiple_of(16);
        let in_tile = thread % vecs * VEC;
        let column = first_column + in_tile;
        // Found by the whole warp.
        let staging = self.staging();
        for i in 0..SUBTILE_COLUMNS / rows {
            let row = i * rows + thread / vecs;
            let in_chunk = first_row + row;
            if in_chunk >= tile.num_rows || column >= self.n {
                continue;
            }
            // SAFETY: the caller's promise; row and column are inside.
            unsafe {
                let choice = self.order.get((tile.first + in_chunk) as usize);
                let at = offset(choice, self.top_k, self.out_strides) + column as usize;
                let staged = staging.offset(row * STAGING_STRIDE);
                let words = if COLUMNS == MMA_M {
                    staged.offset(in_tile).cast::<u32>().get_vec(0)
                } else {
                    self.gated(staged.offset(in_tile + in_tile / GATE_ROWS * GATE_ROWS))
                };
                if is_vector {
                    self.out.cast::<u32>().set_vec(at / 2, words);
                } else {
                    unroll!(i in 0..8, {
                        let value = E::unpack(words[i / 2])[i % 2];
                        if column + (i as u32) < self.n {
                            self.out.set(at + i, E::from_f32(value));
                        }
                    });
                }
            }
        }
    }

    /// Eight columns of gate and up, which were rounded as the separate operations round.
    ///
    /// # Safety
    /// 1. They are staged at `first`, and 16 columns after it.
    #[inline(always)]
    unsafe fn gated(&self, first: Shared<u16>) -> [u32; 4] {
        // SAFETY: the caller's promise.
        let [upper, lower]: [[u32; 4]; 2] =
            unsafe { [0, GATE_ROWS].map(|at| first.offset(at).cast::<u32>().get_vec(0)) };
        let (gate, up) = if self.up_is_first { (lower, upper) } else { (upper, lower) };
        let mut words = [0; 4];
        unroll!(i in 0..4, {
            let ([a, b], [c, d]) = (E::unpack(gate[i]), E::unpack(up[i]));
            words[i] = E::pack(self.gate.apply::<E>(a, c), self.gate.apply::<E>(b, d));
        });
        words
    }
}

/// Waits for the threads of the consumer's warpgroup.
#[inline(always)]
fn sync_warpgroup() {
    if warp::warpgroup_idx() == 0 {
        barrier::sync::<1, { warp::WARPGROUP_SIZE }>();
    } else {
        barrier::sync::<2, { warp::WARPGROUP_SIZE }>();
    }
}
