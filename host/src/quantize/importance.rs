//! What calibration says about the columns of each matrix: llama.cpp's importance matrix.

use std::collections::BTreeMap;

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
}
