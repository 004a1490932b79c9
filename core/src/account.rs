//! One key's account for one thread, of any algorithm, that can be looked into.
//!
//! A [`Bucket`](crate::Bucket) is for threads that share it and tells only its
//! decisions. An account is for whoever wants to see what stands behind them:
//! a page that draws the bucket, a command that shows a key.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::algorithm::fixed_window::Window;
use crate::algorithm::sliding_log::{Entry, Log};
use crate::algorithm::sliding_window::Windows;
use crate::algorithm::token_bucket::{Rate, Tat};
use crate::algorithm::{concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket};
use crate::decision::Decision;
use crate::limit::{Algorithm, Limit};
use crate::time::{HORIZON, Nanos};

/// The most units of a log or of a concurrency limit: each takes memory.
pub const MOST_ENTRIES: u64 = 1 << 20;
/// Bytes of a slot of a table.
const SLOT: u64 = 16;

/// A limit that an account cannot keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limit: {0} is outside 1 to {MOST_ENTRIES} units that an account of this algorithm keeps one by one")]
pub struct TooLarge(pub u64);

/// One account.
#[derive(Clone, Debug)]
pub struct Account {
    limit: Limit,
    state: State,
    /// The latest instant at which something was charged.
    latest: Nanos,
    /// The number of the hold taken last.
    holds: u64,
}

#[derive(Clone, Debug)]
enum State {
    Tat(Tat),
    Window(Window),
    Windows(Windows),
    Log(Ring),
    Holds(Vec<(Nanos, u64)>),
}

#[derive(Clone, Debug)]
struct Ring {
    entries: VecDeque<Entry>,
    floor: u64,
}

/// What an account holds, as it stands at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum View {
    /// Token bucket: tokens owed, in parts of a token, of which one has
    /// `parts`; what is stored is `tat`. The bucket has the burst less that.
    Bucket {
        /// As it is stored.
        tat: Tat,
        /// Parts of a token that are owed. Of a leaky bucket it is the level.
        owed: u128,
        /// Parts of one token; at least 1.
        parts: u64,
        /// Parts of one nanosecond, in which `tat` counts its part; at least 1.
        tat_parts: u64,
    },
    /// Fixed window.
    Window(Window),
    /// Sliding window.
    Windows(Windows),
    /// Sliding log and concurrency: units that count.
    Units(u64),
}

/// Bytes that a key of this limit takes in a [`Table`](crate::Table).
#[must_use]
pub fn memory(limit: &Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::FixedWindow => SLOT,
        Algorithm::SlidingWindow => 2 * SLOT,
        // An entry for each unit, and one for the owner; four to a line.
        Algorithm::SlidingLog | Algorithm::Concurrency => (limit.limit() + 1).div_ceil(4) * 4 * SLOT,
    }
}

