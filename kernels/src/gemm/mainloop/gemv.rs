//! The loads and dot products of one row of x with rows of a weight, on the FMA units or the tensor
//! cores.
//!
//! On the tensor cores a lane's elements of k are a part of k of their own: A has eight of these
//! parts, from the eight groups of four lanes, of one row of the weight, and of another row in its
//! lower half; B has the same parts of x. The dot products of parts with themselves are on the
//! diagonals of the accumulator's halves; the rest of it is not used.

use crate::element::VEC_ELEMS;
use crate::tile::element::Operand16;
use crate::tile::weight::{Load, MAX_VECS, Scales, WeightElement};
use cuda_std::mma::{FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;

/// Most slices that k is split into: one warp each.
pub const MAX_SLICES: u32 = 5;

/// Elements along k that one load of a warp covers, `lane_elems` a lane.
pub const fn k_per_load(lane_elems: u32) -> u32 {
    warp::WARP_SIZE * lane_elems
}

/// Partial sums of a lane: one a row of the weight and, for a norm, that of the squares of x.
pub const fn num_partials(rows: usize, normed: bool) -> u32 {
    rows as u32 + normed as u32
}

/// Most warps of a block, with a norm or a gate, and where tensor cores multiply.
pub const fn max_warps(fused: bool, by_mma: bool) -> u32 {
    if fused && !by_mma { MAX_SLICES } else { 6 }
}

/// Blocks that should fit on an SM.
pub const fn min_blocks(fused: bool, by_mma: bool) -> u32 {
    match (fused, by_mma) {
        (true, false) => 3,
        (false, false) => 6,
        (true, true) => 4,
        (false, true) => 5,
    }
}

/// The rows of the weight that a warp computes.
pub struct Weights<W, const ROWS: usize> {
    /// Elements of the weight.
    pub weight: Global<W>,
    /// Index of each row's first element.
    pub rows: [usize; ROWS],
    /// Scales of the weight, if it is scaled.
    pub scales: Scales,
    /// The first row of each part, of one, or of gate and of up. A part is in one row of blocks
    /// that share scales.
    pub first_rows: [u32; 2],
}

/// A lane's loads of a weight, and the scales of the parts of the rows.
#[derive(Clone, Copy)]
pub struct WeightLoads<const ROWS: usize> {
    loads: [Load; ROWS],
    scales: [f32; 2],
}

impl<W: cuda_std::Element, const ROWS: usize> Weights<W, ROWS> {
    /// Issues `LOADS` loads of each row, the lane's first at `first_k`; zeros from `k` on.
    ///
    /// # Safety
    /// 1. Rows hold `k` elements and are 16-byte aligned; `first_k` and `k` are multiples of a
    ///    load's elements.
    #[inline(always)]
    pub unsafe fn load<E: Operand16, const LOADS: usize>(
        &self,
        first_k: u32,
        k: u32,
        num_parts: usize,
    ) -> [WeightLoads<ROWS>; LOADS]
    where
        W: WeightElement<E>,
    {
        let mut loads = [WeightLoads { loads: [[0; 4]; ROWS], scales: [0.0; 2] }; LOADS];
        unroll!(load_idx in 0..4, {
            if load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * k_per_load(W::LOAD_ELEMS);
                for row in 0..ROWS {
                    let words = self.weight.wrapping_add(self.rows[row] + k_idx as usize);
                    let words = words.cast::<u32>();
                    // SAFETY: inside the row, by the condition.
                    loads[load_idx].loads[row] = unsafe { words.stream_vec_if(0, k_idx < k) };
                }
            }
        });
        if W::IS_SCALED {
            unroll!(load_idx in 0..4, {
                if load_idx < LOADS {
                    let k_idx = first_k + load_idx as u32 * k_per_load(W::LOAD_ELEMS);
                    // Of the group's first lane: its accumulators hold products of them all.
                    let k_idx = k_idx - warp::lane_id() % 4 * W::LOAD_ELEMS;
                    for part in 0..num_parts {
                        let row = self.first_rows[part];
                        // SAFETY: inside the row, by the condition.
                        loads[load_idx].scales[part] =
                            unsafe { self.scales.block_scale(row, k_idx, k_idx < k) };
                    }
                }
            });
        }
        loads
    }
}

/// x, and the norm's weight if it is to be normed.
#[derive(Clone, Copy)]
pub struct Input {
    /// x.
    pub x: Global<()>,
    /// The norm's weight.
    pub norm_weight: Global<f32>,
    /// Elements of x.
    pub k: u32,
}

