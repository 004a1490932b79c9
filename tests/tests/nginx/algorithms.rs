//! Each algorithm keeps its promise through NGINX, and so do costs and waiting times.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_tests::nginx::{Conn, Nginx, request};

fn limited(limit: &str) -> Nginx {
    Nginx::start(&format!(
        "tollgate_zone main size=1m rows=64 row_entries=32;
         server {{ listen 127.0.0.1:@port@;
             location / {{ tollgate zone=main key=$http_x_api_key {limit} name=it; empty_gif; }}
             location = /metrics {{ tollgate_metrics; }} }}"
    ))
}

#[test]
fn a_token_bucket_admits_its_burst_and_not_one_more() {
    let nginx = limited("rate=1r/m burst=5");
    assert_eq!(nginx.statuses("a", "/", 7), [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(nginx.statuses("b", "/", 1), [200], "another key has its own bucket");
}

#[test]
fn burst_is_the_rate_when_it_is_not_written() {
    assert_eq!(limited("rate=2r/m").statuses("a", "/", 3), [200, 200, 429]);
}

#[test]
fn every_algorithm_admits_its_limit_and_denies_the_next() {
    // A period of a day, so that no window ends while the test runs, except at midnight of the
    // clock that began when this machine did.
    for algorithm in ["fixed_window", "sliding_window", "sliding_log", "leaky_bucket", "token_bucket"] {
        let nginx = limited(&format!("rate=3/d algorithm={algorithm}"));
        let answers: Vec<_> = (0..5).map(|_| nginx.get_as("a", "/")).collect();
        let statuses: Vec<_> = answers.iter().map(|a| a.status).collect();
        assert_eq!(statuses, [200, 200, 200, 429, 429], "{algorithm}");
        let remaining: Vec<_> = answers.iter().map(|a| a.number("x-ratelimit-remaining")).collect();
        assert_eq!(remaining, [2, 1, 0, 0, 0], "{algorithm}");
        let wait = answers[3].number("retry-after");
        assert!((1..=86_400).contains(&wait), "{algorithm}: {wait}");
    }
}

#[test]
fn waiting_retry_after_admits() {
    // 1 in 1.5 s: a truncated answer of 1 s would be too early.
    for limit in [
        "rate=1/1.5s burst=1",
        "rate=1/1.5s algorithm=fixed_window",
        "rate=1/1.5s algorithm=sliding_log",
        "rate=1/1.5s algorithm=leaky_bucket",
    ] {
        let nginx = limited(limit);
        let first = nginx.get_as("a", "/");
        assert_eq!(first.status, 200, "{limit}");
        let mut denied = nginx.get_as("a", "/");
        if denied.status == 200 {
            // The window turned between the two; the next one cannot.
            denied = nginx.get_as("a", "/");
        }
        assert_eq!(denied.status, 429, "{limit}");
        let wait = denied.number("retry-after");
        assert!((1..=2).contains(&wait), "{limit}: {wait}");
        thread::sleep(Duration::from_secs(wait));
        assert_eq!(nginx.get_as("a", "/").status, 200, "{limit}");
    }
}

#[test]
fn a_denial_postpones_nothing() {
    let nginx = limited("rate=1r/s burst=1");
    for round in 0..5 {
        let start = Instant::now();
        let mut latest = Duration::ZERO;
        let mut admitted = 0;
        for i in 0..11 {
            let due = start + Duration::from_millis(600 * i);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            admitted += u32::from(nginx.get_as(&format!("round {round}"), "/").status == 200);
            latest = latest.max(due.elapsed());
        }
        // A busy machine that came late has asked another question.
        if latest < Duration::from_millis(100) {
            assert_eq!(admitted, 6, "a try each 600 ms at 1/s");
            return;
        }
    }
    panic!("this machine is too busy to keep time");
}

#[test]
fn odd_and_large_rates_admit_what_they_say() {
    let nginx = limited("rate=1500/s burst=1500");
    assert_eq!(nginx.get_as("a", "/").number("x-ratelimit-limit"), 1500);
    let nginx = limited("rate=700/m burst=2");
    assert_eq!(nginx.statuses("a", "/", 2), [200, 200]);
    // 700 a minute: the third fits after 86 ms, and then there is not yet a fourth.
    thread::sleep(Duration::from_millis(90));
    assert_eq!(nginx.statuses("a", "/", 1), [200]);
}

#[test]
fn delay_makes_a_leaky_bucket_wait() {
    let nginx = limited("rate=5r/s burst=5 algorithm=leaky_bucket delay");
    let port = nginx.port(1);
    let start = Instant::now();
    let mut times: Vec<_> = (0..6)
        .map(|_| {
            thread::spawn(move || {
                let mut conn = Conn::open(port);
                conn.request("GET", "/", &[("X-Api-Key", "a")]);
                let status = conn.response_to("GET").unwrap().status;
                (status, start.elapsed().as_millis())
            })
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|t| t.join().unwrap())
        .collect();
    times.sort_unstable_by_key(|&(status, at)| (status, at));
    let admitted: Vec<_> = times.iter().filter(|(status, _)| *status == 200).map(|(_, at)| *at).collect();
    assert_eq!(admitted.len(), 5, "{times:?}");
    for (i, at) in admitted.iter().enumerate() {
        let earliest = 200 * i as u128;
        assert!(*at >= earliest, "the {i}th went on after {at} ms: {times:?}");
        assert!(*at < earliest + 2000, "the {i}th went on after {at} ms: {times:?}");
    }
    assert_eq!(nginx.counter("it", "delayed"), 4);
    assert_eq!(nginx.counter("it", "rejected"), 1);
}

#[test]
fn delay_alone_means_the_leaky_bucket() {
    let nginx = limited("rate=5r/s burst=3 delay");
    assert_eq!(nginx.get_as("a", "/").status, 200);
    let start = Instant::now();
    assert_eq!(nginx.get_as("a", "/").status, 200);
    assert!(start.elapsed() > Duration::from_millis(150));
}

#[test]
fn a_client_that_leaves_while_it_waits_harms_nobody() {
    let nginx = limited("rate=2r/s burst=10 delay");
    for _ in 0..4 {
        let mut conn = Conn::open(nginx.port(1));
        conn.request("GET", "/", &[("X-Api-Key", "a")]);
    }
    assert_eq!(nginx.get_as("b", "/").status, 200);
}

#[test]
fn without_delay_the_queue_is_reported_and_nobody_waits() {
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         log_format it '$tollgate_status $tollgate_delay';
         access_log @dir@/access.log it;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$http_x_api_key rate=1r/s burst=5 algorithm=leaky_bucket;
                          empty_gif; } }",
    );
    let start = Instant::now();
    assert_eq!(nginx.statuses("a", "/", 3), [200, 200, 200]);
    assert!(start.elapsed() < Duration::from_millis(900));
    let log = nginx.access_log(3);
    assert_eq!(log[0], "PASSED 0.000");
    let third: f64 = log[2].strip_prefix("PASSED ").unwrap().parse().unwrap();
    assert!((1.0..=2.0).contains(&third), "{log:?}");
}

