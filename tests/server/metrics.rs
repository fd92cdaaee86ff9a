//! `/metrics`.

use crate::client::Client;
use serde_json::json;

pub fn metrics_count(client: &Client) {
    let body =
        json!({ "prompt": [1, 2, 3], "temperature": 0, "max_tokens": 5, "ignore_eos": true });
    let names = ["prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total"];
    let values = || names.map(|name| client.metric(&format!("halfwarp:{name}")));
    let before = values();
    client.ok("/v1/completions", &body);
    let after = values();
    let added: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(added, [3.0, 5.0, 3.0]);
    let text = client.get("/metrics").text;
    for name in [
        "num_requests_running{",
        "num_requests_waiting{",
        "kv_cache_usage_perc{",
        "prefix_cache_hits_total{",
        "num_preemptions_total{",
        "request_success_total{",
        "time_to_first_token_seconds_bucket{",
        "inter_token_latency_seconds_count{",
        "e2e_request_latency_seconds_sum{",
    ] {
        assert!(text.contains(&format!("\nhalfwarp:{name}")), "{name} in {text}");
    }
    assert!(text.contains("finished_reason=\"length\"") && text.ends_with("# EOF\n"), "{text}");
}
