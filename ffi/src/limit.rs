//! Limits and decisions.

use core::ffi::c_char;
use core::fmt::{self, Write};

use tollgate_core::{Algorithm, Anchor, Decision, Limit, LimitError};

use crate::memory::{Outputs, input, inputs, keep, kept, output, outputs};
use crate::status::{
    TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_NULL, TOLLGATE_ERR_PARSE, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_SIZE,
    describe, run, tollgate_status,
};
use crate::text::Message;

/// Tokens refill steadily; a full bucket admits `burst` at once.
pub const TOLLGATE_TOKEN_BUCKET: u32 = 0;
/// A queue of `burst` places that drains steadily; decisions carry a delay.
pub const TOLLGATE_LEAKY_BUCKET: u32 = 1;
/// A counter that starts again with each window.
pub const TOLLGATE_FIXED_WINDOW: u32 = 2;
/// Two counters, the earlier weighted by what the sliding window covers of it.
pub const TOLLGATE_SLIDING_WINDOW: u32 = 3;
/// Every admission of the last period, one by one.
pub const TOLLGATE_SLIDING_LOG: u32 = 4;
/// Units in flight, released by their holder or by expiry.
pub const TOLLGATE_CONCURRENCY: u32 = 5;

/// Fixed windows begin at whole multiples of the period.
pub const TOLLGATE_ANCHOR_CLOCK: u32 = 0;
/// Fixed windows begin at the first request that finds none open.
pub const TOLLGATE_ANCHOR_FIRST_REQUEST: u32 = 1;

/// A limit's numbers. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_limit_config {
    /// sizeof(tollgate_limit_config).
    pub struct_size: u32,
    /// TOLLGATE_TOKEN_BUCKET to TOLLGATE_CONCURRENCY.
    pub algorithm: u32,
    /// Units per period: 1 to 4294967295.
    pub limit: u64,
    /// Nanoseconds: 1000 (1 us) to 316224000000000000 (3660 days). Of a
    /// concurrency limit: how long a hold lives that is not released.
    pub period_ns: u64,
    /// Units admitted at once: 1 to 4294967295, or 0 for `limit`. Only token
    /// and leaky buckets may have another burst than their limit, and it must
    /// refill within 2^62 ns (146 years).
    pub burst: u64,
    /// TOLLGATE_ANCHOR_CLOCK, or of a fixed window also
    /// TOLLGATE_ANCHOR_FIRST_REQUEST.
    pub anchor: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A limit, checked and prepared. Opaque: filled by tollgate_limit_init or
/// tollgate_limit_parse, then only read. It may be copied, and shared by
/// threads; a program that runs another version of the library makes its own.
/// Memory of zeros is no limit.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_limit {
    /// The library's.
    pub opaque: [u64; 16],
}

/// The answer to one request. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct tollgate_decision {
    /// The sustained allowance: units per period. 0 of a denial that no limit
    /// gave, as the store does not answer and on_store_error is deny.
    pub limit: u64,
    /// Whole units admissible now, after this request. Not to be told, nor is
    /// reset_after_ns, when the cost is above the burst: a store is not asked
    /// then, and both may be 0.
    pub remaining: u64,
    /// Nanoseconds until this cost fits, if nobody else comes: 0 when
    /// allowed, TOLLGATE_NEVER when the cost is above the burst.
    pub retry_after_ns: u64,
    /// Nanoseconds until the bucket is full, or the window empty.
    pub reset_after_ns: u64,
    /// Nanoseconds that an admitted request has to wait (leaky bucket only).
    pub delay_ns: u64,
    /// 1 when admitted and charged, 0 when denied and nothing was charged.
    pub allowed: u32,
    /// Always 0.
    pub reserved: u32,
}

impl From<Decision> for tollgate_decision {
    #[inline]
    fn from(d: Decision) -> Self {
        tollgate_decision {
            limit: d.limit,
            remaining: d.remaining,
            retry_after_ns: d.retry_after,
            reset_after_ns: d.reset_after,
            delay_ns: d.delay,
            allowed: u32::from(d.allowed),
            reserved: 0,
        }
    }
}

impl From<&tollgate_decision> for Decision {
    fn from(d: &tollgate_decision) -> Self {
        Decision {
            allowed: d.allowed != 0,
            limit: d.limit,
            remaining: d.remaining,
            retry_after: d.retry_after_ns,
            reset_after: d.reset_after_ns,
            delay: d.delay_ns,
        }
    }
}

const MARK: u64 = u64::from_be_bytes(*b"tg limit");

