//! A decision as HTTP: header fields and a problem body, written into the
//! caller's buffer.
//!
//! Sources: RFC 9110 §10.2.3 (`Retry-After`), RFC 9651 (structured fields),
//! draft-ietf-httpapi-ratelimit-headers-03 (`RateLimit-Limit`, `-Remaining`,
//! `-Reset`) and -11 (`RateLimit-Policy`, `RateLimit`, the problem type
//! `quota-exceeded`), RFC 9457 (problem details), and gRPC over HTTP/2
//! (`grpc-status`, `grpc-message`).
//!
//! What the numbers mean: Limit is the burst; Remaining is what is left of it;
//! Reset is the seconds until the bucket is full, and with a denial at least
//! `Retry-After`, which a penalty can make the longer one; `Retry-After` is the
//! wait of this request. All are whole seconds from now, rounded up. A cost
//! above the burst is denied without a look at what is left, as a store would
//! have to be asked for it, to no one's use: its answer tells the limit, and
//! neither Remaining nor Reset (nor `RateLimit`, which is both).

use core::fmt::{self, Write};

use crate::decision::Decision;
use crate::limit::{Algorithm, Limit};
use crate::limiter::MAX_LAYERS;
use crate::time::{NEVER, Nanos, SECOND, whole_seconds};

mod grpc;
mod missing;
mod target;

pub use grpc::{grpc_denial, grpc_missing, grpc_status, is_grpc};
pub use missing::{missing_fields, missing_problem};
pub use target::{make_path, plain_path, without_query};

/// The most fields of one answer.
pub const MAX_FIELDS: usize = 4;
/// A buffer of this size is always enough for the fields of a policy whose
/// name is at most [`MAX_NAME`] bytes long.
pub const FIELDS_SIZE: usize = 512;
/// A buffer of this size is always enough for a problem body, under the same
/// condition.
pub const PROBLEM_SIZE: usize = 1024;
/// A buffer of this size is always enough for the fields, or for the problem
/// body, of [`MAX_LAYERS`] policies.
pub const LIST_SIZE: usize = 6144;
const _: () =
    assert!(LIST_SIZE >= FIELDS_SIZE + 345 * MAX_LAYERS && LIST_SIZE >= PROBLEM_SIZE + 131 * MAX_LAYERS);
/// Longer policy names are cut.
pub const MAX_NAME: usize = 64;

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Which fields tell the client where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Family {
    /// None; `Retry-After` is still sent with a denial.
    Off = 0,
    /// `X-RateLimit-Limit` (the burst), `X-RateLimit-Remaining`,
    /// `X-RateLimit-Reset` (seconds until the bucket is full; of a denial at
    /// least `Retry-After`).
    #[default]
    XRateLimit = 1,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    RateLimit03 = 2,
    /// `RateLimit-Policy` and `RateLimit` of the current draft.
    RateLimit = 3,
}

impl Family {
    /// All four, in the order of their numbers.
    pub const ALL: [Family; 4] = [Family::Off, Family::XRateLimit, Family::RateLimit03, Family::RateLimit];

    /// The name that rules files and directives use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Family::Off => "off",
            Family::XRateLimit => "x-ratelimit",
            Family::RateLimit03 => "ratelimit-03",
            Family::RateLimit => "ratelimit",
        }
    }
}

/// One header field; the value is `range` of the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Where its value starts.
    pub start: usize,
    /// Where its value ends.
    pub end: usize,
}

/// The fields of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    fields: [Field; MAX_FIELDS],
    count: usize,
}

impl Fields {
    /// The fields, in the order in which they are sent.
    #[must_use]
    pub fn as_slice(&self) -> &[Field] {
        self.fields.get(..self.count).unwrap_or(&[])
    }

    /// As [`fields_of`], in place of what was here: a host keeps them for as
    /// long as its response takes.
    ///
    /// # Errors
    /// As [`fields_of`]; then there are none.
    pub fn write<'a>(
        &mut self,
        family: Family,
        items: impl Iterator<Item = Item<'a>> + Clone,
        buffer: &mut [u8],
    ) -> Result<(), BufferTooSmall> {
        self.clear();
        write_fields(family, items, buffer, self).inspect_err(|_| self.clear())
    }

    /// No fields.
    pub fn clear(&mut self) {
        self.count = 0;
    }
}

