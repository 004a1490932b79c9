//! Several workers share one truth, and a full zone never turns a newcomer away.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tollgate_tests::nginx::{Conn, Nginx, request, send_signal};

/// `n` requests at once, over as many connections; how many were answered 200, and how many 429.
fn at_once(nginx: &Nginx, path: &'static str, n: usize) -> (usize, usize) {
    const THREADS: usize = 20;
    // All are connected before any thread waits for the others, so that nobody waits in vain.
    let all: Vec<Vec<_>> =
        (0..THREADS).map(|_| (0..n / THREADS).map(|_| Conn::open(nginx.port(1))).collect()).collect();
    let barrier = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = all
        .into_iter()
        .map(|mut conns| {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                barrier.wait();
                for conn in &mut conns {
                    conn.request("GET", path, &[("X-Api-Key", "everybody")]);
                }
                let mut counts = (0, 0);
                for conn in &mut conns {
                    match conn.response_to("GET").expect("an answer").status {
                        200 => counts.0 += 1,
                        429 => counts.1 += 1,
                        other => panic!("status {other}"),
                    }
                }
                counts
            })
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

#[test]
fn four_workers_and_a_thousand_requests_at_once_admit_exactly_the_burst() {
    for (burst, runs) in [(10, 1), (100, 10)] {
        for run in 0..runs {
            let nginx = Nginx::start_with(
                4,
                &format!(
                    "tollgate_zone main size=1m;
                     server {{ listen 127.0.0.1:@port@ backlog=4096 reuseport;
                         location / {{ tollgate zone=main key=$http_x_api_key rate=1/d burst={burst};
                                      empty_gif; }} }}"
                ),
            );
            assert_eq!(at_once(&nginx, "/", 1000), (burst, 1000 - burst), "run {run}");
        }
    }
}

#[test]
fn workers_share_every_algorithm_and_count_every_request() {
    let nginx = Nginx::start_with(
        4,
        "tollgate_zone main size=1m rows=16 row_entries=64;
         server { listen 127.0.0.1:@port@ backlog=4096 reuseport;
             location /log { tollgate zone=main key=$http_x_api_key rate=50/d algorithm=sliding_log name=log;
                             empty_gif; }
             location /window { tollgate zone=main key=$http_x_api_key rate=50/d
                                         algorithm=sliding_window name=window; empty_gif; }
             location /fixed { tollgate zone=main key=$http_x_api_key rate=50/d algorithm=fixed_window
                                        name=fixed; empty_gif; }
             location /leaky { tollgate zone=main key=$http_x_api_key rate=50/d algorithm=leaky_bucket
                                        name=leaky; empty_gif; }
             location /layers { tollgate zone=main key=$http_x_api_key rate=50/d name=narrow;
                                tollgate zone=main key=$http_x_api_key rate=90/d name=wide; empty_gif; }
             location = /metrics { tollgate_metrics; } }",
    );
    for path in ["/log", "/window", "/fixed", "/leaky"] {
        assert_eq!(at_once(&nginx, path, 400), (50, 350), "{path}");
        assert_eq!(nginx.counter(&path[1..], "allowed"), 50, "{path}");
        assert_eq!(nginx.counter(&path[1..], "rejected"), 350, "{path}");
    }
    // A layer that is asked and refunded at the same moment may deny a neighbour, never admit one.
    let (admitted, _) = at_once(&nginx, "/layers", 400);
    assert!((40..=50).contains(&admitted), "{admitted}");
}

#[test]
fn a_worker_that_is_killed_takes_no_count_with_it() {
    let mut nginx = Nginx::start_with(
        2,
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port@ reuseport;
             location / { tollgate zone=main key=$http_x_api_key rate=1000/d; empty_gif; } }",
    );
    nginx.expect_alerts();
    let mut admitted = 0;
    for round in 0..10 {
        let port = nginx.port(1);
        let load = thread::spawn(move || {
            let mut admitted = 0;
            for _ in 0..200 {
                let Some(mut conn) = Conn::try_open(port) else { continue };
                conn.request("GET", "/", &[("X-Api-Key", "a")]);
                admitted += u64::from(conn.response_to("GET").is_some_and(|a| a.status == 200));
            }
            admitted
        });
        thread::sleep(Duration::from_millis(10));
        if let Some(&worker) = nginx.worker_pids().get(round % 2) {
            send_signal(worker, libc::SIGKILL);
        }
        admitted += load.join().unwrap();
        nginx.wait_until("new workers", |n| n.worker_pids().len() == 2);
    }
    // Answers that a killed worker did not send were charged all the same.
    assert!(admitted <= 1000, "{admitted}");
    let left = (0..1100).filter(|_| nginx.get_as("a", "/").status == 200).count() as u64;
    assert!(admitted + left <= 1000, "{admitted} and {left}");
    assert!(admitted + left >= 1000 - 10 * 2, "{admitted} and {left}");
}

#[test]
fn a_full_zone_denies_no_newcomer_whatever_the_length_of_its_key() {
    let nginx = Nginx::start_with(
        2,
        "tollgate_zone main size=64k;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$http_x_api_key rate=1/d burst=1; empty_gif; }
             location = /metrics { tollgate_metrics; } }",
    );
    // Far more keys than there is room for, and none of them idle for a day; lengths change.
    let mut conn = Conn::open(nginx.port(1));
    let mut denied = 0;
    for batch in 0..160 {
        let mut bytes = Vec::new();
        for i in 0..100 {
            let length = [8, 300, 23, 1500, 64][batch / 32];
            let key = format!("{batch:04}-{i:03}-").repeat(200);
            bytes.extend(request("GET", "/", &[("X-Api-Key", &key[..length.max(9)])]));
        }
        conn.raw(&bytes);
        for _ in 0..100 {
            match conn.response_to("GET") {
                Some(answer) if answer.status == 200 => {}
                Some(_) => denied += 1,
                None => panic!("closed"),
            }
        }
        // keepalive_requests is 1,000
        if batch % 9 == 8 {
            conn = Conn::open(nginx.port(1));
        }
    }
    assert_eq!(denied, 0, "first-time keys denied, of 16,000");
    let page = nginx.metrics();
    let keys = &page["zones"][0]["keys"];
    let (capacity, used) = (keys["capacity"].as_u64().unwrap(), keys["used"].as_u64().unwrap());
    assert!(capacity >= 1000, "64 KiB hold {capacity} keys");
    assert!(used <= capacity && used * 10 >= capacity * 9, "{used} of {capacity} used");
    assert!(keys["evictions"].as_u64().unwrap() > 10_000, "{keys}");
}

#[test]
fn nearly_all_of_a_zone_is_for_keys() {
    let nginx = Nginx::start(
        "tollgate_zone main size=32m;
         server { listen 127.0.0.1:@port@; location = /metrics { tollgate_metrics; } }",
    );
    let page = nginx.metrics();
    let capacity = page["zones"][0]["keys"]["capacity"].as_u64().unwrap();
    let bytes = page["zones"][0]["bytes"].as_u64().unwrap();
    assert_eq!(bytes, 32 << 20);
    // 16 bytes a key; the table's head, the counters and nginx's page list are the rest.
    assert!(bytes as f64 / capacity as f64 <= 16.4, "{capacity} keys in {bytes} bytes");
}
