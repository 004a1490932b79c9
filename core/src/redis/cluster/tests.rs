//! A router against nodes whose replies are written by hand.

use super::*;
use crate::redis::link::Script;
use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

const SCRIPTS: &[Script] = &[Script { sha1: [b'a'; 40], source: &["return 1"] }];

struct Ask(&'static str);

impl Command for Ask {
    fn script(&self) -> usize {
        0
    }

    fn key(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn arguments(&self, each: &mut dyn FnMut(&[u8])) {
        each(b"1");
        each(self.key());
    }
}

fn router(addresses: &[&[u8]]) -> Router {
    let link = LinkConfig { scripts: Some(SCRIPTS), name: None, in_flight: 8, ..LinkConfig::default() };
    Router::new(&RouterConfig { link, addresses, cluster: true }).unwrap()
}

/// Does what actions say; every address can be reached.
fn connect(router: &mut Router, now: Nanos) -> Vec<(usize, String)> {
    let mut opened = Vec::new();
    while let Some(action) = router.poll_action(now) {
        if let Action::Connect { link, address } = action {
            let address = String::from_utf8(address.to_vec()).unwrap();
            router.handle_connected(link, now);
            opened.push((link, address));
        }
    }
    opened
}

/// What a link writes, as text.
fn written(router: &mut Router, link: usize) -> String {
    let mut text = Vec::new();
    loop {
        let bytes = router.poll_transmit(link);
        if bytes.is_empty() {
            return String::from_utf8(text).unwrap();
        }
        text.extend_from_slice(bytes);
        let len = bytes.len();
        router.transmitted(link, len);
    }
}

fn answer(router: &mut Router, link: usize, text: &str, now: Nanos) -> Vec<String> {
    assert_eq!(router.handle_input(link, text.as_bytes()), text.len());
    let mut events = Vec::new();
    while let Some(event) = router.poll_event(now) {
        events.push(match event {
            Event::Reply { ticket, integers, .. } => format!("{ticket}: {integers:?}"),
            Event::Failed { ticket, why } => format!("{ticket}: {}", why.name()),
            event => format!("{event:?}"),
        });
    }
    events
}

const LOADED: &str = "$40\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";

/// What a connection begins with, answered.
fn set_up(router: &mut Router, link: usize, now: Nanos) -> Vec<String> {
    assert!(written(router, link).contains("PING"));
    assert!(answer(router, link, "+PONG\r\n", now).is_empty());
    assert!(written(router, link).contains("LOAD"));
    answer(router, link, LOADED, now)
}

fn slots(ranges: &[(u16, u16, &str, u16)]) -> String {
    let mut text = format!("*{}\r\n", ranges.len());
    for (first, last, host, port) in ranges {
        let node = format!("*4\r\n${}\r\n{host}\r\n:{port}\r\n$2\r\nid\r\n*0\r\n", host.len());
        text += &format!("*4\r\n:{first}\r\n:{last}\r\n{node}{node}");
    }
    text
}

/// Two nodes with half the slots each; the first was configured, as `one:1`.
fn two() -> Router {
    let mut router = router(&[b"one:1"]);
    assert_eq!(connect(&mut router, 0), [(0, "one:1".to_string())]);
    assert!(set_up(&mut router, 0, 0).is_empty());
    assert!(!router.is_ready(), "which keys are whose?");
    assert!(connect(&mut router, 0).is_empty());
    assert!(written(&mut router, 0).contains("SLOTS"));
    let events = answer(&mut router, 0, &slots(&[(0, 8191, "", 1), (8192, 16383, "two", 2)]), 0);
    assert_eq!(events, ["Ready"]);
    assert_eq!(connect(&mut router, 0), [(1, "two:2".to_string())]);
    set_up(&mut router, 1, 0);
    router
}

// key_slot("b") = 3300, key_slot("a") = 15495.
const LOW: Ask = Ask("b");
const HIGH: Ask = Ask("a");

#[test]
fn calls_go_where_their_keys_are() {
    let mut router = two();
    router.send(1, &LOW, NEVER, 0).unwrap();
    router.send(2, &HIGH, NEVER, 0).unwrap();
    assert!(written(&mut router, 0).contains("\r\nb\r\n") && written(&mut router, 1).contains("\r\na\r\n"));
    assert_eq!(answer(&mut router, 1, "*1\r\n:7\r\n", 0), ["2: [7]"]);
    assert_eq!(answer(&mut router, 0, ":8\r\n", 0), ["1: [8]"]);
}

#[test]
fn moved_is_remembered_and_ask_is_not() {
    let mut router = two();
    router.send(1, &LOW, NEVER, 0).unwrap();
    written(&mut router, 0);
    assert!(answer(&mut router, 0, "-ASK 3300 two:2\r\n", 0).is_empty());
    let asked = written(&mut router, 1);
    assert!(asked.starts_with("*1\r\n$6\r\nASKING\r\n*5\r\n") || asked.contains("ASKING"), "{asked}");
    assert_eq!(answer(&mut router, 1, "+OK\r\n:1\r\n", 0), ["1: [1]"]);
    assert_eq!(router.link_of(b"b"), Some(0));
    router.send(2, &LOW, NEVER, 0).unwrap();
    written(&mut router, 0);
    assert!(answer(&mut router, 0, "-MOVED 3300 two:2\r\n", 0).is_empty());
    assert!(!written(&mut router, 1).contains("ASKING"));
    assert_eq!(answer(&mut router, 1, ":2\r\n", 0), ["2: [2]"]);
    assert_eq!(router.link_of(b"b"), Some(1));
}

#[test]
fn a_call_waits_for_a_node_that_is_met_only_now_but_not_for_ever() {
    let mut router = two();
    for ticket in [1, 2, 3] {
        router.send(ticket, &LOW, [50, NEVER, NEVER][ticket as usize - 1], 0).unwrap();
    }
    written(&mut router, 0);
    let moved = "-MOVED 3300 :3\r\n".repeat(3);
    assert!(answer(&mut router, 0, &moved, 0).is_empty());
    assert_eq!(connect(&mut router, 0), [(2, "one:3".to_string())], "without a host: that of the one asked");
    assert!(router.cancel(3) && !router.cancel(3));
    router.handle_timeout(50);
    assert_eq!(answer(&mut router, 0, "", 50), ["1: timeout"]);
    set_up(&mut router, 2, 60);
    assert_eq!(written(&mut router, 2).matches("EVALSHA").count(), 1);
    assert_eq!(answer(&mut router, 2, ":5\r\n", 60), ["2: [5]"]);
    assert_eq!(router.waiting(), 0);
}

#[test]
fn nobody_is_sent_on_for_ever() {
    let mut router = two();
    router.send(1, &LOW, NEVER, 0).unwrap();
    let (mut events, mut hops) = (vec![], 0);
    for now in (0..400).map(|ms| ms * MILLISECOND) {
        router.handle_timeout(now);
        for _ in 0..4 {
            for (link, to) in [(0, "two:2"), (1, "one:1")] {
                let text = written(&mut router, link);
                for line in text.split("\r\n") {
                    match line {
                        "SLOTS" => assert!(answer(&mut router, link, "*0\r\n", now).is_empty()),
                        "EVALSHA" => {
                            hops += 1;
                            events.extend(answer(&mut router, link, &format!("-MOVED 3300 {to}\r\n"), now));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    assert!(hops <= (usize::from(MAX_HOPS) + 1) * (usize::from(MAX_WAITS) + 1), "{hops}");
    assert_eq!(events, ["1: moved"]);
    assert_eq!(router.waiting(), 0);
}

#[test]
fn a_split_call_is_tried_again_a_little_later() {
    let mut router = two();
    router.send(1, &LOW, NEVER, 0).unwrap();
    written(&mut router, 0);
    assert!(
        answer(&mut router, 0, "-TRYAGAIN Multiple keys request during rehashing of slot\r\n", 7).is_empty()
    );
    assert_eq!(written(&mut router, 0), "");
    router.handle_timeout(7 + MILLISECOND);
    assert!(written(&mut router, 0).contains("EVALSHA"));
    assert_eq!(answer(&mut router, 0, ":1\r\n", 8), ["1: [1]"]);
}

#[test]
fn a_node_that_left_is_closed_when_its_calls_are_answered_and_its_link_is_used_again() {
    let mut router = two();
    router.send(1, &HIGH, NEVER, 0).unwrap();
    written(&mut router, 1);
    router.send(2, &LOW, NEVER, 0).unwrap();
    written(&mut router, 0);
    let later = REFRESH + 1;
    answer(&mut router, 0, "-MOVED 3300 one:1\r\n", later); // to itself: the map is asked for again
    assert!(connect(&mut router, later).is_empty());
    let topology = slots(&[(0, 16383, "one", 1)]);
    let asked = (0..2).find(|link| written(&mut router, *link).contains("SLOTS")).expect("one is asked");
    let before = if asked == 1 { ":1\r\n" } else { ":2\r\n" };
    answer(&mut router, asked, before, later);
    answer(&mut router, asked, &topology, later);
    assert_eq!(router.link_of(b"a"), Some(0));
    if asked == 0 {
        assert_eq!(router.poll_action(later), None, "somebody waits");
        assert_eq!(answer(&mut router, 1, ":9\r\n", later), ["1: [9]"]);
    }
    assert_eq!(router.poll_timeout(), Some(0));
    assert_eq!(router.poll_action(later), Some(Action::Close { link: 1, why: Why::Left }));
    router.send(3, &HIGH, NEVER, later).unwrap();
    written(&mut router, 0);
    let mut text = "-MOVED 15495 six:6\r\n".to_string();
    if asked == 1 {
        text = ":2\r\n".to_string() + &text;
    }
    answer(&mut router, 0, &text, later);
    assert_eq!(connect(&mut router, later), [(1, "six:6".to_string())]);
}

#[test]
fn addresses_are_tried_in_turn_until_one_answers() {
    let mut router = router(&[b"one:1", b"two:2"]);
    let mut tried = Vec::new();
    for now in (0..2000).map(|ms| ms * MILLISECOND) {
        router.handle_timeout(now);
        while let Some(action) = router.poll_action(now) {
            let Action::Connect { link, address } = action else { continue };
            tried.push(address.to_vec());
            router.handle_disconnected(link, now);
        }
    }
    assert!(tried.iter().any(|address| address == b"two:2"));
    assert!(tried.len() < 40, "{} tries in two seconds", tried.len());
}

#[test]
fn one_server_is_tried_at_its_next_address_when_the_first_is_of_no_use() {
    let link = LinkConfig { scripts: Some(SCRIPTS), ..LinkConfig::default() };
    let config = RouterConfig { link, addresses: &[b"one:1", b"two:2"], cluster: false };
    let mut router = Router::new(&config).unwrap();
    let mut now = 0;
    for expected in ["one:1", "two:2", "one:1"] {
        let Some(Action::Connect { link: 0, address }) = router.poll_action(now) else { panic!() };
        assert_eq!(address, expected.as_bytes());
        router.handle_disconnected(0, now);
        now += 1000 * MILLISECOND;
    }
    let none = RouterConfig { addresses: &[], ..config.clone() };
    assert_eq!(Router::new(&none).unwrap_err(), LinkError::Address);
    assert_eq!(
        Router::new(&RouterConfig { addresses: &[&[b'x'; 256]], ..config }).unwrap_err(),
        LinkError::Address
    );
}
