//! Clusters: block indices, shared memory of other blocks, remote arrivals, asynchronous stores,
//! and multicast.

use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::warp::WARP_SIZE;

/// Words that a block writes of its index.
pub const NUM_VALUES: u32 = 7;

/// Blocks per cluster of the other kernels.
pub const CLUSTER: u32 = 4;

/// Every block writes its index in its cluster: `out` is `[num_blocks, NUM_VALUES]`, blocks in the
/// order of x, y, z.
///
/// # Safety
/// 1. One thread per block; `out` has this length.
#[kernel(launch_bounds(1), target(sm_90a), cluster(2, 1, 2))]
pub unsafe fn cluster_places(out: GlobalMut<u32>) {
    let values: [u32; NUM_VALUES as usize] = [
        cluster::block_idx_x(),
        cluster::block_idx_y(),
        cluster::block_idx_z(),
        cluster::dim_x(),
        cluster::dim_y(),
        cluster::dim_z(),
        cluster::block_rank(),
    ];
    let block = (thread::block_idx_z() * thread::grid_dim_y() + thread::block_idx_y())
        * thread::grid_dim_x()
        + thread::block_idx_x();
    for (i, value) in values.into_iter().enumerate() {
        // SAFETY: the block's own words.
        unsafe { out.set((block * NUM_VALUES) as usize + i, value) };
    }
}

/// Each block of a cluster writes its words of `x` to its own shared memory, reads those of every
/// block, starting with its own, one and four at a time, and writes the sum and its words to the
/// next block, likewise, which stores the sum of both to `out`: both are `[num_blocks, 32]`.
///
/// # Safety
/// 1. One warp per block; the views have these lengths.
#[kernel(launch_bounds(WARP_SIZE), target(sm_90a), cluster(CLUSTER, 1, 1))]
pub unsafe fn cluster_peers_u32(x: Global<u32>, out: GlobalMut<u32>) {
    let (rank, lane) = (cluster::block_rank(), warp::lane_id());
    let at = thread::index_1d() as usize;
    // SAFETY: the cluster's barriers separate writes and reads, and keep every block alive.
    unsafe {
        let own = shared_array![u32; WARP_SIZE as usize];
        let sums = shared_array![u32; WARP_SIZE as usize];
        let words = shared_array![u32; WARP_SIZE as usize];
        own.set(lane, x.get(at));
        cluster::sync();
        let mut sum = 0u32;
        let mut i = 0;
        while i < CLUSTER {
            let theirs = cluster::map_shared(own, (rank + i) % CLUSTER);
            let [a, b, c, d] = theirs.get_v4(lane / 4 * 4);
            let word = theirs.get(WARP_SIZE - 1 - lane);
            let all = a ^ b.rotate_left(1) ^ c.rotate_left(2) ^ d.rotate_left(3);
            sum = sum.rotate_left(5).wrapping_add(word).wrapping_add(all);
            i += 1;
        }
        let next = (rank + 1) % CLUSTER;
        cluster::map_shared(sums, next).set(lane, sum);
        if lane < WARP_SIZE / 4 {
            cluster::map_shared(words, next).set_v4(4 * lane, own.get_vec(4 * lane));
        }
        cluster::sync();
        out.set(at, sums.get(lane).wrapping_add(words.get(lane)));
    }
}

/// In each round the blocks of a cluster arrive on the mbarriers of all blocks, wait on their own,
/// and synchronise: `out` counts the rounds of each block.
///
/// # Safety
/// 1. One warp per block; `out` holds one element per block.
#[kernel(launch_bounds(WARP_SIZE), target(sm_90a), cluster(CLUSTER, 1, 1))]
pub unsafe fn cluster_arrive(num_rounds: u32, out: GlobalMut<u32>) {
    let lane = warp::lane_id();
    // SAFETY: the mbarriers are initialised before any block of the cluster arrives, and no block
    // exits before all have arrived.
    unsafe {
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        if lane == 0 {
            barrier.init(CLUSTER);
            fence::mbarrier_init();
        }
        cluster::sync();
        let mut round = 0;
        while round < num_rounds {
            if lane < CLUSTER {
                barrier.peer(lane).arrive();
            }
            barrier.wait(round % 2);
            // No block may arrive for the next round on an mbarrier that is still in this round.
            cluster::sync();
            round += 1;
        }
        if lane == 0 {
            out.set(thread::block_idx_x() as usize, round);
        }
    }
}

/// Words that each block of [`cluster_copies_u32()`] multicasts.
pub const SLICE: u32 = 64;

