//! Atomic operations on the emulator: their results in any order, and the order that they impose.

use cuda_std::atomic::{self, Order, Scope};
use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::prelude::*;
use half::f16;
use simt::{Fault, FaultKind, Init, Memory};

/// Threads of a block.
const THREADS: u32 = 48;

/// Blocks of a grid.
const BLOCKS: u32 = 3;

/// Runs `launch` on an output initialised to `initial`, with one seed.
fn run(
    initial: &[u8],
    seed: u64,
    launch: impl Fn(Geometry, u64) -> Launch,
) -> Result<Vec<u8>, Fault> {
    let mut memory = Memory::new();
    let out = memory.alloc("out", Init::Bytes(initial));
    let geometry = Geometry { grid: [BLOCKS, 1, 1], block: [THREADS, 1, 1], shared_bytes: 64 };
    launch(geometry, out).emulate(&mut memory, seed)?;
    let mut bytes = vec![0; initial.len()];
    memory.read(out, &mut bytes).unwrap();
    Ok(bytes)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// A number of the thread that differs from those of adjacent threads; some have the sign bit set.
fn value_of(index: u32) -> u32 {
    index.wrapping_mul(0x9e37_79b9) ^ 0x55
}

/// Every integer operation on its own element, by divergent threads: those with an index divisible
/// by three do not participate.
macro_rules! every_operation {
    ($view:expr, $value:expr, $i:expr) => {{
        let (view, value) = ($view, $value);
        if $i % 3 != 0 {
            view.fetch_add(0, value, Order::Relaxed, Scope::Gpu);
            view.fetch_min(1, value, Order::Acquire, Scope::Gpu);
            view.fetch_max(2, value, Order::Release, Scope::Gpu);
            view.fetch_and(3, value, Order::AcqRel, Scope::Gpu);
            view.fetch_or(4, value, Order::Relaxed, Scope::System);
            view.fetch_xor(5, value, Order::Relaxed, Scope::Gpu);
        }
    }};
}

#[kernel(launch_bounds(THREADS))]
unsafe fn integers_u32(out: GlobalMut<u32>) {
    let i = thread::index_1d();
    // SAFETY: six elements.
    unsafe { every_operation!(out, value_of(i), i) };
}

#[kernel(launch_bounds(THREADS))]
unsafe fn integers_i32(out: GlobalMut<i32>) {
    let i = thread::index_1d();
    // SAFETY: six elements.
    unsafe { every_operation!(out, value_of(i) as i32, i) };
}

#[kernel(launch_bounds(THREADS))]
unsafe fn integers_u64(out: GlobalMut<u64>) {
    let i = thread::index_1d();
    // SAFETY: six elements.
    unsafe { every_operation!(out, u64::from(value_of(i)) << 31, i) };
}

/// The same in shared memory; the first thread of block 0 loads and stores the elements.
#[kernel(launch_bounds(THREADS), instances(shared_u32 = <false>, shared_i32 = <true>))]
unsafe fn integers_in_shared<const SIGNED: bool>(out: GlobalMut<u32>) {
    let i = thread::thread_idx_x();
    // SAFETY: six elements in both.
    unsafe {
        let smem = dynamic_shared_mem::<u32>();
        let first = thread::block_idx_x() == 0 && i == 0;
        if i < 6 {
            // Arbitrary: only the elements of block 0 are checked.
            smem.set(i, if thread::block_idx_x() == 0 { out.get(i as usize) } else { 0 });
        }
        thread::sync_threads();
        if SIGNED {
            every_operation!(dynamic_shared_mem::<i32>(), value_of(i) as i32, i);
        } else {
            every_operation!(smem, value_of(i), i);
        }
        thread::sync_threads();
        if first {
            (0..6).for_each(|at| out.set(at, smem.get(at as u32)));
        }
    }
}

#[test]
fn integers_of_all_threads_are_combined() {
    let values = |threads: u32| (0..threads).filter(|i| i % 3 != 0).map(value_of);
    let initial = [5, u32::MAX, 0, u32::MAX, 0, 7];
    let want_u32 = |threads| {
        let values = || values(threads);
        [
            values().fold(5, u32::wrapping_add),
            values().min().unwrap(),
            values().max().unwrap(),
            values().fold(u32::MAX, |a, b| a & b),
            values().fold(0, |a, b| a | b),
            values().fold(7, |a, b| a ^ b),
        ]
    };
    let signed = [5, i32::MAX, i32::MIN, -1, 0, 7].map(|value| value as u32);
    let want_i32 = |threads| {
        let values = || values(threads).map(|value| value as i32);
        let mut want = want_u32(threads);
        want[1] = values().min().unwrap() as u32;
        want[2] = values().max().unwrap() as u32;
        want
    };
    let bytes = |words: [u32; 6]| words.map(u32::to_le_bytes).concat();
    let all = THREADS * BLOCKS;
    for seed in simt::seeds() {
        let got = run(&bytes(initial), seed, |geometry, out| {
            integers_u32::Args { out: DevicePtr::new(out) }.launch(geometry)
        });
        assert_eq!(words(&got.unwrap()), want_u32(all));
        let got = run(&bytes(signed), seed, |geometry, out| {
            integers_i32::Args { out: DevicePtr::new(out) }.launch(geometry)
        });
        assert_eq!(words(&got.unwrap()), want_i32(all));
        use integers_in_shared::Instance;
        for (instance, initial, want) in [
            (Instance::shared_u32, initial, want_u32(THREADS)),
            (Instance::shared_i32, signed, want_i32(THREADS)),
        ] {
            let got = run(&bytes(initial), seed, |geometry, out| {
                integers_in_shared::Args { out: DevicePtr::new(out) }.launch(instance, geometry)
            });
            assert_eq!(words(&got.unwrap()), want, "{instance:?}");
        }
        let got = run(&[5, u64::MAX, 0, u64::MAX, 0, 7].map(u64::to_le_bytes).concat(), seed, {
            |geometry, out| integers_u64::Args { out: DevicePtr::new(out) }.launch(geometry)
        });
        let values = || values(all).map(|value| u64::from(value) << 31);
        let want = [
            values().fold(5, u64::wrapping_add),
            values().min().unwrap(),
            values().max().unwrap(),
            values().fold(u64::MAX, |a, b| a & b),
            values().fold(0, |a, b| a | b),
            values().fold(7, |a, b| a ^ b),
        ];
        assert_eq!(got.unwrap(), want.map(u64::to_le_bytes).concat());
    }
}

/// Stores the old values of a counter, then those of an element that all threads swap their index
/// into; a second counter is incremented by `compare_exchange`.
#[kernel(launch_bounds(THREADS))]
unsafe fn tickets(out: GlobalMut<u32>) {
    let (i, all) = (thread::index_1d(), (THREADS * BLOCKS) as usize);
    // SAFETY: three elements, and two for each thread.
    unsafe {
        let ticket = out.fetch_add(0, 1, Order::Relaxed, Scope::Gpu);
        let before = out.swap(1, i, Order::Relaxed, Scope::Gpu);
        out.set(3 + i as usize, ticket);
        out.set(3 + all + i as usize, before);
        let mut current = out.load_relaxed(2, Scope::Gpu);
        while let Err(other) =
            out.compare_exchange(2, (current, current + 2), Order::Relaxed, Scope::Gpu)
        {
            current = other;
        }
    }
}

#[test]
fn old_values_are_distinct() {
    let all = (THREADS * BLOCKS) as usize;
    for seed in simt::seeds() {
        let initial = [0, u32::MAX, 0].into_iter().chain(vec![0; 2 * all]);
        let initial: Vec<u8> = initial.flat_map(u32::to_le_bytes).collect();
        let got = run(&initial, seed, |geometry, out| {
            tickets::Args { out: DevicePtr::new(out) }.launch(geometry)
        });
        let got = words(&got.unwrap());
        assert_eq!((got[0], got[2]), (all as u32, 2 * all as u32));
        let (mut tickets, mut swapped) = (got[3..3 + all].to_vec(), got[3 + all..].to_vec());
        tickets.sort_unstable();
        assert_eq!(tickets, (0..all as u32).collect::<Vec<_>>());
        // The value that remains is no thread's old value.
        swapped.push(got[1]);
        swapped.sort_unstable();
        assert_eq!(swapped, (0..all as u32).chain([u32::MAX]).collect::<Vec<_>>());
    }
}

/// Adds floats: to the first element of global memory by all threads, to the others by one thread.
#[kernel(launch_bounds(THREADS))]
unsafe fn floats(out: GlobalMut<f32>) {
    let i = thread::index_1d();
    // SAFETY: six elements, and the first of shared memory.
    unsafe {
        out.fetch_add(0, i as f32, Order::Relaxed, Scope::Gpu);
        if i == 0 {
            let smem = dynamic_shared_mem::<f32>();
            smem.set(0, out.get(1));
            smem.fetch_add(0, 1e-40, Order::Relaxed, Scope::Block);
            out.set(2, smem.get(0));
            out.set(3, out.fetch_add(1, -2e-40, Order::Relaxed, Scope::Gpu));
            out.fetch_add(4, f32::INFINITY, Order::Relaxed, Scope::Gpu);
            out.fetch_add(5, 0.25, Order::Relaxed, Scope::Gpu);
        }
    }
}

#[test]
fn floats_are_added() {
    let initial = [0.5, 1e-40, 0.0, 0.0, f32::NEG_INFINITY, 16777216.0].map(f32::to_le_bytes);
    let got = run(&initial.concat(), 3, |geometry, out| {
        floats::Args { out: DevicePtr::new(out) }.launch(geometry)
    });
    let got = words(&got.unwrap());
    let all = (THREADS * BLOCKS) as f32;
    assert_eq!(f32::from_bits(got[0]), all * (all - 1.0) / 2.0 + 0.5);
    // Subnormal numbers are flushed in global memory and kept in shared memory.
    assert_eq!(got[1], 0);
    assert_eq!(got[2], (1e-40f32 + 1e-40).to_bits());
    assert_eq!(got[3], 1e-40f32.to_bits());
    assert_eq!((got[4], f32::from_bits(got[5])), (0x7fff_ffff, 16777216.0));
}

/// Adds pairs of f16, in global and in shared memory.
#[kernel(launch_bounds(THREADS))]
unsafe fn halves(out: GlobalMut<f16>) {
    let i = thread::index_1d();
    let pair = |low: f32, high: f32| [low, high].map(f16::from_f32);
    // SAFETY: eight elements, and the first two of shared memory.
    unsafe {
        out.fetch_add_x2(0, pair(1.0, -0.5), Order::Relaxed, Scope::Gpu);
        if i == 7 {
            // A tie and no tie; infinity; a subnormal sum.
            out.fetch_add_x2(2, pair(1.0, 3.0), Order::Relaxed, Scope::Gpu);
            let old = out.fetch_add_x2(
                4,
                pair(f32::NEG_INFINITY, 2f32.powi(-24)),
                Order::AcqRel,
                Scope::Gpu,
            );
            let smem = dynamic_shared_mem::<f16>();
            let zero = dynamic_shared_mem::<u32>();
            zero.set(0, 0);
            smem.fetch_add_x2(0, old, Order::Relaxed, Scope::Block);
            let [low, high] = smem.fetch_add_x2(0, old, Order::Relaxed, Scope::Block);
            out.set(6, low);
            out.set(7, high);
        }
    }
}

#[test]
fn f16_are_added_in_pairs() {
    let initial = [0.0, 0.0, 2048.0, 2048.0, f32::INFINITY, 2f32.powi(-24), 9.0, 9.0];
    let initial = initial.map(|value| f16::from_f32(value).to_le_bytes());
    let got = run(&initial.concat(), 1, |geometry, out| {
        halves::Args { out: DevicePtr::new(out) }.launch(geometry)
    });
    let got: Vec<f16> =
        got.unwrap().as_chunks::<2>().0.iter().map(|half| f16::from_le_bytes(*half)).collect();
    let all = (THREADS * BLOCKS) as f32;
    let numbers = |at: usize| [got[at].to_f32(), got[at + 1].to_f32()];
    assert_eq!(numbers(0), [all, -all / 2.0]);
    assert_eq!(numbers(2), [2048.0, 2052.0]);
    assert_eq!((got[4].to_bits(), got[5].to_f32()), (0x7fff, 2f32.powi(-23)));
    assert_eq!(numbers(6), [f32::INFINITY, 2f32.powi(-24)]);
}

/// How a message is passed.
const BY_ORDER: u32 = 0;
const BY_FENCE: u32 = 1;
const BY_NOTHING: u32 = 2;
const BY_TOO_SMALL_A_SCOPE: u32 = 3;
const BY_RELEASE_ALONE: u32 = 4;

/// Block 0 writes a number; the others wait for a flag and read the number.
#[kernel(
    launch_bounds(THREADS),
    instances(
        pass_by_order = <BY_ORDER>,
        pass_by_fence = <BY_FENCE>,
        pass_by_nothing = <BY_NOTHING>,
        pass_by_too_small_a_scope = <BY_TOO_SMALL_A_SCOPE>,
        pass_by_release_alone = <BY_RELEASE_ALONE>
    )
)]
unsafe fn pass_message<const HOW: u32>(out: GlobalMut<u32>) {
    let block = thread::block_idx_x() as usize;
    if thread::thread_idx_x() != 5 {
        return;
    }
    let scope = if HOW == BY_TOO_SMALL_A_SCOPE { Scope::Block } else { Scope::Gpu };
    let relaxed = matches!(HOW, BY_FENCE | BY_NOTHING);
    // SAFETY: flag, message, and a copy for each block.
    unsafe {
        if block == 0 {
            out.set(1, 42);
            if HOW == BY_FENCE {
                atomic::fence(Scope::Gpu);
            }
            if relaxed {
                out.store_relaxed(0, 1, scope);
            } else {
                out.store_release(0, 1, scope);
            }
        } else {
            let acquires = !relaxed && HOW != BY_RELEASE_ALONE;
            while 0
                == if acquires { out.load_acquire(0, scope) } else { out.load_relaxed(0, scope) }
            {
                atomic::nanosleep(100);
            }
            if HOW == BY_FENCE {
                atomic::fence(Scope::Gpu);
            }
            out.set(2 + block, out.get(1));
        }
    }
}

