//! f32 to blocks: bits equal to ggml's, and properties that hold whatever ggml does.

use crate::files::{Gguf, tests_dir};
use halfwarp::plan::Dtype;
use halfwarp::weights::{EncodeError, encode_elements};

/// Every format that is written, with ggml's number and the bits of a level.
const FORMATS: [(Dtype, u32, i32); 8] = [
    (Dtype::Q4_0, 2, 4),
    (Dtype::Q4_1, 3, 4),
    (Dtype::Q5_0, 6, 5),
    (Dtype::Q5_1, 7, 5),
    (Dtype::Q8_0, 8, 8),
    (Dtype::Q4_K, 12, 4),
    (Dtype::Q5_K, 13, 5),
    (Dtype::Q6_K, 14, 6),
];

fn encoded(values: &[f32], dtype: Dtype) -> Vec<u8> {
    encode_elements("x", values, dtype).unwrap()
}

fn decoded(blocks: &[u8], elems: usize, type_id: u32) -> Vec<f32> {
    Gguf::new().tensor("x", &[elems as u64], type_id, blocks).open().read_f32("x").unwrap()
}

/// `values` in blocks and back.
fn round_trip(values: &[f32], dtype: Dtype, type_id: u32) -> Vec<f32> {
    decoded(&encoded(values, dtype), values.len(), type_id)
}

/// Uniform from -1 to 1 (Weyl's sequence, scrambled).
fn random(len: usize) -> Vec<f32> {
    let hash = |i: u32| {
        let x = i.wrapping_mul(2654435769);
        (x ^ x >> 15).wrapping_mul(2246822519)
    };
    (1..=len as u32).map(|i| (hash(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

#[test]
fn blocks_are_those_of_ggml() {
    let file = std::fs::read(tests_dir().join("fixtures/quantized.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let values = file.tensor("values").unwrap();
    let values: Vec<f32> =
        values.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    for (dtype, ..) in FORMATS {
        let expected = file.tensor(&dtype.to_string()).unwrap();
        let row_bytes = expected.shape()[1];
        let got = encoded(&values, dtype);
        for (row, (got, want)) in
            got.chunks(row_bytes).zip(expected.data().chunks(row_bytes)).enumerate()
        {
            assert_eq!(got, want, "{dtype}, row {row}");
        }
    }
}

/// No value of a block is further from what it became than half a step between the levels of its
/// group, with some slack for scales that are rounded themselves.
#[test]
fn the_error_is_about_half_a_step() {
    let values = random(256 * 16);
    for (dtype, type_id, bits) in FORMATS {
        let got = round_trip(&values, dtype, type_id);
        let most = values.iter().zip(&got).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        // A range of two over the levels. Where zero is a level, the side that the largest value is
        // not on has one level fewer than it would need: a whole step is lost there.
        let step = 2.0 / 2f32.powi(bits);
        let steps = if matches!(dtype, Dtype::Q4_0 | Dtype::Q5_0) { 1.1 } else { 0.8 };
        assert!(most < steps * step, "{dtype}: {most}, a step is {step}");
        assert!(most > 0.3 * step, "{dtype}: {most}, a step is {step}");
    }
}

/// Each value got the nearest of all levels that its block's scale has: found by trying every
/// other nibble in its place.
#[test]
fn no_other_level_is_nearer() {
    let values = random(256);
    for (dtype, type_id, nibbles) in
        [(Dtype::Q4_0, 2, 2), (Dtype::Q4_1, 3, 4), (Dtype::Q4_K, 12, 16)]
    {
        let blocks = encoded(&values, dtype);
        let got = decoded(&blocks, 256, type_id);
        let block_bytes = dtype.block_bytes();
        for other in 0..16u8 {
            let mut tried = blocks.clone();
            for block in tried.chunks_mut(block_bytes) {
                block[nibbles..].fill(other | other << 4);
            }
            let levels = decoded(&tried, 256, type_id);
            for (i, value) in values.iter().enumerate() {
                let (error, least) = ((levels[i] - value).abs(), (got[i] - value).abs());
                // f16 rounds a scale after the levels were chosen by it.
                assert!(error > least - 2e-3 * value.abs().max(0.1), "{dtype} [{i}] level {other}");
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_constants_stay_close() {
    for (dtype, type_id, _) in FORMATS {
        assert_eq!(round_trip(&[0.0; 512], dtype, type_id), [0.0; 512], "{dtype}");
        for constant in [1.0f32, -1.0, 3e-2, -250.0] {
            for value in round_trip(&[constant; 256], dtype, type_id) {
                let error = (value - constant).abs();
                assert!(error <= 2e-2 * constant.abs(), "{dtype}: {constant} became {value}");
            }
        }
    }
}

/// Values too small for an f16 scale become zero, and never NaN.
#[test]
fn tiny_and_large_magnitudes_are_finite() {
    for (dtype, type_id, bits) in FORMATS {
        for magnitude in [1e-45, 1e-38, 1e-20, 1e-9, 1e-4, 1e4, 6e4] {
            let values: Vec<f32> = random(512).iter().map(|x| x * magnitude).collect();
            let got = round_trip(&values, dtype, type_id);
            for (x, y) in values.iter().zip(&got) {
                // f16 has steps of 6e-8 near zero, which every level multiplies.
                let allowed = magnitude * 3.0 / 2f32.powi(bits) + 6e-8 * 2f32.powi(bits + 6);
                assert!((x - y).abs() <= allowed, "{dtype} {magnitude:e}: {x:e} became {y:e}");
            }
        }
    }
}

#[test]
fn what_has_no_block_is_an_error_that_names_tensor_and_value() {
    for (dtype, ..) in FORMATS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 1e20] {
            let mut values = random(1024);
            values[700] = bad;
            match encode_elements("blk.0.ffn_up.weight", &values, dtype) {
                Err(EncodeError::Value { tensor, value, dtype: named }) => {
                    assert_eq!((&tensor[..], named), ("blk.0.ffn_up.weight", dtype));
                    assert_eq!(value.to_bits(), bad.to_bits(), "{dtype}");
                }
                other => panic!("{dtype} {bad}: {other:?}"),
            }
        }
    }
    let unwritten = encode_elements("x", &[0.0; 256], Dtype::Q2_K).unwrap_err();
    assert!(unwritten.to_string().contains("Q2_K is read, but not written"), "{unwritten}");
}
