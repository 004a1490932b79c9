//! A rules file of 300,000 overrides: it starts, a live change of one row is enforced soon, and
//! requests do not wait for it.

use std::fmt::Write;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::nginx::{Conn, Nginx};

use crate::rules_reload::Load;
use crate::rules_support::RulesFile;

const ROWS: usize = 300_000;

/// 300,000 subjects with their own limits, one of them with this one.
fn document(changed: usize, rate: &str) -> String {
    document_of(ROWS, changed, rate)
}

fn document_of(rows: usize, changed: usize, rate: &str) -> String {
    let mut text = String::from(
        "{ \"identity\": { \"user\": { \"header\": \"x-user-id\" } }, \"policies\": [\n\
         { \"name\": \"rows\", \"key\": [\"user\"], \"limits\": [ { \"rate\": \"1000/s\" } ], \"overrides\": [\n",
    );
    for row in 0..rows {
        let rate = if row == changed { rate.to_owned() } else { format!("{}/s", 100 + row % 50) };
        let end = if row + 1 < rows { ",\n" } else { "\n" };
        write!(text, "{{ \"key\": [\"user-{row}\"], \"limits\": [ {{ \"rate\": \"{rate}\" }} ] }}{end}")
            .unwrap();
    }
    text + "] } ] }"
}

fn limit_of(conn: &mut Conn, row: usize) -> u64 {
    conn.request("GET", "/", &[("X-User-Id", &format!("user-{row}"))]);
    conn.response_to("GET").expect("an answer").number("x-ratelimit-limit")
}

#[test]
fn three_hundred_thousand_overrides_change_under_load() {
    let file = RulesFile::new(&document(7, "5/s"));
    let begun = Instant::now();
    let nginx = Nginx::start_with(2, &file.http("reload=100ms", ""));
    let started = begun.elapsed();
    let mut conn = Conn::open(nginx.port(1));
    assert_eq!((limit_of(&mut conn, 7), limit_of(&mut conn, 299_999)), (5, 100 + 299_999 % 50));
    drop(conn);
    let load = Load::start(nginx.port(1), 4, Duration::from_millis(2), "load");
    thread::sleep(Duration::from_millis(500));
    let quiet = load.forget_slowest();
    let mut enforced = Vec::new();
    for change in 1..=3u64 {
        let limit = 5 + change;
        let text = document(7, &format!("{limit}/s"));
        file.write(&text);
        let begun = Instant::now();
        // Each request on a connection of its own, until a hundred in a row agree: both workers.
        let (mut alike, mut last_other) = (0, begun);
        while alike < 100 {
            assert!(begun.elapsed() < Duration::from_secs(20), "{}", nginx.error_log());
            if limit_of(&mut Conn::open(nginx.port(1)), 7) == limit {
                alike += 1;
            } else {
                (alike, last_other) = (0, Instant::now());
            }
        }
        enforced.push(last_other - begun);
    }
    let (answers, slowest) = load.finish();
    println!(
        "{ROWS} overrides: started after {started:?}; a changed row enforced everywhere after {enforced:?}; \
         of {answers} answers the slowest took {slowest:?} ({quiet:?} before)"
    );
    assert_eq!(nginx.metrics()["rules"]["overrides"], ROWS);
    // A worker that compiled between two requests would keep them waiting for as long as that takes.
    assert!(slowest < Duration::from_millis(400), "{slowest:?}");
}

#[test]
fn a_worker_ends_though_it_still_reads_a_huge_document() {
    let file = RulesFile::new(&document_of(1, 0, "5/s"));
    let nginx = Nginx::start(&file.http("reload=50ms", ""));
    let [worker] = nginx.worker_pids()[..] else { panic!("one worker") };
    let threads = || fs::read_dir(format!("/proc/{worker}/task")).map_or(0, Iterator::count);
    file.write(&document_of(3 * ROWS, 7, "5/s"));
    nginx.wait_until("the thread that reads", |_| threads() > 1);
    let begun = Instant::now();
    nginx.signal(libc::SIGQUIT);
    nginx.wait_until("the worker to end", |_| threads() == 0);
    let took = begun.elapsed();
    println!("{took:?}");
    let log = nginx.error_log();
    assert!(!log.contains("are in force"), "it was read too soon for this test: {log}");
    assert!(took < Duration::from_millis(300), "{took:?}");
}
