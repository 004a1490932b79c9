//! Faults that limiters in the field have had, each kind ruled out in the core.

use tollgate_core::key::Seed;
use tollgate_core::limiter::check_all;
use tollgate_core::table::{Config, Hold, OwnedTable, Request};
use tollgate_core::time::{SECOND, whole_seconds};
use tollgate_core::{Decision, Limit, NEVER, Nanos};
use tollgate_tests::subject::every_way;

const MS: Nanos = 1_000_000;

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// Admissions of cost 1 at those times, and the ways in which they were asked.
fn admitted(text: &str, times: &[Nanos]) -> Vec<(&'static str, u64)> {
    every_way(limit(text))
        .into_iter()
        .map(|(way, mut subject)| {
            (way, times.iter().filter(|&&now| subject.check(1, now).allowed).count() as u64)
        })
        .collect()
}

fn all_admit(text: &str, times: &[Nanos], expected: u64) {
    for (way, count) in admitted(text, times) {
        assert_eq!(count, expected, "{text}, {way}");
    }
}

#[test]
fn case_6_a_clock_that_steps_back_between_cores_denies_nobody_early() {
    let times: Vec<Nanos> = (0..12).map(|n| 100 * SECOND - n % 2 * MS).collect();
    all_admit("1/s burst 10", &times, 10);
    all_admit("leaky_bucket 1/s burst 10", &times, 10);
    for windowed in ["fixed_window 10/h", "sliding_window 10/h", "sliding_log 10/h", "concurrency 10/h"] {
        all_admit(windowed, &times, 10);
    }
}

#[test]
fn case_7_the_client_that_waits_as_told_is_admitted() {
    for (way, mut subject) in every_way(limit("1/1.5s")) {
        assert!(subject.check(1, 0).allowed);
        let denied = subject.check(1, 100 * MS);
        assert_eq!((denied.allowed, whole_seconds(denied.retry_after)), (false, 2), "{way}");
        assert!(subject.check(1, 2_100 * MS).allowed, "{way}");
    }
}

#[test]
fn case_8_rates_above_1000_a_second_and_per_minute_are_exact() {
    let offered = |span: Nanos, step: Nanos| -> Vec<Nanos> { (0..=span / step).map(|n| n * step).collect() };
    all_admit("1500/s burst 10", &offered(10 * SECOND, 250_000), 15_010);
    all_admit("700/m burst 10", &offered(600 * SECOND, 10 * MS), 7_010);
    all_admit("700/m", &offered(600 * SECOND, 10 * MS), 7_700);
}

#[test]
fn case_9_a_denied_request_does_not_postpone_the_next() {
    let times: Vec<Nanos> = (0..=10).map(|n| n * 600 * MS).collect();
    all_admit("1/s burst 1", &times, 6);
}

#[test]
fn case_11_one_limit_denies_and_the_other_is_not_charged() {
    let owned = OwnedTable::new(Config { capacity: 64, rows: 0, row_entries: 0 }, Seed([1, 2])).unwrap();
    let table = owned.table().unwrap();
    let (group, route) = (limit("10/m"), limit("3/m"));
    let requests = [
        Request { key: b"group", limit: &group, cost: 1 },
        Request { key: b"route", limit: &route, cost: 1 },
    ];
    let nothing =
        Decision { allowed: false, limit: 0, remaining: 0, retry_after: 0, reset_after: 0, delay: 0 };
    let (mut decisions, mut holds) = ([nothing; 2], [Hold::default(); 2]);
    let admitted = (0..5)
        .filter(|_| check_all(&table, &requests, SECOND, &mut decisions, &mut holds).unwrap().allowed)
        .count();
    assert_eq!(admitted, 3);
    assert_eq!(table.peek(b"group", &group, 0, SECOND).remaining, 7);
}

#[test]
fn case_12_the_windows_differ_at_a_boundary_as_they_are_defined() {
    let mut times = vec![59_900 * MS; 12];
    times.extend([60_100 * MS; 12]);
    all_admit("fixed_window 10/m", &times, 20);
    all_admit("sliding_log 10/m", &times, 10);
    all_admit("sliding_window 10/m", &times, 11); // 10 × 59.9/60 leaves room for one
}

#[test]
fn case_13_a_bucket_that_was_idle_admits_no_more_than_its_burst() {
    let mut times = vec![10 * SECOND; 5];
    times.extend([12 * SECOND; 7]);
    all_admit("5/s", &times, 10);
}

#[test]
fn case_14_no_remainder_of_a_rate_is_dropped() {
    let times: Vec<Nanos> = (0..50_000u64).map(|n| n * 200_000).collect();
    for (way, count) in admitted("1000/s burst 1", &times) {
        assert_eq!(count, 10_000, "{way}");
    }
}

#[test]
fn case_18_a_cost_above_the_burst_is_told_apart_and_never_promised() {
    for algorithm in
        ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log", "concurrency"]
    {
        for (way, mut subject) in every_way(limit(&format!("{algorithm} 10/s"))) {
            let decision = subject.check(16, SECOND);
            assert_eq!((decision.allowed, decision.retry_after), (false, NEVER), "{algorithm}, {way}");
            assert!(!decision.can_ever_fit());
            assert!(subject.check(10, SECOND).allowed, "{algorithm}, {way}: and nothing was charged");
        }
    }
}

#[test]
fn case_22_a_refund_of_an_empty_bucket_is_kept() {
    for algorithm in ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        for (way, mut subject) in every_way(limit(&format!("{algorithm} 10/s"))) {
            assert!(subject.check(10, SECOND).allowed);
            if !subject.refund(3, SECOND) {
                // Its entries are known by their call; its vectors do it.
                assert_eq!((algorithm, way), ("sliding_log", "shared pages"));
                continue;
            }
            assert_eq!(subject.check(0, SECOND).remaining, 3, "{algorithm}, {way}");
            assert!(subject.refund(u64::MAX, SECOND));
            assert_eq!(subject.check(0, SECOND).remaining, 10, "{algorithm}, {way}: never above the burst");
        }
    }
}

#[test]
fn case_23_keys_of_control_characters_and_of_a_megabyte_are_keys_like_others() {
    let owned = OwnedTable::new(Config { capacity: 64, rows: 16, row_entries: 4 }, Seed([1, 2])).unwrap();
    let table = owned.table().unwrap();
    let large = vec![0xFFu8; 1 << 20];
    let keys: [&[u8]; 7] = [b"", b"\0", b"\r\n", b"a\r\nSET x y\r\n", b"\xC3\x28", b"\x1B[2J", &large];
    for text in ["2/h", "fixed_window 2/h", "sliding_window 2/h", "sliding_log 2/h"] {
        for expected in [true, true, false] {
            for key in keys {
                assert_eq!(table.check(key, &limit(text), 1, SECOND).allowed, expected, "{text}");
            }
        }
    }
    assert_eq!(table.stats().evictions, 0);
}
