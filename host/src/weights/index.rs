//! `model.safetensors.index.json`: which shard holds which tensor.
//!
//! Source: <https://huggingface.co/docs/huggingface_hub/package_reference/serialization>.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::Deserialize;

use super::shown;

/// What can be wrong with an index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// Not JSON, or without a `weight_map` from tensor names to file names.
    #[error("not an index with a \"weight_map\" of tensor and file names: {0}")]
    Json(#[from] serde_json::Error),
    /// A shard that is not a plain file name.
    #[error(
        "tensor {} is placed in {}: a shard must be a file of the same directory",
        shown(tensor),
        shown(shard)
    )]
    OutsideDirectory {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Reads an index: the shard's file name of each tensor, every one a plain name inside the index's
/// own directory.
///
/// # Errors
/// Any [`IndexError`].
pub fn parse(bytes: &[u8]) -> Result<BTreeMap<String, String>, IndexError> {
    let Index { weight_map } = serde_json::from_slice(bytes)?;
    let outside = weight_map.iter().find(|(_, shard)| !is_file_name(shard));
    if let Some((tensor, shard)) = outside {
        return Err(IndexError::OutsideDirectory { tensor: tensor.clone(), shard: shard.clone() });
    }
    Ok(weight_map)
}

/// Whether `name` is one plain component of a path, on any system: no separator, no `..`, no drive.
fn is_file_name(name: &str) -> bool {
    let first = Path::new(name).components().next();
    matches!(first, Some(Component::Normal(_))) && !name.contains(['/', '\\', ':', '\0'])
}
