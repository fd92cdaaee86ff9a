//! The scheduler, the order of memory accesses, and memory itself, by kernels written as closures.

use simt::{Fault, FaultKind, Geometry, Init, Kernel, Memory, Report, Space, device};
use std::sync::{Arc, Mutex};

const KERNEL: Kernel = Kernel { symbol: "test", max_threads: 1024, cluster: [1; 3] };

fn run(
    (blocks, threads): (u32, u32),
    memory: &mut Memory,
    seed: u64,
    body: impl Fn() + Send + Sync + 'static,
) -> Result<Report, Fault> {
    let geometry = Geometry { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 256 };
    simt::emulate(KERNEL, geometry, Arc::new(body), memory, seed)
}

/// Runs two warps under every seed; gives the kinds of the faults.
fn faults(body: impl Fn(usize) + Copy + Send + Sync + 'static) -> Vec<Option<FaultKind>> {
    let one = |seed| {
        let body = move || body(device::thread_idx()[0] as usize);
        run((1, 64), &mut Memory::new(), seed, body).err().map(|fault| fault.kind)
    };
    simt::seeds().map(one).collect()
}

fn is_race(kind: &Option<FaultKind>) -> bool {
    matches!(kind, Some(FaultKind::Race { .. }))
}

/// One byte of dynamic shared memory.
fn set(offset: u32, value: u8) {
    device::store(Space::Shared, u64::from(device::dynamic_shared() + offset), 1, &[value]);
}

fn get(offset: u32) -> u8 {
    let mut byte = [0];
    device::load(Space::Shared, u64::from(device::dynamic_shared() + offset), 1, &mut byte);
    byte[0]
}

#[test]
fn bytes_of_a_word_are_apart() {
    let own = faults(|i| set(i as u32, 1));
    assert!(own.iter().all(Option::is_none), "{own:?}");
    let shared = faults(|i| set(i as u32 / 2, 1));
    assert!(shared.iter().all(is_race), "{shared:?}");
}

#[test]
fn a_word_and_its_bytes_are_the_same_memory() {
    let overlapping = faults(|i| match i {
        0 => set(2, 1),
        1 => device::store(Space::Shared, u64::from(device::dynamic_shared()), 4, &[1; 4]),
        _ => (),
    });
    assert!(overlapping.iter().all(is_race), "{overlapping:?}");
}

#[test]
fn a_warp_s_barrier_orders_its_own_lanes_alone() {
    let write_then_read = |reader: usize, mask: u32| {
        faults(move |i| {
            if i == 0 {
                set(0, 7);
            }
            if mask >> (i % 32) & 1 == 1 {
                device::sync_warp(mask);
            }
            if i == reader {
                // In the order of time, which alone orders nothing.
                device::collective("vote", u32::MAX, &[], |_| ());
                assert_eq!(get(0), 7);
            } else {
                device::collective("vote", u32::MAX, &[], |_| ());
            }
        })
    };
    let own_warp = write_then_read(31, u32::MAX);
    assert!(own_warp.iter().all(Option::is_none), "{own_warp:?}");
    let two_lanes = write_then_read(9, 1 << 9 | 1);
    assert!(two_lanes.iter().all(Option::is_none), "{two_lanes:?}");
    let left_out = write_then_read(8, 1 << 9 | 1);
    assert!(left_out.iter().all(is_race), "{left_out:?}");
    let other_warp = write_then_read(33, u32::MAX);
    let unordered = |kind: &Option<FaultKind>| {
        is_race(kind) || matches!(kind, Some(FaultKind::Uninitialised(_)))
    };
    assert!(other_warp.iter().all(unordered), "{other_warp:?}");
}

