//! Warp-level instructions, against the PTX ISA.

use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::prelude::*;
use simt::{Fault, FaultKind, Init, Memory};
use warp::{FULL_MASK, WARP_SIZE};

/// Threads of a block: two warps, so that one of them is not the first.
const THREADS: u32 = 2 * WARP_SIZE;

/// Runs a launch with one value per thread; returns `RESULTS` words per thread.
fn run<const RESULTS: usize>(
    values: &[u32],
    seed: u64,
    launch: impl Fn(Geometry, DevicePtr<u32>, DevicePtr<u32>) -> Launch,
) -> Result<Vec<[u32; RESULTS]>, Fault> {
    let mut memory = Memory::new();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let x = memory.alloc("x", Init::Bytes(&bytes));
    let mut bytes = vec![0; THREADS as usize * RESULTS * 4];
    let out = memory.alloc("out", Init::Poisoned(bytes.len()));
    let geometry = Geometry { grid: [1; 3], block: [THREADS, 1, 1], shared_bytes: 0 };
    launch(geometry, DevicePtr::new(x), DevicePtr::new(out)).emulate(&mut memory, seed)?;
    memory.read(out, &mut bytes).unwrap();
    let words: Vec<u32> =
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    Ok(words.as_chunks::<RESULTS>().0.to_vec())
}

/// Values of both signs, with repetitions among the lanes.
fn values() -> Vec<u32> {
    (0..THREADS).map(|i| (i % 5).wrapping_mul(0x9e37_79b9) ^ (i / 32)).collect()
}

/// Writes a thread's results.
fn set_all<const RESULTS: usize>(out: GlobalMut<u32>, results: [u32; RESULTS]) {
    for (at, value) in results.into_iter().enumerate() {
        // SAFETY: `RESULTS` words per thread.
        unsafe { out.set(thread::thread_idx_x() as usize * RESULTS + at, value) };
    }
}

/// Every shuffle, by a lane or a distance that differs between lanes where it may.
#[kernel(launch_bounds(THREADS))]
unsafe fn shuffles(amount: u32, x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: one word per thread.
    let value = unsafe { x.get(thread::thread_idx_x() as usize) };
    let results = [
        warp::shuffle_xor(value, amount),
        warp::shuffle_idx(value, warp::lane_id() * amount),
        warp::shuffle_up(value, amount),
        warp::shuffle_down(value, amount),
        warp::shuffle_up(f32::from_bits(value), warp::lane_id()).to_bits(),
    ];
    set_all(out, results);
}

#[test]
fn shuffles_read_the_isas_lane() {
    // Distinct numbers without NaN.
    let values: Vec<u32> = (0..THREADS).map(|i| 1000 + i).collect();
    for amount in 0..2 * WARP_SIZE {
        let got = run::<5>(&values, 1, |geometry, x, out| {
            shuffles::Args { amount, x, out }.launch(geometry)
        });
        for (i, got) in got.unwrap().into_iter().enumerate() {
            let (first, lane) = (i as i32 / 32 * 32, i as i32 % 32);
            // Only five bits of the operand count; for a lane out of range a lane reads its own
            // value.
            let b = amount as i32 % 32;
            let value_of =
                |j: i32| values[(first + if (0..32).contains(&j) { j } else { lane }) as usize];
            let want = [
                value_of(lane ^ b),
                value_of(lane * amount as i32 % 32),
                value_of(lane - b),
                value_of(lane + b),
                value_of(0),
            ];
            assert_eq!(got, want, "thread {i}, amount {amount}");
        }
    }
}

/// Every collective, by the lanes of a mask, and by all other lanes.
#[kernel(launch_bounds(THREADS))]
unsafe fn collectives(mask: u32, x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: one word per thread.
    let value = unsafe { x.get(thread::thread_idx_x() as usize) };
    let lane_id = warp::lane_id();
    let mask = if mask >> lane_id & 1 == 1 { mask } else { !mask };
    let first = mask.trailing_zeros();
    let results = [
        warp::ballot(mask, value % 2 == 1),
        u32::from(warp::vote_all(mask, value % 2 == 1)),
        u32::from(warp::vote_any(mask, value % 2 == 1)),
        u32::from(warp::vote_all(mask, lane_id < 40)),
        warp::match_any(mask, value),
        u32::from(warp::match_all(mask, value)),
        u32::from(warp::match_all(mask, mask)),
        warp::redux_add(mask, value),
        warp::redux_min_u32(mask, value),
        warp::redux_max_u32(mask, value),
        warp::redux_min_i32(mask, value as i32) as u32,
        warp::redux_max_i32(mask, value as i32) as u32,
        warp::redux_and(mask, value),
        warp::redux_or(mask, value),
        warp::redux_xor(mask, value),
        warp::shuffle_idx_among(mask, value, first),
        warp::shuffle_xor_among(mask, value, 0),
        u32::from(warp::elect(mask)),
        warp::active_mask() & 1 << lane_id,
    ];
    set_all(out, results);
}

