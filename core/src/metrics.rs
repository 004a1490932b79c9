//! What operators ask: how many, how fast, and who.
//!
//! - [`Counters`]: what became of the requests of one limit or policy;
//! - [`Histogram`]: how long decisions take;
//! - [`TopKeys`]: which keys are limited most;
//! - [`Prometheus`], [`Json`] and [`Report`] write them out.
//!
//! All are fixed memory that threads and processes may share, all zeros at
//! first, and changed by single atomic operations: a process killed at any
//! instruction leaves them of use. The text goes into the caller's buffer;
//! nothing allocates.

use portable_atomic::{AtomicU64, Ordering};

use crate::decision::Decision;

mod histogram;
mod report;
mod store;
mod text;
mod top;

pub use histogram::{Histogram, HistogramSnapshot};
pub use report::Report;
pub use store::{StoreEvent, StoreMetrics, StoreSnapshot};
pub use text::{Json, Kind, Needed, Prometheus};
pub use top::{Label, Top, TopKeys};

/// What became of the requests that one limit was asked about.
///
/// Each counter is read and written on its own (relaxed): a snapshot taken
/// under load may be a few requests apart from one counter to the next.
#[repr(C, align(8))]
#[derive(Debug, Default)]
pub struct Counters {
    allowed: AtomicU64,
    rejected: AtomicU64,
    delayed: AtomicU64,
    rejected_dry_run: AtomicU64,
    delayed_dry_run: AtomicU64,
    errors: AtomicU64,
    spare: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Counters>() == 64);

/// The counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Snapshot {
    /// Admitted, those that had to wait included.
    pub allowed: u64,
    /// Denied.
    pub rejected: u64,
    /// Admitted with a delay.
    pub delayed: u64,
    /// Let through by a dry run that would have been denied.
    pub rejected_dry_run: u64,
    /// Let through at once by a dry run that would have been delayed.
    pub delayed_dry_run: u64,
    /// Could not be decided.
    pub errors: u64,
}

impl Counters {
    /// Counts one decision.
    #[inline]
    pub fn record(&self, decision: &Decision, dry_run: bool) {
        let outcome = match (decision.allowed, dry_run) {
            (true, _) => &self.allowed,
            (false, false) => &self.rejected,
            (false, true) => &self.rejected_dry_run,
        };
        outcome.fetch_add(1, Ordering::Relaxed);
        if decision.delay > 0 {
            let delayed = if dry_run { &self.delayed_dry_run } else { &self.delayed };
            delayed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a request that could not be decided.
    pub fn record_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads all counters.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            allowed: read(&self.allowed),
            rejected: read(&self.rejected),
            delayed: read(&self.delayed),
            rejected_dry_run: read(&self.rejected_dry_run),
            delayed_dry_run: read(&self.delayed_dry_run),
            errors: read(&self.errors),
        }
    }
}
