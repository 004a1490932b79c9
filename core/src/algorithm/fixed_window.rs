//! Fixed window: a counter that starts again with each window.
//!
//! Cheap and easy to explain; around a window's boundary it admits up to
//! twice the limit.

use crate::decision::Decision;
use crate::limit::{Anchor, Limit};
use crate::time::{NEVER, Nanos, SECOND, held};

const DAY: Nanos = 86_400 * SECOND;

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
    #[must_use]
    pub fn at(self, limit: &Limit, now: Nanos) -> Window {
        if now < self.end {
            return self;
        }
        let end = match limit.anchor() {
            Anchor::Clock => window_end(now, limit.period()),
            Anchor::FirstRequest => now + limit.period(), // now is held
            Anchor::CalendarMonth => {
                let end = month_end(now, limit.unix_at_zero());
                // Processes may differ by a little in when their clocks' zero
                // was: a month that ended for one is not opened again by another.
                let is_same = self.end > 0 && end - self.end.min(end) < DAY;
                if is_same { month_end(end, limit.unix_at_zero()) } else { end }
            }
        };
        Window { end, count: 0 }
    }
}

/// The end of the window, aligned to the clock's zero, that contains `now`.
#[inline]
pub(crate) fn window_end(now: Nanos, period: Nanos) -> Nanos {
    now - now % period + period // now is held: the sum fits
}

/// The end of the calendar month, UTC, that contains `now`, on a clock whose
/// zero is the UNIX time `unix_at_zero`.
///
/// The calendar is reckoned in years that begin in March, so that the leap day
/// is the last; source: Hinnant, "chrono-compatible low-level date
/// algorithms", `civil_from_days` and `days_from_civil`.
#[cold]
fn month_end(now: Nanos, unix_at_zero: Nanos) -> Nanos {
    const ERA: u64 = 146_097; // days of 400 years
    let unix = now.saturating_add(unix_at_zero); // at most 2^64 - 2^62 + 2^62: held, and held by the limit
    let day = unix / DAY + 719_468; // since 0000-03-01
    let (era, day_of_era) = (day / ERA, day % ERA);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153; // from March
    let next = match month {
        11 => 365 + u64::from(is_leap(era * 400 + year + 1)), // the end of February
        month => (153 * (month + 1) + 2) / 5,
    };
    let days_left = next - day_of_year; // at least 1
    let end = (unix / DAY).saturating_add(days_left).saturating_mul(DAY).saturating_sub(unix_at_zero);
    end.max(now + 1) // now is held
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
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

/// Gives back `cost` units that were taken at `charged_at`, if the window of
/// then is the one that is open at `now`.
#[must_use]
pub fn refund(window: Window, limit: &Limit, now: Nanos, cost: u64, charged_at: Nanos) -> Window {
    let charged_at = held(charged_at);
    let is_its_own = match limit.anchor() {
        Anchor::FirstRequest => window.end.saturating_sub(charged_at) <= limit.period(),
        _ => Window::default().at(limit, charged_at).end == window.end,
    };
    if held(now) >= window.end || !is_its_own {
        return window;
    }
    let cost = u32::try_from(cost).unwrap_or(u32::MAX);
    Window { end: window.end, count: window.count.saturating_sub(cost) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use proptest::prelude::*;

    /// Months one by one, as a calendar has them.
    fn naive_month_end(unix: u64) -> u64 {
        let (mut year, mut end) = (1970, 0);
        loop {
            for days in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
                end += days * DAY;
                if end > unix {
                    return end;
                }
            }
            year += 1;
        }
    }

    #[test]
    fn months_end_when_calendars_say() {
        for (now, end) in [
            (0, 2_678_400),                 // January 1970
            (951_782_400, 951_868_800),     // 29 February 2000
            (1_709_251_199, 1_709_251_200), // the last second of February 2024
            (1_796_083_200, 1_798_761_600), // December 2026
            (4_107_456_000, 4_107_542_400), // 28 February 2100, which has no 29th
        ] {
            assert_eq!(month_end(now * SECOND, 0), end * SECOND, "{now}");
        }
    }

    proptest! {
        #[test]
        fn months_end_as_counted_one_by_one(unix in 0u64..=1 << 63, zero in 0u64..=1 << 62) {
            prop_assert_eq!(month_end(unix, 0), naive_month_end(unix));
            let zero = zero.min(unix);
            prop_assert_eq!(month_end(unix - zero, zero), naive_month_end(unix) - zero);
        }

        #[test]
        fn no_instant_panics_and_no_month_is_too_long(now in any::<u64>(), zero in any::<u64>(), end in any::<u64>()) {
            let limit: Limit = "fixed_window 5/month".parse().unwrap();
            let limit = limit.with_unix_at_zero(zero);
            let now = held(now);
            let open = Window { end, count: 0 }.at(&limit, now);
            prop_assert!(open.end > now);
            prop_assert!(end > now || open.end - now <= 32 * DAY);
        }

        /// Two processes, one of which is a little behind, near a month's end.
        #[test]
        fn clocks_that_differ_a_little_do_not_open_a_month_twice(
            ahead in 1u64..SECOND, at in 0u64..2 * SECOND,
        ) {
            let limit: Limit = "fixed_window 5/month".parse().unwrap();
            let ahead = limit.with_unix_at_zero(100 * DAY + ahead);
            let behind = limit.with_unix_at_zero(100 * DAY);
            let end = month_end(50 * DAY, 100 * DAY);
            let mut window = Window::default();
            let mut admitted = 0;
            for (limit, now) in [(&ahead, end - 2 * SECOND), (&ahead, end - SECOND + at), (&behind, end - SECOND + at), (&ahead, end + 2 * SECOND), (&behind, end + 3 * SECOND)] {
                for _ in 0..9 {
                    let (next, decision) = decide(window, limit, now, 1);
                    admitted += u64::from(decision.allowed);
                    window = next;
                }
            }
            prop_assert_eq!(admitted, 10, "one quota of each month");
        }
    }
}
