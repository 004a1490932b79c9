//! What the store that machines share was asked, and how it went.

use portable_atomic::{AtomicU64, Ordering};

use super::Histogram;

/// Counters of one store, for threads and processes to share; all zeros at
/// first. Each is read and written on its own (relaxed), and only grows, but
/// for [`open`](StoreSnapshot::open) and [`waiting`](StoreSnapshot::waiting).
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct StoreMetrics {
    counts: [AtomicU64; COUNTS],
    /// How long answers took, from the call to the reply.
    pub latency: Histogram,
}

/// What is counted, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum StoreEvent {
    /// A call was sent.
    Call = 0,
    /// A call was answered.
    Reply = 1,
    /// A policy was answered from tokens fetched ahead.
    LeaseHit = 2,
    /// A policy was answered from an earlier denial.
    DenialHit = 3,
    /// A call to fetch more before anyone has to wait.
    Prefetch = 4,
    /// A call that gave back what was not used.
    GiveBack = 5,
    /// A call that was not answered in time.
    Timeout = 6,
    /// A call that failed because of the store or the connection.
    Failure = 7,
    /// A call that failed because of what its key holds.
    KeyFailure = 8,
    /// A policy was answered on this machine, as the store was away.
    FallbackLocal = 9,
    /// A policy admitted without counting, as the store was away.
    FallbackAllow = 10,
    /// A policy denied, as the store was away.
    FallbackDeny = 11,
    /// The breaker opened.
    Opened = 12,
    /// Breakers that are open or on probe now.
    Open = 13,
    /// Requests that wait for an answer now.
    Waiting = 14,
    /// A connection was made.
    Connected = 15,
}

const COUNTS: usize = 16;

/// The counters at one time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSnapshot {
    /// Calls that were sent.
    pub calls: u64,
    /// Calls that were answered.
    pub replies: u64,
    /// Policies that were answered from tokens fetched ahead.
    pub lease_hits: u64,
    /// Policies that were answered from an earlier denial.
    pub denial_hits: u64,
    /// Calls to fetch more before anyone has to wait.
    pub prefetches: u64,
    /// Calls that gave back what was not used.
    pub give_backs: u64,
    /// Calls that were not answered in time.
    pub timeouts: u64,
    /// Calls that failed because of the store or the connection.
    pub failures: u64,
    /// Calls that failed because of what their key holds.
    pub key_failures: u64,
    /// Policies that were answered on this machine, as the store was away.
    pub fallback_local: u64,
    /// Policies that admitted without counting, as the store was away.
    pub fallback_allow: u64,
    /// Policies that denied, as the store was away.
    pub fallback_deny: u64,
    /// How often a breaker opened.
    pub opened: u64,
    /// Breakers that are open or on probe now.
    pub open: u64,
    /// Requests that wait for an answer now.
    pub waiting: u64,
    /// Connections that were made.
    pub connected: u64,
}

impl StoreMetrics {
    /// Counts one.
    #[inline]
    pub fn count(&self, event: StoreEvent) {
        if let Some(count) = self.counts.get(event as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one less: of what is counted while it lasts.
    pub fn uncount(&self, event: StoreEvent) {
        if let Some(count) = self.counts.get(event as usize) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads one counter.
    #[must_use]
    pub fn read(&self, event: StoreEvent) -> u64 {
        self.counts.get(event as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Reads all counters.
    #[must_use]
    pub fn snapshot(&self) -> StoreSnapshot {
        let [
            calls,
            replies,
            lease_hits,
            denial_hits,
            prefetches,
            give_backs,
            timeouts,
            failures,
            key_failures,
            fallback_local,
            fallback_allow,
            fallback_deny,
            opened,
            open,
            waiting,
            connected,
        ] = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        StoreSnapshot {
            calls,
            replies,
            lease_hits,
            denial_hits,
            prefetches,
            give_backs,
            timeouts,
            failures,
            key_failures,
            fallback_local,
            fallback_allow,
            fallback_deny,
            opened,
            open,
            waiting,
            connected,
        }
    }
}