/// The buffer is too small; nothing in it is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer of {0} bytes is too small")]
pub struct BufferTooSmall(pub usize);

/// One policy's part in an answer.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The policy's name.
    pub name: &'a str,
    /// The limit that stands for the policy.
    pub limit: &'a Limit,
    /// What it said.
    pub decision: &'a Decision,
}

/// Writes the fields of one answer: the family's, and `Retry-After` (whole
/// seconds, rounded up, at least 1) with a denial that can ever end. Of one that
/// never does the family's tell only the limit.
///
/// # Errors
/// A buffer shorter than the values; [`FIELDS_SIZE`] is always enough.
pub fn fields(
    family: Family,
    name: &str,
    limit: &Limit,
    decision: &Decision,
    buffer: &mut [u8],
) -> Result<Fields, BufferTooSmall> {
    fields_of(family, core::iter::once(Item { name, limit, decision }), buffer)
}

/// Writes the fields of an answer that several policies had a part in: of the
/// families of three fields those of the tightest policy; of `ratelimit` one
/// item for each; `Retry-After` of the denial that takes longest. When one
/// never ends there is no `Retry-After`, and only the limits are told.
///
/// # Errors
/// A buffer shorter than the values; [`LIST_SIZE`] is always enough for
/// [`MAX_LAYERS`] policies.
pub fn fields_of<'a>(
    family: Family,
    items: impl Iterator<Item = Item<'a>> + Clone,
    buffer: &mut [u8],
) -> Result<Fields, BufferTooSmall> {
    let mut fields = Fields::default();
    fields.write(family, items, buffer)?;
    Ok(fields)
}

/// As [`fields_of`].
fn write_fields<'a>(
    family: Family,
    items: impl Iterator<Item = Item<'a>> + Clone,
    buffer: &mut [u8],
    fields: &mut Fields,
) -> Result<(), BufferTooSmall> {
    let mut writer = Writer { out: Output { buffer, at: 0 }, fields };
    let Some(tightest) = tightest(items.clone()) else { return Ok(()) };
    let wait = if tightest.decision.allowed { NEVER } else { tightest.decision.retry_after };
    let reset = whole_seconds(reset(tightest.decision));
    match family {
        Family::Off => {}
        Family::XRateLimit => {
            writer.number("X-RateLimit-Limit", tightest.limit.burst())?;
            writer.number("X-RateLimit-Remaining", tightest.decision.remaining)?;
            writer.number("X-RateLimit-Reset", reset)?;
        }
        Family::RateLimit03 => {
            writer.number("RateLimit-Limit", tightest.limit.burst())?;
            writer.number("RateLimit-Remaining", tightest.decision.remaining)?;
            writer.number("RateLimit-Reset", reset)?;
        }
        Family::RateLimit => {
            writer.with("RateLimit-Policy", |out| policy_list(out, items.clone()))?;
            writer.with("RateLimit", |out| service_list(out, items, wait))?;
        }
    }
    if wait != NEVER {
        writer.number("Retry-After", whole_seconds(wait).max(1))?;
    } else if !tightest.decision.allowed {
        writer.fields.count = writer.fields.count.min(1); // the limit alone, which each family tells first
    }
    Ok(())
}

/// Until the bucket is full; never before a denied request may come again.
fn reset(decision: &Decision) -> Nanos {
    match decision.retry_after {
        _ if decision.allowed => decision.reset_after,
        NEVER => decision.reset_after, // it is not told
        wait => decision.reset_after.max(wait).max(1),
    }
}

fn tightest<'a>(items: impl Iterator<Item = Item<'a>>) -> Option<Item<'a>> {
    items.reduce(|best, item| if item.decision.is_tighter_than(best.decision) { item } else { best })
}

/// `"name";q=100;w=1`, one for each policy.
fn policy_list<'a>(out: &mut Output<'_>, items: impl Iterator<Item = Item<'a>>) -> fmt::Result {
    for (index, item) in items.enumerate() {
        out.write_str(if index == 0 { "" } else { ", " })?;
        Quoted(cut(item.name)).write(out)?;
        out.write_str(";q=")?;
        out.number(item.limit.limit())?;
        if item.limit.algorithm() == Algorithm::Concurrency {
            // Units in flight have no window; the period is how long one may last.
            out.write_str(";qu=\"concurrent-requests\"")?;
        } else if item.limit.period().is_multiple_of(SECOND) {
            out.write_str(";w=")?; // whole seconds; what is not is left out
            out.number(item.limit.period() / SECOND)?;
        }
    }
    Ok(())
}

