//! GEMV in f16 and bf16 (decode of one sequence): `out[n] = sum_k x[k] * weight[n, k] (+ bias[n])
//! (+ residual[n])`. x may be made here as RMSNorm's output of the residual stream (`_norm`), and of
//! two columns, gate's and up's, comes `silu(gate) * up` (`_norm_silu`).
//!
//! Shapes    x `[k]`, weight `[n, k]`, f16 or bf16, the weight with a row stride; bias, residual
//!           `[n]` f32; out `[n]`, f32 (it may be residual) or the operands' element; any n, k a
//!           multiple of 8, x and rows of the weight at multiples of 16 bytes. Normed: x f32, the
//!           norm's weight `[k]` f32, no residual. Gated: weight `[2 * n, k]` and bias `[2 * n]`,
//!           gate's n rows and then up's, out in the operands' element.
//! Launch    grid `(n / columns a block, 1, 1)`, block `(32 * members * teams, 1, 1)`: a team of
//!           warps shares the k of its columns; the sums of its members in shared memory.
//! Numerics  f32 FMAs: a lane sums eight neighbours of every chunk of 256 columns of k that its
//!           warp takes; to the first member's sums are added, lane by lane, those of the others, in
//!           pairs; lanes are summed as a tree. The weighted x of a norm is not rounded, and the sum
//!           is multiplied by the norm's scale; gate and up are not rounded either. One rounding at
//!           the store. The order is not that of the kernels for several rows, whose bits a row
//!           keeps in any batch: see [`SumOrder`](super::SumOrder).
//! Bound     memory: the weight is read once, `2 * n * k` bytes. At 4.4 TB/s an SM gets the 512
//!           bytes of a warp's load in 26 cycles: 102 issue slots, of which conversions and FMAs
//!           take 16 and as many for x, shared by the warp's columns.
//!
//! # What a load touches
//! A load of a warp in the kernels for several rows takes 64 bytes of eight rows each, as the fragments
//! of `mma` lie, and half a line is as long on its way as a whole one: a grid that only reads 12288 x
//! 4096 so takes 27.8 us, by 128 bytes of four rows 23.5, as the bytes lie 23.4; through TMA boxes of
//! 128 bytes a row 25.5. So a warp reads rows as they lie, 2 KiB at once, and a team at once the whole
//! row, up to 5,120 columns: rows of 8 KiB that are read part by part, all warps at the same part, are
//! slower, 12288 x 4096 25.1 us for 23.5. `L2::256B` costs 5 to 9 %: 32064 x 3072 47.8 us for 44.1. The
//! same kernel in CUDA C was no faster.
//!
//! # Roofline
//! On an H200, beside cuBLAS in one run, f16, nothing overlapped (`halfwarp bench kernels --op gemm --dtype
//! f16`), in us; the floor is the bytes at 4.4 TB/s; in brackets what the kernel for several rows takes:
//!
//! | n, k | MB | floor | gemv | | cuBLAS |
//! | --- | --- | --- | --- | --- | --- |
//! | 896, 896 | 1.6 | 0.4 | 2.0 | (2.5) | 4.8 |
//! | 1152, 896 | 2.1 | 0.5 | 2.2 | (2.7) | 4.4 |
//! | 896, 4864 | 8.7 | 2.0 | 3.9 | (5.2) | 7.8 |
//! | 9728, 896 | 17.4 | 4.0 | 5.6 | (6.5) | 7.2 |
//! | 3072, 3072 | 18.9 | 4.3 | 5.9 | (6.8) | 10.0 |
//! | 4096, 4096 | 33.6 | 7.6 | 9.1 | (10.3) | 13.5 |
//! | 3072, 8192 | 50.3 | 11.4 | 12.9 | (14.6) | 18.2 |
//! | 9216, 3072 | 56.6 | 12.9 | 14.2 | (15.5) | 19.3 |
//! | 4096, 11008 | 90.2 | 20.5 | 21.8 | (23.8) | 27.8 |
//! | 12288, 4096 | 100.7 | 22.9 | 23.8 | (25.8) | 28.0 |
//! | 16384, 3072 | 100.7 | 22.9 | 23.8 | (25.1) | 26.1 |
//! | 22016, 4096 | 180.4 | 41.0 | 41.2 | (44.9) | 45.6 |
//! | 151936, 896 | 272.3 | 61.9 | 61.7 | (63.4) | 67.5 |
//!
//! Where the time goes, by this kernel in CUDA C, in us on one H200: weights read as the bytes lie; by this
//! kernel's grid, with x a constant; with x; with sums of lanes and members; with stores, which is all:
//!
//! | n, k | bytes | rows | and x | and sums | and stores |
//! | --- | --- | --- | --- | --- | --- |
//! | 896, 896 | 1.7 | 1.8 | 1.9 | 2.0 | 2.0 |
//! | 896, 4864 | 3.3 | 3.4 | 3.6 | 3.9 | 3.9 |
//! | 9728, 896 | 5.2 | 5.3 | 5.4 | 5.5 | 5.7 |
//! | 3072, 3072 | 5.5 | 5.6 | 5.7 | 5.8 | 6.0 |
//! | 4096, 4096 | 8.6 | 8.8 | 8.8 | 9.0 | 9.2 |
//! | 3072, 8192 | 12.2 | 12.3 | 12.6 | 12.6 | 12.7 |
//! | 22016, 4096 | 40.1 | 40.2 | 40.2 | 40.4 | 40.4 |
//!
//! The order of instructions decides as much. All warps start at once, and an instruction in front of their first
//! loads is issued nine times by a scheduler: with bias, residual and count asked for behind those of x and not
//! in front 9728 x 896 take 5.63 for 5.73, 896 x 4864 3.87 for 3.90. x's loads wait for no count of rows, which
//! would come behind weights (3072 x 3072 6.3 for 6.0). And ptxas may put a conversion of the first weights
//! between the loads of x, the rest of which then waits for weights: 9728 x 896 6.6 for 5.6, 3072 x 3072 6.8 for
//! 5.9, 4096 x 4096 9.9 for 9.1; `cargo xtask ptxas` looks for that.
//!
//! No faster: a sum of its own for every chunk. Slower, in us without and with: products by `mma`, whose diagonal
//! holds the sums (9728 x 896 5.7, 5.8; 3072 x 8192 12.7, 13.8); lanes summed by `mma` in tf32 (896 x 896 2.0, 2.2;
//! 4096 x 4096 9.1, 9.2); x copied to shared memory (4096 x 4096 9.1, 10.8); eight lanes a row that sum a block's
//! rows, so that 9728 x 896 store four columns at once (5.70, 5.64; but 896 x 896 2.04, 2.10); a warp for a row of
//! any length, each row from another chunk on (4096 x 4096 9.1, 9.4; 3072 x 8192 12.6, 13.3); blocks of neighbouring
//! columns at different times, as their stores go to one sector (22016 x 4096 40.3, 44.5); 48 registers for more
//! blocks (4096 x 11008 21.5, 23.2); blocks of eight warps (3072 x 8192 12.7, 13.2); two loads a warp (up to 15 %).
//! Two rows a warp, the second under way while the first is multiplied, were no faster in a kernel whose x may have
//! waited for weights, and spill with these launch bounds.
//!
//! Rows of a warp, loads of each, and most members of a team, in CUDA C, in us. None suits all shapes better, and none
//! takes 9728 x 896 or 3072 x 3072 nearer to the 5.2 and 5.5 us of reading alone:
//!
//! | n, k | 1, 4, 5 | 2, 4, 5 | 2, 2, 5 | 2, 2, 8 | 4, 2, 5 | 4, 1, 5 |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 896, 896 | (2.0) | 2.1 | 2.1 | 2.1 | 2.2 | 2.1 |
//! | 896, 4864 | (3.9) | 4.0 | 3.8 | 3.8 | 4.1 | 4.6 |
//! | 9728, 896 | (5.7) | 5.6 | 5.6 | 5.6 | 5.7 | 5.6 |
//! | 3072, 3072 | (5.9) | 6.1 | 5.9 | 5.9 | 6.1 | 6.0 |
//! | 4096, 4096 | (9.2) | 9.2 | 9.3 | 9.1 | 9.4 | 10.0 |
//! | 3072, 8192 | (12.8) | 12.8 | 13.9 | 12.9 | 14.2 | 13.3 |
//! | 4096, 11008 | (21.7) | 22.7 | 22.1 | 22.2 | 22.5 | 25.1 |
//! | 22016, 4096 | (41.0) | 41.1 | 41.6 | 41.0 | 41.6 | 42.9 |
//!
//! Normed x and the norm's weights are 64 bytes a lane for 16 of each row, so that several rows share them:
//!
//! | n, k | 4 rows, 2 loads | 8, 1 | 1, 4 |
//! | --- | --- | --- | --- |
//! | 896, 896 | (2.3) | 2.4 | 2.6 |
//! | 896, 4864 | (4.7) | 5.3 | 5.4 |
//! | 9728, 896 | (5.9) | 6.2 | 8.2 |
//! | 9216, 3072 | (15.1) | 15.2 | 20.9 |
//! | 12288, 4096 | (24.9) | 25.1 | 32.3 |
//! | 151936, 896 | (62.3) | 62.4 | 93.1 |
//!
//! In a model (tokens/s of Qwen2.5-0.5B and Phi-3 Mini): normed with 4 rows and 2 loads in 121 registers
//! 1,937 and 465, in 96 1,972 and 455, 8 and 1 1,938 and 452, 4 and 1 1,908 and 456, 2 and 2 1,896 and
//! 443. The norm's weights asked for before the wait for x 2,008 and 476, behind it 1,978 and 473; with six
//! shuffles for the sums of four rows, and not twenty, the same.

