//! A small host for a [`Router`]: it opens the sockets that the router asks for, and moves bytes
//! between them and it, in one thread, by `poll`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tollgate_core::Nanos;
use tollgate_core::redis::cluster::{Action, Router, RouterConfig};
use tollgate_core::redis::link::{Command, Event, Refused, Script};

/// Adds to every key, and gives the first one's sum and how many keys there were.
pub const ADD: Script = Script {
    // The server itself checks it: it names what it loaded by its digest.
    sha1: *b"d6ffe4942348be0880ef9404e2f9d926ab8a6fbf",
    source: &[
        "for i = 1, #KEYS do redis.call('INCRBY', KEYS[i], ARGV[1]) redis.call('PEXPIRE', KEYS[i], 600000) end return { tonumber(redis.call('GET', KEYS[1])), #KEYS }",
    ],
};

/// A call of [`ADD`], with the number of its script.
#[derive(Debug)]
pub struct Add<'a> {
    /// The keys, one at least.
    pub keys: &'a [&'a [u8]],
    /// How much.
    pub by: &'a str,
}

impl Command for Add<'_> {
    fn script(&self) -> usize {
        0
    }

    fn key(&self) -> &[u8] {
        self.keys[0]
    }

    fn arguments(&self, each: &mut dyn FnMut(&[u8])) {
        each(self.keys.len().to_string().as_bytes());
        self.keys.iter().for_each(|key| each(key));
        each(self.by.as_bytes());
    }
}

/// What became of a ticket: the integers, or [`Why::name`](tollgate_core::redis::link::Why::name)
/// and the server's words if it has any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The ticket.
    pub ticket: u64,
    /// Its reply, or why there is none.
    pub result: Result<Vec<i64>, String>,
    /// May it have been executed?
    pub may_have_run: bool,
}

trait Socket: Read + Write + AsRawFd {}
impl<T: Read + Write + AsRawFd> Socket for T {}

/// A router and its sockets.
pub struct Host {
    /// The router; calls are sent by it.
    pub router: Router,
    sockets: Vec<Option<Box<dyn Socket>>>,
    start: Instant,
    /// How far its clock is ahead; set before anything is sent.
    pub ahead: Duration,
    /// What became of the tickets so far, in order.
    pub outcomes: Vec<Outcome>,
    /// Why connections were closed so far, by the router.
    pub closed: Vec<&'static str>,
    /// How often a connection was asked for.
    pub connects: usize,
}

impl Host {
    /// A host that has opened nothing yet.
    ///
    /// # Panics
    /// When the configuration is not legal.
    #[must_use]
    pub fn new(config: &RouterConfig<'_>) -> Host {
        Host {
            router: Router::new(config).expect("a legal configuration"),
            sockets: Vec::new(),
            start: Instant::now(),
            ahead: Duration::ZERO,
            outcomes: Vec::new(),
            closed: Vec::new(),
            connects: 0,
        }
    }

    /// Nanoseconds of this host's clock.
    #[must_use]
    pub fn now(&self) -> Nanos {
        u64::try_from((self.start.elapsed() + self.ahead).as_nanos()).expect("five centuries") + 1
    }

    /// Sends a call that may take this long.
    ///
    /// # Errors
    /// It was not taken.
    pub fn send(&mut self, ticket: u64, call: &impl Command, within: Duration) -> Result<(), Refused> {
        let now = self.now();
        let within = u64::try_from(within.as_nanos()).expect("a short time");
        self.router.send(ticket, call, now + within, now)
    }

