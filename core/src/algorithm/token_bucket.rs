//! Token bucket, as the generic cell rate algorithm: one instant is the state.
//!
//! The theoretical arrival time (`tat`) is the instant at which the bucket
//! will be full. Admitting `cost` tokens moves it later by `cost` times the
//! time of one token; the bucket holds the burst less what that time would
//! refill. (ATM Forum, Traffic Management 4.0, annex A: virtual scheduling.)
//!
//! `tat` is kept as whole nanoseconds plus a part counted in 1/`tick` of a
//! nanosecond, where `tick` is the numerator of the reduced rate, so it is
//! exact at every rate. This file is the only one that computes a new `tat`.

use crate::decision::Decision;
use crate::limit::Limit;
use crate::time::{NEVER, Nanos, held};

/// The instant at which the bucket is full: `at + part / tick` nanoseconds.
///
/// The default, zero, is a bucket that has always been full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tat {
    /// Whole nanoseconds.
    pub at: Nanos,
    /// Parts of a nanosecond, in units of 1/`tick`; below `tick`.
    pub part: u32,
}

/// Decides one request.
///
/// Allowed when `debt + cost <= burst`, where the debt is what has yet to be
/// refilled at `now`.
///
/// ```
/// use tollgate_core::algorithm::token_bucket::{Tat, decide};
/// use tollgate_core::Limit;
///
/// let limit: Limit = "2/s burst 5".parse()?;
/// let (tat, first) = decide(Tat::default(), &limit, 0, 5);
/// assert!(first.allowed);
/// let (_, second) = decide(tat, &limit, 0, 1);
/// assert_eq!((second.allowed, second.retry_after), (false, 500_000_000));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[inline]
pub fn decide(tat: Tat, limit: &Limit, now: Nanos, cost: u64) -> (Tat, Decision) {
    let now = held(now);
    if limit.tick == 1 {
        let (at, decision) = whole(tat.at, limit, now, cost);
        return (Tat { at, part: 0 }, decision);
    }
    // A clock that stepped back sees more debt, never less.
    let (ahead, part) = if tat.at < now { (0, 0) } else { (tat.at - now, tat.part) };
    if ahead < limit.narrow {
        narrow(tat, ahead, part, limit, now, cost)
    } else {
        wide(tat, ahead, part, limit, now, cost)
    }
}

/// A token that is a whole number of nanoseconds: one unit is one nanosecond,
/// and `tat` has no part. The most frequent case by far, so it is spelt out.
#[inline]
fn whole(tat: Nanos, limit: &Limit, now: Nanos, cost: u64) -> (Nanos, Decision) {
    match admit(tat, limit, now, cost) {
        Some(admission) if cost > 0 => (admission.tat(now), admission.decision(limit)),
        Some(admission) => (tat, admission.decision(limit)),
        None => (tat, deny(tat, limit, now, cost)),
    }
}

/// A request that fits, under a limit whose token is a whole number of
/// nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Admission {
    /// Nanoseconds' worth of tokens that are left.
    left: Nanos,
    /// Nanoseconds until the bucket is full.
    charged: Nanos,
}

impl Admission {
    /// The `tat` that charges it.
    #[inline(always)]
    pub(crate) fn tat(self, now: Nanos) -> Nanos {
        now + self.charged // within the horizon's span
    }

    #[inline(always)]
    pub(crate) fn decision(self, limit: &Limit) -> Decision {
        Decision {
            allowed: true,
            limit: limit.limit(),
            remaining: limit.by_token.divide(self.left),
            retry_after: 0,
            reset_after: self.charged,
            delay: 0,
        }
    }
}

/// Does `cost` fit?
#[inline(always)]
pub(crate) fn admit(tat: Nanos, limit: &Limit, now: Nanos, cost: u64) -> Option<Admission> {
    let debt = tat.saturating_sub(now);
    if cost > limit.burst() {
        return None;
    }
    let take = limit.token * cost; // at most capacity, as cost is at most burst
    let left = (limit.capacity - take).checked_sub(debt)?;
    Some(Admission { left, charged: debt + take }) // at most capacity
}

/// The answer to a request that does not fit. A cost of 0 always does, even
/// in debt above a lowered burst.
#[cold]
#[inline(never)]
pub(crate) fn deny(tat: Nanos, limit: &Limit, now: Nanos, cost: u64) -> Decision {
    let debt = tat.saturating_sub(now);
    let over = || debt.saturating_add(limit.token * cost).saturating_sub(limit.capacity).min(NEVER - 1);
    Decision {
        allowed: cost == 0,
        limit: limit.limit(),
        remaining: limit.by_token.divide(limit.capacity.saturating_sub(debt)), // 0 in debt above a lowered burst
        retry_after: match cost {
            0 => 0,
            cost if cost > limit.burst() => NEVER,
            _ => over(),
        },
        reset_after: debt,
        delay: 0,
    }
}

