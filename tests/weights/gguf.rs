//! GGUF files: one from another writer, and hostile ones.

use crate::files::{Gguf, assert_error, f32_bytes, string, tests_dir};
use halfwarp::plan::Dtype;
use halfwarp::weights::gguf::{GgufError, TensorDescription, Value, Writer, parse};
use halfwarp::weights::{Checkpoint, Origin, TensorDtype, WeightsError};

const U32: u32 = 4;
const ARRAY: u32 = 9;
const F32: u32 = 0;
const Q8_0: u32 = 8;
const IQ4_NL: u32 = 20;
const IQ2_S: u32 = 22;

/// A right file with two tensors of six and eight f32.
fn right() -> Gguf {
    Gguf::new()
        .pair("general.architecture", 8, &string("llama"))
        .tensor("a", &[3, 2], F32, &f32_bytes(&[1.0; 6]))
        .tensor("b", &[8], F32, &f32_bytes(&[2.0; 8]))
}

#[test]
fn reads_what_gguf_py_writes() {
    let checkpoint = Checkpoint::open(tests_dir().join("fixtures/blocks.gguf")).unwrap();
    let Origin::Gguf { metadata } = checkpoint.origin() else { panic!("not a GGUF origin") };
    let strings = ["a", "", "c d"].map(|text| Value::String(text.into()));
    let expected = [
        ("general.architecture", Value::String("llama".into())),
        ("test.u8", Value::U8(200)),
        ("test.i8", Value::I8(-100)),
        ("test.u16", Value::U16(60000)),
        ("test.i16", Value::I16(-30000)),
        ("test.u32", Value::U32(4000000000)),
        ("test.i32", Value::I32(-2000000000)),
        ("test.u64", Value::U64(1 << 63)),
        ("test.i64", Value::I64(-(1 << 62))),
        ("test.f32", Value::F32(0.5)),
        ("test.f64", Value::F64(0.1)),
        ("test.bool", Value::Bool(true)),
        ("test.string", Value::String("häuser".into())),
        ("test.strings", Value::Array(strings.into())),
        ("test.ints", Value::Array([-1, 0, 7].map(Value::I32).into())),
    ];
    for (key, value) in expected {
        assert_eq!(metadata.get(key), Some(&value), "{key}");
    }
    let q4_k = checkpoint.tensor("Q4_K").unwrap();
    assert_eq!((q4_k.shape, q4_k.dtype), (&[2, 768][..], &TensorDtype::Known(Dtype::Q4_K)));
    assert_eq!(q4_k.bytes.len(), 6 * 144);
}

#[test]
fn versions_2_and_3_are_read() {
    for version in [2, 3] {
        let file = Gguf { version, ..right() };
        assert_eq!(parse(&file.bytes()).unwrap().tensors["a"].shape, [2, 3]);
    }
}

#[test]
fn data_starts_at_the_stated_alignment() {
    let file = Gguf { alignment: 128, ..Gguf::new() }
        .pair("general.alignment", U32, &128u32.to_le_bytes())
        .tensor("a", &[2], F32, &f32_bytes(&[1.0, 2.0]))
        .tensor("b", &[1], F32, &f32_bytes(&[3.0]));
    let checkpoint = file.open();
    assert_eq!(checkpoint.read_f32("a").unwrap(), [1.0, 2.0]);
    assert_eq!(checkpoint.read_f32("b").unwrap(), [3.0]);
}

#[test]
fn rejects_other_kinds_of_file() {
    assert_error!(parse(b""), GgufError::Magic, "GGUF");
    assert_error!(parse(b"{\"a\": 1}"), GgufError::Magic, "GGUF");
    assert_error!(parse(b"GGUF\x03"), GgufError::Truncated { .. }, "header");
    let version = |version| parse(&Gguf { version, ..right() }.bytes());
    assert_error!(version(1), GgufError::Version(1), "version 1");
    assert_error!(version(4), GgufError::Version(4), "version 4");
    assert_error!(version(3u32.swap_bytes()), GgufError::BigEndian, "big-endian");
}

