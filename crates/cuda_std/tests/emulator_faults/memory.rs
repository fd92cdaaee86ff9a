//! Accesses that are out of bounds, misaligned or of uninitialised memory; and races in global
//! memory.

use cuda_std::launch::DevicePtr;
use cuda_std::prelude::*;
use simt::FaultKind;

use super::planted::{assert_found, assert_right, geometry, run};

const THREADS: u32 = 64;

fn is_out_of_bounds(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::OutOfBounds(_))
}

fn is_uninitialised(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::Uninitialised(_))
}

/// Copies the elements from `shift` on.
#[kernel(launch_bounds(THREADS))]
unsafe fn copy_f32(shift: u32, x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::index_1d();
    // SAFETY: `shift + THREADS` elements.
    unsafe { out.set(i as usize, x.get((shift + i) as usize)) };
}

#[test]
fn out_of_bounds_of_global_memory() {
    let copy = |shift| {
        run(move |device| {
            let (x, out) = (device.numbers("x", 64), device.out(64));
            copy_f32::Args { shift, x, out }.launch(geometry(1, THREADS))
        })
    };
    assert_right(&copy(0), |i| i as f32);
    let report = assert_found(&copy(1), "copy_f32", &["x.get("], is_out_of_bounds);
    assert!(report.contains("thread [63, 0, 0] of block [0, 0, 0]"), "{report}");
    assert!(report.ends_with("reads 4 bytes at `x` + 256 (of 256)"), "{report}");
}

#[test]
fn a_null_pointer() {
    let null = run(|device| {
        copy_f32::Args { shift: 0, x: DevicePtr::null(), out: device.out(1) }.launch(geometry(1, 1))
    });
    let report = assert_found(&null, "copy_f32", &["x.get("], is_out_of_bounds);
    assert!(report.ends_with("reads 4 bytes at a null pointer"), "{report}");
}

#[test]
fn global_memory_that_nothing_has_written() {
    let unwritten = run(|device| {
        let (x, out) = (device.out(64), device.numbers("x", 64));
        copy_f32::Args { shift: 0, x, out }.launch(geometry(1, THREADS))
    });
    let report = assert_found(&unwritten, "copy_f32", &["x.get("], is_uninitialised);
    assert!(report.contains("reads 4 bytes at `out` + "), "{report}");
}

/// Each thread writes an element of shared memory, and reads the one `shift` elements on.
#[kernel(launch_bounds(THREADS))]
unsafe fn through_shared_f32(shift: u32, out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: 64 elements, and `shift` more.
    unsafe {
        let smem = shared_array![f32; THREADS as usize];
        smem.set(i, i as f32);
        thread::sync_threads();
        out.set(i as usize, smem.get(i + shift));
    }
}

#[test]
fn out_of_bounds_of_shared_memory() {
    let copy = |shift| {
        run(move |device| {
            through_shared_f32::Args { shift, out: device.out(64) }.launch(geometry(1, THREADS))
        })
    };
    assert_right(&copy(0), |i| i as f32);
    let report = assert_found(&copy(1), "through_shared_f32", &["smem.get("], is_out_of_bounds);
    assert!(report.contains("thread [63, 0, 0] of block [0, 0, 0]"), "{report}");
    assert!(
        report.contains("reads 4 bytes at `shared array of crates/cuda_std/tests/"),
        "{report}"
    );
    assert!(report.ends_with(" + 256 (of 256)"), "{report}");
}

/// Thread 5 reads four elements at once from `first` on, of `x` or of shared memory.
#[kernel(launch_bounds(THREADS), instances(global_v4 = <false>, shared_v4 = <true>))]
unsafe fn read_v4_f32<const SHARED: bool>(first: u32, x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: `first + 4` elements.
    unsafe {
        let smem = dynamic_shared_mem::<f32>();
        smem.set(i, x.get(i as usize));
        thread::sync_threads();
        if i == 5 {
            let values =
                if SHARED { smem.get_vec::<4>(first) } else { x.get_vec::<4>(first as usize) };
            out.set(0, values[3]);
        }
    }
}

#[test]
fn misaligned_accesses() {
    use read_v4_f32::Instance;
    let read = |instance, first| {
        run(move |device| {
            let (x, out) = (device.numbers("x", 64), device.out(1));
            read_v4_f32::Args { first, x, out }.launch(instance, geometry(1, THREADS))
        })
    };
    let is_misaligned = |kind: &FaultKind| matches!(kind, FaultKind::Misaligned { align: 16, .. });
    for (instance, symbol, buffer) in [
        (Instance::global_v4, "global_v4", "`x` + 8 (of 256)"),
        (Instance::shared_v4, "shared_v4", "`dynamic shared memory` + 8 (of 4096)"),
    ] {
        assert_right(&read(instance, 4), |_| 7.0);
        let report =
            assert_found(&read(instance, 2), symbol, &[".get_vec::<4>(first"], is_misaligned);
        assert!(report.contains("thread [5, 0, 0] of block [0, 0, 0]"), "{report}");
        assert!(report.contains(&format!("reads 16 bytes at {buffer}")), "{report}");
    }
}

/// Reads an element of shared memory that only the correct version writes.
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
fn shared_memory_that_nothing_has_written() {
    use read_shared_f32::Instance;
    let read = |instance| {
        run(move |device| {
            read_shared_f32::Args { out: device.out(64) }.launch(instance, geometry(1, THREADS))
        })
    };
    assert_right(&read(Instance::filled), |_| 1.0);
    let report =
        assert_found(&read(Instance::unfilled), "unfilled", &["smem.get("], is_uninitialised);
    assert!(report.ends_with("reads 4 bytes at `dynamic shared memory` + 252 (of 4096)"));
}

/// Each block writes an element of its own, or all blocks the same one.
#[kernel(launch_bounds(THREADS))]
unsafe fn write_f32(stride: u32, out: GlobalMut<f32>) {
    if thread::thread_idx_x() == 0 {
        let to = thread::block_idx_x() * stride;
        // SAFETY: two elements.
        unsafe { out.set(to as usize, 1.0) };
    }
}

#[test]
fn blocks_that_write_the_same_element() {
    let write = |stride| {
        run(move |device| {
            write_f32::Args { stride, out: device.out(2) }.launch(geometry(2, THREADS))
        })
    };
    assert_right(&write(1), |_| 1.0);
    let is_race = |kind: &FaultKind| matches!(kind, FaultKind::Race { other_writes: true, .. });
    let report = assert_found(&write(0), "write_f32", &["out.set("], is_race);
    assert!(report.contains("writes 4 bytes at `out` + 0 (of 8)"), "{report}");
    assert!(report.contains("block [0, 0, 0]") && report.contains("block [1, 0, 0]"), "{report}");
}