impl Input {
    /// Issues the loads of the norm's weight that go with `LOADS` loads of `VECS * 8` elements of
    /// x. No launch writes it.
    ///
    /// # Safety
    /// 1. `norm_weight` is as the kernel requires; `first_k` is a multiple of 8.
    #[inline(always)]
    pub unsafe fn load_norm<const LOADS: usize, const NORMED: bool>(
        &self,
        first_k: u32,
        vecs: usize,
    ) -> [[NormLoad; MAX_VECS]; LOADS] {
        let mut loads = [[[[0.0; 4]; 2]; MAX_VECS]; LOADS];
        unroll!(load_idx in 0..4, {
            if NORMED && load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * k_per_load(vecs as u32 * VEC_ELEMS);
                for vec in 0..vecs {
                    let at = k_idx as usize + vec * VEC_ELEMS as usize;
                    let weights = self.norm_weight.wrapping_add(at);
                    // SAFETY: inside, by the condition.
                    loads[load_idx][vec] =
                        [0, 4].map(|at| unsafe { weights.get_vec_if(at, k_idx < self.k) });
                }
            }
        });
        loads
    }

    /// Issues `LOADS` loads of `vecs * 8` elements of x, the lane's first at `first_k`; zeros from
    /// `k` on. They do not
    /// depend on `num_rows`, so the row may be unwritten: the load of `num_rows` would complete
    /// only after the weight's, which are issued before it.
    ///
    /// # Safety
    /// 1. `x` is as the kernel requires; `first_k` is a multiple of 8.
    #[inline(always)]
    pub unsafe fn load<const LOADS: usize, const NORMED: bool>(
        &self,
        first_k: u32,
        vecs: usize,
    ) -> [InputLoad; LOADS] {
        let mut loads = [InputLoad::default(); LOADS];
        unroll!(load_idx in 0..4, {
            if load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * k_per_load(vecs as u32 * VEC_ELEMS);
                let is_inside = k_idx < self.k;
                for vec in 0..vecs {
                    let at = k_idx as usize + vec * VEC_ELEMS as usize;
                    // SAFETY: inside, by the condition.
                    unsafe {
                        if NORMED {
                            let x = self.x.cast::<f32>().wrapping_add(at);
                            loads[load_idx].x32[vec] =
                                [0, 4].map(|at| x.speculate_vec_if(at, is_inside));
                        } else {
                            let x = self.x.cast::<u16>().wrapping_add(at).cast::<u32>();
                            loads[load_idx].x16[vec] = x.speculate_vec_if(0, is_inside);
                        }
                    }
                }
            }
        });
        loads
    }
}

/// Eight of the norm's weights.
pub type NormLoad = [[f32; 4]; 2];

/// A lane's load of x: once or twice eight elements, in 16 bits, or f32 if they are to be normed.
#[derive(Clone, Copy, Default)]
pub struct InputLoad {
    x16: [Load; MAX_VECS],
    x32: [[[f32; 4]; 2]; MAX_VECS],
}

impl InputLoad {
    /// Eight elements as f32. If `NORMED`, multiplied by the norm's weight; their squares are added
    /// to `square_sum`.
    #[inline(always)]
    fn values<E: Operand16, const NORMED: bool>(
        &self,
        vec: usize,
        norm: NormLoad,
        square_sum: &mut f32,
    ) -> [f32; VEC_ELEMS as usize] {
        if !NORMED {
            let [[a, b], [c, d], [e, f], [g, h]] = self.x16[vec].map(E::unpack);
            return [a, b, c, d, e, f, g, h];
        }
        let flat = |[[a, b, c, d], [e, f, g, h]]: [[f32; 4]; 2]| [a, b, c, d, e, f, g, h];
        let (mut x, norm) = (flat(self.x32[vec]), flat(norm));
        for i in 0..VEC_ELEMS as usize {
            *square_sum = math::fma(x[i], x[i], *square_sum);
            x[i] *= norm[i];
        }
        x
    }
}

/// A lane's partial sums.
#[derive(Clone, Copy)]
pub struct DotProducts<const ROWS: usize> {
    /// Partial sums of the rows.
    pub rows: [f32; ROWS],
    /// Partial sum of the squares of x.
    pub square_sum: f32,
}

