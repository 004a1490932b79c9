//! A limit, parsed once. A [`Limit`] that exists is valid; there is no later
//! check.
//!
//! # Exactness
//!
//! `limit / period` is reduced by its greatest common divisor to
//! `tick / token`: in a unit of which one nanosecond brings `tick` and one
//! request of cost 1 takes `token`, both the clock and the bucket move in
//! whole numbers. 700 a minute is 7 units a nanosecond and 600,000,000 units
//! a token; nothing is ever rounded.
//!
//! # Ranges
//!
//! | field | smallest | largest |
//! |---|---|---|
//! | `limit` | 1 | 4,294,967,295 |
//! | `burst` | 1 | 4,294,967,295, and the bucket fills in at most 2^62 ns (146 years) |
//! | `period` | 1 µs | 3,660 days |
//! | time | 0 | any; see [`HORIZON`](crate::time::HORIZON) |

use core::num::NonZeroU32;

use crate::time::{MAX_SPAN, Nanos};

#[cfg(feature = "policy")]
pub(crate) use text::parse_period;

mod text;

/// The smallest period of a limit: 1 µs.
pub const MIN_PERIOD: Nanos = 1_000;
/// The largest period of a limit: 3,660 days.
pub const MAX_PERIOD: Nanos = 3_660 * 86_400 * 1_000_000_000;
/// The period of a limit by the calendar month: 31 days, the longest month.
pub const MONTH: Nanos = 31 * 86_400 * 1_000_000_000;
/// The largest limit and the largest burst.
pub const MAX_LIMIT: u64 = u32::MAX as u64;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// Tokens refill steadily; a full bucket admits `burst` at once (GCRA).
    TokenBucket = 0,
    /// A queue of `burst` places that drains steadily; admitted requests are
    /// told how long to wait.
    LeakyBucket = 1,
    /// A counter that starts again with each window.
    FixedWindow = 2,
    /// Two counters, the earlier one weighted by how much of it is still in
    /// the sliding window.
    SlidingWindow = 3,
    /// Every admission of the last period, one by one.
    SlidingLog = 4,
    /// Units in flight, given back by their holder or by expiry.
    Concurrency = 5,
}

impl Algorithm {
    /// All six, in the order of their numbers.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::Concurrency,
    ];

    /// The name that rules files, directives and documents use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::LeakyBucket => "leaky_bucket",
            Algorithm::FixedWindow => "fixed_window",
            Algorithm::SlidingWindow => "sliding_window",
            Algorithm::SlidingLog => "sliding_log",
            Algorithm::Concurrency => "concurrency",
        }
    }

    /// The algorithm of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }
}

/// Where the windows of a fixed window begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Anchor {
    /// At whole multiples of the period since the clock's zero.
    #[default]
    Clock = 0,
    /// At the first request that finds no window open.
    FirstRequest = 1,
    /// At the beginning of each calendar month, UTC: `1000000/month`. The
    /// limit must know when its clock's zero is; see [`Limit::with_unix_at_zero`].
    CalendarMonth = 2,
}

/// Why a limit was refused, with the legal range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// `limit` outside its range.
    #[error("limit: {0} is outside 1 to 4294967295 units per period")]
    Limit(u64),
    /// `burst` outside its range.
    #[error("burst: {0} is outside 1 to 4294967295 units")]
    Burst(u64),
    /// `period` outside its range.
    #[error("period: {0} ns is outside 1000 ns (1us) to 316224000000000000 ns (3660d)")]
    Period(Nanos),
    /// The bucket would take longer than the clock can tell to fill.
    #[error(
        "burst: {burst} units take longer to refill than 2^62 ns (146 years); \
         at this rate the burst is at most {largest}"
    )]
    Refill {
        /// The burst that was asked for.
        burst: u64,
        /// The largest legal burst at this rate.
        largest: u64,
    },
    /// Windows, logs and concurrency hold exactly `limit` units.
    #[error("burst: {} has no burst apart from its limit; leave it out", .0.name())]
    NoBurst(Algorithm),
    /// Only a fixed window has an anchor.
    #[error("anchor: only fixed_window has one, {} has not", .0.name())]
    NoAnchor(Algorithm),
    /// Only a fixed window counts by the month, and a month has no other anchor.
    #[error("period: only fixed_window counts by the calendar month, and with no anchor of another kind")]
    Month,
    /// The text is not a limit.
    #[error("limit text: expected {expected} at byte {at}")]
    Syntax {
        /// Byte offset in the text.
        at: usize,
        /// What would be legal there.
        expected: &'static str,
    },
    /// A number in the text has more digits than a limit can use.
    #[error("limit text: the number at byte {at} is too large or too fine")]
    Number {
        /// Byte offset in the text.
        at: usize,
    },
}

