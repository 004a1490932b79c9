//! What the gate says. A denial is an answer like any other, not an error.

use crate::limit::Limit;
use crate::time::{NEVER, Nanos};

/// The answer to one request, complete whether it was admitted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    /// Was the request admitted (and, unless it was a peek, charged)?
    pub allowed: bool,
    /// The sustained allowance: units per period. 0 of a denial that
    /// [no limit gave](Self::is_unavailable).
    pub limit: u64,
    /// Whole units admissible now, after this request. Not to be told, nor is
    /// `reset_after`, when the cost is above the burst: a store is not asked
    /// then, and both may be 0.
    pub remaining: u64,
    /// Nanoseconds until *this* cost fits, when nobody else comes: 0 when
    /// allowed, [`NEVER`] when the cost is above the burst.
    pub retry_after: Nanos,
    /// Nanoseconds until the bucket is full again, or the window empty.
    pub reset_after: Nanos,
    /// Nanoseconds that an admitted request has to wait for its turn; only a
    /// leaky bucket asks for it.
    pub delay: Nanos,
}

impl Decision {
    /// The answer to a cost above the burst without a look at the bucket, and
    /// of a limit that cannot be counted where it was asked.
    pub(crate) fn never(limit: &Limit) -> Decision {
        let limit = limit.limit();
        Decision { allowed: false, limit, remaining: 0, retry_after: NEVER, reset_after: 0, delay: 0 }
    }

    /// Can this cost ever be admitted under this limit?
    #[must_use]
    pub fn can_ever_fit(&self) -> bool {
        self.retry_after != NEVER
    }

    /// Is it a denial because no limit could be asked? The store is away, and
    /// its policy's `on_store_error` says `deny`.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        !self.allowed && self.limit == 0 && self.can_ever_fit()
    }

    /// Of two limits of one request, does this one tell more of when the next
    /// may come? A denial before an admission; of denials the one that takes
    /// longer; else the one that leaves less, and of two that leave as much the
    /// one that is whole later. False of equals: the first one stands.
    #[must_use]
    pub fn is_tighter_than(&self, other: &Decision) -> bool {
        match (self.allowed, other.allowed) {
            (false, false) => self.retry_after > other.retry_after,
            (true, true) => self.leaves_less_than(other),
            (allowed, _) => !allowed,
        }
    }

    /// Fewer units, or as many for longer.
    pub(crate) fn leaves_less_than(&self, other: &Decision) -> bool {
        self.remaining < other.remaining
            || self.remaining == other.remaining && self.reset_after > other.reset_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMITTED: Decision =
        Decision { allowed: true, limit: 9, remaining: 3, retry_after: 0, reset_after: 50, delay: 0 };
    const DENIED: Decision = Decision { allowed: false, remaining: 0, retry_after: 20, ..ADMITTED };

    #[test]
    fn the_tightest_says_when_the_next_may_come() {
        let in_order = [
            Decision { retry_after: NEVER, ..DENIED },
            DENIED,
            Decision { retry_after: 10, ..DENIED },
            Decision { remaining: 2, ..ADMITTED },
            Decision { reset_after: 60, ..ADMITTED },
            ADMITTED,
            Decision { remaining: 4, reset_after: 70, ..ADMITTED },
        ];
        for (place, one) in in_order.iter().enumerate() {
            for (other_place, other) in in_order.iter().enumerate() {
                assert_eq!(one.is_tighter_than(other), place < other_place, "{one:?} {other:?}");
            }
        }
    }
}
