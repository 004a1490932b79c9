//! The keys that are limited most, in bounded memory: the space-saving sketch
//! (Metwally, Agrawal, El Abbadi, 2005) over denials.
//!
//! As long as there are no more keys than places, all counts are exact.
//! Beyond, a denied key that has no place takes that of the key denied least
//! and inherits its count as a possible error; every key that has more than a
//! `PLACES`-th of all denials is sure to be there.
//!
//! The core has one for processes to share, of some dozens of places; this one
//! is a single thread's, of thousands, and counts what was admitted as well.

use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;

/// How many keys are followed.
const PLACES: usize = 4096;

/// A key and its counts.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) policy: usize,
    pub(super) key: Vec<u8>,
    /// Denied, or denied in a dry run; too large by at most `error`.
    pub(super) limited: u64,
    pub(super) error: u64,
    /// Requests let through, of those since it has its place.
    pub(super) admitted: u64,
    /// Was it followed from the first request on?
    pub(super) is_exact: bool,
    fingerprint: u64,
    /// Its place in the heap.
    at: usize,
}

#[derive(Debug, Default)]
pub(super) struct Top {
    entries: Vec<Entry>,
    /// Entries by their fingerprints, which are good hashes already.
    index: HashMap<u64, usize, BuildHasherDefault<Same>>,
    /// Entries, the one limited least first.
    heap: Vec<usize>,
}

impl Top {
    /// Counts one answer.
    pub(super) fn count(
        &mut self,
        policy: usize,
        fingerprint: u64,
        key: &[u8],
        is_limited: bool,
        passed: bool,
    ) {
        let (limited, admitted) = (u64::from(is_limited), u64::from(passed));
        if let Some(&place) = self.index.get(&fingerprint) {
            if let Some(entry) = self.entries.get_mut(place) {
                entry.admitted += admitted;
                entry.limited += limited;
                if is_limited {
                    let at = entry.at;
                    self.sink(at);
                }
            }
        } else if self.entries.len() < PLACES {
            let (place, at) = (self.entries.len(), self.heap.len());
            let key = key.to_vec();
            self.entries.push(Entry {
                policy,
                key,
                limited,
                error: 0,
                admitted,
                is_exact: true,
                fingerprint,
                at,
            });
            self.index.insert(fingerprint, place);
            self.heap.push(place);
            self.rise(at);
        } else if is_limited {
            self.replace(policy, fingerprint, key, admitted);
        }
    }

    /// The entries limited most.
    pub(super) fn most(&self, count: usize) -> Vec<&Entry> {
        let mut all: Vec<_> = self.entries.iter().collect();
        let order = |entry: &&Entry| (core::cmp::Reverse(entry.limited), core::cmp::Reverse(entry.admitted));
        all.sort_by(|a, b| (order(a), a.policy, &a.key).cmp(&(order(b), b.policy, &b.key)));
        all.truncate(count);
        all
    }

    /// The key limited least gives its place.
    fn replace(&mut self, policy: usize, fingerprint: u64, key: &[u8], admitted: u64) {
        let Some(&place) = self.heap.first() else { return };
        let Some(entry) = self.entries.get_mut(place) else { return };
        self.index.remove(&entry.fingerprint);
        self.index.insert(fingerprint, place);
        entry.key.clear();
        entry.key.extend_from_slice(key);
        let error = entry.limited;
        (entry.policy, entry.fingerprint, entry.admitted) = (policy, fingerprint, admitted);
        (entry.error, entry.limited, entry.is_exact) = (error, error + 1, false);
        self.sink(0);
    }

    fn weight(&self, at: usize) -> u64 {
        let place = self.heap.get(at).copied();
        place.and_then(|place| self.entries.get(place)).map_or(u64::MAX, |entry| entry.limited)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            if let Some(entry) = self.heap.get(at).and_then(|&place| self.entries.get_mut(place)) {
                entry.at = at;
            }
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let least = if self.weight(right) < self.weight(left) { right } else { left };
            if self.weight(at) <= self.weight(least) {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.weight(at) < self.weight((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }
}

/// A hash that is the number itself.
#[derive(Debug, Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut top = Top::default();
        for n in 0..1000u64 {
            top.count(0, n % 10, &[n as u8 % 10], n % 3 == 0, n % 3 != 0);
        }
        let all = top.most(100);
        assert_eq!(all.len(), 10);
        assert_eq!(all.iter().map(|entry| entry.limited).sum::<u64>(), 334);
        assert_eq!(all.iter().map(|entry| entry.admitted).sum::<u64>(), 666);
        assert!(all.iter().all(|entry| entry.is_exact));
    }

    #[test]
    fn of_many_keys_the_heavy_are_found_and_no_count_is_too_small() {
        let mut top = Top::default();
        let mut random = 1u64;
        let mut heavy = [0u64; 8];
        for n in 0..200_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if n % 4 == 0 {
                let key = (random >> 60) as usize % 8;
                heavy[key] += 1;
                top.count(0, key as u64, &[key as u8], true, false);
            } else {
                top.count(0, random | 1 << 63, &random.to_le_bytes(), true, false);
            }
        }
        let all = top.most(8);
        assert!(top.entries.len() == PLACES);
        for entry in all {
            let truth = heavy[usize::from(entry.key[0])];
            assert_eq!(entry.key.len(), 1);
            assert!(entry.limited >= truth && entry.limited - entry.error <= truth);
        }
    }
}
