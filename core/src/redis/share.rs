//! Pieces of a limit that add up to it exactly: one formula for instances,
//! shards and regions.
//!
//! A [`Share`] is the part `[from, to)` of `of` equal weights. Of a limit's
//! units (the burst of a bucket; the limit of a window, a log or a concurrency
//! limit) it is given `⌊units × to / of⌋ − ⌊units × from / of⌋`. Shares that
//! lie end to end and cover all weights so get every unit, and none twice,
//! whatever the divisor. The rate of a bucket need not be rounded at all:
//! `limit × (to − from)` per `period × of` is a limit like any other.
//!
//! # Pieces of less than one unit
//!
//! A burst of 10 in 40 pieces leaves 30 without a unit. A window's piece of
//! none admits nothing. A bucket's has its part of the rate all the same: it
//! is a [`Piece::Fraction`], a bucket of burst 1 that must begin empty, so
//! that all pieces together begin with the burst. From the beginning on they
//! admit no more than the whole would have; once they have filled they may
//! admit, at once, one unit for each such piece beyond the burst. Who wants
//! the burst itself kept divides it into no more pieces than it has units.

use crate::limit::{Algorithm, Limit, LimitError, MAX_LIMIT, MAX_PERIOD, MIN_PERIOD};
use crate::time::Nanos;

pub use regions::{MAX_REGIONS, Regions, propose};

mod regions;

/// The most weights that a whole may have.
pub const MAX_PARTS: u64 = 1_000_000_000;

/// The part `[from, to)` of `of` weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    from: u64,
    to: u64,
    of: u64,
}

/// What a share of a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A limit of its own.
    Some(Limit),
    /// A bucket of less than one unit: a burst of 1 at the exact rate. It must
    /// begin empty.
    Fraction(Limit),
    /// No unit, and no rate that would ever bring one.
    Nothing,
}

/// Why there is no such share, with the legal range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The number of weights is outside its range.
    #[error("share: the weights add up to {0}, which is outside 1 to 1000000000")]
    Parts(u64),
    /// The part does not lie within the whole.
    #[error("share: the part {from} to {to} does not lie within 0 to {of}")]
    Part {
        /// Where the part begins.
        from: u64,
        /// Where it ends.
        to: u64,
        /// The weights of the whole.
        of: u64,
    },
    /// There is no part of that number.
    #[error("share: there is no part {index} among {count}; they are counted from 0")]
    Index {
        /// The number that was asked for.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// The exact rate of the piece is no legal limit.
    #[error(
        "share: the piece is {units} units per {span} ns, reduced, which no limit of 1 to 4294967295 units \
         per 1000 ns (1us) to 316224000000000000 ns (3660d) says exactly; divide by less"
    )]
    Rate {
        /// Units of the reduced rate.
        units: u128,
        /// Nanoseconds of the reduced rate.
        span: u128,
    },
    /// The piece is no legal limit for another reason.
    #[error("share: {0}")]
    Limit(#[from] LimitError),
    /// The number of regions is outside its range, or two lists of them differ in length.
    #[error("regions: {0} of them; from 1 to 64, and as many in each list")]
    Regions(usize),
    /// Two regions have one name, or a region has none.
    #[error("regions: the name of region {0} is empty or was there before")]
    Name(usize),
    /// All regions at the smallest weight need more than there is.
    #[error("regions: {count} regions of at least {floor} are more than the total of {total}")]
    Floor {
        /// How many regions.
        count: usize,
        /// The smallest weight of each.
        floor: u64,
        /// All weights together.
        total: u64,
    },
    /// The step is outside its range.
    #[error("regions: a step of {0} thousandths is outside 1 to 1000")]
    Step(u64),
}

impl Share {
    /// All of it.
    pub const WHOLE: Share = Share { from: 0, to: 1, of: 1 };

    /// The part `[from, to)` of `of` weights.
    ///
    /// # Errors
    /// Not `from <= to <= of`, or `of` outside 1 to [`MAX_PARTS`].
    pub fn new(from: u64, to: u64, of: u64) -> Result<Share, ShareError> {
        if !(1..=MAX_PARTS).contains(&of) {
            return Err(ShareError::Parts(of));
        }
        if from > to || to > of {
            return Err(ShareError::Part { from, to, of });
        }
        Ok(Share { from, to, of })
    }

    /// The part `index`, counted from 0, of `of` equal ones.
    ///
    /// # Errors
    /// `index` not below `of`, or `of` outside 1 to [`MAX_PARTS`].
    pub fn nth(index: u64, of: u64) -> Result<Share, ShareError> {
        if !(1..=MAX_PARTS).contains(&of) {
            return Err(ShareError::Parts(of));
        }
        if index >= of {
            return Err(ShareError::Index { index, count: of });
        }
        Ok(Share { from: index, to: index + 1, of }) // index is below of
    }

