//! Sliding log: every admission of the last period, one by one.
//!
//! An entry made at `s` counts at `t` iff `t − period < s ≤ t`. Exact where
//! the counters estimate, at the price of one entry an admission: the log is
//! a ring of at least `limit` entries in the caller's memory.
//!
//! An entry carries the running total of all units admitted up to and with
//! it, so the units in the window are a difference of two totals, and both
//! ends are found by binary search.

use crate::decision::Decision;
use crate::limit::Limit;
use crate::time::{NEVER, Nanos, held};

/// One admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Units admitted since the log began, this one's included; 0 = unused.
    pub total: u64,
    /// When.
    pub at: Nanos,
}

/// A log that can be read by age: 0 is the oldest entry of the ring.
pub trait Log {
    /// Entries that the ring holds, used or not; at least 1.
    fn len(&self) -> usize;
    /// The entry of that age; an unused one has total 0.
    fn entry(&self, age: usize) -> Entry;
    /// Totals up to this one no longer count: they were refunded, or belong
    /// to an earlier owner of the memory.
    fn floor(&self) -> u64;
    /// Is the ring without room for any entry? It never is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Decides one request. The entry to append, if it was admitted and charged.
pub fn decide<L: Log>(log: &L, limit: &Limit, now: Nanos, cost: u64) -> (Option<Entry>, Decision) {
    let newest = log.entry(log.len() - 1);
    let now = held(now).max(if newest.total > log.floor() { newest.at } else { 0 }); // stepped back: frozen
    let base = base(log, limit.period(), now);
    let spent = newest.total.saturating_sub(base);
    let allowed = cost == 0 || cost <= limit.limit().saturating_sub(spent);
    let count = if allowed { spent + cost } else { spent };
    let latest = if allowed && cost > 0 { now } else { newest.at };
    let decision = Decision {
        allowed,
        limit: limit.limit(),
        remaining: limit.limit().saturating_sub(count),
        retry_after: match (allowed, cost > limit.limit()) {
            (true, _) => 0,
            (false, true) => NEVER,
            (false, false) => {
                // The entry whose leaving makes room.
                let enough = newest.total - (limit.limit() - cost); // denied: spent is larger
                let age = first(log.len(), |age| log.entry(age).total >= enough);
                leaves(log.entry(age), limit, now)
            }
        },
        reset_after: if count == 0 { 0 } else { leaves(Entry { total: 0, at: latest }, limit, now) },
        delay: 0,
    };
    let entry = (allowed && cost > 0).then(|| Entry { total: newest.total + cost, at: now });
    (entry, decision)
}

/// The total that a refund of `cost` units, taken at `charged_at`, raises the
/// floor to: the oldest units still in the window are given back, which never
/// admits early. Units that have left the window are gone already.
pub fn refund<L: Log>(log: &L, limit: &Limit, cost: u64, charged_at: Nanos) -> u64 {
    let newest = log.entry(log.len() - 1);
    let now = held(charged_at).max(newest.at);
    if now - held(charged_at) >= limit.period() {
        return log.floor();
    }
    let base = base(log, limit.period(), now);
    newest.total.min(base.saturating_add(cost)).max(log.floor())
}

/// The total of the last unit that has left the window.
fn base<L: Log>(log: &L, period: Nanos, now: Nanos) -> u64 {
    let len = log.len();
    let counts = |age| {
        let entry = log.entry(age);
        entry.total > log.floor() && now - entry.at.min(now) < period
    };
    let oldest = first(len, counts);
    match oldest {
        // All of the ring counts. There are at least `limit` entries of at
        // least one unit each, so the limit is reached whatever the oldest is.
        0 => log.entry(0).total - 1,
        age => log.entry(age - 1).total.max(log.floor()),
    }
    .max(log.floor())
}

/// The first age for which `holds`, which is false before it and true from it
/// on; `len` if there is none.
fn first(len: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

fn leaves(entry: Entry, limit: &Limit, now: Nanos) -> Nanos {
    (entry.at + limit.period()).saturating_sub(now) // entry.at is held
}
