//! Faults that limiters in the field have had with a store that machines share, each kind ruled out
//! in NGINX.

use std::time::{Duration, Instant};

use redis::cmd;
use tollgate_tests::nginx::{Conn, Nginx};
use tollgate_tests::redis::Server;

use crate::redis_support::{Gateways, Load, Running, burst, directive, orders, store};
use crate::rules_support::{RulesFile, counter, document};

#[test]
fn case_4_lost_scripts_fail_nobody_and_charge_each_request_once() {
    let gateways = Gateways::start(1, 2, &orders("1500/d", r#", "timeout": "10s""#), "");
    gateways.nginx[0].wait_until("both workers to be connected", |nginx| store(nginx, "connections") == 2);
    let mut admin = gateways.redis.connection();
    let running = Running::start(&gateways.ports(), 4, 1, Duration::ZERO);
    let end = Instant::now() + Duration::from_secs(30);
    while gateways.store("denial_hits") == 0 {
        assert!(Instant::now() < end, "{}", gateways.nginx[0].metrics());
        for _ in 0..10 {
            let () = cmd("SCRIPT").arg("FLUSH").query(&mut admin).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let mut load = running.stop();
    load.join(&burst(&gateways.ports(), 50, &[("X-Api-Key", "key-0")]));
    assert_eq!((load.count(200), load.unanswered), (1500, 0), "{load:?}");
    assert_eq!(load.count(200) + load.count(429), load.answered(), "{load:?}");
    let failed = ["failures", "key_failures", "timeouts", "fallback_local"].map(|name| gateways.store(name));
    assert_eq!(failed, [0; 4]);
    let lost = gateways.redis.info("errorstats", "errorstat_NOSCRIPT");
    assert_ne!(lost.trim(), "count=0", "no script was lost");
}

/// And case 3, where nobody listens at all.
#[test]
fn case_15_a_store_that_stops_is_waited_for_until_the_breaker_opens_and_one_probe_recovers_it() {
    let rules = orders("1000000/s", r#", "timeout": "20ms", "on_store_error": "allow""#);
    let gateways = Gateways::start(1, 1, &rules, "");
    let nginx = &gateways.nginx[0];
    let mut conn = Conn::open(nginx.port(1));
    let mut ask = || {
        let at = Instant::now();
        conn.request("GET", "/", &[("X-Api-Key", "a")]);
        assert_eq!(conn.response_to("GET").map(|answer| answer.status), Some(200));
        at.elapsed()
    };
    let _ = ask();
    gateways.redis.stop();
    let mut waits = Vec::new();
    while store(nginx, "breakers_open") == 0 {
        waits.push(ask());
        assert!(waits.len() <= 10, "five failures open it: {waits:?}");
    }
    waits.sort_unstable();
    // The scheduler of a busy machine is allowed for.
    assert!(waits[waits.len() / 2] < Duration::from_millis(60), "{waits:?}");
    let calls = store(nginx, "calls");
    let mut waits: Vec<Duration> = (0..300).map(|_| ask()).collect();
    waits.sort_unstable();
    assert_eq!(store(nginx, "calls"), calls, "nothing is asked while the breaker is open");
    assert!(waits[150] < Duration::from_millis(10), "nobody waits: {waits:?}");
    gateways.redis.cont();
    gateways.wait_for("breakers_open", 0);
    nginx.wait_until("an answer of Redis", |nginx| {
        let _ = nginx.get_as("a", "/");
        store(nginx, "calls") > calls && store(nginx, "replies") > 1
    });
    assert_eq!(store(nginx, "breaker_opened"), 1);

    let mut gone = Server::start(&[]);
    gone.kill();
    let rules = RulesFile::new(&rules);
    let nginx = Nginx::start(&format!("{} {}", directive(&gone, ""), rules.http("reload=1s", "")));
    let at = Instant::now();
    assert_eq!(nginx.statuses("a", "/", 50), [200; 50]);
    assert!(at.elapsed() < Duration::from_secs(5), "{:?}", at.elapsed());
    assert_eq!(store(&nginx, "replies"), 0);
}

#[test]
fn case_17_three_gateways_without_their_store_admit_the_limit_together() {
    let mut gone = Server::start(&[]);
    let rules = RulesFile::new(&orders("10/d", ""));
    let start = |instance: usize| {
        let redis = directive(&gone, &format!("instances=3 instance={instance}"));
        Nginx::start_with(2, &format!("{redis} {}", rules.http("reload=1s", "")))
    };
    let gateways: Vec<Nginx> = (0..3).map(start).collect();
    gone.kill();
    for key in ["a", "b", "c"] {
        let admitted = |nginx: &Nginx| nginx.statuses(key, "/", 12).iter().filter(|is| **is == 200).count();
        let mut each: Vec<usize> = gateways.iter().map(admitted).collect();
        each.sort_unstable();
        assert_eq!(each, [3, 3, 4], "{key}");
    }
}

/// It comes back empty each time, and is told what it forgot. A burst of ten seconds is not full again
/// after two.
#[test]
fn case_20_a_store_that_comes_and_goes_each_two_seconds_hands_out_one_burst_more() {
    let limits = |rate: u64| format!(r#"[ {{ "rate": "{rate}/s", "burst": 100 }} ]"#);
    let policy = |name: &str, rate: u64, more: &str| {
        format!(
            r#"{{ "name": "{name}", "match": {{ "header": {{ "x-api-key": "{name}" }} }}, "key": ["api_key"],
                 "store": "redis", "limits": {} {more} }}"#,
            limits(rate)
        )
    };
    let lease = r#", "lease": { "max": 10, "ttl": "1s" }"#;
    let rates = [("key-0", 50, lease), ("key-1", 10, ""), ("key-2", 50, ""), ("key-3", 10, lease)];
    let rules = document(&rates.map(|(name, rate, more)| policy(name, rate, more)));
    let mut gateways = Gateways::start(2, 2, &rules, "instances=2");
    let began = Instant::now();
    // Each key by threads of both gateways.
    let ports = gateways.ports();
    let [ports, turned] = [[ports[0], ports[1]], [ports[1], ports[0]]];
    let running = [ports, turned].map(|ports| Running::start(&ports, 4, 4, Duration::from_millis(1)));
    std::thread::sleep(Duration::from_secs(1));
    for _ in 0..2 {
        gateways.redis.kill();
        std::thread::sleep(Duration::from_secs(2));
        gateways.redis.restart();
        gateways.wait_for("breakers_open", 0);
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut load = Load::default();
    running.map(Running::stop).iter().for_each(|part| load.join(part));
    let took = u64::try_from(began.elapsed().as_millis()).unwrap();
    assert_eq!((load.count(200) + load.count(429), load.unanswered), (load.answered(), 0), "{load:?}");
    for (name, rate, _) in rates {
        let admitted: u64 = gateways.nginx.iter().map(|nginx| counter(nginx, name, "allowed")).sum();
        let time = rate * took / 1000 + 1;
        println!("case 20: {name}: {admitted} of {rate}/s burst 100 in {took} ms");
        assert!(admitted <= 100 + time + 100, "{name}: {admitted} in {took} ms");
        assert!(admitted >= 100 + time / 4, "{name}: {admitted} in {took} ms: it is used all the time");
    }
}
