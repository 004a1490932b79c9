//! Which connection a key belongs to.
//!
//! A [`Router`] is one [`Link`] or, for a cluster, one for each of its masters,
//! behind the interface of one. The host opens and closes connections as
//! [`poll_action`](Router::poll_action) says, and moves bytes by link:
//!
//! ```text
//!  send(ticket, call) ──►┌────────┐──► poll_action ──► Connect { link, address }, Close { link }
//!                        │ Router │──► poll_transmit(link) ──► socket
//!  poll_event ◄──────────└────────┘◄── receive_buffer(link) ◄── socket
//! ```
//!
//! Tickets complete exactly once, as a link's do. What a node sends on it did
//! not execute, so that it may be sent again: `MOVED` to the slot's new node,
//! which is remembered; `ASK` to the node it names, this once; `TRYAGAIN`
//! (keys of one call on two nodes, while their slot moves) to the slot's node,
//! after a wait of 1 ms that doubles each time, and so after [`MAX_HOPS`] hops
//! between nodes that do not agree yet. All of it within the call's deadline,
//! with [`MAX_WAITS`] waits at most.
//!
//! Which node serves which slot is asked (`CLUSTER SLOTS`) of the first node
//! that answers, after a `MOVED`, and for as long as a node cannot be reached;
//! not more often than each 250 ms. A node that the answer no longer names is
//! left when the calls in flight to it are answered.
//!
//! Memory: a link is made when a node is first met, up to [`MAX_NODES`], and
//! used again for another one when its node is gone. Nothing else grows.

mod inner;
mod parked;
mod slot;
mod topology;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::redis::link::{Command, Event, Link, LinkConfig, LinkError, MAX_CALL, Refused, Step, Why, memory};
use crate::time::{NEVER, Nanos};

use parked::Lot;
use topology::{Address, NOBODY, Topology};

pub use slot::key_slot;

/// Slots of a cluster.
pub const SLOTS: u16 = 16_384;
/// The most nodes that are connected at a time.
pub const MAX_NODES: usize = 64;
/// How often a call is sent on before it waits.
pub const MAX_HOPS: u8 = 5;
/// How often a call waits, for its slot or for nodes to agree: 255 ms in all.
pub const MAX_WAITS: u8 = 8;

const MILLISECOND: Nanos = 1_000_000;
/// Between two questions for the topology.
const REFRESH: Nanos = 250 * MILLISECOND;
/// Without any node for so long, the next configured address is tried.
const RESEED: Nanos = 200 * MILLISECOND;

/// How a router is set up.
#[derive(Clone, Debug)]
pub struct RouterConfig<'a> {
    /// Each link; a cluster has database 0 only.
    pub link: LinkConfig<'a>,
    /// `host:port` or `unix:/path`, one at least, of up to 255 bytes. Without
    /// `cluster` one of them is used at a time, the next one when it cannot be
    /// reached or is a replica; with it, any of its nodes.
    pub addresses: &'a [&'a [u8]],
    /// Is it a cluster?
    pub cluster: bool,
}

/// What the host is to do with its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Open a connection; then [`Router::handle_connected`], or
    /// [`Router::handle_disconnected`] if that fails.
    Connect {
        /// The link's number, below [`MAX_NODES`].
        link: usize,
        /// `host:port`, the port behind the last colon, or `unix:/path`.
        address: &'a [u8],
    },
    /// Close the connection, or stop opening it; `handle_disconnected` is not wanted.
    Close {
        /// The link's number.
        link: usize,
        /// Why; the server's own words are [`Router::last_error`].
        why: Why<'static>,
    },
}

#[derive(Debug)]
struct Node {
    link: Link,
    address: Address,
    /// Is there such a node?
    used: bool,
    /// It is not in the topology: closed when nobody waits for it.
    leaving: bool,
    /// The host is to close its connection: it left.
    close: bool,
}

#[derive(Debug)]
struct Cluster {
    /// Each slot's node, or [`NOBODY`].
    map: Box<[u8]>,
    topology: Topology,
    lot: Lot,
    scratch: Box<[u8]>,
    known: bool,
    told_ready: bool,
    /// The topology is to be asked for; it is being asked for; not before then.
    wanted: bool,
    asking: bool,
    refresh_at: Nanos,
    reseed_at: Nanos,
}

/// One Redis server, or a cluster of them.
#[derive(Debug)]
pub struct Router {
    nodes: Vec<Node>,
    addresses: Box<[Address]>,
    /// Which of the addresses is next.
    address: usize,
    cluster: Option<Cluster>,
    /// Whose events are next.
    turn: usize,
    seed: u64,
}

