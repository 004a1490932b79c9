//! What is counted under one key, as values: the pure
//! [`algorithms`](crate::algorithm) on a state that whoever keeps it may
//! write wherever it likes. The store of a simulation and the
//! [`pages`](crate::pages) of a host whose workers share no memory keep it.

use alloc::vec::Vec;

use crate::algorithm::fixed_window::{self, Window};
use crate::algorithm::sliding_log::{self, Entry, Log};
use crate::algorithm::sliding_window::{self, Windows};
use crate::algorithm::token_bucket::{self, Rate, Tat};
use crate::algorithm::{concurrency, leaky_bucket};
use crate::decision::Decision;
use crate::limit::{Algorithm, Limit, MAX_LIMIT};
use crate::time::Nanos;

/// The state of one key.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Bucket(Tat),
    Window(Window),
    Windows(Windows),
    /// Admissions, oldest first.
    Log(Vec<Line>),
    /// The expiry and the call of each unit in flight.
    Holds(Vec<(Nanos, u64)>),
}

/// Units that one call took from a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) at: Nanos,
    pub(crate) units: u64,
    pub(crate) id: u64,
    /// Of all units up to and with these.
    pub(crate) total: u64,
}

impl State {
    /// Nothing counted.
    pub(crate) fn new(limit: &Limit) -> State {
        match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => State::Bucket(Tat::default()),
            Algorithm::FixedWindow => State::Window(Window::default()),
            Algorithm::SlidingWindow => State::Windows(Windows::default()),
            Algorithm::SlidingLog => State::Log(Vec::new()),
            Algorithm::Concurrency => State::Holds(Vec::new()),
        }
    }

    /// Charges `cost` if it fits.
    pub(crate) fn decide(&mut self, limit: &Limit, now: Nanos, cost: u64, id: u64) -> Decision {
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
    pub(crate) fn charge(&mut self, limit: &Limit, now: Nanos, units: u64, id: u64) {
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

    /// Takes back what was charged then, under that call's number; of a log, if
    /// that is 0, the oldest units.
    pub(crate) fn refund(&mut self, limit: &Limit, now: Nanos, units: u64, charged_at: Nanos, id: u64) {
        match self {
            State::Bucket(tat) => *tat = token_bucket::refund(*tat, limit, now, units, charged_at),
            State::Window(window) => *window = fixed_window::refund(*window, limit, now, units, charged_at),
            State::Windows(windows) => {
                *windows = sliding_window::refund(*windows, limit, now, units, charged_at);
            }
            State::Log(lines) if id == 0 => {
                let floor = sliding_log::refund(&Lines(lines), limit, units, charged_at);
                let mut before = floor;
                for line in lines.iter_mut() {
                    line.units = line.total.saturating_sub(before);
                    before = before.max(line.total);
                }
                lines.retain(|line| line.units > 0);
                number(lines);
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
    pub(crate) fn carry(&mut self, from: &Limit, to: &Limit, now: Nanos) {
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

/// Counts the lines' totals anew.
pub(crate) fn number(lines: &mut [Line]) {
    let mut total = 0u64;
    for line in lines {
        total = total.saturating_add(line.units);
        line.total = total;
    }
}

fn small(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