/// Answers each request when told to; counts how many are inside at once.
fn slow_backend(hold: Duration) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut buf = [0; 4096];
                let _ = stream.read(&mut buf);
                thread::sleep(hold);
                let _ =
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            });
        }
    });
    port
}

fn concurrent(hold: Duration, rate: &str) -> Nginx {
    Nginx::start(&format!(
        "tollgate_zone main size=1m rows=64 row_entries=32;
         server {{ listen 127.0.0.1:@port@;
             location / {{ tollgate zone=main key=$http_x_api_key rate={rate} algorithm=concurrency;
                          proxy_pass http://127.0.0.1:{}; }} }}",
        slow_backend(hold)
    ))
}

#[test]
fn concurrency_counts_what_is_in_flight_and_gives_back_at_the_end() {
    let nginx = concurrent(Duration::from_millis(700), "3/30s");
    for round in 0..2 {
        let mut conns: Vec<_> = (0..5).map(|_| Conn::open(nginx.port(1))).collect();
        for conn in &mut conns {
            conn.request("GET", "/", &[("X-Api-Key", "a")]);
        }
        let mut statuses: Vec<_> = conns.iter_mut().map(|c| c.response_to("GET").unwrap().status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 429, 429], "round {round}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_hangs_up_gives_its_place_back() {
    let nginx = concurrent(Duration::from_secs(2), "1/30s");
    let mut conn = Conn::open(nginx.port(1));
    conn.request("GET", "/", &[("X-Api-Key", "a")]);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(nginx.get_as("a", "/").status, 429);
    drop(conn);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(nginx.get_as("a", "/").status, 200);
}

#[test]
fn a_hold_that_nobody_gives_back_ends_by_itself() {
    let nginx = concurrent(Duration::from_secs(3), "1/1s");
    let mut conn = Conn::open(nginx.port(1));
    conn.request("GET", "/", &[("X-Api-Key", "a")]);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(nginx.get_as("a", "/").status, 429);
    thread::sleep(Duration::from_millis(1000));
    let mut late = Conn::open(nginx.port(1));
    late.request("GET", "/", &[("X-Api-Key", "a")]);
    assert_eq!(late.response_to("GET").unwrap().status, 200);
}

#[test]
fn a_cost_takes_so_many_units() {
    let nginx = limited("rate=10/d cost=4");
    let first = nginx.get_as("a", "/");
    assert_eq!((first.status, first.number("x-ratelimit-remaining")), (200, 6));
    assert_eq!(nginx.statuses("a", "/", 2), [200, 429]);
}

#[test]
fn a_cost_of_zero_reads_without_taking() {
    let nginx = limited("rate=2/d cost=$arg_cost");
    assert_eq!(nginx.statuses("a", "/?cost=1", 1), [200]);
    for _ in 0..5 {
        assert_eq!(nginx.get_as("a", "/?cost=0").number("x-ratelimit-remaining"), 1);
    }
    assert_eq!(nginx.statuses("a", "/?cost=1", 2), [200, 429]);
}

#[test]
fn a_cost_that_can_never_fit_has_its_own_status_and_no_retry_after() {
    let nginx = limited("rate=10/d cost=$arg_cost");
    let over = nginx.get_as("a", "/?cost=16");
    assert_eq!(over.status, 422);
    let told = ["limit", "remaining", "reset"].map(|name| over.header(&format!("x-ratelimit-{name}")));
    assert_eq!((over.header("retry-after"), told), (None, [Some("10"), None, None]));
    assert_eq!(nginx.get_as("a", "/?cost=10").status, 200, "the denial took nothing");
    let nginx = limited("rate=10/d cost=$arg_cost status_over=413 status=503");
    assert_eq!(nginx.statuses("a", "/?cost=11", 1), [413]);
    assert_eq!(nginx.statuses("a", "/?cost=9", 2), [200, 503]);
}

#[test]
fn a_cost_that_is_no_number_is_one_and_digits_never_make_it_cheaper() {
    let nginx = limited("rate=10/d cost=$arg_cost");
    for cost in ["", "x", "-5", "1.5", "%00", "0x10", "1e3", "+3"] {
        let key = format!("key-{cost}");
        let answer = nginx.get_as(&key, &format!("/?cost={cost}"));
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, 9), "cost {cost:?}");
    }
    for cost in ["18446744073709551615", "18446744073709551616", &"9".repeat(400)] {
        assert_eq!(nginx.get_as("a", &format!("/?cost={cost}")).status, 422, "cost {cost}");
    }
    assert!(nginx.error_log().contains("the cost of limit \"it\" is not a number"));
}

#[test]
fn a_delayed_request_is_never_early_though_the_worker_stalls() {
    // A worker that was busy has a cached time from before, and its timers count from that.
    let nginx = Nginx::start(
        "tollgate_zone main size=1m;
         server { listen 127.0.0.1:@port@;
             location / { tollgate zone=main key=$http_x_api_key rate=1r/s burst=9 delay; empty_gif; }
             location = /slow { if ($http_x_slow ~ '^(a+)+$') { return 204; } empty_gif; } }",
    );
    let start = Instant::now();
    assert_eq!(nginx.get_as("a", "/").status, 200);
    // All on one connection at once: they are handled between two looks at the clock.
    let mut conn = Conn::open(nginx.port(1));
    let mut all = request("GET", "/slow", &[("X-Slow", "aaaaaaaaaaaaaaaaaaaab")]).repeat(4);
    all.extend(request("GET", "/", &[("X-Api-Key", "a")]));
    conn.raw(&all);
    for _ in 0..4 {
        assert_eq!(conn.response_to("GET").unwrap().status, 200);
    }
    // Another request makes the worker look at the clock while the fifth waits.
    assert_eq!(nginx.get_as("b", "/").status, 200);
    assert_eq!(conn.response_to("GET").unwrap().status, 200);
    let after = start.elapsed();
    assert!(after >= Duration::from_secs(1), "{after:?}");
}
