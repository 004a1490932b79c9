//! What a machine counts by itself, in pages: the limits of a store that is
//! away, and the denials of subjects that have a penalty.
//!
//! Each is a row under its fingerprint, on a page of its own, beside those of
//! limits that the pages are the store of. Where the host's shared data cannot
//! be used, a worker has as many pages in its own memory, and counts alone.

use alloc::vec::Vec;

use super::page::{self, Page};
use super::{Blobs, LONG_PAGE_SIZE, PAGE_SIZE, Pages, Step, accepts, is_long};
use crate::algorithm::fixed_window::Window;
use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::local::LocalStore;
use crate::redis::state::State;
use crate::table::{Hold, Tally};
use crate::time::{Nanos, held, step_back};

/// Pages in a worker's own memory: as far as any was written.
#[derive(Debug, Default)]
pub(super) struct Own(Vec<Vec<u8>>);

impl Own {
    /// As a page of the host's is replaced, but that nobody else can be first.
    pub(super) fn replace(&mut self, place: u32, now: Nanos, page: &mut Page, step: Step<'_>) -> u64 {
        let place = place as usize; // below 2^21
        let old = self.0.get(place).map_or(&[][..], |page| page);
        let Some(evicted) = step(page, old, step_back(now, page::latest(old))) else { return 0 };
        if self.0.len() <= place {
            self.0.resize(place + 1, Vec::new());
        }
        if let Some(room) = self.0.get_mut(place) {
            room.clear();
            room.extend_from_slice(page.bytes());
        }
        evicted
    }
}

/// What becomes of a row.
enum Next {
    /// It stays as it was.
    Same,
    /// It was charged, which sets the page's clock.
    Charged,
    /// It is another.
    Changed,
}

impl<B: Blobs> Pages<B> {
    /// Hands over a key's state, and writes it back as the step says.
    fn row(
        &self,
        key: Fingerprint,
        limit: &Limit,
        now: Nanos,
        step: &mut dyn FnMut(&mut State, bool, Nanos, Nanos) -> Next,
    ) {
        let is_long = is_long(limit);
        let size = if is_long { LONG_PAGE_SIZE } else { PAGE_SIZE };
        self.replace_anyway(self.place(key, is_long), now, &mut |page, bytes, now| {
            let found = page::find(bytes, key.0, limit, now);
            let is_known = found.is_some();
            let (mut state, is_carried) = found.unwrap_or_else(|| (State::new(limit), false));
            let before = page::latest(bytes);
            let latest = match step(&mut state, is_known, now, before) {
                Next::Same if !is_carried => return None,
                Next::Charged => now,
                Next::Same | Next::Changed => before,
            };
            Some(page.write(bytes, &core::iter::once((key.0, limit, &state)), (now, latest), size))
        });
    }
}

impl<B: Blobs> LocalStore for Pages<B> {
    fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        self.hash.fingerprint(key)
    }

    fn is_countable(&self, limit: &Limit) -> bool {
        accepts(limit).is_ok()
    }

    fn check_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        let mut decision = Decision::never(limit);
        if limit.algorithm() == Algorithm::Concurrency {
            return self.peek_fingerprint(key, limit, cost, now);
        }
        self.row(key, limit, now, &mut |state, _, now, _| {
            decision = state.decide(limit, now, cost, 0);
            if decision.allowed && cost > 0 { Next::Charged } else { Next::Same }
        });
        decision
    }

    fn peek_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        let mut decision = Decision::never(limit);
        self.replace_anyway(self.place(key, is_long(limit)), now, &mut |_, bytes, now| {
            let found = page::find(bytes, key.0, limit, now);
            let mut state = found.map_or_else(|| State::new(limit), |(state, _)| state);
            decision = state.decide(limit, now, cost, 0);
            None
        });
        decision
    }

    fn acquire_fingerprint(
        &self,
        key: Fingerprint,
        limit: &Limit,
        cost: u64,
        now: Nanos,
    ) -> (Decision, Hold) {
        let (mut decision, mut hold) = (Decision::never(limit), Hold::default());
        // Units that were taken at the same instant end at the same: whose they are makes no difference.
        let id = held(now);
        self.row(key, limit, now, &mut |state, _, now, _| {
            decision = state.decide(limit, now, cost, id);
            if !decision.allowed || cost == 0 {
                return Next::Same;
            }
            let expires = now.saturating_add(limit.period());
            hold = Hold { row: id, fingerprint: key.0, expires, units: cost };
            Next::Charged
        });
        (decision, hold)
    }

    fn refund_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, charged_at: Nanos) {
        if limit.algorithm() == Algorithm::Concurrency {
            return; // holds are released, not refunded
        }
        self.row(key, limit, charged_at, &mut |state, is_known, _, latest| {
            if !is_known {
                return Next::Same;
            }
            let now = held(charged_at).max(latest);
            state.refund(limit, now, cost, charged_at, 0);
            Next::Changed
        });
    }

    fn release(&self, hold: &Hold) {
        if hold.units == 0 {
            return;
        }
        let key = Fingerprint(hold.fingerprint);
        self.replace_anyway(self.place(key, true), hold.row, &mut |page, bytes, now| {
            let limit = page::limit_of(bytes, key.0)?;
            let (mut state, _) = page::find(bytes, key.0, &limit, now)?;
            state.refund(&limit, now, hold.units, hold.row, hold.row);
            let row = core::iter::once((key.0, &limit, &state));
            Some(page.write(bytes, &row, (now, page::latest(bytes)), LONG_PAGE_SIZE))
        });
    }

    fn tally(
        &self,
        key: Fingerprint,
        limit: &Limit,
        now: Nanos,
        step: &mut dyn FnMut(Tally, Nanos) -> Option<Tally>,
    ) {
        self.row(key, limit, now, &mut |state, _, now, _| {
            let State::Window(window) = state else { return Next::Same };
            let tally = Tally { count: window.count.into(), forgotten_at: window.end };
            let Some(next) = step(tally, now) else { return Next::Same };
            let count = u32::try_from(next.count).unwrap_or(u32::MAX);
            *window = Window { end: next.forgotten_at, count };
            Next::Charged
        });
    }
}
