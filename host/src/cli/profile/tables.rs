//! A profile as text: for a person, and as comma-separated values.

use halfwarp::profile::{OpSum, Profile, Rated, Roofline, StepProfile, Traffic};
use std::fmt::Write;

/// The sums of a profile's steps by operation and by layer.
pub fn profile(profile: &Profile) -> String {
    let Profile { model, device, dtype, roofline, steps } = profile;
    let mut text = format!(
        "{model}, {dtype}, {device}\nroofline: {:.0} GB/s, {:.2} TFLOP/s, measured\n",
        roofline.bytes_per_s / 1e9,
        roofline.flops_per_s / 1e12
    );
    for step in steps {
        text += &step_table(step, roofline);
    }
    text
}

fn step_table(step: &StepProfile, roofline: &Roofline) -> String {
    let StepProfile { name, step_us, graph_us, event_us, num_launches, repeats, ops, .. } = step;
    let sum_us = step.sum_us();
    let mut text = format!(
        "\n{name}: {} in {} operations{} (their sum {}, {:+.1} %",
        time(*step_us),
        ops.len(),
        num_launches.map(|n| format!(" and {n} launches")).unwrap_or_default(),
        time(sum_us),
        100.0 * (sum_us / step_us - 1.0),
    );
    if let Some(event_us) = event_us {
        let _ = write!(text, "; {} for an event taken off each", time(*event_us));
    }
    if let Some(graph_us) = graph_us {
        let _ = write!(text, "; as one graph {}", time(*graph_us));
    }
    let _ = writeln!(text, "; medians of {repeats})");
    let sums = step.by_op();
    let widest = sums.iter().map(|sum| label(sum).len()).max().unwrap_or(0).max("operation".len());
    let _ = writeln!(
        text,
        "{:widest$}  {:>5}  {:>10}  {:>6}  {:>9}  {:>8}  {:>8}  {:>8}",
        "operation", "count", "time", "share", "MB", "GB/s", "TFLOP/s", "roofline"
    );
    for sum in &sums {
        let _ = writeln!(
            text,
            "{:widest$}  {:>5}  {:>10}  {:>4.1} %  {:>9.3}  {:>8.1}  {:>8.3}  {:>6.1} %",
            label(sum),
            sum.count,
            time(sum.us),
            100.0 * sum.us / sum_us,
            sum.bytes as f64 / 1e6,
            sum.gb_per_s(),
            sum.tflop_per_s(),
            100.0 * roofline.share(sum),
        );
    }
    text + &layers(step) + &counters(step)
}

/// Operations that read less than this are not compared with the counters: their sum is noise.
const MIN_COUNTED_BYTES: usize = 1 << 20;

/// The plan's bytes beside those that the device counted, where it did.
fn counters(step: &StepProfile) -> String {
    let mut text = String::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for op in &step.ops {
        let name = (op.op, op.subject.as_str());
        // The first layer of each: all have the same bytes.
        let Some(counted) = op.counted.filter(|_| !seen.contains(&name)) else { continue };
        seen.push(name);
        if op.read_bytes < MIN_COUNTED_BYTES {
            continue;
        }
        let (plan, counted) = (op.read_bytes as f64 / 1e6, counted.read_bytes as f64 / 1e6);
        let _ = writeln!(
            text,
            "{} {}: reads {plan:.2} MB by the plan, {counted:.2} MB by ncu ({:+.1} %)",
            op.op,
            op.subject,
            100.0 * (counted / plan - 1.0)
        );
    }
    text
}

/// How the time is spread over the layers.
fn layers(step: &StepProfile) -> String {
    let layers = step.by_layer();
    let in_layers: Vec<f64> =
        layers.iter().filter(|sum| sum.layer.is_some()).map(|sum| sum.us).collect();
    let outside: f64 = layers.iter().filter(|sum| sum.layer.is_none()).map(|sum| sum.us).sum();
    let least = in_layers.iter().copied().fold(f64::INFINITY, f64::min);
    let most = in_layers.iter().copied().fold(0.0, f64::max);
    match in_layers.len() {
        0 => String::new(),
        n => format!(
            "{n} layers of {} ({} to {}), {} outside of them\n",
            time(in_layers.iter().sum::<f64>() / n as f64),
            time(least),
            time(most),
            time(outside)
        ),
    }
}

