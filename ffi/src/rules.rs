//! The rules file: compiled off the request path, asked on it.

use core::ffi::{c_char, c_void};
use core::fmt::Write;
use core::net::IpAddr;

use tollgate_core::Limit;
use tollgate_core::key::Seed;
use tollgate_core::limiter::MAX_LAYERS;
use tollgate_core::policy::{self, Answer, Attributes, KeyRoom, Missing, Outcome, Rules, Selection};
use tollgate_core::table::{Hold, Table};

use crate::limit::{keep_limit, sized, tollgate_decision, tollgate_limit};
use crate::memory::{self, Marked, Output, Outputs, input, inputs, output, outputs};
use crate::status::{
    TOLLGATE_ERR_ARGUMENT, TOLLGATE_ERR_NULL, TOLLGATE_ERR_PARSE, TOLLGATE_ERR_RANGE, TOLLGATE_ERR_SIZE,
    TOLLGATE_ERR_UNSUPPORTED, run, tollgate_status,
};
use crate::table::{TOLLGATE_MAX_LAYERS, table_of, tollgate_hold, tollgate_table};
use crate::text::Message;

/// The longest name of a policy or header field, with its final NUL.
pub const TOLLGATE_NAME_SIZE: usize = 65;
/// The most header fields that a rules document may name.
pub const TOLLGATE_MAX_HEADERS: usize = 64;
/// Always enough room for the line of tollgate_rules_notice.
pub const TOLLGATE_NOTICE_SIZE: usize = 160;

/// It admitted, and was charged.
pub const TOLLGATE_OUTCOME_ADMITTED: u32 = 0;
/// It denied.
pub const TOLLGATE_OUTCOME_DENIED: u32 = 1;
/// It would have admitted, but another denied: nothing was charged.
pub const TOLLGATE_OUTCOME_SPARED: u32 = 2;
/// In dry run: it would have denied.
pub const TOLLGATE_OUTCOME_WOULD_DENY: u32 = 3;

/// No policy whose limits the store counts had a say.
pub const TOLLGATE_SOURCE_LOCAL: u8 = 0;
/// The store's policies were paid from tokens that were fetched ahead.
pub const TOLLGATE_SOURCE_LEASE: u8 = 1;
/// A denial that the store gave earlier, and that still holds.
pub const TOLLGATE_SOURCE_DENIAL: u8 = 2;
/// The store was asked.
pub const TOLLGATE_SOURCE_ASKED: u8 = 3;
/// The store did not answer: on_store_error decided for a policy, or several.
pub const TOLLGATE_SOURCE_FALLBACK: u8 = 4;

/// A rules document, compiled. It is made of memory of the library's own, and
/// given back with tollgate_rules_free.
pub struct tollgate_rules(#[expect(dead_code, reason = "read through `memory::kept`")] Marked<Rules>);

/// Bytes with their length. `data` is NULL for what is not there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_bytes {
    /// Any bytes, or NULL.
    pub data: *const c_void,
    /// How many.
    pub len: usize,
}

/// What a host knows of a request. All of it may be the client's word, but
/// for the route and the peer. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_attributes {
    /// sizeof(tollgate_attributes).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The name that the host's configuration gives the place.
    pub route: tollgate_bytes,
    /// Such as "GET".
    pub method: tollgate_bytes,
    /// Without a port.
    pub host: tollgate_bytes,
    /// Without the query, decoded and normalised: as the client sent it, it is
    /// the client's to choose which rules match (tollgate_http_path).
    pub path: tollgate_bytes,
    /// The address of who opened the connection, as text such as "192.0.2.1"
    /// or "2001:db8::1"; not there for a local socket.
    pub peer: tollgate_bytes,
    /// The values of the header fields that tollgate_rules_header names, in
    /// its order.
    pub headers: *const tollgate_bytes,
    /// How many: what tollgate_rules_header_count tells.
    pub header_count: usize,
}

/// What one limit of one policy said. Plain data.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tollgate_layer {
    /// The policy's index, as for tollgate_rules_policy.
    pub policy: u32,
    /// Which of its limits, from 0.
    pub limit: u32,
    /// TOLLGATE_OUTCOME_ADMITTED to TOLLGATE_OUTCOME_WOULD_DENY.
    pub outcome: u32,
    /// 1 when the limit comes from an override, else 0.
    pub overridden: u32,
    /// Its decision.
    pub decision: tollgate_decision,
    /// Units in flight, under a concurrency limit.
    pub hold: tollgate_hold,
}

