//! Drawing: bars, lines and a roofline, as SVG.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

const WIDTH: u32 = 960;
const FONT: &str = "sans-serif";
/// Wong's palette, which does not depend on telling red from green.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Points that belong together.
pub struct Series {
    /// What they are, for the legend.
    pub name: String,
    /// `(x, y)`.
    pub points: Vec<(f64, f64)>,
}

/// A row of bars.
pub struct Bar {
    pub label: String,
    /// One of each series.
    pub values: Vec<f64>,
    /// After the bars.
    pub note: String,
}

/// Horizontal bars, from 0.
pub struct Bars<'a> {
    pub title: &'a str,
    /// What the lengths are, with their unit.
    pub axis: &'a str,
    /// Names of the bars of a row, for the legend; none for one bar a row.
    pub series: &'a [&'a str],
    pub rows: Vec<Bar>,
    /// A value that a line is drawn at.
    pub mark: Option<f64>,
    /// The axis's end, in multiples of the longest bar.
    pub room: f64,
}

impl Bars<'_> {
    pub fn svg(&self) -> Result<String> {
        let bars_per_row = self.series.len().max(1) as u32;
        let height = 100 + self.rows.len() as u32 * (16 + 14 * bars_per_row);
        svg(height, |area| self.draw(area).map_err(|error| anyhow!("{}: {error}", self.title)))
    }

    fn draw(&self, area: &Area) -> Result<(), Box<dyn std::error::Error>> {
        let values = self.rows.iter().flat_map(|row| &row.values).copied();
        let end = values.chain(self.mark).fold(0.0, f64::max) * self.room;
        let num_rows = self.rows.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(280)
            .build_cartesian_2d(0.0..end, num_rows..0.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().y_labels(0).x_desc(self.axis).label_style((FONT, 14));
        if self.rows.iter().any(|row| !row.note.is_empty()) {
            mesh.disable_x_mesh();
        }
        mesh.x_label_formatter(&|x| figure(*x)).light_line_style(TRANSPARENT).draw()?;
        let right = (FONT, 14).into_font().color(&BLACK).pos(Pos::new(HPos::Right, VPos::Center));
        let left = (FONT, 13).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
        for (row, Bar { label, values, note }) in self.rows.iter().enumerate() {
            let middle = row as f64 + 0.5;
            let (x, y) = chart.backend_coord(&(0.0, middle));
            area.draw(&Text::new(label.as_str(), (x - 8, y), right.clone()))?;
            let height = 0.8 / values.len() as f64;
            for (index, &value) in values.iter().enumerate() {
                let top = row as f64 + 0.1 + height * index as f64;
                let bar = [(0.0, top), (value, top + 0.9 * height)];
                chart.draw_series([Rectangle::new(bar, colour(index).filled())])?;
            }
            let longest = values.iter().copied().fold(0.0, f64::max);
            let (x, y) = chart.backend_coord(&(longest, middle));
            area.draw(&Text::new(note.as_str(), (x + 6, y), left.clone()))?;
        }
        if let Some(mark) = self.mark {
            let line = [(mark, 0.0), (mark, num_rows)];
            chart.draw_series([PathElement::new(line, BLACK.stroke_width(1))])?;
        }
        for (index, &name) in self.series.iter().enumerate() {
            chart.draw_series(std::iter::empty::<Rectangle<(f64, f64)>>())?.label(name).legend(
                move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour(index).filled()),
            );
        }
        if !self.series.is_empty() {
            legend(&mut chart, SeriesLabelPosition::UpperRight)?;
        }
        Ok(())
    }
}

/// The series of one panel.
pub struct Points {
    pub title: &'static str,
    pub series: Vec<Series>,
}

