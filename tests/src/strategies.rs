//! What the property tests draw: limits from the whole legal range and its
//! ends, costs, and times that stand, run, jump and step back.

use proptest::prelude::*;
use tollgate_core::limit::{MAX_LIMIT, MAX_PERIOD, MIN_PERIOD};
use tollgate_core::time::{HORIZON, MAX_SPAN, MAX_STEP, SECOND};
use tollgate_core::{Algorithm, Anchor, Limit, Nanos};

/// The most entries of a log or units in flight that a test draws.
const MAX_ROW: u64 = 40;

/// The rates that other limiters have got wrong, and the ends of the range.
const NOTABLE: [(u64, Nanos); 14] = [
    (1, MIN_PERIOD),
    (MAX_LIMIT, MIN_PERIOD),
    (1, MAX_PERIOD),
    (MAX_LIMIT, MAX_PERIOD),
    (1_000_000_001, SECOND),
    (4_999, 3_600 * SECOND),
    (700, 60 * SECOND),
    (1_500, SECOND),
    (1, 30 * 86_400 * SECOND),
    (3, SECOND),
    (1, 1_500_000_000),
    (MAX_LIMIT - 1, MAX_PERIOD - 1),
    (7, MIN_PERIOD + 1),
    (1_000_000_007, 999_999_937),
];

/// Any rate.
fn rate() -> impl Strategy<Value = (u64, Nanos)> {
    prop_oneof![
        4 => proptest::sample::select(&NOTABLE[..]),
        3 => (1u64..=50, (1u64..=120).prop_map(|s| s * SECOND / 10)),
        2 => (1u64..=MAX_LIMIT, MIN_PERIOD..=MAX_PERIOD),
        1 => (1u64..=MAX_LIMIT, MIN_PERIOD..=10 * SECOND),
    ]
}

/// Any limit of that algorithm.
pub fn limit_of(algorithm: Algorithm) -> BoxedStrategy<Limit> {
    let bursts = prop_oneof![
        3 => Just(0u64), // the limit itself
        3 => 1u64..=20,
        1 => 1u64..=MAX_LIMIT,
        1 => Just(MAX_LIMIT),
        1 => Just(1u64),
    ];
    (rate(), bursts, any::<bool>(), 1u64..=MAX_ROW)
        .prop_map(move |((units, period), burst, first, row)| {
            let units = match algorithm {
                Algorithm::SlidingLog | Algorithm::Concurrency => row,
                _ => units,
            };
            // The largest burst that refills in time, where the one drawn is larger.
            let largest =
                (u128::from(MAX_SPAN) * u128::from(units) / u128::from(period)).min(MAX_LIMIT.into());
            let largest = u64::try_from(largest).unwrap_or(MAX_LIMIT);
            match algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    let burst = if burst == 0 { units } else { burst }.min(largest.max(1));
                    let at_one = Limit::new(algorithm, units, period);
                    at_one.and_then(|limit| limit.with_burst(burst)).expect("in range")
                }
                Algorithm::FixedWindow if first => Limit::new(algorithm, units, period)
                    .and_then(|limit| limit.with_anchor(Anchor::FirstRequest))
                    .expect("in range"),
                _ => Limit::new(algorithm, units, period).expect("in range"),
            }
        })
        .boxed()
}

/// Any limit of any algorithm.
pub fn limit() -> impl Strategy<Value = Limit> {
    proptest::sample::select(&Algorithm::ALL[..]).prop_flat_map(limit_of)
}

/// How a request's cost is chosen, given the burst.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    /// So many units.
    Units(u64),
    /// The burst less so many.
    BurstLess(u64),
    /// One more than fits.
    BurstAndOne,
    /// A share of the burst.
    Share(u64),
    /// The largest number.
    Most,
}

impl Cost {
    /// The cost under a limit.
    #[must_use]
    pub fn of(self, limit: &Limit) -> u64 {
        let burst = limit.burst();
        match self {
            Cost::Units(units) => units,
            Cost::BurstLess(units) => burst.saturating_sub(units),
            Cost::BurstAndOne => burst + 1,
            Cost::Share(parts) => burst.div_ceil(parts),
            Cost::Most => u64::MAX,
        }
    }
}

