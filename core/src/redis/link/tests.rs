//! A link against a server that is modelled, under any schedule: what is
//! written, executed, answered, cut, flushed, cancelled, and when.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::format;
use std::vec;
use std::vec::Vec;

const SHA: [u8; 40] = [b'a'; 40];
const SCRIPTS: &[Script] = &[Script { sha1: SHA, source: &["return ", "{ ARGV[1] }"] }];
const MS: Nanos = 1_000_000;

struct Number(u64, usize);

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
struct Server {
    input: Vec<u8>,
    output: Vec<u8>,
    loaded: bool,
    executed: BTreeMap<u64, u32>,
    error: Option<&'static str>,
}

impl Server {
    /// Serves up to `count` commands.
    fn serve(&mut self, count: usize) {
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

    fn cut(&mut self) {
        self.input.clear();
        self.output.clear();
    }
}

fn command(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
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

fn config() -> LinkConfig<'static> {
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
enum Do {
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

fn step() -> impl Strategy<Value = Do> {
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
const HEIR: u64 = 1 << 32;

/// What became of each ticket, beside the link that is to say so.
struct Model {
    link: Link,
    server: Server,
    now: Nanos,
    next: u64,
    deadlines: BTreeMap<u64, Nanos>,
    over: BTreeMap<u64, Result<(), &'static str>>,
    connected: bool,
    connects: u32,
    /// Does a connection take until the next wait to be there?
    is_slow: bool,
    is_opening: bool,
}

impl Model {
    fn new() -> Model {
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

    fn take(&mut self, step: Do) {
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

    fn events(&mut self) {
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

    fn settle(&mut self) {
        for _ in 0..60 {
            for step in [Do::Write(5000), Do::Serve(100), Do::Read(5000)] {
                self.take(step);
            }
        }
    }

    /// One whose first connection is asked for, and not there.
    fn opening() -> Model {
        let mut model = Model { is_slow: true, ..Model::new() };
        model.events();
        assert!(model.is_opening && !model.link.is_ready());
        model
    }

    fn ready() -> Model {
        let mut model = Model::new();
        model.events();
        model.settle();
        assert!(model.link.is_ready());
        model
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_ticket_completes_once_and_no_call_runs_twice(
        steps in proptest::collection::vec(step(), 1..250),
        is_early in any::<bool>(),
    ) {
        let mut model = if is_early { Model::opening() } else { Model::ready() };
        for step in steps {
            model.take(step);
        }
        // Whatever happened: within a second all is answered, and the link is of use again.
        model.server.error = None;
        model.settle();
        for _ in 0..20 {
            model.take(Do::Wait(50));
            model.settle();
        }
        prop_assert!(model.deadlines.is_empty(), "{:?}", model.deadlines);
        prop_assert!(model.link.is_ready());
        model.take(Do::Send(5, 100));
        model.settle();
        prop_assert_eq!(model.over.get(&(model.next - 1)), Some(&Ok(())));
    }

    #[test]
    fn garbage_ends_a_connection_and_never_more(bytes in any::<Vec<u8>>(), calls in 0usize..5) {
        let mut model = Model::ready();
        for _ in 0..calls {
            model.take(Do::Send(9, 10));
        }
        model.take(Do::Write(5000));
        model.server.output = bytes;
        model.take(Do::Read(5000));
        model.take(Do::Wait(500));
        prop_assert!(model.deadlines.is_empty());
    }
}

#[test]
fn a_flush_in_the_middle_of_a_full_pipeline_fails_nobody() {
    let mut model = Model::ready();
    for round in 0..50 {
        let mut sent = 0;
        while model.deadlines.len() < 24 && sent < 30 {
            model.take(Do::Send(100, 1000));
            sent += 1;
        }
        model.take(Do::Write(1500));
        model.take(Do::Serve(3 + round % 7));
        model.take(Do::Flush);
        model.settle();
        assert!(model.deadlines.is_empty());
    }
    assert!(model.over.len() > 1000 && model.over.values().all(Result::is_ok));
    assert_eq!(model.connects, 1);
}

#[test]
fn calls_that_come_before_the_first_connection_wait_for_it() {
    let mut model = Model::opening();
    for wait in [100, 2, 100] {
        model.take(Do::Send(20, wait));
    }
    model.take(Do::Wait(3));
    model.settle();
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Ok(())), (&1, &Err("timeout")), (&2, &Ok(()))]);
    // Also those that come before it is asked for.
    let mut link = Link::new(&config()).unwrap();
    assert_eq!(link.send(7, &Number(7, 1), 9 * MS, 1), Ok(()));
    assert_eq!(link.poll_timeout(), Some(0), "to connect");
    assert_eq!(link.poll_event(1), Some(Event::Connect));
    assert_eq!(link.poll_timeout(), Some(9 * MS));
    assert!(link.poll_transmit().is_empty());
}

#[test]
fn when_nobody_is_there_they_fail_at_once_and_so_do_those_after_them() {
    let mut model = Model::opening();
    model.take(Do::Send(20, 1000));
    model.take(Do::Cut);
    model.take(Do::Send(20, 1000));
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Err("not_ready"))]);
    assert_eq!(model.link.send(9, &Number(9, 1), NEVER, model.now), Err(Refused::NotConnected));
}

#[test]
fn a_first_connection_is_not_given_up_before_who_waits_for_it_has_had_its_time() {
    let mut model = Model::opening();
    model.take(Do::Send(20, 900));
    model.now += 600 * MS; // longer than a connection may take, and a host that was kept from running
    model.link.handle_timeout(model.now);
    model.events();
    assert!(model.connected);
    model.take(Do::Wait(1));
    model.settle();
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Ok(()))]);
    // Those that come later do not keep it, or a dead one were never given up.
    let mut model = Model::opening();
    for _ in 0..10 {
        model.take(Do::Send(20, 500));
        model.now += 100 * MS;
        model.link.handle_timeout(model.now);
        model.events();
    }
    assert!(!model.connected || model.connects > 1);
}

