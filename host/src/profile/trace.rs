//! A profile in the format of Chrome's tracing, which Perfetto opens.

use super::{Rated, StepProfile};
use serde_json::{Value, json};

/// The steps as rows of a trace: operations end to end, each as long as its median.
///
/// Source: "Trace Event Format", complete events (`ph` `X`), times in microseconds.
pub fn chrome_trace(device: &str, steps: &[StepProfile]) -> Value {
    let mut events = vec![json!({
        "ph": "M", "name": "process_name", "pid": 0, "args": { "name": device },
    })];
    for (row, step) in steps.iter().enumerate() {
        events.push(json!({
            "ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": { "name": step.name },
        }));
        let mut start_us = 0.0;
        for op in &step.ops {
            events.push(json!({
                "ph": "X",
                "name": format!("{} {}", op.op, op.subject),
                "cat": op.op,
                "pid": 0,
                "tid": row,
                "ts": start_us,
                "dur": op.us,
                "args": {
                    "layer": op.layer,
                    "bytes": op.bytes(),
                    "flops": op.flops,
                    "spread_us": op.spread_us,
                },
            }));
            start_us += op.us;
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}
