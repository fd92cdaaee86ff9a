//! Layer by layer: overflow, magnitudes, errors.

use super::numbers::{scientific, size};
use super::page::Page;
use crate::validate::Report;
use crate::validate::layers::{Difference, Magnitude};

impl Report {
    /// Every layer in a row.
    pub(super) fn layers(&self, page: &mut Page) {
        let [reference, candidate] = &self.names();
        page.line("## Layer by layer\n");
        page.line(&format!(
            "What operations store for the first {} tokens of the text. An error is the norm of the difference over the \
             norm of the reference; the residual stream's is at most {}. Of a layer the residual stream after it, and of \
             the values on the way the largest and the least exact one. Every operation is in the CSV file.\n",
            self.sizes.observed,
            scientific(self.limits.layer_error)
        ));
        for line in self.findings() {
            page.line(&format!("- {line}"));
        }
        page.line("");
        page.head(&[
            "layer",
            &format!("residual max {reference}"),
            &format!("residual max {candidate}"),
            &format!("residual rms {reference}"),
            &format!("residual rms {candidate}"),
            "residual error",
            &format!("largest value {candidate}"),
            "least exact value",
        ]);
        let layers = self.layers.iter().filter_map(|values| values.place.layer).max();
        for layer in layers.iter().flat_map(|&last| 0..=last) {
            let values: Vec<&Difference> =
                self.layers.iter().filter(|values| values.place.layer == Some(layer)).collect();
            page.row(&layer_row(layer, &values).each_ref().map(String::as_str));
        }
        page.line("");
    }

    /// What the layers show, in words.
    pub fn findings(&self) -> Vec<String> {
        let candidate = &self.names()[1];
        let mut findings = Vec::new();
        for kind in ["inf", "nan", "clamped"] {
            let mut found = self.layers.iter().filter(|values| values.overflow() == Some(kind));
            if let Some(first) = found.next() {
                findings.push(format!(
                    "{}: {kind} in {candidate}, the first place of {}",
                    first.place,
                    1 + found.count()
                ));
            }
        }
        let by_headroom = |a: &&Difference, b: &&Difference| a.headroom().total_cmp(&b.headroom());
        let closest = self.layers.iter().min_by(by_headroom);
        if let Some(closest) = closest.filter(|_| findings.is_empty()) {
            findings.push(format!(
                "closest to overflow: {}, up to {}: {} holds {} times as much",
                closest.place,
                size(closest.candidate.max_abs),
                closest.dtypes[1].to_string().to_lowercase(),
                size(closest.headroom())
            ));
        }
        let by_error = |a: &&Difference, b: &&Difference| a.error.total_cmp(&b.error);
        let finite = self.layers.iter().filter(|values| values.error.is_finite());
        if let Some(worst) = finite.max_by(by_error) {
            findings.push(format!(
                "least exact: {}, with an error of {}",
                worst.place,
                scientific(worst.error)
            ));
        }
        findings
    }
}

/// The residual stream after a layer, and of the other values the largest and the least exact.
fn layer_row(layer: usize, values: &[&Difference]) -> [String; 8] {
    let dash = || "-".to_owned();
    let residual = values.iter().rev().find(|values| values.place.is_residual);
    let of_residual = |show: fn(&Difference) -> String| residual.map_or_else(dash, |at| show(at));
    let others = || values.iter().filter(|values| !values.place.is_residual);
    let largest = others().max_by(|a, b| a.candidate.max_abs.total_cmp(&b.candidate.max_abs));
    let overflow = values.iter().find_map(|at| Some((at, at.overflow()?)));
    let least_exact = others().max_by(|a, b| a.error.total_cmp(&b.error));
    [
        layer.to_string(),
        of_residual(|at| shown(&at.reference, at.reference.max_abs)),
        of_residual(|at| shown(&at.candidate, at.candidate.max_abs)),
        of_residual(|at| shown(&at.reference, at.reference.rms)),
        of_residual(|at| shown(&at.candidate, at.candidate.rms)),
        of_residual(|at| scientific(at.error)),
        match (overflow, largest) {
            (Some((at, kind)), _) => format!("{}: **{kind}**", at.place.name),
            (None, Some(at)) => format!("{}: {}", at.place.name, size(at.candidate.max_abs)),
            (None, None) => dash(),
        },
        least_exact.map_or_else(dash, |at| format!("{}: {}", at.place.name, scientific(at.error))),
    ]
}

/// A figure of a magnitude, or what is not finite in it.
fn shown(of: &Magnitude, figure: f64) -> String {
    match of.overflow() {
        Some(kind) if !of.is_finite() => kind.to_owned(),
        _ => size(figure),
    }
}
