//! `cp.async`: waits that are missing or too weak, and memory that is used too early.

use cuda_std::prelude::*;
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{assert_found, assert_right, geometry, is_deadlock, is_unordered, run};

const THREADS: u32 = 64;

/// Tiles of an element a thread.
const NUM_TILES: u32 = 4;

const NO_WAIT: u32 = 1;
const WAIT_OFF_BY_ONE: u32 = 2;
const NO_BARRIER: u32 = 3;
const NO_RELEASE: u32 = 4;

fn is_not_waited_for(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::NotWaitedFor { writes: true, .. })
}

/// Adds the tiles, each reversed, through two stages: the copy of one tile is in flight while the
/// previous one is read.
#[kernel(
    launch_bounds(THREADS),
    instances(
        two_stages = <NO_FAULT>,
        two_stages_without_wait = <NO_WAIT>,
        two_stages_wait_off_by_one = <WAIT_OFF_BY_ONE>,
        two_stages_without_barrier = <NO_BARRIER>,
        two_stages_reused_too_early = <NO_RELEASE>
    )
)]
unsafe fn sum_tiles_f32<const FAULT: u32>(x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: two stages of 64 elements, four tiles.
    unsafe {
        let smem = dynamic_shared_mem::<f32>();
        let copy = |tile: u32| {
            let (to, from) = (tile % 2 * THREADS + i, (tile * THREADS + i) as usize);
            cp_async::copy(smem, to, x, from, tile < NUM_TILES);
            cp_async::commit();
        };
        copy(0);
        let mut sum = 0.0;
        for tile in 0..NUM_TILES {
            copy(tile + 1);
            match FAULT {
                NO_WAIT => (),
                WAIT_OFF_BY_ONE => cp_async::wait(2),
                _ => cp_async::wait(1),
            }
            if FAULT != NO_BARRIER {
                thread::sync_threads();
            }
            sum += smem.get(tile % 2 * THREADS + THREADS - 1 - i);
            if FAULT != NO_RELEASE {
                thread::sync_threads();
            }
        }
        out.set(i as usize, sum);
    }
}

#[test]
fn copies_through_two_stages() {
    use sum_tiles_f32::Instance;
    let sum = |instance| {
        run(move |device| {
            let (x, out) = (device.numbers("x", 256), device.out(64));
            sum_tiles_f32::Args { x, out }.launch(instance, geometry(1, THREADS))
        })
    };
    assert_right(&sum(Instance::two_stages), |i| {
        (0..NUM_TILES).map(|tile| (tile * THREADS + 63 - i as u32) as f32).sum()
    });
    let lines = ["cp_async::copy(", "smem.get("];
    let missing = sum(Instance::two_stages_without_wait);
    let report = assert_found(&missing, "two_stages_without_wait", &lines, is_not_waited_for);
    assert!(report.contains("asynchronous operation not waited for"), "{report}");
    assert!(
        report.contains("started the asynchronous operation that still writes them"),
        "{report}"
    );
    let weak = sum(Instance::two_stages_wait_off_by_one);
    assert_found(&weak, "two_stages_wait_off_by_one", &lines, is_not_waited_for);
    // A fast thread reads what a slow one has not copied yet, or copies over what it reads.
    let unordered = |kind: &FaultKind| is_unordered(kind) || is_not_waited_for(kind);
    let missing = sum(Instance::two_stages_without_barrier);
    assert_found(&missing, "two_stages_without_barrier", &lines, unordered);
    let early = sum(Instance::two_stages_reused_too_early);
    assert_found(&early, "two_stages_reused_too_early", &lines, unordered);
}

/// Overwrites what an asynchronous copy reads, after its wait or before.
#[kernel(launch_bounds(THREADS), instances(source_kept = <true>, source_overwritten = <false>))]
unsafe fn overwrite_f32<const WAIT: bool>(x: GlobalMut<f32>, x_again: Global<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: 64 elements, the same.
    unsafe {
        cp_async::copy(dynamic_shared_mem(), i, x_again, i as usize, true);
        cp_async::commit();
        // A newer group, which may be pending.
        cp_async::copy(dynamic_shared_mem(), THREADS + i, x_again, i as usize, false);
        cp_async::commit();
        if WAIT {
            cp_async::wait(1);
        }
        x.set(i as usize, 0.0);
    }
}

