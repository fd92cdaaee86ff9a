//! Planted faults: for each kind a kernel in a right version and in one with exactly that fault. The
//! emulator finds the fault under every seed, and nothing in the right version.

use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::prelude::*;
use simt::{Fault, FaultKind, Init, Memory};

/// Threads of a block.
const THREADS: u32 = 64;

fn geometry(blocks: u32) -> Geometry {
    Geometry { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 1024 }
}

/// Runs `launch` of 64 floats `x` and an output of as many under every seed.
fn run_all(launch: impl Fn(DevicePtr<f32>, DevicePtr<f32>) -> Launch) -> Vec<Result<(), Fault>> {
    let run = |seed| {
        let mut memory = Memory::new();
        let x: Vec<u8> = (0..THREADS).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let x = memory.alloc("x", Init::Bytes(&x));
        let out = memory.alloc("out", Init::Poisoned(4 * THREADS as usize));
        launch(DevicePtr::new(x), DevicePtr::new(out)).emulate(&mut memory, seed).map(|_| ())
    };
    simt::seeds().map(run).collect()
}

/// The right version passes under every seed.
#[track_caller]
fn assert_right(results: Vec<Result<(), Fault>>) {
    for (seed, result) in results.into_iter().enumerate() {
        if let Err(fault) = result {
            panic!("seed {seed}: {fault}");
        }
    }
}

/// The wrong version fails as it must under every seed; gives the report of the first.
#[track_caller]
fn assert_wrong(results: Vec<Result<(), Fault>>, is_right_kind: impl Fn(&Fault) -> bool) -> String {
    for (seed, result) in results.iter().enumerate() {
        match result {
            Ok(()) => panic!("seed {seed}: the fault was not found"),
            Err(fault) => assert!(is_right_kind(fault), "seed {seed}: {fault}"),
        }
    }
    results[0].as_ref().unwrap_err().to_string()
}

/// Turns `x` around through shared memory.
#[kernel(launch_bounds(THREADS), instances(reverse = <true>, reverse_without_barrier = <false>))]
unsafe fn reverse_f32<const BARRIER: bool>(x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: 64 elements each.
    unsafe {
        let smem = shared_array![f32; THREADS as usize];
        smem.set(i, x.get(i as usize));
        if BARRIER {
            thread::sync_threads();
        }
        out.set(i as usize, smem.get(THREADS - 1 - i));
    }
}

#[test]
fn a_missing_barrier_is_found() {
    use reverse_f32::Instance;
    let run = |instance| run_all(|x, out| reverse_f32::launch(instance, geometry(1), x, out));
    assert_right(run(Instance::reverse));
    let report = assert_wrong(run(Instance::reverse_without_barrier), |fault| {
        // Whoever reads before the other one has written finds nothing there.
        matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Uninitialised(_))
    });
    assert!(report.contains("`reverse_without_barrier`"), "{report}");
    assert!(report.contains("tests/emulator_faults.rs:"), "{report}");
}

/// Copies `len` elements.
#[kernel(launch_bounds(THREADS))]
unsafe fn copy_f32(len: u32, shift: u32, x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::index_1d();
    if i < len {
        // SAFETY: `shift + len` elements.
        unsafe { out.set(i as usize, x.get((shift + i) as usize)) };
    }
}

#[test]
fn an_access_out_of_bounds_is_found() {
    assert_right(run_all(|x, out| copy_f32::launch(geometry(2), 64, 0, x, out)));
    let report =
        assert_wrong(run_all(|x, out| copy_f32::launch(geometry(2), 64, 1, x, out)), |fault| {
            matches!(fault.kind, FaultKind::OutOfBounds(_))
        });
    assert!(report.contains("thread [63, 0, 0] of block [0, 0, 0]"), "{report}");
    assert!(report.ends_with("reads 4 bytes at `x` + 256 (of 256)"), "{report}");
    let null = run_all(|_, out| copy_f32::launch(geometry(1), 1, 0, DevicePtr::null(), out));
    let report = assert_wrong(null, |fault| matches!(fault.kind, FaultKind::OutOfBounds(_)));
    assert!(report.ends_with("reads 4 bytes at a null pointer"), "{report}");
}

/// Reads four elements from `first` on.
#[kernel(launch_bounds(THREADS))]
unsafe fn read_v4_f32(first: u32, x: Global<f32>, out: GlobalMut<f32>) {
    if thread::thread_idx_x() == 5 {
        // SAFETY: `first + 4` elements.
        unsafe { out.set(0, x.get_vec::<4>(first as usize)[3]) };
    }
}

#[test]
fn a_misaligned_access_is_found() {
    assert_right(run_all(|x, out| read_v4_f32::launch(geometry(1), 4, x, out)));
    let report =
        assert_wrong(run_all(|x, out| read_v4_f32::launch(geometry(1), 2, x, out)), |fault| {
            matches!(fault.kind, FaultKind::Misaligned { align: 16, .. })
        });
    assert!(report.contains("reads 16 bytes at `x` + 8"), "{report}");
}

