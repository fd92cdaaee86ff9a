//! Charts of reports and of records, as SVG and as PNG.

use super::{failure::Failure, output_file};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};
use std::path::Path;
use std::{fs, io};

const WIDTH: u32 = 960;
/// Height of a chart; more where there are many bars.
const HEIGHT: u32 = 540;
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

/// Horizontal bars.
#[derive(Default)]
pub struct Bars {
    /// Over the chart.
    pub title: String,
    /// What the lengths are, with their unit.
    pub axis: String,
    /// Names of the bars of a row.
    pub series: Vec<String>,
    /// Labels, and a value of each series.
    pub rows: Vec<(String, Vec<f64>)>,
    /// A text after the first bar of each row; none for the figures after all bars.
    pub notes: Vec<String>,
    /// A value that a line is drawn at.
    pub mark: Option<f64>,
}

/// Something to draw.
pub enum Chart {
    /// A bar for each row and series, from 0.
    Bars(Bars),
    /// Lines over a common axis.
    Lines {
        /// Over the chart.
        title: String,
        /// What x and y are, with their units.
        axes: [String; 2],
        /// Whether x and y are logarithmic; values of 0 and less are left out then.
        log: [bool; 2],
        /// The lines.
        series: Vec<Series>,
    },
    /// Operations under the two limits of a device.
    Roofline {
        /// Over the chart.
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
        let svg = self.svg()?;
        output_file::write_whole(&dir.join(format!("{name}.svg")), |path| fs::write(path, &svg))?;
        let (width, height) = self.size();
        let mut pixels = vec![0; (width * height * 3) as usize];
        let area = BitMapBackend::with_buffer(&mut pixels, self.size()).into_drawing_area();
        self.draw(&area).map_err(cannot_draw)?;
        drop(area);
        output_file::write_whole(&dir.join(format!("{name}.png")), |path| {
            let file = io::BufWriter::new(fs::File::create(path)?);
            let mut encoder = png::Encoder::new(file, width, height);
            encoder.set_color(png::ColorType::Rgb);
            encoder.write_header()?.write_image_data(&pixels)
        })
    }

    /// The chart as SVG.
    ///
    /// # Errors
    /// [`Failure::Environment`] if it cannot be drawn.
    pub fn svg(&self) -> Result<String, Failure> {
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, self.size()).into_drawing_area();
        self.draw(&area).map_err(cannot_draw)?;
        drop(area);
        Ok(svg)
    }

    fn size(&self) -> (u32, u32) {
        match self {
            Chart::Bars(Bars { rows, series, .. }) => {
                let row_height = 16 + 14 * series.len().max(1);
                (WIDTH, HEIGHT.max((100 + rows.len() * row_height) as u32))
            }
            _ => (WIDTH, HEIGHT),
        }
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        // Metrics of text come from the same font on every machine, installed or not.
        for style in [FontStyle::Normal, FontStyle::Bold] {
            let _ = register_font(FONT, style, dejavu::sans::regular());
        }
        area.fill(&WHITE)?;
        match self {
            Chart::Bars(chart) => bars(area, chart)?,
            Chart::Lines { title, axes, log, series } => lines(area, title, axes, *log, series)?,
            Chart::Roofline { title, bytes_per_s, flops_per_s, series } => {
                roofline(area, title, *bytes_per_s, *flops_per_s, series)?;
            }
        }
        area.present()
    }
}

fn cannot_draw(error: impl std::error::Error) -> Failure {
    Failure::Environment(format!("cannot draw a chart: {error}"))
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

fn bars<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    Bars { title, axis, series, rows, notes, mark }: &Bars,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let right = (FONT, 13).into_font().color(&BLACK).pos(Pos::new(HPos::Right, VPos::Center));
    let left = (FONT, 12).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    let width = |text: &str| Ok(area.estimate_text_size(text, &left)?.0 as f64);
    let mut label_width = 0.0f64;
    for (label, _) in rows {
        label_width = label_width.max(1.1 * width(label)? + 24.0);
    }
    // Room for the texts after the bars, and for the legend.
    let plot_width = f64::from(WIDTH) - label_width.min(300.0) - 40.0;
    let room = if series.len() > 1 { 1.2 } else { 1.0 };
    let mut max = mark.unwrap_or(0.0).max(f64::MIN_POSITIVE);
    let mut texts = Vec::new();
    for (row, (_, values)) in rows.iter().enumerate() {
        for (index, &value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let text = match notes.get(row) {
                Some(note) if index == 0 => note.clone(),
                Some(_) => String::new(),
                None => figure(value),
            };
            let bar_width = (plot_width - width(&text)? - 12.0).max(plot_width / 8.0);
            max = max.max(value * room * plot_width / bar_width);
            texts.push((row, index, value, text));
        }
    }
    let num_rows = rows.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .margin_left(8)
        .x_label_area_size(44)
        .y_label_area_size(label_width.min(300.0) as u32)
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
    for (row, (label, _)) in rows.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(0.0, row as f64 + 0.5));
        let (base_x, base_y) = area.get_base_pixel();
        area.draw(&Text::new(label.as_str(), (x - base_x - 8, y - base_y), right.clone()))?;
    }
    for (row, index, value, text) in texts {
        let height = 0.8 / rows[row].1.len() as f64;
        let top = row as f64 + 0.1 + height * index as f64;
        let bar = [(0.0, top), (value, top + 0.9 * height)];
        chart.draw_series([Rectangle::new(bar, colour(index).filled())])?;
        let end = (value + 0.005 * max, top + 0.45 * height);
        chart.draw_series([Text::new(text, end, left.clone())])?;
    }
    if let Some(mark) = *mark {
        let line = [(mark, 0.0), (mark, num_rows)];
        chart.draw_series([PathElement::new(line, BLACK.stroke_width(1))])?;
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
    [log_x, log_y]: [bool; 2],
    series: &[Series],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let has_place = |at: f64, log: bool| at.is_finite() && (!log || at > 0.0);
    let is_drawn = |&(x, y): &(f64, f64)| has_place(x, log_x) && has_place(y, log_y);
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
    let from_zero = y.0.min(0.0)..y.1 * 1.08;
    match (log_x, log_y) {
        (true, _) => {
            let x = (x.0 / 1.2..x.1 * 1.2).log_scale().base(2.0);
            draw!(builder.build_cartesian_2d(x, from_zero)?)
        }
        (false, true) => {
            draw!(builder.build_cartesian_2d(x.0..x.1, (y.0 / 2.0..y.1 * 2.0).log_scale())?)
        }
        (false, false) => draw!(builder.build_cartesian_2d(x.0..x.1, from_zero)?),
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
        let lines = |log| {
            let (title, axes) = ("Title".to_owned(), ["layer".to_owned(), "error".to_owned()]);
            Chart::Lines { title, axes, log, series: series() }
        };
        let charts = [
            Chart::Bars(Bars {
                title: "Title".into(),
                axis: "GB/s".into(),
                series: vec!["first".into(), "second".into()],
                rows: vec![("qkv".into(), vec![1.5, f64::NAN]), ("down".into(), vec![0.0, 3.0])],
                ..Bars::default()
            }),
            lines([false, false]),
            lines([false, true]),
            lines([true, false]),
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
            assert_eq!((frame.width, frame.height), (WIDTH, HEIGHT));
            let inked = pixels.chunks(3).filter(|pixel| *pixel != [255; 3]).count();
            assert!(inked > 1000, "chart {index} has {inked} pixels");
        }
    }
}
