//! Admitted and denied over time, as an SVG that stands alone and follows the
//! reader's light or dark theme.

use std::fmt::Write as _;

use tollgate_core::replay::{BucketRow, Report, time};

use crate::screen::{grouped, percent};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
/// Of the plot.
const LEFT: f64 = 64.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 708.0;
const BOTTOM: f64 = 220.0;

/// The whole file.
pub(crate) fn draw(report: &Report<'_>) -> String {
    let most = report.buckets.iter().map(|row| row.admitted + row.denied).max().unwrap_or(0).max(1);
    let step = (RIGHT - LEFT) / report.buckets.len().max(1) as f64;
    let height = |count: u64| (BOTTOM - TOP) * count as f64 / most as f64;
    let bars = |of: &dyn Fn(&BucketRow) -> (u64, u64)| {
        let mut path = String::new();
        for (index, row) in report.buckets.iter().enumerate() {
            let (below, count) = of(row);
            if count > 0 {
                let x = LEFT + step * index as f64;
                let (y, w, h) = (BOTTOM - height(below), step * 0.9, height(count));
                let _ = write!(path, "M{x:.1} {y:.1}v-{h:.1}h{w:.1}v{h:.1}z");
            }
        }
        path
    };
    let admitted = bars(&|row| (0, row.admitted));
    let denied = bars(&|row| (row.admitted, row.denied));
    let totals = report.totals;
    let told = format!(
        "{} admitted, {} denied ({}) in spans of {}",
        grouped(totals.admitted),
        grouped(totals.denied),
        percent(totals.denied, totals.requests),
        time::span(report.bucket_seconds.saturating_mul(1_000_000_000))
    );
    let mut out = String::new();
    let _ = write!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">
<title id="t">Requests over time</title>
<desc id="d">{told}</desc>
<style>
svg {{ color: #1f2328; background: #fff; font: 12px system-ui, sans-serif }}
.a {{ fill: #1a7f37 }} .d {{ fill: #cf222e }}
text {{ fill: currentColor }} line {{ stroke: currentColor; stroke-opacity: .3 }}
@media (prefers-color-scheme: dark) {{ svg {{ color: #e6edf3; background: #0d1117 }} .a {{ fill: #3fb950 }} .d {{ fill: #f85149 }} }}
</style>
<rect class="a" x="{LEFT}" y="14" width="10" height="10"/><text x="{}" y="23">admitted</text>
<rect class="d" x="{}" y="14" width="10" height="10"/><text x="{}" y="23">denied</text>
<text x="{RIGHT}" y="23" text-anchor="end">{told}</text>
"##,
        LEFT + 16.0,
        LEFT + 90.0,
        LEFT + 106.0
    );
    for (share, count) in [(0.0, 0), (0.5, most / 2), (1.0, most)] {
        let y = BOTTOM - (BOTTOM - TOP) * share;
        let _ = writeln!(
            out,
            r#"<line x1="{LEFT}" y1="{y}" x2="{RIGHT}" y2="{y}"/><text x="{}" y="{}" text-anchor="end">{}</text>"#,
            LEFT - 6.0,
            y + 4.0,
            grouped(count)
        );
    }
    let _ = writeln!(out, r#"<path class="a" d="{admitted}"/><path class="d" d="{denied}"/>"#);
    let ends = [(LEFT, "start", &report.first), (RIGHT, "end", &report.last)];
    for (x, anchor, at) in ends {
        if let Some(at) = at {
            let _ = writeln!(out, r#"<text x="{x}" y="240" text-anchor="{anchor}">{at}</text>"#);
        }
    }
    out.push_str("</svg>\n");
    out
}
