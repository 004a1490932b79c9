//! Time is a number that the caller passes in: nanoseconds of one clock that
//! does not step back. Nothing in this crate reads a clock.
//!
//! Any `u64` is a legal time. Instants after [`HORIZON`] are taken for the
//! horizon itself, so that every sum of an instant and a refill time fits in
//! 64 bits: at the horizon the clock stands still, which can deny but never
//! grants.

use portable_atomic::{AtomicU64, Ordering};

/// Nanoseconds: an instant of the caller's clock, or a span.
pub type Nanos = u64;

/// One second in [`Nanos`].
pub const SECOND: Nanos = 1_000_000_000;

/// A wait that never ends: the `retry_after` of a cost above the burst.
pub const NEVER: Nanos = u64::MAX;

/// The last instant that a decision tells apart from later ones, 2^64 − 2^62
/// nanoseconds after the clock's zero (438 years).
pub const HORIZON: Nanos = u64::MAX - MAX_SPAN;

/// The longest span that a [`Limit`](crate::Limit) can ask of the clock
/// (2^62 ns, 146 years): the time to fill an empty bucket, or two windows.
pub const MAX_SPAN: Nanos = 1 << 62;

/// How far a clock may step back and be held where it was: one minute.
pub const MAX_STEP: Nanos = 60 * SECOND;

/// The latest instant at which something was charged: where a clock that
/// steps back stands still until it has caught up.
///
/// Threads whose clocks differ a little, or that read the clock and were then
/// kept from running, so find the bucket as it was when it was last charged,
/// not fuller and not emptier. A clock that is more than [`MAX_STEP`] behind
/// is taken at its word: it finds less in the bucket, never more.
///
/// Reads and writes are relaxed, and a write may be lost to another of almost
/// the same time: then a request is answered as its own clock says.
#[derive(Debug, Default)]
pub(crate) struct Latest(AtomicU64);

impl Latest {
    /// `now`, or the latest instant if `now` is a step back from it.
    #[inline(always)]
    pub(crate) fn hold(&self, now: Nanos) -> Nanos {
        self.hold_and_latest(now).0
    }

    /// As [`hold`](Self::hold); also the latest instant itself, for
    /// [`note_after`](Self::note_after).
    #[inline(always)]
    pub(crate) fn hold_and_latest(&self, now: Nanos) -> (Nanos, Nanos) {
        let latest = self.0.load(Ordering::Relaxed);
        // Not before the latest, and far from the horizon: in one comparison.
        let held = if (now.wrapping_sub(latest) | now) >> 62 == 0 { now } else { step_back(now, latest) };
        (held, latest)
    }

    /// The present, for a refund of what was charged at `charged_at`: the
    /// latest instant that is known.
    pub(crate) fn present(&self, charged_at: Nanos) -> Nanos {
        held(charged_at).max(self.0.load(Ordering::Relaxed))
    }

    /// Something was charged at `now`, which was held. Later is not undone by
    /// earlier, unless it is so far ahead that it belongs to another clock.
    #[inline]
    pub(crate) fn note(&self, now: Nanos) {
        let latest = self.0.load(Ordering::Relaxed);
        if latest.wrapping_sub(now) > MAX_STEP {
            self.0.store(now, Ordering::Relaxed); // behind: the difference wrapped
        }
    }

    /// As [`note`](Self::note), with the latest instant that
    /// [`hold_and_latest`](Self::hold_and_latest) gave: where it is not `now`,
    /// it is earlier, or another clock's.
    #[inline(always)]
    pub(crate) fn note_after(&self, now: Nanos, latest: Nanos) {
        if latest != now {
            self.0.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// `now`, or the latest instant if `now` is a step back from it.
#[cold]
#[inline(never)]
pub(crate) fn step_back(now: Nanos, latest: Nanos) -> Nanos {
    let now = held(now);
    if latest.wrapping_sub(now) <= MAX_STEP { latest } else { now } // a wrapped difference is larger
}

/// Holds `now` at the [`HORIZON`].
#[inline]
pub(crate) fn held(now: Nanos) -> Nanos {
    now.min(HORIZON)
}

/// Whole seconds, rounded up, as HTTP fields carry them.
///
/// ```
/// use tollgate_core::time::whole_seconds;
/// assert_eq!(whole_seconds(1_400_000_000), 2);
/// assert_eq!(whole_seconds(0), 0);
/// ```
#[must_use]
pub fn whole_seconds(span: Nanos) -> u64 {
    span.div_ceil(SECOND)
}
