//! What synchronises threads of Hopper's kernels, and what goes on while they do: by kernels
//! written as closures.

use simt::device::{self, Order, Scope};
use simt::{Fault, FaultKind, Geometry, Init, Kernel, Memory, Space};
use std::sync::Arc;

fn kernel(symbol: &'static str) -> Kernel {
    Kernel { symbol, max_threads: 1024, cluster: [1; 3] }
}

/// Runs a launch of `blocks`, in clusters of `cluster`, of `threads` under every seed.
#[track_caller]
fn run(
    (blocks, cluster, threads): (u32, u32, u32),
    buffer: &[u8],
    body: impl Fn(u64) + Copy + Send + Sync + 'static,
) -> Vec<Result<Vec<u8>, Fault>> {
    let geometry = Geometry { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 4096 };
    let kernel = Kernel { cluster: [cluster, 1, 1], ..kernel("test") };
    let one = |seed| {
        let mut memory = Memory::new();
        let address = memory.alloc("buffer", Init::Bytes(buffer));
        simt::emulate(kernel, geometry, Arc::new(move || body(address)), &mut memory, seed)?;
        let mut bytes = vec![0; buffer.len()];
        memory.read(address, &mut bytes).unwrap();
        Ok(bytes)
    };
    simt::seeds().map(one).collect()
}

#[track_caller]
fn assert_right(results: &[Result<Vec<u8>, Fault>], expected: &[u8]) {
    for (seed, result) in results.iter().enumerate() {
        match result {
            Ok(bytes) => assert_eq!(bytes, expected, "seed {seed}"),
            Err(fault) => panic!("seed {seed}: {fault}"),
        }
    }
}

#[track_caller]
fn assert_wrong(results: &[Result<Vec<u8>, Fault>], is_right: impl Fn(&FaultKind) -> bool) {
    for (seed, result) in results.iter().enumerate() {
        match result {
            Ok(_) => panic!("seed {seed}: the fault was not found"),
            Err(fault) => assert!(is_right(&fault.kind), "seed {seed}: {fault}"),
        }
    }
}

fn thread() -> u32 {
    device::thread_idx()[0]
}

fn block_idx() -> u32 {
    device::block_idx()[0]
}

fn set(space: Space, address: u64, value: u32) {
    device::store(space, address, 4, &value.to_le_bytes());
}

fn get(space: Space, address: u64) -> u32 {
    let mut bytes = [0; 4];
    device::load(space, address, 4, &mut bytes);
    u32::from_le_bytes(bytes)
}

/// An address of dynamic shared memory.
fn shared(offset: u32) -> u32 {
    device::dynamic_shared() + offset
}

/// Adds `value` atomically.
fn add(address: u64, value: u64, order: Order) -> u64 {
    let point = (Space::Global, address);
    device::atomic(point, 4, (order, Scope::Gpu), |old| Some(old + value))
}

fn read(address: u64, order: Order) -> u64 {
    device::atomic((Space::Global, address), 4, (order, Scope::Gpu), |_| None)
}

/// The last of eight blocks adds what all have written.
fn last_block_sums(address: u64, order: Order, fenced: bool) {
    set(Space::Global, address + 4 + 4 * u64::from(block_idx()), block_idx() + 1);
    if fenced {
        device::fence(Scope::Gpu);
    }
    if add(address, 1, order) == 7 {
        if fenced {
            device::fence(Scope::Gpu);
        }
        let sum: u32 = (0..8).map(|i| get(Space::Global, address + 4 + 4 * i)).sum();
        set(Space::Global, address + 36, sum);
    }
}

#[test]
fn atomics_order_as_they_say() {
    let buffer = [0; 40];
    let mut expected = [0; 40];
    for (i, word) in [8, 1, 2, 3, 4, 5, 6, 7, 8, 36].into_iter().enumerate() {
        expected[4 * i] = word;
    }
    let (one, race) = ((8, 1, 1), |kind: &FaultKind| matches!(kind, FaultKind::Race { .. }));
    assert_right(&run(one, &buffer, |a| last_block_sums(a, Order::AcqRel, false)), &expected);
    assert_right(&run(one, &buffer, |a| last_block_sums(a, Order::Relaxed, true)), &expected);
    assert_wrong(&run(one, &buffer, |a| last_block_sums(a, Order::Relaxed, false)), race);
    assert_wrong(&run(one, &buffer, |a| last_block_sums(a, Order::Release, false)), race);
    assert_wrong(&run(one, &buffer, |a| last_block_sums(a, Order::Acquire, false)), race);
}

