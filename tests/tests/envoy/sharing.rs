//! The limit is the limit, whatever the number of workers.

use std::thread;
use std::time::Duration;

use tollgate_tests::envoy::{Envoy, Setup};
use tollgate_tests::redis::Server;

use super::support::{admitted, by_user, in_redis, rules};

#[test]
fn workers_together_admit_exactly_the_limit() {
    for concurrency in [1, 2, 4] {
        let envoy = Setup::new(&by_user(r#"{ "rate": "10/m" }"#)).concurrency(concurrency).start();
        for user in ["a", "b", "c"] {
            assert_eq!(admitted(&envoy, 40, 1, &[("x-user", user)]), 10, "{concurrency} workers, {user}");
        }
        assert_eq!(admitted(&envoy, 40, 5, &[("x-user", "d")]), 10, "{concurrency} workers");
    }
}

#[test]
fn every_algorithm_is_shared() {
    for algorithm in ["leaky_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let limits = format!(r#"{{ "algorithm": "{algorithm}", "rate": "10/d" }}"#);
        let envoy = Setup::new(&by_user(&limits)).concurrency(4).start();
        assert_eq!(admitted(&envoy, 40, 2, &[("x-user", "a")]), 10, "{algorithm}");
    }
}

/// Units that workers have fetched ahead are spent by them, or come back.
#[test]
fn a_leased_limit_is_given_out_to_the_last_unit() {
    let envoy = Setup::new(&by_user(r#"{ "rate": "1000/d" }"#)).concurrency(4).start();
    let mut sum = admitted(&envoy, 16, 150, &[("x-user", "a")]);
    for _ in 0..10 {
        assert!(sum <= 1000, "{sum}");
        thread::sleep(Duration::from_millis(300));
        sum += admitted(&envoy, 16, 2, &[("x-user", "a")]);
    }
    assert_eq!(sum, 1000);
}

#[test]
fn requests_in_flight_are_given_back_when_they_end() {
    let envoy =
        Setup::new(&by_user(r#"{ "algorithm": "concurrency", "rate": "5/h" }"#)).concurrency(4).start();
    // Each is over before the next: 200 of them never hold five.
    let mut conn = envoy.connect();
    for _ in 0..200 {
        conn.request("GET", "/", &[("x-user", "a")]);
        assert_eq!(conn.response_to("GET").expect("an answer").status, 200);
    }
}

/// Who is denied again and again waits longer each time, whichever worker it comes to.
#[test]
fn a_penalty_is_every_workers() {
    let plugin = rules(
        r#""identity": { "user": { "header": "x-user" } },
           "policies": [ { "name": "login", "key": ["user"], "limits": [ { "rate": "5/s" } ],
                           "penalty": { "base": "60s", "factor": 2, "max": "1h" } } ]"#,
    );
    let envoy = Setup::new(&plugin).concurrency(4).start();
    is_every_workers(&envoy);
}

/// Five a second are admitted, and the first denial asks for a minute.
fn is_every_workers(envoy: &Envoy) {
    // One connection is one worker's: it counts one denial, and the others that follow are none.
    let sum = admitted(envoy, 1, 10, &[("x-user", "a")]);
    assert!((5..=6).contains(&sum), "{sum}: the sixth may have come a fifth of a second later");
    thread::sleep(Duration::from_millis(1200)); // the bucket is full again
    for _ in 0..40 {
        let answer = envoy.get("/", &[("x-user", "a")]);
        let wait = answer.number("retry-after");
        assert!(answer.status == 429 && (50..=60).contains(&wait), "{} {wait}", answer.status);
    }
    assert_eq!(envoy.get("/", &[("x-user", "b")]).status, 200);
}

/// Nobody listens where Redis should be: an Envoy admits its part of the limit, whatever its workers.
#[test]
fn workers_without_redis_admit_their_part_together() {
    let choice = r#", "on_store_error": "local", "timeout": "50ms""#;
    let limits = ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
        .map(|algorithm| format!(r#"{{ "algorithm": "{algorithm}", "rate": "60/d" }}"#));
    for limit in limits {
        let plugin = in_redis(&limit, choice, r#", "instances": 3, "workers": 4"#);
        let envoy = Setup::new(&plugin).redis(1).concurrency(4).start();
        assert_eq!(admitted(&envoy, 40, 2, &[("x-user", "a")]), 20, "{limit}");
    }
    // Its part is a unit each five days: it begins without.
    let plugin = in_redis(r#"{ "rate": "40/d" }"#, choice, r#", "instances": 200"#);
    let envoy = Setup::new(&plugin).redis(1).concurrency(4).start();
    assert_eq!(admitted(&envoy, 40, 2, &[("x-user", "a")]), 0);
}

/// As [`a_penalty_is_every_workers`], of a policy that counts in Redis, whether that is there or not.
#[test]
fn a_penalty_of_a_policy_in_redis_is_every_workers() {
    let server = Server::start(&[]);
    let more = r#", "penalty": { "base": "60s", "factor": 2, "max": "1h" }, "timeout": "2s""#;
    for port in [server.port(), 1] {
        let plugin = in_redis(r#"{ "rate": "5/s" }"#, more, "");
        let envoy = Setup::new(&plugin).redis(port).concurrency(4).start();
        is_every_workers(&envoy);
    }
}

/// A request that costs nothing is asked and told as any other, and leaves no trace in what others
/// are counted by.
#[test]
fn who_costs_nothing_takes_nothing_from_others() {
    let plugin = rules(
        r#""identity": { "user": { "header": "x-user" } },
           "policies": [ { "name": "all", "key": ["user"], "cost": { "header": "x-cost", "max": 100 },
                           "limits": [ { "rate": "100/d" } ] } ]"#,
    );
    let envoy = Setup::new(&plugin).start();
    let mut conn = envoy.connect();
    let mut ask = |user: &str, cost: &str| {
        conn.request("GET", "/", &[("x-user", user), ("x-cost", cost)]);
        let answer = conn.response_to("GET").expect("an answer");
        let left = answer.header("x-ratelimit-remaining").map(str::to_owned);
        (answer.status, left.and_then(|left| left.parse::<u32>().ok()).expect("what is left"))
    };
    for user in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(ask(user, "1"), (200, 99));
        for _ in 0..20 {
            assert_eq!(ask(user, "0"), (200, 99));
        }
    }
    let admitted = (0..150).filter(|_| ask("victim", "1").0 == 200).count();
    assert_eq!(admitted, 100);
    assert!(envoy.admin("/stats?filter=store_errors").contains("policy.all.store_errors: 0"));
}
