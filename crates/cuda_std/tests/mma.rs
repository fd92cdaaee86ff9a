//! `mma.sync` on the emulator, against exact results.

use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::mma::{self, FragmentA, FragmentB};
use cuda_std::prelude::*;
use cuda_std::{E4m3, E5m2, matrix, warp::WARP_SIZE};
use half::{bf16, f16};
use simt::{Init, Memory};

/// Exponent of the unit of exact results, which are counted in an `i128`.
const UNIT_EXPONENT: i32 = -48;

/// A `[16, 16]`, B `[16, 8]` and C `[16, 8]`, all row-major.
struct Problem {
    a: [f64; 256],
    b: [f64; 128],
    c: [f64; 128],
}

/// Pseudo-random bits.
fn bits(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

impl Problem {
    /// Numbers of at most `digits` binary digits, times `2^-18` to `2^-3`.
    fn random(seed: u64, digits: u32) -> Problem {
        let mut state = seed;
        let mut number = || {
            let digits = bits(&mut state) as i64 % (1 << digits);
            let sign = if bits(&mut state) & 1 == 0 { 1.0 } else { -1.0 };
            sign * digits as f64 * 2f64.powi(bits(&mut state) as i32 % 16 - 18)
        };
        Problem {
            a: std::array::from_fn(|_| number()),
            b: std::array::from_fn(|_| number()),
            c: std::array::from_fn(|_| number()),
        }
    }

    /// Element `[row, column]` of the product, exact, in units of `2^UNIT_EXPONENT`.
    fn exact(&self, row: usize, column: usize) -> i128 {
        let units = |value: f64| {
            let units = value * 2f64.powi(-UNIT_EXPONENT);
            assert_eq!(units, units.trunc());
            units as i128
        };
        let products =
            (0..16).map(|k| units(self.a[row * 16 + k] * self.b[k * 8 + column])).sum::<i128>();
        units(self.c[row * 8 + column]) + products
    }
}

/// How an element is stored.
trait Element: Copy {
    fn encode(value: f64) -> u16;
}

impl Element for f16 {
    fn encode(value: f64) -> u16 {
        f16::from_f64(value).to_bits()
    }
}

impl Element for bf16 {
    fn encode(value: f64) -> u16 {
        bf16::from_f64(value).to_bits()
    }
}

/// One MMA from memory, with fragments gathered by the ISA's formulas.
#[kernel(launch_bounds(WARP_SIZE), instances(product_f16 = <f16>, product_bf16 = <bf16>))]
unsafe fn product<T: mma::Multiplicand>(
    a: Global<u16>,
    b: Global<u16>,
    c: Global<f32>,
    d: GlobalMut<f32>,
) {
    // SAFETY: A `[16, 16]`, B `[16, 8]`, C and D `[16, 8]`.
    unsafe {
        let (a, b) = (FragmentA::<T>::from_words(gather_a(a)), FragmentB::from_words(gather_b(b)));
        let sums = mma::m16n8k16(a, b, [0, 1, 2, 3].map(|i| c.get(place_c(i))));
        sums.into_iter().enumerate().for_each(|(i, sum)| d.set(place_c(i), sum));
    }
}

/// The same with C and D in f16.
#[kernel(launch_bounds(WARP_SIZE))]
unsafe fn product_in_f16(a: Global<u16>, b: Global<u16>, c: Global<u16>, d: GlobalMut<u16>) {
    // SAFETY: A `[16, 16]`, B `[16, 8]`, C and D `[16, 8]`.
    unsafe {
        let (a, b) = (FragmentA::from_words(gather_a(a)), FragmentB::from_words(gather_b(b)));
        let c = [0, 2].map(|i| pack(c.get(place_c(i)), c.get(place_c(i + 1))));
        for (i, word) in mma::m16n8k16_f16(a, b, c).into_iter().enumerate() {
            d.set(place_c(2 * i), word as u16);
            d.set(place_c(2 * i + 1), (word >> 16) as u16);
        }
    }
}

fn pack(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// groupID and threadID_in_group of the ISA.
#[track_caller]
fn ids() -> (usize, usize) {
    let lane_id = warp::lane_id() as usize;
    (lane_id >> 2, lane_id % 4)
}

unsafe fn gather_a(a: Global<u16>) -> [u32; 4] {
    let (group, thread) = ids();
    let [e0, e1, e2, e3, e4, e5, e6, e7] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| {
        let row = if i < 2 || (4..6).contains(&i) { group } else { group + 8 };
        let column = if i < 4 { thread * 2 + (i & 1) } else { thread * 2 + (i & 1) + 8 };
        // SAFETY: A `[16, 16]`.
        unsafe { a.get(row * 16 + column) }
    });
    [pack(e0, e1), pack(e2, e3), pack(e4, e5), pack(e6, e7)]
}

unsafe fn gather_b(b: Global<u16>) -> [u32; 2] {
    let (group, thread) = ids();
    let [e0, e1, e2, e3] = [0, 1, 2, 3].map(|i| {
        let row = if i < 2 { thread * 2 + (i & 1) } else { thread * 2 + (i & 1) + 8 };
        // SAFETY: B `[16, 8]`.
        unsafe { b.get(row * 8 + group) }
    });
    [pack(e0, e1), pack(e2, e3)]
}

fn place_c(i: usize) -> usize {
    let (group, thread) = ids();
    let row = if i < 2 { group } else { group + 8 };
    row * 8 + thread * 2 + (i & 1)
}

/// Runs one warp; A, B and C as bytes, and D's elements of `N` bytes.
fn run<const N: usize>(
    operands: [Vec<u8>; 3],
    launch: impl Fn(Geometry, [u64; 4]) -> Launch,
) -> Vec<[u8; N]> {
    let mut memory = Memory::new();
    let [a, b, c] = operands.map(|bytes| memory.alloc("operand", Init::Bytes(&bytes)));
    let d = memory.alloc("d", Init::Poisoned(128 * N));
    let geometry = Geometry { grid: [1; 3], block: [WARP_SIZE, 1, 1], shared_bytes: 1024 };
    launch(geometry, [a, b, c, d]).emulate(&mut memory, 5).unwrap();
    let mut bytes = vec![0; 128 * N];
    memory.read(d, &mut bytes).unwrap();
    bytes.as_chunks::<N>().0.to_vec()
}

fn encode<T: Element>(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|&value| T::encode(value).to_le_bytes()).collect()
}