/// The expected results of a lane, from the `values` of its warp.
fn oracle(mask: u32, lane: usize, values: &[u32]) -> [u32; 17] {
    let mask = if mask >> lane & 1 == 1 { mask } else { !mask };
    let members: Vec<usize> = (0..32).filter(|lane| mask & 1 << lane != 0).collect();
    let lanes_where = |holds: &dyn Fn(u32) -> bool| -> u32 {
        members.iter().filter(|&&lane| holds(values[lane])).map(|lane| 1 << lane).sum()
    };
    let all: Vec<u32> = members.iter().map(|&lane| values[lane]).collect();
    let signed: Vec<i32> = all.iter().map(|&value| value as i32).collect();
    let odd = lanes_where(&|value| value % 2 == 1);
    let equal = lanes_where(&|value| value == values[lane]);
    [
        odd,
        u32::from(odd == mask),
        u32::from(odd != 0),
        1,
        equal,
        u32::from(equal == mask),
        1,
        all.iter().map(|&value| u64::from(value)).sum::<u64>() as u32,
        *all.iter().min().unwrap(),
        *all.iter().max().unwrap(),
        *signed.iter().min().unwrap() as u32,
        *signed.iter().max().unwrap() as u32,
        all.iter().fold(u32::MAX, |a, b| a & b),
        all.iter().fold(0, |a, b| a | b),
        all.iter().fold(0, |a, b| a ^ b),
        all[0],
        values[lane],
    ]
}

#[test]
fn collectives_are_of_the_lanes_of_their_mask() {
    let constant = vec![7; THREADS as usize];
    for (values, mask) in [values(), constant].iter().flat_map(|values| {
        [FULL_MASK, 1, 0xffff, 0x8000_0001, 0x5555_5555, 0x7fff_fffe].map(|mask| (values, mask))
    }) {
        for seed in simt::seeds() {
            let got = run::<19>(values, seed, |geometry, x, out| {
                collectives::Args { mask, x, out }.launch(geometry)
            });
            let mut elected = [0; 2];
            for (i, got) in got.unwrap().into_iter().enumerate() {
                let lane = i % 32;
                let want = oracle(mask, lane, &values[i - lane..i - lane + 32]);
                assert_eq!(got[..17], want, "thread {i}, mask {mask:#x}, seed {seed}");
                elected[i / 32] += got[17];
                assert_eq!(got[18], 1 << lane, "a lane is active itself");
            }
            assert_eq!(elected, [if mask == FULL_MASK { 1 } else { 2 }; 2], "one leader per mask");
        }
    }
}

/// A broken use of a partial mask.
#[kernel(
    launch_bounds(THREADS),
    instances(
        reads_inside = <0>,
        reads_outside = <1>,
        calls_from_outside = <2>,
        votes_from_outside = <3>,
        syncs_from_outside = <4>
    )
)]
unsafe fn masked<const WHAT: u32>(x: Global<u32>, out: GlobalMut<u32>) {
    const MASK: u32 = 0x0000_ffff;
    // SAFETY: one word per thread.
    let value = unsafe { x.get(thread::thread_idx_x() as usize) };
    let in_mask = warp::lane_id() < 16;
    let got = match WHAT {
        0 if in_mask => warp::shuffle_xor_among(MASK, value, 8),
        1 if in_mask => warp::shuffle_xor_among(MASK, value, 16),
        2 => warp::shuffle_idx_among(MASK, value, 3),
        3 => warp::ballot(MASK, true),
        4 => {
            warp::sync_lanes(MASK);
            0
        }
        _ => 0,
    };
    set_all(out, [got]);
}

#[test]
fn undefined_behaviour_is_a_fault() {
    use masked::Instance;
    let run = |instance| {
        run::<1>(&values(), 3, move |geometry, x, out| {
            masked::Args { x, out }.launch(instance, geometry)
        })
    };
    run(Instance::reads_inside).unwrap();
    for (instance, what) in [
        (Instance::reads_outside, " by shfl.sync.bfly.b32, whose mask 0x0000ffff"),
        (Instance::calls_from_outside, " calls shfl.sync.idx.b32 with the mask 0x0000ffff"),
        (Instance::votes_from_outside, " calls vote.sync.ballot.b32 with the mask 0x0000ffff"),
        (Instance::syncs_from_outside, " calls bar.warp.sync with the mask 0x0000ffff"),
    ] {
        let fault = run(instance).unwrap_err();
        assert!(
            matches!(&fault.kind, FaultKind::Panic(message) if message.contains(what)),
            "{fault}"
        );
        assert!(fault.by.unwrap().location.contains("tests/warp.rs:"), "{instance:?}");
    }
}

