//! A decision as HTTP: header fields and a problem body, written into the
//! caller's buffer.
//!
//! Sources: RFC 9110 §10.2.3 (`Retry-After`), RFC 9651 (structured fields),
//! draft-ietf-httpapi-ratelimit-headers-03 (`RateLimit-Limit`, `-Remaining`,
//! `-Reset`) and -10 (`RateLimit-Policy`, `RateLimit`, the problem type
//! `quota-exceeded`), RFC 9457 (problem details).

use core::fmt::{self, Write};

use crate::decision::Decision;
use crate::limit::Limit;
use crate::time::{SECOND, whole_seconds};

/// The most fields of one answer.
pub const MAX_FIELDS: usize = 4;
/// A buffer of this size is always enough for the fields of a policy whose
/// name is at most [`MAX_NAME`] bytes long.
pub const FIELDS_SIZE: usize = 512;
/// A buffer of this size is always enough for a problem body, under the same
/// condition.
pub const PROBLEM_SIZE: usize = 1024;
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
    /// `X-RateLimit-Reset` (seconds from now).
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
}

/// The buffer is too small; nothing in it is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer of {0} bytes is too small")]
pub struct BufferTooSmall(pub usize);

/// Writes the fields of one answer: the family's, and `Retry-After` (whole
/// seconds, rounded up, at least 1) with a denial that can ever end.
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
    let mut writer = Writer { out: Output { buffer, at: 0 }, fields: Fields::default() };
    let reset = whole_seconds(decision.reset_after);
    match family {
        Family::Off => {}
        Family::XRateLimit => {
            writer.number("X-RateLimit-Limit", limit.burst())?;
            writer.number("X-RateLimit-Remaining", decision.remaining)?;
            writer.number("X-RateLimit-Reset", reset)?;
        }
        Family::RateLimit03 => {
            writer.number("RateLimit-Limit", limit.burst())?;
            writer.number("RateLimit-Remaining", decision.remaining)?;
            writer.number("RateLimit-Reset", reset)?;
        }
        Family::RateLimit => {
            let name = Quoted(cut(name));
            let quota = limit.limit();
            if limit.period().is_multiple_of(SECOND) {
                let window = limit.period() / SECOND;
                writer.text("RateLimit-Policy", format_args!("{name};q={quota};w={window}"))?;
            } else {
                // The draft's window is whole seconds; leave out what is not.
                writer.text("RateLimit-Policy", format_args!("{name};q={quota}"))?;
            }
            let (remaining, reset) = (decision.remaining, reset.min(MAX_INTEGER));
            writer.text("RateLimit", format_args!("{name};r={remaining};t={reset}"))?;
        }
    }
    if !decision.allowed && decision.can_ever_fit() {
        writer.number("Retry-After", whole_seconds(decision.retry_after).max(1))?;
    }
    Ok(writer.fields)
}

/// Fields, as they are written.
struct Writer<'b> {
    out: Output<'b>,
    fields: Fields,
}

impl Writer<'_> {
    /// A field whose value is a number: on every answer, so without `fmt`.
    fn number(&mut self, name: &'static str, value: u64) -> Result<(), BufferTooSmall> {
        let start = self.out.at;
        let written = self.out.number(value);
        self.add(name, start, written)
    }

    fn text(&mut self, name: &'static str, value: fmt::Arguments<'_>) -> Result<(), BufferTooSmall> {
        let start = self.out.at;
        let written = self.out.write_fmt(value);
        self.add(name, start, written)
    }

    fn add(&mut self, name: &'static str, start: usize, written: fmt::Result) -> Result<(), BufferTooSmall> {
        written.map_err(|_| BufferTooSmall(self.out.buffer.len()))?;
        if let Some(field) = self.fields.fields.get_mut(self.fields.count) {
            *field = Field { name, start, end: self.out.at };
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
    let size = buffer.len();
    let mut out = Output { buffer, at: 0 };
    let name = Json(cut(name));
    let written = if decision.can_ever_fit() {
        let wait = whole_seconds(decision.retry_after).max(1);
        reached(&mut out, status, &name, wait)
    } else {
        too_large(&mut out, status, &name)
    };
    written.map_err(|_| BufferTooSmall(size))?;
    Ok(out.at)
}

/// The type that the draft registers.
const KIND: &str = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",";

/// Every denial carries this, so it is put together without `fmt`.
fn reached(out: &mut Output<'_>, status: u16, name: &Json<'_>, wait: u64) -> fmt::Result {
    out.write_str(KIND)?;
    out.write_str("\"title\":\"Too many requests\",\"status\":")?;
    out.number(status.into())?;
    out.write_str(",\"detail\":\"The limit ")?;
    name.write(out)?;
    out.write_str(" is reached. Try again in ")?;
    out.number(wait)?;
    out.write_str(" s.\",\"violated-policies\":[\"")?;
    name.write(out)?;
    out.write_str("\"],\"retry_after\":")?;
    out.number(wait)?;
    out.write_str("}\n")
}

fn too_large(out: &mut Output<'_>, status: u16, name: &Json<'_>) -> fmt::Result {
    out.write_str(KIND)?;
    out.write_str("\"title\":\"Request too large for its limit\",\"status\":")?;
    out.number(status.into())?;
    out.write_str(",\"detail\":\"This request costs more than the limit ")?;
    name.write(out)?;
    out.write_str(" ever admits at once.\",\"violated-policies\":[\"")?;
    name.write(out)?;
    out.write_str("\"]}\n")
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

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                ' '..='~' => f.write_char(c)?,
                _ => f.write_char('?')?,
            }
        }
        f.write_char('"')
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
        self.write_str(itoa::Buffer::new().format(value))
    }
}

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
    use std::string::{String, ToString};

    fn denied(retry_after: u64) -> Decision {
        Decision { allowed: false, limit: 10, remaining: 0, retry_after, reset_after: retry_after, delay: 0 }
    }

    fn body(name: &str, retry_after: u64) -> String {
        let mut buffer = [0; PROBLEM_SIZE];
        let len = problem(429, name, &denied(retry_after), &mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
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
                assert!(cut.is_err(), "{} {size}", family.name().to_string());
            }
        }
    }
}
