//! NGINX's `combined` format, byte by byte and without a copy:
//!
//! ```text
//! ADDRESS - USER [TIME] "METHOD TARGET VERSION" STATUS BYTES "REFERER" "USER-AGENT" "X-FORWARDED-FOR"
//! ```
//!
//! The last field is that of the `main` format, which comes with NGINX; it and
//! the two before it may be missing. A quote inside of a field is escaped, so
//! the first one in a line begins the request, whatever the user's name is.

use alloc::vec::Vec;

use super::engine::Engine;
use super::record::{Defaults, Headers, MAX_HEADERS, Record, Slot, header_slot, peer, request_line, told};
use super::target;
use super::time::{self, Clock};
use crate::policy::{Attributes, Rules};

/// `30/Nov/2026:00:06:06 +0000`.
const TIME: usize = 26;

/// Reads lines of one log.
#[derive(Debug)]
pub(super) struct Combined {
    places: [Option<usize>; 3],
    clock: Clock,
    scratch: Scratch,
}

impl Combined {
    pub(super) fn new(rules: &Rules) -> Combined {
        let place = |name: &[u8]| match header_slot(name, rules.headers()) {
            Some(Slot::Header(place)) => Some(usize::from(place)),
            _ => None,
        };
        let places = [place(b"referer"), place(b"user-agent"), place(b"x-forwarded-for")];
        Combined { places, clock: Clock::default(), scratch: Scratch::default() }
    }

    /// Asks the rules about one line.
    pub(super) fn line(
        &mut self,
        line: &[u8],
        number: u64,
        defaults: Defaults<'_>,
        engine: &mut Engine<'_>,
    ) -> Result<(), &'static str> {
        let Combined { places, clock, scratch } = self;
        let fields = Fields::split(line, *places)?;
        let mut headers: Headers<'_> = [None; MAX_HEADERS];
        let record = fields.record(engine.rules, *places, defaults, clock, &mut headers, scratch)?;
        engine.ask(&record, number);
        Ok(())
    }
}

/// Does a line look like one of this format?
pub(super) fn is_line(line: &[u8]) -> bool {
    Fields::split(line, [None; 3]).is_ok_and(|fields| time::parse(fields.time).is_some())
}

/// A line, cut into its fields.
struct Fields<'l> {
    address: &'l [u8],
    time: &'l [u8],
    request: &'l [u8],
    status: &'l [u8],
    /// Referer, user agent, chain of proxies.
    quoted: [&'l [u8]; 3],
    is_escaped: bool,
}

/// Room for fields that have to be decoded.
#[derive(Debug, Default)]
struct Scratch {
    request: Vec<u8>,
    quoted: [Vec<u8>; 3],
    path: Vec<u8>,
}

impl<'l> Fields<'l> {
    /// `places` says which of the last three fields are looked at.
    fn split(line: &'l [u8], places: [Option<usize>; 3]) -> Result<Fields<'l>, &'static str> {
        const NOT: &str = "not a line of the combined format";
        let quote = memchr::memchr(b'"', line).ok_or(NOT)?;
        let (before, rest) = line.split_at_checked(quote).ok_or(NOT)?;
        let before = before.strip_suffix(b"] ").ok_or(NOT)?;
        let (before, time) = before.split_at_checked(before.len().wrapping_sub(TIME)).ok_or(NOT)?;
        let before = before.strip_suffix(b" [").ok_or(NOT)?;
        let space = memchr::memchr(b' ', before).ok_or(NOT)?;
        let (request, rest) = quoted(rest)?;
        let rest = rest.strip_prefix(b" ").ok_or(NOT)?;
        let (status, mut rest) = rest.split_at_checked(3).ok_or(NOT)?;
        let mut fields = Fields {
            address: before.get(..space).unwrap_or(&[]),
            time,
            request,
            status,
            quoted: [b""; 3],
            is_escaped: request.contains(&b'\\'),
        };
        let wanted = places.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        for room in fields.quoted.iter_mut().take(wanted) {
            let Some(quote) = memchr::memchr(b'"', rest) else { break };
            (*room, rest) = quoted(rest.get(quote..).unwrap_or(&[]))?;
            fields.is_escaped |= room.contains(&b'\\');
        }
        Ok(fields)
    }

    fn record<'r>(
        &self,
        rules: &Rules,
        places: [Option<usize>; 3],
        defaults: Defaults<'r>,
        clock: &mut Clock,
        headers: &'r mut Headers<'r>,
        scratch: &'r mut Scratch,
    ) -> Result<Record<'r>, &'static str>
    where
        'l: 'r,
    {
        let at = clock.read(self.time).ok_or("the time cannot be read")?;
        let (mut request, mut values): (&'r [u8], [&'r [u8]; 3]) = (self.request, self.quoted);
        if self.is_escaped {
            request = decode(request, &mut scratch.request);
            for (value, room) in values.iter_mut().zip(&mut scratch.quoted) {
                *value = decode(value, room);
            }
        }
        let (method, target) = request_line(request).ok_or("the request is not METHOD TARGET VERSION")?;
        for (place, value) in places.iter().zip(values) {
            if let Some(room) = place.and_then(|place| headers.get_mut(place)) {
                *room = told(value);
            }
        }
        Ok(Record {
            at,
            request: Attributes {
                route: defaults.route,
                method,
                host: defaults.host,
                path: target::path(target, &mut scratch.path),
                peer: peer(self.address)?,
                headers: headers.get(..rules.headers().len()).unwrap_or(&[]),
            },
            was_limited: self.status == b"429",
        })
    }
}

/// What stands between two quotes, and what is behind them.
fn quoted(text: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let inner = text.strip_prefix(b"\"").ok_or("a quote is missing")?;
    let mut from = 0;
    while let Some(found) = inner.get(from..).and_then(|rest| memchr::memchr(b'"', rest)) {
        let end = from + found;
        let (value, rest) = inner.split_at_checked(end).ok_or("a quote is missing")?;
        // Other servers escape a quote by a backslash.
        let backslashes = value.iter().rev().take_while(|&&byte| byte == b'\\').count();
        if backslashes.is_multiple_of(2) {
            return Ok((value, rest.get(1..).unwrap_or(&[])));
        }
        from = end + 1;
    }
    Err("a quote is not closed")
}

/// Undoes NGINX's `\x22`, and the `\"` and `\\` of others.
#[cold]
fn decode<'o>(text: &[u8], out: &'o mut Vec<u8>) -> &'o [u8] {
    out.clear();
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        let (byte, behind) = match (byte, behind) {
            (b'\\', [b'x', high, low, behind @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8); // at most 15
                match (digit(*high), digit(*low)) {
                    (Some(high), Some(low)) => (high << 4 | low, behind),
                    _ => (b'\\', rest.get(1..).unwrap_or(&[])),
                }
            }
            (b'\\', [byte @ (b'"' | b'\\'), behind @ ..]) => (*byte, behind),
            (&byte, behind) => (byte, behind),
        };
        out.push(byte);
        rest = behind;
    }
    out
}
