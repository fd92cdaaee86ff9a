//! Atomic operations without contention, and with contention in any order.

use conformance_kernels::atomic::*;
use cuda_std::launch::{Geometry, Launch};

use crate::inputs::{blocks, random_words, words_of_halves};
use crate::numbers::{F16, Rounding};
use crate::{Buffer, Case, Pointers, Tolerance, Want};

/// Blocks that contend.
const NUM_BLOCKS: usize = 4;

const THREADS: usize = NUM_THREADS as usize;
const CELLS: usize = NUM_CELLS as usize;

/// An integer type in words of 64 bits: its number of bits, and whether it is signed.
#[derive(Clone, Copy)]
struct Integer {
    bits: u32,
    signed: bool,
}

impl Integer {
    /// Mask of the type's bits.
    fn wrap(self, x: u64) -> u64 {
        x & u64::MAX >> (64 - self.bits)
    }

    /// The value of the type's bits.
    fn value(self, x: u64) -> i128 {
        let sign = 1i128 << (self.bits - 1);
        let x = i128::from(x);
        if self.signed && x & sign != 0 { x - 2 * sign } else { x }
    }

    fn min(self, a: u64, b: u64) -> u64 {
        if self.value(a) < self.value(b) { a } else { b }
    }

    fn max(self, a: u64, b: u64) -> u64 {
        if self.value(a) > self.value(b) { a } else { b }
    }

    /// Random numbers of the type.
    fn random(self, seed: u64) -> impl Iterator<Item = u64> {
        let mut words = random_words(seed).map(u64::from);
        std::iter::from_fn(move || Some(self.wrap(words.next()? << 32 | words.next()?)))
    }

    /// Numbers of the type as 32-bit words.
    fn words(self, values: &[u64]) -> Vec<u32> {
        let halves = values.iter().flat_map(|&x| [x as u32, (x >> 32) as u32]);
        if self.bits == 64 { halves.collect() } else { halves.step_by(2).collect() }
    }
}

type Kernel = fn(Geometry, &Pointers) -> Launch;

/// The launcher of a kernel of [`sequence`].
macro_rules! sequence_case {
    ($name:ident) => {
        |geometry, p| {
            $name::Args { cells: p.at(0), operands: p.at(1), old: p.at(2) }.launch(geometry)
        }
    };
}

/// The launcher of a kernel of [`contend`].
macro_rules! of_contended {
    ($name:ident) => {
        |geometry, p| $name::Args { x: p.at(0), cells: p.at(1), tickets: p.at(2) }.launch(geometry)
    };
}

/// All cases.
pub fn cases() -> Vec<Case> {
    const U32: Integer = Integer { bits: 32, signed: false };
    const I32: Integer = Integer { bits: 32, signed: true };
    const U64: Integer = Integer { bits: 64, signed: false };
    let sequences: [(&str, Integer, Kernel); 5] = [
        ("atomic_global_u32", U32, sequence_case!(atomic_global_u32)),
        ("atomic_global_i32", I32, sequence_case!(atomic_global_i32)),
        ("atomic_global_u64", U64, sequence_case!(atomic_global_u64)),
        ("atomic_shared_u32", U32, sequence_case!(atomic_shared_u32)),
        ("atomic_shared_i32", I32, sequence_case!(atomic_shared_i32)),
    ];
    let contended: [(&str, Integer, bool, Kernel); 5] = [
        ("atomic_global_contended_u32", U32, false, of_contended!(atomic_global_contended_u32)),
        ("atomic_global_contended_i32", I32, false, of_contended!(atomic_global_contended_i32)),
        ("atomic_global_contended_u64", U64, false, of_contended!(atomic_global_contended_u64)),
        ("atomic_shared_contended_u32", U32, true, of_contended!(atomic_shared_contended_u32)),
        ("atomic_shared_contended_i32", I32, true, of_contended!(atomic_shared_contended_i32)),
    ];
    let sequences = sequences.map(|(name, integer, kernel)| sequence(name, integer, kernel));
    let contended =
        contended.map(|(name, integer, shared, kernel)| contend(name, integer, shared, kernel));
    sequences.into_iter().chain(contended).chain([add_f32(), add_f16x2()]).collect()
}

/// Every operation, each thread on its own cell: all old values are known.
fn sequence(name: &'static str, integer: Integer, kernel: Kernel) -> Case {
    let cells: Vec<u64> = integer.random(30).take(THREADS).collect();
    let operands: Vec<u64> = integer.random(31).take(THREADS * NUM_OPERANDS as usize).collect();
    let (mut after, mut old) = (Vec::new(), Vec::new());
    for (&start, x) in cells.iter().zip(operands.chunks(NUM_OPERANDS as usize)) {
        let mut seen = vec![start];
        seen.push(integer.wrap(start.wrapping_add(x[0])));
        seen.push(integer.min(seen[1], x[1]));
        seen.push(integer.max(seen[2], x[2]));
        seen.push(seen[3] & x[3]);
        seen.push(seen[4] | x[4]);
        seen.push(seen[5] ^ x[5]);
        // The first exchange succeeds, the second fails.
        seen.extend([x[6], x[7], x[7], x[0]]);
        old.extend(seen);
        after.push(x[1]);
    }
    let buffers = vec![
        Buffer::changed(&integer.words(&cells), integer.words(&after)),
        Buffer::words(&integer.words(&operands)),
        Buffer::Out(Want::Words(integer.words(&old))),
    ];
    Case::new(name, buffers, move |p| kernel(blocks(1, NUM_THREADS), p))
}

