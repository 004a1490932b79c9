//! What came out of a replay, as a table, as JSON and as CSV.

use std::fmt::Write as _;

use serde::Serialize;
use tollgate_core::limit::Algorithm;
use tollgate_core::policy::{HeaderUse, Store};

use super::chart;
use super::engine::{Engine, PolicyTotals, Totals};
use super::faults::Faults;
use crate::screen::{Paint, grouped, percent, table};
use crate::time;

#[derive(Serialize)]
pub(crate) struct Report<'e> {
    #[serde(flatten)]
    pub(crate) totals: Totals,
    pub(crate) first: Option<String>,
    pub(crate) last: Option<String>,
    pub(crate) policies: Vec<PolicyRow<'e>>,
    /// Those limited most.
    pub(crate) keys: Vec<KeyRow<'e>>,
    pub(crate) bucket_seconds: u64,
    pub(crate) buckets: Vec<BucketRow>,
    pub(crate) faults: &'e Faults,
    pub(crate) evictions: u64,
    /// What the reader should know.
    pub(crate) notes: Vec<String>,
    #[serde(skip)]
    span: u64,
}

#[derive(Serialize)]
pub(crate) struct PolicyRow<'e> {
    pub(crate) name: &'e str,
    #[serde(flatten)]
    pub(crate) totals: PolicyTotals,
}

#[derive(Serialize)]
pub(crate) struct KeyRow<'e> {
    pub(crate) policy: &'e str,
    pub(crate) key: Vec<Part>,
    /// Denied, or denied in a dry run.
    pub(crate) denied: u64,
    /// `denied` is too large by at most this.
    pub(crate) error: u64,
    pub(crate) admitted: u64,
    /// If not, `admitted` may be too small.
    pub(crate) exact: bool,
}

#[derive(Serialize)]
pub(crate) struct Part {
    part: String,
    value: String,
}

#[derive(Serialize)]
pub(crate) struct BucketRow {
    pub(crate) time: String,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) unidentified: u64,
}

