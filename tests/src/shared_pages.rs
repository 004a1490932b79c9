//! A host's shared data in a test's memory: blobs that are replaced whole, by
//! compare-and-swap, as Envoy's workers have them; and a worker on them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tollgate_core::key::Seed;
use tollgate_core::pages::{Blobs, Pages, Unavailable};
use tollgate_core::redis::script::{Ask, Call, Op};
use tollgate_core::{Decision, Limit, Nanos};

use crate::subject::NOTHING;

/// Blobs that the clones of one share.
#[derive(Clone, Debug, Default)]
pub struct Shared(Rc<RefCell<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    pages: HashMap<u32, (Vec<u8>, u32)>,
    writes: u32,
    /// One write in so many finds that another was first; 0 is none.
    lost: u32,
    longest: usize,
}

impl Shared {
    /// One write in so many finds that another was first.
    #[must_use]
    pub fn losing_one_in(writes: u32) -> Shared {
        Shared(Rc::new(RefCell::new(Inner { lost: writes, ..Inner::default() })))
    }

    /// Bytes of the longest page that was ever written.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.0.borrow().longest
    }

    /// Each page's bytes become what this makes of them.
    pub fn change(&self, mut change: impl FnMut(&mut Vec<u8>)) {
        let mut inner = self.0.borrow_mut();
        inner.pages.values_mut().for_each(|(bytes, _)| change(bytes));
    }
}

impl Blobs for Shared {
    type Bytes = Vec<u8>;

    fn read(&mut self, page: u32) -> Result<Option<(Vec<u8>, u32)>, Unavailable> {
        Ok(self.0.borrow().pages.get(&page).cloned())
    }

    fn write(&mut self, page: u32, bytes: &[u8], read: Option<u32>) -> Result<bool, Unavailable> {
        let mut inner = self.0.borrow_mut();
        inner.writes += 1;
        inner.longest = inner.longest.max(bytes.len());
        let (version, is_lost) = (inner.writes, inner.lost > 0 && inner.writes.is_multiple_of(inner.lost));
        if is_lost || inner.pages.get(&page).map(|(_, version)| *version) != read {
            return Ok(false);
        }
        inner.pages.insert(page, (bytes.to_vec(), version));
        Ok(true)
    }
}

/// One key of the pages, as a worker without a memory of its own sees it.
#[derive(Debug)]
pub struct Paged {
    limit: Limit,
    key: Vec<u8>,
    pages: Pages<Shared>,
    calls: u64,
    /// The call that last took something.
    charge: u64,
    latest: Nanos,
}

impl Paged {
    /// A key of pages that others may share.
    #[must_use]
    pub fn new(shared: Shared, limit: Limit, key: &[u8]) -> Paged {
        Paged {
            limit,
            key: key.to_vec(),
            pages: Pages::new(shared, 2, Seed([3, 4])),
            calls: 0,
            charge: 0,
            latest: 0,
        }
    }

    /// Charges `cost` if it fits.
    ///
    /// # Panics
    /// When the pages cannot be exchanged.
    pub fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        self.calls += 1;
        let op = Op::Check { cost, more: 0, share: 1, owed: 0, id: self.calls };
        let decision = self.execute(op, now);
        if decision.allowed && cost > 0 {
            (self.charge, self.latest) = (self.calls, self.latest.max(now));
        }
        decision
    }

    /// Gives back units of what was last charged, `age` ago.
    ///
    /// # Panics
    /// When the pages cannot be exchanged.
    pub fn refund(&mut self, units: u64, age: Nanos, now: Nanos) {
        let _ = self.execute(Op::GiveBack { units, age, id: self.charge }, now);
    }

    fn execute(&mut self, op: Op, now: Nanos) -> Decision {
        let mut decisions = [NOTHING];
        let asks = [Ask { key: &self.key, limit: &self.limit }];
        self.pages.execute(&Call { asks: &asks, op }, now, &mut decisions).expect("an exchange");
        decisions[0]
    }

    /// The latest time at which it was charged.
    #[must_use]
    pub fn latest(&self) -> Nanos {
        self.latest
    }

    /// The limit that it asks under.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Another limit of the same algorithm.
    pub fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
    }
}