/// Exact division of a number below 2^63 by a constant: a multiplication and
/// a shift (Granlund and Montgomery, "Division by invariant integers", 1994).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    multiplier: u64,
    shift: u32,
}

impl Divisor {
    fn new(divisor: u64) -> Divisor {
        debug_assert!((1..=1 << 63).contains(&divisor));
        let shift = 64 - (divisor - 1).leading_zeros(); // ceil(log2(divisor))
        let multiplier = (1u128 << (63 + shift)).div_ceil(u128::from(divisor));
        Divisor {
            multiplier: multiplier as u64, // 2^63 ..= 2^64 - 1, by the choice of shift
            shift,
        }
    }

    #[inline]
    pub(crate) fn divide(self, x: u64) -> u64 {
        debug_assert!(x < 1 << 63);
        let high = (u128::from(self.multiplier) * u128::from(x << 1)) >> 64;
        (high as u64) >> self.shift
    }
}

/// An algorithm and its numbers, checked and prepared.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    algorithm: Algorithm,
    anchor: Anchor,
    /// Bits of a table slot that this limit's state takes beside its instant.
    width: u8,
    limit: NonZeroU32,
    burst: NonZeroU32,
    period: Nanos,
    /// The UNIX time at the clock's zero, for calendar months.
    unix_at_zero: Nanos,
    /// Units that one nanosecond brings.
    pub(crate) tick: u64,
    /// Units that one token takes.
    pub(crate) token: u64,
    /// Units of a full bucket, where they are at most 2^62; else 0.
    pub(crate) capacity: u64,
    /// A debt of fewer nanoseconds than this is reckoned in 64 bits.
    pub(crate) narrow: Nanos,
    pub(crate) by_token: Divisor,
    pub(crate) by_tick: Divisor,
    /// A token bucket whose token is a whole number of nanoseconds.
    pub(crate) is_whole: bool,
    /// Equal for limits whose state means the same, bit for bit, and for no
    /// others; never zeros.
    pub(crate) meaning: [u64; 2],
    /// A hash of `meaning`.
    pub(crate) hash: u32,
}

impl PartialEq for Limit {
    fn eq(&self, other: &Limit) -> bool {
        (self.algorithm, self.anchor, self.limit, self.burst, self.period)
            == (other.algorithm, other.anchor, other.limit, other.burst, other.period)
    }
}

impl Eq for Limit {}

