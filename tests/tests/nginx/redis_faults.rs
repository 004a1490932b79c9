//! Redis is away, slow, or not for us: each policy's choice is obeyed, in time, and nothing leaks.

use std::process::Command;
use std::time::{Duration, Instant};

use tollgate_tests::nginx::{Conn, Nginx};
use tollgate_tests::redis::Server;

use crate::redis_support::{Gateways, Running, directive, orders, remote, store};
use crate::rules_support::{RulesFile, counter, document};

#[test]
fn a_client_that_goes_while_it_waits_leaves_nothing() {
    let gateways = Gateways::start(1, 1, &orders("20/d", r#", "timeout": "10s""#), "");
    let nginx = &gateways.nginx[0];
    assert_eq!(nginx.get_as("a", "/").status, 200);
    gateways.redis.stop();
    let conns: Vec<Conn> = (0..15)
        .map(|_| {
            let mut conn = Conn::open(nginx.port(1));
            conn.request("GET", "/", &[("X-Api-Key", "a")]);
            conn
        })
        .collect();
    gateways.wait_for("waiting", 15);
    drop(conns);
    gateways.wait_for("waiting", 0);
    gateways.redis.cont();
    // What they were charged came back, if their calls were answered at all; at no time more is
    // admitted than there is.
    nginx.wait_until("Redis to answer", |nginx| store(nginx, "breakers_open") == 0);
    let end = Instant::now() + Duration::from_secs(10);
    let mut admitted = 1;
    while admitted < 20 && Instant::now() < end {
        match nginx.get_as("a", "/").status {
            200 => admitted += 1,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let late = nginx.statuses("a", "/", 5);
    assert!(late.iter().all(|status| *status == 429), "{admitted} and {late:?}");
    assert!(admitted == 20 || store(nginx, "timeouts") + store(nginx, "failures") > 0, "{admitted}");
}

#[test]
fn an_http_2_stream_that_goes_while_it_waits_leaves_nothing() {
    let gateways = Gateways::start(1, 1, &orders("20/d", r#", "timeout": "10s""#), "");
    let nginx = &gateways.nginx[0];
    assert_eq!(nginx.get_as("a", "/").status, 200);
    gateways.redis.stop();
    let mut curl = Command::new("curl")
        .args(["-s", "--max-time", "10", "--http2-prior-knowledge", "-H", "x-api-key: a"])
        .arg(format!("http://127.0.0.1:{}/", nginx.port(4)))
        .spawn()
        .unwrap();
    gateways.wait_for("waiting", 1);
    curl.kill().unwrap();
    let _ = curl.wait();
    gateways.wait_for("waiting", 0);
    gateways.redis.cont();
    gateways.wait_for("breakers_open", 0);
    nginx.wait_until("Redis to answer", |nginx| nginx.get_as("b", "/").status == 200);
}

#[test]
fn each_policy_chooses_what_happens_without_redis() {
    let policy = |name: &str, more: &str| {
        format!(
            r#"{{ "name": "{name}", "match": {{ "path": "/{name}" }}, "key": ["api_key"], "store": "redis",
                 "on_store_error": "{name}", "limits": [ {{ "rate": "10/d" }} ] {more} }}"#
        )
    };
    let rules = document(&["local", "allow", "deny"].map(|name| policy(name, r#", "timeout": "1s""#)));
    let mut gateways = Gateways::start(1, 1, &rules, "instances=3 instance=0");
    assert_eq!(gateways.nginx[0].statuses("a", "/allow", 1), [200]);
    gateways.redis.kill();
    let nginx = &gateways.nginx[0];
    assert_eq!(nginx.statuses("a", "/allow", 30), [200; 30]);
    assert_eq!(nginx.statuses("a", "/deny", 4), [503; 4]);
    let denied = nginx.get_as("a", "/deny");
    assert_eq!((denied.status, denied.number("retry-after")), (503, 1));
    let told = "The limit deny cannot be asked at present. Try again in 1 s.";
    assert!(denied.text().contains("#temporary-reduced-capacity") && denied.text().contains(told));
    let local = nginx.statuses("a", "/local", 30);
    let admitted = local.iter().filter(|status| **status == 200).count();
    assert!((3..=4).contains(&admitted), "a third of ten: {local:?}");
    assert_eq!(store(nginx, "breakers_open"), 1);
    assert!(store(nginx, "breaker_opened") >= 1);
    assert!(store(nginx, "fallback_allow") >= 30 && store(nginx, "fallback_deny") == 5);
    assert!(store(nginx, "fallback_local") > 3);
    assert!(counter(nginx, "deny", "error") == 5 && counter(nginx, "allow", "error") >= 30);
    let page = nginx.get("/metrics", &[]).text();
    for line in [
        "tollgate_store_breakers_open 1\n",
        "tollgate_store_seconds_count",
        "tollgate_store_fallback_deny_total 5\n",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }

    gateways.redis.restart();
    let back = Instant::now();
    gateways.wait_for("breakers_open", 0);
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    assert_eq!(gateways.nginx[0].statuses("b", "/deny", 11)[..10], [200; 10]);
}

#[test]
fn a_log_says_it_once_a_second_and_never_the_password() {
    let redis = Server::start(&["--requirepass", "right"]);
    let rules = RulesFile::new(&orders("5/d", ""));
    let nginx = Nginx::start(&format!(
        "{} {}",
        directive(&redis, "password=verysecret"),
        rules.http("reload=100ms", "")
    ));
    let start = Instant::now();
    let statuses = nginx.statuses("a", "/", 200);
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5);
    nginx.wait_until("a word about it", |nginx| nginx.error_log().contains("refused us: WRONGPASS"));
    let seconds = start.elapsed().as_secs() as usize + 2;
    let log = nginx.error_log();
    assert!(!log.contains("verysecret"));
    let said = log.lines().filter(|line| line.contains("Redis")).count();
    assert!((1..=seconds + 1).contains(&said), "{said} lines in {seconds} s: {log}");
}

#[test]
fn a_stopped_redis_makes_nobody_wait_longer_than_the_timeout() {
    let rules = orders("100000/s", r#", "timeout": "50ms", "on_store_error": "allow""#);
    let gateways = Gateways::start(1, 2, &rules, "");
    let running = Running::start(&gateways.ports(), 4, 50, Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(200));
    gateways.redis.stop();
    std::thread::sleep(Duration::from_millis(700));
    gateways.redis.cont();
    let back = Instant::now();
    gateways.wait_for("breakers_open", 0);
    let took = back.elapsed();
    let load = running.stop();
    assert_eq!((load.count(200), load.unanswered), (load.answered(), 0), "{load:?}");
    // The machine's own pauses are not the limiter's.
    assert!(load.longest < Duration::from_millis(500), "{load:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    gateways.wait_for("waiting", 0);
}

#[test]
fn redis_that_is_killed_and_comes_back_is_used_again() {
    let rules = orders("100000/s", r#", "on_store_error": "allow", "lease": { "max": 20, "ttl": "1s" }"#);
    let mut gateways = Gateways::start(2, 2, &rules, "instances=2");
    let running = Running::start(&gateways.ports(), 4, 8, Duration::from_millis(1));
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(200));
        gateways.redis.kill();
        std::thread::sleep(Duration::from_millis(300));
        gateways.redis.restart();
        gateways.wait_for("breakers_open", 0);
    }
    let load = running.stop();
    assert_eq!((load.count(200), load.unanswered), (load.answered(), 0), "{load:?}");
    gateways.wait_for("waiting", 0);
}

#[test]
fn rules_may_change_while_requests_wait_for_an_answer_of_the_old_ones() {
    let gateways = Gateways::start(1, 1, &orders("20/d", r#", "timeout": "10s""#), "");
    let nginx = &gateways.nginx[0];
    assert_eq!(nginx.get_as("a", "/").status, 200);
    for round in 0..3 {
        gateways.redis.stop();
        let mut conns: Vec<Conn> = (0..3)
            .map(|_| {
                let mut conn = Conn::open(nginx.port(1));
                conn.request("GET", "/", &[("X-Api-Key", "a")]);
                conn
            })
            .collect();
        gateways.wait_for("waiting", 3);
        let more: Vec<String> = (0..=round).map(|i| remote(&format!("more-{i}"), "1000/s", "")).collect();
        let all = [&[remote("orders", "20/d", r#", "timeout": "10s""#)][..], &more].concat();
        gateways.rules.write(&document(&all));
        nginx.wait_until("the new rules", |nginx| nginx.metrics()["rules"]["policies"] == round + 2);
        gateways.redis.cont();
        for conn in &mut conns {
            assert_eq!(conn.response_to("GET").map(|answer| answer.status), Some(200));
        }
        gateways.wait_for("waiting", 0);
        gateways.wait_for("breakers_open", 0);
    }
}

#[test]
fn a_worker_that_ends_waits_for_its_requests_and_gives_back_what_it_holds() {
    let rules = orders("100/d", r#", "timeout": "10s", "lease": { "max": 50, "ttl": "10m" }"#);
    let mut gateways = Gateways::start(1, 1, &rules, "");
    // Enough to be worth a lease.
    assert_eq!(gateways.nginx[0].statuses("a", "/", 20), [200; 20]);
    let http = gateways.http("", "");
    gateways.nginx[0].reload(&http);
    // The leases of the old worker would be gone for ten minutes.
    let nginx = &gateways.nginx[0];
    let end = Instant::now() + Duration::from_secs(10);
    let mut admitted = 20;
    while admitted < 100 && Instant::now() < end {
        admitted += usize::from(nginx.get_as("a", "/").status == 200);
    }
    assert_eq!(admitted, 100);
    assert_eq!(nginx.statuses("a", "/", 3), [429; 3]);
}
