//! One request, as a line of a log tells it.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::policy::Attributes;
pub(super) use crate::policy::MAX_HEADERS;
use crate::time::Nanos;

/// What lines that do not tell are taken to mean.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults<'d> {
    pub(super) route: &'d [u8],
    pub(super) host: &'d [u8],
}

/// A request and when it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'l> {
    pub(super) at: Nanos,
    pub(super) request: Attributes<'l>,
    /// Was it answered 429 in its own time?
    pub(super) was_limited: bool,
}

/// Values of header fields, in the order in which the rules name them.
pub(super) type Headers<'l> = [Option<&'l [u8]>; MAX_HEADERS];

/// A field of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Slot {
    Time,
    /// Seconds with three decimals: better than a time in whole seconds.
    Msec,
    Method,
    /// As the host matches it.
    Path,
    /// As the client sent it.
    Target,
    /// Method, target and version.
    Request,
    Host,
    HttpHost,
    Route,
    Peer,
    Status,
    Header(u8),
}

/// Slots that are no header fields.
pub(super) const PLAIN_SLOTS: usize = 11;

impl Slot {
    /// By the names that NGINX's variables and other logs give.
    pub(super) fn named(name: &[u8], headers: &[String]) -> Option<Slot> {
        Some(match name {
            b"time" | b"time_iso8601" | b"time_local" | b"timestamp" | b"@timestamp" | b"ts" => Slot::Time,
            b"msec" => Slot::Msec,
            b"method" | b"request_method" => Slot::Method,
            b"path" | b"uri" => Slot::Path,
            b"request_uri" => Slot::Target,
            b"request" => Slot::Request,
            b"host" => Slot::Host,
            b"http_host" => Slot::HttpHost,
            b"route" => Slot::Route,
            b"peer" | b"remote_addr" => Slot::Peer,
            b"status" => Slot::Status,
            _ => {
                let header = name.strip_prefix(b"http_").or_else(|| name.strip_prefix(b"header_"))?;
                return header_slot(header, headers);
            }
        })
    }

    /// Where its value goes.
    pub(super) fn index(self) -> usize {
        match self {
            Slot::Time => 0,
            Slot::Msec => 1,
            Slot::Method => 2,
            Slot::Path => 3,
            Slot::Target => 4,
            Slot::Request => 5,
            Slot::Host => 6,
            Slot::HttpHost => 7,
            Slot::Route => 8,
            Slot::Peer => 9,
            Slot::Status => 10,
            Slot::Header(place) => PLAIN_SLOTS + usize::from(place),
        }
    }
}

/// A header field by its name, in any case and with `_` for `-`.
pub(super) fn header_slot(name: &[u8], headers: &[String]) -> Option<Slot> {
    let same = |(&a, &b): (&u8, &u8)| a == b || (a == b'-' && b == b'_') || a == b.to_ascii_lowercase();
    let is = |known: &String| known.len() == name.len() && known.as_bytes().iter().zip(name).all(same);
    let place = headers.iter().position(is)?;
    u8::try_from(place).ok().filter(|&place| usize::from(place) < MAX_HEADERS).map(Slot::Header)
}

/// What stands for "nothing" in a log.
pub(super) fn told(value: &[u8]) -> Option<&[u8]> {
    (!matches!(value, b"" | b"-")).then_some(value)
}

/// Who opened the connection; `Err` if that is no address.
pub(super) fn peer(text: &[u8]) -> Result<Option<IpAddr>, &'static str> {
    match told(text) {
        None => Ok(None),
        Some(local) if local.starts_with(b"unix:") => Ok(None),
        Some(text) => {
            let address = core::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            address.map(Some).ok_or("the client's address is not one")
        }
    }
}

/// A host without its port.
pub(super) fn host_name(host: &[u8]) -> &[u8] {
    if host.starts_with(b"[") {
        return host.iter().position(|&byte| byte == b']').map_or(host, |end| host.split_at(end + 1).0);
    }
    host.split(|&byte| byte == b':').next().unwrap_or(host)
}

/// The method and target of a request line, if it is one.
pub(super) fn request_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = memchr::memchr(b' ', line)?;
    let (method, rest) = line.split_at_checked(space)?;
    let rest = rest.get(1..)?;
    // HTTP/0.9 has no version; a target may hold spaces, as nobody checked it.
    let target = match memchr::memrchr(b' ', rest) {
        Some(space) if rest.get(space + 1..).is_some_and(|version| version.starts_with(b"HTTP/")) => {
            rest.get(..space)?
        }
        _ => rest,
    };
    (!method.is_empty() && !target.is_empty()).then_some((method, target))
}

/// The values of a line in owned memory, for formats whose values must be
/// decoded.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) bytes: Vec<u8>,
    spans: Vec<Option<(usize, usize)>>,
}

impl Values {
    pub(super) fn new(headers: usize) -> Values {
        Values { bytes: Vec::new(), spans: vec![None; PLAIN_SLOTS + headers] }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.spans.fill(None);
    }

    /// Takes a value.
    pub(super) fn put(&mut self, slot: Slot, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.mark(slot, start, self.bytes.len());
    }

    /// Takes a value that was written into `bytes`.
    pub(super) fn mark(&mut self, slot: Slot, start: usize, end: usize) {
        if let Some(span) = self.spans.get_mut(slot.index()) {
            *span = Some((start, end));
        }
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&[u8]> {
        let (start, end) = (*self.spans.get(slot.index())?)?;
        told(self.bytes.get(start..end)?)
    }

    /// The request that they are; `scratch` is for a path that must be made.
    pub(super) fn record<'v>(
        &'v self,
        clock: &mut super::time::Clock,
        defaults: Defaults<'v>,
        headers: &'v mut Headers<'v>,
        scratch: &'v mut Vec<u8>,
    ) -> Result<Record<'v>, &'static str> {
        let at = self.get(Slot::Msec).or_else(|| self.get(Slot::Time)).ok_or("no time")?;
        let at = clock.read(at).ok_or("the time cannot be read")?;
        let line = self.get(Slot::Request).and_then(request_line);
        let method = self.get(Slot::Method).or(line.map(|(method, _)| method)).unwrap_or(b"");
        let target = self.get(Slot::Target).or(line.map(|(_, target)| target));
        let path = match (self.get(Slot::Path), target) {
            (Some(path), _) => crate::http::without_query(path),
            (None, Some(target)) => super::target::path(target, scratch),
            (None, None) => b"",
        };
        let host = self.get(Slot::Host).or_else(|| self.get(Slot::HttpHost)).map(host_name);
        let spans = self.spans.get(PLAIN_SLOTS..).unwrap_or(&[]);
        for (room, span) in headers.iter_mut().zip(spans) {
            *room = span.and_then(|(start, end)| told(self.bytes.get(start..end)?));
        }
        Ok(Record {
            at,
            request: Attributes {
                route: self.get(Slot::Route).unwrap_or(defaults.route),
                method,
                host: host.unwrap_or(defaults.host),
                path,
                peer: peer(self.get(Slot::Peer).unwrap_or(b""))?,
                headers: headers.get(..spans.len()).unwrap_or(&[]),
            },
            was_limited: self.get(Slot::Status) == Some(b"429"),
        })
    }
}
