//! What came out of a replay, as a table for people.

use std::fmt::Write as _;

use tollgate_core::replay::{PolicyRow, Report, Totals, time};

use super::chart;
use crate::screen::{Paint, grouped, percent, table};

/// The whole text.
pub(crate) fn of(report: &Report<'_>, paint: Paint, is_chart: bool) -> String {
    let mut out = String::new();
    let Totals { requests, admitted, denied, unidentified, unlimited, logged_429 } = report.totals;
    let requests_told = paint.bold(&format!("{} requests", grouped(requests)));
    let _ = match (&report.first, &report.last) {
        (Some(first), Some(last)) => {
            writeln!(
                out,
                "{requests_told} in {} of the log's time, {first} to {last}",
                time::span(report.span)
            )
        }
        _ => writeln!(out, "{requests_told}"),
    };
    out.push('\n');
    let mut line = |name: &str, count: u64, paint: &dyn Fn(&str) -> String| {
        let told = format!("{name:<12} {:>14}  {:>8}", grouped(count), percent(count, requests));
        let _ = writeln!(out, "  {}", paint(&told));
    };
    let plain = |text: &str| text.to_owned();
    line("admitted", admitted, &|text| paint.green(text));
    line("denied", denied, &|text| if denied > 0 { paint.red(text) } else { text.to_owned() });
    if unidentified > 0 {
        line("unidentified", unidentified, &|text| paint.yellow(text));
    }
    if unlimited > 0 {
        line("(unlimited)", unlimited, &plain);
    }
    if logged_429 > 0 {
        line("(logged 429)", logged_429, &plain);
    }
    if requests > 0 {
        let _ = write!(out, "\n{}\n{}", paint.bold("By policy"), policy_table(report, paint));
        if !report.keys.is_empty() {
            let title = format!("By key, the {} denied most", report.keys.len());
            let _ = write!(out, "\n{}\n{}", paint.bold(&title), key_table(report, paint));
        }
        let width = time::span(report.bucket_seconds.saturating_mul(1_000_000_000));
        let title = format!("Over time (UTC), in spans of {width}");
        let drawn = if is_chart { chart::draw(report, paint) } else { time_table(report, paint) };
        let _ = write!(out, "\n{}\n{drawn}", paint.bold(&title));
    }
    out
}

fn policy_table(report: &Report<'_>, paint: Paint) -> String {
    let heading =
        ["policy", "requests", "admitted", "denied", "denied %", "by others", "would deny", "unidentified"];
    let rows = report.policies.iter().map(|PolicyRow { name, totals }| {
        vec![
            (*name).to_owned(),
            grouped(totals.requests),
            grouped(totals.admitted),
            grouped(totals.denied),
            percent(totals.denied, totals.requests),
            grouped(totals.denied_by_others),
            grouped(totals.would_deny),
            grouped(totals.unidentified),
        ]
    });
    table(paint, &heading, &rows.collect::<Vec<_>>(), 1)
}

fn key_table(report: &Report<'_>, paint: Paint) -> String {
    let rows = report.keys.iter().map(|row| {
        let [most, least] = if row.exact { ["", ""] } else { ["≤ ", "≥ "] };
        let (denied, admitted) = (grouped(row.denied), grouped(row.admitted));
        vec![row.policy.to_owned(), row.label(), format!("{most}{denied}"), format!("{least}{admitted}")]
    });
    table(paint, &["policy", "key", "denied", "admitted"], &rows.collect::<Vec<_>>(), 2)
}

fn time_table(report: &Report<'_>, paint: Paint) -> String {
    let rows = report.buckets.iter().map(|row| {
        vec![row.time.clone(), grouped(row.admitted), grouped(row.denied), grouped(row.unidentified)]
    });
    table(paint, &["from", "admitted", "denied", "unidentified"], &rows.collect::<Vec<_>>(), 1)
}
