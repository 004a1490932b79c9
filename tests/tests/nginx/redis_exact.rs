//! Limits that several NGINX share through Redis admit what they say, and not one more.

use std::time::{Duration, Instant};

use tollgate_tests::redis::Server;

use crate::redis_support::{Gateways, Running, burst, orders, remote, store};
use crate::rules_support::{counter, document};

/// Long enough for a machine that is busy with other tests.
const PATIENT: &str = r#", "timeout": "10s""#;

const KEY: &[(&str, &str)] = &[("X-Api-Key", "shop-a")];

#[test]
fn a_thousand_at_once_through_twelve_workers_admit_exactly_the_limit() {
    let gateways = Gateways::start(3, 4, &orders("100/d", PATIENT), "instances=3");
    let load = burst(&gateways.ports(), 1000, KEY);
    assert_eq!((load.count(200), load.count(429)), (100, 900), "{load:?}");
    assert_eq!(gateways.store("fallback_local"), 0);
    assert_eq!(gateways.store("waiting"), 0);
    let counted = |name| gateways.nginx.iter().map(|nginx| counter(nginx, "orders", name)).sum::<u64>();
    assert_eq!((counted("allowed"), counted("rejected"), counted("error")), (100, 900, 0));
}

#[test]
fn leases_admit_exactly_the_limit_when_all_is_told() {
    let rules = orders("100/d", r#", "timeout": "10s", "lease": { "max": 50, "ttl": "200ms" }"#);
    let gateways = Gateways::start(3, 4, &rules, "instances=3");
    let mut load = burst(&gateways.ports(), 1000, KEY);
    assert!(load.count(200) <= 100, "{load:?}");
    // What was fetched ahead and not spent comes back when its time is over.
    let end = Instant::now() + Duration::from_secs(10);
    while load.count(200) < 100 && Instant::now() < end {
        load.join(&burst(&gateways.ports(), 48, KEY));
        std::thread::sleep(Duration::from_millis(20));
    }
    load.join(&burst(&gateways.ports(), 200, KEY));
    assert_eq!(load.count(200), 100, "{load:?}");
    assert_eq!(load.count(200) + load.count(429), load.answered());
    assert_eq!((gateways.store("fallback_local"), gateways.store("waiting")), (0, 0));
}

#[test]
fn leases_spare_redis_most_calls() {
    let rules = orders("100000/s", r#", "timeout": "10s", "lease": { "max": 50, "ttl": "5s" }"#);
    let gateways = Gateways::start(1, 1, &rules, "");
    let nginx = &gateways.nginx[0];
    let mut conn = tollgate_tests::nginx::Conn::open(nginx.port(1));
    for _ in 0..1000 {
        conn.request("GET", "/", KEY);
        assert_eq!(conn.response_to("GET").unwrap().status, 200);
    }
    assert!(store(nginx, "lease_hits") > 900, "{}", nginx.metrics());
    assert!(store(nginx, "calls") < 100, "{}", nginx.metrics());
}

#[test]
fn a_denial_is_remembered_and_costs_redis_nothing() {
    let gateways = Gateways::start(1, 1, &orders("5/d", PATIENT), "");
    let nginx = &gateways.nginx[0];
    assert_eq!(nginx.statuses("a", "/", 6), [200, 200, 200, 200, 200, 429]);
    let calls = store(nginx, "calls");
    assert_eq!(nginx.statuses("a", "/", 50), [429; 50]);
    assert_eq!(store(nginx, "calls"), calls);
    assert!(store(nginx, "denial_hits") >= 50);
    let answer = nginx.get_as("a", "/");
    assert!(answer.number("retry-after") > 17_000, "{answer:?}");
    assert_eq!(nginx.metrics()["zones"][0]["top_denied"][0]["policy"], "orders");
}

#[test]
fn limits_of_this_machine_and_of_redis_are_charged_together_or_not_at_all() {
    let rules = document(&[
        remote("shared", "3/d", PATIENT),
        r#"{ "name": "own", "key": ["user"], "limits": [ { "rate": "2/d" } ] }"#.into(),
    ]);
    let gateways = Gateways::start(1, 1, &rules, "");
    let get = |user: &str| gateways.nginx[0].get("/", &[("X-Api-Key", "a"), ("X-User-Id", user)]).status;
    // "own" denies x the third time: "shared" keeps its last one for y, and then denies, so that
    // "own" keeps the second of y.
    assert_eq!([get("x"), get("x"), get("x"), get("x"), get("y"), get("y")], [200, 200, 429, 429, 200, 429]);
    assert_eq!(counter(&gateways.nginx[0], "own", "rejected"), 2);
    assert_eq!(counter(&gateways.nginx[0], "shared", "rejected"), 1);
}

#[test]
fn directives_beside_the_rules_are_given_back_when_redis_denies() {
    let gateways = Gateways::start(1, 1, &orders("2/d", PATIENT), "");
    let mut gateways = gateways;
    let location = "location /both { tollgate zone=main key=$arg_k rate=3/d name=own; empty_gif; }";
    let http = gateways.http("", location);
    gateways.nginx[0].reload(&http);
    let get = |api: &str| gateways.nginx[0].get("/both?k=1", &[("X-Api-Key", api)]).status;
    // Two by "a"; its third and fourth are denied by Redis and leave one of "own" for "b".
    assert_eq!([get("a"), get("a"), get("a"), get("a"), get("b"), get("b")], [200, 200, 429, 429, 200, 429]);
    assert_eq!(gateways.nginx[0].counter("own", "allowed"), 3);
}

#[test]
fn units_in_flight_are_released_when_the_request_ends() {
    let rules = document(&[r#"{ "name": "orders", "key": ["api_key"], "store": "redis", "timeout": "10s",
            "limits": [ { "algorithm": "concurrency", "rate": "1/1m" } ] }"#
        .to_owned()]);
    let gateways = Gateways::start(2, 1, &rules, "instances=2");
    for round in 0..5 {
        for nginx in &gateways.nginx {
            assert_eq!(nginx.get_as("a", "/").status, 200, "{round}");
            gateways
                .wait_for("give_backs", gateways.store("lease_hits") + gateways.store("replies").div_ceil(2));
        }
    }
}

#[test]
fn a_unix_socket_a_password_and_a_database() {
    let redis = Server::start(&["--requirepass", "open sesame"]);
    let path = redis.socket().display().to_string();
    let rules = crate::rules_support::RulesFile::new(&orders("2/d", PATIENT));
    let nginx = tollgate_tests::nginx::Nginx::start(&format!(
        "tollgate_redis unix:{path} 'password=open sesame' db=3; {}",
        rules.http("reload=100ms", "")
    ));
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 429]);
    assert_eq!(store(&nginx, "fallback_local"), 0);
    let mut connection = redis.connection();
    let () = redis::cmd("AUTH").arg("open sesame").query(&mut connection).unwrap();
    let () = redis::cmd("SELECT").arg(3).query(&mut connection).unwrap();
    let keys: usize = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert_eq!(keys, 1);
}

