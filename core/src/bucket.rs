//! One bucket: a limit and its state, shared by threads.
//!
//! A token or leaky bucket whose token is a whole number of nanoseconds (most
//! are) is one 64-bit word; everything else is one 16-byte slot. A decision
//! is one compare-and-swap, a denial only a read.

use portable_atomic::{AtomicU64, Ordering};

use crate::algorithm::fixed_window::{self, Window};
use crate::algorithm::leaky_bucket;
use crate::algorithm::sliding_log::{self, Log};
use crate::algorithm::sliding_window::{self, Windows};
use crate::algorithm::token_bucket::{self, Rate, Tat};
use crate::decision::Decision;
use crate::limit::{Algorithm, Limit};
use crate::slot::{Slot, Word};
use crate::table::{Line, Ring, Unsupported};
use crate::time::{Latest, Nanos};

/// A limit and its state. Every method but [`set_limit`](Self::set_limit) may
/// be called from any number of threads at the same time.
#[derive(Debug)]
pub struct Bucket {
    limit: Limit,
    state: State,
}

/// What changes, in a cache line apart from what is only read.
#[repr(align(64))]
#[derive(Debug, Default)]
struct State {
    /// The `tat` of a bucket whose token is a whole number of nanoseconds.
    /// Nothing else is published with it, so every access is relaxed.
    tat: AtomicU64,
    latest: Latest,
    slot: Slot,
}

impl Bucket {
    /// A full bucket.
    ///
    /// # Errors
    /// A sliding log needs memory for its entries: see [`LogBucket`]; a
    /// concurrency limit lives in a [`Table`](crate::Table).
    pub fn new(limit: Limit) -> Result<Bucket, Unsupported> {
        match limit.algorithm() {
            algorithm @ (Algorithm::SlidingLog | Algorithm::Concurrency) => {
                Err(Unsupported::NoRows(algorithm))
            }
            _ => Ok(Bucket { limit, state: State::default() }),
        }
    }

    /// Its limit.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Charges `cost` units if they fit; a cost of 0 only reads.
    #[inline]
    pub fn check(&self, cost: u64, now: Nanos) -> Decision {
        self.decide::<true>(cost, now)
    }

    /// The decision that [`check`](Self::check) would make, charging nothing.
    #[inline]
    pub fn peek(&self, cost: u64, now: Nanos) -> Decision {
        self.decide::<false>(cost, now)
    }

    /// Gives back `cost` units that were charged at `charged_at`, the `now` of
    /// that check; never above the burst, and nothing that time has given back
    /// already.
    pub fn refund(&self, cost: u64, charged_at: Nanos) {
        let (limit, now) = (&self.limit, self.state.latest.present(charged_at));
        match limit.algorithm() {
            Algorithm::FixedWindow => self.update_slot(|word| {
                (Some(window_word(fixed_window::refund(window(word), limit, now, cost, charged_at))), ())
            }),
            Algorithm::SlidingWindow => self.update_slot(|word| {
                (Some(windows_word(sliding_window::refund(windows(word), limit, now, cost, charged_at))), ())
            }),
            _ => self.update_tat(|tat| (Some(token_bucket::refund(tat, limit, now, cost, charged_at)), ())),
        }
    }

