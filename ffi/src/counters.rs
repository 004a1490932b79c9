//! Per-limit counters in the caller's memory.

use tollgate_core::metrics::{Counters, Snapshot};

use crate::limit::tollgate_decision;
use crate::memory::{input, output};
use crate::status::{run, tollgate_status};

/// What became of the requests that one limit was asked about. 64 bytes of
/// zeros are ready for use. Opaque; may be shared by threads and processes.
#[repr(C)]
#[derive(Debug)]
pub struct tollgate_counters {
    /// The library's.
    pub opaque: [u64; 8],
}

const _: () = assert!(size_of::<Counters>() == size_of::<tollgate_counters>());

/// Counters at one time. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tollgate_counters_snapshot {
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

/// Counts one decision; `dry_run` is 1 when it was not enforced, else 0.
/// Threads and processes may call it at the same time.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_counters_record(
    counters: *const tollgate_counters,
    decision: *const tollgate_decision,
    dry_run: u32,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (counters, decision) = unsafe { (counters_of(counters)?, input(decision)?) };
        counters.record(&decision.into(), dry_run != 0);
        Ok(())
    })
}

/// Counts a request that could not be decided. As tollgate_counters_record
/// for threads and processes.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_counters_error(counters: *const tollgate_counters) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        unsafe { counters_of(counters)? }.record_error();
        Ok(())
    })
}

/// Reads all counters, one after the other. As tollgate_counters_record for
/// threads and processes.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_counters_read(
    counters: *const tollgate_counters,
    snapshot: *mut tollgate_counters_snapshot,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (counters, out) = unsafe { (counters_of(counters)?, output(snapshot)?) };
        let Snapshot { allowed, rejected, delayed, rejected_dry_run, delayed_dry_run, errors } =
            counters.snapshot();
        out.write(tollgate_counters_snapshot {
            allowed,
            rejected,
            delayed,
            rejected_dry_run,
            delayed_dry_run,
            errors,
        });
        Ok(())
    })
}

/// # Safety
/// `counters` is NULL or leads to 64 bytes that are shared only by atomic access.
unsafe fn counters_of<'a>(counters: *const tollgate_counters) -> Result<&'a Counters, tollgate_status> {
    // SAFETY: eight atomics, for which all bytes are legal.
    unsafe { input(counters.cast::<Counters>()) }
}
