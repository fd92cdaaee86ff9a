//! Block formats, bit for bit.
//!
//! Oracles: `gguf.quants.dequantize` on random blocks (tests/fixtures/make_blocks.py), and blocks
//! packed here as ggml's quantisers pack them, from levels, scales and minima that are known.

use crate::files::{Gguf, f32_bytes, tests_dir};
use halfwarp::weights::gguf::{Value, parse};
use halfwarp::weights::{Checkpoint, TensorDtype};
use std::collections::BTreeSet;

/// f16 1/4, 1/2, 2.
const QUARTER: [u8; 2] = 0x3400u16.to_le_bytes();
const HALF: [u8; 2] = 0x3800u16.to_le_bytes();
const TWO: [u8; 2] = 0x4000u16.to_le_bytes();

#[test]
fn every_format_is_bit_exact_with_gguf_py() {
    let fixtures = tests_dir().join("fixtures");
    let expected = std::fs::read(fixtures.join("blocks.safetensors")).unwrap();
    let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
    let checkpoint = Checkpoint::open(fixtures.join("blocks.gguf")).unwrap();
    let mut formats = 0;
    for entry in checkpoint.tensors().filter(|entry| entry.name != "attn_q") {
        let expected = expected.tensor(entry.name).unwrap();
        assert_eq!(entry.shape, expected.shape(), "{}", entry.name);
        assert_eq!(entry.dtype.to_string(), entry.name);
        let values = checkpoint.read_f32(entry.name).unwrap();
        for (i, (value, bytes)) in values.iter().zip(expected.data().as_chunks().0).enumerate() {
            let expected = f32::from_le_bytes(*bytes);
            let equal = value.to_bits() == expected.to_bits();
            assert!(equal, "{} element {i}: got {value:e}, wanted {expected:e}", entry.name);
        }
        assert_eq!(f32_bytes(&values).len(), expected.data().len());
        formats += 1;
    }
    assert_eq!(formats, 25);
}

/// All that a model has in the IQ and ternary formats: nearly every entry of their grids.
#[test]
fn models_in_iq_formats_have_the_checksums_of_gguf_py() {
    let path = tests_dir().join("fixtures/iq.gguf");
    let metadata = parse(&std::fs::read(&path).unwrap()).unwrap().metadata;
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut formats = BTreeSet::new();
    for entry in checkpoint.tensors().filter(|entry| entry.shape.len() == 2) {
        let values = checkpoint.read_f32(entry.name).unwrap();
        let bits = values.iter().map(|value| u64::from(value.to_bits()));
        let sum = (1..).zip(bits).fold(0u64, |sum, (i, bits)| sum.wrapping_add(i * bits));
        let expected = &metadata.0[&format!("test.checksum.{}", entry.name)];
        assert_eq!(&Value::U64(sum), expected, "{} of {}", entry.name, entry.dtype);
        formats.insert(entry.dtype.to_string());
    }
    assert_eq!(formats.len(), 12, "{formats:?}");
}

/// What a block becomes.
fn dequantize(type_id: u32, block: &[u8], elems: u64) -> Vec<f32> {
    let checkpoint = Gguf::new().tensor("x", &[elems], type_id, block).open();
    assert!(matches!(checkpoint.tensor("x").unwrap().dtype, TensorDtype::Known(_)));
    checkpoint.read_f32("x").unwrap()
}

/// Levels of `bits` bits in no order (Fibonacci hashing), so that no two groups are alike.
fn levels(elems: usize, bits: u32) -> Vec<u8> {
    let hashes = (0..elems as u32).map(|i| (i + 1).wrapping_mul(2654435769));
    hashes.map(|hash| ((hash ^ hash >> 15) >> (32 - bits)) as u8).collect()
}

/// Nibbles of 32 levels, element `i` below element `i + 16`.
fn nibbles(q: &[u8]) -> Vec<u8> {
    (0..16).map(|i| q[i] & 15 | q[i + 16] << 4).collect()
}

fn fifth_bits(q: &[u8]) -> [u8; 4] {
    q.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4) << i).to_le_bytes()
}

#[test]
fn q4_0_and_q4_1_are_as_packed() {
    let q = levels(32, 4);
    let block = [&HALF[..], &nibbles(&q)].concat();
    let expected: Vec<f32> = q.iter().map(|&q| 0.5 * (f32::from(q) - 8.0)).collect();
    assert_eq!(dequantize(2, &block, 32), expected);
    let block = [&HALF[..], &TWO, &nibbles(&q)].concat();
    let expected: Vec<f32> = q.iter().map(|&q| 0.5 * f32::from(q) + 2.0).collect();
    assert_eq!(dequantize(3, &block, 32), expected);
}

#[test]
fn q5_0_and_q5_1_are_as_packed() {
    let q = levels(32, 5);
    let block = [&HALF[..], &fifth_bits(&q), &nibbles(&q)].concat();
    let expected: Vec<f32> = q.iter().map(|&q| 0.5 * (f32::from(q) - 16.0)).collect();
    assert_eq!(dequantize(6, &block, 32), expected);
    let block = [&HALF[..], &TWO, &fifth_bits(&q), &nibbles(&q)].concat();
    let expected: Vec<f32> = q.iter().map(|&q| 0.5 * f32::from(q) + 2.0).collect();
    assert_eq!(dequantize(7, &block, 32), expected);
}