#[test]
fn rejects_counts_beyond_the_file() {
    for count in [3, 1 << 60, u64::MAX] {
        let tensors = Gguf { num_tensors: count, ..right() };
        assert!(parse(&tensors.bytes()).is_err(), "{count} tensors");
        let pairs = Gguf { num_pairs: count, ..right() };
        assert!(parse(&pairs.bytes()).is_err(), "{count} pairs");
    }
    let tensors = Gguf { num_tensors: 1 << 60, ..right() };
    assert_error!(parse(&tensors.bytes()), GgufError::Count { .. }, "1152921504606846976");
    let pairs = Gguf { num_pairs: 1 << 60, ..right() };
    assert_error!(parse(&pairs.bytes()), GgufError::Count { .. }, "metadata");
}

/// An array of `count` elements, of which none follows.
fn array(type_id: u32, count: u64) -> Vec<u8> {
    [&type_id.to_le_bytes()[..], &count.to_le_bytes()].concat()
}

#[test]
fn rejects_hostile_metadata() {
    let with = |type_id, value: &[u8]| parse(&right().pair("k", type_id, value).bytes());
    assert_error!(with(ARRAY, &array(0, 1 << 60)), GgufError::Count { .. }, "`k`");
    assert_error!(with(ARRAY, &array(8, u64::MAX)), GgufError::Count { .. }, "`k`");
    assert_error!(with(ARRAY, &array(ARRAY, 1)), GgufError::NestedArray { .. }, "`k`");
    assert_error!(with(ARRAY, &array(13, 1)), GgufError::ValueType { .. }, "13");
    assert_error!(with(77, &[0; 8]), GgufError::ValueType { type_id: 77, .. }, "77");
    let past_end = (1u64 << 60).to_le_bytes();
    assert_error!(with(8, &past_end), GgufError::Truncated { .. }, "`k`");
    let latin1 = [&2u64.to_le_bytes()[..], b"\xe4a"].concat();
    assert_error!(with(8, &latin1), GgufError::Utf8 { .. }, "`k`");
    let twice = right().pair("general.architecture", 0, &[1]);
    assert_error!(parse(&twice.bytes()), GgufError::Duplicate(_), "general.architecture");
    for alignment in [0u32, 3, 48] {
        let file = right().pair("general.alignment", U32, &alignment.to_le_bytes());
        assert_error!(parse(&file.bytes()), GgufError::Alignment(_), "power of two");
    }
    let file = right().pair("general.alignment", 8, &string("32"));
    assert_error!(parse(&file.bytes()), GgufError::Alignment(None), "not one");
    let huge = right().pair("general.alignment", U32, &(1u32 << 31).to_le_bytes());
    assert_error!(parse(&huge.bytes()), GgufError::PastEnd { .. }, "`a`");
}

/// A small file must not be able to fill the memory: all arrays together have a limit.
#[test]
fn rejects_more_array_elements_than_a_model_has() {
    let half = [array(0, 1 << 21), vec![0; 1 << 21]].concat();
    let file = Gguf::new().pair("a", ARRAY, &half).pair("b", ARRAY, &half);
    assert!(parse(&file.bytes()).is_ok());
    let file = file.pair("c", ARRAY, &[array(0, 1), vec![0]].concat());
    assert_error!(parse(&file.bytes()), GgufError::Count { limit: 0, .. }, "`c`");
}

