//! `halfwarp list`.

use super::{failure::Failure, pull::size, terminal};
use halfwarp::Decoder;
use hub::{CachedModel, HubCache, Settings};
use model_cache::MODELS;
use std::fmt::Write;

/// Digits of a commit that are shown.
const COMMIT_LEN: usize = 7;

/// A row: name, revision, size, path.
type Row = [String; 4];

/// Prints the models that are in the caches and can be opened: those that were pulled, by this
/// program or by Python's tools, and those that were fetched.
///
/// # Errors
/// [`Failure::Environment`] if a cache cannot be read.
pub fn run() -> Result<(), Failure> {
    let mut rows = vec![["NAME", "REVISION", "SIZE", "PATH"].map(str::to_owned)];
    rows.extend(fetched());
    if let Ok(dir) = Settings::cache_dir_from_env() {
        for model in HubCache::new(dir).models()? {
            match Decoder::open(&model.path) {
                Ok(_) => rows.push(row(&model)),
                Err(error) => {
                    let why = error.to_string();
                    let why = why.lines().next().unwrap_or_default();
                    terminal::note(format_args!("left out {}: {why}", name(&model)));
                }
            }
        }
    }
    if rows.len() == 1 {
        terminal::note("there is no model: halfwarp fetch and halfwarp pull ORG/NAME get one");
        return Ok(());
    }
    terminal::print(&table(&rows))
}

/// The models of `halfwarp fetch`.
fn fetched() -> Vec<Row> {
    let Ok(cache) = model_cache::cache_dir() else { return Vec::new() };
    let row = |model: &model_cache::FetchedModel| {
        let path = model.path(&cache);
        let bytes = path.metadata().ok().filter(|metadata| metadata.is_file())?.len();
        Some([model.name.to_owned(), "-".to_owned(), size(bytes), path.display().to_string()])
    };
    MODELS.iter().filter_map(row).collect()
}

fn row(model: &CachedModel) -> Row {
    let commit: String = model.commit.chars().take(COMMIT_LEN).collect();
    let revision = match &model.revision {
        Some(revision) => format!("{revision} {commit}"),
        None => commit,
    };
    [name(model), revision, size(model.bytes), model.path.display().to_string()]
}

/// What `-m` takes.
fn name(model: &CachedModel) -> String {
    match &model.file {
        Some(file) => format!("{}:{file}", model.repo),
        None => model.repo.to_string(),
    }
}

/// Columns as wide as their longest entry; the last one has no end.
fn table(rows: &[Row]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let [name, revision, size] = [0, 1, 2].map(|column| width(column).unwrap_or(0));
    let mut table = String::new();
    for row in rows {
        let _ = writeln!(
            table,
            "{:<name$}  {:<revision$}  {:>size$}  {}",
            row[0], row[1], row[2], row[3]
        );
    }
    table
}
