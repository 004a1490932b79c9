//! One connection to Redis, as bytes out and bytes in.
//!
//! A [`Link`] owns no socket, reads no clock and starts nothing. Whoever owns
//! the socket asks it what to do:
//!
//! ```text
//!  send(ticket, call) ──►┌──────┐──► poll_transmit ──► socket
//!                        │ Link │
//!  poll_event ◄──────────└──────┘◄── receive_buffer, received ◄── socket
//!                           ▲ handle_connected, handle_disconnected, handle_timeout
//! ```
//!
//! A connection begins with one small command, and the server's answer to it.
//! One that does not know us, or has no place, says so then. Were all written
//! at once, it would close in the middle of them, and its words could be lost.
//!
//! Calls are pipelined: they are written as they come, and answered in that
//! order. **Every ticket that [`send`](Link::send) took completes exactly
//! once**: by one [`Event::Reply`] or one [`Event::Failed`], or silently by
//! [`cancel`](Link::cancel). A call whose fate is in doubt (its connection
//! went, its deadline passed) fails and is never sent again. Only what the
//! server says it did not execute is: a script that it does not know
//! (`NOSCRIPT`, after a `SCRIPT FLUSH` or a restart) is loaded, and the call
//! follows behind it, from the bytes that are kept until its reply.
//!
//! A call that comes before the first connection stands is kept, and goes out
//! behind what that begins with: it costs the request that came first a
//! moment, not its answer. Its deadline is what it was, and the connection has
//! until then to be made; when nobody is there it fails at once, as do those
//! after it until there is a connection. One that is not made in time is not
//! there yet: calls that come then wait for the next.
//!
//! A connection is given up, and a new one asked for, when nothing is answered
//! for `stall_timeout`, when what comes is no reply, when the server turns out
//! to be a replica, and when it no longer knows who we are. The first new try
//! comes at once, further ones after a wait that doubles.
//!
//! Memory is taken by [`Link::new`], and is what was configured: a call that
//! finds no room is refused.

mod backoff;
mod inner;
mod queue;
mod ring;
mod setup;
mod why;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::ops::Range;

use crate::redis::resp::{Encoder, MAX_LINE, Part, Reader, Token};
use crate::redis::script::{Call, Known};
use crate::time::{NEVER, Nanos};

use backoff::Backoff;
use queue::{Holder, Kind, Queue};
use ring::zeros;
use setup::Setup;

pub(crate) use queue::Entry;
pub(crate) use ring::{Ring, zeros as memory};
pub use setup::Script;
pub use why::Why;

/// The most integers of one reply.
pub const MAX_INTEGERS: usize = 256;
/// The longest call, encoded, in bytes; less when the transmit buffer is smaller.
pub const MAX_CALL: usize = 64 * 1024;
/// How often a call is sent again because the server lost its script.
const MAX_TRIES: u8 = 8;
/// `ASKING`, in front of a call that a node was named for only this once.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";
const MILLISECOND: Nanos = 1_000_000;
/// How much of the server's last error is kept.
const ERROR_TEXT: usize = 128;

/// How a link is set up. [`Default`] gives what suits a server nearby.
#[derive(Clone, Debug)]
pub struct LinkConfig<'a> {
    /// The user, of Redis's access lists; without one the default user.
    pub username: Option<&'a [u8]>,
    /// The password; no AUTH without a user or a password.
    pub password: Option<&'a [u8]>,
    /// The database, by number.
    pub database: u32,
    /// The name in `CLIENT LIST`; no matter if the server refuses it.
    pub name: Option<&'a [u8]>,
    /// The scripts that calls name by number; `None` for those of [`script`](crate::redis::script).
    pub scripts: Option<&'a [Script]>,
    /// Bytes of calls that were not answered yet, 4 KiB to 16 MiB.
    pub transmit_bytes: usize,
    /// Bytes that came and were not read yet, 4 KiB to 16 MiB.
    pub receive_bytes: usize,
    /// Calls that were not answered yet, 1 to 65,536.
    pub in_flight: usize,
    /// From [`Event::Connect`] to [`Event::Ready`], 1 ms or more; the first
    /// connection has longer while the first call that waits for it has.
    pub connect_timeout: Nanos,
    /// Without a reply for so long while one is due, the connection counts as
    /// dead; 1 ms or more.
    pub stall_timeout: Nanos,
    /// The first and the longest wait before a connection is tried again; the
    /// first is 1 ms or more, the longest not less than it.
    pub backoff: (Nanos, Nanos),
    /// What the waits are drawn by: different in each instance.
    pub seed: u64,
}

