//! Named barriers, register reallocation and programmatic dependent launch, against the PTX ISA's
//! sections `bar`, `setmaxnreg` and `griddepcontrol`.

mod words;

use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;
use simt::{FaultKind, Init, Memory};

fn geometry(num_threads: u32) -> Geometry {
    Geometry { grid: [1, 1, 1], block: [num_threads, 1, 1], shared_bytes: 1024 }
}

/// Warp 0 writes and arrives; warp 1 waits (if `WAITS`) and reads. Warps 2 and 3 synchronise on
/// another barrier meanwhile.
#[kernel(launch_bounds(128), instances(named = <true>, named_without_wait = <false>))]
unsafe fn hand_over<const WAITS: bool>(out: GlobalMut<u32>) {
    // SAFETY: 128 words each.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        let i = thread::thread_idx_x();
        match warp::warp_idx() {
            0 => {
                smem.set(i, 1000 + i);
                barrier::arrive::<1, 64>();
            }
            1 => {
                if WAITS {
                    barrier::sync::<1, 64>();
                }
                out.set((i - 32) as usize, smem.get(63 - i));
            }
            _ => {
                smem.set(i, 2000 + i);
                barrier::sync::<15, 64>();
                out.set((i - 32) as usize, smem.get(191 - i));
            }
        }
    }
}

#[test]
fn named_barriers_order_their_threads() {
    let want: Vec<u32> = (0..32).map(|i| 1031 - i).chain((0..64).map(|i| 2127 - i)).collect();
    for seed in simt::seeds() {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(4 * 96));
        let launch =
            |instance| hand_over::Args { out: DevicePtr::new(out) }.launch(instance, geometry(128));
        launch(hand_over::Instance::named).emulate(&mut memory, seed).unwrap();
        assert_eq!(words::read(&memory, out, 96), want);
        let fault =
            launch(hand_over::Instance::named_without_wait).emulate(&mut memory, seed).unwrap_err();
        let kind = fault.kind;
        assert!(
            matches!(kind, FaultKind::Race { .. } | FaultKind::Uninitialised(_)),
            "seed {seed}: {kind:?}"
        );
    }
}

/// Two warps alternate on one slot: each waits on its own barrier and arrives on the other warp's.
#[kernel(launch_bounds(64))]
unsafe fn ping_pong(out: GlobalMut<u32>) {
    const ROUNDS: u32 = 8;
    // SAFETY: 32 slots, and 64 numbers of the output.
    unsafe {
        let smem: Shared<u32> = dynamic_shared_mem();
        let (lane, warp_idx) = (warp::lane_id(), warp::warp_idx());
        if warp_idx == 1 {
            smem.set(lane, lane);
            barrier::arrive::<1, 64>();
        }
        for round in 0..ROUNDS {
            if warp_idx == 0 {
                barrier::sync::<1, 64>();
                smem.set(lane, 2 * smem.get(lane));
                barrier::arrive::<2, 64>();
            } else {
                barrier::sync::<2, 64>();
                smem.set(lane, smem.get(lane) + 1);
                if round + 1 < ROUNDS {
                    barrier::arrive::<1, 64>();
                }
            }
        }
        if warp_idx == 1 {
            out.set(lane as usize, smem.get(lane));
        }
    }
}

#[test]
fn two_warps_take_turns() {
    let want: Vec<u32> = (0..32).map(|lane| (0..8).fold(lane, |value, _| 2 * value + 1)).collect();
    for seed in simt::seeds() {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(4 * 32));
        let launch = ping_pong::Args { out: DevicePtr::new(out) }.launch(geometry(64));
        launch.emulate(&mut memory, seed).unwrap();
        assert_eq!(words::read(&memory, out, 32), want);
    }
}

/// A producer warpgroup releases registers to two consumer warpgroups; the total remains that of
/// 384 threads with 168 each. Writes the index of each thread of a three-dimensional block.
#[kernel(launch_bounds(384))]
unsafe fn places(out: GlobalMut<u32>) {
    let [x, y, z] = [thread::thread_idx_x(), thread::thread_idx_y(), thread::thread_idx_z()];
    let [dim_x, dim_y, dim_z] =
        [thread::block_dim_x(), thread::block_dim_y(), thread::block_dim_z()];
    let i = (z * dim_y + y) * dim_x + x;
    grid::wait_for_dependencies();
    if i < 128 {
        registers::decrease::<40>();
    } else {
        registers::increase::<232>();
    }
    grid::launch_dependents();
    // SAFETY: one number per thread.
    unsafe { out.set(i as usize, dim_x * 100 + dim_y * 10 + dim_z + 1000 * thread::grid_dim_z()) };
}

#[test]
fn registers_are_reallocated_between_warpgroups() {
    for seed in simt::seeds() {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(4 * 384));
        let geometry = Geometry { grid: [1, 1, 1], block: [96, 2, 2], shared_bytes: 0 };
        let launch = places::Args { out: DevicePtr::new(out) }.launch(geometry);
        launch.emulate(&mut memory, seed).unwrap();
        assert_eq!(words::read(&memory, out, 384), [1000 + 9600 + 20 + 2; 384]);
    }
}
