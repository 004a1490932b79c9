//! The store of a simulation: what the scripts do on a server, done by the
//! pure [`algorithms`](crate::algorithm) on a state a key.
//!
//! It keeps a book beside each key: units that were charged, and units that
//! were given back. What all instances admit together is held against that.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::algorithm::fixed_window::{self, Window};
use crate::algorithm::sliding_log::{self, Entry, Log};
use crate::algorithm::sliding_window::{self, Windows};
use crate::algorithm::token_bucket::{self, Rate, Tat};
use crate::algorithm::{concurrency, leaky_bucket};
use crate::decision::Decision;
use crate::key::{Fingerprinter, Seed};
use crate::limit::{Algorithm, Limit, MAX_LIMIT};
use crate::policy::check::NONE;
use crate::redis::script::{Ask, Call, Op};
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
}

#[derive(Debug)]
struct Cell {
    key: Box<[u8]>,
    limit: Limit,
    state: State,
    book: Book,
}

#[derive(Clone, Debug)]
enum State {
    Bucket(Tat),
    Window(Window),
    Windows(Windows),
    /// Admissions, oldest first.
    Log(Vec<Line>),
    /// The expiry and the call of each unit in flight.
    Holds(Vec<(Nanos, u64)>),
}

#[derive(Clone, Copy, Debug)]
struct Line {
    at: Nanos,
    units: u64,
    id: u64,
    /// Of all units up to and with these.
    total: u64,
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

impl State {
    fn new(limit: &Limit) -> State {
        match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => State::Bucket(Tat::default()),
            Algorithm::FixedWindow => State::Window(Window::default()),
            Algorithm::SlidingWindow => State::Windows(Windows::default()),
            Algorithm::SlidingLog => State::Log(Vec::new()),
            Algorithm::Concurrency => State::Holds(Vec::new()),
        }
    }

    /// Charges `cost` if it fits.
    fn decide(&mut self, limit: &Limit, now: Nanos, cost: u64, id: u64) -> Decision {
        match self {
            State::Bucket(tat) => {
                let decide = match limit.algorithm() {
                    Algorithm::LeakyBucket => leaky_bucket::decide,
                    _ => token_bucket::decide,
                };
                let (next, decision) = decide(*tat, limit, now, cost);
                *tat = next;
                decision
            }
            State::Window(window) => {
                let (next, decision) = fixed_window::decide(*window, limit, now, cost);
                *window = next;
                decision
            }
            State::Windows(windows) => {
                let (next, decision) = sliding_window::decide(*windows, limit, now, cost);
                *windows = next;
                decision
            }
            State::Log(lines) => {
                let (entry, decision) = sliding_log::decide(&Lines(lines), limit, now, cost);
                if let Some(entry) = entry {
                    lines.retain(|line| now.saturating_sub(line.at) < limit.period());
                    lines.push(Line { at: entry.at, units: cost, id, total: 0 });
                    number(lines);
                }
                decision
            }
            State::Holds(holds) => {
                let (expiry, decision) =
                    concurrency::decide(holds.iter().map(|(expiry, _)| *expiry), limit, now, cost);
                if let Some(expiry) = expiry {
                    holds.retain(|(expiry, _)| *expiry > now);
                    holds.extend((0..cost).map(|_| (expiry, id)));
                }
                decision
            }
        }
    }

    /// Charges, whether it fits or not.
    fn charge(&mut self, limit: &Limit, now: Nanos, units: u64, id: u64) {
        match self {
            State::Bucket(tat) => {
                let spent =
                    limit.burst().saturating_sub(token_bucket::decide(*tat, limit, now, 0).1.remaining);
                let over = token_bucket::decide(*tat, limit, now, 0).1.reset_after;
                let over = u128::from(over) * u128::from(limit.tick) / u128::from(limit.token);
                let over = u64::try_from(over).unwrap_or(MAX_LIMIT).max(spent);
                let wide = limit.with_burst(over.saturating_add(units).saturating_add(1).min(MAX_LIMIT));
                *tat = token_bucket::decide(*tat, &wide.unwrap_or(*limit), now, units).0;
            }
            State::Window(window) => {
                let open = window.at(limit, now);
                *window = Window { count: open.count.saturating_add(small(units)), ..open };
            }
            State::Windows(windows) => {
                let open = windows.at(limit, now);
                *windows = Windows { current: open.current.saturating_add(small(units)), ..open };
            }
            State::Log(lines) => {
                lines.push(Line { at: now, units, id, total: 0 });
                number(lines);
            }
            State::Holds(_) => {} // units in flight are not owed
        }
    }

    fn refund(&mut self, limit: &Limit, now: Nanos, units: u64, charged_at: Nanos, id: u64) {
        match self {
            State::Bucket(tat) => *tat = token_bucket::refund(*tat, limit, now, units, charged_at),
            State::Window(window) => *window = fixed_window::refund(*window, limit, now, units, charged_at),
            State::Windows(windows) => {
                *windows = sliding_window::refund(*windows, limit, now, units, charged_at);
            }
            State::Log(lines) => {
                let mut left = units;
                for line in lines.iter_mut().rev().filter(|line| line.id == id) {
                    let back = line.units.min(left);
                    line.units -= back;
                    left -= back;
                }
                lines.retain(|line| line.units > 0);
                number(lines);
            }
            State::Holds(holds) => {
                for _ in 0..units {
                    let Some(place) = holds.iter().position(|(_, of)| *of == id) else { return };
                    holds.swap_remove(place);
                }
            }
        }
    }

    /// As [`Bucket::set_limit`](crate::Bucket::set_limit) does.
    fn carry(&mut self, from: &Limit, to: &Limit, now: Nanos) {
        if from.algorithm() != to.algorithm() {
            *self = State::new(to);
            return;
        }
        let most = small(to.limit());
        match self {
            State::Bucket(tat) => *tat = token_bucket::carry(*tat, Rate::of(from), to, now),
            State::Window(window) => {
                let is_open = window.end > now;
                if !is_open || from.period() != to.period() {
                    let count = if is_open { window.count.min(most) } else { 0 };
                    *window = Window { count, ..Window::default().at(to, now) };
                }
            }
            State::Windows(windows) => {
                let open = windows.at(from, now);
                let fresh = Windows::default().at(to, now);
                let is_same = fresh.end == open.end && from.period() == to.period();
                let spent = open.current.saturating_add(open.previous);
                *windows = if is_same { open } else { Windows { current: spent.min(most), ..fresh } };
            }
            State::Log(_) | State::Holds(_) => {}
        }
    }
}

/// Lines as a ring whose oldest place was never used.
struct Lines<'l>(&'l [Line]);

impl Log for Lines<'_> {
    fn len(&self) -> usize {
        self.0.len() + 1
    }

    fn entry(&self, age: usize) -> Entry {
        let line = age.checked_sub(1).and_then(|place| self.0.get(place));
        line.map_or(Entry::default(), |line| Entry { total: line.total, at: line.at })
    }

    fn floor(&self) -> u64 {
        0
    }
}

fn number(lines: &mut [Line]) {
    let mut total = 0u64;
    for line in lines {
        total = total.saturating_add(line.units);
        line.total = total;
    }
}

fn small(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// What stands where no decision was made yet.
pub(super) const UNDECIDED: Decision = NONE;
