//! The sliding window in the table: two slots a key, one for windows of even
//! and one for windows of odd number.
//!
//! A decision reads both and changes one. So that the earlier count cannot
//! grow under a decision that has read it (a thread whose clock is a little
//! behind may still be adding to it), the first request of a window *seals*
//! the slot of the window before: a sealed slot takes no more, and a thread
//! that meets the seal goes on in the next window.
//!
//! ```text
//!  payload = count, seal     idle_at = end of the window + period
//! ```

use super::Table;
use super::memory::Class;
use super::walk::{self, Cell, Walk};
use crate::algorithm::fixed_window::window_end;
use crate::algorithm::sliding_window::{self, Windows};
use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::Limit;
use crate::slot::{Slot, Word};
use crate::time::{HORIZON, Nanos, held};

/// Tells the slots of odd windows from those of even ones.
const ODD: u64 = 0xD6E8_FEB8_6659_FD93;

/// The count of one window as its slot keeps it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Half {
    end: Nanos,
    count: u32,
    sealed: bool,
}

impl Half {
    fn cell(self, period: Nanos) -> Cell {
        Cell {
            at: self.end.saturating_add(period), // the end of a held instant's window: fits
            payload: u64::from(self.count) << 1 | u64::from(self.sealed),
        }
    }
}

/// A half and where it was found.
#[derive(Clone, Copy)]
struct Place<'t, 'm> {
    walk: Walk<'t, 'm>,
    found: Option<(&'m Slot, Word)>,
    half: Half,
    /// Units of a slot that was charged under another period.
    carried: u32,
}

/// The window that is open at an instant, and the one before it.
struct Open<'t, 'm> {
    now: Nanos,
    end: Nanos,
    here: Place<'t, 'm>,
    before: Place<'t, 'm>,
    /// Was it charged already?
    is_open: bool,
    /// Is it sealed, and the clock at the horizon?
    is_over: bool,
}

impl Open<'_, '_> {
    fn windows(&self, limit: &Limit) -> Windows {
        let period = limit.period();
        // More than the limit, in windows of another length, is just full.
        let most = u32::try_from(limit.limit()).unwrap_or(u32::MAX);
        let carried = self.here.carried.saturating_add(self.before.carried).min(most);
        let (here, before) = (self.here.half, self.before.half);
        Windows {
            end: self.end,
            current: match (self.is_over, self.is_open) {
                (true, _) => u32::MAX,
                (false, true) => here.count.saturating_add(carried),
                (false, false) => carried,
            },
            previous: if before.end == self.end - period { before.count } else { 0 },
        }
    }
}

impl<'m> Table<'m> {
    pub(super) fn check_windows(
        &self,
        key: Fingerprint,
        limit: &Limit,
        cost: u64,
        now: Nanos,
        take: bool,
    ) -> Decision {
        let period = limit.period();
        loop {
            let open = self.open_windows(key, limit, now);
            let windows = open.windows(limit);
            let (next, decision) = sliding_window::decide(windows, limit, open.now, cost);
            // What was carried over is stored even by a denial: it leaves with
            // the new windows, as the answer says.
            let is_carried = open.here.carried > 0 || open.before.carried > 0;
            if !take || open.is_over || (next == windows && !is_carried) {
                return decision;
            }
            let half = Half { end: open.end, count: next.current, sealed: false };
            if open.before.carried > 0 {
                // First into the open window, or they could be lost between the two.
                if open.here.put(half, period, now) {
                    let _ = open.before.seal(open.end - period, period, now);
                    return decision;
                }
            } else if (open.is_open || open.before.seal(open.end - period, period, now))
                && open.here.put(half, period, now)
            {
                return decision;
            }
        }
    }

    /// Gives back units to the window that was charged, sealed or not: who has
    /// read a larger count there admits less, never more.
    pub(super) fn refund_windows(
        &self,
        key: Fingerprint,
        limit: &Limit,
        cost: u64,
        now: Nanos,
        charged_at: Nanos,
    ) {
        let period = limit.period();
        let charged = window_end(held(charged_at), period);
        let units = u32::try_from(cost).unwrap_or(u32::MAX); // a count is no larger
        loop {
            let open = self.open_windows(key, limit, now);
            let place = if charged == open.end { &open.here } else { &open.before };
            let half = place.half;
            if open.is_over || half.end != charged || half.count == 0 || units == 0 {
                return;
            }
            let back = Half { count: half.count.saturating_sub(units), ..half };
            if place.put(back, period, now) {
                return;
            }
        }
    }

    /// Finds both halves, and the window that is open: a later one than the
    /// clock says where another thread is ahead.
    fn open_windows(&self, key: Fingerprint, limit: &Limit, mut now: Nanos) -> Open<'_, 'm> {
        let period = limit.period();
        loop {
            let end = window_end(now, period);
            let here = self.place(key, limit, end, now);
            let before = self.place(key, limit, end - period, now);
            let latest = here.half.end.max(before.half.end);
            if latest > end && latest - period <= HORIZON {
                now = latest - period;
                continue;
            }
            let is_open = here.half.end == end;
            let is_over = is_open && here.half.sealed && end > HORIZON;
            if is_open && here.half.sealed && !is_over {
                now = end;
                continue;
            }
            return Open { now, end, here, before, is_open, is_over };
        }
    }

    /// The half of the window that ends at `end`, or of an older one in the
    /// same slot.
    fn place(&self, key: Fingerprint, limit: &Limit, end: Nanos, now: Nanos) -> Place<'_, 'm> {
        let period = limit.period();
        let odd = (end / period) & 1 == 1;
        let key = if odd { Fingerprint(key.0 ^ ODD) } else { key };
        let walk = self.walk(key, limit);
        let found = walk.find();
        let mut place = Place { walk, found, half: Half::default(), carried: 0 };
        let Some((_, word)) = found else { return place };
        let class = self.parts.class_of(word);
        let payload = walk::payload(word, class);
        let count = u32::try_from(payload >> 1).unwrap_or(u32::MAX); // 33 bits wide with the seal
        // A word of an unlisted class may be of any period: its window must
        // at least be one of this period's.
        let is_other = matches!(class, Some(Class::Window { period: other, .. }) if other != period);
        let is_same = !is_other && word.lo.is_multiple_of(period);
        if is_same {
            place.half = Half { end: word.lo.saturating_sub(period), count, sealed: payload & 1 == 1 };
        } else if word.lo > now {
            place.carried = count;
        }
        place
    }
}

impl Place<'_, '_> {
    /// Makes sure that the window that ended at `end` takes no more.
    fn seal(&self, end: Nanos, period: Nanos, now: Nanos) -> bool {
        if self.half.end == end && self.half.sealed {
            return true;
        }
        let count = if self.half.end == end { self.half.count } else { 0 };
        self.put(Half { end, count, sealed: true }, period, now)
    }

    fn put(&self, half: Half, period: Nanos, now: Nanos) -> bool {
        // A count that this class cannot hold is kept as the largest: it denies.
        let count = half.count.min(u32::try_from(self.walk.payload_mask() >> 1).unwrap_or(u32::MAX));
        let fitting = self.walk.word(Half { count, ..half }.cell(period));
        match self.found {
            Some((slot, seen)) if count == half.count || self.walk.owns(seen) => {
                slot.swap(seen, fitting).is_ok()
            }
            Some((slot, seen)) => slot.swap(seen, self.walk.word_over(half.cell(period), seen)).is_ok(),
            None => self.walk.claim(now, |_| fitting).is_some(),
        }
    }
}
