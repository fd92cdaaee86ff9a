//! Lanes that do not reach an instruction of the warp, or reach another one.

use cuda_std::mma::{FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
use cuda_std::{matrix, warp};
use half::f16;
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{
    assert_found, assert_right, geometry, is_deadlock, is_unordered, run, source_line,
};

const SHUFFLE: u32 = 0;
const VOTE: u32 = 1;
const LDMATRIX: u32 = 2;
const MMA: u32 = 3;

/// Lane 7 of warp 1 leaves before the instruction, if `absent`. Each writes a 1.
#[kernel(
    launch_bounds(64),
    instances(shuffle = <SHUFFLE>, vote = <VOTE>, ldmatrix = <LDMATRIX>, mma = <MMA>)
)]
unsafe fn meet<const HOW: u32>(absent: u32, out: GlobalMut<f32>) {
    let (i, lane) = (thread::thread_idx_x(), warp::lane_id());
    // SAFETY: a row of 16 bytes a lane; 64 elements of the output.
    unsafe {
        let rows: Shared<u32> = dynamic_shared_mem::<u32>().offset(4 * i);
        rows.set_vec(0, [1; 4]);
        warp::sync_warp();
        if i == absent {
            return;
        }
        let one = match HOW {
            SHUFFLE => warp::shuffle_xor(1, 1),
            VOTE => u32::from(warp::vote_all(warp::FULL_MASK, lane < 32)),
            LDMATRIX => matrix::load_x4(rows)[0],
            _ => {
                let a = FragmentA::<f16>::from_words([0; 4]);
                let b = FragmentB::<f16>::from_words([0; 2]);
                m16n8k16(a, b, [1.0; 4])[3] as u32
            }
        };
        out.set(i as usize, one as f32);
    }
}

#[test]
fn a_lane_that_is_left_out() {
    use meet::Instance;
    let all = [
        (Instance::shuffle, "shuffle", "shuffle_xor(", "shfl.sync.bfly.b32"),
        (Instance::vote, "vote", "vote_all(", "vote.sync.all.pred"),
        (Instance::ldmatrix, "ldmatrix", "load_x4(", "ldmatrix.sync.aligned.m8n8.x4.shared.b16"),
        (Instance::mma, "mma", "m16n8k16(", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    ];
    for (instance, symbol, line, instruction) in all {
        let meet = |absent| {
            run(move |device| {
                meet::Args { absent, out: device.out(64) }.launch(instance, geometry(1, 64))
            })
        };
        assert_right(&meet(64), |_| 1.0);
        let report = assert_found(&meet(39), symbol, &[line], is_deadlock);
        let waits = format!("and 30 more: waits in {instruction} for lanes 7 (ended)");
        assert!(report.contains(&waits), "{report}");
    }
}

/// Lane 5 of warp 1 takes the branch with one shuffle; it is paired with the first of the other
/// lanes' two, and their second one waits for it in vain.
#[kernel(launch_bounds(64), instances(one_shuffle = <false>, two_shuffles = <true>))]
unsafe fn shuffle_in_a_branch<const DIVERGES: bool>(out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    let one = if DIVERGES && i == 37 {
        warp::shuffle_xor(1, 2) // the other branch
    } else {
        warp::shuffle_xor(1, 1); // alone
        warp::shuffle_xor(1, 2) // of both
    };
    // SAFETY: 64 elements.
    unsafe { out.set(i as usize, one as f32) };
}

#[test]
fn a_shuffle_that_is_paired_with_another_line() {
    use shuffle_in_a_branch::Instance;
    let shuffle = |instance| {
        run(move |device| {
            shuffle_in_a_branch::Args { out: device.out(64) }.launch(instance, geometry(1, 64))
        })
    };
    assert_right(&shuffle(Instance::one_shuffle), |_| 1.0);
    let runs = shuffle(Instance::two_shuffles);
    assert_found(&runs, "two_shuffles", &["// of both"], is_deadlock);
    for fault in runs.into_iter().map(Result::unwrap_err) {
        let pairing = fault.pairing.as_ref().expect("it says what was paired");
        let lines = [&pairing.first, &pairing.other].map(|party| source_line(&party.location));
        for line in ["// the other branch", "// alone"] {
            assert!(lines.iter().any(|found| found.contains(line)), "{fault}");
        }
        assert!(
            fault.to_string().contains("before that, shfl.sync.bfly.b32 paired two source lines")
        );
    }
}

const MISALIGNED: u32 = 1;
const NOT_WRITTEN: u32 = 2;
const NOT_ORDERED: u32 = 3;

/// Loads a matrix, and stores it with 1 added to each word; lanes that hold no row pass no address.
#[kernel(
    launch_bounds(32),
    target(sm_90a),
    instances(
        rows = <NO_FAULT>,
        rows_misaligned = <MISALIGNED>,
        rows_not_written = <NOT_WRITTEN>,
        rows_not_ordered = <NOT_ORDERED>
    )
)]
unsafe fn add_to_rows<const FAULT: u32>(out: GlobalMut<f32>) {
    let lane = warp::lane_id();
    // SAFETY: 8 rows of 16 bytes, and 16 bytes more; 32 outputs.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        if FAULT != NOT_WRITTEN || lane != 30 {
            smem.set(lane, lane);
        }
        smem.set(32 + lane, 0);
        if FAULT != NOT_ORDERED {
            warp::sync_warp();
        }
        let row = smem.offset(4 * lane + if FAULT == MISALIGNED { 2 } else { 0 });
        let row = if lane < 8 { row } else { Shared::from_address(3) };
        let [word] = matrix::load_x1(row);
        matrix::store_x1(row, [word + 1]);
        warp::sync_warp();
        out.set(lane as usize, smem.get(lane) as f32);
    }
}

