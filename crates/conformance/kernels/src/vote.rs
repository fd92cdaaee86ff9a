//! `vote.sync`, `match.sync`, `redux.sync`, `elect.sync` and shuffles, for all lanes and for
//! subsets.

use cuda_std::prelude::*;

/// Words that a lane writes per mask.
pub const NUM_VALUES: u32 = 16;

/// The lanes of each of `masks`, and all other lanes, vote on bit `i` of their words, match their
/// third and fourth bytes, and reduce and shuffle their words: `masks` is `[num_masks]`, `x`
/// `[32]`, `out` `[num_masks, 32, NUM_VALUES]`.
///
/// # Safety
/// 1. One warp; the views have these lengths.
#[kernel(launch_bounds(32))]
pub unsafe fn vote_b32(num_masks: u32, masks: Global<u32>, x: Global<u32>, out: GlobalMut<u32>) {
    let lane = warp::lane_id();
    // SAFETY: `NUM_VALUES` words per lane and mask; the lanes of a mask call its collectives.
    unsafe {
        let word = x.get(lane as usize);
        let mut i = 0;
        while i < num_masks {
            let mask = own_mask(masks.get(i as usize));
            let predicate = word >> i & 1 == 1;
            let values = [
                u32::from(warp::vote_all(mask, predicate)),
                u32::from(warp::vote_any(mask, predicate)),
                warp::ballot(mask, predicate),
                warp::match_any(mask, word >> 16 & 0xff),
                u32::from(warp::match_all(mask, word >> 24)),
                warp::redux_add(mask, word),
                warp::redux_min_u32(mask, word),
                warp::redux_max_u32(mask, word),
                warp::redux_min_i32(mask, word as i32) as u32,
                warp::redux_max_i32(mask, word as i32) as u32,
                warp::redux_and(mask, word),
                warp::redux_or(mask, word),
                warp::redux_xor(mask, word),
                warp::shuffle_idx_among(mask, word, mask.trailing_zeros()),
                warp::shuffle_xor_among(mask, word, 0),
                warp::active_mask() >> lane & 1,
            ];
            let start = ((i * warp::WARP_SIZE + lane) * NUM_VALUES) as usize;
            unroll!(at in 0..NUM_VALUES as usize, {
                out.set(start + at, values[at]);
            });
            i += 1;
        }
    }
}

/// `mask`, or the mask of all other lanes if it does not contain the lane.
#[inline(always)]
#[track_caller]
fn own_mask(mask: u32) -> u32 {
    if mask >> warp::lane_id() & 1 == 1 { mask } else { !mask }
}

/// The lanes of each of `masks`, and all other lanes, write how many lanes were elected, and
/// whether a second election elected the same lane, one of the mask: `masks` is `[num_masks]`,
/// `out` `[num_masks, 32, 2]`.
///
/// # Safety
/// 1. One warp; the views have these lengths.
#[kernel(launch_bounds(32), target(sm_90a))]
pub unsafe fn vote_elect(num_masks: u32, masks: Global<u32>, out: GlobalMut<u32>) {
    let lane = warp::lane_id();
    // SAFETY: two words per lane and mask; the lanes of a mask call its collectives.
    unsafe {
        let mut i = 0;
        while i < num_masks {
            let mask = own_mask(masks.get(i as usize));
            let elected = warp::ballot(mask, warp::elect(mask));
            let again = warp::ballot(mask, warp::elect(mask));
            let at = (2 * (i * warp::WARP_SIZE + lane)) as usize;
            out.set(at, elected.count_ones());
            out.set(at + 1, u32::from(elected == again && elected & mask == elected));
            i += 1;
        }
    }
}
