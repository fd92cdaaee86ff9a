//! What Prometheus scrapes, under vLLM's names with the prefix `halfwarp:`.
//!
//! Source: <https://docs.vllm.ai/en/latest/design/metrics.html>.

use crate::engine::{EngineHandle, ServiceStats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bounds of times to the first token and of whole requests, in seconds.
const REQUEST_BOUNDS: [f64; 14] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Bounds of times from token to token, in seconds.
const TOKEN_BOUNDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5];
/// Bounds of times of a grammar's mask, in seconds.
const MASK_BOUNDS: [f64; 9] = [1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 1e-2, 0.1, 1.0];

/// The labels of what a model counts: its name.
type ModelLabels = [(&'static str, String); 1];
/// With the reason why requests ended.
type FinishLabels = [(&'static str, String); 2];
type HistogramFamily = Family<ModelLabels, Histogram, fn() -> Histogram>;

/// The label of a model's name.
const MODEL: &str = "model_name";

/// The metrics of a server, by model.
pub(super) struct Metrics {
    registry: Registry,
    engines: Arc<Engines>,
    finished: Family<FinishLabels, Counter>,
    neutralised_messages: Family<ModelLabels, Counter>,
    time_to_first_token: HistogramFamily,
    inter_token_latency: HistogramFamily,
    request_latency: HistogramFamily,
    grammar_mask: HistogramFamily,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let engines = Arc::new(Engines::default());
        registry.register_collector(Box::new(EngineCollector(Arc::clone(&engines))));
        let finished = Family::default();
        registry.register(
            "halfwarp:request_success",
            "Requests that ended, by reason",
            Family::clone(&finished),
        );
        let neutralised_messages = Family::default();
        registry.register(
            "halfwarp:neutralised_messages",
            "Messages that spell control tokens out, which reach the model as text",
            Family::clone(&neutralised_messages),
        );
        let mut histogram = |name, help, new: fn() -> Histogram| {
            let family = HistogramFamily::new_with_constructor(new);
            registry.register(name, help, family.clone());
            family
        };
        let time_to_first_token = histogram(
            "halfwarp:time_to_first_token_seconds",
            "Time from a request to its first token",
            || Histogram::new(REQUEST_BOUNDS),
        );
        let inter_token_latency = histogram(
            "halfwarp:inter_token_latency_seconds",
            "Time from a token to the next",
            || Histogram::new(TOKEN_BOUNDS),
        );
        let request_latency = histogram(
            "halfwarp:e2e_request_latency_seconds",
            "Time from a request to its end",
            || Histogram::new(REQUEST_BOUNDS),
        );
        let grammar_mask = histogram(
            "halfwarp:grammar_mask_seconds",
            "Time to find the tokens that a grammar allows next",
            || Histogram::new(MASK_BOUNDS),
        );
        Metrics {
            registry,
            engines,
            finished,
            neutralised_messages,
            time_to_first_token,
            inter_token_latency,
            request_latency,
            grammar_mask,
        }
    }
}

impl Metrics {
    /// The metrics of a model, whose engine counts from now on, once it is there.
    pub fn model(&self, name: &str, engine: Arc<OnceLock<EngineHandle>>) -> ModelMetrics {
        self.engines.lock().entry(name.to_owned()).or_default().engine = Some(engine);
        let labels = [(MODEL, name.to_owned())];
        ModelMetrics {
            name: name.to_owned(),
            finished: Family::clone(&self.finished),
            neutralised_messages: self.neutralised_messages.get_or_create_owned(&labels),
            time_to_first_token: self.time_to_first_token.get_or_create_owned(&labels),
            inter_token_latency: self.inter_token_latency.get_or_create_owned(&labels),
            request_latency: self.request_latency.get_or_create_owned(&labels),
            grammar_mask: self.grammar_mask.get_or_create_owned(&labels),
        }
    }

    /// The engine of a model has ended: what it counted stays, and nothing else of it.
    pub fn unloaded(&self, name: &str) {
        if let Some(slot) = self.engines.lock().get_mut(name) {
            slot.past = slot.stats();
            slot.engine = None;
        }
    }

    /// OpenMetrics' text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

/// The metrics of one model.
pub(super) struct ModelMetrics {
    name: String,
    finished: Family<FinishLabels, Counter>,
    pub neutralised_messages: Counter,
    pub time_to_first_token: Histogram,
    pub inter_token_latency: Histogram,
    pub request_latency: Histogram,
    pub grammar_mask: Histogram,
}

impl ModelMetrics {
    /// Counts a request that ended by `reason`.
    pub fn finished(&self, reason: &str) {
        let labels = [(MODEL, self.name.clone()), ("finished_reason", reason.to_owned())];
        self.finished.get_or_create(&labels).inc();
    }
}

/// The engines of all models that were loaded, by name.
#[derive(Default)]
struct Engines(Mutex<BTreeMap<String, EngineSlot>>);

#[derive(Default)]
struct EngineSlot {
    /// None while it is not loaded.
    engine: Option<Arc<OnceLock<EngineHandle>>>,
    /// What earlier engines of the model counted.
    past: ServiceStats,
}

impl Engines {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, EngineSlot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EngineSlot {
    /// What all engines of the model have counted.
    fn stats(&self) -> ServiceStats {
        let engine = self.engine.as_ref().and_then(|engine| engine.get());
        let (past, stats) = (self.past, engine.map(EngineHandle::stats).unwrap_or_default());
        ServiceStats {
            prefix_queries: past.prefix_queries + stats.prefix_queries,
            prefix_hits: past.prefix_hits + stats.prefix_hits,
            num_preemptions: past.num_preemptions + stats.num_preemptions,
            prompt_tokens: past.prompt_tokens + stats.prompt_tokens,
            generation_tokens: past.generation_tokens + stats.generation_tokens,
            ..stats
        }
    }
}

/// The engines' own counts.
struct EngineCollector(Arc<Engines>);

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCollector")
    }
}

/// A gauge of an engine: its name, what it is, and its value.
type Gauge = (&'static str, &'static str, fn(&ServiceStats) -> f64);
type Count = (&'static str, &'static str, fn(&ServiceStats) -> u64);

const GAUGES: [Gauge; 3] = [
    ("halfwarp:num_requests_running", "Requests that run", |stats| stats.num_running as f64),
    ("halfwarp:num_requests_waiting", "Requests that wait", |stats| stats.num_waiting as f64),
    ("halfwarp:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1", |stats| {
        stats.num_used_pages as f64 / stats.num_pages.max(1) as f64
    }),
];
const COUNTS: [Count; 5] = [
    ("halfwarp:prefix_cache_queries", "Tokens of prompts looked up in the prefix cache", |stats| {
        stats.prefix_queries
    }),
    ("halfwarp:prefix_cache_hits", "Tokens of prompts found in the prefix cache", |stats| {
        stats.prefix_hits
    }),
    ("halfwarp:num_preemptions", "Times that a running request gave its place back", |stats| {
        stats.num_preemptions
    }),
    ("halfwarp:prompt_tokens", "Tokens of prompts", |stats| stats.prompt_tokens),
    ("halfwarp:generation_tokens", "Tokens generated", |stats| stats.generation_tokens),
];

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let engines = self.0.lock();
        let is_loaded = |slot: &EngineSlot| f64::from(u8::from(slot.engine.is_some()));
        let slots = engines
            .iter()
            .map(|(name, slot)| ([(MODEL, name.clone())], slot.stats(), is_loaded(slot)));
        let slots: Vec<(ModelLabels, ServiceStats, f64)> = slots.collect();
        let mut metric = |name, help, metric_type, value: &dyn Fn(usize) -> Value| {
            let mut encoder = encoder.encode_descriptor(name, help, None, metric_type)?;
            for (index, (labels, ..)) in slots.iter().enumerate() {
                let family = encoder.encode_family(labels)?;
                match value(index) {
                    Value::Gauge(value) => ConstGauge::new(value).encode(family)?,
                    Value::Count(value) => ConstCounter::new(value).encode(family)?,
                }
            }
            Ok(())
        };
        let loaded = |index: usize| Value::Gauge(slots[index].2);
        metric("halfwarp:model_loaded", "Whether the model is loaded", MetricType::Gauge, &loaded)?;
        for (name, help, of) in GAUGES {
            metric(name, help, MetricType::Gauge, &|index| Value::Gauge(of(&slots[index].1)))?;
        }
        for (name, help, of) in COUNTS {
            metric(name, help, MetricType::Counter, &|index| Value::Count(of(&slots[index].1)))?;
        }
        Ok(())
    }
}

enum Value {
    Gauge(f64),
    Count(u64),
}
