//! A server of many models with the engines of real ones.

use super::engines::Engines;
use super::keep_alive::KeepAlive;
use super::room::{Loader, Room};
use super::table::{Cancel, Limits, LoadError, Policy};
use super::*;
use crate::exec::Device;
use crate::server::ServerOptions;
use crate::server::common::Common;
use std::sync::{Arc, Weak};

const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/");
const STAYS: Policy = Policy { is_pinned: false, keep_alive: KeepAlive::Always };

pub fn offer(name: &str, path: &str) -> Offer {
    Offer {
        aliases: Vec::new(),
        path: path.into(),
        bytes: 0,
        settings: ModelSettings { name: name.to_owned(), ..ModelSettings::default() },
        overrides: ModelOverrides::default(),
        engine: EngineOptions {
            device: Device::Cpu,
            context: Some(64),
            ..EngineOptions::default()
        },
        is_pinned: false,
        is_preloaded: false,
        keep_alive: None,
    }
}

/// A room with the goldens of these names.
fn room(names: &[&str], limits: Limits) -> Arc<Room<Engines>> {
    let common = Common::new(ServerOptions::default(), false).unwrap();
    let engines = Engines::new(Arc::new(common));
    let offers = names.iter().map(|name| Arc::new(offer(name, &format!("{GOLDENS}{name}"))));
    engines.set_offers(offers.collect());
    Room::new(engines, limits)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn an_unloaded_engine_leaves_nothing() {
    let names = ["llama-gqa", "qwen3"];
    let room = room(&names, Limits { max_models: Some(1), room_bytes: None });
    let mut apps: Vec<Weak<crate::server::app::App>> = Vec::new();
    let mut models: Vec<Weak<crate::Model>> = Vec::new();
    block_on(async {
        for turn in 0..20 {
            let lease = room.lease(names[turn % 2], STAYS).await.unwrap();
            apps.push(Arc::downgrade(&lease.model.app));
            models.push(Arc::downgrade(&lease.model.app.model));
        }
    });
    assert_eq!(room.models().len(), 1);
    assert!(room.unload("qwen3"));
    while room.num_threads() > 0 {
        std::thread::yield_now();
    }
    // Each load made its own, and all of them are gone, with their engine's threads.
    assert!(apps.iter().all(|app| app.strong_count() == 0));
    assert!(models.iter().all(|model| model.strong_count() == 0));
}

#[test]
fn a_load_that_is_cancelled_leaves_nothing() {
    let room = room(&["llama-gqa"], Limits::default());
    let engines = room.loader();
    let load = |cancel: &Cancel| {
        let (opened, _) = engines.measure("llama-gqa", None).unwrap();
        let model = Arc::downgrade(&opened.model);
        (engines.load("llama-gqa", opened, cancel), model)
    };
    let (loaded, model) = load(&Cancel::default());
    assert!(loaded.is_ok() && model.strong_count() > 0);
    let cancel = Cancel::default();
    cancel.set();
    let (cancelled, model) = load(&cancel);
    let Err(LoadError::Failed(said)) = cancelled else { panic!("it was loaded") };
    assert!(said.ends_with(&crate::weights::BrokenOff.to_string()), "{said}");
    // The engine's thread ends after it has told of the error.
    while model.strong_count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn what_does_not_fit_says_what_would() {
    let mut offer = offer("tiny", &format!("{GOLDENS}llama-gqa"));
    // In another type it would fit.
    offer.engine.precision = crate::plan::Precision::F32.into();
    offer.engine.context = Some(256);
    let model = crate::Model::open(&offer.path).unwrap();
    let engine = crate::Engine::new(Arc::new(model), offer.engine.clone()).unwrap();
    let bytes = engine.memory_budget().total_bytes();
    let measured = crate::Engine::measure(engine.model(), &offer.engine, None).unwrap();
    assert_eq!(measured.total_bytes(), bytes);
    block_on(async {
        let room = |room_bytes| {
            let room = room(&[], Limits { max_models: None, room_bytes: Some(room_bytes) });
            room.loader().set_offers(vec![Arc::new(offer.clone())]);
            room
        };
        assert!(room(bytes).lease("tiny", STAYS).await.is_ok());
        let refused = room(bytes - 1).lease("tiny", STAYS).await.err();
        let Some(LoadError::NoRoom(said)) = refused else { panic!("{refused:?}") };
        assert!(said.contains("a context of") && said.contains("would fit"), "{said}");
    });
}

#[test]
fn a_model_that_is_no_model_fails_with_its_reason() {
    let room = room(&["nothing-here"], Limits::default());
    let failed = block_on(room.lease("nothing-here", STAYS)).err();
    let Some(LoadError::Failed(said)) = failed else { panic!("{failed:?}") };
    assert!(said.contains("the model nothing-here cannot be loaded"), "{said}");
    let failed = block_on(room.lease("never-listed", STAYS)).err();
    assert!(matches!(failed, Some(LoadError::Failed(_))), "{failed:?}");
}