impl<'e> Report<'e> {
    pub(crate) fn new(engine: &'e Engine<'_, '_>, top: usize) -> Report<'e> {
        let rules = engine.rules;
        let policies = rules.policies().iter().zip(&engine.policies);
        let key = |policy: usize, key: &[u8]| {
            let fields = rules.key_fields(policy, key).into_iter();
            fields
                .map(|field| Part { part: field.name.into_owned(), value: field.value.to_string() })
                .collect()
        };
        let keys = engine.top.most(top).into_iter().map(|entry| KeyRow {
            policy: rules.policies().get(entry.policy).map_or("", |policy| policy.name()),
            key: key(entry.policy, &entry.key),
            denied: entry.limited,
            error: entry.error,
            admitted: entry.admitted,
            exact: entry.is_exact,
        });
        let buckets = engine.timeline.buckets().map(|(second, bucket)| BucketRow {
            time: time::iso(second.saturating_mul(1_000_000_000)),
            admitted: bucket.admitted,
            denied: bucket.denied,
            unidentified: bucket.unidentified,
        });
        Report {
            totals: engine.totals,
            first: engine.span.map(|(first, _)| time::iso(first)),
            last: engine.span.map(|(_, last)| time::iso(last)),
            policies: policies
                .map(|(policy, totals)| PolicyRow { name: policy.name(), totals: *totals })
                .collect(),
            keys: keys.collect(),
            bucket_seconds: engine.timeline.width(),
            buckets: buckets.collect(),
            faults: &engine.faults,
            evictions: engine.table.stats().evictions + engine.table.stats().row_evictions,
            notes: notes(engine),
            span: engine.span.map_or(0, |(first, last)| last - first),
        }
    }

    pub(crate) fn text(&self, paint: Paint, is_chart: bool) -> String {
        let mut out = String::new();
        let Totals { requests, admitted, denied, unidentified, unlimited, logged_429 } = self.totals;
        let requests_told = paint.bold(&format!("{} requests", grouped(requests)));
        let _ = match (&self.first, &self.last) {
            (Some(first), Some(last)) => {
                writeln!(
                    out,
                    "{requests_told} in {} of the log's time, {first} to {last}",
                    time::span(self.span)
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
            let _ = write!(out, "\n{}\n{}", paint.bold("By policy"), self.policy_table(paint));
            if !self.keys.is_empty() {
                let title = format!("By key, the {} denied most", self.keys.len());
                let _ = write!(out, "\n{}\n{}", paint.bold(&title), self.key_table(paint));
            }
            let width = time::span(self.bucket_seconds.saturating_mul(1_000_000_000));
            let title = format!("Over time (UTC), in spans of {width}");
            let drawn = if is_chart { chart::draw(self, paint) } else { self.time_table(paint) };
            let _ = write!(out, "\n{}\n{drawn}", paint.bold(&title));
        }
        out
    }

    fn policy_table(&self, paint: Paint) -> String {
        let heading = [
            "policy",
            "requests",
            "admitted",
            "denied",
            "denied %",
            "by others",
            "would deny",
            "unidentified",
        ];
        let rows = self.policies.iter().map(|PolicyRow { name, totals }| {
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

    fn key_table(&self, paint: Paint) -> String {
        let rows = self.keys.iter().map(|row| {
            let [most, least] = if row.exact { ["", ""] } else { ["≤ ", "≥ "] };
            let (denied, admitted) = (grouped(row.denied), grouped(row.admitted));
            vec![row.policy.to_owned(), row.label(), format!("{most}{denied}"), format!("{least}{admitted}")]
        });
        table(paint, &["policy", "key", "denied", "admitted"], &rows.collect::<Vec<_>>(), 2)
    }

    fn time_table(&self, paint: Paint) -> String {
        let rows = self.buckets.iter().map(|row| {
            vec![row.time.clone(), grouped(row.admitted), grouped(row.denied), grouped(row.unidentified)]
        });
        table(paint, &["from", "admitted", "denied", "unidentified"], &rows.collect::<Vec<_>>(), 1)
    }

    /// One table: a row says in its first column what it is about.
    pub(crate) fn csv(&self) -> String {
        let mut out = String::from(
            "section,policy,key,time,requests,admitted,denied,denied_by_others,would_deny,unidentified\n",
        );
        let Totals { requests, admitted, denied, unidentified, .. } = self.totals;
        let _ = writeln!(out, "total,,,,{requests},{admitted},{denied},,,{unidentified}");
        for PolicyRow { name, totals: t } in &self.policies {
            let _ = writeln!(
                out,
                "policy,{},,,{},{},{},{},{},{}",
                quoted(name),
                t.requests,
                t.admitted,
                t.denied,
                t.denied_by_others,
                t.would_deny,
                t.unidentified
            );
        }
        for row in &self.keys {
            let (policy, key) = (quoted(row.policy), quoted(&row.label()));
            let _ = writeln!(out, "key,{policy},{key},,,{},{},,,", row.admitted, row.denied);
        }
        for row in &self.buckets {
            let _ = writeln!(
                out,
                "time,,,{},{},{},{},,,{}",
                row.time,
                row.admitted + row.denied + row.unidentified,
                row.admitted,
                row.denied,
                row.unidentified
            );
        }
        out
    }
}

impl KeyRow<'_> {
    fn label(&self) -> String {
        let parts: Vec<_> = self.key.iter().map(|part| format!("{}={}", part.part, part.value)).collect();
        parts.join(" ")
    }
}

/// A field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

fn notes(engine: &Engine<'_, '_>) -> Vec<String> {
    let mut notes = Vec::new();
    let faults = &engine.faults;
    if faults.unreadable > 0 {
        let told = faults.told();
        notes.push(format!("{} lines were left out ({told})", grouped(faults.unreadable)));
    }
    if faults.out_of_order > 0 {
        let named: Vec<_> = faults.first_out_of_order.iter().map(ToString::to_string).collect();
        notes.push(format!(
            "{} lines are older than one before them (first: line {}); a clock that steps back grants nothing",
            grouped(faults.out_of_order),
            named.join(", ")
        ));
    }
    if let Some(header) = engine.missing {
        notes.push(format!(
            "{} requests lack an identity that the rules require, and would be answered 401; the first lacks \
             the header field {header}. If the log does not hold it, log it: a JSON log names it {}",
            grouped(engine.totals.unidentified),
            format_args!("http_{}", header.replace('-', "_"))
        ));
    }
    untold(engine, &mut notes);
    let stats = engine.table.stats();
    if stats.evictions > 0 {
        notes.push(format!(
            "more keys were active at once than {} places hold: {} began anew; raise --capacity",
            grouped(stats.capacity),
            grouped(stats.evictions)
        ));
    }
    if stats.row_evictions > 0 {
        notes.push(format!(
            "more keys of sliding logs were active at once than {} rows hold: {} began anew",
            grouped(stats.rows),
            grouped(stats.row_evictions)
        ));
    }
    if engine.overflows > 0 {
        notes.push(format!(
            "{} requests matched more limits than one may have; those further on were left out",
            grouped(engine.overflows)
        ));
    }
    for policy in engine.rules.policies() {
        if policy.all_limits().any(|limit| limit.algorithm() == Algorithm::Concurrency) {
            notes.push(format!(
                "policy {}: a log does not tell how many requests were in flight, so its concurrency is not judged",
                policy.name()
            ));
        }
    }
    if engine.rules.policies().iter().any(|policy| policy.store() == Store::Redis) {
        notes.push("policies that count in Redis were counted as if this log were all traffic".into());
    }
    notes
}

/// Header fields that the rules look at and no line tells: what was counted is
/// not what a host would count.
fn untold(engine: &Engine<'_, '_>, notes: &mut Vec<String>) {
    if engine.totals.requests == 0 {
        return;
    }
    let rules = engine.rules;
    for (header, _) in rules.headers().iter().zip(engine.told).filter(|(_, told)| !told) {
        let mut effects = Vec::new();
        for policy in rules.policies() {
            let used = rules.headers_asked(policy).find(|(name, _)| name == header);
            let effect = match used {
                None => continue,
                Some((_, HeaderUse::Key)) => "counts all requests as one",
                Some((_, HeaderUse::PartOfKey)) => "counts without it",
                Some((_, HeaderUse::Match)) => "looks for it in vain",
            };
            effects.push(format!("policy {} {effect}", policy.name()));
        }
        if !effects.is_empty() {
            notes.push(format!(
                "this log does not tell {header}; {}. Log it: cli/README.md has a JSON log_format for that",
                effects.join(", ")
            ));
        }
    }
}
