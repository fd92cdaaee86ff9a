//! Views of global and shared memory: one access for every element type and width.

use cuda_std::launch::{DevicePtr, Geometry};
use cuda_std::prelude::*;
use cuda_std::{Bf16x2, E4m3, E5m2x2, Element, F16x2};
use half::{bf16, f16};
use simt::{Fault, FaultKind, Init, Memory, Report};

/// Bytes that one kernel copies.
const BYTES: usize = 64;

const GEOMETRY: Geometry = Geometry { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 1024 };

/// Copies [`BYTES`] in vectors of `N` elements `T`, through shared memory and back; the reads start
/// `SKEW` elements on.
#[kernel(
    launch_bounds(1),
    instances(
        u8_1 = <u8, 1, 0>, u8_2 = <u8, 2, 0>, u8_4 = <u8, 4, 0>, u8_16 = <u8, 16, 0>,
        u16_1 = <u16, 1, 0>, u16_8 = <u16, 8, 0>,
        f16_1 = <f16, 1, 0>, f16_2 = <f16, 2, 0>, f16_4 = <f16, 4, 0>, f16_8 = <f16, 8, 0>,
        bf16_1 = <bf16, 1, 0>, bf16_8 = <bf16, 8, 0>,
        u32_1 = <u32, 1, 0>, u32_2 = <u32, 2, 0>, u32_4 = <u32, 4, 0>,
        i32_1 = <i32, 1, 0>, i32_4 = <i32, 4, 0>,
        f32_1 = <f32, 1, 0>, f32_2 = <f32, 2, 0>, f32_4 = <f32, 4, 0>,
        u64_1 = <u64, 1, 0>, u64_2 = <u64, 2, 0>,
        e4m3_16 = <E4m3, 16, 0>, e5m2x2_2 = <E5m2x2, 2, 0>, f16x2_1 = <F16x2, 1, 0>,
        f16x2_4 = <F16x2, 4, 0>, bf16x2_2 = <Bf16x2, 2, 0>,
        u8_2_skewed = <u8, 2, 1>, f16_2_skewed = <f16, 2, 1>, f16_4_skewed = <f16, 4, 2>,
        f32_4_skewed = <f32, 4, 2>, u64_2_skewed = <u64, 2, 1>
    )
)]
unsafe fn carry<T: Element, const N: usize, const SKEW: usize>(x: Global<u8>, out: GlobalMut<u8>) {
    let (x, out) = (x.cast::<T>(), out.cast::<T>());
    // SAFETY: `BYTES` in both buffers and twice in shared memory.
    unsafe {
        let smem = dynamic_shared_mem::<u8>().cast::<T>();
        let second = smem.offset((BYTES / size_of::<T>()) as u32);
        for start in (0..BYTES / size_of::<T>()).step_by(N) {
            let at = start as u32;
            let vector: [T; N] = match start / N % 3 {
                0 => x.get_vec(start + SKEW),
                1 => x.stream_vec(start + SKEW),
                _ => GlobalMut::get_vec(out, start),
            };
            smem.set_vec(at, vector);
            second.set_vec(at, smem.offset(at).get_vec_at::<0, N>());
            out.set_vec(start, second.get_vec::<N>(at));
        }
    }
}

fn pattern() -> Vec<u8> {
    (0..BYTES as u32).map(|i| (i * 167 + 41) as u8).collect()
}

fn run(instance: carry::Instance) -> Result<(Report, Vec<u8>), Fault> {
    let mut memory = Memory::new();
    let x = memory.alloc("x", Init::Bytes(&pattern()));
    // Data read from `out` is copied back to where it was.
    let out = memory.alloc("out", Init::Bytes(&pattern()));
    let launch =
        carry::Args { x: DevicePtr::new(x), out: DevicePtr::new(out) }.launch(instance, GEOMETRY);
    let report = launch.emulate(&mut memory, 0)?;
    let mut bytes = vec![0; BYTES];
    memory.read(out, &mut bytes).unwrap();
    Ok((report, bytes))
}

#[test]
fn every_width_of_every_element_is_one_access() {
    let instances = carry::Instance::ALL.iter().filter(|instance| instance.skew() == 0);
    let mut vectors_of = Vec::new();
    for &instance in instances {
        let (report, bytes) = run(instance).unwrap();
        assert_eq!(bytes, pattern(), "{instance:?}");
        vectors_of.push((instance.symbol(), BYTES as u64 * 6 / report.accesses));
    }
    let want = [
        ("u8_1", 1),
        ("u8_2", 2),
        ("u8_4", 4),
        ("u8_16", 16),
        ("u16_1", 2),
        ("u16_8", 16),
        ("f16_1", 2),
        ("f16_2", 4),
        ("f16_4", 8),
        ("f16_8", 16),
        ("bf16_1", 2),
        ("bf16_8", 16),
        ("u32_1", 4),
        ("u32_2", 8),
        ("u32_4", 16),
        ("i32_1", 4),
        ("i32_4", 16),
        ("f32_1", 4),
        ("f32_2", 8),
        ("f32_4", 16),
        ("u64_1", 8),
        ("u64_2", 16),
        ("e4m3_16", 16),
        ("e5m2x2_2", 4),
        ("f16x2_1", 4),
        ("f16x2_4", 16),
        ("bf16x2_2", 8),
    ];
    assert_eq!(vectors_of, want);
}

