use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, vec};

use proptest::prelude::*;

use super::*;
use crate::http::{Family, Field, LIST_SIZE, fields_of};
use crate::metrics::StoreEvent;
use crate::policy::{Attributes, KeyRoom, Lease};
use crate::time::SECOND;

const START: Nanos = 1_000_000 * SECOND;
const LEASE: Lease = Lease { max: 64, ttl: 100_000_000 };

/// What a host shares, written by compare-and-swap.
#[derive(Clone, Debug, Default)]
struct Shared(Rc<RefCell<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    pages: HashMap<u32, (Vec<u8>, u32)>,
    next: u32,
    exchanges: u64,
    /// So many writes from now on find that another was first.
    conflicts: u32,
    is_gone: bool,
}

impl Blobs for Shared {
    type Bytes = Vec<u8>;

    fn read(&mut self, page: u32) -> Result<Option<(Vec<u8>, u32)>, Unavailable> {
        let inner = self.0.borrow();
        if inner.is_gone { Err(Unavailable) } else { Ok(inner.pages.get(&page).cloned()) }
    }

    fn write(&mut self, page: u32, bytes: &[u8], read: Option<u32>) -> Result<bool, Unavailable> {
        let mut inner = self.0.borrow_mut();
        if inner.conflicts > 0 {
            inner.conflicts -= 1;
            return Ok(false);
        }
        if inner.pages.get(&page).map(|(_, version)| *version) != read {
            return Ok(false);
        }
        inner.next += 1;
        inner.exchanges += 1;
        let version = inner.next;
        inner.pages.insert(page, (bytes.to_vec(), version));
        Ok(true)
    }
}

struct World {
    shared: Shared,
    rules: Rules,
    /// Each with the pages as it sees them.
    workers: Vec<(Workers, Pages<Shared>)>,
    metrics: StoreMetrics,
}

