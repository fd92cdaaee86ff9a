//! llama.cpp's GGUF of an importance matrix: `NAME.in_sum2` f32 `[num_experts, columns]` and `NAME.counts` f32
//! `[num_experts, 1]` of each weight, without the first dimension where it has no experts; keys `imatrix.datasets`, `imatrix.chunk_count` and `imatrix.chunk_size`.
//!
//! Source: `IMatrixCollector::save_imatrix` of llama.cpp's tools/imatrix.

use super::{Entry, Imatrix, ImatrixError};
use crate::plan::Dtype;
use crate::weights::gguf::{Metadata, TensorDescription, Value, Writer};
use crate::weights::{Checkpoint, Origin, TensorDtype, TensorEntry, shown};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const DATASETS: &str = "imatrix.datasets";
const NUM_CHUNKS: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

pub fn read(path: &Path) -> Result<Imatrix, ImatrixError> {
    let checkpoint = Checkpoint::open(path)?;
    let Origin::Gguf { metadata } = checkpoint.origin() else {
        return Err(ImatrixError::Format("a directory".to_owned()));
    };
    let mut entries = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        // Newer files have `in_sum` and `stats` too.
        let Some(name) = tensor.name.strip_suffix(SUMS) else { continue };
        let counts = checkpoint.tensor(&format!("{name}{COUNTS}")).ok_or_else(|| {
            ImatrixError::Format(format!("{} has sums, and no counts", shown(name)))
        })?;
        let sums = values(tensor)?.map(f64::from).collect();
        // Rounded as llama.cpp does; what is no count becomes 0.
        let counts = values(counts)?.map(|count| count.round() as u64).collect();
        entries.insert(name.to_owned(), Entry::checked(name, sums, counts)?);
    }
    if entries.is_empty() {
        return Err(ImatrixError::Format(format!("it has no tensor NAME{SUMS}")));
    }
    let name = |value: &Value| match value {
        Value::String(name) => Some(name.clone()),
        _ => None,
    };
    let datasets = metadata.get_array(DATASETS).unwrap_or_default().iter().filter_map(name);
    let number = |key| metadata.get_u64(key).and_then(|number| u32::try_from(number).ok());
    Ok(Imatrix {
        entries,
        datasets: datasets.collect(),
        // Sums and counts are whole in any case.
        chunk_size: Some(number(CHUNK_SIZE).map_or(0, |size| size as usize)),
        num_chunks: number(NUM_CHUNKS).map(|count| count as usize),
    })
}

fn values(tensor: TensorEntry<'_>) -> Result<impl Iterator<Item = f32>, ImatrixError> {
    if *tensor.dtype != TensorDtype::Known(Dtype::F32) {
        let (name, dtype) = (shown(tensor.name), tensor.dtype);
        return Err(ImatrixError::Format(format!("{name} is {dtype}, and not F32")));
    }
    let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    Ok(tensor.bytes.chunks_exact(4).map(value))
}

pub fn write(imatrix: &Imatrix, out: impl Write) -> io::Result<()> {
    let text = |text: &str| Value::String(text.to_owned());
    let number = |number: Option<usize>| {
        Value::U32(number.and_then(|number| number.try_into().ok()).unwrap_or(0))
    };
    let metadata = Metadata(BTreeMap::from([
        ("general.type".to_owned(), text("imatrix")),
        (
            DATASETS.to_owned(),
            Value::Array(imatrix.datasets.iter().map(|name| text(name)).collect()),
        ),
        (NUM_CHUNKS.to_owned(), number(imatrix.num_chunks)),
        (CHUNK_SIZE.to_owned(), number(imatrix.chunk_size)),
    ]));
    let tensors = |(name, Entry { sums, counts }): (&String, &Entry)| {
        let matrices = counts.len();
        let describe = |suffix, columns| TensorDescription {
            name: format!("{name}{suffix}"),
            // As ggml has it, which knows no outermost dimension of 1.
            shape: if matrices == 1 { vec![columns] } else { vec![matrices, columns] },
            dtype: Dtype::F32,
        };
        [describe(SUMS, sums.len() / matrices.max(1)), describe(COUNTS, 1)]
    };
    let descriptions: Vec<_> = imatrix.entries.iter().flat_map(tensors).collect();
    let mut writer = Writer::new(out, &metadata, &descriptions)?;
    for Entry { sums, counts } in imatrix.entries.values() {
        let sums: Vec<f32> = sums.iter().map(|&sum| sum as f32).collect();
        let counts: Vec<f32> = counts.iter().map(|&count| count as f32).collect();
        writer.tensor(bytemuck::cast_slice(&sums))?;
        writer.tensor(bytemuck::cast_slice(&counts))?;
    }
    writer.finish()
}
