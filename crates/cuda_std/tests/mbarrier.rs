//! mbarriers, against the PTX ISA's section "Parallel Synchronization and Communication
//! Instructions: mbarrier".

mod words;

use cuda_std::bulk::CacheHint;
use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::prelude::*;
use simt::{Fault, FaultKind, Init, Memory};

/// Runs `launch` on an output of `len` words with every seed.
fn outputs(len: usize, launch: impl Fn(DevicePtr<u32>) -> Launch) -> Vec<Result<Vec<u32>, Fault>> {
    let run = |seed| {
        let mut memory = Memory::new();
        let out = memory.alloc("out", Init::Poisoned(4 * len));
        launch(DevicePtr::new(out)).emulate(&mut memory, seed)?;
        Ok(words::read(&memory, out, len))
    };
    simt::seeds().map(run).collect()
}

fn geometry(num_threads: u32) -> Geometry {
    Geometry { grid: [1, 1, 1], block: [num_threads, 1, 1], shared_bytes: 1024 }
}

/// One thread: `test_wait` of both parities after each step.
#[kernel(launch_bounds(1))]
unsafe fn phases(out: GlobalMut<u32>) {
    // SAFETY: a word of shared memory, and two numbers per step.
    unsafe {
        let barrier = Mbarrier::new(shared_array![u64; 3]).offset(2);
        barrier.init(3);
        for step in 0..6 {
            out.set(2 * step, u32::from(barrier.test_wait(0)));
            out.set(2 * step + 1, u32::from(barrier.test_wait(1)));
            match step {
                0 => barrier.arrive(),
                1 => barrier.arrive_count(2),
                2 => barrier.arrive_count(3),
                3 => barrier.arrive_count(2),
                _ => barrier.arrive(),
            }
        }
        barrier.wait(0);
    }
}

#[test]
fn phases_complete_when_all_have_arrived() {
    // Phases completed before each step: the parity of the last one can be waited for.
    let ended = [0, 0, 1, 2, 2, 3];
    let want: Vec<u32> = ended.iter().flat_map(|ended| [ended % 2, 1 - ended % 2]).collect();
    for got in outputs(12, |out| phases::Args { out }.launch(geometry(1))) {
        assert_eq!(got.unwrap(), want);
    }
}

/// `test_wait` of the first phase while bytes are expected, and after they have arrived; `EARLY` if
/// the copy is issued before its bytes are expected.
#[kernel(launch_bounds(1), instances(late_copy = <false>, early_copy = <true>))]
unsafe fn transactions<const EARLY: bool>(x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: 16 words each, and a barrier.
    unsafe {
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        let smem: Shared<u32> = dynamic_shared_mem();
        barrier.init(1);
        fence::mbarrier_init();
        if EARLY {
            bulk::load(smem, x, 64, barrier, CacheHint::EvictFirst);
            barrier.expect_tx(64);
            out.set(16, u32::from(barrier.test_wait(0)));
            barrier.arrive();
        } else {
            barrier.arrive_expect_tx(64);
            out.set(16, u32::from(barrier.test_wait(0)));
            bulk::load(smem, x, 64, barrier, CacheHint::EvictFirst);
        }
        while !barrier.try_wait(0) {}
        for i in 0..16 {
            out.set(i as usize, smem.get(i));
        }
    }
}

#[test]
fn phases_complete_when_all_bytes_have_arrived() {
    use transactions::Instance;
    let x: Vec<u32> = (100..116).collect();
    for instance in [Instance::late_copy, Instance::early_copy] {
        for seed in simt::seeds() {
            let mut memory = Memory::new();
            let out = memory.alloc("out", Init::Poisoned(68));
            let from = words::alloc(&mut memory, "x", &x);
            let (from, to) = (DevicePtr::new(from), DevicePtr::new(out));
            let launch = transactions::Args { x: from, out: to }.launch(instance, geometry(1));
            launch.emulate(&mut memory, seed).unwrap();
            let got = words::read(&memory, out, 17);
            assert_eq!((&got[..16], got[16]), (&x[..], 0), "{instance:?}");
        }
    }
}

/// Stages of the circular buffer, and its iterations.
const NUM_STAGES: u32 = 3;
const ROUNDS: u32 = 11;

/// Lanes of warp 0 pass numbers to those of warp 1 through a circular buffer of stages, one number
/// per lane and round. Without `FULL` the consumers do not wait, without `EMPTY` the producers do
/// not.
#[kernel(
    launch_bounds(64),
    instances(
        ring = <32, true, true>,
        ring_reads_early = <32, false, true>,
        ring_writes_early = <1, true, false>
    )
)]
unsafe fn pass<const LANES: u32, const FULL: bool, const EMPTY: bool>(out: GlobalMut<u32>) {
    // SAFETY: `LANES` words and two barriers per stage, `LANES` numbers per round.
    unsafe {
        let full = Mbarrier::new(shared_array![u64; NUM_STAGES as usize]);
        let empty = Mbarrier::new(shared_array![u64; NUM_STAGES as usize]);
        let smem: Shared<u32> = dynamic_shared_mem();
        if thread::thread_idx_x() == 0 {
            for stage in 0..NUM_STAGES {
                full.offset(stage).init(LANES);
                empty.offset(stage).init(LANES);
            }
        }
        thread::sync_threads();
        let lane = warp::lane_id();
        if lane >= LANES {
            return;
        }
        for round in 0..ROUNDS {
            let (stage, parity) = (round % NUM_STAGES, round / NUM_STAGES % 2);
            let (full, empty) = (full.offset(stage), empty.offset(stage));
            let slot = LANES * stage + lane;
            if warp::warp_idx() == 0 {
                if EMPTY {
                    empty.wait(parity ^ 1);
                }
                smem.set(slot, 100 * round + lane);
                full.arrive();
            } else {
                if FULL {
                    full.wait(parity);
                }
                // Another lane's number, since all of them have arrived.
                let got = smem.get(slot ^ (LANES - 1));
                empty.arrive();
                out.set((LANES * round + lane) as usize, got);
            }
        }
    }
}