fn encode_f32(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect()
}

/// D in f32.
fn multiply<T: Element>(instance: product::Instance, problem: &Problem) -> Vec<f32> {
    let operands = [encode::<T>(&problem.a), encode::<T>(&problem.b), encode_f32(&problem.c)];
    let d = run(operands, |geometry, [a, b, c, d]| {
        let [a, b] = [a, b].map(DevicePtr::new);
        product::Args { a, b, c: DevicePtr::new(c), d: DevicePtr::new(d) }
            .launch(instance, geometry)
    });
    d.into_iter().map(f32::from_le_bytes).collect()
}

/// D in f16.
fn multiply_in_f16(problem: &Problem) -> Vec<f16> {
    let operands = [&problem.a[..], &problem.b, &problem.c].map(encode::<f16>);
    let d = run(operands, |geometry, [a, b, c, d]| {
        let [a, b, c] = [a, b, c].map(DevicePtr::new);
        product_in_f16::Args { a, b, c, d: DevicePtr::new(d) }.launch(geometry)
    });
    d.into_iter().map(f16::from_le_bytes).collect()
}

#[test]
fn f32_accumulators_are_rounded_once() {
    let check = |instance, got: Vec<f32>, problem: &Problem| {
        for (i, got) in got.into_iter().enumerate() {
            // Rust rounds an integer to nearest.
            let want = problem.exact(i / 8, i % 8) as f32 * 2f32.powi(UNIT_EXPONENT);
            assert_eq!(got, want, "{instance:?}: row {}, column {}", i / 8, i % 8);
        }
    };
    for seed in 0..20 {
        let instance = product::Instance::product_f16;
        let problem = Problem::random(seed, 11);
        check(instance, multiply::<f16>(instance, &problem), &problem);
        let instance = product::Instance::product_bf16;
        let problem = Problem::random(seed, 8);
        check(instance, multiply::<bf16>(instance, &problem), &problem);
    }
}

/// The f16 nearest to `units`, ties to even, by a search over all.
fn nearest_f16(units: i128) -> f16 {
    let distance = |value: f16| {
        let value = (value.to_f64() * 2f64.powi(-UNIT_EXPONENT)) as i128;
        (value - units).unsigned_abs()
    };
    (0..0x7c00)
        .flat_map(|bits| [bits, bits | 0x8000])
        .map(f16::from_bits)
        .min_by(|&a, &b| {
            distance(a).cmp(&distance(b)).then((a.to_bits() & 1).cmp(&(b.to_bits() & 1)))
        })
        .unwrap()
}

