//! Sliding window counter: two fixed windows, the earlier one weighted by how
//! much of it the sliding window still covers.
//!
//! `estimate = previous × (1 − elapsed/period) + current`, and a request is
//! admitted when `estimate + cost − 1 < limit`. Both sides are multiplied by
//! the period, so the comparison is exact.

use super::fixed_window::window_end;
use crate::decision::Decision;
use crate::limit::Limit;
use crate::time::{NEVER, Nanos, held};

/// The counts of the window that ends at `end` and of the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// The end of the current window.
    pub end: Nanos,
    /// Units admitted in the current window.
    pub current: u32,
    /// Units admitted in the window before.
    pub previous: u32,
}

impl Windows {
    /// These counts as they stand at `now`. A clock that stepped back over a
    /// boundary stands at the boundary.
    #[inline]
    #[must_use]
    pub fn at(self, limit: &Limit, now: Nanos) -> Windows {
        if now < self.end {
            return self;
        }
        let end = window_end(now, limit.period());
        let next = self.end != 0 && end - self.end == limit.period();
        Windows { end, current: 0, previous: if next { self.current } else { 0 } }
    }
}

/// Decides one request.
#[inline]
pub fn decide(windows: Windows, limit: &Limit, now: Nanos, cost: u64) -> (Windows, Decision) {
    let open = windows.at(limit, held(now));
    let period = limit.period();
    let start = open.end.saturating_sub(period); // 0 when the period was raised meanwhile
    let now = held(now).clamp(start, open.end); // stepped back: frozen at the start
    let (current, previous) = (u64::from(open.current), u64::from(open.previous));
    // Of the previous window, what still counts, in units times period.
    let weight = u128::from(previous) * u128::from(open.end - now);
    let spent = u128::from(current) * u128::from(period) + weight;
    let full = u128::from(limit.limit()) * u128::from(period);
    let asked = u128::from(cost.min(limit.limit() + 1).saturating_sub(1)) * u128::from(period);
    let allowed = cost == 0 || spent + asked < full;
    let count = if allowed { current + cost } else { current }; // cost is at most limit when allowed
    let weight_units = (weight / u128::from(period)) as u64; // at most previous
    let decision = Decision {
        allowed,
        limit: limit.limit(),
        remaining: limit.limit().saturating_sub(count).saturating_sub(weight_units),
        retry_after: match (allowed, cost > limit.limit()) {
            (true, _) => 0,
            (false, true) => NEVER,
            (false, false) => wait(&open, limit, now, cost),
        },
        reset_after: match (count, previous) {
            (0, 0) => 0,
            (0, _) => open.end - now,
            _ => open.end - now + period, // the current window must leave too
        },
        delay: 0,
    };
    if allowed && cost > 0 {
        let current = u32::try_from(count).unwrap_or(u32::MAX); // full: denies
        (Windows { current, ..open }, decision)
    } else {
        (windows, decision)
    }
}

/// The first instant at which `cost` fits, when nobody else comes.
fn wait(open: &Windows, limit: &Limit, now: Nanos, cost: u64) -> Nanos {
    let period = limit.period();
    let room = limit.limit() - cost + 1; // cost is at most limit
    // In this window, while the previous one leaves ...
    let here = room.saturating_sub(u64::from(open.current));
    if here > 0 {
        let end = open.end - cover(here, u64::from(open.previous), period);
        if end < open.end {
            return end.saturating_sub(now);
        }
    }
    // ... or in the next, where the current one is the previous.
    open.end + period - cover(room, u64::from(open.current), period) - now
}

/// The largest part of a window of `count` units that may be covered so that
/// it weighs less than `room` units: `count × cover < room × period`.
fn cover(room: u64, count: u64, period: Nanos) -> Nanos {
    if count < room {
        return period;
    }
    let share = u128::from(room) * u128::from(period);
    (share.div_ceil(u128::from(count)) - 1) as u64 // room <= count: at most period
}

/// Gives back `cost` units that were taken at `charged_at`, to the window of
/// then, if it still counts at `now`.
#[must_use]
pub fn refund(windows: Windows, limit: &Limit, now: Nanos, cost: u64, charged_at: Nanos) -> Windows {
    let open = windows.at(limit, held(now));
    let charged = window_end(held(charged_at), limit.period());
    let units = u32::try_from(cost).unwrap_or(u32::MAX); // a count is no larger
    let previous = open.end - limit.period().min(open.end);
    if charged == open.end && open.end == windows.end {
        Windows { current: windows.current.saturating_sub(units), ..windows }
    } else if charged == previous && open.end == windows.end {
        Windows { previous: windows.previous.saturating_sub(units), ..windows }
    } else if charged == previous && windows.end == previous {
        // Its window is the previous one by now, and no request has said so yet.
        Windows { current: windows.current.saturating_sub(units), ..windows }
    } else {
        windows
    }
}
