//! A reload keeps what is counted and what is spent, or is refused aloud.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate_tests::nginx::{Conn, Nginx};

fn conf(zone: &str, limit: &str) -> String {
    format!(
        "tollgate_zone main {zone};
         server {{ listen 127.0.0.1:@port@;
             location / {{ tollgate zone=main key=$http_x_api_key {limit}; empty_gif; }}
             location = /metrics {{ tollgate_metrics; }} }}"
    )
}

#[test]
fn a_reload_keeps_buckets_and_counters() {
    let plain = conf("size=1m", "rate=5/d name=it");
    let mut nginx = Nginx::start_with(2, &plain);
    assert_eq!(nginx.statuses("a", "/", 6), [200, 200, 200, 200, 200, 429]);
    for _ in 0..3 {
        nginx.reload(&plain);
        assert_eq!(nginx.get_as("a", "/").status, 429);
    }
    assert_eq!(nginx.counter("it", "allowed"), 5);
    assert_eq!(nginx.counter("it", "rejected"), 4);
}

#[test]
fn a_reload_under_load_admits_not_one_more() {
    let plain = conf("size=1m", "rate=300/d name=it");
    let mut nginx = Nginx::start_with(2, &plain);
    let stop = Arc::new(AtomicBool::new(false));
    let admitted = Arc::new(AtomicU64::new(0));
    let answered = Arc::new(AtomicU64::new(0));
    let port = nginx.port(1);
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (stop, admitted, answered) =
                (Arc::clone(&stop), Arc::clone(&admitted), Arc::clone(&answered));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Some(mut conn) = Conn::try_open(port) else { continue };
                    conn.request("GET", "/", &[("X-Api-Key", "a"), ("Connection", "close")]);
                    if let Some(answer) = conn.response_to("GET") {
                        answered.fetch_add(1, Ordering::Relaxed);
                        if answer.status == 200 {
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    thread::sleep(Duration::from_millis(2));
                }
            })
        })
        .collect();
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(60));
        nginx.reload(&plain);
    }
    while answered.load(Ordering::Relaxed) < 600 {
        thread::sleep(Duration::from_millis(5));
    }
    stop.store(true, Ordering::Relaxed);
    for thread in load {
        thread.join().unwrap();
    }
    assert_eq!(admitted.load(Ordering::Relaxed), 300);
    assert_eq!(nginx.counter("it", "allowed"), 300);
    assert_eq!(nginx.counter("it", "rejected"), answered.load(Ordering::Relaxed) - 300);
}

#[test]
fn a_changed_rate_counts_at_once_and_what_is_spent_stays_spent() {
    for name in ["", "name=it"] {
        let mut nginx = Nginx::start(&conf("size=1m", &format!("rate=10/d {name}")));
        assert_eq!(nginx.statuses("a", "/", 8), [200; 8]);
        nginx.reload(&conf("size=1m", &format!("rate=20/d {name}")));
        let answer = nginx.get_as("a", "/");
        assert_eq!(answer.number("x-ratelimit-limit"), 20);
        let left = answer.number("x-ratelimit-remaining");
        assert!((1..=11).contains(&left), "8 and 1 of 20 are spent, {left} left");
        nginx.reload(&conf("size=1m", &format!("rate=2/d {name}")));
        assert_eq!(nginx.get_as("a", "/").status, 429);
    }
}

#[test]
fn every_algorithm_takes_a_changed_rate() {
    let zone = "size=1m rows=8 row_entries=32";
    for algorithm in ["leaky_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let limit = |rate: &str| conf(zone, &format!("rate={rate} algorithm={algorithm} name=it"));
        let mut nginx = Nginx::start(&limit("10/d"));
        assert_eq!(nginx.statuses("a", "/", 8), [200; 8], "{algorithm}");
        nginx.reload(&limit("20/d"));
        let left = nginx.get_as("a", "/").number("x-ratelimit-remaining");
        assert!((1..=11).contains(&left), "{algorithm}: 8 and 1 of 20 are spent, {left} left");
        nginx.reload(&limit("2/d"));
        assert_eq!(nginx.get_as("a", "/").status, 429, "{algorithm}");
    }
}