/// Half the warp exchanges through memory, ordered by its own barrier.
#[kernel(launch_bounds(THREADS), instances(ordered = <true>, unordered = <false>))]
unsafe fn half_warp<const SYNC: bool>(x: Global<u32>, out: GlobalMut<u32>) {
    let i = thread::thread_idx_x();
    // SAFETY: one word per thread.
    unsafe {
        let smem = shared_array![u32; THREADS as usize];
        smem.set(i, x.get(i as usize));
        if warp::lane_id() < 16 {
            if SYNC {
                warp::sync_lanes(0xffff);
            }
            out.set(i as usize, smem.get(i ^ 15));
        } else {
            out.set(i as usize, smem.get(i));
        }
    }
}

#[test]
fn a_barrier_of_some_lanes_orders_them() {
    use half_warp::Instance;
    let values = values();
    for seed in simt::seeds() {
        let run = |instance| {
            run::<1>(&values, seed, |geometry, x, out| {
                half_warp::Args { x, out }.launch(instance, geometry)
            })
        };
        for (i, [got]) in run(Instance::ordered).unwrap().into_iter().enumerate() {
            assert_eq!(got, values[if i % 32 < 16 { i ^ 15 } else { i }]);
        }
        assert!(matches!(
            run(Instance::unordered).unwrap_err().kind,
            FaultKind::Race { .. } | FaultKind::Uninitialised(_)
        ));
    }
}

/// Writes the warpgroup of each thread.
#[kernel(launch_bounds(384))]
unsafe fn warpgroups(out: GlobalMut<u32>) {
    // SAFETY: one word per thread.
    unsafe { out.set(thread::thread_idx_x() as usize, warp::warpgroup_idx()) };
}

#[test]
fn a_warpgroup_is_128_threads() {
    let mut memory = Memory::new();
    let out = memory.alloc("out", Init::Poisoned(384 * 4));
    let geometry = Geometry { grid: [1; 3], block: [384, 1, 1], shared_bytes: 0 };
    warpgroups::Args { out: DevicePtr::new(out) }.launch(geometry).emulate(&mut memory, 1).unwrap();
    let mut bytes = [0; 384 * 4];
    memory.read(out, &mut bytes).unwrap();
    for (i, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
        assert_eq!(u32::from_le_bytes(*word), i as u32 / 128);
    }
}

/// The greatest value of the warp, as i32, u32 and f32.
#[kernel(launch_bounds(THREADS))]
unsafe fn maxima(x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: a word a thread.
    let value = unsafe { x.get(thread::thread_idx_x() as usize) };
    let signed = warp::reduce_max(value as i32) as u32;
    set_all(
        out,
        [signed, warp::reduce_max(value), warp::reduce_max(f32::from_bits(value)).to_bits()],
    );
}

#[test]
fn reduce_max_is_that_of_the_warp() {
    let floats = [-3.5, f32::NAN, -0.0, f32::NEG_INFINITY, 2.25, -1e30];
    let negative = |i: u32| -1.5 - (i * 7 % 31) as f32;
    let cases: [Vec<u32>; 4] = [
        values(),
        (0..THREADS).map(|i| floats[i as usize % floats.len()].to_bits()).collect(),
        (0..THREADS).map(|i| negative(i).to_bits()).collect(),
        (0..THREADS).map(|i| if i == 40 { 7.0 } else { f32::NAN }.to_bits()).collect(),
    ];
    for x in &cases {
        for seed in simt::seeds() {
            let got =
                run::<3>(x, seed, |geometry, x, out| maxima::Args { x, out }.launch(geometry))
                    .unwrap();
            for (warp, x) in x.chunks(WARP_SIZE as usize).enumerate() {
                let signed = x.iter().map(|&word| word as i32).max().unwrap() as u32;
                let unsigned = *x.iter().max().unwrap();
                let floats = x.iter().map(|&word| f32::from_bits(word));
                let float = floats.filter(|value| !value.is_nan()).max_by(f32::total_cmp);
                for lane in 0..WARP_SIZE as usize {
                    let [s, u, f] = got[warp * WARP_SIZE as usize + lane];
                    assert_eq!((s, u), (signed, unsigned), "warp {warp}, lane {lane}");
                    let f = Some(f32::from_bits(f)).filter(|value| !value.is_nan());
                    assert_eq!(f, float, "warp {warp}, lane {lane}");
                }
            }
        }
    }
}
