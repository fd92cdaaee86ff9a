//! Every figure of a report, a row each.

use super::super::layers::{Difference, Magnitude};
use super::super::logits::LogitComparison;
use super::super::{Report, Run, haiku};
use std::fmt::Write;

/// The table as text.
pub fn write(report: &Report) -> String {
    let names = report.names();
    let both = format!("{} beside {}", names[1], names[0]);
    let mut table = Table("section,setting,layer,place,figure,value,unit\n".to_owned());
    for (run, name) in report.runs.iter().zip(&names) {
        table.run(name, run);
    }
    table.logits("logits", &both, &report.logits);
    if let Some(perplexity) = report.logits.perplexity() {
        for (perplexity, name) in perplexity.iter().zip(&names) {
            table.row("logits", name, "", "", "perplexity", *perplexity, "");
        }
    }
    for difference in &report.layers {
        table.difference(&names, &both, difference);
    }
    if let Ok(test) = &report.haiku {
        table.logits("haiku", &both, &test.forced);
        for (haiku, name) in test.haikus.iter().zip(&names) {
            let mut flag = |figure: &str, is_so: bool| {
                table.row("haiku", name, "", test.word, figure, f64::from(u8::from(is_so)), "");
            };
            flag("uses_word", haiku::uses_word(&haiku.text, test.word));
            flag("is_5_7_5", haiku::is_5_7_5(&haiku.text));
            flag("same_for_same_seed", haiku.text == haiku.repeated);
            table.row("haiku", name, "", test.word, "tokens", haiku.tokens.len() as f64, "");
        }
    }
    table.0
}

struct Table(String);

impl Table {
    #[allow(clippy::too_many_arguments)] // the columns
    fn row(
        &mut self,
        section: &str,
        setting: &str,
        layer: &str,
        place: &str,
        figure: &str,
        value: f64,
        unit: &str,
    ) {
        // Names of weights and words: no field needs quotes.
        writeln!(self.0, "{section},{setting},{layer},{place},{figure},{value},{unit}")
            .expect("a String takes everything");
    }

    fn run(&mut self, name: &str, run: &Run) {
        let times = [
            ("first_token", &run.first_token_ms, "ms"),
            ("throughput", &run.tokens_per_s, "tokens/s"),
        ];
        for (figure, values, unit) in times {
            for (repetition, &value) in values.iter().enumerate() {
                self.row("speed", name, "", &repetition.to_string(), figure, value, unit);
            }
        }
        let total = ("total", run.total_planned_bytes());
        for &(figure, value) in run.planned_bytes.iter().chain([&total]) {
            self.row("memory", name, "", "plan", figure, value as f64, "bytes");
        }
        self.row("memory", name, "", "measured", "total", run.measured_bytes as f64, "bytes");
    }

    fn logits(&mut self, section: &str, both: &str, logits: &LogitComparison) {
        let mut total = |figure: &str, value: f64, unit: &str| {
            self.row(section, both, "", "", figure, value, unit);
        };
        total("relative_error", logits.error(), "");
        total("agreement", logits.agreement(), "");
        total("mean_kl", logits.mean_kl(), "nats");
        for (index, at) in logits.positions.iter().enumerate() {
            let place = format!("position {index}");
            let mut row = |figure: &str, value: f64, unit: &str| {
                self.row(section, both, "", &place, figure, value, unit);
            };
            row("relative_error", at.error(), "");
            row("max_difference", at.max_abs, "");
            row("max_relative_difference", at.max_relative, "");
            row("max_probability_difference", at.max_probability, "");
            row("kl", at.kl, "nats");
            row("agrees", f64::from(u8::from(at.agrees)), "");
        }
    }

    fn difference(&mut self, names: &[String; 2], both: &str, difference: &Difference) {
        let layer = difference.place.layer.map_or_else(String::new, |layer| layer.to_string());
        let place = &difference.place.name;
        for (name, of) in names.iter().zip([&difference.reference, &difference.candidate]) {
            let Magnitude { max_abs, rms, num_inf, num_nan, num_clamped } = *of;
            let figures = [
                ("max_abs", max_abs),
                ("rms", rms),
                ("num_inf", num_inf as f64),
                ("num_nan", num_nan as f64),
                ("num_clamped", num_clamped as f64),
            ];
            for (figure, value) in figures {
                self.row("layers", name, &layer, place, figure, value, "");
            }
        }
        self.row("layers", both, &layer, place, "relative_error", difference.error, "");
        self.row("layers", both, &layer, place, "max_difference", difference.max_difference, "");
    }
}
