//! One account as a test sees it, kept in each of the ways that the core can
//! keep one: by the caller of a pure function, in a bucket, in a table, in pages that workers share.

use tollgate_core::account::Account;
use tollgate_core::bucket::{Bucket, LogBucket};
use tollgate_core::key::Seed;
use tollgate_core::local::LocalStore;
use tollgate_core::pages::{Pages, accepts};
use tollgate_core::table::{Config, Hold, Line, OwnedTable, Table};
use tollgate_core::time::HORIZON;
use tollgate_core::{Algorithm, Decision, Limit, Nanos};

use crate::shared_pages::{Paged, Shared};

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

/// Of no answer yet.
pub const NOTHING: Decision =
    Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };

/// Every way to keep an account of this limit, by name.
#[must_use]
pub fn every_way(limit: Limit) -> Vec<(&'static str, Box<dyn Subject>)> {
    let mut ways: Vec<(&'static str, Box<dyn Subject>)> =
        vec![("pure", Box::new(Pure::new(limit))), ("table", Box::new(Keyed::new(limit, b"key")))];
    if accepts(&limit).is_ok() {
        ways.push(("shared pages", Box::new(Paged::new(Shared::default(), limit, b"key"))));
        ways.push(("local pages", Box::new(Turns::new(limit, b"key"))));
    }
    match limit.algorithm() {
        Algorithm::Concurrency => {}
        Algorithm::SlidingLog => ways.push(("log bucket", Box::new(Logged::new(limit)))),
        _ => ways.push(("bucket", Box::new(Single(Bucket::new(limit).expect("a bucket's algorithm"))))),
    }
    ways
}

/// An account in a pure function's state.
#[derive(Debug)]
pub struct Pure(Account);

impl Pure {
    /// A full account.
    ///
    /// # Panics
    /// A log of more units than an account keeps.
    #[must_use]
    pub fn new(limit: Limit) -> Pure {
        Pure(Account::new(limit).expect("not too many units"))
    }
}

impl Subject for Pure {
    fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        self.0.check(cost, now)
    }

    fn peek(&mut self, cost: u64, now: Nanos) -> Option<Decision> {
        Some(self.0.peek(cost, now))
    }

    fn refund(&mut self, cost: u64, charged_at: Nanos) -> bool {
        self.0.refund(cost, charged_at);
        self.0.limit().algorithm() != Algorithm::Concurrency
    }

    fn set_limit(&mut self, limit: Limit, now: Nanos) -> bool {
        let is_bucket = matches!(self.0.limit().algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        is_bucket && self.0.set_limit(limit, now).is_ok()
    }
}

impl Subject for Paged {
    fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        Paged::check(self, cost, now)
    }

    fn peek(&mut self, _cost: u64, _now: Nanos) -> Option<Decision> {
        None
    }

    fn refund(&mut self, cost: u64, charged_at: Nanos) -> bool {
        // A log knows its entries by their call.
        if matches!(self.limit().algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency) {
            return false;
        }
        let charged_at = charged_at.min(HORIZON);
        let now = self.latest().min(HORIZON).max(charged_at);
        Paged::refund(self, cost, now - charged_at, now);
        true
    }

    fn set_limit(&mut self, limit: Limit, now: Nanos) -> bool {
        Paged::set_limit(self, limit);
        let _ = Paged::check(self, 0, now);
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

/// A key of pages that are what a machine counts by itself. Its two workers
/// take turns.
#[derive(Debug)]
pub struct Turns {
    limit: Limit,
    key: Vec<u8>,
    workers: [Pages<Shared>; 2],
    turn: usize,
}

impl Turns {
    /// New pages with this key alone in them.
    #[must_use]
    pub fn new(limit: Limit, key: &[u8]) -> Turns {
        let shared = Shared::losing_one_in(5);
        let worker = || Pages::new(shared.clone(), 2, Seed([3, 14]));
        Turns { limit, key: key.to_vec(), workers: [worker(), worker()], turn: 0 }
    }

    fn worker(&mut self) -> &Pages<Shared> {
        self.turn ^= 1;
        &self.workers[self.turn]
    }
}

impl Subject for Turns {
    fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        let (limit, key) = (self.limit, self.workers[0].fingerprint(&self.key));
        if limit.algorithm() == Algorithm::Concurrency && cost > 0 {
            let (decision, hold): (Decision, Hold) =
                self.worker().acquire_fingerprint(key, &limit, cost, now);
            assert_eq!(hold.units, if decision.allowed { cost } else { 0 });
            return decision;
        }
        self.worker().check_fingerprint(key, &limit, cost, now)
    }

    fn peek(&mut self, cost: u64, now: Nanos) -> Option<Decision> {
        let (limit, key) = (self.limit, self.workers[0].fingerprint(&self.key));
        Some(self.worker().peek_fingerprint(key, &limit, cost, now))
    }

    fn refund(&mut self, cost: u64, charged_at: Nanos) -> bool {
        let (limit, key) = (self.limit, self.workers[0].fingerprint(&self.key));
        self.worker().refund_fingerprint(key, &limit, cost, charged_at);
        limit.algorithm() != Algorithm::Concurrency
    }

    fn set_limit(&mut self, limit: Limit, now: Nanos) -> bool {
        self.limit = limit;
        let _ = self.check(0, now);
        true
    }
}