/// Reads an element of shared memory that only the right version writes.
#[kernel(launch_bounds(THREADS), instances(filled = <true>, unfilled = <false>))]
unsafe fn read_shared_f32<const FILL: bool>(out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: 64 elements.
    unsafe {
        let smem = dynamic_shared_mem::<f32>();
        if FILL || i != 63 {
            smem.set(i, 1.0);
        }
        out.set(i as usize, smem.get(i));
    }
}

#[test]
fn an_uninitialised_read_is_found() {
    use read_shared_f32::Instance;
    let run = |instance| run_all(|_, out| read_shared_f32::launch(instance, geometry(1), out));
    assert_right(run(Instance::filled));
    let report = assert_wrong(run(Instance::unfilled), |fault| {
        matches!(fault.kind, FaultKind::Uninitialised(_))
    });
    assert!(
        report.ends_with("reads 4 bytes at `dynamic shared memory` + 252 (of 1024)"),
        "{report}"
    );
    // The output is written by nobody before.
    let global = run_all(|x, out| copy_f32::launch(geometry(1), 1, 0, out, x));
    assert_wrong(global, |fault| matches!(fault.kind, FaultKind::Uninitialised(_)));
}

/// Each block writes its element, or all the same.
#[kernel(launch_bounds(THREADS))]
unsafe fn write_f32(stride: u32, out: GlobalMut<f32>) {
    if thread::thread_idx_x() == 0 {
        let to = thread::block_idx_x() * stride;
        // SAFETY: two elements.
        unsafe { out.set(to as usize, 1.0) };
    }
}

#[test]
fn a_race_through_global_memory_is_found() {
    assert_right(run_all(|_, out| write_f32::launch(geometry(2), 1, out)));
    let report = assert_wrong(run_all(|_, out| write_f32::launch(geometry(2), 0, out)), |fault| {
        matches!(fault.kind, FaultKind::Race { other_writes: true, .. })
    });
    assert!(report.contains("writes 4 bytes at `out` + 0"), "{report}");
    assert!(report.contains("block [0, 0, 0]") && report.contains("block [1, 0, 0]"), "{report}");
}

/// Lane 0 writes what the others read behind a warp's barrier, or behind a shuffle.
#[kernel(launch_bounds(THREADS), instances(warp_barrier = <true>, shuffle_alone = <false>))]
unsafe fn warp_sync_f32<const SYNC_WARP: bool>(out: GlobalMut<f32>) {
    let (i, warp_idx) = (thread::thread_idx_x(), warp::warp_idx());
    // SAFETY: two elements and 64.
    unsafe {
        let smem = shared_array![f32; 2];
        if warp::lane_id() == 0 {
            smem.set(warp_idx, 1.0);
        }
        if SYNC_WARP {
            warp::sync_warp();
        } else {
            warp::shuffle_xor(i, 1);
        }
        out.set(i as usize, smem.get(warp_idx));
    }
}

#[test]
fn a_shuffle_orders_no_memory() {
    use warp_sync_f32::Instance;
    let run = |instance| run_all(|_, out| warp_sync_f32::launch(instance, geometry(1), out));
    assert_right(run(Instance::warp_barrier));
    assert_wrong(run(Instance::shuffle_alone), |fault| {
        matches!(fault.kind, FaultKind::Race { other_writes: true, .. })
    });
}

/// Lane 39 leaves before the shuffle, if it is to.
#[kernel(launch_bounds(THREADS))]
unsafe fn shuffle_f32(absent: u32, x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    if i == absent {
        return;
    }
    // SAFETY: 64 elements each.
    unsafe { out.set(i as usize, warp::reduce_add(x.get(i as usize))) };
}

#[test]
fn a_lane_left_out_of_a_shuffle_is_found() {
    assert_right(run_all(|x, out| shuffle_f32::launch(geometry(1), u32::MAX, x, out)));
    let report =
        assert_wrong(run_all(|x, out| shuffle_f32::launch(geometry(1), 39, x, out)), |fault| {
            matches!(fault.kind, FaultKind::Deadlock(_))
        });
    assert!(
        report.contains("and 30 more: waits in shfl.sync.bfly.b32 for lanes 7 (ended)"),
        "{report}"
    );
}

/// Thread 3 waits for its warp where the others wait for the block, if it is to.
#[kernel(launch_bounds(THREADS))]
unsafe fn barrier(astray: u32) {
    if thread::thread_idx_x() == astray {
        warp::sync_warp();
    } else {
        thread::sync_threads();
    }
}

#[test]
fn a_barrier_that_a_thread_never_reaches_is_found() {
    assert_right(run_all(|_, _| barrier::launch(geometry(3), u32::MAX)));
    let report = assert_wrong(run_all(|_, _| barrier::launch(geometry(1), 3)), |fault| {
        matches!(fault.kind, FaultKind::Deadlock(_))
    });
    assert!(report.contains("thread [3, 0, 0] of block [0, 0, 0]"), "{report}");
    assert!(report.contains("waits at bar.sync 0, which 63 of the 64 threads"), "{report}");
}