impl World {
    fn new(policies: &str, workers: u64, pages: u32) -> World {
        let text =
            format!(r#"{{ "identity": {{ "user": {{ "header": "u" }} }}, "policies": [ {policies} ] }}"#);
        let mut rules = Rules::parse(&text, Seed([1, 2])).unwrap();
        rules.count_in_store(Some(LEASE));
        let shared = Shared::default();
        let worker = |number: u64| {
            let workers = Workers::new(64, 64, number.wrapping_mul(0x1234_5678_9ABC_DEF0)).unwrap();
            (workers, Pages::new(shared.clone(), pages, Seed([3, 4])))
        };
        let workers = (1..=workers).map(worker).collect();
        World { shared, rules, workers, metrics: StoreMetrics::default() }
    }

    fn check(&mut self, worker: usize, user: &str, now: Nanos) -> Answer {
        self.ask(worker, user, 1, now, |_, _, answer| *answer)
    }

    /// Asks for a cost, where the policies take it from the field `c`.
    fn ask<R>(
        &mut self,
        worker: usize,
        user: &str,
        cost: u64,
        now: Nanos,
        see: impl FnOnce(&Rules, &Selection<'_>, &Answer) -> R,
    ) -> R {
        let cost = cost.to_string();
        let value = |name: &String| Some(if name == "u" { user } else { &cost }.as_bytes());
        let headers: Vec<_> = self.rules.headers().iter().map(value).collect();
        let request =
            Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &headers };
        let mut room = KeyRoom::new();
        let selection = self.rules.select(&request, &mut room).unwrap();
        let (worker, pages) = &mut self.workers[worker];
        let here = Here { pages, metrics: &self.metrics, now };
        worker.handle_timeout(&here);
        let mut answer = Answer::default();
        worker.check(&self.rules, &selection, &here, &mut answer);
        see(&self.rules, &selection, &answer)
    }

    fn release(&mut self, worker: usize, answer: &Answer, now: Nanos) {
        let (worker, pages) = &mut self.workers[worker];
        let here = Here { pages, metrics: &self.metrics, now };
        for hold in answer.holds() {
            worker.release(hold, &here);
        }
    }
}

fn policy(limits: &str) -> String {
    format!(r#"{{ "name": "p", "key": ["user"], "limits": [ {limits} ] }}"#)
}

/// A policy of requests that say what they cost.
fn costly(limits: &str) -> String {
    let cost = r#""cost": { "header": "c", "max": 1000 }"#;
    format!(r#"{{ "name": "p", "key": ["user"], {cost}, "limits": [ {limits} ] }}"#)
}

fn limit(algorithm: &str, rate: &str) -> String {
    policy(&format!(r#"{{ "algorithm": "{algorithm}", "rate": "{rate}" }}"#))
}

const ALGORITHMS: [&str; 4] = ["token_bucket", "fixed_window", "sliding_window", "sliding_log"];

#[test]
fn workers_together_admit_the_limit() {
    for algorithm in ALGORITHMS {
        for count in [10, 63, 100, 1000] {
            let mut world = World::new(&limit(algorithm, &format!("{count}/d")), 4, 8);
            let mut admitted = 0;
            for turn in 0..count * 4 {
                admitted += u64::from(world.check(turn as usize % 4, "a", START + turn * 1_000_000).allowed);
            }
            assert_eq!(admitted, count, "{algorithm}");
        }
    }
}

#[test]
fn a_hot_key_is_seldom_exchanged_and_a_flood_never() {
    let mut world = World::new(&limit("token_bucket", "10000/s"), 1, 8);
    for step in 0..10_000 {
        assert!(world.check(0, "a", START + step * 200_000).allowed); // half of the limit
    }
    let exchanges = world.shared.0.borrow().exchanges;
    assert!(exchanges < 10_000 / 30, "{exchanges}");

    let mut world = World::new(&limit("token_bucket", "10/d"), 1, 8);
    for step in 0..10_000 {
        world.check(0, "a", START + step);
    }
    assert_eq!(world.shared.0.borrow().exchanges, 10);
}

#[test]
fn what_a_remembered_denial_leaves_is_told_and_can_be_had() {
    for (algorithm, more) in
        [("token_bucket", 2), ("leaky_bucket", 2), ("fixed_window", 0), ("sliding_log", 0)]
    {
        let text = format!(r#"{{ "algorithm": "{algorithm}", "rate": "100/m" }}"#);
        let mut world = World::new(&costly(&text), 1, 8);
        assert!(world.check(0, "other", START).allowed);
        let mut ask =
            |cost, after| world.ask(0, "a", cost, START + after, |_, _, answer| *answer.decision().unwrap());
        assert!(ask(80, 0).allowed);
        let asked = ask(40, 0);
        assert_eq!((asked.allowed, asked.remaining), (false, 20), "{algorithm}");
        let (remembered, later) = (ask(40, 1), ask(40, 40_000_000));
        for (said, after) in [(remembered, 1), (later, 40_000_000)] {
            let expected = Decision {
                retry_after: asked.retry_after - after,
                reset_after: asked.reset_after - after,
                ..asked
            };
            assert_eq!(said, expected, "{algorithm}");
        }
        assert_eq!(world.metrics.read(StoreEvent::DenialHit), 2, "{algorithm}: from memory");
        let mut ask =
            |cost, after| world.ask(0, "a", cost, START + after, |_, _, answer| *answer.decision().unwrap());
        let last = ask(40, 1_300_000_000); // 0.6 s bring one unit
        assert_eq!((last.allowed, last.remaining), (false, 20 + more), "{algorithm}");
        assert!(ask(20 + more, 1_300_000_000).allowed, "{algorithm}");
    }
}

/// Nobody looks at what is left, so nobody is told.
#[test]
fn the_answer_to_a_cost_above_the_burst_is_the_same_whatever_is_left() {
    for family in Family::ALL {
        let text = format!(
            r#"{}, {{ "name": "q", "key": ["user"], "limits": [ {{ "rate": "500/m" }} ] }}"#,
            costly(r#"{ "rate": "100/m" }, { "algorithm": "fixed_window", "rate": "200/h" }"#)
        );
        let mut world = World::new(&text, 1, 8);
        let see = |rules: &Rules, selection: &Selection<'_>, answer: &Answer| {
            let mut buffer = [0; LIST_SIZE];
            let fields = fields_of(family, rules.items(selection, answer), &mut buffer).unwrap();
            let text = |field: &Field| {
                (field.name, String::from_utf8(buffer[field.start..field.end].to_vec()).unwrap())
            };
            (answer.allowed, fields.as_slice().iter().map(text).collect::<Vec<_>>())
        };
        let full = world.ask(0, "a", 101, START, see);
        assert!(world.ask(0, "a", 95, START, see).0);
        let spent = world.ask(0, "a", 101, START, see);
        assert_eq!(full, spent, "{}", family.name());
        let expected: Vec<_> = match family {
            Family::Off => vec![],
            Family::XRateLimit => vec![("X-RateLimit-Limit", "100".to_string())],
            Family::RateLimit03 => vec![("RateLimit-Limit", "100".to_string())],
            Family::RateLimit => vec![("RateLimit-Policy", r#""p";q=100;w=60, "q";q=500;w=60"#.to_string())],
        };
        assert_eq!(spent, (false, expected));
        assert!(world.ask(0, "a", 5, START, see).0, "nothing was taken for it");
    }
}

#[test]
fn a_page_that_another_wrote_first_is_decided_anew() {
    let mut world = World::new(&limit("token_bucket", "3/d"), 2, 1);
    let mut admitted = 0;
    for turn in 0..10 {
        world.shared.0.borrow_mut().conflicts = 5;
        admitted += u32::from(world.check(turn % 2, "a", START).allowed);
    }
    assert_eq!(admitted, 3);
    assert_eq!(world.workers.iter().map(|(_, pages)| pages.conflicts()).sum::<u64>() % 5, 0);
}

#[test]
fn any_number_of_keys_takes_the_same_memory() {
    let mut world = World::new(&limit("token_bucket", "10/h"), 1, 4);
    let mut size = 0;
    for user in 0..20_000u64 {
        assert!(world.check(0, &user.to_string(), START + user).allowed);
        if user % 1000 == 999 {
            let inner = world.shared.0.borrow();
            assert!(inner.pages.len() <= 4 && inner.pages.values().all(|(page, _)| page.len() <= PAGE_SIZE));
            size = inner.pages.values().map(|(page, _)| page.len()).sum();
        }
    }
    assert!(size > 4 * PAGE_SIZE * 3 / 4);
    assert!(world.workers[0].1.evicted() > 19_000);
}

#[test]
fn what_is_idle_first_makes_room_first() {
    let mut world = World::new(&limit("token_bucket", "10/h"), 1, 1);
    for _ in 0..10 {
        assert!(world.check(0, "spent", START).allowed);
    }
    for user in 0..5_000u64 {
        world.check(0, &user.to_string(), START + 1 + user);
    }
    // By another worker's eyes, whom no memory helps.
    let pages = Pages::new(world.shared.clone(), 1, Seed([3, 4]));
    world.workers.push((Workers::new(8, 8, 99).unwrap(), pages));
    assert!(!world.check(1, "spent", START + 6_000).allowed);
}

#[test]
fn an_idle_row_is_dropped_without_being_counted() {
    let mut world = World::new(&limit("token_bucket", "10/s"), 1, 1);
    for user in 0..2_000u64 {
        world.check(0, &user.to_string(), START + user * SECOND);
    }
    assert_eq!(world.workers[0].1.evicted(), 0);
}

#[test]
fn several_limits_are_charged_all_or_none() {
    let limits = r#"{ "rate": "5/h" }, { "algorithm": "sliding_log", "rate": "3/s" }, { "algorithm": "concurrency", "rate": "2/m" }"#;
    let mut world = World::new(&policy(limits), 2, 8);
    let first = world.check(0, "a", START);
    let second = world.check(1, "a", START + 1);
    assert!(first.allowed && second.allowed);
    let third = world.check(0, "a", START + 2);
    assert!(!third.allowed);
    assert_eq!(third.decisions()[0].remaining, 3);
    world.release(0, &first, START + 3);
    world.release(1, &second, START + 3);
    let third = world.check(1, "a", START + 4);
    assert!(third.allowed, "units in flight are back: {third:?}");
    world.release(1, &third, START + 4);
    assert!(!world.check(0, "a", START + 5).allowed, "three in a second");
    assert!(world.check(0, "a", START + SECOND + 5).allowed);
}

#[test]
fn what_is_given_back_may_be_taken_again() {
    let limits = r#"{ "rate": "3/d" }, { "algorithm": "fixed_window", "rate": "3/d" }, { "algorithm": "sliding_log", "rate": "3/d" }, { "algorithm": "concurrency", "rate": "3/h" }"#;
    let mut world = World::new(&policy(limits), 2, 8);
    for step in 0..10 {
        let answer = world.check(0, "a", START + step);
        assert!(answer.allowed, "{step}");
        let headers = [Some(&b"a"[..])];
        let request =
            Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &headers };
        let mut room = KeyRoom::new();
        let selection = world.rules.select(&request, &mut room).unwrap();
        let (worker, pages) = &mut world.workers[0];
        let here = Here { pages, metrics: &world.metrics, now: START + step };
        worker.give_back(&world.rules, &selection, &answer, START + step, &here);
    }
    let admitted = (0..10).filter(|_| world.check(1, "a", START + 20).allowed).count();
    assert_eq!(admitted, 3);
}

#[test]
fn a_changed_limit_keeps_what_was_spent() {
    let mut world = World::new(&limit("token_bucket", "10/d"), 1, 8);
    for _ in 0..10 {
        assert!(world.check(0, "a", START).allowed);
    }
    let text = format!(
        r#"{{ "identity": {{ "user": {{ "header": "u" }} }}, "policies": [ {} ] }}"#,
        limit("token_bucket", "15/d")
    );
    world.rules = Rules::parse(&text, Seed([1, 2])).unwrap();
    world.rules.count_in_store(Some(LEASE));
    let admitted = (0..20).filter(|_| world.check(0, "a", START).allowed).count();
    assert_eq!(admitted, 5);
}

const WITH_PENALTY: &str = r#"{ "name": "p", "key": ["user"], "limits": [ { "rate": "2/s" } ],
    "penalty": { "base": "1s", "factor": 2, "max": "60s" } }"#;

/// A second's two, and one more that is denied; each by another worker.
fn a_denial(world: &mut World, now: Nanos) -> Nanos {
    assert!(world.check(0, "a", now).allowed && world.check(1, "a", now).allowed);
    let denied = world.check(2, "a", now);
    assert!(!denied.allowed);
    denied.decision().unwrap().retry_after
}

#[test]
fn who_is_to_wait_waits_at_every_worker_and_longer_each_time() {
    let mut world = World::new(WITH_PENALTY, 4, 8);
    let mut now = START;
    for wait in [1, 2, 4, 8].map(|seconds| seconds * SECOND) {
        assert_eq!(a_denial(&mut world, now), wait);
        for worker in 0..4 {
            // Whoever comes too early is told the rest, and it is no strike.
            let early = world.check(worker, "a", now + wait - 1);
            let decision = early.decision().unwrap();
            assert_eq!((early.allowed, decision.retry_after, decision.remaining), (false, 1, 0));
        }
        assert!(world.check(1, "b", now).allowed, "another subject");
        now += wait.max(SECOND);
    }
    // Forgotten after a minute of quiet.
    assert_eq!(a_denial(&mut world, now + 60 * SECOND), SECOND);
}

/// The manual's own example, each request at another worker.
#[test]
fn who_waits_as_long_as_told_is_admitted_under_a_penalty() {
    let policy = WITH_PENALTY.replace("2/s", "5/m").replace("60s", "15m");
    let mut world = World::new(&policy, 4, 8);
    for worker in 0..5 {
        assert!(world.check(worker % 4, "a", START).allowed);
    }
    for (place, (at, wait)) in
        [(0, 12_000), (500, 11_500), (2_000, 10_000), (5_000, 7_000), (9_500, 8_000), (13_000, 4_500)]
            .into_iter()
            .enumerate()
    {
        let answer = world.check(place % 4, "a", START + at * 1_000_000);
        let told = answer.decision().map(|decision| decision.retry_after);
        assert_eq!((answer.allowed, told), (false, Some(wait * 1_000_000)), "at {at} ms");
    }
    assert!(world.check(3, "a", START + 17_500_000_000).allowed);
}

#[test]
fn strikes_of_several_workers_at_once_are_all_counted() {
    let mut world = World::new(WITH_PENALTY, 4, 8);
    world.shared.0.borrow_mut().conflicts = 3;
    assert_eq!(a_denial(&mut world, START), SECOND);
    world.shared.0.borrow_mut().conflicts = 3;
    assert_eq!(a_denial(&mut world, START + SECOND), 2 * SECOND);
}

#[test]
fn without_shared_data_a_worker_counts_strikes_alone() {
    let mut world = World::new(WITH_PENALTY, 1, 8);
    world.shared.0.borrow_mut().is_gone = true;
    while world.check(0, "a", START).allowed {}
    assert!(!world.check(0, "a", START + SECOND - 1).allowed);
    assert!(world.check(0, "a", START + 2 * SECOND).allowed);
}

#[test]
fn without_shared_data_a_worker_counts_alone() {
    let mut world = World::new(&limit("token_bucket", "10/d"), 1, 8);
    world.shared.0.borrow_mut().is_gone = true;
    let admitted = (0..50).filter(|_| world.check(0, "a", START).allowed).count();
    assert!((1..=10).contains(&admitted), "{admitted}");
    world.shared.0.borrow_mut().is_gone = false;
    world.check(0, "b", START + 60 * SECOND);
    assert!(world.check(0, "b", START + 61 * SECOND).allowed);
}

#[test]
fn logs_that_would_not_fit_are_refused() {
    let log = |count| Limit::new(Algorithm::SlidingLog, count, SECOND).unwrap();
    assert_eq!(accepts(&log(MAX_ENTRIES)), Ok(()));
    assert_eq!(accepts(&log(MAX_ENTRIES + 1)), Err(TooLong(1025)));
    assert_eq!(accepts(&Limit::new(Algorithm::FixedWindow, 1 << 30, SECOND).unwrap()), Ok(()));
}

proptest! {
    /// Whoever else shares the host's data writes what he likes.
    #[test]
    fn bytes_that_are_no_page_harm_nobody(
        mut garbage in prop::collection::vec(any::<u8>(), 0..200), is_begun in any::<bool>(), algorithm in 0usize..5,
    ) {
        if is_begun {
            let page = [b'T', b'g', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            garbage.splice(0..0, page);
        }
        let limits = ALGORITHMS.get(algorithm).map(|algorithm| limit(algorithm, "2/d"));
        let mut world = World::new(&limits.unwrap_or(WITH_PENALTY.replace("2/s", "2/d")), 1, 1);
        for place in 0..2 {
            world.shared.0.borrow_mut().pages.insert(place, (garbage.clone(), 7));
        }
        let admitted = (0..5).filter(|_| world.check(0, "a", START).allowed).count();
        prop_assert!(admitted <= 2);
    }

    /// What a page holds is what was put into it.
    #[test]
    fn a_cut_page_is_read_up_to_the_cut(cut in 0usize..400) {
        let mut world = World::new(&limit("token_bucket", "2/d"), 1, 1);
        for user in 0..5u64 {
            world.check(0, &user.to_string(), START);
        }
        let (page, _) = world.shared.0.borrow().pages[&0].clone();
        let page = page[..cut.min(page.len())].to_vec();
        world.shared.0.borrow_mut().pages.insert(0, (page, 9));
        prop_assert!(world.check(0, "new", START + 1).allowed);
    }

    /// A denial that is remembered says what it would if it were asked by now:
    /// of any cost that it holds for, and of each of the policy's limits.
    #[test]
    fn a_remembered_denial_says_what_the_asked_one_said_later_by_the_time_that_passed(
        units in 10u64..=100, period in prop::sample::select(vec!["s", "7s", "m", "h"]), burst in 10u64..=100,
        second in prop::sample::select(vec!["fixed_window", "leaky_bucket", "token_bucket"]),
        spent in 1u64..=100, cost in 1u64..=100, more in 0u64..=30, passes in 0u64..=1000,
    ) {
        let limits = format!(
            r#"{{ "rate": "{units}/{period}", "burst": {burst} }}, {{ "algorithm": "{second}", "rate": "90/m" }}"#
        );
        let mut world = World::new(&costly(&limits), 3, 8);
        let burst = burst.min(90);
        let mut ask = |worker, cost: u64, now| world.ask(worker, "a", cost.min(burst), now, |_, _, answer| *answer);
        let _ = ask(2, spent, START);
        let denial = ask(0, cost, START);
        prop_assume!(!denial.allowed);
        let wait = denial.decision().unwrap().retry_after;
        let now = START + (wait - 1) / 1000 * passes;
        let (remembered, asked) = (ask(0, cost + more, now), ask(1, cost + more, now));
        prop_assert_eq!(remembered.outcomes(), asked.outcomes());
        for (said, asked) in remembered.decisions().iter().zip(asked.decisions()) {
            // Parts of a nanosecond are rounded up, and may make a unit.
            prop_assert!(said.remaining <= asked.remaining && asked.remaining <= said.remaining + 1);
            prop_assert!(said.retry_after >= asked.retry_after && said.retry_after <= asked.retry_after + 1);
            prop_assert!(said.reset_after >= asked.reset_after && said.reset_after <= asked.reset_after + 1);
        }
    }

    /// Law 1 over any interval, for workers without leases of their own.
    #[test]
    fn small_limits_are_exact_in_any_interleaving(
        steps in prop::collection::vec((0usize..4, 0u64..400_000_000), 1..120), conflicts in 0u32..3,
    ) {
        let mut world = World::new(&limit("token_bucket", "5/s"), 4, 2);
        let mut now = START;
        let mut admitted = vec![];
        for (worker, pause) in steps {
            now += pause;
            world.shared.0.borrow_mut().conflicts = conflicts;
            if world.check(worker, "a", now).allowed {
                admitted.push(now);
            }
        }
        for (first, from) in admitted.iter().enumerate() {
            for (last, to) in admitted.iter().enumerate().skip(first) {
                let most = 5 + (to - from) * 5 / SECOND;
                prop_assert!((last - first + 1) as u64 <= most);
            }
        }
    }
}
