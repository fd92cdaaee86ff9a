//! Opens models, and starts and ends their engines.

use super::Offer;
use super::room::Loader;
use super::table::{Cancel, LoadError};
use crate::Model;
use crate::engine::{Engine, EngineError, EngineService};
use crate::server::app::App;
use crate::server::common::Common;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// How much later than others a thread that loads gets a core: a tenth of its share
/// (setpriority(2)).
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Loads the models that are offered.
pub struct Engines {
    common: Arc<Common>,
    /// As they were listed last.
    offers: RwLock<Vec<Arc<Offer>>>,
}

/// A model with its engine.
pub struct Served {
    pub app: Arc<App>,
    /// None once it is unloaded.
    service: Mutex<Option<EngineService>>,
}

/// A model that has no engine yet.
pub struct Opened {
    offer: Arc<Offer>,
    pub model: Arc<Model>,
    bytes: usize,
}

impl Engines {
    pub fn new(common: Arc<Common>) -> Self {
        Engines { common, offers: RwLock::default() }
    }

    pub fn common(&self) -> &Arc<Common> {
        &self.common
    }

    pub fn offers(&self) -> Vec<Arc<Offer>> {
        self.offers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_offers(&self, offers: Vec<Arc<Offer>>) {
        *self.offers.write().unwrap_or_else(PoisonError::into_inner) = offers;
    }

    fn offer(&self, name: &str) -> Option<Arc<Offer>> {
        self.offers().into_iter().find(|offer| offer.settings.name == name)
    }
}

impl Served {
    /// Ends the engine when its requests have ended, and returns its memory.
    pub fn end(&self) {
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).take();
        service.into_iter().for_each(EngineService::shutdown);
    }
}

impl Loader for Engines {
    type Opened = Opened;
    type Loaded = Arc<Served>;

    fn measure(&self, name: &str, room_bytes: Option<usize>) -> Result<(Opened, usize), LoadError> {
        let offer = self.offer(name).ok_or_else(|| failed(name, "it is not there any more"))?;
        let model = Model::open_with(&offer.path, &offer.overrides);
        let model = Arc::new(model.map_err(|error| failed(name, error))?);
        let budget = Engine::measure(&model, &offer.engine, room_bytes);
        let bytes = budget.map_err(|error| refused(name, &error))?.total_bytes();
        Ok((Opened { offer, model, bytes }, bytes))
    }

    fn load(
        &self,
        name: &str,
        opened: Opened,
        cancel: &Cancel,
    ) -> Result<(Arc<Served>, usize), LoadError> {
        let Opened { offer, model, bytes } = opened;
        let open = {
            let (model, options, cancel) =
                (Arc::clone(&model), offer.engine.clone(), cancel.clone());
            let goes_on = move |_, _| match cancel.is_set() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            move || match options.device.cuda_ordinal().is_some() {
                true => Engine::with_progress(model, options, goes_on),
                false => apart(|| Engine::with_progress(model, options, goes_on)),
            }
        };
        let service = EngineService::start(self.common.options.service, open);
        let service = service.map_err(|error| {
            cpu_ops::host_memory::give_back();
            if cancel.is_set() {
                tracing::info!("{name} is not loaded: nobody waits for it any more");
            }
            refused(name, &error)
        })?;
        let engine = service.handle().clone();
        tracing::info!("loaded {name} with a context of {} tokens", engine.context());
        let app = App::chosen(&self.common, model, offer.settings.clone(), engine);
        Ok((Arc::new(Served { app: Arc::new(app), service: Mutex::new(Some(service)) }), bytes))
    }

    fn unload(&self, name: &str, served: Arc<Served>) {
        self.common.metrics.unloaded(name);
        served.end();
        drop(served);
        cpu_ops::host_memory::give_back();
        tracing::info!("unloaded {name}");
    }

    fn is_broken(&self, served: &Arc<Served>) -> bool {
        let engine = served.app.engine.get();
        let is_stopped = |error| matches!(error, EngineError::Stopped(_));
        engine.is_some_and(|engine| engine.check_running().is_err_and(is_stopped))
    }
}

/// Runs `load` with as many threads as there are, of its own, which make way for others: those of
/// models that run are not kept waiting.
fn apart(load: impl FnOnce() -> Result<Engine, EngineError> + Send) -> Result<Engine, EngineError> {
    let num_threads = rayon::current_num_threads();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(num_threads)
        .thread_name(|_| "load".to_owned())
        .start_handler(|_| make_way())
        .build();
    match pool {
        Ok(pool) => pool.install(load),
        Err(_) => load(),
    }
}

/// Lowers the priority of this thread.
fn make_way() {
    // Elsewhere that of the whole process would be lower.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICENESS);
}

fn failed(name: &str, error: impl std::fmt::Display) -> LoadError {
    LoadError::Failed(format!("the model {name} cannot be loaded: {error}").into())
}

fn refused(name: &str, error: &EngineError) -> LoadError {
    match error {
        EngineError::Memory(_) => LoadError::NoRoom(format!("the model {name}: {error}").into()),
        error => failed(name, error),
    }
}
