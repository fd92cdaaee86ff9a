//! Safetensors that come quantised, against numpy (tests/fixtures/make_packed.py).

use crate::files::{assert_error, tests_dir};
use cuda_std::E4m3;
use halfwarp::plan::{
    Dtype, PartTransform, Weight, WeightLayout, WeightPart, WeightSlice, WeightSource,
};
use halfwarp::weights::{Checkpoint, WeightsError};
use halfwarp::{Model, ModelError, OpenError};
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const NAMES: [&str; 5] = ["fp8-tensor", "fp8-channel", "fp8-block", "awq", "gptq"];

fn fixture(name: &str) -> PathBuf {
    tests_dir().join("fixtures/packed").join(name)
}

/// The kept rows of a weight: its last ones.
fn assert_ends_with(values: &[f32], expected: &safetensors::tensor::TensorView, what: &str) {
    let expected: Vec<f32> =
        expected.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let values = &values[values.len() - expected.len()..];
    for (i, (got, want)) in values.iter().zip(&expected).enumerate() {
        assert_eq!(got.to_bits(), want.to_bits(), "{what} element {i}: got {got}, wanted {want}");
    }
}

#[test]
fn weights_are_those_of_numpy() {
    for name in NAMES {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        let expected = fs::read(fixture(name).join("expected.safetensors")).unwrap();
        let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
        assert_eq!(expected.len(), 2);
        for (tensor, expected) in expected.tensors() {
            let entry = checkpoint.tensor(&tensor).unwrap();
            let [rows, cols] = *entry.shape else { panic!("{tensor}") };
            let values = checkpoint.read_f32(&tensor).unwrap();
            assert_eq!(values.len(), rows * cols);
            assert_ends_with(&values, &expected, &format!("{name} {tensor}"));

            // A plan's weight: two parts, of which the second is this one.
            let part = || WeightPart::new(&*tensor, rows, Dtype::F32);
            let layout = WeightLayout::Rows;
            let parts = vec![part(), part()];
            let weight = Weight { name: "w".into(), rows: 2 * rows, cols, layout, parts };
            let mut bytes = vec![0; weight.bytes()];
            checkpoint.read(&weight, &mut bytes).unwrap();
            let packed: Vec<f32> =
                bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
            assert_ends_with(&packed, &expected, &format!("{name} {tensor} packed"));
            assert_eq!(packed[..values.len()], values);
        }
        Model::open(fixture(name)).unwrap();
    }
}

/// The numbers of blocks, as GGUF defines them.
fn numbers_of_blocks(dtype: Dtype, blocks: &[u8]) -> Vec<f32> {
    let half = |bytes: &[u8]| half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    let of_block = |block: &[u8]| -> Vec<f32> {
        let nibbles = &block[block.len() - 16..];
        let quants = nibbles.iter().map(|q| q & 15).chain(nibbles.iter().map(|q| q >> 4));
        let (d, min) = match dtype {
            Dtype::Q4_0 => (half(block), -8.0 * half(block)),
            _ => (half(block), half(&block[2..])),
        };
        quants.map(|q| f32::from(q).mul_add(d, min)).collect()
    };
    blocks.chunks(dtype.block_bytes()).flat_map(of_block).collect()
}

/// `tensor` of a checkpoint in blocks, and dense.
fn in_blocks(checkpoint: &Checkpoint, tensor: &str, dtype: Dtype) -> [Vec<f32>; 2] {
    assert_eq!(checkpoint.stored(tensor), Some(dtype));
    let [rows, cols] = *checkpoint.tensor(tensor).unwrap().shape else { panic!("{tensor}") };
    let weight = Weight::whole(tensor, rows, cols, dtype);
    let mut blocks = vec![0; weight.bytes()];
    checkpoint.read(&weight, &mut blocks).unwrap();
    [numbers_of_blocks(dtype, &blocks), checkpoint.read_f32(tensor).unwrap()]
}

#[test]
fn four_bits_are_repacked_to_blocks() {
    for name in ["awq", "gptq"] {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        for layer in ["self_attn.k_proj", "mlp.down_proj"] {
            let tensor = format!("model.layers.0.{layer}.weight");
            let [got, want] = in_blocks(&checkpoint, &tensor, Dtype::Q4_1);
            let largest = want.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let error = (got - want).abs() / largest;
                assert!(error < 1e-3, "{name} {tensor} {i}: {got}, not {want}");
            }
        }
    }
}

