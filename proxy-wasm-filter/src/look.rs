//! A request as far as the rules look at it.
//!
//! A value that the host hands over costs more than all else that is done for
//! a request: it calls the VM for memory each time, and prepares itself anew
//! for that. All header fields at once cost as much as one, and a little for
//! each of them. So they are asked for together, unless there are many more
//! than the rules name.

use std::net::IpAddr;

use tollgate_core::http::make_path;
use tollgate_core::policy::{Attributes, MAX_HEADERS, Rules};

use crate::abi::{self, Map};

/// For each field that the rules name, so many may come along with it.
const WORTH: usize = 8;

/// What the rules look at.
#[derive(Debug)]
pub(crate) struct Wanted {
    route: bool,
    peer: bool,
    method: Option<usize>,
    host: Option<usize>,
    path: Option<usize>,
    /// Where those begin that the rules name.
    headers: usize,
    /// Fields, those of the request line among them.
    names: Vec<String>,
    /// Is one of them so long? Longer ones may be.
    lengths: [bool; 32],
}

/// What a request has of it; kept, as one that waited is looked at again.
#[derive(Debug, Default)]
pub(crate) struct Look {
    route: Vec<u8>,
    peer: Option<IpAddr>,
    bytes: Vec<u8>,
    /// Where in the bytes the value of each wanted field is.
    values: Vec<Option<(usize, usize)>>,
}

/// Room for the values of the header fields that the rules name: most name
/// few, and the larger part is not touched then.
#[derive(Debug, Default)]
pub(crate) struct Headers<'a> {
    few: [Option<&'a [u8]>; 4],
    many: Option<[Option<&'a [u8]>; MAX_HEADERS]>,
}

impl<'a> Headers<'a> {
    fn of(&mut self, count: usize) -> &mut [Option<&'a [u8]>] {
        match self.few.get_mut(..count) {
            Some(few) => few,
            None => self.many.get_or_insert([None; MAX_HEADERS]).get_mut(..count).unwrap_or_default(),
        }
    }
}

impl Look {
    #[inline(never)]
    fn value(&self, place: usize) -> Option<&[u8]> {
        let (start, end) = (*self.values.get(place)?)?;
        self.bytes.get(start..end)
    }

    /// A host need not have normalised it: as the client sent it, it would be
    /// the client's to choose which rules match.
    fn make_path(&mut self, place: Option<usize>) {
        let value = place.and_then(|place| self.values.get_mut(place)?.as_mut());
        let Some((start, end)) = value else { return };
        if let Some(target) = self.bytes.get_mut(*start..*end) {
            *end = start.saturating_add(make_path(target));
        }
    }

    /// As new. What a request tells may be large; room for where it is is not.
    pub(crate) fn clear(&mut self) {
        (self.route, self.peer, self.bytes) = (Vec::new(), None, Vec::new());
        self.values.clear();
    }
}

impl Wanted {
    pub(crate) fn new(rules: &Rules) -> Wanted {
        let uses = rules.uses();
        let mut names = Vec::new();
        let mut place = |is_used: bool, name: &str| {
            is_used.then(|| {
                names.push(name.to_owned());
                names.len().saturating_sub(1)
            })
        };
        let method = place(uses.method, ":method");
        let host = place(uses.host, ":authority");
        let path = place(uses.path, ":path");
        let headers = names.len();
        names.extend(rules.headers().iter().cloned());
        let mut lengths = [false; 32];
        for name in &names {
            lengths.get_mut(name.len()).into_iter().for_each(|is_one| *is_one = true);
        }
        Wanted { route: uses.route, peer: uses.peer, method, host, path, headers, names, lengths }
    }

    /// Asks the host, whose request has so many fields.
    pub(crate) fn look(&self, count: usize, look: &mut Look) {
        if self.route {
            look.route = route();
        }
        if self.peer {
            look.peer = peer();
        }
        look.values.resize(self.names.len(), None);
        if self.names.is_empty() {
            return;
        }
        let all =
            if count <= self.names.len().saturating_mul(WORTH) { abi::headers(Map::Request) } else { None };
        match all {
            Some(bytes) => {
                let mut missing = self.names.len();
                abi::each_pair(&bytes, |name, value| {
                    missing = missing.saturating_sub(self.found(name, value, &mut look.values));
                    missing == 0
                });
                look.bytes = bytes;
            }
            None => self.one_by_one(look),
        }
        look.make_path(self.path);
    }

    /// Of fields that stand twice the first one counts, as for the host. How
    /// many of those that are wanted it is.
    fn found(&self, name: &[u8], value: (usize, usize), values: &mut [Option<(usize, usize)>]) -> usize {
        if self.lengths.get(name.len()) == Some(&false) {
            return 0; // as most
        }
        let mut found: usize = 0;
        for (wanted, room) in self.names.iter().zip(values) {
            if name.len() == wanted.len() && room.is_none() && name.eq_ignore_ascii_case(wanted.as_bytes()) {
                *room = Some(value);
                found = found.saturating_add(1);
            }
        }
        found
    }

    fn one_by_one(&self, look: &mut Look) {
        for (name, room) in self.names.iter().zip(&mut look.values) {
            let Ok(Some(value)) = abi::header(Map::Request, name) else { continue };
            let start = look.bytes.len();
            look.bytes.extend_from_slice(&value);
            *room = Some((start, look.bytes.len()));
        }
    }

    /// The request as the core takes it.
    pub(crate) fn attributes<'a>(&self, look: &'a Look, room: &'a mut Headers<'a>) -> Attributes<'a> {
        let count = self.names.len().saturating_sub(self.headers);
        let room = room.of(count);
        for (room, place) in room.iter_mut().zip(self.headers..self.names.len()) {
            *room = look.value(place);
        }
        let (mut method, mut host, mut path): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
        if self.headers > 0 {
            let part = |place: Option<usize>| place.and_then(|place| look.value(place)).unwrap_or(&[]);
            method = part(self.method);
            host = without_port(part(self.host));
            path = part(self.path);
        }
        Attributes { route: &look.route, method, host, path, peer: look.peer, headers: room }
    }
}

/// What the route's metadata says, `tollgate: { route: … }`; else its name.
fn route() -> Vec<u8> {
    let metadata = abi::property("xds\0route_metadata\0filter_metadata\0tollgate\0route");
    let name = || abi::property("xds\0route_name").ok().flatten();
    metadata.ok().flatten().filter(|route| !route.is_empty()).or_else(name).unwrap_or_default()
}

/// Who the host says opened the connection.
fn peer() -> Option<IpAddr> {
    let address = abi::property("source\0address").ok().flatten()?;
    let address = std::str::from_utf8(&address).ok()?;
    let socket = address.parse::<std::net::SocketAddr>().map(|socket| socket.ip());
    socket.or_else(|_| address.parse()).ok()
}

fn without_port(host: &[u8]) -> &[u8] {
    let end = match host.iter().position(|byte| *byte == b']') {
        Some(bracket) => bracket.saturating_add(1),
        None => host.iter().position(|byte| *byte == b':').unwrap_or(host.len()),
    };
    host.get(..end).unwrap_or(host)
}
