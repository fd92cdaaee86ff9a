//! Plots of reports, as SVG and as PNG.

use super::{failure::Failure, output_file};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};
use std::path::Path;
use std::{fs, io};

const SIZE: (u32, u32) = (960, 540);
const FONT: &str = "sans-serif";
/// Wong's palette, which does not depend on telling red from green, and a grey.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
    RGBColor(120, 120, 120),
];

/// Points that belong together.
pub struct Series {
    /// What they are, for the legend.
    pub name: String,
    /// `(x, y)`.
    pub points: Vec<(f64, f64)>,
}

/// Something to draw.
pub enum Chart {
    /// A bar for each row and series, from 0.
    Bars {
        /// Over the plot.
        title: String,
        /// What the lengths are, with their unit.
        axis: String,
        /// Names of the bars of a row.
        series: Vec<String>,
        /// Labels, and a value of each series.
        rows: Vec<(String, Vec<f64>)>,
    },
    /// Lines over a common axis.
    Lines {
        /// Over the plot.
        title: String,
        /// What x and y are, with their units.
        axes: [String; 2],
        /// Whether y is logarithmic; values of 0 and less are left out then.
        log: bool,
        /// The lines.
        series: Vec<Series>,
    },
    /// Operations under the two limits of a device.
    Roofline {
        /// Over the plot.
        title: String,
        /// Bytes a second.
        bytes_per_s: f64,
        /// Floating-point operations a second.
        flops_per_s: f64,
        /// Operations a byte, and operations a second.
        series: Vec<Series>,
    },
}

impl Chart {
    /// Writes `<name>.svg` and `<name>.png` into `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// [`Failure::Environment`] if a file cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(), Failure> {
        let cannot =
            |error| Failure::Environment(format!("cannot make {}: {error}", dir.display()));
        fs::create_dir_all(dir).map_err(cannot)?;
        // Metrics of text come from the same font on every machine, installed or not.
        for style in [FontStyle::Normal, FontStyle::Bold] {
            let _ = register_font(FONT, style, dejavu::sans::regular());
        }
        output_file::write_whole(&dir.join(format!("{name}.svg")), |path| {
            self.draw(&SVGBackend::new(path, SIZE).into_drawing_area())
                .map_err(|error| error.to_string())
        })?;
        let (width, height) = SIZE;
        let mut pixels = vec![0; (width * height * 3) as usize];
        let drawn = self.draw(&BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area());
        drawn.map_err(|error| Failure::Environment(format!("cannot draw {name}: {error}")))?;
        output_file::write_whole(&dir.join(format!("{name}.png")), |path| {
            let file = io::BufWriter::new(fs::File::create(path)?);
            let mut encoder = png::Encoder::new(file, width, height);
            encoder.set_color(png::ColorType::Rgb);
            encoder.write_header()?.write_image_data(&pixels)
        })
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        match self {
            Chart::Bars { title, axis, series, rows } => bars(area, title, axis, series, rows)?,
            Chart::Lines { title, axes, log, series } => lines(area, title, axes, *log, series)?,
            Chart::Roofline { title, bytes_per_s, flops_per_s, series } => {
                roofline(area, title, *bytes_per_s, *flops_per_s, series)?;
            }
        }
        area.present()
    }
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

