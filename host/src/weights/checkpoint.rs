//! A checkpoint: a Hugging Face directory or a GGUF file.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use super::gguf::{self, Gguf, split};
use super::map::MappedFile;
use super::packed::{self, Layout, Packed};
use super::{TensorEntry, TensorInfo, WeightsError, index, safetensors};
use crate::files;

/// Where a checkpoint comes from, with what describes its model.
#[derive(Debug)]
pub enum Origin {
    /// A directory as `transformers` saves it.
    HuggingFace {
        /// The directory.
        dir: PathBuf,
        /// The `config.json` of the directory.
        config: serde_json::Value,
    },
    /// A GGUF file, or several that the model is split over.
    Gguf {
        /// Key-value part of the file.
        metadata: gguf::Metadata,
    },
}

/// The tensors of a model on disk, memory-mapped.
#[derive(Debug)]
pub struct Checkpoint {
    /// As the user gave it, for errors.
    path: PathBuf,
    origin: Origin,
    files: Vec<MappedFile>,
    tensors: BTreeMap<String, Located>,
}

/// A tensor in one of the files.
#[derive(Debug)]
pub(super) struct Located {
    pub file: usize,
    pub info: TensorInfo,
    /// How a weight that came quantised is stored; its bytes are then those of its elements.
    pub packed: Option<Layout>,
}

impl Located {
    fn plain(file: usize, info: TensorInfo) -> Self {
        Located { file, info, packed: None }
    }
}

impl Checkpoint {
    /// Opens a Hugging Face directory (`config.json` with `model.safetensors` or
    /// `model.safetensors.index.json` and its shards) or a GGUF file, with all others that the
    /// model is split over, and checks every header against its file. No weight is read yet.
    ///
    /// The files stay mapped: they must not be rewritten in place or cut while the checkpoint lives
    /// (replacing one by a new file is fine).
    ///
    /// # Errors
    /// A [`WeightsError`] that names the file and what is wrong with it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        let path = path.as_ref();
        if path.is_dir() { Self::open_dir(path) } else { Self::open_gguf(path) }
    }

    /// Where the checkpoint comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The path that it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files with weights: of a split model all, in their order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<TensorEntry<'_>> {
        let (name, located) = self.tensors.get_key_value(name)?;
        Some(self.entry(name, located))
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorEntry<'_>> {
        self.tensors.iter().map(|(name, located)| self.entry(name, located))
    }

    fn entry<'a>(&'a self, name: &'a str, located: &'a Located) -> TensorEntry<'a> {
        let file = &self.files[located.file];
        let TensorInfo { shape, dtype, range } = &located.info;
        let bytes = &file.bytes()[range.clone()];
        let packed = located.packed.as_ref();
        let packed = packed.map(|layout| Packed::new(layout, &self.files, shape, bytes));
        TensorEntry { name, shape, dtype, bytes, file: &file.path, packed }
    }

    /// Adds the tensors of `model.safetensors` in a folder of the directory, as `folder/name`.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub(crate) fn open_folder(&mut self, folder: &str) -> Result<(), WeightsError> {
        let (file, tensors) = open_safetensors(&self.path.join(folder).join(WEIGHT_FILES[0]))?;
        let index = self.files.len();
        self.files.push(file);
        let locate = |(name, info)| (format!("{folder}/{name}"), Located::plain(index, info));
        self.tensors.extend(tensors.into_iter().map(locate));
        Ok(())
    }

    fn open_gguf(path: &Path) -> Result<Self, WeightsError> {
        let (file, Gguf { metadata, tensors }) = open_gguf_file(path)?;
        if split::count(&metadata).is_some() {
            return Self::open_parts(path, &metadata);
        }
        let tensors =
            tensors.into_iter().map(|(name, info)| (name, Located::plain(0, info))).collect();
        Ok(Checkpoint {
            path: path.to_owned(),
            origin: Origin::Gguf { metadata },
            files: vec![file],
            tensors,
        })
    }

    /// Opens all files of the model that `path`, with `metadata`, is a part of.
    fn open_parts(path: &Path, metadata: &gguf::Metadata) -> Result<Self, WeightsError> {
        let wrong = |path: &Path| {
            let path = path.to_owned();
            move |source| WeightsError::Gguf { path, source }
        };
        let paths = split::paths(path, metadata).map_err(wrong(path))?;
        let (mut files, mut tensors, mut of_first) = (Vec::new(), BTreeMap::new(), None);
        for (index, part) in paths.iter().enumerate() {
            let exists = files::exists(part);
            if !exists.map_err(|source| WeightsError::Io { path: part.clone(), source })? {
                let (path, number, count) = (part.clone(), index + 1, paths.len());
                return Err(WeightsError::MissingPart { path, number, count });
            }
            let (file, Gguf { metadata, tensors: own }) = open_gguf_file(part)?;
            split::check_part(&metadata, index, paths.len()).map_err(wrong(part))?;
            for (name, info) in own {
                if tensors.contains_key(&name) {
                    return Err(wrong(part)(split::twice(&name)));
                }
                tensors.insert(name, Located::plain(index, info));
            }
            of_first.get_or_insert(metadata);
            files.push(file);
        }
        let mut metadata = of_first.unwrap_or_default();
        split::finish(&mut metadata, tensors.len()).map_err(wrong(&paths[0]))?;
        let origin = Origin::Gguf { metadata };
        Ok(Checkpoint { path: path.to_owned(), origin, files, tensors })
    }

    fn open_dir(dir: &Path) -> Result<Self, WeightsError> {
        let [single, index] = WEIGHT_FILES.map(|name| dir.join(name));
        let exists = |path: &Path| {
            files::exists(path).map_err(|source| WeightsError::Io { path: path.to_owned(), source })
        };
        let (files, mut tensors) = if exists(&single)? {
            let (file, tensors) = open_safetensors(&single)?;
            let locate = |(name, info)| (name, Located::plain(0, info));
            (vec![file], tensors.into_iter().map(locate).collect())
        } else if exists(&index)? {
            open_shards(dir, &index)?
        } else {
            return Err(WeightsError::NoModel { path: dir.to_owned() });
        };
        let config_path = dir.join("config.json");
        let config: serde_json::Value = serde_json::from_slice(&read(&config_path)?)
            .map_err(|source| WeightsError::Config { path: config_path, source })?;
        packed::resolve(dir, &config, &files, &mut tensors)?;
        let origin = Origin::HuggingFace { dir: dir.to_owned(), config };
        Ok(Checkpoint { path: dir.to_owned(), origin, files, tensors })
    }
}

