//! The keyed table in the caller's memory.

use core::ffi::c_void;

use tollgate_core::key::Seed;
use tollgate_core::limiter::{self, MAX_LAYERS};
use tollgate_core::slot::Slot;
use tollgate_core::table::{AttachError, Config, ConfigError, Hold, Request, Table};
use tollgate_core::{Algorithm, Decision, NEVER};

use crate::limit::{limit_of, sized, tollgate_decision, tollgate_limit};
use crate::memory::{input, inputs, keep, kept, output, outputs, table_parts, zero};
use crate::status::{
    TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_MISMATCH, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_SIZE,
    TOLLGATE_ERR_UNSUPPORTED, run, tollgate_status,
};

/// The memory that tollgate_table_init is given holds zeros only, as fresh
/// pages of the system do: it is not cleared, and pages stay untouched until
/// keys come. Without this flag all of it is written once.
pub const TOLLGATE_MEMORY_IS_ZERO: u32 = 1;

/// What a table is to hold. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_table_config {
    /// sizeof(tollgate_table_config).
    pub struct_size: u32,
    /// 0, or TOLLGATE_MEMORY_IS_ZERO.
    pub flags: u32,
    /// Keys, 16 bytes each (32 under a sliding window): 1 to 2^40, rounded up
    /// to a multiple of 4.
    pub capacity: u64,
    /// Keys that sliding logs and concurrency limits may follow; 0 for none.
    pub rows: u64,
    /// The largest `limit` of those, 16 bytes an entry: 1 to 2^24; 0 without rows.
    pub row_entries: u64,
    /// A secret, from the system's random source. Keys that meet in one place
    /// cannot be chosen without it.
    pub seed: [u64; 2],
}

/// A process's view of a table: filled by tollgate_table_init or
/// tollgate_table_attach, and of use while the memory is mapped where it was.
/// Opaque; it may be copied, and shared by the threads of the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_table {
    /// The library's.
    pub opaque: [u64; 32],
}

/// What one request asks of one limit. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_request {
    /// The subject: any bytes, only read, and only during the call. NULL is
    /// legal when `key_len` is 0.
    pub key: *const c_void,
    /// Bytes of the key.
    pub key_len: usize,
    /// What the subject may use.
    pub limit: *const tollgate_limit,
    /// Units asked for; 0 only reads.
    pub cost: u64,
}

/// Units in flight under a concurrency limit. Plain data; pass it back as it
/// is. All zeros is a hold of nothing, which may be released.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tollgate_hold {
    /// Where it is.
    pub row: u64,
    /// Whose it is.
    pub fingerprint: u64,
    /// The instant at which it ends by itself.
    pub expires_ns: u64,
    /// How many units.
    pub units: u64,
}

/// What a table has done and holds. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tollgate_table_stats {
    /// Slots.
    pub capacity: u64,
    /// Slots that were ever used.
    pub used: u64,
    /// Buckets that were not idle when another key took their slot.
    pub evictions: u64,
    /// Rows.
    pub rows: u64,
    /// Rows that were ever used.
    pub rows_used: u64,
    /// Rows that were not idle when another key took them.
    pub row_evictions: u64,
}

const MARK: u64 = u64::from_be_bytes(*b"tg table");
const ALIGN: usize = 64;

/// The size and alignment of a table's memory.
/// Errors: TOLLGATE_ERR_RANGE, TOLLGATE_ERR_ARGUMENT. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_layout(
    config: *const tollgate_table_config,
    size: *mut usize,
    align: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (config, size, align) = unsafe { (input(config)?, output(size)?, output(align)?) };
        let needed = config_of(config)?.size().map_err(|error| refused(&error))?;
        size.write(needed);
        align.write(ALIGN);
        Ok(())
    })
}

