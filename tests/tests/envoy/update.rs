//! Rules that change while requests come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::envoy::Setup;
use tollgate_tests::nginx::Conn;

use super::support::by_user;

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
        is_over.store(true, Ordering::Relaxed);
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