#[test]
fn rows_of_a_matrix() {
    use add_to_rows::Instance;
    let add = |instance| {
        run(move |device| {
            add_to_rows::Args { out: device.out(32) }.launch(instance, geometry(1, 32))
        })
    };
    assert_right(&add(Instance::rows), |i| (i + 1) as f32);
    let loads = ["load_x1("];
    assert_found(&add(Instance::rows_misaligned), "rows_misaligned", &loads, |kind| {
        matches!(kind, FaultKind::Misaligned { align: 16, .. })
    });
    assert_found(
        &add(Instance::rows_not_written),
        "rows_not_written",
        &loads,
        |kind| matches!(kind, FaultKind::Uninitialised(access) if access.bytes == 16),
    );
    let lines = ["load_x1(", "smem.set("];
    assert_found(&add(Instance::rows_not_ordered), "rows_not_ordered", &lines, is_unordered);
}

const READS_OUTSIDE: u32 = 1;
const SHUFFLES_FROM_OUTSIDE: u32 = 2;
const VOTES_FROM_OUTSIDE: u32 = 3;
const SYNCS_FROM_OUTSIDE: u32 = 4;
const NO_BARRIER: u32 = 5;

/// The lower lanes read each other's numbers, through memory and by a shuffle of their mask.
#[kernel(
    launch_bounds(64),
    instances(
        masked = <NO_FAULT>,
        reads_outside = <READS_OUTSIDE>,
        shuffles_from_outside = <SHUFFLES_FROM_OUTSIDE>,
        votes_from_outside = <VOTES_FROM_OUTSIDE>,
        syncs_from_outside = <SYNCS_FROM_OUTSIDE>,
        masked_without_barrier = <NO_BARRIER>
    )
)]
unsafe fn exchange<const FAULT: u32>(out: GlobalMut<f32>) {
    const MASK: u32 = 0x0000_ffff;
    let (i, is_lower) = (thread::thread_idx_x(), warp::lane_id() < 16);
    // SAFETY: 64 elements each.
    unsafe {
        let smem = shared_array![f32; 64];
        smem.set(i, i as f32);
        if (is_lower || FAULT == SYNCS_FROM_OUTSIDE) && FAULT != NO_BARRIER {
            warp::sync_lanes(MASK);
        }
        if is_lower || FAULT == VOTES_FROM_OUTSIDE {
            warp::ballot(MASK, true);
        }
        let mut number = smem.get(if is_lower { i ^ 15 } else { i });
        if is_lower || FAULT == SHUFFLES_FROM_OUTSIDE {
            let lane_mask = if FAULT == READS_OUTSIDE { 16 } else { 15 };
            number = warp::shuffle_xor_among(MASK, number, lane_mask);
        }
        out.set(i as usize, number);
    }
}

#[test]
fn lanes_outside_of_a_mask() {
    use exchange::Instance;
    let exchange = |instance| {
        run(move |device| exchange::Args { out: device.out(64) }.launch(instance, geometry(1, 64)))
    };
    assert_right(&exchange(Instance::masked), |i| i as f32);
    for (instance, line, why) in [
        (Instance::reads_outside, "shuffle_xor_among(", "by shfl.sync.bfly.b32, whose mask"),
        (Instance::shuffles_from_outside, "shuffle_xor_among(", "calls shfl.sync.bfly.b32 with"),
        (Instance::votes_from_outside, "ballot(", "calls vote.sync.ballot.b32 with"),
        (Instance::syncs_from_outside, "sync_lanes(", "calls bar.warp.sync with"),
    ] {
        let is_panic = |kind: &FaultKind| {
            let FaultKind::Panic(text) = kind else { return false };
            text.contains(why) && text.contains("the mask 0x0000ffff")
                || text.contains(why) && text.contains("whose mask 0x0000ffff")
        };
        assert_found(&exchange(instance), instance.symbol(), &[line], is_panic);
    }
    let lines = ["smem.set(", "smem.get("];
    let missing = exchange(Instance::masked_without_barrier);
    assert_found(&missing, "masked_without_barrier", &lines, is_unordered);
}