/// The second profile's times over the first's, by operation.
pub fn comparison(first: &Profile, second: &Profile) -> String {
    let mut text = String::new();
    for (step, other) in first.steps.iter().zip(&second.steps) {
        let ratio = |second: f64, first: f64| second / first;
        let _ = writeln!(
            text,
            "\n{}: {} {} over {} {}: {:.2}x",
            step.name,
            second.dtype,
            time(other.step_us),
            first.dtype,
            time(step.step_us),
            ratio(other.step_us, step.step_us)
        );
        let others = other.by_op();
        for (subject, us) in by_subject(&step.by_op()) {
            let found = by_subject(&others).into_iter().find(|(other, _)| *other == subject);
            if let Some((_, other_us)) = found {
                let _ = writeln!(
                    text,
                    "{subject:16}  {:>10} over {:>10}  {:>6.2}x",
                    time(other_us),
                    time(us),
                    ratio(other_us, us)
                );
            }
        }
    }
    text
}

/// Sums by what is computed, however it is fused; the longest first.
pub fn by_subject(sums: &[OpSum]) -> Vec<(String, f64)> {
    let mut subjects: Vec<(String, f64)> = Vec::new();
    for sum in sums {
        match subjects.iter_mut().find(|(subject, _)| *subject == sum.subject) {
            Some((_, us)) => *us += sum.us,
            None => subjects.push((sum.subject.clone(), sum.us)),
        }
    }
    subjects.sort_by(|a, b| b.1.total_cmp(&a.1));
    subjects
}

const COLUMNS: [&str; 18] = [
    "model",
    "device",
    "dtype",
    "step",
    "index",
    "op",
    "subject",
    "layer",
    "us",
    "spread_us",
    "read_bytes",
    "written_bytes",
    "flops",
    "gb_per_s",
    "tflop_per_s",
    "roofline_share",
    "counted_read_bytes",
    "counted_written_bytes",
];

/// One row for each operation of each step.
pub fn csv(profiles: &[Profile]) -> csv::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    for Profile { model, device, dtype, roofline, steps } in profiles {
        for step in steps {
            for op in &step.ops {
                let counted = |bytes: fn(&Traffic) -> usize| {
                    op.counted.as_ref().map(|traffic| bytes(traffic).to_string())
                };
                writer.write_record([
                    model,
                    device,
                    dtype,
                    &step.name,
                    &op.index.to_string(),
                    op.op,
                    &op.subject,
                    &op.layer.map(|layer| layer.to_string()).unwrap_or_default(),
                    &format!("{:.3}", op.us),
                    &format!("{:.3}", op.spread_us),
                    &op.read_bytes.to_string(),
                    &op.written_bytes.to_string(),
                    &op.flops.to_string(),
                    &format!("{:.3}", op.gb_per_s()),
                    &format!("{:.5}", op.tflop_per_s()),
                    &format!("{:.5}", roofline.share(op)),
                    &counted(|traffic| traffic.read_bytes).unwrap_or_default(),
                    &counted(|traffic| traffic.written_bytes).unwrap_or_default(),
                ])?;
            }
        }
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}

/// The operation, and what it computes.
pub fn label(sum: &OpSum) -> String {
    if sum.op == sum.subject { sum.subject.clone() } else { format!("{} {}", sum.op, sum.subject) }
}

