//! Shared memory of the other blocks of a cluster.

use cuda_std::prelude::*;
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{assert_found, assert_right, geometry, is_invalid, is_unordered, run};

const NO_BARRIER: u32 = 1;
const RELAXED: u32 = 2;
const ENDS_EARLY: u32 = 3;

/// Each of two blocks reads what the other one has written.
#[kernel(
    launch_bounds(32),
    target(sm_90a),
    cluster(2, 1, 1),
    instances(
        peers = <NO_FAULT>,
        peers_without_barrier = <NO_BARRIER>,
        peers_relaxed = <RELAXED>,
        peer_ends_early = <ENDS_EARLY>
    )
)]
unsafe fn read_peer<const FAULT: u32>(out: GlobalMut<f32>) {
    // SAFETY: 32 elements of each block, which ends after the accesses of the other one.
    unsafe {
        let (rank, lane) = (cluster::block_rank(), warp::lane_id());
        let smem: Shared<f32> = dynamic_shared_mem();
        smem.set(lane, (32 * rank + lane) as f32);
        match FAULT {
            NO_BARRIER => (),
            RELAXED => {
                cluster::arrive_relaxed();
                cluster::wait();
            }
            _ => cluster::sync(),
        }
        let peer = cluster::map_shared(smem, 1 - rank);
        out.set((32 * rank + lane) as usize, peer.get(lane));
        if FAULT != ENDS_EARLY {
            cluster::sync();
        }
    }
}

#[test]
fn shared_memory_of_a_peer() {
    use read_peer::Instance;
    let read = |instance| {
        run(move |device| read_peer::Args { out: device.out(64) }.launch(instance, geometry(2, 32)))
    };
    assert_right(&read(Instance::peers), |i| (i ^ 32) as f32);
    let accesses = ["smem.set(", "peer.get("];
    let missing = read(Instance::peers_without_barrier);
    let report = assert_found(&missing, "peers_without_barrier", &accesses, is_unordered);
    assert!(report.contains("`dynamic shared memory` + "), "{report}");
    let relaxed = read(Instance::peers_relaxed);
    let is_race = |kind: &FaultKind| matches!(kind, FaultKind::Race { other_writes: true, .. });
    let report = assert_found(&relaxed, "peers_relaxed", &accesses, is_race);
    assert!(report.contains("block [0, 0, 0]") && report.contains("block [1, 0, 0]"), "{report}");
    // It has ended, or might have.
    let ends = read(Instance::peer_ends_early);
    assert_found(&ends, "peer_ends_early", &["peer.get("], |kind| {
        matches!(kind, FaultKind::EndsEarly { .. }) || is_invalid("which has ended")(kind)
    });
}

/// Each of two blocks arrives on the mbarrier that the other one has initialised before a relaxed
/// barrier.
#[kernel(
    launch_bounds(32),
    target(sm_90a),
    cluster(2, 1, 1),
    instances(mbarriers_fenced = <true>, mbarriers_unfenced = <false>)
)]
unsafe fn meet_at_mbarriers<const FENCE: bool>(out: GlobalMut<f32>) {
    // SAFETY: an mbarrier of each block, which ends after the other block's arrival; two outputs.
    unsafe {
        let (rank, lane) = (cluster::block_rank(), warp::lane_id());
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        if lane == 0 {
            barrier.init(1);
            if FENCE {
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
            out.set(rank as usize, 1.0);
        }
    }
}

#[test]
fn mbarriers_of_a_peer() {
    use meet_at_mbarriers::Instance;
    let meet = |instance| {
        run(move |device| {
            meet_at_mbarriers::Args { out: device.out(2) }.launch(instance, geometry(2, 32))
        })
    };
    assert_right(&meet(Instance::mbarriers_fenced), |_| 1.0);
    let unfenced = meet(Instance::mbarriers_unfenced);
    let lines = ["barrier.init(", ".arrive();", "barrier.wait("];
    let is_race = |kind: &FaultKind| matches!(kind, FaultKind::Race { .. });
    assert_found(&unfenced, "mbarriers_unfenced", &lines, is_race);
}

/// Block 1 arrives on the barrier and ends; block 0 waits as often as it arrives, or once more.
#[kernel(
    launch_bounds(32),
    target(sm_90a),
    cluster(2, 1, 1),
    instances(arrive_and_end = <false>, wait_twice = <true>)
)]
unsafe fn wait_for_peer<const TWICE: bool>(out: GlobalMut<f32>) {
    // SAFETY: 32 elements.
    unsafe {
        let lane = warp::lane_id();
        let smem: Shared<f32> = dynamic_shared_mem();
        cluster::arrive_relaxed();
        cluster::wait();
        if cluster::block_rank() == 1 {
            cluster::arrive();
            return;
        }
        smem.set(lane, lane as f32);
        cluster::sync();
        if TWICE {
            cluster::wait(); // again
        }
        out.set(lane as usize, smem.get(31 - lane));
    }
}

#[test]
fn a_barrier_of_a_cluster_that_is_not_arrived_on() {
    use wait_for_peer::Instance;
    let wait = |instance| {
        run(move |device| {
            wait_for_peer::Args { out: device.out(32) }.launch(instance, geometry(2, 32))
        })
    };
    assert_right(&wait(Instance::arrive_and_end), |i| 31.0 - i as f32);
    let why = is_invalid("barrier.cluster.wait without barrier.cluster.arrive before it");
    assert_found(&wait(Instance::wait_twice), "wait_twice", &["// again"], why);
}
