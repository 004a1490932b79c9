//! Faults that limiters in the field have had with limits in Redis, each kind ruled out in the
//! scripts on a real one.

use std::time::{Duration, Instant};

use tollgate_core::redis::cluster::RouterConfig;
use tollgate_core::redis::link::LinkConfig;
use tollgate_core::redis::script::{Ask, Call, Op, decode};
use tollgate_core::time::SECOND;
use tollgate_core::{Decision, Limit, Nanos};
use tollgate_tests::redis::Server;
use tollgate_tests::redis_host::{Host, Outcome};
use tollgate_tests::scripts::{Scripts, take};

const LONG: Duration = Duration::from_secs(20);
/// In 2026, on a whole minute.
const START: Nanos = 1_790_000_040 * SECOND;
const NOTHING: Decision =
    Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };

/// Only Redis's clock counts: two instances whose clocks are a second apart get no second burst.
#[test]
fn case_5_clocks_of_instances_that_differ_issue_nothing_more() {
    let server = Server::start(&[]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut hosts = [Duration::ZERO, Duration::from_secs(1)].map(|ahead| {
        let addresses = [address.as_bytes()];
        let link = LinkConfig::default();
        let mut host = Host::new(&RouterConfig { link, addresses: &addresses, cluster: false });
        host.ahead = ahead;
        assert!(host.until(LONG, |host| host.router.is_ready()));
        host
    });
    let limit: Limit = "150/s burst 150".parse().unwrap();
    for round in 0..3 {
        let (began, before) = (Instant::now(), hosts[0].outcomes.len());
        for number in 0..400 {
            let op = Op::Check { cost: 1, more: 0, share: 1, owed: 0, id: number + 1 };
            for host in &mut hosts {
                let asks = [Ask { key: b"{t}:shared", limit: &limit }];
                host.send(number, &Call { asks: &asks, op }, LONG).unwrap();
            }
            if number % 50 == 49 {
                for host in &mut hosts {
                    assert!(host.until(LONG, |host| host.router.waiting() == 0));
                }
            }
        }
        let took = began.elapsed();
        let outcomes = || hosts.iter().flat_map(|host| &host.outcomes[before..]);
        assert_eq!(outcomes().count(), 800);
        let is_admitted = |outcome: &&Outcome| {
            let mut said = [NOTHING];
            decode(&mut [&limit].into_iter(), outcome.result.as_ref().unwrap(), &mut said).unwrap();
            said[0].allowed
        };
        let admitted = outcomes().filter(is_admitted).count();
        let most = 150 + 150 * usize::try_from(took.as_micros()).unwrap() / 1_000_000 + 1;
        assert!((150..=most).contains(&admitted), "{round}: {admitted} in {took:?}");
        std::thread::sleep(Duration::from_millis(1100)); // it is full again
    }
}

/// Asked at each step for as much as there may be, and less if that is denied.
fn admitted(scripts: &mut Scripts, limit: &Limit, steps: u64, step: Nanos, most: u64) -> u64 {
    let key = format!("{{t}}:{limit:?}");
    let mut ask = |now: Nanos, cost: u64| {
        scripts.at(now);
        scripts.ask(&key, limit, take(cost)).allowed()
    };
    assert!(ask(START, limit.burst()) && !ask(START, 1), "{limit:?}");
    let mut total = limit.burst();
    for number in 1..=steps {
        let now = START + number * step;
        let took = (most.saturating_sub(3).max(1)..=most).rev().find(|cost| ask(now, *cost)).unwrap_or(0);
        total += took;
        assert!(!ask(now, 1), "{limit:?}: {took} at {number} was not all");
    }
    total
}

#[test]
fn case_8_rates_above_1000_a_second_and_per_minute_are_exact() {
    let mut scripts = Scripts::new(true);
    for (text, steps, step, most, rate) in [
        ("1500/s burst 10", 2000, SECOND / 200, 8, 15_000),
        ("700/m burst 13", 600, SECOND, 12, 7_000),
        ("700/m", 600, SECOND, 12, 7_000),
        ("1000000001/s burst 2000000", 100, SECOND / 1000, 1_000_001, 100_000_000),
    ] {
        let limit: Limit = text.parse().unwrap();
        let total = admitted(&mut scripts, &limit, steps, step, most);
        assert_eq!(total, rate + limit.burst(), "{text}");
    }
}