    /// Changes the limit from the next request on. Tokens already spent stay
    /// spent, one for one, under the new rate. Another algorithm starts fresh.
    ///
    /// # Errors
    /// As [`new`](Self::new); the old limit then stays.
    pub fn set_limit(&mut self, limit: Limit, now: Nanos) -> Result<(), Unsupported> {
        let next = Bucket::new(limit)?;
        if limit.algorithm() == self.limit.algorithm() {
            let now = self.state.latest.hold(now);
            next.state.latest.note(now);
            // More than the limit, in windows of another length, is just full.
            let most = u32::try_from(limit.limit()).unwrap_or(u32::MAX);
            match limit.algorithm() {
                Algorithm::FixedWindow => {
                    let open = window(self.state.slot.load());
                    let is_open = open.end > now;
                    let carried = if is_open && limit.period() == self.limit.period() {
                        open
                    } else {
                        let count = if is_open { open.count.min(most) } else { 0 };
                        Window { count, ..Window::default().at(&limit, now) }
                    };
                    next.update_slot(|_| (Some(window_word(carried)), ()));
                }
                Algorithm::SlidingWindow => {
                    let open = windows(self.state.slot.load()).at(&self.limit, now);
                    let fresh = Windows::default().at(&limit, now);
                    let same = fresh.end == open.end && limit.period() == self.limit.period();
                    let spent = open.current.saturating_add(open.previous);
                    let carried = if same { open } else { Windows { current: spent.min(most), ..fresh } };
                    next.update_slot(|_| (Some(windows_word(carried)), ()));
                }
                _ => {
                    let tat = token_bucket::carry(self.read_tat(), Rate::of(&self.limit), &limit, now);
                    next.update_tat(|_| (Some(tat), ()));
                }
            }
        }
        *self = next;
        Ok(())
    }

    #[inline(always)]
    fn decide<const TAKE: bool>(&self, cost: u64, now: Nanos) -> Decision {
        if !self.limit.is_whole {
            return self.answer::<TAKE>(cost, now);
        }
        // The most frequent bucket, without a detour.
        let (now, latest) = self.state.latest.hold_and_latest(now);
        let mut seen = self.state.tat.load(Ordering::Relaxed);
        loop {
            let Some(admission) = token_bucket::admit(seen, &self.limit, now, cost) else {
                return token_bucket::deny(seen, &self.limit, now, cost);
            };
            if !TAKE || cost == 0 {
                return admission.decision(&self.limit);
            }
            let next = admission.tat(now);
            match self.state.tat.compare_exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.state.latest.note_after(now, latest);
                    return admission.decision(&self.limit);
                }
                Err(other) => seen = other,
            }
        }
    }

    #[inline(never)]
    fn answer<const TAKE: bool>(&self, cost: u64, now: Nanos) -> Decision {
        let now = self.state.latest.hold(now);
        let decision = self.decide_any::<TAKE>(cost, now);
        if TAKE && decision.allowed && cost > 0 {
            self.state.latest.note(now);
        }
        decision
    }

    fn decide_any<const TAKE: bool>(&self, cost: u64, now: Nanos) -> Decision {
        let limit = &self.limit;
        match limit.algorithm() {
            Algorithm::TokenBucket => self.update_tat(|tat| {
                let (next, decision) = token_bucket::decide(tat, limit, now, cost);
                (TAKE.then_some(next), decision)
            }),
            Algorithm::LeakyBucket => self.update_tat(|tat| {
                let (next, decision) = leaky_bucket::decide(tat, limit, now, cost);
                (TAKE.then_some(next), decision)
            }),
            Algorithm::SlidingWindow => self.update_slot(|word| {
                let (next, decision) = sliding_window::decide(windows(word), limit, now, cost);
                (TAKE.then(|| windows_word(next)), decision)
            }),
            // The only other algorithm that a bucket is made with.
            _ => self.update_slot(|word| {
                let (next, decision) = fixed_window::decide(window(word), limit, now, cost);
                (TAKE.then(|| window_word(next)), decision)
            }),
        }
    }

    fn read_tat(&self) -> Tat {
        if self.limit.tick == 1 {
            Tat { at: self.state.tat.load(Ordering::Relaxed), part: 0 }
        } else {
            tat(self.state.slot.load())
        }
    }

    #[inline]
    fn update_tat<R>(&self, step: impl Fn(Tat) -> (Option<Tat>, R)) -> R {
        if self.limit.tick != 1 {
            return self.update_slot(|word| {
                let (next, answer) = step(tat(word));
                (next.map(tat_word), answer)
            });
        }
        let mut seen = self.state.tat.load(Ordering::Relaxed);
        loop {
            let (next, answer) = step(Tat { at: seen, part: 0 });
            let Some(next) = next.filter(|next| next.at != seen) else {
                return answer;
            };
            match self.state.tat.compare_exchange(seen, next.at, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return answer,
                Err(other) => seen = other,
            }
        }
    }

    #[inline]
    fn update_slot<R>(&self, step: impl Fn(Word) -> (Option<Word>, R)) -> R {
        let mut seen = self.state.slot.load();
        loop {
            let (next, answer) = step(seen);
            let Some(next) = next.filter(|next| *next != seen) else {
                return answer;
            };
            match self.state.slot.swap(seen, next) {
                Ok(()) => return answer,
                Err(other) => seen = other,
            }
        }
    }
}

