//! How fast decisions are, and which keys are limited most.

use core::ffi::c_char;

use tollgate_core::metrics::{Histogram, Top, TopKeys};
use tollgate_core::policy::{self, KeyRoom};

use crate::memory::{input, output, outputs};
use crate::rules::{
    TOLLGATE_MAX_HEADERS, TOLLGATE_NAME_SIZE, TOLLGATE_OUTCOME_DENIED, attributes_fit, attributes_of, c_name,
    rules_of, tollgate_answer, tollgate_attributes, tollgate_rules,
};
use crate::status::{run, tollgate_status};
use crate::table::{table_of, tollgate_table};

/// Powers of two that a histogram's snapshot tells: 2^0 to 2^36 ns (69 s).
pub const TOLLGATE_HISTOGRAM_POWERS: usize = 37;
/// The most keys of a tollgate_top.
pub const TOLLGATE_TOP_KEYS: usize = 64;
/// Room for what a key is, with its final NUL.
pub const TOLLGATE_LABEL_SIZE: usize = 129;

/// Counts of spans of time, in memory that the caller owns: as
/// tollgate_histogram_layout says, zeros are ready for use. May be shared by
/// threads, and by processes that run the same library.
pub struct tollgate_histogram(Histogram);

/// A histogram at one time. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_histogram_snapshot {
    /// Spans that were counted.
    pub count: u64,
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
    /// Half of them are no longer than this, which is at most an eighth too
    /// long; 0 without any.
    pub p50_ns: u64,
    /// As p50_ns, for 99 of 100.
    pub p99_ns: u64,
    /// As p50_ns, for 999 of 1000.
    pub p999_ns: u64,
    /// `at_most[i]` of them were at most 2^i nanoseconds; exact.
    pub at_most: [u64; TOLLGATE_HISTOGRAM_POWERS],
}

/// The keys that are limited most, by the space-saving algorithm of Metwally,
/// Agrawal and El Abbadi: fixed memory that the caller owns, as
/// tollgate_top_layout says; zeros are ready for use. May be shared by
/// threads, and by processes that run the same library.
pub struct tollgate_top(TopKeys<TOLLGATE_TOP_KEYS>);

/// One of the keys that are limited most. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_top_key {
    /// How often it was denied, or more.
    pub count: u64,
    /// At most so many of them are not its own.
    pub error: u64,
    /// The policy, a C string.
    pub policy: [c_char; TOLLGATE_NAME_SIZE],
    /// What it is ("user=alice,ip=192.0.2.1"), a C string of printable UTF-8;
    /// a credential is told by the first bytes of its SHA-256.
    pub key: [c_char; TOLLGATE_LABEL_SIZE],
    /// 0.
    pub reserved: [u8; 6],
}

/// The size and alignment of a histogram's memory.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_histogram_layout(size: *mut usize, align: *mut usize) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (size, align) = unsafe { (output(size)?, output(align)?) };
        size.write(size_of::<tollgate_histogram>());
        align.write(align_of::<tollgate_histogram>());
        Ok(())
    })
}

/// Counts one span, in nanoseconds. Threads and processes may call it at the
/// same time.
///
/// # Safety
/// `histogram` leads to memory as tollgate_histogram_layout says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_histogram_record(
    histogram: *const tollgate_histogram,
    span_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract; atomics, for which all bytes are legal.
        unsafe { input(histogram)? }.0.record(span_ns);
        Ok(())
    })
}

/// Reads all counters. As tollgate_histogram_record for threads and processes.
///
/// # Safety
/// As tollgate_histogram_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_histogram_read(
    histogram: *const tollgate_histogram,
    snapshot: *mut tollgate_histogram_snapshot,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract; atomics, for which all bytes are legal.
        let (histogram, out) = unsafe { (input(histogram)?, output(snapshot)?) };
        out.write(snapshot_of(&histogram.0));
        Ok(())
    })
}

pub(crate) fn snapshot_of(histogram: &Histogram) -> tollgate_histogram_snapshot {
    let read = histogram.snapshot();
    let mut powers = 0..;
    tollgate_histogram_snapshot {
        count: read.count(),
        sum_ns: read.sum(),
        p50_ns: read.quantile(500),
        p99_ns: read.quantile(990),
        p999_ns: read.quantile(999),
        at_most: [(); TOLLGATE_HISTOGRAM_POWERS]
            .map(|()| powers.next().map_or(0, |power| read.at_most(power))),
    }
}

