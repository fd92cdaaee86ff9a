//! Rows that were recorded as JSON, and their comparison with those of a later run.

use serde::Serialize;
use serde_json::{Map, Value};

/// A row is slower where its time is above the baseline's by more than this share of it,
const MIN_SHARE: f64 = 0.02;
/// and by more than so many standard deviations of the difference.
const MIN_DEVIATIONS: f64 = 2.0;
/// A kernel's time is the median of nine: the least of nine normal numbers is so many deviations
/// below it.
const DEVIATIONS_TO_LEAST: f64 = 1.485;

/// What names a row: a kernel's operation, or a model's test.
const NAMES: [&str; 2] = ["op", "test"];
/// Keys that say where and with what a row was measured: rows are compared where all are equal.
const CONDITIONS: [&str; 7] =
    ["impl", "model", "dtype", "config", "device", "gpu", "batch_invariant"];
/// Keys of what was measured, and notes; every other key is of the operation and its shape, or of
/// the test.
#[rustfmt::skip]
const OTHERS: [&str; 23] = [
    "us", "min_us", "tflops", "gbs", "error", "commit", "version", "note", "driver", "clocks",
    "build_commit", "build_version", "model_size_bytes", "n_params", "n_prompt", "n_gen", "n_depth",
    "repetitions", "avg_us", "stddev_us", "avg_ts", "stddev_ts", "samples_us",
];

/// What was measured once.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    keys: Map<String, Value>,
    us: f64,
    /// An estimate of the standard deviation of `us`.
    deviation_us: f64,
}

/// Why a text holds no records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A line that is no JSON.
    #[error("line {line}: {source}")]
    Json {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A line that is not a row of a bench.
    #[error(
        "line {line}: a row has `op` and times above 0 in `us` and `min_us`, \
         or `test`, `avg_us` and `stddev_us`"
    )]
    NoRow {
        /// Number of the line, from 1.
        line: usize,
    },
    /// There is no line.
    #[error("there is no row")]
    Empty,
}

/// How a row is beside its baseline.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Time of the row over the baseline's: within the spread of both, or faster.
    Same(f64),
    /// Time of the row over the baseline's: slower beyond the spread of both.
    Slower(f64),
    /// Measured under other conditions, those of the baseline being so: not compared.
    Other(String),
    /// The baseline has no such row.
    New,
    /// The baseline alone has it.
    Missing,
}

impl Record {
    /// The record of a row; `None` if it has no name or no time.
    pub fn of(row: &impl Serialize) -> Option<Self> {
        Self::from_value(&serde_json::to_value(row).ok()?)
    }

    fn from_value(value: &Value) -> Option<Self> {
        let mut keys = value.as_object()?.clone();
        NAMES.iter().find_map(|&name| keys.get(name)?.as_str())?;
        let time = |name: &str| keys.get(name)?.as_f64().filter(|us| us.is_finite() && *us >= 0.0);
        let (us, deviation_us) = match time("us") {
            Some(us) => {
                let min_us = time("min_us").filter(|&min_us| min_us > 0.0)?;
                (us, (us - min_us).max(0.0) / DEVIATIONS_TO_LEAST)
            }
            None => (time("avg_us")?, time("stddev_us")?),
        };
        keys.retain(|key, _| !OTHERS.contains(&key.as_str()));
        // The target that some rows have there is another key.
        if let Some(Value::String(gpu)) = keys.get_mut("gpu") {
            gpu.truncate(gpu.find(" (sm_").unwrap_or(gpu.len()));
        }
        (us > 0.0).then_some(Record { keys, us, deviation_us })
    }

