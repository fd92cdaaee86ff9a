//! The chunks of each sequence in order, with the state of a head of values in registers: see
//! [`chunk`](super).
//!
//! Shapes    q, k `[num_tokens, num_k_heads * k_dim]`, v, out `[num_tokens, num_heads * v_dim]`
//!           with row strides, f16 or bf16; inverse, scores, factors as [`prepare`](super::prepare)
//!           leaves them; state `[num_slots, num_heads, k_dim, v_dim]` f32.
//! Launch    grid `(v_dim / 32, num_heads, max_long_seqs)`, block `(NUM_THREADS, 1, 1)`: a warp has
//!           16 columns of the state, transposed, as accumulators. What it multiplies goes from
//!           accumulators to fragments A without leaving the warp; the next chunk is on its way
//!           meanwhile.
//! Numerics  f32 state and sums; the state, `v - e^G (k S)` and `D` are rounded to the element type
//!           where they are multiplied.
//! Bound     compute: `(6 * k_dim + 2 * 64) * v_dim` FLOP a token and head of values.
//! Source    arXiv:2412.06464.

use super::tile::{Square, Tile, lane_place, multiply, pack};
use super::{CHUNK, CHUNK_STEPS, NUM_FACTORS, Prepared, find};
use crate::element::Half;
use cuda_std::matrix::{load_x4_trans, transpose};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Warps of a block.
const NUM_WARPS: u32 = 2;

/// Threads of a block.
pub(super) const NUM_THREADS: u32 = NUM_WARPS * warp::WARP_SIZE;

/// Columns of a block.
pub(super) const BLOCK_COLUMNS: u32 = 16 * NUM_WARPS;

/// Steps of 16 columns of a block.
const BLOCK_STEPS: usize = NUM_WARPS as usize;

/// Stages of a chunk's operands.
const NUM_STAGES: u32 = 2;

/// Elements of 16 bits in a stage: keys, queries, `T`, `P` and values, and the factors in f32.
const fn stage_elems(k_dim: u32) -> u32 {
    CHUNK * (2 * k_dim + 2 * CHUNK + BLOCK_COLUMNS + 2 * NUM_FACTORS)
}

/// Shared memory of a block.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) const fn shared_bytes(k_dim: usize) -> usize {
    2 * (NUM_STAGES * stage_elems(k_dim as u32)) as usize
}

/// The transpose of 16 columns of a chunk's matrix: a square for every 16 tokens.
type Columns = [Square; CHUNK_STEPS];

/// A chunk's operands in shared memory.
#[derive(Clone, Copy)]
struct Stage<E, const STEPS: usize> {
    k: Tile<E, STEPS>,
    q: Tile<E, STEPS>,
    inverse: Tile<E, CHUNK_STEPS>,
    scores: Tile<E, CHUNK_STEPS>,
    v: Tile<E, BLOCK_STEPS>,
    factors: Shared<f32>,
}

/// Where a block finds its chunks.
#[derive(Clone, Copy)]
struct Source<E> {
    k: Global<E>,
    k_stride: u32,
    q: Global<E>,
    q_stride: u32,
    v: Global<E>,
    v_stride: u32,
    prepared: Prepared<E>,
}

impl<E: Half, const STEPS: usize> Stage<E, STEPS> {
    #[inline(always)]
    fn new(shared: Shared<E>, index: u32) -> Self {
        let k = shared.offset(index * stage_elems(16 * STEPS as u32));
        let q = k.offset(Tile::<E, STEPS>::ELEMS);
        let inverse = q.offset(Tile::<E, STEPS>::ELEMS);
        let scores = inverse.offset(CHUNK * CHUNK);
        let v = scores.offset(CHUNK * CHUNK);
        Stage {
            k: Tile::new(k),
            q: Tile::new(q),
            inverse: Tile::new(inverse),
            scores: Tile::new(scores),
            v: Tile::new(v),
            factors: v.offset(Tile::<E, BLOCK_STEPS>::ELEMS).cast(),
        }
    }

