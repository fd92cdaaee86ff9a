//! Buffers, launches and comparison.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use half::{bf16, f16};
use kernels::attention::AttentionElement;
use simt::{Fault, Init, Memory, Report};

/// The orders that each case is run in: [`simt::seeds`].
pub const SEEDS: Seeds = Seeds(None);

/// Seeds from 0 on.
#[derive(Clone)]
pub struct Seeds(Option<std::ops::Range<u64>>);

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0.get_or_insert_with(simt::seeds).next()
    }
}

/// A number that kernels store, as the crate `half` has it.
pub trait Stored: AttentionElement {
    /// Relative error of a rounding, at most.
    const ROUNDING: f64;

    fn of(value: f32) -> Self;
    fn value(self) -> f32;
    fn bytes(self) -> Vec<u8>;
    fn of_bytes(bytes: &[u8]) -> Self;
}

macro_rules! stored {
    ($($number:ty: $rounding:expr, $of:expr, $value:expr;)*) => {$(
        impl Stored for $number {
            const ROUNDING: f64 = $rounding;

            fn of(value: f32) -> Self {
                $of(value)
            }

            fn value(self) -> f32 {
                $value(self)
            }

            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn of_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the bytes of one number"))
            }
        }
    )*};
}

stored! {
    f32: 0.0, |value| value, |value| value;
    f16: 1.0 / 2048.0, f16::from_f32, f16::to_f32;
    bf16: 1.0 / 256.0, bf16::from_f32, bf16::to_f32;
}

/// The buffers that no launch of a step writes, or none but this one: kernels may read them before
/// they wait for the launches before.
const CONSTANTS: [&str; 21] = [
    "bias",
    "norm weight",
    "scales",
    "table",
    "weight",
    "num_rows",
    "num_items",
    "items",
    "num_tokens",
    "num_seqs",
    "positions",
    "slot_mapping",
    "token_ids",
    "logit_rows",
    "sampling",
    "cu_seqlens_q",
    "kv_lens",
    "block_table",
    "work list",
    "own k_pool",
    "own v_pool",
];

/// The emulator's memory.
#[derive(Default)]
pub struct Device {
    memory: Memory,
    /// The buffers that a launch before may have written.
    activations: Vec<u64>,
}

impl Device {
    fn alloc<T>(&mut self, name: &str, init: Init<'_>) -> DevicePtr<T> {
        let address = self.memory.alloc(name, init);
        if !CONSTANTS.contains(&name) {
            self.activations.push(address);
        }
        DevicePtr::new(address)
    }

