//! Which models a server has: those of the caches, of a directory, and of the sections of a preset.

use super::ServeArgs;
use super::models::{Setup, setup};
use super::preset::{Preset, Section};
use crate::cli::failure::Failure;
use halfwarp::server::{ModelSettings, Offer};
use halfwarp::{Decoder, models};
use hub::{HubCache, Settings};
use model_cache::MODELS;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Finds the models that there are.
pub struct Listing {
    dir: Option<PathBuf>,
    all: Setup,
    /// By the name of their sections.
    own: BTreeMap<String, Setup>,
    /// Whether the model at a path can be opened, as it was at a time.
    known: Mutex<HashMap<PathBuf, (Option<SystemTime>, bool)>>,
}

/// A model that was found.
struct Found {
    name: String,
    path: PathBuf,
    bytes: u64,
}

impl Listing {
    /// # Errors
    /// [`Failure::Input`] for settings that no model can have.
    pub fn new(args: &ServeArgs, preset: &Preset, dir: Option<PathBuf>) -> Result<Self, Failure> {
        let with = |name: &str, section: &Section| -> Result<Setup, Failure> {
            setup(&preset.args_of(name, section)?, section.clone())
        };
        let all = match *preset.all() == Section::default() {
            true => setup(args, Section::default())?,
            false => with("*", preset.all())?,
        };
        let own =
            preset.models.iter().map(|(name, section)| Ok((name.clone(), with(name, section)?)));
        let own = own.collect::<Result<_, Failure>>()?;
        Ok(Listing { dir, all, own, known: Mutex::default() })
    }

    /// The models that there are now and can be opened.
    pub fn offers(&self) -> Vec<Offer> {
        let sections = self.own.iter().filter_map(|(name, setup)| {
            let path = models::resolve(setup.section.model.as_ref()?).ok()?;
            Some(Found { name: name.clone(), bytes: size(&path), path })
        });
        let found = sections.chain(fetched()).chain(pulled());
        let mut found: Vec<Found> =
            found.chain(self.dir.iter().flat_map(|dir| in_dir(dir))).collect();
        // The first of a name counts, and the newest commit comes first.
        let mut names = std::collections::HashSet::new();
        found.retain(|model| names.insert(model.name.clone()) && self.can_open(&model.path));
        found.into_iter().map(|found| self.offer(found)).collect()
    }

    /// The sections of models that are not there.
    pub fn unused<'a>(&'a self, offers: &[Offer]) -> Vec<&'a str> {
        let is_there =
            |section: &str| offers.iter().any(|offer| is_of(section, &offer.settings.name));
        self.own.keys().map(String::as_str).filter(|section| !is_there(section)).collect()
    }

    fn offer(&self, Found { name, path, bytes }: Found) -> Offer {
        let own = self.own.get(&name);
        let own = own.or_else(|| {
            let mut fitting = self.own.iter().filter(|(section, _)| is_of(section, &name));
            fitting.next().map(|(_, setup)| setup)
        });
        let Setup { overrides, engine, settings, section } = own.unwrap_or(&self.all).clone();
        Offer {
            aliases: section.aliases,
            path,
            bytes,
            settings: ModelSettings { name, ..settings },
            overrides,
            engine,
            is_pinned: section.is_pinned.unwrap_or(false),
            is_preloaded: section.is_preloaded.unwrap_or(false),
            keep_alive: section.keep_alive,
        }
    }

    /// Whether there is a model of a known family; its header is read once.
    fn can_open(&self, path: &Path) -> bool {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, can)) = known.get(path).filter(|(at, _)| *at == modified) {
            debug_assert_eq!(*at, modified);
            return *can;
        }
        let can = Decoder::open(path).is_ok();
        known.insert(path.to_owned(), (modified, can));
        can
    }
}

/// Whether a section is of the model `name`: by its name, or as the hub has it with a quantisation.
fn is_of(section: &str, name: &str) -> bool {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    if section.eq_ignore_ascii_case(name) {
        return true;
    }
    match (section.split_once(':'), name.split_once(':')) {
        (Some((repo, quant)), Some((of, file))) => {
            repo.eq_ignore_ascii_case(of) && plain(file).contains(&plain(quant))
        }
        (None, Some((of, _))) => section.eq_ignore_ascii_case(of),
        _ => false,
    }
}

/// The models of `halfwarp fetch`.
fn fetched() -> Vec<Found> {
    let Ok(cache) = model_cache::cache_dir() else { return Vec::new() };
    let found = |model: &model_cache::FetchedModel| {
        let path = model.path(&cache);
        let bytes = path.metadata().ok().filter(fs::Metadata::is_file)?.len();
        Some(Found { name: model.name.to_owned(), path, bytes })
    };
    MODELS.iter().filter_map(found).collect()
}

/// The models of the hub's cache.
fn pulled() -> Vec<Found> {
    let Ok(dir) = Settings::cache_dir_from_env() else { return Vec::new() };
    let models = HubCache::new(dir).models().unwrap_or_default();
    let found = |model: hub::CachedModel| {
        let name = match &model.file {
            Some(file) => format!("{}:{file}", model.repo),
            None => model.repo.to_string(),
        };
        Found { name, path: model.path, bytes: model.bytes }
    };
    models.into_iter().map(found).collect()
}

/// The models of a directory: `.gguf` files, and directories that hold a model.
fn in_dir(dir: &Path) -> Vec<Found> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<Found> = entries.filter_map(|entry| in_entry(&entry.path())).collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

fn in_entry(path: &Path) -> Option<Found> {
    let file = path.file_name()?.to_str()?;
    if path.is_dir() {
        let model = models::resolve(path).ok()?;
        return Some(Found { name: file.to_owned(), bytes: size(&model), path: model });
    }
    let stem = file.strip_suffix(".gguf")?;
    // The first part stands for all.
    let name = match models::split_name(file) {
        Some(name) if stem.contains("-00001-of-") => name,
        Some(_) => return None,
        None => stem,
    };
    Some(Found { name: name.to_owned(), bytes: size(path), path: path.to_owned() })
}

/// The length of a file, or of the files of a directory.
fn size(path: &Path) -> u64 {
    let len =
        |path: &Path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|it| it.len());
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|entry| len(&entry.path())).sum(),
        Err(_) => len(path).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_names_a_model_as_its_user_does() {
        for (section, name, is) in [
            ("smollm2-135m-instruct", "smollm2-135m-instruct", true),
            ("Org/Name", "org/name", true),
            ("Org/Name", "Org/Name:x-Q4_K_M.gguf", true),
            ("Org/Name:q4_k_m", "Org/Name:x-Q4_K_M.gguf", true),
            ("Org/Name:Q8_0", "Org/Name:x-Q4_K_M.gguf", false),
            ("Org/Other", "Org/Name:x.gguf", false),
            ("name", "Org/Name", false),
        ] {
            assert_eq!(is_of(section, name), is, "{section} {name}");
        }
    }

    #[test]
    fn a_directory_has_files_and_directories() {
        let dir = tempfile::tempdir().unwrap();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let sub = dir.path().join("sub");
        fs::create_dir(&sub).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(Path::new(golden).join(file), sub.join(file)).unwrap();
        }
        for file in ["a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "c.txt"] {
            fs::write(dir.path().join(file), "GGUF").unwrap();
        }
        let names: Vec<String> = in_dir(dir.path()).into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["a", "b", "sub"]);
        assert!(in_dir(&dir.path().join("nothing")).is_empty());
    }
}
