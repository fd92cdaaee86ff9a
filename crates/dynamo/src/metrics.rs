//! What Dynamo and Prometheus are told of the engine.

use crate::kv_events::DP_RANK;
use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};
use halfwarp::{EngineHandle, engine::ServiceStats};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// How often the load is looked at. The router counts its own requests meanwhile.
const PERIOD: Duration = Duration::from_millis(200);

/// Publishes the engine's load whenever it has changed, until the engine ends.
pub async fn publish_load(engine: EngineHandle, publisher: Arc<SnapshotPublisher>) {
    let mut last = None;
    while engine.check_running().is_ok() {
        let snapshot = snapshot(&engine.stats());
        if last != Some(snapshot) {
            publisher.publish(DP_RANK, snapshot);
            last = Some(snapshot);
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn snapshot(stats: &ServiceStats) -> ComponentSnapshot {
    let hit_rate = stats.prefix_hits as f32 / stats.prefix_queries as f32;
    ComponentSnapshot {
        kv_used_blocks: stats.num_used_pages as u64,
        kv_total_blocks: stats.num_pages as u64,
        gpu_cache_usage: usage(stats) as f32,
        kv_cache_hit_rate: (stats.prefix_queries > 0).then_some(hit_rate),
        dp_rank: DP_RANK,
    }
}

fn usage(stats: &ServiceStats) -> f64 {
    stats.num_used_pages as f64 / stats.num_pages.max(1) as f64
}

/// In Prometheus' text format, under the names that `halfwarp serve` has for the same values.
pub fn exposition(model_name: &str, stats: &ServiceStats) -> String {
    let model_name = model_name.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let values = [
        ("num_requests_running", "gauge", stats.num_running as f64),
        ("num_requests_waiting", "gauge", stats.num_waiting as f64),
        ("kv_cache_usage_perc", "gauge", usage(stats)),
        ("prefix_cache_queries_total", "counter", stats.prefix_queries as f64),
        ("prefix_cache_hits_total", "counter", stats.prefix_hits as f64),
        ("num_preemptions_total", "counter", stats.num_preemptions as f64),
        ("prompt_tokens_total", "counter", stats.prompt_tokens as f64),
        ("generation_tokens_total", "counter", stats.generation_tokens as f64),
    ];
    values.into_iter().fold(String::new(), |mut text, (name, kind, value)| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "# TYPE halfwarp:{name} {kind}");
        let _ = writeln!(text, "halfwarp:{name}{{model_name=\"{model_name}\"}} {value}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> ServiceStats {
        let mut stats = ServiceStats::default();
        (stats.num_running, stats.num_waiting) = (3, 1);
        (stats.num_used_pages, stats.num_pages) = (8, 32);
        stats
    }

    #[test]
    fn a_hit_rate_of_nothing_is_none() {
        let mut stats = stats();
        let of = |stats: &ServiceStats| {
            let ComponentSnapshot { kv_used_blocks, gpu_cache_usage, kv_cache_hit_rate, .. } =
                snapshot(stats);
            (kv_used_blocks, gpu_cache_usage, kv_cache_hit_rate)
        };
        assert_eq!(of(&stats), (8, 0.25, None));
        (stats.prefix_queries, stats.prefix_hits) = (200, 50);
        assert_eq!(of(&stats), (8, 0.25, Some(0.25)));
    }

    #[test]
    fn labels_are_escaped() {
        let text = exposition("a\"b\\c\nd", &stats());
        let line = r#"halfwarp:num_requests_running{model_name="a\"b\\c\nd"} 3"#;
        assert!(text.lines().any(|at| at == line), "{text}");
        assert!(text.contains("# TYPE halfwarp:prompt_tokens_total counter\n"), "{text}");
    }
}
