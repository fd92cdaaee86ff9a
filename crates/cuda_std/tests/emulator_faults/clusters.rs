//! Shared memory of the other blocks of a cluster.

use cuda_std::prelude::*;
use simt::FaultKind;

use crate::NO_FAULT;
use crate::planted::{assert_found, assert_right, geometry, is_invalid, is_unordered, run};

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
