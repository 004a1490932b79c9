//! The server that is modelled, what may happen, and what became of each ticket.

use std::collections::BTreeMap;
use std::format;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

pub(super) const SHA: [u8; 40] = [b'a'; 40];
pub(super) const SCRIPTS: &[Script] = &[Script { sha1: SHA, source: &["return ", "{ ARGV[1] }"] }];
pub(super) const MS: Nanos = 1_000_000;

pub(super) struct Number(pub(super) u64, pub(super) usize);

impl Command for Number {
    fn script(&self) -> usize {
        0
    }

    fn key(&self) -> &[u8] {
        b"key"
    }

    fn arguments(&self, each: &mut dyn FnMut(&[u8])) {
        each(b"1");
        each(&b"k".repeat(self.1));
        each(format!("{}", self.0).as_bytes());
    }
}

/// What a Redis does with the bytes it gets.
#[derive(Default)]
pub(super) struct Server {
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) loaded: bool,
    pub(super) executed: BTreeMap<u64, u32>,
    pub(super) error: Option<&'static str>,
}

impl Server {
    /// Serves up to `count` commands.
    pub(super) fn serve(&mut self, count: usize) {
        for _ in 0..count {
            let Some((arguments, len)) = command(&self.input) else { return };
            self.input.drain(..len);
            let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            let reply = match words[..] {
                [b"SCRIPT", b"LOAD", source] => {
                    assert_eq!(source, SCRIPTS[0].source.concat().as_bytes());
                    self.loaded = true;
                    format!("$40\r\n{}\r\n", "a".repeat(40))
                }
                [b"EVALSHA", ..] if self.error.is_some() => format!("-{}\r\n", self.error.take().unwrap()),
                [b"EVALSHA", ..] if !self.loaded => "-NOSCRIPT No matching script.\r\n".into(),
                [b"EVALSHA", sha, b"1", key, number] => {
                    assert_eq!(sha, SHA);
                    let number = str::from_utf8(number).unwrap().parse().unwrap();
                    *self.executed.entry(number).or_default() += 1;
                    format!("*2\r\n:{number}\r\n:{}\r\n", key.len())
                }
                [b"AUTH" | b"SELECT" | b"SET" | b"CLIENT", ..] => "+OK\r\n".into(),
                _ => panic!("{:?}", self.input.escape_ascii()),
            };
            self.output.extend(reply.into_bytes());
        }
    }

    pub(super) fn cut(&mut self) {
        self.input.clear();
        self.output.clear();
    }
}

pub(super) fn command(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut reader = Reader::new(100_000);
    let (mut arguments, mut at) = (Vec::new(), 0);
    loop {
        let part = reader.next(&input[at..]).unwrap()?;
        at += part.len;
        match part.token {
            Token::Bulk(bytes) => arguments.push(bytes.to_vec()),
            Token::Array(_) => {}
            token => panic!("{token:?} in a command"),
        }
        if part.last {
            return Some((arguments, at));
        }
    }
}