use crate::element::VECTOR;
use crate::rms_norm::scale;
use crate::silu_mul::{gated, num_parts};
use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Most members of a team.
const MAX_MEMBERS: u32 = 5;

/// Columns of k that a warp loads of a row at once: eight a lane.
const CHUNK: u32 = warp::WARP_SIZE * VECTOR;

/// Eight elements of a row.
type Load = [u32; VECTOR as usize / 2];

/// Sums of a warp: those of its rows of the weight, and of the squares of x.
const fn num_sums(rows: usize, normed: bool) -> u32 {
    rows as u32 + normed as u32
}

/// Most warps of a block.
const fn max_warps(normed: bool) -> u32 {
    if normed { MAX_MEMBERS } else { 6 }
}

/// Blocks that should fit on an SM.
const fn min_blocks(normed: bool) -> u32 {
    if normed { 3 } else { 6 }
}

/// Where a warp's rows of the weight are.
struct Weights<const ROWS: usize> {
    weight: Global<u16>,
    /// Their first elements.
    rows: [usize; ROWS],
}

impl<const ROWS: usize> Weights<ROWS> {
    /// `CHUNKS` loads of each row, of the lane's columns from `column` on, zeros from `k` on.
    ///
    /// # Safety
    /// 1. Rows hold `k` elements, at multiples of 16 bytes; `column` and `k` are multiples of 8.
    #[inline(always)]
    unsafe fn load<const CHUNKS: usize>(&self, column: u32, k: u32) -> [[Load; ROWS]; CHUNKS] {
        let mut loads = [[[0; VECTOR as usize / 2]; ROWS]; CHUNKS];
        unroll!(chunk in 0..4, {
            if chunk < CHUNKS {
                let column = column + chunk as u32 * CHUNK;
                for row in 0..ROWS {
                    let words = self.weight.wrapping_add(self.rows[row] + column as usize);
                    // SAFETY: inside the row, by the condition.
                    loads[chunk][row] = unsafe { words.cast::<u32>().stream_vec_if(0, column < k) };
                }
            }
        });
        loads
    }
}

