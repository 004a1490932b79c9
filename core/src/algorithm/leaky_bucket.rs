//! Leaky bucket as a queue: `burst` places, drained at the limit's rate.
//!
//! The level of the queue is the debt of a token bucket, so the arithmetic is
//! [`token_bucket`](super::token_bucket)'s. What is new is the `delay`: an
//! admitted request waits until those before it have drained, `level / rate`.

use super::token_bucket::{self, Tat};
use crate::decision::Decision;
use crate::limit::Limit;
use crate::time::{Nanos, held};

/// Decides one request; see [`token_bucket::decide`].
#[inline]
pub fn decide(tat: Tat, limit: &Limit, now: Nanos, cost: u64) -> (Tat, Decision) {
    let (next, mut decision) = token_bucket::decide(tat, limit, now, cost);
    if decision.allowed {
        let now = held(now);
        if tat.at >= now {
            decision.delay = (tat.at - now) + u64::from(tat.part != 0); // allowed: below the span of a burst
        }
    }
    (next, decision)
}
