//! A rules file that changes while NGINX runs: every worker follows it, no request fails, and a bad
//! one changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::nginx::{Conn, Nginx};

use crate::rules_support::{RulesFile, counter, document, policy, start, start_with, statuses};

fn limited_to(rate: &str) -> String {
    document(&[policy("it", r#""key": ["api_key"],"#, rate)])
}

fn limit_told(nginx: &Nginx) -> u64 {
    nginx.get_as("someone", "/").number("x-ratelimit-limit")
}

/// Requests on kept connections, until it is dropped; every answer must be of these statuses.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    slowest_us: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(port: u16, connections: usize, pause: Duration, key: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let [answers, failed, slowest_us] = std::array::from_fn(|_| Arc::new(AtomicU64::new(0)));
        let threads = (0..connections)
            .map(|_| {
                let (stop, answers, failed, slowest) =
                    (Arc::clone(&stop), Arc::clone(&answers), Arc::clone(&failed), Arc::clone(&slowest_us));
                thread::spawn(move || {
                    let mut conn = Conn::open(port);
                    for n in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        if n % 200 == 199 {
                            conn = Conn::open(port); // so that every worker gets its share
                        }
                        let begun = Instant::now();
                        conn.request("GET", "/", &[("X-Api-Key", key)]);
                        match conn.response_to("GET").map(|answer| answer.status) {
                            Some(200 | 429) => answers.fetch_add(1, Ordering::Relaxed),
                            _ => failed.fetch_add(1, Ordering::Relaxed),
                        };
                        let took = u64::try_from(begun.elapsed().as_micros()).unwrap();
                        slowest.fetch_max(took, Ordering::Relaxed);
                        thread::sleep(pause);
                    }
                })
            })
            .collect();
        Self { stop, answers, failed, slowest_us, threads }
    }

    /// Answers, and the slowest of them.
    pub(crate) fn finish(mut self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        assert_eq!(self.failed.load(Ordering::Relaxed), 0, "requests failed");
        (self.answers.load(Ordering::Relaxed), Duration::from_micros(self.slowest_us.load(Ordering::Relaxed)))
    }

    pub(crate) fn forget_slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_us.swap(0, Ordering::Relaxed))
    }
}

/// How long until this many answers in a row, each on a connection of its own, tell this limit.
fn until_everywhere(nginx: &Nginx, limit: u64) -> Duration {
    let begun = Instant::now();
    let mut last_other = begun;
    let mut alike = 0;
    while alike < 200 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{}", nginx.error_log());
        if limit_told(nginx) == limit {
            alike += 1;
        } else {
            alike = 0;
            last_other = Instant::now();
        }
    }
    last_other - begun
}

#[test]
fn a_changed_file_is_enforced_by_every_worker_and_no_request_fails() {
    let file = RulesFile::new(&limited_to("1000000/s"));
    let nginx = Nginx::start_with(4, &file.http("reload=200ms", ""));
    let load = Load::start(nginx.port(1), 4, Duration::from_micros(500), "load");
    assert_eq!(limit_told(&nginx), 1_000_000);
    let mut slowest = Duration::ZERO;
    for change in 1..=5u64 {
        let limit = 1_000_000 + change;
        file.write(&limited_to(&format!("{limit}/s")));
        slowest = slowest.max(until_everywhere(&nginx, limit));
    }
    let (answers, _) = load.finish();
    println!("{answers} answers; a change was everywhere after {slowest:?} at most");
    assert!(answers > 500);
    assert!(slowest < Duration::from_millis(1200), "{slowest:?}");
    let log = nginx.error_log();
    assert_eq!(log.matches("are in force: 1 policies").count(), 5, "told once a change: {log}");
}

#[test]
fn what_is_spent_stays_spent_when_the_file_changes() {
    let (nginx, file) = start(&limited_to("10/d"));
    assert_eq!(nginx.statuses("a", "/", 8), [200; 8]);
    file.write(&limited_to("9/d"));
    nginx.wait_until("the change", |n| limit_told(n) == 9);
    assert_eq!(nginx.statuses("a", "/", 3)[1..], [429, 429]);
}

#[test]
fn a_file_written_in_place_is_followed_too() {
    let (nginx, file) = start(&limited_to("11/s"));
    for limit in [12, 13, 14, 15, 16, 17] {
        // The same length, and sooner after one another than some clocks tell.
        file.overwrite(&limited_to(&format!("{limit}/s")));
        nginx.wait_until("the change", |n| limit_told(n) == limit);
    }
}

