//! Rules that change while requests come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::nginx::Conn;
use tollgate_tests::over::Over;
use tollgate_tests::redis::Server;

use super::support::{by_user, count, in_redis, statistic};

/// New limits hold within a second of their being written; the rest is for a busy machine.
const WITHIN: Duration = Duration::from_millis(1000 + 2000);

#[test]
fn changed_rules_fail_no_request_and_forget_no_count() {
    let mut setup = Setup::new(&by_user(r#"{ "rate": "10/d" }"#)).concurrency(2);
    setup.watched = true;
    let envoy = setup.start();
    for status in [[200; 10], [429; 10]].concat() {
        assert_eq!(envoy.get("/", &[("x-user", "a")]).status, status);
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        for thread in 0..4 {
            let (port, is_over) = (envoy.port(), &is_over);
            scope.spawn(move || {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    number += 1;
                    let user = format!("{thread}-{number}");
                    let mut conn = Conn::open(port);
                    conn.request("GET", "/", &[("x-user", &user), ("connection", "close")]);
                    assert_eq!(conn.response_to("GET").expect("an answer").status, 200);
                }
            });
        }
        thread::sleep(Duration::from_millis(200));
        let written = Instant::now();
        envoy.update(&by_user(r#"{ "rate": "15/d" }"#));
        while envoy.get("/", &[("x-user", "probe")]).number("x-ratelimit-limit") != 15 {
            assert!(written.elapsed() < WITHIN, "the new rules do not come");
            thread::sleep(Duration::from_millis(5));
        }
        println!("new limits {:?} after they were written", written.elapsed());
        drop(over);
    });
    let end = Instant::now() + Duration::from_secs(10);
    let mut admitted = 0;
    while admitted < 5 && Instant::now() < end {
        admitted += u32::from(envoy.get("/", &[("x-user", "a")]).status == 200);
    }
    assert_eq!(admitted, 5);
    for _ in 0..10 {
        assert_eq!(envoy.get("/", &[("x-user", "a")]).status, 429);
    }
}

/// Each update makes new plugins; the old ones go, with their streams to Redis and all they took.
/// Nobody is denied meanwhile: who comes before a new plugin's stream stands waits for it.
#[test]
fn many_updates_deny_nobody_and_leave_nothing_behind() {
    let server = Server::start(&[]);
    let plugin = |rate: u32| {
        let more = r#", "on_store_error": "deny", "timeout": "2s""#;
        in_redis(&format!(r#"{{ "rate": "{rate}/s" }}"#), more, "")
    };
    let mut setup = Setup::new(&plugin(1000)).concurrency(2).redis(server.port());
    setup.watched = true;
    let envoy = setup.start();
    let is_over = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let over = Over(&is_over);
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (port, is_over) = (envoy.port(), &is_over);
                scope.spawn(move || {
                    let mut number = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        number += 1;
                        let user = format!("{client}-{number}");
                        let mut conn = Conn::open(port);
                        conn.request("GET", "/", &[("x-user", &user), ("connection", "close")]);
                        assert_eq!(conn.response_to("GET").expect("an answer").status, 200, "{user}");
                    }
                    number
                })
            })
            .collect();
        let warm = (1..=5).map(|number| updated(&envoy, &plugin(1000 + number), 1000 + number)).last();
        let rest = (6..=25).map(|number| updated(&envoy, &plugin(1000 + number), 1000 + number)).last();
        let (warm, now) = (warm.expect("five"), rest.expect("twenty"));
        println!("5 updates: {warm} KiB, then 20 more: {now} KiB");
        assert!(now < warm + 16_384, "{warm} KiB, then {now} KiB");
        drop(over);
        clients.into_iter().map(|client| client.join().expect("a client")).sum::<u32>()
    });
    println!("25 updates: {sent} requests, none denied");
    statistic(&envoy, "tollgate_store_waiting", 0);
    statistic(&envoy, "tollgate_store_breaker_open", 0);
    let stats = envoy.admin("/stats?filter=wasmcustom.tollgate.store");
    let [failures, denied] = ["store.failures", "store.fallback_deny"].map(|name| count(&stats, name));
    assert_eq!((failures, denied), (0, 0), "{stats}");
}

/// Updates, and waits until the old listener has drained, which takes a second, and what belonged to
/// it is gone. The resident memory then.
fn updated(envoy: &Envoy, plugin: &str, rate: u32) -> u64 {
    envoy.update(plugin);
    let end = Instant::now() + Duration::from_secs(30);
    while envoy.get("/", &[("x-user", "probe")]).number("x-ratelimit-limit") != u64::from(rate) {
        assert!(Instant::now() < end, "the new rules do not come");
    }
    loop {
        let stats = envoy.admin("/stats?filter=tollgate_bridge|listener_manager");
        let of = |name: &str| count(&stats, name);
        if of("total_listeners_draining") == 0 && of("tollgate_bridge.upstream_rq_active") == 2 {
            return envoy.resident_kib();
        }
        assert!(Instant::now() < end, "{stats}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn wrong_rules_leave_the_old_ones_in_place() {
    let mut setup = Setup::new(&by_user(r#"{ "rate": "10/d" }"#));
    setup.watched = true;
    let envoy = setup.start();
    envoy.update(&by_user(r#"{ "rate": "10/fortnight" }"#));
    let end = Instant::now() + Duration::from_secs(10);
    while !envoy.log().contains("rules.policies[0].limits[0].rate") {
        assert!(Instant::now() < end, "{}", envoy.log());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(envoy.get("/", &[("x-user", "a")]).number("x-ratelimit-limit"), 10);
}
