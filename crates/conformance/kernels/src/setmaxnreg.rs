//! `setmaxnreg`: warpgroups that hand registers to each other.

use cuda_std::prelude::*;
use cuda_std::warp::WARPGROUP_SIZE;

/// Three warpgroups: the first gives registers to the other two.
pub const NUM_THREADS: u32 = 3 * WARPGROUP_SIZE;

/// Values that a thread of the other warpgroups holds at once.
pub const NUM_VALUES: u32 = 16;

/// `out[t] = sum_i (i + 1) * x[i, t]` for the threads of the last two warpgroups, which the first
/// one gives registers to: all products are made before any is added up. `x` is
/// `[NUM_VALUES, NUM_THREADS]`, `out` `[NUM_THREADS]`; threads of the first write their first
/// value.
///
/// # Safety
/// 1. One block; the views are that long.
#[kernel(launch_bounds(NUM_THREADS, 1), target(sm_90a))]
pub unsafe fn setmaxnreg_u32(x: Global<u32>, out: GlobalMut<u32>) {
    let t = thread::thread_idx_x() as usize;
    // SAFETY: a column and an element a thread.
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
