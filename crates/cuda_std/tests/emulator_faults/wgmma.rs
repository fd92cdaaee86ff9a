//! `wgmma`: fences, groups and waits that are missing, and operands that change too early.

use cuda_std::E4m3;
use cuda_std::prelude::*;
use cuda_std::wgmma::{
    self, Accumulator, FragmentA, KMajor, MatrixDescriptor, Swizzle, column, row,
};
use half::f16;
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{assert_found, assert_right, geometry, is_deadlock, is_invalid, run};

/// Columns of D, and of each row of A and B: 128 bytes.
const N: u32 = 8;
const K: u32 = 64;
const WORDS: u32 = K / 2;

const NO_FENCE: u32 = 1;
const NO_BARRIER: u32 = 2;
const NO_COMMIT: u32 = 3;
const WAIT_OFF_BY_ONE: u32 = 4;
const OVERWRITTEN: u32 = 5;
const LEFT_OUT: u32 = 6;
const NEVER_WAITED: u32 = 7;

// Of the fragments of A in registers.
const OVERWRITTEN_FRAGMENT: u32 = 8;
const UNFENCED_FRAGMENT: u32 = 9;
const WAIT_IN_THE_LOOP: u32 = 10;

/// What all elements of a row of A or of B are.
fn value(row: u32) -> f16 {
    f16::from_f32((row % 13) as f32)
}

/// `D[i, j] = 64 * value(i) * value(j)`, by the tensor cores.
#[kernel(
    launch_bounds(128),
    target(sm_90a),
    instances(
        product = <NO_FAULT>,
        product_without_fence = <NO_FENCE>,
        product_without_barrier = <NO_BARRIER>,
        product_without_commit = <NO_COMMIT>,
        product_wait_off_by_one = <WAIT_OFF_BY_ONE>,
        product_overwritten = <OVERWRITTEN>,
        product_of_127_threads = <LEFT_OUT>,
        product_never_waited_for = <NEVER_WAITED>
    )
)]
unsafe fn multiply<const FAULT: u32>(out: GlobalMut<f32>) {
    let t = thread::thread_idx_x();
    // SAFETY: 64 rows of A and 8 of B, of 128 bytes; an element of the output each.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        if t < 64 + N {
            let element = u32::from(value(t % 64).to_bits());
            for word in 0..WORDS {
                smem.set(WORDS * t + word, element << 16 | element);
            }
        }
        if FAULT != NO_FENCE {
            fence::proxy_async_shared();
        }
        if FAULT != NO_BARRIER {
            thread::sync_threads();
        }
        if FAULT == LEFT_OUT && t == 77 {
            return;
        }
        let tile = |row: u32| -> MatrixDescriptor<f16, KMajor> {
            MatrixDescriptor::k_major(smem.offset(WORDS * row).cast(), Swizzle::B128)
        };
        let (a, b) = (tile(0), tile(64));
        let mut d = Accumulator::<4>::zero().start();
        for step in 0..K / 16 {
            d.mma(a.advance(32 * step), b.advance(32 * step), step > 0);
        }
        if FAULT != NO_COMMIT {
            wgmma::commit();
        }
        if FAULT == OVERWRITTEN {
            smem.set(t, 0);
        }
        if FAULT == NEVER_WAITED {
            return;
        }
        let mut d = if FAULT == WAIT_OFF_BY_ONE { d.wait::<1>() } else { d.wait::<0>() };
        d.for_each(|i, value| {
            let at = row(t, i as u32) * N + column(t, i as u32);
            out.set(at as usize, *value);
        });
    }
}