#[test]
fn f16_accumulators_are_rounded_once() {
    for seed in 0..4 {
        let mut problem = Problem::random(seed, 8);
        // A tie, and just above it: rounding to f32 or to 32 bits first would make ties of both.
        let tie = |row: usize, problem: &mut Problem, above: f64| {
            problem.a[row * 16..row * 16 + 16].fill(0.0);
            problem.a[row * 16..row * 16 + 2].copy_from_slice(&[2f64.powi(-11), above]);
            problem.c[row * 8] = 1.0;
        };
        problem.b[0] = 1.0;
        problem.b[8] = 2f64.powi(-20);
        tie(0, &mut problem, 0.0);
        tie(1, &mut problem, 2f64.powi(-15));
        let got = multiply_in_f16(&problem);
        assert_eq!(got[0].to_f64(), 1.0);
        assert_eq!(got[8].to_f64(), 1.0 + 2f64.powi(-10));
        for (i, got) in got.into_iter().enumerate() {
            let want = nearest_f16(problem.exact(i / 8, i % 8));
            assert_eq!(got, want, "row {}, column {}", i / 8, i % 8);
        }
    }
}

#[test]
fn infinities_nans_and_subnormals() {
    let mut problem = Problem { a: [0.0; 256], b: [1.0; 128], c: [0.0; 128] };
    let rows = [
        (f64::INFINITY, 1.0, 0.0),
        (f64::INFINITY, 1.0, f64::NEG_INFINITY),
        (f64::NAN, 1.0, 0.0),
        (2f64.powi(-24), 3.0, 0.0),
        (65504.0, 65504.0, f64::from(f32::MAX)),
        (1.0, 1.0, f64::NAN),
        (65504.0, 65504.0, 0.0),
    ];
    for (row, (a, other, c)) in rows.into_iter().enumerate() {
        problem.a[row * 16 + 3] = a;
        problem.a[row * 16 + 4] = other;
        problem.c[row * 8..row * 8 + 8].fill(c);
    }
    problem.b[3 * 8 + 7] = 0.0;
    let got = multiply::<f16>(product::Instance::product_f16, &problem);
    let row = |row: usize| [got[row * 8], got[row * 8 + 7]];
    assert_eq!(row(0)[0], f32::INFINITY);
    // Infinity times zero, and infinity minus infinity.
    let nans = [row(0)[1], row(1)[0], row(1)[1], row(2)[0], row(5)[0]];
    assert_eq!(nans.map(f32::to_bits), [0x7fff_ffff; 5]);
    assert_eq!(row(3), [3.0 + 2f32.powi(-24), 3.0]);
    assert_eq!(row(4)[0], f32::MAX);
    assert_eq!(row(6)[0], 131008.0);
    problem.c = [0.0; 128];
    let in_f16 = multiply_in_f16(&problem);
    assert_eq!(in_f16[6 * 8], f16::INFINITY);
    assert_eq!(in_f16[7].to_bits(), 0x7fff);
}

/// The MMA of a tile in shared memory, operands by `ldmatrix`: A row-major, B row-major with
/// `.trans` or column-major without.
#[kernel(launch_bounds(WARP_SIZE), instances(b_by_rows = <true>, b_by_columns = <false>))]
unsafe fn product_of_tiles<const B_BY_ROWS: bool>(
    a: Global<u16>,
    b: Global<u16>,
    d: GlobalMut<f32>,
) {
    let lane_id = warp::lane_id();
    let lane = lane_id as usize;
    // SAFETY: A `[16, 16]`, B `[16, 8]`, D `[16, 8]`; 384 elements of shared memory.
    unsafe {
        let (smem_a, smem_b) =
            (dynamic_shared_mem::<u32>(), dynamic_shared_mem::<u32>().offset(128));
        for pair in (lane..128).step_by(32) {
            smem_a.set(pair as u32, pack(a.get(2 * pair), a.get(2 * pair + 1)));
        }
        for pair in (lane..64).step_by(32) {
            let of_column = |i: usize| b.get(i % 16 * 8 + i / 16);
            let (low, high) = if B_BY_ROWS {
                (b.get(2 * pair), b.get(2 * pair + 1))
            } else {
                (of_column(2 * pair), of_column(2 * pair + 1))
            };
            smem_b.set(pair as u32, pack(low, high));
        }
        warp::sync_warp();
        // Quarters of A: down first; eight words to a row.
        let a = matrix::load_x4(smem_a.offset(lane_id % 16 * 8 + lane_id / 16 * 4));
        let b = if B_BY_ROWS {
            matrix::load_x2_trans(smem_b.offset(lane_id % 16 * 4))
        } else {
            matrix::load_x2(smem_b.offset(lane_id % 8 * 8 + lane_id / 8 % 2 * 4))
        };
        let (a, b) = (FragmentA::<f16>::from_words(a), FragmentB::from_words(b));
        let sums = mma::m16n8k16(a, b, [0.0; 4]);
        sums.into_iter().enumerate().for_each(|(i, sum)| d.set(place_c(i), sum));
    }
}