/// The numbers of a weight in E4M3: its elements, then its scales.
fn numbers_of_fp8(weight: &Weight, bytes: &[u8]) -> Vec<f32> {
    let (elements, scales) = bytes.split_at(weight.scales_at());
    let scales: Vec<f32> = scales.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect();
    let blocks = weight.cols.div_ceil(128);
    let scale = |row: usize, col: usize| match weight.storage().unwrap() {
        Dtype::F8_E4M3 => scales[row],
        _ => scales[row / 128 * blocks + col / 128],
    };
    let number = |(i, &code): (usize, &u8)| {
        scale(i / weight.cols, i % weight.cols) * E4m3::from_bits(code).to_f32()
    };
    elements.iter().enumerate().map(number).collect()
}

/// The last half of the rows, and the last half of the columns, of `[rows, cols]`: as slices, and as numbers.
fn halves(values: &[f32], [rows, cols]: [usize; 2]) -> [(WeightSlice, [usize; 2], Vec<f32>); 2] {
    let (row, col) = (rows / 2, cols / 2);
    let right = values.chunks(cols).flat_map(|row| row[col..].to_vec()).collect();
    [
        (WeightSlice::Rows { first: row, of: rows }, [row, cols], values[row * cols..].to_vec()),
        (WeightSlice::Cols { first: col, of: cols }, [rows, col], right),
    ]
}

#[test]
fn slices_are_those_of_the_whole() {
    for (name, storage) in [
        ("awq", Dtype::F32),
        ("fp8-tensor", Dtype::F8_E4M3),
        ("fp8-channel", Dtype::F8_E4M3),
        ("fp8-block", Dtype::F8_E4M3_BLOCKS),
    ] {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        for layer in ["mlp.gate_proj", "mlp.down_proj"] {
            let tensor = format!("model.layers.0.{layer}.weight");
            let stored = checkpoint.stored(&tensor).unwrap();
            let storage = if storage.is_fp8() { stored } else { storage };
            let [rows, cols] = *checkpoint.tensor(&tensor).unwrap().shape else { panic!() };
            let whole = checkpoint.read_f32(&tensor).unwrap();
            for (slice, [rows, cols], want) in halves(&whole, [rows, cols]) {
                let parts = vec![WeightPart { slice, ..WeightPart::new(&*tensor, rows, storage) }];
                let weight =
                    Weight { name: "w".into(), rows, cols, layout: WeightLayout::Rows, parts };
                let mut bytes = vec![0; weight.bytes()];
                let read = checkpoint.read(&weight, &mut bytes);
                if stored == Dtype::F8_E4M3_BLOCKS && (cols < 128 || rows < 128) {
                    let error = read.unwrap_err().to_string();
                    assert!(error.contains("in blocks of 128 elements"), "{error}");
                    continue;
                }
                read.unwrap();
                let got = match storage.is_fp8() {
                    true => numbers_of_fp8(&weight, &bytes),
                    false => bytemuck::pod_collect_to_vec(&bytes),
                };
                assert_eq!(got, want, "{name} {tensor} {slice:?}");
            }
        }
    }
}

