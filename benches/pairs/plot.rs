//! docs/pairs.svg: every ratio that has a target, as a bar, with a mark where the target is.

use std::fmt::Write as _;
use std::fs;

use crate::finding::Finding;
use crate::{docs, Results};

const WIDTH: f64 = 1_100.0;
const LABELS_WIDTH: f64 = 520.0;
const BAR_HEIGHT: f64 = 16.0;
const STEP: f64 = 24.0;
const HEAD_HEIGHT: f64 = 44.0;
/// The ratio at the right side; a longer bar is cut there.
const RATIO_MAX: f64 = 2.0;
const MET: &str = "#0072b2";
const MISSED: &str = "#c1121f";

/// Draws everything into docs/pairs.svg.
pub fn write(results: &[Results]) {
    fs::write(docs::dir().join("pairs.svg"), draw(results).expect("write to a string")).expect("write the plot");
}

fn draw(results: &[Results]) -> Result<String, std::fmt::Error> {
    let bars = |results: &Results| results.findings.iter().filter(|one| one.target.is_some()).count();
    let height: f64 = results.iter().map(|results| HEAD_HEIGHT + STEP * bars(results) as f64).sum::<f64>() + STEP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut top = 0.0;
    for results in results {
        writeln!(
            svg,
            "<text x=\"12\" y=\"{}\" font-weight=\"bold\">{}: this module by the other (less is better; the mark is the \
             target)</text>",
            top + HEAD_HEIGHT / 1.6,
            results.kind.name()
        )?;
        top += HEAD_HEIGHT;
        for finding in &results.findings {
            let Some(target) = finding.target else { continue };
            bar(&mut svg, finding, target, top)?;
            top += STEP;
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn bar(svg: &mut String, finding: &Finding, target: f64, top: f64) -> std::fmt::Result {
    let x_of = |ratio: f64| LABELS_WIDTH + (WIDTH - LABELS_WIDTH - 60.0) * (ratio / RATIO_MAX).min(1.0);
    let (end, mark, middle) = (x_of(finding.ratio), x_of(target), top + BAR_HEIGHT * 0.75);
    let colour = if finding.is_met() { MET } else { MISSED };
    writeln!(
        svg,
        "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\
         <rect x=\"{LABELS_WIDTH}\" y=\"{top}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\"/>\
         <line x1=\"{mark:.1}\" y1=\"{}\" x2=\"{mark:.1}\" y2=\"{}\" stroke=\"black\" stroke-width=\"2\"/>\
         <text x=\"{:.1}\" y=\"{middle}\">{:.2}</text>",
        LABELS_WIDTH - 8.0,
        finding.what,
        end - LABELS_WIDTH,
        top - 3.0,
        top + BAR_HEIGHT + 3.0,
        end.max(mark) + 8.0,
        finding.ratio
    )
}