/// As on a machine that has too much to do, where nobody waited for it.
#[test]
fn a_first_connection_that_was_not_made_in_time_is_waited_for_again() {
    let mut model = Model::opening();
    model.now += 401 * MS;
    model.link.handle_timeout(model.now);
    model.events();
    assert!(!model.connected);
    model.take(Do::Send(20, 100));
    model.take(Do::Wait(20));
    model.take(Do::Wait(1));
    model.settle();
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Ok(()))]);
    model.take(Do::Cut);
    assert_eq!(model.link.send(9, &Number(9, 1), NEVER, model.now), Err(Refused::NotConnected), "as before");
}

#[test]
fn no_more_wait_for_the_first_connection_than_may_be_in_flight() {
    let mut model = Model::opening();
    (0..30).for_each(|_| model.take(Do::Send(20, 1000)));
    assert_eq!(model.deadlines.len(), 24);
    model.take(Do::Wait(1));
    model.settle();
    assert!(model.over.len() == 24 && model.over.values().all(Result::is_ok));
}

#[test]
fn what_nobody_waits_for_is_not_written_if_it_was_not() {
    let mut model = Model::ready();
    for wait in [10, 1, 10, 1, 1, 10] {
        model.take(Do::Send(20, wait));
    }
    model.take(Do::Cancel(6)); // the first
    model.take(Do::Write(3)); // of the second, which must end then
    model.take(Do::Wait(2));
    model.settle();
    assert_eq!(model.server.executed.keys().copied().collect::<Vec<_>>(), [1, 2, 5]);
}

#[test]
fn a_reply_that_is_waited_on_is_told_to_the_heir_alone() {
    let mut model = Model::ready();
    model.take(Do::Send(20, 5));
    model.take(Do::Write(1000));
    model.take(Do::Wait(6));
    assert_eq!(model.over.get(&0), Some(&Err("timeout")));
    model.settle();
    assert_eq!(model.over.get(&HEIR), Some(&Ok(())));
    assert!(!model.link.wait_on(0, HEIR), "it is there");
}

#[test]
fn a_silent_server_is_left_and_tried_again_within_a_second() {
    let mut model = Model::ready();
    model.take(Do::Send(20, 5));
    model.take(Do::Write(1000));
    let mut connects = Vec::new();
    for _ in 0..3000 {
        let before = model.connects;
        model.take(Do::Wait(1));
        if model.connects > before {
            connects.push(model.now / MS);
        }
    }
    assert_eq!(model.over.get(&0), Some(&Err("timeout")));
    assert!(connects.windows(2).all(|two| two[1] - two[0] <= 801), "{connects:?}");
    assert!((3..20).contains(&connects.len()), "{connects:?}");
}