#[test]
fn knowledge_is_passed_on() {
    // Thread 0 to lane 1 by the warp, from there to all by the block, and by the next warp again.
    let chain = faults(|i| {
        for round in 0..3 {
            if i == 0 {
                set(round, 5);
            }
            device::sync_warp(u32::MAX);
            if i == 1 {
                set(32 + round, get(round));
            }
            device::bar_sync(0, None);
            if i == 40 {
                set(64 + round, get(round) + get(32 + round));
            }
            device::sync_warp(u32::MAX);
            if i == 41 {
                assert_eq!(get(64 + round), 10);
            }
        }
    });
    assert!(chain.iter().all(Option::is_none), "{chain:?}");
    // Thread 5 has told its warp, and ends.
    let ended = faults(|i| {
        if i == 5 {
            set(0, 5);
        }
        device::sync_warp(u32::MAX);
        if i != 5 {
            device::bar_sync(0, None);
            assert_eq!(get(0), 5);
        }
    });
    assert!(ended.iter().all(Option::is_none), "{ended:?}");
    // What lane 41 read is not known to be read by warp 0.
    let overwritten = faults(|i| {
        if i == 40 {
            set(0, 5);
        }
        device::bar_sync(0, None);
        if i == 41 {
            get(0);
        }
        device::sync_warp(u32::MAX);
        if i == 0 {
            set(0, 6);
        }
    });
    assert!(overwritten.iter().all(is_race), "{overwritten:?}");
}

#[test]
fn a_launch_of_more_blocks_than_are_resident_ends() {
    for threads in [1, 33, 1024] {
        let blocks = 5000 / threads + 3;
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned((blocks * threads) as usize));
        let body = move || {
            let [i, ..] = device::thread_idx();
            device::bar_sync(0, None);
            let at = device::block_idx()[0] * device::block_dim()[0] + i;
            device::store(Space::Global, out + u64::from(at), 1, &[at as u8]);
        };
        let report = run((blocks, threads), &mut memory, 3, body).unwrap();
        assert_eq!(report.threads, u64::from(blocks * threads));
        let mut bytes = vec![0; (blocks * threads) as usize];
        memory.read(out, &mut bytes).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == at as u8));
    }
}

#[test]
fn the_seed_is_the_order() {
    let order = |seed| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let seen = order.clone();
        let body = move || {
            seen.lock().unwrap().push((device::block_idx()[0], device::thread_idx()[0]));
        };
        run((4, 8), &mut Memory::new(), seed, body).unwrap();
        let order = order.lock().unwrap().clone();
        assert_eq!(order.len(), 32);
        order
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    // Blocks are interleaved.
    assert!(!order(1).is_sorted_by_key(|(block, _)| *block));
}

#[test]
fn what_waiting_threads_hold_is_dropped_after_a_fault() {
    let held = Arc::new(());
    let seen = held.clone();
    let body = move || {
        let _held = seen.clone();
        assert!(device::thread_idx()[0] != 5, "thread five");
        device::bar_sync(0, None);
    };
    let mut memory = Memory::new();
    let x = memory.alloc("x", Init::Bytes(&[9]));
    for seed in simt::seeds() {
        let fault = run((2, 64), &mut memory, seed, body.clone()).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Panic("thread five".to_owned()));
        let location = fault.by.unwrap().location;
        assert!(location.contains("tests/emulate.rs:"), "{location}");
    }
    drop(body);
    assert_eq!(Arc::strong_count(&held), 1);
    let mut byte = [0];
    memory.read(x, &mut byte).unwrap();
    assert_eq!(byte, [9], "memory outlives a fault");
}

#[test]
fn a_launch_in_a_kernel_is_refused() {
    let body = || {
        let inner = run((1, 1), &mut Memory::new(), 0, || ()).unwrap_err();
        assert!(matches!(inner.kind, FaultKind::Launch(_)));
    };
    run((1, 1), &mut Memory::new(), 0, body).unwrap();
}