#[test]
fn a_block_waits_for_another_one_s_flag() {
    let body = |address: u64| {
        if block_idx() == 0 {
            while read(address, Order::Acquire) == 0 {}
            set(Space::Global, address + 8, get(Space::Global, address + 4));
        } else {
            set(Space::Global, address + 4, 5);
            add(address, 1, Order::Release);
        }
    };
    assert_right(&run((2, 1, 1), &[0; 12], body), &[1, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0]);
}

#[test]
fn who_waits_for_what_nobody_writes_is_found() {
    let atomic = run((1, 1, 4), &[0; 4], |address| while read(address, Order::Relaxed) == 0 {});
    assert_wrong(&atomic, |kind| matches!(kind, FaultKind::Livelock(_)));
    let plain = run((1, 1, 1), &[0; 4], |address| while get(Space::Global, address) == 0 {});
    assert_wrong(&plain, |kind| matches!(kind, FaultKind::Livelock(_)));
}

#[test]
fn a_plain_and_an_atomic_access_race() {
    let body = |address: u64| {
        if block_idx() == 0 {
            add(address, 1, Order::AcqRel);
        } else {
            get(Space::Global, address);
        }
    };
    let raced = run((2, 1, 1), &[0; 4], body);
    assert_wrong(&raced, |kind| matches!(kind, FaultKind::Race { .. }));
    let within_a_block = |address: u64| {
        let point = (Space::Global, address);
        device::atomic(point, 4, (Order::Relaxed, Scope::Block), |old| Some(old + 1));
    };
    assert_right(&run((1, 1, 8), &[0; 4], within_a_block), &[8, 0, 0, 0]);
    let raced = run((2, 1, 1), &[0; 4], within_a_block);
    assert_wrong(&raced, |kind| matches!(kind, FaultKind::Race { .. }));
}

/// Warp 0 writes for warp 1, which arrives on a second barrier when it has read.
fn producer_and_consumer(address: u64, rounds: u32, releases: bool) {
    let (i, cell) = (thread() % 32, u64::from(shared(4 * (thread() % 32))));
    for round in 0..rounds {
        if thread() < 32 {
            if round > 0 && releases {
                device::bar_sync(2, Some(64));
            }
            set(Space::Shared, cell, round + i);
            device::bar_arrive(1, 64);
        } else {
            device::bar_sync(1, Some(64));
            let neighbour = u64::from(shared(4 * ((i + 1) % 32)));
            set(Space::Global, address + 4 * u64::from(i), get(Space::Shared, neighbour));
            if round + 1 < rounds && releases {
                device::bar_arrive(2, 64);
            }
        }
    }
}

#[test]
fn named_barriers_order_producers_and_consumers() {
    let expected: Vec<u8> = (0..32).flat_map(|i: u32| (2 + (i + 1) % 32).to_le_bytes()).collect();
    assert_right(&run((1, 1, 64), &[0; 128], |a| producer_and_consumer(a, 3, true)), &expected);
    let early = run((1, 1, 64), &[0; 128], |a| producer_and_consumer(a, 3, false));
    assert_wrong(&early, |kind| {
        matches!(kind, FaultKind::Race { .. } | FaultKind::Invalid(_) | FaultKind::Uninitialised(_))
    });
    let uneven = run((1, 1, 64), &[], |_| device::bar_sync(1, Some(32 + thread() / 32 * 32)));
    assert_wrong(&uneven, |kind| matches!(kind, FaultKind::Invalid(_) | FaultKind::Deadlock(_)));
}