/// What is multiplied by the weight.
#[derive(Clone, Copy)]
struct Input {
    x: Global<()>,
    norm_weight: Global<f32>,
    k: u32,
}

impl Input {
    /// The norm's weights for `CHUNKS` loads of x, if there is a norm: no launch writes them.
    ///
    /// # Safety
    /// 1. `norm_weight` is as the kernel asks for; `column` is a multiple of 8.
    #[inline(always)]
    unsafe fn load_norm<const CHUNKS: usize, const NORMED: bool>(
        &self,
        column: u32,
    ) -> [[[f32; 4]; 2]; CHUNKS] {
        let mut loads = [[[0.0; 4]; 2]; CHUNKS];
        unroll!(chunk in 0..4, {
            if NORMED && chunk < CHUNKS {
                let column = column + chunk as u32 * CHUNK;
                let weights = self.norm_weight.wrapping_add(column as usize);
                // SAFETY: inside, by the condition.
                loads[chunk] = [0, 4].map(|at| unsafe { weights.get_vec_if(at, column < self.k) });
            }
        });
        loads
    }

    /// `CHUNKS` loads of the lane's columns from `column` on, zeros from `k` on. Nobody may have written the
    /// row: a load that waited for the count of rows would wait for the weights that are under way before it.
    ///
    /// # Safety
    /// 1. `x` is as the kernel asks for; `column` is a multiple of 8.
    #[inline(always)]
    unsafe fn load<const CHUNKS: usize, const NORMED: bool>(
        &self,
        column: u32,
    ) -> [InputLoad; CHUNKS] {
        let mut loads = [InputLoad::default(); CHUNKS];
        unroll!(chunk in 0..4, {
            if chunk < CHUNKS {
                let column = column + chunk as u32 * CHUNK;
                let (at, is_inside) = (column as usize, column < self.k);
                // SAFETY: inside, by the condition.
                unsafe {
                    if NORMED {
                        let x = self.x.cast::<f32>().wrapping_add(at);
                        loads[chunk].single = [0, 4].map(|at| x.speculate_vec_if(at, is_inside));
                    } else {
                        let x = self.x.cast::<u16>().wrapping_add(at).cast::<u32>();
                        loads[chunk].half = x.speculate_vec_if(0, is_inside);
                    }
                }
            }
        });
        loads
    }
}

