//! Growing delays for a subject that is denied again and again: a login that
//! is guessed at, a client that ignores `Retry-After`.
//!
//! The n-th denial in a row asks for `base × factor^(n−1)`, at most `max`.
//! A subject that has been quiet for `max` after its delay is forgotten.

use super::model::Penalty;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::local::LocalStore;
use crate::table::Tally;
use crate::time::{NEVER, Nanos};

/// Denials in a row that are told apart; more ask for no longer delay.
const MAX_STRIKES: u64 = 63;

/// How long the subject still has to wait.
pub(crate) fn wait<T: LocalStore + ?Sized>(
    table: &T,
    subject: Fingerprint,
    penalty: &Penalty,
    now: Nanos,
) -> Nanos {
    let Some(limit) = limit(penalty) else { return 0 };
    let mut wait = 0;
    table.tally(subject, &limit, now, &mut |tally, now| {
        wait = until(known(tally, penalty, now), penalty).saturating_sub(now);
        None
    });
    wait
}

/// Counts a denial; how long the subject has to wait now.
pub(crate) fn strike<T: LocalStore + ?Sized>(
    table: &T,
    subject: Fingerprint,
    penalty: &Penalty,
    now: Nanos,
) -> Nanos {
    let Some(limit) = limit(penalty) else { return 0 };
    let mut wait = 0;
    table.tally(subject, &limit, now, &mut |tally, now| {
        let (next, delay) = struck(known(tally, penalty, now), penalty, now);
        wait = delay;
        Some(next)
    });
    wait
}

/// Nobody waits for longer than the penalty's `max`, so that what is forgotten
/// later than twice that was not written by us.
fn known(tally: Tally, penalty: &Penalty, now: Nanos) -> Tally {
    let last = now.saturating_add(penalty.max).saturating_add(penalty.max);
    if tally.forgotten_at <= last { tally } else { Tally::default() }
}

/// One strike more, and how long the subject has to wait for it.
fn struck(tally: Tally, penalty: &Penalty, now: Nanos) -> (Tally, Nanos) {
    let strikes = if tally.forgotten_at > now { tally.count } else { 0 };
    let count = strikes.saturating_add(1).min(MAX_STRIKES);
    let delay = delay(penalty, count);
    let forgotten_at = now.saturating_add(delay).saturating_add(penalty.max).min(NEVER - 1);
    (Tally { count, forgotten_at }, delay)
}

/// The instant at which the delay of a subject ends.
fn until(tally: Tally, penalty: &Penalty) -> Nanos {
    if tally.count == 0 { 0 } else { tally.forgotten_at.saturating_sub(penalty.max) }
}

/// The delay that the `count`-th denial asks for.
fn delay(penalty: &Penalty, count: u64) -> Nanos {
    let mut delay = penalty.base;
    for _ in 1..count {
        if delay >= penalty.max {
            break;
        }
        let grown = u128::from(delay) * u128::from(penalty.factor_milli) / 1000;
        delay = u64::try_from(grown).unwrap_or(u64::MAX);
    }
    delay.min(penalty.max)
}

/// Strikes are counted as a window's count is.
fn limit(penalty: &Penalty) -> Option<Limit> {
    Limit::new(Algorithm::FixedWindow, MAX_STRIKES, penalty.max).ok()
}
