//! `wgmma` against the PTX ISA: layouts of operands ("Shared Memory Matrix Layout"), elements of
//! registers ("Register Fragments"), and results.

mod case;
mod layout;

use std::sync::Arc;

use case::{Case, Float};
use cuda_std::launch::{ArgReader, Geometry};
use cuda_std::prelude::*;
use cuda_std::wgmma::{
    self, Accumulator, AccumulatorFor, FragmentA, InFlight, KMajor, Major, MatrixDescriptor,
    MnMajor, Swizzle, column, row,
};
use cuda_std::{E4m3, E5m2};
use half::{bf16, f16};
use layout::{Place, STEPS};
use simt::{Fault, FaultKind, Init, Memory};

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

#[test]
fn descriptors_are_the_isa_pages_bits() {
    // SAFETY: no element is accessed.
    let tile = |address| unsafe { Shared::<f16>::from_address(address) };
    let k_major = MatrixDescriptor::k_major(tile(0x8400), Swizzle::B128);
    assert_eq!(k_major.bits(), 0x4000_0040_0001_0840);
    assert_eq!(k_major.advance(32).bits(), 0x4000_0040_0001_0842);
    let narrow = |swizzle| MatrixDescriptor::k_major(tile(0x200), swizzle).bits();
    assert_eq!(narrow(Swizzle::B64), 2 << 62 | 32 << 32 | 1 << 16 | 0x20);
    assert_eq!(narrow(Swizzle::B32), 3 << 62 | 16 << 32 | 1 << 16 | 0x20);
    let v = MatrixDescriptor::mn_major(tile(0x3_8c00), 0x4000, Swizzle::B128);
    assert_eq!(v.bits(), 1 << 62 | 64 << 32 | 0x400 << 16 | 0x38c0);
    assert_eq!(v.advance(2048).bits(), v.bits() + 128);
    let bare: MatrixDescriptor<f16, KMajor> =
        MatrixDescriptor::new(tile(0x10), 256, 128, Swizzle::None);
    assert_eq!(bare.bits(), 8 << 32 | 16 << 16 | 1);
}

#[test]
fn every_register_is_one_element() {
    let mut seen = vec![false; 64 * 256];
    for (thread, register) in (0..128).flat_map(|t| (0..128).map(move |i| (t, i))) {
        let element = row(thread, register) * 256 + column(thread, register);
        assert!(!std::mem::replace(&mut seen[element as usize], true));
    }
    // Figure "Register fragment layout for accumulator matrix D", read at three places.
    assert_eq!((row(0, 0), column(0, 0)), (0, 0));
    assert_eq!((row(5, 3), column(5, 3)), (9, 3));
    assert_eq!((row(127, 6), column(127, 6)), (63, 14));
    // The second warpgroup has another accumulator.
    assert_eq!((row(133, 3), column(133, 3)), (9, 3));
}

#[test]
fn registers_are_listed_in_order() {
    let numbers: [f32; 48] = std::array::from_fn(|i| i as f32);
    let mut accumulator = Accumulator::from_values(numbers);
    let mut next = 0;
    accumulator.for_each(|i, value| {
        assert_eq!((i, *value), (next, next as f32));
        next += 1;
    });
    accumulator.for_each_16_columns(|j, registers| {
        assert_eq!(registers[..], numbers[8 * j..8 * j + 8]);
        next += 8;
    });
    assert_eq!(next, 96);
    accumulator.scale_rows([2.0, -1.0]);
    let got = accumulator.values();
    assert_eq!(got[..8], [0.0, 2.0, -2.0, -3.0, 8.0, 10.0, -6.0, -7.0]);
}

/// The operand of MMA `step`, with the layout `place` at offset `start`.
fn descriptor<F: Float, M: Major<F>>(
    place: &Place,
    start: u32,
    step: usize,
    mn: usize,
) -> MatrixDescriptor<F, M> {
    let size = size_of::<F>();
    // SAFETY: the operand is at this address.
    let tile = unsafe { dynamic_shared_mem::<F>() }.offset(start / size as u32);
    MatrixDescriptor::new(tile, place.leading as u32, place.stride as u32, place.swizzle)
        .advance(place.start(step, mn, 32 / size) as u32)
}

/// Writes `case.shared` to shared memory, visible to `wgmma`.
fn fill(case: &Case) {
    // SAFETY: the launch has that much shared memory; each thread writes its own words.
    unsafe {
        let shared: Shared<u32> = dynamic_shared_mem();
        for i in (thread::thread_idx_x() as usize..case.shared.len()).step_by(128) {
            shared.set(i as u32, case.shared[i]);
        }
    }
    simt::device::fence_proxy_async();
    thread::sync_threads();
}