/// The largest capacity whose layout fits in `size` bytes, beside the rows.
/// Errors: TOLLGATE_ERR_SIZE when not even four keys fit, TOLLGATE_ERR_RANGE.
/// Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_capacity(
    size: usize,
    rows: u64,
    row_entries: u64,
    capacity: *mut u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let out = unsafe { output(capacity)? };
        let config = Config::fitting(size, rows, row_entries).map_err(|error| refused(&error))?;
        out.write(config.capacity);
        Ok(())
    })
}

/// Makes an empty table in `memory`, whatever that holds; nobody else may use
/// it meanwhile. A refused init leaves it as it was. Errors:
/// TOLLGATE_ERR_ALIGN, TOLLGATE_ERR_SIZE, TOLLGATE_ERR_RANGE,
/// TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_UNSUPPORTED.
///
/// # Safety
/// `memory` leads to `size` bytes that stay the table's while it is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_init(
    memory: *mut c_void,
    size: usize,
    config: *const tollgate_table_config,
    table: *mut tollgate_table,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let config = unsafe {
            output(table)?;
            input(config)?
        };
        let wanted = config_of(config)?;
        let needed = wanted.size().map_err(|error| refused(&error))?;
        supported()?;
        // SAFETY: the caller's contract.
        let (header, lines) = unsafe {
            let is_zero = config.flags & TOLLGATE_MEMORY_IS_ZERO != 0;
            zero(memory.cast(), size, needed, is_zero)?;
            table_parts(memory.cast(), needed)?
        };
        let made = Table::init(header, lines, wanted, Seed(config.seed), true);
        let made = made.map_err(|error| refused(&error))?;
        // SAFETY: the caller's contract.
        unsafe { keep(table, MARK, made) }
    })
}

/// Finds the table that another thread or process made in `memory`.
///
/// `config`: NULL, or what the table must have been made with; its seed is
/// not compared. Errors: TOLLGATE_ERR_MISMATCH when there is no table, or
/// another one; TOLLGATE_ERR_SIZE when it is larger than `size`;
/// TOLLGATE_ERR_ALIGN, TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_UNSUPPORTED.
///
/// # Safety
/// `memory` leads to `size` bytes that are shared with other users of the
/// table only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_attach(
    memory: *mut c_void,
    size: usize,
    config: *const tollgate_table_config,
    table: *mut tollgate_table,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        unsafe { output(table)? };
        let expected = if config.is_null() {
            None
        } else {
            // SAFETY: the caller's contract.
            Some(config_of(unsafe { input(config)? })?)
        };
        // SAFETY: the caller's contract.
        let (header, lines) = unsafe { table_parts(memory.cast(), size)? };
        supported()?;
        let found = Table::attach(header, lines, expected).map_err(|error| match error {
            AttachError::Memory(ConfigError::Memory { .. }) => TOLLGATE_ERR_SIZE,
            _ => TOLLGATE_ERR_MISMATCH,
        })?;
        // SAFETY: the caller's contract.
        unsafe { keep(table, MARK, found) }
    })
}

/// Can this table hold this limit? Ask once, when the limit is configured.
/// Errors: TOLLGATE_ERR_UNSUPPORTED when a log or concurrency limit finds no
/// rows, or rows that are too short. Thread-safe.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_accepts(
    table: *const tollgate_table,
    limit: *const tollgate_limit,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, limit) = unsafe { (table_of(table)?, limit_of(limit)?) };
        table.accepts(limit).map_err(|_| TOLLGATE_ERR_UNSUPPORTED)
    })
}

/// Charges `cost` units to a key if they fit; a cost of 0 only reads.
///
/// `now_ns` is a monotonic clock, the same for all who share the table. Any
/// key, cost and time are legal; an empty key is a key. A limit that
/// tollgate_table_accepts refuses is denied for ever. A concurrency limit is
/// only read here: see tollgate_table_acquire. Lock-free, allocates nothing;
/// threads and processes may call it at the same time.
///
/// # Safety
/// `table` is a view whose memory is still mapped; `key` leads to `key_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_check(
    table: *const tollgate_table,
    key: *const c_void,
    key_len: usize,
    limit: *const tollgate_limit,
    cost: u64,
    now_ns: u64,
    decision: *mut tollgate_decision,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, key, limit, out) = unsafe {
            (table_of(table)?, inputs(key.cast::<u8>(), key_len)?, limit_of(limit)?, output(decision)?)
        };
        out.write(table.check(key, limit, cost, now_ns).into());
        Ok(())
    })
}

