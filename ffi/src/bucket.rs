//! One bucket in the caller's memory.

use core::ffi::c_void;

use tollgate_core::bucket::{Bucket, LogBucket};
use tollgate_core::slot::Slot;
use tollgate_core::table::Line;
use tollgate_core::{Algorithm, Decision, Limit};

use crate::limit::{limit_of, tollgate_decision, tollgate_limit};
use crate::memory::{self, Marked, output};
use crate::status::{
    TOLLGATE_ERR_ALIGN, TOLLGATE_ERR_MISMATCH, TOLLGATE_ERR_NULL, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_SIZE,
    TOLLGATE_ERR_UNSUPPORTED, run, tollgate_status,
};

/// One bucket: a limit and its state, in memory that the caller owns. It may
/// be shared by threads, and by processes that run the same library and map
/// the memory wherever they like.
pub struct tollgate_bucket(Marked<Body>);

#[repr(C, align(64))]
struct Body {
    kind: Kind,
}

enum Kind {
    One(Bucket),
    /// The log's lines of entries follow the body in memory.
    Log {
        limit: Limit,
        lines: u64,
    },
}

const MARK: u64 = u64::from_be_bytes(*b"tgbucket");
const ALIGN: usize = align_of::<tollgate_bucket>();

/// The size and alignment of a bucket's memory. A sliding log takes 16 bytes
/// a unit of its limit more. Errors: TOLLGATE_ERR_UNSUPPORTED for a
/// concurrency limit, which needs a table. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_bucket_layout(
    limit: *const tollgate_limit,
    size: *mut usize,
    align: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (limit, size, align) = unsafe { (limit_of(limit)?, output(size)?, output(align)?) };
        let needed = needed(limit)?;
        size.write(needed);
        align.write(ALIGN);
        Ok(())
    })
}

/// Makes a full bucket in `memory`, which nobody else may use meanwhile.
/// Errors: TOLLGATE_ERR_ALIGN, TOLLGATE_ERR_SIZE, TOLLGATE_ERR_UNSUPPORTED.
///
/// # Safety
/// `memory` leads to `size` bytes that stay the bucket's while it is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_bucket_init(
    memory: *mut c_void,
    size: usize,
    limit: *const tollgate_limit,
    bucket: *mut *mut tollgate_bucket,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (limit, bucket) = unsafe { (limit_of(limit)?, output(bucket)?) };
        let place = place(memory)?;
        if size < needed(limit)? {
            return Err(TOLLGATE_ERR_SIZE);
        }
        let kind = match limit.algorithm() {
            Algorithm::SlidingLog => {
                let rest = memory.cast::<u8>().wrapping_add(size_of::<tollgate_bucket>());
                // SAFETY: `size` covers the log's lines, and the memory is the caller's alone.
                unsafe { rest.write_bytes(0, log_size(LogBucket::lines(limit))?) };
                Kind::Log { limit: *limit, lines: LogBucket::lines(limit) }
            }
            _ => Kind::One(Bucket::new(*limit).map_err(|_| TOLLGATE_ERR_UNSUPPORTED)?),
        };
        // SAFETY: aligned, large enough, the caller's alone.
        unsafe { place.write(tollgate_bucket(Marked::new(MARK, Body { kind }))) };
        bucket.write(place);
        Ok(())
    })
}

/// Finds the bucket that another thread or process made in `memory`.
/// Errors: TOLLGATE_ERR_MISMATCH when there is none, TOLLGATE_ERR_ALIGN,
/// TOLLGATE_ERR_SIZE.
///
/// # Safety
/// `memory` leads to `size` bytes: zeros, or a bucket of the same library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_bucket_attach(
    memory: *mut c_void,
    size: usize,
    bucket: *mut *mut tollgate_bucket,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let bucket = unsafe { output(bucket)? };
        let place = place(memory)?;
        if size < size_of::<tollgate_bucket>() {
            return Err(TOLLGATE_ERR_SIZE);
        }
        // SAFETY: aligned and large enough; see `body`.
        let body = unsafe { body(place.cast_const()) }.map_err(|_| TOLLGATE_ERR_MISMATCH)?;
        if let Kind::Log { lines, .. } = body.kind
            && size < size_of::<tollgate_bucket>().saturating_add(log_size(lines)?)
        {
            return Err(TOLLGATE_ERR_SIZE);
        }
        bucket.write(place);
        Ok(())
    })
}

/// Charges `cost` units if they fit; a cost of 0 only reads. `now_ns` is a
/// monotonic clock, the same for all who share the bucket. Any cost and time
/// are legal. Lock-free, allocates nothing; threads and processes may call it
/// at the same time.
///
/// # Safety
/// `bucket` comes from init or attach and its memory is still there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_bucket_check(
    bucket: *const tollgate_bucket,
    cost: u64,
    now_ns: u64,
    decision: *mut tollgate_decision,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        unsafe { decide(bucket, decision, |b| b.check(cost, now_ns), |log| log.check(cost, now_ns)) }
    })
}

/// The decision that tollgate_bucket_check would make, charging nothing.
///
/// # Safety
/// As tollgate_bucket_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_bucket_peek(
    bucket: *const tollgate_bucket,
    cost: u64,
    now_ns: u64,
    decision: *mut tollgate_decision,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        unsafe { decide(bucket, decision, |b| b.peek(cost, now_ns), |log| log.peek(cost, now_ns)) }
    })
}

