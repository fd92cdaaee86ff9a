//! The models of a server that has many.

use super::engines::{Engines, Served};
use super::keep_alive::KeepAlive;
use super::names;
use super::room::{Lease, Room};
use super::table::{Limits, LoadError, Policy, State, Status};
use super::{ModelsOptions, Offer};
use crate::server::common::Common;
use crate::server::error::ApiError;
use axum::http::StatusCode;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// The models of a server that has many.
pub struct Many {
    options: Arc<ModelsOptions>,
    room: Arc<Room<Engines>>,
}

/// A model that there is, and what it is doing.
pub struct Listed {
    pub offer: Arc<Offer>,
    pub state: State,
    /// With its status, if it was asked for.
    pub status: Option<Status>,
}

impl Many {
    pub fn new(common: &Arc<Common>, options: ModelsOptions) -> Self {
        let limits = Limits { max_models: options.max_models, room_bytes: options.room_bytes };
        let room = Room::new(Engines::new(Arc::clone(common)), limits);
        let many = Many { options: Arc::new(options), room };
        list_again(&many.options, many.room.loader());
        many
    }

    /// Loads the models that are to be there from the start.
    pub fn preload(&self) {
        for offer in self.room.loader().offers() {
            if offer.is_preloaded {
                self.load(&offer);
            }
        }
    }

    /// The model that a request names. Directories are read only for one that is not loaded.
    ///
    /// # Errors
    /// 404 for none, 400 for no name where there are several.
    pub async fn find(&self, name: Option<&str>) -> Result<Arc<Offer>, ApiError> {
        if let Ok(offer) = self.find_among(name, &self.room.loader().offers())
            && self.room.model(&offer.settings.name).is_some()
        {
            return Ok(offer);
        }
        self.find_among(name, &self.offers().await)
    }

    fn find_among(
        &self,
        name: Option<&str>,
        offers: &[Arc<Offer>],
    ) -> Result<Arc<Offer>, ApiError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return self.default_of(offers);
        };
        let copied = self.room.loader().common().copied(name);
        let found = names::find(copied.as_deref().unwrap_or(name), offers);
        found.cloned().ok_or_else(|| ApiError::unknown_name(unknown(name)))
    }

    fn default_of(&self, offers: &[Arc<Offer>]) -> Result<Arc<Offer>, ApiError> {
        let default = self.options.default.as_deref();
        let default = default.and_then(|name| names::find(name, offers));
        match (offers, default) {
            ([offer], _) | (_, Some(offer)) => Ok(Arc::clone(offer)),
            ([], None) => Err(ApiError::unknown_name(
                "there is no model: `halfwarp pull ORG/NAME` gets one from the Hugging Face Hub"
                    .to_owned(),
            )),
            _ => Err(ApiError::param(
                "model",
                "this field is required, as the server has several models: GET /v1/models lists them",
            )),
        }
    }

    /// The model, for as long as the lease lasts; loaded if it is not.
    ///
    /// # Errors
    /// 503 for one that does not fit or cannot be loaded now.
    pub async fn lease(
        &self,
        offer: &Offer,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Lease<Engines>, ApiError> {
        let name = &offer.settings.name;
        let leaves = || matches!(self.state(offer), State::Unloaded | State::Unloading);
        if !self.options.loads_by_name && leaves() {
            let message = format!("the model {name} is not loaded: POST /models/load does that");
            return Err(ApiError::invalid(message).with_code("model_not_loaded"));
        }
        self.room.lease(name, self.policy(offer, keep_alive)).await.map_err(ApiError::from)
    }

    /// What it is doing.
    pub fn state(&self, offer: &Offer) -> State {
        let statuses = self.room.statuses();
        let status = statuses.iter().find(|status| status.name == offer.settings.name);
        status.map_or(State::Unloaded, |status| status.state)
    }

    /// Loads it for nobody yet.
    pub fn load(&self, offer: &Offer) {
        self.room.load(&offer.settings.name, self.policy(offer, None));
    }

    /// Unloads it once its requests have ended; `false` if it is not loaded.
    pub fn unload(&self, offer: &Offer) -> bool {
        self.room.unload(&offer.settings.name)
    }

    fn policy(&self, offer: &Offer, keep_alive: Option<KeepAlive>) -> Policy {
        let keep_alive = keep_alive.or(offer.keep_alive).unwrap_or(self.options.keep_alive);
        Policy { is_pinned: offer.is_pinned, keep_alive }
    }

    /// What there is now.
    async fn offers(&self) -> Vec<Arc<Offer>> {
        let (options, room) = (Arc::clone(&self.options), Arc::clone(&self.room));
        let _ = spawn_blocking(move || list_again(&options, room.loader())).await;
        self.room.loader().offers()
    }

    /// All models, and what they are doing.
    pub async fn list(&self) -> Vec<Listed> {
        let (offers, mut statuses) = (self.offers().await, self.room.statuses());
        let listed = |offer: Arc<Offer>| {
            let at = statuses.iter().position(|status| status.name == offer.settings.name);
            let status = at.map(|at| statuses.swap_remove(at));
            let state = status.as_ref().map_or(State::Unloaded, |status| status.state);
            Listed { offer, state, status }
        };
        offers.into_iter().map(listed).collect()
    }

    /// The loaded model of this name.
    pub fn served(&self, name: &str) -> Option<Arc<Served>> {
        self.room.model(name)
    }

    /// Unloads what has been idle for too long.
    pub fn tick(&self) {
        self.room.tick();
    }

    /// Refuses requests from now on; returns what is loaded.
    pub fn close(&self) -> Vec<Arc<Served>> {
        self.room.close();
        self.room.models().into_iter().map(|(_, served)| served).collect()
    }
}

/// Reads which models there are.
fn list_again(options: &ModelsOptions, engines: &Engines) {
    engines.set_offers((options.list)().into_iter().map(Arc::new).collect());
}

fn unknown(name: &str) -> String {
    let mut end = name.len().min(100);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let dots = if end < name.len() { ".." } else { "" };
    let name = &name[..end];
    format!(
        "model '{name}{dots}' not found: GET /v1/models lists those that there are, and `halfwarp pull ORG/NAME` gets \
         others from the Hugging Face Hub"
    )
}

impl From<LoadError> for ApiError {
    fn from(error: LoadError) -> Self {
        let code = match error {
            LoadError::NoRoom(_) => "model_does_not_fit",
            LoadError::Failed(_) => "model_failed_to_load",
            LoadError::Unloaded | LoadError::ShuttingDown => "model_not_loaded",
        };
        let message = error.to_string();
        match error {
            LoadError::Failed(_) => {
                ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, message).with_code(code)
            }
            _ => ApiError::unavailable(message).with_code(code),
        }
    }
}