pub(super) fn config() -> LinkConfig<'static> {
    LinkConfig {
        password: Some(b"secret"),
        database: 3,
        scripts: Some(SCRIPTS),
        transmit_bytes: 4096,
        receive_bytes: 4096,
        in_flight: 24,
        ..LinkConfig::default()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Do {
    Send(usize, u64),
    Probe(u64),
    Cancel(u64),
    Write(usize),
    Serve(usize),
    Read(usize),
    Flush,
    Wait(u64),
    Cut,
    Error(&'static str),
    Garbage,
}

pub(super) fn step() -> impl Strategy<Value = Do> {
    prop_oneof![
        6 => (1usize..600, 1u64..30).prop_map(|(size, wait)| Do::Send(size, wait)),
        1 => (1u64..30).prop_map(Do::Probe),
        2 => (0u64..10).prop_map(Do::Cancel),
        6 => (1usize..3000).prop_map(Do::Write),
        6 => (1usize..12).prop_map(Do::Serve),
        6 => (1usize..800).prop_map(Do::Read),
        1 => Just(Do::Flush),
        2 => (1u64..40).prop_map(Do::Wait),
        1 => Just(Do::Wait(500)),
        1 => Just(Do::Cut),
        1 => proptest::sample::select(std::vec![
            "OOM command not allowed", "WRONGTYPE no", "LOADING wait", "READONLY replica", "NOAUTH who",
            "MOVED 1 a:1", "TRYAGAIN later", "ERR other",
        ]).prop_map(Do::Error),
        1 => Just(Do::Garbage),
    ]
}

/// Added to the number of a ticket that was given up: who waits for its reply.
pub(super) const HEIR: u64 = 1 << 32;

/// What became of each ticket, beside the link that is to say so.
pub(super) struct Model {
    pub(super) link: Link,
    pub(super) server: Server,
    pub(super) now: Nanos,
    pub(super) next: u64,
    pub(super) deadlines: BTreeMap<u64, Nanos>,
    pub(super) over: BTreeMap<u64, Result<(), &'static str>>,
    pub(super) connected: bool,
    pub(super) connects: u32,
    /// Does a connection take until the next wait to be there?
    pub(super) is_slow: bool,
    pub(super) is_opening: bool,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            link: Link::new(&config()).unwrap(),
            server: Server::default(),
            now: 1,
            next: 0,
            deadlines: BTreeMap::new(),
            over: BTreeMap::new(),
            connected: false,
            connects: 0,
            is_slow: false,
            is_opening: false,
        }
    }

    pub(super) fn take(&mut self, step: Do) {
        match step {
            Do::Send(size, wait) => {
                let deadline = self.now + wait * MS;
                if self.link.send(self.next, &Number(self.next, size), deadline, self.now).is_ok() {
                    self.deadlines.insert(self.next, deadline);
                }
                self.next += 1;
            }
            Do::Probe(wait) => {
                let deadline = self.now + wait * MS;
                if self.link.probe(self.next, b"probe", deadline, self.now).is_ok() {
                    self.deadlines.insert(self.next, deadline);
                }
                self.next += 1;
            }
            Do::Cancel(back) => {
                let ticket = self.next.saturating_sub(back);
                assert_eq!(self.link.cancel(ticket), self.deadlines.remove(&ticket).is_some());
            }
            Do::Write(count) => {
                let bytes = self.link.poll_transmit();
                let count = count.min(bytes.len());
                self.server.input.extend(&bytes[..count]);
                self.link.transmitted(count);
            }
            Do::Serve(count) => self.server.serve(count),
            Do::Read(count) => {
                let count = count.min(self.server.output.len());
                let taken = self.link.handle_input(&self.server.output[..count]);
                self.server.output.drain(..taken);
            }
            Do::Flush => self.server.loaded = false,
            Do::Wait(ms) => {
                self.now += ms * MS;
                if core::mem::take(&mut self.is_opening) {
                    self.link.handle_connected(self.now);
                }
            }
            Do::Cut => self.link.handle_disconnected(self.now),
            Do::Error(error) => self.server.error = Some(error),
            Do::Garbage => self.server.output.extend(b"!\r\n"),
        }
        if matches!(step, Do::Cut) {
            (self.connected, self.is_opening) = (false, false);
            self.server.cut();
        }
        self.events();
        if matches!(step, Do::Wait(_)) {
            self.link.handle_timeout(self.now);
            self.events();
            let late = self.deadlines.iter().find(|(_, deadline)| **deadline <= self.now);
            assert_eq!(late, None, "a deadline passed in silence");
        }
        assert!(self.link.poll_timeout().is_none_or(|at| at > self.now), "it would turn without end");
        assert_eq!(self.link.waiting(), self.deadlines.len());
    }

    pub(super) fn events(&mut self) {
        while let Some(event) = self.link.poll_event(self.now) {
            match event {
                Event::Connect => {
                    assert!(!self.connected);
                    self.connected = true;
                    self.connects += 1;
                    self.server.cut();
                    self.is_opening = self.is_slow;
                    if !self.is_slow {
                        self.link.handle_connected(self.now);
                    }
                }
                Event::Disconnect { .. } => {
                    assert!(self.connected, "there was none");
                    (self.connected, self.is_opening) = (false, false);
                    self.server.cut();
                }
                Event::Ready => {}
                Event::Reply { ticket, integers, asked_at } => {
                    assert!(self.deadlines.remove(&ticket).is_some(), "nobody waits for {ticket}");
                    assert!(asked_at <= self.now);
                    if let [number, _] = integers {
                        assert_eq!(*number, i64::try_from(ticket % HEIR).unwrap(), "another's reply");
                        assert_eq!(self.server.executed.get(&(ticket % HEIR)), Some(&1));
                    } else {
                        assert!(integers.is_empty());
                    }
                    self.over.insert(ticket, Ok(()));
                }
                Event::Failed { ticket, why } => {
                    assert!(self.deadlines.remove(&ticket).is_some(), "nobody waits for {ticket}");
                    if !why.may_have_run() {
                        assert_eq!(
                            self.server.executed.get(&(ticket % HEIR)),
                            None,
                            "{why:?}, and yet it ran"
                        );
                    }
                    let is_late = why == Why::Timeout;
                    self.over.insert(ticket, Err(why.name()));
                    if is_late && ticket % 3 == 0 && self.link.wait_on(ticket, ticket + HEIR) {
                        self.deadlines.insert(ticket + HEIR, Nanos::MAX);
                    }
                }
            }
        }
        assert!(self.server.executed.values().all(|times| *times == 1), "a call ran twice");
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..60 {
            for step in [Do::Write(5000), Do::Serve(100), Do::Read(5000)] {
                self.take(step);
            }
        }
    }

    /// One whose first connection is asked for, and not there.
    pub(super) fn opening() -> Model {
        let mut model = Model { is_slow: true, ..Model::new() };
        model.events();
        assert!(model.is_opening && !model.link.is_ready());
        model
    }

    pub(super) fn ready() -> Model {
        let mut model = Model::new();
        model.events();
        model.settle();
        assert!(model.link.is_ready());
        model
    }
}
