//! Growing delays for a subject that is denied again and again: a login that
//! is guessed at, a client that ignores `Retry-After`.
//!
//! The n-th denial in a row asks for `base × factor^(n−1)`, at most `max`.
//! A subject that has been quiet for `max` after its delay is forgotten.

use super::model::Penalty;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::table::{Table, Tally};
use crate::time::{NEVER, Nanos};

/// Denials in a row that are told apart; more ask for no longer delay.
const MAX_STRIKES: u64 = 63;

/// Where the denials of subjects are counted.
pub(crate) trait Penalties {
    /// What a subject is counted under.
    fn subject(&self, subject: &[u8]) -> Fingerprint;

    /// How long the subject still has to wait.
    fn wait(&mut self, subject: Fingerprint, penalty: &Penalty, now: Nanos) -> Nanos;

    /// Counts a denial; how long the subject has to wait now.
    fn strike(&mut self, subject: Fingerprint, penalty: &Penalty, now: Nanos) -> Nanos;
}

impl Penalties for &Table<'_> {
    fn subject(&self, subject: &[u8]) -> Fingerprint {
        self.fingerprint(subject)
    }

    fn wait(&mut self, subject: Fingerprint, penalty: &Penalty, now: Nanos) -> Nanos {
        let Some(limit) = limit(penalty) else { return 0 };
        self.tally(subject, &limit, now, |tally, now| (None, waits(tally, penalty, now)))
    }

    fn strike(&mut self, subject: Fingerprint, penalty: &Penalty, now: Nanos) -> Nanos {
        let Some(limit) = limit(penalty) else { return 0 };
        self.tally(subject, &limit, now, |tally, now| {
            let (tally, delay) = struck(tally, penalty, now);
            (Some(tally), delay)
        })
    }
}

/// How long a subject of so many strikes still has to wait.
pub(crate) fn waits(tally: Tally, penalty: &Penalty, now: Nanos) -> Nanos {
    until(tally, penalty).saturating_sub(now)
}

/// One strike more, and how long the subject has to wait for it.
pub(crate) fn struck(tally: Tally, penalty: &Penalty, now: Nanos) -> (Tally, Nanos) {
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
pub(crate) fn limit(penalty: &Penalty) -> Option<Limit> {
    Limit::new(Algorithm::FixedWindow, MAX_STRIKES, penalty.max).ok()
}
