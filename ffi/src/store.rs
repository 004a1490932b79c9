//! What a store that machines share was asked, and how it went.

use tollgate_core::metrics::{StoreMetrics, StoreSnapshot};

use crate::memory::{input, output};
use crate::observe::{snapshot_of, tollgate_histogram_snapshot};
use crate::status::{run, tollgate_status};

/// Counters of one store, in memory that the caller owns: as
/// tollgate_store_metrics_layout says, zeros are ready for use. May be shared
/// by threads, and by processes that run the same library.
pub struct tollgate_store_metrics(StoreMetrics);

/// The counters at one time. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_store_snapshot {
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
    /// How often a circuit breaker opened.
    pub opened: u64,
    /// Breakers that are open or on probe now.
    pub open: u64,
    /// Requests that wait for an answer now.
    pub waiting: u64,
    /// Connections that were made.
    pub connected: u64,
    /// How long answers took, from the call to the reply.
    pub latency: tollgate_histogram_snapshot,
}

/// The size and alignment of the memory of a tollgate_store_metrics.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_store_metrics_layout(
    size: *mut usize,
    align: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (size, align) = unsafe { (output(size)?, output(align)?) };
        size.write(size_of::<tollgate_store_metrics>());
        align.write(align_of::<tollgate_store_metrics>());
        Ok(())
    })
}

/// Reads all counters, one after the other. Threads and processes may call it
/// at the same time.
///
/// # Safety
/// `metrics` leads to memory as tollgate_store_metrics_layout says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_store_metrics_read(
    metrics: *const tollgate_store_metrics,
    snapshot: *mut tollgate_store_snapshot,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (metrics, out) = unsafe { (store_metrics_of(metrics)?, output(snapshot)?) };
        out.write(store_snapshot_of(metrics));
        Ok(())
    })
}

pub(crate) fn store_snapshot_of(metrics: &StoreMetrics) -> tollgate_store_snapshot {
    let StoreSnapshot {
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
    } = metrics.snapshot();
    tollgate_store_snapshot {
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
        latency: snapshot_of(&metrics.latency),
    }
}

/// # Safety
/// `metrics` is NULL or leads to memory that is shared only by atomic access.
pub(crate) unsafe fn store_metrics_of<'a>(
    metrics: *const tollgate_store_metrics,
) -> Result<&'a StoreMetrics, tollgate_status> {
    // SAFETY: atomics, for which all bytes are legal.
    Ok(&unsafe { input(metrics)? }.0)
}