fn tat(word: Word) -> Tat {
    Tat { at: word.lo, part: word.hi as u32 } // written by tat_word
}

fn tat_word(tat: Tat) -> Word {
    Word { hi: u64::from(tat.part), lo: tat.at }
}

fn window(word: Word) -> Window {
    Window { end: word.lo, count: word.hi as u32 } // written by window_word
}

fn window_word(window: Window) -> Word {
    Word { hi: u64::from(window.count), lo: window.end }
}

fn windows(word: Word) -> Windows {
    Windows { end: word.lo, current: (word.hi >> 32) as u32, previous: word.hi as u32 } // the two halves
}

fn windows_word(windows: Windows) -> Word {
    Word { hi: u64::from(windows.current) << 32 | u64::from(windows.previous), lo: windows.end }
}

/// One sliding log in the caller's memory, which must be zero at first and
/// hold at least `limit + 1` slots.
#[derive(Debug)]
pub struct LogBucket<'m> {
    limit: Limit,
    lines: &'m [Line],
}

impl<'m> LogBucket<'m> {
    /// A log over `lines`.
    ///
    /// # Errors
    /// Another algorithm, or fewer than `limit` entries.
    pub fn new(limit: Limit, lines: &'m [Line]) -> Result<LogBucket<'m>, Unsupported> {
        let (algorithm, entries) = (limit.algorithm(), Self::entries(lines));
        if algorithm != Algorithm::SlidingLog {
            Err(Unsupported::NoRows(algorithm))
        } else if entries < limit.limit() {
            Err(Unsupported::ShortRows { algorithm, limit: limit.limit(), entries })
        } else {
            Ok(LogBucket { limit, lines })
        }
    }

    /// Lines that a log of that limit needs.
    #[must_use]
    pub fn lines(limit: &Limit) -> u64 {
        (limit.limit() + 1).div_ceil(4)
    }

    /// Charges `cost` units if they fit; a cost of 0 only reads.
    pub fn check(&self, cost: u64, now: Nanos) -> Decision {
        self.decide(cost, now, true)
    }

    /// The decision that [`check`](Self::check) would make, charging nothing.
    pub fn peek(&self, cost: u64, now: Nanos) -> Decision {
        self.decide(cost, now, false)
    }

    /// Gives back `cost` units that were charged at `charged_at`, those first
    /// that would leave the window first; nothing that has left it already.
    pub fn refund(&self, cost: u64, charged_at: Nanos) {
        while let Some(owner) = self.lines.first().map(|line| &line.0[0]) {
            let seen = owner.load();
            let ring = self.ring(seen.lo);
            let floor = sliding_log::refund(&ring, &self.limit, cost, charged_at);
            if floor == seen.lo
                || (ring.is_unchanged() && owner.swap(seen, Word { lo: floor, ..seen }).is_ok())
            {
                return;
            }
        }
    }

    fn decide(&self, cost: u64, now: Nanos, take: bool) -> Decision {
        loop {
            let floor = self.lines.first().map_or(0, |line| line.0[0].load().lo);
            let ring = self.ring(floor);
            // A clock that stepped back stands, even when all was refunded since.
            let now = now.max(ring.entry(ring.len() - 1).at);
            let (entry, decision) = sliding_log::decide(&ring, &self.limit, now, cost);
            let done = match entry.filter(|_| take) {
                Some(entry) => ring.append(entry),
                None => ring.is_unchanged(),
            };
            if done {
                return decision;
            }
        }
    }

    fn ring(&self, floor: u64) -> Ring<'m> {
        Ring::read(self.lines, Self::entries(self.lines), floor, false)
    }

    fn entries(lines: &[Line]) -> u64 {
        (lines.len() as u64 * 4).saturating_sub(1)
    }
}
