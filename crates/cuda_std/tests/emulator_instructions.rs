//! Instructions on the emulator, against their sections of the PTX ISA.

use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;
use simt::{Init, Memory};

/// Writes per thread, block by block: indices in the grid, then results of shuffles.
#[kernel(launch_bounds(64))]
unsafe fn probe(out: GlobalMut<u32>) {
    let i = thread::thread_idx_x();
    let block = (thread::block_idx_z() * thread::grid_dim_y() + thread::block_idx_y())
        * thread::grid_dim_x()
        + thread::block_idx_x();
    let values = [
        block,
        thread::block_dim_x(),
        thread::index_1d(),
        warp::lane_id(),
        warp::warp_idx(),
        warp::shuffle_xor(i, 5),
        warp::shuffle_xor(i as f32, 16) as u32,
        warp::shuffle_idx(i as f32, i / 3) as u32,
        warp::reduce_add(i as f32) as u32,
    ];
    for (at, value) in values.into_iter().enumerate() {
        let row = (block * thread::block_dim_x() + i) as usize;
        // SAFETY: nine numbers per thread.
        unsafe { out.set(row * 9 + at, value) };
    }
}

#[test]
fn registers_and_shuffles() {
    let mut memory = Memory::new();
    let out = memory.alloc("out", Init::Poisoned(12 * 64 * 9 * 4));
    let geometry = Geometry { grid: [2, 3, 2], block: [64, 1, 1], shared_bytes: 0 };
    let report =
        probe::Args { out: DevicePtr::new(out) }.launch(geometry).emulate(&mut memory, 7).unwrap();
    assert_eq!((report.threads, report.accesses), (12 * 64, 12 * 64 * 9));
    let mut bytes = vec![0; 12 * 64 * 9 * 4];
    memory.read(out, &mut bytes).unwrap();
    let (words, _) = bytes.as_chunks::<4>();
    for (row, got) in words.chunks(9).enumerate() {
        let (block, i) = (row as u32 / 64, row as u32 % 64);
        let warp_start = i / 32 * 32;
        let want = [
            block,
            64,
            block % 2 * 64 + i,
            i % 32,
            i / 32,
            i ^ 5,
            i ^ 16,
            warp_start + i / 3 % 32,
            (warp_start..warp_start + 32).sum(),
        ];
        let got: Vec<u32> = got.iter().map(|word| u32::from_le_bytes(*word)).collect();
        assert_eq!(got, want, "thread {i} of block {block}");
    }
}

#[test]
fn arithmetic() {
    // One rounding: a rounded product would lose the last bit.
    let x = 1.0 + f32::EPSILON;
    assert_eq!(math::fma(x, x, -(1.0 + 2.0 * f32::EPSILON)), f32::EPSILON * f32::EPSILON);
    let bits = |value: f32| value.to_bits();
    for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
        assert_eq!(bits(math::max(a, b)), bits(0.0));
        assert_eq!(bits(math::min(a, b)), bits(-0.0));
    }
    for (a, b) in [(1.0, f32::NAN), (f32::NAN, 1.0)] {
        assert_eq!((math::max(a, b), math::min(a, b)), (1.0, 1.0));
    }
    assert_eq!(bits(math::max(-f32::NAN, f32::NAN)), 0x7fff_ffff);
    assert_eq!((math::max(-3.0, 2.0), math::min(-3.0, 2.0)), (2.0, -3.0));
}

#[test]
fn approximate_functions_flush_and_saturate() {
    const SUBNORMAL: f32 = 1e-40;
    let bits = |value: f32| value.to_bits();
    assert_eq!((math::exp2_approx(3.0), math::exp2_approx(-126.0)), (8.0, f32::MIN_POSITIVE));
    assert_eq!(bits(math::exp2_approx(-126.5)), bits(0.0));
    assert_eq!(math::exp2_approx(128.0), f32::INFINITY);
    assert_eq!(math::exp2_approx(f32::NEG_INFINITY), 0.0);
    assert_eq!((math::rcp_approx(4.0), math::rcp_approx(SUBNORMAL)), (0.25, f32::INFINITY));
    assert_eq!(bits(math::rcp_approx(-f32::INFINITY)), bits(-0.0));
    assert_eq!(bits(math::rcp_approx(f32::MAX)), bits(0.0));
    assert_eq!((math::rsqrt_approx(16.0), math::rsqrt_approx(f32::INFINITY)), (0.25, 0.0));
    assert_eq!(math::rsqrt_approx(-SUBNORMAL), f32::NEG_INFINITY);
    assert!(math::rsqrt_approx(-1.0).is_nan() && math::exp2_approx(f32::NAN).is_nan());
}