#[test]
fn a_vector_is_aligned_to_its_size() {
    for &instance in carry::Instance::ALL.iter().filter(|instance| instance.skew() > 0) {
        let fault = run(instance).unwrap_err();
        let FaultKind::Misaligned { align, .. } = fault.kind else { panic!("{fault}") };
        let want = match instance.symbol() {
            "u8_2_skewed" => 2,
            "f16_2_skewed" => 4,
            "f16_4_skewed" => 8,
            _ => 16,
        };
        assert_eq!(align, want, "{instance:?}");
    }
}

/// Loads words 4 to 7 of `x`, if `condition` is not 0.
#[kernel(launch_bounds(1))]
unsafe fn load_if(condition: u32, x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: eight words in `x`, if `condition` holds, and sixteen in `out`.
    unsafe {
        out.set_vec::<4>(0, x.get_vec_if(4, condition != 0));
        out.set_vec::<4>(4, x.stream_vec_if(4, condition != 0));
        out.set_vec::<4>(8, x.speculate_vec_if(4, condition != 0));
        out.set_vec::<1>(12, x.get_vec_if(7, condition != 0));
        out.set_vec::<1>(13, x.stream_vec_if(5, condition != 0));
        out.set_vec::<2>(14, x.stream_vec_if(6, condition != 0));
    }
}

#[test]
fn a_conditional_load_without_its_condition_reads_nothing_and_returns_zeros() {
    for (condition, words, want) in [
        (1, 8, Some([4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 7, 5, 6, 7])),
        (0, 4, Some([0; 16])),
        (1, 4, None),
    ] {
        let mut memory = Memory::new();
        let x: Vec<u8> = (0..words).flat_map(u32::to_le_bytes).collect();
        let x = memory.alloc("x", Init::Bytes(&x));
        let out = memory.alloc("out", Init::Poisoned(4 * 16));
        let launch = load_if::Args { condition, x: DevicePtr::new(x), out: DevicePtr::new(out) }
            .launch(GEOMETRY);
        assert_eq!(launch.emulate(&mut memory, 0).is_ok(), want.is_some());
        if let Some(want) = want {
            let mut bytes = [0; 4 * 16];
            memory.read(out, &mut bytes).unwrap();
            assert_eq!(bytes.as_chunks().0, want.map(u32::to_le_bytes));
        }
    }
}

/// Loads four words of `x` that may be uninitialised, and stores them on request.
#[kernel(launch_bounds(1))]
unsafe fn speculate(is_written: u32, x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: four words in both.
    unsafe {
        let words: [u32; 4] = x.speculate_vec_if(0, true);
        if is_written != 0 {
            out.set_vec(0, words);
        }
    }
}

#[test]
fn a_speculative_load_reads_uninitialised_elements_but_not_past_the_end() {
    for (len, is_right) in [(16, true), (8, false)] {
        let mut memory = Memory::new();
        let x = memory.alloc("x", Init::Poisoned(len));
        let out = memory.alloc("out", Init::Bytes(&[7; 16]));
        let launch =
            speculate::Args { is_written: 0, x: DevicePtr::new(x), out: DevicePtr::new(out) }
                .launch(GEOMETRY);
        assert_eq!(launch.emulate(&mut memory, 0).is_ok(), is_right);
        let mut bytes = [0; 16];
        memory.read(out, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 16]);
    }
}

/// Writes single elements, and the addresses of views.
#[kernel(launch_bounds(1))]
unsafe fn addresses(x: Global<f16>, out: GlobalMut<u64>) {
    // SAFETY: eight numbers, and 1024 bytes of shared memory.
    unsafe {
        let smem = dynamic_shared_mem::<f32>();
        out.set(0, x.address());
        out.set(1, x.add(3).address());
        out.set(2, x.cast::<u64>().wrapping_add(2).address());
        out.set(3, out.address());
        out.set(4, u64::from(smem.address() % 1024));
        out.set(5, u64::from(smem.offset(5).address() - smem.address()));
        out.set(6, u64::from(smem.cast::<u8>().offset(5).address() - smem.address()));
        out.set(7, u64::from(smem.cast::<f16>().xor(3).address() - smem.address()));
    }
}

#[test]
fn a_view_is_an_address_in_elements() {
    let mut memory = Memory::new();
    let x = memory.alloc("x", Init::Poisoned(64));
    let out = memory.alloc("out", Init::Poisoned(64));
    let launch =
        addresses::Args { x: DevicePtr::new(x), out: DevicePtr::new(out) }.launch(GEOMETRY);
    launch.emulate(&mut memory, 0).unwrap();
    let mut bytes = [0; 64];
    memory.read(out, &mut bytes).unwrap();
    let got = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    assert_eq!(got.collect::<Vec<_>>(), [x, x + 6, x + 16, out, 0, 20, 5, 6]);
}
