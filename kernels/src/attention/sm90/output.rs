//! The output of a consumer warpgroup.

use super::rows::thread_row;
use crate::attention::work::PrefillItem;
use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;

/// Columns that a quad of lanes stores together: 16 bytes a lane.
const STORE_COLUMNS: u32 = 32;

/// A thread's values of its two rows in them.
pub(super) const GROUP_REGS: usize = 16;

/// Where the output goes.
#[derive(Clone, Copy)]
pub(super) struct Output {
    /// `[tokens, num_heads * head_dim]`.
    pub out: GlobalMut<u32>,
    /// Row stride, in elements.
    pub row_stride: u32,
    pub head_dim: u32,
    /// `[tokens, num_heads]`, or null.
    pub lse: GlobalMut<f32>,
    pub num_heads: u32,
}

impl Output {
    /// Stores a warpgroup's rows, as far as they exist.
    ///
    /// [`Output::store_group`] for every group, written out: a call of it costs a register more, which the
    /// widest tile of FP8 does not have.
    ///
    /// # Safety
    /// 1. The output holds the item's rows.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn store<E: Operand16, const OUT_REGS: usize>(
        &self,
        item: &PrefillItem,
        first_row: u32,
        out: Accumulator<OUT_REGS>,
        lse: [f32; 2],
    ) {
        let values = out.values();
        let lane = warp::lane_id() % 4;
        unroll!(row in 0..2, {
            let tile_row = first_row + thread_row() + 8 * row as u32;
            let token = item.first_token as usize + tile_row as usize;
            let exists = tile_row < item.queries;
            let start = token * self.row_stride as usize + (item.head * self.head_dim) as usize;
            unroll!(group in 0..8, {
                if group < OUT_REGS / GROUP_REGS {
                    let pair = |j: usize| {
                        let at = group * GROUP_REGS + j * 4 + row * 2;
                        E::pack(values[at], values[at + 1])
                    };
                    let words = transpose_quad(lane, [pair(0), pair(1), pair(2), pair(3)]);
                    let column = group as u32 * STORE_COLUMNS + lane * 8;
                    if exists && column < self.head_dim {
                        // SAFETY: the caller's promise; elements are pairs in words.
                        unsafe { self.out.set_vec((start + column as usize) / 2, words) };
                    }
                }
            });
            if exists && lane == 0 && self.lse.address() != 0 {
                let at = token * self.num_heads as usize + item.head as usize;
                // SAFETY: the caller's promise.
                unsafe { self.lse.set(at, lse[row]) };
            }
        });
    }

    /// Token of the thread's row `row`, if it exists.
    #[inline(always)]
    fn token(item: &PrefillItem, first_row: u32, row: usize) -> Option<usize> {
        let tile_row = first_row + thread_row() + 8 * row as u32;
        (tile_row < item.queries).then(|| item.first_token as usize + tile_row as usize)
    }

    /// Stores columns `32 * group ..` of row `row` of the thread, in vectors of 16 bytes: a quad of
    /// lanes transposes its columns.
    ///
    /// # Safety
    /// As [`Output::store`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn store_group<E: Operand16>(
        &self,
        item: &PrefillItem,
        first_row: u32,
        row: usize,
        group: u32,
        values: [f32; GROUP_REGS],
    ) {
        let lane = warp::lane_id() % 4;
        let pair = |j: usize| E::pack(values[j * 4 + row * 2], values[j * 4 + row * 2 + 1]);
        let words = transpose_quad(lane, [pair(0), pair(1), pair(2), pair(3)]);
        let column = group * STORE_COLUMNS + lane * 8;
        if let Some(token) = Self::token(item, first_row, row)
            && column < self.head_dim
        {
            let start = token * self.row_stride as usize + (item.head * self.head_dim) as usize;
            // SAFETY: the caller's promise; elements are pairs in words.
            unsafe { self.out.set_vec((start + column as usize) / 2, words) };
        }
    }

    /// Stores the logarithm of the sum of row `row` of the thread, if it is wanted.
    ///
    /// # Safety
    /// As [`Output::store`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn store_lse(&self, item: &PrefillItem, first_row: u32, row: usize, lse: f32) {
        if let Some(token) = Self::token(item, first_row, row)
            && warp::lane_id().is_multiple_of(4)
            && self.lse.address() != 0
        {
            let at = token * self.num_heads as usize + item.head as usize;
            // SAFETY: the caller's promise.
            unsafe { self.lse.set(at, lse) };
        }
    }
}

/// Transposes the 4 x 4 words of a quad of lanes: word `i` becomes word `lane` of the quad's lane
/// `i`.
#[inline(always)]
fn transpose_quad(lane: u32, words: [u32; 4]) -> [u32; 4] {
    let [a, b, c, d] = words;
    let is_odd = lane & 1 != 0;
    let [a, b] = exchange(is_odd, [a, b], 1);
    let [c, d] = exchange(is_odd, [c, d], 1);
    let is_high = lane & 2 != 0;
    let [a, c] = exchange(is_high, [a, c], 2);
    let [b, d] = exchange(is_high, [b, d], 2);
    [a, b, c, d]
}

/// Swaps the second word of the lower lane with the first word of the lane `distance` further.
#[inline(always)]
fn exchange(is_upper: bool, [first, second]: [u32; 2], distance: u32) -> [u32; 2] {
    let received = warp::shuffle_xor(if is_upper { first } else { second }, distance);
    if is_upper { [received, second] } else { [first, received] }
}