#[test]
fn a_source_that_is_overwritten() {
    use overwrite_f32::Instance;
    let overwrite = |instance| {
        run(move |device| {
            let x = device.numbers("x", 64);
            overwrite_f32::Args { x, x_again: x }.launch(instance, geometry(1, THREADS))
        })
    };
    assert_right(&overwrite(Instance::source_kept), |_| 0.0);
    let early = overwrite(Instance::source_overwritten);
    let lines = ["cp_async::copy(", "x.set("];
    let report = assert_found(&early, "source_overwritten", &lines, |kind| {
        matches!(kind, FaultKind::NotWaitedFor { writes: false, .. })
    });
    assert!(
        report.contains("started the asynchronous operation that still reads them"),
        "{report}"
    );
}

const ARRIVES_ITSELF: u32 = 1;
const NO_ARRIVAL: u32 = 2;

/// Reverses `x` through copies that an mbarrier waits for.
#[kernel(
    launch_bounds(THREADS),
    instances(
        copies_arrive = <NO_FAULT>,
        copies_do_not_arrive = <ARRIVES_ITSELF>,
        one_does_not_arrive = <NO_ARRIVAL>
    )
)]
unsafe fn copies_arrive_f32<const FAULT: u32>(x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: 64 elements each, and a barrier.
    unsafe {
        let full = Mbarrier::new(shared_array![u64; 1]);
        let smem: Shared<f32> = dynamic_shared_mem();
        if i == 0 {
            full.init(THREADS);
        }
        thread::sync_threads();
        cp_async::copy(smem, i, x, i as usize, true);
        match FAULT {
            ARRIVES_ITSELF => full.arrive(),
            NO_ARRIVAL if i == 7 => (),
            _ => full.arrive_cp_async_noinc(),
        }
        full.wait(0);
        out.set(i as usize, smem.get(63 - i));
    }
}

#[test]
fn copies_that_an_mbarrier_ends() {
    use copies_arrive_f32::Instance;
    let copies = |instance| {
        run(move |device| {
            let (x, out) = (device.numbers("x", 64), device.out(64));
            copies_arrive_f32::Args { x, out }.launch(instance, geometry(1, THREADS))
        })
    };
    assert_right(&copies(Instance::copies_arrive), |i| 63.0 - i as f32);
    let lines = ["cp_async::copy(", "smem.get("];
    let itself = copies(Instance::copies_do_not_arrive);
    assert_found(&itself, "copies_do_not_arrive", &lines, is_not_waited_for);
    let missing = copies(Instance::one_does_not_arrive);
    let report = assert_found(&missing, "one_does_not_arrive", &["full.wait("], is_deadlock);
    assert!(report.contains("with 1 of 64 arrivals and 0 bytes missing"), "{report}");
}

/// Groups of one copy of four elements each.
const GROUPS: u32 = 8;

/// Waits for all but `PENDING` groups; reads those that were waited for, and `TOO_MANY` more.
#[kernel(
    launch_bounds(1),
    instances(
        wait_0 = <0, 0>, wait_1 = <1, 0>, wait_2 = <2, 0>, wait_3 = <3, 0>, wait_4 = <4, 0>,
        wait_5 = <5, 0>, wait_6 = <6, 0>,
        read_1 = <1, 1>, read_2 = <2, 1>, read_3 = <3, 1>, read_4 = <4, 1>, read_5 = <5, 1>,
        read_6 = <6, 1>
    )
)]
unsafe fn read_groups<const PENDING: u32, const TOO_MANY: u32>(
    x: Global<f32>,
    out: GlobalMut<f32>,
) {
    // SAFETY: `GROUPS` times four elements.
    unsafe {
        let smem = dynamic_shared_mem::<f32>();
        for group in 0..GROUPS {
            cp_async::copy_vec::<4, _>(smem, 4 * group, x, 4 * group as usize, true);
            cp_async::commit();
        }
        cp_async::wait(PENDING);
        for group in 0..GROUPS - PENDING + TOO_MANY {
            out.set_vec::<4>(4 * group as usize, smem.get_vec(4 * group));
        }
    }
}

#[test]
fn groups_that_are_pending() {
    for &instance in read_groups::Instance::ALL {
        let runs = run(move |device| {
            let x = device.numbers("x", 4 * GROUPS as usize);
            let out = device.out(4 * (GROUPS - instance.pending()) as usize);
            read_groups::Args { x, out }.launch(instance, geometry(1, 1))
        });
        if instance.too_many() == 0 {
            assert_right(&runs, |i| i as f32);
        } else {
            let lines = ["cp_async::copy_vec::", "smem.get_vec("];
            assert_found(&runs, instance.symbol(), &lines, is_not_waited_for);
        }
    }
}
