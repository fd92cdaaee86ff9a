//! Both kernels on the emulator, against oracles in f64.

use cuda_std::launch::{DevicePtr, LaunchError};
use my_kernels::{block_sum, saxpy};
use simt::{Init, Memory};

/// Lengths around a warp and around a block, and several blocks.
const LENGTHS: [usize; 8] = [1, 31, 33, 255, 256, 257, 1000, 4096];

/// Numbers of both signs that are not exact in f32.
fn values(len: usize, seed: u32) -> Vec<f32> {
    let value = |i: u32| (i.wrapping_mul(2654435761).wrapping_add(seed) as f32 / 2e9).sin();
    (0..len as u32).map(value).collect()
}

fn upload(memory: &mut Memory, name: &str, values: &[f32]) -> DevicePtr<f32> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    DevicePtr::new(memory.alloc(name, Init::Bytes(&bytes)))
}

fn download(memory: &Memory, from: DevicePtr<f32>, len: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * len];
    memory.read(from.0, &mut bytes).unwrap();
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn saxpy_matches_its_oracle() {
    const A: f32 = 1.7;
    for len in LENGTHS {
        let (x, y) = (values(len, 1), values(len, 2));
        for seed in simt::seeds() {
            let mut memory = Memory::new();
            let (to_x, to_y) = (upload(&mut memory, "x", &x), upload(&mut memory, "y", &y));
            let launch = saxpy::launch(len, A, to_x, to_y).unwrap().unwrap();
            launch.emulate(&mut memory, seed).unwrap_or_else(|fault| panic!("len {len}: {fault}"));
            let got = download(&memory, to_y, len);
            for i in 0..len {
                let want = f64::from(A) * f64::from(x[i]) + f64::from(y[i]);
                assert_eq!(got[i], want as f32, "len {len}, seed {seed}: element {i}");
            }
        }
    }
}

#[test]
fn block_sum_matches_its_oracle() {
    for len in LENGTHS {
        let x = values(len, 3);
        for seed in simt::seeds() {
            let mut memory = Memory::new();
            let to_x = upload(&mut memory, "x", &x);
            let num_blocks = block_sum::num_blocks(len);
            let out = DevicePtr::new(memory.alloc("out", Init::Poisoned(4 * num_blocks)));
            let launch = block_sum::launch(len, to_x, out).unwrap().unwrap();
            launch.emulate(&mut memory, seed).unwrap_or_else(|fault| panic!("len {len}: {fault}"));
            let got = download(&memory, out, num_blocks);
            for (block, x) in x.chunks(block_sum::NUM_THREADS as usize).enumerate() {
                let want: f64 = x.iter().copied().map(f64::from).sum();
                let magnitude: f64 = x.iter().copied().map(|x| f64::from(x).abs()).sum();
                // A tree of 10 additions, each rounded.
                let bound = 10.0 * f64::from(f32::EPSILON) / 2.0 * magnitude;
                let error = (f64::from(got[block]) - want).abs();
                assert!(error <= bound, "len {len}, seed {seed}: block {block} is off by {error}");
            }
        }
    }
}

#[test]
fn nothing_is_launched_for_no_elements() {
    let none = DevicePtr::null();
    assert_eq!(saxpy::launch(0, 1.0, none, none), Ok(None));
    assert_eq!(block_sum::launch(0, none, none), Ok(None));
}

#[test]
fn rejects_lengths_that_do_not_fit() {
    let none = DevicePtr::null();
    let error = saxpy::launch(1 << 32, 1.0, none, none);
    assert!(matches!(error, Err(LaunchError::Shape { what: "len", .. })), "{error:?}");
}