/// The decision that tollgate_table_check would make, charging nothing.
///
/// # Safety
/// As tollgate_table_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_peek(
    table: *const tollgate_table,
    key: *const c_void,
    key_len: usize,
    limit: *const tollgate_limit,
    cost: u64,
    now_ns: u64,
    decision: *mut tollgate_decision,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, key, limit, out) = unsafe {
            (table_of(table)?, inputs(key.cast::<u8>(), key_len)?, limit_of(limit)?, output(decision)?)
        };
        out.write(table.peek(key, limit, cost, now_ns).into());
        Ok(())
    })
}

/// Gives back `cost` units that were charged at `charged_at_ns`, the `now_ns` of
/// that check, because the request was admitted and then failed. Never above the
/// burst, and nothing that time has given back already. Does nothing under a concurrency
/// limit, whose holds are released. As tollgate_table_check for threads and
/// processes.
///
/// # Safety
/// As tollgate_table_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_refund(
    table: *const tollgate_table,
    key: *const c_void,
    key_len: usize,
    limit: *const tollgate_limit,
    cost: u64,
    charged_at_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, key, limit) =
            unsafe { (table_of(table)?, inputs(key.cast::<u8>(), key_len)?, limit_of(limit)?) };
        table.refund(key, limit, cost, charged_at_ns);
        Ok(())
    })
}

/// The most requests of one tollgate_table_check_all.
pub const TOLLGATE_MAX_LAYERS: usize = 16;

const _: () = assert!(TOLLGATE_MAX_LAYERS == MAX_LAYERS);

/// Asks 1 to TOLLGATE_MAX_LAYERS limits at once: all are charged, or none.
///
/// `decisions` has room for `count` answers. `*tightest` is the index of the
/// one that stands for all: of those that deny, the one that takes longest,
/// else the one that leaves least; the request was admitted if and only if
/// `decisions[*tightest].allowed`. `holds` has room for `count` holds, and may
/// be NULL when no limit is a concurrency limit. As tollgate_table_check for
/// threads and processes. Errors: TOLLGATE_ERR_RANGE for another count.
///
/// # Safety
/// As tollgate_table_check, for each request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_check_all(
    table: *const tollgate_table,
    requests: *const tollgate_request,
    count: usize,
    now_ns: u64,
    decisions: *mut tollgate_decision,
    holds: *mut tollgate_hold,
    tightest: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, layers) = unsafe { (table_of(table)?, Layers::read(requests, count)?) };
        // SAFETY: the caller's contract.
        let (decisions, tightest) = unsafe { (outputs(decisions, count)?, output(tightest)?) };
        let asked = layers.as_slice();
        let held = asked.iter().any(|request| request.limit.algorithm() == Algorithm::Concurrency);
        let room = if holds.is_null() && !held { 0 } else { count };
        // SAFETY: the caller's contract.
        let holds_out = unsafe { outputs(holds, room)? };
        let mut answers = [DENIED; MAX_LAYERS];
        let mut holds = [Hold::default(); MAX_LAYERS];
        let verdict = limiter::check_all(table, asked, now_ns, &mut answers, &mut holds);
        tightest.write(verdict.ok_or(TOLLGATE_ERR_RANGE)?.tightest);
        for (index, (answer, hold)) in answers.into_iter().zip(holds).take(count).enumerate() {
            decisions.write(index, answer.into());
            holds_out.write(index, hold.into());
        }
        Ok(())
    })
}