/// Makes a limit from numbers.
///
/// `message`: NULL, or room for `message_size` bytes that on an error, and
/// only then, receives the reason (what is wrong and what is legal) as a C
/// string, cut if need be. Errors: TOLLGATE_ERR_RANGE, TOLLGATE_ERR_ARGUMENT.
/// Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_limit_init(
    config: *const tollgate_limit_config,
    limit: *mut tollgate_limit,
    message: *mut c_char,
    message_size: usize,
) -> tollgate_status {
    let make = || {
        // SAFETY: the caller's contract.
        let (config, _) = unsafe { (input(config)?, output(limit)?) };
        from_config(config)
    };
    // SAFETY: the caller's contract.
    unsafe { made(make, limit, message, message_size) }
}

/// Reads a limit from text: "100/s", "100/s burst 200", "700/m", "1/1.5s",
/// "1/30d", "fixed_window 10/m anchor first_request", or NGINX's "30r/m".
/// Units of time: ns us ms s m h d.
///
/// `algorithm` applies where the text names none. `message` as in
/// tollgate_limit_init; it tells the byte that is wrong. Errors:
/// TOLLGATE_ERR_PARSE, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_ARGUMENT for an
/// unknown `algorithm`. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say; `text` to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_limit_parse(
    text: *const c_char,
    len: usize,
    algorithm: u32,
    limit: *mut tollgate_limit,
    message: *mut c_char,
    message_size: usize,
) -> tollgate_status {
    let make = || {
        // SAFETY: the caller's contract.
        let (text, _) = unsafe { (inputs(text.cast::<u8>(), len)?, output(limit)?) };
        let algorithm = algorithm_of(algorithm)?;
        let text = core::str::from_utf8(text)
            .map_err(|error| LimitError::Syntax { at: error.valid_up_to(), expected: "UTF-8" })?;
        Ok(Limit::parse(text, algorithm)?)
    };
    // SAFETY: the caller's contract.
    unsafe { made(make, limit, message, message_size) }
}

/// Tells a limit's numbers; the caller sets `config->struct_size` before.
/// Errors: TOLLGATE_ERR_ARGUMENT. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_limit_describe(
    limit: *const tollgate_limit,
    config: *mut tollgate_limit_config,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (limit, size) = unsafe { (limit_of(limit)?, input(config.cast_const())?.struct_size) };
        sized::<tollgate_limit_config>(size)?;
        // SAFETY: the caller's contract.
        let config = unsafe { output(config)? };
        config.write(tollgate_limit_config {
            struct_size: size,
            algorithm: limit.algorithm() as u32,
            limit: limit.limit(),
            period_ns: limit.period(),
            burst: limit.burst(),
            anchor: limit.anchor() as u32,
            reserved: 0,
        });
        Ok(())
    })
}

/// Writes a limit as a C string that tollgate_limit_parse reads back.
/// `len`: NULL, or receives the length without the final NUL. 128 bytes are
/// always enough. Errors: TOLLGATE_ERR_SIZE. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say; `text` to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_limit_format(
    limit: *const tollgate_limit,
    text: *mut c_char,
    size: usize,
    len: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (limit, room) = unsafe { (limit_of(limit)?, outputs(text.cast::<u8>(), size)?) };
        // SAFETY: the caller's contract.
        let len = if len.is_null() { None } else { Some(unsafe { output(len)? }) };
        let mut line = Line::default();
        let _ = write!(line, "{limit}"); // a limit is shorter than a line
        if !room.copy(line.terminated()) {
            return Err(if text.is_null() { TOLLGATE_ERR_NULL } else { TOLLGATE_ERR_SIZE });
        }
        if let Some(len) = len {
            len.write(line.end());
        }
        Ok(())
    })
}

/// The number of an algorithm by its name ("token_bucket", "leaky_bucket",
/// "fixed_window", "sliding_window", "sliding_log", "concurrency").
/// Errors: TOLLGATE_ERR_PARSE. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say; `text` to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_algorithm_parse(
    text: *const c_char,
    len: usize,
    algorithm: *mut u32,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (text, out) = unsafe { (inputs(text.cast::<u8>(), len)?, output(algorithm)?) };
        let name = core::str::from_utf8(text).map_err(|_| TOLLGATE_ERR_PARSE)?;
        out.write(Algorithm::from_name(name).ok_or(TOLLGATE_ERR_PARSE)? as u32);
        Ok(())
    })
}

/// The name of an algorithm; static. NULL for an unknown number. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_algorithm_str(algorithm: u32) -> *const c_char {
    let name = match algorithm {
        TOLLGATE_TOKEN_BUCKET => c"token_bucket",
        TOLLGATE_LEAKY_BUCKET => c"leaky_bucket",
        TOLLGATE_FIXED_WINDOW => c"fixed_window",
        TOLLGATE_SLIDING_WINDOW => c"sliding_window",
        TOLLGATE_SLIDING_LOG => c"sliding_log",
        TOLLGATE_CONCURRENCY => c"concurrency",
        _ => return core::ptr::null(),
    };
    name.as_ptr()
}

