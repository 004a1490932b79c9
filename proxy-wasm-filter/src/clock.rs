//! What time it is: since 1970, and without a step back.
//!
//! The host's clock of the day may be set back, and for as long as it was no
//! deadline would come: a request would wait for a Redis that does not answer
//! longer than its policy allows. So time passes as the host's steady clock
//! says, from where the clock of the day stood. When that is set forward, it
//! is followed.

use tollgate_core::time::Nanos;

use crate::abi;

/// The clock of the day is looked at so often: 100 ms.
const INTERVAL: Nanos = 100_000_000;

/// A worker's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    /// By so much the steady clock is behind 1970's.
    ahead: Nanos,
    latest: Nanos,
    followed_at: Nanos,
}

impl Clock {
    /// It stands where the clock of the day does.
    pub(crate) fn new() -> Clock {
        let mut clock = Clock { ahead: 0, latest: 0, followed_at: 0 };
        clock.follow();
        clock
    }

    /// What it said last.
    pub(crate) fn latest(&self) -> Nanos {
        self.latest
    }

    /// What it says.
    pub(crate) fn now(&mut self) -> Nanos {
        let steady = abi::steady().map(|steady| steady.saturating_add(self.ahead));
        let now = steady.or_else(|_| abi::now()).unwrap_or(0);
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Follows the clock of the day where it was set forward.
    pub(crate) fn follow(&mut self) {
        if self.followed_at > 0 && self.latest.saturating_sub(self.followed_at) < INTERVAL {
            return;
        }
        // In this order: being kept from running in between must not be taken for a step.
        if let (Ok(day), Ok(steady)) = (abi::now(), abi::steady()) {
            self.ahead = self.ahead.max(day.saturating_sub(steady));
        }
        self.followed_at = self.now();
    }
}