/// The body of a case's kernel.
fn mmas<F: Float, A: Major<F>, B: Major<F>, T: AccumulatorFor<F>, const REGS: usize>(
    case: &Case,
    out: GlobalMut<f32>,
) {
    fill(case);
    let t = thread::thread_idx_x();
    let place = |i| (row(t, i as u32) as usize, column(t, i as u32) as usize);
    let fragments: [FragmentA<F>; STEPS] =
        std::array::from_fn(|step| case.fragment(t as usize, step));
    let n = T::COLUMNS * REGS;
    let before = |i: usize| case.before[place(i).0][place(i).1];
    let register = |i| T::pack(|j| before(i * T::PER_REGISTER + j));
    let mut d = Accumulator::<REGS, T>::from_values(std::array::from_fn(register)).start();
    for (step, fragment) in fragments.iter().enumerate() {
        let accumulate = case.accumulate || step > 0;
        let b = descriptor::<F, B>(&case.b_place, case.b_start, step, n);
        // SAFETY: the operands are in shared memory and not overwritten.
        unsafe {
            match &case.a_place {
                Some(a) => d.mma(descriptor::<F, A>(a, 0, step, 64), b, accumulate),
                None => d.mma_rs(fragment, b, accumulate),
            }
        }
        if case.rounds {
            wgmma::commit();
            wgmma::wait_group::<1>();
            wgmma::fence();
        }
    }
    wgmma::commit();
    let sums = d.wait::<0>();
    for i in 0..n / 2 {
        let (row, column) = place(i);
        // SAFETY: one number per element.
        unsafe { out.set(row * n + column, sums.sum(i)) };
    }
}

/// Launches one warpgroup that runs `body` on `case`; returns its output of `len` numbers.
fn emulate(
    case: &Arc<Case>,
    len: usize,
    seed: u64,
    body: fn(&Case, GlobalMut<f32>),
) -> Result<Vec<f32>, Fault> {
    let mut memory = Memory::new();
    let out = memory.alloc("out", Init::Poisoned(4 * len));
    let shared_bytes = 4 * case.shared.len() as u32;
    let geometry = Geometry { grid: [1; 3], block: [128, 1, 1], shared_bytes };
    let case = case.clone();
    let kernel = simt::Kernel { symbol: "wgmma", max_threads: 128, cluster: [1; 3] };
    let threads = Arc::new(move || body(&case, ArgReader::new(&out.to_le_bytes()).next()));
    simt::emulate(kernel, geometry, threads, &mut memory, seed)?;
    let mut bytes = vec![0; 4 * len];
    memory.read(out, &mut bytes).unwrap();
    let (words, _) = bytes.as_chunks();
    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

/// Compares one MMA of `REGS` accumulator registers with the oracle, exactly.
fn check<F: Float, A: Major<F>, B: Major<F>, const REGS: usize>(
    swizzles: (Option<Swizzle>, Swizzle),
    (accumulate, rounds): (bool, bool),
) {
    let n = 2 * REGS;
    let case = Arc::new(Case::new::<F, A, B>(n, swizzles, (accumulate, rounds)));
    let got = emulate(&case, 64 * n, REGS as u64, mmas::<F, A, B, f32, REGS>).unwrap();
    for (at, got) in got.into_iter().enumerate() {
        let (row, column) = (at / n, at % n);
        assert_eq!(
            f64::from(got),
            case.oracle(row, column),
            "[{row}, {column}] of {} with n = {n}, A {:?}, B {:?}",
            std::any::type_name::<F>(),
            case.a_place,
            case.b_place,
        );
    }
}

/// Accumulators of `REGS` registers in f16, rounded after each MMA.
fn check_in_f16<const REGS: usize>() {
    let n = 4 * REGS;
    for a in [Some(Swizzle::B128), None] {
        let accumulate = REGS != 8;
        let case = Case::new::<f16, KMajor, KMajor>(n, (a, Swizzle::B128), (accumulate, false));
        let case = Arc::new(case);
        let body = mmas::<f16, KMajor, KMajor, f16, REGS>;
        let got = emulate(&case, 64 * n, REGS as u64, body).unwrap();
        let mut rounded = 0;
        for (at, got) in got.into_iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let want = case.oracle_in_f16(row, column, 16);
            assert_eq!(f64::from(got), want, "[{row}, {column}], n = {n}, A {a:?}");
            rounded += usize::from(want != case.oracle(row, column));
        }
        // The initial D is so large that sums must be rounded.
        assert!(!accumulate || rounded > n, "{rounded} of {n} columns");
    }
}

#[test]
fn every_width_in_f16() {
    check_in_f16::<4>();
    check_in_f16::<8>();
    check_in_f16::<16>();
    check_in_f16::<32>();
    check_in_f16::<48>();
    check_in_f16::<64>();
}