/// Gives back what tollgate_table_check_all charged when it admitted, at
/// `charged_at_ns`, the `now_ns` of that check; holds
/// are given back with tollgate_table_release. As tollgate_table_check for
/// threads and processes. Errors: TOLLGATE_ERR_RANGE for another count.
///
/// # Safety
/// As tollgate_table_check, for each request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_refund_all(
    table: *const tollgate_table,
    requests: *const tollgate_request,
    count: usize,
    charged_at_ns: u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, layers) = unsafe { (table_of(table)?, Layers::read(requests, count)?) };
        limiter::give_back(table, layers.as_slice(), &mut [], charged_at_ns);
        Ok(())
    })
}

/// Checks any number of independent requests, each as tollgate_table_check
/// would; `decisions[i]` answers `requests[i]`. Their memory is fetched ahead,
/// so that eight or more at once cost less than one by one. Nothing is
/// checked when one of them is not legal.
///
/// # Safety
/// As tollgate_table_check, for each request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_check_batch(
    table: *const tollgate_table,
    requests: *const tollgate_request,
    count: usize,
    now_ns: u64,
    decisions: *mut tollgate_decision,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, requests, out) =
            unsafe { (table_of(table)?, inputs(requests, count)?, outputs(decisions, count)?) };
        for request in requests {
            // SAFETY: the caller's contract.
            unsafe { request_of(request)? };
        }
        for (chunk, requests) in requests.chunks(MAX_LAYERS).enumerate() {
            // SAFETY: the caller's contract.
            let layers = unsafe { Layers::read(requests.as_ptr(), requests.len())? };
            let mut answers = [DENIED; MAX_LAYERS];
            table.check_batch(layers.as_slice(), now_ns, &mut answers);
            for (index, answer) in answers.into_iter().take(requests.len()).enumerate() {
                out.write(chunk * MAX_LAYERS + index, answer.into());
            }
        }
        Ok(())
    })
}

/// Takes `cost` units in flight under a concurrency limit, until they are
/// released or the limit's period is over. `*hold` is of no units when the
/// request was denied. As tollgate_table_check for threads and processes.
/// Errors: TOLLGATE_ERR_UNSUPPORTED for another algorithm, or a table without
/// long enough rows.
///
/// # Safety
/// As tollgate_table_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_acquire(
    table: *const tollgate_table,
    key: *const c_void,
    key_len: usize,
    limit: *const tollgate_limit,
    cost: u64,
    now_ns: u64,
    decision: *mut tollgate_decision,
    hold: *mut tollgate_hold,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, key, limit) =
            unsafe { (table_of(table)?, inputs(key.cast::<u8>(), key_len)?, limit_of(limit)?) };
        // SAFETY: the caller's contract.
        let (decision_out, hold_out) = unsafe { (output(decision)?, output(hold)?) };
        if limit.algorithm() != Algorithm::Concurrency || table.accepts(limit).is_err() {
            return Err(TOLLGATE_ERR_UNSUPPORTED);
        }
        let (decision, hold) = table.acquire(key, limit, cost, now_ns);
        decision_out.write(decision.into());
        hold_out.write(hold.into());
        Ok(())
    })
}

/// Gives back the units of a hold; those that have expired are gone already.
/// Release each hold once. As tollgate_table_check for threads and processes;
/// another process than the one that acquired may release.
///
/// # Safety
/// As tollgate_table_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_release(
    table: *const tollgate_table,
    hold: *const tollgate_hold,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, hold) = unsafe { (table_of(table)?, input(hold)?) };
        table.release(&hold.into());
        Ok(())
    })
}

/// Reads the table's counters, one after the other. As tollgate_table_check
/// for threads and processes.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_stats_read(
    table: *const tollgate_table,
    stats: *mut tollgate_table_stats,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, out) = unsafe { (table_of(table)?, output(stats)?) };
        let stats = table.stats();
        out.write(tollgate_table_stats {
            capacity: stats.capacity,
            used: stats.used,
            evictions: stats.evictions,
            rows: stats.rows,
            rows_used: stats.rows_used,
            row_evictions: stats.row_evictions,
        });
        Ok(())
    })
}