#[test]
fn a_bad_row_of_ten_thousand_changes_nothing_and_is_told_once() {
    let rows = |bad: Option<usize>, rate: &str| {
        let rows: Vec<_> = (0..10_000)
            .map(|row| {
                let rate = if Some(row) == bad { "many" } else { "5/d" };
                format!("{{ \"key\": [\"k{row}\"], \"limits\": [ {{ \"rate\": \"{rate}\" }} ] }}")
            })
            .collect();
        let overrides = format!("\"key\": [\"user\"], \"overrides\": [\n{}\n],", rows.join(",\n"));
        document(&[policy("it", &overrides, rate)])
    };
    let (nginx, file) = start_with(4, &rows(None, "7/d"), "");
    let as_user = |user: &str| nginx.get("/", &[("X-User-Id", user)]).number("x-ratelimit-limit");
    assert_eq!((as_user("k4711"), as_user("other")), (5, 7));
    file.write(&rows(Some(4711), "8/d"));
    nginx.wait_until("the refusal", |n| n.error_log().contains("the rules in force stay"));
    thread::sleep(Duration::from_millis(600)); // several looks of four workers
    assert_eq!((as_user("k4711"), as_user("other")), (5, 7));
    let log = nginx.error_log();
    assert_eq!(log.matches("the rules in force stay").count(), 1, "{log}");
    // Two lines come before row 0.
    let told: Vec<_> = log.lines().filter(|line| line.contains("overrides[4711]")).collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(told[0].contains("line 4714, column "), "{}", told[0]);
    assert!(told[0].contains("policies[0].overrides[4711].limits[0].rate"), "{}", told[0]);
    let page = nginx.metrics();
    assert_eq!(page["rules"]["last_load_failed"], true);
    assert!(page["rules"]["failed_at"].as_u64().unwrap() >= page["rules"]["loaded_at"].as_u64().unwrap());
    // Another mistake is told again; a repaired file is taken.
    file.write(&rows(Some(12), "8/d"));
    nginx.wait_until("the next refusal", |n| n.error_log().contains("overrides[12]"));
    file.write(&rows(None, "9/d"));
    nginx.wait_until("the repair", |_| as_user("other") == 9);
    nginx.wait_until("the page", |n| n.metrics()["rules"]["last_load_failed"] == false);
    assert_eq!(nginx.metrics()["rules"]["overrides"], 10_000);
}

#[test]
fn a_file_that_is_gone_leaves_the_rules_in_force() {
    let (nginx, file) = start_with(2, &limited_to("6/d"), "");
    file.remove();
    nginx.wait_until("the loss", |n| n.error_log().contains("open() failed, the rules in force stay"));
    thread::sleep(Duration::from_millis(400));
    assert_eq!(limit_told(&nginx), 6);
    assert_eq!(nginx.error_log().matches("the rules in force stay").count(), 1);
    assert!(nginx.error_log().contains("No such file"));
    file.write(&limited_to("7/d"));
    nginx.wait_until("its return", |n| limit_told(n) == 7);
    file.remove();
    nginx.wait_until("the second loss", |n| n.error_log().matches("the rules in force stay").count() == 2);
}

#[test]
fn rules_that_the_zone_cannot_hold_are_refused_when_they_come() {
    let (nginx, file) = start(&limited_to("6/d"));
    file.write(&document(&[
        r#"{ "name": "busy", "limits": [ { "rate": "1000/30s", "algorithm": "concurrency" } ] }"#.to_owned(),
    ]));
    nginx.wait_until("the refusal", |n| {
        n.error_log().contains("does not fit into its zone: see rows= and row_entries= of \"tollgate_zone\"")
    });
    assert!(nginx.error_log().contains("policy busy"), "{}", nginx.error_log());
    assert_eq!(limit_told(&nginx), 6);
    file.write(&limited_to("7/d"));
    nginx.wait_until("the repair", |n| limit_told(n) == 7);
}