/// Where a Hugging Face directory has its weights: in one file, or in shards that an index names.
const WEIGHT_FILES: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];

/// Whether `dir` holds safetensors files, so that [`Checkpoint::open`] takes it.
///
/// # Errors
/// If the directory cannot be searched.
pub(crate) fn is_hugging_face_dir(dir: &Path) -> io::Result<bool> {
    for name in WEIGHT_FILES {
        if files::exists(&dir.join(name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens the shards that the index at `index_path` names, and finds each of its tensors in the
/// shard it is placed in.
fn open_shards(
    dir: &Path,
    index_path: &Path,
) -> Result<(Vec<MappedFile>, BTreeMap<String, Located>), WeightsError> {
    let weight_map = index::parse(&read(index_path)?)
        .map_err(|source| WeightsError::Index { path: index_path.to_owned(), source })?;
    let (mut files, mut headers) = (Vec::new(), Vec::new());
    let mut opened = HashMap::new();
    let mut tensors = BTreeMap::new();
    for (tensor, shard) in weight_map {
        let file = match opened.get(&shard) {
            Some(&file) => file,
            None => {
                let (mapped, header) = open_safetensors(&dir.join(&shard))?;
                files.push(mapped);
                headers.push(header);
                opened.insert(shard, files.len() - 1);
                files.len() - 1
            }
        };
        let Some(info) = headers[file].remove(&tensor) else {
            return Err(WeightsError::NotInShard { shard: files[file].path.clone(), tensor });
        };
        tensors.insert(tensor, Located::plain(file, info));
    }
    Ok((files, tensors))
}

fn open_gguf_file(path: &Path) -> Result<(MappedFile, Gguf), WeightsError> {
    let file = MappedFile::open(path)?;
    let gguf = gguf::parse(file.bytes())
        .map_err(|source| WeightsError::Gguf { path: path.to_owned(), source })?;
    Ok((file, gguf))
}

fn open_safetensors(path: &Path) -> Result<(MappedFile, super::Tensors), WeightsError> {
    let file = MappedFile::open(path)?;
    let tensors = safetensors::parse(file.bytes())
        .map_err(|source| WeightsError::Safetensors { path: path.to_owned(), source })?;
    Ok((file, tensors))
}

/// The bytes of a small file.
fn read(path: &Path) -> Result<Vec<u8>, WeightsError> {
    files::read(path).map_err(|source| WeightsError::Io { path: path.to_owned(), source })
}