fn time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.3} s", us / 1e6),
        us if us >= 1e3 => format!("{:.3} ms", us / 1e3),
        us => format!("{us:.2} us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfwarp::profile::OpProfile;

    /// A layer's two operations, of recorded times.
    fn recorded() -> Profile {
        let op = |index, op, subject: &str, us, read_bytes, flops| OpProfile {
            index,
            op,
            subject: subject.to_owned(),
            layer: Some(0),
            us,
            spread_us: 0.5,
            read_bytes,
            written_bytes: 1_000_000,
            flops,
            counted: None,
        };
        Profile {
            model: "a \"model\", small".to_owned(),
            device: "GPU".to_owned(),
            dtype: "f16".to_owned(),
            roofline: Roofline { bytes_per_s: 1e12, flops_per_s: 1e14 },
            steps: vec![StepProfile {
                name: "decode 1 @ 512".to_owned(),
                num_seqs: 1,
                cached_tokens: 512,
                new_tokens: 1,
                step_us: 40.0,
                graph_us: Some(30.0),
                event_us: Some(0.75),
                num_launches: Some(3),
                repeats: 10,
                ops: vec![
                    op(0, "attention", "attention", 12.0, 5_000_000, 2_000),
                    op(1, "linear", "down", 30.0, 20_000_000, 40_000_000),
                ],
            }],
        }
    }

    #[test]
    fn a_step_is_a_table_of_sums_the_longest_first() {
        let text = profile(&recorded());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a \"model\", small, f16, GPU");
        assert_eq!(lines[1], "roofline: 1000 GB/s, 100.00 TFLOP/s, measured");
        assert_eq!(
            lines[3],
            "decode 1 @ 512: 40.00 us in 2 operations and 3 launches (their sum 42.00 us, +5.0 %; \
             0.75 us for an event taken off each; as one graph 30.00 us; medians of 10)"
        );
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let expected = "linear down 1 30.00 us 71.4 % 21.000 700.0 1.333 70.0 %";
        assert_eq!(words(lines[5]), words(expected));
        let expected = "attention 1 12.00 us 28.6 % 6.000 500.0 0.000 50.0 %";
        assert_eq!(words(lines[6]), words(expected));
        assert_eq!(
            lines[7],
            "1 layers of 42.00 us (42.00 us to 42.00 us), 0.00 us outside of them"
        );
    }

    #[test]
    fn csv_has_a_row_for_each_operation_and_quotes_names() {
        let mut profile = recorded();
        profile.steps[0].ops[1].counted =
            Some(Traffic { read_bytes: 21_000_000, written_bytes: 7 });
        let text = String::from_utf8(csv(&[profile]).unwrap()).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(
            rows[2],
            "\"a \"\"model\"\", small\",GPU,f16,decode 1 @ 512,1,linear,down,0,30.000,0.500,20000000,1000000,40000000,\
             700.000,1.33333,0.70000,21000000,7"
        );
        assert!(rows[1].ends_with(",0.50000,,"), "{}", rows[1]);
    }

    #[test]
    fn counters_are_beside_the_plan() {
        let mut profile = recorded();
        assert!(!super::profile(&profile).contains("ncu"));
        profile.steps[0].ops[1].counted =
            Some(Traffic { read_bytes: 21_000_000, written_bytes: 7 });
        let text = super::profile(&profile);
        let line = "linear down: reads 20.00 MB by the plan, 21.00 MB by ncu (+5.0 %)";
        assert!(text.ends_with(&format!("{line}\n")), "{text}");
    }

    #[test]
    fn types_are_compared_by_what_is_computed() {
        let (first, mut second) = (recorded(), recorded());
        second.dtype = "f32".to_owned();
        second.steps[0].step_us = 80.0;
        // Fused in one of them: what is computed is the same.
        second.steps[0].ops[1].op = "norm_linear";
        second.steps[0].ops[1].us = 75.0;
        let text = comparison(&first, &second);
        assert!(text.contains("decode 1 @ 512: f32 80.00 us over f16 40.00 us: 2.00x"), "{text}");
        let down = text.lines().find(|line| line.starts_with("down")).unwrap();
        assert!(down.ends_with("75.00 us over   30.00 us    2.50x"), "{down}");
    }
}