/// The answer to one request. Plain data, of use without the rules.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_answer {
    /// 1 when the request may pass, else 0.
    pub allowed: u32,
    /// The HTTP status of a denial: 401 when an identity is missing, else the
    /// document's (429; 422 of a cost that can never fit; 503 when the store
    /// does not answer and on_store_error is deny); 0 when it may pass.
    pub status: u32,
    /// Layers that follow.
    pub count: u32,
    /// The layer that stands for all: of those that deny the one that takes
    /// longest, else the one that leaves least; `count` when none is enforced.
    pub tightest: u32,
    /// Nanoseconds that an admitted request has to wait.
    pub delay_ns: u64,
    /// The policy of the tightest layer, or the one that needs an identity; a
    /// C string.
    pub policy: [c_char; TOLLGATE_NAME_SIZE],
    /// The header field that is missing, a C string; empty if none is.
    pub missing: [c_char; TOLLGATE_NAME_SIZE],
    /// 1 when more limits matched than TOLLGATE_MAX_LAYERS: those further on in
    /// the document were not asked.
    pub overflow: u8,
    /// What it rests on: TOLLGATE_SOURCE_LOCAL to TOLLGATE_SOURCE_FALLBACK.
    pub source: u8,
    /// Layers, one bit each, that were decided as their policy's
    /// on_store_error says, because the store did not answer.
    pub degraded: u16,
    /// 0.
    pub reserved: [u8; 2],
    /// The limit of the tightest layer, for tollgate_http_fields.
    pub limit: tollgate_limit,
    /// What each limit said.
    pub layers: [tollgate_layer; TOLLGATE_MAX_LAYERS],
}

/// What a policy is. Plain data; the name lives as long as the rules.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tollgate_policy {
    /// Its name.
    pub name: *const c_char,
    /// Bytes of the name; no NUL follows.
    pub name_len: usize,
    /// Its limits, for subjects without an override.
    pub limits: u32,
    /// 1 when it is counted and not enforced, else 0.
    pub dry_run: u32,
    /// Rows that give a subject other limits.
    pub overrides: u64,
    /// 1 when its limits are to be counted in Redis, else 0.
    pub shared: u32,
    /// 0.
    pub reserved: u32,
}

const MARK: u64 = u64::from_be_bytes(*b"tg rules");

/// Compiles a rules document. It is taken whole, or not at all.
///
/// `seed` is a secret, from the system's random source. `unix_at_zero_ns` is
/// the UNIX time at which the clock of `now_ns` shows zero: the UNIX time of
/// now less what that clock shows now, in nanoseconds, and 0 when it is the
/// UNIX time; quotas by the calendar month go by it. `message`: NULL, or room for `message_size` bytes that on an error receives what is wrong, one
/// line each ("line 3, column 7: policies[0].name: ..."), as a C string, cut
/// if need be. Allocates: call it off the request path. Errors:
/// TOLLGATE_ERR_PARSE.
///
/// # Safety
/// The pointers lead to what their types say; `text` to `len` bytes, `seed`
/// to two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_parse(
    text: *const c_char,
    len: usize,
    seed: *const u64,
    unix_at_zero_ns: u64,
    rules: *mut *mut tollgate_rules,
    message: *mut c_char,
    message_size: usize,
) -> tollgate_status {
    run(|| {
        let size = if message.is_null() { 0 } else { message_size };
        // SAFETY: the caller's contract.
        let (text, seed, room) = unsafe {
            (inputs(text.cast::<u8>(), len)?, inputs(seed, 2)?, outputs(message.cast::<u8>(), size)?)
        };
        // SAFETY: the caller's contract.
        let out = unsafe { output(rules)? };
        let seed = Seed([seed.first().copied().unwrap_or(0), seed.get(1).copied().unwrap_or(0)]);
        let compiled = compile(text, seed, unix_at_zero_ns, &room)?;
        out.write(memory::give(tollgate_rules(Marked::new(MARK, compiled))));
        Ok(())
    })
}

/// Gives compiled rules back. NULL is legal, and does nothing. Nobody else may
/// use them any more.
///
/// # Safety
/// `rules` is NULL or comes from tollgate_rules_parse, and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_free(rules: *mut tollgate_rules) {
    // SAFETY: the caller's contract.
    if unsafe { rules_of(rules.cast_const()) }.is_ok() {
        // SAFETY: as above, and the mark is there: it was made by `give`.
        unsafe { memory::take(rules) };
    }
}

/// How many header fields requests must bring along.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_header_count(
    rules: *const tollgate_rules,
    count: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (rules, out) = unsafe { (rules_of(rules)?, output(count)?) };
        out.write(rules.headers().len());
        Ok(())
    })
}

