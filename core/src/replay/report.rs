//! What came out of a replay, for JSON and as CSV.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write as _;

use serde::Serialize;

use super::engine::{Counts, PolicyTotals, Totals};
use super::faults::Faults;
use super::{grouped, time};
use crate::limit::Algorithm;
use crate::policy::{HeaderUse, Rules, Store};
use crate::table::Stats;

/// What came out; it serialises to what `tollgate replay --format json` prints.
#[derive(Debug, Serialize)]
pub struct Report<'e> {
    /// Of all requests.
    #[serde(flatten)]
    pub totals: Totals,
    /// The earliest time, ISO 8601.
    pub first: Option<String>,
    /// The latest.
    pub last: Option<String>,
    /// By policy, in file order.
    pub policies: Vec<PolicyRow<'e>>,
    /// Those limited most.
    pub keys: Vec<KeyRow<'e>>,
    /// Seconds of a span of time.
    pub bucket_seconds: u64,
    /// Over time.
    pub buckets: Vec<BucketRow>,
    /// Lines that were left out.
    pub faults: &'e Faults,
    /// Keys that began anew, as there were too many.
    pub evictions: u64,
    /// What the reader should know.
    pub notes: Vec<String>,
    /// Nanoseconds from the first request to the last.
    #[serde(skip)]
    pub span: u64,
}

/// One policy.
#[derive(Debug, Serialize)]
pub struct PolicyRow<'e> {
    /// Its name.
    pub name: &'e str,
    /// Of the requests that it applied to.
    #[serde(flatten)]
    pub totals: PolicyTotals,
}

/// One key of one policy.
#[derive(Debug, Serialize)]
pub struct KeyRow<'e> {
    /// The policy.
    pub policy: &'e str,
    /// What it counts by.
    pub key: Vec<Part>,
    /// Denied, or denied in a dry run.
    pub denied: u64,
    /// `denied` is too large by at most this.
    pub error: u64,
    /// Requests that were admitted.
    pub admitted: u64,
    /// If not, `admitted` may be too small.
    pub exact: bool,
}

/// One part of a key.
#[derive(Debug, Serialize)]
pub struct Part {
    /// As the rules file names it.
    pub part: String,
    /// Its value; of a credential the beginning of its digest.
    pub value: String,
}

/// One span of time.
#[derive(Debug, Serialize)]
pub struct BucketRow {
    /// When it begins, ISO 8601.
    pub time: String,
    /// Requests that were admitted.
    pub admitted: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Requests without an identity that is required.
    pub unidentified: u64,
}

impl<'e> Report<'e> {
    pub(super) fn new(rules: &'e Rules, engine: &'e Counts, stats: Stats, top: usize) -> Report<'e> {
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
            evictions: stats.evictions + stats.row_evictions,
            notes: notes(rules, engine, stats),
            span: engine.span.map_or(0, |(first, last)| last - first),
        }
    }

    /// One table: a row says in its first column what it is about.
    #[must_use]
    pub fn csv(&self) -> String {
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
    /// All parts in one line.
    #[must_use]
    pub fn label(&self) -> String {
        let parts: Vec<_> = self.key.iter().map(|part| format!("{}={}", part.part, part.value)).collect();
        parts.join(" ")
    }
}

/// A field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}

/// A count of things, with the word for one or for many.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

fn notes(rules: &Rules, engine: &Counts, stats: Stats) -> Vec<String> {
    let mut notes = Vec::new();
    let faults = &engine.faults;
    if faults.unreadable > 0 {
        let told = faults.told();
        let lines = counted(faults.unreadable, "line was", "lines were");
        notes.push(format!("{lines} left out ({told})"));
    }
    if faults.out_of_order > 0 {
        let named: Vec<_> = faults.first_out_of_order.iter().map(ToString::to_string).collect();
        notes.push(format!(
            "{} than one before (first: line {}); a clock that steps back grants nothing",
            counted(faults.out_of_order, "line is older", "lines are older"),
            named.join(", ")
        ));
    }
    if let Some(header) = &engine.missing {
        notes.push(format!(
            "{} an identity that the rules require, and would be answered 401; the first lacks \
             the header field {header}. If the log does not hold it, log it: a JSON log names it {}",
            counted(engine.totals.unidentified, "request lacks", "requests lack"),
            format_args!("http_{}", header.replace('-', "_"))
        ));
    }
    untold(rules, engine, &mut notes);
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
            "{} matched more limits than one may have; those further on were left out",
            counted(engine.overflows, "request", "requests")
        ));
    }
    for policy in rules.policies() {
        if policy.all_limits().any(|limit| limit.algorithm() == Algorithm::Concurrency) {
            notes.push(format!(
                "policy {}: a log does not tell how many requests were in flight, so its concurrency is not judged",
                policy.name()
            ));
        }
    }
    if rules.policies().iter().any(|policy| policy.store() == Store::Redis) {
        notes.push("policies that count in Redis were counted as if this log were all traffic".into());
    }
    notes
}

/// Header fields that the rules look at and no line tells: what was counted is
/// not what a host would count.
fn untold(rules: &Rules, engine: &Counts, notes: &mut Vec<String>) {
    if engine.totals.requests == 0 {
        return;
    }
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
