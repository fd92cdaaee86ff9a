//! Launches that no device takes, and panics: both are errors, and the test process goes on.

use cuda_std::launch::{Geometry, Launch};
use cuda_std::prelude::*;
use simt::{FaultKind, Memory};

use super::NO_FAULT;
use super::planted::{assert_found, assert_right, geometry, run};

#[kernel(launch_bounds(64))]
unsafe fn nothing() {}

#[kernel(launch_bounds(64), target(sm_90a), cluster(2, 1, 1))]
unsafe fn nothing_in_pairs() {}

/// The report of a launch that is refused.
#[track_caller]
fn refused(launch: Launch) -> String {
    let fault = launch.emulate(&mut Memory::new(), 0).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Launch(_)), "{fault}");
    fault.to_string()
}

#[test]
fn shapes_that_no_device_takes() {
    let right = geometry(2, 64);
    for launch in [nothing::Args {}.launch(right), nothing_in_pairs::Args {}.launch(right)] {
        launch.emulate(&mut Memory::new(), 0).unwrap();
    }
    let launch = |wrong: Geometry| refused(nothing::Args {}.launch(wrong));
    let report = launch(Geometry { grid: [1 << 31, 1, 1], ..right });
    assert!(report.starts_with("invalid launch in `nothing`: a grid of [2147483648, 1, 1]"));
    launch(Geometry { grid: [1, 65_536, 1], ..right });
    launch(Geometry { grid: [1, 0, 1], ..right });
    launch(Geometry { block: [1024, 2, 1], ..right });
    launch(Geometry { block: [1, 1, 65], ..right });
    // Over the kernel's own launch bound.
    let report = launch(Geometry { block: [8, 3, 3], ..right });
    let why =
        "`nothing` is compiled for at most 64, launch smaller blocks or raise its launch_bounds";
    assert!(report.ends_with(why), "{report}");
    let report = launch(Geometry { shared_bytes: 227 * 1024 + 1, ..right });
    let why = "232449 bytes of shared memory: a block has at most 232448";
    assert!(report.ends_with(why), "{report}");
    let report = refused(nothing_in_pairs::Args {}.launch(Geometry { grid: [3, 1, 1], ..right }));
    let why = "a grid of [3, 1, 1] blocks is no multiple of the kernel's clusters of [2, 1, 1]";
    assert!(report.ends_with(why), "{report}");
    let mut many = nothing::Args {}.launch(right);
    many.cluster = [u32::MAX; 3];
    assert!(refused(many).contains("a cluster of "));
}

/// Declares more static shared memory than a block has.
#[kernel(launch_bounds(64))]
unsafe fn large_array() {
    // SAFETY: it is not accessed.
    unsafe { shared_array![f32; 64 << 10] };
}

#[test]
fn static_shared_memory_over_the_limit() {
    let report = refused(large_array::Args {}.launch(geometry(1, 64)));
    assert!(
        report.contains(
            "the shared array of 262144 bytes at crates/cuda_std/tests/emulator_faults/launches.rs:"
        ),
        "{report}"
    );
}

/// Indexes an array by an argument.
#[kernel(launch_bounds(64))]
unsafe fn index(at: u32, out: GlobalMut<f32>) {
    if thread::thread_idx_x() == 9 {
        // SAFETY: an element.
        unsafe { out.set(0, [0.0, 1.0, 2.0][at as usize]) };
    }
}

#[test]
fn a_panic() {
    let index =
        |at| run(move |device| index::Args { at, out: device.out(1) }.launch(geometry(1, 64)));
    assert_right(&index(2), |_| 2.0);
    let is_panic = |kind: &FaultKind| matches!(kind, FaultKind::Panic(_));
    let report = assert_found(&index(3), "index", &["[at as usize]"], is_panic);
    assert!(report.contains("thread [9, 0, 0]"), "{report}");
    assert!(report.ends_with("the len is 3 but the index is 3"), "{report}");
}

#[test]
#[should_panic(expected = "outside of a launch")]
fn an_instruction_outside_of_a_launch() {
    thread::sync_threads();
}

/// `out[i] = x[63 - i]`, in a launch that overlaps with the one that wrote `x`.
#[kernel(
    launch_bounds(64),
    overlaps,
    instances(
        reverse = <NO_FAULT>,
        reverse_before_the_wait = <READS_EARLY>,
        reverse_without_wait = <NEVER_WAITS>
    )
)]
unsafe fn reverse_f32<const FAULT: u32>(x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::thread_idx_x() as usize;
    grid::launch_dependents();
    // SAFETY: the launch gives 64 elements each.
    unsafe {
        if FAULT == READS_EARLY {
            out.set(i, x.get(63 - i)); // planted
            grid::wait_for_dependencies();
        }
        if FAULT == NO_FAULT {
            grid::wait_for_dependencies();
            out.set(i, x.get(63 - i));
        }
    }
}

const READS_EARLY: u32 = 1;
const NEVER_WAITS: u32 = 2;

#[test]
fn launches_that_overlap() {
    let run = |instance| {
        run(move |device| {
            let x = device.numbers("x", 64);
            device.overlap(&[x.0]);
            reverse_f32::Args { x, out: device.out(64) }.launch(instance, geometry(1, 64))
        })
    };
    use reverse_f32::Instance;
    assert_right(&run(Instance::reverse), |i| (63 - i) as f32);
    let runs = run(Instance::reverse_before_the_wait);
    let is_early = |kind: &FaultKind| matches!(kind, FaultKind::Dependency { writes: true, .. });
    let report = assert_found(&runs, "reverse_before_the_wait", &["// planted"], is_early);
    assert!(report.starts_with("missing griddepcontrol.wait in "), "{report}");
    for run in run(Instance::reverse_without_wait) {
        let fault = run.unwrap_err();
        assert_eq!(fault.kind, FaultKind::NeverWaits);
        let report = fault.to_string();
        assert!(report.contains("at its end: no thread of the block has waited"), "{report}");
    }
}