impl Default for LinkConfig<'_> {
    fn default() -> Self {
        LinkConfig {
            username: None,
            password: None,
            database: 0,
            name: Some(b"tollgate"),
            scripts: None,
            transmit_bytes: 256 * 1024,
            receive_bytes: 32 * 1024,
            in_flight: 1024,
            connect_timeout: 400 * MILLISECOND,
            stall_timeout: 400 * MILLISECOND,
            backoff: (10 * MILLISECOND, 400 * MILLISECOND),
            seed: 0,
        }
    }
}

/// What of a configuration cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A buffer's size.
    #[error("a buffer of {0} bytes: it must be 4,096 to 16,777,216")]
    Buffer(usize),
    /// The number of calls in flight.
    #[error("{0} calls in flight: there may be 1 to 65,536")]
    InFlight(usize),
    /// A timeout.
    #[error("a timeout of {0} ns: it must be 1 ms or more")]
    Timeout(Nanos),
    /// The waits between connections.
    #[error("waits of {0} to {1} ns: the first must be 1 ms or more, the longest not less")]
    Backoff(Nanos, Nanos),
    /// User and password, or the name.
    #[error("credentials or a name of {0} bytes: they may have 65,536")]
    Credentials(usize),
    /// No address, or one that is too long.
    #[error("addresses: one at least, each of 1 to 255 bytes")]
    Address,
    /// There is not enough memory.
    #[error("not enough memory")]
    Memory,
}

/// Why a call was not taken. Its ticket has no event then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no connection that is ready, and this is not the first one.
    #[error("not connected")]
    NotConnected,
    /// Too many calls, or bytes of them, are in flight.
    #[error("too many calls in flight")]
    Full,
    /// The call is longer than the buffer, whatever else is in it.
    #[error("the call is too long")]
    TooLong,
}

impl Refused {
    /// Is it the store that fails? That counts for a circuit breaker; want of
    /// room is no fault of the store's.
    #[must_use]
    pub fn is_store_failure(self) -> bool {
        self == Refused::NotConnected
    }
}

/// What a link can send: a script by its number, and arguments.
pub trait Command {
    /// The number of the script.
    fn script(&self) -> usize;
    /// The first key: it says which node of a cluster the call is for.
    fn key(&self) -> &[u8];
    /// Calls `each` with every argument behind the script: the number of keys,
    /// the keys, the rest.
    fn arguments(&self, each: &mut dyn FnMut(&[u8]));

    /// Writes these arguments; `known` has what stood in other calls.
    fn write(&self, command: &mut Encoder<'_>, known: &mut Known) {
        let _ = known;
        self.arguments(&mut |argument| command.arg(argument));
    }
}

impl Command for Call<'_> {
    fn script(&self) -> usize {
        Call::script(self) as usize
    }

    fn key(&self) -> &[u8] {
        self.asks.first().map_or(&[], |ask| ask.key)
    }

    fn arguments(&self, each: &mut dyn FnMut(&[u8])) {
        Call::arguments(self, each);
    }

    fn write(&self, command: &mut Encoder<'_>, known: &mut Known) {
        known.write(self, command);
    }
}

/// What a link has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Open a connection; then [`Link::handle_connected`], or
    /// [`Link::handle_disconnected`] if that fails.
    Connect,
    /// Close the connection, or stop opening it. It is over for the link:
    /// `handle_disconnected` is not wanted.
    Disconnect {
        /// Why; the server's own words are [`Link::last_error`].
        why: Why<'static>,
    },
    /// Calls are taken from now on.
    Ready,
    /// A call was executed.
    Reply {
        /// As it was sent with.
        ticket: u64,
        /// What the script gave; nothing for a probe.
        integers: &'a [i64],
        /// When it was sent.
        asked_at: Nanos,
    },
    /// A call failed.
    Failed {
        /// As it was sent with.
        ticket: u64,
        /// Why.
        why: Why<'a>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not to be used.
    Off,
    /// No connection before this time.
    Waiting(Nanos),
    /// Asked for, until this time.
    Connecting(Nanos),
    /// The first commands are not answered yet; until this time.
    Setup(Nanos),
    Ready,
}

/// One event, by places instead of references.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Ready,
    Reply {
        ticket: u64,
        asked_at: Nanos,
    },
    Failed {
        ticket: u64,
        line: Range<usize>,
    },
    Done {
        ticket: u64,
        why: Why<'static>,
    },
    /// The front entry was not executed: MOVED, ASK or TRYAGAIN. It is still there.
    Redirect {
        line: Range<usize>,
    },
    /// The reply to `CLUSTER SLOTS` is complete, or there will be none.
    Slots {
        complete: bool,
    },
}

