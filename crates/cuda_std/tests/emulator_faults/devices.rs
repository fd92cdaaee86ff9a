//! Devices that run at the same time, and send each other messages.

use cuda_std::atomic::{Order, Scope};
use cuda_std::launch::{DevicePtr, Launch};
use cuda_std::peer;
use cuda_std::prelude::*;
use simt::{Fault, FaultKind, Init, Memory, Unordered};

use super::NO_FAULT;
use super::planted::{assert_found, assert_right, geometry};

const NUM_DEVICES: usize = 2;
const NUM_CALLS: usize = 3;
const THREADS: u32 = 64;

const GPU_SCOPE_STORE: u32 = 1;
const GPU_SCOPE_LOAD: u32 = 2;
const GPU_SCOPE_FENCE: u32 = 3;
const NO_RELEASE: u32 = 4;
const NO_BARRIER: u32 = 5;
const NO_END: u32 = 6;

type Run = Result<Vec<f32>, Fault>;

fn f32s(memory: &Memory, address: u64, len: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * len];
    memory.read(address, &mut bytes).unwrap();
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// `calls` launches of each device, under every seed; the output is device 0's.
fn run(
    calls: [usize; NUM_DEVICES],
    prepare: impl Fn(&mut Memory, usize) -> Vec<u64>,
    launch: impl Fn(usize, &[Vec<u64>]) -> Launch,
) -> Vec<Run> {
    let one = |seed| {
        let mut memory = Memory::new();
        let buffers: Vec<_> = (0..NUM_DEVICES).map(|device| prepare(&mut memory, device)).collect();
        let streams: Vec<Vec<_>> = (0..NUM_DEVICES)
            .map(|device| (0..calls[device]).map(|_| launch(device, &buffers)).collect())
            .collect();
        Launch::emulate_streams(&streams, &mut memory, seed)?;
        Ok(f32s(&memory, buffers[0][0], THREADS as usize))
    };
    simt::seeds().map(one).collect()
}

fn why(run: &Run) -> Unordered {
    match run.as_ref().unwrap_err().kind {
        FaultKind::Race { why, .. } => why,
        ref kind => panic!("{kind:?}"),
    }
}

fn is_race(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::Race { .. })
}

/// Stores numbers in the peer's memory, then a flag, and adds what the peer has stored; then both
/// say that they have read.
#[kernel(
    launch_bounds(THREADS),
    instances(
        swap = <NO_FAULT>,
        swap_store_of_gpu_scope = <GPU_SCOPE_STORE>,
        swap_load_of_gpu_scope = <GPU_SCOPE_LOAD>,
        swap_fence_of_gpu_scope = <GPU_SCOPE_FENCE>,
        swap_without_release = <NO_RELEASE>,
        swap_without_barrier = <NO_BARRIER>,
        swap_without_end = <NO_END>
    )
)]
unsafe fn swap_f32<const FAULT: u32>(
    rank: u32,
    calls: GlobalMut<u32>,
    own_flags: GlobalMut<u32>,
    peer_flags: GlobalMut<u32>,
    own_box: GlobalMut<f32>,
    peer_box: GlobalMut<f32>,
    out: GlobalMut<f32>,
) {
    let i = thread::thread_idx_x() as usize;
    let store_scope = if FAULT == GPU_SCOPE_STORE { Scope::Gpu } else { Scope::System };
    let load_scope = if FAULT == GPU_SCOPE_LOAD { Scope::Gpu } else { Scope::System };
    // SAFETY: 64 elements each, two flags of each device, and the count of its calls.
    unsafe {
        let call = calls.get(0) + 1;
        peer_box.set(i, (rank * 100 + call) as f32); // data
        if FAULT != NO_BARRIER {
            thread::sync_threads();
        }
        if i == 0 {
            match FAULT {
                NO_RELEASE => peer_flags.store_relaxed(0, call, Scope::System),
                GPU_SCOPE_FENCE => {
                    atomic::fence(Scope::Gpu);
                    peer_flags.store_relaxed(0, call, Scope::System);
                }
                _ => peer_flags.store_release(0, call, store_scope), // flag
            }
            while own_flags.load_acquire(0, load_scope) < call {} // flag
        }
        thread::sync_threads();
        out.set(i, own_box.get(i)); // data
        thread::sync_threads();
        if i == 0 {
            calls.set(0, call);
        }
        if i == 0 && FAULT != NO_END {
            peer_flags.store_release(1, call, Scope::System);
            while own_flags.load_acquire(1, Scope::System) < call {} // end
        }
    }
}