impl Account {
    /// One that nobody has used.
    ///
    /// # Errors
    /// A log or concurrency limit of more than [`MOST_ENTRIES`] units.
    pub fn new(limit: Limit) -> Result<Account, TooLarge> {
        let state = match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => State::Tat(Tat::default()),
            Algorithm::FixedWindow => State::Window(Window::default()),
            Algorithm::SlidingWindow => State::Windows(Windows::default()),
            Algorithm::SlidingLog | Algorithm::Concurrency if limit.limit() > MOST_ENTRIES => {
                return Err(TooLarge(limit.limit()));
            }
            Algorithm::SlidingLog => State::Log(Ring::new(limit.limit())),
            Algorithm::Concurrency => State::Holds(Vec::new()),
        };
        Ok(Account { limit, state, latest: 0, holds: 0 })
    }

    /// What it is held to.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Charges `cost` units if they fit; a cost of 0 only reads.
    pub fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        self.decide(cost, now, true)
    }

    /// The decision that [`check`](Self::check) would make, charging nothing.
    pub fn peek(&mut self, cost: u64, now: Nanos) -> Decision {
        self.decide(cost, now, false)
    }

    /// Takes units in flight of a concurrency limit; 0 is no hold: nothing was
    /// taken, or it is another algorithm's.
    pub fn acquire(&mut self, cost: u64, now: Nanos) -> (Decision, u64) {
        let before = self.holds;
        let decision = self.decide(cost, now, true);
        (decision, if self.holds > before { self.holds } else { 0 })
    }

    /// Gives back the units of a hold; false where it has ended already.
    pub fn release(&mut self, hold: u64) -> bool {
        let State::Holds(holds) = &mut self.state else { return false };
        let before = holds.len();
        holds.retain(|(_, number)| *number != hold);
        holds.len() < before
    }

    /// Gives back `cost` units that were charged at `charged_at`. Holds are
    /// [released](Self::release) instead.
    pub fn refund(&mut self, cost: u64, charged_at: Nanos) {
        let (limit, now) = (&self.limit, charged_at.max(self.latest));
        match &mut self.state {
            State::Tat(tat) => *tat = token_bucket::refund(*tat, limit, now, cost, charged_at),
            State::Window(window) => *window = fixed_window::refund(*window, limit, now, cost, charged_at),
            State::Windows(windows) => {
                *windows = sliding_window::refund(*windows, limit, now, cost, charged_at);
            }
            State::Log(ring) => ring.floor = sliding_log::refund(ring, limit, cost, charged_at),
            State::Holds(_) => {}
        }
    }

    /// Another limit from now on. What was spent stays spent, token for token,
    /// from bucket to bucket of one algorithm; all else begins anew.
    ///
    /// # Errors
    /// As [`new`](Self::new); the account is as it was.
    pub fn set_limit(&mut self, limit: Limit, now: Nanos) -> Result<(), TooLarge> {
        let mut next = Account::new(limit)?;
        let is_same = limit.algorithm() == self.limit.algorithm();
        if let (State::Tat(tat), State::Tat(room), true) = (&self.state, &mut next.state, is_same) {
            let now = now.max(self.latest);
            *room = token_bucket::carry(*tat, Rate::of(&self.limit), &limit, now);
            next.latest = self.latest;
        }
        *self = next;
        Ok(())
    }

    /// What it holds at `now`.
    #[must_use]
    pub fn view(&self, now: Nanos) -> View {
        let now = now.min(HORIZON).max(self.latest);
        match &self.state {
            State::Tat(tat) => {
                let (owed, parts) = token_bucket::owed(*tat, &self.limit, now);
                View::Bucket { tat: *tat, owed, parts, tat_parts: self.limit.tick }
            }
            State::Window(window) => View::Window(window.at(&self.limit, now)),
            State::Windows(windows) => View::Windows(windows.at(&self.limit, now)),
            State::Log(ring) => {
                let (_, decision) = sliding_log::decide(ring, &self.limit, now, 0);
                View::Units(self.limit.limit().saturating_sub(decision.remaining))
            }
            State::Holds(holds) => {
                View::Units(holds.iter().filter(|(expiry, _)| *expiry > now).count() as u64)
            }
        }
    }

    /// The latest instant at which something was charged; 0 before that.
    #[must_use]
    pub fn latest(&self) -> Nanos {
        self.latest
    }

    /// The units that count at `now` one by one, the oldest first: when those
    /// of a log were admitted, when holds end. None of other algorithms.
    pub fn units(&self, now: Nanos) -> impl Iterator<Item = Nanos> {
        let now = now.min(HORIZON).max(self.latest);
        let (ring, holds) = match &self.state {
            State::Log(ring) => (Some(ring), None),
            State::Holds(holds) => (None, Some(holds)),
            _ => (None, None),
        };
        let period = self.limit.period();
        let logged = ring.into_iter().flat_map(move |ring| {
            let before = core::iter::once(0).chain(ring.entries.iter().map(|entry| entry.total));
            let kept =
                ring.entries.iter().zip(before).filter(move |(entry, _)| now - entry.at.min(now) < period);
            kept.flat_map(move |(entry, before)| {
                // An entry carries the running total; what is below the floor was given back.
                let own = entry.total.saturating_sub(before.max(ring.floor));
                core::iter::repeat_n(entry.at, usize::try_from(own).unwrap_or(0))
            })
        });
        let held = holds.into_iter().flatten().map(|(expiry, _)| *expiry).filter(move |expiry| *expiry > now);
        logged.chain(held)
    }

    fn decide(&mut self, cost: u64, now: Nanos, take: bool) -> Decision {
        let (limit, now) = (&self.limit, now.min(HORIZON).max(self.latest));
        let decision = match &mut self.state {
            State::Tat(tat) => {
                let is_leaky = limit.algorithm() == Algorithm::LeakyBucket;
                let decide = if is_leaky { leaky_bucket::decide } else { token_bucket::decide };
                let (next, decision) = decide(*tat, limit, now, cost);
                *tat = if take { next } else { *tat };
                decision
            }
            State::Window(window) => {
                let (next, decision) = fixed_window::decide(*window, limit, now, cost);
                *window = if take { next } else { *window };
                decision
            }
            State::Windows(windows) => {
                let (next, decision) = sliding_window::decide(*windows, limit, now, cost);
                *windows = if take { next } else { *windows };
                decision
            }
            State::Log(ring) => {
                let (entry, decision) = sliding_log::decide(ring, limit, now, cost);
                if let Some(entry) = entry.filter(|_| take) {
                    ring.entries.pop_front();
                    ring.entries.push_back(entry);
                }
                decision
            }
            State::Holds(holds) => {
                let (expiry, decision) =
                    concurrency::decide(holds.iter().map(|hold| hold.0), limit, now, cost);
                if let Some(expiry) = expiry.filter(|_| take) {
                    holds.retain(|(expiry, _)| *expiry > now);
                    self.holds = self.holds.saturating_add(1);
                    holds.extend((0..cost).map(|_| (expiry, self.holds))); // at most the limit
                }
                decision
            }
        };
        if take && decision.allowed && cost > 0 {
            self.latest = now;
        }
        decision
    }
}