    /// A buffer of these floats.
    pub fn f32s(&mut self, name: &str, values: &[f32]) -> DevicePtr<f32> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.alloc(name, Init::Bytes(&bytes))
    }

    /// A buffer of these numbers.
    pub fn u32s(&mut self, name: &str, values: &[u32]) -> DevicePtr<u32> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.alloc(name, Init::Bytes(&bytes))
    }

    /// A buffer of these bytes.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> DevicePtr<u8> {
        self.alloc(name, Init::Bytes(bytes))
    }

    /// A buffer of these numbers, rounded.
    pub fn numbers<T: Stored>(&mut self, name: &str, values: &[f32]) -> DevicePtr<T> {
        self.partly_written(name, values, values.len())
    }

    /// A buffer of `len` elements that starts with `values`; the rest is unwritten.
    pub fn partly_written<T: Stored>(
        &mut self,
        name: &str,
        values: &[f32],
        len: usize,
    ) -> DevicePtr<T> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| T::of(*value).bytes()).collect();
        let buffer = self.poisoned(name, len);
        self.memory.write(buffer.0, &bytes).expect("a buffer that has room for the values");
        buffer
    }

    /// A buffer of `len` elements that nothing has written: each float is a NaN.
    pub fn poisoned<T>(&mut self, name: &str, len: usize) -> DevicePtr<T> {
        self.alloc(name, Init::Poisoned(size_of::<T>() * len))
    }

    /// Writes the start of a buffer.
    pub fn write_u32(&mut self, ptr: DevicePtr<u32>, values: &[u32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.memory.write(ptr.0, &bytes).expect("a buffer that has room for the values");
    }

    /// Runs a launch that there must be, as one of a step, see [`emulate_overlapping`].
    pub fn run(&mut self, launch: Result<Option<Launch>, LaunchError>, seed: u64) -> Report {
        let launch = launch.expect("a right shape").expect("something to do");
        emulate_overlapping(&launch, &mut self.memory, &self.activations, seed)
            .unwrap_or_else(|fault| panic!("seed {seed}: {fault}"))
    }

    /// `len` numbers.
    pub fn read_u32(&self, ptr: DevicePtr<u32>, len: usize) -> Vec<u32> {
        let mut bytes = vec![0; 4 * len];
        self.memory.read_or_poison(ptr.0, &mut bytes).expect("a buffer of that length");
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// `len` floats.
    pub fn read_f32(&self, ptr: DevicePtr<f32>, len: usize) -> Vec<f32> {
        let bits = self.read_u32(DevicePtr::new(ptr.0), len);
        bits.into_iter().map(f32::from_bits).collect()
    }

    /// `len` numbers, exactly.
    pub fn read<T: Stored>(&self, ptr: DevicePtr<T>, len: usize) -> Vec<f32> {
        let mut bytes = vec![0; size_of::<T>() * len];
        self.memory.read_or_poison(ptr.0, &mut bytes).expect("a buffer of that length");
        bytes.chunks_exact(size_of::<T>()).map(|bytes| T::of_bytes(bytes).value()).collect()
    }
}

/// Products that a tensor core adds to an f16 accumulator before it rounds it.
const F16_ACCUMULATION_STEP: usize = 16;

/// The most that an f16 accumulator of these products may be off: half a unit in the last place of
/// each partial sum, which is rounded to 11 bits every 16 products, and a tenth more, since what is
/// rounded is off already.
pub fn f16_accumulation_bound(products: &[f64]) -> f64 {
    let partial_sums = products.chunks(F16_ACCUMULATION_STEP).scan(0.0, |sum, products| {
        *sum += products.iter().sum::<f64>();
        Some(f64::abs(*sum))
    });
    1.1 * 2f64.powi(-11) * partial_sums.sum::<f64>() + 1e-7
}

/// Runs a launch that starts before those before it have ended, as every kernel of a step must let
/// it; they may have written all of `activations`.
pub fn emulate_overlapping(
    launch: &Launch,
    memory: &mut Memory,
    activations: &[u64],
    seed: u64,
) -> Result<Report, Fault> {
    assert!(launch.overlaps, "{} does not wait for the launches before it", launch.symbol);
    for &address in activations {
        memory.assume_written(address).expect("a buffer");
    }
    memory.overlap_next_launch();
    launch.emulate(memory, seed)
}

/// Floats from -1 to 1, other ones for another `salt`.
pub fn random(len: usize, salt: u64) -> Vec<f32> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Fails where `got` is further from `want` than `bound * (1 + |want|)`; a NaN that is wanted must
/// be there.
#[track_caller]
pub fn assert_close(case: &str, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{case}");
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let close = (f64::from(got) - want).abs() <= bound * (1.0 + want.abs());
        assert!(
            close || got.is_nan() && want.is_nan(),
            "{case}: element {at} is {got}, not {want}"
        );
    }
}

/// [`random`], rounded to `T`.
pub fn random_of<T: Stored>(len: usize, salt: u64) -> Vec<f32> {
    random(len, salt).into_iter().map(|value| T::of(value).value()).collect()
}

/// As [`assert_close`], with the rounding of one store as a `T` on top.
#[track_caller]
pub fn assert_stored<T: Stored>(case: &str, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{case}");
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(got) - want).abs();
        let close = off <= bound * (1.0 + want.abs()) + T::ROUNDING * want.abs();
        assert!(
            close || got.is_nan() && want.is_nan(),
            "{case}: element {at} is {got}, not {want}"
        );
    }
}
