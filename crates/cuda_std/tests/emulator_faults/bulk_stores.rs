//! Bulk stores of a staging buffer: fences, groups and waits that are missing.

use cuda_std::prelude::*;
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{assert_found, assert_right, geometry, run};

const ROWS: u32 = 2;

const NO_FENCE: u32 = 1;
const NO_COMMIT: u32 = 2;
const NO_WAIT: u32 = 3;
const ENDS_EARLY: u32 = 4;
const READS_BACK: u32 = 5;

/// Stores rows of 32 numbers, one after the other from the same buffer.
#[kernel(
    launch_bounds(32),
    target(sm_90a),
    instances(
        store = <NO_FAULT>,
        store_without_fence = <NO_FENCE>,
        store_without_commit = <NO_COMMIT>,
        store_reused_too_early = <NO_WAIT>,
        store_ends_early = <ENDS_EARLY>,
        store_reads_back = <READS_BACK>
    )
)]
unsafe fn store_rows<const FAULT: u32>(out: GlobalMut<f32>) {
    let lane = warp::lane_id();
    // SAFETY: 32 elements, and as many for each row of the output.
    unsafe {
        let smem: Shared<f32> = dynamic_shared_mem();
        for row in 0..ROWS {
            if row > 0 && FAULT != NO_WAIT && lane == 0 {
                bulk::wait_group_read::<0>();
            }
            warp::sync_warp();
            smem.set(lane, (32 * row + lane) as f32);
            if FAULT != NO_FENCE {
                fence::proxy_async_shared();
            }
            warp::sync_warp();
            if lane == 0 {
                bulk::store(out.add(32 * row as usize), smem, 128);
                if FAULT != NO_COMMIT {
                    bulk::commit_group();
                }
            }
        }
        if lane == 0 && FAULT != ENDS_EARLY {
            bulk::wait_group_read::<0>();
            if FAULT == READS_BACK {
                out.set(0, -out.get(63));
            }
        }
    }
}

#[test]
fn what_a_store_needs() {
    use store_rows::Instance;
    let store = |instance| {
        run(move |device| {
            store_rows::Args { out: device.out(64) }.launch(instance, geometry(1, 32))
        })
    };
    assert_right(&store(Instance::store), |i| i as f32);
    let lines = ["smem.set(", "bulk::store("];
    let unfenced = store(Instance::store_without_fence);
    let is_unfenced = |kind: &FaultKind| matches!(kind, FaultKind::Unfenced { .. });
    let report = assert_found(&unfenced, "store_without_fence", &lines, is_unfenced);
    assert!(report.starts_with("missing fence.proxy.async in "), "{report}");
    assert!(report.contains("reads 128 bytes at `dynamic shared memory` + 0 (of 4096)"));
    let is_read = |kind: &FaultKind| matches!(kind, FaultKind::NotWaitedFor { writes: false, .. });
    let uncommitted = store(Instance::store_without_commit);
    assert_found(&uncommitted, "store_without_commit", &lines, is_read);
    let early = store(Instance::store_reused_too_early);
    let report = assert_found(&early, "store_reused_too_early", &lines, is_read);
    assert!(
        report.contains("started the asynchronous operation that still reads them"),
        "{report}"
    );
    let ends = store(Instance::store_ends_early);
    let report = assert_found(&ends, "store_ends_early", &["bulk::store("], |kind| {
        matches!(kind, FaultKind::EndsEarly { writes: false, .. })
    });
    assert!(
        report.contains("`dynamic shared memory` + 0 (of 4096) is freed with the block"),
        "{report}"
    );
    // Its source has been read; what it writes is not there yet.
    let back = store(Instance::store_reads_back);
    let report = assert_found(&back, "store_reads_back", &["out.get(", "bulk::store("], |kind| {
        matches!(kind, FaultKind::NotWaitedFor { writes: true, .. })
    });
    assert!(report.contains("reads 4 bytes at `out` + 252 (of 256)"), "{report}");
}
