//! What Prometheus scrapes, under vLLM's names with the prefix `halfwarp:`.
//!
//! Source: <https://docs.vllm.ai/en/latest/design/metrics.html>.

use crate::engine::{EngineHandle, ServiceStats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Bounds of times to the first token and of whole requests, in seconds.
const REQUEST_BOUNDS: [f64; 14] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Bounds of times from token to token, in seconds.
const TOKEN_BOUNDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5];
/// Bounds of times of a grammar's mask, in seconds.
const MASK_BOUNDS: [f64; 9] = [1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 1e-2, 0.1, 1.0];

/// The metrics of a server.
pub(super) struct Metrics {
    registry: Registry,
    finished: Family<[(&'static str, &'static str); 1], Counter>,
    pub neutralised_messages: Counter,
    pub time_to_first_token: Histogram,
    pub inter_token_latency: Histogram,
    pub request_latency: Histogram,
    pub grammar_mask: Histogram,
}

impl Metrics {
    pub fn new(model_name: &str, engine: Arc<OnceLock<EngineHandle>>) -> Self {
        let label = ("model_name".into(), model_name.to_owned().into());
        let mut registry = Registry::with_labels([label].into_iter());
        registry.register_collector(Box::new(EngineCollector(engine)));
        let finished = Family::default();
        registry.register(
            "halfwarp:request_success",
            "Requests that ended, by reason",
            Family::clone(&finished),
        );
        let neutralised_messages = Counter::default();
        registry.register(
            "halfwarp:neutralised_messages",
            "Messages that spell control tokens out, which reach the model as text",
            neutralised_messages.clone(),
        );
        let mut histogram = |name, help, bounds: &[f64]| {
            let histogram = Histogram::new(bounds.iter().copied());
            registry.register(name, help, histogram.clone());
            histogram
        };
        let time_to_first_token = histogram(
            "halfwarp:time_to_first_token_seconds",
            "Time from a request to its first token",
            &REQUEST_BOUNDS,
        );
        let inter_token_latency = histogram(
            "halfwarp:inter_token_latency_seconds",
            "Time from a token to the next",
            &TOKEN_BOUNDS,
        );
        let request_latency = histogram(
            "halfwarp:e2e_request_latency_seconds",
            "Time from a request to its end",
            &REQUEST_BOUNDS,
        );
        let grammar_mask = histogram(
            "halfwarp:grammar_mask_seconds",
            "Time to find the tokens that a grammar allows next",
            &MASK_BOUNDS,
        );
        Metrics {
            registry,
            finished,
            neutralised_messages,
            time_to_first_token,
            inter_token_latency,
            request_latency,
            grammar_mask,
        }
    }

    /// Counts a request that ended by `reason`.
    pub fn finished(&self, reason: &'static str) {
        self.finished.get_or_create(&[("finished_reason", reason)]).inc();
    }

    /// OpenMetrics' text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

/// The engine's own counts; none while it is loading.
struct EngineCollector(Arc<OnceLock<EngineHandle>>);

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCollector")
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let stats = self.0.get().map(EngineHandle::stats).unwrap_or_default();
        let mut gauge = |name, help, value: f64| {
            let gauge = ConstGauge::new(value);
            let encoder = encoder.encode_descriptor(name, help, None, metric_type(&gauge))?;
            gauge.encode(encoder)
        };
        let ServiceStats { num_running, num_waiting, num_used_pages, num_pages, .. } = stats;
        let usage = num_used_pages as f64 / num_pages.max(1) as f64;
        gauge("halfwarp:num_requests_running", "Requests that run", num_running as f64)?;
        gauge("halfwarp:num_requests_waiting", "Requests that wait", num_waiting as f64)?;
        gauge("halfwarp:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1", usage)?;
        let mut counter = |name, help, value: u64| {
            let counter = ConstCounter::new(value);
            let encoder = encoder.encode_descriptor(name, help, None, metric_type(&counter))?;
            counter.encode(encoder)
        };
        counter(
            "halfwarp:prefix_cache_queries",
            "Tokens of prompts looked up in the prefix cache",
            stats.prefix_queries,
        )?;
        counter(
            "halfwarp:prefix_cache_hits",
            "Tokens of prompts found in the prefix cache",
            stats.prefix_hits,
        )?;
        counter(
            "halfwarp:num_preemptions",
            "Times that a running request gave its place back",
            stats.num_preemptions,
        )?;
        counter("halfwarp:prompt_tokens", "Tokens of prompts", stats.prompt_tokens)?;
        counter("halfwarp:generation_tokens", "Tokens generated", stats.generation_tokens)
    }
}

fn metric_type(metric: &impl EncodeMetric) -> prometheus_client::metrics::MetricType {
    metric.metric_type()
}