/// Any cost.
pub fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        6 => (1u64..=3).prop_map(Cost::Units),
        4 => (2u64..=9).prop_map(Cost::Share),
        2 => (0u64..=1).prop_map(Cost::BurstLess),
        1 => Just(Cost::Units(0)),
        1 => Just(Cost::BurstAndOne),
        1 => Just(Cost::Most),
    ]
}

/// How the clock moves before a request.
#[derive(Clone, Copy, Debug)]
pub enum Tick {
    /// It stands.
    Stand,
    /// It runs so many parts of 1,000 of a period.
    Share(u64),
    /// It runs so many nanoseconds.
    Run(Nanos),
    /// It goes to the next boundary of a period, and so many nanoseconds from it.
    Boundary(i8),
    /// To the instant that the last answer named, and so many nanoseconds from it.
    Retry(i8),
    /// To when the last answer said the bucket is full, and so many nanoseconds from it.
    Reset(i8),
    /// It steps back, within what is held.
    Back(Nanos),
}

/// What the clock shows, and what the last answer told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Now.
    pub now: Nanos,
    /// The last `retry_after` and `reset_after`, from when.
    pub told: (Nanos, Nanos, Nanos),
}

impl Clock {
    /// Moves.
    pub fn tick(&mut self, tick: Tick, limit: &Limit) {
        let near = |at: Nanos, off: i8| at.saturating_add_signed(i64::from(off));
        let (told, retry, reset) = self.told;
        self.now = match tick {
            Tick::Stand => self.now,
            Tick::Share(parts) => {
                let span = u128::from(limit.period()) * u128::from(parts) / 1_000;
                self.now.saturating_add(u64::try_from(span).unwrap_or(u64::MAX))
            }
            Tick::Run(span) => self.now.saturating_add(span),
            Tick::Boundary(off) => {
                let period = limit.period();
                near((self.now / period).saturating_add(1).saturating_mul(period), off).max(self.now)
            }
            Tick::Retry(off) => near(told.saturating_add(retry.min(MAX_SPAN)), off).max(self.now),
            Tick::Reset(off) => near(told.saturating_add(reset), off).max(self.now),
            Tick::Back(span) => {
                self.now.saturating_sub(span).max(told.saturating_sub(MAX_STEP)).min(self.now)
            }
        };
    }
}

/// A clock that does not step back.
pub fn forward() -> impl Strategy<Value = Tick> {
    prop_oneof![
        4 => Just(Tick::Stand),
        4 => (1u64..=2_500).prop_map(Tick::Share),
        2 => (1u64..=3).prop_map(Tick::Run),
        2 => (-1i8..=1).prop_map(Tick::Boundary),
        4 => (-1i8..=1).prop_map(Tick::Retry),
        2 => (-1i8..=1).prop_map(Tick::Reset),
    ]
}

/// A clock that jitters: it steps back by less than a minute.
pub fn jitter() -> impl Strategy<Value = Tick> {
    prop_oneof![4 => forward(), 1 => (0u64..=60 * SECOND).prop_map(Tick::Back), 1 => (0u64..=2_000).prop_map(Tick::Back)]
}

/// Any instant to begin at.
pub fn start() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        3 => Just(1_000_000 * SECOND),
        2 => Just(0u64),
        2 => 0u64..=HORIZON,
        1 => (0u64..=10 * SECOND).prop_map(|d| HORIZON - d),
    ]
}

/// Any instant at all.
pub fn instant() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        2 => any::<u64>(),
        1 => Just(0u64),
        1 => Just(u64::MAX),
        1 => Just(HORIZON),
        1 => (0u64..=3).prop_map(|d| HORIZON - d),
        1 => (0u64..=3).prop_map(|d| HORIZON + d),
        3 => 0u64..=100 * SECOND,
    ]
}
