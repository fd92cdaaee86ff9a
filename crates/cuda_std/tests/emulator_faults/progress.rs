//! Kernels that never end: registers that no warp releases, flags that no thread sets, endless
//! loops.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use simt::{FaultKind, Memory};

use super::planted::{assert_found, assert_right, geometry, is_deadlock, is_invalid, run};

/// One warpgroup releases registers, so that two others can take more: 240 each are too many.
#[kernel(
    launch_bounds(384),
    target(sm_90a),
    instances(registers_fit = <232>, too_many_registers = <240>, fewer_registers = <160>)
)]
unsafe fn move_registers<const MORE: u32>() {
    if warp::warpgroup_idx() == 0 {
        registers::decrease::<40>();
    } else {
        registers::increase::<MORE>();
    }
}

#[test]
fn registers_that_there_are_not() {
    use move_registers::Instance;
    let moved = |instance| run(move |_| move_registers::Args {}.launch(instance, geometry(1, 384)));
    assert_right(&moved(Instance::registers_fit), |_| unreachable!("there is no output"));
    let increase = ["registers::increase::<MORE>()"];
    let many = moved(Instance::too_many_registers);
    let report = assert_found(&many, "too_many_registers", &increase, is_deadlock);
    assert!(report.contains("waits in setmaxnreg for registers of other warps"), "{report}");
    let fewer = moved(Instance::fewer_registers);
    let why = is_invalid("setmaxnreg of 160 where the thread has 168");
    assert_found(&fewer, "fewer_registers", &increase, why);
}

/// Block 1 waits for a flag that block 0 sets in the correct version; or both poll by a plain load
/// a flag that no thread sets.
#[kernel(
    launch_bounds(32),
    instances(flag = <true, true>, flag_never_set = <true, false>, flag_plain = <false, false>)
)]
unsafe fn wait_for_flag<const ATOMIC: bool, const SET: bool>(flag: GlobalMut<u32>) {
    // SAFETY: one element.
    unsafe {
        if !ATOMIC {
            while flag.get(0) == 0 {}
        } else if thread::block_idx_x() == 1 {
            while flag.load_acquire(0, Scope::Gpu) == 0 {}
        } else if SET && thread::thread_idx_x() == 0 {
            flag.store_release(0, 1, Scope::Gpu);
        }
    }
}

#[test]
fn a_flag_that_nobody_sets() {
    use wait_for_flag::Instance;
    let wait = |instance| {
        run(move |device| {
            wait_for_flag::Args { flag: device.zeros("flag", 1) }.launch(instance, geometry(2, 1))
        })
    };
    assert_right(&wait(Instance::flag), |_| unreachable!("there is no output"));
    let is_livelock = |kind: &FaultKind| matches!(kind, FaultKind::Livelock(_));
    let reads = ["flag.load_acquire(", "flag.get("];
    for (instance, symbol) in
        [(Instance::flag_never_set, "flag_never_set"), (Instance::flag_plain, "flag_plain")]
    {
        let report = assert_found(&wait(instance), symbol, &reads, is_livelock);
        let waits = "polls `flag` + 0 (of 4), which no thread changes";
        assert!(report.contains(waits), "{report}");
    }
}

/// Loops for ever without an access to memory.
#[kernel(
    launch_bounds(32),
    instances(reads_its_index = <ALONE>, votes = <VOTES>, meets_at_a_barrier = <BARRIER>)
)]
unsafe fn loop_for_ever<const HOW: u32>() {
    match HOW {
        ALONE => while thread::thread_idx_x() < 32 {},
        VOTES => while warp::vote_any(warp::FULL_MASK, warp::lane_id() == 3) {},
        _ => loop {
            thread::sync_threads();
        },
    }
}

const ALONE: u32 = 0;
const VOTES: u32 = 1;
const BARRIER: u32 = 2;

#[test]
fn a_loop_that_touches_no_memory() {
    use loop_for_ever::Instance;
    for (instance, symbol, line) in [
        (Instance::reads_its_index, "reads_its_index", "thread_idx_x()"),
        (Instance::votes, "votes", "vote_any("),
        (Instance::meets_at_a_barrier, "meets_at_a_barrier", "sync_threads()"),
    ] {
        // One seed: each takes a second.
        let launch = loop_for_ever::Args {}.launch(instance, geometry(1, 32));
        let runs = [launch.emulate(&mut Memory::new(), 0).map(|_| Vec::new())];
        let is_endless = |kind: &FaultKind| matches!(kind, FaultKind::Endless(_));
        let report = assert_found(&runs, symbol, &[line], is_endless);
        assert!(report.starts_with("endless loop in "), "{report}");
    }
}