impl Router {
    /// A router that is not connected: [`poll_action`](Self::poll_action) says what to open.
    ///
    /// # Errors
    /// A number or an address is out of range, or there is not enough memory.
    pub fn new(config: &RouterConfig<'_>) -> Result<Router, LinkError> {
        let mut addresses = Vec::new();
        addresses.try_reserve_exact(config.addresses.len()).map_err(|_| LinkError::Memory)?;
        for address in config.addresses {
            addresses.push(Address::new(address).ok_or(LinkError::Address)?);
        }
        let first = *addresses.first().ok_or(LinkError::Address)?;
        let link = Link::new(&config.link)?;
        let cluster = if config.cluster { Some(Cluster::new(first, &config.link)?) } else { None };
        let mut nodes = Vec::new();
        let most = if config.cluster { MAX_NODES } else { 1 };
        nodes.try_reserve_exact(most).map_err(|_| LinkError::Memory)?;
        nodes.push(Node { link, address: first, used: true, leaving: false, close: false });
        let addresses = addresses.into_boxed_slice();
        let seed = config.link.seed;
        Ok(Router { nodes, addresses, address: 0, cluster, turn: 0, seed })
    }

    /// As [`Link::send`], by the link of the call's first key.
    ///
    /// # Errors
    /// The call was not taken.
    pub fn send(
        &mut self,
        ticket: u64,
        call: &impl Command,
        deadline: Nanos,
        now: Nanos,
    ) -> Result<(), Refused> {
        let (slot, node) = self.node_of(call.key()).ok_or(Refused::NotConnected)?;
        node.link.send_to(slot, ticket, call, deadline, now)
    }

    /// As [`Link::probe`], by the link of `key`.
    ///
    /// # Errors
    /// It was not taken.
    pub fn probe(&mut self, ticket: u64, key: &[u8], deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        let (slot, node) = self.node_of(key).ok_or(Refused::NotConnected)?;
        node.link.probe_to(slot, ticket, key, deadline, now)
    }

    /// As [`Link::hurry`], all links.
    pub fn hurry(&mut self, now: Nanos) {
        self.nodes.iter_mut().for_each(|node| node.link.hurry(now));
    }

    /// As [`Link::cancel`].
    pub fn cancel(&mut self, ticket: u64) -> bool {
        self.nodes.iter_mut().any(|node| node.link.cancel(ticket))
            || self.cluster.as_mut().is_some_and(|cluster| cluster.lot.cancel(ticket))
    }