#[test]
fn a_wrong_password_is_told_and_waited_for() {
    let mut link = Link::new(&config()).unwrap();
    let mut refusals = 0;
    for ms in 0..10_000 {
        let now = ms * MS;
        link.handle_timeout(now);
        while let Some(event) = link.poll_event(now) {
            match event {
                Event::Connect => {
                    link.handle_connected(now);
                    let len = link.poll_transmit().len();
                    link.transmitted(len);
                    link.handle_input(
                        b"-WRONGPASS invalid username-password pair\r\n-NOAUTH a\r\n-NOAUTH a\r\n",
                    );
                }
                Event::Disconnect { why } => {
                    assert_eq!(why, Why::Auth);
                    refusals += 1;
                }
                event => panic!("{event:?}"),
            }
        }
        assert!(!link.is_ready());
        assert_eq!(link.send(1, &Number(1, 1), NEVER, now), Err(Refused::NotConnected));
    }
    assert!((20..70).contains(&refusals), "{refusals}");
    assert_eq!(link.last_error(), b"WRONGPASS invalid username-password pair");
}

#[test]
fn what_a_server_says_before_it_is_asked_is_a_reason() {
    let mut link = Link::new(&config()).unwrap();
    assert_eq!(link.poll_event(0), Some(Event::Connect));
    link.handle_connected(0);
    link.handle_input(b"-ERR max number of clients reached\r\n");
    assert_eq!(link.poll_event(0), Some(Event::Disconnect { why: Why::Script(b"") }));
    assert_eq!(link.last_error(), b"ERR max number of clients reached");
}

#[test]
fn replies_that_came_before_the_end_count() {
    let mut model = Model::ready();
    for _ in 0..3 {
        model.take(Do::Send(20, 10));
    }
    model.take(Do::Write(190)); // two of the three, and no more than a part of the last
    model.server.serve(1);
    let reply = core::mem::take(&mut model.server.output);
    assert_eq!(model.link.handle_input(&reply), reply.len());
    model.take(Do::Cut);
    assert_eq!(model.over[&0], Ok(()));
    assert_eq!(model.over[&1], Err("disconnected"));
    assert!(model.over[&2].is_err());
}

#[test]
fn only_legal_configurations_make_a_link() {
    let refused = |config: LinkConfig<'_>| Link::new(&config).unwrap_err();
    assert_eq!(refused(LinkConfig { transmit_bytes: 1, ..config() }), LinkError::Buffer(1));
    assert_eq!(refused(LinkConfig { receive_bytes: 1 << 30, ..config() }), LinkError::Buffer(1 << 30));
    assert_eq!(refused(LinkConfig { in_flight: 0, ..config() }), LinkError::InFlight(0));
    assert_eq!(refused(LinkConfig { stall_timeout: 5, ..config() }), LinkError::Timeout(5));
    assert_eq!(refused(LinkConfig { backoff: (MS, 1), ..config() }), LinkError::Backoff(MS, 1));
    let long = std::vec![b'x'; 70_000];
    assert_eq!(refused(LinkConfig { password: Some(&long), ..config() }), LinkError::Credentials(70_000));
}

#[test]
fn what_was_passed_over_has_no_reply_wherever_it_stood() {
    let mut model = Model::ready();
    model.take(Do::Send(20, 10));
    model.take(Do::Write(5000));
    model.take(Do::Send(20, 10));
    model.take(Do::Send(20, 10));
    model.take(Do::Cancel(2)); // the one between
    model.settle();
    assert_eq!(model.over.iter().collect::<Vec<_>>(), [(&0, &Ok(())), (&2, &Ok(()))]);
}

#[test]
fn a_new_connection_remembers_nothing_of_the_last_one() {
    let mut model = Model::ready();
    // Lost while a script is loaded again, and in the middle of a reply.
    model.take(Do::Send(20, 100));
    model.take(Do::Write(5000));
    model.take(Do::Serve(1));
    model.take(Do::Read(6)); // "*2", and no more
    model.take(Do::Cut);
    model.take(Do::Wait(10));
    model.settle();
    assert_eq!(model.connects, 2);
    model.take(Do::Flush);
    model.take(Do::Send(20, 100));
    model.take(Do::Write(5000));
    model.take(Do::Serve(1));
    model.take(Do::Read(5000));
    model.take(Do::Cut);
    model.take(Do::Wait(20));
    model.settle();
    assert_eq!(model.connects, 3);
    model.take(Do::Flush);
    model.take(Do::Send(20, 100));
    model.settle();
    let why: Vec<_> = model.over.values().copied().collect();
    assert_eq!(why, [Err("disconnected"), Err("not_ready"), Ok(())]);
}

#[test]
fn after_a_call_that_was_answered_the_first_wait_is_short_again() {
    let mut model = Model::ready();
    for _ in 0..10 {
        model.take(Do::Cut);
        model.take(Do::Wait(500));
        model.settle();
    }
    model.take(Do::Send(20, 100));
    model.settle();
    let connects = model.connects;
    model.take(Do::Cut);
    model.take(Do::Wait(10));
    assert_eq!(model.connects, connects + 1);
}
