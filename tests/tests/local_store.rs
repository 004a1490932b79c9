//! Workers that share no memory, only a host's blobs, and whose store is away:
//! what they admit without it, and the denials of whom they make wait longer
//! each time, they count together.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;
use tollgate_core::Nanos;
use tollgate_core::key::Seed;
use tollgate_core::metrics::StoreMetrics;
use tollgate_core::pages::{Blobs, Pages, Unavailable};
use tollgate_core::policy::{Answer, Attributes, KeyRoom, Rules};
use tollgate_core::redis::link::Refused;
use tollgate_core::redis::script::Call;
use tollgate_core::redis::store::{Host, Progress, Store, StoreConfig, Transport};
use tollgate_tests::shared_pages::Shared;

const SECOND: Nanos = 1_000_000_000;
const START: Nanos = 1_000_000 * SECOND;
const ALGORITHMS: [&str; 5] =
    ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"];

/// Of a store that is away.
struct Away;

impl Transport for Away {
    fn send(&mut self, _: u64, _: &Call<'_>, _: Nanos, _: Nanos) -> Result<(), Refused> {
        Err(Refused::NotConnected)
    }

    fn probe(&mut self, _: u64, _: &[u8], _: Nanos, _: Nanos) -> Result<(), Refused> {
        Err(Refused::NotConnected)
    }
}

/// A host without shared data.
#[derive(Debug)]
struct Nothing;

impl Blobs for Nothing {
    type Bytes = Vec<u8>;

    fn read(&mut self, _: u32) -> Result<Option<(Vec<u8>, u32)>, Unavailable> {
        Err(Unavailable)
    }

    fn write(&mut self, _: u32, _: &[u8], _: Option<u32>) -> Result<bool, Unavailable> {
        Err(Unavailable)
    }
}

struct Worker<B> {
    store: Store,
    pages: Pages<B>,
    metrics: StoreMetrics,
}

struct Machine<B> {
    rules: Rules,
    workers: Vec<Worker<B>>,
}

impl<B: Blobs> Machine<B> {
    fn new(policy: &str, instances: u64, workers: u64, blobs: impl Fn() -> B) -> Machine<B> {
        let text = format!(
            r#"{{ "identity": {{ "user": {{ "header": "u" }} }},
                 "policies": [ {{ "name": "p", "key": ["user"], "store": "redis", {policy} }} ] }}"#
        );
        let worker = |seed| Worker {
            store: Store::new(&StoreConfig { instances, workers, seed, ..StoreConfig::default() }).unwrap(),
            pages: Pages::new(blobs(), 2, Seed([3, 4])),
            metrics: StoreMetrics::default(),
        };
        Machine {
            rules: Rules::parse(&text, Seed([1, 2])).unwrap(),
            workers: (0..workers).map(worker).collect(),
        }
    }

    fn check(&mut self, worker: usize, now: Nanos) -> Answer {
        let headers = [Some(&b"a"[..])];
        let request =
            Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &headers };
        let mut room = KeyRoom::new();
        let selection = self.rules.select(&request, &mut room).unwrap();
        let Worker { store, pages, metrics } = &mut self.workers[worker];
        let mut host = Host { table: pages, metrics, transport: &mut Away, now };
        match store.check(&self.rules, &selection, 0, &mut host) {
            Progress::Answered(answer) => answer,
            Progress::Waiting(_) => panic!("nobody is asked"),
        }
    }

    fn release(&mut self, worker: usize, answer: &Answer, now: Nanos) {
        let Worker { store, pages, metrics } = &mut self.workers[worker];
        for hold in answer.holds() {
            store.release(hold, &mut Host { table: pages, metrics, transport: &mut Away, now });
        }
    }
}