impl Ring {
    fn new(limit: u64) -> Ring {
        let mut entries = VecDeque::new();
        entries.resize(usize::try_from(limit).unwrap_or(1), Entry::default()); // at most MOST_ENTRIES
        Ring { entries, floor: 0 }
    }
}

impl Log for Ring {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry(&self, age: usize) -> Entry {
        self.entries.get(age).copied().unwrap_or_default()
    }

    fn floor(&self) -> u64 {
        self.floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND;

    #[test]
    fn a_bucket_can_be_looked_into_to_the_part_of_a_token() {
        let mut account = Account::new("2/s burst 5".parse().unwrap()).unwrap();
        for step in 0..10 {
            assert_eq!(account.check(1, SECOND).allowed, step < 5);
        }
        let View::Bucket { owed, parts, .. } = account.view(SECOND + SECOND / 4) else { panic!("a bucket") };
        assert_eq!(owed * 2, u128::from(parts) * 9, "four tokens and a half are owed");
    }

    #[test]
    fn the_units_of_a_log_are_those_that_count() {
        let mut account = Account::new("sliding_log 5/s".parse().unwrap()).unwrap();
        assert!(account.check(2, SECOND).allowed && account.check(1, SECOND + 1).allowed);
        account.refund(1, SECOND);
        for (now, units) in [(SECOND + 1, 2), (2 * SECOND - 1, 2), (2 * SECOND, 1), (2 * SECOND + 1, 0)] {
            assert_eq!(account.units(now).count(), units, "{now}");
            assert_eq!(account.view(now), View::Units(units as u64));
        }
    }

    #[test]
    fn a_hold_is_given_back_once() {
        let mut account = Account::new("concurrency 2/s".parse().unwrap()).unwrap();
        let (first, hold) = account.acquire(2, 0);
        assert!(first.allowed && hold > 0);
        assert_eq!(account.view(0), View::Units(2));
        assert_eq!(account.acquire(1, 0).1, 0);
        assert!(account.release(hold) && !account.release(hold));
        assert!(account.check(1, 0).allowed);
    }

    #[test]
    fn a_log_of_any_size_is_refused_before_it_takes_memory() {
        let limit: Limit = "sliding_log 4294967295/s".parse().unwrap();
        assert_eq!(Account::new(limit).unwrap_err(), TooLarge(4_294_967_295));
    }
}
