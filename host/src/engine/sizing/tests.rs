//! What fits, and that it is what the executors take.

use super::*;
use crate::Engine;
use crate::exec::Device;
use crate::plan::{PlanOutput, Precision};
use std::sync::{Arc, LazyLock};

/// A context of 512 at most.
static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
    Arc::new(Model::open(golden).unwrap())
});

const LONGEST: usize = 512;

/// Steps of 16 tokens, so that all of a context's pages can be of use.
fn options(device: Device) -> EngineOptions {
    let precision = Precision::F32.into();
    EngineOptions { device, precision, max_tokens: Some(16), ..EngineOptions::default() }
}

/// The size where a model may take `room_bytes`.
fn sized(
    options: &EngineOptions,
    room_bytes: usize,
    least_context: usize,
) -> Result<Size, EngineError> {
    let memory = MemoryInfo {
        device: "test".to_owned(),
        total_bytes: usize::MAX,
        free_bytes: room_bytes,
        context_bytes: 0,
    };
    let numerics = options.numerics(Precision::F32);
    let (max_tokens, memory) = (options.max_tokens.unwrap(), Some(memory));
    Sizing { model: &MODEL, options, numerics, max_tokens, memory }.size(least_context)
}

fn total_bytes(options: &EngineOptions) -> usize {
    sized(options, usize::MAX, PAGE_SIZE).unwrap().budget.total_bytes()
}

fn fits(error: EngineError) -> Fits {
    match error {
        EngineError::Memory(error) => error.fits,
        other => panic!("{other}"),
    }
}

fn devices() -> Vec<Device> {
    let emulated = cfg!(feature = "emulator").then_some(Device::Emulated);
    [Device::Cpu].into_iter().chain(emulated).collect()
}

/// An engine with everything allocated that any step needs.
fn prepared(options: &EngineOptions) -> Engine {
    let mut engine = Engine::new(MODEL.clone(), options.clone()).unwrap();
    for bounds in engine.buckets.all() {
        engine.prepare(PlanOutput::Logits, bounds).unwrap();
    }
    engine
}

#[test]
fn a_budget_is_what_an_executor_takes() {
    for device in devices() {
        for precision in [Precision::F32, Precision::F16] {
            for (max_seqs, batch_invariant) in [(1, false), (3, false), (3, true)] {
                let options = EngineOptions {
                    precision: precision.into(),
                    context: Some(200),
                    max_seqs,
                    batch_invariant,
                    max_tokens: Some(70),
                    ..options(device)
                };
                let engine = prepared(&options);
                let (budget, taken) = (engine.memory_budget(), engine.memory_use().unwrap());
                assert_eq!(budget.total_bytes(), taken.total_bytes(), "{options:?}");
                assert_eq!((budget.max_kv_len, budget.kv_positions), (200, 256 * max_seqs));
            }
        }
    }
}

/// What is said to fit does, in the executor's own count too, and a page more does not.
#[test]
fn a_context_that_is_said_to_fit_fits() {
    for (device, max_seqs) in devices().into_iter().flat_map(|device| [(device, 1), (device, 3)]) {
        let with = |context| EngineOptions { context: Some(context), max_seqs, ..options(device) };
        let [least, full] = [PAGE_SIZE, LONGEST].map(|context| total_bytes(&with(context)));
        for room in (least - 1..full).step_by((full - least) / 6) {
            match fits(sized(&with(LONGEST), room, 0).unwrap_err()) {
                Fits::Nothing => assert!(room < least, "{room} of {least}"),
                Fits::Context(context) => {
                    assert!(sized(&with(context), room, 0).is_ok(), "{context} in {room}");
                    let taken = prepared(&with(context)).memory_use().unwrap();
                    assert!(taken.total_bytes() <= room, "{context} in {room}");
                    let longer = context + PAGE_SIZE;
                    assert!(sized(&with(longer), room, 0).is_err(), "{longer} in {room}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_cache_that_is_said_to_fit_fits() {
    let with = |context, positions| {
        let cache_positions = Some(positions);
        EngineOptions { context: Some(context), cache_positions, ..options(Device::Cpu) }
    };
    let [least, full] = [64, 2048].map(|positions| total_bytes(&with(64, positions)));
    for context in [64, 300] {
        for room in (least..full).step_by((full - least) / 20) {
            let size = |context, positions| sized(&with(context, positions), room, 0);
            match size(context, 4096).map_err(fits) {
                Err(Fits::Cache(len)) => {
                    assert!(size(context, len).is_ok() && len >= context, "{len}");
                    assert!(size(context, len + 1).is_err(), "{len}");
                }
                Err(Fits::ContextAndCache(len)) => {
                    assert!(size(context, len).is_err() && len < context, "{len}");
                    assert!(size(len, len).is_ok(), "{len}");
                    assert!(size(len + PAGE_SIZE, len + PAGE_SIZE).is_err(), "{len}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn the_cache_takes_what_is_free_up_to_full_contexts() {
    for max_seqs in [1, 4] {
        let open = EngineOptions { max_seqs, ..options(Device::Cpu) };
        let size = |room| sized(&open, room, PAGE_SIZE);
        let full = size(usize::MAX).unwrap();
        assert_eq!(full.buckets.context, LONGEST);
        assert_eq!(full.cache.num_pages * PAGE_SIZE, max_seqs * LONGEST);
        let full_bytes = full.budget.total_bytes();
        assert_eq!(size(full_bytes).unwrap(), full);

        let mut last = full.cache.num_pages;
        for less in 1..=6 {
            let room = full_bytes - less * full.budget.kv_bytes / 8;
            let Size { buckets, cache: CacheSize { num_pages, .. }, budget } = size(room).unwrap();
            assert!(budget.total_bytes() <= room && num_pages < last, "{num_pages} pages");
            // All of the cache can be one sequence's, if the model takes so many.
            assert_eq!(buckets.context, LONGEST.min(num_pages * PAGE_SIZE));
            let page_bytes = full.budget.kv_bytes / full.cache.num_pages;
            assert!(budget.total_bytes() + 2 * page_bytes > room, "{num_pages} pages in {room}");
            last = num_pages;
        }
        let too_short = sized(&open, full_bytes - full.budget.kv_bytes * 7 / 8, 256);
        assert_eq!(max_seqs == 1, too_short.is_err());
    }
    let nothing = sized(&options(Device::Cpu), 1000, PAGE_SIZE).unwrap_err();
    assert_eq!(fits(nothing), Fits::Nothing);
}

#[test]
fn a_longer_context_takes_more() {
    for device in devices() {
        for max_seqs in [1, 3] {
            let bytes = |context| {
                let context = Some(context);
                total_bytes(&EngineOptions { context, max_seqs, ..options(device) })
            };
            let contexts = [1, 63, 64, 65, 100, 128, 200, 300, 400, 511, 512];
            assert!(contexts.map(bytes).is_sorted(), "{:?}", contexts.map(bytes));
            assert!(bytes(512) > bytes(256));
        }
    }
}

#[test]
fn a_share_is_above_0_and_at_most_1() {
    for (share, is_one) in
        [(0.0, false), (-0.5, false), (1.01, false), (f64::NAN, false), (1.0, true), (0.5, true)]
    {
        let gpu_memory_utilization = share;
        let options = EngineOptions { gpu_memory_utilization, ..options(Device::Cpu) };
        match Engine::new(MODEL.clone(), options).err() {
            Some(EngineError::Utilization { .. }) => assert!(!is_one, "{share}"),
            other => assert!(is_one && other.is_none(), "{share}: {other:?}"),
        }
    }
}
