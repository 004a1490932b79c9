//! What a machine counts by itself: limits that no store shares, the limits of
//! a store that is away, and the denials of subjects that have a penalty.
//!
//! Where its workers share memory that is a [`Table`]; where they share only
//! small blobs, [`pages`](crate::pages). Each limit is one decision, charged
//! whole or not at all; several together are [`limiter`](crate::limiter)'s.

use core::fmt;

use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::Limit;
#[cfg(feature = "policy")]
use crate::table::Tally;
use crate::table::{Hold, Table};
use crate::time::Nanos;

/// Counts that the workers of one machine share.
pub trait LocalStore {
    /// What a key is counted under.
    fn fingerprint(&self, key: &[u8]) -> Fingerprint;

    /// Can it count this limit?
    fn is_countable(&self, limit: &Limit) -> bool;

    /// Charges `cost` units if they fit, as [`Table::check`] does.
    fn check_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision;

    /// The decision that would be made, charging nothing.
    fn peek_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision;

    /// Takes `cost` units in flight, as [`Table::acquire`] does.
    fn acquire_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos)
    -> (Decision, Hold);

    /// Gives back what was charged at `charged_at`, as [`Table::refund`] does.
    fn refund_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, charged_at: Nanos);

    /// Gives back units in flight.
    fn release(&self, hold: &Hold);

    /// Keeps a count beside an instant after which it is void, under a fixed
    /// window's `limit` that bounds the count. `step` may be asked again when
    /// others came first; one that tells none changes nothing.
    #[cfg(feature = "policy")]
    #[doc(hidden)]
    fn tally(
        &self,
        key: Fingerprint,
        limit: &Limit,
        now: Nanos,
        step: &mut dyn FnMut(Tally, Nanos) -> Option<Tally>,
    );
}

impl fmt::Debug for dyn LocalStore + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalStore")
    }
}

impl LocalStore for Table<'_> {
    #[inline]
    fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        Table::fingerprint(self, key)
    }

    fn is_countable(&self, limit: &Limit) -> bool {
        self.accepts(limit).is_ok()
    }

    #[inline]
    fn check_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        Table::check_fingerprint(self, key, limit, cost, now)
    }

    #[inline]
    fn peek_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        Table::peek_fingerprint(self, key, limit, cost, now)
    }

    #[inline]
    fn acquire_fingerprint(
        &self,
        key: Fingerprint,
        limit: &Limit,
        cost: u64,
        now: Nanos,
    ) -> (Decision, Hold) {
        Table::acquire_fingerprint(self, key, limit, cost, now)
    }

    #[inline]
    fn refund_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, charged_at: Nanos) {
        Table::refund_fingerprint(self, key, limit, cost, charged_at);
    }

    #[inline]
    fn release(&self, hold: &Hold) {
        Table::release(self, hold);
    }

    #[cfg(feature = "policy")]
    fn tally(
        &self,
        key: Fingerprint,
        limit: &Limit,
        now: Nanos,
        step: &mut dyn FnMut(Tally, Nanos) -> Option<Tally>,
    ) {
        Table::tally(self, key, limit, now, |tally, now| (step(tally, now), ()));
    }
}
