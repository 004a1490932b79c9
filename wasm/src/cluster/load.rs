//! The traffic that a simulated cluster is offered, and what became of each
//! request. All that is drawn comes from one seed.

use std::collections::VecDeque;

use tollgate_core::Nanos;
use tollgate_core::redis::sim::Random;

use super::settings::Settings;

const SECOND: f64 = 1_000_000_000.0;
/// Bursts come in the first part of each second.
const BURST: f64 = 0.1;

/// A request.
pub(super) struct Arrival {
    pub(super) at: Nanos,
    pub(super) number: u64,
    pub(super) key: usize,
    /// Any number; its remainder is an instance.
    pub(super) instance: usize,
}

/// What a key was offered, and what it admitted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OfKey {
    pub(super) offered: u64,
    pub(super) admitted: u64,
}

/// Requests, one after the other.
#[derive(Debug)]
pub(super) struct Load {
    random: Random,
    start: Nanos,
    /// When the next one comes, in nanoseconds since the start.
    next: f64,
    offered: f64,
    shape: usize,
    /// How often keys up to each are asked, added up; none: all alike.
    upto: Vec<f64>,
    keys: Vec<OfKey>,
    key_count: u32,
    hottest: usize,
    number: u64,
    /// Requests that wait for their answer; the first has the number `base`.
    waiting: VecDeque<Option<(u32, Nanos)>>,
    base: u64,
}

impl Load {
    pub(super) fn new(settings: &Settings, start: Nanos, seed: u64) -> Load {
        let mut load = Load {
            random: Random::new(seed ^ 0x10AD),
            start,
            next: 0.0,
            offered: 0.0,
            shape: 0,
            upto: Vec::new(),
            keys: Vec::new(),
            key_count: 0,
            hottest: 0,
            number: 0,
            waiting: VecDeque::new(),
            base: 0,
        };
        load.set(settings, start);
        load
    }

    /// Other traffic from now on.
    pub(super) fn set(&mut self, settings: &Settings, now: Nanos) {
        self.next = self.next.min((now - self.start) as f64 + SECOND).max((now - self.start) as f64);
        (self.offered, self.shape, self.key_count) = (settings.offered, settings.shape, settings.keys);
        let keys = settings.keys as usize;
        self.keys.resize(keys.max(self.keys.len()), OfKey::default());
        let mut sum = 0.0;
        self.upto = match settings.spread {
            0 => Vec::new(),
            // Zipf: the n-th key is asked 1/n as often as the first.
            _ => (1..=keys)
                .map(|rank| {
                    sum += 1.0 / rank as f64;
                    sum
                })
                .collect(),
        };
    }

    /// The next request that comes before `end`.
    pub(super) fn next(&mut self, end: Nanos) -> Option<Arrival> {
        let span = (end - self.start) as f64;
        if self.offered <= 0.0 {
            self.next = self.next.max(span);
            return None;
        }
        if self.next >= span {
            return None;
        }
        let at = self.start.saturating_add(self.next as u64);
        self.next += self.gap();
        let key = self.draw();
        if let Some(of) = self.keys.get_mut(key) {
            of.offered += 1;
        }
        if self.keys.get(key).map(|of| of.offered) > self.keys.get(self.hottest).map(|of| of.offered) {
            self.hottest = key;
        }
        let number = self.number;
        self.number += 1;
        self.waiting.push_back(Some((key as u32, at))); // below 10,000
        let instance = (self.random.draw() >> 33) as usize; // 31 bits
        Some(Arrival { at, number, key, instance })
    }

    /// A request has its answer; when it came.
    pub(super) fn answered(&mut self, number: u64, is_admitted: bool) -> Option<Nanos> {
        let place = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let (key, at) = self.waiting.get_mut(place)?.take()?;
        while let Some(None) = self.waiting.front() {
            self.waiting.pop_front();
            self.base += 1;
        }
        if let Some(of) = self.keys.get_mut(key as usize) {
            of.admitted += u64::from(is_admitted);
        }
        Some(at)
    }

    /// The key that was asked most.
    pub(super) fn hottest(&self) -> (usize, OfKey) {
        (self.hottest, self.keys.get(self.hottest).copied().unwrap_or_default())
    }

    /// Nanoseconds to the next request.
    fn gap(&mut self) -> f64 {
        let mean = SECOND / self.offered;
        match self.shape {
            1 => -self.fraction().ln() * mean,
            2 => {
                let next = self.next + mean * BURST;
                let begun = (self.next / SECOND).floor() * SECOND;
                if next >= begun + SECOND * BURST { begun + SECOND - self.next } else { mean * BURST }
            }
            _ => mean,
        }
    }

    fn draw(&mut self) -> usize {
        let Some(whole) = self.upto.last().copied() else {
            return self.random.below(u64::from(self.key_count)) as usize; // below 10,000
        };
        let at = self.fraction() * whole;
        self.upto.partition_point(|upto| *upto < at).min(self.upto.len() - 1)
    }

    /// Above 0, up to 1.
    fn fraction(&mut self) -> f64 {
        ((self.random.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}
