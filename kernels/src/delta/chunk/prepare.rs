//! What chunks of the gated delta rule need that does not depend on the state: `T`, `P` and the
//! factors of [`chunk`](super).
//!
//! Shapes    q, k `[num_tokens, num_k_heads * k_dim]`, gates `[num_tokens, 2 * num_heads]` with row
//!           strides, f16 or bf16; rate, bias `[num_heads]` f32; inverse, scores `[num_heads,
//!           num_rows, 64]`, factors `[num_heads, num_rows, 4]` f32.
//! Launch    grid `(num_k_heads, max_chunks, 2)`, block `(NUM_THREADS, 1, 1)`: a block has a chunk
//!           of a head of keys, and goes through the heads of values that share it; the first makes
//!           `T`, the second `P` and the factors. A warp has 16 of its rows.
//! Numerics  products of keys and queries in f32; the squares of 16 on the diagonal are inverted in
//!           f32, the others from them in f16 with f32 sums (all are at most 1): `T[a, b] = -T[a,
//!           a] sum_c M[a, c] T[c, b]`.
//! Bound     compute: `4 * 64 * k_dim` FLOP a token and head of keys.
//! Source    arXiv:2412.06464.

use super::tile::{Fragments, Square, Tile, lane_place, multiply, pack};
use super::{CHUNK, CHUNK_STEPS, NUM_FACTORS, Prepared, find};
use crate::delta::rule::{NORM_EPS, softplus};
use crate::element::{Half, Number};
use crate::sigmoid_gate::sigmoid;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block: a warp for each 16 rows of a chunk.
pub(super) const NUM_THREADS: u32 = 128;

/// From a column of a square on the diagonal to the next.
const DIAGONAL_STRIDE: u32 = 20;

/// Elements of such a square.
const DIAGONAL_ELEMS: u32 = 16 * DIAGONAL_STRIDE;

/// Squares of a row of a chunk's matrix.
type Squares = [Square; CHUNK_STEPS];

/// A chunk's matrix in shared memory.
type Matrix = Tile<f16, CHUNK_STEPS>;

/// Elements of 16 bits that a block has in shared memory beside the keys: queries, or the matrix,
/// its inverse and the squares on its diagonal.
const fn own_elems(k_dim: u32) -> u32 {
    let (queries, matrices) = (CHUNK * k_dim, 2 * Matrix::ELEMS + 2 * 4 * DIAGONAL_ELEMS);
    if queries > matrices { queries } else { matrices }
}

/// Shared memory of a block: with the keys, and five numbers a row.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const fn shared_bytes(k_dim: usize) -> usize {
    let elems = CHUNK * k_dim as u32 + own_elems(k_dim as u32);
    2 * elems as usize + size_of::<f32>() * 5 * CHUNK as usize
}

/// What each row of a chunk has, in shared memory: the sum of its gates' logarithms, in base 2, its
/// rate of learning, and one over the lengths of its key and of its query.
#[derive(Clone, Copy)]
struct RowValues {
    values: Shared<f32>,
}

impl RowValues {
    const SUM: u32 = 0;
    const BETA: u32 = CHUNK;
    const OF_K: u32 = 2 * CHUNK;
    const OF_Q: u32 = 3 * CHUNK;
    /// The sum of the first warp's rows.
    const CARRY: u32 = 4 * CHUNK;

    /// Value `what` of the lane's rows `first + group` and eight further on.
    ///
    /// # Safety
    /// 1. They are written.
    #[inline(always)]
    #[track_caller]
    unsafe fn of_rows(self, what: u32, first: u32) -> [f32; 2] {
        let [group, _] = lane_place();
        // SAFETY: the caller's promise.
        unsafe { [0, 8].map(|more| self.values.get(what + first + group + more)) }
    }

    /// Value `what` of the lane's columns of the accumulator at column `first`.
    ///
    /// # Safety
    /// As [`RowValues::of_rows`].
    #[inline(always)]
    #[track_caller]
    unsafe fn of_columns(self, what: u32, first: u32) -> [f32; 2] {
        let [_, pair] = lane_place();
        // SAFETY: the caller's promise.
        unsafe { self.values.get_vec(what + first + 2 * pair) }
    }