fn bars<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    axis: &str,
    series: &[String],
    rows: &[(String, Vec<f64>)],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let finite = rows.iter().flat_map(|(_, values)| values).copied().filter(|x| x.is_finite());
    // Room for the figures after the bars, and for the legend.
    let room = if series.len() > 1 { 1.35 } else { 1.12 };
    let max = finite.fold(0.0, f64::max).max(f64::MIN_POSITIVE) * room;
    let num_rows = rows.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .margin_left(8)
        .x_label_area_size(44)
        .y_label_area_size(190)
        .build_cartesian_2d(0.0..max, num_rows..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_desc(axis)
        .x_label_formatter(&|value| figure(*value))
        .label_style((FONT, 14))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let right = (FONT, 13).into_font().color(&BLACK).pos(Pos::new(HPos::Right, VPos::Center));
    let left = (FONT, 12).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    for (row, (label, values)) in rows.iter().enumerate() {
        let middle = chart.plotting_area().map_coordinate(&(0.0, row as f64 + 0.5));
        let (base_x, base_y) = area.get_base_pixel();
        let at = (middle.0 - base_x - 8, middle.1 - base_y);
        area.draw(&Text::new(label.as_str(), at, right.clone()))?;
        let height = 0.8 / values.len().max(1) as f64;
        for (index, &value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let top = row as f64 + 0.1 + height * index as f64;
            let bar = [(0.0, top), (value, top + 0.9 * height)];
            chart.draw_series([Rectangle::new(bar, colour(index).filled())])?;
            let end = (value + 0.005 * max, top + 0.45 * height);
            chart.draw_series([Text::new(figure(value), end, left.clone())])?;
        }
    }
    if series.len() > 1 {
        for (index, name) in series.iter().enumerate() {
            // A point outside of the plot: the legend alone is of interest.
            chart
                .draw_series(std::iter::empty::<Rectangle<(f64, f64)>>())?
                .label(name.as_str())
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour(index).filled())
                });
        }
        legend(&mut chart, SeriesLabelPosition::LowerRight)?;
    }
    Ok(())
}

fn lines<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    axes: &[String; 2],
    log: bool,
    series: &[Series],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let is_drawn = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && (!log || y > 0.0);
    let (x, y) = ranges(series.iter().flat_map(|s| &s.points).filter(|point| is_drawn(point)));
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, (FONT, 20)).margin(16).x_label_area_size(44).y_label_area_size(80);
    let drawn = |index: usize| series[index].points.iter().copied().filter(is_drawn);
    // Both kinds of axis have types of their own.
    macro_rules! draw {
        ($chart:expr) => {{
            let mut chart = $chart;
            let [x_desc, y_desc] = axes;
            chart
                .configure_mesh()
                .x_desc(x_desc)
                .y_desc(y_desc)
                .label_style((FONT, 14))
                .light_line_style(TRANSPARENT)
                .x_label_formatter(&|value| figure(*value))
                .y_label_formatter(&|value| figure(*value))
                .draw()?;
            for (index, Series { name, .. }) in series.iter().enumerate() {
                let style = colour(index).stroke_width(2);
                chart
                    .draw_series(LineSeries::new(drawn(index), style))?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
                chart.draw_series(drawn(index).map(|at| Circle::new(at, 3, style.filled())))?;
            }
            legend(&mut chart, SeriesLabelPosition::UpperLeft)
        }};
    }
    match log {
        true => draw!(builder.build_cartesian_2d(x.0..x.1, (y.0 / 2.0..y.1 * 2.0).log_scale())?),
        false => draw!(builder.build_cartesian_2d(x.0..x.1, y.0.min(0.0)..y.1 * 1.08)?),
    }
}

fn roofline<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    bytes_per_s: f64,
    flops_per_s: f64,
    series: &[Series],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let ridge = flops_per_s / bytes_per_s;
    let is_drawn = |&(x, y): &(f64, f64)| x > 0.0 && y > 0.0 && x.is_finite() && y.is_finite();
    let points = series.iter().flat_map(|series| &series.points).filter(|point| is_drawn(point));
    let (x, y) = ranges(points.chain([&(ridge, flops_per_s)]));
    let (first, last) = (x.0 / 3.0, x.1 * 5.0);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d((first..last).log_scale(), (y.0 / 3.0..y.1 * 4.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("floating-point operations a byte")
        .y_desc("operations a second")
        .label_style((FONT, 14))
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|value| figure(*value))
        .y_label_formatter(&|value| figure(*value))
        .draw()?;
    let roof = [first, ridge, last].map(|x| (x, (x * bytes_per_s).min(flops_per_s)));
    let limits = format!("{}B/s, {}FLOP/s", figure(bytes_per_s), figure(flops_per_s));
    chart
        .draw_series(LineSeries::new(roof, BLACK.stroke_width(2)))?
        .label(limits)
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.stroke_width(2)));
    for (index, Series { name, points }) in series.iter().enumerate() {
        let style = colour(index).filled();
        let circles = points.iter().copied().filter(is_drawn);
        chart
            .draw_series(circles.map(|at| Circle::new(at, 5, style)))?
            .label(name.as_str())
            .legend(move |(x, y)| Circle::new((x + 9, y), 5, style));
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

fn legend<'a, B: DrawingBackend + 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, B, C>,
    position: SeriesLabelPosition,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    chart
        .configure_series_labels()
        .position(position)
        .label_font((FONT, 13))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
}