    /// The part `index`, counted from 0, of parts of those weights.
    ///
    /// # Errors
    /// No weight of that index, or a sum outside 1 to [`MAX_PARTS`].
    pub fn weighted(weights: &[u64], index: usize) -> Result<Share, ShareError> {
        let sum = |weights: &[u64]| weights.iter().fold(0, |sum: u64, w| sum.saturating_add(*w)); // clamped: refused
        match (weights.get(..index), weights.get(index)) {
            (Some(before), Some(weight)) => {
                let from = sum(before);
                Share::new(from, from.saturating_add(*weight), sum(weights)) // as above
            }
            _ => Err(ShareError::Index { index: index as u64, count: weights.len() as u64 }),
        }
    }

    /// Is it all?
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.from == 0 && self.to == self.of
    }

    /// Of equal parts the one `by` further on, counted in a circle. Parts that
    /// are all moved by the same number still add up; a number that differs
    /// from key to key lets another part be short of a unit each time. A share
    /// that is not one of equal parts stays as it is.
    #[must_use]
    pub const fn rotated(self, by: u64) -> Share {
        if self.to - self.from != 1 {
            return self; // to is never below from
        }
        let from = (self.from + by % self.of) % self.of; // both below MAX_PARTS
        Share { from, to: from + 1, of: self.of }
    }

    /// The part `inner` of this part: a shard of a region's share. Inner parts
    /// that add up to a whole add up to this share.
    ///
    /// # Errors
    /// The two divisors, reduced, come to more than [`MAX_PARTS`].
    pub fn nested(self, inner: Share) -> Result<Share, ShareError> {
        let width = self.to - self.from; // to is never below from
        // Each product is at most MAX_PARTS squared: below 2^60.
        let from = self.from * inner.of + width * inner.from;
        let to = self.from * inner.of + width * inner.to;
        let of = self.of * inner.of;
        let by = gcd(gcd(from.into(), to.into()), of.into()) as u64; // divides of
        Share::new(from / by, to / by, of / by)
    }

    /// Its part of so many units: over all parts of a whole they add up to
    /// `units`.
    #[must_use]
    pub fn of_units(&self, units: u64) -> u64 {
        let upto = |weights: u64| u128::from(units) * u128::from(weights) / u128::from(self.of);
        (upto(self.to) - upto(self.from)) as u64 // at most units, and to is never below from
    }

    /// Its part of a limit. A window's piece keeps the period and the anchor;
    /// a bucket's has its part of the burst and exactly its part of the rate.
    ///
    /// # Errors
    /// The exact rate, or a refill at it, is outside the
    /// [ranges](crate::limit#ranges) of a limit. It is never rounded.
    pub fn of_limit(&self, limit: &Limit) -> Result<Piece, ShareError> {
        if self.is_whole() {
            return Ok(Piece::Some(*limit));
        }
        if self.from == self.to {
            return Ok(Piece::Nothing);
        }
        let units = self.of_units(limit.burst()); // of windows the same as the limit
        if !matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            return Ok(match units {
                0 => Piece::Nothing,
                units => Piece::Some(
                    Limit::new(limit.algorithm(), units, limit.period())?
                        .with_anchor(limit.anchor())?
                        .with_unix_at_zero(limit.unix_at_zero()),
                ),
            });
        }
        let (rate, period) = self.of_rate(limit)?;
        let piece = Limit::new(limit.algorithm(), rate, period)?.with_burst(units.max(1))?;
        Ok(if units == 0 { Piece::Fraction(piece) } else { Piece::Some(piece) })
    }

    /// Its part of a rate, in words near to the limit's own: of the same
    /// period, else of the same units, else reduced.
    fn of_rate(&self, limit: &Limit) -> Result<(u64, Nanos), ShareError> {
        let (width, of) = (u128::from(self.to - self.from), u128::from(self.of));
        let (units, span) = (u128::from(limit.limit()) * width, u128::from(limit.period()) * of); // below 2^62, 2^89
        let legal = |units: u128, span: u128| {
            let units = u64::try_from(units).ok().filter(|units| (1..=MAX_LIMIT).contains(units))?;
            let span = u64::try_from(span).ok().filter(|span| (MIN_PERIOD..=MAX_PERIOD).contains(span))?;
            Some((units, span))
        };
        if let (true, Some(found)) = (units % of == 0, legal(units / of, limit.period().into())) {
            return Ok(found);
        }
        if let (true, Some(found)) = (span % width == 0, legal(limit.limit().into(), span / width)) {
            return Ok(found);
        }
        let by = gcd(units, span);
        let (units, span) = (units / by, span / by);
        let times = u128::from(MIN_PERIOD).div_ceil(span); // 1 unless the span is too short
        legal(units * times, span * times).ok_or(ShareError::Rate { units, span })
    }
}