/// A pipeline of two stages, filled by bulk copies: the sum of `tiles` tiles of 16 words.
fn pipeline(address: u64, tiles: u32, expected_bytes: u32, parity_shift: u32, releases: bool) {
    let (full, empty) = (|stage| shared(8 * stage), |stage| shared(64 + 8 * stage));
    let tile = |stage| shared(1024 + 64 * stage);
    if thread() == 0 {
        for stage in 0..2 {
            device::mbarrier_init(full(stage), 1);
            device::mbarrier_init(empty(stage), 32);
        }
        device::fence_mbarrier_init();
    }
    device::bar_sync(0, None);
    let wait = |barrier, parity| while !device::mbarrier_try_wait(barrier, parity) {};
    if thread() == 32 {
        for i in 0..tiles {
            let (stage, phase) = (i % 2, i / 2);
            if releases {
                wait(empty(stage), (phase + 1) % 2);
            }
            device::mbarrier_expect_tx(full(stage), expected_bytes);
            device::mbarrier_arrive(full(stage), 1);
            device::bulk_load(tile(stage), address + 64 * u64::from(i), 64, full(stage), None);
        }
    } else if thread() < 32 {
        let mut sum = 0;
        for i in 0..tiles {
            let (stage, phase) = (i % 2, i / 2);
            wait(full(stage), (phase + parity_shift) % 2);
            sum += get(Space::Shared, u64::from(tile(stage) + 4 * (thread() % 16)));
            device::mbarrier_arrive(empty(stage), 1);
        }
        if thread() < 16 {
            set(Space::Global, address + u64::from(64 * tiles + 4 * thread()), sum);
        }
    }
}

#[test]
fn an_mbarrier_s_phases_order_copies_and_readers() {
    const TILES: u32 = 5;
    let words: Vec<u8> = (0..16 * TILES).flat_map(u32::to_le_bytes).chain([0; 64]).collect();
    let sums = (0..16).map(|i| (0..TILES).map(|tile| 16 * tile + i).sum::<u32>());
    let mut expected = words.clone();
    expected[64 * TILES as usize..]
        .copy_from_slice(&sums.flat_map(u32::to_le_bytes).collect::<Vec<_>>());
    let run = |body: fn(u64)| run((1, 1, 64), &words, body);
    assert_right(&run(|a| pipeline(a, TILES, 64, 0, true)), &expected);
    let not_waited_for = |kind: &FaultKind| matches!(kind, FaultKind::NotWaitedFor { .. });
    // A thread that comes before the phase ends reads too early; if all come after, they wait for the
    // next one.
    assert_wrong(&run(|a| pipeline(a, TILES, 64, 1, true)), |kind| {
        not_waited_for(kind) || matches!(kind, FaultKind::Uninitialised(_) | FaultKind::Deadlock(_))
    });
    // The producer overwrites what is still read, or copies to where a copy is in flight; or it
    // expects bytes in a phase whose copy is not there.
    assert_wrong(&run(|a| pipeline(a, TILES, 64, 0, false)), |kind| {
        not_waited_for(kind)
            || matches!(
                kind,
                FaultKind::Race { .. } | FaultKind::Invalid(_) | FaultKind::Deadlock(_)
            )
    });
    assert_wrong(&run(|a| pipeline(a, TILES, 80, 0, true)), |kind| {
        matches!(kind, FaultKind::Deadlock(_))
    });
    assert_wrong(&run(|a| pipeline(a, TILES, 0, 0, true)), |kind| {
        not_waited_for(kind) || matches!(kind, FaultKind::Invalid(_))
    });
}

#[test]
fn a_deadlock_tells_the_state_of_the_mbarrier() {
    let results = run((1, 1, 32), &[], |_| {
        if thread() == 0 {
            device::mbarrier_init(shared(16), 2);
            device::mbarrier_expect_tx(shared(16), 48);
            device::mbarrier_arrive(shared(16), 1);
            while !device::mbarrier_try_wait(shared(16), 0) {}
        }
    });
    let report = results[0].as_ref().unwrap_err().to_string();
    assert!(
        report.ends_with(
            "waits for phase parity 0 of the mbarrier at `dynamic shared memory` + 16 (of 4096): \
             it is in phase 0 (parity 0), with 1 of 2 arrivals and 48 bytes missing"
        ),
        "{report}"
    );
}