    /// The sums of `log`, and `beta`, of the row of each of the first threads.
    ///
    /// # Safety
    /// 1. All threads of the block call this, past their reads of what was there.
    #[inline(always)]
    unsafe fn set_gates(self, log: f32, beta: f32) {
        let thread = thread::thread_idx_x();
        let mut sum = sum_up(log);
        // SAFETY: a thread's rows are its own; barriers separate the writes from the reads.
        unsafe {
            thread::sync_threads();
            if thread == warp::WARP_SIZE - 1 {
                self.values.set(Self::CARRY, sum);
            }
            thread::sync_threads();
            if thread < CHUNK {
                sum += if thread < warp::WARP_SIZE { 0.0 } else { self.values.get(Self::CARRY) };
                self.values.set(Self::SUM + thread, sum);
                self.values.set(Self::BETA + thread, beta);
            }
            thread::sync_threads();
        }
    }

    /// The factors of the chunk's `len` tokens.
    ///
    /// # Safety
    /// 1. The values are written; `factors` holds so many tokens, which nobody else accesses.
    #[inline(always)]
    unsafe fn store_factors(self, factors: GlobalMut<f32>, len: u32) {
        let thread = thread::thread_idx_x();
        if thread >= len {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let value = |what| self.values.get(what + thread);
            let (sum, last) = (value(Self::SUM), self.values.get(Self::SUM + CHUNK - 1));
            let (of_k, of_q) = (value(Self::OF_K), value(Self::OF_Q));
            let (decay, after) = (math::exp2_approx(sum), math::exp2_approx(last - sum));
            let values = [decay * of_k, decay * of_q, after * of_k, math::exp2_approx(last)];
            factors.set_vec((thread * NUM_FACTORS) as usize, values);
        }
    }

    /// One over the length of each key and, if the block has queries, of each query times
    /// `sqrt(k_dim)`: a thread has a row of one of them.
    ///
    /// # Safety
    /// 1. The tiles are written. All threads of the block call this.
    #[inline(always)]
    unsafe fn set_lengths<E: Half, const STEPS: usize>(
        self,
        tiles: [Tile<E, STEPS>; 2],
        has_queries: bool,
    ) {
        let thread = thread::thread_idx_x();
        let (row, is_query) = (thread % CHUNK, thread >= CHUNK);
        if is_query && !has_queries {
            return;
        }
        let tile = if is_query { tiles[1] } else { tiles[0] };
        let mut square = NORM_EPS;
        // SAFETY: the row is inside, and its value the thread's own.
        unsafe {
            for vec_idx in 0..2 * STEPS as u32 {
                let words: [u32; 4] = tile.vec_at(row, vec_idx).cast::<u32>().get_vec(0);
                unroll!(i in 0..4, {
                    let [a, b] = E::unpack(words[i]);
                    square = math::fma(a, a, math::fma(b, b, square));
                });
            }
            let scale = if is_query { math::rsqrt_approx(16.0 * STEPS as f32) } else { 1.0 };
            let what = if is_query { Self::OF_Q } else { Self::OF_K };
            self.values.set(what + row, math::rsqrt_approx(square) * scale);
        }
    }
}

/// The sum of `value` over the lanes up to this one.
#[inline(always)]
fn sum_up(mut value: f32) -> f32 {
    unroll!(step in 0..5, {
        let other = warp::shuffle_up(value, 1 << step);
        value += if warp::lane_id() < 1 << step { 0.0 } else { other };
    });
    value
}

/// Row `row` of squares of `x k^T`, up to the diagonal's.
///
/// # Safety
/// 1. The tiles are written. The whole warp calls this.
#[inline(always)]
unsafe fn products<E: Half, const STEPS: usize>(
    x: Fragments<E, STEPS>,
    k: Fragments<E, STEPS>,
    row: usize,
) -> Squares {
    let mut products = [[[0.0; 4]; 2]; CHUNK_STEPS];
    unroll!(step in 0..STEPS, {
        // SAFETY: the squares are inside.
        let a = unsafe { x.a(row, step) };
        unroll!(column in 0..4, {
            if column <= row {
                // SAFETY: as above.
                multiply::<E>(a, unsafe { k.b(column, step) }, &mut products[column]);
            }
        });
    });
    products
}