/// A rate of parts of a nanosecond, where every quantity is below 2^63 units.
fn narrow(tat: Tat, ahead: Nanos, part: u32, limit: &Limit, now: Nanos, cost: u64) -> (Tat, Decision) {
    let debt = ahead * limit.tick + u64::from(part); // below 2^62, by `ahead < narrow`
    let charged = debt + limit.token * cost.min(limit.burst()); // capacity is at most 2^62
    let allowed = cost == 0 || (charged <= limit.capacity && cost <= limit.burst());
    let left = if allowed { charged } else { debt };
    let span = |units: u64| limit.by_tick.divide(units + (limit.tick - 1));
    let decision = Decision {
        allowed,
        limit: limit.limit(),
        remaining: limit.by_token.divide(limit.capacity.saturating_sub(left)), // as above
        retry_after: match (allowed, cost > limit.burst()) {
            (true, _) => 0,
            (false, true) => NEVER,
            (false, false) => span(charged.saturating_sub(limit.capacity)),
        },
        reset_after: span(left),
        delay: 0,
    };
    if !allowed || cost == 0 {
        return (tat, decision);
    }
    let whole = limit.by_tick.divide(charged);
    let part = (charged - whole * limit.tick) as u32; // below tick, so below 2^32
    (Tat { at: now + whole, part }, decision)
}

/// Debts and capacities that need more than 62 bits: the same in 128.
#[cold]
fn wide(tat: Tat, ahead: Nanos, part: u32, limit: &Limit, now: Nanos, cost: u64) -> (Tat, Decision) {
    let tick = u128::from(limit.tick);
    let token = u128::from(limit.token);
    let capacity = limit.wide_capacity();
    let debt = u128::from(ahead) * tick + u128::from(part); // below 2^64 * 2^32
    let charged = debt + token * u128::from(cost.min(limit.burst()));
    let allowed = cost == 0 || (charged <= capacity && cost <= limit.burst());
    let left = if allowed { charged } else { debt };
    let span = |units: u128| u64::try_from(units.div_ceil(tick)).unwrap_or(NEVER - 1);
    let decision = Decision {
        allowed,
        limit: limit.limit(),
        remaining: (capacity.saturating_sub(left) / token) as u64, // at most the burst
        retry_after: match (allowed, cost > limit.burst()) {
            (true, _) => 0,
            (false, true) => NEVER,
            (false, false) => span(charged.saturating_sub(capacity)),
        },
        reset_after: span(left),
        delay: 0,
    };
    if allowed && cost > 0 { (instant(now, charged, limit), decision) } else { (tat, decision) }
}

/// The instant that lies `debt` units after `now`.
fn instant(now: Nanos, debt: u128, limit: &Limit) -> Tat {
    let tick = u128::from(limit.tick);
    let whole = u64::try_from(debt / tick).unwrap_or(u64::MAX);
    Tat {
        at: now.saturating_add(whole), // clamped: far ahead, so it denies
        part: (debt % tick) as u32,    // below tick, so below 2^32
    }
}

/// Gives back `cost` tokens that were taken at `charged_at`, less what time
/// has given back of them since; never above a full bucket.
pub fn refund(tat: Tat, limit: &Limit, now: Nanos, cost: u64, charged_at: Nanos) -> Tat {
    let now = held(now);
    if tat.at < now {
        return tat;
    }
    let tick = u128::from(limit.tick);
    let returned = tick * u128::from(now - charged_at.min(now));
    let back = (u128::from(limit.token) * u128::from(cost)).saturating_sub(returned);
    let debt = u128::from(tat.at - now) * tick + u128::from(tat.part);
    instant(now, debt.saturating_sub(back), limit)
}

/// Expresses a debt under another limit, token for token: what was spent
/// stays spent when a limit changes. Rounds the debt up by less than 1/`tick`
/// nanosecond of the new rate.
pub fn carry(tat: Tat, from: Rate, to: &Limit, now: Nanos) -> Tat {
    let now = held(now);
    if tat.at < now {
        return Tat::default();
    }
    let debt = u128::from(tat.at - now) * u128::from(from.tick) + u128::from(tat.part);
    let (old, new) = (u128::from(from.token.max(1)), u128::from(to.token));
    let (tokens, rest) = (debt / old, debt % old);
    let debt = tokens.saturating_mul(new).saturating_add((rest * new).div_ceil(old)); // tokens are below 2^64
    instant(now, debt, to)
}

/// What is owed at `now`, exactly: so many parts of a token, and how many
/// parts a token has. A token bucket holds the burst less that; of a leaky
/// bucket it is the level.
///
/// For people, who want to see the fraction of a token; a decision never needs it.
#[must_use]
pub fn owed(tat: Tat, limit: &Limit, now: Nanos) -> (u128, u64) {
    let now = held(now);
    let debt = match tat.at < now {
        true => 0,
        false => u128::from(tat.at - now) * u128::from(limit.tick) + u128::from(tat.part),
    };
    (debt, limit.token)
}

/// A reduced rate: `tick / token` tokens a nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units that a nanosecond brings.
    pub tick: u64,
    /// Units that a token takes.
    pub token: u64,
}

impl Rate {
    /// The rate of a limit.
    #[must_use]
    pub fn of(limit: &Limit) -> Rate {
        Rate { tick: limit.tick, token: limit.token }
    }
}