#[test]
fn counters_live_through_changes_of_the_file_and_reloads() {
    let (mut nginx, file) = start_with(2, &limited_to("2/d"), "");
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 429]);
    file.write(&document(&[
        policy("first", r#""match": { "path": "/first" },"#, "9/d"),
        policy("it", r#""key": ["api_key"],"#, "2/d"),
    ]));
    nginx.wait_until("the change", |n| n.metrics()["rules"]["policies"] == 2);
    nginx.reload(&file.http("reload=100ms", ""));
    assert_eq!(nginx.get_as("a", "/").status, 429);
    assert_eq!((counter(&nginx, "it", "allowed"), counter(&nginx, "it", "rejected")), (2, 2));
    assert_eq!(counter(&nginx, "first", "allowed"), 0);
    // A reload with a bad file is refused, and the old workers go on with what they have.
    file.write("{ \"policies\": 3 }");
    let said = nginx.reload_refused(&file.http("reload=100ms", ""));
    assert!(said.contains("line 1, column 15: policies"), "{said}");
    assert_eq!(nginx.get_as("a", "/").status, 429);
}

#[test]
fn policies_that_come_and_go_do_not_use_the_counters_up() {
    let many = |round: usize| {
        let policies: Vec<_> = (0..20)
            .map(|n| policy(&format!("policy-{round}-{n}"), r#""match": { "path": "/none" },"#, "1/d"))
            .collect();
        document(&policies)
    };
    let file = RulesFile::new(&many(0));
    // 64 KiB have counters for 64 limits and policies.
    let nginx =
        Nginx::start(&file.http("reload=50ms", "").replace("size=1m rows=64 row_entries=64", "size=64k"));
    for round in 1..8 {
        file.write(&many(round));
        let name = format!("policy-{round}-19");
        nginx.wait_until(&name, |n| n.metrics()["zones"][0]["policies"].to_string().contains(&name));
    }
    assert!(!nginx.error_log().contains("in force stay"), "{}", nginx.error_log());
    let long = ["x".repeat(63) + "1", "x".repeat(63) + "2"];
    file.write(&document(&[
        policy(&long[0], "", "1/d"),
        policy(&long[1], r#""match": { "path": "/n" },"#, "1/d"),
    ]));
    nginx.wait_until("long names", |n| n.metrics()["rules"]["policies"] == 2);
    assert_eq!(statuses(&nginx, 2, "/", &[]), [200, 429]);
    assert_eq!((counter(&nginx, &long[0], "allowed"), counter(&nginx, &long[1], "allowed")), (1, 0));
}

#[test]
fn a_worker_that_takes_a_dead_ones_place_has_the_rules_of_the_day() {
    let (mut nginx, file) = start(&limited_to("6/d"));
    nginx.expect_alerts();
    file.write(&limited_to("7/d"));
    nginx.wait_until("the change", |n| limit_told(n) == 7);
    for worker in nginx.worker_pids() {
        tollgate_tests::nginx::send_signal(worker, libc::SIGKILL);
    }
    nginx.wait_until("a new worker", |n| {
        Conn::try_open(n.port(1)).is_some_and(|mut conn| {
            conn.request("GET", "/", &[("X-Api-Key", "b")]);
            conn.response_to("GET").is_some_and(|answer| answer.number("x-ratelimit-limit") == 7)
        })
    });
}

#[test]
fn a_reload_may_change_how_often_the_file_is_looked_at() {
    let file = RulesFile::new(&limited_to("6/d"));
    let mut nginx = Nginx::start(&file.http("reload=50ms", ""));
    file.write(&limited_to("7/d"));
    nginx.wait_until("the change", |n| limit_told(n) == 7);
    nginx.reload(&file.http("reload=70ms", ""));
    file.write(&limited_to("8/d"));
    nginx.wait_until("the change", |n| limit_told(n) == 8);
}

#[test]
fn settings_without_effect_are_told_once_for_each_document() {
    const TOLD: &str = "policy it: counted on this machine, as this host has no Redis";
    let redis = |rate| document(&[policy("it", r#""store": "redis","#, rate)]);
    let (nginx, file) = start_with(3, &redis("5/d"), "");
    let (ok, said) = nginx.test_beside(&file.http("", ""));
    assert!(ok && said.matches(TOLD).count() == 1 && said.contains("[warn]"), "{said}");
    let before = nginx.error_log().matches(TOLD).count();
    file.write(&redis("7/d"));
    nginx.wait_until("the change", |n| limit_told(n) == 7 && n.error_log().contains("are in force"));
    thread::sleep(Duration::from_millis(300)); // every worker has followed
    assert_eq!(nginx.error_log().matches(TOLD).count(), before + 1, "{}", nginx.error_log());
    let many: Vec<_> = (0..20).map(|n| policy(&format!("p{n}"), r#""store": "redis","#, "5/d")).collect();
    file.write(&document(&many));
    let (ok, said) = nginx.test_beside(&file.http("", ""));
    assert!(ok && said.matches("has no Redis").count() == 16 && said.contains("and more"), "{said}");
}
