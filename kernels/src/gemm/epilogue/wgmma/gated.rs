//! Gated outputs: of every 16 columns of the accumulators eight are of gate and eight of up, so that
//! a thread has both of an output.

use super::{
    OutElement, SUBTILE_COLUMNS, SUBTILE_REGS, SubtileScale, VEC_ELEMS, WarpOutput, load_pairs,
};
use crate::activation::Gate;
use crate::gemm::mainloop::accumulators::Accumulators;
use crate::tile::box_copy::GATE_ROWS;
use cuda_std::prelude::*;

const _: () = assert!(GATE_ROWS == VEC_ELEMS, "a thread has the same column of gate and of up");

/// Outputs as they are stored.
struct Finished;

impl SubtileScale for Finished {
    #[inline(always)]
    fn apply(&self, _at: usize, value: f32, _bias: f32) -> f32 {
        value
    }
}

/// Stores `activation(gate) * up` of subtile `subtile`, the first or third along n, and of the next
/// one; `origin` is its first row and column, where those of gate and of up are counted together.
///
/// # Safety
/// 1. As [`OutElement::store_subtile`]; the bias is null or has an element for each row of the
///    weight.
#[inline(always)]
#[track_caller]
pub unsafe fn store_pair<Acc: Accumulators, O: OutElement, A: Gate>(
    to: &mut WarpOutput<O>,
    [row, column]: [u32; 2],
    acc: &Acc,
    subtile: usize,
) {
    let subtile = subtile as u32;
    const {
        let has_both = A::PARTS == 1 || Acc::COLUMNS.is_multiple_of(2 * GATE_ROWS);
        assert!(has_both, "as many columns of gate as of up");
    }
    let (epilogue, column) = (to.output.epilogue, column / 2);
    if row >= epilogue.num_rows || column >= epilogue.n {
        return;
    }
    let has_next = subtile % Acc::SUBTILES_N + 1 < Acc::SUBTILES_N;
    let next = if has_next { subtile + 1 } else { subtile };
    let columns = if has_next {
        (SUBTILE_COLUMNS + Acc::subtile_columns(next)) / 2
    } else {
        Acc::subtile_columns(subtile) / 2
    };
    let parts = [acc.subtile(subtile), acc.subtile(next)];
    let first = column + warp::lane_id() % 4 * 2;
    let bias_of = |bias| {
        // SAFETY: the caller's promise.
        unsafe { load_pairs(bias, first, epilogue.n, 0.0) }
    };
    let gate_bias = bias_of(epilogue.bias);
    // Null stays null.
    let up_bias = bias_of(if epilogue.bias.is_null() {
        epilogue.bias
    } else {
        epilogue.bias.wrapping_add(epilogue.n as usize)
    });
    let mut values = [0.0; SUBTILE_REGS];
    unroll!(j in 0..8, {
        if VEC_ELEMS * (j as u32) < columns {
            for i in 0..4 {
                let (part, at) = (&parts[j / 4], j % 4 * 8 + i);
                // As the separate operations round.
                let [gate, up] = [part[at] + gate_bias[j][i % 2], part[at + 4] + up_bias[j][i % 2]]
                    .map(|value| O::from_f32(value).to_f32());
                values[4 * j + i] = A::apply::<O>(gate, up);
            }
        }
    });
    // SAFETY: the caller's promise.
    unsafe { O::store_subtile(to, [row, column], columns, &values, &Finished) };
}
