//! Clusters: special registers, barrier, and shared memory of other blocks, against the PTX ISA.

mod words;

use cuda_std::bulk::CacheHint;
use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;
use cuda_std::tensor_map::{Element, L2Promotion, Swizzle, TensorMapSpec};
use simt::{FaultKind, Init, Memory};

fn geometry(grid: [u32; 3]) -> Geometry {
    Geometry { grid, block: [32, 1, 1], shared_bytes: 8 << 10 }
}

/// Writes per block: its index in the cluster, the cluster's size, and the block's rank.
#[kernel(launch_bounds(32), target(sm_90a), cluster(2, 1, 2))]
unsafe fn places(out: GlobalMut<u32>) {
    let values = [
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
    if thread::thread_idx_x() == 0 {
        for (at, value) in values.into_iter().enumerate() {
            // SAFETY: seven numbers per block.
            unsafe { out.set(block as usize * 7 + at, value) };
        }
    }
}

#[test]
fn blocks_know_their_index_in_the_cluster() {
    let [x, y, z] = [4, 3, 2];
    let mut memory = Memory::new();
    let out = memory.alloc("out", Init::Poisoned(24 * 7 * 4));
    let launch = places::Args { out: DevicePtr::new(out) }.launch(geometry([x, y, z]));
    launch.emulate(&mut memory, 3).unwrap();
    for (block, got) in (0..).zip(words::read(&memory, out, 24 * 7).chunks(7)) {
        let (x, y, z) = (block % x % 2, 0, block / x / y % 2);
        assert_eq!(got, [x, y, z, 2, 1, 2, x + 2 * z], "block {block}");
    }
}

/// Every block writes to the next block's shared memory and reads what the previous block wrote to
/// its own. `SPLIT` does work between arrive and wait of the barrier between them; without
/// `BARRIER` there is none.
#[kernel(
    launch_bounds(32),
    target(sm_90a),
    cluster(4, 1, 1),
    instances(ring = <true, false>, ring_split = <true, true>, ring_unordered = <false, false>)
)]
unsafe fn exchange<const BARRIER: bool, const SPLIT: bool>(out: GlobalMut<u32>) {
    // SAFETY: 192 words per block; the last barrier follows all remote accesses.
    unsafe {
        let (rank, lane) = (cluster::block_rank(), warp::lane_id());
        let smem: Shared<u32> = dynamic_shared_mem();
        let next = cluster::map_shared(smem, (rank + 1) % 4);
        let before = cluster::map_shared(smem, (rank + 3) % 4);
        cluster::sync();
        next.set(lane, 100 * rank + lane);
        if lane < 8 {
            next.offset(32).set_v4(4 * lane, [1000 * rank + lane, 7, 8, 9]);
        }
        smem.set(64 + lane, 10_000 * rank + lane);
        if SPLIT {
            cluster::arrive();
            out.set((128 * rank + lane) as usize, 5);
            cluster::wait();
        } else if BARRIER {
            cluster::sync();
        }
        let [a, _, _, d] = before.get_v4(64 + lane / 4 * 4);
        // The block's own memory is in the cluster's window as well.
        let [e, f, g, h] = cluster::map_shared(smem, rank).get_v4(32 + lane / 4 * 4);
        let values = [smem.get(lane), before.get(64 + lane), a + d, e + f + g + h];
        for (at, value) in (0..).zip(values) {
            out.set((128 * rank + 32 * at + lane) as usize, value);
        }
        cluster::sync();
    }
}

#[test]
fn blocks_exchange_through_shared_memory() {
    use exchange::Instance;
    let mut want = Vec::new();
    for rank in 0..4 {
        let before = (rank + 3) % 4;
        want.extend((0..32).map(|lane| 100 * before + lane));
        want.extend((0..32).map(|lane| 10_000 * before + lane));
        want.extend((0..32).map(|lane| 20_000 * before + 2 * (lane / 4 * 4) + 3));
        want.extend((0..32).map(|lane| 1000 * before + lane / 4 + 24));
    }
    for seed in simt::seeds() {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(4 * 512));
        let launch = |instance| {
            exchange::Args { out: DevicePtr::new(out) }.launch(instance, geometry([4, 1, 1]))
        };
        for instance in [Instance::ring, Instance::ring_split] {
            launch(instance).emulate(&mut memory, seed).unwrap();
            assert_eq!(words::read(&memory, out, 512), want, "{instance:?}");
        }
        let fault = launch(Instance::ring_unordered).emulate(&mut memory, seed).unwrap_err();
        assert!(
            matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Uninitialised(_)),
            "seed {seed}: {fault}"
        );
    }
}