/// `"name";r=42;t=1`, one for each policy. `Retry-After` must not name an
/// earlier time than the end of a window, so no window is longer than `wait`:
/// that no more than `r` is there holds of any shorter time as well. That of
/// the policy which takes longest is `wait` itself.
fn service_list<'a>(out: &mut Output<'_>, items: impl Iterator<Item = Item<'a>>, wait: Nanos) -> fmt::Result {
    for (index, item) in items.enumerate() {
        out.write_str(if index == 0 { "" } else { ", " })?;
        Quoted(cut(item.name)).write(out)?;
        out.write_str(";r=")?;
        out.number(item.decision.remaining.min(MAX_INTEGER))?;
        out.write_str(";t=")?;
        out.number(whole_seconds(reset(item.decision).min(wait)).min(MAX_INTEGER))?;
    }
    Ok(())
}

/// Fields, as they are written.
struct Writer<'b, 'f> {
    out: Output<'b>,
    fields: &'f mut Fields,
}

impl Writer<'_, '_> {
    /// A field whose value is a number: on every answer, so without `fmt`.
    fn number(&mut self, name: &'static str, value: u64) -> Result<(), BufferTooSmall> {
        let start = self.out.at;
        let written = self.out.number(value);
        self.add(name, start, written)
    }

    fn with(
        &mut self,
        name: &'static str,
        write: impl FnOnce(&mut Output<'_>) -> fmt::Result,
    ) -> Result<(), BufferTooSmall> {
        let start = self.out.at;
        let written = write(&mut self.out);
        self.add(name, start, written)
    }

    fn add(&mut self, name: &'static str, start: usize, written: fmt::Result) -> Result<(), BufferTooSmall> {
        written.map_err(|_| BufferTooSmall(self.out.buffer.len()))?;
        if let Some(field) = self.fields.fields.get_mut(self.fields.count) {
            (field.name, field.start, field.end) = (name, start, self.out.at);
            self.fields.count += 1;
        }
        Ok(())
    }
}

/// Writes the `application/problem+json` body of a denial; its length.
///
/// # Errors
/// A buffer shorter than the body; [`PROBLEM_SIZE`] is always enough.
pub fn problem(
    status: u16,
    name: &str,
    decision: &Decision,
    buffer: &mut [u8],
) -> Result<usize, BufferTooSmall> {
    let decision = Decision { allowed: false, ..*decision };
    write_problem(status, core::iter::once((name, &decision)), buffer)
}

/// Writes the problem body of a denial that several policies had a part in:
/// it names all that denied, and the wait of the one that takes longest.
///
/// # Errors
/// A buffer shorter than the body; [`LIST_SIZE`] is always enough for
/// [`MAX_LAYERS`] policies.
pub fn problem_of<'a>(
    status: u16,
    items: impl Iterator<Item = Item<'a>> + Clone,
    buffer: &mut [u8],
) -> Result<usize, BufferTooSmall> {
    write_problem(status, items.map(|item| (item.name, item.decision)), buffer)
}

fn write_problem<'a>(
    status: u16,
    items: impl Iterator<Item = (&'a str, &'a Decision)> + Clone,
    buffer: &mut [u8],
) -> Result<usize, BufferTooSmall> {
    let size = buffer.len();
    let mut out = Output { buffer, at: 0 };
    let denied = items.filter(|(_, decision)| !decision.allowed).map(|(name, d)| (Json(cut(name)), d));
    let slowest =
        denied.clone().reduce(|best, item| if item.1.retry_after > best.1.retry_after { item } else { best });
    let Some((name, decision)) = slowest else { return Ok(0) };
    let violated = denied.map(|(name, _)| name);
    let wait = whole_seconds(decision.retry_after).max(1);
    let written = if decision.is_unavailable() {
        let texts = [REDUCED, "Limit not available", CANNOT_BE_ASKED];
        try_again(&mut out, texts, status, &name, violated, wait)
    } else if decision.can_ever_fit() {
        try_again(&mut out, [KIND, "Too many requests", IS_REACHED], status, &name, violated, wait)
    } else {
        too_large(&mut out, status, &name, violated)
    };
    written.map_err(|_| BufferTooSmall(size))?;
    Ok(out.at)
}