/// One connection to a Redis server.
#[derive(Debug)]
pub struct Link {
    state: State,
    /// There was none before this one, and nobody refused it: calls wait for it.
    is_first: bool,
    /// Until when the first of them does; 0 when there was none.
    awaited_until: Nanos,
    /// The first command was answered: what follows it may be written.
    is_greeted: bool,
    /// The host says that the connection is gone; what came is still read.
    ended: bool,
    /// The host is to close the connection, and was not told yet.
    closing: Option<Why<'static>>,
    ready_due: bool,
    /// The last connection was of no use: another address may be.
    useless: bool,
    queue: Queue,
    /// Tickets that failed, and were not told yet.
    done: VecDeque<(u64, Why<'static>)>,
    in_flight: usize,
    transmit_bytes: usize,
    scratch: Box<[u8]>,
    known: Known,
    input: Box<[u8]>,
    input_start: usize,
    input_end: usize,
    reader: Reader,
    integers: Box<[i64]>,
    integer_count: usize,
    setup: Setup,
    /// Which scripts are being loaded again.
    loading: Box<[bool]>,
    slots_due: bool,
    last_reply_at: Nanos,
    connect_timeout: Nanos,
    stall_timeout: Nanos,
    backoff: Backoff,
    error: [u8; ERROR_TEXT],
    error_len: usize,
}

impl Link {
    /// A link that is not connected: its first event is [`Event::Connect`].
    ///
    /// # Errors
    /// A number is out of range, or there is not enough memory.
    pub fn new(config: &LinkConfig<'_>) -> Result<Link, LinkError> {
        for size in [config.transmit_bytes, config.receive_bytes] {
            if !(4 * 1024..=16 * 1024 * 1024).contains(&size) {
                return Err(LinkError::Buffer(size));
            }
        }
        if !(1..=65_536).contains(&config.in_flight) {
            return Err(LinkError::InFlight(config.in_flight));
        }
        for timeout in [config.connect_timeout, config.stall_timeout] {
            if timeout < MILLISECOND {
                return Err(LinkError::Timeout(timeout));
            }
        }
        let (first, longest) = config.backoff;
        if first < MILLISECOND || longest < first {
            return Err(LinkError::Backoff(first, longest));
        }
        let sizes = (config.transmit_bytes, config.receive_bytes, config.in_flight);
        let times = (config.connect_timeout, config.stall_timeout);
        Link::with(Setup::new(config)?, sizes, times, Backoff::new(first, longest, config.seed))
    }

    /// Asks for a call; its ticket must not be that of another one in flight.
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
        self.send_to(0, ticket, call, deadline, now)
    }

    /// Asks whether the server takes writes: sets `key`, for a second. The
    /// reply has no integers.
    ///
    /// # Errors
    /// It was not taken.
    pub fn probe(&mut self, ticket: u64, key: &[u8], deadline: Nanos, now: Nanos) -> Result<(), Refused> {
        self.probe_to(0, ticket, key, deadline, now)
    }

    /// The server is said to be well: if the link waits before it connects
    /// again, it waits no longer.
    pub fn hurry(&mut self, now: Nanos) {
        if let State::Waiting(at) = self.state {
            self.state = State::Waiting(at.min(now));
        }
    }

    /// There will be no event for `ticket`. False if there was to be none
    /// anyway. A call that was written is executed all the same.
    pub fn cancel(&mut self, ticket: u64) -> bool {
        if self.queue.cancel(ticket) {
            return true;
        }
        let before = self.done.len();
        self.done.retain(|(failed, _)| *failed != ticket);
        self.done.len() < before
    }

    /// A call that failed at its deadline may have been written, and its reply
    /// may still come: `heir` has the event then. There is no other deadline
    /// but the connection's. False if there will be no event.
    pub fn wait_on(&mut self, ticket: u64, heir: u64) -> bool {
        self.queue.wait_on(ticket, heir)
    }