/// Turns `x` around in two rounds through one stage that is filled by asynchronous copies.
#[kernel(
    launch_bounds(THREADS),
    instances(
        async_copy = <true, true, true>,
        async_copy_without_wait = <false, true, true>,
        async_copy_without_barrier = <true, false, true>,
        async_copy_reused_too_early = <true, true, false>
    )
)]
unsafe fn async_copy_f32<const WAIT: bool, const BARRIER: bool, const RELEASE: bool>(
    x: Global<f32>,
    out: GlobalMut<f32>,
) {
    let i = thread::thread_idx_x();
    // SAFETY: 64 elements each.
    unsafe {
        let smem = dynamic_shared_mem::<f32>();
        let mut sum = 0.0;
        for _ in 0..2 {
            cp_async::copy(smem, i, x, i as usize, true);
            cp_async::commit();
            if WAIT {
                cp_async::wait(0);
            }
            if BARRIER {
                thread::sync_threads();
            }
            sum += smem.get(THREADS - 1 - i);
            if RELEASE {
                thread::sync_threads();
            }
        }
        out.set(i as usize, sum);
    }
}

#[test]
fn an_asynchronous_copy_that_is_not_waited_for_is_found() {
    use async_copy_f32::Instance;
    let run = |instance| run_all(|x, out| async_copy_f32::launch(instance, geometry(1), x, out));
    assert_right(run(Instance::async_copy));
    let report = assert_wrong(run(Instance::async_copy_without_wait), |fault| {
        matches!(fault.kind, FaultKind::NotWaitedFor { writes: true, .. })
    });
    assert!(report.contains("asynchronous operation not waited for"), "{report}");
    assert_wrong(run(Instance::async_copy_without_barrier), |fault| {
        matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Uninitialised(_))
    });
    // A fast thread overwrites what a slow one still reads, or reads what a fast one overwrites.
    assert_wrong(run(Instance::async_copy_reused_too_early), |fault| {
        matches!(fault.kind, FaultKind::Race { .. } | FaultKind::NotWaitedFor { .. })
    });
}

/// Overwrites what an asynchronous copy reads, behind its wait or before.
#[kernel(launch_bounds(THREADS), instances(source_kept = <true>, source_overwritten = <false>))]
unsafe fn async_source_f32<const WAIT: bool>(x: GlobalMut<f32>, x_again: Global<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: 64 elements, the same.
    unsafe {
        cp_async::copy(dynamic_shared_mem(), i, x_again, i as usize, true);
        cp_async::commit();
        // A newer group, that may be under way.
        cp_async::copy(dynamic_shared_mem(), THREADS + i, x_again, i as usize, false);
        cp_async::commit();
        if WAIT {
            cp_async::wait(1);
        }
        x.set(i as usize, 0.0);
    }
}

#[test]
fn a_source_of_an_asynchronous_copy_overwritten_too_early_is_found() {
    use async_source_f32::Instance;
    let run = |instance| run_all(|x, _| async_source_f32::launch(instance, geometry(1), x, x));
    assert_right(run(Instance::source_kept));
    assert_wrong(run(Instance::source_overwritten), |fault| {
        matches!(fault.kind, FaultKind::NotWaitedFor { writes: false, .. })
    });
}

/// Indexes an array by an argument.
#[kernel(launch_bounds(THREADS))]
unsafe fn index(at: u32, out: GlobalMut<f32>) {
    if thread::thread_idx_x() == 9 {
        // SAFETY: 64 elements.
        unsafe { out.set(0, [0.0, 1.0, 2.0][at as usize]) };
    }
}

#[test]
fn a_panic_is_a_fault() {
    assert_right(run_all(|_, out| index::launch(geometry(1), 2, out)));
    let report = assert_wrong(run_all(|_, out| index::launch(geometry(1), 3, out)), |fault| {
        matches!(fault.kind, FaultKind::Panic(_))
    });
    assert!(report.contains("thread [9, 0, 0]"), "{report}");
    assert!(report.contains("tests/emulator_faults.rs:"), "{report}");
    assert!(report.ends_with("the len is 3 but the index is 3"), "{report}");
}

#[test]
fn what_a_device_refuses_is_a_fault() {
    let refused = |geometry: Geometry| {
        let fault = barrier::launch(geometry, 99).emulate(&mut Memory::new(), 0).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Launch(_)), "{fault}");
        fault.to_string()
    };
    let right = geometry(1);
    let report = refused(Geometry { grid: [1 << 31, 1, 1], ..right });
    assert!(report.contains("a grid of [2147483648, 1, 1]"), "{report}");
    refused(Geometry { grid: [1, 65_536, 1], ..right });
    refused(Geometry { grid: [1, 0, 1], ..right });
    refused(Geometry { block: [1024, 2, 1], ..right });
    refused(Geometry { block: [1, 1, 65], ..right });
    let report = refused(Geometry { shared_bytes: 227 * 1024 + 1, ..right });
    assert!(
        report.ends_with("232449 bytes of shared memory: a block has at most 232448"),
        "{report}"
    );
}

#[test]
#[should_panic(expected = "outside of a launch")]
fn an_instruction_outside_of_a_launch_panics() {
    thread::sync_threads();
}