/// Each of two blocks arrives on the mbarrier that the other block initialised before a relaxed
/// barrier.
#[kernel(
    launch_bounds(32),
    target(sm_90a),
    cluster(2, 1, 1),
    instances(told_of_mbarriers = <true>, not_told_of_mbarriers = <false>)
)]
unsafe fn meet_at_mbarriers<const FENCED: bool>(out: GlobalMut<u32>) {
    // SAFETY: one mbarrier per block, which exits after the other block's arrivals; 2 words.
    unsafe {
        let (rank, lane) = (cluster::block_rank(), warp::lane_id());
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        if lane == 0 {
            barrier.init(1);
            if FENCED {
                fence::mbarrier_init();
            }
        }
        cluster::arrive_relaxed();
        cluster::wait();
        if lane == 0 {
            barrier.peer(1 - rank).arrive();
        }
        barrier.wait(0);
        cluster::sync();
        if lane == 0 {
            out.set(rank as usize, rank + 1);
        }
    }
}

#[test]
fn a_relaxed_barrier_publishes_mbarriers_after_their_fence() {
    use meet_at_mbarriers::Instance;
    for seed in simt::seeds() {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(8));
        let mut meet = |instance| {
            let launch = meet_at_mbarriers::Args { out: DevicePtr::new(out) }
                .launch(instance, geometry([2, 1, 1]));
            launch.emulate(&mut memory, seed)
        };
        meet(Instance::told_of_mbarriers).unwrap();
        let fault = meet(Instance::not_told_of_mbarriers).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Race { .. }), "seed {seed}: {fault}");
        assert_eq!(words::read(&memory, out, 2), [1, 2]);
    }
}

/// Block 1 arrives on the barrier and exits; block 0 waits for its own threads as well.
#[kernel(launch_bounds(32), target(sm_90a), cluster(2, 1, 1))]
unsafe fn arrive_and_end(out: GlobalMut<u32>) {
    // SAFETY: 32 words.
    unsafe {
        let lane = warp::lane_id();
        let smem: Shared<u32> = dynamic_shared_mem();
        cluster::arrive_relaxed();
        cluster::wait();
        if cluster::block_rank() == 1 {
            cluster::arrive();
            return;
        }
        smem.set(lane, lane);
        cluster::sync();
        out.set(lane as usize, smem.get(31 - lane));
    }
}

#[test]
fn threads_that_arrived_and_exited_are_counted_once() {
    let want: Vec<u32> = (0..32).rev().collect();
    for seed in simt::seeds() {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(128));
        let launch = arrive_and_end::Args { out: DevicePtr::new(out) }.launch(geometry([2, 1, 1]));
        launch.emulate(&mut memory, seed).unwrap();
        assert_eq!(words::read(&memory, out, 32), want);
    }
}

/// Waits on the barrier once more than it arrives.
#[kernel(launch_bounds(32), target(sm_90a), cluster(2, 1, 1))]
unsafe fn wait_twice() {
    cluster::sync();
    cluster::wait();
}

#[test]
fn a_wait_needs_an_arrival() {
    for seed in simt::seeds() {
        let launch = wait_twice::Args {}.launch(geometry([2, 1, 1]));
        let fault = launch.emulate(&mut Memory::new(), seed).unwrap_err();
        let FaultKind::Invalid(why) = fault.kind else { panic!("seed {seed}: {fault}") };
        assert!(why.contains("without barrier.cluster.arrive before it"), "{why}");
    }
}

/// Floats pass through the cluster's window unchanged.
#[kernel(launch_bounds(32), target(sm_90a), cluster(2, 1, 1))]
unsafe fn swap_f32(x: Global<f32>, out: GlobalMut<f32>) {
    // SAFETY: 64 elements each, 32 per block.
    unsafe {
        let (rank, lane) = (cluster::block_rank(), warp::lane_id());
        let smem: Shared<f32> = dynamic_shared_mem();
        cluster::sync();
        cluster::map_shared(smem, 1 - rank).set(lane, x.get((32 * rank + lane) as usize));
        cluster::sync();
        out.set((32 * rank + lane) as usize, smem.get(lane));
    }
}

#[test]
fn floats_keep_their_bits() {
    let x: Vec<u32> = (0..64).map(|i| (i as f32 * 0.1).to_bits() ^ i << 31).collect();
    let mut memory = Memory::new();
    let from = DevicePtr::new(words::alloc(&mut memory, "x", &x));
    let out = memory.alloc("out", Init::Poisoned(256));
    let launch = swap_f32::Args { x: from, out: DevicePtr::new(out) }.launch(geometry([2, 1, 1]));
    launch.emulate(&mut memory, 1).unwrap();
    let got = words::read(&memory, out, 64);
    assert_eq!((&got[..32], &got[32..]), (&x[32..], &x[..32]));
}

/// Stages of the pipeline of [`multicast`], and its iterations.
const NUM_STAGES: u32 = 2;
const ROUNDS: u32 = 5;