/// Panels of lines side by side, over a logarithmic x.
pub struct Lines<'a> {
    pub title: &'a str,
    /// What x and y are, with their units.
    pub axes: [&'a str; 2],
    pub panels: &'a [Points],
    /// A value of y that a line is drawn at, and what it is.
    pub limit: Option<(f64, &'a str)>,
}

impl Lines<'_> {
    pub fn svg(&self) -> Result<String> {
        svg(440, |area| self.draw(area).map_err(|error| anyhow!("{}: {error}", self.title)))
    }

    fn draw(&self, area: &Area) -> Result<(), Box<dyn std::error::Error>> {
        let area = area.titled(self.title, (FONT, 20))?;
        let points = || self.panels.iter().flat_map(|panel| &panel.series).flat_map(|s| &s.points);
        let top = points().map(|point| point.1).chain(self.limit.map(|limit| limit.0));
        let y = 0.0..1.15 * top.fold(0.0, f64::max);
        let (first, last) = points().fold((f64::MAX, 0.0f64), |(first, last), point| {
            (first.min(point.0), last.max(point.0))
        });
        for (panel, area) in self.panels.iter().zip(area.split_evenly((1, self.panels.len()))) {
            let mut builder = ChartBuilder::on(&area);
            builder.margin(12).x_label_area_size(44).y_label_area_size(64);
            if !panel.title.is_empty() {
                builder.caption(panel.title, (FONT, 16));
            }
            let x = (first / 1.2..last * 1.2).log_scale().base(2.0);
            let mut chart = builder.build_cartesian_2d(x, y.clone())?;
            let mut mesh = chart.configure_mesh();
            mesh.x_desc(self.axes[0]).y_desc(self.axes[1]).label_style((FONT, 14));
            mesh.x_label_formatter(&|x| figure(*x)).y_label_formatter(&|y| figure(*y));
            mesh.light_line_style(TRANSPARENT).draw()?;
            if let Some((limit, name)) = self.limit {
                let line = [(first / 1.2, limit), (last * 1.2, limit)];
                chart
                    .draw_series([PathElement::new(line, BLACK.stroke_width(2))])?
                    .label(name)
                    .legend(|(x, y)| {
                        PathElement::new([(x, y), (x + 18, y)], BLACK.stroke_width(2))
                    });
            }
            for (index, Series { name, points }) in panel.series.iter().enumerate() {
                let style = colour(index).stroke_width(2);
                chart
                    .draw_series(LineSeries::new(points.iter().copied(), style))?
                    .label(name.as_str())
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
                let dots = points.iter().map(|&at| Circle::new(at, 3, style.filled()));
                chart.draw_series(dots)?;
            }
            legend(&mut chart, SeriesLabelPosition::LowerRight)?;
        }
        Ok(())
    }
}

/// Points of operations a byte and TFLOP/s, under what `gbs` and `tflops` allow.
pub fn roofline(title: &str, gbs: f64, tflops: f64, series: &[Series]) -> Result<String> {
    svg(540, |area| {
        draw_roofline(area, title, gbs, tflops, series).map_err(|error| anyhow!("{title}: {error}"))
    })
}

fn draw_roofline(
    area: &Area,
    title: &str,
    gbs: f64,
    tflops: f64,
    series: &[Series],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || series.iter().flat_map(|series| &series.points);
    let first = points().map(|point| point.0).fold(f64::MAX, f64::min) / 2.0;
    let last = points().map(|point| point.0).fold(0.0, f64::max) * 2.0;
    let least = points().map(|point| point.1).fold(f64::MAX, f64::min) / 2.0;
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((first..last).log_scale(), (least..2.0 * tflops).log_scale())?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("floating-point operations a byte").y_desc("TFLOP/s").label_style((FONT, 14));
    mesh.x_label_formatter(&|x| figure(*x)).y_label_formatter(&|y| figure(*y));
    mesh.light_line_style(TRANSPARENT).draw()?;
    let roof = [first, 1e3 * tflops / gbs, last].map(|x| (x, (x * gbs / 1e3).min(tflops)));
    chart
        .draw_series(LineSeries::new(roof, BLACK.stroke_width(2)))?
        .label(format!("{} GB/s, {} TFLOP/s", figure(gbs), figure(tflops)))
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.stroke_width(2)));
    for (index, Series { name, points }) in series.iter().enumerate() {
        let style = colour(index).filled();
        chart
            .draw_series(points.iter().map(|&at| Circle::new(at, 4, style)))?
            .label(name.as_str())
            .legend(move |(x, y)| Circle::new((x + 9, y), 4, style));
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

/// An SVG of this height, as `draw` fills it.
fn svg(height: u32, draw: impl FnOnce(&Area) -> Result<()>) -> Result<String> {
    // Metrics of text come from the same font on every machine, installed or not.
    for style in [FontStyle::Normal, FontStyle::Bold] {
        let _ = register_font(FONT, style, dejavu::sans::regular());
    }
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(svg)
}

/// A number with commas between its thousands.
pub fn figure(value: f64) -> String {
    let text = value.to_string();
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut figure = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            figure.push(',');
        }
        figure.push(digit);
    }
    if rest.is_empty() { figure } else { figure + "." + rest }
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

fn legend<'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, C>,
    position: SeriesLabelPosition,
) -> Result<(), Box<dyn std::error::Error>> {
    chart
        .configure_series_labels()
        .position(position)
        .label_font((FONT, 13))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(|error| error.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        for (value, text) in
            [(0.0, "0"), (782.0, "782"), (1851.0, "1,851"), (1e6, "1,000,000"), (4400.5, "4,400.5")]
        {
            assert_eq!(figure(value), text);
        }
    }
}