fn swaps(instance: swap_f32::Instance, calls: [usize; NUM_DEVICES]) -> Vec<Run> {
    let prepare = |memory: &mut Memory, device: usize| {
        let mut buffer = |name: &str, init| memory.alloc(format!("{name} of {device}"), init);
        vec![
            buffer("out", Init::Poisoned(4 * THREADS as usize)),
            buffer("calls", Init::Bytes(&[0; 4])),
            buffer("flags", Init::Bytes(&[0; 8])),
            buffer("box", Init::Poisoned(4 * THREADS as usize)),
        ]
    };
    run(calls, prepare, |device, buffers| {
        let (own, peer) = (&buffers[device], &buffers[1 - device]);
        swap_f32::Args {
            rank: device as u32,
            calls: DevicePtr::new(own[1]),
            own_flags: DevicePtr::new(own[2]),
            peer_flags: DevicePtr::new(peer[2]),
            own_box: DevicePtr::new(own[3]),
            peer_box: DevicePtr::new(peer[3]),
            out: DevicePtr::new(own[0]),
        }
        .launch(instance, geometry(1, THREADS))
    })
}

#[test]
fn release_and_acquire_between_devices() {
    use swap_f32::Instance;
    let all = [NUM_CALLS; NUM_DEVICES];
    assert_right(&swaps(Instance::swap, all), |_| (100 + NUM_CALLS) as f32);
    for (instance, symbol, reason) in [
        (Instance::swap_store_of_gpu_scope, "swap_store_of_gpu_scope", Unordered::NarrowScope),
        (Instance::swap_load_of_gpu_scope, "swap_load_of_gpu_scope", Unordered::NarrowScope),
        (Instance::swap_fence_of_gpu_scope, "swap_fence_of_gpu_scope", Unordered::NarrowRelease),
        (Instance::swap_without_release, "swap_without_release", Unordered::Plain),
        (Instance::swap_without_barrier, "swap_without_barrier", Unordered::Plain),
    ] {
        let runs = swaps(instance, all);
        // A thread that reads the box before it is written finds nothing there.
        let is_right = |kind: &FaultKind| {
            is_race(kind) || symbol == "swap_without_barrier" && is_uninitialised(kind)
        };
        let report = assert_found(&runs, symbol, &["// data", "// flag"], is_right);
        assert!(report.contains(" of launch 0 on device "), "{report}");
        for run in runs.iter().filter(|run| is_race(&run.as_ref().unwrap_err().kind)) {
            assert_eq!(why(run), reason, "{run:?}");
        }
    }
    // A device that is ahead stores its next message where the peer still reads.
    let report = assert_found(
        &swaps(Instance::swap_without_end, all),
        "swap_without_end",
        &["// data"],
        is_race,
    );
    assert!(report.contains(" of launch 1 on device "), "{report}");
}

fn is_uninitialised(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::Uninitialised(_))
}

#[test]
fn a_device_that_leaves() {
    use swap_f32::Instance;
    for calls in [[NUM_CALLS, NUM_CALLS - 1], [1, 0], [0, 1]] {
        let runs = swaps(Instance::swap, calls);
        let is_livelock = |kind: &FaultKind| matches!(kind, FaultKind::Livelock(_));
        let report = assert_found_at_end(&runs, is_livelock);
        let gone = if calls[0] < calls[1] { 0 } else { 1 };
        let why = format!(
            "polls `flags of {}` + 0 (of 8), which no thread changes; nothing is left to run on \
             device {gone}",
            1 - gone
        );
        assert!(report.contains(&why), "{report}");
    }
}

/// As `assert_found`, for faults of threads that wait at several lines.
fn assert_found_at_end(runs: &[Run], is_right: impl Fn(&FaultKind) -> bool) -> String {
    for run in runs {
        let fault = run.as_ref().unwrap_err();
        assert!(is_right(&fault.kind), "{fault}");
    }
    runs[0].as_ref().unwrap_err().to_string()
}

const ONE_BUFFER: u32 = 1;
const FLAG_APART: u32 = 2;
const WAITS_LATE: u32 = 3;

/// Sends a line to the peer with its flag, and adds the peer's line to `out`. There are two lines a
/// thread, used in turn.
#[kernel(
    launch_bounds(THREADS),
    overlaps,
    instances(
        lines = <NO_FAULT>,
        lines_of_one_buffer = <ONE_BUFFER>,
        lines_with_flags_apart = <FLAG_APART>,
        lines_with_a_late_wait = <WAITS_LATE>
    )
)]
unsafe fn lines_f32<const FAULT: u32>(
    rank: u32,
    calls: GlobalMut<u32>,
    own: GlobalMut<u64>,
    peer: GlobalMut<u64>,
    out: GlobalMut<f32>,
) {
    let i = thread::thread_idx_x() as usize;
    if FAULT != WAITS_LATE {
        grid::wait_for_dependencies();
    }
    grid::launch_dependents();
    // SAFETY: 64 elements, 64 lines twice, the count of calls.
    unsafe {
        let call = calls.get(0) + 1;
        grid::wait_for_dependencies();
        let buffer = if FAULT == ONE_BUFFER { 0 } else { call as usize % 2 };
        let line = buffer * THREADS as usize + i;
        let data = [((rank * 100 + call) as f32).to_bits(), i as u32];
        if FAULT == FLAG_APART {
            let words = peer.cast::<u32>();
            unroll!(word in 0..4, {
                let value = if word.is_multiple_of(2) { data[word / 2] } else { call };
                words.store_relaxed(4 * line + word, value, Scope::System); // line
            });
        } else {
            peer::store_flagged(peer, line, data, call); // line
        }
        thread::sync_threads();
        if i == 0 {
            calls.set(0, call);
        }
        let received = loop {
            if let Some(received) = peer::load_flagged(own, line, call) {
                break received;
            }
        };
        assert_eq!(received[1], i as u32);
        out.set(i, f32::from_bits(received[0]));
    }
}

