//! The six algorithms in rational numbers, written from their definitions and
//! from nothing else: no reduced rates, no packed words, no cleverness.
//!
//! Spans are rounded up to whole nanoseconds where they are told, and nowhere
//! before. A clock that steps back stands at the latest instant at which
//! something was charged.

use num_bigint::BigInt;
use num_rational::BigRational;
use tollgate_core::time::HORIZON;
use tollgate_core::{Algorithm, Anchor, Decision, Limit, NEVER, Nanos};

type Rational = BigRational;

/// One account under one limit.
#[derive(Clone, Debug)]
pub struct Oracle {
    limit: Limit,
    latest: Nanos,
    /// Tokens owed at `latest` (token and leaky bucket).
    debt: Rational,
    /// The end of the open window (fixed window), or of the last one charged.
    end: Nanos,
    current: u64,
    previous: u64,
    /// Admissions (log) or expiries (concurrency): when, and how many units.
    entries: Vec<(Nanos, u64)>,
}

fn ratio(numer: u64, denom: u64) -> Rational {
    Rational::new(BigInt::from(numer), BigInt::from(denom))
}

fn whole(units: u64) -> Rational {
    Rational::from_integer(BigInt::from(units))
}

fn number(value: &Rational) -> u64 {
    u64::try_from(value.to_integer()).unwrap_or(if value > &whole(0) { u64::MAX } else { 0 })
}

impl Oracle {
    /// An account that was never charged.
    #[must_use]
    pub fn new(limit: Limit) -> Oracle {
        Oracle { limit, latest: 0, debt: whole(0), end: 0, current: 0, previous: 0, entries: Vec::new() }
    }

    /// Where a clock that shows `now` stands.
    #[must_use]
    pub fn held(&self, now: Nanos) -> Nanos {
        now.min(HORIZON).max(self.latest)
    }

    /// Tokens a nanosecond.
    fn rate(&self) -> Rational {
        ratio(self.limit.limit(), self.limit.period())
    }

    /// Tokens that have yet to be refilled at `now`.
    #[must_use]
    pub fn level(&self, now: Nanos) -> Rational {
        let left = &self.debt - self.rate() * whole(now - self.latest);
        left.max(whole(0))
    }

    /// The decision, charging nothing.
    pub fn peek(&self, cost: u64, now: Nanos) -> Decision {
        self.clone().check(cost, now)
    }

