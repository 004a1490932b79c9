//! When not to ask: a circuit breaker.
//!
//! Closed, every call goes out. Failures open it: so many in a row, or half of
//! at least [`RATIO_CALLS`] calls, so that a store which answers every second
//! time does not stay in use for ever. Open, no call goes out. After a wait
//! one probe does, and only one at a time: half-open. When it succeeds the
//! breaker closes; when it fails, or has not come back at its deadline, the
//! wait doubles, up to a longest. So a store that is back is in use again
//! after at most that longest wait and one probe.
//!
//! Calls are counted in two halves of the window that take turns: what is
//! older than the window never counts, what is younger than half of it always.
//!
//! A pure state machine: time is passed in, and any time is legal. A clock that
//! steps back by no more than the longest wait makes a wait longer by the step;
//! one that steps further makes the probe due, so that no instant far ahead
//! can shut the store out.

use crate::time::{Nanos, SECOND};

/// The fewest calls of a window whose failures are told as a ratio.
pub const RATIO_CALLS: u32 = 20;

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures in a row that open it; 0 is taken for 1.
    pub failures: u32,
    /// Calls older than this do not count.
    pub window: Nanos,
    /// The first wait before a probe.
    pub open_for: Nanos,
    /// The longest wait: each is twice the one before, up to this.
    pub max_open: Nanos,
}

/// What a breaker does with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// All go out.
    Closed = 0,
    /// None goes out.
    Open = 1,
    /// One probe is out.
    HalfOpen = 2,
}

/// A circuit breaker of one store.
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: State,
    /// The two halves of the window: this one and the one before.
    halves: [Half; 2],
    /// Closed: when this half began. Open: when the wait began. Half-open:
    /// when the probe was sent.
    since: Nanos,
    /// How long to wait before a probe.
    wait: Nanos,
    /// Of the probe.
    deadline: Nanos,
    opened: u64,
}

/// Calls of half a window.
#[derive(Clone, Copy, Debug)]
struct Half {
    calls: u32,
    failures: u32,
    /// Failures since the last success.
    in_a_row: u32,
}

impl Default for BreakerConfig {
    /// Five failures in a row, 10 s, 100 ms, 500 ms.
    fn default() -> Self {
        BreakerConfig::DEFAULT
    }
}

impl BreakerConfig {
    /// Five failures in a row, 10 s, 100 ms, 500 ms.
    pub const DEFAULT: BreakerConfig =
        BreakerConfig { failures: 5, window: 10 * SECOND, open_for: SECOND / 10, max_open: SECOND / 2 };
}

impl Breaker {
    /// A closed one.
    #[must_use]
    pub const fn new(config: BreakerConfig) -> Breaker {
        Breaker {
            config,
            state: State::Closed,
            halves: [Half::EMPTY; 2],
            since: 0,
            wait: 0,
            deadline: 0,
            opened: 0,
        }
    }

    /// What it does with calls.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// May a call go out? Only while closed; a probe asks
    /// [`wants_probe`](Self::wants_probe).
    #[must_use]
    pub const fn allows(&self, _now: Nanos) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Is it time for a probe, and none out?
    #[must_use]
    pub fn wants_probe(&self, now: Nanos) -> bool {
        let mut then = *self;
        then.handle_timeout(now);
        then.state == State::Open && (now >= then.since.saturating_add(then.wait) || then.is_far_behind(now))
    }

    /// The probe went out; without its result by `deadline` it has failed.
    /// Nothing while closed, or while another is out.
    pub fn probe_sent(&mut self, now: Nanos, deadline: Nanos) {
        self.handle_timeout(now);
        if self.state == State::Open {
            (self.state, self.since, self.deadline) = (State::HalfOpen, now, deadline);
        }
    }

    /// The probe failed. Nothing when none is out.
    pub fn probe_failed(&mut self, now: Nanos) {
        self.handle_timeout(now);
        if self.state == State::HalfOpen {
            self.wait_again(now);
        }
    }

    /// The probe succeeded. Nothing when none is out: after its deadline it
    /// has failed.
    pub fn probe_succeeded(&mut self, now: Nanos) {
        self.handle_timeout(now);
        if self.state == State::HalfOpen {
            (self.state, self.since, self.halves) = (State::Closed, now, [Half::EMPTY; 2]);
        }
    }

    /// A call succeeded. Nothing unless closed: it was sent before.
    pub fn succeeded(&mut self, now: Nanos) {
        if self.state == State::Closed {
            self.rotate(now);
            let [this, before] = &mut self.halves;
            this.calls = this.calls.saturating_add(1); // clamped: the ratio of billions
            (this.in_a_row, before.in_a_row) = (0, 0);
        }
    }

    /// A call failed. Nothing unless closed: it was sent before.
    pub fn failed(&mut self, now: Nanos) {
        if self.state != State::Closed {
            return;
        }
        self.rotate(now);
        let [this, before] = &mut self.halves;
        // Clamped, all three: the ratio of billions.
        this.calls = this.calls.saturating_add(1);
        this.failures = this.failures.saturating_add(1);
        this.in_a_row = this.in_a_row.saturating_add(1);
        let sum = |a: u32, b: u32| u64::from(a) + u64::from(b);
        let calls = sum(this.calls, before.calls);
        let failures = sum(this.failures, before.failures);
        let in_a_row = sum(this.in_a_row, before.in_a_row);
        let is_half = calls >= RATIO_CALLS.into() && failures * 2 >= calls;
        if in_a_row >= self.config.failures.max(1).into() || is_half {
            self.opened = self.opened.saturating_add(1);
            self.wait = self.config.open_for.min(self.config.max_open);
            (self.state, self.since) = (State::Open, now);
        }
    }

    /// When to look again: at the probe's deadline while one is out, else when
    /// one is due; `None` while closed. A due time stays in the past until a
    /// probe is sent, a deadline until [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Nanos> {
        match self.state {
            State::Closed => None,
            State::Open => Some(self.since.saturating_add(self.wait)),
            State::HalfOpen => Some(self.deadline),
        }
    }

    /// A probe that is not back by its deadline has failed then.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if self.state == State::HalfOpen {
            if self.is_far_behind(now) {
                self.wait_again(now);
            } else if now >= self.deadline {
                self.wait_again(self.deadline.max(self.since));
            }
        }
    }

    /// How often it opened; a probe that failed does not count.
    #[must_use]
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    fn wait_again(&mut self, since: Nanos) {
        self.wait = self.wait.saturating_mul(2).min(self.config.max_open); // clamped by max_open anyway
        (self.state, self.since) = (State::Open, since);
    }

    /// Did the clock step back by more than a wait may last?
    fn is_far_behind(&self, now: Nanos) -> bool {
        self.since.saturating_sub(now) > self.config.max_open
    }

    fn rotate(&mut self, now: Nanos) {
        let half = (self.config.window / 2).max(1);
        let is_next = now.checked_sub(self.since).map(|passed| passed / half);
        match is_next {
            Some(0) => {}
            Some(1) => {
                self.halves = [Half::EMPTY, self.halves[0]];
                self.since = self.since.saturating_add(half); // not after now
            }
            None if self.since - now <= self.config.window => {} // now is before since
            _ => (self.halves, self.since) = ([Half::EMPTY; 2], now),
        }
    }
}

impl Half {
    const EMPTY: Half = Half { calls: 0, failures: 0, in_a_row: 0 };
}
