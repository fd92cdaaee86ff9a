//! The loads and dot products of one row of x with rows of a 16-bit weight, on the FMA units.

use crate::element::VEC_ELEMS;
use crate::tile::element::Operand16;
use cuda_std::prelude::*;

/// Most slices that k is split into: one warp each.
pub const MAX_SLICES: u32 = 5;

/// Elements along k that one load of a warp covers: `VEC_ELEMS` a lane.
pub const K_PER_LOAD: u32 = warp::WARP_SIZE * VEC_ELEMS;

/// A lane's 16-byte load: eight elements along k.
pub type Load = [u32; VEC_ELEMS as usize / 2];

/// Partial sums of a lane: one a row of the weight and, for a norm, that of the squares of x.
pub const fn num_partials(rows: usize, normed: bool) -> u32 {
    rows as u32 + normed as u32
}

/// Most warps of a block.
pub const fn max_warps(fused: bool) -> u32 {
    if fused { MAX_SLICES } else { 6 }
}

/// Blocks that should fit on an SM.
pub const fn min_blocks(fused: bool) -> u32 {
    if fused { 3 } else { 6 }
}

/// The rows of the weight that a warp computes.
pub struct Weights<const ROWS: usize> {
    /// Its elements.
    pub weight: Global<u16>,
    /// Index of each row's first element.
    pub rows: [usize; ROWS],
}

impl<const ROWS: usize> Weights<ROWS> {
    /// Issues `LOADS` loads of each row, the lane's first at `first_k`; zeros from `k` on.
    ///
    /// # Safety
    /// 1. Rows hold `k` elements and are 16-byte aligned; `first_k` and `k` are multiples of 8.
    #[inline(always)]
    pub unsafe fn load<const LOADS: usize>(&self, first_k: u32, k: u32) -> [[Load; ROWS]; LOADS] {
        let mut loads = [[[0; VEC_ELEMS as usize / 2]; ROWS]; LOADS];
        unroll!(load_idx in 0..4, {
            if load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * K_PER_LOAD;
                for row in 0..ROWS {
                    let words = self.weight.wrapping_add(self.rows[row] + k_idx as usize);
                    let words = words.cast::<u32>();
                    // SAFETY: inside the row, by the condition.
                    loads[load_idx][row] = unsafe { words.stream_vec_if(0, k_idx < k) };
                }
            }
        });
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
    /// Issues the loads of the norm's weight that go with `LOADS` loads of x. No launch writes it.
    ///
    /// # Safety
    /// 1. `norm_weight` is as the kernel requires; `first_k` is a multiple of 8.
    #[inline(always)]
    pub unsafe fn load_norm<const LOADS: usize, const NORMED: bool>(
        &self,
        first_k: u32,
    ) -> [[[f32; 4]; 2]; LOADS] {
        let mut loads = [[[0.0; 4]; 2]; LOADS];
        unroll!(load_idx in 0..4, {
            if NORMED && load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * K_PER_LOAD;
                let weights = self.norm_weight.wrapping_add(k_idx as usize);
                // SAFETY: inside, by the condition.
                loads[load_idx] =
                    [0, 4].map(|at| unsafe { weights.get_vec_if(at, k_idx < self.k) });
            }
        });
        loads
    }

    /// Issues `LOADS` loads of x, the lane's first at `first_k`; zeros from `k` on. They do not
    /// depend on `num_rows`, so the row may be unwritten: the load of `num_rows` would complete
    /// only after the weight's, which are issued before it.
    ///
    /// # Safety
    /// 1. `x` is as the kernel requires; `first_k` is a multiple of 8.
    #[inline(always)]
    pub unsafe fn load<const LOADS: usize, const NORMED: bool>(
        &self,
        first_k: u32,
    ) -> [InputLoad; LOADS] {
        let mut loads = [InputLoad::default(); LOADS];
        unroll!(load_idx in 0..4, {
            if load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * K_PER_LOAD;
                let (at, is_inside) = (k_idx as usize, k_idx < self.k);
                // SAFETY: inside, by the condition.
                unsafe {
                    if NORMED {
                        let x = self.x.cast::<f32>().wrapping_add(at);
                        loads[load_idx].x32 = [0, 4].map(|at| x.speculate_vec_if(at, is_inside));
                    } else {
                        let x = self.x.cast::<u16>().wrapping_add(at).cast::<u32>();
                        loads[load_idx].x16 = x.speculate_vec_if(0, is_inside);
                    }
                }
            }
        });
        loads
    }
}

/// A lane's load of x: eight elements, in 16 bits, or f32 if they are to be normed.
#[derive(Clone, Copy, Default)]
pub struct InputLoad {
    x16: Load,
    x32: [[f32; 4]; 2],
}

impl InputLoad {
    /// The elements as f32. If `NORMED`, multiplied by the norm's weight; their squares are added
    /// to `square_sum`.
    #[inline(always)]
    pub fn values<E: Operand16, const NORMED: bool>(
        &self,
        norm: [[f32; 4]; 2],
        square_sum: &mut f32,
    ) -> [f32; VEC_ELEMS as usize] {
        if !NORMED {
            return unpacked::<E>(self.x16);
        }
        let flat = |[[a, b, c, d], [e, f, g, h]]: [[f32; 4]; 2]| [a, b, c, d, e, f, g, h];
        let (mut x, norm) = (flat(self.x32), flat(norm));
        for i in 0..VEC_ELEMS as usize {
            *square_sum = math::fma(x[i], x[i], *square_sum);
            x[i] *= norm[i];
        }
        x
    }
}

/// The elements of a load.
#[inline(always)]
pub fn unpacked<E: Operand16>(load: Load) -> [f32; VEC_ELEMS as usize] {
    let [[a, b], [c, d], [e, f], [g, h]] = load.map(E::unpack);
    [a, b, c, d, e, f, g, h]
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
