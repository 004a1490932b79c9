//! The keyed table: a fixed number of buckets in memory that the caller gives,
//! 16 bytes a key, shared by any number of threads and processes.
//!
//! # A slot
//!
//! ```text
//!  hi  | class 12 | tag 52 − w | payload w |     lo | idle_at 64 |
//! ```
//!
//! - `idle_at` is the instant at which the bucket is full, or its window past:
//!   from then on the slot is as good as empty and may go to another key. So
//!   nothing has to sweep the table.
//! - `class` names the rate and algorithm that the slot was last charged
//!   under, by its place in a list in the table's header: a slot can be
//!   understood, and carried over token for token when a limit changes, by
//!   any process that finds it.
//! - `payload` is what the algorithm keeps beside the instant: the part of a
//!   nanosecond of a token bucket (no bits at all when a token is a whole
//!   number of nanoseconds), the count of a window.
//! - `tag` is as much of the key's fingerprint as is left: 52 bits for most
//!   limits, at least 19. The line that a slot is in tells more of it.
//!
//! # Where a key may be
//!
//! Slots come in lines of four, one cache line each. A key walks up to
//! [`WINDOW`] lines of its own, each drawn from its fingerprint, but no further than any key
//! had to go so far, which the header knows. It is put into the first unused
//! slot, else into the one that has been idle longest; only when none is idle
//! does the walk go on. Slots never become *unused* again, so the first unused
//! one ends a search. When all are in use, the one nearest to idle is evicted,
//! and counted.
//!
//! A sliding window takes two slots a key (32 bytes). Sliding logs and
//! concurrency limits need room for each admission: they live in *rows*, an
//! optional second part of the memory.
//!
//! # Invariants
//!
//! - I1. A slot changes only by one compare-and-swap of all its 16 bytes.
//! - I2. A key has at most one settled slot (`claim.rs`).
//! - I3. A slot that was used is never unused again.
//! - I4. Classes are only added, and each is written once.

mod claim;
mod memory;
#[cfg(feature = "alloc")]
mod owned;
mod rows;
mod walk;
mod windows;

pub use memory::{AttachError, Config, ConfigError, Header, Line, WINDOW};
#[cfg(feature = "alloc")]
pub use owned::OwnedTable;
pub use rows::Hold;
pub(crate) use rows::Ring;

use crate::algorithm::token_bucket::{Rate, Tat};
use crate::algorithm::{fixed_window, leaky_bucket, token_bucket};
use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::{Algorithm, Limit};
use crate::slot::Word;
use crate::time::{Nanos, held};
use memory::{Class, Parts};
use walk::{Cell, Walk};

/// How many keys a batch fetches ahead.
const BATCH: usize = 16;

/// A table over the caller's memory. Every method may be called from any
/// number of threads and processes at the same time.
#[derive(Clone, Debug)]
pub struct Table<'m> {
    parts: Parts<'m>,
}

/// What the table has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Slots.
    pub capacity: u64,
    /// Slots that were ever used.
    pub used: u64,
    /// Buckets that were not idle when another key took their slot.
    pub evictions: u64,
    /// Rows for logs and concurrency limits.
    pub rows: u64,
    /// Rows that were ever used.
    pub rows_used: u64,
    /// Rows that were not idle when another key took them.
    pub row_evictions: u64,
}

/// One question of a batch or of several limits at once.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// The subject.
    pub key: &'r [u8],
    /// What it may use.
    pub limit: &'r Limit,
    /// Units asked for.
    pub cost: u64,
}

/// A count, and the instant after which it is void.
#[cfg(feature = "policy")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub(crate) count: u64,
    pub(crate) forgotten_at: Nanos,
}

/// Why a table cannot serve a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The table has no rows.
    #[error("{0:?} needs rows, and this table was laid out without any")]
    NoRows(Algorithm),
    /// The rows are too short.
    #[error("{algorithm:?} of {limit} units needs rows of {limit} entries; this table has {entries}")]
    ShortRows {
        /// The algorithm that was asked for.
        algorithm: Algorithm,
        /// Its limit.
        limit: u64,
        /// Entries of a row of this table.
        entries: u64,
    },
}

impl<'m> Table<'m> {
    /// Charges `cost` units to `key` if they fit; a cost of 0 only reads.
    ///
    /// A limit that [`accepts`](Self::accepts) refuses is denied for ever
    /// (`retry_after` is [`NEVER`](crate::NEVER)): check it once, when it is
    /// configured. A concurrency limit is only read here; see
    /// [`acquire`](Self::acquire).
    #[inline]
    pub fn check(&self, key: &[u8], limit: &Limit, cost: u64, now: Nanos) -> Decision {
        self.check_fingerprint(self.fingerprint(key), limit, cost, now)
    }

