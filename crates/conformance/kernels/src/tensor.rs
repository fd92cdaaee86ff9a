//! `cp.async.bulk.tensor`: boxes of tensors, loaded, stored and reduced.

use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::warp::WARP_SIZE;

/// How a kernel moves boxes.
const LOAD: u32 = 0;
const STORE: u32 = 1;
const ADD: u32 = 2;

/// Kernels of one rank that load boxes to `images`, in the layout of shared memory, and that store
/// and reduce them from there.
macro_rules! boxes {
    ($name:ident, $rank:literal [$($axis:literal)+], $load:ident, $store:ident, $add:ident) => {
        /// Moves the boxes at `corners` in sequence: `corners` is `[num_boxes, rank]`,
        /// innermost first, `images` `[num_boxes, box_words]`.
        ///
        /// # Safety
        /// 1. One warp per block, with dynamic shared memory for a box and an mbarrier; the views
        ///    have these lengths, and the map is of this rank and boxes of `box_words` words.
        ///    Several blocks only reduce.
        #[kernel(
            launch_bounds(WARP_SIZE),
            target(sm_90a),
            instances($load = <LOAD>, $store = <STORE>, $add = <ADD>)
        )]
        pub unsafe fn $name<const HOW: u32>(
            num_boxes: u32,
            box_words: u32,
            corners: Global<u32>,
            map: TensorMap,
            images: GlobalMut<u32>,
        ) {
            let lane = warp::lane_id();
            // SAFETY: the box in shared memory is accessed alternately by the threads and by the
            // copy.
            unsafe {
                let smem: Shared<u32> = dynamic_shared_mem();
                let barrier = Mbarrier::new(smem.offset(box_words).cast());
                if lane == 0 {
                    map.prefetch();
                    barrier.init(1);
                    fence::mbarrier_init();
                }
                thread::sync_threads();
                let mut i = 0;
                while i < num_boxes {
                    let corner =
                        [$(corners.get((i * $rank + $axis) as usize) as i32),+];
                    let image = images.add((i * box_words) as usize);
                    if HOW == LOAD {
                        if lane == 0 {
                            barrier.arrive_expect_tx(4 * box_words);
                            let hint = CacheHint::EvictNormal;
                            bulk::tensor_load(smem, map, corner, barrier, hint);
                        }
                        barrier.wait(i % 2);
                        copy(box_words, |at| image.set(at as usize, smem.get(at)));
                    } else {
                        copy(box_words, |at| smem.set(at, image.get(at as usize)));
                        fence::proxy_async_shared();
                        thread::sync_threads();
                        if lane == 0 {
                            if HOW == STORE {
                                bulk::tensor_store(map, corner, smem);
                            } else {
                                bulk::tensor_reduce_add(map, corner, smem);
                            }
                            bulk::commit_group();
                            bulk::wait_group::<0>();
                        }
                    }
                    thread::sync_threads();
                    i += 1;
                }
            }
        }
    };
}

boxes!(tensor_1d, 1[0], tensor_load_1d, tensor_store_1d, tensor_add_1d);
boxes!(tensor_2d, 2 [0 1], tensor_load_2d, tensor_store_2d, tensor_add_2d);
boxes!(tensor_3d, 3 [0 1 2], tensor_load_3d, tensor_store_3d, tensor_add_3d);
boxes!(tensor_4d, 4 [0 1 2 3], tensor_load_4d, tensor_store_4d, tensor_add_4d);

/// Calls `f` for the lane's share of `num_words` words.
#[inline(always)]
#[track_caller]
fn copy(num_words: u32, f: impl Fn(u32)) {
    let mut at = warp::lane_id();
    while at < num_words {
        f(at);
        at += WARP_SIZE;
    }
}