/// The lane's eight columns of x in a chunk.
#[derive(Clone, Copy, Default)]
struct InputLoad {
    half: Load,
    /// In front of a norm.
    single: [[f32; 4]; 2],
}

impl InputLoad {
    /// The values; if they are `NORMED`, by `norm`, the norm's weights, with the sum of their squares on top of
    /// `squares`.
    #[inline(always)]
    fn values<E: Operand16, const NORMED: bool>(
        &self,
        norm: [[f32; 4]; 2],
        squares: &mut f32,
    ) -> [f32; VECTOR as usize] {
        if !NORMED {
            return unpacked::<E>(self.half);
        }
        let flat = |[[a, b, c, d], [e, f, g, h]]: [[f32; 4]; 2]| [a, b, c, d, e, f, g, h];
        let (mut x, norm) = (flat(self.single), flat(norm));
        for i in 0..VECTOR as usize {
            *squares = math::fma(x[i], x[i], *squares);
            x[i] *= norm[i];
        }
        x
    }
}

/// The elements of a load.
#[inline(always)]
fn unpacked<E: Operand16>(load: Load) -> [f32; VECTOR as usize] {
    let [[a, b], [c, d], [e, f], [g, h]] = load.map(E::unpack);
    [a, b, c, d, e, f, g, h]
}

/// What the lane has of sum `sum` in the other members of its team, all under way at once.
///
/// # Safety
/// 1. `team_sums` are the lane's, `warp_sums` elements a member, and the other members have written theirs.
#[inline(always)]
unsafe fn sum_of_others(
    team_sums: Shared<f32>,
    warp_sums: u32,
    num_members: u32,
    sum: usize,
) -> f32 {
    let mut of_others = [0.0; MAX_MEMBERS as usize - 1];
    unroll!(other in 0..4, {
        let member = other as u32 + 1;
        if member < num_members {
            let at = member * warp_sums + sum as u32 * warp::WARP_SIZE;
            // SAFETY: the caller's promise.
            of_others[other] = unsafe { team_sums.get(at) };
        }
    });
    (of_others[0] + of_others[1]) + (of_others[2] + of_others[3])
}