#[test]
fn a_changed_algorithm_begins_new_buckets() {
    let zone = "size=1m rows=8 row_entries=32";
    let mut nginx = Nginx::start(&conf(zone, "rate=2/d name=it"));
    for algorithm in ["leaky_bucket", "fixed_window", "sliding_window", "sliding_log", "token_bucket"] {
        nginx.reload(&conf(zone, &format!("rate=2/d algorithm={algorithm} name=it")));
        assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 429], "{algorithm}");
    }
    assert_eq!(nginx.counter("it", "allowed"), 10, "the counters go on");
}

#[test]
fn a_reload_that_changes_a_zone_is_refused_and_the_old_one_goes_on() {
    let limit = "rate=2/d name=it";
    let mut nginx = Nginx::start(&conf("size=1m rows=8 row_entries=8", limit));
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 429]);
    for zone in [
        "size=2m rows=8 row_entries=8",
        "size=1m rows=9 row_entries=8",
        "size=1m rows=8 row_entries=9",
        "size=1m",
    ] {
        let said = nginx.reload_refused(&conf(zone, limit));
        assert!(said.contains("zone \"main\" runs with size=1048576 rows=8 row_entries=8"), "{zone}: {said}");
        assert!(said.contains("nginx.conf:"), "{zone}: {said}");
        assert_eq!(nginx.get_as("a", "/").status, 429, "{zone}");
    }
    nginx.reload(&conf("size=1m rows=8 row_entries=8", limit));
    assert_eq!(nginx.get_as("a", "/").status, 429);
}

#[test]
fn the_configuration_test_beside_a_running_server_refuses_a_changed_zone() {
    let limit = "rate=2/d name=it";
    let nginx = Nginx::start(&conf("size=1m", limit));
    let (ok, said) = nginx.test_beside(&conf("size=1m", limit));
    assert!(ok, "{said}");
    for zone in ["size=2m", "size=1m rows=9"] {
        let (ok, said) = nginx.test_beside(&conf(zone, limit));
        assert!(!ok && said.contains("zone \"main\" runs with size=1048576"), "{zone}: {said}");
    }
    let renamed = conf("size=2m", limit).replace("main", "other");
    let (ok, said) = nginx.test_beside(&renamed);
    assert!(ok, "{said}");
}

#[test]
fn zones_and_limits_come_and_go() {
    let mut nginx = Nginx::start(&conf("size=1m", "rate=2/d name=first"));
    assert_eq!(nginx.statuses("a", "/", 2), [200, 200]);
    nginx.reload(
        "tollgate_zone other size=1m;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=other key=$http_x_api_key rate=1/d; empty_gif; } }",
    );
    assert_eq!(nginx.statuses("a", "/", 2), [200, 429]);
    nginx.reload("server { listen 127.0.0.1:@port@; location / { empty_gif; } }");
    assert_eq!(nginx.statuses("a", "/", 3), [200; 3]);
    nginx.reload(&conf("size=1m", "rate=2/d name=first"));
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 429], "a zone that was gone begins anew");
}

#[test]
fn counters_of_limits_long_gone_are_used_again_and_never_run_out() {
    // 64 KiB keep counters for 64 limits.
    let with = |from: usize, n: usize| {
        let limits: String = (from..from + n)
            .map(|i| {
                format!(
                    "location /l{i} {{ tollgate zone=main key=$http_x_api_key rate=9/d name=l{i}; empty_gif; }}"
                )
            })
            .collect();
        format!(
            "tollgate_zone main size=64k;
             server {{ listen 127.0.0.1:@port@; {limits} location = /metrics {{ tollgate_metrics; }} }}"
        )
    };
    let mut nginx = Nginx::start(&with(0, 20));
    for from in [20, 40, 60, 80, 100] {
        let path = format!("/l{from}");
        nginx.reload(&with(from, 20));
        assert_eq!(nginx.statuses("a", &path, 3), [200; 3]);
        assert_eq!(nginx.counter(&path[1..], "allowed"), 3);
    }
    let (ok, said) = Nginx::test(&with(0, 65));
    assert!(!ok && said.contains("counters for 64 limits"), "{said}");
}

