//! `halfwarp rm`.

use super::{failure::Failure, pull::size, terminal};
use halfwarp::models::FetchedModel;
use hub::{HubCache, Settings};
use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

/// Arguments of `halfwarp rm`.
#[derive(clap::Args)]
pub struct RmArgs {
    /// ORG/NAME, whose files all go, or the name of a fetched model
    name: String,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// Says what will be deleted, asks, and deletes it.
///
/// # Errors
/// [`Failure::Input`] for what is not in a cache, or where nobody can be asked;
/// [`Failure::Environment`] for what cannot be deleted, or is being pulled.
pub fn run(args: &RmArgs) -> Result<(), Failure> {
    let name = &args.name;
    if let Some((repo, file)) = name.split_once(':') {
        return Err(Failure::Input(format!(
            "{name}: rm deletes all files of a model, not {file} alone\nhalfwarp rm {repo}"
        )));
    }
    if let Some((dir, bytes)) = fetched(name) {
        if is_confirmed(args, &dir, bytes)? {
            fs::remove_dir_all(&dir)
                .map_err(|error| Failure::Environment(format!("{}: {error}", dir.display())))?;
        }
        return Ok(());
    }
    let cache = HubCache::new(Settings::cache_dir_from_env()?);
    let repo = cache.repo(name)?.ok_or_else(|| {
        Failure::Input(format!("{name} is not in the cache\nhalfwarp list shows what is"))
    })?;
    if is_confirmed(args, &repo.path, repo.bytes)? {
        cache.remove(&repo)?;
    }
    Ok(())
}

/// The directory of a fetched model, and the length of its file.
fn fetched(name: &str) -> Option<(PathBuf, u64)> {
    let path = FetchedModel::named(name)?.path(&model_cache::cache_dir().ok()?);
    let bytes = path.metadata().ok()?.len();
    Some((path.parent()?.to_owned(), bytes))
}

fn is_confirmed(args: &RmArgs, dir: &Path, bytes: u64) -> Result<bool, Failure> {
    let what = format!("{} ({})", dir.display(), size(bytes));
    if args.yes {
        terminal::note(format_args!("deleting {what}"));
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        let ask = "rm asks before it deletes, and stdin is no terminal: give --yes";
        return Err(Failure::Input(format!("{what} is not deleted\n{ask}")));
    }
    let _ = write!(io::stderr(), "delete {what}? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.map_err(|error| Failure::Environment(format!("cannot read stdin: {error}")))?;
    let is_yes = matches!(&answer.trim().to_lowercase()[..], "y" | "yes");
    if !is_yes {
        terminal::note("nothing is deleted");
    }
    Ok(is_yes)
}