#[test]
fn one_launch_is_ordered_before_the_next() {
    let mut memory = Memory::new();
    let x = memory.alloc("x", Init::Poisoned(1));
    let write = move || device::store(Space::Global, x, 1, &[1]);
    run((1, 1), &mut memory, 0, write).unwrap();
    let read = move || device::load(Space::Global, x, 1, &mut [0]);
    run((2, 1), &mut memory, 0, read).unwrap();
    run((1, 1), &mut memory, 0, write).unwrap();
    let fault = run((2, 1), &mut memory, 0, write).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[test]
fn static_arrays_are_one_each_and_bounded() {
    let array = |number, len| device::static_shared(("test", number), len, 4);
    let apart = faults(move |_| assert!(array(0, 8) != array(1, 8) && array(0, 8) == array(0, 8)));
    assert!(apart.iter().all(Option::is_none), "{apart:?}");
    let behind = faults(move |_| {
        array(1, 8);
        device::store(Space::Shared, u64::from(array(0, 8)) + 8, 1, &[0]);
    });
    let is_outside = |kind: &Option<FaultKind>| matches!(kind, Some(FaultKind::OutOfBounds(_)));
    assert!(behind.iter().all(is_outside), "{behind:?}");
    let too_large = faults(move |_| assert!(array(0, 227 * 1024) > 0));
    assert!(too_large.iter().all(|kind| matches!(kind, Some(FaultKind::Launch(_)))));
}

#[test]
fn the_host_reads_and_writes_inside_of_buffers() {
    let mut memory = Memory::new();
    let x = memory.alloc("x", Init::Poisoned(4));
    let y = memory.alloc("y", Init::Bytes(&[1, 2]));
    assert!(x.is_multiple_of(256) && y.is_multiple_of(256) && x < y);
    let mut bytes = [0; 4];
    memory.read_or_poison(x, &mut bytes).unwrap();
    assert!(f32::from_le_bytes(bytes).is_nan());
    memory.write(x, &[5, 6]).unwrap();
    memory.write(x + 3, &[7]).unwrap();
    let error = memory.read(x, &mut bytes).unwrap_err();
    assert_eq!(error.to_string(), "the byte at `x` + 2 (of 4) is read, and nothing has written it");
    memory.read_or_poison(x, &mut bytes).unwrap();
    assert_eq!(bytes, [5, 6, 255, 7]);
    memory.write(x + 2, &[8]).unwrap();
    memory.read(x, &mut bytes).unwrap();
    assert_eq!(bytes, [5, 6, 8, 7]);
    let error = memory.read(y + 1, &mut [0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "2 bytes at `y` + 1: the buffer has 2");
    let error = memory.write(64, &[0]).unwrap_err();
    assert_eq!(error.to_string(), "1 bytes at 0x40: no buffer is there");
}

/// The same instruction at two source lines.
const BARRIERS: [fn(); 2] = [|| device::bar_sync(0, None), || device::bar_sync(0, None)];
const COLLECTIVES: [fn(&'static str); 2] = [
    |instruction| _ = device::collective(instruction, u32::MAX, &[], |_| ()),
    |instruction| _ = device::collective(instruction, u32::MAX, &[], |_| ()),
];

#[test]
fn a_warp_comes_to_an_aligned_instruction_together() {
    let divergent = |kind: &Option<FaultKind>| match kind {
        Some(FaultKind::Invalid(why)) => why.contains("divergent"),
        _ => false,
    };
    let by_warp = faults(|i| BARRIERS[i / 32]());
    assert!(by_warp.iter().all(Option::is_none), "{by_warp:?}");
    let by_lane = faults(|i| BARRIERS[i % 2]());
    assert!(by_lane.iter().all(divergent), "{by_lane:?}");
    let shuffle = faults(|i| COLLECTIVES[i % 2]("shfl.sync.bfly.b32"));
    assert!(shuffle.iter().all(Option::is_none), "{shuffle:?}");
    let product = faults(|i| COLLECTIVES[i % 2]("mma.sync.aligned.m16n8k16"));
    assert!(product.iter().all(divergent), "{product:?}");
}

#[test]
fn bank_conflicts_are_counted() {
    // A warp's access of a word a lane, `stride` words apart, in two rounds of two warps.
    let conflicts = |stride: u32, lanes: u32| {
        let geometry = Geometry { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 64 * 33 * 4 };
        let body = move || {
            let [i, ..] = device::thread_idx();
            let row = u64::from(device::dynamic_shared() + 4 * i * stride);
            for _ in 0..2 {
                if i % 32 < lanes {
                    device::store(Space::Shared, row, 4, &[0; 4]);
                }
                device::bar_sync(0, None);
            }
        };
        let report =
            simt::emulate(KERNEL, geometry, Arc::new(body), &mut Memory::new(), 1).unwrap();
        report.bank_conflicts / 4
    };
    for (stride, lanes, want) in [(1, 32, 0), (2, 32, 1), (32, 32, 31), (33, 32, 0), (32, 5, 4)] {
        assert_eq!(conflicts(stride, lanes), want, "stride {stride} of {lanes} lanes");
    }
}

#[test]
fn wide_accesses_take_a_phase_for_a_part_of_the_lanes() {
    // What a lane reads of 4 KiB: `len` bytes at `at(lane)`.
    let conflicts = |len: usize, at: fn(u32) -> u32| {
        let geometry = Geometry { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 4096 };
        let body = move || {
            let [i, ..] = device::thread_idx();
            let start = u64::from(device::dynamic_shared());
            for row in 0..8 {
                let address = start + u64::from(512 * row + 16 * i);
                device::store(Space::Shared, address, 16, &[0; 16]);
            }
            device::bar_sync(0, None);
            device::load(Space::Shared, start + u64::from(at(i)), 4, &mut vec![0; len]);
        };
        let memory = &mut Memory::new();
        simt::emulate(KERNEL, geometry, Arc::new(body), memory, 1).unwrap().bank_conflicts
    };
    // One word for all; side by side.
    for len in [1, 2, 4, 8, 16] {
        assert_eq!(conflicts(len, |_| 0), 0);
    }
    assert_eq!((conflicts(8, |i| 8 * i), conflicts(16, |i| 16 * i)), (0, 0));
    // Of 8 bytes 16 lanes are a phase: two of them in each bank, and half as many.
    assert_eq!((conflicts(8, |i| 16 * i), conflicts(8, |i| 8 * (i % 16))), (2, 0));
    // Of 16 bytes 8 lanes are one: the rows of a matrix, 128 bytes apart and 144.
    assert_eq!(conflicts(16, |i| 128 * (i % 8) + 16 * (i / 8)), 4 * 7);
    assert_eq!(conflicts(16, |i| 144 * (i % 8) + 16 * (i / 8)), 0);
    // What one phase does not touch is no room for another: the lanes of each share four banks.
    assert_eq!(conflicts(16, |i| 128 * (i % 4) + 16 * (i / 4)), 4 * 3);
}

#[test]
fn a_block_is_no_larger_than_the_launch_bound() {
    let launch = |block| {
        let kernel = Kernel { max_threads: 64, ..KERNEL };
        let geometry = Geometry { grid: [1; 3], block, shared_bytes: 0 };
        simt::emulate(kernel, geometry, Arc::new(|| ()), &mut Memory::new(), 0)
    };
    launch([64, 1, 1]).unwrap();
    launch([16, 2, 2]).unwrap();
    let fault = launch([16, 2, 3]).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Launch(_)), "{fault}");
    let why = "[16, 2, 3] threads, 96 in all: `test` is compiled for at most 64";
    assert!(fault.to_string().contains(why), "{fault}");
}

/// The first launch's fault; tests of endless loops take one seed, as each takes a while.
fn endless(threads: u32, body: impl Fn(u32) + Send + Sync + 'static) -> Fault {
    let mut memory = Memory::new();
    run((1, threads), &mut memory, 7, move || body(device::thread_idx()[0])).unwrap_err()
}

#[test]
fn a_thread_that_never_waits_ends() {
    let fault = endless(2, |i| while i == 1 && device::block_dim()[0] == 2 {});
    assert!(matches!(&fault.kind, FaultKind::Endless(why) if why.contains("instructions")));
    let by = fault.by.unwrap();
    assert_eq!(by.thread, [1, 0, 0]);
    assert!(by.location.contains("tests/emulate.rs:"), "{}", by.location);
}

#[test]
fn threads_that_meet_for_ever_end() {
    let barriers = endless(64, |_| {
        loop {
            device::bar_sync(0, None);
        }
    });
    let shuffles = endless(32, |_| {
        loop {
            device::sync_warp(u32::MAX);
        }
    });
    for fault in [barriers, shuffles] {
        let is_endless = matches!(&fault.kind, FaultKind::Endless(why) if why.contains("waits"));
        assert!(is_endless && fault.by.is_some(), "{fault}");
    }
}

/// Two loads in turn, of flags that no thread writes: it does not look like polling one address.
#[test]
fn a_thread_that_polls_two_flags_ends() {
    let mut memory = Memory::new();
    let flags = memory.alloc("flags", Init::Bytes(&[0; 2]));
    let body = move || {
        let flag = |i| {
            let mut byte = [0];
            device::load(Space::Global, flags + i, 1, &mut byte);
            byte[0]
        };
        while flag(0) == 0 && flag(1) == 0 {}
    };
    let fault = run((1, 1), &mut memory, 0, body).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Endless(_)), "{fault}");
}