    /// Issues the copies of `num_rows` tokens from token `token` on.
    ///
    /// # Safety
    /// 1. The source has them. Nobody reads the stage until they are waited for.
    #[inline(always)]
    #[track_caller]
    unsafe fn copy(self, source: &Source<E>, token: u32, num_rows: u32) {
        let thread = thread::thread_idx_x();
        // SAFETY: the caller's promise.
        unsafe {
            let at = |x: Global<E>, stride: u32| x.add(token as usize * stride as usize);
            let prepared = source.prepared.at(0, token);
            let (k, q, v) = (source.k_stride, source.q_stride, source.v_stride);
            self.k.copy::<NUM_THREADS, false>(at(source.k, k), k, num_rows);
            self.inverse.copy::<NUM_THREADS, true>(prepared.inverse.as_global(), CHUNK, num_rows);
            self.v.copy::<NUM_THREADS, false>(at(source.v, v), v, num_rows);
            let from = (thread * NUM_FACTORS) as usize;
            let factors = prepared.factors.as_global();
            cp_async::copy_vec::<4, f32>(
                self.factors,
                from as u32,
                factors,
                from,
                thread < num_rows,
            );
            self.q.copy::<NUM_THREADS, false>(at(source.q, q), q, num_rows);
            self.scores.copy::<NUM_THREADS, true>(prepared.scores.as_global(), CHUNK, num_rows);
        }
        cp_async::commit();
    }

    /// Factor `WHICH` of the lane's tokens of accumulator `index`.
    ///
    /// # Safety
    /// 1. The stage is written.
    #[inline(always)]
    #[track_caller]
    unsafe fn factors_of<const WHICH: u32>(self, index: usize) -> [f32; 2] {
        let [_, pair] = lane_place();
        let at = (8 * index as u32 + 2 * pair) * NUM_FACTORS + WHICH;
        // SAFETY: the caller's promise.
        unsafe { [self.factors.get(at), self.factors.get(at + NUM_FACTORS)] }
    }

    /// Scales every token's elements by its factor `WHICH`.
    ///
    /// # Safety
    /// As [`Stage::factors_of`].
    #[inline(always)]
    #[track_caller]
    unsafe fn scale<const WHICH: u32>(self, columns: &mut Columns) {
        unroll!(index in 0..8, {
            // SAFETY: the caller's promise.
            let factors = unsafe { self.factors_of::<WHICH>(index) };
            for i in 0..4 {
                columns[index / 2][index % 2][i] *= factors[i % 2];
            }
        });
    }

    /// The warp's columns of the values, transposed.
    ///
    /// # Safety
    /// As [`Stage::factors_of`]; the whole warp calls this.
    #[inline(always)]
    #[track_caller]
    unsafe fn values(self, warp_idx: u32, step: usize) -> Square {
        let lane = warp::lane_id();
        // Matrices: tokens, then columns, as an accumulator has its four pairs the other way.
        let row = 16 * step as u32 + lane % 8 + lane / 16 * 8;
        // SAFETY: the caller's promise.
        let words = unsafe { load_x4_trans(self.v.vec_at(row, 2 * warp_idx + lane / 8 % 2)) };
        let [a, b, c, d] = words.map(E::unpack);
        [[a[0], a[1], b[0], b[1]], [c[0], c[1], d[0], d[1]]]
    }
}

/// The product of fragments A with the lower triangle of a matrix of a chunk, transposed, is added.
///
/// # Safety
/// 1. The tile is written. The whole warp calls this.
#[inline(always)]
#[track_caller]
unsafe fn multiply_triangle<E: Half>(
    a: [[u32; 4]; CHUNK_STEPS],
    matrix: Tile<E, CHUNK_STEPS>,
    to: &mut Columns,
) {
    let matrix = matrix.fragments();
    unroll!(row in 0..4, {
        unroll!(column in 0..4, {
            if column <= row {
                // SAFETY: the caller's promise.
                multiply::<E>(a[column], unsafe { matrix.b(row, column) }, &mut to[row]);
            }
        });
    });
}

/// The product of the state with the rows of a tile, transposed.
///
/// # Safety
/// As [`multiply_triangle`].
#[inline(always)]
#[track_caller]
unsafe fn multiply_state<E: Half, const STEPS: usize>(
    state: &[[u32; 4]; STEPS],
    rows: Tile<E, STEPS>,
) -> Columns {
    let rows = rows.fragments();
    let mut product = [[[0.0; 4]; 2]; CHUNK_STEPS];
    unroll!(step in 0..STEPS, {
        unroll!(row in 0..4, {
            // SAFETY: the caller's promise.
            multiply::<E>(state[step], unsafe { rows.b(row, step) }, &mut product[row]);
        });
    });
    product
}