#[test]
fn rejects_hostile_tensors() {
    let with = |name: &str, dims: &[u64], type_id, offset| {
        parse(&right().describe(name, dims, type_id, offset).bytes())
    };
    assert_error!(with("c", &[1; 5], F32, 64), GgufError::NumDims { num_dims: 5, .. }, "`c`");
    assert_error!(with("c", &[4, 0], F32, 64), GgufError::Shape { .. }, "[0, 4]");
    assert_error!(with("c", &[1 << 60, 1 << 60], F32, 64), GgufError::Shape { .. }, "`c`");
    assert_error!(with("c", &[1 << 63], F32, 64), GgufError::Shape { .. }, "`c`");
    assert_error!(with("c", &[48], Q8_0, 64), GgufError::PartialBlock { .. }, "48");
    assert_error!(with("c", &[48], IQ4_NL, 64), GgufError::PartialBlock { .. }, "32");
    assert_error!(with("c", &[32], IQ2_S, 64), GgufError::PartialBlock { .. }, "IQ2_S", "256");
    assert_error!(with("c", &[32, 3, 0, 1], Q8_0, 64), GgufError::Shape { .. }, "`c`");
    assert_error!(with("c", &[1], F32, 65), GgufError::Misaligned { .. }, "65");
    assert_error!(with("c", &[9], F32, 64), GgufError::PastEnd { .. }, "`c` of F32");
    assert_error!(with("c", &[1 << 40], F32, 64), GgufError::PastEnd { .. }, "truncated");
    assert_error!(with("c", &[1], F32, 1 << 60), GgufError::PastEnd { .. }, "`c`");
    assert_error!(with("c", &[1], F32, u64::MAX - 31), GgufError::PastEnd { .. }, "`c`");
    assert_error!(with("c", &[1], 99, 1 << 60), GgufError::PastEnd { .. }, "`c`");
    assert_error!(with("c", &[1], F32, 32), GgufError::Overlap { .. }, "`b` and `c`");
    assert_error!(with("a", &[1], F32, 64), GgufError::Duplicate(_), "`a`");
    let long = "\u{1b}[31m".repeat(1000);
    assert_error!(with(&long, &[0], F32, 64), GgufError::Shape { .. }, "\\u{1b}[31m");
}

#[test]
fn types_that_are_not_read_are_listed_and_an_error_where_needed() {
    const NVFP4: u32 = 40;
    let file = right().describe("c", &[256], NVFP4, 64).describe("d", &[1], 1000, 64);
    let checkpoint = file.open();
    assert_eq!(checkpoint.tensors().count(), 4);
    let unread = checkpoint.read_f32("c");
    assert_error!(unread, WeightsError::UnsupportedDtype { .. }, "as NVFP4;", "IQ1_S to IQ4_XS");
    assert_eq!(checkpoint.tensor("d").unwrap().dtype.to_string(), "ggml type 1000");
    assert_error!(checkpoint.read_f32("e"), WeightsError::MissingTensor { .. }, "`e`");
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let bytes = right().bytes();
    for length in 0..bytes.len() {
        assert!(parse(&bytes[..length]).is_err(), "cut to {length} of {}", bytes.len());
    }
}

#[test]
fn no_changed_byte_leads_out_of_the_file() {
    let bytes = right().bytes();
    for (at, value) in (0..bytes.len()).flat_map(|at| [0, 1, 0x7F, 0x80, 0xFF].map(|v| (at, v))) {
        let mut changed = bytes.clone();
        changed[at] = value;
        if let Ok(file) = parse(&changed) {
            assert!(file.tensors.values().all(|info| changed.get(info.range.clone()).is_some()));
        }
    }
}

/// What gguf-py wrote, written again: the same metadata and the same data, at aligned offsets.
#[test]
fn what_is_written_reads_back() {
    let path = tests_dir().join("fixtures/blocks.gguf");
    let source = std::fs::read(path).unwrap();
    let gguf = parse(&source).unwrap();
    let mut metadata = gguf.metadata.clone();
    for alignment in [None, Some(64), Some(4096)] {
        if let Some(alignment) = alignment {
            metadata.0.insert("general.alignment".into(), Value::U32(alignment));
        }
        let describe = |(name, info): (&String, &halfwarp::weights::TensorInfo)| {
            let TensorDtype::Known(dtype) = info.dtype else { panic!("{name}") };
            TensorDescription { name: name.clone(), shape: info.shape.clone(), dtype }
        };
        let descriptions: Vec<_> = gguf.tensors.iter().map(describe).collect();
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, &metadata, &descriptions).unwrap();
        for info in gguf.tensors.values() {
            writer.tensor(&source[info.range.clone()]).unwrap();
        }
        writer.finish().unwrap();
        let written = parse(&bytes).unwrap();
        assert_eq!(written.metadata, metadata);
        assert_eq!(written.tensors.len(), gguf.tensors.len());
        for (name, info) in &gguf.tensors {
            let got = &written.tensors[name];
            assert_eq!((&got.shape, &got.dtype), (&info.shape, &info.dtype), "{name}");
            assert_eq!(bytes[got.range.clone()], source[info.range.clone()], "{name}");
            assert!(got.range.start.is_multiple_of(alignment.unwrap_or(32) as usize), "{name}");
        }
    }
}
