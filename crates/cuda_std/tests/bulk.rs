//! Bulk copies and bulk groups.

mod words;

use cuda_std::bulk::CacheHint;
use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;
use simt::{Init, Memory};

/// Threads of a block.
const THREADS: u32 = 32;

fn geometry() -> Geometry {
    Geometry { grid: [1, 1, 1], block: [THREADS, 1, 1], shared_bytes: 32 << 10 }
}

/// Copies `bytes` of `x` to shared memory, 1,024 words initialised to 7, and all of these words to
/// `out`.
#[kernel(launch_bounds(THREADS))]
unsafe fn load_bytes(bytes: u32, x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: `bytes` of `x` from word 4 on, to word 8 of 1,024; one barrier.
    unsafe {
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        let smem: Shared<u32> = dynamic_shared_mem();
        let lane = warp::lane_id();
        for row in 0..32 {
            smem.set(32 * row + lane, 7);
        }
        if lane == 0 {
            barrier.init(1);
            fence::mbarrier_init();
        }
        fence::proxy_async_shared();
        thread::sync_threads();
        if lane == 0 {
            barrier.arrive_expect_tx(bytes);
            bulk::load(smem.offset(8), x.wrapping_add(4), bytes, barrier, CacheHint::EvictNormal);
        }
        barrier.wait(0);
        for row in 0..32 {
            out.set((32 * row + lane) as usize, smem.get(32 * row + lane));
        }
    }
}

#[test]
fn a_bulk_load_writes_only_its_bytes() {
    for len in [4, 8, 252, 1016] {
        for seed in simt::seeds() {
            let mut memory = Memory::new();
            let x: Vec<u32> = (0..4 + len as u32).map(|i| 1_000_000 + i).collect();
            let from = DevicePtr::new(words::alloc(&mut memory, "x", &x));
            let out = memory.alloc("out", Init::Poisoned(4096));
            let launch =
                load_bytes::Args { bytes: 4 * len as u32, x: from, out: DevicePtr::new(out) }
                    .launch(geometry());
            launch.emulate(&mut memory, seed).unwrap();
            let mut want = [7; 1024];
            want[8..8 + len].copy_from_slice(&x[4..]);
            assert_eq!(words::read(&memory, out, 1024), want, "{len} words");
        }
    }
}

/// Stores three rows of 32 words in separate groups, the second while the first may be pending, the
/// third from the source of the first; then adds up `out`.
#[kernel(launch_bounds(THREADS))]
unsafe fn store_rows(out: GlobalMut<u32>, sum: GlobalMut<u32>) {
    // SAFETY: 32 words per row, three rows of `out`.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        let lane = warp::lane_id();
        for row in 0..3 {
            let src = smem.offset(32 * (row % 2));
            if row == 2 {
                // The second row's group may still be read.
                if lane == 0 {
                    bulk::wait_group_read::<1>();
                }
                thread::sync_threads();
            }
            src.set(lane, 100 * row + lane);
            fence::proxy_async_shared();
            thread::sync_threads();
            if lane == 0 {
                bulk::store(out.add(32 * row as usize), src, 128);
                bulk::commit_group();
            }
        }
        if lane == 0 {
            bulk::wait_group::<2>();
            let first: u32 = (0..32).map(|i| out.get(i)).sum();
            bulk::wait_group::<0>();
            let others: u32 = (32..96).map(|i| out.get(i)).sum();
            sum.set(0, first);
            sum.set(1, others);
        }
    }
}

#[test]
fn groups_of_bulk_stores_are_waited_for() {
    let want: Vec<u32> = (0..3).flat_map(|row| (0..32).map(move |i| 100 * row + i)).collect();
    for seed in simt::seeds() {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(4 * 96));
        let sum = memory.alloc("sum", Init::Poisoned(8));
        let launch = store_rows::Args { out: DevicePtr::new(out), sum: DevicePtr::new(sum) }
            .launch(geometry());
        launch.emulate(&mut memory, seed).unwrap();
        assert_eq!(words::read(&memory, out, 96), want);
        let sums = [want[..32].iter().sum(), want[32..].iter().sum::<u32>()];
        assert_eq!(words::read(&memory, sum, 2), sums);
    }
}
