//! How long decisions take: a histogram whose buckets grow with what they hold.
//!
//! Each power of two is cut into eight equal buckets (as in HdrHistogram), so
//! a value is known to within an eighth of itself from one nanosecond to a
//! minute, in 273 counters. Longer ones are counted in the last bucket.

use core::array;

use portable_atomic::{AtomicU64, Ordering};

use crate::time::Nanos;

/// Buckets of one power of two, as a power of two.
const FINE: u32 = 3;
/// Values up to 2^36 ns, 69 s, are told apart.
const LARGEST: u32 = 36;
const BUCKETS: usize = (1 << FINE) * (LARGEST - FINE + 1) as usize + 1;

/// Counts of spans of time, for threads and processes to share. All zeros at
/// first. Each counter is read and written on its own (relaxed).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Histogram {
    /// Of all spans, in nanoseconds; wraps after 584 years of them.
    sum: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

const _: () = assert!(size_of::<Histogram>() == 2240);

/// A histogram at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    sum: u64,
    buckets: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { sum: AtomicU64::new(0), buckets: array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Histogram {
    /// Counts a span.
    #[inline]
    pub fn record(&self, span: Nanos) {
        if let Some(bucket) = self.buckets.get(place(span)) {
            bucket.fetch_add(1, Ordering::Relaxed);
            self.sum.fetch_add(span, Ordering::Relaxed);
        }
    }

    /// Reads all counters.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            sum: self.sum.load(Ordering::Relaxed),
            buckets: array::from_fn(|i| self.buckets.get(i).map_or(0, |b| b.load(Ordering::Relaxed))),
        }
    }
}

impl HistogramSnapshot {
    /// How many spans were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// All spans together.
    #[must_use]
    pub fn sum(&self) -> Nanos {
        self.sum
    }

    /// The span that `thousandths` of all do not exceed, at most an eighth too
    /// long; 0 without any, [`u64::MAX`] if it is longer than 2^36 ns.
    #[must_use]
    pub fn quantile(&self, thousandths: u64) -> Nanos {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let rank = (u128::from(count) * u128::from(thousandths.min(1000))).div_ceil(1000).max(1);
        let mut seen = 0;
        for (index, &in_bucket) in self.buckets.iter().enumerate() {
            seen += u128::from(in_bucket);
            if seen >= rank {
                return longest(index);
            }
        }
        u64::MAX
    }

    /// How many spans were at most 2^`power` nanoseconds; exact.
    #[must_use]
    pub fn at_most(&self, power: u32) -> u64 {
        let until = place(1u64.checked_shl(power).unwrap_or(u64::MAX));
        self.buckets.iter().take(until + 1).fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// The bucket of a span. A power of two is the last value of its bucket, as
/// the bounds of a Prometheus histogram ask.
#[inline]
fn place(span: Nanos) -> usize {
    let before = span.saturating_sub(1);
    let power = 63 - (before | 1).leading_zeros();
    if power < FINE {
        return before as usize; // below 8
    }
    let row = (power - FINE + 1) as usize;
    let fine = (before >> (power - FINE)) as usize & ((1 << FINE) - 1);
    ((row << FINE) + fine).min(BUCKETS - 1)
}

/// The longest span of a bucket.
fn longest(bucket: usize) -> Nanos {
    if bucket + 1 >= BUCKETS {
        return u64::MAX;
    }
    let (row, fine) = (bucket >> FINE, bucket & ((1 << FINE) - 1));
    match row {
        0 => fine as u64 + 1,
        _ => ((1 << FINE) + fine as u64 + 1) << (row - 1), // at most 2^36
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn buckets_follow_one_another() {
        let mut last = 0;
        for bucket in 0..BUCKETS - 1 {
            let longest = longest(bucket);
            assert!(longest > last);
            assert_eq!((place(longest), place(longest + 1)), (bucket, bucket + 1));
            assert_eq!(place(last + 1), bucket);
            last = longest;
        }
        assert_eq!((last, place(u64::MAX), place(0)), (1 << LARGEST, BUCKETS - 1, 0));
    }

    proptest! {
        #[test]
        fn quantiles_are_at_most_an_eighth_too_long(
            mut spans in prop::collection::vec((1u64..1 << 36, 0u32..36).prop_map(|(n, by)| (n >> by).max(1)), 1..300),
            thousandths in 1u64..=1000,
        ) {
            let histogram = Histogram::default();
            spans.iter().for_each(|span| histogram.record(*span));
            let snapshot = histogram.snapshot();
            spans.sort_unstable();
            let exact = spans[(spans.len() as u64 * thousandths).div_ceil(1000) as usize - 1];
            let told = snapshot.quantile(thousandths);
            prop_assert!(told >= exact && told - exact <= exact / 8, "{told} for {exact}");
            prop_assert_eq!(snapshot.count(), spans.len() as u64);
            prop_assert_eq!(snapshot.sum(), spans.iter().sum::<u64>());
            for power in 0..=36 {
                let exact = spans.iter().filter(|span| **span <= 1 << power).count();
                prop_assert_eq!(snapshot.at_most(power), exact as u64);
            }
        }
    }

    #[test]
    fn threads_lose_nothing() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|n| {
                    scope.spawn({
                        let histogram = &histogram;
                        move || (0..10_000).for_each(|i| histogram.record(i * n))
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(histogram.snapshot().count(), 40_000);
    }
}