/// Block `r` of two loads rows `2 * round + r` of 32 words to both blocks, once both have read the
/// stage: as a bulk copy, or by a tensor map.
#[kernel(
    launch_bounds(32),
    target(sm_90a),
    cluster(2, 1, 1),
    instances(multicast_bulk = <false>, multicast_tensor = <true>)
)]
unsafe fn multicast<const TENSOR: bool>(x: Global<u32>, map: TensorMap, out: GlobalMut<u32>) {
    const BOTH: u16 = 0b11;
    // SAFETY: 64 words and two barriers per stage, two rows per round.
    unsafe {
        let (rank, lane) = (cluster::block_rank(), warp::lane_id());
        let full = Mbarrier::new(shared_array![u64; NUM_STAGES as usize]);
        let empty = Mbarrier::new(shared_array![u64; NUM_STAGES as usize]);
        let smem: Shared<u32> = dynamic_shared_mem();
        if lane == 0 {
            for stage in 0..NUM_STAGES {
                full.offset(stage).init(1);
                empty.offset(stage).init(2);
            }
            fence::mbarrier_init();
        }
        cluster::sync();
        for round in 0..ROUNDS {
            let (stage, parity) = (round % NUM_STAGES, round / NUM_STAGES % 2);
            let (full, empty) = (full.offset(stage), empty.offset(stage));
            let rows = smem.offset(64 * stage);
            if lane == 0 {
                empty.wait(parity ^ 1);
                full.arrive_expect_tx(256);
                let (row, dst, hint) =
                    (2 * round + rank, rows.offset(32 * rank), CacheHint::EvictNormal);
                if TENSOR {
                    bulk::tensor_load_multicast(dst, map, [0, row as i32], full, BOTH, hint);
                } else {
                    let src = x.wrapping_add(32 * row as usize);
                    bulk::load_multicast(dst, src, 128, full, BOTH, hint);
                }
            }
            full.wait(parity);
            for row in 0..2 {
                let at = (rank * 2 * ROUNDS + 2 * round + row) * 32 + lane;
                out.set(at as usize, rows.get(32 * row + lane));
            }
            warp::sync_warp();
            if lane == 0 {
                empty.arrive();
                empty.peer(1 - rank).arrive();
            }
        }
        cluster::sync();
    }
}

#[test]
fn a_multicast_loads_every_row_to_both_blocks() {
    use multicast::Instance;
    let x: Vec<u32> = (0..32 * 2 * ROUNDS).map(|i| i * i).collect();
    for (instance, seed) in [Instance::multicast_bulk, Instance::multicast_tensor]
        .into_iter()
        .flat_map(|instance| simt::seeds().map(move |seed| (instance, seed)))
    {
        let mut memory = Memory::new();
        let from = words::alloc(&mut memory, "x", &x);
        let spec = TensorMapSpec {
            address: from,
            element: Element::U32,
            dims: vec![32, u64::from(2 * ROUNDS)],
            strides_bytes: vec![128],
            box_dims: vec![32, 1],
            swizzle: Swizzle::None,
            l2_promotion: L2Promotion::default(),
        };
        let map = spec.emulated();
        let out = memory.alloc("out", Init::Poisoned(2 * 4 * x.len()));
        let (from, to) = (DevicePtr::new(from), DevicePtr::new(out));
        let launch =
            multicast::Args { x: from, map, out: to }.launch(instance, geometry([2, 1, 1]));
        launch.emulate(&mut memory, seed).unwrap();
        let got = words::read(&memory, out, 2 * x.len());
        assert_eq!((&got[..x.len()], &got[x.len()..]), (&x[..], &x[..]), "{instance:?}");
    }
}

/// Block 0 copies 32 words of its shared memory to block 1, which waits on its own mbarrier.
#[kernel(launch_bounds(32), target(sm_90a), cluster(2, 1, 1))]
unsafe fn send(out: GlobalMut<u32>) {
    // SAFETY: 64 words per block, and a barrier; the last barrier follows the copy.
    unsafe {
        let (rank, lane) = (cluster::block_rank(), warp::lane_id());
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        let smem: Shared<u32> = dynamic_shared_mem();
        if lane == 0 {
            barrier.init(1);
            fence::mbarrier_init();
        }
        smem.set(lane, 100 * rank + lane);
        fence::proxy_async_shared();
        cluster::sync();
        if rank == 0 {
            if lane == 0 {
                let dst = cluster::map_shared(smem, 1).offset(32);
                bulk::copy_to_peer(dst, smem, 128, barrier.peer(1));
            }
        } else {
            if lane == 0 {
                barrier.arrive_expect_tx(128);
            }
            barrier.wait(0);
            out.set(lane as usize, smem.get(32 + lane));
            out.set((32 + lane) as usize, smem.get(lane));
        }
        cluster::sync();
    }
}

#[test]
fn a_block_copies_to_another_blocks_memory() {
    let want: Vec<u32> = (0..32).chain(100..132).collect();
    for seed in simt::seeds() {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(256));
        let launch = send::Args { out: DevicePtr::new(out) }.launch(geometry([2, 1, 1]));
        launch.emulate(&mut memory, seed).unwrap();
        assert_eq!(words::read(&memory, out, 64), want);
    }
}
