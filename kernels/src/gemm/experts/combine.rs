//! The sum of a token's experts: `out[t] = sum_i weights[t, i] * products[t, i] (+ residual[t])`.
//!
//! Shapes    products `[num_tokens, top_k, width]` f32, f16 or bf16, weights `[num_tokens, top_k]`
//!           f32, out `[num_tokens, width]` of the products' type or f32; row strides.
//! Launch    grid `(max_tokens, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32, in the order of the choices; one rounding at the store.
//! Bound     memory: the products are read once.

use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
pub const NUM_THREADS: u32 = 128;

/// Eight columns a thread.
///
/// # Safety
/// 1. `num_tokens` is one element; `products` holds `top_k` rows of `width` elements `T` for each of
///    them, one after the other; `weights`, `out` and `residual`, which may be null, a row each, at
///    their strides.
/// 2. `out` is `residual`, or overlaps nothing that is read.
/// 3. If `aligned` is not 0, rows of products, `residual` and `out` are 16-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        combine_experts_f32 = <f32, f32>,
        combine_experts_{E}_f32 = <E, f32>,
        combine_experts_{E} = <E, E>
    )
)]
pub unsafe fn combine_experts<T: Number, O: Number>(
    num_tokens: Global<u32>,
    top_k: u32,
    width: u32,
    products: Global<()>,
    weights: Global<f32>,
    weights_stride: u32,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<()>,
    out_stride: u32,
    aligned: u32,
) {
    let token = thread::block_idx_x();
    let column = (thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x()) * VEC_ELEMS;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if token >= num_tokens || column >= width {
        return;
    }
    // SAFETY: token and column are inside, by the check.
    unsafe {
        let columns = Columns::new(column, width, aligned != 0);
        let weights = weights.add(token as usize * weights_stride as usize);
        let first = token as usize * top_k as usize;
        let mut sums = [0.0; VEC_ELEMS as usize];
        for choice in 0..top_k as usize {
            let row = products.cast::<T>().add((first + choice) * width as usize);
            let (weight, values) = (weights.get(choice), columns.load(row));
            for i in 0..VEC_ELEMS as usize {
                sums[i] = math::fma(weight, values[i], sums[i]);
            }
        }
        if !residual.is_null() {
            let added = columns.load(residual.add(token as usize * residual_stride as usize));
            for i in 0..VEC_ELEMS as usize {
                sums[i] += added[i];
            }
        }
        columns.store(out.cast::<O>().add(token as usize * out_stride as usize), sums);
    }
}
