//! The plots of a validation.

use crate::cli::chart::{Bars, Chart, Series};
use crate::cli::failure::Failure;
use halfwarp::validate::layers::{Difference, largest};
use halfwarp::validate::{Plot, Report, Run};
use std::path::Path;

/// Writes the plots into `dir`.
///
/// # Errors
/// [`Failure::Environment`] if a file cannot be written.
pub fn write(report: &Report, dir: &Path) -> Result<Vec<Plot>, Failure> {
    let charts = [
        ("validation-speed", "Time and memory", shares(report)),
        ("validation-magnitudes", "Largest values by layer", magnitudes(report)),
        ("validation-errors", "Errors by layer", errors(report)),
        ("validation-logits", "Errors of the logits", logits(report)),
    ];
    let plots = charts.into_iter().map(|(name, title, chart)| {
        chart.write(dir, name)?;
        Ok(Plot { title: title.to_owned(), file: format!("{name}.svg") })
    });
    plots.collect()
}

/// Time and memory of the candidate as shares of the reference's.
fn shares(report: &Report) -> Chart {
    let [reference, candidate] = report.names();
    let [of_reference, of_candidate] = &report.runs;
    type Part = fn(&Run) -> Option<f64>;
    let parts: [(&str, Part); 4] = [
        ("time to the first token", |run| run.median_first_token_ms()),
        ("time of a new token", |run| Some(1.0 / run.median_tokens_per_s()?)),
        ("memory by the plan", |run| Some(run.total_planned_bytes() as f64)),
        ("memory taken", |run| Some(run.measured_bytes as f64)),
    ];
    let rows = parts.into_iter().filter_map(|(name, part)| {
        let share = 100.0 * part(of_candidate)? / part(of_reference)?;
        Some((name.to_owned(), vec![share]))
    });
    Chart::Bars(Bars {
        title: format!("Time and memory: {candidate} as a share of {reference}"),
        axis: "%".to_owned(),
        series: vec![candidate],
        rows: rows.collect(),
        ..Bars::default()
    })
}

/// Points of the values that `is_of_interest`: of each layer the largest `part`.
fn by_layer(
    report: &Report,
    is_of_interest: impl Fn(&Difference) -> bool,
    part: impl Fn(&Difference) -> f64,
) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for values in report.layers.iter().filter(|values| is_of_interest(values)) {
        let Some(layer) = values.place.layer.map(|layer| layer as f64) else { continue };
        let value = part(values);
        match points.last_mut() {
            Some(last) if last.0 == layer => last.1 = last.1.max(value),
            _ => points.push((layer, value)),
        }
    }
    points
}

fn magnitudes(report: &Report) -> Chart {
    let [reference, candidate] = report.names();
    let line = |name: String, is_residual: bool, part: fn(&Difference) -> f64| {
        let points = by_layer(report, |values| values.place.is_residual == is_residual, part);
        Series { name, points }
    };
    // The residual stream is stored in f32 in every setting.
    let mut series = vec![
        line("residual stream".to_owned(), true, |values| values.candidate.max_abs),
        line(format!("other values, {reference}"), false, |values| values.reference.max_abs),
        line(format!("other values, {candidate}"), false, |values| values.candidate.max_abs),
    ];
    let limit = largest(report.settings[1].precision.operand());
    // Of the other types it is far above everything.
    if limit < 1e6 {
        let layers = series[0].points.iter().map(|&(layer, _)| (layer, limit)).collect();
        series.push(Series { name: format!("the largest {candidate}"), points: layers });
    }
    let axes = ["layer".to_owned(), "largest absolute value".to_owned()];
    Chart::Lines { title: "Largest values by layer".to_owned(), axes, log: [false, true], series }
}

fn errors(report: &Report) -> Chart {
    let line = |name: &str, is_residual: bool| Series {
        name: name.to_owned(),
        points: by_layer(
            report,
            |values| values.place.is_residual == is_residual,
            |values| values.error,
        ),
    };
    let [reference, candidate] = report.names();
    Chart::Lines {
        title: format!("Errors by layer: {candidate} beside {reference}"),
        axes: ["layer".to_owned(), "relative error".to_owned()],
        log: [false, true],
        series: vec![line("residual stream", true), line("the least exact other value", false)],
    }
}

/// The errors of all positions, from the least to the largest.
fn logits(report: &Report) -> Chart {
    let sorted = |name: &str, part: fn(&halfwarp::validate::logits::Position) -> f64| {
        let mut values: Vec<f64> = report.logits.positions.iter().map(part).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1).max(1) as f64;
        // More points than the plot has room for are one line.
        let every = values.len().div_ceil(200).max(1);
        let ends = values.len().saturating_sub(1);
        let drawn = values.iter().enumerate().filter(|&(at, _)| at % every == 0 || at == ends);
        let points = drawn.map(|(at, &value)| (100.0 * at as f64 / last, value)).collect();
        Series { name: name.to_owned(), points }
    };
    let [reference, candidate] = report.names();
    Chart::Lines {
        title: format!(
            "Errors of the logits, position by position: {candidate} beside {reference}"
        ),
        axes: ["% of the positions, from the least error".to_owned(), "error".to_owned()],
        log: [false, true],
        series: vec![
            sorted("relative error of the logits", |at| at.error()),
            sorted("largest difference of a probability", |at| at.max_probability),
            sorted("KL divergence, nats", |at| at.kl),
        ],
    }
}