    /// Reads JSON lines, one row each. Those of other programs, which have no `min_us`, are left
    /// out.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn parse_lines(text: &str) -> Result<Vec<Self>, RecordError> {
        let lines = (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty());
        let rows = lines.map(|(line, text)| {
            let value =
                serde_json::from_str(text).map_err(|source| RecordError::Json { line, source })?;
            match Self::from_value(&value) {
                None if is_of_peer(&value) => Ok(None),
                None => Err(RecordError::NoRow { line }),
                row => Ok(row),
            }
        });
        let rows = rows.filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
        if rows.is_empty() { Err(RecordError::Empty) } else { Ok(rows) }
    }

    /// The operation and its shape, or the test, in one line.
    pub fn name(&self) -> String {
        let name = NAMES.iter().find_map(|&name| self.keys.get(name)?.as_str());
        let is_size = |key: &str| is_subject(key) && !NAMES.contains(&key);
        let sizes = self.keys.iter().filter(|(key, _)| is_size(key));
        let sizes = sizes.map(|(key, value)| format!(" {key}={value}"));
        name.unwrap_or_default().to_owned() + &sizes.collect::<String>()
    }

    fn has_subject_of(&self, other: &Self) -> bool {
        let of_one = |a: &Self, b: &Self| {
            a.keys.iter().all(|(key, value)| !is_subject(key) || b.keys.get(key) == Some(value))
        };
        of_one(self, other) && of_one(other, self)
    }

    /// The conditions of `other` that are not this one's; empty if all are equal. Early
    /// rows have no `config`.
    fn differences(&self, other: &Self) -> String {
        let differ = CONDITIONS.iter().filter(|&&key| match other.keys.get(key) {
            None if key == "config" => false,
            value => value != self.keys.get(key),
        });
        let named = differ.map(|&key| match other.keys.get(key) {
            Some(value) => format!("{key} {value}"),
            None => format!("no {key}"),
        });
        named.collect::<Vec<_>>().join(", ")
    }

    fn beside(&self, baseline: &Self) -> Verdict {
        let ratio = self.us / baseline.us;
        let spread_us = MIN_DEVIATIONS * self.deviation_us.hypot(baseline.deviation_us);
        let is_slower = self.us - baseline.us > spread_us.max(MIN_SHARE * baseline.us);
        if is_slower { Verdict::Slower(ratio) } else { Verdict::Same(ratio) }
    }
}

fn is_subject(key: &str) -> bool {
    !CONDITIONS.contains(&key)
}

/// Whether a row is of another program's kernels.
fn is_of_peer(row: &Value) -> bool {
    row.get("impl").and_then(Value::as_str).is_some_and(|name| name != "halfwarp")
}