/// The member `violated-policies` of the draft.
fn violated_policies<'n>(out: &mut Output<'_>, names: impl Iterator<Item = Json<'n>>) -> fmt::Result {
    out.write_str("\"violated-policies\":[")?;
    for (index, name) in names.enumerate() {
        out.write_str(if index == 0 { "\"" } else { ",\"" })?;
        name.write(out)?;
        out.write_str("\"")?;
    }
    out.write_str("]")
}

/// The types that the draft registers.
const KIND: &str = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",";
const REDUCED: &str =
    "{\"type\":\"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity\",";
/// What is with a limit; a client of gRPC is told the same.
const IS_REACHED: &str = " is reached. Try again in ";
const CANNOT_BE_ASKED: &str = " cannot be asked at present. Try again in ";

/// Every denial carries this, so it is put together without `fmt`.
fn try_again<'n>(
    out: &mut Output<'_>,
    [kind, title, what]: [&str; 3],
    status: u16,
    name: &Json<'_>,
    violated: impl Iterator<Item = Json<'n>>,
    wait: u64,
) -> fmt::Result {
    out.write_str(kind)?;
    out.write_str("\"title\":\"")?;
    out.write_str(title)?;
    out.write_str("\",\"status\":")?;
    out.number(status.into())?;
    out.write_str(",\"detail\":\"The limit ")?;
    name.write(out)?;
    out.write_str(what)?;
    out.number(wait)?;
    out.write_str(" s.\",")?;
    violated_policies(out, violated)?;
    out.write_str(",\"retry_after\":")?;
    out.number(wait)?;
    out.write_str("}\n")
}

fn too_large<'n>(
    out: &mut Output<'_>,
    status: u16,
    name: &Json<'_>,
    violated: impl Iterator<Item = Json<'n>>,
) -> fmt::Result {
    out.write_str(KIND)?;
    out.write_str("\"title\":\"Request too large for its limit\",\"status\":")?;
    out.number(status.into())?;
    out.write_str(",\"detail\":\"This request costs more than the limit ")?;
    name.write(out)?;
    out.write_str(" ever admits at once.\",")?;
    violated_policies(out, violated)?;
    out.write_str("}\n")
}

/// At most [`MAX_NAME`] bytes, at a character's boundary.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(MAX_NAME);
    while !name.is_char_boundary(end) {
        end -= 1; // 0 is a boundary
    }
    name.get(..end).unwrap_or("")
}

/// A structured-field string: printable ASCII, `"` and `\` escaped. What it
/// cannot hold becomes `?`.
struct Quoted<'n>(&'n str);

impl Quoted<'_> {
    fn write(&self, out: &mut Output<'_>) -> fmt::Result {
        out.write_str("\"")?;
        let plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if self.0.bytes().all(plain) {
            out.write_str(self.0)?;
        } else {
            for c in self.0.chars() {
                match c {
                    '"' | '\\' => write!(out, "\\{c}")?,
                    ' '..='~' => out.write_char(c)?,
                    _ => out.write_char('?')?,
                }
            }
        }
        out.write_str("\"")
    }
}

/// The inside of a JSON string.
struct Json<'n>(&'n str);

impl Json<'_> {
    fn write(&self, out: &mut Output<'_>) -> fmt::Result {
        let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
        if self.0.bytes().all(plain) {
            return out.write_str(self.0);
        }
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(out, "\\{c}")?,
                c if u32::from(c) < 0x20 => out.write_char('?')?,
                c => out.write_char(c)?,
            }
        }
        Ok(())
    }
}

struct Output<'b> {
    buffer: &'b mut [u8],
    at: usize,
}

