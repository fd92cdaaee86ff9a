//! Buffers, launches and comparison.

use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use simt::{Init, Memory, Report};

/// The orders that each case is run in.
pub const SEEDS: std::ops::Range<u64> = 0..3;

/// The emulator's memory.
#[derive(Default)]
pub struct Device(Memory);

impl Device {
    /// A buffer of these floats.
    pub fn f32s(&mut self, name: &str, values: &[f32]) -> DevicePtr<f32> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        DevicePtr::new(self.0.alloc(name, Init::Bytes(&bytes)))
    }

    /// A buffer of these numbers.
    pub fn u32s(&mut self, name: &str, values: &[u32]) -> DevicePtr<u32> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        DevicePtr::new(self.0.alloc(name, Init::Bytes(&bytes)))
    }

    /// A buffer of these 16-bit words.
    pub fn u16s(&mut self, name: &str, values: &[u16]) -> DevicePtr<u16> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        DevicePtr::new(self.0.alloc(name, Init::Bytes(&bytes)))
    }

    /// A buffer of `len` elements of four bytes that nothing has written: each is a NaN.
    pub fn poisoned<T>(&mut self, name: &str, len: usize) -> DevicePtr<T> {
        DevicePtr::new(self.0.alloc(name, Init::Poisoned(4 * len)))
    }

    /// Runs a launch that there must be.
    pub fn run(&mut self, launch: Result<Option<Launch>, LaunchError>, seed: u64) -> Report {
        let launch = launch.expect("a right shape").expect("something to do");
        launch.emulate(&mut self.0, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"))
    }

    /// `len` numbers.
    pub fn read_u32(&self, ptr: DevicePtr<u32>, len: usize) -> Vec<u32> {
        let mut bytes = vec![0; 4 * len];
        self.0.read(ptr.0, &mut bytes).expect("a buffer of that length");
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// `len` 16-bit words.
    pub fn read_u16(&self, ptr: DevicePtr<u16>, len: usize) -> Vec<u16> {
        let mut bytes = vec![0; 2 * len];
        self.0.read(ptr.0, &mut bytes).expect("a buffer of that length");
        let (words, _) = bytes.as_chunks::<2>();
        words.iter().map(|word| u16::from_le_bytes(*word)).collect()
    }

    /// `len` floats.
    pub fn read_f32(&self, ptr: DevicePtr<f32>, len: usize) -> Vec<f32> {
        let bits = self.read_u32(DevicePtr::new(ptr.0), len);
        bits.into_iter().map(f32::from_bits).collect()
    }
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
