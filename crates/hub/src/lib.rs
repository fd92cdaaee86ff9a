//! Models of the Hugging Face Hub: found, fetched, verified, and kept in the cache that Python's
//! `huggingface_hub` reads and fills too.
//!
//! ```no_run
//! use hub::{Client, Event, HubCache, ModelRef, Retry, Settings, pull};
//!
//! let settings = Settings::from_env()?;
//! let client = Client::new(&settings)?;
//! let model: ModelRef = "Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m".parse()?;
//! let cache = HubCache::new(settings.cache_dir()?);
//! let mut tell = |event: Event| println!("{event:?}");
//! let pulled = pull(&client, &cache, &model, "main", Retry::default(), &mut tell)?;
//! println!("{}", pulled.path.display());
//! # Ok::<(), hub::HubError>(())
//! ```
//!
//! A file has its final name only when it is whole and verified. What an interrupted fetch leaves is
//! taken up again by the next one.

mod api;
mod blob;
mod cache;
mod cached;
mod choose;
mod error;
mod file_name;
mod http;
mod name;
mod pull;
mod remove;
mod settings;
mod url;

pub use api::{Body, Checksum, FileInfo, Hub, RepoInfo};
pub use cache::HubCache;
pub use cached::CachedModel;
pub use error::HubError;
pub use file_name::FileName;
pub use http::{Client, tls_config};
pub use name::{ModelRef, RepoId};
pub use pull::{Event, Pulled, Retry, pull};
pub use remove::CachedRepo;
pub use settings::Settings;