/// Each half has two of four blocks.
#[test]
fn slices_of_blocks_have_their_scales() {
    let codes: Vec<u8> = (0..256 * 256u32).map(|i| (i % 61) as u8).collect();
    let scales: Vec<u8> = [1.0f32, 2.0, 4.0, 8.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = |dtype, side: usize, data| TensorView::new(dtype, vec![side, side], data).unwrap();
    let tensor = "model.layers.0.mlp.gate_proj.weight";
    let tensors = [
        (tensor.to_owned(), view(safetensors::Dtype::F8_E4M3, 256, &codes)),
        (format!("{tensor}_scale_inv"), view(safetensors::Dtype::F32, 2, &scales)),
    ];
    let dir = changed("fp8-block", |_| ());
    let file = safetensors::serialize(tensors, None).unwrap();
    fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let storage = checkpoint.stored(tensor).unwrap();
    assert_eq!(storage, Dtype::F8_E4M3_BLOCKS);
    let number = |(i, &code): (usize, &u8)| {
        [1.0, 2.0, 4.0, 8.0][i / 256 / 128 * 2 + i % 256 / 128] * E4m3::from_bits(code).to_f32()
    };
    let whole: Vec<f32> = codes.iter().enumerate().map(number).collect();
    for (slice, [rows, cols], want) in halves(&whole, [256, 256]) {
        let parts = vec![WeightPart { slice, ..WeightPart::new(tensor, rows, storage) }];
        let weight = Weight { name: "w".into(), rows, cols, layout: WeightLayout::Rows, parts };
        let mut bytes = vec![0; weight.bytes()];
        checkpoint.read(&weight, &mut bytes).unwrap();
        assert!(numbers_of_fp8(&weight, &bytes) == want, "{slice:?}");
    }
}

/// The two parts of a stack, as the checkpoint has them.
#[test]
fn e4m3_is_kept_with_its_scales() {
    for name in ["fp8-tensor", "fp8-channel", "fp8-block"] {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        for layer in ["self_attn.k_proj", "mlp.down_proj"] {
            // A block of K has all columns: its scale is that of each of its rows.
            let storage = match (name, layer) {
                ("fp8-block", "mlp.down_proj") => Dtype::F8_E4M3_BLOCKS,
                _ => Dtype::F8_E4M3,
            };
            let tensor = format!("model.layers.0.{layer}.weight");
            assert_eq!(checkpoint.stored(&tensor), Some(storage), "{name}");
            let want = checkpoint.read_f32(&tensor).unwrap();
            let [rows, cols] = *checkpoint.tensor(&tensor).unwrap().shape else { panic!() };
            let parts = vec![WeightPart::new(&*tensor, rows, storage); 2];
            let layout = WeightLayout::Rows;
            let weight = Weight { name: "w".into(), rows: 2 * rows, cols, layout, parts };
            assert!(weight.fits_fp8(), "{name}");
            let mut bytes = vec![0; weight.bytes()];
            checkpoint.read(&weight, &mut bytes).unwrap();
            let got = numbers_of_fp8(&weight, &bytes);
            for part in got.chunks(want.len()) {
                assert_eq!(part, want, "{name} {tensor}");
            }
        }
    }
}

/// A NaN, which `sm_80` has no kernel for, and a scale that is none.
#[test]
fn damaged_e4m3_is_an_error() {
    let tensor = "model.layers.0.self_attn.k_proj.weight";
    let damage = |name: &str, tensor: &str, bytes_of: &[u8]| {
        let dir = changed(name, |_| {});
        let path = dir.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
        let at = data + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
        bytes[at..at + bytes_of.len()].copy_from_slice(bytes_of);
        fs::write(&path, bytes).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let name = "model.layers.0.self_attn.k_proj.weight";
        let [rows, cols] = *checkpoint.tensor(name).unwrap().shape else { panic!() };
        let weight = Weight::whole(name, rows, cols, Dtype::F8_E4M3);
        checkpoint.read(&weight, &mut vec![0; weight.bytes()]).unwrap_err().to_string()
    };
    let nan = damage("fp8-channel", tensor, &[0xFF]);
    assert!(nan.contains("k_proj.weight` holds NaN, beyond what F8_E4M3 can hold"), "{nan}");
    let scale = damage("fp8-tensor", &format!("{tensor}_scale"), &f32::INFINITY.to_le_bytes());
    assert!(scale.contains("has the scale inf in block 0"), "{scale}");
}

/// What a model has in another type, row by row.
#[test]
fn weights_become_e4m3_when_they_are_loaded() {
    for name in NAMES {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        let tensor = "model.layers.0.mlp.down_proj.weight";
        if checkpoint.stored(tensor) == Some(Dtype::F8_E4M3) {
            continue;
        }
        let want = checkpoint.read_f32(tensor).unwrap();
        let [rows, cols] = *checkpoint.tensor(tensor).unwrap().shape else { panic!() };
        let weight = Weight::whole(tensor, rows, cols, Dtype::F8_E4M3);
        checkpoint.check(&weight).unwrap();
        let mut bytes = vec![0; weight.bytes()];
        checkpoint.read(&weight, &mut bytes).unwrap();
        let got = numbers_of_fp8(&weight, &bytes);
        for (row, (got, want)) in got.chunks(cols).zip(want.chunks(cols)).enumerate() {
            let max = want.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            for (got, want) in got.iter().zip(want) {
                // Half of the last place of a normal number, and of a subnormal one.
                let bound = want.abs() / 15.9 + max / 448.0 / 1020.0;
                assert!((got - want).abs() <= bound, "{name} row {row}: {got}, not {want}");
            }
        }
    }
}

/// Zeros of 8, which GPTQ stores as 7: blocks without a minimum hold the numbers exactly.
#[test]
fn symmetric_four_bits_are_repacked_exactly() {
    let dir = changed("gptq", |_| {});
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let offsets = &header["model.layers.0.self_attn.k_proj.qzeros"]["data_offsets"];
    let [start, end] = [0, 1].map(|i| data + offsets[i].as_u64().unwrap() as usize);
    bytes[start..end].fill(0x77);
    fs::write(&path, bytes).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let name = "model.layers.0.self_attn.k_proj.weight";
    let [got, want] = in_blocks(&checkpoint, name, Dtype::Q4_0);
    assert_eq!(got, want);
}

/// A copy of a fixture whose `quantization_config` is changed.
fn changed(name: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let dir = TempDir::new().unwrap();
    let config = fs::read(fixture(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    change(&mut config["quantization_config"]);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let weights = dir.path().join("model.safetensors");
    fs::copy(fixture(name).join("model.safetensors"), weights).unwrap();
    dir
}

#[test]
fn what_is_not_read_is_said() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &str); 9] = [
        ("gptq", |config| config["desc_act"] = true.into(), "act-order"),
        ("gptq", |config| config["bits"] = 8.into(), "gptq of 8 bits"),
        ("gptq", |config| config["group_size"] = 0.into(), "group_size is 0"),
        ("gptq", |config| config["group_size"] = 64.into(), "qweight` has shape"),
        ("awq", |config| config["version"] = "gemv".into(), "gemm is"),
        ("awq", |config| *config = json!({"quant_method": "bitsandbytes"}), "`bitsandbytes`"),
        ("awq", |config| *config = json!({}), "awq and gptq (4 bits) and mxfp4"),
        ("fp8-tensor", |config| config["format"] = "pack-quantized".into(), "`pack-quantized`"),
        ("fp8-block", |config| config["weight_block_size"] = json!([64, 64]), "scales of shape"),
    ];
    for (name, change, expected) in cases {
        let dir = changed(name, change);
        let error = Checkpoint::open(dir.path());
        assert_error!(error, WeightsError::Quantization { .. }, expected);
    }
    // Without the field the tensors are what they are: of types that no weight has.
    let plain = Model::open(changed("fp8-tensor", |config| *config = Value::Null).path());
    let is_unread = matches!(
        plain,
        Err(OpenError::Model(ModelError::Weights(WeightsError::UnsupportedDtype { .. })))
    );
    assert!(is_unread, "{plain:?}");
}

