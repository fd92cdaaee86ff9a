//! The layer on sm_90a with a weight in Q4_K, Q5_K or Q6_K: the weight by bulk copies, x in
//! registers; formula and shapes as in [`super`].
//!
//! Launch    grid of at most one block an SM, block `(512, 1, 1)`. A block has a contiguous range
//!           of rows of tiles, and takes as many at a time as their partial sums fit into shared
//!           memory. `k_warps` of its warps split k, and the groups of them take rows of tiles in
//!           turn. Each warp has a ring of tiles of its own: warps meet at the end alone.
//! Numerics  as [`super`]; offsets and mins are multiplied by the means of the groups of x, which
//!           are split into two f16. A warp accumulates every `k_warps`-th tile along k in order;
//!           the epilogue adds warps in fours. The order depends on the weight alone.
//! Bound     memory: the weight is read once. Its first tiles are copied before the wait for the
//!           previous launch.

mod epilogue;
mod input;
mod mainloop;
mod ring;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;

use super::epilogue::Epilogue;
use super::format::{FactoredFormat, Q6K, SixBit, TILE_ROWS, Tile, Tiles};
use super::norm::Norm;
use super::{NUM_THREADS, NUM_WARPS};
use crate::activation::GateArg;
use cuda_std::prelude::*;
use epilogue::{BiasAndResidual, Outputs, Partials, TERMS_BYTES};
use half::f16;
use input::{Input, SQUARE_SUMS_BYTES};
use mainloop::multiply;
use ring::{Cursor, Ring};

/// The lane, through a shuffle: what is computed of it is not computed ahead of the main loop,
/// which has no registers for it. The warp is converged.
#[inline(always)]
fn late_lane_id() -> u32 {
    warp::shuffle_idx(warp::lane_id(), warp::lane_id())
}

/// How the warps of a block share its work: `2^k_warps_log2` of them split k.
#[derive(Clone, Copy)]
pub(super) struct WarpSplit {
    k_warps_log2: u32,
}

impl WarpSplit {
    /// Warps that split k.
    #[inline(always)]
    fn k_warps(self) -> u32 {
        1 << self.k_warps_log2
    }

    /// Groups of them.
    #[inline(always)]
    fn num_groups(self) -> u32 {
        NUM_WARPS >> self.k_warps_log2
    }

    /// Rows of the warp's group, of `len`: groups take rows in turn.
    #[inline(always)]
    fn rows_of_group(self, len: u32) -> u32 {
        let [group, _] = self.warp_indices();
        self.rows_of(group, len)
    }

    /// Rows of group `group`.
    #[inline(always)]
    fn rows_of(self, group: u32, len: u32) -> u32 {
        (len + self.num_groups() - 1 - group) >> (NUM_WARPS.ilog2() - self.k_warps_log2)
    }

    /// The warp's group, and its place in it.
    #[inline(always)]
    fn warp_indices(self) -> [u32; 2] {
        [warp::warp_idx() >> self.k_warps_log2, warp::warp_idx() % self.k_warps()]
    }
}

/// The rows of tiles of a block.
#[derive(Clone, Copy)]
pub(super) struct BlockRows {
    /// The first one, and their number, in each part of the weight.
    first: u32,
    len: u32,
    gate: GateArg,
    /// Rows that are computed together, a multiple of the groups of warps or all.
    batch: u32,
}

impl BlockRows {
    /// Rows of the batch that starts at row `first`.
    #[inline(always)]
    fn batch_len(&self, first: u32) -> u32 {
        self.batch.min(self.len - first)
    }
}