impl Limit {
    /// `limit` units per `period` nanoseconds, with `burst` equal to `limit`.
    ///
    /// # Errors
    /// A number outside the [ranges](self#ranges).
    ///
    /// ```
    /// use tollgate_core::{Algorithm, Limit};
    /// let limit = Limit::new(Algorithm::TokenBucket, 100, 1_000_000_000)?.with_burst(200)?;
    /// assert_eq!(limit, "100/s burst 200".parse()?);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn new(algorithm: Algorithm, limit: u64, period: Nanos) -> Result<Limit, LimitError> {
        Self::build(algorithm, limit, period, limit, Anchor::Clock)
    }

    /// The same limit with another burst.
    ///
    /// # Errors
    /// A burst outside its range, or an algorithm without one.
    pub fn with_burst(self, burst: u64) -> Result<Limit, LimitError> {
        let limit = Self::build(self.algorithm, self.limit(), self.period, burst, self.anchor)?;
        Ok(Limit { unix_at_zero: self.unix_at_zero, ..limit })
    }

    /// The same limit with another anchor.
    ///
    /// # Errors
    /// An algorithm other than the fixed window; a calendar month of another
    /// period than [`MONTH`], or another anchor for one.
    pub fn with_anchor(self, anchor: Anchor) -> Result<Limit, LimitError> {
        if self.anchor == Anchor::CalendarMonth && anchor != self.anchor {
            return Err(LimitError::Month);
        }
        let limit = Self::build(self.algorithm, self.limit(), self.period, self.burst(), anchor)?;
        Ok(Limit { unix_at_zero: self.unix_at_zero, ..limit })
    }

    /// The same limit on a clock whose zero is that UNIX time, in nanoseconds:
    /// only calendar months ask. Without it the clock counts from 1970. Taken
    /// for 2116 when it is later.
    #[must_use]
    pub fn with_unix_at_zero(self, unix_at_zero: Nanos) -> Limit {
        Limit { unix_at_zero: unix_at_zero.min(MAX_SPAN), ..self }
    }

    fn build(
        algorithm: Algorithm,
        limit: u64,
        period: Nanos,
        burst: u64,
        anchor: Anchor,
    ) -> Result<Limit, LimitError> {
        let small_limit = in_range(limit).ok_or(LimitError::Limit(limit))?;
        if !(MIN_PERIOD..=MAX_PERIOD).contains(&period) {
            return Err(LimitError::Period(period));
        }
        let small_burst = in_range(burst).ok_or(LimitError::Burst(burst))?;
        let has_burst = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        if burst != limit && !has_burst {
            return Err(LimitError::NoBurst(algorithm));
        }
        if anchor != Anchor::Clock && algorithm != Algorithm::FixedWindow {
            return Err(LimitError::NoAnchor(algorithm));
        }
        if anchor == Anchor::CalendarMonth && period != MONTH {
            return Err(LimitError::Month);
        }
        let divisor = gcd(limit, period);
        let (tick, token) = (limit / divisor, period / divisor);
        let capacity = u128::from(burst) * u128::from(token);
        let largest = u128::from(MAX_SPAN) * u128::from(tick) / u128::from(token);
        if u128::from(burst) > largest {
            return Err(LimitError::Refill { burst, largest: largest as u64 }); // < burst: fits
        }
        // A debt below 2^62 and a capacity of at most 2^62 add up below 2^63,
        // the range of a Divisor. A token of whole nanoseconds is always so.
        let is_narrow = capacity <= 1 << 62;
        let width = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => bits(tick - 1),
            Algorithm::FixedWindow => bits(limit),
            Algorithm::SlidingWindow => bits(limit) + 1,
            Algorithm::SlidingLog | Algorithm::Concurrency => 0,
        };
        let meaning = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => [tick << 16, token],
            _ => [1 << 16 | (anchor as u64) << 9, period],
        };
        let meaning = [meaning[0] | u64::from(width) << 3 | algorithm as u64, meaning[1]];
        let hash = (meaning[0] ^ meaning[1].rotate_left(29)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        Ok(Limit {
            meaning,
            hash: hash as u32, // 24 bits
            is_whole: algorithm == Algorithm::TokenBucket && tick == 1,
            algorithm,
            anchor,
            width,
            limit: small_limit,
            burst: small_burst,
            period,
            unix_at_zero: 0,
            tick,
            token,
            capacity: if is_narrow { capacity as u64 } else { 0 },
            narrow: if is_narrow { (1 << 62) / tick } else { 0 },
            by_token: Divisor::new(token),
            by_tick: Divisor::new(tick),
        })
    }

    /// How it counts.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Where fixed windows begin.
    #[must_use]
    pub const fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// Sustained allowance: units per [`period`](Self::period).
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit.get() as u64
    }

    /// The period, in nanoseconds; [`MONTH`] for calendar months; of a concurrency limit, how long a hold
    /// lives when its holder does not release it.
    #[must_use]
    pub const fn period(&self) -> Nanos {
        self.period
    }

    /// What a full bucket admits at once; equal to the limit for windows,
    /// logs and concurrency.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst.get() as u64
    }

    pub(crate) const fn unix_at_zero(&self) -> Nanos {
        self.unix_at_zero
    }

    pub(crate) const fn width(&self) -> u32 {
        self.width as u32
    }

    /// Units of a full bucket, at any size.
    pub(crate) fn wide_capacity(&self) -> u128 {
        u128::from(self.burst.get()) * u128::from(self.token)
    }
}

