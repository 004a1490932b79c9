//! How long to wait before the next connection: soon at first, then twice as
//! long each time, and never at the same instant as other instances.

use crate::time::Nanos;

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Nanos,
    longest: Nanos,
    failures: u32,
    random: u64,
}

impl Backoff {
    pub(crate) fn new(first: Nanos, longest: Nanos, seed: u64) -> Backoff {
        Backoff { first, longest, failures: 0, random: seed }
    }

    /// Another one with the same waits.
    pub(crate) fn like(&self, seed: u64) -> Backoff {
        Backoff::new(self.first, self.longest, seed)
    }

    /// A call was answered: the next failure is the first one again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// One more failure: between half of what is due and all of it.
    pub(crate) fn next(&mut self) -> Nanos {
        let factor = 1u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let due = self.first.saturating_mul(factor).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        let half = due / 2;
        due.saturating_sub(half).saturating_add(self.draw() % half.saturating_add(1))
    }

    /// SplitMix64: any seed will do.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_differ_by_seed() {
        let (mut one, mut other) = (Backoff::new(10, 400, 1), Backoff::new(10, 400, 2));
        let mut same = 0;
        for (n, due) in [10, 20, 40, 80, 160, 320, 400, 400].into_iter().chain([400; 100]).enumerate() {
            let wait = one.next();
            assert!((due / 2..=due).contains(&wait), "{n}: {wait}");
            same += usize::from(wait == other.next());
        }
        assert!(same < 20);
        one.reset();
        assert!(one.next() <= 10);
    }
}