/// The name of such a header field, in lower case; no NUL follows. It lives as
/// long as the rules. Errors: TOLLGATE_ERR_RANGE.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_header(
    rules: *const tollgate_rules,
    index: usize,
    name: *mut *const c_char,
    len: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (rules, name, len) = unsafe { (rules_of(rules)?, output(name)?, output(len)?) };
        let header = rules.headers().get(index).ok_or(TOLLGATE_ERR_RANGE)?;
        name.write(header.as_ptr().cast());
        len.write(header.len());
        Ok(())
    })
}

/// How many policies there are; the default, if any, is the last.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_policy_count(
    rules: *const tollgate_rules,
    count: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (rules, out) = unsafe { (rules_of(rules)?, output(count)?) };
        out.write(rules.policies().len());
        Ok(())
    })
}

/// What the document asks for and does not get, such as "policy daily: counted
/// on this machine, as this host has no Redis", for the host to show when it
/// begins to use the rules.
///
/// `has_store`: 1 when the host counts in Redis what policies ask to be counted
/// there, else 0. `index` counts from 0. `*len` is the length of the line; no NUL follows.
/// Allocates: call it off the request path. Concurrent calls are fine. Errors:
/// TOLLGATE_ERR_RANGE past the last notice, TOLLGATE_ERR_SIZE for a buffer
/// that is too small; TOLLGATE_NOTICE_SIZE is always enough.
///
/// # Safety
/// The pointers lead to what their types say, `buffer` to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_notice(
    rules: *const tollgate_rules,
    has_store: u32,
    index: usize,
    buffer: *mut c_char,
    size: usize,
    len: *mut usize,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (rules, room, len) =
            unsafe { (rules_of(rules)?, outputs(buffer.cast::<u8>(), size)?, output(len)?) };
        let notice = rules.notices(has_store != 0).nth(index).ok_or(TOLLGATE_ERR_RANGE)?.to_string();
        if !room.copy(notice.as_bytes()) {
            return Err(if buffer.is_null() { TOLLGATE_ERR_NULL } else { TOLLGATE_ERR_SIZE });
        }
        len.write(notice.len());
        Ok(())
    })
}

/// What a policy is. Errors: TOLLGATE_ERR_RANGE.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_policy(
    rules: *const tollgate_rules,
    index: usize,
    policy: *mut tollgate_policy,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (rules, out) = unsafe { (rules_of(rules)?, output(policy)?) };
        let policy = rules.policies().get(index).ok_or(TOLLGATE_ERR_RANGE)?;
        out.write(tollgate_policy {
            name: policy.name().as_ptr().cast(),
            name_len: policy.name().len(),
            limits: policy.limits().len() as u32, // at most TOLLGATE_MAX_LAYERS
            dry_run: u32::from(policy.dry_run()),
            overrides: policy.overrides().len() as u64,
            shared: u32::from(policy.store() == tollgate_core::policy::Store::Redis),
            reserved: 0,
        });
        Ok(())
    })
}

/// Which header fields answers carry: TOLLGATE_FIELDS_OFF to
/// TOLLGATE_FIELDS_RATELIMIT.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_fields(
    rules: *const tollgate_rules,
    family: *mut u32,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (rules, out) = unsafe { (rules_of(rules)?, output(family)?) };
        out.write(rules.fields() as u32);
        Ok(())
    })
}

/// Can this table hold every limit of the rules, overrides included? Ask when
/// rules are loaded. `message` as in tollgate_rules_parse, one line. Errors:
/// TOLLGATE_ERR_UNSUPPORTED.
///
/// # Safety
/// The pointers lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_accepts(
    rules: *const tollgate_rules,
    table: *const tollgate_table,
    message: *mut c_char,
    message_size: usize,
) -> tollgate_status {
    run(|| {
        let size = if message.is_null() { 0 } else { message_size };
        // SAFETY: the caller's contract.
        let (rules, table, room) =
            unsafe { (rules_of(rules)?, table_of(table)?, outputs(message.cast::<u8>(), size)?) };
        for policy in rules.policies() {
            for limit in policy.all_limits() {
                if let Err(error) = table.accepts(limit) {
                    Message::say(&room, format_args!("policy {}: {limit}: {error}", policy.name()));
                    return Err(TOLLGATE_ERR_UNSUPPORTED);
                }
            }
        }
        Ok(())
    })
}

