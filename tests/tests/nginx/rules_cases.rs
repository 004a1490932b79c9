//! Faults that limiters in the field have had, tried on a rules file; the numbers are those of the
//! list of cases.

use std::thread;
use std::time::Duration;

use crate::rules_support::{counter, document, policy, raw, start, start_with, statuses};

/// Nanoseconds of the clock that the module reads.
fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

#[test]
fn case_7_who_waits_retry_after_is_admitted() {
    let (nginx, _file) = start(&document(&[policy("slow", "", "1/1.5s")]));
    assert_eq!(nginx.get("/", &[]).status, 200);
    thread::sleep(Duration::from_millis(100));
    let denied = nginx.get("/", &[]);
    assert_eq!((denied.status, denied.number("retry-after")), (429, 2));
    thread::sleep(Duration::from_secs(2));
    assert_eq!(nginx.get("/", &[]).status, 200);
}

#[test]
fn case_11_all_policies_are_charged_or_none() {
    let (nginx, _file) = start(&document(&[
        policy("group", r#""key": ["api_key"],"#, "10/m"),
        policy("route", r#""key": ["api_key"], "match": { "path": "/route" },"#, "3/m"),
    ]));
    assert_eq!(nginx.statuses("a", "/route", 5), [200, 200, 200, 429, 429]);
    // 7 are left, and this one takes one.
    assert_eq!(nginx.get_as("a", "/").number("x-ratelimit-remaining"), 6);
    assert_eq!((counter(&nginx, "group", "allowed"), counter(&nginx, "group", "rejected")), (4, 0));
    assert_eq!((counter(&nginx, "route", "allowed"), counter(&nginx, "route", "rejected")), (3, 2));
}

#[test]
fn case_12_at_the_edge_of_a_window() {
    let algorithm = |name: &str| {
        format!(
            r#"{{ "name": "{name}", "match": {{ "path": "/{name}" }},
                 "limits": [ {{ "rate": "10/3s", "algorithm": "{name}" }} ] }}"#
        )
    };
    let names = ["fixed_window", "sliding_log", "sliding_window"];
    let (nginx, _file) = start(&document(&names.map(algorithm)));
    let edge = 3_000_000_000;
    let sleep_until = |at: u64| thread::sleep(Duration::from_nanos(at.saturating_sub(monotonic())));
    let admitted = || {
        names.map(|name| {
            statuses(&nginx, 12, &format!("/{name}"), &[]).into_iter().filter(|&status| status == 200).count()
        })
    };
    let mut tries = 0;
    let before = loop {
        // Two windows later nothing of what was before counts.
        let window = monotonic() / edge + 2;
        sleep_until(window * edge + edge - 500_000_000);
        let before = admitted();
        if monotonic() < (window + 1) * edge {
            sleep_until((window + 1) * edge + 10_000_000);
            break before;
        }
        tries += 1;
        assert!(tries < 10, "36 requests never took less than 0.5 s");
    };
    let after = admitted();
    assert_eq!(before, [10, 10, 10]);
    assert_eq!(after[..2], [10, 0], "fixed 20, log 10");
    assert!(after[2] <= 2, "sliding: about 10, and not 10 and {}", after[2]);
}

#[test]
fn case_18_a_cost_above_the_burst_has_a_status_of_its_own() {
    let (nginx, _file) =
        start(&document(&[policy("units", r#""cost": { "header": "x-cost", "max": 100 },"#, "10/s")]));
    let denied = nginx.get("/", &[("X-Cost", "16")]);
    assert_eq!((denied.status, denied.header("retry-after")), (422, None));
    let told = ["limit", "remaining", "reset"].map(|name| denied.header(&format!("x-ratelimit-{name}")));
    assert_eq!(told, [Some("10"), None, None], "what is left is not looked at");
    assert_eq!(nginx.get("/", &[("X-Cost", "10")]).status, 200, "nothing was taken");
    let denied = nginx.get("/", &[("X-Cost", "10")]);
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("1")));
}

#[test]
fn case_23_no_key_ends_in_a_header_or_a_log_line() {
    let (nginx, _file) = start(&document(&[policy("p", r#""key": ["user", "path"],"#, "1/d")]));
    let injected = |answer: &tollgate_tests::nginx::Response| {
        answer.headers.iter().any(|(name, value)| name.contains("njected") || value.contains("njected"))
    };
    for path in ["/%0d%0aX-Injected:%201", "/%ff%fe", "/%1b[31m", "/%22%5c%22%7b"] {
        for status in [200, 429] {
            let answer = nginx.get(path, &[]);
            assert_eq!(answer.status, status, "{path}");
            assert!(!injected(&answer), "{answer:?}");
        }
    }
    for value in [&b"\xff\xfe\x80"[..], b"\x01\x02\x7f", b"a\tb", &[b'k'; 7000]] {
        let mut request = b"GET /x HTTP/1.1\r\nHost: x\r\nX-User-Id: ".to_vec();
        request.extend(value);
        request.extend(b"\r\n\r\n");
        assert_eq!([raw(&nginx, &request).status, raw(&nginx, &request).status], [200, 429]);
    }
    // NGINX itself refuses these, before anybody is asked.
    assert_eq!(raw(&nginx, b"GET /x HTTP/1.1\r\nHost: x\r\nX-User-Id: a\0b\r\n\r\n").status, 400);
    assert_eq!(nginx.get("/%00x", &[]).status, 400);
    let mut long = b"GET /x HTTP/1.1\r\nHost: x\r\nX-User-Id: ".to_vec();
    long.extend([b'k'; 100_000]);
    long.extend(b"\r\n\r\n");
    assert_eq!(raw(&nginx, &long).status, 400);
    let log = nginx.error_log();
    assert!(!log.lines().any(|line| line.starts_with("X-Injected")), "{log}");
    assert!(!log.contains('\x1b') && !log.contains('\0'));
}

#[test]
fn case_1_the_workers_share_one_count() {
    let (nginx, _file) = start_with(4, &document(&[policy("p", "", "10/m")]), "");
    let admitted = statuses(&nginx, 40, "/", &[]).into_iter().filter(|&status| status == 200).count();
    assert_eq!(admitted, 10);
}