    /// Is there a connection that takes calls? In a cluster, for some keys at
    /// least, and it is known for which.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.known)
            && self.nodes.iter().any(|node| node.link.is_ready())
    }

    /// As [`is_ready`](Self::is_ready), and no node that is known is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_ready() && !self.is_partial()
    }

    /// Which link a key's calls go by now; `None` when it takes none.
    #[must_use]
    pub fn link_of(&self, key: &[u8]) -> Option<usize> {
        let place = self.place_of(key_slot(key))?;
        self.nodes.get(place).filter(|node| node.link.is_ready()).map(|_| place)
    }

    /// Is a connection open, if only for the first commands?
    #[must_use]
    pub fn is_connected(&self, link: usize) -> bool {
        self.nodes.get(link).is_some_and(|node| node.link.is_connected())
    }

    /// As [`Link::wait_on`].
    pub fn wait_on(&mut self, ticket: u64, heir: u64) -> bool {
        self.nodes.iter_mut().any(|node| node.link.wait_on(ticket, heir))
    }

    /// Calls that wait for their event.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let parked = self.cluster.as_ref().map_or(0, |cluster| cluster.lot.waiting());
        self.nodes.iter().fold(parked, |sum, node| sum.saturating_add(node.link.waiting()))
    }

    /// Links are numbered from 0, below this.
    #[must_use]
    pub fn links(&self) -> usize {
        self.nodes.len()
    }

    /// As [`Link::last_error`].
    #[must_use]
    pub fn last_error(&self, link: usize) -> &[u8] {
        self.nodes.get(link).map_or(&[], |node| node.link.last_error())
    }

    /// As [`Link::poll_transmit`].
    pub fn poll_transmit(&mut self, link: usize) -> &[u8] {
        self.nodes.get_mut(link).map_or(&[], |node| node.link.poll_transmit())
    }

    /// As [`Link::transmitted`].
    pub fn transmitted(&mut self, link: usize, count: usize) {
        if let Some(node) = self.nodes.get_mut(link) {
            node.link.transmitted(count);
        }
    }

    /// As [`Link::receive_buffer`].
    pub fn receive_buffer(&mut self, link: usize) -> &mut [u8] {
        self.nodes.get_mut(link).map_or(&mut [], |node| node.link.receive_buffer())
    }

    /// As [`Link::received`].
    pub fn received(&mut self, link: usize, count: usize) {
        if let Some(node) = self.nodes.get_mut(link) {
            node.link.received(count);
        }
    }

    /// As [`Link::handle_input`].
    pub fn handle_input(&mut self, link: usize, bytes: &[u8]) -> usize {
        self.nodes.get_mut(link).map_or(0, |node| node.link.handle_input(bytes))
    }

    /// As [`Link::handle_connected`].
    pub fn handle_connected(&mut self, link: usize, now: Nanos) {
        if let Some(node) = self.nodes.get_mut(link) {
            node.link.handle_connected(now);
        }
    }

    /// As [`Link::handle_disconnected`].
    pub fn handle_disconnected(&mut self, link: usize, now: Nanos) {
        if let Some(node) = self.nodes.get_mut(link) {
            node.link.handle_disconnected(now);
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.wanted = true;
        }
    }

    /// As [`Link::poll_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let mut next = NEVER;
        let mut ready = false;
        for node in &self.nodes {
            next = next.min(node.link.poll_timeout().unwrap_or(NEVER));
            ready |= node.link.is_ready();
            if node.close || (node.leaving && node.link.waiting() == 0) {
                return Some(0);
            }
        }
        if let Some(cluster) = &self.cluster {
            next = next.min(cluster.lot.next().unwrap_or(NEVER));
            if !ready {
                next = next.min(cluster.reseed_at);
            } else if !cluster.asking && (cluster.wanted || self.is_partial()) {
                next = next.min(cluster.refresh_at);
            }
        }
        (next < NEVER).then_some(next)
    }

    /// As [`Link::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Nanos) {
        for node in &mut self.nodes {
            node.link.handle_timeout(now);
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.lot.expire(now);
            self.flush(now);
            self.maintain(now);
        }
    }

    /// What to do with sockets; call it until there is nothing.
    pub fn poll_action(&mut self, now: Nanos) -> Option<Action<'_>> {
        self.maintain(now);
        let (addresses, next) = (&self.addresses, &mut self.address);
        let single = self.cluster.is_none();
        for (link, node) in self.nodes.iter_mut().enumerate() {
            if core::mem::take(&mut node.close) {
                return Some(Action::Close { link, why: Why::Left });
            }
            if let Some(why) = node.link.poll_close() {
                return Some(Action::Close { link, why });
            }
            if !node.link.poll_connect(now) {
                continue;
            }
            if node.link.take_useless() && single {
                *next = next.saturating_add(1) % addresses.len().max(1);
                node.address = addresses.get(*next).copied().unwrap_or(node.address);
            }
            return Some(Action::Connect { link, address: node.address.as_bytes() });
        }
        None
    }

    /// The next event; call it until there is none, after everything else.
    /// Connections are [`poll_action`](Self::poll_action)'s: there is no
    /// `Connect` and no `Disconnect`. `Ready` comes when the first link is.
    pub fn poll_event(&mut self, now: Nanos) -> Option<Event<'_>> {
        let (place, step) = self.step(now)?;
        match step {
            Step::Ready | Step::Slots { .. } => Some(Event::Ready),
            Step::Done { ticket, why } => Some(Event::Failed { ticket, why }),
            step => self.nodes.get(place).map(|node| node.link.event(step)),
        }
    }
}

impl Cluster {
    fn new(first: Address, config: &LinkConfig<'_>) -> Result<Cluster, LinkError> {
        let mut map = memory(usize::from(SLOTS)).ok_or(LinkError::Memory)?;
        map.fill(NOBODY);
        Ok(Cluster {
            map,
            topology: Topology::new(first).ok_or(LinkError::Memory)?,
            lot: Lot::new(config.transmit_bytes, config.in_flight).ok_or(LinkError::Memory)?,
            scratch: memory(config.transmit_bytes.min(MAX_CALL)).ok_or(LinkError::Memory)?,
            known: false,
            told_ready: false,
            wanted: true,
            asking: false,
            refresh_at: 0,
            reseed_at: 0,
        })
    }
}

#[cfg(test)]
mod tests;