    /// Does what is to be done, and waits for more up to this long.
    pub fn turn(&mut self, wait: Duration) {
        self.pump();
        let now = self.now();
        let due = self.router.poll_timeout().map_or(wait, |at| Duration::from_nanos(at.saturating_sub(now)));
        let mut polled = Vec::new();
        for (link, socket) in self.sockets.iter().enumerate() {
            let Some(socket) = socket else { continue };
            let writes = !self.router.poll_transmit(link).is_empty();
            let events = libc::POLLIN | if writes { libc::POLLOUT } else { 0 };
            polled.push((link, libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 }));
        }
        let mut fds: Vec<libc::pollfd> = polled.iter().map(|(_, fd)| *fd).collect();
        let millis = i32::try_from(wait.min(due).as_micros().div_ceil(1000)).unwrap_or(1000);
        // SAFETY: as many entries as the vector has.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) };
        for ((link, _), fd) in polled.iter().zip(&fds) {
            if fd.revents & !libc::POLLOUT != 0 {
                self.read(*link);
            }
        }
        self.pump();
        let now = self.now();
        self.router.handle_timeout(now);
        self.pump();
    }

    /// Turns until this holds. Did it, in time?
    pub fn until(&mut self, most: Duration, done: impl Fn(&Host) -> bool) -> bool {
        let end = Instant::now() + most;
        while !done(self) {
            if Instant::now() > end {
                return false;
            }
            self.turn(Duration::from_millis(5));
        }
        true
    }

    fn pump(&mut self) {
        let now = self.now();
        while let Some(event) = self.router.poll_event(now) {
            let outcome = match event {
                Event::Reply { ticket, integers, .. } => {
                    Outcome { ticket, result: Ok(integers.to_vec()), may_have_run: true }
                }
                Event::Failed { ticket, why } => {
                    let text = match why {
                        tollgate_core::redis::link::Why::Script(text) => {
                            format!("script: {}", text.escape_ascii())
                        }
                        why => why.name().to_owned(),
                    };
                    Outcome { ticket, result: Err(text), may_have_run: why.may_have_run() }
                }
                Event::Ready => continue,
                Event::Connect | Event::Disconnect { .. } => panic!("a router has actions for that"),
            };
            self.outcomes.push(outcome);
        }
        while let Some(action) = self.router.poll_action(now) {
            match action {
                Action::Close { link, why } => {
                    self.closed.push(why.name());
                    self.sockets[link] = None;
                }
                Action::Connect { link, address } => {
                    let socket = open(address);
                    self.connects += 1;
                    if self.sockets.len() <= link {
                        self.sockets.resize_with(link + 1, || None);
                    }
                    assert!(self.sockets[link].is_none(), "a link has one connection");
                    match socket {
                        Ok(socket) => {
                            self.sockets[link] = Some(socket);
                            self.router.handle_connected(link, now);
                        }
                        Err(_) => self.router.handle_disconnected(link, now),
                    }
                }
            }
        }
        for link in 0..self.router.links() {
            self.write(link);
        }
    }

    fn write(&mut self, link: usize) {
        loop {
            let Some(Some(socket)) = self.sockets.get_mut(link) else { return };
            let bytes = self.router.poll_transmit(link);
            if bytes.is_empty() {
                return;
            }
            match socket.write(bytes) {
                Ok(count) => self.router.transmitted(link, count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.end(link),
            }
        }
    }

    fn read(&mut self, link: usize) {
        let Some(Some(socket)) = self.sockets.get_mut(link) else { return };
        let room = self.router.receive_buffer(link);
        if room.is_empty() {
            return; // events come first
        }
        match socket.read(room) {
            Ok(count @ 1..) => self.router.received(link, count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.end(link),
        }
    }

    fn end(&mut self, link: usize) {
        self.sockets[link] = None;
        let now = self.now();
        self.router.handle_disconnected(link, now);
    }
}

/// Opens `host:port` or `unix:/path`.
fn open(address: &[u8]) -> io::Result<Box<dyn Socket>> {
    let address = std::str::from_utf8(address).map_err(io::Error::other)?;
    if let Some(path) = address.strip_prefix("unix:") {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        return Ok(Box::new(stream));
    }
    let stream = TcpStream::connect(address)?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}