    /// [`check`](Self::check) with the fingerprint at hand.
    #[inline]
    pub fn check_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        self.decide::<true>(key, limit, cost, now)
    }

    /// The decision that [`check`](Self::check) would make, charging nothing.
    pub fn peek(&self, key: &[u8], limit: &Limit, cost: u64, now: Nanos) -> Decision {
        self.peek_fingerprint(self.fingerprint(key), limit, cost, now)
    }

    /// [`peek`](Self::peek) with the fingerprint at hand.
    pub fn peek_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        self.decide::<false>(key, limit, cost, now)
    }

    /// Checks independent requests; `decisions[i]` answers `requests[i]`, and
    /// the shorter of the two slices sets how many are checked. The slots of
    /// up to 16 keys are fetched from memory at once.
    pub fn check_batch(&self, requests: &[Request<'_>], now: Nanos, decisions: &mut [Decision]) {
        for (requests, decisions) in requests.chunks(BATCH).zip(decisions.chunks_mut(BATCH)) {
            let mut keys = [Fingerprint(0); BATCH];
            let mut touched = 0;
            for (key, request) in keys.iter_mut().zip(requests) {
                *key = self.fingerprint(request.key);
                touched ^= self.parts.touch(*key);
            }
            core::hint::black_box(touched); // or the loads would be left out
            for ((key, request), decision) in keys.iter().zip(requests).zip(decisions) {
                *decision = self.decide::<true>(*key, request.limit, request.cost, now);
            }
        }
    }

    /// Gives back `cost` units that were charged at `charged_at`, the `now` of
    /// that check; never above the burst, and nothing that time has given back
    /// already. The present is the latest instant at which a key that shares
    /// this key's clock was charged.
    pub fn refund(&self, key: &[u8], limit: &Limit, cost: u64, charged_at: Nanos) {
        self.refund_fingerprint(self.fingerprint(key), limit, cost, charged_at);
    }

    /// [`refund`](Self::refund) with the fingerprint at hand.
    pub fn refund_fingerprint(&self, key: Fingerprint, limit: &Limit, cost: u64, charged_at: Nanos) {
        let now = self.parts.header.clock(key).present(charged_at);
        match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.update(key, limit, now, |cell| {
                let tat = token_bucket::refund(cell.tat(), limit, now, cost, charged_at);
                (Some(Cell::from(tat)), ())
            }),
            Algorithm::FixedWindow => self.update(key, limit, now, |cell| {
                (Some(Cell::from(fixed_window::refund(cell.window(), limit, now, cost, charged_at))), ())
            }),
            Algorithm::SlidingWindow => self.refund_windows(key, limit, cost, now, charged_at),
            Algorithm::SlidingLog => self.refund_log(key, limit, cost, charged_at),
            Algorithm::Concurrency => {} // holds are released, not refunded
        }
    }

    /// Keeps a count beside an instant after which it is void, under a fixed
    /// window's `limit` that bounds the count.
    #[cfg(feature = "policy")]
    pub(crate) fn tally<R>(
        &self,
        key: Fingerprint,
        limit: &Limit,
        now: Nanos,
        mut step: impl FnMut(Tally, Nanos) -> (Option<Tally>, R),
    ) -> R {
        let now = self.parts.header.clock(key).hold(now);
        self.update(key, limit, now, |cell| {
            let tally = Tally { count: cell.payload, forgotten_at: cell.at };
            let (next, answer) = step(tally, now);
            (next.map(|next| Cell { at: next.forgotten_at, payload: next.count }), answer)
        })
    }

    /// Can this table serve this limit?
    ///
    /// # Errors
    /// Logs and concurrency limits need rows of at least `limit` entries.
    pub fn accepts(&self, limit: &Limit) -> Result<(), Unsupported> {
        let algorithm = limit.algorithm();
        if !matches!(algorithm, Algorithm::SlidingLog | Algorithm::Concurrency) {
            return Ok(());
        }
        let entries = self.parts.row_entries();
        if self.parts.rows() == 0 {
            Err(Unsupported::NoRows(algorithm))
        } else if limit.limit() > entries {
            Err(Unsupported::ShortRows { algorithm, limit: limit.limit(), entries })
        } else {
            Ok(())
        }
    }

    /// The fingerprint of a key under this table's seed.
    #[inline]
    #[must_use]
    pub fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        self.parts.fingerprint(key)
    }

    /// Counters, read one after the other.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.parts.stats()
    }

    /// Buckets that are in use at `now`. Reads the whole table: for a page of
    /// metrics, not for the request path.
    #[must_use]
    pub fn live(&self, now: Nanos) -> u64 {
        let now = held(now);
        let lines = self.parts.key_lines().iter();
        lines.flat_map(|line| &line.0).filter(|slot| self.parts.in_use(slot.load(), now)).count() as u64
    }

    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    fn decide<const TAKE: bool>(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        if !limit.is_whole {
            return self.answer::<TAKE>(key, limit, cost, now);
        }
        // The most frequent limit, without a detour: a slot of this very
        // class, in the first line, whose payload is empty.
        let clock = self.parts.header.clock(key);
        let (at, latest) = clock.hold_and_latest(now);
        let Some((slot, word)) = self.walk(key, limit).find_plain() else {
            return self.answer::<TAKE>(key, limit, cost, now);
        };
        let Some(admission) = token_bucket::admit(word.lo, limit, at, cost) else {
            return token_bucket::deny(word.lo, limit, at, cost);
        };
        if TAKE && cost > 0 {
            if slot.swap(word, Word { lo: admission.tat(at), ..word }).is_err() {
                return self.answer::<TAKE>(key, limit, cost, now); // others came first
            }
            clock.note_after(at, latest);
        }
        admission.decision(limit)
    }

    #[inline(never)]
    fn answer<const TAKE: bool>(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        let clock = self.parts.header.clock(key);
        let now = clock.hold(now);
        let decision = self.decide_any::<TAKE>(key, limit, cost, now);
        if TAKE && decision.allowed && cost > 0 {
            clock.note(now);
        }
        decision
    }

    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    fn decide_any<const TAKE: bool>(
        &self,
        key: Fingerprint,
        limit: &Limit,
        cost: u64,
        now: Nanos,
    ) -> Decision {
        match limit.algorithm() {
            Algorithm::TokenBucket => self.update(key, limit, now, |cell| {
                let (tat, decision) = token_bucket::decide(cell.tat(), limit, now, cost);
                (TAKE.then(|| Cell::from(tat)), decision)
            }),
            Algorithm::LeakyBucket => self.update(key, limit, now, |cell| {
                let (tat, decision) = leaky_bucket::decide(cell.tat(), limit, now, cost);
                (TAKE.then(|| Cell::from(tat)), decision)
            }),
            Algorithm::FixedWindow => self.update(key, limit, now, |cell| {
                let (window, decision) = fixed_window::decide(cell.window(), limit, now, cost);
                (TAKE.then(|| Cell::from(window)), decision)
            }),
            Algorithm::SlidingWindow => self.check_windows(key, limit, cost, now, TAKE),
            Algorithm::SlidingLog => self.check_log(key, limit, cost, now, TAKE),
            Algorithm::Concurrency => self.peek_holds(key, limit, cost, now),
        }
    }

    /// Applies `step` to the cell of a key until its answer could be stored.
    /// A step that returns its cell unchanged, or none, stores nothing.
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    fn update<R>(
        &self,
        key: Fingerprint,
        limit: &Limit,
        now: Nanos,
        mut step: impl FnMut(Cell) -> (Option<Cell>, R),
    ) -> R {
        let walk = self.walk(key, limit);
        loop {
            let found = walk.find();
            let cell = match found {
                Some((_, word)) if walk.owns(word) => walk.cell(word),
                Some((_, word)) => self.carry(word, limit, now),
                None => Cell::default(),
            };
            let (next, answer) = step(cell);
            // What was carried over is stored even by a denial: it refills at
            // the new rate from now on, as the answer says.
            let is_carried = found.is_some_and(|(_, word)| !walk.owns(word));
            let Some(next) = next.filter(|next| is_carried || *next != cell) else {
                return answer;
            };
            match found {
                Some((slot, seen)) => {
                    if slot.swap(seen, walk.word_over(next, seen)).is_ok() {
                        return answer;
                    }
                }
                None => {
                    if walk.claim(now, |_| walk.word(next)).is_some() {
                        return answer;
                    }
                }
            }
        }
    }

    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    fn walk(&self, key: Fingerprint, limit: &Limit) -> Walk<'_, 'm> {
        Walk::new(&self.parts, key, limit, self.parts.class(limit))
    }

    /// The state of a slot that was charged under another limit of the same
    /// algorithm: tokens spent stay spent.
    #[cold]
    fn carry(&self, word: Word, limit: &Limit, now: Nanos) -> Cell {
        let class = self.parts.class_of(word);
        let payload = walk::payload(word, class);
        match class {
            Some(Class::Rate { tick, token, .. }) => {
                let tat = Tat { at: word.lo, part: payload as u32 }; // below tick
                token_bucket::carry(tat, Rate { tick, token }, limit, now).into()
            }
            Some(Class::Window { period, .. }) if period == limit.period() && word.lo > now => {
                Cell { at: word.lo, payload } // the same window
            }
            _ if limit.algorithm() == Algorithm::FixedWindow => {
                // More than the limit, in a window of another length, is just full.
                let count = if word.lo > now { payload.min(limit.limit()) } else { 0 };
                Cell { at: fixed_window::Window::default().at(limit, now).end, payload: count }
            }
            // A rate that found no room in the list is not known: the time
            // until idle is kept in place of the tokens.
            _ => Cell { at: word.lo, payload: 0 },
        }
    }
}
