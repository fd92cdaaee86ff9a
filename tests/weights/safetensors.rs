//! Hostile safetensors files, indices and directories.

use crate::files::{assert_error, f32_bytes, open_dir, safetensors};
use halfwarp::weights::index::{self, IndexError};
use halfwarp::weights::safetensors::{SafetensorsError, parse};
use halfwarp::weights::{Checkpoint, WeightsError};
use tempfile::TempDir;

/// A header of tensors `(name, dtype, shape, start, end)`.
fn header(tensors: &[(&str, &str, &str, u64, u64)]) -> String {
    let entry = |&(name, dtype, shape, start, end): &(&str, &str, &str, u64, u64)| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    format!("{{{}}}", tensors.iter().map(entry).collect::<Vec<_>>().join(","))
}

/// The file of these tensors and `data_bytes` zeros.
fn file(tensors: &[(&str, &str, &str, u64, u64)], data_bytes: usize) -> Vec<u8> {
    safetensors(&header(tensors), &vec![0; data_bytes])
}

#[test]
fn lists_every_type_and_reads_three() {
    let file = file(
        &[("a", "F32", "[2]", 0, 8), ("b", "I64", "[1]", 8, 16), ("c", "NEW7", "[]", 16, 17)],
        17,
    );
    let checkpoint = open_dir(&[("model.safetensors", file)]).unwrap();
    assert_eq!(checkpoint.tensors().count(), 3);
    assert_eq!(checkpoint.read_f32("a").unwrap(), [0.0; 2]);
    let unread = checkpoint.read_f32("b");
    assert_error!(unread, WeightsError::UnsupportedDtype { .. }, "`b`", "I64", "BF16");
    assert_error!(checkpoint.read_f32("d"), WeightsError::MissingTensor { .. }, "`d`");
}

