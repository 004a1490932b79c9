//! The store of a simulation: what the scripts do on a server, done by the
//! pure [`algorithms`](crate::algorithm) on a state a key.
//!
//! It keeps a book beside each key: units that were charged, and units that
//! were given back. What all instances admit together is held against that.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::decision::Decision;
use crate::key::{Fingerprinter, Seed};
use crate::limit::Limit;
use crate::policy::check::NONE;
use crate::redis::script::{Ask, Call, Op};
use crate::redis::state::State;
use crate::time::Nanos;

/// Keys, and what is counted under them.
#[derive(Debug)]
pub struct SimStore {
    places: HashTable<usize>,
    cells: Vec<Cell>,
    hash: Fingerprinter,
    /// The latest instant at which a call came: a clock that steps back stands.
    latest: Nanos,
    commands: u64,
}

/// The book of one key, since the beginning: a store that loses its state
/// keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Book {
    /// Units that were charged by requests, and as leases.
    pub charged: u64,
    /// Units of `charged` that were leases.
    pub leased: u64,
    /// Units that instances gave back, whether that made room or not.
    pub given_back: u64,
    /// Units that instances admitted without asking, told later.
    pub owed: u64,
    /// Calls that were denied by this key.
    pub denied: u64,
    /// Calls of any kind.
    pub calls: u64,
}

#[derive(Debug)]
struct Cell {
    key: Box<[u8]>,
    limit: Limit,
    state: State,
    book: Book,
}

impl Default for SimStore {
    fn default() -> Self {
        SimStore::new()
    }
}

impl SimStore {
    /// An empty one.
    #[must_use]
    pub fn new() -> SimStore {
        SimStore {
            places: HashTable::new(),
            cells: Vec::new(),
            hash: Fingerprinter::new(Seed([1, 2])),
            latest: 0,
            commands: 0,
        }
    }

    /// Does what a call asks, at `now` of the store's own clock: one decision
    /// for each of its limits, and the units that were given on top.
    pub fn execute(&mut self, call: &Call<'_>, now: Nanos, decisions: &mut [Decision]) -> u64 {
        self.latest = self.latest.max(now);
        let now = self.latest;
        self.commands += 1;
        match call.op {
            Op::Check { cost, more, share, owed, id } => {
                for ask in call.asks {
                    let cell = self.cell(ask, now);
                    cell.book.calls += 1;
                    if owed > 0 {
                        cell.state.charge(ask.limit, now, owed, id);
                        cell.book.owed += owed;
                    }
                }
                self.check(call.asks, now, cost, (more, share), id, decisions)
            }
            Op::GiveBack { units, age, id } => {
                for ask in call.asks {
                    let cell = self.cell(ask, now);
                    cell.book.calls += 1;
                    cell.book.given_back += units;
                    cell.state.refund(ask.limit, now, units, now.saturating_sub(age), id);
                }
                0
            }
        }
    }

    /// Loses all that was counted; the books stay.
    pub fn flush(&mut self) {
        for cell in &mut self.cells {
            cell.state = State::new(&cell.limit);
        }
    }

    /// Calls that were carried out.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Keys that were ever asked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Was nothing ever asked?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The book of a key.
    #[must_use]
    pub fn book(&self, key: &[u8]) -> Option<Book> {
        self.find(key).and_then(|place| self.cells.get(place)).map(|cell| cell.book)
    }

    /// All keys with their books, in the order in which they were first asked.
    pub fn books(&self) -> impl Iterator<Item = (&[u8], Book)> {
        self.cells.iter().map(|cell| (&*cell.key, cell.book))
    }

    /// What a request of no cost would be told of a key.
    #[must_use]
    pub fn peek(&self, key: &[u8], now: Nanos) -> Option<Decision> {
        let cell = self.cells.get(self.find(key)?)?;
        Some(cell.state.clone().decide(&cell.limit, self.latest.max(now), 0, 0))
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        let is_it = |place: &usize| self.cells.get(*place).is_some_and(|cell| *cell.key == *key);
        self.places.find(self.hash.fingerprint(key).0, is_it).copied()
    }

    /// The cell of a key, under this limit: what was spent under another
    /// stays spent.
    fn cell(&mut self, ask: &Ask<'_>, now: Nanos) -> &mut Cell {
        let place = self.find(ask.key).unwrap_or(self.cells.len());
        if place == self.cells.len() {
            let (hash, cells) = (&self.hash, &self.cells);
            let rehash = |place: &usize| cells.get(*place).map_or(0, |cell| hash.fingerprint(&cell.key).0);
            self.places.insert_unique(hash.fingerprint(ask.key).0, place, rehash);
            let (limit, state) = (*ask.limit, State::new(ask.limit));
            self.cells.push(Cell { key: ask.key.into(), limit, state, book: Book::default() });
        }
        let last = self.cells.len() - 1; // one was pushed, or found
        let cell = &mut self.cells[place.min(last)];
        if cell.limit != *ask.limit {
            cell.state.carry(&cell.limit, ask.limit, now);
            cell.limit = *ask.limit;
        }
        cell
    }

    fn check(
        &mut self,
        asks: &[Ask<'_>],
        now: Nanos,
        cost: u64,
        (more, share): (u64, u64),
        id: u64,
        decisions: &mut [Decision],
    ) -> u64 {
        let mut fits = true;
        for (ask, decision) in asks.iter().zip(&mut *decisions) {
            let cell = self.cell(ask, now);
            *decision = cell.state.clone().decide(ask.limit, now, cost, id);
            cell.book.denied += u64::from(!decision.allowed);
            fits &= decision.allowed;
        }
        if !fits {
            for (ask, decision) in asks.iter().zip(decisions).filter(|(_, decision)| decision.allowed) {
                *decision = self.cell(ask, now).state.decide(ask.limit, now, 0, id);
            }
            return 0;
        }
        let mut units = more;
        for ask in asks {
            let state = &mut self.cell(ask, now).state;
            let _ = state.decide(ask.limit, now, cost, id);
            units = units.min(state.decide(ask.limit, now, 0, id).remaining / share.max(1));
        }
        for (ask, decision) in asks.iter().zip(decisions) {
            let cell = self.cell(ask, now);
            let _ = cell.state.decide(ask.limit, now, units, id);
            cell.book.charged += cost + units;
            cell.book.leased += units;
            let (allowed, delay) = (decision.allowed, decision.delay);
            *decision = Decision { allowed, delay, ..cell.state.decide(ask.limit, now, 0, id) };
        }
        units
    }
}

/// What stands where no decision was made yet.
pub(super) const UNDECIDED: Decision = NONE;
