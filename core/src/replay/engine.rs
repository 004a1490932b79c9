//! The question to the core, and what is counted of its answers.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde::Serialize;

use super::faults::Faults;
use super::record::{MAX_HEADERS, Record};
use super::timeline::{Kind, Timeline};
use super::top::Top;
use crate::limit::{Algorithm, Limit};
use crate::policy::{KeyRoom, Outcome, Rules, Selection, check};
use crate::table::{Config, Table};
use crate::time::Nanos;

/// Bytes for the rows of logs and concurrency limits.
const ROW_BYTES: u64 = 256 << 20;

/// A table that can serve every limit of the rules.
pub(super) fn layout(rules: &Rules, capacity: u64) -> Config {
    let limits = rules.policies().iter().flat_map(|policy| policy.all_limits());
    let row_entries = limits.filter(|limit| needs_row(limit)).map(Limit::limit).max().unwrap_or(0);
    let rows = match row_entries {
        0 => 0,
        entries => (ROW_BYTES / (16 * (entries + 4))).clamp(1, capacity.max(1)),
    };
    Config { capacity, rows, row_entries }
}

fn needs_row(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency)
}

/// What became of all requests.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// All.
    pub requests: u64,
    /// By all policies.
    pub admitted: u64,
    /// By at least one.
    pub denied: u64,
    /// Without an identity that is required: 401.
    pub unidentified: u64,
    /// Admitted because no policy applies.
    pub unlimited: u64,
    /// Answered 429 in their own time.
    pub logged_429: u64,
}

/// What became of the requests that one policy applied to.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PolicyTotals {
    /// All that it applied to.
    pub requests: u64,
    /// By all policies together.
    pub admitted: u64,
    /// By this policy.
    pub denied: u64,
    /// By others only: this one was not charged.
    pub denied_by_others: u64,
    /// In dry run.
    pub would_deny: u64,
    /// Without the identity that it needs.
    pub unidentified: u64,
}

/// What was counted so far.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) totals: Totals,
    pub(super) policies: Vec<PolicyTotals>,
    pub(super) top: Top,
    pub(super) timeline: Timeline,
    pub(super) faults: Faults,
    /// The earliest and the latest instant.
    pub(super) span: Option<(Nanos, Nanos)>,
    /// The header field that the first unidentified request lacks.
    pub(super) missing: Option<String>,
    /// Header fields that some line has told, by their place in the rules' list.
    pub(super) told: [bool; MAX_HEADERS],
    /// Requests that matched more limits than one may have.
    pub(super) overflows: u64,
}

impl Counts {
    pub(super) fn new(policies: usize, buckets: usize) -> Counts {
        Counts {
            totals: Totals::default(),
            policies: vec![PolicyTotals::default(); policies],
            top: Top::default(),
            timeline: Timeline::new(buckets),
            faults: Faults::default(),
            span: None,
            missing: None,
            told: [false; MAX_HEADERS],
            overflows: 0,
        }
    }
}

/// Rules, the table that they count in, and the counts of their answers.
pub(super) struct Engine<'e> {
    pub(super) rules: &'e Rules,
    pub(super) table: Table<'e>,
    pub(super) counts: &'e mut Counts,
    pub(super) room: KeyRoom,
}

impl Engine<'_> {
    /// Asks the core about one request of the log.
    pub(super) fn ask(&mut self, record: &Record<'_>, line: u64) {
        let at = record.at;
        self.counts.span = match self.counts.span {
            None => Some((at, at)),
            Some((first, last)) => {
                if at < last {
                    self.counts.faults.out_of_order(line);
                }
                Some((first.min(at), last.max(at)))
            }
        };
        self.counts.totals.requests += 1;
        for (told, value) in self.counts.told.iter_mut().zip(record.request.headers) {
            *told |= value.is_some();
        }
        self.counts.totals.logged_429 += u64::from(record.was_limited);
        let kind = match self.rules.select(&record.request, &mut self.room) {
            Ok(selection) => decide(self.rules, &self.table, self.counts, &selection, at),
            Err(missing) => {
                let place = self.rules.policies().iter().position(|policy| policy.name() == missing.policy);
                if let Some(policy) = place.and_then(|place| self.counts.policies.get_mut(place)) {
                    policy.requests += 1;
                    policy.unidentified += 1;
                }
                self.counts.missing.get_or_insert_with(|| missing.header.into());
                Kind::Unidentified
            }
        };
        let total = match kind {
            Kind::Admitted => &mut self.counts.totals.admitted,
            Kind::Denied => &mut self.counts.totals.denied,
            Kind::Unidentified => &mut self.counts.totals.unidentified,
        };
        *total += 1;
        self.counts.timeline.count(at, kind);
    }
}

fn decide(
    rules: &Rules,
    table: &Table<'_>,
    counts: &mut Counts,
    selection: &Selection<'_>,
    at: Nanos,
) -> Kind {
    let answer = check(rules, table, selection, at);
    // Logs do not tell how long a request took along with others.
    answer.holds().iter().for_each(|hold| table.release(hold));
    counts.totals.unlimited += u64::from(selection.is_empty());
    counts.overflows += u64::from(selection.overflow());
    let mut layers = selection.layers().zip(answer.outcomes()).peekable();
    while let Some((layer, outcome)) = layers.next() {
        // All limits of one policy stand together.
        let mut worst = *outcome;
        while let Some((_, outcome)) = layers.next_if(|(next, _)| next.policy == layer.policy) {
            if matches!(outcome, Outcome::Denied | Outcome::WouldDeny) {
                worst = *outcome;
            }
        }
        let Some(policy) = counts.policies.get_mut(layer.policy) else { continue };
        policy.requests += 1;
        policy.admitted += u64::from(answer.allowed);
        let is_limited = match worst {
            Outcome::Denied => {
                policy.denied += 1;
                true
            }
            Outcome::WouldDeny => {
                policy.would_deny += 1;
                true
            }
            Outcome::Admitted | Outcome::Spared => false,
        };
        policy.denied_by_others += u64::from(!answer.allowed && worst != Outcome::Denied);
        let fingerprint = table.fingerprint(layer.key()).0;
        counts.top.count(layer.policy, fingerprint, layer.key(), is_limited, answer.allowed);
    }
    if answer.allowed { Kind::Admitted } else { Kind::Denied }
}