impl<const ROWS: usize> DotProducts<ROWS> {
    /// Zeros.
    #[inline(always)]
    pub fn new() -> Self {
        DotProducts { rows: [0.0; ROWS], square_sum: 0.0 }
    }

    /// Adds the products of a load on the FMA units.
    #[inline(always)]
    pub fn multiply<E: Operand16, W: WeightElement<E>, const NORMED: bool>(
        &mut self,
        x: &InputLoad,
        norms: &[NormLoad; MAX_VECS],
        weights: &WeightLoads<ROWS>,
        num_parts: usize,
    ) {
        let mut row_acc = if W::IS_SCALED { [0.0; ROWS] } else { self.rows };
        for vec in 0..W::VECS {
            let x = x.values::<E, NORMED>(vec, norms[vec], &mut self.square_sum);
            for row in 0..ROWS {
                for quad in 0..2 {
                    let words = W::operands(&weights.loads[row], 2 * vec + quad);
                    let [[a, b], [c, d]] = words.map(E::unpack);
                    let weights = [a, b, c, d];
                    for i in 0..4 {
                        row_acc[row] = math::fma(x[4 * quad + i], weights[i], row_acc[row]);
                    }
                }
            }
        }
        self.add::<E, W>(row_acc, weights, num_parts);
    }

    /// Adds the products of a load on the tensor cores. Lanes off the diagonal add other products.
    #[inline(always)]
    pub fn multiply_by_mma<E: Operand16, W: WeightElement<E>>(
        &mut self,
        x: &InputLoad,
        weights: &WeightLoads<ROWS>,
        num_parts: usize,
    ) {
        let is_odd = warp::lane_id() & 4 != 0;
        let mut row_acc = if W::IS_SCALED { [0.0; ROWS] } else { self.rows };
        for upper in (0..ROWS).step_by(2) {
            let lower = if upper + 1 < ROWS { upper + 1 } else { upper };
            let mut acc = [0.0; 4];
            unroll!(quad in 0..4, {
                if quad < 2 * W::VECS {
                    let [a0, a2] = W::operands(&weights.loads[upper], quad);
                    let [a1, a3] = W::operands(&weights.loads[lower], quad);
                    let (load, first) = (&x.x16[quad / 2], quad % 2 * 2);
                    let a = FragmentA::<E>::from_words([a0, a1, a2, a3]);
                    let b = FragmentB::from_words([load[first], load[first + 1]]);
                    acc = m16n8k16(a, b, acc);
                }
            });
            row_acc[lower] += if is_odd { acc[3] } else { acc[2] };
            if upper != lower {
                row_acc[upper] += if is_odd { acc[1] } else { acc[0] };
            }
        }
        self.add::<E, W>(row_acc, weights, num_parts);
    }

    /// Adds the sums of a load, times the scales of the parts.
    #[inline(always)]
    fn add<E: Operand16, W: WeightElement<E>>(
        &mut self,
        row_acc: [f32; ROWS],
        weights: &WeightLoads<ROWS>,
        num_parts: usize,
    ) {
        for row in 0..ROWS {
            let scale = weights.scales[row * num_parts / ROWS];
            self.rows[row] = match W::IS_SCALED {
                true => math::fma(row_acc[row], scale, self.rows[row]),
                false => row_acc[row],
            };
        }
    }

    /// Zeros what lanes off the diagonal have added.
    #[inline(always)]
    pub fn keep_diagonal(&mut self) {
        let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
        for row in 0..ROWS {
            self.rows[row] = if group / 2 == pair { self.rows[row] } else { 0.0 };
        }
    }
}

/// Adds up partial sum `partial_idx` of this lane over slices 1, 2, ..; all loads are issued at
/// once.
///
/// # Safety
/// 1. `split_partials` starts at the lane's partial sums of slice 0, `warp_partials` elements
///    before those of slice 1; slices 1, 2, .. have written theirs.
#[inline(always)]
pub unsafe fn reduce_other_slices(
    split_partials: Shared<f32>,
    warp_partials: u32,
    num_slices: u32,
    partial_idx: usize,
) -> f32 {
    let mut others = [0.0; MAX_SLICES as usize - 1];
    unroll!(other in 0..4, {
        let slice_idx = other as u32 + 1;
        if slice_idx < num_slices {
            let at = slice_idx * warp_partials + partial_idx as u32 * warp::WARP_SIZE;
            // SAFETY: the caller's promise.
            others[other] = unsafe { split_partials.get(at) };
        }
    });
    (others[0] + others[1]) + (others[2] + others[3])
}
