//! The rows of `halfwarp bench`, as llama-bench prints them.

use crate::cli::{failure::Failure, terminal};
use clap::ValueEnum;
use halfwarp::bench::end_to_end::{Row, Test};
use serde_json::Value;

/// How rows are printed.
#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    /// A table in Markdown
    Md,
    /// Comma-separated values of every field; those of repetitions are separated by spaces
    Csv,
    /// A JSON array of objects with every field
    Json,
    /// One such object per line
    Jsonl,
}

/// Prints rows.
pub struct Printer {
    format: Format,
    /// Whether there is a column for the number of sequences.
    has_sequences: bool,
    /// Characters of the longest name of a test.
    name_len: usize,
    rows: Vec<Row>,
}

/// Titles of a table.
const TITLES: [&str; 8] =
    ["model", "size", "params", "device", "dtype", "sequences", "test", "t/s"];
/// Which of them is what.
const SEQUENCES: usize = 5;
const TEST: usize = 6;
const RATE: usize = 7;
/// Characters of a rate with its deviation.
const RATE_LEN: usize = 19;

impl Printer {
    /// A printer of the rows of `tests`.
    pub fn new(format: Format, tests: &[Test]) -> Self {
        let has_sequences = tests.iter().any(|test| test.sequences != 1);
        let name_len = tests.iter().map(|test| test.name().len()).max().unwrap_or_default();
        Printer { format, has_sequences, name_len, rows: Vec::new() }
    }

    /// Prints a row, at once where the format allows.
    ///
    /// # Errors
    /// As [`terminal::print`].
    pub fn print(&mut self, row: Row) -> Result<(), Failure> {
        terminal::print(&self.text_of(row))
    }

    /// Prints what comes after the last row.
    ///
    /// # Errors
    /// As [`terminal::print`].
    pub fn finish(self) -> Result<(), Failure> {
        terminal::print(&self.end())
    }

    fn text_of(&mut self, row: Row) -> String {
        let is_first = self.rows.is_empty();
        self.rows.push(row);
        let row = &self.rows[self.rows.len() - 1];
        match self.format {
            Format::Md if is_first => self.heading() + &self.line(&cells(row)),
            Format::Md => self.line(&cells(row)),
            Format::Csv => csv(row, is_first),
            Format::Json => String::new(),
            Format::Jsonl => serde_json::to_string(row).expect(IS_JSON) + "\n",
        }
    }

    fn end(&self) -> String {
        match self.format {
            Format::Md => {
                format!("\nbuild: {} ({})\n", env!("HALFWARP_COMMIT"), env!("CARGO_PKG_VERSION"))
            }
            Format::Json => serde_json::to_string_pretty(&self.rows).expect(IS_JSON) + "\n",
            Format::Csv | Format::Jsonl => String::new(),
        }
    }

    /// Titles, and the line below them.
    fn heading(&self) -> String {
        let widths = self.widths();
        let rules = std::array::from_fn(|column| match is_number(column) {
            true => "-".repeat(widths[column] - 1) + ":",
            false => "-".repeat(widths[column]),
        });
        self.line(&TITLES.map(str::to_owned)) + &self.line(&rules)
    }

    /// A row of the table.
    fn line(&self, cells: &[String; 8]) -> String {
        let widths = self.widths();
        let cell = |column: usize| match (&cells[column], widths[column]) {
            (cell, width) if is_number(column) => format!(" {cell:>width$} |"),
            (cell, width) => format!(" {cell:width$} |"),
        };
        format!("|{}\n", self.columns().map(cell).collect::<String>())
    }

    /// Columns of the table.
    fn columns(&self) -> impl Iterator<Item = usize> {
        (0..TITLES.len()).filter(|&column| column != SEQUENCES || self.has_sequences)
    }

    /// Characters of each column: those of the first row and of the title, whichever are more.
    fn widths(&self) -> [usize; 8] {
        let mut widths = TITLES.map(str::len);
        let cells = self.rows.first().map(cells).unwrap_or_default();
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = cell.chars().count().max(*width);
        }
        widths[TEST] = self.name_len.max(widths[TEST]);
        widths[RATE] = RATE_LEN;
        widths
    }
}

/// Whether a column is aligned to the right.
fn is_number(column: usize) -> bool {
    !matches!(TITLES[column], "model" | "device" | "dtype")
}

/// The cells of a row.
fn cells(row: &Row) -> [String; 8] {
    let (config, test) = (&row.config, &row.test);
    let [rate, deviation] = row.tokens_per_second();
    [
        config.model.clone(),
        size(config.model_size_bytes),
        params(config.n_params),
        config.device.clone(),
        config.dtype.clone(),
        test.sequences.to_string(),
        test.name(),
        format!("{rate:.2} \u{b1} {deviation:.2}"),
    ]
}

fn size(bytes: usize) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        mib if mib < 1024.0 => format!("{mib:.2} MiB"),
        mib => format!("{:.2} GiB", mib / 1024.0),
    }
}

fn params(count: usize) -> String {
    match count as f64 / 1e6 {
        millions if millions < 1e3 => format!("{millions:.2} M"),
        millions => format!("{:.2} B", millions / 1e3),
    }
}