/// Asks a table all that the rules ask of one request: every policy that
/// matches, all or none.
///
/// `now_ns` is a monotonic clock, the same for all who share the table. Any
/// attributes and time are legal. Lock-free, allocates nothing; threads and
/// processes may call it at the same time, on the same rules too. Holds in the
/// answer are given back with tollgate_rules_release. Errors:
/// TOLLGATE_ERR_ARGUMENT for a wrong struct_size or header_count.
///
/// # Safety
/// `table` is a view whose memory is still mapped; the pointers lead to what
/// their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_check(
    rules: *const tollgate_rules,
    table: *const tollgate_table,
    attributes: *const tollgate_attributes,
    now_ns: u64,
    answer: *mut tollgate_answer,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (rules, table, given, out) =
            unsafe { (rules_of(rules)?, table_of(table)?, input(attributes)?, output(answer)?) };
        attributes_fit(given, rules)?;
        let mut values = [None; TOLLGATE_MAX_HEADERS];
        // SAFETY: the caller's contract.
        let attributes = unsafe { attributes_of(given, &mut values)? };
        check(rules, table, &attributes, now_ns, out)
    })
}

/// Gives back the units in flight of an answer, when the request is over. As
/// tollgate_rules_check for threads and processes.
///
/// # Safety
/// As tollgate_rules_check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_rules_release(
    table: *const tollgate_table,
    answer: *const tollgate_answer,
) -> tollgate_status {
    run(|| {
        // SAFETY: the caller's contract.
        let (table, answer) = unsafe { (table_of(table)?, input(answer)?) };
        for layer in answer.layers.iter().take(answer.count as usize) {
            table.release(&Hold::from(&layer.hold));
        }
        Ok(())
    })
}

fn compile(text: &[u8], seed: Seed, unix_at_zero: u64, room: &Outputs<u8>) -> Result<Rules, tollgate_status> {
    let text = core::str::from_utf8(text).map_err(|error| {
        Message::say(room, format_args!("byte {}: not UTF-8", error.valid_up_to()));
        TOLLGATE_ERR_PARSE
    })?;
    Rules::parse_at(text, seed, unix_at_zero).map_err(|errors| {
        let mut message = Message::new(room);
        for error in errors {
            let _ = writeln!(message, "{error}"); // cut at the room's end
        }
        TOLLGATE_ERR_PARSE
    })
}

fn check(
    rules: &Rules,
    table: &Table<'_>,
    attributes: &Attributes<'_>,
    now: u64,
    out: Output<'_, tollgate_answer>,
) -> Result<(), tollgate_status> {
    let mut room = KeyRoom::new();
    let written = match rules.select(attributes, &mut room) {
        Err(missing) => unidentified(&missing),
        Ok(selection) => answered(rules, &selection, &policy::check(rules, table, &selection, now)),
    };
    out.write(written);
    Ok(())
}

pub(crate) fn nothing() -> tollgate_answer {
    tollgate_answer {
        allowed: 1,
        status: 0,
        count: 0,
        tightest: 0,
        delay_ns: 0,
        policy: [0; TOLLGATE_NAME_SIZE],
        missing: [0; TOLLGATE_NAME_SIZE],
        overflow: 0,
        source: TOLLGATE_SOURCE_LOCAL,
        degraded: 0,
        reserved: [0; 2],
        limit: tollgate_limit { opaque: [0; 16] },
        layers: [tollgate_layer::default(); TOLLGATE_MAX_LAYERS],
    }
}

pub(crate) fn unidentified(missing: &Missing<'_>) -> tollgate_answer {
    tollgate_answer {
        allowed: 0,
        status: 401,
        policy: c_name(missing.policy),
        missing: c_name(missing.header),
        ..nothing()
    }
}

pub(crate) fn answered(rules: &Rules, selection: &Selection<'_>, answer: &Answer) -> tollgate_answer {
    let mut written = nothing();
    let said = selection.layers().zip(answer.decisions()).zip(answer.outcomes()).zip(answer.holds());
    for ((((layer, decision), outcome), hold), room) in said.zip(&mut written.layers) {
        *room = tollgate_layer {
            policy: layer.policy as u32, // a document of 2^32 policies is refused by its length
            limit: layer.index as u32,   // below TOLLGATE_MAX_LAYERS
            outcome: number(*outcome),
            overridden: u32::from(layer.overridden),
            decision: (*decision).into(),
            hold: (*hold).into(),
        };
    }
    written.overflow = u8::from(selection.overflow());
    let tightest = answer.tightest.and_then(|place| selection.layers().nth(place));
    sum_up(&mut written, rules, answer, tightest.map(|layer| (layer.policy, layer.limit)));
    written
}