/// As an act-order model has them, whatever its configuration says; and shapes that no file has.
#[test]
fn groups_and_shapes_that_do_not_fit_are_errors() {
    type Change = fn(&mut Vec<u8>, Value, usize);
    let act_order: Change = |bytes, header, data| {
        let at = &header["model.layers.0.mlp.up_proj.g_idx"]["data_offsets"][0];
        bytes[data + at.as_u64().unwrap() as usize] = 1;
    };
    let huge: Change = |bytes, header, data| {
        // The same number of words, in another shape: 16 x 128 of k_proj.
        let name = "model.layers.0.self_attn.k_proj.qweight";
        assert_eq!(header[name]["shape"], json!([16, 64]));
        let text = String::from_utf8(bytes[8..data].to_vec()).unwrap();
        let at = text.find(name).unwrap();
        let shape = at + text[at..].find("[16, 64]").unwrap();
        bytes[8 + shape..][..8].copy_from_slice(b"[64, 16]");
    };
    for (change, expected) in [(act_order, "act-order"), (huge, "k_proj.qweight` has shape")] {
        let dir = changed("gptq", |_| {});
        let path = dir.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&bytes[8..data]).unwrap();
        change(&mut bytes, header, data);
        fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(dir.path());
        assert_error!(error, WeightsError::Quantization { .. }, expected);
    }
}

/// Without the bias of the first version of the format, each zero is one less.
#[test]
fn the_second_version_of_gptq_has_its_zeros_as_they_are() {
    let name = "model.layers.0.self_attn.k_proj.weight";
    let first = Checkpoint::open(fixture("gptq")).unwrap().read_f32(name).unwrap();
    let dir = changed("gptq", |config| config["checkpoint_format"] = "gptq_v2".into());
    let second = Checkpoint::open(dir.path()).unwrap().read_f32(name).unwrap();
    let larger = first.iter().zip(&second).filter(|(first, second)| second > first).count();
    // Where the stored zero is 15, it wraps to 0.
    assert!(larger > first.len() * 3 / 4 && larger < first.len(), "{larger}");
}