/// Writes a tile and stores it as one copy.
fn store_tile(address: u64, fenced: bool, commits: bool, waits: bool) {
    set(Space::Shared, u64::from(shared(4 * thread())), thread());
    if fenced {
        device::fence_proxy_async();
    }
    device::bar_sync(0, None);
    if thread() == 0 {
        device::bulk_store(address, shared(0), 128);
        if commits {
            device::bulk_commit_group();
        }
        if waits {
            device::bulk_wait_group(0, true);
        }
    }
}

#[test]
fn what_tma_reads_is_fenced_committed_and_waited_for() {
    let expected: Vec<u8> = (0..32).flat_map(u32::to_le_bytes).collect();
    let run = |body: fn(u64)| run((1, 1, 32), &[0; 128], body);
    assert_right(&run(|a| store_tile(a, true, true, true)), &expected);
    assert_wrong(&run(|a| store_tile(a, false, true, true)), |kind| {
        matches!(kind, FaultKind::Unfenced { .. })
    });
    let ends_early = |kind: &FaultKind| matches!(kind, FaultKind::EndsEarly { writes: false, .. });
    assert_wrong(&run(|a| store_tile(a, true, true, false)), ends_early);
    assert_wrong(&run(|a| store_tile(a, true, false, true)), ends_early);
}

/// Each block of a cluster reads what its neighbour wrote.
fn read_neighbour(address: u64, arrives: bool, stays: bool) {
    let rank = device::cluster_rank();
    set(Space::Shared, u64::from(shared(4 * thread())), 100 * block_idx() + thread());
    let barrier = || {
        device::cluster_arrive(true);
        device::cluster_wait();
    };
    if arrives {
        barrier();
    }
    let peer = device::map_shared(shared(4 * thread()), rank ^ 1);
    let value = get(Space::Cluster, u64::from(peer));
    set(Space::Global, address + u64::from(4 * (4 * block_idx() + thread())), value);
    if stays {
        barrier();
    }
}

#[test]
fn a_cluster_s_blocks_read_each_other_s_memory() {
    let words = (0..4_u32).flat_map(|block| (0..4).map(move |i| 100 * (block ^ 1) + i));
    let expected: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    let run = |body: fn(u64)| run((4, 2, 4), &[0; 64], body);
    assert_right(&run(|a| read_neighbour(a, true, true)), &expected);
    assert_wrong(&run(|a| read_neighbour(a, false, true)), |kind| {
        matches!(kind, FaultKind::Race { .. } | FaultKind::Uninitialised(_))
    });
    // A block has ended when its neighbour reads, or might have.
    assert_wrong(&run(|a| read_neighbour(a, true, false)), |kind| match kind {
        FaultKind::EndsEarly { writes, .. } => !writes,
        FaultKind::Invalid(why) => why.contains("has ended"),
        _ => false,
    });
}

/// A copy to the own memory, or to the neighbour's, that no thread there waits for.
fn load_and_leave(address: u64, to: u32, waits: bool) {
    let (barrier, rank) = (shared(0), device::cluster_rank());
    let sync = || {
        device::cluster_arrive(true);
        device::cluster_wait();
    };
    device::mbarrier_init(barrier, 1);
    device::fence_mbarrier_init();
    device::mbarrier_expect_tx(barrier, 16);
    device::mbarrier_arrive(barrier, 1);
    sync();
    let there = |address| device::map_shared(address, rank ^ to);
    device::bulk_load(there(shared(64)), address, 16, there(barrier), None);
    if waits || rank == 0 {
        while !device::mbarrier_try_wait(barrier, 0) {}
    }
    sync();
}

