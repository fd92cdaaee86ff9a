//! `halfwarp pull`, and models that are given as `-hf ORG/NAME`.

use super::{failure::Failure, terminal};
use hub::{Checksum, Client, Event, HubCache, HubError, ModelRef, Retry, Settings};
use indicatif::ProgressBar;
use std::path::PathBuf;

const EXAMPLES: &str = "\
A GGUF repository gives the one file that is meant, Q4_K_M or the only one if none is named. One of
safetensors gives configuration, tokenizer, chat template and weights; .bin and .pt never come. Files
go into the cache that Python's huggingface_hub reads: HF_HUB_CACHE, else HF_HOME/hub, else
~/.cache/huggingface/hub. A pull that was cut short goes on where it ended. HF_TOKEN opens gated and
private models, HF_ENDPOINT names another hub.

Examples:
  halfwarp pull Qwen/Qwen2.5-0.5B-Instruct
  halfwarp pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0
  halfwarp chat -m Qwen/Qwen2.5-0.5B-Instruct
  halfwarp chat -hf bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0      pulls it if it is not there";

/// Arguments of `halfwarp pull`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct PullArgs {
    /// The model: ORG/NAME, ORG/NAME:QUANT or ORG/NAME:FILE.gguf
    #[arg(value_name = "ORG/NAME[:FILE]")]
    model: String,
    /// A branch, a tag or a commit
    #[arg(long, value_name = "REV", default_value = "main")]
    revision: String,
}

/// Pulls a model into the cache, and prints its path.
///
/// # Errors
/// [`Failure::Input`] for a model that is not there or not to be had, [`Failure::Environment`] for
/// the network and the disk.
pub fn run(args: &PullArgs) -> Result<(), Failure> {
    let model: ModelRef = args.model.parse()?;
    let path = pull(&model, &args.revision)?;
    terminal::print(&format!("{}\n", path.display()))
}

/// The path of a model in the cache, pulled if it is not there.
///
/// # Errors
/// As [`run`].
pub fn find_or_pull(model: &str) -> Result<PathBuf, Failure> {
    let model: ModelRef = model.parse()?;
    match HubCache::new(Settings::cache_dir_from_env()?).find(&model)? {
        Some(path) => Ok(path),
        None => pull(&model, "main"),
    }
}

fn pull(model: &ModelRef, revision: &str) -> Result<PathBuf, Failure> {
    let settings = Settings::from_env()?;
    if settings.is_offline {
        return Err(HubError::Offline(model.repo.clone()).into());
    }
    let client = Client::new(&settings)?;
    let cache = HubCache::new(settings.cache_dir()?);
    let mut shown = Shown { bar: None };
    let mut tell = |event: Event<'_>| shown.tell(event);
    let pulled = hub::pull(&client, &cache, model, revision, Retry::default(), &mut tell)?;
    Ok(pulled.path)
}

/// What is shown of a pull, on stderr.
struct Shown {
    bar: Option<ProgressBar>,
}

impl Shown {
    fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Waiting { file } => {
                terminal::note(format_args!("waiting for another process that fetches {file}"));
            }
            Event::Present { file, .. } => {
                terminal::note(format_args!("{file} is in the cache already"));
            }
            Event::Started { file, bytes, received } => {
                let size = bytes.map_or_else(String::new, |bytes| format!(" ({})", size(bytes)));
                let from = match received {
                    0 => String::new(),
                    received => format!(", from {} on", self::size(received)),
                };
                terminal::note(format_args!("fetching {file}{size}{from}"));
                self.bar = Some(terminal::fetching_bar(bytes, received));
            }
            Event::Received { received, .. } => {
                if let Some(bar) = &self.bar {
                    bar.set_position(received);
                }
            }
            Event::Again { file, why } => {
                let why = why.lines().next().unwrap_or_default();
                let note = || terminal::note(format_args!("{file}: {why}: trying again"));
                match &self.bar {
                    Some(bar) => bar.suspend(note),
                    None => note(),
                }
            }
            Event::Verified { file, checksum } => {
                self.bar = None;
                let by = match checksum {
                    Checksum::Sha256 => "its SHA-256",
                    Checksum::GitBlob => "its Git hash",
                    Checksum::None => "its length",
                };
                terminal::note(format_args!("{file} is verified by {by}"));
            }
            _ => {}
        }
    }
}

/// A length for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