fn limit(algorithm: &str, rate: &str) -> String {
    format!(r#""limits": [ {{ "algorithm": "{algorithm}", "rate": "{rate}" }} ]"#)
}

proptest! {
    /// Of three instances one admits its third, whichever of its workers is asked.
    #[test]
    fn workers_admit_their_instances_piece_together(
        algorithm in 0usize..ALGORITHMS.len(), steps in prop::collection::vec((0usize..4, 0u64..1_000_000), 150..200),
        conflicts in 0u32..4,
    ) {
        let shared = Shared::losing_one_in(if conflicts < 2 { 0 } else { conflicts });
        let mut machine = Machine::new(&limit(ALGORITHMS[algorithm], "300/d"), 3, 4, || shared.clone());
        let mut now = START;
        let mut admitted = 0;
        for (worker, pause) in steps {
            now += pause;
            admitted += u64::from(machine.check(worker, now).allowed);
        }
        prop_assert_eq!(admitted, 100);
    }

    /// An instance whose piece is less than one unit admits one for each time that its rate brings one.
    #[test]
    fn workers_share_a_fraction(steps in prop::collection::vec((0usize..4, 0u64..SECOND), 1..100)) {
        let shared = Shared::default();
        let mut machine = Machine::new(&limit("token_bucket", "10/s"), 20, 4, || shared.clone());
        let mut now = START;
        let mut last = None;
        for (worker, pause) in steps {
            now += pause;
            let answer = machine.check(worker, now);
            if answer.allowed {
                prop_assert!(last.is_none_or(|last| now - last >= 2 * SECOND), "{last:?} {now}");
                last = Some(now);
            } else {
                let wait = answer.decision().unwrap().retry_after;
                prop_assert!((1..=2 * SECOND).contains(&wait));
            }
        }
    }
}

#[test]
fn several_limits_are_charged_all_or_none() {
    let limits = r#""limits": [ { "rate": "100/d" }, { "algorithm": "sliding_log", "rate": "5/h" } ]"#;
    let shared = Shared::default();
    let mut machine = Machine::new(limits, 1, 2, || shared.clone());
    for turn in 0..20 {
        assert_eq!(machine.check(turn % 2, START + turn as u64).allowed, turn < 5);
    }
    let left = |answer: Answer| answer.decisions()[0].remaining;
    let (one, other) = (machine.check(0, START + 30), machine.check(1, START + 31));
    assert_eq!(left(one), left(other));
    assert!(machine.check(0, START + 3601 * SECOND).allowed);
}

/// Between looking at the limits and charging them another worker may take the last unit: who was too
/// late is denied, and gives back what it was charged, and nothing else.
#[test]
fn who_comes_second_to_the_last_unit_is_denied_and_leaves_it_taken() {
    let limits = r#""limits": [ { "rate": "5/d" }, { "algorithm": "fixed_window", "rate": "1/d" }, { "rate": "9/d" } ]"#;
    let shared = Shared::default();
    let rival = Rival::default();
    let mut late = Machine::new(limits, 1, 1, || Raced(shared.clone(), Rc::clone(&rival)));
    let mut first = Machine::new(limits, 1, 1, || shared.clone());
    *rival.borrow_mut() = Some(Box::new(move || assert!(first.check(0, START).allowed)));
    assert!(!late.check(0, START).allowed);

    let mut calm = Machine::new(limits, 1, 1, Shared::default);
    assert!(calm.check(0, START).allowed);
    let (after, expected) = (late.check(0, START + 1), calm.check(0, START + 1));
    assert!(!after.allowed);
    assert_eq!(after.decisions(), expected.decisions());
}

/// Blobs of a worker that another one is quicker than, once.
struct Raced(Shared, Rival);

/// What it does meanwhile.
type Rival = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;

impl Blobs for Raced {
    type Bytes = Vec<u8>;

    fn read(&mut self, page: u32) -> Result<Option<(Vec<u8>, u32)>, Unavailable> {
        self.0.read(page)
    }

    fn write(&mut self, page: u32, bytes: &[u8], read: Option<u32>) -> Result<bool, Unavailable> {
        if let Some(rival) = self.1.borrow_mut().take() {
            rival();
        }
        self.0.write(page, bytes, read)
    }
}

#[test]
fn units_in_flight_are_given_back_by_whoever_ends_them() {
    let shared = Shared::default();
    let mut machine = Machine::new(&limit("concurrency", "3/h"), 1, 2, || shared.clone());
    let held: Vec<_> = (0..3).map(|turn| machine.check(turn % 2, START)).collect();
    assert!(held.iter().all(|answer| answer.allowed));
    for (turn, answer) in held.iter().enumerate() {
        assert!(!machine.check(0, START + 1).allowed);
        machine.release(turn % 2, answer, START + 2);
        let next = machine.check(1, START + 3);
        assert!(next.allowed, "{turn}");
    }
    assert!(!machine.check(0, START + 4).allowed);
    assert!(machine.check(0, START + 3601 * SECOND).allowed, "they end by themselves");
}

#[test]
fn who_is_denied_waits_at_every_worker_and_longer_each_time() {
    let policy = r#""limits": [ { "rate": "2/s" } ], "penalty": { "base": "2s", "factor": 2, "max": "60s" }"#;
    let shared = Shared::losing_one_in(3);
    let mut machine = Machine::new(policy, 1, 4, || shared.clone());
    let mut now = START;
    for wait in [2, 4, 8].map(|seconds| seconds * SECOND) {
        assert!(machine.check(0, now).allowed && machine.check(1, now).allowed);
        assert_eq!(machine.check(2, now).decision().unwrap().retry_after, wait);
        for worker in 0..4 {
            let early = machine.check(worker, now + wait - 1);
            assert_eq!((early.allowed, early.decision().unwrap().retry_after), (false, 1));
        }
        now += wait;
    }
}

/// A host may have no shared data: then each worker counts by itself, as an instance of its own.
#[test]
fn without_shared_data_each_worker_counts_alone() {
    for algorithm in ALGORITHMS {
        let mut machine = Machine::new(&limit(algorithm, "20/d"), 2, 2, || Nothing);
        for worker in 0..2 {
            let admitted = (0..40).filter(|turn| machine.check(worker, START + turn).allowed).count();
            assert_eq!(admitted, 10, "{algorithm}");
        }
    }
    let policy = r#""limits": [ { "rate": "2/s" } ], "penalty": { "base": "2s", "factor": 2, "max": "60s" }"#;
    let mut machine = Machine::new(policy, 1, 1, || Nothing);
    while machine.check(0, START).allowed {}
    assert!(!machine.check(0, START + 2 * SECOND - 1).allowed);
    assert!(machine.check(0, START + 2 * SECOND).allowed);
}