#[test]
fn q8_0_is_as_packed() {
    let q: Vec<u8> = (0..32).map(|i| (i * 37) as u8).collect();
    let expected: Vec<f32> = q.iter().map(|&q| 2.0 * f32::from(q as i8)).collect();
    assert_eq!(dequantize(8, &[&TWO[..], &q].concat(), 32), expected);
}

/// Two bits of 256 levels: four runs of 32 share the bytes of half a block.
fn two_bits(q: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; 64];
    for (i, q) in q.iter().enumerate() {
        packed[i / 128 * 32 + i % 32] |= (q & 3) << (2 * (i % 128 / 32));
    }
    packed
}

#[test]
fn q2_k_is_as_packed() {
    let q = levels(256, 2);
    let scales: Vec<u8> = (0..16).map(|g| g | (15 - g) << 4).collect();
    let block = [&scales[..], &two_bits(&q), &HALF, &QUARTER].concat();
    let value = |i: usize| {
        let group = (i / 16) as f32;
        0.5 * group * f32::from(q[i]) - 0.25 * (15.0 - group)
    };
    assert_eq!(dequantize(10, &block, 256), (0..256).map(value).collect::<Vec<_>>());
}

#[test]
fn q3_k_is_as_packed() {
    let q = levels(256, 3);
    let mut high_bits = [0u8; 32];
    for (i, q) in q.iter().enumerate() {
        high_bits[i % 32] |= (q >> 2) << (i / 32);
    }
    let scales: Vec<u8> = (0..16).map(|group| group * 4 + 1).collect();
    let mut packed = [0u8; 12];
    for (group, scale) in scales.iter().enumerate() {
        packed[group % 8] |= (scale & 15) << (4 * (group / 8));
        packed[8 + group % 4] |= (scale >> 4) << (2 * (group / 4));
    }
    let block = [&high_bits[..], &two_bits(&q), &packed, &HALF].concat();
    let value = |i: usize| 0.5 * (f32::from(scales[i / 16]) - 32.0) * (f32::from(q[i]) - 4.0);
    assert_eq!(dequantize(11, &block, 256), (0..256).map(value).collect::<Vec<_>>());
}

const SCALES: [u8; 8] = [1, 63, 17, 32, 16, 15, 62, 47];
const MINS: [u8; 8] = [63, 2, 31, 16, 48, 33, 0, 21];

/// [`SCALES`] and [`MINS`] as `quantize_row_q4_K_ref` packs them.
fn six_bit_pairs() -> [u8; 12] {
    let mut packed = [0u8; 12];
    for (group, (scale, min)) in SCALES.into_iter().zip(MINS).enumerate() {
        if group < 4 {
            packed[group] = scale;
            packed[group + 4] = min;
        } else {
            packed[group + 4] = scale & 15 | (min & 15) << 4;
            packed[group - 4] |= scale >> 4 << 6;
            packed[group] |= min >> 4 << 6;
        }
    }
    packed
}

/// Nibbles of 256 levels: runs of 32 in pairs, the first below the second.
fn paired_nibbles(q: &[u8]) -> Vec<u8> {
    (0..128).map(|i| i / 32 * 64 + i % 32).map(|at| q[at] & 15 | q[at + 32] << 4).collect()
}

fn six_bit_value(q: &[u8], i: usize) -> f32 {
    0.5 * f32::from(SCALES[i / 32]) * f32::from(q[i]) - 0.25 * f32::from(MINS[i / 32])
}

#[test]
fn q4_k_is_as_packed() {
    let q = levels(256, 4);
    let block = [&HALF[..], &QUARTER, &six_bit_pairs(), &paired_nibbles(&q)].concat();
    let expected: Vec<f32> = (0..256).map(|i| six_bit_value(&q, i)).collect();
    assert_eq!(dequantize(12, &block, 256), expected);
}

#[test]
fn q5_k_is_as_packed() {
    let q = levels(256, 5);
    let mut high_bits = [0u8; 32];
    for (i, q) in q.iter().enumerate() {
        high_bits[i % 32] |= (q >> 4) << (i / 32);
    }
    let block = [&HALF[..], &QUARTER, &six_bit_pairs(), &high_bits, &paired_nibbles(&q)].concat();
    let expected: Vec<f32> = (0..256).map(|i| six_bit_value(&q, i)).collect();
    assert_eq!(dequantize(13, &block, 256), expected);
}

#[test]
fn q6_k_is_as_packed() {
    let q = levels(256, 6);
    let (mut low, mut high) = ([0u8; 128], [0u8; 64]);
    for (i, q) in q.iter().enumerate() {
        let (half, in_half) = (i / 128, i % 128);
        low[half * 64 + in_half % 64] |= (q & 15) << (4 * (in_half / 64));
        high[half * 32 + in_half % 32] |= (q >> 4) << (2 * (in_half / 32));
    }
    let scales: Vec<u8> = (0..16i32).map(|group| (group * 17 - 128) as i8 as u8).collect();
    let block = [&low[..], &high, &scales, &HALF].concat();
    let value = |i: usize| 0.5 * f32::from(scales[i / 16] as i8) * (f32::from(q[i]) - 32.0);
    assert_eq!(dequantize(14, &block, 256), (0..256).map(value).collect::<Vec<_>>());
}