/// The fields of a row, after a line of their names with the first.
fn csv(row: &Row, is_first: bool) -> String {
    let fields = row.fields();
    let mut writer = csv::Writer::from_writer(Vec::new());
    if is_first {
        writer.write_record(fields.iter().map(|(name, _)| name)).expect(TO_MEMORY);
    }
    writer.write_record(fields.iter().map(|(_, value)| text_of(value))).expect(TO_MEMORY);
    let bytes = writer.into_inner().expect(TO_MEMORY);
    String::from_utf8(bytes).expect("fields are strings")
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text_of).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

const IS_JSON: &str = "numbers and strings are JSON";
const TO_MEMORY: &str = "memory takes every record";

#[cfg(test)]
mod tests {
    use super::*;
    use halfwarp::bench::end_to_end::Config;

    const TESTS: [Test; 2] = [
        Test { n_prompt: 512, n_gen: 0, n_depth: 0, sequences: 1 },
        Test { n_prompt: 0, n_gen: 128, n_depth: 4096, sequences: 8 },
    ];

    fn print(format: Format, tests: &[Test]) -> String {
        let config = Config {
            model: "Tiny, \"a\" model".to_owned(),
            model_size_bytes: 3 << 29,
            n_params: 134_515_008,
            device: "NVIDIA H200 (sm_90a)".to_owned(),
            gpu: Some("NVIDIA H200".to_owned()),
            dtype: "f16".to_owned(),
            batch_invariant: false,
        };
        let mut printer = Printer::new(format, tests);
        let row = |test| Row { config: config.clone(), test, samples_us: vec![1e6, 2e6] };
        let rows = tests.iter().map(|&test| printer.text_of(row(test))).collect::<String>();
        rows + &printer.end()
    }

    /// 512 and 256 tokens a second; 1,024 and 512.
    #[test]
    fn a_table_is_llama_benchs() {
        let table = "\
| model           |     size |   params | device               | dtype | sequences |          test |                 t/s |
| --------------- | -------: | -------: | -------------------- | ----- | --------: | ------------: | ------------------: |
| Tiny, \"a\" model | 1.50 GiB | 134.52 M | NVIDIA H200 (sm_90a) | f16   |         1 |         pp512 |     384.00 \u{b1} 181.02 |
| Tiny, \"a\" model | 1.50 GiB | 134.52 M | NVIDIA H200 (sm_90a) | f16   |         8 | tg128 @ d4096 |     768.00 \u{b1} 362.04 |
";
        let build = format!("build: {} ({})", env!("HALFWARP_COMMIT"), env!("CARGO_PKG_VERSION"));
        assert_eq!(print(Format::Md, &TESTS), format!("{table}\n{build}\n"));
        let one = print(Format::Md, &TESTS[..1]);
        assert!(one.contains("| dtype |  test | ") && one.contains("| pp512 |  "), "{one}");
    }

    #[test]
    fn csv_has_every_field() {
        let csv = print(Format::Csv, &TESTS);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines[0],
            "build_commit,build_version,model,model_size_bytes,n_params,device,gpu,dtype,\
             batch_invariant,test,n_prompt,n_gen,n_depth,sequences,repetitions,avg_us,stddev_us,\
             avg_ts,stddev_ts,samples_us"
        );
        let row = "\"Tiny, \"\"a\"\" model\",1610612736,134515008,NVIDIA H200 (sm_90a),NVIDIA H200,f16,\
                   false,pp512,512,0,0,1,2,1500000.0,707106.7811865475,384.0,181.01933598375618,\
                   1000000.0 2000000.0";
        assert!(lines[1].ends_with(row), "{}", lines[1]);
        assert!(lines[2].contains(",tg128 @ d4096,0,128,4096,8,2,"), "{}", lines[2]);
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn json_is_an_array_or_lines_of_the_same_objects() {
        let json: Value = serde_json::from_str(&print(Format::Json, &TESTS)).unwrap();
        let jsonl = print(Format::Jsonl, &TESTS);
        let lines: Vec<Value> =
            jsonl.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(json, Value::Array(lines));
        let wanted = serde_json::json!({
            "build_commit": env!("HALFWARP_COMMIT"), "build_version": env!("CARGO_PKG_VERSION"),
            "model": "Tiny, \"a\" model", "model_size_bytes": 1_610_612_736, "n_params": 134_515_008,
            "device": "NVIDIA H200 (sm_90a)", "gpu": "NVIDIA H200", "dtype": "f16",
            "batch_invariant": false, "test": "tg128 @ d4096", "n_prompt": 0, "n_gen": 128,
            "n_depth": 4096, "sequences": 8, "repetitions": 2, "samples_us": [1e6, 2e6],
            "avg_us": 1_500_000.0, "stddev_us": 707_106.781_186_547_5,
            "avg_ts": 768.0, "stddev_ts": 362.038_671_967_512_36,
        });
        assert_eq!(json[1], wanted);
        assert!(jsonl.starts_with("{\"build_commit\":"), "{jsonl}");
    }

    #[test]
    fn sizes_have_llama_benchs_units() {
        assert_eq!([size(1 << 20), size(1 << 30)], ["1.00 MiB", "1.00 GiB"]);
        assert_eq!([params(999_000_000), params(1_540_000_000)], ["999.00 M", "1.54 B"]);
    }
}
