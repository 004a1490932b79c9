//! Law 6 for limits that are counted in Redis: a request is answered, asked,
//! settled, cancelled and decided alone without a call of the allocator.

use tollgate_core::Decision;
use tollgate_core::key::Seed;
use tollgate_core::metrics::StoreMetrics;
use tollgate_core::policy::{Attributes, KeyRoom, Rules};
use tollgate_core::redis::link::Refused;
use tollgate_core::redis::script::{Call, Op};
use tollgate_core::redis::share::Share;
use tollgate_core::redis::store::{Failure, Host, Progress, Store, StoreConfig, Transport};
use tollgate_core::table::{Config, OwnedTable};
use tollgate_tests::counting::{Counting, calls};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RULES: &str = r#"{ "policies": [
  { "name": "leased", "key": ["path"], "store": "redis", "shards": 2, "lease": { "max": 50, "ttl": "1s" },
    "limits": [ { "rate": "100/s" }, { "algorithm": "sliding_window", "rate": "1000/h" } ] },
  { "name": "flight", "key": ["path"], "store": "redis", "limits": [ { "algorithm": "concurrency", "rate": "50/m" } ] },
  { "name": "here", "key": ["path"], "limits": [ { "rate": "100/s" } ] },
  { "name": "seen", "key": ["path"], "store": "redis", "dry_run": true, "limits": [ { "rate": "5/s" } ] } ] }"#;

/// Tickets under way: with room for all.
struct Line {
    tickets: [(u64, usize, bool); 4096],
    count: usize,
    is_up: bool,
}

impl Transport for Line {
    fn send(&mut self, ticket: u64, call: &Call<'_>, _: u64, _: u64) -> Result<(), Refused> {
        if !self.is_up {
            return Err(Refused::NotConnected);
        }
        if self.count < self.tickets.len() {
            self.tickets[self.count] = (ticket, call.asks.len(), matches!(call.op, Op::Check { .. }));
            self.count += 1;
        }
        Ok(())
    }

    fn probe(&mut self, ticket: u64, _: &[u8], _: u64, _: u64) -> Result<(), Refused> {
        self.send(ticket, &Call { asks: &[], op: Op::GiveBack { units: 0, age: 0, id: 0 } }, 0, 0)
    }
}

#[test]
fn a_request_that_is_counted_in_redis_allocates_nothing() {
    let rules = Rules::parse(RULES, Seed([1, 2])).unwrap();
    let config = Config { capacity: 64, rows: 16, row_entries: 64 };
    let (owned, metrics) = (OwnedTable::new(config, Seed([3, 4])).unwrap(), StoreMetrics::default());
    let table = owned.table().unwrap();
    let config = StoreConfig { pots: 8, waiting: 8, holds: 8, instances: 3, ..StoreConfig::default() };
    let mut store = Store::new(&config).unwrap();
    let mut line = Line { tickets: [(0, 0, false); 4096], count: 0, is_up: true };
    let mut now = 1_000_000_000_000;
    macro_rules! host {
        () => {
            &mut Host { table: &table, metrics: &metrics, transport: &mut line, now }
        };
    }
    let mut decisions =
        [Decision { allowed: true, limit: 100, remaining: 50, retry_after: 0, reset_after: 9, delay: 0 }; 16];
    let (mut admitted, mut denied, mut waited, mut degraded) = (0, 0, 0, 0);
    let paths: [String; 20] = core::array::from_fn(|number| format!("/{number}"));
    let before = calls();
    for step in 0..4_000usize {
        now += 1_000_000;
        let path = paths[step / 50 % 20].as_bytes();
        let request = Attributes { route: b"", method: b"GET", host: b"", path, peer: None, headers: &[] };
        let mut room = KeyRoom::new();
        let selection = rules.select(&request, &mut room).unwrap();
        line.is_up = step / 500 % 4 != 2;
        if step % 1000 == 999 {
            store.set_region(Share::nth(0, 1 + step as u64 % 3).unwrap());
        }
        let count = |answer: &tollgate_core::policy::Answer,
                     admitted: &mut usize,
                     denied: &mut usize,
                     degraded: &mut usize| {
            *admitted += usize::from(answer.allowed);
            *denied += usize::from(!answer.allowed);
            *degraded += usize::from(answer.is_degraded(0));
        };
        match store.check(&rules, &selection, step as u64, host!()) {
            Progress::Answered(answer) => count(&answer, &mut admitted, &mut denied, &mut degraded),
            Progress::Waiting(pending) => {
                waited += 1;
                if step % 5 == 0 {
                    store.cancel(pending, host!());
                }
            }
        }
        let mut next = 0;
        while next < line.count {
            let (ticket, asks, is_check) = line.tickets[next];
            next += 1;
            for decision in &mut decisions {
                let allowed = !step.is_multiple_of(7);
                (decision.allowed, decision.retry_after) = (allowed, if allowed { 0 } else { 3_000_000 });
            }
            match step / 100 % 5 {
                3 => store.failed(ticket, Failure::Timeout, host!()),
                _ if is_check => store.answered(ticket, &mut decisions[..asks], 5, host!()),
                _ => store.answered(ticket, &mut [], 0, host!()),
            }
        }
        line.count = 0;
        while let Some((_, pending)) = store.poll_answer(host!()) {
            let answer = *store.answer(pending).unwrap();
            count(&answer, &mut admitted, &mut denied, &mut degraded);
            for hold in answer.holds() {
                store.release(hold, host!());
            }
        }
        if store.poll_timeout().is_some_and(|at| at <= now) {
            store.handle_timeout(host!());
        }
    }
    store.drain(host!());
    let calls = calls() - before;
    assert_eq!(calls, 0, "calls of the allocator");
    assert!(
        admitted > 100 && denied > 100 && waited > 100 && degraded > 100,
        "{admitted} {denied} {waited} {degraded}"
    );
}