impl Output<'_> {
    fn number(&mut self, value: u64) -> fmt::Result {
        match u32::try_from(value) {
            Ok(value) => self.digits(value),
            Err(_) => self.write_str(itoa::Buffer::new().format(value)),
        }
    }

    /// Most numbers are short. Where they belong: to copy them there would be a
    /// call for each in a VM.
    fn digits(&mut self, value: u32) -> fmt::Result {
        let count = value.checked_ilog10().unwrap_or(0) as usize + 1; // at most 10
        let room = self.buffer.get_mut(self.at..).and_then(|room| room.get_mut(..count)).ok_or(fmt::Error)?;
        let mut rest = value;
        let (first, pairs) = room.as_rchunks_mut();
        for pair in pairs.iter_mut().rev() {
            *pair = PAIRS.get((rest % 100) as usize).copied().unwrap_or_default(); // there are 100
            rest /= 100;
        }
        if let [digit] = first {
            *digit = b'0' + rest as u8; // one is left
        }
        self.at += count; // it was there
        Ok(())
    }
}

/// 00 to 99.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

impl Write for Output<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.at.checked_add(text.len()).ok_or(fmt::Error)?;
        let room = self.buffer.get_mut(self.at..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.at = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::NEVER;
    use std::string::String;

    fn denied(retry_after: u64) -> Decision {
        Decision { allowed: false, limit: 10, remaining: 0, retry_after, reset_after: retry_after, delay: 0 }
    }

    fn body(name: &str, retry_after: u64) -> String {
        let mut buffer = [0; PROBLEM_SIZE];
        let len = problem(429, name, &denied(retry_after), &mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn every_number_is_written_as_it_is() {
        let powers = (0..20).map(|power| 10_u64.pow(power));
        let edges = powers.flat_map(|power| [power - 1, power, power + 1, power / 7 * 9]);
        for value in edges.chain([u32::MAX.into(), 1 << 32, u64::MAX]) {
            let text = std::format!("{value}");
            let mut buffer = [0; 32];
            let mut out = Output { buffer: &mut buffer, at: 3 };
            out.number(value).unwrap();
            assert_eq!(out.at, 3 + text.len());
            assert_eq!(&buffer[3..3 + text.len()], text.as_bytes());
            let short = &mut buffer[..2 + text.len()];
            assert!(Output { buffer: short, at: 3 }.number(value).is_err(), "{value}");
        }
    }

    #[test]
    fn a_denial_says_when_to_come_back() {
        let text = body("orders", 1_400_000_000);
        assert!(text.contains("\"status\":429,"), "{text}");
        assert!(text.contains("\"violated-policies\":[\"orders\"],\"retry_after\":2}"), "{text}");
        assert!(body("orders", 1).contains("\"retry_after\":1}"));
        assert!(!body("orders", NEVER).contains("retry_after"));
    }

    #[test]
    fn no_name_breaks_the_body_or_a_field() {
        let limit: Limit = "10/s".parse().unwrap();
        let long = "é\"\\\u{7}\r\n".repeat(100);
        for name in ["", "a\"b", "a\\b", "a\r\nSet-Cookie: x", "\0", long.as_str()] {
            let text = body(name, 1);
            let inner = text.strip_suffix('\n').unwrap();
            assert!(!inner.chars().any(char::is_control), "{text:?}");
            let mut buffer = [0; FIELDS_SIZE];
            let written = fields(Family::RateLimit, name, &limit, &denied(1), &mut buffer).unwrap();
            for field in written.as_slice() {
                assert!(
                    buffer[field.start..field.end].iter().all(|byte| (b' '..=b'~').contains(byte)),
                    "{name:?}"
                );
            }
        }
    }

    #[test]
    fn a_small_buffer_is_an_error_at_every_size() {
        let limit: Limit = "10/s".parse().unwrap();
        let full = body("orders", 1).len();
        for size in 0..full {
            assert_eq!(
                problem(429, "orders", &denied(1), &mut [0; PROBLEM_SIZE][..size]),
                Err(BufferTooSmall(size))
            );
        }
        for family in Family::ALL {
            let whole = fields(family, "orders", &limit, &denied(1), &mut [0; FIELDS_SIZE]).unwrap();
            let needed = whole.as_slice().last().map_or(0, |field| field.end);
            for size in 0..needed {
                let cut = fields(family, "orders", &limit, &denied(1), &mut [0; FIELDS_SIZE][..size]);
                assert!(cut.is_err(), "{} {size}", family.name());
            }
        }
    }
}
