//! Denials that a gRPC client can read: the status in header fields of an
//! HTTP 200 without a body, the "Trailers-Only" form of gRPC over HTTP/2.

use core::fmt::{self, Write};

use super::{BufferTooSmall, CANNOT_BE_ASKED, Fields, IS_REACHED, Output, Writer, cut};
use crate::decision::Decision;
use crate::time::whole_seconds;

/// RESOURCE_EXHAUSTED.
const EXHAUSTED: u8 = 8;
/// UNAVAILABLE.
const UNAVAILABLE: u8 = 14;
/// UNAUTHENTICATED.
const UNAUTHENTICATED: u8 = 16;

/// Is it a gRPC request, by its content type? (gRPC-Web is not: its clients
/// read a body.)
#[must_use]
pub fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some((kind, rest)) = content_type.split_at_checked(GRPC.len()) else { return false };
    kind.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// The status of a denial: RESOURCE_EXHAUSTED, or UNAVAILABLE where
/// [no limit could be asked](Decision::is_unavailable).
#[must_use]
pub fn grpc_status(decision: &Decision) -> u8 {
    if decision.is_unavailable() { UNAVAILABLE } else { EXHAUSTED }
}

/// Writes the fields of a denial, of its [status](grpc_status): all of the
/// answer, whose HTTP status is 200.
///
/// # Errors
/// A buffer shorter than the values; [`FIELDS_SIZE`](super::FIELDS_SIZE) is
/// always enough.
pub fn grpc_denial(name: &str, decision: &Decision, buffer: &mut [u8]) -> Result<Fields, BufferTooSmall> {
    let name = Percent(cut(name));
    answer(grpc_status(decision), buffer, |out| {
        out.write_str(if decision.can_ever_fit() {
            "The limit "
        } else {
            "This request costs more than the limit "
        })?;
        name.write(out)?;
        if decision.can_ever_fit() {
            out.write_str(if decision.is_unavailable() { CANNOT_BE_ASKED } else { IS_REACHED })?;
            out.number(whole_seconds(decision.retry_after).max(1))?;
            out.write_str(" s.")
        } else {
            out.write_str(" ever admits at once.")
        }
    })
}

/// Writes the fields of the answer to a request that does not tell who it
/// comes from, UNAUTHENTICATED; `header` is the field that is missing.
///
/// # Errors
/// As [`grpc_denial`].
pub fn grpc_missing(header: &str, buffer: &mut [u8]) -> Result<Fields, BufferTooSmall> {
    answer(UNAUTHENTICATED, buffer, |out| {
        out.write_str("This request needs the header field ")?;
        Percent(cut(header)).write(out)?;
        out.write_str(", which tells who it comes from.")
    })
}

fn answer(
    status: u8,
    buffer: &mut [u8],
    message: impl FnOnce(&mut Output<'_>) -> fmt::Result,
) -> Result<Fields, BufferTooSmall> {
    let mut fields = Fields::default();
    let mut writer = Writer { out: Output { buffer, at: 0 }, fields: &mut fields };
    writer.with("content-type", |out| out.write_str("application/grpc"))?;
    writer.number("grpc-status", status.into())?;
    writer.with("grpc-message", message)?;
    Ok(fields)
}

/// As gRPC encodes a message: what is not printable ASCII, and `%`, as `%` and
/// two hexadecimal digits of each byte.
struct Percent<'n>(&'n str);

impl Percent<'_> {
    fn write(&self, out: &mut Output<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'%' => out.write_str("%25"),
            b' '..=b'~' => out.write_char(byte.into()),
            byte => write!(out, "%{byte:02X}"),
        })
    }
}
