//! Law 6 for a call to Redis: from `send` to its reply nothing is allocated; nor when it times out,
//! is cancelled, loses its script, or when the connection goes and comes back.

use tollgate_core::redis::cluster::{Action, Router, RouterConfig};
use tollgate_core::redis::link::{Command, Event, Link, LinkConfig, Script};
use tollgate_tests::counting::{Counting, calls};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SCRIPTS: &[Script] = &[Script { sha1: [b'a'; 40], source: &["return { 1 }"] }];
const PONG: &[u8] = b"+PONG\r\n";
const LOADED: &[u8] = b"$40\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";
const MS: u64 = 1_000_000;

struct Call<'a>(&'a [u8]);

impl Command for Call<'_> {
    fn script(&self) -> usize {
        0
    }

    fn key(&self) -> &[u8] {
        self.0
    }

    fn arguments(&self, each: &mut dyn FnMut(&[u8])) {
        for argument in [b"1", self.0, b"12345", b"678"] {
            each(argument);
        }
    }
}

fn config() -> LinkConfig<'static> {
    LinkConfig { scripts: Some(SCRIPTS), name: None, in_flight: 64, ..LinkConfig::default() }
}

fn write_all(link: &mut Link) {
    loop {
        let len = link.poll_transmit().len();
        if len == 0 {
            break;
        }
        link.transmitted(len.min(100));
    }
}

fn events(link: &mut Link, now: u64) -> (u64, u64) {
    let (mut replies, mut failures) = (0, 0);
    while let Some(event) = link.poll_event(now) {
        match event {
            Event::Reply { .. } => replies += 1,
            Event::Failed { .. } => failures += 1,
            Event::Connect => link.handle_connected(now),
            Event::Disconnect { .. } | Event::Ready => {}
        }
    }
    (replies, failures)
}

#[test]
fn a_link_allocates_when_it_is_made_and_never_after() {
    let mut link = Link::new(&config()).unwrap();
    let before = calls();
    let mut now = 0;
    for round in 0..50u64 {
        events(&mut link, now);
        for answer in [PONG, LOADED] {
            write_all(&mut link);
            link.handle_input(answer);
            events(&mut link, now);
        }
        assert!(link.is_ready());
        for ticket in 0..64 {
            assert!(link.send(ticket, &Call(b"tg:{shop}:orders:key"), now + 5 * MS, now).is_ok());
        }
        assert!(link.send(99, &Call(b"k"), now, now).is_err());
        write_all(&mut link);
        // Ten replies, ten of a lost script, an error, one cancelled; the rest too late.
        for _ in 0..10 {
            link.handle_input(b"*4\r\n:1\r\n:99\r\n:0\r\n:1234567\r\n");
        }
        for _ in 0..10 {
            link.handle_input(b"-NOSCRIPT No matching script. Please use EVAL.\r\n");
        }
        link.handle_input(b"-WRONGTYPE Operation against a key\r\n");
        assert_eq!(events(&mut link, now), (10, 1));
        assert!(link.cancel(40) && link.probe(100, b"probe", now + MS, now).is_ok());
        now += 5 * MS;
        assert!(link.poll_timeout().is_some());
        link.handle_timeout(now);
        assert_eq!(events(&mut link, now).1, 53);
        match round % 3 {
            0 => link.handle_disconnected(now),
            1 => assert_eq!(link.handle_input(b"!"), 1),
            _ => {
                now += 1000 * MS;
                link.handle_timeout(now); // stalled
            }
        }
        events(&mut link, now);
        now += 1000 * MS;
        link.handle_timeout(now);
    }
    assert_eq!(calls() - before, 0, "a link called the allocator");
}

#[test]
fn a_router_in_its_steady_state_allocates_nothing() {
    for cluster in [false, true] {
        let config = RouterConfig { link: config(), addresses: &[b"one:1"], cluster };
        let mut router = Router::new(&config).unwrap();
        assert!(matches!(router.poll_action(0), Some(Action::Connect { .. })));
        router.handle_connected(0, 0);
        let write = |router: &mut Router| {
            for link in 0..router.links() {
                let len = router.poll_transmit(link).len();
                router.transmitted(link, len);
            }
        };
        for answer in [PONG, LOADED] {
            write(&mut router);
            router.handle_input(0, answer);
            while router.poll_event(0).is_some() {}
        }
        assert_eq!(router.poll_action(0), None);
        if cluster {
            write(&mut router);
            router.handle_input(0, b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$3\r\none\r\n:1\r\n");
            while router.poll_event(0).is_some() {}
        }
        assert!(router.is_ready());
        let before = calls();
        for now in 1..200u64 {
            for ticket in 0..20 {
                assert!(router.send(ticket, &Call(b"tg:{shop}:orders:key"), now + 100, now).is_ok());
            }
            write(&mut router);
            for _ in 0..20 {
                router.handle_input(0, b"*2\r\n:1\r\n:0\r\n");
            }
            let mut replies = 0;
            while let Some(event) = router.poll_event(now) {
                assert!(matches!(event, Event::Reply { integers: [1, 0], .. }));
                replies += 1;
            }
            assert_eq!(replies, 20);
            assert_eq!(router.poll_action(now), None);
            assert!(router.poll_timeout().is_none());
            router.handle_timeout(now);
        }
        assert_eq!(calls() - before, 0, "a router called the allocator");
    }
}
