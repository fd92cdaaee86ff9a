//! Packing a checkpoint's tensors into a plan's weights.

use std::ops::ControlFlow;
use std::sync::Mutex;

use crate::files::{Gguf, assert_error, f32_bytes, tests_dir};
use half::{bf16, f16};
use halfwarp::plan::{
    Dtype, PartTransform, ReadWeightError, Weight, WeightLayout, WeightPart, WeightSource,
};
use halfwarp::weights::{BrokenOff, Checkpoint, Progress, TensorDtype, WeightsError};

const F32: u32 = 0;
const BF16: u32 = 30;
const Q8_0: u32 = 8;

/// A weight of untransformed parts `(source, rows)`.
fn weight(rows: usize, cols: usize, parts: &[(&str, usize)]) -> Weight {
    let part = |&(source, rows): &(&str, usize)| WeightPart::new(source, rows, Dtype::F32);
    let parts = parts.iter().map(part).collect();
    Weight { name: "w".into(), rows, cols, layout: WeightLayout::Rows, parts }
}

fn unpermuted(mut weight: Weight, num_heads: usize) -> Weight {
    for part in &mut weight.parts {
        part.transform = PartTransform::UnpermuteRope { num_heads };
    }
    weight
}

/// Reads `weight` into bytes that start at an odd address.
fn read(source: &dyn WeightSource, weight: &Weight) -> Result<Vec<f32>, ReadWeightError> {
    let mut bytes = vec![0xFF; weight.bytes() + 1];
    let start = if bytes.as_ptr().addr().is_multiple_of(2) { 1 } else { 0 };
    let bytes = &mut bytes[start..start + weight.bytes()];
    source.read(weight, bytes)?;
    let halves = || bytes.as_chunks().0.iter();
    Ok(match weight.storage().unwrap() {
        Dtype::F16 => halves().map(|bytes| f16::from_ne_bytes(*bytes).to_f32()).collect(),
        Dtype::BF16 => halves().map(|bytes| bf16::from_ne_bytes(*bytes).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect(),
    })
}

fn stored(storage: Dtype, mut weight: Weight) -> Weight {
    weight.parts.iter_mut().for_each(|part| part.storage = storage);
    weight
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

/// What a GPU keeps of formats that it has no kernels for, beside the numbers themselves.
#[test]
fn iq_formats_become_larger_blocks() {
    const Q6_K: u32 = 14;
    let checkpoint = Checkpoint::open(tests_dir().join("fixtures/iq.gguf")).unwrap();
    let mut num_formats = 0;
    for entry in checkpoint.tensors() {
        let TensorDtype::Known(dtype) = entry.dtype else { panic!("{}", entry.name) };
        let Some(storage) = dtype.expanded() else { continue };
        let &[rows, cols] = entry.shape else { panic!("{:?}", entry.shape) };
        let weight = stored(storage, weight(rows, cols, &[(entry.name, rows)]));
        checkpoint.check(&weight).unwrap();
        let mut blocks = vec![0xFF; weight.bytes()];
        checkpoint.read(&weight, &mut blocks).unwrap();
        let type_id = if storage == Dtype::Q8_0 { Q8_0 } else { Q6_K };
        let expanded = Gguf::new().tensor("x", &[cols as u64, rows as u64], type_id, &blocks);
        let got = expanded.open().read_f32("x").unwrap();
        let want = checkpoint.read_f32(entry.name).unwrap();
        let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum();
        let errors: f64 = squares(&mut got.iter().zip(&want).map(|(got, want)| got - want));
        let error = (errors / squares(&mut want.iter().copied())).sqrt();
        match *dtype {
            // A scale is rounded to f16, whose least step is 2^-24; 43 is the largest level.
            Dtype::IQ2_XXS => {
                let step = 43.0 * f32::powi(2.0, -25);
                let is_close =
                    |(got, want): (&f32, &f32)| (got - want).abs() <= want.abs() / 2048.0 + step;
                assert!(got.iter().zip(&want).all(is_close), "{}", entry.name);
            }
            // Two groups of 16 share a scale.
            Dtype::IQ2_XS | Dtype::IQ2_S => {
                assert!((1e-3..4e-3).contains(&error), "{dtype}: {error:e}");
                let most = |x: &[f32]| x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                for (got, want) in got.chunks(32).zip(want.chunks(32)) {
                    let errors: Vec<f32> = got.iter().zip(want).map(|(a, b)| a - b).collect();
                    assert!(most(&errors) <= most(want) / 64.0, "{}", entry.name);
                }
            }
            _ => assert!(got == want, "{} of {dtype}: {error:e}", entry.name),
        }
        num_formats += 1;
    }
    assert!(num_formats >= 10);
}

#[test]
fn scales_that_larger_blocks_cannot_hold_are_errors() {
    const IQ2_XXS: u32 = 16;
    const IQ1_M: u32 = 29;
    let mut block = [0xFF; 66];
    block[..2].copy_from_slice(&f16::MAX.to_le_bytes());
    let checkpoint = Gguf::new().tensor("w", &[256, 1], IQ2_XXS, &block).open();
    assert!(checkpoint.read_f32("w").unwrap().iter().all(|value| value.is_finite()));
    let mut planned = weight(1, 256, &[("w", 1)]);
    planned.parts[0].storage = Dtype::Q8_0;
    let error = checkpoint.read(&planned, &mut [0; 8 * 34]).unwrap_err().to_string();
    assert!(error.contains("`w` holds") && error.contains("Q8_0"), "{error}");
    // Infinity in the top nibbles of four words.
    let mut block = [0; 56];
    (block[53], block[55]) = (0xC0, 0x70);
    let checkpoint = Gguf::new().tensor("w", &[256], IQ1_M, &block).open();
    assert_error!(checkpoint.read_f32("w"), WeightsError::Scale { .. }, "`w` of IQ1_M", "inf");
}

/// Many tasks, whose last rows are cut short of a run.
#[test]
fn large_weights_are_read_in_parallel() {
    let (rows, cols) = (700, 321);
    let values: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
    let file = Gguf::new().tensor("w", &[cols as u64, rows as u64], F32, &f32_bytes(&values));
    assert!(read(&file.open(), &weight(rows, cols, &[("w", rows)])).unwrap() == values);
}

/// From blocks, bf16 and f32; rows put in order; elements of a vector.
#[test]
fn weights_are_rounded_to_what_the_plan_keeps() {
    let (checkpoint, _) = checkpoint();
    let thirds: Vec<f32> = (0..700 * 321).map(|i| i as f32 / 3.0 * 0.1).collect();
    let large = Gguf::new().tensor("w", &[321, 700], F32, &f32_bytes(&thirds)).open();
    let fixtures = Checkpoint::open(tests_dir().join("fixtures/blocks.gguf")).unwrap();
    let rounded_f16 = |x: f32| f16::from_f32(x).to_f32();
    let rounded_bf16 = |x: f32| bf16::from_f32(x).to_f32();
    for (checkpoint, weight) in [
        (&checkpoint, weight(6, 32, &[("q", 2), ("k", 3), ("v", 1)])),
        (&checkpoint, weight(1, 5, &[("b", 3), ("a", 2)])),
        (&large, weight(700, 321, &[("w", 700)])),
        (&fixtures, unpermuted(weight(12, 5, &[("attn_q", 12)]), 2)),
    ] {
        let exact = read(checkpoint, &weight).unwrap();
        for (storage, round) in
            [(Dtype::F16, &rounded_f16 as &dyn Fn(f32) -> f32), (Dtype::BF16, &rounded_bf16)]
        {
            let half = stored(storage, weight.clone());
            assert_eq!(half.bytes() * 2, weight.bytes());
            checkpoint.check(&half).unwrap();
            let wanted: Vec<f32> = exact.iter().map(|&x| round(x)).collect();
            assert!(read(checkpoint, &half).unwrap() == wanted, "{storage}");
        }
    }
    let thirds_f16 = read(&large, &stored(Dtype::F16, weight(700, 321, &[("w", 700)]))).unwrap();
    assert!(thirds_f16 != thirds, "nothing was to be rounded");
}

/// Rows of blocks are copied, those of Q and K in their order, beside others that are converted.
#[test]
fn blocks_are_kept_as_they_are_stored() {
    let rows: Vec<[u8; 34]> = (1..=4u8).map(|row| [row; 34]).collect();
    let checkpoint = Gguf::new()
        .tensor("k", &[32, 4], Q8_0, rows.as_flattened())
        .tensor("v", &[32, 1], F32, &f32_bytes(&[0.5; 32]))
        .open();
    assert_eq!(checkpoint.stored("k"), Some(Dtype::Q8_0));
    assert_eq!(checkpoint.stored("x"), None);
    let mut kv = weight(5, 32, &[("k", 4), ("v", 1)]);
    kv.parts[0].storage = Dtype::Q8_0;
    kv.parts[0].transform = PartTransform::UnpermuteRope { num_heads: 1 };
    checkpoint.check(&kv).unwrap();
    let mut out = vec![0xFF; kv.bytes()];
    checkpoint.read(&kv, &mut out).unwrap();
    let halves = [rows[0], rows[2], rows[1], rows[3]];
    assert_eq!(out, [halves.as_flattened(), &f32_bytes(&[0.5; 32])].concat());
}

/// Two matrices of 70 rows and 5 columns, transposed and side by side: their columns take turns.
#[test]
fn columns_become_rows() {
    let (rows, cols) = (70, 5);
    let numbers: Vec<f32> = (0..2 * cols * 2 * rows).map(|i| i as f32).collect();
    let checkpoint = Gguf::new()
        .tensor("w", &[2 * rows as u64, cols as u64, 2], F32, &f32_bytes(&numbers))
        .tensor("q", &[32, 4], Q8_0, &[0; 4 * 34])
        .open();
    let columns = |source: &str, first, step, of: [usize; 2], [rows, cols]: [usize; 2]| {
        let mut weight = weight(rows, cols, &[(source, rows)]);
        weight.parts[0].transform = PartTransform::Columns { first, step, of };
        weight.parts[0].stack = (source == "w").then_some(2);
        weight
    };
    let of = [2 * cols, 2 * rows];
    for (first, step, shape) in [([5, 1], 2, [70, 5]), ([0, 0], 1, [140, 10]), ([3, 4], 2, [3, 2])]
    {
        let weight = columns("w", first, step, of, shape);
        checkpoint.check(&weight).unwrap();
        let at =
            |row: usize, col: usize| numbers[(first[0] + col) * 2 * rows + first[1] + step * row];
        let wanted: Vec<f32> =
            (0..shape[0]).flat_map(|row| (0..shape[1]).map(move |col| at(row, col))).collect();
        assert_eq!(read(&checkpoint, &weight).unwrap(), wanted, "{first:?}, {step}");
    }
    let wrong = columns("w", [0, 0], 1, [140, 10], [140, 10]);
    assert_error!(
        checkpoint.check(&wrong),
        WeightsError::WrongShape { .. },
        "makes it [2, 70, 10]"
    );
    let blocks = columns("q", [0, 0], 1, [4, 32], [32, 4]);
    assert_error!(checkpoint.check(&blocks), WeightsError::UnsupportedDtype { .. }, "`q`");
}

/// Two matrices of three rows, and two vectors of three: of another number they are others.
#[test]
fn a_stack_is_read_as_one_matrix_on_the_other() {
    let numbers: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let checkpoint = Gguf::new()
        .tensor("w", &[2, 3, 2], F32, &f32_bytes(&numbers))
        .tensor("b", &[3, 2], F32, &f32_bytes(&numbers[..6]))
        .tensor("one", &[2, 6], F32, &f32_bytes(&numbers))
        .open();
    let of = |stack, rows, cols, source| {
        let mut weight = weight(rows, cols, &[(source, 6)]);
        weight.parts[0].stack = stack;
        weight
    };
    let [matrix, vector] = [(6, 2, "w"), (1, 6, "b")];
    for ((rows, cols, source), wanted) in [(matrix, &numbers[..]), (vector, &numbers[..6])] {
        let stacked = of(Some(2), rows, cols, source);
        checkpoint.check(&stacked).unwrap();
        assert_eq!(read(&checkpoint, &stacked).unwrap(), wanted);
        for stack in [None, Some(3), Some(6), Some(1)] {
            let error = checkpoint.check(&of(stack, rows, cols, source));
            assert_error!(error, WeightsError::WrongShape { .. }, "makes it");
        }
    }
    checkpoint.check(&of(Some(1), 6, 2, "one")).unwrap();
}

/// Kept or converted: the file is damaged. A scale of zero is none of it.
#[test]
fn a_scale_that_is_no_number_is_an_error() {
    for (storage, type_id, fields) in [
        (Dtype::Q4_0, 2, &[0][..]),
        (Dtype::Q4_1, 3, &[0, 2]),
        (Dtype::Q5_0, 6, &[0]),
        (Dtype::Q5_1, 7, &[0, 2]),
        (Dtype::Q8_0, 8, &[0]),
        (Dtype::Q2_K, 10, &[80, 82]),
        (Dtype::Q3_K, 11, &[108]),
        (Dtype::Q4_K, 12, &[0, 2]),
        (Dtype::Q5_K, 13, &[0, 2]),
        (Dtype::Q6_K, 14, &[208]),
    ] {
        for &field in fields {
            for (bits, scale) in [(0x7C00u16, "inf"), (0xFC00, "-inf"), (0x7E00, "NaN")] {
                let mut bytes = vec![0; 3 * storage.block_bytes()];
                let dims = [storage.block_elems() as u64, 3];
                let w = || weight(3, dims[0] as usize, &[("w", 3)]);
                let open = |bytes: &[u8]| Gguf::new().tensor("w", &dims, type_id, bytes).open();
                let zeros = read(&open(&bytes), &w()).unwrap();
                assert!(zeros.iter().all(|&x| x == 0.0), "{storage}");
                let at = 2 * storage.block_bytes() + field;
                bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                for kept in [w(), stored(storage, w())] {
                    let error = open(&bytes).read(&kept, &mut vec![0; kept.bytes()]).unwrap_err();
                    let error: Result<(), _> = Err(error.downcast_ref::<WeightsError>().unwrap());
                    let wanted = format!("`w` of {storage} has the scale {scale} in block 2");
                    assert_error!(error, WeightsError::Scale { .. }, &wanted);
                }
            }
        }
    }
}

/// An infinity that the file holds stays one.
#[test]
fn a_number_beyond_f16_is_an_error_that_suggests_bf16() {
    let mut values = vec![1.0; 700 * 32];
    (values[5], values[600 * 32], values[650 * 32]) = (f32::INFINITY, -70_000.0, 1e9);
    let checkpoint = Gguf::new().tensor("up", &[32, 700], F32, &f32_bytes(&values)).open();
    let up = weight(700, 32, &[("up", 700)]);
    let half = stored(Dtype::F16, up.clone());
    checkpoint.check(&half).unwrap();
    let error = read(&checkpoint, &half).unwrap_err().to_string();
    for part in ["model.gguf", "`up`", "-70000", "F16", "in bf16"] {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
    assert_eq!(read(&checkpoint, &stored(Dtype::BF16, up.clone())).unwrap()[5], f32::INFINITY);
    values[0] = f32::MAX;
    let checkpoint = Gguf::new().tensor("up", &[32, 700], F32, &f32_bytes(&values)).open();
    let error = read(&checkpoint, &stored(Dtype::BF16, up.clone())).unwrap_err().to_string();
    assert!(error.contains("BF16") && error.contains("in f32"), "{error}");
    assert!(read(&checkpoint, &up).unwrap() == values);
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
    let other = stored(Dtype::Q4_0, weight(2, 32, &[("q", 2)]));
    assert_error!(check(&other), WeightsError::UnsupportedStorage { .. }, "`q`", "Q4_0");
    let blocks = Gguf::new().tensor("b", &[32], Q8_0, &[0; 34]).open();
    let bias = blocks.check(&unpermuted(weight(1, 32, &[("b", 32)]), 2));
    assert_error!(bias, WeightsError::NotHeads { .. }, "Q8_0");
}

#[test]
fn progress_counts_bytes() {
    let (checkpoint, _) = checkpoint();
    let reports = Mutex::new(Vec::new());
    let progress = Progress::new(&checkpoint, 264, |done, total| {
        reports.lock().unwrap().push((done, total));
        if done > 264 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    read(&progress, &weight(2, 32, &[("q", 2)])).unwrap();
    read(&progress, &weight(1, 2, &[("a", 2)])).unwrap();
    assert!(read(&progress, &weight(1, 2, &[("x", 2)])).is_err());
    assert_eq!(*reports.lock().unwrap(), [(256, 264), (264, 264)]);
    let broken_off = read(&progress, &weight(1, 2, &[("a", 2)])).unwrap_err();
    assert_eq!(broken_off.to_string(), BrokenOff.to_string());
}