    /// The decision; charges `cost` if it fits.
    pub fn check(&mut self, cost: u64, now: Nanos) -> Decision {
        let now = self.held(now);
        let decision = match self.limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.bucket(cost, now),
            Algorithm::FixedWindow => self.fixed_window(cost, now),
            Algorithm::SlidingWindow => self.sliding_window(cost, now),
            Algorithm::SlidingLog => self.log(cost, now),
            Algorithm::Concurrency => self.concurrency(cost, now),
        };
        if decision.allowed && cost > 0 {
            self.latest = now;
        }
        decision
    }

    fn answer(&self, allowed: bool, cost: u64, remaining: u64, retry: Nanos, reset: Nanos) -> Decision {
        let retry_after = match (allowed, cost > self.limit.burst()) {
            (true, _) => 0,
            (false, true) => NEVER,
            (false, false) => retry,
        };
        Decision { allowed, limit: self.limit.limit(), remaining, retry_after, reset_after: reset, delay: 0 }
    }

    fn bucket(&mut self, cost: u64, now: Nanos) -> Decision {
        let (level, burst) = (self.level(now), whole(self.limit.burst()));
        let after = &level + whole(cost);
        let allowed = cost == 0 || after <= burst;
        let left = if allowed { after.clone() } else { level.clone() };
        let span = |tokens: Rational| number(&(tokens.max(whole(0)) / self.rate()).ceil()).min(NEVER - 1);
        let mut decision = self.answer(
            allowed,
            cost,
            number(&(&burst - &left).max(whole(0)).floor()),
            span(&after - &burst),
            span(left.clone()),
        );
        if allowed && self.limit.algorithm() == Algorithm::LeakyBucket {
            decision.delay = span(level);
        }
        if allowed && cost > 0 {
            self.debt = left;
        }
        decision
    }

    /// The end of the window that contains `now`.
    fn window_end(&self, now: Nanos) -> Nanos {
        match self.limit.anchor() {
            Anchor::Clock => (now / self.limit.period() + 1) * self.limit.period(),
            Anchor::FirstRequest => now + self.limit.period(),
            Anchor::CalendarMonth => unreachable!("months have an oracle of their own"),
        }
    }

    fn fixed_window(&mut self, cost: u64, now: Nanos) -> Decision {
        let (end, count) = if now < self.end { (self.end, self.current) } else { (self.window_end(now), 0) };
        let limit = self.limit.limit();
        let allowed = cost == 0 || u128::from(count) + u128::from(cost) <= u128::from(limit);
        let after = if allowed { count + cost } else { count };
        if allowed && cost > 0 {
            (self.end, self.current) = (end, after);
        }
        let reset = if after == 0 { 0 } else { end - now };
        self.answer(allowed, cost, limit.saturating_sub(after), end - now, reset)
    }

    /// The open window's end and both counts, as they stand at `now`.
    fn windows(&self, now: Nanos) -> (Nanos, u64, u64) {
        let (end, period) = (self.window_end(now), self.limit.period());
        if self.end >= end {
            (self.end, self.current, self.previous)
        } else if self.end != 0 && self.end + period == end {
            (end, 0, self.current)
        } else {
            (end, 0, 0)
        }
    }

    fn sliding_window(&mut self, cost: u64, now: Nanos) -> Decision {
        let (limit, period) = (self.limit.limit(), self.limit.period());
        let (end, current, previous) = self.windows(now);
        // previous × (1 − elapsed/period) + current + cost − 1 < limit, both sides times the period.
        let fits = |current: u64, previous: u64, left: Nanos| {
            let estimate = i128::from(previous) * i128::from(left) + i128::from(current) * i128::from(period);
            let cost = i128::from(cost.min(limit + 1));
            cost == 0 || estimate + (cost - 1) * i128::from(period) < i128::from(limit) * i128::from(period)
        };
        let allowed = fits(current, previous, end - now);
        let after = if allowed { current + cost } else { current };
        let retry = if allowed || cost > limit {
            0
        } else {
            // The window slides: first over the previous count, then over the current one.
            let second = end + period;
            let first = (now..end).first_that(|t| fits(current, previous, end - t));
            let later = (end..second).first_that(|t| fits(0, current, second - t));
            first.or(later).unwrap_or(second) - now
        };
        let reset = match (after, previous) {
            (0, 0) => 0,
            (0, _) => end - now,
            _ => end + period - now,
        };
        if allowed && cost > 0 {
            (self.end, self.current, self.previous) = (end, after, previous);
        }
        let weight = whole(previous) * ratio(end - now, period);
        let taken = whole(after) + weight.floor(); // the largest cost that fits
        self.answer(allowed, cost, number(&(whole(limit) - taken).max(whole(0))), retry, reset)
    }

    fn log(&mut self, cost: u64, now: Nanos) -> Decision {
        let (limit, period) = (self.limit.limit(), self.limit.period());
        let mut inside: Vec<_> = self.entries.iter().copied().filter(|(s, _)| now - s < period).collect();
        let spent: u64 = inside.iter().map(|(_, units)| units).sum();
        let allowed = u128::from(spent) + u128::from(cost) <= u128::from(limit) || cost == 0;
        let mut retry = 0;
        if !allowed && cost <= limit {
            let mut left = spent;
            for (s, units) in &inside {
                left -= units;
                if left + cost <= limit {
                    retry = s + period - now;
                    break;
                }
            }
        }
        if allowed && cost > 0 {
            inside.push((now, cost));
            self.entries.clone_from(&inside);
        }
        let total = if allowed { spent + cost } else { spent };
        let reset = inside.last().map_or(0, |(s, _)| s + period - now);
        self.answer(allowed, cost, limit.saturating_sub(total), retry, reset)
    }

    fn concurrency(&mut self, cost: u64, now: Nanos) -> Decision {
        let (limit, period) = (self.limit.limit(), self.limit.period());
        let mut live: Vec<_> = self.entries.iter().copied().filter(|(expiry, _)| *expiry > now).collect();
        live.sort_unstable();
        let held: u64 = live.iter().map(|(_, units)| units).sum();
        let allowed = cost == 0 || u128::from(held) + u128::from(cost) <= u128::from(limit);
        let mut retry = 0;
        if !allowed && cost <= limit {
            let mut left = held;
            for (expiry, units) in &live {
                left -= units;
                if left + cost <= limit {
                    retry = expiry - now;
                    break;
                }
            }
        }
        if allowed && cost > 0 {
            live.push((now + period, cost));
            self.entries.clone_from(&live);
        }
        let total = if allowed { held + cost } else { held };
        let reset = live.iter().map(|(expiry, _)| expiry - now).max().unwrap_or(0);
        self.answer(allowed, cost, limit.saturating_sub(total), retry, reset)
    }

    /// Ends a hold of `units` that was to expire at `expiry`.
    pub fn release(&mut self, expiry: Nanos, units: u64) {
        if let Some(place) = self.entries.iter().position(|entry| *entry == (expiry, units)) {
            self.entries.remove(place);
        }
    }

    /// Gives back `cost` units that were charged at `charged_at`, as far as time
    /// has not: of a bucket, of the window of then, of a log those that leave
    /// first. The present is the latest instant that is known.
    pub fn refund(&mut self, cost: u64, charged_at: Nanos) {
        let charged_at = charged_at.min(HORIZON);
        let now = charged_at.max(self.latest);
        let period = self.limit.period();
        match self.limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                // What the bucket lacks at `now`, told as of the latest charge.
                if self.level(now) > whole(0) {
                    let back = (whole(cost) - self.rate() * whole(now - charged_at)).max(whole(0));
                    let left = (self.level(now) - back).max(whole(0));
                    self.debt = left + self.rate() * whole(now - self.latest);
                }
            }
            Algorithm::FixedWindow => {
                let is_its_own = match self.limit.anchor() {
                    Anchor::FirstRequest => self.end.saturating_sub(charged_at) <= period,
                    _ => self.window_end(charged_at) == self.end,
                };
                if now < self.end && is_its_own {
                    self.current = self.current.saturating_sub(cost);
                }
            }
            Algorithm::SlidingWindow => {
                let (end, _, _) = self.windows(now);
                let charged = self.window_end(charged_at);
                if charged == self.end && (charged == end || charged + period == end) {
                    self.current = self.current.saturating_sub(cost);
                } else if charged + period == end && self.end == end {
                    self.previous = self.previous.saturating_sub(cost);
                }
            }
            Algorithm::SlidingLog => {
                if now - charged_at >= period {
                    return;
                }
                self.entries.retain(|(s, _)| now - s < period);
                let mut left = cost;
                for (_, units) in &mut self.entries {
                    let back = left.min(*units);
                    *units -= back;
                    left -= back;
                }
                self.entries.retain(|(_, units)| *units > 0);
            }
            Algorithm::Concurrency => {}
        }
    }

    /// Another limit from `now` on: what was spent stays spent, token for
    /// token. A bucket's debt is rounded up to a whole nanosecond's share of
    /// the new rate's unit; counts of windows of another length move
    /// into the open one, where more than the limit is just full.
    pub fn set_limit(&mut self, limit: Limit, now: Nanos) {
        let now = self.held(now);
        let old = self.limit;
        match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let unit = Rational::from_integer(ratio(limit.limit(), limit.period()).denom().clone());
                self.debt = (self.level(now) * &unit).ceil() / unit;
                self.latest = now;
                self.limit = limit;
            }
            Algorithm::FixedWindow if old.period() != limit.period() => {
                let count = if now < self.end { self.current } else { 0 };
                self.limit = limit;
                (self.end, self.current) = (self.window_end(now), count.min(limit.limit()));
            }
            Algorithm::SlidingWindow if old.period() != limit.period() => {
                let (_, current, previous) = self.windows(now);
                self.limit = limit;
                let spent = (current + previous).min(limit.limit());
                (self.end, self.current, self.previous) = (self.window_end(now), spent, 0);
            }
            _ => self.limit = limit,
        }
    }
}

/// The first of a range for which a predicate holds that holds from there on.
trait First {
    fn first_that(self, holds: impl Fn(Nanos) -> bool) -> Option<Nanos>;
}

impl First for std::ops::Range<Nanos> {
    fn first_that(self, holds: impl Fn(Nanos) -> bool) -> Option<Nanos> {
        let (mut low, mut high) = (self.start, self.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle) { high = middle } else { low = middle + 1 }
        }
        Some(low).filter(|&found| found < self.end)
    }
}
