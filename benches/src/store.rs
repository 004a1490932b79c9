//! A decision that needs no call: paid from tokens fetched ahead, or denied
//! from memory. Beside it a local limiter of the field, which shares nothing.

use std::cell::RefCell;
use std::hint::black_box;
use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate_core::Decision;
use tollgate_core::key::Seed;
use tollgate_core::metrics::StoreMetrics;
use tollgate_core::policy::{Attributes, KeyRoom, Rules, Selection};
use tollgate_core::redis::link::Refused;
use tollgate_core::redis::script::Call;
use tollgate_core::redis::store::{Host, Progress, Store, StoreConfig, Transport};
use tollgate_core::table::{Config, OwnedTable};

use crate::Options;
use crate::measure::{Plan, Round, interleaved};
use crate::report::Row;

const RULES: &str = r#"{ "identity": { "user": { "header": "x-user" } },
  "policies": [ { "name": "orders", "key": ["user"], "store": "redis", "timeout": "1s",
                  "limits": [ { "rate": "4000000000/h" } ],
                  "lease": { "max": 4000000000, "ttl": "1h" } } ] }"#;
const START: u64 = 1_000_000_000_000;
/// How far the clock moves between two decisions.
const STEP: u64 = 100;

/// Remembers the ticket; the answer is given by hand.
#[derive(Default)]
struct Told(u64);

impl Transport for Told {
    fn send(&mut self, ticket: u64, _: &Call<'_>, _: u64, _: u64) -> Result<(), Refused> {
        self.0 = ticket;
        Ok(())
    }

    fn probe(&mut self, _: u64, _: &[u8], _: u64, _: u64) -> Result<(), Refused> {
        Err(Refused::NotConnected)
    }
}

pub(crate) fn rows(options: &Options) -> Vec<Row> {
    let plan = Plan { threads: 1, rounds: options.rounds(150), calls: 1 << 13 };
    let lease = Prepared::prepared(true);
    let denial = Prepared::prepared(false);
    let peer: DefaultKeyedRateLimiter<&[u8]> =
        RateLimiter::keyed(Quota::per_hour(NonZeroU32::MAX).allow_burst(NonZeroU32::MAX));
    let governor = |round: Round| {
        (0..round.calls).filter(|_| black_box(peer.check_key(&black_box(&b"shop-a"[..]))).is_ok()).count()
    };
    let by_lease = |round: Round| lease.with(|asked| asked.decide(round.calls));
    let by_denial = |round: Round| denial.with(|asked| asked.decide(round.calls));
    let times = interleaved(plan, &[&by_lease, &by_denial, &governor]);
    let (name, goal) = ("governor keyed, one key, in this process only", 60.0);
    let mut rows = Vec::new();
    for (id, what, time) in [
        ("redis/lease-hit", "a decision paid from tokens fetched ahead", times[0]),
        ("redis/denial-hit", "a decision from an earlier denial", times[1]),
    ] {
        rows.push(Row::absolute(id, &format!("{what}, limits selected before"), "ns", time, goal));
        rows.push(Row::new(&format!("{id}/peer"), what, "ns", time, times[2], name));
    }
    rows
}

/// A store that needs not ask, and all that it is asked with.
struct Prepared {
    rules: Rules,
    table: OwnedTable,
    metrics: StoreMetrics,
    store: RefCell<Store>,
    admits: bool,
}

// Contenders run on one thread at a time.
struct Asked<'p> {
    prepared: &'p Prepared,
}

impl Prepared {
    fn prepared(admits: bool) -> Locked {
        let rules = Rules::parse(RULES, Seed([1, 2])).expect("legal rules");
        let table = OwnedTable::new(Config { capacity: 1024, rows: 0, row_entries: 0 }, Seed([3, 4]));
        let store = RefCell::new(Store::new(&StoreConfig::default()).expect("a legal store"));
        let prepared = Prepared {
            rules,
            table: table.expect("a legal table"),
            metrics: StoreMetrics::default(),
            store,
            admits,
        };
        prepared.ask_once();
        Locked(std::sync::Mutex::new(prepared))
    }

    /// The one call, which grants or denies for long.
    fn ask_once(&self) {
        let mut room = KeyRoom::new();
        let selection = select(&self.rules, &mut room);
        let mut told = Told::default();
        let table = self.table.table().expect("its own table");
        let mut host = Host { table: &table, metrics: &self.metrics, transport: &mut told, now: START };
        let mut store = self.store.borrow_mut();
        assert!(matches!(store.check(&self.rules, &selection, 1, &mut host), Progress::Waiting(_)));
        let ticket = told.0;
        let mut host = Host { table: &table, metrics: &self.metrics, transport: &mut told, now: START };
        let hour = 3_600_000_000_000;
        let (retry_after, units) = if self.admits { (0, 4_000_000_000) } else { (hour, 0) };
        let decision = Decision {
            allowed: self.admits,
            limit: 1000,
            remaining: 0,
            retry_after,
            reset_after: hour,
            delay: 0,
        };
        store.answered(ticket, &mut [decision], units, &mut host);
        assert!(store.poll_answer(&mut host).is_some());
    }
}

struct Locked(std::sync::Mutex<Prepared>);

impl Locked {
    fn with(&self, step: impl FnOnce(&Asked<'_>) -> usize) -> usize {
        let prepared = self.0.lock().expect("no round failed");
        step(&Asked { prepared: &prepared })
    }
}

impl Asked<'_> {
    fn decide(&self, calls: usize) -> usize {
        let Prepared { rules, table, metrics, store, admits } = self.prepared;
        let mut room = KeyRoom::new();
        let selection = select(rules, &mut room);
        let table = table.table().expect("its own table");
        let mut store = store.borrow_mut();
        let mut told = Told::default();
        let mut host = Host { table: &table, metrics, transport: &mut told, now: START };
        let mut as_expected = 0;
        for _ in 0..calls {
            host.now += STEP;
            match store.check(rules, black_box(&selection), 1, &mut host) {
                Progress::Answered(answer) => {
                    as_expected += usize::from(black_box(answer.allowed) == *admits);
                }
                Progress::Waiting(_) => {}
            }
        }
        assert_eq!(told.0, 0, "nothing was asked");
        as_expected
    }
}

fn select<'r>(rules: &'r Rules, room: &'r mut KeyRoom) -> Selection<'r> {
    let headers = [Some(&b"shop-a"[..])];
    let request =
        Attributes { route: b"", method: b"GET", host: b"", path: b"/", peer: None, headers: &headers };
    rules.select(&request, room).expect("every identity is told")
}
