//! Plots of a profile.

use super::tables;
use crate::cli::chart::{Bars, Chart, Series};
use crate::cli::failure::Failure;
use halfwarp::profile::{OpSum, Profile, Rated, StepProfile};
use std::path::Path;

/// Operations with less of the step's time are left out of bars.
const MIN_SHARE: f64 = 0.003;

/// Draws each step of the first profile, and the types beside each other if there are two.
pub fn write(dir: &Path, profiles: &[Profile]) -> Result<(), Failure> {
    let first = &profiles[0];
    for step in &first.steps {
        let kind = kind(step);
        roofline(first, step).write(dir, &format!("roofline-{kind}"))?;
        bandwidth(first, step).write(dir, &format!("bandwidth-{kind}"))?;
        layers(first, step).write(dir, &format!("layers-{kind}"))?;
    }
    if let [first, second] = profiles {
        for (step, other) in first.steps.iter().zip(&second.steps) {
            let chart = comparison([first, second], [step, other]);
            chart.write(dir, &format!("dtypes-{}", kind(step)))?;
        }
    }
    crate::cli::terminal::note(format_args!("wrote plots to {}", dir.display()));
    Ok(())
}

fn kind(step: &StepProfile) -> &'static str {
    if step.new_tokens == 1 { "decode" } else { "prefill" }
}

fn title(profile: &Profile, step: &StepProfile, what: &str) -> String {
    let Profile { model, device, dtype, .. } = profile;
    format!("{what}: {} of {model}, {dtype}, {device}", step.name)
}

fn drawn(step: &StepProfile) -> Vec<OpSum> {
    let least_us = MIN_SHARE * step.sum_us();
    step.by_op().into_iter().filter(|sum| sum.us >= least_us).collect()
}

fn roofline(profile: &Profile, step: &StepProfile) -> Chart {
    let series = drawn(step).into_iter().filter(|sum| sum.flops > 0).map(|sum| {
        let intensity = sum.flops as f64 / sum.bytes.max(1) as f64;
        Series { name: tables::label(&sum), points: vec![(intensity, 1e12 * sum.tflop_per_s())] }
    });
    Chart::Roofline {
        title: title(profile, step, "Roofline"),
        bytes_per_s: profile.roofline.bytes_per_s,
        flops_per_s: profile.roofline.flops_per_s,
        series: series.collect(),
    }
}

fn bandwidth(profile: &Profile, step: &StepProfile) -> Chart {
    let limit = profile.roofline.bytes_per_s / 1e9;
    let rows = drawn(step).into_iter().map(|sum| (tables::label(&sum), vec![sum.gb_per_s()]));
    Chart::Bars(Bars {
        title: title(profile, step, "Bandwidth"),
        axis: format!("GB/s of the plan's bytes; the device has {limit:.0}"),
        series: vec![profile.dtype.clone()],
        rows: rows.collect(),
        ..Bars::default()
    })
}

fn layers(profile: &Profile, step: &StepProfile) -> Chart {
    let layers = step.by_layer();
    let points = layers.iter().filter_map(|sum| Some((sum.layer? as f64, sum.us))).collect();
    Chart::Lines {
        title: title(profile, step, "Time by layer"),
        axes: ["layer".to_owned(), "us".to_owned()],
        log: [false, false],
        series: vec![Series { name: profile.dtype.clone(), points }],
    }
}

fn comparison(profiles: [&Profile; 2], steps: [&StepProfile; 2]) -> Chart {
    let [first, second] = steps.map(|step| tables::by_subject(&step.by_op()));
    let least_us = MIN_SHARE * steps[0].sum_us();
    let rows = first.into_iter().filter(|(_, us)| *us >= least_us).map(|(subject, us)| {
        let other = second.iter().find(|(other, _)| *other == subject);
        (subject, vec![us, other.map_or(f64::NAN, |(_, us)| *us)])
    });
    Chart::Bars(Bars {
        title: format!("{}: {} on {}", steps[0].name, profiles[0].model, profiles[0].device),
        axis: "us, all layers".to_owned(),
        series: profiles.map(|profile| profile.dtype.clone()).to_vec(),
        rows: rows.collect(),
        ..Bars::default()
    })
}
