//! A model that is split over several GGUF files, as llama-gguf-split does it.

use crate::files::{assert_error, tests_dir};
use halfwarp::Model;
use halfwarp::models::resolve;
use halfwarp::weights::gguf::{Metadata, TensorDescription, Value, Writer};
use halfwarp::weights::{Checkpoint, Origin, TensorDtype, TensorEntry, WeightsError};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const COUNT: usize = 3;

/// A golden model, split after every third of its tensors.
struct Split {
    dir: TempDir,
    whole: Checkpoint,
}

impl Split {
    fn new() -> Split {
        let whole = Checkpoint::open(tests_dir().join("goldens/gguf/qwen3.gguf")).unwrap();
        let split = Split { dir: TempDir::new().unwrap(), whole };
        (0..COUNT).for_each(|no| split.write(no, no, |_| {}));
        split
    }

    fn path(&self, no: usize) -> PathBuf {
        self.dir.path().join(format!("m-q8-{:05}-of-{COUNT:05}.gguf", no + 1))
    }

    /// Writes the tensors of part `no` under the name of part `at`.
    fn write(&self, no: usize, at: usize, change: impl Fn(&mut Metadata)) {
        let all: Vec<_> = self.whole.tensors().collect();
        let per_part = all.len().div_ceil(COUNT);
        let tensors = all.chunks(per_part).nth(no).unwrap();
        let Origin::Gguf { metadata } = self.whole.origin() else { panic!("a GGUF file") };
        // Only the first part has what describes the model.
        let mut metadata = if no == 0 { metadata.clone() } else { Metadata::default() };
        for (key, value) in [
            ("split.no", Value::U16(no as u16)),
            ("split.count", Value::U16(COUNT as u16)),
            ("split.tensors.count", Value::I32(all.len() as i32)),
        ] {
            metadata.0.insert(key.to_owned(), value);
        }
        change(&mut metadata);
        write(&self.path(at), &metadata, tensors);
    }

    fn open(&self, no: usize) -> Result<Checkpoint, WeightsError> {
        Checkpoint::open(self.path(no))
    }
}

fn write(path: &Path, metadata: &Metadata, tensors: &[TensorEntry]) {
    let describe = |tensor: &TensorEntry| {
        let TensorDtype::Known(dtype) = *tensor.dtype else { panic!("a type of GGUF") };
        TensorDescription { name: tensor.name.to_owned(), shape: tensor.shape.to_vec(), dtype }
    };
    let descriptions: Vec<_> = tensors.iter().map(describe).collect();
    let file = fs::File::create(path).unwrap();
    let mut writer = Writer::new(file, metadata, &descriptions).unwrap();
    for tensor in tensors {
        writer.tensor(tensor.bytes).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn any_part_opens_all_of_them() {
    let split = Split::new();
    for no in 0..COUNT {
        let parts = split.open(no).unwrap();
        let (mine, whole): (Vec<_>, Vec<_>) =
            (parts.tensors().collect(), split.whole.tensors().collect());
        assert_eq!(mine.len(), whole.len());
        for (mine, whole) in mine.iter().zip(&whole) {
            assert_eq!((mine.name, mine.shape, mine.dtype), (whole.name, whole.shape, whole.dtype));
            assert_eq!(mine.bytes, whole.bytes, "{}", mine.name);
        }
        let (Origin::Gguf { metadata: mine }, Origin::Gguf { metadata: whole }) =
            (parts.origin(), split.whole.origin())
        else {
            panic!("GGUF files")
        };
        assert_eq!(mine, whole, "nothing is left of the split");
        let (mine, whole) = (Model::open(split.path(no)), Model::open(split.whole.path()));
        assert_eq!(mine.unwrap().config(), whole.unwrap().config());
    }
    assert_eq!(resolve(split.dir.path()).unwrap(), split.path(0));
}

#[test]
fn what_does_not_fit_is_named() {
    let split = Split::new();
    let set = |key: &'static str, value: u16| {
        move |metadata: &mut Metadata| {
            metadata.0.insert(key.to_owned(), Value::U16(value));
        }
    };
    fs::remove_file(split.path(1)).unwrap();
    let missing = "m-q8-00002-of-00003.gguf: is not there; it is file 2 of 3";
    assert_error!(split.open(0), WeightsError::MissingPart { .. }, missing);
    assert_error!(split.open(2), WeightsError::MissingPart { .. }, missing);

    split.write(0, 1, |_| {});
    assert_error!(split.open(0), WeightsError::Gguf { .. }, "'split.no' should be 1, it is 0");
    split.write(0, 1, set("split.no", 1));
    assert_error!(split.open(0), WeightsError::Gguf { .. }, "is in an earlier one, too");
    split.write(1, 1, set("split.count", 4));
    assert_error!(split.open(0), WeightsError::Gguf { .. }, "'split.count' should be 3, it is 4");
    split.write(1, 1, |metadata| drop(metadata.0.remove("split.count")));
    assert_error!(split.open(0), WeightsError::Gguf { .. }, "'split.count' should be 3");
    split.write(1, 1, |_| {});
    split.open(0).unwrap();

    split.write(0, 0, set("split.tensors.count", 1));
    assert_error!(split.open(0), WeightsError::Gguf { .. }, "'split.tensors.count' is 1");
    split.write(0, 0, |metadata| drop(metadata.0.remove("split.no")));
    assert_error!(split.open(0), WeightsError::Gguf { .. }, "'split.no' is missing");
    split.write(0, 0, |_| {});
    let other = split.dir.path().join("model.gguf");
    fs::rename(split.path(0), &other).unwrap();
    let name = "its name should end in -00001-of-00003.gguf";
    assert_error!(Checkpoint::open(&other), WeightsError::Gguf { .. }, name);
}
