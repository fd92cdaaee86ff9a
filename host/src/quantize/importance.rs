//! What calibration says about the columns of each matrix: llama.cpp's importance matrix.

use std::collections::BTreeMap;

use super::QuantizeError;
use crate::weights::gguf::{Metadata, Value};

/// How much each input column of each matrix matters: the mean square of what it was multiplied by
/// on a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceMatrix {
    /// GGUF name of a tensor to the mean squares of its columns; of a stack of experts, the columns
    /// of the first expert, then of the second.
    pub entries: BTreeMap<String, Vec<f32>>,
    /// The file that it was read from, as `quantize.imatrix.file` records it.
    pub file: Option<String>,
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Chunks of text that were evaluated.
    pub chunks: Option<u32>,
}

impl ImportanceMatrix {
    /// The mean squares of tensor `name`.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.entries.get(name).map(Vec::as_slice)
    }

    /// Whether it says nothing of any tensor.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Checks that all values are mean squares.
    pub(super) fn check(&self) -> Result<(), QuantizeError> {
        for (tensor, values) in &self.entries {
            let is_wrong = |value: &&f32| !value.is_finite() || **value < 0.0;
            if let Some(&value) = values.iter().find(is_wrong) {
                return Err(QuantizeError::ImportanceValue { tensor: tensor.clone(), value });
            }
        }
        Ok(())
    }

    /// The mean squares of tensor `name`, if they are there.
    pub(super) fn of_tensor(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<&[f32]>, QuantizeError> {
        let Some(values) = self.get(name) else { return Ok(None) };
        let experts = if let [experts, _, _] = shape { *experts } else { 1 };
        let expected = experts * shape.last().copied().unwrap_or(1);
        if values.len() == expected {
            return Ok(Some(values));
        }
        // What an embedding is multiplied by is another thing than its rows.
        if name == "token_embd.weight" {
            return Ok(None);
        }
        let (tensor, found) = (name.to_owned(), values.len());
        Err(QuantizeError::ImportanceShape { tensor, found, expected })
    }

    /// Puts into `metadata` what llama-quantize says of the matrix.
    pub(super) fn record(&self, metadata: &mut Metadata) {
        // llama.cpp has room for so many bytes.
        const MAX_BYTES: usize = 127;
        if self.is_empty() {
            return;
        }
        let text = |text: &String| {
            let end = text.floor_char_boundary(MAX_BYTES);
            Value::String(text[..end].to_owned())
        };
        let count = |count: u32| Value::U32(count);
        let pairs = [
            ("file", self.file.as_ref().map(text)),
            ("dataset", self.datasets.first().map(text)),
            ("entries_count", Some(count(self.entries.len() as u32))),
            ("chunks_count", self.chunks.filter(|chunks| *chunks > 0).map(count)),
        ];
        for (key, value) in pairs {
            let Some(value) = value else { continue };
            metadata.0.insert(format!("quantize.imatrix.{key}"), value);
        }
    }
}