/// # Safety
/// `limit` is NULL or leads to a `tollgate_limit`.
#[inline]
pub(crate) unsafe fn limit_of<'a>(limit: *const tollgate_limit) -> Result<&'a Limit, tollgate_status> {
    // SAFETY: the caller's contract.
    unsafe { kept::<tollgate_limit, Limit>(limit, MARK) }
}

/// A limit as C keeps it.
pub(crate) fn keep_limit(limit: &Limit) -> tollgate_limit {
    let mut kept = tollgate_limit { opaque: [0; 16] };
    // SAFETY: the storage is ours.
    let _ = unsafe { keep(&raw mut kept, MARK, *limit) }; // neither NULL nor misaligned
    kept
}

/// Is `struct_size` that of `T`?
pub(crate) fn sized<T>(struct_size: u32) -> Result<(), tollgate_status> {
    let matches = usize::try_from(struct_size).is_ok_and(|size| size == size_of::<T>());
    matches.then_some(()).ok_or(TOLLGATE_ERR_ARGUMENT)
}

fn from_config(config: &tollgate_limit_config) -> Result<Limit, Refusal> {
    sized::<tollgate_limit_config>(config.struct_size)?;
    let algorithm = algorithm_of(config.algorithm)?;
    let anchor = match (config.anchor, config.reserved) {
        (TOLLGATE_ANCHOR_CLOCK, 0) => Anchor::Clock,
        (TOLLGATE_ANCHOR_FIRST_REQUEST, 0) => Anchor::FirstRequest,
        _ => return Err(TOLLGATE_ERR_ARGUMENT.into()),
    };
    let limit = Limit::new(algorithm, config.limit, config.period_ns)?;
    let limit = match config.burst {
        0 => limit,
        burst => limit.with_burst(burst)?,
    };
    Ok(limit.with_anchor(anchor)?)
}

fn algorithm_of(number: u32) -> Result<Algorithm, tollgate_status> {
    Algorithm::ALL.into_iter().find(|&a| a as u32 == number).ok_or(TOLLGATE_ERR_ARGUMENT)
}

/// Why no limit was made.
enum Refusal {
    /// The call is at fault.
    Call(tollgate_status),
    /// The limit itself is.
    Limit(LimitError),
}

impl From<tollgate_status> for Refusal {
    fn from(status: tollgate_status) -> Self {
        Refusal::Call(status)
    }
}

impl From<LimitError> for Refusal {
    fn from(error: LimitError) -> Self {
        Refusal::Limit(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Call(status) => f.write_str(describe(*status).to_str().unwrap_or("")),
            Refusal::Limit(error) => error.fmt(f),
        }
    }
}

impl Refusal {
    fn status(&self) -> tollgate_status {
        match self {
            Refusal::Call(status) => *status,
            Refusal::Limit(LimitError::Syntax { .. } | LimitError::Number { .. }) => TOLLGATE_ERR_PARSE,
            Refusal::Limit(_) => TOLLGATE_ERR_RANGE,
        }
    }
}

/// Keeps the limit that `make` makes, or writes why there is none.
///
/// # Safety
/// `limit` leads to a `tollgate_limit` if `make` succeeds; `message` is NULL
/// or leads to `size` bytes of room.
unsafe fn made(
    make: impl FnOnce() -> Result<Limit, Refusal>,
    limit: *mut tollgate_limit,
    message: *mut c_char,
    size: usize,
) -> tollgate_status {
    run(|| {
        let size = if message.is_null() { 0 } else { size };
        // SAFETY: the caller's contract.
        let message = unsafe { outputs(message.cast::<u8>(), size)? };
        let made = make().map_err(|refusal| explain(&refusal, &message))?;
        // SAFETY: the caller's contract.
        unsafe { keep(limit, MARK, made) }
    })
}

/// Writes the reason of a refusal, and tells its status.
fn explain(refusal: &Refusal, message: &Outputs<u8>) -> tollgate_status {
    Message::say(message, format_args!("{refusal}"));
    refusal.status()
}

/// A line of text on the stack, ended by NUL.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line { bytes: [0; 256], len: 0 }
    }
}

impl Line {
    fn end(&self) -> usize {
        self.len
    }

    fn terminated(&self) -> &[u8] {
        self.bytes.get(..=self.len).unwrap_or(&[])
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.len + 1 < self.bytes.len() {
                if let Some(place) = self.bytes.get_mut(self.len) {
                    *place = byte;
                }
                self.len += 1;
            }
        }
        Ok(())
    }
}