#[test]
fn what_a_product_needs() {
    use multiply::Instance;
    let multiply = |instance| {
        run(move |device| {
            let mut geometry = geometry(1, 128);
            geometry.shared_bytes = (64 + N) * 128;
            multiply::Args { out: device.out(64 * N as usize) }.launch(instance, geometry)
        })
    };
    let factor = |row: usize| value(row as u32).to_f32();
    assert_right(&multiply(Instance::product), |i| {
        K as f32 * factor(i / N as usize) * factor(i % N as usize)
    });
    let lines = ["smem.set(", "d.mma("];
    let unfenced = multiply(Instance::product_without_fence);
    let is_unfenced = |kind: &FaultKind| matches!(kind, FaultKind::Unfenced { .. });
    let report = assert_found(&unfenced, "product_without_fence", &lines, is_unfenced);
    assert!(report.contains("reads 16 bytes at `dynamic shared memory` + "), "{report}");
    let unordered = multiply(Instance::product_without_barrier);
    let is_race = |kind: &FaultKind| matches!(kind, FaultKind::Race { .. });
    assert_found(&unordered, "product_without_barrier", &lines, is_race);
    let in_flight = is_invalid("an accumulator is read while a wgmma.mma_async may still write it");
    for (instance, symbol) in [
        (Instance::product_without_commit, "product_without_commit"),
        (Instance::product_wait_off_by_one, "product_wait_off_by_one"),
    ] {
        let report = assert_found(&multiply(instance), symbol, &["d.wait::<"], &in_flight);
        assert!(report.contains("which was started at crates/cuda_std/tests/"), "{report}");
    }
    let overwritten = multiply(Instance::product_overwritten);
    let report = assert_found(&overwritten, "product_overwritten", &lines, |kind| {
        matches!(kind, FaultKind::NotWaitedFor { writes: false, .. })
    });
    assert!(
        report.contains("started the asynchronous operation that still reads them"),
        "{report}"
    );
    let left_out = multiply(Instance::product_of_127_threads);
    let report = assert_found(&left_out, "product_of_127_threads", &["d.mma("], is_deadlock);
    assert!(report.contains("waits in wgmma.mma_async for threads 77 (ended)"), "{report}");
    let never = multiply(Instance::product_never_waited_for);
    assert_found(&never, "product_never_waited_for", &["d.mma("], |kind| {
        matches!(kind, FaultKind::EndsEarly { writes: false, .. })
    });
}

/// The thread's registers of A, whose rows are those of [`multiply()`].
fn fragment(t: u32) -> [u32; 4] {
    [0, 1, 2, 3].map(|i| {
        let element = u32::from(value(row(t, 2 * i)).to_bits());
        element << 16 | element
    })
}

/// [`multiply()`] with A in registers, made while the MMA of the one before is in flight, as the
/// probabilities of attention are.
#[kernel(
    launch_bounds(128),
    target(sm_90a),
    instances(
        product_rs = <NO_FAULT>,
        product_rs_that_waits_in_the_loop = <WAIT_IN_THE_LOOP>,
        product_rs_overwritten = <OVERWRITTEN_FRAGMENT>,
        product_rs_without_fence = <UNFENCED_FRAGMENT>
    )
)]
unsafe fn multiply_rs<const FAULT: u32>(out: GlobalMut<f32>) {
    let t = thread::thread_idx_x();
    // SAFETY: 8 rows of B, of 128 bytes; an element of the output each.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        if t < N {
            let element = u32::from(value(t).to_bits());
            for word in 0..WORDS {
                smem.set(WORDS * t + word, element << 16 | element);
            }
        }
        fence::proxy_async_shared();
        thread::sync_threads();
        let b = MatrixDescriptor::<f16, KMajor>::k_major(smem.cast(), Swizzle::B128);
        let mut a = FragmentA::new(fragment(t));
        let mut d = Accumulator::<4>::zero();
        for step in 0..K / 16 {
            let mut in_flight = d.start();
            if FAULT == UNFENCED_FRAGMENT {
                a = FragmentA::new(fragment(t));
            }
            in_flight.mma_rs(&a, b.advance(32 * step), step > 0);
            wgmma::commit();
            let next = fragment(t);
            if FAULT == OVERWRITTEN_FRAGMENT {
                a = FragmentA::new(next);
            }
            if FAULT == WAIT_IN_THE_LOOP {
                wgmma::wait_group::<0>();
                a = FragmentA::new(next);
            }
            d = in_flight.wait::<0>();
            if FAULT == NO_FAULT {
                a = FragmentA::new(next);
            }
        }
        d.for_each(|i, value| {
            let at = row(t, i as u32) * N + column(t, i as u32);
            out.set(at as usize, *value);
        });
    }
}

#[test]
fn what_a_product_with_a_in_registers_needs() {
    use multiply_rs::Instance;
    let multiply = |instance| {
        run(move |device| {
            let mut geometry = geometry(1, 128);
            geometry.shared_bytes = N * 128;
            multiply_rs::Args { out: device.out(64 * N as usize) }.launch(instance, geometry)
        })
    };
    let factor = |row: usize| value(row as u32).to_f32();
    for right in [Instance::product_rs, Instance::product_rs_that_waits_in_the_loop] {
        assert_right(&multiply(right), |i| {
            K as f32 * factor(i / N as usize) * factor(i % N as usize)
        });
    }
    let is_released = is_invalid("registers of A are released while a wgmma.mma_async may still");
    let overwritten = multiply(Instance::product_rs_overwritten);
    let lines = ["FragmentA::new("];
    let report = assert_found(&overwritten, "product_rs_overwritten", &lines, is_released);
    assert!(report.contains("which was started at crates/cuda_std/tests/"), "{report}");
    let unfenced = multiply(Instance::product_rs_without_fence);
    let is_unfenced = is_invalid("reads registers of A that were written at crates/cuda_std/tests");
    assert_found(&unfenced, "product_rs_without_fence", &["mma_rs("], is_unfenced);
}