/// Each block of a cluster multicasts a slice of the cluster's words of `x`, then copies all of the
/// cluster's words to the next block, which stores them to `out`: `x` is
/// `[num_clusters, CLUSTER, SLICE]`, `out` `[num_blocks, CLUSTER, SLICE]`.
///
/// # Safety
/// 1. One warp per block; the views have these lengths.
#[kernel(launch_bounds(WARP_SIZE), target(sm_90a), cluster(CLUSTER, 1, 1))]
pub unsafe fn cluster_copies_u32(x: Global<u32>, out: GlobalMut<u32>) {
    const NUM_BYTES: u32 = 4 * CLUSTER * SLICE;
    let (rank, lane) = (cluster::block_rank(), warp::lane_id());
    // SAFETY: every block expects its incoming bytes before any block sends, and lives until all
    // have arrived.
    unsafe {
        let loaded = shared_array![u32; 2 * (CLUSTER * SLICE) as usize];
        let received = loaded.offset(CLUSTER * SLICE);
        let arrived = Mbarrier::new(shared_array![u64; 2]);
        let sent = arrived.offset(1);
        if lane == 0 {
            arrived.init(1);
            sent.init(1);
            fence::mbarrier_init();
            arrived.arrive_expect_tx(NUM_BYTES);
            sent.arrive_expect_tx(NUM_BYTES);
        }
        cluster::sync();
        if lane == 0 {
            let slice = loaded.offset(rank * SLICE);
            let from = x.add((thread::block_idx_x() * SLICE) as usize);
            let (blocks, hint) = ((1 << CLUSTER) - 1, CacheHint::EvictLast);
            bulk::load_multicast(slice, from, 4 * SLICE, arrived, blocks, hint);
            arrived.wait(0);
            let next = (rank + 1) % CLUSTER;
            let to = cluster::map_shared(received, next);
            bulk::copy_to_peer(to, loaded, NUM_BYTES, sent.peer(next));
        }
        sent.wait(0);
        let start = (thread::block_idx_x() * CLUSTER * SLICE) as usize;
        let mut i = lane;
        while i < CLUSTER * SLICE {
            out.set(start + i as usize, received.get(i));
            i += WARP_SIZE;
        }
        cluster::sync();
    }
}

/// Words that each thread of [`cluster_stores_u32()`] sends.
pub const SENT: u32 = 5;

/// Each thread of a cluster sends its words of `x` to the same thread of the next block, one and
/// four at a time, which stores them to `out`: both are `[num_blocks, 32, SENT]`.
///
/// # Safety
/// 1. One warp per block; the views have these lengths.
#[kernel(launch_bounds(WARP_SIZE), target(sm_90a), cluster(CLUSTER, 1, 1))]
pub unsafe fn cluster_stores_u32(x: Global<u32>, out: GlobalMut<u32>) {
    let (rank, lane) = (cluster::block_rank(), warp::lane_id());
    let at = (thread::index_1d() * SENT) as usize;
    // SAFETY: every block expects its incoming bytes before any block sends, and lives until all
    // have arrived.
    unsafe {
        let fours = shared_array![f32; 4 * WARP_SIZE as usize];
        let ones = shared_array![u32; WARP_SIZE as usize];
        let arrived = Mbarrier::new(shared_array![u64; 1]);
        if lane == 0 {
            arrived.init(1);
            fence::mbarrier_init();
            arrived.arrive_expect_tx(4 * SENT * WARP_SIZE);
        }
        cluster::arrive_relaxed();
        cluster::wait();
        let next = (rank + 1) % CLUSTER;
        let (next_fours, next_ones) =
            (cluster::map_shared(fours, next), cluster::map_shared(ones, next));
        let values = [0, 1, 2, 3].map(|i| f32::from_bits(x.get(at + i)));
        next_fours.set_async_v4(4 * lane, values, arrived.peer(next));
        next_ones.set_async(lane, x.get(at + 4), arrived.peer(next));
        arrived.wait(0);
        let values: [f32; 4] = fours.get_vec(4 * lane);
        for (i, value) in values.into_iter().enumerate() {
            out.set(at + i, value.to_bits());
        }
        out.set(at + 4, ones.get(lane));
    }
}

/// The multicast of [`cluster_copies_u32()`] with boxes of a tensor `[num_blocks, SLICE]`:
/// `out` is `[num_blocks, CLUSTER, SLICE]`.
///
/// # Safety
/// 1. One warp per block; `map` has boxes of a row of `SLICE` words; `out` has this length.
#[kernel(launch_bounds(WARP_SIZE), target(sm_90a), cluster(CLUSTER, 1, 1))]
pub unsafe fn cluster_tensor_u32(map: TensorMap, out: GlobalMut<u32>) {
    let lane = warp::lane_id();
    // SAFETY: every block expects its incoming bytes before any block sends, and lives until all
    // have arrived.
    unsafe {
        let loaded: Shared<u32> = dynamic_shared_mem();
        let arrived = Mbarrier::new(loaded.offset(CLUSTER * SLICE).cast());
        if lane == 0 {
            arrived.init(1);
            fence::mbarrier_init();
            arrived.arrive_expect_tx(4 * CLUSTER * SLICE);
        }
        cluster::sync();
        if lane == 0 {
            let slice = loaded.offset(cluster::block_rank() * SLICE);
            let (corner, blocks) = ([0, thread::block_idx_x() as i32], (1 << CLUSTER) - 1);
            let hint = CacheHint::EvictFirst;
            bulk::tensor_load_multicast(slice, map, corner, arrived, blocks, hint);
        }
        arrived.wait(0);
        let start = (thread::block_idx_x() * CLUSTER * SLICE) as usize;
        let mut i = lane;
        while i < CLUSTER * SLICE {
            out.set(start + i as usize, loaded.get(i));
            i += WARP_SIZE;
        }
        cluster::sync();
    }
}
