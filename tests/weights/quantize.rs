//! f32 to blocks: bits equal to ggml's, and properties that hold whatever ggml does.

use crate::files::{Gguf, tests_dir};
use halfwarp::plan::Dtype;
use halfwarp::weights::{EncodeError, encode_rows};

/// Every format that is written, with ggml's number.
const FORMATS: [(Dtype, u32); 13] = [
    (Dtype::Q4_0, 2),
    (Dtype::Q4_1, 3),
    (Dtype::Q5_0, 6),
    (Dtype::Q5_1, 7),
    (Dtype::Q8_0, 8),
    (Dtype::Q2_K, 10),
    (Dtype::Q3_K, 11),
    (Dtype::Q4_K, 12),
    (Dtype::Q5_K, 13),
    (Dtype::Q6_K, 14),
    (Dtype::IQ4_NL, 20),
    (Dtype::IQ4_XS, 23),
    (Dtype::MXFP4, 39),
];

/// Types whose levels are evenly spaced and many, with the bits of a level.
const EVEN: [(Dtype, u32, i32); 8] = [
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
    encode_rows("x", values, values.len(), None, dtype).unwrap()
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

/// Without and with the importance of the columns; each row alone, and all at once.
#[test]
fn blocks_are_those_of_ggml() {
    let file = std::fs::read(tests_dir().join("fixtures/quantized.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let f32s = |name: &str| -> Vec<f32> {
        let tensor = file.tensor(name).unwrap();
        tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let (values, importance) = (f32s("values"), f32s("importance"));
    let columns = importance.len();
    for (dtype, _) in FORMATS {
        for (suffix, importance) in [("", None), (" importance", Some(&*importance))] {
            let expected = file.tensor(&format!("{dtype}{suffix}")).unwrap();
            let encode = |values| encode_rows("x", values, columns, importance, dtype).unwrap();
            let row_bytes = expected.shape()[1];
            let rows = values.chunks(columns).zip(expected.data().chunks(row_bytes));
            for (row, (values, want)) in rows.enumerate() {
                let got = encode(values);
                let mut blocks =
                    got.chunks(dtype.block_bytes()).zip(want.chunks(dtype.block_bytes()));
                let off = blocks.position(|(got, want)| got != want);
                assert_eq!(off, None, "{dtype}{suffix}, row {row}: this block is another");
            }
            assert!(encode(&values) == expected.data(), "{dtype}{suffix}");
        }
    }
}

/// Rows in parallel tasks, and a stack of experts with an importance for each.
#[test]
fn every_expert_has_its_importance() {
    let (columns, rows) = (256, 150);
    let values = random(columns * rows);
    let importance: Vec<f32> = random(3 * columns).iter().map(|x| x * x).collect();
    for dtype in [Dtype::Q4_0, Dtype::Q4_K] {
        let stack = encode_rows("x", &values, columns, Some(&importance), dtype).unwrap();
        let experts = values.chunks(columns * rows / 3).zip(importance.chunks(columns));
        let one_by_one = experts.flat_map(|(values, importance)| {
            encode_rows("x", values, columns, Some(importance), dtype).unwrap()
        });
        assert!(one_by_one.collect::<Vec<_>>() == stack, "{dtype}");
        let plain = encode_rows("x", &values, columns, None, dtype).unwrap();
        assert!(plain != stack, "{dtype}");
    }
}

/// No value of a block is further from what it became than half a step between the levels of its
/// group, with some slack for scales that are rounded themselves.
#[test]
fn the_error_is_about_half_a_step() {
    let values = random(256 * 16);
    for (dtype, type_id, bits) in EVEN {
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
    for (dtype, type_id) in FORMATS {
        assert_eq!(round_trip(&[0.0; 512], dtype, type_id), [0.0; 512], "{dtype}");
    }
    for (dtype, type_id, _) in EVEN {
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
    for (dtype, type_id) in FORMATS {
        let even = EVEN.iter().find(|(even, ..)| *even == dtype);
        // The levels of a value, and how many of the steps of f16 there are to one of them at most.
        let (bits, steps) = even.map_or((2, 12), |(_, _, bits)| (*bits, *bits + 6));
        for magnitude in [1e-45, 1e-38, 1e-20, 1e-9, 1e-4, 1e4, 6e4] {
            let values: Vec<f32> = random(512).iter().map(|x| x * magnitude).collect();
            let got = round_trip(&values, dtype, type_id);
            for (x, y) in values.iter().zip(&got) {
                // f16 has steps of 6e-8 near zero, which every level multiplies.
                let allowed = magnitude * 3.0 / 2f32.powi(bits) + 6e-8 * 2f32.powi(steps);
                assert!((x - y).abs() <= allowed, "{dtype} {magnitude:e}: {x:e} became {y:e}");
            }
        }
    }
}

#[test]
fn what_has_no_block_is_an_error_that_names_tensor_and_value() {
    for (dtype, _) in FORMATS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 1e20] {
            // Its scales are powers of two.
            if dtype == Dtype::MXFP4 && bad.is_finite() {
                continue;
            }
            let mut values = random(1024);
            values[700] = bad;
            for importance in [None, Some(&[1.0; 256][..])] {
                match encode_rows("blk.0.ffn_up.weight", &values, 256, importance, dtype) {
                    Err(EncodeError::Value { tensor, value, dtype: named }) => {
                        assert_eq!((&tensor[..], named), ("blk.0.ffn_up.weight", dtype));
                        assert_eq!(value.to_bits(), bad.to_bits(), "{dtype}");
                    }
                    other => panic!("{dtype} {bad}: {other:?}"),
                }
            }
        }
    }
    let unwritten = encode_rows("x", &[0.0; 256], 256, None, Dtype::IQ2_S).unwrap_err();
    assert!(unwritten.to_string().contains("IQ2_S is read, but not written"), "{unwritten}");
}
