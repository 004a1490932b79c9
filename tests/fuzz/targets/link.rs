//! Any bytes from the server, at any time, to links with calls in flight: every ticket completes
//! once, a connection that ends is asked for again, and nothing turns without end.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use tollgate_core::redis::cluster::{Action, Router, RouterConfig};
use tollgate_core::redis::link::{Command, Event, LinkConfig, Script};

const SCRIPTS: &[Script] = &[Script { sha1: [b'a'; 40], source: &["return 1"] }];
const PONG: &[u8] = b"+PONG\r\n";
const LOADED: &[u8] = b"$40\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";
const MS: u64 = 1_000_000;

struct Call(u8);

impl Command for Call {
    fn script(&self) -> usize {
        0
    }

    fn key(&self) -> &[u8] {
        core::slice::from_ref(&self.0)
    }

    fn arguments(&self, each: &mut dyn FnMut(&[u8])) {
        each(b"1");
        each(self.key());
    }
}

struct Run {
    router: Router,
    now: u64,
    waiting: BTreeSet<u64>,
}

impl Run {
    fn settle(&mut self) {
        for turn in 0.. {
            let mut idle = true;
            idle &= !self.events();
            while let Some(action) = self.router.poll_action(self.now) {
                idle = false;
                if let Action::Connect { link, .. } = action {
                    self.router.handle_connected(link, self.now);
                    for answer in [PONG, LOADED] {
                        let len = self.router.poll_transmit(link).len();
                        self.router.transmitted(link, len);
                        self.router.handle_input(link, answer);
                        self.events();
                    }
                }
            }
            if idle {
                break;
            }
            assert!(turn < 1000, "it turns without end");
        }
        assert_eq!(self.router.waiting(), self.waiting.len());
    }

    /// Takes what the router has to say. Was there anything?
    fn events(&mut self) -> bool {
        let mut said = false;
        while let Some(event) = self.router.poll_event(self.now) {
            said = true;
            if let Event::Reply { ticket, .. } | Event::Failed { ticket, .. } = event {
                assert!(self.waiting.remove(&ticket), "nobody waits for {ticket}");
            }
        }
        said
    }
}

fuzz_target!(|drawn: (bool, &[u8])| {
    let (cluster, bytes) = drawn;
    let link = LinkConfig {
        scripts: Some(SCRIPTS),
        name: None,
        transmit_bytes: 4096,
        receive_bytes: 4096,
        in_flight: 8,
        ..LinkConfig::default()
    };
    let config = RouterConfig { link, addresses: &[b"a:1", b"b:2"], cluster };
    let mut run =
        Run { router: Router::new(&config).expect("it is legal"), now: 1, waiting: BTreeSet::new() };
    let mut ticket = 0;
    run.settle();
    // A zero ends a piece of input; what follows says what happens between two pieces.
    for piece in bytes.split(|byte| *byte == 0) {
        let Some((&act, text)) = piece.split_first() else { continue };
        let links = run.router.links();
        let link = usize::from(act >> 4) % links.max(1);
        match act % 8 {
            0 => run.now += u64::from(act) * MS,
            1 => run.router.handle_disconnected(link, run.now),
            2 => {
                if run.waiting.contains(&ticket) {
                    assert!(run.router.cancel(ticket));
                    run.waiting.remove(&ticket);
                }
            }
            _ => {
                ticket += 1;
                if run.router.send(ticket, &Call(act), run.now + 20 * MS, run.now).is_ok() {
                    run.waiting.insert(ticket);
                }
            }
        }
        for link in 0..links {
            let len = run.router.poll_transmit(link).len();
            run.router.transmitted(link, len.min(usize::from(act) * 4));
        }
        let mut rest = text;
        for _ in 0..text.len() {
            let taken = run.router.handle_input(link, rest);
            rest = &rest[taken..];
            run.settle();
            if rest.is_empty() || taken == 0 {
                break;
            }
        }
        run.settle();
        run.router.handle_timeout(run.now);
        run.settle();
    }
    run.now += 10_000 * MS;
    run.router.handle_timeout(run.now);
    run.settle();
    assert!(run.waiting.is_empty(), "{:?} never completed", run.waiting);
});
