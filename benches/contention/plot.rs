//! docs/contention.svg: for each server, hand-overs and longest waits by the number of clients, on logarithmic scales.

use std::fmt::Write as _;
use std::fs;

use crate::contender::Contender;
use crate::docs;
use crate::tally::Figures;
use crate::Results;

const WIDTH: f64 = 960.0;
const HEAD_HEIGHT: f64 = 84.0;
const ROW_HEIGHT: f64 = 330.0;
/// The plotting area of a panel.
const PANEL: (f64, f64) = (370.0, 230.0);
const PANEL_LEFT: [f64; 2] = [80.0, 560.0];
const PANEL_TOP: f64 = 40.0;
/// Space between the area's sides and the first and last number of clients.
const INSET: f64 = 20.0;
const LEGEND_COLUMNS: usize = 4;
const LEGEND_STEP: (f64, f64) = (220.0, 22.0);
/// How much larger the lines of this benchmark's own kind are drawn.
const STROKES: (f64, f64) = (3.0, 1.8);
const DOTS: (f64, f64) = (4.5, 3.5);

/// What a panel shows.
struct Measure {
    title: &'static str,
    of: fn(&Figures) -> f64,
}

const MEASURES: [Measure; 2] = [
    Measure { title: "hand-overs per second (more is better)", of: |figures| figures.handovers_per_s },
    Measure { title: "longest wait in ms (less is better)", of: |figures| figures.wait_max_ms },
];

/// Draws everything into docs/contention.svg.
pub fn write(results: &[Results]) {
    let svg = draw(results).expect("write to a string");
    fs::write(docs::dir().join("contention.svg"), svg).expect("write the plot");
}

fn colour(contender: Contender) -> &'static str {
    match contender {
        Contender::Lock => "#c1121f",
        Contender::Baton => "#333333",
        Contender::RedisPy => "#0072b2",
        Contender::PythonRedisLock => "#56b4e9",
        Contender::RedisSemaphore => "#009e73",
        Contender::Redlock => "#e69f00",
        Contender::Rslock => "#cc79a7",
    }
}

fn draw(results: &[Results]) -> Result<String, std::fmt::Error> {
    let height = HEAD_HEIGHT + ROW_HEIGHT * results.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    legend(&mut svg)?;
    for (row, results) in results.iter().enumerate() {
        for (measure, left) in MEASURES.iter().zip(PANEL_LEFT) {
            let top = HEAD_HEIGHT + ROW_HEIGHT * row as f64 + PANEL_TOP;
            panel(&mut svg, results, measure, (left, top))?;
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn legend(svg: &mut String) -> std::fmt::Result {
    for (number, contender) in Contender::ALL.into_iter().enumerate() {
        let x = 40.0 + LEGEND_STEP.0 * (number % LEGEND_COLUMNS) as f64;
        let y = 28.0 + LEGEND_STEP.1 * (number / LEGEND_COLUMNS) as f64;
        let (colour, weight) = (colour(contender), if contender.is_foreign() { "normal" } else { "bold" });
        writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"4\"/>\
             <text x=\"{}\" y=\"{}\" font-weight=\"{weight}\">{}</text>",
            x + 26.0,
            x + 34.0,
            y + 4.5,
            contender.title()
        )?;
    }
    Ok(())
}

/// A range of values from a power of ten to another, drawn over a length.
struct Decades {
    first: i32,
    last: i32,
}

impl Decades {
    fn around(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value.log10()), high.max(value.log10())));
        let first = low.min(high).floor() as i32;
        Self { first, last: (high.max(low).ceil() as i32).max(first + 1) }
    }

    /// Where a value is, from 0 at the low end to 1. Values too small to draw are at the low end.
    fn part(&self, value: f64) -> f64 {
        let low = f64::from(self.first);
        ((value.log10().max(low) - low) / f64::from(self.last - self.first)).clamp(0.0, 1.0)
    }
}

fn panel(svg: &mut String, results: &Results, measure: &Measure, (left, top): (f64, f64)) -> std::fmt::Result {
    let (width, height) = PANEL;
    let decades = Decades::around(results.contention.iter().map(|(_, _, figures)| (measure.of)(figures)));
    let y_of = |value: f64| top + height * (1.0 - decades.part(value));
    writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{}: {}</text>\
         <rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#888888\"/>",
        top - 12.0,
        results.kind.name(),
        measure.title
    )?;
    for power in decades.first..=decades.last {
        let value = 10_f64.powi(power);
        let y = y_of(value);
        writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            left + width,
            left - 8.0,
            y + 4.5
        )?;
    }
    let clients = columns(results);
    let low = f64::from(*clients.first().unwrap_or(&1));
    let high = f64::from(*clients.last().unwrap_or(&2)).max(low * 2.0);
    let x_of = |clients: f64| left + INSET + (width - 2.0 * INSET) * (clients / low).log10() / (high / low).log10();
    for clients in clients {
        let x = x_of(f64::from(clients));
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{clients}</text>", top + height + 18.0)?;
    }
    let middle = left + width / 2.0;
    writeln!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">clients</text>", top + height + 36.0)?;
    // This benchmark's own kind last, over the others.
    for contender in Contender::ALL.into_iter().rev() {
        let lines = results.contention.iter().filter(|(_, who, _)| *who == contender);
        let points: Vec<(f64, f64)> =
            lines.map(|(clients, _, figures)| (x_of(*clients as f64), y_of((measure.of)(figures)))).collect();
        curve(svg, contender, &points)?;
    }
    Ok(())
}

fn columns(results: &Results) -> Vec<u32> {
    let mut clients: Vec<u32> = results.contention.iter().map(|(clients, _, _)| *clients as u32).collect();
    clients.sort_unstable();
    clients.dedup();
    clients
}

fn curve(svg: &mut String, contender: Contender, points: &[(f64, f64)]) -> std::fmt::Result {
    let colour = colour(contender);
    let (stroke, dot) = if contender.is_foreign() { (STROKES.1, DOTS.1) } else { (STROKES.0, DOTS.0) };
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{stroke}\"/>",
        path.join(" ")
    )?;
    for (x, y) in points {
        writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{dot}\" fill=\"{colour}\"/>")?;
    }
    Ok(())
}
