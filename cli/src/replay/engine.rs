//! The question to the core, and what is counted of its answers.

use serde::Serialize;
use tollgate_core::limit::Algorithm;
use tollgate_core::policy::{Outcome, Rules, Selection, check};
use tollgate_core::table::{Config, OwnedTable, Table};
use tollgate_core::{Limit, Nanos};

use super::faults::Faults;
use super::record::{MAX_HEADERS, Record};
use super::timeline::{Kind, Timeline};
use super::top::Top;
use crate::failure::Failure;
use crate::rules::seed;

/// Bytes for the rows of logs and concurrency limits.
const ROW_BYTES: u64 = 256 << 20;

/// The table that a replay counts in.
pub(crate) struct Gate(OwnedTable);

impl Gate {
    /// A table that can serve every limit of the rules.
    pub(crate) fn new(rules: &Rules, capacity: u64) -> Result<Gate, Failure> {
        let limits = rules.policies().iter().flat_map(|policy| policy.all_limits());
        let row_entries = limits.filter(|limit| needs_row(limit)).map(Limit::limit).max().unwrap_or(0);
        let rows = match row_entries {
            0 => 0,
            entries => (ROW_BYTES / (16 * (entries + 4))).clamp(1, capacity),
        };
        let refused =
            |error: &dyn std::error::Error| Failure::Usage(format!("no table for these rules: {error}"));
        let table = OwnedTable::new(Config { capacity, rows, row_entries }, seed())
            .map_err(|error| refused(&error))?;
        Ok(Gate(table))
    }

    pub(crate) fn table(&self) -> Result<Table<'_>, Failure> {
        self.0.table().ok_or_else(|| Failure::Usage("no table could be made".into()))
    }
}

fn needs_row(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency)
}

/// What became of all requests.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// Without an identity that is required: 401.
    pub(crate) unidentified: u64,
    /// Admitted because no policy applies.
    pub(crate) unlimited: u64,
    /// Answered 429 in their own time.
    pub(crate) logged_429: u64,
}

/// What became of the requests that one policy applied to.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct PolicyTotals {
    pub(crate) requests: u64,
    /// By all policies together.
    pub(crate) admitted: u64,
    /// By this policy.
    pub(crate) denied: u64,
    /// By others only: this one was not charged.
    pub(crate) denied_by_others: u64,
    /// In dry run.
    pub(crate) would_deny: u64,
    pub(crate) unidentified: u64,
}

pub(crate) struct Engine<'r, 't> {
    pub(crate) rules: &'r Rules,
    pub(crate) table: Table<'t>,
    pub(crate) totals: Totals,
    pub(crate) policies: Vec<PolicyTotals>,
    pub(crate) top: Top,
    pub(crate) timeline: Timeline,
    pub(crate) faults: Faults,
    /// The earliest and the latest instant.
    pub(crate) span: Option<(Nanos, Nanos)>,
    /// The header field that the first unidentified request lacks.
    pub(crate) missing: Option<&'r str>,
    /// Header fields that some line has told, by their place in the rules' list.
    pub(crate) told: [bool; MAX_HEADERS],
    /// Requests that matched more limits than one may have.
    pub(crate) overflows: u64,
    /// Of the last request, to be filled again.
    selection: Selection<'r>,
}

impl<'r, 't> Engine<'r, 't> {
    pub(crate) fn new(rules: &'r Rules, table: Table<'t>, buckets: usize) -> Engine<'r, 't> {
        Engine {
            rules,
            table,
            totals: Totals::default(),
            policies: vec![PolicyTotals::default(); rules.policies().len()],
            top: Top::default(),
            timeline: Timeline::new(buckets),
            faults: Faults::default(),
            span: None,
            missing: None,
            told: [false; MAX_HEADERS],
            overflows: 0,
            selection: Selection::default(),
        }
    }

    /// Asks the core about one request of the log.
    pub(crate) fn ask(&mut self, record: &Record<'_>, line: u64) {
        let at = record.at;
        self.span = match self.span {
            None => Some((at, at)),
            Some((first, last)) => {
                if at < last {
                    self.faults.out_of_order(line);
                }
                Some((first.min(at), last.max(at)))
            }
        };
        self.totals.requests += 1;
        for (told, value) in self.told.iter_mut().zip(record.request.headers) {
            *told |= value.is_some();
        }
        self.totals.logged_429 += u64::from(record.was_limited);
        let kind = match self.rules.select_into(&record.request, &mut self.selection) {
            Ok(()) => self.decide(at),
            Err(missing) => {
                let place = self.rules.policies().iter().position(|policy| policy.name() == missing.policy);
                if let Some(policy) = place.and_then(|place| self.policies.get_mut(place)) {
                    policy.requests += 1;
                    policy.unidentified += 1;
                }
                self.missing.get_or_insert(missing.header);
                Kind::Unidentified
            }
        };
        let total = match kind {
            Kind::Admitted => &mut self.totals.admitted,
            Kind::Denied => &mut self.totals.denied,
            Kind::Unidentified => &mut self.totals.unidentified,
        };
        *total += 1;
        self.timeline.count(at, kind);
    }

    fn decide(&mut self, at: Nanos) -> Kind {
        let selection = &self.selection;
        let answer = check(self.rules, &self.table, selection, at);
        // Logs do not tell how long a request took along with others.
        answer.holds().iter().for_each(|hold| self.table.release(hold));
        self.totals.unlimited += u64::from(selection.is_empty());
        self.overflows += u64::from(selection.overflow());
        let mut layers = selection.layers().zip(answer.outcomes()).peekable();
        while let Some((layer, outcome)) = layers.next() {
            // All limits of one policy stand together.
            let mut worst = *outcome;
            while let Some((_, outcome)) = layers.next_if(|(next, _)| next.policy == layer.policy) {
                if matches!(outcome, Outcome::Denied | Outcome::WouldDeny) {
                    worst = *outcome;
                }
            }
            let Some(policy) = self.policies.get_mut(layer.policy) else { continue };
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
            let fingerprint = self.table.fingerprint(layer.key()).0;
            self.top.count(layer.policy, fingerprint, layer.key(), is_limited, answer.allowed);
        }
        if answer.allowed { Kind::Admitted } else { Kind::Denied }
    }
}