/// Operand A in shared memory and in registers, with and without an initial D.
fn check_widths<F: Float>() {
    fn check_width<F: Float, const REGS: usize>() {
        for a in [Some(Swizzle::B128), None] {
            check::<F, KMajor, KMajor, REGS>((a, Swizzle::B128), (REGS.is_multiple_of(16), false));
        }
    }
    check_width::<F, 4>();
    check_width::<F, 8>();
    check_width::<F, 16>();
    check_width::<F, 32>();
    check_width::<F, 48>();
    check_width::<F, 64>();
    check_width::<F, 96>();
    check_width::<F, 128>();
}

#[test]
fn every_width() {
    check_widths::<f16>();
    check_widths::<bf16>();
    check_widths::<E4m3>();
    check_widths::<E5m2>();
}

/// Every pair of swizzles, and every swizzle of B with A in registers.
fn check_swizzles<F: Float, A: Major<F>, B: Major<F>>() {
    for b in SWIZZLES {
        for a in SWIZZLES.map(Some).into_iter().chain([None]) {
            check::<F, A, B, 16>((a, b), (true, false));
        }
        // 128 columns need several rows of every swizzle.
        check::<F, A, B, 64>((Some(b), b), (false, false));
    }
}

#[test]
fn every_layout_of_16_bits() {
    check_swizzles::<f16, KMajor, KMajor>();
    check_swizzles::<f16, KMajor, MnMajor>();
    check_swizzles::<bf16, MnMajor, KMajor>();
    check_swizzles::<bf16, MnMajor, MnMajor>();
}

#[test]
fn every_layout_of_8_bits() {
    check_swizzles::<E4m3, KMajor, KMajor>();
    check_swizzles::<E5m2, KMajor, KMajor>();
}

#[test]
fn an_accumulator_stays_in_flight_over_iterations() {
    for a in [Some(Swizzle::B128), None] {
        check::<f16, KMajor, MnMajor, 64>((a, Swizzle::B128), (true, true));
    }
}

/// Issues MMA `step` of `case` on its own accumulator.
fn start(case: &Case, step: usize) -> InFlight<8> {
    let a = descriptor::<f16, KMajor>(&case.a_place.expect("A in shared memory"), 0, step, 64);
    let b = descriptor::<f16, KMajor>(&case.b_place, case.b_start, step, 16);
    let mut d = Accumulator::zero().start();
    // SAFETY: the operands are in shared memory and not overwritten.
    unsafe { d.mma(a, b, false) };
    d
}

fn small_case() -> Arc<Case> {
    let swizzles = (Some(Swizzle::B128), Swizzle::B128);
    Arc::new(Case::new::<f16, KMajor, KMajor>(16, swizzles, (false, false)))
}

#[test]
fn two_accumulators_are_in_flight() {
    let case = small_case();
    let body = |case: &Case, out: GlobalMut<f32>| {
        fill(case);
        let older = start(case, 0);
        wgmma::commit();
        let younger = start(case, 1);
        wgmma::commit();
        let older = older.wait::<1>().values();
        let younger = younger.wait::<0>().values();
        for i in 0..8 {
            let t = thread::thread_idx_x();
            let at = (row(t, i) * 16 + column(t, i)) as usize;
            // SAFETY: two numbers per element.
            unsafe {
                out.set(at, older[i as usize]);
                out.set(1024 + at, younger[i as usize]);
            }
        }
    };
    for seed in simt::seeds() {
        let got = emulate(&case, 2048, seed, body).unwrap();
        for (at, got) in got.into_iter().enumerate() {
            let (step, row, column) = (at / 1024, at % 1024 / 16, at % 16);
            let k = step * 16..step * 16 + 16;
            let products = k.map(|k| case.a[row][k].1 * case.b[column][k].1);
            assert_eq!(f64::from(got), products.sum::<f64>(), "[{row}, {column}], step {step}");
        }
    }
}

#[test]
fn an_accumulator_in_flight_cannot_be_read() {
    let too_early = |case: &Case, _: GlobalMut<f32>| {
        fill(case);
        let d = start(case, 0);
        wgmma::commit();
        let _ = d.wait::<1>();
    };
    let not_committed = |case: &Case, _: GlobalMut<f32>| {
        fill(case);
        let _ = start(case, 0).wait::<0>();
    };
    for body in [too_early, not_committed as fn(&Case, GlobalMut<f32>)] {
        let fault = emulate(&small_case(), 1, 0, body).unwrap_err();
        let FaultKind::Invalid(why) = fault.kind else { panic!("{fault}") };
        assert!(
            why.contains("an accumulator is read while a wgmma.mma_async may still write it"),
            "{why}"
        );
    }
}
