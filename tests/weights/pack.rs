//! Weights of a plan out of a checkpoint's tensors.

use std::sync::Mutex;

use crate::files::{Gguf, assert_error, f32_bytes, tests_dir};
use halfwarp::exec::{ExecError, WeightSource};
use halfwarp::plan::{Dtype, PartTransform, Weight, WeightPart};
use halfwarp::weights::{Checkpoint, Progress, WeightsError};

const F32: u32 = 0;
const BF16: u32 = 30;
const Q8_0: u32 = 8;

/// A weight of untransformed parts `(source, rows)`.
fn weight(rows: usize, cols: usize, parts: &[(&str, usize)]) -> Weight {
    let part = |&(source, rows): &(&str, usize)| WeightPart {
        source: source.into(),
        rows,
        transform: PartTransform::None,
    };
    let parts = parts.iter().map(part).collect();
    Weight { name: "w".into(), rows, cols, storage: Dtype::F32, parts }
}

fn unpermuted(mut weight: Weight, num_heads: usize) -> Weight {
    for part in &mut weight.parts {
        part.transform = PartTransform::UnpermuteRope { num_heads };
    }
    weight
}

/// Reads `weight` into bytes that start at an odd address.
fn read(source: &dyn WeightSource, weight: &Weight) -> Result<Vec<f32>, ExecError> {
    let mut bytes = vec![0xFF; weight.bytes() + 1];
    let start = if bytes.as_ptr().addr().is_multiple_of(2) { 1 } else { 0 };
    source.read(weight, &mut bytes[start..start + weight.bytes()])?;
    let read = bytes[start..].as_chunks().0;
    Ok(read.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
}

/// `q` `[2, 32]` in Q8_0, `k` `[3, 32]` in BF16, `v` `[1, 32]` in F32; vectors `a` `[2]` and `b`
/// `[3]`; with what they are.
fn checkpoint() -> (Checkpoint, [Vec<f32>; 3]) {
    let numbers = |rows: usize, first: usize| -> Vec<f32> {
        (0..rows * 32).map(|i| (first + i) as f32 - 64.0).collect()
    };
    let (q, k, v) = (numbers(2, 0), numbers(3, 7), numbers(1, 60));
    let blocks = q.chunks(32).flat_map(|row| {
        let one = 0x3C00u16.to_le_bytes();
        one.into_iter().chain(row.iter().map(|&x| x as i8 as u8))
    });
    let brain: Vec<u8> = k.iter().flat_map(|x| x.to_bits().to_le_bytes()[2..].to_vec()).collect();
    let file = Gguf::new()
        .tensor("q", &[32, 2], Q8_0, &blocks.collect::<Vec<u8>>())
        .tensor("k", &[32, 3], BF16, &brain)
        .tensor("v", &[32, 1], F32, &f32_bytes(&v))
        .tensor("a", &[2], F32, &f32_bytes(&[1.0, 2.0]))
        .tensor("b", &[3], F32, &f32_bytes(&[3.0, 4.0, 5.0]));
    (file.open(), [q, k, v])
}

#[test]
fn parts_are_stacked_along_the_rows() {
    let (checkpoint, [q, k, v]) = checkpoint();
    let qkv = weight(6, 32, &[("q", 2), ("k", 3), ("v", 1)]);
    checkpoint.check(&qkv).unwrap();
    assert_eq!(read(&checkpoint, &qkv).unwrap(), [q, k, v.clone()].concat());
    let biases = weight(1, 5, &[("b", 3), ("a", 2)]);
    checkpoint.check(&biases).unwrap();
    assert_eq!(read(&checkpoint, &biases).unwrap(), [3.0, 4.0, 5.0, 1.0, 2.0]);
    assert_eq!(read(&checkpoint, &weight(1, 32, &[("v", 1)])).unwrap(), v);
}

/// Many tasks, whose last rows are cut short of a run.
#[test]
fn large_weights_are_read_in_parallel() {
    let (rows, cols) = (700, 321);
    let values: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
    let file = Gguf::new().tensor("w", &[cols as u64, rows as u64], F32, &f32_bytes(&values));
    assert!(read(&file.open(), &weight(rows, cols, &[("w", rows)])).unwrap() == values);
}

#[test]
fn llama_rows_go_back_to_halves() {
    let fixtures = tests_dir().join("fixtures");
    let checkpoint = Checkpoint::open(fixtures.join("blocks.gguf")).unwrap();
    let expected = std::fs::read(fixtures.join("blocks.safetensors")).unwrap();
    let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
    let q = unpermuted(weight(12, 5, &[("attn_q", 12)]), 2);
    checkpoint.check(&q).unwrap();
    let read = f32_bytes(&read(&checkpoint, &q).unwrap());
    assert_eq!(read, expected.tensor("attn_q").unwrap().data());
}

/// One head of four: stored 0, 2, 1, 3 of the halves form. Of a bias, the elements.
#[test]
fn a_bias_is_unpermuted_by_elements() {
    let stored = [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0];
    let file = Gguf::new().tensor("b", &[8], F32, &f32_bytes(&stored));
    let bias = unpermuted(weight(1, 8, &[("b", 8)]), 2);
    let expected = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
    assert_eq!(read(&file.open(), &bias).unwrap(), expected);
}

#[test]
fn rejects_weights_that_the_checkpoint_cannot_give() {
    let (checkpoint, _) = checkpoint();
    let check = |weight: &Weight| {
        let checked = checkpoint.check(weight);
        assert!(read(&checkpoint, weight).is_err(), "read what check rejects");
        checked
    };
    let missing = check(&weight(2, 32, &[("x", 2)]));
    assert_error!(missing, WeightsError::MissingTensor { .. }, "`x`", "model.gguf");
    for (rows, cols, part_rows) in [(3, 32, 3), (2, 64, 2), (1, 2, 2)] {
        let wrong = check(&weight(rows, cols, &[("q", part_rows)]));
        assert_error!(wrong, WeightsError::WrongShape { .. }, "`q`", "[2, 32]");
    }
    for num_heads in [0, 2, 3] {
        let heads = check(&unpermuted(weight(2, 32, &[("q", 2)]), num_heads));
        assert_error!(heads, WeightsError::NotHeads { .. }, "`q`", &num_heads.to_string());
    }
    let half = Weight { storage: Dtype::F16, ..weight(2, 32, &[("q", 2)]) };
    assert_error!(check(&half), WeightsError::UnsupportedStorage { .. }, "F16");
    let blocks = Gguf::new().tensor("b", &[32], Q8_0, &[0; 34]).open();
    let bias = blocks.check(&unpermuted(weight(1, 32, &[("b", 32)]), 2));
    assert_error!(bias, WeightsError::NotHeads { .. }, "Q8_0");
}

#[test]
fn progress_counts_bytes() {
    let (checkpoint, _) = checkpoint();
    let reports = Mutex::new(Vec::new());
    let progress =
        Progress::new(&checkpoint, 264, |done, total| reports.lock().unwrap().push((done, total)));
    read(&progress, &weight(2, 32, &[("q", 2)])).unwrap();
    read(&progress, &weight(1, 2, &[("a", 2)])).unwrap();
    assert!(read(&progress, &weight(1, 2, &[("x", 2)])).is_err());
    assert_eq!(reports.into_inner().unwrap(), [(256, 264), (264, 264)]);
}
