//! The answer to a request that does not tell who it comes from, and must: 401.

use core::fmt::Write;

use super::{BufferTooSmall, Fields, Json, Output, Writer, cut};

/// Writes the field that RFC 9110 asks of every 401 (§11.6.1): which
/// credentials would do. `header` is the field that is missing.
///
/// # Errors
/// A buffer shorter than the value; [`FIELDS_SIZE`](super::FIELDS_SIZE) is
/// always enough.
pub fn missing_fields(header: &str, buffer: &mut [u8]) -> Result<Fields, BufferTooSmall> {
    let mut fields = Fields::default();
    let mut writer = Writer { out: Output { buffer, at: 0 }, fields: &mut fields };
    writer.with("WWW-Authenticate", |out| {
        // The name of a field is a token, which needs no escapes in a quoted string.
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        out.write_str("ApiKey header=\"")?;
        cut(header).chars().try_for_each(|c| out.write_char(if is_token(c) { c } else { '?' }))?;
        out.write_str("\"")
    })?;
    Ok(fields)
}

/// Writes the `application/problem+json` body of a 401 that names the header
/// field; its length. The type is `about:blank` (RFC 9457 §4.2.1): the status
/// says it all.
///
/// # Errors
/// A buffer shorter than the body; [`PROBLEM_SIZE`](super::PROBLEM_SIZE) is
/// always enough.
pub fn missing_problem(header: &str, buffer: &mut [u8]) -> Result<usize, BufferTooSmall> {
    let size = buffer.len();
    let mut out = Output { buffer, at: 0 };
    let written = out
        .write_str("{\"type\":\"about:blank\",\"title\":\"Unauthorized\",\"status\":401,")
        .and_then(|()| out.write_str("\"detail\":\"This request needs the header field "))
        .and_then(|()| Json(cut(header)).write(&mut out))
        .and_then(|()| out.write_str(", which tells who it comes from.\"}\n"));
    written.map_err(|_| BufferTooSmall(size))?;
    Ok(out.at)
}
