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
use super::walk::{self, Cell, Walk};
use crate::algorithm::fixed_window::window_end;
use crate::algorithm::sliding_window::{self, Windows};
use crate::decision::Decision;
use crate::key::Fingerprint;
use crate::limit::Limit;
use crate::slot::{Slot, Word};
use crate::time::{HORIZON, Nanos};

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
    /// Units of a slot that was charged under another period or limit.
    carried: u32,
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
        self.update_windows(key, limit, now, |windows, now| {
            let (next, decision) = sliding_window::decide(windows, limit, now, cost);
            (Some(next).filter(|_| take), decision)
        })
    }

    pub(super) fn refund_windows(&self, key: Fingerprint, limit: &Limit, cost: u64, now: Nanos) {
        // A sealed window keeps its count, so only the open one gives back.
        self.update_windows(key, limit, now, |windows, _| {
            let cost = u32::try_from(cost).unwrap_or(u32::MAX).min(windows.current);
            (Some(Windows { current: windows.current - cost, ..windows }), ())
        });
    }

    fn update_windows<R>(
        &self,
        key: Fingerprint,
        limit: &Limit,
        mut now: Nanos,
        step: impl Fn(Windows, Nanos) -> (Option<Windows>, R),
    ) -> R {
        let period = limit.period();
        loop {
            let end = window_end(now, period);
            let here = self.place(key, limit, end, now);
            let before = self.place(key, limit, end - period, now);
            // Our clock is behind: a later window is open already.
            let latest = here.half.end.max(before.half.end);
            if latest > end && latest - period <= HORIZON {
                now = latest - period;
                continue;
            }
            let is_open = here.half.end == end;
            if is_open && here.half.sealed {
                now = end.min(HORIZON);
                if now < end {
                    return step(Windows { end, current: u32::MAX, previous: 0 }, now).1; // the clock has run out
                }
                continue;
            }
            let carried = here.carried.saturating_add(before.carried);
            let windows = Windows {
                end,
                current: if is_open { here.half.count } else { 0 }.saturating_add(carried),
                previous: if before.half.end == end - period { before.half.count } else { 0 },
            };
            let (next, answer) = step(windows, now);
            let Some(next) = next.filter(|next| *next != windows) else {
                return answer;
            };
            if !is_open && !before.seal(end - period, period, now) {
                continue;
            }
            if here.put(Half { end, count: next.current, sealed: false }, period, now) {
                return answer;
            }
        }
    }

    /// The half of the window that ends at `end`, or of an older one in the
    /// same slot.
    fn place(&self, key: Fingerprint, limit: &Limit, end: Nanos, now: Nanos) -> Place<'_, 'm> {
        let odd = (end / limit.period()) & 1 == 1;
        let key = if odd { Fingerprint(key.0 ^ ODD) } else { key };
        let walk = self.walk(key, limit);
        let found = walk.find();
        let mut place = Place { walk, found, half: Half::default(), carried: 0 };
        match found {
            Some((_, word)) if walk.owns(word) => {
                let cell = walk.cell(word);
                place.half = Half {
                    end: cell.at.saturating_sub(limit.period()),
                    count: (cell.payload >> 1) as u32, // 33 bits wide with the seal
                    sealed: cell.payload & 1 == 1,
                };
            }
            Some((_, word)) if word.lo > now => {
                let payload = walk::payload(word, self.parts.class_of(word));
                place.carried = u32::try_from(payload >> 1).unwrap_or(u32::MAX);
            }
            _ => {}
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
        let word = self.walk.word(half.cell(period));
        match self.found {
            Some((slot, seen)) => slot.swap(seen, word).is_ok(),
            None => self.walk.claim(now, |_| word).is_some(),
        }
    }
}
