//! Rows of benches/record.

use crate::process;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;

/// The GPU whose rows are plotted.
const GPU: &str = "nvidia-h200";

/// A recorded figure.
#[derive(Clone)]
pub struct Row(Value);

impl Row {
    /// The number at `key`; NaN if there is none, which no plot shows.
    pub fn number(&self, key: &str) -> f64 {
        self.0[key].as_f64().unwrap_or(f64::NAN)
    }

    /// The text at `key`, or nothing.
    pub fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    /// Whether `key` is true.
    pub fn flag(&self, key: &str) -> bool {
        self.0[key].as_bool().unwrap_or_default()
    }
}

/// Our row, and the fastest of its peers'.
pub struct Pair {
    pub ours: Row,
    pub peer: Row,
}

/// The rows of one file.
pub fn rows(name: &str) -> Result<Vec<Row>> {
    let path = process::repository().join(format!("benches/record/{GPU}/{name}.jsonl"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rows = text.lines().map(|line| Ok(Row(serde_json::from_str(line)?)));
    rows.collect::<Result<_>>().with_context(|| path.display().to_string())
}

/// Each row of halfwarp beside the fastest of `peers` that has the same `keys`; one without a peer
/// is left out.
pub fn pairs(rows: &[Row], keys: &[&str], peers: &[&str]) -> Vec<Pair> {
    let ours = rows.iter().filter(|row| row.text("impl") == "halfwarp");
    let pairs = ours.filter_map(|ours| {
        let is_same = |row: &&Row| keys.iter().all(|&key| row.0[key] == ours.0[key]);
        let its = rows.iter().filter(|row| peers.contains(&row.text("impl"))).filter(is_same);
        let time = |row: &Row| row.number("us");
        let fastest = its.min_by(|a, b| time(a).total_cmp(&time(b)))?;
        Some(Pair { ours: ours.clone(), peer: fastest.clone() })
    });
    pairs.collect()
}

/// The geometric mean of positive numbers.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_beside_the_fastest_peer_of_its_shape() {
        let row = |name: &str, n: u32, us: f64| Row(json!({"impl": name, "n": n, "us": us}));
        let rows = [
            row("halfwarp", 1, 2.0),
            row("a", 1, 5.0),
            row("b", 1, 4.0),
            row("c", 1, 1.0),
            row("a", 2, 3.0),
            row("halfwarp", 3, 1.0),
        ];
        let pairs = pairs(&rows, &["n"], &["a", "b"]);
        assert_eq!(pairs.len(), 1);
        assert_eq!((pairs[0].ours.number("us"), pairs[0].peer.number("us")), (2.0, 4.0));
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
    }
}