#[test]
fn a_multicast_copy_reaches_every_block_of_its_mask() {
    let body = |address: u64| {
        if thread() == 0 {
            device::mbarrier_init(shared(0), 1);
            device::fence_mbarrier_init();
            device::mbarrier_expect_tx(shared(0), 16);
            device::mbarrier_arrive(shared(0), 1);
        }
        device::cluster_arrive(true);
        device::cluster_wait();
        if thread() == 0 && device::cluster_rank() == 1 {
            device::bulk_load(shared(64), address, 16, shared(0), Some(0b11));
        }
        while !device::mbarrier_try_wait(shared(0), 0) {}
        let value = get(Space::Shared, u64::from(shared(64)));
        if thread() == 0 {
            set(Space::Global, address + 16 + u64::from(4 * block_idx()), value);
        }
    };
    let mut buffer = [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    buffer.extend([0; 8]);
    let mut expected = buffer.clone();
    expected[16] = 7;
    expected[20] = 7;
    assert_right(&run((2, 2, 32), &buffer, body), &expected);
}

#[test]
fn a_block_waits_for_the_copies_to_its_memory() {
    let run = |body: fn(u64)| run((2, 2, 1), &[0; 16], body);
    assert_right(&run(|a| load_and_leave(a, 0, true)), &[0; 16]);
    assert_right(&run(|a| load_and_leave(a, 1, true)), &[0; 16]);
    let ends_early = |kind: &FaultKind| matches!(kind, FaultKind::EndsEarly { writes: true, .. });
    assert_wrong(&run(|a| load_and_leave(a, 0, false)), ends_early);
    assert_wrong(&run(|a| load_and_leave(a, 1, false)), ends_early);
}

#[test]
fn registers_move_from_warpgroup_to_warpgroup() {
    let moves = |less: u32, more: u32| {
        move |_| {
            if thread() < 128 {
                device::set_max_registers(less, false);
            } else {
                device::set_max_registers(more, true);
            }
        }
    };
    // 65,536 registers for 384 threads are 168 each.
    assert_right(&run((1, 1, 384), &[], moves(40, 232)), &[]);
    let results = run((1, 1, 384), &[], moves(40, 240));
    assert_wrong(&results, |kind| matches!(kind, FaultKind::Deadlock(_)));
    let results = run((1, 1, 384), &[], moves(41, 232));
    assert_wrong(&results, |kind| matches!(kind, FaultKind::Invalid(_)));
}

/// A launch writes what the next one reads, which may start before the first has ended.
fn run_two(waits: fn(u32) -> bool, seed: u64) -> Result<(), Fault> {
    let (grid, block) = ([2, 1, 1], [64, 1, 1]);
    let geometry = Geometry { grid, block, shared_bytes: 0 };
    let mut memory = Memory::new();
    let [from, to] = ["from", "to"].map(|name| memory.alloc(name, Init::Poisoned(512)));
    let at = || u64::from(4 * (64 * block_idx() + thread()));
    let first = move || set(Space::Global, from + at(), thread());
    simt::emulate(kernel("first"), geometry, Arc::new(first), &mut memory, seed)?;
    memory.overlap_next_launch();
    let second = move || {
        if waits(thread()) {
            device::wait_for_dependencies();
        }
        device::bar_sync(0, None);
        set(Space::Global, to + at(), get(Space::Global, from + (at() ^ 256)));
    };
    simt::emulate(kernel("second"), geometry, Arc::new(second), &mut memory, seed)?;
    // What does not overlap is ordered.
    let third = move || set(Space::Global, from + at(), get(Space::Global, to + at()));
    simt::emulate(kernel("third"), geometry, Arc::new(third), &mut memory, seed).map(|_| ())
}

#[test]
fn an_overlapping_launch_waits_for_the_one_before() {
    for seed in simt::seeds() {
        run_two(|_| true, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        // One thread waits for all that it synchronises with.
        run_two(|thread| thread == 3, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        let fault = run_two(|_| false, seed).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Dependency { writes: true, .. }), "{fault}");
        assert!(fault.to_string().starts_with("missing griddepcontrol.wait in `second`"));
    }
}

/// A launch writes what the third one reads; each may start before the one before it has ended, and
/// the block of the second has a thread that waits for the first where `waits`.
fn run_three(waits: fn(u32) -> bool, seed: u64) -> Result<(), Fault> {
    let (grid, block) = ([2, 1, 1], [64, 1, 1]);
    let geometry = Geometry { grid, block, shared_bytes: 0 };
    let mut memory = Memory::new();
    let [from, to] = ["from", "to"].map(|name| memory.alloc(name, Init::Poisoned(512)));
    let at = || u64::from(4 * (64 * block_idx() + thread()));
    let first = move || set(Space::Global, from + at(), thread());
    simt::emulate(kernel("first"), geometry, Arc::new(first), &mut memory, seed)?;
    memory.overlap_next_launch();
    let second = move || {
        if waits(block_idx()) && thread() == 9 {
            device::wait_for_dependencies();
        }
    };
    simt::emulate(kernel("second"), geometry, Arc::new(second), &mut memory, seed)?;
    memory.overlap_next_launch();
    let third = move || {
        device::wait_for_dependencies();
        set(Space::Global, to + at(), get(Space::Global, from + (at() ^ 256)));
    };
    simt::emulate(kernel("third"), geometry, Arc::new(third), &mut memory, seed).map(|_| ())
}

#[test]
fn every_block_of_an_overlapping_launch_waits() {
    for seed in simt::seeds() {
        run_three(|_| true, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        let fault = run_three(|block| block == 0, seed).unwrap_err();
        assert_eq!((&*fault.kernel, &fault.kind), ("second", &FaultKind::NeverWaits));
        assert_eq!(fault.by.unwrap().block, [1, 0, 0]);
    }
}

/// The third launch reads what the first one wrote before it waits for the second, which lets it
/// start before or after it has waited for the first.
fn read_of_the_launch_before_last(is_early: bool, seed: u64) -> Result<(), Fault> {
    let geometry = Geometry { grid: [2, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
    let mut memory = Memory::new();
    let [from, to] = ["from", "to"].map(|name| memory.alloc(name, Init::Poisoned(256)));
    let at = || u64::from(4 * (32 * block_idx() + thread()));
    let first = move || set(Space::Global, from + at(), thread());
    let second = move || {
        if is_early && block_idx() == 1 {
            device::launch_dependents();
        }
        device::wait_for_dependencies();
        device::launch_dependents();
    };
    let third = move || {
        let value = get(Space::Global, from + (at() ^ 128));
        device::wait_for_dependencies();
        set(Space::Global, to + at(), value);
    };
    simt::emulate(kernel("first"), geometry, Arc::new(first), &mut memory, seed)?;
    memory.overlap_next_launch();
    simt::emulate(kernel("second"), geometry, Arc::new(second), &mut memory, seed)?;
    memory.overlap_next_launch();
    simt::emulate(kernel("third"), geometry, Arc::new(third), &mut memory, seed).map(|_| ())
}

#[test]
fn what_the_launch_before_last_wrote_is_known_if_the_last_one_had_waited() {
    for seed in simt::seeds() {
        read_of_the_launch_before_last(false, seed).unwrap_or_else(|fault| panic!("{fault}"));
        let fault = read_of_the_launch_before_last(true, seed).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Dependency { writes: true, .. }), "{fault}");
    }
}

#[test]
fn what_the_launch_before_is_assumed_to_have_written_is_waited_for() {
    let geometry = Geometry { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    for waits in [true, false] {
        let mut memory = Memory::new();
        let x = memory.alloc("x", Init::Bytes(&[7; 1028]));
        memory.assume_written(x).unwrap();
        memory.overlap_next_launch();
        let reads_last = move || {
            if waits {
                device::wait_for_dependencies();
            }
            assert_eq!(get(Space::Global, x + 1024), 0x0707_0707);
        };
        let ran =
            simt::emulate(kernel("reads_last"), geometry, Arc::new(reads_last), &mut memory, 0);
        match ran {
            Ok(_) => assert!(waits),
            Err(fault) => {
                assert!(!waits, "{fault}");
                assert!(fault.to_string().contains("writes them at crates/simt/tests"), "{fault}");
            }
        }
    }
    assert!(Memory::new().assume_written(0).is_err());
}