/// Runs in a process of its own: see the next test.
#[test]
#[ignore = "ends its process"]
fn loops_without_an_instruction() {
    _ = endless(64, |i| while std::hint::black_box(i) == 40 {});
}

#[test]
fn a_loop_without_an_instruction_ends_the_process() {
    let test = std::env::current_exe().unwrap();
    let arguments = ["--exact", "emulate::loops_without_an_instruction", "--ignored"];
    let output = std::process::Command::new(test).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let report = "endless loop in `test`\n  thread [40, 0, 0] of block [0, 0, 0]: ";
    assert!(stderr.contains(report), "{stderr}");
}

#[test]
fn a_report_names_the_lines_that_a_collective_paired() {
    // Lane 0 is at the other line for the first collective, and at none for the second.
    let fault = endless(32, |i| {
        COLLECTIVES[usize::from(i == 0)]("shfl.sync.idx.b32");
        if i != 0 {
            COLLECTIVES[0]("shfl.sync.idx.b32");
        }
    });
    assert!(matches!(fault.kind, FaultKind::Deadlock(_)), "{fault}");
    let pairing = fault.pairing.as_ref().expect("two lines were paired");
    assert_eq!(pairing.instruction, "shfl.sync.idx.b32");
    assert_ne!(pairing.first.location, pairing.other.location);
    assert!(pairing.first.thread == [0; 3] || pairing.other.thread == [0; 3], "{fault}");
    let note = "before that, shfl.sync.idx.b32 paired two source lines: thread [";
    assert!(fault.to_string().contains(note), "{fault}");

    let one_line = endless(32, |i| {
        COLLECTIVES[0]("shfl.sync.idx.b32");
        if i != 0 {
            COLLECTIVES[0]("shfl.sync.idx.b32");
        }
    });
    assert_eq!(one_line.pairing, None, "{one_line}");
}

#[test]
fn a_shared_array_is_named_by_its_line() {
    let line = line!() + 2;
    let fault = endless(1, |_| {
        let array = device::static_shared(("test", 0), 8, 4);
        device::load(Space::Shared, u64::from(array), 4, &mut [0; 4]);
    });
    let name = format!("reads 4 bytes at `shared array of {}:{line}` + 0 (of 8)", file!());
    assert!(fault.to_string().contains(&name), "{fault}");
}