/// A block computes up to `8 * TILES_M` rows by its rows of tiles.
///
/// # Safety
/// 1. `num_rows` is one element, at most `max_rows`, which is from 1 to `8 * TILES_M`. `x` holds
///    `max_rows` rows, the output and `residual` `num_rows`, at their strides; `weight` holds the
///    tiles of as many weights `[n, k]` of the format `F` as `gate`, a `GateArg`, has parts, a row
///    of tiles in `row_bytes`, and `bias` an element for each of their rows. `bias` and `residual`
///    may be null. The output is `out_f32`, or `out` if `out_f32` is null.
/// 2. The output is `residual`, or overlaps nothing that is read.
/// 3. Rows of `x` and `weight` are 16-byte aligned; `k` is a multiple of 32.
/// 4. `norm_weight` is null, or holds `k` elements, 16-byte aligned; elements of `x` are then f32,
///    `k` is at most 4,096, and `TILES_M` is 1.
/// 5. `2^k_warps_log2` is 4, 8 or 16, and `batch` is a multiple of the groups of warps, or all rows
///    of a block. Shared memory holds the rings, x, and the partial sums of a batch.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(
        F in [SixBit<0> as "q4_k", SixBit<1> as "q5_k", Q6K as "q6_k"],
        gemm_f16_streamed_{F}_m8 = <F, 1>,
        gemm_f16_streamed_{F}_m16 = <F, 2>
    )
)]
pub unsafe fn gemm_f16_quantised_streamed<F: FactoredFormat, const TILES_M: usize>(
    num_rows: Global<u32>,
    max_rows: u32,
    n: u32,
    k: u32,
    gate: u32,
    k_warps_log2: u32,
    batch: u32,
    // Rows of tiles of a block, and of how many blocks have one more.
    block_rows: u32,
    larger_blocks: u32,
    weight: Global<u8>,
    row_bytes: u32,
    x: Global<u16>,
    x_stride: u32,
    norm_weight: Global<f32>,
    norm_reciprocal: f32,
    norm_eps: f32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<f16>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
) {
    let split = WarpSplit { k_warps_log2 };
    let mut tiles = Tiles::new::<F>(weight, k);
    tiles.row_bytes = row_bytes;
    let block = thread::block_idx_x();
    let rows = BlockRows {
        first: block * block_rows + block.min(larger_blocks),
        len: block_rows + u32::from(block < larger_blocks),
        gate: GateArg(gate),
        batch,
    };
    // SAFETY: the launch gives shared memory for the rings, the rows of x, the terms, the sums of
    // squares and the partial sums, in this order. Results of rows past the last one are not
    // stored.
    unsafe {
        // 1. Before the previous launch has ended: loads of what it does not write.
        let copied_rows = num_rows.get(0);
        let smem = dynamic_shared_mem::<u8>();
        let cursor = Cursor::new::<F>(split, rows, tiles, n.div_ceil(TILE_ROWS));
        let mut ring = Ring::new::<F>(smem, cursor);
        let x_smem = smem.offset(NUM_WARPS * Ring::bytes(Tile::<F>::BYTES)).cast::<u16>();
        let terms_smem = x_smem.offset(input::shared_bytes(TILES_M, max_rows) / 2).cast::<f32>();
        let square_sums = terms_smem.offset(TERMS_BYTES / 4);
        let partials_smem = square_sums.offset(SQUARE_SUMS_BYTES / 4);
        let partials = Partials::new(partials_smem, split, max_rows);
        let [_, k_warp] = split.warp_indices();
        let norm = Norm { weight: norm_weight, reciprocal: norm_reciprocal, eps: norm_eps, k };
        let norm_weights = norm.weights(k_warp);

        // 2. After it.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let input = Input::<TILES_M>::new((x, x_stride), (num_rows, max_rows), k, x_smem);
        let outputs = Outputs {
            rows,
            max_rows,
            num_rows,
            epilogue: Epilogue { n, bias, residual, residual_stride, out, out_f32, out_stride },
        };
        if TILES_M == 1 && norm.exists() {
            input.copy_normed(&norm, norm_weights, k_warp, copied_rows, square_sums);
        } else {
            input.copy(k_warp, copied_rows);
        }
        let mut x = input.none();
        let mut first = 0;
        while first < rows.len {
            let len = rows.batch_len(first);
            // Not in registers: the main loop has none for them.
            let terms = outputs.first_terms([first, len]);
            terms_smem.set_vec(2 * thread::thread_idx_x(), [terms.bias, terms.other]);

            // 3. Main loop: x of a tile stays in registers for all rows of the batch.
            let mut tile = k_warp;
            loop {
                let mut next = tile + split.k_warps();
                if next >= tiles.num_tiles {
                    next = k_warp;
                }
                if first == 0 && tile == k_warp || next != tile {
                    input.load::<F>(tile, &mut x);
                    if TILES_M == 1 && next != tile {
                        input.copy_next(next);
                    }
                }
                let mut slot = partials.first_slot();
                let mut left = rows.gate.num_parts() * split.rows_of_group(len);
                while left > 0 {
                    let mut acc = [[0.0; 4]; TILES_M];
                    if tile < tiles.num_tiles {
                        let before = || if tile == k_warp { acc } else { slot.load::<TILES_M>() };
                        acc = multiply::<F, TILES_M>(ring.next::<F>(), &x, before);
                    }
                    slot.store::<TILES_M>(&acc);
                    slot = slot.next();
                    left -= 1;
                }
                if TILES_M > 1 && next != tile {
                    input.copy_next(next);
                }
                tile += split.k_warps();
                if tile >= tiles.num_tiles {
                    break;
                }
            }

            // 4. Epilogue.
            thread::sync_threads();
            let [bias, other] = terms_smem.get_vec(2 * thread::thread_idx_x());
            outputs.store([first, len], &partials, BiasAndResidual { bias, other });
            first += len;
            if first < rows.len {
                // All threads have read the partial sums.
                thread::sync_threads();
            }
        }
        // Of a tile that is not used.
        cp_async::wait(0);
    }
}
