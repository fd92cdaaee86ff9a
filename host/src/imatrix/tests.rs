use super::*;
use std::fs;

fn entry(sums: &[f64], counts: &[u64]) -> Entry {
    Entry { sums: sums.to_vec(), counts: counts.to_vec() }
}

/// A weight of three columns, and two experts of two columns, the second of which no token went to.
fn imatrix() -> Imatrix {
    Imatrix {
        entries: BTreeMap::from([
            ("blk.0.attn_q.weight".to_owned(), entry(&[8.0, 0.0, 24.0], &[8])),
            ("blk.0.ffn_up_exps.weight".to_owned(), entry(&[4.0, 2.0, 0.0, 0.0], &[4, 0])),
        ]),
        datasets: vec!["a.txt".to_owned(), "b.txt".to_owned()],
        chunk_size: Some(4),
        num_chunks: Some(2),
    }
}

fn read(bytes: &[u8]) -> Result<Imatrix, ImatrixError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, bytes).unwrap();
    Imatrix::read(&path)
}

#[test]
fn gguf_is_read_as_it_was_written() {
    let mut bytes = Vec::new();
    imatrix().write_gguf(&mut bytes).unwrap();
    assert_eq!(read(&bytes).unwrap(), imatrix());
    // The last tensor has two counts; the padding after them may be missing.
    for len in 0..bytes.len() - 24 {
        assert!(read(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
    }
}

#[test]
fn dat_keeps_the_means() {
    let mut bytes = Vec::new();
    imatrix().write_dat(&mut bytes).unwrap();
    let got = read(&bytes).unwrap();
    let want = imatrix().means();
    let datasets = vec!["b.txt".to_owned()];
    assert_eq!(got.means(), ImportanceMatrix { datasets, ..want.clone() });
    assert_eq!(want.entries["blk.0.attn_q.weight"], [1.0, 0.0, 3.0]);
    assert_eq!(want.entries["blk.0.ffn_up_exps.weight"], [1.0, 0.5, 1.0, 1.0]);
    // Chunks of a weight: 8 rows in chunks of 4.
    assert_eq!(got.entries["blk.0.attn_q.weight"], entry(&[2.0, 0.0, 6.0], &[2]));
    // A file may end before the chunks, or before the name of the text.
    let ends = [bytes.len() - 13, bytes.len() - 9];
    for len in 0..bytes.len() {
        assert_eq!(read(&bytes[..len]).is_ok(), ends.contains(&len), "{len} of {}", bytes.len());
    }
}

#[test]
fn files_that_lie_are_refused() {
    let parse = |parts: &[&[u8]]| dat::parse(&parts.concat()).unwrap_err().to_string();
    let count = |count: i32| count.to_le_bytes();
    assert!(parse(&[&count(0)]).contains("no weights"));
    assert!(parse(&[&count(-1)]).contains("a count of -1"));
    assert!(
        parse(&[&count(1), &count(i32::MAX), b"x"]).contains("takes 2147483647 bytes at 8 of 9")
    );
    assert!(parse(&[&count(1), &count(1), b"\xff"]).contains("UTF-8"));
    let name = [&count(1)[..], b"x"].concat();
    let header = [&count(1)[..], &name, &count(1)].concat();
    assert!(parse(&[&header, &count(i32::MAX)]).contains("takes 8589934588 bytes"));
    assert!(parse(&[&header, &count(0)]).contains("0 sums"));
    let entry = [&name[..], &count(1), &count(1), &1f32.to_le_bytes()].concat();
    assert!(parse(&[&count(2), &entry, &entry]).contains("twice"));
    let nan = [&header[..], &count(1), &f32::NAN.to_le_bytes()].concat();
    assert!(matches!(read(&nan), Err(ImatrixError::Value { .. })));
    let negative = [&header[..], &count(1), &(-1f32).to_le_bytes()].concat();
    assert!(matches!(read(&negative), Err(ImatrixError::Value { .. })));
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/gguf/qwen3.gguf");
    let error = Imatrix::read(Path::new(golden)).unwrap_err().to_string();
    assert!(error.contains("no tensor NAME.in_sum2"), "{error}");
}

#[test]
fn merging_adds_sums_and_counts() {
    let mut sum = Imatrix::default();
    sum.merge(imatrix(), 512).unwrap();
    assert_eq!(sum, imatrix());
    // Of a `.dat` file in chunks of 4 rows: 3 chunks.
    let name = "blk.0.ffn_up_exps.weight".to_owned();
    let old = entry(&[3.0, 3.0, 6.0, 0.0], &[3]);
    let old = Imatrix { entries: BTreeMap::from([(name.clone(), old)]), ..Imatrix::default() };
    sum.merge(old, 4).unwrap();
    assert_eq!(sum.entries[&name], entry(&[16.0, 14.0, 24.0, 0.0], &[16, 12]));
    assert_eq!(sum.num_chunks, Some(4));
    let other = entry(&[1.0], &[1]);
    let other = Imatrix { entries: BTreeMap::from([(name, other)]), ..imatrix() };
    assert!(matches!(sum.merge(other, 4), Err(ImatrixError::Mismatch { .. })));
}