/// Gives back `cost` units that were charged at `charged_at_ns`, the `now_ns` of
/// that check, because the request was admitted and then failed. Never above the
/// burst, and nothing that time has given back already. As tollgate_bucket_check for threads
/// and processes.
///
/// # Safety
/// As tollgate_bucket_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_bucket_refund(
    bucket: *const tollgate_bucket,
    cost: u64,
    charged_at_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        match &unsafe { body(bucket)? }.kind {
            Kind::One(bucket) => bucket.refund(cost, charged_at_ns),
            // SAFETY: the caller's contract.
            Kind::Log { limit, lines } => unsafe { log(bucket, limit, *lines)? }.refund(cost, charged_at_ns),
        }
        Ok(())
    })
}

/// Changes the limit: tokens already spent stay spent. Nobody else may use
/// the bucket meanwhile. A log can only be changed to another log of at most
/// the entries it was laid out with. Errors: TOLLGATE_ERR_UNSUPPORTED.
///
/// # Safety
/// As tollgate_bucket_check, and the bucket is the caller's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_bucket_set_limit(
    bucket: *mut tollgate_bucket,
    limit: *const tollgate_limit,
    now_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let limit = unsafe { limit_of(limit)? };
        // SAFETY: the caller's contract.
        unsafe { body(bucket.cast_const())? };
        // SAFETY: it is a bucket, as `body` found, and the caller's alone.
        let body = unsafe { (*bucket).0.value_mut() };
        match &mut body.kind {
            Kind::One(one) => one.set_limit(*limit, now_ns).map_err(|_| TOLLGATE_ERR_UNSUPPORTED),
            Kind::Log { limit: old, lines } => {
                let same = limit.algorithm() == Algorithm::SlidingLog;
                if !same || LogBucket::lines(limit) > *lines {
                    return Err(TOLLGATE_ERR_UNSUPPORTED);
                }
                *old = *limit; // the ring keeps its length, so the entries keep their places
                Ok(())
            }
        }
    })
}

/// # Safety
/// `bucket` is NULL or comes from init or attach.
unsafe fn decide(
    bucket: *const tollgate_bucket,
    decision: *mut tollgate_decision,
    one: impl FnOnce(&Bucket) -> Decision,
    many: impl FnOnce(&LogBucket<'_>) -> Decision,
) -> Result<(), tollgate_status> {
    // SAFETY: the caller's contract.
    let (body, decision) = unsafe { (body(bucket)?, output(decision)?) };
    let answer = match &body.kind {
        Kind::One(bucket) => one(bucket),
        // SAFETY: the caller's contract.
        Kind::Log { limit, lines } => many(&unsafe { log(bucket, limit, *lines)? }),
    };
    decision.write(answer.into());
    Ok(())
}

/// # Safety
/// `bucket` is NULL or leads to a bucket's memory.
unsafe fn body<'a>(bucket: *const tollgate_bucket) -> Result<&'a Body, tollgate_status> {
    // SAFETY: the caller's contract; a `tollgate_bucket` is a marked body.
    unsafe { memory::kept::<tollgate_bucket, Body>(bucket, MARK) }
}

/// # Safety
/// `bucket` is a sliding log that was made with that many lines.
unsafe fn log<'m>(
    bucket: *const tollgate_bucket,
    limit: &Limit,
    lines: u64,
) -> Result<LogBucket<'m>, tollgate_status> {
    let rest = bucket.cast::<u8>().wrapping_add(size_of::<tollgate_bucket>()).cast_mut();
    let count = usize::try_from(lines).map_err(|_| TOLLGATE_ERR_SIZE)?;
    // SAFETY: the log's lines follow the body.
    let lines = unsafe { memory::lines(rest, count)? };
    LogBucket::new(*limit, lines).map_err(|_| TOLLGATE_ERR_UNSUPPORTED)
}

fn place(memory: *mut c_void) -> Result<*mut tollgate_bucket, tollgate_status> {
    let place = memory.cast::<tollgate_bucket>();
    if place.is_null() {
        Err(TOLLGATE_ERR_NULL)
    } else if !place.is_aligned() {
        Err(TOLLGATE_ERR_ALIGN)
    } else {
        Ok(place)
    }
}

fn log_size(lines: u64) -> Result<usize, tollgate_status> {
    let lines = usize::try_from(lines).map_err(|_| TOLLGATE_ERR_RANGE)?;
    lines.checked_mul(size_of::<Line>()).ok_or(TOLLGATE_ERR_RANGE)
}

fn needed(limit: &Limit) -> Result<usize, tollgate_status> {
    if limit.algorithm() == Algorithm::Concurrency || !Slot::is_lock_free() {
        return Err(TOLLGATE_ERR_UNSUPPORTED);
    }
    let is_log = limit.algorithm() == Algorithm::SlidingLog;
    let log = if is_log { log_size(LogBucket::lines(limit))? } else { 0 };
    size_of::<tollgate_bucket>().checked_add(log).ok_or(TOLLGATE_ERR_RANGE)
}