fn lines(instance: lines_f32::Instance, calls: [usize; NUM_DEVICES]) -> Vec<Run> {
    let prepare = |memory: &mut Memory, device: usize| {
        let mut buffer = |name: &str, init| memory.alloc(format!("{name} of {device}"), init);
        vec![
            buffer("out", Init::Poisoned(4 * THREADS as usize)),
            buffer("calls", Init::Bytes(&[0; 4])),
            buffer("lines", Init::Bytes(&[0; 2 * peer::LINE_BYTES * THREADS as usize])),
        ]
    };
    run(calls, prepare, |device, buffers| {
        let (own, peer) = (&buffers[device], &buffers[1 - device]);
        lines_f32::Args {
            rank: device as u32,
            calls: DevicePtr::new(own[1]),
            own: DevicePtr::new(own[2]),
            peer: DevicePtr::new(peer[2]),
            out: DevicePtr::new(own[0]),
        }
        .launch(instance, geometry(1, THREADS))
    })
}

#[test]
fn lines_that_hold_their_flag() {
    use lines_f32::Instance;
    let all = [NUM_CALLS; NUM_DEVICES];
    assert_right(&lines(Instance::lines, all), |_| (100 + NUM_CALLS) as f32);
    let runs = lines(Instance::lines_of_one_buffer, all);
    let report = assert_found(&runs, "lines_of_one_buffer", &["// line", "load_flagged("], is_race);
    assert!(report.contains("it received a message there, and nothing orders that"), "{report}");
    assert!(runs.iter().all(|run| why(run) == Unordered::Reused), "{runs:?}");
    let runs = lines(Instance::lines_with_flags_apart, all);
    let report =
        assert_found(&runs, "lines_with_flags_apart", &["// line", "load_flagged("], is_race);
    assert!(report.contains("both are atomic, but of different sizes"), "{report}");
    let runs = lines(Instance::lines_with_a_late_wait, all);
    let report = assert_found(&runs, "lines_with_a_late_wait", &["calls."], is_race);
    assert!(report.contains("nothing orders griddepcontrol.wait between the two"), "{report}");
    // A line whose reader has left is not reused too early, and is not waited for.
    let is_livelock = |kind: &FaultKind| matches!(kind, FaultKind::Livelock(_));
    let report = assert_found_at_end(&lines(Instance::lines, [NUM_CALLS, 1]), is_livelock);
    assert!(report.contains("nothing is left to run on device 1"), "{report}");
}

/// A counter of both devices, which is atomic on each of them.
#[kernel(launch_bounds(THREADS), instances(count = <true>, count_in_gpu_scope = <false>))]
unsafe fn count_u32<const SYSTEM: bool>(counter: GlobalMut<u32>, out: GlobalMut<f32>) {
    let scope = if SYSTEM { Scope::System } else { Scope::Gpu };
    // SAFETY: a counter, and an element a thread.
    unsafe {
        counter.fetch_add(0, 1, Order::Relaxed, scope); // count
        out.set(thread::thread_idx_x() as usize, 1.0);
    }
}

#[test]
fn a_counter_of_two_devices() {
    use count_u32::Instance;
    let count = |instance| {
        let prepare = |memory: &mut Memory, _| {
            vec![
                memory.alloc("out", Init::Poisoned(4 * THREADS as usize)),
                memory.alloc("counter", Init::Bytes(&[0; 4])),
            ]
        };
        run([1; NUM_DEVICES], prepare, move |device, buffers| {
            let counter = DevicePtr::new(buffers[0][1]);
            count_u32::Args { counter, out: DevicePtr::new(buffers[device][0]) }
                .launch(instance, geometry(1, THREADS))
        })
    };
    assert_right(&count(Instance::count), |_| 1.0);
    let runs = count(Instance::count_in_gpu_scope);
    assert_found(&runs, "count_in_gpu_scope", &["// count"], is_race);
    assert!(runs.iter().all(|run| why(run) == Unordered::NarrowScope), "{runs:?}");
}