/// Counts the buckets that are in use at `now_ns`. Reads the whole table: for
/// a page of metrics, not for the request path. As tollgate_table_check for
/// threads and processes.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_table_live(
    table: *const tollgate_table,
    now_ns: u64,
    live: *mut u64,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, out) = unsafe { (table_of(table)?, output(live)?) };
        out.write(table.live(now_ns));
        Ok(())
    })
}

impl From<&tollgate_hold> for Hold {
    fn from(hold: &tollgate_hold) -> Self {
        Hold { row: hold.row, fingerprint: hold.fingerprint, expires: hold.expires_ns, units: hold.units }
    }
}

impl From<Hold> for tollgate_hold {
    fn from(hold: Hold) -> Self {
        tollgate_hold {
            row: hold.row,
            fingerprint: hold.fingerprint,
            expires_ns: hold.expires,
            units: hold.units,
        }
    }
}

/// What stands in an answer's place before it is given.
const DENIED: Decision =
    Decision { allowed: false, limit: 0, remaining: 0, retry_after: NEVER, reset_after: 0, delay: 0 };

/// Up to [`MAX_LAYERS`] requests, read from C.
struct Layers<'a> {
    requests: [Request<'a>; MAX_LAYERS],
    count: usize,
}

impl<'a> Layers<'a> {
    /// # Safety
    /// `requests` leads to `count` requests whose pointers lead to what their
    /// types say.
    unsafe fn read(requests: *const tollgate_request, count: usize) -> Result<Layers<'a>, tollgate_status> {
        if !(1..=MAX_LAYERS).contains(&count) {
            return Err(TOLLGATE_ERR_RANGE);
        }
        // SAFETY: the caller's contract.
        let given = unsafe { inputs(requests, count)? };
        let first = given.first().ok_or(TOLLGATE_ERR_RANGE)?;
        // SAFETY: the caller's contract.
        let mut layers = Layers { requests: [unsafe { request_of(first)? }; MAX_LAYERS], count };
        for (place, request) in layers.requests.iter_mut().zip(given) {
            // SAFETY: the caller's contract.
            *place = unsafe { request_of(request)? };
        }
        Ok(layers)
    }

    fn as_slice(&self) -> &[Request<'a>] {
        self.requests.get(..self.count).unwrap_or(&[])
    }
}

/// # Safety
/// `table` is NULL or leads to a `tollgate_table`.
#[inline]
pub(crate) unsafe fn table_of<'a>(table: *const tollgate_table) -> Result<&'a Table<'a>, tollgate_status> {
    // SAFETY: the caller's contract.
    unsafe { kept::<tollgate_table, Table<'a>>(table, MARK) }
}

/// # Safety
/// The request's pointers lead to what their types say.
unsafe fn request_of<'a>(request: &tollgate_request) -> Result<Request<'a>, tollgate_status> {
    // SAFETY: the caller's contract.
    let (key, limit) =
        unsafe { (inputs(request.key.cast::<u8>(), request.key_len)?, limit_of(request.limit)?) };
    Ok(Request { key, limit, cost: request.cost })
}

fn config_of(config: &tollgate_table_config) -> Result<Config, tollgate_status> {
    sized::<tollgate_table_config>(config.struct_size)?;
    if config.flags & !TOLLGATE_MEMORY_IS_ZERO != 0 {
        return Err(TOLLGATE_ERR_ARGUMENT);
    }
    Ok(Config { capacity: config.capacity, rows: config.rows, row_entries: config.row_entries })
}

fn refused(error: &ConfigError) -> tollgate_status {
    match error {
        ConfigError::Memory { .. } => TOLLGATE_ERR_SIZE,
        _ => TOLLGATE_ERR_RANGE,
    }
}

/// A table between processes needs the processor's own compare-and-swap.
fn supported() -> Result<(), tollgate_status> {
    if Slot::is_lock_free() { Ok(()) } else { Err(TOLLGATE_ERR_UNSUPPORTED) }
}