/// The least and the largest of x and of y; 0 to 1 of no points.
fn ranges<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> ((f64, f64), (f64, f64)) {
    let (mut x, mut y) = ((f64::INFINITY, f64::NEG_INFINITY), (f64::INFINITY, f64::NEG_INFINITY));
    for point in points {
        x = (x.0.min(point.0), x.1.max(point.0));
        y = (y.0.min(point.1), y.1.max(point.1));
    }
    if x.0 > x.1 { ((0.0, 1.0), (0.0, 1.0)) } else { (x, y) }
}

/// Three significant digits, with a prefix of thousands: `4.32T`, `12.5`, `3e-6`.
fn figure(value: f64) -> String {
    const PREFIXES: [(f64, &str); 5] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
    if value == 0.0 {
        return "0".to_owned();
    }
    let found = PREFIXES.into_iter().find(|(scale, _)| value.abs() >= 0.9995 * scale);
    let (scaled, prefix) = match found {
        Some((scale, prefix)) => (value / scale, prefix),
        None if value.abs() < 1e-3 => return format!("{value:.0e}"),
        None => (value, ""),
    };
    let digits = 2 - scaled.abs().max(1e-3).log10().floor() as i32;
    let text = format!("{scaled:.*}", digits.clamp(0, 5) as usize);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_prefix() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (12.34, "12.3"),
            (999.9, "1k"),
            (4.321e12, "4.32T"),
            (250_000.0, "250k"),
            (0.0123, "0.0123"),
            (3e-6, "3e-6"),
        ];
        for (value, expected) in cases {
            assert_eq!(figure(value), expected);
        }
    }

    #[test]
    fn every_chart_is_drawn_twice_with_its_texts() {
        let series = || vec![Series { name: "first".into(), points: vec![(1.0, 2.0), (3.0, 8.0)] }];
        let axes = || ["layer".to_owned(), "error".to_owned()];
        let charts = [
            Chart::Bars {
                title: "Title".into(),
                axis: "GB/s".into(),
                series: vec!["first".into(), "second".into()],
                rows: vec![("qkv".into(), vec![1.5, f64::NAN]), ("down".into(), vec![0.0, 3.0])],
            },
            Chart::Lines { title: "Title".into(), axes: axes(), log: false, series: series() },
            Chart::Lines { title: "Title".into(), axes: axes(), log: true, series: series() },
            Chart::Roofline {
                title: "Title".into(),
                bytes_per_s: 4e12,
                flops_per_s: 7e14,
                series: series(),
            },
        ];
        for (index, chart) in charts.iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            chart.write(&dir.path().join("plots"), "chart").unwrap();
            let svg = fs::read_to_string(dir.path().join("plots/chart.svg")).unwrap();
            for text in ["Title", "first"] {
                assert!(svg.contains(text), "chart {index} has no {text}");
            }
            let file = fs::File::open(dir.path().join("plots/chart.png")).unwrap();
            let mut png = png::Decoder::new(io::BufReader::new(file)).read_info().unwrap();
            let mut pixels = vec![0; png.output_buffer_size().unwrap()];
            let frame = png.next_frame(&mut pixels).unwrap();
            assert_eq!((frame.width, frame.height), SIZE);
            let inked = pixels.chunks(3).filter(|pixel| *pixel != [255; 3]).count();
            assert!(inked > 1000, "chart {index} has {inked} pixels");
        }
    }
}