#[test]
fn a_reload_under_load_admits_not_one_more_and_asks_nobody_else() {
    let mut gateways = Gateways::start(1, 2, &orders("300/d", PATIENT), "");
    let running = Running::start(&gateways.ports(), 4, 1, Duration::from_millis(2));
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(60));
        let http = gateways.http("", "");
        gateways.nginx[0].reload(&http);
    }
    std::thread::sleep(Duration::from_millis(500));
    let mut load = running.stop();
    load.join(&burst(&gateways.ports(), 300, &[("X-Api-Key", "key-0")]));
    assert_eq!((load.count(200), load.unanswered), (300, 0), "{load:?}");
    assert_eq!((gateways.store("fallback_local"), gateways.store("waiting")), (0, 0));
}

/// A worker that ends gives back what it has fetched ahead, and waits for what it is fetching.
#[test]
fn workers_that_end_under_load_leave_nothing_behind() {
    let rules = orders("5000/d", r#", "timeout": "10s", "lease": { "max": 50, "ttl": "60s" }"#);
    let mut gateways = Gateways::start(1, 2, &rules, "");
    let running = Running::start(&gateways.ports(), 4, 1, Duration::from_millis(2));
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(60));
        let http = gateways.http("", "");
        gateways.nginx[0].reload(&http);
    }
    let load = running.stop();
    assert!(gateways.store("lease_hits") > 0, "{}", gateways.nginx[0].metrics());
    gateways.nginx[0].signal(3); // SIGQUIT
    gateways.nginx[0].wait_until("no worker is left", |nginx| nginx.worker_pids().is_empty());
    let Gateways { redis, nginx, .. } = gateways;
    drop(nginx);
    let after = Gateways::with(redis, 1, 1, &orders("5000/d", PATIENT), "");
    let left = after.nginx[0].get_as("key-0", "/").number("x-ratelimit-remaining");
    println!("{} admitted under load, then {left} were left", load.count(200));
    assert_eq!((load.unanswered, load.count(429)), (0, 0), "{load:?}");
    // A unit comes each 17 s; a unit's age is rounded up, and all that came back may be short of one.
    let all = load.count(200) + 1 + usize::try_from(left).unwrap();
    assert!((4999..=5001).contains(&all), "{load:?}, {left} left");
}