/// The warp's rows of a chunk.
#[derive(Clone, Copy)]
struct ChunkRows {
    rows: RowValues,
    first_row: u32,
    /// Tokens of the chunk.
    len: u32,
}

impl ChunkRows {
    /// `e^(G[i] - G[j])` over the length of key `j`, of the lane's elements of square `column`; 1
    /// in the place of what is above the diagonal.
    ///
    /// # Safety
    /// 1. The values are written.
    #[inline(always)]
    unsafe fn decays(self, column: usize) -> Square {
        // SAFETY: the caller's promise.
        let sums = unsafe { self.rows.of_rows(RowValues::SUM, self.first_row) };
        [0, 1].map(|half| {
            let first = 16 * column as u32 + 8 * half;
            // SAFETY: the caller's promise.
            let [of_k, of_columns] = unsafe {
                [RowValues::OF_K, RowValues::SUM].map(|what| self.rows.of_columns(what, first))
            };
            // No exponent above 0, which could be infinite.
            [0, 1, 2, 3].map(|i| {
                let exponent = math::min(sums[i / 2] - of_columns[i % 2], 0.0);
                math::exp2_approx(exponent) * of_k[i % 2]
            })
        })
    }

    /// Stores a square of the chunk's matrix, whose rows are 64 apart.
    ///
    /// # Safety
    /// 1. The chunk's rows are inside the view, and nobody else accesses the square.
    #[inline(always)]
    unsafe fn store<E: Half>(self, to: GlobalMut<E>, column: usize, square: Square) {
        let [group, pair] = lane_place();
        let words = pack::<E>(square);
        unroll!(half in 0..2, {
            let row = self.first_row + group + 8 * half as u32;
            if row < self.len {
                let at = (row * CHUNK + 16 * column as u32 + 2 * pair) as usize;
                // SAFETY: the caller's promise.
                unsafe {
                    to.add(at).cast::<u32>().set(0, words[half]);
                    to.add(at + 8).cast::<u32>().set(0, words[half + 2]);
                }
            }
        });
    }

    /// Stores a square of `tile`.
    ///
    /// # Safety
    /// 1. Nobody else accesses the square.
    #[inline(always)]
    unsafe fn store_to_tile(self, tile: Matrix, column: usize, square: Square) {
        let words = pack::<f16>(square);
        let to = tile.accumulator_at(self.first_row);
        unroll!(i in 0..4, {
            let to = to.xor(16 * column as u32 + 8 * (i as u32 / 2));
            // SAFETY: the caller's promise.
            unsafe { to.cast::<u32>().set(8 * 32 * (i as u32 % 2), words[i]) };
        });
    }

    /// The rows of `P`: of `q k^T`.
    ///
    /// # Safety
    /// As [`ChunkRows::decays`] and [`ChunkRows::store`].
    #[inline(always)]
    unsafe fn store_scores<E: Half>(self, products: &Squares, row: usize, to: GlobalMut<E>) {
        let [group, pair] = lane_place();
        // SAFETY: the caller's promise.
        unsafe {
            let of_q = self.rows.of_rows(RowValues::OF_Q, self.first_row);
            unroll!(column in 0..4, {
                if column <= row {
                    let mut scores = self.decays(column);
                    unroll!(at in 0..8, {
                        let (half, i) = (at / 4, at % 4);
                        let above = 8 * half as u32 + 2 * pair + i as u32 % 2 > group + 8 * (i as u32 / 2);
                        let score = scores[half][i] * products[column][half][i] * of_q[i / 2];
                        scores[half][i] = if column == row && above { 0.0 } else { score };
                    });
                    self.store(to, column, scores);
                }
            });
        }
    }

