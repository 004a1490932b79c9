//! Which node serves which slot, read from `CLUSTER SLOTS` part by part.
//!
//! ```text
//! *ranges  *range :first :last *master $host :port …  *replica …
//! depth 0  1      2      2     2       3     3        2
//! ```
//!
//! Only masters count. The reply is staged, and taken when it is complete.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::redis::link::memory;
use crate::redis::resp::{Part, Token};

use super::{MAX_NODES, SLOTS};

/// No node.
pub(super) const NOBODY: u8 = u8::MAX;
const _: () = assert!(MAX_NODES < NOBODY as usize);

/// The longest address, in bytes.
const MAX_ADDRESS: usize = 255;

/// `host:port`, the port behind the last colon; or `unix:/path`.
#[derive(Clone, Copy)]
pub(super) struct Address {
    len: u8,
    bytes: [u8; MAX_ADDRESS],
}

impl core::fmt::Debug for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

impl Address {
    pub(super) fn new(bytes: &[u8]) -> Option<Address> {
        let mut address = Address { len: 0, bytes: [0; MAX_ADDRESS] };
        address.append(bytes)?;
        (address.len > 0).then_some(address)
    }

    /// As a server says it: without a host (or with `?`), it is the host of `asked`.
    pub(super) fn of(host: &[u8], port: &[u8], asked: &Address) -> Option<Address> {
        let host = if matches!(host, b"" | b"?") { asked.split()?.0 } else { host };
        let mut address = Address::new(host)?;
        address.append(b":")?;
        address.append(port)?;
        Some(address)
    }

    /// From a redirection: `host:port`, or `:port`.
    pub(super) fn of_redirect(to: &[u8], asked: &Address) -> Option<Address> {
        let to = Address::new(to)?;
        let (host, port) = to.split()?;
        (!port.is_empty()).then_some(())?;
        Address::of(host, port, asked)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    fn split(&self) -> Option<(&[u8], &[u8])> {
        let bytes = self.as_bytes();
        if bytes.starts_with(b"unix:") {
            return None;
        }
        let colon = bytes.iter().rposition(|byte| *byte == b':')?;
        Some((bytes.get(..colon)?, bytes.get(colon.saturating_add(1)..)?))
    }

    fn append(&mut self, more: &[u8]) -> Option<()> {
        let start = usize::from(self.len);
        let end = start.checked_add(more.len())?;
        self.bytes.get_mut(start..end)?.copy_from_slice(more);
        self.len = u8::try_from(end).ok()?;
        Some(())
    }
}

/// A reply, as far as it has come.
#[derive(Debug)]
pub(super) struct Topology {
    /// The masters; slots name them by their place.
    masters: Vec<Address>,
    slots: Box<[u8]>,
    asked: Address,
    first: i64,
    last: i64,
    host: Option<Address>,
    /// The next element's place in its range, and in its node.
    in_range: u32,
    in_node: u32,
}

impl Topology {
    pub(super) fn new(asked: Address) -> Option<Topology> {
        let mut masters = Vec::new();
        masters.try_reserve_exact(MAX_NODES).ok()?;
        let slots = memory(usize::from(SLOTS))?;
        Some(Topology { masters, slots, asked, first: 0, last: -1, host: None, in_range: 0, in_node: 0 })
    }

    /// Before a reply from the node at `asked`.
    pub(super) fn begin(&mut self, asked: Address) {
        self.asked = asked;
        self.masters.clear();
        self.slots.fill(NOBODY);
    }

    pub(super) fn masters(&self) -> &[Address] {
        &self.masters
    }

    /// Each slot's master, by its place among the masters, or [`NOBODY`].
    pub(super) fn slots(&self) -> &[u8] {
        &self.slots
    }

    pub(super) fn take(&mut self, part: &Part<'_>) {
        match (part.depth, part.token) {
            (1, _) => self.in_range = 0,
            (2, token) => {
                match (self.in_range, token) {
                    (0, Token::Integer(first)) => self.first = first,
                    (1, Token::Integer(last)) => self.last = last,
                    _ => {}
                }
                self.in_range = self.in_range.saturating_add(1);
                self.in_node = 0;
            }
            (3, token) => {
                let master = self.in_range == 3;
                match (self.in_node, token) {
                    (0, Token::Bulk(host) | Token::Simple(host)) if master => self.host = Address::new(host),
                    (0, _) => self.host = None,
                    (1, Token::Integer(port)) if master => self.serve(port),
                    _ => {}
                }
                self.in_node = self.in_node.saturating_add(1);
            }
            _ => {}
        }
    }

    /// The master at `host` and this port serves the range.
    fn serve(&mut self, port: i64) {
        let (Ok(first), Ok(last)) = (usize::try_from(self.first), usize::try_from(self.last)) else { return };
        let mut digits = itoa::Buffer::new();
        let host = self.host.as_ref().map_or(&b""[..], Address::as_bytes);
        let address = Address::of(host, digits.format(port).as_bytes(), &self.asked);
        let (Some(address), true) = (address, (1..=65_535).contains(&port)) else { return };
        let known = self.masters.iter().position(|known| known.as_bytes() == address.as_bytes());
        let place = match known {
            Some(place) => place,
            None if self.masters.len() < MAX_NODES => {
                self.masters.push(address);
                self.masters.len().saturating_sub(1)
            }
            None => return,
        };
        let place = u8::try_from(place).unwrap_or(NOBODY);
        if let Some(range) = self.slots.get_mut(first..=last.min(usize::from(SLOTS).saturating_sub(1))) {
            range.fill(place);
        }
    }
}