#[test]
fn a_message_needs_release_and_acquire() {
    use pass_message::Instance;
    for seed in simt::seeds() {
        let run = |instance| {
            let initial = [0; 4 * (2 + BLOCKS as usize)];
            run(&initial, seed, |geometry, out| {
                pass_message::Args { out: DevicePtr::new(out) }.launch(instance, geometry)
            })
        };
        for instance in [Instance::pass_by_order, Instance::pass_by_fence] {
            assert_eq!(words(&run(instance).unwrap())[2..], [0, 42, 42], "{instance:?}");
        }
        let wrong = [Instance::pass_by_nothing, Instance::pass_by_release_alone];
        for instance in wrong.into_iter().chain([Instance::pass_by_too_small_a_scope]) {
            let fault = run(instance).expect_err("nothing orders the message");
            assert!(matches!(fault.kind, FaultKind::Race { .. }), "{instance:?}: {fault}");
            assert!(fault.by.unwrap().location.contains("tests/atomic.rs:"));
        }
    }
}

/// Every block writes a number; the last block to increment the counter adds them up.
#[kernel(launch_bounds(THREADS), instances(last_block = <true>, last_block_unordered = <false>))]
unsafe fn sum_of_blocks<const ORDERED: bool>(out: GlobalMut<u32>) {
    if thread::thread_idx_x() != 0 {
        return;
    }
    let order = if ORDERED { Order::AcqRel } else { Order::Relaxed };
    // SAFETY: counter, sum, and a number for each block.
    unsafe {
        let block = thread::block_idx_x();
        out.set(2 + block as usize, 10 + block);
        if out.fetch_add(0, 1, order, Scope::Gpu) == BLOCKS - 1 {
            out.set(1, (0..BLOCKS as usize).map(|block| out.get(2 + block)).sum());
        }
    }
}

#[test]
fn the_last_block_sees_the_writes_of_all() {
    use sum_of_blocks::Instance;
    for seed in simt::seeds() {
        let run = |instance| {
            run(&[0; 4 * 5], seed, |geometry, out| {
                sum_of_blocks::Args { out: DevicePtr::new(out) }.launch(instance, geometry)
            })
        };
        assert_eq!(words(&run(Instance::last_block).unwrap())[1], 33);
        let fault = run(Instance::last_block_unordered).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
    }
}
