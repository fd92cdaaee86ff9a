//! `setmaxnreg`: reallocation of registers between warpgroups.

use cuda_std::prelude::*;
use cuda_std::warp::WARPGROUP_SIZE;

/// Three warpgroups: the first releases registers to the other two.
pub const NUM_THREADS: u32 = 3 * WARPGROUP_SIZE;

/// Values that a thread of the other warpgroups holds at once.
pub const NUM_VALUES: u32 = 16;

/// `out[t] = sum_i (i + 1) * x[i, t]` for the threads of the last two warpgroups, which get
/// registers of the first: all products are computed before any is added. `x` is `[NUM_VALUES,
/// NUM_THREADS]`, `out` `[NUM_THREADS]`; threads of the first warpgroup write their first value.
///
/// # Safety
/// 1. One block; the views have these lengths.
#[kernel(launch_bounds(NUM_THREADS, 1), target(sm_90a))]
pub unsafe fn setmaxnreg_u32(x: Global<u32>, out: GlobalMut<u32>) {
    let t = thread::thread_idx_x() as usize;
    // SAFETY: one column and one element per thread.
    unsafe {
        let value = |i: usize| x.get(i * NUM_THREADS as usize + t);
        if warp::warpgroup_idx() == 0 {
            registers::decrease::<40>();
            out.set(t, value(0));
        } else {
            registers::increase::<232>();
            let mut values = [0u32; NUM_VALUES as usize];
            unroll!(i in 0..NUM_VALUES as usize, {
                values[i] = value(i);
            });
            let mut sum = 0u32;
            unroll!(i in 0..NUM_VALUES as usize, {
                sum = sum.wrapping_add(values[i].wrapping_mul(i as u32 + 1));
            });
            out.set(t, sum);
        }
    }
}