/// All threads on the same cells; in shared memory those of each block.
fn contend(name: &'static str, integer: Integer, shared: bool, kernel: Kernel) -> Case {
    let x: Vec<u64> = integer.random(32).take(NUM_BLOCKS * THREADS).collect();
    let groups = if shared { NUM_BLOCKS } else { 1 };
    let before: Vec<u64> = (integer.random(33).take(groups * CELLS).enumerate())
        .map(|(i, cell)| if i % CELLS == 7 { 0 } else { cell })
        .collect();
    let mut after = Vec::new();
    for (cells, x) in before.chunks(CELLS).zip(x.chunks(x.len() / groups)) {
        let all =
            |at: usize, f: &dyn Fn(u64, u64) -> u64| x.iter().fold(cells[at], |a, &b| f(a, b));
        after.extend([
            integer.wrap(all(0, &|a, b| a.wrapping_add(b))),
            all(1, &|a, b| integer.min(a, b)),
            all(2, &|a, b| integer.max(a, b)),
            all(3, &|a, b| a & (b | 1)),
            all(4, &|a, b| a | b & 0x0f0f_0f0f),
            all(5, &|a, b| a ^ b),
            integer.wrap(all(6, &|a, b| a.wrapping_mul(b | 1))),
            x.len() as u64,
        ]);
    }
    let buffers = vec![
        Buffer::words(&integer.words(&x)),
        Buffer::changed(&integer.words(&before), integer.words(&after)),
        Buffer::Out(Want::Words(vec![1; x.len()])),
    ];
    Case::new(name, buffers, move |p| kernel(blocks(NUM_BLOCKS as u32, NUM_THREADS), p))
}

/// Values that are added to one cell, and its initial value in global memory.
struct Sum {
    start: f64,
    terms: fn(u32) -> f64,
}

/// Sums of f32 that are the same in every order: of small multiples of 1/8; of infinities of both
/// signs; of terms that are each lost to rounding in global memory; and of subnormal numbers, which
/// are flushed in global memory and kept in shared memory.
fn add_f32() -> Case {
    const SUBNORMAL: f64 = f32::MIN_POSITIVE as f64 / 8.0;
    let sum = |cell| match cell {
        4 => Sum { start: 0.0, terms: |word| f64::INFINITY.copysign(f64::from(word) - 2e9) },
        5 => Sum { start: 2f64.powi(24), terms: |_| 0.25 },
        7 => Sum { start: 0.0, terms: |_| SUBNORMAL },
        _ => Sum { start: 0.5, terms: |word| f64::from(word % 4096) / 8.0 - 256.0 },
    };
    let flushed = |x: f64| if x.abs() < f64::from(f32::MIN_POSITIVE) { 0.0 } else { x };
    let add = |sum: f64, x: f64| f64::from((sum + x) as f32);
    let x: Vec<f64> = (random_words(34).take(THREADS).enumerate())
        .map(|(i, word)| (sum(i % CELLS).terms)(word))
        .collect();
    let terms = |cell: usize| x.iter().copied().skip(cell).step_by(CELLS);
    let bits = |values: &[f64]| values.iter().map(|&x| (x as f32).to_bits()).collect::<Vec<u32>>();
    let start: Vec<f64> = (0..CELLS).map(|cell| sum(cell).start).collect();
    let global = (0..CELLS).map(|cell| terms(cell).map(flushed).fold(start[cell], add)).collect();
    let shared = (0..CELLS).map(|cell| terms(cell).fold(0.0, add)).collect();
    let buffers = vec![
        Buffer::words(&bits(&x)),
        Buffer::changed_to(&bits(&start), Want::F32(global, Tolerance::Ulps(0))),
        Buffer::Out(Want::F32(shared, Tolerance::Ulps(0))),
    ];
    Case::new("atomic_add_f32", buffers, |p| {
        atomic_add_f32::Args { x: p.at(0), global: p.at(1), shared: p.at(2) }
            .launch(blocks(1, NUM_THREADS))
    })
}

/// Sums of f16 that are the same in every order: of small integers; of infinities of both signs; of
/// terms that are each rounded, to even in ties; and of subnormal numbers, which are kept.
fn add_f16x2() -> Case {
    let sum = |half| match half {
        3 => Sum { start: 0.0, terms: |_| 2f64.powi(-24) },
        4 => Sum { start: 2048.0, terms: |_| 1.0 },
        5 => Sum { start: 2048.0, terms: |_| 3.0 },
        6 => Sum { start: 0.0, terms: |word| f64::INFINITY.copysign(f64::from(word) - 2e9) },
        _ => Sum { start: 0.0, terms: |word| f64::from(word % 128) - 64.0 },
    };
    let code = |x: f64| F16.round(x, Rounding::Nearest);
    let add = |sum: f64, x: f64| F16.value(code(sum + x));
    let x: Vec<f64> = (random_words(35).take(2 * THREADS).enumerate())
        .map(|(i, word)| (sum(i % (2 * CELLS)).terms)(word))
        .collect();
    let terms = |half: usize| x.iter().copied().skip(half).step_by(2 * CELLS);
    let words =
        |values: &[f64]| words_of_halves(&values.iter().map(|&x| code(x)).collect::<Vec<u16>>());
    let start: Vec<f64> = (0..2 * CELLS).map(|half| sum(half).start).collect();
    let global = (0..2 * CELLS).map(|half| terms(half).fold(start[half], add)).collect();
    let shared = (0..2 * CELLS).map(|half| terms(half).fold(0.0, add)).collect();
    let buffers = vec![
        Buffer::words(&words(&x)),
        Buffer::changed_to(&words(&start), Want::F16(global, Tolerance::Ulps(0))),
        Buffer::Out(Want::F16(shared, Tolerance::Ulps(0))),
    ];
    Case::new("atomic_add_f16x2", buffers, |p| {
        atomic_add_f16x2::Args { x: p.at(0), global: p.at(1), shared: p.at(2) }
            .launch(blocks(1, NUM_THREADS))
    })
}