    /// The rows of `M`, of `k k^T`: to `matrix`, but of the square on the diagonal the columns to
    /// `diagonal`.
    ///
    /// # Safety
    /// As [`ChunkRows::decays`] and [`ChunkRows::store_to_tile`]; `diagonal` is the warp's.
    #[inline(always)]
    unsafe fn store_matrix(
        self,
        products: &Squares,
        row: usize,
        matrix: Matrix,
        diagonal: Shared<f32>,
    ) {
        let [group, pair] = lane_place();
        // SAFETY: the caller's promise.
        unsafe {
            let of_k = self.rows.of_rows(RowValues::OF_K, self.first_row);
            let beta = self.rows.of_rows(RowValues::BETA, self.first_row);
            unroll!(column in 0..4, {
                if column <= row {
                    let mut square = self.decays(column);
                    unroll!(at in 0..8, {
                        let (half, i) = (at / 4, at % 4);
                        square[half][i] *= products[column][half][i] * of_k[i / 2] * beta[i / 2];
                    });
                    if column < row {
                        self.store_to_tile(matrix, column, square);
                    } else {
                        unroll!(at in 0..8, {
                            let (half, i) = (at / 4, at % 4);
                            let of_column = 8 * half as u32 + 2 * pair + i as u32 % 2;
                            let of_row = group + 8 * (i as u32 / 2);
                            diagonal.set(of_column * DIAGONAL_STRIDE + of_row, square[half][i]);
                        });
                    }
                }
            });
        }
    }

    /// A square of the inverse, times the rates of its columns.
    ///
    /// # Safety
    /// As [`ChunkRows::decays`] and [`ChunkRows::store`].
    #[inline(always)]
    unsafe fn store_inverse<E: Half>(self, column: usize, mut square: Square, to: GlobalMut<E>) {
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(half in 0..2, {
                let first = 16 * column as u32 + 8 * half as u32;
                let betas = self.rows.of_columns(RowValues::BETA, first);
                unroll!(i in 0..4, {
                    square[half][i] *= betas[i % 2];
                });
            });
            self.store(to, column, square);
        }
    }

    /// Row `row` of squares of the inverse, of which that on the diagonal is in `inverted`: to
    /// there, as far as other rows need it, and to `to`.
    ///
    /// # Safety
    /// 1. The warp's rows of `matrix` and its square on the diagonal are written. All threads of
    ///    the block call this, with rows of their own.
    /// 2. As [`ChunkRows::store_inverse`].
    #[inline(always)]
    unsafe fn invert<E: Half>(
        self,
        row: usize,
        matrix: Matrix,
        inverted: Matrix,
        to: GlobalMut<E>,
    ) {
        let (of_matrix, of_inverse) = (matrix.fragments(), inverted.fragments());
        // SAFETY: the caller's promise; barriers separate the rows' writes from the reads of later
        // ones.
        unsafe {
            let diagonal = of_inverse.a(row, row);
            let [a, b, c, d] = diagonal.map(<f16 as Half>::unpack);
            let square = [[a[0], a[1], b[0], b[1]], [c[0], c[1], d[0], d[1]]];
            self.store_inverse(row, square, to);
            let mut left = [[0; 4]; 3];
            unroll!(column in 0..3, {
                if column < row {
                    let mut product = [[0.0; 4]; 2];
                    multiply::<f16>(diagonal, of_matrix.b_of_rows(row, column), &mut product);
                    left[column] = pack::<f16>(product.map(|half| half.map(|x| -x)));
                }
            });
            unroll!(before in 0..3, {
                const ROW: usize = before + 1;
                thread::sync_threads();
                if ROW == row {
                    unroll!(column in 0..3, {
                        if column < ROW {
                            let square = row_of_inverse::<ROW, column>(left, of_inverse);
                            self.store_to_tile(inverted, column, square);
                            self.store_inverse(column, square, to);
                        }
                    });
                }
            });
        }
    }
}

