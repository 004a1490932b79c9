//! Admitted and denied over time, as bars in a terminal.

use std::fmt::Write as _;

use tollgate_core::replay::Report;

use crate::screen::{Paint, grouped};

/// Characters of the longest bar.
const WIDTH: u64 = 50;

/// One bar a span.
pub(crate) fn draw(report: &Report<'_>, paint: Paint) -> String {
    let most = report.buckets.iter().map(|row| row.admitted + row.denied).max().unwrap_or(0).max(1);
    let cells = |count: u64| usize::try_from((count * WIDTH).div_ceil(most)).unwrap_or(0);
    let mut out = String::new();
    for row in &report.buckets {
        let all = cells(row.admitted + row.denied);
        // What is denied is seen, be it ever so little.
        let denied = cells(row.denied).min(all);
        let (admitted, denied) = ("█".repeat(all - denied), "░".repeat(denied));
        let room = " ".repeat((WIDTH as usize).saturating_sub(all));
        let bar = format!("{}{}{room}", paint.green(&admitted), paint.red(&denied));
        let mut counts = grouped(row.admitted);
        if row.denied > 0 {
            let denied = format!(" + {} denied", grouped(row.denied));
            counts.push_str(&paint.red(&denied));
        }
        let _ = writeln!(out, "{} {bar} {counts}", paint.dim(&row.time));
    }
    let _ = writeln!(out, "{} admitted  {} denied", paint.green("█"), paint.red("░"));
    out
}