impl Piece {
    /// The limit of the piece; none of nothing.
    #[must_use]
    pub const fn limit(&self) -> Option<&Limit> {
        match self {
            Piece::Some(limit) | Piece::Fraction(limit) => Some(limit),
            Piece::Nothing => None,
        }
    }
}

/// Of two numbers that are not both 0.
fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Anchor, MONTH};
    use crate::time::SECOND;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// An exact fraction, reduced.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Fraction(u128, u128);

    impl Fraction {
        fn new(a: u128, b: u128) -> Fraction {
            let by = gcd(a, b);
            Fraction(a / by, b / by)
        }

        fn of(limit: &Limit) -> Fraction {
            Fraction::new(limit.limit().into(), limit.period().into())
        }

        fn times(self, a: u64, b: u64) -> Fraction {
            Fraction::new(self.0 * u128::from(a), self.1 * u128::from(b))
        }
    }

    fn limits() -> impl Strategy<Value = Limit> {
        let units = prop_oneof![1u64..100, 1u64..=MAX_LIMIT];
        let periods = prop_oneof![
            prop::sample::select(std::vec![SECOND, 60 * SECOND, 3600 * SECOND, 86_400 * SECOND, MIN_PERIOD]),
            MIN_PERIOD..100 * 86_400 * SECOND,
        ];
        (prop::sample::select(&Algorithm::ALL[..]), units, periods, prop_oneof![1u64..100, 1u64..1_000_000])
            .prop_map(|(algorithm, units, period, burst)| {
                let limit = Limit::new(algorithm, units, period).unwrap();
                limit.with_burst(burst).unwrap_or(limit)
            })
    }

    fn is_bucket(limit: &Limit) -> bool {
        matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket)
    }

    /// What a piece admits at once when all pieces begin.
    fn units(piece: &Piece) -> u64 {
        match piece {
            Piece::Some(limit) => limit.burst(),
            Piece::Fraction(limit) => {
                assert_eq!(limit.burst(), 1);
                0 // it begins empty
            }
            Piece::Nothing => 0,
        }
    }

    /// Do the pieces add up to the limit; or is one refused, and rightly so?
    fn add_up(limit: &Limit, shares: &[Share]) -> Result<(), TestCaseError> {
        let mut sum = 0;
        let mut whole = true;
        for share in shares {
            let width = share.to - share.from;
            let rate = Fraction::of(limit).times(width, share.of);
            match share.of_limit(limit) {
                Ok(piece) => {
                    sum += units(&piece);
                    // Exact rates of shares that add up add up.
                    match piece.limit() {
                        Some(piece) if is_bucket(limit) => prop_assert_eq!(Fraction::of(piece), rate),
                        Some(piece) => prop_assert_eq!(
                            (piece.period(), piece.anchor(), piece.algorithm()),
                            (limit.period(), limit.anchor(), limit.algorithm())
                        ),
                        None => prop_assert!(width == 0 || !is_bucket(limit)),
                    }
                }
                Err(ShareError::Rate { units, span }) => {
                    whole = false;
                    prop_assert_eq!(Fraction(units, span), rate);
                    let times = u128::from(MIN_PERIOD).div_ceil(span);
                    let is_legal = units * times <= MAX_LIMIT.into() && span * times <= MAX_PERIOD.into();
                    prop_assert!(is_bucket(limit) && !is_legal);
                }
                Err(ShareError::Limit(LimitError::Refill { .. })) => whole = false,
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
        prop_assert!(!whole || sum == limit.burst(), "{} of {}", sum, limit.burst());
        Ok(())
    }

    #[test]
    fn pieces_are_told_in_the_words_of_the_limit_where_they_can_be() {
        let piece = |text: &str, index, of| Share::nth(index, of).unwrap().of_limit(&text.parse().unwrap());
        let limit = |text: &str| Ok(Piece::Some(text.parse().unwrap()));
        assert_eq!(piece("100/s burst 200", 0, 4), limit("25/s burst 50"));
        assert_eq!(piece("100/s burst 200", 2, 3), limit("100/3s burst 67"));
        assert_eq!(piece("100/s burst 200", 0, 3), limit("100/3s burst 66"));
        let Ok(Piece::Fraction(fraction)) = piece("10/s", 0, 40) else { panic!() };
        assert_eq!((fraction.limit(), fraction.period(), fraction.burst()), (10, 40 * SECOND, 1));
        assert_eq!(units(&piece("10/s", 3, 40).unwrap()), 1);
        assert_eq!(
            piece("1/3000d", 0, 2),
            Err(ShareError::Rate { units: 1, span: 6000 * 86_400 * u128::from(SECOND) })
        );
        // Its numbers have no factor in common, and the larger is too large.
        let fast = Limit::new(Algorithm::TokenBucket, 4_294_967_291, MIN_PERIOD).unwrap();
        assert_eq!(
            Share::new(0, 6, 7).unwrap().of_limit(&fast),
            Err(ShareError::Rate { units: 3 * 4_294_967_291, span: 3_500 })
        );
    }

    #[test]
    fn a_month_stays_a_month_of_the_same_clock() {
        let month = Limit::new(Algorithm::FixedWindow, 1_000, MONTH).unwrap();
        let month = month.with_anchor(Anchor::CalendarMonth).unwrap().with_unix_at_zero(123 * SECOND);
        let Ok(Piece::Some(piece)) = Share::nth(1, 3).unwrap().of_limit(&month) else { panic!() };
        assert_eq!((piece.limit(), piece.anchor()), (333, Anchor::CalendarMonth));
        assert_eq!(piece.unix_at_zero(), 123 * SECOND);
    }

    #[test]
    fn the_ranges_hold_at_both_ends() {
        assert_eq!(Share::nth(0, 0), Err(ShareError::Parts(0)));
        assert_eq!(Share::nth(5, 5), Err(ShareError::Index { index: 5, count: 5 }));
        assert_eq!(Share::new(0, 1, MAX_PARTS + 1), Err(ShareError::Parts(MAX_PARTS + 1)));
        assert_eq!(Share::new(2, 1, 3), Err(ShareError::Part { from: 2, to: 1, of: 3 }));
        assert_eq!(Share::new(2, 4, 3), Err(ShareError::Part { from: 2, to: 4, of: 3 }));
        assert_eq!(Share::weighted(&[0, 0], 0), Err(ShareError::Parts(0)));
        assert_eq!(Share::weighted(&[u64::MAX, 2], 1), Err(ShareError::Parts(u64::MAX)));
        assert_eq!(Share::weighted(&[1], 1), Err(ShareError::Index { index: 1, count: 1 }));
        assert!(Share::nth(0, 1).unwrap().is_whole() && Share::WHOLE.is_whole());
        assert!(Share::nth(MAX_PARTS - 1, MAX_PARTS).is_ok());
    }

    proptest! {
        #[test]
        fn equal_pieces_add_up(limit in limits(), of in prop_oneof![1u64..50, 1u64..=10_000], by in any::<u64>()) {
            let shares: Vec<_> = (0..of).map(|index| Share::nth(index, of).unwrap()).collect();
            add_up(&limit, &shares)?;
            // Rotated, they are the same pieces in another order.
            let rotated: Vec<_> = shares.iter().map(|share| share.rotated(by)).collect();
            let mut sorted = rotated.clone();
            sorted.sort_by_key(|share| share.from);
            prop_assert_eq!(&sorted, &shares);
            prop_assert_eq!(rotated[0].from, by % of);
        }

        #[test]
        fn weighted_pieces_add_up(
            limit in limits(), weights in prop::collection::vec(prop_oneof![0u64..5, 0u64..1_000_000], 1..100),
        ) {
            prop_assume!(weights.iter().sum::<u64>() > 0);
            let shares: Vec<_> = (0..weights.len()).map(|index| Share::weighted(&weights, index).unwrap()).collect();
            add_up(&limit, &shares)?;
            for (share, weight) in shares.iter().zip(&weights) {
                prop_assert_eq!(share.to - share.from, *weight);
            }
        }

        #[test]
        fn pieces_of_pieces_add_up(
            limit in limits(), weights in prop::collection::vec(0u64..1_000, 1..8), of in 1u64..64,
        ) {
            prop_assume!(weights.iter().sum::<u64>() > 0);
            let mut shares = Vec::new();
            for index in 0..weights.len() {
                let outer = Share::weighted(&weights, index).unwrap();
                let inner: Vec<_> =
                    (0..of).map(|nth| outer.nested(Share::nth(nth, of).unwrap()).unwrap()).collect();
                let sum: u64 = inner.iter().map(|share| share.of_units(limit.burst())).sum();
                prop_assert_eq!(sum, outer.of_units(limit.burst()));
                shares.extend(inner);
            }
            add_up(&limit, &shares)?;
        }

        #[test]
        fn no_piece_is_a_unit_off_its_exact_part(units in 1u64..=MAX_LIMIT, index in 0u64..10_000, of in 1u64..=10_000) {
            let share = Share::nth(index % of, of).unwrap();
            let piece = share.of_units(units);
            prop_assert!(piece == units / of || piece == units / of + 1);
        }
    }
}