fn in_range(units: u64) -> Option<NonZeroU32> {
    u32::try_from(units).ok().and_then(NonZeroU32::new)
}

/// Bits needed to write `n`.
fn bits(n: u64) -> u8 {
    (64 - n.leading_zeros()) as u8 // at most 64
}

pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_ranges_hold_at_both_ends() {
        let make = |limit, period| Limit::new(Algorithm::TokenBucket, limit, period);
        assert!(make(1, MIN_PERIOD).is_ok());
        assert!(make(MAX_LIMIT, MIN_PERIOD).is_ok());
        assert!(make(1, MAX_PERIOD).is_ok());
        assert!(make(MAX_LIMIT, MAX_PERIOD).is_ok());
        assert_eq!(make(0, MIN_PERIOD), Err(LimitError::Limit(0)));
        assert_eq!(make(MAX_LIMIT + 1, MIN_PERIOD), Err(LimitError::Limit(MAX_LIMIT + 1)));
        assert_eq!(make(1, MIN_PERIOD - 1), Err(LimitError::Period(MIN_PERIOD - 1)));
        assert_eq!(make(1, MAX_PERIOD + 1), Err(LimitError::Period(MAX_PERIOD + 1)));
        assert_eq!(make(1, 1_000_000_000).unwrap().with_burst(0), Err(LimitError::Burst(0)));
    }

    #[test]
    fn a_burst_that_never_refills_is_refused_with_the_largest_legal_one() {
        let slow = Limit::new(Algorithm::TokenBucket, 1, MAX_PERIOD).unwrap();
        let largest = MAX_SPAN / MAX_PERIOD;
        assert!(slow.with_burst(largest).is_ok());
        assert_eq!(slow.with_burst(largest + 1), Err(LimitError::Refill { burst: largest + 1, largest }));
    }

    #[test]
    fn only_buckets_have_a_burst_and_only_fixed_windows_an_anchor() {
        for algorithm in Algorithm::ALL {
            let limit = Limit::new(algorithm, 5, 1_000_000_000).unwrap();
            let bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
            assert_eq!(limit.with_burst(6).is_ok(), bucket, "{algorithm:?}");
            let anchored = limit.with_anchor(Anchor::FirstRequest).is_ok();
            assert_eq!(anchored, algorithm == Algorithm::FixedWindow, "{algorithm:?}");
        }
    }

    proptest! {
        #[test]
        fn a_divisor_divides_exactly(divisor in 1u64..=1 << 62, x in 0u64..1 << 63) {
            let by = Divisor::new(divisor);
            for x in [x, x / divisor * divisor, (x / divisor * divisor).saturating_sub(1), 0, (1 << 63) - 1] {
                prop_assert_eq!(by.divide(x), x / divisor);
            }
        }

        #[test]
        fn a_small_divisor_divides_exactly(divisor in 1u64..=5000, x in 0u64..1 << 63) {
            prop_assert_eq!(Divisor::new(divisor).divide(x), x / divisor);
        }
    }
}
