//! NGINX with limits that are counted in Redis: what a request that has to ask
//! waits for it, beside the same request without a limit.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tollgate_tests::redis;

use super::client::Client;
use super::server::Server;
use crate::Options;
use crate::keys::key;
use crate::report::Row;

/// Requests a second, over so many connections.
const RATE: u64 = 2_000;
const CONNECTIONS: u64 = 16;

pub(super) fn rows(options: &Options) -> Vec<Row> {
    let redis = redis::Server::start(&[]);
    let folder = std::env::temp_dir().join(format!("tollgate-bench-rules-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let rules = folder.join("rules.json");
    let document = r#"{ "identity": { "api_key": { "header": "x-api-key" } }, "policies": [ { "name": "api",
        "key": ["api_key"], "limits": [ { "rate": "100000/s" } ], "store": "redis", "timeout": "100ms" } ] }"#;
    fs::write(&rules, document).expect("a file");
    let server = Server::start(
        1,
        &format!(
            "tollgate_zone ours size=8m; tollgate_rules {}; tollgate_redis 127.0.0.1:{};
             server {{ listen 127.0.0.1:@port@;
                 location = /none {{ empty_gif; }}
                 location = /ours {{ tollgate_policies zone=ours; empty_gif; }} }}",
            rules.display(),
            redis.port()
        ),
    );
    // The first requests find a connection that is not there yet.
    let mut client = Client::connect(server.port());
    for number in 0..1000 {
        client.get("/ours", &key(number as usize));
        thread::sleep(Duration::from_millis(1));
    }
    let seconds = if options.quick { 1 } else { 3 };
    let mut rounds = [histogram(), histogram()];
    for number in 0..=options.rounds(5) {
        for turn in 0..2 {
            let index = (turn + number) % 2;
            let seen = load(server.port(), ["/none", "/ours"][index], seconds);
            if number > 0 {
                rounds[index].add(seen).expect("the same bounds"); // the first only warms up
            }
        }
    }
    let calls = redis.info("commandstats", "cmdstat_evalsha").contains("calls=");
    assert!(calls, "Redis was not asked");
    let _ = fs::remove_dir_all(&folder);
    let [none, ours] = rounds;
    let at = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
    println!(
        "NGINX, Redis asked by each request: p50 {:.3} ms, p99 {:.3} ms; without a limit p50 {:.3} ms, p99 {:.3} ms",
        at(&ours, 0.5),
        at(&ours, 0.99),
        at(&none, 0.5),
        at(&none, 0.99)
    );
    let added = |quantile| (at(&ours, quantile) - at(&none, quantile)).max(0.0);
    vec![
        Row::absolute(
            "nginx/redis/p99",
            "NGINX with Redis, no leases, 2,000 requests/s: added, p99",
            "ms",
            added(0.99),
            2.0,
        ),
        Row::absolute("nginx/redis/p50", "the same, p50", "ms", added(0.5), 2.0),
    ]
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("legal bounds")
}

/// Requests at a fixed rate, whatever the answers do; each is timed from when
/// it was due.
fn load(port: u16, path: &'static str, seconds: u64) -> Histogram<u64> {
    let begin = Instant::now() + Duration::from_millis(50);
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|connection| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                let mut seen = histogram();
                for turn in 0..RATE * seconds / CONNECTIONS {
                    let number = turn * CONNECTIONS + connection;
                    let due = begin + Duration::from_nanos(number * 1_000_000_000 / RATE);
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    let status = client.get(path, &key(number as usize));
                    assert_eq!(status, 200, "{path}");
                    seen.saturating_record(due.elapsed().as_nanos() as u64);
                }
                seen
            })
        })
        .collect();
    let mut all = histogram();
    for thread in threads {
        all.add(thread.join().expect("a thread that ends")).expect("the same bounds");
    }
    all
}
