//! What all connections and all models of a server share.

use super::ServerOptions;
use super::body::thread_of_large_bodies;
use super::catalog::tagged;
use super::error::ApiError;
use super::metrics::Metrics;
use super::store::Store;
use axum::http::StatusCode;
use rayon::{ThreadPool, ThreadPoolBuildError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// Models that are pulled at once.
const MAX_PULLS: usize = 4;

/// What all connections and all models of a server share.
pub(super) struct Common {
    pub options: ServerOptions,
    pub metrics: Metrics,
    /// Responses that requests go on from.
    pub store: Arc<Store>,
    /// Parses large bodies.
    pub large_bodies: ThreadPool,
    /// Seconds since 1970 when the server was started.
    pub created: u64,
    /// Permits of pulls.
    pub pulls: Arc<Semaphore>,
    /// Whether clients may fetch and delete models.
    manages: bool,
    /// Other names of models.
    copies: Mutex<BTreeMap<String, String>>,
    is_draining: AtomicBool,
}

impl Common {
    pub fn new(options: ServerOptions, manages: bool) -> Result<Self, ThreadPoolBuildError> {
        Ok(Common {
            options,
            metrics: Metrics::default(),
            store: Arc::default(),
            large_bodies: thread_of_large_bodies()?,
            created: unix_time(),
            pulls: Arc::new(Semaphore::new(MAX_PULLS)),
            manages,
            copies: Mutex::default(),
            is_draining: AtomicBool::new(false),
        })
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
    }

    /// Whether requests are taken.
    pub fn check_open(&self) -> Result<(), ApiError> {
        match self.is_draining() {
            true => Err(ApiError::unavailable("the server is shutting down")),
            false => Ok(()),
        }
    }

    /// Other names of models, which end with the server, and what they name.
    pub fn copies(&self) -> BTreeMap<String, String> {
        self.lock().clone()
    }

    /// The model of another name.
    pub fn copied(&self, name: &str) -> Option<String> {
        self.lock().get(&tagged(name)).cloned()
    }

    /// Gives `model` another name; `false` if there are `max` already.
    pub fn add_copy(&self, name: &str, model: String, max: usize) -> bool {
        let mut copies = self.lock();
        let name = tagged(name);
        if copies.len() >= max && !copies.contains_key(&name) {
            return false;
        }
        copies.insert(name, model);
        true
    }

    /// Forgets another name; `false` if it is none.
    pub fn forget_copy(&self, name: &str) -> bool {
        self.lock().remove(&tagged(name)).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether clients may fetch and delete models: where anyone can reach the server, nobody may.
    pub fn check_manages(&self) -> Result<(), ApiError> {
        match self.manages {
            true => Ok(()),
            false => {
                let message = "models are pulled and deleted on this machine, or with one of the server's keys (--api-key)";
                Err(ApiError::status(StatusCode::FORBIDDEN, message))
            }
        }
    }
}

pub(super) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