/// The warp's square on the diagonal, below which are the elements of the matrix: its inverse, with
/// ones on the diagonal, to `inverse`. A lane has a column; the upper half of the warp does as the
/// lower one does.
///
/// # Safety
/// 1. `square` holds the columns of the square, which the warp has written; `inverse` is the
///    warp's.
#[inline(always)]
unsafe fn invert_diagonal(square: Shared<f32>, inverse: Matrix, warp_idx: u32) {
    let column = warp::lane_id() % 16;
    let mut x = [0.0; 16];
    unroll!(row in 0..16, {
        x[row] = if column == row as u32 { 1.0 } else { 0.0 };
    });
    unroll!(row in 0..15, {
        // SAFETY: the column is inside, as the caller promises.
        eliminate::<row>(unsafe { column_below::<row>(square) }, &mut x);
    });
    if warp::lane_id() < 16 {
        unroll!(row in 0..16, {
            let place = inverse.vec_at(16 * warp_idx + row as u32, 2 * warp_idx + column / 8);
            // SAFETY: the caller's promise.
            unsafe { place.set(column % 8, Number::from_f32(x[row])) };
        });
    }
}

/// The elements of column `COLUMN` that are below the diagonal, by row.
///
/// # Safety
/// 1. `square` holds the columns of a square.
#[inline(always)]
unsafe fn column_below<const COLUMN: usize>(square: Shared<f32>) -> [f32; 16] {
    let mut values = [[0.0; 4]; 4];
    unroll!(group in 0..4, {
        if 4 * group + 3 > COLUMN {
            let at = COLUMN as u32 * DIAGONAL_STRIDE + 4 * group as u32;
            // SAFETY: the caller's promise.
            values[group] = unsafe { square.get_vec(at) };
        }
    });
    let mut column = [0.0; 16];
    column.copy_from_slice(values.as_flattened());
    column
}

/// Takes the part of element `ROW` from those after it.
#[inline(always)]
fn eliminate<const ROW: usize>(values: [f32; 16], x: &mut [f32; 16]) {
    unroll!(row in 0..16, {
        if row > ROW {
            x[row] = math::fma(-values[row], x[ROW], x[row]);
        }
    });
}

