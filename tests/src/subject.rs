//! One account as a test sees it, kept in each of the ways that the core can
//! keep one: by the caller of a pure function, in a bucket, in a table.

use tollgate_core::algorithm::sliding_log::{self, Entry, Log};
use tollgate_core::algorithm::{concurrency, fixed_window, leaky_bucket, sliding_window, token_bucket};
use tollgate_core::bucket::{Bucket, LogBucket};
use tollgate_core::key::Seed;
use tollgate_core::table::{Config, Hold, Line, OwnedTable, Table};
use tollgate_core::time::HORIZON;
use tollgate_core::{Algorithm, Decision, Limit, Nanos};

/// An account that can be asked.
pub trait Subject {
    /// Charges `cost` if it fits.
    fn check(&mut self, cost: u64, now: Nanos) -> Decision;
    /// Only reads; nothing where that cannot be asked.
    fn peek(&mut self, cost: u64, now: Nanos) -> Option<Decision>;
    /// Gives back `cost`; false where that cannot be asked.
    fn refund(&mut self, cost: u64, now: Nanos) -> bool;
    /// Another limit of the same algorithm; false where that cannot be asked.
    fn set_limit(&mut self, limit: Limit, now: Nanos) -> bool;
}

/// Every way to keep an account of this limit, by name.
#[must_use]
pub fn every_way(limit: Limit) -> Vec<(&'static str, Box<dyn Subject>)> {
    let mut ways: Vec<(&'static str, Box<dyn Subject>)> =
        vec![("pure", Box::new(Pure::new(limit))), ("table", Box::new(Keyed::new(limit, b"key")))];
    match limit.algorithm() {
        Algorithm::Concurrency => {}
        Algorithm::SlidingLog => ways.push(("log bucket", Box::new(Logged::new(limit)))),
        _ => ways.push(("bucket", Box::new(Single(Bucket::new(limit).expect("a bucket's algorithm"))))),
    }
    ways
}

/// A log in a plain list.
#[derive(Debug, Default)]
pub struct List(Vec<Entry>, u64);

impl Log for List {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn entry(&self, age: usize) -> Entry {
        self.0[age]
    }

    fn floor(&self) -> u64 {
        self.1
    }
}

/// The state of a pure function, kept by its caller.
#[derive(Debug)]
enum State {
    Tat(token_bucket::Tat),
    Window(fixed_window::Window),
    Windows(sliding_window::Windows),
    Log(List),
    Holds(Vec<Nanos>),
}

/// An account in a pure function's state. Who keeps the state keeps the latest
/// instant at which it was charged.
#[derive(Debug)]
pub struct Pure {
    limit: Limit,
    state: State,
    latest: Nanos,
}

impl Pure {
    /// A full account.
    ///
    /// # Panics
    /// A log of more units than memory holds.
    #[must_use]
    pub fn new(limit: Limit) -> Pure {
        let state = match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => State::Tat(token_bucket::Tat::default()),
            Algorithm::FixedWindow => State::Window(fixed_window::Window::default()),
            Algorithm::SlidingWindow => State::Windows(sliding_window::Windows::default()),
            Algorithm::SlidingLog => {
                State::Log(List(vec![Entry::default(); usize::try_from(limit.limit()).expect("small")], 0))
            }
            Algorithm::Concurrency => State::Holds(Vec::new()),
        };
        Pure { limit, state, latest: 0 }
    }

    fn decide(&mut self, cost: u64, now: Nanos, take: bool) -> Decision {
        let (limit, now) = (&self.limit, now.min(HORIZON).max(self.latest));
        let decision = match &mut self.state {
            State::Tat(tat) => {
                let leaky = limit.algorithm() == Algorithm::LeakyBucket;
                let decide = if leaky { leaky_bucket::decide } else { token_bucket::decide };
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
            State::Log(list) => {
                let (entry, decision) = sliding_log::decide(list, limit, now, cost);
                if let Some(entry) = entry.filter(|_| take) {
                    list.0.remove(0);
                    list.0.push(entry);
                }
                decision
            }
            State::Holds(holds) => {
                let (expiry, decision) = concurrency::decide(holds.iter().copied(), limit, now, cost);
                if let Some(expiry) = expiry.filter(|_| take) {
                    holds.retain(|&end| end > now);
                    holds.extend((0..cost).map(|_| expiry));
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

impl Subject for Pure {
    fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        self.decide(cost, now, true)
    }

    fn peek(&mut self, cost: u64, now: Nanos) -> Option<Decision> {
        Some(self.decide(cost, now, false))
    }

    fn refund(&mut self, cost: u64, charged_at: Nanos) -> bool {
        let (limit, now) = (&self.limit, charged_at.max(self.latest));
        match &mut self.state {
            State::Tat(tat) => *tat = token_bucket::refund(*tat, limit, now, cost, charged_at),
            State::Window(window) => *window = fixed_window::refund(*window, limit, now, cost, charged_at),
            State::Windows(windows) => {
                *windows = sliding_window::refund(*windows, limit, now, cost, charged_at);
            }
            State::Log(list) => list.1 = sliding_log::refund(list, limit, cost, charged_at),
            State::Holds(_) => return false,
        }
        true
    }

    fn set_limit(&mut self, limit: Limit, now: Nanos) -> bool {
        let State::Tat(tat) = &mut self.state else { return false };
        *tat = token_bucket::carry(*tat, token_bucket::Rate::of(&self.limit), &limit, now.max(self.latest));
        self.limit = limit;
        true
    }
}

struct Single(Bucket);

impl Subject for Single {
    fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        self.0.check(cost, now)
    }

    fn peek(&mut self, cost: u64, now: Nanos) -> Option<Decision> {
        Some(self.0.peek(cost, now))
    }

    fn refund(&mut self, cost: u64, now: Nanos) -> bool {
        self.0.refund(cost, now);
        true
    }

    fn set_limit(&mut self, limit: Limit, now: Nanos) -> bool {
        self.0.set_limit(limit, now).is_ok()
    }
}

struct Logged {
    limit: Limit,
    lines: Vec<Line>,
}

impl Logged {
    fn new(limit: Limit) -> Logged {
        let lines = usize::try_from(LogBucket::lines(&limit)).expect("small");
        Logged { limit, lines: (0..lines).map(|_| Line::default()).collect() }
    }

    fn bucket(&self) -> LogBucket<'_> {
        LogBucket::new(self.limit, &self.lines).expect("enough lines")
    }
}

impl Subject for Logged {
    fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        self.bucket().check(cost, now)
    }

    fn peek(&mut self, cost: u64, now: Nanos) -> Option<Decision> {
        Some(self.bucket().peek(cost, now))
    }

    fn refund(&mut self, cost: u64, now: Nanos) -> bool {
        self.bucket().refund(cost, now);
        true
    }

    fn set_limit(&mut self, _limit: Limit, _now: Nanos) -> bool {
        false
    }
}

/// The entries that a row of a test's table has, unless a limit needs more.
const ENTRIES: u64 = 64;

/// One key of a table.
pub struct Keyed {
    limit: Limit,
    key: Vec<u8>,
    owned: OwnedTable,
}

impl Keyed {
    /// A new table with this key alone in it.
    ///
    /// # Panics
    /// A limit of more than 2^20 entries.
    #[must_use]
    pub fn new(limit: Limit, key: &[u8]) -> Keyed {
        let has_rows = matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency);
        let (rows, row_entries) = if has_rows { (4, limit.limit().max(ENTRIES)) } else { (0, 0) };
        let owned = OwnedTable::new(Config { capacity: 64, rows, row_entries }, Seed([3, 14]));
        Keyed { limit, key: key.to_vec(), owned: owned.expect("a legal layout") }
    }

    fn table(&self) -> Table<'_> {
        self.owned.table().expect("a table")
    }
}

impl Subject for Keyed {
    fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        if self.limit.algorithm() == Algorithm::Concurrency && cost > 0 {
            let (decision, hold): (Decision, Hold) = self.table().acquire(&self.key, &self.limit, cost, now);
            assert_eq!(hold.units, if decision.allowed { cost } else { 0 });
            return decision;
        }
        self.table().check(&self.key, &self.limit, cost, now)
    }

    fn peek(&mut self, cost: u64, now: Nanos) -> Option<Decision> {
        Some(self.table().peek(&self.key, &self.limit, cost, now))
    }

    fn refund(&mut self, cost: u64, now: Nanos) -> bool {
        self.table().refund(&self.key, &self.limit, cost, now);
        self.limit.algorithm() != Algorithm::Concurrency
    }

    fn set_limit(&mut self, limit: Limit, now: Nanos) -> bool {
        self.limit = limit;
        // A table learns of a limit by being asked under it.
        let _ = self.table().check(&self.key, &self.limit, 0, now);
        true
    }
}
