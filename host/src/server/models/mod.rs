//! Many models behind one server: which there are, and which are loaded.
//!
//! ```text
//! name of a request -> Offer -> Room (Table: what happens; threads: it happens) -> Lease -> answer
//! ```
//! A model is loaded when it is asked for, and unloaded when it was idle for long or another one
//! needs its room.

mod engines;
mod keep_alive;
mod many;
mod names;
mod room;
mod slot;
mod table;

pub use keep_alive::KeepAlive;
pub(super) use many::{Listed, Many};
pub(super) use table::State;

#[cfg(test)]
mod tests;

use super::ModelSettings;
use crate::{EngineOptions, ModelOverrides};
use std::fmt;
use std::path::PathBuf;

/// A model that a server can load.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Other names of it.
    pub aliases: Vec<String>,
    /// What `Model::open` takes.
    pub path: PathBuf,
    /// The length of its files.
    pub bytes: u64,
    /// How it answers, with what clients call it.
    pub settings: ModelSettings,
    /// What takes the place of what comes with it.
    pub overrides: ModelOverrides,
    /// How it runs.
    pub engine: EngineOptions,
    /// Only who names it unloads it.
    pub is_pinned: bool,
    /// It is loaded when the server starts.
    pub is_preloaded: bool,
    /// How long it stays without a request, in place of [`ModelsOptions::keep_alive`].
    pub keep_alive: Option<KeepAlive>,
}

/// How a server of many models is set up.
pub struct ModelsOptions {
    /// The models that there are now, which may take as long as reading directories does.
    pub list: Box<dyn Fn() -> Vec<Offer> + Send + Sync>,
    /// The model of requests that name none, if there is more than one.
    pub default: Option<String>,
    /// Models that are loaded at once; none: as many as there is room for.
    pub max_models: Option<usize>,
    /// Bytes that all models may take together; none: nobody knows.
    pub room_bytes: Option<usize>,
    /// How long a model stays without a request, where neither its offer nor the request says.
    pub keep_alive: KeepAlive,
    /// Whether a request loads the model that it names.
    pub loads_by_name: bool,
}

impl fmt::Debug for ModelsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelsOptions")
            .field("default", &self.default)
            .field("max_models", &self.max_models)
            .field("room_bytes", &self.room_bytes)
            .field("keep_alive", &self.keep_alive)
            .field("loads_by_name", &self.loads_by_name)
            .finish_non_exhaustive()
    }
}