/// Keys of `16 * STEPS` elements.
///
/// # Safety
/// 1. `num_seqs` is one element; `cu_seqlens_q` is of a step of so many sequences, of at most
///    `num_rows` rows.
/// 2. `q`, `k` and `gates` hold the step's rows of the header's shapes at their strides, with
///    `num_heads` a multiple of `num_k_heads`; rows of `q` and `k` are 16-byte aligned. `rate` and
///    `bias` are of the header's shapes.
/// 3. `inverse`, `scores` and `factors` are of the header's shapes, 16-byte aligned, and overlap
///    nothing.
#[kernel(
    launch_bounds(NUM_THREADS, 3),
    overlaps,
    instances(
        delta_chunk_prepare_f16_d32 = <f16, 2>,
        delta_chunk_prepare_f16_d128 = <f16, 8>,
        delta_chunk_prepare_bf16_d32 = <bf16, 2>,
        delta_chunk_prepare_bf16_d128 = <bf16, 8>
    )
)]
pub unsafe fn delta_chunk_prepare<E: Half, const STEPS: usize>(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    num_heads: u32,
    num_k_heads: u32,
    is_tiled: u32,
    q: Global<()>,
    q_stride: u32,
    k: Global<()>,
    k_stride: u32,
    gates: Global<()>,
    gates_stride: u32,
    rate: Global<f32>,
    bias: Global<f32>,
    inverse: GlobalMut<()>,
    scores: GlobalMut<()>,
    factors: GlobalMut<f32>,
    num_rows: u32,
) {
    let (k_head, index) = (thread::block_idx_x(), thread::block_idx_y());
    let is_query = thread::block_idx_z() == 1;
    let thread = thread::thread_idx_x();
    let prepared =
        Prepared { inverse: inverse.cast::<E>(), scores: scores.cast::<E>(), factors, num_rows };
    // SAFETY: chunk, heads and rows are inside, by the checks here; step inputs and weights are
    // written by no launch of the step. Shared memory is of the size that the launcher sets;
    // barriers separate its writes from its reads, and all threads come to them.
    unsafe {
        // 1. The chunk, its keys and queries.
        let place = find(num_seqs.get(0), cu_seqlens_q, index, |len| len.div_ceil(CHUNK));
        let Some([seq, chunk]) = place else {
            grid::wait_for_dependencies();
            return;
        };
        let first = cu_seqlens_q.get(seq as usize) + chunk * CHUNK;
        let len = (cu_seqlens_q.get(seq as usize + 1) - first).min(CHUNK);
        let shared = dynamic_shared_mem::<E>();
        let k_tile = Tile::<E, STEPS>::new(shared);
        let own = shared.offset(Tile::<E, STEPS>::ELEMS);
        let (q_tile, matrices) = (Tile::<E, STEPS>::new(own), own.cast::<f16>());
        let (matrix, inverted) =
            (Matrix::new(matrices), Matrix::new(matrices.offset(Matrix::ELEMS)));
        let diagonal = matrices.offset(2 * Matrix::ELEMS).cast::<f32>();
        let rows = RowValues { values: own.offset(own_elems(16 * STEPS as u32)).cast() };
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let at = |x: Global<()>, stride: u32| {
            let place = first as usize * stride as usize + (k_head * 16 * STEPS as u32) as usize;
            x.cast::<E>().add(place)
        };
        k_tile.copy::<NUM_THREADS, false>(at(k, k_stride), k_stride, len);
        if is_query {
            q_tile.copy::<NUM_THREADS, false>(at(q, q_stride), q_stride, len);
        }
        cp_async::commit();
        cp_async::wait(0);
        thread::sync_threads();

        // 2. What no gate changes.
        rows.set_lengths([k_tile, q_tile], is_query);
        let row_step = warp::warp_idx() as usize;
        let own_tile = if is_query { q_tile } else { k_tile };
        let products = products(own_tile.fragments(), k_tile.fragments(), row_step);

        // 3. Head after head of values.
        core::hint::assert_unchecked(num_k_heads > 0 && num_heads >= num_k_heads);
        let heads = num_heads / num_k_heads;
        for i in 0..heads {
            let head = if is_tiled == 0 { k_head * heads + i } else { i * num_k_heads + k_head };
            let prepared = prepared.at(head, first);
            let gate = |head: u32| {
                let row = (first + thread) as usize * gates_stride as usize;
                gates.cast::<E>().add(row).get(head as usize).to_f32()
            };
            let (mut log, mut beta) = (0.0, 0.0);
            if thread < len {
                let (rate, bias) = (rate.get(head as usize), bias.get(head as usize));
                log = rate * LOG2_E * softplus(gate(num_heads + head) + bias);
                beta = sigmoid(gate(head));
            }
            rows.set_gates(log, beta);
            let chunk = ChunkRows { rows, first_row: 16 * row_step as u32, len };
            if is_query {
                rows.store_factors(prepared.factors, len);
                chunk.store_scores(&products, row_step, prepared.scores);
            } else {
                let own = diagonal.offset(row_step as u32 * DIAGONAL_ELEMS);
                chunk.store_matrix(&products, row_step, matrix, own);
                warp::sync_warp();
                invert_diagonal(own, inverted, row_step as u32);
                warp::sync_warp();
                chunk.invert(row_step, matrix, inverted, prepared.inverse);
            }
        }
    }
}

/// Square `[ROW, COLUMN]` of the inverse, of those of the rows before.
///
/// # Safety
/// 1. These are written. The whole warp calls this.
#[inline(always)]
unsafe fn row_of_inverse<const ROW: usize, const COLUMN: usize>(
    left: [[u32; 4]; 3],
    inverse: Fragments<f16, CHUNK_STEPS>,
) -> Square {
    let mut square = [[0.0; 4]; 2];
    unroll!(step in 0..3, {
        if step >= COLUMN && step < ROW {
            // SAFETY: the caller's promise.
            multiply::<f16>(left[step], unsafe { inverse.b_of_rows(step, COLUMN) }, &mut square);
        }
    });
    square
}
