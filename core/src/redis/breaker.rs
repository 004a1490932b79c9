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
    /// Open: when a probe is due. Half-open: the probe's deadline.
    until: Nanos,
    /// How long this wait is, or the last one was.
    wait: Nanos,
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
            until: 0,
            wait: 0,
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
        then.state == State::Open && now >= then.until
    }

    /// The probe went out; without its result by `deadline` it has failed.
    /// Nothing while closed, or while another is out.
    pub fn probe_sent(&mut self, now: Nanos, deadline: Nanos) {
        self.handle_timeout(now);
        if self.state == State::Open {
            (self.state, self.since, self.until) = (State::HalfOpen, now, deadline);
        }
    }

    /// The probe failed. Nothing when none is out.
    pub fn probe_failed(&mut self, now: Nanos) {
        self.handle_timeout(now);
        if self.state == State::HalfOpen {
            self.wait_longer();
            self.open(now);
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

    /// There is a sign that the store is well: a probe is due now. Nothing
    /// while closed, or while one is out.
    pub fn hurry(&mut self, now: Nanos) {
        if self.state == State::Open {
            self.until = self.until.min(now);
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
            self.open(now);
        }
    }

    /// When to look again: at the probe's deadline while one is out, else when
    /// one is due; `None` while closed. A due time stays in the past until a
    /// probe is sent, a deadline until [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Nanos> {
        match self.state {
            State::Closed => None,
            State::Open | State::HalfOpen => Some(self.until),
        }
    }

    /// A probe that is not back by its deadline has failed then. All other
    /// methods see to that too; this one is for whoever waits for
    /// [`poll_timeout`](Self::poll_timeout).
    pub fn handle_timeout(&mut self, now: Nanos) {
        if self.state == State::Closed {
            return;
        }
        let has_stepped = self.since.saturating_sub(now) > self.config.max_open;
        let is_lost = self.state == State::HalfOpen && (has_stepped || now >= self.until);
        if is_lost {
            self.wait_longer();
            self.open(self.until.max(self.since));
        }
        if has_stepped {
            (self.since, self.until) = (now, now);
        }
    }

    /// How often it opened; a probe that failed does not count.
    #[must_use]
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    fn open(&mut self, now: Nanos) {
        (self.state, self.since) = (State::Open, now);
        self.until = now.saturating_add(self.wait); // clamped: due at the clock's end
    }

    fn wait_longer(&mut self) {
        self.wait = self.wait.saturating_mul(2).min(self.config.max_open); // clamped by max_open anyway
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = 1_000_000;
    const CONFIG: BreakerConfig = BreakerConfig::DEFAULT;

    /// One that has just opened at that time.
    fn open_at(now: Nanos) -> Breaker {
        let mut breaker = Breaker::new(CONFIG);
        (0..CONFIG.failures).for_each(|_| breaker.failed(now));
        assert_eq!(breaker.state(), State::Open);
        breaker
    }

    #[test]
    fn so_many_failures_in_a_row_open_it_and_one_success_starts_anew() {
        let mut breaker = Breaker::new(CONFIG);
        for now in 0..4 {
            breaker.failed(now);
        }
        breaker.succeeded(4);
        for now in 5..9 {
            breaker.failed(now);
            assert!(breaker.allows(now));
        }
        breaker.failed(9);
        assert_eq!((breaker.state(), breaker.opened()), (State::Open, 1));
        assert!(!breaker.allows(9) && !breaker.wants_probe(9));
        assert_eq!(breaker.poll_timeout(), Some(9 + CONFIG.open_for));
        assert!(!breaker.wants_probe(8 + CONFIG.open_for) && breaker.wants_probe(9 + CONFIG.open_for));
    }

    #[test]
    fn a_sign_that_the_store_is_well_makes_one_probe_due() {
        let mut breaker = open_at(100 * MS);
        breaker.hurry(110 * MS);
        assert!(breaker.wants_probe(110 * MS));
        breaker.probe_sent(110 * MS, 120 * MS);
        breaker.hurry(111 * MS);
        assert!(!breaker.wants_probe(119 * MS), "one at a time");
        breaker.probe_succeeded(112 * MS);
        breaker.hurry(113 * MS);
        assert_eq!((breaker.state(), breaker.poll_timeout()), (State::Closed, None));
    }

    #[test]
    fn failures_older_than_the_window_do_not_count() {
        let mut breaker = Breaker::new(CONFIG);
        for turn in 1..1_000 {
            breaker.failed(turn * (CONFIG.window / 4 + 1));
            assert_eq!(breaker.state(), State::Closed, "{turn}");
        }
    }

    #[test]
    fn a_store_that_answers_every_second_call_is_left_alone() {
        let mut breaker = Breaker::new(CONFIG);
        for turn in 0..=u64::from(RATIO_CALLS) {
            if turn % 2 == 0 { breaker.failed(turn * MS) } else { breaker.succeeded(turn * MS) }
        }
        assert_eq!(breaker.state(), State::Open);
    }

    #[test]
    fn a_store_that_fails_every_third_call_stays_in_use() {
        let mut breaker = Breaker::new(CONFIG);
        for turn in 0..100_000 {
            if turn % 3 == 0 { breaker.failed(turn * MS) } else { breaker.succeeded(turn * MS) }
        }
        assert_eq!(breaker.state(), State::Closed);
    }

    #[test]
    fn waits_double_up_to_the_longest_and_begin_short_again_after_a_success() {
        let mut breaker = open_at(0);
        let mut now = 0;
        for wait in [100, 200, 400, 500, 500] {
            assert_eq!(breaker.poll_timeout(), Some(now + wait * MS));
            now += wait * MS;
            breaker.probe_sent(now, now + 5 * MS);
            now += MS;
            breaker.probe_failed(now);
        }
        now += CONFIG.max_open;
        breaker.probe_sent(now, now + 5 * MS);
        breaker.probe_succeeded(now);
        assert!(breaker.allows(now) && breaker.poll_timeout().is_none());
        (0..CONFIG.failures).for_each(|_| breaker.failed(now));
        assert_eq!((breaker.poll_timeout(), breaker.opened()), (Some(now + CONFIG.open_for), 2));
    }

    #[test]
    fn a_probe_that_never_comes_back_has_failed_at_its_deadline() {
        let mut breaker = open_at(0);
        let (sent, deadline) = (100 * MS, 105 * MS);
        breaker.probe_sent(sent, deadline);
        assert_eq!((breaker.state(), breaker.poll_timeout()), (State::HalfOpen, Some(deadline)));
        assert!(!breaker.wants_probe(deadline + 200 * MS - 1) && breaker.wants_probe(deadline + 200 * MS));
        breaker.probe_succeeded(deadline); // too late
        assert_eq!((breaker.state(), breaker.poll_timeout()), (State::Open, Some(deadline + 200 * MS)));
    }

    #[test]
    fn results_of_calls_sent_before_it_opened_change_nothing() {
        let mut breaker = open_at(0);
        let before = std::format!("{breaker:?}");
        breaker.succeeded(MS);
        breaker.failed(MS);
        breaker.probe_succeeded(MS);
        breaker.probe_failed(MS);
        assert_eq!(std::format!("{breaker:?}"), before);
    }

    #[test]
    fn an_instant_far_ahead_shuts_nothing_out() {
        for far in [u64::MAX, 1 << 60] {
            let mut breaker = open_at(far);
            assert!(breaker.wants_probe(0));
            breaker.probe_sent(far, far); // and the probe as well
            assert!(breaker.wants_probe(0));
            breaker.handle_timeout(0);
            assert_eq!((breaker.state(), breaker.poll_timeout()), (State::Open, Some(0)));
        }
    }

    /// What may happen next.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Call { fails: bool },
        Probe,
        ProbeBack { fails: bool },
        Timeout,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => any::<bool>().prop_map(|fails| Event::Call { fails }),
            2 => Just(Event::Call { fails: true }),
            2 => Just(Event::Probe),
            1 => any::<bool>().prop_map(|fails| Event::ProbeBack { fails }),
            1 => Just(Event::Timeout),
        ]
    }

    /// Mostly a little later, at times earlier or far off.
    fn step() -> impl Strategy<Value = i128> {
        prop_oneof![
            6 => 0i128..200_000_000,
            1 => -1_000_000_000i128..0,
            1 => 0i128..60_000_000_000,
            1 => prop::sample::select(std::vec![i128::from(u64::MAX), -i128::from(u64::MAX)]),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn one_probe_at_a_time_and_never_wedged(
            schedule in prop::collection::vec((step(), event()), 0..120),
            begin in any::<u64>(),
            failures in 0u32..8,
            spans in [0u64..2_000_000_000, 0u64..2_000_000_000, 0u64..2_000_000_000],
        ) {
            let [window, open_for, max_open] = spans;
            let config = BreakerConfig { failures, window, open_for, max_open };
            let mut breaker = Breaker::new(config);
            let mut now = begin;
            // The probe that is out: when it was sent, and its deadline.
            let mut out: Option<(Nanos, Nanos)> = None;
            for (step, event) in schedule {
                now = (i128::from(now) + step).clamp(0, u64::MAX.into()) as u64;
                let before = (breaker.state(), breaker.opened());
                let is_lost = |(sent, deadline): (Nanos, Nanos)| now >= deadline || sent.saturating_sub(now) > max_open;
                prop_assert!(!breaker.wants_probe(now) || out.is_none_or(is_lost));
                match event {
                    Event::Call { fails: true } => breaker.failed(now),
                    Event::Call { fails: false } => breaker.succeeded(now),
                    Event::Probe if breaker.wants_probe(now) => {
                        out = Some((now, now.saturating_add(5_000_000)));
                        breaker.probe_sent(now, now.saturating_add(5_000_000));
                        prop_assert_eq!(breaker.state(), State::HalfOpen);
                    }
                    Event::Probe => {}
                    Event::ProbeBack { fails: true } => breaker.probe_failed(now),
                    Event::ProbeBack { fails: false } => breaker.probe_succeeded(now),
                    Event::Timeout => breaker.handle_timeout(now),
                }
                if breaker.state() != State::HalfOpen {
                    out = None;
                }
                let after = (breaker.state(), breaker.opened());
                if before.0 != State::Closed && after.0 == State::Closed {
                    let succeeded = matches!(event, Event::ProbeBack { fails: false });
                    prop_assert!(succeeded && before.0 == State::HalfOpen);
                }
                let has_opened = before.0 == State::Closed && after.0 != State::Closed;
                prop_assert_eq!(after.1, before.1 + u64::from(has_opened));
                prop_assert_eq!(breaker.poll_timeout().is_none(), after.0 == State::Closed);
            }
            // The fault is over, the clock goes forward and somebody asks: in
            // use again after a lost probe's deadline, the longest wait, as
            // much again if the clock had stepped back, and one probe.
            breaker.handle_timeout(now);
            let end = now.saturating_add(5_000_000).saturating_add(max_open.saturating_mul(2));
            if breaker.state() != State::Closed {
                prop_assert!(breaker.wants_probe(end));
                breaker.probe_sent(end, u64::MAX);
                breaker.probe_succeeded(end);
            }
            // At the clock's end every deadline is past.
            prop_assert!(breaker.allows(end) || end == u64::MAX);
        }

        #[test]
        fn with_a_clock_that_goes_forward_recovery_takes_the_longest_wait_and_one_probe(
            fault in 0u64..10_000_000_000, tick in 10_000u64..50_000_000,
        ) {
            let mut breaker = open_at(0);
            let mut now = 0;
            let mut deadline = 0;
            // Probes are sent as soon as they are due, and lost.
            while now < fault {
                if breaker.wants_probe(now) {
                    deadline = now + 5 * MS;
                    breaker.probe_sent(now, deadline);
                }
                now += tick;
            }
            let back = now.max(deadline) + CONFIG.max_open;
            prop_assert!(breaker.wants_probe(back));
        }
    }
}