/// What is told of the whole answer; `tightest` is a policy's place, and the limit.
pub(crate) fn sum_up(
    written: &mut tollgate_answer,
    rules: &Rules,
    answer: &Answer,
    tightest: Option<(usize, &Limit)>,
) {
    written.allowed = u32::from(answer.allowed);
    written.status = if answer.allowed { 0 } else { u32::from(rules.status_of(answer)) };
    written.count = answer.decisions().len() as u32; // at most TOLLGATE_MAX_LAYERS
    written.tightest = answer.tightest.map_or(written.count, |place| place as u32);
    written.delay_ns = answer.delay;
    for layer in (0..answer.decisions().len()).filter(|layer| answer.is_degraded(*layer)) {
        written.degraded |= 1 << layer; // below TOLLGATE_MAX_LAYERS, which is 16
    }
    if let Some((policy, limit)) = tightest {
        written.policy = c_name(rules.policies().get(policy).map_or("", |policy| policy.name()));
        written.limit = keep_limit(limit);
    }
}

pub(crate) fn number(outcome: Outcome) -> u32 {
    match outcome {
        Outcome::Admitted => TOLLGATE_OUTCOME_ADMITTED,
        Outcome::Denied => TOLLGATE_OUTCOME_DENIED,
        Outcome::Spared => TOLLGATE_OUTCOME_SPARED,
        Outcome::WouldDeny => TOLLGATE_OUTCOME_WOULD_DENY,
    }
}

/// A name of at most 64 bytes of ASCII, as a C string.
pub(crate) fn c_name(name: &str) -> [c_char; TOLLGATE_NAME_SIZE] {
    let mut text = [0; TOLLGATE_NAME_SIZE];
    for (room, byte) in text.iter_mut().take(TOLLGATE_NAME_SIZE - 1).zip(name.bytes()) {
        *room = byte as c_char;
    }
    text
}

const _: () = assert!(
    TOLLGATE_MAX_LAYERS == MAX_LAYERS
        && TOLLGATE_NAME_SIZE == policy::MAX_NAME + 1
        && TOLLGATE_MAX_HEADERS == policy::MAX_HEADERS
        && TOLLGATE_NOTICE_SIZE == policy::MAX_NOTICE
);

/// # Safety
/// `rules` is NULL or leads to compiled rules.
pub(crate) unsafe fn rules_of<'a>(rules: *const tollgate_rules) -> Result<&'a Rules, tollgate_status> {
    // SAFETY: the caller's contract; `tollgate_rules` are marked rules.
    unsafe { memory::kept::<tollgate_rules, Rules>(rules, MARK) }
}

pub(crate) fn attributes_fit(given: &tollgate_attributes, rules: &Rules) -> Result<(), tollgate_status> {
    sized::<tollgate_attributes>(given.struct_size)?;
    if given.reserved != 0 || given.header_count != rules.headers().len() {
        return Err(TOLLGATE_ERR_ARGUMENT);
    }
    Ok(())
}

/// # Safety
/// The pointers in `given` lead to what their types say.
pub(crate) unsafe fn attributes_of<'a>(
    given: &tollgate_attributes,
    values: &'a mut [Option<&'a [u8]>; TOLLGATE_MAX_HEADERS],
) -> Result<Attributes<'a>, tollgate_status> {
    // SAFETY: the caller's contract.
    let headers = unsafe { inputs(given.headers, given.header_count)? };
    for (room, value) in values.iter_mut().zip(headers) {
        // SAFETY: the caller's contract.
        *room = unsafe { bytes(value)? };
    }
    // SAFETY: the caller's contract.
    let peer = unsafe { bytes(&given.peer)? };
    let peer =
        peer.and_then(|text| core::str::from_utf8(text).ok()).and_then(|text| text.parse::<IpAddr>().ok());
    // SAFETY: the caller's contract.
    let text = |value: &tollgate_bytes| unsafe { bytes(value) }.map(|value| value.unwrap_or(b""));
    Ok(Attributes {
        route: text(&given.route)?,
        method: text(&given.method)?,
        host: text(&given.host)?,
        path: text(&given.path)?,
        peer,
        headers: values.get(..given.header_count).unwrap_or(&[]),
    })
}

/// # Safety
/// `value` leads to as many bytes as it says, or to NULL.
pub(crate) unsafe fn bytes<'a>(value: &tollgate_bytes) -> Result<Option<&'a [u8]>, tollgate_status> {
    if value.data.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    unsafe { inputs(value.data.cast::<u8>(), value.len) }.map(Some)
}
