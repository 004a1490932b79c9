//! Fixed window: a counter that starts again with each window.
//!
//! Cheap and easy to explain; around a window's boundary it admits up to
//! twice the limit.

use crate::decision::Decision;
use crate::limit::{Anchor, Limit};
use crate::time::{NEVER, Nanos, held};

/// The count of the window that ends at `end`. The default has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The instant at which the window ends and the count is void.
    pub end: Nanos,
    /// Units admitted in it.
    pub count: u32,
}

impl Window {
    /// This window if it is open at `now` (a clock that stepped back stays in
    /// the later window), else a new one.
    #[inline]
    pub(crate) fn at(self, limit: &Limit, now: Nanos) -> Window {
        if now < self.end {
            return self;
        }
        let end = match limit.anchor() {
            Anchor::Clock => window_end(now, limit.period()),
            Anchor::FirstRequest => now + limit.period(), // now is held
        };
        Window { end, count: 0 }
    }
}

/// The end of the window, aligned to the clock's zero, that contains `now`.
#[inline]
pub(crate) fn window_end(now: Nanos, period: Nanos) -> Nanos {
    now - now % period + period // now is held: the sum fits
}

/// Decides one request: allowed when `count + cost <= limit`.
#[inline]
pub fn decide(window: Window, limit: &Limit, now: Nanos, cost: u64) -> (Window, Decision) {
    let now = held(now);
    let open = window.at(limit, now);
    let until_end = open.end - now.min(open.end);
    let total = u64::from(open.count).saturating_add(cost);
    let allowed = total <= limit.limit() || cost == 0;
    let count = if allowed { total } else { u64::from(open.count) };
    let decision = Decision {
        allowed,
        limit: limit.limit(),
        remaining: limit.limit().saturating_sub(count), // 0 above a lowered limit
        retry_after: match (allowed, cost > limit.limit()) {
            (true, _) => 0,
            (false, true) => NEVER,
            (false, false) => until_end,
        },
        reset_after: if count == 0 { 0 } else { until_end },
        delay: 0,
    };
    if allowed && cost > 0 {
        (Window { end: open.end, count: count as u32 }, decision) // at most limit, so below 2^32
    } else {
        (window, decision)
    }
}

/// Gives back `cost` units of the window that is open at `now`.
#[must_use]
pub fn refund(window: Window, now: Nanos, cost: u64) -> Window {
    if held(now) >= window.end {
        return window;
    }
    let cost = u32::try_from(cost).unwrap_or(u32::MAX);
    Window { end: window.end, count: window.count.saturating_sub(cost) }
}
