//! Counts over time, in a bounded number of spans: when a log turns out to be
//! longer, the spans grow longer.

use alloc::vec::Vec;

use crate::time::Nanos;

const SECOND: u64 = 1_000_000_000;
/// Lengths of spans in seconds; each divides the next. Beyond, they double.
const LADDER: [u64; 13] =
    [1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 7 * 86_400, 28 * 86_400];

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Admitted,
    Denied,
    Unidentified,
}

/// Requests of one span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) admitted: u64,
    pub(super) denied: u64,
    pub(super) unidentified: u64,
}

#[derive(Debug)]
pub(super) struct Timeline {
    /// Seconds of one span.
    width: u64,
    /// The first span's number, counted from the epoch.
    first: u64,
    buckets: Vec<Bucket>,
    most: usize,
}

impl Timeline {
    pub(super) fn new(most: usize) -> Timeline {
        Timeline { width: 1, first: 0, buckets: Vec::new(), most: most.max(1) }
    }

    pub(super) fn count(&mut self, at: Nanos, kind: Kind) {
        let seconds = at / SECOND;
        let index = (seconds / self.width).wrapping_sub(self.first);
        let index = match usize::try_from(index).ok().filter(|&index| index < self.buckets.len()) {
            Some(index) => index,
            None => self.make_room(seconds),
        };
        if let Some(bucket) = self.buckets.get_mut(index) {
            match kind {
                Kind::Admitted => bucket.admitted += 1,
                Kind::Denied => bucket.denied += 1,
                Kind::Unidentified => bucket.unidentified += 1,
            }
        }
    }

    /// Seconds of one span.
    pub(super) fn width(&self) -> u64 {
        self.width
    }

    /// The spans, each with the second at which it begins.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (u64, &Bucket)> {
        let numbers = self.first..;
        numbers.map(|number| number * self.width).zip(&self.buckets)
    }

    /// Makes a span for that second; its place.
    #[cold]
    fn make_room(&mut self, seconds: u64) -> usize {
        loop {
            let number = seconds / self.width;
            if self.buckets.is_empty() {
                self.first = number;
                self.buckets.push(Bucket::default());
                return 0;
            }
            let first = self.first.min(number);
            let last = number.max(self.first + self.buckets.len() as u64 - 1);
            if last - first < self.most as u64 {
                let before = (self.first - first) as usize; // below `most`
                self.buckets.splice(0..0, core::iter::repeat_n(Bucket::default(), before));
                self.buckets.resize((last - first) as usize + 1, Bucket::default()); // at most `most`
                self.first = first;
                return (number - first) as usize; // below `most`
            }
            self.widen();
        }
    }

    fn widen(&mut self) {
        let next = LADDER.into_iter().find(|&width| width > self.width);
        let width = next.unwrap_or(self.width.saturating_mul(2));
        let ratio = width / self.width;
        let first = self.first / ratio;
        let mut wide: Vec<Bucket> = Vec::new();
        for (number, bucket) in (self.first..).zip(&self.buckets) {
            let index = (number / ratio - first) as usize; // below the number of old ones
            if index >= wide.len() {
                wide.resize(index + 1, Bucket::default());
            }
            if let Some(sum) = wide.get_mut(index) {
                sum.admitted += bucket.admitted;
                sum.denied += bucket.denied;
                sum.unidentified += bucket.unidentified;
            }
        }
        (self.width, self.first, self.buckets) = (width, first, wide);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_width_divides_the_next() {
        assert!(LADDER.windows(2).all(|pair| pair[1] % pair[0] == 0));
    }

    proptest! {
        #[test]
        fn all_is_counted_where_it_belongs(
            times in prop::collection::vec(prop_oneof![0..u64::MAX, 1_700_000_000 * SECOND..1_700_100_000 * SECOND], 1..50),
            most in 1usize..20,
        ) {
            let mut timeline = Timeline::new(most);
            for &at in &times {
                timeline.count(at, Kind::Admitted);
            }
            prop_assert!(timeline.buckets().count() <= most);
            let width = timeline.width();
            for (start, bucket) in timeline.buckets() {
                let within = times.iter().filter(|&&at| (start..start + width).contains(&(at / SECOND))).count();
                prop_assert_eq!(bucket.admitted, within as u64);
            }
        }
    }
}