#[test]
fn empty_tensors_and_padding_are_read() {
    let text = format!("{}   ", header(&[("a", "F16", "[0,4]", 0, 0), ("b", "F32", "[]", 0, 4)]));
    let tensors = parse(&safetensors(&text, &[0; 4])).unwrap();
    assert_eq!((&tensors["a"].shape[..], &tensors["b"].shape[..]), (&[0, 4][..], &[][..]));
    assert!(parse(&safetensors(r#"{"__metadata__":{"format":"pt"}}"#, &[])).unwrap().is_empty());
}

#[test]
fn rejects_a_header_beyond_the_file() {
    assert_error!(parse(b"1234567"), SafetensorsError::TooShort(7), "7 bytes");
    for length in [3, 100_000_001, 1 << 60, u64::MAX] {
        let bytes = [&u64::to_le_bytes(length)[..], b"{}"].concat();
        let expected = length.to_string();
        assert_error!(parse(&bytes), SafetensorsError::HeaderLength { .. }, &expected);
    }
    let mut long = vec![0; 100_000_009];
    long[..8].copy_from_slice(&u64::to_le_bytes(100_000_001));
    assert_error!(parse(&long), SafetensorsError::HeaderLength { .. }, "100 MB");
}

#[test]
fn rejects_a_header_that_is_none() {
    let with = |text: &str| parse(&safetensors(text, &[]));
    let deep = "[".repeat(100_000);
    let nested = format!(r#"{{"__metadata__":{deep}"#);
    for text in ["", "[]", "{", "{}{}", "\u{0}", &deep, &nested] {
        assert_error!(with(text), SafetensorsError::Header(_), "header");
    }
    let entry = |entry: &str| with(&format!(r#"{{"a":{entry}}}"#));
    for text in [
        "3",
        r#"{"dtype":"F32","shape":[1]}"#,
        r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#,
        r#"{"dtype":7,"shape":[1],"data_offsets":[0,4]}"#,
    ] {
        assert_error!(entry(text), SafetensorsError::Header(_), "tensor `a`");
    }
    assert!(with("\u{feff}{}").is_err());
    assert!(parse(&[&2u64.to_le_bytes()[..], b"\xff\xff"].concat()).is_err());
}

#[test]
fn rejects_offsets_that_do_not_tile_the_data() {
    let offsets = |tensors: &[_], bytes| match parse(&file(tensors, bytes)) {
        Err(SafetensorsError::Offsets { tensor, .. }) => tensor,
        other => panic!("should be Offsets, is {other:?}"),
    };
    let a = ("a", "F32", "[2]", 0, 8);
    assert_eq!(offsets(&[a, ("b", "F32", "[2]", 4, 12)], 12), "b", "overlap");
    assert_eq!(offsets(&[a, ("b", "F32", "[2]", 12, 20)], 20), "b", "hole");
    assert_eq!(offsets(&[a], 7), "a", "past the end");
    assert_eq!(offsets(&[("a", "F32", "[2]", 8, 0)], 8), "a", "backwards");
    assert_eq!(offsets(&[a, ("b", "F32", "[2]", 8, u64::MAX)], 16), "b", "to the end of numbers");
    assert_eq!(offsets(&[("a", "F32", "[2]", 1 << 60, (1 << 60) + 8)], 8), "a", "far");
    assert_error!(parse(&file(&[a], 9)), SafetensorsError::TrailingBytes(1), "1 bytes");
}

#[test]
fn rejects_shapes_that_are_not_the_data() {
    let with = |shape| parse(&file(&[("a", "F32", shape, 0, 8)], 8));
    assert_error!(with("[3]"), SafetensorsError::WrongLength { .. }, "[3]", "12");
    assert_error!(with("[]"), SafetensorsError::WrongLength { .. }, "4");
    let huge = "[1152921504606846976,1152921504606846976]";
    assert_error!(with(huge), SafetensorsError::TooLarge { .. }, "`a`");
    assert_error!(with("[4611686018427387904]"), SafetensorsError::TooLarge { .. }, "`a`");
    let wrong_dtype = parse(&file(&[("a", "BF16", "[2]", 0, 8)], 8));
    assert_error!(wrong_dtype, SafetensorsError::WrongLength { .. }, "BF16");
}

#[test]
fn rejects_a_name_that_stands_twice() {
    let twice = parse(&file(&[("a", "F32", "[1]", 0, 4), ("a", "F32", "[1]", 4, 8)], 8));
    assert_error!(twice, SafetensorsError::Duplicate(_), "`a`");
    let same = parse(&file(&[("a", "F32", "[1]", 0, 4), ("a", "F32", "[1]", 0, 4)], 4));
    assert_error!(same, SafetensorsError::Duplicate(_), "`a`");
}

#[test]
fn a_file_cut_or_changed_anywhere_stays_inside_itself() {
    let right = file(&[("a", "F32", "[2]", 0, 8), ("b", "F16", "[1,2]", 8, 12)], 12);
    for length in 0..right.len() {
        assert!(parse(&right[..length]).is_err(), "cut to {length} of {}", right.len());
    }
    for (at, value) in (0..right.len()).flat_map(|at| [0, b'9', b'"', 0xFF].map(|v| (at, v))) {
        let mut changed = right.clone();
        changed[at] = value;
        if let Ok(tensors) = parse(&changed) {
            assert!(tensors.values().all(|info| changed.get(info.range.clone()).is_some()));
        }
    }
}

#[test]
fn rejects_an_index_that_leads_out_of_its_directory() {
    for shard in
        ["../x", "/etc/passwd", "a/b", "..", ".", "", "./a", "a/", r"..\\x", "c:x", r"a\u0000"]
    {
        let text = format!(r#"{{"weight_map":{{"w":"{shard}"}}}}"#);
        assert_error!(index::parse(text.as_bytes()), IndexError::OutsideDirectory { .. }, "`w`");
    }
    for text in ["", "[]", "{}", r#"{"weight_map":[]}"#, r#"{"weight_map":{"w":1}}"#] {
        assert_error!(index::parse(text.as_bytes()), IndexError::Json(_), "weight_map");
    }
}

#[test]
fn shards_hold_what_the_index_places_in_them() {
    let a = safetensors(&header(&[("a", "F32", "[1]", 0, 4)]), &f32_bytes(&[1.0]));
    let b = safetensors(&header(&[("b", "F32", "[1]", 0, 4)]), &f32_bytes(&[2.0]));
    let open = |index: &str| {
        let files = [
            ("model.safetensors.index.json", index.as_bytes().to_vec()),
            ("1.safetensors", a.clone()),
            ("2.safetensors", b.clone()),
        ];
        open_dir(&files)
    };
    let right = open(r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#).unwrap();
    assert_eq!(right.read_f32("a").unwrap(), [1.0]);
    assert_eq!(right.read_f32("b").unwrap(), [2.0]);
    let lacks = open(r#"{"weight_map":{"a":"2.safetensors"}}"#);
    assert_error!(lacks, WeightsError::NotInShard { .. }, "`a`", "2.safetensors");
    let absent = open(r#"{"weight_map":{"a":"3.safetensors"}}"#);
    assert_error!(absent, WeightsError::Io { .. }, "3.safetensors");
    let outside = open(r#"{"weight_map":{"a":"../1.safetensors"}}"#);
    assert_error!(outside, WeightsError::Index { .. }, "index.json", "../1.safetensors");
}

#[test]
fn rejects_directories_and_paths_without_a_model() {
    assert_error!(open_dir(&[]), WeightsError::NoModel { .. }, "model.safetensors");
    assert_error!(Checkpoint::open("/nowhere/at/all"), WeightsError::Io { .. }, "/nowhere/at/all");
    let empty = file(&[], 0);
    let broken = open_dir(&[("model.safetensors", empty.clone()), ("config.json", b"{".into())]);
    assert_error!(broken, WeightsError::Config { .. }, "config.json");
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), empty).unwrap();
    assert_error!(Checkpoint::open(dir.path()), WeightsError::Io { .. }, "config.json");
    let cut = open_dir(&[("model.safetensors", vec![])]);
    assert_error!(cut, WeightsError::Safetensors { .. }, "model.safetensors", "0 bytes");
    #[cfg(unix)]
    assert_error!(Checkpoint::open("/dev/zero"), WeightsError::NotAFile { .. }, "/dev/zero");
}