/// A warp computes `ROWS` rows of the weight at once, `CHUNKS` chunks of each; `num_members` warps
/// share k.
///
/// # Safety
/// 1. `num_rows` is one element, 0 or 1; x, `residual` and the output hold a row, `weight` holds `n`, or
///    twice as many under a gate, at its stride; `bias` and `residual` are null or hold as much as the
///    output asks for. The output is `out_f32`, or `out` if that is null.
/// 2. The output is `residual`, or overlaps nothing that is read.
/// 3. x, the norm's weight and rows of `weight` start at multiples of 16 bytes, and `k` is a multiple
///    of 8.
/// 4. A block has `num_members` warps for each team; `members_reciprocal` is 256 over as many, rounded up,
///    and `block_columns` the columns of all teams.
#[kernel(
    launch_bounds(max_warps(NORMED) * warp::WARP_SIZE, min_blocks(NORMED)),
    overlaps,
    instances(
        gemv_f16 = <f16, 1, 4, false, false>,
        gemv_f16_norm = <f16, 4, 2, true, false>,
        gemv_f16_norm_silu = <f16, 4, 2, true, true>,
        gemv_bf16 = <bf16, 1, 4, false, false>,
        gemv_bf16_norm = <bf16, 4, 2, true, false>,
        gemv_bf16_norm_silu = <bf16, 4, 2, true, true>
    )
)]
pub unsafe fn gemv_16<
    E: Operand16,
    const ROWS: usize,
    const CHUNKS: usize,
    const NORMED: bool,
    const GATED: bool,