/// A stack of two matrices of three rows of 64 numbers, every code and scale once or more.
#[test]
fn mxfp4_is_read_row_by_row() {
    const LEVELS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let blocks: Vec<u8> = (0..2 * 3 * 2 * 16u32).map(|i| (i * 37 + i / 16) as u8).collect();
    let scales: Vec<u8> = (0..2 * 3 * 2).map(|i| 120 + i).collect();
    let number = |elem: usize| {
        let code = blocks[elem / 2] >> (elem % 2 * 4) & 15;
        let sign = if code < 8 { 1.0 } else { -1.0 };
        let scale = f32::powi(2.0, i32::from(scales[elem / 32]) - 127);
        sign * LEVELS[usize::from(code & 7)] * scale
    };
    let whole: Vec<f32> = (0..2 * 3 * 64).map(number).collect();
    let dir = with_mxfp4(&[2, 3, 2, 16], &blocks, &[2, 3, 2], &scales);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.stored("x.weight"), Some(Dtype::MXFP4));
    assert_eq!(checkpoint.tensor("x.weight").unwrap().shape, [2, 3, 64]);
    assert_eq!(checkpoint.read_f32("x.weight").unwrap(), whole);

    let read = |rows, cols, part: WeightPart| {
        let (name, layout) = ("w".into(), WeightLayout::Rows);
        let weight = Weight { name, rows, cols, layout, parts: vec![part] };
        checkpoint.check(&weight).unwrap();
        let mut bytes = vec![0; weight.bytes()];
        checkpoint.read(&weight, &mut bytes).unwrap();
        bytes
    };
    let part = |rows, storage| WeightPart::new("x.weight", rows, storage);
    // Every second row, from the second one on.
    let stack = Some(2);
    let slice = WeightSlice::Rows { first: 1, of: 6 };
    let transform = PartTransform::EverySecond;
    let rows = read(3, 64, WeightPart { slice, transform, stack, ..part(3, Dtype::F32) });
    let rows: Vec<f32> = bytemuck::pod_collect_to_vec(&rows);
    assert_eq!(rows, [1, 3, 5].map(|row| &whole[row * 64..][..64]).concat());
    // The second block of each row, as GGUF has it.
    let slice = WeightSlice::Cols { first: 32, of: 64 };
    let kept = read(6, 32, WeightPart { slice, stack, ..part(6, Dtype::MXFP4) });
    for (row, block) in kept.chunks(17).enumerate() {
        let level = |code: u8| {
            let scale = f32::powi(2.0, i32::from(block[0]) - 127);
            LEVELS[usize::from(code & 7)] * scale * if code < 8 { 1.0 } else { -1.0 }
        };
        let low = block[1..].iter().map(|byte| level(byte & 15));
        let got: Vec<f32> = low.chain(block[1..].iter().map(|byte| level(byte >> 4))).collect();
        assert_eq!(got, whole[row * 64 + 32..][..32], "row {row}");
    }
}

/// A checkpoint of `x_blocks` and `x_scales` alone.
fn with_mxfp4(blocks: &[usize], nibbles: &[u8], scales: &[usize], exponents: &[u8]) -> TempDir {
    let dir = changed("fp8-tensor", |config| *config = json!({"quant_method": "mxfp4"}));
    let view = |shape: &[usize], data| {
        TensorView::new(safetensors::Dtype::U8, shape.to_vec(), data).unwrap()
    };
    let tensors = [("x_blocks", view(blocks, nibbles)), ("x_scales", view(scales, exponents))];
    let file = safetensors::serialize(tensors, None).unwrap();
    fs::write(dir.path().join("model.safetensors"), file).unwrap();
    dir
}

#[test]
fn rejects_mxfp4_that_is_none() {
    for (blocks, scales, expected) in [
        (&[2, 3, 2, 15][..], &[2, 3, 2][..], "`x_blocks` is U8 of shape [2, 3, 2, 15]"),
        (&[2, 16], &[2], "`x_blocks` is U8 of shape [2, 16]"),
        (&[16], &[], "`x_blocks` is U8 of shape [16]"),
        (&[2, 3, 2, 16], &[2, 3, 3], "`x_scales` is U8 of shape [2, 3, 3]"),
        (&[2, 3, 2, 16], &[2, 3, 2, 1], "`x_scales` is U8 of shape [2, 3, 2, 1]"),
    ] {
        let bytes = |shape: &[usize]| vec![0; shape.iter().product()];
        let dir = with_mxfp4(blocks, &bytes(blocks), scales, &bytes(scales));
        assert_error!(Checkpoint::open(dir.path()), WeightsError::Quantization { .. }, expected);
    }
    let dir = changed("fp8-tensor", |config| *config = json!({"quant_method": "mxfp4"}));
    let blocks = vec![0; 32];
    let view = TensorView::new(safetensors::Dtype::U8, vec![2, 1, 16], &blocks).unwrap();
    let file = safetensors::serialize([("x_blocks", view)], None).unwrap();
    fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let error = Checkpoint::open(dir.path());
    assert_error!(error, WeightsError::Quantization { .. }, "`x_scales` is missing");
}