/// The elements of one row of A and of B are 1, in f16 and then in e4m3, on one accumulator.
#[kernel(
    launch_bounds(128),
    target(sm_90a),
    instances(product_of_two_shapes = <true>, product_of_two_shapes_without_fence = <false>)
)]
unsafe fn multiply_two_shapes<const FENCE: bool>(out: GlobalMut<f32>) {
    let t = thread::thread_idx_x();
    // SAFETY: 16 rows of 128 bytes; an element of the output each.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        if t < 2 * N {
            // 1 in f16, and in e4m3.
            let ones = if t < N { 0x3c00_3c00 } else { 0x3838_3838 };
            for word in 0..WORDS {
                smem.set(WORDS * t + word, ones);
            }
        }
        fence::proxy_async_shared();
        thread::sync_threads();
        let wide = MatrixDescriptor::<f16, KMajor>::k_major(smem.cast(), Swizzle::B128);
        let narrow = smem.offset(WORDS * N).cast();
        let narrow = MatrixDescriptor::<E4m3, KMajor>::k_major(narrow, Swizzle::B128);
        let wide_a = FragmentA::new([0x3c00_3c00; 4]);
        let narrow_a = FragmentA::new([0x3838_3838; 4]);
        let mut d = Accumulator::<4>::zero().start();
        d.mma_rs(&wide_a, wide, true);
        d.mma_rs(&wide_a, wide, true);
        if FENCE {
            wgmma::fence();
        }
        d.mma_rs(&narrow_a, narrow, true);
        wgmma::commit();
        d.wait::<0>().for_each(|i, value| {
            let at = row(t, i as u32) * N + column(t, i as u32);
            out.set(at as usize, *value);
        });
    }
}

#[test]
fn products_of_two_shapes_need_a_fence() {
    use multiply_two_shapes::Instance;
    let multiply = |instance| {
        run(move |device| {
            let mut geometry = geometry(1, 128);
            geometry.shared_bytes = 2 * N * 128;
            multiply_two_shapes::Args { out: device.out(64 * N as usize) }
                .launch(instance, geometry)
        })
    };
    assert_right(&multiply(Instance::product_of_two_shapes), |_| 64.0);
    let unfenced = multiply(Instance::product_of_two_shapes_without_fence);
    let is_unfenced = is_invalid("k = 32 follows one of k = 16 on the same accumulator");
    let lines = ["mma_rs(&narrow_a"];
    assert_found(&unfenced, "product_of_two_shapes_without_fence", &lines, is_unfenced);
}

/// [`multiply()`] on two accumulators in turn, of which one stays in flight.
#[kernel(launch_bounds(128), target(sm_90a))]
unsafe fn multiply_in_turn(out: GlobalMut<f32>) {
    let t = thread::thread_idx_x();
    // SAFETY: 64 rows of A and 8 of B, of 128 bytes; an element of the output each.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        if t < 64 + N {
            let element = u32::from(value(t % 64).to_bits());
            (0..WORDS).for_each(|word| smem.set(WORDS * t + word, element << 16 | element));
        }
        fence::proxy_async_shared();
        thread::sync_threads();
        let tile = |row: u32, step: u32| -> MatrixDescriptor<f16, KMajor> {
            let tile = smem.offset(WORDS * row).cast();
            MatrixDescriptor::k_major(tile, Swizzle::B128).advance(32 * step)
        };
        let mut sums = [Accumulator::<4>::zero().start(), Accumulator::<4>::zero().start()];
        for step in 0..K / 16 {
            sums[step as usize % 2].mma(tile(0, step), tile(64, step), step > 1);
            wgmma::commit();
            wgmma::wait_group::<1>();
            wgmma::fence();
        }
        let [even, odd] = sums;
        let (even, odd) = (even.wait::<1>().values(), odd.wait::<0>().values());
        for i in 0..4 {
            let at = row(t, i) * N + column(t, i);
            out.set(at as usize, even[i as usize] + odd[i as usize]);
        }
    }
}

#[test]
fn accumulators_in_flight() {
    let runs = run(|device| {
        let mut geometry = geometry(1, 128);
        geometry.shared_bytes = (64 + N) * 128;
        multiply_in_turn::Args { out: device.out(64 * N as usize) }.launch(geometry)
    });
    let factor = |row: usize| value(row as u32).to_f32();
    assert_right(&runs, |i| K as f32 * factor(i / N as usize) * factor(i % N as usize));
}