/// `pack` of what may be beyond the largest number of the type.
#[inline(always)]
fn pack_clamped<E: Half>(square: Square) -> [u32; 4] {
    let clamped = |x: f32| math::max(math::min(x, E::CLAMP), -E::CLAMP);
    pack::<E>(square.map(|half| half.map(clamped)))
}

/// Keys of `16 * STEPS` elements.
///
/// # Safety
/// 1. `num_seqs` is one element; `cu_seqlens_q`, `kv_lens` and `slots` are those of a step of so
///    many sequences, none of which reads a slot that another writes, of at most `num_rows` rows.
/// 2. `q`, `k`, `v` and `out` hold the step's rows of the header's shapes at their strides, with
///    `v_dim` a multiple of 32 and `num_heads` one of `num_k_heads`; rows are 16-byte aligned.
///    `state` is of the header's shape.
/// 3. `inverse`, `scores` and `factors` are as the other kernel has left them for the same step.
/// 4. `out` overlaps nothing; no other kernel reads or writes the states at the same time, and the
///    launch right before wrote none of them.
#[kernel(
    launch_bounds(NUM_THREADS, 2),
    overlaps,
    instances(
        delta_chunk_scan_f16_d32 = <f16, 2>,
        delta_chunk_scan_f16_d128 = <f16, 8>,
        delta_chunk_scan_bf16_d32 = <bf16, 2>,
        delta_chunk_scan_bf16_d128 = <bf16, 8>
    )
)]
pub unsafe fn delta_chunk_scan<E: Half, const STEPS: usize>(
    num_seqs: Global<u32>,
    cu_seqlens_q: Global<u32>,
    kv_lens: Global<u32>,
    slots: Global<u32>,
    num_heads: u32,
    num_k_heads: u32,
    is_tiled: u32,
    v_dim: u32,
    q: Global<()>,
    q_stride: u32,
    k: Global<()>,
    k_stride: u32,
    v: Global<()>,
    v_stride: u32,
    inverse: GlobalMut<()>,
    scores: GlobalMut<()>,
    factors: GlobalMut<f32>,
    num_rows: u32,
    state: GlobalMut<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
) {
    let (slice, head, index) =
        (thread::block_idx_x(), thread::block_idx_y(), thread::block_idx_z());
    let warp_idx = warp::warp_idx();
    let [group, pair] = lane_place();
    let column = slice * BLOCK_COLUMNS + 16 * warp_idx;
    // SAFETY: sequence, head and columns are inside, by the checks here. Step inputs are written by
    // no launch of the step, the states by none that may still run. Shared memory is of the size
    // that the launcher sets; its stages are written after a barrier that all threads have come to
    // past their reads.
    unsafe {
        // 1. The sequence, and the warp's part of its state: transposed squares.
        let Some([seq, _]) = find(num_seqs.get(0), cu_seqlens_q, index, |_| 1) else {
            grid::wait_for_dependencies();
            return;
        };
        let at = seq as usize;
        let (first, end) = (cu_seqlens_q.get(at), cu_seqlens_q.get(at + 1));
        let k_dim = 16 * STEPS as u32;
        let [old, new] = slots.get_vec(2 * at).map(|slot: u32| {
            let slot_head = (slot * num_heads + head) as usize;
            let place = (2 * pair * v_dim + column + group) as usize;
            state.add(slot_head * (k_dim * v_dim) as usize + place)
        });
        // Element `i` of accumulator `index`.
        let state_at = |index: usize, i: usize| {
            ((8 * index + i % 2) as u32 * v_dim + 8 * (i / 2) as u32) as usize
        };
        let mut s = [[[0.0; 4]; 2]; STEPS];
        if kv_lens.get(at) != end - first {
            unroll!(step in 0..STEPS, {
                for half in 0..2 {
                    for i in 0..4 {
                        s[step][half][i] = old.get(state_at(2 * step + half, i));
                    }
                }
            });
        }

        // 2. Where its tokens are.
        core::hint::assert_unchecked(num_k_heads > 0 && num_heads >= num_k_heads);
        let k_head = match is_tiled {
            0 => head / (num_heads / num_k_heads),
            _ => head % num_k_heads,
        };
        let prepared = Prepared {
            inverse: inverse.cast::<E>(),
            scores: scores.cast::<E>(),
            factors,
            num_rows,
        };
        let key = (k_head * k_dim) as usize;
        let source = Source {
            k: k.cast::<E>().add(key),
            k_stride,
            q: q.cast::<E>().add(key),
            q_stride,
            v: v.cast::<E>().add((head * v_dim + slice * BLOCK_COLUMNS) as usize),
            v_stride,
            prepared: prepared.at(head, 0),
        };
        let out = out.cast::<E>().add((head * v_dim + column) as usize);
        let shared = dynamic_shared_mem::<E>();
        grid::wait_for_dependencies();
        grid::launch_dependents();

        // 3. Chunk after chunk.
        let stage = |index: u32| Stage::<E, STEPS>::new(shared, index % NUM_STAGES);
        stage(0).copy(&source, first, (end - first).min(CHUNK));
        let (mut token, mut index) = (first, 0);
        while token < end {
            let own = stage(index);
            let num_tokens = (end - token).min(CHUNK);
            cp_async::wait(0);
            thread::sync_threads();
            if token + CHUNK < end {
                let next = token + CHUNK;
                stage(index + 1).copy(&source, next, (end - next).min(CHUNK));
            }

            // v - e^G (k S)
            let mut rounded = [[0; 4]; STEPS];
            unroll!(step in 0..STEPS, {
                rounded[step] = pack::<E>(s[step]);
            });
            let mut known = multiply_state(&rounded, own.k);
            own.scale::<0>(&mut known);
            let mut wanted = [[0; 4]; CHUNK_STEPS];
            unroll!(step in 0..4, {
                let mut values = own.values(warp_idx, step);
                for half in 0..2 {
                    for i in 0..4 {
                        values[half][i] -= known[step][half][i];
                    }
                }
                wanted[step] = pack::<E>(values);
            });

            // D
            let mut deltas = [[[0.0; 4]; 2]; CHUNK_STEPS];
            multiply_triangle(wanted, own.inverse, &mut deltas);
            let mut rounded_deltas = [[0; 4]; CHUNK_STEPS];
            let mut state_deltas = [[0; 4]; CHUNK_STEPS];
            unroll!(step in 0..4, {
                rounded_deltas[step] = pack::<E>(deltas[step]);
            });
            own.scale::<2>(&mut deltas);
            unroll!(step in 0..4, {
                state_deltas[step] = pack_clamped::<E>(deltas[step]);
            });

            // e^G (q S) + P D
            let mut outputs = multiply_state(&rounded, own.q);
            own.scale::<1>(&mut outputs);
            multiply_triangle(rounded_deltas, own.scores, &mut outputs);
            unroll!(index in 0..8, {
                let [a, b, c, d] = outputs[index / 2][index % 2];
                let row = 8 * index as u32 + group;
                let words = [E::pack(a, b), E::pack(c, d)].map(transpose);
                if row < num_tokens {
                    let out = out.add((token + row) as usize * out_stride as usize).cast::<u32>();
                    out.set(pair as usize, words[0]);
                    out.set(pair as usize + 4, words[1]);
                }
            });

            // The state
            let decay = own.factors.get(3);
            unroll!(step in 0..STEPS, {
                for half in 0..2 {
                    for i in 0..4 {
                        s[step][half][i] *= decay;
                    }
                }
            });
            let keys = own.k.fragments();
            unroll!(row in 0..4, {
                unroll!(step in 0..STEPS, {
                    multiply::<E>(state_deltas[row], keys.b_of_rows(row, step), &mut s[step]);
                });
            });
            token += CHUNK;
            index += 1;
        }

        // 4. The state after them.
        unroll!(step in 0..STEPS, {
            for half in 0..2 {
                for i in 0..4 {
                    new.set(state_at(2 * step + half, i), s[step][half][i]);
                }
            }
        });
    }
}
