//! Lanes that do not reach an instruction of the warp, or reach another one.

use cuda_std::mma::{FragmentA, FragmentB, m16n8k16};
use cuda_std::prelude::*;
use cuda_std::{matrix, warp};
use half::f16;

use crate::planted::{assert_found, assert_right, geometry, is_deadlock, run, source_line};

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