/// Compares `rows` with those of `baseline`: what became of each row, then what only the baseline
/// has.
///
/// A row is slower where its time exceeds the baseline's by more than 2 % and by more than twice
/// the standard deviation of the difference. A kernel's time is the median, and its deviation is
/// estimated from that and the least; a model's time is the mean, and its deviation that of the
/// repetitions.
pub fn compare(rows: &[Record], baseline: &[Record]) -> Vec<(String, Verdict)> {
    let verdict = |row: &Record| {
        let alike: Vec<_> = baseline.iter().filter(|other| row.has_subject_of(other)).collect();
        match alike.iter().find(|other| row.differences(other).is_empty()) {
            Some(other) => row.beside(other),
            None => match alike.first() {
                Some(other) => Verdict::Other(row.differences(other)),
                None => Verdict::New,
            },
        }
    };
    let is_missing = |other: &&Record| !rows.iter().any(|row| row.has_subject_of(other));
    let missing = baseline.iter().filter(is_missing);
    let compared = rows.iter().map(|row| (row.name(), verdict(row)));
    compared.chain(missing.map(|other| (other.name(), Verdict::Missing))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(m: usize, dtype: &str, us: f64, min_us: f64) -> String {
        format!(
            r#"{{"op": "gemm", "impl": "halfwarp", "dtype": "{dtype}", "m": {m}, "us": {us},
                "min_us": {min_us}, "tflops": 1.0, "gpu": "NVIDIA H200"}}"#
        )
        .replace('\n', " ")
    }

    fn verdict(rows: &str, baseline: &str) -> Vec<Verdict> {
        let parse = |text: &str| Record::parse_lines(text).unwrap();
        compare(&parse(rows), &parse(baseline)).into_iter().map(|(_, verdict)| verdict).collect()
    }

    #[test]
    fn a_slow_down_beyond_the_spread_is_caught() {
        let beside =
            |us, min_us| verdict(&row(1, "f16", us, min_us), &row(1, "f16", 100.0, 97.0)).remove(0);
        assert_eq!(beside(120.0, 117.0), Verdict::Slower(1.2));
        // The deviations are 2.02 us each, twice that of the difference 5.7 us.
        assert_eq!(beside(105.0, 102.0), Verdict::Same(1.05));
        assert_eq!(beside(107.0, 104.0), Verdict::Slower(1.07));
        assert_eq!(beside(120.0, 60.0), Verdict::Same(1.2));
        assert_eq!(beside(50.0, 50.0), Verdict::Same(0.5));
        let exact = |us| verdict(&row(1, "f16", us, us), &row(1, "f16", 100.0, 100.0)).remove(0);
        assert_eq!((exact(101.0), exact(103.0)), (Verdict::Same(1.01), Verdict::Slower(1.03)));
    }

    #[test]
    fn what_has_no_counterpart_is_named() {
        let rows = [row(1, "f16", 9.0, 9.0), row(2, "f16", 9.0, 9.0)].join("\n");
        let baseline = [row(1, "f32", 1.0, 1.0), row(3, "f16", 1.0, 1.0)].join("\n");
        let other = Verdict::Other("dtype \"f32\"".to_owned());
        assert_eq!(verdict(&rows, &baseline), [other, Verdict::New, Verdict::Missing]);
        let record = Record::parse_lines(&rows).unwrap().remove(1);
        assert_eq!(record.name(), "gemm m=2");
    }

    #[test]
    fn recorded_rows_of_peers_are_left_out() {
        let peer = r#"{"op": "gemm", "impl": "cublas", "m": 2, "us": 3.0}"#;
        let today = row(2, "f16", 9.0, 9.0)
            .replace("NVIDIA H200", "NVIDIA H200 (sm_90a)")
            .replace("\"gpu\"", "\"config\": \"sm_90a\", \"gpu\"");
        let recorded = [peer, &row(2, "f16", 9.0, 9.0)].join("\n");
        assert_eq!(verdict(&today, &recorded), [Verdict::Same(1.0)]);
        let other = recorded.replace("H200", "H100");
        let differs = Verdict::Other("gpu \"NVIDIA H100\"".to_owned());
        assert_eq!(verdict(&today, &other), [differs]);
        assert!(matches!(Record::parse_lines(peer), Err(RecordError::Empty)));
    }

    fn test_row(test: &str, sequences: usize, device: &str, avg_us: f64, stddev_us: f64) -> String {
        format!(
            r#"{{"build_commit": "abc", "model": "M", "model_size_bytes": 8, "n_params": 4,
                "device": "{device}", "gpu": null, "dtype": "f16", "batch_invariant": false,
                "test": "{test}", "n_prompt": 512, "n_gen": 0, "n_depth": 0,
                "sequences": {sequences}, "repetitions": 5, "avg_us": {avg_us},
                "stddev_us": {stddev_us}, "avg_ts": 1, "stddev_ts": 1, "samples_us": [1, {avg_us}]}}"#
        )
        .replace('\n', " ")
    }

    #[test]
    fn a_slow_down_of_a_model_is_caught() {
        let beside = |avg_us, stddev_us| {
            let baseline = test_row("pp512", 1, "CPU", 1000.0, 30.0);
            verdict(&test_row("pp512", 1, "CPU", avg_us, stddev_us), &baseline).remove(0)
        };
        assert_eq!(beside(1200.0, 30.0), Verdict::Slower(1.2));
        // The deviation of the difference is 50 us.
        assert_eq!(beside(1099.0, 40.0), Verdict::Same(1.099));
        assert_eq!(beside(1101.0, 40.0), Verdict::Slower(1.101));
        assert_eq!(beside(900.0, 0.0), Verdict::Same(0.9));
    }

    #[test]
    fn tests_are_compared_under_equal_conditions() {
        let rows = [
            test_row("pp512", 1, "CPU", 1.0, 0.0),
            test_row("pp512", 8, "CPU", 1.0, 0.0),
            test_row("tg128 @ d64", 1, "CPU", 1.0, 0.0),
        ];
        let baseline = [
            test_row("pp512", 1, "GPU", 1.0, 0.0),
            test_row("pp512", 8, "CPU", 1.0, 0.0),
            test_row("tg128", 1, "CPU", 1.0, 0.0),
        ];
        let other = Verdict::Other("device \"GPU\"".to_owned());
        let expected = [other, Verdict::Same(1.0), Verdict::New, Verdict::Missing];
        assert_eq!(verdict(&rows.join("\n"), &baseline.join("\n")), expected);
        let record = Record::parse_lines(&rows[2]).unwrap().remove(0);
        assert_eq!(record.name(), "tg128 @ d64 sequences=1");
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let error = |text: &str| Record::parse_lines(text).unwrap_err().to_string();
        assert_eq!(error("\n"), "there is no row");
        assert!(error("{}").starts_with("line 1: a row has `op`"));
        assert!(error(&format!("{}\nno", row(1, "f16", 1.0, 1.0))).starts_with("line 2: "));
        assert!(error(&row(1, "f16", 0.0, 1.0)).contains("above 0"));
    }
}
