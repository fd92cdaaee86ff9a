//! Speed and memory of both settings.

use super::numbers::{median, mib, percent_change, range, ratio};
use super::page::Page;
use crate::validate::Report;

impl Report {
    /// Times and memory of both settings.
    pub(super) fn speed_and_memory(&self, page: &mut Page) {
        let [reference, candidate] = &self.names();
        let sizes = self.sizes;
        page.line("## Speed and memory\n");
        if sizes.repetitions > 0 {
            page.line(&format!(
                "A prompt of {} tokens, then {} new ones, in a context of {}: medians of {} repetitions, with \
                 the least and the most.\n",
                sizes.prompt,
                sizes.new,
                sizes.context(),
                sizes.repetitions
            ));
        }
        if let Some(note) = self.untimed() {
            page.line(&format!("Times: {note}.\n"));
        }
        page.head(&["", reference, candidate, ""]);
        if sizes.repetitions > 0 {
            let times = self.runs.each_ref().map(|run| &run.first_token_ms[..]);
            time_row(page, ("first token", "ms"), times, |r, c| r / c);
            let rates = self.runs.each_ref().map(|run| &run.tokens_per_s[..]);
            time_row(page, ("throughput", "tok/s"), rates, |r, c| c / r);
        }
        self.memory(page);
        page.line("");
    }

    fn memory(&self, page: &mut Page) {
        let mut bytes = |name: &str, of: [usize; 2]| {
            let [r, c] = of.map(mib);
            page.row(&[name, &r, &c, &percent_change(of[0] as f64, of[1] as f64)]);
        };
        let [r, c] = &self.runs;
        bytes("memory by the plan", [r, c].map(|run| run.total_planned_bytes()));
        for (&(name, of_reference), &(_, of_candidate)) in
            r.planned_bytes.iter().zip(&c.planned_bytes)
        {
            if of_reference + of_candidate > 0 {
                bytes(&format!("- {name}"), [of_reference, of_candidate]);
            }
        }
        bytes("memory taken, measured", [r.measured_bytes, c.measured_bytes]);
        if r.context_bytes + c.context_bytes > 0 {
            let of_model = [r, c].map(|run| run.measured_bytes.saturating_sub(run.context_bytes));
            bytes("- without the CUDA context", of_model);
        }
    }

    /// Why there are no times of a setting, if there are none.
    pub(super) fn untimed(&self) -> Option<String> {
        let timed = self.runs.iter().zip(self.names());
        let mut without = timed.filter(|(run, _)| run.first_token_ms.is_empty());
        match (self.sizes.repetitions, without.next()) {
            (0, _) => Some("none: the emulator's are not those of a GPU".to_owned()),
            (_, Some((_, name))) => Some(format!("none of {name}: its logits choose no token")),
            _ => None,
        }
    }
}

/// A row of times or rates in a unit: medians with their ranges, and the gain.
fn time_row(
    page: &mut Page,
    (name, unit): (&str, &str),
    all: [&[f64]; 2],
    gain: fn(f64, f64) -> f64,
) {
    let cells = all.map(|all| match (median(all), range(all)) {
        (Some(median), (least, most)) => format!("{median:.1} {unit} ({least:.1} to {most:.1})"),
        (None, _) => "-".to_owned(),
    });
    let [r, c] = all.map(median);
    let gain = r.zip(c).map_or_else(String::new, |(r, c)| ratio(gain(r, c)));
    page.row(&[name, &cells[0], &cells[1], &gain]);
}
