//! Statistics as a table, as JSON lines and as CSV.

use super::{DynamicShared, Source, Stats};
use machine_code::{Class, Multiprocessor};
use serde_json::{Value, json};

const HEADS: [&str; 20] = [
    "KERNEL", "REGS", "SHARED", "STACK", "SPILLS", "BLOCKS", "WARPS", "OCC", "LIMIT", "TENSOR",
    "ASYNC", "GLOBAL", "SMEM", "LOCAL", "F32", "F16", "INT", "CTRL", "BAR", "OTHER",
];

/// A line that says where the figures are from, and a line a kernel.
pub fn table(stats: &[Stats], target: &str, sm: Multiprocessor, source: &Source) -> String {
    let heads = HEADS.map(str::to_owned);
    let rows: Vec<_> = [heads].into_iter().chain(stats.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    let line = |row: &[String; HEADS.len()]| {
        let cell = |(column, cell): (usize, &String)| {
            let width = widths[column];
            // Words to the left, numbers to the right.
            if ["KERNEL", "LIMIT"].contains(&HEADS[column]) {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ") + "\n"
    };
    caption(target, sm, source) + &rows.iter().map(line).collect::<String>()
}

/// What the columns are, in the words of the manuals.
fn caption(target: &str, sm: Multiprocessor, source: &Source) -> String {
    let instructions = if source.has_machine_code() { "in the machine code" } else { "in the PTX" };
    let registers = match source {
        Source::Tools(tools) => {
            let release = tools.release().unwrap_or_default();
            format!("registers by {}, ", format!("ptxas {release}").trim_end())
        }
        Source::Driver(gpu) => format!("registers by the driver of {gpu}, "),
        Source::Ptx => String::new(),
    };
    format!(
        "{target}: {registers}occupancy of {}, instructions {instructions}\n\
         bytes of shared memory (+: more by shape), stack and spills (stores/loads); \
         GLOBAL, SMEM and LOCAL are loads/stores\n",
        sm.gpus
    )
}

fn cells(stats: &Stats) -> [String; HEADS.len()] {
    let known = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    let count = |class: Class| stats.mix.count(class).to_string();
    let pair = |[first, second]: [u32; 2]| format!("{first}/{second}");
    let memory = |classes: [Class; 2]| pair(classes.map(|class| stats.mix.count(class)));
    let (shared, at_most) = match stats.dynamic_shared {
        DynamicShared::Bytes(bytes) => ((stats.static_shared_bytes + bytes).to_string(), ""),
        DynamicShared::ByShape => (format!("{}+", stats.static_shared_bytes), "<="),
    };
    let [blocks, warps, percent, limit] = match &stats.occupancy {
        Some(found) => [
            format!("{at_most}{}", found.blocks),
            format!("{at_most}{}", found.warps),
            format!("{at_most}{:.0}%", found.percent),
            Stats::limits(found),
        ],
        None => ["-"; 4].map(str::to_owned),
    };
    [
        stats.kernel.symbol.to_owned(),
        known(stats.registers),
        shared,
        known(stats.stack_bytes),
        stats.spill_bytes.map_or("-".to_owned(), pair),
        blocks,
        warps,
        percent,
        limit,
        count(Class::Tensor),
        count(Class::AsyncCopy),
        memory([Class::GlobalLoad, Class::GlobalStore]),
        memory([Class::SharedLoad, Class::SharedStore]),
        memory([Class::LocalLoad, Class::LocalStore]),
        count(Class::F32),
        count(Class::F16),
        count(Class::Integer),
        count(Class::Control),
        count(Class::Barrier),
        count(Class::Other),
    ]
}

/// A JSON object a kernel; what is unknown is null.
pub fn jsonl(stats: &[Stats], target: &str, source: &Source) -> String {
    let field = |(name, value): &(&str, Value)| format!("\"{name}\":{value}");
    let object = |stats: &Stats| {
        let fields: Vec<_> = fields(stats, target, source).iter().map(field).collect();
        format!("{{{}}}\n", fields.join(","))
    };
    stats.iter().map(object).collect()
}

/// A line of names, and a line a kernel; what is unknown is empty.
pub fn csv(stats: &[Stats], target: &str, source: &Source) -> String {
    let text = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let rows: Vec<_> = stats.iter().map(|stats| fields(stats, target, source)).collect();
    let line = |cells: Vec<String>| cells.join(",") + "\n";
    let names = |row: &Vec<(&str, Value)>| row.iter().map(|(name, _)| (*name).to_owned()).collect();
    let head = rows.first().map(|row| line(names(row))).unwrap_or_default();
    let values =
        |row: &Vec<(&str, Value)>| line(row.iter().map(|(_, value)| text(value)).collect());
    head + &rows.iter().map(values).collect::<String>()
}

/// Names and values; no value has a comma.
fn fields(stats: &Stats, target: &str, source: &Source) -> Vec<(&'static str, Value)> {
    let (dynamic_bytes, by_shape) = match stats.dynamic_shared {
        DynamicShared::Bytes(bytes) => (json!(bytes), false),
        DynamicShared::ByShape => (Value::Null, true),
    };
    let registers_by = match source {
        Source::Tools(_) => json!("ptxas"),
        Source::Driver(_) => json!("driver"),
        Source::Ptx => Value::Null,
    };
    let occupancy = stats.occupancy.as_ref();
    let mut fields = vec![
        ("kernel", json!(stats.kernel.symbol)),
        ("family", json!(stats.kernel.family)),
        ("target", json!(target)),
        ("threads", json!(stats.kernel.max_threads)),
        ("registers_by", registers_by),
        ("registers", json!(stats.registers)),
        ("static_shared_bytes", json!(stats.static_shared_bytes)),
        ("dynamic_shared_bytes", dynamic_bytes),
        ("stack_bytes", json!(stats.stack_bytes)),
        ("spill_store_bytes", json!(stats.spill_bytes.map(|[stores, _]| stores))),
        ("spill_load_bytes", json!(stats.spill_bytes.map(|[_, loads]| loads))),
        ("blocks_per_sm", json!(occupancy.map(|found| found.blocks))),
        ("warps_per_sm", json!(occupancy.map(|found| found.warps))),
        ("occupancy_percent", json!(occupancy.map(|found| found.percent))),
        ("occupancy_is_upper_bound", json!(by_shape)),
        ("limit", json!(occupancy.map(Stats::limits))),
        ("instructions_of", json!(if source.has_machine_code() { "machine_code" } else { "ptx" })),
        ("instructions", json!(stats.mix.total())),
    ];
    fields.extend(Class::ALL.map(|class| (class.name(), json!(stats.mix.count(class)))));
    fields
}