#[test]
fn fragments_are_loaded_from_shared_memory() {
    let mut problem = Problem::random(9, 11);
    problem.c.fill(0.0);
    for &instance in product_of_tiles::Instance::ALL {
        let operands = [encode::<f16>(&problem.a), encode::<f16>(&problem.b), Vec::new()];
        let d = run(operands, |geometry, [a, b, _, d]| {
            let [a, b] = [a, b].map(DevicePtr::new);
            product_of_tiles::Args { a, b, d: DevicePtr::new(d) }.launch(instance, geometry)
        });
        for (i, got) in d.into_iter().map(f32::from_le_bytes).enumerate() {
            let want = problem.exact(i / 8, i % 8) as f32 * 2f32.powi(UNIT_EXPONENT);
            assert_eq!(got, want, "{instance:?}: row {}, column {}", i / 8, i % 8);
        }
    }
}

/// One MMA of 8-bit elements, k = 32, with fragments gathered by the ISA's formulas.
#[kernel(launch_bounds(WARP_SIZE), instances(product_e4m3 = <E4m3>, product_e5m2 = <E5m2>))]
unsafe fn product_of_8_bits<T: mma::Multiplicand8>(
    a: Global<u8>,
    b: Global<u8>,
    c: Global<f32>,
    d: GlobalMut<f32>,
) {
    let (group, thread) = ids();
    // SAFETY: A `[16, 32]`, B `[32, 8]`, C and D `[16, 8]`.
    unsafe {
        let word = |element: &dyn Fn(usize) -> u8| u32::from_le_bytes([0, 1, 2, 3].map(element));
        let words_a = [0, 4, 8, 12].map(|first| {
            word(&|i| {
                let i = first + i;
                let row = if i < 4 || (8..12).contains(&i) { group } else { group + 8 };
                let column = if i < 8 { thread * 4 + (i & 3) } else { thread * 4 + (i & 3) + 16 };
                a.get(row * 32 + column)
            })
        });
        let words_b = [0, 4].map(|first| {
            word(&|i| {
                let i = first + i;
                let row = if i < 4 { thread * 4 + (i & 3) } else { thread * 4 + (i & 3) + 16 };
                b.get(row * 8 + group)
            })
        });
        let (a, b) = (FragmentA::<T>::from_words(words_a), FragmentB::from_words(words_b));
        let sums = mma::m16n8k32(a, b, [0, 1, 2, 3].map(|i| c.get(place_c(i))));
        sums.into_iter().enumerate().for_each(|(i, sum)| d.set(place_c(i), sum));
    }
}

#[test]
fn elements_of_8_bits_are_multiplied_by_value() {
    for seed in 0..10 {
        let mut state = seed;
        // Integers up to 8, which both formats have: the sums are exact in f32.
        let mut number = || (bits(&mut state) % 17) as i32 - 8;
        let (a, b) = ([(); 16 * 32].map(|()| number()), [(); 32 * 8].map(|()| number()));
        let c = [(); 128].map(|()| number());
        let want: Vec<f32> = (0..128)
            .map(|at| {
                let product = |k: usize| a[at / 8 * 32 + k] * b[k * 8 + at % 8];
                ((0..32).map(product).sum::<i32>() + c[at]) as f32
            })
            .collect();
        for &instance in product_of_8_bits::Instance::ALL {
            let encode = |&value: &i32| match instance {
                product_of_8_bits::Instance::product_e4m3 => E4m3::from_f32(value as f32).to_bits(),
                product_of_8_bits::Instance::product_e5m2 => E5m2::from_f32(value as f32).to_bits(),
            };
            let codes = |values: &[i32]| values.iter().map(encode).collect();
            let c = c.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
            let d = run([codes(&a), codes(&b), c], |geometry, [a, b, c, d]| {
                let [a, b] = [a, b].map(DevicePtr::new);
                product_of_8_bits::Args { a, b, c: DevicePtr::new(c), d: DevicePtr::new(d) }
                    .launch(instance, geometry)
            });
            let got: Vec<f32> = d.into_iter().map(f32::from_le_bytes).collect();
            assert_eq!(got, want, "{instance:?}");
        }
    }
}