#[test]
fn a_circular_buffer_passes_every_number() {
    let want: Vec<u32> =
        (0..ROUNDS).flat_map(|round| (0..32).map(move |lane| 100 * round + 31 - lane)).collect();
    let launch = |out| pass::Args { out }.launch(pass::Instance::ring, geometry(64));
    for got in outputs(32 * ROUNDS as usize, launch) {
        assert_eq!(got.unwrap(), want);
    }
}

#[test]
fn a_missing_wait_is_found() {
    let kinds = |instance| {
        let launch = |out| pass::Args { out }.launch(instance, geometry(64));
        outputs(32 * ROUNDS as usize, launch).into_iter().map(|got| got.unwrap_err().kind)
    };
    for kind in kinds(pass::Instance::ring_reads_early) {
        assert!(matches!(kind, FaultKind::Race { .. } | FaultKind::Uninitialised(_)), "{kind:?}");
    }
    // With a producer two phases ahead, the consumer waits for a parity that has passed.
    for kind in kinds(pass::Instance::ring_writes_early) {
        assert!(matches!(kind, FaultKind::Race { .. } | FaultKind::Deadlock(_)), "{kind:?}");
    }
}

/// Each thread copies an element by `cp.async` and reads another thread's: if `COUNTED`, without
/// `.noinc`, so that every thread arrives itself as well.
#[kernel(launch_bounds(64), instances(cp_async_counted = <true>, cp_async_noinc = <false>))]
unsafe fn copies<const COUNTED: bool>(x: Global<f32>, out: GlobalMut<f32>) {
    // SAFETY: 64 elements each, and a barrier.
    unsafe {
        let barrier = Mbarrier::new(shared_array![u64; 1]);
        let smem: Shared<f32> = dynamic_shared_mem();
        let i = thread::thread_idx_x();
        if i == 0 {
            barrier.init(64);
        }
        thread::sync_threads();
        cp_async::copy(smem, i, x, i as usize, true);
        if COUNTED {
            barrier.arrive_cp_async();
            barrier.arrive();
        } else {
            barrier.arrive_cp_async_noinc();
        }
        barrier.wait(0);
        out.set(i as usize, smem.get(63 - i));
    }
}

#[test]
fn copies_of_threads_arrive() {
    use copies::Instance;
    let x: Vec<u32> = (0..64).map(|i| (i as f32 + 0.5).to_bits()).collect();
    let want: Vec<u32> = x.iter().rev().copied().collect();
    for instance in [Instance::cp_async_counted, Instance::cp_async_noinc] {
        for seed in simt::seeds() {
            let mut memory = Memory::new();
            let out = memory.alloc("out", Init::Poisoned(256));
            let from = DevicePtr::new(words::alloc(&mut memory, "x", &x));
            let launch =
                copies::Args { x: from, out: DevicePtr::new(out) }.launch(instance, geometry(64));
            launch.emulate(&mut memory, seed).unwrap();
            assert_eq!(words::read(&memory, out, 64), want, "{instance:?}");
        }
    }
}

/// The memory of an invalidated barrier is reused for numbers and for another barrier; `ARRIVE` is
/// an arrival on it in between.
#[kernel(launch_bounds(1), instances(reused = <false>, used_behind_its_end = <true>))]
unsafe fn reuse<const ARRIVE: bool>(out: GlobalMut<u32>) {
    // SAFETY: one word of shared memory, which is a barrier from `init` to `inval`.
    unsafe {
        let barrier = Mbarrier::new(dynamic_shared_mem());
        let number: Shared<u32> = dynamic_shared_mem();
        barrier.init(1);
        barrier.arrive();
        barrier.inval();
        if ARRIVE {
            barrier.arrive();
        }
        number.set(0, 5);
        out.set(0, number.get(0));
        barrier.init(2);
        for arrivals in 0..3 {
            out.set(1 + arrivals, u32::from(barrier.test_wait(0)));
            barrier.arrive();
        }
    }
}

#[test]
fn a_new_barrier_is_in_its_first_phase() {
    let run = |instance| outputs(4, |out| reuse::Args { out }.launch(instance, geometry(1)));
    for got in run(reuse::Instance::reused) {
        assert_eq!(got.unwrap(), [5, 0, 0, 1]);
    }
    assert!(run(reuse::Instance::used_behind_its_end).iter().all(Result::is_err));
}