/// The size and alignment of the memory of a tollgate_top.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_top_layout(size: *mut usize, align: *mut usize) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (size, align) = unsafe { (output(size)?, output(align)?) };
        size.write(size_of::<tollgate_top>());
        align.write(align_of::<tollgate_top>());
        Ok(())
    })
}

/// Counts the keys of a request that tollgate_rules_check denied: call it for
/// denials only. The keys of all limits that deny now are counted. Threads and
/// processes may call it at the same time. Errors: as tollgate_rules_check.
///
/// # Safety
/// As tollgate_rules_check; `top` leads to memory as tollgate_top_layout says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_top_record(
    top: *const tollgate_top,
    rules: *const tollgate_rules,
    table: *const tollgate_table,
    attributes: *const tollgate_attributes,
    now_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (top, rules, table, given) =
            unsafe { (input(top)?, rules_of(rules)?, table_of(table)?, input(attributes)?) };
        attributes_fit(given, rules)?;
        let mut values = [None; TOLLGATE_MAX_HEADERS];
        // SAFETY: the caller's contract.
        let attributes = unsafe { attributes_of(given, &mut values)? };
        let mut room = KeyRoom::new();
        let Ok(selection) = rules.select(&attributes, &mut room) else {
            return Ok(()); // who does not say who they are is nobody
        };
        for layer in selection.layers() {
            if !table.peek(layer.key(), layer.limit, layer.cost, now_ns).allowed {
                top.0.record(table.fingerprint(layer.key()), || policy::label(rules, layer));
            }
        }
        Ok(())
    })
}

/// As tollgate_top_record, when the answer is at hand: the keys of those limits
/// are counted that denied in `answer`, wherever they are counted. The
/// attributes are those that were asked about.
///
/// # Safety
/// As tollgate_top_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_top_record_answer(
    top: *const tollgate_top,
    rules: *const tollgate_rules,
    table: *const tollgate_table,
    attributes: *const tollgate_attributes,
    answer: *const tollgate_answer,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (top, rules, table) = unsafe { (input(top)?, rules_of(rules)?, table_of(table)?) };
        // SAFETY: the caller's contract.
        let (given, answer) = unsafe { (input(attributes)?, input(answer)?) };
        attributes_fit(given, rules)?;
        let mut values = [None; TOLLGATE_MAX_HEADERS];
        // SAFETY: the caller's contract.
        let attributes = unsafe { attributes_of(given, &mut values)? };
        let mut room = KeyRoom::new();
        let Ok(selection) = rules.select(&attributes, &mut room) else { return Ok(()) };
        let told = answer.layers.iter().take(answer.count as usize);
        for (layer, _) in
            selection.layers().zip(told).filter(|(_, told)| told.outcome == TOLLGATE_OUTCOME_DENIED)
        {
            top.0.record(table.fingerprint(layer.key()), || policy::label(rules, layer));
        }
        Ok(())
    })
}

/// Reads the keys that were limited most, most first. `keys` has room for
/// `size`; `*count` tells how many were written. As tollgate_top_record for
/// threads and processes.
///
/// # Safety
/// The pointers lead to what their types say; `keys` to room for `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_top_read(
    top: *const tollgate_top,
    keys: *mut tollgate_top_key,
    size: usize,
    count: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (top, room, count) = unsafe { (input(top)?, outputs(keys, size)?, output(count)?) };
        let mut found = [Top::default(); TOLLGATE_TOP_KEYS];
        let read = top.0.top(found.get_mut(..size.min(TOLLGATE_TOP_KEYS)).unwrap_or(&mut []));
        for (index, key) in found.iter().take(read).enumerate() {
            let mut label = [0; TOLLGATE_LABEL_SIZE];
            for (room, byte) in label.iter_mut().take(TOLLGATE_LABEL_SIZE - 1).zip(key.label.rest().bytes()) {
                *room = byte as c_char;
            }
            let policy = c_name(key.label.name());
            room.write(
                index,
                tollgate_top_key { count: key.count, error: key.error, policy, key: label, reserved: [0; 6] },
            );
        }
        count.write(read);
        Ok(())
    })
}