#[test]
fn holds_of_old_workers_are_given_back_after_a_reload() {
    let slow = "tollgate_zone main size=1m rows=8 row_entries=8;
        server { listen 127.0.0.1:@port2@; location / { tollgate zone=main key=slow rate=1/s burst=9 delay;
                 empty_gif; } }
        server { listen 127.0.0.1:@port@;
            location / { tollgate zone=main key=$http_x_api_key rate=1/300s algorithm=concurrency name=busy;
                         proxy_pass http://127.0.0.1:@port2@; } }";
    let mut nginx = Nginx::start(slow);
    assert_eq!(nginx.get_as("a", "/").status, 200);
    let mut conn = Conn::open(nginx.port(1));
    conn.request("GET", "/", &[("X-Api-Key", "a")]);
    thread::sleep(Duration::from_millis(100));
    nginx.reload(slow);
    assert_eq!(conn.response_to("GET").unwrap().status, 200, "the old worker ends its request");
    assert_eq!(nginx.get_as("a", "/").status, 200, "and gave the place back");
}

#[test]
fn a_binary_upgrade_serves_on_and_begins_with_empty_zones() {
    let nginx = Nginx::start_daemon(&conf("size=1m", "rate=2/d name=it"));
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 429]);
    nginx.signal(libc::SIGUSR2);
    let new = nginx.dir().join("nginx.pid");
    nginx.wait_until("the new master", |n| {
        std::fs::read_to_string(&new)
            .ok()
            .and_then(|pid| pid.trim().parse::<u32>().ok())
            .is_some_and(|pid| pid != n.pid() && n.dir().join("nginx.pid.oldbin").exists())
    });
    let pid: u32 = std::fs::read_to_string(&new).unwrap().trim().parse().unwrap();
    // The old workers leave; the new ones have a zone of their own.
    nginx.signal(libc::SIGWINCH);
    nginx.wait_until("the old workers to leave", |n| n.worker_pids() == [pid]);
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 429], "one burst more, and not two");
    // Back to the old binary: its workers find their zone as they left it.
    nginx.signal(libc::SIGHUP);
    nginx.wait_until("the old binary's workers", |n| n.worker_pids().len() == 2);
    tollgate_tests::nginx::send_signal(pid, libc::SIGQUIT);
    nginx.wait_until("the new master to leave", |n| !n.worker_pids().contains(&pid));
    assert_eq!(nginx.get_as("a", "/").status, 429, "the old zone still knows");
}

#[test]
fn after_a_binary_upgrade_the_configuration_test_knows_the_new_zones() {
    let limit = "rate=2/d name=it";
    let nginx = Nginx::start_daemon(&conf("size=1m", limit));
    let pid_file = nginx.dir().join("nginx.pid");
    nginx.write_conf(&conf("size=2m", limit));
    nginx.signal(libc::SIGUSR2);
    let pid_now = || std::fs::read_to_string(&pid_file).ok().and_then(|pid| pid.trim().parse::<u32>().ok());
    nginx.wait_until("the new master", |n| pid_now().is_some_and(|pid| pid != n.pid()));
    let pid = pid_now().unwrap();
    nginx.wait_until("its zones", |n| n.dir().join("nginx.pid.tollgate").exists());
    nginx.signal(libc::SIGQUIT);
    let old = format!("/proc/{}", nginx.pid());
    nginx.wait_until("the old master to leave", |_| !std::path::Path::new(&old).exists());
    let (ok, said) = nginx.test_beside(&conf("size=1m", limit));
    let known = !ok && said.contains("zone \"main\" runs with size=2097152");
    tollgate_tests::nginx::send_signal(pid, libc::SIGTERM);
    nginx.wait_until("the new master to leave", |_| !pid_file.exists());
    assert!(known, "{said}");
    nginx.wait_until("its zones to be forgotten", |n| !n.dir().join("nginx.pid.tollgate").exists());
}