>(
    num_rows: Global<u32>,
    n: u32,
    k: u32,
    num_members: u32,
    members_reciprocal: u32,
    block_columns: u32,
    x: Global<()>,
    norm_weight: Global<f32>,
    k_reciprocal: f32,
    eps: f32,
    weight: Global<u16>,
    weight_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    out: GlobalMut<u16>,
    out_f32: GlobalMut<f32>,
) {
    let num_columns = const { (ROWS / num_parts(GATED)) as u32 };
    let (lane, warp_idx) = (warp::lane_id(), warp::warp_idx());
    let team = (warp_idx * members_reciprocal) >> 8;
    let member = warp_idx - team * num_members;
    let first_column = thread::block_idx_x() * block_columns + team * num_columns;

    // 1. What no launch before this one writes. At the start of a launch all warps have to issue what stands
    //    before these loads: nothing that they do not need.
    let mut weights = Weights { weight, rows: [0; ROWS] };
    for row in 0..ROWS as u32 {
        let (part, column) = (row / num_columns, first_column + row % num_columns);
        // Past the last column the last one's, whose sum nobody stores.
        let row_idx = part * n + column.min(n - 1);
        weights.rows[row as usize] = row_idx as usize * weight_stride as usize;
    }
    let step = num_members * CHUNKS as u32 * CHUNK;
    let mut warp_k = member * CHUNKS as u32 * CHUNK;
    let lane_k = lane * VECTOR;
    let input = Input { x, norm_weight, k };
    // SAFETY: loads are inside by their conditions.
    let (mut loads, mut norms) = unsafe {
        let loads = weights.load::<CHUNKS>(warp_k + lane_k, k);
        (loads, input.load_norm::<CHUNKS, NORMED>(warp_k + lane_k))
    };

    // 2. What they may.
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: the caller's promise.
    let mut inputs = unsafe { input.load::<CHUNKS, NORMED>(warp_k + lane_k) };
    // The output of the lane, in the first member.
    let column = first_column + lane;
    let has_output = member == 0 && lane < num_columns && column < n;
    let (mut biases, mut added) = ([0.0; 2], 0.0);
    // SAFETY: the column is inside, and the bias has an element for each row of the weight.
    let num_rows = unsafe {
        if has_output && !bias.is_null() {
            for part in 0..num_parts(GATED) {
                biases[part] = bias.get((part as u32 * n + column) as usize);
            }
        }
        if has_output && !residual.is_null() {
            added = residual.speculate(column as usize);
        }
        num_rows.get(0)
    };
    let (mut sums, mut squares) = ([0.0; ROWS], 0.0);
    loop {
        unroll!(chunk in 0..4, {
            if chunk < CHUNKS {
                let x = inputs[chunk].values::<E, NORMED>(norms[chunk], &mut squares);
                for row in 0..ROWS {
                    let weights = unpacked::<E>(loads[chunk][row]);
                    for i in 0..VECTOR as usize {
                        sums[row] = math::fma(x[i], weights[i], sums[row]);
                    }
                }
            }
        });
        warp_k += step;
        if warp_k >= k {
            break;
        }
        // SAFETY: as above.
        (loads, norms, inputs) = unsafe {
            let loads = weights.load::<CHUNKS>(warp_k + lane_k, k);
            let norms = input.load_norm::<CHUNKS, NORMED>(warp_k + lane_k);
            (loads, norms, input.load::<CHUNKS, NORMED>(warp_k + lane_k))
        };
    }

    // 3. A lane of the first member sums what it has in all members, and lane `i` gets sum `i` of all lanes.
    if num_members > 1 {
        let warp_sums = const { num_sums(ROWS, NORMED) * warp::WARP_SIZE };
        // SAFETY: the launch gives every warp room for its sums; they are read behind the barrier.
        unsafe {
            let team_sums = dynamic_shared_mem::<f32>();
            let team_sums = team_sums.offset(team * num_members * warp_sums + lane);
            let own_sums = team_sums.offset(member * warp_sums);
            if member > 0 {
                for row in 0..ROWS {
                    own_sums.set(row as u32 * warp::WARP_SIZE, sums[row]);
                }
                if NORMED {
                    own_sums.set(ROWS as u32 * warp::WARP_SIZE, squares);
                }
            }
            thread::sync_threads();
            if member > 0 {
                return;
            }
            for row in 0..ROWS {
                sums[row] += sum_of_others(team_sums, warp_sums, num_members, row);
            }
            if NORMED {
                squares += sum_of_others(team_sums, warp_sums, num_members, ROWS);
            }
        }
    }
    let mut sum = 0.0;
    for row in 0..ROWS {
        let of_row = warp::reduce_add(sums[row]);
        sum = if lane == row as u32 { of_row } else { sum };
    }
    if NORMED {
        sum *= scale(warp::reduce_add(squares), k_reciprocal, eps);
    }
    let up = if GATED { warp::shuffle_down(sum, num_columns) } else { 0.0 };
    if has_output && num_rows > 0 {
        let value = if GATED {
            gated::<E>(sum + biases[0], up + biases[1])
        } else {
            sum + biases[0] + added
        };
        // SAFETY: the column is inside.
        unsafe {
            if out_f32.address() == 0 {
                out.cast::<E>().set(column as usize, E::from_f32(value));
            } else {
                out_f32.set(column as usize, value);
            }
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Gemv16;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::gemv_16::Instance;
    use super::{CHUNK, MAX_MEMBERS, gemv_16, max_warps, num_sums};
    use crate::element::Dtype;
    use crate::gemm::{Input16, Linear16, Linear16Operands, Out16};
    use crate::silu_mul::num_parts;
    use crate::tile::element::Operand16;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
    use cuda_std::warp::WARP_SIZE;

    /// Columns of k that a member should have.
    const MEMBER_K: usize = 4 * CHUNK as usize;

    /// Rows of a weight up to which a member of a normed layer has half as many columns of k: on an
    /// H200 1152 x 896 take 2.5 us so, and 2.9; 9728 x 896 6.1 and 5.9.
    const FEW_ROWS: usize = 4096;

    /// Most teams of a block. Those of three members are two, so that pairs of 16-bit outputs are stored by one
    /// block: on an H200 3072 x 3072 take 5.9 us so, and 6.0.
    const MAX_TEAMS: usize = 4;

    /// 256 over the number of members, rounded up: a warp's index times that, over 256, is its team.
    const RECIPROCALS: [u32; MAX_MEMBERS as usize + 1] = {
        let mut reciprocals = [0; MAX_MEMBERS as usize + 1];
        let mut members = 1;
        while members <= MAX_MEMBERS {
            let reciprocal = 256_u32.div_ceil(members);
            let mut warp = 0;
            while warp < max_warps(false) {
                assert!((warp * reciprocal) >> 8 == warp / members);
                warp += 1;
            }
            reciprocals[members as usize] = reciprocal;
            members += 1;
        }
        reciprocals
    };

    /// Shared memory that a block asks for at least. On an H200 whose multiprocessors have a quarter of
    /// their memory shared, blocks that ask for less are slower, as many as there are: 3072 x 3072 6.5 us
    /// for 6.1, 12288 x 4096 25.2 for 24.0 (why is not known); and what it leaves no room for are blocks of
    /// the launches before and behind: Phi-3 Mini has 430 tokens/s without, 455 so, 443 with 8 KiB.
    const LEAST_SHARED_BYTES: usize = 4 << 10;

    /// A linear layer of one row, in elements of 16 bits.
    #[derive(Clone, Copy, Debug)]
    pub struct Gemv16(pub Linear16);

    impl Gemv16 {
        /// The launch, with `num_rows` the device's count of rows, 0 or 1, or `None` if there are no
        /// rows or no columns.
        ///
        /// # Errors
        /// As [`Linear16::launch`] of a layer with few rows; also for more than one row.
        pub fn launch<E: Operand16>(
            &self,
            num_rows: DevicePtr<u32>,
            operands: &Linear16Operands<E>,
        ) -> Result<Option<Launch>, LaunchError> {
            let Linear16 { max_rows, n, k, gated, .. } = self.0;
            if max_rows > 1 {
                let (what, expected) = ("rows", "at most 1");
                return Err(LaunchError::Shape { what, value: max_rows, expected });
            }
            self.0.check(operands)?;
            let (x, norm_weight, eps) = match operands.x {
                Input16::Half(x) => (x.ptr.0, DevicePtr::null(), 0.0),
                Input16::Normed { x, weight, eps } => (x.ptr.0, weight, eps),
            };
            let is_normed = matches!(operands.x, Input16::Normed { .. });
            let instance = instance::<E>(is_normed, gated);
            let num_members = self.num_members(is_normed);
            let num_teams = (max_warps(is_normed) as usize / num_members).min(MAX_TEAMS);
            let num_warps = num_members * num_teams;
            let block_columns = num_teams * instance.rows() / num_parts(gated);
            let num_threads = num_warps * WARP_SIZE as usize;
            let num_sums = num_sums(instance.rows(), is_normed) as usize * num_threads;
            let shared_bytes = (num_sums * size_of::<f32>()).max(LEAST_SHARED_BYTES);
            let grid = [n.div_ceil(block_columns), max_rows, 1];
            let geometry = Geometry::new(grid, num_threads, shared_bytes)?;
            let (out, out_f32) = match operands.out {
                Out16::Half(out) => (DevicePtr::new(out.ptr.0), DevicePtr::null()),
                Out16::F32(out) => (DevicePtr::null(), out.ptr),
            };
            let (n, k) = (arg_u32("n", n)?, arg_u32("k", k)?);
            let weight_stride = operands.weight.stride_arg()?;
            Ok(geometry.map(|geometry| {
                gemv_16::launch(
                    instance,
                    geometry,
                    num_rows,
                    n,
                    k,
                    num_members as u32,
                    RECIPROCALS[num_members],
                    block_columns as u32,
                    DevicePtr::new(x),
                    norm_weight,
                    1.0 / k as f32,
                    eps,
                    DevicePtr::new(operands.weight.ptr.0),
                    weight_stride,
                    operands.bias.unwrap_or(DevicePtr::null()),
                    operands.residual.map_or(DevicePtr::null(), |residual| residual.ptr),
                    out,
                    out_f32,
                )
            }))
        }

        /// Warps that share k: as many as have a row at once, or in a few rounds.
        fn num_members(&self, is_normed: bool) -> usize {
            let is_small = is_normed && self.0.weight_rows() < FEW_ROWS;
            let num_spans = self.0.k.div_ceil(if is_small { MEMBER_K / 2 } else { MEMBER_K });
            num_spans.div_ceil(num_spans.div_ceil(MAX_MEMBERS as usize).max(1)).max(1)
        }
    }

    /// The instance of `E`; there is none under a gate without a norm.
    fn instance<E: Operand16>(is_normed: bool, is_gated: bool) -> Instance {
        let is_bf16 = E::DTYPE == Dtype::Bf16;
        match (is_normed, is_gated) {
            (false, _) if is_bf16 => Instance::gemv_bf16,
            (false, _) => Instance::gemv_f16,
            (true, false) if is_bf16 => Instance::gemv_bf16_norm,
            (true, false) => Instance::gemv_f16_norm,
            (true, true) if is_bf16 => Instance::gemv_bf16_norm_silu,
            (true, true) => Instance::gemv_f16_norm_silu,
        }
    }
}