    /// Is there a connection that takes calls?
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready && !self.ended
    }

    /// Calls that wait for their event.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.live().saturating_add(self.done.len())
    }

    /// The server's last error that was not about one key, up to 128 bytes; empty if there was none.
    #[must_use]
    pub fn last_error(&self) -> &[u8] {
        self.error.get(..self.error_len).unwrap_or_default()
    }

    /// What is to be written, as far as it lies together; empty when nothing
    /// is. Write any part of it, tell [`transmitted`](Self::transmitted), and ask again.
    pub fn poll_transmit(&mut self) -> &[u8] {
        match (self.is_connected(), self.is_greeted) {
            (true, true) => self.queue.unsent(),
            (true, false) => self.queue.unsent_of_first(),
            (false, _) => &[],
        }
    }

    /// `count` bytes of [`poll_transmit`](Self::poll_transmit) were written.
    pub fn transmitted(&mut self, count: usize) {
        if self.is_connected() {
            self.queue.transmitted(count);
        }
    }

    /// Where bytes from the server are to be put. Empty when there is no
    /// connection, or when all of it waits for [`poll_event`](Self::poll_event).
    pub fn receive_buffer(&mut self) -> &mut [u8] {
        if !self.is_connected() {
            return &mut [];
        }
        if self.input_start > 0 {
            self.input.copy_within(self.input_start..self.input_end, 0);
            self.input_end = self.input_end.saturating_sub(self.input_start);
            self.input_start = 0;
        }
        self.input.get_mut(self.input_end..).unwrap_or_default()
    }

    /// `count` bytes were put into [`receive_buffer`](Self::receive_buffer).
    pub fn received(&mut self, count: usize) {
        if self.is_connected() {
            self.input_end = self.input_end.saturating_add(count).min(self.input.len());
        }
    }

    /// Takes bytes from the server, and says how many: fewer than all when the
    /// buffer is full. Poll events then, and give the rest.
    pub fn handle_input(&mut self, bytes: &[u8]) -> usize {
        let room = self.receive_buffer();
        let count = bytes.len().min(room.len());
        for (place, byte) in room.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.received(count);
        count
    }

    /// The connection that was asked for is there.
    pub fn handle_connected(&mut self, now: Nanos) {
        let State::Connecting(until) = self.state else { return };
        self.state = State::Setup(until);
        self.is_greeted = false;
        self.last_reply_at = now;
        self.queue_setup(now);
    }

    /// The connection is gone, or could not be opened. What came before is
    /// still read by [`poll_event`](Self::poll_event), which then fails the
    /// calls that have no reply.
    pub fn handle_disconnected(&mut self, now: Nanos) {
        match self.state {
            State::Connecting(_) => self.close(Why::Disconnected, now, false),
            State::Setup(_) | State::Ready => self.ended = true,
            State::Off | State::Waiting(_) => {}
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) or
    /// [`poll_event`](Self::poll_event) is to be called next, at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if !self.done.is_empty() || self.closing.is_some() || self.ready_due || self.ended {
            return Some(0);
        }
        let next = match self.state {
            State::Off => return None,
            State::Waiting(at) => Some(at),
            State::Connecting(until) | State::Setup(until) => Some(until.max(self.awaited_until)),
            State::Ready => self.stalls_at(),
        };
        [next, self.queue.next_deadline()].into_iter().flatten().min()
    }

    /// Fails the calls whose deadline has come, and gives up a connection that
    /// is dead. Poll events before, so that a reply that is there is taken,
    /// and after.
    pub fn handle_timeout(&mut self, now: Nanos) {
        let done = &mut self.done;
        // Live tickets and failed ones together are at most `in_flight`: this never grows.
        self.queue.expire(now, |ticket| done.push_back((ticket, Why::Timeout)));
        match self.state {
            State::Connecting(until) | State::Setup(until) if until.max(self.awaited_until) <= now => {
                self.close(Why::Timeout, now, true);
            }
            State::Ready if self.stalls_at().is_some_and(|at| at <= now) => {
                self.close(Why::Timeout, now, true);
            }
            _ => {}
        }
    }

    /// The next event; call it until there is none, after everything else.
    pub fn poll_event(&mut self, now: Nanos) -> Option<Event<'_>> {
        if let Some(why) = self.poll_close() {
            return Some(Event::Disconnect { why });
        }
        loop {
            match self.step(now, &mut |_| {}) {
                Some(Step::Slots { .. }) => {}
                Some(Step::Redirect { line }) => {
                    let Some(entry) = self.finish_redirect() else { continue };
                    return Some(self.event(Step::Failed { ticket: entry.ticket, line }));
                }
                Some(step) => return Some(self.event(step)),
                None => break,
            }
        }
        if let Some(why) = self.poll_close() {
            return Some(Event::Disconnect { why });
        }
        self.poll_connect(now).then_some(Event::Connect)
    }
}

#[cfg(test)]
mod tests;
