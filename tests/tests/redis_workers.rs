//! Workers of one machine, each with a store of its own, that share their table and their metrics:
//! when the store is back, all of them use it again at once. One that counted alone meanwhile would
//! admit what the others admit as well.

use tollgate_core::key::Seed;
use tollgate_core::metrics::StoreMetrics;
use tollgate_core::policy::{Attributes, KeyRoom, Rules, Selection};
use tollgate_core::redis::breaker::State;
use tollgate_core::redis::link::Refused;
use tollgate_core::redis::script::Call;
use tollgate_core::redis::store::{Host, Progress, Store, StoreConfig, Transport};
use tollgate_core::table::{Config, OwnedTable, Table};

const MS: u64 = 1_000_000;
const RULES: &str =
    r#"{ "policies": [ { "name": "p", "store": "redis", "limits": [ { "rate": "1000000/s" } ] } ] }"#;

/// What a worker sends its calls by.
struct Line {
    taken: Result<(), Refused>,
    probes: Vec<u64>,
    hurried: u32,
}

impl Transport for Line {
    fn send(&mut self, _: u64, _: &Call<'_>, _: u64, _: u64) -> Result<(), Refused> {
        self.taken
    }

    fn probe(&mut self, ticket: u64, _: &[u8], _: u64, _: u64) -> Result<(), Refused> {
        self.taken?;
        self.probes.push(ticket);
        Ok(())
    }

    fn hurry(&mut self, _: u64) {
        self.hurried += 1;
    }
}

struct Worker {
    store: Store,
    line: Line,
}

struct Machine<'m> {
    table: Table<'m>,
    metrics: &'m StoreMetrics,
    rules: &'m Rules,
    selection: Selection<'m>,
}

impl Worker {
    fn refused(why: Refused) -> Worker {
        let store = Store::new(&StoreConfig { workers: 2, ..StoreConfig::default() }).unwrap();
        Worker { store, line: Line { taken: Err(why), probes: Vec::new(), hurried: 0 } }
    }
}

impl Machine<'_> {
    /// A worker whose breaker is open, since so long before `now`.
    fn worker(&self, since: u64, now: u64) -> Worker {
        let mut worker = Worker::refused(Refused::NotConnected);
        for _ in 0..5 {
            self.ask(&mut worker, now - since);
        }
        assert_eq!(worker.store.state(), State::Open);
        worker
    }

    fn host<'h>(&'h self, line: &'h mut Line, now: u64) -> Host<'h, 'h> {
        Host { table: &self.table, metrics: self.metrics, transport: line, now }
    }

    fn ask(&self, worker: &mut Worker, now: u64) {
        let mut host = self.host(&mut worker.line, now);
        match worker.store.check(self.rules, &self.selection, 0, &mut host) {
            Progress::Answered(answer) => assert!(answer.allowed && answer.is_degraded(0)),
            Progress::Waiting(_) => panic!("no call is sent"),
        }
    }

    /// Its probe is due, and answered.
    fn probe(&self, worker: &mut Worker, now: u64) {
        let mut host = self.host(&mut worker.line, now);
        worker.store.handle_timeout(&mut host);
        self.tell_probe(worker, now);
    }

    fn tell_probe(&self, worker: &mut Worker, now: u64) {
        let ticket = worker.line.probes.pop().expect("a probe");
        let mut host = self.host(&mut worker.line, now);
        worker.store.answered(ticket, &mut [], 0, &mut host);
    }
}

fn on_a_machine(test: impl FnOnce(&Machine<'_>)) {
    let rules = Rules::parse(RULES, Seed([1, 2])).unwrap();
    let request = Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &[] };
    let mut room = KeyRoom::new();
    let selection = rules.select(&request, &mut room).unwrap();
    let owned = OwnedTable::new(Config { capacity: 64, rows: 0, row_entries: 0 }, Seed([3, 4])).unwrap();
    let metrics = StoreMetrics::default();
    test(&Machine { table: owned.table().unwrap(), metrics: &metrics, rules: &rules, selection });
}

#[test]
fn what_one_worker_finds_out_the_others_try_at_once() {
    on_a_machine(|machine| {
        let now = 1_000_000 * MS;
        let (mut one, mut other) = (machine.worker(100 * MS, now), machine.worker(5 * MS, now));
        (one.line.taken, other.line.taken) = (Ok(()), Ok(()));
        machine.ask(&mut other, now);
        assert!(other.line.probes.is_empty(), "its own probe is due in 95 ms");

        machine.probe(&mut one, now);
        assert_eq!(one.store.state(), State::Closed);

        machine.ask(&mut other, now + 1);
        machine.ask(&mut other, now + 2);
        assert_eq!((other.line.probes.len(), other.line.hurried), (1, 1), "one probe");
        machine.tell_probe(&mut other, now + 3);
        assert_eq!(other.store.state(), State::Closed);
        assert_eq!(machine.metrics.snapshot().open, 0);
    });
}

/// As many are open as before when one opens while another closes.
#[test]
fn what_one_worker_finds_out_is_heard_whatever_a_third_does() {
    on_a_machine(|machine| {
        let now = 1_000_000 * MS;
        let (mut one, mut other) = (machine.worker(100 * MS, now), machine.worker(5 * MS, now));
        (one.line.taken, other.line.taken) = (Ok(()), Ok(()));
        machine.probe(&mut one, now);
        let _third = machine.worker(0, now);
        assert_eq!(machine.metrics.snapshot().open, 2);

        machine.ask(&mut other, now + 1);
        assert_eq!((other.line.probes.len(), other.line.hurried), (1, 1));
    });
}

#[test]
fn a_connection_that_is_made_is_tried_at_once() {
    on_a_machine(|machine| {
        let now = 1_000_000 * MS;
        let mut worker = machine.worker(MS, now);
        worker.line.taken = Ok(());
        let mut host = machine.host(&mut worker.line, now);
        worker.store.connected(&mut host);
        machine.tell_probe(&mut worker, now + 1);
        assert_eq!(worker.store.state(), State::Closed);
        let mut host = machine.host(&mut worker.line, now + 2);
        worker.store.connected(&mut host);
        assert!(worker.line.probes.is_empty(), "it is in use");
        assert_eq!(machine.metrics.snapshot().connected, 2);
    });
}

#[test]
fn want_of_room_for_a_call_is_no_fault_of_the_stores() {
    on_a_machine(|machine| {
        for why in [Refused::Full, Refused::TooLong] {
            let mut worker = Worker::refused(why);
            for _ in 0..100 {
                machine.ask(&mut worker, 1_000_000 * MS);
            }
            assert_eq!(worker.store.state(), State::Closed, "{why}");
        }
        assert_eq!(machine.metrics.snapshot().failures, 0);
    });
}
